"""Produce across workers where something has run out, or is another's by now."""

import struct
import threading

import pytest
import workers_world
from reactor_world import batch, produce
from workers_world import Workers

from kafkad.protocol import codec, errors, messages
from tests.readiness import writable


def fill_arena(worker):
    """What is left of it is held by somebody else."""
    mailboxes, size, taken = worker.mailboxes, 8 << 30, []
    while size >= 4096:
        at = mailboxes.allocate(size)
        if at is None:
            size //= 2
        else:
            taken.append((at, size))
    worker.taken = taken


def empty_arena(worker):
    for at, size in worker.taken:
        worker.mailboxes.give(at, size)


@pytest.fixture
def workers(tmp_path, monkeypatch):
    init = workers_world.Worker.__init__

    def remember(worker, directory, rows, mailboxes, **limits):
        worker.mailboxes = mailboxes
        init(worker, directory, rows, mailboxes, **limits)

    monkeypatch.setattr(workers_world.Worker, "__init__", remember)
    monkeypatch.setattr(workers_world.Worker, "fill_arena", fill_arena, raising=False)
    monkeypatch.setattr(workers_world.Worker, "empty_arena", empty_arena, raising=False)
    workers = Workers(2, tmp_path)
    yield workers
    workers.close()


def test_records_that_found_no_room_in_the_arena_are_to_be_sent_again(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    assert client.produce("t", batch()).error_code == 0
    workers.ask(0, "fill_arena")
    big = batch(1, 600_000)  # no scratch area that was there before has room for it
    assert client.produce("t", big).error_code == errors.NOT_LEADER_OR_FOLLOWER
    workers.ask(0, "empty_arena")
    answer = client.produce("t", big)
    assert (answer.error_code, answer.base_offset) == (0, 1)


def test_a_row_that_is_another_partitions_of_that_topic_by_now_is_not_appended_to(workers):
    row = workers.partition("t", 0, 1)
    topic_id = b"t".ljust(16, b"\1")
    workers.ask(0, "read", "t", 1, topic_id, row, 1)  # what was true before
    answer = workers.connect(0).ask(produce("t", {1: batch()}), 9).responses[0].partition_responses[0]
    assert answer.error_code == errors.NOT_LEADER_OR_FOLLOWER
    assert workers.ask(1, "end_offset", "t", 0) == 0


def test_many_small_batches_for_an_owner_that_stalls_cost_no_more_memory_than_there_may_be(tmp_path):
    """What is known of each of them is larger than itself."""
    bytes_max, parts, count = 2 << 20, 300, 300
    workers = Workers(2, tmp_path, buffered_bytes_max=bytes_max)
    try:
        for index in range(parts):
            workers.partition("t", index, 1)
        client = workers.connect(0)
        workers.stop(1)
        data = messages.ProduceRequest.TopicData
        records = bytes(batch(1, 1))
        many = [data.PartitionData(index=index, records=records) for index in range(parts)]
        request = messages.ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[data(name="t", partition_data=many)]
        )
        frame = codec.encode_request(request, 9, 1, "test")
        frames = memoryview((struct.pack(">i", len(frame)) + frame) * count)
        client.socket.setblocking(False)
        while frames and writable(client.socket, 1):
            frames = frames[client.socket.send(frames) :]
        assert frames, "it has taken all of them"
        assert workers.ask(0, "stats")["mail_out"] <= bytes_max // 256 + parts
        workers.go(1)
        client.socket.settimeout(30)
        rest = threading.Thread(target=client.send, args=[frames])
        rest.start()
        for _ in range(count):
            assert (
                client.receive(messages.ProduceResponse, 9).responses[0].partition_responses[0].error_code
                == 0
            )
        rest.join()
        assert [workers.ask(1, "end_offset", "t", index) for index in (0, parts - 1)] == [count, count]
        workers.ask_until(0, "stats", want=lambda stats: stats["buffered_bytes"] == 0)
    finally:
        workers.close()
