"""The plot: what kafkad does for each scenario against JVM Kafka, with the bounds marked. PNG and SVG.

One bar a figure, on a logarithmic axis that is 1 where both do the same and longer to the right where kafkad
is better, also where less is better (CPU, memory, time): then it is Kafka's figure over kafkad's.
"""

from pathlib import Path
from typing import Any, NamedTuple

from bench.bounds import BOUNDS, KAFKA, OURS, Results, reference

# in which direction better lies; figures that are in neither are not drawn
MORE_IS_BETTER = ("MB/s", "requests/s", "GB/s")
LESS_IS_BETTER = (
    "CPU s/GB", "p50 ms", "p99 ms", "end to end p99 ms", "PSS MB", "seconds", "restart s", "recovery s",
)  # fmt: skip
# beside a throughput in batches or bytes the other says the same
REDUNDANT = {
    "requests/s": ("produce 1 record of 100 B a batch", "produce 2 KB batches", "2 KB batches", "busy"),
}
TITLES = {"CPU s/GB": "CPU per GB", "PSS MB": "memory", "seconds": "time", "restart s": "restart time"}
MET, MISSED, UNBOUND = "#2a9d8f", "#d1495b", "#8d99ae"


class Bar(NamedTuple):
    group: str
    label: str
    better: float  # above 1: kafkad is better
    bound: float | None  # on the same scale


def bars(results: Results) -> list[Bar]:
    """Pure: one bar for each figure that both sides have and that has a direction."""
    bounds = {(b.scenario, b.figure): b for b in BOUNDS if b.against == KAFKA}
    drawn = []
    for group, scenarios in results.items():
        for scenario, row in scenarios.items():
            theirs: dict[str, Any] = row.get(reference(row) or "", {})
            ours = row.get(OURS, {})
            held = "held" in scenario or "half load" in scenario or "/s" in scenario
            for figure in (*MORE_IS_BETTER, *LESS_IS_BETTER):
                if figure not in ours or figure not in theirs or not shown(scenario, figure, held, ours):
                    continue
                mine, other = ours[figure]["median"], theirs[figure]["median"]
                if not mine or not other:
                    continue
                more = figure in MORE_IS_BETTER
                bound = bounds.get((scenario, figure))
                value = None if bound is None else bound.value if bound.at_least else 1 / bound.value
                label = f"{scenario}: {TITLES.get(figure, figure)}"
                drawn.append(Bar(group, label, mine / other if more else other / mine, value))
    return drawn


def shown(scenario: str, figure: str, held: bool, ours: dict[str, Any]) -> bool:
    """One throughput a scenario (none where the rate was held), and latency only where it was."""
    small = scenario.startswith(REDUNDANT["requests/s"]) or "2 KB batches" in scenario
    if figure in MORE_IS_BETTER and held and "drain" not in scenario:
        return False
    if figure == "requests/s":
        return small
    if figure == "MB/s":
        return not (small and "requests/s" in ours)
    if figure in ("p50 ms", "p99 ms"):
        return held and "end to end p99 ms" not in ours
    if figure == "recovery s":
        return "GB/s" not in ours
    return True


def plot(results: Results, stem: Path, machine: str = "") -> list[Path]:
    """Writes `stem`.png and `stem`.svg; [] when there is nothing to compare."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = bars(results)
    if not drawn:
        return []
    figure = Figure(figsize=(10, 1.6 + 0.22 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = list(range(len(drawn)))
    colours = [UNBOUND if bar.bound is None else MET if bar.better >= bar.bound else MISSED for bar in drawn]
    # from 1, so that a bar to the left says that Kafka is better
    axes.barh(rows, [bar.better - 1 for bar in drawn], left=1, color=colours, height=0.7)
    for row, bar in zip(rows, drawn, strict=True):
        if bar.bound is not None:
            axes.plot([bar.bound, bar.bound], [row - 0.45, row + 0.45], color="black", linewidth=1.6)
        end = max(bar.better, bar.bound or 0, 1)
        axes.text(end * 1.05, row, f"{bar.better:.2g}×", va="center", fontsize=7)
    for row in rows[1:]:
        if drawn[row].group != drawn[row - 1].group:
            axes.axhline(row - 0.5, color="#dddddd", linewidth=0.8)
    axes.set_xscale("log")
    low = min(0.5, *(bar.better for bar in drawn)) * 0.8
    axes.set_xlim(low, max(max(bar.better, bar.bound or 0) for bar in drawn) * 1.6)
    axes.axvline(1, color="black", linewidth=0.8)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100) if low <= t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    axes.set_yticks(rows, [bar.label for bar in drawn], fontsize=7)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        "kafkad against JVM Kafka: how many times better (right of 1: kafkad). Black: the bound.", fontsize=9
    )
    if machine:
        axes.set_xlabel(machine, fontsize=7)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in written:
        figure.savefig(path, dpi=150)
    return written
