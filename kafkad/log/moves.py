"""Replicas on their way to another data directory of this broker (KIP-113).

A move copies the log's files into `<topic>-<partition>.<32 hex>-future` of the target (copying.py), while the
log goes on where it is:

    WAITING    for its turn, or for the cleaner; a log that moves is not cleaned
    COPYING    a piece at a time, within replica.alter.log.dirs.io.max.bytes.per.second
    TELLING    almost all is there: the controller is told the new directory (KIP-858), until the metadata
               has it. The copy follows the log meanwhile
    SWAPPING   the flushed offset is held; the copy, and its checkpoint entries, are synced. Then, in one turn
               of the loop between two appends, what was appended since is copied, and the names change

The names change in this order: the old directory's to `-delete`, then the copy's to the plain one. A start
after a kill that finds the plain old one goes on with the move (`found`, `resume`). If it finds none, the
metadata name the copy, which is complete, and it gets its name (`promote`). After a power loss both may be
there: the one that the metadata name is taken. A JVM's `-future` directories are treated the same.

A move ends early if it is cancelled, if the partition is deleted, or if a disk fails: with the target's the
copy is left there, and with the source's the partition is offline. A later start goes on if both are back.

Of several workers each moves what it owns, with its share of the rate."""

import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Final, Protocol

from kafkad.clock import Clock
from kafkad.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    sync_directory,
    write_partition_metadata,
)
from kafkad.log.copying import PIECE, Copy, Sight, SourceError
from kafkad.log.directory import Directory, Key
from kafkad.log.filenames import (
    DELETE_DIR,
    FUTURE_DIR,
    left_directory,
    parse_directory,
    partition_directory,
)
from kafkad.log.flusher import FATAL, LONG_MAX
from kafkad.log.leader_epochs import OFFSET_MAX
from kafkad.log.log import Log
from kafkad.log.scheduler import Scheduler
from kafkad.log.shortages import report
from kafkad.log.strays import set_aside, topic_id_of
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError

logger = logging.getLogger("kafkad.log")

NEAR: Final = 4 << 20  # bytes: so few are copied within the time of a few appends
TAIL_MAX: Final = 1 << 20  # bytes copied in the turn in which the names change
INDEXES_MAX: Final = 4 << 20  # bytes of the active segment's indexes, copied in that turn
TELL_AGAIN_MS: Final = 5_000
LOOK_MS: Final = 20  # how often to look whether something has ended
HELD_MS_MAX: Final = 5_000  # acks of a topic with flush.messages wait meanwhile
AGAIN_MS: Final = 1_000  # after a shortage, or when the log was too fast
PREFERRED_MAX: Final = 100_000


class Stage(Enum):
    WAITING = "waiting"
    COPYING = "copying"
    TELLING = "telling"
    SWAPPING = "swapping"
    OVER = "over"


class Directories(Protocol):
    """The part of LogDirs that moves need."""

    clock: Clock

    @property
    def scheduler(self) -> Scheduler: ...
    def directories(self) -> list[Directory]: ...
    def directory_of(self, topic: str, index: int) -> Directory: ...
    def get(self, topic: str, index: int) -> Log | None: ...
    def go_offline(self, directory: Directory) -> None: ...
    def moved(self, log: Log, directory: Directory, left: str) -> None: ...
    def remove_later(self, delay_ms: int, path: str) -> None: ...


class Move:
    """One replica's."""

    def __init__(self, log: Log, directory: Directory, path: str) -> None:
        self.log = log
        self.directory = directory
        self.copy = Copy(path)
        self.stage = Stage.WAITING
        self.end_offset = 0  # up to which the copy has the log
        self.told_ms = -1  # when the controller was told last; -1: never
        self.held_ms = -1  # since when no flush begins
        self.prepared = (-1, -1)  # end and start of the log when the copy was synced

    @property
    def key(self) -> Key:
        return self.log.topic, self.log.partition

    @property
    def lag(self) -> int:
        """As DescribeLogDirs tells it."""
        return -1 if self.log.closed else max(self.log.end_offset - self.end_offset, 0)

    def sight(self) -> Sight:
        log = self.log
        rows = tuple((base, size) for base, size, _ in log.native.segment_rows())
        return Sight(log.directory, rows, log.log_start_offset, log.end_offset, tuple(log.epochs))

    def mind_cuts(self) -> None:
        """Call while no thread copies."""
        if self.log.cut_to < OFFSET_MAX:
            self.copy.cut(self.log.cut_to)
            self.log.cut_to = OFFSET_MAX


class Moves:
    """The hooks are set by the worker, before the loop runs."""

    def __init__(self, place: Directories) -> None:
        self.tell: Callable[[], None] = lambda: None  # report the directories of all replicas, see `told_of`
        # (topic, index): the id of the directory that the metadata name
        self.assigned: Callable[[str, int], bytes] = lambda topic, index: bytes(16)
        self.rate: Callable[[], int] = lambda: LONG_MAX  # bytes a second of this worker
        self.is_busy: Callable[[Log], bool] = lambda log: False  # its files are being read by name
        self.on_moved: Callable[[Log], None] = lambda log: None
        self.at_once = 1
        self._place = place
        self._moves: dict[Key, Move] = {}
        self._preferred: dict[Key, str] = {}
        self._found: dict[Key, list[tuple[Directory, str]]] = {}  # at the start
        self._left: dict[Key, list[tuple[Directory, str]]] = {}  # of them, those without a log
        self._started = self._telling = False
        self._debt = 0.0  # bytes copied ahead of the rate
        self._paid_ms = 0
        self._stopped = False

    # -- what is asked for -----------------------------------------------------------------------------------

    def __contains__(self, log: object) -> bool:
        return isinstance(log, Log) and self.of(log.topic, log.partition) is not None

    def of(self, topic: str, index: int) -> Move | None:
        return self._moves.get((topic, index))

    def into(self, directory: Directory) -> Iterator[Move]:
        """The moves with a copy in this directory."""
        return (move for move in list(self._moves.values()) if move.directory is directory)

    def told_of(self, log: Log) -> bytes:
        """Return the id of the directory that the broker reports for a log."""
        move = self._moves.get((log.topic, log.partition))
        if move is not None and move.told_ms >= 0 and move.stage is not Stage.OVER:
            return move.directory.id
        return self._place.directory_of(log.topic, log.partition).id

    def begin(self, log: Log, directory: Directory) -> None:
        """Move a log to `directory`, and to no other one. Raises KafkaError."""
        key = log.topic, log.partition
        before = self._moves.get(key)
        if before is not None and before.directory is not directory:
            self._cancel(before)
            before = None
        if before is not None or self._place.directory_of(*key) is directory:
            return
        offline = [each.path for each in self._place.directories() if each.offline]
        if offline:
            raise KafkaError(KAFKA_STORAGE_ERROR, f"log directories are offline: {', '.join(offline)}")
        path = os.path.join(directory.path, left_directory(*key, uuid.uuid4().hex, FUTURE_DIR))
        try:
            os.mkdir(path)
            write_partition_metadata(path, log.topic_id, sync=False)
        except OSError as e:
            self._refused(directory, path, e)
            with suppress(OSError):
                os.rmdir(path)
            raise KafkaError(KAFKA_STORAGE_ERROR, f"{path} cannot be created: {e}") from e
        logger.info("%s-%d moves from %s to %s", *key, log.directory, directory.path)
        self._add(Move(log, directory, path))

    def prefer(self, topic: str, index: int, path: str) -> None:
        """A replica that is not here yet will be created in this directory."""
        if len(self._preferred) < PREFERRED_MAX or (topic, index) in self._preferred:
            self._preferred[topic, index] = path

    def choose(self, key: Key, online: list[Directory]) -> list[Directory]:
        """Return the directories for a new replica: `online`, or the one that was preferred."""
        path = self._preferred.pop(key, None)
        return [each for each in online if each.path == path] or online

    def drop(self, topic: str, index: int) -> None:
        """The partition is deleted here."""
        move = self._moves.get((topic, index))
        if move is not None:
            self._end(move)
            self._remove(move.copy.directory, move.directory)
        for directory, path in self._left.pop((topic, index), ()):
            self._remove(path, directory)

    def _cancel(self, move: Move) -> None:
        logger.info("%s-%d does not move to %s", *move.key, move.directory.path)
        told = move.told_ms >= 0
        self._end(move)
        self._remove(move.copy.directory, move.directory)
        if told:
            self._tell()

    def _remove(self, path: str, directory: Directory) -> None:
        if directory.offline:
            return
        parsed = parse_directory(os.path.basename(path))
        assert parsed is not None
        gone = os.path.join(
            directory.path, left_directory(parsed[0], parsed[1], uuid.uuid4().hex, DELETE_DIR)
        )
        try:
            os.rename(path, gone)
        except OSError as e:
            logger.error("%s stays, it could not be renamed: %s", path, e)
            return
        self._place.remove_later(0, gone)

    # -- at the start ----------------------------------------------------------------------------------------

    def promote(self, topic_id_of_ours: Callable[[str, int], bytes | None]) -> set[str]:
        """Before logs are loaded: give the plain name to a copy whose log has none and that the metadata
        name; of two plain ones keep that. Return the paths of the former. `topic_id_of_ours`: None for what
        is not this worker's. Raises nothing: what stays as it is fails to load, and says why."""
        plain: dict[Key, list[Directory]] = {}
        futures: list[tuple[Key, Directory, str]] = []
        online = [each for each in self._place.directories() if not each.offline]
        for directory in online:
            with suppress(OSError):  # loading reports it
                for name in os.listdir(directory.path):
                    parsed = parse_directory(name)
                    if parsed is not None and parsed[2] == FUTURE_DIR:
                        futures.append((parsed[:2], directory, os.path.join(directory.path, name)))
                    elif parsed is not None and parsed[2] == "":
                        plain.setdefault(parsed[:2], []).append(directory)
        for key, places in plain.items():
            if len(places) > 1 and topic_id_of_ours(*key) is not None:
                self._keep_one(key, places, self.assigned(*key))
        promoted = set()
        for key, directory, path in futures:
            topic_id = topic_id_of_ours(*key)
            if key in plain or topic_id is None or topic_id_of(path) != topic_id:
                continue
            if self.assigned(*key) != directory.id:
                logger.warning("left alone: %s, whose partition has no log and is another directory's", path)
                continue
            name = os.path.join(directory.path, partition_directory(*key))
            try:
                os.rename(path, name)
                sync_directory(directory.path)
            except OSError as e:
                logger.error("%s could not be renamed to %s: %s", path, name, e)
                continue
            logger.warning("%s has taken the place of the log, which was about to move", name)
            promoted.add(name)
        return promoted

    def _keep_one(self, key: Key, places: list[Directory], assigned: bytes) -> None:
        """After a power loss the old name of a log that has moved may be back. Or a lost disk is back."""
        name = partition_directory(*key)
        ids = {topic_id_of(os.path.join(each.path, name)) for each in places}
        kept = next((each for each in places if each.id == assigned), None)
        if len(ids) == 1 and kept is not None:
            why = f"is not used, because the log is in {kept.path} by the metadata,"
            for each in places:
                if each is not kept:
                    with suppress(OSError):
                        set_aside(os.path.join(each.path, name), *key, each.offsets_of(key), why)

    def found(self, directory: Directory, path: str, key: Key) -> None:
        """There is a `-future` directory."""
        self._found.setdefault(key, []).append((directory, path))

    def resume(self, is_gone: Callable[[str, int], bool]) -> None:
        """When logs are loaded: go on with the moves that were found. `is_gone(topic, index)`: this worker
        removes what nobody needs any more."""
        found, self._found = self._found, {}
        for key, places in found.items():
            log = self._place.get(*key)
            for directory, path in places:
                if log is None:
                    if is_gone(*key):
                        logger.warning("%s is unknown to the metadata and is removed", path)
                        self._remove(path, directory)
                    else:
                        self._left.setdefault(key, []).append((directory, path))
                elif (
                    key in self._moves
                    or self._place.directory_of(*key) is directory
                    or topic_id_of(path) not in (None, log.topic_id)
                ):
                    self._remove(path, directory)
                else:
                    self._resume(Move(log, directory, path))

    def _resume(self, move: Move) -> None:
        try:
            if topic_id_of(move.copy.directory) is None:
                write_partition_metadata(move.copy.directory, move.log.topic_id, sync=False)
            move.copy.take_over(move.sight().rows, move.log.recovery_point)
        except OSError as e:
            self._refused(move.directory, move.copy.directory, e)
            return
        logger.info("%s-%d goes on moving to %s, which has %d bytes",
                    *move.key, move.copy.directory, move.copy.size)  # fmt: skip
        self._add(move)

    # -- in turns --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The worker serves: begin."""
        self._started = True
        self._pump()

    def _tell(self) -> None:
        """Soon, and once for all that move."""
        if self._telling:
            return
        self._telling = True

        def tell() -> None:
            self._telling = False
            if not self._stopped:
                self.tell()

        self._place.scheduler.call_later(LOOK_MS, tell)

    def _add(self, move: Move) -> None:
        move.log.cut_to = OFFSET_MAX
        self._moves[move.key] = move
        self._pump()

    def _pump(self) -> None:
        # While a log waits for room, others move: that may make room.
        busy = sum(move.stage is Stage.COPYING and not move.log.halted for move in self._moves.values())
        for move in self._moves.values():
            if busy >= self.at_once or self._stopped or not self._started:
                return
            if move.stage is Stage.WAITING:
                move.stage = Stage.COPYING
                busy += 1
                self._again(move, 0)

    def _again(self, move: Move, delay_ms: int) -> None:
        self._place.scheduler.call_later(delay_ms, lambda: self._step(move))

    def _step(self, move: Move) -> None:
        if move.stage is Stage.OVER or self._stopped:
            return
        if move.log.halted:
            self._release(move)
            if move.stage is Stage.SWAPPING:
                move.stage = Stage.TELLING
            self._again(move, AGAIN_MS)
            self._pump()
            return
        if move.log.closed:  # its files and memory may differ
            self._end(move, forget=False)
            return
        if move.log.being_cleaned:
            self._again(move, LOOK_MS)
            return
        move.mind_cuts()
        sight = move.sight()
        if move.stage is Stage.SWAPPING:
            self._charge(move.copy.left(sight.rows))
            self._run(move, partial(self._prepare, move, sight, self._entries(move)), self._prepared)
            return
        if move.copy.left(sight.rows) == 0 and move.stage is Stage.TELLING:
            move.end_offset = sight.end_offset
            self._copied(move)
            return
        limit, delay_ms = self._allowance()
        if delay_ms:
            self._again(move, delay_ms)
            return

        copied: list[int] = []

        def step() -> None:
            copied.append(move.copy.step(sight, limit))

        def stepped(move: Move) -> None:
            self._charge(copied[0])
            move.end_offset = move.copy.end(sight)
            self._copied(move)

        self._run(move, step, stepped)

    def _run(self, move: Move, work: Callable[[], None], then: Callable[[Move], None]) -> None:
        def done(error: BaseException | None) -> None:
            if move.stage is Stage.OVER or self._stopped:
                return
            if error is None:
                then(move)
            else:
                self._failed(move, error)

        self._place.scheduler.run_in_thread(work, done, lane="move")

    def _failed(self, move: Move, error: BaseException) -> None:
        cause = error.__cause__ if isinstance(error, SourceError) else error
        if not isinstance(cause, OSError):
            raise error
        self._release(move)
        if not isinstance(error, SourceError):
            self._refused(move.directory, move.copy.directory, cause)
        elif cause.errno != errno.ENOENT:  # else the segment was deleted or cut meanwhile
            move.log.refuse(cause)
        if move.stage is Stage.SWAPPING:
            move.stage = Stage.TELLING
        if move.stage is not Stage.OVER:
            self._again(move, LOOK_MS if cause.errno == errno.ENOENT else AGAIN_MS)

    def _refused(self, directory: Directory, path: str, error: OSError) -> None:
        if error.errno in FATAL:
            logger.error("%s cannot be written, its directory goes offline: %s", path, error)
            self._place.go_offline(directory)
        else:
            report(path, "moving a replica there", error)

    def _copied(self, move: Move) -> None:
        """A piece is there, or there is nothing to copy."""
        now_ms = self._place.clock.monotonic_ms()
        near = move.copy.left(move.sight().rows) <= min(NEAR, max(self.rate() // 4, 1))
        if move.stage is Stage.COPYING and near:
            move.stage = Stage.TELLING
            self._pump()
        if move.stage is Stage.TELLING and near:
            if self.assigned(*move.key) == move.directory.id and move.told_ms >= 0:
                if not self.is_busy(move.log):
                    move.stage = Stage.SWAPPING
                    move.held_ms = now_ms
                    move.log.flusher.hold()
            elif move.told_ms < 0 or now_ms - move.told_ms >= TELL_AGAIN_MS:
                move.told_ms = now_ms
                self._tell()
        waits = move.stage is Stage.TELLING and near
        self._again(move, min(max((now_ms - move.told_ms) // 4, LOOK_MS), AGAIN_MS) if waits else 0)

    # -- the end of a move -----------------------------------------------------------------------------------

    def _entries(self, move: Move) -> dict[str, int]:
        """What the checkpoints of the new directory must say of the log."""
        log = move.log
        entries = {RECOVERY_POINTS: log.recovery_point, HIGH_WATERMARKS: log.high_watermark}
        if log.log_start_offset > log.native.first_base_offset:
            entries[LOG_START_OFFSETS] = log.log_start_offset
        if log.cleaned_below:
            entries[CLEANER_OFFSETS] = log.cleaned_below
        return entries

    def _prepare(self, move: Move, sight: Sight, entries: Mapping[str, int]) -> None:
        # In a thread.
        move.copy.finish(sight)
        move.directory.name_again(move.key, entries, lambda: None)
        move.prepared = sight.end_offset, sight.log_start_offset

    def _prepared(self, move: Move) -> None:
        """All that the log had a moment ago is in the copy, and on disk."""
        log = move.log
        if log.closed or log.being_cleaned or log.cut_to < OFFSET_MAX:
            self._step_on(move)
            return
        entries = sum(each * 12 for each in log.native.index_entries())
        if entries > INDEXES_MAX and log.native.active_size > 0:
            with suppress(KafkaError):
                log.roll(self._place.clock.now_ms())
            self._step_on(move)
            return
        sight = move.sight()
        synced, start = move.prepared
        ready = (
            move.copy.left(sight.rows) <= TAIL_MAX
            and all(base in move.copy.whole for base, _ in sight.rows[:-1])
            and set(move.copy.sizes) == {base for base, _ in sight.rows}
            and log.native.flushed_offset <= synced
            and log.flusher.at_rest
            and log.log_start_offset == start
            and log.next_start < 0
            and not self.is_busy(log)
        )
        if ready:
            self._swap(move)
        else:
            self._step_on(move)

    def _step_on(self, move: Move) -> None:
        """The log has changed too much meanwhile: once more, for a while."""
        if self._place.clock.monotonic_ms() - move.held_ms > HELD_MS_MAX:
            self._release(move)
            move.stage = Stage.TELLING
            self._again(move, AGAIN_MS)
        else:
            self._again(move, 1)

    def _swap(self, move: Move) -> None:
        log, topic, index = move.log, *move.key
        before = self._place.directory_of(topic, index)
        plain = partition_directory(topic, index)
        left = os.path.join(before.path, left_directory(topic, index, uuid.uuid4().hex, DELETE_DIR))
        target = os.path.join(move.directory.path, plain)
        source = log.directory

        def rename() -> None:
            try:
                os.rename(source, left)
            except OSError as e:
                raise SourceError(source) from e
            try:
                os.rename(move.copy.directory, target)
            except OSError:
                os.rename(left, source)
                raise

        try:
            self._complete_indexes(log)
            move.copy.add_tail(move.sight())
            log.relocate(target, rename)
        except (OSError, SourceError) as e:
            if not log.closed and not os.path.exists(source):  # it could not be named back
                log.half_done("its move to another directory", e if isinstance(e, OSError) else OSError(e))
            self._failed(move, e)
            return
        logger.info("%s-%d has moved to %s", topic, index, target)
        self._place.moved(log, move.directory, left)
        self._end(move)
        log.request_flush()
        self.on_moved(log)

    def _complete_indexes(self, log: Log) -> None:
        try:
            log.native.close_files()
        except OSError as e:
            raise SourceError(log.directory) from e

    def _release(self, move: Move) -> None:
        if move.held_ms >= 0:
            move.held_ms = -1
            move.log.flusher.release()

    def _end(self, move: Move, *, forget: bool = True) -> None:
        self._release(move)
        move.stage = Stage.OVER
        if forget:
            del self._moves[move.key]
        self._pump()

    def directory_failed(self, directory: Directory) -> None:
        """The moves to a directory that has failed are over, and those from it, which are shown until the
        next start. The controller is told where the logs are."""
        for move in list(self._moves.values()):
            if move.stage is Stage.OVER or not (move.directory is directory or move.log.ended):
                continue
            told = move.told_ms >= 0
            self._end(move, forget=move.directory is directory)
            if told:
                self._tell()

    def close(self, clean: bool) -> list[Directory]:
        """Before the logs are closed. The next start goes on with the moves. Return the directories with a
        copy that must be checked first."""
        self._stopped = True
        unclean = []
        for move in list(self._moves.values()):
            if not clean or move.directory.offline:
                continue
            try:
                if move.log.closed:  # all that is left of it may be the copy
                    move.copy.stop()
                    unclean.append(move.directory)
                else:
                    move.copy.settle()
            except OSError as e:
                self._refused(move.directory, move.copy.directory, e)
                unclean.append(move.directory)
        return unclean

    # -- the rate --------------------------------------------------------------------------------------------

    def _allowance(self) -> tuple[int, int]:
        """Return (how many bytes may be copied now, after how many ms to ask again if none)."""
        rate = self.rate()
        if rate >= LONG_MAX:
            self._debt = 0.0
            return PIECE, 0
        if rate <= 0:
            return 0, AGAIN_MS
        now_ms = self._place.clock.monotonic_ms()
        self._debt = min(max(self._debt - rate * (now_ms - self._paid_ms) / 1000, 0.0), float(rate))
        self._paid_ms = now_ms
        if self._debt >= 1:
            return 0, max(1, min(int(self._debt * 1000 / rate), AGAIN_MS))
        return max(min(PIECE, rate // 10), 1), 0

    def _charge(self, count: int) -> None:
        if self.rate() < LONG_MAX:
            self._debt += count


def topic_id_if_ours(
    known_topics: Mapping[str, bytes],
    mine: Callable[[str, bytes, int], bool] | None,
    has: Callable[[str, int], bool],
    topic: str,
    index: int,
) -> bytes | None:
    """Return the topic id of a partition that this worker loads; None for others."""
    known = known_topics.get(topic)
    if known is None or not has(topic, index) or (mine is not None and not mine(topic, known, index)):
        return None
    return known
