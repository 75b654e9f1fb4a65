"""`kafkad offsets`: kafka-get-offsets and, with --delete-before, kafka-delete-records."""

from typing import Any

import click

from kafkad.cli.groups import chosen_partitions, parse_time
from kafkad.cli.output import CONTEXT, Refused, connected, server_options, show
from kafkad.cli.topics import matcher
from kafkad.client.cluster import Cluster
from kafkad.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, by_topic, list_offsets
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

NAMED = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}
TIMEOUT_MS = 30_000
NO_PARTITIONS = "topic {!r} does not have these partitions"


class Moment(click.ParamType):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value) in NAMED:
            return NAMED[str(value)]
        try:
            when = int(value)
        except ValueError:
            try:
                moment = parse_time(str(value), None)
            except click.BadParameter:
                self.fail(f"{value!r} is not milliseconds, a date, {', '.join(NAMED)}", param, ctx)
            assert moment is not None
            return moment
        if when < MAX_TIMESTAMP:
            self.fail(f"{when} is not a time", param, ctx)
        return when


@click.command(context_settings=CONTEXT)
@click.option("--topic", "topic", help="The topic or a regular expression; with --delete-before also T:P,P.")
@click.option("--partitions", metavar="P[,P]", help="Only these partitions.")
@click.option(
    "--time",
    "when",
    type=Moment(),
    metavar="TIME",
    help="Show one offset instead of both ends: earliest, latest, max-timestamp, milliseconds or a date.",
)
@click.option(
    "--exclude-internal-topics", is_flag=True, help="Leave out internal topics such as __consumer_offsets."
)
@click.option(
    "--delete-before",
    metavar="OFFSET",
    help="Delete the records before this offset; latest deletes all records.",
)
@server_options
def command(
    topic: str | None,
    partitions: str | None,
    when: int | None,
    exclude_internal_topics: bool,
    delete_before: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show the first and last offsets of partitions, or the offset at a time. Delete old records.

    \b
      kafkad offsets --topic flights
      kafkad offsets --topic flights --time 2026-01-31T12:00:00
      kafkad offsets --topic flights --partitions 0 --delete-before 1000
    """
    wanted = parse_partitions(partitions)
    if delete_before is not None:
        if topic is None:
            raise click.UsageError("--delete-before needs --topic")
        if delete_before != "latest" and not delete_before.isdecimal():
            raise click.BadParameter(
                f"{delete_before!r} is neither an offset nor latest", param_hint="--delete-before"
            )
    chosen = matcher(topic)
    with connected(bootstrap) as cluster:
        if delete_before is not None:
            assert topic is not None
            before = -1 if delete_before == "latest" else int(delete_before)
            delete(cluster, topic, wanted, before, as_json)
            return
        rows: list[tuple[Any, ...]] = []
        known = sorted(cluster.refresh(None).topics, key=lambda t: t.name)
        found = [t for t in known if chosen(t.name) and not (exclude_internal_topics and t.is_internal)]
        if topic is not None and not found:
            raise Refused(f"there is no topic {topic!r}; kafkad topics --list shows the topics")
        for told in found:
            there = sorted(p.partition_index for p in told.partitions)
            asked = [p for p in there if wanted is None or p in wanted]
            if when is not None:
                at = list_offsets(cluster, told.name, dict.fromkeys(asked, when))
                rows += [(told.name, p, at[p] if at[p] >= 0 else None) for p in asked]
            else:
                first = list_offsets(cluster, told.name, dict.fromkeys(asked, EARLIEST))
                last = list_offsets(cluster, told.name, dict.fromkeys(asked, LATEST))
                rows += [(told.name, p, first[p], last[p], last[p] - first[p]) for p in asked]
        if wanted is not None and not rows:
            raise Refused("no topic has these partitions" if topic is None else NO_PARTITIONS.format(topic))
        columns = (
            "Topic",
            "Partition",
            *(("Offset",) if when is not None else ("Earliest", "Latest", "Span")),
        )
        show(columns, rows, as_json)


def parse_partitions(text: str | None) -> set[int] | None:
    """Parse `0,1` or `0-3,7`, as in Kafka's tool. Raise click.BadParameter."""
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or int(high or low) > 1_000_000:
            raise click.BadParameter(f"{text!r} is not like 0,1 or 0-3", param_hint="--partitions")
        numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def delete(cluster: Cluster, topic: str, wanted: set[int] | None, before: int, as_json: bool) -> None:
    chosen = [tp for tp in chosen_partitions(cluster, (topic,)) if wanted is None or tp[1] in wanted]
    if not chosen:
        raise Refused(NO_PARTITIONS.format(topic))
    rows = []
    struct = messages.DeleteRecordsRequest.Topics
    for name, partitions in by_topic(chosen).items():
        for connection, mine in cluster.by_leader(name, partitions):
            asked = [struct.Partitions(partition_index=p, offset=before) for p in mine]
            request = messages.DeleteRecordsRequest(
                topics=[struct(name=name, partitions=asked)], timeout_ms=TIMEOUT_MS
            )
            for told in connection.ask(request).topics[0].partitions:
                if told.error_code:
                    raise KafkaError(told.error_code, f"{name}-{told.partition_index}")
                rows.append((name, told.partition_index, told.low_watermark))
    show(("Topic", "Partition", "Earliest"), sorted(rows), as_json)
