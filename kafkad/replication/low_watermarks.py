"""DeleteRecords with replicas: the client gets its answer when no live replica has the deleted records.

The leader moves its log start. A follower takes it from the answer to its Fetch, and its next Fetch has the
new log start of the follower. The low watermark of a partition is the smallest log start of the leader and of
all followers whose brokers are not fenced, in the ISR or not (Partition.lowWatermarkIfLeader). It is checked
when such a Fetch arrives (the native partition calls only if a request waits), and when the metadata of the
partition or of a broker changes.

Use: `wait` in api/partitions, `look` in replication/replicas."""

from collections.abc import Callable
from typing import Final

from kafkad._native.shared.watermarks import LEADER
from kafkad.log.log import Log
from kafkad.metadata.image import MetadataImage
from kafkad.protocol.errors import NONE, NOT_LEADER_OR_FOLLOWER

UNKNOWN: Final = -1

Reached = Callable[[int, int], None]  # (error code, low watermark)


class LowWatermarks:
    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._waiting: dict[Log, dict[Reached, int]] = {}  # with the awaited offset

    def __len__(self) -> int:
        return len(self._waiting)

    def of(self, log: Log) -> int:
        """Return the low watermark; -1 if a live follower has not fetched from us yet."""
        low, brokers = log.log_start_offset, self._image().brokers
        for broker_id, _, start, *_ in log.native.replica_rows():
            broker = brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                low = min(low, start)
        return low

    def wait(self, log: Log, offset: int, reached: Reached) -> None:
        """Call `reached` once: when the low watermark is at `offset`, or we no longer lead. This may be at
        once. A caller that gives up calls `forget`."""
        self._waiting.setdefault(log, {})[reached] = offset
        log.on_replica_start = self.look
        log.native.awaits_starts = True
        self.look(log)

    def forget(self, log: Log, reached: Reached) -> None:
        waiting = self._waiting.get(log)
        if waiting is not None and waiting.pop(reached, None) is not None and not waiting:
            self._rest(log)

    def look(self, log: Log) -> None:
        waiting = self._waiting.get(log)
        if waiting is None:
            return
        leads = log.native.role == LEADER
        low = self.of(log) if leads else UNKNOWN
        for reached, offset in list(waiting.items()):
            if leads and low < offset:
                continue
            del waiting[reached]
            reached(NONE if leads else NOT_LEADER_OR_FOLLOWER, low)
        if not waiting:
            self._rest(log)

    def _rest(self, log: Log) -> None:
        del self._waiting[log]
        log.native.awaits_starts = False
        log.on_replica_start = None
