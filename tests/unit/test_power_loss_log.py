"""What the power loss simulation found in the log, each as the smallest case."""

import os

import pytest

from kafkad.log import pending_append
from kafkad.log.checkpoints import make_directory
from kafkad.protocol.records import build_batch, end_marker
from tests.unit.log_world import LogWorld, batch, topic_config


def three_segments(tmp_path, **config) -> LogWorld:
    """Batches of one record at 0 to 5, in segments of two."""
    world = LogWorld(tmp_path, topic_config(**config))
    for offset in range(6):
        if offset in (2, 4):
            world.log.roll(world.now_ms)
        world.append()
    return world


def halve(path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_a_segment_behind_one_that_lost_its_end_is_removed(tmp_path):
    world = three_segments(tmp_path)
    halve(world.path(2, ".log"))  # at a batch's border: nothing in the file itself is wrong
    world.crash()
    assert world.log.end_offset == 3
    assert [name for name in world.names() if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 2)
    ]
    assert [world.append() for _ in range(2)] == [3, 4]


def test_a_compacted_log_may_have_gaps_between_its_segments(tmp_path):
    world = three_segments(tmp_path)
    halve(world.path(2, ".log"))
    world.config = topic_config(cleanup_policy=("compact",))
    world.crash()
    assert world.log.end_offset == 6


def test_a_removed_segment_that_comes_back_is_removed_again(tmp_path):
    """It was cut off, others were appended in its place, and its removal was lost with the power."""
    world = three_segments(tmp_path)
    kept = {suffix: world.path(4, suffix).read_bytes() for suffix in (".log", ".index", ".timeindex")}
    world.log.truncate_to(3)
    assert [world.append() for _ in range(3)] == [3, 4, 5]
    for suffix, data in kept.items():
        world.path(4, suffix).write_bytes(data)
    world.crash()
    assert world.log.end_offset == 6
    assert world.log.segments[-1][0] == 2


def test_the_name_of_a_batch_that_was_written_ahead_is_on_the_disk_before_it_counts(
    tmp_path, synced, monkeypatch
):
    """Its file takes the place of the active segment's, which was empty."""
    monkeypatch.setattr(pending_append, "AHEAD_BYTES", 3 << 20)
    world = LogWorld(tmp_path, topic_config(flush_messages=1, max_message_bytes=10 << 20))
    world.scheduler.settle()
    synced.clear()
    world.append(size=4 << 20)
    assert world.log.high_watermark == 0
    world.scheduler.settle()
    assert world.log.high_watermark == 1
    assert "t-0" in synced


def test_after_a_kill_the_first_flush_takes_names_along(tmp_path, synced):
    """The one that was killed may have made files whose names are not on the disk yet."""
    world = three_segments(tmp_path, flush_messages=1)
    synced.clear()
    world.crash()
    assert {"t-0", tmp_path.name} <= set(synced)
    assert world.log.high_watermark == 6


@pytest.mark.parametrize("flush_messages", [1, (1 << 63) - 1])
def test_with_flushes_on_a_deleted_segment_does_not_come_back(tmp_path, synced, flush_messages):
    world = three_segments(tmp_path, retention_bytes=100, flush_messages=flush_messages)
    world.scheduler.settle()
    synced.clear()
    world.log.keep_log_start = lambda log, done: kept.append(log.start_to_keep) or done(None)
    kept: list[int] = []
    before = world.log.log_start_offset
    assert world.log.apply_retention(world.now_ms) > 0
    assert world.log.log_start_offset > before and synced == []
    assert kept == ([world.log.log_start_offset] if flush_messages == 1 else [])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [b"", bytes(12)])
def test_leader_epochs_whose_file_was_lost_are_found_in_the_batches(tmp_path, clean, damage):
    world = LogWorld(tmp_path)
    for epoch in (3, 5, 9):
        world.epoch = epoch
        world.log.set_leader_epoch(epoch)
        world.append(batch(2))
        world.log.roll(world.now_ms)
    world.append()
    world.log.close()
    assert world.log.epochs == [(3, 0), (5, 2), (9, 4)]
    (world.directory / "leader-epoch-checkpoint").write_bytes(damage)
    world.open(clean=clean, recovery_point=world.log.recovery_point)
    assert world.log.epochs == [(3, 0), (5, 2), (9, 4)]


def test_the_name_of_the_epoch_file_is_synced_with_the_next_flush(tmp_path, synced):
    world = LogWorld(tmp_path, topic_config(flush_messages=1))
    world.append()
    world.scheduler.settle()
    world.log.set_leader_epoch(7)
    synced.clear()
    world.append()
    world.scheduler.settle()
    assert {"leader-epoch-checkpoint", "t-0"} <= set(synced)


def test_a_made_directory_is_synced_into_its_parents(tmp_path, synced):
    make_directory(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.name, "a"]
    make_directory(str(tmp_path / "a" / "b"))
    assert len(synced) == 2


@pytest.mark.parametrize("what", ["recovery", "truncation"])
def test_an_index_of_aborted_transactions_that_was_written_anew_is_synced(tmp_path, synced, what):
    """The recovery point moved beyond its segment, and power loss left it empty: aborted records were served
    to consumers of committed data."""
    world = LogWorld(tmp_path, topic_config(flush_messages=1))
    for producer in (5, 6):
        data = batch(1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        world.log.append(data, world.now_ms)
        abort = end_marker(0, 1, timestamp=1_000)
        world.log.append(
            build_batch([abort], producer_id=producer, producer_epoch=0, transactional=True, control=True),
            world.now_ms,
        )
    world.scheduler.settle()
    assert len(world.log.aborted_transactions(0, 4)) == 2
    synced.clear()
    if what == "recovery":
        world.crash()
    else:
        world.log.truncate_to(2)
        world.log.request_flush()
        world.append()
    world.scheduler.settle()
    assert f"{0:020d}.txnindex" in synced
