"""DescribeQuorum (key 55), v0-2: the leader of the metadata quorum, and how far each node has its log
(KIP-595, KIP-836).   v1 times of fetches, v2 directories and the addresses of voters.

Only the leader can answer. Kafka: LeaderState.describeQuorum, DescribeQuorumResponse. Pure."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkad.protocol import errors, messages

if TYPE_CHECKING:
    from kafkad.raft.node import RaftNode

TOPIC: Final = "__cluster_metadata"
STEP: Final = 200  # topics and partitions before others may run
WITH_DIRECTORIES: Final = 2  # version with the directories and endpoints of voters


class Replica(NamedTuple):
    """A replica of the metadata log, as its leader knows it. Times are Unix times in ms; -1: unknown."""

    replica_id: int
    directory_id: bytes
    end_offset: int
    fetched_ms: int
    caught_up_ms: int


class Quorum(NamedTuple):
    """The quorum, as its leader knows it. `nodes`: (host, port) by listener of each voter."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: Sequence[Replica]
    observers: Sequence[Replica]
    nodes: Sequence[tuple[int, Mapping[str, tuple[str, int]]]]


def describe_quorum(
    request: Any, version: int, look: Callable[[], Quorum | None]
) -> Generator[None, None, Any]:
    """Return DescribeQuorumResponse, in steps. `look` returns None at a node that does not lead."""
    cls = messages.DescribeQuorumResponse
    topic, part = cls.Topics, cls.Topics.Partitions
    if not _is_ours(request.topics):
        return (yield from _refused(request.topics, errors.UNKNOWN_TOPIC_OR_PARTITION))
    quorum = look()
    if quorum is None:
        return (yield from _refused(request.topics, errors.NOT_LEADER_OR_FOLLOWER))

    def rows(kind: Any, replicas: Sequence[Replica]) -> list[Any]:
        return [
            kind(
                replica_id=replica.replica_id,
                **({"replica_directory_id": replica.directory_id} if version >= WITH_DIRECTORIES else {}),
                log_end_offset=replica.end_offset,
                last_fetch_timestamp=replica.fetched_ms,
                last_caught_up_timestamp=replica.caught_up_ms,
            )
            for replica in replicas
        ]

    partition = part(
        partition_index=0,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        current_voters=rows(part.CurrentVoters, quorum.voters),
        observers=rows(part.Observers, quorum.observers),
    )
    response = cls(error_message=None, topics=[topic(topic_name=TOPIC, partitions=[partition])])
    if version >= WITH_DIRECTORIES:
        listener = cls.Nodes.Listeners
        response.nodes = [
            cls.Nodes(
                node_id=node_id,
                listeners=[
                    listener(name=name, host=host, port=port) for name, (host, port) in places.items()
                ],
            )
            for node_id, places in quorum.nodes
        ]
    return response


def seen_by(node: "RaftNode", now_ms: int, wall_ms: int) -> Quorum | None:
    """Return the quorum that `node` leads. `now_ms` is monotonic, `wall_ms` is Unix time."""
    leadership = node.leadership
    if leadership is None:
        return None
    places = node.voters

    def replica(replica_id: int, directory_id: bytes, progress: Any) -> Replica:
        fetched_ms = _wall(progress.fetched_ms, now_ms, wall_ms)
        caught_up_ms = _wall(progress.caught_up_ms, now_ms, wall_ms)
        return Replica(replica_id, directory_id, progress.end_offset, fetched_ms, caught_up_ms)

    voters = [
        replica(voter, places[voter].directory_id, progress)
        if voter != node.node_id
        else Replica(voter, places[voter].directory_id, node.end_offset, wall_ms, wall_ms)
        for voter, progress in sorted(leadership.voters.items())
        if voter in places
    ]
    observers = [
        replica(observer, directory_id, progress)
        for (observer, directory_id), progress in sorted(leadership.observers.items())
    ]
    nodes = [(voter.voter_id, voter.endpoints) for voter in node.voter_set] or [
        (voter, {node.listener: (at.host, at.port)}) for voter, at in sorted(places.items())
    ]
    return Quorum(node.node_id, node.epoch, leadership.high_watermark, voters, observers, nodes)


def _is_ours(topics: Sequence[Any]) -> bool:
    """Whether a request asks for the metadata log, and for nothing else."""
    return (
        len(topics) == 1
        and topics[0].topic_name == TOPIC
        and len(topics[0].partitions) == 1
        and topics[0].partitions[0].partition_index == 0
    )


def _refused(topics: Sequence[Any], code: int) -> Generator[None, None, Any]:
    """Return the response with this error for each partition. As in Kafka, the request has none."""
    cls = messages.DescribeQuorumResponse
    response = cls(error_message=None)
    row, number = cls.Topics.Partitions, 0
    for asked in topics:
        answer = cls.Topics(topic_name=asked.topic_name)
        response.topics.append(answer)
        number += 1
        if number % STEP == 0:
            yield
        for partition in asked.partitions:
            answer.partitions.append(
                row(partition_index=partition.partition_index, error_code=code, error_message=None)
            )
            number += 1
            if number % STEP == 0:
                yield
    return response


def _wall(monotonic_ms: int, now_ms: int, wall_ms: int) -> int:
    return -1 if monotonic_ms < 0 else wall_ms - (now_ms - monotonic_ms)
