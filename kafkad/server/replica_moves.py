"""What moves between log directories (log.moves) need of a worker: the metadata, the controller, the rate;
and which logs may be older than one on a disk that is away."""

import logging
from collections.abc import Callable
from typing import Final

from kafkad.api.context import Images
from kafkad.config.broker import BrokerConfig
from kafkad.log.log import Log
from kafkad.log.log_dirs import LogDirs
from kafkad.log.moves import Moves
from kafkad.metadata.image import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, NO_LEADER
from kafkad.replication.partitions import Partitions
from kafkad.replication.throttles import UNLIMITED, rate_of

logger = logging.getLogger("kafkad")

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


def hook_moves(
    moves: Moves,
    current: Callable[[], BrokerConfig],
    workers: int,
    metadata: Images,
    partitions: Partitions,
    *,
    assign_directories: Callable[[], None],
    is_busy: Callable[[Log], bool],
) -> None:
    """Call before the logs are loaded. `current` returns the configuration, which may change. Each of the
    `workers` has its share of the rate. `assign_directories` tells the controller of changed directories.
    A busy log does not move."""
    config = current()
    node_id = config.node_id

    def assigned(topic: str, index: int) -> bytes:
        known = metadata.image.topics.get(topic)
        state = None if known is None else known.partitions.get(index)
        if state is None or node_id not in state.replicas:
            return DIRECTORY_LOST
        return state.directory(node_id)

    def rate() -> int:
        whole = rate_of(current(), RATE)
        return whole if whole == UNLIMITED else whole // workers

    def moved(log: Log) -> None:
        if partitions.on_opened is not None:
            partitions.on_opened(log)  # which tells the other workers of its directory

    moves.assigned, moves.rate, moves.on_moved = assigned, rate, moved
    moves.tell, moves.is_busy = assign_directories, is_busy
    moves.at_once = max(1, config.num_replica_alter_log_dirs_threads // workers)


class Doubts:
    """Logs that were found in another directory than the metadata name, while a directory is offline.

    After a lost disk was given up and has come back, its log is the old one. It must not become the
    partition's log because the disk with the new one is away: the controller is not told of it, so it cannot
    lead, unless an unclean election names another directory."""

    def __init__(self, log_dirs: LogDirs, metadata: Images, node_id: int) -> None:
        """Call when the logs are loaded."""
        self._metadata = metadata
        self._node_id = node_id
        self._named: dict[tuple[str, int], bytes] = {}
        online = {DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, *log_dirs.directory_ids()}
        if not any(directory.offline for directory in log_dirs.directories()):
            return
        for log in log_dirs.all():
            named = self._assigned(log)
            own = log_dirs.directory_of(log.topic, log.partition).id
            if named is not None and named not in (*online, own):
                self._named[log.topic, log.partition] = named
                logger.error(
                    "%s may be older than its log in a directory that is offline: it serves after an unclean"
                    " election of %s-%d",
                    log.directory,
                    log.topic,
                    log.partition,
                )

    def concern(self, log: Log) -> bool:
        """Return whether the controller must not be told where the log is."""
        named = self._named.get((log.topic, log.partition))
        return named is not None and named == self._assigned(log)

    def _assigned(self, log: Log) -> bytes | None:
        """Return the directory that the metadata name, if no other broker leads."""
        topic = self._metadata.image.topics_by_id.get(log.topic_id)
        state = None if topic is None else topic.partitions.get(log.partition)
        if state is None or self._node_id not in state.replicas:
            return None
        return state.directory(self._node_id) if state.leader in (NO_LEADER, self._node_id) else None
