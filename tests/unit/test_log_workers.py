"""Several workers share the data directories: checkpoints, names, offline directories, the clean mark.

The workers are processes, forked from one that has opened the directories, as the supervisor does; some are
killed where it hurts."""

import hashlib
import os
import random
import threading
import time

import pytest

from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from kafkad.log.clean_marks import CLEAN_SHUTDOWN
from kafkad.log.directory import Directory
from kafkad.log.log_dirs import DirectoryOccupied, LogDirs
from kafkad.protocol.errors import KafkaError
from kafkad.replication.ownership import owner_of
from tests.unit.forked import Forked
from tests.unit.log_world import ManualScheduler, batch, begin_metadata, topic_config

WORKERS = 2


def id_of(topic: str) -> bytes:
    return hashlib.md5(topic.encode()).digest()


class Disks:
    """What a supervisor has before it forks."""

    def __init__(self, root, count: int = 1, **keys: str) -> None:
        self.paths = [str(root / f"d{i}") for i in range(count)]
        settings = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": ",".join(self.paths),
            **keys,
        }
        self.config = BrokerConfig(settings)
        self.topics: dict[str, bytes] = {}
        self.dirs = self.opened()
        begin_metadata(self.paths[0])

    def opened(self) -> LogDirs:
        dirs = LogDirs(self.config, ManualClock(1_000), None, table=WatermarkTable(4096, shared=True))
        dirs.open()
        return dirs

    def path(self, *names: str) -> str:
        return os.path.join(self.paths[0], *names)

    def offsets(self, name: str) -> dict:
        return read_offsets(self.path(name))


class Worker:
    """One worker's logs; made in its own process."""

    def __init__(
        self,
        disks: Disks,
        me: int,
        *,
        restarted: bool = False,
        workers: int = WORKERS,
        owner=owner_of,
        has=lambda topic, index: True,
    ) -> None:
        self.disks = disks
        self.me = me
        self.dirs = disks.dirs
        self.scheduler = ManualScheduler()
        self.dirs.enter(me, self.scheduler, restarted=restarted)
        self.dirs.load(
            lambda topic: topic_config(),
            disks.topics,
            lambda topic, topic_id, index: owner(topic_id, index, workers) == me,
            has=has,
        )
        for log in self.dirs.all():
            log.set_leader_epoch(0)

    def create(self, topic: str, index: int = 0, topic_id: bytes | None = None):
        log = self.dirs.create(topic, index, topic_id or id_of(topic), topic_config())
        log.set_leader_epoch(0)
        return log


@pytest.fixture
def disks(tmp_path):
    return Disks(tmp_path)


@pytest.fixture
def fork():
    made = []

    def function(work, *arguments):
        made.append(Forked(work, *arguments))
        return made[-1]

    yield function
    for child in made:
        if child.pid:
            child.kill()


# -- checkpoints ---------------------------------------------------------------------------------------------


def writes_checkpoints(child, disks, me, partitions, restarted):
    """Appends to each of its logs, says what it has, and writes; again and again."""
    # one topic a worker, whatever the rule says: the names tell whose an entry is
    worker = Worker(
        disks, me, restarted=restarted, owner=lambda topic_id, *_: int(topic_id != id_of("topic-0"))
    )
    if not worker.dirs.all():
        for index in range(partitions):
            worker.create(f"topic-{me}", index)
    chance = random.Random(os.getpid())
    ends = {log.partition: log.end_offset for log in worker.dirs.all()}
    while True:
        for log in worker.dirs.all():
            if chance.random() < 0.5:
                log.append_client(batch(2), 1_000)
            ends[log.partition] = log.end_offset
        worker.dirs.checkpoint()
        worker.scheduler.work()
        child.tell(ends)


def test_no_entry_is_lost_when_workers_write_checkpoints_at_once_and_are_killed(disks, fork):
    partitions, chance = 5, random.Random(7)
    disks.topics = {f"topic-{me}": id_of(f"topic-{me}") for me in range(WORKERS)}
    workers = [fork(writes_checkpoints, disks, me, partitions, False) for me in range(WORKERS)]
    written = [dict.fromkeys(range(partitions), 0) for _ in range(WORKERS)]

    def hear(me, count):
        for _ in range(count):
            written[me] = {int(index): end for index, end in workers[me].hear().items()}

    for me in range(WORKERS):
        hear(me, 1)
    for round_number in range(12):
        victim, other = round_number % 2, 1 - round_number % 2
        drained = threading.Thread(target=hear, args=(other, 10))
        drained.start()
        hear(victim, chance.randrange(1, 8))
        time.sleep(chance.random() * 0.003)  # where it is killed is left to chance
        workers[victim].kill()
        drained.join()
        found = disks.offsets(HIGH_WATERMARKS)
        for me in range(WORKERS):
            for index, end in written[me].items():
                assert found[f"topic-{me}", index] >= end, (round_number, victim)
        workers[victim] = fork(writes_checkpoints, disks, victim, partitions, True)
        hear(victim, 1)


def keeps(child, disks, me, *topics):
    """A worker that does as it is told."""
    worker = Worker(disks, me)
    child.tell("loaded")
    while True:
        what, *arguments = child.hear()
        answer = None
        if what == "create":
            try:
                worker.create(*arguments[:2], bytes.fromhex(arguments[2]) if arguments[2:] else None)
            except DirectoryOccupied:
                answer = "occupied"
            except KafkaError as e:
                answer = e.code
        elif what == "append":
            answer = worker.dirs.get(*arguments).append_client(batch(3), 1_000).end_offset
        elif what == "delete records":
            log = worker.dirs.get(arguments[0], arguments[1])
            answer = log.delete_records(arguments[2])
            worker.dirs.keep_log_starts([log], lambda failed: None)
            worker.scheduler.work()
        elif what == "delete":
            worker.dirs.delete(*arguments)
        elif what == "ask for checkpoints":
            worker.dirs.checkpoint()
        elif what == "write them":
            worker.scheduler.work()
        elif what == "checkpoint":
            worker.dirs.checkpoint()
            worker.scheduler.work()
        elif what == "fail":
            worker.dirs.set_offline(arguments[0])
        elif what == "offline":
            answer = [each.path for each in worker.dirs.directories() if each.offline]
        elif what == "close":
            worker.dirs.close(*arguments)
            child.tell()
            return
        child.tell(answer)


def two(fork, disks):
    workers = fork(keeps, disks, 0), fork(keeps, disks, 1)
    for worker in workers:
        assert worker.hear() == "loaded"
    return workers


def test_entries_of_the_other_worker_stay(disks, fork):
    a, b = two(fork, disks)
    a.ask(["create", "a", 0])
    b.ask(["create", "b", 0])
    a.ask(["append", "a", 0])
    b.ask(["append", "b", 0])
    b.ask(["delete records", "b", 0, 2])  # written at once
    assert disks.offsets(LOG_START_OFFSETS) == {("b", 0): 2}
    a.ask(["checkpoint"])
    assert disks.offsets(LOG_START_OFFSETS) == {("b", 0): 2}
    assert disks.offsets(HIGH_WATERMARKS) == {("a", 0): 3}
    b.ask(["checkpoint"])
    assert disks.offsets(HIGH_WATERMARKS) == {("a", 0): 3, ("b", 0): 3}
    assert disks.offsets(RECOVERY_POINTS) == {("a", 0): 0, ("b", 0): 0}


def test_a_file_that_looks_like_the_one_before_is_read(tmp_path):
    """Two workers write one after the other: the next file has the same size, the same time, and, where the
    file system gives numbers out again, the number of the one that has gone."""
    directory = Directory(str(tmp_path), 0, for_logs=True)
    directory.shared = True
    path = os.path.join(tmp_path, HIGH_WATERMARKS)
    written_ns = time.time_ns() + 60_000_000_000  # just now, however slow the machine
    for offset in range(1, 10):
        write_offsets(path, {("t", 0): offset})
        os.utime(path, ns=(written_ns, written_ns))
        assert directory._found(HIGH_WATERMARKS) == {("t", 0): offset}
        held = os.fstat(directory._seen[HIGH_WATERMARKS].fd)
        assert held.st_ino == os.stat(path).st_ino, "a file that is not held may give its number to the next"
        assert directory._found(HIGH_WATERMARKS) == {("t", 0): offset}  # as it is remembered
    os.utime(path, ns=(written_ns - 3600 * 10**9,) * 2)
    assert directory._found(HIGH_WATERMARKS) == directory._found(HIGH_WATERMARKS) == {("t", 0): 9}
    assert directory._seen[HIGH_WATERMARKS].fd == -1, "one that is old enough needs no descriptor"


def test_worker_0_drops_what_belongs_to_nobody(disks, fork):
    a, b = two(fork, disks)
    a.ask(["create", "a", 0])
    b.ask(["create", "b", 0])
    b.ask(["create", "gone", 0])
    b.ask(["append", "gone", 0])
    b.ask(["checkpoint"])
    b.ask(["delete", "gone", 0])
    b.ask(["append", "b", 0])
    b.ask(["checkpoint"])
    assert ("gone", 0) in disks.offsets(HIGH_WATERMARKS)
    a.ask(["append", "a", 0])
    a.ask(["checkpoint"])
    assert disks.offsets(HIGH_WATERMARKS) == {("a", 0): 3, ("b", 0): 3}


def test_a_new_partition_is_not_taken_for_a_deleted_one_of_another_worker(disks, fork):
    a, b = two(fork, disks)
    a.ask(["create", "t", 0])
    a.ask(["append", "t", 0])
    a.ask(["delete records", "t", 0, 3])
    a.ask(["checkpoint"])
    a.ask(["append", "t", 0])
    a.ask(["ask for checkpoints"])  # what is to be written knows the log, and is written too late
    a.ask(["delete", "t", 0])
    assert b.ask(["create", "t", 0, "22" * 16]) == "occupied"  # by its offsets, which a thread drops
    b.ask(["write them"])
    assert b.ask(["create", "t", 0, "22" * 16]) is None
    assert ("t", 0) not in disks.offsets(LOG_START_OFFSETS)
    a.ask(["write them"])
    for name in (LOG_START_OFFSETS, HIGH_WATERMARKS, RECOVERY_POINTS):
        assert ("t", 0) not in disks.offsets(name)
    b.ask(["append", "t", 0])
    b.ask(["checkpoint"])
    a.ask(["checkpoint"])
    assert disks.offsets(HIGH_WATERMARKS) == {("t", 0): 3}
    assert disks.offsets(LOG_START_OFFSETS) == {}


def test_a_name_that_another_worker_has_yet_to_free_is_waited_for(disks, fork):
    a, b = two(fork, disks)
    assert a.ask(["create", "t", 0]) is None
    assert b.ask(["create", "t", 0, "22" * 16]) == "occupied"
    assert sorted(name for name in os.listdir(disks.paths[0]) if "t-0" in name) == ["t-0"]
    a.ask(["append", "t", 0])
    a.ask(["delete", "t", 0])
    assert b.ask(["create", "t", 0, "22" * 16]) is None
    assert b.ask(["append", "t", 0]) == 3
    assert b.ask(["create", "u", 0]) is None


# -- opening and closing -------------------------------------------------------------------------------------


def test_each_worker_opens_what_it_owns_and_a_clean_stop_marks_all(tmp_path, fork):
    disks = Disks(tmp_path, 2)
    names = [f"t{i}" for i in range(8)]
    ids = {name: id_of(name) for name in names}
    a, b = two(fork, disks)
    for i, name in enumerate(names):
        owner = (a, b)[owner_of(ids[name], 0, WORKERS)]
        owner.ask(["create", name, 0])
        for _ in range(i):
            owner.ask(["append", name, 0])
    for worker in (b, a):
        worker.ask(["close", True])
        worker.wait()
    disks.dirs.broker_epoch = 17
    disks.dirs.finish(True)
    for path in disks.paths:
        assert os.path.exists(os.path.join(path, CLEAN_SHUTDOWN))

    def opens(child, disks, me, workers):
        worker = Worker(disks, me, workers=workers)
        clean = all(each.clean for each in worker.dirs.directories())
        child.tell([clean, {log.topic: log.high_watermark for log in worker.dirs.all()}])
        worker.dirs.close(True)

    disks.topics = ids
    for workers in (3, 1, 2):  # no data moves, whatever their number
        disks.dirs = disks.opened()
        assert disks.dirs.previous_broker_epoch == 17
        found = {}
        for me in range(workers):
            child = fork(opens, disks, me, workers)
            clean, logs = child.hear()
            child.wait()
            assert clean
            assert {owner_of(ids[name], 0, workers) for name in logs} <= {me}
            found.update(logs)
        assert found == {name: 3 * i for i, name in enumerate(names)}
        disks.dirs.broker_epoch = 17
        disks.dirs.finish(True)


def test_a_worker_that_was_not_closed_cleanly_leaves_no_mark(disks, fork):
    a, b = two(fork, disks)
    for worker, clean in ((a, True), (b, False)):
        worker.ask(["close", clean])
        worker.wait()
    disks.dirs.finish(True)
    assert not os.path.exists(disks.path(CLEAN_SHUTDOWN))
    disks.dirs = disks.opened()
    assert not disks.dirs.directories()[0].clean


def test_the_lock_outlives_a_worker_and_goes_with_the_supervisors(disks, fork):
    a, b = two(fork, disks)
    a.ask(["close", True])
    b.kill()
    with pytest.raises(Exception, match="in use by another broker"):
        disks.opened()
    a.wait()
    disks.dirs.finish(False)
    disks.opened().finish(False)


def test_a_directory_that_failed_for_one_worker_is_touched_by_nobody(tmp_path, fork):
    disks = Disks(tmp_path, 2)
    a, b = two(fork, disks)
    b.ask(["fail", disks.paths[1]])
    assert a.ask(["offline"]) == []
    a.ask(["checkpoint"])
    assert a.ask(["offline"]) == [disks.paths[1]]
    b.kill()

    def comes_back(child, disks):
        worker = Worker(disks, 1, restarted=True)
        child.tell([each.path for each in worker.dirs.directories() if each.offline])

    assert fork(comes_back, disks).hear() == [disks.paths[1]]
    a.ask(["close", True])
    disks.dirs.finish(True)
    assert [os.path.exists(os.path.join(path, CLEAN_SHUTDOWN)) for path in disks.paths] == [True, False]


def test_partitions_of_all_workers_are_spread_over_the_directories(tmp_path, fork):
    disks = Disks(tmp_path, 2)
    a, b = two(fork, disks)

    def counts():
        return [
            sum(name.endswith("-0") and name[0] != "_" for name in os.listdir(path)) for path in disks.paths
        ]

    for i in range(10):
        for worker, name in ((a, f"a{i}"), (b, f"b{i}")):
            worker.tell(["create", name, 0])
        for worker in (a, b):
            assert worker.hear() is None
    assert counts() == [10, 10]
    for i in range(5):
        a.ask(["delete", f"a{i}", 0])
        b.ask(["delete", f"b{i}", 0])
    left = counts()
    for i in range(abs(left[0] - left[1])):
        b.ask(["create", f"c{i}", 0])
    assert counts() == [max(left)] * 2


# -- strays and leftovers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["deleted", "reassigned"])
def test_a_log_deleted_while_its_worker_was_away_goes_when_it_comes_back(disks, fork, then):
    a, b = two(fork, disks)
    mine = [name for name in ("p", "q", "r", "s") if owner_of(id_of(name), 0, WORKERS) == 1]
    others = [name for name in ("p", "q", "r", "s") if name not in mine]
    assert mine and others
    for name in mine:
        b.ask(["create", name, 0])
    for name in others:
        a.ask(["create", name, 0])
    b.kill()

    def comes_back(child, disks, topics):
        disks.topics = topics
        worker = Worker(disks, 1, restarted=True, has=lambda topic, index: False)
        child.tell(sorted(log.topic for log in worker.dirs.all()))
        worker.scheduler.run(60_000)
        worker.scheduler.work()
        child.tell()

    # the image has no replica here of any of them any more; what worker 0 has is its own to delete
    names = mine + others if then == "reassigned" else []
    child = fork(comes_back, disks, {name: id_of(name) for name in names})
    assert child.hear() == []
    left = sorted(os.listdir(disks.paths[0]))
    assert [name for name in left if name.endswith("-stray")] == []
    assert [name for name in left if name.endswith("-0") and name[0] != "_"] == sorted(
        f"{name}-0" for name in others
    )
    child.hear()
    assert [name for name in os.listdir(disks.paths[0]) if name.endswith("-delete")] == []


@pytest.mark.parametrize("restarted", [False, True])
def test_worker_0_keeps_the_offsets_of_another_ones_log_whose_directory_was_removed(disks, fork, restarted):
    """Otherwise the next start would make it anew, empty, and it would lead."""
    ours = next(name for name in "pqrstu" if owner_of(id_of(name), 0, WORKERS) == 0)
    other = next(name for name in "pqrstu" if owner_of(id_of(name), 0, WORKERS) == 1)
    disks.topics = {other: id_of(other)}
    write_offsets(disks.path(HIGH_WATERMARKS), {(other, 0): 7})

    def checkpoints(child, disks):
        worker = Worker(disks, 0, restarted=restarted)
        worker.create(ours).append_client(batch(), 1_000)
        worker.dirs.checkpoint()
        worker.scheduler.settle()
        child.tell()

    fork(checkpoints, disks).hear()
    assert disks.offsets(HIGH_WATERMARKS) == {(ours, 0): 1, (other, 0): 7}


def test_an_unknown_directory_is_a_stray_of_worker_0_when_the_broker_starts(disks, fork):
    disks.dirs.finish(False)
    os.makedirs(disks.path("nobody-0"))
    write_offsets(disks.path(HIGH_WATERMARKS), {("nobody", 0): 7})
    disks.dirs = disks.opened()
    b = fork(keeps, disks, 1)
    assert b.hear() == "loaded"
    assert "nobody-0" in os.listdir(disks.paths[0])
    a = fork(keeps, disks, 0)
    assert a.hear() == "loaded"
    a.ask(["create", "a", 0])
    assert [name for name in os.listdir(disks.paths[0]) if name.endswith("-stray")]
    a.ask(["checkpoint"])
    assert disks.offsets(HIGH_WATERMARKS) == {("a", 0): 0}
