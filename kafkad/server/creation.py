"""Topics that a worker asks worker 0 to create, and the outcome of each: the message format, in steps.

    call      lines of JSON: the client that needs the topics, or null; then lists of names
    answer    lines of JSON, each an object: name → null, or [error code, message]

A line has at most LINE names. Encoding or decoding one is a step (server/turns): a client may name 100,000
topics, and a single JSON object for all of them would stop a worker for 0.2 s."""

import json
from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from typing import Any

from kafkad.api.context import RequestContext
from kafkad.protocol.errors import KafkaError

LINE = 500
CLIENT = [
    "api_key",
    "version",
    "correlation_id",
    "client_id",
    "client_host",
    "listener",
    "principal",
    "by_token",
]
NAMED = 10  # names in a log line

Troubles = dict[str, KafkaError | None]


def encode_names(names: Iterable[str], context: RequestContext | None) -> Generator[None, None, bytes]:
    rest, lines = iter(names), [json.dumps(context and [getattr(context, each) for each in CLIENT]).encode()]
    while line := list(islice(rest, LINE)):
        lines.append(json.dumps(line).encode())
        yield
    return b"\n".join(lines)


def decode_names(payload: bytes) -> Generator[None, None, tuple[list[str], RequestContext | None]]:
    first, *lines = payload.splitlines()
    client = json.loads(first)
    names: list[str] = []
    for line in lines:
        names += json.loads(line)
        yield
    if client is None:
        return names, None
    return names, RequestContext(connection=None, **dict(zip(CLIENT, client, strict=True)))


def encode_troubles(troubles: Mapping[str, KafkaError | None]) -> Generator[None, None, bytes]:
    rest, lines = iter(troubles.items()), []
    while some := list(islice(rest, LINE)):
        line = {name: trouble and (trouble.code, trouble.message) for name, trouble in some}
        lines.append(json.dumps(line).encode())
        yield
    return b"\n".join(lines)


def decode_troubles(payload: bytes) -> Generator[None, None, Troubles]:
    troubles: Troubles = {}
    known: dict[Any, KafkaError] = {}  # most topics have the same error
    for line in payload.splitlines():
        for name, told in json.loads(line).items():
            if told is None:
                troubles[name] = None
                continue
            code, message = told
            trouble = known.get((code, message))
            if trouble is None:
                trouble = known[code, message] = KafkaError(code, message)
            troubles[name] = trouble
        yield
    return troubles


def some_of(names: list[str]) -> str:
    """Return the names for a log line."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
