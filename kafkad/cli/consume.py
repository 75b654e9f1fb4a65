"""`kafkad consume`: kafka-console-consumer."""

import json
import sys
import time

import click

from kafkad.cli.output import CONTEXT, connected, parse_pairs, say, server_options
from kafkad.client.cluster import Cluster
from kafkad.client.consumer import EARLIEST, LATEST, Consumer, GroupConsumer, Received, list_offsets

COMMIT_SECONDS = 5.0


@click.command(context_settings=CONTEXT)
@click.option("--topic", required=True)
@click.option("--from-beginning", is_flag=True, help="From the first record; else only new ones.")
@click.option("--partition", type=int, help="Only this partition.")
@click.option("--offset", help="With --partition: a number, earliest or latest.")
@click.option("--max-messages", type=int, help="Stop after so many.")
@click.option("--timeout-ms", type=int, help="Stop when nothing came for so long.")
@click.option("--group", help="Read as a member of this group, and commit.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted"
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="print.key, print.value, print.offset, print.partition, print.timestamp, print.headers, ...",
)
@server_options
def command(
    topic: str,
    from_beginning: bool,
    partition: int | None,
    offset: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    group: str | None,
    isolation_level: str,
    properties: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Print the records of a topic, one a line; --json prints one object a line with all that a record has.

    \b
      kafkad consume --topic flights --from-beginning --max-messages 10
      kafkad consume --topic flights --partition 0 --offset 1000 --json
      kafkad consume --topic flights --group loaders --property print.key=true
    """
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    if group is not None and partition is not None:
        raise click.UsageError("--group and --partition exclude each other")
    how = parse_pairs(properties, "--property")
    seen = 0
    with connected(bootstrap) as cluster:
        isolation = int(isolation_level == "read_committed")
        consumer: Consumer
        if group is not None:
            consumer = GroupConsumer(
                cluster, topic, group, from_beginning=from_beginning, isolation=isolation
            )
        else:
            consumer = Consumer(cluster, topic, isolation=isolation)
            consumer.assign(start(cluster, topic, partition, offset, from_beginning))
        last = committed = time.monotonic()
        try:
            while max_messages is None or seen < max_messages:
                for record in consumer.poll():
                    write(record, how, as_json)
                    seen += 1
                    last = time.monotonic()
                    if seen == max_messages:
                        # the position is of what was printed, not of what was fetched
                        consumer.positions[record.partition] = record.offset + 1
                        break
                sys.stdout.flush()
                now = time.monotonic()
                if isinstance(consumer, GroupConsumer) and now - committed > COMMIT_SECONDS:
                    consumer.commit()
                    committed = now
                if timeout_ms is not None and (now - last) * 1000 > timeout_ms:
                    break
        except (KeyboardInterrupt, BrokenPipeError):
            pass
        finally:
            if isinstance(consumer, GroupConsumer):
                consumer.close()
    say(f"Processed a total of {seen} messages")


def start(
    cluster: Cluster, topic: str, partition: int | None, offset: str | None, from_beginning: bool
) -> dict[int, int]:
    partitions = cluster.partitions(topic, create=partition is None)
    if partition is not None:
        if partition not in partitions:
            raise click.UsageError(
                f"{topic} has no partition {partition}, only {partitions[0]} to {partitions[-1]}"
            )
        partitions = [partition]
    if offset is not None and offset not in ("earliest", "latest"):
        if not offset.isdigit():
            raise click.BadParameter(f"{offset!r} is not a number, earliest or latest", param_hint="--offset")
        return dict.fromkeys(partitions, int(offset))
    where = EARLIEST if from_beginning or offset == "earliest" else LATEST
    return list_offsets(cluster, topic, dict.fromkeys(partitions, where))


def write(record: Received, how: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": as_string(record.key),
                    "value": as_string(record.value),
                    "headers": [[name, as_string(data)] for name, data in record.headers],
                },
                ensure_ascii=False,
            )
        )
        return
    parts: list[bytes] = []
    if how.get("print.timestamp") == "true":
        parts.append(f"CreateTime:{record.timestamp}".encode())
    if how.get("print.partition") == "true":
        parts.append(f"Partition:{record.partition}".encode())
    if how.get("print.offset") == "true":
        parts.append(f"Offset:{record.offset}".encode())
    if how.get("print.headers") == "true":
        pairs = (name.encode() + b":" + (b"null" if data is None else data) for name, data in record.headers)
        parts.append(b",".join(pairs) or b"NO_HEADERS")
    if how.get("print.key") == "true":
        parts.append(b"null" if record.key is None else record.key)
    if how.get("print.value", "true") == "true":
        parts.append(b"null" if record.value is None else record.value)
    sys.stdout.buffer.write(how.get("key.separator", "\t").encode().join(parts) + b"\n")


def as_string(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
