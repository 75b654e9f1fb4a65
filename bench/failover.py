"""Measure how long clients wait while nodes of a cluster are restarted or killed: `python -m bench.failover`.

Three nodes, each broker and controller, with Kafka's default time-outs, run on this machine with data on
tmpfs: first kafkad, then JVM Kafka unless --no-kafka. A producer (librdkafka, acks=all, idempotent) sends a
record to each of 6 partitions every 5 ms, and a consumer reads them. Each round has four events:

    SIGTERM           another node, and the node that leads the quorum: a controlled shutdown
    kill -9           another node, and the node that leads the quorum
    start             of the node, DOWN_S after each of these; then its partitions are given back to it:
                      kafkad's leaders do that themselves, of Kafka it is asked for

Then the round waits until all replicas are in sync. A pause is the longest time between two acknowledgements,
or two records that are read, of the worst partition in one event. The table has the median and the worst
pause of all rounds, and the number of the clients' errors.

With `--partitions N` it measures something else: how long it takes until all of N partitions are led again
(bench/takeover.py). With `--controller`: how long after kill -9 of the node that leads the quorum another one
has created a topic (it is asked again and again), and all others know of it.

What a leader refuses librdkafka sends again after retry.backoff.ms, which is 100 +- 20 ms: less than that it
cannot show of any broker. With `--retry-backoff 1` the table shows the brokers' own pauses."""

import argparse
import contextlib
import signal
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import takeover
from bench.brokers import ask
from kafkad.protocol import messages
from kafkad.raft.observer import TOPIC as METADATA
from tests.handover_cluster import JVM, KAFKAD, HandoverCluster, Node
from tests.jvm import NEWEST, run_tool

TOPIC, PARTITIONS = "failover", 6
EVERY_S = 0.005
BEFORE_S, AFTER_S = 0.5, 2.0
DOWN_S = {"SIGTERM": 2.0, "kill -9": 12.0}  # longer than a session, whoever leads after it
WAIT_S = 120.0
ASKED_EVERY_S = 0.005
DEFAULTS = {
    "broker.session.timeout.ms": 9000,
    "broker.heartbeat.interval.ms": 2000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "controller.quorum.election.timeout.ms": 1000,
    "leader.imbalance.check.interval.seconds": 300,
    "replica.lag.time.max.ms": 30000,
    "kafkad.preferred.leader.delay.ms": 11_000,  # above reconnect.backoff.max.ms; Kafka ignores it
}
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
EVENTS = ("SIGTERM", "SIGTERM, leads the quorum", "kill -9", "kill -9, leads the quorum")
START = "start, preferred leaders"


class Fleet(HandoverCluster):
    """Three nodes of one kind."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, static=True)
        self.kind = kind
        for node in self.nodes.values():
            with node.properties.open("a") as file:
                file.writelines(f"{key}={value}\n" for key, value in DEFAULTS.items())

    def __enter__(self) -> "Fleet":
        try:
            for node in self.nodes.values():
                run_tool(NEWEST, "kafka-storage", "format", "-t", self.cluster_id, "-c", node.properties)
                node.kind = self.kind
                node.running.launch()
            for node in self.nodes.values():
                node.running.until_ready(WAIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def leader_of_the_quorum(self) -> int:
        cls = messages.DescribeQuorumRequest
        request = cls(topics=[cls.Topics(topic_name=METADATA, partitions=[cls.Topics.Partitions()])])
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for node in self.nodes.values():
                with contextlib.suppress(OSError):
                    answer = ask(node.port, request, 0)
                    if not answer.error_code and answer.topics[0].partitions[0].leader_id > 0:
                        return int(answer.topics[0].partitions[0].leader_id)
        raise RuntimeError("the quorum has no leader")


class Clients:
    """A producer and a consumer. `acked` and `read`: the times of records, by partition."""

    def __init__(self, bootstrap: str, retry_backoff_ms: int) -> None:
        self.acked: dict[int, list[float]] = defaultdict(list)
        self.read: dict[int, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self._bootstrap = bootstrap
        self._retry_backoff_ms = retry_backoff_ms
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
            | {"retry.backoff.ms": self._retry_backoff_ms}
            | QUIET
        )

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acked[message.partition()].append(time.monotonic())

        while not self._ended.is_set():
            for index in range(PARTITIONS):
                with contextlib.suppress(BufferError):  # a very long pause has filled the queue
                    producer.produce(TOPIC, b"x" * 100, partition=index, on_delivery=delivered)
            producer.poll(0)
            time.sleep(EVERY_S)
        producer.flush(WAIT_S)

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "failover"} | QUIET)
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        while not self._ended.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                self.read[message.partition() or 0].append(time.monotonic())
        consumer.close()


def longest_pause(times: dict[int, list[float]], begun: float, ended: float) -> float:
    """Return the longest pause of the worst partition in ms."""
    worst = 0.0
    for index in range(PARTITIONS):
        moments = list(times.get(index, ()))  # another thread appends
        seen = [begun, *(moment for moment in moments if begun <= moment <= ended), ended]
        worst = max(worst, *(after - before for before, after in pairwise(seen)))
    return worst * 1000


def happens(fleet: Fleet, event: str) -> Iterator[str]:
    """Each part of it, when it is over."""
    leader = fleet.leader_of_the_quorum()
    others = [number for number in fleet.nodes if number != leader]
    node: Node = fleet.nodes[leader if "leads" in event else others[0]]
    process = node.process
    assert process is not None
    process.send_signal(signal.SIGKILL if "kill" in event else signal.SIGTERM)
    process.wait(WAIT_S)
    time.sleep(DOWN_S[event.split(",")[0]])
    yield event
    node.start(node.kind)
    fleet.all_whole()
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap} | QUIET)
    if fleet.kind == JVM:
        admin.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while any(
        part.leader != part.replicas[0]
        for part in admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions.values()
    ):
        if time.monotonic() > deadline:
            raise RuntimeError("the preferred replicas do not lead")
        time.sleep(0.1)
    time.sleep(AFTER_S)
    yield START


def rounds_of(kind: str, rounds: int, retry_backoff_ms: int) -> Iterator[tuple[str, float, float, int]]:
    """Yield (event, pause of the producer, pause of the consumer, errors)."""
    with (
        tempfile.TemporaryDirectory(prefix="failover-", dir="/dev/shm") as path,
        Fleet(Path(path), kind) as fleet,
    ):
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap} | QUIET)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(WAIT_S)
        fleet.all_whole()
        with Clients(fleet.bootstrap, retry_backoff_ms) as clients:
            time.sleep(5.0)
            for event in EVENTS * rounds:
                before, begun = len(clients.errors), time.monotonic() - BEFORE_S
                for part in happens(fleet, event):
                    ended = time.monotonic() - BEFORE_S  # records in flight are not a pause
                    pauses = [longest_pause(each, begun, ended) for each in (clients.acked, clients.read)]
                    yield part, pauses[0], pauses[1], len(clients.errors) - before
                    before, begun = len(clients.errors), ended
            for error in sorted(set(clients.errors)):
                print(f"an error of a client of {kind}: {error}")


def takeovers(kind: str, partitions: int, rounds: int) -> Iterator[str]:
    """The rows of the table."""
    with (
        tempfile.TemporaryDirectory(prefix="failover-", dir="/dev/shm") as path,
        Fleet(Path(path), kind) as fleet,
    ):
        takeover.create(fleet, partitions)
        for event in ("kill -9", "kill -9, leads the quorum") * rounds:
            takeover.preferred(fleet)
            leader = fleet.leader_of_the_quorum()
            dead = leader if "leads" in event else next(each for each in fleet.nodes if each != leader)
            count, *seconds = takeover.take_over(fleet, dead)
            yield (
                f"| {event} | {kind} | {count:,} | " + " | ".join(f"{each:.2f} s" for each in seconds) + " |"
            )
            fleet.nodes[dead].start(kind)


def changes(kind: str, rounds: int) -> Iterator[tuple[float, float]]:
    """Yield (until a topic is created, until every living node knows of it), in ms after the kill."""
    with (
        tempfile.TemporaryDirectory(prefix="failover-", dir="/dev/shm") as path,
        Fleet(Path(path), kind) as fleet,
    ):
        for number in range(rounds):
            dead = fleet.leader_of_the_quorum()
            lines = [takeover.Line(node.port) for each, node in fleet.nodes.items() if each != dead]
            assert create_one(lines[0], f"before-{number}") == 0
            process = fleet.nodes[dead].process
            assert process is not None
            process.send_signal(signal.SIGKILL)
            begun = time.monotonic()
            name = f"after-{number}"
            while create_one(lines[0], name):
                time.sleep(ASKED_EVERY_S)
            created = time.monotonic() - begun
            wanted = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=name)])
            for line in lines:
                while line.ask(wanted, 12).topics[0].error_code:
                    time.sleep(ASKED_EVERY_S)
                line.socket.close()
            yield created * 1000, (time.monotonic() - begun) * 1000
            process.wait(WAIT_S)
            fleet.nodes[dead].start(kind)
            fleet.all_whole()
            time.sleep(AFTER_S)


def create_one(line: takeover.Line, name: str) -> int:
    """Return the error code."""
    cls = messages.CreateTopicsRequest
    topic = cls.Topics(name=name, num_partitions=1, replication_factor=3)
    (made,) = line.ask(cls(topics=[topic], timeout_ms=1000), 7).topics
    return int(made.error_code)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-kafka", action="store_true", help="kafkad alone")
    parser.add_argument("--no-kafkad", action="store_true", help="JVM Kafka alone")
    parser.add_argument("--retry-backoff", type=int, default=100, metavar="MS", help="of the producer")
    parser.add_argument("--partitions", type=int, help="see bench/takeover.py")
    parser.add_argument("--controller", action="store_true", help="until a topic is created")
    options = parser.parse_args()
    kinds = (KAFKAD,) if options.no_kafka else (JVM,) if options.no_kafkad else (KAFKAD, JVM)
    if options.controller:
        print("| nodes | created: median, worst | known: median, worst |\n" + "|---" * 3 + "|")
        for kind in kinds:
            columns = zip(*changes(kind, options.rounds), strict=True)
            cells = [f"{statistics.median(each):,.0f}, {max(each):,.0f} ms" for each in columns]
            print(f"| {kind} | {cells[0]} | {cells[1]} |", flush=True)
        return
    if options.partitions:
        print("| event | nodes | partitions it led | one accepts | all accept | told |\n" + "|---" * 6 + "|")
        for kind in kinds:
            for row in takeovers(kind, options.partitions, options.rounds):
                print(row, flush=True)
        return
    print(
        "| event | nodes | producer: median, worst | consumer: median, worst | errors |\n" + "|---" * 5 + "|"
    )
    for kind in kinds:
        found = defaultdict(list)
        for event, *figures in rounds_of(kind, options.rounds, options.retry_backoff):
            found[event].append(figures)
        for event, rows in found.items():
            produced, read, errors = zip(*rows, strict=True)
            cells = [f"{statistics.median(each):,.0f}, {max(each):,.0f} ms" for each in (produced, read)]
            print(f"| {event} | {kind} | {cells[0]} | {cells[1]} | {sum(errors)} |", flush=True)


if __name__ == "__main__":
    main()
