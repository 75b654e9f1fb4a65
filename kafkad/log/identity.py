"""Identity of the data directories: meta.properties, and what a start does if one is missing.

    meta.properties   version=1, cluster.id and node.id (the same in all directories), directory.id (one each)

A directory without meta.properties is formatted only if neither it nor the others show that this broker had
data there. The metadata directory decides about all others, so the start is refused if it is damaged,
unformatted or has lost its metadata log: with a new, empty log every partition would become a stray. Another
directory that is damaged goes offline, and is complete again after a repair.

`identify` reads everything before it writes the first byte: a refused start leaves all files unchanged
(Kafka: MetaPropertiesEnsemble, KafkaRaftServer.initializeLogDirs)."""

import logging
import os
import re
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from kafkad.config.properties import read_properties
from kafkad.log.checkpoints import (
    META_PROPERTIES,
    uuid_bytes,
    uuid_text,
    write_file,
)
from kafkad.log.clean_marks import CLEAN_SHUTDOWN
from kafkad.log.directory import CHECKPOINTS, Directory
from kafkad.log.filenames import LOG, METADATA_TOPIC, parse_directory, partition_directory
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import HEADER_SIZE, LENGTH_OVERHEAD, Batch

logger = logging.getLogger("kafkad.log")

RESERVED_IDS: Final = 100  # Kafka: DirectoryId.reserved
_SNAPSHOT: Final = re.compile(r"(\d{20})-\d{10}\.checkpoint")  # of the metadata log


class DirectoryTrouble(Exception):
    """The data directories cannot be served; the text is one error message for the operator."""


class Identity(NamedTuple):
    """The content of a meta.properties."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None
    properties: dict[str, str]


def identify(
    directories: Sequence[Directory], metadata: Directory, node_id: int, *, is_controller: bool = True
) -> str:
    """Check and complete the identity of every online directory; return the cluster id. `metadata` is the
    directory of the metadata log. A damaged directory goes offline. Raises DirectoryTrouble."""
    if metadata.offline:
        raise DirectoryTrouble(
            f"the metadata directory {metadata.path} cannot be used, see the error logged before;"
            " mount or repair its disk"
        )
    found = {each.path: identity for each in directories if (identity := _read(each, each is metadata))}
    cluster_id = _only_cluster(found)
    _check_node(found, node_id)
    _check_metadata(directories, metadata, cluster_id, is_controller)
    for directory in directories:
        if not directory.offline and directory.path not in found and (sign := sign_of_use(directory.path)):
            _fail(directory, f"it holds {sign} but no {META_PROPERTIES}; restore that file, or empty it")
    online = [each for each in directories if not each.offline]
    if not any(each.for_logs for each in online):
        raise DirectoryTrouble(
            "none of the log directories can be used: "
            + ", ".join(each.path for each in directories if each.for_logs)
        )
    _assign_ids(online, found)
    cluster_id = cluster_id or uuid_text(random_id())
    # The metadata directory comes first: one without identity beside others that have one is refused.
    for directory in sorted(online, key=lambda each: each is not metadata):
        _write(directory, found.get(directory.path), cluster_id, node_id, directory is metadata)
    return cluster_id


def read_identity(path: str) -> Identity:
    """Read a meta.properties. Raises FileNotFoundError; OSError or ValueError if it is damaged."""
    properties = read_properties(path)
    version = properties.get("version", "0").strip()
    if version not in ("0", "1"):
        raise ValueError(f"version={version} is not supported, only 0 and 1")
    node = properties.get("node.id") or properties.get("broker.id")
    cluster_id = properties.get("cluster.id")
    if not node or not cluster_id:
        raise ValueError(f"{'cluster.id' if node else 'node.id'} is missing")
    try:
        node_id = int(node)
    except ValueError:
        raise ValueError(f"node.id={node} is not a number") from None
    text = properties.get("directory.id")
    try:
        directory_id = uuid_bytes(text) if text else None
    except Malformed as e:
        raise ValueError(f"directory.id: {e}") from None
    if directory_id is not None and int.from_bytes(directory_id) < RESERVED_IDS:
        raise ValueError(f"directory.id={text} is reserved")
    return Identity(cluster_id, node_id, directory_id, properties)


def _read(directory: Directory, is_metadata: bool) -> Identity | None:
    if directory.offline:
        return None
    path = os.path.join(directory.path, META_PROPERTIES)
    try:
        return read_identity(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        trouble = f"{path} cannot be used: {e}; restore it from a copy"
        if is_metadata:
            raise DirectoryTrouble(trouble) from e
        _fail(directory, trouble)
        return None


def _fail(directory: Directory, trouble: str) -> None:
    logger.error("log directory %s is offline: %s", directory.path, trouble)
    directory.offline = True


def _only_cluster(found: dict[str, Identity]) -> str:
    by_cluster: dict[str, list[str]] = {}
    for path, identity in found.items():
        by_cluster.setdefault(identity.cluster_id, []).append(path)
    if len(by_cluster) > 1:
        raise DirectoryTrouble(
            "the data directories belong to different clusters: "
            + "; ".join(
                f"cluster.id {each}: {', '.join(paths)}" for each, paths in sorted(by_cluster.items())
            )
        )
    return next(iter(by_cluster), "")


def _check_node(found: dict[str, Identity], node_id: int) -> None:
    for path, identity in found.items():
        if identity.node_id != node_id:
            raise DirectoryTrouble(
                f"{META_PROPERTIES} of {path} says node.id={identity.node_id}, the configuration {node_id}"
            )


def _check_metadata(
    directories: Sequence[Directory], metadata: Directory, cluster_id: str, is_controller: bool
) -> None:
    """Raise DirectoryTrouble if a start would begin a new metadata log beside data of an older one."""
    log = partition_directory(METADATA_TOPIC, 0)
    others = [each for each in directories if each is not metadata and not each.offline]
    for other in others:
        if os.path.exists(os.path.join(other.path, log)):
            raise DirectoryTrouble(
                f"{os.path.join(other.path, log)} is a metadata log outside of the metadata directory,"
                f" which is {metadata.path}; check log.dirs and metadata.log.dir"
            )
    advice = (
        f"mount its disk or restore it from a copy, or set metadata.log.dir to where the log"
        f" {log} of this broker is"
    )
    formatted = os.path.exists(os.path.join(metadata.path, META_PROPERTIES))
    if not formatted and cluster_id:
        path = next(each.path for each in others if os.path.exists(os.path.join(each.path, META_PROPERTIES)))
        raise DirectoryTrouble(
            f"the metadata directory {metadata.path} has no {META_PROPERTIES}, but {path} belongs to"
            f" cluster.id {cluster_id}; {advice}"
        )
    if formatted and (not is_controller or _has_metadata(os.path.join(metadata.path, log))):
        return
    for directory in (metadata, *others):
        sign = sign_of_use(directory.path)
        if sign:
            lacks = f"no whole records at the start of {log}" if formatted else f"no {META_PROPERTIES}"
            raise DirectoryTrouble(
                f"the metadata directory {metadata.path} has {lacks}, but {directory.path} holds {sign};"
                f" {advice}"
            )


def _has_metadata(path: str) -> bool:
    """Return whether there are records or snapshots. (Formatting leaves a snapshot at offset 0 and no log.) A
    log whose first batch is damaged counts as none: recovery would cut it to nothing."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return False
    if any((snapshot := _SNAPSHOT.match(name)) and int(snapshot[1]) > 0 for name in names):
        return True
    segments = sorted(name for name in names if name.endswith(LOG))
    return bool(segments) and _begins_whole(os.path.join(path, segments[0]))


def _begins_whole(path: str) -> bool:
    """Whether a segment begins with an intact batch."""
    with open(path, "rb") as file:
        data = file.read(HEADER_SIZE)
        size = int.from_bytes(data[8:12], "big", signed=True) + LENGTH_OVERHEAD
        if len(data) < HEADER_SIZE or not HEADER_SIZE <= size <= os.fstat(file.fileno()).st_size:
            return False
        data += file.read(size - HEADER_SIZE)
    try:
        return Batch(data).is_intact()
    except ValueError:
        return False


def sign_of_use(path: str) -> str:
    """Return the name of a file that only a broker running on this directory creates, or ""."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in (CLEAN_SHUTDOWN, *CHECKPOINTS):
                return entry.name
            parsed = parse_directory(entry.name)
            if parsed is not None and entry.is_dir():
                if parsed[0] != METADATA_TOPIC:
                    return entry.name
                if _has_metadata(entry.path):
                    return entry.name
    return ""


def _assign_ids(online: Sequence[Directory], found: dict[str, Identity]) -> None:
    seen: dict[bytes, str] = {}
    for directory in online:
        identity = found.get(directory.path)
        directory.id = (identity and identity.directory_id) or random_id()
        if directory.id in seen:
            raise DirectoryTrouble(
                f"data directory {directory.path} has the same directory.id as {seen[directory.id]}"
            )
        seen[directory.id] = directory.path


def _write(
    directory: Directory, identity: Identity | None, cluster_id: str, node_id: int, is_metadata: bool
) -> None:
    properties = identity.properties if identity else {}
    wanted = {
        **properties,
        "cluster.id": cluster_id,
        "directory.id": uuid_text(directory.id),
        "node.id": str(node_id),
        "version": "1",
    }
    wanted.pop("broker.id", None)
    if wanted == properties:
        return
    text = "#\n" + "".join(f"{key}={value}\n" for key, value in sorted(wanted.items()))
    try:
        write_file(os.path.join(directory.path, META_PROPERTIES), text.encode("latin-1"))
    except OSError as e:
        if is_metadata:
            raise DirectoryTrouble(f"{META_PROPERTIES} of {directory.path} cannot be written: {e}") from e
        _fail(directory, f"{META_PROPERTIES} cannot be written: {e}")


def random_id() -> bytes:
    """Return a random id that does not begin with a dash, because tools take that for an option; as Kafka
    does."""
    while True:
        made = uuid.uuid4().bytes
        if not uuid_text(made).startswith("-"):
            return made
