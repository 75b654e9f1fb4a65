"""What `read` makes of records on their way to SQL: rows, dead letters, and a report of both."""

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kafkad.ingest import tasks
from kafkad.ingest.dead_letters import DlqSink
from kafkad.ingest.landing import BadRecord, LandSettings, ParquetFile
from kafkad.ingest.table import TableError
from kafkad.ingest.tables import open_table

DDL = "id INT"
VALUES = [b'{"id": 0}', b'{"id": "x"}', None, b'{"id": 3}', b"{"]


def records(values=VALUES, first=10):
    n = len(values)
    return pa.record_batch(
        {
            "key": pa.array([b"k"] * n, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * n),
            "partition": pa.array([2] * n, pa.int32()),
            "offset": pa.array([first + 2 * i for i in range(n)], pa.int64()),  # with holes between
            "timestamp": pa.array([0] * n, pa.timestamp("us", "UTC")),
        }
    )


def reading(place, bad):
    settings = LandSettings(("json", DDL, {}), bad)
    kept = [field for field in tasks.rows_schema(settings) if field.name != "_key"]
    staging = open_table(DlqSink(str(place / "t")), pa.schema(kept)).staging("q")
    return tasks.read([("t", 2, 10, 20, [records()])], settings, staging, "batch-0"), staging


def test_what_is_bad_is_put_aside_and_the_report_tells_of_all(tmp_path: Path):
    rows, staging = reading(tmp_path, "dlq")
    (good,) = rows
    assert good.column("id").to_pylist() == [0, None, 3]
    assert good.column("_offset").to_pylist() == [10, 14, 16]
    (told,) = tasks.read_reports(staging, "batch").values()
    (covered,) = told.covered
    assert (covered.rows, covered.bad, covered.holes) == (3, 2, 5)
    assert told.bytes_read == 5 + sum(len(value or b"") for value in VALUES)
    letters = parquet.read_table(Path(staging.dlq_root) / told.files[0].staged)
    assert letters["_offset"].to_pylist() == [12, 18]
    assert letters["value"].to_pylist() == [VALUES[1], VALUES[4]]
    again, _ = reading(tmp_path, "dlq")  # a task that Spark computes again
    assert len(list(again)) == len(tasks.read_reports(staging, "batch")) == 1


def test_rows_of_nulls_are_counted(tmp_path: Path):
    rows, staging = reading(tmp_path, "null")
    assert [row.column("id").to_pylist() for row in rows] == [[0, None, None, 3, None]]
    (told,) = tasks.read_reports(staging, "batch").values()
    assert (told.nulled, told.bad) == (2, 0)


def test_a_part_that_is_not_read_to_its_end_tells_nothing(tmp_path: Path):
    rows, staging = reading(tmp_path, "dlq")
    next(rows)
    rows.close()
    assert tasks.read_reports(staging, "batch") == {}
    assert not list(tmp_path.rglob("*.staged"))
    rows, staging = reading(tmp_path, "fail")
    with pytest.raises(BadRecord, match="the record at offset 12 of t-2 cannot be decoded: id"):
        list(rows)
    assert tasks.read_reports(staging, "batch") == {}


def test_a_disk_that_takes_no_more_ends_it_for_good(tmp_path: Path, monkeypatch):
    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    rows, _ = reading(tmp_path, "dlq")
    monkeypatch.setattr(ParquetFile, "close", full)
    with pytest.raises(TableError, match="cannot be written: No space left on device"):
        list(rows)
    assert not list(tmp_path.rglob("*.staged"))
