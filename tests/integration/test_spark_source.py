"""format("kafkad") in real Spark jobs: batch, streaming, limits, restarts, kills, lost data, bad values.

One session for all; the topics are small, since each test is about which offsets are read, not how fast.
"""

import json
import logging
import sys
import threading
import time

import pyspark
import pytest

from kafkad.client.offsets import committed_offsets
from kafkad.client.producer import Producer
from tests import logins
from tests.clients import admin_client, create_topic, read_partition
from tests.jvm import JARS, fetch_jars
from tests.secured_token import token_world
from tests.sparks import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.secured]

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
ADMISSION = VERSION >= (4, 2)
CHECKPOINTING = ".checkpointing" if VERSION >= (4, 1) else ""  # where Spark keeps a class
FOR_EVER = {"retention.ms": "-1"}  # the records say that they are of 2023
needs_admission = pytest.mark.skipif(
    not ADMISSION, reason="PySpark 4.2 tells a source where its batch starts"
)


@pytest.fixture(scope="module")
def spark():
    name = "spark-sql-kafka"
    jars = [str(path) for path in sorted((JARS / name).glob("*.jar"))] if fetch_jars.is_complete(name) else []
    settings = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass":
            f"org.apache.spark.sql.execution.streaming{CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
        "spark.jars": ",".join(jars),
    }  # fmt: skip
    with spark_session(settings) as running:
        yield running


@pytest.fixture
def topic(broker):
    return create_topic(broker, f"source-{time.time_ns()}", 2, FOR_EVER)


def fill(broker, topic, numbers, partition=None, **record):
    """Values "0", "1" …, number n in partition n % 2."""
    with logins.cluster(broker) as cluster:
        producer = Producer(cluster, topic)
        for n in numbers:
            producer.send(
                record.get("value", lambda n: b"%d" % n)(n),
                b"k%d" % n,
                partition=n % 2 if partition is None else partition,
                timestamp=1_700_000_000_000 + n * 1000,
                headers=[("n", b"%d" % n)] if n % 10 == 0 else None,
            )
        producer.flush()


def source(reader, broker, topic, **options):
    given = {**logins.spark(broker), "subscribe": topic}
    return reader.format("kafkad").options(**{k: v for k, v in (given | options).items() if v is not None})


def batch(spark, broker, topic, **options):
    return source(spark.read, broker, topic, **options).load()


def stream(spark, broker, topic, **options):
    return source(spark.readStream, broker, topic, **({"startingOffsets": "earliest"} | options)).load()


def land(frame, path, **trigger):
    """A query into `path`/table with its checkpoint beside it."""
    writer = frame.writeStream.format("parquet").option("path", f"{path}/table")
    return (
        writer.option("checkpointLocation", f"{path}/checkpoint")
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def landed(spark, path):
    rows = spark.read.parquet(f"{path}/table").select("value").collect()
    return sorted(int(bytes(row.value)) for row in rows)


def sentence(raised):
    """What the source said, out of Spark's long message."""
    from kafkad.spark.doctor import essence

    return essence(str(raised.value))


# -- batch --------------------------------------------------------------------------------------------------


def test_a_batch_has_kafkas_columns_and_every_record(spark, broker, topic):
    fill(broker, topic, range(1000))
    frame = batch(spark, broker, topic, includeHeaders="true", minPartitions="6")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert frame.rdd.getNumPartitions() == 6
    rows = sorted(frame.collect(), key=lambda row: int(bytes(row.value)))
    assert [(bytes(row.key), row.partition, row.offset) for row in rows] == [
        (b"k%d" % n, n % 2, n // 2) for n in range(1000)
    ]
    assert {(row.topic, row.timestampType) for row in rows} == {(topic, 0)}
    assert rows[7].timestamp.timestamp() == 1_700_000_007
    assert [(header.key, bytes(header.value)) for header in rows[10].headers] == [("n", b"10")]
    assert not rows[11].headers


def test_offsets_times_and_filters_bound_a_batch(spark, broker, topic):
    fill(broker, topic, range(400))
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 20, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 50, "1": -1}}),
    }
    frame = batch(spark, broker, topic, **bounds)
    assert [frame.where(f"partition = {p}").count() for p in range(2)] == [30, 200]
    by_time = batch(spark, broker, topic, startingTimestamp="1700000100000", endingTimestamp="1700000110000")
    assert sorted(int(bytes(row.value)) for row in by_time.collect()) == list(range(100, 110))
    assigned = batch(spark, broker, topic, subscribe=None, assign=json.dumps({topic: [1]}))
    assert {row.partition for row in assigned.select("partition").collect()} == {1}
    late = batch(spark, broker, topic).where("timestamp >= timestamp '2023-11-14 22:19:50' and partition = 0")
    assert sorted(int(bytes(row.value)) for row in late.collect()) == list(range(390, 400, 2))
    one = batch(spark, broker, topic).where("offset in (3, 7) and partition = 1")
    assert sorted(int(bytes(row.value)) for row in one.collect()) == [7, 15]
    if ADMISSION:
        assert one.rdd.getNumPartitions() == 2  # only these offsets are fetched


def test_only_wanted_columns_leave_the_worker(spark, broker, topic):
    fill(broker, topic, range(10))
    frame = batch(spark, broker, topic, columns="offset,partition")
    assert frame.columns == ["partition", "offset"]
    assert sorted(map(tuple, frame.collect())) == [(p, o) for p in range(2) for o in range(5)]


def test_sql_reads_without_filters_that_are_pushed(spark, broker, topic):
    fill(broker, topic, range(10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        given = logins.spark(broker) | {"subscribe": topic}
        options = ", ".join(f"`{name}` '{text}'" for name, text in given.items())
        spark.sql(f"create or replace temporary view kafkad_view using kafkad options ({options})")
        assert spark.sql("select max(offset) from kafkad_view where partition = 1").first()[0] == 4
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_what_is_wrong_with_a_batch_is_one_sentence(spark, broker, topic):
    fill(broker, topic, range(10))
    cases = [
        (
            {"startingOfsets": "earliest"},
            "option startingofsets is not known (did you mean startingOffsets?)",
        ),
        ({"subscribe": "nowhere"}, "names topic nowhere, which does not exist"),
        ({"startingTimestamp": "1800000000000"}, "has no record at or after 1800000000000"),
        (
            {"startingOffsets": json.dumps({topic: {"0": 1}})},
            f"must name all partitions, and {topic}-1 is missing",
        ),
    ]
    for options, expected in cases:
        with pytest.raises(Exception) as refused:
            batch(spark, broker, topic, **options).count()
        assert expected in sentence(refused)
        assert "Traceback" not in str(refused.value), "HUNTS U9"
    with pytest.raises(Exception) as refused:
        source(spark.read, broker, topic).schema("a int").load().count()
    assert "leave out .schema(…)" in sentence(refused)
    assert "Traceback" not in str(refused.value)


def test_a_batch_write_names_its_mode(spark, broker, topic):
    """HUNTS U5: docs/spark.md says so; Spark demands it of every Python source."""
    write = spark.range(3).selectExpr("cast(id as string) value").write.format("kafkad")
    write = write.options(**logins.spark(broker)).option("topic", topic)
    with pytest.raises(Exception, match="Append"):
        write.save()
    with pytest.raises(Exception, match="append") as refused:
        write.mode("overwrite").save()
    assert "Traceback" not in str(refused.value), "HUNTS U9"
    write.mode("append").save()
    assert batch(spark, broker, topic).count() == 3


def test_offsets_that_are_gone_fail_or_are_left_out(spark, broker, topic):
    from confluent_kafka import TopicPartition

    fill(broker, topic, range(100))
    admin = admin_client(broker)
    for deleted in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        deleted.result(30)
    given = {"startingOffsets": json.dumps({topic: {"0": 10, "1": 0}})}
    with pytest.raises(Exception) as lost:
        batch(spark, broker, topic, **given).count()
    assert f"{topic}-0" in sentence(lost)
    rest = batch(spark, broker, topic, **given, failOnDataLoss="false")
    assert sorted((row.partition, row.offset) for row in rest.select("partition", "offset").collect()) == [
        *((0, offset) for offset in range(20, 50)),
        *((1, offset) for offset in range(50)),
    ]


def test_offsets_that_are_not_there_yet_are_waited_for(spark, broker, topic):
    fill(broker, topic, range(100))
    given = {
        "startingOffsets": json.dumps({topic: {"0": 10, "1": 0}}),
        "endingOffsets": json.dumps({topic: {"0": 60, "1": 50}}),
        "kafkaConsumer.pollTimeoutMs": "2000",
    }
    with pytest.raises(Exception) as late:
        batch(spark, broker, topic, **given).count()
    assert "FetchTimeout" in sentence(late) and f"{topic}-0" in sentence(late)


# -- streaming ----------------------------------------------------------------------------------------------


@needs_admission
def test_a_stream_is_cut_into_batches_and_goes_on_after_a_restart(spark, broker, topic, tmp_path):
    fill(broker, topic, range(500))
    options = {"maxOffsetsPerTrigger": "200", "commitGroup": f"{topic}-group"}
    query = land(stream(spark, broker, topic, **options), tmp_path)
    query.awaitTermination()
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [200, 200, 100]
    assert json.loads(query.recentProgress[0].sources[0].latestOffset) == {topic: {"0": 250, "1": 250}}
    with logins.cluster(broker) as cluster:
        committed = committed_offsets(cluster, f"{topic}-group")
    assert committed == {(topic, 0): 250, (topic, 1): 250}
    fill(broker, topic, range(500, 600))
    query = land(stream(spark, broker, topic, **options), tmp_path)
    query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == 100
    assert landed(spark, tmp_path) == list(range(600))


def test_a_running_stream_takes_up_new_records_and_new_partitions(spark, broker, topic, tmp_path):
    fill(broker, topic, range(100))
    query = land(stream(spark, broker, topic), tmp_path, processingTime="0 seconds")
    try:
        query.processAllAvailable()
        grow(broker, topic, 3)
        fill(broker, topic, range(100, 150), partition=2)
        until_read(query, 150)
        assert landed(spark, tmp_path) == list(range(150))
    finally:
        query.stop()


def grow(broker, topic, partitions):
    from confluent_kafka.admin import NewPartitions

    admin = admin_client(broker)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


def until_read(query, rows, seconds=60):
    """Waits until batches with so many rows are done."""
    deadline = time.monotonic() + seconds
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_broker_that_is_killed_in_mid_batch_delays_the_stream(spark, make_broker, tmp_path):
    broker = make_broker()
    topic = create_topic(broker, "killed", 2, FOR_EVER)
    fill(broker, topic, range(40_000), value=lambda n: b"%08d" % n + b" " * 200)
    limit = {"maxOffsetsPerTrigger": "4000"} if ADMISSION else {}
    # small fetches, so that the broker dies between two of a batch
    options = limit | {"kafka.max.partition.fetch.bytes": "65536"}
    frame = stream(spark, broker, topic, **options).selectExpr("trim(cast(value as string)) as value")
    query = land(frame.selectExpr("cast(value as binary) as value"), tmp_path)
    kills = []

    def kill():
        """Twice, each time as soon as a batch more is done: the next is under way then."""
        while query.isActive and len(kills) < 2:
            if len(query.recentProgress) > len(kills) or not ADMISSION:
                broker.kill()
                broker.restart()
                kills.append(time.monotonic())
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    query.awaitTermination(300)
    killer.join()
    assert len(kills) == 2 and not query.isActive
    assert landed(spark, tmp_path) == list(range(40_000))


def test_a_topic_that_was_made_anew_is_data_loss(spark, broker, topic, tmp_path):
    fill(broker, topic, range(100))
    land(stream(spark, broker, topic), tmp_path).awaitTermination()
    admin = admin_client(broker)
    admin.delete_topics([topic])[topic].result(30)
    create_topic(broker, topic, 2, FOR_EVER)
    fill(broker, topic, range(1000, 1020))
    hurry = {"fetchOffset.retryIntervalMs": "10"}
    with pytest.raises(Exception) as lost:
        land(stream(spark, broker, topic, **hurry), tmp_path).awaitTermination()
    assert f"partition {topic}-0's offset was changed from 50 to 10" in sentence(lost)
    assert "failOnDataLoss=false" in sentence(lost)
    query = land(stream(spark, broker, topic, failOnDataLoss="false", **hurry), tmp_path)
    query.awaitTermination()
    fill(broker, topic, range(1020, 1030))
    land(stream(spark, broker, topic, failOnDataLoss="false", **hurry), tmp_path).awaitTermination()
    assert landed(spark, tmp_path) == [*range(100), *range(1020, 1030)]  # as the connector goes on


@pytest.mark.java
@pytest.mark.skipif(not ADMISSION, reason="the connector 4.2.0 does not run on older PySparks")
def test_a_checkpoint_of_the_connector_goes_on_with_the_source(spark, broker, topic, tmp_path):
    if not fetch_jars.is_complete("spark-sql-kafka"):
        pytest.fail("the jars of Spark's connector are missing (make test fetches them)")
    fill(broker, topic, range(100))
    theirs = spark.readStream.format("kafka").options(**logins.spark(broker))
    frame = theirs.option("subscribe", topic).option("startingOffsets", "earliest").load()
    land(frame, tmp_path).awaitTermination()
    fill(broker, topic, range(100, 150))
    query = land(stream(spark, broker, topic, startingOffsets="latest"), tmp_path)
    query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == 50
    assert landed(spark, tmp_path) == list(range(150))
    fill(broker, topic, range(150, 170))
    land(frame, tmp_path).awaitTermination()  # and back
    assert landed(spark, tmp_path) == list(range(170))


# -- typed values -------------------------------------------------------------------------------------------


def document(n):
    return (
        b'{"n": "twelve"}'
        if n % 10 == 3
        else json.dumps({"n": n, "word": f"w{n}", "timestamp": "x"}).encode()
    )


TYPED = {"valueFormat": "json", "valueSchema": "n BIGINT, word STRING"}


def test_typed_columns_stand_beside_kafkas(spark, broker, topic):
    fill(broker, topic, range(10), value=lambda n: json.dumps({"n": n, "word": f"w{n}"}).encode())
    frame = batch(spark, broker, topic, **TYPED)
    assert frame.columns == ["n", "word", "key", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert sorted((row.n, row.word, row.partition, row.offset) for row in frame.collect()) == [
        (n, f"w{n}", n % 2, n // 2) for n in range(10)
    ]
    with pytest.raises(Exception) as clash:
        batch(spark, broker, topic, **(TYPED | {"valueSchema": "n BIGINT, timestamp STRING"}))
    assert "say option metadataPrefix" in sentence(clash)
    frame = batch(
        spark,
        broker,
        topic,
        valueFormat="json",
        valueSchema="n BIGINT, timestamp STRING",
        metadataPrefix="_",
        columns="n,_offset,_timestamp",
    )
    assert frame.columns == ["n", "_offset", "_timestamp"]
    assert frame.where("_offset = 2").count() == 2


def test_bad_records_fail_with_their_place(spark, broker, topic):
    fill(broker, topic, range(10), value=document)
    with pytest.raises(Exception) as bad:
        batch(spark, broker, topic, **TYPED).count()
    assert f"the value of {topic}-1 at offset 1 is not json of valueSchema" in sentence(bad)


def test_bad_records_become_nulls_columns_or_dead_letters(spark, broker, topic):
    fill(broker, topic, range(50), value=document)
    nulls = batch(spark, broker, topic, **TYPED, badRecords="null").collect()
    assert sorted(row.offset for row in nulls if row.n is None) == [1, 6, 11, 16, 21]
    told = batch(spark, broker, topic, **TYPED, badRecords="column").where("_error is not null").collect()
    assert sorted((row.offset, row.n, bytes(row._raw)) for row in told) == [
        (offset, None, b'{"n": "twelve"}') for offset in (1, 6, 11, 16, 21)
    ]
    dead = create_topic(broker, f"{topic}-dead", 1)
    good = batch(spark, broker, topic, **TYPED, badRecords=f"dlq:{dead}")
    assert sorted(row.n for row in good.collect()) == [n for n in range(50) if n % 10 != 3]
    letters = read_partition(broker, dead, 5)
    assert {letter.value() for letter in letters} == {b'{"n": "twelve"}'}
    headers = [dict(letter.headers()) for letter in letters]
    headers.sort(key=lambda each: int(each["kafkad.offset"]))
    assert [int(each["kafkad.offset"]) for each in headers] == [1, 6, 11, 16, 21]
    assert headers[0]["kafkad.topic"] == topic.encode() and headers[0]["kafkad.partition"] == b"1"
    assert headers[0]["kafkad.timestamp"] == b"1700000003000" and headers[0]["kafkad.reason"]


# -- what is said when it cannot work -----------------------------------------------------------------------


def test_registering_tells_that_the_workers_have_another_python(spark, tmp_path):
    import kafkad.spark

    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E -I "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ImportError) as told:
        kafkad.spark.check_worker_python(str(bare))
    assert f"PYSPARK_PYTHON={sys.executable}" in str(told.value) and str(bare) in str(told.value)
    kafkad.spark.register(spark)  # this session's is right


def test_workers_of_spark_end_in_silence(spark):
    def whose_worker(rows):
        import sys

        import pyarrow as pa

        from kafkad.spark.worker import task_begins

        task_begins()
        for _ in rows:
            yield pa.record_batch([[sys.modules["__main__"].worker.__module__]], names=["module"])

    rows = spark.range(0, 1, 1, 1).mapInArrow(whose_worker, "module string").collect()
    assert [row.module for row in rows] == ["kafkad.spark.worker"]


def test_what_is_wrong_with_a_stream_is_one_sentence(spark, broker, topic, tmp_path):
    cases = [({"endingOffsets": "latest"}, "option endingOffsets is for batch queries: a stream has no end")]
    if not ADMISSION:
        cases.append(({"maxOffsetsPerTrigger": "10"}, "need PySpark 4.2 or newer"))
    for number, (options, expected) in enumerate(cases):
        with pytest.raises(Exception) as refused:
            land(stream(spark, broker, topic, **options), tmp_path / str(number)).awaitTermination()
        assert expected in sentence(refused)


logging.getLogger("py4j").setLevel(logging.WARNING)


# -- security -----------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.skipif(not ADMISSION, reason="the connector 4.2.0 does not run on older PySparks")
def test_jobs_log_in_with_a_delegation_token(spark, tmp_path):
    """Over TLS, in Kafka's words (KIP-48): kafkad's source and sink, and Spark's own connector. The tasks
    know the token's id and HMAC, and no password. When it is expired, whoever connects is out."""
    if not fetch_jars.is_complete("spark-sql-kafka"):
        pytest.fail("the jars of Spark's connector are missing (make test fetches them)")
    with token_world(tmp_path) as (options, expire):
        numbers = spark.range(200).selectExpr("cast(cast(id as string) as binary) value")
        numbers.write.format("kafkad").options(**options, topic="ours").mode("append").save()
        numbers.write.format("kafka").options(**options, topic="theirs").save()
        for reader, topic in (("kafkad", "theirs"), ("kafka", "ours"), ("kafkad", "ours")):
            read = spark.read.format(reader).options(**options, subscribe=topic).load()
            found = sorted(int(bytes(row.value)) for row in read.select("value").collect())
            assert found == list(range(200)), (reader, topic)
        given = {**options, "subscribe": "theirs", "startingOffsets": "earliest"}
        land(spark.readStream.format("kafkad").options(**given).load(), tmp_path).awaitTermination()
        assert landed(spark, tmp_path) == list(range(200))
        expire()
        with pytest.raises(Exception) as raised:
            fresh = {
                **options,
                "kafka.client.id": "fresh",
                "subscribe": "ours",
            }  # no connection that is there
            spark.read.format("kafkad").options(**fresh).load().collect()
        assert "SCRAM-SHA-256" in str(raised.value), sentence(raised)
