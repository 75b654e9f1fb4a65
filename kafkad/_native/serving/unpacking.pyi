from collections.abc import Callable, Hashable
from typing import Protocol

class Work(Protocol):
    """Decompression in steps."""

    memory: int
    def step(self) -> int: ...
    def close(self) -> None: ...

class Job:
    cancelled: bool

class Unpacker:
    jobs: int
    waiting: int
    def __init__(self, wake_fd: int, threads_max: int = 2) -> None: ...
    def submit(
        self,
        lane: Hashable,
        work: Work,
        deliver: Callable[[Work | None, BaseException | None], None],
    ) -> Job: ...
    def settle(self) -> None: ...
    def hold(self, held: bool) -> None: ...
    def close(self) -> None: ...
