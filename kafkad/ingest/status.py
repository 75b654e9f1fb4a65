"""The status of a pipeline: its offsets and the brokers', the results of its batches, and the table's
content.

It reads the checkpoint, asks the brokers, and lists the table's files. It takes no lock and writes nothing,
so it may run at the same time as `run`; the parts may then differ by a batch.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from typing import Any

from kafkad.ingest.backlog import Backlog
from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.pipeline import Pipeline
from kafkad.ingest.run import checkpoint_path, place_of

SMALL = 0.5  # of the target size: smaller files would be compacted


@dataclass
class Status:
    """`partitions`: (topic, partition, committed, end, lag). `troubles`: messages about failed queries."""

    pipeline: str
    running: bool
    partitions: list[tuple[str, int, int | None, int | None, int | None]] = field(default_factory=list)
    unfinished: int | None = None  # the batch that was planned and is not done
    totals: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    table: str = ""
    files: int = 0
    file_bytes: int = 0
    small_files: int = 0
    rows: int = 0
    dlq_rows: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def lag(self) -> int | None:
        known = [row[4] for row in self.partitions if row[4] is not None]
        return sum(known) if known else None


def status(pipeline: Pipeline) -> Status:
    checkpoint = Checkpoint(checkpoint_path(pipeline), pipeline.name, read_only=True)
    found = Status(pipeline.name, is_held(checkpoint), table=place_of(pipeline))
    position = checkpoint.landed()
    unfinished = checkpoint.unfinished()
    found.unfinished = None if unfinished is None else unfinished.id
    if history := checkpoint.history():
        found.last = {name: value for name, value in history[-1].items() if name != "totals"}
        found.totals = history[-1]["totals"]
    backlog = Backlog(pipeline)
    try:
        backlog.look()
    except Exception as trouble:
        found.troubles.append(f"the brokers did not say where topics end: {trouble}")
    for where in sorted(set(position) | set(backlog.latest)):
        committed, end = position.get(where), backlog.latest.get(where)
        begins = committed if committed is not None else backlog.earliest.get(where, 0)
        lag = None if end is None else max(0, end - begins)
        found.partitions.append((*where, committed, end, lag))
    try:
        look_at_table(pipeline, found)
    except Exception as trouble:
        found.troubles.append(f"the table {place_of(pipeline)} cannot be read: {trouble}")
    return found


def look_at_table(pipeline: Pipeline, found: Status) -> None:
    from kafkad.ingest.tables import open_table

    if pipeline.sink.path is not None and not os.path.isdir(pipeline.sink.path):
        return
    table = open_table(pipeline.sink, None, pipeline.dlq.path)
    files = table.files()
    found.files = len(files)
    found.file_bytes = sum(file.bytes for file in files)
    found.rows = sum(file.rows for file in files)
    found.small_files = sum(file.bytes < pipeline.sink.target_file_bytes * SMALL for file in files)
    if table.dlq_root.is_dir():
        found.dlq_rows = sum(file.rows for file in table.dlq.files())


def is_held(checkpoint: Checkpoint) -> bool:
    """Return whether a run holds the checkpoint's lock now."""
    try:
        descriptor = os.open(checkpoint.path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
