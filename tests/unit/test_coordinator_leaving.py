"""Members of a group that leave: very many with one request, and some that say nothing."""

import logging
import time
from types import SimpleNamespace

import pytest
from coordinator_world import GROUP, STABLE, World, play

from kafkad.api import groups
from kafkad.coordinator.group import ClassicGroup, State
from kafkad.coordinator.member import Member
from kafkad.coordinator.runtime import at_once
from kafkad.protocol import codec, errors, messages


def crowd(count):
    """A stable group of so many members."""
    world = World()
    group = world.shard.groups[GROUP] = ClassicGroup(
        GROUP, world.shard, state=State.STABLE, generation=1, protocol_type="x", protocol_name="p"
    )
    for number in range(count):
        member = Member(
            f"m-{number}", instance_id=None, client_id="c", client_host="h", rebalance_timeout_ms=9_000,
            session_timeout_ms=9_000, protocol_type="x", protocols=[("p", b"")],
        )  # fmt: skip
        group.add(member)
    group.loaded()
    return world, group


def test_members_leave_in_steps_and_with_one_line(caplog):
    """10,000 of them were one piece of work of 0.11 s, and 10,000 lines."""
    caplog.set_level(logging.INFO, "kafkad.coordinator")
    world, group = crowd(1_000)
    answers, sizes = [], []
    named = [(f"m-{number}", None) for number in (*range(900), 3, 10_000)]
    for _ in world.coordinator.leave_steps(GROUP, named, answers.append):
        sizes.append(len(group.members))
        assert group.state is State.PREPARING_REBALANCE  # the others know at once
        assert world.coordinator.heartbeat(GROUP, "m-950", None, 1) == errors.REBALANCE_IN_PROGRESS
    assert sizes == list(range(950, 99, -50))
    assert answers == [(0, [0] * 900 + [errors.UNKNOWN_MEMBER_ID] * 2)]
    left = [line for line in caplog.messages if "m-0" in line]
    assert left == ["group g: left: m-0, m-1, m-2, m-3, m-4 and 895 more"]
    assert len(caplog.messages) == 2
    world.coordinator.leave(GROUP, [(f"m-{number}", None) for number in range(900, 1_000)], answers.append)
    assert (group.state, answers[-1]) == (State.EMPTY, (0, [0] * 100))


@pytest.mark.parametrize("change", ["unloaded", "deleted", "joined"])
def test_a_group_may_change_between_two_steps_in_which_its_members_leave(change):
    world, _ = crowd(120)
    answers = []
    steps = world.coordinator.leave_steps(GROUP, [(f"m-{n}", None) for n in range(120)], answers.append)
    next(steps)
    if change == "unloaded":
        world.coordinator.unload(world.shard.index)
        world.scheduler.advance(10)
    elif change == "deleted":
        world.coordinator.leave(GROUP, [(f"m-{n}", None) for n in range(50, 120)], answers.append)
        world.delete()
        assert world.take_heard() == ["deleted: NONE"]
        assert answers.pop() == (0, [0] * 70)
    else:
        world.join("A", type="x", range="", also="p", version=3)
    assert len(list(steps)) == (0 if change == "unloaded" else 1)
    if change == "unloaded":
        assert answers == [(errors.NOT_COORDINATOR, [])]
    elif change == "deleted":
        assert answers == [(0, [0] * 50 + [errors.UNKNOWN_MEMBER_ID] * 70)]
    else:
        assert answers == [(0, [0] * 120)]
        assert world.take_heard() == ["A: joined 2 as leader, members A"]


def test_the_first_member_is_found_at_once_however_many_have_left():
    """Each that leads and leaves looked at the places of all that had led and left before."""
    taken = []
    for count in (4_000, 128_000):
        world, group = crowd(count)
        group.leader = "m-0"
        named = [(f"m-{number}", None) for number in range(count)]
        begun = time.thread_time()
        world.coordinator.leave(GROUP, named, lambda _: None)
        taken.append(time.thread_time() - begun)
        assert group.state is State.EMPTY
    assert taken[1] < 100 * taken[0]  # 32 times as many; their square is 1,024 times


def test_requests_of_a_client_that_has_left_do_not_extend_its_session():
    """They were read after a halt of the broker; the client has come back as another member."""
    world = play(STABLE)
    play("tick 9000", world)
    member = world.client("A").member_id
    assert world.coordinator.heartbeat(GROUP, member, None, 1, lives=False) == errors.NONE
    request = messages.OffsetCommitRequest(
        group_id=GROUP, member_id=member, generation_id_or_member_epoch=1, topics=[]
    )
    at_once(world.coordinator.commit_steps(request, 8, lambda _: None, lives=False))
    play(
        """
        tick 2000
        heartbeat A
          A: UNKNOWN_MEMBER_ID
        """,
        world,
    )


@pytest.mark.parametrize("version", [0, 5, 6, 7, 9])
def test_a_client_that_has_left_gets_an_answer_to_its_join_in_each_version(version):
    """Before v7 the protocol's name may not be null: the log had an ERROR and a traceback."""
    context = SimpleNamespace(has_left=True, version=version)
    request = messages.JoinGroupRequest(group_id=GROUP, member_id="A", protocol_type="consumer", protocols=[])
    response = groups.join_group(None, context, request)
    assert response.error_code == errors.COORDINATOR_NOT_AVAILABLE
    assert codec.encode_narrow_response(response, version, 1)
