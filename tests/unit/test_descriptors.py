"""Room in the table of descriptors, as the kernel tells it (FDSize of /proc/PID/status)."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kafkad.server.descriptors import ROOM
from kafkad.testing import Broker

SCRIPT = """
import os, resource, sys
from kafkad.server.descriptors import make_room
soft, hard = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
before = len(os.listdir("/proc/self/fd"))
make_room()
assert len(os.listdir("/proc/self/fd")) == before
print(open("/proc/self/status").read())
"""


def room_of(status):
    return int(re.search(r"FDSize:\s+(\d+)", status)[1])


HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MOST = ROOM if HARD == resource.RLIM_INFINITY else min(ROOM, HARD)


@pytest.mark.parametrize("soft", [MOST, 1_024])
def test_room_is_made_up_to_the_limit_and_nothing_stays_open(soft):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(soft)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert soft <= room_of(done.stdout) <= 2 * soft


@pytest.mark.parametrize("workers", [1, 2])
def test_each_worker_has_room_before_it_opens_logs(workers):
    """A table that grows under threads stops the loop for 10 to 30 ms at each doubling."""
    with Broker(workers=workers) as broker:
        for pid in broker.worker_pids.values():
            assert room_of(Path(f"/proc/{pid}/status").read_text()) >= MOST
