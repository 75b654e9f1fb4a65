"""The report of bench/spark.py: the table, Markdown for the docs, a plot, and whether the bounds are met.
Pure functions.

A row of the results is a reader on a broker, such as "kafkad on Kafka 4.3.1". Ratios compare readers on the
same broker.
"""

import os
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.bounds import Bound, Verdict
from bench.figures import spread_percent

CONNECTOR, TUNED = "spark-sql-kafka", "spark-sql-kafka, tuned"
OURS, SEGMENTS, INGEST = "kafkad", "segment files", "kafkad ingest"
READERS = (CONNECTOR, TUNED, OURS, SEGMENTS, INGEST)

Results = dict[str, dict[str, dict[str, Any]]]  # scenario -> "reader on broker" -> figure -> summary


def reference(name: str) -> str:
    """What a reader is compared with, on the same broker: segment files with the broker's path, all others
    with the connector as it comes."""
    reader, _, broker = name.partition(" on ")
    return f"{OURS if reader == SEGMENTS else CONNECTOR} on {broker}"


# What issue 5 asks for, of each broker: reader, scenario, figure, at least (else at most), the ratio to what
# `reference` names.
BOUNDS = (
    (OURS, "raw to noop", "rows/s", True, 1.5),
    (OURS, "json to noop", "rows/s", True, 3.5),
    (OURS, "json to noop", "CPU s/GB", False, 1 / 3),
    (OURS, "json to parquet", "rows/s", True, 2.3),
    (OURS, "json to parquet", "CPU s/GB", False, 1 / 2),
    (INGEST, "json to parquet", "rows/s", True, 3.5),
    (SEGMENTS, "raw to noop", "rows/s", True, 1.2),
    (SEGMENTS, "json to noop", "rows/s", True, 1.2),
)


def check(results: Results) -> list[Verdict]:
    """Each bound on each broker that was measured."""
    names = dict.fromkeys(name for row in results.values() for name in row)
    brokers = dict.fromkeys(name.split(" on ", 1)[1] for name in names)
    verdicts = []
    for broker in brokers:
        for reader, scenario, figure, at_least, value in BOUNDS:
            row, name = results.get(scenario, {}), f"{reader} on {broker}"
            ours, theirs = (row.get(side, {}).get(figure) for side in (name, reference(name)))
            bound = Bound(f"{scenario}: {name}", figure, at_least, value, reference(name).split(" on ")[0])
            rounds = min((len(side["rounds"]) for side in (ours, theirs) if side), default=0)
            verdicts.append(
                Verdict(bound, ours["median"] if ours else None, theirs["median"] if theirs else None, rounds)
            )
    return verdicts


def table(results: Results) -> Table:
    title = f"medians (ratio to {CONNECTOR} on the same broker; of {SEGMENTS} to {OURS})"
    drawn = Table(title=title, title_justify="left")
    for column in ("scenario", "figure", "reader and broker", "median", "ratio", "spread"):
        drawn.add_column(column, justify="right" if column in ("median", "ratio", "spread") else "left")
    for scenario, row in results.items():
        for figure in dict.fromkeys(name for found in row.values() for name in found):
            for n, (name, found) in enumerate(row.items()):
                against = row.get(reference(name), {}).get(figure)
                ratio = found[figure]["median"] / against["median"] if against else None
                drawn.add_row(
                    "" if n else scenario, "" if n else figure, name, f"{found[figure]['median']:,.4g}",
                    f"{ratio:.2f}" if ratio and name != reference(name) else "",
                    f"±{spread_percent(found[figure]):.0f} %",
                )  # fmt: skip
            drawn.add_section()
    return drawn


def markdown(results: Results) -> str:
    """The table for the README: a row a scenario and broker."""
    lines = ["| job | broker | figure | " + " | ".join(READERS) + " |", "|---" * (3 + len(READERS)) + "|"]
    for scenario, row in results.items():
        for broker in dict.fromkeys(name.split(" on ", 1)[1] for name in row):
            figures = dict.fromkeys(f for name, found in row.items() if name.endswith(broker) for f in found)
            for figure in figures:
                cells = []
                for reader in READERS:
                    found = row.get(f"{reader} on {broker}", {}).get(figure)
                    base = row.get(reference(f"{reader} on {broker}"), {}).get(figure)
                    text = f"{found['median']:,.0f}" if found else ""
                    if found and base and reader != CONNECTOR:
                        text += f" ({found['median'] / base['median']:.2f})"
                    cells.append(text)
                lines.append(f"| {scenario} | {broker} | {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


COLOURS = {CONNECTOR: "#8d99ae", TUNED: "#5c677d", OURS: "#2a9d8f", SEGMENTS: "#1d6f66", INGEST: "#e9a23b"}


def plot(results: Results, where: Path) -> list[Path]:
    """Rows a second, and what a GB costs, of each reader on each broker; a panel for either."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [(scenario, name) for scenario, row in results.items() for name in row if "rows/s" in row[name]]
    if not rows:
        return []
    figure_, panels = pyplot.subplots(1, 2, sharey=True, figsize=(11, 1.4 + 0.21 * len(rows)))
    place, places, ticks = 0.0, [], []
    for index, (scenario, name) in enumerate(rows):
        place -= 1 if index == 0 or rows[index - 1][0] == scenario else 2
        places.append(place)
        ticks.append(f"{scenario}: {name}")
    for axes, figure, title in zip(
        panels,
        ("rows/s", "CPU s/GB"),
        ("M rows/s (longer is better)", "CPU seconds per GB, of all processes (shorter is better)"),
        strict=True,
    ):
        scale = 1e6 if figure == "rows/s" else 1
        values = [results[scenario][name][figure]["median"] / scale for scenario, name in rows]
        axes.barh(places, values, color=[COLOURS[name.rpartition(" on ")[0]] for _, name in rows])
        for at, value in zip(places, values, strict=True):
            axes.text(value, at, f" {value:.3g}", va="center", fontsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(places, ticks)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12, y=0.02)
    figure_.suptitle(f"Spark: flights, local[2] and the broker on {os.cpu_count()} cores", fontsize=10)
    figure_.tight_layout()
    paths = [where.with_suffix(f".{kind}") for kind in ("png", "svg")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure_.savefig(path, dpi=140)
    return paths
