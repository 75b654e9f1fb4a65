"""Replay: turns metadata records into the next image.

`Replay` takes one image and any number of records, and copies a part of the image when a record first changes
it. `Loader` uses it, and handles batches and metadata transactions (KIP-868): records between
BeginTransaction and EndTransaction take effect at the end, or not at all.

Rule: a record that contradicts the image (a change of a partition that does not exist, or of a broker in
another epoch) raises ReplayError. The controller that wrote the log used the same image, so such a record
comes from a faulty controller, or from a log and a snapshot that do not belong together.

A controller appends no such record. A start that finds one in the log skips it if it is Superfluous: what it
requests is so already, or concerns something that is gone, so the image without it hides no partition. Others
are not skipped: a partition of an unknown topic would become a stray directory, which its clients could not
reach. (Kafka: a broker logs the record and skips it; a node that is a controller as well ends, and ends again
at each start. MetadataBatchLoader, SharedServer.metadataLoaderFaultHandler.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from kafkad.metadata.features import METADATA_VERSION
from kafkad.metadata.image import (
    DIRECTORY_MIGRATING,
    TOPIC,
    BrokerRegistration,
    Config,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    Topic,
)
from kafkad.metadata.records import PartitionLike, UnknownRecord
from kafkad.protocol import messages
from kafkad.protocol.errors import Malformed

NO_LEADER_CHANGE: Final = -2


class ReplayError(Malformed):
    """A metadata record that contradicts the image."""


class Superfluous(ReplayError):
    """A record that cannot be applied, and without which the image is right."""


class Delta:
    """The changes of one `apply`. Topic names are those of the new image, Topics those of the old one."""

    __slots__ = (
        "acls_changed",
        "brokers_changed",
        "configs_changed",
        "features_changed",
        "partitions_changed",
        "quotas_changed",
        "security_changed",
        "topics_changed",
        "topics_created",
        "topics_deleted",
    )

    def __init__(self) -> None:
        self.topics_created: set[str] = set()
        self.topics_changed: set[str] = set()  # created, or with a partition added or changed
        self.topics_deleted: list[Topic] = []  # as they were
        self.partitions_changed: dict[bytes, set[int]] = {}  # of these topics, by id; including created ones
        self.configs_changed: set[Config] = set()  # (resource type, name)
        self.brokers_changed: set[int] = set()
        self.features_changed: bool = False
        self.acls_changed: set[bytes] = set()  # their ids
        self.quotas_changed: set[Any] = set()  # keys of image.client_quotas
        self.security_changed: bool = False  # ACLs, SCRAM credentials, tokens or quotas

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in Delta.__slots__)

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in Delta.__slots__ if getattr(self, name))
        return f"Delta({', '.join(parts)})"


class Replay:
    """The way from one image to the next. `finish` may be called once."""

    def __init__(self, base: MetadataImage, left_out: Callable[[ReplayError], None] | None = None) -> None:
        """`left_out` is called with the parts of records that are skipped."""
        self._image = base.copy()
        self._left_out = left_out
        self._own: set[str] = set()  # parts of the image that this replay may change
        self._own_topics: set[bytes] = set()
        self._own_configs: set[Config] = set()
        self._shared: dict[
            Any, Any
        ] = {}  # equal tuples are stored once: 10,000 partitions have the same replicas
        self._states: dict[PartitionState, PartitionState] = {}  # the same for partition states
        self._copied: dict[int, tuple[Any, PartitionState]] = {}  # by the id of a record that others resemble
        self._delta = Delta()

    def apply(self, record: Any) -> None:
        """Apply one record. Raises ReplayError."""
        _HANDLERS[type(record)](self, record)

    def finish(self, offset: int, epoch: int, timestamp_ms: int) -> tuple[MetadataImage, Delta]:
        image, delta = self._image, self._delta
        image.offset, image.epoch = offset, epoch
        if timestamp_ms >= 0:
            image.timestamp_ms = timestamp_ms
        delta.topics_changed &= image.topics.keys()
        delta.topics_created &= image.topics.keys()
        del self._image, self._delta
        return image, delta

    def _part(self, name: str) -> Any:
        """Return a part of the image that may be changed."""
        part = getattr(self._image, name)
        if name not in self._own:
            part = part.copy()
            setattr(self._image, name, part)
            self._own.add(name)
        return part

    def _share(self, value: Iterable[Any]) -> Any:
        part = tuple(value)
        return self._shared.setdefault(part, part)

    # -- features ------------------------------------------------------------------------------------------

    def _feature_level(self, record: Any) -> None:
        features = self._part("features")
        if record.feature_level == 0 and record.name != METADATA_VERSION:
            features.pop(record.name, None)
        else:
            features[record.name] = record.feature_level
        self._delta.features_changed = True

    # -- brokers and controllers ---------------------------------------------------------------------------

    def _register_broker(self, record: Any) -> None:
        cordoned = record.cordoned_log_dirs
        self._part("brokers")[record.broker_id] = BrokerRegistration(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_endpoints(record),
            features=_ranges(record),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            migrating_from_zk=record.is_migrating_zk_broker,
            directories=tuple(record.log_dirs),
            cordoned_directories=None if cordoned is None else tuple(cordoned),
        )
        self._delta.brokers_changed.add(record.broker_id)

    def _unregister_broker(self, record: Any) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._part("brokers")[record.broker_id]
        self._delta.brokers_changed.add(record.broker_id)

    def _fence_broker(self, record: Any) -> None:
        self._change_broker(self._broker(record.id, record.epoch), fenced=True)

    def _unfence_broker(self, record: Any) -> None:
        self._change_broker(self._broker(record.id, record.epoch), fenced=False)

    def _broker_registration_change(self, record: Any) -> None:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_directories"] = tuple(record.cordoned_log_dirs)
        self._change_broker(self._broker(record.broker_id, record.broker_epoch), **changes)

    def _broker(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self._image.brokers.get(broker_id)
        if broker is None:
            raise Superfluous(f"a metadata record changes broker {broker_id}, which is not registered")
        if broker.epoch != epoch:
            raise Superfluous(
                f"a metadata record changes epoch {epoch} of broker {broker_id}; its epoch is {broker.epoch}"
            )
        return broker

    def _change_broker(self, broker: BrokerRegistration, **changes: Any) -> None:
        self._part("brokers")[broker.broker_id] = broker._replace(**changes)
        self._delta.brokers_changed.add(broker.broker_id)

    def _register_controller(self, record: Any) -> None:
        self._part("controllers")[record.controller_id] = ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            listeners=_endpoints(record),
            features=_ranges(record),
        )

    # -- topics --------------------------------------------------------------------------------------------

    def _topic(self, record: Any) -> None:
        old = self._image.topics.get(record.name)
        if old is not None and old.topic_id != record.topic_id:
            raise ReplayError(
                f"a metadata record creates topic {record.name!r}, which exists under another id"
            )
        topic = Topic(record.name, record.topic_id, {} if old is None else dict(old.partitions))
        self._put_topic(topic)
        if old is None:
            self._delta.topics_created.add(topic.name)

    def _put_topic(self, topic: Topic) -> None:
        self._part("topics")[topic.name] = topic
        self._part("topics_by_id")[topic.topic_id] = topic
        self._own_topics.add(topic.topic_id)
        self._delta.topics_changed.add(topic.name)
        self._delta.partitions_changed.setdefault(topic.topic_id, set())

    def _changed(self, topic_id: bytes, index: int) -> dict[int, PartitionState]:
        """Return the partitions of a topic, of which `index` is about to change."""
        topic = self._topic_to_change(topic_id)
        self._delta.partitions_changed[topic_id].add(index)
        return topic.partitions

    def _topic_to_change(self, topic_id: bytes) -> Topic:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            raise ReplayError(f"a metadata record changes topic id {topic_id.hex()}, which is not known")
        if topic_id not in self._own_topics:
            topic = Topic(topic.name, topic_id, dict(topic.partitions))
            self._put_topic(topic)
        return topic

    def _remove_topic(self, record: Any) -> None:
        topic = self._image.topics_by_id.get(record.topic_id)
        if topic is None:
            raise Superfluous(
                f"a metadata record removes topic id {record.topic_id.hex()}, which is not known"
            )
        del self._part("topics")[topic.name]
        del self._part("topics_by_id")[topic.topic_id]
        self._delta.partitions_changed.pop(topic.topic_id, None)
        if (TOPIC, topic.name) in self._image.configs:
            del self._part("configs")[TOPIC, topic.name]
            self._own_configs.discard((TOPIC, topic.name))
            self._delta.configs_changed.add((TOPIC, topic.name))
        if topic.name in self._delta.topics_created:
            self._delta.topics_created.discard(topic.name)
        else:
            self._delta.topics_deleted.append(topic)

    def _partition(self, record: Any) -> None:
        self._changed(record.topic_id, record.partition_id)[record.partition_id] = self._state_of(record)

    def _partition_like(self, record: PartitionLike) -> None:
        known = self._copied.get(id(record.other))
        if known is None:
            known = self._copied[id(record.other)] = record.other, self._state_of(record.other)
        self._changed(record.topic_id, record.partition_id)[record.partition_id] = known[1]

    def _state_of(self, record: Any) -> PartitionState:
        replicas = self._share(record.replicas)
        state = PartitionState(
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            replicas=replicas,
            isr=self._share(record.isr),
            directories=self._directories(record.directories, replicas),
            partition_epoch=record.partition_epoch,
            leader_recovery_state=record.leader_recovery_state,
            removing_replicas=self._share(record.removing_replicas),
            adding_replicas=self._share(record.adding_replicas),
            elr=self._share(record.eligible_leader_replicas or ()),
            last_known_elr=self._share(record.last_known_elr or ()),
        )
        return self._states.setdefault(state, state)

    def _partition_change(self, record: Any) -> None:
        """Apply as Kafka's PartitionRegistration.merge. A record with a leader, even the same, raises the
        leader epoch."""
        known = self._image.topics_by_id.get(record.topic_id)
        if known is None:
            raise Superfluous(
                f"a metadata record changes topic id {record.topic_id.hex()}, which is not known"
            )
        old = known.partitions.get(record.partition_id)
        if old is None:
            raise Superfluous(
                f"a metadata record changes {known.name}-{record.partition_id}, which does not exist"
            )
        partitions = self._changed(record.topic_id, record.partition_id)
        elected = record.leader != NO_LEADER_CHANGE
        replicas = self._or(record.replicas, old.replicas)
        state = record.leader_recovery_state
        partitions[record.partition_id] = PartitionState(
            leader=record.leader if elected else old.leader,
            leader_epoch=old.leader_epoch + 1 if elected else old.leader_epoch,
            replicas=replicas,
            isr=self._or(record.isr, old.isr),
            directories=self._directories(self._or(record.directories, old.directories), replicas),
            partition_epoch=old.partition_epoch + 1,
            leader_recovery_state=old.leader_recovery_state if state < 0 else state,
            removing_replicas=self._or(record.removing_replicas, old.removing_replicas),
            adding_replicas=self._or(record.adding_replicas, old.adding_replicas),
            elr=self._or(record.eligible_leader_replicas, old.elr),
            last_known_elr=self._or(record.last_known_elr, old.last_known_elr),
        )

    def _or(self, value: list[Any] | None, old: tuple[Any, ...]) -> Any:
        return old if value is None else self._share(value)

    def _directories(self, directories: Iterable[bytes], replicas: tuple[int, ...]) -> Any:
        known = self._share(directories)
        if all(
            directory == DIRECTORY_MIGRATING for directory in known
        ):  # also if there are none (before KIP-858)
            return self._share(DIRECTORY_MIGRATING for _ in replicas)
        if len(known) != len(replicas):
            trouble = ReplayError(
                f"a metadata record names {len(known)} directories for {len(replicas)} replicas"
            )
            if self._left_out is None:
                raise trouble
            self._left_out(trouble)  # the partition is looked for in all directories
            return self._share(DIRECTORY_MIGRATING for _ in replicas)
        return known

    def _clear_elr(self, record: Any) -> None:
        if record.topic_name:
            topic = self._image.topics.get(record.topic_name)
            topics = [] if topic is None else [topic]
        else:
            topics = list(self._image.topics.values())
        for topic in topics:
            for index, state in list(topic.partitions.items()):
                if state.elr or state.last_known_elr:
                    self._changed(topic.topic_id, index)[index] = state._replace(
                        elr=(), last_known_elr=(), partition_epoch=state.partition_epoch + 1
                    )

    # -- configs, producer ids -----------------------------------------------------------------------------

    def _config(self, record: Any) -> None:
        resource = (record.resource_type, record.resource_name)
        configs = self._part("configs")
        if resource not in self._own_configs:
            configs[resource] = dict(configs.get(resource, {}))
            self._own_configs.add(resource)
        if record.value is None:
            configs[resource].pop(record.name, None)
            if not configs[resource]:
                del configs[resource]
                self._own_configs.discard(resource)
        else:
            configs[resource][record.name] = record.value
        self._delta.configs_changed.add(resource)

    def _producer_ids(self, record: Any) -> None:
        if record.next_producer_id <= self._image.next_producer_id:
            raise Superfluous(
                f"a metadata record gives out producer ids from {record.next_producer_id} on;"
                f" those below {self._image.next_producer_id} are taken"
            )
        self._image.next_producer_id = record.next_producer_id

    # -- parts that this broker does not use ---------------------------------------------------------------

    def _client_quota(self, record: Any) -> None:
        # a null name is the default entity, which is not the one with the empty name
        entity = sorted((e.entity_type, e.entity_name is None, e.entity_name or "") for e in record.entity)
        key = (tuple(entity), record.key)
        if record.remove:
            self._part("client_quotas").pop(key, None)
        else:
            self._part("client_quotas")[key] = record
        self._delta.quotas_changed.add(key)
        self._delta.security_changed = True

    def _acl(self, record: Any) -> None:
        self._keep("acls", record.id, record)
        self._delta.acls_changed.add(record.id)

    def _remove_acl(self, record: Any) -> None:
        self._drop("acls", record.id)
        self._delta.acls_changed.add(record.id)

    def _scram(self, record: Any) -> None:
        self._keep("scram_credentials", (record.mechanism, record.name), record)

    def _remove_scram(self, record: Any) -> None:
        self._drop("scram_credentials", (record.mechanism, record.name))

    def _token(self, record: Any) -> None:
        self._keep("delegation_tokens", record.token_id, record)

    def _remove_token(self, record: Any) -> None:
        self._drop("delegation_tokens", record.token_id)

    def _keep(self, part: str, key: Any, record: Any) -> None:
        self._part(part)[key] = record
        self._delta.security_changed = True

    def _drop(self, part: str, key: Any) -> None:
        self._part(part).pop(key, None)
        self._delta.security_changed = True

    def _unknown(self, record: UnknownRecord) -> None:
        unknown = self._part("unknown")
        unknown[max(unknown, default=-1) + 1] = record

    def _nothing(self, record: Any) -> None:
        pass


def _endpoints(record: Any) -> dict[str, Endpoint]:
    return {
        point.name: Endpoint(point.host, point.port, point.security_protocol) for point in record.end_points
    }


def _ranges(record: Any) -> dict[str, tuple[int, int]]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in record.features}


_HANDLERS: Final[dict[Any, Callable[[Replay, Any], None]]] = {
    messages.RegisterBrokerRecord: Replay._register_broker,
    messages.UnregisterBrokerRecord: Replay._unregister_broker,
    messages.TopicRecord: Replay._topic,
    messages.PartitionRecord: Replay._partition,
    messages.ConfigRecord: Replay._config,
    messages.PartitionChangeRecord: Replay._partition_change,
    messages.FenceBrokerRecord: Replay._fence_broker,
    messages.UnfenceBrokerRecord: Replay._unfence_broker,
    messages.RemoveTopicRecord: Replay._remove_topic,
    messages.DelegationTokenRecord: Replay._token,
    messages.UserScramCredentialRecord: Replay._scram,
    messages.FeatureLevelRecord: Replay._feature_level,
    messages.ClientQuotaRecord: Replay._client_quota,
    messages.ProducerIdsRecord: Replay._producer_ids,
    messages.BrokerRegistrationChangeRecord: Replay._broker_registration_change,
    messages.AccessControlEntryRecord: Replay._acl,
    messages.RemoveAccessControlEntryRecord: Replay._remove_acl,
    messages.NoOpRecord: Replay._nothing,
    messages.ZkMigrationStateRecord: Replay._nothing,
    messages.RemoveUserScramCredentialRecord: Replay._remove_scram,
    messages.BeginTransactionRecord: Replay._nothing,
    messages.EndTransactionRecord: Replay._nothing,
    messages.AbortTransactionRecord: Replay._nothing,
    messages.RemoveDelegationTokenRecord: Replay._remove_token,
    messages.RegisterControllerRecord: Replay._register_controller,
    messages.ClearElrRecord: Replay._clear_elr,
    PartitionLike: Replay._partition_like,
    UnknownRecord: Replay._unknown,
}


class Loader:
    """Images along a log: `feed` takes the records of one batch after the other.

    A batch may end inside a metadata transaction. Its records then wait, and `image` stays unchanged;
    `in_transaction` shows that no snapshot may be taken now.
    """

    def __init__(self, image: MetadataImage, left_out: Callable[[ReplayError], None] | None = None) -> None:
        """`left_out` is called with each Superfluous error; None: it is raised."""
        self._base = image
        self.left_out = left_out
        self._replay: Replay | None = None
        self._waiting: list[Any] | None = None  # records of the open transaction
        self._kept: list[Any] | None = None  # `_waiting` as of the last finish
        self.taken: list[Any] | None = None  # the records of the next image; None: not collected
        self._offset, self._epoch, self._timestamp_ms = image.offset, image.epoch, image.timestamp_ms

    @property
    def in_transaction(self) -> bool:
        return self._waiting is not None

    def feed(self, records: Iterable[Any], *, last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Apply one batch, whose last record has `last_offset`. Raises ReplayError."""
        for record in records:
            self._feed_one(record)
        self.skip(last_offset=last_offset, epoch=epoch, timestamp_ms=timestamp_ms)

    def feed_steps(
        self, records: Sequence[Any], step: int, *, last_offset: int, epoch: int, timestamp_ms: int
    ) -> Iterator[None]:
        """Do `feed`, with this many records per step."""
        for first in range(0, len(records), step):
            for record in records[first : first + step]:
                self._feed_one(record)
            yield
        self.skip(last_offset=last_offset, epoch=epoch, timestamp_ms=timestamp_ms)

    def _feed_one(self, record: Any) -> None:
        try:
            self._feed_strictly(record)
        except Superfluous as trouble:
            if self.left_out is None:
                raise
            self.left_out(trouble)

    def _feed_strictly(self, record: Any) -> None:
        kind = type(record)
        if kind is messages.BeginTransactionRecord:
            if self._waiting is not None:
                raise ReplayError("a metadata transaction begins inside another")
            self._waiting = []
        elif kind is messages.EndTransactionRecord:
            if self._waiting is None:
                raise Superfluous("a metadata transaction ends that never began")
            waiting, self._waiting = self._waiting, None
            for waited in waiting:
                self._feed_one(waited)
        elif kind is messages.AbortTransactionRecord:
            if self._waiting is None:
                raise Superfluous("a metadata transaction is aborted that never began")
            self._waiting = None
        elif self._waiting is not None:
            self._waiting.append(record)
        else:
            self._take(record)

    def skip(self, *, last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Skip a batch without metadata records: control records of the quorum."""
        self._offset, self._epoch, self._timestamp_ms = last_offset, epoch, timestamp_ms

    def _take(self, record: Any) -> None:
        if self._replay is None:
            self._replay = Replay(self._base, self.left_out)
        self._replay.apply(record)
        if self.taken is not None:
            self.taken.append(record)

    def finish(self) -> tuple[MetadataImage, Delta]:
        """Return the image of everything that was fed and is not waiting, and the changes since the last
        `finish`."""
        replay = self._replay or Replay(self._base)
        self._replay = None
        self._kept = None if self._waiting is None else list(self._waiting)
        self._base, delta = replay.finish(self._offset, self._epoch, self._timestamp_ms)
        return self._base, delta

    def forget(self) -> None:
        """Go back to the last `finish`: drop everything that was fed since."""
        self._replay = None
        self._waiting = None if self._kept is None else list(self._kept)
        image = self._base
        self._offset, self._epoch, self._timestamp_ms = image.offset, image.epoch, image.timestamp_ms


def applied(
    image: MetadataImage,
    records: Iterable[Any],
    *,
    offset: int | None = None,
    epoch: int | None = None,
    timestamp_ms: int = -1,
) -> tuple[MetadataImage, Delta]:
    """Return the image after `records`, and the changes. Raises ReplayError if they contradict `image`."""
    replay = Replay(image)
    for record in records:
        replay.apply(record)
    return replay.finish(
        image.offset if offset is None else offset, image.epoch if epoch is None else epoch, timestamp_ms
    )
