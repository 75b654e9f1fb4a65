"""Logs that hold messages of magic 0 and 1, as brokers of before Kafka 3.0 left them: read and written on."""

import pytest

from kafkad.log.down_conversion import DownConversion
from kafkad.protocol import compression as codecs
from kafkad.protocol.legacy_records import read_entries
from tests.reference.message_sets import message_set, wrapper
from tests.unit.log_world import LogWorld, batch, topic_config

SETS = 60


def old_log(magic, codec=None):
    """(bytes of a segment, timestamp of each offset)."""
    data, times = b"", []
    for number in range(SETS):
        base = len(times)
        rows = [(b"k", b"v" * 50, 1_000 + 10 * (base + each)) for each in range(1 + number % 5)]
        times += [time for *_, time in rows]
        its = number % 4 if codec is None else codec
        if its == codecs.NONE:
            data += message_set(magic, rows, base)
        else:
            inner = message_set(magic, rows, 0 if magic else base)
            data += wrapper(magic, its, inner, offset=len(times) - 1, timestamp=times[-1])
    return data, times


@pytest.fixture(params=[0, 1])
def magic(request):
    return request.param


@pytest.fixture
def world(tmp_path, magic):
    data, times = old_log(magic)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(data)
    world = LogWorld(tmp_path, topic_config(index_interval_bytes=200))
    assert world.log.end_offset == len(times)
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size == len(data)
    return world


def test_each_offset_is_found(world):
    for offset in range(world.log.end_offset):
        first = next(read_entries(world.log.read(offset, 300)))
        assert offset in [record.offset for record in first.records()]
        assert first.offset >= offset


def test_offsets_by_timestamp(world, magic):
    _, times = old_log(magic)
    log = world.log
    if magic == 0:  # it has none
        assert log.offset_for_timestamp(0) is None and log.offset_for_max_timestamp() is None
        return
    for offset, time in enumerate(times):
        assert log.offset_for_timestamp(time) == log.offset_for_timestamp(time - 9) == (time, offset, -1)
    assert log.offset_for_timestamp(0) == (1_000, 0, -1)
    assert log.offset_for_timestamp(times[-1] + 1) is None
    assert log.offset_for_max_timestamp() == (times[-1], len(times) - 1, -1)
    log.advance_log_start(18)
    assert log.offset_for_timestamp(0) == (times[18], 18, -1)


def test_log_append_time_of_a_wrapper_is_everyones(tmp_path):
    rows = [(None, b"v", time) for time in (5, 9, 7)]
    data = wrapper(1, 1, message_set(1, rows), offset=2, timestamp=77, attributes=8)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(data)
    log = LogWorld(tmp_path).log
    assert log.offset_for_timestamp(6) == log.offset_for_max_timestamp() == (77, 0, -1)


def test_batches_of_today_follow(world, magic):
    old_end = world.log.end_offset
    world.log.append_client(batch(3), 5_000)
    world.log.append_client(bytearray(message_set(magic, [(b"k", b"v", 9)])), 5_000)
    for again in (lambda: None, world.crash, world.restart):
        again()
        assert world.log.end_offset == old_end + 4
        assert world.log.epochs == [(0, old_end)]
        found = world.log.read(old_end, 1 << 20)
        assert found[16] == 2
        assert world.log.offset_for_timestamp(10**15) is None


def test_a_crash_in_the_middle_of_a_message(world):
    path = world.directory / f"{0:020d}.log"
    end = world.log.end_offset
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)
    world.crash()
    assert end - 5 <= world.log.end_offset < end
    world.log.append_client(batch(2), 5_000)
    assert world.log.read(world.log.end_offset - 1, 1 << 20)[16] == 2


def test_a_truncation_between_messages(world):
    world.log.truncate_to(50)
    assert 45 < world.log.end_offset <= 50
    world.log.append_client(batch(2), 5_000)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.LZ4])
def test_all_of_it_is_read_by_old_clients(tmp_path, magic, codec):
    data, times = old_log(magic, codec)
    for version in range(4):
        work = DownConversion([(data, 0, len(data), 0, 1 << 20)], version, 1 << 20, 0)
        while work.step() >= 0:
            pass
        entries = list(read_entries(work.results[0].messages))
        assert all(entry.is_intact() for entry in entries)
        assert [r.offset for entry in entries for r in entry.records()] == list(range(len(times)))
        assert {entry.magic for entry in entries} <= ({0} if version < 2 else {0, 1})
