"""Assignments: what the metadata requires of this broker, partition by partition.

    of_image    at the start: every partition that has a replica here
    of_delta    after a change: first the partitions to delete, then those whose epoch differs

The role follows from the state: the broker that is `state.leader` leads, every other replica follows, even
while there is no leader (Kafka: TopicDelta.localChanges). A partition's epoch rises with each of its changes,
so an equal epoch means that there is nothing to do.

Both are iterators, so that a change of 10,000 partitions can be interrupted; None is a step that found
nothing for this broker.

Use: replication/partitions."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kafkad.metadata.image import MetadataImage, PartitionState, Topic
from kafkad.metadata.replay import Delta


class Delete(NamedTuple):
    """A replica that is no longer here: its topic was deleted, or a reassignment removed it."""

    topic: str
    topic_id: bytes
    partition: int


class Local(NamedTuple):
    """A partition that has a replica here."""

    topic: Topic
    partition: int
    state: PartitionState
    is_new: bool  # the replica: it has no data yet, in any directory

    def leads(self, broker_id: int) -> bool:
        return self.state.leader == broker_id


Assignments = Iterator[Delete | Local | None]


def of_image(image: MetadataImage, broker_id: int) -> Assignments:
    for topic in image.topics.values():
        for index, state in topic.partitions.items():
            yield Local(topic, index, state, False) if broker_id in state.replicas else None


def of_delta(delta: Delta, old: MetadataImage | None, new: MetadataImage, broker_id: int) -> Assignments:
    """Yield the changes from `old` to `new`; deletions come first, because a name may come back with a new
    id."""
    for topic in delta.topics_deleted:
        for index in topic.partitions:
            yield Delete(topic.name, topic.topic_id, index)
    for topic_id, index in _changed(delta, new):
        topic = new.topics_by_id[topic_id]
        before = _state(old, topic_id, index)
        was_here = before is not None and broker_id in before.replicas
        if was_here and broker_id not in topic.partitions[index].replicas:
            yield Delete(topic.name, topic_id, index)
    for topic_id, index in _changed(delta, new):
        topic = new.topics_by_id[topic_id]
        state = topic.partitions[index]
        before = _state(old, topic_id, index)
        is_new = before is None or broker_id not in before.replicas
        if broker_id not in state.replicas or (not is_new and before == state):
            yield None
        else:
            yield Local(topic, index, state, is_new)


def _changed(delta: Delta, image: MetadataImage) -> Iterable[tuple[bytes, int]]:
    return (
        (topic_id, index)
        for topic_id, indexes in delta.partitions_changed.items()
        if topic_id in image.topics_by_id
        for index in sorted(indexes)
    )


def _state(image: MetadataImage | None, topic_id: bytes, index: int) -> PartitionState | None:
    topic = None if image is None else image.topics_by_id.get(topic_id)
    return None if topic is None else topic.partitions.get(index)
