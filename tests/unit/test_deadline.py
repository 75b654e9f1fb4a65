"""Deadlines of groups."""

from types import SimpleNamespace

import pytest
from coordinator_world import ManualScheduler

from kafkad.clock import ManualClock
from kafkad.coordinator.deadline import AGAIN_MS, GRACE_MS_MAX, LATE_MS, Deadline


def test_a_timer_that_fails_is_tried_again(caplog):
    """An exception that nobody has foreseen; only an AssertionError ends the worker."""
    clock = ManualClock(0, 0)
    scheduler = ManualScheduler(clock)
    troubles = [KeyError("a member"), None]

    def expire():
        if (trouble := troubles.pop(0)) is not None:
            raise trouble

    timers = SimpleNamespace(monotonic_ms=clock.monotonic_ms, call_later=scheduler.call_later)
    deadline = Deadline(timers, expire)
    deadline.set(100)
    scheduler.advance(100)
    assert troubles == [None] and "is tried again" in caplog.text
    scheduler.advance(AGAIN_MS)
    assert not troubles and scheduler.armed() == 0
    troubles.append(AssertionError())
    deadline.set(100)
    with pytest.raises(AssertionError):
        scheduler.advance(100)


@pytest.mark.parametrize("halted_ms, grace_ms", [(LATE_MS, LATE_MS), (60_000, GRACE_MS_MAX)])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_process_that_was_halted_reads_what_has_come_before_a_deadline_fires(halted_ms, grace_ms, is_moved):
    """Otherwise healthy consumers would be removed from their groups: their heartbeats wait in sockets."""
    clock = ManualClock(0, 0)
    scheduler = ManualScheduler(clock)
    fired = []
    timers = SimpleNamespace(monotonic_ms=clock.monotonic_ms, call_later=scheduler.call_later)
    deadline = Deadline(timers, lambda: fired.append(clock.monotonic_ms()))
    deadline.set(100)
    clock.advance(100 + halted_ms)  # no timer runs meanwhile
    scheduler.advance(0)
    assert fired == []
    if is_moved:
        deadline.set(50_000)
        scheduler.advance(49_999)
        assert fired == []
        scheduler.advance(1)
        assert fired == [100 + halted_ms + 50_000]
    else:
        scheduler.advance(grace_ms - 1)
        assert fired == []
        scheduler.advance(1)
        assert fired == [100 + halted_ms + grace_ms]
    assert scheduler.armed() == 0
