"""A node that stops, or gives partitions back to their preferred leaders, hands its Produces over to the new
leaders (server/produce_handover, server/preferred_leaders)."""

import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.protocol import messages
from kafkad.protocol.errors import NOT_LEADER_OR_FOLLOWER
from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.wire import Wire, batch

WAIT_S = 60.0
PARTITIONS = 4


@pytest.fixture(params=(1, 2), ids=("one worker", "two workers"))
def cluster(request):
    properties = {"min.insync.replicas": 2, "kafkad.preferred.leader.delay.ms": 500}
    with Cluster(3, properties, workers=request.param) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(WAIT_S)
        wait_until(lambda: all(len(part.isrs) == 3 for part in described(cluster).values()), WAIT_S)
        yield cluster
        print(cluster.log)


def described(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return admin.list_topics("kept", timeout=WAIT_S).topics["kept"].partitions


def leaders(cluster):
    return {index: part.leader for index, part in described(cluster).items()}


def produced(wire, version, topic_id, index):
    cls = messages.ProduceRequest
    topic = cls.TopicData(name="kept", topic_id=topic_id)
    topic.partition_data = [cls.TopicData.PartitionData(index=index, records=bytes(batch(b"x")))]
    request = cls(acks=-1, timeout_ms=30_000, topic_data=[topic])
    answer = wire.ask(request, version)
    return answer.responses[0].partition_responses[0], answer.node_endpoints


@pytest.mark.timeout(180)
@pytest.mark.parametrize("version", [10, 13])
def test_the_new_leader_has_what_comes_while_a_node_leaves_and_its_client_is_told_of_it(cluster, version):
    leaving = described(cluster)[0].leader
    stopping = threading.Thread(target=cluster.stop, args=(leaving,))
    with Wire(cluster.nodes[leaving].bootstrap) as wire:
        asked = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="kept")])
        topic_id = wire.ask(asked, 12).topics[0].topic_id
        answers = [produced(wire, version, topic_id, 0) for _ in range(10)]
        stopping.start()
        try:
            while True:
                answers.append(produced(wire, version, topic_id, 0))
        except OSError:
            pass
    stopping.join()
    refused = [part.error_code == NOT_LEADER_OR_FOLLOWER for part, _ in answers]
    taken = refused.index(
        True
    )  # at last the client is refused, as a client that does not heed the hint needs
    assert all(refused[taken:])
    assert [part.error_code for part, _ in answers[:taken]] == [0] * taken
    assert [part.base_offset for part, _ in answers[:taken]] == list(range(taken))
    forwarded = [(part, nodes) for part, nodes in answers[:taken] if part.current_leader.leader_id >= 0]
    assert forwarded == answers[taken - len(forwarded) : taken]
    leader = described(cluster)[0].leader
    assert len(forwarded) > 0 and leader != leaving
    for part, nodes in forwarded:
        assert part.current_leader.leader_id == leader
        assert [f"{node.host}:{node.port}" for node in nodes] == [cluster.nodes[leader].bootstrap]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("version", [10, 13])
def test_a_leader_gives_back_without_a_refusal_what_another_broker_should_lead(cluster, version):
    preferred = described(cluster)[0].leader
    cluster.stop(preferred)
    wait_until(lambda: described(cluster)[0].leader not in (-1, preferred), WAIT_S)
    leader = described(cluster)[0].leader
    before = {index: part.leader for index, part in described(cluster).items()}
    cluster.start(preferred)
    answers = []
    deadline = time.monotonic() + WAIT_S
    with Wire(cluster.nodes[leader].bootstrap) as wire:
        asked = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="kept")])
        topic_id = wire.ask(asked, 12).topics[0].topic_id
        while not answers or answers[-1].error_code == 0:
            assert time.monotonic() < deadline, cluster.log
            answers.append(produced(wire, version, topic_id, 0)[0])
    *taken, refused = answers  # at last, as a client that does not heed the hint needs
    assert refused.error_code == NOT_LEADER_OR_FOLLOWER
    assert refused.current_leader.leader_id == preferred
    assert [part.base_offset for part in taken] == list(range(len(taken)))
    forwarded = [part.current_leader.leader_id for part in taken if part.current_leader.leader_id >= 0]
    assert len(forwarded) > 0 and set(forwarded) == {preferred}
    wait_until(lambda: set(leaders(cluster).values()) == {1, 2, 3}, WAIT_S)
    kept = [index for index, led in before.items() if leaders(cluster)[index] == led]
    assert len(kept) == PARTITIONS - sum(led == preferred for led in leaders(cluster).values())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("event", ["stop", "give back"])
def test_an_idempotent_producer_of_librdkafka_goes_on_at_the_new_leader(cluster, event):
    """Each record is there once and in order; what is forwarded and what the client sends do not mix."""
    told: list[str] = []
    delivered: list[tuple[int, bytes]] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def done(error, message):
        if error is not None:
            told.append(str(error))
        else:
            delivered.append((message.partition(), message.value()))

    def send(number):
        for index in range(PARTITIONS):
            producer.produce("kept", b"%d" % number, partition=index, on_delivery=done)
        producer.poll(0.005)

    for number in range(50):
        send(number)
    assert producer.flush(WAIT_S) == 0
    leaving = described(cluster)[0].leader
    if event == "give back":
        cluster.stop(leaving)
        cluster.start(leaving)
        changing = threading.Thread(target=wait_until, args=(lambda: leaders(cluster)[0] == leaving, WAIT_S))
    else:
        changing = threading.Thread(target=cluster.stop, args=(leaving,))
    changing.start()
    number = 50
    while changing.is_alive():
        send(number)
        number += 1
    assert producer.flush(WAIT_S) == 0, cluster.log
    assert not told
    assert (leaders(cluster)[0] == leaving) == (event == "give back")
    assert len(delivered) == number * PARTITIONS
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "-", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("kept", index, 0) for index in range(PARTITIONS)])
    read: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, read.values())) < len(delivered) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            read[message.partition()].append(message.value())
    consumer.close()
    assert read == {index: [b"%d" % each for each in range(number)] for index in range(PARTITIONS)}
