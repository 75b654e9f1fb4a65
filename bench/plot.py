"""The plot: kafkad compared with JVM Kafka for each scenario, with the bounds marked. PNG and SVG.

There is one bar per figure, on a logarithmic axis. 1 means equal, and a longer bar to the right means that
kafkad is better. For costs (CPU, memory, time), the bar is Kafka's figure divided by kafkad's.
"""

from pathlib import Path
from typing import Any, NamedTuple

from bench.bounds import BOUNDS, KAFKA, OURS, Results, reference

MORE_IS_BETTER = ("MB/s", "MB/s read", "requests/s", "transactions/s", "records/s", "GB/s")
TITLES = {
    "CPU s/GB": "CPU per GB",
    "CPU us/request": "CPU per request",
    "CPU us/transaction": "CPU per transaction",
    "PSS MB": "memory",
    "ready s": "time",
    "seconds": "time",
    "restart s": "time",
}
SMALL = ("1 record of", "2 KB batches", " busy ")  # told in requests, not in bytes
HELD = ("held", "half load", "/s")  # at a given rate: the throughput says nothing
CAUGHT_UP = ("drain", "catch-up beside")  # what counts is what was read
MET, MISSED, UNBOUND = "#2a9d8f", "#d1495b", "#8d99ae"
RATIO_MAX = 60.0  # longer bars are cut; their number stays


class Bar(NamedTuple):
    group: str
    label: str
    better: float  # above 1: kafkad is better
    bound: float | None  # on the same scale


def figures_of(scenario: str, ours: dict[str, Any]) -> list[str]:
    """Which figures of a scenario are drawn: one throughput unless it was held, one cost, latencies where
    they are what it is about.
    """

    def one_of(marks: tuple[str, ...]) -> bool:
        return any(mark in f" {scenario} " for mark in marks)

    small, held, caught_up = one_of(SMALL), one_of(HELD), one_of(CAUGHT_UP)
    wanted = ["GB/s", "PSS MB", "seconds", "ready s", "restart s"]
    if "records/s" in ours and "MB/s" not in ours:
        return ["records/s", "CPU us/record", "commit p50 ms"]
    if "transactions/s" in ours:
        return ["transactions/s", "CPU us/transaction", "commit p50 ms"]
    if caught_up:
        wanted += ["MB/s read"]
    elif not held:
        wanted += ["requests/s" if small else "MB/s"]
    wanted += ["CPU us/request" if small else "CPU s/GB"]
    if "end to end p99 ms" in ours:
        wanted += ["end to end p50 ms", "end to end p99 ms"]
    elif held:
        wanted += ["p50 ms", "p99 ms"]
    return [figure for figure in wanted if figure in ours]


def bars(results: Results) -> list[Bar]:
    """Pure: one bar for each figure that is drawn and that both sides have."""
    bounds = {(b.scenario, b.figure): b for b in BOUNDS if b.against == KAFKA}
    drawn = []
    for group, scenarios in results.items():
        for scenario, row in scenarios.items():
            theirs: dict[str, Any] = row.get(reference(row) or "", {})
            ours = row.get(OURS, {})
            for figure in figures_of(scenario, ours):
                mine = ours[figure]["median"]
                other = theirs[figure]["median"] if figure in theirs else 0
                if not mine or not other:
                    continue
                bound = bounds.get((scenario, figure))
                value = None if bound is None else bound.value if bound.at_least else 1 / bound.value
                better = mine / other if figure in MORE_IS_BETTER else other / mine
                title = TITLES.get(figure, figure)
                label = scenario if title in scenario else f"{scenario}: {title}"
                drawn.append(Bar(group, label, better, value))
    return drawn


def plot(results: Results, stem: Path, machine: str = "") -> list[Path]:
    """Writes `stem`.png and .svg, the figures that have bounds, and `stem`-all.png and .svg, all; nothing
    where there is nothing to compare.
    """
    drawn = bars(results)
    against = reference(name for group in results.values() for row in group.values() for name in row)
    written = []
    for chosen, name in (([b for b in drawn if b.bound is not None], stem.name), (drawn, f"{stem.name}-all")):
        if chosen:
            written += draw(chosen, stem.with_name(name), against or KAFKA, machine)
    return written


def draw(drawn: list[Bar], stem: Path, against: str, machine: str) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.22 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = list(range(len(drawn)))
    colours = [UNBOUND if bar.bound is None else MET if bar.better >= bar.bound else MISSED for bar in drawn]
    # from 1, so that a bar to the left says that Kafka is better
    lengths = [min(bar.better, RATIO_MAX) for bar in drawn]
    axes.barh(rows, [length - 1 for length in lengths], left=1, color=colours, height=0.7)
    for row, bar, length in zip(rows, drawn, lengths, strict=True):
        if bar.bound is not None:
            axes.plot([bar.bound, bar.bound], [row - 0.45, row + 0.45], color="black", linewidth=1.6)
        number = f"{bar.better:.2g}" if bar.better < 100 else f"{bar.better:,.0f}"
        axes.text(max(length, bar.bound or 0, 1) * 1.05, row, f"{number}×", va="center", fontsize=7)
    for row in rows[1:]:
        if drawn[row].group != drawn[row - 1].group:
            axes.axhline(row - 0.5, color="#dddddd", linewidth=0.8)
    axes.set_xscale("log")
    low = min(0.7, *(bar.better for bar in drawn)) * 0.8
    high = max(max(length, bar.bound or 0) for length, bar in zip(lengths, drawn, strict=True)) * 1.6
    axes.set_xlim(low, max(high, 2))
    axes.axvline(1, color="black", linewidth=0.8)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_yticks(rows, [bar.label for bar in drawn], fontsize=7)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"How many times better kafkad is than JVM {against}; the black line is the bound"
    figure.suptitle(title, fontsize=9)
    if machine:
        axes.set_xlabel(machine, fontsize=7)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in written:
        figure.savefig(path, dpi=150)
    return written
