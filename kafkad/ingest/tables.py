"""Open the table of a sink, of any type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkad.ingest.table import Sink, Table, TableError

if TYPE_CHECKING:
    import pyarrow as pa


def open_table(sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None) -> Table:
    """Return the table of a sink, with its bad records in `dlq_path` (default: `_dlq` inside of it). With
    `schema` (of the rows, including partition columns and _topic, _partition, _offset, _timestamp) it is
    created if necessary, and missing columns are added if sink.schema_evolution is "add"; without, it must
    exist.
    """
    if sink.type == "parquet":
        from kafkad.ingest.parquet_table import ParquetTable

        return ParquetTable.open(sink, schema, dlq_path)
    if sink.type == "delta":
        from kafkad.ingest.delta_table import DeltaTable

        return DeltaTable.open(sink, schema, dlq_path)
    if sink.type == "iceberg":
        from kafkad.ingest.iceberg_table import IcebergTable

        return IcebergTable.open(sink, schema, dlq_path)
    raise TableError(f"there is no sink of the type {sink.type!r}: parquet, delta or iceberg")
