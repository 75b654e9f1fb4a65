from collections.abc import Callable, Iterator
from typing import Any

INTERNAL_TOPICS: frozenset[str]

class PartitionTable:
    """The partitions for Produce and Fetch, by (topic name, index) and (topic id, index)."""

    def add(
        self, partition: Any, topic: str, topic_id: bytes | None = None, *, internal: bool | None = None
    ) -> None:
        """ValueError if it is there already, or the topic is there with another id."""
    def remove(self, topic: str, index: int) -> None:
        """Remove it and answer its waiters. KeyError if it is not there."""
    def replace(self, topic: str, index: int, partition: Any) -> None:
        """Answer its waiters from `partition` from now on. KeyError if there is no entry."""
    def remote_advanced(self, row: int) -> None:
        """The owner of this row reports that it advanced."""
    def owner_lost(self, owner: int) -> None:
        """Worker `owner` has died: the waiters of its entries look again."""
    def mark_moving(self, topic: str, index: int, moving: bool) -> None:
        """Note whether another broker is about to lead it. Nothing happens if it is not there."""
    def release_idle_readers(self) -> int:
        """Close files of other workers' partitions that were not read since the last call."""
    def ring_with(self, ring: Callable[[int, int], None] | None, me: int) -> None:
        """Without mailboxes: call `ring(row, bits of listening workers)` at each advance. `me`: this
        worker."""
    def get(self, topic: str, index: int) -> Any: ...
    def get_by_id(self, topic_id: bytes, index: int) -> Any: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: tuple[str, int]) -> bool: ...
    def __iter__(self) -> Iterator[tuple[str, int]]: ...
