"""Kafka Connect with an exactly-once source (KIP-618), whose worker is killed in the middle of its work.

Kafka's own file source reads numbered lines. Each of its polls is a transaction of records and of their
place in the file, which is a record in a topic of Connect's. Groups, topics and transactions are at several
nodes and workers of the cluster."""

import http.client
import json
import signal
import subprocess
import time

import pytest

from kafkad.client.cluster import Cluster as Client
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import EARLIEST
from kafkad.testing import Cluster
from tests.clients import create_topic
from tests.jvm import FAST_JVM, JARS, QUIET, die_with_parent, free_port, java

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

WAIT_S = 60
TOPIC = "lines"
LINES, TAIL = 3_000, 200  # the source keeps what it has read last until there is more
LINES_OF_A_POLL = 20
TRANSACTION_MS = 8_000  # when it starts, Connect waits for the end of the transaction that was killed
LEAST_PER_S = 5  # transactions; a quiet machine has hundreds


class Connect:
    """One worker: a process that is alone in its group."""

    def __init__(self, bootstrap, directory):
        self.address = ("127.0.0.1", free_port())
        self.log = directory / "connect.log"
        self.properties = directory / "connect.properties"
        text = "org.apache.kafka.connect.storage.StringConverter"
        self.properties.write_text(
            f"""bootstrap.servers={bootstrap}
listeners=http://127.0.0.1:{self.address[1]}
group.id=connect
exactly.once.source.support=enabled
key.converter={text}
value.converter={text}
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=-1
offset.storage.replication.factor=-1
status.storage.replication.factor=-1
offset.storage.partitions=3
status.storage.partitions=1
plugin.discovery=service_load
scheduled.rebalance.max.delay.ms=0
session.timeout.ms=3000
heartbeat.interval.ms=500
producer.transaction.timeout.ms={TRANSACTION_MS}
"""
        )
        self.process = None
        self.restarts = 0

    def start(self):
        path = ":".join(str(jar) for jar in sorted((JARS / "connect-4.3.1").glob("*.jar")))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [java(), "-Xmx256m", *FAST_JVM, *QUIET, "-cp", path, main, str(self.properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip

    def configure(self, name, **config):
        """Create a connector, as soon as the worker listens."""
        body = json.dumps({key.replace("_", "."): value for key, value in config.items()})
        self.ask("PUT", f"/connectors/{name}/config", body, until=201)

    def restart_failed(self, name):
        """Restart the task if it has failed, as its operator would.

        The Java producer asks whether batches are incomplete before it takes the next request (Sender's
        `nextRequest(accumulator.hasIncomplete())`). If the application sends and commits in between, EndTxn
        overtakes all batches. In transaction version 2 that is answered INVALID_TXN_STATE, as by Kafka, and
        the producer takes it for fatal."""
        failures = self.log.read_text().count("will not recover until manually restarted")
        if failures > self.restarts:
            assert "InvalidTxnStateException" in self.log.read_text(), self.log.read_text()[-4000:]
            self.restarts += 1
            self.ask("POST", f"/connectors/{name}/tasks/0/restart", until=204)

    def ask(self, method, path, body="", *, until):
        deadline = time.monotonic() + WAIT_S
        while True:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]
            connection = http.client.HTTPConnection(*self.address, timeout=30)
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                if connection.getresponse().status == until:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.05)

    def end(self, how):
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        self.process.send_signal(how)
        return self.process.wait(WAIT_S)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def test_a_killed_exactly_once_source_delivers_each_line_once(tmp_path):
    lines = [b"line %d" % number for number in range(LINES + TAIL)]
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    with Cluster(3, config, workers=2) as cluster, Client(cluster.bootstrap, retry_seconds=60) as client:
        create_topic(cluster, TOPIC, 1)
        connect = Connect(cluster.bootstrap, tmp_path)
        consumer = Consumer(client, TOPIC, wait_ms=100, isolation=READ_COMMITTED, reset=EARLIEST)
        consumer.assign({0: 0})
        got = []

        def read(until):
            deadline = time.monotonic() + WAIT_S
            while len(got) < until:
                got.extend(each.value for each in consumer.poll())
                connect.restart_failed("source")
                assert time.monotonic() < deadline, (len(got), connect.log.read_text()[-4000:], cluster.log)

        try:
            connect.start()
            connect.configure(
                "source",
                connector_class="org.apache.kafka.connect.file.FileStreamSourceConnector",
                tasks_max="1",
                file=str(file),
                topic=TOPIC,
                batch_size=str(LINES_OF_A_POLL),
                transaction_boundary="poll",
            )
            read(LINES // 4)
            connect.end(signal.SIGKILL)
            connect.start()
            read(len(got) + 1)  # its zombie is fenced
            began, before = time.monotonic(), len(got)
            read(LINES)
            transactions = (len(got) - before) / LINES_OF_A_POLL
            per_second = transactions / (time.monotonic() - began)
            assert got == lines[: len(got)]
            assert per_second > LEAST_PER_S
            assert connect.end(signal.SIGTERM) in (0, 128 + signal.SIGTERM)
        finally:
            connect.kill()
        got += [each.value for each in consumer.poll()]
        assert got == lines[: len(got)]
        assert "Traceback" not in cluster.log, cluster.log
