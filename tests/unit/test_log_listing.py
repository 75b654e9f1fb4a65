"""The native look at a partition's directory says what Python's own calls say, whatever lies there."""

import os
import random

import pytest

from kafkad._native.log.directory_listing import list_partition
from tests.reference import listing as reference

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "", ".txt", ".log.tmp")
OTHERS = ("leader-epoch-checkpoint", "partition.metadata", "leader-epoch-checkpoint.tmp", "quorum-state", "x")
LEFT_OVER = (".deleted", ".cleaned", ".swap")


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_python_finds(tmp_path, seed):
    chance = random.Random(seed)
    for _ in range(chance.randrange(40)):
        offset = chance.choice((0, 1, chance.randrange(1 << 62), (1 << 63) - 1, 1 << 63, 10**20 - 1))
        name = f"{offset:020d}{chance.choice(SUFFIXES)}"
        if chance.random() < 0.2:
            name = chance.choice(OTHERS)
        if chance.random() < 0.1:
            name = name[: chance.randrange(1, len(name) + 1)]
        path = tmp_path / name
        if path.exists():
            continue
        if chance.random() < 0.1 and not name.endswith(".snapshot") and name not in OTHERS:
            path.mkdir()
        else:
            path.write_bytes(chance.randbytes(chance.choice((0, 10, 56, 57, 4095, 4096, 4097, 10_000))))
            os.utime(path, ns=(0, chance.randrange(1 << 60)))
    if chance.random() < 0.2:
        (tmp_path / f"{7:020d}.log{chance.choice(LEFT_OVER)}").touch()
    assert list_partition(str(tmp_path)) == reference.list_partition(tmp_path)


@pytest.mark.parametrize("suffix", LEFT_OVER)
def test_what_a_deletion_or_a_swap_left_is_told(tmp_path, suffix):
    (tmp_path / f"{0:020d}.log").touch()
    assert list_partition(str(tmp_path)) is not None
    (tmp_path / f"{0:020d}.timeindex{suffix}").touch()
    assert list_partition(str(tmp_path)) is None


def test_a_directory_that_is_not_there_and_a_file_that_cannot_be_looked_at_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        list_partition(str(tmp_path / "gone"))
    with pytest.raises(NotADirectoryError):
        (tmp_path / "file").touch()
        list_partition(str(tmp_path / "file"))
    (tmp_path / f"{0:020d}.log").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        list_partition(str(tmp_path))


def test_small_files_that_are_directories_are_errors(tmp_path):
    (tmp_path / "partition.metadata").mkdir()
    with pytest.raises(IsADirectoryError):
        list_partition(str(tmp_path))
