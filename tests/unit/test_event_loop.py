"""The event loop that sleeps in the reactor: what the reactor serves costs asyncio nothing, and asyncio
misses nothing."""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import struct
import threading
import time

import pytest
from reactor_world import World, batch, produce

from kafkad._native.log.group_commit import GroupCommit
from kafkad.protocol import codec
from kafkad.server.event_loop import EventLoop

SECONDS = 10


class Running:
    """A world whose reactor an event loop sleeps in. Tests are coroutines on it; clients block in threads."""

    def __init__(self, directory, **limits):
        self.loop = EventLoop()
        self.world = World(directory, **limits)
        self.loop.join(self.world.reactor)

    def run(self, test):
        return self.loop.run_until_complete(asyncio.wait_for(test, SECONDS))

    async def client(self, work):
        """`work(socket)` in a thread, with a connection."""

        def all_of_it():
            with socket.create_connection(self.world.listener.getsockname(), timeout=SECONDS) as s:
                return work(s)

        return await asyncio.to_thread(all_of_it)

    def close(self):
        self.loop.leave()
        self.world.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def running(tmp_path):
    it = Running(str(tmp_path))
    yield it
    it.close()


def ask(s, frame):
    s.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", s.recv(4, socket.MSG_WAITALL))
    return s.recv(size, socket.MSG_WAITALL)


def hello(correlation_id):
    return struct.pack(">hhih", 18, 0, correlation_id, 0)


def produced(count, *, acks=-1):
    def work(s):
        for number in range(count):
            frame = codec.encode_request(produce("t", {0: batch()}, acks, 30_000), 9, number, "test")
            answer = ask(s, frame)
            assert struct.unpack_from(">i", answer) == (number,)

    return work


def test_native_requests_are_served_without_a_turn_of_asyncio(running):
    running.world.partition("t")
    before = running.world.reactor.stats()["polls"]
    running.run(running.client(produced(300)))
    after = running.world.reactor.stats()
    assert after["requests"] == {0: 300}
    assert after["polls"] - before < 30


def test_what_a_request_leaves_to_do_is_done_at_once(running):
    def later(connection, request_id, frame):
        running.loop.call_soon(lambda: connection.respond(request_id, frame[4:8], b"!"))

    running.world.answer = later
    answers = running.run(running.client(lambda s: [ask(s, hello(n)) for n in range(20)]))
    assert answers == [struct.pack(">i", n) + b"!" for n in range(20)]


def test_a_timer_that_a_request_sets_is_kept(running):
    def later(connection, request_id, frame):
        running.loop.call_later(0.02, lambda: connection.respond(request_id, frame[4:8], b"!"))

    running.world.answer = later
    answers = running.run(running.client(lambda s: [ask(s, hello(n)) for n in range(5)]))
    assert len(answers) == 5


def test_timers_fire_in_time_whatever_the_reactor_serves(running):
    running.world.partition("t")

    async def test():
        load = asyncio.create_task(running.client(produced(2000)))
        late = []
        while not load.done():
            begun = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - begun)
        await load
        return late

    late = running.run(test())
    assert min(late) >= 0.005 and sorted(late)[len(late) // 2] < 0.5


def test_descriptors_and_threads_wake_the_loop(running):
    near, far = socket.socketpair()

    async def test():
        readable = running.loop.create_future()
        running.loop.add_reader(near.fileno(), lambda: readable.done() or readable.set_result(near.recv(10)))
        threading.Timer(0.02, far.send, [b"bytes"]).start()
        assert await readable == b"bytes"
        running.loop.remove_reader(near.fileno())
        called = running.loop.create_future()
        threading.Timer(0.02, running.loop.call_soon_threadsafe, [called.set_result, 1]).start()
        assert await called == 1

    with near, far:
        running.run(test())


@pytest.mark.parametrize("inside", [False, True], ids=["while it sleeps", "while it serves"])
def test_a_signal_wakes_the_loop_and_its_handler_may_stop_it(running, inside):
    came = []

    def handler(number, _frame):
        came.append(number)
        running.loop.stop()

    def kill(connection, request_id, frame):
        os.kill(os.getpid(), signal.SIGUSR2)
        connection.respond(request_id, frame[4:8], b"!")

    running.world.answer = kill
    before = signal.signal(signal.SIGUSR2, handler)
    signal.siginterrupt(signal.SIGUSR2, False)
    address = running.world.listener.getsockname()
    try:
        if inside:
            s = socket.create_connection(address)
            s.sendall(struct.pack(">i", 10) + hello(1))
        else:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR2]).start()
        running.loop.run_forever()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert came == [signal.SIGUSR2]
    if inside:
        s.close()


def test_a_request_may_stop_the_loop(running):
    running.world.answer = lambda connection, request_id, frame: running.loop.stop()
    with socket.create_connection(running.world.listener.getsockname()) as s:
        s.sendall(struct.pack(">i", 10) + hello(1))
        running.loop.run_forever()
    assert len(running.world.calls) == 1


def test_idle_connections_are_closed_in_time(tmp_path):
    running = Running(str(tmp_path), connections_max_idle_ms=50)
    try:
        assert running.run(running.client(lambda s: s.recv(1))) == b""
    finally:
        running.close()


def test_what_a_round_leaves_over_needs_no_other_event(running):
    """A wake-up at the end of a round was forgotten before the sleep."""
    address = running.world.listener.getsockname()

    def lower(_):
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(socket.create_connection(address, 5)) for _ in range(9)]
            for other in others:
                other.sendall(struct.pack(">i", 10) + hello(1))
                assert other.recv(100)
            limit = functools.partial(running.world.reactor.set_limits, connections_max=1)
            running.loop.call_soon_threadsafe(limit)
            began = time.monotonic()
            assert [other.recv(1) for other in others[:-1]] == [b""] * 8
            return time.monotonic() - began

    assert running.run(running.client(lower)) < 1.5


def test_what_is_synced_is_published_by_the_reactor(running):
    partition = running.world.partition("t")
    partition.configure(
        max_message_bytes=1 << 20, compression_type=-1, log_append_time=False, before_max_ms=1 << 60,
        after_max_ms=1 << 60, compacted=False, segment_bytes=1 << 30, segment_age_max_ms=1 << 60,
        index_interval_bytes=4096, index_size_max=1 << 20, flush_interval=1,
    )  # fmt: skip
    group = GroupCommit()
    partition.commit_with(group)
    partition.flush_by_log = False  # no small files
    running.world.reactor.join_commits(group)
    try:
        before = running.world.reactor.stats()["polls"]
        running.run(running.client(produced(100)))
        assert running.world.reactor.stats()["polls"] - before < 30
        assert (group.syncs, partition.flushed_offset) == (100, 100)
    finally:
        running.loop.leave()
        running.world.reactor.close()
        group.close()
