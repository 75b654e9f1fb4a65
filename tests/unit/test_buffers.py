"""Arenas and buffers in them: no two overlap, and what is free costs no memory. Limits over all workers."""

import itertools
import os
import random
import select
import signal
import socket
import struct

import pytest
from reactor_world import World

from kafkad._native.mailbox import Mailboxes

PAGE = 4096
HALF = 1 << 33


@pytest.fixture
def mailboxes():
    mailboxes = Mailboxes(2)
    mailboxes.enter(0)
    return mailboxes


@pytest.fixture
def world(tmp_path, mailboxes):
    world = World(str(tmp_path), mailboxes=mailboxes)
    yield world
    world.close()


# -- the allocator


def test_blocks_never_overlap_and_all_of_it_is_free_again_at_the_end(mailboxes):
    chance = random.Random(4)
    live = {}  # at -> size
    for _ in range(20_000):
        if live and chance.random() < 0.5:
            at = chance.choice(list(live))
            mailboxes.give(at, live.pop(at))
            continue
        size = int(2 ** chance.uniform(4, 27))
        at = mailboxes.allocate(size)
        if sum(live.values()) + size < HALF // 16:
            assert at is not None
        if at is None:
            continue
        assert at % PAGE == 0
        assert mailboxes.arena_half() * HALF <= at <= (mailboxes.arena_half() + 1) * HALF - size
        live[at] = size
        if len(live) % 50 == 0:
            blocks = sorted(live.items())
            assert all(
                start + length <= following for (start, length), (following, _) in itertools.pairwise(blocks)
            )
    for at, size in live.items():
        mailboxes.give(at, size)
    whole = mailboxes.allocate(HALF)  # merged into one
    assert whole == mailboxes.arena_half() * HALF
    assert mailboxes.allocate(1) is None
    mailboxes.give(whole, HALF)
    assert mailboxes.allocate(1) == whole


def test_what_is_given_back_has_no_memory(mailboxes):
    blocks = [(mailboxes.allocate(size), size) for size in (100, PAGE, 70_000, 1 << 20)]
    view = mailboxes.arena_view(0)
    for at, size in blocks:
        view[at : at + size] = bytes([1]) * size
    assert mailboxes.arena_bytes(0) == sum(-(-size // PAGE) * PAGE for _, size in blocks)
    for at, size in blocks:
        mailboxes.give(at, size)
    assert mailboxes.arena_bytes(0) == 0


# -- buffers of connections


def half_a_frame(size):
    return struct.pack(">i", size) + bytes(size // 2)


def test_partial_frames_lie_in_the_arena_and_leave_it(world, mailboxes):
    before = mailboxes.arena_bytes(0)
    clients = [world.connect() for _ in range(4)]
    for client in clients:
        client.send(half_a_frame(20_000_000))
    world.poll_until(lambda: world.reactor.stats()["bytes_in"] == 4 * 10_000_004)
    assert world.reactor.stats()["buffered_bytes"] >= 4 * 10_000_004
    assert mailboxes.arena_bytes(0) - before >= 4 * 10_000_004
    for client in clients:
        client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
    stats = world.reactor.stats()
    assert stats["buffered_bytes"] == 0
    assert mailboxes.arena_bytes(0) <= before + stats["pooled_bytes"] + PAGE * 64
    world.poll_until(lambda: world.reactor.stats()["pooled_bytes"] == 0)  # the pool goes when nothing happens
    assert mailboxes.arena_bytes(0) <= before + 300_000  # the area that sockets are read into


# -- several workers


class Forked:
    """Another worker: a forked process with a reactor of its own, polled until it is killed."""

    def __init__(self, directory, mailboxes, me, **limits):
        read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.alarm(60)
                mailboxes.enter(me)
                world = World(directory, mailboxes=mailboxes, **limits)
                os.write(write_end, struct.pack(">i", world.listener.getsockname()[1]))
                while True:
                    select.select([world.reactor.fileno()], [], [], 1)
                    world.reactor.poll()
            finally:
                os._exit(1)
        os.close(write_end)
        (self.port,) = struct.unpack(">i", os.read(read_end, 4))
        os.close(read_end)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port))

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def ask(sock):
    frame = struct.pack(">hhih", 18, 0, 5, 1) + b"m"
    sock.sendall(struct.pack(">i", len(frame)) + frame)


def has_answer(sock, seconds):
    if not select.select([sock], [], [], seconds)[0]:
        return False
    assert sock.recv(100) == struct.pack(">ii", 5, 5) + b"!"
    return True


def test_max_connections_counts_those_of_all_workers(tmp_path):
    mailboxes = Mailboxes(2)
    (tmp_path / "other").mkdir()
    other = Forked(str(tmp_path / "other"), mailboxes, 1, connections_max=3)
    try:
        mailboxes.enter(0)
        world = World(str(tmp_path), mailboxes=mailboxes, connections_max=3)
        mine = [world.connect(), world.connect()]
        theirs = other.connect()
        ask(theirs)
        assert has_answer(theirs, 10)
        late = other.connect()
        ask(late)
        assert not has_answer(late, 0.3)  # it waits in the backlog
        mine[0].socket.close()
        world.poll_until(lambda: world.reactor.stats()["connections"] == 1)
        assert has_answer(late, 10)  # there is room, in another worker
        for sock in (theirs, late):
            sock.close()
        world.close()
    finally:
        other.kill()
