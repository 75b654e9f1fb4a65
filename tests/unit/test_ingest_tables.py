"""Tables of `kafkad ingest`: each batch is in them once, whatever dies when."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kafkad.ingest import compact, dlq, landing, parquet_table, table, verify
from kafkad.ingest.dead_letters import DlqSink
from kafkad.ingest.parquet_table import open_dlq
from kafkad.ingest.table import Covered, TableError, TaskReport
from kafkad.ingest.tables import open_table
from tests.unit import ingest_world as world

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
KINDS = ["parquet", "delta", "iceberg"]
THERE = [n for n in range(world.BATCH * world.BATCHES) if n % world.HOLE_EVERY]
LAST = world.BATCH * (world.BATCHES - 1)  # the last batch lands after the replay
DEAD = [n for n in THERE if n % world.BAD_EVERY == 0 and (n % world.WORST_EVERY == 0 or n >= LAST)]


def both(offsets: list[int]) -> list[list[int]]:
    """Of the two partitions."""
    return [[partition, n] for partition in (0, 1) for n in offsets]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(3600 if SOAK else 180)
def test_a_pipeline_that_dies_at_any_step_leaves_each_record_once(kind: str, tmp_path: Path):
    """Every step in `make soak`; else some, from a random one on, and the undisturbed run."""
    every = 1 if SOAK else {"parquet": 29, "delta": 23, "iceberg": 59}[kind]
    first = 1 if SOAK else random.randrange(1, every)
    arguments = [kind, str(tmp_path), str(first), str(every)]
    command = [sys.executable, "-m", "tests.unit.ingest_world", *arguments]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    deaths = [json.loads(line) for line in told.stdout.splitlines()]
    assert deaths[-1]["died"] == 0, "it walks to the end"
    assert all(death["died"] == -9 for death in deaths[:-1])
    for death in deaths:
        where = f"step {death['step']}"
        for view in ("plain", "plain_arrow", "dlq"):
            seen = [tuple(each) for each in death["after"].get(view, [])]
            assert len(seen) == len(set(seen)), f"{view} sees a record twice after {where}"
            assert set(seen) <= {tuple(each) for each in both(THERE)}, where
        good = both([n for n in THERE if n not in DEAD])
        assert death["log"] == good, where
        assert death["end"].get("plain", good) == good, where
        assert death["end"].get("plain_arrow", good) == good, where
        assert death["end"]["dlq"] == both(DEAD), where
        assert not death["left"], where


@pytest.mark.parametrize("kind", KINDS)
def test_two_drivers_at_once_cannot_land_a_batch_twice(kind: str, tmp_path: Path):
    """Each may end the other by a sentence; a third run finishes."""

    def run(count: int) -> list[str]:
        """That many drivers at once: what each wrote to stderr."""
        errors = [tmp_path / f"driver-{number}-of-{count}" for number in range(count)]
        code = (
            "from pathlib import Path; from tests.unit import ingest_world as w;"
            f" w.drivers({kind!r}, Path({str(tmp_path / 't')!r}), [*map(Path, {[*map(str, errors)]})])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told = [path.read_text() if path.exists() else "" for path in errors]
        for status, text in zip(json.loads(done.stdout), told, strict=True):
            assert status == 0 or "TableError" in text, text
        return told

    run(2)
    assert run(1) == [""]
    good = {tuple(each) for each in both([n for n in THERE if n not in DEAD])}
    dead = {tuple(each) for each in both(DEAD)}
    # the second driver may replay letters of the last batch that the first one has just committed
    late = {tuple(each) for each in both([n for n in DEAD if n % world.WORST_EVERY])}
    found = world.log_view(kind, tmp_path / "t")
    replayed = set(found) & late
    assert found == sorted(good | replayed)
    assert world.seen(kind, tmp_path / "t")["dlq"] == sorted(dead - replayed)


def rows(start: int, end: int, **more: Any) -> pa.Table:
    numbers = range(start, end)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"n{n}" for n in numbers], pa.string()),
            "month": pa.array([None if n % 50 == 0 else n % 3 for n in numbers], pa.int32()),
            "_topic": pa.array(["t"] * len(numbers), pa.string()),
            "_partition": pa.array([0] * len(numbers), pa.int32()),
            "_offset": pa.array(numbers, pa.int64()),
            "_timestamp": pa.array([n * 1000 for n in numbers], pa.timestamp("us", "UTC")),
            **{name: pa.array([value] * len(numbers)) for name, value in more.items()},
        }
    )


def sink(root: Path, kind: str = "parquet", **more: Any) -> Any:
    return replace(DlqSink(str(root)), **{"type": kind, "partition_by": ("month",), **more})


def land(there: table.Table, batch: int, part: pa.Table, application: str = "q") -> table.Committed:
    report = landing.write_task(part.to_batches(max_chunksize=64), there.staging(application))
    return there.commit(application, batch, [TaskReport.from_json(report.to_json())])


def read(there: table.Table) -> pa.Table:
    files = [str(there.root / file.path) for file in there.files()]
    return duckdb.sql(
        f"select * from read_parquet({files}, hive_partitioning=true, union_by_name=true) order by _offset"
    ).to_arrow_table()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_comes_again_adds_nothing(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    assert land(there, 0, rows(0, 100)).rows == 100
    again = land(there, 0, rows(0, 100))
    assert again.again and again.rows == 0
    assert read(there)["_offset"].to_pylist() == list(range(100))
    assert open_table(sink(tmp_path, kind)).next_offsets() == {("t", 0): 100}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_added_and_anything_else_is_refused(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    land(there, 0, rows(0, 10))
    wider = rows(10, 20, extra=1.5)
    with pytest.raises(TableError, match=r'column extra.*schema_evolution = "add"'):
        open_table(sink(tmp_path, kind, schema_evolution="none"), wider.schema)
    there = open_table(sink(tmp_path, kind), wider.schema)
    land(there, 1, wider)
    assert read(there)["extra"].to_pylist() == [None] * 10 + [1.5] * 10
    with pytest.raises(TableError, match="has the column extra, which the pipeline does not"):
        open_table(sink(tmp_path, kind), rows(0, 1).schema)
    other = wider.set_column(0, "id", wider["id"].cast(pa.int32()))
    with pytest.raises(TableError, match="column id is int64 in the table and int32 in the pipeline"):
        open_table(sink(tmp_path, kind), other.schema)
    with pytest.raises(TableError, match="is partitioned by month"):
        open_table(sink(tmp_path, kind, partition_by=()), wider.schema)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_that_another_checkpoint_brings_again_are_refused(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    land(there, 0, rows(0, 100))
    with pytest.raises(TableError, match="offsets 50 to 99 of t-0 are in the table already"):
        land(there, 0, rows(50, 150), application="another")
    assert read(there).num_rows == 100


def test_an_iceberg_table_is_in_the_catalog_that_the_sink_names(tmp_path: Path):
    catalog = {"name": "ours", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    there = open_table(sink(tmp_path, "iceberg", path=None, table="db.t", catalog=catalog), rows(0, 1).schema)
    land(there, 0, rows(0, 10))
    from pyiceberg.catalog import load_catalog

    named = load_catalog("ours", **{k: v for k, v in catalog.items() if k != "name"}).load_table("db.t")
    assert sorted(named.scan().to_arrow()["_offset"].to_pylist()) == list(range(10))
    assert named.current_snapshot().summary["kafkad.batch"] == "0"
    with pytest.raises(TableError, match=r"the catalog ours has no table db\.other"):
        open_table(sink(tmp_path, "iceberg", path=None, table="db.other", catalog=catalog))
    with pytest.raises(TableError, match=r"an Iceberg table's name is namespace\.table"):
        open_table(sink(tmp_path, "iceberg", path=None, table="t", catalog=catalog))
    homeless = {"uri": f"sqlite:///{tmp_path}/other.db"}
    with pytest.raises(TableError, match=r"cannot make db\.t"):
        open_table(sink(tmp_path, "iceberg", path=None, table="db.t", catalog=homeless), rows(0, 1).schema)


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_keeps_each_row_once_and_leaves_fewer_files(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    for batch in range(5):
        land(there, batch, rows(batch * 100, batch * 100 + 100))
    before = read(there)
    did = there.compact()
    assert (did.files_before, did.files_after, did.rows) == (20, 4, 500)
    assert len(there.files()) == 4
    assert read(there).select(before.column_names).equals(before)
    assert there.next_offsets() == {("t", 0): 500}
    assert there.compact().files_before == 0
    land(there, 5, rows(500, 600))
    assert read(there)["_offset"].to_pylist() == list(range(600))


def test_a_plain_reader_sees_each_row_once_while_folders_are_compacted(tmp_path: Path):
    """duckdb reads the folder again and again; a reader that listed what is gone since gets an error."""
    there = open_table(sink(tmp_path / "t"), rows(0, 1).schema)
    for batch in range(4):
        land(there, batch, rows(batch * 90, batch * 90 + 90))
    reader = (
        "import duckdb, sys\n"
        "print('ready', flush=True)\n"
        "while not sys.stdin.closed:\n"
        "    try:\n"
        '        found = duckdb.sql(f"select count(*), count(distinct _offset) from read_parquet('
        f"'{tmp_path}/t/**/*.parquet')\").fetchall()[0]\n"
        "    except duckdb.Error:\n"
        "        continue\n"
        "    print(*found, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        there.compact()
        seen = {process.stdout.readline().strip() for _ in range(3)}
        process.kill()
    assert seen == {"360 360"}
    assert not list(tmp_path.glob(".t*")), "the copy beside the table is gone"


def test_where_folders_cannot_be_exchanged_the_small_files_go_first(tmp_path: Path, monkeypatch: Any):
    def cannot(one: Path, other: Path) -> None:
        raise OSError(22, "not on this file system")

    monkeypatch.setattr(parquet_table, "exchange_folders", cannot)
    there = open_table(sink(tmp_path / "t"), rows(0, 1).schema)
    for batch in range(3):
        land(there, batch, rows(batch * 90, batch * 90 + 90))
    there.compact()
    assert read(there)["_offset"].to_pylist() == list(range(270))
    assert len(list((tmp_path / "t").glob("month=*/*.parquet"))) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_compactions_at_a_time_the_second_is_refused(kind: str, tmp_path: Path):
    there = open_table(sink(tmp_path, kind), rows(0, 1).schema)
    with compact.only_one(there), pytest.raises(TableError, match=r"another compaction of .* is at work"):
        there.compact()


def test_a_delta_table_that_was_opened_before_a_compaction_is_compacted_right(tmp_path: Path):
    """deltalake itself takes a compaction from an old snapshot, and doubles every row."""
    there = open_table(sink(tmp_path, "delta"), rows(0, 1).schema)
    for batch in range(3):
        land(there, batch, rows(batch * 90, batch * 90 + 90))
    other = open_table(sink(tmp_path, "delta"))
    assert there.compact().files_before == 12
    assert other.compact().files_before == 0
    assert read(other)["_offset"].to_pylist() == list(range(270))


def test_an_unpartitioned_table_is_compacted_too(tmp_path: Path):
    there = open_table(sink(tmp_path / "t", partition_by=()), rows(0, 1).schema)
    for batch in range(3):
        land(there, batch, rows(batch * 90, batch * 90 + 90))
    assert there.compact().files_after == 1
    assert read(there)["_offset"].to_pylist() == list(range(270))


def test_the_log_of_many_batches_stays_short(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    batches = 3 * parquet_table.CHECKPOINT_EVERY + 5
    for batch in range(batches):
        land(there, batch, rows(batch, batch + 1))
    names = sorted(path.name for path in (tmp_path / "_kafkad" / "log").iterdir())
    assert len([n for n in names if n.endswith(".checkpoint")]) == 2
    assert len(names) <= 2 * parquet_table.CHECKPOINT_EVERY + 10
    anew = open_table(sink(tmp_path, partition_by=()))
    assert anew.committed("q", batches - 1) and not anew.committed("q", batches)
    assert read(anew)["_offset"].to_pylist() == list(range(batches))


def test_a_folder_that_holds_others_files_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TableError, match=r"holds notes\.txt, which no pipeline wrote"):
        open_table(sink(tmp_path), rows(0, 1).schema)


def test_files_reach_the_target_size_and_no_more(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=(), target_file_bytes=200_000), rows(0, 1).schema)
    noise = [random.randbytes(40).hex() for _ in range(300_000)]
    part = rows(0, 300_000).set_column(1, "name", pa.array(noise))
    report = landing.write_task(part.to_batches(max_chunksize=4096), there.staging("q"))
    assert len(report.files) > 1 and sum(file.rows for file in report.files) == 300_000


def test_a_table_partitioned_by_topic_knows_its_offsets(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=("_topic", "_partition")), rows(0, 1).schema)
    land(there, 0, rows(1, 30))
    land(there, 1, rows(30, 40))
    there.compact()
    assert there.next_offsets() == {("t", 0): 40}
    found = verify.verify(there, World(end=40))
    assert (found.partitions[0].rows, found.clean) == (39, True)
    with pytest.raises(TableError, match="offsets 5 to 39 of t-0"):
        land(there, 0, rows(5, 60), application="another")


def test_a_damaged_log_is_told_and_not_taken_for_an_empty_one(tmp_path: Path):
    there = open_table(sink(tmp_path), rows(0, 1).schema)
    land(there, 0, rows(0, 10))
    place = tmp_path / "_kafkad" / "log" / f"{1:020}.json"
    place.write_bytes(place.read_bytes()[:50])
    with pytest.raises(TableError, match="is damaged"):
        open_table(sink(tmp_path))


def test_a_data_file_that_somebody_deleted_is_told(tmp_path: Path):
    there = open_table(sink(tmp_path), rows(0, 1).schema)
    land(there, 0, rows(0, 10))
    (tmp_path / there.files()[0].path).unlink()
    with pytest.raises(TableError, match="is in the table's log and is gone"):
        open_table(sink(tmp_path))


# -- what a task does with a batch ---------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b/c", "ä%", "", None]), st.sampled_from([1, -2, None])), max_size=60
    )
)
@settings(deadline=None, max_examples=60)
def test_split_gives_every_row_once_in_order(values: list[tuple[str | None, int | None]]):
    batch = pa.record_batch(
        [
            pa.array([v[0] for v in values], pa.string()),
            pa.array([v[1] for v in values], pa.int32()),
            pa.array(range(len(values)), pa.int64()),
        ],
        ["s", "i", "n"],
    )
    found: list[int] = []
    keys = []
    for key, part in landing.split(batch, ["s", "i"]):
        keys.append(key)
        numbers = part.column("n").to_pylist()
        assert numbers == sorted(numbers)
        for row in part.to_pylist():
            assert key == (row["s"] or None, None if row["i"] is None else str(row["i"]))
        found += numbers
    assert sorted(found) == list(range(len(values)))


def test_partition_values_of_any_text_come_back_from_the_folders(tmp_path: Path):
    texts = ["plain", "a/b", "per%cent", "sp ace", "ü", "co:lon", "quo'te", "=", "back\\slash", None, "a\nb"]
    part = rows(0, len(texts)).set_column(2, "month", pa.array(texts, pa.string()))
    there = open_table(sink(tmp_path), part.schema)
    land(there, 0, part)
    found = duckdb.sql(
        f"select month from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true) order by _offset"
    ).fetchall()
    assert [row[0] for row in found] == texts


def test_a_failed_task_leaves_no_file(tmp_path: Path):
    there = open_table(sink(tmp_path), rows(0, 1).schema)

    def breaks() -> Any:
        yield from rows(0, 100).to_batches()
        raise RuntimeError("the socket is gone")

    with pytest.raises(RuntimeError):
        landing.write_task(breaks(), there.staging("q"))
    assert not list(tmp_path.rglob("*.staged"))


def test_a_bad_record_ends_the_run_by_its_place_where_the_pipeline_says_so(tmp_path: Path):
    there = open_table(sink(tmp_path), world.LANDED)
    ranges = [("t", 1, 0, 40, world.fetched(1, 0, 40))]
    with pytest.raises(landing.BadRecord, match="offset 7 of t-1 cannot be decoded: it is no JSON"):
        landing.land(ranges, landing.LandSettings(None), there.staging("q"), world.Decoder())
    assert not list(tmp_path.rglob("*.staged"))


def test_a_task_tells_what_it_covered(tmp_path: Path):
    there = open_table(sink(tmp_path), world.LANDED)
    ranges = [("t", 1, 0, 40, world.fetched(1, 0, 40))]
    report = landing.land(ranges, landing.LandSettings(None, "dlq"), there.staging("q"), world.Decoder())
    holes = tuple((n, n + 1) for n in range(0, 40, 11))
    assert report.covered == (Covered("t", 1, 0, 40, rows=31, bad=5, holes=4, hole_runs=holes),)
    assert (report.rows, report.bad) == (31, 5)


def test_dead_letters_keep_the_record_as_it_was(tmp_path: Path):
    world.job("parquet", tmp_path)
    letters = [row for batch in dlq.records(open_dlq(tmp_path / "_dlq")) for row in batch.to_pylist()]
    assert {row["value"] for row in letters} == {f"bad {n}".encode() for n in DEAD}
    assert {(row["key"], row["_topic"], row["error"]) for row in letters} == {(b"k", "t", "it is no JSON")}


# -- compaction's plan ---------------------------------------------------------------------------------------


def test_files_are_grouped_by_partition_and_offset_up_to_the_target():
    def file(name: str, size: int, first: int, month: str = "1") -> table.FileEntry:
        at = table.OffsetRange("t", 0, first, first + 9, 10)
        return table.FileEntry(name, name, 10, size, (("month", month),), (at,))

    files = [
        file("c", 40, 30),
        file("a", 40, 10),
        file("big", 90, 0),
        file("b", 40, 20),
        file("x", 10, 0, "2"),
    ]
    groups = compact.plan(files, 100)
    assert [[each.path for each in group] for group in groups] == [["a", "b"]]


# -- offsets and runs ----------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 300_000), max_size=50), max_size=8),
    st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 100_000)), max_size=4),
)
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("one_by_one", [0, 3, 100])
def test_an_offset_set_is_a_set_that_counts_what_comes_twice(
    one_by_one: int, arrays: list[list[int]], long: list[tuple[int, int]]
):
    verify.RUNS_ONE_BY_ONE = one_by_one
    held = verify.OffsetSet()
    seen: dict[int, int] = {}
    for numbers in [*arrays, *(list(range(start, start + size)) for start, size in long)]:
        held.add(pa.array(numbers, pa.int64()))
        for n in numbers:
            seen[n] = seen.get(n, 0) + 1
    inside = [n for start, end in held.runs() for n in range(start, end)]
    assert inside == sorted(seen)
    assert held.count == sum(seen.values())
    assert held.twice == sum(count - 1 for count in seen.values())


RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8).map(
    lambda pairs: table.merged([(start, start + size) for start, size in pairs])
)


def plain(runs: table.Runs) -> set[int]:
    return {n for start, end in runs for n in range(start, end)}


@given(RUNS, RUNS)
def test_runs_behave_as_sets_of_offsets(one: table.Runs, other: table.Runs):
    assert plain(verify.common(one, other)) == plain(one) & plain(other)
    assert plain(verify.without(one, other)) == plain(one) - plain(other)
    assert plain(table.merged([*one, *other])) == plain(one) | plain(other)


# -- verify against a broker that is a table of offsets ------------------------------------------------------


class World:
    """Answers as verify.Broker does."""

    def __init__(self, start: int = 0, end: int = world.BATCH * world.BATCHES) -> None:
        self.start, self.end = start, end
        self.asked: list[tuple[int, int]] = []

    def bounds(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, (self.start, self.end))

    def records(self, topic: str, partition: int, start: int, end: int) -> Any:
        self.asked.append((start, end))
        yield pa.array([n for n in THERE if start <= n < end], pa.int64())


def test_a_whole_table_is_clean_and_each_offset_has_its_place(tmp_path: Path):
    world.job("parquet", tmp_path)
    found = verify.verify(open_table(sink(tmp_path)), World(end=170), starts={("t", 0): 0, ("t", 1): 0})
    assert found.clean and found.exit_code == 0
    for each in found.partitions:
        assert (each.rows, each.in_dlq, each.lost, each.lag) == (len(THERE) - len(DEAD), len(DEAD), 0, 10)
        assert each.rows + each.in_dlq + each.holes == 160
    assert json.loads(found.to_json())["clean"] is True


def test_a_lost_file_is_told_by_its_offsets(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    for batch in range(3):
        land(there, batch, rows(batch * 10 + 1, batch * 10 + 11))
    assert isinstance(there, parquet_table.ParquetTable)
    middle = next(path for path, f in there.state.files.items() if f.offsets[0].first == 11)
    del there.state.files[middle]
    broker = World(end=31)
    found = verify.verify(there, broker)
    assert broker.asked == [(11, 21)], "only what is missing is fetched"
    assert found.exit_code == 1
    assert found.partitions[0].lost_runs == [(12, 21)] and found.partitions[0].holes == 1
    assert found.sentences() == ["offsets 12 to 20 of t-0 are lost"]


def test_a_doubled_file_and_a_foreign_one_are_told(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    land(there, 0, rows(0, 50))
    file = there.files()[0]
    copy = tmp_path / "copy.parquet"
    copy.write_bytes((tmp_path / file.path).read_bytes())
    assert isinstance(there, parquet_table.ParquetTable)
    there.state.files["copy.parquet"] = replace(file, path="copy.parquet")
    found = verify.verify(there, World(end=40))
    assert (found.partitions[0].twice, found.partitions[0].foreign) == (50, 10)
    assert not found.clean


def test_small_files_of_dead_letters_are_compacted_as_such(tmp_path: Path):
    world.job("parquet", tmp_path)
    there = open_table(sink(tmp_path))
    before = sorted(world.seen("parquet", tmp_path)["dlq"])
    assert there.dlq.compact().files_before > 1
    assert sorted(world.seen("parquet", tmp_path)["dlq"]) == before
    assert not list((tmp_path / "_dlq").glob("*.parquet"))


def test_offsets_that_the_log_has_forgotten_are_no_losses(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    land(there, 0, rows(1, 5))
    land(there, 1, rows(15, 20))
    found = verify.verify(there, World(start=12, end=20))
    each = found.partitions[0]
    assert (each.expired, each.lost, each.lost_runs) == (7, 3, [(12, 15)])


def test_rows_that_sql_left_out_are_no_losses(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    part = rows(1, 30).filter(pa.array([n % 2 == 0 for n in range(1, 30)]))
    land(there, 0, part)
    each = verify.verify(there, World(end=30), drops_rows=True).partitions[0]
    assert each.lost == 0 and each.left_out == len([n for n in THERE if 2 <= n < 29 and n % 2])


def test_parquet_settings_are_what_every_reader_takes(tmp_path: Path):
    there = open_table(sink(tmp_path, partition_by=()), rows(0, 1).schema)
    land(there, 0, rows(0, 1000))
    with parquet.ParquetFile(tmp_path / there.files()[0].path) as data:
        by_name = {data.metadata.row_group(0).column(n).path_in_schema: data.metadata.row_group(0).column(n)
                   for n in range(data.metadata.num_columns)}  # fmt: skip
    assert "DELTA_BINARY_PACKED" in by_name["_offset"].encodings
    assert by_name["_topic"].has_dictionary_page
    assert by_name["_offset"].statistics.max == 999
