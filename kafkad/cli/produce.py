"""`kafkad produce`: kafka-console-producer."""

import os
import sys
from typing import Any, BinaryIO

import click

from kafkad.cli.output import CONTEXT, connected, parse_pairs, say, server_options
from kafkad.client.producer import Producer
from kafkad.protocol.errors import KafkaError

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@click.command(context_settings=CONTEXT)
@click.option("--topic", required=True, help="The topic; made when it is missing and the broker may.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    help="Read lines of this file, with a progress bar.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="As in kafka-console-producer: parse.key, key.separator, parse.headers, null.marker, ...",
)
@click.option("--key-separator", help="Short for parse.key=true and this key.separator.")
@click.option("--partition", type=int, help="Write to this partition only.")
@click.option("--compression-codec", type=click.Choice(list(CODECS)), default="none", show_default=True)
@click.option(
    "--request-required-acks",
    "--acks",
    "acks",
    type=click.Choice(["0", "1", "-1", "all"]),
    default="all",
    show_default=True,
)
@server_options
def command(
    topic: str,
    path: str | None,
    properties: tuple[str, ...],
    key_separator: str | None,
    partition: int | None,
    compression_codec: str,
    acks: str,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write one record a line, from standard input or --file.

    \b
      echo hello | kafkad produce --topic greetings
      kafkad produce --topic flights --file flights.json --compression-codec zstd
      printf 'N14228:{"delay":2}\\n' | kafkad produce --topic flights --key-separator :
    """
    how = parse_pairs(properties, "--property")
    if key_separator is not None:
        how |= {"parse.key": "true", "key.separator": key_separator}
    number_of_acks = -1 if acks == "all" else int(acks)
    with connected(bootstrap) as cluster:
        written = [0]

        def delivered(_partition: int, _first: int, count: int) -> None:
            written[0] += count

        producer = Producer(
            cluster, topic, acks=number_of_acks, compression=CODECS[compression_codec], on_delivery=delivered
        )
        source: BinaryIO = open(path, "rb") if path else sys.stdin.buffer  # noqa: SIM115  closed at exit
        interactive = path is None and sys.stdin.isatty()
        with progress_of(path) as progress:
            for number, line in enumerate(source, 1):
                key, value, headers = parse_line(line.rstrip(b"\r\n"), how, number)
                producer.send(value, key, headers=headers, partition=partition)
                if interactive:
                    producer.flush()
                progress.advance(len(line))
            producer.flush()
    if as_json:
        print(f'{{"topic": "{topic}", "records": {written[0]}}}')
    elif path:
        say(f"{written[0]:,} records written to {topic}.")


def parse_line(line: bytes, how: dict[str, str], number: int) -> tuple[bytes | None, bytes | None, list[Any]]:
    """(key, value, headers) of one line, by Kafka's LineMessageReader properties. KafkaError names the
    line.
    """
    key: bytes | None = None
    headers: list[Any] = []
    if how.get("parse.headers") == "true":
        text, found, line = line.partition(how.get("headers.delimiter", "\t").encode())
        if not found:
            raise KafkaError(87, f"line {number} has no headers delimiter")
        for pair in filter(None, text.split(how.get("headers.separator", ",").encode())):
            name, _, data = pair.partition(how.get("headers.key.separator", ":").encode())
            headers.append((name.decode(), data))
    if how.get("parse.key") == "true":
        separator = how.get("key.separator", "\t").encode()
        key, found, rest = line.partition(separator)
        if not found:
            raise KafkaError(87, f"line {number} has no key separator {separator!r}")
        line = rest
    marker = how.get("null.marker", "").encode()
    value: bytes | None = line
    if marker and line == marker:
        value = None
    if marker and key == marker:
        key = None
    return key, value, headers


class progress_of:  # reads as a phrase
    """A progress bar over a file's bytes; nothing when there is no file or nobody looks."""

    def __init__(self, path: str | None) -> None:
        self.bar: Any = None
        if path and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True))
            self.task = self.bar.add_task("writing", total=os.path.getsize(path))

    def __enter__(self) -> "progress_of":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, size: int) -> None:
        if self.bar:
            self.bar.advance(self.task, size)
