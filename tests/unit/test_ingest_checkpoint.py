"""The checkpoint of a pipeline: what is planned, what is done, and who may run."""

import json
import os
import subprocess
import sys

import pytest

from kafkad.ingest.checkpoint import KEPT, Busy, Checkpoint, Foreign

AT = {("t", 0): 5, ("t", 1): 0}


@pytest.fixture
def checkpoint(tmp_path):
    with Checkpoint(tmp_path / "c", "flights") as made:
        yield made


def test_a_planned_batch_is_taken_up_with_the_same_offsets(checkpoint, tmp_path):
    assert checkpoint.is_new
    made = checkpoint.plan(dict(AT), {("t", 0): 9, ("t", 1): 0})
    checkpoint.close()
    with Checkpoint(tmp_path / "c", "flights") as again:
        assert again.unfinished() == made
        assert again.id == checkpoint.id
        assert made.ranges() == [("t", 0, 5, 9)]
        assert made.records == 4
        again.done(made, {"rows": 4, "offsets": 4})
        assert again.unfinished() is None
        assert again.position() == {("t", 0): 9, ("t", 1): 0}


def test_a_partition_that_is_not_named_keeps_its_position(checkpoint):
    checkpoint.done(checkpoint.plan(dict(AT), {("t", 0): 9, ("t", 1): 3}), {})
    later = checkpoint.plan({("u", 0): 0}, {("u", 0): 1})
    assert later.id == 1
    assert later.ranges() == [("u", 0, 0, 1)]
    assert checkpoint.position() == {("t", 0): 9, ("t", 1): 3, ("u", 0): 1}


def test_totals_add_up_and_old_batches_leave(checkpoint):
    for number in range(KEPT + 5):
        batch = checkpoint.plan({("t", 0): number}, {("t", 0): number + 1})
        record = checkpoint.done(batch, {"rows": 2, "bad": 1, "lag": 7})
    assert record["totals"]["rows"] == 2 * (KEPT + 5)
    assert record["totals"]["bad"] == KEPT + 5
    assert record["totals"]["batches"] == KEPT + 5
    assert "lag" not in record["totals"]
    assert len(checkpoint.history()) == KEPT
    assert len(list(checkpoint.batches.iterdir())) == 2 * KEPT


def test_one_run_at_a_time(checkpoint, tmp_path):
    with pytest.raises(Busy, match=f"process {os.getpid()}"):
        Checkpoint(tmp_path / "c", "flights")
    Checkpoint(tmp_path / "c", "flights", read_only=True)  # status may look


def test_kill_9_lets_go_of_the_lock(tmp_path):
    code = (
        "import os, signal, sys; from kafkad.ingest.checkpoint import Checkpoint;"
        "Checkpoint(sys.argv[1], 'p'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")])
    assert died.returncode == -9
    with Checkpoint(tmp_path / "c", "p") as held:
        assert held.is_new


def test_another_pipelines_checkpoint_is_refused(checkpoint, tmp_path):
    checkpoint.close()
    with pytest.raises(Foreign, match="belongs to pipeline 'flights'"):
        Checkpoint(tmp_path / "c", "other")
    identity = tmp_path / "c" / "identity.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 9}))
    with pytest.raises(Foreign, match="format 9"):
        Checkpoint(tmp_path / "c", "flights")


def test_looking_creates_nothing(tmp_path):
    looked = Checkpoint(tmp_path / "none", "flights", read_only=True)
    assert looked.is_new
    assert looked.position() == {}
    assert looked.history() == []
    assert not (tmp_path / "none").exists()
