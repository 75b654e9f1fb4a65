"""Client quotas and feature levels, as plans."""

import pytest
from controller_world import World
from steps import finish

from kafkad.controller import feature_levels, quotas
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

BEFORE_UPGRADE_TYPES, NEWEST = 0, 2


def alter(world, *entries, validate_only=False):
    """Error codes; an entry is (entity, {key: value, or None to remove it})."""
    cls = messages.AlterClientQuotasRequest
    row = cls.Entries
    request = cls(
        validate_only=validate_only,
        entries=[
            row(
                entity=[row.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
                ops=[
                    row.Ops(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in changes
                ],
            )
            for entity, changes in entries
        ],
    )
    records, response = finish(quotas.plan_alter(world.image, request))
    world.commit([] if validate_only else records)
    return [entry.error_code for entry in response.entries]


def kept(world):
    return {key: record.value for (_, key), record in world.image.client_quotas.items()}


def test_quotas_are_set_changed_and_removed():
    world = World()
    user = [("user", "ann")]
    assert alter(world, (user, [("producer_byte_rate", 10.0), ("request_percentage", 12.5)])) == [0]
    assert kept(world) == {"producer_byte_rate": 10.0, "request_percentage": 12.5}
    assert alter(world, (user, [("producer_byte_rate", 10.0)])) == [0]
    assert world.records == []  # it is so already
    assert alter(world, (user, [("producer_byte_rate", None), ("consumer_byte_rate", None)])) == [0]
    assert kept(world) == {"request_percentage": 12.5}


def test_the_default_entity_is_not_the_named_one():
    world = World()
    assert alter(world, ([("client-id", None)], [("consumer_byte_rate", 5.0)])) == [0]
    assert alter(world, ([("client-id", "c")], [("consumer_byte_rate", None)])) == [0]
    assert kept(world) == {"consumer_byte_rate": 5.0}


def test_nothing_is_written_when_it_is_only_tried():
    world = World()
    assert alter(world, ([("user", "a")], [("producer_byte_rate", 1.0)]), validate_only=True) == [0]
    assert kept(world) == {}


@pytest.mark.parametrize(
    "entry",
    [
        ([], [("producer_byte_rate", 1.0)]),
        ([("group", "g")], [("producer_byte_rate", 1.0)]),
        ([("user", "a"), ("ip", "1.2.3.4")], [("producer_byte_rate", 1.0)]),
        ([("user", "")], [("producer_byte_rate", 1.0)]),
        ([("user", "a")], [("connection_creation_rate", 1.0)]),
        ([("ip", "1.2.3.4")], [("producer_byte_rate", 1.0)]),
        ([("ip", "1.2.3.400")], [("connection_creation_rate", 1.0)]),
        ([("user", "a")], [("producer_byte_rate", 0.0)]),
        ([("user", "a")], [("producer_byte_rate", -1.0)]),
        ([("user", "a")], [("producer_byte_rate", float("nan"))]),
        ([("user", "a")], [("producer_byte_rate", 1.5)]),
        ([("user", "a")], [("producer_byte_rate", 1e30)]),
        ([("user", "a")], [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)]),
    ],
)
def test_a_quota_that_cannot_be_changes_nothing(entry):
    world = World()
    good = ([("user", "good")], [("producer_byte_rate", 1.0)])
    assert alter(world, entry, good) == [errors.INVALID_REQUEST, 0]
    assert kept(world) == {"producer_byte_rate": 1.0}


# -- features ----------------------------------------------------------------------------------------------


def update(world, *updates, version=NEWEST, validate_only=False, voters=(9,), raised=None):
    """(error code, message); an update is (feature, level, upgrade type). `raised`: takes kraft.version's."""
    cls = messages.UpdateFeaturesRequest
    request = cls(
        validate_only=validate_only,
        feature_updates=[
            cls.FeatureUpdates(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ],
    )
    plan = feature_levels.plan_update(world.image, 9, voters, version, request, raised or print, 2)
    records, response = finish(plan)
    world.commit(records)
    return response.error_code, response.error_message or ""


UP, SAFE, UNSAFE = feature_levels.UPGRADE, feature_levels.SAFE_DOWNGRADE, feature_levels.UNSAFE_DOWNGRADE


def test_a_feature_is_raised_and_lowered():
    world = World(1)
    assert update(world, ("transaction.version", 2, UP)) == (0, "")
    assert world.image.features["transaction.version"] == 2
    assert update(world, ("transaction.version", 1, UP))[0] == errors.INVALID_UPDATE_VERSION
    assert update(world, ("transaction.version", 1, SAFE)) == (0, "")
    assert update(world, ("transaction.version", 2, SAFE))[0] == errors.INVALID_UPDATE_VERSION
    assert update(world, ("transaction.version", 0, SAFE)) == (0, "")
    assert "transaction.version" not in world.image.features


def test_metadata_version_goes_back_only_where_nothing_is_lost():
    world = World()
    code, message = update(world, ("metadata.version", 29, SAFE))
    assert code == errors.INVALID_UPDATE_VERSION
    assert "might delete metadata" in message
    assert "not supported" in update(world, ("metadata.version", 29, UNSAFE))[1]
    world.commit([messages.FeatureLevelRecord(name="metadata.version", feature_level=28)])
    assert update(world, ("metadata.version", 24, SAFE)) == (0, "")
    assert world.image.metadata_version == 24
    assert update(world, ("metadata.version", 22, SAFE))[0] == errors.INVALID_UPDATE_VERSION


def test_kraft_version_is_raised_after_all_others_or_not_at_all():
    world, levels = World(1), []
    world.image.kraft_version = 0
    kraft = ("kraft.version", 1, UP)
    assert update(world, kraft, ("group.version", 7, UP), raised=levels.append)[0]
    assert update(world, kraft, ("group.version", 1, UP), raised=levels.append) == (0, "")
    assert levels == [1]

    def refuse(level):
        raise KafkaError(errors.INVALID_UPDATE_VERSION, "controllers are missing")

    code, message = update(world, kraft, ("share.version", 0, UP), raised=refuse)
    assert (code, "controllers are missing" in message) == (errors.INVALID_UPDATE_VERSION, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("transaction.version", 3, UP), "only supports versions 0-2"),
        (("transaction.version", -1, UP), "cannot be less than 0"),
        (("transaction.version", 1, 7), "upgrade type"),
        (("no.such.version", 1, UP), "does not support this feature"),
        (("kraft.version", 0, SAFE), "Can't downgrade"),
    ],
)
def test_a_level_that_cannot_be_is_refused_and_all_others_with_it(change, reason):
    world = World(1)
    code, message = update(world, ("group.version", 1, UP), change)
    assert code == errors.INVALID_UPDATE_VERSION
    assert reason in message
    assert "group.version" not in world.image.features


def test_eligible_leader_replicas_need_one_min_isr_for_all():
    """KIP-966: a cluster-wide value is written, and those of brokers are removed; both only where needed."""
    world, elr = World(1), "eligible.leader.replicas.version"
    assert update(world, (elr, 0, SAFE)) == (0, "")
    assert not world.image.elr_enabled
    record = messages.ConfigRecord
    world.commit(
        [
            record(resource_type=4, resource_name="", name="min.insync.replicas", value=None),
            record(resource_type=4, resource_name="1", name="min.insync.replicas", value="3"),
            record(resource_type=4, resource_name="1", name="log.cleaner.threads", value="3"),
            record(resource_type=2, resource_name="t", name="min.insync.replicas", value="3"),
        ]
    )
    assert update(world, (elr, 1, UP), validate_only=True) == (0, "")
    assert not world.image.elr_enabled and (4, "") not in world.image.configs
    assert update(world, (elr, 1, UP)) == (0, "")
    assert world.image.elr_enabled
    assert world.image.configs[4, ""] == {"min.insync.replicas": "2"}
    assert world.image.configs[4, "1"] == {"log.cleaner.threads": "3"}
    assert world.image.configs[2, "t"] == {"min.insync.replicas": "3"}
    world.commit([record(resource_type=4, resource_name="", name="min.insync.replicas", value="1")])
    assert update(world, (elr, 0, SAFE)) == (0, "")
    assert update(world, (elr, 1, UP)) == (0, "")
    assert world.image.configs[4, ""] == {"min.insync.replicas": "1"}


def test_eligible_leader_replicas_need_a_metadata_version():
    world, elr = World(1), "eligible.leader.replicas.version"
    level = messages.FeatureLevelRecord
    world.commit([level(name=elr, feature_level=0), level(name="metadata.version", feature_level=22)])
    assert "depends on metadata.version level 23" in update(world, (elr, 1, UP))[1]
    assert update(world, (elr, 1, UP), ("metadata.version", 23, UP)) == (0, "")


def test_every_node_has_to_do_the_level():
    world = World(1)
    broker = world.image.brokers[1]
    world.image.brokers[1] = broker._replace(features={**broker.features, "group.version": (0, 0)})
    assert "Broker 1" in update(world, ("group.version", 1, UP))[1]
    assert "controller 10 has not registered" in update(world, ("share.version", 1, UP), voters=(9, 10))[1]
