from typing import Protocol

from kafkad._native.log.partition import Partition
from kafkad._native.serving.outgoing_tls import OutgoingTls
from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.replication_quota import ReplicationQuota

FETCHING: int
DELAYED: int
TRUNCATING: int
FAILED: int

class Sink(Protocol):
    """Who decides what becomes of partitions that stop. `epoch` is the leader epoch of the Fetch."""

    def error(self, topic_id: bytes, index: int, epoch: int, code: int) -> None:
        """The leader answered with an error code."""
    def diverged(self, topic_id: bytes, index: int, epoch: int, leader_epoch: int, end: int) -> None:
        """The logs part: the leader's largest epoch up to our last one ends at `end`."""
    def trouble(self, topic_id: bytes, index: int, epoch: int, failed: bool, why: str) -> None:
        """Its records cannot be taken; `failed`: nor will they be when asked for again."""
    def refused(self, topic_id: bytes, index: int, epoch: int, error: Exception) -> None:
        """`go_on`, `overlap` or the log raised."""
    def answered(self, code: int) -> None:
        """The whole Fetch was refused with an error code; `lost` follows."""
    def paused(self) -> None:
        """Answers that bring nothing come one after the other: `ReplicaFetch.go` goes on."""
    def throttled(self) -> None:
        """A throttle leaves nothing to fetch: `ReplicaFetch.go` looks again."""
    def lost(self, reason: str) -> None:
        """The connection is closed."""
    def go_on(self, log: object, base: int, epoch: int, now_ms: int) -> None:
        """As `kafkad.log.runs.go_on`."""
    def overlap(self, log: object, base: int, last: int) -> bool:
        """A batch begins below the log's end. Whether it can be appended now."""

class ReplicaFetch:
    bytes_read: int
    answers: int
    requests: int
    batches_bytes: int  # of the batches that were appended, or were there already
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
    def __len__(self) -> int: ...
    @property
    def connected(self) -> bool: ...
    @property
    def waiting_since_ms(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    def add(self, partition: Partition, topic_id: bytes, index: int, leader_epoch: int) -> None: ...
    def remove(self, topic_id: bytes, index: int) -> bool: ...
    def resume(self, topic_id: bytes, index: int) -> None: ...
    def stop(self, topic_id: bytes, index: int, state: int) -> None: ...
    def state_of(self, topic_id: bytes, index: int) -> tuple[int, int, int] | None: ...
    def attach(self, fd: int, broker_epoch: int, tls: OutgoingTls | None = None) -> None: ...
    def detach(self, reason: str) -> None: ...
    def go(self) -> None: ...
