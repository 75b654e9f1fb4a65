"""A Kafka Streams application with exactly_once_v2, killed again and again: Kafka's own WordCountDemo.

It counts words: each line it reads is one more for each of its words, and each count goes out once. Of one
word the output is 1, 2, 3, ..., without a gap and without a repetition, in whatever transactions it came."""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import EARLIEST
from kafkad.client.producer import Producer
from kafkad.testing import Broker
from tests.clients import create_topic
from tests.jvm import FAST_JVM, JARS, QUIET, die_with_parent, java

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

DEMO = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
PARTITIONS = 2
WORDS = [f"word{number}" for number in range(40)]
WAIT_S = 120


class WordCount:
    """The application: one process with a state directory of its own."""

    def __init__(self, bootstrap, directory):
        self.properties = directory / "streams.properties"
        self.properties.write_text(
            f"""bootstrap.servers={bootstrap}
processing.guarantee=exactly_once_v2
commit.interval.ms=50
state.dir={directory / "state"}
num.stream.threads=1
replication.factor=1
statestore.cache.max.bytes=0
consumer.auto.offset.reset=earliest
consumer.session.timeout.ms=6000
consumer.heartbeat.interval.ms=1000
producer.transaction.timeout.ms=10000
"""
        )
        self.log = directory / "streams.log"
        self.process = None

    def start(self):
        path = ":".join(str(jar) for jar in sorted((JARS / "streams-4.3.1").glob("*.jar")))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [java(), "-Xmx256m", *FAST_JVM, *QUIET, "-cp", path, DEMO, str(self.properties)],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def stop(self, how=signal.SIGKILL):
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        self.process.send_signal(how)
        self.process.wait(60)


class Counts(threading.Thread):
    """Reads the output at read_committed all the time, and checks that each word's counts go up by one."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.counts = Counter()
        self.wrong = []
        self.ended = threading.Event()

    def run(self):
        with Cluster(self.bootstrap, retry_seconds=60) as cluster:
            consumer = Consumer(cluster, OUTPUT, wait_ms=100, isolation=READ_COMMITTED, reset=EARLIEST)
            consumer.assign(dict.fromkeys(range(PARTITIONS), 0))
            while not self.ended.is_set():
                for each in consumer.poll():
                    word, count = each.key.decode(), int.from_bytes(each.value, "big")
                    if count != self.counts[word] + 1:
                        self.wrong.append((word, self.counts[word], count))
                    self.counts[word] = count


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_each_word_is_counted_once(tmp_path, rounds, workers):
    """The application is killed, and started again beside a state directory that it left in the middle of
    something; the broker, too."""
    kills = rounds(3, 60)
    chance = random.Random(workers)
    config = {"group.initial.rebalance.delay.ms": 0}
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(workers=workers, data_dir=tmp_path / "data", config=config))
        for topic in (INPUT, OUTPUT):
            create_topic(broker, topic, PARTITIONS)
        counts = Counts(broker.bootstrap)
        counts.start()
        stack.callback(counts.ended.set)
        cluster = stack.enter_context(Cluster(broker.bootstrap, retry_seconds=60))
        producer = Producer(cluster, INPUT, delivery_seconds=60)
        expected = Counter()

        def feed(lines):
            for _ in range(lines):
                words = chance.choices(WORDS, k=5)
                expected.update(words)
                producer.send(" ".join(words).encode(), partition=chance.randrange(PARTITIONS))
            producer.flush()

        def until(wanted):
            deadline = time.monotonic() + WAIT_S
            while counts.counts.total() < wanted and not counts.wrong:
                assert time.monotonic() < deadline, (
                    counts.counts.total(), wanted, application.log.read_text()[-3000:]
                )  # fmt: skip
                time.sleep(0.02)

        application = WordCount(broker.bootstrap, tmp_path)
        application.start()
        stack.callback(lambda: application.process.kill())
        for number in range(kills):
            feed(400)
            until(expected.total() - chance.randrange(200, 1_900))  # in the middle of it
            if number % 3 == 1:
                broker.kill()
                broker.restart()
            else:
                application.stop()
                application.start()
        feed(400)
        until(expected.total())
        time.sleep(0.5)  # for what must not come
        application.stop(signal.SIGTERM)
        assert counts.wrong == []
        assert counts.counts == expected
        assert os.listdir(tmp_path / "state")
