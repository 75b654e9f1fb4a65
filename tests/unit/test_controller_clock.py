"""What a controller does by the clock: time in which it did not run ends no session, other time does."""

import asyncio
from types import SimpleNamespace

import pytest

from kafkad.server.controller_node import FENCE_PER_SESSION, ControllerNode

SESSION_S = 8.0
INTERVAL_S = SESSION_S / FENCE_PER_SESSION


class Node(ControllerNode):
    """`sleeps`: how long each sleep takes; `waits`: how long each look waits for its turn. Seconds."""

    def __init__(self, monkeypatch, sleeps, waits=(), active=()):
        self.now_s, self.halts = 0.0, []
        self.sleeps, self.waits, self.active = [*sleeps], [*waits], [*active]
        self.config = SimpleNamespace(broker_session_timeout_ms=int(SESSION_S * 1000))
        self.loop = SimpleNamespace(time=lambda: self.now_s)
        self.controller = self
        self.unclean_wanted = False
        self._late_s = 0.0
        monkeypatch.setattr("kafkad.server.controller_node.asyncio.sleep", self.sleep)

    async def sleep(self, seconds):
        if not self.sleeps:
            raise asyncio.CancelledError
        self.now_s += self.sleeps.pop(0)

    @property
    def is_active(self):
        return self.active.pop(0) if self.active else True

    def fence_stale(self):
        pass

    async def _do(self, steps):
        self.now_s += self.waits.pop(0) if self.waits else 0

    def was_halted(self, ms):
        self.halts.append(ms)

    def run(self):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self._every(INTERVAL_S, self._fence))
        return self.halts


def test_time_in_which_the_controller_was_halted_ends_no_session(monkeypatch):
    assert Node(monkeypatch, [INTERVAL_S, 20.0, INTERVAL_S]).run() == [18_000]


def test_a_look_that_waits_for_its_turn_does_not_lengthen_sessions(monkeypatch):
    """Heartbeats are read meanwhile. With many topics to create, a dead broker kept its session for long."""
    assert Node(monkeypatch, [INTERVAL_S] * 3, waits=[10.0] * 3).run() == []


def test_the_first_look_of_a_term_does_not_lengthen_sessions(monkeypatch):
    """They begin with the term; the time since the last one was counted as a halt."""
    assert Node(monkeypatch, [INTERVAL_S] * 20, active=[True, *[False] * 18]).run() == []
