"""A Flink job with an exactly-once sink, killed again and again, and the broker too.

The job copies a topic. Its sink writes in one transaction per checkpoint. After a kill it begins at its last
checkpoint: it commits that checkpoint's transactions with the producer ids and epochs that it has stored, and
aborts the ones that were begun later (KafkaSink). So the copy has each record once at read_committed."""

import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import EARLIEST
from kafkad.client.producer import Producer
from kafkad.testing import Broker
from tests.clients import create_topic
from tests.jvm import FAST_JVM, JARS, die_with_parent, java

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

INPUT, OUTPUT = "flink-input", "flink-output"
PARTITIONS = 2
WAIT_S = 120
TRANSACTION_MS = 2 * WAIT_S * 1000  # the job must be back before: a busy machine restarts it slowly
OPENS = ("java.base/java.util", "java.base/java.lang", "java.base/java.net", "java.base/java.nio")


class Job:
    """One JVM with Flink's local cluster. `naming` is one of KafkaSink's TransactionNamingStrategy."""

    def __init__(self, bootstrap, directory, naming):
        self.bootstrap = bootstrap
        self.naming = naming
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir()
        self.log = directory / "flink.log"
        self.gateway = self.process = None

    def start(self):
        path = ":".join(str(jar) for jar in sorted((JARS / "flink-2.2.1").glob("*.jar")))
        opens = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    java(), "-Xmx512m", *FAST_JVM, *opens, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-cp", f"{path}:{find_jar_path()}", "py4j.GatewayServer", "--die-on-broken-pipe", "0",
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        port = int(self.process.stdout.readline())
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self._submit(self.gateway.jvm.org.apache.flink)

    def kill(self):
        if self.process is not None:
            self.gateway.close()
            self.process.kill()
            self.process.wait(60)
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def last_checkpoint(self):
        done = [
            (int(found.parent.name.removeprefix("chk-")), found.stat().st_mtime_ns, found.parent)
            for found in self.checkpoints.glob("*/chk-*/_metadata")
        ]
        return max(done)[2] if done else None

    def _submit(self, flink):
        kafka = flink.connector.kafka
        config = flink.configuration.Configuration()
        settings = {
            "execution.checkpointing.interval": "200ms",
            "execution.checkpointing.dir": self.checkpoints.as_uri(),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1000",
            "restart-strategy.fixed-delay.delay": "100ms",
            "taskmanager.memory.network.min": "16m",
            "taskmanager.memory.network.max": "16m",
        }
        if last := self.last_checkpoint():
            settings["execution.state-recovery.path"] = last.as_uri()
        for key, value in settings.items():
            config.setString(key, value)
        streaming = flink.streaming.api.environment
        environment = streaming.StreamExecutionEnvironment.createLocalEnvironment(PARTITIONS, config)
        strings = flink.api.common.serialization.SimpleStringSchema
        source = (
            kafka.source.KafkaSource.builder()
            .setBootstrapServers(self.bootstrap)
            .setTopics(self.gateway.jvm.java.util.Collections.singletonList(INPUT))
            .setGroupId("flink")
            .setStartingOffsets(kafka.source.enumerator.initializer.OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(strings())
            .build()
        )
        records = kafka.sink.KafkaRecordSerializationSchema.builder()
        sink = (
            kafka.sink.KafkaSink.builder()
            .setBootstrapServers(self.bootstrap)
            .setRecordSerializer(records.setTopic(OUTPUT).setValueSerializationSchema(strings()).build())
            .setDeliveryGuarantee(flink.connector.base.DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("copy")
            .setTransactionNamingStrategy(getattr(kafka.sink.TransactionNamingStrategy, self.naming))
            .setProperty("transaction.timeout.ms", str(TRANSACTION_MS))
            .build()
        )
        watermarks = flink.api.common.eventtime.WatermarkStrategy.noWatermarks()
        environment.fromSource(source, watermarks, "input").sinkTo(sink)
        environment.executeAsync("copy")


class Copied(threading.Thread):
    """Reads the copy at read_committed all the time."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.seen = Counter()
        self.ended = threading.Event()

    def run(self):
        with Cluster(self.bootstrap, retry_seconds=60) as cluster:
            consumer = Consumer(cluster, OUTPUT, wait_ms=100, isolation=READ_COMMITTED, reset=EARLIEST)
            consumer.assign(dict.fromkeys(range(PARTITIONS), 0))
            while not self.ended.is_set():
                self.seen.update(each.value for each in consumer.poll())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("naming", "workers"), [pytest.param("INCREMENTING", 1, marks=pytest.mark.soak_only), ("POOLING", 2)]
)
def test_each_record_is_copied_once(tmp_path, rounds, naming, workers):
    """INCREMENTING finds the transactions to abort by trying ids one after the other, POOLING by
    ListTransactions."""
    kills = rounds(2, 40)
    chance = random.Random(workers)
    config = {"group.initial.rebalance.delay.ms": 0}
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(workers=workers, data_dir=tmp_path / "data", config=config))
        for topic in (INPUT, OUTPUT):
            create_topic(broker, topic, PARTITIONS)
        copied = Copied(broker.bootstrap)
        copied.start()
        stack.callback(copied.ended.set)
        cluster = stack.enter_context(Cluster(broker.bootstrap, retry_seconds=60))
        producer = Producer(cluster, INPUT, delivery_seconds=60)
        sent = 0

        def feed(count):
            nonlocal sent
            for _ in range(count):
                producer.send(b"%d" % sent, partition=sent % PARTITIONS)
                sent += 1
            producer.flush()

        def until(wanted):
            deadline = time.monotonic() + WAIT_S
            while copied.seen.total() < wanted:
                assert time.monotonic() < deadline, (copied.seen.total(), wanted, job.log.read_text()[-3000:])
                time.sleep(0.02)

        job = Job(broker.bootstrap, tmp_path, naming)
        stack.callback(job.kill)
        job.start()
        for number in range(kills):
            feed(2_000)
            until(sent - chance.randrange(1_000, 2_000))  # in the middle of it
            feed(2_000)
            if number % 3 == 1:
                broker.kill()
                broker.restart()
            else:
                job.kill()
                job.start()
        feed(2_000)
        until(sent)
        time.sleep(0.5)  # for what must not come
        assert copied.seen == Counter(b"%d" % number for number in range(sent))
        assert job.last_checkpoint()
