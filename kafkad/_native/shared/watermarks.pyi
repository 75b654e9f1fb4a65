from typing import Final, NamedTuple

FOLLOWER: Final = 1
LEADER: Final = 2

class RowValues(NamedTuple):
    whole: bool
    topic_id: bytes
    partition: int
    generation: int
    leader_epoch: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    local_log_start_offset: int
    flushed_offset: int
    end_segment: int
    end_position: int
    waiters: int
    role: int
    led_since: int
    leader_id: int
    durable_offset: int
    epoch_start: int
    partition_epoch: int
    isr_count: int
    isr_count_max: int
    isr_count_min: int
    last_epoch: int

class WatermarkTable:
    def __init__(self, capacity: int = ..., shared: bool = False) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def fd(self) -> int: ...
    @property
    def shared(self) -> bool: ...
    def allocate(self) -> RowSlot:
        """An empty row, freed with the slot object. MemoryError when the table is full."""
    def enter(self, me: int) -> None:
        """This process is worker `me`."""
    def reclaim(self) -> int:
        """Rows of a former life of this worker that were not found: free again. How many."""
    def find(self, topic_id: bytes, index: int) -> RowSlot | None:
        """The row that a dead owner of the partition left; the caller's from now on."""
    def row(self, number: int) -> RowSlot:
        """A view of another worker's row."""

class RowSlot:
    @property
    def number(self) -> int: ...
    @property
    def viewed(self) -> bool: ...
    def values(self) -> RowValues: ...

def private_row() -> RowSlot: ...
def leave_odd(slot: RowSlot) -> None: ...
