"""A real broker for tests: a process on a free port that is ready in a fraction of a second.

    from kafkad.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

With pytest, the fixtures `kafkad` (one broker per session) and `kafkad_broker` (one per test) need no import.
"""

from kafkad.testing.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
