"""The log cleaner of a worker: compacted logs are cleaned while they are served (Kafka's LogCleaner).

    the loop    every log.cleaner.backoff.ms: takes a permit, searches for the dirtiest log (cleaning_choice)
    a thread    writes the recovery point, reads the dirty part, rewrites each group of segments (cleaner)
    the loop    announces a group, and exchanges it once the thread has synced the names (exchange)
    a thread    writes the checkpoint of the cleaned offsets

There is one thread for each cleaning, and none in between: its map of keys takes memory only during the
cleaning. The work is done without the GIL, in pieces of 512 KiB. Between two pieces the thread sleeps if
log.cleaner.io.max.bytes.per.second requires it, and it ends if the broker stops or the log is gone.

A log whose batches cannot be read is not tried again before the next start. After a full disk, the next turn
tries again.

Beware: the thread accesses neither log nor partition. It requests what it needs of them from the loop."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from kafkad.log import cleaner
from kafkad.log.checkpoints import CLEANER_OFFSETS, RECOVERY_POINTS, sync_directory
from kafkad.log.cleaner import Aborted, Cleaned, Job, LastRecords, Outcome, Segment
from kafkad.log.cleaning_choice import Choice, choice_of
from kafkad.log.exchange import Changed, exchange, remove_old
from kafkad.log.filenames import INDEX, LOG, TIME_INDEX, segment_file
from kafkad.log.flusher import FATAL
from kafkad.log.log import Log
from kafkad.log.log_dirs import LogDirs
from kafkad.log.scheduler import Scheduler
from kafkad.log.shortages import report
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger("kafkad.log")

AGAIN_MS: Final = 1_000  # other workers clean, or what was found has changed: how soon to try again
STEP_S: Final = 0.0005  # after it, the search for a dirty log lets others run
ANSWER_S: Final = 0.1  # how often a thread that waits for the loop checks whether the broker stops
THROTTLE_S: Final = 0.02  # shorter waits are postponed
END_S: Final = 30.0  # a disk that does not answer must not keep the broker from stopping

Result = TypeVar("Result")


class Stopped(Exception):
    """The broker stops."""


class CallingScheduler(Scheduler, Protocol):
    def call_soon_threadsafe(self, function: Callable[[], Any]) -> Any: ...


class Throttle:
    """Limits one thread to a rate of bytes per second, which may change; `wait` sleeps."""

    def __init__(
        self, rate: Callable[[], float], now: Callable[[], float], wait: Callable[[float], Any]
    ) -> None:
        self._rate, self._now, self._wait = rate, now, wait
        self._known = -1.0
        self._begun = 0.0
        self._taken = 0

    def take(self, size: int) -> None:
        rate = self._rate()
        if rate != self._known:
            self._known, self._begun, self._taken = rate, self._now(), 0
        self._taken += size
        late = self._begun + self._taken / rate - self._now()
        if late > THROTTLE_S:
            self._wait(late)


class LogCleaner:
    """Call `start`, then `stop`, on the loop. `busy(log)`: whether the log's files are being read by name."""

    def __init__(
        self,
        config: Callable[[], Any],
        logs: Callable[[], Iterable[Log]],
        log_dirs: LogDirs,
        clock: Any,
        scheduler: CallingScheduler,
        busy: Callable[[Log], bool],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._logs = logs
        self._log_dirs = log_dirs
        self._clock = clock
        self._scheduler = scheduler
        self._busy = busy
        self._fatal = fatal
        self._stopped = threading.Event()
        self._timer: Any = None
        self._search: _Search | None = None
        self._threads: dict[Log, threading.Thread] = {}

    def start(self) -> None:
        self._arm(self._config().log_cleaner_backoff_ms)

    def stop(self) -> None:
        """Stop all cleanings. The next start completes exchanges that were announced and not done."""
        self._stopped.set()
        self._timer.cancel()
        self._end_search()
        for thread in list(self._threads.values()):
            thread.join(END_S)

    def _arm(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(max(delay_ms, 1), self._turn)

    def _turn(self) -> None:
        """Begin a search, or go on with it; then begin a cleaning, and the next search."""
        config = self._config()
        if self._search is None:
            permit = self._log_dirs.cleaner_permits.take(config.log_cleaner_threads)
            if permit is None:
                self._arm(min(config.log_cleaner_backoff_ms, AGAIN_MS))
                return
            self._search = _Search(permit, iter(list(self._logs())))
        if not self._look(self._search, time.perf_counter() + STEP_S):
            self._arm(0)
            return
        best = self._search.best
        choice = self._choice_of(best.log) if best is not None else None  # it may have changed meanwhile
        if choice is not None and self._begin(choice, self._search.permit):
            self._search = None
            self._arm(0)
        else:
            self._end_search()
            wait_ms = config.log_cleaner_backoff_ms
            self._arm(wait_ms if best is None else min(wait_ms, AGAIN_MS))  # others may be dirty

    def _look(self, search: "_Search", until: float) -> bool:
        """Return whether all logs have been looked at."""
        for log in search.rest:
            choice = self._choice_of(log)
            if choice is not None and (search.best is None or choice.dirty_ratio > search.best.dirty_ratio):
                search.best = choice
            if time.perf_counter() > until:
                return False
        return True

    def _end_search(self) -> None:
        if self._search is not None:
            self._log_dirs.cleaner_permits.give_back(self._search.permit)
            self._search = None

    def _choice_of(self, log: Log) -> Choice | None:
        if "compact" not in log.config.cleanup_policy or log.being_cleaned or self._busy(log):
            return None
        if log.uncleanable or log.next_start >= 0 or log.closed:  # or segments are being deleted
            return None
        if log.native.count > 1 and log.recovery_point < log.native.active_base_offset:
            log.request_flush()  # after a kill no other flush may come for a while
        try:
            return choice_of(log, self._clock.now_ms())
        except KafkaError:  # logged; the disk is full or broken
            return None

    def _begin(self, choice: Choice, permit: int) -> bool:
        log = choice.log
        cleaning = _Cleaning(self, choice)
        thread = threading.Thread(
            target=self._run, args=(cleaning, permit), name="kafkad-cleaner", daemon=True
        )
        log.being_cleaned = True
        try:
            thread.start()
        except RuntimeError as refused:
            log.being_cleaned = False
            logger.error("no thread can be started to clean %s: %s", log.directory, refused)
            return False
        self._threads[log] = thread
        return True

    def _run(self, cleaning: "_Cleaning", permit: int) -> None:
        # Runs in the thread.
        trouble: BaseException | None = None
        outcome = None
        try:
            outcome = cleaning.run()
        except BaseException as e:
            trouble = e
        self._scheduler.call_soon_threadsafe(lambda: self._ended(cleaning, permit, outcome, trouble))

    def _ended(
        self, cleaning: "_Cleaning", permit: int, outcome: Outcome | None, trouble: BaseException | None
    ) -> None:
        log = cleaning.log
        cleaning.take_back()
        log.being_cleaned = False
        del self._threads[log]
        self._log_dirs.cleaner_permits.give_back(permit)
        if outcome is not None:
            _tell(cleaning, outcome)
            if not self._stopped.is_set():
                self._arm(0)  # the next one
        elif isinstance(trouble, (Stopped, Changed, KafkaError)) or log.closed or cleaning.is_cut:
            logger.debug("the cleaning of %s ended early: %r", log.directory, trouble)
        elif isinstance(trouble, OSError) and trouble.errno in FATAL:
            log.refuse(trouble)
        elif isinstance(trouble, OSError):
            report(log.directory, "cleaning it", trouble)
        elif isinstance(trouble, MemoryError):
            logger.error(
                "there is no memory to clean %s: lower log.cleaner.dedupe.buffer.size", log.directory
            )
        elif isinstance(trouble, AssertionError):
            self._fatal(trouble)
        else:
            log.uncleanable = True
            logger.error(
                "%s cannot be cleaned, and grows until the broker is started again: %s",
                log.directory, trouble, exc_info=trouble,
            )  # fmt: skip


@dataclass(slots=True)
class _Search:
    """A search for the dirtiest log, in steps, with the permit to clean it."""

    permit: int
    rest: Iterator[Log]  # not looked at so far
    best: Choice | None = None


class _Cleaning:
    """One cleaning of one log. Created on the loop; `run` runs in a thread."""

    def __init__(self, owner: LogCleaner, choice: Choice) -> None:
        config = owner._config()
        self.log = choice.log
        self.choice = choice
        self.begun = time.monotonic()
        self._owner = owner
        self._directory = choice.log.directory
        self._cuts = choice.log.cuts
        self._config = choice.log.config
        self._announced: Cleaned | None = None  # and not exchanged so far
        self._threads = config.log_cleaner_threads
        self._memory = config.log_cleaner_dedupe_buffer_size // self._threads
        self._load_factor = config.log_cleaner_io_buffer_load_factor
        self._now_ms = owner._clock.now_ms()
        self._keep_recovery_point = owner._log_dirs.checkpoint_work(choice.log, RECOVERY_POINTS)
        self._throttle = Throttle(self._rate, time.monotonic, owner._stopped.wait)

    @property
    def is_cut(self) -> bool:
        """Whether the log was truncated meanwhile: then its files may have been shorter than expected."""
        return self.log.cuts != self._cuts

    def _rate(self) -> float:
        config = self._owner._config()
        rate: float = config.log_cleaner_io_max_bytes_per_second / self._threads
        return max(rate, 1.0)

    def run(self) -> Outcome:
        if self._keep_recovery_point() < self.choice.first_uncleanable:
            raise Changed("another checkpoint came between")
        outcome = cleaner.clean(self._job(), self._swap)
        keep = self._on_loop(lambda: self._note_clean(outcome.end_offset))
        keep()
        return outcome

    def _job(self) -> Job:
        config = self._config
        return Job(
            directory=self._directory,
            segments=tuple(
                Segment(base, size, self._size_of(base, INDEX), self._size_of(base, TIME_INDEX))
                for base, size in self.choice.segments
            ),
            first_dirty=self.choice.first_dirty,
            first_uncleanable=self.choice.first_uncleanable,
            now_ms=self._now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
            index_interval=config.index_interval_bytes,
            memory=self._memory,
            load_factor=self._load_factor,
            aborted=self._on_loop(self._aborted),
            last_records=lambda: self._on_loop(self._last_records),
            progress=self._progress,
            legacy_horizon_ms=self._legacy_horizon_ms(),
        )

    def _legacy_horizon_ms(self) -> int:
        """Tombstones of magic 0 and 1 are retained from the last change of the newest clean segment on."""
        clean = [base for base, _ in self.choice.segments if base < self.choice.first_dirty]
        if not clean:
            return 0
        modified = os.stat(segment_file(self._directory, clean[-1], LOG)).st_mtime_ns // 1_000_000
        return modified - self._config.delete_retention_ms

    def _size_of(self, base: int, suffix: str) -> int:
        try:
            return os.path.getsize(segment_file(self._directory, base, suffix))
        except FileNotFoundError:
            return 0  # it is made anew when it is needed

    def _progress(self, size: int) -> None:
        self._throttle.take(size)
        self._check()

    def _check(self) -> None:
        if self._owner._stopped.is_set():
            raise Stopped
        if self.log.closed or self.log.cuts != self._cuts:
            raise Changed

    def _swap(self, cleaned: Cleaned) -> None:
        self._on_loop(lambda: self._announce(cleaned))
        sync_directory(cleaned.directory)
        old = self._on_loop(lambda: self._exchange(cleaned))
        sync_directory(cleaned.directory)
        self._on_loop(lambda: remove_old(self.log, old))

    def _on_loop(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call made on the loop. Raises its exception, and Stopped."""
        answer: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

        def answering() -> None:
            try:
                self._check()
                answer.put((call(), None))
            except BaseException as e:
                answer.put((None, e))

        self._owner._scheduler.call_soon_threadsafe(answering)
        while True:
            try:
                result, error = answer.get(timeout=ANSWER_S)
            except Empty:
                if self._owner._stopped.is_set():
                    raise Stopped from None  # the call finds that, too
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]

    # -- on the loop ---------------------------------------------------------------------------------------

    def _aborted(self) -> tuple[Aborted, ...]:
        start = self.choice.segments[0][0]
        if self.log.native.aborted_end <= start:
            return ()
        return tuple(self.log.native.aborted_transactions(start, self.choice.first_uncleanable))

    def _last_records(self) -> LastRecords:
        return {row[0]: (row[3], row[1]) for row in self.log.native.producers.rows()}

    def _announce(self, cleaned: Cleaned) -> None:
        if self._owner._busy(self.log):
            raise Changed("somebody reads the files")
        self._announced = cleaned
        try:
            cleaner.rename_to_swap(cleaned)  # here: the directory is still this log's
        except OSError:
            self.take_back()  # while its .cleaned files say that it is not complete
            raise

    def _exchange(self, cleaned: Cleaned) -> list[str]:
        self._announced = None
        try:
            return exchange(self.log, cleaned)
        except Changed:  # no name has changed; after any other failure the next start completes it
            self._announced = cleaned
            raise

    def take_back(self) -> None:
        """If the cleaning ended between the announcement of an exchange and the exchange, and the log goes
        on, cancel it."""
        if self._announced is not None and not self.log.ended:
            try:
                cleaner.take_back_swap(self._announced)
            except OSError as e:
                self.log.refuse(e)

    def _note_clean(self, end_offset: int) -> Callable[[], int]:
        self.log.cleaned_below = end_offset
        return self._owner._log_dirs.checkpoint_work(self.log, CLEANER_OFFSETS)


def _tell(cleaning: _Cleaning, outcome: Outcome) -> None:
    log = cleaning.log
    logger.info(
        "%s-%d is clean up to offset %d: %d of %d records and %d of %d bytes stay; it took %.1f s",
        log.topic, log.partition, outcome.end_offset, outcome.records_after, outcome.records_before,
        outcome.bytes_after, outcome.bytes_before, time.monotonic() - cleaning.begun,
    )  # fmt: skip
    if outcome.keyless:
        logger.warning(
            "%s-%d is compacted, and %d records had no key: they are gone",
            log.topic, log.partition, outcome.keyless,
        )  # fmt: skip
