"""FindCoordinator (key 10), v0-6.   v1 key type and message. v3 flexible. v4 several keys.
v5 transaction errors. v6 share groups (KIP-932).

The coordinator of a group is the leader of its partition of `__consumer_offsets`, that of a transactional id
the leader of its partition of `__transaction_state`. The topic is created when the first client asks; if that
fails, the client gets COORDINATOR_NOT_AVAILABLE and asks again. While the broker has no transaction
coordinator it names itself for a transactional id, and then refuses the transaction with a reason. Not yet:
share groups (INVALID_REQUEST), authorization."""

import inspect
import logging
from collections.abc import Awaitable, Generator
from typing import Any, NamedTuple

from kafkad.api.context import RequestContext, Services, present
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
SEVERAL_KEYS_FROM = 4

MESSAGES = {
    errors.NONE: "NONE",  # Kafka's own text
    errors.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    errors.INVALID_REQUEST: "This broker has no coordinator of that type.",
}

Troubles = dict[str, KafkaError | None]


class Coordinator(NamedTuple):
    code: int
    node_id: int = -1
    host: str = ""
    port: int = -1


def find_coordinator(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    """Return FindCoordinatorResponse, or an awaitable of it if the topic must be created first."""
    asked = request.coordinator_keys if context.version >= SEVERAL_KEYS_FROM else [request.key]
    topic = _topic_of(services, request.key_type)
    if asked and topic is not None and topic not in services.metadata.image.topics:
        created = services.controller.auto_create([topic])
        if inspect.isawaitable(created):
            return _answer_later(services, context, request, topic, created)
        _log_troubles(services, created)
    return (yield from _answer(services, context, request))


def _topic_of(services: Services, key_type: int) -> str | None:
    """Return the topic whose leaders coordinate keys of this type."""
    if key_type == TRANSACTION and services.transactions is not None:
        return TRANSACTION_TOPIC
    return OFFSETS_TOPIC if key_type == GROUP else None


async def _answer_later(
    services: Services, context: RequestContext, request: Any, topic: str, created: Awaitable[Troubles]
) -> Any:
    try:
        _log_troubles(services, await created)
    except KafkaError as trouble:
        _log_troubles(services, {topic: trouble})
    return _answer(services, context, request)


def _log_troubles(services: Services, created: Troubles) -> None:
    """Clients ask again at once and without end, so log each topic only from time to time."""
    for topic, trouble in created.items():
        if trouble is not None and services.seldom.due(topic, services.clock.monotonic_ms()):
            logger.error("%s could not be created: %s", topic, trouble)


def _answer(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    if context.version >= SEVERAL_KEYS_FROM:
        Answer = messages.FindCoordinatorResponse.Coordinators
        response = messages.FindCoordinatorResponse()
        for key in request.coordinator_keys:
            found = _find(services, context, request.key_type, key)
            response.coordinators.append(
                Answer(
                    key=key,
                    error_code=found.code,
                    error_message=MESSAGES[found.code] if found.code else "",
                    node_id=found.node_id,
                    host=found.host,
                    port=found.port,
                )
            )
            yield
        return response
    found = _find(services, context, request.key_type, request.key)
    return messages.FindCoordinatorResponse(
        error_code=found.code,
        error_message=MESSAGES[found.code],
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(services: Services, context: RequestContext, key_type: int, key: str) -> Coordinator:
    name = _topic_of(services, key_type)
    if name is None:
        if key_type == TRANSACTION:
            return _broker(services, context, services.config.node_id)
        return Coordinator(errors.INVALID_REQUEST)
    topic = services.metadata.image.topics.get(name)
    if topic is None:
        return Coordinator(errors.COORDINATOR_NOT_AVAILABLE)
    coordinator = present(services.transactions) if key_type == TRANSACTION else services.groups
    partition = topic.partitions.get(coordinator.partition_for(key))
    return _broker(services, context, -1 if partition is None else partition.leader)


def _broker(services: Services, context: RequestContext, node_id: int) -> Coordinator:
    broker = services.metadata.image.brokers.get(node_id)
    endpoint = None if broker is None or broker.fenced else broker.listeners.get(context.listener)
    if endpoint is None:
        return Coordinator(errors.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(errors.NONE, node_id, endpoint.host, endpoint.port)
