"""Transactions of our own client: against kafkad with one and with two workers, and against both Kafkas, of
which 3.9.1 has transaction.version 0."""

import time

import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import EARLIEST, LATEST, committed_offsets, list_offsets
from kafkad.client.transactions import Transactions
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.testing import Broker
from tests.clients import create_topic
from tests.jvm import JvmKafka

PARTITIONS = 3
SERVERS = [
    "kafkad",
    "kafkad, two workers",
    pytest.param("Kafka 4.3.1", marks=pytest.mark.java),
    pytest.param("Kafka 3.9.1", marks=pytest.mark.java),
]


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("transactions") / "data"
    if request.param.startswith("kafkad"):
        made = Broker(workers=2 if "two" in request.param else 1)
    else:
        made = JvmKafka(directory, version=request.param.split()[1])
    with made as running:
        yield running


@pytest.fixture
def cluster(server):
    with Cluster(server.bootstrap, retry_seconds=30) as cluster:
        yield cluster


@pytest.fixture
def topic(server, unique):
    name = unique("topic")
    create_topic(server, name, PARTITIONS)
    return name


def values(cluster, topic, isolation=READ_COMMITTED):
    """What a reader sees, by partition, up to where it may read now."""
    consumer = Consumer(cluster, topic, wait_ms=50, isolation=isolation)
    partitions = cluster.partitions(topic)
    consumer.assign(list_offsets(cluster, topic, dict.fromkeys(partitions, EARLIEST)))
    ends = list_offsets(cluster, topic, dict.fromkeys(partitions, LATEST), isolation)
    found = {partition: [] for partition in partitions}
    deadline = time.monotonic() + 20
    while any(consumer.positions[p] < end for p, end in ends.items()):
        assert time.monotonic() < deadline, (consumer.positions, ends)
        for received in consumer.poll():
            found[received.partition].append(received.value)
    return found


def until(check):
    """Markers are written after the answer."""
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def settle(cluster, *names):
    request = messages.DescribeTransactionsRequest(transactional_ids=list(names))
    until(
        lambda: all(
            each.transaction_state.startswith("Complete")
            for each in cluster.coordinator(names[0], 1).ask(request).transaction_states
        )
    )


def test_what_is_committed_is_read_and_nothing_else(cluster, topic, unique):
    name = unique("id")
    transactions = Transactions(cluster, name)
    producer = transactions.producer(topic, batch_bytes=2_000)
    expected = {partition: [] for partition in range(PARTITIONS)}
    for number in range(6):
        for record in range(300):  # several batches a partition
            value = b"%d-%d" % (number, record)
            producer.send(value, partition=record % PARTITIONS)
            if number % 2 == 0:
                expected[record % PARTITIONS].append(value)
        if number % 2 == 0:
            transactions.commit()
        else:
            producer.flush()
            transactions.abort()
    settle(cluster, name)
    assert values(cluster, topic) == expected
    assert sum(map(len, values(cluster, topic, isolation=0).values())) == 6 * 300


def test_two_topics_and_a_groups_offsets_end_together(server, cluster, topic, unique):
    name, group, second = unique("id"), unique("group"), unique("second")
    create_topic(server, second, 1)
    transactions = Transactions(cluster, name)
    producers = transactions.producer(topic), transactions.producer(second)
    for number, end in enumerate((transactions.commit, transactions.abort), 1):
        for producer in producers:
            producer.send(b"%d" % number, partition=0)
            producer.flush()
        transactions.send_offsets(group, {(topic, 1): 10 * number}, metadata="m")
        end()
        settle(cluster, name)
    assert values(cluster, topic)[0] == values(cluster, second)[0] == [b"1"]
    assert committed_offsets(cluster, group) == {(topic, 1): 10}


def test_an_open_transaction_holds_committed_readers_back(cluster, topic, unique):
    name = unique("id")
    transactions = Transactions(cluster, name)
    producer = transactions.producer(topic)
    producer.send(b"open", partition=0)
    producer.flush()
    assert values(cluster, topic)[0] == []
    assert values(cluster, topic, isolation=0)[0] == [b"open"]
    transactions.commit()
    settle(cluster, name)
    assert values(cluster, topic)[0] == [b"open"]


def test_a_successor_fences_and_aborts(server, cluster, topic, unique):
    name = unique("id")
    first = Transactions(cluster, name)
    producer = first.producer(topic)
    producer.send(b"lost", partition=0)
    producer.flush()
    with Cluster(server.bootstrap, retry_seconds=30) as other:
        second = Transactions(other, name)
        assert (second.producer_id, second.producer_epoch > first.producer_epoch) == (first.producer_id, True)
        successor = second.producer(topic)
        successor.send(b"kept", partition=0)
        second.commit()
    fenced = (errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH, errors.INVALID_TXN_STATE)
    with pytest.raises(KafkaError) as refused:
        producer.send(b"late", partition=0)
        first.commit()
    assert refused.value.code in fenced
    assert first.failed
    with pytest.raises(KafkaError):
        first.send_offsets("g", {(topic, 0): 1})
    settle(cluster, name)
    assert values(cluster, topic)[0] == [b"kept"]


def test_after_a_failure_an_abort_makes_a_new_beginning(cluster, topic, unique):
    # Kafka 3.9.1 is asked to add partition 99 to the transaction again and again, as long as this.
    transactions = Transactions(cluster, unique("id"), retry_seconds=10)
    producer = transactions.producer(topic, delivery_seconds=1)
    producer.send(b"first", partition=0)
    producer.flush()
    producer.partitions = [*producer.partitions, 99]
    producer.send(b"nowhere", partition=99)
    with pytest.raises(KafkaError):
        producer.flush()
    with pytest.raises(KafkaError):
        transactions.commit()
    transactions.abort()
    producer.partitions.remove(99)
    producer.send(b"second", partition=0)
    transactions.commit()
    settle(cluster, transactions.transactional_id)
    assert values(cluster, topic)[0] == [b"second"]


def test_an_end_without_a_beginning_asks_nobody(cluster, topic, unique):
    transactions = Transactions(cluster, unique("id"))
    producer = transactions.producer(topic)
    epoch = transactions.producer_epoch
    transactions.commit()
    transactions.abort()
    assert transactions.producer_epoch == epoch
    producer.send(b"dropped", partition=0)
    transactions.abort()
    assert values(cluster, topic, isolation=0)[0] == []


def test_a_transactional_producer_is_idempotent(cluster, topic, unique):
    transactions = Transactions(cluster, unique("id"))
    with pytest.raises(ValueError, match="idempotent"):
        transactions.producer(topic, acks=1)
