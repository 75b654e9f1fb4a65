"""Changes of metadata: an acknowledged one survives a kill, and a shortage costs those of its moment only."""

import os
import threading
import time
from contextlib import suppress

import pytest

from kafkad.protocol import errors, messages
from kafkad.server.metadata_snapshots import MetadataSnapshots
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.integration.test_missing_files import Started
from tests.shortages import GROW, NAME, OPEN, WRITE, Shortages
from tests.wire import Wire

CLIENTS = 4
UNKNOWN = (errors.REQUEST_TIMED_OUT,)  # the change may come later
REFUSED = (errors.KAFKA_STORAGE_ERROR,)  # it is not there


def creation(name, timeout_ms=10_000):
    topic = messages.CreateTopicsRequest.Topics(name=name, num_partitions=1, replication_factor=1)
    return messages.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


class Admin(threading.Thread):
    """Creates topics one after the other and notes each answer's code; None: the connection ended before."""

    def __init__(self, broker, number, timeout_ms=10_000):
        super().__init__(daemon=True)
        self.broker, self.number, self.timeout_ms = broker, number, timeout_ms
        self.told = {}
        self.ended = threading.Event()
        self.start()

    def run(self):
        count = 0
        while not self.ended.is_set():
            with suppress(OSError, EOFError), Wire(self.broker.bootstrap, timeout=30) as wire:
                while not self.ended.is_set():
                    name = f"topic-{self.number}-{count}"
                    count += 1
                    self.told[name] = None
                    answer = wire.ask(creation(name, self.timeout_ms), 7).topics[0]
                    self.told[name] = answer.error_code
                    if answer.error_code:
                        assert answer.error_message
                        time.sleep(0.01)

    def end(self):
        self.ended.set()
        self.join(40)
        assert not self.is_alive()

    def with_code(self, *codes):
        return {name for name, code in self.told.items() if code in codes}


def all_topics(broker):
    with Wire(broker.bootstrap, timeout=30) as wire:
        return {topic.name for topic in wire.ask(messages.MetadataRequest(topics=None), 9).topics}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_acknowledged_survives_a_kill(tmp_path, workers):
    """REVIEW D5(d): an append is accepted, flushed in a thread, committed, and then answered."""
    acknowledged = set()
    for round_number in range(3):
        with Broker(workers=workers, data_dir=tmp_path / "data") as broker:
            assert acknowledged <= all_topics(broker)
            admins = [Admin(broker, 10 * round_number + number) for number in range(CLIENTS)]
            wait_until(lambda admins=admins: all(len(admin.with_code(0)) >= 5 for admin in admins))
            broker.kill()
            for admin in admins:
                admin.end()
                assert set(admin.told.values()) <= {0, None}
                acknowledged |= admin.with_code(0)
    assert len(acknowledged) >= 60


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shortage_costs_the_changes_of_its_moment_only(tmp_path, workers):
    """A metadata log that could not be flushed for 75 ms refused every change until the restart. What was
    answered with KAFKA_STORAGE_ERROR is not there, not after the restart either; what timed out may be."""
    switch, data = Shortages(tmp_path / "control"), tmp_path / "data"
    # rolls: each leaves files and a directory that the next flush has to open
    config = {"metadata.log.segment.ms": 20}
    told = {}
    env = switch.environment(data)
    with Broker(workers=workers, data_dir=data, config=config, env=env) as broker:
        pids = broker.worker_pids
        admins = [Admin(broker, number, timeout_ms=700) for number in range(CLIENTS)]
        wait_until(lambda: all(admin.with_code(0) for admin in admins))
        for kinds in (OPEN, WRITE, OPEN | NAME | WRITE | GROW):
            switch.begin(0.5, kinds, seed=7)
            time.sleep(1.5)
            switch.end()
            before = [len(admin.with_code(0)) for admin in admins]
            wait_until(
                lambda before=before: all(
                    len(a.with_code(0)) > n for a, n in zip(admins, before, strict=True)
                )
            )
        for admin in admins:
            admin.end()
            told |= admin.told
        assert switch.failed
        assert set(told.values()) <= {0, *UNKNOWN, *REFUSED}, set(told.values())
        assert set(told.values()) & {*UNKNOWN, *REFUSED}, "there was no shortage"
        assert broker.worker_pids == pids, broker.log
        check(all_topics(broker), told)
        broker.kill()
    with Broker(workers=workers, data_dir=data, config=config) as broker:
        check(all_topics(broker), told)


def check(topics, told):
    there = {name for name in topics if name.startswith("topic-")}
    assert {name for name, code in told.items() if code == 0} <= there, "acknowledged and lost"
    assert not there & {name for name, code in told.items() if code in REFUSED}, "refused and done"
    assert there <= told.keys()


def test_no_change_of_metadata_is_synced_by_the_thread_that_serves(tmp_path, monkeypatch):
    """REVIEW D5(d): each change was synced on the loop of worker 0, and a snapshot, too."""
    broker = Started(tmp_path / "data")
    synced = []

    def noting(sync):
        def note(fd):
            synced.append((threading.current_thread() is threading.main_thread(), sync.__name__))
            sync(fd)

        return note

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    broker.create("t", 4)
    snapshots = MetadataSnapshots(broker.worker.raft, broker.worker.scheduler)
    broker.worker.raft._new_bytes = 1 << 30
    assert snapshots.make_if_due()
    snapshots.close()
    broker.settle()
    assert list((tmp_path / "data" / "a" / "__cluster_metadata-0").glob("*-0000000001.checkpoint"))
    assert (False, "fsync") in synced  # the snapshot's
    assert not [each for each in synced if each[0]]
    monkeypatch.undo()
    broker.stop()
