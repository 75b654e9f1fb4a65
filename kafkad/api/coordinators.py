"""FindCoordinator (key 10), v0-6.   v1 key type and message. v3 flexible. v4 several keys.
v5 transaction errors. v6 share groups (KIP-932).

A group's coordinator is the leader of its partition of `__consumer_offsets`. The topic is made when the first
client asks; if that does not succeed the client is told COORDINATOR_NOT_AVAILABLE and asks again. A
transactional id is answered with this broker, which then refuses the transaction with a reason of its own.
Not yet: transactions, share groups (INVALID_REQUEST), authorization."""

import logging
from typing import Any, NamedTuple

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages

logger = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2
OFFSETS_TOPIC = "__consumer_offsets"
SEVERAL_KEYS_FROM = 4

MESSAGES = {
    errors.NONE: "NONE",  # Kafka's own word for it
    errors.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    errors.INVALID_REQUEST: "This broker has no coordinator of that type.",
}


class Coordinator(NamedTuple):
    code: int
    node_id: int = -1
    host: str = ""
    port: int = -1


def find_coordinator(services: Services, context: RequestContext, request: Any) -> Any:
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
    if key_type == TRANSACTION:
        return _broker(services, context, services.config.node_id)
    if key_type != GROUP:
        return Coordinator(errors.INVALID_REQUEST)
    if OFFSETS_TOPIC not in services.metadata.image.topics:
        _create_offsets_topic(services)
    topic = services.metadata.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return Coordinator(errors.COORDINATOR_NOT_AVAILABLE)
    partition = topic.partitions.get(services.groups.partition_for(key))
    return _broker(services, context, -1 if partition is None else partition.leader)


def _broker(services: Services, context: RequestContext, node_id: int) -> Coordinator:
    broker = services.metadata.image.brokers.get(node_id)
    endpoint = None if broker is None or broker.fenced else broker.listeners.get(context.listener)
    if endpoint is None:
        return Coordinator(errors.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(errors.NONE, node_id, endpoint.host, endpoint.port)


def _create_offsets_topic(services: Services) -> None:
    for trouble in services.controller.auto_create([OFFSETS_TOPIC]).values():
        if trouble is not None:
            logger.error("%s could not be created: %s", OFFSETS_TOPIC, trouble)
