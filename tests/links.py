"""Links between nodes that a test can cut, also in one direction.

Each node is known to the others by an address of `Links.to`. A connection there is passed on to the node; the
client id of its first request (`broker-2-fetcher-0`, `kafkad-2`) says from which node it comes. A cut link
loses nothing: its bytes wait until it is whole again, as on a network that drops packets."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterable

SOURCE = re.compile(rb"(broker|kafkad)-(\d+)")
REQUESTS, ANSWERS = "requests", "answers"
Way = tuple[int, int, str]  # from which node, to which node, requests or answers


class Links:
    """`with Links() as links`: a thread that passes on bytes."""

    def __enter__(self) -> Links:
        self.cut_ways: frozenset[Way] = frozenset()
        self.used: set[tuple[bytes, int, int]] = set()  # first word of the client id, from, to
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def to(self, node: int, port: int) -> int:
        """The port of a new address that leads to the node's `port`."""
        return self._run(self._listen(node, port))

    def cut(self, ways: Iterable[Way]) -> None:
        """Nothing goes these ways until the next call."""
        self._run(self._cut(frozenset(ways)))

    def mend(self) -> None:
        self.cut(())

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _listen(self, node: int, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._pumps.add(task)
            try:
                await self._serve(node, port, reader, writer)
            finally:
                self._pumps.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def _cut(self, ways: frozenset[Way]) -> None:
        self.cut_ways = ways
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, node, port, reader, writer) -> None:
        """Until one end closes, then both are closed."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            size = await reader.readexactly(4)
            first = size + await reader.readexactly(int.from_bytes(size, "big"))
            named = SOURCE.search(first[:80])
            source = int(named[2]) if named else -1
            if named:
                self.used.add((named[1], source, node))
            onward, back = await asyncio.open_connection("127.0.0.1", port)
            try:
                ways = {
                    asyncio.create_task(self._pass((source, node, REQUESTS), reader, back, first)),
                    asyncio.create_task(self._pass((source, node, ANSWERS), onward, writer, b"")),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                back.transport.abort()

    async def _pass(self, way: Way, reader, writer, data: bytes) -> None:
        data = data or await reader.read(1 << 16)
        while data:
            while way in self.cut_ways:
                await self._changed.wait()
            writer.write(data)
            await writer.drain()
            data = await reader.read(1 << 16)
