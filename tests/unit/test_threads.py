"""A worker's threads: there from the start, and no lane waits for another."""

import asyncio
import os
import shutil
import threading

import pytest

from kafkad.log import removal
from kafkad.log.removal import Removals
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.threads import LANES, Threads
from tests.unit.log_world import LogWorld, ManualScheduler, batch, topic_config

WAIT_S = 20


def refuse(*_, **__):
    raise RuntimeError("can't start new thread")


def test_after_the_start_no_thread_is_made(tmp_path, monkeypatch):
    """HUNTS W7: the first segment roll, or the first flush, ended the broker."""

    async def scenario() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        scheduler.begin()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        world = LogWorld(tmp_path, topic_config(segment_bytes=200, flush_messages=1), scheduler=scheduler)
        flushed = asyncio.get_running_loop().create_future()
        for _ in range(5):
            world.append(batch(size=100))
        assert len(world.log.segments) == 5
        world.log.await_high_watermark(5, flushed.set_result)
        assert await asyncio.wait_for(flushed, WAIT_S) is None
        scheduler.close()

    asyncio.run(scenario())


def test_a_worker_that_gets_no_threads_says_so_at_the_start(monkeypatch):
    """HUNTS W7."""
    before = threading.active_count()
    start, left = threading.Thread.start, [3]

    def some(thread):
        if not left[0]:
            refuse()
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(OSError, match="ulimit -u"):
        Threads().begin()
    assert threading.active_count() == before


def test_a_flush_does_not_wait_for_deletions_or_checkpoints():
    """REVIEW D8: one pool of four threads did all of it."""
    threads = Threads()
    threads.begin()
    gate, done = threading.Event(), threading.Event()
    try:
        for lane in LANES:
            if lane != "flush":
                for _ in range(50):
                    threads.submit(lane, lambda: gate.wait(WAIT_S), lambda error: None)
        threads.submit("flush", lambda: None, lambda error: done.set())
        assert done.wait(WAIT_S)
    finally:
        gate.set()
        threads.close()


def test_close_waits_for_what_was_submitted_and_trouble_is_told():
    threads = Threads({"work": 1})
    threads.begin()
    told: list[object] = []
    threads.submit("work", refuse, told.append)
    threads.submit("work", lambda: None, told.append)
    threads.close()
    assert isinstance(told[0], RuntimeError) and told[1:] == [None]


def test_a_thousand_removals_are_one_job_and_one_fsync(tmp_path, monkeypatch):
    """REVIEW D8: a job and an fsync of the data directory for each partition."""
    synced: list[str] = []
    monkeypatch.setattr(removal, "sync_directory", synced.append)
    scheduler, removals = ManualScheduler(), Removals()
    for number in range(1_000):
        path = tmp_path / f"t-{number}.0-delete"
        path.mkdir()
        (path / "0.log").write_bytes(b"x")
        removals.later(scheduler, 100, str(path))
    scheduler.run(99)
    assert scheduler.threads == []
    scheduler.run(1)
    assert len(scheduler.threads) == 1
    scheduler.work()
    assert os.listdir(tmp_path) == []
    assert synced == [str(tmp_path)]
    (tmp_path / "again").mkdir()
    removals.later(scheduler, 0, str(tmp_path / "again"))
    scheduler.settle()
    assert os.listdir(tmp_path) == []


def test_a_removal_that_fails_does_not_end_the_others(tmp_path, monkeypatch):
    rmtree = shutil.rmtree

    def stuck(path):
        if path.endswith("1"):
            raise PermissionError(13, "not yours", path)
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", stuck)
    scheduler, removals = ManualScheduler(), Removals()
    for number in range(3):
        (tmp_path / f"t{number}").mkdir()
        removals.later(scheduler, 0, str(tmp_path / f"t{number}"))
    scheduler.settle()
    assert os.listdir(tmp_path) == ["t1"]
