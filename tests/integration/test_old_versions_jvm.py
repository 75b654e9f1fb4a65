"""Versions of APIs that Kafka 4 dropped and kafkad serves: answers as JVM Kafka 3.9.1, field by field."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkad.protocol import compression as codecs
from kafkad.protocol import errors, messages
from kafkad.protocol.legacy_records import read_entries
from kafkad.protocol.lz4_headers import with_right_lz4_checksum
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.testing import Broker
from tests.differential import Request, Run
from tests.jvm import TEST_CONFIG, ZOOKEEPER_LINE, JvmKafka
from tests.reference.message_sets import message, message_set, wrapper
from tests.wire import create_topic, produce_request

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

CONFIG = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "3600000",
    "log.message.timestamp.after.max.ms": "3600000",  # Kafka 4's default
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """(kafkad, Kafka 3.9.1)."""
    directory: Path = tmp_path_factory.mktemp("kafka-old")
    with (
        Broker(config={**TEST_CONFIG, **CONFIG}) as kafkad,
        JvmKafka(directory / "data", version=ZOOKEEPER_LINE, config=CONFIG) as kafka,
    ):
        yield kafkad, kafka


@pytest.fixture
def run(brokers: tuple[Any, Any]) -> Iterator[Run]:
    with Run(brokers[0].bootstrap, brokers[1].bootstrap, {}) as run:
        yield run
        assert [str(each) for each in run.result.differences] == []


def filled(run: Run, name: str, batches: int = 3, **configs: str) -> None:
    for side in run.sides:  # some records are of 1970, and each broker looks at its own time
        create_topic(side.wire, name, retention_ms="-1", **configs)
    run.settle()
    for number in range(batches):
        rows = [Record(key=None, value=b"v" * 100, timestamp=1_000 + number)]
        run.step(Request(produce_request(name, build_batch(rows)), 9))


def list_offsets(name: str, timestamp: int, count: int, replica_id: int = -1) -> Any:
    cls = messages.ListOffsetsRequest
    part = cls.Topics.Partitions(partition_index=0, timestamp=timestamp, max_num_offsets=count)
    return cls(replica_id=replica_id, topics=[cls.Topics(name=name, partitions=[part])])


def test_list_offsets_0_answers_the_beginnings_of_segments(run: Run) -> None:
    """UnifiedLog.legacyFetchOffsetsBefore: by the time at which a segment was last written to."""
    filled(run, "segments", 12, segment_bytes="1048576", segment_ms="1")
    filled(run, "nothing", 0)
    now = int(time.time() * 1000)
    for timestamp in (-1, -2, -3, -9, 0, 1, now - 3_600_000, now + 3_600_000, 2**62):
        for count in (1, 2, 100, 0, -1):
            for name in ("segments", "nothing", "missing"):
                run.step(Request(list_offsets(name, timestamp, count), 0))
                run.step(Request(list_offsets(name, timestamp, count, replica_id=-2), 0))
    answer = run.kafkad.ask(list_offsets("segments", -1, 100), 0)
    assert len(answer.topics[0].partitions[0].old_style_offsets) > 2


def test_list_offsets_0_finds_segments_by_time(run: Run) -> None:
    filled(run, "aged", 2, segment_bytes="1048576", segment_ms="1")
    time.sleep(1.1)
    between = int(time.time() * 1000)
    time.sleep(1.1)
    for number in range(2):
        rows = [Record(key=None, value=b"v", timestamp=2_000 + number)]
        run.step(Request(produce_request("aged", build_batch(rows)), 9))
    for count in (1, 100):
        run.step(Request(list_offsets("aged", between, count), 0))
    found = run.kafkad.ask(list_offsets("aged", between, 100), 0).topics[0].partitions[0]
    assert found.old_style_offsets and 4 not in found.old_style_offsets


def commit(group: str, name: str, offset: int, at_ms: int = -1, generation: int = -1, index: int = 0) -> Any:
    cls = messages.OffsetCommitRequest
    part = cls.Topics.Partitions(
        partition_index=index, committed_offset=offset, commit_timestamp=at_ms, committed_metadata="m"
    )
    topic = cls.Topics(name=name, partitions=[part])
    return cls(group_id=group, generation_id_or_member_epoch=generation, topics=[topic])


def test_offset_commit_1(run: Run) -> None:
    filled(run, "commits", 0)
    now = int(time.time() * 1000)
    for group, name, at_ms, generation, index in (
        ("a", "commits", -1, -1, 0),
        ("b", "commits", now, -1, 0),
        ("c", "commits", 0, -1, 0),
        ("c", "commits", 1, 3, 0),
        ("d", "missing", -1, -1, 0),
        ("d", "commits", -1, -1, 7),
        ("", "commits", -1, -1, 0),
    ):
        run.step(Request(commit(group, name, 5, at_ms, generation, index), 1))
    cls = messages.OffsetFetchRequest
    for group in ("a", "b", "c", "d", "", "nobody"):
        asked = cls(group_id=group, topics=[cls.Topics(name="commits", partition_indexes=[0, 7])])
        run.step(Request(asked, 1))


def test_offsets_of_version_0_are_committed_here_and_not_in_zookeeper(run: Run) -> None:
    """Kafka in KRaft mode refuses them. In ZooKeeper mode a partition without an offset had an error."""
    filled(run, "zero", 0)
    asked = commit("old", "zero", 7)
    assert run.kafka.ask(asked, 0).topics[0].partitions[0].error_code == errors.UNSUPPORTED_VERSION
    assert run.kafkad.ask(asked, 0).topics[0].partitions[0].error_code == 0
    cls = messages.OffsetFetchRequest
    fetch = cls(group_id="old", topics=[cls.Topics(name="zero", partition_indexes=[0, 5])])
    known, unknown = run.kafkad.ask(fetch, 0).topics[0].partitions
    assert (known.committed_offset, known.metadata, known.error_code) == (7, "m", 0)
    assert (unknown.committed_offset, unknown.error_code) == (-1, errors.UNKNOWN_TOPIC_OR_PARTITION)
    found = run.kafkad.ask(fetch, 5).topics[0].partitions[0]
    assert found.committed_offset == 7


def test_topics_and_configs(run: Run) -> None:
    creating, deleting = messages.CreateTopicsRequest, messages.DeleteTopicsRequest
    for version in (0, 1):
        topics = [
            creating.Topics(name=f"made{version}", num_partitions=2, replication_factor=1),
            creating.Topics(name="a/b", num_partitions=1, replication_factor=1),
            creating.Topics(name=f"copies{version}", num_partitions=1, replication_factor=5),
            creating.Topics(name=f"none{version}", num_partitions=0, replication_factor=1),
            creating.Topics(name=f"default{version}", num_partitions=-1, replication_factor=-1),
        ]
        run.step(Request(creating(topics=topics, timeout_ms=10_000), version, changes="topics"))
        run.step(Request(creating(topics=topics, timeout_ms=10_000), version, changes="topics"))
    cls = messages.DescribeConfigsRequest
    for kind, name in ((2, "made0"), (2, "missing"), (9, "x")):
        keys = ["cleanup.policy", "retention.ms"]
        resource = cls.Resources(resource_type=kind, resource_name=name, configuration_keys=keys)
        ours, theirs = (side.ask(cls(resources=[resource]), 0).results[0] for side in run.sides)
        assert (ours.error_code, ours.resource_name) == (theirs.error_code, theirs.resource_name)
        values = [(each.name, each.value, each.read_only, each.is_sensitive) for each in ours.configs]
        expected = [(each.name, each.value, each.read_only, each.is_sensitive) for each in theirs.configs]
        assert sorted(values) == sorted(expected)
        # Kafka 3.9 calls none a default
        assert all(each.is_default for each in ours.configs)
        assert not any(each.is_default for each in theirs.configs)
    logs = messages.DescribeLogDirsRequest
    run.step(Request(logs(topics=[logs.Topics(topic="made0", partitions=[0, 1, 2])]), 0))
    run.step(Request(deleting(topic_names=["made0", "missing"], timeout_ms=10_000), 0, changes="topics"))


def test_offset_for_leader_epoch(run: Run) -> None:
    filled(run, "epochs")
    cls = messages.OffsetForLeaderEpochRequest
    for version in (0, 1):
        for name, index in (("epochs", 0), ("epochs", 9), ("missing", 0)):
            for epoch in (-1, 0, 1, 99):
                part = cls.Topics.Partitions(partition=index, leader_epoch=epoch)
                run.step(Request(cls(topics=[cls.Topics(topic=name, partitions=[part])]), version))


def test_write_txn_markers_0(run: Run) -> None:
    cls = messages.WriteTxnMarkersRequest
    filled(run, "marked", 1)
    marker = cls.Markers(
        producer_id=70_000,
        producer_epoch=3,
        transaction_result=True,
        topics=[cls.Markers.Topics(name="marked", partition_indexes=[0])],
    )
    run.step(Request(cls(markers=[marker]), 0))
    run.step(Request(list_offsets("marked", -1, 1), 0))


# -- Produce 0 to 2 ------------------------------------------------------------------------------------------

PLAIN = [(b"key", b"value", 1_000), (None, b"x" * 3_000, 900), (b"", None, 1_100), (b"k", b"", -1)]


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def sized(data: bytes, size: int) -> bytes:
    return data[:8] + size.to_bytes(4, "big", signed=True) + data[12:]


def sets() -> Iterator[tuple[str, bytes]]:
    """Message sets, right and wrong, each with a name."""
    for magic in (0, 1):
        plain = message_set(magic, PLAIN)
        yield f"plain {magic}", plain
        for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4):
            yield f"codec {codec} {magic}", wrapper(magic, codec, plain, offset=3, timestamp=1_100)
            yield f"offset 0, codec {codec} {magic}", wrapper(magic, codec, plain)
        yield f"cut {magic}", plain[:-1]
        yield f"cut in the first {magic}", plain[:20]
        yield f"cut in the wrapped {magic}", wrapper(magic, 1, plain[:-1], offset=3)
        once = wrapper(magic, 1, plain, offset=3)
        yield f"twice wrapped {magic}", wrapper(magic, 1, once, offset=3)
        yield f"two wrappers {magic}", once + once
        yield f"wrapper and message {magic}", once + plain
        yield f"wraps the other magic {magic}", wrapper(magic, 1, message_set(1 - magic, PLAIN), offset=3)
        yield f"wraps nothing {magic}", wrapper(magic, 1, b"", offset=3)
        yield f"wraps a null {magic}", message(magic, None, None, attributes=1)
        yield f"zstd {magic}", wrapper(magic, codecs.ZSTD, plain, offset=3)
        yield f"wrong crc {magic}", damaged(plain, 13)
        yield f"wrong crc of the last {magic}", damaged(plain, len(plain) - 1)
        yield f"wrong crc inside {magic}", wrapper(magic, 1, damaged(plain, 13), offset=3)
        for size in (-1, 0, 13, 1 << 30):
            yield f"size {size} {magic}", sized(plain, size)
            yield f"size {size} inside {magic}", wrapper(magic, 1, sized(plain, size), offset=3)
        yield f"bytes behind a value {magic}", message(magic, b"k", b"v", 5, behind=b"more")
        yield f"offset of the wrapper is too small {magic}", wrapper(magic, 2, plain, offset=2)
        yield f"offset of the wrapper is negative {magic}", wrapper(magic, 2, plain, offset=-1)
        yield f"larger than the topic allows {magic}", message(magic, None, bytes(60_000))
        yield f"larger together {magic}", message_set(magic, [(None, bytes(9_000), 1)] * 6)
    yield "empty", b""
    yield "11 bytes", bytes(11)
    yield "12 bytes of zeros", bytes(12)
    yield "magic 3", message(0, b"k", b"v")[:16] + b"\3" + bytes(40)
    yield "both magics", message_set(0, PLAIN) + message_set(1, PLAIN)


# kafkad's own rules (docs/differences.md): a code beside Kafka's
OWN = {
    "size 1073741824 inside 0": (errors.MESSAGE_TOO_LARGE, {errors.UNKNOWN_SERVER_ERROR}),
    "size 1073741824 inside 1": (errors.MESSAGE_TOO_LARGE, {errors.UNKNOWN_SERVER_ERROR}),
}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_message_sets_become_the_same_batches(run: Run, version: int) -> None:
    unlike = []
    for config in ({}, {"compression_type": "gzip"}, {"compression_type": "uncompressed"}):
        name = f"sets{version}-" + "-".join(config.values())
        filled(run, name, 0, max_message_bytes="50000", **config)
        for what, data in sets():
            asked = produce_request(name, data)
            ours, theirs = (
                side.ask(asked, version).responses[0].partition_responses[0] for side in run.sides
            )
            if what in OWN:
                assert ours.error_code == OWN[what][0] and theirs.error_code in OWN[what][1], what
                continue
            if ours != theirs:
                unlike.append((config, what, ours, theirs))
        same_records(run, name)
    assert unlike == []


def same_records(run: Run, name: str) -> None:
    """All that both brokers store of a topic, as a client of today reads it."""
    cls = messages.FetchRequest
    offset = 0
    while True:
        part = cls.Topics.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = cls(max_wait_ms=0, max_bytes=1 << 20, topics=[cls.Topics(topic=name, partitions=[part])])
        run.step(Request(asked, 4))
        records = list(read_batches(run.kafkad.ask(asked, 4).responses[0].partitions[0].records))
        if not records:
            break
        offset = records[-1].last_offset + 1
    assert offset > 0


def test_message_sets_of_topics_with_other_rules(run: Run) -> None:
    rules: dict[str, dict[str, str]] = {
        "compacted": {"cleanup_policy": "compact"},
        "stamped": {"message_timestamp_type": "LogAppendTime"},
        "timely": {"message_timestamp_before_max_ms": "1000", "message_timestamp_after_max_ms": "1000"},
    }
    now = int(time.time() * 1000)
    for name, config in rules.items():
        filled(run, name, 0, **config)
        for magic in (0, 1):
            for rows in (
                [(b"k", b"v", now), (b"k", None, now)],
                [(b"k", b"v", now), (None, b"v", now)],
                [(b"k", b"v", 1_000)],
                [(b"k", b"v", now + 10_000_000)],
                [(b"k", b"v", -1)],
            ):
                plain = message_set(magic, rows)
                for data in (plain, wrapper(magic, codecs.LZ4, plain, offset=len(rows) - 1)):
                    run.step(Request(produce_request(name, data), 2))
        same_records(run, name)


def test_batches_of_today_are_taken_by_the_old_versions(run: Run) -> None:
    filled(run, "today", 0)
    for version in (0, 1, 2):
        for codec in (0, 1, 3):
            batch = build_batch([Record(key=b"k", value=b"v", timestamp=5)] * 3, compression=codec)
            run.step(Request(produce_request("today", batch), version))
    same_records(run, "today")


# -- Fetch 0 to 3 --------------------------------------------------------------------------------------------


def fetch(name: str, offset: int, limit: int = 1 << 20, index: int = 0, replica_id: int = -1) -> Any:
    cls = messages.FetchRequest
    part = cls.Topics.Partitions(partition=index, fetch_offset=offset, partition_max_bytes=limit)
    topic = cls.Topics(topic=name, partitions=[part])
    return cls(replica_id=replica_id, max_wait_ms=0, max_bytes=1 << 20, topics=[topic])


def told(answer: Any) -> Any:
    """What an answer says, with the messages of compressed ones, and without one that is cut."""
    (topic,) = answer.responses
    (part,) = topic.partitions
    found = []
    assert part.records is not None or part.error_code
    for entry in read_entries(part.records or b""):
        assert entry.is_intact()
        head = (entry.offset, entry.magic, entry.attributes, entry.timestamp, entry.key)
        rows = [(r.offset, r.key, r.value, r.timestamp) for r in entry.records()]
        inner = []
        if entry.compression:
            data = bytes(entry.value)
            if entry.compression == codecs.LZ4 and entry.magic == 0:
                data = with_right_lz4_checksum(data)
            inner = [
                (each.offset, each.attributes, each.crc)
                for each in read_entries(codecs.decompress(entry.compression, data, 1 << 24))
            ]
        found.append((head, rows, inner))
    return topic.topic, part.partition_index, part.error_code, part.high_watermark, found


def test_batches_become_the_same_messages(run: Run) -> None:
    rows = [Record(key, value, headers=[("h", b"x")], timestamp=time) for key, value, time in PLAIN[:3]]
    topics: dict[str, dict[str, str]] = {
        "created": {},
        "appended": {"message_timestamp_type": "LogAppendTime"},
    }
    cls = messages.WriteTxnMarkersRequest
    for name, config in topics.items():
        filled(run, name, 0, **config)
        for number, codec in enumerate((0, 1, 0, 2, 0, 3, 0)):
            run.step(Request(produce_request(name, build_batch(rows, compression=codec)), 9))
            if number % 3 == 2:
                marked = [cls.Markers.Topics(name=name, partition_indexes=[0])]
                run.step(Request(cls(markers=[cls.Markers(producer_id=99, topics=marked)]), 1))
        stamps = name == "appended"
        for version in range(4):
            for offset in (*range(26), -1, 1 << 40):
                ours, theirs = (told(side.ask(fetch(name, offset), version)) for side in run.sides)
                if stamps:  # each broker has its own time
                    ours, theirs = (
                        [*answer[:4], [(head[:3], [row[:3] for row in rows]) for head, rows, _ in answer[4]]]
                        for answer in (ours, theirs)
                    )
                assert (version, offset, *ours[:4]) == (version, offset, *theirs[:4])
                # Kafka sends no more bytes than are stored, and the first batch twice behind a control batch
                theirs_once = [each for at, each in enumerate(theirs[4]) if each not in theirs[4][:at]]
                assert (version, offset, ours[4][: len(theirs_once)]) == (version, offset, theirs_once)
                assert bool(ours[4]) == bool(theirs_once)
    for version in range(4):
        for asked in (fetch("missing", 0), fetch("created", 0, index=7), fetch("created", 0, limit=0)):
            ours, theirs = (told(side.ask(asked, version)) for side in run.sides)
            if asked.topics[0].partitions[0].partition_max_bytes:
                assert ours == theirs
            elif version < 3:
                assert ours[:4] == theirs[:4] and ours[4] == []


def test_zstd_is_not_sent_to_old_clients(run: Run) -> None:
    rows = [Record(key=None, value=b"v", timestamp=5)] * 3
    filled(run, "zstd", 0)
    for codec in (0, codecs.ZSTD, 0):
        run.step(Request(produce_request("zstd", build_batch(rows, compression=codec)), 9))
    for version in range(4):
        for offset in range(10):
            ours, theirs = (told(side.ask(fetch("zstd", offset), version)) for side in run.sides)
            assert (version, offset, ours) == (version, offset, theirs)
    assert told(run.kafkad.ask(fetch("zstd", 3), 0))[2] == errors.UNSUPPORTED_COMPRESSION_TYPE
