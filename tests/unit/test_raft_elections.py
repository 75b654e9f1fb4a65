"""The rules of votes, of time-outs, and of what a majority has."""

import pytest

from kafkad.raft.elections import UNKNOWN_DIRECTORY, Role, Tally, Timings, may_grant
from kafkad.raft.leadership import FORGOTTEN_MS, OBSERVERS_MAX, Leadership

A, B = (2, b"a" * 16), (3, b"b" * 16)
OPEN = {Role.UNATTACHED, Role.PROSPECTIVE}


def grant(role, **changed):
    fields = {
        "pre_vote": False, "up_to_date": True, "voted": None, "leader_known": False, "has_fetched": False,
    }  # fmt: skip
    return may_grant(role, A, **(fields | changed))


@pytest.mark.parametrize("role", Role)
def test_a_vote_is_given_once_to_one_whose_log_is_not_behind(role):
    assert grant(role) == (role in OPEN)
    assert not grant(role, up_to_date=False)
    assert not grant(role, leader_known=True)
    assert not grant(role, voted=B)
    assert grant(role, voted=A, up_to_date=False) == (role in OPEN)  # the answer was lost: the same again
    assert grant(role, voted=(A[0], UNKNOWN_DIRECTORY)) == (role in OPEN)
    assert not grant(role, voted=(A[0], b"c" * 16))  # the same id, with another disk


@pytest.mark.parametrize("role", Role)
def test_a_pre_vote_binds_nobody_and_disturbs_no_leader(role):
    assert grant(role, pre_vote=True, voted=B, leader_known=True) == (role is not Role.LEADER)
    assert not grant(role, pre_vote=True, up_to_date=False)
    assert grant(role, pre_vote=True, has_fetched=True) == (role not in (Role.LEADER, Role.FOLLOWER))


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_votes_are_counted(voters, majority):
    tally = Tally.of(range(voters), 0)
    for voter in range(1, majority):
        assert not tally.is_won
        tally.count(voter, True)
    assert tally.is_won
    tally = Tally.of(range(voters), 0)
    for voter in range(1, voters - majority + 1):
        assert not tally.is_lost
        tally.count(voter, False)
        tally.count(voter, False)
    assert not tally.is_lost
    if voters > 1:
        tally.count(voters - 1, False)
        assert tally.is_lost
    tally.count(77, True)
    assert 77 not in tally.granted


def test_those_a_leader_named_wait_longer_the_later_they_are_named():
    timings = Timings(backoff_max_ms=1_000)
    assert [timings.backoff_ms(at, 4) for at in range(4)] == [0, 125, 250, 500]
    assert timings.backoff_ms(4, 4) == timings.backoff_ms(-1, 4) == 1_000
    assert timings.backoff_ms(0, 0) == 0


def led(voters=3, start=10):
    return Leadership(0, range(voters), start, 0, Timings())


def test_nothing_is_committed_before_a_record_of_the_epoch():
    """Raft's figure 8: what a majority has of an older epoch may still be overwritten."""
    leadership = led()
    leadership.flushed(10)
    leadership.fetched(1, 10, 11, 5)
    assert leadership.high_watermark == -1
    leadership.flushed(11)
    assert leadership.high_watermark == -1
    leadership.fetched(2, 11, 11, 6)
    assert leadership.high_watermark == 11


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
def test_a_majority_commits(voters):
    leadership = led(voters)
    leadership.flushed(20)
    for voter in range(1, voters // 2 + 1):
        assert leadership.high_watermark == -1
        leadership.fetched(voter, 20, 20, 1)
    assert leadership.high_watermark == 20


def test_a_leader_that_hears_no_majority_is_overdue():
    leadership = led(5)
    assert not leadership.is_overdue(2_999) and leadership.is_overdue(3_000)
    leadership.heard(1, 2_000)
    leadership.heard(1, 2_500)
    assert leadership.is_overdue(3_000)  # one of four is no majority with us
    leadership.heard(2, 2_600)
    assert not leadership.is_overdue(5_599) and leadership.is_overdue(5_600)
    assert not led(1).is_overdue(1 << 40)


def test_who_is_silent_and_who_comes_next():
    leadership = led(4)
    assert leadership.silent(0) == [1, 2, 3]
    leadership.fetched(1, 12, 20, 100)
    leadership.fetched(2, 15, 20, 100)
    assert leadership.silent(1_099) == [3]
    assert leadership.silent(1_100) == [1, 2, 3]
    assert leadership.successors() == [2, 1, 3]


def test_a_replica_has_caught_up_when_it_had_what_there_was():
    leadership = led()
    progress = leadership.voters[1]
    leadership.fetched(1, 5, 10, 100)
    assert progress.caught_up_ms == -1
    leadership.fetched(1, 10, 30, 200)
    assert progress.caught_up_ms == 100
    leadership.fetched(1, 30, 30, 300)
    assert progress.caught_up_ms == 300


def test_observers_are_forgotten_and_are_not_without_end():
    leadership = led()
    for number in range(OBSERVERS_MAX + 10):
        leadership.observed((1_000 + number, bytes(16)), 1, 2, 5)
    assert len(leadership.observers) == OBSERVERS_MAX
    leadership.observed((5, bytes(16)), 1, 2, 6 + FORGOTTEN_MS)
    assert list(leadership.observers) == [(5, bytes(16))]
