"""A cluster as a client sees it: its brokers, who leads which partition, who coordinates which group.

`Cluster` keeps one connection a broker, and what Metadata told. Errors that pass are tried again for
`retry_seconds`, with metadata asked anew in between.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafkad.client.connection import Connection, Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

T = TypeVar("T")

RETRY_PAUSE_S = 0.1
GROUP_KEY = 0


class Cluster:
    """Connections to a cluster's brokers. A context manager."""

    def __init__(
        self, bootstrap: str, client_id: str = "kafkad", timeout: float = 10.0, retry_seconds: float = 15.0
    ) -> None:
        self.bootstrap = [parse_address(part) for part in bootstrap.split(",") if part.strip()]
        self.client_id = client_id
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._first: Connection | None = None
        self._leaders: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, list[int]] = {}
        self._coordinators: dict[str, int] = {}

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
        """A connection to whichever broker of the bootstrap list answers."""
        if self._first is None:
            trouble: Exception = Unreachable("no bootstrap server was given")
            for host, port in self.bootstrap:
                try:
                    self._first = Connection(host, port, self.client_id, self.timeout)
                    break
                except Unreachable as unreachable:
                    trouble = unreachable
            else:
                raise trouble
        return self._first

    def broker(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is None:
            if node_id not in self._brokers:
                self.refresh([])
            if node_id not in self._brokers:
                raise KafkaError(
                    errors.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster's metadata"
                )
            host, port = self._brokers[node_id]
            connection = self._connections[node_id] = Connection(host, port, self.client_id, self.timeout)
        return connection

    def brokers(self) -> dict[int, tuple[str, int]]:
        if not self._brokers:
            self.refresh([])
        return dict(self._brokers)

    def forget(self) -> None:
        """Drop every connection and all that was learned: the next use learns it again."""
        self.close()
        self._leaders.clear()
        self._partitions.clear()
        self._coordinators.clear()

    # -- what Metadata tells -------------------------------------------------------------------------------

    def refresh(self, topics: list[str] | None, *, create: bool = False) -> Any:
        """Asks Metadata for these topics (None: all) and remembers; answers the response."""
        asked = None if topics is None else [messages.MetadataRequest.Topics(name=name) for name in topics]
        response = self.any().ask(messages.MetadataRequest(topics=asked, allow_auto_topic_creation=create))
        self._brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        for topic in response.topics:
            if topic.error_code:
                continue
            self._partitions[topic.name] = sorted(p.partition_index for p in topic.partitions)
            for partition in topic.partitions:
                self._leaders[topic.name, partition.partition_index] = partition.leader_id
        return response

    def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """The partition numbers of a topic. KafkaError as Metadata told it."""

        def look() -> list[int]:
            if topic not in self._partitions:
                told = self.refresh([topic], create=create).topics[0]
                if told.error_code:
                    raise KafkaError(told.error_code, f"topic {topic!r}")
            return self._partitions[topic]

        return self.retry(look) if create else look()

    def leader(self, topic: str, partition: int) -> Connection:
        """A connection to the partition's leader."""
        node = self._leaders.get((topic, partition), -1)
        if node < 0:
            self.refresh([topic])
            node = self._leaders.get((topic, partition), -1)
        if node < 0:
            raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return self.broker(node)

    def coordinator(self, group: str) -> Connection:
        """A connection to the group's coordinator."""
        node = self._coordinators.get(group)
        if node is None:
            connection = self.any()
            request = messages.FindCoordinatorRequest(key=group, key_type=GROUP_KEY, coordinator_keys=[group])
            version = connection.version_for(messages.FindCoordinatorRequest)
            if version < 4:
                request.coordinator_keys = []
            else:
                request.key = ""
            response = connection.ask(request, version)
            found = response.coordinators[0] if version >= 4 else response
            if found.error_code:
                raise KafkaError(found.error_code, found.error_message)
            node = found.node_id
            self._brokers[node] = (found.host, found.port)
            self._coordinators[group] = node
        return self.broker(node)

    def retry(self, attempt: Callable[[], T]) -> T:
        """`attempt()` again and again while its trouble is one that passes."""
        deadline = time.monotonic() + self.retry_seconds
        while True:
            try:
                return attempt()
            except (KafkaError, Unreachable) as trouble:
                passing = isinstance(trouble, Unreachable) or trouble.retriable
                if not passing or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
                self.forget()


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `host` or `[v6]:port`. Raises ValueError."""
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, "9092"
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]") or "127.0.0.1", int(port)
