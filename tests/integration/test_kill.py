"""kill -9 under load: what was acknowledged is there, once, in order; watermarks never move back.

Idempotent producers (librdkafka, acks=all) write numbered records to several partitions while the broker is
killed at random moments and started again. The producers live through all rounds, as they do in production.
20 rounds here (12 where one worker of several is killed), 500 in `make soak`.
"""

import os
import random
import threading
import time
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.testing import Broker
from tests.shortages import Shortages

pytestmark = pytest.mark.workers(2)

SEED = int(os.environ.get("KAFKAD_SEED", "20260801"))
PARTITIONS = 4
PRODUCERS = 2
TOPIC = "killed"


class Writer(threading.Thread):
    """An idempotent producer; numbers its records per partition, notes what was acknowledged, and where."""

    def __init__(self, name: str, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.label = name
        self.stopping = threading.Event()
        self.sent: dict[int, int] = defaultdict(int)
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)  # partition -> number -> offset
        self.failures: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "queue.buffering.max.messages": 3000,  # what waits is delivered within a few rounds, or stuck
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "compression.type": self.random.choice(["none", "lz4", "zstd"]),
                "error_cb": self._error,
            }
        )

    def _error(self, error):
        if error.fatal():
            self.failures.append(f"fatal: {error}")

    def _delivered(self, error, message):
        if error is not None:
            self.failures.append(f"{message.partition()}: {error}")
            return
        number = int(message.value().split(b":")[1])
        self.acknowledged[message.partition()][number] = message.offset()

    def delivered(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def run(self):
        while not self.stopping.is_set():
            partition = self.random.randrange(PARTITIONS)
            number = self.sent[partition]
            value = b"%s:%d:" % (self.label.encode(), number) + b"x" * self.random.randrange(3000)
            try:
                self.producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                self.producer.poll(0.05)
                continue
            self.sent[partition] = number + 1
            self.producer.poll(0)
            if number % 40 == 0:
                time.sleep(0.005)

    def finish(self):
        self.stopping.set()
        self.join()
        assert self.producer.flush(90) == 0, "records were never acknowledged"


def wait_for_progress(writers: list[Writer]) -> None:
    """Until every writer has had an acknowledgement from the broker that runs now: a kill without load in
    between
    would prove nothing. librdkafka takes about a second to come back."""
    before = [writer.delivered() for writer in writers]
    deadline = time.monotonic() + 30
    while not all(writer.delivered() > was for writer, was in zip(writers, before, strict=True)):
        assert time.monotonic() < deadline, "a producer does not get going again"
        time.sleep(0.005)


def watermarks(bootstrap: str) -> dict[int, tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                return {
                    p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=10)
                    for p in range(PARTITIONS)
                }
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    finally:
        consumer.close()


def check_all(bootstrap: str, ends: dict[int, tuple[int, int]], writers: list[Writer]) -> None:
    """Reads everything: no hole, each writer's records once and in order, at the offsets that it was told."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    by_label = {writer.label: writer for writer in writers}
    found = dict.fromkeys(range(PARTITIONS), 0)
    numbers = {(writer.label, p): 0 for writer in writers for p in range(PARTITIONS)}
    want = {p: high for p, (_, high) in ends.items()}
    heard = time.monotonic()
    while found != want:
        for message in consumer.consume(1000, timeout=1.0):
            assert message.error() is None, message.error()
            p, heard = message.partition(), time.monotonic()
            assert message.offset() == found[p], f"a hole in partition {p}"
            found[p] += 1
            label, number, _ = message.value().decode().split(":")
            assert int(number) == numbers[label, p], f"lost, doubled or reordered in partition {p}"
            numbers[label, p] += 1
            told = by_label[label].acknowledged[p].get(int(number))
            # -1: recognised as a duplicate long ago
            assert told in (None, -1, message.offset()), f"{told} was acknowledged, not {message.offset()}"
        assert time.monotonic() < heard + 60, f"{found} of {want} can be read"
    consumer.close()
    for writer in writers:
        for p in range(PARTITIONS):
            assert numbers[writer.label, p] == writer.sent[p], f"the last records of partition {p} are lost"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_acknowledged_records_survive_kill_9_once_and_in_order(tmp_path, rounds):
    def kill(broker, _):
        broker.kill()
        broker.restart()

    write_while_killed(tmp_path, rounds(20, 500), kill, None)


@pytest.mark.workers()  # it takes its own numbers of workers
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [2, 3])
def test_acknowledged_records_survive_kill_9_of_a_worker_once_and_in_order(tmp_path, rounds, workers):
    """Also of the one that leads the metadata, and of one that has just come back."""

    def kill(broker, chance):
        broker.kill_worker(chance.randrange(workers))
        if chance.random() < 0.2:
            broker.kill_worker(chance.randrange(workers))

    write_while_killed(tmp_path, rounds(6, 500), kill, workers)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [None, 2])
def test_acknowledged_records_survive_shortages_and_kill_9(tmp_path, rounds, workers):
    """Between the kills some calls that take room, a descriptor, memory or a thread fail. Only requests
    fail with them, and when that is over the producers go on.
    """
    switch = Shortages(tmp_path / "control")

    def kill(broker, chance):
        switch.begin(chance.choice((0.02, 0.3)), seed=chance.getrandbits(32) | 1)
        time.sleep(chance.uniform(0.2, 0.8))
        assert broker.running, "a shortage ended the broker"
        switch.end()
        if workers is None:
            broker.kill()
            broker.restart()
        else:
            broker.kill_worker(chance.randrange(workers))

    write_while_killed(tmp_path, rounds(5, 200), kill, workers, switch)
    assert switch.failed > 20


def write_while_killed(tmp_path, rounds, kill, workers, switch=None, **where):
    """`where`: the broker's data, if not in a directory of its own."""
    chance = random.Random(SEED)
    environment = {} if switch is None else switch.environment(tmp_path / "data")
    config = {
        "log.segment.bytes": 1
        << 20,  # the least that Kafka allows: rolls, and so snapshots and new indexes, happen all the time
        "log.retention.check.interval.ms": 300_000,
        "log.flush.offset.checkpoint.interval.ms": 500,
    }
    where = where or {"data_dir": tmp_path / "data"}
    with Broker(config=config, workers=workers, env=environment, **where) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        writers = [Writer(f"w{i}", broker.bootstrap, SEED + i) for i in range(PRODUCERS)]
        for writer in writers:
            writer.start()
        high = dict.fromkeys(range(PARTITIONS), 0)
        for _ in range(rounds):
            wait_for_progress(writers)
            time.sleep(chance.uniform(0, 0.4))
            told = {p: w[1] for p, w in watermarks(broker.bootstrap).items()}
            time.sleep(chance.uniform(0, 0.05))
            kill(broker, chance)
            after = {p: w[1] for p, w in watermarks(broker.bootstrap).items()}
            for p in range(PARTITIONS):
                assert told[p] >= high[p], f"the high watermark of {p} moved back while the broker ran"
                assert after[p] >= told[p], f"the high watermark of {p} moved back over a kill"
            high = after
        for writer in writers:
            writer.finish()
        assert all(not w.failures for w in writers), [w.failures[:3] for w in writers]
        check_all(broker.bootstrap, watermarks(broker.bootstrap), writers)
