"""`kafkad configs --entity-type users`: manage users that log in with SCRAM (KIP-554).

    --add-config 'SCRAM-SHA-512=[iterations=8192,password=...]'      --delete-config SCRAM-SHA-512

The password is salted and hashed here; the broker never gets it."""

import hashlib
import os
import re
from typing import Final

import click

from kafkad.cli.output import Refused, show
from kafkad.client.connection import Connection
from kafkad.client.security import ITERATIONS_MIN, SCRAM_HASHES
from kafkad.protocol import messages
from kafkad.protocol.errors import NONE, RESOURCE_NOT_FOUND, KafkaError

NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
NAMES: Final = {number: name for name, number in NUMBERS.items()}
CREDENTIAL: Final = re.compile(r"(?:iterations=(?P<iterations>\d{1,9}),)?password=(?P<password>.*)", re.ASCII)
SALT_BYTES: Final = 24
COLUMNS: Final = ("User", "Mechanism", "Iterations")
ITERATIONS_OF_KAFKA_MAX: Final = 16_384


def alter(connection: Connection, user: str, pairs: dict[str, str], gone: list[str]) -> None:
    """Add, change and delete a user's credentials. Raise KafkaError, click.BadParameter."""
    struct = messages.AlterUserScramCredentialsRequest
    told = connection.ask(
        struct(
            deletions=[struct.Deletions(name=user, mechanism=_number(name)) for name in gone],
            upsertions=[_upsertion(user, name, text) for name, text in pairs.items()],
        )
    )
    for result in told.results:
        if result.error_code:
            raise KafkaError(result.error_code, result.error_message)


def describe(connection: Connection, user: str | None, as_json: bool) -> None:
    found = rows(connection, user)
    if user is not None and not found:
        raise Refused(f"there is no SCRAM user {user}")
    show(COLUMNS, found, as_json)


def rows(connection: Connection, user: str | None) -> list[tuple[str, str, int]]:
    """Raises KafkaError."""
    struct = messages.DescribeUserScramCredentialsRequest
    users = None if user is None else [struct.Users(name=user)]
    told = connection.ask(struct(users=users))
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    found = []
    for result in told.results:
        if result.error_code not in (NONE, RESOURCE_NOT_FOUND):
            raise KafkaError(result.error_code, result.error_message)
        found += [
            (result.user, NAMES.get(info.mechanism, str(info.mechanism)), info.iterations)
            for info in result.credential_infos
        ]
    return sorted(found)


def _number(mechanism: str) -> int:
    if mechanism not in NUMBERS:
        raise click.UsageError(f"{mechanism} cannot be set for users, only {' and '.join(NUMBERS)}")
    return NUMBERS[mechanism]


def _upsertion(user: str, mechanism: str, text: str) -> messages.AlterUserScramCredentialsRequest.Upsertions:
    number = _number(mechanism)
    given = CREDENTIAL.fullmatch(text)
    if given is None or not given["password"]:
        raise click.BadParameter(
            f"{mechanism} takes [password=...] or [iterations=8192,password=...]", param_hint="--add-config"
        )
    iterations = int(given["iterations"] or ITERATIONS_MIN)
    rounds = min(max(iterations, 1), ITERATIONS_OF_KAFKA_MAX)  # the broker refuses more, and fewer than 4096
    salt = os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], given["password"].encode(), salt, rounds)
    return messages.AlterUserScramCredentialsRequest.Upsertions(
        name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
    )
