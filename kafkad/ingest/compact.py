"""Compaction: merge small files of a partition into files of the target size. No row is in the table twice.

Streams write one file per task, batch and partition. `plan` selects the files of each partition that are
smaller than SMALL of the target, in the order of offsets, and groups neighbours up to the target. A group of
one is left alone. `rewrite` copies a group's row groups into a new file, in parts (memory: a few row groups),
and checks the number of rows. The table commits: for Parquet, parquet_table.py describes what a reader sees
meanwhile; Delta's and Iceberg's logs replace files in one version.

A compaction may run at the same time as the pipeline, because batches only add files. A second compaction at
the same time is refused. The next compaction removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafkad.ingest import landing
from kafkad.ingest.table import FileEntry, Staging, Table, TableError, step

APPLICATION = "kafkad-compact"
SMALL = 0.75  # of the target: a smaller file is worth rewriting
BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction: files and bytes before and after, of the rewritten files."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    partitions: int = 0


def plan(files: Sequence[FileEntry], target_bytes: int) -> list[list[FileEntry]]:
    """Return groups of two or more files, each of one partition and of about `target_bytes`."""
    by_partition: dict[tuple[tuple[str, str | None], ...], list[FileEntry]] = {}
    for file in files:
        if file.bytes < target_bytes * SMALL:
            by_partition.setdefault(file.partition, []).append(file)
    groups = []
    for small in by_partition.values():
        group: list[FileEntry] = []
        size = 0
        for file in sorted(small, key=first_offset):
            if group and size + file.bytes > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(file)
            size += file.bytes
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def first_offset(file: FileEntry) -> tuple[str, int, int, str]:
    at = min(((o.topic, o.partition, o.first) for o in file.offsets), default=("", -1, -1))
    return (*at, file.path)


def compact_table(table: Table, target_bytes: int) -> Compacted:
    """Rewrite small files, one partition per version. Raises TableError if the table changed meanwhile as
    another compaction would change it.
    """
    with only_one(table):
        table.recover()
        table.clear_staged(APPLICATION)  # of one that was killed
        try:
            return rewrite_small(table, target_bytes)
        finally:
            table.clear_staged(APPLICATION)


def rewrite_small(table: Table, target_bytes: int) -> Compacted:
    staging = table.staging(APPLICATION)
    total = Compacted()
    by_partition: dict[object, list[list[FileEntry]]] = {}
    for group in plan(table.settled_files()[0], target_bytes):
        by_partition.setdefault(group[0].partition, []).append(group)
    for groups in by_partition.values():
        removed = [file for group in groups for file in group]
        added = [rewrite(group, staging) for group in groups]
        step("rewritten")
        table.replace(removed, added)
        total = Compacted(
            total.files_before + len(removed),
            total.files_after + len(added),
            total.bytes_before + sum(file.bytes for file in removed),
            total.bytes_after + sum(file.bytes for file in added),
            total.rows + sum(file.rows for file in added),
            total.partitions + 1,
        )
    return total


def rewrite(group: Sequence[FileEntry], staging: Staging) -> FileEntry:
    """Write one new file with the rows of these files to the staging area."""
    import pyarrow as pa
    from pyarrow import parquet

    root = Path(staging.root)
    schema = pa.ipc.read_schema(pa.py_buffer(staging.schema))
    kept = [f for f in schema if staging.keep_partition_columns or f.name not in staging.partition_by]
    name = staging.new_name()
    staged = f"{staging.folder}/{name}.staged"
    known = dict(group[0].partition)
    new = landing.ParquetFile(root / staged, pa.schema(kept), staging.compression, known)
    try:
        for file in group:
            with parquet.ParquetFile(root / file.path) as old:
                for batch in old.iter_batches(BATCH_ROWS):
                    new.add(landing.fitted(batch, new.schema))
        size = new.close()
    except BaseException:
        new.abandon()
        raise
    if new.rows != sum(file.rows for file in group):
        (root / staged).unlink()
        raise TableError(
            f"{group[0].path} and its neighbours do not hold as many rows as the table's log says"
        )
    path = str(Path(group[0].path).with_name(name + Path(group[0].path).suffix))
    stats = new.stats() if staging.with_stats else {}
    return FileEntry(path, staged, new.rows, size, group[0].partition, new.offset_ranges(), stats=stats)


@contextlib.contextmanager
def only_one(table: Table) -> Iterator[None]:
    """Hold the table's compaction lock. Raises TableError while another compaction is running."""
    table.own.mkdir(parents=True, exist_ok=True)
    with open(table.own / "compacting", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableError(f"another compaction of {table.root} is at work")
        yield
