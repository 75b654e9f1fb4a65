"""What Spark's tasks do for a pipeline: read ranges of offsets, decode, write files, and report.

Everything here goes to the tasks as plain values (`Work`), by mapInArrow over `spark.range(n)`, one row a
task, so that it runs under local masters, clusters and Spark Connect alike:

    land        ranges -> files; no row crosses into the JVM. A task answers one row, its TaskReport
    read        ranges -> typed rows for Spark: what the view `input` is made of, where SQL or dedup want it
    write       rows that Spark made -> files; one TaskReport a task
    put_aside   rows of `read` that could not be decoded -> files of the dead letter queue

What ends a run for good (a bad record under `fail`, a full disk, a type that does not fit) is answered as a
row that begins with REFUSED and a sentence, rather than raised: the driver shows it, and does not try again.
Anything else that is raised may pass (a broker or a worker was killed) and the batch is done again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkad.ingest.landing import BadRecord, Landing, LandSettings, ParquetFile, land, write_task
from kafkad.ingest.pipeline import PROVENANCE
from kafkad.ingest.table import FileEntry, Staging, TableError, TaskReport

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkad.spark.options import ReadOptions

REFUSED = "!"
REPORT_SCHEMA = "report string"
ERROR = "_error"  # of `read`: why a value could not be decoded; the row's columns are null then
HELD_BACK = (ERROR, "_value")  # columns of `read` that the view `input` does not show

# what no second attempt mends
HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Work:
    """What tasks of one batch are told; pickled to them."""

    options: ReadOptions
    ranges: tuple[tuple[tuple[str, int, int, int], ...], ...]  # by task
    settings: LandSettings
    staging: Staging


def land_tasks(work: Work) -> Any:
    """The function for mapInArrow that lands."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(rows):
            yield report(lambda: land(fetched(work, work.ranges[number]), work.settings, work.staging))  # noqa: B023

    return run


def land_rows_tasks(
    ends: dict[tuple[str, int], tuple[int, int]], settings: LandSettings, staging: Staging
) -> Any:
    """The same for rows that Spark's own connector read: a task has one partition's, in their order."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report(lambda: land(by_partition(rows, ends), settings, staging))

    return run


def write_tasks(staging: Staging) -> Any:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report(lambda: write_task(rows, staging))

    return run


def read_tasks(work: Work) -> Any:
    """The function for mapInArrow that gives typed rows; their columns are those of `rows_schema`."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(rows):
            for _, _, _, _, batches in fetched(work, work.ranges[number]):
                yield from decoded(batches, work.settings)

    return run


def decode_tasks(settings: LandSettings) -> Any:
    """The same for rows that Spark's own connector read."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from decoded(rows, settings)

    return run


def put_aside_tasks(staging: Staging) -> Any:
    """Rows of `read` that have an error, into the dead letter queue's files."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report(lambda: put_aside(rows, staging))

    return run


# --- their parts


def numbers(rows: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in rows:
        yield from batch.column(0).to_pylist()


def report(work: Any) -> pa.RecordBatch:
    """One row: the TaskReport, or why it can never be."""
    import pyarrow as pa

    try:
        told = work().to_json()
    except (BadRecord, TableError) as refused:
        told = REFUSED + str(refused)
    except OSError as trouble:
        if trouble.errno not in HOPELESS:
            raise
        why = os.strerror(trouble.errno or 0)
        told = f"{REFUSED}{trouble.filename or 'a data file'} cannot be written: {why}"
    except Exception as trouble:
        if not is_final(trouble):
            raise
        told = REFUSED + str(trouble)
    return pa.record_batch([pa.array([told], pa.string())], names=["report"])


def is_final(trouble: Exception) -> bool:
    """Offsets that are gone, a schema that cannot be: another attempt would say the same."""
    return isinstance(trouble, ValueError) or type(trouble).__name__ in ("DataLoss", "DataLossError")


def fetched(
    work: Work, ranges: Sequence[tuple[str, int, int, int]]
) -> Iterator[tuple[str, int, int, int, Iterable[pa.RecordBatch]]]:
    for topic, partition, start, end in ranges:
        yield topic, partition, start, end, range_batches(work.options, topic, partition, start, end)


def range_batches(
    options: ReadOptions, topic: str, partition: int, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Record batches with Kafka's columns, headers among them when the options say so."""
    if options.log_dir is not None:
        from kafkad.spark.segment_files import logs_in
        from kafkad.spark.segment_scan import ScanPartition, read

        log = logs_in(options.log_dir)[topic, partition]
        yield from read(ScanPartition(log, start, end, options))
        return
    from kafkad.spark.range_reader import RangeReader

    how: dict[str, Any] = {"fetch_bytes": options.fetch_bytes} if options.fetch_bytes else {}
    yield from RangeReader(
        options.bootstrap,
        options.client_config,
        topic,
        partition,
        start,
        end,
        isolation="read_committed" if options.read_committed else "read_uncommitted",
        headers=options.headers,
        verify_crc=options.verify_crc,
        timeout_s=options.timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
        **how,
    )


def by_partition(
    rows: Iterator[pa.RecordBatch], ends: dict[tuple[str, int], tuple[int, int]]
) -> Iterator[tuple[str, int, int, int, Iterable[pa.RecordBatch]]]:
    """A task's rows as one range: Spark's connector reads one partition a task."""
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return
    where = first.column("topic")[0].as_py(), first.column("partition")[0].as_py()

    def rest() -> Iterator[pa.RecordBatch]:
        yield first
        yield from rows

    yield *where, *ends[where], rest()


def rows_schema(settings: LandSettings) -> pa.Schema:
    """Of what `read` gives: the value's columns (raw: key, value), provenance, what tells of bad ones."""
    import pyarrow as pa

    kafka = [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
    if settings.decoder is None:
        return pa.schema([("key", pa.binary()), ("value", pa.binary()), *kafka])
    return pa.schema(
        [
            *decoder_of(settings).schema,
            *kafka,
            ("_key", pa.binary()),
            (ERROR, pa.string()),
            ("_value", pa.binary()),
        ]
    )


def decoder_of(settings: LandSettings) -> Any:
    from kafkad.spark.values import value_decoder

    assert settings.decoder is not None
    return value_decoder(*settings.decoder)


def decoded(batches: Iterable[pa.RecordBatch], settings: LandSettings) -> Iterator[pa.RecordBatch]:
    """Typed rows of `rows_schema`. With `fail` a bad record raises; else it is a row with an error."""
    import pyarrow as pa

    schema = rows_schema(settings)
    decoder = None if settings.decoder is None else decoder_of(settings)
    for batch in batches:
        if batch.num_rows == 0:
            continue
        kafka = [batch.column(name[1:]) for name in PROVENANCE]
        if decoder is None:
            arrays = [batch.column("key"), batch.column("value"), *kafka]
        else:
            values = batch.column("value")
            result = decoder.decode(values)
            if len(result.bad_rows) and settings.bad == "fail":
                bad, at = result.bad_rows[0], [column.to_pylist()[result.bad_rows[0]] for column in kafka[:3]]
                raise BadRecord(
                    f"the record at offset {at[2]} of {at[0]}-{at[1]} cannot be decoded: {result.reasons[0]}"
                )
            errors: list[str | None] = [None] * batch.num_rows
            kept: list[bytes | None] = [None] * batch.num_rows
            for bad, reason in zip(result.bad_rows, result.reasons, strict=True):
                errors[bad] = reason or "it cannot be decoded"
                kept[bad] = values[bad].as_py()
            arrays = [
                *result.columns,
                *kafka,
                batch.column("key"),
                pa.array(errors, pa.string()),
                pa.array(kept, pa.binary()),
            ]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def put_aside(rows: Iterator[pa.RecordBatch], staging: Staging) -> TaskReport:
    import pyarrow as pa

    from kafkad.ingest.dlq import SCHEMA

    renamed = {"key": "_key", "value": "_value", "error": ERROR}
    writer = Landing(LandSettings(None, "dlq"), staging)
    for batch in rows:
        if batch.num_rows == 0:
            continue
        if writer.dlq is None:
            writer.dlq_name = staging.new_name()
            staged = os.path.join(staging.dlq_root, staging.dlq_folder, f"{writer.dlq_name}.staged")
            from pathlib import Path

            writer.dlq = ParquetFile(Path(staged), SCHEMA, "zstd")
        arrays = []
        for field in SCHEMA:
            at = batch.schema.get_field_index(renamed.get(field.name, field.name))
            arrays.append(
                batch.column(at).cast(field.type) if at >= 0 else pa.nulls(batch.num_rows, field.type)
            )
        writer.dlq.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    files: list[FileEntry] = writer.close()
    return TaskReport(tuple(files))
