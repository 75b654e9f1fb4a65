"""The dead letter queue: records that could not be decoded, as they were, and why.

It is a Parquet table of its own (`_dlq` inside of the pipeline's table, or `[dlq] path`), committed together
with the batch (table.py: intents); its files end in .dlq, so that globs over the table do not take them for
its own. Read it with any reader of Parquet: `duckdb -c "from read_parquet('table/_dlq/*.dlq')"`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from kafkad.ingest.parquet_table import ParquetTable

SCHEMA = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(
                pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
            ),
        ),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class DlqSink:
    """What a DLQ has for a [sink]."""

    path: str
    type: str = "parquet"
    table: str | None = None
    catalog: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    target_file_bytes: int = 128 << 20
    schema_evolution: str = "add"
    compression: str = "zstd"


def open_dlq(root: Path) -> ParquetTable:
    """The DLQ in this folder; made if it is not there."""
    return ParquetTable.open(DlqSink(str(root)), SCHEMA)
