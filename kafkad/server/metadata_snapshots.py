"""Snapshots of the metadata, written and synced in a thread: an image never changes."""

import logging
import threading

from kafkad.protocol.errors import KafkaError
from kafkad.raft.metadata_replica import MetadataReplica
from kafkad.server.scheduler import LoopScheduler

logger = logging.getLogger("kafkad")


class MetadataSnapshots:
    """Call `make_if_due` periodically; `close` waits for a snapshot that is being written."""

    def __init__(self, raft: MetadataReplica, scheduler: LoopScheduler) -> None:
        self._raft = raft
        self._scheduler = scheduler
        self._idle = threading.Event()
        self._idle.set()

    def make_if_due(self) -> bool:
        """Begin to write a snapshot, unless one is being written or none is due."""
        image = self._raft.snapshot_due() if self._idle.is_set() else None
        if image is None:
            return False
        snapshot = self._raft.begin_snapshot(image)
        size = 0

        def write() -> None:
            nonlocal size
            try:
                size = self._raft.write_snapshot(image)
            finally:
                self._idle.set()

        def written(trouble: BaseException | None) -> None:
            try:
                if trouble is not None:
                    raise trouble
                self._raft.end_snapshot(snapshot)
            except (OSError, KafkaError) as failure:
                logger.error("no metadata snapshot could be made at offset %d: %s", snapshot[0], failure)
            else:
                logger.info("metadata snapshot at offset %d, epoch %d: %d bytes", *snapshot, size)

        self._idle.clear()
        self._scheduler.run_in_thread(write, written)
        return True

    def close(self) -> None:
        self._idle.wait()
