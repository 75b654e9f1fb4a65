"""Requests of this broker to the active controller.

    leader      looked up before each try: the metadata client knows it from its Fetches
    retry       after NOT_CONTROLLER, a broken connection, or while there is no leader, until the timeout
                (Kafka: NodeToControllerChannelManager)
    move        a request that waits for one node is sent to another as soon as that one leads. The first may
                be a machine without power, whose connections only a time-out ends: heartbeats must not wait
                for it, or the new leader fences this broker

So a request may be executed twice, as in Kafka: registration, heartbeats and forwarded requests tolerate it.

Use: server/broker_lifecycle; tests/integration/test_metadata_member.py."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import errors, messages
from kafkad.raft.observer import Leader

CONNECT_S: Final = 10.0  # at most; Kafka: socket.connection.setup.timeout.ms


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
        self._newest: Leader | None = None  # as any request knows it
        self._connecting = asyncio.Lock()

    async def ask(self, request: Any, *, timeout_s: float | None = None, lowest: int = 0) -> Any:
        """Return the active controller's answer. Raises Unreachable if there is none in time; KafkaError
        UNSUPPORTED_VERSION."""
        clock = asyncio.get_running_loop().time
        end = clock() + (self._timeout_s if timeout_s is None else timeout_s)
        reason, refused = "no controller is known to lead", False
        while clock() < end:
            leader = self._leader()
            if leader is not None:
                self._newest = leader
                try:
                    response = await self._ask_while_it_leads(leader, request, end, lowest)
                except Unreachable as trouble:
                    if not refused or clock() < end:  # at the very end, no node has time to answer
                        reason = str(trouble)
                else:
                    if not _is_elsewhere(response):
                        return response
                    reason = f"{leader.host}:{leader.port} is not the active controller"
                    refused = True
            await asyncio.sleep(min(self._backoff_s, max(end - clock(), 0)))
        raise Unreachable(f"the controller cannot be asked: {reason}")

    async def _ask_while_it_leads(self, leader: Leader, request: Any, end: float, lowest: int) -> Any:
        """Return the answer of this leader. Raises Unreachable at `end`, or when another node leads."""
        clock = asyncio.get_running_loop().time

        async def exchange() -> Any:
            channel = await self._channel_to(leader, end - clock())
            return await channel.ask(request, timeout_s=max(end - clock(), 0), lowest=lowest)

        at = f"{leader.host}:{leader.port}"
        exchanging = asyncio.ensure_future(exchange())
        exchanging.add_done_callback(_retrieve)
        try:
            while clock() < end:
                await asyncio.wait({exchanging}, timeout=min(self._backoff_s, max(end - clock(), 0)))
                if exchanging.done():
                    return exchanging.result()
                now = self._leader()
                if now is not None and now != leader:
                    self._newest = now
                    raise Unreachable(f"{at} has not answered, and leads no more")
            raise Unreachable(f"{at} has not answered in time")
        finally:
            exchanging.cancel()

    async def _channel_to(self, leader: Leader, timeout_s: float) -> Channel:
        async with self._connecting:
            if leader != self._newest:
                raise Unreachable(f"{leader.host}:{leader.port} leads no more")
            if self._channel is not None and (self._at != leader or self._channel.closed):
                self.close()
            if self._channel is None:
                at = (leader.host, leader.port)
                timeout_s = min(timeout_s, CONNECT_S)
                self._channel = await self._connect(*at, self._client_id, timeout_s=timeout_s)
                self._at = leader
            return self._channel

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None


def _is_elsewhere(response: Any) -> bool:
    """Return whether the node that has answered is not the active controller. CreateTopics says so of each
    topic."""
    told = response.topics if isinstance(response, messages.CreateTopicsResponse) else [response]
    return any(getattr(each, "error_code", 0) == errors.NOT_CONTROLLER for each in told)


def _retrieve(exchanging: "asyncio.Future[Any]") -> None:
    """The exchange may fail when nobody waits for it any more."""
    if not exchanging.cancelled():
        exchanging.exception()
