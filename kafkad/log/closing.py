"""Closing many logs at once.

A log with fresh data has eight files and directories to sync. One after the other, each fsync waits for a
commit of its own of the file system's journal; those of several threads share commits. Logs are closed in
groups:

    on the loop   close the files, write the snapshot, take what is to be synced (Log.begin_close)
    in THREADS    sync it; this touches neither log nor partition
    on the loop   note what is flushed now (Log.end_close)

The data directory, which fresh logs have in common, is synced once.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafkad.log.checkpoints import sync_directory
from kafkad.log.parallel import run_all
from kafkad.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kafkad.log.log import Log

THREADS: Final = 8
GROUP: Final = 128  # logs whose files are open at the same time


def close_logs(logs: "Sequence[Log]", clean: bool) -> "Iterator[tuple[Log, KafkaError]]":
    """Close all logs. Yields those that were not closed cleanly, each with its reason."""
    synced: set[str] = set()
    for at in range(0, len(logs), GROUP):
        begun: list[tuple[Log, Any]] = []
        for log in logs[at : at + GROUP]:
            try:
                work = log.begin_close(clean)
            except KafkaError as trouble:
                yield log, trouble
                continue
            if work is not None:
                _sync_shared(log, work, synced)
                begun.append((log, work))
        errors = run_all([work for _, work in begun], THREADS, "kafkad-close")
        for (log, work), error in zip(begun, errors, strict=True):
            try:
                log.end_close(work, error)
            except KafkaError as trouble:
                yield log, trouble


def _sync_shared(log: "Log", work: Any, synced: set[str]) -> None:
    """Sync directories other than the log's own once for all logs."""
    for path in work.directories - {log.directory} - synced:
        try:
            sync_directory(path)
        except OSError:
            continue  # the work tries it again, and tells what becomes of it
        synced.add(path)
    work.directories = work.directories - synced
