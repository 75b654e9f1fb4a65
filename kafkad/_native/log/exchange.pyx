"""Replacing closed segments by one that the log cleaner wrote, while readers in every worker use them.

The owner does it in one turn of its loop: `begin_exchange`, the renames, `end_exchange`. The shared row is odd in
between. A reader that has the old files open may finish: they stay whole. A reader that opens a file by its name checks
the row afterwards (partition_reader.pyx). If the row is odd, or names another generation, the file may be either one;
the reader closes it and lists the directory again.

If the owner dies in between, the row stays odd until its successor has finished the renames and adopts the row.

Beware: nothing else may write the row between the two calls."""

from libc.stdint cimport int64_t
from libc.string cimport memmove, memset

from kafkad._native.log.batch_search cimport lookup_forget
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.segments cimport UNKNOWN, Segment, segment_drop
from kafkad._native.shared.watermarks cimport row_begin, row_end


def begin_exchange(Partition partition not None) -> None:
    """The files of closed segments are about to be renamed."""
    row_begin(partition.row)


def abandon_exchange(Partition partition not None) -> None:
    """The renames failed half-way: make readers list the directory again."""
    partition.row.generation += 1
    row_end(partition.row)


def end_exchange(Partition partition not None, int first, int end, int64_t size, int64_t created_ms) -> None:
    """Replace segments `first` to `end` - 1, all closed, by one of `size` bytes with the name of the first."""
    cdef Segment* segment
    cdef int64_t base, last
    cdef int i
    if not 0 <= first < end < partition.segment_count:
        raise IndexError((first, end))
    base = partition.segments[first].base_offset
    last = partition.segments[end - 1].base_offset
    for i in range(first, end):
        segment_drop(&partition.segments[i])
    segment = &partition.segments[first]
    memset(segment, 0, sizeof(Segment))
    segment.base_offset = base
    segment.size = size
    segment.created_ms = created_ms
    segment.max_timestamp = UNKNOWN
    segment.first_timestamp = UNKNOWN
    memmove(segment + 1, &partition.segments[end], (partition.segment_count - end) * sizeof(Segment))
    partition.segment_count -= end - first - 1
    lookup_forget(&partition.lookup)
    # A position in these segments moves to the end of the new one. A watermark may stand there: right after a roll its
    # position may still be the end of the segment before.
    for i in range(partition.transactions.head, partition.transactions.end):
        if base <= partition.transactions.places[i].segment <= last:
            partition.transactions.places[i].segment = base
            partition.transactions.places[i].position = size
    if base <= partition.row.high_watermark_segment <= last:
        partition.row.high_watermark_segment = base
        partition.row.high_watermark_position = size
    if base <= partition.row.stable_segment <= last:
        partition.row.stable_segment = base
        partition.row.stable_position = size
    partition.row.generation += 1
    partition.exchanges += 1
    row_end(partition.row)
