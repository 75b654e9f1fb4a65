"""The controller: plans become records, records become the image, and those who listen hear of it.

    request → planner (image, request) → records, answer → raft.append → on_change(delta, image) → the answer

Planners (topics, configs, brokers, producer_ids) are pure. This shell is synchronous, since a quorum of one
commits when its disk has it; who calls it must still be ready for an awaitable, for a quorum of more will
give one.

Rule: when a call returns, its change is on disk and every subscriber has seen it.
Beware: subscribers run inside the call and must not change metadata themselves.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafkad.controller import brokers, configs, producer_ids, topics
from kafkad.controller.brokers import NO_EPOCH, Registration
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import Delta
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

OnChange = Callable[[Delta, MetadataImage], None]


class Controller:
    """`raft` is a raft.SingleVoter that leads; `random` gives uuids and placement (random.Random,
    SystemRandom)."""

    def __init__(self, raft: Any, clock: Any, random: Any, config: Any) -> None:
        self.config = config
        self.broker_epoch = NO_EPOCH  # of the broker in this process, once it has registered
        self._raft = raft
        self._clock = clock
        self._random = random
        # (records, offset before, image) of each change, after the subscribers: for who replays it elsewhere
        self.on_commit: Callable[[Sequence[Any], int, MetadataImage], None] | None = None
        self._subscribers: list[OnChange] = []
        self._publishing = False

    @property
    def image(self) -> MetadataImage:
        image: MetadataImage = self._raft.image
        return image

    def subscribe(self, on_change: OnChange) -> None:
        """From now on called with every change, in order. What is already in `image` is not told again."""
        self._subscribers.append(on_change)

    def update_config(self, config: Any) -> None:
        """Defaults for what is created from now on."""
        self.config = config

    # -- brokers -------------------------------------------------------------------------------------------

    def register_broker(self, registration: Registration) -> int:
        """Register and unfence the broker of this process, and let it lead; its new broker epoch."""
        epoch = self._raft.next_offset
        unclean = brokers.UncleanElections(self.image, bool(self.config.unclean_leader_election_enable))
        records = brokers.plan_registration(self.image, registration, epoch, unclean)
        # Not atomic: a broker with very many partitions may need several batches, and the next start does it
        # again.
        self._commit(records, atomic=False)
        self.broker_epoch = epoch
        logger.info(
            "broker %d registered in epoch %d, %d partition(s) changed",
            registration.broker_id,
            epoch,
            sum(type(record) is messages.PartitionChangeRecord for record in records),
        )
        return epoch

    def fence_broker(self) -> None:
        """At a clean stop: nobody waits for our session to run out."""
        broker = self.image.brokers.get(self._raft.node_id)
        if broker is not None and not broker.fenced and broker.epoch == self.broker_epoch:
            self._commit([brokers.fencing(broker.broker_id, broker.epoch, brokers.FENCE)])

    def assign_directories(self, placed: dict[tuple[bytes, int], bytes]) -> None:
        """The log directories of replicas, by (topic id, partition index), where the broker chose them
        itself."""
        self._commit(brokers.plan_directories(self.image, self._raft.node_id, placed), atomic=False)

    # -- topics --------------------------------------------------------------------------------------------

    def create_topics(self, request: Any, context: Any = None) -> Any:
        """CreateTopicsResponse."""
        records, response = topics.plan_create(self.image, topics.Cluster(self.config, self._random), request)
        self._commit_or_refuse(records, response.topics)
        return response

    def delete_topics(self, request: Any, context: Any = None) -> Any:
        """DeleteTopicsResponse."""
        version = context.version if context is not None else messages.DeleteTopicsRequest.MAX_VERSION
        records, response = topics.plan_delete(self.image, self.config, version, request)
        self._commit_or_refuse(records, response.responses)
        return response

    def create_partitions(self, request: Any, context: Any = None) -> Any:
        """CreatePartitionsResponse."""
        records, response = topics.plan_grow(self.image, topics.Cluster(self.config, self._random), request)
        self._commit_or_refuse(records, response.results)
        return response

    def auto_create(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Create topics that a client or a coordinator needs, as their kind wants it; the trouble by name, or
        None."""
        image = self.image
        wanted = [topics.auto_created(image, self.config, name) for name in names if name not in image.topics]
        if not wanted:
            return {}
        response = self.create_topics(messages.CreateTopicsRequest(topics=wanted))
        for result in response.topics:
            if result.error_code:  # a Metadata response has no room for the reason
                logger.warning("topic %s cannot be created: %s", result.name, result.error_message)
        return {
            result.name: KafkaError(result.error_code, result.error_message) if result.error_code else None
            for result in response.topics
        }

    # -- configs -------------------------------------------------------------------------------------------

    def incremental_alter_configs(
        self, changes: configs.Incremental, validate_only: bool = False
    ) -> configs.Outcome:
        """The trouble with each resource, or None: {(type, name): {key: (operation, value)}}."""
        records, outcome = configs.plan_incremental(self.image, self.config, changes)
        if not validate_only:
            self._commit(records)
        return outcome

    def alter_configs(self, wanted: configs.Absolute, validate_only: bool = False) -> configs.Outcome:
        """The trouble with each resource, or None: {(type, name): {key: value}}."""
        records, outcome = configs.plan_absolute(self.image, self.config, wanted)
        if not validate_only:
            self._commit(records)
        return outcome

    # -- producer ids --------------------------------------------------------------------------------------

    def allocate_producer_ids(self) -> tuple[int, int]:
        """(first, count) of a block that nobody else gets. Raises KafkaError."""
        record, first = producer_ids.plan_block(self.image, self._raft.node_id, self.broker_epoch)
        self._commit([record])
        return first, producer_ids.BLOCK_SIZE

    # -- committing ----------------------------------------------------------------------------------------

    def _commit(self, records: Sequence[Any], *, atomic: bool = True) -> None:
        """Raises KafkaError(KAFKA_STORAGE_ERROR); then nothing is changed."""
        assert not self._publishing, "a subscriber changes metadata"
        if not records:
            return
        before = self.image.offset
        delta = self._raft.append(records, atomic=atomic)
        self._publishing = True
        try:
            for on_change in self._subscribers:
                on_change(delta, self._raft.image)
            if self.on_commit is not None:
                self.on_commit(records, before, self._raft.image)
        finally:
            self._publishing = False

    def _commit_or_refuse(self, records: Sequence[Any], results: Iterable[Any]) -> None:
        """Commit; where that fails, it is the answer of every result that would have succeeded."""
        try:
            self._commit(records)
        except KafkaError as trouble:
            for result in results:
                if result.error_code == errors.NONE:
                    result.error_code, result.error_message = trouble.code, trouble.message
