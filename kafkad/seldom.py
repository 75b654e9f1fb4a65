"""Log messages for conditions that go on: logged once, then only from time to time. For example a node that
waits for its quorum, or a broker whose heartbeats are refused. Nothing here reads a clock.

Use: raft/node, server/broker_lifecycle, server/alter_partition, api/coordinators."""

from typing import Final

AGAIN_MS: Final = 30_000
KEYS_MAX: Final = 64


class Seldom:
    def __init__(self) -> None:
        self._said_ms: dict[object, int] = {}

    def due(self, key: object, now_ms: int) -> bool:
        """Return whether to log it now: it is new, or was last logged 30 s ago."""
        before = self._said_ms.get(key)
        if before is not None and now_ms - before < AGAIN_MS:
            return False
        if before is None and len(self._said_ms) >= KEYS_MAX:
            del self._said_ms[next(iter(self._said_ms))]
        self._said_ms[key] = now_ms
        return True

    def over(self) -> None:
        """The condition is over: the next one counts as new."""
        self._said_ms.clear()
