"""Run the scenarios: start the brokers, drive them in turns, and collect the figures.

Method: All brokers of a fleet run at once on the same cores as the load, but only one is driven at a time. A
JVM is first warmed up with the produce and fetch scenarios. Each partition is written to once, and the memory
that the load will write is touched before (bench/memory.py). A round drives every broker once, so a drift of
the machine affects all of them; a figure is the median over the rounds. A cell that fails is reported and
left out; the others continue.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.status import Status

from bench.bounds import Results
from bench.brokers import Bare, Jvm, Kafkad, Process
from bench.drive import FETCH_TOPIC, fill, run_fetch, run_produce
from bench.figures import medians
from bench.memory import touched_memory
from bench.scenarios import FETCH, PRODUCE

DISK_WARM_MB = 300  # a JVM is warmed on disk with less: what is dirty has to be written out
SETTLE_SECONDS = 1.0  # deleted segments give their memory back (log.segment.delete.delay.ms is 500)


@dataclass
class Options:
    rounds: int = 5
    seconds: float = 2.0
    warm: int = 2
    workers: tuple[int, ...] = (2,)  # the first is what is compared with the bounds
    kafka: tuple[str, ...] = ("4.3.1",)  # VERSION or VERSION:HEAP
    bare: bool = True
    clients: bool = True
    quick: bool = False
    only: str = ""
    touch_mb: int = 2500
    mb_max: float = 2500  # of one run: three logs and the page cache must fit into memory
    fetch_mb: int = 512  # what fetch scenarios read, again and again
    cold_mb: int = 2000
    restart_gb: float = 4
    recovery_gb: float = 6
    partition_counts: tuple[int, ...] = (1, 1000, 5000, 10000)
    connection_counts: tuple[int, ...] = (1000, 10000)
    tls_connections: int = 5000
    acls: int = 1000
    client_records: int = 600_000
    aborts: int = 100_000
    transactional_ids: int = 100_000
    clean_mb: int = 512
    old_fetch_mb: int = 64  # in each of four partitions


class Cell(NamedTuple):
    """One scenario on one broker: what a round does, and its figures."""

    scenario: str
    broker: Process
    run: Callable[[], dict[str, float]]


@dataclass
class Bench:
    options: Options
    where: Path  # a tmpfs of huge pages: for throughput
    plain: Path  # a tmpfs of ordinary pages: for memory, where a mapped index should not count as 2 MB
    disk: Path  # an ordinary disk
    console: Console
    status: Status | None = None
    results: Results = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    number: int = 0
    _main: list[Process] = field(default_factory=list)

    def say(self, text: str) -> None:
        if self.status is not None:
            self.status.update(text)

    def topic(self, stem: str = "run") -> str:
        """A name that no broker has seen."""
        self.number += 1
        return f"{stem}-{self.number}"

    def wanted(self, name: str) -> bool:
        return self.options.only in name

    def touched(self, mb_per_s: float = 0, seconds: float = 0) -> AbstractContextManager[None]:
        """In its context the memory that a run will write was touched before."""
        return touched_memory(self.where, self.options.touch_mb, mb_per_s, seconds)

    # -- brokers

    def lineup(
        self,
        directory: Path,
        overrides: dict[str, str] | None = None,
        *,
        bare: bool = False,
        kinds: tuple[type[Kafkad], type[Jvm]] = (Kafkad, Jvm),
    ) -> list[Process]:
        """kafkad with each count of workers, each JVM Kafka, and the bare loop; not started."""
        ours, theirs = kinds
        brokers: list[Process] = []
        for number, workers in enumerate(self.options.workers):
            name = "kafkad" if number == 0 else f"kafkad, {workers} worker{'s' * (workers > 1)}"
            brokers.append(ours(directory / f"kafkad-{workers}", workers, overrides, name))
        for kafka in self.options.kafka:
            version, _, heap = kafka.partition(":")
            brokers.append(theirs(directory / f"jvm-{kafka.replace(':', '-')}", version, overrides, heap))
        if bare and self.options.bare:
            brokers.append(Bare(directory / "bare"))
        return brokers

    @contextmanager
    def fleet(
        self,
        directory: Path,
        overrides: dict[str, str] | None = None,
        *,
        bare: bool = False,
        warm: bool = True,
        warm_mb: float | None = None,
        kinds: tuple[type[Kafkad], type[Jvm]] = (Kafkad, Jvm),
    ) -> Iterator[list[Process]]:
        """A line-up, started and warmed (with at most `warm_mb` a run); killed afterwards, its data
        removed.
        """
        brokers = self.lineup(directory, overrides, bare=bare, kinds=kinds)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            for broker in brokers:
                self.say(f"starting {broker.name}")
                broker.start()
            if warm:
                self.warm(brokers, megabytes=warm_mb)
            yield brokers
        finally:
            for broker in brokers:
                broker.kill()
            shutil.rmtree(directory, ignore_errors=True)

    def main_fleet(self) -> list[Process]:
        """The fleet that most groups share, on the tmpfs; with the topic that fetch scenarios read."""
        if not self._main:
            brokers = self.lineup(self.where / "main", bare=True)
            (self.where / "main").mkdir(parents=True, exist_ok=True)
            self._main = brokers
            for broker in brokers:
                self.say(f"starting {broker.name}")
                broker.start()
                if not isinstance(broker, Bare):  # which has one topic at a time
                    fill(broker, FETCH_TOPIC, FETCH[0].partitions, self.options.fetch_mb)
            self.warm(brokers, fetch=True)
        return self._main

    def stop_main_fleet(self) -> None:
        for broker in self._main:
            broker.kill()
        if self._main:
            shutil.rmtree(self.where / "main", ignore_errors=True)
        self._main = []

    def warm(
        self,
        brokers: Sequence[Process],
        *,
        fetch: bool = False,
        all: bool = False,
        megabytes: float | None = None,
    ) -> None:
        """A JVM that has seen little is slow: passes over the produce scenarios, whatever is measured.
        `all`: of every broker, for what is asked of those that have seen load.
        """
        for number in range(self.options.warm):
            for broker in brokers:
                if not (isinstance(broker, Jvm) or all):
                    continue
                self.say(f"warming {broker.name}, pass {number + 1}")
                for row in PRODUCE:
                    run_produce(
                        broker,
                        row,
                        self.topic("warm"),
                        seconds=self.options.seconds,
                        mb_max=min(megabytes or self.options.mb_max, self.options.mb_max),
                    )
                for fetched in FETCH if fetch else ():
                    run_fetch(broker, fetched, FETCH_TOPIC, seconds=self.options.seconds)
        if self.options.warm:
            time.sleep(SETTLE_SECONDS)

    # -- rounds

    def rounds(self, group: str, cells: Sequence[Cell], *, rounds: int | None = None) -> None:
        """All cells in turn, `rounds` times; their medians go to the results of the group."""
        cells = [cell for cell in cells if self.wanted(cell.scenario)]
        seen: list[list[dict[str, float]]] = [[] for _ in cells]
        broken: set[int] = set()
        count = self.options.rounds if rounds is None else rounds
        for number in range(count):
            for index, cell in enumerate(cells):
                if index in broken:
                    continue
                bar = progress(number * len(cells) + index, count * len(cells))
                self.say(f"{bar} {group}: {cell.scenario}, {cell.broker.name}, round {number + 1} of {count}")
                try:
                    seen[index].append(cell.run())
                except (
                    RuntimeError,
                    OSError,
                    AssertionError,
                    subprocess.SubprocessError,
                    psutil.Error,
                ) as trouble:
                    broken.add(index)
                    self.failed(cell, trouble)
        for cell, rounds_seen in zip(cells, seen, strict=True):
            if rounds_seen:
                row = self.results.setdefault(group, {}).setdefault(cell.scenario, {})
                row[cell.broker.name] = medians(rounds_seen)

    def failed(self, cell: Cell, trouble: BaseException) -> None:
        text = f"{cell.scenario}, {cell.broker.name}: {type(trouble).__name__}: {trouble}"
        self.failures.append(text)
        self.console.print(f"[red]{text}[/red]", highlight=False)
        if cell.broker.process is not None and not cell.broker.alive():
            cell.broker.kill()
            try:
                cell.broker.start()
            except (RuntimeError, OSError, subprocess.SubprocessError) as more:
                self.failures.append(f"{cell.broker.name} does not start again: {more}")


def progress(done: int, total: int, width: int = 20) -> str:
    full = width * done // max(total, 1)
    return "━" * full + "─" * (width - full)
