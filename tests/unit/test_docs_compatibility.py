"""docs/compatibility.md names the APIs that are served and the versions of clients that tests install."""

import re
from pathlib import Path

from kafkad.api import table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def served() -> str:
    rows = [
        f"| {row.key} | {row.name} | {row.low} to {row.high} |"
        if row.low < row.high
        else f"| {row.key} | {row.name} | {row.low} |"
        for row in table.ROWS
    ]
    return "\n".join(["| key | API | versions |", "|---|---|---|", *rows])


def test_the_table_of_apis_is_what_is_served():
    between = re.search(r"<!-- served -->\n(.*)\n<!-- end -->", PAGE, re.S)
    assert between is not None
    assert between[1] == served(), "put the right side between the two marks"


def test_the_clients_are_those_that_the_tests_install():
    wanted = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"`((?:confluent-kafka|kafka-python|aiokafka)>=[\d.]+)`", PAGE)
    assert len(named) == 3
    for client in named:
        assert f'"{client}"' in wanted, client
    spark = re.search(r"PySpark ([\d.]+)", PAGE)
    assert spark is not None and f'"pyspark=={spark[1]}"' in wanted
