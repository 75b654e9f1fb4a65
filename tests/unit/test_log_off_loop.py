"""What syncs files runs in a thread, and is on the disk before clients see its effect (REVIEW D5)."""

import errno
import os
import threading

import pytest

from kafkad.log.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from kafkad.log.log_dirs import DirectoryOccupied
from kafkad.protocol.errors import KafkaError
from tests.unit.log_world import batch, topic_config
from tests.unit.test_log_dirs import DirsWorld


@pytest.fixture
def loop_syncs(monkeypatch):
    """What was synced while no thread's work was done: by the loop."""
    names: list[str] = []

    def noting(call):
        def sync(fd: int) -> None:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
            call(fd)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return names


def with_segments(world: DirsWorld, **config):
    log = world.create("t")
    log.update_config(topic_config(retention_bytes=1, **config))
    for _ in range(3):
        log.append_client(batch(2), 1_000)
        log.roll(1_000)
    log.append_client(batch(2), 1_000)
    world.scheduler.settle()
    return log


def starts(world: DirsWorld) -> dict:
    return read_offsets(os.path.join(world.paths[0], LOG_START_OFFSETS))


def test_retention_with_flushes_syncs_off_the_loop_and_before_anyone_sees_it(tmp_path, loop_syncs):
    """REVIEW D5 b: the directory was synced on the loop, once for each log."""
    world = DirsWorld(tmp_path)
    log = with_segments(world, flush_messages=1)
    loop_syncs.clear()
    assert log.apply_retention(1_000) == 3
    assert loop_syncs == []
    assert (log.log_start_offset, len(log.segments)) == (0, 4)  # nothing to see before it is on the disk
    assert log.apply_retention(1_000) == 0  # under way
    log.append_client(batch(2), 1_000)
    [write] = [each for each in world.scheduler.threads if "write_log_starts" in each[0].__code__.co_names]
    write[0]()
    assert starts(world) == {("t", 0): 6}
    assert os.path.basename(world.paths[0]) in map(os.path.basename, loop_syncs)  # its name, too
    world.scheduler.threads.remove(write)
    loop_syncs.clear()
    write[1](None)
    assert (log.log_start_offset, log.segments[0][0], len(log.segments)) == (6, 6, 1)
    assert loop_syncs == []


@pytest.mark.parametrize("renamed", [0, 1, 3])
def test_power_loss_in_the_middle_of_retention_leaves_the_log_start_that_was_seen(tmp_path, renamed):
    """Of the renames, which are not synced, any number may be lost."""
    world = DirsWorld(tmp_path)
    log = with_segments(world, flush_messages=1, file_delete_delay_ms=1 << 30)
    assert log.apply_retention(1_000) == 3
    world.scheduler.work()
    assert log.log_start_offset == 6
    for base in (0, 2, 4)[renamed:]:
        for name in os.listdir(log.directory):
            if name.startswith(f"{base:020d}") and name.endswith(".deleted"):
                os.rename(os.path.join(log.directory, name), os.path.join(log.directory, name[:-8]))
    world.dirs.close(clean=False)
    world.dirs = world.open()
    again = world.dirs.get("t", 0)
    assert (again.log_start_offset, again.end_offset) == (6, 8)
    again.apply_retention(1_000)
    assert [base for base, _ in again.segments] == [6]


@pytest.mark.parametrize("restarted", [False, True])
def test_checkpoints_keep_the_log_start_until_the_renames_are_on_the_disk(tmp_path, restarted):
    """The next checkpoint, written for another partition, left it out, as the first segment's name said the
    same. Power loss took that name, and the log start went back."""
    world = DirsWorld(tmp_path)
    log = with_segments(world, flush_messages=1, file_delete_delay_ms=1 << 30)
    assert log.apply_retention(1_000) == 3
    world.scheduler.work()
    if restarted:  # by a kill; the next broker finds the new names, which nobody has synced
        world.dirs.close(clean=False)
        world.dirs = world.open()
        log = world.dirs.get("t", 0)
    world.dirs.checkpoint()
    world.scheduler.settle()
    assert [base for base, _ in log.segments] == [6]
    assert starts(world) == {("t", 0): 6}
    log.flush()
    world.dirs.checkpoint()
    world.scheduler.settle()
    assert starts(world) == {}


def test_retention_whose_log_start_cannot_be_written_is_tried_again(tmp_path):
    world = DirsWorld(tmp_path)
    log = with_segments(world, flush_messages=1)
    assert log.apply_retention(1_000) == 3
    world.scheduler.work(fail=OSError(errno.ENOSPC, "full"))
    assert (log.log_start_offset, len(log.segments)) == (0, 4)
    assert log.apply_retention(1_000) == 3
    world.scheduler.work()
    assert (log.log_start_offset, len(log.segments)) == (6, 1)


@pytest.mark.parametrize("end", ["deleted", "closed"])
def test_retention_of_a_log_that_has_gone_meanwhile_does_nothing(tmp_path, end):
    world = DirsWorld(tmp_path)
    log = with_segments(world, flush_messages=1)
    assert log.apply_retention(1_000) == 3
    if end == "deleted":
        world.dirs.delete("t", 0)
    else:
        world.dirs.close()
    names = sorted(os.listdir(log.directory))
    world.scheduler.work()
    assert sorted(os.listdir(log.directory)) == names


@pytest.mark.parametrize("deletion_synced", [True, False])
def test_a_topic_that_is_made_again_syncs_nothing_on_the_loop(tmp_path, loop_syncs, deletion_synced):
    """REVIEW D5 c: `Directory.forget` rewrote three checkpoints, each with two fsyncs, on the loop."""
    world = DirsWorld(tmp_path)
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    log.delete_records(5)
    world.dirs.checkpoint()
    world.scheduler.settle()
    assert starts(world) == {("t", 0): 5}
    loop_syncs.clear()
    world.dirs.delete("t", 0)
    synced: list[bool] = []
    if deletion_synced:
        assert world.dirs.sync_renames(lambda: synced.append(True))
        assert loop_syncs == [] and synced == []
        world.scheduler.work()
        assert starts(world) == {} and synced == [True]
        loop_syncs.clear()
    else:
        with pytest.raises(DirectoryOccupied):
            world.dirs.create("t", 0, b"B" * 16, topic_config())
        assert loop_syncs == []
        world.scheduler.work()
        loop_syncs.clear()
    world.dirs.create("t", 0, b"B" * 16, topic_config())
    assert loop_syncs == []
    assert read_offsets(os.path.join(world.paths[0], RECOVERY_POINTS)) == {}


def test_many_deletions_drop_their_offsets_with_one_write(tmp_path, loop_syncs):
    world = DirsWorld(tmp_path)
    for index in range(50):
        world.create("t", index).append_client(batch(1), 1_000)
    world.create("kept").append_client(batch(4), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    loop_syncs.clear()
    for index in range(50):
        world.dirs.delete("t", index)
    assert loop_syncs == []
    world.dirs.sync_renames(lambda: None)
    world.scheduler.work()
    assert len(loop_syncs) <= 1 + 3 * 2  # the names, then a file and its name for each checkpoint
    points = read_offsets(os.path.join(world.paths[0], RECOVERY_POINTS))
    assert list(points) == [("kept", 0)]


def test_a_checkpoint_that_is_under_way_brings_no_deleted_partition_back(tmp_path):
    """It was taken before the deletion, and is written after the entries were dropped."""
    world = DirsWorld(tmp_path)
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    world.dirs.checkpoint()
    [late] = world.scheduler.threads
    world.scheduler.threads.clear()
    world.dirs.delete("t", 0)
    world.dirs.sync_renames(lambda: None)
    world.scheduler.work()
    late[0]()
    late[1](None)
    assert read_offsets(os.path.join(world.paths[0], RECOVERY_POINTS)) == {}


def test_a_log_that_could_not_be_loaded_is_loaded_in_a_thread(tmp_path, monkeypatch):
    """Recovery may read gigabytes; the loop waited for all of it."""
    from kafkad.log import recovery

    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(4), 1_000)
    world.dirs.close(clean=False)
    list_files, short, where = recovery.list_files, True, []

    def limited(directory):
        where.append(threading.current_thread() is not threading.main_thread())
        if short:
            raise OSError(errno.EMFILE, "Too many open files", directory)
        return list_files(directory)

    monkeypatch.setattr(recovery, "list_files", limited)
    world.dirs = world.open()
    short = False
    where.clear()
    with pytest.raises(Exception, match="Too many open files"):
        world.dirs.create("t", 0, world.topics["t"], topic_config())
    with pytest.raises(DirectoryOccupied):
        world.dirs.create("t", 0, world.topics["t"], topic_config())
    assert where == []
    thread = threading.Thread(target=world.scheduler.work)
    thread.start()
    thread.join()
    log = world.dirs.create("t", 0, world.topics["t"], topic_config())
    assert log.end_offset == 4 and where == [True]


def test_a_log_that_is_being_loaded_can_be_deleted(tmp_path, monkeypatch):
    """The thread would make the directory again that was renamed under it."""
    from kafkad.log import recovery

    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(4), 1_000)
    world.dirs.close(clean=False)

    def limited(directory):
        raise OSError(errno.EMFILE, "Too many open files", directory)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "list_files", limited)
        world.dirs = world.open()
    with pytest.raises(Exception, match="Too many open files"):
        world.dirs.create("t", 0, world.topics["t"], topic_config())
    with pytest.raises(DirectoryOccupied):
        world.dirs.create("t", 0, world.topics["t"], topic_config())
    world.dirs.delete("t", 0)
    with pytest.raises(KafkaError):  # the name is not free yet
        world.dirs.create("t", 0, b"B" * 16, topic_config())
    world.scheduler.settle()
    left = sorted(name.split(".")[0] for name in os.listdir(world.paths[0]) if name.startswith("t-0"))
    assert left == ["t-0"] and not os.path.exists(os.path.join(world.paths[0], "t-0"))
    assert world.create("t", topic_id=b"B" * 16).end_offset == 0
