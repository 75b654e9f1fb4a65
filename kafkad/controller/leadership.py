"""Leadership: which partitions have replicas on a broker, and how its arrival or loss changes their leaders.

    Indexes            partitions by broker and by problem, kept in step with the head image
    leader_changes     the PartitionChangeRecords for a broker that leaves, comes back, or has lost its data
    plan_elect_leaders ElectLeaders (KIP-460), and the way out if the disks of a partition are lost
    plan_preferred     back to the preferred replicas, some at a time
    plan_unclean       leaders for partitions without one, if the topic allows unclean elections

Without indexes, fencing a broker would need a walk over all partitions of the cluster. They are built when a
controller becomes active, follow each change it appends, and are dropped when it is no longer active. Both
are done in steps: 50,000 partitions take 0.2 to 0.4 s.

Kafka: BrokersToIsrs, BrokersToElrs, ReplicationControlManager."""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

from kafkad.config.broker import BrokerConfig
from kafkad.controller.elections import acceptable_leader, change_of, default_directory
from kafkad.metadata.image import BROKER, NO_LEADER, TOPIC, MetadataImage, PartitionState, Topic
from kafkad.metadata.records import PartitionLike
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.strings import shown

PartitionKey = tuple[bytes, int]  # topic id, index
Plan = Generator[None, None, tuple[list[Any], Any]]

PREFERRED, UNCLEAN = 0, 1  # ElectLeadersRequest.election_type
NOBODY: Final = -1
ELECTIONS_MAX: Final = (
    1_000  # of one round of plan_preferred or plan_unclean; Kafka: MAX_ELECTIONS_PER_IMBALANCE
)
STEP: Final = 200  # partitions between two steps of a plan


class TopicSettings:
    """The two topic configurations that elections depend on. Each is the topic's own, or else the dynamic one
    of the controller's node or of all nodes, or else the static one."""

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self._configs = image.configs
        self._layers = [
            image.configs.get((BROKER, str(config.node_id)), {}),
            image.configs.get((BROKER, ""), {}),
        ]
        self._min_insync = int(config.min_insync_replicas)
        self._unclean = bool(config.unclean_leader_election_enable)

    def _value(self, topic: str, key: str) -> str | None:
        own = self._configs.get((TOPIC, topic))
        if own is not None and key in own:
            return own[key]
        return next((layer[key] for layer in self._layers if key in layer), None)

    def min_insync_replicas(self, topic: Topic) -> int:
        """Return the value, at most the number of replicas (Kafka: getTopicEffectiveMinIsr)."""
        value = self._value(topic.name, "min.insync.replicas")
        wanted = self._min_insync if value is None else int(value)
        first = topic.partitions.get(0)
        return wanted if first is None else min(wanted, len(first.replicas))

    def unclean_allowed(self, topic: str) -> bool:
        value = self._value(topic, "unclean.leader.election.enable")
        return self._unclean if value is None else value.strip().lower() == "true"


class Indexes:
    """Indexes of the head image; `fill` builds them from one, `follow` updates them. The values are dicts,
    which keep the order: plans name partitions in the order of their arrival."""

    def __init__(self) -> None:
        self.in_isr: dict[int, dict[PartitionKey, None]] = {}
        self.in_elr: dict[int, dict[PartitionKey, None]] = {}
        self.led: dict[int, dict[PartitionKey, None]] = {}
        self.leaderless: dict[PartitionKey, None] = {}
        self.imbalanced: dict[PartitionKey, None] = {}  # led, but not by the preferred replica
        self.reassigning: dict[PartitionKey, None] = {}
        self.in_directory: dict[bytes, dict[PartitionKey, None]] = {}
        self.directory_owners: dict[bytes, int] = {}

    def fill(self, image: MetadataImage) -> Generator[None, None, None]:
        """Add what is in the image. Until the last step, nothing may use the indexes."""
        number = 0
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                self._change((topic.topic_id, index), state, add=True)
                number += 1
                if number % STEP == 0:
                    yield
        for broker in image.brokers.values():
            self.directory_owners.update(dict.fromkeys(broker.directories, broker.broker_id))

    def leads(self, broker_id: int) -> bool:
        return bool(self.led.get(broker_id))

    def follow(
        self, before: MetadataImage, records: Iterable[Any], after: MetadataImage
    ) -> Generator[None, None, None]:
        """Follow a change: `records` led from `before` to `after`. Until the last step, nothing may use the
        indexes."""
        changed: dict[PartitionKey, None] = {}
        for number, record in enumerate(records, 1):
            if number % (10 * STEP) == 0:
                yield
            kind = type(record)
            if kind in (messages.PartitionRecord, messages.PartitionChangeRecord, PartitionLike):
                changed[record.topic_id, record.partition_id] = None
            elif kind is messages.RemoveTopicRecord:
                topic = before.topics_by_id.get(record.topic_id)
                if topic is not None:
                    changed.update(dict.fromkeys((topic.topic_id, index) for index in topic.partitions))
            elif kind is messages.ClearElrRecord:
                self._clear_elr(before, record.topic_name, changed)
            elif kind in (
                messages.RegisterBrokerRecord,
                messages.UnregisterBrokerRecord,
                messages.BrokerRegistrationChangeRecord,
            ):
                self._follow_directories(before, after, record.broker_id)
        for number, key in enumerate(changed, 1):
            old, new = state_of(before, key), state_of(after, key)
            if old is not None:
                self._change(key, old, add=False)
            if new is not None:
                self._change(key, new, add=True)
            if number % STEP == 0:
                yield

    def _clear_elr(self, before: MetadataImage, name: str | None, changed: dict[PartitionKey, None]) -> None:
        topic = before.topics.get(name) if name else None
        topics = [topic] if topic is not None else [] if name else list(before.topics.values())
        for each in topics:
            for index, state in each.partitions.items():
                if state.elr:
                    changed[each.topic_id, index] = None

    def _follow_directories(self, before: MetadataImage, after: MetadataImage, broker_id: int) -> None:
        for image, owns in ((before, False), (after, True)):
            broker = image.brokers.get(broker_id)
            for directory in broker.directories if broker is not None else ():
                if owns:
                    self.directory_owners[directory] = broker_id
                else:
                    self.directory_owners.pop(directory, None)

    def _change(self, key: PartitionKey, state: PartitionState, *, add: bool) -> None:
        for broker in state.isr:
            _mark(self.in_isr.setdefault(broker, {}), key, add)
        for broker in state.elr:
            _mark(self.in_elr.setdefault(broker, {}), key, add)
        for directory in state.directories:
            _mark(self.in_directory.setdefault(directory, {}), key, add)
        if state.leader == NO_LEADER:
            _mark(self.leaderless, key, add)
        else:
            _mark(self.led.setdefault(state.leader, {}), key, add)
        if state.leader != state.replicas[0]:  # also where nobody leads, as Kafka counts
            _mark(self.imbalanced, key, add)
        if state.adding_replicas or state.removing_replicas:
            _mark(self.reassigning, key, add)

    def __eq__(self, other: object) -> bool:
        """Compare as sets: the order depends on history."""
        return isinstance(other, Indexes) and _sets(self) == _sets(other)

    __hash__ = None  # type: ignore[assignment]


def _mark(marked: dict[PartitionKey, None], key: PartitionKey, add: bool) -> None:
    if add:
        marked[key] = None
    else:
        marked.pop(key, None)


def _sets(indexes: Indexes) -> dict[str, Any]:
    by_broker = (indexes.in_isr, indexes.in_elr, indexes.led, indexes.in_directory)
    return {
        "by": [{key: set(value) for key, value in index.items() if value} for index in by_broker],
        "sets": [set(indexes.leaderless), set(indexes.imbalanced), set(indexes.reassigning)],
        "owners": indexes.directory_owners,
    }


def state_of(image: MetadataImage, key: PartitionKey) -> PartitionState | None:
    topic = image.topics_by_id.get(key[0])
    return topic.partitions.get(key[1]) if topic is not None else None


def change_in(
    image: MetadataImage, settings: TopicSettings, topic: Topic, index: int, **wanted: Any
) -> Any | None:
    """`elections.change_of` for a partition of this image. Defaults: its ISR stays, and those lead that are
    active now."""
    state = topic.partitions[index]
    wanted.setdefault("target_isr", state.isr)
    wanted.setdefault("acceptable", acceptable_leader(image, state))
    return change_of(
        topic.topic_id,
        index,
        state,
        elr_enabled=image.elr_enabled,
        min_insync_replicas=settings.min_insync_replicas(topic),
        default_directory=lambda broker_id: default_directory(image, broker_id),
        level=image.metadata_version,
        **wanted,
    )


def leader_changes(
    image: MetadataImage,
    settings: TopicSettings,
    partitions: Iterable[PartitionKey],
    *,
    remove: int = NOBODY,
    add: int = NOBODY,
    unclean_shutdown: int = NOBODY,
) -> Iterator[Any | None]:
    """Yield the PartitionChangeRecords of these partitions, and None between steps.

    `remove` leaves their ISRs. `add` may lead although it is fenced in `image`. `unclean_shutdown` leaves ISR
    and ELR, because it may have lost records (Kafka: generateLeaderAndIsrUpdates)."""
    gone = {remove, unclean_shutdown} - {NOBODY}
    for number, (topic_id, index) in enumerate(partitions, 1):
        topic = image.topics_by_id[topic_id]
        state = topic.partitions[index]
        record = change_in(
            image,
            settings,
            topic,
            index,
            target_isr=tuple(replica for replica in state.isr if replica not in gone),
            acceptable=acceptable_leader(image, state, remove=gone, add=add),
            unclean_allowed=settings.unclean_allowed(topic.name),
            unclean_shutdown=() if unclean_shutdown == NOBODY else (unclean_shutdown,),
        )
        if record is not None:
            yield record
        if number % STEP == 0:
            yield None


# -- elections that are asked for --------------------------------------------------------------------------


def plan_elect_leaders(image: MetadataImage, settings: TopicSettings, version: int, request: Any) -> Plan:
    """Return (records, ElectLeadersResponse). Raises KafkaError(INVALID_REQUEST)."""
    cls = messages.ElectLeadersResponse
    everything = request.topic_partitions is None
    named = request.topic_partitions or []
    if not everything and not named:
        return [], cls()
    kind = request.election_type if version >= 1 else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(errors.INVALID_REQUEST, f"Unknown election type {kind}")
    wanted: Iterable[tuple[str, Iterable[int]]]
    if everything:
        wanted = ((topic.name, topic.partitions) for topic in image.topics.values())
    else:
        wanted = ((topic.topic, topic.partitions) for topic in named)
    records: list[Any] = []
    response = cls()
    row, number = cls.ReplicaElectionResults.PartitionResult, 0
    elected: set[tuple[str, int]] = set()
    for name, indexes in wanted:
        result = cls.ReplicaElectionResults(topic=name)
        response.replica_election_results.append(result)
        number += 1
        if number % STEP == 0:
            yield
        for index in indexes:
            record, code, message = _elect(image, settings, name, index, kind, named=not everything)
            if code == errors.NONE and (name, index) in elected:
                record, code = None, errors.ELECTION_NOT_NEEDED  # it was named twice
            elected.add((name, index))
            if record is not None:
                records.append(record)
            if not (everything and code == errors.ELECTION_NOT_NEEDED):
                result.partition_result.append(
                    row(partition_id=index, error_code=code, error_message=message)
                )
            number += 1
            if number % STEP == 0:
                yield
    yield from wide.empty(elected)
    return records, response


def _elect(
    image: MetadataImage, settings: TopicSettings, name: str, index: int, kind: int, *, named: bool
) -> tuple[Any | None, int, str | None]:
    """Return (record, error code, error message). `named`: the request names the partition."""
    topic = image.topics.get(name)
    if topic is None:
        return None, errors.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {shown(name)}"
    state = topic.partitions.get(index)
    if state is None:
        return None, errors.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    preferred = kind == PREFERRED
    if state.leader == state.replicas[0] if preferred else state.leader != NO_LEADER:
        return None, errors.ELECTION_NOT_NEEDED, None
    record = change_in(image, settings, topic, index, preferred=preferred, unclean_allowed=not preferred)
    if record is not None:
        return record, errors.NONE, None
    if preferred:
        return None, errors.PREFERRED_LEADER_NOT_AVAILABLE, None
    if not named:
        return None, errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, None
    return _begin_empty(image, settings, topic, index)


def _begin_empty(
    image: MetadataImage, settings: TopicSettings, topic: Topic, index: int
) -> tuple[Any | None, int, str | None]:
    """Return (record, error code, error message): a leader whose log directory is lost, in another directory,
    where its log begins empty. Kafka has none, but loses the records at the second start without the disk.

    Refused while the broker of another replica is only down: its log may come back. An operator who knows
    better unregisters that broker."""
    state = topic.partitions[index]
    known = [image.brokers[replica] for replica in state.replicas if replica in image.brokers]
    down = [broker.broker_id for broker in known if broker.has_online(state.directory(broker.broker_id))]
    if down:
        message = f"The log of {topic.name}-{index} may be on brokers that are down: {down}"
        return None, errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    broker = next((broker for broker in known if broker.active and broker.directories), None)
    if broker is None:
        message = f"No broker with a replica of {topic.name}-{index} is up"
        return None, errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    # Named, because the broker does not create a log in an unassigned directory while any is offline.
    cordoned = broker.cordoned_directories or ()
    usable = [each for each in broker.directories if each not in cordoned] or broker.directories
    record = change_in(
        image,
        settings,
        topic,
        index,
        target_isr=(),
        acceptable=broker.broker_id.__eq__,
        unclean_allowed=True,
        unclean_shutdown=state.replicas,
        directories={broker.broker_id: usable[index % len(usable)]},
    )
    return record, errors.NONE, None


def plan_preferred(image: MetadataImage, settings: TopicSettings, indexes: Indexes) -> Plan:
    """Return (records, whether there may be more): imbalanced partitions whose preferred replica can lead
    again."""
    return (yield from _some(image, settings, list(indexes.imbalanced), preferred=True))


def plan_unclean(image: MetadataImage, settings: TopicSettings, indexes: Indexes) -> Plan:
    """Return (records, whether there may be more): of the partitions without a leader those whose topic
    allows unclean.leader.election.enable."""
    allowed = []
    for number, key in enumerate(list(indexes.leaderless), 1):
        if settings.unclean_allowed(image.topics_by_id[key[0]].name):
            allowed.append(key)
        if number % STEP == 0:
            yield
    return (yield from _some(image, settings, allowed, unclean_allowed=True))


def _some(image: MetadataImage, settings: TopicSettings, keys: list[PartitionKey], **how: bool) -> Plan:
    records: list[Any] = []
    for number, (topic_id, index) in enumerate(keys, 1):
        record = change_in(image, settings, image.topics_by_id[topic_id], index, **how)
        if record is not None:
            records.append(record)
            if len(records) == ELECTIONS_MAX:
                return records, True
        if number % STEP == 0:
            yield
    return records, False


def stepped(changes: Iterator[Any | None], records: list[Any]) -> Generator[None, None, None]:
    """Collect the records of `leader_changes`, in its steps."""
    for change in changes:
        if change is None:
            yield
        else:
            records.append(change)
