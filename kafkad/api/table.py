"""THE table: every API that the broker serves, with its versions and its handler.

ApiVersions lists exactly this table. Versions run from the lowest that Kafka 3.9 served (0) to the highest
stable one of Kafka 4.3. A row is here only if all of its versions work.

`native` rows are parsed and answered by `_native.serving.reactor`; they have no function here.

`route` names the state that an answer needs, if a broker has several workers (server/routing.py). LOCAL:
every worker has it. CONTROLLER: worker 0 writes the metadata. GROUP: the owner of the group's partition of
`__consumer_offsets`. TRANSACTION: the owner of the transactional id's partition of `__transaction_state`; a
producer without one gets its id anywhere.
PARTITIONS: the owner of each partition. EVERY: each worker has a part of it.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from kafkad.api import (
    acls,
    cluster,
    configs,
    coordinators,
    groups,
    list_offsets,
    log_dirs,
    markers,
    metadata,
    offsets,
    partitions,
    producer_ids,
    quorum,
    quotas,
    reassignments,
    sasl,
    scram,
    tokens,
    topics,
    transactions,
    versions,
)


class Route(Enum):
    LOCAL = "local"
    CONTROLLER = "controller"
    GROUP = "group"
    TRANSACTION = "transaction"
    PARTITIONS = "partitions"
    EVERY = "every"


class Api(NamedTuple):
    key: int
    name: str
    low: int
    high: int
    handler: Callable[..., Any] | None  # None: native
    route: Route = Route.LOCAL
    listeners: frozenset[str] = frozenset({"broker"})  # broker, controller, zookeeper


# fmt: off
ROWS = (
    Api(0,  "Produce",                 0, 13, None),
    Api(1,  "Fetch",                   0, 18, None),
    Api(2,  "ListOffsets",             0, 11, list_offsets.list_offsets,          Route.PARTITIONS),
    Api(3,  "Metadata",                0, 13, metadata.metadata),
    Api(8,  "OffsetCommit",            0, 10, offsets.offset_commit,              Route.GROUP),
    Api(9,  "OffsetFetch",             0, 10, offsets.offset_fetch,               Route.GROUP),
    Api(10, "FindCoordinator",         0, 6,  coordinators.find_coordinator),
    Api(11, "JoinGroup",               0, 9,  groups.join_group,                  Route.GROUP),
    Api(12, "Heartbeat",               0, 4,  groups.heartbeat,                   Route.GROUP),
    Api(13, "LeaveGroup",              0, 5,  groups.leave_group,                 Route.GROUP),
    Api(14, "SyncGroup",               0, 5,  groups.sync_group,                  Route.GROUP),
    Api(15, "DescribeGroups",          0, 6,  groups.describe_groups,             Route.GROUP),
    Api(16, "ListGroups",              0, 5,  groups.list_groups,                 Route.EVERY),
    Api(17, "SaslHandshake",           0, 1,  sasl.sasl_handshake),
    Api(18, "ApiVersions",             0, 4,  versions.api_versions),
    Api(19, "CreateTopics",            0, 7,  topics.create_topics,               Route.CONTROLLER),
    Api(20, "DeleteTopics",            0, 6,  topics.delete_topics,               Route.CONTROLLER),
    Api(21, "DeleteRecords",           0, 2,  partitions.delete_records,          Route.PARTITIONS),
    Api(22, "InitProducerId",          0, 5,  producer_ids.init_producer_id,      Route.TRANSACTION),
    Api(23, "OffsetForLeaderEpoch",    0, 4,  partitions.offset_for_leader_epoch, Route.PARTITIONS),
    Api(24, "AddPartitionsToTxn",      0, 5,  transactions.add_partitions_to_txn, Route.TRANSACTION),
    Api(25, "AddOffsetsToTxn",         0, 4,  transactions.add_offsets_to_txn,    Route.TRANSACTION),
    Api(26, "EndTxn",                  0, 5,  transactions.end_txn,               Route.TRANSACTION),
    Api(27, "WriteTxnMarkers",         0, 2,  markers.write_txn_markers,          Route.PARTITIONS),
    Api(28, "TxnOffsetCommit",         0, 5,  transactions.txn_offset_commit,     Route.GROUP),
    Api(29, "DescribeAcls",            0, 3,  acls.describe_acls),
    Api(30, "CreateAcls",              0, 3,  acls.create_acls,                   Route.CONTROLLER),
    Api(31, "DeleteAcls",              0, 3,  acls.delete_acls,                   Route.CONTROLLER),
    Api(32, "DescribeConfigs",         0, 4,  configs.describe_configs),
    Api(33, "AlterConfigs",            0, 2,  configs.alter_configs,              Route.CONTROLLER),
    Api(34, "AlterReplicaLogDirs",     0, 2,  log_dirs.alter_replica_log_dirs,    Route.EVERY),
    Api(35, "DescribeLogDirs",         0, 5,  log_dirs.describe_log_dirs,         Route.EVERY),
    Api(36, "SaslAuthenticate",        0, 2,  sasl.sasl_authenticate),
    Api(37, "CreatePartitions",        0, 3,  topics.create_partitions,           Route.CONTROLLER),
    Api(38, "CreateDelegationToken",   0, 3,  tokens.create_delegation_token,     Route.CONTROLLER),
    Api(39, "RenewDelegationToken",    0, 2,  tokens.renew_delegation_token,      Route.CONTROLLER),
    Api(40, "ExpireDelegationToken",   0, 2,  tokens.expire_delegation_token,     Route.CONTROLLER),
    Api(41, "DescribeDelegationToken", 0, 3,  tokens.describe_delegation_token),
    Api(42, "DeleteGroups",            0, 2,  groups.delete_groups,               Route.GROUP),
    Api(43, "ElectLeaders",            0, 2,  quorum.elect_leaders,               Route.CONTROLLER),
    Api(44, "IncrementalAlterConfigs", 0, 1,  configs.incremental_alter_configs,  Route.CONTROLLER),
    Api(45, "AlterPartitionReassignments", 0, 1, reassignments.alter_reassignments, Route.CONTROLLER),
    Api(46, "ListPartitionReassignments",  0, 0, reassignments.list_reassignments),
    Api(47, "OffsetDelete",            0, 0,  offsets.offset_delete,              Route.GROUP),
    Api(48, "DescribeClientQuotas",    0, 1,  quotas.describe_client_quotas),
    Api(49, "AlterClientQuotas",       0, 1,  quotas.alter_client_quotas,         Route.CONTROLLER),
    Api(50, "DescribeUserScramCredentials", 0, 0, scram.describe_user_scram_credentials),
    Api(51, "AlterUserScramCredentials", 0, 0, scram.alter_user_scram_credentials, Route.CONTROLLER),
    Api(55, "DescribeQuorum",          0, 2,  quorum.describe_quorum,             Route.CONTROLLER),
    Api(57, "UpdateFeatures",          0, 2,  quorum.update_features,             Route.CONTROLLER),
    Api(60, "DescribeCluster",         0, 2,  cluster.describe_cluster),
    Api(61, "DescribeProducers",       0, 0,  partitions.describe_producers,      Route.PARTITIONS),
    Api(65, "DescribeTransactions",    0, 0,  transactions.describe_transactions, Route.TRANSACTION),
    Api(66, "ListTransactions",        0, 2,  transactions.list_transactions,     Route.EVERY),
    Api(74, "ListConfigResources",     0, 1,  configs.list_config_resources),
    Api(75, "DescribeTopicPartitions", 0, 0,  metadata.describe_topic_partitions),
)
# fmt: on

BY_KEY = {row.key: row for row in ROWS}
NATIVE = tuple(row for row in ROWS if row.handler is None)
TOLD = tuple((row.key, row.low, row.high) for row in ROWS)
