"""The files beside the metadata log: snapshots, the election state, the bootstrap records.

    <metadata.log.dir>/bootstrap.checkpoint                              the first records of a fresh cluster
    <metadata.log.dir>/__cluster_metadata-0/quorum-state                 the newest election, one line of JSON
    <metadata.log.dir>/__cluster_metadata-0/<offset>-<epoch>.checkpoint  a snapshot: all metadata below offset

Each is written under another name, fsynced and renamed, and its directory is fsynced: it exists whole or not
at all. This module handles bytes only; kafkad.raft knows their meaning.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Final

from kafkad.config.broker import BrokerConfig
from kafkad.config.topic import TopicConfig
from kafkad.log.filenames import METADATA_TOPIC as METADATA_TOPIC

METADATA_BATCH_MAX: Final = 8 << 20  # KafkaRaftClient.MAX_BATCH_SIZE_BYTES
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"  # Kafka: Uuid.METADATA_TOPIC_ID

_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_LEFTOVER: Final = re.compile(r"\d{20}-\d{10}.*\.checkpoint\.(part|deleted)")

SnapshotId = tuple[int, int]  # (offset, epoch): it has everything below the offset


def metadata_config(config: BrokerConfig) -> TopicConfig:
    """The configuration of the metadata log."""
    return TopicConfig.resolve(
        config,
        {
            "cleanup.policy": "",
            "compression.type": "producer",
            "flush.messages": str((1 << 63) - 1),
            "flush.ms": str((1 << 63) - 1),
            "max.message.bytes": str(METADATA_BATCH_MAX),
            "message.timestamp.type": "CreateTime",
            "segment.bytes": str(config.metadata_log_segment_bytes),
            "segment.ms": str(config.metadata_log_segment_ms),
        },
    )


class MetadataFiles:
    """`directory` is metadata.log.dir, or the first of log.dirs."""

    def __init__(self, directory: str) -> None:
        self.root = directory
        self.directory = os.path.join(directory, f"{METADATA_TOPIC}-0")
        os.makedirs(self.directory, exist_ok=True)

    # -- bootstrap.checkpoint, quorum-state ----------------------------------------------------------------

    def read_bootstrap(self) -> bytes | None:
        return _read(os.path.join(self.root, "bootstrap.checkpoint"))

    def write_bootstrap(self, content: bytes) -> None:
        _write(os.path.join(self.root, "bootstrap.checkpoint"), [content])

    def read_quorum_state(self) -> bytes | None:
        return _read(os.path.join(self.directory, "quorum-state"))

    def write_quorum_state(self, content: bytes) -> None:
        _write(os.path.join(self.directory, "quorum-state"), [content])

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshots(self) -> list[SnapshotId]:
        """Return the existing snapshots, oldest first."""
        found = map(_SNAPSHOT.fullmatch, os.listdir(self.directory))
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def read_snapshot(self, snapshot: SnapshotId) -> bytes:
        content = _read(self._path(snapshot))
        if content is None:
            raise FileNotFoundError(self._path(snapshot))
        return content

    def read_piece(self, snapshot: SnapshotId, position: int, size: int) -> bytes:
        """Return these bytes of a snapshot; fewer at its end."""
        with open(self._path(snapshot), "rb") as file:
            file.seek(position)
            return file.read(size)

    def read_beginning(self, snapshot: SnapshotId) -> bytes:
        """Return enough bytes for the header."""
        with open(self._path(snapshot), "rb") as file:
            return file.read(1 << 16)

    def write_snapshot(self, snapshot: SnapshotId, pieces: Iterable[bytes | bytearray]) -> int:
        """Write a snapshot and return its size in bytes. After a failure nothing is left behind."""
        return _write(self._path(snapshot), pieces, temporary=".part")

    def write_part(self, snapshot: SnapshotId, position: int, piece: bytes | memoryview) -> None:
        """Write a piece of a snapshot that arrives in order; position 0 replaces an older attempt."""
        with open(self._path(snapshot) + ".part", "wb" if position == 0 else "r+b") as file:
            file.seek(position)
            file.write(piece)

    def finish_part(self, snapshot: SnapshotId) -> None:
        """All pieces are there: fsync the file and give it its name."""
        path = self._path(snapshot)
        with open(path + ".part", "rb") as file:
            os.fsync(file.fileno())
        os.replace(path + ".part", path)
        _sync_directory(self.directory)

    def delete_snapshot(self, snapshot: SnapshotId) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(snapshot))

    def set_aside(self, snapshot: SnapshotId) -> str:
        """Rename a damaged snapshot to a name that Kafka ignores, too; return the new path."""
        path = self._path(snapshot)
        os.replace(path, path + ".corrupt")
        return path + ".corrupt"

    def size(self, snapshot: SnapshotId) -> int:
        return os.stat(self._path(snapshot)).st_size

    def delete_leftovers(self) -> None:
        """Delete snapshots that were being written or deleted when the broker last stopped."""
        for name in os.listdir(self.directory):
            if _LEFTOVER.fullmatch(name):
                os.unlink(os.path.join(self.directory, name))

    def _path(self, snapshot: SnapshotId) -> str:
        return os.path.join(self.directory, f"{snapshot[0]:020d}-{snapshot[1]:010d}.checkpoint")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, pieces: Iterable[bytes | bytearray], temporary: str = ".tmp") -> int:
    size = 0
    try:
        with open(path + temporary, "wb") as file:
            for piece in pieces:
                size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + temporary)
        raise
    _sync_directory(os.path.dirname(path))
    return size


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
