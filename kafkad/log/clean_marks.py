"""The clean-shutdown file of a data directory, and when a start does not trust it.

    <dir>/.kafka_cleanshutdown      {"version":0,"brokerEpoch":17} (Kafka: CleanShutdownFileHandler, KIP-966)

It is written last at a stop, when everything else is on disk, and removed first at a start, before any file
is changed. So its presence means that every file is whole. This holds after a kill or loss of power, and also
for a directory that was away (not mounted, not in log.dirs) while the others were served.

It can be wrong only in a copy: a backup taken while the broker started or stopped, old files put beside a
newer clean-shutdown file, or a newer log beside an old one. Kafka trusts it nevertheless. We require two more
signs for each log, which cost nothing because a start reads both anyway:

    no segment was written after the clean-shutdown file
    the log ends at the recovery point, which was checkpointed at the same stop

A log without these signs is checked as after a kill.

If the wall clock was set back while the broker ran, segments have later times than the stop. They get the
time of the stop before the file is written (`closing.settle_times`): otherwise one segment of a wrong time
would make each log doubtful, or the sign useless."""

import json
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from kafkad.log.checkpoints import sync_directory

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


class CleanMark(NamedTuple):
    there: bool
    broker_epoch: int  # -1 if there is none
    written_ms: int  # by the clock of the file system


NO_MARK: Final = CleanMark(False, -1, -1)


def write_mark(directory: str, broker_epoch: int) -> None:
    path = os.path.join(directory, CLEAN_SHUTDOWN)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(directory)


def take_mark(directory: str) -> CleanMark:
    """Read and remove the clean-shutdown file: a crash while logs are loaded is unclean (KAFKA-10471)."""
    path = os.path.join(directory, CLEAN_SHUTDOWN)
    try:
        with open(path, "rb") as file:
            data = file.read(4096)
            written_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return NO_MARK
    os.unlink(path)
    sync_directory(directory)
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        epoch = -1  # before Kafka 3.7 the file was empty
    return CleanMark(True, epoch if isinstance(epoch, int) else -1, written_ms)


class CleanStop(NamedTuple):
    """What the last stop recorded about one log."""

    written_ms: int  # when the clean-shutdown file was written
    end_offset: int | None  # the recovery point of the checkpoint; None: it has none

    def doubt_about_files(self, changed_ms: Iterable[int]) -> str:
        """Return why the files differ from those at the stop, or "". `changed_ms`: when each segment was last
        written."""
        late_ms = max(changed_ms, default=0) - self.written_ms
        return f"a segment was written {late_ms} ms after the broker's clean stop" if late_ms > 0 else ""

    def doubt_about_end(self, end_offset: int) -> str:
        """The same, once the end of the log is known."""
        if self.end_offset in (None, end_offset):
            return ""
        return f"it ended at {self.end_offset} at the broker's clean stop, and ends at {end_offset}"
