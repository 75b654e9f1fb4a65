"""Power loss: what was acknowledged under `log.flush.interval.messages=1` is there when the power comes back.

A real broker works on a disk whose every change is recorded (tests/power.py); it is killed, and starts
again on what such a disk may hold after its power went at that moment: all that was synced, and of the rest
any pages, sizes and names. Idempotent producers, a consumer and an admin live through all rounds, as in
production, and write down what they were told, and when; so a second broker can be started on the disk as
it may have been at any earlier moment, too (a branch), and be held to what had been told until then.

`KAFKAD_SEED` repeats the dice, though not the timing.
"""

import os
import random
import shutil
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkad.protocol import messages
from kafkad.protocol.errors import NOT_LEADER_OR_FOLLOWER
from kafkad.testing import Broker
from tests.jvm import free_port
from tests.power import Disk
from tests.wire import Wire, batch, create_topic, produce_request

pytestmark = pytest.mark.workers(2)

SEED = int(os.environ.get("KAFKAD_SEED", "20261121"))
WRITERS = 2
LIFE_ROUNDS = 10  # then a fresh disk, so that reading everything stays quick
KEPT, SHORT, GROUP = "kept", "short", "committer"
PLACES = [(KEPT, 0), (KEPT, 1), (KEPT, 2), (SHORT, 0)]
CONFIG = {
    "log.segment.bytes": 1 << 20,
    "log.index.size.max.bytes": 1 << 14,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 150,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "offsets.topic.num.partitions": 2,
}
FLUSH = {"log.flush.interval.messages": 1}

Place = tuple[str, int]


def now_ns() -> int:
    return time.monotonic_ns()


# -- what clients were told --------------------------------------------------------------------------------


@dataclass(slots=True)
class Change:
    """Of a topic, to `state`: its retention.ms, or None when it is gone. `end` None: nobody knows."""

    begin: int
    state: str | None
    end: int | None = None


@dataclass
class Facts:
    """All with the moment at which the client knew."""

    acks: list[tuple[int, Place, str, int, int]] = field(default_factory=list)  # writer, number, offset
    seen: list[tuple[int, Place, int, bytes]] = field(default_factory=list)  # offset, value
    told: list[tuple[int, Place, int, int]] = field(default_factory=list)  # earliest, latest offset
    commits: list[tuple[int, int, int]] = field(default_factory=list)  # partition, offset
    topics: dict[str, list[Change]] = field(default_factory=dict)

    def states(self, name: str, at: int) -> set[str | None]:
        """What a topic may be after power loss at that moment."""
        allowed: set[str | None] = {None}
        for change in self.topics[name]:
            if change.begin > at:
                break
            if change.end is not None and change.end <= at:
                allowed = {change.state}
            else:
                allowed.add(change.state)
        return allowed


class Writer(threading.Thread):
    """An idempotent producer that numbers its records by place."""

    def __init__(self, label: str, bootstrap: str, seed: int, facts: Facts) -> None:
        super().__init__(daemon=True)
        self.label, self.facts = label, facts
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.sent: dict[Place, int] = defaultdict(int)
        self.delivered = 0
        self.failures: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 40,
                "queue.buffering.max.messages": 3000,  # what waits is delivered within a few rounds, or stuck
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "compression.type": self.chance.choice(["none", "lz4"]),
                "log_level": 0,
                "error_cb": self._error,
            }
        )

    def _error(self, error):
        if error.fatal():
            self.failures.append(f"fatal: {error}")

    def _delivered(self, error, message):
        if error is not None:
            self.failures.append(f"{message.topic()}-{message.partition()}: {error}")
            return
        place = message.topic(), message.partition()
        number = int(message.value().split(b":")[1])
        self.facts.acks.append((now_ns(), place, self.label, number, message.offset()))
        self.delivered += 1

    def run(self):
        while not self.stopping.is_set():
            topic, partition = place = self.chance.choice(PLACES)
            value = b"%s:%d:" % (self.label.encode(), self.sent[place])
            value += self.chance.randbytes(self.chance.randrange(4000))
            try:
                self.producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
                self.sent[place] += 1
            except BufferError:
                self.producer.poll(0.05)
            self.producer.poll(0)
            if self.chance.random() < 0.04:
                time.sleep(0.004)

    def finish(self):
        self.stopping.set()
        self.join()
        assert self.producer.flush(60) == 0, "records were never acknowledged"


def wait_for_progress(writers: list[Writer]) -> None:
    """Until each has had an acknowledgement from the broker that runs now.

    librdkafka looks once a second for a broker that it lost, so on a busy machine a writer may miss several
    lives of it. What it tries again then may have been deleted meanwhile (Admin.trim), and with it what tells
    a record that came twice.
    """
    before = [writer.delivered for writer in writers]
    deadline = time.monotonic() + 60
    while any(writer.delivered == was for writer, was in zip(writers, before, strict=True)):
        assert time.monotonic() < deadline, "a producer does not get going again"
        assert not any(writer.failures for writer in writers), [writer.failures for writer in writers]
        time.sleep(0.005)


class Watcher(threading.Thread):
    """A consumer without a group: what it has seen was committed data."""

    def __init__(self, bootstrap: str, facts: Facts) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.facts = facts
        self.failures: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self.consumer.assign([TopicPartition(topic, index, 0) for topic, index in PLACES])

    def run(self):
        while not self.stopping.is_set():
            for message in self.consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    place = message.topic(), message.partition()
                    self.facts.seen.append((now_ns(), place, message.offset(), message.value()))
        self.consumer.close()

    def finish(self):
        self.stopping.set()
        self.join()


class Admin(threading.Thread):
    """Makes, alters and deletes topics, commits offsets, deletes records, asks for offsets; one at a time."""

    def __init__(self, bootstrap: str, seed: int, facts: Facts) -> None:
        super().__init__(daemon=True)
        self.bootstrap, self.facts = bootstrap, facts
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.failures: list[str] = []
        self.live: list[str] = []
        self.made = 0
        self.committed = 0

    def run(self):
        try:
            while not self.stopping.is_set():
                try:
                    with Wire(self.bootstrap, timeout=20) as wire:
                        while not self.stopping.is_set():
                            self.step(wire)
                except OSError:
                    time.sleep(0.01)
        except Exception as trouble:
            self.failures.append(repr(trouble))

    def step(self, wire: Wire) -> None:
        what = self.chance.choices(
            (self.create, self.alter, self.delete, self.commit, self.fetch, self.trim, self.ask),
            (2, 2, 1, 6, 2, 0.3, 6),
        )[0]
        what(wire)
        time.sleep(self.chance.uniform(0, 0.01))

    def create(self, wire: Wire) -> None:
        name = f"made{self.made}"
        self.made += 1
        change = Change(now_ns(), "1000")
        self.facts.topics[name] = [change]
        create_topic(wire, name, partitions=self.chance.randint(1, 2), retention_ms="1000")
        change.end = now_ns()
        self.live.append(name)

    def alter(self, wire: Wire) -> None:
        if self.live:
            name = self.live.pop(
                self.chance.randrange(len(self.live))
            )  # not touched again unless it is known
            change = Change(now_ns(), str(self.chance.randrange(2000, 1 << 30)))
            self.facts.topics[name].append(change)
            resource = messages.IncrementalAlterConfigsRequest.Resources
            request = messages.IncrementalAlterConfigsRequest(
                resources=[
                    resource(
                        resource_type=2,
                        resource_name=name,
                        configs=[
                            resource.Configs(name="retention.ms", config_operation=0, value=change.state)
                        ],
                    )
                ]
            )
            answer = wire.ask(request, 1)
            change.end = now_ns()
            assert answer.responses[0].error_code == 0, answer
            self.live.append(name)

    def delete(self, wire: Wire) -> None:
        if self.live:
            name = self.live.pop(self.chance.randrange(len(self.live)))
            change = Change(now_ns(), None)
            self.facts.topics[name].append(change)
            answer = wire.ask(messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), 5)
            change.end = now_ns()
            assert answer.responses[0].error_code == 0, answer

    def commit(self, wire: Wire) -> None:
        self.committed += 1
        index, offset = self.committed % 3, self.committed
        struct = messages.OffsetCommitRequest.Topics
        request = messages.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                struct(
                    name=KEPT,
                    partitions=[struct.Partitions(partition_index=index, committed_offset=offset)],
                )
            ],
        )
        code = wire.ask(request, 8).topics[0].partitions[0].error_code
        if code == 0:
            self.facts.commits.append((now_ns(), index, offset))
        else:
            assert code in (14, 15, 16), code  # the coordinator is loading, or its topic is being made
            find = messages.FindCoordinatorRequest(key=GROUP)
            wire.ask(find, 2)

    def fetch(self, wire: Wire) -> None:
        found = fetch_commits(wire)
        self.facts.commits += [(now_ns(), index, offset) for index, offset in found.items()]

    def trim(self, wire: Wire) -> None:
        place = PLACES[0]
        low, high = offsets(wire)[place]
        before = self.chance.randint(low, low + (high - low) // 3)
        struct = messages.DeleteRecordsRequest.Topics
        request = messages.DeleteRecordsRequest(
            timeout_ms=10_000,
            topics=[
                struct(
                    name=place[0],
                    partitions=[struct.Partitions(partition_index=place[1], offset=before)],
                )
            ],
        )
        answer = wire.ask(request, 2).topics[0].partitions[0]
        if answer.error_code == NOT_LEADER_OR_FOLLOWER:
            raise ConnectionError(answer)
        assert answer.error_code == 0, answer
        self.facts.told.append((now_ns(), place, answer.low_watermark, 0))

    def ask(self, wire: Wire) -> None:
        found = offsets(wire)
        self.facts.told += [(now_ns(), place, low, high) for place, (low, high) in found.items()]

    def finish(self):
        self.stopping.set()
        self.join()


def offsets(wire: Wire) -> dict[Place, tuple[int, int]]:
    """Earliest and latest offset of every place. ConnectionError while one is not served yet."""
    found: dict[Place, list[int]] = defaultdict(list)
    struct = messages.ListOffsetsRequest.Topics
    for timestamp in (-2, -1):
        request = messages.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                struct(name=topic, partitions=[struct.Partitions(partition_index=index, timestamp=timestamp)])
                for topic, index in PLACES
            ],
        )
        for topic in wire.ask(request, 6).topics:
            for answer in topic.partitions:
                if answer.error_code == NOT_LEADER_OR_FOLLOWER:  # its worker went before the one we asked
                    raise ConnectionError(answer)
                assert answer.error_code == 0, answer
                found[topic.name, answer.partition_index].append(answer.offset)
    return {place: (low, high) for place, (low, high) in found.items()}


def fetch_commits(wire: Wire) -> dict[int, int]:
    struct = messages.OffsetFetchRequest.Topics
    request = messages.OffsetFetchRequest(
        group_id=GROUP, topics=[struct(name=KEPT, partition_indexes=[0, 1, 2])]
    )
    answer = wire.ask(request, 7)
    if answer.error_code or any(partition.error_code for partition in answer.topics[0].partitions):
        return {}
    return {
        partition.partition_index: partition.committed_offset
        for partition in answer.topics[0].partitions
        if partition.committed_offset >= 0
    }


# -- holding a broker to it --------------------------------------------------------------------------------


def verify(broker: Broker, facts: Facts, at: int) -> None:
    """All that was told until `at` is so. Clients may be at work on the broker meanwhile."""
    with Wire(broker.bootstrap) as wire:
        have = offsets(wire)
        commits = fetch_commits(wire)
        verify_topics(wire, facts, at)
    for ns, place, low, high in facts.told[:]:
        if ns <= at:
            assert have[place][0] >= low, (
                f"the log start of {place} went back: {low} was told, now {have[place]}"
            )
            assert have[place][1] >= high, f"HW of {place} went back: {high} was told, now {have[place]}"
    for ns, index, offset in facts.commits[:]:
        assert ns > at or commits.get(index, -1) >= offset, (
            f"the commit {offset} of {index} is lost: {commits}"
        )
    records = read(broker, have)
    with Wire(broker.bootstrap) as wire:  # records may have been deleted under the reader, which then went on
        have = offsets(wire)
    verify_records(
        {place: [row for row in found if row[0] >= have[place][0]] for place, found in records.items()},
        have,
        facts,
        at,
    )


def verify_topics(wire: Wire, facts: Facts, at: int) -> None:
    answer = wire.ask(messages.MetadataRequest(topics=None), 9)
    there = {topic.name for topic in answer.topics}
    assert {KEPT, SHORT} <= there
    names = [name for name in list(facts.topics) if facts.topics[name][0].begin <= at]
    struct = messages.DescribeConfigsRequest.Resources
    asked = [
        struct(resource_type=2, resource_name=name, configuration_keys=["retention.ms"])
        for name in sorted(there.intersection(names))
    ]
    have = {}
    for result in wire.ask(messages.DescribeConfigsRequest(resources=asked), 4).results if asked else ():
        # an admin at work may have deleted it meanwhile
        have[result.resource_name] = result.configs[0].value if result.error_code == 0 else None
    later = {name for name in names if facts.topics[name][-1].begin > at}
    for name in names:
        if name not in later:
            assert have.get(name) in facts.states(name, at), (
                f"{name} is {have.get(name)}: {facts.topics[name]}"
            )
    for topic in answer.topics:
        assert (
            topic.name in names
            or topic.name in (KEPT, SHORT, "__consumer_offsets")
            or later
            or (topic.name in facts.topics)
        ), topic.name
        for partition in topic.partitions:
            assert partition.error_code == 0, (topic.name, partition)


def read(broker: Broker, have: dict[Place, tuple[int, int]]) -> dict[Place, list[tuple[int, bytes]]]:
    """(offset, value) of all records of every place, up to where it ended."""
    found: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
    missing = {place for place, (low, high) in have.items() if low < high}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(*place, have[place][0]) for place in missing])
    deadline = time.monotonic() + 60
    while missing:
        assert time.monotonic() < deadline, f"{missing} cannot be read to its end: {have}"
        for message in consumer.consume(2000, timeout=0.1):
            assert message.error() is None, message.error()
            place = message.topic(), message.partition()
            found[place].append((message.offset(), message.value()))
            if message.offset() >= have[place][1] - 1:
                missing.discard(place)
    consumer.close()
    return found


def verify_records(
    records: dict[Place, list[tuple[int, bytes]]],
    have: dict[Place, tuple[int, int]],
    facts: Facts,
    at: int,
) -> None:
    values = {place: dict(found) for place, found in records.items()}
    first = {place: found[0][0] if found else have[place][1] for place, found in records.items()}
    for place, found in records.items():
        begin = first[place]
        assert [offset for offset, _ in found] == list(range(begin, begin + len(found))), f"holes in {place}"
        numbers = defaultdict(list)
        for _, value in found:
            label, number, _ = value.split(b":", 2)
            numbers[label].append(int(number))
        for label, got in numbers.items():
            assert got == list(range(got[0], got[0] + len(got))), (
                f"{place}, {label}: lost, doubled or reordered"
            )
    for ns, place, label, number, offset in facts.acks[:]:
        if ns <= at and offset >= first[place]:
            value = values[place].get(offset, b"nothing")
            assert value.startswith(b"%s:%d:" % (label.encode(), number)), (
                f"{label}:{number} was acknowledged at {offset} of {place}, where {value[:20]!r} is"
            )
    for ns, place, offset, value in facts.seen[:]:
        if ns <= at and offset >= first[place]:
            assert values[place].get(offset) == value, (
                f"offset {offset} of {place} was read, and is different now"
            )


# -- the tests ---------------------------------------------------------------------------------------------


def power_broker(disk: Disk, config: dict[str, object], listen: str | None = None) -> Broker:
    return Broker(config=config, data_dir=disk.root / "data", env=disk.env(), listen=listen)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_that_was_told_is_lost_with_the_power(tmp_path, rounds):
    left = rounds(5, 500)
    life = 0
    while left > 0:
        one_life(tmp_path / str(life), random.Random(SEED + life), min(left, LIFE_ROUNDS))
        shutil.rmtree(tmp_path / str(life))
        left -= LIFE_ROUNDS
        life += 1


def one_life(directory: Path, chance: random.Random, count: int) -> None:
    config = {**CONFIG, **FLUSH}
    facts = Facts()
    disk = Disk(directory / "disk", sync_us=chance.choice([0, 1000, 4000]))
    listen = f"127.0.0.1:{free_port()}"
    broker = power_broker(disk, config, listen).start()
    clients: list = []
    try:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, KEPT, 3)
            create_topic(wire, SHORT, 1, retention_bytes=str(1 << 20))
        clients += [Writer(f"w{i}", listen, chance.random(), facts) for i in range(WRITERS)]
        clients += [Admin(listen, chance.random(), facts), Watcher(listen, facts)]
        for client in clients:
            client.start()
        for number in range(count):
            began = now_ns()
            wait_for_progress(clients[:WRITERS])
            for _ in range(chance.choice([1, 1, 2])):
                time.sleep(chance.uniform(0.2, 0.7))
                broker.kill() if chance.random() < 0.9 else broker.stop()
                at = now_ns()
                if chance.random() < 0.3:
                    disk.settle()
                    broker.restart()  # without power loss: it finds what nobody has synced
            broker.kill()
            at = now_ns()
            how = chance.choice(["least", "mixed", "mixed", "mixed"])
            image = disk.image(directory / f"disk{number}", chance, how=how)
            if chance.random() < 0.5:
                earlier = chance.randint(began, at)
                branch = disk.image(directory / f"branch{number}", chance, how=how, at_ns=earlier)
                with power_broker(branch, config) as other:
                    try:
                        verify(other, facts, earlier)
                    except BaseException:
                        print("a branch:", other.log)
                        raise
                shutil.rmtree(branch.root)
            broker.close()
            shutil.rmtree(disk.root)
            disk.trace.unlink()
            disk = image
            broker = power_broker(disk, config, listen).start()
            verify(broker, facts, at)
        for client in clients:
            client.finish()
        verify(broker, facts, now_ns())
        assert not [client.failures for client in clients if client.failures]
    except BaseException:
        print([client.failures[:2] for client in clients], broker.log)
        raise
    finally:
        for client in clients:
            client.stopping.set()
        broker.close()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_power_may_go_during_the_first_start(tmp_path, rounds):
    chance = random.Random(SEED)
    disk = Disk(tmp_path / "disk")
    began = now_ns()
    with power_broker(disk, {**CONFIG, **FLUSH}) as broker:
        ready = now_ns()
        with Wire(broker.bootstrap) as wire:
            cluster = wire.ask(messages.MetadataRequest(), 9).cluster_id
            create_topic(wire, KEPT, 3)
            created = now_ns()
        broker.kill()
    for number in range(rounds(6, 150)):
        at = chance.randint(began + (ready - began) // 2, created + 1_000_000)
        image = disk.image(tmp_path / f"image{number}", chance, at_ns=at)
        with power_broker(image, CONFIG) as broker, Wire(broker.bootstrap) as wire:
            found = wire.ask(messages.MetadataRequest(topics=None), 9)
            if at >= ready:
                assert found.cluster_id == cluster
            if at >= created:
                assert KEPT in {topic.name for topic in found.topics}
            create_topic(wire, "another")
        shutil.rmtree(image.root)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_clean_stop_needs_no_flush_policy(tmp_path, rounds):
    """Kafka's default flushes nothing while it runs, but everything before the clean-shutdown mark."""
    chance = random.Random(SEED)
    disk = Disk(tmp_path / "disk", sync_us=0)
    facts = Facts()
    for number in range(rounds(2, 40)):
        broker = power_broker(disk, CONFIG).start()
        clients: list = []
        try:
            if number == 0:
                with Wire(broker.bootstrap) as wire:
                    create_topic(wire, KEPT, 3)
                    create_topic(wire, SHORT, 1, retention_bytes=str(1 << 20))
            label = f"w{number}"
            clients += [
                Writer(label, broker.bootstrap, SEED + number, facts),
                Watcher(broker.bootstrap, facts),
            ]
            clients += [Admin(broker.bootstrap, SEED + number, facts)]
            clients[-1].made = clients[-1].committed = 1_000_000 * number
            for client in clients:
                client.start()
            time.sleep(chance.uniform(0.3, 0.6))
            for client in clients:
                client.finish()
            assert broker.stop() == 0
        finally:
            for client in clients:
                client.stopping.set()
            broker.close()
        disk = disk.image(tmp_path / f"disk{number}", chance, how=chance.choice(["least", "mixed"]))
        with power_broker(disk, CONFIG) as again:
            verify(again, facts, now_ns())
            if chance.random() < 0.5:
                again.kill()
        assert "cut at position" not in again.log


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("messages_max", [10, 100])
def test_at_most_as_many_messages_as_the_flush_policy_allows_are_lost(tmp_path, rounds, messages_max):
    chance = random.Random(SEED + messages_max)
    config = {**CONFIG, "log.flush.interval.messages": messages_max}
    disk = Disk(tmp_path / "disk", sync_us=1000)
    broker = power_broker(disk, config).start()
    try:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, KEPT, 3)
            create_topic(wire, SHORT, 1)
        kept: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        for number in range(rounds(2, 50)):
            with Wire(broker.bootstrap) as wire:
                for turn in range(chance.randrange(100, 400)):
                    place = chance.choice(PLACES)
                    values = [b"%d:%d:%d" % (number, turn, i) for i in range(chance.randint(1, 4))]
                    data = batch(*(value + bytes(chance.randrange(2000)) for value in values))
                    answer = wire.ask(produce_request(place[0], data, place[1], acks=-1), 9)
                    [answer] = answer.responses[0].partition_responses
                    assert (answer.error_code, answer.base_offset) == (0, len(kept[place]))
                    kept[place] += values
            broker.kill()
            how = chance.choice(["least", "mixed"])
            image = disk.image(tmp_path / f"disk{number}", chance, how=how)
            broker.close()
            disk = image
            broker = power_broker(disk, config).start()
            with Wire(broker.bootstrap) as wire:
                have = offsets(wire)
            for place, found in read(broker, have).items():
                left = [value.rstrip(b"\0") for _, value in found]
                assert left == kept[place][: len(left)], "not the beginning of what was written"
                assert len(kept[place]) - len(left) <= messages_max, f"too much is lost of {place}"
                kept[place] = left
    finally:
        broker.close()
