"""The first batch of a transaction in a partition waits for the coordinator; all others do not."""

import socket
import struct

import pytest
from reactor_world import NOW_MS, Gate, World, batch, produce

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import read_batches

TOPIC_ID = bytes(range(16))
TWO_PRODUCERS = "Transactional records contained more than one producer ID"


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    world.gate = Gate()
    world.reactor.serve_transactions(world.gate)
    yield world
    assert world.reactor.stats()["buffered_bytes"] == 0
    world.close()


def transactional(sequence=0, *, producer=7, epoch=0, count=1, size=100, **options):
    return batch(
        count,
        size,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
        **options,
    )


def send(client, batches, *, topic="t", version=9, transactional_id="tx", **fields):
    """`batches`: {partition: records}."""
    return client.send_request(produce(topic, batches, transactional_id=transactional_id, **fields), version)


def parts_of(answer):
    return [part for topic in answer.responses for part in topic.partition_responses]


def codes_of(answer):
    return [part.error_code for part in parts_of(answer)]


def receive(client, correlation_id, version=9):
    return parts_of(client.receive(messages.ProduceResponse, version, correlation_id))


def ask(client, batches, *, version=9, **fields):
    return receive(client, send(client, batches, version=version, **fields), version)


def code(client, data, index=0, **fields):
    (part,) = ask(client, {index: data}, **fields)
    return part.error_code


def end(partition, producer=7, epoch=0, version=0):
    partition.append_marker(producer, epoch, 0, True, version, NOW_MS)


def asks(world):
    return world.reactor.stats()["transaction_asks"]


# -- who is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_a_transaction_asks_once_for_a_partition(world, version):
    partition = world.partition("t", topic_id=TOPIC_ID)
    client = world.connect()
    topic = TOPIC_ID if version >= 13 else "t"
    for number in range(3):
        first = ask(client, {0: transactional(4 * number)}, topic=topic, version=version)
        assert [(part.error_code, part.base_offset) for part in first] == [(0, 5 * number)]
        for sequence in range(1, 4):
            assert code(client, transactional(4 * number + sequence), topic=topic, version=version) == 0
        assert world.gate.asked[number:] == [("tx", 7, 0, version, [("t", 0)])]
        end(partition)
    assert asks(world) == 3
    assert world.reactor.stats()["python_appends"] == 0


def test_without_verification_only_those_are_asked_for_that_are_added_by_it(world):
    world.reactor.serve_transactions(world.gate, verify=False)
    world.partition("t")
    client = world.connect()
    assert code(client, transactional(0), version=11) == 0
    assert world.gate.asked == []
    assert code(client, transactional(0, producer=8), version=12) == 0
    assert [asked[3] for asked in world.gate.asked] == [12]


def test_one_question_for_all_partitions_of_a_request(world):
    for index in range(4):
        world.partition("t", index)
    world.partition("u")
    client = world.connect()
    assert code(client, transactional(0), 2) == 0
    request = produce(
        "t",
        {0: transactional(0), 2: transactional(1), 3: batch(), 9: transactional(0)},
        transactional_id="été",
    )
    request.topic_data += produce("u", {0: transactional(0)}).topic_data
    answer = client.ask(request, 9)
    assert codes_of(answer) == [0, 0, 0, errors.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert [part.base_offset for part in parts_of(answer)] == [0, 1, 0, -1, 0]
    assert world.gate.asked[1:] == [("été", 7, 0, 9, [("t", 0), ("u", 0)])]


def test_a_plain_batch_of_a_request_with_an_id_is_not_asked_for(world):
    world.partition("t")
    client = world.connect()
    assert code(client, batch()) == 0
    assert code(client, batch(producer_id=7, producer_epoch=0, base_sequence=0)) == 0
    assert world.gate.asked == []


def test_a_retry_is_answered_without_a_question(world):
    partition = world.partition("t")
    client = world.connect()
    for _ in range(2):
        assert [part.base_offset for part in ask(client, {0: transactional(0)})] == [0]
    end(partition)  # with the same sequence, the next one is no retry
    assert [part.error_code for part in ask(client, {0: transactional(0)})] == [
        errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    ]
    assert asks(world) == 1
    assert partition.end_offset == 2


def test_transactional_batches_without_an_id_refuse_the_request(world):
    """KafkaApis.handleProduceRequest."""
    partition = world.partition("t", 0)
    world.partition("t", 1)
    client = world.connect()
    parts = ask(client, {0: transactional(0), 1: batch(), 5: batch()}, transactional_id=None)
    assert [part.error_code for part in parts] == [errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 3
    assert (world.gate.asked, partition.end_offset) == ([], 0)


@pytest.mark.parametrize("other", [{"producer": 8}, {"epoch": 1}])
def test_batches_of_two_producers_refuse_the_request(world, other):
    """ReplicaManager.handleProduceAppend."""
    partition = world.partition("t", 0)
    world.partition("t", 1)
    client = world.connect()
    parts = ask(client, {0: transactional(0), 1: transactional(0, **other), 5: batch()})
    assert [part.error_code for part in parts] == [errors.INVALID_PRODUCER_ID_MAPPING] * 3
    assert {part.error_message for part in parts} == {TWO_PRODUCERS}
    assert (world.gate.asked, partition.end_offset) == ([], 0)
    client.send_request(
        produce("t", {0: transactional(0), 1: transactional(0, **other)}, 0, transactional_id="tx"), 9
    )
    client.wait_closed()


def test_a_bad_batch_refuses_its_partition_only(world):
    for index in range(3):
        world.partition("t", index)
    client = world.connect()
    torn = transactional(0)[:-1] + b"\xff"
    parts = ask(client, {0: transactional(0), 1: torn, 2: b"nonsense"})
    assert [part.error_code for part in parts] == [0, errors.CORRUPT_MESSAGE, errors.INVALID_RECORD]


# -- what the coordinator says -----------------------------------------------------------------------------


def test_a_refusal_is_its_partitions_alone(world):
    partitions = [world.partition("t", index) for index in range(3)]
    client = world.connect()
    world.gate.refusals = {("t", 0): (errors.INVALID_TXN_STATE, "not added ü"), ("t", 2): (19, None)}
    for version in (7, 9):
        batches = {index: transactional(0, producer=version) for index in range(3)}
        parts = ask(client, batches, version=version)
        assert [part.error_code for part in parts] == [48, 0, 19]
        assert [part.error_message for part in parts] == (
            ["not added ü", None, None] if version >= 8 else [None] * 3
        )
        assert [(part.base_offset, part.log_start_offset) for part in parts[::2]] == [(-1, -1)] * 2
    assert [partition.end_offset for partition in partitions] == [0, 2, 0]
    world.gate.refusals = {}
    assert code(client, transactional(0, producer=9)) == 0


def test_a_refused_produce_with_acks_0_closes(world):
    partition = world.partition("t")
    client = world.connect()
    send(client, {0: transactional(0)}, acks=0)
    assert code(client, transactional(1)) == 0
    assert partition.end_offset == 2
    end(partition)
    world.gate.refusals = {("t", 0): (errors.INVALID_TXN_STATE, None)}
    send(client, {0: transactional(2)}, acks=0)
    client.wait_closed()


def test_an_answer_that_comes_after_the_marker_is_too_late(world):
    partition = world.partition("t")
    client = world.connect()
    world.gate.holds = True
    sent = send(client, {0: transactional(0)})
    world.poll()
    end(partition)
    assert world.gate.let_go() == 1
    assert [part.error_code for part in receive(client, sent)] == [errors.INVALID_TXN_STATE]
    assert partition.end_offset == 1


@pytest.mark.parametrize("size", [3 << 20, 40 << 20])
@pytest.mark.parametrize("compression", [0, 1])
def test_large_batches(world, size, compression):
    """A thread checks them, and writes the largest ahead of their append."""
    if compression and size > 4 << 20:
        size = 8 << 20
    log = world.log("t", max_message_bytes=100 << 20)
    client = world.connect()
    for number in range(2):
        data = transactional(3 * number, size=size, compression=compression)
        assert code(client, data) == 0
        assert code(client, transactional(3 * number + 1, size=size, compression=compression)) == 0
        assert code(client, transactional(3 * number + 2)) == 0
        assert asks(world) == number + 1
        end(log.native)
    assert log.end_offset == 8
    log.close()


def test_a_batch_that_the_topic_rewrites(world):
    log = world.log("t", compression_type="gzip")
    client = world.connect()
    for sequence in range(3):
        assert code(client, transactional(sequence)) == 0
    assert asks(world) == 1
    (stored, *_) = read_batches(b"".join(log.batches(0, 1)))
    assert stored.compression == 1
    log.close()


def test_a_roll_behind_the_answer(world):
    log = world.log("t", segment_bytes=1000)
    client = world.connect()
    for number in range(5):
        assert code(client, transactional(2 * number, size=600)) == 0
        assert code(client, transactional(2 * number + 1, size=600)) == 0
        end(log.native)
    assert asks(world) == 5
    assert len(log.native.segment_rows()) == 10
    log.close()


# -- a coordinator that takes its time ---------------------------------------------------------------------


def test_a_connection_waits_in_its_order_and_others_go_on(world):
    world.partition("t", 0)
    other = world.partition("t", 1)
    client, neighbour = world.connect(), world.connect()
    world.gate.holds = True
    sent = [send(client, {0: transactional(sequence)}) for sequence in range(4)]
    sent += [send(client, {1: batch()})]
    for _ in range(20):
        assert neighbour.produce("t", batch(), index=0).error_code == 0
    assert not client.has_answer()
    assert (other.end_offset, len(world.gate.asked)) == (0, 1)
    world.gate.let_go()
    for number, correlation_id in enumerate(sent):
        (part,) = receive(client, correlation_id)
        assert (part.error_code, part.base_offset) == (0, 20 + number if number < 4 else 0)
    assert len(world.gate.asked) == 1


def test_a_question_that_is_not_answered_ends_with_the_requests_timeout(world):
    partition = world.partition("t")
    other = world.partition("t", 1)
    client = world.connect()
    world.gate.holds = True
    sent = send(client, {0: transactional(0), 1: batch()}, timeout_ms=1)
    following = send(client, {1: batch()})
    parts = receive(client, sent)
    assert [part.error_code for part in parts] == [errors.NOT_ENOUGH_REPLICAS, 0]
    assert [part.error_code for part in receive(client, following)] == [0]
    assert world.gate.let_go() == 1
    world.poll()
    assert (partition.end_offset, other.end_offset) == (0, 2)
    world.gate.holds = False
    assert code(client, transactional(0)) == 0


def test_a_client_that_leaves_is_forgotten(world):
    partition = world.partition("t")
    client, another = world.connect(), world.connect()
    world.gate.holds = True
    send(client, {0: transactional(0)})
    world.poll()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 1)
    assert world.reactor.stats()["buffered_bytes"] == 0
    assert world.gate.let_go() == 1
    world.poll()
    assert partition.end_offset == 0
    world.gate.holds = False
    assert code(another, transactional(0)) == 0


def framed(message, version=9):
    frame = codec.encode_request(message, version, 1, "test")
    return struct.pack(">i", len(frame)) + frame


def test_a_connection_that_python_feeds(world):
    """As those of TLS."""
    partition = world.partition("t")
    world.gate.holds = True
    written = []
    connection = world.reactor.attach(written.append, "SSL")
    for sequence in range(3):
        connection.feed(framed(produce("t", {0: transactional(sequence)}, transactional_id="tx")))
    world.poll()
    assert (written, len(world.gate.waiting)) == ([], 1)
    world.gate.let_go()
    world.poll_until(lambda: partition.end_offset == 3)
    world.poll()
    answers = b"".join(written)
    told = []
    while answers:
        (size,) = struct.unpack_from(">i", answers)
        _, answer = codec.decode_response(messages.ProduceResponse, 9, answers[4 : 4 + size])
        told.append([(part.error_code, part.base_offset) for part in parts_of(answer)])
        answers = answers[4 + size :]
    assert told == [[(0, 0)], [(0, 1)], [(0, 2)]]
    connection.close()


@pytest.mark.parametrize("answered", [True, False])
def test_bytes_that_lie_behind_a_waiting_batch(world, answered):
    """They are looked at when the batch is answered; then the connection is closed."""
    partition = world.partition("t")
    client = world.connect()
    world.gate.holds = True
    sent = send(client, {0: transactional(0)}, timeout_ms=1)
    client.send(struct.pack(">i", 12) + bytes([0, 0, 0, 9]) + b"\xff" * 8)
    world.poll()
    assert world.reactor.stats()["connections"] == 1
    if answered:
        world.gate.let_go()
    (part,) = receive(client, sent)
    assert part.error_code == (0 if answered else errors.NOT_ENOUGH_REPLICAS)
    client.wait_closed()
    assert partition.end_offset == answered


def test_a_flood_of_batches_that_nobody_admits(world):
    """Each connection waits with one question; what it sends behind that stays in its socket, or counts as
    buffered. Another producer does not notice."""
    world.partition("t", 0)
    world.partition("t", 1)
    world.gate.holds = True
    flooding = [world.connect() for _ in range(20)]
    for number, client in enumerate(flooding):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        for sequence in range(3):
            send(client, {0: transactional(sequence, producer=number, size=50_000)})
    good = world.connect()
    for _ in range(100):
        assert good.produce("t", batch(1, 10_000), index=1).error_code == 0
    assert len(world.gate.waiting) == len(flooding)
    assert world.reactor.stats()["buffered_bytes"] < len(flooding) * 4 * 150_000
    world.gate.refusals = {("t", 0): (errors.INVALID_PRODUCER_EPOCH, None)}
    world.gate.holds = False
    world.gate.let_go()
    for client in flooding:
        for _ in range(3):
            answer = client.receive(messages.ProduceResponse, 9)
            assert codes_of(answer) == [errors.INVALID_PRODUCER_EPOCH]


def test_more_producers_than_a_partition_remembers(world):
    """Who asks for a transaction and never comes back takes a place for producer.id.expiration.ms."""
    world.partition("t", 0)
    client = world.connect()
    world.gate.refusals = {("t", 0): (errors.INVALID_PRODUCER_ID_MAPPING, None)}
    codes = [code(client, transactional(0, producer=number)) for number in range(10_003)]
    assert codes == [errors.INVALID_PRODUCER_ID_MAPPING] * 10_000 + [errors.INVALID_TXN_STATE] * 3


def test_a_topic_that_is_gone_when_the_answer_comes(world):
    world.partition("t", 0, topic_id=TOPIC_ID)
    world.partition("t", 1, topic_id=TOPIC_ID)
    client = world.connect()
    world.gate.holds = True
    sent = send(client, {0: transactional(0), 1: transactional(0)}, topic=TOPIC_ID, version=13)
    world.poll()
    world.table.remove("t", 1)
    world.gate.let_go()
    assert [part.error_code for part in receive(client, sent, 13)] == [0, errors.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("topic", ["t", TOPIC_ID])
def test_a_topic_that_is_another_when_the_answer_comes(world, topic, tmp_path):
    world.partition("t", topic_id=TOPIC_ID)
    client = world.connect()
    world.gate.holds = True
    version = 9 if topic == "t" else 13
    sent = send(client, {0: transactional(0)}, topic=topic, version=version)
    world.poll()
    world.table.remove("t", 0)
    (tmp_path / "t-0").rename(tmp_path / "old")
    fresh = world.partition("t", topic_id=bytes(reversed(TOPIC_ID)))
    world.gate.let_go()
    missing = errors.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else errors.UNKNOWN_TOPIC_ID
    assert [part.error_code for part in receive(client, sent, version)] == [missing]
    assert fresh.end_offset == 0


def test_a_wide_request_goes_on_in_slices(world):
    """Each round, before the question and behind it."""
    count = 40
    partitions = [world.partition("t", index) for index in range(count)]
    data = transactional(0, size=900_000)
    client = world.connect()
    world.gate.holds = True
    sent = send(client, dict.fromkeys(range(count), data))
    following = send(client, dict.fromkeys(range(count), transactional(1)))
    world.poll_until(lambda: world.gate.waiting)
    before = world.reactor.stats()["produce_slices"]
    world.gate.let_go()
    assert [part.error_code for part in receive(client, sent)] == [0] * count
    assert world.reactor.stats()["produce_slices"] - before >= 4
    assert [part.error_code for part in receive(client, following)] == [0] * count
    assert [(asked[3], len(asked[4])) for asked in world.gate.asked] == [(9, count)]
    assert {partition.end_offset for partition in partitions} == {2}


# -- a gate that is broken ---------------------------------------------------------------------------------


def refused_by(world, gate):
    world.reactor.serve_transactions(gate)
    client = world.connect()
    parts = ask(client, {0: transactional(0), 1: batch()})
    world.reactor.serve_transactions(world.gate)
    assert code(client, transactional(0)) == 0
    return [part.error_code for part in parts]


@pytest.mark.parametrize(
    "answer", [lambda done: 1 / 0, lambda done: done([("x", None)]), lambda done: done([(0, None, 1)])]
)
def test_an_exception_refuses_what_was_asked_for(world, answer):
    world.partition("t", 0)
    world.partition("t", 1)

    def gate(_id, _producer, _epoch, _version, _partitions, done):
        answer(done)

    assert refused_by(world, gate) == [errors.UNKNOWN_SERVER_ERROR, 0]


def test_a_wrong_number_of_answers_ends_the_worker(world):
    world.partition("t", 0)
    world.partition("t", 1)

    def gate(_id, _producer, _epoch, _version, _partitions, done):
        done([])

    assert refused_by(world, gate) == [errors.UNKNOWN_SERVER_ERROR, 0]
    (error,) = world.fatal
    assert isinstance(error, AssertionError)
    world.fatal.clear()


def test_a_second_answer_is_not_listened_to(world):
    partition = world.partition("t")

    def gate(_id, _producer, _epoch, _version, partitions, done):
        for _ in range(3):
            done([(0, None)] * len(partitions))

    world.reactor.serve_transactions(gate)
    assert code(world.connect(), transactional(0)) == 0
    assert partition.end_offset == 1


@pytest.mark.parametrize("answers", [False, True])
def test_a_connection_that_is_closed_within_the_question(world, answers):
    partition = world.partition("t")
    client = world.connect()

    def gate(_id, _producer, _epoch, _version, partitions, done):
        ((seen, _, _),) = world.calls
        seen.close()
        if answers:
            done([(0, None)] * len(partitions))

    client.send_request(messages.ApiVersionsRequest(), 0)  # which shows the connection to Python
    client.receive_frame()
    world.reactor.serve_transactions(gate)
    send(client, {0: transactional(0)})
    client.wait_closed()
    world.poll()
    assert partition.end_offset == 0
