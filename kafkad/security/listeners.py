"""The configuration of SASL listeners.

    sasl.enabled.mechanisms, or listener.name.<listener>.sasl.enabled.mechanisms
    listener.name.<listener>.<mechanism>.sasl.jaas.config   PLAIN's passwords: options user_NAME="PASSWORD"
    listener.name.<listener>.gssapi.sasl.jaas.config        GSSAPI's keytab and principal
    sasl.kerberos.service.name, .principal.to.local.rules, or with the listener's prefix
    connections.max.reauth.ms, or with either prefix
    listener.name.<listener>.oauthbearer.sasl.server.callback.handler.class   for signed tokens
    sasl.oauthbearer.jwks.*, .expected.*, .clock.skew.seconds, .*.claim.name, or with either prefix

A JAAS file (`java.security.auth.login.config`) is not read. (ChannelBuilders, JaasContext.)"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.definition import ConfigError, trimmed
from kafkad.security import jaas, kerberos, oauthbearer
from kafkad.security.kerberos import GSSAPI
from kafkad.security.mechanisms import MECHANISMS, PLAIN_MODULE, SCRAM_MODULE
from kafkad.security.oauthbearer import OAUTHBEARER, Expectations, Unsecured

ENABLED: Final = "sasl.enabled.mechanisms"
JAAS: Final = "sasl.jaas.config"
REAUTH: Final = "connections.max.reauth.ms"
USER: Final = "user_"  # prefix of PLAIN's options; the rest is the user's name
MODULES: Final = {"PLAIN": PLAIN_MODULE, OAUTHBEARER: oauthbearer.MODULE, GSSAPI: kerberos.MODULE}
HANDLER: Final = "sasl.server.callback.handler.class"
PREFIX: Final = "org.apache.kafka.common.security.oauthbearer."
SIGNED: Final = (  # the second is its name in Kafka 3
    f"{PREFIX}OAuthBearerValidatorCallbackHandler",
    f"{PREFIX}secured.OAuthBearerValidatorCallbackHandler",
)
UNSECURED: Final = f"{PREFIX}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
REFRESH: Final = "sasl.oauthbearer.jwks.endpoint.refresh.ms"
BACKOFF: Final = "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"
BACKOFF_MAX: Final = "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"
AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
ISSUER: Final = "sasl.oauthbearer.expected.issuer"
SERVICE: Final = "sasl.kerberos.service.name"
TO_LOCAL: Final = "sasl.kerberos.principal.to.local.rules"
SKEW: Final = "sasl.oauthbearer.clock.skew.seconds"
SCOPE_CLAIM: Final = "sasl.oauthbearer.scope.claim.name"
NAME_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"


class TlsOptions(dict[str, str]):
    """Kafka's TLS options for clients, hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class KeySource(NamedTuple):
    """Where to read the keys that sign tokens. `tls`: options for an https server, from the key `jaas`."""

    url: str
    path: str  # of file URLs
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    tls: TlsOptions
    jaas: str


class SignedTokens(NamedTuple):
    keys: KeySource
    expected: Expectations


class Kerberos(NamedTuple):
    """The broker's principal and keytab, from the key `jaas`. `rules` shorten the names of clients."""

    principal: str
    keytab: str
    rules: tuple[str, ...]
    jaas: str


class SaslListener(NamedTuple):
    mechanisms: list[str]
    passwords: dict[str, str]  # for PLAIN, by user
    max_reauth_ms: dict[str, int]  # by mechanism; 0: a session does not end
    tokens: SignedTokens | Unsecured | None = None  # for OAUTHBEARER
    kerberos: Kerberos | None = None  # for GSSAPI


def sasl_listeners(config: Any, endpoints: Iterable[Any] | None = None) -> dict[str, SaslListener]:
    """Return, by name, the SASL listeners for clients in `config` (BrokerConfig), or those of `endpoints`.
    Raises ConfigError for the first wrong key."""
    return {
        endpoint.listener: _listener(config, endpoint.listener)
        for endpoint in (config.broker_endpoints if endpoints is None else endpoints)
        if endpoint.protocol.startswith("SASL_")
    }


def controller_listeners(config: Any) -> dict[str, SaslListener]:
    """Return the SASL listeners for the nodes of a cluster. Raises ConfigError."""
    return sasl_listeners(config, config.controller_endpoints)


def _listener(config: Any, listener: str) -> SaslListener:
    mechanisms = config.for_listener(listener, ENABLED)
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            reason = f"{mechanism} is not supported yet; those that are: {', '.join(MECHANISMS)}"
            raise _wrong(",".join(mechanisms), ENABLED, f"of listener {listener}, {reason}")
    if not mechanisms:
        raise _wrong("", ENABLED, f"listener {listener} needs one of: {', '.join(MECHANISMS)}")
    passwords: dict[str, str] = {}
    reauth: dict[str, int] = {}
    tokens: SignedTokens | Unsecured | None = None
    ticketed: Kerberos | None = None
    for mechanism in mechanisms:
        prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}."
        module = _module(config, prefix + JAAS, MODULES.get(mechanism, SCRAM_MODULE))
        if mechanism == "PLAIN":
            if module is None:
                raise ConfigError(
                    f"Missing configuration {prefix}{JAAS}: PLAIN takes its passwords from it, as"
                    f' {PLAIN_MODULE} required user_alice="secret";'
                )
            options = module.options.items()
            passwords = {name.removeprefix(USER): text for name, text in options if name.startswith(USER)}
        if mechanism == OAUTHBEARER:
            if module is None:
                raise ConfigError(
                    f"Missing configuration {prefix}{JAAS}: OAUTHBEARER takes its options from it, as"
                    f" {oauthbearer.MODULE} required;"
                )
            tokens = _tokens(config, listener, module.options)
        if mechanism == GSSAPI:
            ticketed = _kerberos(config, listener, prefix + JAAS, module)
        text = config.given.get(prefix + REAUTH)
        found: Any = BROKER_KEYS[REAUTH].parse(text) if text is not None else None
        reauth[mechanism] = config.for_listener(listener, REAUTH) if found is None else found
    return SaslListener(mechanisms, passwords, reauth, tokens, ticketed)


def _kerberos(config: Any, listener: str, key: str, module: jaas.LoginModule | None) -> Kerberos:
    """Raises ConfigError."""
    if find_spec("gssapi") is None:
        reason = f"of listener {listener}, GSSAPI needs the package gssapi: pip install 'kafkad[gssapi]'"
        raise _wrong(GSSAPI, ENABLED, reason)
    if module is None:
        raise ConfigError(
            f"Missing configuration {key}: GSSAPI takes its keytab from it, as {kerberos.MODULE} required"
            ' useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab" principal="kafka/HOST@REALM";'
        )
    options = module.options
    for name in ("useKeyTab", "storeKey"):
        if options.get(name, "").lower() != "true":
            raise _wrong("[hidden]", key, f"{name}=true is missing: a broker has its key from a keytab")
    for name in ("keyTab", "principal"):
        if not options.get(name):
            raise _wrong("[hidden]", key, f'{name}="..." is missing')
    given, own = config.for_listener(listener, SERVICE), options.get("serviceName")
    if own and given and own != given:
        raise _wrong(given, SERVICE, f"{key} says serviceName={own}")
    if not own and not given:
        raise ConfigError(f"Missing configuration {SERVICE}: GSSAPI needs it, as Kafka does")
    rules = tuple(config.for_listener(listener, TO_LOCAL))
    return Kerberos(options["principal"], options["keyTab"], rules, key)


def takes_unsecured_tokens(config: Any, endpoint: Any) -> bool:
    """Return whether clients of an endpoint may log in with unsigned tokens."""
    if not endpoint.protocol.startswith("SASL_"):
        return False
    if OAUTHBEARER not in config.for_listener(endpoint.listener, ENABLED):
        return False
    prefix = f"listener.name.{endpoint.listener.lower()}.{OAUTHBEARER.lower()}."
    return trimmed(config.given.get(prefix + HANDLER, "")) in ("", UNSECURED)


def _tokens(config: Any, listener: str, options: Mapping[str, str]) -> SignedTokens | Unsecured:
    """Raises ConfigError."""
    prefix = f"listener.name.{listener.lower()}.{OAUTHBEARER.lower()}."
    handler = trimmed(config.given.get(prefix + HANDLER, "")) or UNSECURED
    url = _own(config, listener, JWKS_URL) or ""
    if handler not in (*SIGNED, UNSECURED):
        reason = f"kafkad cannot load Java classes; it has {SIGNED[0]} and {UNSECURED}"
        raise _wrong(handler, prefix + HANDLER, reason)
    if handler == UNSECURED:
        if trimmed(url):
            reason = f"no token would be checked by it; set {prefix}{HANDLER}={SIGNED[0]}"
            raise _wrong(url, JWKS_URL, reason)
        try:
            return Unsecured(options)
        except ValueError as trouble:
            raise _wrong("[hidden]", prefix + JAAS, str(trouble)) from None
    if not trimmed(url):
        raise ConfigError(f"Missing configuration {JWKS_URL}: {prefix}{HANDLER} checks tokens by its keys")
    if find_spec("cryptography") is None:
        reason = "it needs the package cryptography: pip install 'kafkad[oauth]'"
        raise _wrong(handler, prefix + HANDLER, reason)
    tls = {name: text for name, text in options.items() if name.startswith("ssl.")}
    return SignedTokens(_source(config, listener, trimmed(url), TlsOptions(tls), prefix + JAAS),
                        _expectations(config, listener))  # fmt: skip


def _source(config: Any, listener: str, url: str, tls: TlsOptions, jaas_key: str) -> KeySource:
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme.lower(), parts.port
    except ValueError as trouble:
        raise _wrong(url, JWKS_URL, str(trouble)) from None
    if scheme not in ("http", "https", "file"):
        raise _wrong(url, JWKS_URL, "it must begin with https://, http:// or file://")
    if scheme != "file" and not parts.hostname:
        raise _wrong(url, JWKS_URL, "it names no host")
    if parts.username is not None:
        raise _wrong("[hidden]", JWKS_URL, "a URL with a password is not supported")
    times = [_own(config, listener, name) for name in (REFRESH, BACKOFF, BACKOFF_MAX)]
    for name, value, least in zip((REFRESH, BACKOFF, BACKOFF_MAX), times, (1, 0, 0), strict=True):
        if value < least:
            raise _wrong(str(value), name, f"Value must be at least {least}")
    return KeySource(url, unquote(parts.path), times[0], times[1], times[2], tls, jaas_key)


def _expectations(config: Any, listener: str) -> Expectations:
    issuer = _own(config, listener, ISSUER)
    scope, name = (_own(config, listener, key) for key in (SCOPE_CLAIM, NAME_CLAIM))
    for key, value in ((SCOPE_CLAIM, scope), (NAME_CLAIM, name)):
        if not value or not trimmed(value):
            raise _wrong(str(value), key, "it names no claim")
    return Expectations(
        audiences=tuple(_own(config, listener, AUDIENCE)),
        issuer=trimmed(issuer or "") or None,
        skew_seconds=_own(config, listener, SKEW),
        scope_claim=trimmed(scope),
        name_claim=trimmed(name),
    )


def _own(config: Any, listener: str, name: str) -> Any:
    """Return a key's value for OAUTHBEARER on a listener: with both prefixes, with the listener's, or
    without."""
    text = config.given.get(f"listener.name.{listener.lower()}.{OAUTHBEARER.lower()}.{name}")
    return config.for_listener(listener, name) if text is None else BROKER_KEYS[name].parse(text)


def _module(config: Any, name: str, expected: str) -> jaas.LoginModule | None:
    text = config.given.get(name)
    if text is None:
        return None
    try:
        module = jaas.parse(text)
    except ValueError as trouble:
        raise _wrong("[hidden]", name, str(trouble)) from None
    if module.name != expected:
        raise _wrong("[hidden]", name, f"the login module is {module.name}, and kafkad has {expected}")
    return module


def _wrong(text: str, name: str, reason: str) -> ConfigError:
    return ConfigError(f"Invalid value {text} for configuration {name}: {reason}")
