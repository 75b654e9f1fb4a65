"""The server's half of SASL without a socket: JAAS strings, mechanisms, and what is said before and after."""

import hashlib
import random
import re

import pytest

from kafkad.client.security import AuthenticationFailed, plain_conversation, scram_conversation
from kafkad.protocol import codec, errors, messages
from kafkad.security import jaas
from kafkad.security.mechanisms import (
    SCRAM_HASHES,
    SCRAM_TYPES,
    Plain,
    Refused,
    Scram,
    credential_from,
)
from kafkad.security.sasl import Answer, Authenticator, Settings, State

PASSWORDS = {"alice": "alice-secret", "bob,=": "x=y,z"}
ROUNDS = 4096


# -- JAAS --------------------------------------------------------------------------------------------------

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{MODULE} required;", {}),
        (f"{MODULE} REQUIRED a=b ;", {"a": "b"}),
        (
            f'{MODULE} required user_al-ice="se cret" user_$b=\'q"q\';',
            {"user_al-ice": "se cret", "user_$b": 'q"q'},
        ),
        (f'{MODULE} required a="t\\tn\\nq\\"o\\101x\\u";', {"a": 't\tn\nq"oAxu'}),
        (f'{MODULE}  /* a comment */ required // another\n a="/* none */";', {"a": "/* none */"}),
        (f"{MODULE} required a=b1.2-3;", {"a": "b1.2-3"}),
        (f'{MODULE} required a="é\u4e2d" é=x;', {"a": "é\u4e2d", "é": "x"}),
        (f'{MODULE} required a="1" a="2";', {"a": "2"}),
        (f'{MODULE} required\n\ta="\\400";', {"a": " 0"}),
    ],
)
def test_a_jaas_string(text, options):
    assert jaas.parse(text) == (MODULE, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Login module not specified"),
        ("// nothing", "Login module not specified"),
        ("a.B", "control flag not specified"),
        ("a.B needed;", "Invalid login module control flag 'needed'"),
        ("a.B =;", "control flag is not available"),
        ("a.B required", "not terminated by semi-colon"),
        ("a.B required a;", "Value not specified for key 'a'"),
        ("a.B required a=;", "Value not specified for key 'a'"),
        ("a.B required a=5secret;", "Value not specified for key 'a'"),
        ("a.B required a=-1;", "Value not specified for key 'a'"),
        ("a.B required a=-secret;", "Value not specified for key 'a'"),
        ("a.B required a=--;", "Value not specified for key 'a'"),
        ("a.B required a=/path;", "Value not specified for key 'a'"),
        ('a.B required a="no end', "not terminated by semi-colon"),
        ("a.B required; c.D optional;", "contains 2 login modules, should be 1 module"),
    ],
)
def test_a_jaas_string_that_kafka_refuses(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        jaas.parse(text)


# -- mechanisms --------------------------------------------------------------------------------------------


def credential(name, password, rounds=ROUNDS):
    salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[name], password.encode(), b"salt", rounds)
    return credential_from(SCRAM_TYPES[name], b"salt", salted, rounds)


STORED = {(name, user): credential(name, text) for name in SCRAM_TYPES for user, text in PASSWORDS.items()}


def mechanism(name, **stored):
    if name == "PLAIN":
        return Plain(PASSWORDS)
    return Scram(name, lambda user: {**STORED, **stored}.get((name, user)), lambda: "server")


def conversation(name, user, password):
    if name == "PLAIN":
        return plain_conversation(user, password)
    return scram_conversation(SCRAM_HASHES[name], user, password)


def talk(server, client):
    said = next(client)
    while True:
        answer = server.step(said)
        try:
            said = client.send(answer)
        except StopIteration:
            return


@pytest.mark.parametrize("name", ["PLAIN", *SCRAM_TYPES])
@pytest.mark.parametrize("user", PASSWORDS)
def test_who_knows_the_password_is_believed(name, user):
    server = mechanism(name)
    talk(server, conversation(name, user, PASSWORDS[user]))
    assert server.done and server.user == user


@pytest.mark.parametrize("name", ["PLAIN", *SCRAM_TYPES])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "alice-secret")])
def test_who_does_not_is_not(name, user, password):
    server = mechanism(name)
    with pytest.raises(Refused):
        talk(server, conversation(name, user, password))
    assert not server.done


def test_a_client_finds_a_server_out_that_does_not_know_the_password():
    found = credential("SCRAM-SHA-256", "alice-secret")._replace(server_key=bytes(32))
    server = Scram("SCRAM-SHA-256", lambda user: found, lambda: "server")
    with pytest.raises(AuthenticationFailed):
        talk(server, conversation("SCRAM-SHA-256", "alice", "alice-secret"))


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0alice-secret", "expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0", "expected 3 tokens, got 4"),
        (b"\0\0alice-secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0alice\0alice-Secret", "Invalid username or password"),
        (b"\0nobody\0x", "Invalid username or password"),
        (b"bob\0alice\0alice-secret", "authorization id that is different from username"),
        (b"\xff\0\xff\0\xff", "Invalid username or password"),
    ],
)
def test_plain_says_what_is_wrong(token, message):
    with pytest.raises(Refused, match=message) as refused:
        mechanism("PLAIN").step(token)
    assert refused.value.shown == str(refused.value)
    assert mechanism("PLAIN").step(b"alice\0alice\0alice-secret") == b""


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b"", False),
        (b"y,,n=alice,r=x", False),
        (b"n,,n=alice,r=", False),
        (b"n,,n=al=ice,r=x", False),
        (b"n,,n=\xc3\xa9,r=x", False),
        (b"n,,n=nobody,r=x", False),
        (b"n,,n=alice,r=x,tokenauth=true", False),
        (b"n,a=bob,n=alice,r=x", True),
        (b"n,,n=" + b"=2C" * 100_000 + b",r=x,,", False),
        (b"n,,n=alice,r=x" + b",a=b" * 100_000 + b",", False),
    ],
)
def test_a_first_message_of_scram_that_is_refused(token, shown):
    with pytest.raises(Refused) as refused:
        mechanism("SCRAM-SHA-256").step(token)
    assert (refused.value.shown is not None) is shown


@pytest.mark.parametrize("first", [b"n,,n=alice,r=x", b"n,a=alice,n=alice,r=x", b"n,,m=q,n=alice,r=x,more=1"])
@pytest.mark.parametrize(
    "final", [b"", b"c=biws,r=xother,p=AAAA", b"c=biws,r=xserver,p=AAAA", b"c=biws,r=xserver"]
)
def test_a_last_message_of_scram_that_is_refused(first, final):
    server = mechanism("SCRAM-SHA-256")
    assert server.step(first).startswith(b"r=xserver,s=")
    with pytest.raises(Refused) as refused:
        server.step(final)
    assert refused.value.shown is None


def test_a_stored_credential_of_too_few_iterations_is_refused():
    weak = {("SCRAM-SHA-256", "alice"): credential("SCRAM-SHA-256", "alice-secret", 4095)}
    server = Scram("SCRAM-SHA-256", lambda user: weak["SCRAM-SHA-256", user], lambda: "server")
    with pytest.raises(Refused, match="4095 iterations"):
        server.step(b"n,,n=alice,r=x")


# -- the conversation before authentication ----------------------------------------------------------------


def settings(**max_reauth_ms):
    names = ("PLAIN", "SCRAM-SHA-256")
    return Settings({name: lambda name=name: mechanism(name) for name in names}, max_reauth_ms)


def handshake(name, version=1):
    return codec.encode_request(messages.SaslHandshakeRequest(mechanism=name), version, 7, "test")


def authenticate(token, version=2):
    return codec.encode_request(messages.SaslAuthenticateRequest(auth_bytes=token), version, 8, "test")


def read(cls, version, frame):
    return codec.decode_response(cls, version, frame)[1]


def authenticated(of, user="alice", name="PLAIN"):
    assert of.frame(handshake(name)).failed is None
    client = conversation(name, user, PASSWORDS[user])
    said = next(client)
    while True:
        answer = of.frame(authenticate(said))
        response = read(messages.SaslAuthenticateResponse, 2, answer.response)
        if response.error_code or answer.failed:
            return response
        try:
            said = client.send(bytes(response.auth_bytes))
        except StopIteration:
            return response


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256"])
def test_a_client_is_authenticated(name):
    of = Authenticator(settings())
    assert authenticated(of, name=name).error_code == 0
    assert (of.state, of.principal, of.session_ms, of.raw) == (State.COMPLETE, "User:alice", None, False)
    assert of.frame(handshake(name)) == Answer()


def test_a_session_has_an_end():
    of = Authenticator(settings(PLAIN=9_000))
    assert authenticated(of).session_lifetime_ms == of.session_ms == 9_000


def test_raw_tokens_after_the_first_version_of_the_handshake():
    of = Authenticator(settings())
    answer = of.frame(handshake("PLAIN", 0))
    assert read(messages.SaslHandshakeResponse, 0, answer.response).mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert of.raw
    assert of.frame(b"\0alice\0alice-secret").response == b""
    assert of.state is State.COMPLETE and not of.raw
    of = Authenticator(settings())
    of.frame(handshake("PLAIN", 0))
    refused = of.frame(b"\0alice\0wrong")
    assert refused.response is None and "Invalid username or password" in refused.failed
    assert of.state is State.FAILED


def test_a_mechanism_that_is_not_enabled_is_told_and_ends_it():
    of = Authenticator(settings())
    answer = of.frame(handshake("SCRAM-SHA-512"))
    response = read(messages.SaslHandshakeResponse, 1, answer.response)
    assert response.error_code == errors.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert "SCRAM-SHA-512 is not enabled" in answer.failed


@pytest.mark.parametrize(
    ("password", "message"),
    [("wrong", "Authentication failed: Invalid username or password")],
)
def test_what_a_refused_client_reads(password, message):
    of = Authenticator(settings())
    of.frame(handshake("PLAIN"))
    answer = of.frame(authenticate(f"\0alice\0{password}".encode()))
    response = read(messages.SaslAuthenticateResponse, 2, answer.response)
    assert (response.error_code, response.error_message) == (errors.SASL_AUTHENTICATION_FAILED, message)
    of = Authenticator(settings())
    of.frame(handshake("SCRAM-SHA-256"))
    answer = of.frame(authenticate(b"n,,n=nobody,r=x"))
    response = read(messages.SaslAuthenticateResponse, 2, answer.response)
    assert response.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        " SCRAM-SHA-256"
    )
    assert "nobody" in answer.failed and "nobody" not in response.error_message


def test_api_versions_comes_once():
    of = Authenticator(settings())
    ask = codec.encode_request(messages.ApiVersionsRequest(), 0, 1, "test")
    assert of.frame(ask).versions is not None
    assert of.frame(ask).versions is not None, "the first was not answered yet, or with an error"
    of.versions_answered()
    assert of.frame(ask).failed == "ApiVersions came twice"
    assert of.frame(ask) == Answer()


def test_api_versions_of_an_unknown_version_has_only_its_header_read():
    of = Authenticator(settings())
    ask = bytearray(codec.encode_request(messages.ApiVersionsRequest(), 3, 5, "test"))
    ask[2:4] = (99).to_bytes(2, "big")
    header, request = of.frame(bytes(ask) + b"\xff" * 9).versions
    assert (header.correlation_id, request) == (5, None)


OTHERS = [
    (b"", "no header"),
    (b"\0\x03\0\x0c", "API key 3 version 12 came before authentication"),
    (b"\0\x11\0\x02" + bytes(20), "API key 17 version 2"),
    (b"\0\x24\0\0" + bytes(20), "API key 36 version 0 came before"),
    (b"GET / HTTP/1.1\r\n\r\n", "does the client use this listener's security.protocol?"),
    (b"\0\x11\0\x01\0\0\0\0\xff\xff\x7f\xff", "does not parse"),
    (b"\0\x12\0\x03", "does not parse"),
]


@pytest.mark.parametrize(("frame", "message"), OTHERS)
def test_nothing_else_is_decoded_before_authentication(frame, message):
    of = Authenticator(settings())
    answer = of.frame(frame)
    assert answer.response is None and message in answer.failed
    assert of.state is State.FAILED


def test_nothing_else_comes_in_the_middle_of_it():
    of = Authenticator(settings())
    of.frame(handshake("PLAIN"))
    metadata = codec.encode_request(messages.MetadataRequest(topics=None), 9, 1, "test")
    assert "API key 3 came in the middle" in of.frame(metadata).failed
    of = Authenticator(settings())
    of.frame(handshake("PLAIN"))
    assert "SaslAuthenticate version 3" in of.frame(b"\0\x24\0\x03" + bytes(20)).failed


def test_authenticating_anew():
    of = Authenticator(settings(PLAIN=9_000))
    authenticated(of)
    again = of.again()
    assert authenticated(again).error_code == 0
    assert again.state is State.COMPLETE

    other = of.again()
    response = authenticated(other, "bob,=")
    assert response.error_code == errors.SASL_AUTHENTICATION_FAILED
    assert response.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob,="
    )

    changed = of.again()
    assert changed.frame(handshake("SCRAM-SHA-256")).failed is None
    answer = changed.frame(authenticate(b"n,,n=alice,r=x"))
    response = read(messages.SaslAuthenticateResponse, 2, answer.response)
    assert response.error_message == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of"
        " mechanism 'PLAIN'"
    )
    assert changed.state is State.FAILED

    wrong = of.again()
    wrong.frame(handshake("PLAIN"))
    assert wrong.frame(authenticate(b"\0alice\0x")).failed


@pytest.mark.soak
def test_any_bytes_end_in_an_answer_or_a_failure(seeds):
    """Frames that are cut, flipped, swapped and doubled: nothing but an Answer comes back, and nobody who did
    not say the password is let in."""
    good = [
        codec.encode_request(messages.ApiVersionsRequest(), 3, 1, "test"),
        handshake("PLAIN"),
        handshake("SCRAM-SHA-256", 0),
        authenticate(b"n,,n=alice,r=x"),
        authenticate(b"\0alice\0wrong"),
        b"c=biws,r=xserver,p=AAAA",
    ]
    for seed in seeds(3_000, 100_000):
        chance = random.Random(seed)
        of = Authenticator(settings(PLAIN=5))
        for _ in range(chance.randrange(1, 6)):
            frame = bytearray(chance.choice(good))
            for _ in range(chance.choice((0, 0, 1, 3))):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            if chance.random() < 0.2:
                del frame[chance.randrange(len(frame)) :]
            answer = of.frame(bytes(frame))
            if answer.versions is not None and chance.random() < 0.7:
                of.versions_answered()
            assert (answer.failed is not None) <= (of.state is State.FAILED)
        assert of.state is not State.COMPLETE, seed
