"""The driver's side of the Spark source against a broker, without Spark: how many requests a plan costs, and
what a reader answers to PySpark's calls.
"""

import json
import pickle
import time
from collections import Counter

import pytest

from kafkad.client.connection import Connection
from kafkad.client.offsets import committed_offsets
from kafkad.client.producer import Producer
from kafkad.spark import source, stream
from kafkad.spark.layout import layout_of
from kafkad.spark.offsets import OffsetReader, driver_of
from kafkad.spark.options import read_options
from tests import logins
from tests.clients import create_topic

pytestmark = pytest.mark.secured

needs_admission = pytest.mark.skipif(not stream.ADMISSION_CONTROL, reason="of PySpark 4.2")


@pytest.fixture
def topic(broker):
    return create_topic(broker, f"offsets-{time.time_ns()}", 3)


@pytest.fixture
def asked(monkeypatch):
    """How many requests of each kind leave."""
    counts = Counter()
    send = Connection.send

    def counting(self, request, *how, **kwargs):
        counts[type(request).__name__] += 1
        return send(self, request, *how, **kwargs)

    monkeypatch.setattr(Connection, "send", counting)
    return counts


def fill(broker, topic, partition, count, size=10):
    with logins.cluster(broker) as cluster:
        producer = Producer(cluster, topic)
        for _ in range(count):
            producer.send(b"x" * size, partition=partition)
        producer.flush()


def given(broker, streaming=False, **options):
    options = logins.spark(broker) | options
    return read_options({k: str(v) for k, v in options.items()}, streaming=streaming)


def reader(broker, **options):
    checked = given(broker, streaming=True, startingOffsets="earliest", **options)
    return stream.StreamReader(checked, layout_of(checked))


def plan(broker, **options):
    checked = given(broker, **options)
    return source.BatchReader(checked, layout_of(checked)).partitions()


def test_a_plan_of_many_topics_costs_one_metadata_and_one_list_offsets_for_each_end(broker, asked):
    topics = [create_topic(broker, f"many-{time.time_ns()}-{n}", 4) for n in range(5)]
    for topic in topics:
        fill(broker, topic, 0, 10)
    first = given(broker, subscribe=",".join(topics))
    OffsetReader(first).partitions()
    driver_of(first).cluster.broker(1)
    asked.clear()
    parts = plan(broker, subscribe=",".join(topics))
    assert sorted((part.topic, part.partition, part.start, part.end) for part in parts) == [
        (topic, 0, 0, 10) for topic in sorted(topics)
    ]
    assert asked == {"MetadataRequest": 1, "ListOffsetsRequest": 2}
    assert all(pickle.loads(pickle.dumps(part)).topic_id == part.topic_id for part in parts)


@needs_admission
def test_a_micro_batch_costs_one_metadata_and_one_list_offsets(broker, topic, asked):
    fill(broker, topic, 0, 10)
    follower = reader(broker, subscribe=topic)
    start = follower.initialOffset()
    asked.clear()
    end = follower.latestOffset(start, follower.getDefaultReadLimit())
    assert end == {topic: {"0": 10, "1": 0, "2": 0}}
    assert len(follower.partitions(start, end)) == 1
    assert asked == {"MetadataRequest": 1, "ListOffsetsRequest": 1}


def test_large_ranges_are_split_by_what_their_bytes_are(broker, topic):
    fill(broker, topic, 0, 2000, size=1000)
    fill(broker, topic, 1, 2000, size=10)
    counts = Counter(part.partition for part in plan(broker, subscribe=topic, targetPartitionBytes="500k"))
    assert counts == {0: 4, 1: 1}  # 2 MB in pieces of 512,000 bytes, and a few KB


def test_a_stream_s_batch_has_the_same_tasks_when_it_runs_again(broker, topic, monkeypatch):
    """Otherwise an exactly-once sink, which knows tasks by their numbers, would leave out rows."""
    monkeypatch.setattr("kafkad.spark.options.TARGET_PARTITION_BYTES", 500_000)
    fill(broker, topic, 0, 2000, size=1000)
    fill(broker, topic, 1, 2000)
    followers = [reader(broker, subscribe=topic, **how) for how in ({}, {"minPartitions": 5})]
    start = followers[0].initialOffset()
    end = {topic: {"0": 2000, "1": 2000, "2": 0}}

    def tasks():
        driver_of(followers[0].options).weights.clear()  # as after a restart
        return [list(map(repr, each.partitions(start, end))) for each in followers]

    before = tasks()
    fill(broker, topic, 0, 4000)
    fill(broker, topic, 1, 2000, size=2000)
    assert tasks() == before
    assert list(map(len, before)) == [2, 5]


def test_readers_pickle_after_they_have_asked_brokers(broker, topic):
    fill(broker, topic, 0, 5)
    follower = reader(broker, subscribe=topic, commitGroup="pickled")
    follower.initialOffset()
    again = pickle.loads(pickle.dumps(follower))
    assert again.initialOffset() == {topic: {"0": 0, "1": 0, "2": 0}}


@needs_admission
def test_limits_of_records_and_bytes_hold_both(broker, topic):
    fill(broker, topic, 0, 1000, size=1000)
    fill(broker, topic, 1, 1000, size=1000)
    follower = reader(broker, subscribe=topic, maxOffsetsPerTrigger=1000, maxBytesPerTrigger="400k")
    start = follower.initialOffset()
    end = follower.latestOffset(start, follower.getDefaultReadLimit())[topic]
    assert 150 < end["0"] == end["1"] < 220 and end["2"] == 0
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    assert follower.latestOffset(start, ReadAllAvailable())[topic]["0"] == 1000
    assert follower.reportLatestOffset() == {topic: {"0": 1000, "1": 1000, "2": 0}}


@needs_admission
def test_a_batch_waits_for_its_minimum_or_its_time(broker, topic):
    follower = reader(broker, subscribe=topic, minOffsetsPerTrigger=100, maxTriggerDelay="1h")
    fill(broker, topic, 0, 10)
    limit = follower.getDefaultReadLimit()
    first = follower.latestOffset(follower.initialOffset(), limit)
    assert first[topic]["0"] == 10  # the first waits for nothing, as in Spark
    fill(broker, topic, 0, 99)
    assert follower.latestOffset(first, limit) == first
    fill(broker, topic, 0, 1)
    assert follower.latestOffset(first, limit)[topic]["0"] == 110
    hasty = reader(broker, subscribe=topic, minOffsetsPerTrigger=100, maxTriggerDelay="0s")
    assert hasty.latestOffset(first, limit) and hasty.latestOffset(first, limit)[topic]["0"] == 110


@needs_admission
def test_available_now_reads_to_what_was_there_at_its_start(broker, topic):
    fill(broker, topic, 0, 30)
    follower = reader(broker, subscribe=topic, maxOffsetsPerTrigger=20, minOffsetsPerTrigger=15)
    follower.prepareForTriggerAvailableNow()
    limit, at = follower.getDefaultReadLimit(), follower.initialOffset()
    seen = []
    for _ in range(3):
        at = follower.latestOffset(at, limit)
        seen.append(at[topic]["0"])
        fill(broker, topic, 0, 50)
    assert seen == [20, 30, 30]  # the last ten are fewer than the minimum, and read all the same


@needs_admission
def test_the_group_has_what_the_query_has_done(broker, topic):
    fill(broker, topic, 0, 30)
    group = f"{topic}-group"
    follower = reader(broker, subscribe=topic, commitGroup=group)
    limit = follower.getDefaultReadLimit()
    end = follower.latestOffset(follower.initialOffset(), limit)
    follower.latestOffset(end, limit)
    with logins.cluster(broker) as cluster:
        assert committed_offsets(cluster, group)[topic, 0] == 30


def test_a_pattern_may_match_within_a_name_and_never_internal_topics(broker, topic):
    found = OffsetReader(given(broker, subscribePattern=topic[1:-1])).partitions()
    assert found == [(topic, p) for p in range(3)]
    everything = OffsetReader(given(broker, subscribePattern="."))
    assert not any(name.startswith("__") for name, _ in everything.partitions())


def test_what_is_not_there_is_named(broker, topic):
    cases = [
        ({"subscribe": "nowhere"}, "option subscribe names topic nowhere, which does not exist"),
        ({"assign": json.dumps({topic: [0, 7]})}, f"option assign names {topic}-7, which does not exist"),
        (
            {"subscribe": topic, "startingOffsets": json.dumps({topic: dict.fromkeys("0123", -2)})},
            f"names {topic}-3, which is not among what is read",
        ),
        (
            {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 5, "1": -2, "2": -2}})},
            f"the start of {topic}-0 is offset 5, behind its end at 0",
        ),
    ]
    for options, expected in cases:
        with pytest.raises(ValueError) as refused:
            plan(broker, **options)
        assert expected in str(refused.value)


def test_a_checkpoint_of_something_else_is_refused(broker, topic):
    with pytest.raises(ValueError) as refused:
        reader(broker, subscribe=topic).partitions({"logOffset": 3}, {"logOffset": 4})
    assert "is not of format kafkad or kafka" in str(refused.value)


def test_an_address_where_nobody_is_is_told(broker, monkeypatch, caplog):
    monkeypatch.setattr("kafkad.spark.offsets.FIRST_TIMEOUT_S", 0.5)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "fetchOffset.retryIntervalMs": 100}
    with pytest.raises(Exception) as told:
        plan(broker, **options, subscribe="t")
    assert "no broker answers on 127.0.0.1:1" in str(told.value)
    assert [record.message for record in caplog.records] == [f"asking for offsets again: {told.value}"]
