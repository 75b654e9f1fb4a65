"""Short names of Kerberos principals, by Kafka's rules."""

import time

import pytest

from kafkad.client.security import Security
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.security.kerberos import Gssapi, ShortNames
from kafkad.security.listeners import sasl_listeners
from kafkad.security.mechanisms import Later, Refused

REALM = "REALM.COM"


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        (["DEFAULT"], "anna@REALM.COM", "anna"),
        (["DEFAULT"], "kafka/host@REALM.COM", "kafka"),
        (["DEFAULT"], "anna", "anna"),
        (["RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT"], "App.service@REALM.COM", "service"),
        (["RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT"], "App.service/host@REALM.COM", "service"),
        (["RULE:[1:$1]/L", "DEFAULT"], "ANNA@OTHER", "anna"),
        (["RULE:[2:$1.$2]/U"], "anna/ops@OTHER", "ANNA.OPS"),
        (["RULE:[1:$1@$0](.*@OTHER)s/@.*//"], "anna@OTHER", "anna"),
        (["RULE:[1:$1]s/n/m/"], "anna@OTHER", "amna"),
        (["RULE:[1:$1]s/n/m/g"], "anna@OTHER", "amma"),
        (["RULE:[1:$1](b.*)", "DEFAULT"], "anna@REALM.COM", "anna"),
    ],
)
def test_a_rule_makes_a_name(rules, principal, name):
    assert ShortNames(rules, REALM).name_of(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal", "told"),
    [
        (["DEFAULT"], "anna@OTHER", "No rules apply to anna@OTHER, rules"),
        (["DEFAULT"], "a/b/c@REALM.COM", "Malformed Kerberos name"),
        (["RULE:[1:$1@$0]"], "anna@OTHER", "Non-simple name anna@OTHER"),
        (["RULE:[1:$2]"], "anna@OTHER", "index 2 from"),
    ],
)
def test_a_principal_without_a_name(rules, principal, told):
    names = ShortNames(rules, REALM)
    with pytest.raises(ValueError, match=told):
        names.name_of(principal)


@pytest.mark.parametrize(
    "rule", ["default", "RULE:[1:$1", "RULE:[1:$1]s/a/b", "RULE:[:$1]", "DEFAULT/L", "RULE:[1:$1](()"]
)
def test_a_rule_that_is_none(rule):
    with pytest.raises(ValueError, match=r"."):
        ShortNames([rule], REALM)


class Context:
    """Whose first token proves everything, and that wraps nothing."""

    established, peer = False, "anna@REALM.COM"

    def accept(self, token):
        self.established = token == b"last"
        return b"more" if not self.established else b""

    def wrap(self, message):
        return message

    unwrap = wrap


def step(of, token):
    with pytest.raises(Later) as later:
        of.step(token)
    later.value.work()
    return of.step(token)


def test_each_step_runs_in_a_thread_and_is_taken_again():
    of = Gssapi(Context, ShortNames(["DEFAULT"], REALM).name_of)
    assert step(of, b"first") == b"more" and step(of, b"last") == b"\x01\0\0\0"
    assert step(of, b"\x01\0\0\0bob") == b"" and of.done and of.user == "anna"


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([b""], "its token is empty"),
        ([b"last", b""], "a layer of protection"),
        ([b"last", b"\x01\0"], "a layer of protection"),
        ([b"last", b"\x04\0\0\0"], "a layer of protection"),
    ],
)
def test_what_is_refused(tokens, told):
    of = Gssapi(Context, ShortNames(["DEFAULT"], REALM).name_of)
    with pytest.raises(Refused, match=told):
        for token in tokens:
            step(of, token)
    assert not of.done


def test_without_the_package_it_says_what_to_install(monkeypatch):
    for module in ("kafkad.security.listeners", "kafkad.security.client_kerberos"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    config = BrokerConfig(
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
    )
    with pytest.raises(ConfigError, match=r"listener SASL_PLAINTEXT, GSSAPI needs .* 'kafkad\[gssapi\]'"):
        sasl_listeners(config)
    with pytest.raises(ValueError, match=r"GSSAPI needs .* 'kafkad\[gssapi\]'"):
        Security.of({"security.protocol": "SASL_PLAINTEXT"})


def test_an_expression_that_does_not_end_refuses_the_client_in_time():
    names = ShortNames(["RULE:[1:$1](.*)s/^(a+)+$/x/", "DEFAULT"], REALM)
    assert names.name_of(f"aa@{REALM}") == "x"
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"take more than 0\.05 s"):
        names.name_of(f"{'a' * 64}!@{REALM}")
    assert time.monotonic() - begun < 5
