"""OAuth tokens of a client: options, providers that answer oddly, and what no message ever holds."""

import base64
import json
import threading
import time

import pytest

from kafkad.client.security import AuthenticationFailed, Security
from kafkad.security import client_oauth
from kafkad.security.client_oauth import NoToken, Tokens, oauth_conversation, tokens_of
from kafkad.security.jwt import parse, section, unsecured
from tests.clients import wait_until
from tests.oauth_provider import Provider

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
ID, SECRET = (f"sasl.oauthbearer.client.credentials.client.{name}" for name in ("id", "secret"))
URL = "sasl.oauthbearer.token.endpoint.url"
HANDLER = "sasl.login.callback.handler.class"
SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@pytest.fixture
def provider():
    with Provider() as provider:
        yield provider


def options(provider: Provider, **more: str) -> dict[str, str]:
    pause = {"sasl.login.retry.backoff.ms": "10", "sasl.login.retry.backoff.max.ms": "200"}
    return {URL: provider.token_url, ID: "anna", SECRET: "anna-secret", **pause, **more}


def claims_of(token: str) -> dict:
    return section(parse(token).claims)


def test_a_token_for_a_client_id_and_a_secret(provider):
    tokens = tokens_of(options(provider, **{"sasl.oauthbearer.scope": "a b"}))
    assert claims_of(tokens.get())["sub"] == "anna"
    assert tokens.get() == tokens.get() and provider.asked == ["/token"], "it is used again"
    assert tokens_of(options(provider, **{"sasl.oauthbearer.scope": "a b"})) is tokens


def test_the_names_of_jaas_and_of_librdkafka(provider):
    login = f'{MODULE} clientId="bert" clientSecret="bert-secret" scope="s" extension_x="y";'
    tokens = tokens_of({URL: provider.token_url, "sasl.jaas.config": login, HANDLER: SIGNED})
    found = claims_of(tokens.get())
    assert (found["sub"], found["scope"], tokens.extensions) == ("bert", "s", {"x": "y"})
    own = {"sasl.oauthbearer.client.id": "anna", "sasl.oauthbearer.client.secret": "anna-secret"}
    assert claims_of(tokens_of({URL: provider.token_url, **own}).get())["sub"] == "anna"


def test_a_token_is_replaced_before_its_end(provider):
    provider.lifetime_s = 1
    tokens = tokens_of(options(provider))
    tokens.get()
    time.sleep(1)
    tokens.get()
    assert len(provider.asked) == 2


def lasting(seconds: int) -> str:
    now = int(time.time())
    return unsecured({"alg": "none"}, {"sub": "anna", "iat": now, "exp": now + seconds})


def at_once(count: int, work) -> tuple[list, float]:
    """What so many threads got at the same time, and how long all of them took."""
    told = []

    def run():
        try:
            told.append(work())
        except NoToken as trouble:
            told.append(str(trouble))

    threads = [threading.Thread(target=run) for _ in range(count)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told, time.monotonic() - begun


def test_a_token_is_used_to_its_end_while_no_other_one_is_issued(monkeypatch):
    monkeypatch.setattr(client_oauth, "USED_FOR", 0.0)
    first, second, back, asked, refused = lasting(3600), lasting(7200), threading.Event(), [], []

    def fetch():
        asked.append(1)
        if len(asked) == 1:
            return first
        if not back.wait(1):
            refused.append(1)
            raise NoToken("the provider is gone")
        return second

    monkeypatch.setattr(client_oauth, "AGAIN_S", 2.0)
    tokens = Tokens(fetch, {})
    assert tokens.get() == first
    told, took = at_once(10, tokens.get)  # nobody waits for the provider, and nobody is refused
    assert told == [first] * 10 and took < 0.9
    wait_until(lambda: refused, 10)
    assert (tokens.get(), len(asked)) == (first, 2), "it rests between its tries"
    back.set()
    wait_until(lambda: tokens.get() == second, 10)


def test_a_lifetime_of_any_size_is_a_number_of_seconds():
    now = time.time()
    for expires, seconds in ((10**400, 86_400), (1e308, 86_400), (now + 50, 50), (-5, 0), (float("nan"), 0)):
        token = unsecured({"alg": "none"}, {"exp": expires})
        assert client_oauth.lifetime_s(token) == pytest.approx(seconds, abs=5)


def test_all_who_wait_for_a_provider_share_its_answer():
    asked = []

    def fetch():
        asked.append(1)
        time.sleep(0.2)
        raise NoToken("the provider is gone")

    tokens = Tokens(fetch, {})
    told, took = at_once(10, tokens.get)
    assert told == ["the provider is gone"] * 10 and took < 1
    assert len(asked) < 3
    with pytest.raises(NoToken):  # the next one asks again
        tokens.get()
    assert len(asked) > 1


def test_a_provider_is_asked_again_unless_it_says_no(provider):
    provider.answers = [(503, b"x"), (500, b"{}")]
    assert tokens_of(options(provider)).get()
    assert len(provider.asked) == 3
    provider.answers = [(503, b"x")] * 50
    with pytest.raises(NoToken, match="answers 503"):
        tokens_of(options(provider, **{"sasl.oauthbearer.scope": "again"})).get()
    before = len(provider.asked)
    provider.answers = []
    with pytest.raises(NoToken, match="answers 401: invalid_client") as caught:
        tokens_of(options(provider, **{SECRET: "hush"})).get()
    assert len(provider.asked) == before + 1 and "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "without JSON"),
        (b"[" * 100_000, "without JSON"),
        (b"[]", "without an access_token"),
        (b'{"access_token":""}', "without an access_token"),
        (b'{"access_token":7}', "without an access_token"),
    ],
)
def test_an_answer_without_a_token(provider, answer, reason):
    provider.answers = [(200, answer)]
    with pytest.raises(NoToken, match=reason):
        tokens_of(options(provider, **{"sasl.oauthbearer.scope": reason + str(len(answer))})).get()


def test_an_answer_that_is_too_large(provider):
    provider.answers = [(200, b"x" * (600 << 10))] * 50
    with pytest.raises(NoToken, match="larger than"):
        tokens_of(options(provider, **{"sasl.oauthbearer.scope": "large"})).get()


def test_a_token_in_a_file(tmp_path):
    path = tmp_path / "token"
    tokens = tokens_of({URL: f"file://{path}"})
    with pytest.raises(NoToken, match="No such file"):
        tokens.get()
    path.write_text("a.b.c\n")
    assert tokens.get() == "a.b.c"
    path.write_text("")
    with pytest.raises(NoToken, match="holds no token"):
        tokens.get()


def test_an_unsecured_token():
    login = (
        f'{MODULE} unsecuredLoginStringClaim_sub="an\\"na" unsecuredLoginNumberClaim_n="1.5"'
        ' unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60"'
        ' unsecuredLoginExtension_x="y";'
    )
    tokens = tokens_of({"sasl.jaas.config": login})
    found = claims_of(tokens.get())
    assert (found["sub"], found["n"], found["scope"]) == ('an"na', 1.5, ["a", "b"])
    assert 58 < found["exp"] - time.time() <= 60 and tokens.extensions == {"x": "y"}
    # a broker with a clock of milliseconds must not see it as issued in the future
    assert isinstance(found["iat"], int) and found["iat"] == found["exp"] - 60


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "OAUTHBEARER needs"),
        ({HANDLER: SIGNED}, f"{URL} is missing"),
        ({HANDLER: "x.Y"}, "x.Y is not supported"),
        ({"sasl.oauthbearer.jwt.retriever.class": "x.Y"}, "x.Y is not supported"),
        ({URL: "https://a.test"}, "are missing"),
        ({URL: "ftp://a.test", ID: "a", SECRET: "b"}, "is not supported"),
        ({URL: "https://a.test:x", ID: "a", SECRET: "b"}, "Port"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "use a client id"),
        ({URL: "https://a.test", ID: "a", SECRET: "b", "sasl.login.read.timeout.ms": "-1"}, "milliseconds"),
        ({"sasl.jaas.config": f"{MODULE} unsecuredLoginStringClaim_exp=a;"}, "cannot be set"),
        ({"sasl.jaas.config": f"{MODULE} unsecuredLoginLifetimeSeconds=a;"}, "a number of seconds"),
        ({"sasl.jaas.config": f"{MODULE} unsecuredLoginExtension_auth=a;"}, "extension auth is not valid"),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config: "),
    ],
)
def test_options_that_are_wrong(more, reason):
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **more}
    with pytest.raises(ValueError, match=reason):
        Security.of(given)


@pytest.mark.parametrize(
    "url", ["http://anna:pass@a.test/token", "https://anna:p@ss@a.test:x", "ftp://anna:pass@a"]
)
def test_a_password_in_the_url_is_not_shown(url):
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ValueError, match=URL) as caught:
        Security.of({**given, URL: url, ID: "a", SECRET: "b"})
    assert "[hidden]@a" in str(caught.value) and "anna" not in str(caught.value)
    assert "p@ss" not in str(caught.value) and "pass" not in str(caught.value)


def test_the_conversation():
    talk = oauth_conversation("a.b.c", {"x": "y"})
    assert next(talk) == b"n,,\x01auth=Bearer a.b.c\x01x=y\x01\x01"
    with pytest.raises(StopIteration):
        talk.send(b"")
    talk = oauth_conversation("a.b.c", {})
    next(talk)
    assert talk.send(b'{"status":"invalid_token"}') == b"\x01"


def test_no_secret_is_shown(provider):
    security = Security.of({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
                            **options(provider, **{SECRET: "hush"})})  # fmt: skip
    with pytest.raises(AuthenticationFailed) as caught:
        security.conversation("localhost")
    told = repr(security) + str(caught.value)
    assert "hush" not in told and base64.b64encode(b"anna:hush").decode() not in told
    assert json.dumps("x") and isinstance(Tokens(lambda: unsecured({}, {}), {}).get(), str)
