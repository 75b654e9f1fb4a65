"""The ISR of a led partition: one proposal at a time, and what each answer of the controller makes of it."""

import pytest

from kafkad.metadata.image import PartitionState
from kafkad.protocol import errors
from kafkad.replication.isr import Answer, Isr, Verdict

ME = 1
EPOCHS = {1: 11, 2: 12, 3: 13}


def state(isr=(1, 2), *, leader_epoch=5, partition_epoch=7):
    return PartitionState(ME, leader_epoch, (1, 2, 3), tuple(isr), (bytes(16),) * 3, partition_epoch)


@pytest.fixture
def isr():
    made = Isr(ME)
    assert made.learn(state())
    return made


def answer(isr, *, leader_epoch=5, partition_epoch=8):
    return Answer(ME, leader_epoch, tuple(isr), partition_epoch)


def test_an_addition_binds_at_once_and_a_removal_only_when_it_is_committed(isr):
    """T4: the maximal ISR."""
    added = isr.expand(3, EPOCHS.get)
    assert added == (((1, 11), (2, 12), (3, 13)), 5, 7, 0)
    assert (isr.committed, isr.maximal) == ((1, 2), (1, 2, 3))
    assert isr.answered(added, 0, answer((1, 2, 3))) is Verdict.COMMITTED
    assert (isr.committed, isr.maximal, isr.partition_epoch) == ((1, 2, 3), (1, 2, 3), 8)
    removed = isr.shrink([2], EPOCHS.get)
    assert removed.isr == ((1, 11), (3, 13))
    assert isr.committed == isr.maximal == (1, 2, 3)
    assert isr.answered(removed, 0, answer((1, 3), partition_epoch=9)) is Verdict.COMMITTED
    assert isr.maximal == (1, 3)


def test_one_proposal_is_in_flight(isr):
    assert isr.expand(3, EPOCHS.get) is not None
    assert isr.expand(3, EPOCHS.get) is None
    assert isr.shrink([2], EPOCHS.get) is None


def test_the_leader_never_leaves_its_own_isr(isr):
    assert isr.shrink([1], EPOCHS.get) is None
    assert isr.shrink([1, 2], EPOCHS.get).isr == ((1, 11),)


def test_a_member_is_not_added_again(isr):
    assert isr.expand(2, EPOCHS.get) is None


def test_what_a_predecessor_may_have_added_binds_until_the_controller_has_said(isr):
    asked = isr.settle([2, 3], EPOCHS.get)
    assert asked == (((1, 11), (2, 12)), 5, 7, 0), "it asks for no change"
    assert (isr.committed, isr.maximal) == ((1, 2), (1, 2, 3))
    assert isr.expand(3, EPOCHS.get) is None
    assert isr.answered(asked, 0, answer((1, 2), partition_epoch=7)) is Verdict.COMMITTED
    assert isr.maximal == (1, 2)
    assert isr.expand(3, EPOCHS.get) is not None


def test_what_a_predecessor_has_added_binds_until_the_metadata_comes(isr):
    asked = isr.settle([2, 3], EPOCHS.get)
    assert isr.answered(asked, errors.INVALID_UPDATE_VERSION, None) is Verdict.WAIT
    assert isr.learn(state()) and isr.maximal == (1, 2, 3)
    assert isr.learn(state((1, 2, 3), partition_epoch=8)) and isr.committed == (1, 2, 3)


def test_a_full_isr_has_nothing_to_settle(isr):
    assert isr.settle([2], EPOCHS.get) is None


@pytest.mark.parametrize("code", [errors.OPERATION_NOT_ATTEMPTED, errors.INELIGIBLE_REPLICA])
def test_a_refusal_brings_back_what_was_committed(isr, code):
    added = isr.expand(3, EPOCHS.get)
    assert isr.answered(added, code, None) is Verdict.COMMITTED
    assert (isr.committed, isr.maximal, isr.pending) == ((1, 2), (1, 2), None)
    assert isr.expand(3, EPOCHS.get) is not None


@pytest.mark.parametrize(
    "code",
    [
        errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID, errors.FENCED_LEADER_EPOCH,
        errors.INVALID_UPDATE_VERSION, errors.INVALID_REQUEST, errors.NEW_LEADER_ELECTED,
    ],
)  # fmt: skip
def test_a_controller_that_knows_more_leaves_it_pending_until_the_metadata_comes(isr, code):
    added = isr.expand(3, EPOCHS.get)
    assert isr.answered(added, code, None) is Verdict.WAIT
    assert isr.maximal == (1, 2, 3)
    assert isr.expand(3, EPOCHS.get) is None
    assert isr.learn(state((1,), partition_epoch=9))
    assert (isr.maximal, isr.pending) == ((1,), None)


@pytest.mark.parametrize(
    "code", [errors.NOT_CONTROLLER, errors.UNKNOWN_SERVER_ERROR, errors.REQUEST_TIMED_OUT]
)
def test_of_any_other_error_the_same_is_sent_again(isr, code):
    added = isr.expand(3, EPOCHS.get)
    assert isr.answered(added, code, None) is Verdict.AGAIN
    assert isr.pending is added


def test_an_answer_after_newer_metadata_is_ignored(isr):
    added = isr.expand(3, EPOCHS.get)
    assert isr.learn(state((1, 2), leader_epoch=6, partition_epoch=8))
    assert isr.answered(added, 0, answer((1, 2, 3), partition_epoch=9)) is Verdict.STALE
    assert isr.maximal == (1, 2)


def test_the_answer_may_come_before_the_metadata_that_it_made(isr):
    added = isr.expand(3, EPOCHS.get)
    isr.answered(added, 0, answer((1, 2, 3)))
    assert isr.learn(state((1, 2, 3), partition_epoch=8))
    assert not isr.learn(state((1, 2), partition_epoch=7))
    assert isr.committed == (1, 2, 3)


@pytest.mark.parametrize("fields", [{"leader_epoch": 6}, {"partition_epoch": 6}])
def test_an_answer_of_another_epoch_commits_nothing(isr, fields):
    added = isr.expand(3, EPOCHS.get)
    assert isr.answered(added, 0, answer((1, 2, 3), **fields)) is Verdict.WAIT
    assert isr.committed == (1, 2)


def test_an_answer_that_changed_nothing_ends_the_proposal(isr):
    added = isr.expand(3, EPOCHS.get)
    assert isr.answered(added, 0, answer((1, 2), partition_epoch=7)) is Verdict.COMMITTED
    assert (isr.committed, isr.maximal) == ((1, 2), (1, 2))


def test_metadata_that_is_no_news_leaves_a_proposal_in_flight(isr):
    """Found by tests/sim/test_replication, seed 258: the metadata of a removal came behind the next proposal,
    an addition. HW moved without the replica that the controller then added."""
    removed = isr.shrink([2], EPOCHS.get)
    isr.answered(removed, 0, answer((1,)))
    added = isr.expand(3, EPOCHS.get)
    assert isr.learn(state((1,), partition_epoch=8))
    assert (isr.pending, isr.maximal) == (added, (1, 3))
