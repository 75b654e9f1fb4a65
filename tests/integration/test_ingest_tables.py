"""Tables of `kafkad ingest` against a real broker: fetched, decoded, landed, compared offset by offset."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import Consumer
from kafkad.client.producer import Producer
from kafkad.ingest import dlq, landing, verify
from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.dead_letters import DlqSink
from kafkad.ingest.letter_topic import LetterTopic
from kafkad.ingest.table import Table, TaskReport
from kafkad.ingest.tables import open_table
from kafkad.spark.range_reader import RangeReader
from kafkad.values.decoder import value_decoder
from tests.ingest_world import kafkad
from tests.sparks import spark_session

KINDS = ["parquet", "delta", "iceberg"]
DDL = "id INT, name STRING, month INT"
ROWS, BAD_EVERY = 4000, 100
KAFKA = [
    ("_topic", pa.string()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", "UTC")),
]


def produce(bootstrap: str, topic: str) -> None:
    """ROWS rows in each partition; every BAD_EVERY-th has an id that is no INT."""
    with Cluster(bootstrap) as cluster:
        producer = Producer(cluster, topic)
        for n in range(ROWS):
            row = {"id": n if n % BAD_EVERY else 1 << 40, "name": f"ü{n}", "month": n % 12 + 1}
            for partition in producer.partitions:
                producer.send(
                    json.dumps(row).encode(), b"k%d" % n, partition=partition, headers=[("h", b"%d" % n)]
                )
        producer.flush()


def land(there: Table, bootstrap: str, topic: str, batch: int, ends: dict[Any, Any], ddl: str = DDL) -> Any:
    """What is between the table's end and `ends`."""
    settings = landing.LandSettings(("json", ddl, {}), "dlq")
    begin = there.next_offsets()
    reports = []
    for (_, partition), (start, end) in ends.items():
        start = max(start, begin.get((topic, partition), 0))
        reader = RangeReader(bootstrap, {}, topic, partition, start, end, headers=True)
        report = landing.land([(topic, partition, start, end, reader)], settings, there.staging("q"))
        reports.append(TaskReport.from_json(report.to_json()))
    return reports, lambda: there.commit("q", batch, reports)


def table_at(root: Path, kind: str, ddl: str = DDL, **more: Any) -> Table:
    decoded = value_decoder("json", ddl, {}).schema
    given = {"type": kind, "partition_by": ("month",), **more}
    return open_table(replace(DlqSink(str(root)), **given), pa.schema([*decoded, *KAFKA]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_lands_is_verified_and_its_dead_letters_are_replayed(
    kind: str, broker: Any, unique: Any, tmp_path: Path
):
    topic, letters = unique("landed"), unique("letters")
    produce(broker.bootstrap, topic)
    asked = verify.Broker(broker.bootstrap)
    with Cluster(broker.bootstrap) as cluster:
        partitions = [(topic, number) for number in cluster.partitions(topic)]
    bounds = asked.bounds(partitions)
    bad = ROWS // BAD_EVERY * len(partitions)
    good = ROWS * len(partitions) - bad

    there = table_at(tmp_path / "t", kind)
    half = {where: (0, end // 2) for where, (_, end) in bounds.items()}
    land(there, broker.bootstrap, topic, 0, half)[1]()
    reports, commit = land(there, broker.bootstrap, topic, 1, bounds)
    to_topic = LetterTopic(there, "q", topic, letters, lambda: Cluster(broker.bootstrap))
    to_topic.keep(1, reports)
    commit()
    sent = to_topic.settle()

    found = verify.verify(there, asked, starts=dict.fromkeys(partitions, 0))
    assert found.clean, found.sentences()
    assert sum(each.rows for each in found.partitions) == good
    assert sum(each.in_dlq for each in found.partitions) == bad
    assert sent == bad // 2
    with Cluster(broker.bootstrap) as cluster:
        consumer = Consumer(cluster, letters)
        consumer.assign(dict.fromkeys(cluster.partitions(letters), 0))
        got: list[Any] = []
        while len(got) < sent:
            got += consumer.poll()
    told = dict(got[0].headers)
    assert told["kafkad.topic"] == topic.encode() and int(told["kafkad.offset"]) % BAD_EVERY == 0
    assert told["h"] == told["kafkad.offset"] and "id" in told["kafkad.reason"].decode()

    wider = "id INT, name STRING, month INT, more DOUBLE"  # a column more; the ids are still too large
    there = table_at(tmp_path / "t", kind, wider)
    settings = landing.LandSettings(("json", wider, {}), "dlq")
    assert dlq.replay(there, settings).landed == 0
    assert verify.verify(there, asked).clean

    class Lenient:
        """Takes any id, by leaving it null."""

        schema = value_decoder("json", wider, {}).schema

        def decode(self, values: pa.Array) -> Any:
            text = [value.replace(str(1 << 40).encode(), b"null") for value in values.to_pylist()]
            return value_decoder("json", wider, {}).decode(pa.array(text, pa.binary()))

    did = dlq.replay(there, settings, Lenient())
    assert (did.found, did.landed, did.still_bad) == (bad, bad, 0)
    assert dlq.replay(there, settings, Lenient()).found == 0
    found = verify.verify(there, asked, starts=dict.fromkeys(partitions, 0))
    assert found.clean, found.sentences()
    assert sum(each.rows for each in found.partitions) == good + bad
    there.compact()
    assert verify.verify(there, asked).clean
    files = [str(there.root / file.path) for file in there.files()]
    names = duckdb.sql(f"select count(distinct name), count(id) from read_parquet({files})").fetchall()
    assert names == [(ROWS, good)]


def test_a_file_that_is_gone_is_told_offset_by_offset(broker: Any, unique: Any, tmp_path: Path):
    topic = unique("gone")
    produce(broker.bootstrap, topic)
    asked = verify.Broker(broker.bootstrap)
    bounds = asked.bounds([(topic, 0)])
    there = table_at(tmp_path / "t", "parquet", partition_by=())
    for batch, end in enumerate((1000, 2000, ROWS)):
        land(there, broker.bootstrap, topic, batch, {(topic, 0): (0, min(end, bounds[topic, 0][1]))})[1]()
    middle = there.files()[1]
    state = there.state  # type: ignore[attr-defined]
    del state.files[middle.path]
    found = verify.verify(there, asked)
    assert found.exit_code == 1
    assert found.partitions[0].lost == 1000 - 10, "those of the DLQ are not lost"
    assert found.sentences()[0] == "offsets 1001 to 1099 of " + topic + "-0 are lost"
    os.unlink(there.root / middle.path)


def test_the_brokers_death_between_two_batches_changes_nothing(make_broker: Any, tmp_path: Path):
    broker = make_broker()
    produce(broker.bootstrap, "topic")
    there = table_at(tmp_path / "t", "parquet")
    land(there, broker.bootstrap, "topic", 0, {("topic", 0): (0, 1500)})[1]()
    reports, commit = land(there, broker.bootstrap, "topic", 1, {("topic", 0): (0, ROWS)})
    broker.kill()
    commit()  # it asks no broker
    broker.restart()
    asked = verify.Broker(broker.bootstrap)
    found = verify.verify(there, asked, starts={("topic", 0): 0}, ends={("topic", 0): ROWS})
    assert found.clean and found.partitions[0].lag == 0
    assert there.next_offsets() == {("topic", 0): ROWS}
    assert [report.covered[0].start for report in reports] == [1500]


def test_a_table_that_lacks_what_its_checkpoint_calls_done_is_refused(
    broker: Any, unique: Any, tmp_path: Path
):
    """It was made anew, or brought back from a copy: to go on would leave rows out in silence."""
    topic = unique("gone")
    produce(broker.bootstrap, topic)
    pipeline = tmp_path / "p.toml"
    pipeline.write_text(
        f'[source]\nbootstrap = "{broker.bootstrap}"\ntopics = "{topic}"\n'
        '[sink]\npath = "table"\ncheckpoint = "checkpoint"\n'
    )
    with Checkpoint(tmp_path / "checkpoint", "p") as checkpoint:
        checkpoint.done(checkpoint.plan({(topic, 0): 0}, {(topic, 0): 0}), {})
        checkpoint.done(checkpoint.plan({}, {(topic, 0): 10}), {"offsets": 10, "rows": 10})
    done = kafkad("ingest", "run", str(pipeline), check=False)
    assert done.returncode == 1
    assert "table lacks batch 1, which the checkpoint" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_spark_reads_the_table_as_it_is(broker: Any, unique: Any, tmp_path: Path):
    """The encodings, the folders' values and the hidden folders, by Spark's vectorized reader."""
    topic = unique("seen")
    produce(broker.bootstrap, topic)
    there = table_at(tmp_path / "t", "parquet")
    land(there, broker.bootstrap, topic, 0, {(topic, 0): (0, ROWS)})[1]()
    with spark_session(cores=1) as spark:
        row = (
            spark.read.parquet(str(tmp_path / "t"))
            .selectExpr(
                "count(*) c", "sum(id) s", "max(_offset) o", "count(distinct month) m", "min(_timestamp) t"
            )
            .first()
        )
        assert row is not None
        good = [n for n in range(ROWS) if n % BAD_EVERY]
        assert (row.c, row.s, row.o, row.m) == (len(good), sum(good), ROWS - 1, 12)
        assert row.t is not None
        letters = spark.read.parquet(*map(str, (tmp_path / "t" / "_dlq").glob("*.dlq")))
        assert letters.count() == ROWS // BAD_EVERY
