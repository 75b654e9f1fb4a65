"""`kafkad consume`: kafka-console-consumer. The output has the format of Kafka's DefaultMessageFormatter.

Beware: a group's offsets are committed only for records that have reached stdout. If this process or the
reader of its output is killed, the group reads the other records again.
"""

import json
import sys
import time
from collections.abc import Callable

import click

from kafkad.cli.main import Stopped
from kafkad.cli.output import (
    CONTEXT,
    Progress,
    Refused,
    as_json_bytes,
    connected,
    is_about_security,
    parse_pairs,
    say,
    server_options,
    take_security,
)
from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, READ_UNCOMMITTED, Consumer, Received
from kafkad.client.group import GroupConsumer
from kafkad.client.offsets import EARLIEST, LATEST, list_offsets

COMMIT_SECONDS = 5.0
BUFFER_BYTES = 1 << 16
TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}

# DefaultMessageFormatter's properties and their defaults
FORMATTER = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.epoch": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
CONSUMER = {"group.id", "auto.offset.reset", "isolation.level", "session.timeout.ms", "max.poll.interval.ms"}


@click.command(context_settings=CONTEXT)
@click.option("--topic", required=True, help="The topic.")
@click.option("--from-beginning", is_flag=True, help="Start at the first record. Default: only new records.")
@click.option("--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("--offset", help="With --partition, start at this offset: a number, earliest or latest.")
@click.option("--max-messages", type=click.IntRange(0), help="Stop after this many records.")
@click.option("--timeout-ms", type=click.IntRange(0), help="Stop if no record arrives for this long.")
@click.option("--until-end", is_flag=True, help="Stop at the end that the topic had at the start.")
@click.option("--group", help="Read as a member of this group, and commit offsets.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="Default: read_uncommitted.",
)
@click.option(
    "--formatter-property",
    "--property",
    "formatter",
    multiple=True,
    metavar="KEY=VALUE",
    help="What to print: print.timestamp, print.partition, print.offset, print.epoch, print.headers,"
    " print.key, print.value, key.separator, line.separator, headers.separator, null.literal.",
)
@click.option(
    "--command-property",
    "--consumer-property",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a consumer's property: group.id, auto.offset.reset, isolation.level, session.timeout.ms,"
    " max.poll.interval.ms, security.protocol, sasl.*, ssl.*.",
)
@server_options
def command(
    topic: str,
    from_beginning: bool,
    partition: int | None,
    offset: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    until_end: bool,
    group: str | None,
    isolation_level: str | None,
    formatter: tuple[str, ...],
    settings: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Print the records of a topic, one per line. With --json, print one object with all fields per line.

    \b
      kafkad consume --topic flights --from-beginning --max-messages 10
      kafkad consume --topic flights --from-beginning --until-end > flights.json
      kafkad consume --topic flights --partition 0 --offset 1000 --json
      kafkad consume --topic flights --group loaders --formatter-property print.key=true
    """
    given = consumer_settings(settings)
    group = group or given.get("group.id")
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    if group is not None and (partition is not None or until_end):
        raise click.UsageError("--group excludes --partition and --until-end")
    if offset not in (None, "earliest", "latest") and not str(offset).isdecimal():
        raise click.BadParameter(f"{offset!r} is not a number, earliest or latest", param_hint="--offset")
    from_beginning = from_beginning or given.get("auto.offset.reset") == "earliest"
    level = isolation_level or given.get("isolation.level", "read_uncommitted")
    isolation = READ_COMMITTED if level == "read_committed" else READ_UNCOMMITTED
    as_bytes = (
        json_line if as_json else Formatter(parse_pairs(formatter, "--formatter-property", split=False))
    )
    with connected(bootstrap) as cluster:
        consumer: Consumer
        ends: dict[int, int] | None = None
        if group is not None:
            cluster.partitions(topic, create=True)
            consumer = GroupConsumer(
                cluster,
                topic,
                group,
                from_beginning=from_beginning,
                isolation=isolation,
                on_reset=say_reset,
                session_timeout_ms=number(given, "session.timeout.ms", 10_000),
                max_poll_seconds=number(given, "max.poll.interval.ms", 300_000) / 1000,
            )
        else:
            consumer = Consumer(cluster, topic, isolation=isolation, on_reset=say_reset)
            create = partition is None and not until_end  # a missing topic has no end
            consumer.assign(start(cluster, topic, partition, offset, from_beginning, create=create))
            if until_end:
                ends = list_offsets(cluster, topic, dict.fromkeys(consumer.positions, LATEST), isolation)
        reading = Reading(consumer, as_bytes, max_messages, timeout_ms, ends)
        try:
            reading.run()
        except (KeyboardInterrupt, Stopped):
            say_count(reading.seen)
            raise
    say_count(reading.seen)


class Reading:
    """One run of the command: poll, print, commit what was printed, and decide when to stop."""

    def __init__(
        self,
        consumer: Consumer,
        as_bytes: Callable[[Received], bytes],
        max_messages: int | None,
        timeout_ms: int | None,
        ends: dict[int, int] | None,
    ) -> None:
        self.consumer = consumer
        self.as_bytes = as_bytes
        # A separate buffer: with PYTHONUNBUFFERED, sys.stdout makes one system call per record.
        self.out = open(sys.stdout.fileno(), "wb", BUFFER_BYTES, closefd=False)  # noqa: SIM115
        self.max_messages = max_messages
        self.timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self.ends = ends
        self.seen = 0
        self.flushed: dict[int, int] = {}  # positions as of the last flush
        self.written: dict[int, int] = {}  # positions after what was written since
        self.generation = -1  # the group's generation at the last flush

    def run(self) -> None:
        """Print records until it is time to stop. `seen` counts them."""
        if self.timeout_s is not None:
            self.consumer.wait_ms = min(self.consumer.wait_ms, max(1, int(self.timeout_s * 1000)))
        total = self.max_messages
        if self.ends is not None:
            left = sum(max(0, end - self.consumer.positions[p]) for p, end in self.ends.items())
            total = left if total is None else min(total, left)
        try:
            with Progress("reading", total, wanted=not sys.stdout.isatty()) as bar:
                self._read(bar)
        except BaseException:
            self._step_back()
            raise
        finally:
            if isinstance(self.consumer, GroupConsumer):
                self.consumer.close()

    def _read(self, bar: Progress) -> None:
        came = committed = time.monotonic()
        while not self._done():
            before = self.seen
            for record in self.consumer.poll():
                if self.ends is not None and record.offset >= self.ends[record.partition]:
                    continue
                self.out.write(self.as_bytes(record))
                self.written[record.partition] = record.offset + 1
                self.seen += 1
                bar.advance()
                if self.seen == self.max_messages:
                    break
            self._flush()
            now = time.monotonic()
            if self.seen > before:
                came = now
            if isinstance(self.consumer, GroupConsumer) and now - committed > COMMIT_SECONDS:
                self.consumer.commit()
                committed = now
            if self.timeout_s is not None and now - came > self.timeout_s:
                break

    def _done(self) -> bool:
        if self.max_messages is not None and self.seen >= self.max_messages:
            return True
        at = self.consumer.positions
        return self.ends is not None and all(at[p] >= end for p, end in self.ends.items())

    def _flush(self) -> None:
        self.out.flush()
        self.flushed = dict(self.consumer.positions)
        self.written = {}
        if isinstance(self.consumer, GroupConsumer):
            self.generation = self.consumer.generation

    def _step_back(self) -> None:
        """After an interruption, reset the positions to what has certainly reached stdout."""
        if not isinstance(self.consumer, GroupConsumer):
            return
        certain = self.flushed if self.generation == self.consumer.generation else {}
        try:
            self.out.flush()
            certain = certain | self.written
        except OSError:
            pass
        self.consumer.positions = {p: certain[p] for p in self.consumer.positions if p in certain}


def say_count(seen: int) -> None:
    say(f"Processed a total of {seen} messages")  # Kafka's words, also for one


def say_reset(partition: int, position: int, anew: int) -> None:
    say(f"kafkad: partition {partition} does not have offset {position}; reading continues at {anew}.")


def consumer_settings(settings: tuple[str, ...]) -> dict[str, str]:
    option = "--command-property"
    given = parse_pairs(settings, option, split=False)
    take_security(given, option)
    ignored = {key for key in given.keys() - CONSUMER if not is_about_security(key)}
    if ignored:
        say(f"kafkad: ignored: {', '.join(sorted(ignored))}.")
    for key, allowed in (
        ("auto.offset.reset", ("earliest", "latest")),
        ("isolation.level", ("read_uncommitted", "read_committed")),
    ):
        if key in given and given[key] not in allowed:
            raise click.BadParameter(f"{key}={given[key]}: use {' or '.join(allowed)}", param_hint=option)
    return given


def number(given: dict[str, str], key: str, default: int) -> int:
    try:
        return int(given.get(key, default))
    except ValueError:
        raise click.BadParameter(f"{key}={given[key]} is not a whole number", param_hint="--command-property")


def start(
    cluster: Cluster,
    topic: str,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    *,
    create: bool,
) -> dict[int, int]:
    """Return where to begin. Raise Refused for a partition or an offset that does not exist."""
    partitions = cluster.partitions(topic, create=create)
    if partition is not None:
        if partition not in partitions:
            raise Refused(f"topic {topic!r} has no partition {partition}, only 0 to {partitions[-1]}")
        partitions = [partition]
    if offset is not None and partition is not None and offset.isdecimal():
        first = list_offsets(cluster, topic, {partition: EARLIEST})[partition]
        last = list_offsets(cluster, topic, {partition: LATEST})[partition]
        if not first <= int(offset) <= last:
            raise Refused(f"partition {partition} of {topic!r} holds offsets {first} to {last}, not {offset}")
        return {partition: int(offset)}
    where = EARLIEST if from_beginning or offset == "earliest" else LATEST
    return list_offsets(cluster, topic, dict.fromkeys(partitions, where))


def json_line(record: Received) -> bytes:
    row = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES.get(record.timestamp_type),
        "key": as_json_bytes(record.key),
        "value": as_json_bytes(record.value),
        "headers": [[name, as_json_bytes(data)] for name, data in record.headers],
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


class Formatter:
    """Format records like Kafka's DefaultMessageFormatter. Raise click.BadParameter for unknown
    properties."""

    def __init__(self, given: dict[str, str]) -> None:
        unknown = given.keys() - FORMATTER.keys()
        if unknown:
            raise click.BadParameter(
                f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(FORMATTER)}",
                param_hint="--formatter-property",
            )
        how = FORMATTER | given
        self.shown = {
            key.removeprefix("print.")
            for key, value in how.items()
            if key.startswith("print.") and value.strip().lower() == "true"
        }
        self.separator = how["key.separator"].encode()
        self.end = how["line.separator"].encode()
        self.headers_separator = how["headers.separator"].encode()
        self.null = how["null.literal"].encode()

    def __call__(self, record: Received) -> bytes:
        shown = self.shown
        parts: list[bytes] = []
        if "timestamp" in shown:
            kind = TIMESTAMP_TYPES.get(record.timestamp_type)
            parts.append(f"{kind}:{record.timestamp}".encode() if kind else b"NO_TIMESTAMP")
        if "partition" in shown:
            parts.append(b"Partition:%d" % record.partition)
        if "offset" in shown:
            parts.append(b"Offset:%d" % record.offset)
        if "epoch" in shown:
            parts.append(b"Epoch:%d" % record.leader_epoch)
        if "headers" in shown:
            pairs = [name.encode() + b":" + self.text(data) for name, data in record.headers]
            parts.append(self.headers_separator.join(pairs) or b"NO_HEADERS")
        if "key" in shown:
            parts.append(self.text(record.key))
        if "value" in shown:
            parts.append(self.text(record.value))
        return self.separator.join(parts) + self.end

    def text(self, data: bytes | None) -> bytes:
        return self.null if data is None else data
