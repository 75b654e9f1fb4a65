"""A topic that is deleted gives its disk space back, whoever has read it. A producer goes on in the next
topic of that name."""

import os
import time
from contextlib import ExitStack

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests import clients
from tests.clients import admin_client, producer, wait_until
from tests.integration.test_workers import QUICK, read_values, wires_to_all
from tests.wire import batch, create_topic, produce


def open_files(pid: int, name: str) -> list[str]:
    """What a process has open of a topic, also where it is deleted."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if f"/{name}-" in path:
            found.append(path)
    return found


def test_no_worker_keeps_files_of_a_deleted_topic_open(tmp_path):
    config = {**QUICK, "log.segment.delete.delay.ms": 0}
    with Broker(workers=2, data_dir=tmp_path / "data", config=config) as broker, ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        create_topic(wires[0], "gone", partitions=4)
        for partition in range(4):
            assert produce(wires[1], "gone", batch(b"x" * 1000), partition).error_code == 0
            for wire in wires.values():
                assert read_values(wire, "gone", partition, 1) == [b"x" * 1000]
        for pid in broker.worker_pids.values():
            assert len(open_files(pid, "gone")) >= 4
        request = messages.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=10_000)
        assert wires[1].ask(request, 4).responses[0].error_code == 0
        for pid in broker.worker_pids.values():
            wait_until(lambda pid=pid: not open_files(pid, "gone"), timeout=10)


def test_a_producer_goes_on_at_once_when_its_topic_was_deleted_and_created_again():
    """Its sequence numbers go on, too, and the new log knows nothing of it."""
    offsets = []
    with Broker(workers=2) as broker:
        admin = admin_client(broker)
        writer = producer(broker, **{"enable.idempotence": True})
        for turn in range(3):
            clients.create_topic(broker, "again")
            begun = time.monotonic()
            for _ in range(5):
                writer.produce("again", b"x", on_delivery=lambda _, message: offsets.append(message.offset()))
                assert writer.flush(60) == 0
            assert turn == 0 or time.monotonic() - begun < 10
            admin.delete_topics(["again"])["again"].result(30)
    assert offsets == [0, 1, 2, 3, 4] * 3
