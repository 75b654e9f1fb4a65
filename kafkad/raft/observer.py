"""A broker's copy of a metadata log that other nodes lead: KRaft's observer, which follows and never votes.

    request     Fetch from the end of our log, or the next piece of a snapshot (FetchSnapshot)
    answered    append what the leader sent; truncate if the logs diverge; fetch the leader's snapshot if it
                no longer has that part of the log; remember the leader
    apply       batches below the leader's high watermark become the next `image`, step by step

    the leader sends                    we do
    records                             append them, high watermark = min(end, the leader's)
    diverging epoch (epoch, end)        truncate to what both logs share
    snapshot id                         fetch it in pieces, log empty from its end on, image from it
    another leader or epoch             quorum-state first, then fetch there

It does no I/O itself: the log, the files and the clock are arguments, and the caller (server's
metadata_client) sends the requests. (Kafka: KafkaRaftClient as FollowerState of an observer.)

Rule: only what a leader called committed reaches `image`. After a start that is the newest snapshot alone,
until a leader answers. Rule: an answer counts for the request it belongs to; one of an older epoch is
ignored."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.records import encode_record
from kafkad.metadata.replay import Delta
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.records import read_batches
from kafkad.raft.election_state import NOBODY, ElectionState
from kafkad.raft.metadata_replica import (
    STEP,
    Files,
    MetadataLog,
    MetadataReplica,
    SnapshotId,
    SnapshotPolicy,
    UnusableMetadata,
)

logger = logging.getLogger(__name__)

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"  # Kafka: Uuid.METADATA_TOPIC_ID
FETCH_WAIT_MS: Final = 500  # Kafka: KafkaRaftClient.MAX_FETCH_WAIT_MS
APPLY_BYTES: Final = 64 << 10  # between two images, if more is waiting
NEWEST_LEVEL: Final = features.BY_NAME[features.METADATA_VERSION].highest
OLDEST_FETCH: Final = 17  # with the directory id of a replica, and the leader's endpoint in the answer


class Leader(NamedTuple):
    node_id: int
    host: str
    port: int


class Observer(MetadataReplica):
    """`leader` is None while no leader of `epoch` is known. `high_watermark`: everything below is
    committed."""

    def __init__(
        self,
        *,
        node_id: int,
        directory_id: bytes,
        cluster_id: str,
        log: MetadataLog,
        files: Files,
        clock: Any,
        policy: SnapshotPolicy | None = None,
        static_voters: Mapping[int, tuple[str, int]] | None = None,
        fetch_bytes_max: int = 1 << 20,
        snapshot_bytes_max: int = 1 << 20,
    ) -> None:
        """`static_voters`: controller.quorum.voters, (host, port) by id."""
        super().__init__(MetadataImage(cluster_id), log, files, clock, policy)
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.directory_id = directory_id
        self.leader: Leader | None = None
        self.high_watermark = 0
        self.told = -1  # the high watermark by a leader since the start; -1: none has said
        self.on_commit: Callable[[MetadataImage, Delta], Any] | None = None
        self.on_snapshot: Callable[[MetadataImage], Any] | None = None
        self.keeps_values = False
        self.values: list[
            bytes
        ] = []  # if wanted: the encoded records that led to `image` from the previous one
        self._static_voters = dict(static_voters or {})
        self._fetch_bytes_max = fetch_bytes_max
        self._snapshot_bytes_max = snapshot_bytes_max
        self.trouble = ""  # the last error that the quorum returned instead of metadata
        self._fetching: SnapshotId | None = None
        self._position = 0  # bytes of the snapshot received so far
        self._damaged: SnapshotId | None = None  # a snapshot that arrived damaged
        self._applying: Iterator[None] | None = None

    # -- start ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the newest whole snapshot the image; the log after it waits for a leader. Raises
        UnusableMetadata."""
        log = self._log
        self._loader.left_out = self._leave_out
        self._files.delete_leftovers()
        self._snapshot_ms = self._clock.monotonic_ms()
        snapshot = self._load_snapshot()
        if snapshot is None and log.log_start_offset > 0:
            logger.warning("%s has no whole snapshot: it is fetched from the beginning again", log.directory)
            log.truncate_fully_and_start_at(0)
        if snapshot is not None and (snapshot[0] > log.end_offset or snapshot[1] > self._last_log_epoch()):
            log.truncate_fully_and_start_at(snapshot[0])
        self.last_snapshot = snapshot
        self._take_image()
        self.high_watermark = self.image.offset + 1
        self._log.advance_high_watermark(self.high_watermark)
        self.epoch = max(self.last_fetched_epoch, self._election().leader_epoch)

    def _last_log_epoch(self) -> int:
        epochs = self._log.epochs
        return epochs[-1][0] if epochs else 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last batch in the log, or of the snapshot before an empty log."""
        if self._log.end_offset == self._log.log_start_offset:
            return self.last_snapshot[1] if self.last_snapshot is not None else 0
        return self._last_log_epoch()

    # -- requests ------------------------------------------------------------------------------------------

    def request(self) -> Any:
        """Return the next Fetch or FetchSnapshot, for the leader, or for any voter while there is none."""
        assert self._applying is None, "what was answered is applied first"
        if self._fetching is not None and self.leader is not None:
            return self._snapshot_request(self._fetching)
        cls = messages.FetchRequest
        partition = cls.Topics.Partitions(
            partition=0,
            current_leader_epoch=self.epoch,
            fetch_offset=self._log.end_offset,
            last_fetched_epoch=self.last_fetched_epoch,
            partition_max_bytes=0,  # as in Kafka: max_bytes is the bound
            replica_directory_id=self.directory_id,
            high_watermark=self.high_watermark,
        )
        return cls(
            cluster_id=self.cluster_id,
            replica_state=cls.ReplicaState(replica_id=self.node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=0,
            max_bytes=self._fetch_bytes_max,
            session_id=0,
            topics=[cls.Topics(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
        )

    def _snapshot_request(self, snapshot: SnapshotId) -> Any:
        cls = messages.FetchSnapshotRequest
        partition = cls.Topics.Partitions(
            partition=0,
            current_leader_epoch=self.epoch,
            snapshot_id=cls.Topics.Partitions.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
            position=self._position,
            replica_directory_id=self.directory_id,
        )
        return cls(
            cluster_id=self.cluster_id,
            replica_id=self.node_id,
            max_bytes=self._snapshot_bytes_max,
            topics=[cls.Topics(name=TOPIC, partitions=[partition])],
        )

    # -- answers -------------------------------------------------------------------------------------------

    def answered(self, response: Any) -> bool:
        """Handle the answer to `request`. False: no progress, ask again after a while, perhaps another voter.
        Raises UnusableMetadata, KafkaError (KAFKA_STORAGE_ERROR)."""
        if response.error_code:
            self._complain(response.error_code)
            return False
        try:
            if type(response) is messages.FetchResponse:
                return self._fetched(response)
            return self._snapshot_fetched(response)
        except Malformed as trouble:
            logger.error("the metadata quorum sent what cannot be: %s", trouble)
            self._fetching = None
            return False

    def leader_is_gone(self) -> None:
        """The leader does not answer: ask any voter for the leader. The epoch stays."""
        self.leader = None
        self._fetching = None

    def _fetched(self, response: Any) -> bool:
        partition = _only(response.responses)
        before = (self.epoch, self.leader)
        if not self._heard_of(partition, response.node_endpoints):
            return False
        if partition.error_code:
            return self._is_elsewhere(partition.error_code, before)
        diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
        if diverging.epoch >= 0:
            self._truncate(diverging.epoch, diverging.end_offset)
        elif snapshot.epoch >= 0 or snapshot.end_offset >= 0:
            self._begin_snapshot_fetch((snapshot.end_offset, snapshot.epoch))
        else:
            self._append(partition.records)
            self._commit_below(partition.high_watermark)
            self.trouble = ""
        return True

    def _is_elsewhere(self, code: int, before: Any) -> bool:
        """Handle an error. Return whether the answer names the node to ask."""
        if code in (errors.FENCED_LEADER_EPOCH, errors.UNKNOWN_LEADER_EPOCH, errors.NOT_LEADER_OR_FOLLOWER):
            return self.leader is not None and (self.epoch, self.leader) != before
        self._complain(code)
        return False

    def _complain(self, code: int) -> None:
        before, self.trouble = self.trouble, explained(code, self.cluster_id)
        if self.trouble != before:  # it is asked repeatedly
            logger.warning("the metadata quorum answers: %s", self.trouble)

    def _heard_of(self, partition: Any, endpoints: Any) -> bool:
        """Learn the leader. False: the sender is behind. Raises Malformed: an epoch has two leaders."""
        leader_id, epoch = partition.current_leader.leader_id, partition.current_leader.leader_epoch
        if epoch < self.epoch:
            return False
        if epoch == self.epoch and (leader_id < 0 or self.leader is not None):
            if leader_id >= 0 and self.leader is not None and leader_id != self.leader.node_id:
                raise Malformed(f"epoch {epoch} is led by {self.leader.node_id}, and by {leader_id} too")
            return True
        at = next(((node.host, node.port) for node in endpoints if node.node_id == leader_id), None)
        at = at or self._static_voters.get(leader_id) or self._voter_endpoint(leader_id)
        self._enter(epoch, leader_id, at)
        return True

    def _enter(self, epoch: int, leader_id: int, at: tuple[str, int] | None) -> None:
        """Enter this epoch with this leader (-1: not known) at this address: quorum-state first."""
        election = ElectionState(
            leader_epoch=epoch,
            leader_id=leader_id if leader_id >= 0 else NOBODY,
            voters=tuple(self._static_voters),
        )
        self._files.write_quorum_state(election.encode(self._kraft_version))
        self.epoch = epoch
        self._fetching = None
        self.leader = Leader(leader_id, *at) if leader_id >= 0 and at is not None else None
        logger.info("the metadata quorum is in epoch %d, its leader is %s", epoch, self.leader or "not known")

    def _voter_endpoint(self, voter_id: int) -> tuple[str, int] | None:
        for voter in self._voters:
            if voter.voter_id == voter_id:
                return next(iter(voter.endpoints.values()), None)
        return None

    def _append(self, records: Any) -> None:
        now_ms = self._clock.now_ms()
        for batch in read_batches(records or b""):
            if not batch.is_intact():
                raise Malformed(f"the metadata batch at offset {batch.base_offset} has a wrong CRC")
            if batch.leader_epoch > self.epoch:
                return  # from a leader whose epoch we have not entered yet (KAFKA-18723)
            if batch.base_offset != self._log.end_offset or batch.leader_epoch < self._last_log_epoch():
                raise Malformed(
                    f"a metadata batch of epoch {batch.leader_epoch} at offset {batch.base_offset} cannot"
                    f" follow offset {self._log.end_offset}"
                )
            self._log.append(bytearray(batch.bytes), now_ms, origin="replica")
            self._new_bytes += batch.size
            self._fetching = None  # the log goes on: a snapshot from before is not needed

    @property
    def is_current(self) -> bool:
        """Whether `image` has all that was committed when a leader last said so, not only a snapshot."""
        return 0 <= self.told <= self.image.offset + 1

    def _commit_below(self, high_watermark: int) -> None:
        self.told = max(self.told, high_watermark)
        told = min(high_watermark, self._log.end_offset)
        if told > self.high_watermark:
            self.high_watermark = told
            self._log.advance_high_watermark(told)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """Truncate to the end of what both logs have of `epoch`, or of the next older one of ours (Kafka:
        RaftLog.truncateToEndOffset)."""
        ours, our_end = self._end_of_epoch(epoch)
        offset = min(our_end, end_offset) if ours == epoch or epoch == 0 else our_end
        if offset < self.high_watermark:
            raise UnusableMetadata(
                f"{self._log.directory}: the leader of the metadata quorum asks to cut the log at {offset},"
                f" and offsets below {self.high_watermark} were committed: the quorum has lost data"
            )
        if not self._log.truncate_to(offset):
            raise Malformed(f"the leader's log parts from ours at {offset}, and ours ends there")
        logger.info("the metadata log is cut at offset %d: the leader's has another end", offset)

    def _end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) in our log: of this epoch, or of the next older one; of the oldest
        snapshot if the log begins with a newer one (Kafka: KafkaRaftLog.endOffsetForEpoch)."""
        found, end_offset = self._log.end_offset_for_epoch(epoch)
        if found < 0:
            return self.last_fetched_epoch, self._log.end_offset
        if found == epoch:
            for snapshot in self._files.snapshots()[:1]:
                if snapshot[0] == end_offset:
                    return snapshot[1], snapshot[0]
        return found, end_offset

    # -- a snapshot from the leader ------------------------------------------------------------------------

    def _begin_snapshot_fetch(self, snapshot: SnapshotId) -> None:
        if snapshot == self._damaged:
            self._damaged = None  # try once more, but not at once
            raise Malformed(f"snapshot {snapshot} came damaged")
        if min(snapshot) < 0 or snapshot[0] <= self.image.offset or snapshot[0] < self.high_watermark:
            raise Malformed(f"snapshot {snapshot} is offered where {self.high_watermark} is committed")
        if snapshot == self._fetching:
            return  # offered again, to a Fetch that was sent elsewhere meanwhile: a piece may be on its way
        logger.info("fetching the metadata snapshot at offset %d, epoch %d", *snapshot)
        self._fetching, self._position = snapshot, 0

    def _snapshot_fetched(self, response: Any) -> bool:
        partition = _only(response.topics)
        before = (self.epoch, self.leader)
        if not self._heard_of(partition, response.node_endpoints):
            return False
        snapshot = self._fetching
        if snapshot is None:
            return True  # another leader: begin again with a Fetch
        if partition.error_code:
            self._fetching = None
            if partition.error_code in (errors.SNAPSHOT_NOT_FOUND, errors.POSITION_OUT_OF_RANGE):
                return True  # it was deleted: the next Fetch gets a newer one
            return self._is_elsewhere(partition.error_code, before)
        told = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        piece = partition.unaligned_records or b""
        if told != snapshot or partition.position != self._position:
            raise Malformed(f"a piece of {told} at {partition.position}, and {snapshot} was asked")
        if not piece or self._position + len(piece) > partition.size:
            raise Malformed(f"a piece of {len(piece)} bytes at {self._position} of {partition.size}")
        try:
            self._files.write_part(snapshot, self._position, piece)
            self._position += len(piece)
            if self._position == partition.size:
                self._files.finish_part(snapshot)
        except OSError as trouble:
            self._fetching = None
            raise KafkaError(
                errors.KAFKA_STORAGE_ERROR, f"no metadata snapshot could be written: {trouble}"
            ) from trouble
        if self._position == partition.size:
            self._fetching = None
            self._applying = self._take_snapshot(snapshot)
        return True

    def _take_snapshot(self, snapshot: SnapshotId) -> Iterator[None]:
        """Begin image and log again from it, in steps. A damaged one is set aside."""
        try:
            yield from self._adopt_steps(snapshot)
        except Malformed as trouble:
            path = self._files.set_aside(snapshot)
            self._damaged = snapshot
            logger.error(
                "the metadata snapshot that was fetched is damaged (%s): it is now %s", trouble, path
            )
            return
        self._log.truncate_fully_and_start_at(snapshot[0])
        for older in self._files.snapshots():
            if older < snapshot:
                self._files.delete_snapshot(older)
        self.last_snapshot = snapshot
        self._new_bytes = 0
        self._take_image()
        self.high_watermark = max(self.high_watermark, snapshot[0])
        self._log.advance_high_watermark(snapshot[0])
        if self.on_snapshot is not None:
            self.on_snapshot(self.image)

    # -- applying ------------------------------------------------------------------------------------------

    def apply(self) -> bool:
        """Do a step towards the `image` of what is committed; return whether there are more. `request` waits
        for the last. Raises UnusableMetadata."""
        if self._applying is None:
            if self.image.offset + 1 >= self.high_watermark:
                return False
            self._applying = self._take_batches(self.image.offset + 1, self.high_watermark)
        for _ in self._applying:
            return True
        self._applying = None
        return self.image.offset + 1 < self.high_watermark

    def _take_batches(self, start: int, end: int) -> Iterator[None]:
        """Apply some batches to the image, in steps."""
        size = 0
        for raw in self._log.batches(start, end):
            for batch in read_batches(raw):
                if batch.last_offset < start:
                    continue
                try:
                    yield from self._replay_steps(batch)
                except Malformed as trouble:
                    raise UnusableMetadata(
                        f"{self._log.directory}: the metadata log cannot be used from offset"
                        f" {batch.base_offset} on: {trouble}"
                    ) from trouble
            size += len(raw)
            if size >= APPLY_BYTES:
                break
        self.values = yield from self._encoded()
        delta = self._take_image()
        if self.on_commit is not None:
            self.on_commit(self.image, delta)

    def _encoded(self) -> Generator[None, None, list[bytes]]:
        """Return what the loader has taken since the last image, in steps, in the newest version: for
        ourselves."""
        values: list[bytes] = []
        for record in self._loader.taken or ():
            values.append(encode_record(record, NEWEST_LEVEL))
            if len(values) % STEP == 0:
                yield
        return values

    def _take_image(self) -> Delta:
        image, delta = self._loader.finish()
        self._loader.taken = [] if self.keeps_values else None
        image.kraft_version = self._kraft_version
        self._image_control = (self._kraft_version, self._voters)
        trouble = features.unsupported(image.features)
        if trouble is not None:
            raise UnusableMetadata(f"{self._log.directory}: {trouble}")
        self.image = image
        return delta

    def close(self) -> None:
        self._log.close()


def _only(topics: Any) -> Any:
    """Return the single partition of an answer. Raises Malformed."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise Malformed("an answer that is not of the metadata log's one partition")
    return topics[0].partitions[0]


def explained(code: int, cluster_id: str) -> str:
    """Explain an error in the quorum's answer, for a node with this cluster id."""
    if code == errors.INCONSISTENT_CLUSTER_ID:
        return f"INCONSISTENT_CLUSTER_ID: meta.properties has cluster.id={cluster_id}, the quorum another one"
    return str(KafkaError(code))
