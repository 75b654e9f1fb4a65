"""The reactor: frames, order, back-pressure, limits, and what bad bytes do."""

import contextlib
import os
import random
import resource
import socket
import struct
import time
from pathlib import Path

import psutil
import pytest
from reactor_world import Closed, World, batch, fetch, produce

from kafkad._native.serving.reactor import Reactor
from kafkad._native.shared.mailbox import Mailboxes
from kafkad.protocol import messages
from tests.readiness import readable


@pytest.fixture(params=["alone", "of two workers"])
def make(tmp_path, request):
    """Makes worlds; one of two workers has its buffers in an arena and looks at its mail."""
    worlds = []

    def build(**options):
        directory = tmp_path / str(len(worlds))
        directory.mkdir()
        if request.param == "of two workers":
            options["mailboxes"] = Mailboxes(2)
            options["mailboxes"].enter(0)
        worlds.append(World(str(directory), **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


@pytest.fixture
def world(make):
    return make()


def request(correlation_id, key=18, version=0, client=b"me", body=b""):
    return struct.pack(">hhih", key, version, correlation_id, len(client)) + client + body


def answer_to(correlation_id):
    return struct.pack(">i", correlation_id) + b"!"


# -- frames ------------------------------------------------------------------------------------------------


def test_a_frame_goes_to_python_and_its_answer_comes_back(world):
    client = world.connect()
    client.send_frame(request(7, body=b"body"))
    assert client.receive_frame() == answer_to(7)
    connection, request_id, frame = world.calls[0]
    assert (request_id, frame) == (0, request(7, body=b"body"))
    assert (connection.peer_host, connection.peer_port) == client.socket.getsockname()
    assert (connection.local_host, connection.local_port) == client.socket.getpeername()
    assert connection.listener == "PLAINTEXT"


def test_a_null_client_id_is_legal(world):
    client = world.connect()
    client.send_frame(struct.pack(">hhih", 3, 0, 9, -1))
    assert client.receive_frame() == answer_to(9)


def test_frames_cut_at_every_byte_are_put_together(world):
    client = world.connect()
    stream = b"".join(struct.pack(">i", len(f)) + f for f in (request(i, body=bytes(i)) for i in range(3)))
    for byte in stream:
        client.send(bytes([byte]))
        world.reactor.poll()
    assert [client.receive_frame() for _ in range(3)] == [answer_to(i) for i in range(3)]
    assert world.reactor.stats()["buffered_bytes"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_frames_cut_anywhere_are_put_together(world, seed):
    chance = random.Random(seed)
    client = world.connect()
    frames = [
        request(i, body=chance.randbytes(chance.choice([0, 3, 200, 70_000, 400_000]))) for i in range(40)
    ]
    stream = b"".join(struct.pack(">i", len(f)) + f for f in frames)
    at = 0
    while at < len(stream):
        step = chance.choice([1, 3, 5, 1000, 60_000, 300_000])
        client.send(stream[at : at + step])
        world.reactor.poll()
        at += step
    assert [client.receive_frame() for _ in frames] == [answer_to(i) for i in range(40)]
    assert [frame for _, _, frame in world.calls] == frames
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_a_frame_of_the_largest_size_is_served_and_one_byte_more_closes(make):
    world = make(socket_request_max_bytes=1_000_000)
    client = world.connect()
    body = bytes(1_000_000 - len(request(1)))
    client.send_frame(request(1, body=body))
    assert client.receive_frame() == answer_to(1)
    client.send_frame(request(2, body=body + b"x"))
    client.wait_closed()
    assert "socket.request.max.bytes" in world.lines[-1]


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", 0),
        struct.pack(">i", 9) + bytes(9),
        struct.pack(">ihhih", 10, 18, 0, 1, -2),
        struct.pack(">ihhih", 10, 18, 0, 1, 100),
    ],
)
def test_garbage_closes_the_connection_with_a_reason_and_no_answer(world, junk):
    client = world.connect()
    client.send(junk)
    client.wait_closed()
    assert client.received == b""
    assert len(world.lines) == 1
    assert world.calls == []


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_never_hurt(world, seed):
    chance = random.Random(seed)
    world.partition("t")
    for _ in range(20):
        client = world.connect()
        body = chance.randbytes(chance.randrange(200))
        key, version = chance.choice([(0, 3), (0, 9), (0, 13), (1, 4), (1, 11), (1, 12), (1, 18)])
        client.send_frame(request(1, key, version, body=body))
        try:
            client.receive_frame(seconds=0.0)
        except (Closed, AssertionError):
            pass
    assert world.connect().produce("t", batch()).error_code == 0


def test_half_of_valid_requests_with_bytes_flipped_never_hurt(world):
    chance = random.Random(1)
    world.partition("t")
    good = [
        bytes(client_bytes(world, message, version))
        for message, version in [
            (produce("t", {0: batch(3)}), 3),
            (produce("t", {0: batch(3)}), 9),
            (fetch([("t", 0, 0)], session_epoch=0), 11),
            (fetch([("t", 0, 0)], session_epoch=0), 12),
        ]
    ]
    for _ in range(300):
        frame = bytearray(chance.choice(good))
        for _ in range(chance.randrange(1, 4)):
            frame[chance.randrange(8, len(frame))] = chance.randrange(256)
        client = world.connect()
        client.send_frame(bytes(frame[: chance.randrange(10, len(frame) + 1)]))
        try:
            client.receive_frame(seconds=0.0)
        except (Closed, AssertionError):
            pass
        client.socket.close()
    world.poll()
    assert world.connect().produce("t", batch()).error_code == 0


def client_bytes(world, message, version):
    from kafkad.protocol import codec

    return codec.encode_request(message, version, 1, "c")


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (0, -1), (1, 3), (1, 19)])
def test_a_version_that_is_not_served_closes(world, key, version):
    client = world.connect()
    client.send_frame(request(1, key, version, body=bytes(100)))
    client.wait_closed()
    assert "version is not served" in world.lines[-1]


def test_without_serve_native_python_sees_produce(make):
    world = make(native=False)
    client = world.connect()
    client.send_frame(request(5, 0, 9))
    assert client.receive_frame() == answer_to(5)


# -- order -------------------------------------------------------------------------------------------------


def test_answers_keep_the_order_of_requests_when_python_is_late(world):
    pending = []
    world.answer = lambda connection, request_id, frame: pending.append((connection, request_id, frame))
    client = world.connect()
    for i in range(3):
        client.send_frame(request(i))
    world.poll()
    assert len(pending) == 1  # the others wait for the answer of the first
    for i in range(3):
        connection, request_id, frame = pending.pop()
        assert not client.has_answer()
        connection.respond(request_id, frame[4:8])
        assert client.receive_frame() == struct.pack(">i", i)
        world.poll()


def test_an_answer_from_outside_of_a_poll_leaves_at_once(world):
    pending = []
    world.answer = lambda *call: pending.append(call)
    client = world.connect()
    client.send_frame(request(1))
    world.poll()
    connection, request_id, _ = pending[0]
    connection.respond(request_id, b"one", memoryview(b"two"), bytearray(b"three"))
    assert client.socket.recv(100) == struct.pack(">i", 11) + b"onetwothree"


def test_a_request_is_answered_once(world):
    pending = []
    world.answer = lambda *call: pending.append(call)
    client = world.connect()
    client.send_frame(request(1))
    world.poll()
    connection, request_id, _ = pending[0]
    connection.respond(request_id, b"one")
    with pytest.raises(ValueError, match="waits for no answer"):
        connection.respond(request_id, b"two")
    with pytest.raises(ValueError, match="waits for no answer"):
        connection.respond(99, b"two")


def test_no_response_lets_the_next_request_run(world):
    world.answer = lambda connection, request_id, frame: (
        connection.respond(request_id, frame[4:8]) if request_id else connection.no_response(request_id)
    )
    client = world.connect()
    client.send_frame(request(1))
    client.send_frame(request(2))
    assert client.receive_frame() == struct.pack(">i", 2)


def test_an_answer_to_a_closed_connection_goes_nowhere(world):
    pending = []
    world.answer = lambda *call: pending.append(call)
    client = world.connect()
    client.send_frame(request(1))
    world.poll()
    client.socket.close()
    world.poll()
    connection, request_id, _ = pending[0]
    connection.respond(request_id, b"late")
    connection.close("late")
    assert world.reactor.stats()["connections"] == 1 or connection.closed


def test_produces_run_behind_waiting_produces_and_answer_in_order(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    ids = [client.send_produce("t", batch()) for _ in range(5)]
    world.poll()
    assert partition.end_offset == 5
    assert not client.has_answer()
    partition.advance_high_watermark(3)
    for i in range(3):
        answer = client.receive(messages.ProduceResponse, 9, ids[i])
        assert answer.responses[0].partition_responses[0].base_offset == i
    assert not client.has_answer()
    partition.advance_high_watermark(5)
    for i in (3, 4):
        client.receive(messages.ProduceResponse, 9, ids[i])


def test_another_api_waits_behind_a_waiting_produce(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    first = client.send_produce("t", batch())
    client.send_frame(request(1000))
    second = client.send_produce("t", batch())
    world.poll()
    assert world.calls == []
    assert partition.end_offset == 1  # nothing overtakes the request that waits
    partition.advance_high_watermark(1)
    client.receive(messages.ProduceResponse, 9, first)
    assert client.receive_frame() == answer_to(1000)
    world.poll()
    partition.advance_high_watermark(2)
    client.receive(messages.ProduceResponse, 9, second)


def test_a_request_behind_a_long_poll_waits(world):
    partition = world.partition("t")
    client = world.connect()
    waiting = client.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    client.send_frame(request(1000))
    world.poll()
    assert world.calls == []
    world.connect().produce("t", batch())
    assert client.receive(messages.FetchResponse, 12, waiting).responses[0].partitions[0].records
    assert client.receive_frame() == answer_to(1000)
    assert partition.end_offset == 1


def test_mixed_pipelines_answer_in_order(world):
    chance = random.Random(3)
    world.partition("t")
    late = []

    def answer(connection, request_id, frame):
        if chance.random() < 0.5:
            connection.respond(request_id, frame[4:8])
        else:
            late.append((connection, request_id, frame))

    world.answer = answer
    client = world.connect()
    sent = []
    for i in range(300):
        kind = chance.randrange(3)
        if kind == 0:
            sent.append(client.send_produce("t", batch(size=chance.randrange(3000))))
        elif kind == 1:
            sent.append(client.send_request(fetch([("t", 0, 0, 2000)], max_wait_ms=5), 12))
        else:
            sent.append(10_000 + i)
            client.send_frame(request(10_000 + i))
    got = []
    while len(got) < len(sent):
        world.reactor.poll()
        if late:
            connection, request_id, frame = late.pop()
            connection.respond(request_id, frame[4:8])
        while len(got) < len(sent):
            try:
                got.append(struct.unpack(">i", client.receive_frame(seconds=0.0)[:4])[0])
            except AssertionError:
                break
    assert got == sent


# -- back-pressure -----------------------------------------------------------------------------------------


def test_a_slow_reader_is_not_served_further_and_holds_bounded_memory(world):
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, bytes(100_000))
    client = world.connect()
    other = world.connect()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    one = struct.pack(">i", len(request(1))) + request(1)
    for _ in range(200):
        try:
            client.socket.send(one * 100)
        except BlockingIOError:
            break
        world.poll()
    assert len(world.calls) < 100  # of thousands asked
    seen = len(world.calls)
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, b"quick")
    other.send_frame(request(2))
    assert other.receive_frame() == b"quick"  # holds up nobody else
    assert len(world.calls) == seen + 1
    assert client.receive_frame() == bytes(100_000)  # and goes on when it reads
    for _ in range(seen - 1):
        client.receive_frame()
    assert client.receive_frame() == b"quick"


def test_a_slow_reader_of_file_regions_gets_them_whole(world):
    world.partition("t")
    client = world.connect()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131_072)
    for i in range(30):
        world.connect().produce("t", batch(size=60_000 + i))
    versions = [4, 12, 11, 7] * 5
    for version in versions:
        client.send_request(fetch([("t", 0, 0, 1 << 21)]), version)
    world.poll()
    assert world.reactor.stats()["requests"][1] < len(versions)
    with open(os.path.join(world.directory, "t-0", f"{0:020d}.log"), "rb") as file:
        log = file.read()
    for version in versions:
        records = client.receive(messages.FetchResponse, version).responses[0].partitions[0].records
        assert bytes(records) == log


def test_a_waiting_connection_is_read_no_further(world):
    world.answer = lambda *call: None
    client = world.connect()
    blob = request(1, body=bytes(50_000))
    sent = 0
    for _ in range(1000):
        try:
            sent += client.socket.send(struct.pack(">i", len(blob)) + blob)
        except BlockingIOError:
            break
        world.poll()
    assert sent < 16_000_000
    assert world.reactor.stats()["buffered_bytes"] < 400_000


def test_buffered_bytes_are_bounded_and_the_stalled_go_first(make):
    world = make(buffered_bytes_max=1_000_000, stall_ms=200)
    claims = []
    for _ in range(6):  # each claims 10 MB and sends 300 KB of them
        client = world.connect()
        client.socket.setblocking(False)
        claims.append(client)
        data = struct.pack(">i", 10_000_000) + bytes(300_000)
        while data:
            try:
                data = data[client.socket.send(data) :]
            except BlockingIOError:
                break
            world.poll()
    assert world.reactor.stats()["buffered_bytes"] <= 2_000_000
    honest = world.connect()
    deadline = time.monotonic() + 10
    blob = request(5, body=bytes(400_000))  # more than is served without memory of its own
    pending = memoryview(struct.pack(">i", len(blob)) + blob)
    while pending:
        assert time.monotonic() < deadline
        try:
            pending = pending[honest.socket.send(pending) :]
        except BlockingIOError:
            readable([world.reactor.fileno()], 0.05)
        world.reactor.poll()
    assert honest.receive_frame() == answer_to(5)
    assert any("holds memory" in line for line in world.lines)


def test_logins_that_never_end_leave_memory_to_clients(make):
    """They sent a byte now and then, so they never stalled: requests waited as long as they liked."""
    world = make(buffered_bytes_max=1_000_000, stall_ms=60_000)
    logins = socket.create_server(("127.0.0.1", 0))
    world.reactor.add_listener(logins.fileno(), "SASL_PLAINTEXT", phase=0)
    tiny = world.connect(to=logins)
    tiny.send(struct.pack(">i", 100) + bytes(50))
    for _ in range(6):
        client = world.connect(to=logins)
        with contextlib.suppress(BlockingIOError):
            client.socket.send(struct.pack(">i", 500_000) + bytes(400_000))
        world.poll()
    honest = world.connect()
    blob = request(5, body=bytes(400_000))  # more than is served without memory of its own
    honest.send(struct.pack(">i", len(blob)) + blob)
    assert honest.receive_frame() == answer_to(5)
    assert any("an unfinished login holds memory" in line for line in world.lines)
    tiny.send(request(6) + bytes(50 - len(request(6))))
    assert not tiny.pull()  # it holds next to nothing, and is not closed
    logins.close()


def test_small_requests_are_served_while_memory_is_short(make):
    """Half a request each of a few clients used to stop the others for up to 10 s."""
    world = make(buffered_bytes_max=1_000_000, stall_ms=60_000)
    for _ in range(6):
        client = world.connect()
        client.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.socket.send(struct.pack(">i", 10_000_000) + bytes(400_000))
        world.poll()
    assert world.reactor.stats()["buffered_bytes"] > 1_000_000
    others = [world.connect() for _ in range(3)]
    for number in range(50):
        for other in others:
            other.send_frame(request(number, body=bytes(number * 100)))
        for other in others:
            assert other.receive_frame() == answer_to(number)
    several, halves = world.connect(), world.connect()
    several.send(b"".join(struct.pack(">i", len(request(9))) + request(9) for _ in range(20)))
    for _ in range(20):
        assert several.receive_frame() == answer_to(9)
    blob = struct.pack(">i", len(request(8))) + request(8)
    for part in (blob[:2], blob[2:7], blob[7:], blob + blob[:5], blob[5:]):  # frames in pieces
        halves.send(part)
        world.poll()
    for _ in range(3):
        assert halves.receive_frame() == answer_to(8)
    halves.send(struct.pack(">i", -5))
    halves.wait_closed()
    assert world.reactor.stats()["buffered_bytes"] < 3_000_000
    assert not any("holds memory" in line for line in world.lines)


def test_memory_that_comes_back_wakes_what_was_left_in_the_socket(make):
    world = make(buffered_bytes_max=1_000_000, stall_ms=60_000)
    holders = []
    for _ in range(6):
        client = world.connect()
        client.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.socket.send(struct.pack(">i", 10_000_000) + bytes(400_000))
        world.poll()
        holders.append(client)
    large = world.connect()
    blob = request(3, body=bytes(400_000))  # more than is looked at while memory is short
    large.send(struct.pack(">i", len(blob)) + blob)
    world.poll()
    for holder in holders:
        holder.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        holder.socket.close()  # a reset
    world.poll()
    assert large.receive_frame() == answer_to(3)


def test_a_claimed_size_costs_nothing_until_its_bytes_come(world):
    for _ in range(50):
        world.connect().send(struct.pack(">i", 100_000_000) + b"\0" * 100)
    world.poll()
    assert world.reactor.stats()["buffered_bytes"] <= 50 * 64 * 1024


# -- limits ------------------------------------------------------------------------------------------------


def test_connections_beyond_the_limit_wait_in_the_backlog(make):
    world = make(connections_max=2)
    first, second = world.connect(), world.connect()
    third = world.connect()
    third.send_frame(request(3))
    world.poll()
    assert world.reactor.stats()["connections"] == 2
    assert any("max.connections" in line for line in world.lines)
    first.socket.close()
    world.poll()
    assert third.receive_frame() == answer_to(3)
    second.send_frame(request(2))
    assert second.receive_frame() == answer_to(2)


def test_brokers_are_served_above_the_limit_in_place_of_the_client_that_is_silent_for_longest(make):
    """The listener between brokers had to wait as well: its clients kept brokers from replicating."""
    world = make(connections_max=3)
    brokers = socket.create_server(("127.0.0.1", 0))
    world.reactor.add_listener(brokers.fileno(), "BROKERS")
    world.reactor.protect_listener("BROKERS")
    first, second, third = (world.connect() for _ in range(3))
    world.connect()  # the listener for clients rests
    first.send_frame(request(1))
    assert first.receive_frame() == answer_to(1)
    for number, gone in enumerate((second, third), 2):
        broker = world.connect(to=brokers)
        broker.send_frame(request(number))
        assert broker.receive_frame() == answer_to(number)
        gone.wait_closed()
        assert world.reactor.stats()["connections"] == 3
    first.send_frame(request(4))
    assert first.receive_frame() == answer_to(4)
    for _ in range(2):  # brokers are never closed for others
        world.connect(to=brokers)
    first.wait_closed()
    assert world.reactor.stats()["connections"] == 4
    brokers.close()


def test_a_limit_that_is_lowered_holds_for_connections_that_are_there(make):
    world = make()
    clients = [world.connect() for _ in range(5)]
    clients[0].send_frame(request(1))
    assert clients[0].receive_frame() == answer_to(1)
    world.reactor.set_limits(connections_max=2)
    world.reactor.set_limits(connections_max=2)  # another key was changed
    for client in clients[1:4]:  # silent for longest
        client.wait_closed()
    for number, client in enumerate((clients[0], clients[4]), 2):
        client.send_frame(request(number))
        assert client.receive_frame() == answer_to(number)
    assert world.reactor.stats()["connections"] == 2
    world.reactor.set_limits(connections_max=3)
    world.connect()
    world.poll()
    assert world.reactor.stats()["connections"] == 3


def test_a_listener_that_cannot_accept_rests_and_the_loop_does_not_spin(make):
    """Any error but a shortage left it in the epoll set, where it was readable again at once."""
    world = make()
    world.connect().send_frame(request(1))
    world.poll()
    world.listener.shutdown(socket.SHUT_RDWR)  # accept: EINVAL, and readable for ever
    rounds, begun = 0, time.monotonic()
    while time.monotonic() - begun < 1:
        rounds += bool(readable([world.reactor.fileno()], 0.01))
        world.reactor.poll()
    said = [line for line in world.lines if "accepting a connection failed: Invalid argument" in line]
    assert len(said) == 1 and "wait in the backlog" in said[0]
    assert rounds < 100


def test_connections_per_address_are_limited(make):
    world = make(connections_max_per_ip=2)
    kept = [world.connect(), world.connect()]
    refused = world.connect()
    refused.wait_closed()
    assert world.reactor.stats()["refused"] == 1
    kept[0].socket.close()
    world.poll()
    again = world.connect()
    again.send_frame(request(1))
    assert again.receive_frame() == answer_to(1)


def test_an_override_of_the_limit_per_address_wins(make):
    world = make(connections_max_per_ip=0, connections_max_per_ip_overrides={"127.0.0.1": 1})
    world.connect().send_frame(request(1))
    world.connect().wait_closed()
    assert world.reactor.stats()["connections"] == 1


def test_a_limit_per_host_name_is_refused_instead_of_looked_up(make, monkeypatch):
    """Before: a look-up on the loop, which may take seconds. `server/host_limits` gives addresses only."""
    looked_up = []
    monkeypatch.setattr(socket, "gethostbyname", lambda name: looked_up.append(name) or "127.0.0.1")
    world = make()
    with pytest.raises(ValueError, match="'localhost' is not an IPv4 or IPv6 address"):
        world.reactor.set_limits(connections_max_per_ip_overrides={"localhost": 0})
    assert looked_up == []
    world.connect().send_frame(request(1))
    assert world.reactor.stats()["connections"] == 1


def test_idle_connections_go_the_longest_idle_first(make):
    world = make(connections_max_idle_ms=300)
    first, second = world.connect(), world.connect()
    for _ in range(4):  # the first stays busy
        time.sleep(0.1)
        first.send_frame(request(1))
        first.receive_frame()
    world.poll_until(lambda: world.reactor.stats()["expired_idle"] == 1)
    with pytest.raises(Closed):
        second.pull()
    first.send_frame(request(2))
    assert first.receive_frame() == answer_to(2)
    world.poll_until(lambda: world.reactor.stats()["expired_idle"] == 2)  # by the reactor's own timer
    assert all("connections.max.idle.ms" in line for line in world.lines)


def test_thousands_of_idle_connections_cost_little_and_are_served(world):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = 200 + len(os.listdir("/proc/self/fd"))
    count = min(2000, (hard - others) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count + others), hard))
    try:
        before = resident_bytes()
        clients = [world.connect() for _ in range(count)]
        for client in clients:
            client.send_frame(request(1))
        for client in clients:
            assert client.receive_frame() == answer_to(1)
        world.calls.clear()
        per_connection = (resident_bytes() - before) / count
        assert world.reactor.stats()["connections"] == count
        assert per_connection < 8192  # both ends, in this one process
        clients[-1].send_frame(request(2))
        assert clients[-1].receive_frame() == answer_to(2)
        for client in clients:
            client.socket.close()
        world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_socket_buffer_sizes_and_no_delay_apply(make):
    world = make(send_buffer_bytes=50_000, receive_buffer_bytes=60_000)
    with served_socket(world.connect()) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def served_socket(client):
    """The reactor's end of the client's connection."""
    wanted = client.socket.getpeername(), client.socket.getsockname()
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_socket():
            continue
        sock = socket.socket(fileno=os.dup(int(path.name)))
        try:
            if (sock.getsockname(), sock.getpeername()) == wanted:
                return sock
        except OSError:  # it listens
            pass
        sock.close()
    raise AssertionError("the reactor has no such connection")


def congestion_control(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_peers_of_this_machine_keep_the_listeners_congestion_control(world):
    """What is elsewhere has the machine's default; here an address of this machine that is neither loopback
    nor the one that is called stands for that.
    """
    with socket.socket() as fresh:
        default = congestion_control(fresh)
    addresses = [
        a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET
    ]
    far = next((address for address in addresses if not address.startswith("127.")), None)
    if far is None:
        pytest.skip("this machine has no address but loopback")
    names = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    for name in names:  # what is not Reno was somebody's choice
        world.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        elsewhere = default if name == "reno" else name
        for source, expected in (("127.0.0.1", name), ("127.9.9.9", name), (far, elsewhere)):
            client = world.connect(source=source)
            client.send_frame(request(1))
            assert client.receive_frame() == answer_to(1)
            with served_socket(client) as sock:
                assert congestion_control(sock) == expected, (name, source)
    world.reactor.remove_listener(world.listener.fileno())
    world.listener.close()
    world.listener = socket.create_server((far, 0))
    world.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    world.reactor.add_listener(world.listener.fileno(), "PLAINTEXT")
    with served_socket(world.connect()) as sock:
        assert congestion_control(sock) == "reno"


# -- ends --------------------------------------------------------------------------------------------------


def test_a_half_closed_client_still_gets_its_answers(world):
    pending = []
    world.answer = lambda *call: pending.append(call)
    client = world.connect()
    client.send_frame(request(1))
    client.socket.shutdown(socket.SHUT_WR)
    world.poll()
    connection, request_id, frame = pending[0]
    connection.respond(request_id, frame[4:8])
    assert client.receive_frame() == struct.pack(">i", 1)
    client.wait_closed()
    assert world.reactor.stats()["connections"] == 0


def test_a_client_that_left_ends_its_long_poll(world):
    world.partition("t")
    client = world.connect()
    client.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    assert world.reactor.next_deadline_ms() is not None
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    world.connect().produce("t", batch())  # wakes nobody


def test_a_connection_reset_in_the_middle_of_an_answer_is_no_trouble(world):
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, bytes(5_000_000))
    client = world.connect()
    client.send_frame(request(1))
    world.poll()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)


def test_a_handler_may_close_its_connection(world):
    world.answer = lambda connection, request_id, frame: connection.close("because")
    client = world.connect()
    client.send(struct.pack(">i", len(request(1))) * 1 + request(1) + struct.pack(">i", 10) + request(2)[:10])
    client.wait_closed()
    assert "because" in world.lines[-1]
    assert len(world.calls) == 1


def test_an_exception_in_a_callback_goes_to_the_server(world):
    def answer(connection, request_id, frame):
        raise RuntimeError("broken handler")

    world.answer = answer
    world.connect().send_frame(request(1))
    world.poll()
    assert [str(error) for error in world.fatal] == ["broken handler"]
    world.fatal.clear()


def test_close_ends_everything(make):
    world = make()
    world.partition("t", follows_end=False)
    clients = [world.connect() for _ in range(3)]
    clients[0].send_produce("t", batch())
    clients[1].send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    world.reactor.close()
    for client in clients:
        with pytest.raises(Closed):
            while True:
                client.pull()
    assert world.reactor.stats()["connections"] == 0


def test_a_table_serves_one_reactor(world):
    with pytest.raises(ValueError, match="has a reactor"):
        Reactor(world.table, None)


# -- connections that Python feeds (TLS), and phases -------------------------------------------------------


def test_a_fed_connection_is_served_like_a_socket(world):
    world.partition("t")
    world.connect().produce("t", batch(size=40_000))
    written = []
    connection = world.reactor.attach(written.append, "SSL", peer=("10.1.2.3", 55))
    assert (connection.peer_host, connection.peer_port, connection.listener) == ("10.1.2.3", 55, "SSL")
    frame = client_bytes(world, fetch([("t", 0, 0)]), 12)
    stream = struct.pack(">i", len(frame)) + frame + struct.pack(">i", len(request(8))) + request(8)
    for byte in stream:
        connection.feed(bytes([byte]))
        world.reactor.poll()
    answers = b"".join(written)
    (size,) = struct.unpack_from(">i", answers)
    assert size > 40_000
    assert answers[4 + size :] == struct.pack(">i", 5) + answer_to(8)
    connection.close()
    assert written[-1] is None


def test_a_fed_connection_that_is_paused_serves_nothing(world):
    written = []
    connection = world.reactor.attach(written.append, "SSL")
    connection.pause_writing()
    connection.feed(struct.pack(">i", len(request(8))) + request(8))
    world.poll()
    assert (written, connection.buffered) == ([], len(request(8)) + 4)
    connection.resume_writing()
    world.poll()
    assert written == [struct.pack(">i", 5) + answer_to(8)]


def test_raw_tokens_pass_while_authenticating(world):
    connection = world.reactor.attach(lambda data: None, "SASL", phase=0)
    produce_frame = client_bytes(world, produce("t", {0: batch()}), 9)
    connection.phase = 1
    connection.feed(struct.pack(">i", 3) + b"\0ab")
    world.poll()
    assert world.calls[-1][2] == b"\0ab"
    connection.phase = 0
    connection.feed(struct.pack(">i", len(produce_frame)) + produce_frame)
    world.poll()
    assert connection.closed
    assert "before authentication" in world.lines[-1]


def test_an_adopted_socket_is_served(world):
    ours, theirs = socket.socketpair()
    world.reactor.adopt(theirs.detach(), "HANDED")
    ours.send(struct.pack(">i", len(request(4))) + request(4))
    world.poll()
    assert ours.recv(100) == struct.pack(">i", 5) + answer_to(4)
    ours.close()
