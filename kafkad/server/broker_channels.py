"""Connections of this broker to the other brokers, on the inter-broker listener.

    BrokerChannels    one connection a broker, made when it is first needed; closed when that broker is
                      fenced, unregistered, or registered anew: whoever waits on it hears at once
    BrokerQueues      what is to be asked of each broker; one request at a time is on its way to each, and
                      takes all that has gathered meanwhile (as Kafka's InterBrokerSendThread)

After a failed try to connect, nothing is tried again for 50 ms, 100 ms, ... 1 s; who asks in between is told
at once that the broker is unreachable.

What TLS and SASL ask for is done by `connect` (server/node_links)."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Channel, Unreachable

logger = logging.getLogger(__name__)

RETRY_MS: Final = 50
RETRY_MS_MAX: Final = 1_000
CONNECT_S: Final = 10.0  # at most; Kafka: socket.connection.setup.timeout.ms


class Address(NamedTuple):
    host: str
    port: int
    epoch: int  # of the broker's registration: another life of it is another node


class Link:
    """One broker's connection, and what became of the tries to make it."""

    __slots__ = ("at", "channel", "connecting", "failures", "retry_at")

    def __init__(self, at: Address) -> None:
        self.at = at
        self.channel: Channel | None = None
        self.connecting = asyncio.Lock()
        self.failures = 0
        self.retry_at = 0.0

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class BrokerChannels:
    def __init__(
        self,
        listener: str,
        image: Callable[[], MetadataImage],
        *,
        client_id: str,
        connect: Callable[..., Awaitable[Any]] = Channel.connect,
    ) -> None:
        """`listener`: inter.broker.listener.name."""
        self._listener = listener
        self._image = image
        self._client_id = client_id
        self._connect = connect
        self._links: dict[int, Link] = {}

    async def ask(self, broker_id: int, request: Any, *, timeout_s: float, lowest: int = 0) -> Any:
        """The broker's answer. Raises Unreachable, and KafkaError (UNSUPPORTED_VERSION)."""
        channel = await self.connect(broker_id, timeout_s=timeout_s)
        return await channel.ask(request, timeout_s=timeout_s, lowest=lowest)

    async def connect(self, broker_id: int, *, timeout_s: float) -> Any:
        """The connection to a broker, made if there is none. Raises Unreachable."""
        at = self._address(broker_id)
        link = self._links.get(broker_id)
        if link is None or link.at != at:
            if link is not None:
                link.close()
            link = self._links[broker_id] = Link(at)
        return await self._channel(link, timeout_s)

    def _address(self, broker_id: int) -> Address:
        broker = self._image().brokers.get(broker_id)
        if broker is None or broker.fenced:
            raise Unreachable(f"broker {broker_id} is {'unknown' if broker is None else 'fenced'}")
        endpoint = broker.listeners.get(self._listener)
        if endpoint is None:
            raise Unreachable(f"broker {broker_id} has no listener {self._listener}")
        return Address(endpoint.host, endpoint.port, broker.epoch)

    async def _channel(self, link: Link, timeout_s: float) -> Any:
        async with link.connecting:
            if link.channel is not None and not link.channel.closed:
                return link.channel
            link.channel = None
            clock = asyncio.get_running_loop().time
            if clock() < link.retry_at:
                raise Unreachable(f"{link.at.host}:{link.at.port} could not be reached a moment ago")
            try:
                channel = await self._connect(
                    link.at.host, link.at.port, self._client_id, timeout_s=min(timeout_s, CONNECT_S)
                )
            except Unreachable:
                delay_ms = min(RETRY_MS << min(link.failures, 10), RETRY_MS_MAX)
                link.failures += 1
                link.retry_at = clock() + delay_ms / 1000
                raise
            link.failures = 0
            if link not in self._links.values():  # given up meanwhile
                channel.close()
                raise Unreachable(f"{link.at.host}:{link.at.port} is another broker's by now")
            link.channel = channel
            return channel

    def follow_brokers(self) -> None:
        """Brokers have changed in the image: give up the connections to those that are not there any more."""
        brokers = self._image().brokers
        for broker_id, link in list(self._links.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.fenced or broker.epoch != link.at.epoch:
                del self._links[broker_id]
                link.close()

    def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()


Item = TypeVar("Item")


class BrokerQueues(Generic[Item]):
    """`send(broker id, queue)` takes what it sends from the left of the queue, at least one item, and returns
    when that is answered."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[int, deque[Item]], Awaitable[None]],
        fatal: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._send = send
        self._fatal = fatal
        self._queues: dict[int, deque[Item]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    def put(self, broker_id: int, item: Item) -> None:
        self._queues.setdefault(broker_id, deque()).append(item)
        if broker_id not in self._senders:
            sender = self._loop.create_task(self._send_all(broker_id))
            self._senders[broker_id] = sender
            sender.add_done_callback(self._ended)

    async def _send_all(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        while queue:
            await self._send(broker_id, queue)
        del self._senders[broker_id]

    def _ended(self, sender: "asyncio.Task[None]") -> None:
        if not sender.cancelled() and (trouble := sender.exception()) is not None:
            self._fatal(trouble)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.cancel()
        self._senders.clear()
        self._queues.clear()


class Complaints:
    """One line of the log when a broker stops answering, one when it answers again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._silent: set[int] = set()

    def failed(self, broker_id: int, trouble: BaseException) -> None:
        if broker_id not in self._silent:
            self._silent.add(broker_id)
            logger.warning("broker %d does not answer for %s: %s", broker_id, self._what, trouble)

    def answered(self, broker_id: int) -> None:
        if broker_id in self._silent:
            self._silent.discard(broker_id)
            logger.info("broker %d answers again for %s", broker_id, self._what)
