"""DescribeQuorum: the leader of the metadata quorum, and how far each node has its log (KIP-595, KIP-836).

Only the leader can answer. Kafka: LeaderState.describeQuorum, DescribeQuorumResponse. Pure."""

from typing import Any

from kafkad.protocol import errors, messages
from kafkad.raft.node import RaftNode
from kafkad.raft.observer import TOPIC

VOTERS_ARE_NODES = 2  # version with the endpoints of voters


def describe_quorum(node: RaftNode, version: int, request: Any, now_ms: int, wall_ms: int) -> Any:
    """Return DescribeQuorumResponse. `now_ms` is monotonic, `wall_ms` is Unix time."""
    cls = messages.DescribeQuorumResponse
    topic, part = cls.Topics, cls.Topics.Partitions
    asked = [(each.topic_name, [p.partition_index for p in each.partitions]) for each in request.topics]
    if asked != [(TOPIC, [0])]:
        return _refused(asked, errors.UNKNOWN_TOPIC_OR_PARTITION)
    leadership = node.leadership
    if leadership is None:
        return _refused(asked, errors.NOT_LEADER_OR_FOLLOWER)
    places = node.voters

    def replica(kind: Any, replica_id: int, directory_id: bytes, progress: Any) -> Any:
        us = replica_id == node.node_id and kind is part.CurrentVoters
        return kind(
            replica_id=replica_id,
            replica_directory_id=directory_id,
            log_end_offset=node.end_offset if us else progress.end_offset,
            last_fetch_timestamp=wall_ms if us else _wall(progress.fetched_ms, now_ms, wall_ms),
            last_caught_up_timestamp=wall_ms if us else _wall(progress.caught_up_ms, now_ms, wall_ms),
        )

    partition = part(
        partition_index=0,
        error_message=None,
        leader_id=node.node_id,
        leader_epoch=node.epoch,
        high_watermark=leadership.high_watermark,
        current_voters=[
            replica(part.CurrentVoters, voter, places[voter].directory_id, progress)
            for voter, progress in sorted(leadership.voters.items())
            if voter in places
        ],
        observers=[
            replica(part.Observers, observer, directory_id, progress)
            for (observer, directory_id), progress in sorted(leadership.observers.items())
        ],
    )
    response = cls(error_message=None, topics=[topic(topic_name=TOPIC, partitions=[partition])])
    if version >= VOTERS_ARE_NODES:
        listener = cls.Nodes.Listeners
        response.nodes = [
            cls.Nodes(
                node_id=voter.voter_id,
                listeners=[
                    listener(name=name, host=host, port=port)
                    for name, (host, port) in voter.endpoints.items()
                ],
            )
            for voter in node.voter_set
        ] or [
            cls.Nodes(node_id=voter, listeners=[listener(name=node.listener, host=at.host, port=at.port)])
            for voter, at in sorted(places.items())
        ]
    return response


def _refused(asked: list[tuple[str, list[int]]], code: int) -> Any:
    """Return the response with this error for each partition. As in Kafka, the request has none."""
    cls = messages.DescribeQuorumResponse
    topic, part = cls.Topics, cls.Topics.Partitions
    return cls(
        error_message=None,
        topics=[
            topic(
                topic_name=name,
                partitions=[
                    part(partition_index=index, error_code=code, error_message=None) for index in indexes
                ],
            )
            for name, indexes in asked
        ],
    )


def _wall(monotonic_ms: int, now_ms: int, wall_ms: int) -> int:
    return -1 if monotonic_ms < 0 else wall_ms - (now_ms - monotonic_ms)
