"""kafkad follows JVM leaders: its replicas are theirs byte for byte, through kills, and it is in the ISR."""

import contextlib
import hashlib
import random
import threading
import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess

WAIT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER = 61


def wait_until(condition, within_s=WAIT_S, what=""):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not so in time: {what() if callable(what) else what}"
        time.sleep(0.1)
    return value


def batches(node, topic, index=0):
    """(base offset, leader epoch, digest) of each batch of a replica, segments aside."""
    found = []
    for path in sorted((node.data_dir / f"{topic}-{index}").glob("*.log")):
        data, at = path.read_bytes(), 0
        while at + HEADER <= len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            if at + size > len(data) or size <= 12:
                break
            batch = data[at : at + size]
            found.append((int.from_bytes(batch[:8], "big"), int.from_bytes(batch[12:16], "big"),
                          hashlib.md5(batch).hexdigest()))  # fmt: skip
            at += size
    return found


def epochs(node, topic, index=0):
    lines = (node.data_dir / f"{topic}-{index}" / "leader-epoch-checkpoint").read_text().split("\n")
    return [line for line in lines[2:] if line]


class Mixed:
    """Brokers 1 and 2 are JVMs, 3 is kafkad; one JVM controller."""

    def __init__(self, path):
        config = {
            "replica.lag.time.max.ms": 3000,
            "replica.fetch.backoff.ms": 200,
            "log.segment.bytes": 1 << 20,
            # as many as it is created with below: a JVM that has started without the topic counts on this
            "transaction.state.log.num.partitions": 1,
        }
        self.cluster = JvmCluster(path, brokers=2, config=config)
        self.node = self.cluster.new_broker(3)
        self.member = MemberProcess(self.node)
        self.nodes = {1: self.cluster.brokers[0], 2: self.cluster.brokers[1], 3: self.node}
        self.bootstrap = ",".join(node.bootstrap for node in self.cluster.brokers)

    def __enter__(self):
        self.cluster.__enter__()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        # kafkad coordinates nothing here: it is killed again and again
        self.create("__transaction_state", [1, 2], cleanup_policy="compact", min_insync_replicas=1)
        self.node.format()
        self.member.start()
        return self

    def __exit__(self, *exception):
        self.member.kill()
        self.cluster.__exit__(*exception)

    def create(self, name, replicas, **config):
        keys = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas], config=keys)])[
            name
        ].result(30)

    def partition(self, topic):
        with contextlib.suppress(KafkaException):
            return self.admin.list_topics(topic, timeout=5).topics[topic].partitions.get(0)

    def isr(self, topic):
        known = self.partition(topic)
        return set() if known is None else set(known.isrs)

    def leader(self, topic):
        known = self.partition(topic)
        return -1 if known is None else known.leader

    def agree(self, topic, ids=(1, 2, 3)):
        """Until all replicas hold the same batches; then no producer writes any more."""

        def same():
            first, *others = [batches(self.nodes[id], topic) for id in ids]
            return first and all(each == first for each in others)

        wait_until(same, what=lambda: (
            {id: batches(self.nodes[id], topic)[-3:] for id in ids}, self.isr(topic), self.member.log[-3000:]
        ))  # fmt: skip

    def whole(self, topic, ids=(1, 2, 3)):
        wait_until(lambda: self.isr(topic) == set(ids), what=lambda: (
            topic, self.leader(topic), self.isr(topic), self.member.log[-4000:]
        ))  # fmt: skip


class Load(threading.Thread):
    """Idempotent acks=all records of every codec, and transactions of which some are aborted."""

    def __init__(self, bootstrap, topic, transactional=""):
        super().__init__(daemon=True)
        self.topic = topic
        self.ended = threading.Event()
        self.troubles = []
        self.acked = 0
        self.bootstrap = bootstrap
        self.transactional = transactional

    def told(self, error, _):
        if error is None:
            self.acked += 1
        else:
            self.troubles.append(str(error))

    def init_transactions(self, producer):
        """Again, as an application would, if its coordinator was killed meanwhile."""
        for tries_left in reversed(range(3)):
            try:
                producer.init_transactions(60)
                return
            except KafkaException as error:
                if not (tries_left and error.args[0].retriable()):
                    self.troubles.append(f"init_transactions: {error}")
                    raise

    def run(self):
        chance = random.Random(self.transactional)
        made = []
        for codec in CODECS:
            settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5,
                        "compression.type": codec, "message.timeout.ms": 120_000, "log_level": 0}  # fmt: skip
            if self.transactional:
                settings |= {
                    "transactional.id": f"{self.transactional}-{codec}",
                    "transaction.timeout.ms": 60_000,
                    "message.timeout.ms": 50_000,
                }
            made.append(Producer(settings))
        if self.transactional:
            for producer in made:
                self.init_transactions(producer)
        while not self.ended.is_set():
            producer = chance.choice(made)
            if self.transactional:
                producer.begin_transaction()
            for _ in range(chance.randrange(1, 40)):
                value = bytes(chance.choices(b"abc", k=chance.choice((10, 200, 3_000))))
                producer.produce(self.topic, value, on_delivery=self.told)
            producer.poll(0)
            if self.transactional:
                try:
                    producer.flush(60)
                    if chance.random() < 0.3:
                        producer.abort_transaction(60)
                    else:
                        producer.commit_transaction(60)
                except KafkaException as error:
                    if error.args[0].txn_requires_abort():
                        producer.abort_transaction(60)
                    elif not error.args[0].retriable():
                        self.troubles.append(str(error))
                        return
            else:
                time.sleep(0.002)
        for producer in made:
            producer.flush(60)

    def end(self):
        self.ended.set()
        self.join(150)
        assert not self.is_alive()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    with Mixed(tmp_path_factory.mktemp("mixed")) as mixed:
        yield mixed


@pytest.mark.timeout(7200)
@pytest.mark.soak
def test_replicas_agree_through_kills_of_leaders_and_of_the_follower(mixed, rounds):
    chance = random.Random(3)
    mixed.create("plain", [1, 2, 3], min_insync_replicas=2, segment_bytes=1 << 20)
    mixed.create("settled", [2, 1, 3], min_insync_replicas=2)
    mixed.whole("plain")
    loads = [Load(mixed.bootstrap, "plain"), Load(mixed.bootstrap, "settled", "settles")]
    for load in loads:
        load.start()
    wait_until(lambda: all(load.acked > 100 or load.troubles for load in loads), what=lambda: (
        [(load.acked, load.troubles) for load in loads], mixed.member.log[-4000:]
    ))  # fmt: skip
    events = ["leader", "kill", "leader", "stop"]
    for number in range(rounds(3, 100)):
        time.sleep(chance.uniform(0.5, 2))
        event = events[number % len(events)]
        if event == "leader":
            node = mixed.nodes[wait_until(lambda: max(mixed.leader("plain"), 0))]
            assert node is not mixed.node
            node.kill()
            time.sleep(chance.uniform(0.2, 3))
            node.start()
        elif event == "kill":
            mixed.member.kill()
            mixed.member.start()
        else:
            assert mixed.member.stop() == 0, mixed.member.log
            mixed.member.start()
        for topic in ("plain", "settled"):
            mixed.whole(topic)
    for load in loads:
        load.end()
    for topic, load in zip(("plain", "settled"), loads, strict=True):
        assert not load.troubles
        assert load.acked > 100
        mixed.agree(topic)
        assert epochs(mixed.node, topic) == epochs(mixed.nodes[1], topic)
    assert "Traceback" not in mixed.member.log


@pytest.mark.timeout(3600)
@pytest.mark.soak
def test_replicas_agree_after_unclean_elections(mixed, rounds):
    for number in range(rounds(1, 30)):
        elect_uncleanly(mixed, f"dirty{number}")


def elect_uncleanly(mixed, topic):
    """Broker 2 leads without what 1 and kafkad have; they cut it."""
    mixed.create(topic, [1, 2, 3], unclean_leader_election_enable="true", min_insync_replicas=1)
    mixed.whole(topic)
    write(mixed.nodes[1].bootstrap, topic, b"all", 50)
    mixed.agree(topic)
    mixed.nodes[2].kill()
    mixed.whole(topic, (1, 3))
    write(mixed.nodes[1].bootstrap, topic, b"lost", 50)
    mixed.agree(topic, (1, 3))
    mixed.member.kill()
    mixed.nodes[1].kill()
    mixed.nodes[2].start()
    wait_until(lambda: mixed.leader(topic) == 2, what=lambda: mixed.leader(topic))
    write(mixed.nodes[2].bootstrap, topic, b"kept", 70)
    mixed.member.start()
    mixed.nodes[1].start()
    mixed.whole(topic)
    mixed.agree(topic)
    assert f"{topic}-0 is cut from" in mixed.member.log


def write(bootstrap, topic, prefix, count):
    troubles = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "1",
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    for number in range(count):
        producer.produce(
            topic, prefix + b"%d" % number, on_delivery=lambda e, _: e and troubles.append(str(e))
        )
        producer.poll(0)
    assert producer.flush(60) == 0 and not troubles
