"""The dead letter queue's schema, and its place for a [sink]. (`dlq` reads, sends and replays it.)"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

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
    """The DLQ's counterpart of a [sink]."""

    path: str
    type: str = "parquet"
    table: str | None = None
    catalog: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    target_file_bytes: int = 128 << 20
    schema_evolution: str = "add"
    compression: str = "zstd"
