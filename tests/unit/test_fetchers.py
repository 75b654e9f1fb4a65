"""What a follower does when its leader answers an error: how long a partition waits."""

from types import SimpleNamespace

import pytest

from kafkad._native.serving.followed import DELAYED, FAILED, TRUNCATING
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.replication.fetchers import EARLY_MS, FetcherId, Followed, LeaderFetcher
from tests.unit.log_world import LogWorld

TOPIC_ID, EPOCH, BACKOFF_MS = b"t" * 16, 5, 1_000


class Native:
    def __init__(self):
        self.states = []

    def stop(self, topic_id, index, state):
        self.states.append(state)

    def remove(self, topic_id, index):
        self.states.append("removed")

    def resume(self, topic_id, index):
        self.states.append("resumed")


def fetcher_of(log):
    """A fetcher of one partition, and the pauses that it makes, in milliseconds."""
    delays = []
    loop = SimpleNamespace(
        call_later=lambda seconds, *_: (
            delays.append(round(seconds * 1000)) or SimpleNamespace(cancel=lambda: None)
        )
    )
    fetcher = LeaderFetcher.__new__(LeaderFetcher)
    fetcher.fetchers = SimpleNamespace(loop=loop, config=SimpleNamespace(replica_fetch_backoff_ms=BACKOFF_MS))
    fetcher.id, fetcher.native = FetcherId(2, 0), Native()
    fetcher.followed = {(TOPIC_ID, 0): Followed(log, EPOCH)}
    return fetcher, delays


def delays_after(code, count):
    """The pauses after so many answers with this code, in milliseconds."""
    fetcher, delays = fetcher_of(SimpleNamespace(topic="t", partition=0))
    for _ in range(count):
        fetcher.error(TOPIC_ID, 0, EPOCH, code)
    return delays


@pytest.mark.parametrize(
    "code",
    [
        errors.UNKNOWN_LEADER_EPOCH,
        errors.UNKNOWN_TOPIC_ID,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_a_leader_that_has_not_our_metadata_yet_is_asked_again_soon(code):
    """One of its workers may learn of a new partition after us. A Produce with acks=all waits for us."""
    assert delays_after(code, len(EARLY_MS) + 2) == [*EARLY_MS, BACKOFF_MS, BACKOFF_MS]


def test_after_other_errors_a_partition_waits():
    assert delays_after(errors.KAFKA_STORAGE_ERROR, 1) == [BACKOFF_MS]


def test_a_partition_whose_log_waits_for_room_to_be_truncated_goes_on_after_that():
    """It was not fetched any more until the next leader epoch, with a log that served nothing."""
    log = SimpleNamespace(topic="t", partition=0, halted=True, ended=False)
    fetcher, delays = fetcher_of(log)
    (followed,) = fetcher.followed.values()
    fetcher.refused(TOPIC_ID, 0, EPOCH, KafkaError(errors.KAFKA_STORAGE_ERROR, "no space left on device"))
    fetcher._resume((TOPIC_ID, 0), followed)
    assert (delays, fetcher.native.states) == ([BACKOFF_MS] * 2, [DELAYED] * 2)
    log.halted = False
    fetcher._resume((TOPIC_ID, 0), followed)
    assert fetcher.native.states[2:] == ["resumed"]

    log.ended = True  # its disk is broken
    fetcher.refused(TOPIC_ID, 0, EPOCH, KafkaError(errors.KAFKA_STORAGE_ERROR, "input/output error"))
    assert fetcher.native.states[3:] == [FAILED]


@pytest.mark.parametrize("then", ["done", "removed", "refused"])
def test_a_partition_waits_for_its_truncation_and_the_loop_does_not(tmp_path, then):
    """A copy of 277 MB held up the loop, and all other partitions, for 3.2 s."""
    world = LogWorld(tmp_path)
    for _ in range(10):
        world.append()
    world.log.follow(EPOCH, 2)
    fetcher, delays = fetcher_of(world.log)
    fetcher.diverged(TOPIC_ID, 0, EPOCH, 0, 4)
    world.scheduler.run()
    assert (fetcher.native.states, world.log.end_offset) == ([TRUNCATING], 10)
    if then == "removed":  # it is led now, or followed from another leader
        fetcher.remove((TOPIC_ID, 0))
    elif then == "refused":
        world.scheduler.work(fail=OSError(28, "no space left on device"))
    world.scheduler.settle()
    expected = {"done": ("resumed", 4), "removed": ("removed", 10), "refused": (DELAYED, 10)}[then]
    assert (fetcher.native.states[1:], world.log.end_offset) == ([expected[0]], expected[1])
    assert delays == ([BACKOFF_MS] if then == "refused" else [])
    if then == "refused":  # it is not fetched before
        (followed,) = fetcher.followed.values()
        fetcher._resume((TOPIC_ID, 0), followed)
        world.scheduler.settle()
        assert (fetcher.native.states[2:], world.log.end_offset) == ([TRUNCATING, "resumed"], 4)
        fetcher._resume((TOPIC_ID, 0), followed)
        assert fetcher.native.states[4:] == ["resumed"]
