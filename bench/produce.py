"""Produce scenarios: shapes of batches, partitions, producers, keys, acks, codecs; latency at half load."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench import scenarios
from bench.brokers import Bare, Process
from bench.drive import run_produce
from bench.running import SETTLE_SECONDS, Bench, Cell
from bench.scenarios import Produce

GROUPS = {
    "produce": scenarios.PRODUCE,
    "partitions": scenarios.PARTITIONS,
    "producers": scenarios.PRODUCERS,
    "keys": scenarios.KEYS,
    "acks": scenarios.ACKS,
    "codecs": scenarios.CODECS,
}
HALF_LOAD_OF = "produce 16 KB, 50 producers"
HALF_LOAD = "16 KB, 50 producers, half load"
# A rate held low runs longer, for its tail is of few requests, and its memory is set free meanwhile. One held
# high has all of its memory set free at its start, and is over when the host is told (bench/memory.py).
LOW_MB_S = 100  # at most
LOW_TIMES = 3
HIGH_SECONDS = 1.5  # at most


def cell(bench: Bench, row: Produce, broker: Process, scenario: str = "", **more: Any) -> Cell:
    """`more`: options of load.c."""

    def run() -> dict[str, float]:
        options = bench.options
        seconds, rate = options.seconds, row.rate_mb_per_s
        if 0 < rate <= LOW_MB_S:
            seconds *= LOW_TIMES
        elif rate:
            seconds, rate = min(seconds, HIGH_SECONDS), 0
        figures = run_produce(
            broker,
            row,
            bench.topic(),
            seconds=seconds,
            mb_max=options.mb_max,
            touched=partial(bench.touched, rate * broker.copies, seconds),
            **more,
        )
        time.sleep(SETTLE_SECONDS)
        return figures

    return Cell(scenario or row.name, broker, run)


def measure(bench: Bench, group: str, rows: Sequence[Produce], brokers: Sequence[Process]) -> None:
    for row in rows:
        if bench.wanted(row.name):
            bench.rounds(group, [cell(bench, row, b) for b in brokers if row.bare or not isinstance(b, Bare)])


def run_group(bench: Bench, group: str) -> None:
    rows = [row for row in GROUPS[group] if row.bound or not bench.options.quick]
    if any(bench.wanted(row.name) for row in rows):
        measure(bench, group, rows, bench.main_fleet())


def half_load(bench: Bench) -> None:
    """Everyone at the same held rate: half of what the slowest real broker can take in this shape."""
    if not bench.wanted(HALF_LOAD):
        return
    brokers = bench.main_fleet()
    row = next(r for r in scenarios.PRODUCERS if r.name == HALF_LOAD_OF)
    capable = bench.results.get("producers", {}).get(HALF_LOAD_OF, {})
    if not capable:
        bench.rounds("producers", [cell(bench, row, b, HALF_LOAD_OF) for b in brokers])
        capable = bench.results.get("producers", {}).get(HALF_LOAD_OF, {})
    real = [
        capable[b.name]["MB/s"]["median"] for b in brokers if b.name in capable and not isinstance(b, Bare)
    ]
    if real:
        held = row._replace(name=HALF_LOAD, rate_mb_per_s=round(min(real) / 2, 1))
        measure(bench, "half load", [held], brokers)
