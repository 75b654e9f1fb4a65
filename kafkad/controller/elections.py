"""Elections: which broker leads a partition when the state of its replicas changes.

`change_of` is a pure function from one partition's state to the PartitionChangeRecord that Kafka's controller
would write (PartitionChangeBuilder), or None if nothing changes. Its steps, in order:

    complete a reassignment if possible: its adding and removing replicas are settled (KIP-455)
    add to the ELR those that leave an ISR below min.insync.replicas (KIP-966), except after unclean stops and
    those that are not replicas any more
    elect a leader, see below
    raise the leader epoch if the replica list lacks an old replica, so that its Fetches are fenced

The leader is:

    the preferred replica, if it is requested, in sync and acceptable
    otherwise the current leader, while it is acceptable and in sync
    otherwise the first replica that is in sync and acceptable
    otherwise, with an empty ISR, one of the eligible leader replicas (ELR): they had all committed data
    otherwise the last known leader, if it is the only one known: it may have lost data, so the partition is
    RECOVERING
    otherwise, if unclean elections are allowed, any acceptable replica: RECOVERING, too
    otherwise none

If ELR is disabled, a partition whose ISR was empty before keeps its ELR until one of them leads, and its last
known leader may lead: a partition must not stay without a leader when all its brokers are back.

Beware: setting a leader raises the leader epoch, even if it is the previous one.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from kafkad.metadata import features
from kafkad.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    RECOVERING,
    MetadataImage,
    PartitionState,
)
from kafkad.metadata.replay import NO_LEADER_CHANGE
from kafkad.protocol import messages

Acceptable = Callable[[int], bool]
Replicas = tuple[int, ...]

_NO_DIRECTORIES: Final[Mapping[int, bytes]] = {}


class Assignment(NamedTuple):
    """The replicas of a partition in a reassignment: `replicas` include those that are `removing`."""

    replicas: Replicas
    adding: Replicas
    removing: Replicas


def change_of(
    topic_id: bytes,
    index: int,
    state: PartitionState,
    *,
    target_isr: Replicas,
    acceptable: Acceptable,
    elr_enabled: bool,
    min_insync_replicas: int = 1,
    unclean_allowed: bool = False,
    preferred: bool = False,
    unclean_shutdown: Collection[int] = (),
    recovery_state: int | None = None,
    assignment: Assignment | None = None,
    directories: Mapping[int, bytes] = _NO_DIRECTORIES,
    default_directory: Callable[[int], bytes] | None = None,
    level: int = features.BY_NAME[features.METADATA_VERSION].highest,
) -> Any | None:
    """Return the PartitionChangeRecord that gives the partition `target_isr`, with an election if one is due.

    `preferred`: elect the first replica, never uncleanly. `recovery_state`: as the leader reports it.
    `directories`: of these replicas. `default_directory`: the directory of a new replica.
    `level`: the finalized metadata.version."""
    record = messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    wanted = assignment or Assignment(state.replicas, state.adding_replicas, state.removing_replicas)
    target_isr, wanted = _completed(target_isr, wanted)
    elr = () if state.isr else state.elr  # if it is left from before a downgrade, its ISR has led since
    if elr_enabled:
        elr = _next_elr(state, wanted.replicas, target_isr, min_insync_replicas, unclean_shutdown)
    known = state.last_known_elr if elr_enabled or not state.isr else ()
    leader, unclean = _elect(
        state, wanted.replicas, target_isr, elr, known, acceptable, unclean_allowed, preferred
    )
    if leader != state.leader:
        record.leader = leader
        if leader in elr:
            target_isr = (leader,)
            # A smaller min.insync.replicas may let the leader commit records alone, which the others lack.
            elr = tuple(each for each in elr if each != leader and min_insync_replicas > 1)
        if unclean:
            record.isr = [leader]
            if state.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
    elif not set(state.replicas) <= set(wanted.replicas):
        record.leader = state.leader
    if record.isr is not None or (target_isr and not elr_enabled):
        elr = ()
    if elr != state.elr:
        record.eligible_leader_replicas = list(elr)
    if record.isr is None and target_isr != state.isr and (target_isr or elr_enabled):
        record.isr = list(target_isr)
    if (
        level < features.NO_EPOCH_ON_SHRINK
        and record.leader == NO_LEADER_CHANGE
        and record.isr is not None
        and not set(state.isr) <= set(record.isr)
    ):
        record.leader = state.leader
    if elr_enabled:
        if leader == NO_LEADER and state.leader != NO_LEADER and not state.last_known_elr:
            record.last_known_elr = [state.leader]
        elif leader == NO_LEADER and not target_isr and len(state.isr) == 1 and not state.last_known_elr:
            record.last_known_elr = list(state.isr)  # it led while ELR was disabled
        elif record.leader >= 0 and state.last_known_elr:
            record.last_known_elr = []
    _assign(record, state, wanted, directories, default_directory, level)
    if recovery_state is not None and recovery_state != state.leader_recovery_state:
        record.leader_recovery_state = recovery_state
    return None if record == messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id) else record


def _completed(isr: Replicas, wanted: Assignment) -> tuple[Replicas, Assignment]:
    """Return ISR and replicas after the reassignment, if it can be completed: all adding replicas are in
    sync, and if the number of replicas shrinks, all remaining ones are (Kafka:
    PartitionReassignmentReplicas.maybeCompleteReassignment)."""
    replicas, adding, removing = wanted
    if not adding and not removing:
        return isr, wanted
    left = tuple(replica for replica in isr if replica not in removing)
    stay = tuple(replica for replica in replicas if replica not in removing)
    if removing and (not left or not stay):
        return isr, wanted
    if not set(adding) <= set(left) or (len(adding) < len(removing) and not set(stay) <= set(left)):
        return isr, wanted
    return left, Assignment(stay, (), ())


def _next_elr(
    state: PartitionState,
    replicas: Replicas,
    target_isr: Replicas,
    min_insync_replicas: int,
    unclean_shutdown: Collection[int],
) -> Replicas:
    """Return the ELR. A replica that is removed leaves it, because its log is deleted: if it is added again,
    it has nothing (Kafka keeps it, and then fails to add it while there is no leader)."""
    if len(target_isr) >= min_insync_replicas:
        return ()
    candidates = {*state.elr, *state.isr} - {*target_isr} - {*unclean_shutdown}
    return tuple(sorted(candidates & {*state.replicas} & {*replicas}))


def _elect(
    state: PartitionState,
    replicas: Replicas,
    isr: Replicas,
    elr: Replicas,
    last_known: Replicas,
    acceptable: Acceptable,
    unclean_allowed: bool,
    preferred: bool,
) -> tuple[int, bool]:
    """Return (leader, whether the election is unclean)."""

    def valid(replica: int) -> bool:
        return (replica in isr or (not isr and replica in elr)) and acceptable(replica)

    if preferred and valid(replicas[0]):
        return replicas[0], False
    if valid(state.leader):
        return state.leader, False
    for replica in replicas:
        if valid(replica):
            return replica, False
    if not isr and not elr and len(last_known) == 1 and acceptable(last_known[0]):
        return last_known[0], True
    if unclean_allowed and not preferred:
        for replica in replicas:
            if acceptable(replica):
                return replica, True
    return NO_LEADER, False


def _assign(
    record: Any,
    state: PartitionState,
    wanted: Assignment,
    placed: Mapping[int, bytes],
    default_directory: Callable[[int], bytes] | None,
    level: int,
) -> None:
    """Return the replicas, and their directories."""
    if wanted.replicas == state.replicas and not placed:
        directories = state.directories
    else:
        known = dict(zip(state.replicas, state.directories, strict=True)) | dict(placed)
        unknown = [replica for replica in wanted.replicas if replica not in known]
        assert not unknown or default_directory is not None, "a new replica needs a directory"
        known |= {replica: default_directory(replica) for replica in unknown if default_directory}
        directories = tuple(known[replica] for replica in wanted.replicas)
    if level >= features.DIRECTORY_ASSIGNMENT and directories != state.directories:
        record.directories = list(directories)
    if wanted.replicas != state.replicas:
        record.replicas = list(wanted.replicas)
    if wanted.removing != state.removing_replicas:
        record.removing_replicas = list(wanted.removing)
    if wanted.adding != state.adding_replicas:
        record.adding_replicas = list(wanted.adding)


def default_directory(image: MetadataImage, broker_id: int) -> bytes:
    """Return the directory of a new replica. It is known if the broker has one directory; otherwise the
    broker chooses and reports it (Kafka: ClusterControlManager.defaultDir)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return DIRECTORY_UNASSIGNED
    if not broker.directories:
        return DIRECTORY_MIGRATING
    return broker.directories[0] if len(broker.directories) == 1 else DIRECTORY_UNASSIGNED


def acceptable_leader(
    image: MetadataImage, state: PartitionState, *, remove: Collection[int] = (), add: int = -1
) -> Acceptable:
    """Return which brokers may lead a partition: active ones whose directory for the replica is online
    (Kafka: LeaderAcceptor). `add` counts as active although the image has it fenced; `remove` does not: the
    planned records will change them."""

    def acceptable(replica: int) -> bool:
        broker = image.brokers.get(replica)
        if broker is None or replica in remove or replica not in state.replicas:
            return False
        return (replica == add or broker.active) and broker.has_online(state.directory(replica))

    return acceptable
