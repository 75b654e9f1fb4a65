"""Kerberos of a client: where its ticket comes from, and the login with one (GSSAPI, RFC 4752).

    sasl.kerberos.service.name   the first part of the brokers' principals, say kafka
    sasl.jaas.config             of Krb5LoginModule: useKeyTab=true with keyTab and principal, or
                                 useTicketCache=true with ticketCache, else what kinit left

librdkafka's sasl.kerberos.keytab and sasl.kerberos.principal work as well. The second part of the broker's
principal is the host that we connect to. The package gssapi is needed (the extra `gssapi`); KRB5_CONFIG names
the krb5.conf. (GssKrb5Client, KerberosLogin.)"""

import functools
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from kafkad.security import jaas

SERVICE: Final = "sasl.kerberos.service.name"
NO_LAYER: Final = 1  # of protection, as a bit

Conversation = Generator[bytes, bytes, None]


class NoTicket(Exception):
    """There is none, or the broker does not prove who it is."""


class Tickets(NamedTuple):
    service: str
    principal: str  # "" for whoever the cache belongs to
    keytab: str  # "" for a ticket cache
    cache: str  # "" for the default one


def tickets_of(options: Mapping[str, Any]) -> Tickets:
    """By a client's options. Raises ValueError."""
    if find_spec("gssapi") is None:
        raise ValueError("GSSAPI needs the package gssapi: pip install 'kafkad[gssapi]'")
    login: dict[str, str] = {}
    text = options.get("sasl.jaas.config")
    if text is not None:
        try:
            login = jaas.parse(str(text)).options
        except ValueError as wrong:
            raise ValueError(f"sasl.jaas.config: {wrong}") from None
    service = str(options.get(SERVICE) or login.get("serviceName") or "")
    if not service:
        raise ValueError(f"GSSAPI needs {SERVICE}: the first part of the brokers' principals, say kafka")
    principal = str(options.get("sasl.kerberos.principal") or login.get("principal") or "")
    keytab = str(options.get("sasl.kerberos.keytab") or "")
    if login.get("useKeyTab", "").lower() == "true":
        keytab = keytab or login.get("keyTab", "")
        if not keytab or not principal:
            raise ValueError('sasl.jaas.config needs keyTab="..." and principal="..." with useKeyTab=true')
    return Tickets(service, principal, keytab, login.get("ticketCache", ""))


def gssapi_conversation(tickets: Tickets, host: str) -> Conversation:
    """Raises NoTicket."""
    import gssapi

    def told(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except gssapi.exceptions.GSSError as trouble:
            raise NoTicket(" ".join(str(trouble).split())) from None

    context = told(lambda: _context(tickets, host))
    answer: bytes | None = None
    while not context.complete:
        answer = yield told(functools.partial(context.step, answer)) or b""
    offered = told(lambda: context.unwrap(answer or b"")).message
    if len(offered) < 4 or not offered[0] & NO_LAYER:
        raise NoTicket("the broker offers only layers of protection that Kafka does not have")
    yield told(lambda: context.wrap(bytes((NO_LAYER, 0, 0, 0)), False)).message


def _context(tickets: Tickets, host: str) -> Any:
    import gssapi

    store: dict[bytes | str, bytes | str] = {}
    if tickets.keytab:
        store = {"client_keytab": tickets.keytab, "ccache": f"MEMORY:kafkad-{tickets.principal}"}
    elif tickets.cache:
        store = {"ccache": tickets.cache}
    name = None
    if tickets.principal:
        name = gssapi.Name(tickets.principal, gssapi.NameType.kerberos_principal)
    credentials = gssapi.Credentials(name=name, usage="initiate", store=store or None)
    broker = gssapi.Name(f"{tickets.service}@{host}", gssapi.NameType.hostbased_service)
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    return gssapi.SecurityContext(
        name=broker, creds=credentials, mech=gssapi.MechType.kerberos, flags=flags, usage="initiate"
    )
