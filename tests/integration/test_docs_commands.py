"""docs/commands.md is a transcript: what follows `$` is run, and prints what the page shows.

The sections are run in the order of STORY, on one broker. Ids, long numbers, the port and the directory are
those of this run. What a section needs beforehand is in BEFORE."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkad.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
STORY = ["topics", "Commands", "serve", "configs", "produce", "consume", "groups", "offsets", "cluster",
         "acls", "users", "dump-log"]  # fmt: skip
# shown by tests of their own: a hanging transaction has to be made, and a token needs a login
ELSEWHERE = {"transactions": "test_cli_transactions.py", "tokens": "test_delegation_tokens.py"}
FLIGHTS = """\
N14228:{"flight":"UA1545","delay":2}
N24211:{"flight":"UA1714","delay":4}
N619AA:{"flight":"AA1141","delay":2}
"""
BEFORE = {
    "produce": f"cat > flights.txt <<'END'\n{FLIGHTS}END",
    "groups": "kafkad consume --topic flights --group loaders --from-beginning --max-messages 3",
}
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ID = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")
NUMBER = re.compile(r"\d{5,}(?!\.log)")


def transcripts() -> dict[str, list[tuple[str, list[str]]]]:
    """The commands of each section, and the lines that they print."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for section in re.split(r"^#+ ", PAGE.read_text(), flags=re.M)[1:]:
        name = section.split("\n", 1)[0]
        for block in re.findall(r"^```\n(\$ .*?)^```", section, re.S | re.M):
            for each in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *lines = each.splitlines()
                found.setdefault(name, []).append((command, lines))
    return found


def same(lines: list[str]) -> list[str]:
    """The lines, with a word for what is different in each run, and one space between columns."""
    return [re.sub(r" {2,}", " ", NUMBER.sub("NUMBER", ID.sub("ID", line))).rstrip() for line in lines]


def test_every_transcript_is_run_here_or_elsewhere():
    assert set(transcripts()) == {*STORY, *ELSEWHERE}
    assert all((Path(__file__).parent / name).exists() for name in ELSEWHERE.values())


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a command next to the data of a broker, as the page's reader does: what it prints."""
    place = tmp_path_factory.mktemp("page")
    with Broker(config=CONFIG, data_dir=place / "data", workers=1) as broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KAFKAD_BOOTSTRAP_SERVER": broker.bootstrap,
        }
        port = broker.bootstrap.rpartition(":")[2]

        def run(command: str) -> list[str]:
            done = subprocess.run(
                ["bash", "-c", command], cwd=place, env=environment, text=True, timeout=60,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said = re.sub(rf"\b{port}\b", "9092", done.stdout.replace(str(place), "/srv/kafkad"))
            return said.splitlines()

        yield run


@pytest.fixture(scope="module")
def done():
    """The sections that were run; their topics, groups and users are there."""
    return set()


@pytest.mark.parametrize("section", STORY)
def test_the_commands_print_what_the_page_shows(shell, done, section):
    for each in STORY[: STORY.index(section) + 1]:
        if each not in done and each in BEFORE:
            shell(BEFORE[each])
        if each not in done and each != section:  # this test runs without those before it
            for command, _ in transcripts()[each]:
                shell(command)
        done.add(each)
    for command, lines in transcripts()[section]:
        said = same(shell(command))
        if "dump-log" in command:  # the page shows the beginning
            said = said[: len(lines)]
        if "--until-end" in command:  # the partitions may come in any order
            said, lines = sorted(said), sorted(lines)
        assert said == same(lines), command
