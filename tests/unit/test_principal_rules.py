"""ssl.principal.mapping.rules. What is expected here is what Kafka 4.3.1's SslPrincipalMapper answers."""

import time

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.security.principal_rules import PrincipalRules, principal_rules

ANNA = "CN=Anna Lind,OU=Ops,O=Gadgets\\, Ltd,C=SE"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", ANNA, ANNA),
        ("RULE:^CN=([^,]*),.*$/$1/", ANNA, "Anna Lind"),
        ("RULE:^CN=([^,]*),.*$/$1/L", ANNA, "anna lind"),
        ("RULE:^CN=([^,]*),OU=([^,]*),.*$/$2.$1/U", ANNA, "OPS.ANNA LIND"),
        ("RULE:^OU=.*/no/, RULE:^CN=(\\w+) .*$/$1/, DEFAULT", ANNA, "Anna"),
        ("RULE:CN=Anna/part/,DEFAULT", ANNA, ANNA),  # the whole subject must match
        (",, RULE:^CN=(\\w+) .*$/$1/ ,,DEFAULT", ANNA, "Anna"),
        ("RULE:.*/x/", "CN=a", "xx"),  # the empty end matches, too
        ("RULE:(.*)/<$1>/", "CN=a", "<CN=a><>"),
        ("RULE:.+/x/", "CN=a", "x"),
        ("RULE:|CN=a/-/", "CN=a", "-C-N-=-a-"),  # an empty match moves on
        ("RULE:CN=(.)(.*)/$2$1/", "CN=abc", "bca"),
        ("RULE:CN=(.*)/$1$2/", "CN=a", "a$2"),  # there is no second group
        ("RULE:CN=(.*)/$12/", "CN=a", "a2"),
        ("RULE:CN=(.*)/$0/", "CN=a", "CN=a"),
        ("RULE:CN=(.*)/\\$1/", "CN=a", "$1"),
        ("RULE:CN=(.*)/$1\\/x/", "CN=a", "a/x"),
        ("RULE:CN=(?<who>\\w+),.*/${who}/", "CN=a,O=b", "a"),
        ("RULE:CN=(a)?(b),.*/[$1$2]/", "CN=b,O=x", "[b]"),  # a group that took no part is empty
        ("RULE:(?i)cn=(\\p{Alpha}+).*/$1/", ANNA, "Anna"),
        ("RULE:CN=(.)\\1.*/$1/", "CN=aab", "a"),
        ("RULE:CN=\\QA.B\\E.*/q/,DEFAULT", "CN=AxB", "CN=AxB"),
        ("RULE:CN=\\x41\\u006e\\0156a .*/Anna/", ANNA, "Anna"),
        ("RULE:CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Lind\\, Anna,OU=Ops", "Lind\\, Anna"),
        ("RULE:CN=(\\w+).*/$1/,DEFAULT", "CN=Ö,O=x", "CN=Ö,O=x"),  # \w is of ASCII
        ("RULE:CN=(.*)/$1/U", "CN=straße", "STRASSE"),
    ],
)
def test_the_name_by_the_rules(rules, subject, name):
    assert PrincipalRules(rules).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject"),
    [
        ("", ANNA),
        (" , ,", ANNA),
        ("RULE:^CN=Bert.*$/b/", ANNA),
        ("RULE:CN=(.*)/a$/", "CN=a"),
        ("RULE:CN=.*/$1/", "CN=a"),  # without groups nothing is escaped
        ("RULE:CN=(.*)/$x/", "CN=a"),
        ("RULE:CN=(.*)/$2-$3/", "CN=a"),  # the second backslash is a place too early
        ("RULE:CN=(?<who>.*)/${whom}/", "CN=a"),
        ("RULE:CN=(.*)/$99999999999/", "CN=a"),
    ],
)
def test_who_has_no_name_is_refused(rules, subject):
    with pytest.raises(ValueError):
        PrincipalRules(rules).name_of(subject)


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAULT/L", "RULE:CN=(.*)/$1", "rule:CN=(.*)/$1/", "RULE:a/b/L/U", "RULE:a/LU", "RULE:(/b/",
     "RULE:a{2/b/", "RULE:*/b/", "RULE:[/b/", "RULE:x{,3}/b/", "RULE:(?#x)a/b/", "RULE:\\y/b/"],
)  # fmt: skip
def test_wrong_rules_are_refused_as_by_kafka(rules):
    with pytest.raises(ValueError):
        PrincipalRules(rules)


@pytest.mark.parametrize(
    "rules", ["RULE:[a&&[b]]/c/", "RULE:\\p{L}/c/", "RULE:a(?i)b/c/", "RULE:(?<=a+)b/c/"]
)
def test_what_has_no_equal_in_python_is_refused_by_name(rules):
    with pytest.raises(ValueError, match=r"not supported"):
        PrincipalRules(rules)


def config(**more):
    return BrokerConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": "/nowhere",
            "listeners": "SSL://127.0.0.1:1,INSIDE://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
            "listener.security.protocol.map": "SSL:SSL,INSIDE:SSL,PLAINTEXT:PLAINTEXT",
            **more,
        }
    )


def test_a_listener_has_rules_of_its_own():
    own = {"listener.name.inside.ssl.principal.mapping.rules": "RULE:CN=(.*)/in-$1/"}
    found = principal_rules(config(**{"ssl.principal.mapping.rules": "RULE:CN=(.*)/$1/"}, **own))
    assert {name: rules.name_of("CN=a") for name, rules in found.items()} == {"SSL": "a", "INSIDE": "in-a"}


def test_wrong_rules_end_the_start():
    with pytest.raises(
        ConfigError, match=r"ssl.principal.mapping.rules of listener SSL: Invalid rule: `default`"
    ):
        principal_rules(config(**{"ssl.principal.mapping.rules": "default"}))


@pytest.mark.parametrize("rule", ["RULE:^CN=(a+)+$/$1/, DEFAULT", "RULE:^CN=(.*)*(.*)*(.*)*b$/$1/, DEFAULT"])
def test_an_expression_that_does_not_end_refuses_the_client_in_time(rule):
    """`re` goes back for ever, and holds the loop: every other client would wait."""
    rules, subject = PrincipalRules(rule), f"CN={'a' * 64}!"
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"take more than 0\.05 s for CN=aaa"):
        rules.name_of(subject)
    assert time.monotonic() - begun < 5
    begun = time.thread_time()
    with pytest.raises(ValueError, match="take more than"):
        rules.name_of(subject)  # it costs that once
    assert time.thread_time() - begun < 0.05
    assert rules.name_of("CN=b") in ("CN=b", "")
    time.sleep(0.15)  # no signal comes later
