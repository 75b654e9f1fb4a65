"""Transactions in a directory of JVM Kafka, under ours and back again.

One story: JVM Kafka 4.3.1 writes transactions, leaves two open, and is killed. kafkad opens its directory and
is killed, too. Kafka's own kafka-transactions.sh ends what is open. JVM Kafka opens the directory again."""

import random
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from kafkad.log.txn_index import read_txn_index
from kafkad.protocol import errors, messages
from kafkad.protocol.records import Batch, read_batches
from kafkad.testing import Broker
from tests.clients import WAIT_S, consumer, create_topic, wait_until
from tests.jvm import NEWEST, TEST_CONFIG, JvmKafka, run_tool
from tests.reference.slow_transactions import aborted, last_stable_offset
from tests.wire import Wire

pytestmark = pytest.mark.java

TOPIC = "transactions"


def client_of(kafka, name: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 900_000,
            "batch.size": 20_000,
        }
    )
    made.init_transactions(WAIT_S)
    return made


def stable_offset(kafka, isolation: int = 1, topic: str = TOPIC) -> int:
    """Or the high watermark; -1 while the broker does not lead it yet."""
    cls = messages.ListOffsetsRequest
    asked = cls.Topics.Partitions(partition_index=0, timestamp=-1)
    request = cls(
        replica_id=-1, isolation_level=isolation, topics=[cls.Topics(name=topic, partitions=[asked])]
    )
    with Wire(kafka.bootstrap) as wire:
        (part,) = wire.ask(request, 5).topics[0].partitions
    unled = errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_TOPIC_OR_PARTITION
    assert part.error_code in (errors.NONE, *unled)
    return part.offset


def committed(kafka) -> list[tuple[int, bytes]]:
    """(offset, value) of what a consumer of committed data gets."""
    end = stable_offset(kafka)
    client = consumer(
        kafka,
        **{
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "max.partition.fetch.bytes": 30_000,
        },
    )
    client.assign([TopicPartition(TOPIC, 0, 0)])
    found, ended = [], False
    while not ended:
        message = client.poll(WAIT_S)
        assert message is not None
        if message.error():
            ended = client.position([TopicPartition(TOPIC, 0)])[0].offset >= end
        else:
            found.append((message.offset(), message.value()))
    client.close()
    return found


def batches_of(log: Path) -> list[Batch]:
    data = b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))
    return list(read_batches(data))


def indexed(log: Path) -> list[tuple[int, int, int, int]]:
    return [txn for path in sorted(log.glob("*.txnindex")) for txn in read_txn_index(str(path))]


def open_ones(kafka) -> dict[int, tuple[int, int]]:
    """By producer id: where its open transaction begins, and its coordinator's epoch."""
    return {each[0]: (each[4], each[3]) for each in producers_of(kafka, TOPIC) if each[4] >= 0}


# (producer id, epoch, coordinator epoch, commit, transaction version, partition)
MARKERS = [
    (5, 0, 0, True, 0, 0), (5, 0, 0, True, 0, 0), (5, 3, 4, False, 0, 0), (5, 2, 4, False, 0, 0),
    (5, 3, 3, False, 0, 0), (5, 2, 3, False, 1, 0), (5, 3, 4, True, 2, 0), (5, 2, 4, True, 2, 0),
    (5, 4, 4, True, 2, 0), (6, 32_767, 9, True, 2, 0), (6, 32_767, 9, True, 2, 0), (6, 0, 10, True, 2, 0),
    (7, 0, -1, True, 0, 0), (7, 0, -2, True, 0, 0), (7, 0, 0, True, 0, 1), (8, 1, 0, False, 100, 0),
    (8, 1, 0, False, -1, 0), (8, 0, 0, False, 1, 0), (1 << 62, 0, 0, False, 1, 0), (9, -1, 0, False, 1, 0),
    (-1, 0, 0, False, 1, 0),
]  # fmt: skip


def producers_of(kafka, topic: str) -> list[tuple[int, int, int, int, int]]:
    """All that DescribeProducers tells but times: id, epoch, last sequence, coordinator's epoch, start."""
    cls = messages.DescribeProducersRequest
    with Wire(kafka.bootstrap) as wire:
        request = cls(topics=[cls.Topics(name=topic, partition_indexes=[0])])
        (part,) = wire.ask(request, 0).topics[0].partitions
    assert part.error_code == 0
    return sorted(
        (
            one.producer_id, one.producer_epoch, one.last_sequence, one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in part.active_producers
    )  # fmt: skip


def answers_to_markers(kafka, topic: str) -> list[list[tuple[int, int, int]]]:
    """What a broker says to MARKERS one by one, and to some in one request. Kafka never answers one
    in which a marker for unknown partitions alone comes after others."""
    wait_until(lambda: stable_offset(kafka, topic=topic) == 0)
    cls = messages.WriteTxnMarkersRequest
    markers = []
    for producer_id, epoch, coordinator_epoch, commit, version, index in MARKERS:
        topics = [cls.Markers.Topics(name=topic, partition_indexes=[index])]
        marker = cls.Markers(
            producer_id=producer_id, producer_epoch=epoch, transaction_result=commit, topics=topics,
            coordinator_epoch=coordinator_epoch, transaction_version=version,
        )  # fmt: skip
        markers.append(marker)
    told = []
    with Wire(kafka.bootstrap) as wire:
        for some in [*([marker] for marker in markers), markers[:3], []]:
            answer = wire.ask(cls(markers=some), 2)
            told.append(sorted(
                (marker.producer_id, part.partition_index, part.error_code)
                for marker in answer.markers for its in marker.topics for part in its.partitions
            ))  # fmt: skip
    return told


def write(kafka) -> None:
    """Transactions over several segments, which overlap; two stay open."""
    chance = random.Random(17)
    clients = [client_of(kafka, f"{TOPIC}-{number}") for number in range(3)]
    for turn in range(12):
        for client in clients:
            client.begin_transaction()
        for n in range(150):
            for number, client in enumerate(clients):
                client.produce(TOPIC, b"%d %d %d " % (turn, number, n) + chance.randbytes(300), partition=0)
            if n % 50 == 49:
                for client in clients:
                    client.flush(WAIT_S)
        chance.shuffle(clients)
        for client in clients:
            (client.commit_transaction if chance.random() < 0.5 else client.abort_transaction)(WAIT_S)
    clients[0].begin_transaction()
    clients[0].produce(TOPIC, b"left open", partition=0)
    clients[0].flush(WAIT_S)
    for client in clients[1:]:
        client.begin_transaction()
        client.produce(TOPIC, b"behind it", partition=0)
        client.flush(WAIT_S)
    clients[1].commit_transaction(WAIT_S)


def test_a_directory_goes_from_jvm_kafka_to_kafkad_and_back(tmp_path):
    data = tmp_path / "data"
    log = data / f"{TOPIC}-0"
    with JvmKafka(data, config={"auto.create.topics.enable": False}) as jvm:
        create_topic(jvm, TOPIC, 1, {"segment.bytes": "1048576", "index.interval.bytes": "2048"})
        expected = answers_to_markers(jvm, create_topic(jvm, "theirs", 1))
        described = producers_of(jvm, "theirs")
        write(jvm)
        then, lso, end, ongoing = committed(jvm), stable_offset(jvm), stable_offset(jvm, 0), open_ones(jvm)
        jvm.kill()
    assert len(list(log.glob("*.log"))) > 1 and len(ongoing) == 2
    assert lso == min(start for start, _ in ongoing.values()) == last_stable_offset(batches_of(log), end, 0)
    entries = indexed(log)
    assert len(entries) > 10 and entries == aborted(batches_of(log))

    with Broker(data_dir=data, config=TEST_CONFIG) as ours:
        for _ in range(2):
            assert (stable_offset(ours), stable_offset(ours, 0), open_ones(ours)) == (lso, end, ongoing)
            assert committed(ours) == then
            assert indexed(log) == entries
            ours.kill()
            ours.restart()
        assert answers_to_markers(ours, create_topic(ours, "ours", 1)) == expected
        assert producers_of(ours, "ours") == described
        for start in sorted(start for start, _ in ongoing.values()):
            run_tool(
                NEWEST, "kafka-transactions", "--bootstrap-server", ours.bootstrap, "abort",
                "--topic", TOPIC, "--partition", 0, "--start-offset", start,
            )  # fmt: skip
        assert open_ones(ours) == {}
        assert stable_offset(ours) == stable_offset(ours, 0) == end + 2
        now = committed(ours)
        assert now[: len(then)] == then
        assert [value for _, value in now[len(then) :]] == [b"behind it"]
        ours.kill()
        ours.restart()
        assert committed(ours) == now and stable_offset(ours) == end + 2
        ours.stop()
    entries = indexed(log)
    assert entries == aborted(batches_of(log))

    index = max(path for path in log.glob("*.txnindex") if path.stat().st_size)
    dump = run_tool(NEWEST, "kafka-dump-log", "--files", index).stdout
    told = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)", dump)
    assert [tuple(map(int, each)) for each in told] == [txn[:3] for txn in read_txn_index(str(index))]
    with JvmKafka(data) as jvm:
        wait_until(lambda: stable_offset(jvm) == end + 2)
        assert committed(jvm) == now and open_ones(jvm) == {}
        client = client_of(jvm, "another")
        client.begin_transaction()
        client.produce(TOPIC, b"and on", partition=0)
        client.commit_transaction(WAIT_S)
        assert [value for _, value in committed(jvm)[len(now) :]] == [b"and on"]
