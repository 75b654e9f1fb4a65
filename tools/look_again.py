"""Look again at the few tests that failed in a run of the whole suite, each alone.

Three files of tests share two cores in that run, and a machine that stands still for some seconds can fail a
test whose limit is generous. Such a test is not a defect of what is being landed, and is not hidden either:
it must pass three times, and is named at the end of the run, below the traceback of its failure.

Nothing is looked at again if more than `FEW` tests failed, if one is not of tests/integration (the others
wait for nothing), if a process crashed, or if the run failed for anything else.

    export KAFKAD_FAILED_TESTS=build/failed.jsonl
    make test || .venv/bin/python tools/look_again.py build/failed.jsonl
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

FEW: Final = 3  # of more than 12,000
TIMES: Final = 3
LIMIT_S: Final = 600  # one test, once
RUNS: Final = 3  # of pytest, in `make test`
TESTS_FAILED: Final = 1  # pytest's exit status

Failure = tuple[str, int]  # the test, and the workers of its brokers


def objection(runs: list[dict[str, Any]]) -> str | None:
    """Return why nothing is looked at again, or None. `runs`: the lines that tests/failed_tests writes."""
    failed = failures(runs)
    if len(runs) != RUNS:
        return f"{len(runs)} of {RUNS} runs of pytest came to their end"
    for run in runs:
        if run["exit"] not in (0, TESTS_FAILED):
            return f"pytest ended with status {run['exit']}"
        if run["crashed"]:
            return "a process of the tests crashed"
        if run["other"]:
            return run["other"][0]
    if not failed:
        return "no test is known to have failed"
    if len(failed) > FEW:
        return f"{len(failed)} tests failed"
    for test, _ in failed:
        if not test.startswith("tests/integration/"):
            return f"{test} does not depend on the machine's speed"
    return None


def failures(runs: Iterable[dict[str, Any]]) -> list[Failure]:
    return [(test, run["workers"]) for run in runs for test in run["failed"]]


def passes_alone(failure: Failure) -> bool:
    test, workers = failure
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    try:
        return subprocess.run([*command, "--workers", str(workers)], timeout=LIMIT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def look_again(runs: list[dict[str, Any]], passes: Callable[[Failure], bool] = passes_alone) -> int:
    """Return the exit status."""
    if (why := objection(runs)) is not None:
        print(f"The failures stand: {why}.")
        return 1
    for failure in failures(runs):
        for number in range(1, TIMES + 1):
            print(f"-- {failure[0]}, alone, {number} of {TIMES}", flush=True)
            if not passes(failure):
                print(f"{failure[0]} fails alone, too.")
                return 1
    print(f"\nFailed once beside other tests, and passed {TIMES} times alone (the tracebacks are above):")
    for test, workers in failures(runs):
        print(f"  {test}  (workers: {workers})")
    return 0


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FILE   (see the first lines of this program)")
    sys.exit(look_again(read(Path(sys.argv[1]))))
