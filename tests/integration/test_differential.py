"""kafkad beside JVM Kafka 4.3.1: the same requests, the same answers, field by field.

1,000 requests in the suite, the same in each run, and 20,000 new ones in `make soak`. A failure prints the
seed, the requests and the fields that differ; KAFKAD_SEED repeats it. Rules in MEANT name the differences
that stay, as docs/differences.md does."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkad.api.table import ROWS
from kafkad.testing import Broker
from tests.differential import Comparison, Request, Run
from tests.differential_requests import BROKER, TOPIC, Script
from tests.jvm import TEST_CONFIG, JvmKafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

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


# Differences that are meant, each with its entry in docs/differences.md.
MEANT: dict[str, Callable[[Request, str, Any, Any], bool]] = {
    "Fetch: no aborted transactions where there was no room": lambda request, path, ours, theirs: (
        request.key == 1 and path.endswith("aborted_transactions") and (ours, theirs) == ([], None)
    ),
    "Produce: one batch and nothing else": lambda request, path, ours, theirs: (
        request.key == 0 and has_odd_records(request) and 0 not in (ours, theirs)
    ),
    "Produce: null records": lambda request, path, ours, theirs: (
        request.key == 0 and any(part.records is None for _, part in partitions_of(request))
    ),
    "DescribeConfigs: each resource has its own error": lambda request, path, ours, theirs: (
        request.key == 32
        and any(each.resource_type not in (TOPIC, BROKER) for each in request.message.resources)
    ),
    "DescribeTopicPartitions: an empty name": lambda request, path, ours, theirs: (
        request.key == 75 and any(not each.name for each in request.message.topics)
    ),
    "Produce: the log start beside an error": lambda request, path, ours, theirs: (
        request.key == 0 and path.endswith("log_start_offset") and -1 in (ours, theirs)
    ),
    "Produce: acks are judged before records": lambda request, path, ours, theirs: (
        request.key == 0 and request.message.acks not in (-1, 0, 1) and ours == 21
    ),
    "Produce: which error a damaged batch gets": lambda request, path, ours, theirs: (
        request.key == 0 and ours in (2, 32, 76, 87) and theirs in (-1, 2, 32, 76, 87)
    ),
    "Groups exist from their first member on": lambda request, path, ours, theirs: (
        (request.key == 16 and isinstance(ours, list) and all(group in ours for group in theirs))
        or (request.key == 15 and theirs in ("Dead", 69, "", []))
    ),
    "JoinGroup: a protocol without a name": lambda request, path, ours, theirs: (
        request.key == 11 and path == "protocol_name" and (ours, theirs) == ("", None)
    ),
    "Fetch session: a deleted topic is an unknown id": lambda request, path, ours, theirs: (
        request.key == 1 and path.endswith("error_code") and (ours, theirs) == (100, 3)
    ),
    "Produce: an internal topic is judged before its records": lambda request, path, ours, theirs: (
        request.key == 0 and ours == 17
    ),
    "Metadata: a topic without name and id": lambda request, path, ours, theirs: (
        request.key == 3
        and any(not each.name and each.topic_id == bytes(16) for each in request.message.topics or ())
    ),
    "IncrementalAlterConfigs: each resource has its own error": lambda request, path, ours, theirs: (
        request.key == 44
        and any(
            row.config_operation not in range(4) for each in request.message.resources for row in each.configs
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
    with Run(*brokers, MEANT) as comparison:
        for request in itertools.islice(Script(seed), requests):
            comparison.step(request)
        return comparison.result


@pytest.mark.soak
def test_the_same_requests_get_the_same_answers(
    brokers: tuple[str, str], rounds: Callable[[int, int], int]
) -> None:
    """Every API and version that is served is asked in one run or another."""
    seed = int(os.environ.get("KAFKAD_SEED") or rounds(11, random.randrange(1 << 16)))
    result = run(brokers, seed, rounds(1000, 20_000))
    assert {name for name, _ in result.by_api} >= {row.name for row in ROWS} - RARE
    kinds = {
        (each.request.api, each.path, str(each.kafkad), str(each.kafka)): each
        for each in reversed(result.differences)
    }
    shown = "\n".join(str(each) for each in sorted(kinds.values(), key=lambda each: each.number)[:20])
    assert not result.differences, f"seed {seed}: {len(result.differences)} fields differ\n{shown}"
