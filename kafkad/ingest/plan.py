"""`plan` shows what a run would do; `validate` checks whether it could.

`plan` uses the brokers and the checkpoint: the pipeline's position, the records to read, and the number of
batches, tasks and (about) files. `validate` checks one thing after the other and reports each: packages,
schema, sink, brokers, topics, position. Neither reads a record, starts Spark (except `validate` of a pipeline
with SQL, which only Spark can check), or leaves anything behind.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkad.ingest import session as sessions
from kafkad.ingest import tasks
from kafkad.ingest.backlog import Backlog
from kafkad.ingest.checkpoint import Checkpoint, Offsets
from kafkad.ingest.pipeline import Pipeline
from kafkad.ingest.run import checkpoint_path, land_settings, place_of, result_schema

PARQUET_SHARE = 0.35  # Parquet's share of the log's bytes: flights as JSON in lz4 take a third


@dataclass(frozen=True)
class Plan:
    """`partitions`: (topic, partition, from, to, records, bytes or None); the others are sums and
    estimates."""

    partitions: list[tuple[str, int, int, int, int, int | None]]
    lost: int
    records: int
    bytes: int | None
    batches: int
    tasks: int
    files: int
    position_from: str  # "the checkpoint" or "[source] start"


def plan(pipeline: Pipeline) -> Plan:
    """Query the brokers. Raises their errors, and DataLoss."""
    backlog = Backlog(pipeline)
    backlog.look()
    checkpoint = Checkpoint(checkpoint_path(pipeline), pipeline.name, read_only=True)
    known = not checkpoint.is_new
    backlog.known_ids = checkpoint.topic_ids()
    position: Offsets = checkpoint.position() if known else backlog.first()
    start, lost = backlog.start_of(position)
    rows = []
    for (topic, partition), at in sorted(start.items()):
        end = backlog.latest[topic, partition]
        weight = backlog.weights.get((topic, partition))
        rows.append(
            (topic, partition, at, end, end - at, None if weight is None else int((end - at) * weight))
        )
    records = sum(row[4] for row in rows)
    sizes = [row[5] for row in rows if row[5] is not None]
    size = sum(sizes) if sizes else None
    batches = max(
        math.ceil(records / pipeline.source.max_rows) if pipeline.source.max_rows else int(records > 0),
        math.ceil(size / pipeline.source.max_bytes)
        if size and pipeline.source.max_bytes
        else int(records > 0),
    )
    count = 0
    if records:
        share = [(t, p, a, a + max(1, (e - a) // max(batches, 1))) for t, p, a, e, n, _ in rows if n]
        count = len(backlog.tasks(share, sessions.cores_of(pipeline.spark.master)))
    files = batches * count
    if size:
        files = max(files, math.ceil(size * PARQUET_SHARE / pipeline.sink.target_file_bytes))
    return Plan(
        rows, lost, records, size, batches, count, files, "the checkpoint" if known else "[source] start"
    )


@dataclass(frozen=True)
class Check:
    """One check of `validate`: `trouble` is None if it passed."""

    what: str
    found: str
    trouble: str | None = None


def validate(pipeline: Pipeline) -> list[Check]:
    """Check everything that a run needs, except reading. A failure does not prevent the other checks."""
    checks: list[Check] = [Check("pipeline", pipeline.file)]

    def attempt(what: str, work: Callable[[], str]) -> bool:
        try:
            checks.append(Check(what, work()))
        except Exception as trouble:
            checks.append(Check(what, "", " ".join(str(trouble).split()) or type(trouble).__name__))
        return checks[-1].trouble is None

    attempt("packages", lambda: packages(pipeline))
    schema_is_fine = attempt("schema", lambda: schema_of(pipeline))
    attempt("sink", lambda: sink_of(pipeline))
    backlog: list[Backlog] = []

    def brokers() -> str:
        backlog.append(Backlog(pipeline))
        if pipeline.source.log_dir:
            return pipeline.source.log_dir
        backlog[0].reader.cluster.any()
        return f"{pipeline.source.bootstrap} answers"

    if attempt("broker", brokers) and attempt("topics", lambda: topics_of(backlog[0])):
        attempt("position", lambda: position_of(pipeline, backlog[0]))
    if pipeline.transform.sql and schema_is_fine:
        attempt("sql", lambda: sql_of(pipeline))
    return checks


def packages(pipeline: Pipeline) -> str:
    wanted = ["pyspark", "pyarrow", "pandas"]
    wanted += {"delta": ["deltalake"], "iceberg": ["pyiceberg"]}.get(pipeline.sink.type, [])
    sessions.require(*wanted, extra="ingest")
    return ", ".join(wanted)


def schema_of(pipeline: Pipeline) -> str:
    settings = land_settings(pipeline)
    if settings.decoder is None:
        return "raw: key and value as they are"
    names = tasks.decoder_of(settings).schema.names
    missing = [name for name in pipeline.sink.partition_by if name not in names and not name.startswith("_")]
    if missing and not pipeline.transform.sql:
        raise ValueError(f"[sink] partition_by names {missing[0]}, which the schema does not have")
    return f"{len(names)} columns: {', '.join(names[:6])}{', …' if len(names) > 6 else ''}"


def sink_of(pipeline: Pipeline) -> str:
    place = place_of(pipeline)
    if pipeline.sink.path is None:
        return f"{pipeline.sink.type} table {place}"
    there = Path(pipeline.sink.path)
    parent = there
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ValueError(f"{parent} is not a directory")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{parent} may not be written to")
    return f"{place} {'is there' if there.exists() else 'will be made'}"


def topics_of(backlog: Backlog) -> str:
    partitions = backlog.reader.partitions()
    if not partitions:
        raise ValueError(f"no topic matches {backlog.source.pattern}")
    topics = sorted({topic for topic, _ in partitions})
    count = len(partitions)
    named = f"{', '.join(topics[:5])}{', …' if len(topics) > 5 else ''}"
    return f"{named}: {count} partition{'' if count == 1 else 's'}"


def position_of(pipeline: Pipeline, backlog: Backlog) -> str:
    backlog.look()
    checkpoint = Checkpoint(checkpoint_path(pipeline), pipeline.name, read_only=True)
    position = backlog.first() if checkpoint.is_new else checkpoint.position()
    backlog.start_of(position)
    whence = "[source] start" if checkpoint.is_new else "the checkpoint"
    lag = backlog.lag(position)
    return f"{lag:,} {'record' if lag == 1 else 'records'} to read, from {whence}"


def sql_of(pipeline: Pipeline) -> str:
    spark: Any = sessions.session(pipeline)
    try:
        return f"{len(result_schema(pipeline, lambda: spark))} columns"
    finally:
        if not sessions.submitted():
            spark.stop()
