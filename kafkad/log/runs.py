"""Runs of batches from a leader, when their native append (_native/log/partition_runs) needs Python.

The replica fetcher calls `go_on` when a run has stopped. `append_run` is the whole loop, for data that is in
memory already."""

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kafkad._native.log.partition_appends import WANTS_EPOCH, WANTS_OLD_FORMAT, WANTS_ROLL
from kafkad.log.owner import Owner
from kafkad.protocol.errors import UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError

if TYPE_CHECKING:
    from typing_extensions import Buffer

NEED_PYTHON: Final = -1000
RUN_NEWER: Final = -2000  # the batch is of a later epoch than the Fetch
RUN_OVERLAPS: Final = -2001  # the batch begins below the log's end and goes beyond it


class Followed(Owner, Protocol):
    """The part of `log.Log` that a run needs."""

    def roll(self, now_ms: int, base_offset: int | None = None) -> bool: ...

    def assign_epoch(self, epoch: int, start_offset: int) -> None: ...


class RunEnd(NamedTuple):
    """Where a run ended: `code` is 0 if no whole batch is left, otherwise RUN_NEWER, RUN_OVERLAPS or Kafka's
    error code for the batch at byte `taken`, which has these offsets."""

    code: int
    taken: int
    needed: int  # size of the batch there, if incomplete; 0: its header is incomplete, too
    base_offset: int
    last_offset: int


def append_run(log: Followed, data: "Buffer", fetch_epoch: int, high_watermark: int, now_ms: int) -> RunEnd:
    """Append the whole batches of a leader's answer to a Fetch under `fetch_epoch`. `high_watermark` is the
    leader's. Raises KafkaError if the log cannot roll, or does not take the format."""
    at = 0
    while True:
        code, at, needed, base, last, epoch = log.native.try_append_run(
            data, at, fetch_epoch, high_watermark, now_ms
        )
        if code != NEED_PYTHON:
            return RunEnd(code, at, needed, base, last)
        go_on(log, base, epoch, now_ms)


def go_on(log: Followed, base: int, epoch: int, now_ms: int) -> None:
    """Do what the run needs that stopped before the batch at `base`, of `epoch`. Raises KafkaError."""
    wants = log.native.wants
    if wants == WANTS_ROLL:
        log.roll(now_ms, base)
    elif wants == WANTS_EPOCH:
        log.assign_epoch(epoch, base)
    else:
        assert wants == WANTS_OLD_FORMAT
        raise KafkaError(UNSUPPORTED_FOR_MESSAGE_FORMAT, "messages of magic 0 and 1 are not replicated yet")
