"""`kafkad cluster reassign --throttle` and `--unthrottle` (KIP-73), as kafka-reassign-partitions does it.

The brokers that take part get a rate. The topics list the replicas that it holds for: those that there are as
leaders, those that are added as followers."""

from typing import Final

from kafkad.cli.cluster_state import ALONE
from kafkad.cli.configs import TYPES, alter
from kafkad.cli.output import Refused
from kafkad.client.cluster import Cluster
from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

RATES: Final = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
DESCRIBED_AT_ONCE: Final = 100
SET_BY_TOPIC, SET_BY_BROKER = 1, 2  # sources of a value


def begin(cluster: Cluster, rate: int, moves: dict[tuple[str, int], list[int]]) -> None:
    """Throttle these moves. Raises KafkaError, Refused."""
    if messages.AlterPartitionReassignmentsRequest.API_KEY not in cluster.any().versions:
        raise Refused(ALONE)
    lists: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for told in cluster.refresh(sorted({topic for topic, _ in moves})).topics:
        if told.error_code:
            raise KafkaError(told.error_code, told.name)
        known = {part.partition_index: part.replica_nodes for part in told.partitions}
        leaders, followers = lists.setdefault(told.name, ([], []))
        for (topic, index), replicas in moves.items():
            if topic != told.name:
                continue
            if index not in known:
                raise Refused(f"{topic}-{index} does not exist")
            leaders += [f"{index}:{each}" for each in known[index]]
            followers += [f"{index}:{each}" for each in replicas if each not in known[index]]
            brokers.update(known[index], replicas)
    for topic, (leaders, followers) in lists.items():
        values = {LEADERS: ",".join(leaders), FOLLOWERS: ",".join(followers)}
        alter(cluster.any(), TYPES["topics"], topic, values, [])
    for broker in sorted(brokers):
        alter(cluster.broker(broker), TYPES["brokers"], str(broker), dict.fromkeys(RATES, str(rate)), [])


def remove(cluster: Cluster) -> list[tuple[str, str, list[str]]]:
    """Remove the throttles of all brokers that answer, and of all topics. Return the type and name of each
    one that had throttles, and their keys. Raise KafkaError."""
    removed = []
    for broker in sorted(cluster.brokers()):
        connection = cluster.broker(broker)
        for name, keys in _set(connection, "brokers", [str(broker)], RATES, SET_BY_BROKER).items():
            alter(connection, TYPES["brokers"], name, {}, keys)
            removed.append(("brokers", name, keys))
    topics = sorted(topic.name for topic in cluster.refresh(None).topics)
    for at in range(0, len(topics), DESCRIBED_AT_ONCE):
        names = topics[at : at + DESCRIBED_AT_ONCE]
        found = _set(cluster.any(), "topics", names, [LEADERS, FOLLOWERS], SET_BY_TOPIC)
        for name, keys in found.items():
            alter(cluster.any(), TYPES["topics"], name, {}, keys)
            removed.append(("topics", name, keys))
    return removed


def _set(
    connection: Connection, kind: str, names: list[str], keys: list[str], source: int
) -> dict[str, list[str]]:
    """Which of `keys` each of these sets."""
    struct = messages.DescribeConfigsRequest.Resources
    resources = [
        struct(resource_type=TYPES[kind], resource_name=name, configuration_keys=keys) for name in names
    ]
    found = {}
    for result in connection.ask(messages.DescribeConfigsRequest(resources=resources)).results:
        if result.error_code:
            raise KafkaError(result.error_code, result.error_message or result.resource_name)
        own = [each.name for each in result.configs if each.config_source == source]
        if own:
            found[result.resource_name] = own
    return found
