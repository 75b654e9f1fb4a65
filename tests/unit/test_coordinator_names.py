"""Names that clients choose for themselves in a group."""

import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import Malformed
from tests.unit.coordinator_world import GROUP, World, play


@pytest.mark.parametrize(("version", "instance"), [(3, None), (5, None), (5, "i" * 32_767)])
def test_a_member_id_that_no_record_can_have_is_refused(version, instance):
    """The assignment of the whole group could not be stored with it."""
    world, answers = World(), []
    request = messages.JoinGroupRequest(
        group_id=GROUP,
        protocol_type="consumer",
        protocols=[messages.JoinGroupRequest.Protocols(name="range", metadata=b"")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance,
    )
    world.coordinator.join(request, version, "c" * 32_767, "/h", answers.append)
    assert [answer.error_code for answer in answers] == [errors.INVALID_REQUEST]
    assert world.shard.groups[GROUP].is_empty and not world.shard.groups[GROUP].pending_join


def test_an_unknown_group_with_the_longest_name_is_described() -> None:
    response = messages.DescribeGroupsResponse(groups=[World().coordinator.describe("g" * 32_767, 6)])
    assert response.groups[0].error_code == errors.GROUP_ID_NOT_FOUND
    assert codec.encode_response(response, 6, 1)


@pytest.mark.parametrize(("size", "is_read"), [(10_922, True), (10_923, False), (32_767, False)])
def test_every_string_that_is_read_can_be_written(size, is_read):
    """Bytes that are not UTF-8 are read as U+FFFD, which has three bytes."""
    data = codec.encode(messages.GroupMetadataKey(group="g" * size), 0).replace(b"g", b"\xff")
    if is_read:
        key, _ = codec.decode(messages.GroupMetadataKey, 0, data)
        assert codec.encode(key, 0)
    else:
        with pytest.raises(Malformed, match="not UTF-8"):
            codec.decode(messages.GroupMetadataKey, 0, data)


def test_a_string_of_the_largest_size_is_read():
    data = codec.encode(messages.GroupMetadataKey(group="\u20ac" * 10_922), 0)
    assert codec.decode(messages.GroupMetadataKey, 0, data)[0].group == "\u20ac" * 10_922


def test_work_in_the_background_that_fails_does_not_end_the_service_of_a_partition():
    world = play("""
        commit t_0=5
          -: NONE
    """)
    world.clock.advance(8 * 24 * 60 * 60 * 1000)
    append = world.storage.append

    def fail(*arguments):
        world.storage.append = append
        raise ValueError("a record that cannot be made")

    world.storage.append = fail
    world.shard.expire()
    play(
        """
        fetch t_0
          t_0=5
        commit t_0=6
          -: NONE
        fetch t_0
          t_0=6
    """,
        world,
    )


@pytest.mark.parametrize("failing", [1, 2])
def test_a_group_whose_deletion_cannot_be_written_is_still_there(failing):
    """Its offsets are written first, then the group."""
    world = play("""
        commit t_0=5
          -: NONE
    """)
    group = world.shard.groups[GROUP]
    append, tries = world.storage.append, []

    def fail(*arguments):
        tries.append(arguments)
        if len(tries) == failing:
            raise ValueError("a record that cannot be made")
        append(*arguments)

    world.storage.append = fail
    with pytest.raises(ValueError):
        world.shard._delete_group(group)
    assert world.shard.groups[GROUP] is group and not world.shard._leaving
    world.storage.append = append
    world.shard._delete_group(group)
    assert GROUP not in world.shard.groups and not world.shard._leaving


def test_the_size_of_metadata_is_counted_as_in_java():
    """In UTF-16: an emoji counts twice."""
    world = World()
    smile = "\U0001f600"
    codes = []
    for metadata in (smile * 2048, smile * 2049, "x" * 4096, "\u00e9" * 4096):
        Topics = messages.OffsetCommitRequest.Topics
        partition = Topics.Partitions(partition_index=0, committed_offset=5, committed_metadata=metadata)
        request = messages.OffsetCommitRequest(
            group_id=GROUP, topics=[Topics(name="t", partitions=[partition])]
        )
        world.coordinator.commit(
            request, 8, lambda answer: codes.append(answer.topics[0].partitions[0].error_code)
        )
    assert codes == [errors.NONE, errors.OFFSET_METADATA_TOO_LARGE, errors.NONE, errors.NONE]


def test_sessions_begin_when_a_loaded_partition_is_served():
    """They began while other groups were being loaded, when heartbeats do not extend them."""
    world = World(group_initial_rebalance_delay_ms=0)
    world.storage.partitions = 1
    world.start()
    names = [f"g{number}" for number in range(5)]
    for name in names:
        request = messages.JoinGroupRequest(
            group_id=name, protocol_type="consumer", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
            protocols=[messages.JoinGroupRequest.Protocols(name="range", metadata=b"")],
        )  # fmt: skip
        world.coordinator.join(request, 3, "c", "/h", lambda answer: None)
        world.scheduler.advance(0)
        group = world.shard.groups[name]
        request = messages.SyncGroupRequest(group_id=name, generation_id=1, member_id=group.leader)
        world.coordinator.sync(request, lambda answer: None)
    shard = world.coordinator.begin_load(0)
    for batch in world.storage.logs[0]:
        shard.replay.feed(batch)
    for _ in shard.load_steps():
        if shard.loading:
            world.scheduler.advance(6_000)
    assert [len(shard.groups[name].members) for name in names] == [1] * 5
