"""`kafkad acls`: kafka-acls.

The options for resources (--topic, --group, ...) give patterns. The options for principals, hosts and
operations give entries. Each pattern gets each entry. --producer and --consumer choose the operations.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final

import click

from kafkad.cli.output import CONTEXT, Refused, connected, counted, one_action, say, server_options, show
from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError
from kafkad.security.acls import ANYTHING, CLUSTER_NAME, SUPPORTED, Acl, Kind, Operation, Pattern, Permission

Resource = tuple[Kind, str, Pattern]
Entry = tuple[str, str, Operation, Permission]  # principal, host

THE_CLUSTER: Final[Resource] = (Kind.CLUSTER, CLUSTER_NAME, Pattern.LITERAL)
EVERY_ENTRY: Final[tuple[Entry | None, ...]] = (None,)
COLUMNS: Final = ("Resource", "Name", "Pattern", "Principal", "Host", "Operation", "Permission")
PATTERNS: Final = ("literal", "prefixed", "any", "match")
PRODUCER: Final = {
    Kind.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    Kind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Kind.CLUSTER: (Operation.IDEMPOTENT_WRITE,),  # with --idempotent
}
CONSUMER: Final = {Kind.TOPIC: (Operation.READ, Operation.DESCRIBE), Kind.GROUP: (Operation.READ,)}


def pascal(word: str) -> str:
    """Return a name as Kafka's tools write it: `DESCRIBE_CONFIGS` becomes DescribeConfigs."""
    return "".join(part.capitalize() for part in word.split("_"))


OPERATIONS: Final = {
    pascal(operation.name).upper(): operation for operation in Operation if operation >= Operation.ALL
}


class Operations(click.ParamType):
    name = "OPERATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Operation:
        if isinstance(value, Operation):
            return value
        found = OPERATIONS.get(value.strip().upper()) or OPERATIONS.get(
            value.strip().upper().replace("_", "")
        )
        if found is None:
            words = ", ".join(pascal(operation.name) for operation in OPERATIONS.values())
            self.fail(f"{value} is none of {words}", param, ctx)
        return found


class Principal(click.ParamType):
    name = "TYPE:NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        principal = str(value).strip()
        if ":" not in principal:
            self.fail(f"{principal} has no type: write User:{principal}", param, ctx)
        return principal


@click.command(context_settings=CONTEXT)
@one_action(add="Add ACLs.", remove="Remove ACLs.", list="List ACLs.")
@click.option("--topic", "topics", multiple=True, help="A topic; * means every topic.")
@click.option("--group", "groups", multiple=True, help="A consumer group; * means every group.")
@click.option("--cluster", is_flag=True, help="The cluster.")
@click.option(
    "--transactional-id", "transactional_ids", multiple=True, help="A transactional id; * means every id."
)
@click.option("--delegation-token", "tokens", multiple=True, help="A delegation token.")
@click.option(
    "--user-principal", "users", multiple=True, help="A user whose tokens may be created or described."
)
@click.option("--resource-pattern-type", "pattern_name", type=click.Choice(PATTERNS, case_sensitive=False),
              default="literal", show_default=True,
              help="prefixed: all names with this prefix. With --list and --remove also: any (literal or"
              " prefixed), match (all ACLs that apply to the resource).")  # fmt: skip
@click.option(
    "--operation", "operations", multiple=True, type=Operations(), help="Read, Write, ...  [default: All]"
)
@click.option(
    "--allow-principal", "allowed", multiple=True, type=Principal(), help="User:NAME; User:* means everybody."
)
@click.option(
    "--deny-principal", "denied", multiple=True, type=Principal(), help="A denial overrides every permission."
)
@click.option("--allow-host", "allowed_hosts", multiple=True, help="An address.  [default: every host]")
@click.option("--deny-host", "denied_hosts", multiple=True, help="An address.  [default: every host]")
@click.option("--producer", is_flag=True, help="Write, Describe and Create on the topics.")
@click.option("--consumer", is_flag=True, help="Read and Describe on the topics, Read on the groups.")
@click.option("--idempotent", is_flag=True, help="With --producer: also IdempotentWrite on the cluster.")
@click.option(
    "--principal",
    "principals",
    multiple=True,
    type=Principal(),
    help="With --list: only the ACLs of this principal.",
)
@click.option("--force", is_flag=True, help="With --remove: do not ask for confirmation.")
@server_options
def command(action: str, bootstrap: str, as_json: bool, **given: Any) -> None:
    """Add, remove and list ACLs, which say who may do what (Kafka's StandardAuthorizer).

    \b
      kafkad acls --add --allow-principal User:anna --producer --topic flights
      kafkad acls --add --allow-principal User:bob --consumer --topic flights --group loaders
      kafkad acls --add --deny-principal User:bob --topic secret- --resource-pattern-type prefixed
      kafkad acls --list --topic flights --resource-pattern-type match
      kafkad acls --remove --topic flights
    """
    _check(action, given)
    pattern = Pattern[given["pattern_name"].upper()]
    if action == "list":
        with connected(bootstrap) as cluster:
            found = _listed(cluster.any(), _resources(given, pattern), given["principals"])
        show(COLUMNS, _rows(found), as_json)
        return
    wanted = _wanted(given, pattern)
    if action == "add":
        _check_addable(wanted, pattern)
        acls = [Acl._make((*resource, *entry)) for resource, entries in wanted.items() for entry in entries]
        with connected(bootstrap) as cluster:
            rows = _added(cluster.any(), acls)
    else:
        _confirm(wanted, given["force"])
        with connected(bootstrap) as cluster:
            rows = _removed(cluster.any(), wanted)
        say(f"Removed {counted(len(rows), 'ACL')}.")
    show(COLUMNS, _rows(rows), as_json)


def _check(action: str, given: dict[str, Any]) -> None:
    """Refuse the combinations of options that kafka-acls refuses. Raise click.UsageError."""
    inferred = [name for name in ("producer", "consumer") if given[name]]
    entries = {
        "operation": given["operations"],
        "allow-principal": given["allowed"],
        "deny-principal": given["denied"],
        "allow-host": given["allowed_hosts"],
        "deny-host": given["denied_hosts"],
    }
    for name in inferred:
        for other in ("operation", "deny-principal", "deny-host"):
            if entries[other]:
                raise click.UsageError(f"--{name} cannot be used with --{other}")
    if action == "list":
        for name in (*inferred, *(name for name, it in entries.items() if it and name != "operation")):
            raise click.UsageError(f"--list cannot be used with --{name}")
    elif given["principals"]:
        raise click.UsageError("--principal is for --list; use --allow-principal or --deny-principal")
    if given["producer"] and not given["topics"]:
        raise click.UsageError("--producer needs a --topic")
    if given["idempotent"] and not given["producer"]:
        raise click.UsageError("--idempotent is for --producer")
    if given["consumer"]:
        if not given["topics"] or not given["groups"]:
            raise click.UsageError("--consumer needs a --topic and a --group")
        if not given["producer"] and (given["cluster"] or given["transactional_ids"]):
            raise click.UsageError("--consumer cannot be used with --cluster or --transactional-id")


def _resources(given: dict[str, Any], pattern: Pattern) -> list[Resource]:
    named: list[Resource] = [
        (kind, name if kind is Kind.TRANSACTIONAL_ID else name.strip(), pattern)
        for kind, option in (
            (Kind.TOPIC, "topics"),
            (Kind.GROUP, "groups"),
            (Kind.TRANSACTIONAL_ID, "transactional_ids"),
            (Kind.DELEGATION_TOKEN, "tokens"),
            (Kind.USER, "users"),
        )
        for name in given[option]
    ]
    if (given["cluster"] or given["idempotent"]) and pattern is Pattern.LITERAL:
        named.append(THE_CLUSTER)
    return list(dict.fromkeys(named))


def _wanted(given: dict[str, Any], pattern: Pattern) -> dict[Resource, list[Entry]]:
    """Return the entries for each resource."""
    resources = _resources(given, pattern)
    if not resources:
        raise click.UsageError(
            "give at least one resource: --topic, --group, --cluster, --transactional-id, --delegation-token"
            " or --user-principal"
        )
    wanted: dict[Resource, list[Entry]] = {}
    if not given["producer"] and not given["consumer"]:
        operations = given["operations"] or (Operation.ALL,)
        wanted = {resource: list(_entries(given, operations)) for resource in resources}
    if given["producer"]:
        for resource in resources:
            if resource[0] in (Kind.TOPIC, Kind.TRANSACTIONAL_ID):
                wanted[resource] = list(_entries(given, PRODUCER[resource[0]]))
        if given["idempotent"]:
            wanted[THE_CLUSTER] = list(_entries(given, PRODUCER[Kind.CLUSTER]))
    if given["consumer"]:
        for resource in resources:
            if resource[0] in CONSUMER:
                entries = [*wanted.get(resource, ()), *_entries(given, CONSUMER[resource[0]])]
                wanted[resource] = list(dict.fromkeys(entries))
    for (kind, _, _), entries in wanted.items():
        known = (Operation.ALL, *map(Operation, SUPPORTED[kind]))
        if any(operation not in known for _, _, operation, _ in entries):
            words = ", ".join(pascal(operation.name) for operation in known)
            raise click.UsageError(f"resource type {kind.name} only supports operations {words}")
    return wanted


def _entries(given: dict[str, Any], operations: Iterable[Operation]) -> Iterator[Entry]:
    for permission, principals, hosts in (
        (Permission.ALLOW, given["allowed"], given["allowed_hosts"]),
        (Permission.DENY, given["denied"], given["denied_hosts"]),
    ):
        addresses = [host.strip() for host in hosts] or [ANYTHING]
        for principal, operation, host in product(principals, operations, addresses):
            yield principal, host, operation, permission


def _check_addable(wanted: dict[Resource, list[Entry]], pattern: Pattern) -> None:
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise click.UsageError(f"--resource-pattern-type {pattern.name.lower()} is not for --add")
    if not all(wanted.values()):
        raise click.UsageError("--add needs --allow-principal or --deny-principal")


def _confirm(wanted: dict[Resource, list[Entry]], force: bool) -> None:
    if force:
        return
    if not sys.stdin.isatty():
        raise Refused("--remove asks for confirmation, but stdin is not a terminal; use --force")
    for (kind, name, pattern), entries in wanted.items():
        which = f"these {len(entries)}" if entries else "all"
        say(f"{kind.name} {name} ({pattern.name.lower()}): {which} ACLs")
        for principal, host, operation, permission in entries:
            say(f"  {permission.name} {principal} {pascal(operation.name)} from {host}")
    click.confirm("Remove them?", abort=True, err=True)


def _filter(struct: Any, kind: int, name: str | None, pattern: int, entry: Entry | None = None) -> Any:
    """Build a filter. Without an `entry`, it matches all ACLs of the resource."""
    principal, host, operation, permission = entry or (None, None, Operation.ANY, Permission.ANY)
    return struct(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=principal,
        host_filter=host,
        operation=operation,
        permission_type=permission,
    )


def _described(connection: Connection, kind: int, name: str | None, pattern: int) -> list[Acl]:
    """Return the ACLs that match. Raise KafkaError."""
    told = connection.ask(_filter(messages.DescribeAclsRequest, kind, name, pattern))
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    return [
        Acl(
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for row in told.resources
        for acl in row.acls
    ]


def _listed(connection: Connection, resources: list[Resource], principals: Sequence[str]) -> list[Acl]:
    """Return the ACLs of `resources` and `principals`. An empty list means all."""
    filters: list[tuple[int, str | None, int]] = [*resources] or [(Kind.ANY, None, Pattern.ANY)]
    found: dict[Acl, None] = {}
    for kind, name, pattern in filters:
        found.update(dict.fromkeys(_described(connection, kind, name, pattern)))
    return [acl for acl in found if not principals or acl.principal in principals]


def _added(connection: Connection, acls: list[Acl]) -> list[Acl]:
    """Add ACLs, and return those that did not exist yet. Raise KafkaError."""
    there: set[Acl] = set()
    for kind, name, pattern in dict.fromkeys(acl[:3] for acl in acls):
        there.update(_described(connection, kind, name, pattern))
    new = [acl for acl in acls if acl not in there]
    if len(new) < len(acls):
        say(f"{counted(len(acls) - len(new), 'ACL')} existed already.")
    struct = messages.CreateAclsRequest
    creations = [
        struct.Creations(
            resource_type=acl.kind,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in new
    ]
    for result in connection.ask(struct(creations=creations)).results if new else ():
        if result.error_code:
            raise KafkaError(result.error_code, result.error_message)
    return new


def _removed(connection: Connection, wanted: dict[Resource, list[Entry]]) -> list[Acl]:
    """Remove the ACLs that match, and return them. Raise KafkaError."""
    struct = messages.DeleteAclsRequest
    filters = [
        _filter(struct.Filters, kind, name, pattern, entry)
        for (kind, name, pattern), entries in wanted.items()
        for entry in (entries or EVERY_ENTRY)
    ]
    gone: dict[Acl, None] = {}
    for result in connection.ask(struct(filters=filters)).filter_results:
        if result.error_code:
            raise KafkaError(result.error_code, result.error_message)
        for row in result.matching_acls:
            if row.error_code:
                raise KafkaError(row.error_code, row.error_message)
            acl = Acl(
                row.resource_type,
                row.resource_name,
                row.pattern_type,
                row.principal,
                row.host,
                row.operation,
                row.permission_type,
            )
            gone[acl] = None
    return list(gone)


def _rows(acls: Iterable[Acl]) -> list[tuple[Any, ...]]:
    return [
        (
            _word(Kind, acl.kind),
            acl.name,
            _word(Pattern, acl.pattern).lower(),
            acl.principal,
            acl.host,
            pascal(_word(Operation, acl.operation)),
            _word(Permission, acl.permission).lower(),
        )
        for acl in sorted(acls)
    ]


def _word(words: Any, number: int) -> str:
    try:
        return str(words(number).name)
    except ValueError:
        return str(number)
