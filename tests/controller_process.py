"""kafkad controllers as processes of their own, each `kafkad serve` of a properties file.

`ControllerProcess` is one of them on a directory that is formatted, `ControllerQuorum` several with
controller.quorum.voters, and what asks them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from kafkad.metadata.uuids import uuid_text
from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import messages
from kafkad.raft.observer import TOPIC

ROOT = Path(__file__).resolve().parent.parent
READY = "kafkad is ready on"


def formatted(directory: Path, cluster_id: str, node_id: int) -> None:
    """What kafka-storage leaves of a node with controller.quorum.voters that matters."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
        f"directory.id={uuid_text(uuid.uuid4().bytes)}\n"
    )


class ControllerProcess:
    """kafkad by a properties file; its log is `log_file`."""

    def __init__(self, properties: Path, log_file: Path, port: int):
        self.properties, self.log_file, self.port = properties, log_file, port
        self.workers = 1
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, timeout: float = 40) -> ControllerProcess:
        return self.launch().until_ready(timeout)

    def launch(self) -> ControllerProcess:
        from tests.jvm import die_with_parent

        self._before = self.log.count(READY)
        with open(self.log_file, "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kafkad", "serve", "--workers", str(self.workers), self.properties],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent,
            )  # fmt: skip
        return self

    def until_ready(self, timeout: float = 40) -> ControllerProcess:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while self.log.count(READY) == self._before:
            if not self.runs or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"kafkad was not ready: {self.process.returncode}\n{self.log}")
            time.sleep(0.02)
        return self

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout: float = 20) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout)

    def __enter__(self) -> ControllerProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()


class ControllerQuorum:
    """`with ControllerQuorum(path, 3) as quorum`: controllers 100, 101, ..., with static voters."""

    def __init__(self, path: Path, count: int = 3, config: Mapping[str, object] | None = None):
        from tests.jvm import free_port, random_uuid

        self.path = Path(path)
        self.cluster_id = random_uuid()
        self.ports = {100 + number: free_port() for number in range(count)}
        self.voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        self.config = dict(config or {})
        self.nodes = {node: self._node(node, port) for node, port in self.ports.items()}

    @classmethod
    def around(cls, nodes, cluster) -> ControllerQuorum:
        """These nodes, of a JvmCluster; they start and stop by themselves."""
        quorum = cls.__new__(cls)
        quorum.path, quorum.cluster_id, quorum.ports = (
            cluster.path,
            cluster.cluster_id,
            cluster.controller_ports,
        )
        quorum.nodes = nodes
        return quorum

    def _node(self, node_id: int, port: int) -> ControllerProcess:
        directory = self.path / f"controller-{node_id}"
        formatted(directory, self.cluster_id, node_id)
        properties = self.path / f"controller-{node_id}.properties"
        keys = {
            "process.roles": "controller",
            "node.id": node_id,
            "controller.quorum.voters": self.voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": directory,
            **self.config,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        return ControllerProcess(properties, self.path / f"controller-{node_id}.out", port)

    def __enter__(self) -> ControllerQuorum:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """All that do not run."""
        launched = [node.launch() for node in self.nodes.values() if not node.runs]
        for node in launched:
            node.until_ready()

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes.values():
            node.kill()

    # -- asking --------------------------------------------------------------------------------------------

    async def ask(self, node_id: int, request, *, timeout_s: float = 5.0):
        """One request on a connection of its own. Raises Unreachable."""
        channel = await Channel.connect("127.0.0.1", self.ports[node_id], "test", timeout_s=timeout_s)
        try:
            return await channel.ask(request, timeout_s=timeout_s)
        finally:
            channel.close()

    async def describe(self, node_id: int):
        """The quorum's partition as this node tells it, or None if it does not lead."""
        cls = messages.DescribeQuorumRequest
        topic = cls.Topics(topic_name=TOPIC, partitions=[cls.Topics.Partitions(partition_index=0)])
        try:
            response = await self.ask(node_id, cls(topics=[topic]), timeout_s=1.0)
        except Unreachable:
            return None
        partition = response.topics[0].partitions[0]
        return partition if not partition.error_code else None

    async def leader(self, timeout_s: float = 20.0) -> int:
        """The node that leads and has committed something in its epoch."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            told = [await self.describe(node) for node, each in self.nodes.items() if is_up(each)]
            known = [each for each in told if each is not None and each.leader_id in self.nodes]
            leading = [each for each in known if each.high_watermark >= 0]
            if leading:
                return max(leading, key=lambda each: each.leader_epoch).leader_id
            await asyncio.sleep(0.05)
        logs = "\n".join(f"-- {node}\n{each.log[-3000:]}" for node, each in self.nodes.items())
        raise AssertionError(f"nobody leads after {timeout_s} s\n{logs}")

    async def ask_leader(self, request, *, timeout_s: float = 20.0):
        """The answer of whoever is the active controller, as soon as one answers."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            node = await self.leader(max(deadline - time.monotonic(), 0.1))
            try:
                response = await self.ask(node, request)
            except Unreachable:
                continue
            if getattr(response, "error_code", 0) != 41:
                return response
            await asyncio.sleep(0.05)
        raise AssertionError("no active controller answers")

    def stopped(self, node_id: int) -> _Stopped:
        """`with`: SIGSTOP, and SIGCONT afterwards."""
        return _Stopped(self.nodes[node_id])


class MemberNode:
    """Directory and properties of a broker beside a ControllerQuorum, for tests.member_process."""

    def __init__(self, quorum: ControllerQuorum, node_id: int, config: Mapping[str, object]):
        from tests.jvm import free_port

        self.node_id = node_id
        self.data_dir = quorum.path / f"broker-{node_id}"
        self.log_file = quorum.path / f"broker-{node_id}.out"
        self.properties = quorum.path / f"broker-{node_id}.properties"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        formatted(self.data_dir, quorum.cluster_id, node_id)
        keys = {
            "process.roles": "broker",
            "node.id": node_id,
            "controller.quorum.voters": quorum.voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data_dir,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            **config,
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))


def is_up(node) -> bool:
    return node.process is not None and node.process.poll() is None


class _Stopped:
    def __init__(self, node: ControllerProcess):
        self.node = node

    def __enter__(self) -> None:
        self.node.signal(signal.SIGSTOP)

    def __exit__(self, *exception: object) -> None:
        self.node.signal(signal.SIGCONT)
