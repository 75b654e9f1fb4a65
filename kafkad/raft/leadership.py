"""What a leader of the quorum knows of the other nodes: how far each has the log, and when it last fetched.

    fetched            a Fetch from an offset: everything below it is on that voter's disk
    high_watermark     what a majority has, once that includes a record of this epoch (Raft, 5.4.2)
    quorum_deadline    when the leader must resign, unless a majority fetches before
    silent             voters that have not fetched for half a fetch timeout: they are told the leader
    successors         the voters, best first, for when the leader leaves
    change_voters      a voter was added or removed: what is known of the others stays

Kafka: LeaderState. Pure: time is an argument."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kafkad.raft.elections import Timings

FORGOTTEN_MS: Final = 300_000  # an observer that stopped fetching (Kafka: OBSERVER_SESSION_TIMEOUT_MS)
OBSERVERS_MAX: Final = 10_000


@dataclass(slots=True)
class Progress:
    """The progress of one replica. `end_offset` -1: no fetch yet. `caught_up_ms`: when it last had
    everything."""

    end_offset: int = -1
    fetched_ms: int = -1
    caught_up_ms: int = -1
    leader_end_offset: int = -1  # at its last fetch


class Leadership:
    """The leader of one epoch, whose log began at `start_offset` then. It is one of `voters`, until it is
    removed. `high_watermark` -1: not known in this epoch yet."""

    def __init__(
        self, me: int, voters: Iterable[int], start_offset: int, now_ms: int, timings: Timings
    ) -> None:
        self.me = me
        self.start_offset = start_offset
        self.voters = {voter: Progress() for voter in voters}
        self.observers: dict[tuple[int, bytes], Progress] = {}
        self.quorum_deadline_ms = now_ms + timings.check_quorum_ms
        self.high_watermark = -1
        self._own_end = -1  # flushed
        self._begin_ms = timings.fetch_ms // 2
        self._check_quorum_ms = timings.check_quorum_ms
        self._asked: set[int] = set()  # since quorum_deadline_ms was moved

    def fetched(self, voter: int, offset: int, end_offset: int, now_ms: int) -> None:
        """A voter fetched from `offset` of our log, which ends at `end_offset`."""
        _note(self.voters[voter], offset, end_offset, now_ms)
        self.heard(voter, now_ms)
        self._count()

    def heard(self, voter: int, now_ms: int) -> None:
        """A voter fetched anything: records, or a piece of a snapshot."""
        self._asked.add(voter)
        if len(self._asked & self.voters.keys()) >= self._needed:
            self._asked.clear()
            self.quorum_deadline_ms = now_ms + self._check_quorum_ms

    def observed(self, observer: tuple[int, bytes], offset: int, end_offset: int, now_ms: int) -> None:
        """A node without a vote fetched. Silent ones are forgotten."""
        progress = self.observers.pop(observer, None)
        while self.observers:  # in the order of their last fetch
            oldest = next(iter(self.observers))
            if now_ms - self.observers[oldest].fetched_ms <= FORGOTTEN_MS:
                break
            del self.observers[oldest]
        if progress is None and len(self.observers) >= OBSERVERS_MAX:
            return
        self.observers[observer] = progress = progress or Progress()
        _note(progress, offset, end_offset, now_ms)

    def flushed(self, offset: int) -> None:
        """Everything below it is on our own disk."""
        self._own_end = max(self._own_end, offset)
        if self.me in self.voters:
            self.voters[self.me].end_offset = self._own_end
        self._count()

    def _count(self) -> None:
        """A new voter that is behind does not lower the high watermark."""
        ends = sorted((each.end_offset for each in self.voters.values()), reverse=True)
        offset = ends[len(ends) // 2]
        if offset > self.start_offset:
            self.high_watermark = max(self.high_watermark, offset)

    @property
    def _needed(self) -> int:
        """Return how many others make a majority, together with this node if it votes."""
        return len(self.voters) // 2 + 1 - (self.me in self.voters)

    def is_overdue(self, now_ms: int) -> bool:
        return self._needed > 0 and now_ms >= self.quorum_deadline_ms

    def change_voters(self, before: Mapping[int, bytes], after: Mapping[int, bytes], now_ms: int) -> None:
        """Take directory ids by voter."""
        for voter in before:
            if after.get(voter) != before[voter] and (left := self.voters.pop(voter, None)) is not None:
                self.observers[voter, before[voter]] = left
        for voter in after:
            if voter not in self.voters:
                self.voters[voter] = self.observers.pop((voter, after[voter]), Progress())
        if self.me in self.voters:
            self.voters[self.me].end_offset = self._own_end
        self.quorum_deadline_ms = now_ms + self._check_quorum_ms
        self._asked &= self.voters.keys()

    def is_caught_up(self, observer: tuple[int, bytes], since_ms: int) -> bool:
        """Return whether it has had all of the log since then."""
        progress = self.observers.get(observer)
        return progress is not None and progress.caught_up_ms >= max(since_ms, 0)

    def silent(self, now_ms: int) -> list[int]:
        return [
            voter
            for voter, each in self.voters.items()
            if voter != self.me and (each.fetched_ms < 0 or now_ms - each.fetched_ms >= self._begin_ms)
        ]

    def successors(self) -> list[int]:
        others = [voter for voter in self.voters if voter != self.me]
        return sorted(others, key=lambda voter: -self.voters[voter].end_offset)


def _note(progress: Progress, offset: int, end_offset: int, now_ms: int) -> None:
    """Caught up at the time of a fetch, if it has everything; at the time of the previous fetch, if it has
    everything that existed then (Kafka: ReplicaState.updateFollowerState)."""
    if offset >= end_offset:
        progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
    elif progress.leader_end_offset >= 0 and offset >= progress.leader_end_offset:
        progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
    progress.end_offset = offset
    progress.fetched_ms = now_ms
    progress.leader_end_offset = end_offset
