"""`kafkad cluster elect`, `reassign`, `features` and `unregister`: changes of a cluster, each one request to
the controller (kafka-leader-election, kafka-reassign-partitions, kafka-features, kafka-cluster)."""

from typing import Any, Final

import click

from kafkad.cli import throttles
from kafkad.cli.cluster_state import ALONE
from kafkad.cli.output import CONTEXT, Refused, connected, parse_pairs, say, server_options, show
from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import ELECTION_NOT_NEEDED, NAMES, KafkaError

PREFERRED, UNCLEAN = 0, 1
TIMEOUT_MS: Final = 30_000
UPGRADE, SAFE_DOWNGRADE = 1, 2


def ask(connection: Connection, request: Any) -> Any:
    """The controller's answer. Raises Refused, KafkaError: of the whole request."""
    if request.API_KEY not in connection.versions:
        raise Refused(ALONE)
    answer = connection.ask(request)
    if getattr(answer, "error_code", 0):
        raise KafkaError(answer.error_code, getattr(answer, "error_message", None))
    return answer


def error_of(row: Any) -> str | None:
    if not row.error_code:
        return None
    return ": ".join(filter(None, (NAMES.get(row.error_code, str(row.error_code)), row.error_message)))


def partition_of(text: str) -> tuple[str, int]:
    """TOPIC-N. Raises click.UsageError."""
    topic, dash, index = text.rpartition("-")
    if not dash or not topic or not index.isdecimal():
        raise click.UsageError(f"{text!r} is not of the form TOPIC-PARTITION")
    return topic, int(index)


def finish(columns: tuple[str, ...], rows: list[tuple[Any, ...]], as_json: bool) -> None:
    """Show rows that end with an error or None. Raises Refused if there is an error."""
    show((*columns, "Error"), rows, as_json)
    failed = sum(row[-1] is not None for row in rows)
    if failed:
        raise Refused(f"{failed} of {len(rows)} were refused")


@click.command(context_settings=CONTEXT)
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@click.option("--all", "everything", is_flag=True, help="All partitions that need it.")
@click.option("--unclean", is_flag=True, help="A replica that is out of the ISR may lead: records are lost.")
@server_options
def elect(
    partitions: tuple[str, ...], everything: bool, unclean: bool, bootstrap: str, as_json: bool
) -> None:
    """Let the preferred (first) replica of partitions lead again, or any replica with --unclean. If the disks
    of a partition that you name are lost, --unclean lets it begin empty.

    \b
      kafkad cluster elect --all
      kafkad cluster elect --unclean orders-3
    """
    if bool(partitions) == everything:
        raise click.UsageError("name partitions, or give --all")
    cls = messages.ElectLeadersRequest
    wanted: dict[str, list[int]] = {}
    for topic, index in map(partition_of, partitions):
        wanted.setdefault(topic, []).append(index)
    request = cls(
        election_type=UNCLEAN if unclean else PREFERRED,
        topic_partitions=None
        if everything
        else [cls.TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in wanted.items()],
        timeout_ms=TIMEOUT_MS,
    )
    with connected(bootstrap) as cluster:
        answer = ask(cluster.any(), request)
    rows = [
        (topic.topic, each.partition_id, error_of(each))
        for topic in answer.replica_election_results
        for each in topic.partition_result
        if each.error_code != ELECTION_NOT_NEEDED
    ]
    finish(("Topic", "Partition"), rows, as_json)


@click.command(context_settings=CONTEXT)
@click.argument("moves", nargs=-1, metavar="[TOPIC-PARTITION=ID,ID,...]...")
@click.option("--cancel", multiple=True, metavar="TOPIC-PARTITION", help="Stop a move; may be repeated.")
@click.option(
    "--throttle", type=click.IntRange(1), metavar="BYTES", help="Limit of each broker, in bytes per second."
)
@click.option("--unthrottle", is_flag=True, help="Remove the throttles of all brokers and topics.")
@server_options
def reassign(
    moves: tuple[str, ...],
    cancel: tuple[str, ...],
    throttle: int | None,
    unthrottle: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move partitions to other brokers, or show the moves under way.

    The first broker of a list is the preferred leader. Clients can use a partition while it moves.

    \b
      kafkad cluster reassign orders-0=2,3,4 orders-1=3,4,2 --throttle 50000000
      kafkad cluster reassign
      kafkad cluster reassign --unthrottle
    """
    if unthrottle and (moves or cancel or throttle):
        raise click.UsageError("--unthrottle stands alone")
    if throttle and not moves:
        raise click.UsageError("--throttle is for moves that begin")
    targets: dict[tuple[str, int], list[int] | None] = {partition_of(text): None for text in cancel}
    for text in moves:
        place, equals, ids = text.rpartition("=")
        if not equals or not all(each.strip().isdecimal() for each in ids.split(",")):
            raise click.UsageError(f"{text!r} is not of the form TOPIC-PARTITION=ID,ID,...")
        targets[partition_of(place)] = [int(each) for each in ids.split(",")]
    with connected(bootstrap) as cluster:
        if unthrottle:
            removed = throttles.remove(cluster)
            if as_json:
                show(("Type", "Name", "Deleted"), removed, as_json)
            else:
                say("Removed all throttles.")
            return
        if throttle:
            throttles.begin(cluster, throttle, {key: ids for key, ids in targets.items() if ids is not None})
        if not targets:
            _show_moves(cluster.any(), as_json)
            return
        cls = messages.AlterPartitionReassignmentsRequest
        by_topic: dict[str, Any] = {}
        for (topic, index), replicas in targets.items():
            entry = by_topic.setdefault(topic, cls.Topics(name=topic, partitions=[]))
            entry.partitions.append(cls.Topics.Partitions(partition_index=index, replicas=replicas))
        answer = ask(cluster.any(), cls(timeout_ms=TIMEOUT_MS, topics=list(by_topic.values())))
    rows = [
        (topic.name, each.partition_index, targets[topic.name, each.partition_index], error_of(each))
        for topic in answer.responses
        for each in topic.partitions
    ]
    finish(("Topic", "Partition", "Replicas"), rows, as_json)


def _show_moves(connection: Connection, as_json: bool) -> None:
    answer = ask(connection, messages.ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None))
    rows = [
        (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in answer.topics
        for each in topic.partitions
    ]
    show(("Topic", "Partition", "Replicas", "Adding", "Removing"), rows, as_json)


@click.command(context_settings=CONTEXT)
@click.option("--set", "levels", multiple=True, metavar="NAME=LEVEL", help="Change a level; may be repeated.")
@click.option("--downgrade", is_flag=True, help="Lower the levels. Refused if metadata would be lost.")
@click.option("--dry-run", is_flag=True, help="Only check whether the change is possible.")
@server_options
def features(levels: tuple[str, ...], downgrade: bool, dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Show the feature levels of a cluster, or change some."""
    with connected(bootstrap) as cluster:
        connection = cluster.any()
        if not levels:
            told = connection.ask(
                messages.ApiVersionsRequest(client_software_name="kafkad", client_software_version="1")
            )
            finalized = {each.name: each.max_version_level for each in told.finalized_features}
            rows = [
                (each.name, finalized.get(each.name, 0), each.min_version, each.max_version)
                for each in sorted(told.supported_features, key=lambda one: str(one.name))
            ]
            show(("Feature", "Level", "Lowest", "Highest"), rows, as_json)
            return
        cls = messages.UpdateFeaturesRequest
        wanted = parse_pairs(levels, "--set")
        if not all(level.isdecimal() for level in wanted.values()):
            raise click.UsageError("--set takes NAME=LEVEL, and a level is a number")
        # version 0 has another field for a downgrade, and no dry run
        kind = {"upgrade_type": SAFE_DOWNGRADE if downgrade else UPGRADE}
        if connection.versions.get(cls.API_KEY, (0, 1))[1] == 0:
            if dry_run:
                raise Refused("this broker has no --dry-run: its Kafka is older than 3.3")
            kind = {"allow_downgrade": downgrade}
        updates = [
            cls.FeatureUpdates(feature=name, max_version_level=int(level), **kind)
            for name, level in wanted.items()
        ]
        answer = ask(connection, cls(timeout_ms=TIMEOUT_MS, feature_updates=updates, validate_only=dry_run))
        for result in answer.results or ():  # before version 2, each feature has its error
            if result.error_code:
                raise KafkaError(result.error_code, result.error_message or result.feature)
    if as_json:
        show(("Feature", "Level"), [(name, int(level)) for name, level in wanted.items()], as_json)
    else:
        say("The change is possible." if dry_run else "Changed the feature levels.")


@click.command(context_settings=CONTEXT)
@click.argument("broker", type=click.IntRange(0))
@server_options
def unregister(broker: int, bootstrap: str, as_json: bool) -> None:
    """Remove the registration of a broker that will not return.

    Move its partitions to other brokers first, then stop it. The command refuses a broker that still runs.
    """
    with connected(bootstrap) as cluster:
        if broker in {each.node_id for each in cluster.refresh([]).brokers}:
            raise Refused(f"broker {broker} runs; stop it first")
        ask(cluster.any(), messages.UnregisterBrokerRequest(broker_id=broker))
    show(("Broker", "Registered"), [(broker, False)], as_json)
