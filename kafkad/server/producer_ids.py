"""Producer ids of this broker, one after the other, from blocks that the controller commits.

All requests that arrive while a block is being written wait for that block. The next block is requested when
a tenth of the last one is left, so that callers that cannot wait (`take`) get an id, too."""

import asyncio
import inspect
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from kafkad.api.context import OwnRequests
from kafkad.protocol.errors import COORDINATOR_LOAD_IN_PROGRESS, KafkaError

NEXT_WANTED_AT = 10  # the next block is requested when this fraction (1/n) of the current one is left


class ProducerIds:
    """`controller.allocate_producer_ids` returns (first, count) of a block, or an awaitable of it."""

    def __init__(self, controller: OwnRequests) -> None:
        self._controller = controller
        self._next = 0
        self._end = 0
        self._low = 0  # how many are left when the next block is requested
        self._spare: tuple[int, int] | None = None  # the next block
        self._coming: asyncio.Future[tuple[int, int]] | None = None

    def generate(self) -> int | Awaitable[int]:
        """Return an unused producer id, or an awaitable of it. Raises KafkaError if no new block is
        available."""
        if self._next == self._end:
            self._ask()
        return self._later() if self._next == self._end else self._take()

    def take(self) -> int:
        """Return a producer id at once. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS if none is
        available."""
        if self._next == self._end:
            self._ask()
        if self._next == self._end:
            raise KafkaError(COORDINATOR_LOAD_IN_PROGRESS)
        return self._take()

    def coming(self) -> Awaitable[Any] | None:
        """Return what to await before `take`, if that would fail now. `take` still fails if no block is
        available. Raises KafkaError."""
        if self._next == self._end:
            self._ask()
        if self._next != self._end or self._coming is None:
            return None
        return asyncio.wait([self._coming])

    def _ask(self) -> None:
        """Request the next block, if there is none and none was requested."""
        if self._coming is not None and self._coming.done():
            self._arrived(self._coming)
        if self._coming is not None or self._spare is not None or self._end - self._next > self._low:
            return
        block = self._controller.allocate_producer_ids()
        if inspect.isawaitable(block):
            self._coming = asyncio.ensure_future(block)
            self._coming.add_done_callback(self._arrived)
        else:
            self._begin(block)

    def _take(self) -> int:
        self._next += 1
        taken = self._next - 1
        if self._next == self._end and self._spare is not None:
            block, self._spare = self._spare, None
            self._begin(block)
        elif self._low and self._end - self._next == self._low:
            with suppress(KafkaError):  # callers that find no id at all get the error
                self._ask()
        return taken

    def _begin(self, block: tuple[int, int]) -> None:
        if self._next < self._end:
            self._spare = block
            return
        first, count = block
        self._next, self._end, self._low = first, first + count, count // NEXT_WANTED_AT

    def _arrived(self, coming: "asyncio.Future[tuple[int, int]]") -> None:
        """Take the block over, once. The future's callback runs a moment after it is done; a request in
        between must not wait for a block that is there already."""
        if coming is not self._coming:
            return
        self._coming = None
        if not coming.cancelled() and coming.exception() is None:
            self._begin(coming.result())

    async def _later(self) -> int:
        while self._next == self._end:
            if self._coming is None:
                generated = self.generate()
                return await generated if inspect.isawaitable(generated) else generated
            coming = self._coming
            await asyncio.shield(coming)
            self._arrived(coming)
        return self._take()
