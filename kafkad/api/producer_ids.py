"""InitProducerId (key 22), v0-5.   v2 flexible. v3 an old id and epoch may be named (KIP-360). v4
PRODUCER_FENCED.

The coordinator handles transactional ids (coordinator/transactions). A producer without one always gets a new
id with epoch 0, also if it names an old one: a producer that must begin a new epoch increments it itself, and
asks only when epochs have run out. Naming only one of id and epoch is INVALID_REQUEST. While the broker has
no transaction coordinator, a transactional id is INVALID_REQUEST.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kafkad.api.context import RequestContext, Services, code_of, present
from kafkad.api.groups import response_of
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

NOTHING = -1
FENCED_FROM = 4  # older clients do not know PRODUCER_FENCED


def init_producer_id(services: Services, context: RequestContext, request: Any) -> Any:
    one_of_two = (request.producer_id == NOTHING) != (request.producer_epoch == NOTHING)
    if request.transactional_id is not None and not one_of_two and services.transactions is not None:
        return _when_there_are_ids(services, context, request)
    if request.transactional_id is not None:  # the response has no message: clients point to this log
        logger.warning(
            "refused transactional id %r of %s: there are no transactions yet",
            request.transactional_id,
            context.client_host,
        )
    if request.transactional_id is not None or one_of_two:
        return _error_response(errors.INVALID_REQUEST)
    try:
        producer_id = present(services.producer_ids).generate()
    except KafkaError as trouble:
        return _error_response(code_of(trouble))
    return _later(producer_id) if inspect.isawaitable(producer_id) else _granted(producer_id)


def _when_there_are_ids(services: Services, context: RequestContext, request: Any) -> Any:
    """The coordinator takes an id at once or not at all, and a refused client would wait for long."""
    try:
        coming = present(services.producer_ids).coming()
    except KafkaError as trouble:
        return _error_response(code_of(trouble))
    if coming is None:
        return _of_transactional_id(services, context, request)
    return _awaited(services, context, request, coming)


async def _awaited(services: Services, context: RequestContext, request: Any, coming: Awaitable[Any]) -> Any:
    await coming
    answer = _of_transactional_id(services, context, request)
    return await answer if inspect.isawaitable(answer) else answer


def _of_transactional_id(services: Services, context: RequestContext, request: Any) -> Any:
    expected = None
    if request.producer_id != NOTHING:
        expected = request.producer_id, request.producer_epoch

    def start(reply: Callable[[Any], object]) -> None:
        def answered(code: int, producer_id: int, epoch: int) -> None:
            if code == errors.PRODUCER_FENCED and context.version < FENCED_FROM:
                code = errors.INVALID_PRODUCER_EPOCH
            reply(
                messages.InitProducerIdResponse(
                    error_code=code, producer_id=producer_id, producer_epoch=epoch
                )
            )

        present(services.transactions).init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, answered
        )

    return response_of(start)


async def _later(generated: Awaitable[int]) -> Any:
    try:
        return _granted(await generated)
    except KafkaError as trouble:
        return _error_response(code_of(trouble))


def _granted(producer_id: int) -> Any:
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _error_response(code: int) -> Any:
    return messages.InitProducerIdResponse(error_code=code, producer_id=NOTHING, producer_epoch=NOTHING)
