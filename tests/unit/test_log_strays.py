"""Strays, and logs that cannot be loaded at a start: nothing is lost by either."""

import errno
import os
import shutil

import pytest

from kafkad.log import loading, log_dirs, recovery, strays
from kafkad.log.checkpoints import LOG_START_OFFSETS, read_offsets
from kafkad.log.clean_marks import CLEAN_SHUTDOWN
from kafkad.log.log_dirs import DirectoryTrouble
from kafkad.log.strays import KEPT_OFFSETS
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError
from tests.unit.log_world import batch, topic_config
from tests.unit.test_log_dirs import DirsWorld


def names(world: DirsWorld) -> list[str]:
    return sorted(name.split(".")[0] for name in os.listdir(world.paths[0]) if name.endswith("-stray"))


def reopen(world: DirsWorld, *, clean: bool = True, has=lambda topic, index: True) -> None:
    """A restart whose metadata has the partitions for which `has`."""
    world.dirs.close(clean)
    world.dirs = log_dirs.LogDirs(world.dirs.config, world.clock, world.scheduler)
    world.dirs.open()
    world.dirs.load(lambda topic: topic_config(), world.topics, has=has)
    for log in world.dirs.all():
        log.set_leader_epoch(0)


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_beyond_the_partition_count_is_a_stray(tmp_path, clean):
    """HUNTS L2: it was kept, and its records appeared when the topic grew."""
    world = DirsWorld(tmp_path)
    for index in range(3):
        world.create("t", index).append_client(batch(1), 1_000)
    reopen(world, clean=clean, has=lambda topic, index: index < 2)
    assert sorted(log.partition for log in world.dirs.all()) == [0, 1]
    assert names(world) == ["t-2"]
    assert world.create("t", 2).end_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_stray_that_the_metadata_knows_again_comes_back(tmp_path, clean):
    """The metadata of yesterday is served for one start: what was made since is there again afterwards."""
    world = DirsWorld(tmp_path)
    world.create("new", topic_id=b"N" * 16).append_client(batch(5), 1_000)
    world.create("old").append_client(batch(2), 1_000)
    today, world.topics = dict(world.topics), {"old": world.topics["old"]}
    reopen(world, clean=clean)
    assert names(world) == ["new-0"]
    world.topics = today
    reopen(world, clean=clean)
    assert names(world) == []
    assert {log.topic: log.end_offset for log in world.dirs.all()} == {"new": 5, "old": 2}


def test_a_stray_stays_where_a_partition_of_its_name_was_made_since(tmp_path):
    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(5), 1_000)
    old = world.topics.pop("t")
    reopen(world)
    world.create("t", topic_id=b"B" * 16).append_client(batch(1), 1_000)
    reopen(world)
    assert names(world) == ["t-0"] and world.dirs.get("t", 0).end_offset == 1
    world.topics["t"] = old  # and back: the two change places
    reopen(world)
    assert names(world) == ["t-0"] and world.dirs.get("t", 0).end_offset == 5


def test_of_two_strays_of_one_partition_none_is_guessed(tmp_path, caplog):
    world = DirsWorld(tmp_path)
    log = world.create("t")
    world.dirs.close()
    for digit in "ab":
        shutil.copytree(log.directory, f"{log.directory}.{digit * 32}-stray")
    shutil.rmtree(log.directory)
    world.dirs = world.open()
    assert names(world) == ["t-0", "t-0"] and "could be any of these" in caplog.text


def test_a_stray_is_not_recovered(tmp_path):
    """Recovery cuts by the configuration of its topic, which a stranger does not have."""
    world = DirsWorld(tmp_path)
    log = world.create("t")
    log.append_client(batch(2), 1_000)
    path = f"{log.directory}/{0:020d}.log"
    world.dirs.close(clean=False)
    with open(path, "ab") as file:
        file.write(b"no batch")
    size = os.path.getsize(path)
    world.topics.clear()
    world.dirs = world.open()
    [stray] = (name for name in os.listdir(world.paths[0]) if name.endswith("-stray"))
    assert os.path.getsize(os.path.join(world.paths[0], stray, f"{0:020d}.log")) == size


@pytest.mark.parametrize("clean", [True, False])
def test_a_shortage_while_a_log_is_loaded_costs_that_log_until_it_is_over(
    tmp_path, monkeypatch, caplog, clean
):
    """One log met EMFILE: its whole directory went offline, until the next start."""
    world = DirsWorld(tmp_path)
    for index in range(3):
        log = world.create("t", index)
        log.append_client(batch(4), 1_000)
        log.delete_records(1)
    world.dirs.close(clean)
    list_files, short = recovery.list_files, True

    def limited(directory):
        if short and directory.endswith("t-1"):
            raise OSError(errno.EMFILE, "Too many open files", directory)
        return list_files(directory)

    monkeypatch.setattr(recovery, "list_files", limited)
    world.dirs = world.open()
    assert sorted(log.partition for log in world.dirs.all()) == [0, 2]
    assert "t-1 cannot be loaded yet" in caplog.text
    with pytest.raises(KafkaError, match="Too many open files") as refused:
        world.create("t", 1)
    assert refused.value.code == KAFKA_STORAGE_ERROR
    short = False
    log = world.create("t", 1)
    assert (log.log_start_offset if clean else 1, log.end_offset) == (1, 4)


def test_a_log_that_could_not_be_loaded_can_be_deleted(tmp_path, monkeypatch):
    world = DirsWorld(tmp_path)
    world.create("t")
    world.dirs.close()

    def limited(directory):
        raise OSError(errno.EMFILE, "Too many open files", directory)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "list_files", limited)
        world.dirs = world.open()
    world.dirs.delete("t", 0)
    assert [name for name in os.listdir(world.paths[0]) if name.endswith("-delete")]
    assert world.create("t", topic_id=b"B" * 16).end_offset == 0


def test_a_checkpoint_that_a_shortage_keeps_from_being_read_ends_the_start(tmp_path, monkeypatch):
    """Done without, it would bring back what DeleteRecords removed."""
    world = DirsWorld(tmp_path)
    world.create("t")
    world.dirs.close()

    def limited(path):
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(loading, "read_offsets", limited)
    with pytest.raises(DirectoryTrouble, match="recovery-point-offset-checkpoint cannot be read: "):
        world.open()


@pytest.mark.parametrize("clean", [True, False])
def test_a_stray_that_comes_back_keeps_its_deleted_records_deleted(tmp_path, clean):
    """Its log start stood in the checkpoint under its name, which the next write dropped: deleted records
    came back with the name."""
    world = DirsWorld(tmp_path)
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    log.delete_records(7)
    world.dirs.keep_log_starts([log], lambda failed: None)
    world.scheduler.work()
    t = world.topics.pop("t")
    reopen(world, clean=clean)
    world.create("other").append_client(batch(1), 1_000)
    world.dirs.checkpoint()  # without the stray
    world.scheduler.settle()
    assert ("t", 0) not in read_offsets(os.path.join(world.paths[0], LOG_START_OFFSETS))
    world.topics["t"] = t
    for _ in range(2):
        reopen(world, clean=clean)
        again = world.dirs.get("t", 0)
        assert (again.log_start_offset, again.end_offset) == (7, 9)
        assert KEPT_OFFSETS not in os.listdir(again.directory)


def test_a_stray_does_not_take_over_the_offsets_of_the_one_that_had_its_name(tmp_path):
    """A recovery point beyond what it holds kept it from being checked, a log start beyond its end set all of
    it aside."""
    world = DirsWorld(tmp_path)
    log = world.create("t")
    log.append_client(batch(5), 1_000)
    log.delete_records(2)
    world.dirs.keep_log_starts([log], lambda failed: None)
    world.scheduler.work()
    old = world.topics.pop("t")
    reopen(world)
    new = world.create("t", topic_id=b"B" * 16)
    new.append_client(batch(50), 1_000)
    new.delete_records(40)
    world.dirs.keep_log_starts([new], lambda failed: None)
    world.scheduler.work()
    world.topics["t"] = old
    reopen(world)
    again = world.dirs.get("t", 0)
    assert (again.topic_id, again.log_start_offset, again.end_offset) == (old, 2, 5)
    assert not [name for name in os.listdir(again.directory) if name.endswith(".lost")]
    world.topics["t"] = b"B" * 16  # and back once more: each has its own
    reopen(world)
    again = world.dirs.get("t", 0)
    assert (again.topic_id, again.log_start_offset, again.end_offset) == (b"B" * 16, 40, 50)


def test_a_stray_comes_back_whole_after_a_kill_between_any_two_steps(tmp_path, monkeypatch):
    """Its entries are in the checkpoint before its name is, and stay in its own file until both are."""
    steps, interrupted = 0, True
    while interrupted:
        root = tmp_path / str(steps)
        world = DirsWorld(root)
        log = world.create("t")
        log.append_client(batch(9), 1_000)
        log.delete_records(7)
        world.dirs.keep_log_starts([log], lambda failed: None)
        world.scheduler.work()
        t = world.topics.pop("t")
        reopen(world)
        world.create("other").append_client(batch(1), 1_000)
        world.dirs.checkpoint()
        world.scheduler.settle()
        world.topics["t"] = t
        with monkeypatch.context() as patch:
            left, rename, replace, unlink = [steps], os.rename, os.replace, os.unlink

            def counted(call, left=left):
                def step(*arguments):
                    if left[0] == 0:
                        raise KeyboardInterrupt
                    left[0] -= 1
                    return call(*arguments)

                return step

            for name, call in (("rename", rename), ("replace", replace), ("unlink", unlink)):
                patch.setattr(os, name, counted(call))
            try:
                reopen(world, clean=False)
                interrupted = False
            except KeyboardInterrupt:
                pass
        world.dirs._unlock()
        world.dirs = world.open()
        again = world.dirs.get("t", 0)
        assert (again.log_start_offset, again.end_offset) == (7, 9), steps
        world.dirs.close()
        steps += 1
    assert steps > 3


def test_a_stray_whose_offsets_cannot_be_kept_stays_where_it_is(tmp_path, monkeypatch, caplog):
    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(5), 1_000)
    world.topics.pop("t")

    def full(path, data, *, sync=True):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(strays, "write_file", full)
    reopen(world)
    assert os.path.isdir(os.path.join(world.paths[0], "t-0")) and names(world) == []
    assert "could not be moved" in caplog.text


def test_a_log_that_is_not_loaded_keeps_its_checkpoint_entries(tmp_path, monkeypatch):
    """With one worker each write dropped the entries of all that was not open: a log that a shortage kept
    from being loaded had its deleted records again at the next start."""
    world = DirsWorld(tmp_path)
    for index in range(2):
        log = world.create("t", index)
        log.append_client(batch(9), 1_000)
        log.delete_records(7)
    world.dirs.keep_log_starts(world.dirs.all(), lambda failed: None)
    world.scheduler.work()
    world.dirs.close()
    list_files = recovery.list_files

    def limited(directory):
        if directory.endswith("t-1"):
            raise OSError(errno.EMFILE, "Too many open files", directory)
        return list_files(directory)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "list_files", limited)
        world.dirs = world.open()
    world.dirs.get("t", 0).append_client(batch(1), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    world.restart()
    assert [world.dirs.get("t", index).log_start_offset for index in range(2)] == [7, 7]


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_was_never_checked_is_not_marked_as_clean(tmp_path, monkeypatch, clean):
    """After a kill one log could not be loaded. The clean stop then marked its directory, and the next start
    trusted the end that the kill had left. (Where the log was clean before, it still is.)"""
    world = DirsWorld(tmp_path)
    for index in range(2):
        world.create("t", index).append_client(batch(9), 1_000)
    world.dirs.close(clean)
    list_files = recovery.list_files

    def limited(directory):
        if directory.endswith("t-1"):
            raise OSError(errno.EMFILE, "Too many open files", directory)
        return list_files(directory)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "list_files", limited)
        world.dirs = world.open()
    world.dirs.close()
    assert os.path.exists(os.path.join(world.paths[0], CLEAN_SHUTDOWN)) == clean


@pytest.mark.parametrize("is_of_kafka", [False, True])
def test_a_stray_of_the_same_name_does_not_hide_that_a_log_is_gone(tmp_path, is_of_kafka):
    """It belonged to another topic, whose offsets the checkpoints have forgotten since."""
    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(5), 1_000)
    world.topics.pop("t")
    reopen(world)
    assert names(world) == ["t-0"]
    log = world.create("t", topic_id=b"B" * 16)
    log.append_client(batch(3), 1_000)
    world.dirs.close()
    if is_of_kafka:  # which does not save the offsets
        (stray,) = tmp_path.glob("d0/t-0.*-stray")
        (stray / KEPT_OFFSETS).unlink()
    shutil.rmtree(log.directory)
    assert world.dirs.misses_logs(lambda topic, index: True)
    world.dirs = world.open()
    assert world.dirs.directories()[0].missing == {("t", 0): 3}


@pytest.mark.parametrize("is_of_kafka", [False, True])
def test_a_log_is_not_missing_if_the_checkpoints_mean_a_stray(tmp_path, is_of_kafka):
    """The broker was killed right after a start that set the stray aside: the checkpoints still name it."""
    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(5), 1_000)
    world.dirs.close()
    checkpoints = {path: path.read_bytes() for path in tmp_path.glob("d0/*-checkpoint")}
    world.topics["t"] = b"B" * 16
    world.dirs = world.open()
    assert names(world) == ["t-0"]
    world.dirs.close(clean=False)
    for path, data in checkpoints.items():
        path.write_bytes(data)
    if is_of_kafka:
        (stray,) = tmp_path.glob("d0/t-0.*-stray")
        (stray / KEPT_OFFSETS).unlink()
    world.dirs = world.open()
    assert world.dirs.directories()[0].missing == {}
    assert world.create("t").end_offset == 0


@pytest.mark.parametrize("where", [0, 1])
def test_a_deleted_log_hides_a_missing_one_only_in_its_own_directory(tmp_path, where):
    world = DirsWorld(tmp_path, 2)
    log = world.create("t")
    log.append_client(batch(5), 1_000)
    world.dirs.close()
    os.rename(log.directory, os.path.join(world.paths[where], f"t-0.{'0' * 32}-delete"))
    world.dirs = world.open()
    assert world.dirs.directories()[0].missing == ({("t", 0): 5} if where == 1 else {})


@pytest.mark.parametrize("moved_away_again", [False, True])
def test_an_old_stray_does_not_take_the_place_of_a_log_that_is_gone(tmp_path, moved_away_again):
    """The replica moved to another broker and back, and its new log was lost. With the records of the stray,
    it could lead."""
    world = DirsWorld(tmp_path)
    world.create("t").append_client(batch(3), 1_000)
    reopen(world, has=lambda topic, index: False)
    assert names(world) == ["t-0"]
    log = world.create("t")
    log.append_client(batch(5), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    if moved_away_again:
        world.dirs.delete("t", 0)
        world.scheduler.run(60_000)
        world.scheduler.settle()
    world.dirs.close()
    if not moved_away_again:
        shutil.rmtree(log.directory)
    world.dirs = world.open()
    if moved_away_again:
        assert world.dirs.get("t", 0).end_offset == 3 and not names(world)
    else:
        assert world.dirs.directories()[0].missing == {("t", 0): 5} and names(world) == ["t-0"]


@pytest.mark.parametrize("newer", ["offline", "there", "none"])
def test_a_stray_comes_back_only_in_the_directory_that_the_metadata_name(tmp_path, newer):
    """Its partition may have a newer log on a disk that is away."""
    world = DirsWorld(tmp_path, 2)
    old = world.create("t")
    old.append_client(batch(3), 1_000)
    reopen(world, has=lambda topic, index: False)
    assert names(world) == ["t-0"]
    first, second = world.dirs.directories()
    if newer != "none":
        log = world.dirs.create("t", 0, old.topic_id, topic_config(), second.id)
        log.set_leader_epoch(0)
        log.append_client(batch(5), 1_000)
    world.dirs.close()
    if newer == "offline":
        os.rename(second.path, second.path + ".gone")
        with open(second.path, "w"):
            pass
    named = first.id if newer == "none" else second.id
    world.dirs = log_dirs.LogDirs(world.dirs.config, world.clock, world.scheduler)
    world.dirs.open()
    world.dirs.moves.assigned = lambda topic, index: named
    world.dirs.load(lambda topic: topic_config(), world.topics)
    log = world.dirs.get("t", 0)
    assert names(world) == ([] if newer == "none" else ["t-0"])
    assert (log.end_offset if log else None) == {"offline": None, "there": 5, "none": 3}[newer]
