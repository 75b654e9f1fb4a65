"""ACLs: what requests make of the image. The texts are Kafka's."""

from random import Random

import pytest
from metadata_world import Cluster

from kafkad.controller import acls
from kafkad.controller.acls import TOO_MANY_GONE, TOO_MANY_LISTED, TOO_MANY_NEW
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.security.acls import Acl, Kind
from tests.reference import slow_acls

READ_T = Acl(2, "t", 3, "User:alice", "*", 3, 3)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def creation(acl):
    return messages.CreateAclsRequest.Creations(
        resource_type=acl.kind,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def created(cluster, *wanted):
    request = messages.CreateAclsRequest(creations=[creation(acl) for acl in wanted])
    answer = cluster.controller.create_acls(request)
    return [(result.error_code, result.error_message) for result in answer.results]


def one_filter(kind=1, name=None, pattern=1, principal=None, host=None, operation=1, permission=1):
    return messages.DeleteAclsRequest.Filters(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=principal,
        host_filter=host,
        operation=operation,
        permission_type=permission,
    )


def deleted(cluster, *filters):
    answer = cluster.controller.delete_acls(messages.DeleteAclsRequest(filters=list(filters)))
    return [
        (result.error_code, result.error_message, [found(row) for row in result.matching_acls])
        for result in answer.filter_results
    ]


def found(row):
    return Acl(
        row.resource_type,
        row.resource_name,
        row.pattern_type,
        row.principal,
        row.host,
        row.operation,
        row.permission_type,
    )


def held(cluster):
    return sorted(map(Acl.of, cluster.image.acls.values()))


def test_an_acl_is_there_when_the_answer_is_and_only_once(cluster):
    prefix = READ_T._replace(pattern=4)
    assert created(cluster, READ_T, READ_T, prefix) == [(0, "")] * 3
    assert held(cluster) == [READ_T, prefix]
    offset = cluster.image.offset
    assert created(cluster, prefix, READ_T) == [(0, "")] * 2
    assert cluster.image.offset == offset  # nothing was written
    assert len(cluster.heard[-1][0].acls_changed) == 2


def test_acls_survive_a_restart(cluster):
    created(cluster, READ_T)
    cluster.stop()
    cluster.start()
    assert held(cluster) == [READ_T]
    offset = cluster.image.offset
    assert created(cluster, READ_T) == [(0, "")]
    assert cluster.image.offset == offset
    assert deleted(cluster, one_filter()) == [(0, None, [READ_T])]
    assert held(cluster) == []
    assert created(cluster, READ_T) == [(0, "")]
    assert held(cluster) == [READ_T]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"kind": 4, "name": ""}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"name": ""}, "Invalid empty resource name"),
        ({"kind": 1}, "Invalid resourceType ANY"),
        ({"kind": 8}, "Invalid resourceType UNKNOWN"),
        ({"kind": -1}, "Invalid resourceType UNKNOWN"),
        ({"pattern": 1}, "Invalid patternType ANY"),
        ({"pattern": 2}, "Invalid patternType MATCH"),
        ({"pattern": 5}, "Invalid patternType UNKNOWN"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"operation": 16}, "Invalid operation UNKNOWN"),
        ({"permission": 1}, "Invalid permissionType ANY"),
        ({"permission": 4}, "Invalid permissionType UNKNOWN"),
        ({"kind": 1, "pattern": 1, "principal": "alice"}, "Invalid resourceType ANY"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from"
            " the principal name)",
        ),
    ],
)
def test_a_wrong_acl_is_refused_and_the_others_are_made(cluster, fields, text):
    results = created(cluster, READ_T, READ_T._replace(**fields), READ_T._replace(name="u"))
    assert results == [(0, ""), (errors.INVALID_REQUEST, text), (0, "")]
    assert held(cluster) == [READ_T, READ_T._replace(name="u")]


def test_the_message_about_a_long_principal_fits_into_the_answer(cluster):
    ((code, message),) = created(cluster, READ_T._replace(principal="p" * 32_767))
    assert code == errors.INVALID_REQUEST and len(message) < 2_000


def test_the_cluster_has_one_name(cluster):
    assert created(cluster, READ_T._replace(kind=4, name="kafka-cluster", operation=9)) == [(0, "")]


def test_too_many_new_acls_are_none(cluster, monkeypatch):
    monkeypatch.setattr(acls, "RECORDS_MAX", 2)
    three = [READ_T._replace(name=name) for name in "abc"]
    wrong = READ_T._replace(name="")
    refused = (errors.POLICY_VIOLATION, TOO_MANY_NEW)
    assert created(cluster, *three, wrong) == [refused] * 3 + [
        (errors.INVALID_REQUEST, "Invalid empty resource name")
    ]
    assert held(cluster) == []
    assert created(cluster, *three[:2], three[0], wrong)[:3] == [(0, "")] * 3
    assert created(cluster, *three) == [(0, "")] * 3  # two of them are there


def test_deletes_by_filters(cluster):
    prefix, group = READ_T._replace(pattern=4), READ_T._replace(kind=3, host="10.0.0.1")
    created(cluster, READ_T, prefix, group)
    results = deleted(
        cluster,
        one_filter(kind=2, name="t", pattern=3),
        one_filter(name="tt", pattern=2),
        one_filter(kind=2, name="t", pattern=3),  # found by two filters: listed twice, removed once
        one_filter(kind=99),
        one_filter(pattern=5),
        one_filter(operation=16),
        one_filter(permission=9),
        one_filter(principal="User:bob"),
    )
    unknown = [(errors.INVALID_REQUEST, f"Unknown {what}.", []) for what in ("patternFilter", "entryFilter")]
    assert results == [
        (0, None, [READ_T]),
        (0, None, [prefix]),
        (0, None, [READ_T]),
        *unknown[:1] * 2,
        *unknown[1:] * 2,
        (0, None, []),
    ]
    assert held(cluster) == [group]


def test_many_filters_do_not_each_look_at_all_acls(cluster, monkeypatch):
    """10,000 filters with names, as kafka-acls sends them, would hold up the controller for a minute."""
    created(cluster, *[READ_T._replace(name=f"t{number}") for number in range(300)])
    looked = []
    finds = acls.Filter.finds
    monkeypatch.setattr(acls.Filter, "finds", lambda *about: looked.append(about) or finds(*about))
    filters = [one_filter(name=f"t{number}") for number in range(200)]
    filters += [one_filter(name=f"t{number}x", pattern=2) for number in range(200)]
    assert [len(row[2]) for row in deleted(cluster, *filters)] == [1] * 200 + [0] * 200
    assert len(looked) < 2_000
    assert len(held(cluster)) == 100


def test_deletes_find_what_a_walk_over_all_finds(cluster):
    random = Random(11)
    questions = slow_acls.Questions(random)
    there = [acl for acl in dict.fromkeys(questions.acl(Acl) for _ in range(80)) if acl.kind != Kind.CLUSTER]
    created(cluster, *there)
    for _ in range(25):
        like = random.choice(there)
        fields = {name: getattr(like, name) for name in Acl._fields if random.random() < 0.4}
        if random.random() < 0.7:
            fields |= {"name": random.choice((like.name, "abc", "*")), "pattern": random.choice((1, 2, 4))}
        expected = [acl for acl in there if acls.Filter(**fields).finds(acl)]
        [(code, _, gone)] = deleted(cluster, one_filter(**fields))
        assert (code, sorted(gone)) == (0, sorted(expected)), fields
        created(cluster, *gone)
        assert held(cluster) == sorted(there)


def test_too_many_deletes_are_none(cluster, monkeypatch):
    created(cluster, *[READ_T._replace(name=name) for name in "abc"])
    monkeypatch.setattr(acls, "RECORDS_MAX", 2)
    with pytest.raises(KafkaError) as trouble:
        deleted(cluster, one_filter())
    assert (trouble.value.code, trouble.value.message) == (errors.INVALID_REQUEST, TOO_MANY_GONE)
    assert len(held(cluster)) == 3
    monkeypatch.setattr(acls, "LISTED_MAX", 3)
    one = one_filter(name="a")
    with pytest.raises(KafkaError) as trouble:
        deleted(cluster, one, one, one, one)
    assert (trouble.value.code, trouble.value.message) == (errors.INVALID_REQUEST, TOO_MANY_LISTED)
    assert len(deleted(cluster, one, one, one)) == 3


def test_a_disk_that_fails_makes_no_acl(cluster):
    created(cluster, READ_T)
    cluster.log.failing = "append"
    [(code, _), (again, _)] = created(cluster, READ_T._replace(name="u"), READ_T._replace(kind=1))
    assert (code, again) == (errors.KAFKA_STORAGE_ERROR, errors.INVALID_REQUEST)
    assert [row[0] for row in deleted(cluster, one_filter())] == [errors.KAFKA_STORAGE_ERROR]
    cluster.log.failing = None
    assert held(cluster) == [READ_T]
    assert created(cluster, READ_T._replace(name="u"), READ_T) == [(0, "")] * 2
    assert held(cluster) == [READ_T, READ_T._replace(name="u")]


def test_the_count_of_acls_follows_and_is_not_made_anew(cluster):
    created(cluster, READ_T)
    counted = cluster.controller._acl_counts
    before = counted._counts
    for name in "abc":
        created(cluster, READ_T._replace(name=name))
    deleted(cluster, one_filter(name="b"))
    created(cluster, READ_T._replace(name="d"))
    assert counted._counts is before
    assert sorted(before) == held(cluster) and set(before.values()) == {1}
