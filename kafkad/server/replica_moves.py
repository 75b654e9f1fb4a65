"""What moves between log directories (log.moves) need of a worker: the metadata, the controller, the rate."""

from collections.abc import Callable
from typing import Final

from kafkad.api.context import Images
from kafkad.config.broker import BrokerConfig
from kafkad.log.log import Log
from kafkad.log.moves import Moves
from kafkad.metadata.image import DIRECTORY_LOST
from kafkad.replication.partitions import Partitions
from kafkad.replication.throttles import UNLIMITED, rate_of

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
