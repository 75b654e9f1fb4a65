from typing import Protocol

from kafkad._native.log.partition import Partition
from kafkad._native.serving.followed import FollowedPartitions
from kafkad._native.serving.outgoing_tls import OutgoingTls
from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.replication_quota import ReplicationQuota

class Sink(Protocol):
    """Decides what happens to partitions that stop. `epoch` is the leader epoch of the Fetch."""

    def error(self, topic_id: bytes, index: int, epoch: int, code: int) -> None:
        """The leader answered with an error code."""
    def diverged(self, topic_id: bytes, index: int, epoch: int, leader_epoch: int, end: int) -> None:
        """The logs diverge: in the leader's log, its largest epoch up to our last one ends at `end`."""
    def trouble(self, topic_id: bytes, index: int, epoch: int, failed: bool, why: str) -> None:
        """Its records were not appended. `failed`: another try would not help."""
    def refused(self, topic_id: bytes, index: int, epoch: int, error: Exception) -> None:
        """`go_on`, `overlap` or the log raised."""
    def answered(self, code: int) -> None:
        """The whole Fetch was refused with an error code; `lost` follows."""
    def paused(self) -> None:
        """Many answers without news came in a short time. Call `ReplicaFetch.go` later."""
    def throttled(self) -> None:
        """All partitions are throttled. Call `ReplicaFetch.go` later."""
    def lost(self, reason: str) -> None:
        """The connection is closed."""
    def go_on(self, log: object, base: int, epoch: int, now_ms: int) -> None:
        """Do the work that the append needs: see `kafkad.log.runs.go_on`."""
    def overlap(self, log: object, base: int, last: int) -> bool:
        """A batch begins below the log's end. Return whether it can be appended now."""

class ReplicaFetch(FollowedPartitions):
    bytes_read: int
    answers: int
    requests: int
    batches_bytes: int  # of batches that were appended, or were in the log already
    def __init__(
        self,
        reactor: Reactor,
        sink: Sink,
        *,
        broker_id: int,
        client_id: bytes,
        version: int = 18,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 10485760,
        partition_bytes: int = 1048576,
        batch_bytes_max: int = 104857600,
        quota: ReplicationQuota | None = None,
    ) -> None: ...
    @property
    def connected(self) -> bool: ...
    @property
    def waiting_since_ms(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    def add(self, partition: Partition, topic_id: bytes, index: int, leader_epoch: int) -> None: ...
    def resume(self, topic_id: bytes, index: int) -> None:
        """Continue a partition that stopped, from the end of its log."""
    def attach(self, fd: int, broker_epoch: int, tls: OutgoingTls | None = None) -> None:
        """Fetch over a connected, non-blocking socket, and take it over. After an OSError the socket is
        still the caller's."""
    def detach(self, reason: str) -> None:
        """Close the connection, if there is one, and call `sink.lost(reason)`."""
    def go(self) -> None:
        """Send the next request, unless one is not answered yet or there is nothing to fetch."""
