"""Coordinators that move between brokers: groups and transactions go on where they were, nothing twice."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kafkad.protocol import codec, errors, messages
from tests.member_cluster import WAIT_S, MemberCluster, wait_until
from tests.wire import Wire

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
    "offsets.commit.timeout.ms": 30_000,  # of commits that wait for followers that a test has stopped
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
}
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 500}
SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]  # one partition led by each


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with MemberCluster(tmp_path_factory.mktemp("cluster"), config=CONFIG) as cluster:
        yield cluster


def create(cluster, *topics):
    made = cluster.admin.create_topics([NewTopic(name, 3, replica_assignment=SPREAD) for name in topics])
    for each in made.values():
        each.result(30)


@pytest.fixture
def places(cluster):
    """Who coordinates, of a cluster that is whole: groups `groups`; transactions `first` and then `second`,
    which have all of it.

    A producer of librdkafka that has committed offsets with a coordinator of groups waits for that broker
    for ever once it is gone, so that one stays."""
    for member in cluster.members.values():
        if member.process.poll() is not None:
            member.start()
    committed_total(cluster, "nobody")  # makes the topic
    groups = wait_until(lambda: cluster.leader(OFFSETS) > 0 and cluster.leader(OFFSETS), cluster.logs)
    if STATE not in cluster.admin.list_topics(timeout=WAIT_S).topics:  # to ask for it would make it
        first, second = (each for each in cluster.members if each != groups)
        state = NewTopic(
            STATE, 1, replica_assignment=[[first, second]],
            config={"cleanup.policy": "compact", "min.insync.replicas": "1"},
        )  # fmt: skip
        cluster.admin.create_topics([state])[STATE].result(30)
    cluster.whole(STATE, OFFSETS)
    first = wait_until(lambda: cluster.leader(STATE) > 0 and cluster.leader(STATE), cluster.logs)
    second = next(each for each in cluster.members if each not in (first, groups))
    return SimpleNamespace(groups=groups, first=first, second=second)


def produce(cluster, topic, values):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
    troubles = []
    for number, value in enumerate(values):
        producer.produce(
            topic, value, partition=number % 3, on_delivery=lambda e, _: e and troubles.append(str(e))
        )
    assert producer.flush(WAIT_S) == 0, cluster.logs()
    assert not troubles


def consumer_of(cluster, group, *topics, **settings):
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 30_000, **QUIET, **settings,
        }
    )  # fmt: skip
    if topics:
        consumer.subscribe(list(topics))
    return consumer


def take(consumer, count, logs):
    found, deadline = [], time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {found}\n{logs()}"
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            found.append(message.value())
    return sorted(found)


def commit(consumer, logs):
    """As an application does: again, while the coordinator is on its way."""

    def committed():
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as trouble:
            assert trouble.args[0].code() in (
                KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._TRANSPORT,
                KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.REQUEST_TIMED_OUT,
                KafkaError._WAIT_COORD, KafkaError._TIMED_OUT,
            ), trouble  # fmt: skip
            return False
        return True

    wait_until(committed, logs)


def values(name, count=30):
    return sorted(b"%s-%d" % (name.encode(), number) for number in range(count))


def committed_total(cluster, group):
    """What a client that is new finds committed."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUIET})
    parts = [TopicPartition("data", index) for index in range(3)]
    try:
        return sum(max(each.offset, 0) for each in consumer.committed(parts, timeout=WAIT_S))
    finally:
        consumer.close()


def test_a_group_goes_on_when_its_coordinator_is_killed_is_stopped_and_leads_again(cluster):
    create(cluster, "data")
    consumer = consumer_of(cluster, "readers", "data")
    produce(cluster, "data", values("a"))
    assert take(consumer, 30, cluster.logs) == values("a")
    commit(consumer, cluster.logs)
    known = cluster.partition(OFFSETS)
    assert sorted(known.replicas) == [1, 2, 3]
    first, second = known.replicas[:2]
    assert known.leader == first

    cluster.members[first].kill()
    produce(cluster, "data", values("b"))
    assert take(consumer, 30, cluster.logs) == values("b")
    commit(consumer, cluster.logs)
    assert cluster.leader(OFFSETS) == second
    assert committed_total(cluster, "readers") == 60

    cluster.members[first].start()
    cluster.whole(OFFSETS, "data")
    assert cluster.members[second].stop() == 0, cluster.members[second].log
    assert f"{OFFSETS}-0 is coordinated here no more" in cluster.members[second].log
    produce(cluster, "data", values("c"))
    assert take(consumer, 30, cluster.logs) == values("c")
    commit(consumer, cluster.logs)
    assert cluster.leader(OFFSETS) == first
    assert committed_total(cluster, "readers") == 90

    cluster.members[second].start()
    cluster.whole(OFFSETS)
    consumer.close()
    assert committed_total(cluster, "readers") == 90


def commit_of(group, offset):
    cls = messages.OffsetCommitRequest
    part = cls.Topics.Partitions(partition_index=0, committed_offset=offset)
    return cls(
        group_id=group, generation_id_or_member_epoch=-1, topics=[cls.Topics(name="data", partitions=[part])]
    )


def fetch_of(group, *, stable=False):
    cls = messages.OffsetFetchRequest
    asked = cls.Groups(group_id=group, topics=[cls.Groups.Topics(name="data", partition_indexes=[0])])
    return cls(groups=[asked], require_stable=stable)


def offset_in(answer):
    (group,) = answer.groups
    (part,) = group.topics[0].partitions
    assert group.error_code == part.error_code == 0
    return part.committed_offset


def answer_of(wire, cls, version):
    _, answer = codec.decode_response(cls, version, wire.read_frame())
    return answer


def test_reads_show_what_is_committed_and_wait_for_nothing_while_followers_are_deaf(cluster, places):
    at = cluster.members[places.groups].bootstrap
    deaf = [each.process.pid for number, each in cluster.members.items() if number != places.groups]
    with (
        Wire(at, WAIT_S) as reader,
        Wire(at, WAIT_S) as old,
        Wire(at, WAIT_S) as new,
        Wire(at, WAIT_S) as sure,
    ):

        def written():
            cls = messages.DescribeLogDirsRequest
            answer = reader.ask(cls(topics=[cls.Topics(topic=OFFSETS, partitions=[0])]), 4)
            return answer.results[0].topics[0].partitions[0].partition_size

        def known(group):
            (found,) = reader.ask(messages.DescribeGroupsRequest(groups=[group]), 6).groups
            listed = reader.ask(messages.ListGroupsRequest(), 4).groups
            assert (group in [each.group_id for each in listed]) == (found.error_code == 0)
            return found.error_code, found.group_state

        assert old.ask(commit_of("watched", 5), 8).topics[0].partitions[0].error_code == 0
        before = written()
        try:
            for process in deaf:
                os.kill(process, signal.SIGSTOP)
            old.send(commit_of("watched", 7), 8)
            wait_until(lambda: written() > before, cluster.logs)
            before = written()
            new.send(commit_of("fresh", 1), 8)
            wait_until(lambda: written() > before, cluster.logs)
            sure.send(fetch_of("watched", stable=True), 8)
            assert offset_in(reader.ask(fetch_of("watched"), 8)) == 5
            assert offset_in(reader.ask(fetch_of("fresh"), 8)) == -1
            assert known("watched") == (0, "Empty")
            assert known("fresh") == (errors.GROUP_ID_NOT_FOUND, "Dead")
        finally:
            for process in deaf:
                os.kill(process, signal.SIGCONT)
        for wire in (old, new):
            answer = answer_of(wire, messages.OffsetCommitResponse, 8)
            assert answer.topics[0].partitions[0].error_code == 0
        assert offset_in(answer_of(sure, messages.OffsetFetchResponse, 8)) == 7
        assert offset_in(reader.ask(fetch_of("watched"), 8)) == 7
        assert known("fresh") == (0, "Empty")
    cluster.whole(OFFSETS)


def insist(act, logs):
    """Until it is done; what is retriable is asked again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except KafkaException as trouble:
            assert time.monotonic() < deadline, f"{trouble}\n{logs()}"
            if not trouble.args[0].retriable():
                raise


def transactional(cluster, name):
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap, "transactional.id": name,
            "transaction.timeout.ms": 60_000, **QUIET,
        }
    )  # fmt: skip
    insist(lambda: producer.init_transactions(10), cluster.logs)
    return producer


def read_to_the_end(cluster, topic):
    """What a consumer of committed records finds in the three partitions. It reaches the end of none before
    all of its transactions have ended."""
    reader = consumer_of(
        cluster, "readers of committed", **{"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(topic, index, 0) for index in range(3)])
    found, ended, deadline = [], set(), time.monotonic() + WAIT_S
    while len(ended) < 3:
        assert time.monotonic() < deadline, f"{len(found)}, ended: {ended}\n{cluster.logs()}"
        message = reader.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
            ended.discard(message.partition())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            _, high = reader.get_watermark_offsets(TopicPartition(topic, message.partition()), WAIT_S)
            if message.offset() == high:
                ended.add(message.partition())
            else:
                reader.seek(TopicPartition(topic, message.partition(), message.offset()))
    reader.close()
    return sorted(found)


def test_each_committed_record_is_there_once_when_coordinators_are_killed(cluster, places):
    create(cluster, "ledger")  # a partition led by each broker
    members = cluster.members
    producer = transactional(cluster, "accountant")

    def write(name):
        producer.begin_transaction()
        for number, value in enumerate(values(name)):
            producer.produce("ledger", value, partition=number % 3)
        assert producer.flush(WAIT_S) == 0, cluster.logs()

    def commit():
        insist(lambda: producer.commit_transaction(10), cluster.logs)

    write("over three brokers")
    commit()

    write("decided, not marked")  # a leader of one partition is deaf, and a follower of the others
    process = members[places.groups].process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        commit()
        members[places.first].kill()
    finally:
        os.kill(process.pid, signal.SIGCONT)

    write("never")
    insist(lambda: producer.abort_transaction(10), cluster.logs)
    assert cluster.leader(STATE) == places.second
    members[places.first].start()
    cluster.whole(STATE, OFFSETS, "ledger")

    write("in the midst of it")
    members[places.second].kill()
    commit()
    assert cluster.leader(STATE) == places.first

    wanted = [*values("over three brokers"), *values("decided, not marked"), *values("in the midst of it")]
    assert read_to_the_end(cluster, "ledger") == sorted(wanted)


class Copier:
    """Copies "in" to "out" in transactions of a few records, as an application that must do it once."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.consumer = consumer_of(cluster, "copiers", "in", **{"isolation.level": "read_committed"})
        self.producer = transactional(cluster, "copier")

    def _insist(self, act):
        return insist(act, self.cluster.logs)

    def copy(self, count):
        """Until `count` more records are copied."""
        copied, deadline = 0, time.monotonic() + WAIT_S
        while copied < count:
            assert time.monotonic() < deadline, f"{copied} of {count}\n{self.cluster.logs()}"
            messages = [each for each in self.consumer.consume(5, 1.0) if not each.error()]
            if messages and self._copied(messages):
                copied += len(messages)

    def _copied(self, messages):
        producer = self.producer
        try:
            producer.begin_transaction()
            for number, each in enumerate(messages):
                producer.produce("out", each.value(), partition=(each.offset() + number) % 3)
            offsets = self.consumer.position(self.consumer.assignment())
            group = self.consumer.consumer_group_metadata()
            self._insist(lambda: producer.send_offsets_to_transaction(offsets, group, 10))
            self._insist(lambda: producer.commit_transaction(10))
            return True
        except KafkaException as trouble:
            error = trouble.args[0]
            if error.fatal():
                self.producer = transactional(self.cluster, "copier")
            else:
                assert error.txn_requires_abort(), f"{trouble}\n{self.cluster.logs()}"
                self._insist(lambda: producer.abort_transaction(10))
            self._rewind()
            return False

    def _rewind(self):
        parts = self.consumer.committed(self.consumer.assignment(), timeout=WAIT_S)
        for each in parts:
            self.consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))


def test_offsets_of_transactions_go_on_when_their_coordinator_is_killed(cluster, places):
    """Copied in transactions over brokers that are killed: each record is there once."""
    create(cluster, "in", "out")
    produce(cluster, "in", values("r", 60))
    copier = Copier(cluster)
    copier.copy(30)
    cluster.members[places.first].kill()
    copier.copy(30)
    assert cluster.leader(STATE) == places.second
    assert read_to_the_end(cluster, "out") == values("r", 60)
    copier.consumer.close()
