"""The image: what the records of the metadata log come to, and back."""

import pytest

from kafkad.metadata import features
from kafkad.metadata.image import DIRECTORY_MIGRATING, MetadataImage, PartitionState
from kafkad.metadata.records import Decoder, UnknownRecord, decode_record, encode_record, record_version
from kafkad.metadata.replay import Loader, ReplayError, applied
from kafkad.protocol import messages
from kafkad.protocol.errors import Malformed

T1, T2, DIR = b"t" * 16, b"u" * 16, b"d" * 16
LEVEL = 30


def topic(name="flights", topic_id=T1):
    return messages.TopicRecord(name=name, topic_id=topic_id)


def partition(index=0, topic_id=T1, **fields):
    base = {
        "replicas": [1],
        "isr": [1],
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": [DIR],
    }
    return messages.PartitionRecord(partition_id=index, topic_id=topic_id, **(base | fields))


def change(index=0, topic_id=T1, **fields):
    return messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id, **fields)


def config(name, value, resource="flights", kind=2):
    return messages.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def level(name="metadata.version", value=LEVEL):
    return messages.FeatureLevelRecord(name=name, feature_level=value)


def broker(broker_id=1, epoch=5, **fields):
    cls = messages.RegisterBrokerRecord
    base = {
        "incarnation_id": b"i" * 16,
        "end_points": [cls.EndPoints(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
        "features": [
            cls.Features(name="metadata.version", min_supported_version=7, max_supported_version=30)
        ],
        "log_dirs": [DIR],
    }
    return cls(broker_id=broker_id, broker_epoch=epoch, **(base | fields))


def image_of(*records):
    return applied(MetadataImage(), records, offset=len(records) - 1, epoch=1)[0]


def test_a_topic_is_found_by_name_and_by_id():
    image = image_of(topic(), partition(0), partition(1))
    assert image.topics["flights"] is image.topics_by_id[T1]
    assert image.topics["flights"].partitions[1] == PartitionState(
        leader=1, leader_epoch=0, replicas=(1,), isr=(1,), directories=(DIR,), partition_epoch=0
    )
    assert image.offset == 2


def test_an_image_does_not_change_under_its_reader():
    before = image_of(topic(), partition())
    seen = dict(before.topics["flights"].partitions)
    after, delta = applied(
        before, [change(leader=1), topic("other", T2), partition(topic_id=T2), config("a", "1")]
    )
    assert before.topics["flights"].partitions == seen
    assert set(before.topics) == {"flights"}
    assert before.configs == {}
    assert after.topics["flights"].partitions[0].leader_epoch == 1
    assert delta.topics_created == {"other"}
    assert delta.topics_changed == {"flights", "other"}
    assert delta.configs_changed == {(2, "flights")}


def test_what_no_record_touched_is_shared():
    before = image_of(topic(), partition(), config("retention.ms", "1"))
    after, _ = applied(before, [config("retention.ms", "2")])
    assert after.topics is before.topics
    assert after.configs[2, "flights"] == {"retention.ms": "2"}


def test_naming_a_leader_raises_the_leader_epoch_even_when_it_is_the_same():
    image, _ = applied(image_of(topic(), partition()), [change(leader=1), change(isr=[1])])
    state = image.topics["flights"].partitions[0]
    assert (state.leader_epoch, state.partition_epoch) == (1, 2)


def test_a_topic_that_is_made_again_has_its_old_self_among_the_deleted():
    before = image_of(topic(), partition(), config("retention.ms", "1"))
    image, delta = applied(
        before, [messages.RemoveTopicRecord(topic_id=T1), topic("flights", T2), partition(topic_id=T2)]
    )
    assert [old.topic_id for old in delta.topics_deleted] == [T1]
    assert delta.topics_created == {"flights"}
    assert image.topics["flights"].topic_id == T2
    assert (2, "flights") not in image.configs


def test_a_topic_that_came_and_went_in_one_step_leaves_no_trace():
    image, delta = applied(MetadataImage(), [topic(), partition(), messages.RemoveTopicRecord(topic_id=T1)])
    assert not image.topics
    assert not delta.topics_created
    assert not delta.topics_changed
    assert not delta.topics_deleted


def test_the_last_config_of_a_resource_takes_the_resource_along():
    image, _ = applied(image_of(topic(), config("a", "1")), [config("a", None)])
    assert image.configs == {}


def test_records_without_directories_count_as_migrating():
    image = image_of(topic(), partition(directories=[], replicas=[1, 2]))
    assert image.topics["flights"].partitions[0].directories == (DIRECTORY_MIGRATING, DIRECTORY_MIGRATING)


def test_a_broker_is_fenced_until_a_change_says_otherwise():
    image = image_of(broker())
    assert image.brokers[1].fenced
    unfence = messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1)
    image, delta = applied(image, [unfence])
    assert image.brokers[1].active
    assert delta.brokers_changed == {1}
    image, _ = applied(
        image,
        [messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)],
    )
    assert not image.brokers[1].active


@pytest.mark.parametrize(
    "record",
    [
        partition(topic_id=T2),
        change(index=9),
        change(topic_id=T2),
        messages.RemoveTopicRecord(topic_id=T2),
        topic("flights", T2),
        messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1),
        messages.FenceBrokerRecord(id=2, epoch=5),
        messages.UnregisterBrokerRecord(broker_id=1, broker_epoch=6),
        messages.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=1000),
        change(replicas=[1, 2]),
    ],
)
def test_a_record_that_cannot_follow_is_refused(record):
    base = image_of(topic(), partition(), broker(), messages.ProducerIdsRecord(next_producer_id=1000))
    with pytest.raises(ReplayError):
        applied(base, [record])


def quota(name, value=1.0, remove=False):
    cls = messages.ClientQuotaRecord
    return cls(
        entity=[cls.Entity(entity_type="client-id", entity_name=name)], key="x", value=value, remove=remove
    )


def test_an_image_is_rebuilt_from_its_own_records():
    image = image_of(
        level(),
        level("group.version", 1),
        broker(),
        broker(2, 6, rack="r", fenced=False, cordoned_log_dirs=[DIR]),
        messages.RegisterControllerRecord(controller_id=1, incarnation_id=b"c" * 16),
        topic(),
        partition(0),
        partition(
            1, isr=[], leader=-1, leader_recovery_state=1, eligible_leader_replicas=[1], last_known_elr=[1]
        ),
        config("retention.ms", "5"),
        config("min.insync.replicas", "1", "", 4),
        quota("a"),
        quota(None),
        messages.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000),
        messages.AccessControlEntryRecord(
            id=b"a" * 16, resource_type=2, resource_name="x", principal="User:a"
        ),
        messages.UserScramCredentialRecord(name="bob", mechanism=1, salt=b"s", iterations=4096),
        messages.DelegationTokenRecord(owner="User:a", token_id="tok"),
        UnknownRecord(99, b"\x01\x63\x00whatever"),
    )
    values = [encode_record(record, LEVEL) for record in image.records()]
    again = applied(MetadataImage(), map(decode_record, values), offset=image.offset, epoch=image.epoch)[0]
    for part in MetadataImage.PARTS:
        assert getattr(again, part) == getattr(image, part), part
    assert again.next_producer_id == 3000
    assert len(again.client_quotas) == 2
    removed, _ = applied(
        again,
        [
            quota(None, remove=True),
            messages.RemoveAccessControlEntryRecord(id=b"a" * 16),
            messages.RemoveUserScramCredentialRecord(name="bob", mechanism=1),
            messages.RemoveDelegationTokenRecord(token_id="tok"),
        ],
    )
    assert len(removed.client_quotas) == 1
    assert not removed.acls
    assert not removed.scram_credentials
    assert not removed.delegation_tokens
    assert list(removed.unknown.values()) == [UnknownRecord(99, b"\x01\x63\x00whatever")]


def test_a_metadata_transaction_takes_effect_at_its_end():
    loader = Loader(MetadataImage())
    place = {"epoch": 1, "timestamp_ms": 7}
    loader.feed([messages.BeginTransactionRecord(), topic()], last_offset=1, **place)
    assert loader.in_transaction
    assert not loader.finish()[0].topics
    loader.feed([partition(), messages.EndTransactionRecord()], last_offset=3, **place)
    image, delta = loader.finish()
    assert delta.topics_created == {"flights"}
    assert (image.offset, image.timestamp_ms) == (3, 7)


def test_an_aborted_metadata_transaction_never_was():
    loader = Loader(MetadataImage())
    loader.feed(
        [messages.BeginTransactionRecord(), topic(), messages.AbortTransactionRecord(), topic("b", T2)],
        last_offset=3,
        epoch=1,
        timestamp_ms=0,
    )
    assert set(loader.finish()[0].topics) == {"b"}


def test_records_are_framed_as_kafka_frames_them():
    assert encode_record(level("a", 2), LEVEL) == b"\x01\x0c\x00" + b"\x02a" + b"\x00\x02" + b"\x00"
    assert decode_record(b"\x01\x0c\x00\x02a\x00\x02\x00") == level("a", 2)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x00\x0c\x00\x02a\x00\x02\x00",
        b"\x02\x0c\x00",
        b"\x01\x0c\x01\x02a\x00\x02\x00",
        b"\x01\x0c\x00\x02a\x00\x02\x00rest",
        b"\x01\x0c\x00\x02a",
        b"\x01\xff\xff\xff\x01",
    ],
)
def test_a_frame_that_lies_is_malformed(value):
    with pytest.raises(Malformed):
        decode_record(value)


def test_record_versions_follow_metadata_version():
    assert [record_version(broker(), n) for n in (7, 8, 17, 29, 30)] == [1, 2, 3, 3, 4]
    assert [record_version(partition(), n) for n in (7, 17, 22, 23)] == [0, 1, 1, 2]
    assert record_version(level(), 30) == 0
    assert record_version(messages.BrokerRegistrationChangeRecord(fenced=-1), 30) == 0
    assert record_version(messages.BrokerRegistrationChangeRecord(log_dirs=[DIR]), 30) == 2


def test_levels_above_our_own_are_named():
    assert features.unsupported(features.fresh_levels()) is None
    assert "metadata.version at level 31" in (features.unsupported({"metadata.version": 31}) or "")
    assert "new.feature" in (features.unsupported({"new.feature": 1}) or "")
    assert next(iter(features.fresh_levels().items())) == ("metadata.version", 30)


def test_partitions_that_are_alike_are_decoded_once_and_replayed_as_if_each_were():
    old = [{}, {"isr": [], "leader": -1}, {"leader_epoch": 7, "partition_epoch": 9}]
    placed = [*old, {"directories": [T1]}]
    latest = [*placed, {"eligible_leader_replicas": [1], "isr": []}]
    for states, none, level in ((old, {"directories": []}, 7), (placed, {}, 20), (latest, {}, LEVEL)):
        count = len(states)
        records = [topic(), topic("ferries", T2)]
        records += [partition(index, T1, **none | states[index * 7 % count]) for index in range(300)]
        records += [partition(index, T2, **none | states[index // 3 % count]) for index in range(300)]
        values = [encode_record(record, level) for record in records]
        assert {decode_record(value).RECORD_TYPE for value in values} == {2, 3}
        decoder = Decoder()
        quick = image_of(*map(decoder.decode, values))
        assert list(quick.records()) == list(image_of(*map(decode_record, values)).records())
        assert len({id(state) for each in quick.topics.values() for state in each.partitions.values()}) <= 5


@pytest.mark.parametrize("size", [0, 1, 2, 3, 6, 22, 23, 24, 30])
def test_a_partition_that_is_cut_short_is_malformed_also_when_others_were_read(size):
    decoder = Decoder()
    value = encode_record(partition(), LEVEL)
    decoder.decode(value)
    decoder.decode(value)
    with pytest.raises(Malformed):
        decoder.decode(value[:size])
    with pytest.raises(Malformed):
        decoder.decode(value + b"x")
    with pytest.raises(Malformed):
        decoder.decode(value[:2] + b"\x07" + value[3:])


def test_packed_topics_are_the_same_topics():
    image = image_of(
        topic(), topic("ferries", T2), topic("empty", DIR),
        *(partition(index, isr=[1] if index % 3 else []) for index in range(50)), partition(3, T2),
    )  # fmt: skip
    other = MetadataImage()
    other.unpack_topics(memoryview(image.pack_topics()))
    assert other.topics == image.topics
    assert list(other.topics) == list(image.topics)
    assert all(other.topics_by_id[each.topic_id] is each for each in other.topics.values())
    state = other.topics["flights"].partitions[0]
    assert type(state) is PartitionState
    assert state == image.topics["flights"].partitions[0]


def test_security_records_that_nobody_enforces_are_counted() -> None:
    """A start on a metadata log with ACLs, while there is no authorizer, logs one warning with their
    number."""
    from kafkad.server.worker import not_enforced

    image = MetadataImage("cluster", 1)
    assert not_enforced(image) is None
    image, _ = applied(
        image,
        [
            messages.AccessControlEntryRecord(
                id=bytes([n]) * 16,
                resource_type=2,
                resource_name="t",
                principal="User:a",
                host="*",
                operation=3,
            )
            for n in range(3)
        ]
        + [messages.UserScramCredentialRecord(name="bob", mechanism=1, salt=b"s", iterations=4096)],
    )
    assert not_enforced(image) == (
        "the metadata log holds 3 ACLs: they are kept, but not enforced. Every client may do everything"
    )
