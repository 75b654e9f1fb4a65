"""A folder of Parquet files to which batches are added exactly once.

    table/
      month=1/part-….parquet             for plain readers (spark.read.parquet, duckdb, pyarrow.dataset)
      _kafkad/log/00000000000000000007.json          version 7: a batch, a compaction, new columns
      _kafkad/log/00000000000000000050.checkpoint    the content of versions 0 to 50
      _kafkad/staged/<application>/….staged          files that belong to no batch yet
      _kafkad/lock, _kafkad/intents/                 table.py

A version is one small file. It is complete and on disk when link(2) creates it; link(2) fails if the version
exists. That is the commit. A version is a redo record: it names each file twice, where the task left it and
where it belongs. Only when the version is on disk are the files renamed into their places (and the folders
synced). Whoever opens the table or commits next first *settles* the newest version: it renames the files that
are still staged. So a file in its place belongs to exactly one committed batch, and a staged file of no
version is garbage.

Plain readers never see a file of an uncommitted batch, and never a row twice. Between the first and the last
rename of a batch (after a kill: until the table is next opened) they see a part of it. `files()` never does.
Staged files end in .staged and those of the DLQ in .dlq, because duckdb's globs (`**/*.parquet`) search every
folder.

Compaction replaces files. It creates a copy of the folder with hard links, in which the big file replaces the
small ones, and swaps both by one renameat2(RENAME_EXCHANGE). So a plain reader lists either all old or all
new files. A reader that has listed the old files and opens them late gets an error instead of wrong rows. The
copy is created outside of the table, because of the globs. An unpartitioned table's folder is the table
itself and cannot be swapped. There, and if the file system cannot exchange, the small files are removed first
and then the big one is added: for an instant, a plain reader may miss rows, but it never sees them twice.

Growth: every CHECKPOINT_EVERY versions the whole state is written, and versions before the previous
checkpoint are deleted.

Beware: pyarrow.dataset skips every folder that begins with an underscore. A table that is partitioned by
_topic needs `ignore_prefixes` there (Spark and duckdb read it). Code that lists `_kafkad/log` by name depends
on the zero-padding.
"""

from __future__ import annotations

import base64
import ctypes
import dataclasses
import errno
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest.table import (
    OWN,
    REPLAY,
    FileEntry,
    Runs,
    Sink,
    Table,
    TableError,
    TaskReport,
    TopicPartition,
    added_columns,
    check_partition_columns,
    covered_by,
    entry_of,
    make_folder,
    merged,
    overlap,
    step,
    sync_folder,
    write_durably,
)

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
CHECKPOINT_EVERY = 50
RENAME_EXCHANGE = 2
AT_FDCWD = -100


@dataclass
class State:
    """The combined contents of the versions up to `version`."""

    version: int = -1
    schema: str = ""  # base64 of Schema.serialize
    partition_by: list[str] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    applications: dict[str, int] = field(default_factory=dict)  # -> newest batch
    covered: dict[TopicPartition, Runs] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)  # the newest version, to be settled

    def take(self, record: dict[str, Any]) -> None:
        """Apply the next version."""
        assert record["version"] == self.version + 1
        self.version = record["version"]
        self.schema = record.get("schema") or self.schema
        self.partition_by = record.get("partition_by", self.partition_by)
        for path in record.get("remove", ()):
            del self.files[path]
        for told in record.get("add", ()):
            entry = entry_of(told)
            assert entry.path not in self.files
            self.files[entry.path] = entry
        if "batch" in record:
            assert record["batch"] > self.applications.get(record["application"], -1)
            self.applications[record["application"]] = record["batch"]
        for topic, partition, start, end in record.get("covered", ()):
            runs = self.covered.setdefault((topic, partition), [])
            self.covered[topic, partition] = merged([*runs, (start, end)])
        self.last = record

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "schema": self.schema,
                "partition_by": self.partition_by,
                "files": [dataclasses.asdict(file) for file in self.files.values()],
                "applications": self.applications,
                "covered": [[topic, number, runs] for (topic, number), runs in self.covered.items()],
                "last": self.last,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: bytes) -> State:
        told = json.loads(text)
        return State(
            told["version"],
            told["schema"],
            told["partition_by"],
            {file["path"]: entry_of(file) for file in told["files"]},
            told["applications"],
            {(topic, number): [(a, b) for a, b in runs] for topic, number, runs in told["covered"]},
            told["last"],
        )


class ParquetTable(Table):
    """See the module docstring."""

    suffix = ".parquet"

    @classmethod
    def open(cls, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None) -> ParquetTable:
        if not sink.path:
            raise TableError("[sink] has no path: a Parquet table is a directory")
        if "://" in sink.path:
            raise TableError(
                f"{sink.path} is no local path: a Parquet table needs a file system with renames and locks"
            )
        return cls(Path(sink.path), sink, schema, dlq_path)

    def __init__(
        self, root: Path, sink: Sink, schema: pa.Schema | None = None, dlq_path: str | None = None
    ) -> None:
        super().__init__(root.absolute(), sink, dlq_path)
        self.log = self.own / "log"
        self.state = State()
        if schema is None and not self.log.is_dir():
            raise TableError(f"there is no table in {root}")
        with self.locked():
            self._read_log()
            self.settle(None)
            self._agree_on_schema(schema)

    # -- the log -------------------------------------------------------------------------------------------

    def _read_log(self) -> None:
        """Update `state` to the newest version."""
        make_folder(self.log)
        if self.state.version < 0:
            checkpoints = sorted(self.log.glob("*.checkpoint"))
            if checkpoints:
                self.state = self._read_checkpoint(checkpoints[-1])
        while True:
            try:
                text = self._version_file(self.state.version + 1).read_bytes()
            except FileNotFoundError:
                newer = [p for p in self.log.glob("*.checkpoint") if int(p.stem) > self.state.version]
                if not newer:
                    return
                self.state = self._read_checkpoint(max(newer))
                continue
            self._take(text, self.state.version + 1)

    def _take(self, text: bytes, version: int) -> None:
        try:
            record = json.loads(text)
            if record.get("format", FORMAT) > FORMAT:
                raise TableError(f"{self.root} was written by a newer kafkad")
            self.state.take(record)
        except (ValueError, KeyError, TypeError, AssertionError) as trouble:
            raise TableError(f"{self._version_file(version)} is damaged: {trouble!r}")

    def _read_checkpoint(self, place: Path) -> State:
        try:
            return State.from_json(place.read_bytes())
        except (ValueError, KeyError, TypeError) as trouble:
            raise TableError(f"{place} is damaged: {trouble!r}")

    def _version_file(self, version: int) -> Path:
        return self.log / f"{version:020}.json"

    def _write_version(self, record: dict[str, Any]) -> None:
        record = {"version": self.state.version + 1, "time_ms": time.time_ns() // 1_000_000, **record}
        data = json.dumps(record, separators=(",", ":")).encode()
        write_durably(self._version_file(record["version"]), data, exclusive=True)
        self.state.take(json.loads(data))
        step("version")

    def _checkpoint(self) -> None:
        if self.state.version == 0 or self.state.version % CHECKPOINT_EVERY:
            return
        write_durably(self.log / f"{self.state.version:020}.checkpoint", self.state.to_json().encode())
        step("checkpoint")
        before = [int(path.stem) for path in self.log.glob("*.checkpoint")]
        if len(before) < 2:
            return
        kept = sorted(before)[-2]
        for path in self.log.iterdir():
            if path.suffix in (".json", ".checkpoint") and path.stem.isdigit():
                version = int(path.stem)
                if version < kept or (version == kept and path.suffix == ".json"):
                    path.unlink()
                    step("old version gone")

    def _agree_on_schema(self, schema: pa.Schema | None) -> None:
        import pyarrow as pa

        if self.state.version < 0:
            if schema is None:
                raise TableError(f"there is no table in {self.root}")
            others = [p.name for p in self.root.iterdir() if p.name[0] not in "._"]
            if others:
                raise TableError(
                    f"{self.root} holds {others[0]}, which no pipeline wrote:"
                    " a new table needs an empty directory"
                )
            check_partition_columns(schema, self.partition_by)
            self._write_version(
                {
                    "format": FORMAT,
                    "schema": encode_schema(schema),
                    "columns": [f"{f.name} {f.type}" for f in schema],
                    "partition_by": list(self.partition_by),
                }
            )
        self.schema = decode_schema(self.state.schema)
        if schema is None:
            self.partition_by = tuple(self.state.partition_by)
            return
        if tuple(self.state.partition_by) != self.partition_by:
            was = ", ".join(self.state.partition_by) or "nothing"
            raise TableError(
                f"the table is partitioned by {was}, [sink] says {', '.join(self.partition_by) or 'nothing'}:"
                " a table's partitioning cannot change"
            )
        if added := added_columns(self.schema, schema, self.sink.schema_evolution):
            wider = pa.schema([*self.schema, *added])
            self._write_version(
                {"schema": encode_schema(wider), "columns": [f"{f.name} {f.type}" for f in wider]}
            )
            self.schema = wider

    # -- the interface of table.py --------------------------------------------------------------------------

    def last_batch(self, application: str) -> int:
        self._read_log()
        return self.state.applications.get(application, -1)

    def _open_dlq(self) -> ParquetTable:
        return open_dlq(self.dlq_root)

    def files(self) -> list[FileEntry]:
        self._read_log()
        return list(self.state.files.values())

    def state_id(self) -> object:
        return self.state.version

    def append(self, application: str, batch_id: int, reports: Sequence[TaskReport]) -> None:
        self._read_log()
        self.settle(None)
        covered = {} if application.startswith(REPLAY) else covered_by(reports)
        for key, runs in covered.items():
            self._refuse_overlap(key, runs)
        self._write_version(
            {
                "application": application,
                "batch": batch_id,
                "covered": [[*key, start, end] for key, runs in covered.items() for start, end in runs],
                "add": [dataclasses.asdict(file) for report in reports for file in report.files],
                "counts": [
                    {k: v for k, v in dataclasses.asdict(c).items() if k != "hole_runs"}
                    | {"runs": c.hole_runs}
                    for report in reports
                    for c in report.covered
                ],
            }
        )
        self.settle(None)
        self._checkpoint()

    def _refuse_overlap(self, key: TopicPartition, runs: Runs) -> None:
        """Offsets land once, even from another checkpoint or another pipeline."""
        for start, end in runs:
            for have_start, have_end in self.state.covered.get(key, ()):
                if start < have_end and have_start < end:
                    raise overlap(key, max(start, have_start), min(end, have_end))

    def exchange(
        self, application: str, batch_id: int, entries: Sequence[FileEntry], removed: Sequence[str]
    ) -> None:
        """Add and remove files in one version, once per batch id. (Used for the DLQ.)"""
        with self.locked():
            self._read_log()
            self.settle(None)
            if batch_id <= self.state.applications.get(application, -1):
                return
            self._write_version(
                {
                    "application": application,
                    "batch": batch_id,
                    "add": [dataclasses.asdict(file) for file in entries],
                    "remove": list(removed),
                }
            )
            self.settle(None)
            self._checkpoint()

    # -- from a version to files in their places -------------------------------------------------------------

    def settle(self, application: str | None) -> list[str]:
        self._read_log()
        record, told = self.state.last, []
        if record.get("folders") is not None:
            done = [self._settle_folder(record, folder) for folder in record["folders"]]
            return [
                f"a compaction was finished in {name or 'the table'}" for name in done if name is not None
            ]
        touched = set()
        for path in record.get("remove", ()):  # before adding, so that no row is there twice
            if (self.root / path).exists():
                (self.root / path).unlink(missing_ok=True)
                touched.add((self.root / path).parent)
            step("removed")
        for file in record.get("add", ()):
            staged, place = self.root / file["staged"], self.root / file["path"]
            if staged == place or not staged.exists():
                if not place.exists():
                    raise TableError(f"{place} is in the table's log and is gone: somebody deleted it")
                continue
            make_folder(place.parent)
            os.rename(staged, place)
            touched.add(place.parent)
            step("renamed")
        for folder in touched:
            sync_folder(folder)
        if touched:
            told.append(f"{len(touched)} folders of version {record['version']} were brought up to date")
            step("synced")
        return told

    def replace(self, removed: Sequence[FileEntry], added: Sequence[FileEntry]) -> None:
        """Commit a compaction: `added` have the rows of `removed`. Raises TableError if one of these is gone
        meanwhile."""
        with self.locked():
            self._read_log()
            self.settle(None)
            if gone := [file.path for file in removed if file.path not in self.state.files]:
                raise TableError(f"{gone[0]} was compacted by somebody else")
            folders = sorted({os.path.dirname(file.path) for file in [*removed, *added]})
            self._write_version(
                {
                    "add": [dataclasses.asdict(file) for file in added],
                    "remove": [file.path for file in removed],
                    "folders": folders,
                }
            )
            self.settle(None)
            self._checkpoint()

    def _settle_folder(self, record: dict[str, Any], folder: str) -> str | None:
        """Settle one folder of a compaction; return its name if there was something to do. A kill may follow
        every step: the existing files show what was done.
        """
        adds = [f for f in record["add"] if os.path.dirname(f["path"]) == folder]
        removes = {os.path.basename(p) for p in record["remove"] if os.path.dirname(p) == folder}
        place = self.root / folder
        copy = self.root.parent / f".{self.root.name}{OWN}" / folder.replace("/", "%")
        there = set(os.listdir(place))
        waiting = [f for f in adds if (self.root / f["staged"]).exists()]
        if not waiting and not (there & removes):
            shutil.rmtree(copy, ignore_errors=True)
            return None
        if folder and not all(os.path.basename(f["path"]) in there for f in adds):
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(parents=True)
            try:
                for name in there - removes:
                    os.link(place / name, copy / name)
                step("copied")
                for file in waiting:
                    os.link(self.root / file["staged"], copy / os.path.basename(file["path"]))
                sync_folder(copy)
                step("copy complete")
                exchange_folders(copy, place)
                step("exchanged")
                there = set(os.listdir(place))
            except OSError as trouble:
                if trouble.errno not in (
                    errno.EINVAL,
                    errno.ENOSYS,
                    errno.EPERM,
                    errno.EXDEV,
                    errno.EOPNOTSUPP,
                ):
                    raise
                shutil.rmtree(copy, ignore_errors=True)  # not supported here: remove the old ones first
        for name in there & removes:
            (place / name).unlink(missing_ok=True)
            step("removed")
        for file in waiting:
            if os.path.basename(file["path"]) in there:
                (self.root / file["staged"]).unlink()
            else:
                os.rename(self.root / file["staged"], self.root / file["path"])
            step("placed")
        sync_folder(place)
        sync_folder(place.parent)
        shutil.rmtree(copy, ignore_errors=True)
        if folder:
            try:
                copy.parent.rmdir()
            except OSError:
                pass  # another folder's copy
        return folder

    def compact(self, target_bytes: int | None = None) -> Any:
        from kafkad.ingest.compact import compact_table

        return compact_table(self, target_bytes or self.sink.target_file_bytes)


def exchange_folders(one: Path, other: Path) -> None:
    """Exchange both names atomically (Linux). Raises OSError if that is not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def open_dlq(root: Path) -> ParquetTable:
    """Open the dead letter queue in this folder; create it if necessary."""
    from kafkad.ingest.dead_letters import SCHEMA, DlqSink

    return ParquetTable.open(DlqSink(str(root)), SCHEMA)
