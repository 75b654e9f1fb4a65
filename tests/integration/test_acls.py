"""ACLs over the wire: the same requests to kafkad and to JVM Kafka, each with StandardAuthorizer, have the
same answers. What an ACL lets a client do is tested elsewhere."""

import time

import confluent_kafka.admin
import kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from kafkad.protocol import errors, messages
from kafkad.security.acls import Acl
from kafkad.testing import Broker, BrokerFailed
from tests.clients import wait_until
from tests.jvm import JvmKafka
from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess
from tests.wire import Wire

STANDARD = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
READ_T = Acl(2, "t", 3, "User:alice", "*", 3, 3)
EVERY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
VERSIONS = (1, 2, 3)  # of Kafka 4.3


@pytest.fixture(scope="module", params=[1, 2])
def broker(request):
    with Broker(workers=request.param, config=STANDARD) as broker:
        yield broker


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    with JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=STANDARD) as kafka:
        yield kafka


def fields_of(version, fields):
    return {name: it for name, it in fields.items() if version or "pattern_type" not in name}


def create(wire, *wanted, version=3):
    cls = messages.CreateAclsRequest.Creations
    names = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation",
             "permission_type")  # fmt: skip
    creations = [cls(**fields_of(version, dict(zip(names, acl, strict=True)))) for acl in wanted]
    response = wire.ask(messages.CreateAclsRequest(creations=creations), version)
    return [(it.error_code, it.error_message) for it in response.results]


def describe(wire, version=3, **fields):
    response = wire.ask(messages.DescribeAclsRequest(**fields_of(version, {**EVERY, **fields})), version)
    assert (response.error_code, response.error_message or "") == (0, "")
    found = [
        Acl(row.resource_type, row.resource_name, row.pattern_type,
            acl.principal, acl.host, acl.operation, acl.permission_type)
        for row in response.resources
        for acl in row.acls
    ]  # fmt: skip
    assert len(response.resources) == len({acl[:3] for acl in found})
    return sorted(found)


def delete(wire, *filters, version=3):
    cls = messages.DeleteAclsRequest
    asked = [cls.Filters(**fields_of(version, {**EVERY, **fields})) for fields in filters]
    response = wire.ask(cls(filters=asked), version)
    return [
        (
            result.error_code,
            result.error_message,
            sorted(
                (row.error_code, row.error_message, row.resource_type, row.resource_name, row.pattern_type,
                 row.principal, row.host, row.operation, row.permission_type)
                for row in result.matching_acls
            ),
        )
        for result in response.filter_results
    ]  # fmt: skip


def story(wire, settle=lambda: None):
    """What a broker without ACLs answers to all sorts of requests. `settle` waits for changes to be seen: JVM
    Kafka answers before its authorizer has them."""
    told = []
    acls = [
        READ_T,
        READ_T._replace(pattern=4),
        READ_T._replace(name="*"),
        READ_T._replace(kind=4, name="kafka-cluster", operation=12),
        READ_T._replace(kind=7, name="User:bob", operation=14),
        READ_T._replace(principal="User:a:b", host="not a host", permission=2),
        READ_T._replace(principal=":", name="ä", host=""),
        READ_T._replace(kind=5, name="x" * 300, operation=2),
    ]
    wrong = [
        {"kind": 4}, {"name": ""}, {"kind": 9}, {"pattern": 9}, {"operation": 99}, {"permission": 9},
        {"principal": "alice"}, {"principal": ""}, {"kind": 4, "name": ""},
    ]  # fmt: skip
    told.append(create(wire, *acls, acls[0], *(READ_T._replace(**fields) for fields in wrong)))
    told.append(create(wire, acls[1]))
    told.append(create(wire))
    settle()
    for fields in (
        {}, {"resource_type_filter": 2}, {"resource_name_filter": "t"}, {"principal_filter": "User:a:b"},
        {"resource_name_filter": "tt", "pattern_type_filter": 2}, {"host_filter": "*"},
        {"resource_name_filter": "t", "pattern_type_filter": 3}, {"pattern_type_filter": 4}, {"operation": 2},
        {"permission_type": 2}, {"resource_type_filter": 6}, {"principal_filter": ""},
        {"resource_type_filter": 9}, {"operation": 99},
    ):  # fmt: skip
        told += [describe(wire, version, **fields) for version in VERSIONS]
    told.append(
        delete(
            wire,
            {"resource_name_filter": "t", "pattern_type_filter": 4},
            {"resource_name_filter": "t", "pattern_type_filter": 4},
            {"resource_type_filter": 9},
            {"pattern_type_filter": 9},
            {"operation": 99},
            {"permission_type": 9},
            {"principal_filter": "User:nobody"},
        )
    )
    told.append(delete(wire))
    for version in VERSIONS:
        told.append(create(wire, READ_T._replace(name=f"v{version}"), version=version))
        settle()
        told.append(delete(wire, {"resource_name_filter": f"v{version}"}, version=version))
    settle()
    told.append(describe(wire))
    told.append(delete(wire, {}))
    settle()
    told.append(describe(wire))
    return told


def closes(broker, message, version=3):
    with Wire(broker.bootstrap, timeout=20) as wire:
        try:
            wire.ask(message, version)
        except (ConnectionError, EOFError):
            return True
        return False


@pytest.mark.java
def test_answers_are_those_of_jvm_kafka(broker, jvm):
    with Wire(broker.bootstrap, timeout=30) as wire, Wire(jvm.bootstrap, timeout=30) as other:
        for mine, theirs in zip(story(wire), story(other, lambda: time.sleep(1)), strict=True):
            assert mine == theirs


@pytest.mark.java
def test_what_kafkas_clients_cannot_ask_closes_the_connection(broker, jvm):
    creation = messages.CreateAclsRequest.Creations
    filters = messages.DeleteAclsRequest.Filters
    for each in (broker, jvm):
        for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            assert closes(each, messages.DescribeAclsRequest(**{**EVERY, field: 0}))
            assert closes(each, messages.DeleteAclsRequest(filters=[filters(**{**EVERY, field: 0})]))
        plain = {"resource_type": 2, "resource_name": "t", "principal": "User:u", "host": "*"}
        for wrong in ({"operation": 3}, {"permission_type": 3}):
            assert closes(each, messages.CreateAclsRequest(creations=[creation(**plain, **wrong)]))
    assert "UNKNOWN elements" in broker.log


def test_super_users_without_a_type_end_the_start(tmp_path):
    wrong = Broker(config={**STANDARD, "super.users": "User:a;bob"}, data_dir=tmp_path / "data")
    with pytest.raises(BrokerFailed, match=r"super\.users: bob has no type: write User:bob"):
        wrong.start()
    assert not (tmp_path / "data").exists()


def test_version_0_knows_literal_names_only(broker):
    with Wire(broker.bootstrap, timeout=20) as wire:
        assert create(wire, READ_T, version=0) == [(0, "")]
        assert create(wire, READ_T._replace(pattern=4)) == [(0, "")]
        assert describe(wire, 0) == [READ_T]
        [(code, _, found)] = delete(wire, {}, version=0)
        assert code == 0 and len(found) == 1
        assert describe(wire) == [READ_T._replace(pattern=4)]
        delete(wire, {})


def test_acls_survive_a_restart_and_a_kill():
    with Broker(workers=2, config=STANDARD) as broker:
        with Wire(broker.bootstrap, timeout=20) as wire:
            assert create(wire, READ_T, READ_T._replace(name="u")) == [(0, "")] * 2
        broker.restart()
        with Wire(broker.bootstrap, timeout=20) as wire:
            assert describe(wire) == [READ_T, READ_T._replace(name="u")]
            delete(wire, {"resource_name_filter": "u"})
        broker.kill()
        broker.start()
        with Wire(broker.bootstrap, timeout=20) as wire:
            assert describe(wire) == [READ_T]
        assert "not enforced" not in broker.log


@pytest.mark.java
def test_acls_go_to_jvm_kafka_and_back_with_their_directory(tmp_path):
    """In the log and, after a restart, in a snapshot."""
    prefix, denial = READ_T._replace(pattern=4), READ_T._replace(permission=2, host="10.0.0.1")
    config = {**STANDARD, "node.id": 1}
    ours = Broker(config=config, data_dir=tmp_path / "data")
    with ours, Wire(ours.bootstrap, timeout=20) as wire:
        assert create(wire, READ_T, prefix, READ_T._replace(name="gone")) == [(0, "")] * 3
        delete(wire, {"resource_name_filter": "gone"})
    with JvmKafka(tmp_path / "data", config=STANDARD) as kafka, Wire(kafka.bootstrap, timeout=30) as wire:
        assert describe(wire) == [READ_T, prefix]
        assert create(wire, denial, READ_T._replace(name="u")) == [(0, "")] * 2
        delete(wire, {"pattern_type_filter": 4})
        assert describe(wire) == sorted([READ_T, denial, READ_T._replace(name="u")])
    ours = Broker(config=config, data_dir=tmp_path / "data")
    with ours, Wire(ours.bootstrap, timeout=20) as wire:
        assert describe(wire) == sorted([READ_T, denial, READ_T._replace(name="u")])
        assert create(wire, READ_T) == [(0, "")]


def test_clients_administrate_acls(broker):
    """librdkafka and kafka-python, each with classes of its own for what an ACL says."""
    with Wire(broker.bootstrap, timeout=20) as wire:
        delete(wire, {})
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    said = (ResourceType.TOPIC, "t", ResourcePatternType.PREFIXED, "User:anna", "*",
            AclOperation.WRITE, AclPermissionType.ALLOW)  # fmt: skip
    for future in admin.create_acls([AclBinding(*said)], request_timeout=20).values():
        future.result(20)
    python = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    loaders = kafka.admin.ResourcePattern(kafka.admin.ResourceType.GROUP, "g")
    allow, read = kafka.admin.ACLPermissionType.ALLOW, kafka.admin.ACLOperation.READ
    python.create_acls([kafka.admin.ACL("User:bob", "*", read, allow, loaders)])
    every = (
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = admin.describe_acls(AclBindingFilter(*every), request_timeout=20).result(20)
    assert {(acl.name, acl.principal) for acl in found} == {("t", "User:anna"), ("g", "User:bob")}
    [gone] = admin.delete_acls([AclBindingFilter(*every)], request_timeout=20).values()
    assert len(gone.result(20)) == 2
    with Wire(broker.bootstrap, timeout=20) as wire:
        assert describe(wire) == []
    python.close()


@pytest.mark.java
def test_acls_of_a_cluster_whose_controllers_are_jvms(tmp_path):
    """kafkad as one of its brokers: it follows their ACLs, and its clients' changes go to them."""
    with JvmCluster(tmp_path, brokers=1, config=STANDARD) as cluster:
        node = cluster.new_broker(2)
        node.format()
        member = MemberProcess(node)
        with member, Wire(member.bootstrap) as wire, Wire(cluster.brokers[0].bootstrap) as other:
            assert create(wire, READ_T, READ_T._replace(kind=9)) == [
                (0, ""),
                (errors.INVALID_REQUEST, "Invalid resourceType UNKNOWN"),
            ]
            assert create(other, READ_T._replace(name="u")) == [(0, "")]
            both = [READ_T, READ_T._replace(name="u")]
            wait_until(lambda: describe(wire) == both and describe(other) == both)
            [(code, _, found)] = delete(wire, {"resource_name_filter": "u"})
            assert (code, len(found)) == (0, 1)
            wait_until(lambda: describe(wire) == describe(other) == [READ_T])
            assert member.stop() == 0, member.log


def test_an_answer_with_ten_thousand_acls(broker):
    """One request makes as many as Kafka allows, one more makes none."""
    with Wire(broker.bootstrap, timeout=60) as wire:
        many = [READ_T._replace(name=f"t{number}") for number in range(10_001)]
        refused = {(errors.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")}
        assert set(create(wire, *many)) == refused
        assert describe(wire) == []
        assert set(create(wire, *many[:-1])) == {(0, "")}
        assert create(wire, many[-1]) == [(0, "")]
        assert len(describe(wire)) == 10_001
        [(code, message, found)] = delete(wire, {})
        assert (code, found) == (errors.INVALID_REQUEST, [])
        assert message == "Cannot remove more than 10000 acls in a single delete operation."
        [(code, _, found)] = delete(wire, {"resource_name_filter": "t1"})
        assert (code, len(found)) == (0, 1)
        [(code, _, found)] = delete(wire, {})
        assert (code, len(found)) == (0, 10_000)
        assert describe(wire) == []
