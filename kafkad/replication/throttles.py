"""Throttled replicas and their limits (KIP-73).

A topic lists its throttled replicas, as `partition:broker` or `*`, once for leaders and once for followers.
Two dynamic keys of the broker limit the bytes per second that such partitions serve and fetch. The counting
is native (_native/serving/replication_quota)."""

from typing import Final

from kafkad._native.serving.replication_quota import FOLLOWER, LEADER, ReplicationQuota
from kafkad._native.shared.quota_table import QuotaTable
from kafkad.config.broker import BrokerConfig
from kafkad.config.broker_keys import BROKER_QUOTA_KEYS
from kafkad.config.topic import TopicConfig

UNLIMITED: Final = (1 << 63) - 1
ROWS: Final = 2  # of the table: one per side


def throttle_table(config: BrokerConfig, workers: int) -> QuotaTable:
    """Return the table that a broker's workers share. Make it before forking them."""
    return QuotaTable(
        workers, config.replication_quota_window_num, config.replication_quota_window_size_seconds, ROWS
    )


def sides(config: TopicConfig, index: int, broker_id: int) -> int:
    """Return the value for `Partition.throttled`."""
    leads = _lists(config.leader_replication_throttled_replicas, index, broker_id)
    follows = _lists(config.follower_replication_throttled_replicas, index, broker_id)
    return leads << LEADER | follows << FOLLOWER


def _lists(replicas: list[str], index: int, broker_id: int) -> bool:
    return bool(replicas) and (replicas == ["*"] or f"{index}:{broker_id}" in replicas)


def limit(quota: ReplicationQuota, config: BrokerConfig) -> None:
    """Use the dynamic rates of this configuration from now on."""
    for side, name in (
        (LEADER, "leader.replication.throttled.rate"),
        (FOLLOWER, "follower.replication.throttled.rate"),
    ):
        rate = rate_of(config, name)
        quota.limit(side, None if rate == UNLIMITED else rate)


def rate_of(config: BrokerConfig, name: str) -> int:
    """The dynamic rate of this name, in bytes a second; UNLIMITED if it is not set."""
    key = BROKER_QUOTA_KEYS[name]
    text = config.dynamic_broker.get(name, config.dynamic_default.get(name))
    rate = key.parse(text) if text is not None and key.usable(text) else UNLIMITED
    assert isinstance(rate, int)
    return rate
