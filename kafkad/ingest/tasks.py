"""The work of Spark's tasks for a pipeline: read ranges of offsets, decode, write files, and report.

Tasks get plain values (`Work`), by mapInArrow over `spark.range(n)` with one row per task. So they run the
same way under local masters, clusters and Spark Connect:

    land        ranges -> files; no row crosses into the JVM. A task returns one row, its TaskReport
    read        ranges -> typed rows for Spark: the rows of the view `input`, for SQL or dedup
    write       rows from Spark -> files; one TaskReport per task

`read` sets bad records aside itself, so that a batch is read only once. It can return only rows to Spark. So
it writes its TaskReport to a small file next to the staged files, named after the task's part of the batch.
If Spark computes a part again, the same file is written again. If a file is missing, the part was not read to
its end (because of a LIMIT, or a WHERE that nothing can pass), and the driver has it read by `finish`.

An error that ends the run (a bad record under `fail`, a full disk, a type that does not fit) is not raised:
it is returned as a row that begins with REFUSED and has the error message. The driver prints it and does not
retry. Any exception that is raised may be temporary (a broker or a worker was killed), and the batch is
repeated.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest.landing import (
    BadRecord,
    Holes,
    Landing,
    LandSettings,
    key_and_value_bytes,
    land,
    write_task,
)  # fmt: skip
from kafkad.ingest.pipeline import PROVENANCE
from kafkad.ingest.table import Covered, Staging, TableError, TaskReport, safe_name, staged_folder
from kafkad.spark.worker import task_begins

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkad.spark.options import ReadOptions

REFUSED = "!"
REPORT_SCHEMA = "report string"
READ_REPORT = ".read"  # suffix of the files in which `read` reports what it read

# errors for which a retry is useless
HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Work:
    """The parameters of one batch's tasks; pickled to them."""

    options: ReadOptions
    ranges: tuple[tuple[tuple[str, int, int, int], ...], ...]  # by task
    settings: LandSettings
    staging: Staging
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # for which the ranges were planned, if known
    token: str = ""  # of one attempt at a batch: prefix of the names of `read`'s reports


def land_tasks(work: Work) -> Any:
    """Return the function for mapInArrow that lands records."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(rows):
            ranges = fetched(work, work.ranges[number])
            yield report(lambda: land(ranges, work.settings, work.staging), work.staging)  # noqa: B023

    return run


def land_rows_tasks(
    ends: dict[tuple[str, int], tuple[int, int]], settings: LandSettings, staging: Staging
) -> Any:
    """The same for rows from Spark's own connector: each task has one partition's, in order."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report(lambda: land(by_partition(rows, ends), settings, staging), staging)

    return run


def write_tasks(staging: Staging) -> Any:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report(lambda: write_task(rows, staging), staging)

    return run


def read_tasks(work: Work) -> Any:
    """Return the function for mapInArrow that yields typed rows; their columns are those of `rows_schema`."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(rows):
            parts = fetched(work, work.ranges[number])
            yield from read(parts, work.settings, work.staging, f"{work.token}-{number}")

    return run


def read_rows_tasks(
    ends: dict[tuple[str, int], tuple[int, int]], settings: LandSettings, staging: Staging, token: str
) -> Any:
    """The same for rows from Spark's own connector: each task has one partition's, in order."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in by_partition(rows, ends):
            yield from read([part], settings, staging, f"{token}-{part[0]}-{part[1]}")

    return run


def read_stream_tasks(settings: LandSettings, staging: Staging) -> Any:
    """The same for a stream's rows, whose tasks have several partitions: distinguished by their first row."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is not None:
            name = "-".join(str(first.column(each)[0]) for each in ("topic", "partition", "offset"))
            parts = [(None, 0, 0, 0, itertools.chain([first], rows))]
            yield from read(parts, settings, staging, name)

    return run


def read_letters_tasks(places: Sequence[str], settings: LandSettings, staging: Staging, token: str) -> Any:
    """The same for files of the dead letter queue, by their number."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kafkad.ingest.dlq import as_fetched, rows_of

        for number in numbers(rows):
            letters = map(as_fetched, rows_of(Path(places[number])))
            yield from read([(None, 0, 0, 0, letters)], settings, staging, f"{token}-{number}")

    return run


def finish(reading: Any) -> Any:
    """Return a function like `read`, only for the records it puts aside and its reports."""

    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in reading(rows):
            pass
        yield pa.record_batch([pa.array([], pa.string())], names=["report"])

    return run


# --- parts of the tasks


def numbers(rows: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in rows:
        yield from batch.column(0).to_pylist()


def report(work: Any, staging: Staging | None = None) -> pa.RecordBatch:
    """Return one row: the TaskReport, or the permanent error."""
    import pyarrow as pa

    task_begins()
    try:
        told = work().to_json()
    except (BadRecord, TableError) as refused:
        told = REFUSED + str(refused)
    except OSError as trouble:
        if trouble.errno not in HOPELESS:
            raise
        told = REFUSED + cannot_be_written(trouble, staging)
    except Exception as trouble:
        if not is_final(trouble):
            raise
        told = REFUSED + str(trouble)
    return pa.record_batch([pa.array([told], pa.string())], names=["report"])


def cannot_be_written(trouble: OSError, staging: Staging | None) -> str:
    place = trouble.filename or (f"a file in {staging.root}" if staging else "a data file")
    return f"{place} cannot be written: {os.strerror(trouble.errno or 0)}"


def is_final(trouble: Exception) -> bool:
    """Return whether the error is permanent: deleted offsets, an invalid schema."""
    return isinstance(trouble, ValueError) or type(trouble).__name__ in ("DataLoss", "DataLossError")


def fetched(
    work: Work, ranges: Sequence[tuple[str, int, int, int]]
) -> Iterator[tuple[str, int, int, int, Iterable[pa.RecordBatch]]]:
    for topic, partition, start, end in ranges:
        topic_id = work.topic_ids.get(topic)
        batches = range_batches(work.options, topic, partition, start, end, topic_id)
        yield topic, partition, start, end, batches


def range_batches(
    options: ReadOptions, topic: str, partition: int, start: int, end: int, topic_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield record batches with Kafka's columns, including headers if the options say so."""
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
        topic_id=bytes.fromhex(topic_id) if topic_id else None,
        **how,
    )


def by_partition(
    rows: Iterator[pa.RecordBatch], ends: dict[tuple[str, int], tuple[int, int]]
) -> Iterator[tuple[str, int, int, int, Iterable[pa.RecordBatch]]]:
    """Return a task's rows as one range: Spark's connector reads one partition per task."""
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return
    where = first.column("topic")[0].as_py(), first.column("partition")[0].as_py()

    def rest() -> Iterator[pa.RecordBatch]:
        yield first
        yield from rows

    yield *where, *ends[where], rest()


def rows_schema(settings: LandSettings) -> pa.Schema:
    """Return the schema of `read`: the value's columns (raw: key, value), provenance, columns about bad
    values."""
    import pyarrow as pa

    kafka = [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
    if settings.decoder is None:
        return pa.schema([("key", pa.binary()), ("value", pa.binary()), *kafka])
    return pa.schema([*decoder_of(settings).schema, *kafka, ("_key", pa.binary())])


def decoder_of(settings: LandSettings) -> Any:
    from kafkad.values.decoder import value_decoder

    assert settings.decoder is not None
    return value_decoder(*settings.decoder)


# a range, or rows that are not in order (topic None), whose holes cannot be determined
Part = tuple[str | None, int, int, int, Iterable["pa.RecordBatch"]]


def read(
    parts: Iterable[Part], settings: LandSettings, staging: Staging, name: str
) -> Iterator[pa.RecordBatch]:
    """Yield typed rows of `rows_schema`; records that cannot be decoded are handled by `settings.bad`. At the
    end the file `name` reports what was read. Raises BadRecord, and TableError for a full disk.
    """
    task_begins()
    schema = rows_schema(settings)
    landing = Landing(settings, staging)
    covered, bytes_read = [], 0
    try:
        for topic, partition, start, end, batches in parts:
            holes = None if topic is None else Holes(start, end)
            rows = bad = 0
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if holes is not None:
                    holes.saw(batch.column("offset"))
                bytes_read += key_and_value_bytes(batch)
                bad += batch.num_rows
                for good in typed(batch, landing, schema):
                    rows += good.num_rows
                    bad -= good.num_rows
                    yield good
            if topic is not None and holes is not None:
                holes.end()
                runs = tuple(holes.runs)
                covered.append(Covered(topic, partition, start, end, rows, bad, holes.count, runs))
            else:
                covered.append(Covered("", 0, 0, 0, rows, bad))
        told = TaskReport(tuple(landing.close()), tuple(covered), bytes_read, landing.nulled)
        write_report(staging, name, told)
    except OSError as trouble:
        landing.abandon()
        if trouble.errno in HOPELESS:
            raise TableError(cannot_be_written(trouble, staging)) from None
        raise
    except BaseException:
        landing.abandon()
        raise


def typed(batch: pa.RecordBatch, landing: Landing, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows that continue, with `rows_schema`, usually as one batch."""
    import pyarrow as pa

    from kafkad.values.decoder import decoded_parts

    def by_schema(*arrays: pa.Array) -> pa.RecordBatch:
        cast = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=schema)

    def kafkas(part: pa.RecordBatch) -> list[pa.Array]:
        return [part.column(name[1:]) for name in PROVENANCE]

    if landing.decoder is None:
        yield by_schema(batch.column("key"), batch.column("value"), *kafkas(batch))
        return
    for part, decoded in decoded_parts(landing.decoder, batch):
        whole = by_schema(*decoded.columns, *kafkas(part), part.column("key"))
        yield landing.without_bad(whole, part, decoded.bad_rows, decoded.reasons)


# --- the reports of `read`


def reports_folder(staging: Staging) -> Path:
    return Path(staging.root) / staged_folder(staging.application)


def write_report(staging: Staging, name: str, told: TaskReport) -> None:
    folder = reports_folder(staging)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{staging.new_name()}.scratch"
    scratch.write_text(told.to_json())
    os.replace(scratch, folder / f"{safe_name(name)}{READ_REPORT}")


def read_reports(staging: Staging, token: str = "") -> dict[str, TaskReport]:
    """Return the reports by the names given to `read`, without the token."""
    start = f"{safe_name(token)}-" if token else ""
    return {
        place.name.removesuffix(READ_REPORT).removeprefix(start): TaskReport.from_json(place.read_text())
        for place in sorted(reports_folder(staging).glob(f"{start}*{READ_REPORT}"))
    }
