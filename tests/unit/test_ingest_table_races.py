"""Tables of `kafkad ingest` while others work on them, with odd names, and when the power goes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkad.ingest import dlq, landing, verify
from kafkad.ingest.table import TableError
from kafkad.ingest.tables import open_table
from tests.unit import ingest_world as world
from tests.unit.test_ingest_tables import DEAD, KINDS, THERE, World, land, read, rows, sink

TEXTS = ["a", "b/c", "ä%", "x y", "a:b", "q?#", "%2F", "", None, "l" * 40, "..", "+", "é日本"]


@pytest.mark.parametrize("kind", KINDS)
def test_nested_columns_are_the_same_when_the_table_is_opened_again(kind: str, tmp_path: Path):
    text = pa.struct([("words", pa.list_(pa.struct([("s", pa.string())])))])
    for batch in range(2):
        part = rows(batch, batch + 1)
        for name, kind_of, value in (
            ("names", pa.list_(pa.string()), ["a", "ü"]),
            ("deep", text, {"words": [{"s": "日本"}]}),
            ("by", pa.map_(pa.string(), pa.binary()), [("k", b"v")]),
        ):
            part = part.append_column(name, pa.array([value], kind_of))
        there = open_table(sink(tmp_path, kind), part.schema)
        land(there, batch, part)
    assert read(there)["names"].to_pylist() == [["a", "ü"]] * 2
    assert read(there)["deep"].to_pylist() == [{"words": [{"s": "日本"}]}] * 2


@pytest.mark.parametrize("folder", ["a b", "50%", "ü"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_may_lie_in_a_folder_of_any_name(kind: str, folder: str, tmp_path: Path):
    there = open_table(sink(tmp_path / folder, kind), rows(0, 1).schema)
    land(there, 0, rows(0, 100))
    there = open_table(sink(tmp_path / folder, kind))
    there.compact()
    assert verify.verify(there, Whole(100)).clean
    assert os.listdir(tmp_path) == [folder]


@pytest.mark.parametrize(
    ("kind", "folder", "why"),
    [
        ("iceberg", "a#b", r"has a # or \?"),
        ("iceberg", "a?b", r"has a # or \?"),
        ("iceberg", "a%20b", "has %20"),
        ("delta", "a%20b", "has %20"),
    ],
)
def test_a_name_that_a_library_takes_for_another_is_refused_before_anything_is_there(
    kind: str, folder: str, why: str, tmp_path: Path
):
    with pytest.raises(TableError, match=why):
        open_table(sink(tmp_path / folder, kind), rows(0, 1).schema)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_partition_values_of_any_text_are_verified_and_compacted(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind, partition_by=("name",)), rows(0, 1).schema)
    for batch in range(2):
        start = batch * len(TEXTS)
        part = rows(start, start + len(TEXTS)).set_column(1, "name", pa.array(TEXTS, pa.string()))
        land(there, batch, part)
    for _ in range(2):
        assert verify.verify(there, Whole(2 * len(TEXTS))).clean
        assert there.next_offsets() == {("t", 0): 2 * len(TEXTS)}
        if kind == "iceberg":  # a reader trusts that a file has one value
            for wanted in ("name is null", "name == ''", "name == 'b/c'", "name == 'x y'"):
                assert there.iceberg.scan(wanted).to_arrow().num_rows == 2  # type: ignore[attr-defined]
        there.compact()


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_that_another_checkpoint_landed_meanwhile_are_refused(kind: str, tmp_path: Path):
    one = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    land(one, 0, rows(0, 50), "one")
    other = open_table(sink(tmp_path, kind))
    land(other, 0, rows(50, 100), "other")
    with pytest.raises(TableError, match="offsets 50 to 99 of t-0 are in the table already"):
        land(one, 1, rows(50, 100), "one")
    land(one, 1, rows(100, 120), "one")
    assert read(one)["_offset"].to_pylist() == list(range(120))


# -- verify beside others ------------------------------------------------------------------------------------


class Whole:
    """A broker whose log has every offset up to `end`."""

    def __init__(self, end: int) -> None:
        self.end = end

    def bounds(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, (0, self.end))

    def records(self, topic: str, partition: int, start: int, end: int) -> Any:
        yield pa.array(range(start, end), pa.int64())


def meanwhile(monkeypatch: Any, work: Any) -> None:
    """`work()`, once, before the first file is read that verify was told of."""
    original, waiting = verify.file_offsets, [work]

    def reads(*arguments: Any) -> Iterator[Any]:
        if waiting:
            waiting.pop()()
        return original(*arguments)

    monkeypatch.setattr(verify, "file_offsets", reads)


def test_verify_counts_right_while_the_table_is_compacted(tmp_path: Path, monkeypatch: Any):
    there = open_table(sink(tmp_path / "t"), rows(0, 1).schema)
    for batch in range(3):
        land(there, batch, rows(batch * 90, batch * 90 + 90))
    meanwhile(monkeypatch, open_table(sink(tmp_path / "t")).compact)
    found = verify.verify(there, Whole(270))
    assert (found.clean, found.partitions[0].rows) == (True, 270)


def test_verify_counts_right_while_dead_letters_are_replayed(tmp_path: Path, monkeypatch: Any):
    """They leave the DLQ for the table: they must not be missed in both."""
    settings = landing.LandSettings(None, "dlq")
    there = open_table(world.sink_of("parquet", tmp_path), world.LANDED)
    ranges = [("t", 0, 0, 40, world.fetched(0, 0, 40))]
    report = landing.land(ranges, settings, there.staging("q"), world.Decoder())
    there.commit("q", 0, [report])
    other = open_table(world.sink_of("parquet", tmp_path))
    meanwhile(monkeypatch, lambda: dlq.replay(other, settings, world.Decoder(knows_better=True)))
    found = verify.verify(there, World(end=40)).partitions[0]
    bad = [n for n in THERE if n < 40 and n % world.BAD_EVERY == 0]
    assert (found.lost, found.twice) == (0, 0)
    assert (found.rows, found.in_dlq) == (len([n for n in THERE if n < 40]) - 1, 1), bad


def test_verify_names_a_file_that_somebody_deleted(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    for batch in range(2):
        land(there, batch, rows(batch * 10, batch * 10 + 10))
    (tmp_path / there.files()[0].path).unlink()
    with pytest.raises(TableError, match=r"names a file that is gone.*part-.*\.parquet"):
        verify.verify(there, Whole(20))


def test_verify_reads_as_the_pipeline_reads(monkeypatch: Any):
    """Records of an aborted transaction are landed by a pipeline that reads uncommitted: none may be lost."""
    from kafkad.spark import range_reader

    asked = []

    def reader(*_: Any, isolation: str, **__: Any) -> list[Any]:
        asked.append(isolation)
        return []

    monkeypatch.setattr(range_reader, "RangeReader", reader)
    for config in ({}, {"kafka.isolation.level": "read_committed"}):
        list(verify.Broker("localhost:1", config).records("t", 0, 0, 1))
    assert asked == ["read_uncommitted", "read_committed"]


def test_dead_letters_that_are_older_than_the_table_leave_the_queue_when_they_land(tmp_path: Path):
    """The DLQ, in a place of its own, outlived its first table and knows that one's replays."""
    settings = landing.LandSettings(None, "dlq")
    for name, first in (("first", 0), ("second", 40)):
        there = open_table(world.sink_of("parquet", tmp_path / name), world.LANDED, str(tmp_path / "letters"))
        ranges = [("t", 0, first, first + 40, world.fetched(0, first, first + 40))]
        report = landing.land(ranges, settings, there.staging(name), world.Decoder())
        there.commit(name, 0, [report])
        assert dlq.replay(there, settings, world.Decoder(knows_better=True)).landed
    left = [n for n in THERE if n < 80 and n in DEAD]
    assert sorted(o for b in dlq.records(there.dlq) for o in b["_offset"].to_pylist()) == left
    assert verify.verify(there, World(end=80)).partitions[0].twice == 0


@pytest.mark.parametrize("when", ["it has listed the letters", "it has staged what it found"])
def test_of_two_replays_at_once_the_slower_ends_with_a_sentence(when: str, tmp_path: Path, monkeypatch: Any):
    settings = landing.LandSettings(None, "dlq")
    there, other = (open_table(world.sink_of("parquet", tmp_path), world.LANDED) for _ in range(2))
    ranges = [("t", 0, 0, 80, world.fetched(0, 0, 80))]
    there.commit("q", 0, [landing.land(ranges, settings, there.staging("q"), world.Decoder())])
    listed = there.dlq.files()

    def faster(*_: Any) -> Any:
        monkeypatch.undo()
        assert dlq.replay(other, settings, world.Decoder(knows_better=True)).landed
        return listed

    if when == "it has listed the letters":
        monkeypatch.setattr(there.dlq, "files", faster)
    else:
        monkeypatch.setattr(dlq, "step", faster)
    with pytest.raises(TableError, match="is gone: another run of the same pipeline is at work"):
        dlq.replay(there, settings, world.Decoder(knows_better=True))
    found = verify.verify(there, World(end=80)).partitions[0]
    assert (found.lost, found.twice) == (0, 0)


def test_a_staging_folder_that_goes_while_a_file_is_made_in_it_is_a_sentence(
    tmp_path: Path, monkeypatch: Any
):
    there = open_table(sink(tmp_path), rows(0, 1).schema)
    staging = there.staging("q")
    monkeypatch.setattr(landing, "make_folder", lambda folder: folder.rmdir())
    with pytest.raises(TableError, match=r"staged.* is gone: another run of the same pipeline is at work"):
        landing.write_task(rows(0, 20).to_batches(), staging)


# -- the power -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_is_on_disk_with_every_folder_above_it(kind: str, tmp_path: Path, monkeypatch: Any):
    """Every file and folder of the table was synced after it came to be, save locks and SQLite's own."""
    synced: set[int] = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "new" / "table"
    there = open_table(sink(root, kind, partition_by=("month", "name")), rows(0, 1).schema)
    report = landing.write_task(rows(0, 20).to_batches(), there.staging("q"))
    synced_by_then = set(synced)
    there.append = guarded(there.append, root, synced)  # type: ignore[method-assign]
    there.commit("q", 0, [report])
    assert synced_by_then < synced
    for place in [tmp_path, tmp_path / "new", root, *root.rglob("*")]:
        if place.name in ("lock", "catalog.db") or "staged" in place.parts:
            continue
        assert place.stat().st_ino in synced, place


def guarded(append: Any, root: Path, synced: set[int]) -> Any:
    def checked(*arguments: Any) -> None:
        staged = next(root.rglob("staged/*"))
        assert staged.stat().st_ino in synced, "the names of what tasks wrote are on disk first"
        append(*arguments)

    return checked
