"""Small files that are replaced atomically: checkpoints, partition.metadata, meta.properties.

A new file is written beside the old one, fsynced and renamed over it, and the directory is fsynced, as in
Kafka. A checkpoint is text: a version line, a count line, then one entry per line. A damaged file is never
fatal: reading it raises Malformed, and the caller continues without it, with one line in the log."""

import base64
import binascii
import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from kafkad.log.filenames import PARTITION_METADATA
from kafkad.protocol.errors import Malformed

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OF_RECORDS = (RECOVERY_POINTS, HIGH_WATERMARKS)  # these show whether a log had records
META_PROPERTIES = "meta.properties"

OFFSET_MAX = (1 << 63) - 1


def sync_directory(path: str) -> None:
    """Make names that were created, renamed or removed in the directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """Create a directory and its missing parents, durably."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path) or "."
    for each in reversed(missing):
        try:
            os.makedirs(each, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), each) from None
        sync_directory(os.path.dirname(each) or ".")


def write_file(path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace the file's contents by `data`, atomically."""
    beside = path + ".tmp"
    try:
        write_new(beside, data, sync=sync)
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)  # the incomplete file takes space on a full disk
        raise
    if sync:
        sync_directory(os.path.dirname(path) or ".")


def write_new(path: str, data: bytes, *, sync: bool) -> None:
    """Write a file with `data`; after an OSError it may have a part of it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def checkpoint_text(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join([f"0\n{len(entries)}\n", *(line + "\n" for line in entries)]).encode()


def checkpoint_lines(data: bytes) -> list[list[str]]:
    """Return the entries of a checkpoint, split at white space; none for an empty file. Raises Malformed."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise Malformed("a checkpoint is text") from None
    if len(lines) < 2:
        if lines and lines[0] != "0":
            raise Malformed(f"unknown checkpoint version {lines[0]!r}")
        return []
    if lines[0] != "0":
        raise Malformed(f"unknown checkpoint version {lines[0]!r}")
    entries = [line.split() for line in lines[2:]]
    if lines[1] != str(len(entries)):
        raise Malformed(f"{len(entries)} checkpoint entries where {lines[1]!r} are announced")
    return entries


def write_offsets(path: str, offsets: dict[tuple[str, int], int], *, sync: bool = True) -> None:
    write_file(path, offsets_text(offsets), sync=sync)


def offsets_text(offsets: dict[tuple[str, int], int]) -> bytes:
    """Return `<topic> <partition> <offset>` per line."""
    return checkpoint_text(f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())


def read_offsets(path: str) -> dict[tuple[str, int], int]:
    """Return an empty dict if there is no such file. Raises Malformed."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    offsets = {}
    for entry in checkpoint_lines(data):
        try:
            topic, index, offset = entry[0], int(entry[1]), int(entry[2])
        except (IndexError, ValueError):
            raise Malformed(f"not a checkpoint entry: {' '.join(entry)!r}") from None
        if len(entry) != 3 or index < 0 or not 0 <= offset <= OFFSET_MAX:
            raise Malformed(f"not a checkpoint entry: {' '.join(entry)!r}")
        offsets[topic, index] = offset
    return offsets


def uuid_text(uuid: bytes) -> str:
    """Return Kafka's form of a topic, cluster or directory id: 22 characters of base64url."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """Parse an id. Raises Malformed."""
    try:
        uuid = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        raise Malformed(f"not an id: {text!r}") from None
    if len(uuid) != 16:
        raise Malformed(f"not an id: {text!r}")
    return uuid


def write_partition_metadata(directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    write_file(os.path.join(directory, PARTITION_METADATA), _metadata_of(topic_id), sync=sync)


def _metadata_of(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_partition_metadata(directory: str) -> bytes | None:
    """Return the topic id, or None if there is no such file. Raises Malformed."""
    try:
        with open(os.path.join(directory, PARTITION_METADATA), "rb") as file:
            data = file.read(4096)
    except FileNotFoundError:
        return None
    return partition_metadata_id(data, directory)


@lru_cache(maxsize=256)
def _metadata_id(data: bytes) -> bytes | None:
    # cached: the partitions of one topic have the same contents
    fields = {}
    for line in data.decode("ascii", "replace").splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    if fields.get("version") != "0" or "topic_id" not in fields:
        return None
    return uuid_bytes(fields["topic_id"])


def partition_metadata_id(data: bytes, directory: str) -> bytes | None:
    """Return the topic id in `data`, the contents of a partition.metadata, or None. Raises Malformed."""
    topic_id = _metadata_id(data)
    if topic_id is None:
        raise Malformed(f"{PARTITION_METADATA} of {directory} is damaged")
    return None if topic_id == bytes(16) else topic_id
