"""Three nodes, some of them JVM Kafka and some kafkad, that are killed, halted, stopped and handed over.

`MixedCluster` is a HandoverCluster with the interface that the faults of cluster_checker use. Its nodes reach
each other without links, so no link can be cut. `MixedStory` decides by its seed which nodes begin as kafkad.

Use: tests/integration/test_cluster_kills.py."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from tests.cluster_checker import WAIT_S, Faults, renewals
from tests.cluster_transactions import PipelineStory
from tests.handover_cluster import JVM, KAFKAD, HandoverCluster


class MixedCluster(HandoverCluster):
    def __init__(self, path: Path):
        super().__init__(path, static=True)

    def start(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.nodes[number].running.launch()
        for number in numbers:
            self.nodes[number].running.until_ready(WAIT_S)

    def stop(self, numbers: Sequence[int]) -> dict[int, int]:
        """At the same time; 0 for an exit code that is right."""
        nodes = [self.nodes[number] for number in numbers]
        for node in nodes:
            node.process.terminate()
        return {node.number: node.process.wait(WAIT_S) - (143 if node.kind == JVM else 0) for node in nodes}

    def signal(self, number: int, what: signal.Signals) -> None:
        self.nodes[number].process.send_signal(what)

    def turn_into(self, number: int, kind: str) -> None:
        if self.nodes[number].kind != kind:
            assert not any(self.stop([number]).values())
            self.nodes[number].start(kind)

    def tracebacks(self) -> list[str]:
        """Of kafkad."""
        logs = {number: node.kafkad.log for number, node in self.nodes.items()}
        return [
            f"kafkad {number}: {log[at : at + 3000]}"
            for number, log in logs.items()
            if (at := log.find("Traceback")) >= 0
        ]


class MixedFaults(Faults):
    cluster: MixedCluster

    def tell(self, text: str) -> None:
        super().tell(f"{text} ({self.cluster.kinds})")

    def hand_over_one(self) -> None:
        (number,) = self.some(1)
        self.tell(f"hand over {number}")
        self.cluster.turn_into(number, KAFKAD if self.cluster.nodes[number].kind == JVM else JVM)


MIXED = (
    Faults.kill_one,
    Faults.kill_two,
    Faults.kill_all,
    Faults.kill_the_active_controller,
    Faults.kill_one_after_the_other,
    Faults.stop_one,
    Faults.stop_the_active_controller,
    Faults.halt_for_long,
    Faults.halt_for_a_moment,
    Faults.halt_the_active_controller,
    MixedFaults.hand_over_one,
)
SHORT_MIXED = (Faults.kill_the_active_controller,)


class MixedStory(PipelineStory):
    """One batch in flight: of a producer, JVM Kafka finds only the last batch in a snapshot, and answers an
    earlier one that is sent again OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal to librdkafka."""

    cluster: MixedCluster
    writing = MappingProxyType({"max.in.flight": 1})

    def __init__(self, cluster: MixedCluster, seed: int):
        super().__init__(cluster, seed)
        self.faults = MixedFaults(cluster, self.chance)

    def _create(self) -> None:
        kinds = self.chance.choice(((JVM, KAFKAD, KAFKAD), (JVM, JVM, KAFKAD)))
        for number, kind in zip(self.cluster.nodes, self.chance.sample(kinds, 3), strict=True):
            self.cluster.turn_into(number, kind)
        super()._create()

    def _links_are_used(self) -> None:
        """There are none."""

    def _renewed(self, index: int) -> set[int]:
        return renewals(self.cluster.nodes[1].data_dir / f"{self.topic}-{index}")
