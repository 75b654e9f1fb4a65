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


def test_what_a_predecessor_may_have_added_binds_until_its_proposal_is_refused(isr):
    """An answer without a change was taken for the end of it: the old proposal could still arrive, and add a
    replica without records that were acknowledged meanwhile."""
    asked = isr.inherit([2, 3], EPOCHS.get, in_flight=True)
    assert asked == (((2, 12), (1, 11)), 5, 7, 0), (
        "the same members, but the controller counts it as a change"
    )
    assert (isr.committed, isr.maximal) == ((1, 2), (1, 2, 3))
    assert isr.expand(3, EPOCHS.get) is None
    assert isr.answered(asked, 0, answer((2, 1))) is Verdict.COMMITTED
    assert (isr.maximal, isr.partition_epoch) == ((2, 1), 8)
    assert isr.expand(3, EPOCHS.get) is not None


def test_what_a_predecessor_may_know_binds_until_the_controller_has_said(isr):
    asked = isr.inherit([2, 3], EPOCHS.get, in_flight=False)
    assert asked == (((1, 11), (2, 12)), 5, 7, 0), "it asks for no change"
    assert isr.maximal == (1, 2, 3)
    assert isr.answered(asked, 0, answer((1, 2), partition_epoch=7)) is Verdict.COMMITTED
    assert isr.maximal == (1, 2)


@pytest.mark.parametrize("in_flight", [True, False])
def test_metadata_that_may_be_older_than_what_a_predecessor_knew_ends_nothing(isr, in_flight):
    """It had answers of the controller that come as metadata later, one after the other."""
    asked = isr.inherit([2, 3], EPOCHS.get, in_flight=in_flight)
    assert isr.answered(asked, errors.INVALID_UPDATE_VERSION, None) is Verdict.WAIT
    assert isr.learn(state()) and isr.maximal == (1, 2, 3)
    assert isr.learn(state((1,), partition_epoch=8)) and isr.maximal == (1, 2, 3)
    asked = isr.verify(EPOCHS.get)
    assert asked.partition_epoch == 8
    assert isr.verify(EPOCHS.get) is None
    assert isr.learn(state((1, 3), partition_epoch=9)) and isr.maximal == (1, 3, 2)
    asked = isr.verify(EPOCHS.get)
    assert isr.answered(asked, 0, answer((1, 3), partition_epoch=9 + in_flight)) is Verdict.COMMITTED
    assert isr.maximal == (1, 3)


def test_an_answer_that_comes_after_its_own_change_ends_what_a_predecessor_may_have_added(isr):
    """The change came as metadata first. Each answer was ignored then, so each change was followed by another
    order, for as long as metadata was faster, and HW waited for all replicas."""
    first = isr.inherit([2, 3], EPOCHS.get, in_flight=True)
    assert isr.learn(state((2, 1), partition_epoch=8)) and isr.maximal == (2, 1, 3)
    second = isr.verify(EPOCHS.get)
    assert isr.answered(first, 0, answer((2, 1), partition_epoch=7)) is Verdict.STALE
    assert isr.answered(first, 0, answer((2, 1), leader_epoch=4)) is Verdict.STALE
    assert isr.maximal == (2, 1, 3)
    assert isr.answered(first, 0, answer((2, 1))) is Verdict.STALE
    assert isr.maximal == (2, 1) and isr.pending is second
    assert isr.learn(state((1, 2), partition_epoch=9)) and isr.verify(EPOCHS.get) is None


def test_a_leader_alone_in_the_isr_waits_for_one_to_join(isr):
    """There is no other order of one member."""
    isr.learn(state((1,), partition_epoch=8))
    asked = isr.inherit([2, 3], EPOCHS.get, in_flight=True)
    assert not isr.is_confirmed
    assert isr.answered(asked, 0, answer((1,), partition_epoch=8)) is Verdict.COMMITTED
    assert isr.is_confirmed and isr.verify(EPOCHS.get) is None
    assert (isr.committed, isr.maximal) == ((1,), (1, 2, 3))
    added = isr.expand(3, EPOCHS.get)
    assert isr.maximal == (1, 2, 3)
    assert isr.answered(added, errors.INELIGIBLE_REPLICA, None) is Verdict.COMMITTED
    assert isr.maximal == (1, 2, 3)
    assert isr.trust([3, 4]) and not isr.trust([3])
    assert isr.maximal == (1, 2)
    added = isr.expand(2, EPOCHS.get)
    assert isr.answered(added, 0, answer((1, 2), partition_epoch=9)) is Verdict.COMMITTED
    assert isr.maximal == (1, 2)


@pytest.mark.parametrize(
    "changed", [{"partition_epoch": 9}, {"leader_epoch": 6, "partition_epoch": 9}], ids=str
)
def test_a_later_epoch_ends_the_proposals_of_a_predecessor(isr, changed):
    isr.learn(state((1,), partition_epoch=8))
    asked = isr.inherit([2, 3], EPOCHS.get, in_flight=True)
    if "leader_epoch" not in changed:
        isr.answered(asked, 0, answer((1,), partition_epoch=8))
    assert isr.learn(state((1, 2), **changed)) and isr.maximal == (1, 2)


def test_a_full_isr_inherits_nothing(isr):
    assert isr.inherit([2], EPOCHS.get, in_flight=True) is None
    assert isr.maximal == (1, 2)


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
