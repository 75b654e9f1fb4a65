from collections.abc import Callable, Iterable
from typing import Any

from kafkad._native.values.arrow_build import Finished

FIELDS: list[tuple[Any, ...]]
HEADERS_FIELD: tuple[Any, ...]

def span(data: Any) -> tuple[int, int]: ...

class RecordColumns:
    position: int
    end: int
    rows: int
    clamped: int
    skipped_batches: int

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        decompress: Callable[[int, Any], Iterable[Any]],
        legacy: Callable[[Any, bool], list[Any]],
        headers: bool = False,
        batch_bytes: int = 1 << 20,
        batch_rows: int = 16384,
        verify_crc: bool = True,
        read_committed: bool = False,
    ) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def consumed(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def feed(self, data: Any, aborted: Iterable[tuple[int, ...]] = ()) -> None: ...
    def finish(self) -> None: ...
    def skip_to(self, offset: int) -> None: ...
    def take(self) -> Finished | None: ...
