"""From a frame to its handler and back, for all requests except Produce and Fetch.

Rule 1: bytes that do not parse, an unknown key or an unserved version close the connection with one log line
and no answer. The one exception is ApiVersions of an unknown version (KIP-511).

Rule 2: once parsed, every request gets exactly one answer. An unexpected exception of a handler is logged and
becomes an error response of that API. Any other one, here, closes the connection (server/failures). Only an
AssertionError ends the worker.

Rule 3: a handler that waits delays its own connection only; the reactor keeps the order of the answers.

Rule 4: a handler whose work grows with its request is a generator, and `turns` runs it in short turns. The
same holds for decoding a wide request, encoding a wide answer, and freeing both: each takes as long as many
small requests. Wide requests are served a few at a time, because their objects take far more memory than
their frames. The others wait as frames, which count against the memory of their connections.

If the broker has several workers, `routing` is asked first which worker must answer a request.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, cast

from kafkad._native.serving.connection import Connection
from kafkad._native.serving.long_answer import LongAnswer
from kafkad._native.serving.quota import is_timed, pause
from kafkad._native.serving.shared_answer import SharedAnswer
from kafkad.api.context import ANONYMOUS, OURSELVES, Client, RequestContext, Services, code_of
from kafkad.api.table import Api, Route
from kafkad.api.versions import unsupported
from kafkad.coordinator.runtime import at_once
from kafkad.protocol import codec, errors
from kafkad.protocol.errors import KafkaError, Malformed, Meaningless
from kafkad.security.authorizer import Subject
from kafkad.server.authentication import Authentication, is_by_token
from kafkad.server.error_response import error_response
from kafkad.server.failures import Failures
from kafkad.server.guard import admit, finish
from kafkad.server.routing import HELD, Router
from kafkad.server.throttling import pause_of, timed, with_pause
from kafkad.server.turns import Steps, Turns
from kafkad.server.worker_links import Later, Outcome

logger = logging.getLogger(__name__)

API_VERSIONS = 18
# Frames of wide requests that are served at the same time; a larger one is served alone. The objects of the
# requests and answers take 20 to 100 times as much.
WIDE_BYTES_MAX = 4 << 20


class _Wide(NamedTuple):
    """A request that is served in steps."""

    api: Api
    connection: Connection
    request_id: int
    frame: bytes


class Dispatcher:
    """Called by the reactor with each frame of an API that is not native."""

    def __init__(
        self,
        services: Services,
        table: dict[int, Api],
        fatal: Callable[[BaseException], None],
        turns: Turns,
        authentication: Authentication | None = None,
    ) -> None:
        self.services = services
        self.authentication = authentication  # None: no listener requires it
        self.table = table
        self.fatal = fatal
        self.turns = turns
        self.failures = Failures(services.clock.monotonic_ms)
        self.router = None if services.peers is None else Router(services, table, self._execute, turns)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wide_bytes = 0  # of frames that are being served
        self._wide_waiting: deque[_Wide] = deque()

    def __call__(self, connection: Connection, request_id: int, frame: bytes) -> None:
        try:
            self._dispatch(connection, request_id, frame)
        except Exception as trouble:
            self._failed_outside(connection, trouble, "request")

    def _failed_outside(self, connection: Any, trouble: Exception, what: str) -> None:
        """Close the connection after an exception of this module, not of a handler."""
        if isinstance(trouble, AssertionError):
            self.fatal(trouble)
            raise trouble
        if isinstance(trouble, MemoryError):
            connection.close(f"no memory was left for its {what}")
        else:
            self.failures.close(connection, "a request", trouble)

    def _dispatch(self, connection: Connection, request_id: int, frame: bytes) -> None:
        if self.authentication is not None and self.authentication.takes(connection, frame):
            self.authentication(connection, request_id, frame)
            return
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
        if len(frame) >= codec.WIDE_FRAME:
            self._admit(_Wide(api, connection, request_id, frame))
            return
        try:
            header, request = codec.decode_request(frame)
        except Malformed as lie:
            connection.close(f"{api.name} v{version} does not parse: {lie}")
            return
        context = _context(connection, header)
        answer = None
        if self.router is not None and api.route is not Route.LOCAL:
            if not self._is_here(api, context, request):
                answer = at_once(self._routed(api, context, request, frame))
            if answer is None:
                connection.answered_here()
        if answer is None:
            answer = self._execute(api, context, request)
        if isinstance(answer, Later):
            answer.then(partial(self._relay, api, context, request, request_id))
            return
        if inspect.isawaitable(answer):
            self._keep(self._finish(context, request_id, answer))
        else:
            self._respond(context, request_id, answer)

    def _admit(self, wide: "_Wide") -> None:
        """Begin to serve a wide request, or keep it until there is room."""
        if self._wide_waiting or not self._has_room(wide):
            LongAnswer(wide.connection, wide.request_id).reserve(len(wide.frame))
            self._wide_waiting.append(wide)
            return
        self._wide_bytes += len(wide.frame)
        self._begin(wide.connection, self._serve_in_steps(wide))

    def _has_room(self, wide: "_Wide") -> bool:
        return not self._wide_bytes or self._wide_bytes + len(wide.frame) <= WIDE_BYTES_MAX

    def _leave(self, size: int) -> None:
        """A wide request of `size` bytes has been served."""
        self._wide_bytes -= size
        if self._wide_waiting:
            asyncio.get_running_loop().call_soon(self._admit_waiting)

    def _admit_waiting(self) -> None:
        while self._wide_waiting and self._has_room(self._wide_waiting[0]):
            wide = self._wide_waiting.popleft()
            if not wide.connection.closed:
                self._wide_bytes += len(wide.frame)
                self._begin(wide.connection, self._serve_in_steps(wide))

    def _serve_in_steps(self, wide: "_Wide") -> Steps:
        """Do what `_dispatch` does for a small request. Return an awaitable if the answer has to wait."""
        api, connection, request_id, frame = wide
        size = len(frame)
        stays = False
        try:
            try:
                header, request = yield from codec.decode_request_in_steps(frame)
            except Malformed as lie:
                version = int.from_bytes(frame[2:4], "big", signed=True)
                connection.close(f"{api.name} v{version} does not parse: {lie}")
                return None
            context = _context(connection, header)
            answer = None
            if self.router is not None and api.route is not Route.LOCAL:
                answer = yield from self._routed(api, context, request, frame)
                if answer is None:
                    connection.answered_here()
                if isinstance(answer, Later):
                    answer = self._relayed(api, context, request, answer)
                stays = inspect.isawaitable(answer) and api.key not in HELD
            if answer is None:
                answer = yield from self._executed_in_steps(api, context, request)
            held = [request]
            del request
            if inspect.isawaitable(answer):
                return self._finish_in_steps(context, request_id, answer, held, size if stays else 0)
            answers = [answer]
            del answer  # otherwise the response is freed in one piece at the end
            yield from self._respond_in_steps(context, request_id, answers, held)
            return None
        finally:
            if not stays:
                self._leave(size)

    def _begin(self, connection: Connection, steps: Steps) -> None:
        """Run `steps`, which serve a request of `connection` completely."""
        try:
            ending = self._run(connection, steps)
        except Exception as trouble:
            self._failed_outside(connection, trouble, "request")
            return
        if inspect.isawaitable(ending):
            self._keep(self._guarded(connection, ending))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self, connection: Client | None, steps: Steps) -> Any:
        """Run steps in turns. If there is a quota of request time, their time is charged to the client."""
        return self.turns.run(timed(connection, steps) if is_timed(connection) else steps)

    async def _guarded(self, connection: Connection, ending: Awaitable[None]) -> None:
        try:
            await ending
        except Exception as trouble:
            self._failed_outside(connection, trouble, "request")

    def _execute(self, api: Api, context: RequestContext, request: Any) -> Any:
        """Return the handler's response or an awaitable of it. Exceptions become an error response, or None
        if the response has no field for an error."""
        try:
            answer = self._handled(api, context, request)
            while isinstance(answer, Generator):
                answer = self._run(context.connection, answer)
        except Exception as trouble:
            return self.turns.run(self._failed(api, context, request, trouble))
        return self._settled(api, context, request, answer) if inspect.isawaitable(answer) else answer

    def _handled(self, api: Api, context: RequestContext, request: Any) -> Any:
        """Return the handler's result; with an authorizer, steps that ask it first."""
        assert api.handler is not None
        authorizer = self.services.authorizer
        if authorizer is None or context.principal == OURSELVES:
            return api.handler(self.services, context, request)
        subject = authorizer.subject(context.principal, context.client_host)
        return self._admitted(subject, api, context, request)

    def _admitted(self, subject: Subject, api: Api, context: RequestContext, request: Any) -> Steps:
        gate = yield from admit(subject, self.services, context, request, api.name)
        if gate.refused is not None:
            return gate.refused
        assert api.handler is not None
        try:
            served = gate.serve() if gate.serve is not None else api.handler(self.services, context, request)
        except Exception:
            gate.restore()
            raise
        return finish(gate, served)

    def _executed_in_steps(self, api: Api, context: RequestContext, request: Any) -> Steps:
        """Do `_execute` in steps."""
        try:
            answer = self._handled(api, context, request)
            while isinstance(answer, Generator):
                answer = yield from answer
        except Exception as trouble:
            return (yield from self._failed(api, context, request, trouble))
        return self._settled(api, context, request, answer) if inspect.isawaitable(answer) else answer

    async def _settled(
        self, api: Api, context: RequestContext, request: Any, answer: Awaitable[Any]
    ) -> Any | None:
        try:
            settled = await answer
            while isinstance(settled, Generator) or inspect.isawaitable(settled):
                if isinstance(settled, Generator):
                    settled = self._run(context.connection, settled)
                else:
                    settled = await settled
            return settled
        except Exception as trouble:
            refused = self.turns.run(self._failed(api, context, request, trouble))
            return await refused if inspect.isawaitable(refused) else refused

    def _is_here(self, api: Api, context: RequestContext, request: Any) -> bool:
        assert self.router is not None
        try:
            return self.router.is_here(api, context, request)
        except Exception:
            return False  # `_routed` meets it again, and answers it

    def _routed(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        """Return None if this worker serves it, otherwise an awaitable of its response, a message or a
        frame; a Later if one other worker serves it."""
        assert self.router is not None
        try:
            answer = yield from self.router.route(api, context, request, frame)
        except Exception as trouble:
            return (yield from self._failed(api, context, request, trouble))
        if answer is None or isinstance(answer, Later):
            return answer
        return self._settled(api, context, request, answer)

    def _relay(
        self, api: Api, context: RequestContext, request: Any, request_id: int, outcome: Outcome
    ) -> None:
        """Another worker has answered, or cannot."""
        try:
            if _own(context).closed:
                pass
            elif isinstance(outcome, Exception):
                lost = Later()
                lost.arrive(outcome)
                self._keep(self._finish(context, request_id, self._relayed(api, context, request, lost)))
            else:
                self._respond(context, request_id, outcome or None)
        except Exception as trouble:
            self._failed_outside(_own(context), trouble, "response")

    def _relayed(self, api: Api, context: RequestContext, request: Any, answer: Later) -> Awaitable[Any]:
        assert self.router is not None
        return self._settled(api, context, request, self.router.relayed(api, context, request, answer))

    async def _finish(self, context: RequestContext, request_id: int, answer: Awaitable[Any]) -> None:
        try:
            self._respond(context, request_id, await answer)
        except Exception as trouble:
            self._failed_outside(_own(context), trouble, "response")

    async def _finish_in_steps(
        self, context: RequestContext, request_id: int, waiting: Awaitable[Any], held: list[Any], size: int
    ) -> None:
        """Answer later. `size`: of the frame, if other wide requests wait for the end of this one."""
        try:
            answer = [await waiting]
            ending = self._run(context.connection, self._respond_in_steps(context, request_id, answer, held))
            if inspect.isawaitable(ending):
                await ending
        finally:
            if size:
                self._leave(size)

    def _failed(self, api: Api, context: RequestContext, request: Any, trouble: Exception) -> Steps:
        """Log the exception. Return, in steps, an error response or None."""
        if isinstance(trouble, AssertionError):
            self.fatal(trouble)
        if isinstance(trouble, Meaningless):
            logger.warning(
                "%s v%d from %s is refused: %s", api.name, context.version, context.client_host, trouble
            )
            return _no_response()
        if not isinstance(trouble, KafkaError):
            self.failures.log(
                trouble, "%s v%d from %s failed", api.name, context.version, context.client_host
            )
        message = trouble.message if isinstance(trouble, KafkaError) else None
        return error_response(api.key, context.version, request, code_of(trouble), message)

    def _respond(self, context: RequestContext, request_id: int, response: Any | None) -> None:
        if not self._answered(context, request_id, response):
            self._begin(_own(context), self._respond_in_steps(context, request_id, [response], []))

    def _answered(self, context: RequestContext, request_id: int, response: Any | None) -> bool:
        """Answer, unless the response is so wide that it must be encoded in steps. Return whether it did."""
        if response is None:
            _own(context).close("the request failed, and its response has no place to say so")
            return True
        pause_ms, said_ms = pause_of(context, response)
        if pause_ms:
            pause(_own(context), pause_ms)  # as the answer says, which is sent at once
            if pause_ms != said_ms:
                response = with_pause(context, response, pause_ms)
        if isinstance(response, bytes):  # encoded by another worker, or for an earlier request
            _own(context).respond(request_id, response)
            return True
        if isinstance(response, SharedAnswer):
            response.respond(_own(context), request_id)
            return True
        try:
            frame = codec.encode_narrow_response(response, context.version, context.correlation_id)
        except Exception as trouble:
            self._not_encoded(context, trouble)
            return True
        if frame is None:
            return False
        _own(context).respond(request_id, frame)
        return True

    def _respond_in_steps(
        self, context: RequestContext, request_id: int, answer: list[Any], held: list[Any]
    ) -> Steps:
        """Answer, then free the answer and `held`. Both are lists, which are emptied."""
        (response,) = answer
        if not self._answered(context, request_id, response):
            try:
                written = LongAnswer(_own(context), request_id)
                yield from codec.encode_response_in_steps(
                    response, context.version, context.correlation_id, written.write
                )
                written.finish()
            except MemoryError:
                _own(context).close("no memory was left for the response")
            except Exception as trouble:
                self._not_encoded(context, trouble)
            held.append(response)
        del response
        answer.clear()
        yield from codec.free_in_steps(held)

    def _not_encoded(self, context: RequestContext, trouble: Exception) -> None:
        self.failures.log(
            trouble, "a response of API %d v%d does not encode", context.api_key, context.version
        )
        _own(context).close("the response could not be encoded")

    def _refuse_api_versions(self, connection: Connection, request_id: int, frame: bytes, api: Api) -> None:
        """Answer an ApiVersions of unknown version: its header is read as v2, its body is not read at all."""
        try:
            header, _ = codec.decode_request_header(frame, 2)
        except Malformed as lie:
            connection.close(f"ApiVersions of an unknown version, and its header does not parse: {lie}")
            return
        response = unsupported(self.services)
        assert response.error_code == errors.UNSUPPORTED_VERSION
        connection.respond(request_id, codec.encode_response(response, 0, header.correlation_id))


def _no_response() -> Steps:
    """Return None: the connection is closed instead."""
    return None
    yield


def _own(context: RequestContext) -> Connection:
    """Return the connection of a request that was sent to this worker."""
    return cast(Connection, context.connection)


def _context(connection: Connection, header: Any) -> RequestContext:
    return RequestContext(
        api_key=header.request_api_key,
        version=header.request_api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        client_host=connection.peer_host,
        listener=connection.listener,
        connection=connection,
        principal=connection.principal or ANONYMOUS,
        by_token=is_by_token(connection),
    )
