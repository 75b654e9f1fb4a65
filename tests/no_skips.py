"""A skipped test proves nothing: where `CI=true` is set, all that tests need is there, and a skip fails.

Two are allowed, and named at the end of the run: without root or Debian's packages there is no KDC, and
without npm no client of Node.js."""

import pytest

NO_KDC = "MIT Kerberos is not installed: python tools/ensure_kerberos.py"
NO_NPM = "npm is not installed, which brings kafkajs"
ALLOWED = (NO_KDC, NO_NPM)

SKIPS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = []
    config.pluginmanager.register(NoSkips(config.stash[SKIPS]), "no-skips")


class NoSkips:
    def __init__(self, skips: list[str]) -> None:
        self.skips = skips

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.skips.append(f"{report.nodeid}: {why}")

    @property
    def wrong(self) -> list[str]:
        return [skip for skip in self.skips if not any(why in skip for why in ALLOWED)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for skip in sorted(set(self.skips)):
            forbidden = skip in self.wrong
            told = "SKIPPED, which CI=true does not allow" if forbidden else "SKIPPED"
            terminalreporter.write_line(f"{told}: {skip}", red=forbidden)
