"""Each row once at read_committed: tasks that run again or twice, brokers and drivers that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from kafkad.client.consumer import READ_COMMITTED, READ_UNCOMMITTED, Consumer
from kafkad.client.offsets import EARLIEST, LATEST, list_offsets
from kafkad.client.producer import Producer
from kafkad.client.transactions import Transactions
from kafkad.spark import writer
from kafkad.spark.exactly_once import Task
from kafkad.spark.writer import WriteFailed, WriterConfig, WriteRefused
from tests import logins
from tests.clients import create_topic
from tests.sparks import SPARK_JVM, prepare_spark

pytestmark = [pytest.mark.timeout(300), pytest.mark.secured]

FOR_EVER = {"retention.ms": "-1"}


def config(broker, topic, **options):
    given = {**logins.spark(broker), "topic": topic}
    return WriterConfig.of(given | options)


def rows(*numbers):
    return pa.record_batch({"value": pa.array([b"%d" % number for number in numbers])})


def numbers_of(broker, topic, isolation=READ_COMMITTED):
    """What a reader gets who begins now and reads until no transaction holds it back."""
    with logins.cluster(broker) as cluster:
        partitions = cluster.partitions(topic)
        deadline = time.monotonic() + 30
        while True:
            ends = list_offsets(cluster, topic, dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)
            stable = list_offsets(cluster, topic, dict.fromkeys(partitions, LATEST), READ_COMMITTED)
            if ends == stable:  # markers are written after the answer
                break
            assert time.monotonic() < deadline, "a transaction hangs"
            time.sleep(0.05)
        consumer = Consumer(cluster, topic, wait_ms=50, isolation=isolation)
        consumer.assign(list_offsets(cluster, topic, dict.fromkeys(partitions, EARLIEST)))
        found = []
        while any(consumer.positions[p] < end for p, end in ends.items()):
            found += [int(received.value) for received in consumer.poll()]
        return found


@pytest.fixture
def topic(broker, unique):
    return create_topic(broker, unique("once"), 2)


@pytest.fixture
def query(unique):
    return unique("query")


def test_a_task_that_runs_again_writes_nothing(broker, topic, query):
    how = config(broker, topic)
    assert writer.write_all(how, [rows(1, 2), rows(3)], Task(query, 0, 0)).rows == 3
    assert writer.write_all(how, [rows(1, 2), rows(3)], Task(query, 0, 0)).rows == 0
    assert writer.write_all(how, [rows(4)], Task(query, 1, 0)).rows == 1
    assert writer.write_all(how, [rows(5)], Task(query, 0, 1)).rows == 1
    assert writer.write_all(how, [rows(1, 2), rows(3)], Task(query, 0, 0)).rows == 0
    assert sorted(numbers_of(broker, topic)) == [1, 2, 3, 4, 5]


def test_a_task_that_gets_other_rows_when_it_runs_again_is_an_error(broker, topic, query):
    """As after a shuffle that Spark divides by the number of cores. Leaving them out would lose rows."""
    how = config(broker, topic)
    assert writer.write_all(how, [rows(1, 2)], Task(query, 0, 7)).rows == 2
    for other in ([rows(1, 2), rows(3)], [rows(1)]):
        with pytest.raises(WriteFailed, match=r"has written 2 rows of this batch, and gets [13] now"):
            writer.write_all(how, other, Task(query, 0, 7))
    assert writer.write_all(how, [rows(1), rows(2)], Task(query, 0, 7)).rows == 0
    assert sorted(numbers_of(broker, topic)) == [1, 2]


def test_a_task_without_rows_asks_for_nothing(broker, topic, query):
    assert writer.write_all(config(broker, topic), [rows()], Task(query, 0, 0)).rows == 0
    with logins.cluster(broker) as cluster:
        assert Transactions(cluster, f"kafkad.{query}.0").producer_epoch == 0


def test_a_task_that_fails_leaves_nothing_and_its_next_try_all(broker, topic, query):
    how = config(broker, topic, **{"kafka.batch.size": "100"})

    def failing():
        yield from (rows(number) for number in range(50))
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        writer.write_all(how, failing(), Task(query, 0, 0))
    assert numbers_of(broker, topic) == []
    assert writer.write_all(how, [rows(*range(50))], Task(query, 0, 0)).rows == 50
    assert sorted(numbers_of(broker, topic)) == list(range(50))


def test_a_task_that_runs_twice_at_once_writes_once(broker, topic, query):
    """Speculation: the second fences the first."""
    how = config(broker, topic)

    def overtaken():
        yield rows(*range(1000))
        assert writer.write_all(how, [rows(*range(1000))], Task(query, 0, 0)).rows == 1000
        yield rows(1000)

    with pytest.raises(WriteFailed):
        writer.write_all(how, overtaken(), Task(query, 0, 0))
    assert sorted(numbers_of(broker, topic)) == list(range(1000))


def test_a_broker_that_is_killed_in_mid_transaction(make_broker, query):
    broker = make_broker()
    topic = create_topic(broker, f"killed-{query}", 2)

    def batches():
        for piece in range(60):
            yield pa.record_batch({"value": pa.array([b"%d" % (piece * 1000 + n) for n in range(1000)])})
            if piece in (15, 40):
                broker.kill()
                broker.restart()

    how = config(broker, topic, **{"kafka.batch.size": "4000"})
    assert writer.write_all(how, batches(), Task(query, 0, 0)).rows == 60_000
    assert sorted(numbers_of(broker, topic)) == list(range(60_000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exactlyOnce": "maybe"}, "exactlyOnce is auto, true or false, not 'maybe'"),
        ({"exactlyOnce": "true", "kafka.acks": "1"}, "exactlyOnce=true asks for kafka.acks=all"),
        ({"kafka.transactional.id": "x"}, "each task has one of its own"),
        ({"kafka.transaction.timeout.ms": "0"}, "kafka.transaction.timeout.ms is at least 1"),
    ],
)
def test_options_that_do_not_go_are_refused(broker, options, said):
    with pytest.raises(WriteRefused, match=said):
        config(broker, "t", **options)


def test_what_cannot_be_once_is_said(broker, topic, query):
    with pytest.raises(WriteFailed, match="needs a streaming query, or the option jobId"):
        writer.write_all(config(broker, topic, exactlyOnce="true"), [rows(1)])
    long = config(broker, topic, **{"kafka.transaction.timeout.ms": "2000000000"})
    with pytest.raises(WriteFailed, match=r"INVALID_TRANSACTION_TIMEOUT.*exactlyOnce=false"):
        writer.write_all(long, [rows(1)], Task(query, 0, 0))
    off = config(broker, topic, exactlyOnce="false")
    for _ in range(2):
        assert writer.write_all(off, [rows(7)], Task(query, 0, 0)).rows == 1
    assert numbers_of(broker, topic) == [7, 7]


DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import kafkad.spark
broker, source, sink, checkpoint, java_options = json.loads(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.extraJavaOptions", java_options)
    .getOrCreate()
)
kafkad.spark.register(spark)
frame = (
    spark.readStream.format("kafkad").options(**broker)
    .option("subscribe", source).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 400)
    .load()
)
query = (
    frame.select("value").writeStream.format("kafkad").options(**broker)
    .option("topic", sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.mark.soak
def test_a_driver_that_is_killed_again_and_again(broker, unique, tmp_path, rounds):
    """The query reads a topic and writes another; each row is there once."""
    source, sink = create_topic(broker, unique("from"), 2), create_topic(broker, unique("to"), 2)
    count, kills = rounds(12_000, 120_000), rounds(2, 25)
    with logins.cluster(broker) as cluster:
        producer = Producer(cluster, source)
        for number in range(count):
            producer.send(b"%d" % number, partition=number % 2)
        producer.flush()
    prepare_spark()
    checkpoint = str(tmp_path / "checkpoint")
    arguments = json.dumps([logins.spark(broker), source, sink, checkpoint, " ".join(SPARK_JVM)])
    log = tmp_path / "driver.log"

    def start():
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, arguments],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def written():
        with logins.cluster(broker) as cluster:
            return sum(list_offsets(cluster, sink, dict.fromkeys((0, 1), LATEST)).values())

    killed = 0
    for _ in range(kills):
        before, driver = written(), start()
        deadline = time.monotonic() + 120
        while written() <= before + count // kills // 3 and driver.poll() is None:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        killed += driver.wait() == -signal.SIGKILL
    assert killed
    driver = start()
    assert driver.wait(120) == 0, log.read_text()[-4000:]
    assert sorted(numbers_of(broker, sink)) == list(range(count))
