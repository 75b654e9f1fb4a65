"""Power loss under transactions: with `log.flush.interval.messages=1`, what was committed stays, all of it,
and what was aborted is never seen.

As in test_power_loss.py, a real broker works on a disk whose every change is recorded, and goes on with what
such a disk may hold after its power went. Transactional producers live through all rounds: librdkafka, of
the older protocol, and kafkad's client, of the newer one (KIP-890). Each transaction writes to several
partitions, names its number in a group's offset, and is committed or aborted; some are left to their
time-out. A branch is a second broker on the disk as it may have been at an earlier moment.

`KAFKAD_SEED` repeats the dice, though not the timing."""

import random
import shutil
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from kafkad.client.cluster import Cluster, Unreachable
from kafkad.client.transactions import Transactions
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError
from tests.clients import WAIT_S, consumer, create_topic, wait_until
from tests.integration.test_power_loss import FLUSH, SEED, now_ns, power_broker
from tests.integration.test_transactions import values
from tests.integration.test_transactions_killed import QUICK, insist
from tests.jvm import TEST_CONFIG, free_port
from tests.power import Disk
from tests.wire import Wire

TOPIC, PARTITIONS, GROUP = "kept", 3, "numbers"
CONFIG = {
    **TEST_CONFIG,
    **FLUSH,
    "log.segment.bytes": 1 << 20,
    "log.index.size.max.bytes": 1 << 14,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
TIMEOUT_MS = 3_000
LATE, ABORTED = 0.01, 0.75  # below, it is left to its time-out; above, aborted
LIFE_ROUNDS = 10  # then a fresh disk, so that reading everything stays quick


@dataclass
class Transaction:
    """What its client did with it, and when. Values by partition, in order."""

    number: int
    values: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    asked: int | None = None  # when its commit was asked for; None: it never was
    committed: int | None = None  # when that was acknowledged


class Writer(threading.Thread):
    """One transactional id. `done` has its transactions in order; a client that fails is replaced."""

    def __init__(self, index: int, bootstrap: str, seed: int) -> None:
        """index: the partition of the group's offset that it commits its numbers to."""
        super().__init__(daemon=True)
        self.index, self.label, self.bootstrap = index, f"writer-{index}", bootstrap
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.done: list[Transaction] = []
        self.commits = self.aborts = self.replaced = 0
        self.trouble: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.live()
                self.replaced += 1
        except Exception as trouble:
            self.trouble = trouble
            raise

    def live(self) -> None:
        """One client, until it fails for good."""
        raise NotImplementedError

    def next(self) -> Transaction:
        self.done.append(Transaction(len(self.done)))
        return self.done[-1]

    def rows(self, transaction: Transaction) -> list[tuple[int, bytes]]:
        """(partition, value) of what it is to write."""
        rows = []
        for number in range(self.chance.randrange(1, 12)):
            partition = self.chance.randrange(PARTITIONS)
            value = b"%s:%d:%d:" % (self.label.encode(), transaction.number, number)
            value += b"x" * self.chance.choice([10, 200, 3000])
            transaction.values[partition].append(value)
            rows.append((partition, value))
        return rows

    def finish(self) -> None:
        self.stopping.set()
        self.join(WAIT_S * 2)
        assert not self.is_alive() and self.trouble is None, (self.label, self.trouble)


class Older(Writer):
    """librdkafka."""

    def live(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.label,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 1,
                "log_level": 0,
                **QUICK,
            }
        )
        reader = consumer(self, GROUP, log_level=0, **QUICK)
        try:
            insist(lambda: producer.init_transactions(5))
            while not self.stopping.is_set():
                self.write(producer, reader.consumer_group_metadata())
        except KafkaException as trouble:
            if not (trouble.args[0].fatal() or trouble.args[0].txn_requires_abort()):
                raise
        finally:
            reader.close()

    def write(self, producer, metadata) -> None:
        transaction = self.next()
        producer.begin_transaction()
        for partition, value in self.rows(transaction):
            producer.produce(TOPIC, value, partition=partition)
        fate = self.chance.random()
        if fate < LATE:
            producer.flush(0.2)
            time.sleep(TIMEOUT_MS / 1000 + 0.5)
        place = TopicPartition(TOPIC, self.index, transaction.number)
        insist(lambda: producer.send_offsets_to_transaction([place], metadata, 5))
        if fate > ABORTED:
            producer.flush(1)
            insist(lambda: producer.abort_transaction(5))
            self.aborts += 1
            return
        transaction.asked = now_ns()
        insist(lambda: producer.commit_transaction(5))
        transaction.committed = now_ns()
        self.commits += 1


class Newer(Writer):
    """kafkad's client, by the protocol of KIP-890."""

    def live(self) -> None:
        try:
            with Cluster(self.bootstrap) as cluster:
                client = Transactions(cluster, self.label, timeout_ms=TIMEOUT_MS)
                producer = client.producer(TOPIC)
                while not self.stopping.is_set():
                    self.write(client, producer)
        except (KafkaError, Unreachable):
            pass  # fenced by its own time-out, or the broker was away for long

    def write(self, client, producer) -> None:
        transaction = self.next()
        for partition, value in self.rows(transaction):
            producer.send(value, partition=partition)
        fate = self.chance.random()
        if fate < LATE:
            producer.flush()
            time.sleep(TIMEOUT_MS / 1000 + 0.5)
        client.send_offsets(GROUP, {(TOPIC, self.index): transaction.number})
        if fate > ABORTED:
            producer.flush()
            client.abort()
            self.aborts += 1
            return
        producer.flush()
        transaction.asked = now_ns()
        client.commit()
        transaction.committed = now_ns()
        self.commits += 1


class Watcher(threading.Thread):
    """A reader of what is committed: it has seen what it has seen."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.seen: list[tuple[int, bytes]] = []  # when, value

    def run(self) -> None:
        reader = consumer(self, "watcher", log_level=0, **QUICK, **{"isolation.level": "read_committed"})
        reader.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        while not self.stopping.is_set():
            rows = reader.consume(500, timeout=0.05)
            self.seen += [(now_ns(), row.value()) for row in rows if row.error() is None]
        reader.close()

    def finish(self) -> None:
        self.stopping.set()
        self.join(WAIT_S)


# -- holding a broker to it --------------------------------------------------------------------------------


def ends(broker, isolation: int) -> list[int]:
    """The last stable offset, or the high watermark, of each partition."""
    cls = messages.ListOffsetsRequest
    parts = [cls.Topics.Partitions(partition_index=index, timestamp=-1) for index in range(PARTITIONS)]
    request = cls(replica_id=-1, isolation_level=isolation, topics=[cls.Topics(name=TOPIC, partitions=parts)])
    with Wire(broker.bootstrap) as wire:
        (topic,) = wire.ask(request, 6).topics
    assert {part.error_code for part in topic.partitions} == {0}
    return [part.offset for part in sorted(topic.partitions, key=lambda part: part.partition_index)]


def verify(broker, writers: list[Writer], watcher: Watcher, at: int, *, is_quiet: bool) -> None:
    """All that was told until `at` is so. `is_quiet`: nobody has used this broker."""
    told = {writer.label: list(writer.done) for writer in writers}
    seen = [value for ns, value in watcher.seen if ns <= at]
    open_until = ends(broker, 0)
    wait_until(lambda: all(a >= b for a, b in zip(ends(broker, 1), open_until, strict=True)))
    found = values(broker, TOPIC, partitions=range(PARTITIONS))
    until = at if is_quiet else now_ns()
    visible: dict[tuple[str, int], dict[int, list[bytes]]] = {}
    for partition, rows in found.items():
        for value in rows:
            label, number, _, _ = value.split(b":", 3)
            one = visible.setdefault((label.decode(), int(number)), defaultdict(list))
            one[partition].append(value)

    for writer in writers:
        for transaction in writer.done[:] if not is_quiet else told[writer.label]:
            name = writer.label, transaction.number
            its = visible.get(name, {})
            if transaction.committed is not None and transaction.committed <= at:
                assert its == transaction.values, f"{name} was committed, and {len(its)} partitions have it"
            elif its:
                assert transaction.asked is not None and transaction.asked <= until, f"{name} is seen"
                if is_quiet:
                    assert its == transaction.values, f"half of {name} is seen"
                for partition, rows in its.items():
                    assert rows == transaction.values[partition], f"{name} in {partition}"
    there = {value for rows in found.values() for value in rows}
    assert all(value in there for value in seen), "records that were read are gone"

    reader = consumer(broker, GROUP)
    places = [TopicPartition(TOPIC, writer.index) for writer in writers]
    try:
        for writer, place in zip(writers, reader.committed(places, WAIT_S), strict=True):
            numbers = [number for label, number in visible if label == writer.label]
            last = max(numbers, default=-1)
            if is_quiet:
                assert max(place.offset, -1) == last, f"{writer.label}: {place.offset}"
            else:
                known = [each.number for each in told[writer.label] if (each.committed or until) <= at]
                assert place.offset >= max(known, default=-1), f"{writer.label}: {place.offset}"
    finally:
        reader.close()


def wait_for_progress(writers: list[Writer]) -> None:
    """Until each has committed with the broker that runs now."""
    before = [writer.commits for writer in writers]

    def is_so():
        assert not any(writer.trouble for writer in writers), [writer.trouble for writer in writers]
        return all(writer.commits > was for writer, was in zip(writers, before, strict=True))

    wait_until(is_so, 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_transactions_are_whole_after_a_power_loss(tmp_path, rounds):
    left = rounds(3, 100)
    life = 0
    while left > 0:
        one_life(tmp_path / str(life), random.Random(SEED + life), min(left, LIFE_ROUNDS))
        shutil.rmtree(tmp_path / str(life))
        left -= LIFE_ROUNDS
        life += 1


def one_life(directory: Path, chance: random.Random, count: int) -> None:
    disk = Disk(directory / "disk", sync_us=chance.choice([0, 1000, 4000]))
    listen = f"127.0.0.1:{free_port()}"
    broker = power_broker(disk, CONFIG, listen).start()
    writers: list[Writer] = [
        kind(index, listen, chance.randrange(1 << 30)) for index, kind in enumerate((Older, Newer))
    ]
    watcher = Watcher(listen)
    try:
        create_topic(broker, TOPIC, PARTITIONS)
        for client in (*writers, watcher):
            client.start()
        for number in range(count):
            began = now_ns()
            wait_for_progress(writers)
            time.sleep(chance.uniform(0.2, 0.7))
            broker.kill()
            at = now_ns()
            how = chance.choice(["least", "mixed", "mixed"])
            image = disk.image(directory / f"disk{number}", chance, how=how)
            earlier = chance.randint(began, at)
            branch = disk.image(directory / f"branch{number}", chance, how=how, at_ns=earlier)
            with power_broker(branch, CONFIG) as other:
                try:
                    verify(other, writers, watcher, earlier, is_quiet=True)
                except BaseException:
                    print("a branch:", other.log)
                    raise
            shutil.rmtree(branch.root)
            broker.close()
            shutil.rmtree(disk.root)
            disk.trace.unlink()
            disk = image
            broker = power_broker(disk, CONFIG, listen).start()
            verify(broker, writers, watcher, at, is_quiet=False)
        for client in (*writers, watcher):
            client.finish()
        verify(broker, writers, watcher, now_ns(), is_quiet=False)
        assert all(writer.aborts for writer in writers)
    except BaseException:
        print([writer.trouble for writer in writers], broker.log)
        raise
    finally:
        for client in (*writers, watcher):
            client.stopping.set()
        broker.close()
