"""A compacted topic under writers, transactions, readers and kill -9, while the log cleaner runs.

The keys and values that are left are the writers', whatever was killed. Meanwhile consumers read from the
start at both isolation levels, and ask for offsets by time: none hears of an error, and none of those that
read committed records sees one of an aborted transaction.
1 round here for each number of workers, 100 in `make soak`."""

import contextlib
import os
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.testing import Broker
from tests.clients import wait_until

SEED = int(os.environ.get("KAFKAD_SEED", "20261123"))
TOPIC, PARTITIONS, KEYS = "table", 2, 300
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "log_level": 0}
ABORTED = b"aborted"
CONFIG = {
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.threads": 2,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "log.segment.delete.delay.ms": 500,
}


class Kills:
    """Which of them clients may have felt: a question that fails beside none is a fault."""

    def __init__(self) -> None:
        self.begun = self.over = 0

    def felt(self, since: int) -> bool:
        return self.begun > self.over or self.begun > since


class Part(threading.Thread):
    """Does `turn` again and again until it is stopped."""

    def __init__(self, broker: Broker, seed: int) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.trouble: list[str] = []

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turn()
            self.end()
        except Exception as trouble:
            self.trouble.append(repr(trouble))

    def turn(self) -> None: ...

    def end(self) -> None: ...

    def finish(self) -> None:
        self.stopping.set()
        self.join(90)
        assert not self.is_alive() and self.trouble == []


class Writer(Part):
    def __init__(self, broker: Broker, seed: int, name: str, *, transactional: bool) -> None:
        super().__init__(broker, seed)
        self.name_of_keys = name
        self.latest: dict[bytes, bytes | None] = {}
        self.transactional = transactional
        own = {"transactional.id": name} if transactional else {"enable.idempotence": True}
        self.client = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2, **own, **QUICK})
        if transactional:
            self.client.init_transactions(60)

    def records(self, count: int) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = {}
        for _ in range(count):
            key = b"%s %d" % (self.name_of_keys.encode(), self.chance.randrange(KEYS))
            found[key] = None if self.chance.random() < 0.1 else self.chance.randbytes(150)
        return found

    def turn(self) -> None:
        records = self.records(200)
        if not self.transactional:
            self.send(records)
            self.client.flush(60)
            self.latest.update(records)
            return
        commits = self.chance.random() < 0.6
        self.client.begin_transaction()
        try:
            self.send(records if commits else dict.fromkeys(records, ABORTED))
            self.client.flush(60)
            self.finish_transaction(commits)
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            self.finish_transaction(False)
            commits = False
        if commits:
            self.latest.update(records)

    def send(self, records: dict[bytes, bytes | None]) -> None:
        for key, value in records.items():
            self.client.produce(TOPIC, key=key, value=value)
            self.client.poll(0)

    def finish_transaction(self, commits: bool) -> None:
        while True:
            try:
                return self.client.commit_transaction(30) if commits else self.client.abort_transaction(30)
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise

    def end(self) -> None:
        assert self.client.flush(60) == 0


class Reader(Part):
    def __init__(self, broker: Broker, seed: int, isolation: str, kills: Kills) -> None:
        super().__init__(broker, seed)
        self.isolation = isolation
        self.kills = kills
        self.records = 0

    def turn(self) -> None:
        self.ask_by_time()
        found, count = read_all(self.broker, self.isolation, self.stopping)
        self.records += count
        if self.isolation == "read_committed":
            assert ABORTED not in found.values()

    def ask_by_time(self) -> None:
        known = self.kills.over
        then = [TopicPartition(TOPIC, index, 1_000 * int(time.time() - 5)) for index in range(PARTITIONS)]
        client = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "by time", **QUICK})
        try:
            answers = client.offsets_for_times(then, timeout=30)
            assert all(answer.error is None for answer in answers) or self.kills.felt(known), answers
        except KafkaException as failed:
            assert self.kills.felt(known), failed
        finally:
            client.close()


def read_all(broker: Broker, isolation: str, stopping: threading.Event | None = None):
    """The last value of each key, as one that begins anew finds it; and how many records there were."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "readers", "enable.auto.commit": False,
            "enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 20, **QUICK,
        }
    )  # fmt: skip
    found: dict[bytes, bytes | None] = {}
    count = ended = 0
    try:
        client.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        while ended < PARTITIONS and not (stopping is not None and stopping.is_set()):
            for message in client.consume(1000, 0.2):
                if message.error() is None:
                    found[message.key()] = message.value()
                    count += 1
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended += 1
    finally:
        client.close()
    return found, count


def dictionary(broker: Broker) -> dict[bytes, bytes]:
    """With delete.retention.ms=0 a read beside the cleaner may find a record and miss its tombstone, which
    went meanwhile: so ask again. One that the cleaner brought back would stay."""
    found, _ = read_all(broker, "read_committed")
    return {key: value for key, value in found.items() if value is not None}


def wanted(*writers: Writer) -> dict[bytes, bytes]:
    return {key: value for each in writers for key, value in each.latest.items() if value is not None}


def log_bytes(broker: Broker) -> int:
    total = 0
    for path in broker.data_dir.glob(f"{TOPIC}-*/*.log"):
        with contextlib.suppress(FileNotFoundError):  # the cleaner has replaced it since it was listed
            total += path.stat().st_size
    return total


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_latest_values_are_the_writers_whatever_is_killed(workers, rounds):
    chance = random.Random(SEED + workers)
    with Broker(workers=workers, config=CONFIG) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUICK})
        config = {
            "cleanup.policy": "compact", "internal.segment.bytes": "100000",
                "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0",
        }  # fmt: skip
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)])[TOPIC].result(30)
        plain = Writer(broker, SEED, "plain", transactional=False)
        transactional = Writer(broker, SEED + 1, "in transactions", transactional=True)
        kills = Kills()
        readers = [
            Reader(broker, SEED + 2 + at, isolation, kills)
            for at, isolation in enumerate(("read_committed", "read_uncommitted"))
        ]
        for part in (plain, transactional, *readers):
            part.start()
        for _ in range(rounds(1, 100)):
            time.sleep(chance.uniform(1.0, 2.5))
            kills.begun += 1
            if workers > 1 and chance.random() < 0.5:
                broker.kill_worker(chance.randrange(workers))
            else:
                broker.kill()
                broker.restart()
            time.sleep(1)
            kills.over = kills.begun
        time.sleep(2)
        plain.finish()
        transactional.finish()
        before = log_bytes(broker)
        for reader in readers:
            reader.finish()
            assert reader.records > 0
        wait_until(lambda: dictionary(broker) == wanted(plain, transactional))
        assert "is clean up to offset" in broker.log
        errors = [line for line in broker.log.splitlines() if " ERROR " in line]
        assert [line for line in errors if "has died: signal SIGKILL" not in line] == []
        # What is left: the latest of each key, and what was not cleaned yet.
        wait_until(lambda: log_bytes(broker) < 600_000)
        assert before < 20_000_000
        broker.restart()
        wait_until(lambda: dictionary(broker) == wanted(plain, transactional))
