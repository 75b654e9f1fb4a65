"""TLS and SASL of a client, by Kafka's client options.

    security.protocol   PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
    sasl.mechanism      PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI

User and password come from `sasl.jaas.config` as in the Java client, or from `sasl.username` and
`sasl.password` as in librdkafka. With `tokenauth=true` in sasl.jaas.config they are the id and the HMAC of a
delegation token (KIP-48). AWS_MSK_IAM is refused.

In security/: client_kerberos has the ticket of GSSAPI, client_oauth the token of OAUTHBEARER, client_tls the
options of TLS, client_sasl what is said. Source: KIP-651."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafkad.security.client_sasl import (
    ITERATIONS_MIN,
    SCRAM_HASHES,
    AuthenticationFailed,
    Conversation,
    plain_conversation,
    scram_conversation,
)

if TYPE_CHECKING:
    import ssl

    from kafkad.security.client_kerberos import Tickets
    from kafkad.security.client_oauth import Tokens

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, OAUTHBEARER, GSSAPI)

__all__ = (
    "ITERATIONS_MIN",
    "SCRAM_HASHES",
    "AuthenticationFailed",
    "Conversation",
    "Security",
    "credentials",
    "is_delegated",
    "plain_conversation",
    "scram_conversation",
)


@dataclass(frozen=True)
class Security:
    """How to secure a new connection. `Security.of` creates it from options."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    context: "ssl.SSLContext | None" = field(default=None, repr=False)
    tokens: "Tokens | None" = field(default=None, repr=False)  # of OAUTHBEARER
    delegated: bool = False  # username and password are a delegation token's
    tickets: "Tickets | None" = field(default=None, repr=False)  # of GSSAPI

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Security | None":
        """Return the security settings, or None for PLAINTEXT. Raise ValueError for invalid or unsupported
        options."""
        protocol = str(options.get("security.protocol", "PLAINTEXT")).upper()
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol is {protocol!r}; it must be one of {', '.join(PROTOCOLS)}")
        if protocol == "PLAINTEXT":
            return None
        mechanism = username = password = ""
        tokens, delegated, tickets = None, False, None
        if protocol.startswith("SASL_"):
            mechanism = str(options.get("sasl.mechanism", options.get("sasl.mechanisms", "GSSAPI"))).upper()
            if mechanism not in MECHANISMS:
                raise ValueError(f"sasl.mechanism {mechanism} is not supported: {', '.join(MECHANISMS)} are")
            if mechanism == OAUTHBEARER:
                from kafkad.security.client_oauth import tokens_of

                tokens = tokens_of(options)
            elif mechanism == GSSAPI:
                from kafkad.security.client_kerberos import tickets_of

                tickets = tickets_of(options)
            else:
                username, password = credentials(options)
                delegated = mechanism in SCRAM_HASHES and is_delegated(options)
        context = None
        if protocol.endswith("SSL"):
            from kafkad.security.client_tls import tls_context

            context = tls_context(options)
        return cls(protocol, mechanism, username, password, context, tokens, delegated, tickets)

    @property
    def who(self) -> str:
        """The user in an error message."""
        if self.tickets is not None:
            return "the ticket"
        return "the token" if self.tokens is not None else repr(self.username)

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        """Do the TLS handshake, if any, and return the socket to use. Raise AuthenticationFailed if the
        broker's certificate is not valid, and OSError."""
        if self.context is None:
            return plain
        import ssl

        try:
            return self.context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as trouble:
            raise AuthenticationFailed(f"the certificate of {host} is refused: {trouble.verify_message}")

    def conversation(self, host: str) -> Conversation:
        """For a broker on `host`, return a generator that yields our messages and is sent the broker's. It
        raises AuthenticationFailed."""
        if self.mechanism == "PLAIN":
            return plain_conversation(self.username, self.password)
        if self.tickets is not None:
            return _by_ticket(self.tickets, host)
        if self.tokens is not None:
            from kafkad.security.client_oauth import NoToken, oauth_conversation

            try:
                return oauth_conversation(self.tokens.get(), self.tokens.extensions)
            except NoToken as trouble:
                raise AuthenticationFailed(f"no token: {trouble}") from None
        return scram_conversation(
            SCRAM_HASHES[self.mechanism], self.username, self.password, delegated=self.delegated
        )


def _by_ticket(tickets: "Tickets", host: str) -> Conversation:
    from kafkad.security.client_kerberos import NoTicket, gssapi_conversation

    try:
        yield from gssapi_conversation(tickets, host)
    except NoTicket as trouble:
        raise AuthenticationFailed(f"no login by Kerberos: {trouble}") from None


# -- options -----------------------------------------------------------------------------------------------


def credentials(options: Mapping[str, Any]) -> tuple[str, str]:
    """Return user and password. Raise ValueError."""
    text = options.get("sasl.jaas.config")
    if text is not None:
        from kafkad.security import jaas

        try:
            found = jaas.parse(str(text)).options
        except ValueError as wrong:
            raise ValueError(f"sasl.jaas.config: {wrong}") from None
        if "username" in found and "password" in found:
            return found["username"], found["password"]
        raise ValueError('sasl.jaas.config has no username="..." and password="..."')
    if "sasl.username" in options and "sasl.password" in options:
        return str(options["sasl.username"]), str(options["sasl.password"])
    raise ValueError("SASL needs sasl.jaas.config, or sasl.username and sasl.password")


def is_delegated(options: Mapping[str, Any]) -> bool:
    """Return whether the login uses a delegation token."""
    text = options.get("sasl.jaas.config")
    if text is None:
        return False
    from kafkad.security import jaas

    return jaas.parse(str(text)).options.get("tokenauth", "").lower() == "true"
