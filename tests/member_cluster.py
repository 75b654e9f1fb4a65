"""A cluster of kafkad alone: controllers and brokers, each a process of its own.

`with MemberCluster(path, brokers=3) as cluster`: brokers 1, 2, ... under controller 100."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.controller_process import ControllerQuorum, MemberNode
from tests.member_process import MemberProcess

QUICK = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 3000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
}
WAIT_S = 60


def wait_until(condition, what=lambda: ""):
    """What the condition is when it holds; it is asked again and again, for long enough on any machine."""
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not so in {WAIT_S} s: {what()}"
        time.sleep(0.1)
    return value


class MemberCluster:
    def __init__(
        self,
        path: Path,
        *,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        workers: int | Mapping[int, int] = 1,
        racks: Mapping[int, str] | None = None,
        second_directories: bool = False,
    ):
        """`workers` of each broker, or by its number; its rack, by its number. `second_directories`: each
        broker has another one, `second-<number>`."""
        self.config = {**QUICK, **(config or {})}
        self.quorum = ControllerQuorum(path, 1, self.config)
        numbers = range(1, brokers + 1)
        each = dict.fromkeys(numbers, workers) if isinstance(workers, int) else workers
        own = {number: {"broker.rack": rack} for number, rack in (racks or {}).items()}
        if second_directories:
            for number in numbers:
                both = f"{path / f'broker-{number}'},{path / f'second-{number}'}"
                own.setdefault(number, {})["log.dirs"] = both
        self.nodes = {
            number: MemberNode(self.quorum, number, {**self.config, **own.get(number, {})})
            for number in numbers
        }
        self.members = {number: MemberProcess(node, each[number]) for number, node in self.nodes.items()}
        self.bootstrap = ",".join(member.bootstrap for member in self.members.values())

    def __enter__(self) -> MemberCluster:
        try:
            self.quorum.start()
            for member in self.members.values():
                member.start()
        except BaseException:
            self.__exit__()
            raise
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self

    def __exit__(self, *exception: object) -> None:
        for member in self.members.values():
            member.kill()
        self.quorum.__exit__(*exception)

    def partition(self, topic: str, index: int = 0):
        with contextlib.suppress(KafkaException):
            known = self.admin.list_topics(topic, timeout=5).topics[topic]
            return known.partitions.get(index)
        return None

    def leader(self, topic: str, index: int = 0) -> int:
        known = self.partition(topic, index)
        return -1 if known is None else known.leader

    def whole(self, *topics: str) -> None:
        """Until each replica of these topics is in its ISR."""

        def lacking():
            with contextlib.suppress(KafkaException):
                found = self.admin.list_topics(timeout=5).topics
                return [
                    (topic, part.id, part.replicas, part.isrs)
                    for topic in topics
                    for part in found[topic].partitions.values()
                    if sorted(part.replicas) != sorted(part.isrs) or part.leader < 0
                ]
            return ["nobody answers"]

        wait_until(lambda: not lacking(), lambda: f"{lacking()}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"-- {number}\n{member.log[-4000:]}" for number, member in self.members.items())
