"""`kafkad configs`: kafka-configs."""

from typing import Any

import click

from kafkad.cli import client_quotas, scram_users
from kafkad.cli.output import (
    CONTEXT,
    Refused,
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
NAMES = "kafkad.entity_names"
QUOTAS = client_quotas.TYPES  # users, clients and addresses
NOT_SET_HERE = (4, 5)
WITH_ALL_KEYS = ("topics", "brokers", "groups")  # DescribeConfigs has those that are not set, too
SET, DELETE = 0, 1


class InOrder(click.Command):
    """Keeps the order of --entity-name and --entity-default, each of which belongs to an --entity-type."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names: list[str | None] = []
        for number, word in enumerate(args):
            if word == "--entity-default":
                names.append(None)
            elif word == "--entity-name":
                names += args[number + 1 : number + 2]
            elif word.startswith("--entity-name="):
                names.append(word.partition("=")[2])
        ctx.meta[NAMES] = names
        return super().parse_args(ctx, args)


@click.command(cls=InOrder, context_settings=CONTEXT)
@one_action(describe="Show configuration.", alter="Change configuration.")
@click.option(
    "--entity-type",
    multiple=True,
    type=click.Choice([*TYPES, *QUOTAS]),
    help="The type of what is configured. Users and clients may be given together.",
)
@click.option(
    "--entity-name",
    multiple=True,
    help="Its name: a topic, a broker id, a user, an address. Default: all of the type.",
)
@click.option(
    "--entity-default",
    count=True,
    help="The values for all brokers, or for each user, client or address without its own.",
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
    entity_type: tuple[str, ...],
    entity_name: tuple[str, ...],
    entity_default: int,
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
    """Describe and alter the configuration of topics, brokers and groups, SCRAM users, and client quotas.

    \b
      kafkad configs --describe --topic flights --all
      kafkad configs --alter --topic flights --add-config retention.ms=3600000,cleanup.policy=[compact,delete]
      kafkad configs --alter --topic flights --delete-config retention.ms
      kafkad configs --alter --broker-defaults --add-config log.retention.ms=86400000
      kafkad configs --alter --entity-type users --entity-name anna --add-config 'SCRAM-SHA-512=[password=x]'
      kafkad configs --alter --entity-type clients --entity-default --add-config producer_byte_rate=1048576
    """
    names = click.get_current_context().meta[NAMES]
    short = {"topics": topic, "brokers": "" if broker_defaults else broker, "groups": group}
    named = [(kind, name) for kind, name in short.items() if name is not None]
    if len(named) + bool(entity_type) != 1:
        raise click.UsageError("give one of --topic, --broker, --broker-defaults, --group and --entity-type")
    if len(entity_type) > 1 and (
        len({*entity_type}) < len(entity_type) or {*entity_type} != {USERS, "clients"}
    ):
        raise click.UsageError("only users and clients are configured together")
    if len(names) > len(entity_type):
        raise click.UsageError("each --entity-name and --entity-default belongs to an --entity-type")
    first = ("" if names[0] is None else names[0]) if names else None
    kind, name = named[0] if named else (entity_type[0], first)
    quotas = dict(zip((QUOTAS.get(each, "") for each in entity_type), names, strict=False))
    if name == "" and kind != "brokers" and kind not in QUOTAS:
        raise click.UsageError("--entity-default is for brokers, users, clients and ips")
    if action == "alter":
        if name is None or len(names) < len(entity_type):
            raise click.UsageError("--alter needs --entity-name or --entity-default for each --entity-type")
        pairs = from_file(add_config_file) | parse_pairs(add_config, "--add-config")
        gone = [key.strip() for text in delete_config for key in text.split(",") if key.strip()]
        if not pairs and not gone:
            raise click.UsageError("--alter needs --add-config or --delete-config")
    with connected(bootstrap) as cluster:
        connection = responsible(cluster, kind, name)
        if kind in QUOTAS and action == "describe":
            wanted = {QUOTAS[each]: quotas.get(QUOTAS[each], client_quotas.ANY) for each in entity_type}
            describe_clients(connection, wanted, as_json)
            return
        if action == "describe":
            names = [name] if name is not None else names_of(cluster, kind)
            show_configs(cluster, kind, names, everything, as_json)
            return
        assert name is not None
        if kind in QUOTAS:
            pairs = alter_clients(connection, quotas, pairs, gone)
        else:
            if gone and name and kind in WITH_ALL_KEYS:
                check_known(connection, kind, name, gone)
            alter(connection, TYPES[kind], name, pairs, gone)
        if as_json:
            print_json([{"type": kind, "name": name or None, "set": pairs, "deleted": gone}])
        else:
            changed = list(zip(entity_type, names, strict=True)) if len(entity_type) > 1 else [(kind, name)]
            what = ", ".join(f"{kind} {name}" if name else f"all {kind}" for kind, name in changed)
            say(f"Changed the configuration of {what}.")


def alter_clients(
    connection: Connection, entity: client_quotas.Entity, pairs: dict[str, str], gone: list[str]
) -> dict[str, str]:
    """Change SCRAM credentials of users; anything else is a quota. Return what may be shown."""
    user = entity.get("user") if len(entity) == 1 else None
    secrets = {key: text for key, text in pairs.items() if key in scram_users.NUMBERS}
    old_secrets = [key for key in gone if key in scram_users.NUMBERS]
    if (secrets or old_secrets) and user is None:
        raise click.UsageError("SCRAM is for one user: --entity-type users --entity-name NAME")
    shown = {key: text for key, text in pairs.items() if key not in secrets}
    old = [key for key in gone if key not in old_secrets]
    if shown or old:
        client_quotas.alter(connection, entity, shown, old)
    if secrets or old_secrets:
        assert user is not None
        scram_users.alter(connection, user, secrets, old_secrets)
    return shown | dict.fromkeys(secrets, "[hidden]")


def describe_clients(connection: Connection, wanted: dict[str, Any], as_json: bool) -> None:
    """Quotas; of users the SCRAM credentials, too."""
    user = wanted.get("user")
    if len(wanted) > 1 or "user" not in wanted or user is None:
        client_quotas.describe(connection, wanted, as_json)
        return
    limits = client_quotas.rows(connection, wanted)
    name = None if user is client_quotas.ANY else user
    if not limits:
        scram_users.describe(connection, name, as_json)
        return
    secrets = scram_users.rows(connection, name)
    if as_json:
        print_json(
            [dict(zip(("user", "mechanism", "iterations"), row, strict=True)) for row in secrets]
            + [{"user": row[0], "key": row[3], "value": row[4]} for row in limits]
        )
        return
    if secrets:
        show(scram_users.COLUMNS, secrets, as_json)
    show(client_quotas.COLUMNS, limits, as_json)


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
    if not name.isdecimal():
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


def check_known(connection: Connection, kind: str, name: str, gone: list[str]) -> None:
    """A broker takes the reset of a key that does not exist; its name is misspelled. Raises Refused."""
    known = {row[2] for row in described(connection, kind, name, everything=True)}
    unknown = [key for key in gone if key not in known]
    if unknown:
        raise Refused(f"{kind} have no {', '.join(unknown)}; kafkad configs --describe --all lists the keys")


def alter(connection: Connection, kind: int, name: str, pairs: dict[str, str], gone: list[str]) -> None:
    struct = messages.IncrementalAlterConfigsRequest.Resources
    changes = [struct.Configs(name=key, config_operation=SET, value=value) for key, value in pairs.items()]
    changes += [struct.Configs(name=key, config_operation=DELETE, value=None) for key in gone]
    resource = struct(resource_type=kind, resource_name=name, configs=changes)
    told = connection.ask(messages.IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
