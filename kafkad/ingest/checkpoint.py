"""The progress of a pipeline: its checkpoint directory, which one run at a time holds.

    identity.json            {"format": 1, "id": "<uuid>", "pipeline": "flights"}; the id marks the
                             pipeline's batches in the table, so a committed batch is recognised
    batches/<n>.planned      {"batch": 7, "start": {"t": {"0": 23}}, "end": {"t": {"0": 90}}}: offsets
                             in Spark's JSON; <n> has nine digits
    batches/<n>.done         the batch's result: rows, bytes, bad, files, seconds, and totals so far
    starts.json              the first offset of each partition, as offsets JSON
    topics.json              topic ids, which detect recreated topics
    lock                     held by flock as long as a run lives; kill -9 releases it
    spark/                   Spark's own checkpoint, if the pipeline keeps state there (dedup)

A batch goes through this order: planned (synced), files staged, table committed, done. If the last planned
batch is not done, it is repeated with exactly its offsets; if the table has it already, only `done` is
written. Each planned file has every partition ever read, so the newest one has the position. Only the last
KEPT files are kept.

Beware: a table and its checkpoint belong together. Without the checkpoint, a pipeline would start from the
beginning and write everything again; `run` refuses this.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkad.spark.offsets import as_json, from_json

FORMAT = 1
KEPT = 100  # batches whose records are kept for `status`
SUMMED = ("offsets", "records", "rows", "bad", "bytes", "files", "file_bytes")
WITHIN_TABLE = "_kafkad/checkpoint"

Offsets = dict[tuple[str, int], int]  # (topic, partition) -> offset


class Busy(Exception):
    """Another run holds the checkpoint; the message names it."""


class Foreign(Exception):
    """The directory contains something else than a checkpoint of this pipeline."""


@dataclass(frozen=True)
class Batch:
    """The range of one batch: start <= offset < end in each partition."""

    id: int
    start: Offsets
    end: Offsets

    def ranges(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, partition, start, end) of the ranges that are not empty."""
        return [
            (*where, self.start[where], end)
            for where, end in sorted(self.end.items())
            if end > self.start.get(where, end)
        ]

    @property
    def records(self) -> int:
        """The number of offsets; a compacted topic may have fewer records."""
        return sum(end - start for _, _, start, end in self.ranges())


class Checkpoint:
    """`with Checkpoint(path, name) as checkpoint`: locked until closed. Raises Busy, Foreign, OSError.

    With `read_only` nothing is created, written or locked, for `status` and `plan` during a run.
    """

    def __init__(self, path: str | os.PathLike[str], pipeline: str, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.batches = self.path / "batches"
        self.id = ""
        self._lock = -1
        if not read_only:
            self.batches.mkdir(parents=True, exist_ok=True)
            self._hold()
        try:
            self._identify(pipeline, read_only)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identify(self, pipeline: str, read_only: bool) -> None:
        identity = self.path / "identity.json"
        if identity.exists():
            known = json.loads(identity.read_text())
            if known.get("format") != FORMAT:
                raise Foreign(f"{identity} has format {known.get('format')}; this kafkad knows {FORMAT}")
            if known["pipeline"] != pipeline:
                raise Foreign(
                    f"the checkpoint {self.path} belongs to pipeline {known['pipeline']!r}, not {pipeline!r};"
                    " give each pipeline a checkpoint of its own"
                )
            self.id = known["id"]
        elif not read_only:
            self.id = str(uuid.uuid4())
            write_whole(identity, {"format": FORMAT, "id": self.id, "pipeline": pipeline})

    def _hold(self) -> None:
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise Busy(
                f"this pipeline is being run already ({holder or 'by another process'}); {self.path}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode())
        self._lock = descriptor

    @property
    def is_new(self) -> bool:
        return self.planned() is None

    def planned(self) -> Batch | None:
        """Return the batch that was planned last."""
        numbers = self._numbers("planned")
        if not numbers:
            return None
        record = json.loads(self._file(numbers[-1], "planned").read_text())
        return Batch(record["batch"], from_json(record["start"]), from_json(record["end"]))

    def unfinished(self) -> Batch | None:
        """Return the batch that was planned and not done; a run begins with it."""
        batch = self.planned()
        return None if batch is None or self._file(batch.id, "done").exists() else batch

    def position(self) -> Offsets:
        """Return where the next batch begins, for every partition ever read."""
        batch = self.planned()
        return {} if batch is None else dict(batch.end)

    def plan(self, start: Offsets, end: Offsets) -> Batch:
        """Record the next batch, durably. Partitions that were read before and are not named keep their
        position."""
        last = self.planned()
        assert self.unfinished() is None, "one batch at a time"
        known = {} if last is None else last.end
        start = {**known, **start}
        end = {**start, **end}
        batch = Batch(0 if last is None else last.id + 1, start, end)
        self._note_starts(start)
        planned = {"batch": batch.id, "start": as_json(start), "end": as_json(end)}
        write_whole(self._file(batch.id, "planned"), planned)
        return batch

    def _note_starts(self, start: Offsets) -> None:
        known = self.starts()
        if new := {where: at for where, at in start.items() if where not in known}:
            write_whole(self.path / "starts.json", as_json({**known, **new}))

    def starts(self) -> Offsets:
        """Return where each partition was begun."""
        place = self.path / "starts.json"
        return from_json(json.loads(place.read_text())) if place.exists() else {}

    def topic_ids(self) -> dict[str, str]:
        """Return the topics' ids when they were read, if brokers report ids."""
        place = self.path / "topics.json"
        return dict(json.loads(place.read_text())) if place.exists() else {}

    def note_topic_ids(self, ids: Mapping[str, str]) -> None:
        known = self.topic_ids()
        if any(known.get(topic) != each for topic, each in ids.items()):
            write_whole(self.path / "topics.json", {**known, **ids})

    def landed(self) -> Offsets:
        """Return how far the table has each partition."""
        unfinished = self.unfinished()
        return self.position() if unfinished is None else dict(unfinished.start)

    def done(self, batch: Batch, did: dict[str, Any]) -> dict[str, Any]:
        """Record that the table has the batch; return the record, including totals."""
        before = self.history()
        totals = dict(before[-1]["totals"]) if before else {}
        for name in SUMMED:
            totals[name] = totals.get(name, 0) + did.get(name, 0)
        totals["batches"] = totals.get("batches", 0) + int(bool(did))  # the first one has only our start
        record = {"batch": batch.id, **did, "totals": totals}
        write_whole(self._file(batch.id, "done"), record)
        for kind in ("planned", "done"):
            for number in self._numbers(kind)[:-KEPT]:
                self._file(number, kind).unlink(missing_ok=True)
        return record

    def history(self) -> list[dict[str, Any]]:
        """Return the records of the last batches, oldest first."""
        return [json.loads(self._file(number, "done").read_text()) for number in self._numbers("done")]

    def _numbers(self, kind: str) -> list[int]:
        if not self.batches.is_dir():
            return []
        return sorted(int(path.stem) for path in self.batches.glob(f"*.{kind}") if path.stem.isdigit())

    def _file(self, number: int, kind: str) -> Path:
        return self.batches / f"{number:09d}.{kind}"


def write_whole(path: Path, document: dict[str, Any]) -> None:
    """Write the file atomically and durably."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(scratch, "w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as trouble:  # a full disk
        scratch.unlink(missing_ok=True)
        raise OSError(trouble.errno, trouble.strerror, str(path)) from None
    os.rename(scratch, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
