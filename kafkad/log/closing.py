"""Closing many logs at once.

A log with fresh data has eight files and directories to sync. One after the other, each fsync waits for its
own commit of the file system's journal; the fsyncs of several threads share commits. Logs are closed in
groups:

    on the loop   close the files, write the snapshot, collect what must be synced (Log.begin_close)
    in THREADS    sync it; this accesses neither log nor partition
    on the loop   record what is flushed now (Log.end_close)

The data directory, which fresh logs have in common, is synced once.

A disk that does not answer must not keep the logs on other disks from being closed. If no fsync of a group
has ended for STALLED_S, its logs and the remaining ones in this directory are given up: they are recovered at
the next start, as after a kill."""

import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafkad.log.checkpoints import sync_directory
from kafkad.log.filenames import LOG, segment_file
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError

if TYPE_CHECKING:
    from kafkad.log.log import Log

logger = logging.getLogger("kafkad.log")

THREADS: Final = 8
GROUP: Final = 128  # logs whose files are open at the same time
STALLED_S: Final = 30.0  # even a slow disk completes some fsyncs in this time


class Stalled(KafkaError):
    """The disk did not answer: it is not known how much of a log is on it."""


def close_logs(logs: "Sequence[Log]", clean: bool) -> "Iterator[tuple[Log, KafkaError]]":
    """Close the logs of one data directory. Yield those that were not closed cleanly, with the reason."""
    synced: set[str] = set()
    stalled: Stalled | None = None
    for at in range(0, len(logs), GROUP):
        begun: list[tuple[Log, Any, set[str]]] = []
        for log in logs[at : at + GROUP]:
            try:
                work = log.begin_close(clean and stalled is None)
            except KafkaError as trouble:
                yield log, trouble
                continue
            if stalled is not None:
                yield log, stalled
            elif work is not None:
                shared = work.directories - {log.directory}
                work.directories = work.directories - shared
                begun.append((log, work, shared))
        errors, stalled = _sync([work for _, work, _ in begun], [shared for _, _, shared in begun], synced)
        for (log, work, _), error in zip(begun, errors, strict=True):
            try:
                log.end_close(work, error)
            except KafkaError as trouble:
                yield log, trouble


def settle_times(logs: "Sequence[Log]") -> None:
    """Give the time of now to segments that were written in the future: the clock was set back. Report
    segments that somebody has removed."""
    for log in logs:
        for base, _ in log.segments:
            path = segment_file(log.directory, base, LOG)
            try:
                if os.stat(path).st_mtime_ns > time.time_ns():
                    os.utime(path)
            except FileNotFoundError:
                logger.error("%s was removed, and its records with it", path)
            except OSError:
                pass  # the next start checks the log


def _sync(
    works: list[Any], shared: list[set[str]], synced: set[str]
) -> tuple[list[Exception | None], Stalled | None]:
    """Run each work, and sync once the directories that are `shared` and not `synced` yet. Return what each
    work raised, or None, and whether the disk did not answer."""
    paths = sorted(set().union(*shared) - synced)
    jobs = [*(lambda path=path: sync_directory(path) for path in paths), *works]
    errors = _in_threads(jobs)
    stalled = next((error for error in errors if isinstance(error, Stalled)), None)
    troubles = dict(zip(paths, errors, strict=False))
    synced.update(path for path, trouble in troubles.items() if trouble is None)
    results = errors[len(paths) :]
    for number, work in enumerate(works):
        left = shared[number] - synced
        if left:
            work.directories = work.directories | left  # a flush retries it, and reports the result
            results[number] = results[number] or troubles[min(left)]
    return results, stalled


def _in_threads(jobs: Sequence[Callable[[], None]]) -> list[Exception | None]:
    """Run each job. Return what it raised, or None. Jobs that wait for a disk get a Stalled."""
    errors: list[Exception | None] = [None] * len(jobs)
    ended = [False] * len(jobs)
    given_up = False
    numbers = itertools.count()
    changed = threading.Semaphore(0)

    def run() -> None:
        while not given_up and (number := next(numbers)) < len(jobs):
            try:
                jobs[number]()
            except Exception as trouble:
                errors[number] = trouble
            ended[number] = True
            changed.release()

    def run_apart() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread handles them
        run()

    threads: list[threading.Thread] = []
    for number in range(min(THREADS, len(jobs))):
        # Daemon threads: one that waits for the disk does not keep the process alive.
        thread = threading.Thread(target=run_apart, name=f"kafkad-close-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break  # the system has no more threads: the existing ones do it
        threads.append(thread)
    if not threads:
        run()
    for _ in jobs:
        if not changed.acquire(timeout=STALLED_S):
            given_up = True
            stalled = Stalled(KAFKA_STORAGE_ERROR, f"no fsync has ended for {STALLED_S:g} s")
            return [error if done else stalled for error, done in zip(errors, ended, strict=True)]
    for thread in threads:
        thread.join()
    return errors
