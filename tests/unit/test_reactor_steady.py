"""The steady state makes no Python objects, and leaks none of C's either."""

import gc
import resource
import socket
import struct
import sys

import pytest
from reactor_world import Gate, World, batch, fetch, produce

from kafkad.protocol import codec

REQUESTS = 100_000
PIPELINE = 100


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def frame(message, version):
    data = codec.encode_request(message, version, 1, "load")
    return struct.pack(">i", len(data)) + data


def exchange(world, client, requests, answers, buffer):
    """Sends the pipeline and takes in as many bytes of answers as it is known to give."""
    client.send(requests)
    left = answers
    while left:
        world.reactor.poll()
        try:
            left -= client.socket.recv_into(buffer)
        except BlockingIOError:
            continue
    assert left == 0


def answer_size(world, client, requests):
    client.send(requests)
    size = sum(4 + len(client.receive_frame()) for _ in range(PIPELINE))
    assert client.received == b""
    return size


@pytest.mark.parametrize("flushed", [True, False])
def test_allocated_blocks_stay_flat_over_a_load_of_produces_and_fetches(world, flushed):
    partition = world.partition("t", follows_end=flushed)
    client = world.connect()
    buffer = bytearray(1 << 20)
    appends = frame(produce("t", {0: batch(1, 100)}), 9) * (PIPELINE if flushed else 1)
    reads = frame(fetch([("t", 0, 0, 2000)], max_bytes=2000), 12) * PIPELINE
    for _ in range(20):  # more than a Fetch takes, so that its answer always has the same size
        append_bytes = one_append(world, client, partition, appends)
    read_bytes = answer_size(world, client, reads)
    session = client.fetch([("t", 0, 0, 2000)], session_epoch=0).session_id
    assert session
    for warm in range(3):
        gc.collect()
        blocks = sys.getallocatedblocks()
        for _ in range(REQUESTS // PIPELINE // 2 if warm == 2 else 10):
            if flushed:
                exchange(world, client, appends, append_bytes, buffer)
            else:
                client.send(appends)
                world.reactor.poll()
                partition.advance_high_watermark(partition.end_offset)
                exchange(world, client, b"", append_bytes, buffer)
            exchange(world, client, reads, read_bytes, buffer)
        gc.collect()
        grown = sys.getallocatedblocks() - blocks
    assert grown < 50
    stats = world.reactor.stats()
    assert stats["requests"][0] + stats["requests"][1] > REQUESTS * (0.9 if flushed else 0.4)
    assert stats["dispatched"] == 0
    assert stats["buffered_bytes"] == 0


def pipeline_of(sequence, count):
    """Produces of one transaction, each with the next sequence."""
    return b"".join(
        frame(
            produce(
                "t",
                {
                    0: batch(
                        1,
                        100,
                        producer_id=7,
                        producer_epoch=0,
                        base_sequence=sequence + i,
                        transactional=True,
                    )
                },
                transactional_id="tx",
            ),
            9,
        )
        for i in range(count)
    )


def test_allocated_blocks_stay_flat_inside_of_a_transaction(world):
    """The coordinator is asked for the first batch; the others are as plain ones."""
    world.partition("t")
    gate = Gate()
    world.reactor.serve_transactions(gate)
    client = world.connect()
    buffer = bytearray(1 << 20)
    rounds, size = 30, 100
    pipelines = [pipeline_of(number * size, size) for number in range(2 * rounds)]
    client.send(pipelines[0])
    read = sum(4 + len(client.receive_frame()) for _ in range(size))
    grown = []
    for half in (pipelines[1:rounds], pipelines[rounds:]):
        gc.collect()
        blocks = sys.getallocatedblocks()
        for pipeline in half:
            exchange(world, client, pipeline, read, buffer)
        gc.collect()
        grown.append(sys.getallocatedblocks() - blocks)
    assert grown[1] < 50
    stats = world.reactor.stats()
    assert (stats["dispatched"], stats["python_appends"], stats["transaction_asks"]) == (0, 0, 1)
    assert stats["produce_slices"] == 1
    assert world.table.get("t", 0).end_offset == 2 * rounds * size


def test_questions_leave_nothing_behind(world):
    """Answered, refused, given up with the connection, or answered too late."""
    world.partition("t")
    gate = Gate()
    world.reactor.serve_transactions(gate)
    grown = []
    for number in range(3):
        gc.collect()
        blocks = sys.getallocatedblocks()
        for i in range(40):
            producer = number * 1000 + i
            data = batch(1, 100, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
            gate.refusals = {("t", 0): (48, "no")} if i % 3 == 0 else {}
            gate.holds = i % 3 == 1
            client = world.connect()
            client.send_produce("t", data, transactional_id="tx")
            if gate.holds:
                world.poll()
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.socket.close()
                world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
                gate.let_go()
            else:
                client.receive_frame()
                client.socket.close()
                world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
            gate.asked.clear()
            world.clients.clear()
        del client, data
        gc.collect()
        grown.append(sys.getallocatedblocks() - blocks)
    assert grown[2] < 50
    assert world.reactor.stats()["buffered_bytes"] == 0


def one_append(world, client, partition, appends):
    client.send(appends)
    world.poll()
    partition.advance_high_watermark(partition.end_offset)
    return sum(4 + len(client.receive_frame()) for _ in range(appends.count(b"load")))


def test_memory_of_connections_and_waiters_is_given_back(world):
    """Thousands of connections that come, wait and go leave nothing behind."""
    partition = world.partition("t", follows_end=False)
    wait = frame(fetch([("t", i, 0) for i in range(20)], max_wait_ms=60_000, session_epoch=0), 12)
    held = frame(produce("t", {0: batch(1, 10)}), 9)
    peak = 0
    for round_number in range(40):
        clients = [world.connect() for _ in range(25)]
        for number, client in enumerate(clients):
            client.send(held if number % 2 else wait)
            client.send(struct.pack(">i", 1_000_000) + bytes(10_000))
        world.poll()
        for client in clients:
            client.socket.close()
        world.clients.clear()
        partition.advance_high_watermark(partition.end_offset)
        world.poll_until(lambda: world.reactor.stats()["connections"] == 0)
        if round_number == 10:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert world.reactor.stats()["buffered_bytes"] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2000
