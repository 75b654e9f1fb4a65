"""Exchanging closed segments for one that the cleaner wrote, in a log that serves clients meanwhile.

    a thread    `cleaner.announce_swap`: from here on a start after a kill completes the exchange
    the loop    `exchange`: renames the old files away and the new ones into place
    a thread    syncs the directory
    the loop    `remove_old`, after file.delete.delay.ms: a reader may be about to open one

Readers see only the second step (_native/log/exchange). It consists of a few renames."""

import os

from kafkad._native.log.exchange import abandon_exchange, begin_exchange, end_exchange
from kafkad.log.cleaner import Cleaned, swap_in
from kafkad.log.filenames import LOG, segment_file
from kafkad.log.owner import Owner
from kafkad.log.removal import unlink_later


class Changed(Exception):
    """The log's segments are no longer those that were cleaned: it was closed, deleted, cut or cleaned."""


def exchange(log: Owner, cleaned: Cleaned) -> list[str]:
    """Replace segments by their cleaned group. Return the paths of the old files. Raises Changed, and
    KafkaError: then the log serves nothing until the next start, which completes the exchange."""
    bases = [base for base, _, _ in log.native.segment_rows()]
    first = bases.index(cleaned.base_offset) if cleaned.base_offset in bases else 0
    end = first + len(cleaned.replaced)
    if log.closed or log.directory != cleaned.directory or bases[first:end] != [*cleaned.replaced]:
        raise Changed(f"{log.topic}-{log.partition}")
    assert end < len(bases)  # the active segment is never cleaned
    begin_exchange(log.native)
    try:
        old = swap_in(cleaned)
        status = os.stat(segment_file(cleaned.directory, cleaned.base_offset, LOG))
    except OSError as e:
        abandon_exchange(log.native)
        raise log.half_done("its exchange of segments", e) from e
    end_exchange(log.native, first, end, cleaned.size, status.st_mtime_ns // 1_000_000)
    log.sync_later(log.directory)
    return old


def remove_old(log: Owner, paths: list[str]) -> None:
    unlink_later(log.scheduler, log.config.file_delete_delay_ms, paths)
