"""The controller: what requests make of the image, and what a broker's start does to partitions."""

import random

import pytest
from metadata_world import DIR, Cluster, create, new_topic

from kafkad.controller.configs import APPEND, DELETE, SET, SUBTRACT
from kafkad.controller.topics import invalid_name
from kafkad.metadata.image import BROKER, GROUP, TOPIC
from kafkad.metadata.placement import UsableBroker, place
from kafkad.metadata.uuids import random_uuid, uuid_text
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.producer_ids import ProducerIds


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


# -- creating ----------------------------------------------------------------------------------------------


def test_a_topic_is_there_when_the_answer_is(cluster):
    result = create(cluster, new_topic("flights", 3, configs=[("retention.ms", "5")]))["flights"]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    topic = cluster.image.topics["flights"]
    assert topic.topic_id == result.topic_id
    assert [state.leader for state in topic.partitions.values()] == [1, 1, 1]
    assert topic.partitions[0].directories == (DIR,)
    assert cluster.image.configs[TOPIC, "flights"] == {"retention.ms": "5"}
    delta, image = cluster.heard[-1]
    assert delta.topics_created == {"flights"}
    assert image is cluster.image


def test_all_configs_are_told_with_where_they_come_from(tmp_path):
    cluster = Cluster(tmp_path, log_segment_bytes=2000000)
    configs = {
        c.name: c for c in create(cluster, new_topic("t", configs=[("retention.ms", "5")]))["t"].configs
    }
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("2000000", 4)
    assert (configs["flush.ms"].value, configs["flush.ms"].config_source) == (str(2**63 - 1), 5)
    assert "internal.segment.bytes" not in configs


def test_minus_one_takes_the_brokers_defaults(tmp_path):
    cluster = Cluster(tmp_path, num_partitions=4)
    assert create(cluster, new_topic("t", -1, -1))["t"].num_partitions == 4


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic("t", 0), errors.INVALID_PARTITIONS),
        (new_topic("t", -2), errors.INVALID_PARTITIONS),
        (new_topic("t", 1, 0), errors.INVALID_REPLICATION_FACTOR),
        (new_topic("t", 1, 2), errors.INVALID_REPLICATION_FACTOR),
        (new_topic("t", 10_001), errors.POLICY_VIOLATION),
        (new_topic(""), errors.INVALID_TOPIC_EXCEPTION),
        (new_topic("."), errors.INVALID_TOPIC_EXCEPTION),
        (new_topic("a b"), errors.INVALID_TOPIC_EXCEPTION),
        (new_topic("x" * 250), errors.INVALID_TOPIC_EXCEPTION),
        (new_topic("there"), errors.TOPIC_ALREADY_EXISTS),
        (new_topic("a.b"), errors.INVALID_TOPIC_EXCEPTION),
        (new_topic("__cluster_metadata"), errors.INVALID_REQUEST),
        (new_topic("t", configs=[("no.such.key", "1")]), errors.INVALID_CONFIG),
        (new_topic("t", configs=[("retention.ms", "soon")]), errors.INVALID_CONFIG),
        (new_topic("t", configs=[("retention.ms", None)]), errors.INVALID_CONFIG),
        (new_topic("t", 1, -1, assignments=[(0, [1])]), errors.INVALID_REQUEST),
        (new_topic("t", -1, 1, assignments=[(0, [1])]), errors.INVALID_REQUEST),
        (new_topic("t", -1, -1, assignments=[(0, [2])]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("t", -1, -1, assignments=[(0, [])]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("t", -1, -1, assignments=[(0, [1, 1])]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("t", -1, -1, assignments=[(0, [1]), (0, [1])]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("t", -1, -1, assignments=[(0, [1]), (2, [1])]), errors.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_cannot_be_created_is_refused_and_changes_nothing(cluster, topic, code):
    create(cluster, new_topic("there"), new_topic("a_b"))
    before = cluster.voter.next_offset
    result = create(cluster, topic)[topic.name]
    assert result.error_code == code
    assert result.error_message
    assert cluster.voter.next_offset == before


def test_of_several_topics_the_good_ones_are_created(cluster):
    results = create(
        cluster, new_topic("a"), new_topic("b", 0), new_topic("c"), new_topic("d"), new_topic("d")
    )
    assert {name: r.error_code for name, r in results.items()} == {
        "a": 0,
        "b": errors.INVALID_PARTITIONS,
        "c": 0,
        "d": errors.INVALID_REQUEST,
    }
    assert set(cluster.image.topics) == {"a", "c"}


def test_one_request_makes_no_more_partitions_than_kafka_lets_it(cluster):
    most = 10_000
    results = create(cluster, new_topic("a", most), new_topic("b", 1))
    assert {r.error_code for r in results.values()} == {errors.POLICY_VIOLATION}
    results = create(cluster, new_topic("a", most + 1), new_topic("b", -most))  # nothing is taken off by it
    assert results["a"].error_code == errors.POLICY_VIOLATION
    assert not cluster.image.topics


def test_one_request_adds_no_more_partitions_than_that_to_all_its_topics(cluster):
    create(cluster, new_topic("a"), new_topic("b"), new_topic("c"))
    cls = messages.CreatePartitionsRequest
    asked = [cls.Topics(name=name, count=4_001, assignments=None) for name in "abc"]
    answer = cluster.controller.create_partitions(cls(topics=asked, validate_only=True))
    assert [each.error_code for each in answer.results] == [0, 0, errors.POLICY_VIOLATION]


def test_names_that_collide_within_one_request_are_refused_too(cluster):
    results = create(cluster, new_topic("a.b"), new_topic("a_b"))
    assert [results["a.b"].error_code, results["a_b"].error_code] == [0, errors.INVALID_TOPIC_EXCEPTION]


def test_validate_only_answers_and_changes_nothing(cluster):
    before = cluster.voter.next_offset
    result = create(cluster, new_topic("t", 2), validate_only=True)["t"]
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert cluster.voter.next_offset == before


def test_a_full_disk_is_the_answer_of_each_topic_and_changes_nothing(cluster):
    cluster.log.failing = "append"
    results = create(cluster, new_topic("t"), new_topic("#"))
    assert results["t"].error_code == errors.KAFKA_STORAGE_ERROR
    assert results["#"].error_code == errors.INVALID_TOPIC_EXCEPTION
    cluster.log.failing = None
    assert "t" not in cluster.controller.head.topics
    assert create(cluster, new_topic("t"))["t"].error_code == 0


def test_the_offsets_topic_is_made_as_kafka_makes_it_on_one_broker(tmp_path):
    cluster = Cluster(tmp_path, offsets_topic_num_partitions=7)
    assert cluster.controller.auto_create(["__consumer_offsets", "plain"]) == {
        "__consumer_offsets": None,
        "plain": None,
    }
    assert len(cluster.image.topics["__consumer_offsets"].partitions) == 7
    assert cluster.image.configs[TOPIC, "__consumer_offsets"] == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    assert cluster.controller.auto_create(["plain"]) == {}
    assert cluster.controller.auto_create(["pl ain"])["pl ain"].code == errors.INVALID_TOPIC_EXCEPTION
    assert cluster.controller.auto_create(["__transaction_state", "__share_group_state"]) == {
        "__transaction_state": None,
        "__share_group_state": None,
    }


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 249, "..."])
def test_names_that_may_be(name):
    assert invalid_name(name) is None


# -- deleting, growing -------------------------------------------------------------------------------------


def delete(cluster, *topics, names=(), version=6):
    class Context:
        pass

    context = Context()
    context.version = version
    cls = messages.DeleteTopicsRequest
    request = cls(topics=[cls.Topics(name=n, topic_id=i) for n, i in topics], topic_names=list(names))
    return [(r.name, r.error_code) for r in cluster.controller.delete_topics(request, context).responses]


def test_topics_are_deleted_by_name_and_by_id(cluster):
    create(cluster, new_topic("a"), new_topic("b"), new_topic("c"))
    topic_id = cluster.image.topics["b"].topic_id
    assert delete(cluster, ("a", bytes(16)), (None, topic_id)) == [("b", 0), ("a", 0)]
    assert delete(cluster, names=["c"], version=5) == [("c", 0)]
    assert not cluster.image.topics
    assert [t.name for t in cluster.heard[-2][0].topics_deleted] == ["b", "a"]


def test_deletions_that_make_no_sense_are_refused(cluster):
    create(cluster, new_topic("a"))
    topic_id = cluster.image.topics["a"].topic_id
    none = bytes(16)
    assert delete(cluster, ("x", none)) == [("x", errors.UNKNOWN_TOPIC_OR_PARTITION)]
    assert delete(cluster, (None, b"x" * 16)) == [(None, errors.UNKNOWN_TOPIC_ID)]
    assert delete(cluster, (None, none)) == [(None, errors.INVALID_REQUEST)]
    assert delete(cluster, ("a", topic_id)) == [("a", errors.INVALID_REQUEST)]
    assert delete(cluster, ("a", none), ("a", none)) == [("a", errors.INVALID_REQUEST)]
    assert delete(cluster, ("a", none), (None, topic_id)) == [("a", errors.INVALID_REQUEST)]
    assert delete(cluster, (None, topic_id), (None, topic_id)) == [(None, errors.INVALID_REQUEST)]
    assert set(cluster.image.topics) == {"a"}


def test_deleting_can_be_switched_off(tmp_path):
    cluster = Cluster(tmp_path, delete_topic_enable="false")
    create(cluster, new_topic("a"))
    assert delete(cluster, ("a", bytes(16))) == [("a", errors.TOPIC_DELETION_DISABLED)]
    assert delete(cluster, names=["a"], version=2) == [("a", errors.INVALID_REQUEST)]
    assert set(cluster.image.topics) == {"a"}


def test_a_topic_that_is_made_again_has_another_id(cluster):
    create(cluster, new_topic("a"))
    before = cluster.image.topics["a"].topic_id
    delete(cluster, ("a", bytes(16)))
    create(cluster, new_topic("a"))
    assert cluster.image.topics["a"].topic_id != before


def grow(cluster, name, count, assignments=None, validate_only=False):
    cls = messages.CreatePartitionsRequest
    listed = None if assignments is None else [cls.Topics.Assignments(broker_ids=ids) for ids in assignments]
    request = cls(
        topics=[cls.Topics(name=name, count=count, assignments=listed)], validate_only=validate_only
    )
    return cluster.controller.create_partitions(request).results[0].error_code


def test_a_topic_grows(cluster):
    create(cluster, new_topic("a"))
    assert grow(cluster, "a", 3, validate_only=True) == 0
    assert len(cluster.image.topics["a"].partitions) == 1
    assert grow(cluster, "a", 3) == 0
    assert grow(cluster, "a", 4, [[1]]) == 0
    assert sorted(cluster.image.topics["a"].partitions) == [0, 1, 2, 3]
    assert grow(cluster, "a", 4) == errors.INVALID_PARTITIONS
    assert grow(cluster, "a", 2) == errors.INVALID_PARTITIONS
    assert grow(cluster, "x", 2) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(cluster, "a", 5, [[1], [1]]) == errors.INVALID_REPLICA_ASSIGNMENT
    assert grow(cluster, "a", 5, [[9]]) == errors.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_the_topic_of_a_coordinator_does_not_grow(cluster, name):
    """Its number of partitions says in which of them a transactional id, or a group, is."""
    cluster.controller.auto_create([name])
    count = len(cluster.image.topics[name].partitions)
    assert grow(cluster, name, count + 1) == errors.INVALID_PARTITIONS
    assert len(cluster.image.topics[name].partitions) == count


# -- starting again ----------------------------------------------------------------------------------------


def test_a_clean_restart_leaves_leader_epochs_alone(cluster):
    create(cluster, new_topic("a"))
    cluster.stop()
    cluster.start()
    assert cluster.image.brokers[1].active
    assert cluster.state("a").leader_epoch == 0


def test_after_a_crash_every_partition_has_a_new_leader_epoch(cluster):
    create(cluster, new_topic("a", 2))
    cluster.kill()
    cluster.start()
    assert [s.leader_epoch for s in cluster.image.topics["a"].partitions.values()] == [1, 1]
    assert cluster.state("a").isr == (1,)


def test_the_broker_epoch_is_the_offset_of_the_registration(cluster):
    assert cluster.image.brokers[1].epoch == cluster.controller.broker_epoch
    first = cluster.controller.broker_epoch
    cluster.kill()
    expected = cluster.voter.next_offset + 1  # after the leader change
    cluster.start()
    assert cluster.controller.broker_epoch == expected > first


def change(cluster, topic, index=0, **fields):
    topic_id = cluster.image.topics[topic].topic_id
    return messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id, **fields)


def test_a_partition_that_kafka_left_without_a_leader_is_led_again(cluster):
    """What a clean stop of Kafka with ELR leaves: no ISR, an eligible replica."""
    create(cluster, new_topic("a"))
    cluster.append(change(cluster, "a", isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]))
    cluster.stop()
    cluster.start()
    state = cluster.state("a")
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert state.leader_epoch == 2


def test_a_partition_whose_last_leader_alone_is_known_is_led_by_it(cluster):
    """What an unclean stop of Kafka with ELR leaves if it stops again before it leads."""
    create(cluster, new_topic("a"))
    cluster.append(change(cluster, "a", isr=[], leader=-1, last_known_elr=[1]))
    cluster.kill()
    cluster.start()
    state = cluster.state("a")
    assert (state.leader, state.isr, state.last_known_elr, state.leader_recovery_state) == (1, (1,), (), 0)


def test_a_partition_in_a_directory_that_is_gone_has_no_leader(cluster):
    create(cluster, new_topic("a"))
    cluster.kill()
    cluster.start(directories=(b"e" * 16,))
    assert cluster.state("a").leader == -1
    cluster.kill()
    cluster.start()
    assert cluster.state("a").leader == 1


def test_other_brokers_are_fenced_and_their_partitions_have_no_leader(cluster):
    create(cluster, new_topic("a"))
    other = messages.RegisterBrokerRecord(broker_id=2, broker_epoch=5, fenced=False, log_dirs=[b"f" * 16])
    topic_id = b"o" * 16
    cluster.append(
        other,
        messages.TopicRecord(name="theirs", topic_id=topic_id),
        messages.PartitionRecord(
            partition_id=0, topic_id=topic_id, replicas=[2, 1], isr=[2, 1], leader=2, leader_epoch=3,
            partition_epoch=0, directories=[b"f" * 16, DIR],
        ),
        messages.PartitionRecord(
            partition_id=1, topic_id=topic_id, replicas=[2], isr=[2], leader=2, leader_epoch=3,
            partition_epoch=0, directories=[b"f" * 16],
        ),
    )  # fmt: skip
    cluster.kill()
    cluster.start()
    assert cluster.image.brokers[2].fenced
    assert (cluster.state("theirs", 0).leader, cluster.state("theirs", 0).isr) == (1, (1,))
    gone = cluster.state("theirs", 1)
    assert (gone.leader, gone.isr, gone.elr) == (-1, (), (2,))


def test_with_several_directories_the_broker_reports_where_it_put_replicas(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.kill()
    cluster.start(directories=(DIR, b"e" * 16))
    create(cluster, new_topic("a"))
    assert uuid_text(cluster.state("a").directories[0]) == "AAAAAAAAAAAAAAAAAAAAAQ"
    topic_id = cluster.image.topics["a"].topic_id
    cluster.controller.assign_directories({(topic_id, 0): b"e" * 16, (b"?" * 16, 0): DIR})
    assert cluster.state("a").directories == (b"e" * 16,)
    assert cluster.state("a").leader_epoch == 0
    before = cluster.voter.next_offset
    cluster.controller.assign_directories({(topic_id, 0): b"e" * 16})
    assert cluster.voter.next_offset == before


def test_a_subscriber_that_changes_metadata_is_our_mistake(cluster):
    cluster.controller.subscribe(lambda delta, image: cluster.controller.allocate_producer_ids())
    with pytest.raises(AssertionError):
        cluster.controller.allocate_producer_ids()


# -- producer ids ------------------------------------------------------------------------------------------


def test_producer_ids_never_repeat_not_even_after_a_crash(cluster):
    seen = set()
    for _ in range(3):
        ids = ProducerIds(cluster.controller)
        for _ in range(1500):
            seen.add(ids.generate())
        cluster.kill()
        cluster.start()
    assert len(seen) == 4500
    assert cluster.image.next_producer_id == 6000


def test_no_producer_id_is_given_out_that_could_not_be_remembered(cluster):
    cluster.log.failing = "flush"
    with pytest.raises(KafkaError):
        ProducerIds(cluster.controller).generate()


# -- configs -----------------------------------------------------------------------------------------------


def alter(cluster, resource, changes, **flags):
    return cluster.controller.incremental_alter_configs({resource: changes}, **flags)[resource]


def test_configs_are_set_appended_to_and_deleted(cluster):
    create(cluster, new_topic("a"))
    resource = (TOPIC, "a")
    assert (
        alter(cluster, resource, {"cleanup.policy": (APPEND, "compact"), "retention.ms": (SET, "5")}) is None
    )
    assert cluster.image.configs[resource] == {"cleanup.policy": "delete,compact", "retention.ms": "5"}
    assert cluster.heard[-1][0].configs_changed == {resource}
    assert (
        alter(cluster, resource, {"cleanup.policy": (SUBTRACT, "delete"), "retention.ms": (DELETE, None)})
        is None
    )
    assert cluster.image.configs[resource] == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("resource", "changes", "code"),
    [
        ((TOPIC, "a"), {"retention.ms": (SET, "x")}, errors.INVALID_CONFIG),
        ((TOPIC, "a"), {"nonsense": (SET, "1")}, errors.INVALID_CONFIG),
        ((TOPIC, "a"), {"retention.ms": (APPEND, "1")}, errors.INVALID_CONFIG),
        ((TOPIC, "a"), {"retention.ms": (9, "1")}, errors.INVALID_REQUEST),
        ((TOPIC, "b"), {"retention.ms": (SET, "1")}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPIC, ""), {"retention.ms": (SET, "1")}, errors.INVALID_REQUEST),
        ((TOPIC, "a b"), {"retention.ms": (SET, "1")}, errors.INVALID_TOPIC_EXCEPTION),
        ((BROKER, "x"), {"log.retention.ms": (SET, "1")}, errors.INVALID_REQUEST),
        ((BROKER, "7"), {"log.retention.ms": (SET, "1")}, errors.BROKER_ID_NOT_REGISTERED),
        ((BROKER, "1"), {"log.retention.ms": (SET, "soon")}, errors.INVALID_CONFIG),
        ((BROKER, "1"), {"min.insync.replicas": (SET, "2")}, errors.INVALID_CONFIG),
        ((BROKER, ""), {"min.insync.replicas": (DELETE, None)}, errors.INVALID_CONFIG),
        ((BROKER, "1"), {"log.retention.ms": (SET, "1" * 40000)}, errors.INVALID_CONFIG),
        ((GROUP, ""), {"consumer.session.timeout.ms": (SET, "50000")}, errors.INVALID_REQUEST),
        ((99, "a"), {"x": (SET, "1")}, errors.INVALID_REQUEST),
    ],
)
def test_configs_that_cannot_be_are_refused(cluster, resource, changes, code):
    create(cluster, new_topic("a"))
    before = cluster.voter.next_offset
    assert alter(cluster, resource, changes).code == code
    assert cluster.voter.next_offset == before


def test_one_resource_may_fail_without_the_others(cluster):
    create(cluster, new_topic("a"))
    outcome = cluster.controller.incremental_alter_configs(
        {(TOPIC, "a"): {"retention.ms": (SET, "5")}, (TOPIC, "b"): {"retention.ms": (SET, "5")}}
    )
    assert outcome[TOPIC, "a"] is None
    assert outcome[TOPIC, "b"] is not None
    assert cluster.image.configs[TOPIC, "a"] == {"retention.ms": "5"}


def test_absolute_alteration_drops_what_it_does_not_name(cluster):
    create(cluster, new_topic("a", configs=[("retention.ms", "5"), ("flush.ms", "9")]))
    assert cluster.controller.alter_configs({(TOPIC, "a"): {"flush.ms": "8"}}, validate_only=True) == {
        (TOPIC, "a"): None
    }
    assert cluster.image.configs[TOPIC, "a"] == {"retention.ms": "5", "flush.ms": "9"}
    cluster.controller.alter_configs({(TOPIC, "a"): {"flush.ms": "8"}})
    assert cluster.image.configs[TOPIC, "a"] == {"flush.ms": "8"}


def test_a_change_that_changes_nothing_writes_nothing(cluster):
    create(cluster, new_topic("a", configs=[("flush.ms", "9")]))
    before = cluster.voter.next_offset
    assert alter(cluster, (TOPIC, "a"), {"flush.ms": (SET, "9")}) is None
    assert cluster.voter.next_offset == before


# -- placement ---------------------------------------------------------------------------------------------


def test_leaders_and_replicas_are_spread_evenly_over_brokers():
    brokers = [UsableBroker(n, None, False) for n in range(6)]
    placed = place(brokers, 600, 3, random.Random(1))
    leaders = [replicas[0] for replicas in placed]
    assert all(len(set(replicas)) == 3 for replicas in placed)
    assert max(map(leaders.count, range(6))) - min(map(leaders.count, range(6))) <= 12


def test_replicas_are_spread_over_racks_first():
    brokers = [UsableBroker(n, f"r{n % 3}", False) for n in range(6)]
    for replicas in place(brokers, 100, 3, random.Random(1)):
        assert len({n % 3 for n in replicas}) == 3


def test_a_leader_is_never_a_fenced_broker():
    brokers = [UsableBroker(1, None, True), UsableBroker(2, None, False), UsableBroker(3, None, True)]
    for replicas in place(brokers, 50, 2, random.Random(1)):
        assert replicas[0] == 2
        assert len(set(replicas)) == 2


@pytest.mark.parametrize(
    ("brokers", "factor"),
    [
        ([UsableBroker(1, None, False)], 2),
        ([UsableBroker(1, None, True)], 1),
        ([], 1),
        ([UsableBroker(1, None, False)], 0),
    ],
)
def test_placements_that_cannot_be(brokers, factor):
    with pytest.raises(KafkaError) as caught:
        place(brokers, 1, factor, random.Random(1))
    assert caught.value.code == errors.INVALID_REPLICATION_FACTOR


def test_uuids_are_never_written_with_a_leading_dash():
    chance = random.Random(1)
    assert all(not uuid_text(random_uuid(chance)).startswith("-") for _ in range(1000))
