"""Clients that ping all workers of a broker while somebody else does his worst, in a process of their own.

They ask for ApiVersions, produce and fetch a record, and ask a coordinator; each worker is asked for its own
partition and for another's. `worst` is the longest wait since `begin`, without the time in which a thread
that was ready to run got no core: a machine that does other things breaks no bound. That time is the
kernel's own figure (/proc/.../schedstat) for the event loop of each worker and for the pinging thread.

What remains is the broker's: CPU time of its loops, and their waits for disks and locks."""

import contextlib
import multiprocessing
import time
from pathlib import Path
from typing import Any

from kafkad.protocol import messages
from tests.tls_wire import TlsWire, trusting
from tests.wire import Wire, batch, produce_request

TOPIC = "neighbours"
PARTITIONS = 4
PAUSE_S = 0.001
STOPPED_S = 30.0  # then the broker is taken for stopped


class Neighbours:
    """`begin()`, then `worst()`: (seconds, of which ping) since. They ping in between only. `tls`: a TLS
    port, and the directory of tests/certificates.py; as many ping there, too."""

    def __init__(self, bootstrap: str, pids: list[int], tls: tuple[int, Path] | None = None) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_serve, args=(bootstrap, pids, theirs, tls), daemon=True)
        self.process.start()
        self._told()

    def begin(self) -> None:
        self.pipe.send("begin")
        self._told()  # what came before

    def worst(self) -> tuple[float, str]:
        self.pipe.send("worst")
        return self._told()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send("end")
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()

    def _told(self) -> Any:
        assert self.pipe.poll(STOPPED_S + 10), "the broker answers nobody"
        told = self.pipe.recv()
        if isinstance(told, Exception):
            raise told
        return told


def _serve(bootstrap: str, pids: list[int], pipe: Any, tls: tuple[int, Path] | None) -> None:
    try:
        pings = Pings(bootstrap, pids, tls)
        pipe.send(None)
        pinging = False
        while True:
            if pinging and not pipe.poll():
                pings.once()
                time.sleep(PAUSE_S)
                continue
            asked = pipe.recv()
            if asked == "end":
                return
            pings.once()  # each of them has been answered since
            pipe.send(pings.worst)
            pings.worst = (0.0, "")
            pinging = asked == "begin"
    except Exception as trouble:
        pipe.send(AssertionError(f"a neighbour was not served: {trouble!r}"))


class Pings:
    def __init__(self, bootstrap: str, pids: list[int], tls: tuple[int, Path] | None) -> None:
        self.worst = (0.0, "")
        paths = [f"/proc/{pid}/task/{pid}/schedstat" for pid in pids]
        self.delays = [Path(path) for path in (*paths, "/proc/thread-self/schedstat")]
        record = bytes(batch(b"ping"))
        self.asked: list[tuple[str, Wire, Any, int]] = []
        # a connection goes to the worker that has fewest
        wires = [Wire(bootstrap, STOPPED_S) for _ in pids]
        if tls is not None:
            wires += [TlsWire(tls[0], trusting(tls[1]), STOPPED_S) for _ in pids]
        for number, wire in enumerate(wires):
            name = f"connection {number}"
            self.asked.append((f"{name}: ApiVersions", wire, messages.ApiVersionsRequest(), 0))
            for partition in range(PARTITIONS):
                self.asked.append(
                    (
                        f"{name}: Produce to {partition}",
                        wire,
                        produce_request(TOPIC, record, partition),
                        9,
                    )
                )
            for partition in range(PARTITIONS):
                self.asked.append((f"{name}: Fetch of {partition}", wire, fetch_request(partition), 4))
            for group in ("a", "b", "c"):
                request = messages.HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
                self.asked.append((f"{name}: Heartbeat of {group}", wire, request, 0))

    def once(self) -> None:
        before = self.delayed()
        begun = time.monotonic()
        for name, wire, request, version in self.asked:
            wire.ask(request, version)
            ended = time.monotonic()
            delayed = self.delayed()
            waited = ended - begun - (delayed - before)
            if waited > self.worst[0]:
                self.worst = (waited, name)
            before, begun = delayed, ended

    def delayed(self) -> float:
        """Seconds that all these threads were ready to run, and did not."""
        total = 0
        for file in self.delays:
            total += int(file.read_bytes().split()[1])
        return total / 1e9


def fetch_request(partition: int) -> Any:
    topics = messages.FetchRequest.Topics
    asked = topics.Partitions(partition=partition, fetch_offset=0, partition_max_bytes=100)
    return messages.FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=100, topics=[topics(topic=TOPIC, partitions=[asked])]
    )
