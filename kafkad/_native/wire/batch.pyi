from typing_extensions import Buffer

def copied(data: Buffer) -> bytearray: ...

class BatchHeader:
    def __init__(self, buffer: Buffer, position: int = 0) -> None: ...
    base_offset: int
    size: int
    leader_epoch: int
    attributes: int
    compression: int
    is_transactional: bool
    is_control: bool
    timestamp_type: int
    last_offset_delta: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    crc: int
    walked_max_timestamp: int
    walked_max_offset: int
    bad_record: int
    message: str | None
    def crc_matches(self, buffer: Buffer, position: int = 0) -> bool: ...
    def seal(self, buffer: Buffer) -> None: ...

class AppendRules:
    def __init__(
        self,
        *,
        max_message_bytes: int = 1048588,
        compression_type: int = -1,
        log_append_time: bool = False,
        before_max_ms: int = ...,
        after_max_ms: int = 3600000,
        compacted: bool = False,
        transactions: bool = False,
    ) -> None: ...
    max_message_bytes: int
    compression_type: int
    log_append_time: bool
    def validate(self, buffer: Buffer, now_ms: int) -> tuple[int, BatchHeader]: ...
    def check_header(self, buffer: Buffer) -> tuple[int, BatchHeader]: ...
    def settle(self, buffer: Buffer, header: BatchHeader, now_ms: int) -> None: ...

class RecordWalk:
    def __init__(
        self,
        header: BatchHeader,
        rules: AppendRules | None = None,
        now_ms: int = 0,
        target: int | None = None,
        from_offset: int = ...,
    ) -> None: ...
    bad_records: list[int]
    records: int
    consecutive: bool
    message: str | None
    found: tuple[int, int] | None
    largest: tuple[int, int] | None
    def feed(self, chunk: Buffer) -> int: ...
    def end(self) -> int: ...
