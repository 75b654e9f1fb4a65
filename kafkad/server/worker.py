"""A worker: all parts of a broker in one process, started in the order of their dependencies.

    1  threads; the log directories: locked, meta.properties read
    2  the listeners are bound (the kernel queues early connections)
    3  the metadata log: replayed, led
    4  the partitions' logs: opened, recovered
    5  this broker registers: its partitions are led
    6  the groups and transactions begin to load; large partitions are loaded while others are served
    7  connections are accepted
    8  background tasks

The stop is in reverse order: background tasks end, connections are closed, groups answer NOT_COORDINATOR, the
broker is fenced, the metadata log is closed, then the listeners; the logs are flushed and closed, and the
clean-shutdown file is written last.

One of several workers gets a `WorkerContext`: directories and listeners exist already, and it opens only its
own partitions and groups. Worker 0 leads the metadata log and registers the broker; the others follow it
(server.metadata_feed). Connections are accepted once all are connected (`join`, on the running loop).

Beware: a start that fails half-way stops what it started and writes no clean-shutdown file.
"""

import asyncio
import gc
import logging
import random
import secrets
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from kafkad._native.log.group_commit import GroupCommit
from kafkad._native.log.partition_state import set_on_fatal
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.serving.reactor import Reactor
from kafkad.api import table
from kafkad.api.context import Controller as HandlersController
from kafkad.api.context import OwnRequests, Services, present
from kafkad.api.node_endpoints import node_endpoints
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.config.listeners import Endpoint
from kafkad.config.served import is_alone
from kafkad.controller.brokers import Registration, plan_directories
from kafkad.controller.controller import Controller
from kafkad.controller.mutation_quota import MutationQuotas
from kafkad.coordinator.runtime import GroupCoordinator
from kafkad.coordinator.transactions import TransactionCoordinator
from kafkad.log.cleaning import LogCleaner
from kafkad.log.directory import Directory
from kafkad.log.log import Log
from kafkad.log.log_dirs import DirectoryTrouble, LogDirs
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.metadata import features
from kafkad.metadata.image import BROKER, MetadataImage
from kafkad.metadata.replay import Delta
from kafkad.metadata.uuids import random_uuid
from kafkad.net import listener
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError
from kafkad.raft.metadata_replica import MetadataReplica
from kafkad.raft.single_voter import SingleVoter
from kafkad.replication.ownership import owner_of
from kafkad.replication.partitions import Partitions
from kafkad.security.authorizer import authorizer_settings
from kafkad.security.listeners import SignedTokens, sasl_listeners
from kafkad.server import host_limits
from kafkad.server.authentication import (
    PHASE_HANDSHAKE,
    PHASE_READY,
    Authentication,
    CertificateNames,
    read_bytes,
)
from kafkad.server.authorization import authorizer_of, follow_acls
from kafkad.server.background import Background
from kafkad.server.changes import Changes
from kafkad.server.client_quotas import FollowedQuotas, is_enforced, quota_table
from kafkad.server.connection_rates import ConnectionRates, between_brokers
from kafkad.server.controller_queue import AnsweringController
from kafkad.server.descriptors import make_room
from kafkad.server.dispatch import Dispatcher
from kafkad.server.dynamic_configuration import DynamicConfiguration
from kafkad.server.event_loop import EventLoop
from kafkad.server.full_collections import FullCollections
from kafkad.server.group_loader import GroupLoader
from kafkad.server.group_storage import OFFSETS_TOPIC, GroupStorage
from kafkad.server.heap_trims import LOOK_MS, HeapTrims
from kafkad.server.host_limits import HostLimits
from kafkad.server.log_upkeep import apply_retention, expire_producers, flush_due
from kafkad.server.marker_transport import MarkerTransport
from kafkad.server.metadata_feed import (
    IMAGE,
    LEADER,
    OFFLINE,
    Feed,
    LeadingController,
    RemoteController,
    decode_change,
    encode_image,
    image_of,
)
from kafkad.server.metadata_snapshots import MetadataSnapshots
from kafkad.server.oauth_keys import OAuthKeySets
from kafkad.server.produce_gate import produce_gate
from kafkad.server.producer_ids import ProducerIds
from kafkad.server.registration import advertised, controller_listeners, registration_of
from kafkad.server.replica_moves import Doubts, hook_moves
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.threads import lanes_of
from kafkad.server.tls_listeners import TlsListeners
from kafkad.server.transaction_gate import TransactionGate
from kafkad.server.transaction_storage import TRANSACTION_TOPIC, TransactionStorage
from kafkad.server.turns import Steps, Turns
from kafkad.server.worker_links import PeerLost, Peers

if TYPE_CHECKING:
    from kafkad.server.worker_context import WorkerContext

logger = logging.getLogger("kafkad")

IMAGE_TIMEOUT_S = 5.0  # after this, log that we wait, and continue to wait
REJOIN_S = 1.0  # how long a restarted worker waits for others that are not up either
BUFFERED_BYTES_MAX = 512 << 20  # of incomplete requests, if queued.max.request.bytes is not set
IDLE_MS_MAX = 1 << 53  # connections.max.idle.ms goes up to Long.MAX, which a clock cannot be added to
FREED_AT_ONCE = 1_000  # partitions of deleted topics between two garbage collections
CONNECTIONS = "connections"
DRAIN_S = 3.0  # how long a stop makes changes of metadata that were requested before


class OwnController(OwnRequests, Protocol):
    """The controller of a worker that plans no changes itself."""

    def update_config(self, config: BrokerConfig) -> None: ...


class Answering(OwnRequests, Protocol):
    """The controller for the handlers of worker 0, without what they call (api.context.Controller)."""

    def drain(self, seconds: float = ...) -> None: ...
    def remove_expired_tokens(self) -> Any: ...


class MetadataCache:
    """The image that handlers read; replaced whole at every change."""

    __slots__ = ("image",)

    def __init__(self, image: MetadataImage) -> None:
        self.image = image


class Worker:
    """One broker process: `start`, then `stop`. `fatal` is called when an invariant is broken."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: EventLoop,
        fatal: Callable[[BaseException], None],
        context: "WorkerContext | None" = None,
    ) -> None:
        """`context`: what one of several workers gets."""
        self.config = config
        self.context = context
        self.me = context.me if context is not None else 0
        self.count = context.count if context is not None else 1
        self.peers: Peers | None = None
        self.loop = loop
        self.group_commits: list[GroupCommit] = []
        self._dynamic = DynamicConfiguration(self._adopt, complains=self.me == LEADER)
        self.apis, self.told = table.BY_KEY, table.TOLD
        self.fatal = fatal
        set_on_fatal(fatal)
        self.clock = Clock()
        self.random = random.SystemRandom()
        self.scheduler = LoopScheduler(loop, lanes_of(config))
        self.turns = Turns(loop)
        self.changes = Changes(self.turns, loop, fatal)
        self.endpoints: list[Endpoint] = []  # as bound: ports are real
        self.cluster_id = ""
        self.controller: Controller | OwnController  # from the metadata log on
        self.raft: MetadataReplica  # likewise; only worker 0 has one
        self.answering: Answering  # of worker 0, from its registration on
        self._sockets: list[tuple[Any, str]] = []  # listening sockets, and the name of their listener
        self._undo: list[tuple[str, Callable[[], Any]]] = []  # what was started, to be undone by the stop
        self._clean = self._failed = False  # whether the stop was clean, and whether it failed

    # -- start ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Do everything before accepting connections (several workers join each other first). Raises
        exceptions for which server.lifecycle prints one error message."""
        gc.disable()  # the objects of a start stay, and repeated collections would take long
        make_room()
        try:
            self._fetch_keys()
            self._open_directories()
            self._bind()
            self._meet()
            if self.me == LEADER:
                self._open_metadata()
            else:
                self._receive_metadata()
            self._open_logs()
            if self.me == LEADER:
                self._register()
            else:
                self.partitions.apply(self.metadata.image)
                self.changes.applied = self.metadata.image.offset
            self.log_dirs.reclaim_rows()
            self._load_groups()
            self._serve()
            self._load_transactions()
            if self.context is None:
                self._accept()
            self._begin_background()
        except BaseException as trouble:
            gc.enable()
            self._unwind(clean=False)
            if isinstance(trouble, OSError) or (
                isinstance(trouble, KafkaError) and trouble.code == KAFKA_STORAGE_ERROR
            ):
                raise DirectoryTrouble(f"the start failed, nothing was changed by it: {trouble}") from trouble
            raise

    def _started(self, what: str, undo: Callable[[], Any]) -> None:
        self._undo.append((what, undo))

    def _fetch_keys(self) -> None:
        """Fetch the keys of OAuth providers, before anything is opened. Raises ConfigError."""
        self.oauth_keys = OAuthKeySets(self.scheduler, self.clock)
        self._started("keys of OAuth providers", self.oauth_keys.close)
        for found in sasl_listeners(self.config).values():
            if isinstance(found.tokens, SignedTokens):
                self.oauth_keys.of(found.tokens.keys)
        self.oauth_keys.begin(required=self.context is None or not self.context.restarted)

    def _open_directories(self) -> None:
        try:
            self.scheduler.begin()
        except OSError as trouble:
            raise DirectoryTrouble(str(trouble)) from trouble
        self._started("threads", self.scheduler.close)
        if self.context is None:
            self.log_dirs = LogDirs(self.config, clock=self.clock, scheduler=self.scheduler)
            self.log_dirs.open()
        else:
            self.log_dirs = self.context.log_dirs
            self.log_dirs.enter(self.me, self.scheduler, restarted=self.context.restarted)
        for directory in self.log_dirs.directories():  # one each: a slow disk must not delay the others
            self._open_group_commit(directory)
        self.log_dirs.on_directory_offline = self._directory_offline
        self.cluster_id = self.log_dirs.cluster_id
        self._started("log directories", lambda: self.log_dirs.close(clean=self._clean))

    def _open_group_commit(self, directory: Directory) -> None:
        directory.group_commit = group_commit = GroupCommit()
        self.group_commits.append(group_commit)
        self.loop.add_reader(group_commit.fileno(), group_commit.publish)

        def close() -> None:
            self.group_commits.remove(group_commit)
            self.loop.remove_reader(group_commit.fileno())
            group_commit.close()

        self._started("group commit", close)

    def _bind(self) -> None:
        self._started("listeners", lambda: [socket.close() for socket, _ in self._sockets])
        if self.context is not None:
            self._sockets, self.endpoints = self.context.sockets, self.context.endpoints
            return
        for endpoint in self.config.broker_endpoints:
            [socket] = listener.bind(endpoint, backlog=self.config.socket_listen_backlog_size)
            self._sockets.append((socket, endpoint.listener))
            self.endpoints.append(endpoint._replace(port=socket.getsockname()[1]))

    def _meet(self) -> None:
        context = self.context
        if context is None:
            return
        context.mailboxes.enter(self.me)
        context.hosts.enter(self.me)
        context.handover.enter(self.me)
        context.quotas.enter(self.me)
        self.peers = Peers(self.me, context.peer_sockets, context.peer_addresses, self.loop)
        self.peers.handle(OFFLINE, lambda _, path: self.log_dirs.set_offline(path.decode()))
        self._started("connections to other workers", self.peers.close)

    def _receive_metadata(self) -> None:
        """Get the image with which this worker begins; worker 0 has it before it opens its own logs."""
        assert self.context is not None and self.peers is not None
        content: bytes | None = None
        if not self.context.restarted:
            content = self.context.first_image.wait()
        while content is None:
            try:
                content = self.peers.call_blocking(LEADER, IMAGE, b"", IMAGE_TIMEOUT_S)
            except PeerLost as trouble:
                logger.warning("worker %d waits for the metadata: %s", self.me, trouble)
        empty = MetadataImage(self.cluster_id, self.config.node_id)
        self.metadata = MetadataCache(image_of(decode_change(content), empty))
        self.controller = RemoteController(self.peers, self.turns)

    def _open_metadata(self) -> None:
        directory = self.config.metadata_log_dir or self.config.log_dirs[0]
        log = self.log_dirs.open_metadata_log(METADATA_TOPIC, METADATA_TOPIC_ID)
        self.raft = voter = SingleVoter.configured(
            self.config,
            directory_id=self.log_dirs.directory_id(directory),
            cluster_id=self.cluster_id,
            log=log,
            files=MetadataFiles(directory),
            clock=self.clock,
            call_soon=lambda function: self.loop.call_soon(self._commit, function),
        )
        voter.open()
        voter.lead()
        self._started("metadata log", voter.close)
        self.metadata = MetadataCache(self.raft.image)
        self.controller = Controller(voter, self.clock, self.random, self.config)
        has_authorizer = authorizer_settings(self.config) is not None
        has_tokens = bool(self.config.delegation_token_secret_key)
        if kept := not_enforced(self.raft.image, has_authorizer=has_authorizer, has_tokens=has_tokens):
            logger.warning("%s", kept)
        if self.context is not None:
            self.context.first_image.publish(encode_image(self.raft.image))

    def _commit(self, commit: Callable[[], Any]) -> None:
        """The metadata log reports a flush."""
        try:
            commit()
        except BaseException as trouble:
            self.fatal(trouble)
            raise

    def _open_logs(self) -> None:
        image = self.metadata.image
        self._dynamic.apply(self.config, image)
        self.authorizer = authorizer_of(self.config, image, self.clock)
        self.table = PartitionTable()
        self.partitions = Partitions(
            self.config.node_id, self.config, self.log_dirs, self.table, me=self.me, workers=self.count
        )
        if self.peers is not None:
            self.feed = Feed(
                self.peers,
                self.metadata,
                self.partitions,
                self.loop,
                self._on_change,
                lambda: self.changes.applied,
                self.turns,
            )
            self.feed.on_fatal = self.fatal
            self.changes.on_applied = self.feed.tell_applied
            self._started("metadata feed", self.feed.close)

        def config_for(topic: str) -> Any:
            return self.partitions.topic_config(image, topic)

        def mine(topic: str, topic_id: bytes, index: int) -> bool:
            return owner_of(topic_id, index, self.count) == self.me

        def has_replica(topic: str, index: int) -> bool:
            state = image.topics[topic].partitions.get(index)
            return state is not None and self.config.node_id in state.replicas

        hook_moves(
            self.log_dirs.moves, lambda: self.config, self.count, self.metadata, self.partitions,
            assign_directories=self._assign_directories, is_busy=self._is_loading,
        )  # fmt: skip
        self.log_dirs.load(
            config_for, known_topics(image), None if self.context is None else mine, self.count, has_replica
        )  # fmt: skip
        self.doubts = Doubts(self.log_dirs, self.metadata, self.config.node_id)

    @property
    def _planning(self) -> Controller:
        """The controller of a broker that is alone, in worker 0."""
        assert isinstance(self.controller, Controller)
        return self.controller

    def _register(self) -> None:
        controller = self._planning
        if self.peers is not None:
            controller.on_commit = self.feed.committed
        controller.registration, controller.on_registered = self._registration, self._note_epoch
        if not self._is_registered():
            controller.at_once(controller.register_broker(self._registration()))
        self.metadata.image = self.raft.image
        self.partitions.apply(self.raft.image)
        self.changes.applied = self.raft.image.offset
        controller.subscribe(self._on_change)
        self._make_answering()
        controller.on_registered = self._registered_again
        self._assign_directories()
        controller.settle()
        self._started("registration", self._leave)

    def _make_answering(self) -> None:
        """Make the controller for the handlers of worker 0."""
        if self.context is None:
            self.answering = AnsweringController(self._planning, self.turns, self.loop, self.changes)
        else:
            self.answering = LeadingController(self._planning, self.turns, self.loop, self.feed)

    def _is_registered(self) -> bool:
        """Return whether an earlier worker 0 registered the broker, which still runs in the others."""
        broker = self.raft.image.brokers.get(self.config.node_id)
        if self.context is None or broker is None or broker.fenced:
            return False
        if broker.incarnation_id != self.context.incarnation_id:
            return False
        self._planning.broker_epoch = broker.epoch
        return True

    def _registration(self) -> Registration:
        return registration_of(
            self.config,
            self.log_dirs,
            advertised(self.config, self.endpoints),
            self.context.incarnation_id if self.context else random_uuid(self.random),
            controller_listeners(self.config),
        )

    def _note_epoch(self, epoch: int) -> None:
        self.log_dirs.broker_epoch = epoch

    def _registered_again(self, epoch: int) -> None:
        self._note_epoch(epoch)
        self.scheduler.call_soon(self._assign_directories)  # the metadata may have records for them now

    def _assign_directories(self) -> None:
        """Record the partitions' directories, if there are several or one was lost (KIP-858)."""
        if len(self.log_dirs.directory_ids()) > 1 or not is_alone(self.config):
            placed = {
                (log.topic_id, log.partition): self.log_dirs.moves.told_of(log)
                for log in self.partitions
                if not self.doubts.concern(log)
            }
            if plan_directories(self.metadata.image, self.config.node_id, placed):
                self._controller_of_clients().assign_directories(placed)

    def _leave(self) -> None:
        try:
            self._planning.at_once(self._planning.fence_broker())
        except Exception as trouble:
            logger.warning("the broker could not be fenced in the metadata log: %s", trouble)

    def _load_groups(self) -> None:
        storage = GroupStorage(self.config, self.partitions, self.metadata, self.clock, self.scheduler)
        self.groups = GroupCoordinator(
            self.config, self.clock, self.scheduler, storage, lambda: str(uuid.uuid4())
        )
        self._group_storage = storage
        self._group_loader = GroupLoader(self.groups, self.partitions, self.scheduler)
        for index in range(storage.partition_count()):
            self._group_loader.load(index)
        self._started("groups", self.groups.close)

    def _load_transactions(self) -> None:
        """Call after `_serve`: transactions that were ending at the last stop continue."""
        services = self.services
        self._transaction_storage = storage = TransactionStorage(
            self.partitions, self.metadata, self.clock, self.scheduler
        )
        self.transactions = services.transactions = TransactionCoordinator(
            self.config,
            self.clock,
            self.scheduler,
            storage,
            MarkerTransport(services, self.loop),
            present(services.producer_ids).take,
            lambda: features.level(self.metadata.image.features, features.TRANSACTION_VERSION),
        )
        self.gate = services.transaction_gate = TransactionGate(services, self._transaction_owner, self.loop)
        self._serve_transactions()
        self._started("transactions", self.transactions.close)
        self._transaction_loader = GroupLoader(
            self.transactions, self.partitions, self.scheduler, TRANSACTION_TOPIC
        )
        for index in range(storage.partition_count()):
            self._transaction_loader.load(index)
        self.partitions.on_led = self._led
        if self.peers is not None:
            self.peers.on_up(lambda worker: self.transactions.markers.retry_now())
        self.transactions.start_timers()

    def _serve_transactions(self) -> None:
        self.reactor.serve_transactions(
            produce_gate(self.gate),
            verify=self.config.transaction_partition_verification_enable,
        )

    def _led(self, log: Log) -> None:
        """A partition is led from now on, at once or after retries."""
        if log.topic == OFFSETS_TOPIC:
            self._group_loader.load(log.partition)
        elif log.topic == TRANSACTION_TOPIC:
            self._transaction_loader.load(log.partition)

    def _serve(self) -> None:
        config = self.config
        self.services = Services(
            config=config,
            static_config=config,
            clock=self.clock,
            metadata=self.metadata,
            # a worker other than 0 is asked nothing that it does not have (api.table)
            controller=cast(HandlersController, self._controller_of_clients()),
            partitions=self.partitions,
            log_dirs=self.log_dirs,
            groups=self.groups,
            producer_ids=ProducerIds(self._controller_of_clients()),
            api_versions=self.told,
            me=self.me,
            peers=self.peers,
            owner_of=self._owner_of,
            group_owner=self._group_owner,
            transaction_owner=self._transaction_owner,
            authorizer=self.authorizer,
            log_level_set=self._log_level_set if self.context is not None else None,
        )
        authentication = None
        if any(endpoint.protocol.startswith("SASL_") for endpoint in config.broker_endpoints):
            authentication = Authentication(
                self.services, self.scheduler, lambda: secrets.token_urlsafe(24), self.oauth_keys
            )
        dispatcher = Dispatcher(self.services, self.apis, self.fatal, self.turns, authentication)
        self.reactor = Reactor(
            self.table,
            dispatcher,
            on_fatal=self.fatal,
            socket_request_max_bytes=config.socket_request_max_bytes,
            sasl_server_max_receive_size=config.sasl_server_max_receive_size,
            buffered_bytes_max=budget
            if (budget := config.queued_max_request_bytes) > 0
            else BUFFERED_BYTES_MAX,
            connections_max=config.max_connections,
            connections_max_per_ip=config.max_connections_per_ip,
            connections_max_per_ip_overrides=host_limits.of_addresses(config.host_connection_limits),
            connections_max_idle_ms=min(config.connections_max_idle_ms, IDLE_MS_MAX),
            send_buffer_bytes=config.socket_send_buffer_bytes,
            # Kafka's default of 100 KB would keep the kernel from adapting the size to the load
            receive_buffer_bytes=config.socket_receive_buffer_bytes
            if config.is_given("socket.receive.buffer.bytes")
            else -1,
            fetch_max_bytes=config.fetch_max_bytes,
            fetch_session_slots=config.max_incremental_fetch_session_cache_slots,
            mailboxes=self.context.mailboxes if self.context is not None else None,
            hosts=self.context.hosts if self.context is not None else None,
            handover=self.context.handover if self.context is not None else None,
        )
        nodes = {
            name: node_endpoints(config.node_id, endpoint, config.broker_rack)
            for name, endpoint in advertised(config, self.endpoints).items()
        }
        self.reactor.name_leader(config.node_id, nodes)
        self._heap_trims = HeapTrims(self.reactor.trim_soon)
        self.turns.on_idle = self._heap_trims.work_ended
        self.host_limits = HostLimits(
            self.scheduler,
            lambda limits: self.reactor.set_limits(connections_max_per_ip_overrides=limits),
        )
        self._started("look-ups of hosts", self.host_limits.close)
        self.host_limits.set(config.host_connection_limits)
        restarted = self.context is not None and self.context.restarted
        self.services.tls = TlsListeners(
            config,
            self.reactor.secure,
            read_bytes,
            refuses_expired=not restarted,
            complains=self.me == LEADER,
        )
        self.reactor.on_certificate = CertificateNames(config)
        if self.authorizer is not None:
            self.reactor.authorize(self.authorizer)
            self.authorizer.on_change = self.reactor.acls_changed
        self._count_quotas()
        for row in table.NATIVE:
            self.reactor.serve_native(row.key, row.low, row.high)
        self.loop.join(self.reactor)
        for group_commit in self.group_commits:
            self.loop.remove_reader(group_commit.fileno())
            self.reactor.join_commits(group_commit)
        self._started(CONNECTIONS, self._close_reactor)
        if self.peers is not None:
            self.peers.on_down(self.reactor.peer_lost)

    def _count_quotas(self) -> None:
        if self.context is None:
            counted = quota_table(self.config, 1)
            counted.enter(0)
        else:
            counted = self.context.quotas
        self.rates = ConnectionRates(counted, self.reactor.limit_connection_rates)
        self.rates.adopt(self.config)
        self.reactor.protect_listener(between_brokers(self.config))
        self.client_quotas = FollowedQuotas(counted, self.reactor.quotas_changed, self.rates)
        self.reactor.count_quotas(counted, self.client_quotas.resolve)
        if isinstance(self.controller, Controller):
            full_s = (
                self.config.controller_quota_window_num * self.config.controller_quota_window_size_seconds
            )
            self.controller.mutations = MutationQuotas(self.client_quotas.resolve, self.clock, full_s)
        image = self.metadata.image
        for _ in self.client_quotas.follow(image.client_quotas, image.client_quotas):
            pass

    def _accept(self) -> None:
        collections = FullCollections(self.scheduler.call_soon_threadsafe, lambda: self.log_dirs.opened)
        collections.begin()
        self._started("full collections", collections.end)
        gc.enable()
        for socket, name in self._sockets:
            is_sasl = self.config.listener_protocols[name].startswith("SASL_")
            self.reactor.add_listener(
                socket.fileno(), name, phase=PHASE_HANDSHAKE if is_sasl else PHASE_READY
            )

    async def join(self) -> None:
        """Connect one of several workers, on its running loop, to the others, then accept connections."""
        assert self.context is not None
        await self.feed.join(timeout_s=REJOIN_S if self.context.restarted else None)
        self._assign_directories()
        self._accept()
        self.context.tell(ready=True)

    def _controller_of_clients(self) -> OwnRequests:
        """The controller for the handlers: with several workers a change is answered when all of them know
        it."""
        if self.me == LEADER:
            return self.answering
        assert not isinstance(self.controller, Controller)
        return self.controller

    def _log_level_set(self, name: str, level: str | None) -> None:
        assert self.context is not None
        self.context.tell(log_level=[name, level])

    def _owner_of(self, topic: str, index: int) -> int:
        """Return the worker that leads a partition; for an unknown one this worker, which returns the
        error."""
        known = self.metadata.image.topics.get(topic)
        return self.me if known is None else owner_of(known.topic_id, index, self.count)

    def _group_owner(self, group_id: str) -> int:
        """Return the worker that coordinates a group, or answers that none does."""
        if self._group_storage.partition_count() == 0:
            return self.me
        return self._owner_of(OFFSETS_TOPIC, self.groups.partition_for(group_id))

    def _transaction_owner(self, transactional_id: str) -> int:
        """Return the worker that coordinates a transactional id, or answers that none does."""
        if self._transaction_storage.partition_count() == 0:
            return self.me
        return self._owner_of(TRANSACTION_TOPIC, self.transactions.partition_for(transactional_id))

    def _close_reactor(self) -> None:
        self.loop.leave()
        self.reactor.close()
        for group_commit in self.group_commits:  # syncs that are still running
            self.loop.add_reader(group_commit.fileno(), group_commit.publish)

    def _begin_background(self) -> None:
        config = self.config
        background = Background(self.scheduler, self.fatal, self.turns)
        now_ms = self.clock.now_ms
        background.add(
            "retention",
            lambda: self.config.log_retention_check_interval_ms,
            lambda: apply_retention(self.partitions, self.config, now_ms()),
        )
        background.add(
            "recovery checkpoint",
            lambda: config.log_flush_offset_checkpoint_interval_ms,
            self.log_dirs.checkpoint,
        )
        background.add(
            "high watermark checkpoint",
            lambda: config.replica_high_watermark_checkpoint_interval_ms,
            self.log_dirs.checkpoint_high_watermarks,
        )
        background.add(
            "flush by age",
            lambda: min(config.log_flush_scheduler_interval_ms, 1000),
            lambda: flush_due(self.partitions, now_ms(), self.clock.monotonic_ms()),
        )
        background.add("free memory", lambda: LOOK_MS, self._heap_trims.look)
        background.add(
            "expiry of producers",
            lambda: config.producer_id_expiration_check_interval_ms,
            lambda: expire_producers(self.partitions, self.config, now_ms()),
        )
        if config.log_cleaner_enable:
            cleaner = LogCleaner(
                lambda: self.config, lambda: self.partitions, self.log_dirs, self.clock, self.scheduler,
                lambda log: self._is_loading(log) or log in self.log_dirs.moves, self.fatal,
            )  # fmt: skip
            cleaner.start()
            self._started("log cleaner", cleaner.stop)
        self.log_dirs.moves.start()
        if self.me == LEADER:
            snapshots = MetadataSnapshots(self.raft, self.scheduler)
            background.add("metadata snapshot", lambda: 10_000, snapshots.make_if_due)
            self._started("metadata snapshots", snapshots.close)
            if config.delegation_token_secret_key:
                background.add(
                    "expiry of delegation tokens",
                    lambda: config.delegation_token_expiry_check_interval_ms,
                    lambda: self.answering.remove_expired_tokens(),
                )
        if self.context is not None:
            beat_ms = int(self.context.heartbeats.beat_s * 1000)
            background.add("heartbeat", lambda: beat_ms, self._beat)
        self._started("background tasks", background.stop)

    # -- running -------------------------------------------------------------------------------------------

    def _on_change(self, delta: Delta, image: MetadataImage) -> None:
        """Apply one committed change of metadata: configuration first, then logs, then groups."""
        defaults_changed = any(kind == BROKER for kind, _ in delta.configs_changed)
        if defaults_changed:
            self._dynamic.apply(self.config, image)
        before, self.metadata.image = self.metadata.image, image
        defaults = self.config if defaults_changed else None
        steps = self._follow(delta, image, defaults)
        if delta.acls_changed and self.authorizer is not None:
            steps = self._follow_acls(delta.acls_changed, before.acls, image.acls, steps)
        if delta.quotas_changed:
            steps = self._follow_quotas(delta.quotas_changed, image, steps)
        self.changes.put(image.offset, steps)

    def _follow_acls(self, changed: set[bytes], before: Any, after: Any, steps: Steps) -> Steps:
        """Apply the ACLs of a change, before its other work."""
        assert self.authorizer is not None
        yield from follow_acls(self.authorizer, changed, before, after)
        return (yield from steps)

    def _follow_quotas(self, changed: set[Any], image: MetadataImage, steps: Steps) -> Steps:
        """Apply the client quotas of a change, before its other work."""
        yield from self.client_quotas.follow(changed, image.client_quotas)
        return (yield from steps)

    def _follow(self, delta: Delta, image: MetadataImage, defaults: BrokerConfig | None) -> Steps:
        """Apply in steps what grows with a change. `defaults`: the new configuration, if any."""
        if defaults is not None:
            yield from self.partitions.follow_defaults(defaults)
        if OFFSETS_TOPIC in {topic.name for topic in delta.topics_deleted}:
            for index in list(self.groups.shards):
                self.groups.unload(index)
        if TRANSACTION_TOPIC in {topic.name for topic in delta.topics_deleted}:
            for index in list(self.transactions.shards):
                self.transactions.unload(index)
        deletes = bool(delta.topics_deleted)
        for number, _ in enumerate(self.partitions.follow(delta, image), 1):
            yield
            if deletes and number % FREED_AT_ONCE == 0:
                gc.collect()  # logs are cyclic objects: freeing 8,000 of them at once takes 0.3 s
        if delta.topics_deleted:
            self.groups.on_topics_deleted([(topic.name, topic.topic_id) for topic in delta.topics_deleted])
        if delta.topics_created or delta.topics_changed:
            self.scheduler.call_soon(self._assign_directories)  # a subscriber does not change metadata itself
        if self.log_dirs.has_renames:  # of deleted topics, and of replicas that have moved to other brokers
            return self._renames_synced()

    async def _renames_synced(self) -> None:
        synced = asyncio.Event()
        if self.log_dirs.sync_renames(synced.set):
            await synced.wait()

    def _directory_offline(self, path: str) -> None:
        """A failed directory takes its own partitions offline; the last one ends the broker (LogManager)."""
        if self.peers is not None:
            for k in self.peers.up:
                self.peers.tell(k, OFFLINE, path.encode())
        if all(directory.offline for directory in self.log_dirs.directories()):
            self.fatal(DirectoryTrouble(f"all log directories have failed, {path} the last"))

    def _adopt(self, config: BrokerConfig) -> None:
        if not hasattr(self, "services"):
            self.controller.update_config(config)
            self.config = config
            return
        self.controller.update_config(config)
        self.services.config = config
        self.groups.config = config
        self.transactions.config = config
        self.reactor.set_limits(
            connections_max=config.max_connections,
            connections_max_per_ip=config.max_connections_per_ip,
            connections_max_idle_ms=min(config.connections_max_idle_ms, IDLE_MS_MAX),
            fetch_max_bytes=config.fetch_max_bytes,
        )
        self.host_limits.set(config.host_connection_limits)
        self.rates.adopt(config)
        if self.services.tls is not None:
            self.services.tls.adopt(config)
        self.config = config
        self._serve_transactions()

    def _beat(self) -> None:
        assert self.context is not None
        self.context.heartbeats.beat(self.me)
        self.context.handover.open_again()

    def _is_loading(self, log: Log) -> bool:
        """Return whether a coordinator reads the files of a log, by their names."""
        if log.topic == OFFSETS_TOPIC:
            group_shard = self.groups.shards.get(log.partition)
            return group_shard is not None and group_shard.loading
        if log.topic == TRANSACTION_TOPIC:
            transaction_shard = self.transactions.shards.get(log.partition)
            return transaction_shard is not None and transaction_shard.loading
        return False

    # -- stop ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop cleanly: everything on disk, then the clean-shutdown file (or the supervisor writes it)."""
        self._unwind(clean=True)

    @property
    def stopped_cleanly(self) -> bool:
        return self._clean and not self._undo

    def hang_up(self) -> None:
        """Begin to stop: close the clients' connections, and serve nothing more. When all workers
        have done this, each may stop."""
        self._finish_changes()
        names = [what for what, _ in self._undo]
        while CONNECTIONS in names:
            self._undo_last()
            names.pop()

    def _finish_changes(self) -> None:
        """Append, flush and apply the requested changes, before anything is stopped; after DRAIN_S, leave
        what has not begun. The next start applies changes that were appended, but it keeps directories of
        deleted partitions as strays: these are deleted now."""
        self.changes.end_in(DRAIN_S)
        if hasattr(self, "answering"):
            try:
                self.answering.drain(DRAIN_S)
            except (OSError, KafkaError) as trouble:
                logger.error("the last changes of metadata may not be on the disk: %s", trouble)
        self.changes.drain(for_good=True)
        if self.changes.over:
            self.partitions.drop_unassigned(self.metadata.image)

    def _unwind(self, *, clean: bool) -> None:
        if clean:
            self._finish_changes()
        self._clean = clean and not self._failed
        while self._undo:
            self._undo_last()

    def _undo_last(self) -> None:
        what, undo = self._undo.pop()
        try:
            undo()
        except Exception:
            logger.exception("stopping the %s failed", what)
            self._failed, self._clean = True, False


def not_enforced(
    image: MetadataImage, *, has_authorizer: bool = False, has_tokens: bool = False
) -> str | None:
    """Return one warning about the security records of a metadata log, which a JVM broker may have written;
    None without any. They are kept for a Kafka that opens the directory again."""
    counts = {
        "ACLs": 0 if has_authorizer else len(image.acls),
        "delegation tokens": 0 if has_tokens else len(image.delegation_tokens),
        "client quotas": sum(not is_enforced(key) for _, key in image.client_quotas),
    }
    found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    if not found:
        return None
    everybody = "" if has_authorizer else ". Every client may do everything"
    return f"the metadata log holds {found}: they are kept, but not enforced{everybody}"


def known_topics(image: MetadataImage) -> dict[str, bytes]:
    """Return topic name -> topic id: a log of any other topic is a stray."""
    return {topic.name: topic.topic_id for topic in image.topics.values()}
