"""What the reactor refuses because of its size."""

import mmap

import pytest
from reactor_world import Closed, World

from kafkad.protocol import messages


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
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
