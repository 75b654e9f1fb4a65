"""A node of a cluster of three is not like the others. Clients write and read meanwhile with acks=all and
min.insync.replicas=2, and all checks of cluster_checker hold."""

import pytest

from kafkad.server.worker_context import NO_DIRECTORY
from tests.cluster_checker import Cluster, Story, until
from tests.power import compiled

ODD = 2  # the node


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_a_file_system_becomes_read_only_for_a_while(tmp_path, monkeypatch, workers):
    """The node ends, as Kafka's does without a log directory, and is started again on what it had."""
    now = tmp_path / "read-only"
    monkeypatch.setenv("LD_PRELOAD", compiled("broken_disk"))
    monkeypatch.setenv("BROKEN_DISK", str(tmp_path / "cluster" / f"node-{ODD}" / "data"))
    monkeypatch.setenv("BROKEN_DISK_NOW", str(now))
    monkeypatch.setenv("BROKEN_DISK_READ_ONLY", "1")

    def make_read_only(faults):
        node = cluster.nodes[ODD]
        faults.tell(f"the file system of {ODD} is read-only")
        now.touch()
        until(lambda: not node.running, lambda: f"node {ODD} still runs")
        assert node.process.returncode == NO_DIRECTORY
        faults.pause(0.5, 2)
        now.unlink()
        faults.tell(f"start of {ODD}")
        cluster.start([ODD])

    with Cluster(tmp_path / "cluster", workers=workers) as cluster:
        assert Story(cluster, 1).tell([make_read_only] * 2) > 60
