"""Decisions by ACLs beside Kafka 4.3.1's own StandardAuthorizer, in a JVM: the same random ACLs, the same
questions."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kafkad.security.acls import Acl, Filter, Kind, Operation, Pattern, Permission
from kafkad.security.authorizer import Authorizer, java_address
from tests.jvm import NEWEST
from tests.reference.kafka_messages import JvmMessages
from tests.reference.slow_acls import Questions

pytestmark = pytest.mark.java
ADDRESSES = {"10.0.0.1": "10.0.0.1", "10.0.0.2": "::ffff:10.0.0.2", "0:0:0:0:0:0:0:1": "::1"}
ROOT = "User:root"


@pytest.fixture(scope="module")
def kafka() -> Iterator["Kafka"]:
    with JvmMessages(NEWEST) as jvm:
        yield Kafka(jvm.gateway)


class Kafka:
    """Makes the Java objects."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.jvm = gateway.jvm
        self.kafka = gateway.jvm.org.apache.kafka
        self._actions: dict[tuple[Any, ...], Any] = {}

    def authorizer(self, default: bool) -> Any:
        authorizer = self.kafka.metadata.authorizer.StandardAuthorizer()
        config = {"super.users": f" {ROOT} ;;User:x", "node.id": "1"}
        authorizer.configure({**config, "allow.everyone.if.no.acl.found": f" {str(default).upper()} "})
        metrics = self.kafka.common.metrics.Metrics()
        authorizer.withPluginMetrics(
            self.kafka.common.metrics.internals.PluginMetricsImpl(metrics, self.jvm.java.util.LinkedHashMap())
        )
        authorizer.completeInitialLoad()
        return authorizer

    def acl(self, acl: Acl) -> Any:
        common = self.kafka.common
        return self.kafka.metadata.authorizer.StandardAcl(
            common.resource.ResourceType.valueOf(Kind(acl.kind).name),
            acl.name,
            common.resource.PatternType.valueOf(Pattern(acl.pattern).name),
            acl.principal,
            acl.host,
            common.acl.AclOperation.valueOf(Operation(acl.operation).name),
            common.acl.AclPermissionType.valueOf(Permission(acl.permission).name),
        )

    def context(self, principal: str, address: str) -> Any:
        common = self.kafka.common
        kind, _, name = principal.partition(":")
        return common.requests.RequestContext(
            common.requests.RequestHeader(common.protocol.ApiKeys.METADATA, 9, "client", 1),
            "connection",
            self.jvm.java.net.InetAddress.getByName(address),
            common.security.auth.KafkaPrincipal(kind, name),
            common.network.ListenerName("PLAINTEXT"),
            common.security.auth.SecurityProtocol.PLAINTEXT,
            common.network.ClientInformation.EMPTY,
            False,
        )

    def action(self, kind: Kind, operation: Operation, name: str) -> Any:
        common = self.kafka.common
        return self.kafka.server.authorizer.Action(
            common.acl.AclOperation.valueOf(operation.name),
            common.resource.ResourcePattern(
                common.resource.ResourceType.valueOf(kind.name), name, common.resource.PatternType.LITERAL
            ),
            1,
            False,
            False,
        )

    def by_resource_type(self, authorizer: Any, context: Any, operation: Operation, kind: Kind) -> str:
        """By reflection: py4j finds no default methods of interfaces."""
        common, lang = self.kafka.common, self.jvm.java.lang
        arguments = [
            context,
            common.acl.AclOperation.valueOf(operation.name),
            common.resource.ResourceType.valueOf(kind.name),
        ]
        names = ("server.authorizer.AuthorizableRequestContext", "common.acl.AclOperation")
        classes = self.gateway.new_array(lang.Class, 3)
        objects = self.gateway.new_array(lang.Object, 3)
        for place, name in enumerate((*names, "common.resource.ResourceType")):
            classes[place] = lang.Class.forName(f"org.apache.kafka.{name}")
            objects[place] = arguments[place]
        of = lang.Class.forName("org.apache.kafka.server.authorizer.Authorizer")
        return of.getMethod("authorizeByResourceType", classes).invoke(authorizer, objects).toString()

    def filter(self, one: Filter) -> Any:
        common = self.kafka.common
        return common.acl.AclBindingFilter(
            common.resource.ResourcePatternFilter(
                common.resource.ResourceType.valueOf(Kind(one.kind).name),
                one.name,
                common.resource.PatternType.valueOf(Pattern(one.pattern).name),
            ),
            common.acl.AccessControlEntryFilter(
                one.principal,
                one.host,
                common.acl.AclOperation.valueOf(Operation(one.operation).name),
                common.acl.AclPermissionType.valueOf(Permission(one.permission).name),
            ),
        )


def test_decisions_are_those_of_kafkas_standard_authorizer(kafka):
    """Some 150,000 questions in 24 worlds of up to 24 ACLs; half of them with
    allow.everyone.if.no.acl.found."""
    random = Random(19)
    questions = Questions(random)
    asked = questions.asked()
    actions = kafka.jvm.java.util.ArrayList()
    for question in asked:
        actions.add(kafka.action(*question))
    subjects = [*questions.subjects(), (ROOT, "10.0.0.1")]
    contexts = {subject: kafka.context(subject[0], ADDRESSES[subject[1]]) for subject in subjects}
    tally = {True: 0, False: 0}
    for world in range(24):
        default = bool(world % 2)
        theirs, ours = kafka.authorizer(default), Authorizer([ROOT], default, lambda: 0)
        held = list({questions.acl(Acl) for _ in range(world)})
        ids = [kafka.kafka.common.Uuid.randomUuid() for _ in held]
        for known_as, acl in zip(ids, held, strict=True):
            theirs.addAcl(known_as, kafka.acl(acl))
        ours.change(held, ())
        gone = random.randrange(len(held) // 3 + 1)
        for known_as in ids[:gone]:
            theirs.removeAcl(known_as)
        ours.change((), held[:gone])
        for principal, host in random.sample(subjects, 5):
            results = theirs.authorize(contexts[principal, host], actions).toString().strip("[]").split(", ")
            subject = ours.subject(principal, ADDRESSES[host])
            for (kind, operation, name), result in zip(asked, results, strict=True):
                allowed = subject.may(operation, kind, name, "Test", logged=False)
                assert (result == "ALLOWED") == allowed, (held[gone:], principal, host, kind, operation, name)
                tally[allowed] += 1
            for operation in (Operation.WRITE, Operation.DESCRIBE, Operation.READ):
                for kind in (Kind.TOPIC, Kind.GROUP):
                    result = kafka.by_resource_type(theirs, contexts[principal, host], operation, kind)
                    mine = subject.may_any(operation, kind, "Test")
                    assert (result == "ALLOWED") == mine, (held[gone:], principal, host, kind, operation)
    assert min(tally.values()) > 5_000  # both answers were asked for, often


def test_filters_find_what_kafkas_find(kafka):
    random = Random(31)
    questions = Questions(random)
    held = [questions.acl(Acl) for _ in range(24)]
    bindings = [kafka.acl(acl).toBinding() for acl in held]
    tally = {True: 0, False: 0}
    for _ in range(60):
        like = random.choice(held)
        fields = {field: getattr(like, field) for field in Acl._fields if random.random() < 0.3}
        if random.random() < 0.6:
            fields["pattern"] = random.choice((Pattern.MATCH, Pattern.ANY))
            fields["name"] = random.choice((like.name, "abc", "ab*"))
        wanted = Filter(**fields)
        java_filter = kafka.filter(wanted)
        for acl, binding in zip(held, bindings, strict=True):
            found = wanted.finds(acl)
            assert java_filter.matches(binding) == found, (wanted, acl)
            tally[found] += 1
    assert min(tally.values()) > 100


def test_acls_and_addresses_are_written_as_in_java(kafka):
    questions = Questions(Random(7))
    for _ in range(20):
        acl = questions.acl(Acl)
        assert kafka.acl(acl).toString() == str(acl)
    for address in ("10.1.2.3", "::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "fe80::1", "::"):
        java = kafka.jvm.java.net.InetAddress.getByName(address).getHostAddress()
        assert java_address(address) == java


def test_every_resource_knows_kafkas_operations(kafka):
    from kafkad.security.acls import SUPPORTED

    for kind, operations in SUPPORTED.items():
        theirs = kafka.kafka.security.authorizer.AclEntry.supportedOperations(
            kafka.kafka.common.resource.ResourceType.valueOf(kind.name)
        )
        assert {operation.code() for operation in theirs} == set(operations)
