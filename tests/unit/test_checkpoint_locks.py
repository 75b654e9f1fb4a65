"""Checkpoints of several workers: no loop waits for the fsync of one, and none is lost (REVIEW D5 c)."""

import os
import threading
import time

import pytest

from kafkad.log import directory as directory_module
from kafkad.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from kafkad.log.directory import Directory

WAIT_S = 20


def worker(path, number: int, *keys) -> Directory:
    made = Directory(str(path), number, for_logs=True)
    made.shared, made.writer = True, number
    made.logs_by_key = {key: object() for key in keys}
    return made


@pytest.fixture
def held(monkeypatch):
    """(the first write of a checkpoint has come to its fsync, let it go on)."""
    reached, go_on = threading.Event(), threading.Event()
    write = directory_module.write_new

    def holding(path, data, *, sync):
        write(path, data, sync=sync)
        if not reached.is_set():
            reached.set()
            assert go_on.wait(WAIT_S)

    monkeypatch.setattr(directory_module, "write_new", holding)
    yield reached, go_on
    go_on.set()


def write(one: Directory, offsets) -> threading.Thread:
    one.serial += 1
    thread = threading.Thread(target=one.write, args=({HIGH_WATERMARKS: offsets}, one.serial))
    thread.start()
    return thread


def found(path):
    return read_offsets(os.path.join(path, HIGH_WATERMARKS))


def test_what_a_loop_writes_does_not_wait_for_the_fsync_of_a_checkpoint(tmp_path, held):
    """REVIEW D5 c: `forget` waited for the flock, and that for the disk."""
    first, second = worker(tmp_path, 0, ("a", 0)), worker(tmp_path, 1, ("b", 0))
    write_now(second, {("b", 0): 5})
    reached, go_on = held
    thread = write(first, {("a", 0): 7})
    assert reached.wait(WAIT_S)
    done = threading.Event()
    for one in (first, second):
        done.clear()
        threading.Thread(target=lambda one=one: (one.forget(("x", 0)), done.set()), daemon=True).start()
        assert done.wait(WAIT_S / 4), "the loop waits for the fsync"
    go_on.set()
    thread.join()
    assert found(tmp_path) == {("a", 0): 7, ("b", 0): 5}


def write_now(one: Directory, offsets) -> None:
    directory_module.write_offsets(os.path.join(one.path, HIGH_WATERMARKS), offsets)


def test_what_another_worker_wrote_during_the_fsync_is_kept(tmp_path, held):
    first, second = worker(tmp_path, 0, ("a", 0)), worker(tmp_path, 1, ("b", 0))
    reached, go_on = held
    thread = write(first, {("a", 0): 7})
    assert reached.wait(WAIT_S)
    write(second, {("b", 0): 5}).join()
    go_on.set()
    thread.join()
    assert found(tmp_path) == {("a", 0): 7, ("b", 0): 5}
    assert sorted(os.listdir(tmp_path)) == [HIGH_WATERMARKS]


def test_a_log_that_left_during_the_fsync_is_left_out(tmp_path, held):
    """Its name may be another partition's by now."""
    first = worker(tmp_path, 0, ("a", 0), ("gone", 0))
    reached, go_on = held
    thread = write(first, {("a", 0): 7, ("gone", 0): 9})
    assert reached.wait(WAIT_S)
    del first.logs_by_key["gone", 0]
    go_on.set()
    thread.join()
    assert found(tmp_path) == {("a", 0): 7}


def test_a_checkpoint_that_is_out_of_date_is_not_written(tmp_path, held):
    first = worker(tmp_path, 0, ("a", 0))
    reached, go_on = held
    thread = write(first, {("a", 0): 7})
    assert reached.wait(WAIT_S)
    newer = write(first, {("a", 0): 8})  # waits for its turn: both would write one temporary file
    go_on.set()
    thread.join()
    newer.join()
    assert found(tmp_path) == {("a", 0): 8}


def test_two_threads_of_a_worker_never_write_one_temporary_file(tmp_path, monkeypatch):
    """A checkpoint and the log starts of DeleteRecords: one renamed what the other had written half."""
    first = worker(tmp_path, 0, ("a", 0))
    first.written[LOG_START_OFFSETS] = {("a", 0): 1}
    log = first.logs_by_key["a", 0]
    write_new, at_once, busy = directory_module.write_new, [], threading.Lock()

    def writing(path, data, *, sync):
        at_once.append(not busy.acquire(blocking=False))
        write_new(path, data, sync=sync)
        time.sleep(0.05)
        if not at_once[-1]:
            busy.release()

    monkeypatch.setattr(directory_module, "write_new", writing)
    first.serial += 1
    threads = [
        threading.Thread(target=first.write, args=({LOG_START_OFFSETS: {("a", 0): 7}}, first.serial)),
        threading.Thread(target=first.write_log_starts, args=({("a", 0): (log, 7)}, True)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_once and not any(at_once)
    assert read_offsets(os.path.join(tmp_path, LOG_START_OFFSETS)) == {("a", 0): 7}


def test_a_young_checkpoint_is_read_once_until_another_has_its_name(tmp_path, monkeypatch):
    """In a burst of CreateTopics it was read again for each partition: quadratic."""
    reads = []
    monkeypatch.setattr(
        directory_module, "read_offsets", lambda path: reads.append(path) or read_offsets(path)
    )
    one = worker(tmp_path, 0)
    write_now(one, {("a", 0): 1})
    assert [one.may_name(("a", 0)) for _ in range(100)] == [True] * 100
    assert not any(one.may_name(("b", 0)) for _ in range(100))
    assert len(reads) == 1
    for number in range(50):  # in one tick, of one size, and each file has gone when the next one is made
        write_now(one, {("a" if number % 2 else "b", 0): 1})
        assert one.may_name(("a", 0)) == bool(number % 2)
    assert len(reads) == 51


def test_a_checkpoint_that_has_grown_old_is_not_held_open(tmp_path, monkeypatch):
    def opened():
        mine = os.path.join(str(tmp_path), "")  # other tests' directories may not have been collected yet
        found = [os.readlink(link) for link in links() if os.path.lexists(link)]
        return sum(path.startswith(mine) and HIGH_WATERMARKS in path for path in found)

    def links():
        return [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]

    one = worker(tmp_path, 0)
    for _ in range(3):
        write_now(one, {("a", 0): 1})
        assert one.may_name(("a", 0)) and opened() == 1
    monkeypatch.setattr(directory_module, "RACY_NS", 0)
    assert one.may_name(("a", 0)) and opened() == 0
    assert one.offsets_of(("a", 0)) == {HIGH_WATERMARKS: 1}
