"""A worker's authorizer follows the ACLs of the metadata, in steps."""

from random import Random

import pytest

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import messages
from kafkad.security.acls import Acl, Kind, Operation, Pattern, Permission
from kafkad.security.authorizer import Authorizer
from kafkad.server import authorization
from kafkad.server.authorization import authorizer_of, follow_acls
from kafkad.server.metadata_feed import apply_change, decode_change, difference, encode_image, image_of
from kafkad.server.worker import not_enforced
from tests.reference import slow_acls

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
READ_T = Acl(Kind.TOPIC, "t", Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)


def record(acl, acl_id):
    return messages.AccessControlEntryRecord(
        id=acl_id,
        resource_type=acl.kind,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def config(**more):
    given = {"authorizer.class.name": STANDARD, **{key.replace("_", "."): it for key, it in more.items()}}
    return BrokerConfig(given)


def may_read(authorizer, name="t", principal="User:alice"):
    return authorizer.subject(principal, "10.0.0.1").may(Operation.READ, Kind.TOPIC, name, "Fetch")


def test_an_authorizer_is_made_of_the_configuration_and_the_first_image():
    image, _ = applied(MetadataImage("cluster", 1), [record(READ_T, b"1" * 16)])
    assert authorizer_of(BrokerConfig({}), image, ManualClock()) is None
    authorizer = authorizer_of(config(), image, ManualClock())
    assert may_read(authorizer) and not may_read(authorizer, "u")
    assert not may_read(authorizer, "u", "User:root")
    text = {"super_users": "User:root; User:admin", "allow_everyone_if_no_acl_found": " TRUE "}
    authorizer = authorizer_of(config(**text), image, ManualClock())
    assert may_read(authorizer, "t", "User:admin") and may_read(authorizer, "u", "User:bob")
    assert not may_read(authorizer, "t", "User:bob")
    for text in ("yes", "true\xa0"):
        authorizer = authorizer_of(config(allow_everyone_if_no_acl_found=text), image, ManualClock())
        assert not may_read(authorizer, "u", "User:bob")  # Boolean.parseBoolean


def test_only_the_file_names_super_users_and_says_what_is_allowed_without_acls():
    image = MetadataImage("cluster", 1)
    own = {"super.users": "User:root;User:alice", "allow.everyone.if.no.acl.found": "true"}
    for layers in ((own, {}), ({}, own), ({"super.users": "alice"}, {"authorizer.class.name": ""})):
        changed = BrokerConfig(config(super_users="User:root").static, *layers)
        authorizer = authorizer_of(changed, image, ManualClock())
        assert may_read(authorizer, "t", "User:root")
        assert not may_read(authorizer, "t", "User:alice")


def test_super_users_without_a_type_end_the_start():
    wrong = config(super_users="User:a;alice")
    with pytest.raises(ConfigError) as found:
        authorizer_of(wrong, MetadataImage("cluster", 1), ManualClock())
    assert str(found.value) == (
        "Invalid value User:a;alice for configuration super.users: alice has no type: write User:alice"
    )


@pytest.mark.parametrize("default", [False, True])
def test_no_step_of_a_change_allows_what_is_allowed_neither_before_nor_after(default, monkeypatch):
    """And the last one allows what is allowed after it."""
    monkeypatch.setattr(authorization, "ACLS_A_STEP", 1)
    random = Random(3)
    questions = slow_acls.Questions(random)
    asked = [(Kind.TOPIC, Operation.READ, name) for name in questions.NAMES]
    asked += [(Kind.TOPIC, Operation.DESCRIBE, name) for name in questions.NAMES]
    steps = 0
    for _ in range(120):
        old, image = MetadataImage("cluster", 1), None
        before = [questions.acl(Acl) for _ in range(random.randrange(8))]
        old, _ = applied(old, [record(acl, bytes([n]) * 16) for n, acl in enumerate(before)])
        changes = [
            messages.RemoveAccessControlEntryRecord(id=bytes([n]) * 16)
            for n in range(len(before))
            if random.random() < 0.5
        ]
        changes += [record(questions.acl(Acl), bytes([100 + n]) * 16) for n in range(random.randrange(8))]
        image, delta = applied(old, changes)
        after = list(map(Acl.of, image.acls.values()))
        authorizer = Authorizer((), default, lambda: 0)
        authorizer.change(before, ())
        subject = authorizer.subject("User:alice", "10.0.0.1")

        def decisions(subject=subject):
            return {question: subject.may(question[1], question[0], question[2], "Test", logged=False)
                    for question in asked}  # fmt: skip

        def slow(acls):
            return {
                (kind, operation, name): slow_acls.decide(
                    acls, "User:alice", "10.0.0.1", kind, operation, name, default
                )
                for kind, operation, name in asked
            }

        allowed_before, allowed_after = slow(before), slow(after)
        assert decisions() == allowed_before
        for _ in follow_acls(authorizer, delta.acls_changed, old.acls, image.acls):
            steps += 1
            for question, allowed in decisions().items():
                assert not allowed or allowed_before[question] or allowed_after[question], question
        assert decisions() == allowed_after
        assert authorizer.index.count == len(after)
    assert steps > 500


def test_a_change_of_many_acls_is_applied_in_short_steps():
    records = [record(READ_T._replace(name=f"t{n}"), n.to_bytes(16)) for n in range(1_000)]
    old = MetadataImage("cluster", 1)
    image, delta = applied(old, records)
    authorizer = Authorizer((), False, lambda: 0)
    following = follow_acls(authorizer, delta.acls_changed, old.acls, image.acls)
    counts = [authorizer.index.count for _ in following]
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert counts[-1] == 1_000 and max(steps) <= authorization.ACLS_A_STEP


def test_the_other_workers_follow_from_changes_and_from_whole_images():
    old, _ = applied(MetadataImage("cluster", 1), [record(READ_T, b"1" * 16)])
    image, delta = applied(
        old,
        [messages.RemoveAccessControlEntryRecord(id=b"1" * 16), record(READ_T._replace(name="u"), b"2" * 16)],
    )
    assert delta.acls_changed == {b"1" * 16, b"2" * 16}
    assert difference(old, image).acls_changed == delta.acls_changed
    received = image_of(decode_change(encode_image(image)), MetadataImage("cluster", 1))
    assert difference(old, received).acls_changed == delta.acls_changed
    assert apply_change(decode_change(encode_image(image)), MetadataImage("cluster", 1))[1].acls_changed
    authorizer = authorizer_of(config(), old, ManualClock())
    for _ in follow_acls(authorizer, delta.acls_changed, old.acls, received.acls):
        pass
    assert may_read(authorizer, "u") and not may_read(authorizer)
    assert difference(received, received).acls_changed == set()


def test_acls_are_not_counted_as_not_enforced_where_an_authorizer_is_configured():
    image, _ = applied(MetadataImage("cluster", 1), [record(READ_T, b"1" * 16)])
    assert not_enforced(image, has_authorizer=True) is None
    assert "1 ACLs" in not_enforced(image)
    image.client_quotas["x", "of_tomorrow"] = image.client_quotas["x", "producer_byte_rate"] = None
    assert not_enforced(image, has_authorizer=True) == (
        "the metadata log holds 1 client quotas: they are kept, but not enforced"
    )
