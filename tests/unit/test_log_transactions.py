"""Transactions in a log: what holds the last stable offset, which markers are taken, which aborts told."""

import os
import random
import shutil
import struct
import time

import pytest

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers
from kafkad._native.wire.crc32c import checksum
from kafkad.log.admission import Admission
from kafkad.log.txn_index import AbortedTxn, encode_entry, read_txn_index
from kafkad.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_SERVER_ERROR,
    KafkaError,
)
from kafkad.protocol.records import Batch, Record, build_batch, end_marker, read_batches
from tests.reference.slow_transactions import aborted, last_stable_offset, markers
from tests.unit.log_world import LogWorld, idempotent, topic_config


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path)


def begin(world: LogWorld, producer_id: int, sequence: int = 0, epoch: int = 0, count: int = 1) -> int:
    data = idempotent(sequence, count, producer_id, epoch, transactional=True)
    return world.log.append(data, 1_000)


def end(
    world: LogWorld, producer_id: int, *, commit: bool = True, epoch: int = 0, by: int = 0, version: int = 0
) -> int:
    return world.log.append_marker(producer_id, epoch, by, commit=commit, version=version, now_ms=1_000)


def refusal(world: LogWorld, producer_id: int, **fields) -> int:
    before = world.log.end_offset, world.log.last_stable_offset, list(world.log.active_producers())
    with pytest.raises(KafkaError) as caught:
        end(world, producer_id, **fields)
    assert (world.log.end_offset, world.log.last_stable_offset, list(world.log.active_producers())) == before
    return caught.value.code


# -- the last stable offset --------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [False, True])
def test_lso_does_not_pass_a_marker_that_is_not_below_the_high_watermark(tmp_path, commit):
    """Power loss may take the marker: its records were shown as committed, and are aborted afterwards."""
    world = LogWorld(tmp_path, topic_config(flush_messages=3))
    begin(world, 7)
    begin(world, 8)
    begin(world, 8, 1)
    world.scheduler.settle()
    assert (world.log.high_watermark, world.log.last_stable_offset) == (3, 0)
    end(world, 7, commit=commit)
    end(world, 8, commit=commit)
    begin(world, 8, 2)
    assert (world.log.end_offset, world.log.high_watermark, world.log.last_stable_offset) == (6, 5, 5)
    begin(world, 8, 3)
    end(world, 8)
    world.log.append_client(idempotent(0, 1, 9), 1_000)
    assert world.log.high_watermark < world.log.end_offset == 9
    assert world.log.last_stable_offset == 5
    world.scheduler.settle()
    assert (world.log.high_watermark, world.log.last_stable_offset) == (9, 9)


def test_truncation_keeps_what_ended_and_opens_what_did_not(tmp_path):
    world = LogWorld(tmp_path, topic_config(flush_messages=1))
    begin(world, 7)
    begin(world, 8)
    world.scheduler.settle()
    end(world, 7)
    end(world, 8, commit=False)
    assert (world.log.high_watermark, world.log.last_stable_offset) == (2, 0)
    world.log.truncate_to(3)
    assert (world.log.high_watermark, world.log.last_stable_offset) == (2, 0)
    world.scheduler.settle()
    world.log.request_flush()
    world.scheduler.settle()
    assert (world.log.high_watermark, world.log.last_stable_offset) == (3, 1)
    assert world.log.aborted_transactions(0, 3) == []


def test_a_snapshot_whose_transaction_begins_beyond_the_log_does_no_harm(world):
    begin(world, 7)
    world.log.close()
    (path,) = world.directory.glob("*.snapshot")
    data = bytearray(path.read_bytes())
    data[-8:] = struct.pack(">q", 1 << 40)
    data[2:6] = struct.pack(">I", checksum(bytes(data[6:])))
    path.write_bytes(data)
    world.open(clean=True, recovery_point=1)
    assert world.log.last_stable_offset == 1
    begin(world, 8)
    assert world.log.last_stable_offset == 1
    end(world, 8)
    end(world, 7, commit=False)
    assert world.log.last_stable_offset == 4


# -- markers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_has_the_bytes_that_build_batch_gives_it(tmp_path, commit, timestamp_type):
    """With LogAppendTime it has the mark of it, as other batches have, and as Kafka's markers have."""
    world = LogWorld(tmp_path, topic_config(message_timestamp_type=timestamp_type))
    begin(world, 1 << 40, epoch=300)
    offset = end(world, 1 << 40, epoch=300, by=70_000, commit=commit)
    expected = build_batch(
        [end_marker(int(commit), 70_000, timestamp=1_000)],
        producer_id=1 << 40, producer_epoch=300, transactional=True, control=True, base_offset=offset,
        leader_epoch=world.log.leader_epoch, timestamp_type=int(timestamp_type == "LogAppendTime"),
    )  # fmt: skip
    written = world.log.read(offset, 1 << 20)
    assert written == bytes(expected)
    assert Batch(written).is_intact()


def test_a_marker_rolls_the_segment_and_is_indexed_in_the_new_one(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    first = begin(world, 7)
    begin(world, 7, 1)
    offset = end(world, 7, commit=False)
    assert [base for base, _ in world.log.segments] == [0, offset]
    assert read_txn_index(str(world.directory / f"{offset:020d}.txnindex")) == [
        (7, first, offset, offset + 1)
    ]
    assert not (world.directory / f"{0:020d}.txnindex").exists()
    assert world.log.aborted_transactions(0, 1) == [(7, first, offset, offset + 1)]
    world.crash()
    assert world.log.aborted_transactions(0, 1) == [(7, first, offset, offset + 1)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("lost", [".index", ".timeindex"])
def test_an_index_that_is_rebuilt_keeps_the_aborts_of_transactions_that_began_before(
    tmp_path, lost, snapshots, clean
):
    world = LogWorld(tmp_path, topic_config(segment_bytes=400))
    expected = []
    for producer in (7, 8):
        first = begin(world, producer)
        for _ in range(12):
            world.append()
        offset = end(world, producer, commit=False)
        expected.append((producer, first, offset, offset + 1))
        for _ in range(12):
            world.append()
    last = world.log.end_offset
    assert world.log.aborted_transactions(0, last) == expected
    world.log.close()
    for path in world.directory.glob("*" + lost):
        path.unlink()
    for path in world.directory.glob("*.snapshot"):
        if not snapshots:
            path.unlink()
    world.open(clean=clean, recovery_point=last)
    assert world.log.aborted_transactions(0, last) == expected


def test_the_marker_of_an_older_coordinator_is_refused(world):
    begin(world, 7)
    end(world, 7, by=5)
    begin(world, 7, 1)
    assert refusal(world, 7, by=4) == TRANSACTION_COORDINATOR_FENCED
    end(world, 7, by=5)
    end(world, 7, by=6)
    assert refusal(world, 8, by=-2) == TRANSACTION_COORDINATOR_FENCED  # a new producer's counts as -1
    end(world, 8, by=-1)


def test_the_epoch_of_a_marker(world):
    """TV0 and TV1 end a transaction under its own epoch, TV2 under the next."""
    begin(world, 7, epoch=3)
    assert refusal(world, 7, epoch=2) == INVALID_PRODUCER_EPOCH
    assert refusal(world, 7, epoch=3, version=2) == INVALID_PRODUCER_EPOCH
    end(world, 7, epoch=4, version=2)
    end(world, 7, epoch=4, version=2)  # again, since its answer was lost (KAFKA-19999)
    assert refusal(world, 7, epoch=3, version=2) == INVALID_PRODUCER_EPOCH
    begin(world, 7, epoch=4)
    assert refusal(world, 7, epoch=4, version=2) == INVALID_PRODUCER_EPOCH
    end(world, 7, epoch=4, version=1)
    begin(world, 9, epoch=32_767)
    end(world, 9, epoch=32_767, version=2)
    assert refusal(world, 10, epoch=-2) == INVALID_PRODUCER_EPOCH
    for lacking in ({"epoch": -1}, {"producer_id": -1}, {"version": -1}):
        assert refusal(world, **{"producer_id": 10, **lacking}) == UNKNOWN_SERVER_ERROR
    end(world, 10, epoch=5)


def test_a_marker_that_raises_the_epoch_forgets_the_sequences(world):
    begin(world, 7)
    end(world, 7, epoch=1, version=2)
    assert begin(world, 7, 0, epoch=1) == 2


@pytest.mark.parametrize("commit", [False, True])
def test_a_batch_with_the_sequence_of_an_ended_transaction_is_no_retry_of_it(world, commit):
    """librdkafka uses the sequence of a batch again that it had sent, and dropped when it aborted. Told that
    the next one is there already, it would commit without it."""

    def send(sequence: int) -> int:
        data = idempotent(sequence, 1, 7, transactional=True)
        return world.log.append_client(data, 1_000, Admission.UNVERIFIED).base_offset

    def refused(sequence: int) -> int:
        with pytest.raises(KafkaError) as caught:
            send(sequence)
        return caught.value.code

    assert [send(0), send(1), send(0), send(1)] == [0, 1, 0, 1]
    end(world, 7, commit=commit)
    assert [refused(0), refused(1)] == [OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    assert [send(2), send(2), send(3), send(2)] == [3, 3, 4, 3]
    assert [refused(0), refused(1)] == [OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    end(world, 7, commit=commit)
    world.restart()
    assert refused(3) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(4) == 6


def test_a_plain_batch_in_an_open_transaction_is_refused(world):
    begin(world, 7)
    with pytest.raises(KafkaError) as caught:
        world.log.append_client(idempotent(1), 1_000)
    assert caught.value.code == INVALID_TXN_STATE
    end(world, 7)
    assert world.log.append_client(idempotent(1), 1_000).base_offset == 2


def test_a_partition_that_is_not_led_takes_no_marker(world):
    begin(world, 7)
    world.log.resign()
    assert refusal(world, 7) == NOT_LEADER_OR_FOLLOWER


# -- after a crash -----------------------------------------------------------------------------------------


def test_an_entry_whose_marker_was_not_written_is_gone_after_a_crash(world):
    """The entry comes first; a process may be killed between the two."""
    begin(world, 7)
    path = world.directory / f"{0:020d}.txnindex"
    path.write_bytes(encode_entry(AbortedTxn(7, 0, 1, 2)))
    world.crash()
    assert world.log.last_stable_offset == 0
    end(world, 7)
    assert world.log.aborted_transactions(0, 2) == []
    assert world.log.native.aborted_end == 0


@pytest.mark.parametrize("entry", [b"\xff" * 34, b"\x7f" * 34, bytes(20)])
def test_a_corrupt_index_does_no_harm_to_the_log(world, entry):
    begin(world, 7)
    end(world, 7, commit=False)
    world.log.close()
    with open(world.directory / f"{0:020d}.txnindex", "ab") as file:
        file.write(entry)
    world.open(clean=True, recovery_point=2)
    assert world.log.native.aborted_end == 2
    assert (7, 0, 1, 2) in world.log.aborted_transactions(0, 2)
    assert (world.log.high_watermark, world.log.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("spread", ["even", "later ones longer", "in bursts", "corrupt"])
def test_a_large_index_is_searched_wherever_its_transactions_are(world, spread):
    """A search guesses by offset where to look; what it finds does not depend on their lengths."""
    chance = random.Random(1)
    begin(world, 7)
    end(world, 7, commit=False)
    entries = []
    last = 0
    for number in range(3_000):
        last += {"even": 11, "later ones longer": 2 + number**2 // 50, "in bursts": 2}.get(spread, 5)
        if spread == "in bursts" and number % 700 == 0:
            last += chance.randrange(1, 1 << 50)
        entries.append(AbortedTxn(number, last - 1, last, last + 1))
    data = b"".join(map(encode_entry, entries))
    if spread == "corrupt":
        data = chance.randbytes(len(data))
    (world.directory / f"{0:020d}.txnindex").write_bytes(data)
    starts = [0, entries[0].last_offset, last - 1, last, last + 1, 1 << 62]
    starts += [chance.choice(entries).last_offset + chance.randrange(-1, 2) for _ in range(300)]
    starts += [chance.randrange(last + 2) for _ in range(100)]
    for start in starts:
        upper = start + chance.choice((1, 20, 20_000, 1 << 61))
        found = world.log.aborted_transactions(start, upper)
        if spread != "corrupt":
            expected = [each for each in entries if each.last_offset >= start and each.first_offset < upper]
            assert found[: len(expected)] == expected
            assert len(found) <= len(expected) + 1  # one more may be told of


# -- against the twin --------------------------------------------------------------------------------------


class Rounds:
    """Random transactions over rolls, flushes, truncations, deletions, crashes and restarts. After each step
    the log says what a walk over all its batches says."""

    def __init__(self, path, seed: int) -> None:
        self.chance = random.Random(seed)
        config = topic_config(
            segment_bytes=self.chance.choice((300, 1_000, 1 << 20)),
            index_interval_bytes=100,
            flush_messages=self.chance.choice((1, 5, 1 << 62)),
        )
        self.world = LogWorld(path, config)
        self.deleted = False  # then a replay does not see where a transaction began
        self.sequences = dict.fromkeys(range(self.chance.choice((1, 4, 20))), 0)

    def data(self) -> None:
        producer = self.chance.choice(list(self.sequences))
        try:
            begin(self.world, producer, self.sequences[producer], count=self.chance.randrange(1, 4))
        except KafkaError as e:
            assert e.code == INVALID_PRODUCER_EPOCH
        self.sequences[producer] += 1

    def plain(self) -> None:
        self.world.append(count=self.chance.randrange(1, 3))

    def marker(self) -> None:
        producer = self.chance.choice(list(self.sequences))
        end(self.world, producer, commit=self.chance.random() < 0.5)

    def settle(self) -> None:
        self.world.scheduler.settle()

    def roll(self) -> None:
        log = self.world.log
        if log.native.active_size:
            log.roll(1_000)

    def truncate(self) -> None:
        log = self.world.log
        if self.deleted:
            return
        self.settle()
        log.truncate_to(self.chance.randrange(log.log_start_offset, log.end_offset + 1))

    def delete(self) -> None:
        log = self.world.log
        self.deleted = True
        log.delete_records(self.chance.randrange(log.high_watermark + 1))

    def reopen(self) -> None:
        if self.deleted:
            return
        self.settle()
        self.chance.choice((self.world.crash, self.world.restart))()

    def check(self) -> None:
        log = self.world.log
        start, bound = log.log_start_offset, log.end_offset
        rows = enumerate(log.native.segment_rows())
        batches = list(read_batches(b"".join(log.native.read_batch(at, 0, row[1]) for at, row in rows)))
        assert log.last_stable_offset == last_stable_offset(batches, log.high_watermark, start)
        first = self.chance.randrange(start, bound + 1)
        upper = self.chance.randrange(first, bound + 1)
        found = log.aborted_transactions(first, upper)
        wanted = [txn for txn in aborted(batches) if txn[2] >= first and txn[1] < upper]
        assert found == wanted
        newest = [txn[2] for txn in aborted(batches)]
        assert log.native.aborted_end >= max(newest, default=-1) + 1

    def run(self, steps: int) -> None:
        often = [self.data, self.data, self.plain, self.marker, self.settle]
        seldom = [self.roll, self.roll, self.roll, self.truncate, self.reopen, self.reopen, self.delete]
        for _ in range(steps):
            self.chance.choice(seldom if self.chance.random() < 0.08 else often)()
            self.check()


@pytest.mark.parametrize("seed", range(40))
def test_random_transactions_against_the_twin(tmp_path, seed):
    Rounds(tmp_path, seed).run(80)


def test_one_transaction_stays_open_while_many_others_end(world):
    """The list of transactions shrinks behind an open head: 100,000 ends take no memory and no time each."""
    begin(world, 1)
    for n in range(3_000):
        begin(world, 2, n)
        end(world, 2, commit=n % 1_000 != 0)
    assert world.log.last_stable_offset == 0
    assert [txn.first_offset for txn in world.log.aborted_transactions(0, 1)] == []
    assert world.log.native.open_transactions <= 16
    end(world, 1)
    assert world.log.last_stable_offset == world.log.end_offset
    assert len(world.log.aborted_transactions(0, world.log.end_offset)) == 3
    assert markers(Batch(data) for data in world.log.batches(0, world.log.end_offset)) == 3_001


def test_replaying_markers_takes_no_longer_beside_many_idle_producers(world):
    """Each of them looked at the whole table."""
    for n in range(1_500):
        begin(world, 1, n)
        end(world, 1, commit=False)
    path = str(world.directory / f"{0:020d}.log")

    def seconds(idle: int) -> float:
        table = ProducerTable()
        for producer in range(2, 2 + idle):
            table.record(producer, 0, 0, 0, 0, 0)
        began = time.process_time()
        ended = replay_producers(path, table, 0, world.log.end_offset)
        assert len(ended) == 1_500 and ended[-1] == (1, 2_998, 2_999, 3_000, True)
        return time.process_time() - began

    few = min(seconds(0) for _ in range(5))
    assert min(seconds(40_000) for _ in range(5)) < 10 * few + 0.005


def test_a_directory_without_its_index_gets_it_again(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=300))
    for n in range(10):
        begin(world, n)
        end(world, n, commit=n % 2 == 0)
    before = world.log.aborted_transactions(0, 20)
    assert len(before) == 5
    copy = tmp_path / "copy"
    shutil.copytree(world.directory, copy / "t-0")
    for path in (copy / "t-0").glob("*.txnindex"):
        os.unlink(path)
    again = LogWorld(copy)
    again.crash(recovery_point=0)
    assert again.log.aborted_transactions(0, 20) == before


def test_the_aborted_transactions_of_any_range_of_a_long_index_are_told(world):
    """There are more than are read at once, and they overlap."""
    chance = random.Random(3)
    sequences = dict.fromkeys(range(700), 0)
    for _ in range(4):
        for producer_id in chance.sample(range(700), 700):
            begin(world, producer_id, sequences[producer_id])
            sequences[producer_id] += 1
        for producer_id in chance.sample(range(700), 700):
            end(world, producer_id, commit=chance.random() < 0.1)
    log_end = world.log.end_offset
    known = world.log.aborted_transactions(0, log_end)
    assert len(known) > 2_000
    for _ in range(300):
        start, upper = sorted(chance.choices(range(log_end), k=2))
        told = world.log.aborted_transactions(start, upper)
        assert told == [txn for txn in known if txn.last_offset >= start and txn.first_offset < upper]


@pytest.mark.parametrize("seed", range(5))
def test_readers_that_follow_an_index_of_aborted_transactions_get_all_of_them(world, seed):
    """A search begins where an earlier one ended. Several readers search at once, in a file that changes."""
    chance = random.Random(seed)
    begin(world, 7)
    end(world, 7, commit=False)
    path = world.directory / f"{0:020d}.txnindex"
    entries: list[AbortedTxn] = []
    starts = [0] * 6  # of the readers; more than are remembered
    steps = [1, 30, 300, 3_000, 9_000, 40_000]
    for number in range(600):
        if number % 60 == 0:  # another number of transactions, some of them open for long, or none
            entries, last = [], 0
            for producer_id in range(chance.choice((0, 10, 300, 4_000))):
                last += chance.randrange(1, chance.choice((3, 3, 40)))
                first = max(0, last - chance.choice((1, 1, 5, 500)))
                entries.append(AbortedTxn(producer_id, first, last, max(0, last - chance.randrange(60))))
            path.write_bytes(b"".join(map(encode_entry, entries)))
            end_offset = last + 2
        reader = chance.randrange(len(starts))
        start = starts[reader]
        upper = start + 1 + chance.randrange(steps[reader])
        found = world.log.aborted_transactions(start, upper)
        expected = [txn for txn in entries if txn.last_offset >= start and txn.first_offset < upper]
        read = (txn for txn in entries if txn.last_offset >= start)
        last_read = next((txn for txn in read if txn.last_stable_offset >= upper), None)
        if last_read:  # in an intact log, later ones begin at or after that last stable offset
            expected = [txn for txn in expected if txn.last_offset <= last_read.last_offset]
        assert found == expected
        starts[reader] = max(start + 1, upper - chance.randrange(10)) if upper < end_offset else 0


def reads() -> int:
    """System calls of this thread that read, with those of this function."""
    with open("/proc/thread-self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscr"))


def test_a_reader_that_follows_an_index_of_aborted_transactions_reads_it_once(world):
    """It took five reads, of parts that overlap, for each answer."""
    begin(world, 7)
    end(world, 7, commit=False)
    entries = [
        AbortedTxn(number, 11 * number, 11 * number + 10, 11 * number + 11) for number in range(20_000)
    ]
    (world.directory / f"{0:020d}.txnindex").write_bytes(b"".join(map(encode_entry, entries)))
    world.log.aborted_transactions(50_000, 59_000)
    of_reads = reads()
    of_reads = reads() - of_reads
    for start in range(58_990, 200_000, 8_990):
        before = reads()
        found = world.log.aborted_transactions(start, start + 9_000)
        assert reads() - before - of_reads == 1
        assert found == [
            txn for txn in entries if txn.last_offset >= start and txn.first_offset < start + 9_000
        ]


@pytest.mark.parametrize("commit", [False, True])
def test_the_largest_timestamp_is_not_told_of_above_the_last_stable_offset(world, commit):
    """As in Kafka: the record may be aborted, and no other one takes its place."""
    world.append(timestamp=2_000)
    begin(world, 7)
    world.append(timestamp=3_000)
    assert world.log.offset_for_max_timestamp()[:2] == (3_000, 2)
    assert world.log.offset_for_max_timestamp(isolation=1) is None
    end(world, 7, commit=commit)
    assert world.log.offset_for_max_timestamp(isolation=1)[:2] == (3_000, 2)


def test_the_largest_timestamp_is_not_told_of_above_the_high_watermark(tmp_path):
    """A record that only the leader has may vanish."""
    world = LogWorld(tmp_path, topic_config(flush_messages=3))
    for timestamp in (2_000, 3_000, 4_000, 5_000):
        world.append(timestamp=timestamp)
    assert world.log.high_watermark < world.log.end_offset
    assert world.log.offset_for_max_timestamp() is None
    world.log.flush()
    assert world.log.offset_for_max_timestamp()[:2] == (5_000, 3)


def test_the_search_for_the_largest_timestamp_begins_again_if_segments_are_deleted(tmp_path):
    """It takes steps: a log of thousands of segments has as many time indexes to open."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=100))
    times = [5_000, *range(1_000, 1_039), 4_000, *range(1_000, 1_040)]
    for timestamp in times:
        world.append(timestamp=timestamp)
    world.restart()
    assert world.log.native.count == len(times)
    search = world.log.seek_max_timestamp()
    assert next(search) is None
    world.log.delete_records(1)
    assert world.log.apply_retention(1_000) == 1
    steps = 1
    try:
        while True:
            next(search)
            steps += 1
    except StopIteration as found:
        assert found.value[:2] == (4_000, 40)
    assert steps > 5


# -- logs that lose their first segments ---------------------------------------------------------------------


def test_a_log_that_begins_anew_forgets_producers_and_transactions_of_before(world):
    """A follower that was down while its leader deleted what follows its end: the ends of these transactions,
    and later sequence numbers, are not in its log. As a leader it refused producers, and its last stable
    offset stayed."""
    begin(world, 7)
    world.append(idempotent(0, producer_id=8))
    world.restart(lead=False)
    assert world.path(2, ".snapshot").exists()
    world.log.follow(1, 2)
    world.log.truncate_fully_and_start_at(50)
    assert not list(world.directory.glob("*.snapshot"))
    assert list(world.log.active_producers()) == []
    world.log.append(build_batch([Record(None, b"x")], base_offset=50), 1_000, origin="replica")
    world.log.set_leader_epoch(2)
    world.log.native.expect_order()
    assert world.log.last_stable_offset == world.log.high_watermark == 51
    assert world.append(idempotent(9, producer_id=8)) == 51


@pytest.mark.parametrize("how", ["crashed", "stopped", "cut"])
def test_a_snapshot_of_before_the_first_segment_is_not_used(world, how):
    """One that a stop left within a segment stays when the segment goes. It has transactions as open that
    ended behind it."""
    begin(world, 7)
    world.restart()
    old = world.path(1, ".snapshot").read_bytes()
    end(world, 7)
    world.append()
    world.log.roll(1_000)
    world.append(idempotent(0, producer_id=8))
    world.append()
    world.log.delete_records(3)
    world.log.apply_retention(1_000)
    world.scheduler.settle()
    if how == "stopped":
        world.log.close()
        world.path(5, ".snapshot").unlink()
    world.path(3, ".snapshot").write_bytes(b"")
    world.path(1, ".snapshot").write_bytes(old)
    if how == "cut":
        world.log.truncate_to(4)
    elif how == "stopped":
        world.open(clean=True, recovery_point=5, log_start_offset=3)
    else:
        world.crash(log_start_offset=3)
    assert [row[:3] for row in world.log.active_producers()] == [(8, 0, 0)]
    assert world.log.last_stable_offset == world.log.high_watermark == world.log.end_offset


def test_a_log_that_is_cut_to_its_beginning_knows_the_producers_of_before(world):
    begin(world, 7)
    world.append(idempotent(0, producer_id=8))
    world.log.roll(1_000)
    world.log.delete_records(2)
    world.log.apply_retention(1_000)
    world.append(idempotent(1, producer_id=8))
    world.log.truncate_to(2)
    assert world.append(idempotent(0, producer_id=8)) == 1  # a retry
    assert world.append(idempotent(1, producer_id=8)) == 2
    assert [row[7] for row in world.log.active_producers() if row[0] == 7] == [0]
