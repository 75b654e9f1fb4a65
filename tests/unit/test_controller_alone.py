"""A controller that is a quorum by itself: DescribeQuorum, elections, and new feature levels."""

import pytest
from metadata_world import DIR, LISTENERS, Cluster, create, maybe_snapshot, new_topic

from kafkad.controller.brokers import Registration
from kafkad.controller.feature_levels import SAFE_DOWNGRADE, UPGRADE
from kafkad.log.metadata_files import MetadataFiles
from kafkad.protocol import errors, messages
from kafkad.raft.bootstrap import build_bootstrap
from kafkad.raft.describe import Replica
from kafkad.raft.metadata_replica import SnapshotPolicy

OLD, NEW = 14, 30  # 3.6-IV2: registrations have no directories yet
OTHER = b"e" * 16


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def update(cluster, name, level, kind=UPGRADE):
    cls = messages.UpdateFeaturesRequest
    wanted = cls.FeatureUpdates(feature=name, max_version_level=level, upgrade_type=kind)
    told = cluster.controller.update_features(cls(feature_updates=[wanted]), 2)
    return told.error_code, told.error_message or ""


def elect(cluster, kind, topics):
    cls = messages.ElectLeadersRequest
    wanted = topics and [cls.TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics]
    told = cluster.controller.elect_leaders(cls(election_type=kind, topic_partitions=wanted), 2)
    return {
        (each.topic, row.partition_id): row.error_code
        for each in told.replica_election_results
        for row in each.partition_result
    }


def test_the_quorum_is_this_node(cluster):
    create(cluster, new_topic("t"))
    quorum = cluster.voter.described()
    now_ms, end = cluster.clock.now_ms(), cluster.log.end_offset
    assert (quorum.leader_id, quorum.epoch, quorum.high_watermark) == (1, 1, end)
    assert (quorum.voters, quorum.observers) == ([Replica(1, DIR, end, now_ms, now_ms)], [])
    cluster.voter.close()
    assert cluster.voter.described() is None


def test_what_is_not_flushed_is_not_below_the_high_watermark(cluster):
    before = cluster.voter.described()
    cluster.log.holding = True
    list(cluster.controller.in_turns.create_topics(messages.CreateTopicsRequest(topics=[new_topic("t")])))
    now = cluster.voter.described()
    assert now.high_watermark == before.high_watermark < now.voters[0].end_offset
    cluster.log.release()
    assert cluster.voter.described().high_watermark == now.voters[0].end_offset


def test_a_new_metadata_version_registers_the_broker_again(tmp_path):
    MetadataFiles(str(tmp_path)).write_bootstrap(build_bootstrap(0, {"metadata.version": OLD}))
    cluster = Cluster(tmp_path)
    epochs = []
    cluster.controller.on_registered = epochs.append
    create(cluster, new_topic("t"))
    before = cluster.image.brokers[1]
    assert before.directories == ()
    cluster.controller.registration = lambda: Registration(1, b"?" * 16, LISTENERS, (DIR,))
    assert update(cluster, "metadata.version", NEW) == (0, "")
    after = cluster.image.brokers[1]
    assert cluster.image.metadata_version == NEW
    assert (after.directories, after.fenced, after.incarnation_id) == ((DIR,), False, before.incarnation_id)
    assert epochs == [after.epoch] == [cluster.controller.broker_epoch] and after.epoch > before.epoch
    assert cluster.image.topics["t"].partitions[0].leader_epoch == 0  # it did not stop, so nothing is lost
    cluster.stop()
    cluster.start()
    assert cluster.image.topics["t"].partitions[0].leader_epoch == 0


@pytest.mark.parametrize("level", [7, OLD, 16, 17, 22, 23, NEW])
def test_every_level_takes_all_changes(tmp_path, level):
    """Its records have fields that an older level does not have; a snapshot has them, too."""
    MetadataFiles(str(tmp_path)).write_bootstrap(build_bootstrap(0, {"metadata.version": level}))
    cluster = Cluster(tmp_path)
    cluster.voter._policy = SnapshotPolicy(new_bytes_max=0)
    assert create(cluster, new_topic("t", 2, configs=[("retention.ms", "5")]))["t"].error_code == 0
    cls = messages.CreatePartitionsRequest
    grown = cluster.controller.create_partitions(
        cls(topics=[cls.Topics(name="t", count=3, assignments=None)])
    )
    assert [each.error_code for each in grown.results] == [0]
    assert maybe_snapshot(cluster.voter)
    cluster.stop()
    cluster.start()
    assert [state.leader for state in cluster.image.topics["t"].partitions.values()] == [1, 1, 1]
    assert cluster.image.metadata_version == level


def test_levels_that_have_changed_are_answered_although_the_broker_cannot_register(tmp_path, caplog):
    MetadataFiles(str(tmp_path)).write_bootstrap(build_bootstrap(0, {"metadata.version": OLD}))
    cluster = Cluster(tmp_path)

    def registration():
        cluster.log.failing = "append"
        return Registration(1, b"?" * 16, LISTENERS, (DIR,))

    cluster.controller.registration = registration
    assert update(cluster, "metadata.version", NEW) == (0, "")
    assert cluster.image.metadata_version == NEW and "could not register again" in caplog.text
    cluster.log.failing = None
    cluster.stop()
    cluster.start()
    assert cluster.image.brokers[1].directories == (DIR,)


def test_another_feature_does_not(cluster):
    cluster.controller.registration = lambda: pytest.fail("it registers")
    epoch = cluster.image.brokers[1].epoch
    assert update(cluster, "transaction.version", 1, SAFE_DOWNGRADE) == (0, "")
    assert cluster.image.features["transaction.version"] == 1
    assert cluster.image.brokers[1].epoch == epoch


def test_kraft_version_stays(cluster):
    level = cluster.image.kraft_version
    code, message = update(cluster, "kraft.version", 1 - level, UPGRADE if level == 0 else SAFE_DOWNGRADE)
    assert code == errors.INVALID_UPDATE_VERSION and "kraft.version" in message
    assert update(cluster, "kraft.version", level) == (0, "")


def test_leaders_are_elected(cluster):
    create(cluster, new_topic("t", 2))
    needless, unknown = errors.ELECTION_NOT_NEEDED, errors.UNKNOWN_TOPIC_OR_PARTITION
    for kind in (0, 1):
        assert elect(cluster, kind, [("t", [1, 9]), ("no", [0])]) == {
            ("t", 1): needless, ("t", 9): unknown, ("no", 0): unknown,
        }  # fmt: skip
        assert elect(cluster, kind, None) == {}
    cluster.stop()
    cluster.start(directories=(OTHER,))  # the directory of the partitions is gone
    assert cluster.image.topics["t"].partitions[1].leader == -1
    refused = [errors.PREFERRED_LEADER_NOT_AVAILABLE, errors.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert [elect(cluster, kind, None)["t", 1] for kind in (0, 1)] == refused
    assert elect(cluster, 0, [("t", [1])]) == {("t", 1): refused[0]}
    assert elect(cluster, 1, [("t", [1])]) == {("t", 1): 0}  # the operator gives up its log
    state = cluster.image.topics["t"].partitions[1]
    assert (state.leader, state.directories) == (1, (OTHER,))
