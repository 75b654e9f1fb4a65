"""With CI=true a skip fails the run, and is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSES = "def test_passes():\n    pass\n"
SKIP = "import pytest\n\n\ndef skip():\n    pytest.skip('no root')\n\n\n"
CASES = {
    "a test": SKIP + "def test_it():\n    skip()\n",
    "a mark": SKIP + "@pytest.mark.skipif(True, reason='no root')\ndef test_it():\n    pass\n",
    "a fixture": SKIP + "@pytest.fixture\ndef it():\n    skip()\n\n\ndef test_it(it):\n    pass\n",
    "a module": "import pytest\n\npytest.skip('no root', allow_module_level=True)\n",
}


def run(directory, text, *arguments, ci="true"):
    (directory / "test_one.py").write_text(text)
    (directory / "test_two.py").write_text(PASSES)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.no_skips", *arguments, directory],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": ci},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["in one process", "side by side"])
@pytest.mark.parametrize("case", CASES)
def test_a_skip_fails_the_run(tmp_path, case, arguments):
    done = run(tmp_path, CASES[case], *arguments)
    assert done.returncode == 1, done.stdout
    line = next(line for line in done.stdout.splitlines() if "which CI=true does not allow: " in line)
    assert "test_one.py" in line and line.endswith("Skipped: no root")


def test_what_passes_and_what_is_expected_to_fail_does_not(tmp_path):
    text = "import pytest\n\n\n@pytest.mark.xfail\ndef test_it():\n    assert False\n"
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stdout
    assert "does not allow" not in done.stdout
