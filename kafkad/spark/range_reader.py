"""RangeReader: read the records of one partition from one offset to another, as Arrow record batches.

    for batch in RangeReader("host:9092", {}, "flights", 0, 1_000, 2_000): ...

It reads from the partition's leader with Fetches of `fetch_bytes`. When an answer has arrived, the headers of
its batches give the next offset, and the next Fetch is sent before the batches are decoded. So while Spark
takes batches, the broker reads and the kernel receives. Nothing beyond the range is requested, and near its
end only about as much as is missing.

Every offset of [start, end) is accounted for. It belongs to a record; or to none, because compaction, a
control batch or an aborted transaction has left a gap that the log shows; or it is lost, and that is always
reported. Data loss is defined as in Spark's own connector (KafkaDataConsumer): retention or DeleteRecords has
passed the position, the log was truncated below it, or the topic was deleted or recreated. With
`fail_on_data_loss`, this raises DataLoss. Otherwise it logs a warning, adds a row to `lost`, and continues
where the log does.

Temporary errors (the leader moves, a broker restarts) are retried with new metadata until nothing has arrived
for `timeout_s`; then FetchTimeout is raised. The time that the caller takes for a batch does not count. A log
that ends below the range is a temporary error, too, as in Spark: a new leader's high watermark may lag, and a
transaction may end.

Not checked: the epochs of KIP-320, which would detect a log that was truncated and has grown past the
position again.

Beware: it is for one pass and one thread. A reader that is abandoned closes its connections, because an
answer may still be in flight. A reader that reaches its end leaves them to the next one
(kafkad/spark/connections.py)."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafkad._native.values.record_columns import span
from kafkad.client.cluster import passes
from kafkad.client.connection import Connection, Unreachable
from kafkad.client.fetch import FetchAnswer, read_answer, send_fetch
from kafkad.client.offsets import EARLIEST, LATEST, list_offsets
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.spark.connections import Session, borrow, give_back
from kafkad.spark.record_columns import RecordColumns

READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"
LEVELS: Final = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

WAIT_MS: Final = 500  # how long a broker holds a Fetch without data
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0  # between tries
MISSING_TOPIC_S: Final = 15.0  # a topic denied for this time, or half of the timeout, counts as deleted
FETCH_BYTES_MIN: Final = 64 << 10
RECORD_BYTES_GUESS: Final = 1024  # until an answer has shown their size
BATCH_BYTES_MAX: Final = 1 << 30
LENGTH_OVERHEAD: Final = 12
MAGIC_AT: Final = 16
MISSING: Final = (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID)

log = logging.getLogger("kafkad.spark")


class DataLoss(Exception):
    """Records of the range are no longer in Kafka (Spark's KAFKA_DATA_LOSS)."""


class FetchTimeout(TimeoutError):
    """No data came for `timeout_s`."""


class Lost(NamedTuple):
    """Offsets [first, behind) that were given up, and the reason."""

    first: int
    behind: int
    reason: str


class SentFetch(NamedTuple):
    """A Fetch whose answer has not been read yet."""

    connection: Connection
    version: int
    offset: int


class RangeReader:
    """Iterate it once. Raises DataLoss, FetchTimeout, KafkaError for permanent errors (authorization),
    AuthenticationFailed, Malformed for damaged batches, ValueError for invalid options.

    client_config     Kafka's client options without the prefix `kafka.`: client.id, security.protocol,
                      sasl.*, ssl.*; others are ignored
    isolation         read_uncommitted or read_committed
    headers           with the column `headers`
    topic_id          the id for which the range was planned, if known: 16 bytes
    """

    def __init__(
        self,
        bootstrap: str,
        client_config: Mapping[str, str],
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        isolation: str = READ_UNCOMMITTED,
        headers: bool = False,
        verify_crc: bool = True,
        fetch_bytes: int = 8 << 20,
        batch_bytes: int = 1 << 20,
        timeout_s: float = 120.0,
        fail_on_data_loss: bool = True,
        topic_id: bytes | None = None,
    ) -> None:
        if isolation not in LEVELS:
            raise ValueError(f"isolation.level is {isolation!r}: one of {', '.join(LEVELS)} is wanted")
        self.bootstrap = bootstrap
        self.client_config = client_config
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.isolation = LEVELS[isolation]
        self.fetch_bytes = max(fetch_bytes, FETCH_BYTES_MIN)
        self.timeout_s = timeout_s
        self.fail_on_data_loss = fail_on_data_loss
        self.lost: list[Lost] = []
        self.columns = RecordColumns(
            topic,
            partition,
            start,
            end,
            headers=headers,
            batch_bytes=batch_bytes,
            verify_crc=verify_crc,
            read_committed=isolation == READ_COMMITTED,
        )
        self._topic_id = topic_id
        self._located = False
        self._patience = Patience(timeout_s)
        self._record_bytes = 0.0  # on the wire, recent average
        self._whole_bytes = 0  # what a broker must be allowed to send for its next batch to be whole
        self._missing_since: float | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def position(self) -> int:
        """The next offset that has not been read."""
        return self.columns.position

    def __iter__(self) -> Iterator[Any]:
        """Yield instances of pyarrow.RecordBatch, in the order of offsets."""
        import pyarrow as pa

        if self.start == self.end:
            return
        session = borrow(self.bootstrap, self.client_config, self.timeout_s)
        whole = False
        try:
            for batch in self._batches(session):
                yield pa.record_batch(batch)
            whole = True
        finally:
            if whole:
                give_back(session)
            else:
                session.cluster.close()
        if self.columns.clamped:
            log.warning(
                "%s-%d: %d timestamps do not fit into Spark's and became the nearest that do",
                self.topic,
                self.partition,
                self.columns.clamped,
            )

    # -- the loop ------------------------------------------------------------------------------------------

    def _batches(self, session: Session) -> Iterator[Any]:
        columns = self.columns
        flight: SentFetch | None = None
        self._patience.renew()
        while not columns.done:
            try:
                if flight is None:
                    flight = self._send(session, columns.position)
                answer = self._receive(session, flight)
            except (KafkaError, Unreachable) as trouble:
                flight = None
                self._wait_out(session, trouble)
                continue
            flight = None
            try:
                if not self._brings_batches(session, answer):
                    continue
            except (KafkaError, Unreachable) as trouble:
                self._wait_out(session, trouble)
                continue
            before = columns.position
            size, behind = span(answer.records)
            self._record_bytes = size / max(behind - before, 1)
            if before < behind < self.end:
                try:
                    flight = self._send(session, behind)
                except (KafkaError, Unreachable):
                    pass  # the data is good; the next turn asks again, and gets the error
            columns.feed(answer.records, answer.aborted)
            while (batch := columns.take()) is not None:
                yield batch
            if columns.position == before:
                raise Malformed(
                    f"{self.name}: batches that end before offset {before}, where they should begin"
                )
            self._patience.renew()
        columns.finish()
        while (batch := columns.take()) is not None:
            yield batch
        if flight is not None:  # a batch had more than its header said: that answer is not needed
            flight.connection.close()

    def _send(self, session: Session, offset: int) -> SentFetch:
        cluster = session.cluster
        if not self._located:
            self._locate(session)
        connection = cluster.leader(self.topic, self.partition)
        version = send_fetch(
            connection,
            self.topic,
            self._topic_id,
            self.partition,
            offset,
            max_bytes=self._bytes_wanted(offset),
            max_wait_ms=WAIT_MS,
            isolation=self.isolation,
        )
        return SentFetch(connection, version, offset)

    def _receive(self, session: Session, flight: SentFetch) -> FetchAnswer:
        session.buffer, frame = flight.connection.receive_into(session.buffer)
        try:
            return read_answer(frame, flight.version)
        except Malformed as trouble:
            flight.connection.close()
            raise Unreachable(f"{flight.connection.address}: {trouble}") from None

    def _bytes_wanted(self, offset: int) -> int:
        """Return an estimate of the missing bytes, and a bit more."""
        missing = (self.end - offset) * (self._record_bytes or RECORD_BYTES_GUESS) * 1.125 + FETCH_BYTES_MIN
        return max(int(min(missing, self.fetch_bytes)), self._whole_bytes)

    def _locate(self, session: Session) -> None:
        """Find the partition's leader, and check that the topic is still the same."""
        found = session.topic_id(self.topic)
        if self._topic_id is not None and found is not None and found != self._topic_id:
            self._lose(
                self.columns.position,
                self.columns.position,
                "the topic was deleted, and one of the same name was created; its offsets are others",
            )
        self._topic_id = found
        self._located = True

    # -- errors in an answer -------------------------------------------------------------------------------

    def _brings_batches(self, session: Session, answer: FetchAnswer) -> bool:
        """Return whether it has a whole batch. Raises KafkaError for a refusal; handles loss."""
        position = self.columns.position
        if answer.error_code == errors.OFFSET_OUT_OF_RANGE:
            self._out_of_range(session)
            return False
        if answer.error_code:
            raise KafkaError(answer.error_code, self.name)
        self._missing_since = None
        records = answer.records
        if len(records) == 0:
            self._nothing_yet(answer)
            return False
        if span(records)[0] == 0:
            self._make_room(records)
            return False
        first = int.from_bytes(records[:8], "big", signed=True)
        if answer.log_start_offset > position and first > position and records[MAGIC_AT] == 2:
            # the broker found the position, but the data was deleted before it read it
            self._lose(position, min(answer.log_start_offset, self.end), "it was deleted meanwhile")
            self.columns.skip_to(answer.log_start_offset)
        return True

    def _nothing_yet(self, answer: FetchAnswer) -> None:
        """The log ends at the position, for now: the high watermark may have gone back with a new leader, a
        transaction may be open, or the log was cut."""
        ends = answer.high_watermark
        if self.isolation and 0 <= answer.last_stable_offset < ends:
            reason = f"a transaction that began at {answer.last_stable_offset} has not ended"
        else:
            reason = f"the log ends at offset {ends}"
        self._patience.check(self._timed_out(reason))

    def _make_room(self, records: memoryview) -> None:
        """The first batch is truncated: a broker older than KIP-74 does that to a batch larger than the
        limit."""
        size = LENGTH_OVERHEAD
        if len(records) >= LENGTH_OVERHEAD:
            size += int.from_bytes(records[8:12], "big", signed=True)
            if not LENGTH_OVERHEAD < size <= BATCH_BYTES_MAX:
                raise Malformed(f"{self.name}: no batch at offset {self.columns.position}: {size} bytes")
        if size > self._whole_bytes:
            self._whole_bytes = size
        else:
            self._patience.wait(
                self._timed_out(f"the broker sends {len(records)} bytes of a batch of {size}")
            )

    def _out_of_range(self, session: Session) -> None:
        """The log does not have the position: decide as KafkaDataConsumer does."""
        position = self.columns.position
        at = {self.partition: EARLIEST}
        earliest = list_offsets(session.cluster, self.topic, at)[self.partition]
        at = {self.partition: LATEST}
        latest = list_offsets(session.cluster, self.topic, at, self.isolation)[self.partition]
        holds = f"the log holds offsets {earliest} to {latest} (exclusive)"
        if position >= latest or earliest >= self.end:
            self._lose(position, self.end, holds)
            self.columns.skip_to(self.end)
        elif position < earliest:
            self._lose(position, earliest, holds)
            self.columns.skip_to(earliest)
        else:  # it was gone and is there again: the log was created again
            self._lose(position, position, f"{holds}, and did not a moment ago")
            self._patience.wait(self._timed_out(holds))

    def _lose(self, first: int, behind: int, reason: str) -> None:
        """Raise DataLoss, or log a warning."""
        upto = self.end if self.fail_on_data_loss or behind == first else behind
        told = f"Could not read records in offset [{first}, {upto}) for topic partition {self.name}: {reason}"
        if self.fail_on_data_loss:
            raise DataLoss(
                f"[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] {told}. Retention may have deleted them, or "
                "somebody the topic. With the option failOnDataLoss=false they are skipped, with a warning."
            )
        self.lost.append(Lost(first, behind, reason))
        log.warning("%s; failOnDataLoss is false, so reading goes on without them", told)

    # -- temporary errors ----------------------------------------------------------------------------------

    def _wait_out(self, session: Session, trouble: KafkaError | Unreachable) -> None:
        """Return when it is time for another try. Raises permanent errors, and any error after the
        timeout."""
        if not passes(trouble):
            raise trouble
        session.cluster.forget()
        self._located = False
        if isinstance(trouble, KafkaError) and trouble.code in MISSING:
            now = time.monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since >= min(self.timeout_s / 2, MISSING_TOPIC_S):
                self._lose(self.columns.position, self.end, "the partition does not exist (any more)")
                self.columns.skip_to(self.end)
                return
        self._patience.wait(self._timed_out(str(trouble)))

    def _timed_out(self, reason: str) -> str:
        return (
            f"Cannot fetch record for offset {self.columns.position} in {self.timeout_s * 1000:.0f} "
            f"milliseconds ({self.name}: {reason})"
        )


class Patience:
    """How long to continue trying when no data comes."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.renew()

    def renew(self) -> None:
        """Data came: restart the timeout, and retry the next error at once."""
        self._deadline = time.monotonic() + self.timeout_s
        self._pause_s = 0.0

    def check(self, message: str) -> None:
        """Raise FetchTimeout with `message` after the timeout."""
        if time.monotonic() >= self._deadline:
            raise FetchTimeout(message)

    def wait(self, message: str) -> None:
        """Check; then sleep, longer each time, and not at all the first time."""
        self.check(message)
        time.sleep(min(self._pause_s, max(self._deadline - time.monotonic(), 0)))
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
