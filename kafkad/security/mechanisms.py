"""The server's side of SASL mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. OAUTHBEARER is in
security/oauthbearer, GSSAPI in security/kerberos.

A mechanism has `step(token)`, which returns the answer. `done` and `user` are its result. `Refused.shown` is
the reason that the client gets. If it is None, the client gets a message that names only the mechanism,
because more could reveal whether a user exists.

Sources: PlainSaslServer, PlainServerCallbackHandler, ScramSaslServer, ScramMessages, ScramFormatter (RFC
4616, 5802, 7677; KIP-43, KIP-84)."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SCRAM_TYPES: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}  # in requests and records
MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER", "GSSAPI")
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

# Kafka's formats, ASCII only. Possessive quantifiers: no backtracking over a client's input.
_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"
_VALUE = r"[\x01-\x2b\x2d-\x7f]++"
_NONCE = r"[\x21-\x2b\x2d-\x7e]++"
_BASE64 = r"(?:[A-Za-z0-9/+]{4})*+(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_CLIENT_FIRST: Final = re.compile(
    f"n,(?:a=(?P<authzid>{_NAME}))?,(?:m={_VALUE},)?"
    f"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>(?:,[A-Za-z]++={_VALUE})*+))"
)
_CLIENT_FINAL: Final = re.compile(
    f"(?P<bare>c={_BASE64},r=(?P<nonce>{_NONCE}))(?:,(?!p=)[A-Za-z]++={_VALUE})*+,p=(?P<proof>{_BASE64})"
)


class Refused(Exception):
    """The client is refused. `shown`: the reason that the client gets; None: no reason."""

    def __init__(self, reason: str, shown: str | None = None) -> None:
        super().__init__(reason)
        self.shown = shown


class Later(Exception):
    """The step takes too long for the loop: run `work` in a thread, then repeat the same step."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__("run the work first")
        self.work = work


class Credential(NamedTuple):
    """The stored form of a SCRAM password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class TokenLogin(NamedTuple):
    """The data for a login with a delegation token."""

    credential: Credential
    owner: str
    remaining_ms: Callable[[], int]  # until the token expires


class Mechanism(Protocol):
    done: bool
    user: str
    lifetime_ms: int | None  # how long the login is valid, once `done`; None: for ever
    by_token: bool  # the login used a delegation token

    def step(self, token: bytes) -> bytes:
        """Return the answer. Raises Refused, and Later."""


class Plain:
    """One message: authorization id, user and password, separated by NUL. `passwords`: by user."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.done = False
        self.user = ""
        self.lifetime_ms: int | None = None
        self.by_token = False

    def step(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise refused_with(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise refused_with("Authentication failed: username not specified")
        if not password:
            raise refused_with("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        if expected is None or not hmac.compare_digest(expected.encode(), password.encode()):
            raise refused_with("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise refused_with(DIFFERENT_USER)
        self.user = user
        self.done = True
        return b""


class Scram:
    """Two messages. `credential_of(user)` and `token_of(token id)`, for delegation tokens, return None for
    unknown ones. `nonce()` returns new random text without commas."""

    def __init__(
        self,
        name: str,
        credential_of: Callable[[str], Credential | None],
        nonce: Callable[[], str],
        token_of: Callable[[str], TokenLogin | None] = lambda token_id: None,
    ) -> None:
        self._hash = SCRAM_HASHES[name]
        self._credential_of = credential_of
        self._token_of = token_of
        self._token: TokenLogin | None = None
        self._fresh = nonce
        self._credential: Credential | None = None
        self._said = ""  # client's first message bare, a comma, our first message
        self._nonce = ""
        self.done = False
        self.user = ""
        self.lifetime_ms: int | None = None
        self.by_token = False

    def step(self, token: bytes) -> bytes:
        text = token.decode("utf-8", "replace")
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        first = _CLIENT_FIRST.fullmatch(text)
        if first is None:
            raise Refused("its first SCRAM message does not parse")
        user = _name(first["name"])
        extensions = dict(pair.split("=", 1) for pair in first["extensions"].split(",") if pair)
        credential: Credential | None
        if extensions.get("tokenauth", "").lower() == "true":
            self._token = self._token_of(user)
            if self._token is None:
                raise Refused(f"the delegation token {user} is unknown or has expired")
            credential = self._token.credential
            self.by_token = True
        else:
            credential = self._credential_of(user)
        if credential is None:
            raise Refused(f"user {user} has no {self._hash} credential")
        if _name(first["authzid"] or "") not in ("", user):
            raise refused_with(DIFFERENT_USER)
        if credential.iterations < ITERATIONS_MIN:
            raise Refused(f"the credential of {user} has {credential.iterations} iterations, too few")
        self.user = user
        self._credential = credential
        self._nonce = first["nonce"] + self._fresh()
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._said = f"{first['bare']},{answer}"
        return answer.encode()

    def _final(self, text: str, credential: Credential) -> bytes:
        final = _CLIENT_FINAL.fullmatch(text)
        if final is None:
            raise Refused("its last SCRAM message does not parse")
        if not hmac.compare_digest(final["nonce"].encode(), self._nonce.encode()):
            raise Refused("its last SCRAM message has another nonce")
        signed = f"{self._said},{final['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = base64.b64decode(final["proof"])
        if len(proof) != len(signature):
            raise Refused("its SCRAM proof has another length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key):
            raise Refused(f"the {'HMAC of token' if self.by_token else 'password of'} {self.user} is wrong")
        if self._token is not None:
            self.user = self._token.owner
            self.lifetime_ms = self._token.remaining_ms()
        self.done = True
        verifier = hmac.digest(credential.server_key, signed, self._hash)
        return b"v=" + base64.b64encode(verifier)


DIFFERENT_USER: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def refused_with(reason: str) -> Refused:
    return Refused(reason, reason)


def credential_from(mechanism: int, salt: bytes, salted_password: bytes, iterations: int) -> Credential:
    """Return the stored form of a salted password (ScramFormatter.storedKey, serverKey). `mechanism`: one of
    SCRAM_TYPES."""
    (name,) = (name for name, number in SCRAM_TYPES.items() if number == mechanism)
    client_key = hmac.digest(salted_password, b"Client Key", SCRAM_HASHES[name])
    return Credential(
        salt,
        hashlib.new(SCRAM_HASHES[name], client_key).digest(),
        hmac.digest(salted_password, b"Server Key", SCRAM_HASHES[name]),
        iterations,
    )


def _name(saslname: str) -> str:
    return saslname.replace("=2C", ",").replace("=3D", "=")
