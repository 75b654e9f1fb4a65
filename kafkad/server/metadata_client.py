"""Follows the metadata quorum: sends the observer's requests to the leader.

    leader known       Fetch or FetchSnapshot there, one at a time; the leader answers within 500 ms
    unknown or gone    the servers of controller.quorum.bootstrap.servers and controller.quorum.voters in
                       turn; each of them can name the leader
    no answer          back off, from retry_backoff_ms to a second

Committed batches are applied in steps; the loop serves others in between.

Use: tests/integration/test_metadata_member.py; the worker of a broker without a controller, once
process.roles=broker is served."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.messages import FetchRequest
from kafkad.raft.observer import OLDEST_FETCH, Leader, Observer

logger = logging.getLogger("kafkad")

BACKOFF_MS_MAX: Final = 1000

Address = tuple[str, int]


class MetadataClient:
    """Call `run`, and cancel it to stop. `observer.leader` is the active controller, for
    ControllerChannel."""

    def __init__(
        self,
        observer: Observer,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        request_timeout_ms: int = 2000,
        retry_backoff_ms: int = 20,
        connect: Callable[..., Any] = Channel.connect,
    ) -> None:
        assert bootstrap, "somebody must be asked first"
        self._observer = observer
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._timeout_s = request_timeout_ms / 1000
        self._backoff_ms_min = max(retry_backoff_ms, 1)
        self._connect = connect
        self._channel: Channel | None = None
        self._at: Address | None = None
        self._turn = count()
        self._changed = asyncio.Event()

    @property
    def leader(self) -> Leader | None:
        return self._observer.leader

    async def run(self) -> None:
        """Raise UnusableMetadata or KafkaError(KAFKA_STORAGE_ERROR) if the directory cannot be used."""
        backoff_ms = self._backoff_ms_min
        try:
            while True:
                if await self._ask_once():
                    backoff_ms = self._backoff_ms_min
                else:
                    self._observer.leader_is_gone()
                    await asyncio.sleep(backoff_ms / 1000)
                    backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)
                while self._observer.apply():
                    self._tell()
                    await asyncio.sleep(0)
                self._tell()
        finally:
            self._hang_up()

    async def until(self, condition: Callable[[Observer], bool]) -> None:
        """Wait until the condition holds for the observer."""
        while not condition(self._observer):
            self._changed.clear()
            await self._changed.wait()

    async def _ask_once(self) -> bool:
        leader = self._observer.leader
        if leader is not None:
            at = (leader.host, leader.port)
        else:
            at = self._bootstrap[next(self._turn) % len(self._bootstrap)]
        try:
            channel = await self._channel_to(at)
            request = self._observer.request()
            lowest = OLDEST_FETCH if type(request) is FetchRequest else 0
            response = await channel.ask(request, timeout_s=self._timeout_s, lowest=lowest)
        except (Unreachable, KafkaError) as trouble:
            logger.warning("the metadata quorum: %s", trouble)
            return False
        return self._observer.answered(response)

    async def _channel_to(self, at: Address) -> Channel:
        if self._channel is not None and (self._at != at or self._channel.closed):
            self._hang_up()
        if self._channel is None:
            self._channel = await self._connect(*at, self._client_id, timeout_s=self._timeout_s)
            self._at = at
        return self._channel

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _tell(self) -> None:
        self._changed.set()
