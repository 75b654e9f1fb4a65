"""A Produce of many partitions is appended in slices: others wait for one of them, not for the request."""

import os
import socket
import struct
import time

import pytest
from reactor_world import NOW_MS, SlowLog, World, produce

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch

COUNT = 60  # partitions of a request, of 900 KB each: six slices of 8 MB
WIDE = bytes(build_batch([Record(None, bytes(900_000), timestamp=NOW_MS)]))
SMALL = bytes(build_batch([Record(None, b"v", timestamp=NOW_MS)]))
PACKED = bytes(
    build_batch([Record(None, b"v", timestamp=NOW_MS)], compression=1)
)  # goes to the log in Python


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def wide(packed=(), count=COUNT, **fields):
    data = dict.fromkeys(range(count), WIDE)
    data.update(dict.fromkeys(packed, PACKED))
    return produce("t", data, **fields)


def codes_of(answer):
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def offsets_of(answer):
    return [part.base_offset for topic in answer.responses for part in topic.partition_responses]


def slices(world):
    return world.reactor.stats()["produce_slices"]


def acting(world, index, act, **fields):
    """Partition `index` of `t` runs `act` when the request comes to it, and refuses the records."""

    def append(data, now_ms):
        act()
        raise KafkaError(errors.INVALID_RECORD, "refused")

    world.partition("t", index, log=SlowLog(append), **fields)


# -- one worker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_a_wide_request_takes_several_turns(world, acks):
    logs = [world.partition("t", index) for index in range(COUNT)]
    client = world.connect()
    for offset in range(2):
        answer = client.ask(wide(acks=acks), 9)
        assert codes_of(answer) == [0] * COUNT
        assert offsets_of(answer) == [offset] * COUNT
    assert slices(world) >= 10
    assert [log.end_offset for log in logs] == [2] * COUNT
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_a_small_request_takes_one_turn(world):
    for index in range(COUNT):
        world.partition("t", index)
    answer = world.connect().ask(produce("t", dict.fromkeys(range(COUNT), SMALL)), 9)
    assert codes_of(answer) == [0] * COUNT
    assert slices(world) == 0


def test_others_are_served_between_slices(world):
    """Before: the whole request in one turn, 50 ms for 80 MB."""
    other_log = world.partition("other")
    client, other = world.connect(), world.connect()
    seen = []
    for index in range(COUNT):
        if index == 20:
            acting(world, index, lambda: other.send_produce("other", SMALL))
        elif index == COUNT - 1:
            acting(world, index, lambda: seen.append(other_log.end_offset))
        else:
            world.partition("t", index)
    codes = codes_of(client.ask(wide(packed=(20, COUNT - 1)), 9))
    assert codes.count(0) == COUNT - 2
    assert seen == [1]


def test_what_comes_behind_it_is_appended_and_answered_behind_it(world):
    for index in range(COUNT):
        world.partition("t", index)
    client, order = world.connect(), []
    order.append(client.send_request(wide(), 9))
    order.append(client.send_produce("t", SMALL, index=COUNT - 1))
    order.append(client.send_request(messages.ApiVersionsRequest(), 0))
    assert set(offsets_of(client.receive(messages.ProduceResponse, 9, order[0]))) == {0}
    assert offsets_of(client.receive(messages.ProduceResponse, 9, order[1])) == [1]
    client.receive_frame()


def test_acks_0(world):
    logs = [world.partition("t", index) for index in range(COUNT)]
    client = world.connect()
    client.send_request(wide(acks=0), 9)
    last = client.send_produce("t", SMALL, index=COUNT - 1)
    assert offsets_of(client.receive(messages.ProduceResponse, 9, last)) == [1]
    assert [log.end_offset for log in logs[:-1]] == [1] * (COUNT - 1)
    client.send_request(wide(acks=0, count=COUNT + 1), 9)  # the last one is not there
    client.wait_closed()
    assert [log.end_offset for log in logs[:-1]] == [2] * (COUNT - 1)


def test_a_client_that_sends_with_acks_0_and_leaves(world):
    logs = [world.partition("t", index) for index in range(COUNT)]
    client = world.connect()
    client.send_request(wide(acks=0), 9)
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    assert [log.end_offset for log in logs] == [1] * COUNT
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_unknown_and_refused_partitions_among_them(world):
    for index in range(0, COUNT, 2):
        world.partition("t", index)
    answer = world.connect().ask(wide(), 9)
    assert codes_of(answer) == [0, errors.UNKNOWN_TOPIC_OR_PARTITION] * (COUNT // 2)
    answer = world.connect().ask(wide(acks=7), 9)
    assert codes_of(answer) == [errors.INVALID_REQUIRED_ACKS, errors.UNKNOWN_TOPIC_OR_PARTITION] * (
        COUNT // 2
    )


def test_the_answer_waits_for_every_high_watermark(world):
    parts = [world.partition("t", index, follows_end=index not in (0, 50)) for index in range(COUNT)]
    client = world.connect()
    client.send_request(wide(), 9)
    world.poll_until(lambda: parts[-1].end_offset == 1)
    parts[50].advance_high_watermark(1)
    assert not client.has_answer()
    parts[0].advance_high_watermark(1)
    assert codes_of(client.receive(messages.ProduceResponse, 9)) == [0] * COUNT


def test_batches_that_threads_unpack_among_them(world):
    large = bytes(
        build_batch([Record(b"k", bytes(100_000), timestamp=NOW_MS) for _ in range(100)], compression=1)
    )
    logs = [world.log("t", index) for index in range(COUNT)]
    data = {index: large if index % 5 == 0 else WIDE for index in range(COUNT)}
    client = world.connect()
    for number in range(2):
        answer = client.ask(produce("t", data), 9)
        assert codes_of(answer) == [0] * COUNT
        assert offsets_of(answer) == [number * (100 if index % 5 == 0 else 1) for index in range(COUNT)]
    assert slices(world) >= 8
    assert world.reactor.stats()["unpack_jobs"] > 0
    assert [log.end_offset for log in logs] == [200 if index % 5 == 0 else 2 for index in range(COUNT)]
    assert world.reactor.stats()["buffered_bytes"] == 0


# -- what changes meanwhile --------------------------------------------------------------------------------


def test_partitions_that_are_deleted_between_slices(world):
    def delete():
        for index in range(30, COUNT):
            world.table.remove("t", index)

    for index in range(COUNT):
        if index == 20:
            acting(world, index, delete)
        else:
            world.partition("t", index)
    codes = codes_of(world.connect().ask(wide(packed=[20]), 9))
    assert codes == [0] * 20 + [errors.INVALID_RECORD] + [0] * 9 + [errors.UNKNOWN_TOPIC_OR_PARTITION] * 30


@pytest.mark.parametrize("at", [3, 20])
def test_a_topic_that_is_deleted_and_made_again_between_slices(world, at):
    """What is left is not appended to the new one, whose offsets the answer would mix with the old one's."""
    again = []

    def make_again():
        for index in range(COUNT):
            world.table.remove("t", index)
        world.directory += "/again"
        again.extend(world.partition("t", index, topic_id=b"2" * 16) for index in range(COUNT))

    for index in range(COUNT):
        if index == at:
            acting(world, index, make_again, topic_id=b"1" * 16)
        else:
            world.partition("t", index, topic_id=b"1" * 16)
    codes = codes_of(world.connect().ask(wide(packed=[at]), 9))
    assert {partition.end_offset for partition in again[30:]} == {0}
    assert set(codes[30:]) == {errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_connection_that_is_reset_between_slices_gives_all_back(world):
    client = world.connect()

    def reset():
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()

    logs = []
    for index in range(COUNT):
        if index == 20:
            acting(world, index, reset)
        else:
            logs.append(world.partition("t", index))
    client.send_request(wide(packed=[20]), 9)
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    assert world.reactor.stats()["buffered_bytes"] == 0
    assert logs[0].end_offset == 1 and logs[-1].end_offset == 0
    assert world.connect().produce("t", SMALL, index=COUNT - 1).error_code == 0


@pytest.mark.parametrize("at", [3, 20])
def test_the_reactor_closes_in_the_middle_of_a_slice(tmp_path, at):
    world = World(str(tmp_path))
    for index in range(COUNT):
        if index == at:
            acting(world, index, world.reactor.close)
        else:
            world.partition("t", index)
    client = world.connect()
    client.send_request(wide(packed=[at], count=40), 9)
    world.poll()
    world.close()


def test_the_connection_is_closed_by_its_own_append(world):
    """Whatever Python does in the middle of a slice: the connection idles out, here."""
    connections = []
    world.answer = lambda connection, request_id, frame: connections.append(connection)
    for index in range(COUNT):
        if index == 20:
            acting(world, index, lambda: connections[0].close("the test"))
        else:
            world.partition("t", index)
    client = world.connect()
    client.send_request(messages.ApiVersionsRequest(), 0)
    world.poll()
    connections[0].respond(world.calls[0][1], b"", b"")
    client.send_request(wide(packed=[20]), 9)
    client.wait_closed()
    world.poll()
    assert world.reactor.stats()["buffered_bytes"] == 0


# -- several workers ---------------------------------------------------------------------------------------


def spread(workers, count=COUNT, **options):
    for index in range(count):
        workers.partition("t", index, index % 2, **options)


def test_partitions_of_two_workers(workers):
    spread(workers)
    client = workers.connect(0)
    first = client.send_request(wide(), 9)
    second = client.send_request(produce("t", dict.fromkeys(range(COUNT), SMALL)), 9)
    for number, correlation_id in enumerate((first, second)):
        answer = client.receive(messages.ProduceResponse, 9, correlation_id)
        assert codes_of(answer) == [0] * COUNT
        assert offsets_of(answer) == [number] * COUNT
    stats = workers.ask(0, "stats")
    assert stats["produce_slices"] >= 5
    assert stats["buffered_bytes"] == 0


def test_an_owner_has_one_slice_at_a_time(workers):
    spread(workers)
    client = workers.connect(0)
    workers.stop(1)
    began = time.monotonic()
    answer = client.ask(wide(timeout_ms=1200), 9)
    assert 1 < time.monotonic() - began < 10
    codes = codes_of(answer)
    assert codes[0] == 0 and codes[-1] == codes[-2] == codes[1] == errors.REQUEST_TIMED_OUT
    assert workers.ask(0, "stats")["produce_slices"] == 0
    workers.go(1)
    workers.ask_until(1, "end_offset", "t", 1, want=lambda end: end == 1)
    workers.ask_until(0, "stats", want=lambda stats: stats["buffered_bytes"] == 0)
    assert (
        workers.ask(1, "end_offset", "t", COUNT - 1) == 0
    )  # it was told that it timed out: nothing comes later
    assert client.produce("t", SMALL, index=COUNT - 1).base_offset == 0


def test_an_owner_that_dies_between_slices(workers):
    spread(workers)
    client = workers.connect(0)
    workers.stop(1)
    waiting = client.send_request(wide(), 9)
    workers.ask_until(0, "end_offset", "t", 0, want=lambda end: end == 1)
    workers.kill(1)
    workers.ask(0, "peer_lost", 1)
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert codes_of(answer) == [0, errors.NOT_LEADER_OR_FOLLOWER] * (COUNT // 2)
    workers.ask_until(0, "stats", want=lambda stats: stats["buffered_bytes"] == 0)


def test_a_connection_closed_while_an_owner_has_a_slice(workers):
    spread(workers)
    client = workers.connect(0)
    workers.stop(1)
    client.send_request(wide(), 9)
    workers.ask_until(0, "end_offset", "t", 0, want=lambda end: end == 1)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    workers.ask_until(0, "stats", want=lambda stats: stats["connections"] == 0)
    workers.go(1)
    workers.ask_until(0, "stats", want=lambda stats: stats["buffered_bytes"] == 0)
    assert workers.ask(0, "end_offset", "t", COUNT - 2) == 0


# -- a request that grows while it comes -------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [300_000, 2_500_000, 5_000_000, 19_000_000])
def test_a_large_request_arrives_whole_however_it_is_cut(world, chunk):
    """What has come moves to a larger buffer in pieces, a turn each. Before: 33 MB in one turn, 38 ms."""
    content = os.urandom(30_000_000)
    data = bytes(build_batch([Record(None, content, timestamp=NOW_MS)]))
    world.log("t", max_message_bytes=40 << 20)
    client = world.connect()
    frame = codec.encode_request(produce("t", {0: data}), 9, 1, "test")
    whole = struct.pack(">i", len(frame)) + frame
    behind = codec.encode_request(produce("t", {0: SMALL}), 9, 2, "test")
    whole += struct.pack(">i", len(behind)) + behind
    for at in range(0, len(whole), chunk):
        client.send(whole[at : at + chunk])
        world.poll(1)
    assert offsets_of(client.receive(messages.ProduceResponse, 9, 1)) == [0]
    assert offsets_of(client.receive(messages.ProduceResponse, 9, 2)) == [1]
    with open(os.path.join(world.directory, "t-0", f"{0:020d}.log"), "rb") as file:
        assert file.read()[61 : len(data)] == data[61:]
    assert world.reactor.stats()["buffered_bytes"] == 0


@pytest.mark.parametrize("come", range(1_000_000, 20_000_000, 2_300_000))
def test_a_connection_that_closes_while_its_request_grows_gives_all_back(world, come):
    client = world.connect()
    client.send(struct.pack(">i", 90_000_000) + bytes(come))
    world.poll(1)
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    assert world.reactor.stats()["buffered_bytes"] == 0
