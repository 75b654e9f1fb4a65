"""Leaders with followers under every order of events that a seed makes (replication_world)."""

import shutil
import tempfile

import pytest

from tests.sim.replication_world import run

STEPS = 600


def ran(seed, steps=STEPS):
    directory = tempfile.mkdtemp(dir="/dev/shm")
    try:
        return run(seed, directory, steps)
    finally:
        shutil.rmtree(directory)


@pytest.mark.soak
def test_what_all_acknowledged_is_never_lost_and_all_catch_up(seeds):
    acked, wanted = 0, seeds(100, 5_000)
    for seed in wanted:
        try:
            acked += len(ran(seed).acked)
        except AssertionError as trouble:
            raise AssertionError(f"seed {seed}: {trouble}") from trouble
    assert acked > 2.4 * len(wanted)
