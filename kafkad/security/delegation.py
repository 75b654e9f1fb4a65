"""Delegation tokens (KIP-48): their HMACs, and the SCRAM credentials that a login with one needs.

    HMAC          HmacSHA512(delegation.token.secret.key, token id): the token's password, as base64
    credential    derived from the HMAC, never stored; every broker with the same secret accepts the token

The metadata log holds owner, renewers and times of a token, and never its HMAC. (DelegationTokenManager,
DelegationTokenControlManager.)"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from kafkad.security.mechanisms import (
    ITERATIONS_MIN,
    SCRAM_HASHES,
    SCRAM_TYPES,
    Credential,
    Later,
    TokenLogin,
    credential_from,
)

SECRET: Final = "delegation.token.secret.key"
SALT_BYTES: Final = 16
CREDENTIALS_MAX: Final = 10_000  # cached per worker; deriving one takes milliseconds
A_STEP: Final = 200  # HMACs per step


def hmac_of(secret: str, token_id: str) -> bytes:
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class Principal(NamedTuple):
    kind: str
    name: str

    @classmethod
    def of(cls, text: str) -> "Principal":
        """Parse `User:anna`."""
        kind, _, name = text.partition(":")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def has_expired(token: Any, now_ms: int) -> bool:
    """Whether the token of a DelegationTokenRecord has expired."""
    return bool(token.max_timestamp < now_ms or token.expiration_timestamp < now_ms)


def concerns(token: Any, principal: str) -> bool:
    """Whether a DelegationTokenRecord is about a principal: its owner, requester or a renewer
    (TokenInformation.ownerOrRenewer)."""
    return principal in (token.owner, token.requester) or principal in token.renewers


class Hmacs:
    """Finds a token by its HMAC."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._ids: dict[bytes, str] = {}
        self._known: set[str] = set()

    def find(self, tokens: Mapping[str, Any], wanted: bytes) -> Generator[None, None, Any | None]:
        """Find the DelegationTokenRecord in `tokens`, which are by id, in steps. Return None if there is
        none."""
        token_id = self._ids.get(wanted)
        if token_id is None:
            if len(self._known) > 2 * len(tokens) + A_STEP:
                self._ids.clear()
                self._known.clear()
            for number, new in enumerate([it for it in tokens if it not in self._known], 1):
                self._ids[hmac_of(self._secret, new)] = new
                self._known.add(new)
                if number % A_STEP == 0:
                    yield
            token_id = self._ids.get(wanted)
        return None if token_id is None else tokens.get(token_id)


class TokenLogins:
    """The tokens, for SCRAM. At the first login with a token its credential is derived in a thread
    (mechanisms.Later), because that takes milliseconds. `tokens()`: the records by id; `now_ms()`: wall
    clock; `salt(size)`: random bytes."""

    def __init__(
        self,
        secret: str,
        tokens: Callable[[], Mapping[str, Any]],
        now_ms: Callable[[], int],
        salt: Callable[[int], bytes],
    ) -> None:
        self._secret = secret
        self._tokens = tokens
        self._now_ms = now_ms
        self._salt = salt
        self._credentials: dict[tuple[str, str], Credential] = {}

    def find(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return None if there is no such token, or it has expired. Raises Later."""
        token = self._tokens().get(token_id)
        if token is None or has_expired(token, self._now_ms()):
            self._credentials.pop((mechanism, token_id), None)
            return None
        expires_ms = token.expiration_timestamp
        return TokenLogin(
            self._credential(mechanism, token_id),
            Principal.of(token.owner).name,
            lambda: max(expires_ms - self._now_ms(), 0),
        )

    def _credential(self, mechanism: str, token_id: str) -> Credential:
        found = self._credentials.get((mechanism, token_id))
        if found is None:
            if len(self._credentials) >= CREDENTIALS_MAX:
                self._credentials.clear()
            raise Later(lambda: self._derive(mechanism, token_id))
        return found

    def _derive(self, mechanism: str, token_id: str) -> None:
        """Runs in a thread. If two threads derive the same credential, the first one wins."""
        password, salt = base64.b64encode(hmac_of(self._secret, token_id)), self._salt(SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password, salt, ITERATIONS_MIN)
        found = credential_from(SCRAM_TYPES[mechanism], salt, salted, ITERATIONS_MIN)
        self._credentials.setdefault((mechanism, token_id), found)
