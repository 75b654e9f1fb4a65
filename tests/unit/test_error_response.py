"""Every API has an error response, for exceptions that its handler does not catch."""

import pytest

from kafkad.api.table import ROWS
from kafkad.protocol import codec, messages
from kafkad.server.error_response import error_response
from tests.unit.steps import finish

CODE = -1  # UNKNOWN_SERVER_ERROR
m = messages

# an API with what its request names, and the paths in the response that must carry the code
ASKED = {
    "ListOffsets": (
        m.ListOffsetsRequest(
            topics=[
                m.ListOffsetsRequest.Topics(
                    name="t", partitions=[m.ListOffsetsRequest.Topics.Partitions(partition_index=3)]
                )
            ]
        ),
        lambda r: [(r.topics[0].name, p.partition_index, p.error_code) for p in r.topics[0].partitions],
        [("t", 3, CODE)],
    ),
    "Metadata": (
        m.MetadataRequest(topics=[m.MetadataRequest.Topics(name="t")]),
        lambda r: [(t.name, t.error_code) for t in r.topics],
        [("t", CODE)],
    ),
    "OffsetCommit": (
        m.OffsetCommitRequest(
            group_id="g",
            topics=[
                m.OffsetCommitRequest.Topics(
                    name="t", partitions=[m.OffsetCommitRequest.Topics.Partitions(partition_index=3)]
                )
            ],
        ),
        lambda r: [(t.name, p.partition_index, p.error_code) for t in r.topics for p in t.partitions],
        [("t", 3, CODE)],
    ),
    "OffsetFetch": (
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Groups(group_id="g", topics=None)]),
        lambda r: [(g.group_id, g.error_code) for g in r.groups],
        [("g", CODE)],
    ),
    "AddPartitionsToTxn": (
        m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnRequest.Transactions(
                    transactional_id="x",
                    topics=[m.AddPartitionsToTxnRequest.Transactions.Topics(name="t", partitions=[3])],
                )
            ]
        ),
        lambda r: [
            (each.transactional_id, t.name, p.partition_index, p.partition_error_code)
            for each in r.results_by_transaction
            for t in each.topic_results
            for p in t.results_by_partition
        ],
        [("x", "t", 3, CODE)],
    ),
    "TxnOffsetCommit": (
        m.TxnOffsetCommitRequest(
            group_id="g",
            topics=[
                m.TxnOffsetCommitRequest.Topics(
                    name="t", partitions=[m.TxnOffsetCommitRequest.Topics.Partitions(partition_index=3)]
                )
            ],
        ),
        lambda r: [(t.name, p.partition_index, p.error_code) for t in r.topics for p in t.partitions],
        [("t", 3, CODE)],
    ),
    "DescribeTransactions": (
        m.DescribeTransactionsRequest(transactional_ids=["x", "y"]),
        lambda r: [(each.transactional_id, each.error_code) for each in r.transaction_states],
        [("x", CODE), ("y", CODE)],
    ),
    "ElectLeaders": (
        m.ElectLeadersRequest(
            topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[3, 5])]
        ),
        lambda r: [
            (result.topic, each.partition_id, each.error_code)
            for result in r.replica_election_results
            for each in result.partition_result
        ],
        [("t", 3, CODE), ("t", 5, CODE)],
    ),
    "FindCoordinator": (
        m.FindCoordinatorRequest(coordinator_keys=["g", "h"]),
        lambda r: [(c.key, c.error_code) for c in r.coordinators],
        [("g", CODE), ("h", CODE)],
    ),
    "DescribeGroups": (
        m.DescribeGroupsRequest(groups=["g", "h"]),
        lambda r: [(g.group_id, g.error_code) for g in r.groups],
        [("g", CODE), ("h", CODE)],
    ),
    "CreateTopics": (
        m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.Topics(name="t")]),
        lambda r: [(t.name, t.error_code) for t in r.topics],
        [("t", CODE)],
    ),
    "DeleteTopics": (
        m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.Topics(name="t")]),
        lambda r: [(t.name, t.error_code) for t in r.responses],
        [("t", CODE)],
    ),
    "DeleteRecords": (
        m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsRequest.Topics(
                    name="t", partitions=[m.DeleteRecordsRequest.Topics.Partitions(partition_index=3)]
                )
            ]
        ),
        lambda r: [(t.name, p.partition_index, p.error_code) for t in r.topics for p in t.partitions],
        [("t", 3, CODE)],
    ),
    "OffsetForLeaderEpoch": (
        m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.Topics(
                    topic="t", partitions=[m.OffsetForLeaderEpochRequest.Topics.Partitions(partition=3)]
                )
            ]
        ),
        lambda r: [(t.topic, p.partition, p.error_code) for t in r.topics for p in t.partitions],
        [("t", 3, CODE)],
    ),
    "DescribeConfigs": (
        m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsRequest.Resources(resource_type=2, resource_name="t")]
        ),
        lambda r: [(x.resource_type, x.resource_name, x.error_code, x.configs) for x in r.results],
        [(2, "t", CODE, [])],
    ),
    "AlterConfigs": (
        m.AlterConfigsRequest(
            resources=[m.AlterConfigsRequest.Resources(resource_type=2, resource_name="t")]
        ),
        lambda r: [(x.resource_name, x.error_code) for x in r.responses],
        [("t", CODE)],
    ),
    "IncrementalAlterConfigs": (
        m.IncrementalAlterConfigsRequest(
            resources=[m.IncrementalAlterConfigsRequest.Resources(resource_type=2, resource_name="t")]
        ),
        lambda r: [(x.resource_name, x.error_code) for x in r.responses],
        [("t", CODE)],
    ),
    "WriteTxnMarkers": (
        m.WriteTxnMarkersRequest(
            markers=[
                m.WriteTxnMarkersRequest.Markers(
                    producer_id=5,
                    topics=[m.WriteTxnMarkersRequest.Markers.Topics(name="t", partition_indexes=[0, 2])],
                )
            ]
        ),
        lambda r: [
            (marker.producer_id, topic.name, part.partition_index, part.error_code)
            for marker in r.markers
            for topic in marker.topics
            for part in topic.partitions
        ],
        [(5, "t", 0, CODE), (5, "t", 2, CODE)],
    ),
    "AlterUserScramCredentials": (
        m.AlterUserScramCredentialsRequest(
            deletions=[m.AlterUserScramCredentialsRequest.Deletions(name="u", mechanism=1)],
            upsertions=[m.AlterUserScramCredentialsRequest.Upsertions(name="v", mechanism=2)],
        ),
        lambda r: [(x.user, x.error_code) for x in r.results],
        [("u", CODE), ("v", CODE)],
    ),
    "AlterClientQuotas": (
        m.AlterClientQuotasRequest(
            entries=[
                m.AlterClientQuotasRequest.Entries(
                    entity=[m.AlterClientQuotasRequest.Entries.Entity(entity_type="user", entity_name=None)]
                )
            ]
        ),
        lambda r: [(x.error_code, [(e.entity_type, e.entity_name) for e in x.entity]) for x in r.entries],
        [(CODE, [("user", None)])],
    ),
    "AlterReplicaLogDirs": (
        m.AlterReplicaLogDirsRequest(
            dirs=[
                m.AlterReplicaLogDirsRequest.Dirs(
                    path=path,
                    topics=[m.AlterReplicaLogDirsRequest.Dirs.Topics(name=name, partitions=[0, 3])],
                )
                for path, name in (("/a", "t"), ("/b", "u"))
            ]
        ),
        lambda r: [(x.topic_name, p.partition_index, p.error_code) for x in r.results for p in x.partitions],
        [("t", 0, CODE), ("t", 3, CODE), ("u", 0, CODE), ("u", 3, CODE)],
    ),
    "DescribeAcls": (m.DescribeAclsRequest(), lambda r: (r.error_code, r.resources), (CODE, [])),
    "CreateAcls": (
        m.CreateAclsRequest(creations=[m.CreateAclsRequest.Creations(), m.CreateAclsRequest.Creations()]),
        lambda r: [x.error_code for x in r.results],
        [CODE, CODE],
    ),
    "DeleteAcls": (
        m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.Filters()]),
        lambda r: [(x.error_code, x.matching_acls) for x in r.filter_results],
        [(CODE, [])],
    ),
    "CreatePartitions": (
        m.CreatePartitionsRequest(topics=[m.CreatePartitionsRequest.Topics(name="t", count=3)]),
        lambda r: [(x.name, x.error_code) for x in r.results],
        [("t", CODE)],
    ),
    "DeleteGroups": (
        m.DeleteGroupsRequest(groups_names=["g"]),
        lambda r: [(x.group_id, x.error_code) for x in r.results],
        [("g", CODE)],
    ),
    "DescribeProducers": (
        m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.Topics(name="t", partition_indexes=[0, 3])]
        ),
        lambda r: [(t.name, p.partition_index, p.error_code) for t in r.topics for p in t.partitions],
        [("t", 0, CODE), ("t", 3, CODE)],
    ),
    "DescribeTopicPartitions": (
        m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequest.Topics(name="t")]),
        lambda r: [(t.name, t.error_code) for t in r.topics],
        [("t", CODE)],
    ),
}
# the same in the form of older versions: the last version that has it
OLDER = {
    "OffsetFetch": (
        7,
        m.OffsetFetchRequest(
            group_id="g", topics=[m.OffsetFetchRequest.Topics(name="t", partition_indexes=[3])]
        ),
    ),
    "AddPartitionsToTxn": (
        3,
        m.AddPartitionsToTxnRequest(
            v3_and_below_topics=[m.AddPartitionsToTxnRequest.V3AndBelowTopics(name="t", partitions=[3])]
        ),
    ),
    "FindCoordinator": (3, m.FindCoordinatorRequest(key="g")),
    "DeleteTopics": (5, m.DeleteTopicsRequest(topic_names=["u"])),
}
TOP_LEVEL = [row for row in ROWS if row.handler is not None and row.name not in ASKED]


@pytest.mark.parametrize("name", ASKED)
def test_each_thing_that_was_asked_about_is_told_the_code(name):
    request, paths, expected = ASKED[name]
    version = 9 if name == "OffsetCommit" else type(request).MAX_VERSION  # 10 has topic ids
    response = finish(error_response(type(request).API_KEY, version, request, CODE, "broken"))
    assert paths(response) == expected


@pytest.mark.parametrize("row", TOP_LEVEL, ids=lambda row: row.name)
def test_the_others_have_one_code_for_all(row):
    response = finish(error_response(row.key, row.high, codec.request_class(row.key)(), CODE))
    assert response.error_code == CODE


def test_a_request_that_names_nothing_is_refused_with_an_empty_answer():
    """HUNTS L5: DescribeTopicPartitions of all topics with a cursor of partition -1 closed the connection."""
    cursor = m.DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=-1)
    response = finish(error_response(75, 0, m.DescribeTopicPartitionsRequest(topics=[], cursor=cursor), CODE))
    assert (response.topics, response.next_cursor) == ([], None)


@pytest.mark.parametrize("row", [row for row in ROWS if row.handler is not None], ids=lambda row: row.name)
def test_an_error_response_encodes_in_every_version(row):
    newest = ASKED[row.name][0] if row.name in ASKED else codec.request_class(row.key)()
    until, older = OLDER.get(row.name, (-1, None))
    for version in range(row.low, row.high + 1):
        response = finish(error_response(row.key, version, older if version <= until else newest, CODE))
        frame = codec.encode_response(response, version, 7)
        correlation_id, read = codec.decode_response(codec.response_class(row.key), version, frame)
        assert correlation_id == 7
        assert "error_code=-1" in repr(read) or (row.name == "DescribeLogDirs" and version < 3)
