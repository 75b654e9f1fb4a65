"""Connections per host, counted over forked processes."""

import os
import random

from kafkad._native.shared.host_counts import PROBES, SLOTS, HostCounts


def host(number):
    return bytes(12) + number.to_bytes(4, "big")


def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_one_worker_holds_the_others_know():
    counts = HostCounts(3)

    def first():
        counts.enter(0)
        for number in range(1000):
            counts.set(host(number), number % 7)
        counts.set(host(5), 0)

    def second():
        counts.enter(1)
        counts.set(host(6), 10)
        assert counts.elsewhere(host(6)) == 6

    in_child(first)
    in_child(second)
    counts.enter(2)
    assert [counts.elsewhere(host(number)) for number in range(8)] == [0, 1, 2, 3, 4, 0, 16, 0]


def test_a_successor_begins_with_nothing():
    counts = HostCounts(2)
    in_child(lambda: (counts.enter(0), counts.set(host(1), 5)))
    counts.enter(1)
    assert counts.elsewhere(host(1)) == 5
    in_child(lambda: counts.enter(0))
    assert counts.elsewhere(host(1)) == 0


def test_the_dead_hold_no_places():
    counts = HostCounts(2)
    in_child(lambda: (counts.enter(0), counts.set(host(1), 5)))
    counts.enter(1)
    counts.set(host(1), 2)
    counts.forget(0)
    assert counts.elsewhere(host(1)) == 0
    counts.forget(1)
    counts.enter(0)
    assert counts.elsewhere(host(1)) == 0


def test_hosts_that_come_and_go_leave_room_for_others():
    counts, model, chance = HostCounts(2), {}, random.Random(3)
    for _ in range(3 * SLOTS):
        counts.me = 0
        number = chance.randrange(1 << 32)
        counts.set(host(number), 1)
        model[number] = 1
        if len(model) > SLOTS // 4:
            gone = next(iter(model))
            del model[gone]
            counts.set(host(gone), 0)
    counts.me = 1
    assert all(counts.elsewhere(host(number)) == 1 for number in model)


def test_a_host_without_room_is_not_counted_and_harms_nobody():
    counts = HostCounts(2)
    counts.me = 0
    for number in range(2 * SLOTS):
        counts.set(host(number), 1)
    counts.me = 1
    counted = sum(counts.elsewhere(host(number)) for number in range(2 * SLOTS))
    assert SLOTS - PROBES <= counted <= SLOTS
