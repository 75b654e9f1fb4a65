"""An Iceberg table, without a jar: pyarrow writes the files, the package pyiceberg metadata and catalog.

A batch is one commit of the catalog: a snapshot that adds the files (its summary has application and batch),
and the table property `kafkad.batch.<application>`. Both are in one metadata file, and the catalog points to
the old or the new file, so a batch is committed exactly once. The property, not the summary, has the last
batch, because snapshots expire.

Files wait in `_kafkad/staged` under the table's location, and are renamed to `data/…` just before the commit.
If the driver dies in between, no snapshot names these files, and the catalog may not point to some metadata
files: no reader sees them.

The catalog is [sink] catalog (pyiceberg's properties; `name` is its name). The default is an SQLite catalog
next to the table (`path`/catalog.db). Its warehouse must be a local path.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
)

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY = "kafkad.batch."
DATA = "data"
BOUND_CHARS = 16  # Iceberg truncates bounds of strings to this length


class IcebergTable(Table):
    """See the module docstring."""

    data_folder = DATA
    keeps_partition_columns = True

    @classmethod
    def open(cls, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None) -> IcebergTable:
        try:
            import pyiceberg.catalog
            import pyiceberg.exceptions
        except ImportError:
            raise TableError("Iceberg tables need pyiceberg: pip install 'pyiceberg[sql-sqlite,pyarrow]'")
        properties = dict(sink.catalog)
        if not properties:
            if not sink.path:
                raise TableError(
                    "[sink] has neither a catalog nor a path: an Iceberg table needs one of them"
                )
            place = Path(sink.path).absolute()
            check_plain(place)
            make_folder(place)
            properties = {
                "type": "sql",
                "uri": f"sqlite:///{place / 'catalog.db'}",
                "warehouse": f"file://{place}",
            }
        properties.setdefault("py-io-impl", "kafkad.ingest.iceberg_io.DurableIO")
        if "warehouse" in properties:
            local_path(properties["warehouse"])  # refused before anything is written
        name = properties.pop("name", "kafkad")
        try:
            catalog = pyiceberg.catalog.load_catalog(name, **properties)
        except Exception as trouble:  # any exception of a catalog's own library
            raise TableError(f"the catalog {name} cannot be opened: {trouble}")
        identifier = sink.table or "kafkad.table"
        namespace, dot, _ = identifier.rpartition(".")
        if not dot:
            raise TableError(f"[sink] table is {identifier!r}: an Iceberg table's name is namespace.table")
        try:
            iceberg = catalog.load_table(identifier)
        except (pyiceberg.exceptions.NoSuchTableError, pyiceberg.exceptions.NoSuchNamespaceError):
            if schema is None:
                raise TableError(f"the catalog {name} has no table {identifier}")
            check_partition_columns(schema, sink.partition_by)
            catalog.create_namespace_if_not_exists(namespace)
            try:
                with (
                    catalog.create_table_transaction(
                        identifier, schema=schema, properties={"format-version": "2"}
                    ) as creation,
                    creation.update_spec() as spec,
                ):
                    for column in sink.partition_by:
                        spec.add_identity(column)
            except pyiceberg.exceptions.TableAlreadyExistsError:
                pass  # another process was faster
            except ValueError as trouble:  # without a warehouse there is no location for the table
                raise TableError(f"the catalog {name} cannot make {identifier}: {trouble}")
            step("created")
            iceberg = catalog.load_table(identifier)
        return cls(iceberg, sink, schema, dlq_path)

    def __init__(
        self, iceberg: Any, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None
    ) -> None:
        super().__init__(local_path(iceberg.location()), sink, dlq_path)
        self.iceberg = iceberg
        there = tuple(field.name for field in iceberg.spec().fields)
        self._take_schema()
        if schema is None:
            self.partition_by = there
            return
        if there != self.partition_by:
            raise TableError(
                f"the table is partitioned by {', '.join(there) or 'nothing'}, [sink] says"
                f" {', '.join(self.partition_by) or 'nothing'}: a table's partitioning cannot change"
            )
        if added := added_columns(self.schema, schema, sink.schema_evolution):
            import pyarrow as pa

            with iceberg.update_schema() as update:
                update.union_by_name(pa.schema([*self.schema, *added]))
            step("columns added")
            self._take_schema()

    def _take_schema(self) -> None:
        from kafkad.ingest.delta_table import plain_schema

        self.schema = plain_schema(self.iceberg.schema().as_arrow())

    def last_batch(self, application: str) -> int:
        self.iceberg.refresh()
        return int(self.iceberg.properties.get(PROPERTY + application, -1))

    def state_id(self) -> object:
        return self.iceberg.metadata_location

    def append(self, application: str, batch_id: int, reports: Sequence[TaskReport]) -> None:
        self.refuse_overlap(application, reports)
        files = self.place(reports)
        told = {"kafkad.application": application, "kafkad.batch": str(batch_id)}
        with self.iceberg.transaction() as commit:
            commit.set_properties({PROPERTY + application: str(batch_id)})
            if files:
                commit.add_files(
                    [self._uri(file.path) for file in files],
                    snapshot_properties=told,
                    check_duplicate_files=False,  # names are random, and the check reads every manifest
                )
            step("prepared")
        step("version")
        self.note_ends(reports)

    def _open_dlq(self) -> ParquetTable:
        return open_dlq(self.dlq_root)

    def files(self) -> list[FileEntry]:
        self.iceberg.refresh()
        return [self._entry(task.file) for task in self.iceberg.scan().plan_files()]

    def _entry(self, file: Any) -> FileEntry:
        from pyiceberg.conversions import from_bytes

        schema = self.iceberg.schema()
        bounds: dict[str, Any] = {}
        for name in ("_topic", "_partition", "_offset"):
            if name not in self.schema.names:
                break
            field = schema.find_field(name)
            sides = file.lower_bounds.get(field.field_id), file.upper_bounds.get(field.field_id)
            if None in sides:
                break
            bounds[name] = [from_bytes(field.field_type, side) for side in sides]
        offsets: tuple[OffsetRange, ...] = ()
        if len(bounds) == 3:
            (topic, topic_most), (partition, partition_most), (first, last) = bounds.values()
            if topic == topic_most and len(topic) < BOUND_CHARS and partition == partition_most:
                offsets = (OffsetRange(topic, partition, first, last, file.record_count),)
        path = str(local_path(file.file_path))
        relative = path.removeprefix(f"{self.root}/")
        spec = self.iceberg.specs()[file.spec_id]
        values = [file.partition[at] for at in range(len(spec.fields))]
        from kafkad.ingest.delta_table import text

        partition_values = tuple((f.name, text(v)) for f, v in zip(spec.fields, values, strict=True))
        return FileEntry(
            relative, relative, file.record_count, file.file_size_in_bytes, partition_values, offsets
        )

    def settle(self, application: str | None) -> list[str]:
        return []  # commits are atomic

    def compact(self, target_bytes: int | None = None) -> Any:
        from kafkad.ingest.compact import compact_table

        return compact_table(self, target_bytes or self.sink.target_file_bytes)

    def replace(self, removed: Sequence[FileEntry], added: Sequence[FileEntry]) -> None:
        """Commit a compaction: one snapshot with `added` in place of `removed`."""
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        with self.locked():
            self.iceberg.refresh()
            wanted = {file.path for file in removed}
            there = {self._entry(task.file).path: task.file for task in self.iceberg.scan().plan_files()}
            if gone := wanted - there.keys():
                raise TableError(f"{min(gone)} was compacted by somebody else")
            files = self.place([TaskReport(tuple(added))])
            with self.iceberg.transaction() as commit:
                told = {"kafkad.compacted": str(time.time_ns() // 1_000_000)}
                with commit.update_snapshot(snapshot_properties=told).overwrite() as snapshot:
                    for path in wanted:
                        snapshot.delete_data_file(there[path])
                    uris = iter([self._uri(file.path) for file in files])
                    metadata = commit.table_metadata
                    for data_file in parquet_files_to_data_files(self.iceberg.io, metadata, uris):
                        snapshot.append_data_file(data_file)
                step("prepared")
            step("version")

    def _uri(self, path: str) -> str:
        return f"{self.iceberg.location().rstrip('/')}/{path}"


def local_path(uri: str) -> Path:
    """Return the path of a file: URI, read as Iceberg's libraries do: literally, %20 is no blank. Raises
    TableError for another scheme, and for a # or ?, where pyiceberg takes the path to end.
    """
    parts = urlsplit(uri)
    if not parts.scheme:
        return Path(uri)
    if parts.scheme != "file":
        raise TableError(f"{uri} is no local path: kafkad writes Iceberg tables on local file systems")
    if "#" in uri or "?" in uri:
        raise TableError(f"{uri} has a # or ?: an Iceberg table's location must have neither")
    return Path(parts.path)
