"""Cold reads: what is not in the page cache is read by a helper, and only who wants it waits."""

import os
import socket
import struct
import time
import zlib
from pathlib import Path

import pytest
from reactor_world import Closed, World, batch, fetch, rows

from kafkad._native.log.cold_reads import resident
from kafkad.protocol import messages
from tests.unit.log_world import TOPIC_ID
from tests.unit.test_partition_reader import Readable

MIB = 1 << 20


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def path_of(world, topic, index=0):
    return os.path.join(world.directory, f"{topic}-{index}", f"{0:020d}.log")


def fill(world, topic, count, size=MIB - 1000):
    """A partition of `count` batches; the bytes of its log."""
    partition = world.partition(topic)
    partition.configure(
        max_message_bytes=2 * MIB, compression_type=-1, log_append_time=False, before_max_ms=(1 << 63) - 1,
        after_max_ms=(1 << 63) - 1, compacted=False, segment_bytes=1 << 30, segment_age_max_ms=(1 << 63) - 1,
        index_interval_bytes=4096, index_size_max=10 << 20, flush_interval=(1 << 63) - 1,
    )  # fmt: skip
    client = world.connect()
    for _ in range(count):
        assert client.produce(topic, batch(1, size)).error_code == 0
    return partition


def forget(world, partition):
    """Puts a partition's log out of memory, and out of the broker's mind."""
    partition.close_files()
    put_on_disk(path_of(world, partition.topic))


def put_on_disk(path):
    """Out of the page cache, as soon as nothing holds its pages: an answer on its way does, and writeback."""
    fd = os.open(path, os.O_RDONLY)
    try:
        deadline = time.monotonic() + 10
        while True:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(fd).st_size
            if not any(resident(fd, at, 4096) for at in range(0, size - 4096, MIB)):
                return
            if time.monotonic() > deadline:
                pytest.skip("this file system keeps its pages, or does not tell")
            time.sleep(0.02)
    finally:
        os.close(fd)


def show_the_place(world, topic):
    """The bytes that a look for offset 0 touches are in memory, those behind them are not."""
    fd = os.open(path_of(world, topic), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 8192, 0)
    assert resident(fd, 0, 8192)
    assert not resident(fd, 0, MIB)
    os.close(fd)


def records_of(answer):
    (topic,) = answer.responses
    (part,) = topic.partitions
    assert part.error_code == 0
    return bytes(part.records)


def drain(client, topic, end, max_bytes=MIB):
    """The CRC of everything, and in how many answers it came."""
    offset = crc = count = 0
    while offset < end:
        data = records_of(client.fetch([(topic, 0, offset, max_bytes)]))
        at = 0
        while at + 12 <= len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            if at + size > len(data):
                break
            base, delta = (
                int.from_bytes(data[at : at + 8], "big"),
                int.from_bytes(data[at + 23 : at + 27], "big"),
            )
            offset = base + delta + 1
            at += size
        crc = zlib.crc32(data[:at], crc)
        count += 1
    return crc, count


def crc_of(path):
    crc = 0
    with open(path, "rb") as file:
        while data := file.read(MIB):
            crc = zlib.crc32(data, crc)
    return crc


def cold(world):
    return world.reactor.stats()["cold_reads"]


def test_what_was_just_written_is_sent_without_a_question(world):
    fill(world, "t", 3)
    fill(world, "small", 20, 2000)
    client = world.connect()
    assert drain(client, "t", 3)[0] == crc_of(path_of(world, "t"))
    assert drain(client, "small", 20)[0] == crc_of(path_of(world, "small"))
    stats = world.reactor.stats()
    assert (stats["cold_reads"], stats["cold_checks"], stats["cold_bytes"]) == (0, 0, 0)


def test_what_is_in_memory_is_not_read_by_a_helper(world):
    partition = fill(world, "t", 16)
    partition.close_files()
    client = world.connect()
    assert drain(client, "t", 16)[0] == crc_of(path_of(world, "t"))
    asked = world.reactor.stats()["cold_checks"]
    assert 0 < asked <= 20  # a mebibyte at a time
    drain(client, "t", 16)
    assert world.reactor.stats()["cold_checks"] <= asked + 1, "what is known is asked again"
    assert cold(world) == world.reactor.stats()["cold_bytes"] == 0


@pytest.mark.parametrize(("count", "size", "max_bytes"), [
    (64, MIB - 1000, MIB), (24, MIB - 1000, 8 * MIB), (2000, 5000, 16_000), (100, 20_000, 64 * 1024),
])  # fmt: skip
def test_cold_bytes_are_read_by_helpers_and_are_right(world, count, size, max_bytes):
    partition = fill(world, "t", count, size)
    crc = crc_of(path_of(world, "t"))
    forget(world, partition)
    client = world.connect()
    found, answers = drain(client, "t", count, max_bytes)
    assert found == crc
    stats = world.reactor.stats()
    assert stats["cold_reads"] > 0
    assert stats["cold_bytes"] > 0
    assert stats["cold_reads"] <= 3 * answers + 10


@pytest.mark.parametrize("place_is_known", [False, True])
def test_who_waits_for_the_disk_does_not_hold_up_the_others(world, place_is_known):
    partition = fill(world, "cold", 4)
    data = Path(path_of(world, "cold")).read_bytes()
    forget(world, partition)
    if place_is_known:
        show_the_place(world, "cold")
    fill(world, "hot", 2)
    world.reactor.hold_cold_reads(True)
    waiting, other = world.connect(), world.connect()
    first = waiting.send_request(fetch([("cold", 0, 0)]), 12)
    second = waiting.send_request(fetch([("hot", 0, 1)]), 12)
    world.poll()
    assert cold(world) == 1
    for n in range(2, 12):
        assert other.produce("hot", batch(1, 50_000)).base_offset == n
        assert rows(other.fetch([("hot", 0, n)]))[0][2:4] == (0, n + 1)
    assert other.produce("cold", batch(1, 50_000)).base_offset == 4, "its partition is not written to"
    assert len(records_of(other.fetch([("cold", 0, 4)]))) > 50_000, "nor its tail read"
    assert cold(world) == 1
    world.reactor.hold_cold_reads(False)
    answer = records_of(waiting.receive(messages.FetchResponse, 12, first))
    assert answer == data[: len(answer)] and len(answer) > MIB - 1000
    assert records_of(waiting.receive(messages.FetchResponse, 12, second))


@pytest.mark.parametrize("place_is_known", [False, True])
def test_a_connection_may_go_while_it_waits(world, place_is_known):
    partition = fill(world, "t", 2)
    forget(world, partition)
    if place_is_known:
        show_the_place(world, "t")
    world.reactor.hold_cold_reads(True)
    client = world.connect()
    client.send_request(fetch([("t", 0, 0)]), 12)
    world.poll()
    assert cold(world) == 1
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 1)
    partition.close_files()
    world.reactor.hold_cold_reads(False)
    world.poll_until(lambda: world.reactor.stats()["cold_bytes"] > 0)
    files = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    assert path_of(world, "t") not in [os.readlink(file) for file in files if os.path.exists(file)]


def test_a_file_that_is_removed_meanwhile_is_still_sent(world):
    partition = fill(world, "t", 2)
    data = Path(path_of(world, "t")).read_bytes()
    forget(world, partition)
    show_the_place(world, "t")
    world.reactor.hold_cold_reads(True)
    client = world.connect()
    number = client.send_request(fetch([("t", 0, 0)]), 12)
    world.poll()
    os.unlink(path_of(world, "t"))
    partition.close_files()
    world.reactor.hold_cold_reads(False)
    answer = records_of(client.receive(messages.FetchResponse, 12, number))
    assert answer == data[: len(answer)]


def test_a_file_that_is_cut_meanwhile_closes_the_connection(world):
    partition = fill(world, "t", 2)
    forget(world, partition)
    show_the_place(world, "t")
    world.reactor.hold_cold_reads(True)
    client = world.connect()
    client.send_request(fetch([("t", 0, 0)]), 12)
    world.poll()
    assert cold(world) == 1
    os.truncate(path_of(world, "t"), 0)
    world.reactor.hold_cold_reads(False)
    client.wait_closed()
    assert "shorter than the answer" in "".join(world.lines)


@pytest.mark.parametrize("place_is_known", [False, True])
def test_a_reactor_closes_while_somebody_waits(world, place_is_known):
    partition = fill(world, "t", 2)
    forget(world, partition)
    if place_is_known:
        show_the_place(world, "t")
    world.reactor.hold_cold_reads(True)
    client = world.connect()
    client.send_request(fetch([("t", 0, 0)]), 12)
    world.poll()
    assert cold(world) == 1
    world.reactor.close()
    with pytest.raises(Closed):
        while True:
            client.pull()


def test_many_who_wait_are_all_answered(world):
    partition = fill(world, "t", 24)
    data = Path(path_of(world, "t")).read_bytes()
    forget(world, partition)
    world.reactor.hold_cold_reads(True)
    clients = [world.connect() for _ in range(24)]
    numbers = [client.send_request(fetch([("t", 0, n)]), 12) for n, client in enumerate(clients)]
    world.poll()
    assert cold(world) >= 20  # a look for the first batch brings the beginning of a neighbour along
    world.reactor.hold_cold_reads(False)
    one = len(data) // 24
    for n, (client, number) in enumerate(zip(clients, numbers, strict=True)):
        answer = records_of(client.receive(messages.FetchResponse, 12, number))
        assert len(answer) >= one
        assert answer == data[n * one : n * one + len(answer)]


def without_the_kernels_help(path):
    """Nothing of it is read but what is asked for."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                os.posix_fadvise(int(name), 0, 0, os.POSIX_FADV_RANDOM)
        except FileNotFoundError:  # the listing's own
            pass


def test_for_who_reads_on_the_next_is_read_meanwhile_and_for_others_it_is_not(world):
    partition = fill(world, "t", 24)
    forget(world, partition)
    path, client = path_of(world, "t"), world.connect()
    records_of(client.fetch([("t", 0, 23, MIB)]))  # opens it
    without_the_kernels_help(path)
    put_on_disk(path)
    fd = os.open(path, os.O_RDONLY)
    for offset in range(4):
        records_of(client.fetch([("t", 0, offset, MIB)]))
    deadline = time.monotonic() + 20
    while not resident(fd, 4 * MIB, 2 * MIB):
        assert time.monotonic() < deadline
        world.poll()
    read = world.reactor.stats()["cold_bytes"]
    assert read <= 10 * MIB
    records_of(client.fetch([("t", 0, 20, MIB)]))  # elsewhere, once
    for _ in range(50):
        world.poll()
        time.sleep(0.002)
    assert not resident(fd, 22 * MIB, MIB // 2)
    os.close(fd)


def test_who_reads_to_the_end_of_a_segment_is_not_read_ahead_of(world):
    partition = fill(world, "t", 6)
    forget(world, partition)
    client = world.connect()
    drain(client, "t", 6)
    for _ in range(20):
        records_of(client.fetch([("t", 0, 5, MIB)]))
    assert world.reactor.stats()["cold_bytes"] <= 7 * MIB


def test_what_another_worker_owns_is_read_by_helpers_too(world, tmp_path):
    readable = Readable(tmp_path / "other")
    for _ in range(40):
        readable.world.append(size=500_000)
    path = readable.world.path(0, ".log")
    readable.log.native.close_files()
    put_on_disk(path)
    put_on_disk(path.with_suffix(".index"))
    world.table.add(readable.reader, "t", TOPIC_ID)
    client = world.connect()
    assert drain(client, "t", 40)[0] == crc_of(path)
    assert cold(world) > 0


def test_the_tail_of_what_another_worker_owns_is_sent_without_a_question(world, tmp_path):
    readable = Readable(tmp_path / "other")
    world.table.add(readable.reader, "t", TOPIC_ID)
    client = world.connect()
    for offset in range(30):
        readable.world.append(size=50_000)
        assert len(records_of(client.fetch([("t", 0, offset)]))) > 50_000
    first = world.reactor.stats()["cold_checks"]
    for offset in range(30, 60):
        readable.world.append(size=50_000)
        assert len(records_of(client.fetch([("t", 0, offset)]))) > 50_000
    assert world.reactor.stats()["cold_checks"] == first
    assert cold(world) == 0


def test_an_index_that_is_not_in_memory_is_read_by_a_helper(world):
    partition = fill(world, "t", 4000, 5000)
    partition.close_files()
    index = Path(path_of(world, "t")).with_suffix(".index")
    assert index.stat().st_size > 3 * 4096
    crc = crc_of(path_of(world, "t"))
    put_on_disk(path_of(world, "t"))
    with open(index, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert not resident(file.fileno(), 0, index.stat().st_size)
    world.reactor.hold_cold_reads(True)
    client = world.connect()
    client.send_request(fetch([("t", 0, 2000)]), 12)
    world.poll()
    assert cold(world) == 1
    with open(index, "rb") as file:
        assert not resident(file.fileno(), 0, index.stat().st_size), "the loop has read it"
    world.reactor.hold_cold_reads(False)
    assert drain(world.connect(), "t", 4000)[0] == crc
    with open(index, "rb") as file:
        assert resident(file.fileno(), 0, index.stat().st_size)
