"""How a broker of a cluster gets the metadata: as an observer of controllers on other nodes, or as a node
that is a controller, too.

    FollowedMetadata    process.roles=broker: an Observer, driven by a MetadataClient
    ControllerHalf      process.roles=broker,controller: the RaftNode of a controller in the same process,
                        on the same loop; the broker uses what the quorum commits

Both have `replica`, which has the image and reports each change; `leader`, the active controller; `until`;
`begin`; and `close`, the last step when a broker stops its metadata.

Use: server/member_worker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.log.log_dirs import LogDirs
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.raft.elections import Role
from kafkad.raft.metadata_replica import SnapshotPolicy
from kafkad.raft.observer import Leader, Observer
from kafkad.server.controller_node import ControllerNode, address_of, static_voters
from kafkad.server.event_loop import EventLoop
from kafkad.server.metadata_client import MetadataClient
from kafkad.server.node_links import NodeLinks
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.turns import Turns

Run = Callable[[Coroutine[Any, Any, None]], Any]


class ClusterMetadata(Protocol):
    """What a broker needs of either class."""

    @property
    def replica(self) -> Observer: ...
    @property
    def leader(self) -> Leader | None: ...
    @property
    def until(self) -> Callable[[Callable[[Observer], bool]], Coroutine[Any, Any, None]]:
        """Wait until a condition holds for the replica."""

    def begin(self, run: Run) -> None: ...
    @property
    def close(self) -> Callable[[], None]: ...


class Broker(Protocol):
    """What either class needs of a broker (server/member_worker)."""

    config: BrokerConfig
    loop: EventLoop
    fatal: Callable[[BaseException], None]
    clock: Clock
    cluster_id: str
    log_dirs: LogDirs
    scheduler: LoopScheduler
    turns: Turns
    controller_links: NodeLinks


class FollowedMetadata:
    def __init__(self, worker: Broker) -> None:
        """Open the metadata log. Raises UnusableMetadata, DirectoryTrouble."""
        config = worker.config
        directory = config.metadata_log_dir or config.log_dirs[0]
        voters = static_voters(config.controller_quorum_voters)
        log = worker.log_dirs.open_metadata_log(METADATA_TOPIC, METADATA_TOPIC_ID)
        self.replica = Observer(
            node_id=config.node_id,
            directory_id=worker.log_dirs.directory_id(directory),
            cluster_id=worker.cluster_id,
            log=log,
            files=MetadataFiles(directory),
            clock=worker.clock,
            policy=SnapshotPolicy.of(config),
            static_voters=voters,
            fetch_bytes_max=config.controller_quorum_fetch_max_bytes,
            snapshot_bytes_max=config.controller_quorum_fetch_snapshot_max_bytes,
        )
        self.replica.open()
        self.close = self.replica.close
        bootstrap = [address_of(each) for each in config.controller_quorum_bootstrap_servers]
        self._client = MetadataClient(
            self.replica,
            bootstrap or list(voters.values()),
            client_id=f"kafkad-{config.node_id}",
            request_timeout_ms=config.controller_quorum_request_timeout_ms,
            retry_backoff_ms=config.controller_quorum_retry_backoff_ms,
            connect=worker.controller_links.connect,
        )
        self.until = self._client.until

    @property
    def leader(self) -> Leader | None:
        return self._client.leader

    def begin(self, run: Run) -> None:
        run(self._client.run())


class ControllerHalf(ControllerNode):
    """A ControllerNode with the directories, the threads and the turns of a broker. The broker also makes the
    snapshots."""

    def __init__(self, worker: Broker) -> None:
        """Open the metadata log and listen. Raises UnusableMetadata, DirectoryTrouble, ListenError."""
        super().__init__(worker.config, worker.loop, worker.fatal)
        self.scheduler = worker.scheduler
        self.turns = worker.turns
        self.log_dirs = worker.log_dirs
        self._something = asyncio.Event()
        self.start()

    def _open_directories(self) -> None:
        self.cluster_id = self.log_dirs.cluster_id

    def _open_controller(self) -> None:
        super()._open_controller()
        look = self.quorum.on_change

        def on_change() -> None:
            look()
            self._something.set()

        self.quorum.on_change = on_change

    async def _look_around(self) -> None:
        """Do nothing: the broker makes snapshots."""

    @property
    def replica(self) -> Observer:
        return self.node

    @property
    def leader(self) -> Leader | None:
        """The leader, but not the previous one during an election."""
        return self.node.leader if self.node.role in (Role.LEADER, Role.FOLLOWER) else None

    async def until(self, condition: Callable[[Observer], bool]) -> None:
        """Wait until the condition holds for the node."""
        while not condition(self.node):
            self._something.clear()
            await self._something.wait()

    def begin(self, run: Run) -> None:
        """Do nothing: the node is running already."""

    def close(self) -> None:
        """Resign first, so that the others need not wait for a timeout."""
        self.stop()
