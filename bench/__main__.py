"""`make bench`: drives kafkad, JVM Kafka and the bare loop with the same load, in turns, and prints one
table.

Method. All brokers run at once on the same cores as the load; only one is driven at a time. The JVM is
warmed with every scenario first. Before each run, as much memory is touched as the run will write. A
scenario's figures are medians over the rounds, with their spread; a round drives every broker once, so drift
of the machine hits all. The log is on a tmpfs unless --directory says otherwise.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.brokers import Bare, Jvm, Kafkad, Process
from bench.clients import LOADS
from bench.native import load
from bench.scenarios import FETCH, PRODUCE, Fetch, Produce

MB_MAX = 2500  # of one run: three logs and the page cache must fit into memory
FETCH_MB = 512  # what is written before a fetch scenario
CLIENT_RECORDS = 600_000
WARMING = 6  # of the produce scenarios, whatever is measured: a JVM that has seen little is slow


def touch_memory(directory: Path, megabytes: int) -> None:
    """Writes and deletes a file: memory that the machine's host took back is slow at its first touch."""
    path = directory / "touched"
    block = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(block)
    path.unlink()


def run_produce(broker: Process, row: Produce, topic: str, seconds: float) -> dict[str, float]:
    broker.create_topic(topic, row.partitions)
    arguments = (row.partitions, row.connections, row.in_flight, row.records, row.value_size, row.acks)
    try:
        before = broker.cpu_seconds()
        told = load(
            "produce",
            "127.0.0.1",
            broker.port,
            topic,
            *arguments,
            seconds,
            row.rate_mb_per_s,
            int(row.keyed),
            MB_MAX,
        )
        told["broker_cpu"] = broker.cpu_seconds() - before
    finally:
        broker.delete_topic(topic)
    return told


def run_fetch(broker: Process, row: Fetch, topic: str, seconds: float) -> dict[str, float]:
    before = broker.cpu_seconds()
    told = load(
        "fetch", "127.0.0.1", broker.port, topic, row.partitions, row.connections, row.max_bytes, seconds
    )
    told["broker_cpu"] = broker.cpu_seconds() - before
    return told


def run_client(broker: Process, name: str, topic: str) -> dict[str, float]:
    before = broker.cpu_seconds()
    told = LOADS[name](broker, topic, CLIENT_RECORDS, 1000)
    told["broker_cpu"] = broker.cpu_seconds() - before
    return told


def figures(told: dict[str, float]) -> dict[str, float]:
    gigabytes = told["bytes"] / 1e9
    figure = {"MB/s": told["bytes"] / 1e6 / told["seconds"], "CPU s/GB": told["broker_cpu"] / gigabytes}
    if "p50_us" in told:
        figure["p50 ms"] = told["p50_us"] / 1000
        figure["p99 ms"] = told["p99_us"] / 1000
        figure["p99.9 ms"] = told["p999_us"] / 1000
    if "errors" in told:  # the native generator: its requests are requests
        figure["requests/s"] = told["requests"] / told["seconds"]
        figure["CPU us/request"] = told["broker_cpu"] / told["requests"] * 1e6
    return figure


def medians(rounds: list[dict[str, float]]) -> dict[str, list[float]]:
    """metric -> [median, lowest, highest]"""
    return {
        name: [
            statistics.median(r[name] for r in rounds),
            min(r[name] for r in rounds),
            max(r[name] for r in rounds),
        ]
        for name in rounds[0]
    }


def startup(kind: type[Process], directory: Path, rounds: int, **more: Any) -> dict[str, list[float]]:
    """Start to first answered Metadata on an existing data directory, and the idle memory two seconds
    later.
    """
    seen = []
    for number in range(rounds + 1):
        broker = kind(directory, **more)
        seconds = broker.start()
        time.sleep(2)
        figure = {"start s": seconds, "idle MB": broker.pss_bytes() / 1e6}
        broker.stop()
        if number:  # the first one formats and fills caches
            seen.append(figure)
    shutil.rmtree(directory, ignore_errors=True)
    return medians(seen)


def tmpfs() -> tuple[Path, bool]:
    """A tmpfs of huge pages where one may be mounted, else /dev/shm, else the temporary directory."""
    where = Path(tempfile.mkdtemp(prefix="kafkad-bench-"))
    mount = ["mount", "-t", "tmpfs", "-o", "huge=always,size=20g", "tmpfs", str(where)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        return where, True
    where.rmdir()
    shm = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="kafkad-bench-", dir=shm if shm.is_dir() else None)), False


def compare(results: dict[str, Any], brokers: list[str]) -> Table:
    table = Table(title="medians; in brackets the ratio to JVM Kafka", title_justify="left", show_lines=False)
    table.add_column("scenario")
    table.add_column("figure")
    for broker in brokers:
        table.add_column(broker, justify="right")
    against = next((b for b in brokers if b.startswith("Kafka ")), None)
    for scenario, by_broker in results.items():
        first = True
        metrics = list(next(iter(by_broker.values())))
        for metric in metrics:
            if metric == "CPU us/request" and "fetch" in scenario:
                continue
            cells = []
            for broker in brokers:
                figure = by_broker.get(broker, {}).get(metric)
                if figure is None:
                    cells.append("")
                    continue
                middle, low, high = figure
                text = f"{middle:,.3g}" if middle < 1000 else f"{middle:,.0f}"
                if against and broker != against and against in by_broker:
                    text += f"  ({middle / by_broker[against][metric][0]:.2f})"
                spread = (high - low) / middle * 100 if middle else 0
                cells.append(f"{text} ±{spread / 2:.0f}%")
            table.add_row(scenario if first else "", metric, *cells)
            first = False
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--warm", type=int, default=2, help="passes of all scenarios that warm the JVM")
    parser.add_argument("--kafka", default="4.3.1", help="JVM Kafka's version, or 'none'")
    parser.add_argument("--directory", type=Path, help="where the logs go; default: a tmpfs")
    parser.add_argument("--all", action="store_true", help="also the scenarios that take longer")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--no-startup", action="store_true")
    parser.add_argument("--no-bare", action="store_true")
    parser.add_argument("--no-clients", action="store_true", help="without the Java client and librdkafka")
    parser.add_argument("--json", type=Path, default=Path(".cache/bench/results.json"))
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)

    where, mounted = (options.directory, False) if options.directory else tmpfs()
    where.mkdir(parents=True, exist_ok=True)
    produce = [r for r in PRODUCE if (options.all or r.quick) and options.only in r.name]
    fetch = [r for r in FETCH if (options.all or r.quick) and options.only in r.name]
    results: dict[str, Any] = {}
    brokers: list[Process] = []
    try:
        if not options.no_startup:
            console.print("start-up and idle memory ...")
            row = results["start to first Metadata; idle"] = {}
            row["kafkad"] = startup(Kafkad, where / "start-kafkad", options.rounds)
            if options.kafka != "none":
                row[f"Kafka {options.kafka}"] = startup(
                    Jvm, where / "start-jvm", max(1, options.rounds // 2), version=options.kafka
                )
        brokers.append(Kafkad(where / "kafkad"))
        if options.kafka != "none":
            brokers.append(Jvm(where / "jvm", options.kafka))
        if not options.no_bare:
            brokers.append(Bare(where / "bare"))
        for broker in brokers:
            broker.start()
        measure(console, brokers, produce, fetch, options, where, results)
        loaded = results["memory after the load"] = {}
        for broker in brokers:
            size = broker.pss_bytes() / 1e6
            loaded[broker.name] = {"PSS MB": [size, size, size]}
    finally:
        for broker in brokers:
            broker.stop(signal.SIGKILL)
        if mounted:
            subprocess.run(["umount", "-l", str(where)], check=False)
        shutil.rmtree(where, ignore_errors=True)

    console.print(compare(results, [b.name for b in brokers]))
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"machine": machine, "options": vars(options), "results": results}, default=str, indent=1)
    )
    console.print(f"written to {options.json}")


def measure(
    console: Console,
    brokers: list[Process],
    produce: list[Produce],
    fetch: list[Fetch],
    options: argparse.Namespace,
    where: Path,
    results: dict[str, Any],
) -> None:
    jvms = [b for b in brokers if isinstance(b, Jvm)]
    steps = (len(produce) + len(fetch)) * options.rounds * len(brokers) + options.warm * len(jvms)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("warming", total=steps)
        number = 0
        for broker in brokers:
            if not isinstance(broker, Bare):
                fill(broker)
        for _ in range(options.warm):
            for broker in jvms:
                for row in PRODUCE[:WARMING]:
                    number += 1
                    run_produce(broker, row, f"warm-{number}", options.seconds)
                for row in FETCH:
                    run_fetch(broker, row, "fetched", options.seconds)
                progress.advance(bar)
        time.sleep(1)
        for row in produce:
            seen: dict[str, list[dict[str, float]]] = {b.name: [] for b in brokers}
            for _ in range(options.rounds):
                for broker in brokers:
                    progress.update(bar, description=f"{row.name}: {broker.name}")
                    number += 1
                    touch_memory(where, MB_MAX)
                    seen[broker.name].append(
                        figures(run_produce(broker, row, f"run-{number}", options.seconds))
                    )
                    time.sleep(1)  # deleted segments give their memory back
                    progress.advance(bar)
            results[row.name] = {name: medians(rounds) for name, rounds in seen.items()}
        if fetch:
            for broker in brokers:
                if isinstance(broker, Bare):
                    fill(broker)
        for row in fetch:
            seen = {b.name: [] for b in brokers}
            for _ in range(options.rounds):
                for broker in brokers:
                    progress.update(bar, description=f"{row.name}: {broker.name}")
                    seen[broker.name].append(figures(run_fetch(broker, row, "fetched", options.seconds)))
                    progress.advance(bar)
            results[row.name] = {name: medians(rounds) for name, rounds in seen.items()}
        if options.no_clients:
            return
        real = [b for b in brokers if not isinstance(b, Bare)]
        seen_by: dict[str, dict[str, list[dict[str, float]]]] = {n: {b.name: [] for b in real} for n in LOADS}
        for number in range(max(1, options.rounds // 2)):
            for broker in real:
                broker.create_topic(f"clients-{number}", 4)
                touch_memory(where, MB_MAX)
                for name, rounds in seen_by.items():
                    progress.update(bar, description=f"{name}: {broker.name}")
                    rounds[broker.name].append(figures(run_client(broker, name, f"clients-{number}")))
                broker.delete_topic(f"clients-{number}")
        for name, seen in seen_by.items():
            results[name] = {broker: medians(rounds) for broker, rounds in seen.items()}


def fill(broker: Process) -> None:
    """The topic that fetch scenarios read: 64 KB batches of 1 KB records."""
    broker.create_topic("fetched", 4)
    load("produce", "127.0.0.1", broker.port, "fetched", 4, 4, 5, 64, 1000, 1, 60, 0, 0, FETCH_MB)


if __name__ == "__main__":
    main()
