"""Read and commit offsets: of partitions (ListOffsets) and of groups (OffsetFetch, OffsetCommit)."""

from typing import Any

from kafkad.client.cluster import Cluster
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

# special timestamps
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

COMMIT_VERSION_MAX = 9  # topics by name; ids begin with 10
FETCH_VERSION_MAX = 9
STABLE_FROM = 7  # OffsetFetch

TopicPartition = tuple[str, int]


def list_offsets(cluster: Cluster, topic: str, at: dict[int, int], isolation: int = 0) -> dict[int, int]:
    """Return each partition's offset for a timestamp (ms) or LATEST, EARLIEST or MAX_TIMESTAMP; -1 if there
    is none."""

    def look() -> dict[int, int]:
        found: dict[int, int] = {}
        struct = messages.ListOffsetsRequest.Topics
        for connection, partitions in cluster.by_leader(topic, list(at)):
            asked = [struct.Partitions(partition_index=p, timestamp=at[p]) for p in partitions]
            version = connection.version_for(messages.ListOffsetsRequest)
            request = messages.ListOffsetsRequest(
                replica_id=-1, topics=[struct(name=topic, partitions=asked)]
            )
            if version >= 2:
                request.isolation_level = isolation
            for answer in connection.ask(request, version).topics[0].partitions:
                if answer.error_code:
                    raise KafkaError(answer.error_code, f"{topic}-{answer.partition_index}")
                found[answer.partition_index] = answer.offset
        return found

    return cluster.retry(look)


def by_topic(partitions: list[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: list[TopicPartition] | None = None,
    *,
    stable: bool = False,
) -> dict[TopicPartition, int]:
    """Return a group's committed offsets, for these partitions or for all. With `stable`, wait for open
    transactions that may change them (KIP-447), if the broker supports it."""
    found = committed(cluster, group, partitions, stable=stable)
    return {where: offset for where, (offset, _) in found.items()}


def committed(
    cluster: Cluster,
    group: str,
    partitions: list[TopicPartition] | None = None,
    *,
    stable: bool = False,
) -> dict[TopicPartition, tuple[int, str]]:
    """The same, with the metadata of each offset."""

    def look() -> dict[TopicPartition, tuple[int, str]]:
        connection = cluster.coordinator(group)
        version = connection.version_for(messages.OffsetFetchRequest, FETCH_VERSION_MAX)
        request = messages.OffsetFetchRequest
        struct: Any = request.Groups.Topics if version >= 8 else request.Topics
        asked = None
        if partitions is not None:
            asked = [struct(name=t, partition_indexes=p) for t, p in by_topic(partitions).items()]
        is_stable = stable and version >= STABLE_FROM
        if version >= 8:
            named = request.Groups(group_id=group, topics=asked)
            found = connection.ask(request(groups=[named], require_stable=is_stable), version).groups[0]
        else:
            found = connection.ask(request(group_id=group, topics=asked, require_stable=is_stable), version)
        if found.error_code:
            raise KafkaError(found.error_code, f"group {group!r}")
        offsets = {}
        for topic in found.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise KafkaError(p.error_code, f"{topic.name}-{p.partition_index}")
                if p.committed_offset >= 0:
                    offsets[topic.name, p.partition_index] = (p.committed_offset, p.metadata or "")
        return offsets

    return cluster.retry(look)


def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: dict[TopicPartition, int],
    *,
    member_id: str = "",
    generation: int = -1,
) -> None:
    """Commit offsets by one OffsetCommit, as a member or, without a member id, for a group without members.
    Raise KafkaError for the first partition that was refused.
    """
    request = messages.OffsetCommitRequest
    topics = []
    for topic, partitions in by_topic(list(offsets)).items():
        struct = request.Topics.Partitions
        rows = [struct(partition_index=p, committed_offset=offsets[topic, p]) for p in partitions]
        topics.append(request.Topics(name=topic, partitions=rows))
    connection = cluster.coordinator(group)
    response = connection.ask(
        request(group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, topics=topics),
        connection.version_for(request, COMMIT_VERSION_MAX),
    )
    for told in response.topics:
        for partition in told.partitions:
            if partition.error_code != errors.NONE:
                raise KafkaError(partition.error_code, f"{told.name}-{partition.partition_index}")
