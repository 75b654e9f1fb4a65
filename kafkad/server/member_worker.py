"""A broker of a cluster, as one process or as several workers: its controllers are other nodes, or this one
among others.

    start   follow the metadata log until the broker is registered and has caught up; open the logs with that
            image; when all are loaded, ask to be unfenced, and accept connections
    run     the observer brings each committed change; changes of metadata are requested from the controllers
    stop    controlled shutdown first: the controllers move leaders away, or leave partitions without one. A
            controller in the same process stops after that

With several workers, worker 0 follows the metadata log, registers the broker and talks to the controllers
(server/member_feed). Each worker has the followers and the fetchers of the partitions that it owns. The
broker is unfenced when all workers have loaded their logs, and then all of them accept connections. At the
end all serve until the controllers let worker 0 go. The registration survives worker 0: its successor
continues in the same broker epoch, when it has all the metadata that the other workers may have.

If this node is a controller, too, worker 0 runs it: it votes, and leads the quorum when it is elected. If
worker 0 dies, another node is elected meanwhile.

server/node_links secures the connections to other nodes.

Use: server/lifecycle, for a node that is not a whole cluster (config/served.is_alone)."""

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import starmap
from typing import Any, Final

from kafkad._native.serving.replication_quota import ReplicationQuota
from kafkad.api.context import RequestContext
from kafkad.api.node_endpoints import node_entry
from kafkad.config.broker import BrokerConfig
from kafkad.controller.brokers import NO_EPOCH, NotRegistered, Registration
from kafkad.controller.configs import Absolute, Incremental, Outcome
from kafkad.log.log import Log
from kafkad.metadata.image import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, MetadataImage, PartitionState
from kafkad.metadata.replay import Delta
from kafkad.metadata.uuids import random_uuid
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.metadata_replica import UnusableMetadata
from kafkad.replication import throttles
from kafkad.replication.fetchers import Fetchers
from kafkad.replication.replicas import Replicas
from kafkad.replication.throttles import throttle_table
from kafkad.server import member_apis
from kafkad.server.alter_partition import AlterPartitions
from kafkad.server.authentication import read_bytes
from kafkad.server.broker_lifecycle import BrokerLifecycle
from kafkad.server.controller_channel import Ask, ControllerChannel
from kafkad.server.controller_node import check_formatted
from kafkad.server.controller_queue import awaited
from kafkad.server.controller_requests import ControllerRequests, Placed
from kafkad.server.coordinator_moves import CoordinatorMoves
from kafkad.server.event_loop import EventLoop
from kafkad.server.full_disks import TICK_S, FullDisks
from kafkad.server.group_storage import OFFSETS_TOPIC
from kafkad.server.member_feed import ControllerOfOthers, Departure, ask_by_worker_0
from kafkad.server.member_metadata import ClusterMetadata, ControllerHalf, FollowedMetadata
from kafkad.server.metadata_feed import LEADER, ForOthers, difference, encode_image
from kafkad.server.node_links import broker_links, controller_links
from kafkad.server.other_brokers import OtherBrokers
from kafkad.server.preferred_leaders import PreferredLeaders
from kafkad.server.produce_handover import Key, ProduceHandover
from kafkad.server.registration import advertised, misses_directory, registration_of
from kafkad.server.transaction_storage import TRANSACTION_TOPIC
from kafkad.server.turns import Steps
from kafkad.server.worker import REJOIN_S, MetadataCache, Worker
from kafkad.server.worker_context import WorkerContext

logger = logging.getLogger("kafkad")

KNOWN_S: Final = 1.0  # how long an answer waits until this broker has applied the change
LEAVE_S: Final = 300.0  # how long the controllers may take to let us go; Kafka: BrokerServer.shutdown
LOOKS: Final = 20  # checks for an accepted heartbeat per session
RETRY_S: Final = 5.0  # after directories could not be assigned
NO_CLIENT: Final = RequestContext(
    api_key=-1,
    version=-1,
    correlation_id=0,
    client_id="kafkad",
    client_host="127.0.0.1",
    listener="",
    connection=None,
)
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class MemberController:
    """The controller for the handlers: each method returns an awaitable."""

    def __init__(
        self,
        requests: ControllerRequests,
        client: ClusterMetadata,
        metadata: MetadataCache,
        applied: Callable[[int], Awaitable[Any]],
        config: BrokerConfig,
    ) -> None:
        """`applied` waits until this broker has applied the metadata up to an offset."""
        self.config = config
        self._requests = requests
        self._client = client
        self._metadata = metadata
        self._applied = applied
        self._placed: dict[tuple[bytes, int], bytes] = {}  # not accepted by a controller yet; the newest ones
        self._assigning: asyncio.Task[None] | None = None

    def update_config(self, config: BrokerConfig) -> None:
        self.config = config

    def drain(self, seconds: float = math.inf) -> None:
        """Do nothing: changes wait at the controllers."""

    async def create_topics(self, request: Any, context: RequestContext | None = None) -> Any:
        response = await self._forward(request, context)
        if not request.validate_only:
            made = [row.name for row in response.topics if not row.error_code]
            await self._known(lambda image: all(name in image.topics for name in made))
        return response

    async def delete_topics(self, request: Any, context: RequestContext | None = None) -> Any:
        response = await self._forward(request, context)
        gone = [row.topic_id for row in response.responses if not row.error_code]
        await self._known(lambda image: not any(topic_id in image.topics_by_id for topic_id in gone))
        return response

    async def create_partitions(self, request: Any, context: RequestContext | None = None) -> Any:
        response = await self._forward(request, context)
        counts = {topic.name: topic.count for topic in request.topics}
        grown = [] if request.validate_only else [r.name for r in response.results if not r.error_code]
        await self._known(
            lambda image: all(
                name not in image.topics or len(image.topics[name].partitions) >= counts[name]
                for name in grown
            )
        )
        return response

    async def auto_create(
        self, names: Iterable[str], context: RequestContext | None = None
    ) -> dict[str, KafkaError | None]:
        troubles = await self._requests.create_topics_in_passing(names, self.config, context)
        made = [name for name, trouble in troubles.items() if trouble is None]
        await self._known(lambda image: all(name in image.topics for name in made))
        return troubles

    async def incremental_alter_configs(
        self, changes: Incremental, validate_only: bool = False, context: RequestContext | None = None
    ) -> Outcome:
        cls = messages.IncrementalAlterConfigsRequest
        row = cls.Resources.Configs
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[
                    row(name=key, config_operation=operation, value=value)
                    for key, (operation, value) in keys.items()
                ],
            )
            for (kind, name), keys in changes.items()
        ]
        return await self._altered(cls(resources=resources, validate_only=validate_only), context)

    async def alter_configs(
        self, wanted: Absolute, validate_only: bool = False, context: RequestContext | None = None
    ) -> Outcome:
        cls = messages.AlterConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[cls.Resources.Configs(name=key, value=value) for key, value in keys.items()],
            )
            for (kind, name), keys in wanted.items()
        ]
        return await self._altered(cls(resources=resources, validate_only=validate_only), context)

    async def _altered(self, request: Any, context: RequestContext | None) -> Outcome:
        response = await self._forward(request, context)
        return {
            (row.resource_type, row.resource_name): KafkaError(row.error_code, row.error_message)
            if row.error_code
            else None
            for row in response.responses
        }

    async def alter_user_scram_credentials(self, request: Any, context: RequestContext | None = None) -> Any:
        return await self._forward(request, context)

    async def create_delegation_token(self, request: Any, context: RequestContext) -> Any:
        response = await self._forward(request, context)
        if not response.error_code:
            await self._known(lambda image: response.token_id in image.delegation_tokens)
        return response

    async def renew_delegation_token(self, request: Any, context: RequestContext) -> Any:
        return await self._forward(request, context)

    async def expire_delegation_token(self, request: Any, context: RequestContext) -> Any:
        return await self._forward(request, context)

    async def alter_client_quotas(self, request: Any, context: RequestContext | None = None) -> Any:
        return await self._forward(request, context)

    async def create_acls(self, request: Any, context: RequestContext | None = None) -> Any:
        return await self._forward(request, context)

    async def delete_acls(self, request: Any, context: RequestContext | None = None) -> Any:
        return await self._forward(request, context)

    async def forward(self, request: Any, context: RequestContext) -> Any:
        """Forward a request that has no method here."""
        return await self._forward(request, context)

    def remove_expired_tokens(self) -> None:
        """Do nothing: the controllers do it."""

    async def allocate_producer_ids(self) -> tuple[int, int]:
        return await self._requests.allocate_producer_ids()

    def assign_directories(self, placed: Placed) -> None:
        """Assign directories. No client waits for it; refused ones are tried again at the next change of a
        topic."""
        self._placed.update(placed)
        if self._assigning is None or self._assigning.done():
            self._assigning = asyncio.get_running_loop().create_task(self._assign())

    async def _assign(self) -> None:
        """One request at a time, so that no older place of a partition comes after a newer one."""
        while placed := dict(self._placed):
            try:
                refused = await self._requests.assign_directories(placed)
            except KafkaError as trouble:
                logger.warning("log directories could not be assigned, will try again: %s", trouble)
                await asyncio.sleep(RETRY_S)
                continue
            for (_, index), reason in refused.items():
                logger.warning("the directory of a partition %d was not taken: %s", index, reason)
            for key, directory in placed.items():
                if self._placed[key] == directory:
                    del self._placed[key]

    async def _forward(self, request: Any, context: RequestContext | None) -> Any:
        version = request.MAX_VERSION if context is None else context.version
        return await self._requests.forward_message(request, version, context or NO_CLIENT)

    async def _known(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Wait until this broker has applied the change, but not for long: the answer is correct in any
        case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_S):
                await self._client.until(lambda observer: condition(observer.image))
                await self._applied(self._metadata.image.offset)


class MemberWorker(Worker):
    def __init__(
        self,
        config: BrokerConfig,
        loop: EventLoop,
        fatal: Callable[[BaseException], None],
        context: WorkerContext | None = None,
    ) -> None:
        super().__init__(config, loop, fatal, context)
        self.apis, self.told = member_apis.BY_KEY, member_apis.TOLD
        self.fetchers: Fetchers | None = None  # until logs are loaded
        self._tasks: list[asyncio.Task[None]] = []
        self._start_failed: asyncio.Future[None] = self.loop.create_future()
        self._resumed = False  # as worker 0, the registration of our predecessor
        self._handover: ProduceHandover | None = None  # once leaders move to other brokers
        self._preferred: PreferredLeaders | None = None  # in worker 0, from `_begin_replication` on
        self._active = asyncio.Event()  # in the metadata this broker is not fenced

    def _meet(self) -> None:
        if self.me != LEADER:
            super()._meet()
            self._departure = Departure(self.peers, self._hand_over)

    def _receive_metadata(self) -> None:
        super()._receive_metadata()
        self._started("tasks", self._end_tasks)
        self._make_replicas(ask_by_worker_0(self.peers))

    def _open_directories(self) -> None:
        if self.context is None:
            check_formatted(self.config)
        super()._open_directories()
        node_id, now_ms = self.config.node_id, self.clock.monotonic_ms
        self.full_disks = FullDisks(node_id, lambda: self.metadata.image, now_ms)
        self.log_dirs.on_short = self.full_disks.refused

    def _open_metadata(self) -> None:
        config = self.config
        is_controller = "controller" in config.process_roles
        self.controller_links = controller_links(lambda: self.config, read_bytes)
        self.client: ClusterMetadata = ControllerHalf(self) if is_controller else FollowedMetadata(self)
        self.raft = self.observer = self.client.replica
        self.observer.keeps_values = self.context is not None
        self._started("metadata log", self.client.close)
        self.metadata = MetadataCache(self.raft.image)
        self.channel = ControllerChannel(
            lambda: self.client.leader,
            client_id=f"kafkad-{config.node_id}",
            connect=self.controller_links.connect,
        )
        self.lifecycle = BrokerLifecycle(
            self._registration(),
            cluster_id=self.cluster_id,
            ask=self.channel.ask,
            image=lambda: self.raft.image,
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
            initial_timeout_ms=config.initial_broker_registration_timeout_ms,
        )
        requests = ControllerRequests(
            self.channel.ask,
            broker_id=config.node_id,
            epoch=lambda: self.lifecycle.epoch,
            image=lambda: self.metadata.image,
        )
        self.controller = self.answering = MemberController(
            requests, self.client, self.metadata, self._applied_by_all, config
        )
        self._make_replicas(self.channel.ask)
        self._started("registration", self._leave)
        self._start_with(self._catch_up())
        self.metadata.image = self.raft.image
        if self.context is not None:
            self._meet_others(self.context)

    def _meet_others(self, context: WorkerContext) -> None:
        """Connect to the other workers, when worker 0 has all the metadata that they may have: it sends them
        the rest."""
        super()._meet()
        assert self.peers is not None
        self._departure = Departure(self.peers, self._hand_over)
        ForOthers(self.answering, self.peers, self.turns)
        ControllerOfOthers(self.peers, self.channel)
        self.log_dirs.metadata_offset = self.metadata.image.offset
        context.first_image.publish(encode_image(self.metadata.image))

    def _make_replicas(self, ask: Ask) -> None:
        """`ask` sends a request to the controller."""
        node_id, epoch = self.config.node_id, self._broker_epoch
        alter = AlterPartitions(ask, self._run, broker_id=node_id, epoch=epoch)
        self.replicas = Replicas(node_id, alter.send, lambda: self.metadata.image, self.clock.monotonic_ms)

    def _throttle(self) -> None:
        """KIP-73."""
        counted = throttle_table(self.config, 1) if self.context is None else self.context.throttles
        counted.enter(self.me)
        self.throttle = ReplicationQuota(counted)
        throttles.limit(self.throttle, self.config)
        self.reactor.throttle_replication(self.throttle)

    def _broker_epoch(self) -> int:
        """Return the broker epoch, which is in shared memory."""
        return self.log_dirs.broker_epoch

    async def _applied_by_all(self, offset: int) -> None:
        if self.context is None:
            await self.changes.wait(offset)
        else:
            await self.feed.complete(offset, KNOWN_S)

    def _registration(self) -> Registration:
        return registration_of(
            self.config,
            self.log_dirs,
            advertised(self.config, self.endpoints),
            self.context.incarnation_id if self.context else random_uuid(self.random),
        )

    async def _catch_up(self) -> None:
        self.client.begin(self._run)
        timeout_s = self.config.initial_broker_registration_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                known = self.log_dirs.metadata_offset  # by other workers, of one that takes another's place
                await self.client.until(
                    lambda observer: (
                        observer.image.metadata_version > 0
                        and observer.image.offset >= known
                        and (known >= 0 or observer.is_current)  # is a log gone that could lead?
                    )
                )
        except TimeoutError:
            raise UnusableMetadata(
                f"no controller of controller.quorum.voters or controller.quorum.bootstrap.servers has said"
                f" what the cluster's metadata is, within {timeout_s:g} s"
                + (f"; last it answered {self.observer.trouble}" if self.observer.trouble else "")
            ) from None
        before = self.raft.image.brokers.get(self.config.node_id)
        if self.context is not None and before and before.incarnation_id == self.context.incarnation_id:
            self.lifecycle.resume(before.epoch, fenced=before.fenced)
            self._resumed = True  # heartbeats begin with the loop, when logs are open
        else:
            stopped_cleanly = self.log_dirs.previous_broker_epoch != NO_EPOCH
            if stopped_cleanly and (
                self.log_dirs.misses_logs(self._is_replicated, self._may_be_elected)
                or self._misses_directory()
            ):
                self.lifecycle.lost_records()
            self._run(self.lifecycle.run())
            await self.lifecycle.caught_up.wait()
        self.log_dirs.broker_epoch = self.lifecycle.epoch

    def _is_replicated(self, name: str, index: int) -> bool:
        """Return whether this broker and others have replicas of a partition."""
        topic = self.raft.image.topics.get(name)
        state = None if topic is None else topic.partitions.get(index)
        return state is not None and self.config.node_id in state.replicas and len(state.replicas) > 1

    def _may_be_elected(self, name: str, index: int) -> bool:
        """Return whether this broker may lead a partition at once, and others could do so in its place."""
        topic = self.raft.image.topics.get(name)
        state = None if topic is None else topic.partitions.get(index)
        eligible = () if state is None else (*state.isr, *state.elr)
        return self.config.node_id in eligible and len(eligible) > 1

    def _misses_directory(self) -> bool:
        """Return whether a directory is no longer in log.dirs that has a replica which may lead. It is made
        anew, empty, once another broker leads. While a directory is offline, nothing is made."""
        if any(directory.offline for directory in self.log_dirs.directories()):
            return False
        known = {DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, *self.log_dirs.directory_ids()}
        return misses_directory(self.raft.image, self.config.node_id, known)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.remove(task)
            if task.cancelled() or (trouble := task.exception()) is None:
                return
            if isinstance(trouble, NotRegistered | UnusableMetadata) and not self._start_failed.done():
                self._start_failed.set_exception(trouble)
            else:
                self.fatal(trouble)

        task = self.loop.create_task(work)
        task.add_done_callback(ended)
        self._tasks.append(task)

    def _start_with(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(self._unless_failed(work))

    async def _unless_failed(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do `work`, unless the start fails meanwhile."""
        task = self.loop.create_task(work)
        await asyncio.wait({task, self._start_failed}, return_when=asyncio.FIRST_COMPLETED)
        if self._start_failed.done():
            task.cancel()
            await self._start_failed
        await task

    def _open_logs(self) -> None:
        super()._open_logs()
        self.replicas.lag_ms_max = self.config.replica_lag_time_max_ms
        self.moves = CoordinatorMoves()
        self._tell_dropped = self.partitions.on_dropped  # to other workers
        self.partitions.on_role = self._on_role
        self.partitions.on_reader = self.replicas.on_reader
        self.partitions.on_dropped = self._on_dropped
        if self.context is not None:
            self.feed.left_out = lambda trouble: None  # worker 0 has logged it
        if self.config.replica_selector_class == RACK_AWARE:
            names = (endpoint.listener for endpoint in self.config.advertised_broker_endpoints)
            self.replicas.select_by_rack(frozenset(names))
        self.replicas.inherits = self.context is not None and self.context.restarted  # until the loop runs
        self._look_active()

    def _register(self) -> None:
        image = self.metadata.image
        self.partitions.apply(image)
        self.changes.applied = image.offset
        self.observer.on_commit = self._committed
        self.observer.on_snapshot = self._begun_anew

    def _committed(self, image: MetadataImage, delta: Delta) -> None:
        previous = self.metadata.image.offset
        self.log_dirs.metadata_offset = image.offset
        self._on_change(delta, image)
        if self.context is not None:
            self.feed.committed(self.observer.values, previous, image)

    def _begun_anew(self, image: MetadataImage) -> None:
        """With a snapshot."""
        self.log_dirs.metadata_offset = image.offset
        self._on_change(difference(self.metadata.image, image), image)
        if self.context is not None:
            self.feed.replaced()

    def _on_change(self, delta: Delta, image: MetadataImage) -> None:
        super()._on_change(delta, image)
        if delta.brokers_changed and hasattr(self, "reactor"):  # else `_begin_replication` does it
            self._name_leaders()
        self._look_active()

    def _look_active(self) -> None:
        own = self.metadata.image.brokers.get(self.config.node_id)
        if own is not None and not own.fenced and own.epoch == self._broker_epoch():
            self._active.set()

    def _follow(self, delta: Delta, image: MetadataImage, defaults: BrokerConfig | None) -> Steps:
        if defaults is not None and hasattr(self, "throttle"):  # else it begins with the new ones
            throttles.limit(self.throttle, defaults)
        if delta.brokers_changed:
            yield from self.replicas.follow_brokers()
            self.others.follow_brokers()
        applied = yield from super()._follow(delta, image, defaults)
        if delta.brokers_changed or delta.partitions_changed:
            if self._preferred is not None:
                self._preferred.metadata_changed()
            yield from self.transactions.markers.retry_steps()  # their partitions may have leaders now
        return applied

    def _load_transactions(self) -> None:
        self.services.low_watermarks = self.replicas.low_watermarks
        self.broker_links = broker_links(lambda: self.config, read_bytes)
        self.others = OtherBrokers(self.services, self.loop, self.fatal, self.broker_links.connect)
        self._started("questions to other brokers", self.others.close)
        super()._load_transactions()
        coordinators = {OFFSETS_TOPIC: self.groups, TRANSACTION_TOPIC: self.transactions}
        self.moves.begin(coordinators, self.partitions)

    def _name_leaders(self) -> None:
        """Set the addresses of the other leaders for answers to clients (KIP-951)."""
        self.reactor.name_leaders(
            {
                (name, broker.broker_id): node_entry(broker.broker_id, endpoint, broker.rack)
                for broker in self.metadata.image.brokers.values()
                if not broker.fenced
                for name, endpoint in broker.listeners.items()
            }
        )
        racks = self.replicas.racks()
        if racks is not None:
            self.reactor.know_racks(racks, self.config.broker_rack)

    async def _watch_replicas(self) -> None:
        while True:
            await asyncio.sleep(self.replicas.lag_ms_max / 2000)
            await awaited(self.turns.run(self._shrink()))

    async def _watch_disks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for log in self.full_disks.tick():
                logger.error(
                    "%s is full, and goes offline: brokers with room can lead %s-%d. Make room, then restart"
                    " this broker",
                    os.path.dirname(log.directory),
                    log.topic,
                    log.partition,
                )
                self.log_dirs.fail_directory_of(log)

    def _shrink(self) -> Steps:
        yield from self.replicas.tick()

    def _accept(self) -> None:
        if self.context is None:  # else `join` has done it
            self._begin_replication()
            self._start_with(self._unfenced())
            self._start_failed.cancel()  # from here on what fails ends the broker
            self.loop.call_soon(self._assign_directories)
        super()._accept()

    async def join(self) -> None:
        assert self.context is not None
        self._begin_replication()
        if self._resumed:
            self._run(self.lifecycle.run())
        await self.feed.join(timeout_s=REJOIN_S if self.context.restarted else None)
        await self._unless_failed(self._unfenced() if self.me == LEADER else self._active.wait())
        self._start_failed.cancel()  # from here on what fails ends the worker
        self._assign_directories()
        self._accept()
        self.context.tell(ready=True)

    async def _unfenced(self) -> None:
        """All workers have loaded their logs: wait until we may lead."""
        if any(directory.offline for directory in self.log_dirs.directories()):
            self._tell_offline()
        self.lifecycle.ready_to_unfence()
        await self.lifecycle.unfenced.wait()

    def _begin_replication(self) -> None:
        self.replicas.inherits = False
        self._run(self._watch_replicas())
        self._run(self._watch_disks())
        self._follow_leaders()
        self._name_leaders()
        self.reactor.ask_elsewhere(self.partitions.leader_elsewhere, self.partitions.topic_elsewhere)
        if self.me == LEADER and self.config.auto_leader_rebalance_enable:
            self._preferred = PreferredLeaders(
                self.config.node_id,
                lambda: self.metadata.image,
                delay_s=self.config.kafkad_preferred_leader_delay_ms / 1000,
                heartbeats=lambda: self.lifecycle.heartbeats,
                hold=self._move,
                ask=self.channel.ask,
            )
            self._run(self._preferred.run())

    def _on_role(self, log: Log, state: PartitionState) -> None:
        self.moves.on_role(log)
        self.replicas.on_role(log, state)
        if self.fetchers is not None:
            self.fetchers.follow(log, state)

    def _on_dropped(self, topic: str, index: int, topic_id: bytes) -> None:
        self.moves.on_dropped(topic, index)
        if self.fetchers is not None:
            self.fetchers.remove(topic_id, index)
        self.replicas.on_dropped(topic, index, topic_id)
        if self._tell_dropped is not None:
            self._tell_dropped(topic, index, topic_id)

    def _follow_leaders(self) -> None:
        """Fetch from other leaders from now on, even while we are fenced."""
        self._throttle()
        self.replicas.on_new_leader = self.reactor.expect_followers
        self.fetchers = Fetchers(
            self.reactor,
            self.config,
            broker_epoch=self._broker_epoch,
            image=lambda: self.metadata.image,
            loop=self.loop,
            random=self.random,
            fatal=self.fatal,
            quota=self.throttle,
            links=self.broker_links,
        )
        self._started("replica fetchers", self.fetchers.close)
        image = self.metadata.image
        for log in self.partitions:
            topic = image.topics.get(log.topic)
            if topic is not None and log.partition in topic.partitions:
                self.fetchers.follow(log, topic.partitions[log.partition])

    def _tell_offline(self) -> None:
        self.lifecycle.directories_offline(
            directory.id for directory in self.log_dirs.directories() if directory.offline
        )

    def _directory_offline(self, path: str) -> None:
        if self.me == LEADER:  # others tell it of theirs
            self._tell_offline()
        super()._directory_offline(path)

    def stop(self) -> None:
        is_started = self._undo and hasattr(self, "lifecycle")  # a start that failed has taken it all back
        if self.context is None and is_started:
            self.loop.run_until_complete(self._depart())
            self.loop.run_until_complete(self._handed_over())
        super().stop()

    def hang_up(self) -> None:
        self.loop.run_until_complete(self._depart() if self.me == LEADER else self._departure.wait())
        if self.me == LEADER:
            self._departure.tell()
        self.loop.run_until_complete(self._handed_over())
        super().hang_up()

    async def _hand_over(self, moving: list[Key] | None = None) -> bool:
        """Hold the Produces of this worker for the new leaders, of `moving` or of all partitions. Return
        whether their logs are drained."""
        if not hasattr(self, "reactor"):
            return False
        if self._handover is None:
            self._handover = ProduceHandover(
                self.config.node_id,
                lambda: self.metadata.image,
                self.others.for_produces,
                self.reactor.hand_over,
                self.loop,
                self.fatal,
            )
            self._started("handover", self._handover.close)
        logs = self.partitions if moving is None else filter(None, starmap(self.partitions.find, moving))
        return await self._handover.begin(logs, moving)

    async def _move(self, moving: list[Key]) -> bool:
        """Hold the Produces of these partitions in all workers. Return whether their logs are drained."""
        others = [] if self.context is None else [self._departure.hand_over(moving)]
        return all(await asyncio.gather(self._hand_over(moving), *others))

    async def _handed_over(self) -> None:
        if self._handover is not None:
            await self._handover.finish()

    async def _depart(self) -> None:
        """Wait until the controllers let this broker go. If no controller accepts a heartbeat for a whole
        session, none will: the whole cluster stops. The leader of the quorum does not tell, because a single
        voter continues to name the leader that has died."""
        if not self.config.controlled_shutdown_enable:
            return
        if self.context is None:
            await self._hand_over()
        else:
            await asyncio.gather(self._hand_over(), self._departure.hand_over())
        self.lifecycle.begin_shutdown()
        session_s = self.config.broker_session_timeout_ms / 1000
        now = self.loop.time
        heard = begun = now()
        heartbeats = self.lifecycle.heartbeats
        while now() < min(begun + LEAVE_S, heard + session_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(session_s / LOOKS):
                    await self.lifecycle.gone.wait()
                    return
            if self.lifecycle.heartbeats != heartbeats:
                heard, heartbeats = now(), self.lifecycle.heartbeats
        logger.warning("the controllers have not let this broker go for %g s", now() - begun)

    def _leave(self) -> None:
        self._end_tasks()
        self.channel.close()

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks and not self.loop.is_running():
            self.loop.run_until_complete(asyncio.wait(self._tasks))
