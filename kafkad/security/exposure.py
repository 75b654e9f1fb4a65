"""Listeners that are open to everyone on the network, and the warnings about them at the start.

    PLAINTEXT          open: no login, no encryption
    SSL                open unless ssl.client.auth is `required`
    SASL_PLAINTEXT     login, no encryption: the network can read everything, passwords of PLAIN too
    SASL_SSL           login and encryption

Only processes of this machine can reach a listener on a loopback address."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kafkad.config.listeners import Endpoint
from kafkad.security.authorizer import authorizer_settings
from kafkad.security.listeners import ENABLED, takes_unsecured_tokens
from kafkad.security.tls import CLIENT_AUTH

ANONYMOUS: Final = "User:ANONYMOUS"
PREFIX: Final = "listener.name."


def open_to_anyone(config: Any, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the endpoints (as bound) that need neither a login nor a client certificate."""
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.protocol == "PLAINTEXT"
        or (endpoint.protocol == "SSL" and config.for_listener(endpoint.listener, CLIENT_AUTH) != "required")
    ]


def whom(config: Any) -> str:
    """Return, for the ready line, how the ACLs treat clients without a login."""
    settings = authorizer_settings(config)
    if settings is None:
        return ""
    return ", a super user" if ANONYMOUS in settings.super_users else f", who is {ANONYMOUS} to the ACLs"


def warnings(config: Any, is_loopback: Callable[[str], bool]) -> Iterator[str]:
    """Return a warning for each listener that others on the network can misuse or read, and for keys that
    apply to no listener."""
    yield from _of_no_listener(config)
    for endpoint in config.broker_endpoints:
        if takes_unsecured_tokens(config, endpoint):
            yield (
                f"listener {endpoint} takes unsecured tokens of OAUTHBEARER: anyone who can reach it may log"
                " in as anyone; docs/security.md shows how to check tokens with a provider's keys"
            )
    for endpoint in config.broker_endpoints:
        if endpoint.protocol not in ("PLAINTEXT", "SASL_PLAINTEXT") or is_loopback(endpoint.host):
            continue
        if endpoint.protocol == "PLAINTEXT":
            yield (
                f"listener {endpoint} is open to anyone who can reach it, without a login and without"
                " encryption; docs/security.md shows how to close it, 127.0.0.1 keeps it on this machine"
            )
        elif "PLAIN" in config.for_listener(endpoint.listener, ENABLED):
            yield (
                f"listener {endpoint} takes passwords of PLAIN without encryption: others on the network can"
                " read them; use SASL_SSL, or SCRAM"
            )


def _of_no_listener(config: Any) -> Iterator[str]:
    """Kafka ignores them, too. A listener is then perhaps less protected than its file looks."""
    names = {*config.controller_listener_names, *(it.listener for it in config.endpoints)}
    prefixes = tuple(sorted({f"{PREFIX}{name.lower()}." for name in names}))
    for key in sorted(config.given):
        if key.startswith(PREFIX) and not key.startswith(prefixes):
            yield f"{key} applies to no listener and is ignored; the prefixes here are: {', '.join(prefixes)}"
