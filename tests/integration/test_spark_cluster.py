"""Spark's source and sink over three nodes, of two workers each, that are killed, stopped and frozen in turn:
every record that a producer got an ack for is in a table once, and in the sink's topic once.

12 seconds of it here, three minutes in `make soak` (KAFKAD_SOAK=1). KAFKAD_SEED=n repeats the choices."""

import itertools
import os
import random
import signal
import threading
import time

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.testing import Cluster
from tests.sparks import spark_session

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
TROUBLE_S = 180 if SOAK else 12
WAIT_S = 60


class Numbers:
    """A producer of 0, 1, 2, … with acks=all, in a thread. `acked` has what the cluster said it has."""

    def __init__(self, bootstrap, topic):
        self.topic = topic
        self.acked, self.failed = [], []
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "delivery.timeout.ms": 120_000, "log_level": 0,
        })  # fmt: skip
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        numbers = itertools.count()
        while not self._stopped.wait(0.02):
            for number in itertools.islice(numbers, 40):
                value = str(number).encode()
                self._producer.produce(self.topic, value, value, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error, message):
        if error:
            self.failed.append(str(error))
        else:
            self.acked.append(int(message.value()))

    def stop(self):
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


def trouble(cluster, chance):
    """One fault, and its end."""
    number = chance.choice(sorted(cluster.nodes))
    process = psutil.Process(cluster.nodes[number].process.pid)
    match chance.choice(("kill", "stop", "freeze", "worker")):
        case "kill":
            cluster.kill(number)
            time.sleep(chance.choice((0.2, 2, 6)))
            cluster.start(number)
        case "stop":
            cluster.stop(number)
            cluster.start(number)
        case "freeze":
            frozen = [process, *process.children()]
            for each in frozen:
                each.suspend()
            time.sleep(chance.choice((1, 5)))
            for each in reversed(frozen):
                each.resume()
        case "worker":
            if workers := process.children():
                chance.choice(workers).send_signal(signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900 if SOAK else 240)
def test_each_record_lands_once_while_nodes_are_killed(tmp_path):
    import kafkad.spark

    seed = int(os.environ.get("KAFKAD_SEED") or random.randrange(100_000))
    chance = random.Random(seed)
    with spark_session() as spark, Cluster(3, workers=2) as cluster:
        kafkad.spark.register(spark)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for topic in ("numbers", "copies"):
            admin.create_topics([NewTopic(topic, 4, 3)])[topic].result(WAIT_S)

        def reader(builder, topic, **options):
            options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **options}
            return builder.format("kafkad").options(**options).load()

        numbers = Numbers(cluster.bootstrap, "numbers")
        try:
            options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5000"}
            frame = reader(spark.readStream, "numbers", **options)
            table = frame.selectExpr("cast(value as string) value").writeStream.format("parquet")
            table = table.options(path=f"{tmp_path}/table", checkpointLocation=f"{tmp_path}/a").start()
            sink = frame.select("key", "value").writeStream.format("kafkad")
            sink = sink.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", "copies")
            sink = sink.option("checkpointLocation", f"{tmp_path}/b").start()
            end = time.monotonic() + TROUBLE_S
            while time.monotonic() < end:
                trouble(cluster, chance)
                time.sleep(chance.uniform(0.5, 3))
        finally:
            numbers.stop()
        for query in (table, sink):
            query.processAllAvailable()
            query.stop()
        copies = reader(spark.read, "copies", **{"kafka.isolation.level": "read_committed"})
        found = {
            "table": spark.read.parquet(f"{tmp_path}/table").collect(),
            "copies": copies.selectExpr("cast(value as string) value").collect(),
        }
        assert not numbers.failed and len(numbers.acked) > 1000
        for name, rows in found.items():
            assert sorted(int(row.value) for row in rows) == sorted(numbers.acked), f"{name}, seed {seed}"
