"""Moves between log directories, step by step: what a log does meanwhile is in the copy, too."""

import errno
import os
from types import SimpleNamespace

import pytest
from steps import finish

from kafkad.api.log_dirs import alter_replica_log_dirs
from kafkad.log import cutting
from kafkad.log.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from kafkad.log.moves import Stage
from kafkad.metadata.features import DIRECTORY_ASSIGNMENT
from kafkad.protocol import messages
from kafkad.protocol.errors import NONE, KafkaError
from kafkad.protocol.records import read_batches
from tests.unit.log_world import batch, topic_config
from tests.unit.test_log_dirs import DirsWorld

SIZE = 40_000  # of a record; a segment has four


class World(DirsWorld):
    def __init__(self, root) -> None:
        super().__init__(root, 2)
        self.log = self.create("t")
        self.log.update_config(topic_config(segment_bytes=4 * (SIZE + 100)))
        self.source = self.dirs.directory_of("t", 0)
        self.target = next(each for each in self.dirs.directories() if each is not self.source)
        self.told = []
        self.hook()

    def hook(self) -> None:
        moves = self.dirs.moves
        moves.assigned = lambda topic, index: self.told[-1] if self.told and self.answers else bytes(16)
        moves.tell = lambda: self.told.append(moves.told_of(self.log))
        moves.rate = lambda: self.rate
        moves.start()

    rate = 1  # byte a second: nothing gets on
    answers = False  # the controller: without it a copy follows the log, and does not take its place

    def append(self, count: int, size: int = SIZE) -> None:
        for _ in range(count):
            self.log.append(batch(size=size), self.clock.now_ms())

    def some(self, steps: int = 4) -> None:
        """Let the move do some steps without a limit; it is told to nobody."""
        self.rate = (1 << 63) - 1
        for _ in range(steps):
            self.scheduler.run(1_000)
            self.scheduler.work()
        self.rate = 1

    def finish(self) -> None:
        self.rate, self.answers = (1 << 63) - 1, True
        for _ in range(100):
            self.clock.advance(1_000)
            self.scheduler.run(1_000)
            self.scheduler.work()
            if self.dirs.moves.of("t", 0) is None:
                return
        raise AssertionError("the move does not end")

    def alter(self, path: str) -> int:
        """Return the error code of AlterReplicaLogDirs."""
        dirs = messages.AlterReplicaLogDirsRequest.Dirs
        request = messages.AlterReplicaLogDirsRequest(
            dirs=[dirs(path=path, topics=[dirs.Topics(name="t", partitions=[0])])]
        )
        services = SimpleNamespace(
            log_dirs=self.dirs,
            partitions=SimpleNamespace(get=self.dirs.get, owner_of=lambda topic, index: 0),
            metadata=SimpleNamespace(image=SimpleNamespace(metadata_version=DIRECTORY_ASSIGNMENT)),
            me=0,
        )
        return finish(alter_replica_log_dirs(services, None, request)).results[0].partitions[0].error_code

    def bases(self) -> list[int]:
        """The base offset of each batch from the log's start, read from its files."""
        return [
            header.base_offset
            for data in self.log.batches(self.log.log_start_offset, self.log.end_offset)
            for header in read_batches(data)
        ]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def files(directory: str) -> dict[str, int]:
    return {each.name: each.stat().st_size for each in os.scandir(directory)}


def test_a_moved_log_has_the_same_files_and_goes_on(world):
    world.append(10)
    world.log.flush()
    world.log.native.close_files()
    before = files(world.log.directory)
    world.dirs.moves.begin(world.log, world.target)
    world.finish()
    assert world.log.directory == os.path.join(world.target.path, "t-0")
    assert world.told == [world.target.id]
    assert world.dirs.directory_of("t", 0) is world.target
    world.log.native.close_files()
    assert files(world.log.directory) == before
    world.append(5)
    assert world.bases() == list(range(15))
    assert not os.path.exists(os.path.join(world.source.path, "t-0"))
    world.restart(clean=False)
    world.log = world.dirs.get("t", 0)
    assert world.dirs.directory_of("t", 0).path == world.target.path and world.bases() == list(range(15))


@pytest.mark.parametrize("cut", [11, 5, 0])
def test_what_is_truncated_and_written_anew_is_copied_anew(world, cut):
    world.append(12)
    world.dirs.moves.begin(world.log, world.target)
    world.some()
    assert world.dirs.moves.of("t", 0).copy.size > 0
    world.log.follow(1, 2)
    world.log.truncate_to(cut)
    world.log.set_leader_epoch(2)
    world.append(12 - cut, size=SIZE - 1)  # the same number, and other bytes
    expected = [bytes(each) for each in world.log.batches(0, 12)]
    world.finish()
    assert world.log.directory.startswith(world.target.path)
    assert [bytes(each) for each in world.log.batches(0, 12)] == expected


@pytest.mark.parametrize("another_fails", [False, True])
def test_a_move_goes_on_when_its_log_serves_again(world, monkeypatch, another_fails):
    """It was over until the next start, and another AlterReplicaLogDirs was answered and did nothing."""
    world.append(12)
    world.dirs.moves.begin(world.log, world.target)
    world.log.follow(1, 2)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cutting.Prepared, "install", full)
    with pytest.raises(KafkaError):
        world.log.truncate_to(5)
    other = world.create("u")
    places = world.dirs.directories()
    world.dirs.moves.begin(other, places[places[0] is world.dirs.directory_of("u", 0)])
    world.some()
    assert world.log.halted and world.dirs.moves.of("t", 0).stage is Stage.COPYING
    assert world.alter(world.source.path) == NONE  # cancelled, and begun anew: "is offline" was the answer
    assert world.dirs.moves.of("t", 0) is None
    assert world.alter(world.target.path) == NONE
    world.some()
    assert world.dirs.moves.of("u", 0).stage is Stage.TELLING  # moves of others may make room
    world.dirs.delete("u", 0)
    if another_fails:
        world.dirs.moves.directory_failed(object())
    monkeypatch.undo()
    world.some()
    assert not world.log.halted
    world.log.set_leader_epoch(2)
    world.append(7, size=SIZE - 1)
    expected = [bytes(each) for each in world.log.batches(0, 12)]
    world.finish()
    assert world.log.directory.startswith(world.target.path)
    assert [bytes(each) for each in world.log.batches(0, 12)] == expected


def test_what_is_deleted_stays_deleted_after_a_kill(world):
    world.append(12)
    world.dirs.moves.begin(world.log, world.target)
    world.some()
    world.log.cleaned_below = 4
    world.log.delete_records(6)
    world.log.apply_retention(world.clock.now_ms())
    world.finish()
    key = ("t", 0)
    assert read_offsets(os.path.join(world.target.path, LOG_START_OFFSETS))[key] == 6
    assert read_offsets(os.path.join(world.target.path, HIGH_WATERMARKS))[key] == 12
    assert read_offsets(os.path.join(world.target.path, CLEANER_OFFSETS))[key] == 4
    world.restart(clean=False)
    world.log = world.dirs.get("t", 0)
    assert world.log.log_start_offset == 6 and world.bases()[-1] == 11
    world.scheduler.settle()
    assert key not in read_offsets(os.path.join(world.source.path, LOG_START_OFFSETS))


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_goes_on_with_what_was_copied(world, clean):
    world.append(12)
    world.log.flush()
    world.dirs.moves.begin(world.log, world.target)
    world.some()
    path = world.dirs.moves.of("t", 0).copy.directory
    if clean:
        world.dirs.checkpoint()
        world.scheduler.settle()
    world.restart(clean)
    world.log = world.dirs.get("t", 0)
    world.target = next(each for each in world.dirs.directories() if each.path == world.target.path)
    move = world.dirs.moves.of("t", 0)
    assert move.copy.directory == path and (not clean or move.copy.whole)
    world.hook()
    world.finish()
    assert world.log.directory == os.path.join(world.target.path, "t-0") and world.bases() == list(range(12))


def test_a_flush_between_counts_only_what_the_copy_has(world):
    """With flush.messages acks wait for the disk: that of the new directory, from the swap on."""
    world.log.update_config(topic_config(segment_bytes=4 * (SIZE + 100), flush_messages=1))
    world.append(6)
    world.scheduler.settle()
    assert world.log.high_watermark == 6
    world.dirs.moves.begin(world.log, world.target)
    world.some()
    world.append(2)
    world.finish()
    assert world.log.directory.startswith(world.target.path)
    world.append(1)
    assert world.log.high_watermark < 9  # until that is flushed
    world.scheduler.settle()
    assert world.log.high_watermark == 9 and world.log.recovery_point == 9


def test_with_a_directory_offline_nothing_moves(world):
    world.dirs.go_offline(world.target)
    with pytest.raises(KafkaError):
        world.dirs.moves.begin(world.log, world.target)
    assert world.dirs.moves.of("t", 0) is None
