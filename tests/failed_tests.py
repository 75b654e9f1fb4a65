"""Writes what failed to the file that KAFKAD_FAILED_TESTS names, a line of JSON for each run of pytest.

tools/look_again.py reads it:

    {"exit": 1, "workers": 2, "failed": ["tests/…::test_…"], "crashed": false, "other": ["…"]}

`crashed` says that a process of xdist ended in the middle of a test, `other` what else makes the run fail.
"""

import json
from pathlib import Path
from typing import Any

import pytest


class FailedTests:
    """With xdist, in the process that gathers."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failed: list[str] = []
        self.other: list[str] = []
        self.crashed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.other.append(f"{report.nodeid} cannot be collected")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        self.crashed = self.crashed or error is not None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        plugins = session.config.pluginmanager
        if (skips := plugins.get_plugin("no-skips")) is not None:
            self.other += [f"skipped: {skip}" for skip in skips.wrong]
        if (times := plugins.get_plugin("file-times")) is not None:
            self.other += [f"{file} took too long" for file in times.too_long()]
        row = {
            "exit": int(session.exitstatus),
            "workers": session.config.getoption("--workers", 1),
            "failed": self.failed,
            "crashed": self.crashed,
            "other": self.other,
        }
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
