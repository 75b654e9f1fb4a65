"""The clean-shutdown mark: what leaves one, and who believes it."""

import errno
import os
import shutil
import time

import pytest

from kafkad.log import clean_marks
from kafkad.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from kafkad.log.clean_marks import CLEAN_SHUTDOWN, write_mark
from tests.unit.log_world import batch
from tests.unit.test_log_dirs import DirsWorld

ONE = len(batch())
CHECKED = "it is checked as after a kill"


def mark(world: DirsWorld, directory: int = 0) -> str:
    return os.path.join(world.paths[directory], CLEAN_SHUTDOWN)


def segment(world: DirsWorld, topic: str = "t", directory: int = 0) -> str:
    return os.path.join(world.paths[directory], f"{topic}-0", f"{0:020d}.log")


def filled(tmp_path, count: int = 10, **keys) -> DirsWorld:
    world = DirsWorld(tmp_path, **keys)
    log = world.create("t")
    for _ in range(count):
        log.append_client(batch(), 1_000)
    return world


def corrupt(path: str, number: int) -> None:
    """One byte in the records of a batch, which only its CRC shows. The file keeps its times."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek((number + 1) * ONE - 3)
        file.write(b"#")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_mark_is_gone_from_the_disk_before_anything_else_changes(tmp_path, monkeypatch):
    """A kill at any moment after that finds no mark."""
    world = filled(tmp_path)
    world.dirs.close()
    calls: list[str] = []

    def noting(name, call):
        def note(first, *more, **named):
            path = first if isinstance(first, (str, bytes)) else os.readlink(f"/proc/self/fd/{first}")
            if str(path).startswith(world.paths[0]):
                calls.append(f"{name} {os.path.basename(str(path))}")
            return call(first, *more, **named)

        return note

    for name in ("unlink", "rename", "replace", "truncate", "fsync"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    world.dirs = world.open()
    assert calls[:2] == [f"unlink {CLEAN_SHUTDOWN}", "fsync d0"]


def test_a_mark_that_a_backup_brings_back_is_not_believed(tmp_path, caplog):
    """`rsync` without --delete, or a copy that began before a start and ended after it: the mark of an older
    stop beside newer files."""
    world = filled(tmp_path)
    world.dirs.close()
    backup = tmp_path / "backup"
    shutil.copy2(mark(world), backup)
    hour_ago = time.time() - 3_600
    os.utime(backup, (hour_ago, hour_ago))
    world.dirs = world.open()
    world.dirs.get("t", 0).append_client(batch(), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    world.dirs.close(clean=False)
    corrupt(segment(world), 10)
    shutil.copy2(backup, mark(world))
    world.dirs = world.open()
    assert world.dirs.get("t", 0).end_offset == 10
    assert CHECKED in caplog.text


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_clean_stop_after_the_clock_was_set_back_is_believed(tmp_path, caplog, is_clean):
    """A segment was written an hour in the future: each start of that hour checked its log. Without a mark it
    is checked, whatever its time says."""
    world = filled(tmp_path)
    ahead = time.time() + 3_600
    os.utime(segment(world), (ahead, ahead))
    world.restart()
    assert world.dirs.get("t", 0).scanned_bytes == 0
    world.restart(clean=is_clean)
    assert (world.dirs.get("t", 0).scanned_bytes == 0) is is_clean
    assert CHECKED not in caplog.text


def test_a_segment_of_a_far_future_does_not_make_others_look_unchanged(tmp_path, caplog):
    """The clean-shutdown file got its time, so no later write to another log was noticed until then."""
    world = filled(tmp_path)
    world.create("u").append_client(batch(4), 1_000)
    ahead = time.time() + 365 * 86_400
    os.utime(segment(world, "u"), (ahead, ahead))
    world.dirs.close()
    corrupt(segment(world), 3)
    later = time.time() + 60
    os.utime(segment(world), (later, later))
    world.dirs = world.open()
    assert world.dirs.get("t", 0).end_offset == 3
    assert world.dirs.get("u", 0).scanned_bytes == 0
    assert caplog.text.count(CHECKED) == 1


def test_a_segment_that_was_removed_is_reported_at_the_stop(tmp_path, caplog):
    world = filled(tmp_path)
    log = world.dirs.get("t", 0)
    log.roll(1_000)
    log.append_client(batch(), 1_000)
    log.flush()
    os.unlink(segment(world))
    world.dirs.close()
    assert caplog.text.count(f"{segment(world)} was removed, and its records with it") == 1


@pytest.mark.parametrize("kept", [6, 12])
def test_a_log_that_was_restored_beside_a_true_mark_is_not_believed(tmp_path, caplog, kept):
    """One partition was put back from a copy of another day, times and all; its end is not the one that the
    stop wrote down. All of it is checked where the recovery point is of other files."""
    world = filled(tmp_path, count=12)
    other = world.create("u")
    other.append_client(batch(4), 1_000)
    world.dirs.close()
    path = segment(world)
    status = os.stat(path)
    os.truncate(path, kept * ONE)
    if kept == 12:
        with open(path, "r+b") as file:
            first = file.read(ONE)
            file.seek(0, os.SEEK_END)
            file.write((12).to_bytes(8) + first[8:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for suffix in (".index", ".timeindex"):
        assert os.path.getsize(path.replace(".log", suffix)) % 4 == 0
    corrupt(path, 3 if kept == 6 else 12)
    world.dirs = world.open()
    assert world.dirs.get("t", 0).end_offset == (3 if kept == 6 else 12)
    assert world.dirs.get("u", 0).end_offset == 4
    assert caplog.text.count(CHECKED) == 1


def is_short(world: DirsWorld) -> bool:
    return world.dirs.misses_logs(lambda *key: False, lambda topic, index: topic == "t")


@pytest.mark.parametrize("stale_index", [False, True])
@pytest.mark.parametrize("size", [0, ONE, 399 * ONE, 400 * ONE - 1])
def test_a_log_that_is_shorter_than_at_the_clean_stop_is_noticed_before_it_is_opened(
    tmp_path, size, stale_index
):
    """An older copy, or a copy that ends within a batch. The broker tells the controllers before it opens
    logs, because they would elect it."""
    world = filled(tmp_path, count=400)
    world.create("u")
    world.dirs.close()
    assert not is_short(world)
    shutil.copytree(os.path.dirname(segment(world)), tmp_path / "copy")
    os.truncate(segment(world), size)
    if not stale_index:
        for suffix in (".index", ".timeindex"):
            os.truncate(segment(world).replace(".log", suffix), 0)
    assert is_short(world)
    assert not world.dirs.misses_logs(lambda *key: False, lambda topic, index: topic == "u")
    shutil.rmtree(os.path.dirname(segment(world)))
    shutil.copytree(tmp_path / "copy", os.path.dirname(segment(world)))
    os.unlink(segment(world).replace(".log", ".index"))
    assert not is_short(world)
    world.dirs = world.open()
    assert world.dirs.get("t", 0).end_offset == 400


def test_a_log_whose_last_segments_are_gone_is_shorter(tmp_path):
    world = filled(tmp_path)
    log = world.dirs.get("t", 0)
    log.roll(1_000)
    world.dirs.close()
    empty = segment(world).replace(f"{0:020d}", f"{10:020d}")
    assert os.path.getsize(empty) == 0 and not is_short(world)
    os.unlink(empty)
    assert not is_short(world)  # all records are there
    os.rename(segment(world), segment(world).replace(f"{0:020d}", f"{4:020d}"))
    os.truncate(segment(world).replace(f"{0:020d}", f"{4:020d}"), 0)
    assert is_short(world)
    shutil.rmtree(os.path.dirname(segment(world)))
    assert not is_short(world) and world.dirs.misses_logs(lambda *key: True)


@pytest.mark.parametrize("lost", [RECOVERY_POINTS, HIGH_WATERMARKS])
def test_a_mark_without_its_checkpoint_is_believed_as_in_kafka(tmp_path, lost, caplog):
    world = filled(tmp_path)
    world.dirs.close()
    os.unlink(os.path.join(world.paths[0], lost))
    world.dirs = world.open()
    log = world.dirs.get("t", 0)
    assert (log.end_offset, log.recovery_point, log.scanned_bytes) == (10, 10, 0)
    assert CHECKED not in caplog.text


def test_a_directory_that_was_away_for_a_start_is_as_its_own_stop_left_it(tmp_path, caplog):
    """Its mark is older than that of the others, and as true: nothing has changed there since."""
    world = DirsWorld(tmp_path, 2)
    for topic in "ab":
        world.create(topic).append_client(batch(5), 1_000)
    world.dirs.broker_epoch = 10
    world.dirs.close()
    away = next(path for path in world.paths if not os.path.exists(os.path.join(path, "a-0")))
    os.rename(away, away + ".unmounted")
    with open(away, "w"):  # no directory can be made there
        pass
    world.dirs = world.open()
    world.dirs.broker_epoch = 20
    assert [log.topic for log in world.dirs.all()] == ["a"]
    world.dirs.get("a", 0).append_client(batch(5), 1_000)
    world.dirs.close()
    os.unlink(away)
    os.rename(away + ".unmounted", away)
    assert os.path.exists(os.path.join(away, CLEAN_SHUTDOWN))
    world.dirs = world.open()
    assert {log.topic: (log.end_offset, log.scanned_bytes) for log in world.dirs.all()} == {
        "a": (10, 0),
        "b": (5, 0),
    }
    assert world.dirs.previous_broker_epoch == -1  # KIP-966: they disagree
    assert CHECKED not in caplog.text


def test_a_directory_whose_mark_cannot_be_removed_is_offline(tmp_path, monkeypatch):
    """Nothing may change beside a mark. It ended the start of all."""
    world = DirsWorld(tmp_path, 2)
    for topic in "ab":
        world.create(topic).append_client(batch(5), 1_000)
    world.dirs.close()
    unlink = os.unlink

    def read_only(path, **named):
        if str(path).startswith(world.paths[1]) and str(path).endswith(CLEAN_SHUTDOWN):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        unlink(path, **named)

    with monkeypatch.context() as patch:
        patch.setattr(clean_marks.os, "unlink", read_only)
        world.dirs = world.open()
    assert [each.offline for each in world.dirs.directories()] == [False, True]
    assert len(world.dirs.all()) == 1
    world.dirs.close()
    world.dirs = world.open()
    assert sorted(log.end_offset for log in world.dirs.all()) == [5, 5]


def test_a_start_that_was_killed_between_two_marks_checks_the_directory_without(tmp_path, monkeypatch):
    world = DirsWorld(tmp_path, 2)
    for topic in "ab":
        world.create(topic).append_client(batch(5), 1_000)
    world.dirs.close()
    take, taken = clean_marks.take_mark, []

    def killed(directory):
        if taken:
            raise KeyboardInterrupt
        taken.append(directory)
        return take(directory)

    with monkeypatch.context() as patch:
        patch.setattr("kafkad.log.log_dirs.take_mark", killed)
        with pytest.raises(KeyboardInterrupt):
            world.open()
    world.dirs = world.open()
    assert sorted(log.scanned_bytes > 0 for log in world.dirs.all()) == [False, True]
    assert sorted(log.end_offset for log in world.dirs.all()) == [5, 5]


def test_a_mark_of_kafka_is_believed(tmp_path):
    """Before 3.7 it was an empty file."""
    world = filled(tmp_path)
    world.dirs.close()
    write_mark(world.paths[0], 7)
    with open(mark(world), "w"):
        pass
    world.dirs = world.open()
    assert world.dirs.get("t", 0).scanned_bytes == 0
