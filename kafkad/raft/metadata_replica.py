"""A replica of the metadata log: the common part of a voter and an observer.

    load        the newest whole snapshot gives the image to which the log's batches are applied
    replay      applies one batch of the log to the Loader, and notes the quorum's own records in it
    snapshot    after enough new bytes, or an hour; then the log below the oldest kept snapshot may be deleted

Use: single_voter and observer, which know when a batch is committed.

Beware: `write_snapshot` may run in another thread; it reads an image, which never changes, and writes one
file."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

from kafkad.config.broker import BrokerConfig
from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.records import Decoder, encode_record
from kafkad.metadata.replay import Loader, ReplayError
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.raft.control_records import Voter, read_control, read_voters
from kafkad.raft.election_state import ElectionState
from kafkad.raft.snapshots import build_snapshot, group_records, read_snapshot_steps, read_timestamp

logger = logging.getLogger(__name__)

SnapshotId = tuple[int, int]  # (offset, epoch): it has everything below the offset

STEP: Final = 200  # records encoded or replayed before others may run
LEFT_OUT_LOGGED: Final = 10  # records logged one by one


class UnusableMetadata(Exception):
    """The metadata directory cannot be served; the text is an error message for the operator."""


class MetadataLog(Protocol):
    """The part of kafkad.log.Log that a replica needs."""

    @property
    def directory(self) -> str: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def epochs(self) -> Iterable[tuple[int, int]]: ...  # (epoch, first offset), ascending
    @property
    def size(self) -> int: ...
    @property
    def recovery_point(self) -> int: ...  # everything below is on disk

    def append(
        self,
        batch: bytearray,
        now_ms: int,
        *,
        origin: Literal["raft", "replica"] = ...,
        epoch: int | None = ...,
    ) -> int: ...
    def flush(self) -> None: ...
    def await_flushed(self, offset: int, callback: Callable[[BaseException | None], None]) -> None: ...
    def batches(self, start: int, end: int) -> Iterable[bytes]: ...
    def set_leader_epoch(self, epoch: int) -> None: ...
    def delete_records(self, before_offset: int) -> int: ...
    def truncate_to(self, offset: int) -> bool: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...
    def advance_high_watermark(self, offset: int) -> None: ...
    def apply_retention(self, now_ms: int) -> int: ...
    def truncate_fully_and_start_at(self, offset: int) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    """The part of kafkad.log.metadata_files.MetadataFiles that a replica needs."""

    def read_bootstrap(self) -> bytes | None: ...
    def write_bootstrap(self, content: bytes) -> None: ...
    def read_quorum_state(self) -> bytes | None: ...
    def write_quorum_state(self, content: bytes) -> None: ...
    def snapshots(self) -> list[SnapshotId]: ...
    def read_snapshot(self, snapshot: SnapshotId) -> bytes: ...
    def read_piece(self, snapshot: SnapshotId, position: int, size: int) -> bytes: ...
    def read_beginning(self, snapshot: SnapshotId) -> bytes: ...
    def write_snapshot(self, snapshot: SnapshotId, pieces: Iterable[bytes | bytearray]) -> int: ...
    def write_part(self, snapshot: SnapshotId, position: int, piece: bytes | memoryview) -> None: ...
    def finish_part(self, snapshot: SnapshotId) -> None: ...
    def delete_snapshot(self, snapshot: SnapshotId) -> None: ...
    def set_aside(self, snapshot: SnapshotId) -> str: ...
    def size(self, snapshot: SnapshotId) -> int: ...
    def delete_leftovers(self) -> None: ...


@dataclass(slots=True, frozen=True)
class SnapshotPolicy:
    """When snapshots are made, and how long they and the log are kept. Kafka's defaults."""

    new_bytes_max: int = 20 << 20  # metadata.log.max.record.bytes.between.snapshots
    interval_ms_max: int = 3_600_000  # metadata.log.max.snapshot.interval.ms; 0: by size only
    retention_bytes: int = 100 << 20  # metadata.max.retention.bytes; -1: no limit
    retention_ms: int = 7 * 86_400_000  # metadata.max.retention.ms; -1: no limit

    @staticmethod
    def of(config: BrokerConfig) -> "SnapshotPolicy":
        return SnapshotPolicy(
            config.metadata_log_max_record_bytes_between_snapshots,
            config.metadata_log_max_snapshot_interval_ms,
            config.metadata_max_retention_bytes,
            config.metadata_max_retention_ms,
        )


class MetadataReplica:
    """`image` is what is committed and applied. It is replaced, never changed."""

    def __init__(
        self, image: MetadataImage, log: Any, files: Files, clock: Any, policy: SnapshotPolicy | None
    ) -> None:
        self.image = self._empty = image
        self.epoch = 0
        self.last_snapshot: SnapshotId | None = None
        self._log = log
        self._files = files
        self._clock = clock
        self._policy = policy or SnapshotPolicy()
        self._loader = Loader(self.image)
        self._decoder = Decoder()
        self._kraft_version = 0
        self._voters: tuple[Voter, ...] = ()
        self._voters_offset = -1  # -1: no voters in the log itself
        self._image_control: tuple[int, tuple[Voter, ...]] | None = None  # the same, as of `image`
        self._snapshot_control: tuple[int, tuple[Voter, ...]] | None = None  # for the snapshot being written
        self._forgot_votes = False  # quorum-state was damaged
        self._left_out = 0  # records that could not be applied
        self._broken = ""  # why nothing can be appended any more
        self._new_bytes = 0  # of the log, since the last snapshot
        self._snapshot_ms = 0  # monotonic: when the last snapshot was made, or this node started

    # -- loading -------------------------------------------------------------------------------------------

    def _load_snapshot(self) -> SnapshotId | None:
        """Feed the newest whole snapshot. Damaged ones are set aside, those below the log are deleted."""
        start = self._log.log_start_offset
        for snapshot in reversed(self._files.snapshots()):
            if snapshot[0] < start:
                self._files.delete_snapshot(snapshot)
                continue
            try:
                self._adopt_snapshot(snapshot)
            except Malformed as trouble:
                path = self._files.set_aside(snapshot)
                logger.error(
                    "metadata snapshot is damaged (%s): set aside as %s, an older one is tried", trouble, path
                )
                continue
            return snapshot
        return None

    def _adopt_snapshot(self, snapshot: SnapshotId) -> None:
        """Do all of `_adopt_steps` now."""
        for _ in self._adopt_steps(snapshot):
            pass

    def _adopt_steps(self, snapshot: SnapshotId) -> Iterator[None]:
        """Begin again from this snapshot, in steps. Raises Malformed; then nothing has changed."""
        decoder = Decoder()
        content = yield from read_snapshot_steps(self._files.read_snapshot(snapshot), decoder.decode, STEP)
        loader = Loader(self._empty, self._leave_out)
        yield from loader.feed_steps(
            content.records,
            STEP,
            last_offset=snapshot[0] - 1,
            epoch=snapshot[1] if snapshot[0] else -1,
            timestamp_ms=content.timestamp_ms,
        )
        self._loader, self._decoder = loader, decoder
        self._kraft_version, self._voters = content.kraft_version, content.voters

    def _replay_batch(self, batch: Any) -> None:
        """Do all of `_replay_steps` now."""
        for _ in self._replay_steps(batch):
            pass

    def _replay_steps(self, batch: Any) -> Iterator[None]:
        place = {
            "last_offset": batch.last_offset,
            "epoch": batch.leader_epoch,
            "timestamp_ms": batch.max_timestamp,
        }
        if not batch.is_control:
            decode = self._decoder.decode
            records = batch.records()
            for first in range(0, len(records), STEP):
                some = [decode(record.value or b"") for record in records[first : first + STEP]]
                yield from self._loader.feed_steps(some, STEP, **place)
        self._loader.skip(**place)
        if not batch.is_control:
            return
        for message in read_control(batch):
            if type(message) is messages.KRaftVersionRecord:
                self._kraft_version = message.k_raft_version
            elif type(message) is messages.VotersRecord:
                self._voters, self._voters_offset = read_voters(message), batch.base_offset

    def _leave_out(self, trouble: ReplayError) -> None:
        self._left_out += 1
        if self._left_out <= LEFT_OUT_LOGGED:
            logger.error("%s: a metadata record is left out: %s", self._log.directory, trouble)

    def _election(self) -> ElectionState:
        content = self._files.read_quorum_state()
        if content is None:
            return ElectionState(leader_epoch=0)
        try:
            return ElectionState.decode(content)
        except Malformed as trouble:
            # The log has the epochs with leaders, and an epoch without a record cannot be confused with
            # another. But a vote is lost: see RaftNode.open.
            if not self._forgot_votes:
                logger.error(
                    "%s/quorum-state is damaged, and is written anew unless this node votes with others: %s",
                    self._log.directory,
                    trouble,
                )
            self._forgot_votes = True
            return ElectionState(leader_epoch=0)

    @property
    def in_transaction(self) -> bool:
        """Return whether the log ends inside a metadata transaction."""
        return self._loader.in_transaction

    def read_bootstrap(self) -> bytes | None:
        """Return the contents of bootstrap.checkpoint."""
        return self._files.read_bootstrap()

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot_due(self) -> MetadataImage | None:
        """Return the image for a snapshot now, or None: call after appends and periodically."""
        image = self.image
        newer = self.last_snapshot is None or image.offset + 1 > self.last_snapshot[0]
        if self._broken or not newer or self._loader.in_transaction or image.offset < 0:
            return None
        waited_ms = self._clock.monotonic_ms() - self._snapshot_ms
        policy = self._policy
        if self._new_bytes >= policy.new_bytes_max or 0 < policy.interval_ms_max <= waited_ms:
            return image
        return None

    def begin_snapshot(self, image: MetadataImage) -> SnapshotId:
        """Start counting towards the next one; return the id of this one."""
        self._new_bytes = 0
        self._snapshot_ms = self._clock.monotonic_ms()
        self._snapshot_control = self._image_control
        return (image.offset + 1, image.epoch)

    def write_snapshot(self, image: MetadataImage) -> int:
        """Write it, fsynced, and return its size. Accesses only files of this object, so it may run in
        another thread."""
        level = image.metadata_version
        kraft_version, voters = self._snapshot_control or (self._kraft_version, self._voters)
        return self._files.write_snapshot(
            (image.offset + 1, image.epoch),
            build_snapshot(
                (encode_record(record, level) for record in image.records()),
                epoch=image.epoch,
                timestamp_ms=image.timestamp_ms,
                now_ms=self._clock.now_ms(),
                kraft_version=kraft_version,
                voters=voters,
            ),
        )

    def end_snapshot(self, snapshot: SnapshotId) -> None:
        """The snapshot is complete. Delete what it makes superfluous; also the snapshot itself, if a newer
        one was fetched meanwhile, above which the log continues. Raises OSError or KafkaError."""
        if self.last_snapshot is not None and snapshot < self.last_snapshot:
            self._files.delete_snapshot(snapshot)
            return
        self.last_snapshot = snapshot
        self.clean()

    def clean(self) -> int:
        """Delete the oldest snapshots, and the log below the next one, while they are too old or too large.
        Return how many.

        The newest snapshot always stays (Kafka: KafkaRaftLog.maybeClean).
        """
        snapshots = self._files.snapshots()
        deleted = 0
        while len(snapshots) > 1 and self._exceeds(snapshots):
            self._log.delete_records(snapshots[1][0])
            self._log.apply_retention(self._clock.now_ms())
            self._files.delete_snapshot(snapshots.pop(0))
            deleted += 1
        return deleted

    def _exceeds(self, snapshots: list[SnapshotId]) -> bool:
        policy = self._policy
        if policy.retention_bytes >= 0:
            size = self._log.size + sum(map(self._files.size, snapshots))
            if size > policy.retention_bytes:
                return True
        if policy.retention_ms < 0:
            return False
        try:
            timestamp_ms = read_timestamp(self._files.read_beginning(snapshots[0]))
        except Malformed:
            return False
        return self._clock.now_ms() - timestamp_ms > policy.retention_ms


def level_in(records: Sequence[Any]) -> int:
    """Return metadata.version as these records set it: the first records of a log are written at the level
    that they set."""
    for record in records:
        if type(record) is messages.FeatureLevelRecord and record.name == features.METADATA_VERSION:
            return int(record.feature_level)
    raise ReplayError("the first metadata records do not say metadata.version")


def encoded_batches(
    records: Sequence[Any], level: int, *, atomic: bool
) -> Generator[None, None, list[tuple[Sequence[Any], list[bytes]]]]:
    """Return, in steps, the records of each batch, as they are and encoded. `level`: metadata.version, 0 if
    the records set it. Raise KafkaError if an atomic change does not fit one batch."""
    level = level or level_in(records)
    values: list[bytes] = []
    for first in range(0, len(records), STEP):
        values += [encode_record(record, level) for record in records[first : first + STEP]]
        yield
    groups = list(group_records(values))
    if atomic and len(groups) > 1:
        raise KafkaError(errors.POLICY_VIOLATION, f"{len(records)} metadata records do not fit one batch")
    ends = list(accumulate(map(len, groups)))
    return [(records[end - len(group) : end], group) for end, group in zip(ends, groups, strict=True)]
