"""What a client may do, API by API, on kafkad and on JVM Kafka 4.3.1: with no right at all, with rights on
some of what it names, and with the cluster's. The same requests have the same answers, cell by cell: error
codes, what is shown, and the operations that are told as authorized."""

import pytest

from kafkad.api.access import ACCESS
from kafkad.api.table import BY_KEY, ROWS
from kafkad.protocol import messages
from kafkad.security.acls import Acl, Kind, Operation
from kafkad.server import member_apis
from kafkad.server.guard import CUSTOM
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.integration.test_sasl import COMMON, LISTENER, MODULE, SECURED, authenticated
from tests.jvm import JvmKafka
from tests.wire import batch, create_topic

USERS = {"admin": "admin-secret", "alice": "alice-secret"}
CONFIG = {
    **SECURED,
    f"{LISTENER}.plain.sasl.jaas.config": (
        f'{MODULE} username="admin" password="admin-secret"'
        + "".join(f' user_{name}="{password}"' for name, password in USERS.items())
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "auto.create.topics.enable": "true",
    "delegation.token.secret.key": "secret",
}
TOPIC, GROUP, CLUSTER, TXN = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER, Kind.TRANSACTIONAL_ID


class World:
    def __init__(self, broker):
        self.broker = broker
        self.admin, self.alice = self.log_in("admin"), self.log_in("alice")
        self.ids = {name: create_topic(self.admin, name) for name in ("seen", "hidden", "other")}
        for key_type, key in ((0, "g-seen"), (0, "g-hidden"), (1, "x-seen"), (1, "x-hidden")):
            self.coordinated(key_type, key)
        for name in (None, "x-listed"):
            ask = messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            wait_until(lambda ask=ask: not self.admin.ask(ask, 1).error_code)
        made = self.admin.ask(messages.CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
        assert not made.error_code
        wait_until(lambda: self.admin.ask(tokens_of_admin(self, 3), 3).tokens)
        answer = self.admin.ask(messages.ApiVersionsRequest(), 0)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self.granted = 0

    def log_in(self, user):
        return authenticated(self.broker, user=user, password=USERS[user])

    def coordinated(self, key_type, key):
        find = messages.FindCoordinatorRequest(key=key, key_type=key_type)
        wait_until(lambda: not self.admin.ask(find, 3).error_code)
        if key_type == 0:
            beat = messages.HeartbeatRequest(group_id=key, generation_id=1, member_id="m")
            wait_until(lambda: self.admin.ask(beat, 4).error_code == 25)
        else:
            end = messages.EndTxnRequest(
                transactional_id=key, producer_id=9, producer_epoch=0, committed=True
            )
            wait_until(lambda: self.admin.ask(end, 3).error_code == 49)

    def grant(self, *rights):
        """To alice, and nothing else: (operation, kind, name), allowed."""
        Filter = messages.DeleteAclsRequest.Filters
        everything = Filter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        answer = self.admin.ask(messages.DeleteAclsRequest(filters=[everything]), 3)
        assert not answer.filter_results[0].error_code
        self.create(rights)
        self.granted += 1  # the JVM's authorizer follows its log, and says so with the last right
        marker = f"marker-{self.granted}"
        self.create([(DESCRIBE, TOPIC, marker)])
        topics = [messages.MetadataRequest.Topics(name=marker)]
        ask = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        wait_until(lambda: self.alice.ask(ask, 4).topics[0].error_code == 3)

    def create(self, rights):
        acls = [Acl(kind, name, 3, "User:alice", "*", operation, 3) for operation, kind, name in rights]
        names = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation",
                 "permission_type")  # fmt: skip
        cls = messages.CreateAclsRequest.Creations
        creations = [cls(**dict(zip(names, acl, strict=True))) for acl in acls]
        answer = self.admin.ask(messages.CreateAclsRequest(creations=creations), 3)
        assert not any(result.error_code for result in answer.results)


@pytest.fixture(scope="module", params=[1, 2])
def ours(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("kafkad")
    given = {
        "node.id": "1", "process.roles": "broker,controller", "log.dirs": str(directory / "data"),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0", **COMMON, **CONFIG,
    }  # fmt: skip
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    with Broker(properties=properties, workers=request.param) as broker:
        yield World(broker)


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    kafka = JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=CONFIG)
    for key in ("listeners", "advertised.listeners"):
        kafka.config[key] = kafka.config[key].replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1)
    kafka.config["listener.security.protocol.map"] = "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with kafka:
        yield World(kafka)


# -- requests ----------------------------------------------------------------------------------------------

NAMES = ("seen", "hidden", "absent")


def partitions_of(cls, field="partition_index", **more):
    return [cls(**{field: 0}, **more)]


def produced(world, version, transactional_id=None):
    cls = messages.ProduceRequest
    how = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    data = bytes(batch(b"v", **(how if transactional_id is not None else {})))
    parts = [cls.TopicData.PartitionData(index=0, records=data)]
    if version >= 13:
        ids = [world.ids["seen"], world.ids["hidden"], b"n" * 16]
        topics = [cls.TopicData(topic_id=each, partition_data=parts) for each in ids]
    else:
        topics = [cls.TopicData(name=name, partition_data=parts) for name in NAMES]
    return cls(transactional_id=transactional_id, acks=1, timeout_ms=5_000, topic_data=topics)


def produce_in(name):
    return lambda world, version: produced(world, version, name)


def fetch(world, version, replica_id=-1, **fields):
    cls = messages.FetchRequest
    parts = [cls.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1_000)]
    if version >= 13:
        ids = [world.ids["seen"], world.ids["hidden"], b"n" * 16]
        topics = [cls.Topics(topic_id=each, partitions=parts) for each in ids]
    else:
        topics = [cls.Topics(topic=name, partitions=parts) for name in NAMES]
    if version >= 15:
        fields["replica_state"] = cls.ReplicaState(replica_id=replica_id)
    else:
        fields["replica_id"] = replica_id
    return cls(max_wait_ms=0, min_bytes=0, max_bytes=10_000, topics=topics, **fields)


def fetch_as_broker(world, version):
    return fetch(world, version, replica_id=7)


def list_offsets(world, version):
    cls = messages.ListOffsetsRequest
    return cls(
        replica_id=-1,
        topics=[
            cls.Topics(name=name, partitions=partitions_of(cls.Topics.Partitions, timestamp=-1))
            for name in NAMES
        ],
    )


def metadata(world, version, names=NAMES, ids=(), **fields):
    cls = messages.MetadataRequest
    topics = [cls.Topics(name=name) for name in names] if names is not None else None
    if ids:
        topics = [cls.Topics(name=None, topic_id=each) for each in ids]
    if version >= 4:
        fields.setdefault("allow_auto_topic_creation", False)
    if version >= 8:
        fields["include_topic_authorized_operations"] = True
        if version <= 10:
            fields["include_cluster_authorized_operations"] = True
    return cls(topics=topics, **fields)


def metadata_of_all(world, version):
    return metadata(world, version, names=() if version == 0 else None)


def metadata_by_id(world, version):
    if version < 12:
        return None
    return metadata(world, version, names=(), ids=[world.ids["seen"], world.ids["hidden"], b"n" * 16])


def metadata_that_creates(world, version):
    if version < 4:
        return None
    return metadata(world, version, names=("seen", "made-by-nobody"), allow_auto_topic_creation=True)


def topics_of(world, version, cls, by_id_from=None, **fields):
    """The topics of a request that commits, fetches or deletes, by name or by id."""
    if by_id_from is not None and version >= by_id_from:
        return [cls(topic_id=world.ids[name], **fields) for name in ("seen", "hidden")]
    return [cls(name=name, **fields) for name in NAMES]


def offset_commit(group):
    def build(world, version):
        cls = messages.OffsetCommitRequest
        partitions = partitions_of(cls.Topics.Partitions, committed_offset=0)
        return cls(group_id=group, topics=topics_of(world, version, cls.Topics, 10, partitions=partitions))

    return build


def offset_fetch(world, version):
    cls = messages.OffsetFetchRequest
    if version >= 8:
        topics = topics_of(world, version, cls.Groups.Topics, 10, partition_indexes=[0])
        return cls(groups=[
            cls.Groups(group_id="g-seen", topics=topics), cls.Groups(group_id="g-hidden", topics=[]),
        ])  # fmt: skip
    return cls(group_id="g-seen", topics=topics_of(world, version, cls.Topics, partition_indexes=[0]))


def offset_fetch_of_all(world, version):
    cls = messages.OffsetFetchRequest
    if version >= 8:
        return cls(groups=[cls.Groups(group_id="g-seen", topics=None)])
    return cls(group_id="g-hidden", topics=[] if version < 2 else None)


def find_coordinator(key_type, prefix):
    def build(world, version):
        cls = messages.FindCoordinatorRequest
        kind = {"key_type": key_type} if version else {}
        if key_type and not version:
            return None
        if version >= 4:
            return cls(coordinator_keys=[f"{prefix}-seen", f"{prefix}-hidden"], **kind)
        return cls(key=f"{prefix}-hidden", **kind)

    return build


def of_group(cls, **fields):
    return lambda world, version: cls(group_id="g-seen", **fields)


def leave_group(world, version):
    cls = messages.LeaveGroupRequest
    if version >= 3:
        return cls(group_id="g-seen", members=[cls.Members(member_id="m")])
    return cls(group_id="g-seen", member_id="m")


def describe_groups(world, version):
    fields = {"include_authorized_operations": True} if version >= 3 else {}
    return messages.DescribeGroupsRequest(groups=["g-seen", "g-hidden"], **fields)


def list_groups(world, version):
    world.admin.ask(offset_commit("g-seen")(world, 8), 8)  # there is a group, also if this test runs alone
    return messages.ListGroupsRequest()


def create_topics(world, version):
    cls = messages.CreateTopicsRequest
    topics = [
        cls.Topics(name=name, num_partitions=1, replication_factor=1)
        for name in ("seen", "hidden", "absent-seen", "absent", "__cluster_metadata")
    ]
    twice = [cls.Topics(name="twice", num_partitions=1, replication_factor=1) for _ in range(2)]
    return cls(topics=topics + twice, timeout_ms=5_000, validate_only=True) if version else None


def delete_topics(world, version):
    cls = messages.DeleteTopicsRequest
    if version >= 6:
        topics = [cls.Topics(name=name) for name in ("absent", "absent-seen", "hidden")]
        by_id = [world.ids["hidden"], world.ids["other"], b"n" * 16]
        return cls(topics=topics + [cls.Topics(name=None, topic_id=each) for each in by_id], timeout_ms=5_000)
    return cls(topic_names=["absent", "absent-seen", "hidden"], timeout_ms=5_000)


def create_partitions(world, version):
    cls = messages.CreatePartitionsRequest
    topics = [cls.Topics(name=name, count=2, assignments=None) for name in NAMES]
    return cls(topics=topics, timeout_ms=5_000, validate_only=True)


def delete_records(world, version):
    cls = messages.DeleteRecordsRequest
    partitions = partitions_of(cls.Topics.Partitions, offset=0)
    return cls(topics=[cls.Topics(name=name, partitions=partitions) for name in NAMES], timeout_ms=5_000)


def init_producer_id(name):
    def build(world, version):
        fields = {"producer_id": -1, "producer_epoch": -1} if version >= 3 else {}
        return messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000, **fields)

    return build


def offset_for_leader_epoch(world, version):
    cls = messages.OffsetForLeaderEpochRequest
    fields = {"current_leader_epoch": -1} if version >= 2 else {}
    partitions = [cls.Topics.Partitions(partition=0, leader_epoch=0, **fields)]
    return cls(replica_id=-1, topics=[cls.Topics(topic=name, partitions=partitions) for name in NAMES])


def add_partitions(name, topics=NAMES):
    def build(world, version):
        cls = messages.AddPartitionsToTxnRequest
        if version >= 4:
            Topics = cls.Transactions.Topics
            named = [Topics(name=each, partitions=[0]) for each in topics]
            return cls(transactions=[
                cls.Transactions(transactional_id=name, producer_id=9, producer_epoch=0, topics=named),
            ])  # fmt: skip
        return cls(
            v3_and_below_transactional_id=name, v3_and_below_producer_id=9, v3_and_below_producer_epoch=0,
            v3_and_below_topics=[cls.V3AndBelowTopics(name=each, partitions=[0]) for each in topics],
        )  # fmt: skip

    return build


def add_offsets(world, version):
    return messages.AddOffsetsToTxnRequest(
        transactional_id="x-seen", producer_id=9, producer_epoch=0, group_id="g-seen"
    )


def end_txn(world, version):
    return messages.EndTxnRequest(transactional_id="x-seen", producer_id=9, producer_epoch=0, committed=True)


def write_markers(world, version):
    cls = messages.WriteTxnMarkersRequest
    topics = [cls.Markers.Topics(name="absent", partition_indexes=[0])]
    return cls(markers=[
        cls.Markers(producer_id=9, producer_epoch=0, transaction_result=True, topics=topics,
                    coordinator_epoch=0),
    ])  # fmt: skip


def txn_offset_commit(world, version):
    cls = messages.TxnOffsetCommitRequest
    partitions = partitions_of(cls.Topics.Partitions, committed_offset=0)
    return cls(
        transactional_id="x-seen", group_id="g-seen", producer_id=9, producer_epoch=0,
        topics=[cls.Topics(name=name, partitions=partitions) for name in ("hidden", "absent")],
    )  # fmt: skip


RESOURCES = ((2, "seen"), (2, "hidden"), (2, "absent"), (4, "1"), (8, "1"), (32, "g-seen"))


def describe_configs(world, version):
    cls = messages.DescribeConfigsRequest
    return cls(resources=[
        cls.Resources(resource_type=kind, resource_name=name, configuration_keys=["none"])
        for kind, name in RESOURCES
    ])  # fmt: skip


def alter_configs(cls, **fields):
    def build(world, version):
        return cls(
            resources=[
                cls.Resources(
                    resource_type=kind, resource_name=name,
                    configs=[cls.Resources.Configs(name="retention.ms", value="5000", **fields)],
                )
                for kind, name in RESOURCES[:3]
            ],
            validate_only=True,
        )  # fmt: skip

    return build


def describe_acls(world, version):
    fields = {"pattern_type_filter": 3} if version else {}
    return messages.DescribeAclsRequest(
        resource_type_filter=2, resource_name_filter="nobody", principal_filter=None, host_filter=None,
        operation=1, permission_type=1, **fields,
    )  # fmt: skip


def create_acls(world, version):
    cls = messages.CreateAclsRequest.Creations
    return messages.CreateAclsRequest(creations=[
        cls(resource_type=2, resource_name="nobody", principal="bob", host="*", operation=3,
            permission_type=3),
    ])  # fmt: skip


def token_for_bob(world, version):
    """Of another owner (KIP-373)."""
    cls = messages.CreateDelegationTokenRequest
    if version < 3:
        return None
    return cls(owner_principal_type="User", owner_principal_name="bob", max_lifetime_ms=-1)


def tokens_of_admin(world, version):
    cls = messages.DescribeDelegationTokenRequest
    return cls(owners=[cls.Owners(principal_type="User", principal_name="admin")])


def delete_acls(world, version):
    cls = messages.DeleteAclsRequest.Filters
    fields = {"pattern_type_filter": 3} if version else {}
    return messages.DeleteAclsRequest(filters=[
        cls(resource_type_filter=2, resource_name_filter="nobody", principal_filter=None, host_filter=None,
            operation=1, permission_type=1, **fields),
    ])  # fmt: skip


def alter_scram(world, version):
    cls = messages.AlterUserScramCredentialsRequest
    return cls(deletions=[cls.Deletions(name="nobody", mechanism=1)])


def alter_quotas(world, version):
    cls = messages.AlterClientQuotasRequest
    part = cls.Entries.Entity(entity_type="user", entity_name="nobody")
    return cls(entries=[cls.Entries(entity=[part])])


def describe_cluster(world, version):
    return messages.DescribeClusterRequest(include_cluster_authorized_operations=True)


def describe_producers(world, version):
    cls = messages.DescribeProducersRequest.Topics
    return messages.DescribeProducersRequest(topics=[cls(name=name, partition_indexes=[0]) for name in NAMES])


def topic_partitions(*names):
    def build(world, version):
        cls = messages.DescribeTopicPartitionsRequest
        return cls(topics=[cls.Topics(name=name) for name in names])

    return build


def just(cls, **fields):
    return lambda world, version: cls(**fields)


def alter_log_dirs(world, version):
    cls = messages.AlterReplicaLogDirsRequest
    topics = [cls.Dirs.Topics(name=name, partitions=[0]) for name in NAMES]
    return cls(dirs=[cls.Dirs(path="/nowhere", topics=topics)])


def alter_reassignments(world, version):
    cls = messages.AlterPartitionReassignmentsRequest
    partition = cls.Topics.Partitions(partition_index=0, replicas=[1])
    return cls(topics=[cls.Topics(name=name, partitions=[partition]) for name in NAMES], timeout_ms=10_000)


def elect_leaders(world, version):
    cls = messages.ElectLeadersRequest
    return cls(topic_partitions=[cls.TopicPartitions(topic=name, partitions=[0]) for name in NAMES])


def describe_quorum(world, version):
    """The quorum itself differs, so it is of a topic that is none."""
    cls = messages.DescribeQuorumRequest
    return cls(topics=[cls.Topics(topic_name="other", partitions=[cls.Topics.Partitions()])])


def update_features(world, version):
    cls = messages.UpdateFeaturesRequest
    return cls(feature_updates=[cls.FeatureUpdates(feature="no.such", max_version_level=1)])


def offset_delete(world, version):
    cls = messages.OffsetDeleteRequest
    topics = [cls.Topics(name=name, partitions=partitions_of(cls.Topics.Partitions)) for name in NAMES]
    return cls(group_id="g-seen", topics=topics)


# name: (request, the rights on some of what it names, the cluster's right that is enough, where there is one)
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
SHOW, CHANGE = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
SEEN, G_SEEN, X_SEEN = (TOPIC, "seen"), (GROUP, "g-seen"), (TXN, "x-seen")
TABLE = {
    "Produce": (produced, [(WRITE, *SEEN)], None),
    "Produce in a transaction": (produce_in("x-seen"), [(WRITE, *X_SEEN), (WRITE, *SEEN)], None),
    "Produce in another transaction": (produce_in("x-hidden"), [(WRITE, TXN, "x-hidden")], None),
    "Fetch": (fetch, [(READ, *SEEN)], None),
    "Fetch as a broker": (fetch_as_broker, [(READ, *SEEN)], None),
    "ListOffsets": (list_offsets, [(DESCRIBE, *SEEN)], None),
    "Metadata": (metadata, [(DESCRIBE, *SEEN)], DESCRIBE),
    "Metadata of all": (metadata_of_all, [(READ, *SEEN)], DESCRIBE),
    "Metadata by id": (metadata_by_id, [(DESCRIBE, *SEEN)], None),
    "Metadata that creates": (
        metadata_that_creates, [(DESCRIBE, *SEEN), (DESCRIBE, TOPIC, "made-by-nobody")], None,
    ),
    "OffsetCommit": (offset_commit("g-seen"), [(READ, *G_SEEN), (READ, *SEEN)], None),
    "OffsetFetch": (offset_fetch, [(DESCRIBE, *G_SEEN), (DESCRIBE, *SEEN)], None),
    "OffsetFetch of all": (offset_fetch_of_all, [(DESCRIBE, *G_SEEN), (DESCRIBE, *SEEN)], None),
    "FindCoordinator of groups": (find_coordinator(0, "g"), [(DESCRIBE, *G_SEEN)], None),
    "FindCoordinator of transactions": (find_coordinator(1, "x"), [(DESCRIBE, *X_SEEN)], None),
    "JoinGroup": (of_group(messages.JoinGroupRequest, session_timeout_ms=1, member_id="m"),
                  [(READ, *G_SEEN)], None),
    "Heartbeat": (of_group(messages.HeartbeatRequest, generation_id=1, member_id="m"),
                  [(READ, *G_SEEN)], None),
    "LeaveGroup": (leave_group, [(READ, *G_SEEN)], None),
    "SyncGroup of no protocol": (of_group(messages.SyncGroupRequest, generation_id=1, member_id="m"),
                  [(READ, *G_SEEN)], None),
    "SyncGroup": (of_group(messages.SyncGroupRequest, generation_id=1, member_id="m", protocol_type="t",
                           protocol_name="n"), [(READ, *G_SEEN)], None),
    "DescribeGroups": (describe_groups, [(DESCRIBE, *G_SEEN)], None),
    "ListGroups": (list_groups, [(DESCRIBE, *G_SEEN)], DESCRIBE),
    "CreateTopics": (create_topics, [(CREATE, TOPIC, "absent-seen"), (CREATE, *SEEN)], CREATE),
    "CreateTopics and tell": (
        create_topics, [(CREATE, TOPIC, "absent-seen"), (SHOW, TOPIC, "absent-seen")], CREATE,
    ),
    "DeleteTopics": (
        delete_topics, [(DELETE, TOPIC, "absent-seen"), (DESCRIBE, TOPIC, "other")], None,
    ),
    "DeleteRecords": (delete_records, [(DELETE, *SEEN)], None),
    "InitProducerId": (init_producer_id(None), [(WRITE, *SEEN)], Operation.IDEMPOTENT_WRITE),
    "InitProducerId of a transaction": (init_producer_id("x-new"), [(WRITE, TXN, "x-new")], None),
    "OffsetForLeaderEpoch": (offset_for_leader_epoch, [(DESCRIBE, *SEEN)], ACTION),
    "AddPartitionsToTxn": (add_partitions("x-seen"), [(WRITE, *X_SEEN), (WRITE, *SEEN)], None),
    "AddPartitionsToTxn of one": (
        add_partitions("x-seen", ("seen",)), [(WRITE, *X_SEEN), (WRITE, *SEEN)], None,
    ),
    "AddPartitionsToTxn of another": (add_partitions("x-hidden"), [(WRITE, *X_SEEN)], ACTION),
    "AddOffsetsToTxn": (add_offsets, [(WRITE, *X_SEEN), (READ, *G_SEEN)], None),
    "AddOffsetsToTxn, group": (add_offsets, [(WRITE, *X_SEEN)], None),
    "EndTxn": (end_txn, [(WRITE, *X_SEEN)], None),
    "WriteTxnMarkers": (write_markers, [(WRITE, *X_SEEN)], ACTION),
    "WriteTxnMarkers, ALTER": (write_markers, [(WRITE, *X_SEEN)], ALTER),
    "TxnOffsetCommit": (
        txn_offset_commit, [(WRITE, *X_SEEN), (READ, *G_SEEN), (READ, TOPIC, "absent")], None,
    ),
    "TxnOffsetCommit, group": (txn_offset_commit, [(WRITE, *X_SEEN)], None),
    "DescribeAcls": (describe_acls, [], DESCRIBE),
    "CreateAcls": (create_acls, [], ALTER),
    "DeleteAcls": (delete_acls, [], ALTER),
    "CreateDelegationToken": (token_for_bob, [(13, 7, "User:bob")], None),
    "DescribeDelegationToken": (tokens_of_admin, [(14, 7, "User:admin")], None),
    "DescribeConfigs": (describe_configs, [(SHOW, *SEEN), (SHOW, *G_SEEN)], SHOW),
    "AlterConfigs": (alter_configs(messages.AlterConfigsRequest), [(CHANGE, *SEEN)], None),
    "IncrementalAlterConfigs": (
        alter_configs(messages.IncrementalAlterConfigsRequest, config_operation=0), [(CHANGE, *SEEN)], None,
    ),
    "AlterReplicaLogDirs": (alter_log_dirs, [], ALTER),
    "ElectLeaders": (elect_leaders, [], ALTER),
    "DescribeQuorum": (describe_quorum, [], DESCRIBE),
    "UpdateFeatures": (update_features, [], ALTER),
    "AlterPartitionReassignments": (alter_reassignments, [], ALTER),
    "ListPartitionReassignments": (
        just(messages.ListPartitionReassignmentsRequest, topics=None, timeout_ms=10_000), [], DESCRIBE,
    ),
    "DescribeLogDirs": (just(messages.DescribeLogDirsRequest, topics=[]), [], DESCRIBE),
    "CreatePartitions": (create_partitions, [(ALTER, *SEEN)], None),
    "DeleteGroups": (
        just(messages.DeleteGroupsRequest, groups_names=["g-seen", "g-hidden"]), [(DELETE, *G_SEEN)], None,
    ),
    "OffsetDelete": (offset_delete, [(DELETE, *G_SEEN), (READ, *SEEN)], None),
    "DescribeUserScramCredentials": (
        just(messages.DescribeUserScramCredentialsRequest, users=[]), [], DESCRIBE,
    ),
    "AlterUserScramCredentials": (alter_scram, [], ALTER),
    "DescribeClientQuotas": (just(messages.DescribeClientQuotasRequest), [], SHOW),
    "AlterClientQuotas": (alter_quotas, [], CHANGE),
    "DescribeCluster": (describe_cluster, [], DESCRIBE),
    "DescribeProducers": (describe_producers, [(READ, *SEEN)], None),
    "DescribeTransactions": (
        just(messages.DescribeTransactionsRequest, transactional_ids=["x-seen", "x-hidden"]),
        [(DESCRIBE, *X_SEEN)], None,
    ),
    "ListTransactions": (just(messages.ListTransactionsRequest), [(DESCRIBE, TXN, "x-listed")], None),
    "ListConfigResources": (just(messages.ListConfigResourcesRequest), [], SHOW),
    "DescribeTopicPartitions": (topic_partitions(*NAMES), [(DESCRIBE, *SEEN)], None),
    "DescribeTopicPartitions of all": (topic_partitions(), [(DESCRIBE, *SEEN)], None),
}  # fmt: skip
KEYS = {row.name: row.key for row in ROWS}
# the latter two ask for the HMAC instead of a right (test_delegation_tokens.py)
EVERYBODYS = (
    "SaslHandshake", "ApiVersions", "SaslAuthenticate", "RenewDelegationToken", "ExpireDelegationToken",
)  # fmt: skip
SHOWN = {"error_code", "partition_error_code", "topic_config_error_code", "name", "topic", "group_id", "key",
         "transactional_id", "index", "resource_name", "resource_type", "partition_index",
         "partition"}  # fmt: skip
OWN = {"__consumer_offsets", "__transaction_state", "__cluster_metadata"}


def told(message):
    """What is compared: codes, names and operations, in an order of their own."""
    fields = {}
    for field in message.SPEC.fields:
        value = getattr(message, field.name)
        if isinstance(value, list) and field.struct is not None:
            if field.name in ("brokers", "configs", "config_synonyms", "node_endpoints"):
                continue
            each = [told(element) for element in value]
            fields[field.name] = sorted((it for it in each if it.get("name") not in OWN), key=repr)
        elif field.name in SHOWN or field.name.endswith("authorized_operations"):
            fields[field.name] = value
    return fields


def versions_of(name, jvm):
    row = BY_KEY[KEYS[name.split(",")[0].split(" ")[0]]]
    low, high = jvm.versions[row.key]
    low, high = max(low, row.low), min(high, row.high)
    if row.handler is None:
        return (3, 8, 9, 12, 13) if row.name == "Produce" else (4, 7, 11, 12, 13, 15, 18)
    return sorted({low, (low + high) // 2, high, *({8} if row.name == "Metadata" else ())})


@pytest.mark.parametrize("name", TABLE)
def test_each_api_with_and_without_its_rights(ours, jvm, name):
    build, rights, of_cluster = TABLE[name]
    granted = [(), tuple(rights)]
    if of_cluster is not None:
        granted.append(((of_cluster, CLUSTER, "kafka-cluster"),))
    seen = []
    for given in granted:
        for world in (ours, jvm):
            world.grant(*given)
        for version in versions_of(name, jvm):
            request = build(jvm, version)
            if request is None:
                continue
            answers = [told(world.alice.ask(build(world, version), version)) for world in (ours, jvm)]
            assert answers[0] == answers[1], f"{name} v{version} with {given}"
            seen.append(repr(answers[0]))
    assert len(set(seen)) > 1, f"{name}: no right makes a difference"


def test_every_row_of_the_table_says_what_it_needs():
    """An API that is not there is refused to everybody: it was forgotten."""
    asked = {row.key for row in ROWS}
    served = member_apis.BY_KEY.values()  # with what only a broker of a cluster has
    assert {row.key for row in served if row.handler is not None} == ACCESS.keys()
    assert {access.custom for access in ACCESS.values() if access.custom} == CUSTOM.keys()
    tried = {KEYS[name.split(",")[0].split(" ")[0]] for name in TABLE}
    everybodys = {KEYS[name] for name in EVERYBODYS}
    assert tried | everybodys == asked


def test_super_users_may_do_everything(ours):
    for name, (build, _, _) in TABLE.items():
        row = BY_KEY[KEYS[name.split(",")[0].split(" ")[0]]]
        request = build(ours, row.high)
        if request is not None:
            answer = repr(told(ours.admin.ask(request, row.high)))
            for code in (29, 30, 31, 53):
                assert f"error_code': {code}," not in answer, name
