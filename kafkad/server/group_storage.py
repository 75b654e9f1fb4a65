"""`__consumer_offsets` as the group coordinator's storage: appends that answer when they are durable.

An append goes straight to the log that owns the partition, and its answer waits until the high watermark has
passed it: at once by default, after the fsync where the flush policy asks for one.
"""

import logging
from collections.abc import Callable
from typing import Any

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
READ_BYTES = 8 << 20  # of one step of loading


class GroupStorage:
    """What `coordinator.GroupCoordinator` writes to."""

    def __init__(self, partitions: Any, metadata: Any, clock: Any) -> None:
        self.partitions = partitions
        self.metadata = metadata
        self.clock = clock

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while there is none."""
        topic = self.metadata.image.topics.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    def append(self, partition: int, batch: bytearray, callback: Callable[[int], None]) -> None:
        """Appends one batch; `callback(error code)` once, when it is as durable as acks=all makes it."""
        try:
            log = self.partitions.get(OFFSETS_TOPIC, partition)
            log.append(batch, self.clock.now_ms(), origin="coordinator")
        except KafkaError as trouble:
            callback(trouble.code)
            return
        except OSError as trouble:
            logger.error("%s-%d could not be written: %s", OFFSETS_TOPIC, partition, trouble)
            callback(errors.KAFKA_STORAGE_ERROR)
            return
        end = log.end_offset
        if log.high_watermark >= end:
            callback(errors.NONE)
        else:
            log.await_flushed(end, callback)

    def read_all(self, partition: int) -> Any:
        """All batches of a partition, in buffers of some megabytes."""
        log = self.partitions.get(OFFSETS_TOPIC, partition)
        offset = log.log_start_offset
        while offset < log.end_offset:
            data = log.read(offset, READ_BYTES, below="end")
            if not data:
                return
            yield data
            offset = _end_of(data)


def _end_of(data: bytes) -> int:
    """The offset after the last whole batch of a buffer."""
    position, end = 0, -1
    while position + 61 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        base = int.from_bytes(data[position : position + 8], "big")
        end = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
        position += size
    assert end >= 0
    return end
