"""Every API at every version that ApiVersions tells: asked over a socket, answered with what it is about.

A client library uses one version of each API; this test uses them all. The requests of a version are built
from the same values, with the fields that the version has.

test_apis_groups.py and test_apis_transactions.py have the APIs of groups and transactions. The last test here
checks that the three files have all APIs."""

import re
from pathlib import Path

import pytest

from kafkad.api.table import ROWS
from kafkad.protocol import errors, messages, records
from kafkad.protocol.legacy_records import read_entries
from tests.api_calls import api_broker as api_broker
from tests.api_calls import api_wire as api_wire
from tests.api_calls import (
    commit,
    every_version,
    filled,
    fresh,
    produce,
    ready_coordinator,
    ready_transactions,
)
from tests.wire import Wire, batch, create_topic

pytestmark = pytest.mark.workers(2, 4)

FETCH_UNTIL_IDS = 12


@every_version("Produce")
def test_produce(wire, version):
    topic = fresh("topic")
    topic_id = create_topic(wire, topic)
    for number in range(3):
        answer = produce(wire, topic, topic_id, version, b"a", b"b")
        assert answer.error_code == 0 and answer.base_offset == 2 * number
        assert answer.log_append_time_ms == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)


@every_version("Fetch")
def test_fetch(wire, version):
    topic, topic_id = filled(wire, 5)
    struct = messages.FetchRequest.Topics
    asked = struct(partitions=[struct.Partitions(partition=0, fetch_offset=2, partition_max_bytes=1 << 20)])
    if version > FETCH_UNTIL_IDS:
        asked.topic_id = topic_id
    else:
        asked.topic = topic
    request = messages.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[asked])
    if version >= 7:
        request.session_epoch = -1
    response = wire.ask(request, version)
    assert response.error_code == 0
    answer = response.responses[0].partitions[0]
    assert (answer.error_code, answer.high_watermark) == (0, 5)
    if version < 4:
        entries = list(read_entries(answer.records))
        assert {entry.magic for entry in entries} == {0 if version < 2 else 1}
        got = [r for entry in entries for r in entry.records()]
    else:
        got = [r for b in records.read_batches(answer.records) for r in b.records()]
    assert [(r.offset, r.value) for r in got] == [(2, b"2"), (3, b"3"), (4, b"4")]


@every_version("Fetch")
def test_fetch_session_tells_only_what_changed(wire, version):
    """KIP-227, from the first version that has sessions."""
    topic, topic_id = filled(wire, 1)
    struct = messages.FetchRequest.Topics

    def ask(session_id, epoch, topics):
        request = messages.FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 20, topics=topics)
        if version >= 7:
            request.session_id, request.session_epoch = session_id, epoch
        return wire.ask(request, version)

    asked = struct(partitions=[struct.Partitions(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)])
    if version > FETCH_UNTIL_IDS:
        asked.topic_id = topic_id
    else:
        asked.topic = topic
    first = ask(0, 0, [asked])
    assert first.error_code == 0 and len(first.responses) == 1
    if version < 7:
        assert first.session_id == 0
        return
    assert first.session_id > 0
    assert ask(first.session_id, 1, []).responses == []
    assert produce(wire, topic, topic_id, 9, b"new").error_code == 0
    third = ask(first.session_id, 2, [])
    assert len(third.responses) == 1 and third.responses[0].partitions[0].records
    assert ask(first.session_id, 9, []).error_code == errors.INVALID_FETCH_SESSION_EPOCH
    assert ask(123456789, 1, []).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


@every_version("ListOffsets")
def test_list_offsets(wire, version):
    topic, _ = filled(wire, 4)

    def ask(timestamp):
        asked = messages.ListOffsetsRequest.Topics.Partitions(partition_index=0, timestamp=timestamp)
        request = messages.ListOffsetsRequest(
            replica_id=-1, topics=[messages.ListOffsetsRequest.Topics(name=topic, partitions=[asked])]
        )
        return wire.ask(request, version).topics[0].partitions[0]

    if version == 0:
        assert (ask(-1).error_code, ask(-1).old_style_offsets) == (0, [4])
        assert (ask(-2).error_code, ask(-2).old_style_offsets) == (0, [0])
        assert ask(1).old_style_offsets == []  # no segment is so old
        assert ask(-3).error_code == errors.UNSUPPORTED_VERSION
        return
    assert (ask(-1).error_code, ask(-1).offset) == (0, 4)
    assert (ask(-2).error_code, ask(-2).offset) == (0, 0)
    by_time = ask(1)
    assert by_time.error_code == 0 and by_time.offset == 0 and by_time.timestamp > 0
    assert ask(2**60).offset == -1
    newest = ask(-3)
    if version >= 7:
        assert newest.error_code == 0 and 0 <= newest.offset < 4 and newest.timestamp > 0
    else:
        assert newest.error_code == errors.UNSUPPORTED_VERSION
    if version >= 8:
        assert ask(-4).offset == 0


@every_version("Metadata")
def test_metadata(wire, broker, version):
    topic, topic_id = filled(wire, 1)
    asked = messages.MetadataRequest.Topics(name=topic)
    response = wire.ask(messages.MetadataRequest(topics=[asked]), version)
    assert [(b.host, b.port) for b in response.brokers] == [("127.0.0.1", broker.port)]
    assert response.topics[0].name == topic and response.topics[0].partitions[0].leader_id >= 0
    if version >= 2:
        assert len(response.cluster_id) == 22
    if version >= 10:
        assert response.topics[0].topic_id == topic_id
    everything = wire.ask(messages.MetadataRequest(topics=None if version else []), version)
    assert topic in {t.name for t in everything.topics}
    unknown = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=fresh("nosuch"))])
    if version >= 4:
        unknown.allow_auto_topic_creation = False
        assert wire.ask(unknown, version).topics[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 12:
        by_id = messages.MetadataRequest(
            topics=[messages.MetadataRequest.Topics(name=None, topic_id=topic_id)]
        )
        assert wire.ask(by_id, version).topics[0].name == topic


@every_version("SaslHandshake")
def test_sasl_handshake_is_refused_on_a_listener_without_sasl(wire, version):
    response = wire.ask(messages.SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (response.error_code, response.mechanisms) == (errors.ILLEGAL_SASL_STATE, [])


@every_version("SaslAuthenticate")
def test_sasl_authenticate_is_refused_on_a_listener_without_sasl(wire, version):
    response = wire.ask(messages.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), version)
    assert (response.error_code, response.auth_bytes) == (errors.ILLEGAL_SASL_STATE, b"")


@every_version("AlterUserScramCredentials")
def test_alter_user_scram_credentials(wire, version):
    cls = messages.AlterUserScramCredentialsRequest
    new = cls.Upsertions(name="u", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p" * 32)
    assert wire.ask(cls(upsertions=[new]), version).results[0].error_code == 0
    gone = cls.Deletions(name="u", mechanism=1)
    assert [it.error_code for it in wire.ask(cls(deletions=[gone]), version).results] == [0]
    (result,) = wire.ask(cls(deletions=[gone]), version).results
    assert (result.user, result.error_code) == ("u", errors.RESOURCE_NOT_FOUND)


@every_version("DescribeUserScramCredentials")
def test_describe_user_scram_credentials(wire, version):
    cls = messages.AlterUserScramCredentialsRequest
    new = cls.Upsertions(name="v", mechanism=2, iterations=8192, salt=b"s", salted_password=b"p" * 64)
    assert wire.ask(cls(upsertions=[new]), version).results[0].error_code == 0
    ask = messages.DescribeUserScramCredentialsRequest
    for users in (None, [ask.Users(name="v")]):
        (found,) = [it for it in wire.ask(ask(users=users), version).results if it.user == "v"]
        assert [(info.mechanism, info.iterations) for info in found.credential_infos] == [(2, 8192)]
    assert wire.ask(cls(deletions=[cls.Deletions(name="v", mechanism=2)]), version).results[0].error_code == 0


@every_version("CreateDelegationToken")
def test_create_delegation_token_is_refused_without_a_login(wire, version):
    answer = wire.ask(messages.CreateDelegationTokenRequest(max_lifetime_ms=-1), version)
    assert (answer.error_code, answer.principal_name) == (64, "ANONYMOUS")


@every_version("RenewDelegationToken")
def test_renew_delegation_token_is_refused_without_a_login(wire, version):
    answer = wire.ask(messages.RenewDelegationTokenRequest(hmac=b"x"), version)
    assert (answer.error_code, answer.expiry_timestamp_ms) == (64, -1)


@every_version("ExpireDelegationToken")
def test_expire_delegation_token_is_refused_without_a_login(wire, version):
    answer = wire.ask(messages.ExpireDelegationTokenRequest(hmac=b"x"), version)
    assert (answer.error_code, answer.expiry_timestamp_ms) == (64, -1)


@every_version("DescribeDelegationToken")
def test_describe_delegation_token_is_refused_without_a_login(wire, version):
    answer = wire.ask(messages.DescribeDelegationTokenRequest(owners=None), version)
    assert (answer.error_code, answer.tokens) == (64, [])


def quota_of_nobody(wire, version):
    cls = messages.DescribeClientQuotasRequest
    exactly = cls.Components(entity_type="user", match_type=0, match="nobody")
    return wire.ask(cls(components=[exactly], strict=True), version)


@every_version("AlterClientQuotas")
def test_alter_client_quotas(wire, version):
    row = messages.AlterClientQuotasRequest.Entries
    for value, kept in ((1000.0, [1000.0]), (None, [])):
        entry = row(
            entity=[row.Entity(entity_type="user", entity_name="nobody")],
            ops=[row.Ops(key="producer_byte_rate", value=value or 0.0, remove=value is None)],
        )
        (answer,) = wire.ask(messages.AlterClientQuotasRequest(entries=[entry]), version).entries
        assert (answer.error_code, answer.error_message) == (0, None)
        found = quota_of_nobody(wire, 1).entries
        assert [quota.value for entry in found for quota in entry.values] == kept


@every_version("DescribeClientQuotas")
def test_describe_client_quotas_where_there_are_none(wire, version):
    answer = quota_of_nobody(wire, version)
    assert (answer.error_code, answer.entries) == (0, [])


@every_version("DescribeAcls")
def test_describe_acls_without_an_authorizer(wire, version):
    request = messages.DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
    response = wire.ask(request, version)
    assert (response.error_code, response.resources) == (errors.SECURITY_DISABLED, [])


@every_version("CreateAcls")
def test_create_acls_without_an_authorizer(wire, version):
    cls = messages.CreateAclsRequest.Creations
    acl = cls(resource_type=2, resource_name="t", principal="User:u", operation=3, permission_type=3)
    response = wire.ask(messages.CreateAclsRequest(creations=[acl, acl]), version)
    assert [it.error_code for it in response.results] == [errors.SECURITY_DISABLED] * 2


@every_version("DeleteAcls")
def test_delete_acls_without_an_authorizer(wire, version):
    every = messages.DeleteAclsRequest.Filters(resource_type_filter=1, operation=1, permission_type=1)
    (result,) = wire.ask(messages.DeleteAclsRequest(filters=[every]), version).filter_results
    assert (result.error_code, result.matching_acls) == (errors.SECURITY_DISABLED, [])


@every_version("ApiVersions")
def test_api_versions_tells_the_table(wire, version):
    request = messages.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = wire.ask(request, version)
    assert response.error_code == 0
    told = {a.api_key: (a.min_version, a.max_version) for a in response.api_keys}
    assert told == {row.key: (row.low, row.high) for row in ROWS}
    if version >= 3:
        assert "metadata.version" in {f.name for f in response.supported_features}
        assert response.finalized_features_epoch >= 0


@every_version("CreateTopics")
def test_create_topics(wire, version):
    struct = messages.CreateTopicsRequest.Topics
    name = fresh("made")
    topic = struct(
        name=name,
        num_partitions=2,
        replication_factor=1,
        configs=[struct.Configs(name="retention.ms", value="1000")],
    )
    told = wire.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version).topics[0]
    assert (told.name, told.error_code) == (name, 0)
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (2, 1)
        assert {c.name: c.value for c in told.configs}["retention.ms"] == "1000"
    if version >= 7:
        assert told.topic_id != bytes(16)
    again = wire.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version).topics[0]
    assert again.error_code == errors.TOPIC_ALREADY_EXISTS
    bad = struct(name="a/b", num_partitions=1, replication_factor=1)
    told = wire.ask(messages.CreateTopicsRequest(topics=[bad], timeout_ms=10_000), version).topics[0]
    assert told.error_code == errors.INVALID_TOPIC_EXCEPTION
    only = struct(name=fresh("checked"), num_partitions=1, replication_factor=1)
    if version == 0:
        return
    request = messages.CreateTopicsRequest(topics=[only], timeout_ms=10_000, validate_only=True)
    assert wire.ask(request, version).topics[0].error_code == 0
    assert only.name not in {t.name for t in wire.ask(messages.MetadataRequest(topics=None), 9).topics}


@every_version("DeleteTopics")
def test_delete_topics(wire, version):
    topic, topic_id = filled(wire, 1)
    request = messages.DeleteTopicsRequest(timeout_ms=10_000)
    if version >= 6:
        request.topics = [messages.DeleteTopicsRequest.Topics(name=None, topic_id=topic_id)]
    else:
        request.topic_names = [topic]
    told = wire.ask(request, version).responses[0]
    assert told.error_code == 0 and told.name == topic
    told = wire.ask(request, version).responses[0]
    assert told.error_code in (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID)
    assert create_topic(wire, topic) != topic_id


@every_version("DeleteRecords")
def test_delete_records(wire, version):
    topic, _ = filled(wire, 5)

    def ask(offset):
        struct = messages.DeleteRecordsRequest.Topics
        partition = struct.Partitions(partition_index=0, offset=offset)
        request = messages.DeleteRecordsRequest(
            topics=[struct(name=topic, partitions=[partition])], timeout_ms=5000
        )
        answer = wire.ask(request, version).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert ask(2) == (0, 2)
    assert ask(1) == (0, 2)
    assert ask(6)[0] == errors.OFFSET_OUT_OF_RANGE
    assert ask(-1) == (0, 5)


@every_version("InitProducerId")
def test_init_producer_id(wire, version):
    request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    one, two = wire.ask(request, version), wire.ask(request, version)
    assert (one.error_code, one.producer_epoch) == (0, 0)
    assert one.producer_id >= 0 and two.producer_id > one.producer_id
    request.transactional_id = fresh("id")
    ready_transactions(wire, request.transactional_id)
    begun = wire.ask(request, version)
    assert (begun.error_code, begun.producer_epoch) == (0, 0)
    assert begun.producer_id not in (one.producer_id, two.producer_id)  # perhaps of another worker's block
    again = wire.ask(request, version)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, begun.producer_id, 1)


@every_version("OffsetForLeaderEpoch")
def test_offset_for_leader_epoch(wire, version):
    topic, _ = filled(wire, 3)
    struct = messages.OffsetForLeaderEpochRequest.Topics

    def ask(epoch):
        partition = struct.Partitions(partition=0, leader_epoch=epoch)
        request = messages.OffsetForLeaderEpochRequest(topics=[struct(topic=topic, partitions=[partition])])
        return wire.ask(request, version).topics[0].partitions[0]

    answer = ask(0)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0 if version else -1, 3)
    assert ask(7).end_offset == -1


@every_version("DescribeConfigs")
def test_describe_configs(wire, version):
    topic, _ = filled(wire, 1)
    struct = messages.DescribeConfigsRequest.Resources
    request = messages.DescribeConfigsRequest(
        resources=[struct(resource_type=2, resource_name=topic, configuration_keys=None)],
        include_synonyms=version > 0,
    )
    result = wire.ask(request, version).results[0]
    assert result.error_code == 0
    assert next(c.is_default for c in result.configs if c.name == "segment.bytes") == (version == 0)
    told = {c.name: c.value for c in result.configs}
    assert told["segment.bytes"] == str(1 << 30) and told["cleanup.policy"] == "delete"
    request.resources[0].resource_name = fresh("nosuch")
    assert wire.ask(request, version).results[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


@every_version("AlterConfigs")
def test_alter_configs(wire, version):
    topic, _ = filled(wire, 1)
    struct = messages.AlterConfigsRequest.Resources
    resource = struct(
        resource_type=2, resource_name=topic, configs=[struct.Configs(name="segment.bytes", value="2097152")]
    )
    assert wire.ask(messages.AlterConfigsRequest(resources=[resource]), version).responses[0].error_code == 0
    assert topic_config(wire, topic, "segment.bytes") == "2097152"
    resource.configs[0].value = "three"
    told = wire.ask(messages.AlterConfigsRequest(resources=[resource]), version).responses[0]
    assert told.error_code == errors.INVALID_CONFIG
    assert topic_config(wire, topic, "segment.bytes") == "2097152"


def topic_config(wire: Wire, topic: str, key: str) -> str:
    struct = messages.DescribeConfigsRequest.Resources
    asked = struct(resource_type=2, resource_name=topic, configuration_keys=[key])
    result = wire.ask(messages.DescribeConfigsRequest(resources=[asked]), 4).results[0]
    return result.configs[0].value


@every_version("IncrementalAlterConfigs")
def test_incremental_alter_configs(wire, version):
    topic, _ = filled(wire, 1)
    struct = messages.IncrementalAlterConfigsRequest.Resources

    def alter(operation, value, validate_only=False):
        change = struct.Configs(name="retention.ms", config_operation=operation, value=value)
        resource = struct(resource_type=2, resource_name=topic, configs=[change])
        request = messages.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        return wire.ask(request, version).responses[0].error_code

    assert alter(0, "5000", validate_only=True) == 0
    assert topic_config(wire, topic, "retention.ms") == "604800000"
    assert alter(0, "5000") == 0
    assert topic_config(wire, topic, "retention.ms") == "5000"
    assert alter(1, None) == 0
    assert topic_config(wire, topic, "retention.ms") == "604800000"
    assert alter(0, "soon") == errors.INVALID_CONFIG


@every_version("DescribeLogDirs")
def test_describe_log_dirs(wire, broker, version):
    topic, _ = filled(wire, 2)
    struct = messages.DescribeLogDirsRequest.Topics
    response = wire.ask(
        messages.DescribeLogDirsRequest(topics=[struct(topic=topic, partitions=[0])]), version
    )
    [result] = response.results
    assert result.error_code == 0 and result.log_dir == str(broker.data_dir)
    [told] = result.topics
    assert told.name == topic and told.partitions[0].partition_size > 100
    if version >= 4:
        assert result.total_bytes > result.usable_bytes > 0
    everything = wire.ask(messages.DescribeLogDirsRequest(topics=None), version).results[0].topics
    assert topic in {t.name for t in everything}


@every_version("AlterReplicaLogDirs")
def test_alter_replica_log_dirs(wire, broker, version):
    """With one directory there is nothing to do; test_replica_moves.py has two."""
    topic, _ = filled(wire, 1)
    asked = messages.AlterReplicaLogDirsRequest

    def ask(path, name, *partitions):
        of_topic = asked.Dirs.Topics(name=name, partitions=list(partitions))
        [result] = wire.ask(asked(dirs=[asked.Dirs(path=path, topics=[of_topic])]), version).results
        assert result.topic_name == name
        return [(each.partition_index, each.error_code) for each in result.partitions]

    assert ask(str(broker.data_dir), topic, 0, 1) == [(0, 0), (1, errors.UNKNOWN_TOPIC_OR_PARTITION)]
    assert ask(str(broker.data_dir), "nowhere", 0) == [(0, errors.UNKNOWN_TOPIC_OR_PARTITION)]
    assert ask("/nowhere", topic, 0) == [(0, errors.LOG_DIR_NOT_FOUND)]
    assert ask(str(broker.data_dir), "t" * 240, 0) == [(0, errors.INVALID_TOPIC_EXCEPTION)]


@every_version("AlterPartitionReassignments")
def test_alter_partition_reassignments(wire, version):
    topic, _ = filled(wire, 1)
    asked = messages.AlterPartitionReassignmentsRequest

    def ask(replicas, index=0):
        partition = asked.Topics.Partitions(partition_index=index, replicas=replicas)
        request = asked(topics=[asked.Topics(name=topic, partitions=[partition])], timeout_ms=10_000)
        response = wire.ask(request, version)
        assert response.error_code == 0
        return response.responses[0].partitions[0].error_code

    assert ask([1]) == 0
    assert ask([2]) == errors.INVALID_REPLICA_ASSIGNMENT
    assert ask(None) == errors.NO_REASSIGNMENT_IN_PROGRESS
    assert ask([1], index=1) == errors.UNKNOWN_TOPIC_OR_PARTITION


@every_version("ListPartitionReassignments")
def test_list_partition_reassignments(wire, version):
    filled(wire, 1)
    response = wire.ask(messages.ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000), version)
    assert (response.error_code, response.topics) == (0, [])


@every_version("ElectLeaders")
def test_elect_leaders(wire, version):
    topic, _ = filled(wire, 1)
    cls = messages.ElectLeadersRequest

    def ask(topics, kind=0):
        response = wire.ask(cls(election_type=kind, topic_partitions=topics, timeout_ms=10_000), version)
        return response.error_code, {
            (result.topic, each.partition_id): each.error_code
            for result in response.replica_election_results
            for each in result.partition_result
        }

    needless, unknown = errors.ELECTION_NOT_NEEDED, errors.UNKNOWN_TOPIC_OR_PARTITION
    named = [cls.TopicPartitions(topic=topic, partitions=[0, 1])]
    assert ask(named) == (0, {(topic, 0): needless, (topic, 1): unknown})
    assert ask([]) == ask([], 0) == (0, {})
    assert ask(None) == (0, {})
    if version:
        assert ask(named, 1) == (0, {(topic, 0): needless, (topic, 1): unknown})
        assert ask(named, 2)[0] == errors.INVALID_REQUEST


@every_version("DescribeQuorum")
def test_describe_quorum(wire, version):
    cls = messages.DescribeQuorumRequest

    def ask(name, index):
        topic = cls.Topics(topic_name=name, partitions=[cls.Topics.Partitions(partition_index=index)])
        response = wire.ask(cls(topics=[topic]), version)
        assert response.error_code == 0
        return response, response.topics[0].partitions[0]

    for name, index in (("__cluster_metadata", 1), ("other", 0)):
        assert ask(name, index)[1].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    response, told = ask("__cluster_metadata", 0)
    (voter,) = told.current_voters
    assert (told.error_code, told.leader_id, voter.replica_id, told.observers) == (0, 1, 1, [])
    assert told.high_watermark <= voter.log_end_offset
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert [node.node_id for node in response.nodes] == [1] * (version >= 2)


@every_version("UpdateFeatures")
def test_update_features(wire, version):
    cls = messages.UpdateFeaturesRequest

    def ask(name, level):
        update = cls.FeatureUpdates(feature=name, max_version_level=level)
        return wire.ask(cls(timeout_ms=10_000, feature_updates=[update]), version).error_code

    assert ask("transaction.version", 2) == 0  # as it is
    assert ask("transaction.version", 3) == ask("no.such", 1) == errors.INVALID_UPDATE_VERSION


@every_version("CreatePartitions")
def test_create_partitions(wire, version):
    topic, _ = filled(wire, 1)

    def ask(count):
        asked = messages.CreatePartitionsRequest.Topics(name=topic, count=count, assignments=None)
        request = messages.CreatePartitionsRequest(topics=[asked], timeout_ms=10_000)
        return wire.ask(request, version).results[0].error_code

    assert ask(3) == 0
    described = wire.ask(messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=topic)]), 9)
    assert len(described.topics[0].partitions) == 3
    assert ask(2) == errors.INVALID_PARTITIONS


@every_version("OffsetDelete")
def test_offset_delete(wire, version):
    topic, topic_id = filled(wire, 1)
    group = fresh("group")
    ready_coordinator(wire, group)
    assert commit(wire, group, topic, topic_id, 8) == 0
    struct = messages.OffsetDeleteRequest.Topics
    asked = struct(name=topic, partitions=[struct.Partitions(partition_index=0)])
    response = wire.ask(messages.OffsetDeleteRequest(group_id=group, topics=[asked]), version)
    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)


@every_version("DescribeCluster")
def test_describe_cluster(wire, broker, version):
    response = wire.ask(messages.DescribeClusterRequest(), version)
    assert response.error_code == 0 and len(response.cluster_id) == 22
    assert [(b.host, b.port) for b in response.brokers] == [("127.0.0.1", broker.port)]


@every_version("DescribeProducers")
def test_describe_producers(wire, version):
    topic = fresh("topic")
    create_topic(wire, topic)
    data = bytes(batch(b"a", b"b", producer_id=4711, producer_epoch=3, base_sequence=0))
    struct = messages.ProduceRequest.TopicData
    partition = struct.PartitionData(index=0, records=data)
    produced = messages.ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[struct(name=topic, partition_data=[partition])]
    )
    assert wire.ask(produced, 9).responses[0].partition_responses[0].error_code == 0
    asked = messages.DescribeProducersRequest.Topics(name=topic, partition_indexes=[0, 9])
    known, unknown = wire.ask(messages.DescribeProducersRequest(topics=[asked]), version).topics[0].partitions
    assert [(p.producer_id, p.producer_epoch, p.last_sequence) for p in known.active_producers] == [
        (4711, 3, 1)
    ]
    assert unknown.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


@every_version("WriteTxnMarkers")
def test_write_txn_markers(wire, version):
    """As `kafka-transactions.sh abort` sends it, with what DescribeProducers told."""
    topic = fresh("topic")
    create_topic(wire, topic)
    cls = messages.WriteTxnMarkersRequest.Markers

    def end(coordinator_epoch, **fields):
        topics = [cls.Topics(name=topic, partition_indexes=[0, 9])]
        marker = cls(producer_id=4711, coordinator_epoch=coordinator_epoch, topics=topics, **fields)
        (answer,) = wire.ask(messages.WriteTxnMarkersRequest(markers=[marker]), version).markers
        assert (answer.producer_id, answer.topics[0].name) == (4711, topic)
        known, unknown = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
        assert (known.partition_index, unknown.partition_index) == (0, 9)
        assert unknown.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
        return known.error_code

    assert end(5, producer_epoch=3) == errors.NONE
    assert end(4, producer_epoch=3) == errors.TRANSACTION_COORDINATOR_FENCED
    assert end(5, producer_epoch=2) == errors.INVALID_PRODUCER_EPOCH
    assert end(6, producer_epoch=3, transaction_result=True) == errors.NONE
    asked = messages.DescribeProducersRequest.Topics(name=topic, partition_indexes=[0])
    (part,) = wire.ask(messages.DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
    (producer,) = part.active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (3, -1)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (6, -1)
    assert wire.ask(messages.WriteTxnMarkersRequest(markers=[]), version).markers == []


@every_version("ListConfigResources")
def test_list_config_resources(wire, version):
    topic, _ = filled(wire, 1)
    request = messages.ListConfigResourcesRequest()
    if version >= 1:
        request.resource_types = [2]
    response = wire.ask(request, version)
    assert response.error_code == 0
    if version >= 1:
        assert (2, topic) in {(r.resource_type, r.resource_name) for r in response.config_resources}


@every_version("DescribeTopicPartitions")
def test_describe_topic_partitions(wire, version):
    topic = fresh("topic")
    create_topic(wire, topic, partitions=5)
    asked = [messages.DescribeTopicPartitionsRequest.Topics(name=topic)]
    first = wire.ask(
        messages.DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=3), version
    )
    assert [p.partition_index for p in first.topics[0].partitions] == [0, 1, 2]
    assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == (topic, 3)
    cursor = messages.DescribeTopicPartitionsRequest.Cursor(topic_name=topic, partition_index=3)
    rest = wire.ask(messages.DescribeTopicPartitionsRequest(topics=asked, cursor=cursor), version)
    assert [p.partition_index for p in rest.topics[0].partitions] == [3, 4] and rest.next_cursor is None


def test_the_table_is_covered():
    """A row without a test here would be an API that is told and not tried."""
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_apis*.py"))
    tested = set(re.findall(r'@every_version\("(\w+)"\)', source))
    assert tested == {row.name for row in ROWS}
