"""Produce on an ordinary disk with acks=all, with and without an fsync before the acknowledgement
(log.flush.interval.messages=1 on every broker).

Two fleets run at once, so each round drives a broker without and with the fsync in direct succession. Dirty
pages of a run are written out before the next run; otherwise the kernel throttles that one.

Each round also measures the disk itself (native/syncs.c): appends of the bytes that the load has in flight to
one partition, with an fdatasync after each, in as many files; and the same in pieces of 8 MB, which is the
disk's maximum. A broker that syncs before it acknowledges cannot be faster than the first, and no broker is
faster than the second for long.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import scenarios
from bench.brokers import Process, Server
from bench.drive import run_produce
from bench.figures import figures
from bench.native import build
from bench.running import DISK_WARM_MB, SETTLE_SECONDS, Bench, Cell
from bench.scenarios import Produce

PLAIN = "disk: "
FLUSHED = "disk, fsync before ack: "
OVERRIDES = {"log.flush.interval.messages": "1"}
MB_MAX = 1000
BIG_WRITE = 8 << 20
BATCH_OVERHEAD = 8  # bytes of a record beside its value, about


class Disk(Server):
    """No broker: the disk, asked by itself."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory)
        self.name = name

    def command(self) -> list[str]:
        return [str(build("syncs"))]

    def run(self, files: int, size: int, seconds: float, megabytes: float) -> dict[str, float]:
        self.directory.mkdir(parents=True, exist_ok=True)
        options = {"directory": self.directory, "files": files, "bytes": size}
        options |= {"seconds": seconds, "mb_max": megabytes}
        command = [*self.command(), *(f"{name}={value}" for name, value in options.items())]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return figures(told, told["cpu"])


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

            @contextmanager
            def touched() -> Iterator[None]:
                with bench.touched():
                    os.sync()
                    yield

            figures = run_produce(
                broker, row, bench.topic(), seconds=bench.options.seconds, mb_max=megabytes, touched=touched
            )
            time.sleep(SETTLE_SECONDS)
            return figures

        return Cell(prefix + row.name, broker, once)

    def disk(row: Produce, name: str, size: int) -> Cell:
        broker = Disk(bench.disk / "itself", name)

        def once() -> dict[str, float]:
            os.sync()
            return broker.run(row.partitions, size, bench.options.seconds, MB_MAX)

        return Cell(FLUSHED + row.name, broker, once)

    with (
        bench.fleet(bench.disk / "plain", warm_mb=DISK_WARM_MB) as plain,
        bench.fleet(bench.disk / "flushed", OVERRIDES, warm_mb=DISK_WARM_MB) as flushed,
    ):
        for row in rows:
            cells = []
            for without, with_fsync in zip(plain, flushed, strict=True):
                cells += [cell(row, without, PLAIN), cell(row, with_fsync, FLUSHED)]
            in_flight = row.connections * row.in_flight * row.records * (row.value_size + BATCH_OVERHEAD)
            cells += [
                disk(row, "the disk itself", in_flight // row.partitions),
                disk(row, "the disk, 8 MB a write", BIG_WRITE),
            ]
            bench.rounds("disk", cells)
