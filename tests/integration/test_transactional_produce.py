"""Produce in transactions, frame by frame: who may write, who is refused and with what error.

All of it holds for JVM Kafka 4.3.1 (`pytest --broker=jvm`), and for kafkad with one worker and several, where
partitions and coordinators belong to different ones."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kafkad.protocol import errors, messages
from tests.clients import wait_until
from tests.conftest import new_broker
from tests.wire import Wire, batch, create_topic

PARTITIONS = 8  # of a topic: so each of four workers has one
CONFIG = {"transaction.max.timeout.ms": 900_000}
FENCED, ID_MAPPING, NOT_IN_IT = 47, 49, 48
ABORTABLE = 120
NOT_ADDED = "Partition was not added to the transaction"


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda workers: f"workers-{workers}")
def broker(request, broker_kind, tmp_path_factory) -> Iterator:
    if broker_kind == "jvm" and request.param > 1:
        pytest.skip("JVM Kafka has no workers")
    with ExitStack() as running:
        made = new_broker(broker_kind, tmp_path_factory.mktemp("broker"), CONFIG)
        if broker_kind != "jvm":
            made.workers = request.param
        yield running.enter_context(made)


@pytest.fixture
def client(broker, unique) -> Iterator["Client"]:
    with Wire(broker.bootstrap) as wire:
        yield Client(wire, unique)


class Client:
    """A producer without a library: one transactional id, one topic, frames as it likes."""

    def __init__(self, wire, unique):
        self.wire = wire
        self.id = unique("id")
        self.topic = unique("topic")
        self.topic_id = create_topic(wire, self.topic, PARTITIONS)
        for index in range(PARTITIONS):
            wait_until(lambda index=index: self.offsets(index) == 0)  # it is led
        self.producer_id, self.epoch = self.init()
        self.sequences = {}

    def init(self, transactional_id=None):
        wanted = transactional_id or self.id

        def found():
            finder = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[wanted])
            return self.wire.ask(finder, 4).coordinators[0].error_code == 0

        wait_until(found)
        request = messages.InitProducerIdRequest(transactional_id=wanted, transaction_timeout_ms=60_000)
        answers = []

        def has_answer():
            answers.append(self.wire.ask(request, 4))
            return answers[-1].error_code not in (
                errors.COORDINATOR_LOAD_IN_PROGRESS,
                errors.CONCURRENT_TRANSACTIONS,
                errors.NOT_COORDINATOR,
            )

        wait_until(has_answer)
        assert answers[-1].error_code == 0
        return answers[-1].producer_id, answers[-1].producer_epoch

    def add(self, *indexes):
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
        )
        cls = messages.AddPartitionsToTxnRequest.V3AndBelowTopics
        request.v3_and_below_topics = [cls(name=self.topic, partitions=list(indexes))]

        def is_added():
            (topic,) = self.wire.ask(request, 3).results_by_topic_v3_and_below
            codes = {part.partition_error_code for part in topic.results_by_partition}
            assert codes <= {0, errors.CONCURRENT_TRANSACTIONS}
            return codes == {0}

        wait_until(is_added)

    def end(self, *, commit=True, version=3):
        request = messages.EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.wire.ask(request, version)
        assert answer.error_code == 0, answer
        if version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    def records(self, index=0, **how):
        how = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "transactional": True, **how}
        if how["producer_id"] >= 0:
            how.setdefault("base_sequence", self.sequences.get(index, 0))
        return bytes(batch(b"v", **how))

    def request(self, batches, *, version=9, acks=-1, timeout_ms=10_000, **named_by):
        data = messages.ProduceRequest.TopicData
        parts = [data.PartitionData(index=index, records=each) for index, each in batches.items()]
        named_by.setdefault("transactional_id", self.id)
        named = {"topic_id": self.topic_id} if version >= 13 else {"name": self.topic}
        return messages.ProduceRequest(
            **named_by,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[data(**named, partition_data=parts)],
        )

    def produce(self, batches, *, version=9, **fields):
        answer = self.wire.ask(self.request(batches, version=version, **fields), version)
        (topic,) = answer.responses
        parts = {part.index: part for part in topic.partition_responses}
        for index in batches:
            if parts[index].error_code == 0:
                self.sequences[index] = self.sequences.get(index, 0) + 1
        return [parts[index] for index in batches]

    def codes(self, batches, **fields):
        return [part.error_code for part in self.produce(batches, **fields)]

    def code(self, index=0, version=9, timeout_ms=10_000, **how):
        return self.codes({index: self.records(index, **how)}, version=version, timeout_ms=timeout_ms)[0]

    def offsets(self, index=0, isolation=1):
        cls = messages.ListOffsetsRequest
        asked = cls.Topics.Partitions(partition_index=index, timestamp=-1)
        topics = [cls.Topics(name=self.topic, partitions=[asked])]
        (part,) = (
            self.wire.ask(cls(replica_id=-1, isolation_level=isolation, topics=topics), 6)
            .topics[0]
            .partitions
        )
        return part.offset


# -- what goes well ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9, 11])
def test_partitions_that_the_client_added(client, version):
    client.add(*range(PARTITIONS))
    for _ in range(2):
        batches = {index: client.records(index) for index in range(PARTITIONS)}
        assert client.codes(batches, version=version) == [0] * PARTITIONS
    assert {client.offsets(index) for index in range(PARTITIONS)} == {0}
    assert {client.offsets(index, 0) for index in range(PARTITIONS)} == {2}
    client.end()
    for index in range(PARTITIONS):
        wait_until(lambda index=index: client.offsets(index) == 3)


@pytest.mark.parametrize("version", [12, 13])
def test_partitions_that_a_produce_adds(client, version):
    for number in range(3):
        batches = {index: client.records(index) for index in range(PARTITIONS)}
        assert client.codes(batches, version=version) == [0] * PARTITIONS
        assert client.code(1, version) == 0
        client.end(version=5)
        wait_until(lambda number=number: client.offsets(1) == 3 * (number + 1))
    wait_until(lambda: client.offsets(0) == 6)  # of another worker, perhaps: its marker has a way of its own


def test_a_plain_batch_with_an_id(client):
    assert client.code(2, transactional=False, producer_id=-1) == 0
    assert client.code(transactional=False) == 0
    assert client.code(1, 12, transactional=False) == 0


# -- who is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 10, 11, 12])
def test_a_partition_that_was_not_added(client, version):
    """From v12 on there is no such thing."""
    client.add(0, 1)
    parts = client.produce({index: client.records(index) for index in (0, 1, 2)}, version=version)
    told = {7: NOT_IN_IT, 10: NOT_IN_IT, 11: ABORTABLE, 12: 0}[version]
    assert [part.error_code for part in parts] == [0, 0, told]
    if version in (10, 11):
        assert parts[2].error_message == (NOT_ADDED if version == 10 else None)
        assert (parts[2].base_offset, parts[2].log_start_offset) == (-1, -1)
    assert client.code() == 0


def test_the_batch_of_an_ended_transaction(client):
    client.add(0)
    assert client.code() == 0
    client.end()
    wait_until(lambda: client.offsets() == 2)
    assert [client.code(version=version) for version in (9, 11)] == [NOT_IN_IT, ABORTABLE]
    client.add(0)
    assert client.code() == 0


def test_the_batch_of_a_transaction_that_ended_with_a_new_epoch(client):
    old = client.epoch
    assert client.code(version=12) == 0
    client.end(version=5)
    assert client.epoch == old + 1
    wait_until(lambda: client.offsets() == 2)
    for version in (9, 12):
        assert client.code(version=version, producer_epoch=old, base_sequence=1) == FENCED
    assert client.code(version=12) == 0


def test_a_producer_that_is_fenced_in_between(client):
    client.add(0, 1)
    assert client.code(0) == 0
    old = client.epoch
    client.init()
    for version in (9, 11, 12):
        assert client.code(0, version, producer_epoch=old) == FENCED
        assert client.code(1, version, producer_epoch=old) == FENCED
    assert client.offsets(1, 0) in (0, 1)


def test_transactional_batches_without_an_id(client):
    client.add(0)
    batches = {0: client.records(0), 1: client.records(1, transactional=False), 99: client.records(99)}
    for version in (9, 12):
        codes = client.codes(batches, version=version, transactional_id=None)
        assert codes == [errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 3
    assert client.offsets(0, 0) == 0


@pytest.mark.parametrize("version", [9, 11, 12])
def test_an_id_that_is_not_the_producers(client, version, unique):
    client.add(0)
    batches = {0: client.records(0)}
    assert client.codes(batches, version=version, transactional_id=unique("nobody")) == [ID_MAPPING]
    other = unique("other")
    client.init(other)
    assert client.codes(batches, version=version, transactional_id=other) == [ID_MAPPING]
    assert client.codes(batches, version=version) == [0]


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_producer_id_that_is_not_the_ids(client, version):
    client.add(0)
    assert client.code(0, version, producer_id=client.producer_id + 1_000_000) == ID_MAPPING


@pytest.mark.parametrize("version", [9, 11, 12])
def test_an_epoch_that_is_not_the_ids(client, version):
    client.add(0)
    assert client.code(0, version, producer_epoch=client.epoch + 5) == FENCED
    assert client.code(0, version) == 0


def test_batches_of_two_producers(client):
    client.add(0, 1)
    batches = {0: client.records(0), 1: client.records(1, producer_id=12_345), 99: client.records(99)}
    parts = client.produce(batches)
    assert {part.error_code for part in parts} == {ID_MAPPING}
    assert {part.error_message for part in parts} == {
        "Transactional records contained more than one producer ID"
    }
    other = {0: client.records(0), 1: client.records(1, producer_epoch=client.epoch + 1)}
    assert client.codes(other) == [ID_MAPPING] * 2
    assert client.offsets(0, 0) == 0


def test_an_empty_id(client):
    batches = {0: client.records(0)}
    codes = [client.codes(batches, version=version, transactional_id="") for version in (9, 12)]
    assert codes == [[errors.INVALID_REQUEST]] * 2


def test_a_bad_batch_beside_a_good_one(client):
    client.add(0, 1, 2)
    torn = client.records(1)[:-1] + b"\xff"
    assert client.codes({0: client.records(0), 1: torn, 2: b"nonsense"})[:2] == [0, errors.CORRUPT_MESSAGE]
    assert client.code(1) == 0


def test_a_plain_batch_inside_of_a_transaction(client):
    client.add(0)
    assert client.code() == 0
    assert client.code(transactional=False) == NOT_IN_IT
    assert client.code() == 0


def test_a_first_batch_that_does_not_begin_at_zero(client):
    """While the leader is new, batches before it may have been refused. Later: test_produce_gate_workers."""
    client.add(0)
    assert client.code(0, 9, base_sequence=5) == errors.NOT_LEADER_OR_FOLLOWER
    assert client.code(0, 9) == 0
    assert client.code(1, 12, base_sequence=5) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.code(1, 12) == 0


def test_acks_0(client, broker):
    """Refused: the connection is closed. Admitted: there is no answer."""
    client.add(0)
    with Wire(broker.bootstrap) as wire:
        wire.send(client.request({0: client.records(0)}, acks=0), 9)
        wait_until(lambda: client.offsets(0, 0) == 1)
        wire.send(client.request({1: client.records(1)}, acks=0), 9)
        assert wire.is_closed_by_broker()


def test_a_retry_inside_of_a_transaction(client):
    client.add(0)
    data = {0: client.records(0)}
    assert [client.produce(data)[0].base_offset for _ in range(3)] == [0, 0, 0]
    assert client.offsets(0, 0) == 1


def test_pipelined_batches(client, broker):
    """Ten are on their way before the first one is answered."""
    client.add(*range(PARTITIONS))
    with Wire(broker.bootstrap) as wire:
        sent = []
        for sequence in range(10):
            batches = {index: client.records(index, base_sequence=sequence) for index in range(PARTITIONS)}
            sent.append(wire.send(client.request(batches), 9))
        for sequence in range(10):
            frame = wire.read_frame()
            assert int.from_bytes(frame[:4], "big") == sent[sequence]
    assert {client.offsets(index, 0) for index in range(PARTITIONS)} == {10}
