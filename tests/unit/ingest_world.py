"""A small pipeline without Spark and broker, made to be killed: `python -m tests.unit.ingest_world TYPE
FOLDER`.

Its topic has two partitions; offset n of either carries the JSON {"id": n}, save every BAD_EVERY-th, which is
no JSON, and every HOLE_EVERY-th, which is not there. Three batches are landed, the table is compacted, what
was bad is decoded again by a decoder that knows better (save every WORST_EVERY-th), and a fourth batch is
landed.

The process makes a child that dies at its nth step, for n = 1, 2, …, and after each death looks at the table
as plain readers do, lets another child finish, and looks again. It prints what it has seen as a line of JSON
a death.
"""

import importlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset

from kafkad.ingest import dlq, landing, parquet_table, table
from kafkad.ingest.dead_letters import DlqSink
from kafkad.ingest.table import DIE_AT
from kafkad.ingest.tables import open_table
from kafkad.values.decoder import Decoded

APPLICATION = "a-query's/id"
BATCH, BATCHES = 40, 4
BAD_EVERY, HOLE_EVERY, WORST_EVERY = 7, 11, 21
TOPIC = "t"
LIBRARIES = {
    "parquet": (),
    "delta": ("deltalake", "deltalake.transaction"),
    "iceberg": (
        "kafkad.ingest.iceberg_io",
        "kafkad.ingest.iceberg_table",
        "pyiceberg.avro.decoder_fast",
        "pyiceberg.catalog.sql",
        "pyiceberg.conversions",
        "pyiceberg.io.pyarrow",
    ),
}
LANDED = pa.schema(
    [
        ("id", pa.int64()),
        ("month", pa.int32()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)


class Decoder:
    """As values.decoder.value_decoder makes them."""

    schema = pa.schema([("id", pa.int64()), ("month", pa.int32())])

    def __init__(self, knows_better: bool = False) -> None:
        self.knows_better = knows_better

    def decode(self, values: pa.Array) -> Decoded:
        ids: list[int | None] = []
        bad, reasons = [], []
        for row, value in enumerate(values.to_pylist()):
            text = value.decode()
            if text.startswith("bad ") and self.knows_better and int(text[4:]) % WORST_EVERY:
                text = json.dumps({"id": int(text[4:])})
            try:
                ids.append(json.loads(text)["id"])
            except ValueError:
                ids.append(None)
                bad.append(row)
                reasons.append("it is no JSON")
        months = [None if each is None or each % 5 == 0 else each % 3 for each in ids]
        return Decoded(len(values), [pa.array(ids, pa.int64()), pa.array(months, pa.int32())], bad, reasons)


def fetched(partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    for first in range(start, end, 16):
        offsets = [n for n in range(first, min(first + 16, end)) if n % HOLE_EVERY]
        values = [(f"bad {n}" if n % BAD_EVERY == 0 else json.dumps({"id": n})).encode() for n in offsets]
        count = len(offsets)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([b"k"] * count, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array([TOPIC] * count),
                pa.array([partition] * count, pa.int32()),
                pa.array(offsets, pa.int64()),
                pa.array([n * 1000 for n in offsets], pa.timestamp("us", "UTC")),
            ],
            ["key", "value", "topic", "partition", "offset", "timestamp"],
        )


def sink_of(kind: str, root: Path) -> Any:
    return replace(DlqSink(str(root)), type=kind, partition_by=("month",))


def job(kind: str, root: Path) -> None:
    settings = landing.LandSettings(None, bad="dlq")
    parquet_table.CHECKPOINT_EVERY = 3  # its steps are among those to die at
    there = open_table(sink_of(kind, root), LANDED)
    there.recover(APPLICATION)
    for batch in range(BATCHES):
        if there.committed(APPLICATION, batch):
            continue
        if batch == BATCHES - 1:
            there.compact()
            dlq.replay(there, settings, Decoder(knows_better=True))
        staging = there.staging(APPLICATION)
        reports = []
        for partition in (0, 1):
            start, end = batch * BATCH, (batch + 1) * BATCH
            ranges = [(TOPIC, partition, start, end, fetched(partition, start, end))]
            reports.append(landing.land(ranges, settings, staging, Decoder()))
        again = [table.TaskReport.from_json(report.to_json()) for report in reports]
        there.commit(APPLICATION, batch, again)


def seen(kind: str, root: Path) -> dict[str, Any]:
    """What independent readers see. `plain` reads the folder, for the Parquet table alone."""
    told: dict[str, Any] = {}
    if kind == "parquet":
        glob = f"{root}/**/*.parquet"
        if list(root.glob("month=*/*.parquet")):
            found = duckdb.sql(f"select _partition, _offset from read_parquet('{glob}')").fetchall()
        else:
            found = []
        plain = dataset.dataset(root, format="parquet", partitioning="hive")
        other = plain.to_table(["_partition", "_offset"]) if plain.files else None
        told["plain"] = sorted(found)
        told["plain_arrow"] = (
            sorted(zip(*(c.to_pylist() for c in other.columns), strict=True)) if other else []
        )
        letters = list((root / "_dlq").glob("*.dlq"))
    else:
        letters = list(root.rglob("_dlq/*.dlq"))
    read = [pa.parquet.read_table(each).select(["_partition", "_offset"]) for each in letters]
    told["dlq"] = sorted((r["_partition"], r["_offset"]) for part in read for r in part.to_pylist())
    return told


def log_view(kind: str, root: Path) -> list[tuple[int, int]]:
    """The rows that the table's own log names. Needs the table to be there; ends nothing that was begun."""
    if kind == "delta":
        import deltalake

        rows = pa.table(deltalake.DeltaTable(str(root)).to_pyarrow_table())
    elif kind == "iceberg":
        rows = open_table(sink_of(kind, root)).iceberg.scan().to_arrow()  # type: ignore[attr-defined]
    else:
        there = open_table(sink_of(kind, root))
        parts = [pa.parquet.ParquetFile(there.root / file.path).read() for file in there.files()]
        rows = pa.concat_tables([part.select(["_partition", "_offset"]) for part in parts])
    return sorted((r["_partition"], r["_offset"]) for r in rows.select(["_partition", "_offset"]).to_pylist())


def child(work: Any) -> int:
    """Its exit status, negative for a signal."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def told_by_child(work: Any) -> Any:
    """What `work()` answers, computed in a child: libraries with threads are never used in this process."""
    reading, writing = os.pipe()

    def tell() -> None:
        with os.fdopen(writing, "w") as out:
            json.dump(work(), out)

    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            tell()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(text)


def preload(kind: str) -> None:
    """Import what a table of this type needs, which each child would import again (Iceberg: 1 s of CPU)."""
    for name in ("kafkad.ingest.delta_table", "kafkad.ingest.compact", *LIBRARIES[kind]):
        importlib.import_module(name)


def drivers(kind: str, root: Path, errors: list[Path]) -> None:
    """As many jobs at once as there are files for what they write to stderr; prints their exit statuses."""
    preload(kind)
    pids = []
    for path in errors:
        if (pid := os.fork()) == 0:
            status = 1
            try:
                job(kind, root)
                status = 0
            except BaseException:
                path.write_text(traceback.format_exc())
            os._exit(status)
        pids.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]))


def main(kind: str, folder: Path, step: int = 1, every: int = 1) -> None:
    preload(kind)
    while True:
        root = folder / f"{kind}-{step}"

        def dies(step: int = step, root: Path = root) -> None:
            os.environ[DIE_AT] = str(step)
            job(kind, root)

        died = child(dies)
        told: dict[str, Any] = {"step": step, "died": died}
        told["after"] = told_by_child(lambda root=root: seen(kind, root))
        assert child(lambda root=root: job(kind, root)) == 0, f"the job after step {step}"
        told["end"] = told_by_child(lambda root=root: seen(kind, root))
        told["log"] = told_by_child(lambda root=root: log_view(kind, root))
        told["left"] = sorted(
            str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".staged",)
        )
        print(json.dumps(told), flush=True)
        shutil.rmtree(root)
        if died == 0:
            return
        step += every


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
