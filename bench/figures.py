"""Figures of a run, and of rounds. Pure functions: the load generator's output in, numbers out.

A run's figures are the throughput, the broker's CPU seconds per GB (in and out together if there are both;
this is the fair figure, because the client uses half of the two cores), and latencies. Rounds have the median
and the spread.
"""

import statistics
from typing import Any


def figures(told: dict[str, float], broker_cpu: float) -> dict[str, float]:
    """`told`: the JSON of load.c, or of a client of clients.py (which has no `errors`)."""
    seconds = told["seconds"]
    figure = {"MB/s": told["bytes"] / 1e6 / seconds}
    moved = told["bytes"]
    if told.get("fetched") and told["fetched"] != told["bytes"]:
        figure["MB/s read"] = told["fetched"] / 1e6 / seconds
        moved += told["fetched"]
    figure["CPU s/GB"] = broker_cpu / (moved / 1e9)
    for name, label in (("p50", "p50 ms"), ("p99", "p99 ms"), ("p999", "p99.9 ms")):
        if f"{name}_us" in told:
            figure[label] = told[f"{name}_us"] / 1000
    for name, label in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
        if f"e2e_{name}_us" in told:
            figure[f"end to end {label} ms"] = told[f"e2e_{name}_us"] / 1000
    if "errors" in told:  # the native generator: its requests are requests
        figure["requests/s"] = told["requests"] / seconds
        figure["CPU us/request"] = broker_cpu / told["requests"] * 1e6
    return figure


def summary(values: list[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "rounds": values,
    }


def medians(rounds: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """figure -> median, low, high, rounds. A figure that some rounds lack is of those that have it."""
    names = dict.fromkeys(name for figure in rounds for name in figure)
    return {name: summary([r[name] for r in rounds if name in r]) for name in names}


def spread_percent(summed: dict[str, Any]) -> float:
    """Half of the way from the lowest to the highest round, as a part of the median."""
    middle = summed["median"]
    return (summed["high"] - summed["low"]) / 2 / middle * 100 if middle else 0.0
