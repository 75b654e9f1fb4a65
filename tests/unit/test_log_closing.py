"""HUNTS S8. A clean stop synced eight times a log, one after the other: 16 s for 2,000 logs on ext4. Now
several threads sync, what the logs have in common is synced once, and a failure stays with its log."""

import errno
import os
import threading
import time

import pytest

from kafkad.config.topic import TopicConfig
from kafkad.log import closing
from kafkad.log.closing import close_logs
from kafkad.log.log import Log
from kafkad.log.removal import Removals
from tests.unit.log_world import TOPIC_ID, ManualScheduler, batch

COUNT = 20


def open_log(root, number, *, clean=False):
    log = Log.open(
        str(root / f"t-{number}"), "t", number, TopicConfig(),
        now_ms=1_000, clean=clean, scheduler=ManualScheduler(), topic_id=TOPIC_ID,
    )  # fmt: skip
    log.set_leader_epoch(0)
    return log


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Logs with fresh data, in groups of which there are several."""
    monkeypatch.setattr(closing, "GROUP", 8)
    logs = [open_log(tmp_path, number) for number in range(COUNT)]
    for log in logs:
        log.append_client(batch(3), 1_000)
    return logs


def assert_whole(logs, root):
    for number, log in enumerate(logs):
        assert log.closed and log.recovery_point == 3
        again = open_log(root, number, clean=True)
        assert again.end_offset == 3
        again.close()


def test_many_logs_are_synced_by_several_threads_and_their_directory_once(logs, tmp_path, monkeypatch):
    fdatasync, fsync, sync_directory = os.fdatasync, os.fsync, closing.sync_directory
    threads, synced = set(), []

    def slow_fdatasync(fd):
        threads.add(threading.get_ident())
        time.sleep(0.001)
        fdatasync(fd)

    def noted_fsync(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def noted_sync_directory(path):
        synced.append(path)
        sync_directory(path)

    monkeypatch.setattr(os, "fdatasync", slow_fdatasync)
    with monkeypatch.context() as noting:
        noting.setattr(os, "fsync", noted_fsync)
        noting.setattr(closing, "sync_directory", noted_sync_directory)
        assert list(close_logs(logs, clean=True)) == []
    assert len(threads) > 2
    assert str(tmp_path) in synced and set(map(str, tmp_path.glob("t-*"))) < set(synced)
    assert synced.count(str(tmp_path)) <= 2  # once by us, where sync_directory calls os.fsync
    assert_whole(logs, tmp_path)


def test_a_log_whose_file_cannot_be_synced_is_the_only_one_that_is_not_closed_cleanly(
    logs, tmp_path, monkeypatch
):
    offline = []
    for log in logs:
        log.on_offline = lambda failed, error: offline.append(failed)
    fdatasync = os.fdatasync

    def failing(fd):
        if "/t-11/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", failing)
    [(failed, trouble)] = close_logs(logs, clean=True)
    assert failed is logs[11] and "Input/output error" in str(trouble)
    assert offline == [logs[11]]
    assert failed.closed and failed.recovery_point < 3
    assert all(log.recovery_point == 3 for log in logs if log is not failed)


def test_a_shortage_of_descriptors_is_waited_out(logs, tmp_path, monkeypatch):
    open_, refused = os.open, []

    def short(path, flags, *more, **named):
        if str(path).endswith("t-5/00000000000000000000.index") and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", short)
    assert list(close_logs(logs, clean=True)) == []
    assert len(refused) == 2
    assert_whole(logs, tmp_path)


def test_logs_are_closed_although_no_thread_can_be_made(logs, tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        assert list(close_logs(logs, clean=True)) == []
    assert_whole(logs, tmp_path)


def test_an_unclean_close_syncs_nothing(logs, monkeypatch):
    def refuse(fd):
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    assert list(close_logs(logs, clean=False)) == []
    assert all(log.closed for log in logs)


def test_a_disk_that_does_not_answer_is_given_up(logs, tmp_path, monkeypatch):
    """A stop waited for it without an end, and the logs on other disks were never closed."""
    monkeypatch.setattr(closing, "STALLED_S", 0.3)
    fdatasync, answer = os.fdatasync, threading.Event()

    def hanging(fd):
        if "/t-11/" in os.readlink(f"/proc/self/fd/{fd}"):
            assert answer.wait(60)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", hanging)
    begun = time.monotonic()
    try:
        troubles = dict(close_logs(logs, clean=True))
        assert time.monotonic() - begun < 20
        assert logs[11] in troubles and all(log.closed for log in logs)
        assert all(log in troubles for log in logs[16:])  # of the groups that follow nothing is synced
        assert not any(log in troubles for log in logs[:8])
        assert "no fsync has ended for 0.3 s" in str(troubles[logs[11]])
        assert logs[11].recovery_point < 3
    finally:
        answer.set()


def test_a_directory_in_common_that_cannot_be_synced_is_the_trouble_of_all(logs, tmp_path, monkeypatch):
    fsync, failed = os.fsync, []

    def failing(fd):
        if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path):
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    assert {log for log, _ in close_logs(logs, clean=True)} == set(logs)
    assert failed


def test_a_stop_does_not_wait_for_removals(tmp_path):
    """Of ten thousand deleted partitions each has a directory to remove: the next start does it."""
    removals, scheduler = Removals(), ManualScheduler()
    for number in range(3):
        path = tmp_path / f"t-{number}.{'a' * 32}-delete"
        path.mkdir()
        removals.later(scheduler, 0, str(path))
    scheduler.run()
    removals.stop()
    scheduler.work()
    assert len(list(tmp_path.iterdir())) == 3
