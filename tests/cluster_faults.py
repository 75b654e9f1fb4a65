"""Faults of a cluster of cluster_checker: nodes and workers are killed, paused and stopped, links are cut.

A seed gives the same faults in the same order again, but not the same moments. ALL, WORKERS, DISKS, SHORT
and SHORT_WORKERS are what the tests choose from; a fault that is listed twice is chosen twice as often.

Use: cluster_checker.Story, tests/integration/test_cluster_kills.py."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from tests.links import ANSWERS, REQUESTS, Way
from tests.member_process import workers_of

if TYPE_CHECKING:
    from tests.cluster_checker import Cluster


class Faults:
    """Each public method causes one fault, waits, and ends it. `told` has what was done, with the time."""

    def __init__(self, cluster: Cluster, chance: random.Random):
        self.cluster, self.chance = cluster, chance
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(f"{time.strftime('%H:%M:%S')} {text}")

    def pause(self, low: float = 0.2, high: float = 4.0) -> None:
        time.sleep(self.chance.uniform(low, high))

    def some(self, count: int) -> list[int]:
        return self.chance.sample(sorted(self.cluster.nodes), count)

    def kill_one(self) -> None:
        self._kill(self.some(1))

    def kill_two(self) -> None:
        self._kill(self.some(2))

    def kill_all(self) -> None:
        self._kill(self.some(len(self.cluster.nodes)))

    def kill_the_active_controller(self) -> None:
        self._kill([self.cluster.active_controller()])

    def _kill(self, numbers: Sequence[int]) -> None:
        self.tell(f"kill -9 of {numbers}")
        for number in numbers:
            self.cluster.nodes[number].kill()
        self.pause()
        self.tell(f"start of {numbers}")
        self.cluster.start(numbers)

    def kill_one_after_the_other(self) -> None:
        """Kill a second node when the first may not have rejoined the ISR."""
        first, second = self.some(2)
        self.tell(f"kill -9 of {first}, start, kill -9 of {second}")
        self.cluster.nodes[first].kill()
        self.pause(0.1, 3)
        self.cluster.start([first])
        self.cluster.nodes[second].kill()
        self.pause(0.1, 3)
        self.cluster.start([second])

    def stop_one(self) -> None:
        self._stop(self.some(1))

    def stop_the_active_controller(self) -> None:
        self._stop([self.cluster.active_controller()])

    def stop_all(self) -> None:
        self._stop(self.some(len(self.cluster.nodes)))

    def _stop(self, numbers: Sequence[int]) -> None:
        self.tell(f"controlled stop of {numbers}")
        codes = self.cluster.stop(numbers)
        assert not any(codes.values()), codes
        self.pause(0.1, 2)
        self.tell(f"start of {numbers}")
        self.cluster.start(numbers)

    def halt_for_long(self) -> None:
        self._halt(self.some(self.chance.choice((1, 1, 2))), 3.0, 6.0)

    def halt_for_a_moment(self) -> None:
        self._halt(self.some(1), 0.1, 2.0)

    def halt_the_active_controller(self) -> None:
        self._halt([self.cluster.active_controller()], 1.5, 4)

    def _halt(self, numbers: Sequence[int], low: float, high: float) -> None:
        self.tell(f"SIGSTOP of {numbers}")
        self._signal(numbers, signal.SIGSTOP)
        self.pause(low, high)
        self.tell(f"SIGCONT of {numbers}")
        self._signal(numbers, signal.SIGCONT)

    def _signal(self, numbers: Sequence[int], what: signal.Signals) -> None:
        for number in numbers:
            self.cluster.signal(number, what)

    def kill_a_worker(self) -> None:
        self._kill_workers(self.some(1))

    def kill_a_worker_of_each(self) -> None:
        self._kill_workers(self.some(len(self.cluster.nodes)))

    def kill_a_worker_of_the_active_controller(self) -> None:
        self._kill_workers([self.cluster.active_controller()])

    def _kill_workers(self, numbers: Sequence[int]) -> None:
        for number, index, worker in self._workers(numbers):
            self.tell(f"kill -9 of worker {index} of {number}")
            worker.kill()
        self.pause(0.1, 3)

    def halt_a_worker(self) -> None:
        halted = self._workers(self.some(1))
        for number, index, worker in halted:
            self.tell(f"SIGSTOP of worker {index} of {number}")
            worker.suspend()
        self.pause(0.1, 4)
        self.tell("SIGCONT")
        for _, _, worker in halted:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()

    def _workers(self, numbers: Sequence[int]) -> list[tuple[int, int, psutil.Process]]:
        """Return a random worker of each node: (node, index, process)."""
        found = []
        for number in numbers:
            process = self.cluster.nodes[number].process
            assert process is not None
            of_node = workers_of(process.pid)
            if of_node:
                index = self.chance.choice(sorted(of_node))
                found.append((number, index, of_node[index]))
        return found

    def fill_a_disk(self) -> None:
        """Of a node that runs. It may lose its only log directory, and end (`Cluster.whole` starts it)."""
        (number,) = self.some(1)
        self.tell(f"the disk of {number} is full")
        ballast = self.cluster.nodes[number].data_dir / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 12)):
                pass
        self.pause(0.1, self.chance.choice((1.0, 4.0, 12.0)))
        ballast.unlink()
        self.tell(f"the disk of {number} has room again")

    def cut_a_link(self) -> None:
        source, target = self.some(2)
        ways = self.chance.choice(
            (
                [(source, target, REQUESTS)],
                [(source, target, ANSWERS)],
                [(a, b, way) for a, b in ((source, target), (target, source)) for way in (REQUESTS, ANSWERS)],
            )
        )
        self._cut(ways)

    def cut_off_a_node(self) -> None:
        self._cut_off(*self.some(1))

    def cut_off_the_active_controller(self) -> None:
        self._cut_off(self.cluster.active_controller())

    def _cut_off(self, number: int) -> None:
        others = [each for each in self.cluster.nodes if each != number]
        out = [(number, other, REQUESTS) for other in others]
        into = [(other, number, REQUESTS) for other in others]
        self._cut(self.chance.choice((out, into, out + into)))

    def _cut(self, ways: Sequence[Way]) -> None:
        self.tell(f"cut {ways}")
        self.cluster.links.cut(ways)
        self.pause(1.0, 5.0)
        self.tell("all links are whole")
        self.cluster.links.mend()

    def cut_and_kill(self) -> None:
        """Keep one node from following another, which then dies."""
        source, target = self.some(2)
        self.tell(f"cut {source} -> {target}, kill -9 of {target}")
        self.cluster.links.cut([(source, target, REQUESTS)])
        self.pause(0.2, 3)
        self.cluster.nodes[target].kill()
        self.pause(0.2, 3)
        self.cluster.links.mend()
        self.cluster.start([target])


ALL = (
    Faults.kill_one,
    Faults.kill_two,
    Faults.kill_all,
    Faults.kill_the_active_controller,
    Faults.kill_one_after_the_other,
    Faults.stop_one,
    Faults.stop_the_active_controller,
    Faults.stop_all,
    Faults.halt_for_long,
    Faults.halt_for_a_moment,
    Faults.halt_the_active_controller,
    Faults.cut_a_link,
    Faults.cut_off_a_node,
    Faults.cut_off_the_active_controller,
    Faults.cut_and_kill,
)
WORKERS = (  # with several workers
    *ALL,
    Faults.kill_a_worker,
    Faults.kill_a_worker,
    Faults.kill_a_worker_of_each,
    Faults.kill_a_worker_of_the_active_controller,
    Faults.kill_a_worker_of_the_active_controller,
    Faults.halt_a_worker,
)
DISKS = (  # of nodes with small disks
    *ALL,
    *[Faults.fill_a_disk] * len(ALL),
)
SHORT = (Faults.kill_one, Faults.halt_for_a_moment, Faults.cut_a_link)
SHORT_WORKERS = (Faults.kill_a_worker_of_the_active_controller, Faults.kill_one, Faults.halt_a_worker)
