"""Connections of this process to clusters, kept from task to task.

Spark's Python workers outlive their tasks, and a handshake costs more than a small range. So when a reader is
done, its `Session` (the connections to one cluster, its metadata, and a receive buffer) returns to the pool,
and the next reader of the same cluster with the same settings uses it. One reader at a time has a session, so
nothing in it is shared.

Beware: a forked child must not use its parent's sockets. The pool knows the process that filled it, and
starts empty in another one. A session in an unknown state, or with an answer in flight, is closed by its
reader."""

import os
from collections.abc import Mapping
from typing import Any

from kafkad.client.cluster import Cluster
from kafkad.client.fetch import topic_id_of
from kafkad.client.security import Security
from kafkad.protocol.errors import KafkaError

REQUEST_TIMEOUT_MS = 30_000  # Kafka's request.timeout.ms
BUFFER_KEPT_MAX = 32 << 20  # a larger receive buffer, allocated for one huge batch, is not kept
IDLE_SESSIONS_MAX = 4  # per cluster and process; a task needs one, or one for each side of a join

Key = tuple[str, tuple[tuple[str, str], ...], float]

_idle: dict[Key, list["Session"]] = {}
_filled_by = os.getpid()


class Session:
    """A cluster's connections, for one reader at a time."""

    def __init__(self, key: Key, cluster: Cluster) -> None:
        self.key = key
        self.cluster = cluster
        self.buffer = bytearray()

    def topic_id(self, topic: str) -> bytes | None:
        """Refresh Metadata, also for the leaders. None from a broker without ids (before 2.8). Raises the
        broker's KafkaError."""
        response = self.cluster.refresh([topic])
        told = response.topics[0]
        if told.error_code:
            raise KafkaError(told.error_code, f"topic {topic!r}")
        return topic_id_of(response, topic)


def borrow(bootstrap: str, client_config: Mapping[str, str], timeout_s: float) -> Session:
    """Return a session of this process, perhaps a used one. `client_config`: Kafka's client options;
    client.id and the security options distinguish sessions. Raises ValueError for an invalid setting."""
    global _filled_by
    if _filled_by != os.getpid():
        _idle.clear()  # closes this process's copies of the sockets only
        _filled_by = os.getpid()
    key = (bootstrap, tuple(sorted((str(k), str(v)) for k, v in client_config.items())), timeout_s)
    try:
        return _idle[key].pop()
    except (KeyError, IndexError):
        pass
    return Session(key, cluster_of(bootstrap, client_config, timeout_s))


def cluster_of(bootstrap: str, client_config: Mapping[str, Any], timeout_s: float = 30.0) -> Cluster:
    """Return a cluster connected with Kafka's client options. Raises ValueError for an invalid setting."""
    request_timeout_s = int(client_config.get("request.timeout.ms", REQUEST_TIMEOUT_MS)) / 1000
    return Cluster(
        bootstrap,
        client_id=str(client_config.get("client.id", "kafkad-spark")),
        timeout=min(request_timeout_s, timeout_s),
        security=Security.of(client_config),
    )


def give_back(session: Session) -> None:
    """Keep it for the next reader; `session` must not wait for an answer."""
    spare = _idle.setdefault(session.key, [])
    if len(session.buffer) > BUFFER_KEPT_MAX:
        session.buffer = bytearray()
    if _filled_by == os.getpid() and len(spare) < IDLE_SESSIONS_MAX:
        spare.append(session)
    else:
        session.cluster.close()
