"""The dead letter queue: records that could not be decoded, unchanged, with the reason.

It is a separate Parquet table (`_dlq` inside of the pipeline's table, or `[dlq] path`), committed together
with the batch (table.py: intents). Its files end in .dlq, so that globs over the table do not include them.
Any Parquet reader can read it: `duckdb -c "from read_parquet('table/_dlq/*.dlq')"`.

A topic may get the records, too: see letter_topic.py. Their headers (`headers_of`) have the origin and the
reason.

`replay` decodes the DLQ again, with the pipeline's current schema. Good records are added to the table and
removed from the DLQ in one commit (the intent has both), once. Bad records stay, with the new reason. Its
batches have their own numbers, under the application REPLAY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet

from kafkad.ingest import landing
from kafkad.ingest.table import REPLAY, FileEntry, Letters, Table, TaskReport, gone, step

BATCH_ROWS = 8192
HEADER = "kafkad."  # + topic, partition, offset, timestamp, reason: as badRecords = dlq:<topic> of the source


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    found: int = 0
    landed: int = 0
    still_bad: int = 0
    reasons: tuple[tuple[str, int], ...] = ()  # of those that are still bad; the most frequent first


def records(dlq: Letters) -> Iterator[pa.RecordBatch]:
    """Yield all of its records, with SCHEMA."""
    for file in dlq.files():
        yield from rows_of(dlq.root / file.path)


def rows_of(place: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file. Raises TableError if it is gone."""
    try:
        data = parquet.ParquetFile(place)
    except FileNotFoundError:
        raise gone(place) from None
    with data:
        yield from data.iter_batches(BATCH_ROWS)


def reasons(dlq: Letters, most: int = 10) -> list[tuple[str, int]]:
    """Return (error, count) of its records, the most frequent first."""
    counts: dict[str, int] = {}
    for batch in records(dlq):
        for row in batch.column("error").value_counts().to_pylist():
            counts[row["values"]] = counts.get(row["values"], 0) + row["counts"]
    return sorted(counts.items(), key=lambda each: -each[1])[:most]


def headers_of(row: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return the record's own headers, and its origin. `_timestamp` in microseconds."""
    told = {
        "topic": row["_topic"],
        "partition": row["_partition"],
        "offset": row["_offset"],
        "timestamp": "" if row["_timestamp"] is None else row["_timestamp"] // 1000,
        "reason": row["error"],
    }
    own = [(each["key"], each["value"]) for each in row["headers"] or ()]
    return [*own, *((HEADER + name, str(value).encode()) for name, value in told.items())]


def replay(table: Table, settings: landing.LandSettings, decoder: Any = None) -> Replayed:
    """Land the records that can be decoded now. Raises TableError if the table changed incompatibly."""
    table.recover(REPLAY)
    files = table.dlq.files()
    staging = table.staging(REPLAY)
    again = landing.Landing(replace(settings, bad="dlq"), staging, decoder)
    good = landing.PartitionedFiles(staging, table.schema)
    try:
        for file in files:
            for batch in rows_of(table.dlq.root / file.path):
                for rows in again.batches(as_fetched(batch)):
                    good.add(landing.fitted(rows, table.schema))
        entries = good.close() + again.close()
    except BaseException:
        good.abandon()
        again.abandon()
        raise
    step("replay staged")
    report = TaskReport(tuple(entries))
    found = sum(file.rows for file in files)
    assert report.rows + report.bad == found, "every record of the DLQ is good or bad"
    return exchanged(table, files, [report], report.rows)


def exchanged(
    table: Table, files: Sequence[FileEntry], reports: Sequence[TaskReport], decoded: int
) -> Replayed:
    """Commit the decoded rows to the table, and the records that are still bad in place of the DLQ's `files`,
    in one commit. If none could be decoded, nothing changes.
    """
    still_bad = [file for report in reports for file in report.files if file.dlq]
    reasons: dict[str, int] = {}
    for entry in still_bad:
        for batch in rows_of(table.dlq_root / entry.staged):
            for row in batch.column("error").value_counts().to_pylist():
                reasons[row["values"]] = reasons.get(row["values"], 0) + row["counts"]
    if decoded:
        # the DLQ may be older than the table, or another table's: skip the batches that either has
        batch_id = max(table.last_batch(REPLAY), table.dlq.last_batch(REPLAY)) + 1
        table.commit(REPLAY, batch_id, reports, dlq_removed=[file.path for file in files])
    else:
        table.discard(REPLAY, [file for report in reports for file in report.files])
    rows = sum(report.rows for report in reports)
    told = sorted(reasons.items(), key=lambda each: -each[1])
    return Replayed(sum(file.rows for file in files), rows, sum(file.rows for file in still_bad), tuple(told))


def as_fetched(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return DLQ rows with the column names of a fetch."""
    names = [name.removeprefix("_") for name in batch.schema.names]
    batch = pa.RecordBatch.from_arrays(batch.columns, names)
    kind = pa.array([0], pa.int32())
    return batch.append_column("timestampType", compute.take(kind, pa.array([0] * batch.num_rows)))
