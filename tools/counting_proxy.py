"""A TCP proxy for a Kafka broker that counts requests by API and version, and can act on one of them.

    with CountingProxy() as proxy:                  # the broker must advertise its address
        broker = Broker(config={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.upstream = (host, port)
        proxy.requests                              # Counter({("Fetch", 17): 12, ...})
        proxy.at("Fetch", 3, broker.kill)           # before the third Fetch from now on reaches the broker

Both brokers of a comparison use the same proxy code, so their figures are comparable. Only the head of a
request is read: size (int32), API key (int16), version (int16), correlation id (int32), client id (int16
length, text). All bytes are forwarded unchanged. Requests with the client id `UNCOUNTED` prepare a test and
are not counted.

There is one thread per direction of a connection: it is a proxy for tests, not for load. If the broker is
gone, a client's connection is accepted and closed at once.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from kafkad.protocol import messages

UNCOUNTED = "setup"
CHUNK_BYTES = 1 << 18
HEAD = struct.Struct(">ihhih")  # size, key, version, correlation id, length of the client id


class RequestHeads:
    """Parses a connection's bytes, in pieces of any size, into (key, version, client id) of each request."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            wanted = HEAD.size
            if len(self._head) >= HEAD.size:
                wanted += max(0, HEAD.unpack_from(self._head)[4])
            step = min(wanted - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) < HEAD.size:
                continue
            size, key, version, _, name_size = HEAD.unpack_from(self._head)
            if len(self._head) < HEAD.size + max(0, name_size):
                continue
            yield key, version, self._head[HEAD.size :].decode(errors="replace")
            self._skip = 4 + size - len(self._head)
            self._head.clear()


class CountingProxy:
    """Listens on a free port of 127.0.0.1 from the start; `upstream` may be set, and change, later."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.upstream: tuple[str, int] | None = None
        self.requests: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._actions: list[list] = []  # [API, requests until then, action]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def at(self, api: str, nth: int, action: Callable[[], object]) -> None:
        """Run `action` once, before the nth counted request of this API from now on is forwarded."""
        with self._lock:
            self._actions.append([api, nth, action])

    def take(self) -> Counter[tuple[str, int]]:
        """Return the counts since the last call, and forget actions that have not run."""
        with self._lock:
            taken, self.requests = self.requests, Counter()
            self._actions.clear()
            return taken

    def close(self) -> None:
        self._listener.close()
        for each in list(self._open):
            close(each)

    def __enter__(self) -> CountingProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self.upstream or ("127.0.0.1", 1))
        except OSError:
            close(client)
            return
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(each)
        threading.Thread(target=self._pass_on, args=(broker, client), daemon=True).start()
        self._pass_on(client, broker, RequestHeads())

    def _pass_on(
        self, source: socket.socket, target: socket.socket, heads: RequestHeads | None = None
    ) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                for key, version, client_id in heads.feed(data) if heads else ():
                    if client_id != UNCOUNTED:
                        self._count(messages.NAMES.get(key, str(key)), version)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            close(each)
            self._open.discard(each)

    def _count(self, api: str, version: int) -> None:
        due = []
        with self._lock:
            self.requests[api, version] += 1
            for action in self._actions:
                if action[0] == api:
                    action[1] -= 1
                    if action[1] == 0:
                        due.append(action[2])
        for act in due:
            act()


def close(connection: socket.socket) -> None:
    """Close a socket, and wake the thread that reads from it, which close() alone does not."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()
