"""Changes of client quotas, planned as records (ClientQuotaControlManager, KIP-546, KIP-612).

Each entity of a request is changed whole or not at all; refused ones do not affect the others. A quota that
has the value already writes nothing. Entities and messages are Kafka's, with two exceptions: an address must
be numeric, because resolving a name would block the controller, and a value that is not a number is
refused."""

import math
from collections.abc import Generator
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from kafkad import quota
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

RECORDS_MAX: Final = 10_000  # of one request; Kafka: MAX_RECORDS_PER_USER_OP
TOO_MANY: Final = "Unable to perform excessively large batch operation."


class Key(NamedTuple):
    highest: float = math.inf
    integral: bool = False
    type: str = "DOUBLE"


LONG: Final = Key(float(2**63 - 1), True, "a LONG")
INT: Final = Key(float(2**31 - 1), True, "an INT")
# QuotaConfig.userAndClientQuotaConfigs, QuotaConfig.ipConfigs
KEYS: Final = {
    quota.PRODUCER_BYTE_RATE: LONG,
    quota.CONSUMER_BYTE_RATE: LONG,
    quota.REQUEST_PERCENTAGE: Key(),
    quota.CONTROLLER_MUTATION_RATE: Key(),
}
IP_KEYS: Final = {quota.CONNECTION_CREATION_RATE: INT}

PARTS_COMPARED: Final = 100

Entity = dict[str, str | None]
Steps = Generator[None, None, Any]


def plan_alter(image: MetadataImage, request: Any) -> Steps:
    """Return (records, AlterClientQuotasResponse), in steps. Raises KafkaError(POLICY_VIOLATION)."""
    records: list[Any] = []
    results: dict[Any, Any] = {}
    for entry in request.entries:
        yield
        entity: Entity = {}
        for part in entry.entity:
            entity[part.entity_type] = part.entity_name
            yield
        # More parts than there are types: it is refused, and need not be compared with the others.
        place: Any = frozenset(entity.items()) if len(entity) <= PARTS_COMPARED else len(results)
        keys = yield from wide.set_of(op.key for op in entry.ops)
        repeats_key = len(keys) < len(entry.ops)
        yield from wide.empty(keys)
        try:
            if place in results or repeats_key:
                raise _invalid(f"Ignoring duplicate entity {_text(entity)}")
            new = _planned(image, entity, entry.ops)
        except KafkaError as trouble:
            results[place] = yield from _result(entity, trouble)
        else:
            results[place] = yield from _result(entity, None)
            records += new
            if len(records) > RECORDS_MAX:
                raise KafkaError(errors.POLICY_VIOLATION, TOO_MANY)
        yield from wide.empty(entity)
    entries = list(results.values())
    yield from wide.empty(results)
    return records, messages.AlterClientQuotasResponse(entries=entries)


def _result(entity: Entity, trouble: KafkaError | None) -> Steps:
    cls = messages.AlterClientQuotasResponse.Entries
    result = cls(
        error_code=errors.NONE if trouble is None else trouble.code,
        error_message=None if trouble is None else trouble.message,
    )
    for kind, name in entity.items():
        result.entity.append(cls.Entity(entity_type=kind, entity_name=name))
        yield
    return result


def _planned(image: MetadataImage, entity: Entity, ops: Any) -> list[Any]:
    _check_entity(entity)
    keys = IP_KEYS if quota.IP in entity else KEYS
    place = tuple(sorted((kind, name is None, name or "") for kind, name in entity.items()))
    records = []
    for op in ops:
        current = image.client_quotas.get((place, op.key))
        if op.remove:
            if current is not None:
                records.append(_record(entity, op.key, 0.0, remove=True))
            continue
        _check_value(keys, op.key, op.value)
        if current is None or current.value != op.value:
            records.append(_record(entity, op.key, op.value, remove=False))
    return records


def _record(entity: Entity, key: str, value: float, *, remove: bool) -> Any:
    part = messages.ClientQuotaRecord.Entity
    parts = [part(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    return messages.ClientQuotaRecord(entity=parts, key=key, value=value, remove=remove)


def _check_entity(entity: Entity) -> None:
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (quota.USER, quota.CLIENT_ID, quota.IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if quota.IP not in entity:
        return
    if len(entity) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )  # the missing blank is Kafka's
    if not _is_address(entity[quota.IP]):
        raise _invalid(f"{entity[quota.IP]} is not a valid IP or resolvable host.")


def _is_address(text: str | None) -> bool:
    if text is None:
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(keys: dict[str, Key], name: str, value: float) -> None:
    key = keys.get(name)
    if key is None:
        raise _invalid(f"Invalid configuration key {name}")
    if not value > 0:  # NaN neither
        raise _invalid(f"Quota {name} must be greater than 0")
    if value > key.highest:
        raise _invalid(f"Proposed value for {name} is too large for {key.type}.")
    if key.integral and abs(math.fmod(value, 1.0)) > 1e-6:
        raise _invalid(f"{name} cannot be a fractional value.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, message)


def _text(entity: Entity) -> str:
    """An entity as Java prints it."""
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity.items())
    return f"ClientQuotaEntity(entries={{{parts}}})"
