"""kafkad/spark/worker.py: in a process of its own, since what is frozen stays so."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from kafkad.spark import plain_errors
from kafkad.spark.worker import end_in_silence

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


LET_GO = """
import socket
from pyspark import daemon
from kafkad.spark.worker import end_in_silence

def let_go():
    ours, theirs = socket.socketpair()
    theirs.close()
    try:
        return daemon.worker(ours, True)
    except BrokenPipeError:
        return "a traceback"

print(let_go())
end_in_silence(daemon)
print(let_go())
"""


def test_a_worker_that_spark_lets_go_of_tells_no_traceback():
    told = subprocess.run(
        [sys.executable, "-c", LET_GO],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},  # as Spark has it
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == ["a traceback", "1"]
    assert not told.stderr


def test_what_is_no_worker_of_spark_is_left_alone():
    nameless = ModuleType("__main__")
    del nameless.__spec__  # as an interpreter inside of another program has it
    for module in (sys.modules["__main__"], nameless):
        before = dict(vars(module))
        end_in_silence(module)
        assert vars(module) == before


def test_errors_for_users_hide_the_traceback_once(monkeypatch):
    """HUNTS U9: the sentence stood at the end of a traceback."""
    monkeypatch.delenv(plain_errors.HIDE, raising=False)
    with pytest.raises(ValueError), plain_errors.plain_errors():
        raise ValueError("no worker of PySpark's")
    assert plain_errors.HIDE not in os.environ
    monkeypatch.setattr(plain_errors, "is_worker", lambda: True)
    with pytest.raises(ValueError), plain_errors.plain_errors():
        raise ValueError("for the user")
    assert os.environ[plain_errors.HIDE]
    with pytest.raises(AssertionError), plain_errors.plain_errors():
        assert plain_errors.HIDE not in os.environ
        raise AssertionError("a defect")
    assert plain_errors.HIDE not in os.environ
    monkeypatch.setenv(plain_errors.HIDE, "1")  # the user's own setting stays
    with pytest.raises(ValueError), plain_errors.plain_errors():
        raise ValueError("for the user")
    with plain_errors.plain_errors():
        assert os.environ[plain_errors.HIDE]
