"""Calls of single APIs for tests/integration/test_apis*.py: every version of each API, over a socket.

These files import the fixtures `broker` and `wire` from here."""

import time
from collections.abc import Iterator

import pytest

from kafkad.api.table import ROWS
from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.wire import Wire, batch, create_topic

PRODUCE_UNTIL_IDS = 12

_numbers = iter(range(10_000))


@pytest.fixture(scope="module", name="broker")
def api_broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(name="wire")
def api_wire(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.bootstrap, timeout=20) as wire:
        yield wire


def fresh(word: str) -> str:
    return f"{word}-{next(_numbers)}"


def versions_of(name: str) -> list[int]:
    row = next(row for row in ROWS if row.name == name)
    return list(range(row.low, row.high + 1))


def every_version(name: str):
    return pytest.mark.parametrize("version", versions_of(name))


def produce(wire: Wire, topic: str, topic_id: bytes, version: int, *values: bytes):
    struct = messages.ProduceRequest.TopicData
    data = struct(partition_data=[struct.PartitionData(index=0, records=bytes(batch(*values)))])
    if version > PRODUCE_UNTIL_IDS:
        data.topic_id = topic_id
    else:
        data.name = topic
    request = messages.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    response = wire.ask(request, version)
    return response.responses[0].partition_responses[0]


def filled(wire: Wire, count: int = 3) -> tuple[str, bytes]:
    """A topic with `count` records in as many batches."""
    topic = fresh("topic")
    topic_id = create_topic(wire, topic)
    for number in range(count):
        assert produce(wire, topic, topic_id, 9, b"%d" % number).error_code == 0
    return topic, topic_id


def commit(wire: Wire, group: str, topic: str, topic_id: bytes, version: int, offset: int = 2):
    struct = messages.OffsetCommitRequest.Topics
    partitions = [struct.Partitions(partition_index=0, committed_offset=offset, committed_metadata="note")]
    asked = (
        struct(topic_id=topic_id, partitions=partitions)
        if version >= 10
        else struct(name=topic, partitions=partitions)
    )
    request = messages.OffsetCommitRequest(group_id=group, topics=[asked])
    return wire.ask(request, version).topics[0].partitions[0].error_code


def ready_coordinator(wire: Wire, group: str) -> None:
    for _ in range(200):
        found = wire.ask(messages.FindCoordinatorRequest(key=group), 2)
        if found.error_code == 0:
            return
        time.sleep(0.05)
    raise AssertionError(found)


def ready_transactions(wire: Wire, transactional_id: str) -> None:
    """Its coordinator is found and serves it."""
    for _ in range(200):
        found = wire.ask(messages.FindCoordinatorRequest(key=transactional_id, key_type=1), 2)
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        if found.error_code == 0:
            (state,) = wire.ask(request, 0).transaction_states
            if state.error_code == errors.TRANSACTIONAL_ID_NOT_FOUND:
                return
        time.sleep(0.05)
    raise AssertionError(found)
