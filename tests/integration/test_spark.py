"""Spark's Kafka connector beside the streaming demo: batch reads by offset and time, headers, and the Kafka
sink."""

import json
import os
import sys
import time

import pytest

from tests.clients import create_topic, producer, read_partition
from tests.jvm import JARS, fetch_jars

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark():
    from kafkad.demo.ingest import session

    name = "spark-sql-kafka"
    if not fetch_jars.is_complete(name) and fetch_jars.main([name]) != 0:
        pytest.fail("the jars of Spark's Kafka connector are missing (make test fetches them)")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    running = session(JARS / name, cores=2)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def written(broker):
    """A topic of two partitions with 500 records each, one second apart, headers on the first of each."""
    topic = create_topic(broker, f"spark-{time.time_ns()}", 2)
    start = int(time.time() * 1000) - 1_000_000
    client = producer(broker, **{"compression.type": "zstd"})
    for n in range(500):
        for partition in range(2):
            headers = [("first", b"yes"), ("none", None)] if n == 0 else None
            client.produce(
                topic, b"%d" % n, b"k%d" % n, partition, timestamp=start + n * 1000, headers=headers
            )
    assert client.flush(30) == 0
    return topic, start


def load(spark, broker, topic, **options):
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def test_a_batch_read_counts_and_keeps_everything(spark, broker, written):
    topic, _ = written
    frame = load(spark, broker, topic, includeHeaders="true", minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6  # the connector splits the partitions by offsets
    assert frame.count() == 1000
    rows = frame.where("partition = 1").orderBy("offset").collect()
    assert [(row.offset, row.key, row.value) for row in rows] == [
        (n, b"k%d" % n, b"%d" % n) for n in range(500)
    ]
    assert [(header.key, header.value) for header in rows[0].headers] == [("first", b"yes"), ("none", None)]
    assert rows[1].headers is None
    assert rows[0].timestampType == 0


def test_offsets_and_times_bound_a_batch_read(spark, broker, written):
    topic, start = written
    by_offset = load(
        spark, broker, topic,
        startingOffsets=json.dumps({topic: {"0": 100, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 150, "1": -1}}),
    )  # fmt: skip
    assert by_offset.where("partition = 0").count() == 50
    assert by_offset.where("partition = 1").count() == 500
    by_time = load(
        spark, broker, topic, startingTimestamp=str(start + 400_000), endingTimestamp=str(start + 450_001)
    )
    offsets = sorted(row.offset for row in by_time.where("partition = 0").select("offset").collect())
    assert offsets == list(range(400, 451))


def test_spark_writes_to_kafka(spark, broker):
    topic = create_topic(broker, f"spark-sink-{time.time_ns()}")
    frame = spark.range(2000).selectExpr(
        "cast(id as string) as key",
        "if(id % 100 = 0, null, repeat(cast(id as string), 10)) as value",
        "array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary))) as headers",
    )
    writer = frame.coalesce(1).write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("includeHeaders", "true").option("kafka.compression.type", "snappy").option(
        "topic", topic
    ).save()
    got = read_partition(broker, topic, 2000)
    assert [message.key() for message in got] == [b"%d" % n for n in range(2000)]
    assert [message.value() for message in got] == [
        None if n % 100 == 0 else b"%d" % n * 10 for n in range(2000)
    ]
    assert got[7].headers() == [("id", b"7")]
