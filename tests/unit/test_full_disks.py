"""When a broker gives up partitions that it leads, because their disk is full."""

import errno
import os
from types import SimpleNamespace

import pytest

from kafkad.server import full_disks
from kafkad.server.full_disks import AGAIN_MS, ROOM_BYTES, STEP_MS, WAIT_MS, FullDisks

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class World:
    def __init__(self, monkeypatch, *, me=1, leader=1, isr=(1, 2, 3), min_insync=2):
        self.now = 1_000
        self.free = 0
        self.state = SimpleNamespace(leader=leader, isr=isr)
        image = SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: self.state})})
        self.disks = FullDisks(me, lambda: image, lambda: self.now)
        config = SimpleNamespace(min_insync_replicas=min_insync)
        self.log = FakeLog(config)
        monkeypatch.setattr(full_disks.os, "statvfs", self._statvfs)

    def _statvfs(self, directory):
        assert directory in ("/data", "/roomy")
        if directory == "/roomy":
            return SimpleNamespace(f_bavail=1 << 30, f_frsize=4096, f_files=100, f_favail=90)
        return SimpleNamespace(f_bavail=self.free // 4096, f_frsize=4096, f_files=100, f_favail=90)

    def after(self, ms):
        self.now += ms
        return list(self.disks.tick())


class FakeLog:
    topic, partition, directory = "t", 0, "/data/t-0"
    ended, halted, end_offset = False, False, 7

    def __init__(self, config):
        self.config = config


def test_a_leader_goes_whose_disk_stays_full_although_nobody_tries_again(monkeypatch):
    world = World(monkeypatch)
    world.disks.refused(world.log, FULL)
    assert world.after(WAIT_MS - 1) == []
    assert world.after(1) == [world.log]
    assert world.after(60_000) == []  # once


def test_brokers_of_an_isr_go_one_after_the_other(monkeypatch):
    world = World(monkeypatch, me=3, leader=3)
    world.disks.refused(world.log, FULL)
    assert world.after(WAIT_MS + 2 * STEP_MS - 1) == []
    world.state.isr = (2, 3)  # broker 1 has gone meanwhile: 2 alone could not be written
    assert world.after(60_000) == []


@pytest.mark.parametrize(
    "lacking",
    [{"leader": 2}, {"isr": (1,)}, {"isr": (1, 2)}, {"isr": (1,), "min_insync": 1}, {"min_insync": 3}],
    ids=str,
)
def test_a_replica_stays_if_others_could_not_be_written_or_lead_already(monkeypatch, lacking):
    world = World(monkeypatch, **lacking)
    world.disks.refused(world.log, FULL)
    assert world.after(600_000) == []


def test_room_and_appends_end_the_wait(monkeypatch):
    world = World(monkeypatch)
    world.disks.refused(world.log, FULL)
    world.free = ROOM_BYTES
    assert world.after(AGAIN_MS + 1) == []  # there is room
    world.free = 0
    assert world.after(WAIT_MS) == []

    world.disks.refused(world.log, FULL)
    world.log.end_offset += 1
    assert world.after(WAIT_MS) == []
    world.disks.refused(world.log, FULL)
    world.log.end_offset += 1
    world.now += WAIT_MS
    world.disks.refused(world.log, FULL)  # begins anew
    assert world.after(WAIT_MS - 1) == []
    assert world.after(1) == [world.log]


def test_a_quota_that_the_file_system_does_not_show(monkeypatch):
    world = World(monkeypatch)
    world.free = ROOM_BYTES
    for _ in range(0, WAIT_MS + 1, 1_000):
        world.disks.refused(world.log, OSError(errno.EDQUOT, "quota"))
        world.now += 1_000
    assert world.after(0) == [world.log]


def test_a_leader_goes_whose_truncation_waits_for_room(monkeypatch):
    """Its tries are further apart, and may need more room than the file system has."""
    world = World(monkeypatch)
    world.free = 100 * ROOM_BYTES
    world.log.halted = True
    world.disks.refused(world.log, FULL)
    assert world.after(WAIT_MS - 1) == []
    assert world.after(1) == [world.log]

    world.disks.refused(world.log, FULL)
    world.log.halted = False  # it serves again
    assert world.after(WAIT_MS) == []


def test_other_shortages_do_not_count(monkeypatch):
    world = World(monkeypatch)
    world.disks.refused(world.log, OSError(errno.EMFILE, "descriptors"))
    assert world.after(600_000) == []


def test_a_log_that_has_moved_to_a_disk_with_room_stays(monkeypatch):
    """The operator makes room by kafka-reassign-partitions between two directories."""
    world = World(monkeypatch)
    world.disks.refused(world.log, FULL)
    world.log.directory = "/roomy/t-0"
    assert world.after(WAIT_MS) == []
    world.log.directory = "/data/t-0"
    assert world.after(WAIT_MS) == []  # forgotten
