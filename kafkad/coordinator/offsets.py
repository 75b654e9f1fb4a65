"""The committed offsets of one partition of `__consumer_offsets`. Only durable commits are here.

An offset is stored when its record is durable, so a fetch never returns an offset that a crash could take
back. `OnTheirWay` has the keys of commits that are not durable yet; they count when something is deleted.

Offsets that were committed in a transaction wait under their producer id until the transaction's marker. Of a
transactional and a plain commit, the one with the later record in the log wins."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from kafkad._native.wire.latest_records import LatestRecords
from kafkad.coordinator.records import NEVER, CommittedOffset

Key = tuple[str, str, int]  # group id, topic, partition

_new_committed = partial(tuple.__new__, CommittedOffset)


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._topics: dict[str, set[str]] = {}  # topic -> groups that have an offset in it
        self._open: dict[int, dict[Key, CommittedOffset]] = {}  # producer id -> its transaction's commits
        self._unstable: dict[str, dict[Key, set[int]]] = {}  # group -> key -> producer ids in `_open`

    # -- plain commits

    def put(self, key: Key, committed: CommittedOffset) -> None:
        group_id, topic, partition = key
        topics = self._groups.get(group_id)
        if topics is None:
            topics = self._groups[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
            self._topics.setdefault(topic, set()).add(group_id)
        partitions[partition] = committed

    def get(self, key: Key) -> CommittedOffset | None:
        group_id, topic, partition = key
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def remove(self, key: Key) -> None:
        """Apply a tombstone. It also removes commits of open transactions for the partition."""
        group_id, topic, partition = key
        topics = self._groups.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is not None and not partitions:
            del topics[topic]
            its_groups = self._topics[topic]
            its_groups.discard(group_id)
            if not its_groups:
                del self._topics[topic]
            if not topics:
                del self._groups[group_id]
        for producer_id in self._unstable.get(group_id, {}).get(key, ()):
            del self._open[producer_id][key]
        self._forget_unstable(key)

    def group_ids(self) -> set[str]:
        """Return the groups with an offset, or with one in an open transaction."""
        return {*self._groups, *self._unstable}

    def of_group(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        return self._groups.get(group_id, {})

    def has(self, key: Key) -> bool:
        """Whether there is such an offset, perhaps only in an open transaction."""
        return self.get(key) is not None or key in self._unstable.get(key[0], ())

    def keys_of_group(self, group_id: str) -> Iterator[Key]:
        """Return the keys of a group, including those that only an open transaction has."""
        for topic, partitions in self.of_group(group_id).items():
            for partition in partitions:
                yield group_id, topic, partition
        for key in self._unstable.get(group_id, ()):
            if self.get(key) is None:
                yield key

    def topics(self) -> list[str]:
        """Return the topics for which any group has an offset."""
        return list(self._topics)

    def groups_of_topic(self, topic: str) -> list[str]:
        return list(self._topics.get(topic, ()))

    def take_loaded(self, latest: LatestRecords, limit: int) -> list[tuple[bytes, bytes, int]]:
        """Store the offsets among some loaded records, and return all other records."""
        _, others = latest.take(limit, self._groups, self._topics, _new_committed)
        return others

    def clear_steps(self) -> Iterator[None]:
        """Forget everything, in small steps."""
        self._open.clear()
        self._unstable.clear()
        while self._groups:
            group_id, topics = self._groups.popitem()
            while topics:
                topic, _ = topics.popitem()
                self._topics[topic].discard(group_id)
                yield
        self._topics.clear()

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self._groups.values() for partitions in topics.values())

    # -- transactions

    def put_in_transaction(self, producer_id: int, key: Key, committed: CommittedOffset) -> None:
        self._open.setdefault(producer_id, {})[key] = committed
        self._unstable.setdefault(key[0], {}).setdefault(key, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for key, committed in self._open.pop(producer_id, {}).items():
            self._forget_unstable(key, producer_id)
            current = self.get(key)
            if commit and (current is None or committed.record_offset > current.record_offset):
                self.put(key, committed)

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def open_commits(self) -> Iterator[tuple[Key, CommittedOffset]]:
        """Return the commits of open transactions."""
        for commits in self._open.values():
            yield from commits.items()

    def is_unstable(self, key: Key) -> bool:
        return key in self._unstable.get(key[0], ())

    def has_transactions(self, group_id: str) -> bool:
        return group_id in self._unstable

    def _forget_unstable(self, key: Key, producer_id: int | None = None) -> None:
        """Remove the marks of one producer's open transaction, or of all, for a key."""
        keys = self._unstable.get(key[0], {})
        producers = keys.get(key)
        if producers is None:
            return
        if producer_id is not None:
            producers.discard(producer_id)
        if producer_id is None or not producers:
            del keys[key]
            if not keys:
                del self._unstable[key[0]]


class OnTheirWay:
    """The keys of the commits that are being written, by group. A key may be written several times."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Key, int]] = {}

    def add(self, changes: Sequence[tuple[Key, CommittedOffset | None]]) -> None:
        for key, committed in changes:
            if committed is not None:
                counts = self._groups.setdefault(key[0], {})
                counts[key] = counts.get(key, 0) + 1

    def remove(self, changes: Sequence[tuple[Key, CommittedOffset | None]]) -> None:
        for key, committed in changes:
            if committed is not None:
                counts = self._groups[key[0]]
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
                    if not counts:
                        del self._groups[key[0]]

    def of_group(self, group_id: str) -> Collection[Key]:
        return self._groups.get(group_id, {}).keys()


def is_expired(committed: CommittedOffset, base_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """`base_ms`: since when the group is Empty, if that is what counts; else the commit does.

    A retention time that the client gave (OffsetCommit v2-4) goes before the broker's."""
    if committed.expire_timestamp_ms != NEVER:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if base_ms is None else base_ms
    return now_ms - since_ms >= retention_ms
