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
SIZE_MAX = 1 << 20  # of a batch, while no log says otherwise


class GroupStorage:
    """What `coordinator.GroupCoordinator` writes to."""

    def __init__(self, config: Any, partitions: Any, metadata: Any, clock: Any, scheduler: Any) -> None:
        self.timeout_ms = config.offsets_commit_timeout_ms
        self.partitions = partitions
        self.metadata = metadata
        self.clock = clock
        self.scheduler = scheduler

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while there is none."""
        topic = self.metadata.image.topics.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    def topic_id(self, topic: str) -> bytes | None:
        """Of a topic that exists. The image was caught up before any group was loaded."""
        known = self.metadata.image.topics.get(topic)
        return None if known is None else known.topic_id

    def batch_size_max(self, partition: int) -> int:
        """max.message.bytes of the topic."""
        log = self.partitions.find(OFFSETS_TOPIC, partition)
        return SIZE_MAX if log is None else int(log.config.max_message_bytes)

    def append(self, partition: int, batch: bytearray, callback: Callable[[int], object]) -> None:
        """Appends one batch; `callback(error code)` once, when it is as durable as acks=all makes it."""
        try:
            log = self.partitions.get(OFFSETS_TOPIC, partition)
            size_max = log.config.max_message_bytes
            if len(batch) > size_max:
                logger.error(
                    "%s-%d: a batch of %d bytes is refused; max.message.bytes is %d",
                    OFFSETS_TOPIC, partition, len(batch), size_max,
                )  # fmt: skip
                callback(errors.MESSAGE_TOO_LARGE)
                return
            log.append(batch, self.clock.now_ms(), origin="coordinator")
        except KafkaError as trouble:
            callback(trouble.code)
            return
        except OSError as trouble:
            logger.error("%s-%d could not be written: %s", OFFSETS_TOPIC, partition, trouble)
            callback(errors.KAFKA_STORAGE_ERROR)
            return
        if log.high_watermark >= log.end_offset:
            callback(errors.NONE)
        else:
            self._answer_when_durable(log, callback)

    def _answer_when_durable(self, log: Any, callback: Callable[[int], object]) -> None:
        answered = False

        def answer(code: int) -> None:
            nonlocal answered
            if not answered:
                answered = True
                timeout.cancel()
                callback(code)

        timeout = self.scheduler.call_later(self.timeout_ms, lambda: answer(errors.REQUEST_TIMED_OUT))
        log.await_high_watermark(log.end_offset, lambda trouble: answer(_code(trouble)))


def _code(trouble: BaseException | None) -> int:
    if trouble is None:
        return errors.NONE
    return trouble.code if isinstance(trouble, KafkaError) else errors.KAFKA_STORAGE_ERROR
