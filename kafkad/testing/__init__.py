"""A real broker for tests: a process on a free port that is ready in a fraction of a second.

    from kafkad.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

`Cluster(3)` is three of them with replicated topics, and a test may kill one. With pytest, the fixtures
`kafkad` (one broker per session), `kafkad_broker` (one per test) and `kafkad_cluster` (three nodes, for one
test) need no import.
"""

from typing import TYPE_CHECKING, Any

from kafkad.testing.broker import Broker, BrokerFailed

if TYPE_CHECKING:
    from kafkad.testing.cluster import Cluster

__all__ = ["Broker", "BrokerFailed", "Cluster"]


def __getattr__(name: str) -> Any:
    """A cluster takes more modules than a broker; they are imported when they are asked for."""
    if name == "Cluster":
        from kafkad.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__} has no attribute {name}")
