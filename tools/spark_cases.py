"""The cases of tools/spark_matrix.py for Spark's own connector, one small function each.

A case prepares topics with librdkafka, runs Spark, and returns the results that both brokers must agree on
(see spark_world.py). `CASES` has them in the order of the table; a name is "group: what".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_world import BASE_MS, Record, World, batches, numbered, outcome, rows

from tests.secured_broker import CERTIFIED, READ, WRITE

Case = Callable[[World], Any]
CASES: dict[str, Case] = {}
POLL_MS = 4000  # for cases about fetches without records
IMPATIENT: dict[str, object] = {  # for cases in which Spark is refused: it tries three times
    "fetchOffset.numRetries": 1,
    "fetchOffset.retryIntervalMs": 10,
    "kafka.max.block.ms": 5000,
    "kafka.request.timeout.ms": 9000,
    "kafka.default.api.timeout.ms": 10_000,
}


def case(name: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        assert name not in CASES
        CASES[name] = function
        return function

    return add


# -- batch


@case("batch: subscribe, two topics")
def subscribe(world: World) -> Any:
    topics = [world.topic(2), world.topic(1)]
    world.produce(topics[0], numbered(10, 2))
    world.produce(topics[1], numbered(5))
    return rows(world.batch(",".join(topics)))


@case("batch: subscribePattern")
def subscribe_pattern(world: World) -> Any:
    for n in range(3):
        world.produce(world.topic(name=f"pattern-{'xyz'[n]}-{n}"), numbered(3 + n))
    some = rows(world.batch(subscribePattern="pattern-[xy]-.*"))
    return [some, outcome(lambda: rows(world.batch(subscribePattern="nothing-has-this-name")))]


@case("batch: assign")
def assign(world: World) -> Any:
    topic = world.topic(4)
    world.produce(topic, numbered(6, 4))
    return rows(world.batch(assign={topic: [0, 3]}))


@case("batch: a topic that does not exist")
def missing_topic(world: World) -> Any:
    return outcome(lambda: rows(world.batch("no-such-topic-here")))


@case("batch: an empty topic; a partition without records")
def empty(world: World) -> Any:
    nothing, some = world.topic(2), world.topic(3)
    world.produce(some, [record._replace(partition=1) for record in numbered(4)])
    return [rows(world.batch(nothing)), rows(world.batch(some))]


@case("batch: starting and ending offsets, -2, -1, earliest, latest")
def offsets(world: World) -> Any:
    topic = world.topic(3)
    world.produce(topic, numbered(20, 3))
    start, end = {"0": 5, "1": -2, "2": 19}, {"0": 9, "1": 4, "2": -1}
    return {
        "each": rows(world.batch(topic, startingOffsets={topic: start}, endingOffsets={topic: end})),
        "whole": rows(world.batch(topic, startingOffsets="earliest", endingOffsets="latest")),
        "from latest": outcome(lambda: rows(world.batch(topic, startingOffsets="latest"))),
        "not all": outcome(lambda: rows(world.batch(topic, startingOffsets={topic: {"0": 5}}))),
        "same": rows(world.batch(topic, startingOffsets={topic: end | {"2": 7}}, endingOffsets={topic: end})),
    }


@case("batch: offsets past the end, failOnDataLoss both ways")
def past_the_end(world: World) -> Any:
    topic = world.topic()
    world.produce(topic, numbered(10))

    def read(start: int, end: int, loss: str) -> Any:
        bounds = {"startingOffsets": {topic: {"0": start}}, "endingOffsets": {topic: {"0": end}}}
        return outcome(
            lambda: rows(
                world.batch(topic, failOnDataLoss=loss, kafkaConsumer_pollTimeoutMs=POLL_MS, **bounds)
            )
        )

    return {
        f"{start} to {end}, {loss}": read(start, end, loss)
        for start, end in ((5, 15), (12, 15), (12, -1))
        for loss in ("true", "false")
    }


@case("batch: starting and ending timestamp, for all and by partition")
def timestamps(world: World) -> Any:
    topic = world.topic(2)
    world.produce(topic, numbered(30, 2))
    early, late = str(BASE_MS + 10_000), str(BASE_MS + 20_001)
    each = {topic: {"0": BASE_MS + 5_500, "1": BASE_MS + 18_000}}
    future = {"startingTimestamp": str(BASE_MS + 10**9)}
    return {
        "for all": rows(world.batch(topic, startingTimestamp=early, endingTimestamp=late)),
        "by partition": rows(world.batch(topic, startingOffsetsByTimestamp=each, endingTimestamp=late)),
        "start after end": outcome(
            lambda: rows(world.batch(topic, startingTimestamp=late, endingTimestamp=early))
        ),
        "before all": rows(world.batch(topic, startingTimestamp="0", endingTimestamp=early)),
        "none so late": outcome(lambda: rows(world.batch(topic, **future))),
        "none so late, latest": outcome(
            lambda: rows(world.batch(topic, startingOffsetsByTimestampStrategy="latest", **future))
        ),
        "end so late": rows(world.batch(topic, endingTimestamp=future["startingTimestamp"])),
    }


@case("batch: includeHeaders")
def headers(world: World) -> Any:
    topic = world.topic()
    world.produce(
        topic,
        [
            Record(b"none"),
            Record(b"one", headers=[("a", b"1")]),
            Record(b"twice, null, empty", headers=[("a", b"1"), ("a", None), ("", b"")]),
            Record(b"unicode", headers=[("ключ", "значение".encode())]),
        ],
    )
    return [rows(world.batch(topic, includeHeaders="true")), rows(world.batch(topic))]


@case("batch: null and empty keys and values")
def nulls(world: World) -> Any:
    topic = world.topic()
    world.produce(topic, [Record(value, key) for key in (None, b"", b"k") for value in (None, b"", b"v")])
    return rows(world.batch(topic))


@case("batch: minPartitions and maxRecordsPerPartition")
def splits(world: World) -> Any:
    topic = world.topic(2)
    world.produce(topic, numbered(500, 2))
    found = {}
    for name, value in (("minPartitions", 2), ("minPartitions", 7), ("maxRecordsPerPartition", 90)):
        frame = world.batch(topic, **{name: value})
        found[f"{name}={value}"] = [frame.rdd.getNumPartitions(), rows(frame)]
    both = world.batch(topic, minPartitions=3, maxRecordsPerPartition=400)
    return {**found, "both": [both.rdd.getNumPartitions(), rows(both)]}


@case("batch: every codec")
def codecs(world: World) -> Any:
    found = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = world.topic()
        world.produce(topic, numbered(300, size=100), codec)
        found[codec] = rows(world.batch(topic))
    mixed = world.topic()
    for n, codec in enumerate(("zstd", "none", "gzip", "lz4", "snappy")):
        world.produce(mixed, numbered(20, first=20 * n), codec)
    return {**found, "mixed, from the middle of a batch": rows(
        world.batch(mixed, startingOffsets={mixed: {"0": 30}}, endingOffsets={mixed: {"0": 71}})
    )}  # fmt: skip


@case("batch: values of 1 B to 10 MB")
def sizes(world: World) -> Any:
    topic = world.topic(max_message_bytes=12_000_000)
    steps = (1, 10, 1000, 100_000, 1_000_000, 10_000_000)
    world.produce(topic, [Record(bytes([n % 251]) * n) for n in steps])
    world.produce(topic, [Record(bytes([n % 251]) * n) for n in reversed(steps)], "lz4")
    return rows(world.batch(topic))


@case("batch: LogAppendTime")
def log_append_time(world: World) -> Any:
    topic = world.topic(message_timestamp_type="LogAppendTime")
    before = round(time.time() * 1000)
    world.produce(topic, numbered(10))
    after = round(time.time() * 1000)
    got = rows(world.batch(topic))
    assert all(before - 1000 <= row[5] <= after + 1000 for row in got)
    return [[row[0], row[4], row[6]] for row in got]


@case("batch: DeleteRecords, then from earliest and from below the start")
def deleted_records(world: World) -> Any:
    topic = world.topic()
    for n in range(4):
        world.produce(topic, numbered(10, first=10 * n))
    world.delete_records(topic, 17)
    below = {"startingOffsets": {topic: {"0": 3}}, "kafkaConsumer_pollTimeoutMs": POLL_MS}
    return {
        "earliest": rows(world.batch(topic)),
        "below": outcome(lambda: rows(world.batch(topic, **below))),
        "below, data loss accepted": outcome(
            lambda: rows(world.batch(topic, failOnDataLoss="false", **below))
        ),
        "all gone": [world.delete_records(topic, 40), rows(world.batch(topic))],
    }


@case("batch: read_committed without transactions")
def read_committed(world: World) -> Any:
    topic = world.topic()
    world.produce(topic, numbered(50))
    return rows(world.batch(topic, kafka_isolation_level="read_committed"))


@case("batch: offsets asked through a consumer group (useDeprecatedOffsetFetching)")
def deprecated_offsets(world: World) -> Any:
    topic = world.topic(2)
    world.produce(topic, numbered(20, 2))
    with world.setting("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true"):
        return [
            rows(world.batch(topic)),
            rows(world.batch(topic, startingTimestamp=str(BASE_MS + 15_000))),
            world.table().run(world.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=15)),
        ]


@case("batch: 50,000 records, max.poll.records 500 (the default)")
def many(world: World) -> Any:
    return many_records(world)


@case("batch: 50,000 records, max.poll.records 20,000, max.partition.fetch.bytes 8 MB")
def many_tuned(world: World) -> Any:
    return many_records(world, kafka_max_poll_records=20_000, kafka_max_partition_fetch_bytes=8 << 20)


def many_records(world: World, **options: object) -> Any:
    topic = world.topic(2)
    world.produce(topic, numbered(25_000, 2, size=90))
    world.proxy.take()
    return world.batch(topic, **options).selectExpr(
        "count(*)", "sum(offset)", "sum(length(value))", "sum(crc32(value))"
    ).first().asDict()  # fmt: skip


# -- streaming


@case("stream: available-now, and again from the checkpoint")
def available_now(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    told = []
    for first in (0, 30, 30):  # the third time there is nothing new
        if first != 30 or len(told) == 1:
            world.produce(topic, numbered(30, 2, first=first))
        told.append(table.run(world.stream(topic, startingOffsets="earliest")))
    return [told, table.rows()]


@case("stream: maxOffsetsPerTrigger")
def max_offsets(world: World) -> Any:
    topic, table = world.topic(3), world.table()
    world.produce(topic, numbered(40, 3))
    world.produce(topic, numbered(100, 1, first=40))  # a partition that has more
    told = table.run(world.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=60))
    return [told, table.rows()]


@case("stream: minOffsetsPerTrigger")
def min_offsets(world: World) -> Any:
    topic, table = world.topic(), world.table()
    frame = world.stream(topic, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="10m")
    world.produce(topic, numbered(10))
    told = []
    with table.running(frame) as query:
        for first, count in ((10, 60), (70, 60)):
            query.processAllAvailable()
            world.produce(topic, numbered(count, first=first))
        query.processAllAvailable()
        told = batches(query)
    return [told, table.rows()]


@case("stream: minPartitions and maxRecordsPerPartition")
def stream_splits(world: World) -> Any:
    topic = world.topic(2)
    world.produce(topic, numbered(100, 2))
    found = {}
    for name, value in (("minPartitions", 5), ("maxRecordsPerPartition", 30)):
        table, seen = world.table(), []
        frame = world.stream(topic, startingOffsets="earliest", **{name: value})
        writer = frame.writeStream.foreachBatch(
            lambda batch, _, seen=seen: seen.append([batch.rdd.getNumPartitions(), rows(batch)])
        ).option("checkpointLocation", table.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination(60)
        found[name] = seen
    return found


@case("stream: assign from offsets")
def stream_assign(world: World) -> Any:
    topic, table = world.topic(3), world.table()
    world.produce(topic, numbered(20, 3))
    frame = world.stream(assign={topic: [0, 2]}, startingOffsets={topic: {"0": 15, "2": -2}})
    return [table.run(frame), table.rows()]


@case("stream: starting timestamp")
def stream_timestamp(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    world.produce(topic, numbered(20, 2))
    frame = world.stream(topic, startingTimestamp=str(BASE_MS + 15_000))
    refused = world.stream(topic, startingTimestamp=str(BASE_MS + 10**9))
    lenient = world.stream(
        topic, startingTimestamp=str(BASE_MS + 10**9), startingOffsetsByTimestampStrategy="latest"
    )
    return [
        table.run(frame), table.rows(),
        outcome(lambda: world.table().run(refused)), outcome(lambda: world.table().run(lenient)),
    ]  # fmt: skip


@case("stream: from latest, records come while it runs")
def from_latest(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    world.produce(topic, numbered(10, 2))
    with table.running(world.stream(topic, includeHeaders="true")) as query:
        query.processAllAvailable()
        for n in range(3):
            world.produce(topic, numbered(5, 2, first=10 + 5 * n))
            query.processAllAvailable()
    return table.rows()


@case("stream: a partition is added while it runs")
def new_partition(world: World) -> Any:
    topic, table = world.topic(1), world.table()
    world.produce(topic, numbered(5))
    with table.running(world.stream(topic, startingOffsets="earliest")) as query:
        query.processAllAvailable()
        world.add_partitions(topic, 3)
        world.produce(topic, numbered(5, 3, first=5))
        query.processAllAvailable()
        ended = batches(query)[-1][1]
    return [ended, table.rows()]


@case("stream: subscribePattern, a topic is made while it runs")
def new_topic(world: World) -> Any:
    table = world.table()
    first = world.topic(name="growing-1")
    world.produce(first, numbered(5))
    with table.running(world.stream(subscribePattern="growing-.*", startingOffsets="earliest")) as query:
        query.processAllAvailable()
        world.produce(world.topic(2, name="growing-2"), numbered(5, 2))
        query.processAllAvailable()
    return table.rows()


@case("stream: topic deleted and made again between runs, failOnDataLoss=true")
def recreated_true(world: World) -> Any:
    return recreated(world, "true")


@case("stream: topic deleted and made again between runs, failOnDataLoss=false")
def recreated_false(world: World) -> Any:
    return recreated(world, "false")


def recreated(world: World, loss: str) -> Any:
    """The offsets begin at 0 again, and the checkpoint is beyond the end."""
    topic, table = world.topic(), world.table()
    options = {"startingOffsets": "earliest", "failOnDataLoss": loss, "kafkaConsumer_pollTimeoutMs": POLL_MS}
    world.produce(topic, numbered(30))
    told = [table.run(world.stream(topic, **options))]
    world.delete_topic(topic)
    world.topic(name=topic)
    for first, count in ((100, 10), (110, 40)):
        world.produce(topic, numbered(count, first=first))
        told.append(outcome(lambda: table.run(world.stream(topic, **options))))
    return [told, table.rows()]


@case("stream: topic deleted and made again while it runs, failOnDataLoss=true")
def recreated_running_true(world: World) -> Any:
    return recreated_running(world, "true")


@case("stream: topic deleted and made again while it runs, failOnDataLoss=false")
def recreated_running_false(world: World) -> Any:
    return recreated_running(world, "false")


def recreated_running(world: World, loss: str) -> Any:
    topic, table = world.topic(), world.table()
    options = {"startingOffsets": "earliest", "failOnDataLoss": loss, "kafkaConsumer_pollTimeoutMs": POLL_MS}
    world.produce(topic, numbered(30))

    def run() -> Any:
        # a trigger so seldom that the topic is there again when the next batch is planned
        with table.running(world.stream(topic, **options), processingTime="8 seconds") as query:
            world.wait(lambda: batches(query))
            world.delete_topic(topic)
            world.topic(name=topic)
            world.produce(topic, numbered(40, first=100))
            query.processAllAvailable()
            return "went on"

    return [outcome(run), table.rows()]


@case("stream: DeleteRecords passes the checkpoint, failOnDataLoss=true")
def passed_true(world: World) -> Any:
    return passed(world, "true")


@case("stream: DeleteRecords passes the checkpoint, failOnDataLoss=false")
def passed_false(world: World) -> Any:
    return passed(world, "false")


def passed(world: World, loss: str) -> Any:
    topic, table = world.topic(), world.table()
    options = {"startingOffsets": "earliest", "failOnDataLoss": loss, "kafkaConsumer_pollTimeoutMs": POLL_MS}
    world.produce(topic, numbered(10))
    told = [table.run(world.stream(topic, **options))]
    world.produce(topic, numbered(30, first=10))
    world.delete_records(topic, 25)
    told.append(outcome(lambda: table.run(world.stream(topic, **options))))
    return [told, table.rows()]


@case("stream: retention passes the checkpoint, failOnDataLoss=true")
def retention_true(world: World) -> Any:
    return retention(world, "true")


@case("stream: retention passes the checkpoint, failOnDataLoss=false")
def retention_false(world: World) -> Any:
    return retention(world, "false")


def retention(world: World, loss: str) -> Any:
    """Time-based retention of records with old timestamps: everything is deleted, also the active segment."""
    topic, table = world.topic(retention_ms=-1), world.table()
    options = {"startingOffsets": "earliest", "failOnDataLoss": loss, "kafkaConsumer_pollTimeoutMs": POLL_MS}
    world.produce(topic, numbered(10))
    told = [table.run(world.stream(topic, **options))]
    world.produce(topic, numbered(30, first=10))
    world.set_topic(topic, retention_ms=1000)
    world.wait(lambda: world.start_offset(topic) == 40)
    world.set_topic(topic, retention_ms=-1)
    world.produce(topic, numbered(5, first=40))
    told.append(outcome(lambda: table.run(world.stream(topic, **options))))
    return [told, table.rows()]


@case("stream: continuous processing")
def continuous(world: World) -> Any:
    source, target, table = world.topic(2), world.topic(), world.table()
    world.produce(source, numbered(20, 2))
    frame = world.stream(source, startingOffsets="earliest").selectExpr("key", "value")
    writer = world.writer(frame.writeStream, target).option("checkpointLocation", table.checkpoint)
    query = writer.trigger(continuous="1 second").start()
    try:
        world.wait(lambda: world.end_offset(target) >= 40)
    finally:
        query.stop()
    return sorted(row[2] for row in world.read_topic(target, 40))


@case("stream: real-time mode")
def real_time(world: World) -> Any:
    source, target, table = world.topic(), world.topic(), world.table()
    world.produce(source, numbered(20))
    frame = world.stream(source, startingOffsets="earliest").selectExpr("key", "value")
    writer = world.writer(frame.writeStream.outputMode("update"), target)
    writer = writer.option("checkpointLocation", table.checkpoint)
    query = writer.trigger(realTime="5 seconds").start()
    try:
        world.wait(lambda: world.end_offset(target) >= 20 or not query.isActive)
        world.produce(source, numbered(20, first=20))
        world.wait(lambda: world.end_offset(target) >= 40 or not query.isActive)
    finally:
        query.stop()
    if query.exception():
        raise query.exception()
    return sorted(row[2] for row in world.read_topic(target, 40))


# -- compaction, transactions, security


@case("batch: holes of a compacted topic")
def compacted(world: World) -> Any:
    topic, left = world.compacted_topic()
    inside = {"startingOffsets": {topic: {"0": left[2] + 1}}, "endingOffsets": {topic: {"0": left[6] + 2}}}
    nothing = {"startingOffsets": {topic: {"0": 1}}, "endingOffsets": {topic: {"0": 3}}}
    return [rows(world.batch(topic)), rows(world.batch(topic, **inside)), rows(world.batch(topic, **nothing))]


@case("stream: holes of a compacted topic")
def compacted_stream(world: World) -> Any:
    topic, _ = world.compacted_topic()
    table = world.table()
    told = table.run(world.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=15))
    return [told, table.rows()]


def transactions(world: World, topic: str) -> Callable[[], None]:
    """Write committed, aborted and plain records, and an open transaction with plain records behind it.
    Return what aborts that one."""
    for first, commit in ((0, True), (10, False), (20, True), (30, False)):
        world.transaction(topic, numbered(10, 2, first=first))(commit)
    world.produce(topic, numbered(5, 2, first=40))
    end = world.transaction(topic, numbered(10, 2, first=50))
    world.produce(topic, numbered(5, 2, first=60))
    return lambda: end(False)


@case("batch: read_committed over commits, aborts and an open transaction")
def committed(world: World) -> Any:
    topic = world.topic(2)
    abort = transactions(world, topic)
    options = {"kafka_isolation_level": "read_committed"}
    in_aborted = {
        "startingOffsets": {topic: {"0": 12, "1": 11}},
        "endingOffsets": {topic: {"0": 20, "1": 25}},
    }
    told = {
        "committed": rows(world.batch(topic, **options)),
        "uncommitted": rows(world.batch(topic)),
        "inside the first aborted": outcome(lambda: rows(world.batch(topic, **in_aborted, **options))),
        "splits": outcome(lambda: rows(world.batch(topic, minPartitions=9, **options))),
    }
    abort()
    return {**told, "after the abort": rows(world.batch(topic, **options))}


@case("stream: read_committed over commits, aborts and an open transaction")
def committed_stream(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    abort = transactions(world, topic)
    options = {"kafka_isolation_level": "read_committed", "maxOffsetsPerTrigger": 14}

    def run() -> Any:
        return table.run(world.stream(topic, startingOffsets="earliest", **options))

    told = [run()]
    abort()
    world.transaction(topic, numbered(10, 2, first=70))(True)
    return [told, run(), table.rows()]


@case("security: SASL_SSL with SCRAM and ACLs, and TLS with certificates")
def secured(world: World) -> Any:
    """The rights of a topic are enough for Spark: its readers need no group."""
    told: dict[str, Any] = {}
    with world.secured() as broker:
        topic, target = broker.topic("guarded", 2), broker.topic("target")
        broker.produce(topic, numbered(10, 2))
        broker.add_user("spark", "spark-secret")

        def options(client: dict[str, str]) -> dict[str, object]:
            return {**{f"kafka.{name}": value for name, value in client.items()}, **IMPATIENT}

        login = options(broker.login("spark", "spark-secret"))
        certificate = options(broker.certificate("client"))

        def read(options: dict[str, object]) -> Any:
            return outcome(lambda: rows(world.batch(topic, **options)))

        def write(options: dict[str, object]) -> Any:
            frame = world.spark.range(0, 10, 1, 1).selectExpr("cast(id as string) value")
            return outcome(lambda: world.writer(frame.write, target, **options).save())

        told["without a right"] = [read(login), read(certificate), write(login)]
        for principal in ("User:spark", CERTIFIED):
            broker.allow(principal, READ, topic)
        broker.allow("User:spark", WRITE, target)
        told["with it"] = [read(login), read(certificate), write(login)]
        told["wrong password"] = read(options(broker.login("spark", "another")))
        told["wrong certificate"] = read(options(broker.certificate("stranger")))
        broker.allow("User:spark", READ, target)
        told["written"] = outcome(lambda: [row[1] for row in rows(world.batch(target, **login))])
        table = world.table()
        frame = world.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=8, **login)
        told["stream"] = [table.run(frame), table.rows()]
        broker.take("User:spark", topic)
        broker.produce(topic, numbered(10, 2, first=10))
        told["the right was taken"] = outcome(lambda: table.run(frame))
        broker.allow("User:spark", READ, topic)
        told["and given again"] = [table.run(frame), table.rows()]
    return told


# -- trouble


@case("trouble: broker killed with -9 in mid-batch, the same query goes on")
def killed(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    world.produce(topic, numbered(5000, 2, size=200), **{"batch.size": 20_000})
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4000}
    tuned = {"kafka_max_partition_fetch_bytes": 65536, "kafka_max_poll_records": 200}  # many fetches a batch
    world.proxy.at("Fetch", 12, world.restart_soon())
    told = table.run(world.stream(topic, **options, **tuned))
    return [told, table.rows(), {"kills": world.kills}]


@case("trouble: broker killed with -9 in mid-batch, the query fails and is started again")
def killed_and_failed(world: World) -> Any:
    topic, table = world.topic(2), world.table()
    world.produce(topic, numbered(5000, 2, size=200), **{"batch.size": 20_000})
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4000}
    tuned = {"kafka_max_partition_fetch_bytes": 65536, "kafka_max_poll_records": 200}
    short = {"kafkaConsumer_pollTimeoutMs": 2000, "kafka_default_api_timeout_ms": 3000,
             "kafka_request_timeout_ms": 2000}  # fmt: skip
    world.proxy.at("Fetch", 12, world.kill)
    first = outcome(lambda: table.run(world.stream(topic, **options, **tuned, **short)))
    world.broker.restart()
    world.produce(topic, numbered(10, 2, first=5000))
    table.run(world.stream(topic, **options, **tuned))
    return ["failed" if "failed" in first else first, table.rows(), {"kills": world.kills}]


@case("trouble: broker killed with -9 while the sink writes")
def killed_sink(world: World) -> Any:
    """At-least-once by contract: no record may be missing."""
    topic = world.topic()
    frame = world.spark.range(0, 20_000, 1, 1).selectExpr("cast(id as string) value", "repeat('k', 200) key")
    world.proxy.at("Produce", 8, world.restart_soon())
    world.writer(frame.write, topic, kafka_batch_size=16_384).save()
    got = rows(world.batch(topic).selectExpr("null key", "value", "topic", "partition", "offset",
                                             "timestamp_millis(0) timestamp", "timestampType"))  # fmt: skip
    values = {row.value for row in world.batch(topic).selectExpr("cast(value as string) value").collect()}
    return {"distinct": len(values), "twice": got["rows"] - len(values), "kills": world.kills}


# -- sink

SINK = """cast(id as string) key, if(id % 5 = 0, null, repeat(cast(id as string), 3)) value,
    array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary)),
          named_struct('key', 'none', 'value', cast(null as binary))) headers"""


@case("sink: batch, with headers and nulls, the option topic")
def sink_batch(world: World) -> Any:
    topic = world.topic()
    frame = world.spark.range(0, 30, 1, 1).selectExpr(*split_columns(SINK))
    world.writer(frame.write, topic, includeHeaders="true").save()
    world.writer(frame.write, topic, includeHeaders="false").save()
    return world.read_topic(topic, 60)


@case("sink: batch, the columns topic and partition; keys to partitions")
def sink_columns(world: World) -> Any:
    one, two, keyed = world.topic(3), world.topic(1), world.topic(4)
    frame = world.spark.range(0, 30, 1, 1).selectExpr(
        f"if(id % 2 = 0, '{one}', '{two}') topic", "cast(id as string) value",
        "if(id % 2 = 0, cast(id % 3 as int), 0) partition",
    )  # fmt: skip
    world.writer(frame.write).save()
    by_key = world.spark.range(0, 100, 1, 1).selectExpr("cast(id as string) key", "cast(id as string) value")
    world.writer(by_key.write, keyed).save()
    counts = {topic: [world.end_offset(topic, p) for p in range(n)] for topic, n in ((one, 3), (keyed, 4))}
    return [counts, [world.read_topic(one, counts[one][p], p) for p in range(3)], world.read_topic(two, 15),
            [world.read_topic(keyed, counts[keyed][p], p) for p in range(4)]]  # fmt: skip


@case("sink: every codec, and what the broker refuses")
def sink_codecs(world: World) -> Any:
    frame = world.spark.range(0, 200, 1, 1).selectExpr("cast(id as string) key", "repeat('x', 500) value")
    found = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = world.topic()
        world.writer(frame.write, topic, kafka_compression_type=codec).save()
        found[codec] = rows_without_time(world.batch(topic))
    small = world.topic(max_message_bytes=1000)
    too_big = world.spark.range(1).selectExpr("repeat('x', 5000) value")
    found["too big"] = outcome(lambda: world.writer(too_big.write, small).save())
    found["no topic"] = outcome(lambda: world.writer(too_big.write).save())
    found["no value"] = outcome(lambda: world.writer(too_big.selectExpr("value key").write, small).save())
    found["left in the small topic"] = world.end_offset(small)
    return found


@case("sink: a topic that does not exist is made by the broker")
def sink_creates(world: World) -> Any:
    frame = world.spark.range(0, 10, 1, 1).selectExpr("cast(id as string) value")
    world.writer(frame.write, "made-by-the-sink").save()
    return world.read_topic("made-by-the-sink", 10)


@case("sink: streaming, two runs over one checkpoint")
def sink_stream(world: World) -> Any:
    source, target, table = world.topic(2), world.topic(), world.table()
    for first in (0, 20):
        world.produce(source, numbered(20, 2, first=first))
        frame = world.stream(source, startingOffsets="earliest", includeHeaders="true")
        writer = world.writer(frame.selectExpr("key", "value", "headers").writeStream, target)
        query = writer.option("checkpointLocation", table.checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(60)
    return [world.end_offset(target), sorted(row[1:] for row in world.read_topic(target, 80))]


def rows_without_time(frame: Any) -> Any:
    return rows(frame.selectExpr("key", "value", "topic", "partition", "offset",
                                 "timestamp_millis(0) timestamp", "timestampType"))  # fmt: skip


def split_columns(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append(text[last:at])
            last = at + 1
    return [part.strip() for part in (*parts, text[last:])]
