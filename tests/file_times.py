"""How long each test file takes, and how long one may take.

At the end of a long run a table names the slowest files, and how busy the cores of the machine were: if they
were idle for much of the time, more files at once (PARALLEL) shorten the run; if not, only less work does.

In CI a file that takes longer than `LIMIT` fails the run: shorten it, split it, or leave its long form to
`make soak`. The limit is several times what the slowest file takes on a quiet machine, so a busy one does not
reach it.

Side by side, the files of `LONG` begin first: a long file that begins last goes on alone when all others are
done.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

LIMIT = 420  # seconds of wall time, for all tests of a file together
# The slowest files on two cores. Among the first is one with Spark: the others wait for its class archive.
LONG = (
    "test_worst_frames.py",
    "test_ingest_run.py",
    "test_growth_kinds.py",
    "test_clocks.py",
    "test_cluster_handover.py",
    "test_spark_source.py",
    "test_spark_matrix.py",
    "test_ingest_flights.py",
    "test_docs_examples.py",
    "test_own_tools.py",
    "test_transactions_killed.py",
    "test_transactions.py",
    "test_ingest_formats.py",
    "test_tls.py",
    "test_cluster_clock.py",
    "test_cluster_failover.py",
    "test_cluster_logins.py",
    "test_data_directory.py",
    "test_missing_files.py",
    "test_kill.py",
)
SHOWN = 15
WORTH_A_TABLE = 120  # seconds; a shorter run prints no table


def core_seconds() -> tuple[float, float, float]:
    """Of all cores since the boot: (busy, taken by the host, all)."""
    user, nice, system, idle, waiting, irq, soft_irq, stolen = (
        int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    busy = user + nice + system + irq + soft_irq
    return busy, stolen, busy + stolen + idle + waiting


class FileTimes:
    """Adds up setup, call and teardown of each file's tests; with xdist, in the process that gathers."""

    def __init__(self, limited: bool) -> None:
        self.limited = limited
        self.began_with = core_seconds()
        self.seconds: dict[str, float] = defaultdict(float)
        self.tests: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        self.tests[file] += report.when == "call"

    def too_long(self) -> list[str]:
        return [file for file, seconds in self.seconds.items() if seconds > LIMIT] if self.limited else []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_long() and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self.seconds.values())
        if total > WORTH_A_TABLE:
            terminalreporter.section(f"slowest files of {total:.0f} s in all")
            for file, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])[:SHOWN]:
                terminalreporter.write_line(f"{seconds:7.1f}s {self.tests[file]:5d} tests  {file}")
            passed = zip(core_seconds(), self.began_with, strict=True)
            busy, stolen, all_cores = (now - then for now, then in passed)
            terminalreporter.write_line(
                f"{os.cpu_count()} cores were busy for {busy / all_cores:.0%} of the time"
                f" ({busy:.0f} s), and the host took {stolen / all_cores:.0%}"
            )
        for file in self.too_long():
            terminalreporter.write_line(
                f"FAILED {file} took {self.seconds[file]:.0f} s; a file has {LIMIT} s"
            )
