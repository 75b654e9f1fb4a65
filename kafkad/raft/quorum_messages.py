"""The requests and responses of a quorum, each about the single partition of the metadata log.

    asked(request)     its partition, or None: the request is about something else
    told(response)     the same for a response
    answer(...)        a response that names the leader and its address

Kafka: RaftUtil. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kafkad.protocol import messages
from kafkad.raft.observer import TOPIC, TOPIC_ID

Vote = messages.VoteRequest
Begin = messages.BeginQuorumEpochRequest
End = messages.EndQuorumEpochRequest
Fetch = messages.FetchRequest
FetchSnapshot = messages.FetchSnapshotRequest

RESPONSES: Final[dict[Any, Any]] = {
    Vote: messages.VoteResponse,
    Begin: messages.BeginQuorumEpochResponse,
    End: messages.EndQuorumEpochResponse,
    Fetch: messages.FetchResponse,
    FetchSnapshot: messages.FetchSnapshotResponse,
}


Reply = Callable[[Any], Any]


class LeaderAndEpoch(NamedTuple):
    """The leader of an epoch, and its address: part of every response. `leader_id` -1: not known."""

    epoch: int
    leader_id: int
    host: str = ""
    port: int = 0


class InFlightRequest(NamedTuple):
    """A request that was sent and not answered yet."""

    node_id: int
    kind: Any
    epoch: int
    deadline_ms: int
    end_offset: int  # of our log when it was sent


class Parked(NamedTuple):
    """A Fetch that waits for records or a higher high watermark."""

    request: Any
    partition: Any  # of the request
    response: Any  # as of its arrival; also the answer if nothing happens
    reply: Reply
    deadline_ms: int


def asked(request: Any) -> Any | None:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    if type(request) is Fetch:
        known = topic.topic_id == TOPIC_ID or topic.topic == TOPIC
    else:
        known = (topic.name if type(request) is FetchSnapshot else topic.topic_name) == TOPIC
    partition = topic.partitions[0]
    index = partition.partition if type(request) in (Fetch, FetchSnapshot) else partition.partition_index
    return partition if known and index == 0 else None


def told(response: Any) -> Any | None:
    topics = response.responses if type(response) is messages.FetchResponse else response.topics
    return topics[0].partitions[0] if len(topics) == 1 and len(topics[0].partitions) == 1 else None


def error_response(request: Any, code: int) -> Any:
    """Return a response with an error for the whole request."""
    return RESPONSES[type(request)](error_code=code)


def answer(request: Any, code: int, current: LeaderAndEpoch, **fields: Any) -> Any:
    """Return a response about the partition, with `fields` in the partition's part."""
    cls = RESPONSES[type(request)]
    endpoints = [cls.NodeEndpoints(node_id=current.leader_id, host=current.host, port=current.port)]
    nodes = endpoints if current.leader_id >= 0 and current.host else []
    if type(request) is Fetch:
        part = cls.Responses.Partitions
        leader = part.CurrentLeader(leader_id=current.leader_id, leader_epoch=current.epoch)
        partition = part(partition_index=0, error_code=code, current_leader=leader, **fields)
        topic = cls.Responses(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
        return cls(responses=[topic], node_endpoints=nodes)
    part = cls.Topics.Partitions
    if type(request) is FetchSnapshot:
        leader = part.CurrentLeader(leader_id=current.leader_id, leader_epoch=current.epoch)
        partition = part(index=0, error_code=code, current_leader=leader, **fields)
        return cls(topics=[cls.Topics(name=TOPIC, partitions=[partition])], node_endpoints=nodes)
    partition = part(
        partition_index=0,
        error_code=code,
        leader_id=current.leader_id,
        leader_epoch=current.epoch,
        **fields,
    )
    return cls(topics=[cls.Topics(topic_name=TOPIC, partitions=[partition])], node_endpoints=nodes)


def vote(
    cluster_id: str,
    voter: tuple[int, bytes],
    me: tuple[int, bytes],
    epoch: int,
    last: tuple[int, int],
    *,
    pre_vote: bool,
) -> Any:
    """Return a Vote request. `last`: (epoch, end offset) of our log."""
    partition = Vote.Topics.Partitions(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=me[0],
        replica_directory_id=me[1],
        voter_directory_id=voter[1],
        last_offset_epoch=last[0],
        last_offset=last[1],
        pre_vote=pre_vote,
    )
    topic = Vote.Topics(topic_name=TOPIC, partitions=[partition])
    return Vote(cluster_id=cluster_id, voter_id=voter[0], topics=[topic])


def begin_epoch(
    cluster_id: str,
    voter: tuple[int, bytes],
    leader_id: int,
    epoch: int,
    endpoints: Mapping[str, tuple[str, int]],
) -> Any:
    partition = Begin.Topics.Partitions(
        partition_index=0, voter_directory_id=voter[1], leader_id=leader_id, leader_epoch=epoch
    )
    return Begin(
        cluster_id=cluster_id,
        voter_id=voter[0],
        topics=[Begin.Topics(topic_name=TOPIC, partitions=[partition])],
        leader_endpoints=[
            Begin.LeaderEndpoints(name=name, host=host, port=port) for name, (host, port) in endpoints.items()
        ],
    )


def end_epoch(
    cluster_id: str,
    leader_id: int,
    epoch: int,
    successors: Iterable[tuple[int, bytes]],
    endpoints: Mapping[str, tuple[str, int]],
) -> Any:
    part = End.Topics.Partitions
    named = list(successors)
    partition = part(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_successors=[each for each, _ in named],
        preferred_candidates=[
            part.PreferredCandidates(candidate_id=each, candidate_directory_id=directory)
            for each, directory in named
        ],
    )
    return End(
        cluster_id=cluster_id,
        topics=[End.Topics(topic_name=TOPIC, partitions=[partition])],
        leader_endpoints=[
            End.LeaderEndpoints(name=name, host=host, port=port) for name, (host, port) in endpoints.items()
        ],
    )
