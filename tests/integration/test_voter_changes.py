"""Voters are added and removed by Kafka's own kafka-metadata-quorum, at kafkad controllers whose voters stand
in the log: in turn at the controllers and at a broker, which forwards."""

import asyncio
import json
import subprocess
import sys

import pytest

from kafkad.metadata.uuids import uuid_text
from tests.clients import wait_until
from tests.controller_process import ROOT, ControllerProcess, ControllerQuorum, MemberNode
from tests.jvm import NEWEST, run_tool
from tests.member_process import MemberProcess

WAIT_S = 60.0


class DynamicQuorum(ControllerQuorum):
    """100 and 101 are the first voters; 102 is formatted without any, and 103, which joins by itself."""

    FIRST = (100, 101)

    def _node(self, node_id: int, port: int) -> ControllerProcess:
        directory = self.path / f"controller-{node_id}"
        properties = self.path / f"controller-{node_id}.properties"
        servers = ",".join(f"127.0.0.1:{each}" for each in self.ports.values())
        keys = {
            "process.roles": "controller",
            "node.id": node_id,
            "controller.quorum.bootstrap.servers": servers,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": directory,
            **({"controller.quorum.auto.join.enable": "true"} if node_id == 103 else {}),
            **self.config,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        first = ",".join(f"{each}@127.0.0.1:{self.ports[each]}:{self.directory(each)}" for each in self.FIRST)
        voters = ("--initial-controllers", first) if node_id in self.FIRST else ("--no-initial-controllers",)
        command = [sys.executable, "-m", "kafkad", "format", properties, "--cluster-id", self.cluster_id]
        subprocess.run([*command, *voters], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return ControllerProcess(properties, self.path / f"controller-{node_id}.out", port)

    def directory(self, node_id: int) -> str:
        """As meta.properties has it, or will have it."""
        path = self.path / f"controller-{node_id}" / "meta.properties"
        if node_id in self.FIRST:
            return uuid_text(bytes([node_id]) * 16)
        (line,) = [each for each in path.read_text().splitlines() if each.startswith("directory.id=")]
        return line.partition("=")[2]


@pytest.mark.timeout(300)
def test_kafkas_tool_adds_and_removes_voters(tmp_path):
    with DynamicQuorum(tmp_path, 4) as quorum:
        servers = ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())
        controllers = ("--bootstrap-controller", servers)

        def tool(*arguments, server=controllers, **options):
            return run_tool(NEWEST, "kafka-metadata-quorum", *server, *arguments, **options)

        def leader():
            return asyncio.run(quorum.leader())

        def voters():
            told = asyncio.run(quorum.describe(leader()))
            return told and {each.replica_id for each in told.current_voters}

        wait_until(lambda: voters() == {100, 101, 103}, WAIT_S)
        joined = quorum.nodes[103]  # it would come back when it is removed
        joined.stop()
        kept = joined.properties.read_text().replace("auto.join.enable=true", "auto.join.enable=false")
        joined.properties.write_text(kept)
        joined.start()
        add = ("--command-config", quorum.nodes[102].properties, "add-controller")
        assert "Added controller 102" in tool(*add).stdout
        wait_until(lambda: voters() == {100, 101, 102, 103}, WAIT_S)
        again = tool(*add, check=False)
        assert again.returncode == 1 and "DuplicateVoter" in again.stdout + again.stderr

        bootstrap = {"controller.quorum.bootstrap.servers": servers, "controller.quorum.voters": ""}
        broker = MemberProcess(MemberNode(quorum, 1, bootstrap), 1)
        with broker:
            gone = leader()
            remove = ("remove-controller", "--controller-id", gone)
            at_broker = ("--bootstrap-server", broker.bootstrap)
            done = tool(*remove, "--controller-directory-id", quorum.directory(gone), server=at_broker)
            assert f"Removed KRaft controller {gone}" in done.stdout.replace("  ", " ")
            left = {100, 101, 102, 103} - {gone}
            wait_until(lambda: leader() in left, WAIT_S)
            wait_until(lambda: voters() == left, WAIT_S)
            quorum.nodes[gone].kill()
            other = min(left - {leader()})
            wrong = tool("remove-controller", "--controller-id", other, "--controller-directory-id",
                         quorum.directory(gone), server=at_broker, check=False)  # fmt: skip
            assert wrong.returncode == 1 and "VoterNotFound" in wrong.stdout + wrong.stderr
            for each in left:
                quorum.nodes[each].kill()
            for each in left:
                quorum.nodes[each].launch()
            for each in left:
                quorum.nodes[each].until_ready()
            wait_until(lambda: voters() == left, WAIT_S)
            # the same by our own command
            again = max(left - {leader()})
            ours = [sys.executable, "-m", "kafkad", "cluster", "quorum"]
            ours += ["--bootstrap-server", broker.bootstrap]

            def ask(*arguments):
                command = [*ours, *map(str, arguments)]
                return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

            removed = ask("--remove", f"{again}:{quorum.directory(again)}", "--json")
            assert removed.returncode == 0, removed.stderr
            row = {"node": again, "directory": quorum.directory(again), "voter": False}
            assert json.loads(removed.stdout) == [row]
            wait_until(lambda: voters() == left - {again}, WAIT_S)
            refused = ask("--remove", f"{again}:{quorum.directory(again)}")
            assert refused.returncode == 1 and "VOTER_NOT_FOUND" in refused.stderr

            def is_back():
                said = ask("--add", quorum.nodes[again].properties)
                assert said.returncode == 0 or "TIMED_OUT" in said.stderr or "DUPLICATE" in said.stderr, said
                return voters() == left

            wait_until(is_back, WAIT_S)
