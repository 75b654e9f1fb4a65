"""Short time slices: asked for by a worker, never against what an administrator chose."""

import os
import threading

import pytest

from kafkad._native.shared import timeslice
from kafkad.testing import Broker


def in_child(work):
    """What `work()` answers in a process of its own."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as told:
        answer = told.read()
    os.waitpid(child, 0)
    return eval(answer)


def told_by_kernel():
    return in_child(lambda: timeslice.shorten(200) and timeslice.current()[2]) == 200


def test_slices_are_short_and_nothing_else_changes():
    def work():
        os.nice(3)
        before = timeslice.current()
        assert timeslice.shorten(100)
        return before, timeslice.current()

    before, after = in_child(work)
    assert before[:2] == after[:2] == (os.SCHED_OTHER, before[1])
    assert after[2] == (100 if told_by_kernel() else before[2])


def test_threads_have_what_their_maker_has():
    def work():
        timeslice.shorten(100)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(timeslice.current()))
        thread.start()
        thread.join()
        return seen[0] == timeslice.current()

    assert in_child(work)


@pytest.mark.parametrize("policy", [os.SCHED_BATCH, os.SCHED_IDLE], ids=["batch", "idle"])
def test_a_policy_that_somebody_chose_stays(policy):
    def work():
        os.sched_setscheduler(0, policy, os.sched_param(0))
        before = timeslice.current()
        return timeslice.shorten(100), before == timeslice.current(), before[0]

    assert in_child(work) == (False, True, policy)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_of_a_broker_have_short_slices(tmp_path, workers):
    with Broker(workers=workers, data_dir=tmp_path / "data") as broker:
        pids = list(broker.worker_pids.values()) if workers > 1 else [broker.pid]
        seen = {timeslice.current(pid)[2] for pid in pids}
    assert seen == ({100} if told_by_kernel() else seen)
