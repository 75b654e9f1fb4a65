"""The image: the contents of the metadata log up to one offset.

An image never changes. `apply` returns a new one that shares every part which no record changed (copy on
write, where a part is a dict): creating one topic among 10,000 copies two dicts of pointers, which takes some
hundred microseconds. So a handler reads `services.metadata.image` once and sees one consistent cluster until
it is done.

Parts that this broker does not use yet (ACLs, SCRAM credentials, quotas, delegation tokens) are kept as the
messages in which they came, and records of an unknown type as their bytes: `records()` writes all of it to
our snapshots.

Beware: the dicts of an image are shared with its descendants. Never write to them.
"""

import marshal
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafkad.metadata.features import (
    DIRECTORY_ASSIGNMENT,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
)
from kafkad.metadata.records import UnknownRecord
from kafkad.protocol import messages

NO_LEADER: Final = -1
RECOVERED: Final = 0
RECOVERING: Final = 1

# ConfigResource.Type
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

# reserved directory ids (Kafka: DirectoryId)
DIRECTORY_MIGRATING: Final = bytes(16)
DIRECTORY_UNASSIGNED: Final = bytes(15) + b"\x01"
DIRECTORY_LOST: Final = bytes(15) + b"\x02"

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

Config = tuple[int, str]


class Endpoint(NamedTuple):
    host: str
    port: int
    security_protocol: int


class BrokerRegistration(NamedTuple):
    """One broker as it last registered; `epoch` is the offset of its registration."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    listeners: dict[str, Endpoint]
    features: dict[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    migrating_from_zk: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...] | None

    @property
    def active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def placeable(self) -> bool:
        """Whether new replicas may be placed here: there is a directory that is not cordoned (KIP-1066)."""
        if not self.directories or not self.cordoned_directories:
            return True
        return not set(self.directories) <= set(self.cordoned_directories)

    def has_online(self, directory: bytes) -> bool:
        """Return as Kafka's DirectoryId.isOnline. Without a list of directories (before KIP-858) all are
        online."""
        if directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED):
            return True
        if directory == DIRECTORY_LOST:
            return False
        return not self.directories or directory in self.directories


class ControllerRegistration(NamedTuple):
    controller_id: int
    incarnation_id: bytes
    zk_migration_ready: bool
    listeners: dict[str, Endpoint]
    features: dict[str, tuple[int, int]]


class PartitionState(NamedTuple):
    """One partition; `directories[i]` has the replica on broker `replicas[i]`."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    partition_epoch: int
    leader_recovery_state: int = RECOVERED
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory(self, broker_id: int) -> bytes:
        return self.directories[self.replicas.index(broker_id)]


class Topic:
    """A topic and its partitions, by index. Never changed once it is in an image."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: dict[int, PartitionState]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.topic_id.hex()}, {self.partitions!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topic) and (self.name, self.topic_id, self.partitions) == (
            other.name,
            other.topic_id,
            other.partitions,
        )

    __hash__ = None  # type: ignore[assignment]


class MetadataImage:
    """The cluster's metadata up to and including `offset` (-1: nothing yet), which was written in `epoch`."""

    PARTS: Final = (
        "features",
        "brokers",
        "controllers",
        "topics",
        "topics_by_id",
        "configs",
        "client_quotas",
        "acls",
        "scram_credentials",
        "delegation_tokens",
        "unknown",
    )
    __slots__ = (
        *PARTS,
        "cluster_id",
        "controller_id",
        "epoch",
        "kraft_version",
        "next_producer_id",
        "offset",
        "timestamp_ms",
    )

    def __init__(self, cluster_id: str = "", controller_id: int = -1) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.offset = -1
        self.epoch = -1
        self.timestamp_ms = -1  # append time of the last batch
        self.kraft_version = 0  # of the quorum that wrote the log; it is not in `features`
        self.features: dict[str, int] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.controllers: dict[int, ControllerRegistration] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}
        self.configs: dict[Config, dict[str, str]] = {}
        self.client_quotas: dict[tuple[Any, ...], Any] = {}
        self.acls: dict[bytes, Any] = {}
        self.scram_credentials: dict[tuple[int, str], Any] = {}
        self.delegation_tokens: dict[str, Any] = {}
        self.unknown: dict[int, UnknownRecord] = {}  # by order of arrival
        self.next_producer_id = -1  # -1: no block was allocated yet

    def copy(self) -> "MetadataImage":
        """Return a new image that shares all parts with this one."""
        image = MetadataImage.__new__(MetadataImage)
        for name in MetadataImage.__slots__:
            setattr(image, name, getattr(self, name))
        return image

    @property
    def metadata_version(self) -> int:
        """The finalized level of metadata.version; 0 if there is none yet."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def elr_enabled(self) -> bool:
        return self.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1

    def pack_topics(self) -> bytes:
        """Encode all topics for `unpack_topics` in another process of this broker. Thousands of partitions
        share a few states; records, which are encoded and decoded one by one, take 50 times as long."""
        numbers: dict[PartitionState, int] = {}
        topics = [
            (
                topic.name,
                topic.topic_id,
                list(topic.partitions),
                [numbers.setdefault(state, len(numbers)) for state in topic.partitions.values()],
            )
            for topic in self.topics.values()
        ]
        return marshal.dumps((list(map(tuple, numbers)), topics))

    def unpack_topics(self, packed: bytes | memoryview) -> None:
        """Fill a new image that is not shared yet."""
        states, topics = marshal.loads(packed)
        states = list(map(PartitionState._make, states))
        self.topics = {
            name: Topic(name, topic_id, dict(zip(indexes, map(states.__getitem__, numbers), strict=True)))
            for name, topic_id, indexes, numbers in topics
        }
        self.topics_by_id = {topic.topic_id: topic for topic in self.topics.values()}

    def records(self, *, topics: bool = True) -> Iterator[Any]:
        """Yield the records from which this image can be rebuilt, in the order of Kafka's snapshots; without
        `topics`, no records of topics and partitions."""
        level = self.metadata_version
        if level:
            yield messages.FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
        for name, other in self.features.items():
            if name != METADATA_VERSION:
                yield messages.FeatureLevelRecord(name=name, feature_level=other)
        yield from map(broker_record, self.brokers.values())
        yield from map(controller_record, self.controllers.values())
        for topic in self.topics.values() if topics else ():
            yield messages.TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for index, state in topic.partitions.items():
                yield partition_record(topic.topic_id, index, state, self.metadata_version)
        for (kind, name), config in self.configs.items():
            for key, value in config.items():
                yield messages.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        yield from self.client_quotas.values()
        if self.next_producer_id >= 0:
            yield messages.ProducerIdsRecord(
                broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
        yield from self.acls.values()
        yield from self.scram_credentials.values()
        yield from self.delegation_tokens.values()
        yield from self.unknown.values()


def broker_record(broker: BrokerRegistration) -> Any:
    cls = messages.RegisterBrokerRecord
    return cls(
        broker_id=broker.broker_id,
        is_migrating_zk_broker=broker.migrating_from_zk,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            cls.EndPoints(
                name=name, host=point.host, port=point.port, security_protocol=point.security_protocol
            )
            for name, point in broker.listeners.items()
        ],
        features=[
            cls.Features(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if broker.cordoned_directories is None else list(broker.cordoned_directories),
    )


def controller_record(controller: ControllerRegistration) -> Any:
    cls = messages.RegisterControllerRecord
    return cls(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=[
            cls.EndPoints(
                name=name, host=point.host, port=point.port, security_protocol=point.security_protocol
            )
            for name, point in controller.listeners.items()
        ],
        features=[
            cls.Features(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ],
    )


def partition_record(topic_id: bytes, index: int, state: PartitionState, level: int) -> Any:
    """`level`: of metadata.version. Below DIRECTORY_ASSIGNMENT it has no directories."""
    return messages.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(state.replicas),
        isr=list(state.isr),
        removing_replicas=list(state.removing_replicas),
        adding_replicas=list(state.adding_replicas),
        leader=state.leader,
        leader_recovery_state=state.leader_recovery_state,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=list(state.directories) if level >= DIRECTORY_ASSIGNMENT else [],
        # tagged fields: written only if not empty, as in Kafka
        eligible_leader_replicas=list(state.elr) or None,
        last_known_elr=list(state.last_known_elr) or None,
    )
