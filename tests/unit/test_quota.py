"""Which quota holds for a client, and which clients share it."""

import random

import pytest

from kafkad.quota import CLIENT_ID, DEFAULT, IP, USER, Bucket, ClientQuotas, Kind, Name

RATE = "producer_byte_rate"


def quotas(*entities):
    """Each: (user or None, client id or None, limit), with "*" for the default."""
    made = ClientQuotas()
    for user, client, limit in entities:
        put(made, user, client, limit)
    return made


def put(made, user, client, limit, key=RATE):
    parts = tuple(
        (kind, name == "*", "" if name == "*" else name)
        for kind, name in ((CLIENT_ID, client), (USER, user))
        if name is not None
    )
    return made.set(parts, key, limit)


@pytest.mark.parametrize(
    ("entities", "client", "bucket"),
    [
        ([], ("anna", "c"), None),
        ([(None, "*", 1.0)], ("anna", "c"), ("", "c", 1.0)),  # each client id, whoever the user is
        ([(None, "c", 2.0), (None, "*", 1.0)], ("anna", "c"), ("", "c", 2.0)),
        ([(None, "*", 1.0)], ("anna", ""), None),  # as with Kafka
        ([("*", None, 1.0)], ("anna", "c"), ("anna", "", 1.0)),  # each user, with all client ids
        ([("anna", None, 2.0)], ("bob", "c"), None),
        ([("anna", "*", 3.0)], ("anna", "c"), ("anna", "c", 3.0)),
        ([("anna", None, 2.0), (None, "c", 1.0)], ("anna", "c"), ("anna", "", 2.0)),
        ([("anna", None, 2.0), (None, "c", 1.0)], ("bob", "c"), ("", "c", 1.0)),
        ([("*", "*", 4.0), ("anna", None, 2.0)], ("bob", "d"), ("bob", "d", 4.0)),
        ([("*", None, 4.0), (None, "c", 2.0)], ("bob", "c"), ("bob", "", 4.0)),
    ],
)  # fmt: skip
def test_clients_share_the_bucket_of_the_most_specific_quota(entities, client, bucket):
    assert quotas(*entities).bucket(Kind.PRODUCE, *client) == (bucket and Bucket(*bucket))


def precedence(user, client):
    """Entities in the order of KIP-55."""
    u, c = Name(False, user), Name(False, client)
    return [
        (u, c), (u, DEFAULT), (u, None), (DEFAULT, c), (DEFAULT, DEFAULT), (DEFAULT, None), (None, c),
        (None, DEFAULT),
    ]  # fmt: skip


@pytest.mark.soak
def test_the_limit_is_that_of_the_first_entity_in_order_however_quotas_came_and_went(seeds):
    for seed in seeds(50, 3000):
        _the_limit_is_that_of_the_first_entity_in_order_however_quotas_came_and_went(seed)


def _the_limit_is_that_of_the_first_entity_in_order_however_quotas_came_and_went(seed):
    rng = random.Random(seed)
    made, limits = ClientQuotas(), {}
    for _ in range(60):
        user, client = rng.choice((None, "*", "a", "b")), rng.choice((None, "*", "x", "y"))
        if user is None and client is None:
            continue
        limit = rng.choice((None, rng.random() + 1))
        assert put(made, user, client, limit) is Kind.PRODUCE
        entity = tuple(None if n is None else DEFAULT if n == "*" else Name(False, n) for n in (user, client))
        limits.pop(entity, None)
        if limit is not None:
            limits[entity] = limit
        assert made.has(Kind.PRODUCE) == bool(limits)
        assert not made.has(Kind.FETCH)
        who, what = rng.choice("abc"), rng.choice("xyz")
        bucket = made.bucket(Kind.PRODUCE, who, what)
        expected = next((limits[e] for e in precedence(who, what) if e in limits), None)
        assert (bucket and bucket.limit) == expected


def test_what_is_no_quota_of_users_and_client_ids_is_left_alone():
    made = ClientQuotas()
    assert made.set(((IP, False, "10.0.0.1"),), "connection_creation_rate", 5.0) is None
    assert made.set(((IP, False, "10.0.0.1"),), RATE, 5.0) is None
    assert made.set((("group", False, "g"),), RATE, 5.0) is None
    assert put(made, "anna", None, 5.0, "no_such_rate") is None
    assert not any(made.has(kind) for kind in Kind)


def test_the_default_is_no_client_with_an_empty_name():
    made = quotas(("*", None, 1.0), ("", None, 9.0))
    assert made.bucket(Kind.PRODUCE, "anna", "c").limit == 1.0
