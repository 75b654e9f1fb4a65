"""`kafkad doctor spark`: each trouble is found where it is, with what to do."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkad.cli.doctor import command
from kafkad.spark import doctor

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, **environment):
    result = CliRunner().invoke(command, ["spark", "--no-read", "--json", *arguments], env=environment)
    rows = json.loads(result.output[: result.output.rindex("]") + 1])
    return result.exit_code, {row["check"]: row for row in rows}


@pytest.fixture
def bare(tmp_path):
    """A Python without a package."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -E "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_python_that_has_everything_is_well():
    code, rows = run(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    assert {name: row["state"] for name, row in rows.items() if name != "Java"} == dict.fromkeys(
        [
            "driver's Python",
            "workers' Python",
            "pyspark",
            "pyarrow",
            "kafkad",
            "pyspark_kafkad",
            "pyspark_* modules",
        ],
        "ok",
    )
    assert code == (rows["Java"]["state"] != "ok")


def test_an_install_that_pyspark_does_not_search_is_told():
    """The tests' own environment is an editable install."""
    code, rows = run(PYSPARK_PYTHON=sys.executable)
    row = rows["pyspark_* modules"]
    assert code == 1 and "PySpark's search does not see it" in row["found"]
    assert row["what_to_do"].startswith("call kafkad.spark.register(spark), or install it: ")


def test_a_python_that_lacks_the_packages_is_told_what_to_install(bare):
    code, rows = run(PYSPARK_PYTHON=bare)
    assert code == 1
    assert rows["pyarrow"]["state"] == "TROUBLE" and "No module named 'pyarrow'" in rows["pyarrow"]["found"]
    assert rows["kafkad"]["what_to_do"] == f'{bare} -m pip install "kafkad[spark]"'


def test_a_python_that_is_not_there_is_told(tmp_path):
    code, rows = run(PYSPARK_PYTHON=str(tmp_path / "none"))
    assert code == 1 and "which is not there" in rows["workers' Python"]["found"]
    assert rows["workers' Python"]["what_to_do"] == f"set PYSPARK_PYTHON={sys.executable} before Spark starts"


def test_a_broken_module_that_hides_all_sources_is_named(tmp_path):
    (tmp_path / "pyspark_torn.py").write_text("import not_there\n")
    code, rows = run(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
    assert code == 1
    assert rows["module pyspark_torn"]["found"] == "ModuleNotFoundError: No module named 'not_there'"
    assert "pip uninstall pyspark-torn" in rows["module pyspark_torn"]["what_to_do"]


def test_brokers_that_do_not_answer_are_told():
    finding = doctor.brokers("127.0.0.1:1")
    assert "no broker answers on 127.0.0.1:1" in finding.found and not finding.ok


def test_java_must_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not doctor.java().ok
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    old = doctor.java()
    assert "Java 11.0.2" in old.found and "install Java 17 or newer" in old.remedy


def test_the_sentence_is_found_in_sparks_message():
    message = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed\nTraceback (most recent call last):\n  File x\n"
        "ValueError: it is so\n SQLSTATE: 38000"
    )
    assert doctor.essence(message) == "ValueError: it is so"
    assert doctor.essence("plain") == "plain"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Traceback:\n  File x\nValueError: no such option\n", "ValueError: no such option"),
        (
            "An error occurred while calling o40.load.\n: org.apache.spark.SparkClassNotFoundException:"
            " [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafkad.\n\tat org.apache\n",
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafkad.",
        ),
        ("something\nelse", "something"),
        ("", "no word"),
    ],
)
def test_of_a_long_error_one_line_is_told(said, told):
    assert doctor.essence(said) == told
