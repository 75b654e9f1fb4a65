"""kill -9 of the broker, or of one of its workers, while groups consume: every record is processed at least
once, committed offsets never move back.

Two members read, commit what they have processed and come and go, one of them static (KIP-345); a producer
writes; the broker is killed at random moments and started again. The clients live through all rounds, as in
production.
4 rounds here, 500 in `make soak`.
"""

import os
import random
import threading
import time
from collections import defaultdict

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.wire import Wire

pytestmark = pytest.mark.workers(2)

SEED = int(os.environ.get("KAFKAD_SEED", "20261121"))
TOPIC, GROUP, PARTITIONS = "worked", "workers", 4
BACKLOG = 20_000  # records that are not yet committed
LATER = (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR)
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Member(threading.Thread):
    """Processes a batch of records, then commits where it stands; now and then it leaves and joins again."""

    def __init__(self, name: str, bootstrap: str, seed: int, *, static: bool) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.processed: set[tuple[int, int]] = set()  # partition, offset
        self.committed: list[tuple[int, int]] = []  # partition, offset: acknowledged
        self.assignments = 0
        self.trouble: list[str] = []
        self.config = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range" if seed % 2 else "roundrobin,range",
            "fetch.wait.max.ms": 50,
            **({"group.instance.id": name} if static else {}),
            **QUICK,
        }

    def run(self):
        try:
            while not self.stopping.is_set():
                self.live()
        except Exception as trouble:
            self.trouble.append(repr(trouble))

    def live(self):
        client = Consumer(self.config)
        client.subscribe([TOPIC], on_assign=self._assigned)
        until = time.monotonic() + self.chance.uniform(1.5, 6)
        try:
            while time.monotonic() < until and not self.stopping.is_set():
                records = [m for m in client.consume(200, timeout=0.1) if m.error() is None]
                if not records:
                    continue
                self.processed.update((m.partition(), m.offset()) for m in records)
                if self.chance.random() < 0.7:
                    self.commit(client)
        finally:
            client.close()

    def _assigned(self, _client, _partitions):
        self.assignments += 1

    def commit(self, client: Consumer) -> None:
        try:
            done = client.commit(asynchronous=False)
        except KafkaException:
            return  # killed, or rebalanced meanwhile: somebody will read it again
        self.committed += [(p.partition, p.offset) for p in done or () if p.error is None and p.offset >= 0]

    def finish(self):
        self.stopping.set()
        self.join(30)
        assert not self.is_alive(), "a consumer does not close"
        assert not self.trouble, self.trouble


class Writer(threading.Thread):
    """Writes up to `allowed` records: members that were away for long should have a chance to catch up."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.failures: list[str] = []
        self.count = 0
        self.allowed = BACKLOG
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUICK}
        )

    def run(self):
        while not self.stopping.is_set():
            if self.count >= self.allowed:
                self.producer.poll(0.01)
                continue
            self.producer.produce(
                TOPIC, b"%d" % self.count, partition=self.count % PARTITIONS, on_delivery=self._told
            )
            self.count += 1
            self.producer.poll(0)
            if self.count % 20 == 0:
                time.sleep(0.01)

    def _told(self, error, _message):
        if error is not None:
            self.failures.append(str(error))

    def finish(self):
        self.stopping.set()
        self.join()
        assert self.producer.flush(60) == 0
        assert not self.failures, self.failures[:3]


def committed(bootstrap: str) -> dict[int, int]:
    """Partition -> committed offset, as soon as the coordinator has loaded them."""
    struct = messages.OffsetFetchRequest.Topics
    asked = struct(name=TOPIC, partition_indexes=list(range(PARTITIONS)))
    deadline = time.monotonic() + 30  # a worker that dies often is started again after 10 s
    while True:
        try:
            with Wire(bootstrap) as wire:
                answer = wire.ask(messages.OffsetFetchRequest(group_id=GROUP, topics=[asked]), 7)
        except OSError as closed:  # by the death of the worker that served it
            trouble = repr(closed)
        else:
            if not answer.error_code:
                break
            assert answer.error_code in LATER, answer
            trouble = repr(answer)
        assert time.monotonic() < deadline, trouble
        time.sleep(0.02)
    return {
        found.partition_index: found.committed_offset
        for found in answer.topics[0].partitions
        if found.committed_offset >= 0
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_groups_live_through_kill_9(tmp_path, rounds):
    def kill(broker, _):
        broker.kill()
        broker.restart()

    consume_while_killed(tmp_path, rounds(4, 500), kill, None)


@pytest.mark.workers()  # it takes its own numbers of workers
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_groups_live_through_kill_9_of_a_worker(tmp_path, rounds):
    """The coordinator's worker, that of the records, or one that only carries the connection."""
    consume_while_killed(
        tmp_path, rounds(4, 500), lambda broker, chance: broker.kill_worker(chance.randrange(2)), 2
    )


def consume_while_killed(tmp_path, rounds, kill, workers):
    chance = random.Random(SEED)
    config = {
        "log.segment.bytes": 1 << 20,
        "offsets.topic.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 100,
        "group.min.session.timeout.ms": 1000,
    }
    with Broker(config=config, data_dir=tmp_path / "data", workers=workers) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUICK})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        writer = Writer(broker.bootstrap)
        members = [
            Member("static-member", broker.bootstrap, SEED, static=True),
            Member("passing-member", broker.bootstrap, SEED + 1, static=False),
        ]
        for thread in (writer, *members):
            thread.start()
        told: dict[int, int] = defaultdict(int)
        for _ in range(rounds):
            time.sleep(chance.uniform(0.8, 2.5))
            for partition, offset in committed(broker.bootstrap).items():
                assert offset >= told[partition], "a committed offset moved back while the broker ran"
                told[partition] = offset
            writer.allowed = sum(told.values()) + BACKLOG
            time.sleep(chance.uniform(0, 0.2))
            kill(broker, chance)
            after = committed(broker.bootstrap)
            for partition, offset in told.items():
                assert after.get(partition, -1) >= offset, "a committed offset moved back over a kill"
        writer.finish()

        total = writer.count
        ends = {p: total // PARTITIONS + (p < total % PARTITIONS) for p in range(PARTITIONS)}
        want = {(p, offset) for p in range(PARTITIONS) for offset in range(ends[p])}
        deadline = time.monotonic() + 40
        while set().union(*(member.processed for member in members)) != want:
            missing = want - set().union(*(member.processed for member in members))
            assert time.monotonic() < deadline, f"{len(missing)} never processed: {sorted(missing)[:3]}"
            time.sleep(0.1)

        while any(member.assignments < 2 for member in members):
            assert time.monotonic() < deadline, "a member was never in a rebalance"
            time.sleep(0.1)
        for member in members:
            member.finish()
        have = committed(broker.bootstrap)
        for member in members:
            for partition, offset in member.committed:
                assert have[partition] >= offset, f"the commit of {offset} for partition {partition} is lost"
        assert all(have.get(p, 0) <= ends[p] for p in range(PARTITIONS))
        settle(broker, admin, ends)


def settle(broker: Broker, admin: AdminClient, ends: dict[int, int]) -> None:
    """After the last round the group is stable with new members, and goes on where it stood."""
    clients = []
    for _ in range(2):
        client = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "error",
                "session.timeout.ms": 3000,
                "enable.auto.commit": False,
                **QUICK,
            }
        )
        client.subscribe([TOPIC])
        clients.append(client)
    try:
        deadline = time.monotonic() + 20
        while True:
            for client in clients:
                for message in client.consume(100, timeout=0.05):
                    assert message.error() is None, message.error()
            assigned = sorted(p.partition for client in clients for p in client.assignment())
            state = admin.describe_consumer_groups([GROUP])[GROUP].result(10).state
            if assigned == list(range(PARTITIONS)) and state == ConsumerGroupState.STABLE:
                break
            assert time.monotonic() < deadline, f"the group is {state}, assigned {assigned}"
        clients[0].commit(
            offsets=[TopicPartition(TOPIC, p.partition, ends[p.partition]) for p in clients[0].assignment()],
            asynchronous=False,
        )
        clients[1].commit(
            offsets=[TopicPartition(TOPIC, p.partition, ends[p.partition]) for p in clients[1].assignment()],
            asynchronous=False,
        )
        assert committed(broker.bootstrap) == ends
    finally:
        for client in clients:
            client.close()
