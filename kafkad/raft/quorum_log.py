"""The metadata log as the active controller of a quorum writes it: the counterpart of SingleVoter, over a
RaftNode.

    standby    `term` is None; `head` raises NOT_CONTROLLER. `image` follows what is committed, as everywhere
    active     the whole log up to our LeaderChange is committed and applied: `head` begins as `image`, the
               first leader of an empty log writes the bootstrap records, and an open metadata transaction of
               the previous leader is aborted
    append     records → one batch → `head`, the image that the next records follow; `image` gets them when a
               majority has them on disk
    lost       callers that wait for a commit get NOT_CONTROLLER: the change may or may not have been made

The node applies the committed log by itself, so `head` and `image` are equal at equal offsets, and dropping
`head` is enough to go back.

Rule: a record that contradicts `head` never reaches the log.
Rule: code that appends in steps stops at the first step in another term."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import Loader
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.raft.bootstrap import first_records, read_bootstrap
from kafkad.raft.metadata_replica import STEP, UnusableMetadata, encoded_batches
from kafkad.raft.node import RaftNode
from kafkad.raft.snapshots import data_batch_steps

logger = logging.getLogger(__name__)

UNCOMMITTED_BYTES_MAX = 32 << 20  # of appends that wait for the quorum; beyond it appends are refused

Committed = Callable[[KafkaError | None], Any]


def not_controller() -> KafkaError:
    return KafkaError(errors.NOT_CONTROLLER, "This node is not the active controller.")


class QuorumLog:
    """Call `look` after every event of the node. `on_active` and `on_standby` are called when `term` has
    changed."""

    def __init__(self, node: RaftNode, clock: Any, *, min_insync_replicas: int = 1) -> None:
        self.node = node
        self.node_id = node.node_id
        self.term: int | None = None  # the epoch in which this node is the active controller
        self.on_active: Callable[[], Any] = lambda: None
        self.on_standby: Callable[[], Any] = lambda: None
        self.on_commit: Any = None  # set by the Controller: called by the node for committed batches
        self._clock = clock
        self._min_insync_replicas = min_insync_replicas
        self._head: MetadataImage | None = None
        self._loader: Loader | None = None
        self._uncommitted: deque[tuple[int, int]] = deque()  # (end offset, bytes)
        self._waiting: list[tuple[int, Committed]] = []

    @property
    def image(self) -> MetadataImage:
        return self.node.image

    @property
    def head(self) -> MetadataImage:
        """The newest image. Raises KafkaError(NOT_CONTROLLER)."""
        if self._head is None:
            raise not_controller()
        return self._head

    @property
    def next_offset(self) -> int:
        return self.node.end_offset

    # -- terms ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Follow changes of the node. Raises UnusableMetadata."""
        node = self.node
        if self.term is not None and not (node.is_leader and node.epoch == self.term):
            self._lose()
        if (
            self.term is None
            and node.is_leader
            and node.high_watermark_in_epoch >= node.end_offset == node.image.offset + 1
        ):
            self._begin(node)
        while self._uncommitted and self._uncommitted[0][0] <= node.image.offset + 1:
            self._uncommitted.popleft()
        self._answer(None)

    def _begin(self, node: RaftNode) -> None:
        self._head = node.image
        self._loader = loader = Loader(node.image)
        self.term = node.epoch
        records: list[Any] = []
        if node.in_transaction:
            logger.warning("a metadata transaction of an earlier leader is aborted")
            loader.feed([messages.BeginTransactionRecord()], **_place(node.image))
            loader.finish()
            records.append(messages.AbortTransactionRecord(reason="Controller failover"))
        if not node.image.metadata_version:
            records += self._bootstrap_records()
        try:
            for _ in self.append_steps(records):
                pass
        except KafkaError as trouble:
            logger.error("node %d cannot be the controller: %s", self.node_id, trouble)
            node.resign()
            self._lose()
            return
        logger.info("node %d is the active controller in epoch %d", self.node_id, self.term)
        self.on_active()

    def _bootstrap_records(self) -> list[Any]:
        try:
            bootstrap = read_bootstrap(self.node.read_bootstrap())
        except Malformed as trouble:
            raise UnusableMetadata(f"bootstrap.checkpoint of the metadata directory: {trouble}") from trouble
        return first_records(bootstrap, self._min_insync_replicas)

    def _lose(self) -> None:
        logger.info("node %d is no longer the active controller", self.node_id)
        self.term = self._head = self._loader = None
        self._uncommitted.clear()
        self._answer(not_controller())
        self.on_standby()

    # -- appending -----------------------------------------------------------------------------------------

    def append_steps(self, records: Sequence[Any], *, atomic: bool = True) -> Generator[None, None, None]:
        """Append these records, in steps: `head` has them afterwards, and `image` once they are committed.

        Atomic: all in one batch. Otherwise in as many as necessary; after a crash only the first ones may be
        left. Nothing else may be appended before the last step. Raises KafkaError(NOT_CONTROLLER,
        KAFKA_STORAGE_ERROR), ReplayError; then no further batch was appended."""
        if not records:
            return
        term = self.term
        batches = yield from encoded_batches(records, self.head.metadata_version, atomic=atomic)
        for records_of_batch, values in batches:
            yield from self._append_batch(term, records_of_batch, values)

    def _append_batch(
        self, term: int | None, records: Sequence[Any], values: list[bytes]
    ) -> Generator[None, None, None]:
        self._check(term)
        loader = self._loader
        assert loader is not None
        now_ms = self._clock.now_ms()
        assert term is not None
        try:
            while True:
                base_offset = self.node.end_offset
                for _ in loader.feed_steps(
                    records, STEP, last_offset=base_offset + len(values) - 1, epoch=term, timestamp_ms=now_ms
                ):
                    yield
                batch = yield from data_batch_steps(
                    values, STEP, base_offset=base_offset, epoch=term, now_ms=now_ms
                )
                self._check(term)
                if self.node.end_offset == base_offset:
                    break
                loader.forget()  # the quorum has appended new voters meanwhile: repeat after them
            self._write(batch, base_offset)
        except BaseException:
            loader.forget()
            raise
        self._head, _ = loader.finish()
        self._head.kraft_version = self.node.image.kraft_version
        assert self._head.offset == self.node.end_offset - 1
        self._uncommitted.append((self.node.end_offset, len(batch)))

    def _check(self, term: int | None) -> None:
        if self.term is None or self.term != term or self.node.epoch != term:
            raise not_controller()
        size = sum(size for _, size in self._uncommitted)
        if size > UNCOMMITTED_BYTES_MAX:
            raise KafkaError(
                errors.REQUEST_TIMED_OUT,
                f"{size} bytes of metadata changes wait for a majority of the quorum: try again later",
            )

    def _write(self, batch: bytearray, base_offset: int) -> None:
        def build(offset: int) -> bytearray:
            assert offset == base_offset, "somebody else has appended"
            return batch

        try:
            self.node.append(build)
        except OSError as trouble:
            raise KafkaError(
                errors.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {trouble}"
            ) from trouble
        except KafkaError as trouble:
            if trouble.code == errors.NOT_LEADER_OR_FOLLOWER:
                raise not_controller() from trouble
            raise

    # -- committing ----------------------------------------------------------------------------------------

    def await_committed(self, offset: int, callback: Committed) -> None:
        """Call `callback(None)` when `image` has reached `offset`, or with the KafkaError that prevents
        it."""
        if self.image.offset >= offset:
            callback(None)
        elif self.term is None:
            callback(not_controller())
        else:
            self._waiting.append((offset, callback))

    def settle(self) -> None:
        """Do nothing: only a majority can commit."""

    def _answer(self, trouble: KafkaError | None) -> None:
        if not self._waiting:
            return
        offset = self.image.offset
        ready = [each for each in self._waiting if trouble is not None or each[0] <= offset]
        self._waiting = [each for each in self._waiting if trouble is None and each[0] > offset]
        for end, callback in ready:
            callback(None if end <= offset else trouble)


def _place(image: MetadataImage) -> dict[str, int]:
    return {"last_offset": image.offset, "epoch": image.epoch, "timestamp_ms": image.timestamp_ms}
