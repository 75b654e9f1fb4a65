"""What the reactor refuses because of its size."""

import mmap
import os
import struct

import pytest
from reactor_world import NOW_MS, Closed, World, batch, fetch

from kafkad._native.log.partition import Partition
from kafkad.protocol import messages

INT_MAX = (1 << 31) - 1


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path), fetch_max_bytes=INT_MAX)
    yield world
    world.close()


def test_an_answer_that_no_frame_can_hold_closes_its_connection_alone(world):
    huge = mmap.mmap(-1, 1 << 31)  # address space: nothing is there
    client, other = world.connect(), world.connect()
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, b"head", huge)
    with pytest.raises(Closed):
        client.ask(messages.ApiVersionsRequest(), 0)
    assert "more than 1 GiB" in world.lines[-1]
    world.answer = lambda connection, request_id, frame: connection.respond(request_id, frame[4:8], b"!")
    other.send_frame(b"\0\x12\0\0\0\0\0\7\xff\xff")
    assert other.receive_frame() == b"\0\0\0\7!"


def test_a_fetch_of_all_that_there_is_gets_what_a_frame_can_hold(world):
    size = (1 << 30) - 4096
    for index in range(3):
        directory = os.path.join(world.directory, f"t-{index}")
        os.makedirs(directory)
        with open(os.path.join(directory, f"{0:020d}.log"), "wb") as file:
            file.write(batch(1))
            file.truncate(size)  # the rest is a hole
        partition = Partition("t", index, None, directory)
        partition.add_segment(0, size, NOW_MS)
        partition.set_end(1)
        partition.lead(0)
        world.table.add(partition, "t")
    client = world.connect()
    client.send_request(fetch([("t", index, 0, INT_MAX) for index in range(3)], max_bytes=INT_MAX), 12)
    world.poll_until(lambda: client.pull() or len(client.received) >= 4)
    (answer_size,) = struct.unpack_from(">i", client.received)
    assert size < answer_size < (1 << 30) + 10_000
