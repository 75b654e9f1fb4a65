"""Arenas and buffers in them: no two overlap, and what is free costs no memory."""

import itertools
import random
import struct

import pytest
from reactor_world import World

from kafkad._native.shared.mailbox import Mailboxes

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
