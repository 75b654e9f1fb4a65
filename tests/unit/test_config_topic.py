"""Topic and group configuration: where values come from, and what is refused."""

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.client_metrics import validate_client_metrics_configs
from kafkad.config.group import group_values, validate_group_configs
from kafkad.config.topic import TOPIC_KEYS, TopicConfig, topic_values, validate_topic_configs
from kafkad.protocol.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError


def broker(**given: str) -> BrokerConfig:
    return BrokerConfig.load(overrides={key.replace("_", "."): value for key, value in given.items()})


def test_kafkas_defaults() -> None:
    config = TopicConfig()
    assert (config.segment_bytes, config.retention_ms, config.retention_bytes) == (1 << 30, 604_800_000, -1)
    assert (config.max_message_bytes, config.min_insync_replicas) == (1_048_588, 1)
    assert (config.cleanup_policy, config.compact, config.delete) == (("delete",), False, True)
    assert (config.local_retention_ms, config.local_retention_bytes) == (604_800_000, -1)
    assert TopicConfig.resolve(BrokerConfig.load(), {}) == config
    assert repr(config) == "TopicConfig()"


def test_a_topics_own_value_wins_over_the_brokers_over_the_default() -> None:
    config = broker(message_max_bytes="5000", log_cleanup_policy="compact", log_segment_bytes="2000000")
    topic = TopicConfig.resolve(config, {"segment.bytes": "3000000"})
    assert (topic.segment_bytes, topic.max_message_bytes, topic.compact) == (3_000_000, 5000, True)
    assert repr(TopicConfig.resolve(broker(), {"flush.messages": "1"})) == "TopicConfig(flush_messages=1)"


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-7"}, -1),
        ({}, 604_800_000),
    ],
)
def test_milliseconds_win_over_minutes_over_hours(given: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig.resolve(BrokerConfig.load(overrides=given), {}).retention_ms == retention_ms


def test_hours_of_rolling_and_the_schedule_of_flushing_count_too() -> None:
    config = broker(log_roll_hours="2", log_roll_jitter_hours="1", log_flush_scheduler_interval_ms="50")
    topic = TopicConfig.resolve(config, {})
    assert (topic.segment_ms, topic.segment_jitter_ms, topic.flush_ms) == (7_200_000, 3_600_000, 50)


def test_the_hidden_segment_size_applies_and_the_configured_one_is_kept() -> None:
    own = {"internal.segment.bytes": "100"}
    assert TopicConfig.resolve(broker(), own).segment_bytes == 100
    assert topic_values(broker(), own)["segment.bytes"] == 1 << 30


def test_what_an_older_kafka_left_in_the_log_does_not_stop_a_topic() -> None:
    own = {"message.format.version": "2.8", "segment.bytes": "1000", "retention.ms": "?", "flush.ms": "5"}
    config = TopicConfig.resolve(broker(), own)
    assert (config.segment_bytes, config.retention_ms, config.flush_ms) == (1000, 604_800_000, 5)


def test_an_attribute_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="no_such"):
        TopicConfig(no_such=1)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"message.format.version": "2.8"}, "Unknown topic config name: message.format.version"),
        (
            {"retention.ms": "x"},
            "Invalid value x for configuration retention.ms: Not a number of type LONG, allowed is [-1,...]",
        ),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            {"cleanup.policy": "delete,shrink"},
            "Invalid value delete,shrink for configuration cleanup.policy: "
            "String must be one of: compact, delete",
        ),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "conflict topic config setting min.compaction.lag.ms (2) > max.compaction.lag.ms (1)",
        ),
        (
            {"follower.replication.throttled.replicas": "1-2"},
            "Invalid value 1-2 for configuration follower.replication.throttled.replicas: "
            "Entries must be the literal '*' or pairs of [partitionId]:[brokerId]",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
    ],
)
def test_a_topic_cannot_be_configured_so(own: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs(own, broker())
    assert (caught.value.code, caught.value.message) == (INVALID_CONFIG, message)


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact, delete"},
        {"follower.replication.throttled.replicas": "*"},
        {"follower.replication.throttled.replicas": "0:1,1:2"},
        {"retention.ms": "-1"},
        {"compression.type": "zstd", "compression.zstd.level": "-5"},
    ],
)
def test_a_topic_can_be_configured_so(own: dict[str, str]) -> None:
    validate_topic_configs(own, broker())
    validate_topic_configs(own)


@pytest.mark.parametrize(
    ("own", "part"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        ({"local.retention.ms": "9", "retention.ms": "8"}, "local.retention.ms: Value must not be more"),
        ({"local.retention.bytes": "-1", "retention.bytes": "8"}, "local.retention.bytes: Value must not"),
        ({"local.retention.ms": "5", "remote.log.copy.disable": "true"}, "must be equal while"),
    ],
)
def test_a_tiered_topic_has_rules_of_its_own(own: dict[str, str], part: str) -> None:
    config = broker(remote_log_storage_system_enable="true")
    validate_topic_configs({"remote.storage.enable": "true"}, config)
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs({"remote.storage.enable": "true", **own}, config)
    assert part in (caught.value.message or "")


def test_tiering_ends_only_with_its_data() -> None:
    config, before = broker(remote_log_storage_system_enable="true"), {"remote.storage.enable": "true"}
    with pytest.raises(KafkaError, match="Remote storage cannot be turned off"):
        validate_topic_configs({"remote.storage.enable": "false"}, config, before)
    validate_topic_configs({"remote.log.delete.on.disable": "true"}, config, before)


def test_each_topic_key_takes_its_default_from_keys_of_the_broker() -> None:
    config = broker()
    for key in TOPIC_KEYS.values():
        for synonym in key.synonyms:
            config.value(synonym)
        assert config.topic_defaults[key.name] == key.default


def test_a_groups_values_come_from_the_broker_and_stay_within_its_bounds() -> None:
    config = broker(group_consumer_session_timeout_ms="50000")
    assert group_values(config, {})["consumer.session.timeout.ms"] == 50_000
    assert (
        group_values(config, {"consumer.session.timeout.ms": "46000"})["consumer.session.timeout.ms"]
        == 46_000
    )
    validate_group_configs({"consumer.session.timeout.ms": "46000"}, config)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"retention.ms": "1"}, "Unknown group config name: retention.ms"),
        (
            {"share.session.timeout.ms": "70000"},
            "share.session.timeout.ms must be less than or equal to group.share.max.session.timeout.ms",
        ),
        (
            {"streams.num.standby.replicas": "3"},
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (
            {"share.isolation.level": "none"},
            "Invalid value none for configuration share.isolation.level: "
            "String must be one of: read_committed, read_uncommitted",
        ),
    ],
)
def test_a_group_cannot_be_configured_so(own: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_group_configs(own, broker())
    assert (caught.value.code, caught.value.message) == (INVALID_CONFIG, message)


@pytest.mark.parametrize("start", ["latest", "EARLIEST", "by_duration:P1D", "by_duration:P1DT2H3M4.5S"])
def test_where_a_share_group_may_start(start: str) -> None:
    validate_group_configs({"share.auto.offset.reset": start}, broker())


@pytest.mark.parametrize(
    "start", ["", "none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1D"]
)
def test_where_a_share_group_may_not_start(start: str) -> None:
    with pytest.raises(KafkaError, match="ISO 8601"):
        validate_group_configs({"share.auto.offset.reset": start}, broker())


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ({"period": "1"}, INVALID_REQUEST),
        ({"interval.ms": "99"}, INVALID_REQUEST),
        ({"interval.ms": "often"}, INVALID_CONFIG),
        ({"match": "client_id"}, INVALID_CONFIG),
        ({"match": "client_id=["}, INVALID_CONFIG),
        ({"match": f"client_id={'(' * 9_000}{')' * 9_000}"}, INVALID_CONFIG),
        ({"match": f"client_id=a{{{'9' * 20}}}"}, INVALID_CONFIG),
        ({"match": f"client_id=a{{{'9' * 4_301}}}"}, INVALID_CONFIG),
        ({"match": "color=red"}, INVALID_CONFIG),
    ],
)
def test_a_subscription_cannot_be_configured_so(own: dict[str, str], code: int) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_client_metrics_configs(own)
    assert caught.value.code == code


def test_a_subscription_can_be_configured_so() -> None:
    validate_client_metrics_configs(
        {"metrics": "*", "interval.ms": "100", "match": "client_id=a.*,client_source_port=9"}
    )
