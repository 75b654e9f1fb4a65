"""Produce and Fetch before the ACLs, natively: who is asked how often, and what is remembered for how long.
What each right allows is compared with JVM Kafka in tests/integration/test_access.py."""

import logging
import time

import pytest
from reactor_world import Gate, World, batch, fetch, produce, rows

from kafkad.protocol import errors, messages
from tests.readiness import readable

READ, WRITE, CLUSTER_ACTION = 3, 4, 9
TOPIC, CLUSTER, TRANSACTIONAL_ID = 2, 4, 5
DENIED = errors.TOPIC_AUTHORIZATION_FAILED
ID = bytes(range(16))


class Authorizer:
    """Allows what stands in `rights`, and writes down what it is asked."""

    def __init__(self):
        self.rights = set()  # (principal, operation, kind, name)
        self.asked = []

    def subject(self, principal, host):
        return Subject(self, principal, host)


class Subject:
    def __init__(self, authorizer, principal, host):
        self.authorizer, self.principal, self.host = authorizer, principal, host

    def may(self, operation, kind, name, api, *, logged=True):
        self.authorizer.asked.append((self.principal, operation, kind, name, api))
        return (self.principal, operation, kind, name) in self.authorizer.rights

    def may_cluster(self, operation, api, *, logged=True):
        return self.may(operation, CLUSTER, "kafka-cluster", api)


class GuardedWorld(World):
    def __init__(self, directory):
        super().__init__(directory)
        self.authorizer = Authorizer()
        self.reactor.authorize(self.authorizer)

    def allow(self, *rights, user="alice"):
        self.authorizer.rights |= {(f"User:{user}", *right) for right in rights}
        self.reactor.acls_changed()

    def forbid(self):
        self.authorizer.rights.clear()
        self.reactor.acls_changed()

    def client(self, user="alice"):
        client = self.connect()
        client.send_request(messages.ApiVersionsRequest(), 0)
        client.receive_frame()
        self.calls[-1][0].principal = f"User:{user}"
        return client

    @property
    def asked(self):
        """Since the last time."""
        asked, self.authorizer.asked = self.authorizer.asked, []
        return [(operation, name) for _, operation, _, name, _ in asked]


@pytest.fixture
def world(tmp_path):
    world = GuardedWorld(str(tmp_path))
    world.partition("t", topic_id=ID)
    world.partition("u")
    yield world
    world.close()


def test_a_right_is_asked_for_once_until_the_acls_change(world):
    world.allow((WRITE, TOPIC, "t"), (READ, TOPIC, "t"))
    client, other = world.client(), world.client()
    for _ in range(3):
        assert client.produce("t", batch()).error_code == 0
        assert other.produce("t", batch()).error_code == 0  # the same subject, by another connection
        assert client.produce("u", batch()).error_code == DENIED
        assert rows(client.fetch([("t", 0, 0)]))[0][2] == 0
    assert world.asked.count((WRITE, "t")) == 1
    world.forbid()
    assert client.produce("t", batch()).error_code == DENIED
    assert rows(client.fetch([("t", 0, 0)])) == [("t", 0, DENIED, -1, 0)]
    assert world.asked == [(WRITE, "t"), (READ, "t")]
    world.allow((WRITE, TOPIC, "t"))
    assert client.produce("t", batch()).error_code == 0


def test_each_principal_has_its_own_rights(world):
    world.allow((WRITE, TOPIC, "t"), user="alice")
    assert world.client("alice").produce("t", batch()).error_code == 0
    assert world.client("bob").produce("t", batch()).error_code == DENIED
    assert world.connect().produce("t", batch()).error_code == DENIED
    world.allow((WRITE, TOPIC, "t"), user="ANONYMOUS")
    assert world.connect().produce("t", batch()).error_code == 0


def test_whether_a_topic_is_there_is_not_told(world):
    client = world.client()
    assert client.produce("absent", batch()).error_code == DENIED
    assert rows(client.fetch([("absent", 0, 0)]))[0][2] == DENIED
    world.allow((WRITE, TOPIC, "absent"), (READ, TOPIC, "absent"))
    assert client.produce("absent", batch()).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert rows(client.fetch([("absent", 0, 0)]))[0][2] == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_an_id_that_nobody_has_is_no_topic(world):
    client = world.client()
    assert client.produce(b"n" * 16, batch(), version=13).error_code == errors.UNKNOWN_TOPIC_ID
    assert rows(client.fetch([(b"n" * 16, 0, 0)], version=13))[0][2] == errors.UNKNOWN_TOPIC_ID
    assert world.asked == []
    assert client.produce(ID, batch(), version=13).error_code == DENIED
    assert rows(client.fetch([(ID, 0, 0)], version=13))[0][2] == DENIED
    world.allow((WRITE, TOPIC, "t"), (READ, TOPIC, "t"))
    assert client.produce(ID, batch(), version=13).error_code == 0
    assert rows(client.fetch([(ID, 0, 0)], version=13))[0][2] == 0


def session(client, partitions, session_id, epoch, **fields):
    return client.fetch(partitions, session_id=session_id, session_epoch=epoch, **fields)


LATE = b"l" * 16


def test_a_topic_that_comes_to_this_broker_is_decided_before_a_session_reads_it(world):
    world.allow((WRITE, TOPIC, "late"), user="bob")
    alice, bob = world.client(), world.client("bob")
    opened = session(alice, [(LATE, 0, 0)], 0, 0, version=13)
    assert rows(opened) == [(LATE, 0, errors.UNKNOWN_TOPIC_ID, -1, 0)]
    world.partition("late", topic_id=LATE)
    assert bob.produce("late", batch()).error_code == 0
    for epoch in (1, 2):
        told = session(alice, [], opened.session_id, epoch, version=13)
        assert rows(told) == [(LATE, 0, DENIED, -1, 0)]
    world.allow((READ, TOPIC, "late"))
    assert rows(session(alice, [], opened.session_id, 3, version=13))[0][2] == 0


def test_a_topic_that_comes_while_a_fetch_waits_is_decided_before_it_is_read(world):
    world.allow((READ, TOPIC, "t"))
    alice, bob = world.client(), world.client("bob")
    world.allow((WRITE, TOPIC, "t"), (WRITE, TOPIC, "late"), user="bob")
    waiting = alice.send_request(fetch([(ID, 0, 0), (LATE, 0, 0)], max_wait_ms=60_000), 13)
    assert not alice.has_answer()
    world.partition("late", topic_id=LATE)
    assert bob.produce("late", batch()).error_code == 0
    assert bob.produce("t", batch()).error_code == 0
    codes = {row[0]: (row[2], row[4] > 0) for row in rows(alice.receive(messages.FetchResponse, 13, waiting))}
    assert codes == {ID: (0, True), LATE: (DENIED, False)}


def test_a_session_is_decided_for_each_client_that_uses_it(world):
    world.allow((READ, TOPIC, "t"), (WRITE, TOPIC, "t"), user="alice")
    alice, mallory = world.client("alice"), world.client("mallory")
    alice.produce("t", batch())
    opened = session(alice, [("t", 0, 0), ("u", 0, 0)], 0, 0)
    assert [row[2] for row in rows(opened)] == [0, DENIED]
    stolen = session(mallory, [], opened.session_id, 1)
    assert [row[2:] for row in rows(stolen)] == [(DENIED, -1, 0)] * 2
    world.asked.clear()
    back = session(alice, [], opened.session_id, 2)
    assert [(row[0], row[2]) for row in rows(back)] == [("t", 0), ("u", DENIED)]


def test_a_session_asks_once(world):
    world.allow((READ, TOPIC, "t"), (WRITE, TOPIC, "t"))
    client = world.client()
    client.produce("t", batch())
    opened = session(client, [("t", 0, 1), ("u", 0, 0)], 0, 0)
    assert world.asked == [(WRITE, "t"), (READ, "t"), (READ, "u")]
    for epoch in range(1, 4):
        told = rows(session(client, [], opened.session_id, epoch))
        assert [(row[0], row[2]) for row in told] == [("u", DENIED)]  # an error stands in each answer
    assert world.asked == []
    world.forbid()
    told = rows(session(client, [], opened.session_id, 4))
    assert sorted((row[0], row[2]) for row in told) == [("t", DENIED), ("u", DENIED)]
    assert sorted(world.asked) == [(READ, "t"), (READ, "u")]


def test_what_waits_was_decided_when_it_came(world):
    world.allow((READ, TOPIC, "t"), (WRITE, TOPIC, "t"))
    reader, writer = world.client(), world.client("bob")
    world.allow((WRITE, TOPIC, "t"), (WRITE, TOPIC, "u"), user="bob")
    waiting = reader.send_request(fetch([("t", 0, 0), ("u", 0, 0)], max_wait_ms=60_000), 12)
    assert not reader.has_answer()
    assert writer.produce("u", batch()).error_code == 0
    assert not reader.has_answer()  # what it may not read wakes nobody
    world.authorizer.rights -= {("User:alice", READ, TOPIC, "t")}
    world.reactor.acls_changed()
    assert writer.produce("t", batch()).error_code == 0
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    codes = {row[0]: (row[2], row[4] > 0) for row in rows(answer)}
    assert codes == {"t": (0, True), "u": (DENIED, False)}
    assert rows(reader.fetch([("t", 0, 0)]))[0][2] == DENIED


def test_a_replica_needs_the_clusters_right(world):
    world.allow((READ, TOPIC, "t"))
    client = world.client()
    assert rows(client.fetch([("t", 0, 0)], replica_id=7))[0][2] == DENIED
    world.allow((CLUSTER_ACTION, CLUSTER, "kafka-cluster"))
    assert rows(client.fetch([("t", 0, 0)], replica_id=7))[0][2] == errors.NOT_LEADER_OR_FOLLOWER


def test_a_transaction_needs_its_id(world):
    world.reactor.serve_transactions(Gate())
    world.allow((WRITE, TOPIC, "t"))
    client = world.client()
    how = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "transactional": True}

    def code():
        return client.produce("t", batch(**how), transactional_id="x").error_code

    assert code() == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    world.allow((WRITE, TRANSACTIONAL_ID, "x"))
    assert code() == 0


def test_many_topics_are_remembered_each(world):
    names = [f"n{number}" for number in range(300)]
    for name in names:
        world.partition(name)
    world.allow(*((WRITE, TOPIC, name) for name in names[::3]))
    client = world.client()
    data = messages.ProduceRequest.TopicData
    request = produce("t", {0: batch()})
    request.topic_data = [
        data(name=name, partition_data=[data.PartitionData(index=0, records=batch())]) for name in names
    ]
    for _ in range(2):
        answer = client.ask(request, 9)
        found = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
        assert found == {name: 0 if at % 3 == 0 else DENIED for at, name in enumerate(names)}
    assert len(world.asked) == len(names)


def test_a_log_that_wants_every_line_is_told_every_time(world, caplog):
    world.allow((WRITE, TOPIC, "t"))
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    client = world.client()
    for _ in range(3):
        assert client.produce("t", batch()).error_code == 0
    assert world.asked == [(WRITE, "t")] * 3


def test_a_topic_that_is_made_again_is_asked_for_again(world):
    world.allow((WRITE, TOPIC, "u"))
    client = world.client()
    assert client.produce("u", batch()).error_code == 0
    world.table.remove("u", 0)
    assert client.produce("u", batch()).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert len(world.asked) == 2


def test_acks_0_that_is_denied_ends_the_connection(world):
    client = world.client()
    client.send_produce("t", batch(), acks=0)
    client.wait_closed()


def slow(world):
    """Each question takes a millisecond, so a turn has time for a few of them."""
    ask = Subject.may

    def may(self, *args, **how):
        time.sleep(0.001)
        return ask(self, *args, **how)

    world.authorizer.subject = lambda principal, host: type("Slow", (Subject,), {"may": may})(
        world.authorizer, principal, host
    )


def turns_until_answered(world, client):
    """Turns of the loop until there is an answer, and how many questions the longest one asked."""
    longest = 0
    for turn in range(200):
        world.authorizer.asked.clear()
        readable([world.reactor.fileno()], 0.05)
        world.poll(1)
        longest = max(longest, len(world.authorizer.asked))
        if client.pull() and len(client.received) >= 4:
            return turn, longest
    raise AssertionError("no answer")


def test_a_fetch_of_many_topics_is_decided_in_slices(world):
    slow(world)
    world.allow(*((READ, TOPIC, f"n{number}") for number in range(0, 100, 2)))
    client, other = world.client(), world.client("bob")
    request = client.send_request(fetch([(f"n{number}", 0, 0) for number in range(100)]), 12)
    turns, longest = turns_until_answered(world, client)
    assert turns >= 5 and longest <= 20
    codes = {row[0]: row[2] for row in rows(client.receive(messages.FetchResponse, 12, request))}
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {f"n{number}": DENIED if number % 2 else unknown for number in range(100)}
    assert rows(other.fetch([("u", 0, 0)]))[0][2] == DENIED


def test_a_client_that_leaves_while_it_is_decided(world):
    slow(world)
    client, other = world.client(), world.client("bob")
    client.send_request(fetch([(f"n{number}", 0, 0) for number in range(100)]), 12)
    world.poll(1)
    client.socket.close()
    world.poll_until(lambda: world.reactor.stats()["connections"] == 1)
    assert rows(other.fetch([("u", 0, 0)]))[0][2] == DENIED


def test_what_was_decided_in_slices_may_wait_for_data(world):
    slow(world)
    names = [f"n{number}" for number in range(30)]
    for name in names:
        world.partition(name)
    world.allow(*((READ, TOPIC, name) for name in names))
    world.allow((WRITE, TOPIC, "n29"), user="bob")
    client, writer = world.client(), world.client("bob")
    waiting = client.send_request(fetch([(name, 0, 0) for name in names], max_wait_ms=60_000), 12)
    world.poll_until(lambda: world.reactor.stats()["fetch_waits"] == 1)
    assert not client.has_answer()
    assert writer.produce("n29", batch()).error_code == 0
    answer = client.receive(messages.FetchResponse, 12, waiting)
    assert {row[0] for row in rows(answer) if row[4]} == {"n29"}


def test_a_produce_to_many_topics_is_decided_in_slices(world):
    slow(world)
    world.allow((WRITE, TOPIC, "n0"))
    client = world.client()
    data = messages.ProduceRequest.TopicData
    request = produce("t", {0: batch()})
    request.topic_data = [
        data(name=f"n{number}", partition_data=[data.PartitionData(index=0, records=batch())])
        for number in range(100)
    ]
    correlation_id = client.send_request(request, 9)
    turns, longest = turns_until_answered(world, client)
    assert turns >= 5 and longest <= 20
    answer = client.receive(messages.ProduceResponse, 9, correlation_id)
    codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {
        f"n{number}": DENIED if number else errors.UNKNOWN_TOPIC_OR_PARTITION for number in range(100)
    }
