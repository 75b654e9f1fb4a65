"""`kafkad topics`: kafka-topics."""

import click

from kafkad.cli.output import CONTEXT, connected, fail, parse_pairs, say, server_options, show
from kafkad.client.cluster import Cluster
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

TIMEOUT_MS = 30_000


@click.command(context_settings=CONTEXT)
@click.option("--create", "action", flag_value="create", help="Create a topic.")
@click.option("--list", "action", flag_value="list", help="List topics.")
@click.option(
    "--describe", "action", flag_value="describe", help="Show partitions, leaders and configuration."
)
@click.option("--alter", "action", flag_value="alter", help="Add partitions.")
@click.option("--delete", "action", flag_value="delete", help="Delete a topic and its records.")
@click.option("--topic", help="The topic.")
@click.option(
    "--partitions", type=int, help="With --create or --alter. Default: num.partitions of the broker."
)
@click.option("--replication-factor", type=int, help="With --create. Default: the broker's.")
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="With --create; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="With --create: be content when it is there.")
@click.option(
    "--if-exists", is_flag=True, help="With --delete, --alter, --describe: be content when it is not."
)
@click.option(
    "--exclude-internal", is_flag=True, help="With --list: leave out __consumer_offsets and its like."
)
@server_options
def command(
    action: str | None,
    topic: str | None,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create, list, describe, alter and delete topics.

    \b
      kafkad topics --create --topic flights --partitions 4 --config retention.ms=-1
      kafkad topics --describe --topic flights
      kafkad topics --list --json
    """
    if action is None:
        raise click.UsageError("say one of --create, --list, --describe, --alter, --delete")
    if topic is None and action in ("create", "alter", "delete"):
        raise click.UsageError(f"--{action} needs --topic")
    pairs = parse_pairs(configs, "--config")
    with connected(bootstrap) as cluster:
        try:
            match action:
                case "list":
                    list_topics(cluster, exclude_internal, as_json)
                case "describe":
                    describe(cluster, topic, as_json)
                case "create":
                    assert topic is not None
                    create(cluster, topic, partitions, replication_factor, pairs, as_json)
                case "alter":
                    assert topic is not None
                    if partitions is None:
                        raise click.UsageError("--alter needs --partitions, the new count")
                    alter(cluster, topic, partitions)
                case "delete":
                    assert topic is not None
                    delete(cluster, topic)
        except KafkaError as trouble:
            content = (if_not_exists and trouble.code == errors.TOPIC_ALREADY_EXISTS) or (
                if_exists and trouble.code == errors.UNKNOWN_TOPIC_OR_PARTITION
            )
            if not content:
                fail(str(trouble))


def list_topics(cluster: Cluster, exclude_internal: bool, as_json: bool) -> None:
    topics = [t for t in cluster.refresh(None).topics if not (exclude_internal and t.is_internal)]
    rows = [(t.name, len(t.partitions)) for t in sorted(topics, key=lambda t: t.name)]
    show(("Topic", "Partitions"), rows, as_json)


def describe(cluster: Cluster, topic: str | None, as_json: bool) -> None:
    topics = cluster.refresh(None if topic is None else [topic]).topics
    rows = []
    for told in sorted(topics, key=lambda t: t.name):
        if told.error_code:
            raise KafkaError(told.error_code, f"topic {told.name!r}")
        configs = changed_configs(cluster, told.name)
        for p in sorted(told.partitions, key=lambda p: p.partition_index):
            shown = configs if p.partition_index == 0 or as_json else ""
            rows += [(told.name, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes, shown)]
    show(("Topic", "Partition", "Leader", "Replicas", "Isr", "Configs"), rows, as_json)


def changed_configs(cluster: Cluster, topic: str) -> str:
    """Configuration that was set on the topic itself, as key=value,…"""
    resource = messages.DescribeConfigsRequest.Resources(
        resource_type=2, resource_name=topic, configuration_keys=None
    )
    result = cluster.any().ask(messages.DescribeConfigsRequest(resources=[resource])).results[0]
    dynamic_topic = 1
    return ",".join(f"{c.name}={c.value}" for c in result.configs if c.config_source == dynamic_topic)


def create(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replicas: int | None,
    configs: dict[str, str],
    as_json: bool,
) -> None:
    struct = messages.CreateTopicsRequest.Topics
    topic = struct(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replicas is None else replicas,
        configs=[struct.Configs(name=key, value=value) for key, value in configs.items()],
    )
    told = cluster.any().ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)).topics[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    if as_json:
        show(("Topic", "Partitions"), [(told.name, told.num_partitions)], True)
    else:
        say(f"Created topic {told.name}.")


def alter(cluster: Cluster, name: str, partitions: int) -> None:
    topic = messages.CreatePartitionsRequest.Topics(name=name, count=partitions, assignments=None)
    told = (
        cluster.any().ask(messages.CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)).results[0]
    )
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    say(f"Topic {name} has {partitions} partitions.")


def delete(cluster: Cluster, name: str) -> None:
    connection = cluster.any()
    request = messages.DeleteTopicsRequest(timeout_ms=TIMEOUT_MS)
    if connection.version_for(messages.DeleteTopicsRequest) >= 6:
        request.topics = [messages.DeleteTopicsRequest.Topics(name=name)]
    else:
        request.topic_names = [name]
    told = connection.ask(request).responses[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message or f"topic {name!r}")
    say(f"Deleted topic {name}.")
