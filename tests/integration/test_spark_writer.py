"""Writing Arrow columns to a broker, as a task of Spark does it: what confluent-kafka and kafka-python read
is what was written, in spite of kills."""

import os
import threading
import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from pyspark.sql import types as T

from kafkad.spark import writer
from kafkad.spark.writer import WriteFailed, WriterConfig, WriteRefused
from tests import logins
from tests.clients import create_topic, read_partition

pytestmark = [pytest.mark.timeout(120), pytest.mark.secured]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def config(broker, topic=None, **options):
    topic = {} if topic is None else {"topic": topic}
    given = {**logins.spark(broker), **topic}
    return WriterConfig.of(given | {f"kafka.{name.replace('_', '.')}": str(v) for name, v in options.items()})


def unique(name):
    return f"{name}-{time.monotonic_ns()}"


@pytest.mark.secured(short=True)
def test_everything_comes_back(broker):
    topic = create_topic(broker, unique("written"), 2)
    headers = [
        None,
        [],
        [{"key": "a", "value": b"1"}, {"key": "ä", "value": None}],
        [{"key": "", "value": b""}],
    ]
    batch = pa.record_batch(
        {
            "other": pa.array([1, 2, 3, 4]),
            "value": pa.array(["plain", None, "", "ü"]),
            "key": pa.array([b"k", b"k", None, b""]),
            "partition": pa.array([1, 1, 1, 0], pa.int32()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    before = int(time.time() * 1000)
    assert writer.write_all(config(broker, topic), [batch]).rows == 4
    messages = read_partition(broker, topic, 3, 1)
    assert [(m.key(), m.value(), m.headers()) for m in messages] == [
        (b"k", b"plain", None), (b"k", None, None), (None, b"", [("a", b"1"), ("ä", None)]),
    ]  # fmt: skip
    assert all(before <= m.timestamp()[1] <= time.time() * 1000 for m in messages)
    (last,) = read_partition(broker, topic, 1, 0)
    assert (last.key(), last.value(), last.headers()) == (b"", "ü".encode(), [("", b"")])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_codecs_are_read_by_both_clients(broker, codec):
    topic = create_topic(broker, unique(codec), 1)
    values = [b"%d " % n * (n % 50) for n in range(3000)]
    batch = pa.record_batch({"value": pa.array(values)})
    how = config(broker, topic, compression_type=codec, batch_size=20_000)
    assert writer.write_all(how, [batch]).rows == 3000
    assert [m.value() for m in read_partition(broker, topic, 3000)] == values
    client = KafkaConsumer(
        **logins.kafka_python(broker), auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    client.assign([KafkaPythonPartition(topic, 0)])
    got = []
    for message in client:
        got.append(message.value)
        if len(got) == 3000:
            break
    client.close()
    assert got == values


def test_large_values_and_batches_that_a_topic_takes_only_in_pieces(broker):
    large = create_topic(broker, unique("large"), 1, {"max.message.bytes": str(12 << 20)})
    value = os.urandom(10 << 20)
    writer.write_all(config(broker, large), [pa.record_batch({"value": pa.array([b"a", value, b"b"])})])
    got = read_partition(broker, large, 3, **{"fetch.message.max.bytes": 16 << 20})
    assert [m.value() for m in got] == [b"a", value, b"b"]

    small = create_topic(broker, unique("small"), 1, {"max.message.bytes": "5000"})
    values = [b"%d" % n * 100 for n in range(400)]
    writer.write_all(config(broker, small), [pa.record_batch({"value": pa.array(values)})])
    assert [m.value() for m in read_partition(broker, small, 400)] == values
    with pytest.raises(WriteFailed, match=r"MESSAGE_TOO_LARGE|RECORD_LIST_TOO_LARGE|larger"):
        writer.write_all(config(broker, small), [pa.record_batch({"value": pa.array([bytes(6000)])})])


def test_keys_go_where_librdkafka_puts_them(broker):
    topic = create_topic(broker, unique("placed"), 7)
    other = create_topic(broker, unique("placed-by-librdkafka"), 7)
    keys = [b"key %d" % n * (n % 4 + 1) for n in range(300)] + [b""]
    batch = pa.record_batch({"value": pa.array(keys), "key": pa.array(keys)})
    writer.write_all(config(broker, topic), [batch])
    client = Producer({**logins.librdkafka(broker), "partitioner": "murmur2"})
    counts = dict.fromkeys(range(7), 0)
    there = {}

    def delivered(error, message):
        assert error is None
        counts[message.partition()] += 1
        there[message.value()] = message.partition()

    for key in keys:
        client.produce(other, key, key, on_delivery=delivered)
    assert client.flush(30) == 0
    for partition, count in counts.items():
        if count:
            for message in read_partition(broker, topic, count, partition):
                assert there[message.value()] == partition


def test_topics_are_named_by_rows(broker):
    first, second = (create_topic(broker, unique(name), 1) for name in ("first", "second"))
    names = [(first, second)[n % 2] for n in range(1000)]
    batch = pa.record_batch({"value": pa.array([b"%d" % n for n in range(1000)]), "topic": pa.array(names)})
    assert writer.write_all(config(broker), [batch, batch]).rows == 2000
    for n, topic in enumerate((first, second)):
        expected = [b"%d" % value for value in range(n, 1000, 2)] * 2
        assert [m.value() for m in read_partition(broker, topic, 1000)] == expected
    nameless = pa.record_batch({"value": pa.array([b"v"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(WriteFailed, match="topic is null"):
        writer.write_all(config(broker), [nameless])


def test_a_partition_that_is_not_there_is_told(broker):
    topic = create_topic(broker, unique("two"), 2)
    batch = pa.record_batch({"value": pa.array([b"v"]), "partition": pa.array([2], pa.int32())})
    with pytest.raises(WriteFailed, match=r"partition 2 of '.*', which has 2 partitions \(0 to 1\)"):
        writer.write_all(config(broker, topic), [batch])


def test_a_broker_that_is_killed_in_mid_write_loses_and_doubles_nothing(make_broker):
    broker = make_broker()
    topic = create_topic(broker, unique("killed"), 2)
    rows, pieces = 0, 120
    ready, killed = threading.Event(), 0

    def batches():
        nonlocal rows
        for n in range(pieces):
            values = pa.array([b"%d " % (rows + i) + bytes(1000) for i in range(1000)])
            rows += 1000
            yield pa.record_batch({"value": values})
            if n in (20, 60):
                ready.set()

    def kill():
        nonlocal killed
        for _ in range(2):
            assert ready.wait(60)
            ready.clear()
            broker.kill()
            broker.restart()
            killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    written = writer.write_all(config(broker, topic, compression_type="lz4"), batches())
    killer.join(60)
    assert killed == 2 and written.rows == rows == pieces * 1000
    from kafkad.client.offsets import LATEST, list_offsets

    with logins.cluster(broker) as cluster:
        ends = list_offsets(cluster, topic, {0: LATEST, 1: LATEST})
    assert sum(ends.values()) == rows
    seen = set()
    for partition, end in ends.items():
        numbers = [int(m.value().split(b" ")[0]) for m in read_partition(broker, topic, end, partition)]
        assert numbers == sorted(numbers)
        seen.update(numbers)
    assert len(seen) == rows


def test_a_broker_that_is_away_is_one_sentence(broker):
    gone = WriterConfig.of(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.max.block.ms": "300"}
    )
    with pytest.raises(
        WriteFailed, match=r"records for 't' were not delivered: no broker answers on 127\.0\.0\.1:1"
    ):
        writer.write_all(gone, [pa.record_batch({"value": pa.array([b"v"])})])


# -- what Spark's driver checks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.acks": "2"}, "kafka.acks is all, 1 or 0"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "asks for kafka.acks=all"),
        ({"kafka.compression.type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.batch.size": "many"}, "kafka.batch.size is a whole number"),
        ({"kafka.batch.sice": "1"}, "did you mean 'batch.size'"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not to be set"),
        ({"kafka.transactional.id": "x"}, "each task has one of its own"),
        ({"topik": "t"}, "no option 'topik' for writing; did you mean 'topic'"),
        ({"kafka.security.protocol": "TLS"}, "security.protocol is 'TLS'"),
    ],
)
def test_options_that_do_not_go_are_refused(options, said):
    with pytest.raises(WriteRefused, match=said):
        WriterConfig.of({"kafka.bootstrap.servers": "b:1"} | options)


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"key": T.StringType()}, "t", "no column 'value'"),
        ({"value": T.StringType()}, None, "no column 'topic', and there is no option"),
        ({"value": T.IntegerType()}, "t", "'value' is int; it must be string or binary"),
        ({"value": T.StringType(), "key": T.DoubleType()}, "t", "'key' is double"),
        ({"value": T.StringType(), "topic": T.IntegerType()}, None, "'topic' is int"),
        ({"value": T.BinaryType(), "partition": T.LongType()}, "t", "'partition' is bigint; it must be int"),
        (
            {"value": T.BinaryType(), "headers": T.ArrayType(T.StringType())},
            "t",
            "'headers' is array<string>",
        ),
    ],
)
def test_columns_that_do_not_go_are_refused(columns, topic, said):
    schema = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    options = {"kafka.bootstrap.servers": "b:1"} | ({"topic": topic} if topic else {})
    with pytest.raises(WriteRefused, match=said):
        writer.batch_writer(schema, options)
    with pytest.raises(WriteRefused, match=said):
        writer.stream_writer(schema, options)
