"""The output of commands (tables for people, JSON for programs), and their common options.

With --json, a command prints one JSON document: an array with one object per row that it lists, describes or
has changed. Keys are the table's columns in snake_case. Lists and mappings stay as they are; a missing value
is null. (consume and dump-log print one object per line.) Messages for people go to stderr.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import click

from kafkad.client.cluster import Cluster, parse_address
from kafkad.protocol import errors
from kafkad.protocol.errors import NAMES, KafkaError

SECURITY = "kafkad.security"  # key in a command's context: a client.security.Security, or None
F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
ADVANCE_EVERY = 500

# hints for errors whose names do not say what to do
HINTS = {
    errors.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist; kafkad topics --list shows the topics",
    errors.LEADER_NOT_AVAILABLE: "the partition has no leader for now; try again",
    errors.COORDINATOR_NOT_AVAILABLE: "the group's coordinator is not available yet; try again",
    errors.GROUP_ID_NOT_FOUND: "the group does not exist; kafkad groups --list shows the groups",
    errors.TRANSACTIONAL_ID_NOT_FOUND: "the id does not exist; kafkad transactions list shows the ids",
    errors.NON_EMPTY_GROUP: "the group has members; stop its consumers first",
    errors.UNKNOWN_MEMBER_ID: "the group has members; stop its consumers first",
    errors.GROUP_SUBSCRIBED_TO_TOPIC: "the group reads the topic; stop its consumers first",
    errors.INCONSISTENT_GROUP_PROTOCOL: "the group's members use another assignor or protocol than range",
    errors.INVALID_REPLICATION_FACTOR: (
        "the topic cannot be created: default.replication.factor is above the number of brokers"
    ),
    errors.INVALID_TOPIC_EXCEPTION: "a name has at most 249 of the characters a-z A-Z 0-9 . _ -",
    errors.MESSAGE_TOO_LARGE: "a record is larger than the topic's max.message.bytes",
    errors.REQUEST_TIMED_OUT: "the broker did not finish in time; try again",
}


class Refused(Exception):
    """The command cannot do what was asked. The exit code is 1; `str(error)` is the error message."""


class Address(click.ParamType):
    name = "HOST:PORT[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        parts = [part for part in str(value).split(",") if part.strip()]
        try:
            if not parts:
                raise ValueError("no address is given")
            for part in parts:
                parse_address(part)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        return ",".join(parts)


def server_options(function: F) -> F:
    """Add the options of all commands that contact a broker."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--command-config",
            metavar="FILE",
            expose_value=False,
            callback=check_client_file,
            help="A client's properties file with login and TLS settings (security.protocol, sasl.*, ssl.*).",
        ),
        click.option(
            "--bootstrap-server",
            "bootstrap",
            type=Address(),
            metavar="HOST:PORT[,...]",
            default=DEFAULT_BOOTSTRAP,
            show_default=True,
            envvar="KAFKAD_BOOTSTRAP_SERVER",
            help="The broker to connect to.",
        ),
    ):
        function = option(function)
    return function


def check_client_file(_ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    from kafkad.config.properties import read_properties

    try:
        given = read_properties(path)
    except OSError as trouble:
        raise click.BadParameter(f"{path}: {trouble.strerror}", param_hint="--command-config")
    except ValueError as wrong:
        raise click.BadParameter(f"{path}: {wrong}", param_hint="--command-config")
    take_security(given, "--command-config")


def take_security(given: dict[str, str], option: str) -> None:
    """Set this command's security settings from a client's properties. A later call with such settings
    wins."""
    if not any(is_about_security(key) for key in given):
        return
    from kafkad.client.security import Security

    try:
        click.get_current_context().meta[SECURITY] = Security.of(given)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint=option)


def is_about_security(key: str) -> bool:
    return key == "security.protocol" or key.startswith(("sasl.", "ssl."))


def one_action(**actions: str) -> Callable[[F], F]:
    """Add flags of which exactly one must be given. The command gets the flag's name as `action`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def chosen(**given: Any) -> Any:
            said = [name for name in actions if given.pop(name)]
            if len(said) != 1:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in actions)
                raise click.UsageError(f"give one of {flags}" if not said else f"give only one of {flags}")
            return function(action=said[0], **given)

        for name, text in reversed(actions.items()):
            option = click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=text)
            chosen = option(chosen)  # type: ignore[assignment]
        return chosen  # type: ignore[return-value]

    return decorate


@contextmanager
def connected(bootstrap: str) -> Iterator[Cluster]:
    """Connect to a cluster for the duration of a command. Raise Unreachable at once if no broker answers."""
    with Cluster(bootstrap, security=click.get_current_context().meta.get(SECURITY)) as cluster:
        cluster.any()
        yield cluster


def explained(trouble: KafkaError) -> str:
    name = NAMES.get(trouble.code, f"error {trouble.code}")
    hint = HINTS.get(trouble.code, "")
    parts = [name, (trouble.message or "").rstrip(".")]
    if hint and len((trouble.message or "").split()) <= 2:  # a longer message from the broker needs no hint
        parts.append(hint)
    return ": ".join(part for part in parts if part)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `2,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def say(text: str) -> None:
    """Print a message for people to stderr. stdout is for data."""
    print(text, file=sys.stderr)


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]], as_json: bool) -> None:
    """Print rows as a table, or as a JSON array of objects with the column names in snake_case. A terminal
    gets a formatted table; a pipe gets plain lines that are never wrapped.
    """
    if as_json:
        names = [column.lower().replace(" ", "_").replace("-", "_") for column in columns]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif sys.stdout.isatty():
        rich_table(columns, rows)
    else:
        table = [[column.upper() for column in columns], *([as_text(cell) for cell in row] for row in rows)]
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        for line in table:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip())


def print_json(document: Any) -> None:
    print(json.dumps(document))


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(as_text(cell) for cell in row))
    Console(highlight=False, markup=False, emoji=False).print(table)


def as_text(value: Any) -> str:
    """Return the text of a table's cell. Control characters are escaped, so that they cannot affect a
    terminal."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return as_text(",".join(f"{key}={element}" for key, element in value.items()))
    if isinstance(value, list | tuple):
        return as_text(",".join(map(str, value)))
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def as_json_bytes(data: bytes | None) -> Any:
    """Return bytes for JSON: a string if they are UTF-8, else {"base64": …}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def parse_pairs(texts: Sequence[str], option: str, *, split: bool = True) -> dict[str, str]:
    """Parse `key=value` or, with `split`, `key=value,key=[a,b]`, as Kafka's tools do. Raise
    click.BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        for part in split_outside_brackets(text) if split else [text]:
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                raise click.BadParameter(f"{part!r} is not of the form key=value", param_hint=option)
            if split:
                value = value.strip()
                if value.startswith("[") and value.endswith("]"):
                    value = value[1:-1]
            pairs[key.strip()] = value
    return pairs


def split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


class Progress:
    """A progress bar on stderr, as a context manager. Show nothing if not `wanted` or if stderr is no
    terminal."""

    def __init__(self, label: str, total: int | None, *, wanted: bool = True) -> None:
        self._bar: Any = None
        self._owed, self._calls = 0, 0  # updates are batched, because rich takes longer than a record
        if wanted and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(label, total=total)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, amount: int = 1) -> None:
        if self._bar:
            self._owed += amount
            self._calls += 1
            if self._calls % ADVANCE_EVERY == 0:
                self._bar.advance(self._task, self._owed)
                self._owed = 0
