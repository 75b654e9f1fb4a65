"""Clients that ping a broker while something else is asked of it: how long do the others wait?

They run in a process of their own, so that the client under test does not delay them. A busy machine makes
every wait longer, so there are two figures: the worst wait on the clock, and the worst wait without the time
in which the pinging process, or the event loop that serves it, was ready to run but had no core
(/proc/PID/schedstat). The second figure still includes all that the loop computes, and all that it waits for,
such as a disk; tests hold it to a bound."""

import multiprocessing
import os
import time
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from kafkad.protocol import messages
from tests.wire import Wire

CONNECTIONS = 4  # enough to meet two workers
ROUND_S = 0.002


class Others:
    """Pings `bootstrap` until `close`. `pids`: the workers whose time without a core is left out."""

    def __init__(self, bootstrap: str, pids: Collection[int] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = context.Process(target=_ping, args=(bootstrap, list(pids), theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def worst(self) -> tuple[float, float]:
        """The worst wait since the last call, in seconds: (on the clock, less what it waited for a core)."""
        self.pipe.send("tell")
        return self.pipe.recv()

    def worst_wait(self) -> float:
        return self.worst()[0]

    def close(self) -> None:
        with suppress(OSError):
            self.pipe.send("stop")
        self.process.join()
        self.pipe.close()


class _Server:
    """The event loop that serves one connection."""

    def __init__(self, wire: Wire, pids: Collection[int]) -> None:
        port = wire.socket.getsockname()[1]
        serving = [
            pid
            for pid in pids
            if any(
                each.raddr and each.raddr.port == port for each in psutil.Process(pid).net_connections("tcp")
            )
        ]
        self.path = Path(f"/proc/{serving[0]}/task/{serving[0]}/schedstat") if serving else None

    def without_core(self) -> float:
        return _without_core(self.path) if self.path else 0.0


def _without_core(path: Path) -> float:
    try:
        return int(path.read_text().split()[1]) / 1e9
    except OSError:  # the process is gone
        return 0.0


def _ping(bootstrap: str, pids: list[int], pipe: Connection) -> None:
    wires = [Wire(bootstrap, 300) for _ in range(CONNECTIONS)]
    request = messages.ApiVersionsRequest()
    for wire in wires:
        wire.ask(request, 0)  # a connection that was handed from worker to worker is where it stays
    served = [(wire, _Server(wire, pids)) for wire in wires]
    own = Path(f"/proc/{os.getpid()}/schedstat")
    worst = least = 0.0
    pipe.send("ready")
    with suppress(EOFError, ConnectionError):
        while True:
            for wire, server in served:
                without_core = _without_core(own) + server.without_core()
                begun = time.monotonic()
                wire.ask(request, 0)
                waited = time.monotonic() - begun
                worst = max(worst, waited)
                if waited > least:
                    without_core = _without_core(own) + server.without_core() - without_core
                    least = max(least, waited - without_core)
            if pipe.poll(ROUND_S):
                if pipe.recv() == "stop":
                    return
                pipe.send((worst, least))
                worst = least = 0.0
