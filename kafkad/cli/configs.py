"""`kafkad configs`: kafka-configs."""

from typing import Any

import click

from kafkad.cli import scram_users
from kafkad.cli.output import (
    CONTEXT,
    connected,
    one_action,
    parse_pairs,
    print_json,
    say,
    server_options,
    show,
)
from kafkad.client.cluster import Cluster
from kafkad.client.connection import Connection
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
USERS = "users"
NOT_SET_HERE = (4, 5)
SET, DELETE = 0, 1


@click.command(context_settings=CONTEXT)
@one_action(describe="Show configuration.", alter="Change configuration.")
@click.option("--entity-type", type=click.Choice([*TYPES, USERS]), help="The type of what is configured.")
@click.option("--entity-name", help="Its name: a topic, a broker id, a group. Default: all of the type.")
@click.option(
    "--entity-default", is_flag=True, help="With --entity-type brokers: the values for all brokers."
)
@click.option("--topic", help="Short for --entity-type topics --entity-name TOPIC.")
@click.option("--broker", help="Short for --entity-type brokers --entity-name ID.")
@click.option("--broker-defaults", is_flag=True, help="Short for --entity-type brokers --entity-default.")
@click.option("--group", help="Short for --entity-type groups --entity-name GROUP.")
@click.option("--all", "everything", is_flag=True, help="With --describe: also show defaults.")
@click.option("--add-config", multiple=True, metavar="K=V[,K=[A,B]]", help="With --alter: set keys.")
@click.option(
    "--add-config-file",
    type=click.Path(exists=True, dir_okay=False),
    help="With --alter: set the keys of this properties file.",
)
@click.option(
    "--delete-config", multiple=True, metavar="K[,K]", help="With --alter: reset keys to their defaults."
)
@server_options
def command(
    action: str,
    entity_type: str | None,
    entity_name: str | None,
    entity_default: bool,
    topic: str | None,
    broker: str | None,
    broker_defaults: bool,
    group: str | None,
    everything: bool,
    add_config: tuple[str, ...],
    add_config_file: str | None,
    delete_config: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Describe and alter the configuration of topics, brokers and groups, and SCRAM users.

    \b
      kafkad configs --describe --topic flights --all
      kafkad configs --alter --topic flights --add-config retention.ms=3600000,cleanup.policy=[compact,delete]
      kafkad configs --alter --topic flights --delete-config retention.ms
      kafkad configs --alter --broker-defaults --add-config log.retention.ms=86400000
      kafkad configs --alter --entity-type users --entity-name anna --add-config 'SCRAM-SHA-512=[password=x]'
    """
    short = {"topics": topic, "brokers": "" if broker_defaults else broker, "groups": group}
    named = [(kind, name) for kind, name in short.items() if name is not None]
    if len(named) + (entity_type is not None) != 1:
        raise click.UsageError("give one of --topic, --broker, --broker-defaults, --group and --entity-type")
    kind, name = named[0] if named else (str(entity_type), "" if entity_default else entity_name)
    if name == "" and kind != "brokers":
        raise click.UsageError("--entity-default is for brokers")
    if action == "alter":
        if name is None:
            raise click.UsageError("--alter needs --entity-name, or --entity-default for all brokers")
        pairs = from_file(add_config_file) | parse_pairs(add_config, "--add-config")
        gone = [key.strip() for text in delete_config for key in text.split(",") if key.strip()]
        if not pairs and not gone:
            raise click.UsageError("--alter needs --add-config or --delete-config")
    with connected(bootstrap) as cluster:
        connection = responsible(cluster, kind, name)
        if kind == USERS and action == "describe":
            scram_users.describe(connection, name, as_json)
            return
        if action == "describe":
            names = [name] if name is not None else names_of(cluster, kind)
            show_configs(cluster, kind, names, everything, as_json)
            return
        assert name is not None
        if kind == USERS:
            scram_users.alter(connection, name, pairs, gone)
            pairs = dict.fromkeys(pairs, "[hidden]")
        else:
            alter(connection, TYPES[kind], name, pairs, gone)
        if as_json:
            print_json([{"type": kind, "name": name or None, "set": pairs, "deleted": gone}])
        else:
            say(f"Changed the configuration of {f'{kind} {name}' if name else 'all brokers'}.")


def from_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    from kafkad.config.properties import read_properties

    try:
        return read_properties(path)
    except ValueError as wrong:
        raise click.BadParameter(f"{path}: {wrong}", param_hint="--add-config-file")


def responsible(cluster: Cluster, kind: str, name: str | None) -> Connection:
    """Return a connection to the broker that serves this entity. A broker describes and changes its own
    values."""
    if kind not in ("brokers", "broker-loggers") or not name:
        return cluster.any()
    if not name.isdigit():
        raise click.BadParameter(f"{name!r} is not a broker id", param_hint="--entity-name")
    return cluster.broker(int(name))


def names_of(cluster: Cluster, kind: str) -> list[str]:
    """Return all entities of a type. For brokers, the last one (empty) is the default of all."""
    match kind:
        case "topics":
            return sorted(t.name for t in cluster.refresh(None).topics)
        case "brokers":
            return [*(str(node) for node in sorted(cluster.brokers())), ""]
        case "broker-loggers":
            return [str(node) for node in sorted(cluster.brokers())]
    request = messages.ListConfigResourcesRequest(resource_types=[TYPES[kind]])
    told = cluster.any().ask(request, cluster.any().version_for(messages.ListConfigResourcesRequest))
    if told.error_code:
        raise KafkaError(told.error_code)
    return sorted(r.resource_name for r in told.config_resources)


def show_configs(cluster: Cluster, kind: str, names: list[str], everything: bool, as_json: bool) -> None:
    rows: list[tuple[Any, ...]] = []
    for name in names:
        rows += described(responsible(cluster, kind, name), kind, name, everything)
    show(("Type", "Name", "Key", "Value", "Source", "Read-only", "Sensitive"), rows, as_json)


def described(connection: Connection, kind: str, name: str, everything: bool) -> list[tuple[Any, ...]]:
    resource = messages.DescribeConfigsRequest.Resources(
        resource_type=TYPES[kind], resource_name=name, configuration_keys=None
    )
    result = connection.ask(messages.DescribeConfigsRequest(resources=[resource])).results[0]
    if result.error_code:
        raise KafkaError(result.error_code, result.error_message or f"{kind} {name!r}")
    return [
        (
            kind,
            name or None,
            c.name,
            None if c.is_sensitive else c.value,
            SOURCES.get(c.config_source, "unknown"),
            c.read_only,
            c.is_sensitive,
        )
        for c in sorted(result.configs, key=lambda c: c.name)
        if everything or c.config_source not in NOT_SET_HERE
    ]


def alter(connection: Connection, kind: int, name: str, pairs: dict[str, str], gone: list[str]) -> None:
    struct = messages.IncrementalAlterConfigsRequest.Resources
    changes = [struct.Configs(name=key, config_operation=SET, value=value) for key, value in pairs.items()]
    changes += [struct.Configs(name=key, config_operation=DELETE, value=None) for key in gone]
    resource = struct(resource_type=kind, resource_name=name, configs=changes)
    told = connection.ask(messages.IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
