"""How many connections per second are accepted: by the broker, by a listener, and from an address (KIP-612).

    max.connection.creation.rate                        of the broker
    listener.name.<listener>.max.connection.creation.rate
    connection_creation_rate of `ip` entities           client quotas, of one address or the default

Over a rate of the broker or of a listener, the listener pauses: new connections wait in its backlog. As in
Kafka, the broker's rate does not apply to the inter-broker listener if there is another listener. A
connection over the rate of its address is accepted, held unserved for the time it would have to wait, and
closed.

The acceptor (`_native/serving/acceptor`) asks only while there is a limit. New connections are counted in the
table that all workers share, with the windows of client quotas (quota.window.num, .size.seconds). No wait is
longer than one window, so a rate of 0 allows one connection per window, as in Kafka."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from kafkad._native.serving.acceptor import packed
from kafkad._native.shared.quota_table import QuotaTable
from kafkad.config.broker import BrokerConfig
from kafkad.quota import CONNECTION_CREATION_RATE as QUOTA

logger = logging.getLogger("kafkad")

KEY: Final = "max.connection.creation.rate"
UNLIMITED: Final = 2**31 - 1


def between_brokers(config: BrokerConfig) -> str | None:
    """Return the inter-broker listener, to which the limits of the broker do not apply; None: it is the only
    listener."""
    return config.inter_broker_listener_name if len(config.broker_endpoints) > 1 else None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


class ConnectionRates:
    """`changed(rates)` is called, with None if no limit is left."""

    def __init__(
        self,
        table: QuotaTable,
        changed: Callable[["ConnectionRates | None"], None],
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._table = table
        self._changed = changed
        self._now_ms = now_ms
        self._broker = UNLIMITED
        self._listeners: dict[str, int] = {}
        self._protected: str | None = None
        self._hosts: dict[bytes, float] = {}
        self._host_default: float = UNLIMITED

    # -- limits

    def adopt(self, config: BrokerConfig) -> None:
        """Take the limits of a BrokerConfig."""
        names = [endpoint.listener for endpoint in config.broker_endpoints]
        limits = {name: config.for_listener(name, KEY) for name in names}
        before = self._broker, self._listeners
        self._broker, self._listeners = config.max_connection_creation_rate, limits
        self._protected = between_brokers(config)
        if before != (self._broker, self._listeners):
            self.tell()

    def set_host(self, address: str | None, limit: float | None) -> None:
        """Set the limit of one address, or the default (None). No limit: remove it. `tell` applies it."""
        if address is None:
            self._host_default = UNLIMITED if limit is None else limit
            return
        try:
            host = packed(address)
        except ValueError:  # JVM Kafka accepts names, too; a look-up would block the loop
            logger.warning("%s of %s is not enforced: it is not a numeric address", QUOTA, address)
            return
        if limit is None:
            self._hosts.pop(host, None)
        else:
            self._hosts[host] = limit

    def tell(self) -> None:
        limits = [self._broker, self._host_default, *self._listeners.values(), *self._hosts.values()]
        self._changed(self if any(limit < UNLIMITED for limit in limits) else None)

    # -- called by the acceptor

    def enter(self, listener: str) -> int:
        """Count one connection of a listener. If not 0, it is not counted, and waits that many
        milliseconds."""
        places = self._places(listener)
        waits = [self._record(place, 1, limit) for place, limit in places.items()]
        if any(waits):
            self.leave(listener)
        return max(waits, default=0)

    def leave(self, listener: str) -> None:
        """Undo `enter`: no connection came, or it was refused."""
        for place, limit in self._places(listener).items():
            self._record(place, -1, limit)

    def hold(self, host: bytes) -> int:
        """Count a connection from an address. If not 0, hold it for that many milliseconds, then close it."""
        limit = self._hosts.get(host, self._host_default)
        if limit >= UNLIMITED:
            return 0
        wait_ms = self._record(b"ip" + host, 1, limit)
        if wait_ms:
            self._record(b"ip" + host, -1, limit)
        return wait_ms

    def _places(self, listener: str) -> Mapping[bytes, float]:
        """Return where a connection of a listener is counted, with the limit of each."""
        places: dict[bytes, float] = {}
        if self._broker < UNLIMITED and listener != self._protected:
            places[b"broker"] = self._broker
        if (limit := self._listeners.get(listener, UNLIMITED)) < UNLIMITED:
            places[b"listener" + listener.encode()] = limit
        return places

    def _record(self, place: bytes, amount: int, limit: float) -> int:
        table, now_ms = self._table, self._now_ms()
        digest = hashlib.blake2b(b"connections\0" + place, digest_size=8, key=table.secret).digest()
        row = table.claim(int.from_bytes(digest, "little") | 2, now_ms)
        wait_ms = table.record(row, amount, max(limit, 1000 / table.window_ms), now_ms)
        return min(wait_ms, table.window_ms)
