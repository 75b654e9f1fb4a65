"""Starts and memory: a clean start, idle memory, memory under load, a restart after kill -9 under load, and a
full recovery after an unclean end.

The restart after kill -9, and the recovery, are timed until every partition answers. The recovery covers
active segments of up to 1 GB, the largest that are not rolled. Checkpoints and the clean-shutdown file are
removed before the start, as after a kill before the first checkpoint. The JVM waits until its old session
expires; `recovery s` of kafkad has no such part.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.bounds import RECOVERY
from bench.brokers import Process
from bench.drive import fill, run_produce
from bench.memory import filesystem
from bench.native import load
from bench.running import Bench, Cell
from bench.scenarios import PRODUCE

START = "start to first Metadata"
IDLE = "idle memory"
LOADED = "memory under load"
RESTART = "restart after kill -9 under load"
IDLE_SECONDS = 2.0  # after the start
SEGMENT_GB = 1.0  # a little below log.segment.bytes: nothing is rolled
FORGOTTEN = ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown")


def start(bench: Bench) -> None:
    """Start and idle memory on an existing data directory; the first start formats and fills caches."""
    if not (bench.wanted(START) or bench.wanted(IDLE)):
        return
    directory = bench.plain / "start"
    directory.mkdir(parents=True, exist_ok=True)
    brokers = bench.lineup(directory)
    idle: dict[str, list[float]] = {}

    def cell(broker: Process) -> Cell:
        def run() -> dict[str, float]:
            seconds = broker.start()
            time.sleep(IDLE_SECONDS)
            idle.setdefault(broker.name, []).append(broker.pss_bytes() / 1e6)
            stop = broker.stop()
            return {"seconds": seconds, "stop s": stop}

        return Cell(START, broker, run)

    def told(broker: Process) -> Cell:
        left = iter(idle.get(broker.name, []))
        return Cell(IDLE, broker, lambda: {"PSS MB": next(left)})

    try:
        for broker in brokers:
            bench.say(f"first start of {broker.name}")
            broker.start()
            broker.stop()
        bench.rounds("start", [cell(broker) for broker in brokers])
        bench.rounds("start", [told(broker) for broker in brokers if broker.name in idle])
    finally:
        for broker in brokers:
            broker.kill()


def memory(bench: Bench) -> None:
    """The most that is seen while 64 KB batches come in, on brokers that have seen every shape."""
    if not bench.wanted(LOADED):
        return

    def cell(broker: Process) -> Cell:
        def run() -> dict[str, float]:
            seen: list[float] = []
            over = threading.Event()

            def look() -> None:
                while not over.wait(bench.options.seconds / 4):
                    seen.append(broker.pss_bytes() / 1e6)

            looking = threading.Thread(target=look)
            looking.start()
            try:
                run_produce(
                    broker,
                    PRODUCE[0],
                    bench.topic(),
                    seconds=bench.options.seconds,
                    mb_max=bench.options.mb_max,
                    touched=bench.touched,
                )
            finally:
                over.set()
                looking.join()
            return {"PSS MB": max(seen, default=broker.pss_bytes() / 1e6)}

        return Cell(LOADED, broker, run)

    bench.stop_main_fleet()
    with bench.fleet(bench.plain / "memory", warm=False) as brokers:
        bench.warm(brokers, all=True)
        bench.rounds("start", [cell(broker) for broker in brokers])


def crash(bench: Bench) -> None:
    """kill -9 in the middle of a load, then the start."""
    if not bench.wanted(RESTART):
        return
    bench.stop_main_fleet()
    partitions = max(1, round(bench.options.restart_gb / SEGMENT_GB))
    with bench.fleet(bench.where / "crash", warm=False) as fleet:
        brokers = fitting(bench, fleet, bench.options.restart_gb)
        for broker in brokers:
            bench.say(f"writing {bench.options.restart_gb} GB to {broker.name}")
            # room for what the rounds add
            fill(broker, "crash", partitions, bench.options.restart_gb * 900)

        def cell(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                kill_under_load(broker, "crash", partitions)
                try:
                    return {"seconds": broker.start({"crash": partitions})}
                except RuntimeError:
                    broker.kill()
                    raise

            return Cell(RESTART, broker, run)

        bench.rounds("recovery", [cell(broker) for broker in brokers])


def kill_under_load(broker: Process, topic: str, partitions: int) -> None:
    def produce() -> None:
        with contextlib.suppress(RuntimeError):  # its connections break: that is what this is about
            load(
                port=broker.port, topic=topic, partitions=partitions, producers=4, in_flight=5,
                records=16, value_size=1000, rate=20, seconds=30,
            )  # fmt: skip

    loading = threading.Thread(target=produce)
    loading.start()
    time.sleep(0.5)
    broker.kill()
    loading.join()


def recover(bench: Bench) -> None:
    if not bench.wanted(RECOVERY):
        return
    bench.stop_main_fleet()
    gigabytes = bench.options.recovery_gb
    partitions = max(1, round(gigabytes / SEGMENT_GB))
    with bench.fleet(bench.where / "recovery", warm=False) as fleet:
        brokers = fitting(bench, fleet, gigabytes)
        for broker in brokers:
            bench.say(f"writing {gigabytes} GB to {broker.name}")
            fill(broker, "recovered", partitions, gigabytes * 1000)
            broker.kill()

        def cell(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                size = forget(broker.directory, "recovered")
                seconds = broker.start({"recovered": partitions})
                broker.kill()
                return {"recovery s": seconds, "GB/s": size / 1e9 / seconds}

            return Cell(RECOVERY, broker, run)

        bench.rounds("recovery", [cell(broker) for broker in brokers])


def fitting(bench: Bench, brokers: Sequence[Process], gigabytes: float) -> Sequence[Process]:
    """As many of them as have room for that much each; told, if some have not."""
    free = shutil.disk_usage(bench.where).free
    if filesystem(bench.where) == "tmpfs":
        free = min(free, psutil.virtual_memory().available)
    count = int(free * 0.9 / (gigabytes * 1e9))
    for left_out in brokers[count:]:
        bench.console.print(f"no room for {gigabytes:g} GB more: without {left_out.name}")
    return brokers[:count]


def forget(directory: Path, topic: str) -> int:
    """Removes what tells a broker that bytes are safe; how many it has to look at."""
    for name in FORGOTTEN:
        (directory / name).unlink(missing_ok=True)
    return sum(path.stat().st_size for path in directory.glob(f"{topic}-*/*.log"))
