"""The group commit: fdatasyncs in threads of C, which appends ask for and acknowledgements wait for."""

import errno
import gc
import os
import time

import pytest

from kafkad._native.log.group_commit import GroupCommit, fail_syncs, hold_syncs
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError
from tests.readiness import readable
from tests.unit.log_world import LogWorld, topic_config

PATIENCE_S = 20


@pytest.fixture(autouse=True)
def working_disk():
    yield
    fail_syncs(0)
    hold_syncs(False)


@pytest.fixture
def group():
    made = GroupCommit(4)
    yield made
    hold_syncs(False)
    made.close()


def led(root, group: GroupCommit, messages: int = 1, **rules) -> LogWorld:
    """A log whose small files are on the disk: what comes now is the group's."""
    world = LogWorld(root, topic_config(flush_messages=messages, **rules))
    world.log.flush()
    world.log.native.commit_with(group)
    return world


def publish(group: GroupCommit) -> None:
    """Waits for the end of an fdatasync."""
    assert readable([group.fileno()], PATIENCE_S), "no fdatasync has ended"
    group.publish()


def publish_until(group: GroupCommit, done) -> None:
    while not done():
        publish(group)


def nothing_by_python(world: LogWorld) -> bool:
    return world.scheduler.timers == [] and world.scheduler.threads == []


def under_way(group: GroupCommit, count: int) -> None:
    """Waits until so many threads were begun."""
    deadline = time.monotonic() + PATIENCE_S
    while group.threads < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_without_a_flush_policy_there_is_no_thread(tmp_path, group):
    world = LogWorld(tmp_path)
    world.log.native.commit_with(group)
    for _ in range(50):
        world.append()
    assert world.log.high_watermark == 50
    assert (group.threads, group.syncs) == (0, 0)
    assert nothing_by_python(world)


def test_the_ack_waits_for_one_fdatasync_and_no_timer(tmp_path, group):
    world = led(tmp_path, group)
    acks: list[object] = []
    hold_syncs(True)
    world.append(count=3)
    world.log.await_high_watermark(3, acks.append)
    assert (world.log.end_offset, world.log.high_watermark, acks) == (3, 0, [])
    assert world.log.read(0, 100) == b""
    assert readable([group.fileno()], 0.05) == []
    hold_syncs(False)
    publish(group)
    assert (world.log.high_watermark, world.log.recovery_point, acks) == (3, 3, [None])
    assert (group.threads, group.syncs) == (1, 1)
    assert nothing_by_python(world)
    for end in range(4, 24):
        world.append()
        assert world.log.high_watermark == end - 1
        publish(group)
        assert world.log.high_watermark == end
    assert group.syncs == 21, "one fdatasync for each record that comes alone"


def test_appends_that_come_during_an_fdatasync_share_the_next(tmp_path, group):
    world = led(tmp_path, group)
    hold_syncs(True)
    world.append()
    under_way(group, 1)
    time.sleep(0.05)  # it has taken its end offset by now; if not, it only takes more along
    for _ in range(10):
        world.append()
    hold_syncs(False)
    publish_until(group, lambda: world.log.high_watermark == 11)
    assert group.syncs <= 2
    assert nothing_by_python(world)


def test_a_file_is_never_synced_twice_at_the_same_time(tmp_path, group):
    world = led(tmp_path, group)
    hold_syncs(True)
    for _ in range(50):
        world.append()
        world.log.request_flush()
    assert group.threads == 1
    hold_syncs(False)
    publish_until(group, lambda: world.log.high_watermark == 50)
    assert group.syncs <= 2


def test_partitions_are_synced_side_by_side(tmp_path, group):
    worlds = []
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        worlds.append(led(tmp_path / str(number), group))
    hold_syncs(True)
    for world in worlds:
        world.append()
    assert group.threads == 4, "as many as there may be"
    hold_syncs(False)
    publish_until(group, lambda: all(world.log.high_watermark == 1 for world in worlds))
    assert group.syncs == 6


def test_a_failed_fdatasync_takes_the_log_offline_and_is_not_tried_again(tmp_path, group):
    world = led(tmp_path, group)
    acks: list[BaseException | None] = []
    flushes: list[BaseException | None] = []
    offline: list[object] = []
    world.log.on_offline = lambda log, error: offline.append(error.errno)
    fail_syncs(errno.EIO)
    world.append()
    world.log.await_high_watermark(1, acks.append)
    world.log.await_flushed(1, flushes.append)
    publish(group)
    assert offline == [errno.EIO]
    for [error] in (acks, flushes):
        assert isinstance(error, KafkaError)
        assert error.code == KAFKA_STORAGE_ERROR
    assert (world.log.high_watermark, world.log.native.flushed_offset) == (0, 0)
    fail_syncs(0)
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == KAFKA_STORAGE_ERROR
    world.log.request_flush()
    assert group.syncs == 1
    assert nothing_by_python(world)


def test_what_still_waits_when_its_directory_fails_is_given_up(tmp_path):
    group = GroupCommit(1)
    worlds = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        worlds.append(led(tmp_path / str(number), group))
    hold_syncs(True)
    for world in worlds:
        world.append()
    for world in worlds[1:]:
        world.log.on_failure(OSError(errno.EIO, "the log directory failed"))
    hold_syncs(False)
    publish_until(group, lambda: group.syncs == 3)
    group.publish()
    assert [world.log.high_watermark for world in worlds] == [1, 0, 0]
    assert [world.log.native.flushed_offset for world in worlds] == [1, 0, 0]
    group.close()


def test_a_truncation_during_an_fdatasync_is_not_taken_for_flushed(tmp_path, group):
    world = led(tmp_path, group)
    hold_syncs(True)
    for _ in range(5):
        world.append()
    world.log.truncate_to(2)
    for _ in range(2):
        world.append()
    hold_syncs(False)
    publish(group)
    assert world.log.native.flushed_offset == 0
    assert world.log.high_watermark == 0
    world.scheduler.settle()  # the cut is a matter of the directory, too
    assert (world.log.native.flushed_offset, world.log.high_watermark) == (4, 4)
    world.append()
    publish_until(group, lambda: world.log.high_watermark == 5)


def test_a_roll_during_an_fdatasync_leaves_the_new_segment_unflushed(tmp_path, group):
    world = led(tmp_path, group)
    hold_syncs(True)
    world.append()
    world.append()
    world.log.roll(world.now_ms)
    world.append()
    hold_syncs(False)
    publish(group)
    assert world.log.high_watermark <= 2, "the third stands in a file that nobody has synced"
    world.scheduler.settle()
    assert world.log.high_watermark == 3
    world.append()
    publish(group)
    assert world.log.high_watermark == 4
    assert nothing_by_python(world)


def test_small_files_go_before_what_was_appended_after_them(tmp_path, group):
    world = led(tmp_path, group)
    hold_syncs(True)
    world.append()
    world.epoch = 1
    world.log.set_leader_epoch(1)
    world.append()
    hold_syncs(False)
    publish(group)
    assert world.log.high_watermark == 1
    assert world.log.leader_epochs.unsynced
    world.scheduler.settle()
    assert not world.log.leader_epochs.unsynced
    assert world.log.high_watermark == 2


def test_a_partition_may_go_while_its_file_is_synced(tmp_path, group):
    for number in range(20):
        root = tmp_path / str(number)
        root.mkdir()
        world = led(root, group)
        hold_syncs(True)
        world.append()
        world.log.close(clean=False)
        del world
        gc.collect()
        hold_syncs(False)
    publish_until(group, lambda: group.syncs == 20)
    group.publish()
    descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_there(fd)]
    assert [path for path in descriptors if str(tmp_path) in path] == []


def blocks(world: LogWorld, base_offset: int = 0) -> int:
    """Bytes that the file system has set aside for a segment."""
    return world.path(base_offset, ".log").stat().st_blocks * 512


@pytest.mark.parametrize("how", ["roll", "idle", "close"])
def test_blocks_are_ready_behind_the_end_and_go_back(tmp_path, group, how):
    world = led(tmp_path, group)
    world.append(size=20_000)
    publish(group)
    size = world.path(0, ".log").stat().st_size
    if blocks(world) < size + 40_000:
        pytest.skip("this file system sets nothing aside")
    match how:
        case "roll":
            world.log.roll(world.now_ms)
            world.scheduler.settle()
        case "idle":
            world.log.release_idle()
            world.log.release_idle()
        case "close":
            world.log.close()
    assert blocks(world) < size + 8_192
    assert world.path(0, ".log").stat().st_size == size
    if how == "idle":
        world.append(size=20_000)
        publish(group)
        assert world.log.high_watermark == 2
        assert blocks(world) > 2 * size


def _is_there(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_whoever_waits_for_a_flush_is_told(tmp_path, group):
    world = led(tmp_path, group, messages=10)
    done: list[object] = []
    world.append()
    world.log.await_flushed(1, done.append)
    world.append()
    world.log.await_flushed(2, done.append)
    assert done == []
    publish_until(group, lambda: done == [None, None])
    assert nothing_by_python(world)


def test_the_age_of_messages_is_bounded_by_the_group(tmp_path, group):
    world = led(tmp_path, group, messages=1000, flush_ms=500)
    world.log.flush_if_due(world.now_ms, 0)
    world.append()
    world.log.flush_if_due(world.now_ms, 499)
    assert group.threads == 0
    world.log.flush_if_due(world.now_ms, 500)
    publish(group)
    assert world.log.recovery_point == 1


def test_a_closed_group_leaves_the_flush_to_the_log(tmp_path, group):
    world = led(tmp_path, group)
    world.append()
    group.close()
    assert group.threads == 0
    world.log.request_flush()
    world.scheduler.settle()
    assert world.log.high_watermark == 1
