"""The next segment is made ahead; the log is the same whether it was, was late, or could not be."""

import errno
import os

import pytest

from kafkad.log.next_segment import FAST_MS
from tests.unit.log_world import LogWorld, idempotent, topic_config

SEGMENT = 1 << 20
SIZE = 100_000  # ten batches fill a segment: the eighth crosses three quarters


def open_fds(world) -> list[int]:
    """How many names each open file of the log has."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(world.directory)):
                found.append(os.fstat(int(fd)).st_nlink)
        except OSError:
            continue
    return found


def nameless(world) -> int:
    return open_fds(world).count(0)


@pytest.fixture
def world(tmp_path) -> LogWorld:
    world = LogWorld(tmp_path, topic_config(segment_bytes=SEGMENT))
    world.append(size=SIZE)
    try:
        os.close(os.open(world.directory, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        pytest.skip("this file system has no files without names")
    return world


def fill(world, count, **fields) -> None:
    for _ in range(count):
        world.append(size=SIZE, **fields)


def contents(world) -> bytes:
    data = b""
    for base, size in world.log.segments:
        found = world.path(base, ".log").read_bytes()
        assert len(found) == size
        data += found
    return data


def whole(world, count) -> None:
    assert world.log.end_offset == count
    batches = list(world.log.batches(0, count))
    assert [int.from_bytes(found[:8], "big") for found in batches] == list(range(count))
    assert b"".join(batches) == contents(world)
    bases = [base for base, _ in world.log.segments]
    for base in bases[:-1]:  # cut to their entries
        assert world.path(base, ".index").stat().st_size < 4096
        assert world.path(base, ".timeindex").stat().st_size < 4096
    for base in bases:
        assert world.path(base, ".index").exists()
        assert world.path(base, ".timeindex").exists()


def test_a_log_that_fills_fast_has_its_next_segment_made_ahead_and_named_at_the_roll(world):
    fill(world, 6)
    assert world.scheduler.work() == 0
    fill(world, 2)
    assert world.scheduler.work() == 1
    assert nameless(world) == 3
    fill(world, 3)
    assert [base for base, _ in world.log.segments] == [0, 10]
    assert nameless(world) == 0
    assert world.path(10, ".index").stat().st_size == world.log.config.segment_index_bytes
    assert world.path(10, ".log").stat().st_mode & 0o777 == world.path(0, ".log").stat().st_mode & 0o777
    whole(world, 12)
    fill(world, 60)
    world.scheduler.settle()
    fill(world, 60)
    whole(world, 132)
    world.restart()
    whole(world, 132)
    assert world.path(world.log.segments[-1][0], ".index").stat().st_size < 4096


def test_what_comes_too_late_is_there_for_the_next_roll(world):
    fill(world, 11)
    assert [base for base, _ in world.log.segments] == [0, 10]
    assert nameless(world) == 0
    world.scheduler.settle()
    assert nameless(world) == 3
    fill(world, 20)
    assert [base for base, _ in world.log.segments] == [0, 10, 20, 30]
    whole(world, 32)


def test_a_log_that_fills_slowly_has_nothing_made(world):
    fill(world, 5)
    world.now_ms += FAST_MS
    fill(world, 4)
    assert world.scheduler.work() == 0
    fill(world, 2)
    whole(world, 12)


@pytest.mark.parametrize("trouble", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_where_it_cannot_be_made_ahead_the_roll_makes_it(world, trouble):
    fill(world, 8)
    assert world.scheduler.work(fail=OSError(trouble, "no")) == 1
    fill(world, 30)
    assert not [job for job in world.scheduler.threads if "make" in job[0].__qualname__], "it is tried again"
    assert nameless(world) == 0
    whole(world, 39)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_where_a_name_is_taken_the_files_are_made_anew(world, suffix):
    fill(world, 8)
    world.scheduler.settle()
    world.path(10, suffix).write_bytes(b"left by an accident")
    fill(world, 23)
    whole(world, 32)
    world.crash()
    whole(world, 32)


@pytest.mark.parametrize("step", ["made", "linked", "rolled"])
def test_a_kill_between_any_two_steps_loses_nothing(world, step):
    fill(world, 8)
    world.scheduler.settle()
    fill(world, 1)
    if step == "made":
        pass
    elif step == "linked":
        assert world.log._next.take(10) is not None
        assert world.path(10, ".log").exists()
    else:
        ready = world.log._next.take(10)
        world.log.native.roll(10, world.now_ms, ready)  # no snapshot yet
    world.crash()
    assert world.log.end_offset == 10
    fill(world, 25)
    whole(world, 35)
    world.restart()
    whole(world, 35)


def test_every_set_of_names_that_a_kill_may_leave_is_recovered(world, tmp_path):
    fill(world, 9)
    for names in ([".log"], [".log", ".index"], [".log", ".index", ".timeindex"], [".index"]):
        for suffix in names:
            world.path(10, suffix).write_bytes(bytes(0 if suffix == ".log" else 10 << 20))
        world.crash()
        assert world.log.end_offset == 10
        assert [base for base, _ in world.log.segments][:1] == [0]
    fill(world, 25)
    whole(world, 35)


def test_a_log_that_has_gone_quiet_gives_its_files_back(world):
    fill(world, 8)
    world.scheduler.settle()
    world.log.release_idle()
    assert nameless(world) == 3
    world.log.release_idle()
    assert nameless(world) == 0
    fill(world, 23)
    whole(world, 32)


@pytest.mark.parametrize("late", [False, True])
def test_a_log_that_is_closed_holds_no_files(world, late):
    fill(world, 8)
    if not late:
        world.scheduler.settle()
    world.log.close()
    world.scheduler.settle()
    assert open_fds(world) == []


def test_producers_and_times_are_the_same_over_such_a_roll(world):
    fill(world, 8)
    world.scheduler.settle()
    for sequence in range(6):
        world.append(idempotent(sequence, size=SIZE, timestamp=5_000 + sequence))
    assert [base for base, _ in world.log.segments] == [0, 10]
    assert world.log.offset_for_timestamp(5_003).offset == 12
    world.crash()
    assert [row[:3] for row in list(world.log.active_producers())] == [(7, 0, 5)]
    assert world.log.offset_for_timestamp(5_003).offset == 12
