"""The wall clock jumps; what measures how long something is ago does not notice."""

import os
import subprocess
import sys

import pytest

from tests.shifted_clock import HOUR_MS, ShiftedClock

SET_BACK = f"""
import os, sys
sys.path.insert(0, "tests/unit")
from pathlib import Path
from kafkad._native.log.cold_reads import resident
from tests.shifted_clock import ShiftedClock
import test_cold_reads as cold_reads
from reactor_world import World, batch, fetch
from tests.unit.test_partition_reader import Readable, TOPIC_ID

at, who, appends = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
clock = ShiftedClock(at / "clock")
world = World(str(at / "data"))
if who == "owner":
    cold_reads.fill(world, "t", 3)
    path, append = cold_reads.path_of(world, "t"), lambda: world.connect().produce("t", batch(1, 5000))
    old, end = 0, 3
else:
    readable = Readable(at / "other")
    world.table.add(readable.reader, "t", TOPIC_ID)
    path, append = readable.world.path(0, ".log"), lambda: readable.world.append(size=5000)
    old, end = 10, 30
    for offset in range(30):
        readable.world.append(size=100_000)
        world.connect().fetch([("t", 0, offset)])
for turn in range(1, appends + 2):
    clock.set_monotonic(turn * 10_000)
    clock.set_wall(turn * 10_000 - {HOUR_MS})
    if appends:
        append()
        world.poll()
        world.connect().fetch([("t", 0, end)])
cold_reads.put_on_disk(path)
world.reactor.hold_cold_reads(True)
world.connect().send_request(fetch([("t", 0, old)]), 12)
world.poll()
print("helper" if cold_reads.cold(world) else "loop")
"""


@pytest.mark.parametrize("who", ["owner", "other worker"])
@pytest.mark.parametrize("appends", [0, 3])
def test_old_data_does_not_count_as_just_written_after_the_clock_was_set_back(tmp_path, who, appends):
    """The loop would read it from the disk, and all other clients would wait."""
    clock = ShiftedClock(tmp_path / "clock")
    ran = subprocess.run(
        [sys.executable, "-c", SET_BACK, str(tmp_path), who, str(appends)],
        env={**os.environ, **clock.environment()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["helper"]


HELD = f"""
import sys
from pathlib import Path
from kafkad._native.shared.quota_table import QuotaTable
from tests.shifted_clock import ShiftedClock
from tests.unit.forked import Forked

ShiftedClock(Path(sys.argv[1])).set_wall({HOUR_MS})
table = QuotaTable(2)
table.enter(0)

def holder(child):
    assert table.lock()
    child.tell()
    child.hear()

process = Forked(holder)
process.hear()
assert table.claim(77, 0) == table.row_count - 1
process.kill()
assert table.claim(77, 0) != table.row_count - 1
print("done")
"""


def test_a_lock_of_a_stopped_worker_is_waited_for_by_the_monotonic_clock(tmp_path):
    """A wall clock that was set back, or differs from the kernel's as here, would make the wait an hour."""
    clock = ShiftedClock(tmp_path / "clock")
    ran = subprocess.run(
        [sys.executable, "-c", HELD, str(clock.path)],
        env={**os.environ, **clock.environment()},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
