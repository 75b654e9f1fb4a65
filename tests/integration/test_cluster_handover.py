"""A cluster of three JVM Kafka 4.3.1 becomes one of kafkad, node by node, and back, while clients work.

The directories and the server.properties stay as they are. In the suite there and back with
controller.quorum.voters (kraft.version 0); in `make soak` also with the voters in the log (kraft.version 1),
twenty handovers in a random order each."""

import random

import pytest

from tests.handover_cluster import JVM, KAFKAD, Crowd, HandoverCluster, dumped

pytestmark = pytest.mark.java

# Records that a metadata log of such a cluster holds, whoever wrote them.
KINDS = (
    "REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD", "PARTITION_CHANGE_RECORD", "CONFIG_RECORD",
    "CLIENT_QUOTA_RECORD", "USER_SCRAM_CREDENTIAL_RECORD", "PRODUCER_IDS_RECORD", "FEATURE_LEVEL_RECORD",
    "BROKER_REGISTRATION_CHANGE_RECORD",
)  # fmt: skip


def hand_over_all(cluster, crowd, order):
    for number in order:
        cluster.hand_over(number)
        crowd.check_at_a_stop()


def the_leader_last(cluster):
    leader = cluster.active_controller()
    return [*(number for number in cluster.nodes if number != leader), leader]


@pytest.mark.timeout(600)
def test_a_jvm_cluster_becomes_kafkad_and_jvm_again_node_by_node(tmp_path):
    """The active controller goes last, so that JVM followers fetch the metadata from kafkad, and the other
    way round."""
    with HandoverCluster(tmp_path, static=True) as cluster, Crowd(cluster) as crowd:
        for kind in (KAFKAD, JVM):
            hand_over_all(cluster, crowd, the_leader_last(cluster))
            assert {node.kind for node in cluster.nodes.values()} == {kind}
        assert crowd.check() > 100
        check_the_metadata(cluster)


def check_the_metadata(cluster):
    told = dumped(cluster.nodes.values())
    assert "Could not" not in told and "Skipping" not in told
    assert not [kind for kind in KINDS if f'"type":"{kind}"' not in told]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nodes_are_handed_over_in_any_order(tmp_path, rounds):
    """Here one node of a cluster whose voters stand in the log."""
    for static in (False, True)[: rounds(1, 2)]:
        seed = random.randrange(1 << 32)
        chance = random.Random(seed)
        with HandoverCluster(tmp_path / str(seed), static=static) as cluster, Crowd(cluster, seed) as crowd:
            for _ in range(rounds(1, 20)):
                hand_over_all(cluster, crowd, [chance.choice((1, 2, 3))])
            assert crowd.check() > 100
            check_the_metadata(cluster)
