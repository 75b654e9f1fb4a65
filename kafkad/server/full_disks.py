"""Partitions that this broker leads and cannot write, because their disk is full.

A full disk refuses requests until there is room again. In a cluster the other replicas of such a partition
usually have room, but only the broker itself knows that its disk is full: heartbeats and Fetches continue, so
no controller would elect another leader. Kafka takes the log directory offline at the first failed write.
kafkad waits for some seconds, and does it only if it helps:

    a request to the partition was refused, nothing has been appended since, and the disk is still full; or
    the log serves nothing until a truncation finds room (Log.halted)
    the partition is led here, and the ISR without this broker still has min.insync.replicas members, so that
    they can be written

The second condition also keeps replicas readable if the disks of all brokers are full. Since replicas of the
same data often fill their disks at the same moment, the brokers of an ISR wait for different times (STEP_MS).

Clients may be slow to try again: librdkafka's idempotent producer first waits for all its other requests. So
a look at the file system counts, too, and so do Fetches from other leaders.

`refused` may be called by threads; `tick` belongs to the loop.

Use: server/member_worker."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kafkad.log.log import Log
from kafkad.metadata.image import MetadataImage

FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
WAIT_MS: Final = 5_000  # from the first refused request on
STEP_MS: Final = 3_000  # more, for each member of the ISR with a lower id: time to learn of the new ISR
AGAIN_MS: Final = 3_000  # the disk was full so recently: it still is. Fetchers try again every second
ROOM_BYTES: Final = 1 << 20  # a file system with less is full
TICK_S: Final = 1.0

Refused = tuple[int, int]  # when a request was refused, and the end of the log


class FullDisks:
    """`me`: this broker's id. `now_ms`: a monotonic clock."""

    def __init__(self, me: int, image: Callable[[], MetadataImage], now_ms: Callable[[], int]) -> None:
        self.me = me
        self._image = image
        self._now_ms = now_ms
        self._refused: dict[Log, Refused] = {}  # the first request since an append
        self._last_ms: dict[str, int] = {}  # by log directory

    def refused(self, log: Log, error: OSError) -> None:
        if error.errno not in FULL:
            return
        now = self._now_ms()
        self._last_ms[os.path.dirname(log.directory)] = now
        known = self._refused.get(log)
        if known is None or known[1] != log.end_offset:
            self._refused[log] = (now, log.end_offset)

    def tick(self) -> Iterator[Log]:
        """Yield each log whose directory should go offline."""
        for log, (first_ms, end) in list(self._refused.items()):
            is_full = log.halted or self._is_full(os.path.dirname(log.directory))
            if log.ended or log.end_offset != end or not is_full:
                del self._refused[log]
                continue
            wait_ms = self._wait_ms(log)
            if wait_ms is not None and self._now_ms() - first_ms >= wait_ms:
                del self._refused[log]
                yield log

    def _is_full(self, directory: str) -> bool:
        last_ms = self._last_ms.get(directory)  # None: the log has moved there since it was refused
        if last_ms is not None and self._now_ms() - last_ms <= AGAIN_MS:
            return True
        with suppress(OSError):
            found = os.statvfs(directory)
            return found.f_bavail * found.f_frsize < ROOM_BYTES or found.f_files > 0 == found.f_favail
        return False

    def _wait_ms(self, log: Log) -> int | None:
        """Return how long a partition may refuse requests; None: without end."""
        topic = self._image().topics.get(log.topic)
        state = None if topic is None else topic.partitions.get(log.partition)
        if state is None or state.leader != self.me:
            return None
        others = [each for each in state.isr if each != self.me]
        if len(others) < max(1, log.config.min_insync_replicas):
            return None
        return WAIT_MS + STEP_MS * sum(each < self.me for each in others)
