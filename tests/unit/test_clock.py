"""Clocks: the machine's runs, the tests' own stands still."""

import time

import pytest

from kafkad.clock import Clock, ManualClock


def test_the_machines_clock() -> None:
    clock = Clock()
    assert abs(clock.now_ms() - time.time() * 1000) < 1000
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1000, 0)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1005, 5)
    clock.set_now_ms(10)  # the wall clock was set back; time went on
    assert (clock.now_ms(), clock.monotonic_ms()) == (10, 5)
    with pytest.raises(AssertionError):
        clock.advance(-1)
