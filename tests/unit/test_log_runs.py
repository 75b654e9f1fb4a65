"""Runs of a leader's batches in a followed log (_native/log/partition_runs), beside appends one by one."""

import os
import random
import resource
import signal
import socket

import pytest

from kafkad.log.runs import RUN_NEWER, RUN_OVERLAPS, append_run
from kafkad.protocol.errors import CORRUPT_MESSAGE, KafkaError
from tests.unit.log_world import LogWorld, ManualScheduler, batch, idempotent, topic_config

NOW = 1_000
FILES = (".log", ".index", ".timeindex", ".txnindex")


def followed(path, **config):
    path.mkdir(parents=True, exist_ok=True)
    world = LogWorld(path, topic_config(**config), epoch=0)
    world.log.resign()
    world.log.native.follows_end = False
    world.log.leader_epochs.truncate_from_end(0)
    return world


def stored(leader):
    return b"".join(leader.log.batches(leader.log.log_start_offset, leader.log.end_offset))


def split(data):
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        yield data[at : at + size]
        at += size


def state(world):
    log, native = world.log, world.log.native
    return {
        "offsets": (log.log_start_offset, log.end_offset, log.high_watermark, log.last_stable_offset),
        "segments": log.segments,
        "epochs": log.epochs,
        "producers": sorted(log.native.producers.rows()),
        "aborted": (native.aborted_end, log.aborted_transactions(0, log.end_offset)),
        "index": native.index_entries(),
    }


def files(world):
    return {
        path.name: path.read_bytes()
        for path in sorted(world.directory.iterdir())
        if path.suffix in FILES and path.stat().st_size
    }


def one_by_one(world, data, high_watermark):
    for each in split(data):
        world.log.append(bytearray(each), NOW, origin="replica")
    world.log.advance_high_watermark(high_watermark)


def test_a_run_of_batches_is_written_at_once(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    for _ in range(5):
        leader.append(count=3)
    end = append_run(follower.log, stored(leader), 0, 12, NOW)
    assert (end.code, end.taken) == (0, leader.log.size)
    assert state(follower) | {"offsets": None} == state(leader) | {"offsets": None}
    assert (follower.log.end_offset, follower.log.high_watermark) == (15, 12)


def test_a_batch_that_is_not_whole_stays(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append(count=3)
    leader.append(count=3, size=1000)
    data = stored(leader)
    first = len(next(split(data)))
    for cut in (0, 5, 16):
        assert append_run(follower.log, data[:cut], 0, 0, NOW)[:3] == (0, 0, 0)
    assert append_run(follower.log, data[:60], 0, 0, NOW)[:3] == (0, 0, first)
    end = append_run(follower.log, data[: first + 100], 0, 0, NOW)
    assert end[:3] == (0, first, len(data) - first)
    assert follower.log.end_offset == 3
    assert append_run(follower.log, data[first:], 0, 0, NOW).code == 0
    assert follower.log.end_offset == 6


def test_batches_below_the_end_are_passed_over(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    for _ in range(4):
        leader.append(count=2)
    data = stored(leader)
    sizes = [len(each) for each in split(data)]
    append_run(follower.log, data[: sum(sizes[:2])], 0, 0, NOW)
    end = append_run(follower.log, data, 0, 0, NOW)
    assert (end.code, end.taken, follower.log.end_offset) == (0, len(data), 8)
    assert follower.log.size == len(data)


def test_a_batch_over_the_end_is_told(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append(count=4)
    follower.log.truncate_fully_and_start_at(2)
    end = append_run(follower.log, stored(leader), 0, 0, NOW)
    assert (end.code, end.taken, end.base_offset, end.last_offset) == (RUN_OVERLAPS, 0, 0, 3)
    assert follower.log.end_offset == 2


def test_t16_batches_of_a_later_epoch_than_the_fetch_are_left_out(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append()
    leader.log.set_leader_epoch(2)
    leader.append()
    end = append_run(follower.log, stored(leader), 1, 0, NOW)
    assert (end.code, follower.log.end_offset, follower.log.epochs) == (RUN_NEWER, 1, [(0, 0)])


def test_a_new_epoch_is_in_the_file_before_the_batch_is_seen(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append()
    leader.log.set_leader_epoch(7)
    leader.append()
    seen = []
    assign = follower.log.leader_epochs.assign
    log = follower.log

    class Spy:
        native = log.native
        roll = log.roll

        def assign_epoch(self, epoch, start):
            seen.append((epoch, start, log.end_offset))
            assign(epoch, start)

    append_run(Spy(), stored(leader), 7, 0, NOW)
    assert seen == [(0, 0, 0), (7, 1, 1)]
    assert follower.log.epochs == [(0, 0), (7, 1)]


@pytest.mark.parametrize("damage", ["crc", "length", "magic", "delta", "base"])
def test_what_is_damaged_stops_the_run_and_what_stood_before_it_stays(tmp_path, damage):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append(count=2)
    leader.append(count=2)
    data = bytearray(stored(leader))
    second = len(next(split(data)))
    at, value = {
        "crc": (second + 17, 0x55),
        "length": (second + 11, 3),
        "magic": (second + 16, 3),
        "delta": (second + 23, 0xFF),
        "base": (second, 0x80),
    }[damage]
    data[at] = value if damage != "crc" else data[at] ^ value
    if damage == "length":
        data[second + 8 : second + 12] = (20).to_bytes(4, "big")
    end = append_run(follower.log, data, 0, 0, NOW)
    assert (end.code, end.taken, follower.log.end_offset) == (CORRUPT_MESSAGE, second, 2)


def test_old_formats_are_refused_by_name(tmp_path):
    follower = followed(tmp_path / "follower")
    old = bytearray(batch())
    old[16] = 1
    with pytest.raises(KafkaError, match="magic 0 and 1"):
        append_run(follower.log, old, 0, 0, NOW)


def test_t21_hw_follows_the_leader_up_to_the_end_and_never_back(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    for _ in range(6):
        leader.append(count=2)
    data = stored(leader)
    half = sum(len(each) for each in list(split(data))[:3])
    append_run(follower.log, data[:half], 0, 99, NOW)
    assert follower.log.high_watermark == 6
    append_run(follower.log, data[half:], 0, 4, NOW)
    assert follower.log.high_watermark == 6
    follower.log.take_marks(8, 3)
    assert (follower.log.high_watermark, follower.log.log_start_offset) == (8, 3)
    assert follower.log.native.position_of(8) == (0, half + half // 3)
    follower.log.take_marks(8, 9)  # not above HW
    assert follower.log.log_start_offset == 3
    follower.log.take_marks(12, 9)
    assert (follower.log.high_watermark, follower.log.log_start_offset) == (12, 9)


def test_a_short_write_leaves_nothing_of_its_run(tmp_path):
    leader, follower = LogWorld(tmp_path / "leader"), followed(tmp_path / "follower")
    leader.append(size=100)
    append_run(follower.log, stored(leader), 0, 0, NOW)
    first = size = follower.log.size
    for _ in range(40):
        leader.append(size=400)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5_000, limits[1]))
    try:
        end = append_run(follower.log, stored(leader), 0, 99, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert end.code == 56 and follower.log.size == size + end.taken - first
    assert follower.path(0, ".log").stat().st_size == follower.log.size < size + 5_000
    assert follower.log.size == follower.log.native.position_of(follower.log.end_offset)[1]
    assert append_run(follower.log, stored(leader), 0, 99, NOW).code == 0
    assert stored(follower) == stored(leader)


def write_at_random(leader, chance, count):
    """Plain, idempotent and transactional batches of a few producers, markers, new epochs."""
    log, sequences, open_now = leader.log, {}, {}
    for _ in range(count):
        kind = chance.random()
        producer = chance.randrange(4)
        size = chance.choice((0, 10, 100, 700))
        stamp = NOW + chance.randrange(-500, 500)
        if kind < 0.35:
            leader.append(batch(chance.randrange(1, 5), timestamp=stamp, size=size))
        elif kind < 0.75:
            transactional = producer >= 2
            sequence, number = sequences.get(producer, 0), chance.randrange(1, 4)
            fields = {"transactional": True} if transactional else {}
            log.append(idempotent(sequence, number, producer, size=size, timestamp=stamp, **fields), NOW)
            sequences[producer] = sequence + number
            if transactional:
                open_now[producer] = True
        elif kind < 0.92:
            if producer >= 2 and (open_now.pop(producer, None) or chance.random() < 0.1):
                log.append_marker(producer, 0, 1, commit=chance.random() < 0.5, version=1, now_ms=NOW)
        elif kind < 0.95:
            log.set_leader_epoch(log.leader_epoch + chance.randrange(1, 3))


@pytest.mark.soak
def test_a_run_leaves_what_appends_one_by_one_leave(tmp_path, seeds):
    for seed in seeds(40, 1_000):
        compare_with_appends(tmp_path / str(seed), random.Random(seed))


def compare_with_appends(path, chance):
    config = {
        "segment_bytes": chance.choice((5_000, 20_000, 1 << 30)),
        "index_interval_bytes": chance.choice((1, 300, 4096)),
        "segment_index_bytes": chance.choice((48, 1 << 16)),
    }
    leader = LogWorld(path / "leader", topic_config(**config))
    runs, slow = followed(path / "runs", **config), followed(path / "slow", **config)
    while leader.log.end_offset < 400:
        write_at_random(leader, chance, chance.randrange(1, 30))
        data = b"".join(leader.log.batches(runs.log.end_offset, leader.log.end_offset))
        mark = chance.randrange(leader.log.end_offset + 1)
        buffer, pieces = b"", data
        while pieces:
            size = chance.choice((7, 61, 500, 5_000, 1 << 20))
            buffer, pieces = buffer + pieces[:size], pieces[size:]
            end = append_run(runs.log, buffer, leader.log.leader_epoch, mark, NOW)
            assert end.code == 0
            buffer = buffer[end.taken :]
        assert buffer == b""
        runs.log.take_marks(mark, 0)
        one_by_one(slow, data, mark)
        assert state(runs) == state(slow)
    for world in (runs, slow):
        world.log.close()
    assert files(runs) == files(slow)
    again = runs.open(clean=False, lead=False)
    assert again.end_offset == slow.log.end_offset


def test_a_sendfile_under_way_sends_the_old_bytes_after_a_truncation(tmp_path):
    leader = LogWorld(tmp_path)
    leader.log.native.follows_end = False
    for _ in range(200):
        leader.append(size=1_000)
    code, position, size = leader.log.native.read_region(0, 1 << 20, True, 2)
    assert code == 0 and leader.log.native.read_to_end
    old = leader.path(0, ".log").read_bytes()
    fd = os.open(leader.path(0, ".log"), os.O_RDONLY)  # as an answer holds the file
    near, far = socket.socketpair()
    sent = os.sendfile(near.fileno(), fd, position, 10_000)
    leader.log.truncate_to(50)
    leader.log.append(bytearray(batch(size=3_000)), NOW)
    near.setblocking(False)
    received = far.recv(sent, socket.MSG_WAITALL)
    while sent < size:
        n = os.sendfile(near.fileno(), fd, position + sent, min(10_000, size - sent))
        received += far.recv(n, socket.MSG_WAITALL)
        sent += n
    assert received == old[position : position + size]
    assert leader.log.end_offset == 51
    assert leader.path(0, ".log").read_bytes()[: len(old) // 4] == old[: len(old) // 4]
    assert not list(leader.directory.glob("*.cleaned"))
    os.close(fd)


def test_a_truncation_below_hw_never_cuts_in_place(tmp_path):
    world = LogWorld(tmp_path, scheduler=ManualScheduler())
    for _ in range(10):
        world.append()
    inode = world.path(0, ".log").stat().st_ino
    world.log.truncate_to(4)
    assert world.path(0, ".log").stat().st_ino != inode
    world.append()
    assert world.crash().end_offset == 5


def test_what_nobody_was_sent_is_cut_in_place(tmp_path):
    world = LogWorld(tmp_path)
    world.log.native.follows_end = False
    for _ in range(10):
        world.append()
    inode = world.path(0, ".log").stat().st_ino
    world.log.truncate_to(4)
    assert world.path(0, ".log").stat().st_ino == inode
