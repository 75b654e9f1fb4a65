"""The in-sync replicas of one led partition: the committed ISR, and at most one proposed change.

    Committed       as in the metadata, or in the controller's answer
    PendingExpand   the proposal adds a follower that has caught up
    PendingShrink   the proposal removes followers that lag

Only the controller changes an ISR. Until it has answered, HW waits for the *maximal* ISR. A new member counts
for HW at once, because the controller may have committed it already. A removed member counts until the
removal is committed, because the controller may elect it as leader meanwhile (Kafka: Partition,
PartitionState, CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr).

One proposal is in flight at a time. A change in the metadata replaces it by Committed. The answer to a
replaced proposal is ignored, because it is no longer `pending`.

A process that died may have left a proposal on its way to the controller, which may commit it, however late
it arrives, until the partition epoch has changed. Its successor begins with `inherit`.

Use: replication/replicas."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from kafkad.metadata.image import RECOVERED, PartitionState
from kafkad.protocol import errors

EpochOf = Callable[[int], int]  # the broker epoch of a replica; -1 if it is not known

# The controller has newer metadata, which will arrive here (Partition.handleAlterPartitionError). After any
# other error, the same proposal is sent again.
WAIT_FOR_METADATA: Final = frozenset(
    {
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UNKNOWN_TOPIC_ID,
        errors.FENCED_LEADER_EPOCH,
        errors.INVALID_UPDATE_VERSION,
        errors.INVALID_REQUEST,
        errors.NEW_LEADER_ELECTED,
    }
)
UNCONFIRMED: Final = -1
REFUSED: Final = frozenset({errors.OPERATION_NOT_ATTEMPTED, errors.INELIGIBLE_REPLICA})


class Proposal(NamedTuple):
    """The change that an AlterPartition requests."""

    isr: tuple[tuple[int, int], ...]  # (broker, its epoch; -1: not known)
    leader_epoch: int
    partition_epoch: int
    recovery_state: int = RECOVERED


class Answer(NamedTuple):
    """The partition as the controller has it now."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    recovery_state: int = RECOVERED


class Verdict(Enum):
    """The outcome of a proposal."""

    STALE = 0  # it was replaced: nothing changes
    COMMITTED = 1  # the state has changed
    WAIT = 2  # it stays pending until the metadata arrives
    AGAIN = 3  # send it again


class Isr:
    """The ISR of a partition that broker `me` leads."""

    __slots__ = (
        "adding",
        "committed",
        "confirmed",
        "in_flight",
        "leader_epoch",
        "me",
        "partition_epoch",
        "pending",
        "removing",
        "suspected",
    )

    def __init__(self, me: int) -> None:
        self.me = me
        self.leader_epoch = self.partition_epoch = -1
        self.committed: tuple[int, ...] = ()
        self.pending: Proposal | None = None
        self.adding: frozenset[int] = frozenset()
        self.removing: frozenset[int] = frozenset()
        self.suspected: frozenset[int] = frozenset()  # they may be members by what a dead process proposed
        self.in_flight = False  # it may still be on its way
        self.confirmed = UNCONFIRMED  # the partition epoch in which the controller had our ISR

    @property
    def maximal(self) -> tuple[int, ...]:
        return (*self.committed, *sorted((self.adding | self.suspected) - set(self.committed)))

    def learn(self, state: PartitionState) -> bool:
        """Take the partition's state from the metadata. Return False if it is older than the known one.

        If the epochs are equal, the controller's answer has come first. Nothing changes, and a later proposal
        stays pending: the controller may commit it at any time, so HW must not move without the replica that
        it adds. (Kafka's Partition.makeLeader treats that state as committed.)"""
        if state.partition_epoch < self.partition_epoch:
            return False
        if state.partition_epoch == self.partition_epoch and state.leader_epoch == self.leader_epoch:
            return True
        # A new leader epoch ends all earlier proposals; so does a new partition epoch after a confirmed one.
        if state.leader_epoch != self.leader_epoch or self.is_confirmed:
            self.suspected = frozenset()
        self.leader_epoch = state.leader_epoch
        self._commit(state.isr, state.partition_epoch)
        return True

    def expand(self, broker_id: int, epoch_of: EpochOf) -> Proposal | None:
        """Propose to add a follower. Return None if it is in the ISR, or a proposal is in flight."""
        if self.pending is not None or broker_id in self.committed:
            return None
        return self._propose((*self.committed, broker_id), epoch_of, adding=frozenset({broker_id}))

    def shrink(self, lagging: Iterable[int], epoch_of: EpochOf) -> Proposal | None:
        """Propose to remove followers. Return None if none can be removed, or a proposal is in flight."""
        gone = frozenset(lagging) & set(self.committed) - {self.me}
        if self.pending is not None or not gone:
            return None
        kept = tuple(each for each in self.committed if each not in gone)
        return self._propose(kept, epoch_of, removing=gone)

    def inherit(self, others: Iterable[int], epoch_of: EpochOf, *, in_flight: bool) -> Proposal | None:
        """Another process led in this epoch before us, and died. By an answer it may have known members that
        our metadata do not have yet; with a proposal `in_flight` it may still add one. All of `others` count
        for HW until the controller's answers exclude that. Return the first proposal (`verify`)."""
        self.suspected = frozenset(others)
        self.in_flight = in_flight
        self.confirmed = UNCONFIRMED
        return self.verify(epoch_of)

    def verify(self, epoch_of: EpochOf) -> Proposal | None:
        """Propose the known ISR, which the controller refuses if it is old. After a proposal in flight the
        members come in another order: that changes the partition epoch, and then the controller refuses the
        old proposal. The ISR of a leader alone has no other order; it waits for a follower to join, or for
        `trust`. Return None if no proposal is needed, or another one is in flight."""
        if self.pending is not None or self.is_confirmed or self.suspected <= set(self.committed):
            return None
        isr = (*self.committed[1:], *self.committed[:1]) if self.in_flight else self.committed
        return self._propose(isr, epoch_of)

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed != UNCONFIRMED

    def trust(self, others: Iterable[int]) -> bool:
        """No old proposal adds any of `others` any more. Return whether one was suspected to."""
        before = self.suspected
        self.suspected -= frozenset(others)
        return self.suspected != before

    def answered(self, proposal: Proposal, code: int, answer: Answer | None) -> Verdict:
        """Take the controller's answer; `answer` is given if `code` is 0. If the change has come as metadata
        before, the answer is STALE, but it ends earlier proposals all the same."""
        if (
            answer is not None
            and answer.leader_epoch == proposal.leader_epoch == self.leader_epoch
            and answer.partition_epoch > proposal.partition_epoch
        ):
            self.suspected = frozenset()
        if proposal is not self.pending:
            return Verdict.STALE
        if code in REFUSED:  # after the epochs were found to be current
            self._confirm()
            self._commit(self.committed, self.partition_epoch)
            return Verdict.COMMITTED
        if code in WAIT_FOR_METADATA:
            return Verdict.WAIT
        if code or answer is None:
            return Verdict.AGAIN
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.partition_epoch:
            return Verdict.WAIT
        if answer.partition_epoch == proposal.partition_epoch:
            self._confirm()
        self._commit(answer.isr, answer.partition_epoch)
        return Verdict.COMMITTED

    def _confirm(self) -> None:
        self.confirmed = self.partition_epoch
        if not self.in_flight:
            self.suspected = frozenset()

    def _commit(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.committed = tuple(isr)
        self.partition_epoch = partition_epoch
        self.pending = None
        self.adding = self.removing = frozenset()

    def _propose(
        self,
        isr: tuple[int, ...],
        epoch_of: EpochOf,
        *,
        adding: frozenset[int] = frozenset(),
        removing: frozenset[int] = frozenset(),
    ) -> Proposal:
        self.adding, self.removing = adding, removing
        with_epochs = tuple((broker, epoch_of(broker)) for broker in isr)
        self.pending = Proposal(with_epochs, self.leader_epoch, self.partition_epoch)
        return self.pending
