"""What has landed, read as any tool would: the Parquet files of a directory, without kafkad or Spark.

Nothing else is asked, so a file of a batch that was not committed, or one that is there twice, would show.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset


class Unproven(Exception):
    """What was landed is not what was sent; the message says where they differ."""


def read(table: Path, schema: pa.Schema) -> pa.Table:
    """The rows, typed by `schema`, with where each stood in Kafka; the partition column comes from the
    paths."""
    files = sorted(str(path) for path in table.rglob("*.parquet"))
    dataset = pyarrow.dataset.dataset(
        files, format="parquet", partitioning="hive", partition_base_dir=str(table)
    )
    landed = dataset.to_table()
    place = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64())])
    wanted = pa.schema([*schema, *place])
    return landed.select(wanted.names).cast(wanted)


def sums(rows: pa.Table, by: str, columns: list[str]) -> pa.Table:
    """Rows and sums for each value of `by`, in its order."""
    grouped = rows.group_by(by).aggregate([([], "count_all"), *((column, "sum") for column in columns)])
    return grouped.rename_columns([by, "rows", *columns]).sort_by(by)


def prove_offsets(rows: pa.Table, expected: dict[int, int]) -> None:
    """Every partition's offsets are 0 to its count, each once. Raises Unproven."""
    found = rows.group_by("_partition").aggregate(
        [
            ("_offset", "min"),
            ("_offset", "max"),
            ("_offset", "count_distinct"),
            ([], "count_all"),
        ]
    )
    seen = {row["_partition"]: row for row in found.to_pylist()}
    if set(seen) != {partition for partition, count in expected.items() if count}:
        raise Unproven(f"partitions {sorted(seen)} were landed, {sorted(expected)} were written")
    for partition, row in seen.items():
        count = expected[partition]
        facts = (
            row["_offset_min"],
            row["_offset_max"],
            row["_offset_count_distinct"],
            row["count_all"],
        )
        if facts != (0, count - 1, count, count):
            raise Unproven(
                f"partition {partition}: offsets {facts[0]} to {facts[1]}, {facts[3]} rows with {facts[2]}"
                f" offsets; written were 0 to {count - 1}"
            )


def prove_equal(rows: pa.Table, sent: pa.Table) -> None:
    """The same rows, in whatever order. Raises Unproven."""
    order = [(name, "ascending") for name in sent.column_names]
    landed = rows.select(sent.column_names)
    if landed.num_rows != sent.num_rows:
        raise Unproven(f"{landed.num_rows:,} rows were landed, {sent.num_rows:,} were sent")
    landed, wanted = (table.sort_by(order).combine_chunks() for table in (landed, sent))
    for name in sent.column_names:
        if not landed[name].equals(wanted[name]):
            both = pc.equal(landed[name], wanted[name])
            raise Unproven(f"column {name} differs in {pc.sum(pc.invert(both)).as_py()} rows")
