"""Strays: partition directories that the metadata does not know.

A stray is renamed to `<topic>-<partition>.<32 hex>-stray` and kept for the operator, as Kafka does it. It may
belong to a topic that a newer copy of the metadata knows: where the metadata log of yesterday was served for
a day, the partitions made since became strays. So a stray gets its name back at a start whose metadata has
its topic id and index, unless the partition is there."""

import logging
import os
import uuid
from collections.abc import Callable, Iterable

from kafkad.log.checkpoints import read_partition_metadata, sync_directory
from kafkad.log.filenames import STRAY_DIR, left_directory, parse_directory, partition_directory
from kafkad.protocol.errors import Malformed

logger = logging.getLogger("kafkad.log")


def topic_id_of(path: str) -> bytes | None:
    """The topic id in a partition's directory; None if there is none that can be read."""
    try:
        return read_partition_metadata(path)
    except (Malformed, OSError):
        return None


def stray_path(directory: str, topic: str, index: int) -> str:
    return os.path.join(directory, left_directory(topic, index, uuid.uuid4().hex, STRAY_DIR))


def set_aside(path: str, topic: str, index: int) -> None:
    """Rename a partition's directory that nobody has open. A failure leaves it where it is."""
    directory = os.path.dirname(path)
    stray = stray_path(directory, topic, index)
    logger.warning("%s is unknown to the metadata and moved to %s", path, stray)
    try:
        os.rename(path, stray)
        sync_directory(directory)
    except OSError as e:
        logger.error("%s is unknown to the metadata and could not be moved to %s: %s", path, stray, e)


def restore(directories: Iterable[str], wanted: Callable[[str, int, bytes], bool]) -> set[str]:
    """Give strays their names back for which `wanted(topic, index, topic id)`; the paths that they have
    now."""
    paths = list(directories)
    found: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
    for directory in paths:
        for name in os.listdir(directory):
            parsed = parse_directory(name) if name.endswith(STRAY_DIR) else None
            if parsed is None:
                continue
            topic_id = topic_id_of(os.path.join(directory, name))
            if topic_id is not None and wanted(parsed[0], parsed[1], topic_id):
                found.setdefault(parsed[:2], []).append((os.path.join(directory, name), topic_id))
    restored = set()
    for (topic, index), candidates in found.items():
        strays, topic_id = [path for path, _ in candidates], candidates[0][1]
        plain = partition_directory(topic, index)
        there = [path for each in paths if os.path.lexists(path := os.path.join(each, plain))]
        if any(topic_id_of(path) in (None, topic_id) for path in there):
            continue
        if len(strays) > 1:
            logger.error("%s-%d could be any of these, so none is used: %s", topic, index, ", ".join(strays))
            continue
        for path in there:
            set_aside(path, topic, index)
        path = os.path.join(os.path.dirname(strays[0]), plain)
        try:
            os.rename(strays[0], path)
            sync_directory(os.path.dirname(path))
        except OSError as e:
            logger.error("%s is known to the metadata and could not be moved to %s: %s", strays[0], path, e)
            continue
        logger.warning("%s is known to the metadata again and moved back to %s", strays[0], path)
        restored.add(path)
    return restored
