"""Who hangs and who does not: by looks at the beats, not by the clock."""

import os
import signal

import pytest

from kafkad.server.heartbeat import LOOKS, SLOW, Heartbeats, Vitals, vitals_of


def state(letter, io="1"):
    return lambda: Vitals(letter, io)


def test_a_worker_that_does_not_beat_hangs_after_so_many_looks():
    beats = Heartbeats(2)
    for number in range(1, LOOKS + 1):
        beats.beat(1)
        assert beats.look(0, state("S")) == number
        assert beats.look(1, state("R")) == 0


def test_one_beat_clears_it():
    beats = Heartbeats(1)
    for _ in range(LOOKS - 1):
        beats.look(0, state("T"))
    beats.beat(0)
    assert beats.look(0, state("T")) == 0
    assert beats.look(0, state("T")) == 1


def test_waiting_for_a_disk_and_being_traced_are_excused():
    beats = Heartbeats(1)
    for letter in "DtDt" * LOOKS:
        assert beats.look(0, state(letter)) == 0
    assert beats.look(0, state("S")) == 1


def test_one_that_reads_and_writes_is_slow_but_not_for_ever():
    beats = Heartbeats(1)
    for number in range(LOOKS * SLOW - 1):
        assert beats.look(0, state("R", str(number))) < LOOKS
    assert beats.look(0, state("R", "more")) == LOOKS


def test_one_that_no_longer_writes_hangs():
    beats = Heartbeats(1)
    for number in range(3):
        assert beats.look(0, state("R", str(number))) <= 1
    for _ in range(LOOKS - 2):
        assert beats.look(0, state("S", "the last")) < LOOKS
    beats.look(0, state("S", "the last"))
    assert beats.look(0, state("S", "the last")) >= LOOKS


def test_a_new_life_is_not_blamed_for_the_silence_before_it():
    beats = Heartbeats(1)
    for _ in range(LOOKS - 1):
        beats.look(0, state("S"))
    beats.begin(0)
    assert beats.look(0, state("S")) == 1


def test_beats_are_seen_over_a_fork():
    beats = Heartbeats(2)
    pid = os.fork()
    if pid == 0:
        beats.beat(1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert beats.look(1, state("S")) == 0
    assert beats.look(0, state("S")) == 1


def test_a_beat_comes_several_times_within_the_limit():
    for limit_s in (0.5, 2, 30, 300):
        beats = Heartbeats(1, limit_s)
        assert beats.beat_s <= 1 and beats.beat_s * 5 <= limit_s
        assert beats.look_s * LOOKS == limit_s


def test_the_state_of_a_process():
    assert vitals_of(os.getpid()).state == "R"
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        assert vitals_of(pid).state == "T"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert vitals_of(pid).state == "X"


def test_what_a_process_reads_is_told():
    before = vitals_of(os.getpid())
    if not before.io:
        pytest.skip(
            "this kernel does not tell what a thread has read and written: slow workers are not excused"
        )
    assert vitals_of(os.getpid()).io != before.io
