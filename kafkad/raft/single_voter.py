"""A quorum of one: the metadata log, written as Kafka's own single voter writes it.

    open      the newest whole snapshot, and the log after it, give the image
    lead      a new epoch: quorum-state first, then LeaderChange as the epoch's first record, fsynced
    append    records → one batch → `head`: the image that the next records follow
    commit    a flush in another thread, shared by all earlier appends; then `image` follows `head`, batch by
              batch: this node is the majority
    snapshot  as every replica of the log makes them (metadata_replica)

The log, the files beside it and the clock are arguments; nothing here does I/O itself, so a cluster can run
in one process from one seed.

Rule: records are replayed before they are written. A record that contradicts `head` never reaches the log.
Rule: a failed append leaves the log unchanged. A successful one is committed later: a flush that lacks a
descriptor or disk space is retried until it works (log.flusher), and appends wait for it.
Rule: a failed fsync is never retried, because the kernel may have dropped the pages. Then the directory is
offline, nothing is appended any more, and only the next start can find out which of the last appends are on
disk."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kafkad.config.broker import BrokerConfig
from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.records import Decoder
from kafkad.metadata.replay import Delta
from kafkad.metadata.uuids import uuid_text
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.records import read_batches
from kafkad.raft.bootstrap import build_bootstrap, build_voters_checkpoint, first_records, read_bootstrap
from kafkad.raft.control_records import (
    Voter,
    control_batch,
    leader_change,
    voters_record,
)
from kafkad.raft.describe import Quorum, Replica
from kafkad.raft.election_state import ElectionState
from kafkad.raft.metadata_replica import STEP, Files, MetadataLog, MetadataReplica, encoded_batches
from kafkad.raft.metadata_replica import SnapshotPolicy as SnapshotPolicy
from kafkad.raft.metadata_replica import UnusableMetadata as UnusableMetadata
from kafkad.raft.snapshots import (
    BATCH_SIZE_MAX,
    data_batch_steps,
)

logger = logging.getLogger(__name__)

# Without a controller listener, a voter still needs an address in the voter set; a Kafka that opens the
# directory replaces it by its own.
_NO_LISTENER: Final = {"CONTROLLER": ("localhost", 9093)}


_NO_DIRECTORY: Final = bytes(16)  # with kraft.version 0

UNFLUSHED_BYTES_MAX: Final = 32 << 20  # of appends that wait for a flush; beyond it appends are refused

Committed = Callable[[KafkaError | None], Any]


class Appended(NamedTuple):
    """One batch that is in the log and not committed yet; `image` is the image after it."""

    values: list[bytes]  # its records, encoded
    previous: int  # offset of the previous image
    image: MetadataImage
    delta: Delta
    size: int  # bytes in the log


class SingleVoter(MetadataReplica):
    """The one voter of a quorum. `image` is what is committed, `head` what is appended; both are replaced,
    never changed. `on_commit` is called with each committed batch, in order, when `image` has it."""

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
        static_voters: Sequence[int] = (),
        endpoints: dict[str, tuple[str, int]] | None = None,
        min_insync_replicas: int = 1,
        call_soon: Callable[[Callable[[], Any]], Any] | None = None,
    ) -> None:
        """`static_voters`: the ids of controller.quorum.voters. `endpoints`: our controller listeners, as
        advertised. `call_soon` runs commits on the loop; without it they run when the log reports a flush."""
        super().__init__(MetadataImage(cluster_id, node_id), log, files, clock, policy)
        self.node_id = node_id
        self.directory_id = directory_id
        self.is_leader = False
        self.head = self.image
        self.on_commit: Callable[[Appended], None] | None = None
        self._pending: deque[Appended] = deque()  # oldest first
        self._pending_bytes = 0
        self._flushing = False
        self._waiting: list[tuple[int, Committed]] = []  # for an offset to be committed
        self._call_soon = call_soon or (lambda function: function())
        self._static_voters = tuple(static_voters)
        self._endpoints = dict(endpoints or {})
        self._min_insync_replicas = min_insync_replicas

    @classmethod
    def configured(cls, config: BrokerConfig, **surroundings: Any) -> "SingleVoter":
        """Create it from a server.properties (config.BrokerConfig); `surroundings` are the other
        arguments."""
        told = {endpoint.listener: endpoint for endpoint in config.controller_endpoints}
        told |= {point.listener: point for point in config.advertised_endpoints if point.listener in told}
        return cls(
            node_id=config.node_id,
            policy=SnapshotPolicy.of(config),
            static_voters=[int(voter.partition("@")[0]) for voter in config.controller_quorum_voters],
            endpoints={name: (point.host or "localhost", point.port) for name, point in told.items()},
            min_insync_replicas=config.min_insync_replicas,
            **surroundings,
        )

    # -- start ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the metadata; a directory that was never used is formatted first. Raises UnusableMetadata."""
        self._loader.left_out = self._leave_out
        self._files.delete_leftovers()
        self._snapshot_ms = self._clock.monotonic_ms()
        if self._log.end_offset == 0 and not self._files.snapshots():
            self._format()
        snapshot = self._load_snapshot()
        start = self._log.log_start_offset
        if snapshot is None and start > 0:
            raise UnusableMetadata(
                f"{self._log.directory}: the metadata log begins at offset {start} and no whole snapshot"
                " reaches that far; put one back (a damaged one is named *.checkpoint.corrupt)"
                " or restore the directory"
            )
        if snapshot is not None and snapshot[0] > self._log.end_offset:
            logger.warning(
                "the metadata log ends at %d, below its snapshot at %d: it goes on from there",
                self._log.end_offset,
                snapshot[0],
            )
            self._log.truncate_fully_and_start_at(snapshot[0])
        self.last_snapshot = snapshot
        last_epoch = self._replay_log(snapshot[0] if snapshot is not None else 0)
        self.image, _ = self._loader.finish()
        self._loader.left_out = None  # our appends follow the image
        if self._left_out:
            logger.error("%s: %d metadata records were left out", self._log.directory, self._left_out)
        self.head = self.image
        self._decoder = Decoder()  # the old one's memory is not needed any more
        self.image.kraft_version = self._kraft_version  # this image is not shared yet
        trouble = features.unsupported(self.image.features)
        if trouble is not None:
            raise UnusableMetadata(f"{self._log.directory}: {trouble}")
        self.epoch = max(
            last_epoch, snapshot[1] if snapshot is not None else 0, self._election().leader_epoch
        )
        self._check_voters()

    def _format(self) -> None:
        now_ms = self._clock.now_ms()
        if self._files.read_bootstrap() is None:
            self._files.write_bootstrap(build_bootstrap(now_ms))
        if not self._static_voters:
            content = build_voters_checkpoint([self._as_voter()], now_ms)
            self._files.write_snapshot((0, 0), [content])
        logger.info("formatted %s for a metadata log of its own", self._log.directory)

    def _replay_log(self, start: int) -> int:
        """Feed the log from `start` on; return the epoch of its last batch, or 0. Raises UnusableMetadata."""
        epoch = 0
        for raw in self._log.batches(start, self._log.end_offset):
            self._new_bytes += len(raw)
            for batch in read_batches(raw):
                if batch.last_offset < start:
                    continue
                epoch = batch.leader_epoch
                try:
                    self._replay_batch(batch)
                except Malformed as trouble:
                    raise UnusableMetadata(
                        f"{self._log.directory}: the metadata log cannot be used from offset"
                        f" {batch.base_offset} on: {trouble}. Without it partitions could be lost: restore"
                        " the directory"
                    ) from trouble
        return epoch

    def _check_voters(self) -> None:
        voters = (
            {voter.voter_id for voter in self._voters}
            or set(self._election().voters)
            or set(self._static_voters)
        )
        if voters - {self.node_id}:
            raise UnusableMetadata(
                f"{self._log.directory}: the voters of this metadata log are {sorted(voters)}, and a broker"
                f" that is a quorum of its own can only follow a log with one voter, node.id {self.node_id}"
            )
        for voter in self._voters:
            if voter.directory_id != self.directory_id:
                raise UnusableMetadata(
                    f"{self._log.directory}: the voter of this metadata log has directory.id"
                    f" {uuid_text(voter.directory_id)}, and meta.properties says"
                    f" {uuid_text(self.directory_id)}"
                )

    # -- leading -------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin a new epoch as its leader; in an empty log, write the bootstrap records, too."""
        assert not self.is_leader
        self.epoch += 1
        election = ElectionState(leader_epoch=self.epoch, leader_id=self.node_id, voters=(self.node_id,))
        self._files.write_quorum_state(election.encode(self._kraft_version))
        self._log.set_leader_epoch(self.epoch)
        control: list[Any] = [leader_change(self.node_id, [self.node_id])]
        control.extend(self._voters_update())
        now_ms = self._clock.now_ms()
        base_offset = self._log.end_offset
        batch = control_batch(control, base_offset=base_offset, epoch=self.epoch, now_ms=now_ms)
        self.is_leader = True
        self._write(batch, len(control), now_ms)
        self._loader.skip(last_offset=base_offset + len(control) - 1, epoch=self.epoch, timestamp_ms=now_ms)
        records: list[Any] = []
        if self._loader.in_transaction:
            logger.warning("a metadata transaction of an earlier leader is aborted")
            records.append(messages.AbortTransactionRecord(reason="Controller failover"))
        if not self.image.metadata_version:
            records += self._bootstrap_records()
        if records:
            self.append(records)
            self.settle()
        else:
            self._log.flush()
            self.head, _ = self._loader.finish()
            self.image = self.head

    def _voters_update(self) -> list[Any]:
        """Return, with kraft.version 1, the voter set, if the log does not have it yet or has an old address
        of ours."""
        if self._kraft_version == 0:
            return []
        [recorded] = self._voters
        ours = self._as_voter()
        if not self._endpoints:
            ours = ours._replace(endpoints=recorded.endpoints)
        if self._voters_offset >= 0 and recorded == ours:
            return []
        self._voters, self._voters_offset = (ours,), self._log.end_offset
        return [messages.KRaftVersionRecord(k_raft_version=self._kraft_version), voters_record(self._voters)]

    def _as_voter(self) -> Voter:
        return Voter(self.node_id, self.directory_id, self._endpoints or dict(_NO_LISTENER))

    def _bootstrap_records(self) -> list[Any]:
        try:
            bootstrap = read_bootstrap(self._files.read_bootstrap())
        except Malformed as trouble:
            raise UnusableMetadata(
                f"bootstrap.checkpoint beside {self._log.directory}: {trouble}"
            ) from trouble
        return first_records(bootstrap, self._min_insync_replicas)

    def described(self) -> Quorum | None:
        """Return this quorum for DescribeQuorum; None before `lead` and after `close`."""
        if not self.is_leader:
            return None
        now_ms = self._clock.now_ms()
        directory_id = self.directory_id if self._kraft_version else _NO_DIRECTORY
        us = Replica(self.node_id, directory_id, self._log.end_offset, now_ms, now_ms)
        return Quorum(
            leader_id=self.node_id,
            epoch=self.epoch,
            high_watermark=self.image.offset + 1,
            voters=[us],
            observers=[],
            nodes=[(self.node_id, self._endpoints)],
        )

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._log.end_offset

    def append(self, records: Sequence[Any], *, atomic: bool = True) -> None:
        """Do all of `append_steps` now."""
        for _ in self.append_steps(records, atomic=atomic):
            pass

    def append_steps(self, records: Sequence[Any], *, atomic: bool = True) -> Generator[None, None, None]:
        """Append these records, in steps: `head` has them afterwards, and `image` once they are flushed.

        Atomic: all in one batch. Otherwise in as many as necessary; after a crash only the first ones may be
        left. Nothing else may be appended before the last step. Raises KafkaError(KAFKA_STORAGE_ERROR),
        ReplayError; then no further batch was appended.
        """
        assert self.is_leader
        batches = yield from encoded_batches(records, self.head.metadata_version, atomic=atomic)
        for records_of_batch, values in batches:
            yield from self._append_batch(records_of_batch, values)

    def _append_batch(self, records: Sequence[Any], values: list[bytes]) -> Iterator[None]:
        """Replay one batch and append it to the log, without a flush."""
        self._check_writable()
        now_ms = self._clock.now_ms()
        base_offset = self._log.end_offset
        try:
            yield from self._loader.feed_steps(
                records,
                STEP,
                last_offset=base_offset + len(values) - 1,
                epoch=self.epoch,
                timestamp_ms=now_ms,
            )
            batch = yield from data_batch_steps(
                values, STEP, base_offset=base_offset, epoch=self.epoch, now_ms=now_ms
            )
            assert len(batch) <= BATCH_SIZE_MAX + 61  # a batch's header
            self._write(batch, len(values), now_ms)
        except BaseException:
            self._loader.forget()
            raise
        previous = self.head.offset
        self.head, delta = self._loader.finish()
        assert self.head.offset == self._log.end_offset - 1
        self._pending.append(Appended(values, previous, self.head, delta, len(batch)))
        self._pending_bytes += len(batch)
        self._request_flush()

    def _check_writable(self) -> None:
        if self._broken:
            raise KafkaError(
                errors.KAFKA_STORAGE_ERROR,
                f"the metadata log could not be flushed ({self._broken}): nothing can be changed until the"
                " broker is restarted",
            )
        if self._pending_bytes > UNFLUSHED_BYTES_MAX:
            raise KafkaError(
                errors.KAFKA_STORAGE_ERROR,
                f"{self._pending_bytes} bytes of metadata changes wait for the disk: try again later",
            )

    def _write(self, batch: bytearray, record_count: int, now_ms: int) -> None:
        """Append one batch to the log, without a flush. After a failure the log is unchanged: for example
        after a full disk, which may have room again later."""
        expected = self._log.end_offset
        try:
            base_offset = self._log.append(batch, now_ms, origin="raft", epoch=self.epoch)
        except (OSError, KafkaError) as trouble:
            assert self._log.end_offset == expected
            raise _not_written(trouble) from trouble
        assert base_offset == expected
        assert self._log.end_offset == expected + record_count
        self._new_bytes += len(batch)

    # -- committing ----------------------------------------------------------------------------------------

    def await_committed(self, offset: int, callback: Committed) -> None:
        """Call `callback(None)` when `image` has reached `offset`, or with the KafkaError that prevents
        it."""
        if self.image.offset >= offset:
            callback(None)
        elif self._broken:
            callback(_unknown(self._broken))
        else:
            self._waiting.append((offset, callback))

    def settle(self) -> None:
        """Flush and commit everything appended, here and now: for start and stop. Raises KafkaError, OSError;
        after a shortage it may be called again."""
        if self._pending and not self._broken:
            self._log.flush()
            self._commit(self._log.end_offset)

    def _request_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._log.await_flushed(
                self._log.end_offset, lambda trouble: self._call_soon(lambda: self._flushed(trouble))
            )

    def _flushed(self, trouble: BaseException | None) -> None:
        self._flushing = False
        if trouble is not None:
            self._fail(trouble)
            return
        self._commit(self._log.recovery_point)
        if self._pending:
            self._request_flush()

    def _commit(self, end_offset: int) -> None:
        """Everything appended below `end_offset` is on disk."""
        while self._pending and self._pending[0].image.offset < end_offset:
            appended = self._pending.popleft()
            self._pending_bytes -= appended.size
            self.image = appended.image
            if self.on_commit is not None:
                self.on_commit(appended)
        self._answer(None)

    def _answer(self, trouble: KafkaError | None) -> None:
        """Call the callbacks whose offset is committed, or all of them with `trouble`."""
        ready = [each for each in self._waiting if trouble is not None or each[0] <= self.image.offset]
        self._waiting = [each for each in self._waiting if trouble is None and each[0] > self.image.offset]
        for _, callback in ready:
            callback(trouble)

    def _fail(self, trouble: BaseException) -> None:
        if not self._pending:
            return  # the log was closed
        self._broken = str(trouble) or type(trouble).__name__
        logger.error("the metadata log in %s could not be flushed: %s", self._log.directory, self._broken)
        self._pending.clear()  # `head` stays: what was planned on it is not committed
        self._pending_bytes = 0
        self._answer(_unknown(self._broken))

    def close(self) -> None:
        """Flush, commit and close the log. The image stays readable."""
        self.is_leader = False
        try:
            self.settle()
            if not self._broken:
                self._log.flush()
        finally:
            self._log.close()


def _not_written(trouble: Exception) -> KafkaError:
    return KafkaError(errors.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {trouble}")


def _unknown(trouble: str) -> KafkaError:
    return KafkaError(
        errors.KAFKA_STORAGE_ERROR,
        f"the metadata log could not be flushed ({trouble}): the change may or may not be there after the"
        " broker's next start",
    )
