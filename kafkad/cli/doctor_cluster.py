"""`kafkad doctor cluster`: what would not work if kafkad took the place of a node, or if one were restarted.

    examine_node       the node's server.properties and directories: what a start would refuse
    examine_cluster    the running cluster: what it uses that kafkad has not, and what a restart would break

Each `Finding` is a row of a table. Nothing is changed, and no file is written.

Use: kafkad/cli/doctor."""

import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafkad.client.cluster import Cluster
from kafkad.client.connection import Unreachable
from kafkad.config.broker import BrokerConfig, ConfigError
from kafkad.config.served import ignored, is_alone, unserved_message, unserved_values
from kafkad.config.topic import TOPIC_KEYS
from kafkad.log.checkpoints import META_PROPERTIES
from kafkad.log.identity import Identity, read_identity
from kafkad.metadata import features
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

OK: Final = "ok"
NOTE: Final = "note"
TROUBLE: Final = "TROUBLE"
BROKER, TOPIC = 4, 2  # kinds of resources that have configurations
DYNAMIC_BROKER, DYNAMIC_DEFAULT, OF_TOPIC = 2, 3, 1  # sources of a value
AT_ONCE: Final = 200  # topics whose configurations are asked for in one request
NAMED: Final = 5  # names in a cell of the table
CLASSIC: Final = ("", "classic")
DYNAMIC_VOTERS: Final = 1  # kraft.version
QUORUM_S: Final = 10.0  # the active controller answers at once
SAFE_VOTERS: Final = 3  # fewer, and a restart of one leaves no majority


class Finding(NamedTuple):
    check: str
    state: str
    found: str
    remedy: str = ""


def some_of(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


# -- a node that is not running ----------------------------------------------------------------------------


def examine_node(path: str) -> Iterator[Finding]:
    """Yield what is found about the server.properties of a node."""
    from kafkad.cli.start_checks import check_start

    try:
        config = BrokerConfig.load(path, {})
    except OSError as trouble:
        yield Finding(
            "properties", TROUBLE, f"{path}: {trouble.strerror}", "name the node's server.properties"
        )
        return
    except ConfigError as wrong:
        yield Finding("properties", TROUBLE, str(wrong), f"correct {path}; JVM Kafka would refuse it, too")
        return
    found = unserved_values(config)
    for sentence in found:
        yield Finding("properties", TROUBLE, sentence, "change it before kafkad takes this node")
    if not found:
        try:
            check_start(config)
        except OSError as trouble:
            reason = f"{trouble.filename}: {trouble.strerror}"
            yield Finding("security", TROUBLE, reason, "let the user that runs kafkad read it")
        except ValueError as wrong:
            yield Finding("security", TROUBLE, str(wrong), f"correct {path}")
        else:
            yield Finding("properties", OK, f"kafkad has what {path} asks for")
    for sentence in ignored(config):
        yield Finding("properties", NOTE, sentence)
    if config.unknown_keys:
        unknown = some_of(sorted(config.unknown_keys))
        yield Finding("properties", NOTE, f"keys that Kafka does not have either: {unknown}")
    yield from _directories(config)


def _directories(config: Any) -> Iterator[Finding]:
    metadata = config.metadata_log_dir or config.log_dirs[0]
    known: dict[str, Identity] = {}
    for path in dict.fromkeys([metadata, *config.log_dirs]):
        if not os.path.isdir(path):
            yield Finding(
                "directories", TROUBLE, f"{path} is not there", "mount its disk, or correct log.dirs"
            )
            continue
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            found = f"{path} cannot be written by this user"
            yield Finding("directories", TROUBLE, found, "run kafkad as the user that ran JVM Kafka")
            continue
        try:
            known[path] = read_identity(os.path.join(path, META_PROPERTIES))
        except FileNotFoundError:
            if path == metadata and not is_alone(config):
                remedy = f"run kafkad format, or restore {META_PROPERTIES}"
                yield Finding("directories", TROUBLE, f"{path} is not formatted", remedy)
            else:
                yield Finding(
                    "directories", NOTE, f"{path} is not formatted; the start does it if it is empty"
                )
        except (OSError, ValueError) as wrong:
            found = f"{META_PROPERTIES} of {path} cannot be used: {wrong}"
            yield Finding("directories", TROUBLE, found, "restore it from a copy")
    clusters = sorted({identity.cluster_id for identity in known.values()})
    if len(clusters) > 1:
        found = f"they belong to different clusters: {', '.join(clusters)}"
        yield Finding("directories", TROUBLE, found, "correct log.dirs")
    for path, identity in known.items():
        if identity.node_id != config.node_id:
            found = f"{path} is of node {identity.node_id}, and node.id is {config.node_id}"
            yield Finding("directories", TROUBLE, found, "correct node.id or log.dirs")
    if len(clusters) == 1 and all(identity.node_id == config.node_id for identity in known.values()):
        yield Finding(
            "directories", OK, f"{some_of(list(known))}: node {config.node_id} of cluster {clusters[0]}"
        )


# -- a cluster that runs -----------------------------------------------------------------------------------


def examine_cluster(cluster: Cluster) -> Iterator[Finding]:
    """Yield what is found about a running cluster. Raise Unreachable, KafkaError."""
    told = cluster.refresh(None)
    silent, answering = [], []
    for broker in told.brokers:
        try:
            cluster.broker(broker.node_id)
        except Unreachable:
            silent.append(f"{broker.node_id} ({broker.host}:{broker.port})")
        else:
            answering.append(broker.node_id)
    if silent:
        yield Finding(
            "brokers", TROUBLE, f"these do not answer: {some_of(silent)}", "restart nobody else meanwhile"
        )
    else:
        yield Finding("brokers", OK, f"{len(told.brokers)} of cluster {told.cluster_id} answer")
    levels, finding = _features(cluster)
    yield finding
    yield from _groups(cluster, answering)
    yield from _configurations(cluster, told, answering)
    yield from _partitions(told)
    yield from _quorum(cluster, levels)


def _features(cluster: Cluster) -> tuple[dict[str, int], Finding]:
    request = messages.ApiVersionsRequest(client_software_name="kafkad", client_software_version="1")
    told = cluster.any().ask(request)
    levels = {each.name: each.max_version_level for each in told.finalized_features}
    if (trouble := features.unsupported(levels)) is not None:
        return levels, Finding(
            "features", TROUBLE, trouble.replace("this broker", "kafkad"), "downgrade it, with kafka-features"
        )
    shown = ", ".join(f"{name} {level}" for name, level in sorted(levels.items()))
    return levels, Finding("features", OK, shown or "none is finalized")


def _groups(cluster: Cluster, answering: list[int]) -> Iterator[Finding]:
    others: dict[str, list[str]] = {}
    count = 0
    for node in answering:
        try:
            answer = cluster.broker(node).ask(messages.ListGroupsRequest())
        except Unreachable:
            yield Finding("groups", NOTE, f"broker {node} does not tell its groups", "ask again later")
            continue
        if answer.error_code:
            name = KafkaError(answer.error_code)
            yield Finding(
                "groups", NOTE, f"broker {node} does not tell its groups: {name}", "ask again later"
            )
            continue
        for group in answer.groups:
            count += 1
            if (kind := group.group_type.lower()) not in CLASSIC:
                others.setdefault(kind, []).append(group.group_id)
    for kind, names in sorted(others.items()):
        yield Finding(
            "groups", TROUBLE, f"{kind} groups, which kafkad does not serve: {some_of(sorted(names))}",
            "leave their coordinators (__consumer_offsets, __share_group_state) on JVM brokers, or use"
            " group.protocol=classic",
        )  # fmt: skip
    if not others:
        yield Finding("groups", OK, f"{count:,}, all classic")


def _configurations(cluster: Cluster, told: Any, answering: list[int]) -> Iterator[Finding]:
    """What topics and brokers have been given that kafkad refuses."""
    cls = messages.DescribeConfigsRequest.Resources
    wanted = [
        cls(resource_type=TOPIC, resource_name=topic.name) for topic in told.topics if not topic.error_code
    ]
    found: dict[str, list[str]] = {}
    for start in range(0, len(wanted), AT_ONCE):
        request = messages.DescribeConfigsRequest(resources=wanted[start : start + AT_ONCE])
        for result in cluster.any().ask(request).results:
            for each in result.configs:
                is_given = each.config_source == OF_TOPIC and each.value is not None
                if is_given and (sentence := unserved_message(each.name, each.value, TOPIC_KEYS)):
                    found.setdefault(sentence, []).append(result.resource_name)
    for sentence, names in found.items():
        yield Finding(
            "topics",
            TROUBLE,
            f"{some_of(sorted(names))}: {sentence}",
            "leave their replicas on JVM brokers, or change it",
        )
    if not found:
        yield Finding("topics", OK, f"{len(wanted):,}, with configurations that kafkad has")
    dynamic: dict[str, list[str]] = {}
    for node in sorted(answering):
        request = messages.DescribeConfigsRequest(
            resources=[cls(resource_type=BROKER, resource_name=str(node))]
        )
        try:
            (result,) = cluster.broker(node).ask(request).results
        except Unreachable:
            continue  # named as one whose groups are not known
        for each in result.configs:
            is_given = each.config_source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT) and each.value is not None
            if is_given and (sentence := unserved_message(each.name, each.value)):
                dynamic.setdefault(sentence, []).append(str(node))
    for sentence, nodes in dynamic.items():
        yield Finding(
            "dynamic configuration",
            TROUBLE,
            f"of broker {', '.join(nodes)}: {sentence}",
            "delete it with kafka-configs",
        )
    if not dynamic:
        yield Finding("dynamic configuration", OK, "of the brokers: nothing that kafkad refuses")


def _partitions(told: Any) -> Iterator[Finding]:
    leaderless, behind, single = [], [], []
    for topic in sorted(told.topics, key=lambda each: str(each.name)):
        for part in topic.partitions:
            name = f"{topic.name}-{part.partition_index}"
            if part.leader_id < 0:
                leaderless.append(name)
            elif len(part.isr_nodes) < len(part.replica_nodes):
                behind.append(name)
            elif len(part.replica_nodes) == 1:
                single.append(name)
    if leaderless:
        yield Finding(
            "partitions",
            TROUBLE,
            f"without a leader: {some_of(leaderless)}",
            "start the brokers that have them; if their disk is lost: kafkad cluster elect --unclean",
        )
    if behind:
        yield Finding(
            "partitions",
            TROUBLE,
            f"with replicas out of the ISR: {some_of(behind)}",
            "restart nobody until they are in it",
        )
    if single:
        yield Finding(
            "partitions", NOTE, f"with one replica, away while its broker restarts: {some_of(single)}"
        )
    if not (leaderless or behind):
        count = sum(len(topic.partitions) for topic in told.topics)
        yield Finding("partitions", OK, f"{count:,}, every replica in the ISR")


def _quorum(cluster: Cluster, levels: dict[str, int]) -> Iterator[Finding]:
    connection = cluster.any()
    cls = messages.DescribeQuorumRequest
    if cls.API_KEY not in connection.versions:
        yield Finding(
            "quorum", NOTE, "the brokers do not describe it: their Kafka uses ZooKeeper or is too old"
        )
        return
    request = cls(topics=[cls.Topics(topic_name="__cluster_metadata", partitions=[cls.Topics.Partitions()])])
    try:
        told = connection.ask(request, timeout=QUORUM_S)
    except Unreachable:  # the broker has asked the controllers, and waits for them
        found = f"no controller has described it within {QUORUM_S:g} s"
        yield Finding("quorum", TROUBLE, found, "restart nobody until it has a leader")
        return
    if told.error_code or told.topics[0].partitions[0].error_code:
        trouble = KafkaError(told.error_code or told.topics[0].partitions[0].error_code)
        yield Finding(
            "quorum",
            TROUBLE,
            f"it does not tell its voters: {trouble}",
            "restart nobody until it has a leader",
        )
        return
    part = told.topics[0].partitions[0]
    voters = sorted(part.current_voters, key=lambda each: int(each.replica_id))
    ends = {each.replica_id: each.log_end_offset for each in voters}
    lost = [str(node) for node, end in ends.items() if end < part.high_watermark]
    kind = (
        "in the log"
        if levels.get(features.KRAFT_VERSION, 0) >= DYNAMIC_VOTERS
        else "by controller.quorum.voters"
    )
    shown = f"{', '.join(map(str, ends))} vote ({kind}), {part.leader_id} leads"
    if lost:
        yield Finding(
            "quorum",
            TROUBLE,
            f"voters that lack committed metadata: {', '.join(lost)}",
            "restart no other voter until they have it",
        )
    elif len(voters) == 1:
        yield Finding("quorum", NOTE, f"{shown}: no change of metadata while it restarts")
    elif len(voters) < SAFE_VOTERS:
        yield Finding("quorum", NOTE, f"{shown}: no change of metadata while one of them restarts")
    else:
        yield Finding("quorum", OK, shown)
