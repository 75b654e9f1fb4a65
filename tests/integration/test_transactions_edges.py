"""Transactions at their edges, as librdkafka's and franz-go's own tests go there: transactions of nothing, of
offsets alone, with records deleted meanwhile, reads that begin or end at markers, lags, and ends that nobody
waits for."""

import json
import random

import pytest
from confluent_kafka import Producer, TopicPartition

from kafkad.protocol import codec, errors, messages
from tests.clients import WAIT_S, consumer, create_topic, produce, wait_until
from tests.conftest import new_broker
from tests.integration.test_transactional_produce import Client
from tests.integration.test_transactions import committed_offset, end, everything, transactional, values
from tests.wire import Wire


@pytest.fixture(scope="module", params=[1, 2], ids=lambda workers: f"workers-{workers}")
def broker(request, broker_kind, tmp_path_factory):
    if broker_kind == "jvm" and request.param > 1:
        pytest.skip("JVM Kafka has no workers")
    made = new_broker(broker_kind, tmp_path_factory.mktemp("broker"), {})
    if broker_kind != "jvm":
        made.workers = request.param
    with made:
        yield made


@pytest.fixture
def topic(broker, unique):
    return create_topic(broker, unique("edges"), 1)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("offsets", [True, False])
def test_a_transaction_without_records(broker, topic, unique, offsets, commits):
    """librdkafka does not even tell the coordinator of one without offsets."""
    group = unique("group")
    member = consumer(broker, group)
    client = transactional(broker, unique("id"))
    for turn in range(3):
        client.begin_transaction()
        if offsets:
            place = TopicPartition(topic, 0, 10 + turn)
            client.send_offsets_to_transaction([place], member.consumer_group_metadata(), WAIT_S)
        end(client, commits)
        wanted = 10 + turn if commits and offsets else -1001
        assert committed_offset(broker, group, topic) == wanted
    client.begin_transaction()
    client.produce(topic, b"after it")
    end(client, True)
    assert everything(broker, topic, partitions=[0]) == [b"after it"]
    member.close()


def delete_before(broker, topic, offset):
    cls = messages.DeleteRecordsRequest.Topics
    part = cls.Partitions(partition_index=0, offset=offset)
    request = messages.DeleteRecordsRequest(timeout_ms=10_000, topics=[cls(name=topic, partitions=[part])])

    def is_done():
        with Wire(broker.bootstrap) as wire:
            code = wire.ask(request, 2).topics[0].partitions[0].error_code
        assert code in (0, errors.NOT_LEADER_OR_FOLLOWER)
        return code == 0

    wait_until(is_done)


def test_records_that_are_deleted_while_their_producer_goes_on(broker, topic, unique):
    """Also its state may be gone from the log; it goes on all the same."""
    client = transactional(broker, unique("id"), **{"batch.num.messages": 1})
    for turn, count in enumerate((6, 4, 1)):
        client.begin_transaction()
        if turn == 1:
            delete_before(broker, topic, 7)  # the first transaction and its marker
        for n in range(count):
            client.produce(topic, b"%d %d" % (turn, n), partition=0)
        end(client, True)
    expected = [b"1 0", b"1 1", b"1 2", b"1 3", b"2 0"]
    wait_until(lambda: values(broker, topic, partitions=[0])[0] == expected)


def ends(broker, topic, isolation):
    client = consumer(broker, **{"isolation.level": isolation})
    try:
        return client.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)[1]
    finally:
        client.close()


def test_the_end_of_a_partition_by_isolation_level(broker, topic, unique):
    produce(broker, topic, [(b"k", b"plain")] * 100)
    client = transactional(broker, unique("id"))
    client.begin_transaction()
    for _ in range(100):
        client.produce(topic, b"open", partition=0)
    assert client.flush(WAIT_S) == 0
    assert (ends(broker, topic, "read_committed"), ends(broker, topic, "read_uncommitted")) == (100, 200)
    client.commit_transaction(WAIT_S)
    wait_until(lambda: ends(broker, topic, "read_committed") == 201)
    assert ends(broker, topic, "read_uncommitted") == 201


@pytest.fixture(scope="module")
def mixed(broker):
    """(topic, committed (offset, value) pairs, end): short transactions, most of them aborted, plain records
    in between, and aborted ones at the end."""
    name, chance = create_topic(broker, "mixed", 1), random.Random(7)
    client = transactional(broker, "mixed")
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    expected, at = [], 0
    for turn in range(60):
        commits = chance.random() < 0.3 and turn < 50
        client.begin_transaction()
        for n in range(chance.randrange(1, 5)):
            value = b"%d %d" % (turn, n)
            client.produce(name, value, partition=0)
            if commits:
                expected.append((at, value))
            at += 1
        end(client, commits)
        at += 1  # the marker
        wait_until(lambda at=at: ends(broker, name, "read_committed") == at)
        if chance.random() < 0.2 and turn < 50:
            plain.produce(name, b"plain %d" % turn, partition=0)
            assert plain.flush(WAIT_S) == 0
            expected.append((at, b"plain %d" % turn))
            at += 1
    return name, expected, at


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_reads_that_begin_anywhere_and_pass_over_markers(broker, mixed, bytes_max):
    """Each Fetch begins where the one before ended: also at a marker, inside of an aborted transaction, or
    behind the last record that there is to see."""
    name, expected, at = mixed
    client = consumer(
        broker,
        **{
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "max.partition.fetch.bytes": bytes_max,
            "fetch.wait.max.ms": 20,
        },
    )
    try:
        for start in (0, *range(1, at, 7), at - 1):
            client.assign([TopicPartition(name, 0, start)])
            found = []
            while not (row := client.poll(WAIT_S)).error():
                found.append((row.offset(), row.value()))
            assert row.offset() == at
            assert found == [row for row in expected if row[0] >= start], f"from {start}"
    finally:
        client.close()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_lag_of_a_consumer_counts_to_where_it_may_read(broker, topic, unique, isolation):
    client = transactional(broker, unique("id"))
    for commits in (True, False, True):
        client.begin_transaction()
        for n in range(5):
            client.produce(topic, b"%d" % n, partition=0)
        end(client, commits)
    wait_until(lambda: ends(broker, topic, "read_committed") == 18)
    client.begin_transaction()
    for n in range(5):
        client.produce(topic, b"open %d" % n, partition=0)
    assert client.flush(WAIT_S) == 0

    told = []

    def keep(text):
        part = json.loads(text)["topics"].get(topic, {}).get("partitions", {}).get("0")
        if part:
            told.append((part["consumer_lag_stored"], part["ls_offset"]))

    reader = consumer(
        broker, **{"isolation.level": isolation, "statistics.interval.ms": 50, "stats_cb": keep}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    try:
        count, end_then = (10, 18) if isolation == "read_committed" else (20, 23)

        def reads_all():
            nonlocal count
            row = reader.poll(0.2)
            count -= row is not None and row.error() is None
            return count == 0 and told and told[-1] == (0, end_then)

        wait_until(reads_all)
        client.commit_transaction(WAIT_S)
        count = 5 if isolation == "read_committed" else 0

        def reads_the_rest():
            nonlocal count
            row = reader.poll(0.2)
            count -= row is not None and row.error() is None
            return count == 0 and told[-1] == (0, 24)

        wait_until(reads_the_rest)
    finally:
        reader.close()


def test_what_is_purged_is_not_committed(broker, topic, unique):
    """An abort drops what is unsent, while other records of the transaction are on their way."""
    client = transactional(broker, unique("id"), **{"linger.ms": 20, "batch.num.messages": 10})
    for turn in range(10):
        client.begin_transaction()
        for n in range(200):
            client.produce(topic, b"%d %d" % (turn, n), partition=0)
        if turn % 3:
            client.poll(0.03)
            client.abort_transaction(WAIT_S)
        else:
            client.commit_transaction(WAIT_S)
    expected = [b"%d %d" % (turn, n) for turn in range(0, 10, 3) for n in range(200)]
    wait_until(lambda: values(broker, topic, partitions=[0])[0] == expected)


def test_ends_that_nobody_waits_for(broker, unique):
    """A client may begin its next transaction while the last one ends (franz-go): its AddPartitionsToTxn
    comes by another connection than the EndTxn, before or behind it."""
    chance = random.Random(11)
    with Wire(broker.bootstrap) as one, Wire(broker.bootstrap) as other:
        client = Client(one, unique)
        expected = {index: [] for index in range(3)}
        cls = messages.AddPartitionsToTxnRequest
        for turn in range(40):
            commits = chance.random() < 0.6
            client.add(*expected)
            for index, rows in expected.items():
                assert client.code(index) == 0
                if commits:
                    rows.append(turn)
            ending = messages.EndTxnRequest(
                transactional_id=client.id,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                committed=commits,
            )
            sent = one.send(ending, 4)
            adding = cls(
                v3_and_below_transactional_id=client.id,
                v3_and_below_producer_id=client.producer_id,
                v3_and_below_producer_epoch=client.epoch,
                v3_and_below_topics=[cls.V3AndBelowTopics(name=client.topic, partitions=[0])],
            )
            answer = other.ask(adding, 3)
            (topic,) = answer.results_by_topic_v3_and_below
            assert topic.results_by_partition[0].partition_error_code in (0, errors.CONCURRENT_TRANSACTIONS)
            correlation, ended = codec.decode_response(messages.EndTxnResponse, 4, one.read_frame())
            assert (correlation, ended.error_code) == (sent, 0)
        client.add(*expected)
        client.end(commit=False)
        for index in expected:
            wait_until(lambda index=index: client.offsets(index) == client.offsets(index, isolation=0))
        found = values(broker, client.topic, partitions=expected)
        assert {index: len(found[index]) for index in expected} == {
            index: len(rows) for index, rows in expected.items()
        }
