"""Transactions of a Produce whose partitions belong to several workers."""

import random

import pytest
from reactor_world import produce
from workers_world import Workers

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import read_batches
from tests.unit.test_produce_gate import codes_of, parts_of, send, transactional

TOPIC_ID = b"t".ljust(16, b"\1")


@pytest.fixture
def workers(tmp_path):
    workers = Workers(2, tmp_path)
    yield workers
    for worker, pid in enumerate(workers.pids):
        if pid:
            workers.ask_until(worker, "stats", want=lambda stats: stats["buffered_bytes"] == 0)
    workers.close()


@pytest.fixture
def three(tmp_path):
    workers = Workers(3, tmp_path)
    yield workers
    workers.close()


def receive(client, correlation_id, version=9):
    return parts_of(client.receive(messages.ProduceResponse, version, correlation_id))


def code(client, data, index=0, **fields):
    (part,) = receive(client, send(client, {index: data}, **fields), fields.get("version", 9))
    return part.error_code


def gates(workers, *receiving, **options):
    for worker in receiving or range(len(workers.pids)):
        workers.ask(worker, "serve_transactions", **options)


@pytest.mark.parametrize("version", [3, 11, 12, 13])
def test_the_receiving_worker_asks_once_for_another_workers_partition(workers, version):
    workers.partition("t", 0, 1)
    gates(workers, 0)
    client = workers.connect(0)
    topic = TOPIC_ID if version >= 13 else "t"
    for number in range(3):
        for sequence in range(3):
            data = transactional(3 * number + sequence)
            assert code(client, data, topic=topic, version=version) == 0
        assert workers.ask(0, "asked")[number:] == [("tx", 7, 0, version, [("t", 0)])]
        workers.ask(1, "end_transaction", "t", 0, 7, 0)
    assert workers.ask(1, "end_offset", "t", 0) == 12
    assert workers.ask(1, "stats")["python_appends"] == 0


def test_the_owner_knows_how_the_client_adds_partitions(workers):
    """TV2: a producer that nobody knows begins at sequence 0; TV1 goes on."""
    workers.partition("t", 0, 1)
    workers.ask(1, "expect_order", "t", 0)  # as 30 s after the partition began
    gates(workers, 0)
    client = workers.connect(0)
    assert code(client, transactional(5), version=12) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(client, transactional(5, producer=8), version=11) == 0
    workers.ask(0, "unverified")
    assert code(client, transactional(5, producer=9), version=11) == 0
    assert len(workers.ask(0, "asked")) == 2


def test_one_question_for_partitions_of_all_workers(three):
    for index in range(6):
        three.partition("t", index, index % 3)
    gates(three, 1)
    client = three.connect(1)
    assert code(client, transactional(0), 2) == 0
    request = produce("t", {index: transactional(index == 2) for index in range(6)}, transactional_id="tx")
    answer = client.ask(request, 9)
    assert codes_of(answer) == [0] * 6
    assert three.ask(1, "asked")[1:] == [("tx", 7, 0, 9, [("t", index) for index in (0, 1, 3, 4, 5)])]


def test_refusals_of_some_partitions_of_others(three):
    for index in range(6):
        three.partition("t", index, index % 3)
    gates(three, 0, refusals={("t", 1): (errors.INVALID_TXN_STATE, "no"), ("t", 3): (19, None)})
    client = three.connect(0)
    parts = receive(client, send(client, {index: transactional(0) for index in range(6)}))
    assert [part.error_code for part in parts] == [0, 48, 0, 19, 0, 0]
    assert parts[1].error_message == "no"


@pytest.mark.parametrize("holds", [False, True])
def test_pipelined_batches_keep_their_order_and_ask_once(workers, holds):
    """They are under way to the owner before it says that the first one must wait."""
    workers.partition("t", 0, 1)
    gates(workers, 0, holds=holds)
    client = workers.connect(0)
    for number in range(4):
        frames = [
            codec.encode_request(
                produce("t", {0: transactional(10 * number + i)}, transactional_id="tx"), 9, i, "c"
            )
            for i in range(10)
        ]
        client.send(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        if holds:
            workers.ask_until(0, "let_go", want=bool)
        answers = [receive(client, i)[0] for i in range(10)]
        assert [(part.error_code, part.base_offset) for part in answers] == [
            (0, 11 * number + i) for i in range(10)
        ]
        workers.ask(1, "end_transaction", "t", 0, 7, 0)
    assert len(workers.ask(0, "asked")) == 4


def test_those_behind_a_refused_batch_ask_for_themselves(workers):
    workers.partition("t", 0, 1)
    gates(workers, 0, refusals={("t", 0): (errors.INVALID_TXN_STATE, None)})
    client = workers.connect(0)
    sent = [send(client, {0: transactional(i)}) for i in range(5)]
    codes = [receive(client, correlation_id)[0].error_code for correlation_id in sent]
    assert codes == [errors.INVALID_TXN_STATE] * 5
    assert workers.ask(1, "end_offset", "t", 0) == 0


def test_other_requests_wait_while_the_coordinator_is_asked(workers):
    workers.partition("t", 0, 1)
    gates(workers, 0, holds=True)
    client = workers.connect(0)
    sent = send(client, {0: transactional(0)})
    workers.ask_until(0, "asked", want=bool)
    asked = client.send_request(messages.ApiVersionsRequest(), 0)
    assert not client.has_answer(0.2)
    assert workers.ask(0, "let_go") == 1
    assert receive(client, sent)[0].error_code == 0
    assert client.receive_frame()[:4] == asked.to_bytes(4, "big")


@pytest.mark.parametrize("size", [3 << 20, 34 << 20])
def test_a_large_batch_of_another_workers_partition(workers, size):
    workers.partition("t", 0, 1, own="own_log", max_message_bytes=100 << 20)
    gates(workers, 0)
    client = workers.connect(0)
    sent = [send(client, {0: transactional(i, size=size if i == 1 else size // 3)}) for i in range(4)]
    parts = [receive(client, correlation_id)[0] for correlation_id in sent]
    assert [(part.error_code, part.base_offset) for part in parts] == [(0, i) for i in range(4)]
    assert len(workers.ask(0, "asked")) == 1


def test_a_guard_of_an_owner_that_died_is_worth_nothing(workers):
    """INVALID_TXN_STATE would end the client's transaction for good, though nothing is wrong with it."""
    row = workers.partition("t", 0, 1)
    gates(workers, 0, holds=True)
    client = workers.connect(0)
    sent = send(client, {0: transactional(0)})
    workers.ask_until(0, "asked", want=bool)
    workers.kill(1)
    workers.start(1)
    workers.ask(0, "peer_lost", 1)
    assert workers.ask(1, "own", "t", 0, TOPIC_ID) != row
    assert workers.ask(0, "let_go") == 1
    assert receive(client, sent)[0].error_code == errors.NOT_LEADER_OR_FOLLOWER


def test_an_owner_that_dies_with_the_second_try(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    gates(workers, 0, holds=True)
    client = workers.connect(0)
    sent = send(client, {0: transactional(0), 1: transactional(0)})
    workers.ask_until(0, "asked", want=bool)
    workers.stop(1)
    assert workers.ask(0, "let_go") == 1
    assert not client.has_answer(0.2)
    workers.kill(1)
    workers.ask(0, "peer_lost", 1)
    assert [part.error_code for part in receive(client, sent)] == [errors.NOT_LEADER_OR_FOLLOWER, 0]


def test_an_owner_that_stands_still_and_a_coordinator_too(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    gates(workers, 0, holds=True)
    client = workers.connect(0)
    workers.stop(1)
    sent = send(client, {0: transactional(0), 1: transactional(0)}, timeout_ms=1)
    codes = [part.error_code for part in receive(client, sent)]
    workers.go(1)
    assert codes == [errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS]
    assert workers.ask(0, "asked") == []
    assert [workers.ask(owner, "end_offset", "t", index) for index, owner in ((0, 1), (1, 0))] == [0, 0]


@pytest.mark.parametrize("refusing", [0, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_random_producers_and_a_coordinator_in_its_own_time(three, seed, refusing):
    """Each producer keeps up to five requests in flight, and sends again what was refused. What was
    acknowledged stands in the logs once, in its order, and nothing else does."""
    chance = random.Random(seed)
    partitions = range(6)
    for index in partitions:
        three.partition("t", index, index % 3)
    gates(three, holds=True)
    producers = [Producer(three, chance, number) for number in range(6)]

    def let_go():
        for worker in range(3):
            refused = {("t", index): (19, None) for index in partitions if chance.random() < refusing}
            three.ask(worker, "refuse", refused)
            three.ask(worker, "let_go")

    for _ in range(40):
        for producer in chance.sample(producers, 4):
            producer.send(chance)
        if chance.random() < 0.5:
            let_go()
        for producer in chance.sample(producers, 2):
            producer.take(let_go)
    for producer in producers:
        while producer.in_flight:
            producer.take(let_go)
    for index in partitions:
        stored = {}
        for read in read_batches(three.log("t", index)):
            stored.setdefault(read.producer_id, []).append((read.base_sequence, read.base_offset))
        for producer in producers:
            assert stored.get(producer.id, []) == producer.acknowledged.get(index, [])
            assert producer.acknowledged.get(index, []) == sorted(producer.acknowledged.get(index, []))


class Producer:
    """Random partitions, each with its own sequence. A sequence goes on when it is acknowledged; what was in
    flight behind a refused batch is refused as well, and its numbers are used again."""

    def __init__(self, workers, chance, number):
        self.id = 100 + number
        self.client = workers.connect(chance.randrange(3))
        self.sequences = {}
        self.in_flight = []
        self.acknowledged = {}

    def send(self, chance):
        if len(self.in_flight) == 5:
            return
        batches = {}
        for index in chance.sample(range(6), chance.choice((1, 1, 2, 6))):
            batches[index] = transactional(self.sequences.get(index, 0), producer=self.id)
            self.sequences[index] = self.sequences.get(index, 0) + 1
        sent = [(index, self.sequences[index] - 1) for index in batches]
        self.in_flight.append((send(self.client, batches, transactional_id=f"tx{self.id}"), sent))

    def take(self, let_go):
        if not self.in_flight:
            return
        while not self.client.has_answer(0.01):
            let_go()
        correlation_id, sent = self.in_flight.pop(0)
        parts = receive(self.client, correlation_id)
        for (index, sequence), part in zip(sent, parts, strict=True):
            assert part.index == index
            if part.error_code == 0:
                self.acknowledged.setdefault(index, []).append((sequence, part.base_offset))
                continue
            assert part.error_code in (errors.NOT_ENOUGH_REPLICAS, errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
            behind = [each for _, others in self.in_flight for each in others if each[0] == index]
            if not behind:
                self.sequences[index] = len(self.acknowledged.get(index, []))
