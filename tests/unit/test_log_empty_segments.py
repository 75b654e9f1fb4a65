"""Segments without a byte: left by a roll that failed, or by Kafka's log cleaner.

Kafka serves a log across them, whatever their place (LocalLog.read goes on with the next segment)."""

import os

import pytest

from tests.unit.log_world import LogWorld, batch, topic_config


def put_empty(world: LogWorld, base: int) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        world.path(base, suffix).write_bytes(b"")


def offsets(world: LogWorld, start: int = 0) -> list[int]:
    """Of each batch that a client of the log reads from `start` on, one batch a record."""
    found = []
    while start < world.log.end_offset:
        data = world.log.read(start, 1)
        assert data, f"nothing at {start}"
        assert int.from_bytes(data[:8], "big") >= start, "the helper reads batches of one record"
        start = int.from_bytes(data[:8], "big")
        found.append(start)
        start += 1
    return found


def reopened(world: LogWorld, clean: bool, **options) -> None:
    if clean:
        world.log.close()
    world.scheduler.settle()
    world.open(clean=clean, **options)


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path)


@pytest.mark.parametrize("recovery_point", [0, 4, 7, 9, 12])
@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_segment_in_the_middle_hides_nothing(world, clean, recovery_point):
    """A roll at 4 failed and left its files; the segment before went on to 9."""
    for _ in range(9):
        world.append()
    world.log.roll(world.now_ms)
    for _ in range(3):
        world.append()
    world.log.close()
    put_empty(world, 4)
    world.open(clean=clean, recovery_point=recovery_point)
    assert world.log.end_offset == 12
    assert [offsets(world, start) for start in (0, 5)] == [list(range(12)), list(range(5, 12))]
    assert not world.path(4, ".log").exists()
    assert not [name for name in world.names() if name.endswith(".lost")]
    assert world.append() == 12


@pytest.mark.parametrize("recovery_point", [0, 4, 7, 9])
@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_last_segment_below_the_end_hides_nothing(world, clean, recovery_point):
    """It became the active segment: the end went back to 4, and offsets were given a second time."""
    for _ in range(9):
        world.append()
    world.log.close()
    put_empty(world, 4)
    world.open(clean=clean, recovery_point=recovery_point)
    assert (world.log.end_offset, offsets(world, 3)) == (9, [3, 4, 5, 6, 7, 8])
    assert not [name for name in world.names() if name.endswith(".lost")]
    assert world.append() == 9


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_last_segment_at_the_end_stays(world, clean):
    for _ in range(5):
        world.append()
    world.log.roll(world.now_ms)
    reopened(world, clean, recovery_point=0)
    assert (world.log.end_offset, [base for base, _ in world.log.segments]) == (5, [0, 5])
    assert world.append() == 5


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_last_segment_behind_what_a_cleaner_removed_keeps_the_end(world, clean):
    """The records from 5 to 8 are cleaned away: offsets are never given twice."""
    world.config = topic_config(cleanup_policy=("compact",))
    for _ in range(5):
        world.append()
    world.log.close()
    put_empty(world, 9)
    world.open(clean=clean, recovery_point=5)
    assert world.log.end_offset == 9
    assert world.log.append(batch(), world.now_ms) == 9


@pytest.mark.parametrize("recovery_point", [0, 4, 9])
@pytest.mark.parametrize("policy", [("compact",), ("delete",)])
def test_segments_that_a_cleaner_left_empty(world, recovery_point, policy):
    """The first one says where the log begins, as in Kafka, and what lies behind is read from there."""
    for _ in range(4):
        world.append()
    world.log.roll(world.now_ms)
    for _ in range(2):
        world.append()
    world.log.roll(world.now_ms)
    for _ in range(3):
        world.append()
    world.log.close()
    put_empty(world, 0)
    put_empty(world, 4)
    world.config = topic_config(cleanup_policy=policy)
    if policy == ("delete",) and recovery_point < 6:
        # Nothing says that this is not a loss of power: what does not follow is kept aside, as ever.
        world.open(clean=False, recovery_point=recovery_point)
        assert world.path(6, ".log.lost").exists()
        return
    world.open(clean=False, recovery_point=recovery_point)
    assert (world.log.log_start_offset, world.log.end_offset) == (0, 9)
    assert [base for base, _ in world.log.segments] == [0, 6]
    assert offsets(world) == [6, 7, 8]
    assert world.log.append(batch(), world.now_ms) == 9


def test_an_empty_segment_below_a_dead_owners_end_is_removed_by_its_successor(world):
    for _ in range(9):
        world.append()
    world.log.flush()
    put_empty(world, 4)
    world.crash(recovery_point=9)
    assert world.log.end_offset == 9
    assert os.path.getsize(world.path(0, ".log")) == 9 * len(batch())
