"""`kafkad tokens`: kafka-delegation-tokens (KIP-48).

A token is shown with its HMAC, which is its password: whoever reads the output can log in with it."""

import base64
import binascii
import datetime
from collections.abc import Sequence
from typing import Any, Final

import click

from kafkad.cli.output import CONTEXT, Refused, connected, one_action, server_options, show
from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import DELEGATION_TOKEN_OWNER_MISMATCH, KafkaError

COLUMNS: Final = ("Token id", "HMAC", "Owner", "Requester", "Renewers", "Issued", "Expires", "Max")
NEEDS: Final = {"create": (), "describe": (), "renew": ("hmac",), "expire": ("hmac",)}
TAKES: Final = {
    "create": {"renewers", "owners", "max_life"},
    "describe": {"owners"},
    "renew": {"hmac", "renew_ms"},
    "expire": {"hmac", "expiry_ms"},
}
FLAGS: Final = {
    "renewers": "--renewer-principal", "owners": "--owner-principal", "max_life": "--max-life-time-period",
    "hmac": "--hmac", "renew_ms": "--renew-time-period", "expiry_ms": "--expiry-time-period",
}  # fmt: skip


class Principal(click.ParamType):
    name = "TYPE:NAME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        kind, colon, name = str(value).partition(":")
        if not colon or not kind or not name:
            self.fail(f"{value} is not TYPE:NAME, such as User:anna", param, ctx)
        return kind, name


@click.command(context_settings=CONTEXT)
@one_action(create="Create a token.", describe="List tokens.", renew="Extend a token.", expire="End a token.")
@click.option("--owner-principal", "owners", multiple=True, type=Principal(), help="Owner of the token.")
@click.option(
    "--renewer-principal", "renewers", multiple=True, type=Principal(), help="May renew and end it."
)
@click.option("--max-life-time-period", "max_life", type=int, metavar="MS", help="Default: the broker's.")
@click.option("--hmac", help="The token's HMAC, as base64.")
@click.option("--renew-time-period", "renew_ms", type=int, metavar="MS", help="Default: the broker's.")
@click.option("--expiry-time-period", "expiry_ms", type=int, metavar="MS", help="Default: at once.")
@server_options
def command(action: str, bootstrap: str, as_json: bool, **given: Any) -> None:
    """Create, list, renew and expire delegation tokens.

    The login must use SASL or a client certificate, and no token. Put the printed token id and HMAC into the
    JAAS string of the client that uses the token, with tokenauth="true".

    \b
      kafkad tokens --create --renewer-principal User:bob --command-config anna.properties
      kafkad tokens --describe --command-config anna.properties
      kafkad tokens --expire --hmac ... --command-config anna.properties
    """
    for name, value in given.items():
        if value not in (None, ()) and name not in TAKES[action]:
            raise click.UsageError(f"--{action} cannot be used with {FLAGS[name]}")
    for name in NEEDS[action]:
        if given[name] is None:
            raise click.UsageError(f"--{action} needs {FLAGS[name]}")
    if action == "create" and len(given["owners"]) > 1:
        raise click.UsageError("--create takes one --owner-principal")
    hmac = _hmac(given["hmac"])
    with connected(bootstrap) as cluster:
        connection = cluster.any()
        if action == "create":
            show(COLUMNS, [_create(connection, given)], as_json)
        elif action == "describe":
            show(COLUMNS, _describe(connection, given["owners"]), as_json)
        else:
            ends_ms = _end(connection, action, hmac, given)
            show(("Expires",), [(_time(ends_ms),)], as_json)


def _hmac(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except binascii.Error:
        raise click.BadParameter("it is not base64", param_hint="--hmac") from None


def _create(connection: Connection, given: dict[str, Any]) -> Sequence[Any]:
    request = messages.CreateDelegationTokenRequest
    owner = {}
    if given["owners"]:
        [(kind, name)] = given["owners"]
        owner = {"owner_principal_type": kind, "owner_principal_name": name}
    renewers = [
        request.Renewers(principal_type=kind, principal_name=name) for kind, name in given["renewers"]
    ]
    lifetime_ms = -1 if given["max_life"] is None else given["max_life"]
    told = connection.ask(request(renewers=renewers, max_lifetime_ms=lifetime_ms, **owner))
    _check(told)
    return (
        told.token_id,
        base64.b64encode(bytes(told.hmac)).decode(),
        f"{told.principal_type}:{told.principal_name}",
        f"{told.token_requester_principal_type}:{told.token_requester_principal_name}",
        _names(given["renewers"]),
        *(_time(it) for it in (told.issue_timestamp_ms, told.expiry_timestamp_ms, told.max_timestamp_ms)),
    )  # fmt: skip


def _describe(connection: Connection, owners: Sequence[tuple[str, str]]) -> Sequence[Sequence[Any]]:
    request = messages.DescribeDelegationTokenRequest
    asked = [request.Owners(principal_type=kind, principal_name=name) for kind, name in owners] or None
    told = connection.ask(request(owners=asked))
    _check(told)
    return sorted(
        (
            token.token_id,
            base64.b64encode(bytes(token.hmac)).decode(),
            f"{token.principal_type}:{token.principal_name}",
            f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            _names([(it.principal_type, it.principal_name) for it in token.renewers]),
            *(_time(it) for it in (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp)),
        )
        for token in told.tokens
    )  # fmt: skip


def _end(connection: Connection, action: str, hmac: bytes, given: dict[str, Any]) -> int:
    if action == "renew":
        period = -1 if given["renew_ms"] is None else given["renew_ms"]
        told = connection.ask(messages.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period))
    else:
        period = -1 if given["expiry_ms"] is None else given["expiry_ms"]
        told = connection.ask(messages.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period))
    if told.error_code == DELEGATION_TOKEN_OWNER_MISMATCH:
        raise Refused(f"only the token's owner and its renewers may {action} it")
    _check(told)
    return int(told.expiry_timestamp_ms)


def _check(told: Any) -> None:
    """Raises KafkaError."""
    if told.error_code:
        raise KafkaError(told.error_code)


def _names(principals: Sequence[tuple[str, str]]) -> str:
    return ",".join(f"{kind}:{name}" for kind, name in principals) or "-"


def _time(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="seconds")
