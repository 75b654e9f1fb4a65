"""Rebalances of classic groups, as transcripts (coordinator_world.py says how to read them)."""

import pytest
from coordinator_world import GROUP, World, play

from kafkad.coordinator.member import first_in_java
from kafkad.coordinator.runtime import at_once
from kafkad.protocol import errors, messages

STABLE_PAIR = """
    join A
      A: MEMBER_ID_REQUIRED
    join B
      B: MEMBER_ID_REQUIRED
    join A
    join B
    tick 6000
      A: joined 1 as leader, members A B
      B: joined 1 after A
    sync B
    sync A A=t0 B=t1
      A: assigned t0
      B: assigned t1
"""


@pytest.fixture
def pair():
    return play(STABLE_PAIR)


def test_two_members_share_a_topic():
    world = play(STABLE_PAIR)
    play(
        """
        describe
          Stable A B
        heartbeat A
          A: NONE
        log
          group 0
          group 1 A B
        """,
        world,
    )


def test_a_late_member_extends_the_initial_delay():
    play(
        """
        join A version=3
        tick 2000
        join B version=3
        # 3 s after the first join the delay starts anew, since B came
        tick 1000
        describe
          PreparingRebalance A B
        tick 2999
        tick 1
          A: joined 1 as leader, members A B
          B: joined 1 after A
        """
    )


def test_the_initial_delay_is_extended_no_further_than_the_rebalance_timeout():
    play(
        """
        join A version=3 rebalance=5000
        tick 2000
        join B version=3 rebalance=5000
        tick 1000
        tick 1000
        join C version=3 rebalance=5000
        tick 1000
          A: joined 1 as leader, members A B C
          B: joined 1 after A
          C: joined 1 after A
        """
    )


def test_leaving_starts_a_rebalance_at_once(pair):
    play(
        """
        leave A
          A: left, NONE
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        join B
          B: joined 2 as leader, members B
        sync B B=t0t1
          B: assigned t0t1
        heartbeat A
          A: UNKNOWN_MEMBER_ID
        """,
        pair,
    )


def test_the_last_one_to_leave_empties_the_group(pair):
    play(
        """
        leave A
          A: left, NONE
        leave B
          B: left, NONE
        describe
          Empty
        log
          group 0
          group 1 A B
          group 2
        """,
        pair,
    )


def test_leaving_is_answered_when_the_empty_group_is_durable():
    play(
        """
        join A version=3
        tick 3000
          A: joined 1 as leader, members A
        hold
        leave A
        release
          A: left, NONE
        """
    )


def test_a_member_that_falls_silent_is_out_after_its_session(pair):
    play(
        """
        tick 9000
        heartbeat B
          B: NONE
        tick 1000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        join B
          B: joined 2 as leader, members B
        """,
        pair,
    )


def test_a_parked_join_keeps_an_old_member_alive_beyond_its_session(pair):
    play(
        """
        join A
        tick 5000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        """,
        pair,
    )


def test_who_does_not_join_again_in_time_is_out(pair):
    play(
        """
        join C version=3
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        join A
        # B heartbeats but never joins
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 9000
        heartbeat B
          B: REBALANCE_IN_PROGRESS
        tick 6000
          A: joined 2 as leader, members A C
          C: joined 2 after A
        heartbeat B
          B: UNKNOWN_MEMBER_ID
        """,
        pair,
    )


def test_a_leader_that_does_not_come_back_is_replaced(pair):
    play(
        """
        join B range=t,u
        tick 10000
          B: joined 2 as leader, members B
        """,
        pair,
    )


def test_a_join_without_news_tells_the_generation_again(pair):
    play(
        """
        join B
          B: joined 1 after A
        sync B
          B: assigned t1
        # the leader may know reasons of its own
        join A
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        # the answer got lost: the same once more, to the leader with members
        join A
          A: joined 2 as leader, members A B
        join B
          B: joined 2 after A
        """,
        pair,
    )


def test_new_metadata_starts_a_rebalance(pair):
    play(
        """
        join B range=t,u
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        join A
          A: joined 2 as leader, members A B
          B: joined 2 after A
        """,
        pair,
    )


def test_a_rebalance_that_begins_before_the_assignment_sends_everybody_back(pair):
    play(
        """
        join A
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        sync B
        join C version=3
          B: REBALANCE_IN_PROGRESS
        sync A A=t0 B=t1
          A: REBALANCE_IN_PROGRESS
        """,
        pair,
    )


def test_an_assignment_is_told_only_when_it_is_durable():
    play(
        """
        join A version=3
        join B version=3
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        hold
        sync A A=t0 B=t1
        sync B
        describe
          CompletingRebalance A B
        release
          A: assigned t0
          B: assigned t1
        describe
          Stable A B
        """
    )


def test_an_assignment_that_cannot_be_written_is_not_told():
    play(
        """
        join A version=3
        tick 3000
          A: joined 1 as leader, members A
        hold
        sync A A=t0
        release NOT_ENOUGH_REPLICAS
          A: COORDINATOR_NOT_AVAILABLE
        describe
          PreparingRebalance A
        join A
          A: joined 2 as leader, members A
        """
    )


def test_a_group_that_cannot_be_written_is_not_there():
    play(
        """
        hold
        join A version=3
        release KAFKA_STORAGE_ERROR
          A: NOT_COORDINATOR
        describe
          Dead
        """
    )


def test_members_that_do_not_sync_are_out_after_the_rebalance_timeout():
    play(
        """
        join A version=3 session=1800000 rebalance=8000
        join B version=3 session=1800000 rebalance=8000
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        sync A A=t0 B=t1
          A: assigned t0
        tick 7999
        describe
          Stable A B
        tick 1
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        heartbeat B
          B: UNKNOWN_MEMBER_ID
        join A
          A: joined 2 as leader, members A
        """
    )


def test_a_leader_that_does_not_assign_is_out_after_the_rebalance_timeout():
    play(
        """
        join A version=3 session=1800000 rebalance=8000
        join B version=3 session=1800000 rebalance=8000
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        sync B
        tick 8000
          B: REBALANCE_IN_PROGRESS
        join B
          B: joined 2 as leader, members B
        """
    )


def test_members_without_an_assignment_get_an_empty_one(pair):
    play(
        """
        join A
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        sync B
        sync A A=all
          A: assigned all
          B: assigned nothing
        """,
        pair,
    )


# -- KIP-394: the member id


def test_a_pending_member_holds_up_the_rebalance_until_its_session_ends(pair):
    play(
        """
        join C session=20000
          C: MEMBER_ID_REQUIRED
        join A
        tick 5000
        join B
        tick 14999
        tick 1
          A: joined 2 as leader, members A B
          B: joined 2 after A
        # with its id it is too late
        join C
          C: UNKNOWN_MEMBER_ID
        """,
        pair,
    )


def test_a_pending_member_may_leave(pair):
    play(
        """
        join C
          C: MEMBER_ID_REQUIRED
        join A
        join B
        leave C
          A: joined 2 as leader, members A B
          B: joined 2 after A
          C: left, NONE
        """,
        pair,
    )


def test_an_id_that_was_never_given_is_unknown():
    play(
        """
        join A id=invented
          A: UNKNOWN_MEMBER_ID
        join B
          B: MEMBER_ID_REQUIRED
        join A id=invented
          A: UNKNOWN_MEMBER_ID
        """
    )


def test_a_new_member_whose_client_went_away_is_dropped_after_five_minutes():
    """It cannot heartbeat while its first join is parked: rebalance timeouts of hours must not keep it."""
    play(
        """
        join A version=3 session=1800000 rebalance=3600000
        tick 3000
          A: joined 1 as leader, members A
        sync A A=t0
          A: assigned t0
        join C version=3 rebalance=3600000
        tick 299999
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        tick 1
          C: UNKNOWN_MEMBER_ID
        join A
          A: joined 2 as leader, members A
        """
    )


# -- KIP-345: static members

STATIC_PAIR = """
    join A instance=one
    join B instance=two
    tick 6000
      A: joined 1 as leader, members A B
      B: joined 1 after A
    sync A A=t0 B=t1
      A: assigned t0
    sync B
      B: assigned t1
"""


def test_a_static_member_restarts_without_a_rebalance():
    world = play(STATIC_PAIR)
    play(
        """
        join C instance=two
          C: joined 1 after A
        sync C
          C: assigned t1
        heartbeat A
          A: NONE
        # who still uses the old id is fenced
        heartbeat B
          B: FENCED_INSTANCE_ID
        commit B t_0=1
          B: FENCED_INSTANCE_ID
        join B
          B: FENCED_INSTANCE_ID
        """,
        world,
    )
    assert world.storage.appends == 3


def test_a_static_leader_that_restarts_is_told_to_skip_the_assignment():
    world = play(STATIC_PAIR)
    play(
        """
        join C instance=one
          C: joined 1 as leader, members B C (skip assignment)
        sync C
          C: assigned t0
        """,
        world,
    )


def test_before_v9_a_static_leader_that_restarts_is_not_told_that_it_leads():
    world = play(STATIC_PAIR)
    play(
        """
        join C instance=one version=8
          C: joined 1 after A
        """,
        world,
    )


def test_a_static_restart_that_cannot_be_written_leaves_the_old_member():
    world = play(STATIC_PAIR)
    play(
        """
        hold
        join C instance=two
        release NOT_ENOUGH_REPLICAS
          C: COORDINATOR_NOT_AVAILABLE
        heartbeat B
          B: NONE
        describe
          Stable A B
        """,
        world,
    )


def test_a_static_restart_during_a_rebalance_fences_the_parked_join():
    world = play(STATIC_PAIR)
    play(
        """
        join A
        join B range=t,u
          A: joined 2 as leader, members A B
          B: joined 2 after A
        join A
          A: joined 2 as leader, members A B
        # the group waits for its leader's assignment: the restart has to start over
        sync B
        join C instance=two
          B: FENCED_INSTANCE_ID
        # as in Kafka C still goes by the client id of the member that it replaced
        join A
          A: joined 3 as leader, members A B
          C: joined 3 after A
        """,
        world,
    )


def test_a_static_member_that_changes_the_protocol_starts_a_rebalance():
    play(
        """
        join A instance=one also=sticky
        join B instance=two also=sticky
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        sync A
          A: assigned nothing
        sync B
          B: assigned nothing
        join C instance=two range= also=sticky
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        """
    )


def test_a_static_member_does_not_lose_its_place_by_missing_a_rebalance():
    world = play(STATIC_PAIR)
    play(
        """
        join A rebalance=8000
        tick 8000
        # B's rebalance timeout is a minute, its session ten seconds
        tick 2000
          A: joined 2 as leader, members A
        """,
        world,
    )


def test_a_short_rebalance_timeout_does_not_keep_the_coordinator_busy(caplog):
    """Only static members are left, and none has joined: that lasts until their sessions end."""
    world = play(STATIC_PAIR)
    for member in world.group.members.values():
        member.rebalance_timeout_ms = 1
    world.group._prepare_rebalance("a test")
    world.scheduler.advance(9_000)
    assert sum("nobody joined in time" in line for line in caplog.messages) in (9, 10)


def test_an_administrator_removes_a_static_member_by_its_instance():
    world = play(STATIC_PAIR)
    play(
        """
        leave instance=two
          two: left, NONE
        heartbeat B
          B: UNKNOWN_MEMBER_ID
        leave instance=three
          three: left, UNKNOWN_MEMBER_ID
        """,
        world,
    )


# -- what is refused


def test_stale_generations_and_wrong_protocols_are_refused(pair):
    play(
        """
        heartbeat A generation=0
          A: ILLEGAL_GENERATION
        sync A generation=0
          A: ILLEGAL_GENERATION
        sync A type=connect
          A: INCONSISTENT_GROUP_PROTOCOL
        sync A protocol=sticky
          A: INCONSISTENT_GROUP_PROTOCOL
        join C type=connect
          C: INCONSISTENT_GROUP_PROTOCOL
        join C range= also=sticky
          C: INCONSISTENT_GROUP_PROTOCOL
        """,
        pair,
    )


def test_session_timeouts_out_of_bounds_are_refused():
    play(
        """
        join A session=5999
          A: INVALID_SESSION_TIMEOUT
        join A session=1800001
          A: INVALID_SESSION_TIMEOUT
        join A session=6000
          A: MEMBER_ID_REQUIRED
        """
    )


def test_a_first_member_has_to_bring_a_protocol():
    play(
        """
        join A range=
          A: INCONSISTENT_GROUP_PROTOCOL
        join A type=
          A: INCONSISTENT_GROUP_PROTOCOL
        """
    )


def test_a_full_group_turns_newcomers_away():
    play(
        """
        join A version=3
        join B version=3
        join C version=3
          C: GROUP_MAX_SIZE_REACHED
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        join C version=3
          C: GROUP_MAX_SIZE_REACHED
        sync B
        sync A
          A: assigned nothing
          B: assigned nothing
        # members of the group are let in again
        join A
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        """,
        group_max_size=2,
    )


def test_a_request_that_a_newer_one_replaces_is_answered(pair):
    play(
        """
        join A
        join A
          A: REBALANCE_IN_PROGRESS
        join B
          A: joined 2 as leader, members A B
          B: joined 2 after A
        sync B
        sync B
          B: REBALANCE_IN_PROGRESS
        # nor does one stay open whose member leaves
        leave B
          B: UNKNOWN_MEMBER_ID
          B: left, NONE
        """,
        pair,
    )


# -- protocols


def test_the_protocol_that_most_members_prefer_is_chosen_among_those_all_support():
    world = World()
    chosen = []
    for name, protocols in (
        ("a", ["range", "sticky"]),
        ("b", ["cooperative", "sticky", "range"]),
        ("c", ["sticky", "range"]),
    ):
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            protocol_type="consumer",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocols=[messages.JoinGroupRequest.Protocols(name=p, metadata=b"") for p in protocols],
        )
        world.coordinator.join(request, 3, name, "/1.2.3.4", lambda r: chosen.append(r.protocol_name))
    world.tick(6_000)
    assert chosen == ["sticky"] * 3


def test_opaque_metadata_is_kept_as_it_is():
    """Kafka Connect's protocol: nothing in it is ours to read."""
    world = World()
    answers = []
    request = messages.JoinGroupRequest(
        group_id=GROUP,
        protocol_type="connect",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=[messages.JoinGroupRequest.Protocols(name="default", metadata=b"\xff\x00\xff")],
    )
    world.coordinator.join(request, 3, "worker", "/1.2.3.4", answers.append)
    world.tick(3_000)
    assert [member.metadata for member in answers[0].members] == [b"\xff\x00\xff"]
    assert world.group.subscribed_topics is None


def test_unreadable_subscriptions_make_every_topic_subscribed(pair):
    request = messages.JoinGroupRequest(
        group_id=GROUP,
        member_id=pair.client("A").member_id,
        protocol_type="consumer",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=[messages.JoinGroupRequest.Protocols(name="range", metadata=b"\0\0\x7f\xff\xff\xff")],
    )
    pair.coordinator.join(request, 9, "a", "/1.2.3.4", lambda response: None)
    pair.join("B")
    assert pair.group.generation == 2
    assert pair.group.is_subscribed_to("whatever")


# -- the coordinator's side


def test_before_v1_the_session_timeout_is_the_rebalance_timeout():
    world = World()
    world.join("A", version=0, session=7_000, rebalance=-1)
    assert world.group.rebalance_timeout_ms() == 7_000


def test_letting_go_of_a_partition_answers_who_waits_there():
    world = play(
        """
        join A version=3
        tick 3000
          A: joined 1 as leader, members A
        sync A A=t0
          A: assigned t0
        join B version=3
        """
    )
    world.coordinator.unload(world.shard.index)
    assert world.take_heard() == ["B: NOT_COORDINATOR"]
    world.heartbeat("A")
    assert world.take_heard() == ["A: NOT_COORDINATOR"]


def test_the_timers_of_a_partition_that_left_do_nothing():
    world = play(STABLE_PAIR)
    shard = world.shard
    others = world.scheduler.armed() - 3  # its expiry, and a session of each member
    steps = shard.close(errors.NOT_COORDINATOR)  # and its groups are closed later
    world.tick(60_000)
    assert len(world.group.members) == 2 and not world.take_heard()
    for _ in steps:
        pass
    assert not shard.groups and world.scheduler.armed() == others


def test_a_group_that_is_let_go_leaves_no_timer():
    world = play(STABLE_PAIR)
    world.coordinator.close()
    assert world.scheduler.armed() == 0
    world.join("A")
    world.heartbeat("B")
    assert world.take_heard() == ["A: COORDINATOR_NOT_AVAILABLE", "B: COORDINATOR_NOT_AVAILABLE"]


def test_heartbeats_cost_no_timers(pair):
    armed = pair.scheduler.armed()
    for _ in range(100):
        pair.tick(10)
        pair.heartbeat("A")
        pair.heartbeat("B")
    assert set(pair.take_heard()) == {"A: NONE", "B: NONE"}
    assert pair.scheduler.armed() == armed


def test_an_empty_group_id_is_invalid():
    world = World()
    answers = []
    world.coordinator.join(messages.JoinGroupRequest(member_id="m"), 9, None, "", answers.append)
    world.coordinator.sync(messages.SyncGroupRequest(), answers.append)
    assert [answer.error_code for answer in answers] == [errors.INVALID_GROUP_ID] * 2
    assert world.coordinator.heartbeat("", "m", None, 1) == errors.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], [GROUP]),
        (["stable"], [], [GROUP]),
        (["Empty"], [], []),
        ([" STABLE ", "dead"], ["CLASSIC"], [GROUP]),
        ([], ["consumer"], []),
        ([], ["nonsense"], []),
        ([], [" classic "], []),
    ],
)
def test_groups_are_listed_by_state_and_type(pair, states, types, found):
    listed = at_once(pair.coordinator.list(states, types))
    assert [group.group_id for group in listed.groups] == found
    for group in listed.groups:
        assert (group.protocol_type, group.group_state, group.group_type) == ("consumer", "Stable", "classic")


def test_a_description_has_what_members_brought_and_got(pair):
    described = pair.coordinator.describe(GROUP, 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    a, b = described.members
    assert (a.client_id, a.client_host, a.member_assignment) == ("a", "/127.0.0.1", b"t0")
    assert b.member_metadata == bytes(pair.group.members[b.member_id].protocols[0][1])


def test_an_unknown_group_is_dead_and_from_v6_an_error():
    world = World()
    old, new = world.coordinator.describe("nobody", 5), world.coordinator.describe("nobody", 6)
    assert (old.group_state, old.error_code) == ("Dead", errors.NONE)
    assert (new.group_state, new.error_code) == ("Dead", errors.GROUP_ID_NOT_FOUND)
    assert new.error_message == "Group nobody not found."


@pytest.mark.parametrize(
    ("names", "size", "first"),
    [
        (["range", "sticky"], 2, "sticky"),  # as JVM Kafka 4.3.1 chose, in both orders
        (["sticky", "range"], 2, "sticky"),
        (["range", "roundrobin"], 2, "range"),
        (["b", "a"], 2, "a"),
        (["q", "a"], 2, "q"),  # one bucket of 16: the first that was put there
        (["q", "a"], 13, "a"),  # two of 32
        (["z", "\U0001f600"], 2, "\U0001f600"),  # 0xD83D * 31 + 0xDE00: bucket 8; "z": 10
    ],
)
def test_a_tie_of_votes_is_broken_as_in_kafka(names, size, first):
    """Found by the differential run of 20,000 requests: members chose "range" here and "sticky" there."""
    assert first_in_java(names, size) == first
