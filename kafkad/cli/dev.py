"""`kafkad dev`: a cluster of several nodes on this machine, for development (local_cluster).

This process starts the nodes, waits for a signal, and stops them. It reports a node that ends in between; the
others serve on, and it does not start the node again: what happens then is what one wants to see. Meanwhile
it reads commands from standard input: kill, stop and start a node."""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from kafkad.cli.exits import end
from kafkad.cli.local_cluster import LocalCluster, LocalNode, NodeFailed
from kafkad.cli.serve import parse_overrides
from kafkad.cli.serving import WORKERS_MAX
from kafkad.log.formatting import FormatRefused

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_S: Final = 60.0
STOPPED: Final = (0, -signal.SIGTERM)  # the second: it had not begun to run
HINT: Final = """
  Its data and its logs are in {root}; the next start continues with them. Ctrl-C stops it.
  Try, in another terminal:
    export KAFKAD_BOOTSTRAP_SERVER={bootstrap}
    kafkad topics --create --topic greetings --partitions 3
    kafkad cluster status
  Type here:
    kill 1        as kill -9 does; the others take over what node 1 leads
    stop 2        cleanly
    start 1       again, with its data
    status        of each node
"""
USAGE: Final = "the commands are kill N, stop N, start N and status"


class Interrupted(Exception):
    """A signal came before the cluster was ready."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(2, 15), default=3, show_default=True, help="Number of nodes.")
@click.option(
    "--data-dir", metavar="D", default="kafkad-cluster", show_default=True, help="Directory of all nodes."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65000),
    default=9092,
    show_default=True,
    help="Node 1 listens here at the first start, the others on the next ports. Ports in use are replaced.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Worker processes of each node.",
)
@click.option(
    "--override", metavar="KEY=VALUE", multiple=True, help="Set a key of server.properties of all nodes."
)
def command(nodes: int, data_dir: str, port: int, workers: int, override: tuple[str, ...]) -> None:
    """Run a cluster on this machine until SIGTERM or Ctrl-C.

    Each node is a process of its own, broker and controller, and listens on 127.0.0.1 only. Topics have three
    replicas by default. Each node has a directory in the data directory, with its server.properties, data and
    log (stderr). The next start continues with the same data and ports.

    While it runs it reads commands, one per line: kill N, stop N, start N, status.

    \b
      kafkad dev
      kafkad dev --nodes 5 --data-dir /tmp/cluster --override num.partitions=8
    """
    begun = time.monotonic()
    cluster = LocalCluster(Path(data_dir), nodes, parse_overrides(override), first_port=port, workers=workers)
    signals = Signals()
    try:
        cluster.open()
        cluster.start(check=signals.check)
        _say_ready(cluster, begun)
        code = Watch(cluster, signals).run()
    except Interrupted:
        code = _stop(cluster)
    except NodeFailed as failed:
        with suppress(NodeFailed):
            cluster.stop(timeout_s=STOP_S)  # the others may fail, too, for the same reason
        end(f"{failed.reason}: {_last_line(failed.log)}", 1)
    except OSError as trouble:
        end(f"{trouble.filename or data_dir}: {trouble.strerror or trouble}", 1)
    except (FormatRefused, ValueError) as refused:
        end(str(refused), 1)
    finally:
        cluster.close()
    sys.exit(code)


class Signals:
    """`ended`: a signal that ends the cluster has come. `wait` returns when any has, also one about a child.

    Handlers raise nothing: an exception between the fork of a node and the assignment of its process would
    leave a node that nobody stops."""

    def __init__(self) -> None:
        self.ended = False
        self._reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer  # open for as long as the wakeup descriptor is set
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes us

    def check(self) -> None:
        """Raises Interrupted."""
        if self.ended:
            raise Interrupted

    def _on_signal(self, *_: Any) -> None:
        self.ended = True

    def wait(self, also: int | None) -> bool:
        """Return whether the descriptor `also` can be read."""
        wanted: list[Any] = [self._reader] if also is None else [self._reader, also]
        ready, _, _ = select.select(wanted, [], [])
        if self._reader in ready:
            self._reader.recv(4096)
        return also in ready


class Commands:
    """Lines of standard input."""

    def __init__(self) -> None:
        self.fd: int | None = None  # None: there is nothing to read any more
        self._heard = b""
        with suppress(OSError):
            os.fstat(0)
            self.fd = 0

    def read(self) -> list[str]:
        """Call when `fd` can be read. A background job leaves the terminal's input to the others."""
        assert self.fd is not None
        try:
            if os.isatty(self.fd) and os.tcgetpgrp(self.fd) != os.getpgrp():
                data = b""
            else:
                data = os.read(self.fd, 4096)
        except OSError:
            data = b""
        if not data:
            self.fd = None
            data = b"\n" if self._heard else b""  # a last line without an end
        *lines, self._heard = (self._heard + data).split(b"\n")
        if len(self._heard) > 4096:
            self._heard = b""
        return [line.decode(errors="replace").strip() for line in lines]


class Watch:
    """Reports the nodes that end, and obeys commands, until a signal comes or all nodes have ended."""

    def __init__(self, cluster: LocalCluster, signals: Signals) -> None:
        self._cluster = cluster
        self._signals = signals
        self._running = set(cluster.nodes)
        self._commands = Commands()

    def run(self) -> int:
        """Return the exit code."""
        while not self._signals.ended:
            ended = [number for number in sorted(self._running) if not self._cluster.nodes[number].running]
            for number in ended:
                self._running.remove(number)
                _tell(_ended(self._cluster.nodes[number]))
            if ended and not self._running:
                _tell("all nodes have ended")
                return 1
            if self._signals.wait(self._commands.fd):
                for line in self._commands.read():
                    if line and not self._signals.ended:
                        self._obey(line)
        return _stop(self._cluster)

    def _obey(self, line: str) -> None:
        verb, *rest = line.split()
        if verb == "status" and not rest:
            for number, each in self._cluster.nodes.items():
                print(f"node {number} on {each.bootstrap}: {_state(each)}", flush=True)
            return
        node = self._cluster.nodes.get(int(rest[0])) if len(rest) == 1 and rest[0].isdecimal() else None
        act = {"kill": self._kill, "stop": self._end, "start": self._start}.get(verb)
        if act is None:
            _tell(f"{verb[:40]!r} is no command: {USAGE}")
        elif node is None:
            _tell(f"{verb} takes the number of a node, 1 to {len(self._cluster.nodes)}")
        elif node.running is (verb == "start"):
            _tell(f"node {node.number} {'runs already' if node.running else 'does not run'}")
        else:
            act(node)

    def _kill(self, node: LocalNode) -> None:
        self._running.discard(node.number)
        node.kill()
        print(f"node {node.number} is killed", flush=True)

    def _end(self, node: LocalNode) -> None:
        self._running.discard(node.number)
        begun = time.monotonic()
        try:
            self._cluster.stop([node.number], STOP_S)
        except NodeFailed as failed:
            _tell(failed.reason)
            return
        print(f"node {node.number} has stopped ({_since(begun)} ms)", flush=True)

    def _start(self, node: LocalNode) -> None:
        begun = time.monotonic()
        try:
            self._cluster.start([node.number], check=self._signals.check)
        except NodeFailed as failed:
            node.kill()
            _tell(f"{failed.reason}: {_last_line(failed.log)}")
            return
        self._running.add(node.number)
        print(f"node {node.number} is ready on {node.bootstrap} ({_since(begun)} ms)", flush=True)


def _stop(cluster: LocalCluster) -> int:
    """Stop the nodes that run; the exit code."""
    running = [number for number, node in cluster.nodes.items() if node.running]
    try:
        codes = cluster.stop(running, STOP_S)
    except NodeFailed as failed:
        _tell(failed.reason)
        return 1
    wrong = {number: code for number, code in codes.items() if code not in STOPPED}
    for number, code in wrong.items():
        _tell(f"node {number} stopped with exit code {code}; its log is {cluster.nodes[number].log_file}")
    return int(bool(wrong))


def _state(node: LocalNode) -> str:
    if node.running:
        assert node.process is not None
        return f"runs, pid {node.process.pid}"
    code = node.process.returncode if node.process is not None else 0
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has stopped with exit code {code}"


def _since(begun: float) -> int:
    return int((time.monotonic() - begun) * 1000)


def _ended(node: LocalNode) -> str:
    assert node.process is not None
    code = node.process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return (
        f"node {node.number} {how}; the others serve on. Its log is {node.log_file}, and"
        f" kafkad serve {node.properties} starts it again"
    )


def _last_line(log: str) -> str:
    return log.strip().rpartition("\n")[2].removeprefix("kafkad: ")


def _say_ready(cluster: LocalCluster, begun: float) -> None:
    about = f"cluster {cluster.cluster_id}, {len(cluster.nodes)} nodes, {_since(begun)} ms"
    print(f"kafkad is ready on {cluster.bootstrap} ({about})", flush=True)
    if sys.stdout.isatty():
        print(HINT.format(root=cluster.root, bootstrap=cluster.bootstrap), flush=True)


def _tell(text: str) -> None:
    print(f"kafkad: {text}", file=sys.stderr, flush=True)
