"""Transactions by the clients that people use: librdkafka, kafka-python, aiokafka, and Java's own.

Java 4.3 speaks the newest protocol, in which a write adds its partition to the transaction (KIP-890); the
others add partitions by a request of their own. Each story runs on one, two and four workers, as each part of
a transaction (the coordinator, the partitions, the group) may live in another one.

`--broker=jvm` runs the same stories against JVM Kafka."""

import asyncio
import json
import random
import threading
import time
from collections import defaultdict

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as TopicPartition3
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as TopicPartition2
from kafka.structs import OffsetAndMetadata

from kafkad.testing import Broker
from tests.clients import WAIT_S, consumer, create_topic, produce, wait_until
from tests.conftest import new_broker
from tests.jvm import NEWEST, TEST_CONFIG, VERSIONS, run_tool

CONFIG = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
PARTITIONS = 4


def pytest_generate_tests(metafunc):
    if "shared" in metafunc.fixturenames:
        is_jvm = metafunc.config.getoption("broker") == "jvm"
        metafunc.parametrize("shared", [1] if is_jvm else [1, 2, 4], indirect=True, scope="module")


@pytest.fixture(scope="module")
def shared(request, broker_kind, tmp_path_factory):
    directory = tmp_path_factory.mktemp("transactions")
    if broker_kind == "jvm":
        made = new_broker(broker_kind, directory, CONFIG)
    else:
        config = {**TEST_CONFIG, **CONFIG}
        made = Broker(config=config, data_dir=directory / "data", workers=request.param)
    with made as running:
        yield running


@pytest.fixture
def topic(shared, unique):
    return create_topic(shared, unique("transactions"), PARTITIONS)


def transactional(broker, name, **config):
    client = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, **config})
    client.init_transactions(WAIT_S)
    return client


def end(client, commits):
    """All of the transaction is in the log before it ends: an abort would drop what is unsent."""
    assert client.flush(WAIT_S) == 0
    (client.commit_transaction if commits else client.abort_transaction)(WAIT_S)


def values(broker, topic, isolation="read_committed", partitions=range(PARTITIONS)):
    """Partition -> values up to its end, as a consumer of this isolation level gets them."""
    client = consumer(broker, **{"isolation.level": isolation, "enable.partition.eof": True})
    client.assign([TopicPartition(topic, index, 0) for index in partitions])
    found, left = defaultdict(list), set(partitions)
    try:
        while left:
            message = client.poll(WAIT_S)
            assert message is not None, f"no end of {left}"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                left.discard(message.partition())
            else:
                found[message.partition()].append(message.value())
    finally:
        client.close()
    return found


def everything(broker, topic, isolation="read_committed", partitions=range(PARTITIONS)):
    found = values(broker, topic, isolation, partitions)
    return sorted(value for each in found.values() for value in each)


def committed_offset(broker, group, topic, partition=0):
    client = consumer(broker, group)
    try:
        (found,) = client.committed([TopicPartition(topic, partition)], WAIT_S)
    finally:
        client.close()
    return found.offset


def test_only_what_is_committed_is_read(shared, topic, unique):
    """Over many partitions, in order; an open transaction holds readers back until it ends."""
    client = transactional(shared, unique("id"))
    expected, written = defaultdict(list), 0
    chance = random.Random(4)
    for turn in range(12):
        client.begin_transaction()
        commits = chance.random() < 0.5
        for n in range(chance.randrange(1, 40)):
            partition, value = chance.randrange(PARTITIONS), b"%d %d" % (turn, n)
            client.produce(topic, value, partition=partition)
            written += 1
            if commits:
                expected[partition].append(value)
        end(client, commits)
    assert values(shared, topic) == expected
    assert len(everything(shared, topic, "read_uncommitted")) == written

    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    assert client.flush(WAIT_S) == 0
    plain = Producer({"bootstrap.servers": shared.bootstrap})
    plain.produce(topic, b"behind", partition=0)
    assert plain.flush(WAIT_S) == 0
    assert values(shared, topic) == expected
    client.commit_transaction(WAIT_S)
    expected[0] += [b"open", b"behind"]
    assert values(shared, topic) == expected


def test_the_record_of_the_largest_timestamp_is_told_of_when_its_transaction_has_ended(shared, topic, unique):
    client = transactional(shared, unique("id"))
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    partition = TopicPartition(topic, 0)

    def newest(isolation):
        spec = {partition: OffsetSpec.max_timestamp()}
        return admin.list_offsets(spec, isolation_level=isolation)[partition].result(WAIT_S).offset

    later_ms = int(time.time() * 1000) + 60_000  # than the markers
    for number, commits in enumerate((True, False)):
        client.begin_transaction()
        client.produce(topic, b"value", partition=0, timestamp=later_ms + number)
        assert client.flush(WAIT_S) == 0
        assert newest(IsolationLevel.READ_UNCOMMITTED) == 2 * number
        assert newest(IsolationLevel.READ_COMMITTED) == -1
        end(client, commits)
        wait_until(lambda number=number: newest(IsolationLevel.READ_COMMITTED) == 2 * number)


def test_offsets_are_committed_with_their_transaction(shared, topic, unique):
    group, target = unique("group"), create_topic(shared, unique("target"), PARTITIONS)
    produce(shared, topic, [(b"k", b"%d" % n) for n in range(60)])
    reader = consumer(shared, group)
    reader.subscribe([topic])
    client = transactional(shared, unique("id"))
    expected, at = [], 0
    partition = None
    for turn, commits in enumerate([True, False, True, False, True]):
        batch = []
        while len(batch) < 10:
            message = reader.poll(WAIT_S)
            assert message is not None and not message.error()
            batch.append(message)
        partition = batch[0].partition()
        client.begin_transaction()
        for message in batch:
            client.produce(target, message.value(), partition=turn % PARTITIONS)
        position = TopicPartition(topic, partition, batch[-1].offset() + 1)
        client.send_offsets_to_transaction([position], reader.consumer_group_metadata(), WAIT_S)
        if commits:
            client.commit_transaction(WAIT_S)
            at = batch[-1].offset() + 1
            expected += [message.value() for message in batch]
        else:
            client.abort_transaction(WAIT_S)
            reader.seek(TopicPartition(topic, partition, at))
        (found,) = reader.committed([TopicPartition(topic, partition)], WAIT_S)
        assert found.offset == at
    assert len(expected) == 30
    assert everything(shared, target) == sorted(expected)
    reader.close()
    assert committed_offset(shared, group, topic, partition) == 30


def test_offsets_of_an_open_transaction_are_not_given_out(shared, topic, unique):
    """OffsetFetch with require_stable waits: the client retries UNSTABLE_OFFSET_COMMIT until the commit."""
    group = unique("group")
    member = consumer(shared, group)
    client = transactional(shared, unique("id"))
    client.begin_transaction()
    client.produce(topic, b"v", partition=0)
    position = TopicPartition(topic, 0, 7)
    client.send_offsets_to_transaction([position], member.consumer_group_metadata(), WAIT_S)
    asking = consumer(shared, group, **{"isolation.level": "read_committed"})
    with pytest.raises(KafkaException):
        asking.committed([TopicPartition(topic, 0)], 1.0)
    timer = threading.Timer(0.3, lambda: client.commit_transaction(WAIT_S))
    timer.start()
    (found,) = asking.committed([TopicPartition(topic, 0)], WAIT_S)
    assert found.offset == 7
    timer.join()
    member.close()
    asking.close()


def test_a_second_producer_of_an_id_fences_the_first(shared, topic, unique):
    name = unique("id")
    first = transactional(shared, name)
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    assert first.flush(WAIT_S) == 0
    second = transactional(shared, name)
    assert values(shared, topic) == {}
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(WAIT_S)
    assert everything(shared, topic) == [b"of the second"]


def test_a_transaction_that_takes_too_long_is_aborted(shared, topic, unique):
    client = transactional(shared, unique("id"), **{"transaction.timeout.ms": 1000})
    client.begin_transaction()
    client.produce(topic, b"late", partition=0)
    assert client.flush(WAIT_S) == 0
    plain = Producer({"bootstrap.servers": shared.bootstrap})
    plain.produce(topic, b"behind", partition=0)
    assert plain.flush(WAIT_S) == 0
    assert everything(shared, topic) == []
    wait_until(lambda: everything(shared, topic) == [b"behind"])
    with pytest.raises(KafkaException) as refused:
        client.commit_transaction(WAIT_S)
    assert refused.value.args[0].code() in (
        KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.INVALID_PRODUCER_ID_MAPPING,
    )  # fmt: skip
    assert everything(shared, topic) == [b"behind"]


def test_many_producers_at_once(shared, topic, unique):
    """Their transactions overlap in all partitions, and each is seen whole or not at all."""
    producers, turns = 8, 15
    expected, troubles = [], []

    def run(number):
        chance = random.Random(number)
        try:
            client = transactional(shared, unique(f"many-{number}"))
            for turn in range(turns):
                client.begin_transaction()
                rows = [b"%d %d %d" % (number, turn, n) for n in range(chance.randrange(1, 12))]
                for row in rows:
                    client.produce(topic, row, partition=chance.randrange(PARTITIONS))
                commits = chance.random() < 0.7
                end(client, commits)
                if commits:
                    expected.extend(rows)
        except Exception as trouble:
            troubles.append((number, trouble))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    assert troubles == []
    assert everything(shared, topic) == sorted(expected)


def test_kafka_python(shared, topic, unique):
    group = unique("group")
    client = KafkaProducer(bootstrap_servers=shared.bootstrap, transactional_id=unique("id"))
    client.init_transactions()
    for turn in range(6):
        client.begin_transaction()
        for partition in range(PARTITIONS):
            client.send(topic, b"%d" % turn, partition=partition)
        if turn % 2:
            client.abort_transaction()
        else:
            offsets = {TopicPartition2(topic, 0): OffsetAndMetadata(turn + 1, "", -1)}
            client.send_offsets_to_transaction(offsets, group)
            client.commit_transaction()
    client.close()
    reader = KafkaConsumer(
        bootstrap_servers=shared.bootstrap, group_id=group, isolation_level="read_committed",
        auto_offset_reset="earliest", consumer_timeout_ms=2000, enable_auto_commit=False,
    )  # fmt: skip
    assert reader.committed(TopicPartition2(topic, 0)) == 5
    reader.assign([TopicPartition2(topic, 2)])
    reader.seek_to_beginning()
    found = []
    while len(found) < 3:
        found.append(next(reader).value)
    reader.close()
    assert found == [b"0", b"2", b"4"]
    assert everything(shared, topic) == sorted([b"0", b"2", b"4"] * PARTITIONS)


def test_aiokafka(shared, topic, unique):
    group = unique("group")

    async def scenario():
        client = AIOKafkaProducer(bootstrap_servers=shared.bootstrap, transactional_id=unique("id"))
        await client.start()
        try:
            for turn in range(6):
                await client.begin_transaction()
                for partition in range(PARTITIONS):
                    await client.send(topic, b"%d" % turn, partition=partition)
                if turn % 2:
                    await client.abort_transaction()
                else:
                    offsets = {TopicPartition3(topic, 0): turn + 1}
                    await client.send_offsets_to_transaction(offsets, group)
                    await client.commit_transaction()
        finally:
            await client.stop()

    asyncio.run(asyncio.wait_for(scenario(), 2 * WAIT_S))
    assert everything(shared, topic) == sorted([b"0", b"2", b"4"] * PARTITIONS)
    assert committed_offset(shared, group, topic) == 5


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS)
def test_javas_copier_with_random_aborts(shared, topic, unique, version):
    """Kafka's system test of exactly-once: what it copies, with five batches in flight, is there once."""
    target, name = create_topic(shared, unique("copied"), PARTITIONS), unique("copier")
    client = transactional(shared, unique("id"))
    for turn in range(8):
        client.begin_transaction()
        for n in range(100):
            client.produce(topic, b"%d %d " % (turn, n) + b"x" * 40, partition=1)
        end(client, turn % 4 != 3)
    said = run_tool(
        version, "transactional-message-copier", "--broker-list", shared.bootstrap,
        "--input-topic", topic, "--input-partition", 1, "--output-topic", target,
        "--consumer-group", name, "--transactional-id", name, "--transaction-size", 60,
        "--transaction-timeout", 10_000, "--enable-random-aborts", "--use-group-metadata",
        "--max-messages", 600,
    )  # fmt: skip
    assert json.loads(said.lines[-1])["totalProcessed"] == 600
    source, copied = values(shared, topic), values(shared, target)
    assert copied == source and len(source[1]) == 600
    assert committed_offset(shared, name, topic, 1) >= 706  # behind six of seven


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS)
def test_javas_producer_and_console_consumer(shared, topic, unique, version):
    """Transactions of 20 ms by Java's producer, of which the last is committed at its end."""
    client = transactional(shared, unique("id"))
    client.begin_transaction()
    for partition in range(PARTITIONS):
        client.produce(topic, b"aborted", partition=partition)
    end(client, False)
    run_tool(
        version, "kafka-producer-perf-test", "--topic", topic, "--num-records", 4000, "--record-size", 100,
        "--throughput", 20_000, "--transactional-id", unique("perf"), "--transaction-duration-ms", 20,
        "--producer-props", f"bootstrap.servers={shared.bootstrap}", "batch.size=2000",
    )  # fmt: skip
    assert len(everything(shared, topic)) == 4000
    said = run_tool(
        NEWEST, "kafka-console-consumer", "--bootstrap-server", shared.bootstrap, "--topic", topic,
        "--from-beginning", "--isolation-level", "read_committed", "--max-messages", 4000,
        "--timeout-ms", 20_000,
    )  # fmt: skip
    assert len(said.lines) == 4000 and "aborted" not in said.lines
