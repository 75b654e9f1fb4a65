"""A log without descriptors or room: what it refuses, what it does later, and that nothing is lost.

Each test makes its shortage at one call; `tests/fuzz/test_shortages.py` makes them anywhere."""

import errno
import logging
import os
import resource
from types import SimpleNamespace

import pytest

from kafkad._native.log.fileio import fail_writes
from kafkad._native.shared.watermarks import FOLLOWER
from kafkad.log import cutting, leader_epochs, log, recovery, rolling, segment_deletion, shortages
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError
from kafkad.protocol.records import build_batch, end_marker
from kafkad.server.log_upkeep import apply_retention
from tests.unit.log_world import LogWorld, batch, idempotent, topic_config


@pytest.fixture(autouse=True)
def nothing_was_logged():
    shortages.forget()
    yield
    fail_writes(0)
    shortages.forget()


class Shortage:
    """`os.<name>` fails with `error` for paths that end in one of `endings`, `times` times."""

    def __init__(self, monkeypatch, name: str, error: int, *endings: str, times: int = 1 << 30) -> None:
        self.left = times
        self.met = 0
        call = getattr(os, name)

        def short(path, *arguments, **named):
            if self.left and isinstance(path, str) and path.endswith(endings or ("",)):
                self.left -= 1
                self.met += 1
                raise OSError(error, os.strerror(error), path)
            return call(path, *arguments, **named)

        monkeypatch.setattr(os, name, short)

    def end(self) -> None:
        self.left = 0


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- flushes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_flush_that_cannot_open_a_file_is_tried_again(tmp_path, monkeypatch, error):
    """REVIEW D1: it took the log, its directory and the broker offline."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200, flush_messages=1))
    world.scheduler.settle()
    acks: list[object] = []
    world.append(size=100)
    world.append(size=100)
    world.log.await_high_watermark(2, acks.append)
    shortage = Shortage(monkeypatch, "open", error)
    world.scheduler.settle()
    world.scheduler.run(100)
    world.scheduler.settle()
    assert shortage.met == 2, "the second try comes after 100 ms"
    world.scheduler.run(100)
    world.scheduler.settle()
    assert shortage.met == 2, "the third after 200 ms more"
    assert (world.log.closed, world.log.high_watermark, acks) == (False, 0, [])
    shortage.end()
    world.scheduler.run(100)
    world.scheduler.settle()
    assert (world.log.high_watermark, world.log.recovery_point, acks) == (2, 2, [None])


def test_the_flush_after_a_shortage_syncs_all_that_the_first_one_would_have(tmp_path, monkeypatch, synced):
    """REVIEW D1."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    world.log.flush()
    synced.clear()
    world.append(size=100)
    world.append(size=100)
    Shortage(monkeypatch, "open", errno.EMFILE, times=1)
    world.scheduler.settle()
    world.scheduler.run(100)
    world.scheduler.settle()
    assert set(synced) >= {
        "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex",
        "00000000000000000001.snapshot", "t-0",
    }  # fmt: skip


def test_a_flush_that_the_loop_waits_for_tries_again_and_then_refuses(tmp_path, monkeypatch):
    """REVIEW D1: Flusher.flush."""
    world = LogWorld(tmp_path)
    world.append()
    short = Shortage(monkeypatch, "open", errno.EMFILE, times=2)
    world.log.flush()
    assert short.met == 2 and world.log.recovery_point == 1
    world.append()
    world.log.roll(world.now_ms)
    short = Shortage(monkeypatch, "open", errno.EMFILE)
    with pytest.raises(KafkaError, match="Too many open files"):
        world.log.flush()
    assert not world.log.closed
    short.end()
    world.log.flush()
    assert world.log.recovery_point == 2


def test_an_fsync_that_fails_is_fatal_whatever_its_errno(tmp_path, monkeypatch):
    """REVIEW D1: the other half."""
    world = LogWorld(tmp_path)
    world.append()
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(KafkaError):
        world.log.flush()
    assert world.log.closed


def test_a_close_in_a_shortage_is_unclean_and_takes_nothing_offline(tmp_path, monkeypatch):
    """REVIEW D1: Log.close. ENOSPC for the snapshot ended in an offline directory."""
    world = LogWorld(tmp_path)
    offline: list[object] = []
    world.log.on_offline = lambda log, error: offline.append(error)
    world.append()
    monkeypatch.setattr(log, "write_snapshot", full)
    with pytest.raises(KafkaError):
        world.log.close()
    assert (offline, world.log.closed) == ([], True)
    monkeypatch.undo()
    world.crash()
    assert world.log.end_offset == 1


# -- rolls -------------------------------------------------------------------------------------------------


def test_a_roll_without_its_snapshot_syncs_the_new_name_before_the_ack(tmp_path, monkeypatch, synced):
    """REVIEW D2: the retry of the append went to the new segment, whose name was not synced."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200, flush_messages=1))
    world.append(size=100)
    world.scheduler.settle()
    synced.clear()
    monkeypatch.setattr(rolling, "write_snapshot", full)
    try:
        world.append(size=100)
    except KafkaError:  # the client tries again
        world.append(size=100)
    world.scheduler.settle()
    assert world.log.high_watermark == 2
    assert {"t-0", "00000000000000000001.log"} <= set(synced)


def test_an_index_is_closed_without_a_descriptor(tmp_path):
    """It kept its zeros; a time index that ends in 1970 had retention remove the segment."""
    world = LogWorld(tmp_path, topic_config(index_interval_bytes=0))
    for i in range(10):
        world.append(timestamp=1_000 + i, size=50)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        world.log.release_idle()
        world.log.release_idle()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert world.path(0, ".timeindex").stat().st_size == 12 * 9
    assert world.path(0, ".index").stat().st_size == 8 * 9
    world.append(timestamp=2_000)
    world.log.roll(world.now_ms)
    assert world.log.native.segment_max_timestamp(0)[0] == 2_000
    for i in range(10):
        assert world.log.offset_for_timestamp(1_000 + i).offset == i


def test_a_roll_that_failed_leaves_no_segment_that_hides_what_comes_later(tmp_path, monkeypatch):
    """Found by the shortage rounds: its empty .log stayed, the old segment grew beyond it, and after a clean
    restart nobody could read what lay there."""
    world = LogWorld(tmp_path)
    world.append()
    shortage = Shortage(monkeypatch, "open", errno.EMFILE, ".timeindex")
    with pytest.raises(KafkaError):
        world.log.roll(world.now_ms)
    shortage.end()
    world.append(timestamp=2_000)
    world.log.roll(world.now_ms)
    world.append(timestamp=3_000)
    world.restart()
    assert [int.from_bytes(data[:8], "big") for data in world.log.batches(0, 3)] == [0, 1, 2]
    assert [base for base, _ in world.log.segments] == [0, 2]


# -- seeks by timestamp ------------------------------------------------------------------------------------


def test_a_time_index_that_could_not_be_opened_is_asked_again(tmp_path):
    """REVIEW D4: the segment was skipped by every seek until a restart."""
    world = LogWorld(tmp_path)
    world.append(timestamp=5_000)
    world.log.roll(world.now_ms)
    world.append(timestamp=9_000)
    world.restart()
    index = world.path(0, ".timeindex")
    index.rename(tmp_path / "away")
    with pytest.raises(KafkaError) as refusal:
        world.log.offset_for_timestamp(4_000)
    assert refusal.value.code == KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        world.log.apply_retention(1 << 50)
    (tmp_path / "away").rename(index)
    assert world.log.offset_for_timestamp(4_000).offset == 0


# -- retention ---------------------------------------------------------------------------------------------


def test_retention_goes_on_when_the_epochs_cannot_be_written(tmp_path, monkeypatch):
    """REVIEW D3: log start had moved, and the files stayed."""
    world = LogWorld(tmp_path, topic_config(retention_bytes=1))
    world.append()
    world.epoch = 3
    world.log.set_leader_epoch(3)
    world.append()
    world.log.roll(world.now_ms)
    world.append()
    monkeypatch.setattr(leader_epochs, "write_file", full)
    assert world.log.apply_retention(world.now_ms) == 1
    assert world.log.log_start_offset == 2
    assert not world.path(0, ".log").exists()
    monkeypatch.undo()
    world.log.flush()
    assert (world.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n3 2\n"


def test_retention_on_a_full_disk_deletes_all_but_the_segment_that_cannot_be_replaced(tmp_path, monkeypatch):
    """REVIEW D3: nothing was deleted when everything was due."""
    world = LogWorld(tmp_path, topic_config(retention_ms=1))
    for _ in range(3):
        world.append(timestamp=1)
        world.log.roll(world.now_ms)
    world.append(timestamp=1)
    shortage = Shortage(monkeypatch, "open", errno.ENOSPC, ".log")
    assert world.log.apply_retention(1 << 50) == 3
    assert [base for base, _ in world.log.segments] == [3]
    shortage.end()
    assert world.log.apply_retention(1 << 50) == 1
    assert world.log.segments == [(4, 0)]


def test_a_segment_that_cannot_be_renamed_is_removed_all_the_same(tmp_path, monkeypatch):
    """REVIEW D11: files that were renamed before the trouble stayed until a restart."""
    world = LogWorld(tmp_path, topic_config(retention_bytes=1, file_delete_delay_ms=0))
    for _ in range(2):
        world.append()
        world.log.roll(world.now_ms)
    world.append()
    Shortage(monkeypatch, "replace", errno.ENOSPC, f"{0:020d}.index")
    assert world.log.apply_retention(world.now_ms) == 2
    world.scheduler.settle()
    assert sorted(name for name in world.names() if name.startswith((f"{0:020d}", f"{1:020d}"))) == []


def test_the_trouble_of_one_log_is_not_the_end_of_retention(tmp_path, monkeypatch):
    """REVIEW D3: no log behind the one in trouble was looked at."""
    worlds = [LogWorld(tmp_path / name, topic_config(retention_bytes=1)) for name in "ab"]
    for world in worlds:
        world.append()
        world.log.roll(world.now_ms)
        world.append()
    broken, whole = (world.log for world in worlds)
    monkeypatch.setattr(segment_deletion, "_remove", lambda log, _: full() if log is broken else None)
    swept: list[bool] = []
    table = SimpleNamespace(release_idle_readers=lambda: swept.append(True))

    class Logs(list):
        pass

    logs = Logs([broken, whole])
    logs.table = table
    list(apply_retention(logs, SimpleNamespace(log_retention_check_interval_ms=1_000), 1_000))
    assert whole.log_start_offset == 1
    assert swept == [True]


# -- after the append --------------------------------------------------------------------------------------


def transactional(**fields):
    return batch(1, producer_id=5, producer_epoch=0, transactional=True, **fields)


def marker(kind: int):
    record = end_marker(kind, 1, timestamp=1_000)
    return build_batch([record], producer_id=5, producer_epoch=0, transactional=True, control=True)


def test_an_epoch_that_cannot_be_written_does_not_fail_the_append(tmp_path, monkeypatch):
    """REVIEW D11: the batch was in the log, and its append an error."""
    world = LogWorld(tmp_path)
    monkeypatch.setattr(leader_epochs, "write_file", full)
    assert world.log.append(batch(), 1_000, epoch=4) == 0
    assert world.log.end_offset == 1
    with pytest.raises(KafkaError):
        world.log.flush()  # the recovery point must not pass what only the file would say later
    assert (world.log.recovery_point, world.log.closed) == (0, False)
    monkeypatch.undo()
    world.log.flush()
    assert world.log.epochs[-1] == (4, 0)
    world.restart(lead=False)
    assert world.log.epochs[-1] == (4, 0)


def test_an_epoch_that_could_not_be_written_is_written_without_another_append(tmp_path, monkeypatch):
    """The next flush could be hours away. Until then other workers refused what followers asked of the
    epochs, and the successor of a killed worker did not know that epoch."""
    world = LogWorld(tmp_path)
    world.append()
    world.scheduler.settle()
    monkeypatch.setattr(leader_epochs, "write_file", full)
    world.log.set_leader_epoch(7)
    world.scheduler.settle()
    assert world.log.leader_epochs.unwritten
    monkeypatch.undo()
    world.scheduler.run(100)
    world.scheduler.settle()
    assert (world.directory / "leader-epoch-checkpoint").read_text().endswith("7 1\n")


@pytest.mark.parametrize("room", [0, 10, 34, 34 + 20])
def test_an_abort_that_finds_no_room_is_refused_whole(tmp_path, room):
    """REVIEW D11. Its index entry comes first and goes again if the marker finds no room. An entry without
    its marker would hide what is committed later; what follows a part of an entry could not be read."""
    world = LogWorld(tmp_path)
    world.log.append(transactional(), 1_000)
    world.log.append(marker(0), 1_000)
    world.log.append(transactional(base_sequence=1), 1_000)
    fail_writes(errno.ENOSPC, room)
    with pytest.raises(KafkaError) as caught:
        world.log.append(marker(0), 1_000)
    fail_writes(0)
    assert caught.value.code == KAFKA_STORAGE_ERROR
    assert (world.log.end_offset, world.log.last_stable_offset) == (3, 2)
    assert (world.directory / f"{0:020d}.txnindex").stat().st_size == 34
    assert [txn.first_offset for txn in world.log.aborted_transactions(0, 3)] == [0]
    assert world.log.append(marker(1), 1_000) == 3
    world.log.append(transactional(base_sequence=2), 1_000)
    world.log.append(marker(0), 1_000)
    assert (world.log.end_offset, world.log.last_stable_offset) == (6, 6)
    assert [txn.first_offset for txn in world.log.aborted_transactions(0, 6)] == [0, 4]


@pytest.mark.parametrize("fully", [False, True])
def test_a_truncation_that_fails_half_way_stops_the_log_until_there_is_room(tmp_path, monkeypatch, fully):
    """REVIEW D11: the next append looked at segments[-1]. Later the log served nothing until a restart, and
    if it was elected, it stayed the leader: nobody was told that its disk is full."""
    world = LogWorld(tmp_path)
    told = []
    world.log.on_short = lambda log, error: told.append(error.errno)
    world.append(count=3)
    world.log.follow(1, 2)
    if fully:
        monkeypatch.setattr(recovery, "create_segment_files", full)
    else:
        monkeypatch.setattr(cutting.Prepared, "install", full)
    with pytest.raises(KafkaError):
        if fully:
            world.log.truncate_fully_and_start_at(7)
        else:
            world.log.truncate_to(1)
    assert world.log.halted and not world.log.ended
    assert told == [errno.ENOSPC]
    assert world.log.size == 0
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        world.log.append(batch(), 1_000, origin="raft", epoch=9)
    assert world.log.native.try_append_run(batch(), 0, 1, 0, 1_000)[0] == KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        world.log.set_leader_epoch(3)
    with pytest.raises(KafkaError):
        world.log.truncate_to(0)
    world.log.follow(2, 3)  # the metadata change meanwhile
    assert world.log.apply_retention(1 << 50) == 0
    world.scheduler.run(100)
    assert world.log.closed
    assert set(told) == {errno.ENOSPC} and len(told) > 1

    monkeypatch.undo()
    world.scheduler.run(60_000)
    world.scheduler.settle()
    assert not world.log.closed and not world.log.halted
    end = 7 if fully else 1
    assert (world.log.log_start_offset, world.log.end_offset) == (end if fully else 0, end)
    assert (world.log.leader_epoch, world.log.native.role, world.log.native.failure) == (2, FOLLOWER, 0)
    world.log.append(batch(base_offset=end, leader_epoch=2), 1_000, origin="replica")
    world.log.set_leader_epoch(4)
    assert world.append() == end + 1
    world.restart(lead=False)
    assert world.log.end_offset == end + 2


def test_a_truncation_between_segments_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Its first try had removed the later segments from memory, and some of their files."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    for sequence in range(0, 10, 2):
        world.append(idempotent(sequence, count=2, size=30))
    world.log.roll(1_000)
    world.log.follow(1, 2)
    bases = [base for base, _ in world.log.segments]
    assert len(bases) > 3
    remove = log.truncation._remove
    removed = []

    def some(its_log, base):
        if removed:
            full()
        removed.append(base)
        remove(its_log, base)

    monkeypatch.setattr(log.truncation, "_remove", some)
    with pytest.raises(KafkaError):
        world.log.truncate_to(2)
    assert removed == bases[-1:]
    monkeypatch.undo()
    world.scheduler.run(100)
    assert world.log.end_offset == 2
    assert [base for base, _ in world.log.segments] == [0, 2]
    assert [name for name in world.names() if name.endswith(".log")] == [f"{0:020d}.log", f"{2:020d}.log"]
    assert [row[2] for row in list(world.log.active_producers())] == [1]
    world.log.set_leader_epoch(2)
    assert world.append(idempotent(2, count=2, size=30)) == 2


def test_a_flush_that_ends_while_a_truncation_waits_for_room_does_not_count(tmp_path, monkeypatch):
    """It has synced the old file of a segment; the recovery point covered its copy, which is not synced."""
    world = LogWorld(tmp_path)
    for _ in range(2):
        world.append(count=3)
    world.log.request_flush()
    world.scheduler.run()
    world.log.follow(1, 2)
    monkeypatch.setattr(cutting.Prepared, "install", full)
    with pytest.raises(KafkaError):
        world.log.truncate_to(3)
    assert world.scheduler.work() == 1
    assert world.log.recovery_point == 0
    monkeypatch.undo()
    world.scheduler.run(100)
    assert (world.log.end_offset, world.log.recovery_point) == (3, 0)
    world.scheduler.settle()
    assert world.log.recovery_point == 3


@pytest.mark.parametrize("then", ["close", "delete", "disk"])
def test_a_log_that_waits_for_room_can_be_closed_deleted_and_lost(tmp_path, monkeypatch, then):
    world = LogWorld(tmp_path)
    world.append(count=3)
    monkeypatch.setattr(cutting.Prepared, "install", full)
    with pytest.raises(KafkaError):
        world.log.truncate_to(1)
    if then == "close":
        with pytest.raises(KafkaError):
            world.log.close()  # no clean mark
    elif then == "delete":
        world.log.move_directory(str(tmp_path / "t-0.x-delete"))
    else:
        offline: list[object] = []
        world.log.on_offline = lambda log, error: offline.append(error.errno)

        def broken(*_, **__):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(cutting.Prepared, "install", broken)
        world.scheduler.run(100)
        assert offline == [errno.EIO]
    monkeypatch.undo()
    world.scheduler.run(60_000)
    assert world.log.closed and world.log.ended


# -- what the operator and the client read -----------------------------------------------------------------


def test_a_full_disk_is_one_line_with_its_directory_partition_and_errno(tmp_path, caplog, monkeypatch):
    """HUNTS U2: there was no line at all, and the client read 'the log could not be written'."""
    caplog.set_level(logging.WARNING, "kafkad.log")
    world = LogWorld(tmp_path)
    world.append()
    fail_writes(errno.ENOSPC)
    for _ in range(1_000):
        code, *_, message = world.log.native.try_append(batch(), 1_000)
        assert code == KAFKA_STORAGE_ERROR
    assert message == "the log could not be written: no space left on device (ENOSPC)"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"t-0 in {tmp_path}: ") and "No space left on device (ENOSPC)" in line
    monkeypatch.setattr(shortages, "INTERVAL_S", 0.0)
    with pytest.raises(KafkaError):
        world.append()
    assert "999 more failures" in caplog.records[-1].getMessage()


def test_a_refused_append_of_the_broker_says_why(tmp_path):
    """HUNTS U2: metadata changes and commits of groups."""
    world = LogWorld(tmp_path)
    fail_writes(errno.ENOSPC)
    with pytest.raises(KafkaError, match="no space left on device"):
        world.log.append(batch(), 1_000)
