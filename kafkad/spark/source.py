"""The source in batch mode, and the entry points for PySpark (pyspark_kafkad has the class that PySpark
finds).

PySpark creates a reader in a Python process of the driver, asks it for `partitions`, pickles it, and calls
`read` in a worker for each partition. So a reader has plain values only, and live objects are in tables of
modules.

Filters: In batch mode with spark.sql.python.filterPushdown.enabled=true, comparisons of the columns topic,
partition and offset with constants limit the ranges. A lower bound of `timestamp` moves a range's start to
the first record that is not older (one ListOffsets). Spark still checks every row, because a later record may
be older; for the same reason, an upper bound cannot end a range. Spark evaluates everything else. Beware:
PySpark refuses a reader that has `pushFilters` while the setting is off, and does not pass the setting. But
it asks for filters in a separate process, which is recognised by its main module (`filters_are_asked_for`).
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from kafkad.spark import reading
from kafkad.spark.layout import Layout, layout_of
from kafkad.spark.offsets import OffsetReader
from kafkad.spark.options import ReadOptions, read_options
from kafkad.spark.plain_errors import plain_errors
from kafkad.spark.planning import Range
from kafkad.spark.ranges import split_by, whole_ranges

FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def parsed(options: Mapping[str, str], streaming: bool | None) -> ReadOptions:
    """Return the options, with the schema of values as text: every task must use the same schema, wherever
    the file is and whatever a registry's newest version is by then.
    """
    checked = read_options(options, streaming=streaming)
    if not checked.typed:
        return checked
    from kafkad.values import decoder as values

    how = reading.decoder_how(checked)
    try:
        text = values.portable_schema(checked.value_format, checked.value_schema or "", how)
    except OSError as trouble:
        raise ValueError(f"option valueSchema: {trouble.filename}: {trouble.strerror}")
    return replace(checked, value_schema=text)


def result_layout(options: ReadOptions) -> Layout:
    if not options.typed:
        return layout_of(options)
    return layout_of(options, reading.decoder_of(options).schema)


def spark_schema(layout: Layout) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(layout.schema, prefer_timestamp_ntz=True)


# -- called by PySpark (through pyspark_kafkad) -------------------------------------------------------------


@plain_errors()
def read_schema(options: Mapping[str, str]) -> Any:
    return spark_schema(result_layout(parsed(options, None)))


@plain_errors()
def batch_reader(options: Mapping[str, str], schema: Any) -> BatchReader:
    checked = parsed(options, streaming=False)
    layout = checked_layout(checked, schema)
    return (FilteringBatchReader if filters_are_asked_for() else BatchReader)(checked, layout)


def stream_reader(options: Mapping[str, str], schema: Any) -> Any:
    from kafkad.spark.stream import RefusedReader, StreamReader

    try:
        checked = parsed(options, streaming=True)
        return StreamReader(checked, checked_layout(checked, schema))
    except (ValueError, RuntimeError) as wrong:  # the latter from a schema registry
        return RefusedReader(str(wrong))


@plain_errors()
def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> Any:
    from kafkad.spark import writer

    if overwrite:
        raise ValueError(
            'format kafkad appends to topics: say mode("append"), since nothing can be overwritten'
        )
    return writer.batch_writer(schema, options)


@plain_errors()
def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> Any:
    from kafkad.spark import writer

    if overwrite:
        raise ValueError(
            'format kafkad appends to topics: say outputMode("append") or "update", not "complete"'
        )
    return writer.stream_writer(schema, options)


def checked_layout(options: ReadOptions, schema: Any) -> Layout:
    """Return the layout. Raises ValueError if the user requested another schema by `.schema(…)`."""
    layout = result_layout(options)
    ours = spark_schema(layout)
    if schema is not None and [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in ours]:
        raise ValueError(
            f"format kafkad has the schema {ours.simpleString()} here, not {schema.simpleString()}: leave "
            "out "
            ".schema(…), and say valueFormat, valueSchema and columns instead"
        )
    return layout


def filters_are_asked_for() -> bool:
    """Return whether this process was created to push filters, so the setting is on."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)  # its name without Spark's Python daemon
    return FILTER_WORKER in sys.modules or getattr(main, "name", "") == FILTER_WORKER


# -- the reader ---------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Reads the range between two offsets of each partition, once."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self.filters = Filters()

    @plain_errors()
    def partitions(self) -> list[Any]:
        if self.options.log_dir is not None:
            from kafkad.spark import segment_scan

            return segment_scan.plan(self.options, self.filters)
        offsets = OffsetReader(self.options)
        ranges = self.filters.cut(whole_ranges(self.options, offsets), offsets)
        return reading.tasks(split_by(self.options, offsets, ranges), offsets.topic_ids)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return reading.read_partition(self.options, self.layout, partition)


class FilteringBatchReader(BatchReader):
    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Return the filters that Spark must check."""
        prefix = self.options.prefix if self.options.typed else ""
        return [each for each in filters if not self.filters.take(each, prefix)]


# -- filters ------------------------------------------------------------------------------------------------

OFFSET_MAX = (1 << 63) - 1


class Filters:
    """The part of a plan that the pushed filters leave: topics, partitions, offsets, and the earliest
    timestamp."""

    def __init__(self) -> None:
        self.allowed: dict[str, set[Any] | None] = {"topic": None, "partition": None, "offset": None}
        self.least: dict[str, int] = {"partition": 0, "offset": 0}
        self.most: dict[str, int] = {"partition": OFFSET_MAX, "offset": OFFSET_MAX}
        self.since_ms: int | None = None

    def take(self, given: Any, prefix: str = "") -> bool:
        """Return whether the filter is fully applied; False leaves it to Spark, even if it cuts ranges."""
        kind, attribute = type(given).__name__, tuple(map(str, getattr(given, "attribute", ())))
        if len(attribute) != 1 or not attribute[0].lower().startswith(prefix.lower()):
            return False
        column = str(attribute[0])[len(prefix) :].lower()
        value: Any = getattr(given, "value", None)
        if column == "timestamp":
            self._since(kind, value)
            return False
        if column not in self.allowed:
            return False
        if kind == "IsNotNull":
            return True
        if kind in ("EqualTo", "EqualNullSafe") and self._is(column, value):
            self._only(column, {value})
        elif kind == "In" and all(self._is(column, each) for each in value):
            self._only(column, set(value))
        elif column in self.least and self._is(column, value) and kind in COMPARISONS:
            least, most = COMPARISONS[kind](value)
            self.least[column] = max(self.least[column], least)
            self.most[column] = min(self.most[column], most)
        else:
            return False
        return True

    def cut(self, ranges: list[Range], offsets: OffsetReader) -> list[Range]:
        ranges = [each for each in ranges if self._wanted(each)]
        if self.since_ms is not None and ranges:
            found = offsets.list({each.where: self.since_ms for each in ranges})
            # no record is that late: only those that arrive after the plan, which are not in it
            ranges = [each._replace(start=max(each.start, found[each.where])) for each in ranges
                      if found[each.where] >= 0]  # fmt: skip
        least, most = self.least["offset"], self.most["offset"]
        only = self.allowed["offset"]
        if only is None:
            ranges = [
                each._replace(start=max(each.start, least), end=min(each.end, most + 1)) for each in ranges
            ]
        else:
            wanted = sorted(offset for offset in only if least <= offset <= most)
            ranges = [
                each._replace(start=offset, end=offset + 1)
                for each in ranges
                for offset in wanted
                if each.start <= offset < each.end
            ]
        return [each for each in ranges if each.length > 0]

    def _wanted(self, each: Range) -> bool:
        topics, partitions = self.allowed["topic"], self.allowed["partition"]
        if topics is not None and each.topic not in topics:
            return False
        if partitions is not None and each.partition not in partitions:
            return False
        return self.least["partition"] <= each.partition <= self.most["partition"]

    def _only(self, column: str, values: set[Any]) -> None:
        before = self.allowed[column]
        self.allowed[column] = values if before is None else before & values

    def _since(self, kind: str, value: Any) -> None:
        if kind not in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            return
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            # a log stores milliseconds: records not older than a time are not older than its millisecond
            since = (value - EPOCH) // datetime.timedelta(milliseconds=1)
            if since >= 0:  # ListOffsets gives those below 0 other meanings: -1 is the end
                self.since_ms = since if self.since_ms is None else max(self.since_ms, since)

    @staticmethod
    def _is(column: str, value: Any) -> bool:
        return isinstance(value, str) if column == "topic" else type(value) is int


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# (least, most) that a comparison leaves
COMPARISONS = {
    "GreaterThan": lambda value: (value + 1, OFFSET_MAX),
    "GreaterThanOrEqual": lambda value: (value, OFFSET_MAX),
    "LessThan": lambda value: (0, value - 1),
    "LessThanOrEqual": lambda value: (0, value),
}
