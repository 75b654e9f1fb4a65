"""`__consumer_offsets` as the group coordinator's storage (server/topic_storage)."""

from kafkad.api.context import Images
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.log.admission import Admission
from kafkad.replication.partitions import Partitions
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.topic_storage import Appended, TopicStorage

OFFSETS_TOPIC = "__consumer_offsets"
NO_SEQUENCE = -1


class GroupStorage(TopicStorage):
    """The storage of `coordinator.GroupCoordinator`."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Partitions,
        metadata: Images,
        clock: Clock,
        scheduler: LoopScheduler,
    ) -> None:
        super().__init__(OFFSETS_TOPIC, partitions, metadata, clock, scheduler)
        self.timeout_ms = config.offsets_commit_timeout_ms

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of an existing topic. The image was caught up before any group was loaded."""
        known = self.metadata.image.topics.get(topic)
        return None if known is None else known.topic_id

    def ask_guard(self, partition: int, admission: int, producer_id: int, epoch: int) -> int:
        """See log.ask_guard; commits have no sequence."""
        log = self.partitions.get(OFFSETS_TOPIC, partition)
        guard = log.ask_guard(Admission(admission), producer_id, epoch, NO_SEQUENCE, self.clock.now_ms())
        return int(guard)

    def append(
        self,
        partition: int,
        batch: bytearray,
        callback: Appended,
        admitted: tuple[Admission, int] = (Admission.PLAIN, 0),
    ) -> None:
        """See `append_batch`."""
        self.append_batch(partition, batch, callback, self.timeout_ms, admitted)

    def append_marker(
        self, partition: int, of: tuple[int, int, int], *, commit: bool, version: int, callback: Appended
    ) -> None:
        """Append the marker that ends a transaction, like `append`."""
        self.write(
            partition,
            lambda log: log.append_marker(*of, commit=commit, version=version, now_ms=self.clock.now_ms()),
            callback,
            self.timeout_ms,
        )
