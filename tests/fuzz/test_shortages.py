"""A log under shortages: ENOSPC, EMFILE, ENOMEM at any call of Python's side and of C's, at random.

No acknowledged batch is lost, no offset is used twice, LEO, HW and log start do not move back, no shortage
takes a log offline, and when it ends everything works again. The rounds run in a process of their own, into
which the switch is preloaded (tests/shortages.py). 20 seconds, and five minutes in `make soak`."""

import os

import pytest

from tests.shortages import run

SECONDS = 20, 300


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_log_loses_nothing_in_a_shortage_and_recovers(tmp_path, rounds):
    """REVIEW D1 to D4, D11, HUNTS U2, and what else there is."""
    seconds = rounds(*SECONDS)
    first = int(os.environ.get("KAFKAD_FUZZ_SEED", "1"))
    (tmp_path / "data").mkdir()
    done = run("tests.fuzz.shortage_rounds", tmp_path / "control", tmp_path / "data", first, seconds,
               timeout=seconds + 120)  # fmt: skip
    count, failed = map(int, done.split())
    assert count > 10 and failed > 10 * count
