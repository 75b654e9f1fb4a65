"""The offsets in a Parquet file of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 17
COLUMNS = ["_topic", "_partition", "_offset"]


def file_offsets(
    place: Path, known: dict[str, str | None] | None = None
) -> Iterator[tuple[str | None, int | None, pa.Array]]:
    """Yield (topic, partition, offsets) of a file, in pieces. `known`: columns that are in its directory
    names."""
    from pyarrow import compute, parquet

    known = known or {}
    with parquet.ParquetFile(place) as data:
        wanted = [name for name in COLUMNS if name in data.schema_arrow.names]
        for batch in data.iter_batches(BATCH_ROWS, columns=wanted):
            if "_offset" not in wanted:
                import pyarrow as pa

                yield None, None, pa.nulls(data.metadata.num_rows, pa.int64())
                return
            topics, told = [known.get("_topic")], known.get("_partition")
            if "_topic" in wanted:
                topics = batch.column("_topic").unique().to_pylist()
            numbers = [None if told is None else int(told)]
            if "_partition" in wanted:
                numbers = batch.column("_partition").unique().to_pylist()
            for topic in topics:
                for number in numbers:
                    part = batch
                    if len(topics) > 1:
                        same = compute.equal(part.column("_topic"), topic) if topic is not None else None
                        part = part.filter(compute.is_null(part.column("_topic")) if same is None else same)
                    if len(numbers) > 1:
                        same = (
                            compute.equal(part.column("_partition"), number) if number is not None else None
                        )
                        part = part.filter(
                            compute.is_null(part.column("_partition")) if same is None else same
                        )
                    if part.num_rows:
                        yield topic, number, part.column("_offset")
