"""A real broker for tests: a process on a free port, ready in a fraction of a second, gone afterwards.

    from kafkad.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

With pytest installed, the fixtures `kafkad` (one broker a session) and `kafkad_broker` (one a test) are there
without an import.
"""

from kafkad.testing.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
