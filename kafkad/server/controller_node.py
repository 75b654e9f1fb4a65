"""A controller by itself: process.roles=controller, one process without a data plane.

    start   directories locked, the metadata log opened; then the node stands, votes and follows
    runs    FrameServer on controller.listener.names; the QuorumController while this node leads; the clock's
            work: sessions, preferred leaders, unclean elections, NoOp records, snapshots
    stop    a leader resigns and tells the others, so that they need not wait for a time-out

Beware: all of it is on one loop. What grows with the cluster runs in turns, so that votes and heartbeats are
answered meanwhile.

Its listeners have TLS and SASL as a broker's have, and StandardAuthorizer decides who may do what. Before
the ACLs are read only super users are let in, so nodes are super users.

Not there yet, and refused: a choice of cipher suites.

Use: server/lifecycle for process.roles=controller; server/member_metadata for a node that is a broker too."""

import asyncio
import contextlib
import inspect
import logging
import os
import random
import secrets
from collections.abc import Callable, Coroutine
from socket import socket
from typing import Any, Final

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.config.listeners import Endpoint
from kafkad.controller.brokers import supported_features
from kafkad.controller.quorum_controller import QuorumController
from kafkad.log.checkpoints import META_PROPERTIES
from kafkad.log.log_dirs import DirectoryTrouble, LogDirs
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.uuids import random_uuid
from kafkad.net import listener
from kafkad.net.channel import Unreachable
from kafkad.net.frame_server import PHASE_HANDSHAKE, PHASE_READY, FrameServer
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.elections import Timings
from kafkad.raft.metadata_replica import SnapshotPolicy
from kafkad.raft.node import RaftNode
from kafkad.raft.quorum_log import QuorumLog
from kafkad.security.listeners import SignedTokens, controller_listeners
from kafkad.server.authentication import Authentication, CertificateNames, read_bytes
from kafkad.server.authorization import FollowedAcls
from kafkad.server.controller_apis import (
    BY_KEY,
    TOLD,
    AlwaysApplied,
    ControllerDispatcher,
    ControllerServices,
    MemberAnswers,
)
from kafkad.server.controller_channel import ControllerChannel
from kafkad.server.controller_queue import awaited
from kafkad.server.early_fencing import EarlyFencing
from kafkad.server.event_loop import EventLoop
from kafkad.server.full_collections import FullCollections
from kafkad.server.metadata_snapshots import MetadataSnapshots
from kafkad.server.node_links import controller_links
from kafkad.server.oauth_keys import OAuthKeySets
from kafkad.server.quorum_node import QuorumNode
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.tls_listeners import ControllerContext
from kafkad.server.turns import Steps, Turns

logger = logging.getLogger("kafkad")

FRAME_SIZE_MAX: Final = (16 << 20) + (64 << 10)  # what a broker takes of its clients, in an Envelope
FENCE_PER_SESSION: Final = 8  # how often sessions are looked at; Kafka: QuorumController
SNAPSHOT_S: Final = 1.0
REGISTER_S: Final = 1.0  # between two looks whether the image has this controller's registration
RESIGN_S: Final = 0.5  # for the others to hear that their leader goes


class ControllerNode:
    """`start`, then the loop runs, then `stop`."""

    def __init__(self, config: BrokerConfig, loop: EventLoop, fatal: Callable[[BaseException], None]) -> None:
        self.config = config
        self.loop = loop
        self.fatal = fatal
        self.clock = Clock()
        self.random = random.SystemRandom()
        self.scheduler = LoopScheduler(loop)
        self.turns = Turns(loop)
        self.endpoints: list[Endpoint] = []  # as bound
        self.cluster_id = ""
        self.incarnation_id = random_uuid(self.random)
        self._undo: list[Callable[[], Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._has_changed = asyncio.Event()  # the quorum's leader or image, since it was cleared
        self._appended = -1  # the newest record that was no NoOp of ours

    # -- start ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises what server.lifecycle turns into one sentence."""
        try:
            check_formatted(self.config)
            self._read_listeners()
            self._open_directories()
            sockets = self._bind()
            self._open_quorum()
            self._open_controller()
            self.loop.run_until_complete(self._serve(sockets))
        except BaseException:
            self._unwind()
            raise

    def _read_listeners(self) -> None:
        """Fetch the keys of OAuth providers, before anything is opened. Raises ConfigError."""
        self.logins = controller_listeners(self.config)
        self.oauth_keys = OAuthKeySets(self.scheduler, self.clock)
        self._undo.append(self.oauth_keys.close)
        for found in self.logins.values():
            if isinstance(found.tokens, SignedTokens):
                self.oauth_keys.of(found.tokens.keys)
        self.oauth_keys.begin(required=True)

    def _open_directories(self) -> None:
        try:
            self.scheduler.begin()
        except OSError as trouble:
            raise DirectoryTrouble(str(trouble)) from trouble
        self._undo.append(self.scheduler.close)
        self.log_dirs = LogDirs(self.config, clock=self.clock, scheduler=self.scheduler)
        self.log_dirs.open()
        self.cluster_id = self.log_dirs.cluster_id
        self._undo.append(lambda: self.log_dirs.close(clean=True))
        collections = FullCollections(self.scheduler.call_soon_threadsafe, lambda: self.log_dirs.opened)
        collections.begin()
        self._undo.append(collections.end)

    def _bind(self) -> list[tuple[socket, Endpoint]]:
        sockets = []
        for endpoint in self.config.controller_endpoints:
            [socket] = listener.bind(endpoint, backlog=self.config.socket_listen_backlog_size)
            sockets.append((socket, endpoint))
            self._undo.append(socket.close)
            self.endpoints.append(endpoint._replace(port=socket.getsockname()[1]))
        return sockets

    @property
    def _advertised(self) -> dict[str, tuple[str, int]]:
        told = {endpoint.listener: endpoint for endpoint in self.endpoints}
        told |= {
            point.listener: point
            for point in self.config.advertised_endpoints
            if point.listener in told and point.port
        }
        return {name: (point.host or "localhost", point.port) for name, point in told.items()}

    def _open_quorum(self) -> None:
        config = self.config
        directory = config.metadata_log_dir or config.log_dirs[0]
        log = self.log_dirs.open_metadata_log(METADATA_TOPIC, METADATA_TOPIC_ID)
        self.links = controller_links(lambda: self.config, read_bytes)
        self.quorum = QuorumNode(
            self.loop,
            connect=self.links.connect,
            client_id=f"kafkad-{config.node_id}",
            request_timeout_ms=config.controller_quorum_request_timeout_ms,
            trust_refusals=config.kafkad_failover_on_refused,
            fatal=self.fatal,
        )
        self.node = self.quorum.node = RaftNode(
            random=self.random,
            send=self.quorum.send,
            wake=self.quorum.wake,
            timings=Timings(
                election_ms=config.controller_quorum_election_timeout_ms,
                fetch_ms=config.controller_quorum_fetch_timeout_ms,
                backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
                request_ms=config.controller_quorum_request_timeout_ms,
                retry_ms=config.controller_quorum_retry_backoff_ms,
            ),
            endpoints=self._advertised,
            bootstrap=[address_of(each) for each in config.controller_quorum_bootstrap_servers],
            auto_join=config.controller_quorum_auto_join_enable,
            node_id=config.node_id,
            directory_id=self.log_dirs.directory_id(directory),
            cluster_id=self.cluster_id,
            log=log,
            files=MetadataFiles(directory),
            clock=self.clock,
            policy=SnapshotPolicy.of(config),
            static_voters=static_voters(config.controller_quorum_voters),
            fetch_bytes_max=config.controller_quorum_fetch_max_bytes,
            snapshot_bytes_max=config.controller_quorum_fetch_snapshot_max_bytes,
        )
        self.node.open()
        self._undo.append(self._close_log)

    def _close_log(self) -> None:
        with contextlib.suppress(KafkaError, OSError):
            self.node._log.flush()
        self.node.close()

    def _open_controller(self) -> None:
        config = self.config
        self.raft = QuorumLog(self.node, self.clock, min_insync_replicas=config.min_insync_replicas)
        self.controller = QuorumController(self.raft, self.clock, self.random, config, self.cluster_id)
        self.acls = FollowedAcls(config, self.clock, self._in_turns)
        self.answering = MemberAnswers(self.controller, self.turns, self.loop, AlwaysApplied())
        self.early_fencing = EarlyFencing(
            self.controller,
            brokers=lambda: self.node.image.brokers.values(),
            do=self._do,
            run=self._run,
        )
        services = ControllerServices(
            config=config,
            static_config=config,
            clock=self.clock,
            metadata=self.node,
            controller=self.answering,
            partitions=None,  # type: ignore[arg-type]
            log_dirs=self.log_dirs,
            groups=None,  # type: ignore[arg-type]
            api_versions=TOLD,
            quorum=self.quorum,
            early_fencing=self.early_fencing,
            authorizer=self.acls.authorizer,
        )
        authentication = None
        if self.logins:
            authentication = Authentication(
                services, self.scheduler, lambda: secrets.token_urlsafe(24), self.oauth_keys, self.logins
            )
        self.dispatcher = ControllerDispatcher(services, BY_KEY, self.fatal, self.turns, authentication)
        self.snapshots = MetadataSnapshots(self.node, self.scheduler)
        self._undo.append(self.snapshots.close)
        self.quorum.on_change = self._changed

    def _changed(self) -> None:
        self._has_changed.set()
        self.raft.look()
        node = self.node
        caught_up = 0 <= node.high_watermark <= node.image.offset + 1
        self.acls.look(node.image, caught_up=caught_up)

    async def _serve(self, sockets: list[tuple[socket, Endpoint]]) -> None:
        config = self.config
        idle_ms = config.connections_max_idle_ms
        self.server = FrameServer(
            self.dispatcher.answer,
            frame_size_max=min(config.socket_request_max_bytes, FRAME_SIZE_MAX),
            connections_max=config.max_connections,
            idle_s=idle_ms / 1000 if idle_ms >= 0 else None,
            login_size_max=config.sasl_server_max_receive_size,
            certified=CertificateNames(config, config.controller_endpoints),
        )
        for listening, endpoint in sockets:
            is_tls, is_sasl = endpoint.protocol.endswith("SSL"), endpoint.protocol.startswith("SASL_")
            await self.server.open(
                listening,
                endpoint.listener,
                context=ControllerContext.of(config, endpoint, read_bytes) if is_tls else None,
                phase=PHASE_HANDSHAKE if is_sasl else PHASE_READY,
            )
        if config.kafkad_failover_on_refused:
            self.server.on_end = self.early_fencing.ended
            self.controller.on_active = self.early_fencing.begins
            self._run(self.early_fencing.run())
        self.quorum.start()
        session_s = config.broker_session_timeout_ms / 1000
        self._run(self._tick(session_s / FENCE_PER_SESSION))
        self._run(self._every(session_s / FENCE_PER_SESSION, self._fence))
        if config.metadata_max_idle_interval_ms > 0:
            self._run(self._every(config.metadata_max_idle_interval_ms / 1000, self._no_op))
        if config.auto_leader_rebalance_enable:
            self._run(self._every(config.leader_imbalance_check_interval_seconds, self._balance))
        self._run(self._every(config.unclean_leader_election_interval_ms / 1000, self._elect_uncleanly))
        self._run(self._every(SNAPSHOT_S, self._look_around))
        if config.delegation_token_secret_key:
            expiry_s = config.delegation_token_expiry_check_interval_ms / 1000
            self._run(self._every(expiry_s, self._remove_expired_tokens))
        self._run(self._register())

    def _in_turns(self, steps: Steps) -> None:
        later = self.turns.run(steps)
        if inspect.isawaitable(later):
            self._run(awaited(later))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.remove(task)
            if not task.cancelled() and (trouble := task.exception()) is not None:
                self.fatal(trouble)

        task = self.loop.create_task(work)
        task.add_done_callback(ended)
        self._tasks.append(task)

    # -- by the clock --------------------------------------------------------------------------------------

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            if self.controller.is_active or work == self._look_around:
                try:
                    await work()
                except KafkaError as trouble:  # no longer active, or the log takes nothing now
                    logger.info("the controller's clock: %s", trouble)

    async def _tick(self, seconds: float) -> None:
        while True:
            self.controller.tick(int(seconds * 1000))
            await asyncio.sleep(seconds)

    async def _do(self, steps: Steps) -> Any:
        result = self.answering.by_the_clock(steps)
        return await result if inspect.isawaitable(result) else result

    async def _fence(self) -> None:
        while await self._do(self.controller.fence_stale()):
            pass
        if self.controller.unclean_wanted:
            await self._elect_uncleanly()

    async def _no_op(self) -> None:
        """Unless something else was appended since the last one."""
        idle = self._appended == self.node.end_offset
        if idle or self._appended < 0:
            await self._do(self.controller.no_op())
        self._appended = self.node.end_offset

    async def _balance(self) -> None:
        while await self._do(self.controller.balance()):
            pass

    async def _elect_uncleanly(self) -> None:
        while await self._do(self.controller.elect_uncleanly()):
            pass

    async def _remove_expired_tokens(self) -> None:
        while await self._do(self.controller.remove_expired_tokens()):
            pass

    async def _look_around(self) -> None:
        self.snapshots.make_if_due()

    async def _register(self) -> None:
        """Say where this controller is, and what it can do, for as long as the image does not (KIP-919)."""
        channel = ControllerChannel(
            lambda: self.node.leader,
            client_id=f"kafkad-{self.config.node_id}",
            connect=self.links.connect,
        )
        try:
            while True:
                image = self.node.image
                if not image.metadata_version or self.node.leader is None:
                    self._has_changed.clear()
                    await self._has_changed.wait()
                    continue
                known = image.controllers.get(self.config.node_id)
                if known is not None and known.incarnation_id == self.incarnation_id:
                    await asyncio.sleep(REGISTER_S)
                    continue
                try:
                    answer = await channel.ask(self._registration(image), timeout_s=10)
                except (Unreachable, KafkaError) as trouble:
                    logger.warning("this controller is not registered: %s", trouble)
                else:
                    if answer.error_code:
                        logger.warning("this controller is not registered: %s", KafkaError(answer.error_code))
                await asyncio.sleep(REGISTER_S)
        finally:
            channel.close()

    def _registration(self, image: MetadataImage) -> Any:
        cls = messages.ControllerRegistrationRequest
        return cls(
            controller_id=self.config.node_id,
            incarnation_id=self.incarnation_id,
            listeners=[
                cls.Listeners(name=name, host=host, port=port)
                for name, (host, port) in self._advertised.items()
            ],
            features=[
                cls.Features(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in supported_features(image).items()
            ],
        )

    # -- stop ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        if hasattr(self, "server"):
            self.loop.run_until_complete(self._leave())
        self._unwind()

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self.node.is_leader and len(self.node.voters) > 1:
            self.node.resign()
            ends = self.loop.time() + RESIGN_S
            while not self.node.all_know_of_the_end and self.loop.time() < ends:
                await asyncio.sleep(0.01)
        await self.server.close()
        await self.quorum.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _unwind(self) -> None:
        while self._undo:
            try:
                self._undo.pop()()
            except (OSError, KafkaError) as trouble:
                logger.error("the stop was not clean: %s", trouble)


def check_formatted(config: BrokerConfig) -> None:
    """Raise DirectoryTrouble: the nodes of a cluster must agree on its id before they start."""
    directory = config.metadata_log_dir or config.log_dirs[0]
    if not os.path.exists(os.path.join(directory, META_PROPERTIES)):
        raise DirectoryTrouble(
            f"the metadata directory {directory} is not formatted: the nodes of a cluster must agree on a"
            " cluster id; run kafkad format"
        )


def address_of(text: str) -> tuple[str, int]:
    """host:port"""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def static_voters(voters: list[str]) -> dict[int, tuple[str, int]]:
    """controller.quorum.voters: id@host:port."""
    return {int(node): address_of(at) for node, _, at in (voter.partition("@") for voter in voters)}
