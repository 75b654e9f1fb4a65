"""An error response of any API, built from its request.

Kafka writes one such function per request class. The schemas have the same information: a response repeats
the names in the request (topics, partitions, groups). So an error response is the outline of the request,
with the code in every `error_code` of the version.
"""

from typing import Any

from kafkad.protocol import codec
from kafkad.server.turns import Steps

# (response struct, its array) -> the name of the array in the request, if it differs; "a.b": all b of all a
RENAMED = {
    ("AlterUserScramCredentialsResponse", "results"): ("deletions", "upsertions"),
    ("CreateAclsResponse", "results"): ("creations",),
    ("DeleteAclsResponse", "filter_results"): ("filters",),
    ("CreatePartitionsResponse", "results"): ("topics",),
    ("DescribeConfigsResponse", "results"): ("resources",),
    ("AlterConfigsResponse", "responses"): ("resources",),
    ("AlterPartitionReassignmentsResponse", "responses"): ("topics",),
    ("AlterReplicaLogDirsResponse", "results"): ("dirs.topics",),
    ("IncrementalAlterConfigsResponse", "responses"): ("resources",),
    ("DeleteGroupsResponse", "results"): ("groups_names",),
    ("DeleteTopicsResponse", "responses"): ("topics", "topic_names"),
    ("AddPartitionsToTxnResponse", "results_by_transaction"): ("transactions",),
    ("AddPartitionsToTxnResponse", "results_by_topic_v3_and_below"): ("v3_and_below_topics",),
    ("AddPartitionsToTxnResponse.ResultsByTransaction", "topic_results"): ("topics",),
    ("AddPartitionsToTxnResponse.ResultsByTransaction.TopicResults", "results_by_partition"): ("partitions",),
    ("AddPartitionsToTxnResponse.ResultsByTopicV3AndBelow", "results_by_partition"): ("partitions",),
    ("DescribeTransactionsResponse", "transaction_states"): ("transactional_ids",),
    ("DescribeQuorumResponse", "topics"): (),  # only the response as a whole has an error, as in Kafka
    ("ElectLeadersResponse", "replica_election_results"): ("topic_partitions",),
    ("ElectLeadersResponse.ReplicaElectionResults", "partition_result"): ("partitions",),
    ("FindCoordinatorResponse", "coordinators"): ("coordinator_keys",),
    ("DescribeProducersResponse.Topics", "partitions"): ("partition_indexes",),
    ("WriteTxnMarkersResponse.Markers.Topics", "partitions"): ("partition_indexes",),
    ("OffsetFetchResponse.Topics", "partitions"): ("partition_indexes",),
    ("OffsetFetchResponse.Groups.Topics", "partitions"): ("partition_indexes",),
}
# the field that gets a plain string or number of the request
NAMES = ("name", "group_id", "transactional_id", "key", "partition_index", "partition_id")
CODES = ("error_code", "partition_error_code")
# arrays that are null in an error response, as in Kafka
NULL = {("DescribeClientQuotasResponse", "entries")}
# offsets that are -1 in an error response, although the schema's default is 0
NO_OFFSETS = ("committed_offset", "low_watermark")


def error_response(api_key: int, version: int, request: Any, code: int, message: str | None = None) -> Steps:
    """Return, in steps, the response with `code` for all of `request`. It is empty, as in Kafka, if the
    request names nothing, or if this version has no error code (DescribeLogDirs before v3). None if no
    version has one."""
    response = codec.response_class(api_key)()
    if not _has_code(response.SPEC):
        return None
    yield from _mirror(response, version, request, code, message)
    return response


def _has_code(spec: Any) -> bool:
    return any(
        field.name in CODES or (field.struct is not None and _has_code(field.struct)) for field in spec.fields
    )


def _mirror(target: Any, version: int, source: Any, code: int, message: str | None) -> Steps:
    """Fill one struct of the response from the corresponding one in the request."""
    for field in target.SPEC.fields:
        if not field.versions[0] <= version <= field.versions[1]:
            continue
        if field.name in CODES:
            setattr(target, field.name, code)
        elif field.name == "error_message":
            target.error_message = message
        elif field.name in NO_OFFSETS:
            setattr(target, field.name, -1)
        elif field.struct is not None and isinstance(getattr(target, field.name), list):
            if (target.SPEC.path, field.name) in NULL:
                setattr(target, field.name, None)
                continue
            asked = RENAMED.get((target.SPEC.path, field.name), (field.name,))
            for element in [element for name in asked for element in _elements(source, name)]:
                child = field.struct.cls()
                yield from _mirror(child, version, element, code, message)
                getattr(target, field.name).append(child)
                yield
        elif field.name in ("user", "topic_name") and hasattr(source, "name"):
            setattr(target, field.name, source.name)
        elif field.name in NAMES and type(source) is type(getattr(target, field.name)):
            setattr(target, field.name, source)
        elif field.struct is None and field.name != "throttle_time_ms" and hasattr(source, field.name):
            value = getattr(source, field.name)
            if not isinstance(value, list):
                setattr(target, field.name, value)


def _elements(source: Any, name: str) -> list[Any]:
    """Return the elements of an array of the request, or of all arrays `b` in an array `a` for "a.b"."""
    first, _, rest = name.partition(".")
    elements = list(getattr(source, first, None) or ())
    return [inner for each in elements for inner in _elements(each, rest)] if rest else elements
