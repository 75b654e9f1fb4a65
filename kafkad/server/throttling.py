"""Pauses of clients over a quota, for the requests that Python serves.

    pause_of    how long a client must pause after its answer: for changes of metadata, which the controller
                counts (KIP-599), and for the time that its requests took (KIP-124)
    with_pause  the answer, with that time in it
    timed       work in steps, charged to the client wherever it runs

`_native/serving/quota` does the same for Produce and Fetch, and does the counting."""

from typing import Any, Final

from kafkad._native.serving.connection import Connection
from kafkad._native.serving.quota import begin_work, end_work, overtime_ms
from kafkad._native.serving.shared_answer import SharedAnswer
from kafkad.api.context import RequestContext
from kafkad.controller.mutation_quota import STRICT_FROM
from kafkad.protocol import codec, messages
from kafkad.server.turns import Steps

THROTTLE: Final = "throttle_time_ms"


def pause_of(context: RequestContext, response: Any) -> tuple[int, int]:
    """Return the pause in milliseconds, and how much of it the answer already contains."""
    said = _said(context, response) if context.api_key in STRICT_FROM else 0
    return max(said, overtime_ms(context.connection)), said


def with_pause(context: RequestContext, response: Any, pause_ms: int) -> Any:
    """Return the response with throttle_time_ms set. An encoded one must begin with that field, otherwise it
    is left unchanged."""
    if isinstance(response, SharedAnswer):  # others get it too, so this client gets a copy
        response = context.correlation_id.to_bytes(4, "big", signed=True) + response.content()
    if isinstance(response, bytes):
        at = _position(context)
        return response if at is None else response[:at] + pause_ms.to_bytes(4, "big") + response[at + 4 :]
    cls = type(response)
    if not any(field.name == THROTTLE for field in cls.SPEC.fields):
        return response
    copy = cls(**{field.name: getattr(response, field.name) for field in cls.SPEC.fields})
    copy.throttle_time_ms = pause_ms  # others may hold the response
    return copy


def timed(connection: Connection, steps: Steps) -> Steps:
    """Run `steps`. Their time outside the turn of the connection is charged here."""
    while True:
        counting = begin_work(connection)
        try:
            value = next(steps)
        except StopIteration as end:
            return end.value
        finally:
            if counting:
                end_work(connection)
        yield value


def _said(context: RequestContext, response: Any) -> int:
    if isinstance(response, bytes):
        at = _position(context)
        return 0 if at is None else int.from_bytes(response[at : at + 4], "big")
    return int(response.throttle_time_ms)


def _position(context: RequestContext) -> int | None:
    """Return the position of throttle_time_ms in an encoded answer; None: it is not the first field."""
    cls = messages.response_class(context.api_key)
    field = cls.SPEC.fields[0]
    low, high = field.versions
    if field.name != THROTTLE or not low <= context.version <= high:
        return None
    return 4 + codec.response_header_version(context.api_key, context.version)  # an empty list of tags
