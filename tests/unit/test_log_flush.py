"""The flush policy: what waits for an fsync, what shares one, and what a failed one means."""

import errno

import pytest

from kafkad._native.log.fileio import fail_writes
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError
from tests.shifted_clock import DAY_MS
from tests.small_disk import small_disk
from tests.unit.log_world import LogWorld, batch, topic_config


@pytest.fixture(autouse=True)
def working_disk():
    yield
    fail_writes(0)


def flushed_world(tmp_path, messages: int = 1, **rules) -> LogWorld:
    return LogWorld(tmp_path, topic_config(flush_messages=messages, **rules))


def test_by_default_nothing_is_synced_and_nothing_waits(tmp_path, synced):
    world = LogWorld(tmp_path)
    synced.clear()
    for _ in range(50):
        world.append()
    assert world.log.high_watermark == 50
    world.scheduler.settle()
    assert synced == []


def test_the_ack_and_visibility_wait_for_the_fsync(tmp_path, synced):
    world = flushed_world(tmp_path)
    acks: list[object] = []
    world.append(count=3)
    world.log.await_high_watermark(3, acks.append)
    assert (world.log.end_offset, world.log.high_watermark, acks) == (3, 0, [])
    assert world.log.read(0, 100) == b""
    assert world.log.latest().offset == 0
    world.scheduler.run()
    assert len(world.scheduler.threads) == 1
    assert acks == []
    world.scheduler.work()
    assert "00000000000000000000.log" in synced
    assert (world.log.high_watermark, world.log.recovery_point, acks) == (3, 3, [None])
    assert world.log.read(0, 100) != b""


def test_appends_that_come_during_a_flush_share_the_next(tmp_path, synced):
    world = flushed_world(tmp_path)
    acks: list[int] = []
    world.append()
    world.scheduler.run()
    for offset in range(2, 12):
        world.append()
        world.log.await_high_watermark(offset, lambda error, offset=offset: acks.append(offset))
    assert len(world.scheduler.threads) == 1
    world.scheduler.work()
    assert (world.log.high_watermark, acks) == (1, [])
    synced.clear()
    world.scheduler.settle()
    assert (world.log.high_watermark, acks) == (11, list(range(2, 12)))
    assert synced.count("00000000000000000000.log") == 1


def test_at_most_so_many_messages_are_acknowledged_unflushed(tmp_path):
    world = flushed_world(tmp_path, 10)
    for _ in range(9):
        world.append()
    assert world.log.high_watermark == 9
    assert world.scheduler.timers == []
    world.append()
    assert world.log.high_watermark == 9
    world.append()
    assert world.log.high_watermark == 9
    world.scheduler.settle()
    assert world.log.high_watermark == 11
    for _ in range(9):
        world.append()
    assert world.log.high_watermark == 20
    assert world.log.high_watermark - world.log.native.flushed_offset < 10


def test_hw_follows_when_a_flush_ends_with_few_messages_behind_it(tmp_path):
    world = flushed_world(tmp_path, 10)
    world.append(count=10)
    world.scheduler.run()
    world.append(count=5)
    assert world.log.high_watermark == 0
    world.scheduler.work()
    assert world.log.high_watermark == 15
    assert world.log.native.flushed_offset == 10


def test_a_failed_fsync_takes_the_log_offline_and_is_never_tried_again(tmp_path):
    world = flushed_world(tmp_path)
    acks: list[BaseException | None] = []
    offline: list[object] = []
    world.log.on_offline = lambda log, error: offline.append(error.errno)
    world.append()
    world.log.await_high_watermark(1, acks.append)
    world.scheduler.run()
    world.scheduler.work(fail=OSError(errno.EIO, "gone"))
    assert offline == [errno.EIO]
    [error] = acks
    assert isinstance(error, KafkaError)
    assert error.code == KAFKA_STORAGE_ERROR
    assert world.log.high_watermark == 0
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == KAFKA_STORAGE_ERROR
    assert world.log.native.try_read(0, 100)[0] == KAFKA_STORAGE_ERROR
    world.scheduler.run(1_000_000)
    assert world.scheduler.threads == []


def test_await_flushed_syncs_without_any_policy(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    done: list[object] = []
    world.log.await_flushed(1, done.append)
    assert done == []
    world.scheduler.settle()
    assert done == [None]
    world.log.await_flushed(1, done.append)
    assert done == [None, None]


@pytest.mark.parametrize("jump_ms", [0, -DAY_MS, DAY_MS])
def test_the_age_of_messages_is_bounded_whatever_the_wall_clock_says(tmp_path, jump_ms):
    world = LogWorld(tmp_path, topic_config(flush_ms=500))
    world.log.flush_if_due(world.now_ms, 0)
    world.append()
    world.log.flush_if_due(world.now_ms + jump_ms, 499)
    assert world.scheduler.timers == []
    world.log.flush_if_due(world.now_ms + jump_ms, 500)
    world.scheduler.settle()
    assert world.log.recovery_point == 1


def test_the_first_flush_syncs_the_directories_and_the_small_files(tmp_path, synced):
    world = LogWorld(tmp_path)
    world.append()
    world.log.flush()
    assert {"t-0", tmp_path.name, "partition.metadata", "leader-epoch-checkpoint"} <= set(synced)
    synced.clear()
    world.append()
    world.log.flush()
    assert synced == ["00000000000000000000.log"]


def test_a_roll_syncs_the_old_segment_in_the_background(tmp_path, synced):
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    world.log.flush()
    synced.clear()
    world.append(size=60)
    world.append(size=60)
    assert len(world.log.segments) == 2
    assert synced == []
    world.scheduler.settle()
    assert set(synced) >= {
        "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex",
        "00000000000000000001.snapshot", "t-0",
    }  # fmt: skip
    assert world.log.recovery_point >= 1


def test_a_duplicate_waits_for_the_flush_of_its_first_copy(tmp_path):
    world = flushed_world(tmp_path)
    data = batch(2, producer_id=1, producer_epoch=0, base_sequence=0)
    first = world.log.append_client(data, 0)
    again = world.log.append_client(data, 0)
    assert (first.base_offset, first.end_offset) == (again.base_offset, again.end_offset) == (0, 2)
    assert world.log.high_watermark < again.end_offset


def test_hw_does_not_go_back_over_a_crash_because_of_the_policy(tmp_path):
    world = flushed_world(tmp_path, 10)
    world.append(count=5)
    assert world.log.high_watermark == 5
    world.crash()
    assert world.log.high_watermark == 5


def test_a_changed_policy_applies_at_once(tmp_path):
    world = flushed_world(tmp_path)
    world.append()
    assert world.log.high_watermark == 0
    world.log.update_config(topic_config())
    assert world.log.high_watermark == 1
    world.append()
    world.log.update_config(topic_config(flush_messages=1))
    world.append()
    assert world.log.high_watermark == 2
    world.scheduler.settle()
    assert world.log.high_watermark == 3


# -- a disk that is full, or broken ------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 30, 80])
def test_a_full_disk_cuts_the_short_write_off_and_heals(tmp_path, written):
    world = LogWorld(tmp_path)
    world.append(count=2)
    before = world.path(0, ".log").read_bytes()
    fail_writes(errno.ENOSPC, written)
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            world.append(count=3)
        assert refusal.value.code == KAFKA_STORAGE_ERROR
        assert world.path(0, ".log").read_bytes() == before
    assert (world.log.end_offset, world.log.high_watermark) == (2, 2)
    assert world.log.read(0, 1 << 20) == before
    fail_writes(0)
    assert world.append(count=3) == 2
    world.crash()
    assert world.log.end_offset == 5


def test_a_refused_append_leaves_no_trace_in_the_producer_table(tmp_path):
    world = LogWorld(tmp_path)
    data = batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    fail_writes(errno.ENOSPC)
    with pytest.raises(KafkaError):
        world.append(data)
    fail_writes(0)
    assert world.append(data) == 0
    assert world.append(data) == 0


def test_an_io_error_takes_the_log_offline(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    offline: list[object] = []
    world.log.on_offline = lambda log, error: offline.append(error.errno)
    fail_writes(errno.EIO)
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == KAFKA_STORAGE_ERROR
    fail_writes(0)
    assert offline == [errno.EIO]
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == KAFKA_STORAGE_ERROR


def test_a_really_full_disk(tmp_path):
    with small_disk(tmp_path / "small", 512 << 10) as mount:
        world = LogWorld(mount, topic_config(segment_bytes=100_000, index_interval_bytes=0))
        world.append(size=1_000)
        filler = mount / "filler"
        filler.write_bytes(bytes(200_000))
        refused = 0
        for _ in range(600):  # logs, index pages and new segments all meet the end of the disk
            try:
                world.append(size=700)
            except KafkaError as e:
                assert e.code == KAFKA_STORAGE_ERROR
                refused += 1
        assert refused > 0
        end = world.log.end_offset
        assert sum(1 for _ in world.log.batches(0, end)) == end
        filler.unlink()
        for _ in range(100):
            world.append(size=700)
        assert world.log.end_offset == end + 100
        world.crash()
        assert world.log.end_offset == end + 100
        world.log.close()
