"""Topics come, grow and go while workers die: what was answered is true in every worker, others lose nothing.

Admins make, extend, configure and delete topics whose names come again, clients write to them and read
them, and a worker is killed every second or so. Beside that, a producer writes to a topic that stays: what it
was told is there once and in order. In the end disk and metadata agree. 8 kills here, 500 in `make soak`.
"""

import random
import re
import threading
import time
import traceback
from abc import ABC, abstractmethod

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kafkad.testing import Broker
from tests.clients import create_topic, wait_until
from tests.integration.test_kill import (
    PARTITIONS,
    SEED,
    TOPIC,
    Writer,
    check_all,
    wait_for_progress,
    watermarks,
)

WORKERS = 3
NAMES = 5  # of each admin, again and again
# whether it was done, for a worker died over it
UNKNOWN = {"_TRANSPORT", "_DESTROY_BROKER", "REQUEST_TIMED_OUT"}
GONE = {"_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART"}
CLOSE_SECONDS = 20
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 100}


class Client(threading.Thread, ABC):
    """An exception that ends its work is a failure."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.failures: list[str] = []

    @abstractmethod
    def work(self) -> None:
        """Until it is told to stop."""

    def run(self):
        try:
            self.work()
        except Exception:
            self.failures.append(traceback.format_exc())


class Admin(Client):
    """Changes topics of its own, and looks whether what it was answered holds, whatever worker it reaches."""

    def __init__(self, label: str, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.label = label
        self.partitions: dict[str, int] = {}  # of the topics that are there
        self.unsure: set[str] = set()  # whose last change may be done or not
        self.done: list[str] = []

    def work(self):
        client = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        names = [f"{self.label}-{i}" for i in range(NAMES)]
        while not self.stopping.is_set():
            place = self.random.randrange(NAMES)
            name = names[place]
            try:
                self.change(client, name)
            except KafkaException as e:
                if e.args[0].name() not in UNKNOWN:
                    self.failures.append(f"{name}: {e}")
                self.unsure.add(name)
                self.partitions.pop(name, None)
                names[place] = f"{self.label}-{NAMES + len(self.unsure)}"
            self.check()
        for name in self.unsure:
            self.settle(client, name)

    def change(self, client: AdminClient, name: str) -> None:
        count = self.partitions.get(name)
        if count is None:
            count, size = self.random.choice([1, 2, 5]), str(1 << 20)
            config = {"segment.bytes": size, "retention.bytes": size}
            client.create_topics([NewTopic(name, count, 1, config=config)])[name].result(30)
            self.partitions[name] = count
            self.done.append("created")
        elif self.random.random() < 0.3:
            count += self.random.randrange(1, 4)
            client.create_partitions([NewPartitions(name, count)])[name].result(30)
            self.partitions[name] = count
            self.done.append("extended")
        elif self.random.random() < 0.3:
            entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
            client.incremental_alter_configs([resource])[resource].result(30)
            self.done.append("configured")
        else:
            client.delete_topics([name])[name].result(30)
            del self.partitions[name]
            self.done.append("deleted")

    def check(self) -> None:
        """By a new connection, so that it is any worker that is asked."""
        try:
            topics = (
                AdminClient({"bootstrap.servers": self.bootstrap, **QUIET}).list_topics(timeout=20).topics
            )
        except KafkaException:
            return  # the one that was asked has died
        have = {
            name: len(topic.partitions)
            for name, topic in topics.items()
            if name.startswith(self.label) and name not in self.unsure
        }
        if have != self.partitions:
            self.failures.append(f"{have} are there, {self.partitions} were answered")

    def settle(self, client: AdminClient, name: str) -> None:
        """After the last kill a change that nobody knows of can be made once more."""

        def gone():
            try:
                client.delete_topics([name])[name].result(30)
            except KafkaException as e:
                return e.args[0].name() == "UNKNOWN_TOPIC_OR_PART"
            return False

        wait_until(gone, timeout=30)


class Guest(Client):
    """Writes to the topics that come and go, and reads them; what becomes of its records is not asked."""

    def __init__(self, bootstrap: str, admins: list[Admin], seed: int) -> None:
        super().__init__(bootstrap, seed)
        self.admins = admins
        self.read = 0
        self.closed = 0
        self.stuck = 0

    def write(self, producer: Producer, name: str) -> None:
        try:
            for _ in range(20):
                producer.produce(name, self.random.randbytes(self.random.choice([10, 1000, 20_000])))
        except BufferError:
            producer.poll(0.1)
        except KafkaException as e:
            if e.args[0].name() not in GONE:
                raise

    def close(self, consumer: Consumer) -> None:
        """One that meets the deletion of a topic may never end: it has left its group, and librdkafka waits
        for a thread of its own (confluentinc/librdkafka#4362).
        """
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        self.closed += 1
        self.stuck += closing.is_alive()

    def work(self):
        while not self.stopping.is_set():
            producer = Producer({"bootstrap.servers": self.bootstrap, "message.timeout.ms": 3000, **QUIET})
            consumer = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": f"guests-{self.random.randrange(2)}",
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 6000,
                    "topic.metadata.refresh.interval.ms": 500,
                    **QUIET,
                }
            )
            consumer.subscribe(["^guest.*"])
            until = time.monotonic() + self.random.uniform(2, 5)
            while time.monotonic() < until and not self.stopping.is_set():
                for name in [name for admin in self.admins for name in list(admin.partitions)]:
                    self.write(producer, name)
                producer.poll(0.01)
                self.read += sum(m.error() is None for m in consumer.consume(500, timeout=0.05))
            producer.purge()
            self.close(consumer)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_topics_come_and_go_while_workers_die(tmp_path, rounds):
    chance = random.Random(SEED)
    config = {
        "auto.create.topics.enable": False,
        "group.initial.rebalance.delay.ms": 50,
        "log.flush.offset.checkpoint.interval.ms": 500,
        "log.retention.check.interval.ms": 1000,
        "log.segment.delete.delay.ms": 500,
        "offsets.topic.num.partitions": 4,
    }
    with Broker(workers=WORKERS, config=config, data_dir=tmp_path / "data") as broker:
        create_topic(broker, TOPIC, PARTITIONS)
        writer = Writer("w", broker.bootstrap, SEED)
        admins = [Admin(f"guest-{k}", broker.bootstrap, SEED + k) for k in range(2)]
        guest = Guest(broker.bootstrap, admins, SEED)
        for thread in (writer, *admins, guest):
            thread.start()
        try:
            for _ in range(rounds(8, 500)):
                wait_for_progress([writer])
                time.sleep(chance.uniform(0, 1.5))
                broker.kill_worker(chance.randrange(WORKERS))
                deaths = set(re.findall(r"has died: (.*)", broker.log))
                assert deaths <= {"signal SIGKILL"}, deaths
        finally:
            for thread in (guest, *admins):
                thread.stopping.set()
        for thread in (guest, *admins):
            thread.join(120)
            assert not thread.is_alive(), f"{thread} hangs"
            assert not thread.failures, thread.failures[:3]
        writer.finish()
        for admin in admins:
            assert {"created", "deleted"} <= set(admin.done), "nothing was changed"
        assert not writer.failures, writer.failures[:3]
        assert guest.read, "nobody read what came and went"
        assert guest.stuck <= 1 + guest.closed // 20, f"{guest.stuck} of {guest.closed} did not end"
        check_all(broker.bootstrap, watermarks(broker.bootstrap), [writer])

        there = {TOPIC: PARTITIONS, **admins[0].partitions, **admins[1].partitions}
        want = {f"{name}-{i}" for name, count in there.items() for i in range(count)}
        names = re.compile(rf"({TOPIC}|guest-\d-\d+)-\d+(\..*)?")
        data = tmp_path / "data"
        wait_until(lambda: {d.name for d in data.iterdir() if names.fullmatch(d.name)} == want, timeout=30)
        assert broker.stop() == 0
