"""A cluster whose nodes all run on this machine: each is broker and controller, a process of its own.

    <root>/cluster.json            cluster id, and the ports of each node
           node-1/server.properties
                  data/            formatted at the first start
                  stdout stderr    of its process; stderr over all its starts
           node-2/...

Ports are chosen at the first start, and again where another process has taken one meanwhile. While a
LocalCluster lives it keeps them bound, so that nobody else is given the port of a node that is stopped, and
holds a lock on <root>.

The processes die with the process that started them, by SIGKILL if it has no time to stop them.

Use: cli/dev, testing/cluster."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from kafkad.log.formatting import Content, format_directories
from kafkad.log.identity import random_id
from kafkad.metadata.uuids import uuid_text
from kafkad.raft.bootstrap import build_bootstrap

HOST: Final = "127.0.0.1"
READY: Final = re.compile(r"^kafkad is ready on ", re.MULTILINE)
POLL_S: Final = 0.02
TAIL_BYTES: Final = 16_384  # of a log that a failure quotes
SETTINGS: Final = "cluster.json"

Spawn = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]


class NodeFailed(Exception):
    """A node exited or hung. The message quotes its stderr; `reason` is one line."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}\n{log}")
        self.reason = reason
        self.log = log


class LocalNode:
    def __init__(
        self, number: int, directory: Path, port: int, controller_port: int, workers: int, spawn: Spawn
    ) -> None:
        self.number = number
        self.directory = directory
        self.port = port
        self.controller_port = controller_port
        self.workers = workers
        self.process: subprocess.Popen[bytes] | None = None
        self._spawn = spawn

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has said so since its last start."""
        return self.running and READY.search(_tail(self.directory / "stdout")) is not None

    @property
    def log_file(self) -> Path:
        return self.directory / "stderr"

    @property
    def log(self) -> str:
        """The end of its stderr, over all its starts."""
        return _tail(self.log_file)

    def launch(self) -> None:
        """Start the process; it is not ready yet."""
        assert not self.running, f"node {self.number} runs already"
        command = [sys.executable, "-m", "kafkad.testing.launch", str(os.getpid()), "serve"]
        command += ["--workers", str(self.workers), str(self.properties)]
        with open(self.directory / "stdout", "wb") as out, open(self.log_file, "ab") as err:
            self.process = self._spawn(
                lambda: subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
            )

    def wait_until_ready(self, timeout_s: float, check: Callable[[], None]) -> None:
        """Raises NodeFailed, and what `check` raises."""
        deadline = time.monotonic() + timeout_s
        while not self.ready:
            check()
            if not self.running:
                code = self.process.returncode if self.process is not None else None
                raise NodeFailed(f"node {self.number} exited with {code} before it was ready", self.log)
            if time.monotonic() > deadline:
                raise NodeFailed(f"node {self.number} was not ready within {timeout_s:g} s", self.log)
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.running:
            assert self.process is not None
            self.process.send_signal(signal.SIGTERM)

    def wait_until_stopped(self, timeout_s: float) -> int:
        """The exit code; 0 for one that never ran. Raises NodeFailed: it had to be killed."""
        if self.process is None:
            return 0
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log = self.log
            self.kill()
            raise NodeFailed(f"node {self.number} did not stop within {timeout_s:g} s", log) from None

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            assert self.process is not None
            self.process.kill()
            self.process.wait()


class LocalCluster:
    """`open`, then `start`; `close` at the end. Nodes are numbered from 1."""

    def __init__(
        self,
        root: Path,
        count: int,
        config: Mapping[str, object] | None = None,
        *,
        first_port: int = 0,
        workers: int = 1,
        spawn: Spawn = lambda start: start(),
    ) -> None:
        """At the first start node 1 listens for clients on `first_port`, the others on the next ones, as far
        as they are free; 0: on any free ports. `workers`: of each node. `spawn` calls what starts a process,
        in a thread that lives as long as the cluster."""
        assert count >= 2
        self.root = root
        self.count = count
        self.cluster_id = ""
        self.nodes: dict[int, LocalNode] = {}
        self._config = dict(config or {})
        self._first_port = first_port
        self._workers = workers
        self._spawn = spawn
        self._held = ExitStack()  # sockets that keep the ports

    @property
    def bootstrap(self) -> str:
        """Every node's `host:port`, for a client's bootstrap.servers."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def open(self) -> None:
        """Ports, properties, and directories that are formatted. Raises ValueError: this directory has a
        cluster of another size, or another process runs it; FormatRefused, OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock()
        known = self._settings()
        if known and len(known["nodes"]) != self.count:
            raise ValueError(f"{self.root} has a cluster of {len(known['nodes'])} nodes, not {self.count}")
        self.cluster_id = known["cluster_id"] if known else uuid_text(random_id())
        for number in range(1, self.count + 1):
            first = self._first_port and self._first_port + number - 1
            wanted, wanted_too = known["nodes"][str(number)] if known else (first, 0)
            port, controller_port = self._hold(wanted), self._hold(wanted_too)
            directory = self.root / f"node-{number}"
            self.nodes[number] = LocalNode(
                number, directory, port, controller_port, self._workers, self._spawn
            )
        for node in self.nodes.values():
            node.directory.mkdir(parents=True, exist_ok=True)
            node.properties.write_text("".join(self._properties(node)))
        settings = {
            "cluster_id": self.cluster_id,
            "nodes": {number: [node.port, node.controller_port] for number, node in self.nodes.items()},
        }
        (self.root / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        bootstrap = build_bootstrap(int(time.time() * 1000))
        for node in self.nodes.values():
            data = str(node.data_dir)
            content = Content(self.cluster_id, node.number, bootstrap)
            format_directories([data], data, content, ignore_formatted=True)

    def _lock(self) -> None:
        directory = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        self._held.callback(os.close, directory)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.root} is in use: another process runs this cluster") from None

    def _settings(self) -> Any:
        try:
            return json.loads((self.root / SETTINGS).read_text())
        except FileNotFoundError:
            return None

    def _hold(self, wanted: int) -> int:
        """This port, or a free one. A node may listen there beside, since both set SO_REUSEADDR."""
        for port in (wanted, 0):
            held = socket.socket()
            try:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((HOST, port))
            except OSError:
                held.close()
                if not port:
                    raise
            else:
                self._held.callback(held.close)
                return int(held.getsockname()[1])
        raise AssertionError

    def _properties(self, node: LocalNode) -> Iterator[str]:
        copies = min(self.count, 3)
        voters = (f"{each.number}@{HOST}:{each.controller_port}" for each in self.nodes.values())
        keys: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{HOST}:{node.controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": node.data_dir.resolve(),
            "default.replication.factor": copies,
            "min.insync.replicas": copies - 1,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": copies - 1,
            "group.initial.rebalance.delay.ms": 0,
            "broker.heartbeat.interval.ms": 500,  # so that the others take over soon
            "broker.session.timeout.ms": 3000,
            **self._config,
        }
        for key, value in keys.items():
            yield f"{key}={str(value).lower() if isinstance(value, bool) else value}\n"

    def start(
        self,
        numbers: Iterable[int] | None = None,
        timeout_s: float = 60.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start these, or all that do not run, and wait until they are ready. Raises NodeFailed, and what
        `check` raises, which is called again and again while a node is not ready."""
        wanted = self.nodes if numbers is None else numbers
        nodes = [self.nodes[number] for number in wanted if not self.nodes[number].running]
        for node in nodes:
            check()
            node.launch()
        for node in nodes:
            node.wait_until_ready(timeout_s, check)

    def stop(self, numbers: Iterable[int] | None = None, timeout_s: float = 60.0) -> dict[int, int]:
        """Stop these, or all, at the same time; the exit codes by node. Raises NodeFailed."""
        nodes = [self.nodes[number] for number in (self.nodes if numbers is None else numbers)]
        for node in nodes:
            node.terminate()
        return {node.number: node.wait_until_stopped(timeout_s) for node in nodes}

    def close(self) -> None:
        """Kill what still runs, and let the ports go."""
        for node in self.nodes.values():
            node.kill()
        self._held.close()


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
