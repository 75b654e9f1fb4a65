"""HUNTS N1: compressed batches are unpacked beside the event loop, beyond a small budget; orders are kept."""

import functools
import gzip
import os
import random
import struct
import threading
import time

import numpy as np
import pytest
from reactor_world import NOW_MS, World, produce

from kafkad._native.serving import unpacking
from kafkad._native.serving.unpacking import Unpacker
from kafkad.protocol import compression, errors, messages
from kafkad.protocol.records import Record, build_batch, read_batches
from tests.unit.test_batch import altered
from tests.unit.test_batch_bombs import as_batch

LOOP_S = 0.1  # of CPU time that one turn of the loop may take


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def large(codec=1, count=40, size=100_000, **fields):
    """A good batch of 4 MB that compresses to little."""
    records = [Record(b"k", bytes(size), timestamp=NOW_MS) for _ in range(count)]
    return bytes(build_batch(records, compression=codec, **fields))


@functools.cache
def slow(**fields):
    """300 records of 100 KB, each byte a random bit, which no library unpacks quickly."""
    bits = np.unpackbits(np.frombuffer(random.Random(2).randbytes(12_500), np.uint8)).tobytes()
    records = [Record(b"k", bits, timestamp=NOW_MS) for _ in range(300)]
    return bytes(build_batch(records, compression=1, **fields))


def small(codec=0, value=b"v", key=b"k", **fields):
    return bytes(build_batch([Record(key, value, timestamp=NOW_MS)], compression=codec, **fields))


def bomb(value=bytes(60 << 20), level=9):
    """Refused at its end only: one record that lacks its last byte."""
    head = b"\0\0\0\1" + varint(len(value))
    return bytes(as_batch(1, gzip.compress(varint(len(head) + len(value) + 1) + head + value, level)))


def varint(value):
    raw = value << 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(out) + bytes([raw])


BOMB = bomb()


def codes(answer):
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def jobs(world):
    stats = world.reactor.stats()
    return stats["unpack_jobs"], stats["unpacking"]


def settled(world):
    world.poll_until(lambda: jobs(world)[1] == 0, seconds=60)


# -- what the loop does itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_small_batches_stay_on_the_loop(world, codec):
    log = world.log("t")
    client = world.connect()
    for offset in range(20):
        assert client.produce("t", small(codec)).base_offset == offset
    assert jobs(world)[0] < 5  # none, unless the loop loses its core for 4 ms in the middle of one
    assert log.end_offset == 20


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_large_batches_are_appended_all_the_same(world, codec):
    log = world.log("t")
    client = world.connect()
    assert client.produce("t", large(codec)).base_offset == 0
    assert client.produce("t", small()).base_offset == 40
    assert jobs(world) == (1, 0) and log.end_offset == 41
    batches = list(read_batches(log.read(0, 1 << 20)))
    assert [(b.compression, b.records_count, b.is_intact()) for b in batches] == [
        (codec, 40, True),
        (0, 1, True),
    ]


@pytest.mark.parametrize(
    "config", [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}]
)
def test_what_rewrites_goes_beside_the_loop_too(world, config):
    world.log("t", **config)
    client = world.connect()
    assert client.produce("t", large(3)).error_code == 0
    assert client.produce("t", with_wrong_deltas()).error_code == 0
    assert jobs(world) == (2, 0)


def with_wrong_deltas():
    records = [Record(b"k", bytes(400_000), timestamp=NOW_MS, offset=offset) for offset in (0, 5)]
    return bytes(altered(build_batch(records), last_offset_delta=1))


# -- nobody waits ------------------------------------------------------------------------------------------


def test_bombs_do_not_stop_the_loop(world):
    """Before: one turn of 3 s."""
    for index in range(8):
        world.log("t", index)
    attacker, other = world.connect(), world.connect()
    attacker.send_request(produce("t", dict.fromkeys(range(8), BOMB)), 9)
    turns, longest = 0, 0.0
    other.send_request(messages.ApiVersionsRequest(), 0)
    while not attacker.received:
        attacker.pull()
        began = time.thread_time()
        world.reactor.poll()
        longest = max(longest, time.thread_time() - began)
        if other.has_answer():
            other.receive_frame()
            other.send_request(messages.ApiVersionsRequest(), 0)
            turns += 1
        time.sleep(0.001)
    assert longest < LOOP_S
    assert turns > 20
    answer = attacker.receive(messages.ProduceResponse, 9)
    assert codes(answer) == [errors.INVALID_RECORD] * 8
    assert jobs(world) == (8, 0)


def test_one_clients_bombs_delay_another_ones_batch_by_a_slice(world):
    for index in range(10):
        world.log("t", index)
    attacker, other = world.connect(), world.connect()
    world.reactor.hold_unpacking(True)
    attacker.send_request(produce("t", dict.fromkeys(range(9), BOMB)), 9)
    world.poll_until(lambda: jobs(world)[1] == 9)
    other.send_produce("t", large(), index=9)
    world.poll_until(lambda: jobs(world)[1] == 10)
    world.reactor.hold_unpacking(False)
    assert codes(other.receive(messages.ProduceResponse, 9)) == [errors.NONE]
    assert jobs(world)[1] >= 7  # the first ones may have ended meanwhile
    attacker.socket.close()
    settled(world)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(b"", 9) * 50_000,
        compression.XERIAL_HEADER + (struct.pack(">i", 1) + b"\0") * 200_000,
        compression.compress(compression.ZSTD, b"") * 100_000,
    ],
    ids=["gzip members", "snappy blocks", "zstd frames"],
)
def test_what_holds_nothing_costs_little(world, data):
    """Before: 0.4 to 0.9 s, on the loop."""
    codec = 1 if data[:2] == b"\x1f\x8b" else 2 if data[:1] == b"\x82" else 4
    world.log("t", max_message_bytes=2 << 20)
    client = world.connect()
    client.send_produce("t", bytes(as_batch(codec, data)))
    longest = 0.0
    while not client.received:
        turn = time.thread_time()
        world.reactor.poll()
        longest = max(longest, time.thread_time() - turn)
        client.pull()
        time.sleep(0.001)
    part = client.receive(messages.ProduceResponse, 9).responses[0].partition_responses[0]
    assert part.error_code == errors.INVALID_RECORD
    assert longest < LOOP_S


# -- orders ------------------------------------------------------------------------------------------------


def test_a_connections_batches_keep_their_order_and_others_go_on(world):
    log = world.log("t", max_message_bytes=8 << 20)
    first, other = world.connect(), world.connect()
    world.reactor.hold_unpacking(True)
    first.send_produce("t", slow())
    first.send_produce("t", small(value=b"behind"))
    first.send_request(messages.ApiVersionsRequest(), 0)
    world.poll_until(lambda: jobs(world)[1] == 1)
    assert other.produce("t", small(value=b"other")).base_offset == 0
    world.reactor.hold_unpacking(False)
    answers = [first.receive(messages.ProduceResponse, 9) for _ in range(2)]
    assert [answer.responses[0].partition_responses[0].base_offset for answer in answers] == [1, 301]
    first.receive_frame()  # ApiVersions, last
    assert log.end_offset == 302


def test_sequences_are_checked_when_it_is_appended(world):
    log = world.log("t", max_message_bytes=8 << 20)
    first, other = world.connect(), world.connect()
    ids = {"producer_id": 7, "producer_epoch": 0}
    world.reactor.hold_unpacking(True)
    first.send_produce("t", slow(base_sequence=0, **ids))
    first.send_produce("t", small(base_sequence=300, **ids))
    world.poll_until(lambda: jobs(world)[1] == 1)
    newer = other.produce("t", small(producer_id=7, producer_epoch=1, base_sequence=0))
    assert newer.error_code == 0
    world.reactor.hold_unpacking(False)
    answers = [first.receive(messages.ProduceResponse, 9) for _ in range(2)]
    assert [codes(answer) for answer in answers] == [[errors.INVALID_PRODUCER_EPOCH]] * 2
    assert log.end_offset == 1


def test_acks_0_is_appended_in_order(world):
    log = world.log("t")
    client = world.connect()
    client.send_produce("t", large(), acks=0)
    client.send_produce("t", small(), acks=0)
    world.poll_until(lambda: log.end_offset == 41)
    client.send_produce("t", bytes(BOMB), acks=0)
    client.wait_closed(60)


# -- what changes meanwhile --------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile(world):
    world.log("t", max_message_bytes=8 << 20)
    client = world.connect()
    world.reactor.hold_unpacking(True)
    client.send_produce("t", slow())
    world.poll_until(lambda: jobs(world)[1] == 1)
    world.table.remove("t", 0)
    world.reactor.hold_unpacking(False)
    answer = client.receive(messages.ProduceResponse, 9)
    assert codes(answer) == [errors.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_that_is_deleted_and_made_again_meanwhile(world):
    """Its append was to the old one. Before: the answer waited for the new one to reach that offset."""
    log = world.log("t", 0, topic_id=b"1" * 16)
    world.log("t", 1, topic_id=b"1" * 16, max_message_bytes=8 << 20)
    client = world.connect()
    client.send_request(produce("t", {0: large(), 1: slow()}), 9)
    world.poll_until(lambda: log.end_offset == 40)
    assert jobs(world)[1] == 1
    for index in (0, 1):
        world.table.remove("t", index)
    world.directory += "/again"
    again = world.log("t", 0, topic_id=b"2" * 16)
    answer = client.receive(messages.ProduceResponse, 9)
    assert codes(answer) == [errors.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert again.end_offset == 0


def test_a_partition_that_is_led_no_longer(world):
    log = world.log("t", max_message_bytes=8 << 20)
    client = world.connect()
    world.reactor.hold_unpacking(True)
    client.send_produce("t", slow())
    world.poll_until(lambda: jobs(world)[1] == 1)
    log.resign()
    world.reactor.hold_unpacking(False)
    answer = client.receive(messages.ProduceResponse, 9)
    assert codes(answer) == [errors.NOT_LEADER_OR_FOLLOWER]
    assert log.end_offset == 0


def test_a_connection_that_is_closed_meanwhile_gives_all_back(world):
    log = world.log("t")
    client = world.connect()
    world.reactor.hold_unpacking(True)
    client.send_produce("t", BOMB)
    client.send_produce("t", BOMB)
    world.poll_until(lambda: jobs(world)[1] == 1)
    assert world.reactor.stats()["buffered_bytes"] > 0
    client.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
    client.socket.close()
    world.reactor.hold_unpacking(False)
    settled(world)
    world.poll()
    assert world.reactor.stats()["buffered_bytes"] == 0
    assert world.reactor.stats()["connections"] == 0
    assert log.end_offset == 0


def test_a_reactor_closes_with_jobs_in_flight(tmp_path):
    world = World(str(tmp_path))
    for index in range(4):
        world.log("t", index)
    clients = [world.connect() for _ in range(4)]  # a request whose turn was long waits for its first jobs
    for index, client in enumerate(clients):
        client.send_request(produce("t", {index: BOMB}), 9)
    world.poll_until(lambda: jobs(world)[1] > 0)
    began = time.monotonic()
    world.close()
    assert time.monotonic() - began < 5
    assert not [t for t in threading.enumerate() if t.name == "kafkad-unpack"]


def test_without_a_thread_the_loop_does_it_in_slices(world, monkeypatch):
    """Before: the whole bomb in one round, two rounds in all."""
    log = world.log("t", max_message_bytes=8 << 20)
    bits = random.Random(1).randbytes(2 << 20)  # each a byte of the value, which no library unpacks quickly
    slow = bomb(np.unpackbits(np.frombuffer(bits, np.uint8)).tobytes(), 1)

    def none_left(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    client = world.connect()
    assert client.produce("t", large()).error_code == 0
    assert log.end_offset == 40
    client.send_produce("t", slow)
    rounds = world.reactor.stats()["rounds"]  # each looks at all sockets
    assert codes(client.receive(messages.ProduceResponse, 9)) == [errors.INVALID_RECORD]
    assert world.reactor.stats()["rounds"] - rounds >= 5


def test_without_memory_for_a_job_one_request_fails(world, monkeypatch):
    """Before: its connection waited for ever."""
    log = world.log("t")
    client = world.connect()

    def none_left(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "deque", none_left)
        assert client.produce("t", large()).error_code == errors.UNKNOWN_SERVER_ERROR
        client.send_produce("t", large(), acks=0)
        client.wait_closed()
    assert jobs(world) == (0, 0) and world.reactor.stats()["buffered_bytes"] == 0
    assert world.connect().produce("t", large()).error_code == 0
    assert jobs(world) == (1, 0) and log.end_offset == 40


def test_an_ending_connection_closes_when_its_last_batch_is_refused(world):
    """Before: 5 s later, when its answers were given up."""
    world.log("t")
    client = world.connect()
    world.reactor.hold_unpacking(True)
    client.send_produce("t", BOMB, acks=0)
    world.poll_until(lambda: jobs(world)[1] == 1)
    client.send(b"\xff\xff\xff\xff")  # no size: it is read no more
    world.reactor.hold_unpacking(False)
    settled(world)
    began = time.monotonic()
    client.wait_closed()
    assert time.monotonic() - began < 2.5


# -- record errors -----------------------------------------------------------------------------------------


def keyless(codec, count=100, every=10, size=10):
    records = [
        Record(None if i % every == 0 else b"k", bytes(size), timestamp=NOW_MS * (3 if i == 55 else 1))
        for i in range(count)
    ]
    return bytes(build_batch(records, compression=codec))


def errors_of(part):
    return [(each.batch_index, each.batch_index_error_message) for each in part.record_errors]


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(("codec", "size"), [(0, 10), (4, 10), (1, 50_000)])
def test_each_bad_record_is_named(world, codec, size, version):
    """HUNTS N7: only the first one was. A bad timestamp anywhere decides the code, as in LogValidator."""
    world.log("t", cleanup_policy=("delete", "compact"), message_timestamp_after_max_ms=1 << 62)
    world.log("t", 1, cleanup_policy=("compact",))
    client = world.connect()
    part = client.produce("t", keyless(codec, size=size), version=version)
    assert part.error_code == errors.INVALID_RECORD
    missing = "Compacted topic cannot accept message without key"
    assert errors_of(part) == [(i, missing) for i in range(0, 100, 10)]
    assert part.error_message == missing
    part = client.produce("t", keyless(codec, size=size), index=1, version=version)
    assert part.error_code == errors.INVALID_TIMESTAMP
    assert [index for index, _ in errors_of(part)] == [0, 10, 20, 30, 40, 50, 55, 60, 70, 80, 90]
    assert {text for index, text in errors_of(part) if index != 55} == {missing}
    assert client.produce("t", keyless(codec), version=7).record_errors == []
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_an_answer_names_a_bounded_number_of_records(world):
    for index in range(4):
        world.log("t", index, cleanup_policy=("compact",))
    many = keyless(4, 15_000, 1)
    answer = world.connect().ask(produce("t", dict.fromkeys(range(4), many)), 9)
    counts = [len(part.record_errors) for part in answer.responses[0].partition_responses]
    assert counts == [10_000, 10_000, 1, 1]


# -- the scheduler -----------------------------------------------------------------------------------------


class Work:
    """`steps` steps; each notes its name."""

    def __init__(self, name, steps, notes, memory=0, gate=None):
        self.name, self.steps, self.notes, self.memory, self.gate = name, steps, notes, memory, gate
        self.ahead, self.rewrites = 0, False

    def step(self):
        if self.gate is not None:
            self.gate.wait(10)
        if self.steps == 0:
            return -1
        self.steps -= 1
        self.notes.append(self.name)
        time.sleep(0.002)
        return 1 << 20

    def close(self):
        pass


@pytest.fixture
def unpacker():
    made = []

    def make(threads=1):
        made.append(Unpacker(-1, threads))
        return made[-1]

    yield make
    for each in made:
        each.close()


def finish(unpacker, seconds=20):
    deadline = time.monotonic() + seconds
    while unpacker.waiting:
        assert time.monotonic() < deadline
        unpacker.settle()
        time.sleep(0.001)


def test_lanes_take_turns_and_a_lanes_jobs_are_done_in_order(unpacker):
    notes, ends, gate = [], [], threading.Event()
    scheduler = unpacker()
    for name in ("a1", "a2", "a3", "b1"):
        scheduler.submit(
            name[0], Work(name, 20, notes, gate=gate), lambda work, error: ends.append(work.name)
        )
    gate.set()
    finish(scheduler)
    assert [end for end in ends if end != "b1"] == ["a1", "a2", "a3"]
    assert ends.index("b1") <= 1  # beside the first of lane a
    assert notes.index("b1") < 10


def test_an_error_comes_with_its_delivery(unpacker):
    class Wrong(Work):
        def step(self):
            raise MemoryError

    seen = []
    scheduler = unpacker()
    scheduler.submit("a", Wrong("a", 1, []), lambda work, error: seen.append(type(error)))
    scheduler.submit("a", Work("a", 1, []), lambda work, error: seen.append(error))
    finish(scheduler)
    assert seen == [MemoryError, None]


def test_what_needs_much_memory_goes_alone(unpacker):
    """Otherwise a window of 128 MB for each of 100 connections."""
    notes, running, most = [], [], []

    class Hungry(Work):
        def step(self):
            self.memory = 60 << 20
            if self.steps == 5:
                self.steps -= 1
                return 0  # it says so one step before
            if self not in running:
                running.append(self)
            most.append(len(running))
            size = super().step()
            if size < 0:
                running.remove(self)
            return size

    scheduler = unpacker(2)
    for lane in range(6):
        scheduler.submit(lane, Hungry(str(lane), 5, notes), lambda work, error: None)
    scheduler.submit("little", Work("little", 1, notes), lambda work, error: None)
    finish(scheduler)
    assert max(most) == 1
    assert len(notes) == 25


def test_a_job_that_needs_much_memory_gets_its_turn(unpacker):
    """Before: never, while others that need less kept coming."""
    order = []

    class Needy(Work):
        def step(self):
            if self.steps == 3:
                self.steps, self.memory = 2, self.needs
                return 0  # it says so one step before
            return super().step()

    def ended(work, error):
        order.append(work.name)
        if work.name != "large" and len(order) < 30:
            add(f"small{len(order)}", 30)

    def add(name, needs):
        work = Needy(name, 3, [])
        work.needs = needs << 20
        scheduler.submit(name, work, ended)

    scheduler = unpacker(2)
    for name in ("first", "second", "third"):
        add(name, 30)
    add("large", 60)
    finish(scheduler)
    assert len(order) > 20
    assert order.index("large") < 10


def test_deliveries_of_a_turn_are_bounded_in_time(unpacker):
    """Before: all that was done, in one turn."""
    seen = []

    def slow(work, error):
        seen.append(work.name)
        time.sleep(0.003)

    wake = os.eventfd(0, os.EFD_NONBLOCK)
    scheduler = Unpacker(wake, 1)
    try:
        for number in range(20):
            scheduler.submit(number, Work(number, 0, []), slow)
        deadline = time.monotonic() + 10
        os.set_blocking(wake, True)
        done = 0
        while done < 20:
            done += os.eventfd_read(wake)
            assert time.monotonic() < deadline
        os.set_blocking(wake, False)
        scheduler.settle()
        assert 1 <= len(seen) < 5
        assert os.eventfd_read(wake) == 1  # the next turn comes
        finish(scheduler)
        assert seen == list(range(20))
    finally:
        scheduler.close()
        os.close(wake)


def test_a_cancelled_job_is_delivered_and_not_done(unpacker):
    notes, gate = [], threading.Event()
    scheduler = unpacker()
    scheduler.submit("a", Work("a", 1, notes, gate=gate), lambda work, error: None)
    job = scheduler.submit("a", Work("b", 1, notes), lambda work, error: notes.append("delivered"))
    job.cancelled = True
    gate.set()
    finish(scheduler)
    assert notes == ["a", "delivered"]


# -- forwarded ---------------------------------------------------------------------------------------------


def test_an_owner_unpacks_beside_its_loop_and_keeps_the_order(workers):
    workers.partition("t", 0, 1, own="own_log")
    first, other = workers.connect(0), workers.connect(0)
    workers.ask(1, "hold_unpacking", True)
    first.send_produce("t", large(count=300))
    first.send_produce("t", small(value=b"behind"))
    first.send_produce("t", large(count=2))
    first.send_produce("t", small(value=b"last"))
    workers.ask_until(1, "stats", want=lambda stats: stats["unpack_jobs"] >= 1)
    assert other.produce("t", small(value=b"other")).base_offset == 0
    workers.ask(1, "hold_unpacking", False)
    answers = [first.receive(messages.ProduceResponse, 9) for _ in range(4)]
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == [1, 301, 302, 304]
    assert workers.ask(1, "end_offset", "t", 0) == 305
    for worker in (0, 1):
        workers.ask_until(worker, "stats", want=lambda stats: stats["buffered_bytes"] == 0)


def test_others_on_the_same_worker_go_on_while_an_owner_unpacks(workers):
    workers.partition("t", 0, 1, own="own_log")
    first, other = workers.connect(0), workers.connect(0)
    workers.ask(1, "hold_unpacking", True)
    first.send_produce("t", BOMB)
    workers.ask_until(1, "stats", want=lambda stats: stats["unpacking"] == 1)
    for offset in range(3):
        assert other.produce("t", small()).base_offset == offset
    assert not first.has_answer()
    workers.ask(1, "hold_unpacking", False)
    assert codes(first.receive(messages.ProduceResponse, 9)) == [errors.INVALID_RECORD]


def test_the_senders_death_drops_what_it_forwarded(workers):
    workers.partition("t", 0, 1, own="own_log")
    client = workers.connect(0)
    workers.ask(1, "hold_unpacking", True)
    client.send_produce("t", large())
    client.send_produce("t", small())
    workers.ask_until(1, "stats", want=lambda stats: stats["appended"] == 2)
    workers.kill(0)
    workers.start(0)
    workers.ask(1, "peer_lost", 0)
    workers.ask(1, "hold_unpacking", False)
    workers.ask_until(1, "stats", want=lambda stats: stats["unpacking"] == 0)
    assert workers.ask(1, "end_offset", "t", 0) == 0
    assert workers.connect(1).produce("t", small()).base_offset == 0
    workers.ask_until(1, "stats", want=lambda stats: stats["buffered_bytes"] == 0)


def test_the_owners_death_answers_who_waits(workers):
    workers.partition("t", 0, 1, own="own_log")
    client = workers.connect(0)
    workers.ask(1, "hold_unpacking", True)
    client.send_produce("t", BOMB)
    workers.ask_until(1, "stats", want=lambda stats: stats["unpacking"] == 1)
    workers.kill(1)
    workers.ask(0, "peer_lost", 1)
    assert codes(client.receive(messages.ProduceResponse, 9)) == [errors.NOT_LEADER_OR_FOLLOWER]
    workers.start(1)


@pytest.mark.parametrize(("codec", "count", "size"), [(0, 100, 10), (4, 15_000, 10), (1, 100, 50_000)])
def test_an_owner_tells_each_bad_record(workers, codec, count, size):
    workers.partition("t", 0, 1, own="own_log", cleanup_policy=("compact",))
    client = workers.connect(0)
    records = [Record(None if i % 2 else b"k", bytes(size), timestamp=NOW_MS) for i in range(count)]
    part = client.produce("t", bytes(build_batch(records, compression=codec)))
    assert part.error_code == errors.INVALID_RECORD
    assert [index for index, _ in errors_of(part)] == [i for i in range(count) if i % 2]
    assert client.produce("t", small()).base_offset == 0
