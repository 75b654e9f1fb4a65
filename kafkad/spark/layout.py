"""The columns of a result, their order and their sources.

Without valueFormat, they are those of format("kafka"):

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key string, value binary>>]

With valueFormat, the columns of valueSchema replace `value` and come first; the others follow:

    year int, month int, … , key, topic, partition, offset, timestamp, timestampType [, headers]
    [, _error, _raw]

badRecords=column adds `_error` (string), the reason why a value is bad, and `_raw` (binary), the value. If a
column of the value has the name of one of Kafka's columns, the source refuses it. `metadataPrefix` ("_":
_key, _topic, _offset, …) then renames Kafka's columns. `columns` selects columns, of both kinds. The others
are neither decoded nor sent to the JVM, and the order stays as above.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kafkad.spark.options import ReadOptions, nearest

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIMESTAMP = pa.timestamp("us", tz="UTC")
KAFKA = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
}
ERROR, RAW = "_error", "_raw"

OF_KAFKA, OF_VALUE, OF_BAD = range(3)


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    origin: int
    source: str  # its name at the origin


@dataclass(frozen=True)
class Layout:
    """The result's columns. Can be pickled."""

    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def value_columns(self) -> tuple[str, ...]:
        return tuple(column.source for column in self.columns if column.origin == OF_VALUE)

    @property
    def headers(self) -> bool:
        return any(column.source == "headers" and column.origin == OF_KAFKA for column in self.columns)


def layout_of(options: ReadOptions, value_schema: pa.Schema | None = None) -> Layout:
    """Return the layout. Raises ValueError for clashing columns, and for unknown names in `columns`.
    `value_schema`: the whole schema of the value, for all formats except raw.
    """
    kafka = dict(KAFKA)
    if options.headers:
        kafka["headers"] = HEADERS
    found: list[Column] = []
    if options.typed:
        assert value_schema is not None
        del kafka["value"]
        found += [Column(each.name, each.type, OF_VALUE, each.name) for each in value_schema]
    prefix = options.prefix if options.typed else ""
    found += [Column(prefix + name, kind, OF_KAFKA, name) for name, kind in kafka.items()]
    if options.bad_records == "column":
        found += [Column(ERROR, pa.string(), OF_BAD, ERROR), Column(RAW, pa.binary(), OF_BAD, RAW)]
    if options.columns is not None:
        found = wanted(found, options.columns)
    check_names(found, options)
    return Layout(tuple(found))


def wanted(columns: list[Column], names: tuple[str, ...]) -> list[Column]:
    known = {column.name.lower() for column in columns}
    for name in names:
        if name.lower() not in known:
            near = nearest(name, [column.name for column in columns])
            raise ValueError(f"option columns names {name}, which the result does not have{near}")
    lower = {name.lower() for name in names}
    return [column for column in columns if column.name.lower() in lower]


def check_names(columns: list[Column], options: ReadOptions) -> None:
    """Raise if names differ only in case: Spark does not distinguish case by default."""
    seen: dict[str, Column] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column)
        if other is column:
            continue
        if other.origin == column.origin == OF_VALUE:
            raise ValueError(f"option valueSchema names column {column.name} twice")
        raise ValueError(
            f"the value has a column {other.name}, as Kafka's columns have: say option metadataPrefix, "
            "such as _, "
            f"which makes Kafka's {options.prefix or '_'}{column.source}"
        )
