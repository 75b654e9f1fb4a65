"""Formats data directories before the first start: the identity of the node, and the initial state of its
cluster.

    <metadata directory>/bootstrap.checkpoint                 the feature levels of a fresh cluster
    <metadata directory>/__cluster_metadata-0/0…0.checkpoint  the first voters, if the log names them
    <directory>/meta.properties                               written last: everything else is there

The caller passes the contents of the first two as bytes. A directory that has a meta.properties is never
written to (Kafka: Formatter, MetaPropertiesEnsemble)."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from kafkad.log.checkpoints import META_PROPERTIES, make_directory, uuid_text, write_file
from kafkad.log.identity import Identity, random_id, read_identity, sign_of_use
from kafkad.log.metadata_files import MetadataFiles


class FormatRefused(Exception):
    """Nothing was written; the text is an error message for the operator."""


class Content(NamedTuple):
    """The initial state of a node. `directory_id`: of the metadata directory, if the voters are named by
    theirs."""

    cluster_id: str
    node_id: int
    bootstrap: bytes
    voters: bytes | None = None
    directory_id: bytes | None = None


def format_directories(
    paths: Sequence[str], metadata: str, content: Content, *, ignore_formatted: bool = False
) -> list[str]:
    """Format the directories that are not formatted; return them. `metadata` is the directory of the metadata
    log, and one of `paths`. Raises FormatRefused, OSError."""
    found = {path: identity for path in paths if (identity := _identity(path)) is not None}
    for path, identity in found.items():
        _check(path, identity, content)
    if found and not ignore_formatted:
        raise FormatRefused(
            f"Log directory {next(iter(found))} is already formatted. Use --ignore-formatted to ignore this"
            " directory and format the others"
        )
    fresh = [path for path in paths if path not in found]
    for path in fresh:
        if os.path.isdir(path) and (sign := sign_of_use(path)):
            raise FormatRefused(
                f"{path} holds {sign} but no {META_PROPERTIES}; restore that file, or empty the directory"
            )
    for path in sorted(fresh, key=lambda each: each == metadata):  # last: a start needs it
        _format(path, content, is_metadata=path == metadata)
    return fresh


def cluster_id_of(paths: Sequence[str]) -> str | None:
    """Return the cluster id of the first formatted directory. Raises FormatRefused."""
    return next((found.cluster_id for path in paths if (found := _identity(path)) is not None), None)


def _identity(path: str) -> Identity | None:
    try:
        return read_identity(os.path.join(path, META_PROPERTIES))
    except FileNotFoundError:
        return None
    except ValueError as trouble:
        raise FormatRefused(f"{os.path.join(path, META_PROPERTIES)} cannot be used: {trouble}") from trouble


def _check(path: str, identity: Identity, content: Content) -> None:
    where = os.path.join(path, META_PROPERTIES)
    if identity.cluster_id != content.cluster_id:
        raise FormatRefused(
            f"Invalid cluster.id in: {where}. Expected {content.cluster_id}, but read {identity.cluster_id}"
        )
    if identity.node_id != content.node_id:
        raise FormatRefused(
            f"Stored node id {identity.node_id} doesn't match previous node id {content.node_id} in {where}."
            " If you moved your data, make sure your configured node id matches"
        )


def _format(path: str, content: Content, *, is_metadata: bool) -> None:
    make_directory(path)
    directory_id = random_id()
    if is_metadata:
        files = MetadataFiles(path)
        files.write_bootstrap(content.bootstrap)
        if content.voters is not None:
            files.write_snapshot((0, 0), [content.voters])
        directory_id = content.directory_id or directory_id
    properties = {
        "cluster.id": content.cluster_id,
        "directory.id": uuid_text(directory_id),
        "node.id": content.node_id,
        "version": 1,
    }
    text = "#\n" + "".join(f"{key}={value}\n" for key, value in properties.items())
    write_file(os.path.join(path, META_PROPERTIES), text.encode("latin-1"))
