"""`kafkad dev`: a cluster of several nodes on this machine, for development (local_cluster).

This process starts the nodes, waits for a signal, and stops them. It reports a node that ends in between; the
others serve on, and it does not start the node again: what happens then is what one wants to see."""

import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from kafkad.cli.local_cluster import LocalCluster, LocalNode, NodeFailed
from kafkad.cli.main import end
from kafkad.cli.serve import WORKERS_MAX, parse_overrides
from kafkad.log.formatting import FormatRefused

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_S: Final = 60.0
STOPPED: Final = (0, -signal.SIGTERM)  # the second: it had not begun to run
HINT: Final = """
  Its data and its logs are in {root}; the next start goes on with them. Ctrl-C stops it.
  Try, in another terminal:
    export KAFKAD_BOOTSTRAP_SERVER={bootstrap}
    kafkad topics --create --topic greetings --partitions 3
    kafkad cluster status
    kill -9 {pid}        # node {number}; the others take over what it leads
"""


class Interrupted(Exception):
    """A signal came before the cluster was ready."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(2, 15), default=3, show_default=True, help="Number of nodes.")
@click.option("--data-dir", metavar="D", default="kafkad-cluster", show_default=True, help="Of all nodes.")
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
    log (stderr). The next start goes on with the same data and ports.

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
        code = _watch(cluster, signals)
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

    def wait(self) -> None:
        select.select([self._reader], [], [])
        self._reader.recv(4096)


def _watch(cluster: LocalCluster, signals: Signals) -> int:
    """Report the nodes that end, until a signal comes or none is left; the exit code."""
    running = list(cluster.nodes.values())
    while not signals.ended:
        for node in [each for each in running if not each.running]:
            running.remove(node)
            _tell(_ended(node))
        if not running:
            _tell("all nodes have ended")
            return 1
        signals.wait()
    return _stop(cluster)


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
    milliseconds = int((time.monotonic() - begun) * 1000)
    about = f"cluster {cluster.cluster_id}, {len(cluster.nodes)} nodes, {milliseconds} ms"
    print(f"kafkad is ready on {cluster.bootstrap} ({about})", flush=True)
    if sys.stdout.isatty():
        first = cluster.nodes[1]
        assert first.process is not None
        hint = HINT.format(
            root=cluster.root, bootstrap=cluster.bootstrap, pid=first.process.pid, number=first.number
        )
        print(hint, flush=True)


def _tell(text: str) -> None:
    print(f"kafkad: {text}", file=sys.stderr, flush=True)
