"""`kafkad topics`: kafka-topics.

As in that tool, --topic names the topic to create. For all other actions it is a regular expression (or
several, separated by commas) that must match the whole name.
"""

import re
from collections.abc import Callable
from typing import Any

import click

from kafkad.cli.output import (
    CONTEXT,
    Refused,
    connected,
    counted,
    one_action,
    parse_pairs,
    print_json,
    say,
    server_options,
    show,
)
from kafkad.client.cluster import Cluster
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

TIMEOUT_MS = 30_000
TOPIC_RESOURCE = 2
SET_ON_TOPIC = 1  # a configuration's source: the topic itself


@click.command(context_settings=CONTEXT)
@one_action(
    create="Create a topic.",
    list="List the names of topics.",
    describe="Show partitions, leaders and configuration.",
    alter="Add partitions.",
    delete="Delete a topic and its records.",
)
@click.option("--topic", help="The topic, or a regular expression (not with --create).")
@click.option("--topic-id", help="With --describe: the topic with this id.")
@click.option(
    "--partitions", type=click.IntRange(1), help="With --create (default: num.partitions) or --alter."
)
@click.option(
    "--replication-factor", type=click.IntRange(1), help="With --create. Default: the broker's default."
)
@click.option(
    "--replica-assignment",
    metavar="ID:ID,ID:ID",
    help="With --create: the brokers of each partition; the first one is the leader.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --create: a configuration; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="With --create: do nothing if the topic exists.")
@click.option("--if-exists", is_flag=True, help="Not with --create: do nothing if the topic does not exist.")
@click.option(
    "--exclude-internal", is_flag=True, help="Leave out internal topics such as __consumer_offsets."
)
@click.option(
    "--under-replicated-partitions",
    "narrow",
    flag_value="under",
    help="With --describe: only partitions with replicas outside of the ISR.",
)
@click.option(
    "--unavailable-partitions",
    "narrow",
    flag_value="unavailable",
    help="With --describe: only partitions without a leader.",
)
@click.option(
    "--topics-with-overrides",
    "narrow",
    flag_value="overrides",
    help="With --describe: only topics with configurations of their own.",
)
@server_options
def command(
    action: str,
    topic: str | None,
    topic_id: str | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
    narrow: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create, list, describe, alter and delete topics.

    \b
      kafkad topics --create --topic flights --partitions 4 --config retention.ms=-1
      kafkad topics --describe --topic flights
      kafkad topics --alter --topic flights --partitions 8
      kafkad topics --delete --topic 'test-.*'
      kafkad topics --list --json
    """
    if topic is None and action in ("create", "alter", "delete"):
        raise click.UsageError(f"--{action} needs --topic")
    if action == "alter" and partitions is None:
        raise click.UsageError(
            "--alter needs --partitions, the new count (use kafkad configs --alter for configurations)"
        )
    if replica_assignment is not None and (partitions or replication_factor):
        raise click.UsageError("--replica-assignment excludes --partitions and --replication-factor")
    pairs = parse_pairs(configs, "--config", split=False)
    chosen = matcher(topic)
    with connected(bootstrap) as cluster:
        if action == "create":
            assert topic is not None
            assignment = parse_assignment(replica_assignment)
            made = create(cluster, topic, partitions, replication_factor, assignment, pairs, if_not_exists)
            show_changes(made, "Created topic {topic}.", as_json)
            return
        known = sorted(cluster.refresh(None).topics, key=lambda t: t.name)
        found = [t for t in known if chosen(t.name) and not (exclude_internal and t.is_internal)]
        if topic_id is not None:
            found = [t for t in found if id_text(t.topic_id) == topic_id]
        if (topic or topic_id) and not found and action != "list":
            if not if_exists:
                raise Refused(
                    f"there is no topic {topic or topic_id!r}; kafkad topics --list shows the topics"
                )
            show_changes([], "", as_json)
            return
        match action:
            case "list":
                list_topics(found, as_json)
            case "describe":
                describe(cluster, found, narrow, as_json)
            case "alter":
                assert partitions is not None
                show_changes(
                    alter(cluster, found, partitions), "Topic {topic} has {partitions} partitions.", as_json
                )
            case "delete":
                show_changes(delete(cluster, found), "Deleted topic {topic}.", as_json)


def matcher(topic: str | None) -> Callable[[str], Any]:
    """Return a function that tells whether a topic's name matches. Raise click.BadParameter."""
    if topic is None:
        return lambda _name: True
    try:
        pattern = re.compile("|".join(part.strip() for part in topic.split(",")))
    except re.error as wrong:
        raise click.BadParameter(f"{topic!r} is not a regular expression: {wrong}", param_hint="--topic")
    return lambda name: name == topic or pattern.fullmatch(name)


def show_changes(changes: list[dict[str, Any]], text: str, as_json: bool) -> None:
    if as_json:
        print_json(changes)
    else:
        for change in changes:
            say(text.format(**change))


def list_topics(topics: list[Any], as_json: bool) -> None:
    if as_json:
        columns = ("Topic", "Topic-id", "Partitions", "Internal")
        show(columns, [(t.name, id_text(t.topic_id), len(t.partitions), t.is_internal) for t in topics], True)
    else:
        for topic in topics:
            print(topic.name)


def describe(cluster: Cluster, topics: list[Any], narrow: str | None, as_json: bool) -> None:
    configs, refused = own_configs(cluster, [t.name for t in topics])
    if refused:
        trouble = KafkaError(refused[0].error_code, refused[0].error_message)
        if narrow == "overrides":
            raise trouble
        say(f"kafkad: the configurations of {counted(len(refused), 'topic')} cannot be seen: {trouble}")
    rows = []
    for topic in topics:
        if topic.error_code:
            raise KafkaError(topic.error_code, f"topic {topic.name!r}")
        own = configs.get(topic.name)
        if narrow == "overrides" and not own:
            continue
        for number, p in enumerate(sorted(topic.partitions, key=lambda p: p.partition_index)):
            if narrow == "under" and len(p.isr_nodes) >= len(p.replica_nodes):
                continue
            if narrow == "unavailable" and p.leader_id >= 0:
                continue
            rows.append(
                (
                    topic.name,
                    id_text(topic.topic_id),
                    p.partition_index,
                    p.leader_id if p.leader_id >= 0 else None,
                    p.leader_epoch,
                    p.replica_nodes,
                    p.isr_nodes,
                    own if as_json or number == 0 else "",
                )
            )
    columns = ("Topic", "Topic-id", "Partition", "Leader", "Leader-epoch", "Replicas", "Isr", "Configs")
    if as_json:
        show(columns, rows, True)
    else:  # without id and epoch, so that a row fits on a line
        show(
            [c for n, c in enumerate(columns) if n not in (1, 4)],
            [[c for n, c in enumerate(row) if n not in (1, 4)] for row in rows],
            False,
        )


def id_text(topic_id: bytes) -> str | None:
    """Return Kafka's text form of a topic id, or None if the broker has no topic ids."""
    import base64

    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else None


def own_configs(cluster: Cluster, topics: list[str]) -> tuple[dict[str, dict[str, str | None]], list[Any]]:
    """Return the configuration that was set on each topic itself; and the answers of those that were refused,
    for example for lack of the right to see it."""
    if not topics:
        return {}, []
    struct = messages.DescribeConfigsRequest.Resources
    asked = [struct(resource_type=TOPIC_RESOURCE, resource_name=t, configuration_keys=None) for t in topics]
    told = cluster.any().ask(messages.DescribeConfigsRequest(resources=asked)).results
    found = {
        result.resource_name: {c.name: c.value for c in result.configs if c.config_source == SET_ON_TOPIC}
        for result in told
        if not result.error_code
    }
    return found, [result for result in told if result.error_code]


def parse_assignment(text: str | None) -> list[list[int]]:
    """Parse `1:2,2:1` to the brokers of each partition. Raise click.BadParameter."""
    if text is None:
        return []
    try:
        return [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like 1:2,2:1", param_hint="--replica-assignment")


def create(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replicas: int | None,
    assignment: list[list[int]],
    configs: dict[str, str],
    if_not_exists: bool,
) -> list[dict[str, Any]]:
    struct = messages.CreateTopicsRequest.Topics
    topic = struct(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replicas is None else replicas,
        assignments=[
            struct.Assignments(partition_index=p, broker_ids=brokers) for p, brokers in enumerate(assignment)
        ],
        configs=[struct.Configs(name=key, value=value) for key, value in configs.items()],
    )
    told = cluster.any().ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)).topics[0]
    if told.error_code == errors.TOPIC_ALREADY_EXISTS and if_not_exists:
        return []
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    replicas_made = told.replication_factor
    return [{"topic": name, "partitions": told.num_partitions, "replication_factor": replicas_made}]


def alter(cluster: Cluster, topics: list[Any], partitions: int) -> list[dict[str, Any]]:
    struct = messages.CreatePartitionsRequest.Topics
    asked = [struct(name=t.name, count=partitions, assignments=None) for t in topics]
    request = messages.CreatePartitionsRequest(topics=asked, timeout_ms=TIMEOUT_MS)
    return changed(cluster.any().ask(request).results, {"partitions": partitions})


def delete(cluster: Cluster, topics: list[Any]) -> list[dict[str, Any]]:
    connection = cluster.any()
    request = messages.DeleteTopicsRequest(timeout_ms=TIMEOUT_MS)
    if connection.version_for(messages.DeleteTopicsRequest) >= 6:
        request.topics = [messages.DeleteTopicsRequest.Topics(name=t.name) for t in topics]
    else:
        request.topic_names = [t.name for t in topics]
    return changed(connection.ask(request).responses, {})


def changed(results: list[Any], what: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of several topics. If some were refused, print these, and raise KafkaError for the
    first."""
    refused = [r for r in results if r.error_code]
    for result in refused[1:]:
        say(f"kafkad: {KafkaError(result.error_code, result.error_message or f'topic {result.name!r}')}")
    if refused:
        raise KafkaError(refused[0].error_code, refused[0].error_message or f"topic {refused[0].name!r}")
    return [{"topic": r.name, **what} for r in results]
