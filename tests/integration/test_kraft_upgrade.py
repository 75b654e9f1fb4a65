"""kraft.version is raised from 0 to 1 while a quorum with controller.quorum.voters runs (KIP-853): then its
voters are in the log and can be changed. With Kafka's tools, at quorums of kafkad and at mixed ones."""

import asyncio
import re
import subprocess
import sys

import pytest

from tests.clients import wait_until
from tests.controller_process import ROOT, ControllerProcess, ControllerQuorum
from tests.handover_cluster import JVM, KAFKAD, HandoverCluster
from tests.jvm import NEWEST, free_port, run_tool

pytestmark = pytest.mark.java

WAIT_S = 60.0


def servers_of(quorum):
    return ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())


def upgrade(servers, **options):
    command = ("kafka-features", "--bootstrap-controller", servers, "upgrade", "--feature", "kraft.version=1")
    return run_tool(NEWEST, *command, **options)


def finalized(servers):
    told = run_tool(NEWEST, "kafka-features", "--bootstrap-controller", servers, "describe").stdout
    (found,) = re.findall(r"Feature: kraft.version.*FinalizedVersionLevel: (\d)", told)
    return int(found)


def voters(quorum):
    """The directories of the voters, as the leader has them."""

    async def described():
        return await quorum.describe(await quorum.leader())

    told = asyncio.run(described())
    return told and {each.replica_id: each.replica_directory_id for each in told.current_voters}


def new_controller(quorum, node_id):
    port = free_port()
    properties = quorum.path / f"controller-{node_id}.properties"
    keys = {
        "process.roles": "controller",
        "node.id": node_id,
        "controller.quorum.bootstrap.servers": servers_of(quorum),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "log.dirs": quorum.path / f"controller-{node_id}",
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "kafkad", "format", properties, "--cluster-id", quorum.cluster_id]
    subprocess.run([*command, "--no-initial-controllers"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ControllerProcess(properties, quorum.path / f"controller-{node_id}.out", port)


@pytest.mark.timeout(300)
def test_a_running_quorum_is_upgraded_and_then_a_voter_is_added(tmp_path):
    with ControllerQuorum(tmp_path, 3) as quorum:
        servers = servers_of(quorum)
        assert voters(quorum).keys() == {100, 101, 102}
        # The voters report their directories within seconds of an election.
        wait_until(lambda: upgrade(servers, check=False).returncode == 0, WAIT_S)
        wait_until(lambda: finalized(servers) == 1, WAIT_S)
        known = voters(quorum)
        assert known.keys() == {100, 101, 102}
        assert len(set(known.values())) == 3
        assert bytes(16) not in known.values()

        with new_controller(quorum, 103) as added:
            quorum.nodes[103], quorum.ports[103] = added, added.port
            command = ("kafka-metadata-quorum", "--bootstrap-controller", servers)
            told = run_tool(NEWEST, *command, "--command-config", added.properties, "add-controller")
            assert "Added controller 103" in told.stdout
            wait_until(lambda: voters(quorum).keys() == {100, 101, 102, 103}, WAIT_S)
            for node in quorum.nodes.values():
                node.stop()
                node.start()
            wait_until(lambda: voters(quorum).keys() == {100, 101, 102, 103}, WAIT_S)
            assert finalized(servers) == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [JVM, KAFKAD])
def test_a_mixed_quorum_is_upgraded_and_its_voters_change_under_either_leader(tmp_path, kind):
    with HandoverCluster(tmp_path, static=True) as cluster:
        leader = cluster.active_controller()
        others = [number for number in cluster.nodes if number != leader]
        cluster.hand_over(others[0])
        if kind == KAFKAD:
            cluster.hand_over(others[1])
            cluster.nodes[leader].stop()
            cluster.nodes[leader].start(JVM)
        quorum, servers = cluster.quorum, servers_of(cluster.quorum)
        assert cluster.nodes[cluster.active_controller()].kind == kind
        # The voters report their directories within seconds of an election.
        wait_until(lambda: upgrade(servers, check=False).returncode == 0, WAIT_S)
        wait_until(lambda: finalized(servers) == 1, WAIT_S)
        assert bytes(16) not in voters(quorum).values()
        assert cluster.nodes[cluster.active_controller()].kind == kind

        tool = ("kafka-metadata-quorum", "--bootstrap-controller", servers)
        directories = re.findall(r'"id": (\d), "directoryId": "([^"]+)"', describe(*tool))
        assert sorted(number for number, _ in directories) == ["1", "2", "3"]
        for number, directory in directories:
            if int(number) == cluster.active_controller():
                continue
            leaving = ("--controller-id", number, "--controller-directory-id", directory)
            run_tool(NEWEST, *tool, "remove-controller", *leaving)
            wait_until(lambda gone=int(number): gone not in voters(quorum), WAIT_S)
            properties = cluster.nodes[int(number)].properties
            # The leader asks the new voter for its versions: not yet, if their connection has just ended.
            add = (*tool, "--command-config", properties, "add-controller")
            wait_until(lambda add=add: run_tool(NEWEST, *add, check=False).returncode == 0, WAIT_S)
            wait_until(lambda: voters(quorum).keys() == {1, 2, 3}, WAIT_S)
        assert not cluster.tracebacks()


def describe(*tool):
    return run_tool(NEWEST, *tool, "describe", "--status").stdout
