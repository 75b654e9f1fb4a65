"""Small, plain message sets: the loop converts them in one call. The slow path takes the rest."""

import fcntl
import random
import sys
import termios

import pytest
from reactor_world import World

from kafkad._native.wire.batch import AppendRules
from kafkad._native.wire.message_set import WholeSets
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.message_sets import SetValidation
from kafkad.protocol.records import read_batches
from kafkad.protocol.validation import InvalidBatch
from tests.clients import wait_until
from tests.reference.message_sets import message, message_set, wrapper

PLAIN = [(b"key", b"value", 1_000), (None, b"x" * 3_000, 900), (b"", None, 1_100), (b"k", b"", -1)]
NOW = 5_000


def slowly(data, rules):
    """The batch that the slow path makes, None if it refuses the set."""
    work = SetValidation(bytearray(data), rules, NOW)
    try:
        while work.step() >= 0:
            pass
    except InvalidBatch:
        return None
    return bytes(work.settle(NOW))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "rules", [{}, {"compression_type": 0}, {"log_append_time": True}, {"before_max_ms": 4_100}]
)
def test_it_makes_the_batch_of_the_slow_path(magic, rules):
    sets, rules = WholeSets(), AppendRules(**rules)
    rng = random.Random(magic)
    for _ in range(50):
        rows = [
            (
                rng.choice((None, rng.randbytes(rng.randrange(200)))),
                rng.randbytes(rng.randrange(900)),
                900 + n,
            )
            for n in range(rng.randrange(1, 90))
        ]
        for data in (
            message_set(magic, rows),
            message_set(magic, PLAIN),
            message(0, b"k", b"v", attributes=8),
        ):
            made = sets.convert_one(data, rules, NOW)
            assert made is not None and made == slowly(data, rules)


def changed(data, at, byte):
    return data[:at] + bytes([byte]) + data[at + 1 :]


DATA = message_set(1, PLAIN)
LEFT = {
    "nothing": (b"", {}),
    "too short for a magic": (DATA[:16], {}),
    "cut": (DATA[:-1], {}),
    "cut in the size": (DATA + DATA[:11], {}),
    "a wrong CRC": (changed(DATA, len(DATA) - 1, 7), {}),
    "another magic behind": (DATA + message_set(0, PLAIN), {}),
    "magic 2": (changed(DATA, 16, 2), {}),
    "a wrapper": (wrapper(1, 1, DATA, offset=3), {}),
    "LogAppendTime": (DATA + message(1, b"k", b"v", 5, attributes=8), {}),
    "a size below 0": (changed(DATA, 8, 255), {}),
    "a topic with a codec": (DATA, {"compression_type": 3}),
    "a large message": (DATA, {"max_message_bytes": 2_000}),
    "a large batch": (DATA, {"max_message_bytes": 3_090}),
    "a key that is missing": (DATA, {"compacted": True}),
    "a time out of range": (DATA, {"before_max_ms": 4_000}),
    "more than 128 KB": (message_set(1, [(None, bytes(1_000), 5)] * 128), {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_it_leaves_the_rest_to_the_slow_path(name):
    sets = WholeSets()
    data, rules = LEFT[name]
    for _ in range(3):
        assert sets.convert_one(data, AppendRules(**rules), NOW) is None
        assert sets.convert_one(DATA, AppendRules(), NOW) == slowly(DATA, AppendRules())


def test_random_damage_is_judged_as_by_the_slow_path():
    rng, sets, rules = random.Random(3), WholeSets(), AppendRules(max_message_bytes=3_100)
    for _ in range(3_000):
        data = bytearray(message_set(rng.randrange(2), PLAIN))
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data) if rng.random() < 0.3 else 60)] = rng.randrange(256)
        made = sets.convert_one(data, rules, NOW)
        assert made is None or made == slowly(data, rules)


# -- through a reactor


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path), native=False)
    world.reactor.serve_native(0, 0, 13)
    yield world
    world.close()


def produce_frame(data, version, *, index=0):
    cls = messages.ProduceRequest.TopicData
    part = cls.PartitionData(index=index, records=data)
    request = messages.ProduceRequest(acks=1, timeout_ms=1_000)
    request.topic_data.append(cls(name="t", partition_data=[part]))
    return codec.encode_request(request, version, 1, "old")


def answered(client, version):
    _, answer = codec.decode_response(messages.ProduceResponse, version, client.receive_frame())
    (part,) = answer.responses[0].partition_responses
    return part.error_code, part.base_offset


def asked(client, data, version=2):
    client.send_frame(produce_frame(data, version))
    return answered(client, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_python_runs_for_a_small_plain_set(world, version):
    log = world.log("t")
    client = world.connect()
    for base_offset in (0, 4):
        assert asked(client, message_set(version // 2, PLAIN), version) == (0, base_offset)
    assert world.reactor.stats()["python_appends"] == 0
    assert asked(client, wrapper(version // 2, 1, message_set(version // 2, PLAIN), offset=3)) == (0, 8)
    assert world.reactor.stats()["python_appends"] == 1
    assert asked(client, changed(DATA, len(DATA) - 1, 7)) == (errors.CORRUPT_MESSAGE, -1)
    assert world.reactor.stats()["python_appends"] == 2
    batches = list(read_batches(log.read(0, 1 << 20)))
    assert [(b.base_offset, b.records_count) for b in batches] == [(0, 4), (4, 4), (8, 4)]
    assert [r.value for r in batches[1].records()] == [value for _, value, _ in PLAIN]


def test_a_round_converts_so_many_bytes_and_leaves_the_rest_to_threads(world):
    """A nanosecond a byte, 4 ms a round. All requests are there when the round begins."""
    count, data = 120, message_set(1, [(b"k", b"x" * 40_000, 1_000)])
    logs = [world.log("t", index) for index in range(count)]
    clients = [world.connect() for _ in logs]
    for index, client in enumerate(clients):
        frame = produce_frame(data, 2, index=index)
        assert client.socket.send(len(frame).to_bytes(4, "big") + frame) == 4 + len(frame)
    wait_until(lambda: not any(unreceived(client.socket) for client in clients))
    for client in clients:
        assert answered(client, 2) == (0, 0)
    assert {log.end_offset for log in logs} == {1}
    stats = world.reactor.stats()
    assert stats["python_appends"] == count - -(-4_000_000 // len(data))
    assert stats["unpack_jobs"] >= 1


def unreceived(sock):
    """How many bytes of what was sent the peer's kernel does not have so far."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_a_set_for_which_the_log_rolls(world):
    log = world.log("t", segment_bytes=10_000)
    client = world.connect()
    for number in range(10):
        assert asked(client, DATA) == (0, 4 * number)
    assert 3 <= len(log.native.segment_rows()) <= 5
    assert world.reactor.stats()["python_appends"] == len(log.native.segment_rows()) - 1
    assert log.end_offset == 40


def test_a_set_larger_than_a_segment_and_a_log_that_is_closed(world):
    log = world.log("t", segment_bytes=2_000)
    client = world.connect()
    assert asked(client, DATA) == (errors.RECORD_LIST_TOO_LARGE, -1)
    assert asked(client, message(1, b"k", b"v", 1)) == (0, 0)
    log.close()
    assert asked(client, message(1, b"k", b"v", 1)) == (errors.NOT_LEADER_OR_FOLLOWER, -1)
