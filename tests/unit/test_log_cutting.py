"""Truncations whose long part runs in a thread (log.cutting): what the loop does, and what comes between."""

import asyncio
import errno
import os
import time

import pytest

from kafkad.log import cutting
from kafkad.log.log import Log
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR
from kafkad.server.scheduler import LoopScheduler
from tests.unit.log_world import TOPIC_ID, LogWorld, batch, idempotent, topic_config
from tests.unit.test_partition_reader import Readable

BIG = 1 << 20  # bytes of a record


class Killed(BaseException):
    """The process ends here."""


def follower(tmp_path, unseen: bool = False, **config) -> LogWorld:
    """A follower with ten batches. Its readers got everything, so nothing is cut in place; or nothing."""
    world = LogWorld(tmp_path, topic_config(**config))
    world.log.native.follows_end = not unseen
    for number in range(10):
        world.append(idempotent(number))
    world.scheduler.settle()
    world.log.follow(1, 2)
    return world


def stored(world: LogWorld) -> list[bytes]:
    return [bytes(each) for each in world.log.batches(0, world.log.end_offset)]


def begin(world: LogWorld, offset: int) -> tuple[cutting.Cutting, list]:
    told: list = []
    under_way = world.log.begin_truncation(offset, told.append)
    world.scheduler.run()
    return under_way, told


def left(world: LogWorld) -> list[str]:
    return [name for name in world.names() if cutting.CUT in name or name.endswith(".deleted")]


def test_the_loop_neither_copies_nor_walks_nor_syncs(tmp_path, monkeypatch):
    """A segment of 277 MB held up the loop for 3.2 s."""
    world = follower(tmp_path, segment_bytes=500)
    before, calls = stored(world), []

    def noting(name, call):
        return lambda *args, **named: calls.append(name) or call(*args, **named)

    for name in ("copy_file_range", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    for name in ("scan_segment", "load_producers"):
        monkeypatch.setattr(cutting, name, noting(name, getattr(cutting, name)))
    _, told = begin(world, 4)
    assert calls == [] and told == []
    assert stored(world) == before  # readers find it as it was
    [(work, done)] = world.scheduler.threads
    world.scheduler.threads.clear()
    work()
    assert {"copy_file_range", "fdatasync", "scan_segment", "load_producers"} == set(calls)
    assert stored(world) == before
    calls.clear()
    done(None)
    assert (calls, told) == ([], [None])
    assert stored(world) == before[:4]
    assert [row[2] for row in world.log.active_producers()] == [3]
    world.scheduler.settle()
    assert left(world) == []
    world.log.set_leader_epoch(2)
    assert world.append(idempotent(4)) == 4
    world.restart(lead=False)
    assert world.log.end_offset == 5


def test_a_large_segment_is_cut_while_the_loop_turns(tmp_path):
    """Whatever the machine does beside: the loop spends no time on 256 MB that are copied and synced."""
    size, told = 256, []

    async def cut() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop)
        scheduler.begin()
        log = Log.open(
            str(tmp_path / "t-0"), "t", 0, topic_config(max_message_bytes=2 * BIG), now_ms=1_000, clean=False,
            scheduler=scheduler, topic_id=TOPIC_ID,
        )  # fmt: skip
        log.set_leader_epoch(0)
        data = bytes(batch(size=BIG))
        for _ in range(size):
            log.append(bytearray(data), 1_000)
        log.follow(1, 2)
        done = asyncio.Event()
        longest, begun = 0.0, time.thread_time()
        log.begin_truncation(size - 1, lambda refusal: told.append(refusal) or done.set())
        while not done.is_set():
            turn = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - turn)
        assert (told, log.end_offset) == ([None], size - 1)
        begun, before = time.thread_time(), log.size
        log.truncate_to(size - 2)  # the same at once
        whole = time.thread_time() - begun
        assert log.size < before
        log.close()
        scheduler.close()
        return longest, whole

    longest, whole = asyncio.run(cut())
    assert longest < 0.02 and longest < whole / 4


@pytest.mark.parametrize("when", ["before", "in the thread", "after"])
def test_a_truncation_that_is_cancelled_leaves_the_log_as_it_was(tmp_path, monkeypatch, when):
    """The broker leads the partition now, under the next epoch."""
    world = follower(tmp_path)
    before = stored(world)
    if when == "before":
        told: list = []
        under_way = world.log.begin_truncation(4, told.append)
        under_way.cancel()
        world.scheduler.run()
    else:
        under_way, told = begin(world, 4)
        if when == "in the thread":
            scan = cutting.scan_segment
            monkeypatch.setattr(
                cutting, "scan_segment", lambda *args, **named: under_way.cancel() or scan(*args, **named)
            )
            world.scheduler.work()
        else:
            [(work, done)] = world.scheduler.threads
            world.scheduler.threads.clear()
            work()
            under_way.cancel()
            done(None)
    assert when == "after" or left(world) == []
    world.log.set_leader_epoch(2)
    assert world.append(idempotent(10)) == 10
    world.scheduler.settle()
    assert (told, left(world)) == ([], [])
    assert stored(world)[:10] == before


@pytest.mark.parametrize("change", ["truncated", "truncated below", "emptied", "start moved", "read"])
def test_a_log_that_has_changed_meanwhile_is_planned_anew(tmp_path, change):
    world = follower(tmp_path, segment_bytes=500, file_delete_delay_ms=0)
    if change == "read":  # nobody had got what is above HW
        world = follower(tmp_path / "unseen", unseen=True)
    before = stored(world)
    _, told = begin(world, 5)
    [(work, done)] = world.scheduler.threads
    world.scheduler.threads.clear()
    work()
    if change == "truncated":
        world.log.truncate_to(8)
    elif change == "truncated below":
        world.log.truncate_to(3)
    elif change == "emptied":
        world.log.truncate_fully_and_start_at(70)
    elif change == "start moved":
        world.log.set_log_start(9)
        world.log.apply_retention(1_000)
        world.scheduler.settle()
    else:
        world.log.native.read_to_end = True
    done(None)
    world.scheduler.settle()
    assert told == [None] and left(world) == []
    if change == "emptied":
        assert (world.log.log_start_offset, world.log.end_offset) == (5, 5)
    elif change == "start moved":
        assert world.log.end_offset == 5
    else:
        end = 3 if change == "truncated below" else 5
        assert stored(world) == before[:end]


@pytest.mark.parametrize("then", ["room", "closed", "broken"])
def test_a_copy_without_room_leaves_a_log_that_serves(tmp_path, monkeypatch, then):
    world = follower(tmp_path)
    before, offline = stored(world), []
    world.log.on_offline = lambda log, error: offline.append(error.errno)
    error = errno.EIO if then == "broken" else errno.ENOSPC

    def short(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(cutting, "copy_range", short)
    _, told = begin(world, 4)
    if then == "closed":
        world.log.close(clean=False)
    world.scheduler.settle()
    assert [refusal.code for refusal in told] == [KAFKA_STORAGE_ERROR]
    assert offline == ([errno.EIO] if then == "broken" else [])
    assert world.log.ended == (then != "room")
    assert left(world) == []
    if then == "room":
        assert not world.log.halted and stored(world) == before
        monkeypatch.undo()
        _, told = begin(world, 4)
        world.scheduler.settle()
        assert told == [None] and stored(world) == before[:4]


def test_a_full_disk_does_not_keep_a_long_tail_that_nobody_got(tmp_path, monkeypatch):
    """What a truncation sets free was what it waited for."""
    monkeypatch.setattr(cutting, "TAIL_MAX", 10)
    world = follower(tmp_path, unseen=True)
    before, inode = stored(world), world.path(0, ".log").stat().st_ino

    def short(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cutting, "copy_range", short)
    _, told = begin(world, 4)
    world.scheduler.settle()
    assert told == [None] and stored(world) == before[:4] and left(world) == []
    assert world.path(0, ".log").stat().st_ino == inode


def test_a_truncation_that_is_cancelled_before_its_turn_reads_nothing(tmp_path, monkeypatch):
    world = follower(tmp_path)
    monkeypatch.setattr(cutting, "scan_segment", lambda *_, **__: pytest.fail("it was read"))
    prepared = cutting.Prepared(cutting.plan(world.log, 4, in_place=False))
    prepared.cancelled = True
    with pytest.raises(cutting.Cancelled):
        prepared.make()
    assert left(world) == []


def test_data_that_nobody_got_is_cut_in_place_though_others_may_read(tmp_path):
    """A broker that starts again after a kill copied a segment of each log, for the last few batches."""
    world = Readable(tmp_path).world
    log = world.log
    log.native.follows_end = False
    for _ in range(10):
        world.append()
    inode = world.path(0, ".log").stat().st_ino
    log.native.advance_high_watermark(2)
    log.follow(1, 2)
    log.native.read_to_end = False  # as after its start
    log.truncate_to(8)
    assert world.path(0, ".log").stat().st_ino == inode
    log.set_leader_epoch(2, alone=False)
    log.follow(3, 2)
    log.truncate_to(6)
    assert world.path(0, ".log").stat().st_ino != inode
    assert not log.native.read_to_end


def steps(monkeypatch, last: int) -> list[str]:
    """Note each change of a name or a size, and kill the process before the one with the number `last`."""
    seen: list[str] = []

    def noting(name, call):
        def noted(*args, **named):
            if len(seen) == last:
                raise Killed
            seen.append(name)
            return call(*args, **named)

        return noted

    for name in ("replace", "link", "truncate", "copy_file_range", "fdatasync"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    monkeypatch.setattr(cutting, "scan_segment", noting("scan", cutting.scan_segment))
    return seen


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("offset", [4, 8])
def test_a_kill_at_any_step_leaves_the_old_log_or_the_new_one_or_one_between(
    tmp_path, monkeypatch, in_place, offset
):
    """Whole segments go first, the last one before the others, and each file is whole before and after."""
    ends = set()
    for last in range(1_000):
        world = follower(tmp_path / str(last), segment_bytes=250, index_interval_bytes=100, unseen=in_place)
        before = stored(world)
        bases = [base for base, _ in world.log.segments]
        told: list = []
        with monkeypatch.context() as patch:
            seen = steps(patch, last)
            try:
                world.log.begin_truncation(offset, told.append)
                world.scheduler.settle()
            except Killed:
                pass
        if told:
            break
        world.crash(lead=False)
        end = world.log.end_offset
        assert end == offset or end in (*bases, 10), seen
        assert stored(world) == before[:end]
        assert left(world) == []
        assert [row[2] for row in world.log.active_producers()] == [end - 1]
        ends.add(end)
        world.log.set_leader_epoch(2)
        assert world.append(idempotent(end)) == end
        world.log.close()
    assert told == [None] and len(seen) >= 6
    assert {offset, 10} < ends or {offset, 10} == ends
