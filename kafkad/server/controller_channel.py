"""Requests of this broker to the active controller.

    leader      looked up before each try: the metadata client knows it from its Fetches
    retry       after NOT_CONTROLLER, a broken connection, or while there is no leader, until the timeout
                (Kafka: NodeToControllerChannelManager)

So a request may be executed twice, as in Kafka: registration, heartbeats and forwarded requests tolerate it.

Use: server/broker_lifecycle; tests/integration/test_metadata_member.py."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import errors
from kafkad.raft.observer import Leader


class Ask(Protocol):
    """ControllerChannel.ask, or the same by way of another worker (member_feed.ask_by_worker_0)."""

    def __call__(
        self, request: Any, *, timeout_s: float | None = None, lowest: int = 0
    ) -> Awaitable[Any]: ...


class ControllerChannel:
    def __init__(
        self,
        leader: Callable[[], Leader | None],
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        connect: Callable[..., Any] = Channel.connect,
    ) -> None:
        self._leader = leader
        self._client_id = client_id
        self._timeout_s = request_timeout_ms / 1000
        self._backoff_s = retry_backoff_ms / 1000
        self._connect = connect
        self._channel: Channel | None = None
        self._at: Leader | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, request: Any, *, timeout_s: float | None = None, lowest: int = 0) -> Any:
        """Return the active controller's answer. Raises Unreachable if there is none in time; KafkaError
        UNSUPPORTED_VERSION."""
        clock = asyncio.get_running_loop().time
        end = clock() + (self._timeout_s if timeout_s is None else timeout_s)
        reason, refused = "no controller is known to lead", False
        while (left := end - clock()) > 0:
            leader = self._leader()
            if leader is not None:
                try:
                    channel = await self._channel_to(leader, left)
                    response = await channel.ask(request, timeout_s=left, lowest=lowest)
                except Unreachable as trouble:
                    if not refused or clock() < end:  # at the very end, no node has time to answer
                        reason = str(trouble)
                else:
                    if getattr(response, "error_code", 0) != errors.NOT_CONTROLLER:
                        return response
                    reason = f"{leader.host}:{leader.port} is not the active controller"
                    refused = True
            await asyncio.sleep(min(self._backoff_s, max(end - clock(), 0)))
        raise Unreachable(f"the controller cannot be asked: {reason}")

    async def _channel_to(self, leader: Leader, timeout_s: float) -> Channel:
        async with self._connecting:
            if self._channel is not None and (self._at != leader or self._channel.closed):
                self.close()
            if self._channel is None:
                at = (leader.host, leader.port)
                self._channel = await self._connect(*at, self._client_id, timeout_s=timeout_s)
                self._at = leader
            return self._channel

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
