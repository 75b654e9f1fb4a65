"""Changes of client quotas, planned as records (KIP-546). An entity is changed whole or not at all.

    entity           keys
    user, client-id  producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip               connection_creation_rate

Kafka: ClientQuotaControlManager."""

import re
from collections.abc import Generator
from ipaddress import ip_address
from typing import Any, Final

from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

Plan = Generator[None, None, tuple[list[Any], Any]]
Entity = tuple[tuple[str, str | None], ...]  # (type, name), sorted by type

CLIENT_KEYS: Final[dict[str, int | None]] = {
    "producer_byte_rate": 2**63 - 1,
    "consumer_byte_rate": 2**63 - 1,
    "request_percentage": None,  # a fraction may be given
    "controller_mutation_rate": None,
}
IP_KEYS: Final[dict[str, int | None]] = {"connection_creation_rate": 2**31 - 1}
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9.-]{1,253}")


def plan_alter(image: MetadataImage, request: Any) -> Plan:
    """(records, AlterClientQuotasResponse). With validate_only there are no records."""
    cls = messages.AlterClientQuotasResponse.Entries
    response = messages.AlterClientQuotasResponse()
    records: list[Any] = []
    seen: set[Entity] = set()
    for entry in request.entries:
        yield
        row = cls(
            error_message=None,
            entity=[
                cls.Entity(entity_type=each.entity_type, entity_name=each.entity_name)
                for each in entry.entity
            ],
        )
        response.entries.append(row)
        try:
            entity = _entity(entry.entity)
            if entity in seen:
                raise KafkaError(errors.INVALID_REQUEST, f"Ignoring duplicate entity {dict(entity)}")
            seen.add(entity)
            records += _changes(image, entity, entry.ops)
        except KafkaError as trouble:
            row.error_code, row.error_message = trouble.code, trouble.message
    return ([] if request.validate_only else records), response


def _entity(parts: list[Any]) -> Entity:
    if not parts:
        raise KafkaError(errors.INVALID_REQUEST, "Invalid empty client quota entity")
    known: dict[str, str | None] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind in known:
            raise KafkaError(
                errors.INVALID_REQUEST, f"Invalid client quota entity, duplicate entity entry {kind}"
            )
        if kind not in ("user", "client-id", "ip"):
            raise KafkaError(errors.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise KafkaError(errors.INVALID_REQUEST, f"Empty {kind} not supported")
        known[kind] = name
    if "ip" in known and len(known) > 1:
        raise KafkaError(
            errors.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        )
    host = known.get("ip")
    if host is not None and not _is_host(host):
        raise KafkaError(errors.INVALID_REQUEST, f"{host} is not a valid IP or resolvable host.")
    return tuple(sorted(known.items()))


def _is_host(host: str) -> bool:
    """An address, or what may be a name: nobody is asked for it here, as the plan may not wait."""
    try:
        ip_address(host)
    except ValueError:
        return bool(_HOST.fullmatch(host)) and not host.replace(".", "").isdigit()
    return True


def _changes(image: MetadataImage, entity: Entity, operations: list[Any]) -> list[Any]:
    limits = IP_KEYS if entity[0][0] == "ip" else CLIENT_KEYS
    parts = tuple((kind, name is None, name or "") for kind, name in entity)
    cls = messages.ClientQuotaRecord
    seen: set[str] = set()
    records = []
    for operation in operations:
        key = operation.key
        if key in seen:
            raise KafkaError(errors.INVALID_REQUEST, f"Duplicate quota key {key}")
        seen.add(key)
        before = image.client_quotas.get((parts, key))
        record = cls(
            entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in entity], key=key
        )
        if operation.remove:
            if before is not None:
                record.remove = True
                records.append(record)
            continue
        _check(limits, key, operation.value)
        if before is None or before.value != operation.value:
            record.value = operation.value
            records.append(record)
    return records


def _check(limits: dict[str, int | None], key: str, value: float) -> None:
    if key not in limits:
        raise KafkaError(errors.INVALID_REQUEST, f"Invalid configuration key {key}")
    if not value > 0:
        raise KafkaError(errors.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    limit = limits[key]
    if limit is None:
        return
    if value > limit:
        raise KafkaError(errors.INVALID_REQUEST, f"Proposed value for {key} is too large.")
    if abs(value % 1.0) > 1e-6:
        raise KafkaError(errors.INVALID_REQUEST, f"{key} cannot be a fractional value.")
