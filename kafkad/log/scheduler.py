"""Time and threads, as the log needs them. They are arguments: the server passes asyncio's loop, a test
passes a clock that it moves itself."""

from collections.abc import Callable
from typing import Literal, Protocol


class Handle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Time and threads, as an argument. The server passes asyncio's loop; a test passes a clock that it
    moves."""

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> Handle:
        """Call `fn` on the owner's loop, after the current call has returned, even with a delay of 0."""

    def run_in_thread(
        self,
        fn: Callable[[], None],
        callback: Callable[[BaseException | None], None],
        lane: Literal["flush", "work", "delete", "cut", "move"] = "work",
    ) -> None:
        """Run `fn` off the loop, then `callback` on the loop, with None or the exception of `fn`. No lane
        waits for another."""
