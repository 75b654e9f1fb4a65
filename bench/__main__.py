"""`make bench`: run kafkad, JVM Kafka and the bare loop with the same load, in turns, and print a table for
each group of scenarios, the results as JSON and as a plot, and, with --check, whether each bound is met.

    python -m bench                                        everything
    python -m bench --quick --check                        the scenarios that have bounds
    python -m bench --groups produce,fetch --only "64 KB"  some scenarios
    python -m bench --merge --groups recovery              run again, and merge into the existing results
    python -m bench --report --check                       show the last run
    python -m bench --kafka 4.3.1,3.9.1,4.3.1:4G           two versions, and one with a heap of 4 GB

bench/running.py explains the method.
"""

import argparse
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench import (
    cleaner,
    cluster,
    durable,
    fetch,
    killed,
    mixed,
    old_formats,
    produce,
    recovery,
    report,
    scale,
    spark,
    spark_report,
    tls,
    transactions,
)
from bench.bounds import OURS, Results, check
from bench.memory import filesystem, huge_tmpfs, tmpfs, unmount
from bench.running import Bench, Options

# in this order: those that share a fleet of brokers stand together
GROUPS: dict[str, Callable[[Bench], None]] = {
    "start": recovery.start,
    **{name: partial(produce.run_group, group=name) for name in produce.GROUPS},
    "half load": produce.half_load,
    "fetch": fetch.run,
    **{name: partial(mixed.run_group, group=name) for name in mixed.GROUPS},
    "clients": mixed.clients,
    "transactions": transactions.run_group,
    "connections": scale.connections,
    "tls": tls.run_group,
    "login floods": tls.run_floods,
    "tls idle": tls.run_idle,
    "acls": tls.run_acls,
    "memory": recovery.memory,
    "workers": scale.workers,
    "retention": mixed.retention,
    "disk": durable.run,
    "cold": fetch.cold,
    "many partitions": scale.partitions,
    "transactional ids": transactions.run_ids,
    "cleaner": cleaner.run_group,
    "old formats": old_formats.run_group,
    "cluster": cluster.run_group,
    "restart": recovery.crash,
    "worker killed": killed.run,
    "recovery": recovery.recover,
    "spark": spark.run_group,
}
QUICK = (
    "start",
    "produce",
    "fetch",
    "transactions",
    "connections",
    "tls",
    "login floods",
    "tls idle",
    "acls",
    "memory",
    "disk",
    "many partitions",
    "transactional ids",
    "cleaner",
    "old formats",
    "cluster",
    "restart",
    "worker killed",
    "recovery",
)
QUICK_PARTITIONS, QUICK_CONNECTIONS = (5000,), (10000,)
CACHE = Path(".cache/bench")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part.replace("_", "")) for part in text.split(",") if part)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--groups", default="", help=f"some of: {', '.join(GROUPS)}")
    add("--only", default="", help="scenarios whose name contains this")
    add("--quick", action="store_true", help="only the scenarios that have bounds")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="of each run")
    add("--warm", type=int, default=2, help="passes over the scenarios that warm a JVM")
    add("--workers", type=numbers, default=(os.cpu_count() or 1,),
        help="of kafkad; several, as 2,1, are a column each, and the first is what is checked")  # fmt: skip
    add("--kafka", default="4.3.1", help="JVM Kafkas: VERSION or VERSION:HEAP, as 4.3.1,3.9.1:4G; or none")
    add("--no-bare", dest="bare", action="store_false", help="without the bare loop")
    add("--no-clients", dest="clients", action="store_false", help="without the Java client and librdkafka")
    add("--directory", type=Path, help="where the logs go; default: a tmpfs")
    add("--disk-directory", type=Path, default=CACHE / "disk", help="on a real disk; default: %(default)s")
    add("--mb-max", type=float, default=2500, help="MB of one run, for all must fit into memory")
    add("--touch-mb", type=int, default=2500, help="MB of memory touched before a run")
    add("--fetch-mb", type=int, default=512, help="MB that fetch scenarios read again and again")
    add("--cold-mb", type=int, default=2000, help="MB that the catch-up reads of cold data read")
    add("--restart-gb", type=float, default=4, help="in a broker that is killed under load")
    add("--recovery-gb", type=float, default=6, help="of the recovery after kill -9")
    add("--partition-counts", type=numbers, default=(1, 1000, 5000, 10000))
    add("--connection-counts", type=numbers, default=(1000, 10000))
    add("--tls-connections", type=int, default=5000, help="idle ones")
    add("--acls", type=int, default=1000, help="that an authorizer has")
    add("--client-records", type=int, default=600_000, help="that each real client moves")
    add("--aborts", type=int, default=100_000, help="transactions that readers find aborted")
    add("--transactional-ids", type=int, default=100_000, help="that a broker finds at its start")
    add("--clean-mb", type=int, default=512, help="MB that the cleaner reads")
    add("--old-fetch-mb", type=int, default=64, help="MB of a partition that clients of format 1 read")
    add("--json", type=Path, default=CACHE / "results.json")
    add("--plot", type=Path, default=CACHE / "ratios", help="writes PLOT.png and PLOT.svg")
    add("--merge", action="store_true", help="keep what the JSON file has of other scenarios")
    add("--report", action="store_true", help="run nothing: tables, plot and check of the JSON file")
    add("--check", action="store_true", help="say which bounds are met; exit 1 when one is not")
    return parser


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    asked = [name.strip() for name in options.groups.split(",") if name.strip()]
    unknown = [name for name in asked if name not in GROUPS]
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are: {', '.join(GROUPS)}")
    if asked:
        return [name for name in GROUPS if name in asked]
    return list(QUICK) if options.quick else list(GROUPS)


def for_bench(options: argparse.Namespace) -> Options:
    values = {f.name: getattr(options, f.name) for f in fields(Options) if hasattr(options, f.name)}
    values["kafka"] = tuple(k for k in options.kafka.split(",") if k and k != "none")
    if options.quick:
        values["partition_counts"], values["connection_counts"] = QUICK_PARTITIONS, QUICK_CONNECTIONS
    return Options(**values)


def machine(where: Path, disk: Path) -> dict[str, Any]:
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory GB": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "logs on": filesystem(where),
        "disk": filesystem(disk),
        "date": time.strftime("%Y-%m-%d"),
    }


def described(told: dict[str, Any]) -> str:
    return (
        f"{told['cpu']}, {told['cores']} cores shared with the load, {told['memory GB']} GB; "
        f"logs on {told['logs on']}, disk {told['disk']}; {told['date']}"
    )


def merged(old: Results, new: Results) -> Results:
    return {g: {**old.get(g, {}), **new.get(g, {})} for g in dict.fromkeys((*old, *new))}


def table(group: str, scenarios: dict[str, dict[str, dict[str, Any]]]) -> Table:
    if group == "spark":
        return spark_report.table(scenarios)
    return report.table(group, scenarios)


def finish(console: Console, options: argparse.Namespace, results: Results, told: dict[str, Any]) -> int:
    """The plot and the verdicts."""
    if any(OURS in row for group in results.values() for row in group.values()):
        try:
            from bench.plot import plot

            for path in plot(results, options.plot, described(told)):
                console.print(f"written to {path}")
        except ModuleNotFoundError:
            console.print("no plot: matplotlib is not installed")
    if "spark" in results:
        for path in spark_report.plot(results["spark"], options.plot.with_name("spark")):
            console.print(f"written to {path}")
    if not options.check:
        return 0
    verdicts = check(results) + (spark_report.check(results["spark"]) if "spark" in results else [])
    console.print(report.verdict_table(verdicts))
    console.print(report.totals(verdicts))
    return int(any(v.met is False for v in verdicts))


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.report:
        results = report.read(options.json)
        for group, scenarios in results.items():
            console.print(table(group, scenarios))
        return finish(console, options, results, report.machine(options.json))

    groups = chosen(parser, options)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # no broker stays behind, and no mount
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if options.directory:
        options.directory.mkdir(parents=True, exist_ok=True)
    mounted = None if options.directory else huge_tmpfs()
    plain = (
        Path(tempfile.mkdtemp(prefix="kafkad-bench-", dir=options.directory))
        if options.directory
        else tmpfs()
    )
    where = mounted or plain
    disk = options.disk_directory / plain.name
    disk.mkdir(parents=True, exist_ok=True)
    if filesystem(disk) in ("tmpfs", "ramfs"):
        console.print(f"{disk} is not on a disk: --disk-directory says where one is")
    told = machine(where, disk)
    if mounted:
        told["logs on"] += ", huge pages"
    old = report.read(options.json) if options.merge and options.json.exists() else {}
    bench = Bench(for_bench(options), where, plain, disk, console)
    shown: dict[str, dict[str, Any]] = {}
    try:
        with console.status("…") if console.is_terminal else nullcontext() as bench.status:
            for group in groups:
                GROUPS[group](bench)
                # a table as soon as its group is complete: what it measured and was not told yet
                for name, scenarios in bench.results.items():
                    fresh = {s: row for s, row in scenarios.items() if s not in shown.get(name, {})}
                    if fresh:
                        console.print(table(name, fresh))
                        shown.setdefault(name, {}).update(fresh)
                report.write(options.json, told, vars(options), merged(old, bench.results))
    finally:
        bench.stop_main_fleet()
        if mounted:
            unmount(mounted)
        for directory in (plain, disk):
            shutil.rmtree(directory, ignore_errors=True)
    for failure in bench.failures:
        console.print(f"[red]failed: {failure}[/red]", highlight=False)
    console.print(f"written to {options.json}")
    return finish(console, options, merged(old, bench.results), told) or int(bool(bench.failures))


if __name__ == "__main__":
    sys.exit(main())
