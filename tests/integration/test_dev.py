"""`kafkad dev`: a cluster by one command, as a developer and a script use it."""

import json
import os
import re
import signal
import subprocess
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients import wait_until
from tests.jvm import free_port

WAIT_S = 60.0
READY = re.compile(r"kafkad is ready on (\S+) \(cluster (\S+), 3 nodes, \d+ ms\)\n")


class Dev:
    def __init__(self, directory, *arguments):
        self.directory = directory
        self.err = directory.parent / "err"
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kafkad", "dev", "--data-dir", directory, *map(str, arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
            )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        wait_until(lambda: not self.pids(), WAIT_S)  # also what it has left behind

    def ready(self):
        """(bootstrap addresses, cluster id)"""
        line = self.process.stdout.readline()
        assert READY.fullmatch(line), f"{line!r}\n{self.err.read_text()}"
        return READY.fullmatch(line).groups()

    def type(self, command):
        """The line that answers it."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def pids(self):
        """Of the nodes, by number: whoever serves a file of this directory."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    named = re.search(rf"serve.*{self.directory}/node-(\d)/server.properties", file.read())
            except OSError:
                continue
            if named:
                found[int(named[1])] = int(pid)
        return found

    def stop(self, number=signal.SIGTERM):
        """The exit code; no node is left."""
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        assert not self.pids()
        return code


def test_a_cluster_that_goes_on_with_its_data_and_reports_a_node_that_dies(tmp_path):
    directory, port = tmp_path / "cluster", free_port()
    with Dev(directory, "--port", port) as dev:
        bootstrap, cluster_id = dev.ready()
        assert len(bootstrap.split(",")) == 3 and f"127.0.0.1:{port}" in bootstrap
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        producer.produce("kept", b"one", partition=0)
        assert producer.flush(WAIT_S) == 0

        again = subprocess.run(
            [sys.executable, "-m", "kafkad", "dev", "--data-dir", directory],
            capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr == f"kafkad: {directory} is in use: another process runs this cluster.\n"

        os.kill(dev.pids()[2], signal.SIGKILL)
        wait_until(lambda: "node 2 was killed by SIGKILL; the others serve on" in dev.err.read_text(), WAIT_S)
        producer.produce("kept", b"two", partition=0)
        assert producer.flush(WAIT_S) == 0

        assert re.fullmatch(r"node 2 is ready on \S+ \(\d+ ms\)\n", dev.type("start 2"))
        assert re.fullmatch(r"node 3 has stopped \(\d+ ms\)\n", dev.type("stop 3"))
        assert dev.type("kill 1") == "node 1 is killed\n"
        assert dev.pids().keys() == {2}
        assert re.fullmatch(r"node 1 on \S+: was killed by SIGKILL\n", dev.type("status"))
        assert re.fullmatch(r"node 2 on \S+: runs, pid \d+\n", dev.process.stdout.readline())
        assert re.fullmatch(r"node 3 on \S+: has stopped with exit code 0\n", dev.process.stdout.readline())
        for wrong in ("", "kill", "kill 9", "start 2", "restart 2"):
            dev.process.stdin.write(f"{wrong}\n")
        assert dev.type("start 3").startswith("node 3 is ready on ")
        assert dev.err.read_text().splitlines()[1:] == [
            "kafkad: kill takes the number of a node, 1 to 3",
            "kafkad: kill takes the number of a node, 1 to 3",
            "kafkad: node 2 runs already",
            "kafkad: 'restart' is no command: the commands are kill N, stop N, start N and status",
        ]
        assert dev.stop() == 0
        assert len(dev.err.read_text().splitlines()) == 5
        assert all("stopped cleanly" in (directory / f"node-{n}/stderr").read_text() for n in (2, 3))

    with Dev(directory) as dev:
        assert dev.ready() == (bootstrap, cluster_id)
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "-", "auto.offset.reset": "earliest"}
        )
        consumer.assign([TopicPartition("kept", 0, 0)])
        assert [message.value() for message in consumer.consume(2, WAIT_S)] == [b"one", b"two"]
        consumer.close()
        nodes = dev.pids()
        assert nodes.keys() == {1, 2, 3}
        dev.process.kill()  # it stops nobody, and nobody outlives it
        wait_until(lambda: not dev.pids(), WAIT_S)


def test_ctrl_c_before_it_is_ready_and_a_start_that_fails(tmp_path):
    directory = tmp_path / "cluster"
    with Dev(directory, "--port", free_port()) as dev:
        wait_until(dev.pids, WAIT_S)
        assert dev.stop(signal.SIGINT) == 0
        assert dev.process.stdout.read() == ""
        assert dev.err.read_text() == ""
    with Dev(directory, "--override", "num.partitions=many") as dev:
        assert dev.process.wait(WAIT_S) == 1
        (line,) = dev.err.read_text().splitlines()
        assert re.match(r"kafkad: node \d exited with 2 before it was ready: .*num\.partitions", line)
        assert not dev.pids()
    with Dev(directory, "--nodes", 5) as dev:
        assert dev.process.wait(WAIT_S) == 1
        assert dev.err.read_text() == f"kafkad: {directory} has a cluster of 3 nodes, not 5.\n"
    assert len(json.loads((directory / "cluster.json").read_text())["nodes"]) == 3
