"""Decisions by ACLs: random ones against a slow twin, and each rule by itself."""

import logging
from random import Random

import pytest

from kafkad.security.acls import (
    ALLOWED,
    DENIED,
    Acl,
    AclIndex,
    Filter,
    Kind,
    Operation,
    Pattern,
    Permission,
)
from kafkad.security.authorizer import (
    DENIALS_MAX,
    REPEATED_AFTER_MS,
    Authorizer,
    all_operations,
    java_address,
    parse_super_users,
)
from tests.reference import slow_acls

ALICE, HOST = "User:alice", "10.0.0.1"


def acl(**fields):
    plain = {"kind": Kind.TOPIC, "name": "t", "pattern": Pattern.LITERAL, "principal": ALICE, "host": "*"}
    return Acl(**{**plain, "operation": Operation.READ, "permission": Permission.ALLOW, **fields})


def authorizer_of(*acls, super_users=(), default=False):
    authorizer = Authorizer(super_users, default, lambda: 0)
    authorizer.change(acls, ())
    return authorizer


def may(authorizer, operation, name="t", kind=Kind.TOPIC, principal=ALICE, host=HOST):
    return authorizer.subject(principal, host).may(operation, kind, name, "Test")


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_acls_decide_as_the_slow_twin_says(seed, default):
    """Also after some of them are gone, with questions in between."""
    random = Random(seed)
    questions = slow_acls.Questions(random)
    authorizer = Authorizer((), default, lambda: 0)
    held = []
    for _ in range(12):
        added = [questions.acl(Acl) for _ in range(random.choice((0, 1, 2, 6)))]
        removed = random.sample(held, random.randrange(len(held) + 1)) if random.random() < 0.4 else []
        authorizer.change(added, removed)
        for gone in removed:
            held.remove(gone)
        held += added
        assert authorizer.index.count == len(held)
        for principal, host in random.sample(questions.subjects(), 4):
            subject = authorizer.subject(principal, host)
            for kind, operation, name in random.sample(questions.asked(), 40):
                expected = slow_acls.decide(held, principal, host, kind, operation, name, default)
                assert subject.may(operation, kind, name, "Test", logged=False) == expected
                reason = authorizer.index.reason(principal, host, kind, operation, name)
                if reason is not None:
                    assert slow_acls.is_about(reason, kind, name)
                    said = slow_acls.result(reason, principal, host, operation)
                    assert said == ("ALLOW" if expected else "DENY")
                else:
                    assert expected == (
                        default and not any(slow_acls.is_about(one, kind, name) for one in held)
                    )
            for operation in random.sample(questions.ASKED, 4):
                assert subject.may_any(operation, Kind.TOPIC, "Test") == slow_acls.decide_on_any(
                    held, principal, host, Kind.TOPIC, operation, default
                )


@pytest.mark.parametrize("default", [False, True])
def test_the_prepared_answers_hold_for_every_name(default):
    """What the native part is given of Rights decides as `allow` does."""
    random = Random(5)
    questions = slow_acls.Questions(random)
    for _ in range(60):
        index = AclIndex()
        for _ in range(random.randrange(8)):
            index.add(questions.acl(Acl))
        rights = index.rights(ALICE, HOST, Kind.TOPIC, Operation.READ, default)
        for name in (*questions.NAMES, "abcd", "zz"):
            bits = rights.about_all
            for other, is_prefix, of_other in rights.entries():
                if name.startswith(other) if is_prefix else name == other:
                    bits |= of_other
            if rights.always is not None:
                expected = rights.always
            elif bits & DENIED:
                expected = False
            else:
                expected = bool(bits & ALLOWED) or (default and not bits)
            assert rights.allow(name) == expected


def test_a_deny_wins_over_all_that_allow():
    everything = acl(name="*", operation=Operation.ALL)
    for deny in (
        acl(permission=Permission.DENY),
        acl(permission=Permission.DENY, name="*"),
        acl(permission=Permission.DENY, name="", pattern=Pattern.PREFIXED),
        acl(permission=Permission.DENY, principal="User:*"),
        acl(permission=Permission.DENY, host=HOST),
        acl(permission=Permission.DENY, operation=Operation.ALL),
    ):
        assert not may(authorizer_of(everything, deny, default=True), Operation.READ)
        assert not may(authorizer_of(deny, everything), Operation.READ)
        assert may(authorizer_of(everything, deny, super_users=[ALICE]), Operation.READ)


def test_what_is_implied_by_an_allow_is_not_by_a_deny():
    for operation in Operation:
        if operation <= Operation.ANY:
            continue
        allowing = authorizer_of(acl(operation=operation))
        implied = {Operation.DESCRIBE} if operation in (3, 4, 6, 7) else set()
        if operation == Operation.ALTER_CONFIGS:
            implied = {Operation.DESCRIBE_CONFIGS}
        asked = [other for other in Operation if other > Operation.ALL]
        allowed = {other for other in asked if may(allowing, other)}
        assert allowed == (set(asked) if operation == Operation.ALL else {operation, *implied})
        denying = authorizer_of(
            acl(operation=operation, permission=Permission.DENY), acl(operation=Operation.ALL)
        )
        denied = {other for other in asked if not may(denying, other)}
        assert denied == (set(asked) if operation == Operation.ALL else {operation})


def test_without_an_acl_the_default_decides():
    other = acl(principal="User:bob")  # an ACL of anybody about the resource takes the default away
    for default in (False, True):
        assert may(authorizer_of(default=default), Operation.READ) is default
        assert may(authorizer_of(other, default=default), Operation.READ, "u") is default
        assert not may(authorizer_of(other, default=default), Operation.READ)
    with_prefix = authorizer_of(acl(principal="User:bob", name="t", pattern=Pattern.PREFIXED), default=True)
    assert not may(with_prefix, Operation.READ, "tt")
    assert may(with_prefix, Operation.READ, "s")
    assert may(with_prefix, Operation.READ, "tt", Kind.GROUP)


def test_words_of_a_later_kafka_deny_what_they_might_mean_and_allow_nothing():
    allow = acl(name="*", operation=Operation.ALL)
    strange = (
        {"host": "10.0.0.0/8"},
        {"operation": 99},
        {"pattern": 77},
        {"pattern": 77, "name": "*"},
        {"pattern": 77, "name": "", "operation": Operation.ALL},
    )
    for fields in strange:
        assert not may(authorizer_of(acl(**fields)), Operation.READ), fields
        deny = acl(**fields, permission=Permission.DENY)
        assert not may(authorizer_of(allow, deny), Operation.READ), fields
    assert not may(authorizer_of(allow, acl(permission=9)), Operation.READ)
    assert not may(authorizer_of(acl(permission=9)), Operation.READ)
    assert not may(authorizer_of(allow, acl(pattern=77, permission=Permission.DENY)), Operation.READ, "tt")


def test_a_right_to_any_resource_counts_what_is_allowed_by_name():
    def any_write(*acls, **more):
        return authorizer_of(*acls, **more).subject(ALICE, HOST).may_any(Operation.WRITE, Kind.TOPIC, "Test")

    write = {"operation": Operation.WRITE}
    deny = {**write, "permission": Permission.DENY}
    prefix = {"pattern": Pattern.PREFIXED}
    assert any_write(acl(**write))
    assert any_write(acl(**write, name="*"), acl(**deny))
    assert not any_write(acl(**write, name="*"), acl(**deny, name="*"))
    assert not any_write(acl(**write), acl(**deny))
    assert not any_write(acl(**write, name="tt", **prefix), acl(**deny, **prefix))
    assert any_write(acl(**write, **prefix), acl(**deny))
    assert any_write(default=True) and not any_write()
    # DESCRIBE by WRITE does not count here
    writer = authorizer_of(acl(**write)).subject(ALICE, HOST)
    assert not writer.may_any(Operation.DESCRIBE, Kind.TOPIC, "Test")


def test_authorized_operations():
    authorizer = authorizer_of(acl(), acl(operation=Operation.ALTER_CONFIGS), super_users=["User:root"])
    subject = authorizer.subject(ALICE, HOST)
    bits = subject.operations(Kind.TOPIC, "t")
    wanted = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    assert bits == sum(1 << operation for operation in wanted)
    assert subject.operations(Kind.TOPIC, "u") == 0
    root = authorizer.subject("User:root", HOST)
    assert root.operations(Kind.CLUSTER, "kafka-cluster") == all_operations(Kind.CLUSTER) == 0b1111110100000


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_addresses_are_written_as_java_writes_them(host, written):
    assert java_address(host) == written


def test_super_users():
    assert parse_super_users(" User:a;User:b,c ;; User:CN=x,O=y ") == {"User:a", "User:b,c", "User:CN=x,O=y"}
    assert parse_super_users("") == frozenset()
    assert parse_super_users("User:a\xa0;\0User:b\x1f") == {"User:a\xa0", "User:b"}  # as String.trim
    with pytest.raises(ValueError, match="alice has no type: write User:alice"):
        parse_super_users("User:bob;alice")


def test_filters():
    t, all_topics, prefix = acl(), acl(name="*"), acl(name="t", pattern=Pattern.PREFIXED)
    group, long = acl(kind=Kind.GROUP, host=HOST), acl(name="tt")
    every = [t, all_topics, prefix, group, long]

    def found(**fields):
        return [one for one in every if Filter(**fields).finds(one)]

    assert found() == every
    assert found(kind=Kind.TOPIC, name="t", pattern=Pattern.LITERAL) == [t]
    assert found(kind=Kind.TOPIC, name="t") == [t, prefix]
    assert found(kind=Kind.TOPIC, name="tt", pattern=Pattern.MATCH) == [all_topics, prefix, long]
    assert found(pattern=Pattern.PREFIXED) == [prefix]
    assert found(host=HOST) == [group]
    assert found(principal="User:bob") == found(operation=Operation.ALL) == found(permission=2) == []


def test_the_audit_log_is_kafkas_and_does_not_repeat_itself(caplog):
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    now = [0]
    authorizer = Authorizer((), False, lambda: now[0])
    authorizer.change([acl(permission=Permission.DENY)], ())
    subject = authorizer.subject(ALICE, HOST)

    def lines():
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return said

    assert not subject.may(Operation.READ, Kind.TOPIC, "t", "Fetch")
    line = (
        "Principal = User:alice is Denied operation = READ from host = 10.0.0.1"
        " on resource = Topic:LITERAL:t for request = Fetch with resourceRefCount = 1 based on rule"
        " MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=t, patternType=LITERAL,"
        " principal=User:alice, host=*, operation=READ, permissionType=DENY])"
    )
    assert lines() == [line]
    for _ in range(3):
        assert not subject.may(Operation.READ, Kind.TOPIC, "t", "Fetch")
    assert not subject.may(Operation.WRITE, Kind.TOPIC, "t", "Metadata", logged=False)
    assert lines() == []
    assert not subject.may(Operation.WRITE, Kind.TOPIC, "u\nPrincipal = User:x" + "y" * 300, "Produce")
    [forged] = lines()
    assert "\n" not in forged and forged.endswith("based on rule DefaultDeny")
    now[0] = REPEATED_AFTER_MS
    assert not subject.may(Operation.READ, Kind.TOPIC, "t", "Fetch")
    assert lines() == [line + " (3 more like it since the last line)"]
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    authorizer.change([acl(name="v")], ())
    assert subject.may(Operation.READ, Kind.TOPIC, "v", "Fetch")
    [allowed] = lines()
    assert "is Allowed operation = READ" in allowed


def test_the_denials_of_one_subject_neither_fill_the_audit_log_nor_hide_those_of_another(caplog):
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    now = [0]
    authorizer = Authorizer((), False, lambda: now[0])
    flooding, another = authorizer.subject(ALICE, HOST), authorizer.subject("User:bob", HOST)
    for number in range(DENIALS_MAX + 500):
        assert not flooding.may(Operation.READ, Kind.TOPIC, f"t{number}", "Fetch")
    assert not another.may(Operation.READ, Kind.TOPIC, "t", "Fetch")
    said = caplog.messages
    assert len(said) == DENIALS_MAX + 2
    assert said[-2] == (
        "Principal = User:alice from host = 10.0.0.1: further denials in this minute are left out"
    )
    assert "User:bob" in said[-1]
    caplog.clear()
    now[0] = REPEATED_AFTER_MS
    assert not flooding.may(Operation.READ, Kind.TOPIC, "later", "Fetch")
    said = caplog.messages
    assert said[0] == (
        "Principal = User:alice from host = 10.0.0.1: 500 more denials in a minute were left out"
    )
    assert len(said) == 2 and "Topic:LITERAL:later" in said[1]


def test_clients_whom_no_acl_names_share_their_rights():
    """Else each address of a client's own choice would cost memory for all ACLs."""
    about_all = [acl(name=f"t{number}", principal="User:*") for number in range(100)]
    authorizer = authorizer_of(*about_all, acl(host="10.0.0.9"), acl(name="u"))

    def rights(principal, host):
        return authorizer.subject(principal, host).rights(Kind.TOPIC, Operation.READ)

    assert rights("User:bob", "10.0.0.1") is rights("User:carol", "10.0.0.2")
    assert rights(ALICE, "10.0.0.1") is rights(ALICE, "10.0.0.2")
    assert rights(ALICE, "10.0.0.9") is not rights(ALICE, "10.0.0.1")
    assert rights(ALICE, "10.0.0.1") is not rights("User:bob", "10.0.0.1")
    assert may(authorizer, Operation.READ, "t", host="10.0.0.9") and not may(authorizer, Operation.READ, "t")
    authorizer.change((), [acl(host="10.0.0.9")])
    assert rights(ALICE, "10.0.0.9") is rights(ALICE, "10.0.0.1")


def test_rights_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr("kafkad.security.authorizer.RIGHTS_MAX", 25)
    authorizer = authorizer_of(*(acl(principal=f"User:{number}") for number in range(20)))
    for number in range(20):
        for operation in (Operation.READ, Operation.DESCRIBE, Operation.WRITE):
            subject = authorizer.subject(f"User:{number}", HOST)
            for _ in range(2):
                allowed = operation != Operation.WRITE
                assert subject.may(operation, Kind.TOPIC, "t", "Test", logged=False) == allowed
                assert subject.may_any(operation, Kind.TOPIC, "Test") == (operation == Operation.READ)
            assert len(authorizer._rights) <= 25 and len(authorizer._on_any) <= 25


def test_a_question_looks_at_the_acls_about_its_name_alone(monkeypatch):
    """Else 100,000 ACLs would stop a worker at the first question after each change."""
    many = [acl(name=f"topic-{n}", pattern=3 + n % 2) for n in range(2_000)]
    authorizer = authorizer_of(*many, acl(name="t", permission=Permission.DENY), acl(name="t"))
    asked = []
    decides = Acl.decides
    monkeypatch.setattr(Acl, "decides", lambda *about: asked.append(about) or decides(*about))
    assert may(authorizer, Operation.READ, "topic-4") and not may(authorizer, Operation.READ, "t")
    assert may(authorizer, Operation.READ, "topic-7x") and not may(authorizer, Operation.READ, "topic-8x")
    assert authorizer.subject(ALICE, HOST).may_any(Operation.READ, Kind.TOPIC, "Test")
    assert len(asked) < 20


def test_a_change_takes_effect_at_once_and_is_told():
    authorizer = authorizer_of()
    told = []
    authorizer.on_change = lambda: told.append(authorizer.version)
    subject = authorizer.subject(ALICE, HOST)
    assert not subject.may(Operation.READ, Kind.TOPIC, "t", "Test")
    authorizer.change([acl()], ())
    assert subject.may(Operation.READ, Kind.TOPIC, "t", "Test")
    authorizer.change((), [acl()])
    assert not subject.may(Operation.READ, Kind.TOPIC, "t", "Test")
    assert told == [2, 3]
