"""From a frame to its handler and back: everything but Produce and Fetch passes here.

Rule 1: bytes that do not parse, an unknown key or a version that is not served close the connection with one
log line and no reply. The one exception is ApiVersions of an unknown version (KIP-511).

Rule 2: once parsed, every request gets exactly one answer. What a handler did not foresee is logged and
becomes an error response of that API.

Rule 3: a handler that waits holds up its own connection only; the reactor keeps the order of the answers.

Rule 4: a handler whose work grows with its request is a generator, and `turns` runs it in short turns.

Where the broker has several workers, `routing` is asked first whose a request is.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from kafkad._native.shared_answer import SharedAnswer
from kafkad.api.context import RequestContext, Services, code_of
from kafkad.api.table import Api, Route
from kafkad.api.versions import unsupported
from kafkad.protocol import codec, errors
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.server.refusal import refusal
from kafkad.server.routing import Router
from kafkad.server.turns import Turns

logger = logging.getLogger(__name__)

API_VERSIONS = 18


class Dispatcher:
    """Called by the reactor with each frame of an API that is not native."""

    def __init__(
        self, services: Services, table: dict[int, Api], fatal: Callable[[BaseException], None], turns: Turns
    ) -> None:
        self.services = services
        self.table = table
        self.fatal = fatal
        self.turns = turns
        self.router = None if services.peers is None else Router(services, table, self._execute)
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, connection: Any, request_id: int, frame: bytes) -> None:
        try:
            self._dispatch(connection, request_id, frame)
        except AssertionError as broken:
            self.fatal(broken)
            raise
        except MemoryError:
            connection.close("no memory was left for its request")

    def _dispatch(self, connection: Any, request_id: int, frame: bytes) -> None:
        if len(frame) < 4:
            connection.close(f"a request of {len(frame)} bytes has no header")
            return
        key = int.from_bytes(frame[0:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        api = self.table.get(key)
        if api is None or api.handler is None:
            connection.close(f"API key {key} is not served")
            return
        if not api.low <= version <= api.high:
            if key == API_VERSIONS and version >= 0:
                self._refuse_api_versions(connection, request_id, frame, api)
            else:
                connection.close(f"{api.name} version {version} is not served, only {api.low} to {api.high}")
            return
        try:
            header, request = codec.decode_request(frame)
        except Malformed as lie:
            connection.close(f"{api.name} v{version} does not parse: {lie}")
            return

        context = RequestContext(
            api_key=key,
            version=version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=connection.peer_host,
            listener=connection.listener,
            connection=connection,
        )
        answer = None
        if self.router is not None and api.route is not Route.LOCAL:
            answer = self._routed(api, context, request, frame)
        if answer is None:
            answer = self._execute(api, context, request)
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._finish(context, request_id, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._respond(context, request_id, answer)

    def _execute(self, api: Api, context: RequestContext, request: Any) -> Any:
        """The handler's response or an awaitable of it, all trouble told in it; None: it has no place."""
        assert api.handler is not None
        try:
            answer = api.handler(self.services, context, request)
            if isinstance(answer, Generator):
                answer = self.turns.run(answer)
        except Exception as trouble:
            return self._failed(api, context, request, trouble)
        return self._settled(api, context, request, answer) if inspect.isawaitable(answer) else answer

    async def _settled(
        self, api: Api, context: RequestContext, request: Any, answer: Awaitable[Any]
    ) -> Any | None:
        try:
            return await answer
        except Exception as trouble:
            return self._failed(api, context, request, trouble)

    def _routed(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Any | None:
        """None: the request is ours. Else an awaitable of its response, as a message or its frame."""
        assert self.router is not None
        try:
            answer = self.router.route(api, context, request, frame)
        except Exception as trouble:
            return self._failed(api, context, request, trouble)
        return None if answer is None else self._settled(api, context, request, answer)

    async def _finish(self, context: RequestContext, request_id: int, answer: Awaitable[Any]) -> None:
        try:
            self._respond(context, request_id, await answer)
        except MemoryError:
            context.connection.close("no memory was left for the response")

    def _failed(self, api: Api, context: RequestContext, request: Any, trouble: Exception) -> Any | None:
        if isinstance(trouble, AssertionError):
            self.fatal(trouble)
        if not isinstance(trouble, KafkaError):
            logger.error(
                "%s v%d from %s failed", api.name, context.version, context.client_host, exc_info=trouble
            )
        message = trouble.message if isinstance(trouble, KafkaError) else None
        return refusal(api.key, context.version, request, code_of(trouble), message)

    def _respond(self, context: RequestContext, request_id: int, response: Any | None) -> None:
        if response is None:
            context.connection.close("the request failed, and its response has no place to say so")
            return
        if isinstance(response, bytes):  # another worker encoded it, or an earlier request
            context.connection.respond(request_id, response)
            return
        if isinstance(response, SharedAnswer):
            response.respond(context.connection, request_id)
            return
        try:
            frame = codec.encode_response(response, context.version, context.correlation_id)
        except Exception as trouble:
            logger.error(
                "a response of API %d v%d does not encode", context.api_key, context.version, exc_info=trouble
            )
            context.connection.close("the response could not be encoded")
            return
        context.connection.respond(request_id, frame)

    def _refuse_api_versions(self, connection: Any, request_id: int, frame: bytes, api: Api) -> None:
        """The header of an ApiVersions of unknown version is read as v2; its body is not read at all."""
        try:
            header, _ = codec.decode_request_header(frame, 2)
        except Malformed as lie:
            connection.close(f"ApiVersions of an unknown version, and its header does not parse: {lie}")
            return
        response = unsupported(self.services)
        assert response.error_code == errors.UNSUPPORTED_VERSION
        connection.respond(request_id, codec.encode_response(response, 0, header.correlation_id))
