"""JSON Web Tokens: the parts of a token, a provider's keys, and the check of a signature.

    token      header.claims.signature, each base64url; without a signature and alg=none it is "unsecured"
    key set    {"keys": [{"kty": "RSA" | "EC" | "OKP" | "oct", "kid": ..., "use": "sig", ...}]}

The algorithm of a token must belong to the type of the key, so a public key is never used as a secret. An RSA
key must have at least 2048 bits, and a secret as many as the hash. Critical headers, encrypted and nested
tokens are refused. Sizes and depth are bounded, and regular expressions do not backtrack.

The package `cryptography` does the arithmetic; it is imported when a key set is made. (RFC 7515, 7517, 7518,
8037; jose4j's VerificationJwkSelector.)"""

import base64
import hmac
import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

TOKEN_CHARS_MAX: Final = 64 << 10
KEYS_MAX: Final = 1_000  # of a set
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 16384  # larger ones would block the loop
HASHES: Final = {"256": "sha256", "384": "sha384", "512": "sha512"}
CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
COORDINATE_BYTES: Final = {"P-256": 32, "P-384": 48, "P-521": 66}
TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "HS": "oct"}
ALGORITHMS: Final = {
    **{f"{kind}{size}": kty for kind, kty in TYPES.items() for size in HASHES},
    "EdDSA": "OKP",
}
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_SHOWN: Final = 100  # characters of a token's text in a message

Verify = Callable[[str, bytes, bytes], bool]  # algorithm, signed bytes, signature


class BadToken(Exception):
    """The token is refused. The message never contains the token. `scope`: the required scope, if that is
    missing."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


class UnknownKey(BadToken):
    """The key set has no key for the token. `kid`: the token's key id, if it has one."""

    def __init__(self, reason: str, kid: str | None) -> None:
        super().__init__(reason)
        self.kid = kid


class Token(NamedTuple):
    header: dict[str, Any]
    claims: str  # base64url: decoded only after the signature is checked
    signed: bytes
    signature: bytes


def parse(text: str) -> Token:
    """Split a token. Raises BadToken."""
    if len(text) > TOKEN_CHARS_MAX:
        raise BadToken(f"the token has {len(text)} characters, more than {TOKEN_CHARS_MAX}")
    parts = text.split(".")
    if len(parts) != 3:
        raise BadToken(f"the token has {len(parts)} parts, not 3")
    header, claims, signature = parts
    return Token(section(header), claims, f"{header}.{claims}".encode(), decode(signature))


def section(text: str) -> dict[str, Any]:
    """Decode a base64url-encoded JSON object. Raises BadToken."""
    try:
        found = json.loads(decode(text), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadToken("a part of the token is not JSON") from None
    if not isinstance(found, dict):
        raise BadToken("a part of the token is not a JSON object")
    return found


def decode(text: str) -> bytes:
    """Decode base64url, with or without padding. Raises BadToken."""
    bare = text.rstrip("=")
    if not _BASE64URL.fullmatch(bare) or len(bare) % 4 == 1 or len(text) - len(bare) > 2:
        raise BadToken("a part of the token is not base64url")
    return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))


def shown(value: object) -> str:
    """Return a claim for a message: printable and short."""
    return ascii(value)[:_SHOWN]


def _no_constant(name: str) -> Any:
    raise ValueError(name)


class Key(NamedTuple):
    kty: str
    kid: str | None
    use: str | None
    operations: list[str] | None
    algorithm: str | None
    curve: str | None
    verify: Verify

    def fits(self, algorithm: str, kid: str | None) -> bool:
        if self.kty != ALGORITHMS[algorithm] or (kid is not None and self.kid != kid):
            return False
        if self.use not in (None, "sig") or not (self.operations is None or "verify" in self.operations):
            return False
        return self.kty != "EC" or self.curve == CURVES[algorithm]


class KeySet:
    """The keys that a provider publishes. Unusable keys are left out; `left_out` has the reasons."""

    def __init__(self, keys: list[Key], left_out: list[str]) -> None:
        self.keys = keys
        self.left_out = left_out

    @classmethod
    def of(cls, text: bytes) -> "KeySet":
        """Parse a key set. Raises ValueError, and ImportError without the package `cryptography`."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("it is not JSON") from None
        rows = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(rows, list):
            raise ValueError('it is not a JSON Web Key Set: {"keys": [...]}')
        if len(rows) > KEYS_MAX:
            raise ValueError(f"it has {len(rows)} keys, more than {KEYS_MAX}")
        keys, left_out = [], []
        for row in rows:
            try:
                keys.append(_key(row))
            except (ValueError, BadToken) as trouble:
                kid = row.get("kid") if isinstance(row, dict) else None
                left_out.append(f"key {shown(kid)}: {trouble}")
        return cls(keys, left_out)

    def has(self, kid: str) -> bool:
        return any(key.kid == kid for key in self.keys)

    def verified(self, token: Token) -> dict[str, Any]:
        """Return the claims, if one of the keys has signed the token. Raises BadToken."""
        header = token.header
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise BadToken(f"the algorithm {shown(algorithm)} is not accepted")
        if kid is not None and not isinstance(kid, str):
            raise BadToken("the key id is not text")
        for name in ("crit", "enc", "zip", "b64"):
            if name in header:
                raise BadToken(f"the header {name} is not understood")
        if str(header.get("cty", "")).upper() == "JWT":
            raise BadToken("the token holds another token")
        fitting = [key for key in self.keys if key.fits(algorithm, kid)]
        if len(fitting) > 1:
            fitting = [key for key in fitting if key.algorithm in (None, algorithm)]
        if not fitting:
            raise UnknownKey(f"there is no {ALGORITHMS[algorithm]} key with the id {shown(kid)}", kid)
        if not fitting[0].verify(algorithm, token.signed, token.signature):
            raise BadToken(f"the signature is wrong (key {shown(kid)}, {algorithm})")
        return section(token.claims)


def _key(row: Any) -> Key:
    """Parse a key. Raises ValueError, BadToken."""
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    kty = row.get("kty")
    make = {"RSA": _rsa, "EC": _elliptic, "OKP": _edwards, "oct": _secret}.get(str(kty))
    if make is None:
        raise ValueError(f"its type {shown(kty)} is not known")
    operations = row.get("key_ops")
    return Key(
        kty=str(kty),
        kid=_optional(row, "kid"),
        use=_optional(row, "use"),
        operations=[str(it) for it in operations] if isinstance(operations, list) else None,
        algorithm=_optional(row, "alg"),
        curve=_optional(row, "crv"),
        verify=make(row),
    )


def _optional(row: dict[str, Any], name: str) -> str | None:
    return None if row.get(name) is None else str(row[name])


def _bytes(row: dict[str, Any], name: str) -> bytes:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"it has no {name}")
    return decode(value)


def _rsa(row: dict[str, Any]) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    modulus, exponent = (int.from_bytes(_bytes(row, name), "big") for name in ("n", "e"))
    if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX:
        raise ValueError(f"it has {modulus.bit_length()} bits, not {RSA_BITS_MIN} to {RSA_BITS_MAX}")
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    by_name = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        digest = by_name[algorithm[2:]]
        padded: Any = padding.PKCS1v15()
        if algorithm[:2] == "PS":
            padded = padding.PSS(padding.MGF1(digest), digest.digest_size)
        try:
            key.verify(signature, signed, padded, digest)
        except InvalidSignature:
            return False
        return True

    return verify


def _elliptic(row: dict[str, Any]) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    curve = str(row.get("crv"))
    if curve not in COORDINATE_BYTES:
        raise ValueError(f"its curve {shown(curve)} is not known")
    classes: dict[str, Any] = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}
    x, y = (int.from_bytes(_bytes(row, name), "big") for name in ("x", "y"))
    key = ec.EllipticCurvePublicNumbers(x, y, classes[curve]()).public_key()
    digests = {"P-256": hashes.SHA256(), "P-384": hashes.SHA384(), "P-521": hashes.SHA512()}
    ecdsa, size = ec.ECDSA(digests[curve]), COORDINATE_BYTES[curve]

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * size:
            return False
        r, s = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
        try:
            key.verify(utils.encode_dss_signature(r, s), signed, ecdsa)
        except InvalidSignature:
            return False
        return True

    return verify


def _edwards(row: dict[str, Any]) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if row.get("crv") != "Ed25519":
        raise ValueError(f"its curve {shown(row.get('crv'))} is not known")
    key = ed25519.Ed25519PublicKey.from_public_bytes(_bytes(row, "x"))

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return verify


def _secret(row: dict[str, Any]) -> Verify:
    secret = _bytes(row, "k")

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        bits = int(algorithm[2:])
        if len(secret) * 8 < bits:
            return False
        return hmac.compare_digest(hmac.digest(secret, signed, HASHES[algorithm[2:]]), signature)

    return verify


def unsecured(header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Return an unsigned token, for tests and development."""

    def part(value: dict[str, Any]) -> str:
        text = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    return f"{part(header)}.{part(claims)}."
