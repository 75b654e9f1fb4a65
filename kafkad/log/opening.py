"""How a log is opened: first a survey of what its last owner left, then its files are loaded.

    Kept      the values in the checkpoints, or in the shared row of an owner that has just died
    survey    lists the directory; reads the topic id and the leader epochs stored there
    load      reads the segments (recovery.py); the results go to the partition's row and to the flusher

`Log.open` creates the `Log` between the last two, because a disk that fails during recovery calls it."""

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kafkad._native.log.partition import Partition
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.shared.watermarks import leave_odd
from kafkad.log import recovery
from kafkad.log.checkpoints import partition_metadata_id, write_partition_metadata
from kafkad.log.clean_marks import CleanStop
from kafkad.log.filenames import LEADER_EPOCHS, PARTITION_METADATA
from kafkad.log.flusher import LONG_MAX, Flusher
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.owner import Owner
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError, Malformed

if TYPE_CHECKING:
    from kafkad._native.shared.watermarks import RowSlot

logger: Final = logging.getLogger("kafkad.log")


class Opened(Owner, Protocol):
    """The part of `log.Log` that loading needs."""

    snapshot_offset: int
    scanned_bytes: int
    cleaned_below: int
    producer_expiration_ms: int

    @property
    def flusher(self) -> Flusher: ...

    def flush(self) -> None: ...


class Emptied(KafkaError):
    """Somebody has removed the segments of a log, which had records up to `end_offset`."""

    def __init__(self, directory: str, end_offset: int) -> None:
        super().__init__(
            KAFKA_STORAGE_ERROR, f"{directory} has no segment, and had records up to offset {end_offset}"
        )
        self.end_offset = end_offset


@dataclass(slots=True)
class Kept:
    """What the last owner of the log has recorded, before a file is read."""

    clean: bool | CleanStop
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    cleaned_below: int
    left: "RowSlot | None"  # the shared row of an owner that has just died
    trusted: recovery.OwnersRow | None = None  # its values about the files

    def expect(self, directory: str, files: recovery.Files) -> None:
        """Raise Emptied if the log had records and has no segment any more."""
        end = max(self.recovery_point, self.high_watermark)
        if end > 0 and not files.sizes:
            raise Emptied(directory, end)

    def trust(self, directory: str) -> None:
        """Take the values of the previous owner's row, if there is one."""
        if self.left is None:
            return
        self.clean = False
        values = self.left.values()
        if values.leader_epoch >= 0:  # otherwise it died before it had loaded the log
            self.recovery_point = values.flushed_offset
            self.log_start_offset = max(self.log_start_offset, values.log_start_offset)
            self.high_watermark = max(self.high_watermark, values.high_watermark)
            position = values.end_position if values.whole else -1
            self.trusted = recovery.OwnersRow(
                values.log_end_offset, values.end_segment, position, values.last_epoch
            )
        if recovery.has_swaps(directory):
            leave_odd(self.left)  # other workers read here: they wait until the names are right


@dataclass(slots=True)
class Survey:
    """What a directory contains, before its segments are read."""

    files: recovery.Files
    native: Partition
    epochs: LeaderEpochs
    epochs_lost: bool  # their file is unreadable: recovery rebuilds them
    kept_id: bytes | None  # from partition.metadata


def survey(
    directory: str, topic: str, partition: int, topic_id: bytes | None, row: "RowSlot | None", kept: Kept
) -> Survey:
    """Survey the partition's directory; create it if necessary. Raises Malformed if it belongs to another
    topic id, Emptied if `kept` expects records and there are none, OSError if the disk fails."""
    try:
        files = recovery.list_files(directory)
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)
        files = recovery.list_files(directory)
    kept_id = None if files.metadata is None else _kept_topic_id(files.metadata, directory)
    if topic_id is not None and kept_id is not None and kept_id != topic_id:
        raise Malformed(f"{directory} belongs to another topic of that name (its id differs)")
    kept.expect(directory, files)
    epochs_lost = False
    try:
        # JVM Kafka creates an empty file with the partition, and fills it with the first record.
        none_yet = files.epochs == b"" and not any(files.sizes.values())
        epochs = LeaderEpochs.read(directory, None if none_yet else files.epochs)
    except Malformed as e:
        logger.warning("%s is unreadable and is rebuilt: %s", os.path.join(directory, LEADER_EPOCHS), e)
        epochs_lost = True
        epochs = LeaderEpochs(directory)
    native = Partition(topic, partition, topic_id or kept_id, directory, row, ProducerTable())
    return Survey(files, native, epochs, epochs_lost, kept_id)


def load(log: Opened, seen: Survey, kept: Kept, topic_id: bytes | None, now_ms: int) -> None:
    """Read the segments, except what `kept` vouches for. Raises OSError if the disk fails."""
    directory, native, config = log.directory, log.native, log.config
    was_there = bool(seen.files.sizes)
    if topic_id is not None and seen.kept_id is None:
        write_partition_metadata(directory, topic_id, sync=False)
    if topic_id is not None and (seen.kept_id is None or not was_there):
        log.flusher.paths.add(os.path.join(directory, PARTITION_METADATA))
    loader = recovery.Loader(
        directory,
        native,
        seen.epochs,
        now_ms=now_ms,
        index_interval_bytes=config.index_interval_bytes,
        producer_expiration_ms=log.producer_expiration_ms,
        index_size_max=config.segment_index_bytes,
        compacted="compact" in config.cleanup_policy,
        cleaned_below=kept.cleaned_below,
        epochs_lost=seen.epochs_lost,
    )
    loaded = loader.load(
        seen.files,
        clean=kept.clean,
        recovery_point=kept.recovery_point,
        log_start_offset=kept.log_start_offset,
        trusted=kept.trusted,
    )
    if not loaded.clean or not was_there:
        # Names that the last owner created, renamed or removed may not be on disk yet, nor those created
        # here.
        log.flusher.directories.update((directory, os.path.dirname(directory)))
    else:
        log.first_base_synced = native.first_base_offset
    log.flusher.paths.update(loader.rebuilt)
    log.scanned_bytes = loaded.scanned_bytes
    log.cleaned_below = kept.cleaned_below
    log.snapshot_offset = loaded.snapshot_offset
    native.set_log_start(loaded.log_start_offset)
    native.set_flushed(loaded.recovery_point)
    native.advance_high_watermark(max(kept.high_watermark, loaded.log_start_offset))
    native.refresh_stable()
    if loaded.end_offset > loaded.recovery_point and config.flush_messages < LONG_MAX:
        # Acknowledged records may be visible already: HW must not go back only because of the recovery point.
        log.flush()
    if kept.left is not None:
        native.adopt_row(kept.left)
        native.read_to_end = True  # other workers may be sending what the last owner led
    native.note_epochs()  # for the next successor


def _kept_topic_id(metadata: bytes, directory: str) -> bytes | None:
    try:
        return partition_metadata_id(metadata, directory)
    except Malformed as e:
        logger.warning("%s", e)
        return None
