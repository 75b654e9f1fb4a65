"""The rights that each API requires, if there is an authorizer (Kafka: KafkaApis, ControllerApis,
AuthHelper).

    whole   required for the whole request; the first missing right is the error of all of it
    each    required for each element of an array of the request; the other elements are served
    custom  a function of server/guard: the rights depend on more than that

An API that is not in this table is refused to all clients except super users. Produce and Fetch are not here:
they check natively."""

from typing import Final, NamedTuple

from kafkad.protocol import errors
from kafkad.security.acls import Kind, Operation

CODES: Final = {
    Kind.TOPIC: errors.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: errors.GROUP_AUTHORIZATION_FAILED,
    Kind.CLUSTER: errors.CLUSTER_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
MESSAGES: Final = {
    errors.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    errors.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    errors.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


class Whole(NamedTuple):
    """`field` of the request names the resource; "": the cluster. `or_else`: a right that is sufficient,
    too."""

    operation: Operation
    kind: Kind
    field: str = ""
    or_else: Operation | None = None


class Each(NamedTuple):
    """`name`: of an element of `array`; "": the elements are the names. `response`: the array of the answers,
    if its name differs."""

    operation: Operation
    kind: Kind
    array: str
    name: str
    response: str = ""


class Access(NamedTuple):
    whole: tuple[Whole, ...] = ()
    each: Each | None = None
    custom: str = ""


def _cluster(operation: Operation, or_else: Operation | None = None) -> Access:
    return Access((Whole(operation, Kind.CLUSTER, or_else=or_else),))


_READ, _WRITE, _DELETE = Operation.READ, Operation.WRITE, Operation.DELETE
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE
_GROUP = Whole(_READ, Kind.GROUP, "group_id")
_TRANSACTION = Whole(_WRITE, Kind.TRANSACTIONAL_ID, "transactional_id")
OPEN: Final = Access()  # no right required: it reveals nothing secret, or is part of authentication

ACCESS: Final[dict[int, Access]] = {
    2: Access(each=Each(_DESCRIBE, Kind.TOPIC, "topics", "name")),  # ListOffsets
    3: Access(custom="metadata"),
    8: Access((_GROUP,), Each(_READ, Kind.TOPIC, "topics", "name")),  # OffsetCommit
    9: Access(custom="offset_fetch"),
    10: Access(custom="find_coordinator"),
    11: Access((_GROUP,)),  # JoinGroup
    12: Access((_GROUP,)),  # Heartbeat
    13: Access((_GROUP,)),  # LeaveGroup
    14: Access(custom="sync_group"),
    15: Access(custom="describe_groups"),
    16: Access(custom="list_groups"),
    17: OPEN,  # SaslHandshake
    18: OPEN,  # ApiVersions
    19: Access(custom="create_topics"),
    20: Access(custom="delete_topics"),
    21: Access(each=Each(_DELETE, Kind.TOPIC, "topics", "name")),  # DeleteRecords
    22: Access(custom="init_producer_id"),
    23: Access(custom="offset_for_leader_epoch"),
    24: Access(custom="add_partitions_to_txn"),
    25: Access((_TRANSACTION, _GROUP)),  # AddOffsetsToTxn
    26: Access((_TRANSACTION,)),  # EndTxn
    27: _cluster(Operation.CLUSTER_ACTION, _ALTER),  # WriteTxnMarkers
    28: Access((_TRANSACTION, _GROUP), Each(_READ, Kind.TOPIC, "topics", "name")),  # TxnOffsetCommit
    29: _cluster(_DESCRIBE),  # DescribeAcls
    30: _cluster(_ALTER),  # CreateAcls
    31: _cluster(_ALTER),  # DeleteAcls
    32: Access(custom="describe_configs"),
    33: Access(custom="alter_configs"),
    34: _cluster(_ALTER),  # AlterReplicaLogDirs
    35: _cluster(_DESCRIBE),  # DescribeLogDirs
    36: OPEN,  # SaslAuthenticate
    37: Access(each=Each(_ALTER, Kind.TOPIC, "topics", "name", "results")),  # CreatePartitions
    38: Access(custom="create_delegation_token"),
    39: OPEN,  # RenewDelegationToken: who holds the HMAC and is owner or renewer
    40: OPEN,  # ExpireDelegationToken: the same
    41: Access(custom="describe_delegation_token"),
    42: Access(custom="delete_groups"),
    43: _cluster(_ALTER),  # ElectLeaders
    44: Access(custom="alter_configs"),  # IncrementalAlterConfigs
    45: _cluster(_ALTER),  # AlterPartitionReassignments
    46: _cluster(_DESCRIBE),  # ListPartitionReassignments
    47: Access(
        (Whole(_DELETE, Kind.GROUP, "group_id"),), Each(_READ, Kind.TOPIC, "topics", "name")
    ),  # OffsetDelete
    48: _cluster(Operation.DESCRIBE_CONFIGS),  # DescribeClientQuotas
    49: _cluster(Operation.ALTER_CONFIGS),  # AlterClientQuotas
    50: _cluster(_DESCRIBE),  # DescribeUserScramCredentials
    51: _cluster(_ALTER),  # AlterUserScramCredentials
    55: _cluster(_DESCRIBE),  # DescribeQuorum
    57: _cluster(_ALTER),  # UpdateFeatures
    60: Access(custom="describe_cluster"),
    61: Access(each=Each(_READ, Kind.TOPIC, "topics", "name")),  # DescribeProducers
    64: _cluster(_ALTER),  # UnregisterBroker
    65: Access(custom="describe_transactions"),
    66: Access(custom="list_transactions"),
    74: _cluster(Operation.DESCRIBE_CONFIGS),  # ListConfigResources
    75: Access(custom="describe_topic_partitions"),
    80: _cluster(_ALTER),  # AddRaftVoter
    81: _cluster(_ALTER),  # RemoveRaftVoter
}

_NODES = _cluster(Operation.CLUSTER_ACTION)
AT_CONTROLLERS: Final[dict[int, Access]] = {  # on their listeners; a client's in an Envelope is asked again
    **ACCESS,
    1: _NODES,  # Fetch, of the metadata log
    52: _NODES,  # Vote
    53: _NODES,  # BeginQuorumEpoch
    54: _NODES,  # EndQuorumEpoch
    56: _NODES,  # AlterPartition
    59: _NODES,  # FetchSnapshot
    60: Access((Whole(_ALTER, Kind.CLUSTER),), custom="describe_cluster"),  # DescribeCluster: the controllers
    62: _NODES,  # BrokerRegistration
    63: _NODES,  # BrokerHeartbeat
    67: _NODES,  # AllocateProducerIds
    70: _NODES,  # ControllerRegistration
    73: _NODES,  # AssignReplicasToDirs
    82: _NODES,  # UpdateRaftVoter
}
