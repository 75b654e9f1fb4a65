"""The long part of a truncation, which only reads the log: a thread does it before anything changes.

At its new end a log needs two indexes of its last segment, and the producers of that moment. Both are found
by a walk over the segment. Often it also needs a new file with the bytes that stay (`Plan.copies`): a
gigabyte, which is copied, and synced, in seconds. All of this depends on the log below its new end, which
does not change while a follower waits. So it is prepared in files that the next start would remove:

    00000000000000000000.log.3.cut.deleted         the bytes that stay, on disk
    00000000000000000000.index.3.cut.deleted       likewise .timeindex; .txnindex, if there is one

The loop then only gives them their names (`truncation.truncate_to`). Until then the log serves its readers as
before. If it changed meanwhile, so that the files no longer fit, the work begins again from its new state.

Beware: `Prepared.make` runs in a thread, and knows only the plan. Everything else runs on the loop."""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, NamedTuple, Protocol

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers, scan_segment
from kafkad.log.copying import SourceError, copy_range
from kafkad.log.filenames import (
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    offset_of,
    segment_file,
)
from kafkad.log.flusher import Flusher
from kafkad.log.owner import Owner
from kafkad.log.producer_state import load_snapshot
from kafkad.log.removal import unlink_later
from kafkad.log.txn_index import encode_entry, read_txn_index
from kafkad.protocol.errors import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, KafkaError, Malformed

logger = logging.getLogger("kafkad.log")

CUT: Final = ".cut"
COPIED_AT_A_TIME: Final = 8 << 20  # bytes; a stop waits for these, for a sync, or for a walk over a segment
UNSYNCED_MAX: Final = 64 << 20  # bytes; many more at once would make the syncs of others wait
TAIL_MAX: Final = 64 << 20  # bytes that are cut off in place: the file system frees a gigabyte in 0.1 s
FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))

_numbers = count()  # of prepared cuts: an abandoned one may still be on the disk


class Cuttable(Owner, Protocol):
    """The part of `log.Log` that this needs."""

    producer_expiration_ms: int
    cuts: int  # how often it was truncated

    @property
    def flusher(self) -> Flusher: ...

    def io(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; disk errors become KafkaError."""

    def truncate_to(self, offset: int, prepared: "Prepared | None" = None) -> bool: ...


class Cancelled(Exception):
    """Nobody wants what the thread prepares."""


class Plan(NamedTuple):
    """What a truncation does, as the log is now."""

    directory: str
    offset: int  # the new end of the log
    bases: tuple[int, ...]  # of the segments that stay
    position: int  # where the last one of them is cut
    created_ms: int  # when it was created
    copies: bool  # its bytes go to a new file
    in_place: bool  # unless they must, however much is cut off
    index_interval: int
    now_ms: int
    producer_expiration_ms: int
    state: tuple[int, int, int]  # changes whenever the files do, except by appends

    @property
    def base(self) -> int:
        return self.bases[-1]


def plan(log: Cuttable, offset: int, *, in_place: bool) -> Plan:
    """Plan the truncation to `offset`, which is in the log, and beyond the start of its first segment.
    `in_place`: copy only what may be on its way to somebody. Raises KafkaError."""
    native = log.native
    base, position = log.io(native.position_of, offset)
    rows = [row for row in native.segment_rows() if row[0] <= base]
    size = log.io(os.path.getsize, segment_file(log.directory, base, LOG))
    return Plan(
        directory=log.directory,
        offset=offset,
        bases=tuple(row[0] for row in rows),
        position=position,
        created_ms=rows[-1][2],
        copies=size > position
        and (_may_be_sent(log, offset) or (size - position > TAIL_MAX and not in_place)),
        in_place=in_place,
        index_interval=log.config.index_interval_bytes,
        now_ms=log.flusher.now_ms,
        producer_expiration_ms=log.producer_expiration_ms,
        state=_state(log),
    )


def _state(log: Cuttable) -> tuple[int, int, int]:
    return log.cuts, log.native.generation, log.native.first_base_offset


def _may_be_sent(log: Cuttable, offset: int) -> bool:
    """Return whether data from `offset` on may be on its way to somebody: consumers get what is below HW,
    followers of this broker got what is above."""
    return log.native.read_to_end or offset < log.high_watermark


class Prepared:
    """The files, and the producers, of a log as it will be."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.size = 0  # of the last segment
        self.max_timestamp = (-1, -1)
        self.snapshot_offset = -1
        self.cancelled = False
        self._producers = ProducerTable()
        self._given = False
        self._suffix = f".{next(_numbers)}{CUT}{DELETED}"
        self._made: list[str] = []  # suffixes of the files that are ready

    def make(self) -> None:
        """Raises OSError, ValueError, Cancelled; then nothing is left."""
        try:
            self._make()
        except BaseException:
            for path in self.paths:
                with suppress(OSError):
                    os.unlink(path)
            raise

    @property
    def paths(self) -> list[str]:
        """The files that there may be."""
        return [self._fresh(suffix) for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX)]

    def _make(self) -> None:
        plan = self.plan
        self._check()  # others may have been prepared for long before
        if plan.copies:
            self._copy()
        scan = scan_segment(  # by the headers: the bytes were checked when they came
            plan.directory,
            plan.base,
            ProducerTable(),
            index_interval=plan.index_interval,
            below=plan.offset,
            size=plan.position,
            index_suffix=self._suffix,
        )
        self._made += [INDEX, TIME_INDEX]
        self.size, self.max_timestamp = scan.valid_size, scan.max_timestamp
        self._check()
        transactions = segment_file(plan.directory, plan.base, TXN_INDEX)
        if os.path.exists(transactions):
            stay = [txn for txn in read_txn_index(transactions) if txn.last_offset < plan.offset]
            with open(self._fresh(TXN_INDEX), "wb") as file:
                file.write(b"".join(map(encode_entry, stay)))
            self._made.append(TXN_INDEX)
        self.snapshot_offset = load_producers(
            self._producers,
            plan.directory,
            plan.bases,
            plan.offset,
            plan.now_ms,
            plan.producer_expiration_ms,
        )
        self._check()

    def _copy(self) -> None:
        plan = self.plan
        path, fresh = segment_file(plan.directory, plan.base, LOG), self._fresh(LOG)
        with open(fresh, "wb") as new:
            at = unsynced = 0
            while at < plan.position:
                self._check()
                size = min(plan.position - at, COPIED_AT_A_TIME)
                try:
                    copy_range(path, fresh, at, size)
                except SourceError as e:
                    raise e.__cause__ or e from None
                at, unsynced = at + size, unsynced + size
                if unsynced >= UNSYNCED_MAX:
                    os.fdatasync(new.fileno())
                    unsynced = 0
            os.fdatasync(new.fileno())  # its new name may reach the disk before the data
        self._made.append(LOG)

    def _check(self) -> None:
        if self.cancelled:
            raise Cancelled

    def _fresh(self, suffix: str) -> str:
        return segment_file(self.plan.directory, self.plan.base, suffix) + self._suffix

    # -- on the loop -----------------------------------------------------------------------------------------

    def fits(self, log: Cuttable) -> bool:
        """Return whether the log is still as it was planned. Raises KafkaError."""
        before = self.plan
        if (before.directory, before.state) != (log.directory, _state(log)):
            return False
        if not log.native.first_base_offset < before.offset < log.end_offset:
            return False
        now = plan(log, before.offset, in_place=before.in_place)
        return (now.base, now.position) == (before.base, before.position) and before.copies >= now.copies

    def install(self, log: Cuttable) -> None:
        """Give the files their names; each is whole before and after. Raises OSError: call it again."""
        plan = self.plan
        path = segment_file(plan.directory, plan.base, LOG)
        if LOG in self._made:
            old = self._fresh(LOG) + DELETED
            with suppress(OSError):  # a thread frees its blocks; without links the loop does
                os.link(path, old)
            self._name(LOG)
            unlink_later(log.scheduler, 0, [old])
            log.native.read_to_end = log.native.open
        elif os.path.getsize(path) > plan.position:
            os.truncate(path, plan.position)
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            if suffix in self._made:
                self._name(suffix)
                if suffix == TXN_INDEX:
                    log.flusher.paths.add(segment_file(plan.directory, plan.base, TXN_INDEX))

    def _name(self, suffix: str) -> None:
        os.replace(self._fresh(suffix), segment_file(self.plan.directory, self.plan.base, suffix))
        self._made.remove(suffix)

    def give_producers(self, producers: ProducerTable) -> None:
        if not self._given:
            producers.take(self._producers)
            self._given = True

    def discard(self, log: Cuttable) -> None:
        unlink_later(log.scheduler, 0, self.paths)


def load_producers(
    producers: ProducerTable,
    directory: str,
    bases: tuple[int, ...],
    end_offset: int,
    now_ms: int,
    expiration_ms: int,
) -> int:
    """Fill an empty table with the producers at `end_offset`, from the newest good snapshot and the segments
    at `bases`, also from their batches below the log start: their producers are not gone. A snapshot before
    these segments is not good: batches after it are missing. Return where the replay began."""
    start = bases[0]
    for offset in sorted(snapshots_in(directory), reverse=True):
        if not bases[0] <= offset <= end_offset:
            continue
        path = segment_file(directory, offset, SNAPSHOT)
        try:
            load_snapshot(path, producers, now_ms, expiration_ms)
            start = offset
            break
        except Malformed as e:
            logger.warning("%s is unreadable and is ignored: %s", path, e)
    for base, next_base in pairwise([*bases, end_offset]):
        if next_base > start and base < end_offset:
            replay_producers(segment_file(directory, base, LOG), producers, start, end_offset)
    return start


def snapshots_in(directory: str) -> list[int]:
    """Return the offsets of the snapshots."""
    offsets = (offset_of(name) for name in os.listdir(directory) if name.endswith(SNAPSHOT))
    return [offset for offset in offsets if offset is not None]


Done = Callable[[KafkaError | None], None]


class Cutting:
    """A truncation that does not hold up the loop. `done` is called with None when the log ends at `offset`,
    or with what refuses it; not after `cancel`."""

    def __init__(self, log: Cuttable, offset: int, done: Done) -> None:
        self._log = log
        self._offset = offset
        self._done = done
        self._prepared: Prepared | None = None
        self._in_place = False
        self._cancelled = False
        log.scheduler.call_later(0, self._begin)

    def cancel(self) -> None:
        """Leave the log as it is: it is not followed any more, or from another leader."""
        self._cancelled = True
        if self._prepared is not None:
            self._prepared.cancelled = True

    def _begin(self) -> None:
        if self._cancelled:
            return
        log = self._log
        try:
            self._expect_open()
            if self._offset <= log.native.first_base_offset or self._offset >= log.end_offset:
                log.truncate_to(self._offset)  # nothing is to be prepared
            else:
                planned = plan(log, self._offset, in_place=self._in_place)
                prepared = self._prepared = Prepared(planned)
                log.scheduler.run_in_thread(prepared.make, partial(self._made, prepared), lane="cut")
                return
        except KafkaError as e:
            self._done(e)
        else:
            self._done(None)

    def _made(self, prepared: Prepared, trouble: BaseException | None) -> None:
        if self._cancelled:
            prepared.discard(self._log)
            return
        try:
            self._expect_open()
            if not prepared.fits(self._log):
                prepared.discard(self._log)
                self._begin()
                return
            if self._needs_no_room(prepared, trouble):
                self._in_place = True
                self._begin()
                return
            if trouble is not None:
                raise refusal_of(self._log, trouble)
            self._log.truncate_to(self._offset, prepared)
        except KafkaError as e:
            if not self._log.halted:  # otherwise it is tried again
                prepared.discard(self._log)
            self._done(e)
        else:
            self._done(None)

    def _needs_no_room(self, prepared: Prepared, trouble: BaseException | None) -> bool:
        """Return whether the disk was too full for a copy, and the truncation, which frees some of it, can do
        without."""
        is_full = isinstance(trouble, OSError) and trouble.errno in FULL
        return is_full and prepared.plan.copies and not _may_be_sent(self._log, self._offset)

    def _expect_open(self) -> None:
        if self._log.closed:
            raise KafkaError(KAFKA_STORAGE_ERROR, f"{self._log.directory} is closed")


def refusal_of(log: Cuttable, trouble: BaseException) -> KafkaError:
    """Return what to raise after `Prepared.make` has raised `trouble`: the log is unchanged."""
    if isinstance(trouble, MemoryError):
        trouble = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if isinstance(trouble, OSError):
        return log.refuse(trouble)
    if isinstance(trouble, ValueError):
        return KafkaError(CORRUPT_MESSAGE, str(trouble))
    raise trouble
