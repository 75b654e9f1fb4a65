"""A Delta table, without a jar: pyarrow writes the files, the package deltalake the log.

A batch is one version of Delta's log: its `add` actions and a `txn` action (application id, batch id), which
are committed together. This is Delta's own way to make a streaming sink idempotent (Spark's Delta sink does
the same). `transaction_version` returns the last batch.

Files wait in `_kafkad/staged`, and are renamed into their places just before the version is written. If the
driver dies in between, no version names these files: no Delta reader sees them, and `vacuum` removes them.
Readers must use the log (Spark with Delta, duckdb's delta extension, deltalake); a plain reader of the folder
also sees files that were compacted.

Beware: of two compactions from the same snapshot, deltalake (1.6.6) commits both, and every row is in the
table twice. A lock prevents this between kafkad's compactions. Do not let another program compact the table
at the same time.
Beware: deltalake encodes the path of an add action for the log (%25 for %), and returns it encoded.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kafkad.ingest.parquet_table import ParquetTable, open_dlq
from kafkad.ingest.table import (
    FileEntry,
    OffsetRange,
    Sink,
    Table,
    TableError,
    TaskReport,
    added_columns,
    check_partition_columns,
    check_plain,
    make_folder,
    step,
    sync_file,
    sync_folder,
)

if TYPE_CHECKING:
    import pyarrow as pa

CONFLICT_RETRIES = 10


class DeltaTable(Table):
    """See the module docstring."""

    writes_stats = True

    @classmethod
    def open(cls, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None) -> DeltaTable:
        if not sink.path:
            raise TableError("[sink] has no path: a Delta table is a directory")
        if "://" in sink.path:
            raise TableError(
                f"{sink.path} is no local path: kafkad writes Delta tables on local file systems"
            )
        check_plain(Path(sink.path).absolute())
        return cls(Path(sink.path), sink, schema, dlq_path)

    def __init__(
        self, root: Path, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None
    ) -> None:
        super().__init__(root.absolute(), sink, dlq_path)
        delta = deltalake()
        if not delta.DeltaTable.is_deltatable(str(self.root)):
            if schema is None:
                raise TableError(f"there is no Delta table in {root}")
            check_partition_columns(schema, self.partition_by)
            make_folder(self.root / "_delta_log")
            delta.DeltaTable.create(
                str(self.root), schema, mode="ignore", partition_by=list(self.partition_by) or None
            )
            sync_log(self.root, 0, 0)
            step("created")
        self.delta: Any = delta.DeltaTable(str(self.root))
        self._agree_on_schema(schema)

    def _agree_on_schema(self, schema: pa.Schema | None) -> None:
        import pyarrow as pa

        self.schema = plain_schema(pa.schema(self.delta.schema().to_arrow()))
        there = tuple(self.delta.metadata().partition_columns)
        if schema is None:
            self.partition_by = there
            return
        if there != self.partition_by:
            raise TableError(
                f"the table is partitioned by {', '.join(there) or 'nothing'}, [sink] says"
                f" {', '.join(self.partition_by) or 'nothing'}: a table's partitioning cannot change"
            )
        if added := added_columns(self.schema, schema, self.sink.schema_evolution):
            from deltalake import Schema

            self.delta.alter.add_columns(list(Schema.from_arrow(pa.schema(added)).fields))
            step("columns added")
            self.delta.update_incremental()
            sync_log(self.root, self.delta.version(), self.delta.version())
            self.schema = plain_schema(pa.schema(self.delta.schema().to_arrow()))

    def last_batch(self, application: str) -> int:
        self.delta.update_incremental()
        version = self.delta.transaction_version(application)
        return -1 if version is None else version

    def append(self, application: str, batch_id: int, reports: Sequence[TaskReport]) -> None:
        from deltalake import CommitProperties, Transaction

        self.refuse_overlap(application, reports)
        files = self.place(reports)
        before = self.delta.version()
        told = CommitProperties(
            app_transactions=[Transaction(application, batch_id, now_ms())],
            custom_metadata={"kafkad.batch": batch_id, "kafkad.application": application},
            max_commit_retries=CONFLICT_RETRIES,
        )
        self.delta.create_write_transaction(
            [add_action(file, data_change=True) for file in files],
            "append",
            self.delta.schema(),
            partition_by=list(self.partition_by) or None,
            commit_properties=told,
        )
        step("version")
        self.delta.update_incremental()
        sync_log(self.root, before + 1, self.delta.version())
        self.note_ends(reports, alone=self.delta.version() == before + 1)

    def state_id(self) -> object:
        return self.delta.version()

    def _open_dlq(self) -> ParquetTable:
        return open_dlq(self.dlq_root)

    def files(self) -> list[FileEntry]:
        import pyarrow as pa

        self.delta.update_incremental()
        found = []
        for row in pa.table(self.delta.get_add_actions(flatten=True)).to_pylist():
            path = unquote(row["path"])
            partition = tuple((name, text(row[f"partition.{name}"])) for name in self.partition_by)
            offsets = only_range(row)
            found.append(
                FileEntry(path, path, row["num_records"] or 0, row["size_bytes"], partition, offsets)
            )
        return found

    def settle(self, application: str | None) -> list[str]:
        return []  # versions are atomic

    def replace(self, removed: Sequence[FileEntry], added: Sequence[FileEntry]) -> None:
        raise AssertionError("Delta's log is compacted by deltalake")

    def compact(self, target_bytes: int | None = None) -> Any:
        """Compact by deltalake: a separate version, which conflicts with no append. One at a time (see
        above)."""
        from kafkad.ingest.compact import Compacted, only_one

        with only_one(self):
            before = {file.path: file for file in self.files()}  # also refreshes the snapshot
            step("planned")
            self.delta.optimize.compact(target_size=target_bytes or self.sink.target_file_bytes)
            step("compacted")
            after = {file.path: file for file in self.files()}
        gone = [file for path, file in before.items() if path not in after]
        new = [file for path, file in after.items() if path not in before]
        if sum(file.rows for file in gone) > sum(file.rows for file in new):
            raise TableError("deltalake's compaction lost rows: restore the version before it")
        return Compacted(
            len(gone),
            len(new),
            sum(file.bytes for file in gone),
            sum(file.bytes for file in new),
            sum(file.rows for file in gone),
            len({file.partition for file in gone}),
        )


def deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise TableError("Delta tables need the package deltalake: pip install deltalake")
    return deltalake


def sync_log(root: Path, first: int, last: int) -> None:
    """Sync versions of the log (and a checkpoint at one of them), which deltalake does not sync."""
    log = root / "_delta_log"
    written = [place for version in range(first, last + 1) for place in log.glob(f"{version:020}.*")]
    for place in [*written, log / "_last_checkpoint"]:
        with contextlib.suppress(FileNotFoundError):
            sync_file(place)
    sync_folder(log)


def add_action(file: FileEntry, data_change: bool) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        file.path, file.bytes, dict(file.partition), now_ms(), data_change, json.dumps(file.stats)
    )


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Undo the changes that Delta and Iceberg make to Arrow's types: large strings, large binaries and large
    lists, at any depth.
    """
    import pyarrow as pa

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(plain_field(kind.value_field))
        if pa.types.is_struct(kind):
            return pa.struct([plain_field(field) for field in kind])
        if pa.types.is_map(kind):
            return pa.map_(plain_field(kind.key_field), plain_field(kind.item_field))
        return kind

    def plain_field(field: pa.Field) -> pa.Field:
        return pa.field(field.name, plain(field.type), field.nullable)

    return pa.schema([plain_field(field) for field in schema])


def only_range(row: dict[str, Any]) -> tuple[OffsetRange, ...]:
    """Return the offsets of a file from its bounds, if it has one topic-partition and the bounds are
    conclusive."""
    bounds = [
        row.get(f"{side}.{name}") for name in ("_topic", "_partition", "_offset") for side in ("min", "max")
    ]
    topic, topic_most, partition, partition_most, first, last = bounds
    if None in bounds or topic != topic_most or partition != partition_most:
        return ()
    return (OffsetRange(str(topic), int(partition), int(first), int(last), row["num_records"]),)  # type: ignore[arg-type]


def text(value: Any) -> str | None:
    if value is None:
        return None
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
