"""Fetch v0 to v3 in C: what happens around the conversion of what was read."""

import gc
import time
import weakref
from itertools import pairwise

import pytest
from reactor_world import World, batch, fetch

from kafkad.log.down_conversion import DownConversion
from kafkad.protocol import errors
from kafkad.protocol.legacy_records import read_entries


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    world.reactor.serve_native(1, 0, 18)
    yield world
    world.close()


class Broken(DownConversion):
    """Fails at its second step."""

    def step(self):
        if self.size < 0:
            raise ValueError("broken")
        self.size = -1
        return 0


class Slow(DownConversion):
    """More than the loop does itself."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ahead = 1 << 30


def log_with(world, monkeypatch, kind):
    log = world.log("t")
    monkeypatch.setattr(type(log), "down_conversion", kind)
    client = world.connect()
    for _ in range(3):
        assert client.produce("t", batch(2, 100)).error_code == 0
    return client


def told(client, version, offset=0):
    (part,) = client.fetch([("t", 0, offset)], version=version).responses[0].partitions
    return part.error_code, part.high_watermark, [each.offset for each in read_entries(part.records)]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("kind", [DownConversion, Slow])
def test_on_the_loop_and_in_a_thread(world, monkeypatch, version, kind):
    client = log_with(world, monkeypatch, kind)
    jobs = [0]
    for _ in range(10):  # a thread that is stopped for a millisecond makes a job of a little work, too
        assert told(client, version) == (0, 6, [0, 1, 2, 3, 4, 5])
        assert told(client, version, 3) == (0, 6, [3, 4, 5])
        jobs.append(world.reactor.stats()["unpack_jobs"])
    made = {after - before for before, after in pairwise(jobs)}
    assert made == {2} if kind is Slow else 0 in made


def test_what_a_thread_converted_is_freed_without_a_collection(world, monkeypatch):
    made: list[weakref.ref[Slow]] = []

    class Noted(Slow):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    client = log_with(world, monkeypatch, Noted)
    gc.disable()
    try:
        for _ in range(3):
            assert told(client, 2) == (0, 6, [0, 1, 2, 3, 4, 5])
        deadline = time.monotonic() + 30
        while any(each() is not None for each in made):  # a thread lets go of its job last
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        gc.enable()
    assert len(made) == 3


def test_the_memory_of_a_long_answer_is_kept_for_the_next_one_and_given_back(world):
    world.log("t")
    client = world.connect()
    for _ in range(12):
        assert client.produce("t", batch(1, 60_000)).error_code == 0
    for _ in range(2):
        assert told(client, 2) == (0, 12, list(range(12)))
        assert world.reactor.stats()["pooled_bytes"] > 1 << 20
    world.poll_until(lambda: world.reactor.stats()["pooled_bytes"] == 0)


def refuse(*arguments):
    raise MemoryError


@pytest.mark.parametrize("kind", [Broken, refuse])
def test_a_failure_is_an_error_and_sends_no_batch_v2(world, monkeypatch, kind):
    client = log_with(world, monkeypatch, staticmethod(kind))
    for version in range(4):
        assert told(client, version) == (errors.UNKNOWN_SERVER_ERROR, -1, [])
    assert client.fetch([("t", 0, 0)], version=4).responses[0].partitions[0].records


def test_a_reactor_that_closes_meanwhile(world, monkeypatch):
    client = log_with(world, monkeypatch, Slow)
    for version in range(4):
        client.send_request(fetch([("t", 0, 0)]), version)
    world.poll()
