"""Replica fetch (_native/serving/replica_fetch) against leaders that a test plays, honest ones and others."""

import contextlib
import gc
import os
import random
import socket
import time

import pytest

from kafkad._native.serving.followed import DELAYED, FAILED, FETCHING, TRUNCATING
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.replica_fetch import ReplicaFetch
from kafkad._native.serving.replication_quota import FOLLOWER, ReplicationQuota
from kafkad._native.shared.quota_table import QuotaTable
from kafkad.log import runs
from kafkad.log.log import Log
from kafkad.protocol import codec, messages
from kafkad.replication import truncation
from tests.unit.log_world import LogWorld, ManualScheduler, batch, topic_config
from tests.unit.test_log_runs import stored, write_at_random

TOPIC = bytes(range(16))
OTHER = bytes(range(50, 66))
ANSWER = messages.FetchResponse
PARTITION = ANSWER.Responses.Partitions


class World:
    """A follower with logs, and the far end of its connection."""

    def __init__(self, path, **options):
        self.path = path
        self.told = []
        self.fatal = []
        self.reactor = Reactor(PartitionTable(), None, on_fatal=self.fatal.append)
        self.fetch = ReplicaFetch(self.reactor, self, broker_id=7, client_id=b"broker-7-fetcher-0", **options)
        self.version = options.get("version", 18)
        self.logs = {}
        self.far = None
        self.during_call = lambda: None  # what a call for a log leads to

    def __getattr__(self, name):
        if name in ("error", "diverged", "trouble", "refused", "answered", "paused", "throttled", "lost"):
            return lambda *arguments: self.told.append((name, *arguments))
        raise AttributeError(name)

    def go_on(self, log, base, epoch, now_ms):
        self.during_call()
        runs.go_on(log, base, epoch, now_ms)

    def overlap(self, log, base, last):
        self.during_call()
        anew = truncation.begins_anew(log.log_start_offset, log.end_offset, base, last)
        if anew is not None:
            log.truncate_fully_and_start_at(anew.offset)
        return anew is not None

    def log(self, index=0, topic_id=TOPIC, epoch=0, **config):
        directory = self.path / f"t{topic_id[0]}-{index}"
        log = Log.open(
            str(directory), f"t{topic_id[0]}", index, topic_config(**config), now_ms=1_000, clean=True,
            scheduler=ManualScheduler(), topic_id=topic_id,
        )  # fmt: skip
        log.follow(epoch, 1)
        self.logs[topic_id, index] = log
        self.fetch.add(log.native, topic_id, index, epoch)
        return log

    def connect(self):
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(5)
        self.fetch.attach(near.detach(), 77)
        return self

    def poll(self, count=3):
        for _ in range(count):
            self.reactor.poll()
        assert not self.fatal

    def request(self):
        self.poll()
        size = int.from_bytes(self.far.recv(4, socket.MSG_WAITALL), "big")
        frame = self.far.recv(size, socket.MSG_WAITALL)
        header, request = codec.decode_request(frame)
        self.correlation = header.correlation_id
        assert (header.request_api_key, header.request_api_version) == (1, self.version)
        assert header.client_id == "broker-7-fetcher-0"
        return request

    def asked(self):
        """{(topic id, index): (epoch, offset, last epoch, log start)} of a request, and what it forgets."""
        request = self.request()
        found = {
            (topic.topic_id, row.partition): (
                row.current_leader_epoch, row.fetch_offset, row.last_fetched_epoch, row.log_start_offset,
            )
            for topic in request.topics
            for row in topic.partitions
        }  # fmt: skip
        forgotten = {(t.topic_id, index) for t in request.forgotten_topics_data for index in t.partitions}
        return request.session_id, request.session_epoch, found, forgotten

    def frame(self, rows=(), session=5, code=0, **fields):
        topics = {}
        for (topic_id, index), row in rows:
            given = {"high_watermark": 0, "log_start_offset": 0, "records": b"", **row}
            topics.setdefault(topic_id, []).append(PARTITION(partition_index=index, **given))
        answer = ANSWER(
            error_code=code, session_id=session,
            responses=[ANSWER.Responses(topic_id=t, partitions=p) for t, p in topics.items()], **fields,
        )  # fmt: skip
        body = codec.encode_response(answer, self.version, self.correlation)
        return len(body).to_bytes(4, "big") + body

    def answer(self, rows=(), pieces=None, **fields):
        self.send(self.frame(rows, **fields), pieces)

    def send(self, data, pieces=None):
        at = 0
        while at < len(data):
            size = pieces() if pieces else 60_000
            self.far.sendall(data[at : at + size])
            at += size
            self.poll(1 + min(size, len(data)) // 40_000)
        self.poll()

    def silent(self):
        self.poll()
        self.far.setblocking(False)
        try:
            assert self.far.recv(1) is None
        except BlockingIOError:
            return True
        finally:
            self.far.settimeout(5)

    def close(self):
        self.reactor.close()


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def leader(tmp_path):
    return LogWorld(tmp_path / "leader", topic_config())


def test_a_session_begins_with_all_and_goes_on_with_what_changed(world, leader):
    one, two = world.log(0), world.log(1)
    world.log(0, OTHER)
    world.connect()
    asked = {(TOPIC, 0): (0, 0, -1, 0), (TOPIC, 1): (0, 0, -1, 0), (OTHER, 0): (0, 0, -1, 0)}
    assert world.asked() == (0, 0, asked, set())
    leader.append(count=3)
    world.answer([((TOPIC, 1), {"records": stored(leader), "high_watermark": 2})])
    assert world.asked() == (5, 1, {(TOPIC, 1): (0, 3, 0, 0)}, set())
    assert (one.end_offset, two.end_offset, two.high_watermark) == (0, 3, 2)
    world.answer()
    assert world.asked() == (5, 2, {}, set())
    assert world.fetch.remove(TOPIC, 0) and not world.fetch.remove(TOPIC, 9)
    world.log(2)
    world.answer()
    assert world.asked() == (5, 3, {(TOPIC, 2): (0, 0, -1, 0)}, {(TOPIC, 0)})


def test_a_request_says_who_fetches(world):
    world.log()
    world.connect()
    request = world.request()
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 77)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 << 20)
    assert request.topics[0].partitions[0].partition_max_bytes == 1 << 20
    assert request.isolation_level == 0 and request.rack_id == ""


@pytest.mark.parametrize("version", range(13, 19))
def test_every_version_is_understood(tmp_path, leader, version):
    world = World(tmp_path, version=version)
    log = world.log()
    world.connect()
    request = world.request()
    if version < 15:
        assert request.replica_id == 7
    leader.append(count=3)
    world.answer([((TOPIC, 0), {"records": stored(leader), "high_watermark": 3, "log_start_offset": 1})])
    assert (log.end_offset, log.high_watermark, log.log_start_offset) == (3, 3, 1)
    world.close()


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_session_that_the_leader_lost_begins_anew(world, code):
    world.log()
    world.connect()
    world.asked()
    world.answer()
    assert world.asked()[:2] == (5, 1)
    world.answer(session=0, code=code)
    assert world.asked() == (0, 0, {(TOPIC, 0): (0, 0, -1, 0)}, set())
    assert world.told == []


def test_a_leader_without_sessions_is_asked_for_all_each_time(world):
    world.log()
    world.connect()
    for _ in range(3):
        assert world.asked() == (0, 0, {(TOPIC, 0): (0, 0, -1, 0)}, set())
        world.answer(session=0)


def test_an_error_stops_its_partition_until_it_is_resumed(world, leader):
    world.log(0)
    two = world.log(1)
    world.connect()
    world.asked()
    leader.append()
    world.answer([((TOPIC, 0), {"error_code": 6}), ((TOPIC, 1), {"records": stored(leader)})])
    assert world.told == [("error", TOPIC, 0, 0, 6)] and two.end_offset == 1
    assert world.fetch.state_of(TOPIC, 0)[0] == DELAYED
    assert world.asked() == (5, 1, {(TOPIC, 1): (0, 1, 0, 0)}, {(TOPIC, 0)})
    world.fetch.resume(TOPIC, 0)
    world.answer()
    assert world.asked() == (5, 2, {(TOPIC, 0): (0, 0, -1, 0)}, set())


def test_nobody_is_asked_when_nothing_is_fetched(world):
    world.log()
    world.connect()
    world.asked()
    world.answer([((TOPIC, 0), {"error_code": 6})], session=0)
    assert world.silent()
    world.fetch.resume(TOPIC, 0)
    assert world.asked()[2]


def test_a_diverging_epoch_stops_the_partition_and_its_marks_do_not_count(world):
    log = world.log()
    world.connect()
    world.asked()
    row = {
        "high_watermark": 9,
        "log_start_offset": 4,
        "diverging_epoch": PARTITION.DivergingEpoch(epoch=3, end_offset=8),
    }
    world.answer([((TOPIC, 0), row)])
    assert world.told == [("diverged", TOPIC, 0, 0, 3, 8)]
    assert world.fetch.state_of(TOPIC, 0)[0] == TRUNCATING
    assert (log.high_watermark, log.log_start_offset) == (0, 0)


def test_a_request_waits_for_others_no_longer_than_a_partition_is_truncated(world):
    """Only the next one names it: meanwhile its leader may have deleted what it goes on from."""
    world.log(0)
    world.log(1)
    world.connect()
    diverging = ((TOPIC, 0), {"diverging_epoch": PARTITION.DivergingEpoch(epoch=3, end_offset=8)})
    assert world.request().max_wait_ms == 500
    world.answer([diverging])
    assert world.request().max_wait_ms == 10
    world.answer()
    assert world.request().max_wait_ms == 10
    world.fetch.resume(TOPIC, 0)
    world.answer()
    assert world.request().max_wait_ms == 500
    for end in (lambda: world.fetch.stop(TOPIC, 0, FAILED), lambda: world.fetch.remove(TOPIC, 0)):
        world.fetch.stop(TOPIC, 0, TRUNCATING)
        world.answer()
        assert world.request().max_wait_ms == 10
        end()
        world.answer()
        assert world.request().max_wait_ms == 500


def test_t17_an_answer_of_before_a_partition_was_cut_or_added_anew_is_ignored(world, leader):
    log = world.log()
    leader.append(count=2)
    leader.append(count=2)
    data = stored(leader)
    world.connect()
    world.asked()
    world.fetch.remove(TOPIC, 0)
    world.fetch.add(log.native, TOPIC, 0, 1)
    world.answer([((TOPIC, 0), {"records": data, "high_watermark": 4})])
    assert log.end_offset == log.high_watermark == 0
    assert world.asked() == (5, 1, {(TOPIC, 0): (1, 0, -1, 0)}, set())
    frame = world.frame([((TOPIC, 0), {"records": data, "high_watermark": 4})])
    world.send(frame[: len(frame) - len(data) // 2])
    assert log.end_offset == 2
    world.fetch.stop(TOPIC, 0, TRUNCATING)
    log.truncate_to(0)
    world.fetch.resume(TOPIC, 0)  # the rest of the answer is of before
    world.send(frame[len(frame) - len(data) // 2 :])
    assert log.end_offset == 0 and world.told == []
    assert world.asked()[2] == {(TOPIC, 0): (1, 0, -1, 0)}


def test_what_nobody_asked_for_is_passed_over(world, leader):
    log = world.log()
    world.connect()
    world.asked()
    leader.append()
    data = stored(leader)
    world.answer(
        [((OTHER, 0), {"records": data}), ((TOPIC, 5), {"records": data}), ((TOPIC, 0), {"records": data})]
    )
    assert log.end_offset == 1 and world.fetch.connected


def test_the_last_batch_may_be_cut(world, leader):
    log = world.log()
    leader.append(count=2)
    leader.append(count=2, size=500)
    data = stored(leader)
    world.connect()
    for cut in (100, 30, 5):
        world.asked()
        log.truncate_to(0)
        world.fetch.resume(TOPIC, 0)
        world.answer()
        world.asked()
        world.answer([((TOPIC, 0), {"records": data[:-cut]})])
        assert log.end_offset == 2 and world.told == []
    assert world.asked()[2] == {(TOPIC, 0): (0, 2, 0, 0)}


def test_t20_the_first_batch_may_begin_below_the_start(world, leader):
    log = world.log()
    leader.append(count=6)
    world.fetch.stop(TOPIC, 0, TRUNCATING)
    log.truncate_fully_and_start_at(4)
    world.fetch.resume(TOPIC, 0)
    world.connect()
    assert world.asked()[2] == {(TOPIC, 0): (0, 4, -1, 4)}
    world.answer([((TOPIC, 0), {"records": stored(leader), "high_watermark": 6, "log_start_offset": 4})])
    assert (log.log_start_offset, log.end_offset, log.high_watermark) == (4, 6, 6)


def overlapping(world, leader):
    """A log that has begun to follow, and was asked for more; its leader has written other batches there."""
    log = world.log()
    leader.append(count=2)
    world.connect()
    world.asked()
    world.answer([((TOPIC, 0), {"records": stored(leader)})])
    leader.log.truncate_to(0)
    leader.append(count=5)
    world.asked()
    return log


def test_a_batch_that_contradicts_the_log_fails_the_partition(world, leader):
    log = overlapping(world, leader)
    world.answer([((TOPIC, 0), {"records": stored(leader)})])
    assert log.end_offset == 2
    assert world.told == [("trouble", TOPIC, 0, 0, True, "a batch begins below the end of the log")]
    assert world.fetch.state_of(TOPIC, 0)[0] == FAILED


def test_a_wrong_crc_stops_its_partition_only(world, leader):
    one, two = world.log(0), world.log(1)
    leader.append(count=2)
    leader.append(count=2)
    data = stored(leader)
    bad = bytearray(data)
    bad[-1] ^= 1
    world.connect()
    world.asked()
    world.answer([((TOPIC, 0), {"records": bytes(bad)}), ((TOPIC, 1), {"records": data})])
    assert (one.end_offset, two.end_offset) == (2, 4)
    assert world.told == [("trouble", TOPIC, 0, 0, False, "the leader sent a damaged batch")]


def test_a_batch_above_the_limit_fails_its_partition_and_takes_no_memory(tmp_path, leader):
    world = World(tmp_path, batch_bytes_max=2 << 20)
    log, other = world.log(0), world.log(1)
    leader.append()
    small = stored(leader)
    leader.log.update_config(topic_config(max_message_bytes=8 << 20))
    leader.append(size=4 << 20)
    world.connect()
    world.asked()
    world.answer([((TOPIC, 0), {"records": stored(leader)}), ((TOPIC, 1), {"records": small})])
    assert (log.end_offset, other.end_offset) == (1, 1)
    assert world.told == [("trouble", TOPIC, 0, 0, True, "a batch is larger than socket.request.max.bytes")]
    assert world.fetch.buffer_bytes == 1 << 20
    world.close()


def test_the_buffer_grows_to_a_large_batch_and_shrinks_again(world, leader):
    log = world.log()
    leader.log.update_config(topic_config(max_message_bytes=16 << 20))
    leader.append(size=9 << 20)
    world.connect()
    world.asked()
    world.answer([((TOPIC, 0), {"records": stored(leader), "high_watermark": 1})])
    world.poll(400)
    assert log.end_offset == 1 and stored_by(log) == stored(leader)
    assert world.fetch.buffer_bytes == 1 << 20


def stored_by(log):
    return b"".join(log.batches(log.log_start_offset, log.end_offset))


def test_a_leader_that_answers_nothing_at_once_is_not_asked_at_once(world):
    world.log()
    world.connect()
    for _ in range(65):
        assert not world.told  # so often is right: it waits for 10 ms while it expects followers
        world.asked()
        world.answer()
    assert world.told == [("paused",)] and world.silent()
    world.fetch.go()
    assert world.asked()


def test_a_whole_answer_with_an_error_ends_the_connection(world):
    world.log()
    world.connect()
    world.asked()
    world.answer(code=31)
    assert world.told == [("answered", 31), ("lost", "it refuses the whole Fetch")]
    assert not world.fetch.connected


def test_a_connection_that_ends_begins_a_new_session(world, leader):
    log = world.log()
    world.connect()
    world.asked()
    leader.append(count=2)
    world.answer([((TOPIC, 0), {"records": stored(leader)})])
    world.asked()
    world.far.close()
    world.poll()
    assert world.told == [("lost", "the leader has closed the connection")]
    world.connect()
    assert world.asked() == (0, 0, {(TOPIC, 0): (0, 2, 0, 0)}, set())
    assert log.end_offset == 2


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ((3).to_bytes(4, "big"), "size out of bounds"),
        ((-1 & 0xFFFFFFFF).to_bytes(4, "big"), "size out of bounds"),
        ((1 << 30).to_bytes(4, "big"), "size out of bounds"),
        ((20).to_bytes(4, "big") + bytes(20), "wrong correlation id"),
        ((4).to_bytes(4, "big") + bytes(4) + bytes(60), "wrong correlation id"),
    ],
)
def test_what_is_no_answer_ends_the_connection(world, frame, reason):
    world.log()
    world.connect()
    world.asked()
    world.send(frame)
    assert [name for name, *_ in world.told] == ["lost"] and reason in world.told[0][1]


def test_an_answer_may_come_byte_by_byte(world, leader):
    leader.append(count=3)
    logs = [world.log(0, bytes([n]) * 16) for n in range(130)]  # so many that their number takes two bytes
    world.connect()
    world.asked()
    rows = [((bytes([n]) * 16, 0), {"records": stored(leader) if n < 2 else b""}) for n in range(130)]
    world.send(world.frame(rows), pieces=lambda: 1)
    assert [log.end_offset for log in logs[:3]] == [3, 3, 0] and world.told == []


def test_an_answer_that_was_not_asked_for_ends_the_connection(world):
    world.log()
    world.connect()
    world.asked()
    frame = world.frame()
    world.send(frame + frame)
    world.asked()
    world.poll()
    assert world.told[-1][0] == "lost"


@pytest.mark.soak
def test_t21_a_replica_becomes_its_leader_byte_for_byte(tmp_path, seeds):
    for seed in seeds(12, 200):
        replicate(tmp_path / str(seed), random.Random(seed))


def replicate(path, chance):
    path.mkdir()
    leader = LogWorld(path / "leader", topic_config(segment_bytes=chance.choice((5_000, 1 << 30))))
    world = World(path)
    log = world.log(segment_bytes=chance.choice((5_000, 1 << 30)))
    world.connect()
    while leader.log.end_offset < 300 or log.end_offset < leader.log.end_offset:
        if leader.log.end_offset < 300:
            write_at_random(leader, chance, chance.randrange(1, 20))
        epoch = leader.log.leader_epoch
        if world.fetch.state_of(TOPIC, 0)[1] != epoch:
            world.fetch.remove(TOPIC, 0)
            world.fetch.add(log.native, TOPIC, 0, epoch)
            world.asked()
            world.answer()
        world.asked()
        code, hw, _, start, data = leader.log.native.try_read(
            log.end_offset, chance.choice((500, 5_000)), True, 2
        )
        assert code == 0
        row = {"records": data, "high_watermark": hw, "log_start_offset": start}
        world.answer([((TOPIC, 0), row)], pieces=lambda: chance.choice((1, 20, 300, 4_000)))
    assert stored_by(log) == stored(leader)
    assert log.epochs == [each for each in leader.log.epochs if each[1] < leader.log.end_offset]
    assert sorted(log.native.producers.rows()) == sorted(leader.log.native.producers.rows())
    assert log.last_stable_offset == min(leader.log.last_stable_offset, log.high_watermark)
    assert world.told == []
    world.close()


@pytest.mark.soak
def test_a_hostile_leader_costs_one_connection(tmp_path, seeds):
    chance = random.Random(1)
    world = World(tmp_path, batch_bytes_max=1 << 20)
    logs = [world.log(index) for index in range(3)]
    leader = LogWorld(tmp_path / "leader", topic_config())
    write_at_random(leader, chance, 40)
    ends = 0
    for _ in seeds(400, 20_000):
        if not world.fetch.connected:
            world.connect()
            ends += 1
        for index in range(3):
            world.fetch.resume(TOPIC, index)
        if world.fetch.waiting_since_ms == 0:
            world.fetch.go()
        try:
            world.far.settimeout(0.01)
            world.request()
        except (TimeoutError, OSError):
            world.fetch.detach("the next")
            continue
        data = bytearray(stored(leader))
        for _ in range(chance.choice((0, 0, 1, 3))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        rows = [
            ((TOPIC, chance.randrange(4)), {"records": bytes(data[: chance.randrange(len(data) + 1)])})
            for _ in range(chance.randrange(4))
        ]
        frame = bytearray(world.frame(rows))
        for _ in range(chance.choice((0, 0, 1, 2, 8))):
            frame[chance.randrange(0 if chance.random() < 0.1 else 4, len(frame))] = chance.randrange(256)
        if chance.random() < 0.2:
            del frame[chance.randrange(4, len(frame)) :]
        if chance.random() < 0.2:
            frame += os.urandom(chance.randrange(1, 50))
        world.far.settimeout(5)
        try:
            world.send(bytes(frame), pieces=lambda: chance.choice((7, 500, 60_000)))
        except OSError:
            pass
        if chance.random() < 0.3:
            world.fetch.detach("the next")
        if chance.random() < 0.1:
            log = chance.choice(logs)
            world.fetch.stop(TOPIC, log.partition, TRUNCATING)
            log.truncate_fully_and_start_at(0)
    assert not world.fatal and ends > 20
    assert world.fetch.buffer_bytes <= 4 << 20
    for log in logs:
        assert stored_by(log) is not None
    world.close()


def raising(error):
    raise error


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("connected", [False, True])
def test_a_partition_may_be_removed_while_its_log_is_called(world, leader, connected, fails):
    one, two = world.log(0), world.log(1)
    leader.append(count=3)
    records = stored(leader)
    world.connect()
    world.asked()

    def remove():
        world.during_call = lambda: None
        assert world.fetch.remove(TOPIC, 0)
        if not connected:
            world.fetch.detach("nothing else is fetched")
        if fails:
            raise OSError(28, "no space")

    world.during_call = remove  # at the first epoch
    world.answer([((TOPIC, 0), {"records": records}), ((TOPIC, 1), {"records": records})])
    assert one.end_offset == 0 and len(world.fetch) == 1
    if connected:
        assert two.end_offset == 3 and world.told == []
        assert world.asked()[2:] == ({(TOPIC, 1): (0, 3, 0, 0)}, {(TOPIC, 0)})
    else:
        assert two.end_offset == 0 and world.told == [("lost", "nothing else is fetched")]


def test_a_large_buffer_outlives_a_connection_that_is_closed_while_a_log_is_called(world, leader):
    world.log(0, segment_bytes=1 << 20)
    leader.log.update_config(topic_config(max_message_bytes=16 << 20))
    leader.append()
    leader.append(size=9 << 20)  # asks for a new segment when it has come whole
    world.connect()
    world.asked()
    calls = []

    def detach():
        calls.append(world.fetch.buffer_bytes)
        if len(calls) == 2:
            world.fetch.detach("enough")

    world.during_call = detach
    world.answer([((TOPIC, 0), {"records": stored(leader)})])
    world.poll(400)
    assert len(calls) == 2 and calls[1] > 9 << 20
    assert world.told == [("lost", "enough")] and world.fetch.buffer_bytes == 0


def test_an_overlap_that_cannot_be_handled_is_told_once(world, leader):
    log = overlapping(world, leader)
    error = OSError(28, "no space")
    world.during_call = lambda: raising(error)
    world.answer([((TOPIC, 0), {"records": stored(leader)})])
    assert log.end_offset == 2
    assert world.told == [("refused", TOPIC, 0, 0, error)]
    assert world.fetch.state_of(TOPIC, 0)[0] == DELAYED


def test_a_partition_that_stopped_while_it_was_throttled_is_fetched_again(tmp_path):
    table = QuotaTable(1)
    table.enter(0)
    quota = ReplicationQuota(table)
    world = World(tmp_path, quota=quota)
    one, _ = world.log(0), world.log(1)
    world.connect()
    world.asked()
    one.native.throttled = 1 << FOLLOWER
    quota.limit(FOLLOWER, 1)
    quota.add(FOLLOWER, 1 << 20, int(time.monotonic() * 1000))
    world.answer()
    assert world.asked()[2:] == ({}, {(TOPIC, 0)})  # held back
    world.fetch.stop(TOPIC, 0, DELAYED)
    world.answer()
    world.asked()
    quota.limit(FOLLOWER, None)
    world.fetch.resume(TOPIC, 0)
    world.answer()
    assert world.asked()[2] == {(TOPIC, 0): (0, 0, -1, 0)}
    world.close()


@pytest.mark.parametrize("options", [{"version": 12}, {"version": 19}, {"client_id": b""}])
def test_what_cannot_be_asked_for_is_refused(tmp_path, options):
    reactor = Reactor(PartitionTable(), None)
    with pytest.raises(ValueError):
        ReplicaFetch(reactor, None, **{"broker_id": 7, "client_id": b"id", **options})
    reactor.close()


def test_states_have_numbers():
    assert (FETCHING, DELAYED, TRUNCATING, FAILED) == (0, 1, 2, 3)


def epochs_of(count):
    """As many batches, each of a leader epoch of its own."""
    return b"".join(bytes(batch(base_offset=at, leader_epoch=at)) for at in range(count))


def longest_turn(world, data, until):
    """Send as much of it as fits, and let the loop turn, until `until`. Return the longest turn, in seconds
    of the loop's own time, whatever else the machine does."""
    longest, at = 0.0, 0
    gc.disable()  # a collection looks at the objects of all tests; a broker has frozen its own
    try:
        for _ in range(100_000):
            if until():
                world.far.settimeout(5)
                return longest
            world.far.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                at += world.far.send(data[at:])
            before = time.thread_time()
            world.poll(1)
            longest = max(longest, time.thread_time() - before)
    finally:
        gc.enable()
    raise AssertionError("it does not come to its end")


def test_thousands_of_epochs_in_one_answer_are_many_turns(world):
    count = 3_000
    log = world.log(epoch=count)
    world.connect()
    world.asked()
    answer = world.frame([((TOPIC, 0), {"records": epochs_of(count), "high_watermark": count})])
    assert longest_turn(world, answer, lambda: log.high_watermark == count) < 0.1
    assert (log.end_offset, len(log.epochs)) == (count, count)
    assert world.asked()[2] == {(TOPIC, 0): (count, count, count - 1, 0)}
    assert world.told == []


@pytest.mark.parametrize("closes", ["closed by the leader", "detached", "removed"])
def test_an_answer_that_is_parsed_in_turns_may_lose_its_connection_or_partition(world, closes):
    log = world.log(epoch=3_000)
    world.connect()
    world.asked()
    longest_turn(
        world, world.frame([((TOPIC, 0), {"records": epochs_of(3_000)})]), lambda: log.end_offset > 0
    )
    assert log.end_offset < 3_000
    if closes == "detached":
        world.fetch.detach("enough")
    elif closes == "removed":
        assert world.fetch.remove(TOPIC, 0)
    else:
        world.far.close()
    end = log.end_offset
    for _ in range(1_000):
        world.poll(1)
        time.sleep(0.0005)
    assert [each[0] for each in world.told] == ["lost"] * (closes != "removed")
    assert log.end_offset == end if closes != "closed by the leader" else log.end_offset >= end
