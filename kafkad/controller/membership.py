"""Membership: brokers register, are unfenced and fenced, shut down in order, and are unregistered.

    plan_register      BrokerRegistration: changes for what the previous incarnation may have lost; then its
                       record, last. If the plan is cut off between batches, the broker registers again
    plan_heartbeat     BrokerHeartbeat: fenced, unfenced, controlled shutdown, directories offline or cordoned
    plan_fence         a broker whose session has ended
    plan_succession    other leaders for what a broker leads that `plan_fence` is about to fence
    plan_unregister    UnregisterBroker
    plan_controller    ControllerRegistration

    comes to be        records
    fenced             it leaves its ISRs, others lead, then FENCE
    unfenced           UNFENCE, then leaders for partitions without one. It enters no ISR: leaders propose it
    controlled         IN_CONTROLLED_SHUTDOWN, then it leaves its ISRs, and others lead

The caller updates the heartbeats after it has appended the records.

Kafka: ClusterControlManager, ReplicationControlManager. A plan is a generator of steps."""

from collections.abc import Generator
from typing import Any, NamedTuple

from kafkad.controller.heartbeats import BrokerState, Heartbeats
from kafkad.controller.leadership import Indexes, TopicSettings, leader_changes, stepped
from kafkad.metadata import features
from kafkad.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    broker_record,
    controller_record,
)
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

UNFENCE, FENCE = -1, 1
IN_CONTROLLED_SHUTDOWN = 1
CLEAN_STOPS_TOLD = 3  # first version of BrokerRegistration with the epoch of a clean stop
RESERVED = {DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, DIRECTORY_LOST}
ZK_BROKERS = "Controller does not support registering ZK brokers."


class Head(NamedTuple):
    """The state that plans read."""

    image: MetadataImage
    settings: TopicSettings
    indexes: Indexes
    heartbeats: Heartbeats
    now_ms: int


class Registered(NamedTuple):
    records: list[Any]
    epoch: int
    fenced: bool


class Beaten(NamedTuple):
    records: list[Any]
    state: BrokerState
    response: Any


def check_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration:
    """Return the broker. Raises KafkaError(STALE_BROKER_EPOCH)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(errors.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != epoch:
        raise KafkaError(
            errors.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}",
        )
    return broker


# -- registration ------------------------------------------------------------------------------------------


def plan_register(
    head: Head, cluster_id: str, version: int, request: Any, epoch: int
) -> Generator[None, None, Registered]:
    """Plan a registration. `epoch`: the offset of the first record; it becomes the broker's epoch if this is
    another incarnation. Raises KafkaError."""
    image = head.image
    if request.cluster_id != cluster_id:
        raise KafkaError(
            errors.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    before = image.brokers.get(request.broker_id)
    is_new = before is None or before.incarnation_id != request.incarnation_id
    if before is not None and is_new and head.heartbeats.has_session(
        (before.broker_id, before.epoch), head.now_ms
    ):  # fmt: skip
        raise KafkaError(
            errors.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this"
            " should self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(errors.BROKER_ID_NOT_REGISTERED, ZK_BROKERS)
    with_directories = image.metadata_version >= features.DIRECTORY_ASSIGNMENT
    if with_directories:
        _check_directories(head.indexes, request.broker_id, request.log_dirs)
    _check_features(image, request.features)
    records: list[Any] = []
    if is_new:  # also if the broker was unregistered: the ELR may still have it
        clean = (
            before is not None
            and version >= CLEAN_STOPS_TOLD
            and before.epoch == request.previous_broker_epoch
        )
        yield from _after_stop(head, request.broker_id, clean, records)
    broker = BrokerRegistration(
        broker_id=request.broker_id,
        epoch=epoch if before is None or is_new else before.epoch,
        incarnation_id=request.incarnation_id,
        listeners={
            each.name: Endpoint(each.host, each.port, each.security_protocol) for each in request.listeners
        },
        features={each.name: (each.min_supported_version, each.max_supported_version)
                  for each in request.features},
        rack=request.rack,
        fenced=True if before is None or is_new else before.fenced,
        in_controlled_shutdown=False if before is None or is_new else before.in_controlled_shutdown,
        migrating_from_zk=False,
        directories=tuple(request.log_dirs) if with_directories else (),
        cordoned_directories=None,
    )  # fmt: skip
    records.append(broker_record(broker))
    return Registered(records, broker.epoch, broker.fenced)


def _check_directories(indexes: Indexes, broker_id: int, directories: list[bytes]) -> None:
    reason = None
    if not directories:
        reason = "No directories specified in request"
    elif RESERVED & set(directories):
        reason = "Reserved directory ID in request"
    elif len(set(directories)) != len(directories):
        reason = "Duplicate directory ID in request"
    for directory in directories:
        owner = indexes.directory_owners.get(directory, broker_id)
        if reason is None and owner != broker_id:
            reason = f"Broker {owner} is already registered with directory {directory.hex()}"
    if reason is not None:
        raise KafkaError(errors.INVALID_REGISTRATION, reason)


def _check_features(image: MetadataImage, offered: list[Any]) -> None:
    """Check that the broker supports every finalized level. It supports only level 0 of features that it does
    not name."""
    ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in offered}
    finalized = {**image.features, features.KRAFT_VERSION: image.kraft_version}
    for name in [*ranges, *finalized]:
        low, high = ranges.get(name, (0, 0))
        level = finalized.get(name, 0)
        if name not in ranges and name == features.METADATA_VERSION:
            raise KafkaError(
                errors.INVALID_REGISTRATION, f"Request features do not contain '{features.METADATA_VERSION}'"
            )
        if not low <= level <= high:
            raise KafkaError(
                errors.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}."
                f" The broker wants a version between {low} and {high}, inclusive.",
            )


def _after_stop(head: Head, broker_id: int, clean: bool, records: list[Any]) -> Generator[None, None, None]:
    """A broker that stopped uncleanly may have lost records: with ELR enabled it leaves ISR and ELR. Without
    ELR, and after a clean stop, it is handled like a fenced broker."""
    image, settings, indexes = head.image, head.settings, head.indexes
    in_isr = list(indexes.in_isr.get(broker_id, ()))
    if image.elr_enabled and not clean:
        for partitions in (in_isr, list(indexes.in_elr.get(broker_id, ()))):
            changes = leader_changes(image, settings, partitions, unclean_shutdown=broker_id)
            yield from stepped(changes, records)
    else:
        yield from stepped(leader_changes(image, settings, in_isr, remove=broker_id), records)


def plan_controller(image: MetadataImage, request: Any) -> list[Any]:
    """Raises KafkaError."""
    if image.metadata_version < features.CONTROLLER_REGISTRATION:
        raise KafkaError(
            errors.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations.",
        )
    registration = ControllerRegistration(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        listeners={
            each.name: Endpoint(each.host, each.port, each.security_protocol) for each in request.listeners
        },
        features={each.name: (each.min_supported_version, each.max_supported_version)
                  for each in request.features},
    )  # fmt: skip
    return [controller_record(registration)]


# -- heartbeats --------------------------------------------------------------------------------------------


def plan_heartbeat(head: Head, request: Any) -> Generator[None, None, Beaten]:
    """Raises KafkaError(STALE_BROKER_EPOCH)."""
    broker_id = request.broker_id
    broker = check_epoch(head.image, broker_id, request.broker_epoch)
    if head.image.metadata_version >= features.DIRECTORY_ASSIGNMENT:
        head = _without(head, broker, request.offline_log_dirs)
    image = head.image
    before = head.heartbeats.state(broker_id)
    after = head.heartbeats.next_state(request, lambda: head.indexes.leads(broker_id))
    records: list[Any] = []
    if after is not before:
        if after.is_fenced:
            yield from _fenced(head, broker_id, records)
        elif after is BrokerState.UNFENCED:
            records.append(_change(broker, fenced=UNFENCE))
            leaderless = list(head.indexes.leaderless)
            yield from stepped(leader_changes(image, head.settings, leaderless, add=broker_id), records)
        else:
            if not broker.in_controlled_shutdown:
                records.append(_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN))
            yield from _leave_isrs(head, broker_id, records)
    if image.metadata_version >= features.DIRECTORY_ASSIGNMENT:
        yield from _offline(head, broker, request.offline_log_dirs, records)
    cordoned = request.cordoned_log_dirs
    if image.metadata_version >= features.CORDONED_LOG_DIRS and cordoned is not None:
        known = broker.cordoned_directories
        if known is None or set(known) != set(cordoned):
            records.append(_change(broker, cordoned_log_dirs=list(cordoned)))
    response = messages.BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= head.heartbeats.brokers[broker_id].registered_offset,
        is_fenced=after.is_fenced,
        should_shut_down=after is BrokerState.SHUTDOWN_NOW,
    )
    return Beaten(records, after, response)


def plan_fence(head: Head, broker_id: int) -> Generator[None, None, list[Any]]:
    """Return the records that fence a broker; none if it is fenced and in no ISR."""
    records: list[Any] = []
    if not head.image.brokers[broker_id].fenced or head.indexes.in_isr.get(broker_id):
        yield from _fenced(head, broker_id, records)
    return records


def plan_succession(head: Head, broker_id: int) -> Generator[None, None, list[Any]]:
    """Return the records that elect other leaders for what a broker leads that is about to be fenced."""
    records: list[Any] = []
    led = list(head.indexes.led.get(broker_id, ()))
    yield from stepped(leader_changes(head.image, head.settings, led, remove=broker_id), records)
    return records


def plan_unregister(head: Head, broker_id: int) -> Generator[None, None, list[Any]]:
    """Raises KafkaError(BROKER_ID_NOT_REGISTERED)."""
    broker = head.image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            errors.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
        )
    records: list[Any] = []
    yield from _leave_isrs(head, broker_id, records)
    in_elr = list(head.indexes.in_elr.get(broker_id, ()))
    yield from stepped(leader_changes(head.image, head.settings, in_elr, remove=broker_id), records)
    records.append(messages.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return records


def _leave_isrs(head: Head, broker_id: int, records: list[Any]) -> Generator[None, None, None]:
    partitions = list(head.indexes.in_isr.get(broker_id, ()))
    yield from stepped(leader_changes(head.image, head.settings, partitions, remove=broker_id), records)


def _fenced(head: Head, broker_id: int, records: list[Any]) -> Generator[None, None, None]:
    yield from _leave_isrs(head, broker_id, records)
    records.append(_change(head.image.brokers[broker_id], fenced=FENCE))


def _without(head: Head, broker: BrokerRegistration, offline: list[bytes]) -> Head:
    """Return the head for elections: a broker that a heartbeat unfences leads nothing in a directory that the
    same heartbeat reports as failed."""
    rest = tuple(directory for directory in broker.directories if directory not in offline)
    if rest == broker.directories:
        return head
    image = head.image.copy()
    image.brokers = {**image.brokers, broker.broker_id: broker._replace(directories=rest)}
    return head._replace(image=image)


def _offline(
    head: Head, broker: BrokerRegistration, told: list[bytes], records: list[Any]
) -> Generator[None, None, None]:
    """Plan for failed directories: other leaders for their partitions, then the list of the remaining
    ones."""
    newly = [directory for directory in broker.directories if directory in told]
    if not newly:
        return
    decided = {(r.topic_id, r.partition_id) for r in records if type(r) is messages.PartitionChangeRecord}
    for directory in newly:
        # the decision about a partition that this heartbeat has changed already did not count the directory
        partitions = [key for key in head.indexes.in_directory.get(directory, ()) if key not in decided]
        changes = leader_changes(head.image, head.settings, partitions, remove=broker.broker_id)
        yield from stepped(changes, records)
    rest = [directory for directory in broker.directories if directory not in told]
    records.append(_change(broker, log_dirs=rest))


def _change(broker: BrokerRegistration, **changes: Any) -> Any:
    return messages.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, **changes
    )
