"""The server's side of OAUTHBEARER: login with a bearer token (RFC 7628, KIP-255, KIP-768).

    client   n,[a=NAME],^A auth=Bearer TOKEN ^A [key=value ^A ...] ^A
    server   nothing, if the client is authenticated; or {"status":"invalid_token"}, and the client answers ^A

There are two validators, as in Kafka. Each returns the token's user and end, or raises BadToken:

    Unsecured   the token has no signature: for tests and development, where clients may claim any name
    Jwks        a key of the provider has signed the token; audience, issuer and times are checked

The broker's log has the reason if a token is refused, and never the token. (OAuthBearerSaslServer,
OAuthBearerClientInitialResponse, OAuthBearerUnsecuredValidatorCallbackHandler, BrokerJwtValidator, jose4j's
JwtConsumer.)"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kafkad.config.definition import trimmed
from kafkad.protocol import strings
from kafkad.security.jwt import BadToken, KeySet, UnknownKey, parse, section, shown
from kafkad.security.mechanisms import Refused, refused_with

OAUTHBEARER: Final = "OAUTHBEARER"
MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LIFETIME_MS_MAX: Final = 100 * 365 * 86_400_000  # of a session
SHOWN: Final = 255  # characters of a name in a message
ABORT: Final = b"\x01"  # the client's answer to an error

_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>[A-Za-z0-9_]+) +(?P<token>[-_~+/.a-zA-Z0-9]++=*)")


class Identity(NamedTuple):
    name: str
    expires_ms: int  # wall clock


Validator = Callable[[str, int], Identity]  # token, wall clock; raises BadToken


class OAuthBearer:
    """`now_ms()`: the wall clock."""

    def __init__(self, validator: Validator, now_ms: Callable[[], int]) -> None:
        self._validator = validator
        self._now_ms = now_ms
        self._challenge = ""  # the error that was sent; `_reason` is for the log
        self._reason = ""
        self.done = False
        self.user = ""
        self.lifetime_ms: int | None = None
        self.by_token = False

    def step(self, token: bytes) -> bytes:
        if self._challenge:
            raise Refused(self._reason, self._challenge)
        authorization_id, bearer = _first_message(token.decode("utf-8", "replace"))
        now_ms = self._now_ms()
        try:
            who = self._validator(bearer, now_ms)
            _check_name(who.name)
        except BadToken as bad:
            self._reason = str(bad)
            status = "invalid_token" if bad.scope is None else "insufficient_scope"
            scope = "" if bad.scope is None else f', "scope":"{bad.scope}"'
            self._challenge = f'{{"status":"{status}"{scope}}}'
            return self._challenge.encode()
        if authorization_id not in ("", who.name):
            raise refused_with(
                f"Authentication failed: Client requested an authorization id ({authorization_id[:SHOWN]})"
                f" that is different from the token's principal name ({who.name[:SHOWN]})"
            )
        self.user = who.name
        self.lifetime_ms = min(max(who.expires_ms - now_ms, 0), LIFETIME_MS_MAX)
        self.done = True
        return b""


def _check_name(name: str) -> None:
    """Raise BadToken for a name that no request, answer or record can have."""
    try:
        fits = strings.fits(f"User:{name}")
    except UnicodeEncodeError:
        raise BadToken("its user name has half of a surrogate pair") from None
    if not fits:
        raise BadToken(f"its principal has more than {strings.BYTES_MAX} bytes")


def _first_message(text: str) -> tuple[str, str]:
    """Return authorization id and token. Raises Refused."""
    first = _FIRST.fullmatch(text)
    if first is None:
        raise Refused("its first OAUTHBEARER message does not parse")
    pairs = dict(pair.split("=", 1) for pair in first["pairs"].split("\x01") if pair)
    if "auth" not in pairs:
        raise Refused("its first OAUTHBEARER message has no auth")
    auth = _AUTH.fullmatch(pairs["auth"])
    if auth is None or auth["scheme"].lower() != "bearer":
        raise Refused("the auth of its first OAUTHBEARER message is no bearer token")
    return first["authzid"] or "", auth["token"]


# -- unsecured tokens --------------------------------------------------------------------------------------


class Unsecured:
    """`options` of the login module, each with the prefix unsecuredValidator: PrincipalClaimName (sub),
    ScopeClaimName (scope), RequiredScope (none), AllowableClockSkewMs (0)."""

    PREFIX: Final = "unsecuredValidator"

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ValueError."""
        self._name_claim = self._option(options, "PrincipalClaimName") or "sub"
        self._scope_claim = self._option(options, "ScopeClaimName") or "scope"
        self._required = [it for it in self._option(options, "RequiredScope").split(" ") if it]
        for scope in self._required:
            if not re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]+", scope):
                raise ValueError(f"{self.PREFIX}RequiredScope: Invalid scope value: {scope}")
        skew = self._option(options, "AllowableClockSkewMs") or "0"
        if not re.fullmatch(r"\+?[0-9]{1,10}", skew):
            raise ValueError(f"{self.PREFIX}AllowableClockSkewMs is {skew}, and no number of milliseconds")
        self._skew_ms = int(skew)

    def _option(self, options: Mapping[str, str], name: str) -> str:
        return trimmed(options.get(self.PREFIX + name, ""))

    def __call__(self, text: str, now_ms: int) -> Identity:
        token = parse(text)
        if token.header.get("alg") != "none":
            raise BadToken(f"its algorithm is {shown(token.header.get('alg'))}: unsecured tokens have none")
        if token.signature:
            raise BadToken("an unsecured token has no signature")
        claims = section(token.claims)
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not trimmed(name):
            raise BadToken(f"the claim {self._name_claim} names nobody")
        issued, expires = _number(claims, "iat"), _number(claims, "exp")
        if expires is None:
            raise BadToken("the claim exp is missing")
        if issued is not None and 1000 * issued > now_ms + self._skew_ms:
            raise BadToken("it is issued in the future")
        if now_ms - self._skew_ms >= 1000 * expires:
            raise BadToken("it has expired")
        if issued is not None and expires <= issued:
            raise BadToken("it expires before it is issued")
        scopes = _scopes(claims.get(self._scope_claim))
        missing = [scope for scope in self._required if scope not in scopes]
        if missing:
            raise BadToken(f"the scope {missing[0]} is missing", f"[{', '.join(self._required)}]")
        return Identity(name, round(expires * 1000))


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"the claim {name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise BadToken(f"the claim {name} is out of range") from None
    if not math.isfinite(number * 1000):
        raise BadToken(f"the claim {name} is out of range")
    return number


def _scopes(value: Any) -> list[str]:
    """Return the scopes. A text is one scope, as in Kafka."""
    if isinstance(value, str):
        return [trimmed(value)]
    return [trimmed(it) for it in value if isinstance(it, str)] if isinstance(value, list) else []


# -- signed tokens -----------------------------------------------------------------------------------------


class Expectations(NamedTuple):
    """The values that a signed token must have."""

    audiences: tuple[str, ...]  # one of them; none: the token must not have an audience at all
    issuer: str | None
    skew_seconds: int
    scope_claim: str
    name_claim: str


class Jwks:
    """`keys()`: the newest key set; None before the first. `unknown(kid)` is called if the set lacks a
    key."""

    def __init__(
        self, expected: Expectations, keys: Callable[[], KeySet | None], unknown: Callable[[str], object]
    ) -> None:
        self._expected = expected
        self._keys = keys
        self._unknown = unknown

    def __call__(self, text: str, now_ms: int) -> Identity:
        keys = self._keys()
        if keys is None:
            raise BadToken("the provider's keys are not there yet")
        try:
            claims = keys.verified(parse(text))
        except UnknownKey as trouble:
            if trouble.kid is not None:
                self._unknown(trouble.kid)
            raise
        expires = self._check_times(claims, now_ms // 1000)
        self._check_origin(claims)
        self._check_scopes(claims.get(self._expected.scope_claim))
        name = claims.get(self._expected.name_claim)
        if not isinstance(name, str) or not trimmed(name):
            raise BadToken(f"the claim {self._expected.name_claim} names nobody")
        return Identity(trimmed(name), expires * 1000)

    def _check_times(self, claims: Mapping[str, Any], now: int) -> int:
        """Check the times, in seconds. Return when the token expires."""
        times = {name: _number(claims, name) for name in ("exp", "iat", "nbf")}
        for name in ("exp", "iat"):
            if times[name] is None:
                raise BadToken(f"the claim {name} is missing")
        expires = int(times["exp"] or 0)
        if now - self._expected.skew_seconds >= expires:
            raise BadToken(f"it has expired ({now - expires} s ago)")
        for name in ("iat", "nbf"):
            begin = times[name]
            if begin is not None and expires < int(begin):
                raise BadToken(f"its exp is before its {name}")
        begin = times["nbf"]
        if begin is not None and now + self._expected.skew_seconds < int(begin):
            raise BadToken("it is not valid yet")
        return expires

    def _check_origin(self, claims: Mapping[str, Any]) -> None:
        issuer, audience = claims.get("iss"), claims.get("aud")
        for name in ("iss", "sub", "jti"):
            if not isinstance(claims.get(name), str | None):
                raise BadToken(f"the claim {name} is not text")
        if self._expected.issuer is not None and issuer != self._expected.issuer:
            raise BadToken(f"its issuer is {shown(issuer)}, not {self._expected.issuer}")
        audiences = [audience] if isinstance(audience, str) else audience
        if audiences is not None and not (
            isinstance(audiences, list) and all(isinstance(it, str) for it in audiences)
        ):
            raise BadToken("the claim aud is neither text nor a list of texts")
        wanted = self._expected.audiences
        if not wanted and audiences is not None:
            raise BadToken("it has an audience, and sasl.oauthbearer.expected.audience names none")
        if wanted and not set(wanted) & set(audiences or ()):
            raise BadToken(f"its audience is {shown(audience)}, not {' or '.join(wanted)}")

    def _check_scopes(self, scopes: Any) -> None:
        found = scopes if isinstance(scopes, list) else [scopes] if isinstance(scopes, str) else []
        known = set()
        for scope in found:
            if not isinstance(scope, str) or not trimmed(scope):
                raise BadToken(f"the claim {self._expected.scope_claim} has an empty scope")
            if trimmed(scope) in known:
                raise BadToken(f"the claim {self._expected.scope_claim} has the same scope twice")
            known.add(trimmed(scope))
