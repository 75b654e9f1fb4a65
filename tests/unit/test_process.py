"""What a process tells Linux about itself, each in a process of its own."""

import os
import signal
from pathlib import Path

import pytest

from kafkad._native.shared import process
from tests.unit.test_timeslice import in_child


def resident_code(library):
    """KB of its pages of code that are mapped."""
    pages, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = library in line and " r-xp " in line
        elif inside and first == "Rss:":
            pages += int(line.split()[1])
    return pages


def test_code_that_is_forgotten_is_not_mapped_and_still_runs():
    def work():
        import decimal

        assert decimal.Decimal(2).sqrt() > 1
        before = resident_code("_decimal.")
        spanned = process.forget_code()
        after = resident_code("_decimal.")
        assert decimal.Decimal(3).sqrt() > 1
        return spanned > 0, before, after, resident_code("_decimal.")

    spanned, before, after, later = in_child(work)
    assert spanned
    assert after <= os.sysconf("SC_PAGESIZE") // 1024 < before  # a page that is not full of code stays
    assert later > after


def test_what_a_library_has_written_stays():
    """Constants that are relocated at the load, and variables: losing either would end the process."""

    def work():
        import sqlite3

        connection = sqlite3.connect(":memory:")
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1), (2)")
        for _ in range(3):
            process.forget_code()
        return connection.execute("select sum(x) from t").fetchone(), len(str(2**4000)), "é".upper()

    assert in_child(work) == ((3,), 1205, "É")


def test_a_child_ends_with_its_parent():
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        us = os.getpid()
        if os.fork() == 0:
            process.die_with_parent(signal.SIGKILL)
            if os.getppid() == us:
                os.write(writes, b"r")
                signal.pause()
        else:
            os.read(reads, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(writes)
    assert os.read(reads, 1) == b""  # all who had it open for writing have ended
    os.close(reads)


@pytest.mark.parametrize("name", ["kafkad/7", "a name of more than fifteen bytes"])
def test_a_name_is_what_tools_show(name):
    def work():
        process.set_name(name.encode())
        return Path("/proc/self/comm").read_text()

    assert in_child(work) == name[:15] + "\n"
