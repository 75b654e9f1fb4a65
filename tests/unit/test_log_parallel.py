"""Jobs of a start or a stop in several threads, or in as many as the system gives: at least the caller's."""

import threading

import pytest

from kafkad.log.parallel import run_all
from tests.unit.log_world import batch
from tests.unit.test_log_dirs import DirsWorld


def refuse_after(monkeypatch, count: int) -> None:
    start, started = threading.Thread.start, []

    def limited(thread):
        if len(started) >= count:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_each_job_runs_once_and_says_what_it_raised():
    done, trouble = [], ValueError("the third")

    def job(number):
        if number == 2:
            raise trouble
        done.append(number)

    errors = run_all([lambda n=n: job(n) for n in range(50)], 4, "test")
    assert sorted(done) == [n for n in range(50) if n != 2]
    assert errors == [trouble if n == 2 else None for n in range(50)]
    assert run_all([], 4, "test") == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_start_goes_on_with_the_threads_that_there_are(tmp_path, monkeypatch, count):
    """The recovery raised RuntimeError ("can't start new thread"), which ended the start with a traceback."""
    world = DirsWorld(tmp_path, **{"num.recovery.threads.per.data.dir": "8"})
    for index in range(20):
        world.create("t", index).append_client(batch(3), 1_000)
    world.dirs.close(clean=False)
    refuse_after(monkeypatch, count)
    world.dirs = world.open()
    assert sorted(log.end_offset for log in world.dirs.all()) == [3] * 20


def test_an_interrupted_caller_waits_for_the_present_jobs_only():
    """A signal that comes while a start recovers logs: it ends when the logs in hand are done."""
    begun, go_on, ran = threading.Event(), threading.Event(), []

    class Interrupted(BaseException):
        pass

    def job(number):
        ran.append(number)
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(20)
            threading.Timer(0.1, go_on.set).start()
            raise Interrupted
        begun.set()
        assert go_on.wait(20)

    with pytest.raises(Interrupted):
        run_all([lambda n=n: job(n) for n in range(100)], 3, "test")
    assert len(ran) <= 3
    assert not [each for each in threading.enumerate() if each.name.startswith("test-")]
