"""The data directories of a broker, and all logs in them (Kafka's LogManager).

    <dir>/.lock                     held while the broker runs; it also excludes JVM brokers
          meta.properties           cluster id, node id, and the directory's own id
          .kafka_cleanshutdown      if present: every file is trusted. Removed as soon as it is read
          *-checkpoint              recovery points, log starts, high watermarks of its partitions
          <topic>-<partition>/      one log; -delete and -stray are out of use, -future is on its way here

A directory that fails goes offline with its logs; the others continue to be served. A new partition is
created in the directory with the fewest partitions. A partition that the metadata does not know is a stray:
it is renamed and kept for the operator.

Several workers share the directories. The supervisor opens them (`open`) and writes the clean-shutdown files
at the end (`finish`). A forked worker calls `enter`, loads the logs that it owns, and closes those. Worker 0
handles everything that no worker owns."""

import errno
import gc
import logging
import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from kafkad._native.log.partition import Partition
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.shared.watermarks import RowSlot, WatermarkTable
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.config.topic import TopicConfig
from kafkad.log.checkpointing import Checkpointing
from kafkad.log.checkpoints import (
    HIGH_WATERMARKS,
    make_directory,
    write_partition_metadata,
)
from kafkad.log.clean_marks import take_mark, write_mark
from kafkad.log.cleaning_permits import Permits
from kafkad.log.closing import close_logs, settle_times
from kafkad.log.directory import (
    CHECKPOINTS,
    FAILED,
    NOT_CLEAN,
    PARTITIONS,
    Directory,
    Key,
    SharedFacts,
)
from kafkad.log.directory_lock import InUse, lock_directory
from kafkad.log.filenames import (
    DELETE_DIR,
    LOG,
    METADATA_TOPIC,
    left_directory,
    partition_directory,
    segment_file,
)
from kafkad.log.flusher import FATAL, is_fatal
from kafkad.log.identity import DirectoryTrouble as DirectoryTrouble
from kafkad.log.identity import identify
from kafkad.log.loading import Loading, Wanted, has_records, misses_logs
from kafkad.log.log import Log
from kafkad.log.log_starts import LogStarts, keep_all
from kafkad.log.metadata_files import metadata_config
from kafkad.log.moves import Moves
from kafkad.log.opening import Emptied
from kafkad.log.removal import Removals
from kafkad.log.renames import Renames
from kafkad.log.scheduler import Scheduler
from kafkad.log.strays import topic_id_of
from kafkad.log.unloaded import Unloaded
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError, Malformed

logger = logging.getLogger("kafkad.log")

DELETE_AGAIN_MS = 1_000  # after a rename of a directory failed
CUTS_MS = 1_000  # how often truncations make a directory write its checkpoints


class DirectoryOccupied(KafkaError):
    """A partition of that name still exists, or its offsets do, or it is being loaded. Try again soon."""


class LogDirs:
    """Call `open`, then `load`; `close` at the end. All but `load`'s own threads belongs to the loop.

    With several workers: `open` in the supervisor, with a `table` that they share and no scheduler; `enter`,
    `load` and `close` in each worker; `finish` in the supervisor after all workers have ended."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        scheduler: Scheduler | None,
        table: WatermarkTable | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        if scheduler is not None:
            self.scheduler = scheduler
        self.cluster_id = ""
        self.previous_broker_epoch = -1
        self.on_directory_offline: Callable[[str], None] | None = None
        self.on_readers_offline: Callable[[str], None] | None = None  # replication.Partitions: the same
        self.on_short: Callable[[Log, OSError], None] | None = None  # Log.on_shortage, of any log
        self.table = WatermarkTable() if table is None else table
        self.me = 0
        self.shared = False  # with other workers
        self.restarted = False
        self._told = SharedFacts(len(config.log_dirs) + 1)
        self._directories: list[Directory] = []
        self._renames = Renames(self.go_offline)
        self._checkpoints = Checkpointing(self.go_offline)
        self._logs: dict[Key, tuple[Log, Directory]] = {}
        self._unloaded: dict[Key, Unloaded] = {}  # `create` tries them again
        self._removals = Removals()
        self.cleaner_permits = Permits()
        self.moves = Moves(self)
        self.opened = 0  # logs since the start

    @property
    def broker_epoch(self) -> int:
        """Stored in the clean-shutdown file."""
        return self._told.broker_epoch

    @broker_epoch.setter
    def broker_epoch(self, epoch: int) -> None:
        self._told.broker_epoch = epoch

    @property
    def metadata_offset(self) -> int:
        """The offset up to which the workers of a cluster member may know the metadata; -1: none yet."""
        return self._told.metadata_offset

    @metadata_offset.setter
    def metadata_offset(self, offset: int) -> None:
        self._told.metadata_offset = offset

    # -- opening -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock every directory, read or write its identity, take its clean-shutdown file. Raises
        DirectoryTrouble."""
        paths = list(dict.fromkeys(os.path.abspath(path) for path in self.config.log_dirs))
        for path in paths:
            self._directories.append(Directory(path, len(self._directories), for_logs=True))
        own = self.config.metadata_log_dir
        if own and os.path.abspath(own) not in paths:
            number = len(self._directories)
            self._directories.append(Directory(os.path.abspath(own), number, for_logs=False))
        try:
            for directory in self._directories:
                self._take(directory)
            self.cluster_id = identify(
                self._directories,
                self._metadata_directory(),
                self.config.node_id,
                is_controller="controller" in self.config.process_roles,
            )
            for directory in self._online():
                self._take_mark(directory)
        except BaseException:
            self._unlock()
            raise
        epochs = {directory.broker_epoch for directory in self._online() if directory.for_logs}
        self.previous_broker_epoch = epochs.pop() if len(epochs) == 1 else -1

    def enter(self, me: int, scheduler: Scheduler, *, restarted: bool = False) -> None:
        """Call in each of several workers, right after the fork. `restarted`: it replaces a worker that died,
        while others kept running."""
        self.me = me
        self.scheduler = scheduler
        self.shared = True
        self.restarted = restarted
        self.table.enter(me)
        for directory in self._directories:
            directory.shared = True
            directory.writer = me
            directory.keeper = me == 0
            directory.clean = directory.clean and not restarted
            directory.offline = directory.offline or self._told.is_set(directory.number, FAILED)

    def _online(self) -> list[Directory]:
        return [directory for directory in self._directories if not directory.offline]

    def _take(self, directory: Directory) -> None:
        try:
            make_directory(directory.path)
            os.listdir(directory.path)
            directory.lock = lock_directory(directory.path)
            directory.take_place()
        except InUse:
            raise DirectoryTrouble(f"data directory {directory.path} is in use by another broker") from None
        except OSError as e:
            logger.error("log directory %s cannot be used and is offline: %s", directory.path, e)
            directory.offline = True

    def _take_mark(self, directory: Directory) -> None:
        try:
            directory.clean, directory.broker_epoch, directory.marked_ms = take_mark(directory.path)
        except OSError as e:
            if directory is self._metadata_directory() or e.errno not in FATAL:
                raise
            # While the clean-shutdown file is there, nothing may change in the directory.
            logger.error("log directory %s is offline, its mark cannot be removed: %s", directory.path, e)
            directory.offline = True

    def _metadata_directory(self) -> Directory:
        path = os.path.abspath(self.config.metadata_log_dir or self.config.log_dirs[0])
        return next(directory for directory in self._directories if directory.path == path)

    def _unlock(self) -> None:
        for directory in self._directories:
            if directory.lock is not None:
                os.close(directory.lock)
                directory.lock = None

    def open_metadata_log(self, topic: str = METADATA_TOPIC, topic_id: bytes | None = None) -> Log:
        """Open the metadata log, which is not in `all()`. Its batches are checked unless the shutdown was
        clean."""
        directory = self._metadata_directory()
        try:
            log = Log.open(
                os.path.join(directory.path, partition_directory(topic, 0)),
                topic,
                0,
                metadata_config(self.config),
                now_ms=self.clock.now_ms(),
                clean=directory.clean,
                scheduler=self.scheduler,
                topic_id=topic_id,
            )
        except (OSError, Malformed, KafkaError) as e:
            raise DirectoryTrouble(f"the metadata log in {directory.path} cannot be opened: {e}") from e
        return log

    # -- loading -------------------------------------------------------------------------------------------

    def load(
        self,
        config_for: Callable[[str], TopicConfig],
        known_topics: Mapping[str, bytes] | None = None,
        mine: Callable[[str, bytes, int], bool] | None = None,
        workers: int = 1,
        has: Callable[[str, int], bool] = lambda topic, index: True,
    ) -> None:
        """Open every log of this worker: `mine(topic, topic id, index)`; None: all logs. `known_topics`: name
        -> id, and `has(topic, index)`: whether a known topic has that partition, with a replica here; any
        other log is a stray (known_topics None: there are no strays). `workers`: how many workers do this at
        the same time. Raises DirectoryTrouble."""
        Loading(self, Wanted(config_for, known_topics, has, mine)).run(workers)

    def _load_again(self, key: Key) -> Log | None:
        """Load a log that could not be loaded at the start; None: it was a stray or is missing. Raises
        KafkaError; DirectoryOccupied while a thread is loading it."""
        unloaded = self._unloaded[key]
        directory = unloaded.directory
        if directory.offline:
            raise KafkaError(KAFKA_STORAGE_ERROR, f"the log directory {directory.path} is offline")
        if not unloaded.loaded:
            trouble = unloaded.take_trouble()
            if trouble is None:
                unloaded.begin(self.scheduler)
                raise DirectoryOccupied(KAFKA_STORAGE_ERROR, f"{key[0]}-{key[1]} is being loaded")
            if isinstance(trouble, Emptied):
                directory.missing[key] = trouble.end_offset
                del self._unloaded[key]
                return None
            if is_fatal(trouble):
                self.go_offline(directory)
            raise KafkaError(KAFKA_STORAGE_ERROR, f"{key[0]}-{key[1]} cannot be loaded: {trouble}")
        del self._unloaded[key]
        if unloaded.log is None:
            return None
        self.add(unloaded.log, directory)
        self.uncount(directory, -1)
        return unloaded.log

    def _new_row(self) -> RowSlot:
        with suppress(MemoryError):
            return self.table.allocate()
        gc.unfreeze()
        gc.collect()  # deleted logs are cyclic objects, and still have their rows
        try:
            return self.table.allocate()
        except MemoryError as full:
            raise KafkaError(KAFKA_STORAGE_ERROR, f"no more partitions: {full}") from None

    def reclaim_rows(self) -> None:
        """Call when all logs of this worker are open: free the other rows of the previous worker in the
        shared table."""
        count = self.table.reclaim() if self.restarted else 0
        if count:
            logger.info("%d rows of partitions that are gone are free again", count)

    def add(self, log: Log, directory: Directory) -> None:
        key = log.topic, log.partition
        self.opened += 1
        if key in self._logs:
            other = self._logs[key][0].directory
            raise DirectoryTrouble(f"a partition is there twice: {other}, {log.directory}")
        log.on_offline = self._on_offline
        log.on_short = self._on_short
        log.on_log_start = self._log_start_moved
        log.on_cut = self._was_cut
        log.keep_log_start = self._keep_log_start
        if directory.group_commit is not None:
            log.native.commit_with(directory.group_commit)
        self._logs[key] = (log, directory)
        directory.logs_by_key[key] = log
        directory.missing.pop(key, None)

    def add_unloaded(self, key: Key, unloaded: Unloaded) -> None:
        """`create` will try to load it again."""
        self._unloaded[key] = unloaded

    # -- logs and directories --------------------------------------------------------------------------------

    def directories(self) -> list[Directory]:
        """The directories for logs, in the order of log.dirs."""
        return [directory for directory in self._directories if directory.for_logs]

    def directory_id(self, path: str) -> bytes:
        """Return the id of a configured directory; zeros if it has been offline since the start."""
        return next(
            directory.id for directory in self._directories if directory.path == os.path.abspath(path)
        )

    def directory_ids(self) -> list[bytes]:
        """The ids of the online directories for logs, which a broker registers."""
        return [directory.id for directory in self.directories() if not directory.offline]

    def misses_logs(
        self, counts: Callable[[str, int], bool], may_lead: Callable[[str, int], bool] | None = None
    ) -> bool:
        """Return whether the log of a partition that `counts(topic, index)` had records and is gone, or that
        of one that `may_lead` is shorter than at the clean stop. Call it before `load`."""
        online = [directory for directory in self.directories() if not directory.offline]
        return misses_logs(online, counts, may_lead)

    def directory_of(self, topic: str, index: int) -> Directory:
        return self._logs[topic, index][1]

    def is_offline(self, path: str) -> bool:
        """Return whether a partition's directory is in one that has failed."""
        return any(each.offline and each.path == os.path.dirname(path) for each in self._directories)

    def get(self, topic: str, index: int) -> Log | None:
        found = self._logs.get((topic, index))
        return None if found is None else found[0]

    def all(self) -> list[Log]:
        return [log for log, _ in self._logs.values()]

    # -- creating and deleting -----------------------------------------------------------------------------

    def create(
        self,
        topic: str,
        index: int,
        topic_id: bytes | None,
        config: TopicConfig,
        assigned: bytes | None = None,
        *,
        needed: bool = False,
    ) -> Log:
        """Create a new, empty log; if its records are `needed`, not in place of one that is missing. With
        `assigned`, the id of a directory, only there: the partition had its log there, which may come back.
        Otherwise in the directory with the fewest partitions. Raises KafkaError; DirectoryOccupied: try again
        soon."""
        assert (topic, index) not in self._logs, "the partition exists"
        key = topic, index
        if key in self._unloaded and (loaded := self._load_again(key)) is not None:
            return loaded
        while True:
            online = [directory for directory in self.directories() if not directory.offline]
            if assigned is not None:
                online = [directory for directory in online if directory.id == assigned]
            if not online:
                which = "all log directories are" if assigned is None else "its log directory is"
                raise KafkaError(KAFKA_STORAGE_ERROR, f"{which} offline")
            if assigned is not None:
                places = self._mind_missing(key, online, needed)
            else:
                places = self.moves.choose(key, self._mind_missing(key, self.directories(), needed))
            directory = self._place_in(places)
            path = os.path.join(directory.path, partition_directory(topic, index))
            try:
                self._check_no_offsets(directory, path, key)
                if self.shared:
                    assert topic_id is not None
                    self._make_alone(directory, path, key, topic_id)
                log = Log.open(
                    path,
                    topic,
                    index,
                    config,
                    now_ms=self.clock.now_ms(),
                    clean=False,
                    scheduler=self.scheduler,
                    topic_id=topic_id,
                    row=self._new_row(),
                    jitter=random.random(),
                    producer_expiration_ms=self.config.producer_id_expiration_ms,
                )
            except KafkaError:
                self.uncount(directory, 1)
                raise
            except OSError as e:
                self.uncount(directory, 1)
                if e.errno not in FATAL:
                    raise KafkaError(KAFKA_STORAGE_ERROR, f"{path} cannot be created: {e}") from e
                logger.error("%s cannot be created, its directory goes offline: %s", path, e)
                self.go_offline(directory)
                continue
            except Malformed as e:
                self.uncount(directory, 1)
                raise KafkaError(KAFKA_STORAGE_ERROR, str(e)) from e
            was_missing = key in directory.missing
            self.add(log, directory)
            if was_missing:  # the checkpoints still have its offsets
                self._checkpoints.write_later(self.scheduler, directory, CHECKPOINTS)
            return log

    def _mind_missing(self, key: Key, places: list[Directory], needed: bool) -> list[Directory]:
        """Return where a log may be created, of the directories where it may have been: where it is
        `missing`, if somebody has put an empty first segment there or it is not needed; otherwise those that
        are online. Raises KafkaError, OSError."""
        for directory in places:
            end = directory.missing.get(key)
            if end is None:
                continue
            path = os.path.join(directory.path, partition_directory(*key))
            if directory.offline:
                if needed:
                    raise KafkaError(KAFKA_STORAGE_ERROR, f"{path} is gone, and its log directory is offline")
                continue
            if has_records(path):  # perhaps still being copied; its offsets are read at a start only
                raise KafkaError(KAFKA_STORAGE_ERROR, f"{path} is back: restart the broker to load it")
            first = segment_file(path, 0, LOG)
            if os.path.exists(first):
                return [directory]
            if needed:
                raise KafkaError(
                    KAFKA_STORAGE_ERROR,
                    f"{path} is gone, with records up to offset {end}: put it back and restart the broker, or"
                    f" create {first}, empty, to go on without them",
                )
            logger.error("%s is gone, with records up to offset %d: the log begins empty", path, end)
            if os.path.isdir(path):
                return [directory]  # it stays `missing` until it is open: no other place may be tried
            del directory.missing[key]
        return [directory for directory in places if not directory.offline]

    def _place_in(self, online: list[Directory]) -> Directory:
        """Return the directory with the fewest partitions of all workers. If a worker is killed between this
        and the creation, its count stays one too high, which is harmless."""
        if not self.shared:
            return min(online, key=lambda directory: len(directory.logs_by_key))
        with self._told.alone():
            directory = min(online, key=lambda directory: self._told.count(directory.number, PARTITIONS))
            self._told.add(directory.number, PARTITIONS, 1)
        return directory

    def uncount(self, directory: Directory, count: int) -> None:
        """The directory has `count` partitions less, for the other workers."""
        if self.shared:
            with self._told.alone():
                self._told.add(directory.number, PARTITIONS, -count)

    def _check_no_offsets(self, directory: Directory, path: str, key: Key) -> None:
        """Raise DirectoryOccupied while the checkpoints have offsets of a deleted partition of that name,
        which would be taken for the new one's; a thread drops them."""
        if not os.path.exists(path) and directory.may_name(key):
            self._renames.forget(self.scheduler, directory, key)
            raise DirectoryOccupied(
                KAFKA_STORAGE_ERROR, f"{directory.path} still has offsets of {key[0]}-{key[1]}"
            )

    def _make_alone(self, directory: Directory, path: str, key: Key, topic_id: bytes) -> None:
        """Create the directory of a new partition, while another worker may still have one of that name (its
        topic was just deleted, or will be) and write the checkpoints. It gets its name, which excludes any
        other, with its id already in it. If this worker dies before, it looks like one that is being
        deleted."""
        if os.path.exists(path):
            if topic_id_of(path) in (None, topic_id):
                return  # ours, created before its worker died
            raise DirectoryOccupied(KAFKA_STORAGE_ERROR, f"{path} is still there")
        beside = os.path.join(directory.path, left_directory(*key, uuid.uuid4().hex, DELETE_DIR))
        os.mkdir(beside)
        write_partition_metadata(beside, topic_id, sync=False)
        try:
            os.rename(beside, path)
        except OSError as e:
            shutil.rmtree(beside, ignore_errors=True)
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise DirectoryOccupied(KAFKA_STORAGE_ERROR, f"{path} is still there") from None

    def stand_in(self, topic: str, index: int, topic_id: bytes) -> Partition:
        """Return a partition that answers KAFKA_STORAGE_ERROR, for one whose directory is missing."""
        native = Partition(topic, index, topic_id, "", None, ProducerTable())
        native.close_to_clients(KAFKA_STORAGE_ERROR, errno.EIO)
        return native

    def forget_missing(self, topic: str, index: int) -> None:
        """The topic is deleted: what its log had does not count for another topic of that name."""
        for directory in self._directories:
            directory.missing.pop((topic, index), None)

    def delete(self, topic: str, index: int) -> None:
        """Rename the partition's directory now, and remove it after file.delete.delay.ms. Call `sync_renames`
        after it, once for many. Unknown partitions are no error."""
        self.moves.drop(topic, index)
        self.forget_missing(topic, index)
        unloaded = self._unloaded.pop((topic, index), None)
        if unloaded is not None:
            unloaded.when_at_rest(lambda: self._delete_unloaded(unloaded, topic, index))
            return
        found = self._logs.pop((topic, index), None)
        if found is None:
            return
        log, directory = found
        del directory.logs_by_key[topic, index]
        self.uncount(directory, 1)
        if log.native.failure and not log.halted:
            return  # its directory is offline: leave it
        path = os.path.join(directory.path, left_directory(topic, index, uuid.uuid4().hex, DELETE_DIR))
        try:
            log.move_directory(path)
            self._renames.add(directory, (topic, index))
        except KafkaError as e:
            logger.error("%s could not be renamed for deletion, will try again: %s", log.directory, e)
            log.native.close_files()
            self._delete_directory_later(directory, log.directory, log.topic_id, topic, index)
            return
        log.native.close_files()
        self.remove_later(log.config.file_delete_delay_ms, path)

    def _delete_unloaded(self, unloaded: Unloaded, topic: str, index: int) -> None:
        if unloaded.log is not None:
            unloaded.log.close(clean=False)
        directory = unloaded.directory
        path = os.path.join(directory.path, partition_directory(topic, index))
        if not directory.offline and os.path.exists(path):
            self.delete_closed(directory, path, topic, index)
            self.sync_renames(lambda: None)

    @property
    def has_renames(self) -> bool:
        """Whether partitions were deleted since the last `sync_renames`."""
        return self._renames.are_due

    def sync_renames(self, done: Callable[[], None] | None = None) -> bool:
        """Sync each directory in which partitions were renamed since the last call: off the loop, then call
        `done`; or at once, if there is no `done`. False: there is nothing to sync. A directory that fails
        goes offline."""
        if done is None:
            return self._renames.sync(None, lambda: None)
        return self._renames.sync(self.scheduler, done)

    def delete_closed(self, directory: Directory, path: str, topic: str, index: int) -> None:
        """Delete a log that is not open, like `delete`. Call `sync_renames` after it."""
        gone = os.path.join(directory.path, left_directory(topic, index, uuid.uuid4().hex, DELETE_DIR))
        topic_id = topic_id_of(path)
        try:
            os.rename(path, gone)
        except OSError as e:
            logger.error("%s could not be renamed for deletion, will try again: %s", path, e)
            if topic_id is not None:
                self._delete_directory_later(directory, path, topic_id, topic, index)
            return
        self._renames.add(directory, (topic, index))
        self.remove_later(self.config.log_segment_delete_delay_ms, gone)

    def moved(self, log: Log, directory: Directory, left: str) -> None:
        """The log has gone on in `directory`; `left`: where its old files are."""
        key = log.topic, log.partition
        before = self._logs[key][1]
        del before.logs_by_key[key]
        directory.logs_by_key[key] = log
        self._logs[key] = log, directory
        self.uncount(before, 1)
        self.uncount(directory, -1)
        if directory.group_commit is not None:
            log.native.commit_with(directory.group_commit)
        self._renames.add(before, key)
        self.sync_renames(lambda: None)
        self.remove_later(log.config.file_delete_delay_ms, left)

    def remove_later(self, delay_ms: int, path: str) -> None:
        self._removals.later(self.scheduler, delay_ms, path)

    def _delete_directory_later(
        self, directory: Directory, path: str, topic_id: bytes, topic: str, index: int
    ) -> None:
        def again() -> None:
            # The name may be another topic's by now.
            if not directory.offline and topic_id_of(path) == topic_id:
                self.delete_closed(directory, path, topic, index)
                self.sync_renames(lambda: None)

        self.scheduler.call_later(DELETE_AGAIN_MS, again)

    # -- failures --------------------------------------------------------------------------------------------

    def _on_offline(self, log: Log, error: OSError) -> None:
        self.fail_directory_of(log)

    def _on_short(self, log: Log, error: OSError) -> None:
        # In any thread.
        found = self._logs.get((log.topic, log.partition))
        if found is not None and error.errno in (errno.ENOENT, errno.ENOTDIR):
            found[1].is_doubted = True
        if self.on_short is not None:
            self.on_short(log, error)

    def fail_directory_of(self, log: Log) -> None:
        found = self._logs.get((log.topic, log.partition))
        if found is not None:
            self.go_offline(found[1])

    def go_offline(self, directory: Directory) -> None:
        # Nothing is read, written or synced there again until a restart.
        if directory.offline:
            return
        directory.offline = True
        self._told.set(directory.number, FAILED)
        logger.error("log directory %s is offline, with %d logs", directory.path, len(directory.logs_by_key))
        for log in directory.logs():
            log.on_failure(OSError(errno.EIO, "the log directory failed"))
        self.moves.directory_failed(directory)
        if self.on_readers_offline is not None:
            self.on_readers_offline(directory.path)
        if self.on_directory_offline is not None:
            self.on_directory_offline(directory.path)

    def set_offline(self, path: str) -> None:
        """Another worker found that the directory has failed."""
        for directory in self._directories:
            if directory.path == path:
                self._told.set(directory.number, FAILED)
                self.go_offline(directory)

    def _follow_failures(self) -> None:
        for directory in self._directories:
            if not directory.offline and self._told.is_set(directory.number, FAILED):
                self.go_offline(directory)
            if directory.is_doubted and not directory.offline:
                directory.is_doubted = False
                try:
                    directory.check_place()
                except OSError as gone:
                    self._checkpoints.failed(directory, gone)

    # -- checkpoints ---------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks of all partitions, if they changed; off the
        loop."""
        self._follow_failures()
        for directory in self.directories():
            self._checkpoints.write_later(self.scheduler, directory, CHECKPOINTS)

    def checkpoint_high_watermarks(self) -> None:
        self._follow_failures()
        for directory in self.directories():
            self._checkpoints.write_later(self.scheduler, directory, (HIGH_WATERMARKS,))

    def _was_cut(self, log: Log) -> None:
        """A recovery point beyond the end would vouch for what is written there next, a log start there would
        void it, and a cleaner's offset would keep its duplicates."""
        found = self._logs.get((log.topic, log.partition))
        if found is not None and found[0] is log:
            self._note_cut(found[1])

    def _note_cut(self, directory: Directory) -> None:
        """Write the checkpoints at once, but once in CUTS_MS: after a failover thousands of logs may be
        truncated, and each time the offsets of all logs are looked at."""
        if directory.cut_lately:
            directory.cut_again = True
            return
        directory.cut_lately, directory.cut_again = True, False
        self._checkpoints.write_later(self.scheduler, directory, CHECKPOINTS)
        self.scheduler.call_later(CUTS_MS, lambda: self._after_cuts(directory))

    def _after_cuts(self, directory: Directory) -> None:
        directory.cut_lately = False
        if directory.cut_again:
            self._note_cut(directory)

    def checkpoint_work(self, log: Log, name: str) -> Callable[[], int]:
        """Return a function for another thread, which writes one checkpoint of the log's directory with the
        current values. It returns the file's value for the log, and raises OSError."""
        key = log.topic, log.partition
        return self._logs[key][1].work_to_write(name, key)

    def _log_start_moved(self, log: Log) -> None:
        self._log_starts(self._logs[log.topic, log.partition][1]).move(log)

    def _keep_log_start(self, log: Log, done: Callable[[OSError | None], None]) -> None:
        keeper = self._log_starts(self._logs[log.topic, log.partition][1])
        keeper.move(log)
        keeper.keep(done)

    def _log_starts(self, directory: Directory) -> LogStarts:
        return self._checkpoints.log_starts(self.scheduler, directory)

    def keep_log_starts(self, logs: Iterable[Log], done: Callable[[dict[Log, OSError]], None]) -> None:
        """Write the log starts that DeleteRecords moved, once per directory and off the loop. Then call
        `done` with the logs whose log start could not be written. Clients are answered after that."""
        by_directory: dict[int, tuple[Directory, list[Log]]] = {}
        for log in logs:
            found = self._logs.get((log.topic, log.partition))
            if found is not None:
                by_directory.setdefault(found[1].number, (found[1], []))[1].append(log)

        def kept(errors: list[OSError | None]) -> None:
            failed = zip(errors, by_directory.values(), strict=True)
            done({log: error for error, (_, its_logs) in failed if error is not None for log in its_logs})

        keep_all([self._log_starts(directory) for directory, _ in by_directory.values()], kept)

    # -- closing -------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Close the logs. Clean: every log is flushed, and the checkpoints are written. With one worker call
        `finish` after it; each of several workers closes its own logs."""
        self._removals.stop()
        for directory in self.moves.close(clean):
            self._told.set(directory.number, NOT_CLEAN)
        self.sync_renames()
        for directory in self.directories():
            if directory.offline:
                continue
            whole = clean and (directory.clean or not self._leaves_unloaded(directory))
            for log, trouble in close_logs(list(directory.logs()), clean):
                logger.error("%s was not closed cleanly: %s", log.directory, trouble)
                whole = False
            if whole and not directory.offline:
                whole = self._checkpoints.write_now(directory)
            if whole:
                settle_times(directory.logs())
            else:
                self._told.set(directory.number, NOT_CLEAN)
        if not self.shared:
            self.finish(clean)

    def _leaves_unloaded(self, directory: Directory) -> bool:
        """Return whether a log there was never loaded: after an unclean stop it has not been checked."""
        keys = [key for key, unloaded in self._unloaded.items() if unloaded.directory is directory]
        if keys and not directory.clean:
            logger.error(
                "%s is not marked as closed cleanly: %s-%d could not be loaded", directory.path, *keys[0]
            )
        return bool(keys)

    def finish(self, clean: bool = True) -> None:
        """After all logs were closed: write the clean-shutdown files if everything went well, then unlock."""
        for directory in self.directories():
            if not clean or directory.offline:
                continue
            if self._told.is_set(directory.number, FAILED) or self._told.is_set(directory.number, NOT_CLEAN):
                continue
            try:
                write_mark(directory.path, self.broker_epoch)
            except OSError as e:
                logger.error("%s was not closed cleanly: %s", directory.path, e)
        self._unlock()
