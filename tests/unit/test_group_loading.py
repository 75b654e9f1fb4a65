"""Loading `__consumer_offsets`: the native pass keeps what a replay of each record keeps; nobody waits while
a large partition loads; offsets of topics that are gone are dropped."""

import errno
import gc
import itertools
import os
import random
import time
from types import SimpleNamespace

import pytest
from coordinator_world import GROUP, World, play
from log_world import LogWorld, topic_config
from log_world import ManualScheduler as ThreadScheduler

from kafkad._native.wire.latest_records import LatestRecords
from kafkad.clock import Clock, ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator import records
from kafkad.coordinator.records import CommittedOffset
from kafkad.coordinator.runtime import GroupCoordinator, at_once
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import ABORT, COMMIT, Record, build_batch, end_marker
from kafkad.server import group_loader
from kafkad.server.group_loader import GroupLoader
from tests.reference.slow_offsets import SlowOffsets

TOPIC_ID = bytes(range(16))


def offset_record(group, offset, topic="t", partition=0, topic_id=TOPIC_ID, **fields):
    committed = None if offset is None else CommittedOffset(offset, topic_id=topic_id, **fields)
    value = None if committed is None else records.offset_value(committed)
    return Record(records.offset_key(group, topic, partition), value, timestamp=1)


def group_record(group, generation):
    value = messages.GroupMetadataValue(
        protocol_type="consumer", generation=generation, protocol=None, leader=None, members=[]
    )
    return Record(records.group_key(group), records._versioned(3, value), timestamp=1)


# -- the native pass and its slow twin


def random_record(chance):
    group = f"g{chance.randrange(12)}é"
    kind = chance.random()
    if kind < 0.1:
        return Record(records.group_key(group), None, timestamp=1)
    if kind < 0.2:
        return group_record(group, chance.randrange(100))
    if kind < 0.25:  # a newer kind of group
        return Record(b"\0\5" + os.urandom(3), b"\0\0whatever", timestamp=1)
    offset = None if chance.random() < 0.15 else chance.randrange(1 << 40)
    record = offset_record(
        group,
        offset,
        topic=chance.choice(["t", "u", "größe"]),
        partition=chance.randrange(3),
        topic_id=chance.choice([bytes(16), TOPIC_ID]),
        leader_epoch=chance.choice([-1, 7]),
        metadata=chance.choice(["", "m", "ü" * 20, "x" * 300]),
        commit_timestamp_ms=chance.randrange(1 << 40),
        expire_timestamp_ms=chance.choice([-1, -1, 99]),
    )
    if chance.random() < 0.1:
        record = Record(b"\0\0" + record.key[2:], record.value, timestamp=1)
    if record.value is not None and chance.random() < 0.1:  # as older brokers write
        value = messages.OffsetCommitValue(offset=4, metadata="old", commit_timestamp=5)
        record = Record(record.key, records._versioned(chance.choice([0, 1, 2, 3]), value), timestamp=1)
    return record


def random_log(chance, count):
    """Batches as bytes, with gaps in their offsets; each producer's transactions end or stay open."""
    offset = 0
    for _ in range(count):
        producer = chance.randrange(3)
        kind = chance.random()
        if kind < 0.1:
            marker = end_marker(chance.choice([COMMIT, ABORT]), 0, timestamp=1)
            fields = {"transactional": True, "control": True, "producer_id": producer, "producer_epoch": 0}
            batch = [marker]
        else:
            fields = {}
            batch = [random_record(chance) for _ in range(chance.randrange(1, 6))]
            if kind < 0.3:
                fields = {"transactional": True, "producer_id": producer, "producer_epoch": 0}
                batch = [record for record in batch if record.key[1] in (0, 1)] or [offset_record("g1é", 1)]
            elif kind < 0.5:
                fields = {"compression": chance.choice([1, 3, 4])}
        offset += chance.choice([0, 0, 3])
        yield bytes(build_batch(batch, base_offset=offset, **fields))
        offset += len(batch)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_record_of_each_key_is_what_a_replay_of_all_records_says(seed):
    chance = random.Random(seed)
    data = b"".join(random_log(chance, 60))
    start_offset = chance.choice([0, 0, 30])
    slow = SlowOffsets(start_offset)
    slow.replay(data)

    world = World()
    shard = world.coordinator.begin_load(0)
    position = 0
    while position < len(data):  # cut anywhere
        end = min(len(data), position + chance.randrange(1, 4000))
        position += shard.replay.feed(data[position:end], start_offset)
    world.coordinator.end_load(shard)
    assert not shard.loading

    found = {
        (group_id, topic, partition): committed
        for group_id in shard.offsets.group_ids()
        for topic, partitions in shard.offsets.of_group(group_id).items()
        for partition, committed in partitions.items()
    }
    assert found == slow.offsets
    assert {topic: set(shard.offsets.groups_of_topic(topic)) for topic in shard.offsets.topics()} == {
        topic: {key[0] for key in slow.offsets if key[1] == topic}
        for topic in {key[1] for key in slow.offsets}
    }
    assert {name: shard.groups[name].generation for name in slow.groups} == {
        name: value.generation for name, value in slow.groups.items()
    }
    still_open = {key: committed for commits in slow.open.values() for key, committed in commits.items()}
    assert still_open.keys() <= {key for key, _ in shard.offsets.open_commits()}


def test_what_does_not_parse_is_malformed_and_nothing_worse():
    good = bytes(build_batch([offset_record("g", 1), group_record("g", 1)]))
    chance = random.Random(5)
    for _ in range(3000):
        data = bytearray(good * 2)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        world = World()
        shard = world.coordinator.begin_load(0)
        try:
            shard.replay.feed(bytes(data[: chance.randrange(len(data) + 1)]))
            list(shard.load_steps())
        except Malformed:
            pass


@pytest.mark.parametrize(
    "batch",
    [
        build_batch([Record(None, b"value", timestamp=1)]),
        build_batch([Record(b"", b"value", timestamp=1)]),
        build_batch([Record(b"\0\1\0\5", b"value", timestamp=1)]),
        build_batch([Record(offset_record("g", 1).key, b"\0\4short", timestamp=1)]),
        build_batch([Record(offset_record("g", 1).key, b"\0\7" + bytes(40), timestamp=1)]),
        build_batch([offset_record("g", 1)])[:16] + b"\1" + bytes(80),
    ],
)
def test_a_partition_that_lies_is_not_served(batch):
    world = World()
    with pytest.raises(Malformed):
        world.coordinator.load(world.shard.index, [bytes(batch)])
    play("fetch t_0\n  NOT_COORDINATOR", world)


def test_keys_grow_values_shrink_and_tables_widen():
    latest = LatestRecords()
    for round_number in range(3):
        for number in range(3000):
            latest.put(
                b"key %d" % number, bytes((number * 7 + round_number * 50) % 200), number + round_number
            )
    latest.put(b"key 5", None, 10_000)
    assert len(latest) == 3000
    assert latest.last(b"key 5") == (10_000, True) and latest.last(b"key 6") == (8, False)
    assert latest.last(b"nothing") is None
    taken = []
    while len(latest):
        made, others = latest.take(700, {}, {}, tuple)
        assert made == 0
        taken += others
    assert [key for key, _, _ in taken] == [b"key %d" % number for number in range(3000) if number != 5]
    assert all(
        len(value) == (number * 7 + 100) % 200
        for number, (_, value, _) in zip([n for n in range(3000) if n != 5], taken, strict=True)
    )


# -- HUNTS S3: nobody waits for a load


class Loading:
    """Partition 0 of `__consumer_offsets` in files, a coordinator, and the loader between them."""

    def __init__(self, tmp_path, batches, segment_bytes=1 << 30, clock=None):
        self.scheduler = ThreadScheduler()
        config = topic_config(segment_bytes=segment_bytes, cleanup_policy=("compact",))
        self.logs = {0: LogWorld(tmp_path, config, self.scheduler).log}
        for batch in batches:
            self.logs[0].append(bytearray(batch), 1)
        self.storage = World().storage
        self.storage.partitions = 1
        self.groups = GroupCoordinator(
            BrokerConfig(), clock or Clock(), self.scheduler, self.storage, lambda: "uuid"
        )
        self.loader = GroupLoader(self.groups, self, self.scheduler)

    def find(self, topic, index):
        assert topic == "__consumer_offsets"
        return self.logs.get(index)

    def fetched(self, group, partition=0):
        """The offset, or an error code's name."""
        Groups = messages.OffsetFetchRequest.Groups
        asked = Groups(group_id=group, topics=[Groups.Topics(name="t", partition_indexes=[partition])])
        answers = []
        at_once(self.groups.fetch(asked, False, answers.append))
        if answers[0].error_code:
            return errors.NAMES[answers[0].error_code]
        return answers[0].topics[0].partitions[0].committed_offset


def many(count, groups, start=0):
    """`count` offset records of `groups` groups; record n commits offset n for partition n % 10."""
    for base in range(0, count, 1000):
        yield build_batch(
            [
                offset_record(f"group-{number % groups}", start + number, partition=number % 10)
                for number in range(base, base + 1000)
            ]
        )


def test_a_large_partition_is_read_in_a_thread_and_refuses_meanwhile(tmp_path):
    """HUNTS S3: the old coordinator was loaded when `load` returned, after seconds."""
    loading = Loading(tmp_path, many(20_000, 500))
    loading.loader.load(0)
    assert loading.scheduler.threads == [] and loading.groups.shards[0].loading
    loading.loader.load(0)  # again, as a change of metadata may ask
    assert loading.fetched("group-1") == "COORDINATOR_LOAD_IN_PROGRESS"
    loading.scheduler.run()
    assert len(loading.scheduler.threads) == 1
    assert loading.fetched("group-1") == "COORDINATOR_LOAD_IN_PROGRESS"
    assert loading.groups.heartbeat("group-1", "member", None, 1) == errors.NONE
    assert at_once(loading.groups.list([], [])).error_code == errors.COORDINATOR_LOAD_IN_PROGRESS
    assert loading.groups.describe("group-1", 5).error_code == errors.COORDINATOR_LOAD_IN_PROGRESS
    codes = []
    loading.groups.delete_group("group-1", codes.append)
    loading.groups.delete_offsets(messages.OffsetDeleteRequest(group_id="group-1"), codes.append)
    loading.groups.leave("group-1", [("member", None)], codes.append)
    loading.groups.sync(messages.SyncGroupRequest(group_id="group-1"), codes.append)
    loading_code = errors.COORDINATOR_LOAD_IN_PROGRESS
    assert [codes[0], codes[1].error_code, codes[2][0], codes[3].error_code] == [loading_code] * 4
    loading.scheduler.settle()
    assert loading.fetched("group-1", 1) == 19_501
    assert loading.fetched("group-499", 9) == 19_999


def test_a_load_is_made_of_short_turns(tmp_path):
    """HUNTS S3: CPU time, so that a busy machine changes nothing."""
    loading = Loading(tmp_path, many(60_000, 60_000))
    turns = []
    call_later = loading.scheduler.call_later

    def timed(delay_ms, function):
        def turn():
            begun = time.thread_time()
            function()
            turns.append(time.thread_time() - begun)

        return call_later(delay_ms, turn)

    loading.scheduler.call_later = timed
    loading.loader.load(0)
    while loading.groups.shards[0].loading:
        loading.scheduler.settle()
    assert loading.fetched("group-59999", 9) == 59_999
    assert len(turns) > 10
    assert max(turns) < 0.05, sorted(turns)[-5:]


def test_a_small_partition_is_served_at_once(tmp_path):
    """By a clock that stands still, for a turn of a busy machine may end before its work."""
    loading = Loading(tmp_path, many(1_000, 10), clock=ManualClock(0, 0))
    loading.loader.load(0)
    assert loading.fetched("group-3", 3) == 993


@pytest.mark.parametrize("place", ["build", "feed"])
@pytest.mark.parametrize("count", [1_000, 20_000])
def test_a_record_that_nobody_has_foreseen_costs_its_partition_and_no_worker(
    tmp_path, monkeypatch, caplog, place, count
):
    """In each place of a load: small or large, while it is read or while groups are made of it."""
    loading = Loading(tmp_path, many(count, 10), clock=ManualClock(0, 0))

    def fail(*arguments):
        raise KeyError("a record")

    if place == "build":
        monkeypatch.setattr("kafkad.coordinator.offsets.Offsets.take_loaded", fail)
    else:
        monkeypatch.setattr("kafkad.coordinator.loading.Replay.feed", fail)
    loading.loader.load(0)
    loading.scheduler.settle()
    assert loading.fetched("group-3") == "NOT_COORDINATOR"
    [line] = [line for line in caplog.messages if "its groups are not served" in line]
    assert "a record" in line


def test_a_load_is_cancelled_and_the_next_one_goes_on(tmp_path):
    loading = Loading(tmp_path / "0", many(20_000, 500))
    loading.logs[1] = Loading(tmp_path / "1", many(20_000, 500, start=1_000_000)).logs[0]
    loading.loader.load(0)
    loading.loader.load(1)
    loading.scheduler.run()
    loading.groups.unload(0)  # while the thread reads
    assert loading.fetched("group-1") == "NOT_COORDINATOR"
    loading.scheduler.settle()
    assert set(loading.groups.shards) == {1} and not loading.groups.shards[1].loading
    loading.loader.load(0)  # led again
    loading.scheduler.settle()
    assert loading.fetched("group-1", 1) == 19_501


def test_files_that_cannot_be_opened_are_tried_again(tmp_path, monkeypatch, caplog):
    loading = Loading(tmp_path, many(20_000, 500))
    opened = group_loader.os.open

    def no_descriptor(*args):
        raise OSError(errno.EMFILE, "Too many open files")

    loading.loader.load(0)
    monkeypatch.setattr(group_loader.os, "open", no_descriptor)
    loading.scheduler.settle()
    assert loading.fetched("group-1") == "COORDINATOR_LOAD_IN_PROGRESS"
    assert "__consumer_offsets-0 cannot be read yet: [Errno 24] Too many open files" in caplog.text
    monkeypatch.setattr(group_loader.os, "open", opened)
    loading.scheduler.run(group_loader.RETRY_MS)
    loading.scheduler.settle()
    assert loading.fetched("group-1", 1) == 19_501


def test_a_partition_that_cannot_be_read_holds_up_no_other(tmp_path, monkeypatch, caplog):
    loading = Loading(tmp_path / "0", many(20_000, 500))
    loading.logs[1] = Loading(tmp_path / "1", many(20_000, 500, start=1_000_000)).logs[0]
    opened = group_loader.os.open

    def broken(path, *args):
        if str(path).startswith(str(tmp_path / "0")):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args)

    monkeypatch.setattr(group_loader.os, "open", broken)
    loading.loader.load(0)
    loading.loader.load(1)
    loading.scheduler.settle()
    assert loading.groups.shards[0].loading and not loading.groups.shards[1].loading
    assert gc.isenabled()
    for _ in range(4):
        loading.scheduler.run(group_loader.RETRY_MS_MAX)
        loading.scheduler.settle()
        assert loading.groups.shards[0].loading and gc.isenabled()
    delays = [int(line.rsplit(" ", 2)[1]) for line in caplog.messages if "cannot be read yet" in line]
    assert delays == [1, 2, 4, 8, 16]
    monkeypatch.setattr(group_loader.os, "open", opened)
    loading.scheduler.run(group_loader.RETRY_MS_MAX)
    loading.scheduler.settle()
    assert not loading.groups.shards[0].loading


def test_segments_that_are_deleted_meanwhile_are_passed_over(tmp_path, monkeypatch):
    loading = Loading(tmp_path, many(30_000, 30_000), segment_bytes=1 << 20)
    monkeypatch.setattr(group_loader, "READ_AT_ONCE", 1 << 19)
    log = loading.logs[0]
    loading.loader.load(0)
    loading.scheduler.run()
    loading.scheduler.work()  # a part of the first segment
    bases = [base for base, _, _ in log.native.segment_rows()]
    assert len(bases) > 2
    log.advance_log_start(bases[2])
    log.apply_retention(1)
    for name in os.listdir(log.directory):
        if name.endswith(".deleted"):
            os.unlink(os.path.join(log.directory, name))
    loading.scheduler.settle()
    assert loading.fetched("group-29999", 9) == 29_999
    assert loading.fetched(f"group-{bases[2] - 1}", (bases[2] - 1) % 10) == -1


def test_a_segment_that_ends_within_a_batch_is_not_served(tmp_path, caplog):
    loading = Loading(tmp_path, many(20_000, 500))
    (base, size, _), *_ = loading.logs[0].native.segment_rows()
    os.truncate(os.path.join(loading.logs[0].directory, f"{base:020d}.log"), size - 5)
    loading.loader.load(0)
    loading.scheduler.settle()
    assert loading.fetched("group-1") == "NOT_COORDINATOR"
    assert (
        "__consumer_offsets-0 cannot be loaded, its groups are not served: segment 0 ends within"
        in caplog.text
    )


def test_a_batch_larger_than_a_chunk_is_read(tmp_path):
    large = [offset_record(f"g{number}", number, metadata="x" * 4000) for number in range(600)]
    loading = Loading(tmp_path, [*many(1_000, 10), build_batch(large), *many(1_000, 10)])
    loading.loader.load(0)
    loading.scheduler.settle()
    assert loading.fetched("g599") == 599 and loading.fetched("group-3", 3) == 993


# -- HUNTS W5, S4: topics that are gone


def commit(world, group, topic="t", topic_id=TOPIC_ID, offset=9):
    Topics = messages.OffsetCommitRequest.Topics
    partition = Topics.Partitions(partition_index=0, committed_offset=offset)
    request = messages.OffsetCommitRequest(
        group_id=group, topics=[Topics(name=topic, topic_id=topic_id, partitions=[partition])]
    )
    world.coordinator.commit(request, 10, lambda response: None)


def names_and_offsets(world, group=GROUP):
    answers = []
    asked = messages.OffsetFetchRequest.Groups(group_id=group, topics=None)
    at_once(world.coordinator.fetch(asked, False, answers.append))
    return {topic.name: topic.partitions[0].committed_offset for topic in answers[0].topics}


@pytest.mark.parametrize("now", [None, bytes(15) + b"\2"], ids=["no topic", "another topic"])
def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_dropped_at_load(now):
    """HUNTS W5: its new namesake inherited them."""
    world = World()
    world.storage.topic_ids = {"t": TOPIC_ID, "kept": TOPIC_ID}
    commit(world, GROUP)
    commit(world, GROUP, "kept", offset=3)
    world.storage.topic_ids["t"] = now  # the worker was dead
    world.start()
    assert names_and_offsets(world) == {"kept": 3}
    play("log\n  offset t_0 9\n  offset kept_0 3\n  offset t_0 -", world)
    world.storage.topic_ids["t"] = TOPIC_ID
    world.start()  # the tombstone is in the log
    assert names_and_offsets(world) == {"kept": 3}


def test_an_offset_without_a_topic_id_is_kept_while_there_is_such_a_topic():
    world = World()
    commit(world, GROUP, topic_id=bytes(16))
    world.storage.topic_ids["t"] = TOPIC_ID
    world.start()
    assert names_and_offsets(world) == {"t": 9}
    world.storage.topic_ids["t"] = None
    world.start()
    assert names_and_offsets(world) == {}


def test_a_topic_that_is_deleted_while_its_groups_load_takes_its_offsets_with_it():
    world = World()
    commit(world, GROUP, topic_id=bytes(16))
    index = world.shard.index
    shard = world.coordinator.begin_load(index)
    for batch in world.storage.logs[index]:
        shard.replay.feed(batch)
    world.coordinator.on_topics_deleted([("t", TOPIC_ID)])
    world.coordinator.end_load(shard)
    assert names_and_offsets(world) == {}


def test_a_fetch_by_name_finds_no_offset_of_an_older_topic():
    """HUNTS W5: the name was all that counted."""
    world = World()
    commit(world, GROUP)
    world.storage.topic_ids["t"] = bytes(15) + b"\2"
    play("fetch t_0\n  t_0=-1\nfetch\n  nothing", world)
    world.storage.topic_ids["t"] = TOPIC_ID
    play("fetch t_0\n  t_0=9", world)


def cpu_of_deletion(groups, topics=300):
    world = World()
    for number in range(groups):
        commit(world, f"group-{number}", "other")
    for number in range(topics):
        commit(world, f"group-{number % 10}", f"topic-{number}")
    begun = time.thread_time()
    world.coordinator.on_topics_deleted([(f"topic-{number}", TOPIC_ID) for number in range(topics)])
    world.scheduler.advance(0)
    taken = time.thread_time() - begun
    assert names_and_offsets(world, "group-5") == {"other": 9}
    return taken


def test_deleting_topics_costs_nothing_for_groups_that_do_not_read_them():
    """HUNTS S4: it cost topics times groups."""
    few, many_groups = (min(cpu_of_deletion(groups) for _ in range(3)) for groups in (100, 1_600))
    assert many_groups < 4 * few


def test_a_commit_between_two_turns_of_a_deletion_stays():
    world = World()
    for number in range(2_000):
        commit(world, GROUP, f"topic-{number}", topic_id=bytes(16))
    ticks = itertools.count()  # each look at the clock ends the turn
    world.coordinator._slices._clock = SimpleNamespace(monotonic_ms=lambda: next(ticks))
    world.coordinator.on_topics_deleted([(f"topic-{number}", bytes(16)) for number in range(2_000)])
    left = names_and_offsets(world)
    assert 0 < len(left) < 2_000, "one turn did it all"
    for name in left:
        commit(world, GROUP, name, topic_id=TOPIC_ID, offset=77)
    for _ in range(200):
        world.scheduler._queue and world.scheduler._queue[0][2].function()
        world.scheduler._queue = world.scheduler._queue[1:]
    assert names_and_offsets(world) == dict.fromkeys(left, 77)
