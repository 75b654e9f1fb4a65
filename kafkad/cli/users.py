"""`kafkad users`: users that log in by SCRAM (KIP-554). The same as `kafkad configs --entity-type users`, in
fewer words."""

import sys
from typing import Any, Final

import click

from kafkad.cli import scram_users
from kafkad.cli.output import CONTEXT, Refused, connected, one_action, say, server_options, show
from kafkad.protocol.errors import RESOURCE_NOT_FOUND, KafkaError

MECHANISMS: Final = tuple(scram_users.NUMBERS)
DEFAULT: Final = "SCRAM-SHA-512"


@click.command(context_settings=CONTEXT)
@one_action(
    list="List users, their mechanisms and iterations.",
    add="Add a user, or change its password.",
    remove="Remove a user.",
)
@click.option("--user", help="The user's name.")
@click.option(
    "--mechanism", "mechanisms", multiple=True, type=click.Choice(MECHANISMS, case_sensitive=False),
    help=f"The login's mechanism. Default: {DEFAULT}; with --remove: all.",
)  # fmt: skip
@click.option("--iterations", type=click.IntRange(4096, 16384), help="Default: 4096.")
@server_options
def command(action: str, bootstrap: str, as_json: bool, **given: Any) -> None:
    """List, add and remove users that log in by SCRAM.

    The password is read from the terminal, without echo, or from the first line of standard input. It is
    salted and hashed here; the broker never gets it.

    \b
      kafkad users --list
      kafkad users --add --user anna
      kafkad users --remove --user anna
    """
    user, mechanisms = given["user"], given["mechanisms"]
    if action != "list" and not user:
        raise click.UsageError(f"--{action} needs --user")
    if action != "add" and given["iterations"] is not None:
        raise click.UsageError("--iterations is for --add")
    if action == "list" and mechanisms:
        raise click.UsageError("--mechanism is for --add and --remove")
    password = _password(user) if action == "add" else ""
    with connected(bootstrap) as cluster:
        connection = cluster.any()
        if action == "list":
            scram_users.describe(connection, user, as_json)
        elif action == "add":
            rounds = given["iterations"] or 4096
            text = f"iterations={rounds},password={password}"
            scram_users.alter(connection, user, dict.fromkeys(mechanisms or (DEFAULT,), text), [])
            added = mechanisms or (DEFAULT,)
            if as_json:
                show(scram_users.COLUMNS, [(user, each, rounds) for each in added], as_json)
            else:
                say(f"{user} can log in by {', '.join(added)}")
        else:
            removed = [it for it in mechanisms or MECHANISMS if _removed(connection, user, it)]
            if not removed:
                raise Refused(f"there is no SCRAM user {user}")
            if as_json:
                show(scram_users.COLUMNS[:2], [(user, each) for each in removed], as_json)
            else:
                say(f"{user} can no longer log in by {', '.join(removed)}")


def _password(user: str) -> str:
    if sys.stdin.isatty():
        password = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise click.UsageError("the password is empty: write it to standard input")
    return str(password)


def _removed(connection: Any, user: str, mechanism: str) -> bool:
    """Whether the user had it. Raises KafkaError."""
    try:
        scram_users.alter(connection, user, {}, [mechanism])
    except KafkaError as trouble:
        if trouble.code != RESOURCE_NOT_FOUND:
            raise
        return False
    return True
