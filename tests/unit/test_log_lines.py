"""The lines of the broker's log: names that clients choose make neither long lines nor many."""

import logging
import os

import pytest

from kafkad.server.stderr import BURST, LINES_PER_S, MESSAGES_MAX, OneLine, Spates, StderrHandler


@pytest.fixture
def log(tmp_path):
    """(logger, function that returns the lines so far)."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    handler = StderrHandler(fd)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    logger = logging.getLogger("kafkad.coordinator.test_log_lines")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield logger, lambda: path.read_text().splitlines()
    finally:
        logger.removeHandler(handler)
        os.close(fd)


def record(message, *values, at, name="kafkad.coordinator.group", level=logging.INFO):
    made = logging.LogRecord(name, level, "", 0, message, values, None)
    made.created = at
    return made


def test_a_long_message_keeps_its_beginning_and_its_end(log):
    logger, lines = log
    logger.info("group %s: %s", "g" * 32_767, "the reason")
    (line,) = lines()
    assert len(line) < 2_100 and line.startswith("INFO group ggg") and line.endswith("the reason")
    assert "characters are left out" in line


def test_a_long_name_in_an_exception_is_short_in_the_log(log):
    logger, lines = log
    try:
        raise KeyError("n" * 100_000)
    except KeyError:
        logger.exception("a request failed")
    assert lines()[0] == "ERROR a request failed" and max(map(len, lines())) < 2_100


def test_names_do_not_forge_lines(log):
    logger, lines = log
    logger.info("group %s", "a\nERROR forged\x1b[2J")
    assert lines() == ["INFO group a\\nERROR forged\\x1b[2J"]


def test_a_message_that_is_repeated_for_many_names_is_left_out_and_counted(log):
    logger, lines = log
    for number in range(BURST + 500):
        logger.info("group %s is new", number)
    logger.info("another message")
    found = lines()
    assert BURST <= sum(" is new" in line for line in found) < BURST + 250
    assert found[-1] == "INFO another message"


def test_lines_pass_again_after_a_while_with_the_number_of_those_that_did_not():
    spates = Spates()
    passed = [spates.filter(record("group %s", number, at=10.0)) for number in range(BURST + 7)]
    assert passed == [True] * BURST + [False] * 7
    later = record("group %s", "later", at=10.0 + 1.5 / LINES_PER_S)
    assert spates.filter(later)
    assert later.getMessage() == "group later (7 more lines like it were left out)"
    assert not spates.filter(record("group %s", "same moment", at=later.created))
    assert spates.filter(record("group %s", "the clock goes back", at=5.0)) is False


def test_lines_of_one_host_do_not_hide_those_of_another():
    spates = Spates()
    closed = "closed the connection from %s:%s"
    for _ in range(BURST + 1):
        spates.filter(record(closed, "10.0.0.1", 1, at=1.0, name="kafkad.net"))
    assert not spates.filter(record(closed, "10.0.0.1", 1, at=1.0, name="kafkad.net"))
    assert spates.filter(record(closed, "10.0.0.2", 1, at=1.0, name="kafkad.net"))


def test_what_is_remembered_of_messages_is_bounded():
    spates = Spates()
    for number in range(3 * MESSAGES_MAX):
        assert spates.filter(record("closed %s", f"host {number}", at=1.0, name="kafkad.net"))
    assert len(spates._rooms) == MESSAGES_MAX


def test_debug_lines_the_audit_log_and_what_happens_to_data_are_complete():
    spates = Spates()
    for _ in range(BURST + 10):
        assert spates.filter(record("deleted", at=1.0, name="kafkad.replication.partitions"))
        assert spates.filter(record("debug", at=1.0, level=logging.DEBUG))
        assert spates.filter(record("denied", at=1.0, name="kafka.authorizer.logger"))
