"""`kafkad produce`: kafka-console-producer. One record per line, with Kafka's LineMessageReader properties.

A file is sent in full batches. Lines that come slowly (a terminal, `tail -f`) are sent when the input pauses.
"""

import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import click

from kafkad.cli.output import (
    CONTEXT,
    Progress,
    Refused,
    connected,
    counted,
    is_about_security,
    parse_pairs,
    print_json,
    say,
    server_options,
    take_security,
)
from kafkad.client.producer import Producer

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
READ_BYTES = 1 << 20

# LineMessageReader's properties, which describe a line, and their defaults
READER = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
# the producer's properties that have an effect here
PRODUCER = {"acks", "compression.type", "enable.idempotence", "batch.size", "delivery.timeout.ms"}


@click.command(context_settings=CONTEXT)
@click.option("--topic", required=True, help="The topic. A missing one is created if the broker allows it.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    help="Read the lines of this file, with a progress bar.",
)
@click.option(
    "--reader-property",
    "--property",
    "reader",
    multiple=True,
    metavar="KEY=VALUE",
    help="How to read a line: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator,"
    " headers.key.separator, null.marker, ignore.error.",
)
@click.option("--key-separator", help="Short for parse.key=true and this key.separator.")
@click.option("--partition", type=click.IntRange(0), help="Write to this partition only.")
@click.option(
    "--compression-codec",
    type=click.Choice(list(CODECS)),
    default=None,
    is_flag=False,
    flag_value="gzip",
    help="Default: none. Without a value: gzip.",
)
@click.option(
    "--request-required-acks",
    "--acks",
    "acks",
    type=click.Choice(["0", "1", "-1", "all"]),
    help="Default: all.",
)
@click.option("--sync", is_flag=True, help="Wait for each acknowledgement before sending the next record.")
@click.option(
    "--timeout-ms", type=click.IntRange(1), help="Give up on a batch after this time. Default: 60000."
)
@click.option(
    "--command-property",
    "--producer-property",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a producer's property: acks, compression.type, enable.idempotence, batch.size,"
    " delivery.timeout.ms, security.protocol, sasl.*, ssl.*.",
)
@server_options
def command(
    topic: str,
    path: str | None,
    reader: tuple[str, ...],
    key_separator: str | None,
    partition: int | None,
    compression_codec: str | None,
    acks: str | None,
    sync: bool,
    timeout_ms: int | None,
    settings: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write one record per line, from standard input or --file.

    The producer is idempotent: if the broker dies in the middle, no line is lost or written twice.

    \b
      echo hello | kafkad produce --topic greetings
      kafkad produce --topic flights --file flights.json --compression-codec zstd
      printf 'N14228:{"delay":2}\\n' | kafkad produce --topic flights --key-separator :
    """
    lines = LineReader(parse_pairs(reader, "--reader-property", split=False), key_separator)
    how = producer_settings(settings, acks, compression_codec, timeout_ms)
    written = 0

    def delivered(_partition: int, _first: int, count: int) -> None:
        nonlocal written
        written += count

    try:
        with connected(bootstrap) as cluster:
            producer = Producer(cluster, topic, on_delivery=delivered, **how)
            try:
                send_all(producer, lines, path, partition, sync)
            except BaseException as stopped:
                if isinstance(stopped, BadLine) or not isinstance(stopped, Exception):
                    producer.flush()  # write the lines before a bad one, or before Ctrl-C
                raise
    except Exception:
        if written:
            say(f"{counted(written, 'record')} reached {topic} before the error.")
        raise
    if as_json:
        print_json([{"topic": topic, "records": written}])
    elif path or not sys.stdin.isatty():
        say(f"{counted(written, 'record')} written to {topic}.")


def send_all(
    producer: Producer, lines: "LineReader", path: str | None, partition: int | None, sync: bool
) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else sys.stdin.fileno()
    total = os.fstat(fd).st_size if path else None
    prompt = path is None and sys.stdin.isatty() and sys.stdout.isatty()
    with Progress(f"writing to {producer.topic}", total, wanted=path is not None) as progress:
        for line in read_lines(fd, prompt):
            if line is None:
                producer.flush()
                continue
            progress.advance(len(line) + 1)
            key, value, headers = lines.parse(line)
            producer.send(value, key, headers=headers, partition=partition)
            if sync:
                producer.flush()
        producer.flush()


def read_lines(fd: int, prompt: bool) -> Iterator[bytes | None]:
    """Yield the lines of a file, without their ends, and None whenever no more input is available for now."""
    rest: list[bytes] = []  # pieces of an incomplete line
    while True:
        if not select.select([fd], [], [], 0)[0]:
            yield None
            if prompt:
                print(">", end="", flush=True)
        data = os.read(fd, READ_BYTES)
        if not data:
            break
        *whole, last = data.split(b"\n")
        for line in whole:
            if rest:
                line = b"".join([*rest, line])
                rest.clear()
            yield line.removesuffix(b"\r")
        if last:
            rest.append(last)
    if rest:
        yield b"".join(rest).removesuffix(b"\r")


class BadLine(Refused):
    """A line does not match the reader's properties."""


class LineReader:
    """Parse lines to records like Kafka's LineMessageReader. Raise click.BadParameter for invalid properties,
    and BadLine for a line that does not match them.
    """

    def __init__(self, given: dict[str, str], key_separator: str | None) -> None:
        unknown = given.keys() - READER.keys()
        if unknown:
            raise click.BadParameter(
                f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(READER)}",
                param_hint="--reader-property",
            )
        how = READER | given
        if key_separator is not None:
            how |= {"parse.key": "true", "key.separator": key_separator}
        self.with_key = how["parse.key"].strip().lower() == "true"
        self.with_headers = how["parse.headers"].strip().lower() == "true"
        self.lenient = how["ignore.error"].strip().lower() == "true"
        self.key_separator = separator("key.separator", how)
        self.headers_delimiter = separator("headers.delimiter", how)
        self.headers_separator = separator("headers.separator", how)
        self.header_key_separator = separator("headers.key.separator", how)
        self.null = how["null.marker"].encode() or None
        self.number = 0

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """Return (key, value, headers) of a line."""
        self.number += 1
        headers: list[tuple[str, bytes | None]] = []
        key: bytes | None = None
        if self.with_headers:
            text, line = self.cut(line, self.headers_delimiter, "headers delimiter")
            if text is not None and text != self.null:
                headers = [self.header(pair) for pair in text.split(self.headers_separator) if text]
        if self.with_key:
            key, line = self.cut(line, self.key_separator, "key separator")
        return (None if key == self.null else key), (None if line == self.null else line), headers

    def cut(self, line: bytes, at: bytes, what: str) -> tuple[bytes | None, bytes]:
        before, found, after = line.partition(at)
        if found:
            return before, after
        if self.lenient:
            return None, line
        raise BadLine(
            f"line {self.number} has no {what} {at.decode()!r}; with ignore.error=true such a line is a value"
        )

    def header(self, pair: bytes) -> tuple[str, bytes | None]:
        name, found, data = pair.partition(self.header_key_separator)
        if not found and not self.lenient:
            raise BadLine(f"line {self.number} has a header without {self.header_key_separator.decode()!r}")
        return name.decode(errors="replace"), data if found and data != self.null else None


def separator(key: str, how: dict[str, str]) -> bytes:
    if not how[key]:
        raise click.BadParameter(f"{key} is empty", param_hint="--reader-property")
    return how[key].encode()


def producer_settings(
    settings: tuple[str, ...], acks: str | None, codec: str | None, timeout_ms: int | None
) -> dict[str, Any]:
    """Return the arguments of Producer. An option wins over the property with the same meaning."""
    option = "--command-property"
    given = parse_pairs(settings, option, split=False)
    take_security(given, option)
    ignored = {key for key in given.keys() - PRODUCER if not is_about_security(key)}
    if ignored:
        say(f"kafkad: ignored: {', '.join(sorted(ignored))}.")
    acks = acks or given.get("acks", "all")
    codec = codec or given.get("compression.type", "none")
    if acks not in ("0", "1", "-1", "all"):
        raise click.BadParameter(f"acks={acks}: use 0, 1, -1 or all", param_hint=option)
    if codec not in CODECS:
        raise click.BadParameter(
            f"compression.type={codec}: use one of {', '.join(CODECS)}", param_hint=option
        )
    try:
        batch_bytes = int(given.get("batch.size", 1 << 18))
        delivery_ms = timeout_ms or int(given.get("delivery.timeout.ms", 60_000))
    except ValueError:
        raise click.BadParameter(
            "batch.size and delivery.timeout.ms must be whole numbers", param_hint=option
        )
    return {
        "acks": -1 if acks == "all" else int(acks),
        "compression": CODECS[codec],
        "idempotent": given.get("enable.idempotence", "true").lower() == "true",
        "batch_bytes": batch_bytes,
        "delivery_seconds": delivery_ms / 1000,
    }
