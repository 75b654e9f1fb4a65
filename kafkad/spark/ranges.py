"""The offset ranges of a batch read, and their split into tasks, with the brokers' offsets."""

from __future__ import annotations

from kafkad.spark import planning
from kafkad.spark.offsets import OffsetReader
from kafkad.spark.options import EARLIEST, LATEST, ReadOptions, shown
from kafkad.spark.planning import Range

# above this many offsets in a range, ask the brokers for sizes to split by bytes
WEIGHED_OFFSETS_MIN = 1000


def whole_ranges(options: ReadOptions, offsets: OffsetReader) -> list[Range]:
    """Return the ranges from startingOffsets to endingOffsets, resolved."""
    partitions = offsets.partitions()
    if options.start.word == EARLIEST and options.end.word == LATEST:
        start, end = offsets.list_both(partitions)
    else:
        start = offsets.settled(offsets.resolve(options.start, partitions, starting=True))
        end = offsets.settled(offsets.resolve(options.end, partitions, starting=False))
    for where in partitions:
        if start[where] > end[where]:
            raise ValueError(
                f"the start of {shown(where)} is offset {start[where]}, behind its end at {end[where]}: "
                f"see options {options.start.option} and {options.end.option}"
            )
    return [Range(*where, start[where], end[where]) for where in partitions if end[where] > start[where]]


def split_by(options: ReadOptions, offsets: OffsetReader, ranges: list[Range]) -> list[Range]:
    """Return the ranges of tasks, according to the options."""
    large = sorted({each.where for each in ranges if each.length >= WEIGHED_OFFSETS_MIN})
    return planning.split(
        ranges,
        weights=offsets.bytes_per_offset(large) if large else {},
        bytes_max=options.partition_bytes,
        records_max=options.partition_records_max,
        pieces_min=options.partitions_min,
    )
