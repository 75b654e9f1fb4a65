"""tools/look_again.py: which failures of a whole run get another look, and what becomes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import look_again

ROOT = Path(__file__).parents[2]
OPTIONS = "def pytest_addoption(parser): parser.addoption('--workers', type=int)\n"
SLOW = "tests/integration/test_slow.py::test_slow"


def run(**changes):
    return {"exit": 1, "workers": 1, "failed": [SLOW], "crashed": False, "other": [], **changes}


PASSED = run(exit=0, failed=[])


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "0 of 3"),
        ([run(), PASSED], "2 of 3"),
        ([run(failed=[]), PASSED, PASSED], "no test"),
        ([run(failed=[f"{SLOW}[{n}]" for n in range(4)]), PASSED, PASSED], "4 tests"),
        ([run(failed=[SLOW]), run(failed=[f"{SLOW}[{n}]" for n in range(3)]), PASSED], "4 tests"),
        ([run(failed=["tests/unit/test_crc.py::test_crc"]), PASSED, PASSED], "speed"),
        ([run(exit=2), PASSED, PASSED], "status 2"),
        ([run(), run(exit=3, failed=[]), PASSED], "status 3"),
        ([run(crashed=True), PASSED, PASSED], "crashed"),
        ([run(other=["skipped: no Java"]), PASSED, PASSED], "no Java"),
        ([PASSED, PASSED, run(failed=[], other=["test_x.py took too long"])], "too long"),
    ],
)
def test_failures_that_stand(runs, why, capsys):
    assert look_again.look_again(runs, passes=lambda _: True) == 1
    assert why in capsys.readouterr().out


def test_each_failure_must_pass_three_times(capsys):
    asked = []
    runs = [PASSED, run(workers=2), run(workers=4)]
    assert look_again.look_again(runs, passes=lambda each: not asked.append(each)) == 0
    assert asked == [(SLOW, 2)] * 3 + [(SLOW, 4)] * 3
    assert capsys.readouterr().out.count(SLOW + "  (workers") == 2


def test_one_that_fails_again_is_the_end():
    answers = [True, True, False]
    assert look_again.look_again([run(), PASSED, PASSED], passes=lambda _: answers.pop(0)) == 1
    assert answers == []


def test_a_run_writes_what_failed(tmp_path):
    """A whole run, whose test fails once, and the look at it."""
    folder = tmp_path / "tests" / "integration"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(OPTIONS)
    (folder / "test_once.py").write_text(
        "from pathlib import Path\n"
        "def test_fails_once():\n"
        "    seen = Path(__file__).with_name('seen')\n"
        "    assert seen.exists() or seen.touch()\n"
        "def test_passes(): assert True\n"
    )
    (tmp_path / "load.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from tests.failed_tests import FailedTests\n"
        "import pytest\n"
        "sys.exit(pytest.main(sys.argv[1:], plugins=[FailedTests(Path('failed.jsonl'))]))\n"
    )

    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
        )

    first = python("load.py", "-p", "no:cacheprovider", "-p", "no:kafkad", "--workers", "2", "tests")
    rows = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert rows == [
        {
            "exit": 1,
            "workers": 2,
            "failed": ["tests/integration/test_once.py::test_fails_once"],
            "crashed": False,
            "other": [],
        }
    ], first.stdout + first.stderr
    with (tmp_path / "failed.jsonl").open("a") as file:
        file.writelines(json.dumps(PASSED) + "\n" for _ in range(2))
    again = python(ROOT / "tools" / "look_again.py", "failed.jsonl")
    assert (again.returncode, again.stdout.count("1 passed")) == (0, 3), again.stdout + again.stderr
