"""A listener of asyncio (of controllers) without descriptors: its process goes on, and accepts later."""

import asyncio
import os
import resource
import socket

import pytest

from kafkad.net.frame_server import FrameServer
from kafkad.server import lifecycle

SECONDS = 10


class Ended(SystemExit):
    pass


@pytest.fixture
def loop(monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(lifecycle.timeslice, "shorten", lambda _: None)
    monkeypatch.setattr(lifecycle.os, "_exit", end)
    loop, _ = lifecycle.new_loop()
    yield loop
    loop.close()
    asyncio.set_event_loop(None)


def lowest_free():
    fd = os.dup(0)
    os.close(fd)
    return fd


def test_a_connection_is_served_when_there_is_a_descriptor_again(loop, caplog):
    async def serve(_connection, frame):
        return frame

    listening = socket.create_server(("127.0.0.1", 0))
    server = FrameServer(serve, frame_size_max=100)
    loop.run_until_complete(server.open(listening, "CONTROLLER"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listening.getsockname(), SECONDS) as client:
        client.sendall(b"\0\0\0\x08eightlen")
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), limits[1]))
        try:
            loop.run_until_complete(asyncio.sleep(0.2))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caplog.text.count("Too many open files; new connections wait in the backlog") == 1
        client.setblocking(False)
        answer = loop.run_until_complete(asyncio.wait_for(loop.sock_recv(client, 12), SECONDS))
        assert answer == b"\0\0\0\x08eightlen"
    loop.run_until_complete(server.close())


def test_any_other_exception_of_a_callback_ends_the_process(loop):
    def wrong():
        raise OSError(24, "Too many open files")

    loop.call_soon(wrong)
    with pytest.raises(Ended):
        loop.run_forever()
