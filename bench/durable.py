"""On an ordinary disk: produce with acks=all, with and without an fsync before the acknowledgement
(log.flush.interval.messages=1 on every broker).

Two fleets at once, so that each round drives a broker without and with the fsync right after each other. What
a run left dirty is written out before the next, else the kernel throttles whoever comes after it.
"""

import os
import time

from bench import scenarios
from bench.brokers import Process
from bench.drive import run_produce
from bench.running import DISK_WARM_MB, SETTLE_SECONDS, Bench, Cell
from bench.scenarios import Produce

PLAIN = "disk: "
FLUSHED = "disk, fsync before ack: "
OVERRIDES = {"log.flush.interval.messages": "1"}
MB_MAX = 1000


def run(bench: Bench) -> None:
    rows = [
        row for row in scenarios.DISK if bench.wanted(PLAIN + row.name) or bench.wanted(FLUSHED + row.name)
    ]
    if not rows:
        return
    bench.stop_main_fleet()

    def cell(row: Produce, broker: Process, prefix: str) -> Cell:
        def once() -> dict[str, float]:
            megabytes = min(MB_MAX, bench.options.mb_max)
            bench.touch(min(megabytes, bench.options.touch_mb))
            os.sync()
            figures = run_produce(broker, row, bench.topic(), seconds=bench.options.seconds, mb_max=megabytes)
            time.sleep(SETTLE_SECONDS)
            return figures

        return Cell(prefix + row.name, broker, once)

    with (
        bench.fleet(bench.disk / "plain", warm_mb=DISK_WARM_MB) as plain,
        bench.fleet(bench.disk / "flushed", OVERRIDES, warm_mb=DISK_WARM_MB) as flushed,
    ):
        for row in rows:
            cells = []
            for without, with_fsync in zip(plain, flushed, strict=True):
                cells += [cell(row, without, PLAIN), cell(row, with_fsync, FLUSHED)]
            bench.rounds("disk", cells)
