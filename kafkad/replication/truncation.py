"""Where a follower truncates its log to match its leader's (KIP-101, KIP-279, KIP-595's truncation on fetch).

Each Fetch of a follower has the epoch of its last batch. If that epoch ends below the fetch offset in the
leader's log, the leader answers with a diverging epoch: the largest one that it has up to the follower's, and
its end.

    begins_at      before the first Fetch: the offset, and whether the log is truncated there first
    diverged       after a diverging epoch: where to truncate. The next Fetch has the epoch that is last then
    out_of_range   after OFFSET_OUT_OF_RANGE: the leader's log begins or ends elsewhere
    begins_anew    a leader's first batch begins below the start of an empty follower

Rule 1: no function here touches a log. All work on offsets, so a test is a table. Rule 2: `Cut.offset ==
end_offset` may still change something. A follower that led without writing a record has an epoch that begins
at its end, and the leader may not have it. The epoch must go, otherwise the same Fetch gets the same answer
for ever. If no epoch begins there, nothing is cut, and the caller waits before the next Fetch.

Sources: AbstractFetcherThread.getOffsetTruncationState, fetchOffsetAndTruncate; ReplicaFetcherThread;
ReplicaManager.initialFetchOffset."""

from collections.abc import Callable
from typing import Final, NamedTuple

from kafkad.protocol.errors import Malformed

UNDEFINED: Final = -1  # epoch or offset

EndOffsetFor = Callable[[int], tuple[int, int]]  # LeaderEpochs.end_offset_for of the follower's log


class Beginning(NamedTuple):
    """How a follower begins to fetch."""

    offset: int
    last_epoch: int  # for the Fetch; UNDEFINED: there is none
    cut: bool  # truncate the log to `offset` first


class Cut(NamedTuple):
    offset: int  # the log's new end; at most the old one
    complete: bool  # False: the leader may answer with another diverging epoch


class StartAnew(NamedTuple):
    """Remove everything; the log continues, empty, at `offset`."""

    offset: int


def begins_at(end_offset: int, high_watermark: int, last_epoch: int | None) -> Beginning:
    """Return where a follower begins. `last_epoch`: the latest epoch of its log. Without epochs the point of
    divergence cannot be found, so everything above HW is removed (ReplicaManager.initialFetchOffset)."""
    if last_epoch is not None:
        return Beginning(end_offset, last_epoch, False)
    offset = min(high_watermark, end_offset)
    return Beginning(offset, UNDEFINED, offset < end_offset)


def diverged(
    leader_epoch: int,
    leader_end: int,
    *,
    end_offset: int,
    high_watermark: int,
    end_offset_for: EndOffsetFor,
) -> Cut:
    """Return where to truncate. The leader's largest epoch up to ours is `leader_epoch`, and ends at
    `leader_end`. Raises Malformed."""
    if min(leader_epoch, leader_end) < UNDEFINED:
        raise Malformed(f"epoch {leader_epoch} cannot end at {leader_end}")
    if leader_end == UNDEFINED:
        return Cut(min(high_watermark, end_offset), True)
    if leader_epoch == UNDEFINED:
        return Cut(min(leader_end, end_offset), True)
    epoch, end = end_offset_for(leader_epoch)
    if end == UNDEFINED:
        return Cut(min(leader_end, end_offset), True)
    if epoch != leader_epoch:  # we do not have that epoch: the next Fetch asks about the one before
        return Cut(min(end, end_offset), False)
    return Cut(min(end, leader_end, end_offset), True)


def out_of_range(end_offset: int, leader_start: int, leader_end: int) -> Cut | StartAnew:
    """Return what to do. The leader's log begins at `leader_start` and ends at `leader_end`, its LEO.

    `Cut(end_offset)`: no record is removed, and the next Fetch has the same offset."""
    if leader_end < end_offset:
        return Cut(leader_end, True)
    if leader_start > end_offset:
        return StartAnew(leader_start)
    return Cut(end_offset, True)


def begins_anew(log_start: int, end_offset: int, base_offset: int, last_offset: int) -> StartAnew | None:
    """Handle a batch that begins below the end of our log and ends above it. DeleteRecords may move a
    leader's log start into a batch; a follower that began at that start must take the whole batch
    (UnexpectedAppendOffsetException). Return None if the batch contradicts our log."""
    if log_start == end_offset and base_offset < end_offset <= last_offset:
        return StartAnew(base_offset)
    return None
