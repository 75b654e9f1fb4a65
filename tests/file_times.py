"""How long each test file takes, and how long one may take.

At the end of a long run a table names the slowest files. In CI a file that takes longer than `LIMIT` fails
the run: shorten it, split it, or leave its long form to `make soak`. The limit is several times what the
slowest file takes on a quiet machine, so a busy one does not reach it.
"""

from collections import defaultdict

import pytest

LIMIT = 420  # seconds of wall time, for all tests of a file together
SHOWN = 15
WORTH_A_TABLE = 120  # seconds; a shorter run prints no table


class FileTimes:
    """Adds up setup, call and teardown of each file's tests; with xdist, in the process that gathers."""

    def __init__(self, limited: bool) -> None:
        self.limited = limited
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
        for file in self.too_long():
            terminalreporter.write_line(
                f"FAILED {file} took {self.seconds[file]:.0f} s; a file has {LIMIT} s"
            )
