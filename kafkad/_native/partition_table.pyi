from collections.abc import Iterator
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
    def get(self, topic: str, index: int) -> Any: ...
    def get_by_id(self, topic_id: bytes, index: int) -> Any: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: tuple[str, int]) -> bool: ...
    def __iter__(self) -> Iterator[tuple[str, int]]: ...
