"""RangeReader against a real broker: every offset comes once, or is told to be lost."""

import os
import threading

import pyarrow as pa
import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.producer import Producer
from kafkad.protocol import messages
from kafkad.spark import connections
from kafkad.spark.range_reader import DataLoss, FetchTimeout, RangeReader
from tests.clients import create_topic

SMALL = {"fetch_bytes": 1, "batch_bytes": 10_000}  # many fetches and batches of little


def fill(broker, topic, count, *, size=100, **how):
    with Cluster(broker.bootstrap) as cluster:
        producer = Producer(cluster, topic, **{"batch_bytes": 8 << 10, **how})
        for i in range(count):
            producer.send(b"%d " % i + bytes(size), b"%d" % i, headers=[("n", b"%d" % i)], partition=0)
        producer.flush()


def offsets_of(reader):
    return [offset for batch in reader for offset in batch["offset"].to_pylist()]


def delete_topic(broker, topic):
    with Cluster(broker.bootstrap) as cluster:
        request = messages.DeleteTopicsRequest
        version = cluster.any().version_for(request, 5)
        answer = cluster.any().ask(request(topic_names=[topic], timeout_ms=10_000), version)
        assert answer.responses[0].error_code == 0


def delete_records(broker, topic, before):
    with Cluster(broker.bootstrap) as cluster:
        request = messages.DeleteRecordsRequest
        partition = request.Topics.Partitions(partition_index=0, offset=before)
        asked = request(topics=[request.Topics(name=topic, partitions=[partition])], timeout_ms=10_000)
        answer = cluster.leader(topic, 0).ask(asked)
        assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("compression", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_exactly_the_range(broker, unique, compression):
    topic = unique("codec")
    create_topic(broker, topic)
    fill(broker, topic, 3000, compression=compression)
    for start, end in ((0, 3000), (1234, 1235), (17, 2983), (2999, 3000), (5, 5)):
        reader = RangeReader(broker.bootstrap, {}, topic, 0, start, end, headers=True, fetch_bytes=1)
        batches = list(reader)
        table = pa.Table.from_batches(batches) if batches else None
        if start == end:
            assert table is None
            continue
        assert table["offset"].to_pylist() == list(range(start, end))
        assert table["key"].to_pylist() == [b"%d" % i for i in range(start, end)]
        assert table["value"].to_pylist() == [b"%d " % i + bytes(100) for i in range(start, end)]
        assert table["headers"].to_pylist() == [[{"key": "n", "value": b"%d" % i}] for i in range(start, end)]
        assert set(table["topic"].to_pylist()) == {topic} and reader.position == end and not reader.lost


def test_values_of_10_mb_and_of_nothing(make_broker):
    broker = make_broker({"message.max.bytes": 20_000_000})
    create_topic(broker, "large")
    values = [b"", os.urandom(10_000_000), None, b"x"]
    with Cluster(broker.bootstrap) as cluster:
        producer = Producer(cluster, "large")
        for value in values:
            producer.send(value, partition=0)
            producer.flush()
    got = RangeReader(broker.bootstrap, {}, "large", 0, 0, 4, fetch_bytes=1 << 16)
    assert [value for batch in got for value in batch["value"].to_pylist()] == values


def test_a_connection_serves_one_reader_after_the_other(broker, unique):
    topic = unique("pool")
    create_topic(broker, topic)
    fill(broker, topic, 10)
    connections._idle.clear()
    assert offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10)) == list(range(10))
    ((session,),) = connections._idle.values()
    used = session.cluster.leader(topic, 0)
    assert offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 3, 7)) == [3, 4, 5, 6]
    assert connections._idle[session.key] == [session] and session.cluster.leader(topic, 0) is used
    # one that is left half-way has an answer under way: it is closed
    reader = iter(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10, batch_bytes=1))
    next(reader)
    reader.close()
    assert connections._idle[session.key] == []


def test_a_forked_child_does_not_speak_on_its_parents_connection(broker, unique):
    topic = unique("fork")
    create_topic(broker, topic)
    fill(broker, topic, 10)
    assert offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10)) == list(range(10))
    ((session,),) = (sessions for sessions in connections._idle.values() if sessions)
    child = os.fork()
    if child == 0:
        good = offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10)) == list(range(10))
        os._exit(0 if good and session not in connections._idle[session.key] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10)) == list(range(10))
    assert session in connections._idle[session.key]


def test_a_broker_killed_in_the_middle_costs_nothing(make_broker):
    broker = make_broker()
    create_topic(broker, "killed")
    fill(broker, "killed", 20_000)
    offsets, restart = [], None
    reader = RangeReader(broker.bootstrap, {}, "killed", 0, 0, 20_000, **SMALL, timeout_s=100)
    for batch in reader:
        offsets += batch["offset"].to_pylist()
        if restart is None and len(offsets) > 5000:
            broker.kill()
            restart = threading.Timer(0.2, broker.restart)
            restart.start()
    assert offsets == list(range(20_000)) and restart is not None
    restart.join()


# -- loss --------------------------------------------------------------------------------------------------


def test_what_retention_has_passed_is_an_error_or_is_skipped(broker, unique, caplog):
    topic = unique("retention")
    create_topic(broker, topic)
    fill(broker, topic, 100)
    delete_records(broker, topic, 40)
    with pytest.raises(DataLoss, match=rf"\[10, 90\) for topic partition {topic}-0: .* offsets 40 to 100"):
        offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 10, 90))
    reader = RangeReader(broker.bootstrap, {}, topic, 0, 10, 90, fail_on_data_loss=False)
    assert offsets_of(reader) == list(range(40, 90))
    assert [lost[:2] for lost in reader.lost] == [(10, 40)] and "[10, 40)" in caplog.text
    reader = RangeReader(broker.bootstrap, {}, topic, 0, 10, 30, fail_on_data_loss=False)
    assert offsets_of(reader) == [] and [lost[:2] for lost in reader.lost] == [(10, 30)]
    reader = RangeReader(broker.bootstrap, {}, topic, 0, 150, 200, fail_on_data_loss=False)
    assert offsets_of(reader) == [] and [lost[:2] for lost in reader.lost] == [(150, 200)]


def test_retention_while_it_reads(broker, unique):
    topic = unique("overtaken")
    create_topic(broker, topic)
    fill(broker, topic, 5000)
    reader = RangeReader(broker.bootstrap, {}, topic, 0, 0, 5000, **SMALL, fail_on_data_loss=False)
    batches = iter(reader)
    offsets = next(batches)["offset"].to_pylist()
    delete_records(broker, topic, 4000)
    for batch in batches:
        offsets += batch["offset"].to_pylist()
    lost = [offset for first, behind, _ in reader.lost for offset in range(first, behind)]
    assert sorted(offsets + lost) == list(range(5000)) and offsets == sorted(offsets)
    assert offsets[-1000:] == list(range(4000, 5000))


def test_a_log_that_ends_below_the_range_is_waited_for_and_named(broker, unique):
    topic = unique("short")
    create_topic(broker, topic)
    fill(broker, topic, 10)
    wanted = r"Cannot fetch record for offset 10 in 700 milliseconds \(.*-0: the log ends at offset 10\)"
    with pytest.raises(FetchTimeout, match=wanted):
        offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 12, timeout_s=0.7))
    reader = iter(RangeReader(broker.bootstrap, {}, topic, 0, 0, 12, timeout_s=20, batch_bytes=1))
    assert [next(reader)["offset"].to_pylist() for _ in range(9)]
    writer = threading.Timer(0.5, fill, (broker, topic, 2))
    writer.start()
    assert [batch["offset"].to_pylist() for batch in reader] == [[9], [10], [11]]
    writer.join()


def test_a_topic_that_is_gone(broker, unique):
    topic = unique("gone")
    create_topic(broker, topic)
    fill(broker, topic, 10)
    delete_topic(broker, topic)
    with pytest.raises(DataLoss, match=r"\[0, 10\).*does not exist"):
        offsets_of(RangeReader(broker.bootstrap, {}, topic, 0, 0, 10, timeout_s=0.3))
    reader = RangeReader(broker.bootstrap, {}, topic, 0, 0, 10, timeout_s=0.3, fail_on_data_loss=False)
    assert offsets_of(reader) == [] and [lost[:2] for lost in reader.lost] == [(0, 10)]


def test_a_topic_that_was_deleted_and_made_again_is_another(broker, unique, caplog):
    topic = unique("again")
    create_topic(broker, topic)
    fill(broker, topic, 5000)
    reader = iter(RangeReader(broker.bootstrap, {}, topic, 0, 0, 5000, **SMALL, timeout_s=10))
    lenient = RangeReader(
        broker.bootstrap, {}, topic, 0, 0, 5000, **SMALL, timeout_s=10, fail_on_data_loss=False
    )
    batches = iter(lenient)
    next(reader), next(batches)
    delete_topic(broker, topic)
    create_topic(broker, topic)
    fill(broker, topic, 50)
    with pytest.raises(DataLoss, match="was deleted, and one of the same name was created"):
        list(reader)
    last = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert last == sorted(last) and "was deleted, and one of the same name" in caplog.text
    assert lenient.lost[-1].behind == 5000
