"""The report of a run: a table for each group, the verdicts on the bounds, and the JSON with all results.

A cell has the median, in brackets its ratio to the first JVM Kafka (or else to the first broker), and half of
the spread over the rounds.
"""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.bounds import ABSOLUTE, KAFKA, ROUNDS_MIN, Results, Verdict, reference
from bench.figures import spread_percent

# which figures a table leaves out: they say nothing about these scenarios
BATCHED = "CPU us/request"


def number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def cell(summed: dict[str, Any], against: dict[str, Any] | None) -> str:
    text = number(summed["median"])
    if against and against["median"]:
        text += f" ({summed['median'] / against['median']:.2f})"
    return f"{text} ±{spread_percent(summed):.0f}%"


def table(group: str, scenarios: dict[str, dict[str, dict[str, Any]]]) -> Table:
    brokers = list(dict.fromkeys(name for row in scenarios.values() for name in row))
    first = reference(brokers) or brokers[0]
    drawn = Table(title=f"{group}: medians (ratio to {first})", title_justify="left")
    drawn.add_column("scenario", overflow="fold")
    drawn.add_column("figure")
    for broker in brokers:
        drawn.add_column(broker, justify="right")
    for scenario, row in scenarios.items():
        figures = list(dict.fromkeys(name for by_figure in row.values() for name in by_figure))
        if group == "fetch":
            figures.remove(BATCHED)
        for index, figure in enumerate(figures):
            cells = []
            for broker in brokers:
                summed = row.get(broker, {}).get(figure)
                against = row.get(first, {}).get(figure) if broker != first else None
                cells.append(cell(summed, against) if summed else "")
            drawn.add_row("" if index else scenario, figure, *cells)
        drawn.add_section()
    return drawn


def bound_text(verdict: Verdict) -> str:
    bound = verdict.bound
    sign = "≥" if bound.at_least else "≤"
    if bound.against == ABSOLUTE:
        return f"{sign} {bound.value:g}"
    value = f"1/{1 / bound.value:.3g}" if bound.value < 0.5 else f"{bound.value:.3g}"
    return f"{sign} {value} × {'Kafka' if bound.against == KAFKA else bound.against}"


def verdict_table(verdicts: list[Verdict]) -> Table:
    drawn = Table(title="bounds", title_justify="left")
    for heading in ("scenario", "figure"):
        drawn.add_column(heading, overflow="fold")
    for heading in ("kafkad", "against", "ratio", "bound"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("met")
    for verdict in verdicts:
        met = {True: "[green]yes[/green]", False: "[red]NO[/red]", None: "not measured"}[verdict.met]
        if verdict.met is not None and verdict.rounds < ROUNDS_MIN:
            met += f" ({verdict.rounds} round{'s' * (verdict.rounds > 1)})"
        relative = verdict.bound.against != ABSOLUTE and verdict.measured is not None
        drawn.add_row(
            verdict.bound.scenario,
            verdict.bound.figure,
            "" if verdict.ours is None else number(verdict.ours),
            "" if verdict.theirs is None else number(verdict.theirs),
            f"{verdict.measured:.3g}" if relative else "",
            bound_text(verdict),
            met,
        )
    return drawn


def totals(verdicts: list[Verdict]) -> str:
    met = sum(v.met is True for v in verdicts)
    missed = sum(v.met is False for v in verdicts)
    return f"{met} of {len(verdicts)} bounds met, {missed} not, {len(verdicts) - met - missed} not measured"


def write(path: Path, machine: dict[str, Any], options: dict[str, Any], results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"machine": machine, "options": options, "results": results}
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(json.dumps(told, default=str, indent=1))
    unfinished.replace(path)


def read(path: Path) -> Results:
    return json.loads(path.read_text())["results"]


def machine(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["machine"]
