"""How commands speak: tables for people, JSON for programs, one sentence and an exit code for trouble."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from kafkad.client.cluster import Cluster
from kafkad.client.connection import Unreachable
from kafkad.protocol.errors import KafkaError

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}


def server_options(function: F) -> F:
    """The options that every command which asks a broker takes."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
        click.option(
            "--bootstrap-server",
            "bootstrap",
            metavar="HOST:PORT[,...]",
            default="127.0.0.1:9092",
            show_default=True,
            envvar="KAFKAD_BOOTSTRAP_SERVER",
            help="The broker to ask.",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def connected(bootstrap: str) -> Iterator[Cluster]:
    """A cluster for the length of a command; its troubles end the command with a sentence and exit code 1."""
    try:
        with Cluster(bootstrap) as cluster:
            yield cluster
    except (KafkaError, Unreachable) as trouble:
        fail(str(trouble))
    except ValueError as wrong:
        fail(f"--bootstrap-server: {wrong}", 2)
    except KeyboardInterrupt:
        sys.exit(130)


def fail(sentence: str, code: int = 1) -> None:
    print(f"kafkad: {sentence}", file=sys.stderr)
    sys.exit(code)


def say(text: str) -> None:
    """A remark for people: to stderr, so that stdout stays data."""
    print(text, file=sys.stderr)


def show(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], as_json: bool, *, title: str | None = None
) -> None:
    """Rows as a table, or as a JSON array of objects with the column names in snake_case."""
    if as_json:
        names = [column.lower().replace(" ", "_").replace("-", "_") for column in columns]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=as_text))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(as_text(cell) for cell in row))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` or `key=value,key=[a,b]` as Kafka's tools take them. Raises click.BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        for part in split_outside_brackets(text):
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                raise click.BadParameter(f"{part!r} is not of the form key=value", param_hint=option)
            pairs[key.strip()] = value.strip().removeprefix("[").removesuffix("]")
    return pairs


def split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]
