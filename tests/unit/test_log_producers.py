"""Idempotent producers: what is a retry, what a gap, what a zombie; also across restarts and crashes."""

import errno
import os
import time
from unittest.mock import Mock

import pytest

from kafkad._native.log.fileio import fail_writes
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers
from kafkad.log import appending, recovery
from kafkad.log.filenames import SNAPSHOT
from kafkad.log.log import AppendResult
from kafkad.log.producer_state import decode_snapshot, encode_snapshot, load_snapshot
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, KafkaError, Malformed
from kafkad.protocol.records import Record, build_batch, end_marker
from tests.unit.log_world import LogWorld, batch, idempotent, topic_config

SEQUENCE_MAX = 2**31 - 1
DAY_MS = 86_400_000
OUT_OF_ORDER = 45
OLD_EPOCH = 47


def send(world: LogWorld, sequence: int, count: int = 1, **fields) -> AppendResult:
    return world.log.append_client(idempotent(sequence, count, **fields), world.now_ms)


def refusal(world: LogWorld, sequence: int, count: int = 1, **fields) -> int:
    end = world.log.end_offset
    with pytest.raises(KafkaError) as caught:
        send(world, sequence, count, **fields)
    assert world.log.end_offset == end
    return caught.value.code


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path)


def test_a_retry_of_one_of_the_last_five_batches_returns_the_first_offsets(world):
    for i in range(8):
        send(world, 2 * i, 2)
    for i in range(3, 8):
        assert send(world, 2 * i, 2)[:2] == (2 * i, 2 * i + 2)
    assert world.log.end_offset == 16
    assert refusal(world, 2 * 2, 2) == OUT_OF_ORDER


def test_a_duplicate_has_the_same_range_and_epoch(world):
    send(world, 0, 4)
    assert refusal(world, 0, 3) == OUT_OF_ORDER
    assert refusal(world, 1, 3) == OUT_OF_ORDER
    assert send(world, 0, 4, epoch=1).base_offset == 4


def test_a_gap_is_refused(world):
    send(world, 0, 3)
    assert refusal(world, 4) == OUT_OF_ORDER
    assert send(world, 3).base_offset == 3


def test_what_overtook_others_on_their_way_to_a_new_leader_is_to_come_again(world):
    """They were refused before it led. librdkafka answers OUT_OF_ORDER_SEQUENCE_NUMBER with a new producer
    epoch, under which it repeats what is in the log already."""
    send(world, 0, 2)
    send(world, 2, 2)
    world.log.resign()
    world.epoch = 1
    world.log.set_leader_epoch(1)
    assert refusal(world, 6) == NOT_LEADER_OR_FOLLOWER
    assert send(world, 2, 2)[:2] == (2, 4)  # a retry
    assert refusal(world, 0, epoch=-2) == OLD_EPOCH
    assert send(world, 4, 2).base_offset == 4
    assert send(world, 6).base_offset == 6
    world.epoch = 2
    world.log.set_leader_epoch(2)  # it leads already
    assert refusal(world, 9) == NOT_LEADER_OR_FOLLOWER
    world.log.native.expect_order()
    assert refusal(world, 9) == OUT_OF_ORDER


def test_an_old_epoch_is_refused(world):
    send(world, 0, epoch=3)
    assert refusal(world, 1, epoch=2) == OLD_EPOCH
    assert send(world, 1, epoch=3).base_offset == 1


def test_a_new_epoch_begins_at_zero(world):
    send(world, 0)
    assert refusal(world, 1, epoch=1) == OUT_OF_ORDER
    assert send(world, 0, epoch=1).base_offset == 1
    assert refusal(world, 0, epoch=0) == OLD_EPOCH


def test_an_unknown_producer_may_begin_anywhere(world):
    assert send(world, 1234, 2).base_offset == 0
    assert refusal(world, 1234 + 3) == OUT_OF_ORDER
    assert send(world, 1236).base_offset == 2


def test_what_overtook_the_first_batch_of_a_producer_is_to_come_again(world):
    """The first batch was refused because this broker did not lead yet. Were the second one accepted, the
    first one would be out of order for ever, and librdkafka would tell its application that it was
    written."""
    world.log.resign()
    world.log.set_leader_epoch(1)
    world.epoch = 1
    assert refusal(world, 2) == NOT_LEADER_OR_FOLLOWER
    assert send(world, 0, 2).base_offset == 0
    assert refusal(world, 3) == OUT_OF_ORDER  # the log had no data, and the producer is known
    assert send(world, 2).base_offset == 2
    assert send(world, 0, producer_id=8).base_offset == 3
    assert refusal(world, 1, producer_id=9) == NOT_LEADER_OR_FOLLOWER
    world.log.native.expect_order()  # as 30 s later
    assert send(world, 1, producer_id=9).base_offset == 4


@pytest.fixture
def created(tmp_path):
    """A log that has just been created."""
    world = LogWorld(tmp_path)
    world.restart(lead=False)
    world.log.set_leader_epoch(0)
    return world


def test_the_first_batch_that_comes_again_begins_although_it_is_not_at_zero(created):
    """The producer has written to an earlier topic of this name. After a refusal clients send again from the
    lowest sequence on that was not acknowledged."""
    assert refusal(created, 7) == NOT_LEADER_OR_FOLLOWER
    assert refusal(created, 5, 2) == NOT_LEADER_OR_FOLLOWER  # which came another way
    assert refusal(created, 7) == NOT_LEADER_OR_FOLLOWER
    assert refusal(created, 5, producer_id=8) == NOT_LEADER_OR_FOLLOWER
    assert send(created, 5, 2)[:2] == (0, 2)
    assert send(created, 7)[:2] == (2, 3)
    assert send(created, 5, 2)[:2] == (0, 2)
    assert refusal(created, 9) == OUT_OF_ORDER
    assert refusal(created, 5, producer_id=8, epoch=1) == NOT_LEADER_OR_FOLLOWER
    assert send(created, 5, producer_id=8, epoch=1).base_offset == 3


def test_of_many_producers_that_begin_in_the_middle_the_latest_are_known(created):
    for producer_id in range(200):
        assert refusal(created, 5, producer_id=producer_id) == NOT_LEADER_OR_FOLLOWER
    assert send(created, 5, producer_id=199).base_offset == 0
    assert send(created, 5, producer_id=136).base_offset == 1
    assert refusal(created, 5, producer_id=135) == NOT_LEADER_OR_FOLLOWER
    assert send(created, 5, producer_id=135).base_offset == 2


def test_a_batch_that_comes_again_does_not_overtake_one_that_may_be_refused_meanwhile(created):
    """By another leader, or because the disk is full."""
    assert refusal(created, 1) == NOT_LEADER_OR_FOLLOWER
    created.log.native.expect_stragglers(0)
    for _ in range(3):
        assert refusal(created, 1) == NOT_LEADER_OR_FOLLOWER
    assert send(created, 0).base_offset == 0
    assert send(created, 1).base_offset == 1
    created.log.resign()
    created.epoch = 1
    created.log.set_leader_epoch(1)
    for _ in range(3):
        assert refusal(created, 1, producer_id=8) == NOT_LEADER_OR_FOLLOWER
    time.sleep(2.1)
    assert refusal(created, 1, producer_id=9) == NOT_LEADER_OR_FOLLOWER
    for producer_id, offset in ((8, 2), (9, 3)):
        assert send(created, 1, producer_id=producer_id).base_offset == offset


def test_a_producer_that_was_forgotten_for_its_age_goes_on_at_once(world):
    send(world, 0)
    world.log.resign()
    world.log.set_leader_epoch(1)
    world.epoch = 1
    assert world.log.remove_expired_producers(world.now_ms) == 0
    assert refusal(world, 1, producer_id=9) == NOT_LEADER_OR_FOLLOWER
    assert world.log.remove_expired_producers(world.now_ms + 2 * DAY_MS) == 1
    assert send(world, 1).base_offset == 1


@pytest.mark.parametrize("rolls", [False, True])
def test_what_overtook_a_batch_that_a_full_disk_refused_is_to_come_again(tmp_path, monkeypatch, rolls):
    """Were the second batch, which fits, accepted, the first one would be out of order for ever, and
    librdkafka would tell its application that it was written."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    send(world, 0, producer_id=8, size=20)
    world.log.native.expect_order()  # as 2 s later
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as shortage:
        shortage.setattr(recovery, "create_segment_files", Mock(side_effect=full))
        fail_writes(0 if rolls else errno.ENOSPC)
        assert refusal(world, 0, size=100 if rolls else 20) == KAFKA_STORAGE_ERROR
        fail_writes(0)
    assert refusal(world, 1) == NOT_LEADER_OR_FOLLOWER
    assert refusal(world, 2, producer_id=8) == NOT_LEADER_OR_FOLLOWER
    assert send(world, 0).base_offset == 1
    assert send(world, 1).base_offset == 2
    world.log.native.expect_order()
    assert send(world, 1236, producer_id=9).base_offset == 3


@pytest.mark.parametrize("epoch", [-2, -(1 << 15)])
def test_an_epoch_below_the_one_of_no_producer_is_refused(world, epoch):
    """HUNTS N7."""
    assert refusal(world, 0, epoch=epoch) == OLD_EPOCH
    assert send(world, 0, epoch=0).base_offset == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sequences_wrap_to_zero(world, count):
    start = SEQUENCE_MAX - count + 1
    send(world, start, count)
    assert send(world, 0, 3).base_offset == count
    assert send(world, start, count)[:2] == (0, count)
    assert refusal(world, 4) == OUT_OF_ORDER


def test_a_batch_that_itself_wraps(world):
    send(world, SEQUENCE_MAX - 1, 4)
    assert send(world, SEQUENCE_MAX - 1, 4)[:2] == (0, 4)
    assert send(world, 2, 1).base_offset == 4


def test_many_producers_do_not_meet(world):
    for sequence in range(3):
        for producer in range(300):
            send(world, sequence, producer_id=producer * 1_000_003)
    for producer in range(300):
        assert send(world, 2, producer_id=producer * 1_000_003).base_offset == 600 + producer
    assert len(list(world.log.active_producers())) == 300


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_the_last_batch_is_known_after_a_restart(world, how):
    for i in range(5):
        send(world, i)
    send(world, 0, 2, producer_id=99, epoch=4)
    getattr(world, how)()
    assert send(world, 4)[:2] == (4, 5)
    assert send(world, 0, 2, producer_id=99, epoch=4)[:2] == (5, 7)
    assert refusal(world, 6) == OUT_OF_ORDER
    assert refusal(world, 2, producer_id=99, epoch=3) == OLD_EPOCH
    assert send(world, 5).base_offset == 7


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_all_five_are_known_after_a_restart_although_a_snapshot_holds_one(tmp_path, how):
    """The log knows the others, over a roll too: what a client has in flight it may retry."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=250))
    for i in range(8):
        send(world, i, producer_id=1)
        send(world, i, producer_id=2)
    world.scheduler.settle()
    assert len(world.log.segments) > 3
    options = {"recovery_point": world.log.end_offset} if how == "crash" else {}
    getattr(world, how)(**options)
    for i in range(3, 8):
        assert send(world, i, producer_id=1)[:2] == (2 * i, 2 * i + 1)
    assert refusal(world, 2, producer_id=1) == OUT_OF_ORDER
    assert refusal(world, 9, producer_id=2) == OUT_OF_ORDER
    assert send(world, 8, producer_id=2).base_offset == 16
    assert send(world, 4, producer_id=2)[:2] == (9, 10)
    assert send(world, 8, producer_id=1).base_offset == 17


def test_producers_are_known_when_the_only_snapshot_of_a_clean_stop_was_lost(world):
    """A retry taken for a new batch would double it."""
    for i in range(3):
        send(world, i)
    world.log.close()
    world.scheduler.settle()
    for path in world.directory.glob("*" + SNAPSHOT):
        path.write_bytes(b"")
    world.open(clean=True, recovery_point=world.log.recovery_point)
    for i in range(3):
        assert send(world, i).base_offset == i
    assert refusal(world, 5) == OUT_OF_ORDER


def test_producers_are_known_if_a_cleaned_log_ended_in_a_gap_when_it_was_stopped(world):
    """The next start finds the end behind the last batch, and the snapshot is beyond it."""
    send(world, 0)
    world.log.follow(1, 2)
    behind = build_batch([Record(b"k", b"v")], base_offset=3)  # what its leader had cleaned
    world.log.append(behind, 1_000, origin="replica")
    world.log.truncate_to(3)
    assert world.log.end_offset == 3
    world.restart()
    assert world.log.end_offset == 1
    assert send(world, 0).base_offset == 0  # a retry
    assert refusal(world, 2) == OUT_OF_ORDER


def test_after_a_crash_all_five_are_known_when_the_log_itself_is_replayed(world):
    for i in range(5):
        send(world, i)
    world.crash()
    for i in range(5):
        assert send(world, i).base_offset == i


def test_producers_of_older_segments_come_from_the_snapshot_at_the_roll(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=400))
    send(world, 0, producer_id=1)
    for _ in range(20):
        world.append()
    world.scheduler.settle()
    point = world.log.recovery_point
    assert point > 0
    world.crash(recovery_point=point)
    assert send(world, 0, producer_id=1)[:2] == (0, 1)
    for path in world.directory.glob("*" + SNAPSHOT):
        path.write_bytes(b"rubbish")
    world.crash(recovery_point=point)
    assert send(world, 0, producer_id=1)[:2] == (0, 1)


def test_producers_expire_by_the_clock_also_when_a_snapshot_is_loaded(world):
    day = 86_400_000
    send(world, 0, producer_id=1, timestamp=1_000)
    send(world, 0, producer_id=2, timestamp=5_000)
    assert world.log.remove_expired_producers(day + 1_000) == 1
    assert [row[0] for row in list(world.log.active_producers())] == [2]
    world.now_ms = day + 5_000
    world.restart()
    assert list(world.log.active_producers()) == []


def test_the_coordinators_own_batches_are_not_sequenced(world):
    for _ in range(2):
        world.log.append(batch(1, producer_id=5, producer_epoch=1), 1_000)
    with pytest.raises(KafkaError) as caught:
        world.log.append(batch(1, producer_id=5, producer_epoch=0), 1_000)
    assert caught.value.code == OLD_EPOCH


def test_a_transactional_batch_of_a_client_is_refused(world):
    with pytest.raises(KafkaError) as caught:
        world.append(idempotent(0, transactional=True))
    assert caught.value.code in (42, 48)
    assert world.log.end_offset == 0


def test_lso_stays_at_an_open_transaction_and_moves_at_its_end(world):
    world.append(count=3)
    world.log.append(idempotent(0, 2, transactional=True), 1_000)
    world.append(count=1)
    assert (world.log.high_watermark, world.log.last_stable_offset) == (6, 3)
    assert len(world.log.read(0, 1 << 20, below="stable")) == len(batch(3))
    world.crash()
    assert (world.log.high_watermark, world.log.last_stable_offset) == (6, 3)
    world.restart()
    assert (world.log.high_watermark, world.log.last_stable_offset) == (6, 3)
    marker = build_batch(
        [end_marker(0, 3, timestamp=1_000)], producer_id=7, producer_epoch=0, transactional=True, control=True
    )
    world.log.append(marker, 1_000)
    assert (world.log.high_watermark, world.log.last_stable_offset) == (7, 7)
    expected = [(7, 3, 6, 7)]
    assert world.log.aborted_transactions(0, 7) == expected
    world.crash()
    assert world.log.last_stable_offset == 7
    assert world.log.aborted_transactions(0, 7) == expected


def table_of(*rows) -> ProducerTable:
    table = ProducerTable()
    for row in rows:
        table.load(*row)
    return table


def test_a_snapshot_holds_every_producer_once():
    for count in (0, 1, 5, 1000):
        rows = [(i * 977, i % 7, i, 2 * i, i % 3, 9 - i, i - 1, -1 if i % 2 else i) for i in range(count)]
        assert sorted(decode_snapshot(encode_snapshot(table_of(*rows)))) == rows


def test_a_last_batch_that_only_the_snapshot_has_stays_the_last_one():
    """It was cleaned when its producer had a later one, which an unclean election has cut since."""
    table = table_of((7, 0, 4, 11, 1, 1_000, -1, -1))
    replayed = ProducerTable()
    for sequence in range(3):
        replayed.record(7, 0, sequence, 5 + sequence, 5 + sequence, 1_000)
    table.recall(replayed)
    assert table.check(7, 0, 5, 0) == (0, -1, -1)
    assert table.check(7, 0, 3, 1) == (-1, 10, 11)
    assert table.check(7, 0, 3, 0)[0] == OUT_OF_ORDER


def test_snapshot_bytes_are_kafkas():
    data = encode_snapshot(table_of((1, 2, 3, 4, 5, 6, 7, -1)))
    assert data[:2] == b"\0\1"
    assert len(data) == 10 + 46
    assert data[6:] == bytes.fromhex(
        "00000001" "0000000000000001" "0002" "00000003" "0000000000000004" "00000005" "0000000000000006"
        "00000007" "ffffffffffffffff"
    )  # fmt: skip
    assert decode_snapshot(data) == [(1, 2, 3, 4, 5, 6, 7, -1)]


def test_every_damage_of_a_snapshot_is_found(tmp_path):
    data = encode_snapshot(table_of(*((i, 0, i, i, 0, 9, 0, -1) for i in range(3))))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(Malformed):
            decode_snapshot(bytes(damaged))
        with pytest.raises(Malformed):
            decode_snapshot(data[:at])
    path = tmp_path / "s"
    path.write_bytes(data[:-1])
    table = ProducerTable()
    with pytest.raises(Malformed):
        load_snapshot(str(path), table, 0, 1000)
    assert len(table) == 0


def test_a_clean_stop_leaves_a_snapshot_at_the_end(world):
    send(world, 0, 5)
    world.log.close()
    data = world.path(5, SNAPSHOT).read_bytes()
    assert decode_snapshot(data) == [(7, 0, 4, 4, 4, 1_004, -1, -1)]


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 14])
def test_a_retry_of_an_earlier_batch_after_a_restart_reads_the_end_of_the_log_only(
    tmp_path, segment_bytes, monkeypatch
):
    """A segment of a gigabyte was replayed from its beginning, on the loop: all clients waited."""
    monkeypatch.setattr(appending, "RECALLED_ENTRIES", 16)
    monkeypatch.setattr(appending, "RECALLED_ENTRIES_MIN", 1)
    config = topic_config(segment_bytes=segment_bytes, index_interval_bytes=100)
    world = LogWorld(tmp_path, config)
    for sequence in range(1_000):
        send(world, sequence)
    world.restart()
    read: list[tuple[int, int]] = []

    def replay(path, producers, start, end, position=0):
        read.append((start, os.path.getsize(path) - position))
        return replay_producers(path, producers, start, end, position)

    monkeypatch.setattr(appending, "replay_producers", replay)
    for sequence in (995, 998):
        assert send(world, sequence).base_offset == sequence
    assert refusal(world, 1_001) == OUT_OF_ORDER
    assert 5 * len(idempotent(0)) <= sum(size for _, size in read) < 40 * len(idempotent(0))
    assert len(read) == 1 or segment_bytes == 1 << 14


def test_a_retry_after_a_restart_finds_its_batch_in_an_earlier_segment(tmp_path):
    """Behind its entries, the index of an open segment is stretched and has zeros."""
    world = LogWorld(tmp_path)
    for sequence in range(4):
        send(world, sequence)
    world.log.roll(1_000)
    send(world, 4)
    world.restart()
    assert send(world, 5).base_offset == 5
    assert send(world, 1).base_offset == 1
