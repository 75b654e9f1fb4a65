"""One very large batch: a thread checks it, and writes it ahead of its append."""

import os
import random

import pytest
from reactor_world import NOW_MS, World
from workers_world import Workers

from kafkad._native.log.fileio import fail_writes
from kafkad._native.wire.crc32c import checksum
from kafkad.log import pending_append, rolling
from kafkad.log.pending_append import AppendResult
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.protocol.validation import LARGE_BATCH, InvalidBatch
from tests.unit.log_world import LogWorld, batch, topic_config

SIZE = LARGE_BATCH + 1_000_000
ROOMY = {"max_message_bytes": 100 << 20}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """What is written ahead begins at 2.5 MiB."""
    monkeypatch.setattr(pending_append, "AHEAD_BYTES", LARGE_BATCH + (1 << 19))
    yield
    fail_writes(0)


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path, config=topic_config(**ROOMY))


def large(size=SIZE, records=3, **fields):
    chance = random.Random(size)
    values = [chance.randbytes(size // records) for _ in range(records)]
    return build_batch([Record(None, value, timestamp=1_000 + i) for i, value in enumerate(values)], **fields)


def bases(world):
    return [base for base, _, _ in world.log.native.segment_rows()]


def stored(world):
    return b"".join(world.log.batches(0, world.log.end_offset))


def placed(data, base_offset, epoch=0):
    """As the log stores it."""
    return base_offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def begun(world, data):
    work = world.log.begin_append(data, world.now_ms)
    assert not isinstance(work, AppendResult)
    while work.step() >= 0:
        pass
    return work


# -- the log -----------------------------------------------------------------------------------------------


def test_it_becomes_the_next_segment(world):
    small = batch(2)
    world.append(bytearray(small))
    data = large()
    assert world.append(bytearray(data)) == 2
    assert bases(world) == [0, 2]
    assert world.append(bytearray(small)) == 5
    assert bases(world) == [0, 2], "the segment goes on behind it"
    expected = placed(small, 0) + placed(data, 2) + placed(small, 5)
    assert stored(world) == expected
    world.crash()
    assert stored(world) == expected
    world.restart()
    assert stored(world) == expected


def test_it_becomes_the_active_segments_file_where_that_is_empty(world):
    names = world.names()
    generation = world.log.native.generation
    data = large()
    assert world.append(bytearray(data)) == 0
    assert bases(world) == [0]
    assert world.names() == names
    assert world.log.native.generation == generation + 1, "readers open the file anew"
    assert world.append(batch()) == 3
    assert stored(world).startswith(placed(data, 0))
    world.crash()
    assert stored(world).startswith(placed(data, 0))
    assert world.log.end_offset == 4


def test_one_in_each_segment_and_timestamps(world):
    world.append(bytearray(large()))
    world.log.roll(world.now_ms)
    world.append(bytearray(large()))  # the active one is empty, and is not the first
    assert bases(world) == [0, 3]
    assert stored(world) == placed(large(), 0) + placed(large(), 3)
    assert world.log.offset_for_timestamp(1_001).offset == 1
    world.restart()
    assert world.log.offset_for_timestamp(1_001).offset == 1
    assert world.log.offset_for_max_timestamp().offset == 2


def test_others_append_meanwhile(world):
    world.append(batch(2))
    work = begun(world, bytearray(large()))
    world.append(batch(5))
    result = work.finish(world.now_ms)
    assert (result.base_offset, result.end_offset) == (7, 10)
    assert bases(world) == [0, 7]
    assert [each.base_offset for each in read_batches(stored(world))] == [0, 2, 7]


def test_a_retry_of_it_is_a_duplicate_and_leaves_nothing(world):
    world.append(batch())
    data = large(producer_id=7, producer_epoch=0, base_sequence=0)
    assert world.append(bytearray(data)) == 1
    names = world.names()
    assert world.append(bytearray(data)) == 1
    assert world.names() == names
    assert world.log.end_offset == 4


@pytest.mark.parametrize("active", ["empty", "in use"])
def test_a_wrong_sequence_changes_nothing(world, active):
    if active == "in use":
        world.append(batch())
    world.append(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    if active == "empty":
        world.log.roll(world.now_ms)
    names, end, size = world.names(), world.log.end_offset, world.log.size
    with pytest.raises(InvalidBatch) as refused:
        world.append(large(producer_id=7, producer_epoch=0, base_sequence=9))
    assert refused.value.code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (world.names(), world.log.end_offset, world.log.size) == (names, end, size)


def test_the_segment_rolls_by_itself_when_it_is_full(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(segment_bytes=SIZE + 1000, **ROOMY))
    for _ in range(3):
        world.append(large())
    assert bases(world) == [0, 3, 6]


def test_one_that_is_larger_than_a_segment_is_refused(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(segment_bytes=LARGE_BATCH, **ROOMY))
    names = world.names()
    with pytest.raises(InvalidBatch) as refused:
        world.append(large())
    assert refused.value.code == errors.RECORD_LIST_TOO_LARGE
    assert world.names() == names


def test_one_that_is_larger_than_a_message_may_be_is_refused_at_once(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(max_message_bytes=LARGE_BATCH))
    with pytest.raises(InvalidBatch) as refused:
        world.log.begin_append(large(), world.now_ms)
    assert refused.value.code == errors.MESSAGE_TOO_LARGE


def corrupt(data):
    data[-1] ^= 1
    return data


def lying(data):
    """The header tells of one record more than there are; the CRC is right."""
    data[57:61] = (4).to_bytes(4, "big")
    data[23:27] = (3).to_bytes(4, "big")
    data[17:21] = checksum(bytes(data[21:])).to_bytes(4, "big")
    return data


@pytest.mark.parametrize(
    ("spoil", "code"), [(corrupt, errors.CORRUPT_MESSAGE), (lying, errors.INVALID_RECORD)]
)
def test_a_bad_one_is_refused_and_leaves_nothing(world, spoil, code):
    world.append(batch())
    names = world.names()
    with pytest.raises(InvalidBatch) as refused:
        world.append(spoil(large()))
    assert refused.value.code == code
    assert world.names() == names
    assert world.log.end_offset == 1


def test_bad_records_are_named(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(cleanup_policy=("compact",), **ROOMY))
    keys = [b"k", None, b"k", None]
    data = build_batch([Record(key, bytes(SIZE // 4), timestamp=1_000) for key in keys])
    with pytest.raises(InvalidBatch) as refused:
        world.append(data)
    assert refused.value.code == errors.INVALID_RECORD
    assert [bad >> 1 for bad in refused.value.bad_records] == [1, 3]


@pytest.mark.parametrize("active", ["empty", "in use"])
def test_the_time_of_the_append(tmp_path, active):
    world = LogWorld(tmp_path, config=topic_config(message_timestamp_type="LogAppendTime", **ROOMY))
    if active == "in use":
        world.append(batch())
    world.now_ms = 5_000
    world.append(large())
    *_, last = read_batches(stored(world))
    assert last.is_intact()
    assert (last.max_timestamp, last.attributes & 8) == (5_000, 8)


# -- trouble with the disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 100, LARGE_BATCH, SIZE - 10])
def test_a_disk_that_is_full_while_it_is_written_ahead(world, after):
    world.append(batch())
    names = world.names()
    fail_writes(28, after)  # ENOSPC
    with pytest.raises(KafkaError) as refused:
        world.append(large())
    assert refused.value.code == errors.KAFKA_STORAGE_ERROR
    assert world.names() == names
    fail_writes(0)
    assert world.append(large()) == 1
    assert bases(world) == [0, 1]


def test_a_disk_that_is_full_when_the_offset_is_stamped_in(world):
    world.append(batch())
    work = begun(world, large())
    names = world.names()
    fail_writes(28)
    with pytest.raises(KafkaError):
        work.finish(world.now_ms)
    fail_writes(0)
    assert world.names() == names
    assert world.append(batch()) == 1


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_name_that_is_taken(world, suffix):
    """Left over by whatever: the segment's files are made anew, and the batch is written as others are."""
    world.append(batch())
    world.path(1, suffix).write_bytes(b"left over")
    data = large()
    assert world.append(bytearray(data)) == 1
    assert bases(world) == [0, 1]
    assert stored(world).endswith(placed(data, 1))
    world.crash()
    assert stored(world).endswith(placed(data, 1))


def test_a_file_system_without_unnamed_files(world, monkeypatch):
    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(pending_append, "Files", refuse)
    world.append(batch())
    assert world.append(large()) == 1
    assert bases(world) == [0]


@pytest.mark.parametrize("active", ["empty", "in use"])
def test_a_crash_between_the_name_and_the_append(world, active):
    """The batch is whole and has its offset: the next start finds it. It was not acknowledged."""
    if active == "in use":
        world.append(batch())
    end = world.log.end_offset
    data = large()
    files = begun(world, bytearray(data))._files
    assert rolling.put_in_place(world.log, world.log._next, files, data, world.now_ms)
    world.crash()
    assert world.log.end_offset == end + 3
    assert stored(world).endswith(placed(data, end))


def test_what_is_not_appended_is_gone(world):
    world.append(batch())
    names, free = world.names(), descriptors()
    work = begun(world, large())
    assert descriptors() > free
    work.close()
    del work
    assert (world.names(), descriptors()) == (names, free)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_log_that_is_led_no_longer(world):
    world.append(batch())
    work = begun(world, large())
    names = world.names()
    world.log.resign()
    with pytest.raises(KafkaError) as refused:
        work.finish(world.now_ms)
    assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER
    assert world.names() == names


def test_it_waits_for_the_disk_as_others_do(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(flush_messages=1, **ROOMY))
    world.append(batch())
    world.scheduler.settle()
    assert world.log.high_watermark == 1
    world.append(large())
    assert world.log.high_watermark == 1
    world.scheduler.settle()
    assert world.log.high_watermark == world.log.native.flushed_offset == 4


def test_an_empty_segment_that_waits_for_the_disk(tmp_path):
    world = LogWorld(tmp_path, config=topic_config(flush_messages=1, **ROOMY))
    world.append(large())
    assert world.log.high_watermark == 0
    world.scheduler.settle()
    assert world.log.high_watermark == 3


# -- the reactor -------------------------------------------------------------------------------------------


def produce_stats(world):
    stats = world.reactor.stats()
    return stats["unpack_jobs"], stats["unpacking"]


def codes(answer):
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def test_others_are_served_while_a_thread_works(tmp_path):
    world = World(str(tmp_path))
    try:
        log = world.log("t", **ROOMY)
        client, other = world.connect(), world.connect()
        client.send_produce("t", bytes(large(20 << 20)))
        world.poll_until(lambda: produce_stats(world)[1] == 1)
        for _ in range(3):
            other.send_produce("t", bytes(batch(timestamp=NOW_MS)))
            assert codes(other.receive(messages.ProduceResponse, 9)) == [0]
        assert codes(client.receive(messages.ProduceResponse, 9)) == [0]
        assert log.end_offset == 6
    finally:
        world.close()


@pytest.mark.parametrize("size", [SIZE, 20 << 20])
def test_one_for_another_worker(tmp_path, size):
    """Its owner copies it in a thread: the sender may die, and others use the memory."""
    workers = Workers(2, tmp_path)
    try:
        workers.partition("t", 0, 1, own="own_log", **ROOMY)
        client = workers.connect(0)
        data = bytes(large(size))
        client.send_produce("t", data)
        client.send_produce("t", data)
        for base in (0, 3):
            answer = client.receive(messages.ProduceResponse, 9)
            assert codes(answer) == [0]
            assert answer.responses[0].partition_responses[0].base_offset == base
        assert workers.ask(1, "end_offset", "t", 0) == 6
        assert workers.ask(1, "stats")["unpack_jobs"] == 2
        workers.ask_until(0, "stats", want=lambda stats: stats["buffered_bytes"] == 0)
        found = client.fetch([("t", 0, 0)])
        assert found.responses[0].partitions[0].error_code == 0
    finally:
        workers.close()
