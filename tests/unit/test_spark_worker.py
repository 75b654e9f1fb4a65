"""kafkad/spark/worker.py: in a process of its own, since what is frozen stays so."""

import subprocess
import sys

TASKS = """
import gc
from kafkad.spark.worker import task_begins
told = []
for _ in range(3):
    task_begins()
    told.append(gc.get_freeze_count())
    cycle = []
    cycle.append(cycle)
print(told[0], told[1] > 1000, told[2] == told[1], gc.collect() > 0)
"""


def test_from_the_second_task_on_what_was_imported_is_no_garbage_to_look_for():
    told = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["0", "True", "True", "True"]
