"""A steady load of Produces and Fetches makes no Python objects, in one process and across workers."""

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

from bench.native import command
from kafkad.testing import Broker
from tests.clients import python_path
from tests.wire import Wire, create_topic

OBSERVED = Path(__file__).parent.parent / "observed"
WARM_REQUESTS = 20_000
GROWTH_MAX = 100  # blocks: a timer that happens to be set, a background task that happens to run
SECONDS_MAX = 300
KEYS = (0, 1)  # Produce, Fetch
PYTHON = ("dispatched", "python_appends", "python_reads", "accepted", "closed")  # what takes the GIL


def observe(pids):
    """The sum over the processes of a broker."""
    total = dict.fromkeys(("blocks", "requests", "forwarded", *PYTHON), 0)
    for pid in pids:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(f"\0kafkad-observed-{pid}")
            told = json.loads(b"".join(iter(lambda: asking.recv(1 << 16), b"")))
        total["requests"] += sum(told["requests"].get(str(key), 0) for key in KEYS)
        total["forwarded"] += told["mail_out"]
        for name in ("blocks", *PYTHON):
            total[name] += told[name]
    return total


def observe_until(pids, load, requests):
    while (seen := observe(pids))["requests"] < requests:
        assert load.poll() is None, load.communicate()
        time.sleep(0.05)
    return seen


@pytest.mark.soak
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("workers", [1, 2])
def test_allocated_blocks_stay_flat_under_a_steady_load(tmp_path, rounds, workers):
    requests = rounds(100_000, 1_000_000)
    env = {**python_path(OBSERVED), "KAFKAD_OBSERVED": str(workers)}
    options = {
        "topic": "t", "partitions": 4, "producers": 4, "consumers": 4, "in_flight": 5, "records": 1,
        "value_size": 100, "shared": 1, "fetch_all": 1, "max_wait_ms": 100, "seconds": SECONDS_MAX,
    }  # fmt: skip
    with Broker(workers=workers, data_dir=tmp_path / "data", env=env) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
        load = subprocess.Popen(
            command("run", {"port": broker.port, **options}), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            pids = broker.worker_pids.values()
            warm = observe_until(pids, load, WARM_REQUESTS)
            end = observe_until(pids, load, warm["requests"] + requests)
        finally:
            load.kill()
            load.communicate()
    assert end["blocks"] - warm["blocks"] < GROWTH_MAX
    assert [end[name] - warm[name] for name in PYTHON] == [0] * len(PYTHON)
    assert (end["forwarded"] - warm["forwarded"] > requests / 10) == (workers > 1)
