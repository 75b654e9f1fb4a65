"""kafkad beside JVM Kafka 4.3.1: the same requests, the same answers, field by field; transactions also
beside 3.9.1.

1,000 requests in the suite, the same in each run, and 20,000 new ones in `make soak`. A failure prints the
seed, the requests and the fields that differ; KAFKAD_SEED repeats it. Rules in MEANT name the differences
that stay, as docs/differences.md does."""

import itertools
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from kafkad.api.table import ROWS
from kafkad.protocol import errors, messages
from kafkad.protocol.compression import ZSTD
from kafkad.protocol.records import Record, build_batch
from kafkad.testing import Broker
from tests.differential import SILENT, Comparison, Request, Run, Symbol
from tests.differential_choices import BROKER, INT32, TOPIC
from tests.differential_groups import Group
from tests.differential_requests import Script
from tests.differential_transactions import APIS, Transactions
from tests.jvm import TEST_CONFIG, ZOOKEEPER_LINE, JvmKafka
from tests.wire import produce_request

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

# they stand beside Kafka in tests of their own: test_delegation_tokens, test_quotas_jvm
ELSEWHERE = {
    "AlterClientQuotas", "AlterPartitionReassignments", "AlterReplicaLogDirs", "ListPartitionReassignments",
    "CreateDelegationToken", "DescribeClientQuotas", "DescribeDelegationToken",
    "ExpireDelegationToken", "RenewDelegationToken",
}  # fmt: skip
RARE = {"SaslHandshake", "AlterConfigs", "DeleteGroups", "ListConfigResources"}  # a run may not come to them

CONFIG = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "3600000",
    "log.cleaner.backoff.ms": "3600000",
    "group.max.session.timeout.ms": "1800000",
    "log.message.timestamp.after.max.ms": "3600000",
}


def partitions_of(request: Request) -> Iterator[tuple[str, Any]]:
    """(topic, partition) of a Produce or a Fetch."""
    for topic in request.message.topic_data if request.key == 0 else request.message.topics:
        for part in topic.partition_data if request.key == 0 else topic.partitions:
            yield (topic.name if request.key == 0 else topic.topic), part


def has_odd_records(request: Request) -> bool:
    """A Produce with bytes behind a batch, two batches, or a batch that is no batch at all."""
    for _, part in partitions_of(request):
        data = part.records
        if not isinstance(data, bytes | None) or data is None:
            continue
        size = int.from_bytes(data[8:12], "big", signed=True) + 12 if len(data) >= 12 else -1
        if size != len(data) or data[16:17] != b"\2":
            return True
    return False


DEAD = [
    ("groups[].group_state", "Dead"),
    ("groups[].error_code", 69),
    ("groups[].protocol_type", ""),
    ("groups[].protocol_data", ""),
    ("groups[].members", []),
    ("groups[].authorized_operations", -(2**31)),  # with an error there are none
]


# Differences that are meant, each with its entry in docs/differences.md.
def deletes_nothing(topics: list[dict[str, Any]]) -> bool:
    codes = {part["error_code"] for topic in topics for part in topic["partitions"]}
    return codes <= {0, errors.UNKNOWN_TOPIC_OR_PARTITION}


def is_beginning(one: list[Any], other: list[Any]) -> bool:
    """Whether one of them is the beginning of the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer[: len(shorter)] == shorter


def has_other_room(path: str, ours: Any, theirs: Any) -> bool:
    """Whether two answers to a Fetch differ only in how much of each partition there was room for. In a
    session, a partition without records is left out."""
    if path == "responses[].partitions[].records":
        return is_beginning(ours, theirs)
    if path == "responses[].partitions":
        ours, theirs = ({"partitions": each} for each in (ours, theirs))
        return has_other_room("responses", [ours], [theirs])
    if path != "responses":
        return False
    sides = [
        {
            (topic.get("topic"), topic.get("topic_id"), part["partition_index"]): part
            for topic in answer
            for part in topic["partitions"]
        }
        for answer in (ours, theirs)
    ]
    for key in {*sides[0], *sides[1]}:
        here, there = (side.get(key) for side in sides)
        if here is None or there is None:
            if (here or there)["error_code"] != errors.NONE:
                return False
        elif any(
            here[name] != there[name] and not (name == "records" and is_beginning(here[name], there[name]))
            for name in here
        ):
            return False
    return True


MEANT: dict[str, Callable[[Request, str, Any, Any], bool]] = {
    "Fetch: no aborted transactions where there was no room": lambda request, path, ours, theirs: (
        request.key == 1
        and path.endswith("aborted_transactions")
        and (ours, theirs) == ([], None)
        and request.message.isolation_level == 1
    ),
    "Produce: one batch and nothing else": lambda request, path, ours, theirs: (
        request.key == 0 and has_odd_records(request) and 0 not in (ours, theirs)
    ),
    "DescribeConfigs: each resource has its own error": lambda request, path, ours, theirs: (
        request.key == 32
        and any(each.resource_type not in (TOPIC, BROKER) for each in request.message.resources)
    ),
    "DescribeTopicPartitions: a cursor near the largest number": lambda request, path, ours, theirs: (
        request.key == 75
        and request.message.cursor is not None
        and request.message.cursor.partition_index > INT32 - 1 - 2000
        and path.startswith(("topics", "next_cursor"))
    ),
    "DescribeTopicPartitions: an empty name": lambda request, path, ours, theirs: (
        request.key == 75 and any(not each.name for each in request.message.topics)
    ),
    "ListOffsets: records behind a segment that was deleted": lambda request, path, ours, theirs: (
        request.key == 2
        and path.endswith((".offset", ".timestamp", ".leader_epoch"))
        and theirs == -1
        and (ours == "now" or ours > 0 or path.endswith(".leader_epoch"))
        and any(part.timestamp >= 0 for topic in request.message.topics for part in topic.partitions)
    ),
    "Produce: acks are judged before records": lambda request, path, ours, theirs: (
        request.key == 0 and request.message.acks not in (-1, 0, 1) and ours == 21
    ),
    "Produce: which error a damaged batch gets": lambda request, path, ours, theirs: (
        request.key == 0 and request.wrong_batch and ours in (2, 32, 76, 87) and theirs in (-1, 2, 32, 76, 87)
    ),
    "Groups exist from their first member on": lambda request, path, ours, theirs: (
        (request.key == 16 and isinstance(ours, list) and all(group in ours for group in theirs))
        or (request.key == 15 and (path, theirs) in DEAD)
    ),
    "OffsetCommit: a commit that stores nothing makes no group": lambda request, path, ours, theirs: (
        (request.key == 15 and (path, ours, theirs) == ("groups[].group_state", "Dead", "Empty"))
        or (request.key == 42 and (ours, theirs) == (errors.GROUP_ID_NOT_FOUND, 0))
        or (
            request.key == 16
            and path == "groups"
            and all(each in theirs for each in ours)
            and all(
                each.get("group_state", "Empty") == "Empty" and each["protocol_type"] == ""
                for each in theirs
                if each not in ours
            )
        )
    ),
    "OffsetDelete: of a group that a commit has not made": lambda request, path, ours, theirs: (
        (request.key == 47 and (path, ours, theirs) == ("error_code", errors.GROUP_ID_NOT_FOUND, 0))
        or (request.key == 47 and path == "topics" and ours == [] and deletes_nothing(theirs))
    ),
    "Fetch: no part of a batch, so that more partitions fit": lambda request, path, ours, theirs: (
        request.key == 1 and request.message.max_bytes <= 500 and has_other_room(path, ours, theirs)
    ),
    "JoinGroup: a protocol without a name": lambda request, path, ours, theirs: (
        request.key == 11 and path == "protocol_name" and (ours, theirs) == ("", None)
    ),
    "Fetch session: a deleted topic is an unknown id": lambda request, path, ours, theirs: (
        request.key == 1
        and request.version >= 13
        and request.message.session_epoch > 0
        and (
            (path.endswith("error_code") and ours == 100 and theirs in (3, 103))
            or (path.endswith("aborted_transactions") and (ours, theirs) == ([], None))
        )
    ),
    "Produce: an internal topic is judged before its records": lambda request, path, ours, theirs: (
        request.key == 0
        and ours == 17
        and any(topic.name == "__consumer_offsets" for topic in request.message.topic_data)
    ),
    "Metadata: a topic without name and id": lambda request, path, ours, theirs: (
        request.key == 3
        and any(not each.name and each.topic_id == bytes(16) for each in request.message.topics or ())
    ),
    "WriteTxnMarkers: an answer, though a marker has nothing to write": lambda request, path, ours, theirs: (
        request.key == 27 and path == "" and theirs == SILENT and isinstance(ours, dict)
    ),
    "Produce: a retry though its transaction has ended": lambda request, path, ours, theirs: (
        request.key == 0
        and path.startswith("responses[].partition_responses[].")
        and any(
            getattr(part.records, "kind", "") == "transactional batch"
            and getattr(part.records.key[1], "kind", "") == "txn epoch before"
            for topic in request.message.topic_data
            for part in topic.partition_data
        )
    ),
    "EndTxn: who was fenced stays fenced": lambda request, path, ours, theirs: (
        request.key == 26
        and request.version >= 5
        and (path, ours) in (("error_code", 90), ("producer_id", -1), ("producer_epoch", -1))
        and theirs != 90
    ),
    "Fetch: aborted transactions of what is sent": lambda request, path, ours, theirs: (
        request.key == 1
        and path.endswith("aborted_transactions")
        and isinstance(ours, list)
        and isinstance(theirs, list)
        and all(each in theirs for each in ours)
        and all(
            each["first_offset"] > max((known["first_offset"] for known in ours), default=-1)
            for each in theirs
            if each not in ours
        )
    ),
    "IncrementalAlterConfigs: each resource has its own error": lambda request, path, ours, theirs: (
        request.key == 44
        and any(
            row.config_operation not in range(4) for each in request.message.resources for row in each.configs
        )
    ),
}


# What Kafka 4 changed since 3.9, and kafkad does as Kafka 4.
CHANGED: dict[str, Callable[[Request, str, Any, Any], bool]] = {
    "CreateTopics: the keys and defaults of a topic": lambda request, path, ours, theirs: (
        request.key == 19 and path.startswith("topics[].configs")
    ),
    "InitProducerId: the start of the transaction before is forgotten": lambda request, path, ours, theirs: (
        request.key == 65 and path.endswith("transaction_start_time_ms") and (ours, theirs) == (-1, "time")
    ),
    "ListTransactions: without a start, a transactional id passes": lambda request, path, ours, theirs: (
        request.key == 66
        and request.message.duration_filter > 0
        and all(each in ours for each in theirs)
        and all(each["transaction_state"] == "Empty" for each in ours if each not in theirs)
    ),
    "Produce, TxnOffsetCommit: an epoch below the log's is refused before the coordinator is asked": (
        lambda request, path, ours, theirs: (
            request.key in (0, 28) and path.endswith("error_code") and ours == 47 and theirs in (42, 49)
        )
    ),
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    directory: Path = tmp_path_factory.mktemp("differential")
    with (
        Broker(config={**TEST_CONFIG, **CONFIG, "node.id": "1"}, data_dir=directory / "kafkad") as ours,
        JvmKafka(directory / "kafka", config=CONFIG) as theirs,
    ):
        yield ours.bootstrap, theirs.bootstrap


def run(brokers: tuple[str, str], seed: int, requests: int) -> Comparison:
    script = Script(seed).bursts()
    with Run(*brokers, MEANT) as comparison:
        while comparison.result.requests < requests:
            comparison.step(*next(script))
        return comparison.result


@pytest.mark.soak
def test_the_same_requests_get_the_same_answers(
    brokers: tuple[str, str], rounds: Callable[[int, int], int]
) -> None:
    """Every API and version that is served is asked in one run or another."""
    seed = int(os.environ.get("KAFKAD_SEED") or rounds(11, random.randrange(1 << 16)))
    result = run(brokers, seed, rounds(1000, 20_000))
    assert {name for name, _ in result.by_api} >= {row.name for row in ROWS} - RARE - ELSEWHERE - APIS
    kinds = {
        (each.request.api, each.path, str(each.kafkad), str(each.kafka)): each
        for each in reversed(result.differences)
    }
    shown = "\n".join(str(each) for each in sorted(kinds.values(), key=lambda each: each.number)[:20])
    assert not result.differences, f"seed {seed}: {len(result.differences)} fields differ\n{shown}"


@pytest.mark.soak
def test_transactions_get_the_same_answers(
    brokers: tuple[str, str], rounds: Callable[[int, int], int]
) -> None:
    seed = int(os.environ.get("KAFKAD_SEED") or rounds(17, random.randrange(1 << 16)))
    with Run(*brokers, MEANT) as run:
        transactions = Transactions(run, seed)
        transactions.prepare()
        transactions.steps(rounds(600, 10_000))
    assert {name for name, _ in run.result.by_api} >= APIS
    shown = "\n".join(str(each) for each in run.result.differences[:20])
    assert not run.result.differences, f"seed {seed}: {len(run.result.differences)} fields differ\n{shown}"


@pytest.fixture(scope="module")
def old_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """kafkad in a directory that Kafka 3.9.1 has made, so that both have its transaction.version: 0."""
    directory: Path = tmp_path_factory.mktemp("differential-old")
    kafka = JvmKafka(directory / "kafka", version=ZOOKEEPER_LINE, config=CONFIG)
    kafka.start().stop()
    shutil.copytree(directory / "kafka", directory / "kafkad")
    with (
        Broker(config={**TEST_CONFIG, **CONFIG, "node.id": "1"}, data_dir=directory / "kafkad") as ours,
        kafka as theirs,
    ):
        yield ours.bootstrap, theirs.bootstrap


@pytest.mark.soak
def test_transactions_get_the_same_answers_as_from_kafka_3(
    old_brokers: tuple[str, str], rounds: Callable[[int, int], int]
) -> None:
    """All versions that Kafka 3.9.1 has, under the older protocol on both sides."""
    seed = int(os.environ.get("KAFKAD_SEED") or rounds(23, random.randrange(1 << 16)))
    with Run(*old_brokers, MEANT | CHANGED) as run:
        served = run.kafka.ask(messages.ApiVersionsRequest(), 0).api_keys
        transactions = Transactions(run, seed, {row.api_key: row.max_version for row in served})
        transactions.prepare()
        transactions.steps(rounds(600, 10_000))
    assert {name for name, _ in run.result.by_api} >= APIS
    shown = "\n".join(str(each) for each in run.result.differences[:20])
    assert not run.result.differences, f"seed {seed}: {len(run.result.differences)} fields differ\n{shown}"


@pytest.mark.soak
def test_several_members_of_a_group_get_the_same_answers(
    brokers: tuple[str, str], rounds: Callable[[int, int], int]
) -> None:
    seed = int(os.environ.get("KAFKAD_SEED") or rounds(5, random.randrange(1 << 16)))
    with Run(*brokers, MEANT) as run:
        group = Group(run, seed)
        try:
            for _ in range(rounds(15, 300)):
                group.round()
        finally:
            group.close()
        shown = "\n".join(str(each) for each in run.result.differences[:20])
        assert not run.result.differences, f"seed {seed}\n{shown}"
        assert group.answers > 100


# -- promises that a random run would reach seldom, beside the JVM ------------------------------------------


def create(run: Run, name: str, **configs: str) -> None:
    cls = messages.CreateTopicsRequest.Topics
    rows = [cls.Configs(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = cls(name=name, num_partitions=1, replication_factor=1, configs=rows)
    run.step(Request(messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7, changes="topics"))


def fetch_at(offset: int, name: str, last_epoch: int = -1, isolation: int = 0) -> Any:
    cls = messages.FetchRequest
    part = cls.Topics.Partitions(
        partition=0, fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20
    )
    topic = cls.Topics(topic=name, topic_id=Symbol("topic", name, bytes(16)), partitions=[part])
    return cls(max_wait_ms=0, max_bytes=1 << 20, isolation_level=isolation, topics=[topic], session_epoch=-1)


def test_zstd_is_gated_in_produce_below_7_and_not_in_fetch_below_10(brokers: tuple[str, str]) -> None:
    """Kafka 4 dropped the gate of Fetch; both still have that of Produce (UNSUPPORTED_COMPRESSION_TYPE)."""
    packed = build_batch([Record(key=None, value=b"z" * 100, timestamp=1_000)], compression=ZSTD)
    with Run(*brokers, {}) as run:
        create(run, "zstd")
        codes = {}
        for version in range(3, 10):
            answer = run.kafkad.ask(produce_request("zstd", packed), version)
            codes[version] = answer.responses[0].partition_responses[0].error_code
            assert run.kafka.ask(produce_request("zstd", packed), version).responses == answer.responses
        assert codes == {3: 76, 4: 76, 5: 76, 6: 76, 7: 0, 8: 0, 9: 0}
        for version in range(4, 19):
            run.step(Request(fetch_at(0, "zstd"), version))
            sent = run.kafkad.ask(run.kafkad.resolve(fetch_at(0, "zstd"), version), version)
            assert len(sent.responses[0].partitions[0].records) == 3 * len(packed)
        assert run.result.differences == []


def zstd_batch(window_log: int) -> bytes:
    """A batch whose zstd frame declares this window, holds one small block, and does not say its size."""
    plain = build_batch([Record(key=None, value=b"w" * 100, timestamp=1_000)])
    body = bytes(plain[61:])
    block = (len(body) << 3 | 1).to_bytes(3, "little") + body
    data = plain[:61] + b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3]) + block
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, ZSTD)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def test_zstd_windows_up_to_128_mib_are_read_as_in_kafka(brokers: tuple[str, str]) -> None:
    """The limit of both is libzstd's: a window of 2^27 bytes. Which error a larger one gets differs."""
    with Run(*brokers, {}) as run:
        create(run, "windows")
        for window_log in (10, 20, 23, 26, 27, 28, 29, 30, 31, 32, 41):
            codes = [
                side.ask(produce_request("windows", zstd_batch(window_log)), 9)
                .responses[0]
                .partition_responses[0]
                .error_code
                for side in run.sides
            ]
            assert (codes[0] == 0, codes[1] == 0) == (window_log <= 27,) * 2, (window_log, codes)


def test_min_insync_replicas_counts_no_more_than_there_are_replicas(brokers: tuple[str, str]) -> None:
    """Partition.effectiveMinIsr: with one replica a larger value changes no answer."""
    rows = [Record(key=None, value=b"v", timestamp=1_000)]
    with Run(*brokers, {}) as run:
        create(run, "insync", min_insync_replicas="3")
        for acks in (-1, 1):
            asked = produce_request("insync", build_batch(rows), acks=acks)
            run.step(Request(asked, 9))
            answer = run.kafkad.ask(asked, 9)
            assert answer == run.kafka.ask(asked, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        for cls, version in ((messages.MetadataRequest, 12), (messages.DescribeTopicPartitionsRequest, 0)):
            run.step(Request(cls(topics=[cls.Topics(name="insync")]), version))
        run.step(Request(fetch_at(0, "insync"), 12))
        assert run.result.differences == []


@pytest.mark.parametrize("isolation", [0, 1])
def test_a_last_fetched_epoch_that_parts_from_the_log(brokers: tuple[str, str], isolation: int) -> None:
    rows = [Record(key=None, value=b"v", timestamp=1_000)]
    name = f"epochs{isolation}"
    with Run(*brokers, {}) as run:
        create(run, name)
        run.step(Request(produce_request(name, build_batch(rows)), 9))
        seen = set()
        for version, epoch, offset in itertools.product(
            range(12, 19), (-9, -1, 0, 1, 99), (-2, -1, 0, 1, 2, 1 << 40)
        ):
            asked = fetch_at(offset, name, epoch, isolation)
            run.step(Request(asked, version))
            answer = run.kafkad.ask(run.kafkad.resolve(asked, version), version)
            part = answer.responses[0].partitions[0]
            seen.add((epoch, offset, part.error_code, part.diverging_epoch.end_offset))
        assert run.result.differences == []
        assert {(0, 1, 0, -1), (0, 2, 0, 1), (0, -1, 1, -1), (1, 0, 1, -1), (-1, 2, 1, -1)} <= seen
