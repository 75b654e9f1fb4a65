"""How each cost grows: `python -m bench.growth [--kinds topics,groups] [--no-kafka]`, for docs/benchmarks.md.

Each kind of `bench.growth_kinds` at N, 4 N and 16 N, with kafkad and with JVM Kafka, each on a broker of its
own that first did the same at N / 4. A row has the time that an action took in the client, and the worst wait
of other clients meanwhile, which ping every worker from a process of their own. Figures are medians.

Beware: of a linear cost each column is four times the one before, and less where a fixed part is large."""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.brokers import Jvm, Kafkad, Process
from bench.growth_kinds import KINDS, Kind, Target
from tests.others import Others

FACTORS = (1, 4, 16)


class Figure(NamedTuple):
    seconds: float
    waited: float  # by the others, at worst
    held_up: float  # of that, what they did not wait for a core
    cpu: float  # seconds of the broker's processes; 0 if they ended meanwhile


Rows = dict[str, list[Figure]]  # a figure for each size


def workers(broker: Process) -> list[int]:
    """The processes whose main thread is an event loop."""
    return [each.pid for each in broker.tree()] if isinstance(broker, Kafkad) else []


def measure(broker: Process, kind: Kind, sizes: Sequence[int]) -> Rows:
    """All rows of a kind, from a broker that runs."""
    rows: Rows = defaultdict(list)
    target = Target(broker)
    others: Others | None = None
    try:
        for size in sizes:
            for row, act, alone in kind.steps(target, size):
                if alone and others is not None:
                    others.close()
                    others = None
                elif not alone and others is None:
                    others = Others(f"127.0.0.1:{broker.port}", workers(broker))
                waited = held_up = 0.0
                if others is not None:
                    others.worst()
                before = {} if alone else broker.cpu_by_process()
                begun = time.monotonic()
                act()
                seconds = time.monotonic() - begun
                if others is not None:
                    waited, held_up = others.worst()
                after = broker.cpu_by_process() if broker.alive() else {}
                cpu = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
                rows[row].append(Figure(seconds, waited, held_up, cpu))
    finally:
        if others is not None:
            others.close()
    return dict(rows)


def one_round(make: Callable[[Path, dict[str, str]], Process], kind: Kind, sizes: Sequence[int]) -> Rows:
    with tempfile.TemporaryDirectory(prefix="kafkad-growth-") as directory:
        broker = make(Path(directory) / "data", dict(kind.config))
        broker.start()
        try:
            measure(broker, kind, [max(1, sizes[0] // 4)])
            return measure(broker, kind, sizes)
        finally:
            broker.kill()


def medians(rounds: list[Rows]) -> Rows:
    def median(figures: tuple[Figure, ...]) -> Figure:
        return Figure(*map(statistics.median, zip(*figures, strict=True)))

    return {
        row: [median(figures) for figures in zip(*(each[row] for each in rounds), strict=True)]
        for row in rounds[0]
    }


def table(name: str, sizes: Sequence[int], brokers: dict[str, Rows]) -> str:
    """Milliseconds, the others' worst wait in brackets; kafkad's are bold."""
    lines = [
        f"| {name} | | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|---|" + "---:|" * len(sizes),
    ]
    for row in next(iter(brokers.values())):
        for broker, rows in brokers.items():
            bold = "**" if broker == "kafkad" else ""
            cells = [f"{bold}{cell(figure)}{bold}" for figure in rows[row]]
            lines.append(f"| {row if bold else ''} | {broker} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(figure: Figure) -> str:
    taken = milliseconds(figure.seconds)
    return f"{taken} ({milliseconds(figure.waited)})" if figure.waited else taken


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.{1 if seconds < 0.01 else 0}f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--scale", type=float, default=1.0, help="times each kind's N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-kafka", action="store_true", help="kafkad alone")
    arguments = parser.parse_args()
    makers: dict[str, Callable[[Path, dict[str, str]], Process]] = {
        "kafkad": lambda path, config: Kafkad(path, arguments.workers, config)
    }
    if not arguments.no_kafka:
        makers["Kafka 4.3.1"] = lambda path, config: Jvm(path, overrides=config)
    for name in arguments.kinds.split(","):
        kind = KINDS[name]
        sizes = [max(1, round(kind.first * arguments.scale)) * factor for factor in FACTORS]
        rounds: dict[str, list[Rows]] = {broker: [] for broker in makers}
        for number in range(arguments.rounds):
            for broker, make in makers.items():
                print(f"{name}: round {number + 1} of {broker}", file=sys.stderr)
                rounds[broker].append(one_round(make, kind, sizes))
        print(
            table(name, sizes, {broker: medians(found) for broker, found in rounds.items()}) + "\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
