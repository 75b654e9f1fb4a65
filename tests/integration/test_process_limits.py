"""A broker of several workers where the system gives it little: one sentence, or a broker that lives on."""

import resource
import subprocess
import sys

import psutil
import pytest

from kafkad.testing import Broker
from tests.clients import wait_until
from tests.wire import Wire, batch, create_topic, produce


@pytest.mark.parametrize(
    ("limit", "sentence"), [("-n 120", "Too many open files"), ("-v 8000000", "no address space")]
)
def test_workers_that_cannot_share_anything_are_told_in_one_sentence(tmp_path, limit, sentence):
    command = [sys.executable, "-m", "kafkad", "serve", "--workers", "40", "--data-dir", tmp_path / "data",
               "--listen", "127.0.0.1:0"]  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    [said] = [line for line in done.stderr.splitlines() if line.startswith("kafkad: ")]
    assert "40 workers" in said and sentence in said
    assert "Traceback" not in done.stderr


def test_a_worker_without_descriptors_survives_the_death_of_another(tmp_path):
    """What it cannot look up about the dead one it hears from the successor."""
    with Broker(workers=2, data_dir=tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", partitions=4)
        pids = broker.worker_pids
        for me, other in ((0, 1), (1, 0)):
            survivor = psutil.Process(broker.worker_pids[me])
            limits = survivor.rlimit(resource.RLIMIT_NOFILE)
            survivor.rlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            broker.kill_worker(other)
            wait_until(lambda other=other: other in broker.worker_pids)
            assert survivor.is_running()
            survivor.rlimit(resource.RLIMIT_NOFILE, limits)
            with Wire(broker.bootstrap) as again:  # the successor is there before it is its turn
                wait_until(lambda: all(produce(again, "t", batch(b"x"), p).error_code == 0 for p in range(4)))
        assert set(broker.worker_pids) == set(pids)
        assert broker.running
