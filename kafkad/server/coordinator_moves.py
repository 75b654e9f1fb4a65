"""Loads and unloads coordinators when the leadership of their partitions changes.

    led under an epoch    later appends name it; if the partition was not led before, it is loaded
                          (Partitions.on_led, server/group_loader)
    led by another, or    unloaded at once: waiting requests are answered NOT_COORDINATOR, timers are
    by nobody, or gone    cancelled, and only then a follower's fetcher gets the log

If a broker keeps leading in a later epoch, nothing is loaded again: no other broker can have written. The
transaction coordinator's markers carry the new epoch from then on.

Source: CoordinatorRuntime.scheduleLoadOperation and scheduleUnloadOperation."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kafkad._native.shared.watermarks import LEADER
from kafkad.log.log import Log

logger = logging.getLogger(__name__)


class CoordinatorMoves:
    """Partitions.on_role calls it for each role, before `on_led`, and for each partition that is dropped."""

    def __init__(self) -> None:
        self._coordinators: Mapping[str, Any] = {}

    def begin(self, coordinators: Mapping[str, Any], partitions: Iterable[Log]) -> None:
        """`coordinators` by the name of their topic: each has `shards`, `storage`, `lead` and `unload`.
        `partitions`: those that already have a role."""
        self._coordinators = coordinators
        for log in partitions:
            self.on_role(log)

    def on_role(self, log: Log) -> None:
        coordinator = self._coordinators.get(log.topic)
        if coordinator is None:
            return
        if log.native.role == LEADER and not log.closed:
            coordinator.lead(log.partition, log.native.leader_epoch)
        else:
            self._unload(coordinator, log.topic, log.partition)

    def on_dropped(self, topic: str, index: int) -> None:
        coordinator = self._coordinators.get(topic)
        if coordinator is not None:
            self._unload(coordinator, topic, index)

    def _unload(self, coordinator: Any, topic: str, index: int) -> None:
        if index in coordinator.shards:
            logger.info("%s-%d is coordinated here no more", topic, index)
            coordinator.unload(index)
        coordinator.storage.resign(index)
