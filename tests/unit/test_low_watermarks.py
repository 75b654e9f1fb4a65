"""Who waits in DeleteRecords: told by followers' Fetches, by fencing, and when we lead no more."""

import pytest

from kafkad.protocol import errors
from tests.unit.log_world import batch
from tests.unit.test_assignments import placed
from tests.unit.test_metadata_image import broker
from tests.unit.test_replicas import Leading


@pytest.fixture
def world(tmp_path):
    return Leading(tmp_path)


def deleting(world):
    log = world.create()
    log.append_client(batch(4), 1_000)
    for follower in (2, 3):
        world.fetch(follower, 4)
    log.delete_records(3)
    return log


def told(world, follower, log_start):
    assert not world.log.native.note_fetch(follower, 10 + follower, 4, log_start, world.now_ms)


def waited(world, act):
    """What a wait for offset 3 has got after `act`; None: it waits on."""
    lows, results = world.replicas.low_watermarks, []

    def reached(*result):
        results.append(result)

    lows.wait(world.log, 3, reached)
    act()
    lows.forget(world.log, reached)
    assert len(lows) == 0
    assert not world.log.native.awaits_starts
    assert len(results) <= 1
    return results[0] if results else None


def test_every_live_replica_counts(world):
    deleting(world)
    assert waited(world, lambda: told(world, 2, 3)) is None
    assert world.replicas.low_watermarks.of(world.log) == 0
    assert waited(world, lambda: told(world, 3, 2)) is None
    assert waited(world, lambda: told(world, 3, 3)) == (errors.NONE, 3)
    assert waited(world, lambda: None) == (errors.NONE, 3)  # at once


def test_a_fenced_follower_does_not_count(world):
    deleting(world)
    told(world, 2, 3)
    assert waited(world, lambda: world.commit(broker(3, epoch=13, fenced=True))) == (errors.NONE, 3)


def test_a_leader_that_resigns_says_so(world):
    deleting(world)

    def resign():
        record = placed("t", 0, [1, 2, 3], 2)
        record.leader, record.leader_epoch, record.partition_epoch = 2, 5, 5
        world.commit(record)

    assert waited(world, resign) == (errors.NOT_LEADER_OR_FOLLOWER, -1)
