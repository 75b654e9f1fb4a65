"""`kafkad groups`: kafka-consumer-groups."""

import csv
import datetime
import re
import sys
import time
from typing import Any

import click

from kafkad.cli.output import (
    CONTEXT,
    Refused,
    connected,
    counted,
    explained,
    one_action,
    print_json,
    say,
    server_options,
    show,
)
from kafkad.client.cluster import Cluster
from kafkad.client.group import assigned
from kafkad.client.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    by_topic,
    commit_offsets,
    committed_offsets,
    list_offsets,
)
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

DURATION = re.compile(r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.I)


@click.command(context_settings=CONTEXT)
@one_action(
    list="List the names of groups; with --state, also their states.",
    describe="Show offsets and lag, or --members, or --state.",
    delete="Delete groups without members.",
    reset_offsets="Set the offsets of a group without members.",
    delete_offsets="Delete a group's offsets for --topic.",
)
@click.option("--group", "groups", multiple=True, help="The group; may be repeated.")
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--offsets", is_flag=True, help="With --describe: offsets and lag (the default).")
@click.option("--members", is_flag=True, help="With --describe: members and their partitions.")
@click.option(
    "--state", is_flag=True, help="With --describe: state, assignor, coordinator. Also with --list."
)
@click.option("--verbose", is_flag=True, hidden=True)
@click.option(
    "--topic", "topics", multiple=True, metavar="T[:P,P]", help="With --reset-offsets or --delete-offsets."
)
@click.option("--all-topics", is_flag=True, help="All topics that the group has offsets for.")
@click.option("--to-earliest", is_flag=True, help="Reset to the first record.")
@click.option("--to-latest", is_flag=True, help="Reset to the end, after the last record.")
@click.option("--to-current", is_flag=True, help="Keep the current offsets; useful with --export.")
@click.option("--to-offset", type=int, help="Reset to this offset, or to the nearest existing one.")
@click.option("--shift-by", type=int, help="Move forward by this many records, or backward if negative.")
@click.option(
    "--to-datetime",
    metavar="YYYY-MM-DDTHH:MM:SS[.sss]",
    help="Reset to the first record at or after this time (UTC).",
)
@click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to the first record of the last PnDTnHnMnS.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Reset to the offsets of a file that --export has written.",
)
@click.option("--execute", is_flag=True, help="With --reset-offsets: apply the change.")
@click.option("--dry-run", is_flag=True, help="With --reset-offsets: only show the change (the default).")
@click.option("--export", is_flag=True, help="With --reset-offsets: print CSV for --from-file.")
@server_options
def command(
    action: str,
    groups: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: str | None,
    execute: bool,
    dry_run: bool,
    export: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """List, describe, delete and reset consumer groups.

    \b
      kafkad groups --list
      kafkad groups --describe --group loaders
      kafkad groups --describe --all-groups --members
      kafkad groups --reset-offsets --group loaders --topic flights --to-earliest --execute
      kafkad groups --reset-offsets --group loaders --topic flights:0,1 --to-datetime 2026-01-31T12:00:00
    """
    if action != "list" and not groups and not all_groups:
        raise click.UsageError(f"--{action.replace('_', '-')} needs --group")
    if offsets + members + state > 1:
        raise click.UsageError("--offsets, --members and --state exclude each other")
    if action.endswith("_offsets") and not topics and not (all_topics or from_file):
        raise click.UsageError("give --topic or --all-topics")
    if action.endswith("_offsets") and (len(groups) != 1 or all_groups):
        raise click.UsageError("give exactly one --group")
    goal: Goal | None = None
    if action == "reset_offsets":
        if execute and dry_run:
            raise click.UsageError("--execute and --dry-run exclude each other")
        named = {"earliest": to_earliest, "latest": to_latest, "current": to_current}
        targets = [name for name, said in named.items() if said]
        goal = Goal(targets, to_offset, shift_by, parse_time(to_datetime, by_duration), from_file)
    with connected(bootstrap) as cluster:
        match action:
            case "list":
                list_groups(cluster, state, as_json)
            case "describe":
                names = [g.group_id for g in all_of(cluster)] if all_groups else list(groups)
                show_what = describe_members if members else describe_state if state else describe_offsets
                show_what(cluster, names, as_json)
            case "delete":
                names = [g.group_id for g in all_of(cluster)] if all_groups else list(groups)
                delete(cluster, names, as_json)
            case "delete_offsets":
                forget(cluster, groups[0], topics, as_json)
            case "reset_offsets":
                assert goal is not None
                new = goal.offsets(cluster, groups[0], topics)
                if execute:
                    cluster.retry(lambda: commit_offsets(cluster, groups[0], new))
                show_reset(groups[0], new, execute, export, as_json)


def all_of(cluster: Cluster) -> list[Any]:
    def look() -> list[Any]:
        found = []
        for node in cluster.brokers():
            response = cluster.broker(node).ask(messages.ListGroupsRequest())
            if response.error_code:  # its groups are still loading, or it is stopping
                raise KafkaError(response.error_code)
            found += response.groups
        return sorted(found, key=lambda g: g.group_id)

    return cluster.retry(look)


def list_groups(cluster: Cluster, state: bool, as_json: bool) -> None:
    groups = all_of(cluster)
    if as_json or state:
        rows = [(g.group_id, g.group_state, g.protocol_type) for g in groups]
        show(("Group", "State", "Protocol-type"), rows, as_json)
    else:
        for group in groups:
            print(group.group_id)


def described(cluster: Cluster, name: str) -> Any:
    def look() -> Any:
        told = cluster.coordinator(name).ask(messages.DescribeGroupsRequest(groups=[name])).groups[0]
        if not told.error_code and told.group_state == "Dead":  # before version 6
            raise KafkaError(errors.GROUP_ID_NOT_FOUND, f"group {name!r}")
        if told.error_code:
            raise KafkaError(told.error_code, told.error_message or f"group {name!r}")
        return told

    return cluster.retry(look)


def owners_of(group: Any) -> dict[TopicPartition, Any]:
    """Return the member that reads each partition, for a group of the consumer protocol."""
    owners: dict[TopicPartition, Any] = {}
    if group.protocol_type == "consumer":
        for member in group.members:
            for topic, partitions in assigned(member.member_assignment).items():
                owners.update(((topic, partition), member) for partition in partitions)
    return owners


def end_offsets(cluster: Cluster, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return log end offsets. Deleted partitions have none."""
    topics = by_topic(wanted)
    known = {t.name: t for t in cluster.refresh(sorted(topics)).topics} if topics else {}
    ends: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        there = {p.partition_index for p in known[topic].partitions}
        found = list_offsets(cluster, topic, dict.fromkeys(there.intersection(partitions), LATEST))
        ends.update({(topic, p): offset for p, offset in found.items()})
    return ends


def describe_offsets(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        owners = owners_of(group)
        committed = committed_offsets(cluster, name)
        wanted = sorted({*committed, *owners})
        ends = end_offsets(cluster, wanted)
        if not group.members and not as_json:
            say(f"Group {name} has no members.")
        for topic, partition in wanted:
            end, offset = ends.get((topic, partition)), committed.get((topic, partition))
            owner = owners.get((topic, partition))
            rows.append(
                (
                    name,
                    topic,
                    partition,
                    offset,
                    end,
                    None if offset is None or end is None else max(0, end - offset),
                    owner.member_id if owner else None,
                    owner.client_host if owner else None,
                    owner.client_id if owner else None,
                )
            )
    columns = (
        *("Group", "Topic", "Partition", "Current-offset", "Log-end-offset", "Lag"),
        *("Consumer-id", "Host", "Client-id"),
    )
    show(columns, rows, as_json)


def describe_members(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        owned: dict[str, list[str]] = {}
        for (topic, partition), member in sorted(owners_of(group).items(), key=lambda item: item[0]):
            owned.setdefault(member.member_id, []).append(f"{topic}-{partition}")
        for m in group.members:
            mine = owned.get(m.member_id, [])
            rows.append((name, m.member_id, m.group_instance_id, m.client_host, m.client_id, len(mine), mine))
    columns = (*("Group", "Consumer-id", "Group-instance-id", "Host", "Client-id", "Count", "Partitions"),)
    show(columns, rows, as_json)


def describe_state(cluster: Cluster, names: list[str], as_json: bool) -> None:
    rows = []
    for name in names:
        group = described(cluster, name)
        at = cluster.coordinator(name).address
        rows.append((name, at, group.protocol_data or None, group.group_state, len(group.members)))
    show(("Group", "Coordinator", "Assignment-strategy", "State", "Members"), rows, as_json)


def delete(cluster: Cluster, names: list[str], as_json: bool) -> None:
    """Delete all groups that can be deleted. Raise KafkaError for the first that cannot; the others of these
    are printed."""
    gone: list[str] = []
    refused: list[KafkaError] = []
    for name in names:

        def attempt(name: str = name) -> None:
            request = messages.DeleteGroupsRequest(groups_names=[name])
            told = cluster.coordinator(name).ask(request).results[0]
            if told.error_code:
                raise KafkaError(told.error_code, f"group {name!r}")

        try:
            cluster.retry(attempt)
        except KafkaError as trouble:
            refused.append(trouble)
            continue
        gone.append(name)
        if not as_json:
            say(f"Deleted group {name}.")
    if as_json and (gone or not refused):
        print_json([{"group": name} for name in gone])
    for other in refused[1:]:
        say(f"kafkad: {explained(other)}.")
    if refused:
        raise refused[0]


def chosen_partitions(cluster: Cluster, texts: tuple[str, ...]) -> list[TopicPartition]:
    """Return the partitions of `topic` or `topic:0,1` texts, as in Kafka's tool."""
    chosen = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        there = cluster.partitions(topic)
        try:
            partitions = [int(n) for n in numbers.split(",")] if colon else there
        except ValueError:
            raise click.BadParameter(f"{text!r} is not like flights:0,1", param_hint="--topic")
        for partition in partitions:
            if partition not in there:
                raise Refused(f"topic {topic!r} has no partition {partition}, only 0 to {there[-1]}")
        chosen += [(topic, p) for p in partitions]
    return chosen


def forget(cluster: Cluster, group: str, texts: tuple[str, ...], as_json: bool) -> None:
    struct = messages.OffsetDeleteRequest.Topics
    chosen = chosen_partitions(cluster, texts) if texts else sorted(committed_offsets(cluster, group))
    topics = [
        struct(name=t, partitions=[struct.Partitions(partition_index=p) for p in partitions])
        for t, partitions in by_topic(chosen).items()
    ]

    def attempt() -> Any:
        told = cluster.coordinator(group).ask(messages.OffsetDeleteRequest(group_id=group, topics=topics))
        if told.error_code:
            raise KafkaError(told.error_code, f"group {group!r}")
        return told

    response = cluster.retry(attempt)
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise KafkaError(partition.error_code, f"{topic.name}-{partition.partition_index}")
    if as_json:
        print_json([{"group": group, "topic": t, "partition": p} for t, p in chosen])
    else:
        say(f"Deleted the offsets of group {group} for {counted(len(chosen), 'partition')}.")


def parse_time(moment: str | None, duration: str | None) -> int | None:
    """Return milliseconds since 1970, at least 0, because requests give other meanings to numbers below 0.
    Raise click.BadParameter."""
    if moment is not None:
        try:
            when = datetime.datetime.fromisoformat(moment)
        except ValueError:
            raise click.BadParameter(
                f"{moment!r} is not like 2026-01-31T13:00:00", param_hint="--to-datetime"
            )
        return max(0, int((when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp() * 1000))
    if duration is not None:
        match = DURATION.fullmatch(duration)
        if match is None:
            raise click.BadParameter(f"{duration!r} is not like P1DT2H", param_hint="--by-duration")
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return max(0, int((time.time() - (((days * 24 + hours) * 60 + minutes) * 60 + seconds)) * 1000))
    return None


class Goal:
    """The target of a reset of offsets. Raise click.UsageError unless exactly one target is given."""

    def __init__(
        self,
        targets: list[str],
        to_offset: int | None,
        shift_by: int | None,
        when: int | None,
        from_file: str | None,
    ) -> None:
        self.to_offset, self.shift_by, self.when = to_offset, shift_by, when
        self.target = targets[0] if targets else None
        self.from_file = from_file
        if len(targets) + sum(said is not None for said in (to_offset, shift_by, when, from_file)) != 1:
            raise click.UsageError(
                "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by,"
                " --to-datetime, --by-duration, --from-file"
            )

    def offsets(self, cluster: Cluster, group: str, texts: tuple[str, ...]) -> dict[TopicPartition, int]:
        """Return the new offsets, limited to the range of each partition."""
        given = read_plan(self.from_file, group) if self.from_file else {}
        committed = committed_offsets(cluster, group)
        chosen = chosen_partitions(cluster, texts) if texts else sorted(given or committed)
        new: dict[TopicPartition, int] = {}
        for topic, partitions in by_topic(chosen).items():
            first = list_offsets(cluster, topic, dict.fromkeys(partitions, EARLIEST))
            last = list_offsets(cluster, topic, dict.fromkeys(partitions, LATEST))
            at = first | {p: committed[topic, p] for p in partitions if (topic, p) in committed}
            if self.when is not None:
                since = list_offsets(cluster, topic, dict.fromkeys(partitions, self.when))
                wanted = {p: offset if offset >= 0 else last[p] for p, offset in since.items()}
            elif self.to_offset is not None:
                wanted = dict.fromkeys(partitions, self.to_offset)
            elif self.shift_by is not None:
                wanted = {p: offset + self.shift_by for p, offset in at.items()}
            elif self.from_file:
                wanted = {p: given.get((topic, p), at[p]) for p in partitions}
            else:
                wanted = {"earliest": first, "latest": last, "current": at}[str(self.target)]
            new.update({(topic, p): min(max(wanted[p], first[p]), last[p]) for p in partitions})
        return new


def read_plan(path: str, group: str) -> dict[TopicPartition, int]:
    """Read a CSV of topic,partition,offset or group,topic,partition,offset, as Kafka's --export writes it."""
    plan: dict[TopicPartition, int] = {}
    with open(path, newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            fields = [field.strip() for field in row]
            if len(fields) == 4 and fields[0] == group:
                fields = fields[1:]
            try:
                topic, partition, offset = fields
                plan[topic, int(partition)] = int(offset)
            except ValueError:
                raise Refused(f"line {number} of {path} is not like {group},flights,0,42")
    return plan


def show_reset(group: str, new: dict[TopicPartition, int], done: bool, export: bool, as_json: bool) -> None:
    rows = [(group, topic, partition, offset) for (topic, partition), offset in sorted(new.items())]
    if export and not as_json:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        show(("Group", "Topic", "Partition", "New-offset"), rows, as_json)
    if not done:
        say("Nothing was changed; add --execute to apply the change.")
