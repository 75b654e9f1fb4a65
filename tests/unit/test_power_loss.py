"""The simulated disk keeps to its rules: what was synced is there, and nothing else can be relied on."""

import os
import random
import subprocess
import sys

import pytest

from tests.power import Disk

SEEDS = range(40)


def run(disk: Disk, program: str) -> None:
    """A Python process that does `program` on the disk; `d` is its root."""
    prologue = """
import mmap, os, shutil, sys
d = sys.argv[1]
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def put(name, data, how="wb"):
    with open(os.path.join(d, name), how) as file:
        file.write(data)
"""
    command = [sys.executable, "-c", prologue + program, str(disk.root)]
    subprocess.run(command, check=True, env={**os.environ, **disk.env()})


def outcomes(disk: Disk, tmp_path, look, how: str = "mixed") -> set:
    """What `look(root)` finds after power loss, over many seeds."""
    return {look(disk.image(tmp_path / f"{how}{seed}", random.Random(seed), how=how).root) for seed in SEEDS}


def content(name: str):
    def look(root):
        return (root / name).read_bytes() if (root / name).exists() else None

    return look


@pytest.fixture
def disk(tmp_path) -> Disk:
    return Disk(tmp_path / "disk", sync_us=0)


def test_what_was_synced_with_its_directory_is_there(disk, tmp_path):
    run(disk, "put('a', b'kept'); sync(d + '/a'); sync(d)")
    assert outcomes(disk, tmp_path, content("a")) == {b"kept"}


def test_a_file_without_an_fsync_may_be_missing_empty_zeros_or_whole(disk, tmp_path):
    run(disk, "put('a', b'lost')")
    assert outcomes(disk, tmp_path, content("a")) == {None, b"", bytes(4), b"lost"}
    assert outcomes(disk, tmp_path, content("a"), how="least") == {None}
    assert outcomes(disk, tmp_path, content("a"), how="most") == {b"lost"}


def test_a_synced_file_whose_directory_was_not_synced_may_be_missing(disk, tmp_path):
    run(disk, "put('a', b'kept'); sync(d + '/a')")
    assert outcomes(disk, tmp_path, content("a")) == {None, b"kept"}


def test_pages_are_lost_one_by_one(disk, tmp_path):
    run(disk, "put('a', bytes([1]) * 8192); sync(d + '/a'); sync(d); put('a', bytes([2]) * 8192, 'r+b')")
    found = {(data[0], data[4096]) for data in outcomes(disk, tmp_path, content("a"))}
    assert found == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_a_rename_without_an_fsync_of_the_file_may_leave_nothing_in_it(disk, tmp_path):
    run(
        disk,
        "put('a', b'old'); sync(d + '/a'); sync(d); put('b', b'new'); os.rename(d + '/b', d + '/a'); sync(d)",
    )
    assert outcomes(disk, tmp_path, content("a")) == {b"", bytes(3), b"new"}


def test_a_synced_rename_is_atomic(disk, tmp_path):
    run(
        disk,
        "put('a', b'old'); sync(d + '/a'); sync(d)\n"
        "put('b', b'new'); sync(d + '/b'); os.rename(d + '/b', d + '/a')",
    )
    assert outcomes(disk, tmp_path, content("a")) == {b"old", b"new"}


def test_a_removed_file_may_come_back_with_what_was_synced_in_it(disk, tmp_path):
    run(disk, "put('a', b'kept'); sync(d + '/a'); sync(d); os.unlink(d + '/a')")
    assert outcomes(disk, tmp_path, content("a")) == {None, b"kept"}


def test_directory_changes_survive_in_their_order(disk, tmp_path):
    run(disk, "[put(name, b'') for name in 'abc']")
    found = outcomes(disk, tmp_path, lambda root: "".join(sorted(path.name for path in root.iterdir())))
    assert found == {"", "a", "ab", "abc"}


def test_a_directory_needs_its_parent_to_be_synced(disk, tmp_path):
    run(disk, "os.mkdir(d + '/x'); put('x/a', b'1'); sync(d + '/x/a'); sync(d + '/x')")
    assert outcomes(disk, tmp_path, content("x/a")) == {None, b"1"}


def test_a_truncation_may_be_undone_until_it_is_synced(disk, tmp_path):
    run(disk, "put('a', b'12345678'); sync(d + '/a'); sync(d); os.truncate(d + '/a', 4)")
    found = outcomes(disk, tmp_path, content("a"))
    assert found == {b"1234", b"12345678", b"1234" + bytes(4)}


def test_a_synced_truncation_stands(disk, tmp_path):
    run(disk, "put('a', b'12345678'); sync(d + '/a'); sync(d); os.truncate(d + '/a', 4); sync(d + '/a')")
    assert outcomes(disk, tmp_path, content("a")) == {b"1234"}


def test_mapped_bytes_are_saved_by_an_fsync_only(disk, tmp_path):
    write = """
fd = os.open(d + '/an.index', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
map = mmap.mmap(fd, 8192)
map[0:3] = b'one'
{}
map[0:3] = b'two'
"""
    run(disk, write.format("sync(d + '/an.index'); sync(d)"))
    found = {data[:3] for data in outcomes(disk, tmp_path, content("an.index"))}
    assert found == {b"one", b"two"}


def test_an_earlier_moment_can_be_chosen(disk, tmp_path):
    run(disk, "put('a', b'1'); sync(d + '/a'); sync(d)\nput('a', b'2'); sync(d + '/a')")
    ends = [ns for kind, ns, *_ in disk.records() if kind == 9]
    early = disk.image(tmp_path / "early", random.Random(0), how="least", at_ns=ends[1])
    late = disk.image(tmp_path / "late", random.Random(0), how="least")
    assert (early.root / "a").read_bytes() == b"1"
    assert (late.root / "a").read_bytes() == b"2"


def test_deleting_a_tree_is_seen(disk, tmp_path):
    run(disk, "os.makedirs(d + '/x/y'); put('x/y/a', b''); shutil.rmtree(d + '/x'); sync(d)")
    assert outcomes(disk, tmp_path, lambda root: (root / "x").exists()) == {False}


def test_what_the_recorder_cannot_follow_fails_the_test(disk, tmp_path):
    run(
        disk,
        "put('a', b'1'); a = os.open(d + '/a', os.O_RDONLY); b = os.open(d + '/b', os.O_RDWR | os.O_CREAT)\n"
        "os.copy_file_range(a, b, 1)",
    )
    with pytest.raises(AssertionError, match="copy_file_range"):
        disk.state()


def test_a_file_without_a_name_is_there_once_it_is_linked_and_its_directory_synced(disk, tmp_path):
    nameless = """
fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o644)
here = os.open(d, os.O_RDONLY)
os.write(fd, b'kept')
os.fsync(fd)
os.write(fd, b'lost')
"""
    link = "os.link(f'/proc/self/fd/{fd}', d + '/a', src_dir_fd=here, follow_symlinks=True)\n"
    run(disk, nameless)
    assert outcomes(disk, tmp_path, content("a"), how="most") == {None}
    run(disk, nameless + link)
    assert outcomes(disk, tmp_path, content("a")) == {None, b"kept", b"keptlost", b"kept" + bytes(4)}
    run(disk, "os.unlink(d + '/a')\n" + nameless + link + "os.fsync(here)")
    assert outcomes(disk, tmp_path, content("a"), how="later") == {b"kept", b"keptlost", b"kept" + bytes(4)}


def test_what_a_killed_process_could_not_tell_is_found_and_not_relied_on(disk, tmp_path):
    run(
        disk,
        "put('a', b'told'); sync(d + '/a'); os.mkdir(d + '/x'); put('x/b', b''); sync(d + '/x'); sync(d)",
    )
    (disk.root / "a").write_bytes(b"unheard")
    (disk.root / "x" / "b").rename(disk.root / "x" / "c")
    (disk.root / "new").write_bytes(b"new")
    with open(disk.trace, "ab") as trace:
        trace.write(b"\x40\x00\x00\x00\x03 cut short")
    disk.settle()
    disk.settle()  # nothing more
    assert (
        disk.image(tmp_path / "most", random.Random(0), how="most").root.joinpath("a").read_bytes()
        == b"unheard"
    )
    assert outcomes(disk, tmp_path, lambda root: "".join(sorted(p.name for p in (root / "x").iterdir()))) >= {
        "b",
        "c",
    }
    least = disk.image(tmp_path / "least", random.Random(0), how="least").root
    assert sorted(path.name for path in least.rglob("*")) == ["a", "b", "x"]
    assert (least / "a").read_bytes() == b"told"
    run(disk, "sync(d + '/a'); put('x/c', b'more', 'ab'); sync(d + '/x/c'); sync(d + '/x')")
    least = disk.image(tmp_path / "later", random.Random(0), how="least").root
    assert (least / "a").read_bytes() == b"unheard"
    assert (least / "x" / "c").read_bytes() == b"more"
