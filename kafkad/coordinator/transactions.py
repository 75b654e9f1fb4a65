"""The transaction coordinator: the transactional ids of this broker, and the operations for the API handlers.

Java's hash of an id selects its partition of `__transaction_state`. Each partition that is led here has a
`TransactionShard`, loaded by replaying the partition. Requests for other ids get NOT_COORDINATOR, and
requests for a shard that is still loading get COORDINATOR_LOAD_IN_PROGRESS.

A transaction that exceeds its time-out is fenced and aborted. An id without a transaction for
transactional.id.expiration.ms is forgotten.

Source: Kafka 4.3's TransactionCoordinator and TransactionStateManager."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.markers import Markers, Transport
from kafkad.coordinator.ports import Appended, Clock, Scheduler
from kafkad.coordinator.runtime import partition_of
from kafkad.coordinator.slices import Slices, until_closed
from kafkad.coordinator.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    STATE_NAMES,
    STATES_BY_NAME,
    Change,
    NewProducerId,
    State,
    TopicPartition,
    Transaction,
    bumps_epoch,
)
from kafkad.coordinator.transaction_shard import Attempt, Done, TransactionShard
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError, Malformed

logger = logging.getLogger(__name__)

AT_ONCE = 200  # ids that are listed between two looks at the clock

NOBODY = (NO_PRODUCER_ID, NO_EPOCH)

ProducerReply = Callable[[int, int, int], object]  # error code, producer id, epoch


class TransactionStorage(Protocol):
    """`__transaction_state`, as the coordinator sees it."""

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while there is none."""

    def leader_epoch(self, partition: int) -> int: ...

    def batch_size_max(self, partition: int) -> int:
        """In bytes; `append` refuses a larger batch with MESSAGE_TOO_LARGE."""

    def lead(self, partition: int, epoch: int) -> None:
        """From now on, appends of another leader epoch are refused."""

    def append(self, partition: int, batch: bytearray, callback: Appended, timeout_ms: int) -> None:
        """Append one batch. `callback(error code, base offset)` when it is as durable as acks=all makes it,
        or has failed or timed out; possibly before this returns. Only the first call counts: after a time-out
        there may be a second one, with the outcome."""


class TransactionCoordinator:
    """What the API handlers call. Methods that may wait take `reply` or `done`, which is called exactly once.

    config: the broker's. new_producer_id: a producer id at once, or KafkaError. transaction_version: the
    finalized level of the feature."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        scheduler: Scheduler,
        storage: TransactionStorage,
        transport: Transport,
        new_producer_id: NewProducerId,
        transaction_version: Callable[[], int],
    ) -> None:
        self.config = config
        self.clock = clock
        self.scheduler = scheduler
        self.storage = storage
        self.markers = Markers(scheduler, transport)
        self.new_producer_id = new_producer_id
        self.transaction_version = transaction_version
        self.shards: dict[int, TransactionShard] = {}
        self._slices = Slices(clock, scheduler)
        self._unloads = Slices(clock, scheduler)
        self._closed = False

    @property
    def append_timeout_ms(self) -> int:
        return int(self.config.request_timeout_ms)

    def partition_for(self, transactional_id: str) -> int:
        count = self.storage.partition_count() or self.config.transaction_state_log_num_partitions
        return partition_of(transactional_id, count)

    def start_timers(self) -> None:
        """Look for transactions that timed out, and ids that expired, from now on."""
        config = self.config
        for interval_ms, work in (
            (config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out),
            (config.transaction_remove_expired_transaction_cleanup_interval_ms, self.expire),
        ):
            self._repeat(interval_ms, work)

    def _repeat(self, interval_ms: int, work: Callable[[], object]) -> None:
        def again() -> None:
            if self._closed:
                return
            try:
                work()
            except AssertionError:
                raise
            except Exception:  # of one transaction; the others must not wait for ever
                logger.exception("a look at the transactions failed, the next is in %d ms", interval_ms)
            self._repeat(interval_ms, work)

        self.scheduler.call_later(interval_ms, again)

    # -- which partitions are here

    def begin_load(self, partition: int) -> TransactionShard:
        """From now on its ids are answered COORDINATOR_LOAD_IN_PROGRESS. Feed `replay` of the shard, in any
        thread, then call `end_load`; `unload` cancels it at any time."""
        self.unload(partition)
        shard = TransactionShard(self, partition, self.storage.leader_epoch(partition))
        self.shards[partition] = shard
        return shard

    def end_load(self, shard: TransactionShard, done: Callable[[], object] | None = None) -> None:
        """All of the partition was fed: serve it. One that does not parse is not served. `done()` in each
        case, also when it is unloaded meanwhile."""
        self._slices.run(until_closed(shard, shard.load_steps(), partial(self.refuse_load, shard), done))

    def refuse_load(self, shard: TransactionShard, why: Exception) -> None:
        logger.error(
            "__transaction_state-%d cannot be loaded, its transactional ids are not served: %s",
            shard.index,
            why,
            exc_info=None if isinstance(why, Malformed) else why,
        )
        if self.shards.get(shard.index) is shard:
            self.unload(shard.index)

    def load(self, partition: int, batches: Iterable[Any]) -> None:
        """Load a whole partition at once, given as buffers of whole batches. Raises Malformed, and then does
        not serve it."""
        shard = self.begin_load(partition)
        try:
            for buffer in batches:
                shard.replay.feed(buffer)
            for _ in shard.load_steps():
                pass
        except Malformed as lie:
            self.refuse_load(shard, lie)
            raise

    def run(
        self, shard: TransactionShard, steps: Iterator[None], done: Callable[[], object] | None = None
    ) -> None:
        """Do a shard's work in slices, until it is done or the shard is unloaded."""
        self._slices.run(until_closed(shard, steps, partial(self._failed, shard), done))

    def lead(self, partition: int, epoch: int) -> None:
        """The partition is led here in this leader epoch; what is loaded stays. Markers carry the epoch, and
        appends of another one are refused."""
        self.storage.lead(partition, epoch)
        shard = self.shards.get(partition)
        if shard is not None:
            shard.epoch = epoch

    def _failed(self, shard: TransactionShard, trouble: Exception) -> None:
        """Log that a piece of work was not finished. The partition is served all the same: expiry, for one,
        tries again later."""
        logger.error("__transaction_state-%d: work in the background failed", shard.index, exc_info=trouble)

    def unload(self, partition: int) -> None:
        """Its ids are not coordinated here any more. Who waits is told so; memory is given back in slices."""
        shard = self.shards.pop(partition, None)
        if shard is not None:
            self._unloads.run(shard.close())

    def close(self) -> None:
        self._closed = True
        self._slices.close()
        for partition in list(self.shards):
            self.unload(partition)
        self.markers.close()
        self._unloads.close()

    def _shard(self, transactional_id: str) -> TransactionShard:
        if self._closed:
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            raise KafkaError(errors.INVALID_REQUEST)
        shard = self.shards.get(self.partition_for(transactional_id))
        if shard is None:
            raise KafkaError(errors.NOT_COORDINATOR)
        if shard.loading:
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _find(self, transactional_id: str) -> Transaction:
        found = self._shard(transactional_id).transactions.get(transactional_id)
        if found is None:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING)
        return found

    def _attempt(
        self,
        transactional_id: str,
        act: Callable[[TransactionShard, Attempt], object],
        refuse: Done,
        *,
        waits: bool = True,
    ) -> None:
        try:
            shard = self._shard(transactional_id)
        except KafkaError as refused:
            refuse(refused.code)
            return
        patience_ms = self.config.add_partitions_to_txn_retry_backoff_max_ms if waits else 0
        deadline_ms = self.clock.monotonic_ms() + patience_ms
        shard.attempt(transactional_id, Attempt(act, refuse, deadline_ms))

    # -- InitProducerId

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        reply: ProducerReply,
    ) -> None:
        """reply(error code, producer id, epoch). expected: producer id and epoch to go on from (KIP-360).

        An open transaction is aborted first. Kafka answers CONCURRENT_TRANSACTIONS then, and the client asks
        again; here the request goes on once the abort is complete, if that is soon."""

        def refuse(code: int) -> None:
            reply(code, *NOBODY)

        def act(shard: TransactionShard, attempt: Attempt) -> None:
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                transaction = Transaction(
                    transactional_id, self.new_producer_id(), timeout_ms, self.clock.now_ms()
                )
                shard.transactions[transactional_id] = transaction
            if attempt.fenced and transaction.state is State.ONGOING:
                attempt.refuse(errors.CONCURRENT_TRANSACTIONS)  # another one began meanwhile
                return
            change = transaction.decide_init(timeout_ms, expected, self.new_producer_id, self.clock.now_ms())
            if change.state is State.PREPARE_EPOCH_FENCE:
                attempt.fenced = True
                self._abort(shard, transaction, change, lambda code, *_: aborting(code, shard, attempt))
                return

            def done(code: int) -> None:
                if code:
                    refuse(code)
                    return
                logger.info(
                    "transactional id %s has producer id %d and epoch %d",
                    transactional_id, change.producer_id, change.producer_epoch,
                )  # fmt: skip
                reply(errors.NONE, change.producer_id, change.producer_epoch)

            shard.append(transaction, change, done)

        def aborting(code: int, shard: TransactionShard, attempt: Attempt) -> None:
            if code:
                attempt.refuse(code)
            else:
                shard.park_or_refuse(transactional_id, attempt)

        if not transactional_id:
            refuse(errors.INVALID_REQUEST)
        elif not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            refuse(errors.INVALID_TRANSACTION_TIMEOUT)
        else:
            self._attempt(transactional_id, act, refuse)

    # -- partitions of a transaction

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int,
        done: Done,
        *,
        waits: bool = True,
    ) -> None:
        """done(error code). Begins a transaction, if none is open. client_version: 2 for Produce v12,
        TxnOffsetCommit v5 and AddPartitionsToTxn v4, else 0. `waits`: while the transaction settles."""
        added = frozenset(partitions)

        def act(shard: TransactionShard, attempt: Attempt) -> None:
            transaction = self._find(transactional_id)
            change = transaction.decide_add(producer_id, epoch, added, client_version, self.clock.now_ms())
            if change is None:
                done(errors.NONE)
            else:
                shard.append(transaction, change, done)

        self._attempt(transactional_id, act, done, waits=waits)

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        reply: Callable[[dict[TopicPartition, int]], object],
        *,
        waits: bool = True,
    ) -> None:
        """reply({partition: error code}): whether each is in the open transaction. `waits`: while the
        transaction settles."""

        def act(shard: TransactionShard, attempt: Attempt) -> None:
            reply(self._find(transactional_id).verify(producer_id, epoch, partitions))

        self._attempt(transactional_id, act, lambda code: reply(dict.fromkeys(partitions, code)), waits=waits)

    # -- ends of transactions

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        version: int,
        reply: ProducerReply,
    ) -> None:
        """reply(error code, producer id, epoch) as soon as the decision is durable. version: 2 from EndTxn v5
        on, whose answer carries what the next transaction is to use; else 0."""

        def refuse(code: int) -> None:
            reply(code, *NOBODY)

        def act(shard: TransactionShard, attempt: Attempt) -> None:
            transaction = self._find(transactional_id)
            self._end(shard, transaction, producer_id, epoch, commit, version, reply)

        self._attempt(transactional_id, act, refuse)

    def _abort(
        self, shard: TransactionShard, transaction: Transaction, fence: Change, reply: ProducerReply
    ) -> None:
        """End a transaction on the broker's own account, after `decide_fence`."""
        version = self.transaction_version()
        who = fence.producer_id, fence.producer_epoch
        self._end(shard, transaction, *who, False, version, reply, from_client=False)

    def _end(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        producer_id: int,
        epoch: int,
        commit: bool,
        version: int,
        reply: ProducerReply,
        *,
        from_client: bool = True,
    ) -> None:
        """Raises KafkaError if the end is refused."""
        is_fence = transaction.pending is State.PREPARE_EPOCH_FENCE
        change = transaction.decide_end(
            producer_id,
            epoch,
            commit=commit,
            version=version,
            from_client=from_client,
            new_producer_id=self.new_producer_id,
            now_ms=self.clock.now_ms(),
        )
        tells = bumps_epoch(version)
        if change is None:
            told = (transaction.producer_id, transaction.producer_epoch) if tells else NOBODY
            reply(errors.NONE, *told)
            return

        def done(code: int) -> None:
            if code:
                # Version 1 has raised the epoch in memory: the next fence does not raise it again.
                transaction.has_failed_fence = transaction.has_failed_fence or (is_fence and not tells)
                reply(code, *NOBODY)
                return
            complete = transaction.decide_complete(self.clock.now_ms())
            reply(errors.NONE, *((complete.producer_id, complete.producer_epoch) if tells else NOBODY))
            self.markers.send(shard, transaction, complete)

        shard.append(transaction, change, done)

    # -- time

    def abort_timed_out(self) -> None:
        """Fence and abort transactions that were open for longer than their time-out."""
        now_ms = self.clock.monotonic_ms()
        for shard in list(self.shards.values()):
            for transaction in [] if shard.loading else list(shard.ongoing.values()):
                if not shard.closed and transaction.has_timed_out(now_ms):
                    self._abort_timed_out(shard, transaction)

    def _abort_timed_out(self, shard: TransactionShard, transaction: Transaction) -> None:
        def done(code: int, *_: int) -> None:
            if code:
                logger.warning(
                    "transaction %s timed out, but cannot be aborted now (%s)", name, KafkaError(code)
                )
            else:
                logger.info("transaction %s is aborted: it timed out", name)

        name = transaction.transactional_id
        try:
            self._abort(shard, transaction, transaction.decide_fence(), done)
        except KafkaError as refused:
            done(refused.code)

    def expire(self) -> None:
        """Forget ids that had no transaction for transactional.id.expiration.ms; in slices."""
        now_ms, retention_ms = self.clock.now_ms(), self.config.transactional_id_expiration_ms
        for shard in list(self.shards.values()):
            if not shard.loading:
                self.run(shard, shard.expiry_steps(now_ms, retention_ms))

    # -- administration

    def describe(self, transactional_id: str) -> Any:
        """A DescribeTransactionsResponse.TransactionStates."""
        answer = messages.DescribeTransactionsResponse.TransactionStates(transactional_id=transactional_id)
        try:
            found = self._shard(transactional_id).transactions.get(transactional_id)
        except KafkaError as refused:
            answer.error_code = refused.code
            return answer
        if found is None:
            answer.error_code = errors.TRANSACTIONAL_ID_NOT_FOUND
            return answer
        answer.transaction_state = STATE_NAMES[found.state]
        answer.transaction_timeout_ms = found.timeout_ms
        answer.transaction_start_time_ms = found.start_ms
        answer.producer_id, answer.producer_epoch = found.producer_id, found.producer_epoch
        topics: dict[str, Any] = {}
        for topic, index in sorted(found.partitions):
            if topic not in topics:
                topics[topic] = messages.DescribeTransactionsResponse.TransactionStates.Topics(topic=topic)
            topics[topic].partitions.append(index)
        answer.topics = list(topics.values())
        return answer

    def list(
        self,
        states: Sequence[str],
        producer_ids: Sequence[int],
        duration_ms: int = -1,
        matches: Callable[[str], object] | None = None,
    ) -> Generator[None, None, Any]:
        """A ListTransactionsResponse of the ids that pass all filters; an empty filter passes all. In steps.

        duration_ms: only transactions that have been open for longer; an id without one passes, as in
        Kafka, since its start is -1. matches: of transactional ids."""
        response = messages.ListTransactionsResponse()
        if self._closed:
            response.error_code = errors.COORDINATOR_NOT_AVAILABLE
            return response
        if any(shard.loading for shard in self.shards.values()):
            response.error_code = errors.COORDINATOR_LOAD_IN_PROGRESS
            return response
        wanted_states = set()
        for number, name in enumerate(states, 1):
            if name in STATES_BY_NAME:
                wanted_states.add(STATES_BY_NAME[name])
            else:
                response.unknown_state_filters.append(name)
            if number % AT_ONCE == 0:
                yield
        wanted_ids = yield from wide.set_of(producer_ids)
        now_ms = self.clock.now_ms()
        for shard in list(self.shards.values()):
            for number, each in enumerate(list(shard.transactions.values())):
                if number % AT_ONCE == 0:
                    yield
                if (
                    (wanted_ids and each.producer_id not in wanted_ids)
                    or (states and each.state not in wanted_states)
                    or (duration_ms >= 0 and now_ms - each.start_ms <= duration_ms)
                    or (matches is not None and not matches(each.transactional_id))
                ):
                    continue
                response.transaction_states.append(
                    messages.ListTransactionsResponse.TransactionStates(
                        transactional_id=each.transactional_id,
                        producer_id=each.producer_id,
                        transaction_state=STATE_NAMES[each.state],
                    )
                )
        yield from wide.empty(wanted_ids)
        return response
