"""Builds and parses the names of Kafka's files and directories (LogFileUtils,
LocalLog.parseTopicPartitionName).

The names of a segment's files have its base offset in 20 digits. A partition's directory is
`<topic>-<partition>`, and `<topic>-<partition>.<32 hex>-delete` (or -stray, -future) once it is out of use;
the topic is cut so that the name fits in 255 bytes."""

import os
import re
from collections.abc import Iterable
from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

DELETE_DIR: Final = "-delete"
STRAY_DIR: Final = "-stray"
FUTURE_DIR: Final = "-future"

PARTITION_METADATA: Final = "partition.metadata"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
METADATA_TOPIC: Final = "__cluster_metadata"

NAME_MAX: Final = 255
OFFSET_DIGITS: Final = 20

_LEFT = re.compile(r"^(\S+)-(\d+)\.([0-9a-f]{32})(-delete|-stray|-future)$")
_DIRECTORY = re.compile(r"^(\S+)-(\d{1,10})$")


def segment_file(directory: str, base_offset: int, suffix: str) -> str:
    return os.path.join(directory, f"{base_offset:020d}{suffix}")


def offset_of(name: str) -> int | None:
    """Return the offset with which a file's name begins, or None: 42 for `00000000000000000042.log`."""
    digits = name[:OFFSET_DIGITS]
    if len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit() and name[20:21] in ("", "."):
        return int(digits)
    return None


def partition_directory(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def left_directory(topic: str, partition: int, unique: str, suffix: str) -> str:
    """Return the directory name of a partition that is being deleted, or is a stray; `unique`: 32 hex
    digits."""
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: NAME_MAX - len(tail)] + tail


def parse_directory(name: str) -> tuple[str, int, str] | None:
    """Return (topic, partition, "" or the suffix of a directory out of use), or None for other names."""
    if name.endswith((DELETE_DIR, STRAY_DIR, FUTURE_DIR)):
        left = _LEFT.match(name)
        return (left[1], int(left[2]), left[4]) if left else None
    plain = _DIRECTORY.match(name)
    if plain and int(plain[2]) < 1 << 31:
        return plain[1], int(plain[2]), ""
    return None


def future_names(names: Iterable[str]) -> set[str]:
    """Return the plain names of the partitions that have a -future directory among `names`."""
    futures = (parse_directory(name) for name in names if name.endswith(FUTURE_DIR))
    return {partition_directory(parsed[0], parsed[1]) for parsed in futures if parsed is not None}
