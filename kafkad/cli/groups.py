"""`kafkad groups`: kafka-consumer-groups."""

import datetime
import re
from typing import Any

import click

from kafkad.cli.output import CONTEXT, connected, say, server_options, show
from kafkad.client.cluster import Cluster
from kafkad.client.consumer import EARLIEST, LATEST, committed_offsets, list_offsets
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError

DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")


@click.command(context_settings=CONTEXT)
@click.option("--list", "action", flag_value="list", help="List groups.")
@click.option(
    "--describe", "action", flag_value="describe", help="Offsets and lag, or --members, or --state."
)
@click.option("--delete", "action", flag_value="delete", help="Delete an empty group.")
@click.option("--reset-offsets", "action", flag_value="reset", help="Set an inactive group's offsets.")
@click.option(
    "--delete-offsets", "action", flag_value="forget", help="Forget a group's offsets of a --topic."
)
@click.option("--group", help="The group.")
@click.option("--all-groups", is_flag=True, help="With --describe: every group.")
@click.option("--members", is_flag=True, help="With --describe: members and what they read.")
@click.option("--state", is_flag=True, help="With --describe: state, protocol, coordinator.")
@click.option(
    "--topic", "topics", multiple=True, metavar="T[:P,P]", help="With --reset-offsets or --delete-offsets."
)
@click.option(
    "--all-topics", is_flag=True, help="With --reset-offsets: every topic that the group has offsets of."
)
@click.option("--to-earliest", "target", flag_value="earliest")
@click.option("--to-latest", "target", flag_value="latest")
@click.option("--to-current", "target", flag_value="current")
@click.option("--to-offset", type=int)
@click.option("--shift-by", type=int, help="Forward, or backward if negative.")
@click.option("--to-datetime", metavar="YYYY-MM-DDTHH:MM:SS[.sss]")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="That long ago.")
@click.option(
    "--execute", is_flag=True, help="With --reset-offsets: do it. Without, the new offsets are only shown."
)
@click.option(
    "--dry-run", is_flag=True, help="With --reset-offsets: only show the new offsets (the default)."
)
@server_options
def command(
    action: str | None,
    group: str | None,
    all_groups: bool,
    members: bool,
    state: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    target: str | None,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    execute: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """List, describe, delete and reset consumer groups.

    \b
      kafkad groups --list
      kafkad groups --describe --group loaders
      kafkad groups --reset-offsets --group loaders --topic flights --to-earliest --execute
    """
    if action is None:
        raise click.UsageError("say one of --list, --describe, --delete, --reset-offsets, --delete-offsets")
    if group is None and action != "list" and not (action == "describe" and all_groups):
        raise click.UsageError("--group is missing")
    with connected(bootstrap) as cluster:
        match action:
            case "list":
                list_groups(cluster, as_json)
            case "describe":
                names = [g.group_id for g in all_of(cluster)] if all_groups else [str(group)]
                if members:
                    describe_members(cluster, names, as_json)
                elif state:
                    describe_state(cluster, names, as_json)
                else:
                    describe_offsets(cluster, names, as_json)
            case "delete":
                delete(cluster, str(group))
            case "forget":
                forget(cluster, str(group), topics)
            case "reset":
                given = [x for x in (target, to_offset, shift_by, to_datetime, by_duration) if x is not None]
                if len(given) != 1:
                    raise click.UsageError(
                        "say one of --to-earliest, --to-latest, --to-offset, --shift-by, …"
                    )
                if not topics and not all_topics:
                    raise click.UsageError("--reset-offsets needs --topic or --all-topics")
                when = parse_time(to_datetime, by_duration)
                reset(
                    cluster,
                    str(group),
                    topics,
                    target,
                    to_offset,
                    shift_by,
                    when,
                    execute and not dry_run,
                    as_json,
                )


def all_of(cluster: Cluster) -> list[Any]:
    found = []
    for node in cluster.brokers():
        response = cluster.broker(node).ask(messages.ListGroupsRequest())
        if response.error_code:
            raise KafkaError(response.error_code)
        found += response.groups
    return sorted(found, key=lambda g: g.group_id)


def list_groups(cluster: Cluster, as_json: bool) -> None:
    show(
        ("Group", "State", "Protocol-type"),
        [(g.group_id, g.group_state, g.protocol_type) for g in all_of(cluster)],
        as_json,
    )


def described(cluster: Cluster, name: str) -> Any:
    def look() -> Any:
        told = cluster.coordinator(name).ask(messages.DescribeGroupsRequest(groups=[name])).groups[0]
        if told.error_code:
            raise KafkaError(told.error_code, told.error_message or f"group {name!r}")
        return told

    return cluster.retry(look)


def assignments(group: Any) -> dict[tuple[str, int], Any]:
    """Who reads which partition, of a group of the consumer protocol."""
    owners: dict[tuple[str, int], Any] = {}
    if group.protocol_type != "consumer":
        return owners
    for member in group.members:
        if member.member_assignment:
            assignment, _ = codec.decode(messages.ConsumerProtocolAssignment, 0, member.member_assignment, 2)
            for topic in assignment.assigned_partitions:
                for partition in topic.partitions:
                    owners[topic.topic, partition] = member
    return owners


def describe_offsets(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        owners = assignments(group)
        committed = committed_offsets(cluster, name)
        for topic, partition in sorted({*committed, *owners}):
            end = list_offsets(cluster, topic, {partition: LATEST})[partition]
            offset = committed.get((topic, partition))
            owner = owners.get((topic, partition))
            rows.append(
                (
                    name,
                    topic,
                    partition,
                    offset,
                    end,
                    None if offset is None else end - offset,
                    owner.member_id if owner else None,
                    owner.client_host if owner else None,
                    owner.client_id if owner else None,
                )
            )
    columns = (
        "Group",
        "Topic",
        "Partition",
        "Current-offset",
        "Log-end-offset",
        "Lag",
        "Consumer-id",
        "Host",
        "Client-id",
    )
    show(columns, rows, as_json)


def describe_members(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        owned: dict[str, list[str]] = {}
        for (topic, partition), member in assignments(group).items():
            owned.setdefault(member.member_id, []).append(f"{topic}-{partition}")
        rows += [
            (
                name,
                m.member_id,
                m.group_instance_id,
                m.client_host,
                m.client_id,
                sorted(owned.get(m.member_id, [])),
            )
            for m in group.members
        ]
    show(("Group", "Consumer-id", "Group-instance-id", "Host", "Client-id", "Partitions"), rows, as_json)


def describe_state(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        at = cluster.coordinator(name).address
        rows.append((name, at, group.protocol_data, group.group_state, len(group.members)))
    show(("Group", "Coordinator", "Assignment-strategy", "State", "Members"), rows, as_json)


def delete(cluster: Cluster, name: str) -> None:
    told = cluster.retry(
        lambda: cluster.coordinator(name).ask(messages.DeleteGroupsRequest(groups_names=[name])).results[0]
    )
    if told.error_code:
        raise KafkaError(told.error_code, f"group {name!r}")
    say(f"Deleted group {name}.")


def chosen_partitions(cluster: Cluster, texts: tuple[str, ...]) -> list[tuple[str, int]]:
    """`topic` or `topic:0,1`, as Kafka's tool takes them."""
    chosen = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        partitions = [int(n) for n in numbers.split(",")] if colon else cluster.partitions(topic)
        chosen += [(topic, p) for p in partitions]
    return chosen


def forget(cluster: Cluster, group: str, texts: tuple[str, ...]) -> None:
    struct = messages.OffsetDeleteRequest.Topics
    topics: dict[str, Any] = {}
    for topic, partition in chosen_partitions(cluster, texts):
        entry = topics.setdefault(topic, struct(name=topic))
        entry.partitions.append(struct.Partitions(partition_index=partition))
    request = messages.OffsetDeleteRequest(group_id=group, topics=list(topics.values()))
    response = cluster.coordinator(group).ask(request)
    codes = [response.error_code, *(p.error_code for t in response.topics for p in t.partitions)]
    for code in codes:
        if code:
            raise KafkaError(code, f"group {group!r}")
    say(f"Forgot the offsets of {', '.join(texts)}.")


def parse_time(moment: str | None, duration: str | None) -> int | None:
    """Milliseconds since the epoch. Raises click.BadParameter."""
    if moment is not None:
        try:
            when = datetime.datetime.fromisoformat(moment)
        except ValueError:
            raise click.BadParameter(
                f"{moment!r} is not like 2026-01-31T13:00:00", param_hint="--to-datetime"
            )
        return int((when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
    if duration is not None:
        match = DURATION.match(duration)
        if match is None or duration in ("P", "PT"):
            raise click.BadParameter(f"{duration!r} is not like P1DT2H", param_hint="--by-duration")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        span = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return int((datetime.datetime.now(datetime.UTC) - span).timestamp() * 1000)
    return None


def reset(
    cluster: Cluster,
    group: str,
    texts: tuple[str, ...],
    target: str | None,
    to_offset: int | None,
    shift_by: int | None,
    when: int | None,
    execute: bool,
    as_json: bool,
) -> None:
    committed = committed_offsets(cluster, group)
    chosen = chosen_partitions(cluster, texts) if texts else sorted(committed)
    new: dict[tuple[str, int], int] = {}
    for topic, partition in chosen:
        first = list_offsets(cluster, topic, {partition: EARLIEST})[partition]
        last = list_offsets(cluster, topic, {partition: LATEST})[partition]
        now = committed.get((topic, partition), first)
        if when is not None:
            found = list_offsets(cluster, topic, {partition: when})[partition]
            wanted = last if found < 0 else found
        elif to_offset is not None:
            wanted = to_offset
        elif shift_by is not None:
            wanted = now + shift_by
        else:
            wanted = {"earliest": first, "latest": last, "current": now}[str(target)]
        new[topic, partition] = min(max(wanted, first), last)
    if execute:
        commit(cluster, group, new)
    rows = [(group, topic, partition, offset) for (topic, partition), offset in sorted(new.items())]
    show(("Group", "Topic", "Partition", "New-offset"), rows, as_json)
    if not execute:
        say("Nothing was changed; add --execute to do it.")


def commit(cluster: Cluster, group: str, offsets: dict[tuple[str, int], int]) -> None:
    struct = messages.OffsetCommitRequest.Topics
    topics: dict[str, Any] = {}
    for (topic, partition), offset in offsets.items():
        entry = topics.setdefault(topic, struct(name=topic))
        entry.partitions.append(struct.Partitions(partition_index=partition, committed_offset=offset))
    request = messages.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=list(topics.values())
    )
    connection = cluster.coordinator(group)
    response = connection.ask(request, min(connection.version_for(messages.OffsetCommitRequest), 9))
    for topic_told in response.topics:
        for told in topic_told.partitions:
            if told.error_code == errors.UNKNOWN_MEMBER_ID:
                raise KafkaError(told.error_code, f"group {group!r} is active; stop its consumers first")
            if told.error_code:
                raise KafkaError(told.error_code, f"{topic_told.name}-{told.partition_index}")
