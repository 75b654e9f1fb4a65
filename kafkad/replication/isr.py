"""The in-sync replicas of one led partition: what is committed, and the one change of it that is in flight.

    Committed       as the metadata, or the controller's answer, has it
    PendingExpand   a follower has caught up and is to be added
    PendingShrink   followers that lag are to be removed

Only the controller changes an ISR. Until it has answered, HW waits for the *maximal* ISR: an addition binds
HW at once, since the controller may have committed it already; a removal releases HW only when it is
committed, since a leader elected meanwhile may be the one to be removed (Kafka: Partition, PartitionState,
CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr).

One proposal is in flight at a time. News of the partition in the metadata replaces the state by Committed,
and the answer to an older proposal is then ignored: it is no longer `pending`.

Use: replication/replicas."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from kafkad.metadata.image import RECOVERED, PartitionState
from kafkad.protocol import errors

EpochOf = Callable[[int], int]  # the broker epoch of a replica; -1 if it is not known

# The controller knows something else by now: its answer brings nothing, the metadata will (Kafka:
# Partition.handleAlterPartitionError). Of all other errors the same proposal is sent again.
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
REFUSED: Final = frozenset({errors.OPERATION_NOT_ATTEMPTED, errors.INELIGIBLE_REPLICA})


class Proposal(NamedTuple):
    """What an AlterPartition asks for."""

    isr: tuple[tuple[int, int], ...]  # (broker, its epoch; -1: not known)
    leader_epoch: int
    partition_epoch: int
    recovery_state: int = RECOVERED


class Answer(NamedTuple):
    """What the controller has of the partition now."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    recovery_state: int = RECOVERED


class Verdict(Enum):
    """What became of a proposal."""

    STALE = 0  # of a state that is over, or older than what is known: nothing changes
    COMMITTED = 1  # the state is another one
    WAIT = 2  # it stays pending until the metadata comes
    AGAIN = 3  # to be sent again


class Isr:
    """The ISR of a partition that broker `me` leads."""

    __slots__ = ("adding", "committed", "leader_epoch", "me", "partition_epoch", "pending", "removing")

    def __init__(self, me: int) -> None:
        self.me = me
        self.leader_epoch = self.partition_epoch = -1
        self.committed: tuple[int, ...] = ()
        self.pending: Proposal | None = None
        self.adding: frozenset[int] = frozenset()
        self.removing: frozenset[int] = frozenset()

    @property
    def maximal(self) -> tuple[int, ...]:
        return (*self.committed, *sorted(self.adding))

    def learn(self, state: PartitionState) -> bool:
        """What the metadata says of the partition. False: it is older than what is known.

        Of an equal epoch the controller's answer has come before: that is no news, and a proposal that was
        made since stays pending. The controller may commit it any time, so HW must not move without the
        replica that it adds. (Kafka's Partition.makeLeader takes that state for committed.)"""
        if state.partition_epoch < self.partition_epoch:
            return False
        if state.partition_epoch == self.partition_epoch and state.leader_epoch == self.leader_epoch:
            return True
        self.leader_epoch = state.leader_epoch
        self._commit(state.isr, state.partition_epoch)
        return True

    def expand(self, broker_id: int, epoch_of: EpochOf) -> Proposal | None:
        """None: it is in the ISR, or a proposal is in flight."""
        if self.pending is not None or broker_id in self.committed:
            return None
        return self._propose((*self.committed, broker_id), epoch_of, adding=frozenset({broker_id}))

    def shrink(self, lagging: Iterable[int], epoch_of: EpochOf) -> Proposal | None:
        """None: none of them may be removed, or a proposal is in flight."""
        gone = frozenset(lagging) & set(self.committed) - {self.me}
        if self.pending is not None or not gone:
            return None
        kept = tuple(each for each in self.committed if each not in gone)
        return self._propose(kept, epoch_of, removing=gone)

    def settle(self, others: Iterable[int], epoch_of: EpochOf) -> Proposal | None:
        """Another process led in this epoch before us, and nobody knows what it has proposed: any of `others`
        may have been added. They bind HW until the controller, asked for no change, has said what it has.
        None: all of them are in the ISR."""
        unknown = frozenset(others) - set(self.committed)
        if self.pending is not None or not unknown:
            return None
        return self._propose(self.committed, epoch_of, adding=unknown)

    def answered(self, proposal: Proposal, code: int, answer: Answer | None) -> Verdict:
        """`answer` where `code` is 0."""
        if proposal is not self.pending:
            return Verdict.STALE
        if code in REFUSED:
            self._commit(self.committed, self.partition_epoch)
            return Verdict.COMMITTED
        if code in WAIT_FOR_METADATA:
            return Verdict.WAIT
        if code or answer is None:
            return Verdict.AGAIN
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.partition_epoch:
            return Verdict.WAIT
        self._commit(answer.isr, answer.partition_epoch)
        return Verdict.COMMITTED

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
