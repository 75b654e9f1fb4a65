"""Time-outs of transactions, and clocks that are set."""

import pytest
from transaction_world import TransactionWorld

from kafkad.coordinator.transaction import State
from tests.shifted_clock import DAY_MS


@pytest.fixture
def world():
    return TransactionWorld()


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
def test_a_wall_clock_that_jumps_moves_no_time_out(world, jump_ms):
    """Kafka aborts all open transactions when it is set forward, and none for a day when it is set back."""
    world.coordinator.start_timers()
    who = world.began()
    world.clock.set_now_ms(world.clock.now_ms() + jump_ms)
    world.scheduler.advance(50_000)
    world.add(who, 1)  # does not begin it anew
    world.scheduler.advance(10_000)
    assert world.state is State.ONGOING
    world.scheduler.advance(10_000)
    assert world.state is State.COMPLETE_ABORT


def test_a_transaction_that_another_coordinator_began_times_out_by_the_wall_clock(world):
    world.began()
    world.scheduler.advance(50_000)
    world.restart()
    world.scheduler.advance(10_000)
    world.coordinator.abort_timed_out()
    assert world.state is State.ONGOING
    world.scheduler.advance(1)
    world.coordinator.abort_timed_out()
    assert world.state is State.COMPLETE_ABORT


def test_a_transaction_that_began_ahead_of_the_clock_times_out_too(world):
    """The clock of the coordinator before was wrong; Kafka waits until this one has come that far."""
    world.began()
    world.clock.set_now_ms(world.clock.now_ms() - DAY_MS)
    world.restart()
    world.scheduler.advance(60_000)
    world.coordinator.abort_timed_out()
    assert world.state is State.ONGOING
    world.scheduler.advance(1)
    world.coordinator.abort_timed_out()
    assert world.state is State.COMPLETE_ABORT
