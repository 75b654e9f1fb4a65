"""Strays: partition directories that are no replicas of this broker by the metadata.

A stray is renamed to `<topic>-<partition>.<32 hex>-stray` and kept for the operator, as in Kafka. It may
belong to a topic that a newer copy of the metadata knows: if yesterday's metadata log was served for a day,
the partitions created since then became strays. So a start whose metadata has the topic id and index of a
stray, with a replica here, restores its name, unless the partition exists, or had a newer log by the
checkpoints: without its last records, this broker must not lead. If the metadata name the directory of that
replica, only a stray there is used, because a newer log may be in one that is offline.

The checkpoint files name a partition by topic and index, which may belong to another partition by then. So
the entries of a stray are saved in a file of its own, and restored with its name: without its log start, the
records that were deleted from it would come back."""

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from kafkad.log.checkpoints import (
    OF_RECORDS,
    checkpoint_lines,
    checkpoint_text,
    read_partition_metadata,
    sync_directory,
    write_file,
)
from kafkad.log.directory import CHECKPOINTS, Directory
from kafkad.log.filenames import STRAY_DIR, left_directory, parse_directory, partition_directory
from kafkad.protocol.errors import Malformed

logger = logging.getLogger("kafkad.log")

KEPT_OFFSETS = "stray-offsets"  # `<name of a checkpoint> <offset>` per line
UNNAMED: Final = bytes(15)  # how the ids begin that stand for no directory: unknown, unassigned, lost


def topic_id_of(path: str) -> bytes | None:
    """Return the topic id in a partition's directory; None if there is none, or it cannot be read."""
    try:
        return read_partition_metadata(path)
    except (Malformed, OSError):
        return None


def set_aside(
    path: str, topic: str, index: int, offsets: Mapping[str, int], why: str = "is no replica in the metadata"
) -> None:
    """Rename a partition's directory that is not open. `offsets`: its values in the checkpoints. After a
    failure it stays where it is."""
    directory = os.path.dirname(path)
    stray = os.path.join(directory, left_directory(topic, index, uuid.uuid4().hex, STRAY_DIR))
    logger.warning("%s %s and moved to %s", path, why, stray)
    try:
        lines = (f"{name} {offset}" for name, offset in sorted(offsets.items()))
        write_file(os.path.join(path, KEPT_OFFSETS), checkpoint_text(lines))
        os.rename(path, stray)
        sync_directory(directory)
    except OSError as e:
        logger.error("%s %s and could not be moved to %s: %s", path, why, stray, e)


def kept_offsets(path: str) -> dict[str, int]:
    """Return the checkpoint values of a stray when it lost its name. Raises OSError."""
    try:
        with open(os.path.join(path, KEPT_OFFSETS), "rb") as file:
            entries = checkpoint_lines(file.read())
        return {name: int(offset) for name, offset in entries if name in CHECKPOINTS}
    except FileNotFoundError:
        return {}  # created by JVM Kafka, or a version that saved none
    except (Malformed, ValueError) as e:
        logger.error("%s is damaged, deleted records may come back: %s", os.path.join(path, KEPT_OFFSETS), e)
        return {}


def restore(
    directories: Iterable[Directory],
    wanted: Callable[[str, int, bytes], bool],
    assigned: Callable[[str, int], bytes],
) -> set[str]:
    """Restore the names of strays for which `wanted(topic, index, topic id)`. Return their paths.
    `assigned(topic, index)`: the id of the directory that the metadata name."""
    places = list(directories)
    found: dict[tuple[str, int], list[tuple[Directory, str, bytes]]] = {}
    for directory in places:
        for name in _names(directory.path):
            parsed = parse_directory(name) if name.endswith(STRAY_DIR) else None
            if parsed is None:
                continue
            path = os.path.join(directory.path, name)
            topic_id = topic_id_of(path)
            if topic_id is None or not wanted(parsed[0], parsed[1], topic_id):
                continue
            named = assigned(*parsed[:2])
            if named == directory.id or named.startswith(UNNAMED):
                found.setdefault(parsed[:2], []).append((directory, path, topic_id))
    restored = set()
    for (topic, index), candidates in found.items():
        plain = partition_directory(topic, index)
        there = [each for each in places if os.path.lexists(os.path.join(each.path, plain))]
        directory, stray, topic_id = candidates[0]
        if any(topic_id_of(os.path.join(each.path, plain)) in (None, topic_id) for each in there):
            continue
        if len(candidates) > 1:
            paths = ", ".join(path for _, path, _ in candidates)
            logger.error("%s-%d could be any of these, so none is used: %s", topic, index, paths)
            continue
        if not there and _is_older(stray, (topic, index), places):
            logger.error("%s stays: %s-%d had a newer log, which is gone", stray, topic, index)
            continue
        for each in there:
            set_aside(os.path.join(each.path, plain), topic, index, each.offsets_of((topic, index)))
        path = os.path.join(directory.path, plain)
        try:
            directory.name_again((topic, index), kept_offsets(stray), partial(os.rename, stray, path))
        except OSError as e:
            logger.error("%s is known to the metadata and could not be moved to %s: %s", stray, path, e)
            continue
        with suppress(OSError):
            os.unlink(os.path.join(path, KEPT_OFFSETS))
        logger.warning("%s is known to the metadata again and moved back to %s", stray, path)
        restored.add(path)
    return restored


def _is_older(stray: str, key: tuple[str, int], places: Iterable[Directory]) -> bool:
    """Return whether the checkpoints have offsets of another log of that partition, which is not there."""
    kept = kept_offsets(stray)
    try:
        found = [each.offsets_of(key) for each in places]
    except OSError:
        return False  # loading reports it
    named = [(name, each.get(name, 0)) for each in found for name in OF_RECORDS]
    return bool(kept) and any(offset > 0 and offset != kept.get(name) for name, offset in named)


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as e:
        logger.error("strays in %s cannot be looked for: %s", path, e)  # loading reports the result
        return []
