"""Where a follower cuts its log to agree with its leader's (KIP-101, KIP-279, KIP-595's truncation on fetch).

A follower names in each Fetch the epoch of its last batch. A leader whose log has that epoch end below the
asked offset answers with a diverging epoch: the largest one that it knows up to the named one, and its end.

    begins_at      before the first Fetch: from where, and whether the log is cut there first
    diverged       after a diverging epoch: where to cut. The next Fetch names what is then the last epoch
    out_of_range   after OFFSET_OUT_OF_RANGE: the leader's log begins or ends elsewhere
    begins_anew    a leader's first batch begins below an empty follower's start

Rule 1: nothing here touches a log. All is said in offsets, so a test is a table.
Rule 2: `Cut.offset == end_offset` is not nothing. A follower that has led without a record knows an epoch
that begins at its end, and the leader may not: the epoch goes, else the same Fetch gets the same answer for
ever. Only where no epoch begins there is nothing cut; then the caller waits before it asks again.

Sources: AbstractFetcherThread.getOffsetTruncationState, fetchOffsetAndTruncate; ReplicaFetcherThread;
ReplicaManager.initialFetchOffset."""

from collections.abc import Callable
from typing import Final, NamedTuple

UNDEFINED: Final = -1  # of an epoch or an offset

EndOffsetFor = Callable[[int], tuple[int, int]]  # LeaderEpochs.end_offset_for of the follower's own log


class Beginning(NamedTuple):
    """Of a partition that is to be fetched."""

    offset: int
    last_epoch: int  # to name in the Fetch; UNDEFINED: there is none
    cut: bool  # the log is cut to `offset` first


class Cut(NamedTuple):
    offset: int  # the log's new end; at most the old one
    complete: bool  # False: the leader may answer with another diverging epoch


class StartAnew(NamedTuple):
    """Nothing is kept: the log goes on, empty, at `offset`."""

    offset: int


def begins_at(end_offset: int, high_watermark: int, last_epoch: int | None) -> Beginning:
    """Of a log whose latest epoch is `last_epoch`. Without epochs nobody can say where it and the leader's
    part, so what HW does not cover goes (ReplicaManager.initialFetchOffset)."""
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
    """The leader's largest epoch up to the one we named is `leader_epoch`, and ends at `leader_end`."""
    if leader_end == UNDEFINED:
        return Cut(min(high_watermark, end_offset), True)
    if leader_epoch == UNDEFINED:
        return Cut(min(leader_end, end_offset), True)
    epoch, end = end_offset_for(leader_epoch)
    if end == UNDEFINED:
        return Cut(min(leader_end, end_offset), True)
    if epoch != leader_epoch:  # we do not know the leader's: it is asked again about the one before
        return Cut(min(end, end_offset), False)
    return Cut(min(end, leader_end, end_offset), True)


def out_of_range(end_offset: int, leader_start: int, leader_end: int) -> Cut | StartAnew:
    """The leader's log goes from `leader_start` to `leader_end`, which is its LEO: replicas are not told HW.

    `Cut(end_offset)`: no record goes, the next Fetch is of the same offset."""
    if leader_end < end_offset:
        return Cut(leader_end, True)
    if leader_start > end_offset:
        return StartAnew(leader_start)
    return Cut(end_offset, True)


def begins_anew(log_start: int, end_offset: int, base_offset: int, last_offset: int) -> StartAnew | None:
    """For a batch that begins below the end of our log and goes beyond it. DeleteRecords may move a leader's
    log start into a batch; a follower that began at that start takes the whole batch
    (UnexpectedAppendOffsetException). None: the batch contradicts what we have."""
    if log_start == end_offset and base_offset < end_offset <= last_offset:
        return StartAnew(base_offset)
    return None
