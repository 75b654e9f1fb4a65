from collections.abc import Callable, Iterator
from typing import Any

INTERNAL_TOPICS: frozenset[str]

class PartitionTable:
    """The partitions that Produce and Fetch find, by (topic name, index) and (topic id, index)."""

    def add(
        self, partition: Any, topic: str, topic_id: bytes | None = None, *, internal: bool | None = None
    ) -> None:
        """ValueError when it is there already, or the topic is there under another id."""
    def remove(self, topic: str, index: int) -> None:
        """Answers whoever waits for it. KeyError when it is not there."""
    def replace(self, topic: str, index: int, partition: Any) -> None:
        """Waiters are answered from `partition`. KeyError when the place is empty."""
    def remote_advanced(self, row: int) -> None:
        """The owner of this row says that it moved."""
    def owner_lost(self, owner: int) -> None:
        """Worker `owner` has died: entries that wait for its rings look again."""
    def release_idle_readers(self) -> int:
        """Closes files of other workers' partitions that nobody read since the last call."""
    def ring_with(self, ring: Callable[[int, int], None] | None, me: int) -> None:
        """Without mailboxes: `ring(row, bits of who listens)` at each advance. `me`: this worker."""
    def get(self, topic: str, index: int) -> Any: ...
    def get_by_id(self, topic_id: bytes, index: int) -> Any: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: tuple[str, int]) -> bool: ...
    def __iter__(self) -> Iterator[tuple[str, int]]: ...
