"""What moves between log directories (log.moves) need of a worker: the metadata, the controller, the rate."""

from typing import Any, Final

from kafkad.log.log import Log
from kafkad.metadata.image import DIRECTORY_LOST
from kafkad.replication.throttles import UNLIMITED, rate_of

RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


def hook_moves(worker: Any) -> None:
    """Call before the logs of this server.worker.Worker are loaded."""
    moves, config = worker.log_dirs.moves, worker.config
    node_id, workers = config.node_id, worker.count

    def assigned(topic: str, index: int) -> bytes:
        known = worker.metadata.image.topics.get(topic)
        state = None if known is None else known.partitions.get(index)
        if state is None or node_id not in state.replicas:
            return DIRECTORY_LOST
        return state.directory(node_id)

    def rate() -> int:
        whole = rate_of(worker.config, RATE)
        return whole if whole == UNLIMITED else whole // workers

    def moved(log: Log) -> None:
        if worker.partitions.on_opened is not None:
            worker.partitions.on_opened(log)  # which tells the other workers of its directory

    moves.assigned, moves.rate, moves.on_moved = assigned, rate, moved
    moves.tell = worker._assign_directories
    moves.is_busy = worker._is_loading
    moves.at_once = max(1, config.num_replica_alter_log_dirs_threads // workers)
