"""Segments of magic 0 and 1 that JVM Kafka 3.9.1 wrote in ZooKeeper mode, where it still writes them.

Kafka 4 has no ZooKeeper mode; such segments come to it, and to kafkad, by a migration of 3.9 to KRaft, which
leaves the files as they are. Here they are put into the directory of a stopped broker."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from kafkad.protocol import messages
from kafkad.protocol.legacy_records import read_entries
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.jvm import (
    FAST_JVM,
    QUIET,
    ZOOKEEPER_LINE,
    broker_archive,
    die_with_parent,
    free_port,
    jars,
    java,
)
from tests.wire import Wire, batch, create_topic, produce

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

CODECS = (None, "gzip", "snappy", "lz4")
COUNT = 300  # records of each codec
FORMATS = {"old0": "0.9.0", "old1": "0.10.2"}


def java_process(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [
        java(),
        "-Xmx256m",
        *FAST_JVM,
        *broker_archive(ZOOKEEPER_LINE),
        *QUIET,
        "-cp",
        jars(ZOOKEEPER_LINE),
    ]
    info = ["-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaServer=info"]
    with open(directory / f"{name}.out", "wb") as out:
        return subprocess.Popen(
            [*command[:-2], *info, *command[-2:], *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent,
        )


def serves(port: int) -> bool:
    """Whether ZooKeeper does; a connection that comes while it starts may stay without an answer for ever."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as asked:
            asked.sendall(b"srvr")
            return asked.recv(100).startswith(b"Zookeeper version")
    except OSError:
        return False


def value_of(number: int) -> bytes:
    return b"%d" % number * (1 + number % 40)


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory of Kafka in ZooKeeper mode, cleanly stopped, with the topics of FORMATS."""
    directory = tmp_path_factory.mktemp("zookeeper")
    zookeeper_port, port = free_port(), free_port()
    properties = directory / "server.properties"
    properties.write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{port}\nzookeeper.connect=127.0.0.1:{zookeeper_port}\n"
        f"log.dirs={directory / 'data'}\ninter.broker.protocol.version=2.8\n"
        "offsets.topic.replication.factor=1\nlog.index.interval.bytes=500\n"
    )
    with contextlib.ExitStack() as stack:
        zookeeper = java_process(
            directory,
            "zookeeper",
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(zookeeper_port),
            str(directory / "zookeeper"),
        )
        stack.callback(zookeeper.wait)
        stack.callback(zookeeper.kill)
        wait_until(lambda: serves(zookeeper_port), 90)
        kafka = java_process(directory, "kafka", "kafka.Kafka", str(properties))
        stack.callback(kafka.wait)
        stack.callback(kafka.kill)
        said = directory / "kafka.out"
        deadline = time.monotonic() + 90
        while "[KafkaServer id=0] started" not in said.read_text():
            assert kafka.poll() is None and time.monotonic() < deadline, said.read_text()[-3000:]
            time.sleep(0.1)
        bootstrap = f"127.0.0.1:{port}"
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        for name, version in FORMATS.items():
            configs = {"message.format.version": version, "segment.bytes": "20000"}
            admin.create_topics([NewTopic(name, 1, 1, topic_configs=configs)])
        admin.close()
        for codec in CODECS:
            producer = KafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=codec,
                linger_ms=5,
                enable_idempotence=False,
                max_in_flight_requests_per_connection=1,
            )
            sent = [
                producer.send(name, value_of(number), key=b"k", timestamp_ms=1_000_000 + number)
                for name in FORMATS
                for number in range(COUNT)
            ]
            assert all(each.get(20) for each in sent)
            producer.close()
        kafka.terminate()
        kafka.wait(60)
    yield directory / "data"


@pytest.fixture(scope="module")
def broker(segments: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("kafkad") / "data"
    with Broker(data_dir=directory, workers=2) as broker:
        with Wire(broker.bootstrap) as wire:
            for name in FORMATS:
                create_topic(wire, name)
        broker.stop()
        for name in FORMATS:
            for path in (directory / f"{name}-0").iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in (segments / f"{name}-0").iterdir():
                if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                    shutil.copy2(path, directory / f"{name}-0" / path.name)
        (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
        broker.start()
        yield broker


def expected() -> list[tuple[int, bytes]]:
    return list(enumerate([value_of(number) for number in range(COUNT)] * len(CODECS)))


def test_the_segments_are_old(segments: Path) -> None:
    for magic, name in enumerate(FORMATS):
        logs = sorted((segments / f"{name}-0").glob("*.log"))
        assert len(logs) > 2
        for log in logs:
            entries = list(read_entries(log.read_bytes()))
            assert {entry.magic for entry in entries} <= {magic}
        assert entries


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("version", [None, (0, 8, 2), (0, 10, 2)])
def test_they_are_read_by_new_and_old_clients(
    broker: Broker, name: str, version: tuple[int, ...] | None
) -> None:
    asked = {} if version is None else {"api_version": version}
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None, **asked)
    place = TopicPartition(name, 0)
    consumer.assign([place])
    for begin in (0, 1, 450, 1_199):
        consumer.seek(place, begin)
        got: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + 20
        while len(got) < len(CODECS) * COUNT - begin and time.monotonic() < deadline:
            for rows in consumer.poll(200).values():
                got += [(row.offset, row.value) for row in rows]
        assert got[: len(expected()) - begin] == expected()[begin:]
    consumer.close()


def test_offsets_by_time(broker: Broker) -> None:
    cls = messages.ListOffsetsRequest
    with Wire(broker.bootstrap) as wire:
        for name in FORMATS:
            for number in (0, 7, COUNT - 1):
                part = cls.Topics.Partitions(partition_index=0, timestamp=1_000_000 + number)
                asked = cls(replica_id=-1, topics=[cls.Topics(name=name, partitions=[part])])
                found = wire.ask(asked, 1).topics[0].partitions[0]
                assert found.error_code == 0
                assert found.offset == (number if name == "old1" else -1)


def test_they_are_written_on(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        for name in FORMATS:
            assert produce(wire, name, batch(b"new")).base_offset == len(expected())
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        for name in FORMATS:
            assert produce(wire, name, batch(b"new")).base_offset == len(expected()) + 1
