"""Three brokers of one kind as a cluster: kafkad beside JVM Kafka, each node broker and controller.

Partitions have three replicas, and all are led by the first broker, so that one address takes the load: what
is measured is a leader with two followers. CPU is that of all three brokers. A kafkad of a cluster has one
worker here, since three share the cores with the load; another count in --workers has a column of its own.

    acks=all    batches as `produce` sends them to one broker; a rate held low, for its latency
    catch-up    a follower is stopped (SIGSTOP) while the leader is filled; then until its logs are as long
    idle        memory of a broker, and the part of a core that it takes, with 1,000 partitions each

How long clients wait when a node is restarted or killed: `python -m bench.failover`."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from bench import bounds
from bench.brokers import CLUSTER_ID, Jvm, Kafkad, Process, ask, free_port
from bench.drive import run_produce
from bench.native import load
from bench.produce import cell
from bench.running import SETTLE_SECONDS, Bench, Cell
from bench.scenarios import PRODUCE, Produce
from kafkad.protocol import messages

NODES = (1, 2, 3)
PAUSED_MS = 120_000  # nobody is fenced, or leaves the ISR, for being stopped
CONFIG = {
    "broker.session.timeout.ms": str(PAUSED_MS),
    "replica.lag.time.max.ms": str(PAUSED_MS),
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "auto.leader.rebalance.enable": "false",
}
IDLE_PARTITIONS = 1000
IDLE_SECONDS = 10.0
CATCH_UP_PARTITIONS = 4
WAIT_SECONDS = 120.0
CREATED_AT_ONCE = (
    250  # partitions of a request: Kafka's controller takes 10,000 records, and three brokers many files
)

# fmt: off
ROWS = (
    #       name                         partitions, connections, in flight, records, value size
    Produce(bounds.CLUSTER_64,                    4,   4,  5,   64, 1000, acks=-1, bound=True, bare=False),
    Produce("3 brokers, acks=all, 1 MB batches",  4,   4,  5, 1000, 1000, acks=-1, bare=False),
    Produce(bounds.CLUSTER_SMALL,                 4,   4,  5,  150,  100, acks=-1, bound=True, bare=False),
    Produce("3 brokers, acks=all, 1 record of 100 B a batch",
                                                 16,  16,  5,    1,  100, acks=-1, bare=False),
    Produce(bounds.CLUSTER_HELD,                  4,   4,  5,   16, 1000, acks=-1, rate_mb_per_s=20,
            bound=True, bare=False),
)
# fmt: on


def keys(number: int, ports: dict[int, int], controllers: dict[int, int]) -> dict[str, str]:
    """What differs from a broker that is alone."""
    voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in controllers.items())
    listeners = f"PLAINTEXT://127.0.0.1:{ports[number]},CONTROLLER://127.0.0.1:{controllers[number]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": listeners,
        "advertised.listeners": listeners,
        **CONFIG,
    }


class KafkadNode(Kafkad):
    def prepare(self) -> None:
        super().prepare()
        self.properties = self.directory.parent / f"{self.directory.name}.properties"
        lines = {"log.dirs": str(self.directory), **self.overrides}
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self.directory / "meta.properties").exists():
            command = [
                sys.executable,
                "-m",
                "kafkad",
                "format",
                str(self.properties),
                "--cluster-id",
                CLUSTER_ID,
            ]
            subprocess.run(command, check=True, capture_output=True)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "kafkad", "serve", str(self.properties)]
        return [*command, "--log-level", "warning", "--workers", str(self.workers)]


class Trio(Process):
    """Three nodes as one broker: the port is that of the first, CPU and memory are those of all."""

    copies = len(NODES)

    def __init__(self, directory: Path, name: str, nodes: list[Process]) -> None:
        super().__init__(directory)
        self.name = name
        self.nodes = nodes

    def launch(self) -> float:
        self.directory.mkdir(parents=True, exist_ok=True)
        begun = [node.launch() for node in self.nodes]
        self.port, self.process = self.nodes[0].port, self.nodes[0].process
        return begun[0]

    def wait_ready(self, begun: float) -> None:
        for node in self.nodes:
            node.wait_ready(begun)
        while len(ask(self.port, messages.MetadataRequest(topics=[]), 9).brokers) < len(self.nodes):
            time.sleep(0.01)

    def tree(self) -> list[psutil.Process]:
        return [process for node in self.nodes for process in node.tree()]

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
        self.process = None

    def alive(self) -> bool:
        return all(node.alive() for node in self.nodes)

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        """Led by the first broker, with all replicas in the ISR."""
        topic = messages.CreateTopicsRequest.Topics
        request = messages.CreateTopicsRequest(
            topics=[
                topic(
                    name=name, num_partitions=-1, replication_factor=-1,
                    assignments=[
                        topic.Assignments(partition_index=index, broker_ids=list(NODES))
                        for index in range(partitions)
                    ],
                    configs=[topic.Configs(name=key, value=value) for key, value in (configs or {}).items()],
                )
            ],
            timeout_ms=60_000,
        )  # fmt: skip
        answer = ask(self.port, request, 5)
        assert answer.topics[0].error_code == 0, answer
        self.wait_partitions(name, partitions)

    def log_bytes(self, topic: str) -> list[int]:
        """Of each node."""
        return [
            sum(path.stat().st_size for path in node.directory.glob(f"{topic}-*/*.log"))
            for node in self.nodes
        ]


def lineup(bench: Bench, directory: Path) -> list[Trio]:
    trios = []
    options = bench.options
    workers = dict.fromkeys((1,) if options.quick else (1, *options.workers))
    for count in workers:
        ports, controllers = ({number: free_port() for number in NODES} for _ in range(2))
        nodes: list[Process] = []
        for number in NODES:
            own = keys(number, ports, controllers)
            node = KafkadNode(directory / f"kafkad-{count}-{number}", count, own)
            node.port = ports[number]
            nodes.append(node)
        name = "kafkad" if count == 1 else f"kafkad, {count} workers each"
        trios.append(Trio(directory / f"kafkad-{count}", name, nodes))
    for kafka in options.kafka[:1]:
        version, _, heap = kafka.partition(":")
        ports, controllers = ({number: free_port() for number in NODES} for _ in range(2))
        nodes = []
        for number in NODES:
            jvm = Jvm(directory / f"jvm-{number}", version, keys(number, ports, controllers), heap)
            jvm.port = ports[number]
            nodes.append(jvm)
        trios.append(Trio(directory / "jvm", nodes[0].name, nodes))
    return trios


@contextmanager
def fleet(bench: Bench) -> Iterator[list[Trio]]:
    directory = bench.where / "cluster"
    directory.mkdir(parents=True, exist_ok=True)
    trios = lineup(bench, directory)
    try:
        for trio in trios:
            bench.say(f"starting three brokers of {trio.name}")
            trio.start()
        yield trios
    finally:
        for trio in trios:
            trio.kill()
        shutil.rmtree(directory, ignore_errors=True)


def run_group(bench: Bench) -> None:
    rows = [row for row in ROWS if bench.wanted(row.name) and (row.bound or not bench.options.quick)]
    catching_up, idling = bench.wanted(bounds.CLUSTER_CATCH_UP), bench.wanted(bounds.CLUSTER_IDLE)
    if not (rows or catching_up or idling):
        return
    bench.stop_main_fleet()  # its memory and its share of the cores are needed here
    bench.options.mb_max, mb_max = (
        min(bench.options.mb_max, 700),
        bench.options.mb_max,
    )  # there are three copies
    try:
        with fleet(bench) as trios:
            if idling:  # before the JVM's heap has grown
                cells = [Cell(bounds.CLUSTER_IDLE, trio, partial(idle, bench, trio)) for trio in trios]
                bench.rounds("cluster", cells, rounds=1)
            warm(bench, trios)
            for row in rows:
                bench.rounds("cluster", [cell(bench, row, trio) for trio in trios])
            if catching_up:
                cells = [
                    Cell(bounds.CLUSTER_CATCH_UP, trio, partial(catch_up, bench, trio)) for trio in trios
                ]
                bench.rounds("cluster", cells)
    finally:
        bench.options.mb_max = mb_max


def warm(bench: Bench, trios: list[Trio]) -> None:
    for number in range(bench.options.warm):
        for trio in trios:
            bench.say(f"warming three brokers of {trio.name}, pass {number + 1}")
            for row in PRODUCE:
                run_produce(
                    trio, row._replace(acks=-1), bench.topic("warm"), seconds=bench.options.seconds,
                    mb_max=min(bench.options.mb_max, 300),
                )  # fmt: skip
    time.sleep(SETTLE_SECONDS)


def catch_up(bench: Bench, trio: Trio) -> dict[str, float]:
    """How fast the third broker fetches what it has missed; CPU is of all three meanwhile."""
    topic, megabytes = bench.topic("behind"), bench.options.mb_max
    trio.create_topic(topic, CATCH_UP_PARTITIONS)
    behind = trio.nodes[2].tree()
    try:
        for process in behind:
            process.send_signal(signal.SIGSTOP)
        with bench.touched():
            load(
                port=trio.port, topic=topic, partitions=CATCH_UP_PARTITIONS, producers=4, in_flight=5,
                records=64, value_size=1000, acks=1, seconds=600, mb_max=megabytes,
            )  # fmt: skip
            wait_for(lambda: len(set(trio.log_bytes(topic)[:2])) == 1)  # the other follower has it all
            total, *_, missing = trio.log_bytes(topic)
            cpu, begun = trio.cpu_seconds(), time.perf_counter()
            for process in reversed(behind):
                process.send_signal(signal.SIGCONT)
            wait_for(lambda: trio.log_bytes(topic)[2] >= total)
            seconds, spent = time.perf_counter() - begun, trio.cpu_seconds() - cpu
    finally:
        for process in behind:
            process.send_signal(signal.SIGCONT)
        trio.delete_topic(topic)
    time.sleep(SETTLE_SECONDS)
    moved = (total - missing) / 1e6
    return {"MB/s": moved / seconds, "CPU s/GB": spent / moved * 1000}


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s")
        time.sleep(0.005)


def idle(bench: Bench, trio: Trio) -> dict[str, float]:
    """With what has been made and is led by the first broker, and nobody asking for it."""
    topics = [bench.topic("idle") for _ in range(IDLE_PARTITIONS // CREATED_AT_ONCE)]
    for topic in topics:
        trio.create_topic(topic, CREATED_AT_ONCE)
    time.sleep(IDLE_SECONDS / 2)
    cpu, begun = trio.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    percent = (trio.cpu_seconds() - cpu) / (time.perf_counter() - begun) / len(NODES) * 100
    megabytes = trio.pss_bytes() / 1e6 / len(NODES)
    for topic in topics:
        trio.delete_topic(topic)
    time.sleep(SETTLE_SECONDS)
    return {"PSS MB": megabytes, "% of a core": percent}
