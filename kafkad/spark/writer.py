"""Write to Kafka from Spark: Arrow columns in, idempotent Produce requests out.

    value      string or binary, required; null is a tombstone
    key        string or binary
    headers    array<struct<key: string, value: binary>>
    topic      string, required unless the option `topic` is given, which overrides it
    partition  int

Other columns are ignored, as in Spark's own sink. A task encodes its record batches natively
(`_native/wire/record_encode`) and compresses them while the previous ones are in flight.
`kafkad.client.producer` sends them with acks=all and the task's own producer id, so retries (after a broker
was killed and restarted) write nothing twice.

    RecordWriter(config).write(batch) … .close()       a RecordBatch with these columns, to one topic or many
    TopicWriter(...).append(value, key, …) … .flush()   columns, to one topic: dead letters, benchmarks

A streaming query writes each row once: the rows of a task are one transaction (client/batch_transaction),
named by spark/exactly_once. A batch job with a `jobId` does the same.

Beware: otherwise rows are written at least once. If Spark repeats a failed task, or runs a task twice
(speculation), the rows are written again, with another producer id."""

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from kafkad._native.wire.record_encode import NoSuchPartition, RecordEncoder
from kafkad.client.batch_transaction import BatchTransaction
from kafkad.client.cluster import Cluster
from kafkad.client.connection import Unreachable
from kafkad.client.producer import EncodedBatch, Producer
from kafkad.client.security import Security
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import KafkaError
from kafkad.spark.exactly_once import Task, task_of

BATCH_BYTES = 512 << 10  # kafka.batch.size: for bulk writes; Java's 16 KB suit single records
REQUEST_BYTES = 4 << 20  # kafka.max.request.size
HAND_OVER_BYTES = 8 << 20  # encoded while the previous ones are being sent
TRANSACTION_TIMEOUT_MS = 600_000  # kafka.transaction.timeout.ms: no task may take longer
ROWS_OF_A_BATCH = 10_000  # if rows come one by one (PySpark 4.0's streaming sink)


class WriteRefused(ValueError):
    """The columns or options are refused; the message is one sentence."""


class WriteFailed(Exception):
    """Records could not be delivered; the message is one sentence."""


# -- options -----------------------------------------------------------------------------------------------

# options other than kafka.*; Spark adds some of its own
OPTIONS = (
    "topic", "includeHeaders", "checkpointLocation", "queryName", "path", "outputMode",
    "exactlyOnce", "jobId",
)  # fmt: skip

EXACTLY_ONCE = {"auto": None, "true": True, "false": False}

# kafka.* options without an effect, because a task sends each batch as soon as it is full
WITHOUT_EFFECT = (
    "buffer.memory", "linger.ms", "max.in.flight.requests.per.connection", "send.buffer.bytes",
    "receive.buffer.bytes", "connections.max.idle.ms", "metadata.max.age.ms", "metadata.max.idle.ms",
    "retries", "retry.backoff.ms", "retry.backoff.max.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "auto.include.jmx.reporter", "client.dns.lookup", "client.rack", "enable.metrics.push", "group.id",
    "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
    "socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
)  # fmt: skip

SECURITY = ("security.", "sasl.", "ssl.")

REFUSED = {
    "key.serializer": "keys are written as the bytes of the column 'key'",
    "value.serializer": "values are written as the bytes of the column 'value'",
    "transactional.id": "each task has one of its own, kafkad.<query>.<task>",
    "interceptor.classes": "there is no Java here",
    "partitioner.class": "records go where Kafka's partitioner or the column 'partition' puts them",
}

READ = (
    "bootstrap.servers", "acks", "enable.idempotence", "batch.size", "max.request.size", "compression.type",
    "compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "client.id",
    "delivery.timeout.ms", "request.timeout.ms", "max.block.ms", "partitioner.ignore.keys",
    "transaction.timeout.ms",
)  # fmt: skip


@dataclass(frozen=True)
class WriterConfig:
    """The parsed options; picklable."""

    bootstrap: str
    topic: str | None = None
    acks: int = -1
    idempotent: bool = True
    compression: int = codecs.NONE
    compression_level: int | None = None
    batch_bytes: int = BATCH_BYTES
    request_bytes: int = REQUEST_BYTES
    client_id: str = "kafkad-spark-writer"
    delivery_seconds: float = 120.0
    request_seconds: float = 30.0
    block_seconds: float = 60.0
    security: dict[str, str] = field(default_factory=dict)  # security.protocol, sasl.*, ssl.*
    exactly_once: bool | None = None  # None: if Spark tells a task its query and batch
    job: str | None = None  # jobId
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "WriterConfig":
        """Parse the options of a DataFrameWriter, whose names are case-insensitive. Raises WriteRefused."""
        given = {name.lower(): str(value) for name, value in options.items()}
        kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
        check_names(given, kafka)
        security = {name: value for name, value in kafka.items() if name.startswith(SECURITY)}
        try:
            Security.of(security)
        except ValueError as wrong:
            raise WriteRefused(f"kafka.{wrong}") from None
        if not kafka.get("bootstrap.servers"):
            raise WriteRefused("the option kafka.bootstrap.servers is missing: where are the brokers?")
        acks = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(kafka.get("acks", "all").lower())
        if acks is None:
            raise WriteRefused(f"kafka.acks is all, 1 or 0, not {kafka['acks']!r}")
        idempotent = boolean("enable.idempotence", kafka, acks == -1)
        if idempotent and acks != -1:
            raise WriteRefused("kafka.enable.idempotence=true asks for kafka.acks=all")
        wanted = given.get("exactlyonce", "auto").lower()
        if wanted not in EXACTLY_ONCE:
            raise WriteRefused(f"exactlyOnce is auto, true or false, not {given['exactlyonce']!r}")
        exactly_once = EXACTLY_ONCE[wanted]
        if exactly_once and not idempotent:
            raise WriteRefused("exactlyOnce=true asks for kafka.acks=all and kafka.enable.idempotence=true")
        codec = kafka.get("compression.type", "none").lower()
        if codec not in codecs.NAMES:
            raise WriteRefused(f"kafka.compression.type is one of {', '.join(codecs.NAMES)}, not {codec!r}")
        if boolean("partitioner.ignore.keys", kafka, False):
            raise WriteRefused(
                "kafka.partitioner.ignore.keys is not supported: records go where their keys say"
            )
        level = f"compression.{codec}.level"
        return cls(
            bootstrap=kafka["bootstrap.servers"],
            topic=given.get("topic"),
            acks=acks,
            idempotent=idempotent,
            compression=codecs.NAMES.index(codec),
            compression_level=integer(level, kafka, 0, -7) if level in kafka else None,
            batch_bytes=max(1, integer("batch.size", kafka, BATCH_BYTES, 0)),
            request_bytes=integer("max.request.size", kafka, REQUEST_BYTES, 1),
            client_id=kafka.get("client.id", "kafkad-spark-writer"),
            delivery_seconds=integer("delivery.timeout.ms", kafka, 120_000, 0) / 1000,
            request_seconds=max(1, integer("request.timeout.ms", kafka, 30_000, 0)) / 1000,
            block_seconds=integer("max.block.ms", kafka, 60_000, 0) / 1000,
            exactly_once=exactly_once if idempotent else False,
            job=given.get("jobid"),
            transaction_timeout_ms=integer("transaction.timeout.ms", kafka, TRANSACTION_TIMEOUT_MS, 1),
            security={
                name: value
                for name, value in kafka.items()
                if name.startswith(("security.", "sasl.", "ssl."))
            },
        )

    def cluster(self) -> Cluster:
        return Cluster(
            self.bootstrap,
            self.client_id,
            self.request_seconds,
            self.block_seconds,
            security=Security.of(self.security),
        )


def check_names(given: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        if not name.startswith("kafka.") and name not in known:
            raise WriteRefused(f"there is no option {name!r} for writing{nearest(name, known)}")
    for name in kafka:
        if name in REFUSED:
            raise WriteRefused(f"kafka.{name} is not to be set: {REFUSED[name]}")
        if name not in READ + WITHOUT_EFFECT and not name.startswith(SECURITY):
            raise WriteRefused(
                f"Kafka's producer has no configuration {name!r}{nearest(name, READ + WITHOUT_EFFECT)}"
            )


def nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def integer(name: str, kafka: Mapping[str, str], default: int, lowest: int) -> int:
    try:
        number = int(kafka.get(name, default))
    except ValueError:
        raise WriteRefused(f"kafka.{name} is a whole number, not {kafka[name]!r}") from None
    if number < lowest:
        raise WriteRefused(f"kafka.{name} is at least {lowest}, not {number}")
    return number


def boolean(name: str, kafka: Mapping[str, str], default: bool) -> bool:
    text = kafka.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise WriteRefused(f"kafka.{name} is true or false, not {kafka[name]!r}")
    return text == "true"


# -- columns -----------------------------------------------------------------------------------------------

TEXT = (StringType, BinaryType)
TYPES: dict[str, str] = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise WriteRefused for columns that Spark's own sink refuses, too."""
    types = {each.name: each.dataType for each in schema.fields}
    if "value" not in types:
        raise WriteRefused("the data has no column 'value', which is required (string or binary)")
    if topic is None and "topic" not in types:
        raise WriteRefused("the data has no column 'topic', and there is no option 'topic': where to write?")
    for name, wanted in TYPES.items():
        if name in types and not (name == "topic" and topic is not None) and not fits(name, types[name]):
            raise WriteRefused(f"the column {name!r} is {types[name].simpleString()}; it must be {wanted}")


def fits(name: str, given: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(given, TEXT)
    if name == "topic":
        return isinstance(given, StringType)
    if name == "partition":
        return isinstance(given, IntegerType)
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [each.name for each in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


# -- writing -----------------------------------------------------------------------------------------------


class TopicWriter:
    """Writes Arrow columns to one topic. `append` encodes while earlier records are sent; all records are
    delivered when `flush` returns. Raises WriteFailed, WriteRefused."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        config: WriterConfig,
        sender: ThreadPoolExecutor,
        transaction: BatchTransaction | None = None,
    ) -> None:
        self.topic = topic
        self._transaction = transaction
        self.config = config
        self.written = 0  # acknowledged records
        self._sender = sender  # runs the only thread that uses the cluster
        self._under_way: Future[None] | None = None
        self._producer = self._in_sender(lambda: self._open(cluster)).result()
        count = len(self._producer.partitions)
        self._encoder = RecordEncoder(count, config.batch_bytes, time.monotonic_ns() // 1000 % count)

    def append(
        self, value: Any, key: Any = None, headers: Any = None, partition: Any = None, timestamp: Any = None
    ) -> None:
        """Append arrays of equal length: strings or binaries; list<struct<key, value>>; int32; microseconds
        (null or not given: now)."""
        now_ms, at, rows = time.time_ns() // 1_000_000, 0, len(value)
        while at < rows:
            try:
                at = self._encoder.append(
                    now_ms, value, key, headers, partition, timestamp, start=at, enough_bytes=HAND_OVER_BYTES
                )
            except NoSuchPartition as wrong:
                count = self._encoder.partitions
                raise WriteFailed(
                    f"a record is for partition {wrong.partition} of {self.topic!r}, which has {count}"
                    f" partition{'s' * (count > 1)} (0 to {count - 1})"
                ) from None
            except ValueError as wrong:
                raise WriteFailed(f"a record for {self.topic!r} cannot be encoded: {wrong}") from None
            if self._encoder.finished_bytes >= HAND_OVER_BYTES:
                self._hand_over()

    def flush(self) -> None:
        self._encoder.close()
        self._hand_over()
        self._wait()

    def _hand_over(self) -> None:
        batches = [EncodedBatch(encoded) for encoded in self._encoder.take()]
        for batch in batches:
            batch.compress(self.config.compression, self.config.compression_level)
        self._wait()
        if batches:
            self._under_way = self._in_sender(lambda: self._send(batches))

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _in_sender(self, job: Any) -> Future[Any]:
        def told() -> Any:
            try:
                return job()
            except (KafkaError, Unreachable) as trouble:
                raise WriteFailed(f"records for {self.topic!r} were not delivered: {trouble}") from trouble

        return self._sender.submit(told)

    def _open(self, cluster: Cluster) -> Producer:
        deadline = time.monotonic() + self.config.block_seconds
        while True:
            try:
                how: dict[str, Any] = {
                    "acks": self.config.acks,
                    "compression": self.config.compression,
                    "compression_level": self.config.compression_level,
                    "idempotent": self.config.idempotent,
                    "batch_bytes": self.config.batch_bytes,
                    "request_bytes": self.config.request_bytes,
                    "delivery_seconds": self.config.delivery_seconds,
                }
                if self._transaction is not None:
                    return self._transaction.transactions.producer(self.topic, **how)
                return Producer(cluster, self.topic, **how)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise

    def _send(self, batches: list[EncodedBatch]) -> None:
        self._producer.send_batches(batches)
        self.written += sum(batch.count for batch in batches)


class RecordWriter:
    """Writes record batches to the topics that they name, or to the topic of the option. A context manager:
    if it ends without an exception, everything is delivered and committed.

    `task`: write in its transaction. `is_done`, after the first rows: an earlier try has written them, and
    they are only counted: if there were others, rows would be lost or there twice."""

    def __init__(self, config: WriterConfig, task: Task | None = None) -> None:
        self.config = config
        self.task = task
        self._transaction: BatchTransaction | None = None
        self._cluster = config.cluster()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="kafkad-sender")
        self._topics: dict[str, TopicWriter] = {}
        self._given = 0  # rows

    def topic(self, name: str) -> TopicWriter:
        if name not in self._topics:
            self._topics[name] = TopicWriter(
                self._cluster, name, self.config, self._sender, self._transaction
            )
        return self._topics[name]

    @property
    def is_done(self) -> bool:
        """Whether an earlier try of the task has committed its rows."""
        return self._transaction is not None and self._transaction.is_done

    def _begin(self) -> None:
        task, config = self.task, self.config
        if task is None or self._transaction is not None:
            return
        self._transaction = self._in_transaction(
            lambda: BatchTransaction(
                self._cluster, task.name, task.batch, config.transaction_timeout_ms, config.block_seconds
            )
        )

    def _in_transaction(self, job: Any) -> Any:
        """Runs in the only thread that uses the cluster."""
        try:
            return self._sender.submit(job).result()
        except (KafkaError, Unreachable) as trouble:
            raise WriteFailed(
                f"the transaction {self.task.name if self.task else ''} failed: {trouble}"
                " (exactlyOnce=false writes without transactions, at least once)"
            ) from trouble

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._begin()
        self._given += batch.num_rows
        if self.is_done or not batch.num_rows:
            return
        if self.config.topic is not None:
            self._write(self.config.topic, batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise WriteFailed("a row's topic is null, and there is no option 'topic' to write it to")
        names = pc.unique(topics)
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
            self._write(name.as_py(), rows)

    def _write(self, topic: str, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in TYPES if name in batch.schema.names}
        self.topic(topic).append(
            columns["value"], columns.get("key"), columns.get("headers"), columns.get("partition")
        )

    @property
    def written(self) -> int:
        return sum(writer.written for writer in self._topics.values())

    def flush(self) -> None:
        for writer in self._topics.values():
            writer.flush()

    def commit(self) -> None:
        """Commit the flushed records, if there is a transaction."""
        transaction, topics = self._transaction, list(self._topics)
        if transaction is not None and transaction.is_done:
            self._check_done(transaction.records)
        if transaction is not None and topics:
            self._in_transaction(lambda: transaction.commit(topics[0], self.written))

    def _check_done(self, written: int | None) -> None:
        if written is not None and written != self._given:
            raise WriteFailed(
                f"{self.task.name if self.task else ''} has written {written:,} rows of this batch, and gets"
                f" {self._given:,} now that it runs again: with other cores or shuffle partitions, a task has"
                " other rows. With those of before, the batch succeeds; exactlyOnce=false writes all of it"
                " again. docs/spark.md has the settings that prevent this"
            )

    def _abort(self) -> None:
        """Abort, so that readers of committed data do not wait for the next try."""
        transaction = self._transaction
        if transaction is not None:
            with suppress(KafkaError, Unreachable):
                self._sender.submit(transaction.abort).result()

    def close(self) -> None:
        self._sender.shutdown(wait=True, cancel_futures=True)
        self._cluster.close()

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        try:
            if kind is None:
                self.flush()
                self.commit()
            else:
                self._abort()
        finally:
            self.close()


# -- for Spark ---------------------------------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    """A task's message to the driver, after all its records were acknowledged."""

    rows: int


def write_all(config: WriterConfig, batches: Iterable[pa.RecordBatch], task: Task | None = None) -> Written:
    """Write all batches. With a `task`, its rows are written once, even if this is called again for it."""
    if config.exactly_once is False:
        task = None
    elif config.exactly_once and task is None:
        raise WriteFailed("exactlyOnce=true needs a streaming query, or the option jobId for a batch job")
    with RecordWriter(config, task) as writer:
        for batch in batches:
            writer.write(batch)
    return Written(writer.written)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, config: WriterConfig) -> None:
        self.config = config

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = None if self.config.job is None else task_of(self.config.job)
        return write_all(self.config, iterator, task)


StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)  # PySpark 4.1

if StreamArrowWriter is not None:

    class StreamWriter(StreamArrowWriter):  # type: ignore[misc]
        def __init__(self, config: WriterConfig) -> None:
            self.config = config

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return write_all(self.config, iterator, task_of(None))

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            pass  # every task has committed its rows

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            pass  # each task has aborted, or is done when the batch runs again


class RowStreamWriter(DataSourceStreamWriter):
    """For PySpark 4.0, whose streaming sinks get rows."""

    def __init__(self, config: WriterConfig, schema: StructType) -> None:
        self.config = config
        self.schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(self.schema)

        def batches() -> Iterator[pa.RecordBatch]:
            while rows := [row.asDict(True) for row in islice(iterator, ROWS_OF_A_BATCH)]:
                yield pa.RecordBatch.from_pylist(rows, arrow)

        return write_all(self.config, batches(), task_of(None))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> BatchWriter:
    """Raises WriteRefused."""
    if overwrite:
        raise WriteRefused("a topic cannot be overwritten: write with mode('append')")
    return BatchWriter(checked(schema, options))


def stream_writer(schema: StructType, options: Mapping[str, str]) -> Any:
    """Raises WriteRefused."""
    config = checked(schema, options)
    return RowStreamWriter(config, schema) if StreamArrowWriter is None else StreamWriter(config)


def checked(schema: StructType, options: Mapping[str, str]) -> WriterConfig:
    config = WriterConfig.of(options)
    check_columns(schema, config.topic)
    return config
