"""Nodes of a cluster whose configuration or directories are wrong: one line on stderr says so."""

import subprocess
import sys

import pytest

from kafkad.cli import serve
from kafkad.testing import Cluster
from tests.jvm import free_port, random_uuid

WAIT_S = 60.0
VOTERS = "1@127.0.0.1:{0},2@127.0.0.1:{1},3@127.0.0.1:{2}"


def kafkad(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S
    )
    return done.returncode, done.stdout, done.stderr


def node(directory, **changes):
    """The properties file of node 1 of three; a change to None leaves a key out."""
    ports = [free_port() for _ in range(4)]
    keys = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": VOTERS.format(*ports),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[3]},CONTROLLER://127.0.0.1:{ports[0]}",
        "log.dirs": directory / "data",
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in keys.items() if value is not None))
    return file


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"node_id": None}, "Missing required configuration node.id"),
        ({"node_id": 4}, "configuration node.id: A controller must be one of the controller.quorum.voters"),
        ({"process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:0"},
         "node.id: A node that is no controller must not be one of the controller.quorum.voters"),
        ({"process_roles": "broker", "node_id": 4}, "listeners: A node that is no controller must not"),
        ({"process_roles": "broker", "node_id": 4, "controller_quorum_voters": None},
         "configuration process.roles: controller.quorum.bootstrap.servers or controller.quorum.voters"),
        ({"process_roles": "broker,voter"}, "configuration process.roles: String must be one of"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "controller.listener.names: A controller must have"),
        ({"controller_listener_names": None}, "No security protocol defined for listener CONTROLLER"),
        ({"controller_quorum_voters": "localhost:9093"}, "controller.quorum.voters: Entries must look like"),
        ({"controller_quorum_voters": None, "controller_quorum_bootstrap_servers": "a,b"},
         "configuration controller.quorum.bootstrap.servers: Entries must look like host:9093"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners: 0.0.0.0 cannot be"),
        ({"advertised_listeners": "PLAINTEXT://h:9092,CONTROLLER://0.0.0.0:9093"},
         "advertised.listeners: 0.0.0.0 cannot be advertised"),
        ({"listener_security_protocol_map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"},
         "Missing configuration ssl.truststore.location of listener CONTROLLER: it says who signs the cert"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be(tmp_path, capsys, changes, told):
    with pytest.raises(SystemExit) as ended:
        serve.command.main([str(node(tmp_path, **changes))], standalone_mode=False)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert told in err and len(err.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_directories_of_nobody_of_another_node_and_of_another_cluster(tmp_path):
    with Cluster(3, data_dir=tmp_path / "cluster") as cluster:
        voters = ",".join(f"{n}@127.0.0.1:{node.controller_port}" for n, node in cluster.nodes.items())

        def broker(name, number, cluster_id):
            directory = tmp_path / name
            directory.mkdir()
            file = node(
                directory,
                process_roles="broker",
                node_id=number,
                controller_quorum_voters=voters,
                listeners=f"PLAINTEXT://127.0.0.1:{free_port()}",
                initial_broker_registration_timeout_ms=3000,
            )
            if cluster_id is not None:
                assert kafkad("format", file, "-t", cluster_id)[0] == 0
            return file

        code, out, err = kafkad("serve", broker("unformatted", 7, None))
        assert (code, out) == (1, "")
        assert "is not formatted: the nodes of a cluster must agree on a cluster id; run kafkad format" in err

        file = broker("renamed", 7, cluster.cluster_id)
        file.write_text(file.read_text().replace("node.id=7", "node.id=8"))
        code, out, err = kafkad("serve", file)
        assert (code, out) == (1, "")
        assert "says node.id=7, the configuration 8" in err

        code, out, err = kafkad("serve", "--workers", 1, broker("strange", 7, random_uuid()))
        assert (code, out) == (1, "")
        assert err.count("the metadata quorum answers: INCONSISTENT_CLUSTER_ID") == 1
        assert "INCONSISTENT_CLUSTER_ID: meta.properties has cluster.id=" in err.splitlines()[-1]

        file = broker("first", 7, cluster.cluster_id)
        first = subprocess.Popen(
            [sys.executable, "-m", "kafkad", "serve", "--workers", "1", file],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert first.stdout.readline().startswith("kafkad is ready on ")
            code, out, err = kafkad("serve", "--workers", 1, broker("twin", 7, cluster.cluster_id))
            assert (code, out) == (1, "")
            last = err.splitlines()[-1]
            assert "DUPLICATE_BROKER_REGISTRATION: another broker with this node.id is running" in last
            assert first.poll() is None
        finally:
            first.kill()
            first.communicate()
