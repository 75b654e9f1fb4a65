"""Followers connected to a worker that does not own the partition: real processes, real sockets."""

import pytest
from reactor_world import batch, fetch, produce

from kafkad.protocol import errors, messages

TOPIC_ID = bytes(range(16))
OWNER, OTHER = 1, 0
PROMPT_S = 0.3  # nothing is to come within it
EPOCH = 41
LEADER_EPOCH = 3


def led(workers, index=0):
    workers.partition("t", index, OWNER, topic_id=TOPIC_ID, own="own_log")
    workers.ask(OWNER, "replicate", "t", index, 2, EPOCH, LEADER_EPOCH)
    workers.ask(OTHER, "know_replicas", "t", index, [(2, True, EPOCH, 0)])


def asked(offsets, *, broker=2, epoch=EPOCH, leader_epoch=LEADER_EPOCH, last_epoch=-1, **fields):
    request = fetch(
        [(TOPIC_ID, index, offset) for index, offset in offsets.items()],
        **{"max_wait_ms": 0, "min_bytes": 1, **fields},
    )
    request.replica_state.replica_id, request.replica_state.replica_epoch = broker, epoch
    for topic in request.topics:
        for part in topic.partitions:
            part.current_leader_epoch, part.last_fetched_epoch = leader_epoch, last_epoch
    return request


def told(answer):
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def test_what_a_follower_has_is_the_owners_to_commit(workers):
    led(workers)
    client, follower = workers.connect(OTHER), workers.connect(OTHER)
    waiting = client.send_request(produce("t", {0: batch(3)}, acks=-1), 9)
    workers.ask_until(OWNER, "end_offset", "t", 0, want=lambda end: end == 3)
    part = told(follower.ask(asked({0: 0}), 17))[0]
    assert (part.error_code, part.high_watermark, bool(part.records)) == (0, 0, True)
    assert not client.has_answer(PROMPT_S)
    follower.ask(asked({0: 3}), 17)
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert workers.ask(OWNER, "high_watermark", "t", 0) == 3
    ((broker, end, _, epoch, _, _),) = workers.ask(OWNER, "replica_rows", "t", 0)
    assert (broker, end, epoch) == (2, 3, EPOCH)
    assert told(follower.ask(asked({0: 3}), 17))[0].high_watermark == 3


def test_more_partitions_than_a_mail_holds_all_arrive(workers):
    for index in range(8):
        led(workers, index)
    client, follower = workers.connect(OWNER), workers.connect(OTHER)
    client.ask(produce("t", {index: batch(index + 1) for index in range(8)}, acks=1), 9)
    follower.ask(asked({index: index + 1 for index in range(8)}), 17)
    for index in range(8):
        ends = index + 1
        workers.ask_until(OWNER, "high_watermark", "t", index, want=lambda high, ends=ends: high == ends)


def test_a_waiting_follower_is_woken_by_an_append_at_the_owner(workers):
    led(workers)
    client, follower = workers.connect(OWNER), workers.connect(OTHER)
    waiting = follower.send_request(asked({0: 0}, max_wait_ms=60_000), 17)
    assert not follower.has_answer(PROMPT_S)
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    assert told(follower.receive(messages.FetchResponse, 17, waiting))[0].records


def test_a_follower_of_another_workers_partition_is_told_at_once_that_the_log_begins_later(workers):
    led(workers)
    client, follower = workers.connect(OWNER), workers.connect(OTHER)
    client.ask(produce("t", {0: batch(3)}, acks=1), 9)
    first = follower.ask(asked({0: 3}, session_epoch=0), 17)
    workers.ask_until(OWNER, "high_watermark", "t", 0, want=lambda high: high == 3)
    follower.ask(asked({0: 3}, session_id=first.session_id, session_epoch=1), 17)
    request = asked({0: 3}, session_id=first.session_id, session_epoch=2, max_wait_ms=60_000)
    request.topics[0].partitions[0].log_start_offset = 0
    waiting = follower.send_request(request, 17)
    assert not follower.has_answer(PROMPT_S)
    workers.ask(OWNER, "delete_records", "t", 0, 2)
    assert told(follower.receive(messages.FetchResponse, 17, waiting))[0].log_start_offset == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"broker": 9}, errors.UNKNOWN_LEADER_EPOCH),
        ({"epoch": EPOCH - 1}, errors.NOT_LEADER_OR_FOLLOWER),
        ({"leader_epoch": 2}, errors.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 4}, errors.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_is_refused_does_not_reach_the_owner(workers, fields, code):
    led(workers)
    workers.connect(OWNER).ask(produce("t", {0: batch(2)}, acks=1), 9)
    part = told(workers.connect(OTHER).ask(asked({0: 2}, **fields), 17))[0]
    assert part.error_code == code
    assert workers.ask(OWNER, "replica_rows", "t", 0)[0][1] == -1


def test_a_follower_whose_log_parts_is_told_where_by_any_worker(workers):
    led(workers)
    workers.connect(OWNER).ask(produce("t", {0: batch(2)}, acks=1), 9)
    workers.ask(OWNER, "replicate", "t", 0, 2, EPOCH, 5)
    follower = workers.connect(OTHER)
    part = told(follower.ask(asked({0: 4}, leader_epoch=5, last_epoch=3), 17))[0]
    assert (part.error_code, part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 3, 2)
    assert workers.ask(OWNER, "replica_rows", "t", 0)[0][1] == -1


def test_a_stale_copy_of_the_row_makes_nobody_caught_up(workers):
    """The end that a follower's offset is held against is read anew before the data."""
    led(workers)
    follower = workers.connect(OTHER)
    follower.ask(asked({0: 0}), 17)
    before = workers.ask_until(OWNER, "replica_rows", "t", 0, want=lambda rows: rows[0][1] == 0)[0][5]
    workers.connect(OWNER).ask(produce("t", {0: batch(4)}, acks=1), 9)
    follower.ask(asked({0: 1}), 17)
    rows = workers.ask_until(OWNER, "replica_rows", "t", 0, want=lambda rows: rows[0][1] == 1)
    after = rows[0][5]
    assert after >= before
    follower.ask(asked({0: 2}), 17)
    rows = workers.ask_until(OWNER, "replica_rows", "t", 0, want=lambda rows: rows[0][1] == 2)
    assert rows[0][5] == after  # it had not all at either of these
