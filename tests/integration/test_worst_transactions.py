"""How long do others wait while one transaction begins, is written and ends in thousands of partitions?

The coordinator decides about all of them at once and writes one record; everything else (the question, its
answer, the appends, the markers) takes as long as many small requests, and is done in turns."""

import time

import pytest

from kafkad.protocol import errors, messages
from tests.clients import wait_until
from tests.integration.test_worst_frames import PATIENCE, World
from tests.wire import Wire, batch, create_topic

PARTITIONS = 5_000
WIDE, NAME = "wide", "wide transaction"


@pytest.fixture(scope="module", params=[1, 2], ids=["one_worker", "two_workers"])
def world(request):
    with World(request.param) as running:
        with Wire(running.bootstrap, PATIENCE) as wire:
            create_topic(wire, WIDE, PARTITIONS)
            wait_until(lambda: led(wire) == PARTITIONS)
        yield running


def led(wire):
    asked = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=WIDE)])
    (topic,) = wire.ask(asked, 12).topics
    return sum(part.error_code == 0 for part in topic.partitions)


class Client:
    """One transactional id, on a connection to each worker in turn."""

    def __init__(self, wire):
        self.wire = wire
        finder = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME])
        wait_until(lambda: self.wire.ask(finder, 4).coordinators[0].error_code == 0)
        request = messages.InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=600_000)
        answer = self.until(lambda: self.wire.ask(request, 4), lambda answer: answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequence = 0

    def until(self, ask, code_of):
        """The answer, when the transaction before has ended."""
        deadline = time.monotonic() + PATIENCE
        while code_of(answer := ask()) in (
            errors.CONCURRENT_TRANSACTIONS,
            errors.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert code_of(answer) == 0, answer
        return answer

    def add(self):
        cls = messages.AddPartitionsToTxnRequest
        request = cls(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[cls.V3AndBelowTopics(name=WIDE, partitions=list(range(PARTITIONS)))],
        )

        def code_of(answer):
            (topic,) = answer.results_by_topic_v3_and_below
            (code,) = {part.partition_error_code for part in topic.results_by_partition}
            return code

        self.until(lambda: self.wire.ask(request, 3), code_of)

    def produce(self, version):
        data = bytes(
            batch(
                b"v",
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence,
                transactional=True,
            )
        )
        cls = messages.ProduceRequest.TopicData
        parts = [cls.PartitionData(index=index, records=data) for index in range(PARTITIONS)]
        request = messages.ProduceRequest(
            transactional_id=NAME,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[cls(name=WIDE, partition_data=parts)],
        )

        def code_of(answer):
            (code,) = {part.error_code for part in answer.responses[0].partition_responses}
            return code

        self.until(lambda: self.wire.ask(request, version), code_of)
        self.sequence += 1

    def end(self, version):
        request = messages.EndTxnRequest(
            transactional_id=NAME, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )
        answer = self.until(lambda: self.wire.ask(request, version), lambda answer: answer.error_code)
        if version >= 5:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        described = messages.DescribeTransactionsRequest(transactional_ids=[NAME])
        wait_until(
            lambda: self.wire.ask(described, 0).transaction_states[0].transaction_state == "CompleteCommit"
        )


@pytest.mark.parametrize("protocol", ["older", "newer"])
def test_a_transaction_of_thousands_of_partitions_stops_nobody(world, protocol):
    """From each worker: one of them coordinates it, the others ask."""
    for number in range(len(world.pids)):
        with Wire(world.bootstrap, PATIENCE) as wire:
            client = Client(wire)

            def act(client=client):
                if protocol == "older":
                    client.add()
                client.produce(11 if protocol == "older" else 12)
                client.end(4 if protocol == "older" else 5)

            world.measure(f"{protocol} {number}", act)
