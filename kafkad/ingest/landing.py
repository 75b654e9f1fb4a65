"""Landing: a task fetches, decodes and writes Parquet itself, so that no row crosses into the JVM.

    record batches (key, value, topic, partition, offset, timestamp, ...)      spark/range_reader,
                                                                               segment_scan
      -> decoded columns, without bad rows                                     values/decoder
      -> + _topic, _partition, _offset, _timestamp                             Landing.batch
      -> split by the values of the partition columns                          split
      -> Parquet, one open file per combination of values                      PartitionedFiles
      -> TaskReport: files, offsets, holes                                     one row for the driver

`write_task` does the same from the third step on, for rows that come from SQL. A closed file is on disk
(fsync), so the driver's commit only names it.

Settings of Parquet, measured on flights (24 columns, one core): dictionaries for strings only; integers and
times as DELTA_BINARY_PACKED, which is smaller and faster than a dictionary for them; row groups of 128 Ki
rows. Spark's vectorized reader (3.3 and newer), duckdb and pyarrow can read this.

Beware: a value of a partition column becomes a directory's name, as in Hive and Spark. There, null and the
empty string have the same name, __HIVE_DEFAULT_PARTITION__, and are read as null. Iceberg's files contain the
column itself with one value each, so there null and the empty string have separate files.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest.pipeline import PROVENANCE
from kafkad.ingest.table import (
    HOLE_RUNS_MAX,
    Covered,
    FileEntry,
    OffsetRange,
    Staging,
    TableError,
    TaskReport,
    gone,
    make_folder,
    step,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 64 << 20
SPLIT_ROWS = 1 << 15
BUFFERED_BYTES_MAX = 128 << 20  # of one task, over all its open files
OPEN_FILES_MAX = 100
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
ESCAPED = set("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
ERROR_CHARS_MAX = 1000
STAT_CHARS_MAX = 32  # of a string bound; longer strings have none


class BadRecord(Exception):
    """A record that cannot be decoded, if the pipeline says that this ends the run."""


# -- files ---------------------------------------------------------------------------------------------------


class ParquetFile:
    """A file that grows by row groups, records the offsets of its rows, and is on disk when it is closed."""

    def __init__(
        self,
        staged: Path,
        schema: pa.Schema,
        compression: str,
        known: Mapping[str, str | None] | None = None,
    ) -> None:
        """`known`: columns that are in the folder names, and not in the file."""
        from pyarrow import parquet

        make_folder(staged.parent)
        self.schema = schema
        self.staged = staged
        self.known = known or {}
        self.rows = 0
        self.offsets: dict[tuple[str, int], list[int]] = {}  # -> first, last, rows
        self.buffered: list[pa.RecordBatch] = []
        self.buffered_rows = 0
        self.buffered_bytes = 0
        try:
            self._file = open(staged, "xb")  # noqa: SIM115  (closed by close or abandon)
        except FileNotFoundError:  # together with its folder, which was just created
            raise gone(staged) from None
        self._footer: list[Any] = []
        self._writer = parquet.ParquetWriter(
            self._file, schema, metadata_collector=self._footer, **parquet_settings(schema, compression)
        )

    def add(self, batch: pa.RecordBatch) -> None:
        self.buffered.append(batch)
        self.buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self.buffered_rows >= ROW_GROUP_ROWS or self.buffered_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as one row group."""
        import pyarrow as pa

        if not self.buffered:
            return
        table = pa.Table.from_batches(self.buffered, self.schema)
        self._count_offsets(table)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows
        self.buffered, self.buffered_rows, self.buffered_bytes = [], 0, 0

    def _count_offsets(self, table: pa.Table) -> None:
        import pyarrow as pa

        for name, kind in (("_topic", pa.string()), ("_partition", pa.int32())):
            if name in self.known and name not in table.column_names:
                told = pa.repeat(pa.scalar(self.known[name], pa.string()), table.num_rows)
                table = table.append_column(name, told.cast(kind))
        if not set(PROVENANCE[:3]) <= set(table.column_names):
            return
        for topic, partition, first, last, rows in offset_bounds(table):
            have = self.offsets.setdefault((topic, partition), [first, last, 0])
            have[:] = [min(have[0], first), max(have[1], last), have[2] + rows]

    def position(self) -> int:
        return self._file.tell()

    def close(self) -> int:
        """Close the file. Return its size in bytes."""
        self.flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        step("file closed")
        return size

    def abandon(self) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # a full disk, or closed already
            self._writer.close()
        self._writer.is_open = False  # else its finalizer tries again and prints a stack trace
        with contextlib.suppress(OSError):
            self._file.close()
        self.staged.unlink(missing_ok=True)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of a closed file for Delta's log: exact bounds, counts of nulls."""
        footer = self._footer[0]
        told: dict[str, Any] = {"numRecords": self.rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        for column in range(footer.num_columns):
            chunks = [footer.row_group(group).column(column) for group in range(footer.num_row_groups)]
            name, parts = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
            if "." in name or not all(part is not None and part.has_null_count for part in parts):
                continue
            told["nullCount"][name] = sum(part.null_count for part in parts)
            bounded = [part for part in parts if part.has_min_max]
            if not bounded or len(bounded) != sum(part.num_values > 0 for part in parts):
                continue
            low, high = min(part.min for part in bounded), max(part.max for part in bounded)
            if (least := stat_text(low, False)) is not None and (most := stat_text(high, True)) is not None:
                told["minValues"][name], told["maxValues"][name] = least, most
        return told

    def offset_ranges(self) -> tuple[OffsetRange, ...]:
        return tuple(
            OffsetRange(t, p, first, last, rows) for (t, p), (first, last, rows) in self.offsets.items()
        )


def offset_bounds(table: pa.Table) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield (topic, partition, first offset, last, rows) of the rows with an origin."""
    from pyarrow import compute

    ends = [compute.min_max(table.column(name)).as_py() for name in PROVENANCE[:3]]
    whole = not any(table.column(name).null_count for name in PROVENANCE[:3])
    if whole and all(end["min"] == end["max"] for end in ends[:2]):
        yield ends[0]["min"], ends[1]["min"], ends[2]["min"], ends[2]["max"], table.num_rows
        return
    groups = table.group_by(["_topic", "_partition"]).aggregate(
        [("_offset", "min"), ("_offset", "max"), ("_offset", "count")]
    )
    for row in groups.to_pylist():
        if row["_offset_count"]:
            where = row["_topic"], row["_partition"]
            yield *where, row["_offset_min"], row["_offset_max"], row["_offset_count"]


def parquet_settings(schema: pa.Schema, compression: str) -> dict[str, Any]:
    """Return the settings of pyarrow's ParquetWriter; see the module docstring."""
    import pyarrow as pa

    delta = [
        f.name
        for f in schema
        if pa.types.is_int32(f.type)
        or pa.types.is_int64(f.type)
        or pa.types.is_date32(f.type)
        or pa.types.is_timestamp(f.type)
    ]
    strings = [f.name for f in schema if pa.types.is_string(f.type)]
    settings: dict[str, Any] = {"compression": compression, "use_dictionary": strings or False}
    if delta:
        settings["column_encoding"] = dict.fromkeys(delta, "DELTA_BINARY_PACKED")
    if compression == "zstd":
        settings["compression_level"] = 1
    return settings


def stat_text(value: Any, upper: bool) -> Any:
    """Return a bound in the form of Delta's log; None if there is none that is exact enough."""
    if isinstance(value, datetime.datetime):  # to milliseconds, outwards
        value = value.replace(tzinfo=None)
        rest = datetime.timedelta(microseconds=value.microsecond % 1000)
        value = (
            value - rest + (datetime.timedelta(milliseconds=1) if upper and rest else datetime.timedelta())
        )
        return value.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= STAT_CHARS_MAX else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class PartitionedFiles:
    """The open files of one task, by the values of the partition columns."""

    def __init__(self, staging: Staging, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.staging = staging
        self.schema = schema
        kept = [f for f in schema if staging.keep_partition_columns or f.name not in staging.partition_by]
        self.file_schema = pa.schema(kept)
        self.done: list[FileEntry] = []
        self._unsplit: list[pa.RecordBatch] = []
        self._unsplit_rows = self._unsplit_bytes = 0
        self._open: dict[tuple[str | None, ...], tuple[ParquetFile, str, str]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not self.staging.partition_by:
            self._add(batch)
            return
        self._unsplit.append(batch)
        self._unsplit_rows += batch.num_rows
        self._unsplit_bytes += batch.nbytes
        if self._unsplit_rows >= SPLIT_ROWS or self._unsplit_bytes >= ROW_GROUP_BYTES:
            self._split()

    def _split(self) -> None:
        """Split many rows at once: then a row group has few pieces."""
        import pyarrow as pa

        if self._unsplit:
            waiting, self._unsplit = self._unsplit, []
            self._unsplit_rows = self._unsplit_bytes = 0
            self._add(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))

    def _add(self, batch: pa.RecordBatch) -> None:
        files_tell = self.staging.keep_partition_columns
        for values, part in split(batch, self.staging.partition_by, empty_is_null=not files_tell):
            kept = part.select(self.file_schema.names)
            if values not in self._open:
                self._make_room()
                self._open[values] = self._new_file(values)
            file = self._open[values][0]
            file.add(kept)
            if file.buffered_rows == 0 and file.position() >= self.staging.target_file_bytes:
                self._close(values)
        while sum(each[0].buffered_bytes for each in self._open.values()) > BUFFERED_BYTES_MAX:
            max((each[0] for each in self._open.values()), key=lambda file: file.buffered_bytes).flush()

    def close(self) -> list[FileEntry]:
        self._split()
        for values in list(self._open):
            self._close(values)
        return self.done

    def abandon(self) -> None:
        for file, _, _ in self._open.values():
            file.abandon()

    def _new_file(self, values: tuple[str | None, ...]) -> tuple[ParquetFile, str, str]:
        staging, name = self.staging, self.staging.new_name()
        folders = [directory(c, v) for c, v in zip(staging.partition_by, values, strict=True)]
        path = "/".join([*filter(None, [staging.data]), *folders, name + ".parquet"])
        staged = f"{staging.folder}/{name}.staged" if staging.folder else path
        known = dict(zip(staging.partition_by, values, strict=True))
        file = ParquetFile(Path(staging.root) / staged, self.file_schema, staging.compression, known)
        return file, path, staged

    def _make_room(self) -> None:
        if len(self._open) >= OPEN_FILES_MAX:  # close the one that was opened first
            self._close(next(iter(self._open)))

    def _close(self, values: tuple[str | None, ...]) -> None:
        file, path, staged = self._open[values]
        size = file.close()  # if this fails, it is still among those that are abandoned
        del self._open[values]
        partition = tuple(zip(self.staging.partition_by, values, strict=True))
        stats = file.stats() if self.staging.with_stats else {}
        entry = FileEntry(path, staged, file.rows, size, partition, file.offset_ranges(), stats=stats)
        self.done.append(entry)


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str], empty_is_null: bool = True
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the batch's rows by the values of these columns, as text; the rows keep their order.
    `empty_is_null`: the empty string counts as null.
    """
    import pyarrow as pa
    from pyarrow import compute

    if batch.num_rows == 0:
        return
    if not partition_by:
        yield (), batch
        return
    columns = [batch.column(name).dictionary_encode("encode") for name in partition_by]
    texts = [[as_text(value, empty_is_null) for value in column.dictionary] for column in columns]
    if all(len(column.dictionary) == 1 for column in columns):
        yield tuple(text[0] for text in texts), batch
        return
    code = pa.array([], pa.int64())
    for number, column in enumerate(columns):
        indices = column.indices.cast(pa.int64())
        size = pa.scalar(len(column.dictionary), pa.int64())
        code = indices if number == 0 else compute.add(compute.multiply(code, size), indices)
    found = code.value_counts()
    codes, counts = found.field("values").to_pylist(), found.field("counts").to_pylist()
    row = pa.array(range(batch.num_rows), pa.int32())
    by_code = [("code", "ascending"), ("row", "ascending")]
    order = compute.sort_indices(pa.table({"code": code, "row": row}), sort_keys=by_code)
    start = 0
    for each, count in sorted(zip(codes, counts, strict=True)):
        values: list[str | None] = []
        rest = each
        for text in reversed(texts):
            rest, index = divmod(rest, len(text))
            values.append(text[index])
        # copies: a slice would keep all the rows in memory for as long as its file is not written
        yield tuple(reversed(values)), batch.take(order.slice(start, count))
        start += count


def as_text(value: pa.Scalar, empty_is_null: bool = True) -> str | None:
    """Return a partition value as in a directory name; None for null (and for "", see the module
    docstring)."""
    plain = value.as_py()
    if plain is None or (plain == "" and empty_is_null):
        return None
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return str(plain)


def directory(column: str, value: str | None) -> str:
    """Return `column=value`, escaped as in Hive."""
    return f"{escaped(column)}={NULL_PARTITION if value is None else escaped(value)}"


def escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in ESCAPED else c for c in text)


# -- the tasks -----------------------------------------------------------------------------------------------


def write_task(batches: Iterable[pa.RecordBatch], staging: Staging) -> TaskReport:
    """Write rows with all their columns to files; return what was written, for the driver to commit."""
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(staging.schema))
    files = PartitionedFiles(staging, schema)
    try:
        for batch in batches:
            files.add(fitted(batch, schema))
        return TaskReport(tuple(files.close()))
    except BaseException:
        files.abandon()
        raise


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the table's columns, in its order; missing ones are null."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    if unknown := [name for name in batch.schema.names if name not in schema.names]:
        raise TableError(f"the column {unknown[0]} came, which the table does not have")
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(at)
            arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class LandSettings:
    """How a landing task handles records; plain values, pickled to it.

    `decoder`: the arguments of values.decoder.value_decoder (None: raw, key and value land undecoded).
    `bad`: fail, null or dlq.
    """

    decoder: tuple[str, Any, dict[str, Any]] | None
    bad: str = "fail"
    ingest_time: bool = False
    raw_headers: bool = False


def land(
    ranges: Iterable[tuple[str, int, int, int, Iterable[pa.RecordBatch]]],
    settings: LandSettings,
    staging: Staging,
    decoder: Any = None,
) -> TaskReport:
    """Write fetched record batches to files. `ranges` are (topic, partition, start, end, record batches with
    key, value, topic, partition, offset, timestamp and, if the DLQ or the table needs them, headers). Raises
    BadRecord if a value cannot be decoded and `bad` is "fail".
    """
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(staging.schema))
    files = PartitionedFiles(staging, schema)
    landing = Landing(settings, staging, decoder)
    covered, bytes_read = [], 0
    try:
        for topic, partition, start, end, batches in ranges:
            holes = Holes(start, end)
            rows = bad = 0
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                holes.saw(batch.column("offset"))
                bytes_read += key_and_value_bytes(batch)
                bad += batch.num_rows
                for good in landing.batches(batch):
                    rows += good.num_rows
                    bad -= good.num_rows
                    files.add(fitted(good, schema))
            holes.end()
            runs = tuple(holes.runs)
            covered.append(Covered(topic, partition, start, end, rows, bad, holes.count, runs))
        return TaskReport(tuple(files.close() + landing.close()), tuple(covered), bytes_read, landing.nulled)
    except BaseException:
        files.abandon()
        landing.abandon()
        raise


def key_and_value_bytes(batch: pa.RecordBatch) -> int:
    from pyarrow import compute

    lengths = [compute.sum(compute.binary_length(batch.column(name))).as_py() for name in ("key", "value")]
    return sum(each or 0 for each in lengths)


class Landing:
    """Converts record batches to rows of the table, and puts the bad ones aside."""

    def __init__(self, settings: LandSettings, staging: Staging, decoder: Any = None) -> None:
        self.settings = settings
        self.staging = staging
        if decoder is None and settings.decoder is not None:
            from kafkad.values.decoder import value_decoder

            decoder = value_decoder(*settings.decoder)
        self.decoder = decoder
        self.nulled = 0  # values that could not be decoded and became rows of nulls
        self.dlq: ParquetFile | None = None
        self.dlq_name = ""

    def batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table for these records, usually as one batch."""
        if self.decoder is None:
            names = ["key", "value", *(["headers"] if self.settings.raw_headers else [])]
            yield self.with_provenance(names, [batch.column(name) for name in names], batch)
            return
        from kafkad.values.decoder import decoded_parts

        for part, decoded in decoded_parts(self.decoder, batch):
            good = self.with_provenance(self.decoder.schema.names, decoded.columns, part)
            yield self.without_bad(good, part, decoded.bad_rows, decoded.reasons)

    def with_provenance(
        self, names: Sequence[str], columns: Sequence[pa.Array], batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return the columns made from the records of `batch`, and those with their origin."""
        import pyarrow as pa

        names, columns = [*names], [*columns]
        for name in PROVENANCE:
            names.append(name)
            columns.append(batch.column(name[1:]))
        if self.settings.ingest_time:
            now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
            names.append("_ingest_time")
            columns.append(pa.repeat(now, batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, names)

    def without_bad(
        self, good: pa.RecordBatch, batch: pa.RecordBatch, bad: Sequence[int], reasons: Sequence[str]
    ) -> pa.RecordBatch:
        """`good` was made from the records of `batch`, row by row; the rows `bad` are handled by
        `settings.bad`. Raises BadRecord.
        """
        if len(bad) == 0:
            return good
        if self.settings.bad == "null":
            self.nulled += len(bad)
            return good
        if self.settings.bad == "fail":
            topic, partition, offset = (
                batch.column(name)[bad[0]] for name in ("topic", "partition", "offset")
            )
            raise BadRecord(
                f"the record at offset {offset} of {topic}-{partition} cannot be decoded: {reasons[0]}"
            )
        from kafkad.values.decoder import without

        self.put_aside(batch, bad, reasons)
        return without(good, bad)

    def put_aside(self, batch: pa.RecordBatch, bad: Sequence[int], reasons: Sequence[str]) -> None:
        import pyarrow as pa

        from kafkad.ingest.dead_letters import SCHEMA

        if self.dlq is None:
            self.dlq_name = self.staging.new_name()
            staged = Path(self.staging.dlq_root) / self.staging.dlq_folder / f"{self.dlq_name}.staged"
            self.dlq = ParquetFile(staged, SCHEMA, "zstd")
        rows = batch.take(pa.array(bad, pa.int64()))
        arrays = []
        for field in SCHEMA:
            if field.name == "error":
                arrays.append(pa.array([reason[:ERROR_CHARS_MAX] for reason in reasons], pa.string()))
            else:
                at = rows.schema.get_field_index(field.name.removeprefix("_"))
                arrays.append(rows.column(at) if at >= 0 else pa.nulls(rows.num_rows, field.type))
        self.dlq.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    def close(self) -> list[FileEntry]:
        if self.dlq is None:
            return []
        size = self.dlq.close()
        staged = f"{self.staging.dlq_folder}/{self.dlq_name}.staged"
        offsets = self.dlq.offset_ranges()
        return [FileEntry(f"{self.dlq_name}.dlq", staged, self.dlq.rows, size, (), offsets, dlq=True)]

    def abandon(self) -> None:
        if self.dlq is not None:
            self.dlq.abandon()


class Holes:
    """The offsets of a range without records. Offsets come in order, as arrays."""

    def __init__(self, start: int, end: int) -> None:
        self.next = start
        self.last = end
        self.count = 0
        self.runs: list[tuple[int, int]] = []

    def saw(self, offsets: pa.Array) -> None:
        from pyarrow import compute

        first, last = offsets[0].as_py(), offsets[-1].as_py()
        assert first >= self.next, "offsets come once and in order"
        self._hole(self.next, first)
        if last - first + 1 != len(offsets):
            gaps = compute.subtract(offsets[1:], offsets[:-1])
            where = compute.indices_nonzero(compute.greater(gaps, 1))
            for at in where.to_pylist():
                self._hole(offsets[at].as_py() + 1, offsets[at + 1].as_py())
        self.next = last + 1

    def end(self) -> None:
        self._hole(self.next, self.last)
        self.next = self.last

    def _hole(self, start: int, end: int) -> None:
        if start < end:
            self.count += end - start
            if len(self.runs) < HOLE_RUNS_MAX:
                self.runs.append((start, end))
