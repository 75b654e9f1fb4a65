"""One cleaning of one compacted log, on its files (Kafka's Cleaner).

    clean(job, swap)          reads the dirty part, rewrites each group of segments, gives it to `swap`
    announce_swap, swap_in    what `swap` does: the two halves of an exchange of files

A group is written as `<first base>.log.cleaned` with its indexes, and synced. `announce_swap` renames these
to `.swap` and syncs the directory: from then on the next start completes the exchange, whatever happens.
`swap_in` renames the old files away and the new ones into place. It only renames, so an owner may do it in a
turn of its loop.

Beware:
- Old files are removed from the oldest on. If a tombstone were removed before the records that it deletes,
  they would come back.
- Old files are renamed, not unlinked: readers have them open, or are about to open them.
- `clean` runs in a thread. It gets everything it needs beforehand, except `last_records`, which it requests
  for each group."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from kafkad._native.log.cleaned_transactions import CleanedTransactions
from kafkad._native.log.cleaner import Cleaning, Mapping
from kafkad._native.log.offset_map import OffsetMap
from kafkad._native.wire.records import Record
from kafkad.log.checkpoints import sync_directory, write_new
from kafkad.log.filenames import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from kafkad.log.legacy_cleaning import as_batch, is_legacy, run_of
from kafkad.protocol import compression
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry
from kafkad.protocol.records import DECOMPRESSED_MAX, HEADER_SIZE, Batch

CHUNK: Final = 512 << 10  # with the map of keys, it should stay in a CPU's second-level cache
AHEAD_MIN: Final = 128 << 10  # the first read after skipped batches
SLOT: Final = 24  # bytes of an OffsetMap
RELATIVE_MAX: Final = (1 << 31) - 1  # the largest relative offset in an index

Aborted = tuple[int, int, int, int]  # producer id, first offset, last offset, last stable offset
LastRecords = dict[int, tuple[int, int]]  # producer id -> last data offset or -1, epoch


@dataclass(frozen=True, slots=True)
class Segment:
    base_offset: int
    size: int
    index_size: int = 0
    time_index_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`segments`: all from the log's first one up to `first_uncleanable`, where the next one begins.
    `aborted`: of all transactions with a record there. `memory`: maximum size of the offset map. `progress`
    gets the number of bytes read or written; it may wait, or raise to end the cleaning. `legacy_horizon_ms`:
    a segment that was modified then or before loses its tombstones of magic 0 and 1."""

    directory: str
    segments: tuple[Segment, ...]
    first_dirty: int
    first_uncleanable: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval: int
    memory: int
    load_factor: float = 0.9
    aborted: tuple[Aborted, ...] = ()
    last_records: Callable[[], LastRecords] = dict
    progress: Callable[[int], None] = lambda size: None
    legacy_horizon_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a group: one segment, whose files are beside those of `replaced`."""

    directory: str
    base_offset: int
    replaced: tuple[int, ...]
    suffixes: tuple[str, ...]
    size: int
    max_timestamp: int


@dataclass(slots=True)
class Outcome:
    """`end_offset`: where the dirty part of the next cleaning begins."""

    end_offset: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keyless: int = 0
    groups: list[Cleaned] = field(default_factory=list)


class _Pass(Protocol):
    def feed(self, data: memoryview, position: int) -> int: ...


Skip = Callable[[int, int, int], int]  # fd, position, end of the file -> position
Decompressed = Callable[[memoryview, Batch, bytes, int], bool]
Convert = Callable[[list[LegacyEntry]], bytearray | None]


def clean(job: Job, swap: Callable[[Cleaned], None]) -> Outcome:
    """Clean the log once. Raises Malformed for batches that do not parse, OSError, and the exceptions of
    `progress`; groups passed to `swap` before stay as they are."""
    offsets = OffsetMap(_map_size(job), job.load_factor)
    try:
        offsets.follow(job.first_dirty, job.first_uncleanable)
        end = _map_dirty(job, offsets)
        outcome = Outcome(end)
        cleaning = Cleaning(
            offsets,
            transactions := CleanedTransactions(job.aborted),
            job.first_uncleanable,
            job.now_ms,
            job.delete_retention_ms,
            job.index_interval,
        )
        for group in groups(job, end):
            try:
                cleaned = _clean_group(job, group, cleaning, transactions, offsets.latest_offset)
                swap(cleaned)
            except BaseException:
                _discard(job.directory, group[0].base_offset)
                raise
            outcome.groups.append(cleaned)
            outcome.bytes_before += sum(segment.size for segment in group)
            outcome.bytes_after += cleaned.size
        outcome.records_before = cleaning.records_read
        outcome.records_after = cleaning.records_kept
        outcome.keyless = cleaning.keyless
        return outcome
    finally:
        offsets.close()


def groups(job: Job, end: int) -> list[list[Segment]]:
    """Return the segments that begin below `end`, grouped by how many fit in one segment."""
    found: list[list[Segment]] = []
    segments = [segment for segment in job.segments if segment.base_offset < end]
    size = index = time_index = 0
    for at, segment in enumerate(segments):
        behind = _behind(segments, at, job.first_uncleanable)
        size += segment.size
        index += segment.index_size
        time_index += segment.time_index_size
        fits = size <= job.segment_bytes and index <= job.index_bytes and time_index <= job.index_bytes
        if found and fits and (segment.size == 0 or behind - 1 - found[-1][0].base_offset <= RELATIVE_MAX):
            found[-1].append(segment)
        else:
            found.append([segment])
            size, index, time_index = segment.size, segment.index_size, segment.time_index_size
    return found


def _behind(segments: Sequence[Segment], at: int, end: int) -> int:
    return segments[at + 1].base_offset if at + 1 < len(segments) else end


def announce_swap(cleaned: Cleaned) -> None:
    """From here on the next start completes the exchange. While one file is `.cleaned`, it removes all of
    them."""
    rename_to_swap(cleaned)
    sync_directory(cleaned.directory)


def rename_to_swap(cleaned: Cleaned) -> None:
    """Do the first half of `announce_swap`."""
    for suffix in reversed(cleaned.suffixes):
        path = segment_file(cleaned.directory, cleaned.base_offset, suffix)
        os.replace(path + CLEANED, path + SWAP)


def take_back_swap(cleaned: Cleaned) -> None:
    """Cancel what `announce_swap` announced: later changes of the log would be undone by the next start. The
    .log goes last: without it, a start would take the other files for those of the present one."""
    for suffix in reversed(cleaned.suffixes):
        with suppress(FileNotFoundError):
            os.unlink(segment_file(cleaned.directory, cleaned.base_offset, suffix) + SWAP)


def swap_in(cleaned: Cleaned) -> list[str]:
    """Exchange the files that `announce_swap` announced. Return the paths of the old ones, to be unlinked
    when the directory is synced and no reader can be about to open one."""
    old = []
    for base in cleaned.replaced:
        for suffix in SEGMENT_SUFFIXES if base == cleaned.base_offset else (*SEGMENT_SUFFIXES, SNAPSHOT):
            path = segment_file(cleaned.directory, base, suffix)
            with suppress(FileNotFoundError):
                os.replace(path, path + DELETED)
                old.append(path + DELETED)
    for suffix in cleaned.suffixes:
        path = segment_file(cleaned.directory, cleaned.base_offset, suffix)
        os.replace(path + SWAP, path)
    return old


def _discard(directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        with suppress(OSError):  # the next start removes the rest
            os.unlink(segment_file(directory, base_offset, suffix) + CLEANED)


def _map_size(job: Job) -> int:
    # No more keys than offsets: a small log needs little, whatever the size of the buffer.
    wanted = int((job.first_uncleanable - job.first_dirty) / job.load_factor) + 16
    return min(job.memory, wanted * SLOT)


def _map_dirty(job: Job, offsets: OffsetMap) -> int:
    """Fill the map. Return the offset after those that it has."""
    # Skip earlier transactions: their markers are outside of this pass, so they would hide later records of
    # their producers.
    aborted = [each for each in job.aborted if each[2] >= job.first_dirty]
    mapping = Mapping(offsets, CleanedTransactions(aborted), job.first_dirty)

    def decompressed(data: memoryview, batch: Batch, plain: bytes, position: int) -> bool:
        return mapping.feed_plain(data, position, plain) != position

    def convert(run: list[LegacyEntry]) -> bytearray | None:
        mapping.begin(-1)  # it does not see these bytes, so it does not know where later batches are
        if run[-1].offset < job.first_dirty:
            return None
        offsets.unfollow()  # the second pass makes other batches of them
        return as_batch(run, packed=False)

    for at, segment in enumerate(job.segments):
        behind = _behind(job.segments, at, job.first_uncleanable)
        if behind <= job.first_dirty:
            continue
        mapping.begin(segment.base_offset)
        for _ in _feed(job, segment, mapping, decompressed, convert):
            pass
        if mapping.full:
            break
        offsets.latest_offset = max(offsets.latest_offset, behind - 1)
    return max(offsets.latest_offset + 1, job.first_dirty)


def _feed(
    job: Job,
    segment: Segment,
    passing: _Pass,
    decompressed: Decompressed,
    convert: Convert,
    skip: Skip | None = None,
) -> Iterator[None]:
    """Pass the segment's batches to a pass, and pause after each chunk. `decompressed` gets those to
    decompress; it returns False if the pass takes no more. `convert` makes a batch of old messages, or
    None. `skip` passes over batches that need not be read."""
    path = segment_file(job.directory, segment.base_offset, LOG)
    buffer = bytearray(min(CHUNK, segment.size))
    ahead = len(buffer)
    position = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while position < segment.size:
            if skip is not None:
                behind = skip(fd, position, segment.size)
                if behind > position:
                    job.progress(0)
                    yield
                    position = behind
                    ahead = min(AHEAD_MIN, len(buffer))  # the batches behind those may be skipped, too
                    continue
            view = memoryview(buffer)[: min(ahead, segment.size - position)]
            size = os.preadv(fd, [view], position)
            data = view[:size]
            taken = passing.feed(data, 0)
            while taken < size:
                if is_legacy(data, taken):
                    run, behind = run_of(data, taken)
                    if not run:
                        break
                    if (converted := convert(run)) is not None:
                        view = memoryview(converted)
                        if not passing.feed(view, 0) and not _unpack(view, 0, decompressed):
                            return
                    taken = passing.feed(data, behind)
                elif (batch := _whole_batch(data, taken)) is None:
                    break
                elif _unpack(data, taken, decompressed):
                    taken = passing.feed(data, taken + batch.size)
                else:
                    return
            job.progress(taken)
            yield
            position += taken
            if ahead < len(buffer):
                ahead = min(ahead * 2 if taken else len(buffer), len(buffer))
            elif taken == 0:
                buffer = _buffer_for(path, data, position, segment.size - position)
                ahead = len(buffer)
    finally:
        os.close(fd)


def _unpack(data: memoryview, position: int, decompressed: Decompressed) -> bool:
    """Pass on the batch at `position`, which must be decompressed first. False: the pass takes no more."""
    batch = Batch(data, position)
    if not batch.compression:
        return False
    plain = compression.decompress(batch.compression, batch.bytes[HEADER_SIZE:], DECOMPRESSED_MAX)
    return decompressed(data, batch, plain, position)


def _whole_batch(data: memoryview, position: int) -> Batch | None:
    if len(data) - position < HEADER_SIZE:
        return None
    if 12 + int.from_bytes(data[position + 8 : position + 12], "big") > len(data) - position:
        return None
    return Batch(data, position)


def _buffer_for(path: str, data: memoryview, position: int, left: int) -> bytearray:
    """Return a buffer for a batch longer than a chunk."""
    size = 12 + int.from_bytes(data[8:12], "big") if len(data) >= HEADER_SIZE else left + 1
    if not len(data) < size <= left:
        raise Malformed(f"{path} ends within the batch at position {position}")
    return bytearray(size)


def _modified_ms(job: Job, segment: Segment) -> int:
    return os.stat(segment_file(job.directory, segment.base_offset, LOG)).st_mtime_ns // 1_000_000


def _clean_group(
    job: Job,
    group: Iterable[Segment],
    cleaning: Cleaning,
    transactions: CleanedTransactions,
    latest_offset: int,
) -> Cleaned:
    segments = list(group)
    base = segments[0].base_offset
    cleaning.begin(base, job.last_records())

    def decompressed(data: memoryview, batch: Batch, plain: bytes, position: int) -> bool:
        kept = cleaning.feed_plain(data, position, plain)
        if kept is not None:
            cleaning.put_compressed(compression.compress(batch.compression, kept))
        return True

    def convert(run: list[LegacyEntry]) -> bytearray | None:
        is_end = run[-1].offset + 1 == job.first_uncleanable  # it marks the end of the log
        if is_end or segment_modified_ms > job.legacy_horizon_ms:
            return as_batch(run)
        return as_batch(run, keep=stays)

    def stays(record: Record) -> bool:
        # An old tombstone that is retained no longer; a batch of magic 2 has its own horizon.
        return record.value is not None or record.key is None or record.offset > latest_offset

    def skip(source: int, position: int, end: int) -> int:
        return cleaning.skip(source, position, end, fd, segment.base_offset)

    log = segment_file(job.directory, base, LOG)
    fd = os.open(log + CLEANED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for segment in segments:
            segment_modified_ms = _modified_ms(job, segment)
            for _ in _feed(job, segment, cleaning, decompressed, convert, skip):
                job.progress(cleaning.write_to(fd))
        if (written := os.fstat(fd).st_size) != cleaning.size:  # the indexes would not fit
            raise AssertionError(f"{log}{CLEANED} has {written} bytes instead of {cleaning.size}")
        os.fsync(fd)
    finally:
        os.close(fd)
    index, time_index = cleaning.finish()
    contents = {INDEX: index, TIME_INDEX: time_index}
    if aborted := transactions.take_kept():
        contents[TXN_INDEX] = aborted
    for suffix, data in contents.items():
        write_new(segment_file(job.directory, base, suffix) + CLEANED, data, sync=True)
    # Retention and the next start use this as the time of the newest record if no record has one.
    modified = os.stat(segment_file(job.directory, segments[-1].base_offset, LOG)).st_mtime_ns
    os.utime(log + CLEANED, ns=(modified, modified))
    replaced = tuple(segment.base_offset for segment in segments)
    return Cleaned(job.directory, base, replaced, (LOG, *contents), cleaning.size, cleaning.max_timestamp)
