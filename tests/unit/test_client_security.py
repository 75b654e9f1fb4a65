"""How a client proves who it is: the RFC's example, options of both kinds of clients, cheating servers."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkad.client.cluster import parse_address
from kafkad.client.security import AuthenticationFailed, Security, credentials, scram_conversation

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"  # RFC 7677, section 3
CHALLENGE = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
VERIFIER = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def talk(*answers):
    conversation = scram_conversation("sha256", "user", "pencil", lambda: "rOprNGfwEbeRWgbNEkqO")
    said = [next(conversation)]
    for answer in answers:
        try:
            said.append(conversation.send(answer if isinstance(answer, bytes) else answer.encode()))
        except StopIteration:
            return said
    raise AssertionError("it wants to go on")


def test_the_example_of_rfc_7677():
    assert talk(CHALLENGE, VERIFIER) == [FIRST, PROOF]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([CHALLENGE, VERIFIER.replace("6", "7")], "does not prove"),
        ([CHALLENGE, ""], "does not prove"),
        ([CHALLENGE, b"\xff\xfe"], "does not prove"),
        ([CHALLENGE, "e=unknown-user"], "unknown-user"),
        ([CHALLENGE.replace("4096", "1")], "1 SCRAM iterations"),
        ([CHALLENGE.replace("4096", "99999999999")], "SCRAM iterations"),
        ([CHALLENGE.replace("4096", "x")], "cannot be read"),
        ([CHALLENGE.replace("s=W", "s=?")], "cannot be read"),
        ([CHALLENGE.replace("r=r", "r=x")], "not an answer to ours"),
        (["r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "not an answer to ours"),
        ([b"\xff"], "cannot be read"),
        ([""], "cannot be read"),
    ],
)
def test_a_server_that_cheats_is_not_believed(answers, told):
    with pytest.raises(AuthenticationFailed, match=told):
        talk(*answers)


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.sampled_from(("sha256", "sha512")))
def test_any_name_and_password(name, password, hash_name):
    """Against a server written down here from RFC 5802."""
    conversation = scram_conversation(hash_name, name, password)
    first = next(conversation).decode()
    assert first.startswith("n,,n=")
    user, nonce = first[5:].rsplit(",r=", 1)
    assert "," not in user and user.replace("=2C", ",").replace("=3D", "=") == name
    challenge = f"r={nonce}server,s={base64.b64encode(b'salt').decode()},i=4096"
    proof = conversation.send(challenge.encode()).decode()
    bare, _, given_proof = proof.rpartition(",p=")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), b"salt", 4096)
    signed = f"{first[3:]},{challenge},{bare}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored, signed, hash_name)
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(given_proof), signature, strict=True))
    assert hashlib.new(hash_name, recovered).digest() == stored
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    with pytest.raises(StopIteration):
        conversation.send(b"v=" + base64.b64encode(verifier))


JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_jaas_config_says_what_it_quotes(name, password):
    def quoted(text):
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        return text.replace("\n", "\\n").replace("\r", "\\r")  # a line's end would end the quotes

    told = credentials(
        {"sasl.jaas.config": f'{JAAS} username="{quoted(name)}" password="{quoted(password)}";'}
    )
    assert told == (name, password)


@pytest.mark.parametrize(
    "jaas", [f"{JAAS} username=u password=p;", f"{JAAS}\n username='u'\n password='p' tokenauth=true ;"]
)
def test_other_ways_to_write_it(jaas):
    assert credentials({"sasl.jaas.config": jaas}) == ("u", "p")


def test_plaintext_needs_nothing():
    assert Security.of({}) is None and Security.of({"security.protocol": "plaintext"}) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"security.protocol": "TLS"}, "it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "GSSAPI needs sasl.kerberos.service.name"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url",
        ),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "SASL needs"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f"{JAAS};",
            },
            "has no username",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS},
            "sasl.jaas.config: JAAS config entry not terminated by semi-colon",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere.jks"},
            "authorities cannot be read",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "BKS"},
            "BKS is not supported; use PEM, PKCS12, JKS",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/nowhere.p12"}, "certificate and key cannot"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "x"}, "certificate.chain is missing beside"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "cannot be read"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "no PEM"}, "cannot be read"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/nowhere.pem"}, "certificate and key"),
        ({"security.protocol": "SSL", "ssl.keystore.certificate.chain": "no PEM"}, "certificate and key"),
    ],
)
def test_what_is_not_supported_is_refused_in_a_sentence(options, told):
    with pytest.raises(ValueError, match=told):
        Security.of(options)


def test_a_password_is_not_shown():
    security = Security.of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "hidden",
        }
    )
    assert "hidden" not in repr(security) and next(security.conversation("localhost")) == b"\0u\0hidden"


@pytest.mark.parametrize("scheme", ["", "PLAINTEXT://", "SSL://", "SASL_SSL://", "SASL_PLAINTEXT://"])
def test_addresses_may_say_their_protocol(scheme):
    assert parse_address(f"{scheme}host:9093") == ("host", 9093)
