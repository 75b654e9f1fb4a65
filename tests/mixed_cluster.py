"""A cluster of three nodes, some of them JVM Kafka and some kafkad, with the faults of cluster_faults.

`MixedCluster` is a HandoverCluster with the interface that these faults use. Its nodes reach each other
directly, so no link can be cut. Another fault is that a node changes from one to the other. The seed of a
`MixedStory` decides which nodes are kafkad at its beginning.

Use: tests/integration/test_cluster_kills.py."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from tests.cluster_checker import WAIT_S, renewals, tracebacks_in
from tests.cluster_faults import Faults
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
        """Stop the nodes with SIGTERM, at the same time. Return 0 for each expected exit code."""
        nodes = [self.nodes[number] for number in numbers]
        for node in nodes:
            node.process.terminate()
        expected = {JVM: 128 + signal.SIGTERM, KAFKAD: 0}
        return {node.number: node.process.wait(WAIT_S) - expected[node.kind] for node in nodes}

    def signal(self, number: int, what: signal.Signals) -> None:
        self.nodes[number].process.send_signal(what)

    def turn_into(self, number: int, kind: str) -> None:
        if self.nodes[number].kind != kind:
            assert not any(self.stop([number]).values())
            self.nodes[number].start(kind)

    def tracebacks(self) -> list[str]:
        """Return those of kafkad."""
        return tracebacks_in({number: node.kafkad.log for number, node in self.nodes.items()})


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
    """A PipelineStory whose writers have one batch in flight. After a restart from a snapshot, JVM Kafka
    knows only the last batch of a producer. It answers a repeated earlier one with
    OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal to librdkafka."""

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
        """Do nothing: there are no links."""

    def _renewed(self, index: int) -> set[int]:
        return renewals(self.cluster.nodes[1].data_dir / f"{self.topic}-{index}")
