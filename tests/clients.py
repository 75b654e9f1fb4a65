"""librdkafka in a few verbs, for the tests: produce, read, wait. Whatever goes wrong fails the test.

`broker` has an address, and perhaps a login (tests/logins.py)."""

import os
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.logins import librdkafka

WAIT_S = 30


def python_path(directory):
    """The environment of a broker whose Python finds what is in `directory` first: a sitecustomize.py."""
    return {"PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])}


def admin_client(broker):
    return AdminClient(librdkafka(broker))


def producer(broker, **config):
    return Producer({**librdkafka(broker), "linger.ms": 5, **config})


def produce(broker, topic, records, **config):
    """Writes (key, value) pairs and returns the delivered messages in order; no failure is let pass."""
    delivered = []

    def on_delivery(error, message):
        assert error is None, error
        delivered.append(message)

    client = producer(broker, **config)
    for key, value in records:
        client.produce(topic, value=value, key=key, on_delivery=on_delivery)
        client.poll(0)
    assert client.flush(WAIT_S) == 0
    return delivered


def consumer(broker, group="reader", **config):
    return Consumer(
        {
            **librdkafka(broker),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            **config,
        }
    )


def read(client, count, timeout=WAIT_S):
    """The next `count` messages; fails rather than waits for ever."""
    messages = []
    deadline = time.monotonic() + timeout
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages after {timeout} s"
        for message in client.consume(min(1000, count - len(messages)), timeout=0.5):
            assert not message.error(), message.error()
            messages.append(message)
    return messages


def read_partition(broker, topic, count, partition=0, offset=OFFSET_BEGINNING, **config):
    client = consumer(broker, **config)
    client.assign([TopicPartition(topic, partition, offset)])
    try:
        return read(client, count)
    finally:
        client.close()


def wait_until(condition, timeout=WAIT_S):
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
    return result


def create_topic(broker, name, partitions=1, config=None):
    admin = admin_client(broker)
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(WAIT_S)
    return name
