from collections.abc import Iterable
from typing import Any

from typing_extensions import Buffer

from kafkad._native.wire.batch import BatchHeader

class Record:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    offset: int
    def __init__(
        self,
        key: Buffer | None = None,
        value: Buffer | None = None,
        headers: Iterable[tuple[str, Any]] | None = None,
        timestamp: int = -1,
        offset: int = -1,
    ) -> None: ...

def decode(header: BatchHeader, data: Buffer) -> list[Record]: ...
def encode(records: Iterable[Record], base_offset: int = 0) -> tuple[bytearray, int, int, int, int]: ...

class Renumbering:
    """Give the records of a batch the offset deltas 0, 1, 2 …, piece by piece."""

    def feed(self, chunk: Buffer) -> bytes: ...
    def end(self, count: int) -> None: ...

def write_header(
    buffer: bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
) -> None: ...
