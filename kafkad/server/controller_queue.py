"""The controller as the handlers of worker 0 see it: requests run one after the other, in turns, and are
answered when they are committed and applied.

    request → its place in the queue → its steps, in short turns (server/turns) → a flush, shared with others
            → every worker concerned has applied it → the answer

A request that is not committed within its timeout is answered REQUEST_TIMED_OUT. It is already appended, so
it takes effect as soon as the disk has it, and the client cannot know. (Kafka: timeout_ms of the request;
here 0 means no timeout.) A request that could not be appended has changed nothing, and its answer has the
reason.

Beware: a client that retries after REQUEST_TIMED_OUT may find that its topic exists."""

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from kafkad.api.context import RequestContext
from kafkad.controller.controller import Controller, refuse
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.server.turns import Steps, Turns

logger = logging.getLogger("kafkad")

C = TypeVar("C", bound=Controller)

TIMEOUT_S = 30.0  # for requests without a timeout: Kafka's request.timeout.ms
IN_PASSING_S = 5.0  # for topics and producer ids, which the client does not request explicitly
RETRY_S = 5.0  # after directories could not be assigned


def timeout_of(request: Any) -> float:
    """Return seconds."""
    return request.timeout_ms / 1000 if request.timeout_ms > 0 else TIMEOUT_S


class Job:
    """Work of the queue. `future` is created if a caller has to wait for it."""

    __slots__ = ("done", "future", "steps", "trouble", "value")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.done = False
        self.value: Any = None
        self.trouble: BaseException | None = None
        self.future: asyncio.Future[Any] | None = None

    def step(self) -> None:
        try:
            next(self.steps)
        except StopIteration as end:
            self.done, self.value = True, end.value
        except BaseException as trouble:
            self.done, self.trouble = True, trouble

    def tell(self) -> None:
        if self.future is None or self.future.done():
            return
        if self.trouble is not None:
            self.future.set_exception(self.trouble)
        else:
            self.future.set_result(self.value)


class Serial:
    """Pieces of work, one after the other, in turns. The result of short work is available at once."""

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = turns
        self._loop = loop
        self._jobs: deque[Job] = deque()
        self._running: asyncio.Future[Any] | None = None

    def run(self, steps: Steps) -> Any | Awaitable[Any]:
        """Return the result of `steps`, or an awaitable of it. Raises what they raise."""
        job = Job(steps)
        self._jobs.append(job)
        if not self._loop.is_running():
            self.drain()
        elif self._running is None:
            pumping = self._turns.run(self._pump())
            if inspect.isawaitable(pumping):
                self._running = asyncio.ensure_future(pumping)
                self._running.add_done_callback(self._ended)
        if not job.done:
            job.future = self._loop.create_future()
            return job.future
        if job.trouble is not None:
            raise job.trouble
        return job.value

    def drain(self, seconds: float = math.inf) -> int:
        """Do all queued work now, but begin none after `seconds`. Return how many pieces are left; they are
        dropped."""
        ends_s = self._loop.time() + seconds
        job = self._jobs[0] if self._jobs else None
        for _ in self._pump():
            if self._jobs and self._jobs[0] is not job:
                job = self._jobs[0]
                if self._loop.time() >= ends_s:
                    left = len(self._jobs)
                    self._jobs.clear()
                    return left
        return 0

    def _pump(self) -> Steps:
        while self._jobs:
            job = self._jobs[0]
            job.step()
            if job.done:
                if self._jobs and self._jobs[0] is job:
                    self._jobs.popleft()
                job.tell()
            yield

    def _ended(self, running: "asyncio.Future[Any]") -> None:
        self._running = None
        if not running.cancelled():
            running.result()
        if self._jobs:
            self._running = asyncio.ensure_future(awaited(self._turns.run(self._pump())))
            self._running.add_done_callback(self._ended)


async def awaited(result: Any) -> Any:
    """Return the value of a result that may be available already."""
    return await result if inspect.isawaitable(result) else result


class Applied(Protocol):
    """Knows which changes this process has applied (server/changes)."""

    applied: int  # metadata offset

    async def wait(self, offset: int) -> None: ...


class AnsweringController(Generic[C]):
    """The controller for the handlers. Each method returns the answer if nothing has to be waited for,
    otherwise an awaitable of it."""

    def __init__(
        self,
        controller: C,
        turns: Turns,
        loop: asyncio.AbstractEventLoop,
        changes: Applied | None = None,
    ) -> None:
        self._controller = controller
        self._serial = Serial(turns, loop)
        self._loop = loop
        self._changes = changes
        self._drained = False

    def create_topics(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.create_topics(request, context)
        return self._answer(steps, lambda answer: answer.topics, timeout_of(request))

    def delete_topics(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.delete_topics(request, context)
        return self._answer(steps, lambda answer: answer.responses, timeout_of(request))

    def create_partitions(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.create_partitions(request, context)
        return self._answer(steps, lambda answer: answer.results, timeout_of(request))

    def alter_partition_reassignments(self, request: Any) -> Any:
        steps = self._controller.alter_partition_reassignments(request)
        return self._answer(steps, timeout_s=timeout_of(request))

    def elect_leaders(self, request: Any, version: int) -> Any:
        steps = self._controller.elect_leaders(request, version)
        return self._answer(steps, timeout_s=timeout_of(request))

    def update_features(self, request: Any, version: int) -> Any:
        steps = self._controller.update_features(request, version)
        return self._answer(steps, timeout_s=timeout_of(request))

    def describe_quorum(self, request: Any, version: int) -> Any:
        return self._controller.describe_quorum(request, version)

    def auto_create(self, names: Iterable[str], context: RequestContext | None = None) -> Any:
        """Return dict[str, KafkaError | None]: the error for each topic that did not exist."""
        steps = self._controller.auto_create(names)
        return self._answer(steps, timeout_s=IN_PASSING_S, late=errors.LEADER_NOT_AVAILABLE)

    def incremental_alter_configs(
        self, changes: Any, validate_only: bool = False, context: RequestContext | None = None
    ) -> Any:
        return self._answer(self._controller.incremental_alter_configs(changes, validate_only))

    def alter_configs(
        self, wanted: Any, validate_only: bool = False, context: RequestContext | None = None
    ) -> Any:
        return self._answer(self._controller.alter_configs(wanted, validate_only))

    def alter_user_scram_credentials(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.alter_user_scram_credentials(request)
        return self._answer(steps, lambda answer: answer.results)

    def create_delegation_token(self, request: Any, context: Any) -> Any:
        steps = self._controller.create_delegation_token(request, context.principal, context.version)
        return self._answer(steps)

    def renew_delegation_token(self, request: Any, context: Any) -> Any:
        return self._answer(self._controller.renew_delegation_token(request, context.principal))

    def expire_delegation_token(self, request: Any, context: Any) -> Any:
        return self._answer(self._controller.expire_delegation_token(request, context.principal))

    def remove_expired_tokens(self) -> Any:
        return self._answer(self._controller.remove_expired_tokens())

    def alter_client_quotas(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.alter_client_quotas(request)
        return self._answer(steps, lambda answer: answer.entries)

    def create_acls(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.create_acls(request)
        return self._answer(steps, lambda answer: answer.results)

    def delete_acls(self, request: Any, context: RequestContext | None = None) -> Any:
        steps = self._controller.delete_acls(request)
        return self._answer(steps, lambda answer: answer.filter_results)

    def allocate_producer_ids(self) -> Any:
        """Return (first, count). No other worker has to know. Raises KafkaError."""
        steps = self._controller.allocate_producer_ids()
        late = errors.COORDINATOR_LOAD_IN_PROGRESS  # as in Kafka: clients retry
        return self._answer(steps, timeout_s=IN_PASSING_S, late=late, applied=False)

    def assign_directories(self, placed: dict[tuple[bytes, int], bytes]) -> None:
        """Assign directories, and retry after a KafkaError: no client waits for it. Any other error is a bug,
        and goes to the loop, which ends the worker. Once a stop has begun, the next start assigns them."""
        if self._drained:
            return

        def again(trouble: KafkaError) -> None:
            logger.warning("log directories could not be assigned, will try again: %s", trouble)
            self._loop.call_later(RETRY_S, self.assign_directories, placed)

        def ended(task: "asyncio.Future[Any]") -> None:
            if task.cancelled():
                return
            trouble = task.exception()
            if isinstance(trouble, KafkaError):
                again(trouble)
            elif trouble is not None:
                raise trouble

        try:
            result = self._serial.run(self._controller.assign_directories(placed))
        except KafkaError as trouble:
            again(trouble)
            return
        if inspect.isawaitable(result):
            asyncio.ensure_future(result).add_done_callback(ended)

    def drain(self, seconds: float = math.inf) -> None:
        """Append all queued work now, and wait for the disk: the first step of a stop. After `seconds`, drop
        what has not begun: it has changed nothing, and its clients get no answer. Raises KafkaError,
        OSError."""
        self._drained = True
        left = self._serial.drain(seconds)
        if left:
            logger.warning(
                "the stop does not wait for %d queued changes of metadata: they are not made", left
            )
        self._controller.settle()

    # -- waiting -------------------------------------------------------------------------------------------

    def _answer(
        self,
        steps: Steps,
        results: Callable[[Any], Iterable[Any]] | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        late: int = errors.REQUEST_TIMED_OUT,
        applied: bool = True,
    ) -> Any:
        """`results`: the parts of the answer that have an error code each. `late`: the code after
        `timeout_s`. `applied`: whether every worker has to know before the answer."""
        planned = self._serial.run(self._planned(steps))
        if not inspect.isawaitable(planned):
            answer, offset, appended = planned
            if self._controller.image.offset >= offset and not (
                applied and appended and not self._is_applied(offset)
            ):
                return answer
        return self._later(planned, results, timeout_s, late, applied)

    def _planned(self, steps: Steps) -> Steps:
        """Return (answer, offset that the answer depends on, whether these steps appended it)."""
        before = self._controller.head.offset
        answer = yield from steps
        offset = self._controller.head.offset
        return answer, offset, offset != before

    async def _later(
        self,
        planned: Any,
        results: Callable[[Any], Iterable[Any]] | None,
        timeout_s: float,
        late: int,
        applied: bool,
    ) -> Any:
        answer, offset, appended = await planned if inspect.isawaitable(planned) else planned
        try:
            await self._committed(offset, timeout_s, late)
        except KafkaError as trouble:
            if results is not None:
                refuse(results(answer), trouble)
                return answer
            if isinstance(answer, dict):  # errors by name
                return {name: before or trouble for name, before in answer.items()}
            raise
        if applied and appended:
            await self._applied(offset)
        return answer

    async def _committed(self, offset: int, timeout_s: float, late: int) -> None:
        """Wait for the commit of `offset`. Raises KafkaError."""
        future: asyncio.Future[None] = self._loop.create_future()

        def committed(trouble: KafkaError | None) -> None:
            if future.done():
                return
            if trouble is None:
                future.set_result(None)
            else:
                future.set_exception(trouble)

        self._controller.await_committed(offset, committed)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise KafkaError(
                late,
                f"The change is not on the disk after {timeout_s:g} s. It takes effect as soon as it is.",
            ) from None

    def _is_applied(self, offset: int) -> bool:
        assert self._changes is not None
        return offset <= self._changes.applied

    async def _applied(self, offset: int) -> None:
        assert self._changes is not None
        await self._changes.wait(offset)
