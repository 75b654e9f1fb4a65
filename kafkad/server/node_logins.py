"""How a node logs in to other nodes of its cluster, by what its own configuration of the listener says.

    PLAIN, SCRAM-SHA-...   username and password of the login module
    GSSAPI                 keyTab and principal of the login module, sasl.kerberos.service.name. The other
                           node's principal is service/host, with the host that it advertises
    OAUTHBEARER            a token, from sasl.oauthbearer.token.endpoint.url for a client id and secret, or
                           unsigned, by the options unsecuredLogin... of the login module

The login module is listener.name.<listener>.<mechanism>.sasl.jaas.config, which is also what this node lets
others in by. Tokens and tickets may take a while: `conversation` then belongs into a thread (`waits`).

(LoginManager, JaasContext.loadServerContext, SaslChannelBuilder.)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from kafkad.config.definition import ConfigError
from kafkad.config.effects import TOKEN_KEYS
from kafkad.security import jaas, kerberos, oauthbearer
from kafkad.security.client_kerberos import SERVICE, NoTicket, Tickets, gssapi_conversation, tickets_of
from kafkad.security.client_oauth import HANDLER, NoToken, Tokens, oauth_conversation, tokens_of
from kafkad.security.client_sasl import (
    SCRAM_HASHES,
    AuthenticationFailed,
    Conversation,
    plain_conversation,
    scram_conversation,
)
from kafkad.security.kerberos import GSSAPI
from kafkad.security.mechanisms import PLAIN_MODULE, SCRAM_MODULE
from kafkad.security.oauthbearer import OAUTHBEARER

MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, GSSAPI, OAUTHBEARER)
MODULES: Final = {"PLAIN": PLAIN_MODULE, GSSAPI: kerberos.MODULE, OAUTHBEARER: oauthbearer.MODULE}
EXAMPLES: Final = {
    GSSAPI: 'useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab" principal="kafka/HOST@REALM"',
    OAUTHBEARER: 'clientId="broker" clientSecret="secret"',
}
ASSERTION: Final = "sasl.oauthbearer.assertion."


@dataclass(frozen=True)
class PasswordLogin:
    mechanism: str
    username: str
    password: str = field(repr=False)
    waits: ClassVar[bool] = False

    @property
    def who(self) -> str:
        return repr(self.username)

    def conversation(self, host: str) -> Conversation:
        if self.mechanism == "PLAIN":
            return plain_conversation(self.username, self.password)
        return scram_conversation(SCRAM_HASHES[self.mechanism], self.username, self.password)


@dataclass(frozen=True)
class TicketLogin:
    tickets: Tickets
    mechanism: ClassVar[str] = GSSAPI
    waits: ClassVar[bool] = True

    @property
    def who(self) -> str:
        return f"the ticket of {self.tickets.principal}"

    def conversation(self, host: str) -> Conversation:
        try:
            yield from gssapi_conversation(self.tickets, host)
        except NoTicket as trouble:
            raise AuthenticationFailed(
                f"no login by Kerberos as {self.tickets.principal}: {trouble}"
            ) from None


@dataclass(frozen=True)
class TokenLogin:
    tokens: Tokens
    mechanism: ClassVar[str] = OAUTHBEARER
    waits: ClassVar[bool] = True
    who: ClassVar[str] = "the token"

    def conversation(self, host: str) -> Conversation:
        try:
            token = self.tokens.get()
        except NoToken as trouble:
            raise AuthenticationFailed(f"no token: {trouble}") from None
        yield from oauth_conversation(token, self.tokens.extensions)


NodeLogin = PasswordLogin | TicketLogin | TokenLogin


def node_login(config: Any, listener: str, key: str, mechanism: str) -> NodeLogin:
    """Return this node's login for a listener; `key` says by which mechanism. Raises ConfigError."""
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"Invalid value {mechanism} for configuration {key}: nodes log in to each other by one of"
            f" {', '.join(MECHANISMS)}"
        )
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    module = MODULES.get(mechanism, SCRAM_MODULE)
    text = config.given.get(name)
    if text is None:
        example = EXAMPLES.get(mechanism, 'username="broker" password="secret"')
        raise ConfigError(
            f"Missing configuration {name}: this node logs in to others by it, as {module} required"
            f" {example};"
        )
    try:
        found = jaas.parse(text)
    except ValueError as trouble:
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: {trouble}") from None
    if found.name != module:
        raise ConfigError(
            f"Invalid value [hidden] for configuration {name}: the login module is {found.name}, and kafkad"
            f" has {module}"
        )
    if mechanism in (GSSAPI, OAUTHBEARER):
        options = _options(config, listener, mechanism) | {"sasl.jaas.config": text}
        try:
            return TicketLogin(_tickets(options)) if mechanism == GSSAPI else TokenLogin(tokens_of(options))
        except ValueError as wrong:
            raise ConfigError(
                f"Invalid value [hidden] for configuration {name}, by which this node logs in to others:"
                f" {wrong}"
            ) from None
    if "username" not in found.options or "password" not in found.options:
        raise ConfigError(
            f"Invalid value [hidden] for configuration {name}: username and password are missing, by which"
            " this node logs in to others"
        )
    return PasswordLogin(mechanism, found.options["username"], found.options["password"])


def _options(config: Any, listener: str, mechanism: str) -> dict[str, str]:
    """Return a client's options: what the configuration says for the mechanism of the listener, for the
    listener, or at all."""
    keys = {SERVICE} if mechanism == GSSAPI else {*TOKEN_KEYS, HANDLER}
    if mechanism == OAUTHBEARER:
        keys |= {name for name in config.given if name.startswith(ASSERTION)}
    prefix = f"listener.name.{listener.lower()}."
    found = {}
    for key in keys:
        for name in (f"{prefix}{mechanism.lower()}.{key}", prefix + key, key):
            if name in config.given:
                found[key] = config.given[name]
                break
    return found


def _tickets(options: Mapping[str, str]) -> Tickets:
    """Raises ValueError."""
    tickets = tickets_of(options)
    if not tickets.keytab:
        raise ValueError("a node has its key from a keytab: useKeyTab=true is missing")
    return tickets
