"""The controller: plans become records, records become the image, and subscribers are notified.

    request → planner (head, request) → records, answer → raft.append → the answer, not sent yet
    a flush later: raft commits → on_change(delta, image) → the answer may be sent

Planners (topics, configs, brokers, producer_ids) are pure. They read `head`, which has every appended change,
including uncommitted ones, so a topic is not created twice while the disk is slow. An answer that depends on
such a change, even a refusal, waits until that change is committed (Kafka: QuorumController).

Each request is a generator that returns its answer, because a request may be about 100,000 topics: the caller
runs it in short turns (server/controller_queue), or at once at start and stop (`at_once`).

Rule: requests run one after the other. Nothing is appended between the first and the last step of one.
Rule: a subscriber does not change metadata itself.
Rule: an answer is sent when `await_committed` has called back for the `head` after its last step.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.controller import (
    acls,
    brokers,
    configs,
    feature_levels,
    leadership,
    producer_ids,
    quotas,
    reassignments,
    scram,
    tokens,
    topics,
)
from kafkad.controller.brokers import NO_EPOCH, Registration
from kafkad.controller.leadership import TopicSettings
from kafkad.controller.mutation_quota import MutationQuota, MutationQuotas
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import Delta
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft import describe
from kafkad.raft.single_voter import SingleVoter
from kafkad.security.delegation import Principal

if TYPE_CHECKING:
    from kafkad.raft.quorum_log import QuorumLog  # much code that a broker alone does not need

logger = logging.getLogger(__name__)

REFUSED_LOGGED = 10  # topics per request

OnChange = Callable[[Delta, MetadataImage], None]
Steps = Generator[None, None, Any]


class Controller:
    """`raft`: the metadata log. `random`: for uuids and placement (random.Random, SystemRandom)."""

    def __init__(
        self, raft: "SingleVoter | QuorumLog", clock: Clock, random: Any, config: BrokerConfig
    ) -> None:
        self.config = config
        self.broker_epoch = NO_EPOCH  # of the broker in this process, once it has registered
        self.on_registered: Callable[[int], None] = lambda epoch: None  # called with a new broker epoch
        self.registration: Callable[[], Registration] | None = None  # of the broker in this process, as it is
        self._raft = raft
        self._clock = clock
        self._random = random
        self._acl_counts = acls.AclCounts()
        self._tokens = tokens.Tokens.configured(config)
        # (encoded records, offset before, image) of each change, after the subscribers: to replay it
        # elsewhere
        self.mutations: MutationQuotas | None = None  # quotas of clients; None: nobody has one
        self.on_commit: Callable[[Sequence[bytes], int, MetadataImage], None] | None = None
        self._subscribers: list[OnChange] = []
        self._publishing = False
        raft.on_commit = self._publish

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        image: MetadataImage = self._raft.image
        return image

    @property
    def head(self) -> MetadataImage:
        """The image with all appended changes: the next change follows it."""
        image: MetadataImage = self._raft.head
        return image

    def subscribe(self, on_change: OnChange) -> None:
        """Call `on_change` with every change that is committed from now on, in order."""
        self._subscribers.append(on_change)

    def update_config(self, config: BrokerConfig) -> None:
        """Set the defaults for what is created from now on."""
        self.config = config

    def await_committed(self, offset: int, callback: Callable[[KafkaError | None], Any]) -> None:
        """Call `callback(None)` when `image` has reached `offset`, or with the KafkaError that prevents
        it."""
        self._raft.await_committed(offset, callback)

    def at_once(self, steps: Steps) -> Any:
        """Do a request now, wait for the disk, and return its answer: at start and stop. Raises KafkaError,
        OSError."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self.settle()
                return end.value

    def settle(self) -> None:
        """Wait for the disk until everything that is appended is committed. Raises KafkaError, OSError."""
        self._raft.settle()

    def describe_quorum(self, request: Any, version: int) -> Any:
        """Return a DescribeQuorumResponse of a broker that is a quorum by itself."""
        raft = self._raft
        assert isinstance(raft, SingleVoter)
        return describe.describe_quorum(request, version, raft.described)

    # -- brokers -------------------------------------------------------------------------------------------

    def register_broker(self, registration: Registration) -> Steps:
        """Register and unfence the broker of this process, and let it lead. Return its new broker epoch."""
        epoch: int = self._raft.next_offset
        unclean = brokers.UncleanElections(self.head, bool(self.config.unclean_leader_election_enable))
        records = brokers.plan_registration(self.head, registration, epoch, unclean)
        # Not atomic: a broker with very many partitions may need several batches, and the next start does it
        # again.
        yield from self._append(records, atomic=False)
        self.broker_epoch = epoch
        self.on_registered(epoch)
        logger.info(
            "broker %d registered in epoch %d, %d partition(s) changed",
            registration.broker_id,
            epoch,
            sum(type(record) is messages.PartitionChangeRecord for record in records),
        )
        return epoch

    def fence_broker(self) -> Steps:
        """Fence the broker at a clean stop, instead of waiting for its session to end."""
        broker = self.head.brokers.get(self._raft.node_id)
        if broker is not None and not broker.fenced and broker.epoch == self.broker_epoch:
            yield from self._append([brokers.fencing(broker.broker_id, broker.epoch, brokers.FENCE)])

    def assign_directories(self, placed: dict[tuple[bytes, int], bytes]) -> Steps:
        """Record the log directories that the broker chose for replicas, by (topic id, partition)."""
        yield from self._append(brokers.plan_directories(self.head, self._raft.node_id, placed), atomic=False)

    def update_features(self, request: Any, version: int) -> Steps:
        """Return an UpdateFeaturesResponse. A broker that is alone registers again after a change of
        metadata.version, because the new records may say more about it."""
        before, us = self.head, self._raft.node_id
        records, response = yield from feature_levels.plan_update(
            before, us, (us,), version, request, self._keep_kraft_version, self.config.min_insync_replicas
        )
        yield from self._append(records)
        if self.head.metadata_version != before.metadata_version and self.registration is not None:
            again = self.registration()._replace(
                previous_epoch=self.broker_epoch, incarnation_id=before.brokers[us].incarnation_id
            )
            try:
                yield from self.register_broker(again)
            except KafkaError as trouble:  # the levels have changed; the next start registers
                logger.error("the broker could not register again: %s", trouble)
        return response

    def _keep_kraft_version(self, level: int) -> None:
        if level != self.head.kraft_version:
            raise KafkaError(
                errors.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature kraft.version. A broker that is a quorum by"
                f" itself keeps the level of its metadata log, {self.head.kraft_version}.",
            )

    # -- topics --------------------------------------------------------------------------------------------

    def create_topics(self, request: Any, context: Any = None) -> Steps:
        """Return a CreateTopicsResponse."""
        cluster = topics.Cluster(self.config, self._random)
        quota, take = self._quota(context)
        records, response = yield from topics.plan_create(self.head, cluster, request, take)
        yield from self._append_or_refuse(records, response.topics)
        response.throttle_time_ms = 0 if quota is None else quota.throttle_ms()
        return response

    def delete_topics(self, request: Any, context: Any = None) -> Steps:
        """Return a DeleteTopicsResponse."""
        version = context.version if context is not None else messages.DeleteTopicsRequest.MAX_VERSION
        quota, take = self._quota(context)
        records, response = yield from topics.plan_delete(self.head, self.config, version, request, take)
        yield from self._append_or_refuse(records, response.responses)
        response.throttle_time_ms = 0 if quota is None else quota.throttle_ms()
        return response

    def create_partitions(self, request: Any, context: Any = None) -> Steps:
        """Return a CreatePartitionsResponse."""
        cluster = topics.Cluster(self.config, self._random)
        quota, take = self._quota(context)
        records, response = yield from topics.plan_grow(self.head, cluster, request, take)
        yield from self._append_or_refuse(records, response.results)
        response.throttle_time_ms = 0 if quota is None else quota.throttle_ms()
        return response

    def alter_partition_reassignments(self, request: Any) -> Steps:
        """AlterPartitionReassignmentsResponse. A broker that is alone may keep its replicas: Kafka's tool
        asks for that before it moves them between log directories."""
        settings = TopicSettings(self.head, self.config)
        records, response = yield from reassignments.plan_alter(self.head, settings, request)
        yield from self._append(records)
        return response

    def elect_leaders(self, request: Any, version: int) -> Steps:
        """Return an ElectLeadersResponse."""
        settings = TopicSettings(self.head, self.config)
        records, response = yield from leadership.plan_elect_leaders(self.head, settings, version, request)
        yield from self._append(records, atomic=False)
        return response

    def _quota(self, context: Any) -> tuple[MutationQuota | None, Callable[[int], None]]:
        """Return the quota of a client's request, and the function that takes from it."""
        quota = None if self.mutations is None else self.mutations.of(context)
        return quota, topics.unlimited if quota is None else quota.take

    def auto_create(self, names: Iterable[str]) -> Steps:
        """Create topics that a client or a coordinator needs, each with the settings of its kind. Return
        dict[str, KafkaError | None]: the error by name."""
        head = self.head
        wanted = []
        for name in names:
            if name not in head.topics:
                wanted.append(topics.auto_created(head, self.config, name))
            yield
        if not wanted:
            return {}
        request = messages.CreateTopicsRequest(topics=wanted)
        del wanted
        response = yield from self.create_topics(request)
        troubles: dict[str, KafkaError | None] = {}
        known: dict[tuple[int, str | None], KafkaError] = {}  # most topics have the same error
        refused = 0
        for result in response.topics:
            troubles[result.name] = None
            if result.error_code:  # a Metadata response has no room for the reason
                reason = result.error_code, result.error_message
                troubles[result.name] = known.setdefault(reason, KafkaError(*reason))
                refused += 1
                if refused <= REFUSED_LOGGED:
                    logger.warning("topic %s cannot be created: %s", result.name, result.error_message)
            yield
        if refused > REFUSED_LOGGED:
            logger.warning("%d more topics cannot be created", refused - REFUSED_LOGGED)
        held = [request, response]
        del request, response
        yield from codec.free_in_steps(held)
        return troubles

    # -- configs -------------------------------------------------------------------------------------------

    def incremental_alter_configs(self, changes: configs.Incremental, validate_only: bool = False) -> Steps:
        """Take {(type, name): {key: (operation, value)}}. Return the error of each resource, or None."""
        records, outcome = yield from configs.plan_incremental(self.head, self.config, changes)
        if not validate_only:
            yield from self._append(records)
        return outcome

    def alter_configs(self, wanted: configs.Absolute, validate_only: bool = False) -> Steps:
        """Take {(type, name): {key: value}}. Return the error of each resource, or None."""
        records, outcome = yield from configs.plan_absolute(self.head, self.config, wanted)
        if not validate_only:
            yield from self._append(records)
        return outcome

    # -- users ---------------------------------------------------------------------------------------------

    def alter_user_scram_credentials(self, request: Any) -> Steps:
        """Return an AlterUserScramCredentialsResponse."""
        records, response = yield from scram.plan_alter(self.head, request)
        yield from self._append_or_refuse(records, response.results)
        return response

    def create_delegation_token(self, request: Any, principal: str, version: int) -> Steps:
        """Return a CreateDelegationTokenResponse."""
        now_ms, requester = self._clock.now_ms(), Principal.of(principal)
        plan = self._tokens.plan_create(self.head, self._random, now_ms, requester, request, version)
        return (yield from self._planned(plan))

    def renew_delegation_token(self, request: Any, principal: str) -> Steps:
        """Return a RenewDelegationTokenResponse."""
        now_ms, requester = self._clock.now_ms(), Principal.of(principal)
        return (yield from self._planned(self._tokens.plan_renew(self.head, now_ms, requester, request)))

    def expire_delegation_token(self, request: Any, principal: str) -> Steps:
        """Return an ExpireDelegationTokenResponse."""
        now_ms, requester = self._clock.now_ms(), Principal.of(principal)
        return (yield from self._planned(self._tokens.plan_expire(self.head, now_ms, requester, request)))

    def remove_expired_tokens(self) -> Steps:
        """Return how many were removed."""
        records = yield from self._tokens.plan_sweep(self.head, self._clock.now_ms())
        yield from self._append(records)
        for record in records:
            logger.info("the delegation token %s has expired and is removed", record.token_id)
        return len(records)

    def _planned(self, plan: tokens.Planned) -> Steps:
        records, response = yield from plan
        yield from self._append(records)
        return response

    def alter_client_quotas(self, request: Any) -> Steps:
        """Return an AlterClientQuotasResponse. Raises KafkaError(POLICY_VIOLATION)."""
        records, response = yield from quotas.plan_alter(self.head, request)
        if not request.validate_only:
            yield from self._append_or_refuse(records, response.entries)
        return response

    def create_acls(self, request: Any) -> Steps:
        """Return a CreateAclsResponse."""
        before = self.head
        records, response = yield from acls.plan_create(before, self._acl_counts, self._random, request)
        yield from self._append_acls(before, records, response.results)
        return response

    def delete_acls(self, request: Any) -> Steps:
        """Return a DeleteAclsResponse. Raises KafkaError(INVALID_REQUEST)."""
        before = self.head
        records, response = yield from acls.plan_delete(before, request)
        yield from self._append_acls(before, records, response.filter_results)
        return response

    def _append_acls(self, before: MetadataImage, records: list[Any], results: Iterable[Any]) -> Steps:
        yield from self._append_or_refuse(records, results)
        if self.head is not before:
            yield from self._acl_counts.follow(before, records, self.head)

    # -- producer ids --------------------------------------------------------------------------------------

    def allocate_producer_ids(self) -> Steps:
        """Return (first, count) of a block of unused ids. Raises KafkaError."""
        record, first = producer_ids.plan_block(self.head, self._raft.node_id, self.broker_epoch)
        yield from self._append([record])
        return first, producer_ids.BLOCK_SIZE

    # -- committing ----------------------------------------------------------------------------------------

    def _append(self, records: Sequence[Any], *, atomic: bool = True) -> Steps:
        """Append records. Raises KafkaError(KAFKA_STORAGE_ERROR); then nothing has changed."""
        assert not self._publishing, "a subscriber changes metadata"
        if records:
            yield from self._raft.append_steps(records, atomic=atomic)

    def _append_or_refuse(self, records: Sequence[Any], results: Iterable[Any]) -> Steps:
        """Append records. If that fails, put the error into every result that would have succeeded."""
        try:
            yield from self._append(records)
        except KafkaError as trouble:
            refuse(results, trouble)

    def _publish(self, appended: Any) -> None:
        self._publishing = True
        try:
            for on_change in self._subscribers:
                on_change(appended.delta, appended.image)
            if self.on_commit is not None:
                self.on_commit(appended.values, appended.previous, appended.image)
        finally:
            self._publishing = False


def refuse(results: Iterable[Any], trouble: KafkaError) -> None:
    """Put an error into every result that would have succeeded."""
    for result in results:
        if result.error_code == errors.NONE:
            result.error_code, result.error_message = trouble.code, trouble.message
