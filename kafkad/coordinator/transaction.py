"""One transactional id: its producer id and epoch, the state of its transaction, and every legal change.

    decide -> Change, `pending` is set -> the change is appended -> `complete`, or `forget` if that failed

    Empty, CompleteCommit, CompleteAbort --add--> Ongoing --end--> PrepareCommit --markers--> CompleteCommit
                                                     |         --> PrepareAbort  --markers--> CompleteAbort
                                                     +--time-out, InitProducerId--^
    version 2 (KIP-890) also aborts if nothing was added: Empty, Complete* --> PrepareAbort

A request with an old producer id or epoch is refused. A request that comes while a change is pending, or
while markers are being written, gets CONCURRENT_TRANSACTIONS. In version 1, InitProducerId and fencing raise
the epoch. In version 2, each end raises the epoch: the markers have the old producer id and the new epoch. If
that is the last epoch (32767), the next transaction begins with a new producer id and epoch 0.

One answer differs from Kafka: the previous epoch counts as a retry only after an end in version 2. If a newer
instance has ended its own transaction in version 1, Kafka takes the end of a fenced instance, which uses
version 2, for a retry. The fenced instance is then told that its aborted transaction is committed, and gets
the newer epoch.

Source: Kafka 4.3's TransactionMetadata and TransactionCoordinator; KIP-98, KIP-360, KIP-588, KIP-890.

Beware: after EndTxn v5, an equal epoch means the end of the *next* transaction; the previous epoch is a
retry."""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError

TopicPartition = tuple[str, int]

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 32767
EPOCH_EXHAUSTED = EPOCH_MAX - 1  # no client is given the last one: it is left to fence
NO_TIMEOUT_MS = (1 << 31) - 1  # of a two-phase commit
EPOCH_BUMPED_FROM = 2  # the transaction version in which each end raises the epoch
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class State(IntEnum):
    """Numbered as in the log. PrepareEpochFence and Dead are only ever pending."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


STATE_NAMES = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
    State.DEAD: "Dead",
    State.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
STATES_BY_NAME = {name: state for state, name in STATE_NAMES.items()}

COMPLETE = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
AT_REST = frozenset({State.EMPTY, *COMPLETE})  # no transaction: these may expire, too
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

COMES_FROM = {
    State.EMPTY: AT_REST,
    State.ONGOING: AT_REST | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: AT_REST | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: AT_REST,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}


class Change(NamedTuple):
    """What a transactional id becomes when its record is durable."""

    state: State
    producer_id: int
    prev_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition]
    start_ms: int
    update_ms: int
    client_version: int


NewProducerId = Callable[[], int]  # raises KafkaError where none can be had at once


def bumps_epoch(version: int) -> bool:
    return version >= EPOCH_BUMPED_FROM


class Transaction:
    """The state of one transactional id. `decide` methods raise KafkaError where Kafka answers an error."""

    __slots__ = (
        "began_ms",
        "client_version",
        "has_failed_fence",
        "last_producer_epoch",
        "next_producer_id",
        "partitions",
        "pending",
        "prev_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "update_ms",
    )

    def __init__(
        self, transactional_id: str, producer_id: int, timeout_ms: int, update_ms: int = NO_TIME
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.prev_producer_id = NO_PRODUCER_ID
        self.next_producer_id = NO_PRODUCER_ID  # while the epoch of an ended transaction is the last one
        self.producer_epoch = NO_EPOCH
        self.last_producer_epoch = NO_EPOCH  # not in the log: a retry after a restart is fenced
        self.timeout_ms = timeout_ms
        self.state = State.EMPTY
        self.pending: State | None = None
        self.partitions = NO_PARTITIONS  # while Prepared: those whose markers are not written yet
        self.start_ms = NO_TIME
        self.update_ms = update_ms
        self.client_version = 0
        self.has_failed_fence = False  # an epoch was raised here, but not in the log (version 1)
        self.began_ms = NO_TIME  # while Ongoing: `start_ms` by this process's monotonic clock

    @property
    def is_settling(self) -> bool:
        """Whether a change or markers are under way, so that trying again soon may have another outcome."""
        return self.pending is not None or self.state in PREPARED

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED

    def note_loaded(self, now_ms: int, monotonic_ms: int) -> None:
        """Note that it was read from the log while Ongoing. A start ahead of the wall clock counts as now: a
        clock was wrong, and the transaction must end at some time."""
        self.began_ms = monotonic_ms - max(now_ms - self.start_ms, 0)

    def has_timed_out(self, monotonic_ms: int) -> bool:
        """Unlike Kafka's, this does not follow the wall clock: one that is set forward would abort all
        transactions, and one that is set back none."""
        return (
            self.state is State.ONGOING
            and self.pending is None
            and self.timeout_ms != NO_TIMEOUT_MS
            and self.began_ms + self.timeout_ms < monotonic_ms
        )

    def has_expired(self, now_ms: int, retention_ms: int) -> bool:
        return self.state in AT_REST and self.pending is None and self.update_ms <= now_ms - retention_ms

    # -- InitProducerId ------------------------------------------------------------------------------------

    def decide_init(
        self, timeout_ms: int, expected: tuple[int, int] | None, new_producer_id: NewProducerId, now_ms: int
    ) -> Change:
        """`expected`: the producer id and epoch that the client goes on from (KIP-360). While Ongoing the
        change is PrepareEpochFence: the transaction must be aborted first."""
        if self.pending is not None:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        if expected is not None and not self._is_ours(*expected):
            raise KafkaError(errors.PRODUCER_FENCED)
        if self.state in PREPARED:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        if self.state is State.ONGOING:
            return self.decide_fence()
        changed: dict[str, Any] = {
            "timeout_ms": timeout_ms,
            "partitions": NO_PARTITIONS,
            "start_ms": NO_TIME,
            "update_ms": now_ms,
        }
        if self.is_exhausted and (expected is None or expected[1] == self.producer_epoch):
            last = NO_EPOCH if expected is None else self.producer_epoch
            new_id = new_producer_id()
            return self._prepare(
                State.EMPTY, producer_id=new_id, producer_epoch=0, last_producer_epoch=last, **changed
            )
        if self.is_exhausted:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, "no epoch is left for the producer id")
        epoch, last = self._next_epoch(expected)
        return self._prepare(State.EMPTY, producer_epoch=epoch, last_producer_epoch=last, **changed)

    def _is_ours(self, producer_id: int, epoch: int) -> bool:
        """Whether a client may go on from there: also from the producer id before, once its epochs ran out
        (the client did not hear of the new one)."""
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.prev_producer_id and epoch >= EPOCH_EXHAUSTED)
        )

    def _next_epoch(self, expected: tuple[int, int] | None) -> tuple[int, int]:
        """(epoch, last epoch) after InitProducerId."""
        if expected is None:
            return self.producer_epoch + 1, NO_EPOCH
        if self.producer_epoch in (NO_EPOCH, expected[1]):
            return self.producer_epoch + 1, self.producer_epoch
        if expected[1] == self.last_producer_epoch:  # a retry of what was done, but not heard of
            return self.producer_epoch, self.last_producer_epoch
        raise KafkaError(errors.PRODUCER_FENCED)

    def decide_fence(self) -> Change:
        """Raise the epoch of an Ongoing transaction that is about to be aborted. The pending state is
        replaced by `decide_end`, so this change is never appended."""
        is_kept = self.has_failed_fence or self.producer_epoch == EPOCH_MAX
        return self._prepare(
            State.PREPARE_EPOCH_FENCE, producer_epoch=self.producer_epoch + (0 if is_kept else 1)
        )

    # -- AddPartitionsToTxn and AddOffsetsToTxn ------------------------------------------------------------

    def decide_add(
        self,
        producer_id: int,
        epoch: int,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> Change | None:
        """None: they are all in the transaction already."""
        if self.pending is not None:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        self._check_producer(producer_id, epoch)
        if self.state is State.ONGOING and partitions <= self.partitions:
            return None
        return self._prepare(
            State.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            update_ms=now_ms,
            client_version=client_version,
        )

    def verify(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """NONE for the partitions that are in the transaction, else TRANSACTION_ABORTABLE. A pending change
        does not matter: the log has the last word."""
        self._check_producer(producer_id, epoch)
        return {
            each: errors.NONE if each in self.partitions else errors.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def _check_producer(self, producer_id: int, epoch: int) -> None:
        if self.producer_id != producer_id:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING)
        if self.producer_epoch != epoch:
            raise KafkaError(errors.PRODUCER_FENCED)
        if self.state in PREPARED:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)

    # -- EndTxn --------------------------------------------------------------------------------------------

    def decide_end(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        version: int,
        from_client: bool,
        new_producer_id: NewProducerId,
        now_ms: int,
    ) -> Change | None:
        """To PrepareCommit or PrepareAbort; None: it is over already, in the way that is asked for.

        version: the transaction version of the client (2 from EndTxn v5 on), or the broker's if it ends the
        transaction itself (`from_client` False, after `decide_fence`)."""
        if bumps_epoch(version):
            return self._decide_end_v2(
                producer_id, epoch, commit, version, from_client, new_producer_id, now_ms
            )
        return self._decide_end_v1(producer_id, epoch, commit, from_client, now_ms)

    def _decide_end_v1(
        self, producer_id: int, epoch: int, commit: bool, from_client: bool, now_ms: int
    ) -> Change | None:
        if self.producer_id != producer_id:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING)
        if (from_client and epoch != self.producer_epoch) or epoch < self.producer_epoch:
            raise KafkaError(errors.PRODUCER_FENCED)
        is_fence = self.pending is State.PREPARE_EPOCH_FENCE
        if self.pending is not None and not is_fence:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        prepared, complete = _ends(commit)
        if self.state is complete:
            return None
        if self.state is prepared:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        if self.state is not State.ONGOING:
            raise KafkaError(errors.INVALID_TXN_STATE)
        if is_fence and not commit:  # the epoch is raised before the append, and stays so if that fails
            self.pending = None
            self.producer_epoch = epoch
            self.last_producer_epoch = NO_EPOCH
        return self._prepare(prepared, next_producer_id=NO_PRODUCER_ID, update_ms=now_ms, client_version=0)

    def _decide_end_v2(
        self,
        producer_id: int,
        epoch: int,
        commit: bool,
        version: int,
        from_client: bool,
        new_producer_id: NewProducerId,
        now_ms: int,
    ) -> Change | None:
        is_fence = self.pending is State.PREPARE_EPOCH_FENCE
        retries_overflow = (
            not is_fence
            and self.prev_producer_id == producer_id
            and epoch == EPOCH_EXHAUSTED
            and self.producer_epoch == 0
        )
        retries_bump = not is_fence and self.producer_epoch == epoch + 1 and bumps_epoch(self.client_version)
        is_retry = retries_overflow or retries_bump
        if self.pending is not None and not is_fence:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        if self.producer_id != producer_id and not retries_overflow:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING)
        if is_fence:
            is_valid = epoch >= self.producer_epoch and (not from_client or epoch == self.producer_epoch)
        elif self.state in PREPARED:
            is_valid = retries_bump
        elif self.state in COMPLETE:
            is_valid = is_retry or epoch == self.producer_epoch
        else:
            is_valid = epoch == self.producer_epoch
        if not is_valid:
            raise KafkaError(errors.PRODUCER_FENCED)

        prepared, complete = _ends(commit)
        if self.state is State.ONGOING:
            return self._prepare_end(prepared, version, new_producer_id, now_ms, is_fence)
        if self.state is prepared:
            raise KafkaError(errors.CONCURRENT_TRANSACTIONS)
        if is_retry and self.state is complete:
            return None
        if not is_retry and not commit and self.state in AT_REST:
            return self._prepare_end(prepared, version, new_producer_id, now_ms, is_fence, is_empty=True)
        raise KafkaError(errors.INVALID_TXN_STATE)

    def _prepare_end(
        self,
        prepared: State,
        version: int,
        new_producer_id: NewProducerId,
        now_ms: int,
        is_fence: bool,
        is_empty: bool = False,
    ) -> Change:
        """`is_empty`: nothing was added. The markers go out in the next epoch (KIP-890)."""
        try:
            next_producer_id = new_producer_id() if self.is_exhausted else NO_PRODUCER_ID
        finally:
            if is_fence and prepared is State.PREPARE_ABORT:
                self.pending = None
        is_last = self.producer_epoch == EPOCH_MAX and prepared is State.PREPARE_ABORT
        return self._prepare(
            prepared,
            next_producer_id=next_producer_id,
            producer_epoch=self.producer_epoch if is_last else self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch,
            start_ms=now_ms if is_empty else self.start_ms,
            update_ms=now_ms,
            client_version=version,
        )

    # -- after the markers, and expiry ---------------------------------------------------------------------

    def decide_complete(self, now_ms: int) -> Change:
        """All markers are about to be written: what follows them."""
        self.has_failed_fence = False
        is_new = bumps_epoch(self.client_version) and self.next_producer_id != NO_PRODUCER_ID
        return self._prepare(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            producer_id=self.next_producer_id if is_new else self.producer_id,
            producer_epoch=0 if is_new else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
            update_ms=now_ms,
        )

    def decide_expire(self) -> Change:
        return self._prepare(State.DEAD, partitions=NO_PARTITIONS)

    # -- changes -------------------------------------------------------------------------------------------

    def _prepare(
        self,
        state: State,
        *,
        producer_id: int | None = None,
        next_producer_id: int | None = None,
        producer_epoch: int | None = None,
        last_producer_epoch: int | None = None,
        timeout_ms: int | None = None,
        partitions: frozenset[TopicPartition] | None = None,
        start_ms: int | None = None,
        update_ms: int | None = None,
        client_version: int | None = None,
    ) -> Change:
        """What is not named stays as it is."""
        assert self.pending is None, f"{self.transactional_id} is changing already"
        assert self.state in COMES_FROM[state], f"{self.transactional_id} cannot become {state!r}"
        change = Change(
            state,
            self.producer_id if producer_id is None else producer_id,
            self.producer_id,
            self.next_producer_id if next_producer_id is None else next_producer_id,
            self.producer_epoch if producer_epoch is None else producer_epoch,
            self.last_producer_epoch if last_producer_epoch is None else last_producer_epoch,
            self.timeout_ms if timeout_ms is None else timeout_ms,
            self.partitions if partitions is None else partitions,
            self.start_ms if start_ms is None else start_ms,
            self.update_ms if update_ms is None else update_ms,
            self.client_version if client_version is None else client_version,
        )
        assert change.producer_id >= 0
        assert state is State.DEAD or 0 <= change.producer_epoch <= EPOCH_MAX
        self.pending = state
        return change

    def complete(self, change: Change) -> None:
        """The record of a change is durable."""
        assert self.pending is change.state and change.state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)
        assert self._is_continuous(change), f"{self.transactional_id} cannot become {change}"
        (
            self.state,
            self.producer_id,
            self.prev_producer_id,
            self.next_producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            self.partitions,
            self.start_ms,
            self.update_ms,
            self.client_version,
        ) = change
        self.pending = None

    def _is_continuous(self, change: Change) -> bool:
        """Whether producer id and epoch follow from the ones before."""
        same = change.producer_id == self.producer_id and change.producer_epoch == self.producer_epoch
        if change.state is State.EMPTY:
            is_bump = change.producer_epoch in (self.producer_epoch, self.producer_epoch + 1)
            return is_bump or (change.producer_epoch == 0 and change.producer_id != self.producer_id)
        if change.state is State.ONGOING:
            return same and change.partitions >= self.partitions
        if change.state in PREPARED:
            if bumps_epoch(change.client_version):
                same = change.producer_id == self.producer_id
                same = same and change.last_producer_epoch == self.producer_epoch
            return same and change.partitions == self.partitions
        if bumps_epoch(change.client_version) and change.producer_epoch == 0:
            return change.prev_producer_id == self.producer_id
        return same

    def forget(self) -> None:
        """The change that was pending has failed."""
        self.pending = None


def _ends(commit: bool) -> tuple[State, State]:
    if commit:
        return State.PREPARE_COMMIT, State.COMPLETE_COMMIT
    return State.PREPARE_ABORT, State.COMPLETE_ABORT
