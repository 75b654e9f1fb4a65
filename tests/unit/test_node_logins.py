"""How a node gets its login to other nodes from the configuration of a listener."""

from typing import Any

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.config.effects import TOKEN_KEYS
from kafkad.config.served import ignored, unserved_values
from kafkad.security.client_oauth import HANDLER, HANDLERS
from kafkad.security.client_sasl import AuthenticationFailed
from kafkad.security.jwt import parse, section
from kafkad.server.node_logins import PasswordLogin, TicketLogin, TokenLogin, node_login
from tests.oauth_provider import Provider
from tests.unit import test_node_links as node_links

KEY = "sasl.mechanism.inter.broker.protocol"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"
OWN = "listener.name.n.oauthbearer."
MEMBER = node_links.MEMBER | {"sasl.enabled.mechanisms": "PLAIN,GSSAPI,OAUTHBEARER"}


def of(mechanism: str, given: dict[str, str]) -> Any:
    return node_login(BrokerConfig(MEMBER | given), "N", KEY, mechanism)


def refusal(mechanism: str, given: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        of(mechanism, given)
    assert "hush" not in str(caught.value)
    return str(caught.value)


def token_of(login: Any) -> Any:
    assert isinstance(login, TokenLogin) and login.waits
    said = next(login.conversation("h"))
    return section(parse(said.split(b"Bearer ")[1].split(b"\x01")[0].decode()).claims)


def test_a_password_is_not_shown() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    login = of("PLAIN", {"listener.name.n.plain.sasl.jaas.config": f'{module} username="n" password="hush";'})
    assert isinstance(login, PasswordLogin) and not login.waits and login.who == "'n'"
    assert "hush" not in repr(login)


def test_a_token_that_nobody_signs() -> None:
    given = {f"{OWN}sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="node";'}
    assert token_of(of("OAUTHBEARER", given))["sub"] == "node"
    for handler in HANDLERS[2:]:
        assert not unserved_values(BrokerConfig(MEMBER | given | {OWN + HANDLER: handler}))
    assert unserved_values(BrokerConfig(MEMBER | {OWN + HANDLER: "com.example.Own"}))


@pytest.mark.parametrize("prefix", [OWN, "listener.name.n.", ""])
def test_a_provider_gives_a_token_for_what_the_configuration_says_of_the_listener(prefix: str) -> None:
    with Provider() as provider:
        text = f'{OAUTH} clientId="nobody" clientSecret="hush";'
        given = {
            f"{OWN}sasl.jaas.config": text,
            f"{prefix}sasl.oauthbearer.token.endpoint.url": provider.token_url,
            f"{prefix}sasl.oauthbearer.client.credentials.client.id": "anna",
            f"{prefix}sasl.oauthbearer.client.credentials.client.secret": "anna-secret",
            f"{prefix}sasl.oauthbearer.scope": "nodes",
            f"{prefix}sasl.login.retry.backoff.max.ms": "50",
        }
        claims = token_of(of("OAUTHBEARER", given))
        assert (claims["sub"], claims["scope"]) == ("anna", "nodes")
        assert not [line for line in ignored(BrokerConfig(MEMBER | given)) if "oauthbearer" in line]
        alone = {name: value for name, value in given.items() if name.endswith(TOKEN_KEYS)}
        assert len(ignored(BrokerConfig(alone))) == len(alone)
        login = of("OAUTHBEARER", given | {f"{prefix}sasl.oauthbearer.scope": "other"})
        provider.answers = [(500, b"")] * 100
        with pytest.raises(AuthenticationFailed, match=r"no token: .* answers 500"):
            next(login.conversation("h"))
        assert len(provider.answers) > 97  # it is tried again for 50 ms only


@pytest.mark.parametrize("key", TOKEN_KEYS)
def test_each_of_these_keys_reaches_the_login(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setattr("kafkad.server.node_logins.tokens_of", seen.append)
    of("OAUTHBEARER", {f"{OWN}sasl.jaas.config": f"{OAUTH};", f"{OWN}{key}": "17", key: "18"})
    of("OAUTHBEARER", {f"{OWN}sasl.jaas.config": f"{OAUTH};", key: "18"})
    assert [options[key] for options in seen] == ["17", "18"]


def test_a_ticket_by_a_keytab() -> None:
    pytest.importorskip("gssapi")
    name = "listener.name.n.gssapi.sasl.jaas.config"
    text = f'{KERBEROS} useKeyTab=true storeKey=true keyTab="/k" principal="kafka/h@R";'
    login = of("GSSAPI", {name: text, "sasl.kerberos.service.name": "kafka"})
    assert isinstance(login, TicketLogin) and login.waits
    assert (login.tickets.service, login.tickets.keytab) == ("kafka", "/k")
    with pytest.raises(AuthenticationFailed, match="no login by Kerberos as kafka/h@R"):
        next(login.conversation("h"))
    told = refusal("GSSAPI", {name: text})
    assert "sasl.kerberos.service.name" in told and name in told
    told = refusal(
        "GSSAPI", {name: f"{KERBEROS} useTicketCache=true;", "sasl.kerberos.service.name": "kafka"}
    )
    assert "useKeyTab=true is missing" in told


@pytest.mark.parametrize(
    ("mechanism", "given", "told"),
    [
        ("SCRAM-SHA-1", {}, "nodes log in to each other by one of PLAIN, SCRAM-SHA-256"),
        (
            "OAUTHBEARER",
            {},
            f"Missing configuration {OWN}sasl.jaas.config: this node logs in to others by it",
        ),
        ("OAUTHBEARER", {f"{OWN}sasl.jaas.config": f"{OAUTH};"}, "OAUTHBEARER needs sasl.oauthbearer.token"),
        (
            "OAUTHBEARER",
            {f"{OWN}sasl.jaas.config": f"{OAUTH};", "sasl.oauthbearer.token.endpoint.url": "http://h/t"},
            "client.id and sasl.oauthbearer.client.credentials.client.secret are missing",
        ),
        (
            "OAUTHBEARER",
            {
                f"{OWN}sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="node";',
                "sasl.oauthbearer.assertion.file": "/a",
            },
            "sasl.oauthbearer.assertion.file is not supported: use a client id",
        ),
        (
            "GSSAPI",
            {"listener.name.n.gssapi.sasl.jaas.config": f"{OAUTH};"},
            "the login module is org.apache",
        ),
    ],
)
def test_what_a_configuration_must_say(mechanism: str, given: dict[str, str], told: str) -> None:
    assert told in refusal(mechanism, given)
