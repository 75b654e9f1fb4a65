"""Spark itself over the writer and over segment files: format("kafkad") writes, and reads what it wrote,
through the broker and beside it."""

import time

import pytest

from kafkad.spark import segment_scan
from kafkad.spark.options import read_options
from tests import logins
from tests.clients import create_topic, wait_until
from tests.conftest import new_broker
from tests.sparks import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.secured]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    config = {"replica.high.watermark.checkpoint.interval.ms": 100}
    with new_broker("kafkad", tmp_path_factory.mktemp("files"), config) as running:
        running.directory = running.data_dir
        yield running


@pytest.fixture(scope="module")
def spark():
    with spark_session({"spark.sql.python.filterPushdown.enabled": "true"}) as running:
        yield running


ROWS = 6000


def write(frame, broker, topic, **options):
    writer = frame.write.format("kafkad").options(**logins.spark(broker))
    writer.option("topic", topic).options(**options).mode("append").save()


def load(spark, where, topic, **options):
    """`where`: a broker, or the path of its directory."""
    beside = isinstance(where, str)
    place = {"logDir": where} if beside else logins.spark(where)
    return spark.read.format("kafkad").options(**place, subscribe=topic, **options).load()


def settled(broker, topic, count):
    options = read_options({"logDir": str(broker.directory), "topic": topic}, streaming=False)
    wait_until(lambda: sum(part.end - part.start for part in segment_scan.plan(options)) == count)


def test_spark_writes_and_reads_back(spark, broker):
    topic = create_topic(broker, f"frame-{time.time_ns()}", 3, {"segment.bytes": "1048576"})
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        "id % 3 = 0 as unused",
        "case when id % 5 = 0 then null else concat('k', id) end as key",
        "case when id % 7 = 0 then null else to_json(struct(id, repeat('x', 100) as text)) end as value",
        "case when id % 10 = 0 then array(named_struct('key', 'id', 'value', cast(string(id) as binary)))"
        " end as headers",
        "case when id % 2 = 0 then cast(id % 3 as int) end as partition",
    )
    write(frame, broker, topic, **{"kafka.compression.type": "zstd"})
    settled(broker, topic, ROWS)
    columns = ["cast(key as string) key", "cast(value as string) value", "headers"]
    for where in (broker, str(broker.directory)):
        found = load(spark, where, topic, includeHeaders="true")
        assert found.selectExpr(*columns).exceptAll(frame.select("key", "value", "headers")).count() == 0
    rows = {}
    for name, where in (("broker", broker), ("files", str(broker.directory))):
        part = load(spark, where, topic, targetPartitionBytes="200k").where(
            "partition = 1 and offset between 100 and 119"
        )
        rows[name] = [tuple(row) for row in part.orderBy("offset").collect()]
    assert rows["files"] == rows["broker"] and len(rows["files"]) == 20
    typed = load(
        spark, str(broker.directory), topic, valueFormat="json", valueSchema="id bigint, text string"
    )
    total = typed.selectExpr("count(id) n", "sum(id) s").first()
    expected = frame.where("value is not null").count()
    assert total.n == expected
    assert total.s == sum(n for n in range(ROWS) if n % 7)


def test_a_stream_is_written(spark, broker, tmp_path):
    topic = create_topic(broker, f"stream-{time.time_ns()}", 2)
    spark.range(5000).selectExpr("cast(id as string) value", "cast(id as string) key").write.parquet(
        str(tmp_path / "in")
    )
    stream = spark.readStream.schema("value string, key string").parquet(str(tmp_path / "in"))
    query = (
        stream.writeStream.format("kafkad")
        .options(**logins.spark(broker), topic=topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    assert (
        load(spark, broker, topic).selectExpr("sum(cast(cast(value as string) as int)) s").first().s
        == 5000 * 4999 // 2
    )


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id", {}, "no column 'value'"),
        ("id as value", {}, "'value' is bigint; it must be string or binary"),
        ("'v' as value", {"kafka.compression.type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ("'v' as value", {"kafka.bach.size": "1"}, "did you mean 'batch.size'"),
        ("'v' as value, 5 as partition", {}, "is for partition 5 of"),
    ],
)
def test_what_does_not_go_is_one_sentence(spark, broker, columns, options, said):
    topic = create_topic(broker, f"refused-{time.time_ns()}", 2)
    with pytest.raises(Exception, match=said):
        write(spark.range(3).selectExpr(*columns.split(", ")), broker, topic, **options)
