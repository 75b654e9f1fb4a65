"""Client quotas: what requests make of the image, and what is described of it. The texts are Kafka's; JVM
Kafka gives the same in tests/integration/test_quotas_jvm.py."""

import math

import pytest
from metadata_world import Cluster

from kafkad.api import quotas as api
from kafkad.controller import quotas
from kafkad.controller.mutation_quota import BUCKETS_MAX, MutationQuotas
from kafkad.controller.quotas import RECORDS_MAX, TOO_MANY
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.metadata_feed import decode_change, difference, encode_image, image_of

RATE = "producer_byte_rate"
INVALID = errors.INVALID_REQUEST


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def entry(entity, *ops):
    cls = messages.AlterClientQuotasRequest.Entries
    return cls(
        entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[cls.Ops(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def altered(cluster, *entries, validate_only=False):
    request = messages.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer = cluster.controller.alter_client_quotas(request)
    return [(result.error_code, result.error_message) for result in answer.entries]


def held(cluster):
    return {key: record.value for key, record in cluster.controller.head.client_quotas.items()}


ANNA = [("user", "anna")]


def test_a_quota_is_set_changed_and_removed(cluster):
    assert altered(cluster, entry(ANNA, (RATE, 1000.0), ("consumer_byte_rate", 5.0))) == [(0, None)]
    place = (("user", False, "anna"),)
    assert held(cluster) == {(place, RATE): 1000.0, (place, "consumer_byte_rate"): 5.0}
    offset = cluster.controller.head.offset
    assert altered(cluster, entry(ANNA, (RATE, 1000.0))) == [(0, None)]
    assert cluster.controller.head.offset == offset  # it is what it was
    assert altered(cluster, entry(ANNA, (RATE, None), ("no_such_key", None))) == [(0, None)]
    assert held(cluster) == {(place, "consumer_byte_rate"): 5.0}


def test_default_and_named_and_both_kinds_of_entities(cluster):
    entities = [
        [("user", None)], [("client-id", None)], [("client-id", "c"), ("user", "anna")],
        [("user", "anna"), ("client-id", None)],
    ]  # fmt: skip
    assert altered(cluster, *(entry(each, (RATE, 10.0)) for each in entities)) == [(0, None)] * 4
    assert len(held(cluster)) == 4
    assert altered(cluster, entry([("user", "anna"), ("client-id", "c")], (RATE, None))) == [(0, None)]
    assert len(held(cluster)) == 3


@pytest.mark.parametrize(
    ("entity", "ops", "message"),
    [
        ([], [(RATE, 1.0)], "Invalid empty client quota entity"),
        ([("group", "g")], [(RATE, 1.0)], "Unhandled client quota entity type: group"),
        ([("user", "")], [(RATE, 1.0)], "Empty user not supported"),
        ([("ip", "10.0.0.1"), ("user", "a")], [], "Invalid quota entity combination, IP entity should"),
        ([("ip", "no.such.host.")], [], "no.such.host. is not a valid IP or resolvable host."),
        ([("ip", "10.0.0.1")], [(RATE, 1.0)], f"Invalid configuration key {RATE}"),
        (ANNA, [("x", 1.0)], "Invalid configuration key x"),
        (ANNA, [("connection_creation_rate", 1.0)], "Invalid configuration key connection_creation_rate"),
        (ANNA, [(RATE, 0.5)], f"{RATE} cannot be a fractional value."),
        (ANNA, [(RATE, -1.0)], f"Quota {RATE} must be greater than 0"),
        (ANNA, [(RATE, math.inf)], f"Proposed value for {RATE} is too large for a LONG."),
        (ANNA, [(RATE, math.nan)], f"Quota {RATE} must be greater than 0"),
        ([("ip", None)], [("connection_creation_rate", 2.0**31)],
         "Proposed value for connection_creation_rate is too large for an INT."),
        (ANNA, [(RATE, 1.0), (RATE, 2.0)], "Ignoring duplicate entity"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_whole_and_by_name(cluster, entity, ops, message):
    other = entry([("user", "bob")], (RATE, 7.0))
    fine_ops = [("consumer_byte_rate", 5.0)] if entity == ANNA else []
    (code, text), fine = altered(cluster, entry(entity, *fine_ops, *ops), other)
    assert code == INVALID
    assert text.startswith(message)
    assert fine == (0, None)
    assert list(held(cluster).values()) == [7.0]


def test_zero_is_no_quota(cluster):
    cls = messages.AlterClientQuotasRequest.Entries
    zero = cls(entity=[cls.Entity(entity_type="user", entity_name="a")], ops=[cls.Ops(key=RATE, value=0.0)])
    assert altered(cluster, zero) == [(INVALID, f"Quota {RATE} must be greater than 0")]


def test_an_entity_that_comes_twice_keeps_its_first_change(cluster):
    """As with Kafka, whose answer then names the error of the second."""
    first, second = entry(ANNA, (RATE, 1.0)), entry(ANNA, (RATE, 2.0))
    [(code, message)] = altered(cluster, first, second)
    assert (code, message) == (INVALID, "Ignoring duplicate entity ClientQuotaEntity(entries={user=anna})")
    assert list(held(cluster).values()) == [1.0]


def test_only_validated(cluster):
    assert altered(cluster, entry(ANNA, (RATE, 1.0)), validate_only=True) == [(0, None)]
    assert held(cluster) == {}


def test_a_request_that_would_write_too_much_writes_nothing(cluster):
    entries = [entry([("user", f"u{i}")], (RATE, 1.0)) for i in range(RECORDS_MAX + 1)]
    with pytest.raises(KafkaError, match=TOO_MANY):
        altered(cluster, *entries)
    assert held(cluster) == {}


def test_the_feed_tells_which_quotas_have_changed(cluster):
    before = cluster.controller.head
    altered(cluster, entry(ANNA, (RATE, 1.0)), entry([("user", None)], (RATE, 2.0)))
    received = image_of(decode_change(encode_image(cluster.controller.head)), MetadataImage("c", 1))
    assert received.client_quotas == cluster.controller.head.client_quotas
    assert difference(before, received).quotas_changed == set(held(cluster))
    assert difference(received, received).quotas_changed == set()


# -- DescribeClientQuotas ----------------------------------------------------------------------------------


class Services:
    def __init__(self, cluster):
        self.metadata = type("Images", (), {"image": cluster.controller.head})


def described(cluster, *components, strict=False):
    cls = messages.DescribeClientQuotasRequest
    request = cls(
        components=[cls.Components(entity_type=t, match_type=m, match=name) for t, m, name in components],
        strict=strict,
    )
    steps = api.describe_client_quotas(Services(cluster), None, request)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return {
                tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
                    value.key: value.value for value in entry.values
                }
                for entry in end.value.entries
            }


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, {"anna", "anna+c", "default", "c"}),
        ([], True, set()),
        ([("user", 0, "anna")], False, {"anna", "anna+c"}),
        ([("user", 0, "anna")], True, {"anna"}),
        ([("user", 1, None)], False, {"default"}),
        ([("user", 2, None)], False, {"anna", "anna+c", "default"}),
        ([("user", 2, None), ("client-id", 2, None)], True, {"anna+c"}),
        ([("client-id", 2, None)], True, {"c"}),
        ([("user", 0, "nobody")], False, set()),
    ],
)  # fmt: skip
def test_filters(cluster, components, strict, found):
    names = {
        "anna": [("user", "anna")], "anna+c": [("client-id", "c"), ("user", "anna")],
        "default": [("user", None)], "c": [("client-id", "c")],
    }  # fmt: skip
    altered(cluster, *(entry(entity, (RATE, 5.0)) for entity in names.values()))
    assert described(cluster, *components, strict=strict) == {
        tuple(sorted(names[name])): {RATE: 5.0} for name in found
    }


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 0, "x")], INVALID, "Invalid empty entity type."),
        ([("user", 0, "x"), ("user", 1, None)], INVALID,
         "Entity type user cannot appear more than once in the filter."),
        ([("group", 0, "x")], errors.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 0, None)], INVALID, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "x")], INVALID,
         "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "x")], INVALID,
         "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], INVALID, "Unknown match type 3"),
        ([("ip", 2, None), ("user", 2, None)], INVALID,
         "Invalid entity filter component combination. IP filter component should not be used with user or"
         " clientId filter component."),
    ],
)  # fmt: skip
def test_filters_that_make_no_sense(cluster, components, code, message):
    with pytest.raises(KafkaError) as refused:
        described(cluster, *components)
    assert (refused.value.code, refused.value.message) == (code, message)


def test_keys_are_those_of_kafka():
    assert set(quotas.KEYS) == {
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    }  # fmt: skip


# -- controller_mutation_rate ------------------------------------------------------------------------------


class Asked:
    """As RequestContext."""

    principal, client_id = "User:anna", "c"

    def __init__(self, api_key, version):
        self.api_key, self.version = api_key, version


def limited(cluster, rate=10.0):
    cluster.controller.mutations = MutationQuotas(lambda *_: (5, rate), cluster.clock, 11)
    return cluster


def create(cluster, name, partitions, version=7):
    topic = messages.CreateTopicsRequest.Topics(name=name, num_partitions=partitions, replication_factor=1)
    request = messages.CreateTopicsRequest(topics=[topic])
    answer = cluster.controller.create_topics(request, Asked(19, version))
    return answer.topics[0].error_code, answer.throttle_time_ms


EXCEEDED = errors.THROTTLING_QUOTA_EXCEEDED


def test_the_debt_of_the_smallest_rate_is_a_number(cluster):
    limited(cluster, rate=5e-324)
    code, _ = create(cluster, "a", 3)
    assert code == errors.NONE
    assert create(cluster, "b", 1) == (EXCEEDED, 2**31 - 1)


def test_a_debt_of_partitions_is_paid_before_more_are_made(cluster):
    limited(cluster)
    assert create(cluster, "a", 100) == (0, 0)
    assert create(cluster, "b", 60) == (0, 0)  # 50 more than the 110 that were there
    assert create(cluster, "c", 1) == (EXCEEDED, 5000)
    assert create(cluster, "d", 10, version=5) == (0, 6000)  # it is only told
    cluster.clock.advance(6000)
    assert create(cluster, "c", 1) == (0, 0)


def test_deletions_and_more_partitions_count_too(cluster):
    limited(cluster)
    assert create(cluster, "a", 120) == (0, 0)
    deletion = messages.DeleteTopicsRequest(topics=[messages.DeleteTopicsRequest.Topics(name="a")])
    answer = cluster.controller.delete_topics(deletion, Asked(20, 6))
    assert (answer.responses[0].error_code, answer.throttle_time_ms) == (EXCEEDED, 1000)
    assert "a" in cluster.controller.head.topics
    growth = messages.CreatePartitionsRequest(
        topics=[messages.CreatePartitionsRequest.Topics(name="a", count=121, assignments=None)]
    )
    answer = cluster.controller.create_partitions(growth, Asked(37, 3))
    assert (answer.results[0].error_code, answer.throttle_time_ms) == (EXCEEDED, 1000)
    assert cluster.controller.create_partitions(growth, Asked(37, 2)).results[0].error_code == 0
    cluster.clock.advance(2000)
    assert cluster.controller.delete_topics(deletion, Asked(20, 6)).responses[0].error_code == 0


def test_buckets_are_bounded_and_beyond_that_shared(cluster):
    quotas = MutationQuotas(lambda *_: None, cluster.clock, 11)
    for key in range(1, BUCKETS_MAX + 1):
        quotas.bucket(key, 10.0).tokens = -5
    quotas.bucket(BUCKETS_MAX + 7, 10.0).tokens = -5
    assert quotas.bucket(BUCKETS_MAX + 8, 10.0).tokens == -5
    cluster.clock.advance(12_000)
    assert quotas.bucket(BUCKETS_MAX + 7, 10.0) is not quotas.bucket(BUCKETS_MAX + 8, 10.0)
