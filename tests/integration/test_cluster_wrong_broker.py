"""What a broker of a cluster answers about a partition that it does not lead, or of which it has no replica,
to users with and without the right to it: kafkad as JVM Kafka 4.3.1."""

import pytest
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from kafkad.client.connection import Connection
from kafkad.client.security import Security
from kafkad.protocol import errors, messages
from tests.clients import wait_until
from tests.handover_cluster import JVM, KAFKAD
from tests.integration.test_cluster_secured import right
from tests.secured_cluster import WAIT_S, SecuredCluster
from tests.wire import batch, produce_request

UNKNOWN = b"u" * 16
LOGIN = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location")


class Asked:
    """A node, as one user asks it."""

    def __init__(self, cluster, number, user):
        options = {key: value for key, value in cluster.client(user).items() if key in LOGIN}
        port = cluster.nodes[number].port
        self.connection = Connection("127.0.0.1", port, "asked", security=Security.of(options))

    def produce(self, topic_id, index=0):
        request = produce_request("", bytes(batch(b"x")), index)
        request.topic_data[0].topic_id = topic_id
        [topic] = self.connection.ask(request, 13).responses
        [part] = topic.partition_responses
        return part.error_code, part.current_leader.leader_id

    def fetch(self, topic_id, index=0):
        Topic = messages.FetchRequest.Topics
        asked = Topic.Partitions(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [Topic(topic_id=topic_id, partitions=[asked])]
        [topic] = self.connection.ask(messages.FetchRequest(max_bytes=1 << 20, topics=topics), 16).responses
        [part] = topic.partitions
        return part.error_code, part.current_leader.leader_id

    def list_offsets(self, topic, leader_epoch):
        Topic = messages.ListOffsetsRequest.Topics
        asked = Topic.Partitions(partition_index=0, current_leader_epoch=leader_epoch, timestamp=-1)
        request = messages.ListOffsetsRequest(replica_id=-1, topics=[Topic(name=topic, partitions=[asked])])
        [topic] = self.connection.ask(request, 7).topics
        return topic.partitions[0].error_code

    def write_marker(self, topic, index=0):
        Marker = messages.WriteTxnMarkersRequest.Markers
        topics = [Marker.Topics(name=topic, partition_indexes=[index])]
        marker = Marker(producer_id=4711, producer_epoch=0, transaction_result=False, topics=topics)
        [answer] = self.connection.ask(messages.WriteTxnMarkersRequest(markers=[marker]), 1).markers
        return answer.topics[0].partitions[0].error_code

    def topic_id(self, name):
        asked = messages.MetadataRequest.Topics(name=name)
        request = messages.MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        [topic] = self.connection.ask(request, 12).topics
        return topic.topic_id if not topic.error_code else None


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((KAFKAD, KAFKAD, KAFKAD), id="kafkad"),
        pytest.param((KAFKAD, KAFKAD, JVM), id="one-jvm", marks=pytest.mark.java),
    ],
)
def test_a_broker_that_does_not_lead_a_partition_answers_as_kafka(tmp_path, kinds):
    with SecuredCluster(tmp_path, kinds, workers=2) as cluster:
        for topic in (
            NewTopic("far", 1, replica_assignment=[[1]]),
            NewTopic("spread", 2, replica_assignment=[[1], [2]]),
            NewTopic("near", 1, replica_assignment=[[1, 2, 3]]),
        ):
            cluster.admin.create_topics([topic])[topic.topic].result(WAIT_S)
        rights = [
            right("writer", operation, ResourceType.TOPIC, topic)
            for operation in (AclOperation.WRITE, AclOperation.READ)
            for topic in ("far", "spread", "near")
        ]
        for made in cluster.admin.create_acls(rights).values():
            made.result(WAIT_S)
        cluster.whole("near")

        refused = errors.TOPIC_AUTHORIZATION_FAILED
        for number in (2, 3):
            writer, reader, admin = (Asked(cluster, number, user) for user in ("writer", "reader", "admin"))
            wait_until(lambda writer=writer: writer.topic_id("near"), WAIT_S)
            far, spread = writer.topic_id("far"), writer.topic_id("spread")
            told = {
                "produce": [each.produce(far) for each in (writer, reader)],
                "fetch": [each.fetch(far) for each in (writer, reader)],
                "produce, other partition here": [each.produce(spread) for each in (writer, reader)],
                "fetch, other partition here": [each.fetch(spread) for each in (writer, reader)],
                "no such partition": [each(far, 9) for each in (writer.produce, writer.fetch)],
                "unknown": [each(UNKNOWN) for each in (writer.produce, reader.produce, writer.fetch)],
                "epoch": [writer.list_offsets("near", epoch) for epoch in (-1, 0, 99)],
                "markers": [admin.write_marker(topic) for topic in ("far", "near", "none")],
                "rights": [reader.list_offsets("near", 99)],
            }
            leads = (errors.NOT_LEADER_OR_FOLLOWER, 1)
            assert told == {
                "produce": [leads, (refused, -1)],
                "fetch": [leads, (refused, -1)],
                "produce, other partition here": [leads, (refused, -1)],
                "fetch, other partition here": [leads, (refused, -1)],
                "no such partition": [(errors.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 2,
                "unknown": [(errors.UNKNOWN_TOPIC_ID, -1)] * 3,
                "epoch": [
                    errors.NOT_LEADER_OR_FOLLOWER,
                    errors.NOT_LEADER_OR_FOLLOWER,
                    errors.UNKNOWN_LEADER_EPOCH,
                ],
                "markers": [
                    errors.UNKNOWN_TOPIC_OR_PARTITION,
                    errors.NOT_LEADER_OR_FOLLOWER,
                    errors.UNKNOWN_TOPIC_OR_PARTITION,
                ],
                "rights": [refused],
            }, (number, kinds[number - 1])
