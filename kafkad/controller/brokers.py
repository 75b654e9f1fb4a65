"""Brokers of a single-node cluster: registration, unfencing, elections; and the stop.

Kafka's controller does this in three steps, with heartbeats in between. Here it is one batch, because the
broker and the controller are one process: RegisterBroker (the broker's epoch is the offset of this record),
the change that unfences it, and the elections that follow.

    an unclean stop   every partition led here gets a new leader epoch: records read in the old one may be
                      gone, and a consumer can detect that by the epoch (KIP-320)
    a clean stop      the epochs stay; only partitions without a leader get one (Kafka leaves them without)

A stop is clean if the broker knows the epoch it last had (`.kafka_cleanshutdown` has it, KIP-966).

Other brokers have no session with a controller that has just started: they are fenced.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafkad.controller.elections import change_of
from kafkad.metadata import features
from kafkad.metadata.image import (
    RECOVERED,
    RECOVERING,
    TOPIC,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    broker_record,
    controller_record,
)
from kafkad.protocol import messages

UNFENCE, FENCE = -1, 1
NO_EPOCH = -1


class NotRegistered(Exception):
    """The controllers did not register the broker within initial.broker.registration.timeout.ms."""


class Registration(NamedTuple):
    """A broker's registration at its start."""

    broker_id: int
    incarnation_id: bytes
    listeners: dict[str, Endpoint]  # as advertised to clients and brokers, by name
    directories: tuple[bytes, ...]  # directory.id of each log directory that is online
    rack: str | None = None
    previous_epoch: int = NO_EPOCH  # from .kafka_cleanshutdown; -1: the last stop was not clean
    controller_listeners: dict[str, Endpoint] | None = None  # None: it does not register as a controller
    cordoned_directories: tuple[bytes, ...] = ()


def plan_registration(
    image: MetadataImage, registration: Registration, epoch: int, unclean_elections: "UncleanElections"
) -> list[Any]:
    """Return all records of a start. `epoch`: the offset of the first one."""
    before = image.brokers.get(registration.broker_id)
    level = image.metadata_version
    broker = BrokerRegistration(
        broker_id=registration.broker_id,
        epoch=epoch,
        incarnation_id=registration.incarnation_id,
        listeners=registration.listeners,
        features=supported_features(image),
        rack=registration.rack,
        fenced=True,
        in_controlled_shutdown=False,
        migrating_from_zk=False,
        directories=registration.directories if level >= features.DIRECTORY_ASSIGNMENT else (),
        cordoned_directories=None,
    )
    records = [broker_record(broker)]
    if level >= features.CORDONED_LOG_DIRS:
        records.append(
            messages.BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id,
                broker_epoch=epoch,
                cordoned_log_dirs=list(registration.cordoned_directories),
            )
        )
    records.append(fencing(broker.broker_id, epoch, UNFENCE))
    if registration.controller_listeners is not None and level >= features.CONTROLLER_REGISTRATION:
        records.append(
            controller_record(
                ControllerRegistration(
                    registration.broker_id,
                    registration.incarnation_id,
                    False,
                    registration.controller_listeners,
                    supported_features(image),
                )
            )
        )
    records.extend(
        fencing(other.broker_id, other.epoch, FENCE)
        for other in image.brokers.values()
        if other.broker_id != broker.broker_id and not other.fenced
    )
    clean = before is not None and before.epoch == registration.previous_epoch
    records.extend(plan_elections(image, broker, clean, unclean_elections))
    return records


class UncleanElections:
    """Which topics allow unclean elections, by unclean.leader.election.enable of the topic or the broker."""

    def __init__(self, image: MetadataImage, default: bool) -> None:
        self._configs = image.configs
        self._default = default

    def allowed(self, topic: str) -> bool:
        config = self._configs.get((TOPIC, topic))
        value = config.get("unclean.leader.election.enable") if config is not None else None
        return self._default if value is None else value.strip().lower() == "true"


def plan_elections(
    image: MetadataImage, broker: BrokerRegistration, clean: bool, unclean: UncleanElections
) -> Iterator[Any]:
    """Return the changes of partitions after `broker`, the only live one, has come back."""
    us = broker.broker_id
    elr_enabled = image.elr_enabled
    for topic in image.topics.values():
        allowed: bool | None = None
        for index, state in topic.partitions.items():
            here = us in state.replicas and broker.has_online(state.directory(us))
            isr = (us,) if here and us in state.isr else ()
            settled = state.leader == us and isr == state.isr and not state.elr and not state.last_known_elr
            if here and settled and state.leader_recovery_state == RECOVERED:
                # the common case of 10,000 partitions: nothing to decide
                if not clean:
                    yield messages.PartitionChangeRecord(
                        partition_id=index, topic_id=topic.topic_id, leader=us
                    )
                continue
            if allowed is None:
                allowed = unclean.allowed(topic.name)
            record = change_of(
                topic.topic_id,
                index,
                state,
                target_isr=isr,
                acceptable=((us,) if here else ()).__contains__,
                elr_enabled=elr_enabled,
                unclean_allowed=allowed,
            )
            yield from _as_leader(record, topic.topic_id, index, state, us, clean)


def _as_leader(record: Any, topic_id: bytes, index: int, state: Any, us: int, clean: bool) -> Iterator[Any]:
    """Return the change, with what we would report next as the leader: that we have recovered, and a new
    epoch."""
    leads = us == (state.leader if record is None or record.leader == -2 else record.leader)
    if leads:
        if record is None:
            record = messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id)
        record.leader_recovery_state = RECOVERED if state.leader_recovery_state == RECOVERING else -1
        if not clean:
            record.leader = us
    if record is not None and record != messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id):
        yield record


def fencing(broker_id: int, epoch: int, change: int) -> Any:
    return messages.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=change)


def supported_features(image: MetadataImage) -> dict[str, tuple[int, int]]:
    """Return the ranges to register: the supported levels, and those finalized in this log, because a JVM
    controller refuses a broker that does not support a finalized level."""
    return {
        feature.name: (feature.lowest, max(feature.served, image.features.get(feature.name, 0)))
        for feature in features.SUPPORTED
    }


def plan_directories(
    image: MetadataImage, broker_id: int, placed: dict[tuple[bytes, int], bytes]
) -> list[Any]:
    """Return the records for the broker's placement of replicas (KIP-858): `placed` by (topic id,
    partition)."""
    records = []
    for (topic_id, index), directory in placed.items():
        topic = image.topics_by_id.get(topic_id)
        state = topic.partitions.get(index) if topic is not None else None
        if state is None or broker_id not in state.replicas or state.directory(broker_id) == directory:
            continue
        position = state.replicas.index(broker_id)
        directories = [*state.directories[:position], directory, *state.directories[position + 1 :]]
        records.append(
            messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=directories)
        )
    return records
