"""Data directories: lock, identity, placement, deletion, strays, checkpoints, trouble."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import pytest

from kafkad._native.log.fileio import fail_writes
from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.log import directory as directory_module
from kafkad.log.checkpoints import LOG_START_OFFSETS, read_offsets, uuid_bytes
from kafkad.log.directory import CHECKPOINTS
from kafkad.log.log import Log
from kafkad.log.log_dirs import CUTS_MS, DirectoryOccupied, DirectoryTrouble, LogDirs
from kafkad.protocol.errors import KafkaError
from tests.unit.log_world import ManualScheduler, batch, begin_metadata, topic_config


class DirsWorld:
    def __init__(self, root, count: int = 1, **keys: str) -> None:
        self.paths = [str(root / f"d{i}") for i in range(count)]
        self.scheduler = ManualScheduler()
        self.clock = ManualClock(1_000)
        self.topics: dict[str, bytes] = {}
        self.settings = {
            "node.id": "1", "process.roles": "broker,controller", "log.dirs": ",".join(self.paths), **keys,
        }  # fmt: skip
        self.dirs = self.open()
        begin_metadata(self.paths[0])

    def open(self) -> LogDirs:
        dirs = LogDirs(BrokerConfig(self.settings), self.clock, self.scheduler)
        dirs.open()
        dirs.load(lambda topic: topic_config(), self.topics)
        for log in dirs.all():
            log.set_leader_epoch(0)
        return dirs

    def restart(self, clean: bool = True) -> LogDirs:
        self.dirs.close(clean)
        self.dirs = self.open()
        return self.dirs

    def create(self, topic: str, index: int = 0, topic_id: bytes | None = None):
        topic_id = topic_id or self.topics.get(topic) or (topic.encode() * 16)[:16]
        self.topics[topic] = topic_id
        for _ in range(3):
            with suppress(DirectoryOccupied):  # a thread makes room; replication.Partitions asks again, too
                log = self.dirs.create(topic, index, topic_id, topic_config())
                log.set_leader_epoch(0)
                return log
            self.scheduler.work()
        raise AssertionError(f"{topic}-{index} is still occupied")


@pytest.fixture(autouse=True)
def working_disk():
    yield
    fail_writes(0)


@pytest.fixture
def world(tmp_path):
    return DirsWorld(tmp_path)


def test_a_partition_that_had_its_log_in_a_directory_is_made_there(tmp_path):
    """Made elsewhere, it would be there twice when the one that is missing comes back."""
    world = DirsWorld(tmp_path, 2)
    first, second = world.dirs.directories()
    for index in range(4):
        log = world.dirs.create("t", index, b"T" * 16, topic_config(), second.id)
        assert os.path.dirname(log.directory) == second.path
    world.dirs.go_offline(second)
    with pytest.raises(KafkaError, match="its log directory is offline"):
        world.dirs.create("t", 4, b"T" * 16, topic_config(), second.id)
    assert os.path.dirname(world.dirs.create("t", 4, b"T" * 16, topic_config()).directory) == first.path


def test_identity_is_made_once_and_kept(tmp_path):
    world = DirsWorld(tmp_path, 2)
    cluster = world.dirs.cluster_id
    ids = world.dirs.directory_ids()
    assert len(cluster) == 22
    assert len(set(ids)) == 2
    with open(os.path.join(world.paths[0], "meta.properties")) as file:
        lines = file.read().split()
    assert lines[1:] == [
        f"cluster.id={cluster}",
        next(line for line in lines if line.startswith("directory.id=")),
        "node.id=1",
        "version=1",
    ]
    assert uuid_bytes(lines[2].split("=")[1]) == ids[0] == world.dirs.directory_id(world.paths[0])
    world.restart()
    assert (world.dirs.cluster_id, world.dirs.directory_ids()) == (cluster, ids)


@pytest.mark.parametrize("text", ["node.id=2\nversion=1\ncluster.id=abc\n", "node.id=1\ndirectory.id=x\n"])
def test_a_directory_of_somebody_else_is_refused(tmp_path, text):
    (tmp_path / "d0").mkdir()
    (tmp_path / "d0" / "meta.properties").write_text(text)
    with pytest.raises(DirectoryTrouble):
        DirsWorld(tmp_path)


def test_directories_of_two_clusters_are_refused(tmp_path):
    for i, cluster in enumerate("ab"):
        (tmp_path / f"d{i}").mkdir()
        (tmp_path / f"d{i}" / "meta.properties").write_text(f"node.id=1\ncluster.id={cluster}\n")
    with pytest.raises(DirectoryTrouble, match="different clusters"):
        DirsWorld(tmp_path, 2)


def test_a_directory_in_use_is_refused(world):
    with pytest.raises(DirectoryTrouble, match=r"data directory .*d0 is in use by another broker"):
        world.open()
    world.dirs.close()
    world.open()


def test_the_lock_and_a_posix_lock_exclude_each_other(world):
    # Java's FileChannel.lock is a POSIX lock, which belongs to a process: so ask from another one.
    take = textwrap.dedent("""
        import fcntl, sys
        file = open(sys.argv[1], "r+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("refused", flush=True)
        else:
            print("taken", flush=True)
            sys.stdin.read()
    """)
    path = os.path.join(world.paths[0], ".lock")
    other = subprocess.run([sys.executable, "-c", take, path], input=b"", capture_output=True, check=True)
    assert other.stdout.split() == [b"refused"]
    world.dirs.close()
    with subprocess.Popen(
        [sys.executable, "-c", take, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline().split() == [b"taken"]
        with pytest.raises(DirectoryTrouble, match="in use by another broker"):
            world.open()
        holder.stdin.close()
    world.open()


def test_the_lock_outlives_other_descriptors_of_the_file(world):
    os.close(os.open(os.path.join(world.paths[0], ".lock"), os.O_RDWR))
    with open(os.path.join(world.paths[0], ".lock")) as file, pytest.raises(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, bytes(32))
        raise OSError
    with pytest.raises(DirectoryTrouble):
        world.open()


def test_a_new_partition_goes_where_the_fewest_are(tmp_path):
    world = DirsWorld(tmp_path, 3)
    for i in range(9):
        world.create("t", i)
    assert [len(directory.logs()) for directory in world.dirs.directories()] == [3, 3, 3]
    world.restart()
    assert [len(directory.logs()) for directory in world.dirs.directories()] == [3, 3, 3]
    assert sorted(log.partition for log in world.dirs.all()) == list(range(9))


@pytest.mark.parametrize("clean", [True, False])
def test_logs_and_marks_come_back(world, clean):
    log = world.create("t")
    for _ in range(5):
        log.append_client(batch(2), 1_000)
    log.delete_records(4)
    world.dirs.checkpoint()
    world.scheduler.settle()
    log.append_client(batch(2), 1_000)
    world.restart(clean)
    log = world.dirs.get("t", 0)
    assert (log.log_start_offset, log.end_offset, log.high_watermark) == (4, 12, 12)
    assert log.scanned_bytes == (0 if clean else log.size)
    assert world.dirs.previous_broker_epoch == -1


def test_the_broker_epoch_is_kept_by_a_clean_stop(world):
    world.dirs.broker_epoch = 42
    world.restart()
    assert world.dirs.previous_broker_epoch == 42
    world.restart(clean=False)
    assert world.dirs.previous_broker_epoch == -1


def test_checkpoints_are_kafkas_files(world):
    log = world.create("t", 3)
    log.append_client(batch(2), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    names = (
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    )
    read = {name: read_offsets(os.path.join(world.paths[0], name)) for name in names}
    assert read == {
        "recovery-point-offset-checkpoint": {("t", 3): 0},
        "replication-offset-checkpoint": {("t", 3): 2},
        "log-start-offset-checkpoint": {},
    }
    log.append_client(batch(2), 1_000)
    world.dirs.checkpoint_high_watermarks()
    world.scheduler.settle()
    assert read_offsets(os.path.join(world.paths[0], "replication-offset-checkpoint")) == {("t", 3): 4}


@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"],
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_checkpoint_costs_nothing_but_a_scan(world, name, clean):
    log = world.create("t")
    log.append_client(batch(2), 1_000)
    world.dirs.close(clean)
    with open(os.path.join(world.paths[0], name), "wb") as file:
        file.write(b"0\n7\nrubbish")
    world.dirs = world.open()
    log = world.dirs.get("t", 0)
    assert (log.end_offset, log.high_watermark) == (2, 2)


def test_a_deleted_topic_goes_at_once_and_its_files_later(world):
    log = world.create("t")
    log.append_client(batch(2), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    world.dirs.delete("t", 0)
    assert world.dirs.get("t", 0) is None
    [left] = [name for name in os.listdir(world.paths[0]) if name.endswith("-delete")]
    assert left.startswith("t-0.")
    with pytest.raises(KafkaError):
        log.append_client(batch(2), 1_000)
    again = world.create("t", topic_id=b"B" * 16)
    assert (again.end_offset, again.topic_id) == (0, b"B" * 16)
    world.scheduler.run(60_000)
    world.scheduler.settle()
    assert left not in os.listdir(world.paths[0])
    assert os.path.isdir(again.directory)


def test_a_recreated_topic_does_not_inherit_offsets(world):
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    log.delete_records(9)
    world.dirs.checkpoint()
    world.scheduler.settle()
    world.dirs.delete("t", 0)
    again = world.create("t", topic_id=b"B" * 16)
    again.append_client(batch(3), 1_000)
    world.restart(clean=False)
    again = world.dirs.get("t", 0)
    assert (again.log_start_offset, again.end_offset) == (0, 3)


def test_what_was_being_deleted_is_removed_after_a_restart(world):
    world.create("t")
    world.dirs.delete("t", 0)
    world.scheduler = ManualScheduler()
    world.restart()
    assert world.dirs.all() == []
    world.scheduler.run(60_000)
    world.scheduler.settle()
    assert not [name for name in os.listdir(world.paths[0]) if "-delete" in name]


def test_strays_are_moved_and_kept(world):
    world.create("gone")
    world.create("other", topic_id=b"A" * 16)
    world.create("kept")
    del world.topics["gone"]
    world.topics["other"] = b"B" * 16
    world.restart()
    assert [log.topic for log in world.dirs.all()] == ["kept"]
    strays = sorted(name for name in os.listdir(world.paths[0]) if name.endswith("-stray"))
    assert [name.split("-")[0] for name in strays] == ["gone", "other"]
    world.restart()
    assert sorted(name for name in os.listdir(world.paths[0]) if name.endswith("-stray")) == strays


def test_a_log_whose_directory_was_removed_is_reported_once(world, caplog):
    """It serves on with the files that it has open, and was empty after the next start."""
    logs = [world.create("t", index) for index in range(2)]
    logs[0].append_client(batch(), 1_000)
    shutil.rmtree(logs[0].directory)
    for number in range(6):
        if number < 2:
            for log in logs:
                log.append_client(batch(), 1_000)
        world.dirs.checkpoint()
        world.scheduler.settle()
        assert caplog.text.count(" was removed: ") == (number > 0)
    assert caplog.text.count(" was removed: ") == 1 and f"{logs[0].directory} was removed" in caplog.text


def test_foreign_directories_are_left_alone(world):
    os.mkdir(os.path.join(world.paths[0], "lost+found"))
    world.create("t")
    world.restart()
    assert os.path.isdir(os.path.join(world.paths[0], "lost+found"))
    assert len(world.dirs.all()) == 1


def test_a_partition_that_is_there_twice_is_refused(tmp_path):
    world = DirsWorld(tmp_path, 2)
    log = world.create("t")
    world.dirs.close()
    source = log.directory
    other = next(path for path in world.paths if not source.startswith(path))
    os.system(f"cp -r {source} {other}/")
    with pytest.raises(DirectoryTrouble, match="twice"):
        world.open()


def test_a_failed_directory_goes_offline_and_the_others_serve(tmp_path):
    world = DirsWorld(tmp_path, 2)
    logs = [world.create("t", i) for i in range(4)]
    for log in logs:
        log.append_client(batch(1), 1_000)
    told: list[str] = []
    world.dirs.on_directory_offline = told.append
    fail_writes(errno.EIO)
    with pytest.raises(KafkaError):
        logs[0].append_client(batch(1), 1_000)
    fail_writes(0)
    bad = world.dirs.directories()[0]
    assert told == [bad.path]
    assert bad.offline
    for log in logs:
        if log.directory.startswith(bad.path):
            with pytest.raises(KafkaError) as refusal:
                log.append_client(batch(1), 1_000)
            assert refusal.value.code == 56
        else:
            assert log.append_client(batch(1), 1_000).base_offset == 1
    assert world.create("t", 4).directory.startswith(world.paths[1])
    assert len(world.dirs.directory_ids()) == 1
    world.dirs.checkpoint()
    world.scheduler.settle()
    world.dirs.close()
    assert not os.path.exists(os.path.join(bad.path, ".kafka_cleanshutdown"))
    assert os.path.exists(os.path.join(world.paths[1], ".kafka_cleanshutdown"))


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("instead", ["nothing", "a file", "another directory"])
def test_a_directory_that_is_taken_away_goes_offline(tmp_path, instead, used):
    """As by `umount -l`: open files could still be written, and the next segments could not be made."""
    world = DirsWorld(tmp_path, 2)
    for index in range(2):
        world.create("t", index)
    away = world.dirs.directories()[1]
    (lost,) = away.logs()
    if used:  # else it has no open file
        lost.append_client(batch(1), 1_000)
    os.rename(away.path, f"{away.path}-away")
    if instead == "a file":
        (tmp_path / "d1").write_text("")
    elif instead == "another directory":
        (tmp_path / "d1").mkdir()
    told: list[str] = []
    world.dirs.on_directory_offline = told.append
    if not used:
        with pytest.raises(KafkaError):
            lost.append_client(batch(1), 1_000)
    world.dirs.checkpoint()
    world.scheduler.settle()
    assert told == [away.path]
    with pytest.raises(KafkaError) as refusal:
        lost.append_client(batch(1), 1_000)
    assert refusal.value.code == 56
    assert instead != "another directory" or os.listdir(away.path) == []
    world.dirs.close()


def test_a_directory_that_cannot_be_made_is_offline(tmp_path, caplog):
    (tmp_path / "d1").write_text("a file")
    world = DirsWorld(tmp_path, 2)
    assert f"Not a directory: '{tmp_path / 'd1'}'" in caplog.text
    assert [directory.offline for directory in world.dirs.directories()] == [False, True]
    world.create("t")


def test_no_usable_directory_is_an_error(tmp_path):
    (tmp_path / "d0").write_text("a file")
    with pytest.raises(DirectoryTrouble, match="none of the log directories"):
        DirsWorld(tmp_path, **{"metadata.log.dir": str(tmp_path / "m")})


def test_a_metadata_directory_that_cannot_be_used_ends_the_start(tmp_path):
    (tmp_path / "d0").write_text("a file")
    with pytest.raises(DirectoryTrouble, match=r"the metadata directory .*/d0 cannot be used"):
        DirsWorld(tmp_path, 2)
    assert os.listdir(tmp_path / "d1") == [".lock"]


def test_the_metadata_log_is_apart(world):
    log = world.dirs.open_metadata_log("__cluster_metadata", bytes(15) + b"\1")
    log.set_leader_epoch(1)
    assert log.append(batch(3, control=False, base_offset=1), 5, origin="raft", epoch=1) == 1
    log.flush()
    log.close()
    assert world.dirs.all() == []
    world.restart()
    assert world.dirs.all() == []
    log = world.dirs.open_metadata_log("__cluster_metadata", bytes(15) + b"\1")
    assert log.end_offset == 4
    assert len(list(log.batches(0, 4))) == 2


def test_idle_partitions_hold_no_descriptors(world):
    for i in range(50):
        log = world.create("t", i)
    log.append_client(batch(2), 1_000)
    assert open_files_of(world)
    world.restart()
    assert not open_files_of(world)


def open_files_of(world) -> list[str]:
    """Those of its partitions that this process has open."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if link.startswith(f"{world.paths[0]}/") and "/t-" in link]


def test_an_older_checkpoint_never_overwrites_a_newer_one(world):
    log = world.create("t")
    log.append_client(batch(2), 1_000)
    world.dirs.checkpoint()
    [late] = world.scheduler.threads
    world.dirs.delete("t", 0)
    again = world.create("t", topic_id=b"B" * 16)
    world.scheduler.threads = []
    world.dirs._checkpoints.write_now(world.dirs.directories()[0])
    late[0]()
    path = os.path.join(world.paths[0], "replication-offset-checkpoint")
    assert read_offsets(path) == {("t", 0): again.high_watermark} == {("t", 0): 0}


def test_a_truncation_takes_the_checkpoints_with_it(world):
    """They are of records that are gone, and others get their offsets."""
    log = world.create("t")
    for _ in range(10):
        log.append_client(batch(1), 1_000)
    log.flush()
    log.cleaned_below = 8
    log.delete_records(7)
    world.dirs.checkpoint()
    world.scheduler.settle()
    checkpoints = world.dirs.directories()[0]
    assert checkpoints.offsets_of(("t", 0)) == dict(zip(CHECKPOINTS, (10, 7, 10, 8), strict=True))
    log.truncate_to(9)
    world.scheduler.settle()
    assert checkpoints.offsets_of(("t", 0)) == dict(zip(CHECKPOINTS, (9, 7, 9, 8), strict=True))
    log.truncate_fully_and_start_at(3)
    world.scheduler.settle()
    assert checkpoints.offsets_of(("t", 0)) != dict.fromkeys(CHECKPOINTS, 3)  # one of many truncations
    world.scheduler.run(CUTS_MS)
    world.scheduler.settle()
    assert checkpoints.offsets_of(("t", 0)) == dict.fromkeys(CHECKPOINTS, 3)
    log.append_client(batch(2), 1_000)
    log = world.restart(clean=False).get("t", 0)
    assert (log.log_start_offset, log.end_offset) == (3, 5)


@pytest.mark.parametrize("damage", ["missing", "rubbish"])
def test_a_lost_partition_metadata_is_written_again(world, damage):
    log = world.create("t")
    log.append_client(batch(2), 1_000)
    path = os.path.join(log.directory, "partition.metadata")
    if damage == "missing":
        os.unlink(path)
    else:
        with open(path, "wb") as file:
            file.write(b"rubbish")
    world.restart()
    log = world.dirs.get("t", 0)
    assert (log.topic_id, log.end_offset) == (world.topics["t"], 2)
    assert os.path.getsize(path) > 20


def test_deleted_records_stay_deleted_after_a_kill(world):
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    assert log.delete_records(7) == 7
    answers: list[dict] = []
    world.dirs.keep_log_starts([log], answers.append)
    assert answers == []  # before it is in the file
    world.scheduler.work()
    assert answers == [{}]
    world.restart(clean=False)
    assert world.dirs.get("t", 0).log_start_offset == 7


def test_the_records_of_many_partitions_are_deleted_with_one_write(tmp_path, monkeypatch):
    """HUNTS S1: it was one for each partition, of all of them."""
    world = DirsWorld(tmp_path / "three", 3)
    written = count_writes(monkeypatch)
    logs = [world.create("t", index) for index in range(60)]
    for log in logs:
        log.append_client(batch(9), 1_000)
        log.delete_records(7)
    assert written == []
    answers: list[dict] = []
    world.dirs.keep_log_starts(logs, answers.append)
    world.scheduler.work()
    assert answers == [{}]
    assert sorted(written) == [(20, False), (20, False), (20, False)]  # of each directory, names unsynced
    world.dirs.keep_log_starts(logs, answers.append)  # nothing has moved
    assert answers == [{}, {}] and len(written) == 3
    world.dirs.checkpoint()
    world.scheduler.work()
    assert sorted(written)[-3:] == [(20, True)] * 3


def count_writes(monkeypatch):
    """(entries, whether the name was synced too) of each write of log starts."""
    written = []
    write_new, sync_directory = directory_module.write_new, directory_module.sync_directory

    def counting(path, data, *, sync):
        assert sync, "power loss could leave a part of the file, and take all other entries"
        if LOG_START_OFFSETS in path:
            written.append((data.count(b"\n") - 2, False))
        write_new(path, data, sync=sync)

    def counting_synced(path):
        if written:
            written[-1] = (written[-1][0], True)
        sync_directory(path)

    monkeypatch.setattr(directory_module, "write_new", counting)
    monkeypatch.setattr(directory_module, "sync_directory", counting_synced)
    return written


def test_who_deletes_records_while_others_are_written_shares_the_next_write(world, monkeypatch):
    written = count_writes(monkeypatch)
    logs = [world.create("t", index) for index in range(5)]
    answers: list[int] = []
    for at, log in enumerate(logs):
        log.append_client(batch(9), 1_000)
        log.delete_records(7)
        world.dirs.keep_log_starts([log], lambda failed, at=at: answers.append(at))
    world.dirs.keep_log_starts([logs[0]], lambda failed: answers.append(99))
    assert world.scheduler.work() == 1 and answers == [0]
    assert world.scheduler.work() == 1 and answers == [0, 1, 2, 3, 4, 99]
    assert [count for count, _ in written] == [1, 5]


def test_a_topic_that_asks_for_flushes_has_its_log_start_synced(world, monkeypatch):
    written = count_writes(monkeypatch)
    log = world.create("t")
    log.update_config(topic_config(flush_messages=1))
    log.append_client(batch(9), 1_000)
    world.scheduler.settle()
    log.delete_records(7)
    world.dirs.keep_log_starts([log], lambda failed: None)
    world.scheduler.work()
    assert written == [(1, True)]


def test_log_starts_that_cannot_be_written_are_refused_and_tried_again(world):
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    log.delete_records(7)
    answers: list[dict] = []
    world.dirs.keep_log_starts([log], answers.append)
    world.scheduler.work(fail=OSError(errno.ENOSPC, "full"))
    assert list(answers[0]) == [log]
    world.dirs.keep_log_starts([log], answers.append)
    world.scheduler.work()
    assert answers[1] == {}
    world.restart(clean=False)
    assert world.dirs.get("t", 0).log_start_offset == 7


@pytest.mark.parametrize("again", ["before", "after"])
def test_a_log_start_is_not_written_for_a_new_log_of_that_name(world, again):
    """The topic is deleted and made again while its log start is about to be written."""
    log = world.create("t")
    log.append_client(batch(9), 1_000)
    log.delete_records(7)
    world.dirs.keep_log_starts([log], lambda failed: None)
    if again == "after":
        world.scheduler.work()
    world.dirs.delete("t", 0)
    new = world.create("t", topic_id=b"B" * 16)
    new.append_client(batch(8), 1_000)
    world.scheduler.work()
    world.restart(clean=False)
    new = world.dirs.get("t", 0)
    assert (new.log_start_offset, new.end_offset) == (0, 8)


@pytest.mark.parametrize(
    ("given", "workers", "most"),
    [
        (None, 1, os.cpu_count()),
        (None, 4, os.cpu_count()),
        ("1", 1, 2),
        ("3", 1, 6),
        ("3", 4, 2),
        ("1", 4, 1),
    ],
)
def test_logs_are_recovered_by_as_many_threads_as_asked_for(tmp_path, monkeypatch, given, workers, most):
    keys = {} if given is None else {"num.recovery.threads.per.data.dir": given}
    world = DirsWorld(tmp_path, count=2, **keys)
    for index in range(2 * most):
        world.create("t", index).append_client(batch(3), 1_000)
    world.dirs.close(clean=False)
    threads = set()
    opened, turns = Log.open, threading.Barrier(most)

    def open_in_thread(*arguments, **options):
        threads.add(threading.get_ident())
        turns.wait(60)  # each thread has its turn, twice
        return opened(*arguments, **options)

    dirs = LogDirs(BrokerConfig(world.settings), world.clock, world.scheduler)
    dirs.open()
    monkeypatch.setattr(Log, "open", open_in_thread)
    dirs.load(lambda topic: topic_config(), world.topics, workers=workers)
    assert len(threads) == most
    assert sorted(log.end_offset for log in dirs.all()) == [3] * 2 * most
    dirs.close()
