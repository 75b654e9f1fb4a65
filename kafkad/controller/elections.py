"""Elections: which broker leads a partition when its replicas come and go.

`change_of` is a pure function from one partition's state to the PartitionChangeRecord that Kafka's controller
would write (PartitionChangeBuilder), or None where nothing changes. Rules, in their order:

    the leader stays while it is acceptable and in sync
    else the first replica that is in sync and acceptable
    else, with an empty ISR, one of the eligible leader replicas (ELR, KIP-966): they had all committed data
    else the last known leader, alone known: it may have lost data, so the partition is RECOVERING
    else, if the topic allows unclean elections, any acceptable replica: RECOVERING too
    else nobody

The ELR gathers those that leave an ISR while it is below min.insync.replicas, but not those that stopped
uncleanly.

Beware: naming a leader raises the leader epoch, even if it is the one that led before.
"""

from collections.abc import Callable, Collection
from typing import Any

from kafkad.metadata.image import NO_LEADER, RECOVERING, PartitionState
from kafkad.protocol import messages


def change_of(
    topic_id: bytes,
    index: int,
    state: PartitionState,
    *,
    target_isr: tuple[int, ...],
    acceptable: Callable[[int], bool],
    elr_enabled: bool,
    min_insync_replicas: int = 1,
    unclean_allowed: bool = False,
    unclean_shutdown: Collection[int] = (),
) -> Any | None:
    """The PartitionChangeRecord that takes the partition to `target_isr`, with an election if one is due."""
    record = messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elr = _next_elr(state, target_isr, min_insync_replicas, unclean_shutdown) if elr_enabled else state.elr
    leader, unclean = _elect(state, target_isr, elr, acceptable, elr_enabled, unclean_allowed)
    if leader != state.leader:
        record.leader = leader
        if leader in elr:
            target_isr = (leader,)
            elr = tuple(replica for replica in elr if replica != leader)
        elif unclean:
            record.isr = [leader]
            if state.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
    if unclean or not elr_enabled:
        elr = ()
    if elr != state.elr:
        record.eligible_leader_replicas = list(elr)
    if record.isr is None and target_isr != state.isr and (target_isr or elr_enabled):
        record.isr = list(target_isr)
    if elr_enabled:
        if record.leader == NO_LEADER and not state.last_known_elr:
            record.last_known_elr = [state.leader]
        elif record.leader >= 0 and state.last_known_elr:
            record.last_known_elr = []
    return None if record == messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id) else record


def _next_elr(
    state: PartitionState,
    target_isr: tuple[int, ...],
    min_insync_replicas: int,
    unclean_shutdown: Collection[int],
) -> tuple[int, ...]:
    if len(target_isr) >= min_insync_replicas:
        return ()
    candidates = {*state.elr, *state.isr} - {*target_isr} - {*unclean_shutdown}
    return tuple(sorted(candidates))


def _elect(
    state: PartitionState,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    acceptable: Callable[[int], bool],
    elr_enabled: bool,
    unclean_allowed: bool,
) -> tuple[int, bool]:
    """(leader, was it unclean?)"""

    def valid(replica: int) -> bool:
        return (replica in isr or (not isr and replica in elr)) and acceptable(replica)

    if valid(state.leader):
        return state.leader, False
    for replica in state.replicas:
        if valid(replica):
            return replica, False
    if (
        elr_enabled
        and not isr
        and not elr
        and len(state.last_known_elr) == 1
        and acceptable(state.last_known_elr[0])
    ):
        return state.last_known_elr[0], True
    if unclean_allowed:
        for replica in state.replicas:
            if acceptable(replica):
                return replica, True
    return NO_LEADER, False
