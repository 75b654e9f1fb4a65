"""The controller of a cluster with several brokers, on a log that a quorum commits.

In addition to a Controller (topics, configurations, users, ACLs), it manages the members: registration,
heartbeats, ISRs, elections. It is active during the terms of its QuorumLog. As a standby, it raises
NOT_CONTROLLER for every request, and keeps only the committed image.

    a term begins    every broker that is not fenced gets a new session; the first plan builds the indexes
    records          indexes follow them
    it ends          indexes and heartbeats are dropped, with the head

    periodic tasks   fence_stale, balance, elect_uncleanly, no_op: server/controller_node runs them
    early fencing    fence_dead: server/early_fencing

Kafka: QuorumController. Requests are generators, one after the other, as in Controller."""

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.controller import (
    directories,
    feature_levels,
    isr_changes,
    leadership,
    membership,
    producer_ids,
    quotas,
    reassignments,
)
from kafkad.controller.controller import Controller, Steps
from kafkad.controller.heartbeats import BrokerKey, BrokerState, Heartbeats
from kafkad.controller.leadership import Indexes, TopicSettings
from kafkad.controller.membership import Head
from kafkad.protocol import messages
from kafkad.raft.quorum_log import QuorumLog, not_controller

logger = logging.getLogger(__name__)

UNCLEAN_KEY: Final = "unclean.leader.election.enable"
MANY: Final = 1_000  # a broker with more replicas in ISRs is fenced in two steps


class QuorumController(Controller):
    """`raft`: a QuorumLog, which reports when terms begin and end."""

    def __init__(
        self, raft: QuorumLog, clock: Clock, random: Any, config: BrokerConfig, cluster_id: str
    ) -> None:
        super().__init__(raft, clock, random, config)
        self._quorum_log = raft
        self.cluster_id = cluster_id
        self.unclean_wanted = False  # a configuration allows elections that were not allowed before
        self._indexes: Indexes | None = None
        self._heartbeats: Heartbeats | None = None
        self._ticked_ms = self._tick_ms = -1  # the last `tick`, and the time between two
        self.on_active: Callable[[], Any] = lambda: None  # a term has begun
        raft.on_active = self._begin
        raft.on_standby = self._end

    @property
    def is_active(self) -> bool:
        return self._heartbeats is not None

    def _begin(self) -> None:
        self._indexes = None  # the first plan that needs them builds them
        session_ms = self.config.broker_session_timeout_ms
        self._heartbeats = Heartbeats(self.head, session_ms, self._clock.monotonic_ms())
        self.unclean_wanted = True
        self.on_active()

    def _end(self) -> None:
        self._indexes = self._heartbeats = None

    def in_term(self, steps: Steps) -> Steps:
        """Run `steps`; if the term ends, raise NOT_CONTROLLER."""
        term = self._quorum_log.term
        while True:
            if self._quorum_log.term is None or self._quorum_log.term != term:
                steps.close()
                raise not_controller()
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            yield

    def _look(self) -> Generator[None, None, Head]:
        """Return what a plan is made of. Raise KafkaError(NOT_CONTROLLER) unless we are active."""
        if self._heartbeats is None:
            raise not_controller()
        image = self.head
        if self._indexes is None:
            indexes = Indexes()
            yield from indexes.fill(image)
            self._indexes = indexes
        settings = TopicSettings(image, self.config)
        return Head(image, settings, self._indexes, self._heartbeats, self._clock.monotonic_ms())

    # -- members -------------------------------------------------------------------------------------------

    def broker_registration(self, request: Any, version: int) -> Steps:
        """Return a BrokerRegistrationResponse. Raises KafkaError."""
        head = yield from self._look()
        epoch = self._raft.next_offset
        plan = yield from membership.plan_register(head, self.cluster_id, version, request, epoch)
        yield from self._append(plan.records, atomic=False)
        head.heartbeats.registered(request.broker_id, fenced=plan.fenced, offset=self._raft.next_offset - 1)
        logger.info(
            "broker %d is registered in epoch %d, %d record(s)",
            request.broker_id,
            plan.epoch,
            len(plan.records),
        )
        return messages.BrokerRegistrationResponse(broker_epoch=plan.epoch)

    def heard_of(self, request: Any) -> None:
        """Note that a BrokerHeartbeat has arrived: the session counts from now, even if the request waits in
        the queue."""
        broker = self.head.brokers.get(request.broker_id)
        if self._heartbeats is not None and broker is not None and broker.epoch == request.broker_epoch:
            self._heartbeats.contact((broker.broker_id, broker.epoch), self._clock.monotonic_ms())

    def broker_heartbeat(self, request: Any) -> Steps:
        """Return a BrokerHeartbeatResponse. Raises KafkaError."""
        head = yield from self._look()
        plan = yield from membership.plan_heartbeat(head, request)
        before = head.heartbeats.state(request.broker_id)
        yield from self._append(plan.records, atomic=False)
        if plan.state is not before:
            logger.info("broker %d was %s, and %s", request.broker_id, before.value, plan.state.value)
        head.heartbeats.touch(
            request.broker_id,
            fenced=plan.state.is_fenced,
            metadata_offset=request.current_metadata_offset,
        )
        if plan.state is BrokerState.CONTROLLED_SHUTDOWN:
            head.heartbeats.leaves_at(request.broker_id, self.head.offset)
        elif plan.state is BrokerState.SHUTDOWN_NOW:
            # It may be started again at once; Kafka refuses it until its session is over.
            head.heartbeats.end_session((request.broker_id, request.broker_epoch))
        return plan.response

    def unregister_broker(self, request: Any) -> Steps:
        """Return an UnregisterBrokerResponse. Raises KafkaError."""
        head = yield from self._look()
        records = yield from membership.plan_unregister(head, request.broker_id)
        yield from self._append(records)
        head.heartbeats.remove(request.broker_id)
        return messages.UnregisterBrokerResponse(error_message=None)

    def controller_registration(self, request: Any) -> Steps:
        """Return a ControllerRegistrationResponse. Raises KafkaError."""
        yield from self._append(membership.plan_controller(self.head, request))
        return messages.ControllerRegistrationResponse(error_message=None)

    def alter_partition(self, request: Any, version: int) -> Steps:
        """Return an AlterPartitionResponse. Raises KafkaError."""
        head = yield from self._look()
        records, response = yield from isr_changes.plan_alter_partition(
            head.image, head.settings, version, request
        )
        yield from self._append(records, atomic=False)
        return response

    def assign_replicas_to_dirs(self, request: Any) -> Steps:
        """Return an AssignReplicasToDirsResponse. Raises KafkaError."""
        head = yield from self._look()
        records, response = yield from directories.plan_assign(head.image, head.settings, request)
        yield from self._append(records, atomic=False)
        return response

    def give_producer_ids(self, request: Any) -> Steps:
        """Return an AllocateProducerIdsResponse. Raises KafkaError."""
        head = yield from self._look()
        membership.check_epoch(head.image, request.broker_id, request.broker_epoch)
        record, first = producer_ids.plan_block(head.image, request.broker_id, request.broker_epoch)
        yield from self._append([record])
        return messages.AllocateProducerIdsResponse(
            producer_id_start=first, producer_id_len=producer_ids.BLOCK_SIZE
        )

    def elect_leaders(self, request: Any, version: int) -> Steps:
        """Return an ElectLeadersResponse."""
        head = yield from self._look()
        records, response = yield from leadership.plan_elect_leaders(
            head.image, head.settings, version, request
        )
        yield from self._append(records, atomic=False)
        return response

    def alter_partition_reassignments(self, request: Any) -> Steps:
        """Return an AlterPartitionReassignmentsResponse."""
        head = yield from self._look()
        records, response = yield from reassignments.plan_alter(head.image, head.settings, request)
        yield from self._append(records)
        return response

    def alter_client_quotas(self, request: Any) -> Steps:
        """Return an AlterClientQuotasResponse."""
        records, response = yield from quotas.plan_alter(self.head, request)
        if not request.validate_only:
            yield from self._append(records)
        return response

    def update_features(self, request: Any, version: int) -> Steps:
        """Return an UpdateFeaturesResponse."""
        node = self._quorum_log.node
        records, response = yield from feature_levels.plan_update(
            self.head,
            node.node_id,
            tuple(node.voters),
            version,
            request,
            lambda level: node.upgrade_kraft_version(level, validate_only=request.validate_only),
            self.config.min_insync_replicas,
        )
        yield from self._append(records)
        return response

    # -- by the clock --------------------------------------------------------------------------------------

    def tick(self, every_ms: int) -> None:
        """Call from a timer, `every_ms`. Time in which the process did not run (SIGSTOP, a suspended machine)
        ends no session: the heartbeats of the meantime are not read yet."""
        self._tick_ms = every_ms
        self._note_halt()
        self._ticked_ms = self._clock.monotonic_ms()

    def _note_halt(self) -> None:
        if self._ticked_ms < 0:
            return
        now_ms = self._clock.monotonic_ms()
        lost_ms = now_ms - self._ticked_ms - 2 * self._tick_ms
        if lost_ms > 0:
            self._ticked_ms = now_ms
            if self._heartbeats is not None:
                self._heartbeats.extend(lost_ms, now_ms)

    def fence_stale(self) -> Steps:
        """Fence the broker whose session ended first. Return whether there was one."""
        head = yield from self._look()
        self._note_halt()  # this may have waited for its turn, and the process halted meanwhile
        stale = head.heartbeats.expired(head.now_ms)
        if stale is None:
            return False
        broker = head.image.brokers.get(stale[0])
        if broker is None or broker.epoch != stale[1]:
            return True  # it is gone, or another incarnation has come
        yield from self._fence(head, stale, "its session has ended")
        return True

    def fence_dead(self, broker: BrokerKey, is_dead: Callable[[], bool]) -> Steps:
        """Fence this incarnation before its session ends, if it is still known to be dead. Return whether it
        was fenced."""
        head = yield from self._look()
        registered = head.image.brokers.get(broker[0])
        if registered is None or registered.epoch != broker[1] or not is_dead():
            return False
        head.heartbeats.end_session(broker)
        yield from self._fence(head, broker, "its process has died, it refuses connections")
        return True

    def _fence(self, head: Head, broker: BrokerKey, reason: str) -> Steps:
        """Fence a broker that has no session. If it has many replicas, first elect leaders for the partitions
        that it leads, because clients wait for these; the ISRs of the others change afterwards."""
        heartbeats, broker_id = head.heartbeats, broker[0]
        try:
            if len(head.indexes.in_isr.get(broker_id, ())) > MANY:
                records = yield from membership.plan_succession(head, broker_id)
                yield from self._append(records, atomic=False)
                head = yield from self._look()
            records = yield from membership.plan_fence(head, broker_id)
            if records:
                logger.warning("broker %d is fenced: %s", broker_id, reason)
                yield from self._append(records, atomic=False)
        except BaseException:  # for example, the disk is full: try again
            heartbeats.not_fenced(broker)
            raise
        heartbeats.fence(broker_id)

    def next_expiry_ms(self) -> int | None:
        if self._heartbeats is None:
            return None
        return self._heartbeats.next_expiry_ms(self._clock.monotonic_ms())

    def balance(self) -> Steps:
        """Let preferred replicas lead again. Return whether there may be more to do."""
        head = yield from self._look()
        records, more = yield from leadership.plan_preferred(head.image, head.settings, head.indexes)
        yield from self._append(records, atomic=False)
        return more

    def elect_uncleanly(self) -> Steps:
        """Elect leaders for partitions without one, if unclean elections are allowed. Return whether there
        may be more to do."""
        head = yield from self._look()
        self.unclean_wanted = False
        records, more = yield from leadership.plan_unclean(head.image, head.settings, head.indexes)
        yield from self._append(records, atomic=False)
        return more

    def no_op(self) -> Steps:
        """Append a NoOpRecord: the offsets of idle brokers advance, so a lag is visible."""
        yield from self._append([messages.NoOpRecord()])

    # -- appending -----------------------------------------------------------------------------------------

    def _append(self, records: Sequence[Any], *, atomic: bool = True) -> Generator[None, None, None]:
        if not records:
            return
        before = self.head
        try:
            yield from super()._append(records, atomic=atomic)
        except BaseException:
            if self._heartbeats is None or self.head is not before:
                self._indexes = None  # a part of the records may be there: they are built anew
            raise
        if self._indexes is not None:
            indexes, self._indexes = self._indexes, None
            yield from indexes.follow(before, records, self.head)
            self._indexes = indexes
        if any(type(r) is messages.ConfigRecord and r.name == UNCLEAN_KEY for r in records):
            self.unclean_wanted = True
