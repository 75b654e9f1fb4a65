"""What a controller does by the clock: time in which it did not run ends no session, other time does."""

import pytest
from controller_world import SESSION_MS, World
from steps import finish
from test_controller_members import FullLog

from kafkad.clock import ManualClock
from kafkad.controller.quorum_controller import QuorumController
from kafkad.server.controller_node import FENCE_PER_SESSION
from tests.registrations import CLUSTER

TICK_MS = SESSION_MS // FENCE_PER_SESSION


class Controller:
    def __init__(self):
        self.world, self.clock = World(1), ManualClock()
        log = FullLog(self.world)
        self.controller = QuorumController(log, self.clock, self.world.random, self.world.config, CLUSTER)
        self.controller._begin()
        self.controller.tick(TICK_MS)

    def run(self, ms):
        """Let the timer of this time run."""
        for _ in range(ms // TICK_MS):
            self.clock.advance(TICK_MS)
            self.controller.tick(TICK_MS)

    def looks(self):
        """Return whether the broker was fenced."""
        finish(self.controller.fence_stale())
        return self.world.image.brokers[1].fenced


@pytest.mark.parametrize("ticks_first", [True, False])
@pytest.mark.parametrize("is_queued", [True, False])
def test_time_in_which_the_controller_was_halted_ends_no_session(ticks_first, is_queued):
    """A halt while the look waited for its turn was not counted."""
    node = Controller()
    look = node.controller.fence_stale()
    if is_queued:
        node.run(SESSION_MS // 2)
    node.clock.advance(20 * SESSION_MS)
    if ticks_first:
        node.controller.tick(TICK_MS)
    finish(look)
    node.controller.tick(TICK_MS)
    assert not node.looks()
    node.run(SESSION_MS // 4)
    assert not node.looks()
    node.run(SESSION_MS)
    assert node.looks()


def test_a_look_that_waits_for_its_turn_does_not_lengthen_sessions():
    """Heartbeats are read meanwhile. With many topics to create, a dead broker kept its session for long."""
    node = Controller()
    look = node.controller.fence_stale()
    node.run(SESSION_MS + TICK_MS)
    finish(look)
    assert node.world.image.brokers[1].fenced


def test_the_time_before_a_term_does_not_lengthen_sessions():
    """They begin with the term; the time since the last one was counted as a halt."""
    node = Controller()
    node.controller._end()
    node.run(20 * SESSION_MS)
    node.controller._begin()
    node.run(SESSION_MS)
    assert not node.looks()
    node.run(TICK_MS)
    assert node.looks()
