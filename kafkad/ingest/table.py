"""Tables for batches: the interface that a sink must implement so that every record is in it once.

Tasks write, the driver commits. A task gets `Staging` (plain values, so it can be pickled), writes data files
with `landing.write_task`, and returns a `TaskReport` with its files and their offsets. A file that a task has
written is not yet in the table. The driver commits a batch's reports under an application (the streaming
query's id, which is in the checkpoint) and the batch's id. Batch ids only grow. A batch that is already in
the table is not committed again, so Spark may run it any number of times:

    table = open_table(sink, schema)          # by sink.type; creates the table if necessary; adds columns
    table.recover(application)                # once, before the query starts: finish what a dead driver began
    if not table.committed(application, batch_id):
        staging = table.staging(application)
        reports = [...]                       # from tasks: TaskReport.from_json(row) of their rows
        table.commit(application, batch_id, reports)
    table.next_offsets()                      # where to continue if the checkpoint is lost
    table.files()                             # the current data files

Uncommitted files of an attempt are garbage: `recover` and the application's next commit remove them (for
Delta, `vacuum` does).

Bad records are handled the same way: a task writes them to separate files, and `commit` adds these to the
table `_dlq` inside of this one (always a Parquet table). Two tables cannot change in one step. So an *intent*
(`_kafkad/intents/`) is written first, then the batch is committed to the table, which decides, then to the
DLQ, and then the intent is removed. `recover` completes an intent if its batch is in the table, and drops it
otherwise. The DLQ knows the batch id, too, so repeating it has no effect.

`step(name)` marks every place where a process may die. With KAFKAD_INGEST_DIE_AT=n in the environment, the
process kills itself by SIGKILL at the nth of them; the tests try every n through a whole commit.

Limits: the file system must be local, or shared with POSIX locks, links and atomic renames. A lock
(`_kafkad/lock`) separates two drivers during a commit only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafkad.ingest.file_offsets import file_offsets

if TYPE_CHECKING:
    import pyarrow as pa

TopicPartition = tuple[str, int]
Runs = list[tuple[int, int]]  # (start, end), end excluded; sorted, disjoint

OWN = "_kafkad"  # our folder inside a table; plain readers skip names with an underscore
DLQ = "_dlq"
REPLAY = "kafkad-replay-dlq"  # the application whose batches come from the DLQ
DIE_AT = "KAFKAD_INGEST_DIE_AT"
HOLE_RUNS_MAX = 1000  # listed by one task; further ones are only counted


class TableError(Exception):
    """The table cannot take this; `str(error)` is an error message for people."""


class Sink(Protocol):
    """The part of a pipeline's [sink] that a table reads."""

    @property
    def type(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def table(self) -> str | None: ...
    @property
    def catalog(self) -> dict[str, str]: ...
    @property
    def partition_by(self) -> tuple[str, ...]: ...
    @property
    def target_file_bytes(self) -> int: ...
    @property
    def schema_evolution(self) -> str: ...
    @property
    def compression(self) -> str: ...


@dataclass(frozen=True)
class OffsetRange:
    """The offsets of one topic-partition in one file: `rows` of them from `first` to `last`, both
    included."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class FileEntry:
    """One file: `path` and `staged` are relative to the table's root, `staged` is where the task wrote it."""

    path: str
    staged: str
    rows: int
    bytes: int
    partition: tuple[tuple[str, str | None], ...] = ()  # (column, value as in its directory name)
    offsets: tuple[OffsetRange, ...] = ()
    dlq: bool = False
    stats: dict[str, Any] = field(
        default_factory=dict
    )  # as in Delta: numRecords, minValues, maxValues, nullCount


@dataclass(frozen=True)
class Covered:
    """One topic-partition's offsets `start` to `end` (excluded), which a batch has processed: `rows` landed,
    `bad` went to the DLQ, `holes` had no record; `hole_runs` are (start, end) of the first HOLE_RUNS_MAX of
    those.
    """

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    bad: int = 0
    holes: int = 0
    hole_runs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TaskReport:
    """The result of one task. It travels as one string: a task yields a row with it."""

    files: tuple[FileEntry, ...] = ()
    covered: tuple[Covered, ...] = ()
    bytes_read: int = 0  # of keys and values, before decoding
    nulled: int = 0  # values that could not be decoded and became rows of nulls

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> TaskReport:
        told = json.loads(text)
        return TaskReport(
            tuple(entry_of(file) for file in told["files"]),
            tuple(covered_of(c) for c in told["covered"]),
            told["bytes_read"],
            told["nulled"],
        )

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files if not file.dlq)

    @property
    def bad(self) -> int:
        return sum(file.rows for file in self.files if file.dlq)


def entry_of(told: dict[str, Any]) -> FileEntry:
    partition = tuple((str(name), value) for name, value in told["partition"])
    offsets = tuple(OffsetRange(**each) for each in told["offsets"])
    return FileEntry(**{**told, "partition": partition, "offsets": offsets})


def covered_of(told: dict[str, Any]) -> Covered:
    return Covered(**{**told, "hole_runs": tuple((a, b) for a, b in told["hole_runs"])})


@dataclass(frozen=True)
class Staging:
    """How and where a task writes. Plain values: it is pickled to the tasks.

    `root`: the table's absolute folder. `folder` (relative to it): where files wait for their commit ("" = in
    their final place at once, for formats with a log of files). `data`: where data files belong.
    """

    root: str
    application: str
    folder: str
    data: str
    schema: bytes  # of the rows, by Schema.serialize
    partition_by: tuple[str, ...]
    keep_partition_columns: bool
    target_file_bytes: int
    compression: str
    dlq_root: str
    dlq_folder: str
    with_stats: bool = False

    def new_name(self) -> str:
        return f"part-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Committed:
    """The result of a commit. `again`: the batch was in the table already, nothing was added."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    bad: int = 0
    again: bool = False


class Letters(Protocol):
    """A table of bad records, beside a pipeline's table. (`parquet_table.ParquetTable` is one.)"""

    root: Path

    def files(self) -> list[FileEntry]: ...

    def settled_files(self) -> tuple[list[FileEntry], list[FileEntry]]: ...

    def settle(self, application: str | None) -> list[str]: ...

    def last_batch(self, application: str) -> int: ...

    def exchange(self, application: str, batch: int, entries: list[FileEntry], removed: list[str]) -> Any:
        """Add `entries` and remove the files `removed`, as one batch."""


class Table(ABC):
    """One table. See the module docstring for the order of calls. Raises TableError."""

    root: Path  # where its files are
    schema: pa.Schema
    partition_by: tuple[str, ...]

    data_folder = ""  # where data files belong, relative to the root
    keeps_partition_columns = False  # in the files, besides the directory names
    writes_stats = False  # of each column, for the format's own log

    def __init__(self, root: Path, sink: Sink, dlq_path: str | None = None) -> None:
        self.root = root
        self.sink = sink
        self.partition_by = tuple(sink.partition_by)
        self.dlq_root = Path(dlq_path) if dlq_path else root / DLQ
        self._dlq: Letters | None = None
        self._ends: dict[TopicPartition, int] | None = None  # of next_offsets, in state `_ends_of`
        self._ends_of: object = None

    # -- implemented by each format ------------------------------------------------------------------------

    @abstractmethod
    def last_batch(self, application: str) -> int:
        """Return the application's newest batch in the table, or -1."""

    @abstractmethod
    def append(self, application: str, batch_id: int, reports: Sequence[TaskReport]) -> None:
        """Commit the data files atomically. Called under the lock, for a new batch."""

    @abstractmethod
    def files(self) -> list[FileEntry]:
        """Return the table's current data files, paths relative to `root` (absolute if they are
        elsewhere)."""

    @abstractmethod
    def state_id(self) -> object:
        """Return a value that changes whenever anyone commits to the table."""

    @abstractmethod
    def settle(self, application: str | None) -> list[str]:
        """Complete what a dead driver began in this format. Called under the lock."""

    @abstractmethod
    def replace(self, removed: Sequence[FileEntry], added: Sequence[FileEntry]) -> None:
        """Commit a compaction: `added` have the rows of `removed`. Raises TableError if one of these is
        gone."""

    @abstractmethod
    def compact(self, target_bytes: int | None = None) -> Any:
        """Rewrite small files to the target size; see compact.py for the guarantees."""

    # -- common to all formats -----------------------------------------------------------------------------

    def staging(self, application: str) -> Staging:
        """Return where the application's tasks write; creates the folder."""
        folder = staged_folder(application)
        make_folder(self.root / folder)
        return Staging(
            root=str(self.root),
            application=application,
            folder=folder,
            data=self.data_folder,
            schema=self.schema.serialize().to_pybytes(),
            partition_by=self.partition_by,
            keep_partition_columns=self.keeps_partition_columns,
            target_file_bytes=self.sink.target_file_bytes,
            compression=self.sink.compression,
            dlq_root=str(self.dlq_root),
            dlq_folder=folder,
            with_stats=self.writes_stats,
        )

    def committed(self, application: str, batch_id: int) -> bool:
        return batch_id <= self.last_batch(application)

    def commit(
        self,
        application: str,
        batch_id: int,
        reports: Iterable[TaskReport],
        *,
        dlq_removed: Sequence[str] = (),
    ) -> Committed:
        """Commit a batch to the table, and its bad records to the DLQ. `dlq_removed`: files of the DLQ that
        are removed with it, because their records are in the batch.
        """
        reports = list(reports)
        bad = tuple(file for report in reports for file in report.files if file.dlq)
        good = [dataclasses.replace(r, files=tuple(f for f in r.files if not f.dlq)) for r in reports]
        with self.locked():
            self.end_intents()
            if self.committed(application, batch_id):
                self.discard(application, [f for report in reports for f in report.files])
                return Committed(again=True)
            self.check_staged(bad, good)
            intent = None
            if bad or dlq_removed:
                intent = self.write_intent(application, batch_id, bad, dlq_removed)
                step("intent")
            self.append(application, batch_id, good)
            step("appended")
            if intent is not None:
                self.carry_out(intent)
            self.clear_staged(application)
        files = [file for report in good for file in report.files]
        return Committed(
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            files=len(files),
            bad=sum(file.rows for file in bad),
        )

    def check_staged(self, bad: Sequence[FileEntry], good: Sequence[TaskReport]) -> None:
        """Check that no file of a commit was removed as garbage by another run, and make their names durable:
        tasks sync the files they write, this syncs the folders.
        """
        places = [self.dlq_root / file.staged for file in bad]
        places += [self.root / file.staged for report in good for file in report.files]
        for place in places:
            if not place.exists():
                raise gone(place)
        for folder in {place.parent for place in places}:
            sync_folder(folder)

    def recover(self, application: str | None = None) -> list[str]:
        """Complete what a dead driver began, and remove files of the application's dead tasks. Return
        messages about what was done.
        """
        with self.locked():
            told = self.settle(application) + self.end_intents()
            if application is not None:
                told += self.clear_staged(application)
        return told

    @property
    def dlq(self) -> Letters:
        """The table of bad records; created at first use."""
        if self._dlq is None:
            self._dlq = self._open_dlq()
        return self._dlq

    @abstractmethod
    def _open_dlq(self) -> Letters:
        """Open the table in `dlq_root`; create it if necessary."""

    @property
    def own(self) -> Path:
        return self.root / OWN

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        make_folder(self.own)
        with open(self.own / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def settled_files(self) -> tuple[list[FileEntry], list[FileEntry]]:
        """Return the data files and those of the DLQ, at one moment and all in their places. A compaction or
        a replay may remove them later.
        """
        with self.locked():
            self.settle(None)
            self.end_intents()
            letters = self.dlq.settled_files()[0] if (self.dlq_root / OWN).is_dir() else []
            return self.files(), letters

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Return the offset after the table's last one, for each topic-partition."""
        found: dict[TopicPartition, int] = {}
        for file in self.files():
            for at in file.offsets or self.read_offsets(file):
                key = at.topic, at.partition
                found[key] = max(found.get(key, 0), at.last + 1)
        return found

    def read_offsets(self, file: FileEntry) -> list[OffsetRange]:
        """Read the offsets from the file itself, if the table's log lacks them (a compaction mixed
        partitions)."""
        from pyarrow import compute

        found = []
        for topic, partition, offsets in file_offsets(self.root / file.path, dict(file.partition)):
            ends = compute.min_max(offsets).as_py()
            if topic is not None and partition is not None and ends["min"] is not None:
                rows = len(offsets) - offsets.null_count
                found.append(OffsetRange(topic, partition, ends["min"], ends["max"], rows))
        return found

    # -- intents: a batch and its bad records ----------------------------------------------------------------

    def write_intent(
        self, application: str, batch_id: int, bad: Sequence[FileEntry], removed: Sequence[str]
    ) -> Path:
        place = self.own / "intents" / f"{uuid.uuid4().hex}.json"
        told = {
            "application": application,
            "batch": batch_id,
            "bad": [dataclasses.asdict(file) for file in bad],
            "removed": list(removed),
        }
        write_durably(place, json.dumps(told).encode())
        return place

    def carry_out(self, intent: Path) -> None:
        """Apply a committed batch's part for the DLQ."""
        told = json.loads(intent.read_bytes())
        entries = [entry_of(file) for file in told["bad"]]
        self.dlq.exchange(told["application"], told["batch"], entries, told["removed"])
        step("dlq")
        intent.unlink()
        sync_folder(intent.parent)
        step("intent gone")

    def end_intents(self) -> list[str]:
        done = []
        for intent in sorted((self.own / "intents").glob("*.json")):
            told = json.loads(intent.read_bytes())
            name = f"batch {told['batch']}"
            if self.committed(told["application"], told["batch"]):
                self.carry_out(intent)
                done.append(f"{name} was in the table and its bad records not yet in the DLQ: they are now")
            else:
                for file in told["bad"]:
                    (self.dlq_root / file["staged"]).unlink(missing_ok=True)
                intent.unlink()
                done.append(f"{name} was prepared and not committed: it was dropped")
        return done

    def discard(self, application: str, files: Sequence[FileEntry]) -> None:
        """Remove the files of a failed attempt."""
        live = {file.path for file in self.files()}
        for file in files:
            if file.dlq:
                (self.dlq_root / file.staged).unlink(missing_ok=True)
            elif file.staged != file.path or file.path not in live:
                (self.root / file.staged).unlink(missing_ok=True)

    def place(self, reports: Sequence[TaskReport]) -> list[FileEntry]:
        """Move staged files to their places, durably, for formats with a log of files."""
        files = [file for report in reports for file in report.files]
        touched = set()
        for file in files:
            staged, place = self.root / file.staged, self.root / file.path
            make_folder(place.parent)
            os.rename(staged, place)
            touched.add(place.parent)
            step("placed")
        for folder in touched:
            sync_folder(folder)
        return files

    def refuse_overlap(self, application: str, reports: Sequence[TaskReport]) -> None:
        """Raise for offsets that are in the table already, whoever wrote them. For formats that do not record
        the covered runs: by the last offset of each topic-partition.
        """
        if application.startswith(REPLAY):
            return
        if self._ends is None or self._ends_of != self.state_id():
            self._ends, self._ends_of = self.next_offsets(), self.state_id()
        covered = covered_by(reports)
        for key, runs in covered.items():
            if runs[0][0] < self._ends.get(key, 0):
                raise overlap(key, runs[0][0], min(runs[-1][1], self._ends[key]))

    def note_ends(self, reports: Sequence[TaskReport], alone: bool = True) -> None:
        """Record ends after an append, for `refuse_overlap`. `alone`: nobody else committed meanwhile."""
        if self._ends is None or not alone:
            self._ends = None
            return
        for key, runs in covered_by(reports).items():
            self._ends[key] = max(self._ends.get(key, 0), runs[-1][1])
        self._ends_of = self.state_id()

    def clear_staged(self, application: str) -> list[str]:
        told = []
        for root in (self.root, self.dlq_root):
            folder = root / staged_folder(application)
            if folder.is_dir():
                count = sum(1 for _ in folder.iterdir())
                shutil.rmtree(folder, ignore_errors=True)
                if count:
                    told.append(f"{count} files that no batch has were removed from {folder}")
        return told


def gone(place: Path) -> TableError:
    """Return the error for a missing staged file, or a missing file of the DLQ."""
    return TableError(f"{place} is gone: another run of the same pipeline is at work, or somebody deleted it")


def added_columns(there: pa.Schema, coming: pa.Schema, evolution: str) -> list[pa.Field]:
    """Return the fields that `coming` adds. Raises TableError for any other difference: a missing column, or
    one of another type. The order of columns does not matter.
    """
    have = {field.name: field for field in there}
    for field_ in coming:
        old = have.pop(field_.name, None)
        if old is not None and old.type != field_.type:
            raise TableError(
                f"the column {field_.name} is {old.type} in the table and {field_.type} in the pipeline:"
                " a column's type cannot change"
            )
    if have:
        raise TableError(
            f"the table has the column {next(iter(have))}, which the pipeline does not:"
            " columns are only added"
        )
    added = [field_ for field_ in coming if field_.name not in there.names]
    if added and evolution != "add":
        raise TableError(
            f"the pipeline has the column {added[0].name}, which the table does not:"
            ' schema_evolution = "add" in [sink] adds it'
        )
    return [field_.with_nullable(True) for field_ in added]


def covered_by(reports: Sequence[TaskReport]) -> dict[TopicPartition, Runs]:
    """Return the offsets that a batch covers: those that its tasks read, or, if they do not know (with SQL),
    from the first to the last offset in its files.
    """
    covered: dict[TopicPartition, Runs] = {}
    for report in reports:
        for c in report.covered:
            covered.setdefault((c.topic, c.partition), []).append((c.start, c.end))
    if not covered:
        for report in reports:
            for file in report.files:
                for at in file.offsets:
                    key = at.topic, at.partition
                    (start, end) = (covered.get(key) or [(at.first, at.last + 1)])[0]
                    covered[key] = [(min(start, at.first), max(end, at.last + 1))]
    return {key: merged(runs) for key, runs in covered.items()}


def merged(runs: Runs) -> Runs:
    """Return the runs, with touching and overlapping ones joined."""
    out: Runs = []
    for start, end in sorted(runs):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        elif start < end:
            out.append((start, end))
    return out


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    import pyarrow as pa

    for name in partition_by:
        if name not in schema.names:
            raise TableError(f"partition_by names {name}, which is no column: {', '.join(schema.names)}")
        kind = schema.field(name).type
        good = (
            pa.types.is_integer(kind)
            or pa.types.is_string(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_date(kind)
        )
        if not good:
            raise TableError(
                f"partition_by names {name}, which is {kind}: integers, strings, dates and booleans do"
            )
    if set(partition_by) == set(schema.names):
        raise TableError("partition_by names every column: nothing would be left in the files")


def overlap(key: TopicPartition, start: int, end: int) -> TableError:
    return TableError(
        f"offsets {start} to {end - 1} of {key[0]}-{key[1]} are in the table already, by another checkpoint:"
        " start from the offsets that the table ends at, or land them in another table"
    )


def staged_folder(application: str) -> str:
    return f"{OWN}/staged/{safe_name(application)}"


def safe_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in text)


# -- durable files -------------------------------------------------------------------------------------------

_steps = 0


def step(name: str) -> None:
    """A point between two steps where tests can kill the process."""
    wanted = os.environ.get(DIE_AT)
    if wanted is None:
        return
    global _steps
    _steps += 1
    if wanted == str(_steps) or wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)


def write_durably(place: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Write a file atomically and durably. `exclusive`: raises FileExistsError if it exists."""
    make_folder(place.parent)
    temporary = place.parent / f".{uuid.uuid4().hex}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        step("written")
        if exclusive:
            os.link(temporary, place)
        else:
            os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(place.parent)


def check_plain(path: str | Path) -> None:
    """Raise TableError for a path that libraries based on URIs would take for another one."""
    if found := re.search("%[0-9A-Fa-f]{2}", str(path)):
        raise TableError(f"{path} has {found[0]}, which the table's library takes for a letter of a URI")


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably: a synced file in a folder that was not synced may
    disappear with the folder after a power loss.
    """
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_file(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
