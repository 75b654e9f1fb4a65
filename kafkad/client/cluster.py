"""A client's view of a cluster: brokers, leaders of partitions, coordinators of groups.

`Cluster` keeps one connection per broker and the last metadata. After a retriable error, it refreshes the
metadata and tries again, for `retry_seconds`.
"""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafkad.client.connection import Connection, Unreachable
from kafkad.client.security import Security
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

T = TypeVar("T")

DEFAULT_PORT = 9092
RETRY_PAUSE_S = 0.1
CREATION_SECONDS = 5.0  # how long an auto-created topic may take to appear
GROUP_KEY, TRANSACTION_KEY = 0, 1  # key types of FindCoordinator


class Cluster:
    """Connections to a cluster's brokers, as a context manager. Raise ValueError for an invalid
    `bootstrap`."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str = "kafkad",
        timeout: float = 30.0,
        retry_seconds: float = 15.0,
        security: Security | None = None,
    ) -> None:
        self.bootstrap = [parse_address(part) for part in bootstrap.split(",") if part.strip()]
        if not self.bootstrap:
            raise ValueError("no address is given")
        self.client_id = client_id
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        self.security = security
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._first: Connection | None = None
        self._leaders: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, list[int]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in [*self._connections.values(), *([self._first] if self._first else [])]:
            connection.close()
        self._connections.clear()
        self._first = None

    # -- connections ---------------------------------------------------------------------------------------

    def any(self) -> Connection:
        """Return a connection to the first broker that answers, of the bootstrap list and the known
        brokers."""
        if self._first is None or self._first.closed:
            trouble: Exception | None = None
            for host, port in dict.fromkeys([*self.bootstrap, *self._brokers.values()]):
                try:
                    self._first = self.connect(host, port)
                    break
                except Unreachable as unreachable:
                    trouble = trouble or unreachable
            else:
                assert trouble is not None
                raise trouble
        return self._first

    def connect(self, host: str, port: int) -> Connection:
        """Return a new connection that the caller owns."""
        return Connection(host, port, self.client_id, self.timeout, self.security)

    def broker(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is None or connection.closed:
            host, port = self.address_of(node_id)
            connection = self._connections[node_id] = self.connect(host, port)
        return connection

    def address_of(self, node_id: int) -> tuple[str, int]:
        if node_id not in self._brokers:
            self.refresh([])
        if node_id not in self._brokers:
            raise KafkaError(
                errors.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster's metadata"
            )
        return self._brokers[node_id]

    def brokers(self) -> dict[int, tuple[str, int]]:
        if not self._brokers:
            self.refresh([])
        return dict(self._brokers)

    def forget(self) -> None:
        """Drop all connections and all metadata except the brokers' addresses. The next use fetches it
        again."""
        self.close()
        self._leaders.clear()
        self._partitions.clear()
        self._coordinators.clear()

    # -- metadata ------------------------------------------------------------------------------------------

    def refresh(self, topics: list[str] | None, *, create: bool = False) -> Any:
        """Fetch and remember the metadata of these topics (None: all). Return the response."""
        asked = None if topics is None else [messages.MetadataRequest.Topics(name=name) for name in topics]
        connection = self.any()
        version = connection.version_for(messages.MetadataRequest, 12)
        request = messages.MetadataRequest(topics=asked)
        if version >= 4:
            request.allow_auto_topic_creation = create
        response = connection.ask(request, version)
        self._brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        for topic in response.topics:
            if topic.error_code:
                continue
            self._partitions[topic.name] = sorted(p.partition_index for p in topic.partitions)
            for partition in topic.partitions:
                self._leaders[topic.name, partition.partition_index] = partition.leader_id
        return response

    def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """Return the partition numbers of a topic. With `create`, the broker may create the topic first.
        Raise KafkaError with the error of the Metadata response.
        """

        def look() -> list[int]:
            if topic not in self._partitions:
                told = self.refresh([topic], create=create).topics[0]
                if told.error_code:
                    raise KafkaError(told.error_code, f"topic {topic!r}")
            return self._partitions[topic]

        return self.retry(look, CREATION_SECONDS) if create else look()

    def leader(self, topic: str, partition: int) -> Connection:
        """Return a connection to the partition's leader."""
        node = self._leaders.get((topic, partition), -1)
        if node < 0:
            told = self.refresh([topic]).topics[0]
            if told.error_code:
                raise KafkaError(told.error_code, f"topic {topic!r}")
            node = self._leaders.get((topic, partition), -1)
        if node < 0:
            exists = partition in self._partitions[topic]
            code = errors.LEADER_NOT_AVAILABLE if exists else errors.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"{topic}-{partition}")
        return self.broker(node)

    def by_leader(self, topic: str, partitions: list[int]) -> list[tuple[Connection, list[int]]]:
        """Group these partitions by the connection to their leader."""
        found: dict[int, tuple[Connection, list[int]]] = {}
        for partition in partitions:
            connection = self.leader(topic, partition)
            found.setdefault(id(connection), (connection, []))[1].append(partition)
        return list(found.values())

    def coordinator_of(self, name: str, kind: int = GROUP_KEY) -> int:
        """Return the id of the broker that coordinates a group or, with TRANSACTION_KEY, a transactional
        id."""
        node = self._coordinators.get((kind, name))
        if node is None:
            connection = self.any()
            version = connection.version_for(messages.FindCoordinatorRequest)
            if version >= 4:
                request = messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
            else:
                request = messages.FindCoordinatorRequest(key=name, key_type=kind)
            response = connection.ask(request, version)
            found = response.coordinators[0] if version >= 4 else response
            if found.error_code:
                what = "group" if kind == GROUP_KEY else "transactional id"
                raise KafkaError(found.error_code, found.error_message or f"{what} {name!r}")
            node = found.node_id
            self._brokers[node] = (found.host, found.port)
            self._coordinators[kind, name] = node
        return node

    def coordinator(self, name: str, kind: int = GROUP_KEY) -> Connection:
        """Return a connection to the coordinator of a group or a transactional id."""
        return self.broker(self.coordinator_of(name, kind))

    def retry(self, attempt: Callable[[], T], seconds: float | None = None) -> T:
        """Repeat `attempt()` while it raises retriable errors."""
        deadline = time.monotonic() + (self.retry_seconds if seconds is None else seconds)
        while True:
            try:
                return attempt()
            except (KafkaError, Unreachable) as trouble:
                if not passes(trouble) or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
                self.forget()


def passes(trouble: KafkaError | Unreachable) -> bool:
    """Return whether the error is retriable."""
    return isinstance(trouble, Unreachable) or trouble.retriable


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port`, `host` or `[v6]:port`, optionally after a protocol such as `SSL://`. Raise
    ValueError."""
    text = re.sub(r"^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://", "", text.strip())
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or "/" in host:
        raise ValueError(f"{text!r} is not of the form host:port")
    return host.strip("[]") or "127.0.0.1", int(port)
