"""Appends, rolls, indexes and reads, against the slow twin."""

import os
import random

import pytest

from kafkad.log.offset_index import read_offset_index
from kafkad.log.time_index import read_time_index
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch
from tests.reference.slow_log import SlowLog
from tests.unit.log_world import LogWorld, batch, topic_config


def stored(world: LogWorld, base: int) -> bytes:
    return next(world.log.batches(base, world.log.end_offset))


def check_files(world: LogWorld, slow: SlowLog, closed: bool) -> None:
    assert world.log.segments == [(segment.base, len(segment.data)) for segment in slow.segments]
    for at, segment in enumerate(slow.segments):
        final = closed or at < len(slow.segments) - 1
        assert world.path(segment.base, ".log").read_bytes() == segment.data
        assert (
            read_offset_index(str(world.path(segment.base, ".index")), segment.base) == segment.offset_entries
        )
        times = segment.final_time_entries() if final else segment.time_entries
        assert read_time_index(str(world.path(segment.base, ".timeindex")), segment.base) == times
        if final:
            assert world.path(segment.base, ".index").stat().st_size == 8 * len(segment.offset_entries)
            assert world.path(segment.base, ".timeindex").stat().st_size == 12 * len(times)


@pytest.mark.parametrize("seed", range(12))
def test_files_and_reads_are_those_of_the_slow_twin(tmp_path, seed):
    chance = random.Random(seed)
    segment_bytes = chance.choice([2_000, 9_000, 60_000])
    rules = {
        "segment_bytes": segment_bytes,
        "index_interval_bytes": chance.choice([0, 300, 4096]),
        "segment_index_bytes": chance.choice([60, 400, 10 << 20]),
        "segment_ms": chance.choice([500, 1 << 60]),
    }
    world = LogWorld(tmp_path, topic_config(**rules))
    slow = SlowLog(
        segment_bytes=segment_bytes,
        index_interval=rules["index_interval_bytes"],
        index_bytes=rules["segment_index_bytes"],
        segment_ms=rules["segment_ms"],
    )
    clock = 1_000
    for _ in range(150):
        clock += chance.randrange(-50, 60)
        base = world.append(
            batch(chance.randrange(1, 9), timestamp=max(0, clock), size=chance.randrange(0, 200))
        )
        slow.append(stored(world, base))
        assert world.log.end_offset == world.log.high_watermark == slow.end
    check_files(world, slow, closed=False)

    def check_reads() -> None:
        start = world.log.log_start_offset
        for _ in range(60):
            offset = chance.randrange(start, slow.end)
            max_bytes = chance.choice([1, 100, 700, 5_000, 1 << 20])
            for at_least_one in (True, False):
                code, _, _, _, data = world.log.native.try_read(offset, max_bytes, at_least_one)
                assert code == 0
                assert data == slow.read(offset, max_bytes, at_least_one)
            timestamp = chance.randrange(0, clock + 200)
            found = world.log.offset_for_timestamp(timestamp)
            assert (found and found[:2]) == slow.offset_for_timestamp(timestamp, start)
        largest = world.log.offset_for_max_timestamp()
        assert largest is not None
        assert largest.timestamp == slow.max_timestamp()

    check_reads()
    world.restart()
    assert world.log.high_watermark == slow.end
    check_files(world, slow, closed=True)
    check_reads()
    world.crash()
    check_reads()
    check_files(world, slow, closed=True)


def test_an_offset_outside_of_the_log_is_refused(tmp_path):
    world = LogWorld(tmp_path)
    world.append(count=3)
    assert world.log.native.try_read(3, 100)[0] == 0
    assert world.log.native.try_read(3, 100)[4] == b""
    assert world.log.native.try_read(4, 100)[0] == 1
    assert world.log.native.try_read(-1, 100)[0] == 1


def test_a_log_that_is_not_led_answers_its_reason(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    world.log.resign()
    assert world.log.native.try_read(0, 100)[0] == 6
    with pytest.raises(KafkaError) as refusal:
        world.append()
    assert refusal.value.code == 6


def test_a_fetch_of_another_leader_epoch_is_fenced(tmp_path):
    world = LogWorld(tmp_path, epoch=5)
    world.append()
    assert world.log.native.try_read(0, 100, True, 0, 5)[0] == 0
    assert world.log.native.try_read(0, 100, True, 0, 4)[0] == 74
    assert world.log.native.try_read(0, 100, True, 0, 6)[0] == 75


def test_offsets_and_leader_epoch_are_stamped_in(tmp_path):
    world = LogWorld(tmp_path, epoch=9)
    world.append(count=4)
    world.append(count=2)
    data = stored(world, 4)
    assert int.from_bytes(data[:8], "big") == 4
    assert int.from_bytes(data[12:16], "big") == 9


def test_a_batch_larger_than_a_segment_is_refused(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=500))
    with pytest.raises(KafkaError) as refusal:
        world.append(size=600)
    assert refusal.value.code == 18


def test_the_relative_offset_never_passes_31_bits(tmp_path):
    world = LogWorld(tmp_path)
    first = batch(1)
    first[:8] = (0).to_bytes(8, "big")
    world.log.append(first, 1_000, origin="replica")
    far = batch(1)
    far[:8] = (1 << 31).to_bytes(8, "big")
    assert world.log.append(far, 1_000, origin="replica") == 1 << 31
    assert [base for base, _ in world.log.segments] == [0, 1 << 31]
    assert world.log.native.try_read(1, 1000, True, 2)[4] == bytes(far)


def test_holes_are_read_over(tmp_path):
    world = LogWorld(tmp_path, topic_config(index_interval_bytes=0))
    chance = random.Random(3)
    bases, offset = [], 0
    for _ in range(60):
        offset += chance.randrange(0, 50)
        data = batch(chance.randrange(1, 4))
        data[:8] = offset.to_bytes(8, "big")
        world.log.append(data, 1_000, origin="replica")
        bases.append((offset, world.log.end_offset - 1, bytes(data)))
        offset = world.log.end_offset

    def check() -> None:
        for asked in range(world.log.end_offset):
            expected = next(data for base, last, data in bases if last >= asked)
            assert world.log.native.try_read(asked, 1)[4] == expected

    check()
    world.crash()
    check()


def test_records_below_a_slow_high_watermark_only(tmp_path):
    world = LogWorld(tmp_path)
    world.log.native.follows_end = False
    for _ in range(5):
        world.append(count=2)
    assert world.log.high_watermark == 0
    assert world.log.read(0, 1 << 20) == b""
    world.log.native.advance_high_watermark(4)
    assert len(world.log.read(0, 1 << 20)) == 2 * len(stored(world, 0))
    assert world.log.read(4, 1 << 20) == b""
    assert world.log.offset_for_timestamp(0).offset == 0
    assert world.log.latest().offset == 4
    assert not world.log.native.advance_high_watermark(2)
    assert world.log.high_watermark == 4


def test_idle_files_are_closed_and_opened_again(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=300))
    for _ in range(20):
        world.append(count=2)
    world.scheduler.settle()
    expected = world.log.read(0, 1 << 20)
    world.log.release_idle()
    assert world.log.release_idle() > 0
    assert world.log.release_idle() == 0
    assert world.log.read(0, 1 << 20) == expected


@pytest.mark.parametrize("what", ["offset", "time"])
def test_an_index_that_the_disk_cannot_read_ends_no_process(tmp_path, what):
    """A mapped page that cannot be read is a SIGBUS, as one beyond the end of the file."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=20_000, index_interval_bytes=0))
    for number in range(300):
        world.append(batch(timestamp=1_000 + number, size=20))
    world.scheduler.settle()
    world.restart()
    log = world.log
    assert len(log.segments) > 1
    assert log.offset_for_timestamp(1_005).offset == 5  # both indexes are mapped
    for suffix in (".index", ".timeindex"):
        os.truncate(world.path(0, suffix), 0)
    if what == "offset":
        assert len(log.read(100, 1)) == len(batch(size=20))
    else:
        assert log.offset_for_timestamp(1_100).offset == 100


def test_log_append_time_is_reported(tmp_path):
    world = LogWorld(tmp_path, topic_config(message_timestamp_type="LogAppendTime"))
    world.now_ms = 77_000
    result = world.log.append_client(batch(3, timestamp=5), world.now_ms)
    assert result.append_time_ms == 77_000
    assert world.log.offset_for_timestamp(77_000).offset == 0


@pytest.mark.parametrize("compression", [0, 1])
def test_log_append_time_survives_rolls(tmp_path, compression):
    """The append that asks for a roll has marked the batch already: it must not be refused for the mark when
    it comes again."""
    config = topic_config(segment_bytes=150, message_timestamp_type="LogAppendTime")
    world = LogWorld(tmp_path, config)
    for number in range(4):
        assert world.append(batch(timestamp=5, size=50, compression=compression)) == number
    assert len(world.log.segments) == 4


def test_compressed_batches_take_the_slow_path_and_arrive(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=700))
    for codec in range(5):
        world.append(batch(5, size=100, compression=codec))
    assert world.log.end_offset == 25
    assert sum(len(batch.records()) for batch in read_all(world)) == 25


def read_all(world: LogWorld):
    from kafkad.protocol.records import read_batches

    for data in world.log.batches(0, world.log.end_offset):
        yield from read_batches(data)


def test_an_idle_active_segment_is_closed_too_and_goes_on(tmp_path):
    world = LogWorld(tmp_path, topic_config(index_interval_bytes=100))
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        world.append(count=2, timestamp=1_000 + i)
        world.log.release_idle()
        world.log.release_idle()
        assert len(os.listdir("/proc/self/fd")) <= before
    assert world.log.end_offset == 40
    assert len(list(world.log.batches(0, 40))) == 20
    index = world.path(0, ".index").read_bytes()
    world.crash()
    world.log.close()
    assert [world.log.native.segment_rows()[0][0], len(index) % 8] == [0, 0]


@pytest.mark.parametrize("size", [4, 8, 12, 20, 24, 36])
def test_tiny_indexes_roll_and_serve(tmp_path, size):
    world = LogWorld(tmp_path, topic_config(index_interval_bytes=0, segment_index_bytes=size))
    for _ in range(20):
        world.append(count=2)
    world.scheduler.settle()
    assert len(list(world.log.batches(0, 40))) == 20
    world.crash()
    assert world.log.end_offset == 40
    world.append()


def test_lz4_is_fast_at_its_default_level(tmp_path):
    """As in Kafka, where level 9 means the compressor that has no level."""
    chance = random.Random(3)
    words = [chance.randbytes(4).hex() for _ in range(50)]
    value = " ".join(chance.choices(words, k=4000)).encode()
    sizes = []
    for level in (9, 8, 10):
        world = LogWorld(
            tmp_path / str(level), topic_config(compression_type="lz4", compression_lz4_level=level)
        )
        world.log.append_client(build_batch([Record(None, value, timestamp=1_000)]), 1_000)
        sizes.append(len(stored(world, 0)))
    fast, *slow = sizes
    assert fast > 1.05 * max(slow)
