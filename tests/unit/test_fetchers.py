"""What a follower does when its leader answers an error: how long a partition waits."""

from types import SimpleNamespace

import pytest

from kafkad.protocol import errors
from kafkad.replication.fetchers import EARLY_MS, FetcherId, Followed, LeaderFetcher

TOPIC_ID, EPOCH, BACKOFF_MS = b"t" * 16, 5, 1_000


class Native:
    def stop(self, topic_id, index, state):
        pass


def delays_after(code, count):
    """The pauses after so many answers with this code, in milliseconds."""
    delays = []
    loop = SimpleNamespace(
        call_later=lambda seconds, *_: (
            delays.append(round(seconds * 1000)) or SimpleNamespace(cancel=lambda: None)
        )
    )
    fetcher = LeaderFetcher.__new__(LeaderFetcher)
    fetcher.fetchers = SimpleNamespace(loop=loop, config=SimpleNamespace(replica_fetch_backoff_ms=BACKOFF_MS))
    fetcher.id, fetcher.native = FetcherId(2, 0), Native()
    fetcher.followed = {(TOPIC_ID, 0): Followed(SimpleNamespace(topic="t", partition=0), EPOCH)}
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
