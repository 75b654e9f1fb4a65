"""The topic of dead letters: each letter is there once for readers of committed data, whatever dies when.

A driver without Spark lands three batches and dies at a step; another one finishes. The whole of `kafkad
ingest` is killed in test_ingest_flights."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, READ_UNCOMMITTED, Consumer
from kafkad.client.offsets import LATEST, list_offsets
from kafkad.ingest import dlq, landing, letter_topic
from kafkad.ingest.letter_topic import LetterTopic
from kafkad.ingest.table import DIE_AT
from kafkad.ingest.tables import open_table
from kafkad.protocol.errors import KafkaError
from tests.clients import create_topic, wait_until
from tests.jvm import ZOOKEEPER_LINE, JvmKafka
from tests.unit import ingest_world as world

BATCHES = 3
BAD = [n for n in range(world.BATCH * BATCHES) if n % world.BAD_EVERY == 0 and n % world.HOLE_EVERY]
EACH_ONCE = Counter((partition, n) for partition in (0, 1) for n in BAD)
STEPS = ("letters kept", "intent", "appended", "dlq", "letters written", "letters sent", "letters gone")


def letters_of(bootstrap, topic, root, exactly_once=True):
    there = open_table(world.sink_of("parquet", Path(root)), world.LANDED)
    connect = lambda: Cluster(bootstrap)  # noqa: E731
    return LetterTopic(there, world.APPLICATION, topic, topic, connect, exactly_once=exactly_once)


def land(letters, batch):
    """As ingest/run.py does it."""
    there, settings = letters.table, landing.LandSettings(None, bad="dlq")
    staging = there.staging(world.APPLICATION)
    start, end = batch * world.BATCH, (batch + 1) * world.BATCH
    reports = []
    for partition in (0, 1):
        ranges = [(world.TOPIC, partition, start, end, world.fetched(partition, start, end))]
        reports.append(landing.land(ranges, settings, staging, world.Decoder()))
    letters.keep(batch, reports)
    there.commit(world.APPLICATION, batch, reports)


def job(bootstrap, topic, root, exactly_once=True):
    letters = letters_of(bootstrap, topic, root, exactly_once)
    letters.table.recover(world.APPLICATION)
    letters.settle()
    for batch in range(BATCHES):
        if not letters.table.committed(world.APPLICATION, batch):
            land(letters, batch)
        letters.settle()


def driver(monkeypatch, broker, topic, root, dies_at=None):
    """Its exit code."""
    arguments = f"{broker.bootstrap!r}, {topic!r}, {str(root)!r}"
    code = f"from tests.integration import test_ingest_letters as t; t.job({arguments})"
    with monkeypatch.context() as patched:
        if dies_at is not None:
            patched.setenv(DIE_AT, dies_at)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert dies_at is not None or done.returncode == 0, done.stderr
    return done.returncode


def found_in(broker, topic, isolation=READ_COMMITTED):
    """How often each letter is there, by the partition and offset that it names."""
    with Cluster(broker.bootstrap) as cluster:
        partitions = dict.fromkeys(cluster.partitions(topic), LATEST)
        ends = list_offsets(cluster, topic, partitions, READ_UNCOMMITTED)
        wait_until(lambda: list_offsets(cluster, topic, partitions, READ_COMMITTED) == ends)
        consumer = Consumer(cluster, topic, wait_ms=50, isolation=isolation)
        consumer.assign(dict.fromkeys(partitions, 0))
        found = Counter()
        while any(consumer.positions[p] < end for p, end in ends.items()):
            for received in consumer.poll():
                told = dict(received.headers)
                found[int(told["kafkad.partition"]), int(told["kafkad.offset"])] += 1
                assert received.value == b"bad %d" % int(told["kafkad.offset"])
    return found


@pytest.mark.parametrize("dies_at", STEPS)
def test_each_letter_is_there_once_wherever_the_driver_dies(broker, unique, tmp_path, monkeypatch, dies_at):
    topic = create_topic(broker, unique("letters"), 2)
    assert driver(monkeypatch, broker, topic, tmp_path / "t", dies_at) == -9
    driver(monkeypatch, broker, topic, tmp_path / "t")
    assert found_in(broker, topic) == EACH_ONCE
    outbox = letters_of(broker.bootstrap, topic, tmp_path / "t").outbox
    assert list(outbox.glob("*")) == []


@pytest.mark.soak
def test_each_letter_is_there_once_at_every_step(broker, unique, tmp_path, monkeypatch, rounds):
    for step in range(5, rounds(6, 1000)):
        topic = create_topic(broker, unique(f"letters-{step}"), 2)
        code = driver(monkeypatch, broker, topic, tmp_path / "t", str(step))
        driver(monkeypatch, broker, topic, tmp_path / "t")
        assert found_in(broker, topic) == EACH_ONCE, step
        shutil.rmtree(tmp_path / "t")
        if code == 0:
            break


@pytest.mark.java
def test_each_letter_is_there_once_in_kafka_of_the_old_protocol(unique, tmp_path, monkeypatch):
    with JvmKafka(tmp_path / "data", version=ZOOKEEPER_LINE) as broker:
        topic = create_topic(broker, unique("letters"), 2)
        assert driver(monkeypatch, broker, topic, tmp_path / "t", "letters written") == -9
        assert driver(monkeypatch, broker, topic, tmp_path / "t", "letters sent") == -9
        driver(monkeypatch, broker, topic, tmp_path / "t")
        assert found_in(broker, topic) == EACH_ONCE


@pytest.mark.parametrize("step", ["letters written", "letters sent"])
def test_a_broker_that_is_killed_meanwhile(make_broker, unique, tmp_path, monkeypatch, step):
    broker = make_broker()
    topic = create_topic(broker, unique("letters"), 2)

    def killed(name):
        if name == step:
            broker.kill()
            broker.restart()

    monkeypatch.setattr(letter_topic, "step", killed)
    job(broker.bootstrap, topic, tmp_path / "t")
    assert found_in(broker, topic) == EACH_ONCE


def test_a_second_driver_fences_the_first(broker, unique, tmp_path, monkeypatch):
    """Two copies of a table, and of its outbox: not in one place, where a lock keeps drivers apart."""
    topic = create_topic(broker, unique("letters"), 2)
    first = letters_of(broker.bootstrap, topic, tmp_path / "one")
    land(first, 0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = letters_of(broker.bootstrap, topic, tmp_path / "two")
    its = sum(1 for _, n in EACH_ONCE if n < world.BATCH)

    def overtaken(name):
        if name == "letters written":
            monkeypatch.undo()
            assert second.settle() == its

    monkeypatch.setattr(letter_topic, "step", overtaken)
    with pytest.raises(KafkaError):
        first.settle()
    assert first.settle() == 0
    assert set(found_in(broker, topic).values()) == {1}


def test_a_replay_between_the_table_and_the_topic_takes_no_letter_away(broker, unique, tmp_path):
    topic = create_topic(broker, unique("letters"), 2)
    letters = letters_of(broker.bootstrap, topic, tmp_path / "t")
    land(letters, 0)
    settings = landing.LandSettings(None, bad="dlq")
    assert dlq.replay(letters.table, settings, world.Decoder(knows_better=True)).landed
    assert letters.settle() == len(found_in(broker, topic)) > 0
    assert letters.settle() == 0


def test_a_commit_that_fails_behind_the_tables_keeps_the_letters_of_the_batch(
    broker, unique, tmp_path, monkeypatch
):
    """The batch is done again then, and its letters may be others: the first ones are the table's."""
    topic = create_topic(broker, unique("letters"), 2)
    letters = letters_of(broker.bootstrap, topic, tmp_path / "t")
    with monkeypatch.context() as broken:

        def fails(*_):
            raise OSError("the disk is full")

        broken.setattr(letters.table, "carry_out", fails)
        with pytest.raises(OSError, match="the disk is full"):
            land(letters, 0)
    kept = sorted(letters.outbox.glob("*/*"))
    land(letters, 0)
    assert sorted(letters.outbox.glob("*/*")) == kept
    letters.settle()
    assert set(found_in(broker, topic).values()) == {1}


def test_without_transactions_nothing_is_lost(broker, unique, tmp_path):
    topic = create_topic(broker, unique("letters"), 2)
    job(broker.bootstrap, topic, tmp_path / "t", exactly_once=False)
    assert found_in(broker, topic) == EACH_ONCE


def test_a_broker_that_allows_no_such_transaction_is_told_with_the_way_out(make_broker, unique, tmp_path):
    broker = make_broker({"transaction.max.timeout.ms": "1000"})
    letters = letters_of(broker.bootstrap, create_topic(broker, unique("letters")), tmp_path / "t")
    land(letters, 0)
    with pytest.raises(ValueError, match=r"INVALID_TRANSACTION_TIMEOUT.*exactly_once = false"):
        letters.settle()
    assert len(list(letters.outbox.glob("*"))) == 1


def test_a_batch_without_dead_letters_asks_no_broker(tmp_path):
    letters = letters_of("127.0.0.1:1", "letters", tmp_path / "t")
    settings = landing.LandSettings(None, bad="dlq")
    staging = letters.table.staging(world.APPLICATION)
    rows = [row for row in world.fetched(0, 1, 6) if isinstance(row, pa.RecordBatch)]
    report = landing.land([(world.TOPIC, 0, 1, 6, rows)], settings, staging, world.Decoder())
    letters.keep(0, [report])
    letters.table.commit(world.APPLICATION, 0, [report])
    assert (letters.settle(), letters.outbox.exists()) == (0, False)
