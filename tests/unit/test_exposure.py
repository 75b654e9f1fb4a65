"""Which listeners a start calls open to anyone, and of which it warns."""

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.net.hosts import is_loopback
from kafkad.security import exposure

MAP = "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
ALL = ("PLAINTEXT", "SSL", "MUTUAL", "SASL_PLAINTEXT", "SASL_SSL")


def config(host, names=ALL, **more):
    return BrokerConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": "/nowhere",
            "listeners": ",".join(f"{name}://{host}:{9092 + n}" for n, name in enumerate(names)),
            "listener.security.protocol.map": MAP,
            "inter.broker.listener.name": names[0],
            "sasl.enabled.mechanisms": "PLAIN",
            **({"listener.name.mutual.ssl.client.auth": "required"} if "MUTUAL" in names else {}),
            **({} if host.startswith("127") else {"advertised.listeners": f"{names[0]}://here:9092"}),
            **more,
        }
    )


def test_a_listener_is_open_unless_it_wants_a_login_or_a_certificate():
    given = config("127.0.0.1")
    assert [it.listener for it in exposure.open_to_anyone(given, given.broker_endpoints)] == [
        "PLAINTEXT",
        "SSL",
    ]


def test_who_anyone_is_to_an_authorizer():
    standard = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    assert exposure.whom(config("127.0.0.1")) == ""
    assert exposure.whom(config("127.0.0.1", **standard)) == ", who is User:ANONYMOUS to the ACLs"
    root = {"super.users": "User:admin;User:ANONYMOUS"}
    assert exposure.whom(config("127.0.0.1", **standard, **root)) == ", a super user"


def test_nothing_is_said_of_the_loopback():
    assert list(exposure.warnings(config("127.0.0.1"), is_loopback)) == []


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.1.2.3", "no.such.host.invalid"])
def test_what_can_be_read_on_a_network_is_warned_of(host):
    plaintext, password = exposure.warnings(config(host), is_loopback)
    assert plaintext.startswith(f"listener PLAINTEXT://{host}:9092 is open to anyone")
    assert password.startswith(f"listener SASL_PLAINTEXT://{host}:9095 takes passwords of PLAIN")


@pytest.mark.parametrize("prefix", ["listener.name.SSL", "listener.name.ssl2"])
def test_a_key_that_applies_to_no_listener_is_warned_of(prefix):
    """Kafka ignores it: the names of listeners are in lower case there."""
    key = f"{prefix}.ssl.client.auth"
    given = config("127.0.0.1", **{key: "required"})
    assert "SSL" in [it.listener for it in exposure.open_to_anyone(given, given.broker_endpoints)]
    (said,) = exposure.warnings(given, is_loopback)
    assert said.startswith(f"{key} applies to no listener and is ignored; the prefixes here are: listener.")


def test_scram_hides_the_password():
    own = {
        f"sasl.{name}": "SCRAM-SHA-512" for name in ("enabled.mechanisms", "mechanism.inter.broker.protocol")
    }
    given = config("10.1.2.3", ("SASL_PLAINTEXT",), **own)
    assert list(exposure.warnings(given, is_loopback)) == []


@pytest.mark.parametrize(
    ("host", "stays_here"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("::", False), ("", False)]
)  # fmt: skip
def test_the_loopback_is_known(host, stays_here):
    assert is_loopback(host) is stays_here


@pytest.mark.parametrize(
    ("handler", "is_warned_of"), [("", True), ("OAuthBearerValidatorCallbackHandler", False)]
)
def test_unsecured_tokens_are_warned_of_wherever_they_are_taken(handler, is_warned_of):
    prefix = "org.apache.kafka.common.security.oauthbearer."
    own = "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class"
    given = config("127.0.0.1", ("SASL_SSL",), **{"sasl.enabled.mechanisms": "OAUTHBEARER",
                   "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                   **({own: prefix + handler} if handler else {})})  # fmt: skip
    told = list(exposure.warnings(given, is_loopback))
    assert any("takes unsecured tokens" in sentence for sentence in told) is is_warned_of
