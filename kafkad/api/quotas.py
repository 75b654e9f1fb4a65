"""DescribeClientQuotas (key 48) and AlterClientQuotas (key 49), v0-v1 (KIP-546). v1 flexible.

A filter matches a value, the default, or any entity of a type; with `strict` an entity must have no other
part. The answer has what the metadata has, including quotas that a JVM Kafka has written
(ClientQuotasImage)."""

from collections.abc import Generator
from typing import Any, Final

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.quota import CLIENT_ID, IP, USER

EXACT: Final = 0
DEFAULT: Final = 1
SPECIFIED: Final = 2
MATCHES: Final = {EXACT: "MATCH_TYPE_EXACT", DEFAULT: "MATCH_TYPE_DEFAULT", SPECIFIED: "MATCH_TYPE_SPECIFIED"}
ANY: Final = object()
Steps = Generator[None, None, Any]
Filter = dict[str, Any]  # entity type: a name, None for the default, or ANY


def describe_client_quotas(services: Services, context: RequestContext, request: Any) -> Steps:
    """Describe quotas, as a generator: there may be many. Raises KafkaError."""
    answer = messages.DescribeClientQuotasResponse
    wanted = _filter(request.components)
    found: dict[Any, Any] = {}
    for number, ((place, key), record) in enumerate(services.metadata.image.client_quotas.items()):
        if number % 100 == 0:
            yield
        if place not in found:
            entity = {kind: None if is_default else name for kind, is_default, name in place}
            if not _matches(entity, wanted, request.strict):
                continue
            parts = [answer.Entries.Entity(entity_type=t, entity_name=name) for t, name in entity.items()]
            found[place] = answer.Entries(entity=parts, values=[])
        found[place].values.append(answer.Entries.Values(key=key, value=record.value))
    return answer(error_code=errors.NONE, error_message="", entries=list(found.values()))


def alter_client_quotas(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_client_quotas(request, context)


def _filter(components: Any) -> Filter:
    wanted: Filter = {}
    for component in components:
        kind, match = component.entity_type, component.match_type
        if not kind:
            raise KafkaError(errors.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise KafkaError(
                errors.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (IP, USER, CLIENT_ID):
            raise KafkaError(errors.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match not in MATCHES:
            raise KafkaError(errors.INVALID_REQUEST, f"Unknown match type {match}")
        if (component.match is None) == (match == EXACT):
            but = "but set match string to null." if match == EXACT else "but also specified a match string."
            raise KafkaError(errors.INVALID_REQUEST, f"Request specified {MATCHES[match]}, {but}")
        wanted[kind] = ANY if match == SPECIFIED else component.match
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(
            errors.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component.",
        )
    return wanted


def _matches(entity: dict[str, str | None], wanted: Filter, strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    return all(kind in entity and (name is ANY or entity[kind] == name) for kind, name in wanted.items())
