"""A run's output for people: a progress bar on a terminal, otherwise lines of JSON, and a summary at the end.

The bar counts offsets, whose end is known if the trigger is available-now: rows, MB/s, lag and time left. If
stdout is not a terminal, each batch is one object on a line ({"batch": 3, "rows": 60000, …}), and the last
line is the summary, {"summary": {…}}: for logs and for programs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

ROWS_OF_SUMMARY = (
    ("batches", "batches"),
    ("records read", "records"),
    ("rows landed", "rows"),
    ("bad records", "bad"),
    ("MB read", "bytes"),
    ("files written", "files"),
)


class Progress:
    """Call `begin(total)`, `batch(record)` after each batch, `end(...)` once. `total` is None if there is no
    end."""

    def __init__(self, pipeline: str, out: TextIO | None = None) -> None:
        self.pipeline = pipeline
        self.out = out if out is not None else sys.stdout
        self.for_people = self.out.isatty()
        self.started = self.working_since = time.monotonic()
        self.totals: dict[str, float] = {}
        self._bar: Any = None
        self._task: Any = None

    def begin(self, total: int | None) -> None:
        self.started = self.working_since = time.monotonic()
        if not self.for_people:
            return
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:.1f} MB/s  lag {task.fields[lag]:,}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self.out),
        )
        self._task = self._bar.add_task(self.pipeline, total=total or None, rows=0, rate=0.0, lag=total or 0)
        self._bar.start()

    def doing(self, what: str = "") -> None:
        """Show, before the bar, what is running instead of batches. Rates count from its end."""
        self.working_since = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self.pipeline}: {what}" if what else self.pipeline)

    def batch(self, record: dict[str, Any]) -> None:
        for name in ("records", "rows", "bad", "bytes", "files"):
            self.totals[name] = self.totals.get(name, 0) + record.get(name, 0)
        self.totals["batches"] = self.totals.get("batches", 0) + 1
        if self._bar is None:
            self.line(record)
            return
        took = max(time.monotonic() - self.working_since, 1e-9)
        self._bar.update(
            self._task,
            advance=record.get("offsets", record.get("records", 0)),
            rows=int(self.totals["rows"]),
            rate=self.totals["bytes"] / 1e6 / took,
            lag=record.get("lag") or 0,
        )

    def end(self, why: str, lag: int | None, place: str) -> dict[str, Any]:
        """Stop the bar and print the totals of this run."""
        took, working = time.monotonic() - self.started, time.monotonic() - self.working_since
        if self._bar is not None:
            self._bar.stop()
        summary: dict[str, Any] = {
            "pipeline": self.pipeline,
            "ended": why,
            **{name: int(self.totals.get(name, 0)) for _, name in ROWS_OF_SUMMARY},
            "seconds": round(took, 3),
            "lag": lag,
            "table": place,
        }
        if not self.for_people:
            self.line({"summary": summary})
            return summary
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(
            title=f"{self.pipeline}: {why}", title_justify="left", box=box.SIMPLE_HEAD, show_header=False
        )
        table.add_column("")
        table.add_column("", justify="right")
        for label, name in ROWS_OF_SUMMARY:
            value = summary[name]
            table.add_row(label, f"{value / 1e6:,.1f}" if name == "bytes" else f"{value:,}")
        waited = f", {took - working:,.1f} of them for Spark to start" if took - working > 0.1 else ""
        table.add_row("seconds", f"{took:,.1f}{waited}")
        table.add_row("rows/s", f"{summary['rows'] / max(working, 1e-9):,.0f}")
        table.add_row("lag", "-" if lag is None else f"{lag:,}")
        table.add_row("table", place)
        Console(file=self.out, highlight=False, markup=False).print(table)
        return summary

    def line(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), file=self.out, flush=True)
