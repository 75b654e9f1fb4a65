"""Opening the logs of a worker at its start.

    known       the metadata have a replica of the partition here, under the directory's topic id
    stray       they do not: the directory is renamed and kept for the operator (strays.py)
    ours        of several workers, the owner of a partition opens its log; worker 0 handles what nobody owns
    restarted   this worker replaces one that died while the others kept running: rows in shared memory are
                taken over, and what was deleted or reassigned meanwhile is deleted here

After a clean stop the logs are opened one after the other. After an unclean stop they must be scanned, which
several threads do. A log that a shortage keeps from loading is left to `unloaded`, and tried again when it is
asked for; a directory that fails goes offline. A log that had records by the checkpoints and is gone, or
whose directory is there without a segment, is noted (`Directory.missing`).

A broker of a cluster calls `misses_logs` before it registers, because the controllers elect replicas that
stopped cleanly.

Use: log_dirs.py."""

import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kafkad._native.log.partition import Partition
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.shared.watermarks import RowSlot, WatermarkTable
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.config.topic import TopicConfig
from kafkad.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    OF_RECORDS,
    RECOVERY_POINTS,
    read_offsets,
)
from kafkad.log.clean_marks import CleanStop
from kafkad.log.directory import CHECKPOINTS, Directory, Key
from kafkad.log.filenames import (
    DELETE_DIR,
    FUTURE_DIR,
    LOG,
    METADATA_TOPIC,
    STRAY_DIR,
    offset_of,
    parse_directory,
)
from kafkad.log.flusher import FATAL, is_fatal
from kafkad.log.identity import DirectoryTrouble
from kafkad.log.log import Log
from kafkad.log.moves import Moves, topic_id_if_ours
from kafkad.log.opening import Emptied
from kafkad.log.parallel import run_all
from kafkad.log.scheduler import Scheduler
from kafkad.log.strays import kept_offsets, restore, set_aside, topic_id_of
from kafkad.log.unloaded import Unloaded
from kafkad.protocol.errors import KafkaError, Malformed

logger = logging.getLogger("kafkad.log")

REMOTE_INDEX_CACHE = "remote-log-index-cache"


class Directories(Protocol):
    """The part of LogDirs that loading needs."""

    config: BrokerConfig
    clock: Clock
    table: WatermarkTable
    moves: Moves
    me: int
    shared: bool
    restarted: bool

    @property
    def scheduler(self) -> Scheduler: ...
    def directories(self) -> list[Directory]: ...
    def all(self) -> list[Log]: ...
    def add(self, log: Log, directory: Directory) -> None: ...
    def add_unloaded(self, key: Key, unloaded: Unloaded) -> None: ...
    def uncount(self, directory: Directory, count: int) -> None: ...
    def delete_closed(self, directory: Directory, path: str, topic: str, index: int) -> None: ...
    def remove_later(self, delay_ms: int, path: str) -> None: ...
    def go_offline(self, directory: Directory) -> None: ...


def misses_logs(
    directories: Iterable[Directory],
    counts: Callable[[str, int], bool],
    may_lead: Callable[[str, int], bool] | None = None,
) -> bool:
    """Return whether records were lost since a clean stop: the log of a partition that `counts` had some by
    the checkpoints and is gone, or that of one that `may_lead` ends before the recovery point, as an older
    copy does. Files that cannot be read are skipped here: `Loading` reports them."""
    there: set[Key] = set()  # under another name, or deleted
    plain: dict[Key, list[str]] = {}
    ends: dict[Key, int] = {}  # by the recovery points; 0 if only the high watermark is known
    for directory in directories:
        with suppress(OSError):
            for name in os.listdir(directory.path):
                parsed = parse_directory(name)
                if parsed is not None and parsed[2] == "":
                    plain.setdefault(parsed[:2], []).append(os.path.join(directory.path, name))
                elif parsed is not None and parsed[2] != STRAY_DIR:
                    there.add(parsed[:2])
        for name in OF_RECORDS:
            with suppress(OSError, Malformed):
                for key, offset in read_offsets(os.path.join(directory.path, name)).items():
                    if offset > 0:
                        known = offset if name == RECOVERY_POINTS else 0
                        ends[key] = max(known, ends.get(key, 0))
    for key in ends.keys() - there:
        paths = plain.get(key, ())
        if counts(*key) and not any(has_records(path) for path in paths):
            return True
        if may_lead is not None and may_lead(*key) and any(_is_short(path, key, ends[key]) for path in paths):
            return True
    return False


def _is_short(path: str, key: Key, end_offset: int) -> bool:
    """Return whether a log that nobody has opened ends before `end_offset`, or within a batch."""
    sizes: dict[int, int] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                base = offset_of(entry.name) if entry.name.endswith(LOG) else None
                if base is not None:
                    sizes[base] = entry.stat().st_size
        for base in sorted(sizes, reverse=True):
            if base >= end_offset:
                return False
            if sizes[base] > 0:  # an empty one may be left over from a failed roll
                native = Partition(*key, None, path, None, ProducerTable())
                native.add_segment(base, sizes[base], 0)
                return native.find_end() < end_offset
    except ValueError:
        return True
    except (OSError, KafkaError):
        return False  # loading reports it
    return bool(sizes)


def has_records(path: str) -> bool:
    """Return whether a partition's directory has a segment, other than an empty first one. The log of a
    partition that had records has one, even if retention has deleted all of them."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                base = offset_of(entry.name) if entry.name.endswith(LOG) else None
                if base is not None and (base > 0 or entry.stat().st_size > 0):
                    return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return True  # loading reports it
    return False


@dataclass(slots=True, frozen=True)
class Wanted:
    """The partitions that a worker loads, by the metadata."""

    config_for: Callable[[str], TopicConfig]
    topics: Mapping[str, bytes] | None  # name -> id; None: all logs are known
    has: Callable[[str, int], bool]  # whether a known topic has that partition, with a replica here
    mine: Callable[[str, bytes, int], bool] | None  # topic, its id, partition; None: there is one worker

    def is_known(self, topic: str, index: int) -> bool:
        return self.topics is None or (topic in self.topics and self.has(topic, index))

    def id_of(self, topic: str) -> bytes | None:
        return None if self.topics is None else self.topics.get(topic)


class Loading:
    """One start. `run` raises DirectoryTrouble."""

    def __init__(self, dirs: Directories, wanted: Wanted) -> None:
        self._dirs = dirs
        self._wanted = wanted
        self._now_ms = dirs.clock.now_ms()
        self._there: set[Key] = set()  # partitions with a directory, or one that moves
        # By directory number and checkpoint: partitions whose entries may belong to a log that was deleted
        # here, or that became a stray.
        self._void: set[tuple[int, str, Key]] = set()

    def run(self, workers: int) -> None:
        """Load all logs of this worker. `workers`: how many do this at the same time."""
        dirs, begun_ms = self._dirs, self._dirs.clock.monotonic_ms()
        jobs: list[Callable[[], None]] = []
        unclean = False
        restored = self._restored()
        for directory in self._online():
            found = self._jobs(directory, restored)
            unclean = unclean or (not directory.clean and bool(found))
            jobs += found
        if unclean and len(jobs) > 1:
            # The scans release the GIL, so threads help; opening clean logs does not.
            for trouble in run_all(jobs, self._recovery_threads(workers), "kafkad-recovery"):
                if trouble is not None:
                    raise trouble
        else:
            for job in jobs:
                job()
        if dirs.restarted:
            logger.info(
                "%d logs of the worker before us are open in %d ms, %d bytes were walked",
                len(dirs.all()),
                dirs.clock.monotonic_ms() - begun_ms,
                sum(log.scanned_bytes for log in dirs.all()),
            )
        dirs.moves.resume(self._is_unknown)
        for directory in self._online():
            self._note_missing(directory)
            self._keep_checkpoints(directory)

    def _online(self) -> list[Directory]:
        return [directory for directory in self._dirs.directories() if not directory.offline]

    def _restored(self) -> set[str]:
        """Return the directories that have their names again: former strays, and finished moves."""
        wanted = self._wanted
        if wanted.topics is None:
            return set()
        restored = set() if self._dirs.restarted else self._former_strays()
        return restored | self._dirs.moves.promote(
            partial(topic_id_if_ours, wanted.topics, wanted.mine, wanted.has)
        )

    def _former_strays(self) -> set[str]:
        return restore(self._online(), self._is_wanted, self._dirs.moves.assigned)

    def _is_wanted(self, topic: str, index: int, topic_id: bytes) -> bool:
        wanted = self._wanted
        if wanted.id_of(topic) != topic_id or not wanted.has(topic, index):
            return False
        return wanted.mine is None or wanted.mine(topic, topic_id, index)

    def _is_unknown(self, topic: str, index: int) -> bool:
        dirs = self._dirs
        return dirs.me == 0 and not dirs.restarted and not self._wanted.is_known(topic, index)

    def _recovery_threads(self, workers: int) -> int:
        """Return this worker's part of num.recovery.threads.per.data.dir. If that is not set: as many as
        there are cores, which limit a scan if the data is in the page cache; in each worker, because one may
        have more to scan than another."""
        config = self._dirs.config
        if not config.is_given("num.recovery.threads.per.data.dir"):
            return os.cpu_count() or 1
        threads = config.num_recovery_threads_per_data_dir * len(self._dirs.directories())
        return max(1, -(-threads // workers))

    def _note_missing(self, directory: Directory) -> None:
        """Note the logs that had records by the checkpoints and are gone. Whoever removed them while the
        broker ran, or after it, left the checkpoints."""
        wanted = self._wanted
        for name in OF_RECORDS:
            for key, offset in directory.written.get(name, {}).items():
                is_gone = key not in self._there and (directory.number, name, key) not in self._void
                if offset > 0 and is_gone and wanted.is_known(*key):
                    directory.missing[key] = max(offset, directory.missing.get(key, 0))

    def _keep_checkpoints(self, directory: Directory) -> None:
        """Keep what the checkpoints have about our logs, and with one worker about all others."""
        ours, shared = directory.logs_by_key, self._dirs.shared
        if shared and not self._dirs.restarted:
            self._dirs.uncount(directory, -len(ours))
        for name, offsets in directory.written.items():
            kept = {key: offsets.pop(key) for key in ours if key in offsets}  # with the keys of `ours`
            directory.written[name] = kept if shared else kept | offsets

    # -- the directories of partitions ---------------------------------------------------------------------

    def _jobs(self, directory: Directory, restored: set[str]) -> list[Callable[[], None]]:
        """Return what opens the logs in a data directory; see to everything else in it."""
        try:
            names = sorted(entry.name for entry in os.scandir(directory.path) if entry.is_dir())
        except OSError as e:
            self._unreadable(directory, directory.path, e)
            return []
        checkpoints = {name: self._read_checkpoint(directory, name) for name in CHECKPOINTS}
        directory.written = {name: dict(offsets) for name, offsets in checkpoints.items()}
        jobs: list[Callable[[], None]] = []
        for name in names:
            parsed = parse_directory(name)
            path = os.path.join(directory.path, name)
            if parsed is not None and parsed[2] in ("", FUTURE_DIR):
                self._there.add(parsed[:2])
            elif parsed is not None:
                void = self._void_entries(directory, path, parsed, checkpoints)
                self._void.update((directory.number, each, parsed[:2]) for each in void)
            if parsed is None or parsed[2] or parsed[0] == METADATA_TOPIC:
                self._see_to(directory, path, name, parsed)
                continue
            topic, index = sys.intern(parsed[0]), parsed[1]
            if self._wanted.mine is not None and not self._takes(directory, path, topic, index):
                continue
            key = topic, index
            offsets = {each: found[key] for each, found in checkpoints.items() if key in found}
            known = self._wanted.is_known(topic, index)
            config = self._wanted.config_for(topic) if known else TopicConfig()
            clean = directory.clean and path not in restored
            open_log = partial(self._open, directory, path, key, offsets, config, known=known, clean=clean)
            jobs.append(partial(self._load, directory, path, key, open_log))
        return jobs

    @staticmethod
    def _void_entries(
        directory: Directory,
        path: str,
        parsed: tuple[str, int, str],
        checkpoints: Mapping[str, dict[Key, int]],
    ) -> Iterable[str]:
        """Return the checkpoints whose entry of the partition may be that of the log at `path`, which has
        lost its name: whoever was killed right after that has not dropped it."""
        if parsed[2] != STRAY_DIR:
            return OF_RECORDS
        try:
            kept = kept_offsets(path)
        except OSError:
            return OF_RECORDS
        if not kept:  # by JVM Kafka, whose clean stop drops them
            return () if directory.clean else OF_RECORDS
        return [name for name in OF_RECORDS if kept.get(name) == checkpoints[name].get(parsed[:2])]

    def _see_to(
        self, directory: Directory, path: str, name: str, parsed: tuple[str, int, str] | None
    ) -> None:
        """Handle a directory that is no partition's, or is out of use."""
        dirs = self._dirs
        if parsed is None:
            if name != REMOTE_INDEX_CACHE and dirs.me == 0:
                logger.warning("%s is no partition", path)
        elif parsed[2] == DELETE_DIR:
            if dirs.me == 0 or dirs.restarted:  # the previous worker may have been about to remove it
                dirs.remove_later(dirs.config.log_segment_delete_delay_ms, path)
        elif parsed[2] == FUTURE_DIR:
            dirs.moves.found(directory, path, parsed[:2])
        elif parsed[2] == STRAY_DIR and dirs.me == 0:
            logger.warning("left alone: %s", path)

    def _takes(self, directory: Directory, path: str, topic: str, index: int) -> bool:
        """Return whether this one of several workers loads the directory, or treats it as a stray. Delete it
        if its topic was deleted during this run of the broker, or the replica moved to another broker, after
        its owner here had died."""
        wanted, restarted = self._wanted, self._dirs.restarted
        assert wanted.mine is not None
        known = wanted.id_of(topic)
        found = topic_id_of(path) if restarted else None
        is_gone = found is not None and (known != found or not wanted.has(topic, index))
        if found is not None and is_gone and wanted.mine(topic, found, index):
            logger.info("%s was deleted while its worker was away", path)
            self._dirs.delete_closed(directory, path, topic, index)
            self._dirs.uncount(directory, 1)
            return False
        if known is None:
            return self._dirs.me == 0 and not restarted
        # While other workers run, a directory with another id belongs to a topic that its owner will delete.
        return wanted.mine(topic, known, index) and (not restarted or found in (None, known))

    def _read_checkpoint(self, directory: Directory, name: str) -> dict[Key, int]:
        path = os.path.join(directory.path, name)
        try:
            return read_offsets(path)
        except Malformed as e:
            logger.error("%s is damaged and will be written anew: %s", path, e)
            return {}
        except OSError as e:  # it may have the log starts of DeleteRecords
            self._unreadable(directory, path, e)
            return {}

    def _unreadable(self, directory: Directory, path: str, error: OSError) -> None:
        """A directory that has failed goes offline, a shortage ends the start."""
        if error.errno not in FATAL:
            raise DirectoryTrouble(f"{path} cannot be read: {error}") from error
        logger.error("%s cannot be read: %s", path, error)
        self._dirs.go_offline(directory)

    # -- one log -------------------------------------------------------------------------------------------

    def _load(self, directory: Directory, path: str, key: Key, open_log: Callable[[], Log | None]) -> None:
        try:
            log = None if directory.offline else open_log()
            if log is not None:
                self._dirs.add(log, directory)
        except Emptied as gone:
            directory.missing[key] = gone.end_offset
        except (OSError, KafkaError, Malformed) as e:
            if is_fatal(e):
                logger.error("%s cannot be loaded, its directory is offline: %s", path, e)
                self._dirs.go_offline(directory)
            else:
                logger.error("%s cannot be loaded yet: %s", path, e)
                self._dirs.add_unloaded(key, Unloaded(directory, open_log, e))

    def _open(
        self,
        directory: Directory,
        path: str,
        key: Key,
        offsets: Mapping[str, int],
        config: TopicConfig,
        *,
        known: bool,
        clean: bool,
    ) -> Log | None:
        """Return the log, or None if it is a stray."""
        dirs, (topic, index) = self._dirs, key
        topic_id = self._wanted.id_of(topic)
        # Recovery may cut, and needs the topic's configuration: do not run it for strays.
        if not known or (not clean and not self._has_id(topic, topic_id_of(path))):
            set_aside(path, topic, index, offsets)
            return None
        left = self._row_left(topic_id, index)
        log = Log.open(
            path,
            topic,
            index,
            config,
            now_ms=self._now_ms,
            clean=clean and CleanStop(directory.marked_ms, offsets.get(RECOVERY_POINTS)),
            scheduler=dirs.scheduler,
            recovery_point=offsets.get(RECOVERY_POINTS, 0),
            log_start_offset=offsets.get(LOG_START_OFFSETS, 0),
            high_watermark=offsets.get(HIGH_WATERMARKS, 0),
            cleaned_below=offsets.get(CLEANER_OFFSETS, 0),
            row=dirs.table.allocate() if left is None else None,
            left=left,
            jitter=random.random(),
            producer_expiration_ms=dirs.config.producer_id_expiration_ms,
        )
        if not self._has_id(topic, log.topic_id):
            log.close(clean=False)
            log.native.close_files()
            set_aside(path, topic, index, offsets)
            return None
        if topic_id is not None and log.topic_id == bytes(16):
            log.adopt_topic_id(topic_id)
        return log

    def _has_id(self, topic: str, found: bytes | None) -> bool:
        """Return whether a directory's topic id, if it has one, is that of the known topic."""
        return self._wanted.topics is None or found in (None, bytes(16), self._wanted.id_of(topic))

    def _row_left(self, topic_id: bytes | None, index: int) -> RowSlot | None:
        """Return the row of the previous owner, which died; clients and other workers have seen it."""
        if not self._dirs.restarted or topic_id is None:
            return None
        return self._dirs.table.find(topic_id, index)
