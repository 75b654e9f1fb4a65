"""What a broker's memory is while a log is cleaned, and afterwards."""

import time

import psutil
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafkad.testing import Broker
from tests.clients import WAIT_S, create_topic, producer, wait_until

MIB = 1 << 20
BUFFER = 24 * MIB
RECORDS = 1_000_000  # of as many keys, of which the buffer takes 943,718


def resident(broker: Broker) -> int:
    process = psutil.Process(broker.pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def settled(broker: Broker) -> int:
    """When it has not changed by a MiB for a second: the heap is trimmed once a second at most."""
    deadline = time.monotonic() + WAIT_S
    seen = [resident(broker)]
    while len(seen) < 11 or max(seen[-11:]) - min(seen[-11:]) > MIB:
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
        seen.append(resident(broker))
    return seen[-1]


def test_a_cleaning_takes_its_buffer_and_gives_it_back(tmp_path):
    config = {
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.dedupe.buffer.size": BUFFER,
        "log.cleaner.io.max.bytes.per.second": 40_000_000,  # for long enough to look at it
    }
    with Broker(data_dir=tmp_path / "data", config=config) as broker:
        topic = create_topic(
            broker,
            "keys",
            1,
            {"internal.segment.bytes": "4000000", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"},
        )
        client = producer(broker, **{"linger.ms": 20, "batch.num.messages": 100_000, "batch.size": 900_000})
        for number in range(RECORDS):
            while True:
                try:
                    client.produce(topic, b"value", b"%d" % number)
                    break
                except BufferError:
                    client.poll(0.1)
        assert client.flush(60) == 0
        time.sleep(1.1)
        client.produce(topic, b"value", b"last")  # a new segment
        assert client.flush(60) == 0
        before = settled(broker)
        compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[compact])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)
        most = 0
        deadline = time.monotonic() + 120
        while broker.log.count("is clean up to offset") < 2:
            assert time.monotonic() < deadline
            most = max(most, resident(broker))
            time.sleep(0.01)
        assert f"is clean up to offset {BUFFER // 24 * 9 // 10}:" in broker.log  # the buffer was full
        assert BUFFER * 0.8 < most - before < BUFFER + 8 * MIB, (before, most)
        wait_until(lambda: resident(broker) - before < 5 * MIB)
