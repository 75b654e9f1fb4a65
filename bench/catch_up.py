"""Catch-up of a follower: kafkad beside JVM Kafka 4.3.1, both behind one JVM leader.

    python -m bench.catch_up
    python -m bench.catch_up --rounds 5 --megabytes 1000

The follower is stopped (SIGSTOP) while the leader is filled, and goes on afterwards; measured are its CPU
and the leader's, a GB, and the time, until its log is as long as the leader's. So both followers are warm,
the page cache is hot, and nothing else runs. The first round warms them and is left out.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.figures import medians
from bench.native import load
from tests.jvm_cluster import JvmCluster, JvmNode
from tests.member_process import MemberProcess

PARTITIONS = 4
SHAPES = {
    "1 MB batches": (1000, 1000),
    "64 KB batches": (64, 1000),
    "16 KB batches of 100 B": (140, 100),
    "200 B batches": (1, 130),
}
SETTLE_S = 2.0
PAUSED_S = 120  # nobody is fenced for being stopped
CONFIG = {
    "broker.session.timeout.ms": PAUSED_S * 1000,
    "replica.lag.time.max.ms": PAUSED_S * 1000,
    "log.segment.bytes": 1 << 30,
}


def log_bytes(node: JvmNode, topic: str) -> int:
    return sum(path.stat().st_size for path in node.data_dir.glob(f"{topic}-*/*.log"))


def cpu_seconds(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return spent.user + spent.system


def wait_for(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("not in time")
        time.sleep(0.005)


def catch_up(leader: JvmNode, follower: JvmNode, pids: tuple[int, int], topic: str, shape, megabytes: float):
    records, value_size = shape
    process, leading = psutil.Process(pids[1]), psutil.Process(pids[0])
    process.send_signal(signal.SIGSTOP)
    try:
        load(
            port=leader.port, topic=topic, partitions=PARTITIONS, producers=1, in_flight=5, records=records,
            value_size=value_size, seconds=600, mb_max=megabytes,
        )  # fmt: skip
        whole = log_bytes(leader, topic)
        missing = whole - log_bytes(follower, topic)
        before, leader_before, began = cpu_seconds(process), cpu_seconds(leading), time.monotonic()
    finally:
        process.send_signal(signal.SIGCONT)
    wait_for(lambda: log_bytes(follower, topic) >= whole)
    seconds = time.monotonic() - began
    gigabytes = missing / 1e9
    return {
        "MB/s": missing / 1e6 / seconds,
        "CPU s/GB": (cpu_seconds(process) - before) / gigabytes,
        "leader CPU s/GB": (cpu_seconds(leading) - leader_before) / gigabytes,
    }


def one_round(admin, followers, leader: JvmNode, pid: int, topic: str, shape, megabytes: float):
    """Each follower in turn, on a topic of its own; their figures by name."""
    admin.create_topics([NewTopic(topic, PARTITIONS, replica_assignment=[[1, 2, 3]] * PARTITIONS)])[
        topic
    ].result(30)

    def whole() -> bool:
        return all(len(p.isrs) == 3 for p in admin.list_topics(topic).topics[topic].partitions.values())

    wait_for(whole)
    time.sleep(SETTLE_S)  # a new topic's ISR is whole before its leader leads
    found = {
        name: catch_up(leader, node, (pid, process), topic, shape, megabytes)
        for name, (node, process) in followers.items()
    }
    wait_for(
        lambda: all(log_bytes(node, topic) == log_bytes(leader, topic) for node, _ in followers.values())
    )
    admin.delete_topics([topic])[topic].result(30)
    return found


def row_of(name: str, follower: str, rows: list[dict[str, float]]) -> list[str]:
    records, value_size = SHAPES[name]
    found = {figure: told["median"] for figure, told in medians(rows).items()}
    batch_us = found["CPU s/GB"] / 1e9 * (records * (value_size + 8) + 61) * 1e6
    return [name, follower, f"{found['MB/s']:.0f}", f"{found['CPU s/GB']:.2f}", f"{batch_us:.2f}",
            f"{found['leader CPU s/GB']:.2f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=500, help="that each catch-up has to fetch")
    parser.add_argument("--only", default="", help="shapes whose names have this")
    parser.add_argument("--where", default="/dev/shm")
    options = parser.parse_args()
    with (
        TemporaryDirectory(dir=options.where) as path,
        JvmCluster(Path(path), brokers=2, config=CONFIG) as cluster,
    ):
        leader, jvm = cluster.brokers
        node = cluster.new_broker(3)
        node.format()
        with MemberProcess(node) as member:
            assert leader.process and jvm.process and member.process
            followers = {"kafkad": (node, member.process.pid), "JVM 4.3.1": (jvm, jvm.process.pid)}
            admin = AdminClient({"bootstrap.servers": leader.bootstrap})
            table = Table(title="catch-up of a follower behind a JVM leader, medians")
            for column in ("fetched", "follower", "MB/s", "CPU s/GB", "CPU µs a batch", "leader CPU s/GB"):
                table.add_column(column)
            for number, (name, shape) in enumerate(SHAPES.items()):
                if options.only not in name:
                    continue
                megabytes = options.megabytes if shape[0] > 1 else options.megabytes / 20
                seen: dict[str, list[dict[str, float]]] = {follower: [] for follower in followers}
                for turn in range(options.rounds + 1):
                    topic = f"catch-up-{number}-{turn}"
                    found = one_round(admin, followers, leader, leader.process.pid, topic, shape, megabytes)
                    for follower, figures in found.items() if turn else ():
                        seen[follower].append(figures)
                for follower, rows in seen.items():
                    table.add_row(*row_of(name, follower, rows))
                    print(*row_of(name, follower, rows), sep="  ", flush=True)
            Console(width=130).print(table)


if __name__ == "__main__":
    main()
