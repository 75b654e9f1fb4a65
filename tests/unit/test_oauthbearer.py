"""OAUTHBEARER without a socket: tokens, keys, and what is told of those that are not believed."""

import hashlib
import hmac
import json
import random

import pytest

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.protocol import codec, errors, messages
from kafkad.security.jwt import TOKEN_CHARS_MAX, BadToken, KeySet, parse, unsecured
from kafkad.security.listeners import sasl_listeners
from kafkad.security.mechanisms import Refused
from kafkad.security.oauthbearer import MODULE, Expectations, Identity, Jwks, OAuthBearer, Unsecured
from kafkad.security.sasl import Authenticator, Settings, State
from kafkad.server.oauth_keys import OAuthKeys
from tests.oauth_provider import EdwardsKey, EllipticKey, RsaKey, encoded, signed

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000
RSA = RsaKey("first")
KEYS = [
    RSA,
    EllipticKey("second"),
    EllipticKey("third", "ES384"),
    EllipticKey("fourth", "ES512"),
    EdwardsKey("fifth"),
    RsaKey("sixth", "PS256"),
    RsaKey("seventh", "RS512"),
]
SECRET = bytes(range(64))
SET = KeySet.of(
    json.dumps(
        {"keys": [*(key.public() for key in KEYS), {"kty": "oct", "kid": "oct", "k": encoded(SECRET)}]}
    ).encode()
)
EXPECTED = Expectations(("kafka", "other"), "https://issuer.test", 30, "scope", "sub")


def claims(**more):
    found = {"sub": "anna", "iss": "https://issuer.test", "aud": "kafka", "iat": NOW, "exp": NOW + 60} | more
    return {name: value for name, value in found.items() if value is not None}


def jwks(token: str, expected: Expectations = EXPECTED, keys: KeySet | None = SET, missing=None) -> Identity:
    return Jwks(expected, lambda: keys, (missing if missing is not None else []).append)(token, NOW_MS)


# -- signed tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.algorithm)
def test_a_token_of_each_algorithm(key):
    assert jwks(signed(key, claims())) == Identity("anna", (NOW + 60) * 1000)
    other = type(key)(key.kid, key.algorithm) if key.algorithm != "EdDSA" else EdwardsKey(key.kid)
    with pytest.raises(BadToken, match="the signature is wrong"):
        jwks(signed(other, claims()))


def test_every_flipped_bit_of_a_token_is_noticed():
    token = signed(RSA, claims())
    seed = random.Random(7)
    for _ in range(300):
        at = seed.randrange(len(token))
        letter = seed.choice("ABCxyz019-_.=")
        if token[at] == letter:
            continue
        lie = token[:at] + letter + token[at + 1 :]
        try:
            found = jwks(lie)
        except BadToken:
            continue
        assert parse(lie).signature == parse(token).signature and found.name == "anna"  # unused last bits


def secret_token(secret: bytes, algorithm: str = "HS256", kid: str = "oct") -> str:
    text = f"{encoded({'alg': algorithm, 'kid': kid})}.{encoded(claims())}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha' + algorithm[2:]))}"


def test_a_public_key_is_no_secret():
    """The classic attack: HS256, keyed with what everybody may read."""
    assert jwks(secret_token(SECRET)).name == "anna"
    public = json.dumps(RSA.public()).encode()
    for secret in (public, hashlib.sha256(public).digest()):
        with pytest.raises(BadToken, match="there is no oct key"):
            jwks(secret_token(secret, kid="first"))


TOKENS_THAT_LIE = {
    "unsigned": (lambda: unsecured({"alg": "none"}, claims()), "the algorithm 'none' is not accepted"),
    "unsigned, in capitals": (lambda: unsecured({"alg": "NONE"}, claims()), "is not accepted"),
    "no algorithm": (lambda: signed(RSA, claims(), alg=None), "the algorithm None is not accepted"),
    "an algorithm that is a list": (lambda: signed(RSA, claims(), alg=["RS256"]), "is not accepted"),
    "another key's type": (lambda: signed(RSA, claims(), alg="ES256"), "there is no EC key"),
    "an unknown key": (lambda: signed(RSA, claims(), kid="gone"), "no RSA key with the id 'gone'"),
    "a key id that is no text": (lambda: signed(RSA, claims(), kid=1), "the key id is not text"),
    "a critical header": (lambda: signed(RSA, claims(), crit=["exp"]), "crit is not understood"),
    "an unencoded payload": (lambda: signed(RSA, claims(), b64=False), "b64 is not understood"),
    "nested": (lambda: signed(RSA, claims(), cty="jwt"), "holds another token"),
    "encrypted": (lambda: "a.b.c.d.e", "5 parts"),
    "no token": (lambda: "x", "1 parts"),
    "huge": (lambda: "x" * (TOKEN_CHARS_MAX + 1), "more than"),
    "deep": (lambda: f"{encoded(b'[' * 40_000)}.e30.e30", "not JSON"),
    "a header that is no object": (lambda: f"{encoded(b'[]')}.e30.e30", "not a JSON object"),
    "claims that are no JSON": (lambda: signed_bytes(b"x"), "not JSON"),
    "claims that are NaN": (lambda: signed_bytes(b'{"exp":NaN}'), "not JSON"),
    "no base64": (lambda: "e30.e30.?", "not base64url"),
    "expired": (lambda: signed(RSA, claims(iat=NOW - 99, exp=NOW - 30)), "it has expired"),
    "no expiry": (lambda: signed(RSA, claims(exp=None)), "the claim exp is missing"),
    "an expiry that is text": (lambda: signed(RSA, claims(exp="9" * 10)), "exp is not a number"),
    "an expiry that is true": (lambda: signed(RSA, claims(exp=True)), "exp is not a number"),
    "an expiry beyond numbers": (lambda: signed(RSA, claims(exp=10**400)), "out of range"),
    "an infinite expiry": (lambda: signed_bytes(b'{"exp":1e999,"iat":1}'), "out of range"),
    "not issued": (lambda: signed(RSA, claims(iat=None)), "the claim iat is missing"),
    "issued after its end": (lambda: signed(RSA, claims(iat=NOW + 61)), "exp is before its iat"),
    "not valid yet": (lambda: signed(RSA, claims(nbf=NOW + 31)), "not valid yet"),
    "another audience": (lambda: signed(RSA, claims(aud="web")), "its audience is 'web', not kafka or other"),
    "other audiences": (lambda: signed(RSA, claims(aud=["a", "b"])), "its audience is"),
    "no audience": (lambda: signed(RSA, claims(aud=None)), "its audience is None"),
    "an audience that is a number": (lambda: signed(RSA, claims(aud=1)), "neither text nor a list"),
    "another issuer": (lambda: signed(RSA, claims(iss="https://evil.test")), "its issuer is"),
    "no issuer": (lambda: signed(RSA, claims(iss=None)), "its issuer is None"),
    "nobody": (lambda: signed(RSA, claims(sub=None)), "the claim sub names nobody"),
    "blank": (lambda: signed(RSA, claims(sub=" ")), "the claim sub names nobody"),
    "a number": (lambda: signed(RSA, claims(sub=7)), "the claim sub is not text"),
    "a scope twice": (lambda: signed(RSA, claims(scope=["a", "a"])), "the same scope twice"),
    "an empty scope": (lambda: signed(RSA, claims(scope="")), "empty scope"),
}


def signed_bytes(text: bytes) -> str:
    whole = f"{encoded({'alg': 'RS256', 'kid': 'first'})}.{encoded(text)}"
    return f"{whole}.{encoded(RSA.sign(whole.encode()))}"


@pytest.mark.parametrize("name", TOKENS_THAT_LIE)
def test_a_token_that_lies_is_refused_and_not_repeated(name):
    make, reason = TOKENS_THAT_LIE[name]
    token = make()
    with pytest.raises(BadToken, match=reason) as caught:
        jwks(token)
    assert len(str(caught.value)) < 300
    assert len(token) < 20 or token not in str(caught.value)


def test_what_a_token_may_also_be():
    assert jwks(signed(RSA, claims(aud=["web", "other"]))).name == "anna"
    assert jwks(signed(RSA, claims(exp=NOW - 29, iat=NOW - 40))).expires_ms == (NOW - 29) * 1000
    assert jwks(signed(RSA, claims(nbf=NOW + 30))).name == "anna"
    assert jwks(signed(RSA, claims(sub=" anna\0"))).name == "anna"
    assert jwks(signed(RSA, claims(sub="anna\xa0"))).name == "anna\xa0", "somebody else"
    assert jwks(signed(RSA, claims(), kid=None)).name == "anna", "the first key of its type"
    assert jwks(signed(RSA, claims(sub="a:b/c\n", exp=NOW + 0.9e9))).name == "a:b/c"
    nobody = EXPECTED._replace(audiences=(), issuer=None)
    assert jwks(signed(RSA, claims(aud=None, iss=None)), nobody).name == "anna"
    with pytest.raises(BadToken, match="names none"):
        jwks(signed(RSA, claims()), nobody)
    by_id = EXPECTED._replace(name_claim="client_id")
    assert jwks(signed(RSA, claims(client_id="app")), by_id).name == "app"


def test_an_unknown_key_is_told_of_and_no_keys_is_not():
    asked: list[str] = []
    with pytest.raises(BadToken):
        jwks(signed(RSA, claims(), kid="next"), missing=asked)
    with pytest.raises(BadToken, match="not there yet"):
        jwks(signed(RSA, claims()), keys=None, missing=asked)
    assert asked == ["next"]


def test_keys_that_are_of_no_use_are_left_out():
    short = RsaKey("short", bits=1024).public()
    rows = [
        short,
        {"kty": "?", "kid": "odd"},
        {"kty": "RSA", "kid": "bare"},
        7,
        {**RSA.public(), "use": "enc"},
    ]
    rows += [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off the curve"}]
    found = KeySet.of(json.dumps({"keys": rows}).encode())
    assert len(found.keys) == 1 and len(found.left_out) == 5
    with pytest.raises(BadToken, match="there is no RSA key"):
        found.verified(parse(signed(RSA, claims())))
    for text in (b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":' + b"[" * 100_000, b"\xff"):
        with pytest.raises(ValueError):
            KeySet.of(text)


# -- unsecured tokens --------------------------------------------------------------------------------------


def test_an_unsecured_token():
    token = unsecured({"alg": "none"}, {"sub": "anna", "exp": NOW + 1.5, "iat": NOW - 1.5})
    assert Unsecured({})(token, NOW_MS) == Identity("anna", NOW_MS + 1500)
    named = Unsecured({"unsecuredValidatorPrincipalClaimName": " name "})
    assert named(unsecured({"alg": "none"}, {"name": "b", "exp": NOW + 1}), NOW_MS).name == "b"


@pytest.mark.parametrize(
    ("header", "more", "reason"),
    [
        ({"alg": "RS256"}, {}, "its algorithm is 'RS256'"),
        ({}, {}, "its algorithm is None"),
        ({"alg": "none"}, {"sub": None}, "names nobody"),
        ({"alg": "none"}, {"sub": " "}, "names nobody"),
        ({"alg": "none"}, {"exp": None}, "exp is missing"),
        ({"alg": "none"}, {"exp": NOW}, "it has expired"),
        ({"alg": "none"}, {"exp": "1"}, "not a number"),
        ({"alg": "none"}, {"iat": NOW + 1}, "issued in the future"),
        ({"alg": "none"}, {"iat": []}, "not a number"),
    ],
)
def test_an_unsecured_token_that_lies(header, more, reason):
    body = {"sub": "anna", "exp": NOW + 1} | more
    with pytest.raises(BadToken, match=reason):
        Unsecured({})(unsecured(header, {k: v for k, v in body.items() if v is not None}), NOW_MS)


def test_a_scope_that_is_required():
    wants = Unsecured({"unsecuredValidatorRequiredScope": "read write"})
    good = unsecured({"alg": "none"}, {"sub": "a", "exp": NOW + 1, "scope": ["write", "read"]})
    assert wants(good, NOW_MS).name == "a"
    mechanism = OAuthBearer(wants, lambda: NOW_MS)
    bad = unsecured({"alg": "none"}, {"sub": "a", "exp": NOW + 1, "scope": "read"})
    assert mechanism.step(first(bad)) == b'{"status":"insufficient_scope", "scope":"[read, write]"}'


# -- the mechanism -----------------------------------------------------------------------------------------


def first(token: str, authzid: str = "", extensions: str = "") -> bytes:
    named = f"a={authzid}" if authzid else ""
    return f"n,{named},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


TOKEN = unsecured({"alg": "none"}, {"sub": "anna", "exp": NOW + 60})


def test_a_client_that_is_let_in():
    for message in (first(TOKEN), first(TOKEN, "anna"), first(TOKEN, extensions="a=b\x01c=d e\x01")):
        mechanism = OAuthBearer(Unsecured({}), lambda: NOW_MS)
        assert mechanism.step(message) == b""
        assert (mechanism.done, mechanism.user, mechanism.lifetime_ms) == (True, "anna", 60_000)


def test_a_client_that_is_refused_is_told_by_a_challenge():
    for answer in (b"\x01", first(TOKEN), b""):
        mechanism = OAuthBearer(Unsecured({}), lambda: NOW_MS + 60_000)
        assert mechanism.step(first(TOKEN)) == b'{"status":"invalid_token"}'
        assert not mechanism.done
        with pytest.raises(Refused) as caught:
            mechanism.step(answer)
        assert caught.value.shown == '{"status":"invalid_token"}' and str(caught.value) == "it has expired"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01auth=x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,a=,\x01auth=Bearer x\x01\x01",
        b"n,,\x01au1th=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,a=" + b"=2C" * 100_000,
        b"n,,\x01" + b"a=b\x01" * 100_000,
    ],
)
def test_a_message_that_is_none(message):
    with pytest.raises(Refused) as caught:
        OAuthBearer(Unsecured({}), lambda: NOW_MS).step(message)
    assert caught.value.shown is None


def test_nobody_is_somebody_else():
    with pytest.raises(Refused, match=r"authorization id \(bert\) that is different from the token's princ"):
        OAuthBearer(Unsecured({}), lambda: NOW_MS).step(first(TOKEN, "bert"))


def authenticated(message: bytes) -> tuple[Authenticator, messages.SaslAuthenticateResponse, str | None]:
    of = Authenticator(Settings({"OAUTHBEARER": lambda: OAuthBearer(Unsecured({}), lambda: NOW_MS)}, {}))
    of.frame(codec.encode_request(messages.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1, 1, "c"))
    answer = of.frame(codec.encode_request(messages.SaslAuthenticateRequest(auth_bytes=message), 2, 2, "c"))
    return of, codec.decode_response(messages.SaslAuthenticateResponse, 2, answer.response)[1], answer.failed


@pytest.mark.parametrize("name", ["a" * 32_763, "\ud800", "\udcff", "ä" * 16_382])
@pytest.mark.parametrize("authzid", ["", "bert"])
def test_a_user_name_that_no_answer_can_have_is_refused(name, authzid):
    token = unsecured({"alg": "none"}, {"sub": name, "exp": NOW + 60})
    of, response, _ = authenticated(first(token, authzid))
    assert response.auth_bytes == b'{"status":"invalid_token"}'
    assert of.state is not State.COMPLETE


def test_the_longest_user_name():
    token = unsecured({"alg": "none"}, {"sub": "a" * 32_762, "exp": NOW + 60})
    of, response, _ = authenticated(first(token))
    assert response.error_code == 0 and of.principal == "User:" + "a" * 32_762


def test_a_long_authorization_id_is_refused_with_a_short_message():
    _, response, failed = authenticated(first(TOKEN, "b" * 100_000))
    assert response.error_code == errors.SASL_AUTHENTICATION_FAILED
    assert len(response.error_message) < 1_000 and failed is not None and len(failed) < 1_100


@pytest.mark.parametrize(("reauth_ms", "session_ms"), [(0, 60_000), (5_000, 5_000), (90_000, 60_000)])
def test_a_session_ends_with_the_token(reauth_ms, session_ms):
    made = lambda: OAuthBearer(Unsecured({}), lambda: NOW_MS)  # noqa: E731
    of = Authenticator(Settings({"OAUTHBEARER": made}, {"OAUTHBEARER": reauth_ms}))
    of._name, of._mechanism = "OAUTHBEARER", made()
    of._step(first(TOKEN))
    assert (of.principal, of.session_ms) == ("User:anna", session_ms)


def test_a_token_within_the_skew_gives_a_session_that_is_over():
    late = Unsecured({"unsecuredValidatorAllowableClockSkewMs": "90000"})
    of = OAuthBearer(late, lambda: NOW_MS + 61_000)
    of.step(first(TOKEN))
    assert of.lifetime_ms == 0


# -- configuration -----------------------------------------------------------------------------------------

PREFIX = "listener.name.sasl_plaintext.oauthbearer."
BASE = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    f"{PREFIX}sasl.jaas.config": f"{MODULE} required ssl.truststore.type=PEM x=y;",
}
HANDLER = f"{PREFIX}sasl.server.callback.handler.class"
SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
URL = "sasl.oauthbearer.jwks.endpoint.url"


def tokens_of(**more):
    return sasl_listeners(BrokerConfig(BASE | more))["SASL_PLAINTEXT"].tokens


def test_signed_tokens_by_the_keys_of_kafka():
    found = tokens_of(
        **{
            HANDLER: SIGNED,
            URL: "https://a.test/keys",
            "sasl.oauthbearer.expected.audience": "a,b",
            "listener.name.sasl_plaintext.sasl.oauthbearer.expected.issuer": "i",
            f"{PREFIX}sasl.oauthbearer.clock.skew.seconds": "7",
            f"{PREFIX}sasl.oauthbearer.sub.claim.name": "client_id",
        }
    )
    assert found.expected == Expectations(("a", "b"), "i", 7, "scope", "client_id")
    assert found.keys.url == "https://a.test/keys" and found.keys.tls == {"ssl.truststore.type": "PEM"}
    assert isinstance(tokens_of(), Unsecured)


def test_an_issuer_keeps_what_java_does_not_trim():
    """An issuer of U+00A0 alone turned the check off."""
    given = {HANDLER: SIGNED, URL: "https://a.test/keys"}
    for issuer, expected in (("\xa0", "\xa0"), (" i\xa0", "i\xa0"), (" ", None)):
        found = tokens_of(**given, **{"sasl.oauthbearer.expected.issuer": issuer})
        assert found.expected.issuer == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({HANDLER: SIGNED}, f"Missing configuration {URL}"),
        ({URL: "https://a.test"}, f"no token would be checked by it; set {HANDLER}={SIGNED}"),
        ({HANDLER: SIGNED, URL: "ftp://a.test"}, "it must begin with https://, http:// or file://"),
        ({HANDLER: SIGNED, URL: "https:///keys"}, "it names no host"),
        ({HANDLER: SIGNED, URL: "https://a:hush@a.test"}, "[hidden]"),
        ({HANDLER: SIGNED, URL: "https://a.test:x/"}, f"for configuration {URL}"),
        ({HANDLER: "x.Y"}, "cannot load Java classes"),
        ({HANDLER: "\xa0"}, "cannot load Java classes"),
        ({f"{PREFIX}sasl.jaas.config": "x.Y required;"}, "the login module is x.Y"),
        (
            {f"{PREFIX}sasl.jaas.config": f"{MODULE} required unsecuredValidatorAllowableClockSkewMs=x;"},
            "no number of milliseconds",
        ),
        ({f"{PREFIX}sasl.jaas.config": None}, f"Missing configuration {PREFIX}sasl.jaas.config"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(more, message):
    given = {name: text for name, text in (BASE | more).items() if text is not None}
    with pytest.raises(ConfigError) as caught:
        sasl_listeners(BrokerConfig(given))
    assert message in str(caught.value) and "hush" not in str(caught.value)


# -- the keys are kept fresh -------------------------------------------------------------------------------


class Later:
    """A scheduler that a test drives; threads' answers come when it says."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, object]] = []
        self.soon: list[object] = []

    def call_later(self, delay_ms, function):
        entry = (delay_ms, function)
        self.armed.append(entry)

        class Handle:
            def cancel(handle) -> None:
                if entry in self.armed:
                    self.armed.remove(entry)

        return Handle()

    def call_soon_threadsafe(self, function) -> None:
        self.soon.append(function)

    def run_next(self, clock) -> float:
        [(delay_ms, function)] = self.armed
        self.armed.clear()
        clock.advance(int(delay_ms))
        function()
        return delay_ms


def kept(tmp_path, monkeypatch, answers):
    """(keys, scheduler, clock, how often it fetched). `answers` in turn; the threads run at once."""
    source = tokens_of(**{HANDLER: SIGNED, URL: "https://a.test/keys"}).keys
    later, clock, asked = Later(), ManualClock(NOW_MS, 1_000), []
    keys = OAuthKeys(source, later, clock)

    def read():
        asked.append(clock.monotonic_ms())
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    keys._read = read

    class Thread:
        def __init__(self, target, **_) -> None:
            self.target = target

        def start(self) -> None:
            self.target()
            later.soon.pop()()

    monkeypatch.setattr("kafkad.server.oauth_keys.threading.Thread", Thread)
    return keys, later, clock, asked


def test_keys_are_fetched_again_and_a_failure_keeps_the_old_ones(tmp_path, monkeypatch):
    trouble = OSError("no")
    keys, later, clock, asked = kept(tmp_path, monkeypatch, [SET, trouble, trouble, trouble, SET])
    keys.begin(required=True)
    assert keys.current is SET
    delays = []
    for _ in range(4):
        delays.append(later.run_next(clock))
        assert keys.current is SET
    assert delays == [3_600_000, 100, 200, 400], "the period, then Kafka's backoff"
    assert later.armed[0][0] == 3_600_000 and len(asked) == 5


def test_a_worker_that_was_restarted_begins_without_keys(tmp_path, monkeypatch):
    keys, later, clock, _ = kept(tmp_path, monkeypatch, [OSError("no"), OSError("no"), SET])
    keys.begin(required=False)
    assert keys.current is None
    assert [later.run_next(clock), later.run_next(clock)] == [100, 200]
    assert keys.current is SET


def test_a_flood_of_unknown_keys_causes_few_fetches(tmp_path, monkeypatch):
    keys, _, clock, asked = kept(tmp_path, monkeypatch, [SET] * 100)
    keys.begin(required=True)
    for number in range(5_000):
        keys.missing(f"k{number}")
        clock.advance(1)
    assert len(asked) <= 1 + 5
    keys.missing("x" * 2_000)
    clock.advance(2_000)
    keys.missing("again")
    clock.advance(2_000)
    before = len(asked)
    keys.missing("again")
    assert len(asked) == before, "an id is asked for once a minute"
    assert len(keys._missing) <= 16


def test_without_keys_a_start_ends(tmp_path, monkeypatch):
    keys, _, _, _ = kept(tmp_path, monkeypatch, [OSError("no such server")])
    with pytest.raises(
        ConfigError, match=rf"https://a.test/keys for configuration {URL}: the keys cannot be"
    ):
        keys.begin(required=True)


def test_a_file_of_keys_is_looked_at(tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(json.dumps({"keys": [RSA.public()]}).encode())
    source = tokens_of(**{HANDLER: SIGNED, URL: f"file://{path}"}).keys
    keys = OAuthKeys(source, Later(), ManualClock())
    keys.begin(required=True)
    assert keys.current.has("first") and keys._read() is None
    path.write_bytes(json.dumps({"keys": [KEYS[1].public(), KEYS[2].public()]}).encode())
    assert keys._read().has("second")
    path.unlink()
    with pytest.raises(OSError):
        keys._read()
