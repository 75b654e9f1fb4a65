"""Producer ids of this broker, one after the other, from blocks that the controller commits.

All who ask while a block is on its way to the disk wait for that block."""

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any


class ProducerIds:
    """`controller.allocate_producer_ids` gives (first, count) of a block, or an awaitable of it."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._next = 0
        self._end = 0
        self._coming: asyncio.Future[tuple[int, int]] | None = None

    def generate(self) -> int | Awaitable[int]:
        """A producer id that nobody has had, or an awaitable of it. Raises KafkaError where no new block can
        be had."""
        if self._next == self._end and self._coming is None:
            block = self._controller.allocate_producer_ids()
            if inspect.isawaitable(block):
                self._coming = asyncio.ensure_future(block)
                self._coming.add_done_callback(self._arrived)
            else:
                self._begin(block)
        return self._later() if self._next == self._end else self._take()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def _begin(self, block: tuple[int, int]) -> None:
        first, count = block
        self._next, self._end = first, first + count

    def _arrived(self, coming: "asyncio.Future[tuple[int, int]]") -> None:
        self._coming = None
        if not coming.cancelled() and coming.exception() is None:
            self._begin(coming.result())

    async def _later(self) -> int:
        while self._next == self._end:
            if self._coming is None:
                generated = self.generate()
                return await generated if inspect.isawaitable(generated) else generated
            await asyncio.shield(self._coming)
        return self._take()
