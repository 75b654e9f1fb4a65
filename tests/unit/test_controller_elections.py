"""Elections: who leads after replicas come and go, as Kafka's PartitionChangeBuilder decides it."""

import pytest

from kafkad.controller.elections import Assignment, change_of
from kafkad.metadata.image import DIRECTORY_UNASSIGNED, RECOVERED, RECOVERING, PartitionState

TOPIC_ID = b"t" * 16


def state(isr, leader, elr=(), last=(), recovering=RECOVERED):
    return PartitionState(
        leader=leader,
        leader_epoch=4,
        replicas=(1, 2, 3),
        isr=isr,
        directories=(DIRECTORY_UNASSIGNED,) * 3,
        partition_epoch=9,
        leader_recovery_state=recovering,
        elr=elr,
        last_known_elr=last,
    )


def outcome(before, isr, up, **settings):
    """(leader, isr, elr, last known, recovery state) as changed; None for what the record leaves alone."""
    settings = {"elr_enabled": True, "min_insync_replicas": 2} | settings
    record = change_of(TOPIC_ID, 0, before, target_isr=isr, acceptable=up.__contains__, **settings)
    if record is None:
        return None
    return (
        None if record.leader == -2 else record.leader,
        record.isr,
        record.eligible_leader_replicas,
        record.last_known_elr,
        None if record.leader_recovery_state == -1 else record.leader_recovery_state,
    )


def test_nothing_changes_while_the_leader_is_up_and_all_are_in_sync():
    assert outcome(state((1, 2, 3), 1), (1, 2, 3), {1, 2, 3}) is None


def test_a_follower_that_leaves_changes_the_isr_only():
    assert outcome(state((1, 2, 3), 1), (1, 2), {1, 2}) == (None, [1, 2], None, None, None)


def test_the_next_replica_in_sync_leads_when_the_leader_leaves():
    assert outcome(state((1, 2, 3), 1), (2, 3), {2, 3}) == (2, [2, 3], None, None, None)


def test_who_leaves_an_isr_that_is_below_its_minimum_stays_eligible():
    assert outcome(state((1, 2), 1), (2,), {2}) == (2, [2], [1], None, None)
    assert outcome(state((2,), 2, elr=(1,)), (), set()) == (-1, [], [1, 2], [2], None)


def test_who_left_uncleanly_is_not_eligible():
    assert outcome(state((2,), 2, elr=(1,)), (), set(), unclean_shutdown={2}) == (-1, [], None, [2], None)


def test_an_eligible_replica_leads_when_nobody_is_in_sync():
    assert outcome(state((), -1, elr=(1, 2), last=(2,)), (), {1}) == (1, [1], [2], [], None)


def test_a_replica_that_is_removed_is_not_eligible_when_it_is_added_again():
    def changed(before, isr, assignment, up=(1, 2, 3)):
        record = change_of(
            TOPIC_ID, 0, before, target_isr=isr, assignment=assignment, acceptable=up.__contains__,
            elr_enabled=True, min_insync_replicas=2, default_directory=lambda _: DIRECTORY_UNASSIGNED,
        )  # fmt: skip
        return record.replicas, record.isr, record.eligible_leader_replicas, record.leader

    shrinks, grows = Assignment((1, 2, 3), (), (2, 3)), Assignment((1, 2), (2,), ())
    assert changed(state((1, 2, 3), 1), (1, 2, 3), shrinks) == ([1], [1], None, 1)
    assert changed(state((1, 2), 1, elr=(3,)), (1, 2), shrinks) == ([1], [1], [], 1)
    # a controller of Kafka has kept it
    alone = state((), -1, elr=(1, 2), last=(1,))._replace(replicas=(1,), directories=(DIRECTORY_UNASSIGNED,))
    assert changed(alone, (), grows, up=(2,)) == ([1, 2], None, [1], -2)


def test_the_elr_is_cleared_once_the_isr_is_full_again():
    assert outcome(state((2,), 2, elr=(1,)), (2, 1), {1, 2}) == (None, [2, 1], [], None, None)


def test_the_last_known_leader_leads_uncleanly_if_nothing_else_is_known():
    assert outcome(state((), -1, last=(3,)), (), {1, 3}) == (3, [3], None, [], RECOVERING)
    assert outcome(state((), -1, last=(3,)), (), {1}) is None


def test_any_replica_leads_if_the_topic_allows_it():
    assert outcome(state((), -1, last=(3,)), (), {2}, unclean_allowed=True) == (2, [2], None, [], RECOVERING)
    assert outcome(state((), -1, recovering=RECOVERING), (), {2}, unclean_allowed=True) == (
        2,
        [2],
        None,
        None,
        None,
    )


def test_without_elr_the_last_isr_is_kept():
    assert outcome(state((1,), 1), (), set(), elr_enabled=False) == (-1, None, None, None, None)
    assert outcome(state((1,), -1), (1,), {1}, elr_enabled=False) == (1, None, None, None, None)


@pytest.mark.parametrize("up", [set(), {1}, {2}, {3}, {1, 2}, {2, 3}, {1, 2, 3}])
def test_a_leader_elected_cleanly_was_in_sync_or_eligible(up):
    before = state((1, 2), 1, elr=(3,))
    found = outcome(before, tuple(r for r in before.isr if r in up), up)
    if found is not None and found[0] is not None and found[0] >= 0 and found[4] is None:
        assert found[0] in {1, 2, 3} & up


def test_without_elr_a_partition_whose_isr_was_empty_before_is_led_again():
    """What a downgrade of eligible.leader.replicas.version leaves."""
    off = {"elr_enabled": False}
    assert outcome(state((), -1, elr=(1, 2), last=(1,)), (), {3}, **off) is None
    assert outcome(state((), -1, elr=(1, 2), last=(1,)), (), {2, 3}, **off) == (2, [2], [], None, None)
    assert outcome(state((), -1, last=(1,)), (), {2, 3}, **off) is None
    assert outcome(state((), -1, last=(1,)), (), {1, 2}, **off) == (1, [1], None, None, RECOVERING)
    assert outcome(state((2,), 2, elr=(1,), last=(1,)), (), {1}, **off) == (-1, None, [], None, None)


def test_the_last_in_sync_is_remembered_although_nobody_led_when_elr_was_enabled():
    """It stopped uncleanly, and was the last one with level 0, which remembers nobody."""
    gone = outcome(state((2,), -1), (), {1, 3}, unclean_shutdown=(2,))
    assert gone == (None, [], None, [2], None)
    assert outcome(state((), -1, last=(2,)), (), {1, 2, 3}) == (2, [2], None, [], RECOVERING)


def test_nobody_is_not_the_last_known_leader():
    """Replicas are removed while there is no leader: the leader epoch grows."""
    record = change_of(
        TOPIC_ID, 0, state((2,), -1), target_isr=(2,), assignment=Assignment((2,), (), ()),
        acceptable=().__contains__, elr_enabled=True,
    )  # fmt: skip
    assert (record.leader, record.replicas, record.last_known_elr) == (-1, [2], None)
