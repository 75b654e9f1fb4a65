"""The client's side of SASL: generators that yield messages, and get the answers by `send`.

    login                 SaslHandshake v1, then the mechanism's messages in SaslAuthenticate (KIP-152)
    plain_conversation    RFC 4616
    scram_conversation    RFC 5802 with Kafka's two hashes

A server that does not prove that it knows the password is refused. The callers do the I/O: kafkad's own
client (client/connection) and the connections between nodes (server/node_links). Sources:
SaslClientAuthenticator, ScramSaslClient, KIP-84."""

import base64
import os
from collections.abc import Callable, Generator
from typing import Any, Final

from kafkad.protocol import messages

Conversation = Generator[bytes, bytes, None]

SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4096  # RFC 7677; with fewer, a hostile server could guess the password
ITERATIONS_MAX: Final = 10_000_000
SESSION_USED: Final = 0.85  # of a session's lifetime, until the client logs in again; Java: 85 to 95%
RENEW_PAUSE_S: Final = 1.1  # a broker accepts at most one new login per second


class AuthenticationFailed(Exception):
    """The broker refuses our login, or the broker itself is not authentic. Retrying does not help."""


def login(
    mechanism: str, conversation: Conversation, address: str, who: str
) -> Generator[Any, Any, float | None]:
    """Yield the requests of a login to the broker on `address`; `send` gets the responses. `who` is for
    messages. Return the seconds until the next login; None: never (KIP-368). Raise AuthenticationFailed."""
    handshake = yield messages.SaslHandshakeRequest(mechanism=mechanism)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationFailed(f"the broker on {address} does not support {mechanism}, only {offered}")
    said = next(conversation)
    while True:
        answer = yield messages.SaslAuthenticateRequest(auth_bytes=said)
        if answer.error_code:
            raise AuthenticationFailed(f"the broker on {address} refused {who}: {answer.error_message}")
        try:
            said = conversation.send(answer.auth_bytes)
        except StopIteration:
            if answer.session_lifetime_ms > 0:
                return max(answer.session_lifetime_ms / 1000 * SESSION_USED, RENEW_PAUSE_S)
            return None


def plain_conversation(username: str, password: str) -> Conversation:
    """Log in by PLAIN (RFC 4616)."""
    yield f"\0{username}\0{password}".encode()


def scram_conversation(
    hash_name: str,
    username: str,
    password: str,
    nonce: Callable[[], str] | None = None,
    *,
    delegated: bool = False,
) -> Conversation:
    """Log in by SCRAM (RFC 5802) without channel binding, as in Kafka; if `delegated`, with a delegation
    token."""
    import hashlib
    import hmac

    own = nonce() if nonce else base64.b64encode(os.urandom(24)).decode()
    name = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={own}" + (",tokenauth=true" if delegated else "")
    server_first = (yield b"n,," + first_bare.encode()).decode("utf-8", "replace")
    attributes = _attributes(server_first)
    try:
        salt, rounds, both = (
            base64.b64decode(attributes["s"], validate=True),
            int(attributes["i"]),
            attributes["r"],
        )
    except (KeyError, ValueError):
        raise AuthenticationFailed("the broker's SCRAM challenge cannot be read")
    if not both.startswith(own) or both == own:
        raise AuthenticationFailed("the broker's SCRAM challenge is not an answer to ours")
    if not ITERATIONS_MIN <= rounds <= ITERATIONS_MAX:
        raise AuthenticationFailed(f"the broker wants {rounds} SCRAM iterations: at least {ITERATIONS_MIN}")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    last_bare = f"c=biws,r={both}"
    signed = f"{first_bare},{server_first},{last_bare}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_last = (yield f"{last_bare},p={base64.b64encode(proof).decode()}".encode()).decode(
        "utf-8", "replace"
    )
    attributes = _attributes(server_last)
    if "e" in attributes:
        raise AuthenticationFailed(f"the broker refuses: {attributes['e']}")
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = base64.b64encode(hmac.digest(server_key, signed, hash_name)).decode()
    if not hmac.compare_digest(attributes.get("v", ""), expected):
        raise AuthenticationFailed("the broker does not prove that it knows the password")


def _attributes(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
