"""kill -9 in the middle of transactions: what is committed is there once, what is not is never seen.

The first test is an exactly-once pipeline, as people run it: copiers read a topic, write another and commit
their offsets in one transaction each. They die, are replaced, and abort; the broker or a worker is killed
under them. The others end the broker between the two halves of a commit (the decision in the coordinator's
log, the markers in the partitions)."""

import os
import random
import signal
import threading
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from kafkad.coordinator.transactions import partition_of
from kafkad.protocol import messages
from kafkad.replication.ownership import owner_of
from kafkad.testing import Broker
from tests.clients import WAIT_S, consumer, create_topic, produce, wait_until
from tests.integration.test_transactional_produce import Client
from tests.integration.test_transactions import everything, values
from tests.integration.test_workers import wires_to_all
from tests.jvm import NEWEST, TEST_CONFIG, start_tool
from tests.wire import Wire

SEED = int(os.environ.get("KAFKAD_SEED", "20261123"))
PARTITIONS = 4
SOURCE, TARGET, GROUP = "source", "target", "copiers"
CONFIG = {
    **TEST_CONFIG,
    "log.segment.bytes": 1 << 20,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
# when librdkafka 2.16 bootstraps anew, it goes on to send TxnOffsetCommit by the connection that it has given
# up: so it must not bootstrap anew
QUICK = {
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "metadata.recovery.strategy": "none",
}
SURE = 60  # seconds that one step of a client may take under kills


def insist(step):
    """What a client does, tried again while its trouble is one that passes."""
    deadline = time.monotonic() + SURE
    while True:
        try:
            return step()
        except KafkaException as trouble:
            error = trouble.args[0]
            passes = error.retriable() or error.name() in (
                "_TIMED_OUT",
                "_TRANSPORT",
                "_ALL_BROKERS_DOWN",
                "NOT_COORDINATOR",  # of OffsetFetch: librdkafka's committed() hands it on
            )
            if error.fatal() or error.txn_requires_abort() or not passes or time.monotonic() > deadline:
                raise


class Source(threading.Thread):
    """Numbers its records per partition; an idempotent producer, so they are there once."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.sent = [0] * PARTITIONS
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, **QUICK}
        )

    def run(self):
        while not self.stopping.wait(0.01):
            for partition in range(PARTITIONS):
                self.producer.produce(SOURCE, b"%d" % self.sent[partition], partition=partition)
                self.sent[partition] += 1
            self.producer.poll(0)
        assert self.producer.flush(SURE) == 0


class Copier(threading.Thread):
    """Copies one partition. Its producer is replaced by a new one of the same id when it fails for good, and
    at times in the middle of a transaction, as when the process dies."""

    def __init__(self, broker, partition, seed):
        super().__init__(daemon=True)
        self.broker, self.partition = broker, partition
        self.chance = random.Random(seed)
        self.until = None  # copied up to here it ends
        self.commits = self.aborts = self.replaced = 0
        self.trouble = None

    def run(self):
        try:
            while not self.lives():
                self.replaced += 1
        except Exception as trouble:
            self.trouble = trouble
            raise

    def lives(self):
        """One life; True when all is copied."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "transactional.id": f"copier-{self.partition}",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 1,
                **QUICK,
            }
        )
        reader = consumer(self.broker, GROUP, **{"isolation.level": "read_committed", **QUICK})
        try:
            insist(lambda: producer.init_transactions(5))
            place = TopicPartition(SOURCE, self.partition)
            at = insist(lambda: reader.committed([place], 5))[0].offset
            reader.assign([TopicPartition(SOURCE, self.partition, max(at, 0))])
            while self.until is None or reader.position([place])[0].offset < self.until:
                most = self.chance.randrange(1, 30) if self.until is None else 1_000  # it may be far behind
                rows = [row for row in reader.consume(most, 0.2) if not row.error()]
                if rows and not self.copy(producer, reader, rows):
                    return False
            return self.until is not None
        except KafkaException as trouble:
            if not (trouble.args[0].fatal() or trouble.args[0].txn_requires_abort()):
                raise
            return False
        finally:
            reader.close()

    def copy(self, producer, reader, rows):
        """One transaction. False: this life is over."""
        producer.begin_transaction()
        for row in rows:
            value = b"%d:%s" % (self.partition, row.value())
            producer.produce(TARGET, value, partition=self.partition, headers=[("n", row.value())])
            producer.produce(TARGET, value, partition=(self.partition + 1) % PARTITIONS)
        place = TopicPartition(SOURCE, self.partition, rows[-1].offset() + 1)
        fate = self.chance.random()
        if fate < 0.03:
            producer.flush(0.05)
            return False  # without a word: its successor, or the time-out, ends the transaction
        metadata = reader.consumer_group_metadata()
        insist(lambda: producer.send_offsets_to_transaction([place], metadata, 5))
        if fate < 0.15:
            producer.flush(1)
            insist(lambda: producer.abort_transaction(5))
            reader.seek(TopicPartition(SOURCE, self.partition, rows[0].offset()))
            self.aborts += 1
        else:
            insist(lambda: producer.commit_transaction(5))
            self.commits += 1
        return True


def open_transactions(broker, topic, partitions=PARTITIONS):
    """Producers with an open transaction in the topic, by partition."""
    cls = messages.DescribeProducersRequest
    with Wire(broker.bootstrap) as wire:
        request = cls(topics=[cls.Topics(name=topic, partition_indexes=list(range(partitions)))])

        def described():
            parts = wire.ask(request, 0).topics[0].partitions
            return parts if all(part.error_code == 0 for part in parts) else None

        parts = wait_until(described)  # a worker that was killed comes back first
    return [
        (part.partition_index, each.producer_id)
        for part in parts
        for each in part.active_producers
        if each.current_txn_start_offset >= 0
    ]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_pipeline_copies_each_record_once_while_brokers_and_workers_are_killed(tmp_path, rounds, workers):
    chance = random.Random(SEED + workers)
    with Broker(config=CONFIG, data_dir=tmp_path / "data", workers=workers) as broker:
        for name in (SOURCE, TARGET):
            create_topic(broker, name, PARTITIONS)
        source = Source(broker.bootstrap)
        copiers = [Copier(broker, partition, SEED + partition) for partition in range(PARTITIONS)]
        for thread in (source, *copiers):
            thread.start()
        for _ in range(rounds(6, 200)):
            before = [copier.commits for copier in copiers]
            wait_until(
                lambda before=before: all(
                    copier.commits > was for copier, was in zip(copiers, before, strict=True)
                ),
                SURE,
            )
            time.sleep(chance.uniform(0, 0.3))
            if workers > 1 and chance.random() < 0.7:
                broker.kill_worker(chance.randrange(workers))
            else:
                broker.kill()
                broker.restart()
        source.stopping.set()
        source.join(SURE)
        for copier in copiers:
            copier.until = source.sent[copier.partition]
        for copier in copiers:
            copier.join(SURE)
            assert copier.trouble is None and not copier.is_alive()
        assert all(copier.commits for copier in copiers) and sum(copier.aborts for copier in copiers)
        wait_until(lambda: not open_transactions(broker, TARGET))
        found = values(broker, TARGET)
        for partition, sent in enumerate(source.sent):
            expected = [b"%d:%d" % (partition, n) for n in range(sent)]
            for place in (partition, (partition + 1) % PARTITIONS):
                mine = [value for value in found[place] if value.startswith(b"%d:" % partition)]
                assert mine == expected, f"of source {partition} in target {place}"
        reader = consumer(broker, GROUP)
        places = [TopicPartition(SOURCE, partition) for partition in range(PARTITIONS)]
        assert [each.offset for each in reader.committed(places, WAIT_S)] == source.sent
        reader.close()


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [1, 2])
def test_javas_copier_copies_each_record_once_while_brokers_and_workers_are_killed(tmp_path, rounds, workers):
    """The newest protocol (KIP-890), with five batches in flight."""
    chance, count, name = random.Random(SEED), rounds(6000, 200_000), "copier"
    with Broker(config=CONFIG, data_dir=tmp_path / "data", workers=workers) as broker:
        for topic in (SOURCE, TARGET):
            create_topic(broker, topic, PARTITIONS)
        produce(broker, SOURCE, [(b"k", b"%d " % n + b"x" * 40) for n in range(count)])
        source = values(broker, SOURCE)
        (partition,) = source
        copier = start_tool(
            NEWEST, "transactional-message-copier", "--broker-list", broker.bootstrap,
            "--input-topic", SOURCE, "--input-partition", partition, "--output-topic", TARGET,
            "--consumer-group", name, "--transactional-id", name, "--transaction-size", 20,
            "--transaction-timeout", 10_000, "--enable-random-aborts", "--use-group-metadata",
        )  # fmt: skip
        said, troubles = [], []
        reading = [
            threading.Thread(target=into.extend, args=(stream,), daemon=True)
            for into, stream in ((said, copier.stdout), (troubles, copier.stderr))
        ]
        for thread in reading:
            thread.start()
        kills = 0
        while copier.poll() is None:
            before = len(said)
            wait_until(lambda before=before: len(said) > before + 10 or copier.poll() is not None, SURE)
            time.sleep(chance.uniform(0, 0.2))
            if copier.poll() is None and workers > 1 and kills % 3:
                broker.kill_worker(chance.randrange(workers))
            elif copier.poll() is None:
                broker.kill()
                broker.restart()
            kills += 1
        for thread in reading:
            thread.join(WAIT_S)
        assert copier.returncode == 0, "".join(troubles)[-3000:]
        assert kills > 3
        wait_until(lambda: not open_transactions(broker, TARGET))
        assert values(broker, TARGET) == source
        reader = consumer(broker, name)
        (found,) = reader.committed([TopicPartition(SOURCE, partition)], WAIT_S)
        assert found.offset == count
        reader.close()


# -- between the decision and the markers ------------------------------------------------------------------


def described(wire, client):
    request = messages.DescribeTransactionsRequest(transactional_ids=[client.id])
    (found,) = wire.ask(request, 0).transaction_states
    return found


def worker_for(wire, topic, index, workers):
    (told,) = wire.ask(
        messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=topic)]), 12
    ).topics
    return owner_of(told.topic_id, index, workers)


def prepared(broker, stack, chosen, version, *, commits):
    """A client whose transaction is decided, while a partition of it cannot take its marker: the worker of
    the partition is stopped. Its coordinator, and the connection, are another worker's."""
    wires = wires_to_all(broker, stack)
    wire = wires[0]
    client = Client(wire, chosen)
    state = "__transaction_state"
    count = int(TEST_CONFIG["transaction.state.log.num.partitions"])
    number = 0
    while worker_for(wire, state, partition_of(client.id, count), broker.workers) != 0:
        client.id = chosen(f"id-{number}")
        number += 1
    client.producer_id, client.epoch = client.init()
    here, there = (
        next(index for index in range(8) if worker_for(wire, client.topic, index, broker.workers) == worker)
        for worker in (0, 1)
    )
    if version < 5:
        client.add(here, there)
    asked = client.request(
        {here: client.records(here), there: client.records(there)}, version=12 if version >= 5 else 9
    )
    answer = wire.ask(asked, 12 if version >= 5 else 9)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0, 0]
    stopped = broker.worker_pids[1]
    os.kill(stopped, signal.SIGSTOP)
    client.end(commit=commits, version=version)
    found = described(wire, client)
    assert found.transaction_state == ("PrepareCommit" if commits else "PrepareAbort")
    return client, stopped, there


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    data = tmp_path_factory.mktemp("decided") / "data"
    with Broker(config=CONFIG, data_dir=data, workers=2) as broker:
        yield broker


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("dies", ["broker", "coordinator", "leader"])
def test_what_was_decided_is_carried_out_after_a_kill(pair, unique, dies, version, commits):
    with ExitStack() as stack:
        client, stopped, there = prepared(pair, stack, unique, version, commits=commits)
        if dies == "broker":
            pair.kill()
            pair.restart()
        elif dies == "coordinator":
            pair.kill_worker(0)
            os.kill(stopped, signal.SIGCONT)
        else:
            pair.kill_worker(1)
    with Wire(pair.bootstrap) as wire:
        ended = "CompleteCommit" if commits else "CompleteAbort"
        wait_until(lambda: described(wire, client).transaction_state == ended)
        assert described(wire, client).topics == []
        assert open_transactions(pair, client.topic, 8) == []
        places = range(8)
        assert len(everything(pair, client.topic, partitions=places)) == (2 if commits else 0)
        assert len(everything(pair, client.topic, "read_uncommitted", places)) == 2

        client.wire = wire  # and the producer goes on with its id
        client.producer_id, client.epoch = client.init()
        client.sequences = {}
        client.add(there)
        answer = wire.ask(client.request({there: client.records(there)}), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        client.end(version=4)
    wait_until(lambda: len(everything(pair, client.topic, partitions=places)) == (3 if commits else 1))
