"""What hunters from outside found in the data plane, each as the smallest test that shows it."""

import resource
import socket
import struct
import time
from types import SimpleNamespace

import pytest
from reactor_world import NOW_MS, SlowLog, World, batch, fetch, produce

from kafkad._native.log import partition_state
from kafkad.api import table
from kafkad.clock import Clock
from kafkad.log.recovery import create_segment_files
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.dispatch import Dispatcher

FETCH_VERSIONS = (4, 11, 12, 13, 17)


@pytest.fixture
def make(tmp_path):
    worlds = []

    def make(**limits):
        worlds.append(World(str(tmp_path), **limits))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make):
    return make()


def roll(world, partition):
    create_segment_files(f"{world.directory}/{partition.topic}-{partition.index}", partition.end_offset)
    partition.roll(partition.end_offset, NOW_MS)


def append(partition, records):
    code, *_ = partition.try_append(bytearray(records), NOW_MS)
    assert code == 0


# -- fetch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", FETCH_VERSIONS[:3])
def test_errors_have_the_aborted_transactions_that_kafka_gives_them(world, version, isolation_level):
    """HUNTS N7: null where reading failed, an empty list for an unknown partition, as in Kafka."""
    world.partition("t")
    client = world.connect()
    answer = client.fetch([("t", 0, 99), ("t", 1, 0)], version=version, isolation_level=isolation_level)
    failed, unknown = [part for topic in answer.responses for part in topic.partitions]
    assert (failed.error_code, failed.aborted_transactions) == (1, None)
    assert (unknown.error_code, unknown.aborted_transactions) == (3, [])


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_forgets_nothing(world, epoch):
    """HUNTS N7: `forgotten_topics` are for incremental Fetches (FetchManager.newContext)."""
    append(world.partition("t"), batch())
    client = world.connect()
    answer = client.fetch([("t", 0, 0)], forgotten=[("t", 0)], session_epoch=epoch)
    assert [part.partition_index for topic in answer.responses for part in topic.partitions] == [0]


def test_a_full_fetch_of_nothing_gets_a_session(world):
    """HUNTS N7: a consumer without an assignment has a session, to which partitions are added later."""
    append(world.partition("t"), batch())
    client = world.connect()
    answer = client.fetch([], session_epoch=0)
    assert (answer.error_code, answer.responses) == (0, [])
    assert answer.session_id != 0
    added = client.fetch([("t", 0, 0)], session_id=answer.session_id, session_epoch=1)
    assert (added.error_code, added.session_id, len(added.responses)) == (0, answer.session_id, 1)


def test_a_closed_segment_is_answered_at_once_whatever_min_bytes_says(world):
    """HUNTS N5: what is left of a closed segment is below min_bytes, but more follows in the next one."""
    partition = world.partition("t")
    append(partition, batch(size=1000))
    roll(world, partition)
    append(partition, batch(size=100_000))
    client = world.connect()
    answer = client.fetch([("t", 0, 0)], min_bytes=50_000, max_wait_ms=20_000)
    assert len(answer.responses[0].partitions[0].records) > 1000
    assert world.reactor.stats()["fetch_waits"] == 0


def test_a_roll_ends_the_wait_of_a_fetch_in_the_segment_before(world):
    """HUNTS N5: as Kafka's DelayedFetch, a Fetch that finds itself in an older segment waits no longer."""
    partition = world.partition("t")
    append(partition, batch(size=1000))
    client = world.connect()
    client.send_request(fetch([("t", 0, 0)], min_bytes=50_000, max_wait_ms=20_000), 12)
    assert not client.has_answer()
    roll(world, partition)
    append(partition, batch(size=1000))
    answer = client.receive(messages.FetchResponse, 12)
    assert 1000 < len(answer.responses[0].partitions[0].records) < 2000


def test_bytes_behind_the_body_are_ignored(world):
    """As Kafka ignores them, in a Fetch and in a Produce."""
    world.partition("t")
    client = world.connect()
    for request in (produce("t", {0: batch()}), fetch([("t", 0, 0)])):
        client.send_frame(codec.encode_request(request, 9, 7, "c") + b"\1\2\3")
        assert client.receive_frame()[:4] == b"\0\0\0\7"


def wide_fetch(count, *, version=7, session=0, epoch=-1, max_wait_ms=0, known=()):
    """A Fetch of `count` partitions of the unknown topic x, and of partition 0 of each of `known`."""
    head = struct.pack(">hhihiiiib", 1, version, 1, -1, -1, max_wait_ms, 1, 1 << 30, 0)
    if version >= 7:
        head += struct.pack(">ii", session, epoch)
    one = struct.Struct(">iqqi" if version >= 5 else ">iqi")
    fields = (0, -1, 1 << 20) if version >= 5 else (0, 1 << 20)
    topics = (
        [b"\0\1x" + struct.pack(">i", count) + b"".join(one.pack(i, *fields) for i in range(count))]
        if count
        else []
    )
    topics += [
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", 1) + one.pack(0, *fields)
        for name in known
    ]
    return (
        head
        + struct.pack(">i", len(topics))
        + b"".join(topics)
        + (struct.pack(">i", 0) if version >= 7 else b"")
    )


def test_pipelined_fetches_of_a_wide_session_are_answered_one_a_turn(world):
    """HUNTS N2: 60 empty incremental Fetches of 2,880 bytes held 780 MB, and others waited 6.7 s."""
    client, other = world.connect(), world.connect()
    client.send_frame(wide_fetch(30_000, epoch=0))
    answer = client.receive_frame()
    (session,) = struct.unpack_from(">i", answer, 10)
    assert session and len(answer) > 30_000 * 30
    frames = [wide_fetch(0, session=session, epoch=epoch) for epoch in range(1, 61)]
    client.socket.setblocking(True)
    client.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    client.socket.setblocking(False)
    for _ in range(5):  # the client reads nothing
        other.send_frame(b"\0\x12\0\0\0\0\0\7\xff\xff")
        assert other.receive_frame() == b"\0\0\0\7!"
        assert world.reactor.stats()["buffered_bytes"] < 5 << 20
    assert world.reactor.stats()["requests"][1] < 1 + 60
    for _ in range(60):
        assert len(client.receive_frame()) == len(answer)
    assert world.reactor.stats()["buffered_bytes"] == 0
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 1)


def test_answers_that_nobody_reads_end_the_turns_of_their_connection(world):
    """HUNTS N2: answers of Python, too, count as buffered, and are bounded."""
    client = world.connect()
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, bytes(600_000))
    frame = b"\0\x12\0\0\0\0\0\7\xff\xff"
    client.socket.setblocking(True)
    client.socket.sendall((struct.pack(">i", len(frame)) + frame) * 200)
    client.socket.setblocking(False)
    world.poll(50)
    assert 0 < world.reactor.stats()["buffered_bytes"] < 3 << 20
    assert len(world.calls) < 30
    for _ in range(200):
        assert len(client.receive_frame()) == 600_000
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_slow_calls_of_python_take_turns_with_other_connections(world):
    """HUNTS N2: a turn had 16 of them, whatever they took."""
    order = []

    def answer(connection, request_id, frame):
        order.append(connection.id)
        time.sleep(0.01)
        connection.respond(request_id, frame[4:8], b"!")

    world.answer = answer
    client, other = world.connect(), world.connect()
    frame = b"\0\x12\0\0\0\0\0\7\xff\xff"
    client.send((struct.pack(">i", len(frame)) + frame) * 16)
    other.send((struct.pack(">i", len(frame)) + frame) * 2)
    world.poll_until(lambda: len(order) == 18)
    assert order[:4] == [1, 2, 1, 2]


def test_slow_appends_take_turns_with_other_connections(world):
    """HUNTS N2: 50 batches that each rolled a segment were one turn, and stopped the others for 0.2 s."""
    order = []

    def append(records, now_ms):
        order.append("rolled")
        time.sleep(0.01)
        raise KafkaError(errors.UNKNOWN_SERVER_ERROR)

    def answer(connection, request_id, frame):
        order.append("called")
        connection.respond(request_id, frame[4:8], b"!")

    world.answer = answer
    world.partition("t", log=SlowLog(append))
    client, other = world.connect(), world.connect()
    request = codec.encode_request(produce("t", {0: batch(compression=1)}), 9, 7, "client")
    client.send((struct.pack(">i", len(request)) + request) * 16)
    frame = b"\0\x12\0\0\0\0\0\7\xff\xff"
    other.send((struct.pack(">i", len(frame)) + frame) * 2)
    world.poll_until(lambda: len(order) == 18)
    assert order[:4].count("called") >= 1
    assert order[:8].count("called") == 2


def test_a_fetch_of_too_many_partitions_closes_and_one_of_very_many_is_served(world):
    """HUNTS N2, REVIEW D6: 65,536 topics and partitions."""
    client = world.connect()
    client.send_frame(wide_fetch(65_535))
    assert len(client.receive_frame()) > 65_535 * 30
    client.send_frame(wide_fetch(65_536))
    client.wait_closed()
    assert "65536 topics and partitions" in world.lines[-1]


def test_a_session_grows_no_further_than_a_request(world):
    """HUNTS N2: partitions can be added to a session by many Fetches."""
    client = world.connect()
    client.send_frame(wide_fetch(60_000, epoch=0))
    (session,) = struct.unpack_from(">i", client.receive_frame(), 10)
    fields = {"session_id": session, "session_epoch": 1}
    answer = client.fetch([("more", index, 0) for index in range(6_000)], version=7, **fields)
    assert answer.error_code == 70
    assert world.reactor.stats()["sessions"] == 0


def test_waiting_fetches_count_as_buffered_and_are_answered_early_when_that_is_too_much(make):
    """REVIEW D6: a Fetch of 524,288 partitions that waits held 80 MB which no limit counted."""
    world = make(buffered_bytes_max=26 << 20)
    world.partition("t")
    clients = [world.connect() for _ in range(4)]
    for number, client in enumerate(clients, 1):
        client.send_frame(wide_fetch(30_000, version=4, max_wait_ms=1 << 30, known=["t"]))
        world.poll_until(lambda number=number: world.reactor.stats()["requests"].get(1) == number)
        assert world.reactor.stats()["buffered_bytes"] <= 17 << 20
    assert world.reactor.stats()["buffered_bytes"] > 30_000 * 152 * 2
    assert [client.has_answer() for client in clients] == [False, False, True, True]
    append(world.table.get("t", 0), batch())
    for client in clients:
        assert len(client.receive_frame()) > 30_000 * 30
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_the_memory_of_a_wide_session_goes_back(world):
    """HUNTS N2: after the connection was closed the worker kept what it had needed."""
    world.reactor.poll()
    before = anonymous_bytes()
    client = world.connect()
    for _ in range(3):
        client.send_frame(wide_fetch(60_000, epoch=0))
        (session,) = struct.unpack_from(">i", client.receive_frame(), 10)
        client.send_frame(wide_fetch(0, session=session, epoch=-1))  # closes it
        client.receive_frame()
    client.received = bytearray()
    world.poll_until(lambda: world.reactor.stats()["trims"] > 0)
    world.poll_until(lambda: world.reactor.stats()["pooled_bytes"] == 0)
    assert anonymous_bytes() - before < 8 << 20


def anonymous_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


# -- produce -----------------------------------------------------------------------------------------------

TOPIC = messages.ProduceRequest.TopicData
IDS = {"t": b"t" * 16, "u": b"u" * 16, "no": b"n" * 16, "nor": b"m" * 16}


def produced(client, version, *topics, **fields):
    """The answer to a Produce of (name, [(index, records)]): (name, [(index, error code, base offset)])."""
    data = [
        TOPIC(
            **({"topic_id": IDS[name]} if version >= 13 else {"name": name}),
            partition_data=[TOPIC.PartitionData(index=index, records=records) for index, records in parts],
        )
        for name, parts in topics
    ]
    answer = client.ask(
        messages.ProduceRequest(topic_data=data, **{"acks": -1, "timeout_ms": 5000, **fields}), version
    )
    return [
        (
            topic.name or next(name for name, value in IDS.items() if value == topic.topic_id),
            [(part.index, part.error_code, part.base_offset) for part in topic.partition_responses],
        )
        for topic in answer.responses
    ]


@pytest.fixture
def topics(world):
    return [
        world.partition(name, index, topic_id=IDS[name]) for name, index in (("t", 0), ("t", 1), ("u", 0))
    ]


PRODUCE_VERSIONS = (3, 8, 9, 12, 13)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_partition_named_twice_is_appended_once(world, topics, version):
    """HUNTS N6: the last one counts, and there is one entry in the answer."""
    answer = produced(world.connect(), version, ("t", [(0, batch(1)), (1, batch(1)), (0, batch(3))]))
    assert answer == [("t", [(0, 0, 0), (1, 0, 0)])]
    assert [partition.end_offset for partition in topics] == [3, 1, 0]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_topic_named_twice_is_one(world, topics, version):
    """HUNTS N6: with and without a partition that is named twice."""
    client = world.connect()
    one, two = batch(1), batch(2)
    assert produced(client, version, ("t", [(0, one)]), ("u", [(0, one)]), ("t", [(1, one)])) == [
        ("t", [(0, 0, 0), (1, 0, 0)]),
        ("u", [(0, 0, 0)]),
    ]
    assert produced(client, version, ("t", [(0, one)]), ("u", [(0, one)]), ("t", [(1, one), (0, two)])) == [
        ("t", [(0, 0, 1), (1, 0, 1)]),
        ("u", [(0, 0, 1)]),
    ]
    assert [partition.end_offset for partition in topics] == [3, 2, 2]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_unknown_partitions_named_twice_have_one_entry(world, topics, version):
    """HUNTS N6: of topics that are known and unknown."""
    one = batch(1)
    unknown = 3 if version < 13 else 100
    answer = produced(
        world.connect(), version, ("no", [(0, one), (0, one)]), ("t", [(9, one), (0, one), (9, one)]),
        ("nor", [(0, one)]), ("no", [(0, one), (1, one)]),
    )  # fmt: skip
    assert answer == [
        ("no", [(0, unknown, -1), (1, unknown, -1)]),
        ("t", [(9, 3, -1), (0, 0, 0)]),
        ("nor", [(0, unknown, -1)]),
    ]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_topics_without_partitions_are_left_out(world, topics, version):
    """Kafka's answer has none; with short names such a flexible request closed the connection."""
    client = world.connect()
    assert produced(client, version, ("t", []), ("u", [(0, batch(1))]), ("no", [])) == [("u", [(0, 0, 0)])]
    assert produced(client, version, ("t", []), ("no", [])) == []


def test_of_a_partition_named_twice_wrong_records_win(world, topics):
    """HUNTS N6: Kafka's answer is the error of the wrong ones; what is refused is not appended."""
    wrong = bytearray(batch(1))
    wrong[16] = 1  # magic
    client = world.connect()
    for parts in ([(0, bytes(wrong)), (0, batch(1))], [(0, batch(1)), (0, bytes(wrong))]):
        assert produced(client, 9, ("t", parts)) == [("t", [(0, 87, -1)])]
    torn = bytearray(batch(1))
    torn[-1] ^= 1  # which is found only by appending it
    assert produced(client, 9, ("t", [(0, batch(1)), (0, bytes(torn))])) == [("t", [(0, 2, -1)])]
    assert topics[0].end_offset == 0
    assert produced(client, 9, ("t", [(0, None), (0, batch(1))])) == [("t", [(0, 0, 0)])]


def test_transactional_records_without_an_id_refuse_the_whole_request(world, topics):
    """RequestUtils.hasTransactionalRecords: 53 for every partition, unknown ones too; nothing is appended."""
    transactional = batch(1, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    answer = produced(world.connect(), 9, ("u", [(0, batch(1))]), ("t", [(0, transactional), (7, batch(1))]))
    assert answer == [("u", [(0, 53, -1)]), ("t", [(0, 53, -1), (7, 53, -1)])]
    assert [partition.end_offset for partition in topics] == [0, 0, 0]


def test_very_many_partitions_leave_no_scratch_memory_behind(world, topics):
    """HUNTS N7: Produces of 250,000 partitions kept 31 MB of a worker for ever."""
    client = world.connect()
    parts = [(index, None) for index in range(50_000)]
    assert len(produced(client, 9, ("no", parts + parts[:10]), ("u", [(0, batch(1))]))[0][1]) == 50_000
    client.fetch([("no", index, 0) for index in range(30_000)])
    assert world.reactor.stats()["scratch_bytes"] < 4 << 20
    produced(client, 9, ("u", [(0, batch(1))]))
    assert 0 < world.reactor.stats()["scratch_bytes"] < 16 << 10


# -- connections -------------------------------------------------------------------------------------------


def test_an_answer_that_is_being_read_is_not_idle(make):
    """HUNTS N4: a client that reads 20 MB slowly is served past connections.max.idle.ms."""
    world = make(connections_max_idle_ms=300, send_buffer_bytes=64 * 1024)
    client = world.connect()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    body = bytes(12 << 20)
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, frame[4:8], body)
    client.send_request(messages.ApiVersionsRequest(), 0)
    begun = time.monotonic()
    received = 0
    while received < len(body) + 8:
        world.poll()
        try:
            data = client.socket.recv(256 * 1024)
            assert data, "the broker closed the connection"
            received += len(data)
        except BlockingIOError:
            pass
        time.sleep(0.015)
    assert time.monotonic() - begun > 0.6
    assert world.reactor.stats()["expired_idle"] == 0


def test_a_client_that_reads_nothing_is_idle(make):
    """HUNTS N4, the other side of it."""
    world = make(connections_max_idle_ms=300)
    client = world.connect()
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, bytes(30 << 20))
    client.send_request(messages.ApiVersionsRequest(), 0)
    world.poll_until(lambda: world.reactor.stats()["expired_idle"] == 1)


def test_no_descriptor_and_no_connection_is_no_busy_loop(world):
    """REVIEW D10: with no connection to wait for, the listener rests all the same, and one line says so."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    client.setblocking(False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(BlockingIOError):
            client.connect(world.listener.getsockname())
        until = time.monotonic() + 0.5
        rounds = world.reactor.stats()["rounds"]
        while time.monotonic() < until:
            world.reactor.wait(0.05, [], [])
        assert world.reactor.stats()["rounds"] - rounds < 60
        assert [line for line in world.lines if "accepting" in line] == world.lines
        assert len(world.lines) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    world.poll_until(lambda: world.reactor.stats()["connections"] == 1)
    client.close()


def test_no_memory_for_a_request_closes_its_connection_alone(world):
    """HUNTS W8: a MemoryError was fatal, and ended all workers."""
    client, other = world.connect(), world.connect()
    world.answer = lambda connection, request_id, frame: bytearray(1 << 62)  # raises MemoryError
    client.send_request(messages.ApiVersionsRequest(), 0)
    client.wait_closed()
    assert "no memory" in world.lines[-1]
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, frame[4:8], b"!")
    other.send_frame(b"\0\x12\0\0\0\0\0\7\xff\xff")
    assert other.receive_frame() == b"\0\0\0\7!"


def test_no_memory_to_decode_a_request_closes_its_connection_alone(world, monkeypatch):
    """HUNTS W8: in the dispatcher, where most of a request's memory is taken."""
    fatal = []
    services = SimpleNamespace(peers=None, clock=Clock())
    dispatcher = Dispatcher(services, table.BY_KEY, fatal.append, None)
    monkeypatch.setattr(codec, "decode_request", lambda frame: bytearray(1 << 62))
    world.answer = dispatcher
    client = world.connect()
    client.send_request(messages.ApiVersionsRequest(), 0)
    client.wait_closed()
    assert (fatal, "no memory" in world.lines[-1]) == ([], True)


def test_no_memory_for_an_append_is_an_error_of_that_partition(make):
    """HUNTS W8: in the slow path of Produce, too."""
    world = make()
    world.partition("t", log=SlowLog(append=lambda records, now_ms: bytearray(1 << 62)))
    world.partition("u")
    client = world.connect()
    compressed = batch(compression=1)
    assert client.produce("t", compressed).error_code == -1
    assert client.produce("u", batch()).error_code == 0


# -- bytes that lie ----------------------------------------------------------------------------------------

PING = b"\0\x12\0\0\0\0\0\7\xff\xff"
MALFORMED = {
    "a short header": b"\0\0\0\3abc",
    "a negative size": b"\xff\xff\xff\xff",
    "a size above the limit": b"\x7f\xff\xff\xff",
    "a Produce": struct.pack(">ihhih", 12, 0, 9, 7, -1) + b"\xff\xff",
    "a Fetch": struct.pack(">ihhih", 12, 1, 12, 7, -1) + b"\xff\xff",
    "a Fetch version": struct.pack(">ihhih", 10, 1, 99, 7, -1),
    "an API of Python": struct.pack(">ihhih", 10, 3, 99, 7, -1),
}


@pytest.mark.parametrize("tail", MALFORMED.values(), ids=MALFORMED)
def test_what_was_asked_before_a_malformed_frame_is_answered(world, tail):
    """Issue part 5: both in one write; Kafka answers the first, then closes."""

    def answer(connection, request_id, frame):
        if frame[1] == 3:
            connection.close("Metadata does not parse")
        else:
            connection.respond(request_id, frame[4:8], b"!")

    world.answer = answer
    world.partition("t")
    whole = codec.encode_request(produce("t", {0: batch()}), 9, 5, "c")
    client = world.connect()
    client.send(
        b"".join([struct.pack(">i", len(f)) + f for f in (PING, whole)])
        + tail
        + b"more bytes, read by nobody"
    )
    assert client.receive_frame() == b"\0\0\0\7!"
    assert client.receive_frame()[:4] == b"\0\0\0\5"
    client.wait_closed()
    assert world.lines
    assert world.reactor.stats()["requests"].get(0, 0) <= 2


def test_an_answer_that_waits_leaves_before_the_connection_closes(world):
    """Issue part 5: a Produce that waits for its watermark; nothing behind the malformed frame is served."""
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    frames = [codec.encode_request(produce("t", {0: batch()}), 9, number, "c") for number in (5, 6)]
    good, after = [struct.pack(">i", len(frame)) + frame for frame in frames]
    client.send(good + MALFORMED["a Produce"] + after)
    world.poll(20)
    assert partition.end_offset == 1
    assert not client.has_answer()
    partition.advance_high_watermark(1)
    assert client.receive_frame()[:4] == b"\0\0\0\5"
    client.wait_closed()
    assert partition.end_offset == 1
    assert world.lines[-1].endswith("a Produce does not parse")


def test_an_answer_that_never_comes_does_not_keep_the_connection(world):
    """Issue part 5: the wait has a bound."""
    world.partition("t", follows_end=False)
    client = world.connect()
    frame = codec.encode_request(produce("t", {0: batch()}), 9, 5, "c")
    client.send(struct.pack(">i", len(frame)) + frame + MALFORMED["a Produce"])
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    assert world.reactor.stats()["buffered_bytes"] == 0


# -- assertions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error, fatal", [(AssertionError, True), (OSError, False)])
def test_an_assertion_in_a_logs_callback_ends_the_worker(world, error, fatal):
    """REVIEW D9: it was logged and passed over; any other failure of a callback is."""
    broken = error("offsets have no holes")

    class Log(SlowLog):
        def on_advance(self):
            raise broken

    partition = world.partition("t", log=Log())
    partition.notify_log = True
    told = []
    partition_state.set_on_fatal(told.append)
    try:
        append(partition, batch())
    finally:
        partition_state.set_on_fatal(None)
    assert told == ([broken] if fatal else [])
