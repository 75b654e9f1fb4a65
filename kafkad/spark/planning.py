"""Plan a read: how far a micro-batch goes, and which offset ranges are one task each. Pure functions.

    prorate      the batch's end: a limit of records or bytes, shared among partitions by their backlog
    ranges_of    start and end to ranges, with lost offsets, in the connector's order of checks
    split        ranges to tasks: by bytes, by records, and up to a wanted number

A range is never empty. Splitting keeps the order of offsets, and neither drops nor repeats one: the first
piece begins at the range's start, each piece begins at the end of the previous one, and the last ends at the
range's end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafkad.spark.options import TopicPartition, shown

Partitions = dict[TopicPartition, int]
Weights = Mapping[TopicPartition, float]  # bytes per offset

PIECES_MAX = 100_000  # tasks of one plan: beyond it the driver is the bottleneck, not the data


class Range(NamedTuple):
    """Offsets start <= offset < end of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def where(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def length(self) -> int:
        return self.end - self.start


# -- limits ------------------------------------------------------------------------------------------------


def backlog(start: Partitions, latest: Partitions, earliest: Partitions) -> Partitions:
    """Return how many offsets there are to read, by partition; new partitions begin at their earliest
    offset."""
    counts = {where: end - start.get(where, earliest.get(where, 0)) for where, end in latest.items()}
    return {where: count for where, count in counts.items() if count > 0}


def prorate(
    start: Partitions,
    latest: Partitions,
    earliest: Partitions,
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    weights: Weights | None = None,
) -> Partitions:
    """Return the end of a batch of about `records_max` records and `bytes_max` bytes. Each partition gets its
    share by its backlog, rounded down, and at least one record, so that a small partition is never starved (a
    batch may exceed the limit by a record per partition). `earliest` has the new partitions, which are not in
    `start`.
    """
    counts = backlog(start, latest, earliest)
    allowed = dict(counts)
    if records_max is not None:
        for where, share in shares(counts, records_max).items():
            allowed[where] = min(allowed[where], share)
    if bytes_max is not None and weights:
        mean = sum(weights.values()) / len(weights)  # for partitions without a weight
        sizes = {where: count * (weights.get(where) or mean) for where, count in counts.items()}
        total = sum(sizes.values())
        for where, count in counts.items():
            if total > bytes_max:
                allowed[where] = min(allowed[where], max(1, int(count * (bytes_max / total))))
    end = dict(latest)
    for where, count in allowed.items():
        end[where] = start.get(where, earliest.get(where, 0)) + count
    return end


def shares(counts: Partitions, limit: int) -> Partitions:
    """Return each partition's part of `limit`, in exact integers, because offsets exceed 2^53."""
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    return {where: max(1, limit * count // total) for where, count in counts.items()}


# -- ranges ------------------------------------------------------------------------------------------------


def new_partitions(start: Partitions, end: Partitions) -> list[TopicPartition]:
    return sorted(set(end) - set(start))


def ranges_of(start: Partitions, end: Partitions, earliest: Partitions) -> tuple[list[Range], list[str]]:
    """Return (ranges, losses): what to read, and a message for each loss. `earliest` has the partitions that
    are only in `end`, except those that are gone already.
    """
    losses: list[str] = []
    new = new_partitions(start, end)
    lost = [where for where in new if where not in earliest]
    if lost:
        losses.append(f"cannot find the earliest offset of {listed(lost)}: deleted meanwhile")
    losses += [
        f"added partition {shown(where)} starts from {earliest[where]} instead of 0"
        for where in new
        if earliest.get(where, 0) != 0
    ]
    gone = sorted(set(start) - set(end))
    if gone:
        losses.append(f"{listed(gone)} {'are' if len(gone) > 1 else 'is'} gone")
    ranges = []
    begins = earliest | start
    for where in sorted(end):
        if where not in begins:
            continue
        first, last = begins[where], end[where]
        if last < first:
            losses.append(f"partition {shown(where)}'s offset was changed from {first} to {last}")
        elif last > first:
            ranges.append(Range(*where, first, last))
    return ranges, losses


def listed(partitions: list[TopicPartition]) -> str:
    names = [shown(where) for where in partitions]
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:5])} and {len(names) - 5} more"


# -- tasks -------------------------------------------------------------------------------------------------


def split(
    ranges: Iterable[Range],
    *,
    weights: Weights | None = None,
    bytes_max: int | None = None,
    records_max: int | None = None,
    pieces_min: int | None = None,
) -> list[Range]:
    """Return the ranges of tasks: none with more than about `bytes_max` bytes (if `weights` has them) or more
    than `records_max` offsets, and about `pieces_min` in all, if there are as many offsets. Ranges stay
    larger if there would be more than PIECES_MAX tasks.
    """
    ranges = [each for each in ranges if each.length > 0]
    pieces = dict.fromkeys(ranges, 1)
    for each in ranges:
        wanted = 1
        if bytes_max is not None and weights:
            wanted = math.ceil(each.length * weights.get(each.where, 0.0) / bytes_max)
        if records_max is not None:
            wanted = max(wanted, -(-each.length // records_max))
        pieces[each] = max(1, min(wanted, each.length))
    if pieces_min is not None and sum(pieces.values()) < pieces_min:
        share_out(pieces, pieces_min, weights or {})
    total = sum(pieces.values())
    if total > PIECES_MAX:
        pieces = {each: max(1, number * PIECES_MAX // total) for each, number in pieces.items()}
    return [piece for each in ranges for piece in cut(each, pieces[each])]


def share_out(pieces: dict[Range, int], pieces_min: int, weights: Weights) -> None:
    """Give large ranges more pieces, until there are `pieces_min`: always one more for the range with the
    largest pieces.
    """
    mean = sum(weights.values()) / len(weights) if weights else 1.0
    sizes = {each: each.length * (weights.get(each.where) or mean) for each in pieces}
    heap = [(-sizes[each] / pieces[each], each) for each in pieces if pieces[each] < each.length]
    heapq.heapify(heap)
    missing = min(pieces_min, PIECES_MAX) - sum(pieces.values())
    while missing > 0 and heap:
        _, each = heapq.heappop(heap)
        pieces[each] += 1
        missing -= 1
        if pieces[each] < each.length:
            heapq.heappush(heap, (-sizes[each] / pieces[each], each))


def cut(whole: Range, pieces: int) -> list[Range]:
    """Return `pieces` ranges of equal length, up to one offset; in order, without gaps."""
    each, more = divmod(whole.length, pieces)
    found, at = [], whole.start
    for number in range(pieces):
        end = at + each + (number < more)
        found.append(Range(whole.topic, whole.partition, at, end))
        at = end
    assert at == whole.end
    return found
