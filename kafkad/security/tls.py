"""The configuration of TLS listeners. Each key may have the prefix listener.name.<listener>.

    ssl.keystore.type            PEM, PKCS12 or JKS (the default); for PKCS12 and JKS the file's bytes decide
    ssl.keystore.location        with ssl.keystore.password, ssl.key.password; a PEM file has key and chain
    ssl.keystore.key             PEM in the configuration itself, with ssl.keystore.certificate.chain
    ssl.truststore.type, .location, .password, .certificates       authorities for clients' certificates
    ssl.client.auth              none, requested, required; for SASL_SSL with the listener's prefix only
    ssl.enabled.protocols, ssl.protocol, ssl.cipher.suites
    ssl.allow.dn.changes, ssl.allow.san.changes                    for a certificate that replaces another

A certificate can be replaced while the broker serves. `check_successor` checks the new one.
(SslFactory, DefaultSslEngineFactory, ChannelBuilders.)"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple, NoReturn

from kafkad._native.serving.tls import VERSIONS, TlsContext
from kafkad._native.serving.tls_keys import TlsError
from kafkad.config.definition import ConfigError
from kafkad.config.dynamic import SECURITY_KEYS
from kafkad.security.certificates import alternative_names_of, subject_of, validity_of
from kafkad.security.client_tls import python_server
from kafkad.security.stores import (
    TYPES,
    KeyStore,
    WrongStore,
    certificates_of,
    chain_of,
    is_jks,
    key_of,
    key_store_of,
    trusted_of,
)
from kafkad.security.tls_trust import Stores, successor_refusal

CLIENT_AUTH: Final = "ssl.client.auth"
SUITES: Final = "ssl.cipher.suites"
ENABLED: Final = "ssl.enabled.protocols"
PROTOCOL: Final = "ssl.protocol"
KEY_PASSWORD: Final = "ssl.key.password"
KEY_STORE: Final = "ssl.keystore.location"
KEY_STORE_PASSWORD: Final = "ssl.keystore.password"
KEY_STORE_TYPE: Final = "ssl.keystore.type"
KEY_STORE_KEY: Final = "ssl.keystore.key"
KEY_STORE_CHAIN: Final = "ssl.keystore.certificate.chain"
TRUST_STORE: Final = "ssl.truststore.location"
TRUST_STORE_PASSWORD: Final = "ssl.truststore.password"
TRUST_STORE_TYPE: Final = "ssl.truststore.type"
TRUST_STORE_TEXT: Final = "ssl.truststore.certificates"
ALLOW_DN: Final = "ssl.allow.dn.changes"
ALLOW_SAN: Final = "ssl.allow.san.changes"
NEWEST: Final = ("TLS", *VERSIONS)  # values of ssl.protocol; ssl.enabled.protocols determines the versions


CLIENT_KEYS: Final = (
    KEY_STORE, KEY_STORE_PASSWORD, KEY_STORE_TYPE, KEY_STORE_KEY, KEY_STORE_CHAIN, KEY_PASSWORD,
    TRUST_STORE, TRUST_STORE_PASSWORD, TRUST_STORE_TYPE, TRUST_STORE_TEXT,
    "ssl.endpoint.identification.algorithm",
)  # fmt: skip


class TlsEndpoint(NamedTuple):
    listener: str
    protocol: str


class TlsListener(NamedTuple):
    context: Any  # TlsContext; ssl.SSLContext for a controller's listener, which Python's ssl serves
    certificate: bytes  # DER; the first of the chain
    stores: Stores  # what it was made of


def tls_endpoints(config: Any) -> list[Any]:
    """Return the endpoints for clients with TLS in `config` (BrokerConfig)."""
    return [endpoint for endpoint in config.broker_endpoints if endpoint.protocol.endswith("SSL")]


def tls_listener(config: Any, endpoint: Any, read: Callable[[str], bytes]) -> TlsListener:
    """`read` returns a file's bytes or raises OSError. Raises ConfigError for the first wrong key."""
    return _Listener(config, endpoint, read).made()


def tls_contexts(config: Any, read: Callable[[str], bytes]) -> dict[str, TlsContext]:
    """Return the contexts of all listeners with TLS, by name. Raises ConfigError."""
    return {
        endpoint.listener: tls_listener(config, endpoint, read).context for endpoint in tls_endpoints(config)
    }


def client_context(config: Any, listener: str, read: Callable[[str], bytes]) -> TlsContext:
    """Return the context with which this node connects to a listener of other nodes (server/node_links).
    Raises ConfigError."""
    return _Listener(config, TlsEndpoint(listener, "SSL"), read).client()


def client_stores(config: Any, listener: str, read: Callable[[str], bytes]) -> Stores | None:
    """Return the same configuration as stores; None: there is no keystore. Raises ConfigError."""
    return _Listener(config, TlsEndpoint(listener, "SSL"), read).stores()


def client_options(config: Any, listener: str) -> dict[str, str]:
    """Return the same configuration as Kafka's client options, for security/client_tls."""
    found = {key: config.for_listener(listener, key) for key in CLIENT_KEYS}
    return {key: value for key, value in found.items() if value is not None}


def controller_listener(config: Any, endpoint: Any, read: Callable[[str], bytes]) -> TlsListener:
    """Return what a controller's listener serves. Raise ConfigError."""
    return _Listener(config, endpoint, read).python()


def check_controllers(config: Any, read: Callable[[str], bytes]) -> None:
    """Raise ConfigError if a controller's listener has no usable certificate."""
    for endpoint in config.controller_endpoints:
        if endpoint.protocol.endswith("SSL"):
            controller_listener(config, endpoint, read)


def own_values(config: Any, listener: str) -> tuple[Any, ...]:
    """Return the values of the keys that may change while a listener serves."""
    return tuple(config.for_listener(listener, key) for key in sorted(SECURITY_KEYS))


def store_paths(config: Any, listener: str) -> list[str]:
    """Return the paths of a listener's stores."""
    return [path for key in (KEY_STORE, TRUST_STORE) if (path := config.for_listener(listener, key))]


def validity_trouble(stores: Stores, now: datetime) -> str | None:
    """Return what is wrong with the time of a certificate of the keystore, or None. As in Java, the time of
    one that is itself in the truststore does not matter."""
    for certificate in stores.chain:
        if certificate in stores.authorities:
            continue
        try:
            begin, end = validity_of(certificate)
        except ValueError:  # a time that OpenSSL understands, perhaps
            continue
        if now > end:
            return f"the certificate of {subject_of(certificate)} has expired at {end:%Y-%m-%d %H:%M:%S} UTC"
        if now < begin:
            return f"the certificate of {subject_of(certificate)} is valid from {begin:%Y-%m-%d %H:%M:%S} UTC"
    return None


def check_successor(config: Any, listener: str, before: TlsListener, after: TlsListener) -> None:
    """Raise ConfigError if `after` may not replace `before`: another subject, or fewer names, are usually a
    mistake (SslFactory.CertificateEntries)."""
    old, new = subject_of(before.certificate), subject_of(after.certificate)
    if old != new and not config.for_listener(listener, ALLOW_DN):
        raise ConfigError(
            f"the new certificate of listener {listener} is for {new}, and the one there is for {old};"
            f" {ALLOW_DN}=true allows it"
        )
    missing = alternative_names_of(before.certificate) - alternative_names_of(after.certificate)
    if missing and not config.for_listener(listener, ALLOW_SAN):
        raise ConfigError(
            f"the new certificate of listener {listener} lacks {len(missing)} alternative names of the one"
            f" there; {ALLOW_SAN}=true allows it"
        )
    if after.stores.authorities and not before.stores.authorities:
        raise ConfigError(f"listener {listener} has no truststore, and cannot get one while it serves")
    between_brokers = listener == config.inter_broker_listener_name
    if between_brokers or any(listener == each.listener for each in config.controller_endpoints):
        reason = successor_refusal(before.stores, after.stores, both=between_brokers)
        if reason is not None:
            raise ConfigError(
                f"other nodes would refuse the new certificate of listener {listener}: {reason}"
            )


def _stores(store: KeyStore, authorities: Iterable[bytes]) -> Stores:
    return Stores(store.key, tuple(store.chain), tuple(authorities))


class _Listener:
    def __init__(self, config: Any, endpoint: Any, read: Callable[[str], bytes]) -> None:
        self._config = config
        self._name = endpoint.listener
        self._is_sasl = endpoint.protocol == "SASL_SSL"
        self._read = read

    def _versions(self) -> list[str]:
        protocol = self._get(PROTOCOL)
        if protocol not in NEWEST:
            self._wrong(PROTOCOL, f"one of {', '.join(NEWEST)} is wanted")
        versions = self._get(ENABLED) or list(VERSIONS)
        for version in versions:
            if version not in VERSIONS:
                self._wrong(ENABLED, f"{version} is not supported; those that are: {', '.join(VERSIONS)}")
        return list(versions)

    def stores(self) -> Stores | None:
        """Return None if there is no keystore."""
        if self._get(KEY_STORE) is None and self._get(KEY_STORE_CHAIN) is None:
            return None
        return _stores(self._key_store(), self._trust_store())

    def client(self) -> TlsContext:
        versions, suites = self._versions(), self._get(SUITES)
        authorities = self._trust_store()
        if not authorities:
            self._missing(TRUST_STORE, "it says who signs the certificates of the other nodes")
        store = None
        if self._get(KEY_STORE) is not None or self._get(KEY_STORE_CHAIN) is not None:
            store = self._key_store()
        try:
            return TlsContext(
                key=store.key if store is not None else b"",
                chain=store.chain if store is not None else (),
                authorities=authorities,
                versions=versions,
                suites=suites,
                client=True,
            )
        except TlsError as trouble:
            self._wrong(SUITES if "suite" in str(trouble) else self._key_of_store(), str(trouble))

    def python(self) -> TlsListener:
        versions, store, authorities = self._versions(), self._key_store(), self._trust_store()
        client_auth = self._client_auth()
        if client_auth != "none" and not authorities:
            self._wrong(CLIENT_AUTH, f"{TRUST_STORE} must say who signs the other nodes' certificates")
        if self._get(SUITES):
            self._wrong(
                SUITES,
                "a controller's listener has OpenSSL's own choice of suites; set"
                f" listener.name.{self._name.lower()}.{SUITES}= for it",
            )
        try:
            context = python_server(store.key, store.chain, authorities, client_auth, versions)
        except (OSError, ValueError) as trouble:
            self._wrong(self._key_of_store(), str(trouble))
        return TlsListener(context, store.chain[0], _stores(store, authorities))

    def made(self) -> TlsListener:
        versions = self._versions()
        store = self._key_store()
        authorities = self._trust_store()
        client_auth = self._client_auth()
        if client_auth != "none" and not authorities:
            self._wrong(CLIENT_AUTH, f"{TRUST_STORE} must say who signs the clients' certificates")
        suites = self._get(SUITES)
        try:
            context = TlsContext(
                key=store.key,
                chain=store.chain,
                authorities=authorities,
                client_auth=client_auth,
                versions=versions,
                suites=suites,
            )
            return TlsListener(context, store.chain[0], _stores(store, authorities))
        except TlsError as trouble:
            about_suites = "suite" in str(trouble)
            self._wrong(SUITES if about_suites else self._key_of_store(), str(trouble))

    def _client_auth(self) -> str:
        # Without the listener's prefix the key does not apply to SASL_SSL, where the mechanism names the
        # user.
        if self._is_sasl and self._full(CLIENT_AUTH) == CLIENT_AUTH:
            return "none"
        return str(self._get(CLIENT_AUTH))

    def _key_of_store(self) -> str:
        return KEY_STORE_KEY if self._get(KEY_STORE_KEY) is not None else KEY_STORE

    def _key_store(self) -> KeyStore:
        kind = self._get(KEY_STORE_TYPE)
        location, password = self._get(KEY_STORE), self._get(KEY_STORE_PASSWORD)
        key, chain = self._get(KEY_STORE_KEY), self._get(KEY_STORE_CHAIN)
        if key is not None or chain is not None:
            if kind != "PEM":
                self._wrong(KEY_STORE_TYPE, f"{KEY_STORE_KEY} and {KEY_STORE_CHAIN} need PEM")
            for given, name, other in ((key, KEY_STORE_KEY, chain), (chain, KEY_STORE_CHAIN, key)):
                if given is None and other is not None:
                    self._missing(name, "key and chain are given together")
            if location is not None:
                self._wrong(KEY_STORE, f"{KEY_STORE_KEY} is given, too; only one of them can be")
        elif location is None:
            self._missing(
                KEY_STORE, f"a listener with TLS needs it, or {KEY_STORE_KEY} and {KEY_STORE_CHAIN}"
            )
        if kind == "PEM":
            if password is not None:
                self._wrong(KEY_STORE_PASSWORD, f"a PEM store has none; {KEY_PASSWORD} is the key's")
            place = KEY_STORE_KEY if location is None else KEY_STORE
            text = None if location is None else self._text(KEY_STORE, location)
            try:
                der = key_of(key if text is None else text, self._get(KEY_PASSWORD))
                place = KEY_STORE_CHAIN if location is None else KEY_STORE
                return KeyStore(der, chain_of(chain if text is None else text))
            except WrongStore as trouble:
                self._wrong(place, str(trouble))
        self._check_binary_type(KEY_STORE_TYPE)
        if password is None:
            self._missing(KEY_STORE_PASSWORD, f"it opens the store of {self._full(KEY_STORE)}")
        try:
            return key_store_of(self._bytes(KEY_STORE, location), password, self._get(KEY_PASSWORD))
        except WrongStore as trouble:
            self._wrong(KEY_STORE, str(trouble))

    def _trust_store(self) -> list[bytes]:
        kind = self._get(TRUST_STORE_TYPE)
        location, text = self._get(TRUST_STORE), self._get(TRUST_STORE_TEXT)
        if text is not None:
            if kind != "PEM":
                self._wrong(TRUST_STORE_TYPE, f"{TRUST_STORE_TEXT} needs PEM")
            if location is not None:
                self._wrong(TRUST_STORE, f"{TRUST_STORE_TEXT} is given, too; only one of them can be")
        elif location is None:
            if self._get(TRUST_STORE_PASSWORD) is not None:
                self._wrong(TRUST_STORE_PASSWORD, f"{TRUST_STORE} is not given")
            return []
        if kind != "PEM":
            return self._binary_trust_store(location)
        if self._get(TRUST_STORE_PASSWORD) is not None:
            self._wrong(TRUST_STORE_PASSWORD, "a PEM store has none")
        try:
            return certificates_of(self._text(TRUST_STORE, location) if text is None else text)
        except WrongStore as trouble:
            self._wrong(TRUST_STORE if text is None else TRUST_STORE_TEXT, str(trouble))

    def _binary_trust_store(self, location: str) -> list[bytes]:
        self._check_binary_type(TRUST_STORE_TYPE)
        data, password = self._bytes(TRUST_STORE, location), self._get(TRUST_STORE_PASSWORD)
        if password is None and not is_jks(data):
            self._missing(TRUST_STORE_PASSWORD, f"it opens the store of {self._full(TRUST_STORE)}")
        try:
            return trusted_of(data, password)
        except WrongStore as trouble:
            self._wrong(TRUST_STORE, str(trouble))

    def _check_binary_type(self, kind: str) -> None:
        if self._get(kind) not in TYPES:
            self._wrong(kind, f"one of {', '.join(TYPES)} is wanted")

    def _bytes(self, name: str, path: str) -> bytes:
        try:
            return self._read(path)
        except OSError as trouble:
            self._wrong(name, f"it cannot be read: {trouble.strerror}")

    def _text(self, name: str, path: str) -> str:
        return self._bytes(name, path).decode("utf-8", "replace")

    def _get(self, name: str) -> Any:
        return self._config.for_listener(self._name, name)

    def _full(self, name: str) -> str:
        own = f"listener.name.{self._name.lower()}.{name}"
        return own if own in self._config.given else name

    def _missing(self, name: str, reason: str) -> NoReturn:
        raise ConfigError(f"Missing configuration {name} of listener {self._name}: {reason}")

    def _wrong(self, name: str, reason: str) -> NoReturn:
        from kafkad.config.broker import is_sensitive

        full = self._full(name)
        text = self._config.given.get(full)
        if text is None:
            text = self._get(name)
        shown = "[hidden]" if is_sensitive(full) else text
        raise ConfigError(
            f"Invalid value {shown} for configuration {full} of listener {self._name}: {reason}"
        )
