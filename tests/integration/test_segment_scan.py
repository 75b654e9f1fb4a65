"""Segment files read beside the broker that writes them, kafkad and JVM Kafka: the rows of the broker's path,
while segments roll and retention deletes them, and nothing that a killed broker had not told is committed."""

import contextlib
import datetime
import json
import random
import threading
import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from kafkad.spark import segment_scan, source
from kafkad.spark.options import read_options
from kafkad.spark.segment_files import DataLoss
from kafkad.spark.source import BatchReader, Filters
from kafkad.testing import Broker
from tests.clients import create_topic, producer, wait_until
from tests.jvm import JvmKafka

pytestmark = pytest.mark.timeout(180)

# checkpoints soon, so that the tests need not wait for them; segments small
CONFIG = {
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "log.cleaner.backoff.ms": 300,
}
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module", params=["kafkad", pytest.param("jvm", marks=pytest.mark.java)])
def running(request, tmp_path_factory):
    data = tmp_path_factory.mktemp(request.param) / "data"
    kind = (
        Broker(data_dir=data, config=CONFIG) if request.param == "kafkad" else JvmKafka(data, config=CONFIG)
    )
    with kind as broker:
        broker.directory = data
        yield broker


def table(options, filters=None):
    reader = BatchReader(
        read_options(options, streaming=False),
        layout := source.result_layout(read_options(options, streaming=False)),
    )
    if filters is not None:
        reader.filters = filters
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = pa.Table.from_batches(batches, schema=layout.schema)
    return found.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def both(broker, topic, filters=None, **options):
    """The broker's path and the files', which agree."""
    settled(broker, topic)
    asked = table({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic} | options, filters)
    scanned = table({"logDir": str(broker.directory), "topic": topic} | options, filters)
    assert scanned.schema == asked.schema
    assert scanned == asked
    return scanned


def settled(broker, topic):
    """The checkpoints have what the broker tells, which may be more by and by: the end of a transaction is
    acknowledged before its markers are written."""
    from kafkad.spark.offsets import OffsetReader

    options = read_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}, streaming=False)
    asked = OffsetReader(options)
    files = segment_scan.DirectoryOffsets(
        read_options({"logDir": str(broker.directory), "topic": topic}, streaming=False)
    )
    partitions = asked.partitions()
    wait_until(lambda: files.list_both(partitions)[1] == asked.list_both(partitions)[1])


def test_the_rows_are_those_of_the_brokers_path(running):
    topic = create_topic(running, f"same-{time.monotonic_ns()}", 3, {"segment.bytes": "1048576"})
    start = int(time.time() * 1000) - 10_000_000
    n = 0
    rng = random.Random(5)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        client = producer(running, **{"compression.type": codec, "linger.ms": 5, "batch.size": 60_000})
        for _ in range(4000):
            client.produce(
                topic, rng.choice([None, b"", b"v%d " % n + rng.randbytes(1000)]),
                rng.choice([None, b"k%d" % (n % 50)]), n % 3,
                timestamp=start + n * 100 - rng.choice([0, 0, 5000]),
                headers=rng.choice([None, [("a", b"1"), ("b", None)]]),
            )  # fmt: skip
            n += 1
            client.poll(0)
        assert client.flush(30) == 0
    whole = both(running, topic)
    assert whole.num_rows == 20_000
    logs = segment_scan.DirectoryOffsets(
        read_options({"logDir": str(running.directory), "topic": topic}, streaming=False)
    ).logs
    assert sum(len(logs[topic, p].bases()) for p in range(3)) >= 4  # it did roll
    assert both(running, topic, targetPartitionBytes="50k", includeHeaders="true").num_rows == n
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 1000, "1": -2, "2": 4321}}),
        "endingOffsets": json.dumps({topic: {"0": 1500, "1": -1, "2": 4322}}),
    }
    assert both(running, topic, **bounds).num_rows == 500 + 6667 + 1
    for first, last in ((3000, 9000), (0, 1), (12_345, 12_346)):
        times = {"startingTimestamp": str(start + first * 100), "endingTimestamp": str(start + last * 100)}
        both(running, topic, **times)
    since = Filters()
    moment = datetime.datetime.fromtimestamp((start + 1_234_500) / 1000, datetime.UTC)
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    since.take(GreaterThanOrEqual(("timestamp",), moment))
    since.take(EqualTo(("partition",), 1))
    assert 0 < both(running, topic, since).num_rows < 4000


def test_scans_while_segments_roll_and_retention_deletes(running):
    """Each scan has every offset from its plan's start to its end, with the value that was written there;
    or says that retention came first."""
    topic = create_topic(
        running, f"racing-{time.monotonic_ns()}", 1,
        {"segment.bytes": "1048576", "retention.bytes": "3000000", "file.delete.delay.ms": "100"},
    )  # fmt: skip
    stop = threading.Event()
    made = 0

    def write():
        nonlocal made
        client = producer(running, **{"linger.ms": 2, "batch.size": 30_000, "enable.idempotence": True})
        while not stop.is_set():
            for _ in range(200):
                client.produce(topic, b"%d " % made + bytes(400))
                made += 1
            client.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    options = {"logDir": str(running.directory), "topic": topic, "targetPartitionBytes": "500k"}
    lost = whole = moved = 0
    first = None
    try:
        wait_until(lambda: made > 5000)
        deadline = time.monotonic() + 60
        while (whole < 5 or moved < 2) and time.monotonic() < deadline:
            careless = options | {"failOnDataLoss": str(whole % 2 == 0).lower()}
            parts = segment_scan.plan(read_options(careless, streaming=False))
            if not parts:
                continue  # retention has passed the checkpointed high watermark: it is 100 ms old
            moved += first is not None and parts[0].start > first
            first = parts[0].start
            try:
                for part in parts:
                    found = pa.Table.from_batches(
                        segment_scan.read(part),
                        source.result_layout(read_options(options, streaming=False)).schema,
                    )
                    offsets = found["offset"].to_pylist()
                    assert [int(v.split(b" ")[0]) for v in found["value"].to_pylist()] == offsets
                    if part.fail_on_data_loss:
                        assert offsets == list(range(part.start, part.end))
                    else:
                        assert offsets == sorted(set(offsets)) and offsets[-1:] <= [part.end - 1]
                whole += 1
            except DataLoss as gone:
                assert "aged out" in str(gone)
                lost += 1
    finally:
        stop.set()
        writer.join(60)
    assert whole >= 5 and moved >= 2, (whole, moved, lost)


def test_transactions(running):
    topic = create_topic(running, f"transactions-{time.monotonic_ns()}", 2, {"segment.bytes": "1048576"})
    rng = random.Random(3)
    clients = []
    for number in range(3):
        client = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": f"{topic}-{number}"})
        client.init_transactions(30)
        clients.append(client)
    for round in range(12):
        for client in clients:
            client.begin_transaction()
        for n in range(300):
            for number, client in enumerate(clients):
                client.produce(topic, b"%d %d %d " % (round, number, n) + bytes(300), partition=n % 2)
        for client in clients:
            client.flush(30)
            (client.commit_transaction if rng.random() < 0.6 else client.abort_transaction)(30)
    clients[0].begin_transaction()
    clients[0].produce(topic, b"open", partition=0)
    clients[0].flush(30)
    clients[1].begin_transaction()
    clients[1].produce(topic, b"committed behind it", partition=0)
    clients[1].commit_transaction(30)
    committed = both(running, topic, **COMMITTED)
    assert 0 < committed.num_rows < 12 * 900
    assert both(running, topic, targetPartitionBytes="40k", **COMMITTED) == committed
    assert both(running, topic).num_rows == 12 * 900 + 2
    clients[0].abort_transaction(30)
    settled(running, topic)
    wait_until(lambda: both(running, topic, **COMMITTED).num_rows == committed.num_rows + 1)


def test_a_compacted_topic(running):
    topic = create_topic(
        running, f"compacted-{time.monotonic_ns()}", 1,
        {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01",
         "segment.ms": "500", "max.compaction.lag.ms": "1000"},
    )  # fmt: skip
    client = producer(running)
    for n in range(12_000):
        client.produce(topic, b"%d " % n + bytes(500), b"%d" % (n % 100))
        client.poll(0)
    assert client.flush(30) == 0
    options = {"logDir": str(running.directory), "topic": topic}
    rows = 12_000

    def compacted():  # each scan meanwhile is one that the cleaner raced with
        nonlocal rows
        settled(running, topic)
        found = table(options)
        values, offsets = found["value"].to_pylist(), found["offset"].to_pylist()
        assert offsets == sorted(set(offsets))
        assert values[-1].split(b" ")[0] == b"11999"
        rows = len(offsets)
        client.produce(topic, b"11999 ", b"last")
        client.flush(30)
        return rows < 6000

    wait_until(compacted, 60)
    asked = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": topic}
    wait_until(lambda: table(asked) == table(options), 60)  # between two rounds of the cleaner


def test_scans_beside_the_cleaner_see_each_keys_last_value(tmp_path):
    """Keys that are written once are in each scan that ends behind them. While the writer rests, so is the
    last value of all others: segments are exchanged under the scans all the time."""
    config = CONFIG | {"log.cleaner.backoff.ms": 10, "log.cleaner.dedupe.buffer.size": 8 << 20}
    with Broker(data_dir=tmp_path / "data", config=config) as broker:
        broker.directory = tmp_path / "data"
        topic = create_topic(
            broker, "table", 1,
            {"cleanup.policy": "compact", "internal.segment.bytes": "60000",
             "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "50"},
        )  # fmt: skip
        writes, resting, stop = threading.Event(), threading.Event(), threading.Event()
        writes.set()
        made = 0
        latest: dict[bytes, int] = {}

        def write():
            nonlocal made
            client = producer(broker, **{"linger.ms": 1, "batch.size": 8_000, "enable.idempotence": True})
            while not stop.is_set():
                for _ in range(100):
                    key = b"once %d" % made if made % 50 == 0 else b"often %d" % (made % 97)
                    client.produce(topic, b"%d " % made + bytes(300), key)
                    latest[key] = made
                    made += 1
                assert client.flush(30) == 0
                if not writes.is_set():
                    resting.set()
                    writes.wait()

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        options = {"logDir": str(broker.directory), "topic": topic, "targetPartitionBytes": "100k"}
        layout = source.result_layout(read_options(options, streaming=False)).schema

        def scan(rests):
            parts = segment_scan.plan(read_options(options, streaming=False))
            rows = [pa.Table.from_batches(segment_scan.read(part), layout) for part in parts]
            found = pa.concat_tables(rows)
            offsets = found["offset"].to_pylist()
            assert offsets == sorted(set(offsets))
            assert [int(value.split(b" ")[0]) for value in found["value"].to_pylist()] == offsets
            seen = dict(zip(found["key"].to_pylist(), offsets, strict=True))
            end = parts[-1].end
            assert set(range(0, end, 50)) <= set(offsets)
            if rests:
                assert end == made
                assert {key: at for key, at in latest.items() if seen.get(key) != at} == {}
                assert len(seen) == len(latest)

        def exchanges():
            return broker.log.count("is clean up to offset")

        scans = begun = 0
        try:
            wait_until(lambda: made > 2000 and exchanges() > 2)
            wait_until(lambda: segment_scan.plan(read_options(options, streaming=False)))  # HW
            begun = exchanges()
            deadline = time.monotonic() + 45
            while (exchanges() < begun + 15 or scans < 30) and time.monotonic() < deadline:
                rests = scans % 3 == 2
                if rests:
                    resting.clear()  # here: the writer may not even have noticed that the last rest is over
                    writes.clear()
                    assert resting.wait(30)
                    settled(broker, topic)
                scan(rests)
                scans += 1
                writes.set()
        finally:
            stop.set()
            writes.set()
            writer.join(60)
        assert exchanges() >= begun + 15 and scans >= 30, (exchanges() - begun, scans)
        assert " ERROR " not in broker.log


def test_what_a_killed_broker_had_not_checkpointed_is_not_read(tmp_path):
    """High watermarks stand still after the first checkpoint: what came later lies there whole."""
    data = tmp_path / "data"
    with Broker(data_dir=data, config=CONFIG) as broker:
        topic = create_topic(broker, "unclean", 1)
        client = producer(broker)
        for n in range(1000):
            client.produce(topic, b"%d" % n)
        assert client.flush(30) == 0
        broker.directory = data
        settled(broker, topic)
    with Broker(
        data_dir=data, config=CONFIG | {"replica.high.watermark.checkpoint.interval.ms": 600_000}
    ) as broker:
        client = producer(broker)
        for n in range(1000, 1500):
            client.produce(topic, b"%d" % n)
        assert client.flush(30) == 0
        options = {"logDir": str(data), "topic": topic}
        assert table(options).num_rows == 1000
        up_to_date = table(options | {"kafka.bootstrap.servers": broker.bootstrap})
        assert up_to_date["value"].to_pylist() == [b"%d" % n for n in range(1500)]
        broker.kill()
        assert table(options).num_rows == 1000
        broker.restart()
        with contextlib.suppress(Exception):
            broker.stop()
        assert table(options).num_rows == 1500  # its own recovery took them over
