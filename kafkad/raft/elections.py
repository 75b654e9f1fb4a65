"""The rules of elections: when to grant a vote, how to count votes, how long to wait.

    role          what it means                                              becomes
    unattached    no leader is known in this epoch                           prospective, after its timeout
    prospective   asks whether it would win, in the same epoch (KIP-996)     candidate, follower or unattached
    candidate     has voted for itself in a new epoch                        leader, or prospective again
    leader        has the votes of a majority                                resigned, when it hears too few
    resigned      was the leader of this epoch                               unattached in the next epoch
    follower      fetches from the leader                                    prospective, when that is silent

An epoch higher than ours ends every role: the node becomes unattached in it, or follows its leader.
Kafka: QuorumState, EpochElection, NomineeState. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

VoteKey = tuple[int, bytes]  # id and directory id; zeros if not given
UNKNOWN_DIRECTORY = bytes(16)


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    FOLLOWER = "follower"


@dataclass(slots=True, frozen=True)
class Timings:
    """Kafka's defaults, in ms."""

    election_ms: int = 1_000  # controller.quorum.election.timeout.ms; the wait is up to twice as long
    fetch_ms: int = 2_000  # controller.quorum.fetch.timeout.ms
    backoff_max_ms: int = 1_000  # controller.quorum.election.backoff.max.ms
    request_ms: int = 2_000  # controller.quorum.request.timeout.ms
    retry_ms: int = 20  # controller.quorum.retry.backoff.ms

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader continues without a majority (Kafka: CHECK_QUORUM_TIMEOUT_FACTOR)."""
        return self.fetch_ms * 3 // 2

    def backoff_ms(self, position: int, successors: int) -> int:
        """Return the back-off of the node at `position` among the successors that a resigning leader named
        (Kafka: strictExponentialElectionBackoffMs). -1, or beyond the end: it was not named."""
        if position == 0:
            return 0
        if not 0 < position < successors:
            return self.backoff_max_ms
        return min(self.backoff_max_ms, (self.backoff_max_ms >> (successors - 1)) << (position - 1))


GRACE_MS: Final = 30  # for the other followers to see it, too
STEP_MS: Final = 60  # more than an election takes
SPREAD_MS: Final = 20


def dead_leader_ms(me: int, voters: Iterable[int], leader: int, random: Any) -> int:
    """How long a follower waits that sees that its leader has died, while others see it: one after the other,
    by their ids, so that votes are not split. (Ours; Kafka waits for the fetch time-out.)"""
    others = sorted(voter for voter in voters if voter != leader)
    position = others.index(me) if me in others else len(others)
    return GRACE_MS + position * STEP_MS + int(random.randrange(SPREAD_MS))


@dataclass(slots=True)
class Tally:
    """The votes of one election."""

    voters: frozenset[int]
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    @staticmethod
    def of(voters: Iterable[int], me: int) -> "Tally":
        return Tally(frozenset(voters), {me})

    def count(self, voter: int, granted: bool) -> None:
        if voter in self.voters:
            (self.granted if granted else self.rejected).add(voter)
            (self.rejected if granted else self.granted).discard(voter)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def is_won(self) -> bool:
        return len(self.granted & self.voters) >= self.majority

    @property
    def is_lost(self) -> bool:
        return len(self.voters) - len(self.rejected) < self.majority

    @property
    def silent(self) -> frozenset[int]:
        return self.voters - self.granted - self.rejected


def may_grant(
    role: Role,
    candidate: VoteKey,
    *,
    pre_vote: bool,
    up_to_date: bool,
    voted: VoteKey | None,
    leader_known: bool,
    has_fetched: bool,
) -> bool:
    """Return whether to grant a vote in our epoch (Kafka: EpochState.canGrantVote of each state).

    `up_to_date`: the candidate's log ends where ours does, or later. `has_fetched`: we have fetched from the
    leader that we follow, and it has not refused us since, so it is there."""
    if role is Role.LEADER:
        return False
    if pre_vote:
        return up_to_date and not (role is Role.FOLLOWER and has_fetched)
    if role not in (Role.UNATTACHED, Role.PROSPECTIVE):
        return False
    if voted is not None:
        return voted[0] == candidate[0] and voted[1] in (UNKNOWN_DIRECTORY, candidate[1])
    return up_to_date and not leader_known
