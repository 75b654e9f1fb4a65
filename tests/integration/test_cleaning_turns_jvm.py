"""kafkad and JVM Kafka clean one directory in turns: the other's cleaned segments are as good as their own.

Each writes keys, tombstones and aborted transactions, cleans, and stops. After every turn the dictionary of
keys is the writers', for readers at read_committed, and Kafka's own DumpLogSegments finds the files whole."""

import random
import re
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.testing import Broker
from tests.clients import wait_until
from tests.jvm import NEWEST, JvmKafka, run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOPIC, KEYS = "table", 60
CONFIG = {"log.cleaner.backoff.ms": "50", "log.segment.delete.delay.ms": "100"}
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
# of a compacted log offsets are not consecutive
COMPLAINTS = re.compile(r"isvalid: false|mismatch|out of order|Could not|Exception")


class Table:
    """What the topic is to be, and who writes it."""

    def __init__(self) -> None:
        self.chance = random.Random(24)
        self.latest: dict[bytes, bytes | None] = {}
        self.written = 0

    def write(self, bootstrap: str) -> None:
        """Twenty segments, by an idempotent and a transactional producer."""
        plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        settings = {"bootstrap.servers": bootstrap, "transactional.id": "table"}
        transactional = Producer(settings)
        transactional.init_transactions(60)
        for number in range(20):
            self.send(plain, self.records(b"plain"))
            transactional.begin_transaction()
            records = self.records(b"transactional")
            if number % 3:
                self.send(transactional, records)
                transactional.commit_transaction(60)
            else:
                self.send(transactional, dict.fromkeys(records, b"aborted"), counts=False)
                transactional.abort_transaction(60)
            time.sleep(0.11)  # the next batch rolls the segment

    def records(self, name: bytes) -> dict[bytes, bytes | None]:
        keys = [b"%s %d" % (name, self.chance.randrange(KEYS)) for _ in range(60)]
        return {key: None if self.chance.random() < 0.2 else self.chance.randbytes(80) for key in keys}

    def send(self, client: Producer, records: dict[bytes, bytes | None], *, counts: bool = True) -> None:
        for key, value in records.items():
            client.produce(TOPIC, key=key, value=value, partition=0)
        assert client.flush(60) == 0
        self.written += len(records)
        if counts:
            self.latest.update(records)

    def wanted(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.latest.items() if value is not None}


def read(bootstrap: str) -> tuple[dict[bytes, bytes], int]:
    """The dictionary as one that begins anew finds it, and from how many records."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
            "enable.partition.eof": True, "isolation.level": "read_committed",
        }
    )  # fmt: skip
    found: dict[bytes, bytes] = {}
    count = 0
    client.assign([TopicPartition(TOPIC, 0, 0)])
    while True:
        (message,) = client.consume(1, 60)
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        count += 1
        found.pop(message.key(), None)
        if message.value() is not None:
            found[message.key()] = message.value()
    client.close()
    return found, count


def test_both_clean_one_directory_in_turns(tmp_path):
    jvm = JvmKafka(tmp_path / "data", config=CONFIG)
    table = Table()
    for number, turn in enumerate((jvm, None, jvm, None)):
        with turn if turn is not None else Broker(properties=jvm.properties) as broker:
            if number == 0:
                admin = AdminClient({"bootstrap.servers": broker.bootstrap})
                topic = NewTopic(TOPIC, 1, 1, config=TOPIC_CONFIG)
                admin.create_topics([topic])[TOPIC].result(60)
            else:
                assert read(broker.bootstrap)[0] == table.wanted(), "of what the other has cleaned"
            before = table.written
            table.write(broker.bootstrap)

            def cleaned(broker=broker, before=before):
                """A read beside the cleaner may find a record, and miss its tombstone that went meanwhile."""
                found, count = read(broker.bootstrap)
                # of about 2,000 that were written
                return found == table.wanted() and count < 300 + (table.written - before) // 4

            wait_until(cleaned, 60)
            broker.stop()
        segments = sorted((jvm.data_dir / f"{TOPIC}-0").glob("*.log"))
        dump = run_tool(NEWEST, "kafka-dump-log", "--deep-iteration", "--files", ",".join(map(str, segments)))
        assert not COMPLAINTS.search(dump.stdout), COMPLAINTS.search(dump.stdout)
        assert "baseOffset" in dump.stdout
