"""The environment of the cases of tools/spark_matrix.py: a Spark, a broker behind a counting proxy, and
results that can be compared between brokers.

A result is JSON: rows in Kafka's order, or their count and digest; the offsets of each micro-batch; for a
failure, its classes and error conditions from the outside in. It must not depend on the run: topics have the
case's name, records have the timestamps of BASE_MS, and messages, which contain ports and ids, are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from counting_proxy import UNCOUNTED, CountingProxy  # noqa: E402

from kafkad.testing import Broker  # noqa: E402
from tests import logins  # noqa: E402
from tests.guarded import guarded  # noqa: E402
from tests.jvm import JARS, TEST_CONFIG, JvmKafka, fetch_jars  # noqa: E402
from tests.secured_broker import SecuredBroker  # noqa: E402

BASE_MS = 1_704_067_200_000  # 2024-01-01; the nth record has BASE_MS + n seconds
ROWS_SHOWN = 40  # above that, a digest
WAIT_S = 60
BROKER_CONFIG = {
    **TEST_CONFIG,
    "log.retention.ms": "-1",  # the records are older than a week
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "message.max.bytes": "12000000",
    "log.cleaner.backoff.ms": "200",
}
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp_ms: int | None = None


def numbered(count: int, partitions: int = 1, first: int = 0, size: int = 0) -> list[Record]:
    """Return `count` records for each partition, the nth at BASE_MS + n seconds."""
    return [
        Record(b"%d" % n + b"." * size, b"k%d" % n, partition, None, BASE_MS + n * 1000)
        for n in range(first, first + count)
        for partition in range(partitions)
    ]


def make_spark(**settings: str) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if not fetch_jars.is_complete("spark-sql-kafka") and fetch_jars.main(["spark-sql-kafka"]) != 0:
        raise SystemExit("The jars of Spark's Kafka connector are missing: python tools/fetch_jars.py")
    from pyspark.sql import SparkSession

    connector = ",".join(str(path) for path in sorted((JARS / "spark-sql-kafka").glob("*.jar")))
    builder: Any = SparkSession.builder
    for key, value in {
        "spark.master": "local[2]",
        "spark.jars": connector,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.metricsEnabled": "false",
        **settings,
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # failures are wanted here, and each is a page long
    return spark


class World:
    """A broker of one kind (kafkad, kafkad-2, jvm), and the operations of a case; call `begin(case)`
    first. If it is secured, all clients log in over TLS and need rights, without the proxy, which could not
    read their requests."""

    def __init__(
        self, kind: str, spark: Any, scratch: Path, proxy: CountingProxy, secured: bool = False
    ) -> None:
        self.kind, self.spark, self.scratch, self.proxy = kind, spark, scratch, proxy
        config: dict[str, object] = {**BROKER_CONFIG}
        data = scratch / kind / "data"
        data.parent.mkdir(parents=True)
        workers = 2 if kind == "kafkad-2" else None
        self.is_secured = secured
        self.broker: Any
        if secured:
            self.broker = guarded(kind, data, config, workers)
        else:
            config["advertised.listeners"] = f"PLAINTEXT://{proxy.address}"
            self.broker = (
                JvmKafka(data, config=config)
                if kind == "jvm"
                else Broker(workers, config=config, data_dir=data)
            )
        # a process dies with the thread that made it (PR_SET_PDEATHSIG), so this one stays
        self._starter = ThreadPoolExecutor(max_workers=1)
        self.case, self._topics, self._runs, self.kills = "", 0, 0, 0

    def __enter__(self) -> World:
        self.broker.start()
        self.proxy.upstream = ("127.0.0.1", self.broker.port)
        self.admin = AdminClient(self.own)
        return self

    def __exit__(self, *exception: object) -> None:
        self.broker.__exit__(*exception)

    def begin(self, case: str) -> None:
        self.case, self._topics, self._runs = re.sub(r"[^a-z0-9]+", "-", case.lower()).strip("-"), 0, 0
        self.kills = 0
        self.proxy.take()

    # -- the scene

    @property
    def own(self) -> dict[str, Any]:
        """Return the settings of a client that the proxy does not count."""
        address = (
            logins.librdkafka(self.broker) if self.is_secured else {"bootstrap.servers": self.proxy.address}
        )
        return {**address, "client.id": UNCOUNTED, "log_level": 0}

    def topic(self, partitions: int = 1, name: str = "", **config: object) -> str:
        """Create a topic named after the case; configuration keys are like `retention_ms`."""
        if not name:
            self._topics += 1
            name = f"{self.case}-{self._topics}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(WAIT_S)
        self.wait(lambda: name in self.admin.list_topics(timeout=WAIT_S).topics)
        return name

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(WAIT_S)
        self.wait(lambda: name not in self.admin.list_topics(timeout=WAIT_S).topics)

    def add_partitions(self, name: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(name, total)])[name].result(WAIT_S)
        self.wait(lambda: len(self.admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == total)

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        asked = TopicPartition(name, partition, before)
        self.admin.delete_records([asked])[asked].result(WAIT_S)

    def set_topic(self, name: str, **config: object) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        asked = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([asked])[asked].result(WAIT_S)

    def compacted_topic(self) -> tuple[str, list[int]]:
        """Create a topic with holes, also at the ends of its batches and segments. Return its name and the
        offsets that are left."""
        topic = self.topic(
            cleanup_policy="compact", min_cleanable_dirty_ratio="0.001", segment_ms=60_000,
        )  # fmt: skip
        written: list[Record] = []
        for hour, keys in enumerate((range(20), range(0, 20, 2), range(5, 15), range(3), [0, 30], [31])):
            at = BASE_MS + hour * 3_600_000  # an append of an hour later begins a segment
            records = [Record(None if key == 7 else b"%d" % hour, b"k%d" % key, 0, None, at) for key in keys]
            self.produce(topic, records)
            written += records
        left = sorted({record.key: offset for offset, record in enumerate(written)}.values())
        self.wait(lambda: self.offsets_of(topic) == left)
        return topic, left

    def offsets_of(self, topic: str) -> list[int]:
        """Return the offsets of the records of partition 0."""
        own = {"group.id": "setup", "enable.auto.commit": False, "enable.partition.eof": True}
        reader = Consumer({**self.own, **own})
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[int] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for message in reader.consume(1000, timeout=0.2):
                if message.error():
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    reader.close()
                    return found
                found.append(message.offset())
        raise AssertionError(f"{topic} does not end")

    def transaction(self, topic: str, records: Iterable[Record]) -> Callable[[bool], None]:
        """Write records in a transaction. Return what commits it (True) or aborts it; afterwards no
        transaction may be open in the topic."""
        self._runs += 1
        producer = Producer({**self.own, "transactional.id": f"{self.case}-{self._runs}", "linger.ms": 5})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        partitions = set()
        for record in records:
            partitions.add(record.partition)
            producer.produce(
                topic, record.value, record.key, record.partition, timestamp=record.timestamp_ms or BASE_MS
            )
        assert producer.flush(WAIT_S) == 0

        def end(commit: bool) -> None:
            if commit:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
            self.wait(
                lambda: all(
                    self.end_offset(topic, each) == self.stable_offset(topic, each) for each in partitions
                )
            )

        return end

    def secured(self) -> SecuredBroker:
        """Return a broker of this kind with TLS, logins and an authorizer, for one case. Its requests are not
        counted."""
        return SecuredBroker(self.kind, self.scratch / self.kind / self.case)

    def start_offset(self, name: str, partition: int = 0) -> int:
        return self._offset(name, partition, OffsetSpec.earliest())

    def end_offset(self, name: str, partition: int = 0) -> int:
        return self._offset(name, partition, OffsetSpec.latest())

    def stable_offset(self, name: str, partition: int = 0) -> int:
        """Return the end for readers at read_committed."""
        return self._offset(name, partition, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def _offset(
        self, name: str, partition: int, spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> int:  # fmt: skip
        asked = TopicPartition(name, partition)
        told = self.admin.list_offsets({asked: spec}, isolation_level=isolation)
        return told[asked].result(WAIT_S).offset

    def produce(self, name: str, records: Iterable[Record], codec: str = "none", **config: object) -> None:
        failed: list[object] = []
        settings = {"linger.ms": 5, "compression.type": codec, "message.max.bytes": 12_000_000, **config}
        client = Producer({**self.own, **settings})
        for record in records:
            client.produce(
                name, record.value, record.key, record.partition,
                timestamp=record.timestamp_ms or BASE_MS, headers=record.headers,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            client.poll(0)
        left = client.flush(WAIT_S)
        assert not left and not failed, f"{left} records are left, {failed[:1]}"

    def read_topic(self, name: str, count: int, partition: int = 0) -> list[list[Any]]:
        """Return the records, read by librdkafka, so that Spark does not judge its own sink."""
        reader = Consumer({**self.own, "group.id": "setup", "enable.auto.commit": False})
        reader.assign([TopicPartition(name, partition, OFFSET_BEGINNING)])
        got: list[list[Any]] = []
        deadline = time.monotonic() + WAIT_S
        while len(got) < count and time.monotonic() < deadline:
            for message in reader.consume(1000, timeout=0.2):
                assert not message.error(), message.error()
                headers = [[k, text(v)] for k, v in message.headers() or []]
                got.append([message.offset(), text(message.key()), text(message.value()), headers])
        reader.close()
        return got

    def wait(self, condition: Callable[[], Any], timeout: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL. `kills` counts them, so a case can check that it happened."""
        self.broker.kill()
        self.kills += 1

    def restart_soon(self, seconds: float = 0.5) -> Callable[[], None]:
        """For `proxy.at`: kill -9; half a second later the broker starts again with the same data."""

        def again() -> None:
            time.sleep(seconds)
            self.broker.restart()

        def act() -> None:
            self.kill()
            self._starter.submit(again)

        return act

    # -- Spark

    def batch(self, subscribe: str = "", **options: object) -> Any:
        return self._options(self.spark.read.format("kafka"), subscribe, options).load()

    def stream(self, subscribe: str = "", **options: object) -> Any:
        return self._options(self.spark.readStream.format("kafka"), subscribe, options).load()

    def writer(self, writer: Any, topic: str = "", **options: object) -> Any:
        return self._options(writer.format("kafka"), "", {**({"topic": topic} if topic else {}), **options})

    def _options(self, builder: Any, subscribe: str, options: dict[str, object]) -> Any:
        """Return options with Kafka's names: `kafka_max_poll_records` is kafka.max.poll.records."""
        if self.is_secured:
            builder = builder.options(**logins.spark(self.broker))
        else:
            builder = builder.option("kafka.bootstrap.servers", self.proxy.address)
        if subscribe:
            builder = builder.option("subscribe", subscribe)
        for name, value in options.items():
            value = json.dumps(value) if isinstance(value, dict) else str(value)
            builder = builder.option(name.replace("_", ".") if name.startswith("kafka") else name, value)
        return builder

    def table(self) -> Table:
        """Return the table for a streaming query of this case, with its checkpoint."""
        self._runs += 1
        return Table(self.spark, self.scratch / self.kind / f"{self.case}-{self._runs}")

    @contextmanager
    def setting(self, key: str, value: str) -> Iterator[None]:
        self.spark.conf.set(key, value)
        try:
            yield
        finally:
            self.spark.conf.unset(key)


class Table:
    """A Parquet table to which queries append, one after the other, with one checkpoint."""

    def __init__(self, spark: Any, where: Path) -> None:
        self.spark, self.path, self.checkpoint = spark, str(where / "table"), str(where / "checkpoint")

    def start(self, frame: Any, **trigger: object) -> Any:
        writer = frame.writeStream.format("parquet").option("path", self.path)
        writer = writer.option("checkpointLocation", self.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, frame: Any, **trigger: object) -> dict[str, Any]:
        """Run to the end of the data (trigger available-now). Return the progress of the batches."""
        query = self.start(frame, **(trigger or {"availableNow": True}))
        try:
            query.awaitTermination(WAIT_S * 2)
        finally:
            query.stop()
        return {"batches": batches(query)}

    @contextmanager
    def running(self, frame: Any, **trigger: object) -> Iterator[Any]:
        query = self.start(frame, **trigger)
        try:
            yield query
        finally:
            query.stop()

    def rows(self) -> Any:
        return rows(self.spark.read.parquet(self.path))


# -- results


def rows(frame: Any) -> Any:
    """Return all rows by topic, partition and offset; if there are many, their count and a digest."""
    names = COLUMNS + (["headers"] if "headers" in frame.columns else [])
    got = [[shown(row[name]) for name in names] for row in frame.select(*names).collect()]
    got.sort(key=lambda row: row[2:5])
    if len(got) <= ROWS_SHOWN:
        return got
    return {"rows": len(got), "sha256": digest(got), "by partition": by_partition(got)}


def by_partition(got: list[list[Any]]) -> dict[str, str]:
    offsets: dict[str, list[int]] = {}
    for row in got:
        offsets.setdefault(f"{row[2]}-{row[3]}", []).append(row[4])
    return {name: f"{len(each)} in {each[0]}..{each[-1]}" for name, each in offsets.items()}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def shown(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return text(bytes(value))
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    if isinstance(value, list):  # headers
        return [[header["key"], shown(header["value"])] for header in value]
    return value


def text(value: bytes | None) -> str | None:
    if value is None or len(value) <= 64:
        return None if value is None else value.decode("latin-1")
    return f"{len(value)} B {hashlib.sha256(value).hexdigest()[:16]}"


def batches(query: Any) -> list[Any]:
    """Return [start offsets, end offsets, rows] of each micro-batch that had rows."""
    told = []
    for progress in query.recentProgress:
        said = json.loads(progress.json)
        source = said["sources"][0]
        if said["numInputRows"]:
            told.append([source["startOffset"], source["endOffset"], said["numInputRows"]])
    return told


def failure(error: BaseException) -> list[str]:
    """Return the Java classes of a failure with their conditions, from the outside in; never []."""
    chain = [type(error).__name__]
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while cause is not None and len(chain) < 12:
        name = cause.getClass().getSimpleName()
        try:
            condition = cause.getCondition()
        except Exception:  # not one of Spark's
            condition = None
        said = f"{name} [{condition}]" if condition else name
        if said != chain[-1]:
            chain.append(said)
        cause = cause.getCause()
    return chain


def outcome(run: Callable[[], Any]) -> Any:
    """Return the result of `run`, or how it failed."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return run()
    except (PySparkException, Py4JJavaError) as error:
        return {"failed": failure(error)}
