"""An internal topic as a coordinator's storage: appends that are answered when they are durable.

An append goes directly to the log of the partition, and its answer waits until the high watermark has passed
it: at once by default, after the fsync if the flush policy requires one, after the followers in the ISR if
there are any. Below min.insync.replicas nothing is appended (NOT_ENOUGH_REPLICAS).

In a cluster each append carries the leader epoch in which its coordinator leads (`lead`).
"""

import logging
from collections.abc import Callable

from kafkad.api.context import Images
from kafkad.clock import Clock
from kafkad.log.admission import Admission
from kafkad.log.log import Log
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.replication.partitions import Partitions
from kafkad.server.scheduler import LoopScheduler

logger = logging.getLogger(__name__)

Appended = Callable[[int, int], object]  # error code, base offset

SIZE_MAX = 1 << 20  # of a batch, if no log has another limit


class TopicStorage:
    """The partitions of one topic that this worker leads."""

    def __init__(
        self, topic: str, partitions: Partitions, metadata: Images, clock: Clock, scheduler: LoopScheduler
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.metadata = metadata
        self.clock = clock
        self.scheduler = scheduler
        self.epochs: dict[int, int] = {}  # by partition: the only epoch in which appends are accepted

    def lead(self, partition: int, epoch: int) -> None:
        self.epochs[partition] = epoch

    def resign(self, partition: int) -> None:
        self.epochs.pop(partition, None)

    def partition_count(self) -> int:
        """The number of the topic's partitions; 0 while it does not exist."""
        topic = self.metadata.image.topics.get(self.topic)
        return len(topic.partitions) if topic is not None else 0

    def batch_size_max(self, partition: int) -> int:
        """max.message.bytes of the topic."""
        log = self.partitions.find(self.topic, partition)
        return SIZE_MAX if log is None else int(log.config.max_message_bytes)

    def append_batch(
        self,
        partition: int,
        batch: bytearray,
        callback: Appended,
        timeout_ms: int,
        admitted: tuple[Admission, int] = (Admission.PLAIN, 0),
    ) -> None:
        """Append one batch. `callback(error code, base offset)` is called once, when it is durable as with
        acks=all. `admitted`: for a transaction, the admission and the guard."""
        admission, guard = admitted

        def write(log: Log) -> int:
            size_max = log.config.max_message_bytes
            if len(batch) > size_max:
                logger.error(
                    "%s-%d: a batch of %d bytes is refused; max.message.bytes is %d",
                    self.topic, partition, len(batch), size_max,
                )  # fmt: skip
                raise KafkaError(errors.MESSAGE_TOO_LARGE)
            now_ms = self.clock.now_ms()
            return int(log.append(batch, now_ms, origin="coordinator", admission=admission, guard=guard))

        self.write(partition, write, callback, timeout_ms)

    def write(self, partition: int, write: Callable[[Log], int], callback: Appended, timeout_ms: int) -> None:
        """Like `append_batch`; `write(log)` appends, and returns the base offset. If the timeout ends after
        the append, the callback gets REQUEST_TIMED_OUT with the offset, and later a second call with the
        outcome."""
        try:
            log = self.partitions.get(self.topic, partition)
            if self.epochs.get(partition, log.native.leader_epoch) != log.native.leader_epoch:
                raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER)
            offset = write(log)
        except KafkaError as trouble:
            callback(trouble.code, -1)
            return
        except OSError as trouble:
            logger.error("%s-%d could not be written: %s", self.topic, partition, trouble)
            callback(errors.KAFKA_STORAGE_ERROR, -1)
            return
        if log.high_watermark >= log.end_offset:
            callback(errors.NONE, offset)
        else:
            self._answer_when_durable(log, lambda code: callback(code, offset), timeout_ms)

    def _answer_when_durable(self, log: Log, callback: Callable[[int], object], timeout_ms: int) -> None:
        def answer(trouble: BaseException | None) -> None:
            timeout.cancel()
            callback(_code(trouble))

        timeout = self.scheduler.call_later(timeout_ms, lambda: callback(errors.REQUEST_TIMED_OUT))
        log.await_high_watermark(log.end_offset, answer)


def _code(trouble: BaseException | None) -> int:
    if trouble is None:
        return errors.NONE
    return trouble.code if isinstance(trouble, KafkaError) else errors.KAFKA_STORAGE_ERROR
