"""The pure parts of `make bench`: figures of a run, medians of rounds, the bounds, tables, JSON and plot."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import (
    bounds,
    cleaner,
    old_formats,
    plot,
    produce,
    report,
    scenarios,
    spark,
    spark_report,
    transactions,
)  # fmt: skip
from bench.__main__ import GROUPS, QUICK
from bench.bounds import ABSOLUTE, BOUNDS, Bound, check
from bench.figures import figures, medians, spread_percent, summary

JVM = "Kafka 4.3.1"
TRANSACTION_FIGURES = ("transactions/s", "commit p50 ms", "commit p99 ms", "CPU us/transaction")  # one row's

COPY_FIGURES = ("records/s", "commit p50 ms", "CPU us/record")


def row(figure: str, ours: list[float], theirs: list[float] | None = None) -> dict[str, dict[str, Any]]:
    measured = {"kafkad": {figure: summary(ours)}}
    if theirs is not None:
        measured[JVM] = {figure: summary(theirs)}
    return measured


def results() -> bounds.Results:
    return {
        "produce": {
            "produce 64 KB batches of 1 KB": {
                name: {
                    "MB/s": summary([scale * 100.0] * 5),
                    "CPU s/GB": summary([1 / scale] * 5),
                    "p99 ms": summary([1.0] * 5),
                }
                for name, scale in (("kafkad", 4), (JVM, 1), ("bare loop", 5))
            }
        },
        "codecs": {"produce 64 records of 1 KB, zstd": row("MB/s", [200.0] * 5, [300.0] * 5)},
    }


# -- figures


def test_figures_of_a_produce_run() -> None:
    told = {
        "bytes": 2e9, "fetched": 0, "requests": 1000, "errors": 0, "seconds": 2.0,
        "p50_us": 100.0, "p99_us": 2000.0, "p999_us": 3000.0,
    }  # fmt: skip
    assert figures(told, 4.0) == {
        "MB/s": 1000.0, "CPU s/GB": 2.0, "p50 ms": 0.1, "p99 ms": 2.0, "p99.9 ms": 3.0,
        "requests/s": 500.0, "CPU us/request": 4000.0,
    }  # fmt: skip


def test_cpu_of_a_mixed_run_is_of_all_bytes_in_and_out() -> None:
    told = {"bytes": 1e9, "fetched": 3e9, "requests": 10, "errors": 0, "seconds": 1.0, "e2e_p99_us": 5000.0}
    figure = figures(told, 2.0)
    assert figure["CPU s/GB"] == 0.5
    assert (figure["MB/s"], figure["MB/s read"]) == (1000.0, 3000.0)
    assert figure["end to end p99 ms"] == 5.0


def test_a_real_client_has_no_requests() -> None:
    figure = figures({"bytes": 1e9, "requests": 10**6, "seconds": 2.0}, 1.0)
    assert set(figure) == {"MB/s", "CPU s/GB"}


def test_medians_and_spread_over_rounds() -> None:
    rounds = [{"MB/s": v} for v in (10.0, 30.0, 20.0)]
    summed = medians(rounds)["MB/s"]
    assert summed == {"median": 20.0, "low": 10.0, "high": 30.0, "rounds": [10.0, 30.0, 20.0]}
    assert spread_percent(summed) == 50.0
    assert spread_percent(summary([0.0, 0.0])) == 0.0


def test_a_figure_that_one_round_lacks_is_of_the_others() -> None:
    assert medians([{"a": 1.0}, {"a": 2.0, "b": 5.0}])["b"]["rounds"] == [5.0]


# -- bounds


def verdict(bound: Bound, measured: bounds.Results) -> bool | None:
    return check(measured, (bound,))[0].met


@pytest.mark.parametrize(
    ("at_least", "value", "ours", "met"),
    [
        (True, 2.2, 220.0, True), (True, 2.2, 219.0, False),
        (False, 1 / 4, 25.0, True), (False, 1 / 4, 26.0, False),
    ],
)  # fmt: skip
def test_a_bound_against_kafka_is_on_the_ratio_of_medians(
    at_least: bool, value: float, ours: float, met: bool
) -> None:
    measured = {"g": {"s": row("f", [0.0, ours, 1e9], [50.0, 100.0, 1000.0])}}
    assert verdict(Bound("s", "f", at_least, value), measured) is met


def test_the_first_jvm_is_the_reference_not_a_later_version_nor_the_bare_loop() -> None:
    measured = {"g": {"s": {"bare loop": {"f": summary([1.0])}, **row("f", [10.0], [5.0])}}}
    measured["g"]["s"]["Kafka 3.9.1"] = {"f": summary([1000.0])}
    assert verdict(Bound("s", "f", True, 2), measured) is True
    assert bounds.reference(["bare loop", "kafkad"]) is None


def test_absolute_bounds_and_bounds_against_a_scenario_of_ours() -> None:
    measured = {"g": {"s": row("f", [2.5]), "other": row("f", [3.0], [1e6])}}
    assert verdict(Bound("s", "f", True, 2, ABSOLUTE), measured) is True
    assert verdict(Bound("s", "f", False, 2, ABSOLUTE), measured) is False
    assert verdict(Bound("s", "f", True, 0.8, "other"), measured) is True
    assert verdict(Bound("s", "f", True, 0.9, "other"), measured) is False


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [v.met for v in check({})] == [None] * len(BOUNDS)
    assert verdict(Bound("s", "f", True, 2), {"g": {"s": row("f", [1.0])}}) is None  # no Kafka in the run
    assert verdict(Bound("s", "g", True, 2), {"g": {"s": row("f", [1.0], [1.0])}}) is None
    assert verdict(Bound("s", "f", True, 2), {"g": {"s": row("f", [1.0], [0.0])}}) is None


def test_a_verdict_tells_of_how_few_rounds_it_is() -> None:
    measured = {"g": {"s": row("f", [9.0] * 5, [1.0, 2.0])}}
    found = check(measured, (Bound("s", "f", True, 2),))[0]
    assert (found.met, found.rounds) == (True, 2)


def test_every_bound_of_a_row_names_a_scenario_that_is_run_even_when_quick() -> None:
    quick = {r.name for rows in produce.GROUPS.values() for r in rows if r.bound}
    quick |= {r.name for r in (*scenarios.FETCH, *scenarios.TLS_FETCH, *scenarios.TLS_PRODUCE) if r.bound}
    named = {b.scenario for b in BOUNDS if b.scenario.startswith(("produce ", "fetch "))}
    old = {bounds.old_format(load, codec) for load in old_formats.LOADS for codec in old_formats.CODECS}
    assert named - old == quick
    assert len(named & old) == 4
    run = {r.name for r in (*transactions.ROWS, *cleaner.ROWS)} | {*transactions.READERS}
    starts = ("clean ", "read_", "copies ", "10 rec", "1 rec")
    whole = {b.scenario for b in BOUNDS if b.scenario.startswith(starts)}
    assert whole <= run
    assert {"transactions", "transactional ids", "cleaner", "old formats"} <= set(QUICK) <= set(GROUPS)


def test_names_of_scenarios_are_unique() -> None:
    rows = [
        *(r for group in produce.GROUPS.values() for r in group),
        *scenarios.FETCH, *scenarios.MIXED, *scenarios.OPEN_MESSAGING,
    ]  # fmt: skip
    assert len({r.name for r in rows}) == len(rows)


# -- tables, JSON, plot


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_shows_medians_ratios_and_spread() -> None:
    text = printed(report.table("produce", results()["produce"]))
    assert "400 (4.00) ±0%" in text  # kafkad
    assert "100 ±0%" in text  # the reference has no ratio
    assert "500 (5.00) ±0%" in text  # the bare loop


def test_a_table_without_a_jvm_compares_with_its_first_column() -> None:
    text = printed(
        report.table(
            "workers",
            {"s": {"1 worker": {"f": summary([10.0])}, "2 workers": {"f": summary([15.0, 15.0])}}},
        )
    )
    assert "15 (1.50) ±0%" in text


def test_verdicts_say_yes_no_and_not_measured() -> None:
    verdicts = check(results())
    text = printed(report.verdict_table(verdicts))
    assert "yes" in text and "not measured" in text
    assert "≤ 1/3.2 × Kafka" in text
    assert report.totals(verdicts) == f"2 of {len(BOUNDS)} bounds met, 0 not, {len(BOUNDS) - 2} not measured"


def test_the_json_gives_back_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    report.write(path, {"cores": 2}, {"json": path}, results())
    assert report.read(path) == results()
    assert json.loads(path.read_text())["options"] == {"json": str(path)}
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_bars_are_longer_where_kafkad_is_better_whatever_the_figure() -> None:
    by_label = {bar.label: bar for bar in plot.bars(results())}
    throughput = by_label["produce 64 KB batches of 1 KB: MB/s"]
    cost = by_label["produce 64 KB batches of 1 KB: CPU per GB"]
    assert (throughput.better, throughput.bound) == (4.0, 2.2)
    assert cost.better == 4.0
    assert cost.bound == pytest.approx(3.2)
    worse = by_label["produce 64 records of 1 KB, zstd: MB/s"]
    assert worse.better == pytest.approx(2 / 3)
    assert worse.bound is None
    assert len(by_label) == 3  # no latency of a load that goes as fast as it can


def test_every_bound_against_kafka_is_drawn() -> None:
    figures_by_scenario: dict[str, set[str]] = {}
    for bound in BOUNDS:
        if bound.against == bounds.KAFKA:
            figures_by_scenario.setdefault(bound.scenario, set()).add(bound.figure)
    for scenario, named in figures_by_scenario.items():
        all_figures = {
            name: summary([1.0])
            for name in (
                "MB/s", "CPU s/GB", "requests/s", "CPU us/request", "p50 ms", "p99 ms",
                "seconds", "restart s", "PSS MB",
            )
        }  # fmt: skip
        if named & set(TRANSACTION_FIGURES):
            all_figures = {name: summary([1.0]) for name in TRANSACTION_FIGURES}
        elif "records/s" in named:
            all_figures = {name: summary([1.0]) for name in COPY_FIGURES}
        elif "ready s" in named:
            all_figures = {name: summary([1.0]) for name in ("ready s", "stop s", "MB more")}
        assert named <= set(plot.figures_of(scenario, all_figures)), scenario


def test_the_plot_is_files_that_are_what_they_say(tmp_path: Path) -> None:
    written = plot.plot(results(), tmp_path / "docs" / "ratios", "a machine")
    assert [p.name for p in written] == ["ratios.png", "ratios.svg", "ratios-all.png", "ratios-all.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[1].read_text()


def test_nothing_to_compare_makes_no_plot(tmp_path: Path) -> None:
    assert plot.plot({"g": {"s": row("MB/s", [1.0])}}, tmp_path / "ratios") == []
    assert list(tmp_path.iterdir()) == []


def test_sparks_bounds_are_checked_on_each_broker_against_what_reads_there() -> None:
    results = {
        "raw to noop": {
            f"{reader} on {broker}": {"rows/s": summary([rate * 1e6] * 5)}
            for broker, scale in (("kafkad", 1.0), (JVM, 0.5))
            for reader, rate in (
                ("spark-sql-kafka", 0.5),
                ("spark-sql-kafka, tuned", 9.0),
                ("kafkad", scale),
                ("segment files", 1.1),
            )
        }
    }
    verdicts = {v.bound.scenario: v for v in spark_report.check(results) if v.bound.figure == "rows/s"}
    met = {name: v.met for name, v in verdicts.items() if v.met is not None}
    assert met == {
        "raw to noop: kafkad on kafkad": True,
        f"raw to noop: kafkad on {JVM}": False,
        "raw to noop: segment files on kafkad": False,
        f"raw to noop: segment files on {JVM}": True,
    }
    assert verdicts["raw to noop: segment files on kafkad"].measured == pytest.approx(1.1)
    assert verdicts["json to parquet: kafkad ingest on kafkad"].met is None
    out = io.StringIO()
    Console(file=out, width=200).print(spark_report.table(results))
    cells = [line.replace(" ", "").split("│") for line in out.getvalue().splitlines()]
    assert ["segmentfilesonkafkad", "1.1e+06", "1.10"] in [row[3:6] for row in cells]
    assert "1,100,000 (2.20)" in spark_report.markdown(results)


def test_each_reader_of_spark_has_the_sinks_it_can_write_and_reads_what_takes_seconds() -> None:
    jobs = spark.jobs(spark.arguments().parse_args([]))
    sinks = {(job.reader, job.sink) for job in jobs}
    assert ("segment files", "parquet") not in sinks and ("kafkad ingest", "noop") not in sinks
    assert {job.reader for job in jobs if job.reads_all} == {"kafkad", "segment files", "kafkad ingest"}
    assert not any(job.reads_all for job in jobs if job.reader.startswith("spark-sql-kafka"))
    values = [b"a", b"bb", b"ccc"]
    assert spark.bytes_of(values, 7) == sum(map(len, values)) * 2 + 1
