"""Deadlines of groups."""

from types import SimpleNamespace

import pytest
from coordinator_world import ManualScheduler

from kafkad.clock import ManualClock
from kafkad.coordinator.deadline import AGAIN_MS, Deadline


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
