"""The listener of the control plane, by itself."""

import asyncio
import socket

import pytest

from kafkad.net import frame_server
from kafkad.net.frame_server import PHASE_HANDSHAKE, PHASE_READY, FrameServer

SECONDS = 10


@pytest.mark.parametrize(
    ("phase", "limit"), [(PHASE_HANDSHAKE, "LOGIN_BYTES_MAX"), (PHASE_READY, "READ_BYTES_MAX")]
)
def test_frames_that_never_end_hold_bounded_memory(monkeypatch, phase, limit):
    """Each could hold the largest frame for as long as it sent a byte now and then."""
    monkeypatch.setattr(frame_server, limit, 1_000_000)

    async def story():
        async def serve(connection, frame):
            return frame

        server = FrameServer(serve, frame_size_max=1 << 20)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.open(listening, "CONTROLLER", phase=phase)
        address = listening.getsockname()[:2]
        made = [await asyncio.open_connection(*address) for _ in range(7)]
        (honest, says), *others = made
        says.write((8).to_bytes(4, "big") + b"half")
        for number, (_, writer) in enumerate(others):
            writer.write((400_000 + number).to_bytes(4, "big") + bytes(300_000))
            await writer.drain()
            await asyncio.sleep(0.01)
        closed = 0
        for reader, _ in others:
            try:
                closed += await asyncio.wait_for(reader.read(1), 0.2) == b""
            except ConnectionResetError:
                closed += 1
            except TimeoutError:
                pass
        assert closed == 4
        says.write(b"done")
        assert await honest.readexactly(12) == b"\0\0\0\x08halfdone"
        for _, writer in made:
            writer.close()
        await server.close()

    asyncio.run(asyncio.wait_for(story(), SECONDS))
