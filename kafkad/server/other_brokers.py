"""The connections to the other brokers of a cluster, one to each for each use: an answer about markers waits
until they are as durable as acks=all, and requests of a connection are answered in order.

gate       whether a producer may write here, asked of the transaction's coordinator (server/remote_gate)
markers    from the transactions that are coordinated here to partitions led there
           (server/remote_markers)
produces   that this broker hands over when it leaves (server/produce_handover)"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kafkad.api.context import Services, present
from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Channel
from kafkad.server.broker_channels import BrokerChannels
from kafkad.server.remote_gate import RemoteGate
from kafkad.server.remote_markers import RemoteMarkers


class OtherBrokers:
    """Made before anything is coordinated here: `services` has the way to others from then on."""

    def __init__(
        self,
        services: Services,
        loop: asyncio.AbstractEventLoop,
        fatal: Callable[[BaseException], object],
        connect: Callable[..., Awaitable[Any]] = Channel.connect,
    ) -> None:
        self._services = services
        config = services.config
        me = config.node_id
        listener = config.inter_broker_listener_name
        self._channels = [
            BrokerChannels(listener, self._image, client_id=f"kafkad-{me}", connect=connect) for _ in range(3)
        ]
        for_gate, for_markers, self.for_produces = self._channels
        self._markers = services.remote_markers = RemoteMarkers(
            me, for_markers, self._image, loop, fatal, timeout_s=self._timeout_s
        )
        self._gate = services.remote_gate = RemoteGate(
            me, for_gate, self._image, self._partition_for, loop, fatal, timeout_s=self._timeout_s
        )

    def _image(self) -> MetadataImage:
        return self._services.metadata.image

    def _timeout_s(self) -> float:
        return float(self._services.config.request_timeout_ms) / 1000

    def _partition_for(self, transactional_id: str) -> int:
        return present(self._services.transactions).partition_for(transactional_id)

    def follow_brokers(self) -> None:
        """Brokers have changed in the image."""
        for each in self._channels:
            each.follow_brokers()

    def close(self) -> None:
        self._gate.close()
        self._markers.close()
        for each in self._channels:
            each.close()
