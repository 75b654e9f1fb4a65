"""`kafkad configs`: kafka-configs."""

from typing import Any

import click

from kafkad.cli.output import CONTEXT, connected, parse_pairs, say, server_options, show
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

TYPES = {"topics": 2, "brokers": 4, "broker-loggers": 8, "client-metrics": 16, "groups": 32}
SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "server.properties",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
SET, DELETE = 0, 1


@click.command(context_settings=CONTEXT)
@click.option("--describe", "action", flag_value="describe", help="Show configuration.")
@click.option("--alter", "action", flag_value="alter", help="Change configuration.")
@click.option("--entity-type", type=click.Choice(list(TYPES)), help="What is configured.")
@click.option("--entity-name", help="Its name: a topic, a broker id, a group.")
@click.option("--entity-default", is_flag=True, help="All brokers (with --entity-type brokers).")
@click.option("--topic", help="Short for --entity-type topics --entity-name TOPIC.")
@click.option("--broker", help="Short for --entity-type brokers --entity-name ID.")
@click.option("--all", "everything", is_flag=True, help="With --describe: defaults too.")
@click.option("--add-config", multiple=True, metavar="K=V[,K=[A,B]]", help="With --alter: set.")
@click.option("--delete-config", multiple=True, metavar="K[,K]", help="With --alter: back to the default.")
@server_options
def command(
    action: str | None,
    entity_type: str | None,
    entity_name: str | None,
    entity_default: bool,
    topic: str | None,
    broker: str | None,
    everything: bool,
    add_config: tuple[str, ...],
    delete_config: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Describe and alter the configuration of topics, brokers and groups.

    \b
      kafkad configs --describe --topic flights --all
      kafkad configs --alter --topic flights --add-config retention.ms=3600000,segment.bytes=16777216
      kafkad configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000
    """
    if action is None:
        raise click.UsageError("say --describe or --alter")
    if topic is not None:
        entity_type, entity_name = "topics", topic
    elif broker is not None:
        entity_type, entity_name = "brokers", broker
    if entity_type is None:
        raise click.UsageError("say --topic, --broker or --entity-type")
    name = "" if entity_default else entity_name
    if name is None:
        raise click.UsageError("say --entity-name, or --entity-default for all brokers")
    with connected(bootstrap) as cluster:
        if action == "describe":
            describe(cluster.any(), TYPES[entity_type], name, everything, as_json)
        else:
            pairs = parse_pairs(add_config, "--add-config")
            gone = [key.strip() for text in delete_config for key in text.split(",") if key.strip()]
            if not pairs and not gone:
                raise click.UsageError("--alter needs --add-config or --delete-config")
            alter(cluster.any(), TYPES[entity_type], name, pairs, gone)
            say(f"Changed the configuration of {entity_type} {name or '(all)'}.")


def describe(connection: Any, kind: int, name: str, everything: bool, as_json: bool) -> None:
    resource = messages.DescribeConfigsRequest.Resources(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    result = connection.ask(messages.DescribeConfigsRequest(resources=[resource])).results[0]
    if result.error_code:
        raise KafkaError(result.error_code, result.error_message)
    rows = [
        (
            c.name,
            "(hidden)" if c.is_sensitive else c.value,
            SOURCES.get(c.config_source, "unknown"),
            c.read_only,
        )
        for c in sorted(result.configs, key=lambda c: c.name)
        if everything or c.config_source not in (4, 5)
    ]
    show(("Key", "Value", "Source", "Read-only"), rows, as_json)


def alter(connection: Any, kind: int, name: str, pairs: dict[str, str], gone: list[str]) -> None:
    struct = messages.IncrementalAlterConfigsRequest.Resources
    changes = [struct.Configs(name=key, config_operation=SET, value=value) for key, value in pairs.items()]
    changes += [struct.Configs(name=key, config_operation=DELETE, value=None) for key in gone]
    resource = struct(resource_type=kind, resource_name=name, configs=changes)
    told = connection.ask(messages.IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
