from typing_extensions import Buffer

from kafkad._native.wire.batch import AppendRules, BatchHeader

class MessageSet:
    def __init__(self, bytes_max: int) -> None: ...
    verdict: int
    message: str | None
    count: int
    magic: int
    codec: int
    size: int
    offset: int
    timestamp: int
    is_null: bool
    value_at: int
    value_size: int
    def check(self, data: Buffer, piece: int) -> int: ...

class UpConverter:
    def __init__(self, rules: AppendRules, now_ms: int, magic: int, inner: bool, size_max: int) -> None: ...
    verdict: int
    message: str | None
    count: int
    last_offset: int
    held: int
    bad_record: int
    bad_records: list[int]
    def feed(self, piece: Buffer) -> bytearray: ...
    def end(self, wrapper_offset: int = 0) -> int: ...
    def seal(self, batch: Buffer, codec: int) -> BatchHeader: ...

class WholeSets:
    def __init__(self) -> None: ...
    def convert_one(self, data: Buffer, rules: AppendRules, now_ms: int) -> bytes | None: ...
