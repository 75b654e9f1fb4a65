"""OAuth tokens of a client: where they come from, and the login with one (RFC 7628, KIP-255, KIP-768).

    sasl.oauthbearer.token.endpoint.url   https:// or http://: the provider issues a token for a client id and
                                          secret (grant type client_credentials). file://: a file holds it
    sasl.jaas.config                      without a URL: options unsecuredLogin... of a token that nobody
                                          signs, for tests

The client id, secret and scope are sasl.oauthbearer.client.credentials.client.id and .client.secret and
sasl.oauthbearer.scope, or clientId, clientSecret and scope in sasl.jaas.config. ssl.* options in
sasl.jaas.config are about the provider's certificate. librdkafka's sasl.oauthbearer.client.id and
.client.secret work as well.

A token is used for 80% of its lifetime, then the next login asks for a new one. While the provider issues
none, it is used to its end. Error messages never hold a token or a secret.
(OAuthBearerLoginCallbackHandler, ClientCredentialsJwtRetriever, FileJwtRetriever,
OAuthBearerUnsecuredLoginCallbackHandler, OAuthBearerSaslClient.)"""

import base64
import functools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import quote_plus, unquote, urlsplit

from kafkad.config.definition import trimmed
from kafkad.net.https import Failed, ask
from kafkad.security import jaas
from kafkad.security.client_tls import tls_context
from kafkad.security.jwt import BadToken, parse, section, unsecured

CLASSES: Final = "org.apache.kafka.common.security.oauthbearer."
HANDLER: Final = "sasl.login.callback.handler.class"
HANDLERS: Final = (
    f"{CLASSES}OAuthBearerLoginCallbackHandler",
    f"{CLASSES}secured.OAuthBearerLoginCallbackHandler",
    f"{CLASSES}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
)
RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
RETRIEVERS: Final = tuple(
    CLASSES + name for name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
)
URL: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id", "clientId")
SECRET: Final = (
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "clientSecret",
)
SCOPE: Final = ("sasl.oauthbearer.scope", "scope")
USED_FOR: Final = 0.8  # of a token's lifetime; Kafka: sasl.login.refresh.window.factor
AGAIN_S: Final = 10.0  # after the next token could not be had; Kafka: ExpiringCredentialRefreshingLogin
TOKEN_BYTES_MAX: Final = 1 << 20
FINAL_STATUSES: Final = frozenset((*range(400, 408), *range(409, 416), 501, 505))  # no use to try again
UNSECURED: Final = "unsecuredLogin"

Conversation = Generator[bytes, bytes, None]


class NoToken(Exception):
    """The provider issues no token."""


class Tokens:
    """`get` returns a token that is good. Threads may share it. At any time one of them asks the provider,
    and the others wait for the same answer. Nobody waits while there is a token that is good: then a thread
    of its own asks for the next one, and tries again AGAIN_S after a failure."""

    def __init__(self, fetch: Callable[[], str], extensions: Mapping[str, str]) -> None:
        self.extensions = dict(extensions)
        self._fetch = fetch
        self._lock = threading.Lock()  # of all that follows; times are monotonic
        self._token = ""
        self._next_at = 0.0  # when to ask for the next token
        self._ends_at = 0.0
        self._coming: Future[str] | None = None

    def get(self) -> str:
        """Raises NoToken."""
        with self._lock:
            now = time.monotonic()
            token = self._token if now < self._ends_at else None
            if token is not None and now < self._next_at:
                return token
            coming, asks = self._coming, self._coming is None
            if coming is None:
                coming = self._coming = Future()
        if token is None:
            if asks:
                self._ask(coming)
            return coming.result()
        if asks:
            try:
                ask = threading.Thread(target=self._ask, args=(coming,), name="kafkad-token", daemon=True)
                ask.start()
            except RuntimeError:  # the system has no thread left
                self._failed(coming, NoToken("no thread can ask for it"))
        return token

    def _ask(self, coming: "Future[str]") -> None:
        try:
            token = self._fetch()
            lifetime = lifetime_s(token)
        except BaseException as trouble:
            self._failed(coming, trouble)
            return
        with self._lock:
            now = time.monotonic()
            self._token, self._coming = token, None
            self._next_at, self._ends_at = now + USED_FOR * lifetime, now + lifetime
        coming.set_result(token)

    def _failed(self, coming: "Future[str]", trouble: BaseException) -> None:
        with self._lock:
            self._coming = None
            self._next_at = time.monotonic() + AGAIN_S
        coming.set_exception(trouble)


def lifetime_s(token: str) -> float:
    """How long a token is good for; 0 if it does not say so."""
    try:
        expires = section(parse(token).claims).get("exp")
    except BadToken:
        return 0.0
    if isinstance(expires, bool) or not isinstance(expires, int | float):
        return 0.0
    return float(max(min(expires, time.time() + 86_400) - time.time(), 0))


def tokens_of(options: Mapping[str, Any]) -> Tokens:
    """By a client's options; the same options share their tokens. Raises ValueError."""
    about = {name: str(value) for name, value in options.items() if name.startswith("sasl.")}
    return _shared(tuple(sorted(about.items())))


@functools.lru_cache(maxsize=64)
def _shared(about: tuple[tuple[str, str], ...]) -> Tokens:
    return _tokens_of(dict(about))


def _tokens_of(options: Mapping[str, str]) -> Tokens:
    for name, known in ((HANDLER, HANDLERS), (RETRIEVER, RETRIEVERS)):
        if options.get(name) is not None and str(options[name]).strip() not in known:
            raise ValueError(f"{name} {options[name]} is not supported: {', '.join(known)} are")
    for name in options:
        if name.startswith("sasl.oauthbearer.assertion."):
            raise ValueError(f"{name} is not supported: use a client id and a client secret")
    login = _login_options(options)
    url = str(options.get(URL) or "").strip()
    if not url and str(options.get(HANDLER, "")).strip() in HANDLERS[:2]:
        raise ValueError(f"{URL} is missing: the provider issues tokens there")
    prefix = "extension_" if url else f"{UNSECURED}Extension_"
    extensions = {name.removeprefix(prefix): text for name, text in login.items() if name.startswith(prefix)}
    for name, text in extensions.items():
        if name == "auth" or not re.fullmatch(r"[A-Za-z]+=[\x21-\x7e \t\r\n]+", f"{name}={text}"):
            raise ValueError(f"the SASL extension {name} is not valid")
    if not url:
        return Tokens(_unsecured(login), extensions)
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme.lower(), parts.port
    except ValueError as wrong:
        raise ValueError(f"{URL} {_without_password(url)}: {wrong}") from None
    if scheme == "file":
        return Tokens(lambda: _read(unquote(parts.path)), extensions)
    if scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(
            f"{URL} {_without_password(url)} is not supported: it is https://host/path, http://... or"
            " file:///path"
        )
    return Tokens(_credentials(options, login, url), extensions)


def _without_password(url: str) -> str:
    """Return a URL for a message, without what is before the last `@`: it may be a user and a password."""
    _, at, rest = url.rpartition("@")
    return f"[hidden]@{rest}" if at else url


def _login_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Those of sasl.jaas.config. Raises ValueError."""
    text = options.get("sasl.jaas.config")
    if text is None:
        return {}
    try:
        return jaas.parse(str(text)).options
    except ValueError as wrong:
        raise ValueError(f"sasl.jaas.config: {wrong}") from None


# -- a provider --------------------------------------------------------------------------------------------


def _credentials(options: Mapping[str, Any], login: Mapping[str, str], url: str) -> Callable[[], str]:
    """Raises ValueError."""
    client_id, secret = _one(options, login, CLIENT_ID), _one(options, login, SECRET)
    if not client_id or not secret:
        raise ValueError(f"{CLIENT_ID[0]} and {SECRET[0]} are missing: the provider asks for them")
    scope = _one(options, login, SCOPE)
    if str(options.get("sasl.oauthbearer.header.urlencode", "false")).strip().lower() == "true":
        client_id, secret, scope = quote_plus(client_id), quote_plus(secret), quote_plus(scope)
    basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    headers = {
        "Authorization": f"Basic {basic}",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    body = "grant_type=client_credentials" + (f"&scope={scope}" if scope else "")
    times = {
        name: _milliseconds(options, f"sasl.login.{name}.ms", default) / 1000
        for name, default in (
            ("connect.timeout", 20_000),
            ("read.timeout", 20_000),
            ("retry.backoff", 100),
            ("retry.backoff.max", 10_000),
        )
    }
    context: ssl.SSLContext | None = None
    if url.lower().startswith("https:"):
        context = tls_context({name: text for name, text in login.items() if name.startswith("ssl.")})

    def fetch() -> str:
        deadline = time.monotonic() + times["retry.backoff.max"]
        pause = times["retry.backoff"]
        while True:
            try:
                answer = ask(
                    url,
                    context,
                    body=body.encode(),
                    headers=headers,
                    connect_timeout_s=times["connect.timeout"],
                    read_timeout_s=times["read.timeout"],
                )
                if answer.status == 200:
                    return _token_in(url, answer.body)
                reason = f"{url} answers {answer.status}{_reason(answer.body)}"
                if answer.status in FINAL_STATUSES:
                    raise NoToken(reason)
            except Failed as trouble:
                reason = str(trouble)
            if time.monotonic() + pause > deadline:
                raise NoToken(reason)
            time.sleep(pause)
            pause *= 2

    return fetch


def _one(options: Mapping[str, Any], login: Mapping[str, str], names: tuple[str, ...]) -> str:
    """A client's option, or the login module's, which is the last name."""
    for name in names[:-1]:
        if options.get(name) is not None:
            return trimmed(str(options[name]))
    return trimmed(login.get(names[-1], ""))


def _milliseconds(options: Mapping[str, Any], name: str, default: int) -> int:
    text = str(options.get(name, default)).strip()
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(f"{name} is {text!r}: a number of milliseconds is expected")
    return int(text)


def _token_in(url: str, body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise NoToken(f"{url} answers without JSON") from None
    for name in ("access_token", "id_token"):
        token = found.get(name) if isinstance(found, dict) else None
        if isinstance(token, str) and trimmed(token):
            return trimmed(token)
    raise NoToken(f"{url} answers without an access_token")


def _reason(body: bytes) -> str:
    """OAuth's error (RFC 6749, 5.2), if there is one."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict) or not isinstance(found.get("error"), str):
        return ""
    return f": {ascii(found['error'])[1:-1][:100]}"


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as trouble:
        raise NoToken(f"{path}: {getattr(trouble, 'strerror', None) or 'it holds no token'}") from None
    if not token:
        raise NoToken(f"{path}: it holds no token")
    return token


# -- unsecured tokens --------------------------------------------------------------------------------------


def _unsecured(login: Mapping[str, str]) -> Callable[[], str]:
    """Raises ValueError."""
    own = {name.removeprefix(UNSECURED): text for name, text in login.items() if name.startswith(UNSECURED)}
    lifetime = own.get("LifetimeSeconds", "3600")
    if not re.fullmatch("[0-9]{1,10}", lifetime):
        raise ValueError(f"{UNSECURED}LifetimeSeconds is {lifetime!r}: a number of seconds is expected")
    claims: dict[str, Any] = {}
    for name, text in own.items():
        kind, _, claim = name.partition("_")
        if kind not in ("StringClaim", "NumberClaim", "ListClaim") or not claim:
            continue
        if claim in ("iat", "exp"):
            raise ValueError(f"{UNSECURED}{name}: the claim {claim} cannot be set")
        claims[claim] = _claim(kind, f"{UNSECURED}{name}", text)
    principal = trimmed(own.get("PrincipalClaimName", "")) or "sub"
    if not trimmed(str(claims.get(principal, ""))):
        raise ValueError(
            f"OAUTHBEARER needs {URL}, or in sasl.jaas.config {UNSECURED}StringClaim_{principal}, the name of"
            " the user in a token that nobody signs"
        )

    def make() -> str:
        now = int(time.time())  # a fraction may lie ahead of the broker, which counts milliseconds
        return unsecured({"alg": "none"}, {"exp": now + int(lifetime), "iat": now, **claims})

    return make


def _claim(kind: str, name: str, text: str) -> Any:
    if kind == "NumberClaim":
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name} is {text!r}: a number is expected") from None
    if kind == "ListClaim":  # its first character separates the others
        return text[1:].split(text[0]) if len(text) > 1 else []
    return text


# -- the login ---------------------------------------------------------------------------------------------


def oauth_conversation(token: str, extensions: Mapping[str, str]) -> Conversation:
    """OAUTHBEARER (RFC 7628). The client confirms an error of the server, which then refuses the login."""
    pairs = "".join(f"{name}={text}\x01" for name, text in extensions.items())
    error = yield f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
    if error:
        yield b"\x01"
