"""`__transaction_state` as the transaction coordinator's storage (server/topic_storage)."""

from kafkad.api.context import Images
from kafkad.clock import Clock
from kafkad.replication.partitions import Partitions
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.topic_storage import Appended, TopicStorage

TRANSACTION_TOPIC = "__transaction_state"


class TransactionStorage(TopicStorage):
    """The storage of `coordinator.TransactionCoordinator`. An append may take as long as its transaction."""

    def __init__(
        self, partitions: Partitions, metadata: Images, clock: Clock, scheduler: LoopScheduler
    ) -> None:
        super().__init__(TRANSACTION_TOPIC, partitions, metadata, clock, scheduler)

    def leader_epoch(self, partition: int) -> int:
        """Raise KafkaError if the partition is not led here."""
        return int(self.partitions.get(TRANSACTION_TOPIC, partition).native.leader_epoch)

    def append(self, partition: int, batch: bytearray, callback: Appended, timeout_ms: int) -> None:
        """See `append_batch`."""
        self.append_batch(partition, batch, callback, timeout_ms)
