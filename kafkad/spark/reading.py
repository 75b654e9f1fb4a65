"""Read a task's range of offsets as record batches of the result.

    RangeReader (fetch, CRC, codecs, aborted transactions)  ->  batches with Kafka's columns
    ValueDecoder                                            ->  typed columns, and which rows were bad and why
    badRecords                                              ->  fail | null | column | dlq
    Layout                                                  ->  the requested columns

The result depends only on the options and the range: Spark may read a range twice, on another machine, after
a crash.

With badRecords=dlq:<topic>, a bad record is written to that topic before the rows around it are returned:
acknowledged by all in-sync replicas, at least once (if Spark runs a task again, it sends them again). Key and
value are unchanged, and the headers of `DLQ_HEADERS` identify the record. The row is then left out of the
result.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkad.spark.layout import OF_KAFKA, OF_VALUE, Layout
from kafkad.spark.options import ReadOptions
from kafkad.spark.planning import Range
from kafkad.spark.worker import task_begins

# the headers of a dead letter; all values are text
DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET = "kafkad.topic", "kafkad.partition", "kafkad.offset"
DLQ_TIMESTAMP, DLQ_REASON, DLQ_FORMAT = "kafkad.timestamp", "kafkad.reason", "kafkad.format"
DLQ_HEADERS = (DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_TIMESTAMP, DLQ_REASON, DLQ_FORMAT)


class RangePartition(InputPartition):
    """One task: offsets start <= offset < end of a partition. `topic_id`: the topic's id at planning, in hex;
    None from brokers before 2.8, or if it was not requested.
    """

    def __init__(self, topic: str, partition: int, start: int, end: int, topic_id: str | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"RangePartition({self.topic}-{self.partition}, {self.start} to {self.end})"


class SmallRanges(InputPartition):
    """One task: several ranges, one after the other, because a task costs more than they do."""

    def __init__(self, parts: list[RangePartition]) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        return f"SmallRanges({', '.join(map(repr, self.parts))})"


# Bytes of records in one batch. Typed columns are smaller than their text, and a batch of many
# columns costs Python and the JVM as much as some hundred rows of it, whatever its size.
RAW_BATCH_BYTES, TYPED_BATCH_BYTES = 1 << 20, 4 << 20

# ranges with up to this many offsets together are one task: a Python task costs tens of milliseconds
SMALL_TASK_OFFSETS = 500


def tasks(ranges: list[Range], topic_ids: dict[str, str], *, packed: bool = False) -> list[InputPartition]:
    """Return a task for each range; `packed`: one for neighbours that have few offsets together."""
    parts = [RangePartition(*each, topic_ids.get(each.topic)) for each in ranges]
    if not packed:
        return [*parts]
    groups: list[list[RangePartition]] = []
    room = 0
    for part in parts:
        count = part.end - part.start
        if count > room:
            groups.append([])
            room = SMALL_TASK_OFFSETS
        groups[-1].append(part)
        room -= count
    return [group[0] if len(group) == 1 else SmallRanges(group) for group in groups]


def read_partition(options: ReadOptions, layout: Layout, part: Any) -> Iterator[pa.RecordBatch]:
    """Yield record batches with exactly the layout's schema."""
    task_begins()
    if isinstance(part, RangePartition):
        yield from compose(options, layout, fetched(options, layout, part))
    elif isinstance(part, SmallRanges):
        for each in part.parts:
            yield from compose(options, layout, fetched(options, layout, each))
    elif getattr(part, "value", None) is not None or type(part) is not InputPartition:
        from kafkad.spark import segment_scan

        yield from compose(options, layout, segment_scan.read(part, batch_bytes(options, layout)))
    # otherwise nothing was planned, and PySpark sends an empty partition


def fetched(options: ReadOptions, layout: Layout, part: RangePartition) -> Iterator[pa.RecordBatch]:
    from kafkad.spark.range_reader import RangeReader

    how: dict[str, Any] = {"fetch_bytes": options.fetch_bytes} if options.fetch_bytes else {}
    return iter(
        RangeReader(
            options.bootstrap,
            options.client_config,
            part.topic,
            part.partition,
            part.start,
            part.end,
            isolation="read_committed" if options.read_committed else "read_uncommitted",
            headers=layout.headers or options.bad_records == "dlq",
            verify_crc=options.verify_crc,
            batch_bytes=batch_bytes(options, layout),
            timeout_s=options.timeout_s,
            fail_on_data_loss=options.fail_on_data_loss,
            topic_id=bytes.fromhex(part.topic_id) if part.topic_id else None,
            **how,
        )
    )


def compose(
    options: ReadOptions, layout: Layout, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Convert batches with Kafka's columns to batches of the layout."""
    schema = layout.schema
    if not options.typed or not looks_at_values(options, layout):
        for batch in batches:
            yield conform(schema, {c.name: batch.column(c.source) for c in layout.columns}, batch.num_rows)
        return
    from kafkad.values.decoder import decoded_parts, without

    policy = BadRecords(options)
    decoder = decoder_of(options, layout.value_columns)
    names = decoder.schema.names
    for batch, decoded in chain.from_iterable(decoded_parts(decoder, each) for each in batches):
        values = dict(zip(names, decoded.columns, strict=True))
        extra = policy.apply(batch, decoded.bad_rows, decoded.reasons)
        columns: dict[str, pa.Array] = {}
        for column in layout.columns:
            if column.origin == OF_VALUE:
                columns[column.name] = values[column.source]
            elif column.origin == OF_KAFKA:
                columns[column.name] = batch.column(column.source)
            else:
                columns[column.name] = extra[column.source]
        whole = conform(schema, columns, batch.num_rows)
        if policy.leaves_out and decoded.bad_rows:
            whole = without(whole, decoded.bad_rows)
        if whole.num_rows:
            yield whole
    policy.close()


def batch_bytes(options: ReadOptions, layout: Layout) -> int:
    """Return the bytes of records per batch: the result has about 1 MiB in both cases."""
    return TYPED_BATCH_BYTES if options.typed and looks_at_values(options, layout) else RAW_BATCH_BYTES


def looks_at_values(options: ReadOptions, layout: Layout) -> bool:
    """Return whether to decode values: without columns of the value, only to report bad ones, if that is
    wanted."""
    if any(column.origin != OF_KAFKA for column in layout.columns):
        return True
    return options.bad_records == "dlq"


def conform(schema: pa.Schema, columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Build a batch of the schema: PySpark checks the first batch, and the JVM reads the others by it."""
    arrays = []
    for field in schema:
        array = columns[field.name]
        assert len(array) == rows
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- values -------------------------------------------------------------------------------------------------


def decoder_of(options: ReadOptions, columns: tuple[str, ...] | None = None) -> Any:
    """Return the decoder of values for all columns of the schema, or these. Raises ValueError for an invalid
    schema.
    """
    from kafkad.values import decoder as values

    how = decoder_how(options)
    if columns is not None and options.columns is not None:
        how["columns"] = ",".join(columns)
    return values.value_decoder(options.value_format, options.value_schema or "", how)


def decoder_how(options: ReadOptions) -> dict[str, str]:
    how = dict(options.decoder)
    if options.subscribe is not None and len(options.subscribe) == 1:
        how["topic"] = options.subscribe[0]  # a registry names the schema of a topic's values after it
    return how


class BadRecords:
    """Handles values that cannot be decoded, in one task."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.policy = options.bad_records
        self.leaves_out = self.policy == "dlq"
        self._letters: Any = None

    def apply(self, batch: pa.RecordBatch, rows: list[int], reasons: list[str]) -> dict[str, pa.Array]:
        """Return the columns `_error` and `_raw`. With the policy fail, raises ValueError for the first bad
        row."""
        if rows and self.policy == "fail":
            raise ValueError(self._told(batch, rows[0], reasons[0], len(rows)))
        if rows and self.policy == "dlq":
            self._send(batch, rows, reasons)
        if self.policy != "column":
            return {}
        errors: list[str | None] = [None] * batch.num_rows
        raw: list[bytes | None] = [None] * batch.num_rows
        values = batch.column("value")
        for row, reason in zip(rows, reasons, strict=True):
            errors[row] = reason
            raw[row] = values[row].as_py()
        return {"_error": pa.array(errors, pa.string()), "_raw": pa.array(raw, pa.binary())}

    def close(self) -> None:
        if self._letters is not None:
            self._letters.cluster.close()
            self._letters = None

    def _told(self, batch: pa.RecordBatch, row: int, reason: str, count: int) -> str:
        topic, partition, offset = (batch.column(n)[row].as_py() for n in ("topic", "partition", "offset"))
        more = f" (and {count - 1} more in its batch)" if count > 1 else ""
        return (
            f"the value of {topic}-{partition} at offset {offset} is not {self.options.value_format} of "
            "valueSchema: "
            f"{reason}{more}; option badRecords says what else to do with such values: null, column or "
            "dlq:<topic>"
        )

    def _send(self, batch: pa.RecordBatch, rows: list[int], reasons: list[str]) -> None:
        from kafkad.client.producer import Producer
        from kafkad.spark.offsets import open_cluster

        if self._letters is None:
            assert self.options.dlq_topic is not None
            self._letters = Producer(open_cluster(self.options), self.options.dlq_topic)
        column = {
            name: batch.column(name) for name in ("key", "value", "topic", "partition", "offset", "timestamp")
        }
        own = batch.column("headers") if "headers" in batch.schema.names else None
        milliseconds = column["timestamp"].cast(pa.int64())
        for row, reason in zip(rows, reasons, strict=True):
            stamp = milliseconds[row].as_py()
            headers = [
                (DLQ_TOPIC, column["topic"][row].as_py()),
                (DLQ_PARTITION, str(column["partition"][row].as_py())),
                (DLQ_OFFSET, str(column["offset"][row].as_py())),
                (DLQ_TIMESTAMP, str(stamp // 1000) if stamp is not None else ""),
                (DLQ_REASON, reason),
                (DLQ_FORMAT, self.options.value_format),
            ]
            before = (own[row].as_py() or []) if own is not None else []
            self._letters.send(
                column["value"][row].as_py(),
                column["key"][row].as_py(),
                headers=[
                    *((each["key"], each["value"]) for each in before),
                    *((name, text.encode()) for name, text in headers),
                ],
            )
        self._letters.flush()
