"""Versions of APIs that Kafka 4 dropped, over two workers: any connection answers for all partitions."""

import time

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.wire import Wire, batch, create_topic, produce


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2) as broker:
        yield broker


def commit(wire: Wire, group: str, topic: str, offset: int) -> int:
    cls = messages.OffsetCommitRequest
    part = cls.Topics.Partitions(partition_index=0, committed_offset=offset, committed_metadata="")
    answer = wire.ask(cls(group_id=group, topics=[cls.Topics(name=topic, partitions=[part])]), 0)
    return answer.topics[0].partitions[0].error_code


def test_a_commit_of_version_0_needs_no_coordinator_to_be_looked_for(broker):
    """A client of Kafka 0.8.1 knows none: its first commit creates the topic of offsets."""
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
        for number in range(4):
            deadline = time.monotonic() + 30
            while (code := commit(wire, f"g{number}", "t", number)) and time.monotonic() < deadline:
                assert code in (
                    errors.COORDINATOR_NOT_AVAILABLE,
                    errors.COORDINATOR_LOAD_IN_PROGRESS,
                    errors.NOT_COORDINATOR,
                )
                time.sleep(0.02)
            assert code == 0
        for number in range(4):
            cls = messages.OffsetFetchRequest
            asked = cls(group_id=f"g{number}", topics=[cls.Topics(name="t", partition_indexes=[0])])
            found = wire.ask(asked, 0).topics[0].partitions[0]
            assert (found.error_code, found.committed_offset) == (0, number)


def test_list_offsets_0_of_partitions_of_both_workers(broker):
    cls = messages.ListOffsetsRequest
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "many", partitions=8)
        for index in range(8):
            for _ in range(index):
                assert produce(wire, "many", batch(b"v"), index).error_code == 0
        for timestamp, end in ((-1, True), (-2, False)):
            parts = [
                cls.Topics.Partitions(partition_index=index, timestamp=timestamp, max_num_offsets=9)
                for index in range(8)
            ]
            answer = wire.ask(cls(replica_id=-1, topics=[cls.Topics(name="many", partitions=parts)]), 0)
            found = {each.partition_index: each.old_style_offsets for each in answer.topics[0].partitions}
            assert found == {index: [index, 0] if end and index else [0] for index in range(8)}
