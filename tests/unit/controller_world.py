"""Several brokers and a controller's plans, without a log: each plan is applied to the image at once."""

import random

from steps import finish

from kafkad.config.broker import BrokerConfig
from kafkad.controller import membership
from kafkad.controller.directories import plan_assign
from kafkad.controller.heartbeats import Heartbeats
from kafkad.controller.isr_changes import plan_alter_partition
from kafkad.controller.leadership import (
    Indexes,
    TopicSettings,
    plan_elect_leaders,
    plan_preferred,
    plan_unclean,
)
from kafkad.controller.topics import Cluster, plan_create, plan_delete
from kafkad.metadata.image import TOPIC, MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import KafkaError
from tests.image_checks import check_state, check_step
from tests.registrations import CLUSTER, registration

SESSION_MS = 9_000
LEVELS = {"metadata.version": 30, "eligible.leader.replicas.version": 1}


def indexes_of(image):
    indexes = Indexes()
    finish(indexes.fill(image))
    return indexes


class World:
    """`image` is the head. `offset` grows by one for each record, as in a log."""

    def __init__(self, *brokers, elr=True, **config):
        config.setdefault("node.id", 9)
        self.config = BrokerConfig({key.replace("_", "."): str(value) for key, value in config.items()})
        self.random = random.Random(5)
        self.now_ms = 0
        self.records = []
        self.incarnations = 0
        levels = {name: level for name, level in LEVELS.items() if elr or name == "metadata.version"}
        self.image, _ = applied(
            MetadataImage(CLUSTER),
            [messages.FeatureLevelRecord(name=n, feature_level=level) for n, level in levels.items()],
            offset=1,
        )
        self.image.kraft_version = 1
        self.indexes = indexes_of(self.image)
        self.heartbeats = Heartbeats(self.image, SESSION_MS, 0)
        for broker in brokers:
            self.join(broker)

    @property
    def head(self):
        settings = TopicSettings(self.image, self.config)
        return membership.Head(self.image, settings, self.indexes, self.heartbeats, self.now_ms)

    @property
    def settings(self):
        return self.head.settings

    def commit(self, records):
        before = self.image
        self.image, _ = applied(before, records, offset=before.offset + len(records))
        finish(self.indexes.follow(before, records, self.image))
        self.records = records
        return records

    def state(self, topic="t", index=0):
        return self.image.topics[topic].partitions[index]

    # -- brokers -------------------------------------------------------------------------------------------

    def register(self, broker_id, *, incarnation=None, version=4, **fields):
        if incarnation is None:
            self.incarnations += 1
            incarnation = self.incarnations
        request = registration(broker_id, incarnation, **fields)
        epoch = self.image.offset + 1
        plan = finish(membership.plan_register(self.head, CLUSTER, version, request, epoch))
        self.commit(plan.records)
        self.heartbeats.registered(broker_id, fenced=plan.fenced, offset=self.image.offset)
        self.heartbeats.contact((broker_id, plan.epoch), self.now_ms)
        return plan

    def beat(self, broker_id, *, offset=None, epoch=None, **fields):
        if epoch is None:
            epoch = self.image.brokers[broker_id].epoch
        request = messages.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            **fields,
        )
        plan = finish(membership.plan_heartbeat(self.head, request))
        self.heartbeats.contact((broker_id, epoch), self.now_ms)
        self.commit(plan.records)
        self.heartbeats.touch(
            broker_id, fenced=plan.state.is_fenced, metadata_offset=request.current_metadata_offset
        )
        if plan.state.name == "CONTROLLED_SHUTDOWN":
            self.heartbeats.leaves_at(broker_id, self.image.offset)
        return plan.response

    def join(self, broker_id, **fields):
        self.register(broker_id, **fields)
        return self.beat(broker_id)

    def fence(self, broker_id):
        """As when its session has ended."""
        self.heartbeats._contacts.pop((broker_id, self.image.brokers[broker_id].epoch), None)
        records = self.commit(finish(membership.plan_fence(self.head, broker_id)))
        self.heartbeats.fence(broker_id)
        return records

    def unregister(self, broker_id):
        self.commit(finish(membership.plan_unregister(self.head, broker_id)))
        self.heartbeats.remove(broker_id)

    # -- topics --------------------------------------------------------------------------------------------

    def create(self, name, *assignments, configs=(), partitions=-1, factor=-1):
        cls = messages.CreateTopicsRequest.Topics
        topic = cls(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            assignments=[
                cls.Assignments(partition_index=i, broker_ids=list(ids)) for i, ids in enumerate(assignments)
            ],
            configs=[cls.Configs(name=key, value=value) for key, value in dict(configs).items()],
        )
        plan = plan_create(
            self.image,
            Cluster(self.config, self.random),
            messages.CreateTopicsRequest(topics=[topic]),
        )
        records, response = finish(plan)
        self.commit(records)
        return response.topics[0].error_code

    def delete(self, name):
        request = messages.DeleteTopicsRequest(topic_names=[name])
        records, response = finish(plan_delete(self.image, self.config, 5, request))
        self.commit(records)
        return response.responses[0].error_code

    def configure(self, topic, **values):
        self.commit(
            [
                messages.ConfigRecord(
                    resource_type=TOPIC, resource_name=topic, name=key.replace("_", "."), value=value
                )
                for key, value in values.items()
            ]
        )

    def alter(self, broker_id, isr, *, topic="t", index=0, version=3, **fields):
        """The row of the answer. `isr`: ids, or (id, broker epoch)."""
        cls = messages.AlterPartitionRequest
        row = cls.Topics.Partitions
        known = self.image.topics.get(topic)
        state = known.partitions.get(index) if known is not None else None
        broker_epoch = fields.pop("broker_epoch", self.image.brokers[broker_id].epoch)
        topic_id = fields.pop("topic_id", known.topic_id if known is not None else bytes(16))
        if state is not None:
            fields.setdefault("leader_epoch", state.leader_epoch)
            fields.setdefault("partition_epoch", state.partition_epoch)
        members = [each if isinstance(each, tuple) else (each, -1) for each in isr]
        proposal = row(
            partition_index=index,
            new_isr=[member for member, _ in members],
            new_isr_with_epochs=[
                row.NewIsrWithEpochs(broker_id=member, broker_epoch=epoch) for member, epoch in members
            ],
            **fields,
        )
        request = cls(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            topics=[cls.Topics(topic_id=topic_id, partitions=[proposal])],
        )
        records, response = finish(plan_alter_partition(self.image, self.settings, version, request))
        self.commit(records)
        return response.topics[0].partitions[0]

    def elect(self, kind, *named, version=2):
        """{(topic, index): error code}; all partitions without `named`."""
        cls = messages.ElectLeadersRequest
        request = cls(
            election_type=kind,
            topic_partitions=[cls.TopicPartitions(topic=t, partitions=[i]) for t, i in named] or None,
        )
        records, response = finish(plan_elect_leaders(self.image, self.settings, version, request))
        assert codec.encode_response(response, version, 1)
        self.commit(records)
        return {
            (topic.topic, row.partition_id): row.error_code
            for topic in response.replica_election_results
            for row in topic.partition_result
        }

    def balance(self):
        records, more = finish(plan_preferred(self.image, self.settings, self.indexes))
        self.commit(records)
        return more

    def elect_uncleanly(self):
        records, more = finish(plan_unclean(self.image, self.settings, self.indexes))
        self.commit(records)
        return more

    def assign(self, broker_id, directory, *, topic="t", index=0):
        cls = messages.AssignReplicasToDirsRequest
        row = cls.Directories.Topics
        known = self.image.topics.get(topic)
        asked = row(
            topic_id=known.topic_id if known else b"?" * 16,
            partitions=[row.Partitions(partition_index=index)],
        )
        request = cls(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            directories=[cls.Directories(id=directory, topics=[asked])],
        )
        records, response = finish(plan_assign(self.image, self.settings, request))
        self.commit(records)
        return response.directories[0].topics[0].partitions[0].error_code

    # -- what always holds ---------------------------------------------------------------------------------

    def check(self, before):
        """After a change: of the image alone, and of the way from `before` to it."""
        image = self.image
        assert self.indexes == indexes_of(image), "the indexes are not those of the image"
        for topic in image.topics.values():
            old_topic = before.topics_by_id.get(topic.topic_id)
            for index, state in topic.partitions.items():
                check_state(image, f"{topic.name}-{index}", state)
                old = old_topic.partitions.get(index) if old_topic is not None else None
                if old is not None:
                    check_step(f"{topic.name}-{index}", old, state)


def refused(call, *arguments, **options):
    """The error code that it raises, or 0."""
    try:
        call(*arguments, **options)
    except KafkaError as trouble:
        return trouble.code
    return 0
