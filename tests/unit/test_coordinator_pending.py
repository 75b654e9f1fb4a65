"""What reads show while appends to `__consumer_offsets` are on their way: what is durable, at once."""

from kafkad.coordinator.runtime import at_once
from tests.unit.coordinator_world import GROUP, play


def listed(world):
    return [group.group_id for group in at_once(world.coordinator.list([], [])).groups]


def test_a_group_is_there_once_its_first_commit_is_durable():
    world = play("""
        hold
        commit t_0=5
        describe
          Dead
        fetch t_0
          t_0=-1
        commit t_0=6
    """)
    assert listed(world) == []
    play(
        """
        release
          -: NONE
          -: NONE
        describe
          Empty
        fetch t_0
          t_0=6
    """,
        world,
    )
    assert listed(world) == [GROUP]


def test_a_group_that_only_failed_commits_made_goes_with_the_last_of_them():
    world = play("""
        hold
        commit t_0=5
        commit t_0=6
        release NOT_ENOUGH_REPLICAS
          -: COORDINATOR_NOT_AVAILABLE
          -: COORDINATOR_NOT_AVAILABLE
        describe
          Dead
    """)
    assert world.shard.groups == {}
    play("commit t_0=7\n  -: NONE\ndescribe\n  Empty", world)


def test_a_group_that_members_have_joined_is_kept_when_the_commit_that_made_it_fails():
    world = play("""
        hold
        commit t_0=5
        join A
          A: MEMBER_ID_REQUIRED
        join A
        release NOT_ENOUGH_REPLICAS
          -: COORDINATOR_NOT_AVAILABLE
        describe
          Dead
        tick 3000
          A: joined 1 as leader, members A
        sync A A=all
          A: assigned all
        describe
          Stable A
    """)
    assert listed(world) == [GROUP]


def test_a_group_that_is_joined_is_there_once_its_first_record_is_durable():
    play("""
        hold
        join A
          A: MEMBER_ID_REQUIRED
        describe
          Dead
        release
        describe
          Empty
    """)


def test_a_deleted_group_and_its_offsets_are_there_until_the_deletion_is_durable():
    world = play("""
        commit t_0=5
          -: NONE
        hold
        delete
        describe
          Empty
        fetch t_0
          t_0=5
        fetch
          t_0=5
        delete
          deleted: GROUP_ID_NOT_FOUND
    """)
    assert listed(world) == [GROUP]
    play(
        """
        release
          deleted: NONE
        describe
          Dead
        fetch t_0
          t_0=-1
    """,
        world,
    )
    assert listed(world) == []


def test_a_group_whose_deletion_fails_was_never_away():
    play("""
        commit t_0=5
          -: NONE
        hold
        delete
        fetch t_0
          t_0=5
        release NOT_ENOUGH_REPLICAS
          deleted: COORDINATOR_NOT_AVAILABLE
        describe
          Empty
        fetch t_0
          t_0=5
        commit t_0=6
          -: NONE
        fetch t_0
          t_0=6
    """)


def test_a_group_that_is_made_again_behind_its_deletion_is_the_old_one_until_that_is_durable():
    world = play("""
        commit t_0=5
          -: NONE
        hold
        delete
        commit t_1=7
        fetch
          t_0=5
        fetch stable=yes
    """)
    assert listed(world) == [GROUP]
    play(
        """
        release
          deleted: NONE
          -: NONE
          t_1=7
        fetch
          t_1=7
        describe
          Empty
    """,
        world,
    )
    assert listed(world) == [GROUP]


def test_members_are_heard_while_an_append_waits():
    play("""
        join A
          A: MEMBER_ID_REQUIRED
        join A
        tick 3000
          A: joined 1 as leader, members A
        sync A A=all
          A: assigned all
        hold
        commit A t_0=5
        heartbeat A
          A: NONE
        describe
          Stable A
        fetch t_0
          t_0=-1
        tick 3000
        heartbeat A
          A: NONE
        release
          A: NONE
        fetch t_0
          t_0=5
    """)
