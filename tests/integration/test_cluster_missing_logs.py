"""Directories of partitions that are gone at a start of a cluster's node, for a good reason or by hand. The
checkpoints of a killed node still name them (they are written every few seconds)."""

import asyncio
import shutil
import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from kafkad.net.channel import Channel
from kafkad.protocol import messages
from tests import cluster_checker
from tests.cluster_checker import PARTITIONS, QUIET, WAIT_S, Cluster, high_watermarks, until

CHECKPOINTED_S = 6  # replica.high.watermark.checkpoint.interval.ms, and one
THIRD = 3  # the node that dies
TOPIC = "t"
RECORDS = 100  # of each `fill`, in each partition


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path / "cluster", workers=2) as running:
        make(running)
        fill(running)
        time.sleep(CHECKPOINTED_S)
        yield running
        assert not running.tracebacks()


def done(future):
    try:
        future.result(WAIT_S)
    except KafkaException:
        return False
    return True


def make(cluster, replicas=None):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    wanted = NewTopic(TOPIC, PARTITIONS, 3)
    if replicas is not None:
        wanted = NewTopic(TOPIC, PARTITIONS, replica_assignment=replicas, config={"min.insync.replicas": "2"})
    until(lambda: done(admin.create_topics([wanted])[TOPIC]))


def delete(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    until(lambda: done(admin.delete_topics([TOPIC])[TOPIC]))


def fill(cluster):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUIET})
    refused = []
    for number in range(RECORDS * PARTITIONS):
        producer.produce(
            TOPIC,
            b"x" * 100,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0 and not refused


def serves_whole(cluster, records):
    """All replicas are in sync, and a partition has so many records after another `fill`."""
    cluster.whole(TOPIC)
    fill(cluster)
    assert high_watermarks(cluster.bootstrap, TOPIC) == [records] * PARTITIONS


def errors_of(cluster, number):
    return (cluster.nodes[number].directory / "stderr").read_text().count(" is gone, with records ")


@pytest.mark.soak_only
def test_a_topic_that_is_made_again_after_all_nodes_were_killed_is_new(cluster):
    delete(cluster)
    for node in cluster.nodes.values():
        node.kill()
    cluster.start(tuple(cluster.nodes))
    make(cluster)
    serves_whole(cluster, RECORDS)
    assert not any(errors_of(cluster, number) for number in cluster.nodes)


@pytest.mark.soak_only
def test_a_topic_that_is_made_again_while_a_node_is_down_is_new(cluster):
    cluster.nodes[THIRD].kill()
    delete(cluster)
    make(cluster)
    cluster.start([THIRD])
    serves_whole(cluster, RECORDS)
    assert not errors_of(cluster, THIRD)


@pytest.mark.soak_only
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_node_whose_partitions_were_removed_gets_them_from_the_others(cluster, how):
    if how == "killed":
        cluster.nodes[THIRD].kill()
    else:
        assert cluster.stop([THIRD]) == {THIRD: 0}
    for directory in cluster.nodes[THIRD].data_dir.glob(f"{TOPIC}-*"):
        shutil.rmtree(directory)
    cluster.start([THIRD])
    serves_whole(cluster, 2 * RECORDS)
    assert errors_of(cluster, THIRD) >= PARTITIONS


def reassign(cluster, replicas):
    cls = messages.AlterPartitionReassignmentsRequest
    partitions = [cls.Topics.Partitions(partition_index=n, replicas=replicas) for n in range(PARTITIONS)]
    request = cls(timeout_ms=WAIT_S * 1000, topics=[cls.Topics(name=TOPIC, partitions=partitions)])

    async def ask():
        channel = await Channel.connect("127.0.0.1", cluster.nodes[1].port, "test", timeout_s=WAIT_S)
        try:
            return await channel.ask(request, timeout_s=WAIT_S)
        finally:
            channel.close()

    [topic] = asyncio.run(ask()).responses
    assert [each.error_code for each in topic.partitions] == [0] * PARTITIONS


def test_a_replica_that_has_moved_to_other_nodes_is_in_no_checkpoint(tmp_path, monkeypatch):
    """After a kill they would say that its log was lost."""
    seldom = {"replica.high.watermark.checkpoint.interval.ms": 600_000, "log.segment.delete.delay.ms": 100}
    monkeypatch.setattr(cluster_checker, "CONFIG", cluster_checker.CONFIG | seldom)
    with Cluster(tmp_path / "cluster") as cluster:
        make(cluster)
        fill(cluster)
        cluster.stop([THIRD])  # writes them
        cluster.start([THIRD])
        cluster.whole(TOPIC)
        directory = cluster.nodes[THIRD].data_dir

        def named():
            found = [read_offsets(str(directory / name)) for name in (HIGH_WATERMARKS, RECOVERY_POINTS)]
            return [key for each in found for key in each if key[0] == TOPIC]

        assert len(named()) == 2 * PARTITIONS
        reassign(cluster, [1, 2])
        until(lambda: not named() and not any(directory.glob(f"{TOPIC}-*")), named, within_s=10)
        cluster.nodes[THIRD].kill()
        cluster.start([THIRD])
        reassign(cluster, [1, 2, THIRD])
        serves_whole(cluster, 2 * RECORDS)
        assert not errors_of(cluster, THIRD) and not cluster.tracebacks()


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_replica_that_moved_to_other_nodes_while_its_own_was_down_becomes_a_stray(tmp_path, was_killed):
    """Its log was opened, for nobody. When the topic was deleted and made again, the new partition could not
    be opened there until a restart."""
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        make(cluster)
        fill(cluster)
        node = cluster.nodes[THIRD]
        node.kill() if was_killed else cluster.stop([THIRD])
        reassign(cluster, [1, 2])
        cluster.start([THIRD])
        assert not [path for path in node.data_dir.glob(f"{TOPIC}-*") if path.suffix == ""]
        assert len(list(node.data_dir.glob(f"{TOPIC}-*-stray"))) == PARTITIONS
        delete(cluster)
        make(cluster)
        serves_whole(cluster, RECORDS)
        cluster.stop([THIRD])
        cluster.start([THIRD])
        serves_whole(cluster, 2 * RECORDS)
        assert not cluster.tracebacks()


def test_a_replica_whose_directory_was_taken_out_of_log_dirs_is_not_eligible_to_lead(tmp_path):
    """It is made anew, empty. If its leader dies before it has the records, it must not be elected."""
    with Cluster(tmp_path / "cluster") as cluster:
        node = cluster.nodes[THIRD]

        def restart_with(*directories):
            [line] = [
                each for each in node.properties.read_text().splitlines() if each.startswith("log.dirs=")
            ]
            wanted = "log.dirs=" + ",".join(map(str, directories))
            node.properties.write_text(node.properties.read_text().replace(line, wanted))
            cluster.start([THIRD])

        assert cluster.stop([THIRD]) == {THIRD: 0}
        restart_with(node.data_dir, second := tmp_path / "second")
        make(cluster, [[THIRD, 1]] * PARTITIONS)
        fill(cluster)
        assert list(second.glob(f"{TOPIC}-*")) and list(node.data_dir.glob(f"{TOPIC}-*"))
        for directories in ((node.data_dir, second), (node.data_dir,)):
            assert cluster.stop([THIRD]) == {THIRD: 0}
            assert "as after an unclean stop" not in node.log
            restart_with(*directories)
        until(lambda: "as after an unclean stop" in node.log)
        until(lambda: isr_sizes(cluster) == [2] * PARTITIONS, lambda: isr_sizes(cluster))
        assert high_watermarks(cluster.bootstrap, TOPIC) == [RECORDS] * PARTITIONS
        assert not cluster.tracebacks()


@pytest.mark.parametrize("is_older", [True, False])
def test_a_replica_that_was_restored_from_an_older_copy_is_not_eligible_to_lead(tmp_path, is_older):
    """It stopped cleanly and is in the ELR. If the leader dies before it has the newer records, it must not
    be elected."""
    with Cluster(tmp_path / "cluster") as cluster:
        node = cluster.nodes[THIRD]
        make(cluster, [[THIRD, 1]] * PARTITIONS)
        fill(cluster)
        directory, copy = node.data_dir / f"{TOPIC}-0", tmp_path / "copy"

        def put_back():
            assert cluster.stop([THIRD]) == {THIRD: 0}
            if copy.exists():
                shutil.rmtree(directory)
                shutil.copytree(copy, directory)
            else:
                shutil.copytree(directory, copy)
            cluster.start([THIRD])
            until(lambda: isr_sizes(cluster) == [2] * PARTITIONS, lambda: isr_sizes(cluster))

        put_back()
        if is_older:
            fill(cluster)
        put_back()
        assert ("as after an unclean stop" in node.log) == is_older
        records = 2 * RECORDS if is_older else RECORDS
        assert high_watermarks(cluster.bootstrap, TOPIC) == [records] * PARTITIONS
        assert not cluster.tracebacks()


def isr_sizes(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    partitions = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions
    return [len(each.isrs) for each in partitions.values()]
