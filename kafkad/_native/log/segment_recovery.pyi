from kafkad._native.log.producer_table import ProducerTable

Completed = tuple[int, int, int, int, bool]

class SegmentScan:
    @property
    def base_offset(self) -> int: ...
    @property
    def file_size(self) -> int: ...
    @property
    def valid_size(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> tuple[int, int]: ...
    @property
    def epochs(self) -> list[tuple[int, int]]: ...
    @property
    def completed(self) -> list[Completed]: ...
    @property
    def fault(self) -> str | None: ...

def scan_segment(
    directory: str,
    base_offset: int,
    producers: ProducerTable,
    *,
    epoch: int = -1,
    producers_from: int = 0,
    index_interval: int = 4096,
    write_indexes: bool = True,
    below: int = -1,
    size: int = -1,
    index_suffix: str = "",
    log_suffix: str = ".log",
) -> SegmentScan: ...
def replay_producers(
    path: str, producers: ProducerTable, start_offset: int, end_offset: int, position: int = 0
) -> list[Completed]: ...
