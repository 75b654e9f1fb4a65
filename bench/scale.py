"""Scaling: thousands of partitions, thousands of connections, one worker and two."""

import shutil
import time

from bench import scenarios
from bench.bounds import CONNECTIONS_ALONE
from bench.brokers import Bare, Kafkad, Process
from bench.drive import run_produce, timed
from bench.native import idle_connections
from bench.produce import measure
from bench.running import SETTLE_SECONDS, Bench, Cell
from bench.scenarios import Produce

BUSY = Produce("busy", 16, 50, 2, 2, 1000)
OVER_ALL = Produce("over all", 1, 50, 2, 2, 1000)  # its partitions are those of the scenario
IDLE_SECONDS = 1.0


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def partitions(bench: Bench) -> None:
    """A topic of N partitions: its creation, produce over all of them, memory, a clean stop and start."""
    for count in bench.options.partition_counts:
        scenario = plural(count, "partition")
        if bench.wanted(scenario):
            bench.stop_main_fleet()
            of_count(bench, count, scenario)


def of_count(bench: Bench, count: int, scenario: str) -> None:
    row = OVER_ALL._replace(partitions=count)
    directory = bench.plain / "partitions"
    with bench.fleet(directory) as brokers:
        created: dict[str, float] = {}
        for broker in brokers:
            bench.say(f"{scenario}: {broker.name} creates them")
            begun = time.perf_counter()
            broker.create_topic("many", count)
            created[broker.name] = time.perf_counter() - begun

        def cell(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                stop = broker.stop()
                start = broker.start({"many": count})
                time.sleep(IDLE_SECONDS)
                return {"restart s": start, "stop s": stop, "PSS MB": broker.pss_bytes() / 1e6}

            return Cell(scenario, broker, run)

        def loaded(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                options = {
                    "topic": "many", "partitions": count, "producers": row.connections,
                    "in_flight": row.in_flight, "records": row.records, "value_size": row.value_size,
                    "seconds": bench.options.seconds, "mb_max": bench.options.mb_max / bench.options.rounds,
                }  # fmt: skip
                with bench.touched():
                    figures = timed(broker, **options)
                return {**figures, "PSS MB": broker.pss_bytes() / 1e6}

            return Cell(f"produce 2 KB batches over {scenario}", broker, run)

        bench.rounds("many partitions", [loaded(broker) for broker in brokers])
        bench.rounds("many partitions", [cell(broker) for broker in brokers])
        for broker in brokers:
            row_of = bench.results.get("many partitions", {}).get(scenario, {}).get(broker.name)
            if row_of is not None:
                seconds = created[broker.name]
                row_of["create s"] = {"median": seconds, "low": seconds, "high": seconds, "rounds": [seconds]}
    shutil.rmtree(directory, ignore_errors=True)


def connections(bench: Bench) -> None:
    """50 busy ones alone, then among idle ones that said hello; and the memory that an idle one takes."""
    counts = bench.options.connection_counts
    if not any(bench.wanted(name) for name in (CONNECTIONS_ALONE, *map(among, counts))):
        return
    brokers = [b for b in bench.main_fleet() if not isinstance(b, Bare)]
    alone: dict[str, int] = {}  # broker: its bytes before there were idle connections

    def cell(broker: Process, count: int) -> Cell:
        def busy() -> dict[str, float]:
            figures = run_produce(
                broker,
                BUSY,
                bench.topic(),
                seconds=bench.options.seconds,
                mb_max=bench.options.mb_max,
                touched=bench.touched,
            )
            time.sleep(SETTLE_SECONDS)
            return figures

        def run() -> dict[str, float]:
            # what connections took and gave back stays with the process: against the first round
            before = alone.setdefault(broker.name, broker.pss_bytes())
            with idle_connections(broker.port, count - BUSY.connections):
                time.sleep(IDLE_SECONDS)
                memory = broker.pss_bytes() - before
                figures = busy()
            time.sleep(SETTLE_SECONDS)  # all those goodbyes
            return {**figures, "KB/idle connection": memory / 1024 / (count - BUSY.connections)}

        return Cell(among(count), broker, run) if count else Cell(CONNECTIONS_ALONE, broker, busy)

    # in one block: a round has both, with and without the others
    bench.rounds("connections", [cell(broker, count) for count in (0, *counts) for broker in brokers])


def among(count: int) -> str:
    return f"{BUSY.connections} busy of {count:,} connections"


def workers(bench: Bench) -> None:
    """kafkad with one worker beside kafkad with two: the same rows, ratios to one worker."""
    rows = [row for row in scenarios.SCALING if bench.wanted(f"{row.name}: workers")]
    if not rows:
        return
    bench.stop_main_fleet()
    directory = bench.where / "workers"
    directory.mkdir(parents=True, exist_ok=True)
    brokers = [
        Kafkad(directory / f"kafkad-{count}", count, name=plural(count, "worker"))
        for count in sorted({1, 2, *bench.options.workers})
    ]
    try:
        for broker in brokers:
            broker.start()
        measure(bench, "workers", [row._replace(name=f"{row.name}: workers") for row in rows], brokers)
    finally:
        for broker in brokers:
            broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
