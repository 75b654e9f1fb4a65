"""Runs with [dedup]: a stream that lacked a Python worker is taken up again."""

from typing import Any

import pytest

from kafkad.ingest import deduplicate
from kafkad.ingest.deduplicate import StreamRun

CRASHED = RuntimeError("Job aborted: Python worker failed to connect back.")
WRONG = RuntimeError("BadRecord: the record at offset 7 of t-0 cannot be decoded")


class Query:
    """One that has ended."""

    isActive = False

    def __init__(self, batches: list[int], trouble: BaseException | None) -> None:
        self.recentProgress = [{"batchId": number} for number in batches]
        self.exception = lambda: trouble


class Quiet:
    def doing(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("queries", "followed", "ended"),
    [
        ([([0, 1], None)], [0, 1], None),
        ([([0], CRASHED), ([1], None)], [0, 1], None),
        ([([0], WRONG), ([1], None)], [0], WRONG),
        ([([], CRASHED)] * 9, [], CRASHED),
    ],
)
def test_a_stream_that_lacked_a_worker_is_taken_up_again(
    queries: Any, followed: Any, ended: Any, monkeypatch: Any
):
    monkeypatch.setattr(deduplicate, "RETRY_PAUSES_S", (0,) * 5)
    monkeypatch.setattr(deduplicate, "POLL_S", 0)
    waiting = [Query(*each) for each in queries]
    run = StreamRun.__new__(StreamRun)
    seen: list[int] = []
    said: list[str] = []
    monkeypatch.setattr(run, "progress", Quiet(), raising=False)
    monkeypatch.setattr(run, "stop", False, raising=False)
    monkeypatch.setattr(run, "trouble", None, raising=False)
    monkeypatch.setattr(run, "follow", lambda progress: seen.append(progress["batchId"]))
    monkeypatch.setattr(run, "say", said.append)
    monkeypatch.setattr(run, "wait", lambda until: None)
    monkeypatch.setattr(run, "attempt", lambda what, work: work())
    monkeypatch.setattr(run, "start", lambda: waiting.pop(0))
    assert run.watch(run.start()) is ended
    assert seen == followed
    assert len(said) == min(len(queries), 6) - 1 if ended is not WRONG else not said
