"""A topic that is deleted gives its disk space back, whoever has read it."""

import os
from contextlib import ExitStack

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.clients import wait_until
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
