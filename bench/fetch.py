"""Fetch scenarios: from the page cache, by ten consumers of one topic, and cold from disk."""

import os
import time

from bench import scenarios
from bench.brokers import Bare, Process
from bench.drive import DRAIN_SECONDS_MAX, FETCH_TOPIC, fill, mixed_options, run_fetch, timed
from bench.running import DISK_WARM_MB, Bench, Cell
from bench.scenarios import Mixed

COLD = "disk: catch-up reads of cold data"
COLD_BESIDE = "disk: cold catch-up beside 20 MB/s produced"
COLD_PARTITIONS = 4
# the backlog is there already: `mixed_options` only needs to know that it is one
COLD_MIXED = Mixed(COLD_BESIDE, COLD_PARTITIONS, 4, 4, 16, 1000, 20, backlog_mb=1)


def run(bench: Bench) -> None:
    rows = [row for row in scenarios.FETCH if row.bound or not bench.options.quick]
    rows = [row for row in rows if bench.wanted(row.name)]
    if not rows:
        return
    brokers = bench.main_fleet()
    for broker in brokers:
        if isinstance(broker, Bare):
            fill(broker, FETCH_TOPIC, rows[0].partitions, bench.options.fetch_mb)
    for row in rows:

        def cell(broker: Process, row: scenarios.Fetch = row) -> Cell:
            return Cell(
                row.name, broker, lambda: run_fetch(broker, row, FETCH_TOPIC, seconds=bench.options.seconds)
            )

        bench.rounds("fetch", [cell(broker) for broker in brokers])


def drop_cache(broker: Process) -> int:
    """Writes the broker's segments out and drops them from the page cache; the bytes."""
    size = 0
    for path in broker.directory.rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(fd).st_size
        finally:
            os.close(fd)
    return size


def cold(bench: Bench) -> None:
    if not (bench.wanted(COLD) or bench.wanted(COLD_BESIDE)):
        return
    bench.stop_main_fleet()
    with bench.fleet(bench.disk / "cold", warm_mb=DISK_WARM_MB) as brokers:
        for broker in brokers:
            bench.say(f"writing {bench.options.cold_mb} MB to {broker.name}")
            fill(broker, "cold", COLD_PARTITIONS, bench.options.cold_mb)

        def read(broker: Process) -> Cell:
            def once() -> dict[str, float]:
                drop_cache(broker)
                return timed(
                    broker, topic="cold", partitions=COLD_PARTITIONS, consumers=4, shared=1, once=1,
                    max_bytes=1 << 20, seconds=DRAIN_SECONDS_MAX,
                )  # fmt: skip

            return Cell(COLD, broker, once)

        def beside(broker: Process) -> Cell:
            def once() -> dict[str, float]:
                drop_cache(broker)
                time.sleep(0.2)
                options = mixed_options(COLD_MIXED, seconds=DRAIN_SECONDS_MAX, mb_max=1e9)
                return timed(broker, topic="cold", **options)

            return Cell(COLD_BESIDE, broker, once)

        bench.rounds("cold", [read(broker) for broker in brokers])
        bench.rounds("cold", [beside(broker) for broker in brokers])
