"""Committed offsets: who may commit, what is fetched, what a restart finds, when offsets are forgotten."""

import pytest
from coordinator_world import GROUP, STABLE, World, play

from kafkad.coordinator import records
from kafkad.coordinator.records import CommittedOffset
from kafkad.coordinator.runtime import at_once, java_hash, partition_of
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import ABORT, COMMIT, Record, build_batch, end_marker

DAY_MS = 24 * 60 * 60 * 1000


def test_members_commit_with_their_generation():
    world = play(STABLE)
    play(
        """
        commit A t_0=10
          A: NONE
        commit A t_0=11 t_1=5
          A: NONE NONE
        fetch t_0 t_1 t_2
          t_0=11 t_1=5 t_2=-1
        fetch
          t_0=11 t_1=5
        commit A t_0=12 generation=0
          A: ILLEGAL_GENERATION
        commit A t_0=12 id=somebody
          A: UNKNOWN_MEMBER_ID
        commit - t_0=12
          -: UNKNOWN_MEMBER_ID
        fetch t_0
          t_0=11
        """,
        world,
    )


def test_a_commit_keeps_the_session_alive():
    world = play(STABLE)
    play(
        """
        tick 9000
        commit A t_0=1
          A: NONE
        tick 9000
        heartbeat A
          A: NONE
        """,
        world,
    )


def test_a_commit_is_let_through_while_a_rebalance_is_prepared_but_not_while_it_completes():
    world = play(STABLE)
    play(
        """
        join B version=3
        commit A t_0=1
          A: NONE
        join A
          A: joined 2 as leader, members A B
          B: joined 2 after A
        commit A t_0=2
          A: REBALANCE_IN_PROGRESS
        """,
        world,
    )


def test_simple_consumers_commit_without_a_group():
    play(
        """
        fetch t_0
          t_0=-1
        commit - t_0=7
          -: NONE
        fetch
          t_0=7
        describe
          Empty
        log
          offset t_0 7
        """
    )


def test_an_unknown_group_refuses_a_generation_as_the_version_expects():
    play(
        """
        commit A t_0=1 generation=3 version=8
          A: ILLEGAL_GENERATION
        commit A t_0=1 generation=3 version=9
          A: GROUP_ID_NOT_FOUND
        fetch
          nothing
        describe
          Dead
        """
    )


def test_an_offset_is_visible_when_it_is_durable():
    play(
        """
        hold
        commit - t_0=7
        fetch t_0
          t_0=-1
        # who asks for stable offsets waits
        fetch t_0 stable=yes
        release
          -: NONE
          t_0=7
        """
    )


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE"),
        ("REQUEST_TIMED_OUT", "COORDINATOR_NOT_AVAILABLE"),
        ("UNKNOWN_TOPIC_OR_PARTITION", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR"),
        ("KAFKA_STORAGE_ERROR", "NOT_COORDINATOR"),
        ("MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_commit_that_fails_is_answered_in_words_a_client_knows(failure, told):
    play(
        f"""
        hold
        commit - t_0=7
        fetch t_0 stable=yes
        release {failure}
          -: {told}
          {"NOT_COORDINATOR" if told == "COORDINATOR_NOT_AVAILABLE" else told}
        fetch t_0
          t_0=-1
        """
    )


def test_a_commit_that_is_late_counts_when_it_is_durable():
    """It is in the log: only who waits for it is told that its time is up, and who comes meanwhile."""
    world = play(
        """
        hold
        commit - t_0=7
        """
    )
    ((partition, batch, callback),) = world.storage.held
    world.storage.held = None
    offset = world.storage._write(partition, batch)
    callback(errors.REQUEST_TIMED_OUT, offset)
    told = []
    world.shard.after_writes(told.append)
    assert world.take_heard() == ["-: COORDINATOR_NOT_AVAILABLE"]
    assert told == [errors.COORDINATOR_NOT_AVAILABLE]
    assert not world.shard.offsets.group_ids()
    callback(errors.NONE, offset)
    assert world.shard.offsets.get((GROUP, "t", 0)).offset == 7
    assert not world.take_heard() and not world.shard.writes


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_commit_that_is_refused_behind_a_late_one_is_answered(refused_first):
    """The followers are gone: the late one may wait for them for ever, and the others waited for it."""
    world = play(
        """
        hold
        commit - t_0=7
        commit - t_0=8
        """
    )
    (partition, batch, late), (_, _, refused) = world.storage.held
    world.storage.held = None
    offset = world.storage._write(partition, batch)
    if refused_first:
        refused(errors.NOT_ENOUGH_REPLICAS, -1)
        assert not world.take_heard()  # answers keep the order of appends
    late(errors.REQUEST_TIMED_OUT, offset)
    if not refused_first:
        assert world.take_heard() == ["-: COORDINATOR_NOT_AVAILABLE"]
        refused(errors.NOT_ENOUGH_REPLICAS, -1)
        assert world.take_heard() == ["-: COORDINATOR_NOT_AVAILABLE"]
    else:
        assert world.take_heard() == ["-: COORDINATOR_NOT_AVAILABLE"] * 2
    late(errors.NONE, offset)
    assert world.shard.offsets.get((GROUP, "t", 0)).offset == 7
    assert not world.take_heard() and not world.shard.writes


def test_too_much_metadata_is_refused_for_its_partition_only():
    world = World(offset_metadata_max_bytes=4)
    request = messages.OffsetCommitRequest(group_id=GROUP)
    request.topics.append(
        messages.OffsetCommitRequest.Topics(
            name="t",
            partitions=[
                messages.OffsetCommitRequest.Topics.Partitions(
                    partition_index=index, committed_offset=5, committed_metadata=metadata
                )
                for index, metadata in enumerate(["1234", "12345", None])
            ],
        )
    )
    answers = []
    world.coordinator.commit(request, 9, answers.append)
    codes = [partition.error_code for partition in answers[0].topics[0].partitions]
    assert codes == [errors.NONE, errors.OFFSET_METADATA_TOO_LARGE, errors.NONE]
    play("fetch\n  t_0=5 t_2=5", world)
    assert world.shard.offsets.get((GROUP, "t", 0)).metadata == "1234"


def wide_commit(count):
    topics = messages.OffsetCommitRequest.Topics
    partitions = [topics.Partitions(partition_index=index, committed_offset=5) for index in range(count)]
    return messages.OffsetCommitRequest(group_id=GROUP, topics=[topics(name="t", partitions=partitions)])


def test_a_commit_of_many_partitions_is_done_in_steps():
    """9,000 partitions were one turn of 50 ms."""
    world, answers = World(), []
    steps = world.coordinator.commit_steps(wide_commit(5_000), 9, answers.append)
    assert sum(1 for _ in steps) >= 50
    assert {each.error_code for each in answers[0].topics[0].partitions} == {errors.NONE}
    assert len(world.shard.offsets) == 5_000


def test_a_commit_is_refused_if_the_group_has_changed_before_its_last_step():
    world, answers = World(), []
    steps = world.coordinator.commit_steps(wide_commit(1_000), 9, answers.append)
    next(steps)
    world.join("a")
    world.join("a")  # with its id: the group is no simple consumer's any more
    for _ in steps:
        pass
    assert {each.error_code for each in answers[0].topics[0].partitions} == {errors.UNKNOWN_MEMBER_ID}
    assert not len(world.shard.offsets)


def test_a_commit_is_refused_if_its_partition_has_moved_before_its_last_step():
    world, answers = World(), []
    steps = world.coordinator.commit_steps(wide_commit(1_000), 9, answers.append)
    next(steps)
    world.coordinator.unload(world.shard.index)
    for _ in steps:
        pass
    assert {each.error_code for each in answers[0].topics[0].partitions} == {errors.NOT_COORDINATOR}


def test_answers_keep_the_order_of_commits_though_one_is_refused_early():
    world = World()
    world.storage.hold()
    world.commit("-", t_0=1)
    world.commit("-", t_0=2)
    (_, _, first), (_, _, second) = world.storage.held
    second(errors.MESSAGE_TOO_LARGE, -1)
    assert world.take_heard() == []
    first(errors.NONE, 0)
    assert world.take_heard() == ["-: NONE", "-: UNKNOWN_SERVER_ERROR"]


# -- topic ids


def test_an_offset_of_the_topic_that_had_the_name_before_is_not_told():
    world = World()
    old, new = bytes(15) + b"\x01", bytes(15) + b"\x02"
    request = messages.OffsetCommitRequest(group_id=GROUP)
    request.topics.append(
        messages.OffsetCommitRequest.Topics(
            name="t",
            topic_id=old,
            partitions=[
                messages.OffsetCommitRequest.Topics.Partitions(partition_index=0, committed_offset=9)
            ],
        )
    )
    world.coordinator.commit(request, 10, lambda response: None)

    def fetched(topic_id):
        asked = messages.OffsetFetchRequest.Groups(
            group_id=GROUP,
            topics=[
                messages.OffsetFetchRequest.Groups.Topics(name="t", topic_id=topic_id, partition_indexes=[0])
            ],
        )
        answers = []
        at_once(world.coordinator.fetch(asked, False, answers.append))
        return answers[0].topics[0].partitions[0].committed_offset

    assert [fetched(old), fetched(new), fetched(bytes(16))] == [9, -1, 9]

    world.coordinator.on_topics_deleted([("t", new)])
    assert fetched(old) == 9
    world.coordinator.on_topics_deleted([("other", old), ("t", old)])
    assert fetched(old) == -1


def test_a_deleted_topic_takes_commits_on_their_way_with_it():
    world = World()
    world.storage.hold()
    world.commit("-", t_0=1)
    world.coordinator.on_topics_deleted([("t", bytes(16))])
    world.storage.release()
    play("fetch t_0\n  t_0=-1\nreload\nfetch t_0\n  t_0=-1", _silent(world))


# -- what a restart finds


def test_a_restart_finds_offsets_and_members():
    world = play(STABLE)
    play(
        """
        commit A t_0=10
          A: NONE
        commit A t_0=11 t_1=4
          A: NONE NONE
        reload
        describe
          Stable A
        heartbeat A
          A: NONE
        fetch
          t_0=11 t_1=4
        commit A t_0=12
          A: NONE
        # loaded members have a session like all others
        tick 10000
        describe
          Empty
        reload
        describe
          Empty
        fetch
          t_0=12 t_1=4
        """,
        world,
    )
    assert world.group.generation == 2


def test_a_restart_forgets_a_generation_whose_assignment_was_not_written():
    world = play(STABLE)
    play(
        """
        join A
          A: joined 2 as leader, members A
        reload
        heartbeat A
          A: ILLEGAL_GENERATION
        heartbeat A generation=1
          A: NONE
        """,
        world,
    )


def test_deleted_groups_and_offsets_stay_deleted():
    play(
        """
        commit - t_0=7 t_1=8
          -: NONE NONE
        delete t_0
          deleted: NONE
        # nothing is written for what is not there
        delete t_5
          deleted: NONE
        reload
        fetch
          t_1=8
        delete
          deleted: NONE
        log
          offset t_0 7
          offset t_1 8
          offset t_0 -
          offset t_1 -
          group -
        reload
        fetch
          nothing
        describe
          Dead
        delete
          deleted: GROUP_ID_NOT_FOUND
        delete t_0
          deleted: GROUP_ID_NOT_FOUND
        """
    )


def test_a_group_in_use_is_not_deleted_nor_are_the_offsets_of_its_topics():
    world = play(STABLE)
    play(
        """
        commit A t_0=1 u_0=2
          A: NONE NONE
        delete
          deleted: NON_EMPTY_GROUP
        delete t_0
          deleted: GROUP_SUBSCRIBED_TO_TOPIC
        delete u_0
          deleted: NONE
        fetch
          t_0=1
        leave A
          A: left, NONE
        delete t_0
          deleted: NONE
        delete
          deleted: NONE
        """,
        world,
    )


def test_a_deleted_group_takes_commits_on_their_way_with_it():
    play(
        """
        hold
        commit - t_0=7
        delete
        release
          -: NONE
          deleted: NONE
        fetch
          nothing
        reload
        fetch
          nothing
        describe
          Dead
        """
    )


def test_a_group_whose_deletion_fails_is_back():
    play(
        """
        commit - t_0=7
          -: NONE
        hold
        delete
        release NOT_ENOUGH_REPLICAS
          deleted: COORDINATOR_NOT_AVAILABLE
        describe
          Empty
        fetch
          t_0=7
        """
    )


def test_a_group_that_is_loading_says_so():
    world = World()
    shard = world.coordinator.begin_load(world.shard.index)
    play(
        """
        join A
          A: COORDINATOR_LOAD_IN_PROGRESS
        commit - t_0=1
          -: COORDINATOR_LOAD_IN_PROGRESS
        fetch t_0
          COORDINATOR_LOAD_IN_PROGRESS
        # nobody can say yet that it is wrong
        heartbeat A generation=7
          A: NONE
        """,
        world,
    )
    assert at_once(world.coordinator.list([], [])).error_code == errors.COORDINATOR_LOAD_IN_PROGRESS
    world.coordinator.end_load(shard)
    play("fetch t_0\n  t_0=-1", world)


def test_a_larger_group_than_allowed_is_rebalanced_when_it_is_loaded():
    world = play(
        """
        join A version=3
        join B version=3
        tick 6000
          A: joined 1 as leader, members A B
          B: joined 1 after A
        sync A A=t0 B=t1
          A: assigned t0
        """
    )
    world.overrides["group_max_size"] = 1
    play(
        """
        reload
        heartbeat A
          A: REBALANCE_IN_PROGRESS
        join B
        join A
          A: GROUP_MAX_SIZE_REACHED
          B: joined 2 as leader, members B
        """,
        world,
    )


# -- expiry


def _long_lived():
    """A member that lives for a week and a day, with an offset of its topic and one of another."""
    world = play(
        """
        join A version=3 session=1800000
        tick 3000
          A: joined 1 as leader, members A
        sync A A=t0
          A: assigned t0
        commit A t_0=1 u_0=2
          A: NONE NONE
        """
    )
    for _ in range(0, 8 * DAY_MS, 1_700_000):
        world.heartbeat("A")
        world.tick(1_700_000)
    assert set(world.take_heard()) == {"A: NONE"}
    return world


def test_a_living_group_keeps_the_offsets_of_topics_that_it_is_subscribed_to():
    play("fetch\n  t_0=1\ndescribe\n  Stable A", _long_lived())


def test_offsets_of_an_empty_group_count_from_when_it_became_empty():
    world = _long_lived()
    world.leave("A")
    world.take_heard()
    world.tick(7 * DAY_MS - 600_000)
    play("fetch\n  t_0=1\ndescribe\n  Empty", world)
    world.tick(2 * 600_000)
    play("fetch\n  nothing\ndescribe\n  Dead\nreload\nfetch\n  nothing\ndescribe\n  Dead", world)


def test_offsets_of_simple_consumers_count_from_their_commit():
    world = World()
    world.commit("-", t_0=1)
    world.tick(6 * DAY_MS)
    world.commit("-", t_1=1)
    world.tick(DAY_MS + 600_000)
    play("fetch\n  t_1=1\ndescribe\n  Empty", _silent(world))
    world.tick(6 * DAY_MS)
    play("describe\n  Dead", world)


def test_the_longest_retention_time_that_a_client_can_name():
    world = World()
    world.commit("-", version=2, retention=(1 << 63) - 1, t_0=1)
    assert world.shard.offsets.get((GROUP, "t", 0)).expire_timestamp_ms == (1 << 63) - 1


def test_a_retention_time_of_the_clients_own_goes_first():
    world = World()
    world.commit("-", version=2, retention=1_000, t_0=1)
    world.commit("-", version=2, t_1=1)
    world.tick(600_000)
    play("fetch\n  t_1=1", _silent(world))


def test_a_commit_on_its_way_is_not_expired_by_the_one_before():
    world = World()
    world.commit("-", t_0=1)
    world.clock.advance(8 * DAY_MS)
    world.storage.hold()
    world.commit("-", t_0=2)
    world.expire()
    world.storage.release()
    play("fetch\n  t_0=2\nreload\nfetch\n  t_0=2", _silent(world))


def test_many_tombstones_are_written_in_several_batches(monkeypatch):
    monkeypatch.setattr("kafkad.coordinator.shard.TOMBSTONES_MAX", 3)
    world = World()
    world.commit("-", **{f"t_{index}": 1 for index in range(7)})
    before = world.storage.appends
    play("delete\n  deleted: NONE\nreload\nfetch\n  nothing", _silent(world))
    assert world.storage.appends == before + 3 + 1


def test_an_offset_that_is_named_again_and_again_has_one_tombstone():
    world = World()
    world.commit("-", t_0=1, t_1=1)
    world.log()
    world.take_heard()
    cls = messages.OffsetDeleteRequest
    asked = [cls.Topics.Partitions(partition_index=index) for index in (0, 1, 0, 0, 1)]
    answers = []
    world.coordinator.delete_offsets(
        cls(group_id=GROUP, topics=[cls.Topics(name="t", partitions=asked)]), answers.append
    )
    world.log()
    assert world.take_heard() == ["offset t_0 -", "offset t_1 -"]
    assert [row.partition_index for row in answers[0].topics[0].partitions] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("closes", [False, True])
def test_offsets_are_deleted_in_steps(monkeypatch, closes):
    """The partition may move to another coordinator between two of them."""
    monkeypatch.setattr("kafkad.coordinator.shard.TOMBSTONES_MAX", 3)
    monkeypatch.setattr("kafkad.coordinator.shard.VISITED_AT_ONCE", 2)
    world = World()
    world.commit("-", **{f"t_{index}": 1 for index in range(7)})
    cls = messages.OffsetDeleteRequest
    asked = [cls.Topics.Partitions(partition_index=index) for index in range(7)]
    answers = []
    steps = world.coordinator.delete_offsets_steps(
        cls(group_id=GROUP, topics=[cls.Topics(name="t", partitions=asked)]), answers.append
    )
    before = world.storage.appends
    for _ in range(4):  # of 7 partitions
        next(steps)
    assert world.storage.appends == before
    next(steps)
    assert (world.storage.appends, answers) == (before + 1, [])
    if closes:
        world.coordinator.unload(world.shard.index)
    left = len(list(steps))
    assert (left, answers[0].error_code) == ((0, errors.NOT_COORDINATOR) if closes else (1, 0))
    assert world.storage.appends == before + (1 if closes else 3)


def _silent(world):
    world.take_heard()
    return world


# -- the record formats


def test_records_are_written_in_the_versions_of_kafka_4_3():
    key = records.offset_key("g", "t", 3)
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x03"
    topic_id = bytes(range(16))
    value = records.offset_value(CommittedOffset(5, 2, "m", 1_000, topic_id=topic_id))
    assert value == (
        b"\x00\x04" + (5).to_bytes(8, "big") + (2).to_bytes(4, "big") + b"\x02m" + (1_000).to_bytes(8, "big")
        + b"\x01\x00\x10" + topic_id
    )  # fmt: skip
    with_expiry = records.offset_value(CommittedOffset(5, 2, "m", 1_000, 2_000))
    assert with_expiry == (
        b"\x00\x01" + (5).to_bytes(8, "big") + b"\x00\x01m"
        + (1_000).to_bytes(8, "big") + (2_000).to_bytes(8, "big")
    )  # fmt: skip
    assert records.group_key("g") == b"\x00\x02\x00\x01g"
    empty = records.new_group_value(7)
    assert empty == (
        b"\x00\x03" + b"\x00\x00" + bytes(4) + b"\xff\xff" + b"\xff\xff" + (7).to_bytes(8, "big") + bytes(4)
    )  # fmt: skip


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version):
    value = messages.OffsetCommitValue(offset=9, metadata="x", commit_timestamp=4)
    data = version.to_bytes(2, "big") + codec.encode(value, version)
    for kind in (b"\x00\x00", b"\x00\x01"):  # before 4.x the type was the key's version
        found = records.read(kind + records.offset_key("g", "t", 1)[2:], data)
        assert found.value == CommittedOffset(9, -1, "x", 4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00\x04"),
        (b"\x00", b""),
        (b"\x00\x01\x00\x05g", None),
        (b"\x00\x02\x00\x01g", b""),
        (b"\x00\x02\x00\x01g", b"\x00\x05" + bytes(50)),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03", b"\xff\xff" + bytes(50)),
    ],
)
def test_a_record_that_lies_is_refused(key, value):
    with pytest.raises(Malformed):
        records.read(key, value)


def test_records_of_newer_groups_do_no_harm():
    """KIP-848 groups of a JVM broker: their offsets are found, their members are not ours to know."""
    world = World()
    index = world.shard.index
    newer = [
        Record(key=kind.to_bytes(2, "big") + b"\x00\x01g", value=b"\x00\x00" + bytes(9))
        for kind in range(3, 18)
    ]
    offset = Record(key=records.offset_key(GROUP, "t", 0), value=records.offset_value(CommittedOffset(5)))
    world.storage.logs[index] = [bytes(build_batch([*newer, offset]))]
    play("reload\nfetch\n  t_0=5\ndescribe\n  Empty", world)


def test_a_partition_that_cannot_be_read_is_not_served():
    world = World()
    index = world.shard.index
    broken = build_batch([Record(key=records.group_key(GROUP), value=b"\x00\x09")])
    with pytest.raises(Malformed):
        world.coordinator.load(index, [bytes(broken)])
    world.join("A")
    assert world.take_heard() == ["A: NOT_COORDINATOR"]


def test_offsets_committed_in_transactions_wait_for_their_marker():
    def batch(producer_id, offset, base):
        key, value = records.offset_key(GROUP, "t", 0), records.offset_value(CommittedOffset(offset))
        record = Record(key=key, value=value)
        if producer_id is None:
            return bytes(build_batch([record], base_offset=base))
        return bytes(
            build_batch(
                [record],
                base_offset=base,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )

    def marker(producer_id, kind, base):
        return bytes(
            build_batch(
                [end_marker(kind, 0, timestamp=0)],
                base_offset=base,
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
                control=True,
            )
        )

    world = World()
    index = world.shard.index
    world.storage.logs[index] = [batch(None, 1, 0), batch(7, 5, 1), batch(8, 6, 2), marker(8, ABORT, 3)]
    play("reload\nfetch t_0\n  t_0=1\nfetch t_0 stable=yes\n  t_0=-1 UNSTABLE_OFFSET_COMMIT", world)
    world.storage.logs[index].append(marker(7, COMMIT, 4))
    play("reload\nfetch t_0 stable=yes\n  t_0=5", world)
    # a plain commit after the transaction's, before its marker, is the newer one
    world.storage.logs[index] = [batch(7, 5, 0), batch(None, 9, 1), marker(7, COMMIT, 2)]
    play("reload\nfetch t_0\n  t_0=9", world)


def end_transaction(world, producer_id, commit=True):
    heard = []
    world.coordinator.complete_transaction(
        world.shard.index, producer_id, 0, 0, commit=commit, version=0, done=heard.append
    )
    return heard


def with_open_transaction():
    """Offset 5 is committed in a transaction of producer 7, which is open."""
    world = World()
    key, value = records.offset_key(GROUP, "t", 0), records.offset_value(CommittedOffset(5))
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    world.storage.logs[world.shard.index] = [bytes(build_batch([Record(key=key, value=value)], **fields))]
    play("reload\nfetch t_0 stable=yes\n  t_0=-1 UNSTABLE_OFFSET_COMMIT", world)
    return world


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_ends_an_open_transaction(commit):
    world = with_open_transaction()
    assert end_transaction(world, 7, commit) == [errors.NONE]
    play(f"fetch t_0 stable=yes\n  t_0={5 if commit else -1}", world)
    play(f"reload\nfetch t_0 stable=yes\n  t_0={5 if commit else -1}", world)


def test_a_plain_commit_beside_an_open_transaction_wins_if_it_came_later_in_the_log():
    """It had no record offset, so that the transaction's always won, until the next start."""
    world = with_open_transaction()
    play("commit - t_0=9\n  -: NONE", world)
    assert end_transaction(world, 7) == [errors.NONE]
    play("fetch t_0 stable=yes\n  t_0=9\nreload\nfetch t_0 stable=yes\n  t_0=9", world)


def test_a_marker_takes_effect_behind_the_commits_on_their_way_and_not_before_it_is_durable():
    world = with_open_transaction()
    world.storage.hold()
    world.commit("-", t_0=9)
    heard = end_transaction(world, 7)
    (_, _, committed), (_, _, ended) = world.storage.held
    ended(errors.NONE, 2)
    assert (heard, world.take_heard()) == ([], [])
    committed(errors.NONE, 1)
    assert (heard, world.take_heard()) == ([errors.NONE], ["-: NONE"])
    play("fetch t_0 stable=yes\n  t_0=9", world)


@pytest.mark.parametrize("code", [errors.INVALID_PRODUCER_EPOCH, errors.NOT_LEADER_OR_FOLLOWER])
def test_a_marker_that_the_log_refuses_changes_nothing(code):
    world = with_open_transaction()
    world.storage.hold()
    heard = end_transaction(world, 7)
    world.storage.release(code)
    told = {errors.NOT_LEADER_OR_FOLLOWER: errors.NOT_COORDINATOR}
    assert heard == [told.get(code, code)]
    play("fetch t_0 stable=yes\n  t_0=-1 UNSTABLE_OFFSET_COMMIT", world)
    assert end_transaction(world, 7) == [errors.NONE]


def test_a_marker_for_a_partition_that_is_not_coordinated_here_is_refused():
    world = World()
    index = world.shard.index
    world.coordinator.begin_load(index)
    assert end_transaction(world, 7) == [errors.COORDINATOR_LOAD_IN_PROGRESS]
    world.coordinator.unload(index)
    heard = []
    world.coordinator.complete_transaction(index, 7, 0, 0, commit=True, version=0, done=heard.append)
    assert heard == [errors.NOT_COORDINATOR]


# -- which partition


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(1 << 31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),
    ],
)
def test_groups_are_spread_by_javas_hash(text, value):
    assert java_hash(text) == value


def test_the_hash_without_an_absolute_value_is_partition_0():
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("console-consumer-12345", 50) == 6


# -- HUNTS L3: the log's largest message


def test_what_does_not_fit_into_a_message_is_refused_and_leaves_no_trace():
    world = World()
    world.storage.size_max = 1_000
    play(
        """
        commit - t_0=1
          -: NONE
        """,
        world,
    )
    world.commit("-", **{f"t_{number}": 5 for number in range(50)})
    assert set(" ".join(world.take_heard()).split()[1:]) == {"UNKNOWN_SERVER_ERROR"}
    play("fetch\n  t_0=1\nreload\nfetch\n  t_0=1", world)


def test_tombstones_are_split_into_batches_that_fit():
    world = World()
    for start in range(0, 300, 10):
        world.commit("-", **{f"t_{number}": 5 for number in range(start, start + 10)})
    world.take_heard()
    world.storage.size_max = 1_000
    play("delete\n  deleted: NONE\nfetch\n  nothing\nreload\nfetch\n  nothing", world)
    assert max(len(batch) for log in world.storage.logs.values() for batch in log[30:]) <= 1_000


def test_names_of_protocols_that_nobody_supports_any_more_are_forgotten():
    world = play(STABLE)
    for number in range(5):
        world.join("A", also=f"protocol-{number}")
    assert set(world.group._support) == {"range", "protocol-4"}
    world.take_heard()
