"""The transactional ids of one partition of `__transaction_state`, and its only writer.

    decide -> `append` -> durable -> the transaction changes, the client is answered -> markers -> Complete*

If a change or markers are in progress, Kafka refuses a request, and the client sleeps and tries again. kafkad
parks the request instead and decides it again when they have settled, usually after a fraction of a
millisecond. A request is parked for at most add.partitions.to.txn.retry.backoff.max.ms, and each id has at
most PARKED_MAX parked requests.

Beware: `storage.append` may call back before it returns. After an append, no code here changes state that the
callback could have needed."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kafkad.coordinator import transaction_records as records
from kafkad.coordinator.markers import Markers
from kafkad.coordinator.ports import Clock, Scheduler
from kafkad.coordinator.transaction import PREPARED, Change, State, Transaction
from kafkad.coordinator.transaction_records import Replay
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch

if TYPE_CHECKING:
    from kafkad.coordinator.deadline import Handle

logger = logging.getLogger(__name__)

Done = Callable[[int], object]

PARKED_MAX = 5  # requests of one transactional id
LOADED_AT_ONCE = 100  # transactional ids that become objects between two looks at the clock
BATCH_OVERHEAD, RECORD_OVERHEAD = 61, 24  # bytes, of what is not keys and values; at most
TOMBSTONES_MAX = 500  # in one batch: 2 ms to make

# What a failed append means to a client of the coordinator.
APPEND_ERRORS: dict[int, int] = {
    errors.UNKNOWN_TOPIC_OR_PARTITION: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: errors.COORDINATOR_NOT_AVAILABLE,
    errors.REQUEST_TIMED_OUT: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER: errors.NOT_COORDINATOR,
    errors.KAFKA_STORAGE_ERROR: errors.NOT_COORDINATOR,
    errors.MESSAGE_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
    errors.RECORD_LIST_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
}


class Coordinator(Protocol):
    """What a shard needs of the coordinator that it is of. (`transactions.TransactionCoordinator` is one.)"""

    @property
    def clock(self) -> Clock: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def storage(self) -> Any: ...
    @property
    def markers(self) -> Markers: ...
    @property
    def append_timeout_ms(self) -> int: ...

    def transaction_version(self) -> int: ...


class Attempt:
    """A request that may have to be decided more than once.

    act(shard): decides and goes on; raises KafkaError to refuse. refuse(error code): the client's answer."""

    __slots__ = ("act", "deadline_ms", "fenced", "refuse", "timer")

    def __init__(
        self, act: Callable[["TransactionShard", "Attempt"], object], refuse: Done, deadline_ms: int
    ) -> None:
        self.act = act
        self.refuse = refuse
        self.deadline_ms = deadline_ms
        self.fenced = False  # InitProducerId: it has aborted the transaction that was open
        self.timer: Handle | None = None


class TransactionShard:
    def __init__(self, coordinator: Coordinator, index: int, epoch: int) -> None:
        """epoch: of the partition's leader, which the markers carry as the coordinator's; it rises while the
        same broker leads."""
        self.index = index
        self.epoch = epoch
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, Transaction] = {}  # those that may time out
        self.loading = True
        self.tail_open = False  # transactions are not read before the log is committed to its end
        self.closed = False
        self.replay = Replay()  # what is read of the log while it is loading
        self._coordinator = coordinator
        self._parked: dict[str, list[Attempt]] = {}
        self._waiting: dict[int, Done] = {}  # number of an append on its way -> whom to answer
        self._appends = 0

    # -- reading the log

    def load_steps(self) -> Iterator[None]:
        """Make transactions of what `replay` was fed, in small steps, serve them, and write the markers of
        those that were ending. Raises Malformed."""
        assert self.loading
        while len(self.replay.latest):
            for transaction in self.replay.take(LOADED_AT_ONCE):
                self.transactions[transaction.transactional_id] = transaction
                if transaction.state is State.ONGOING:
                    transaction.note_loaded(
                        self._coordinator.clock.now_ms(), self._coordinator.clock.monotonic_ms()
                    )
                    self.ongoing[transaction.transactional_id] = transaction
            yield
        self.replay = Replay()
        self.loading = False
        if self.transactions:
            logger.info(
                "__transaction_state-%d: %d transactional ids loaded", self.index, len(self.transactions)
            )
        for transaction in list(self.transactions.values()):
            if transaction.state in PREPARED and transaction.pending is None:
                change = transaction.decide_complete(self._coordinator.clock.now_ms())
                self._coordinator.markers.send(self, transaction, change)
                yield

    def close(self) -> Iterator[None]:
        """The partition is not ours any more: answer all who wait. The returned steps give back memory."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(errors.NOT_COORDINATOR)
        parked, self._parked = self._parked, {}
        for attempts in parked.values():
            for attempt in attempts:
                self._unpark(attempt)
                attempt.refuse(errors.NOT_COORDINATOR)
        return self._forget_steps()

    def _forget_steps(self) -> Iterator[None]:
        for transactions in (self.ongoing, self.transactions):
            while transactions:
                transactions.popitem()
                yield
        self.replay = Replay()

    # -- requests

    def attempt(self, transactional_id: str, attempt: Attempt) -> None:
        """Decide a request; it may be parked."""
        try:
            attempt.act(self, attempt)
        except KafkaError as refused:
            if refused.code == errors.CONCURRENT_TRANSACTIONS:
                self.park_or_refuse(transactional_id, attempt)
            else:
                attempt.refuse(refused.code)

    def park_or_refuse(self, transactional_id: str, attempt: Attempt) -> None:
        """Decide a request anew when the transaction has settled; CONCURRENT_TRANSACTIONS if it may not
        wait."""
        transaction = self.transactions.get(transactional_id)
        parked = self._parked.get(transactional_id, [])
        left_ms = attempt.deadline_ms - self._coordinator.clock.monotonic_ms()
        if transaction is None or not transaction.is_settling or left_ms <= 0 or len(parked) >= PARKED_MAX:
            attempt.refuse(errors.CONCURRENT_TRANSACTIONS)
            return

        def give_up() -> None:
            parked.remove(attempt)
            if not parked and self._parked.get(transactional_id) is parked:
                del self._parked[transactional_id]
            attempt.refuse(errors.CONCURRENT_TRANSACTIONS)

        attempt.timer = self._coordinator.scheduler.call_later(left_ms, give_up)
        parked.append(attempt)
        self._parked[transactional_id] = parked

    def _unpark(self, attempt: Attempt) -> None:
        assert attempt.timer is not None
        attempt.timer.cancel()
        attempt.timer = None

    def _settled(self, transaction: Transaction) -> None:
        """Decide the parked requests of a transaction anew, if nothing is under way any more."""
        if self.closed or transaction.is_settling:
            return
        parked = self._parked.pop(transaction.transactional_id, ())
        for attempt in parked:
            self._unpark(attempt)
        for attempt in parked:
            if self.closed:
                attempt.refuse(errors.NOT_COORDINATOR)
            else:
                self.attempt(transaction.transactional_id, attempt)

    # -- writing

    def append(
        self, transaction: Transaction, change: Change, done: Done, *, keeps_pending: bool = False
    ) -> None:
        """Append a change that is pending; `done(error code)` when it has happened, or has failed and is
        forgotten (unless `keeps_pending`)."""
        assert transaction.pending is change.state
        begins = change.state is State.ONGOING and transaction.state is not State.ONGOING
        decided_ms = self._coordinator.clock.monotonic_ms() if begins else 0

        def appended(code: int) -> None:
            if code:
                if not keeps_pending:
                    transaction.forget()
                logger.info(
                    "transaction %s could not become %s (%s)",
                    transaction.transactional_id, change.state.name, KafkaError(code),
                )  # fmt: skip
            else:
                transaction.complete(change)
                if begins:
                    transaction.began_ms = decided_ms
                if transaction.state is State.ONGOING:
                    self.ongoing[transaction.transactional_id] = transaction
                else:
                    self.ongoing.pop(transaction.transactional_id, None)
            done(code)
            self._settled(transaction)

        value = records.value_of(change, self._coordinator.transaction_version())
        self._append([(records.key_of(transaction.transactional_id), value)], change.timeout_ms, appended)

    def _append(self, entries: Sequence[tuple[bytes, bytes | None]], timeout_ms: int, appended: Done) -> None:
        """Append one batch. `appended(error code for a client)` once, NOT_COORDINATOR if the shard is closed
        meanwhile."""
        if self.closed:
            appended(errors.NOT_COORDINATOR)
            return
        timestamp_ms = self._coordinator.clock.now_ms()
        batch = build_batch([Record(key=key, value=value, timestamp=timestamp_ms) for key, value in entries])
        self._appends += 1
        number = self._appends
        self._waiting[number] = appended

        def stored(code: int, base_offset: int) -> None:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting(APPEND_ERRORS.get(code, code))

        self._coordinator.storage.append(self.index, batch, stored, timeout_ms)

    def append_complete(
        self, transaction: Transaction, change: Change, try_again: Callable[[], object]
    ) -> None:
        """All markers are written. `try_again()` if the log cannot take the end just now.

        Kafka tries again only after COORDINATOR_NOT_AVAILABLE, because after any other error this broker does
        not remain the coordinator. Here a full disk refuses appends until it has room, and the broker remains
        the coordinator. Nothing else would end the transaction before the partition is loaded again."""

        def completed(code: int) -> None:
            if code and not self.closed:
                try_again()

        if not self.closed:
            self.append(transaction, change, completed, keeps_pending=True)

    # -- expiry

    def expiry_steps(self, now_ms: int, retention_ms: int) -> Iterator[None]:
        """Forget ids that had no transaction for `retention_ms`, with tombstones."""
        room_max = self._coordinator.storage.batch_size_max(self.index) - BATCH_OVERHEAD
        room = room_max
        expired: list[tuple[bytes, Transaction]] = []
        for number, transaction in enumerate(list(self.transactions.values()), start=1):
            if transaction.has_expired(now_ms, retention_ms):
                key = records.key_of(transaction.transactional_id)
                size = len(key) + RECORD_OVERHEAD
                if expired and (room < size or len(expired) == TOMBSTONES_MAX):
                    self._append_tombstones(expired)
                    expired, room = [], room_max
                transaction.decide_expire()
                expired.append((key, transaction))
                room -= size
            if number % LOADED_AT_ONCE == 0:
                self._append_tombstones(expired)  # before the next turn, in which requests are decided
                expired, room = [], room_max
                yield
        self._append_tombstones(expired)

    def _append_tombstones(self, expired: Sequence[tuple[bytes, Transaction]]) -> None:
        if not expired:
            return

        def appended(code: int) -> None:
            for _, transaction in expired:
                transaction.forget()
                if not code and self.transactions.get(transaction.transactional_id) is transaction:
                    del self.transactions[transaction.transactional_id]
                self._settled(transaction)
            counts = self.index, len(expired)
            if code:
                logger.warning(
                    "__transaction_state-%d: %d expired ids are kept (%s)", *counts, KafkaError(code)
                )
            else:
                logger.info("__transaction_state-%d: %d transactional ids expired", *counts)

        self._append([(key, None) for key, _ in expired], self._coordinator.append_timeout_ms, appended)
