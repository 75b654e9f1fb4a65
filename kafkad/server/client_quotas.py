"""A worker's view of the client quotas: it follows the metadata, and resolves the limits of each client for
the data plane (`_native/serving/quota`, which counts in a table that all workers share).

A change of many quotas is applied in steps. Clients are resolved again when all of it has been applied, so
between two steps every client keeps its old quota."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafkad._native.shared.quota_table import QuotaTable
from kafkad.config.broker import BrokerConfig
from kafkad.quota import CONNECTION_CREATION_RATE, COUNTED, KINDS, ClientQuotas, Kind
from kafkad.server.connection_rates import ConnectionRates
from kafkad.server.turns import Steps

logger = logging.getLogger("kafkad")

QUOTAS_A_STEP: Final = 100
TELL_S: Final = 60.0


def quota_table(config: BrokerConfig, workers: int) -> QuotaTable:
    """Create the table for `workers` of one broker, before the fork. `config` is BrokerConfig."""
    return QuotaTable(workers, config.quota_window_num, config.quota_window_size_seconds)


class FollowedQuotas:
    """`changed(kinds)` is called after a change of quotas: a bit for each kind that has any. `rates` has the
    limits of addresses."""

    def __init__(
        self, table: QuotaTable, changed: Callable[[int], None], rates: ConnectionRates | None = None
    ) -> None:
        self.table = table
        self.rates = rates
        self.quotas = ClientQuotas()
        self._changed = changed
        self._told_s = -TELL_S

    def follow(self, keys: Iterable[Any], after: Mapping[Any, Any]) -> Steps:
        """Apply the quotas of an image (`image.client_quotas`) for these of its keys."""
        kinds: set[Kind | None] = set()
        addresses = False
        for number, (entity, key) in enumerate(keys, 1):
            record = after.get((entity, key))
            limit = None if record is None else record.value
            if key == CONNECTION_CREATION_RATE and self.rates is not None:
                [(_, is_default, address)] = entity
                self.rates.set_host(None if is_default else address, limit)
                addresses = True
            kinds.add(self.quotas.set(entity, key, limit))
            if number % QUOTAS_A_STEP == 0:
                yield
        if addresses and self.rates is not None:
            self.rates.tell()
        if kinds - {None}:
            self._changed(sum(1 << kind for kind in COUNTED if self.quotas.has(kind)))

    def resolve(self, kind: int, principal: str, client_id: str) -> tuple[int, float] | None:
        """Return the key of the bucket in which a client counts, and its limit per second; None: no limit."""
        user = principal.partition(":")[2]
        bucket = self.quotas.bucket(Kind(kind), user, client_id)
        if bucket is None:
            return None
        self._look()
        text = "\0".join((str(kind), bucket.user, bucket.client_id)).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8, key=self.table.secret).digest()
        return int.from_bytes(digest, "little") | 2, bucket.limit

    def _look(self) -> None:
        if self.table.shared and time.monotonic() - self._told_s >= TELL_S:
            self._told_s = time.monotonic()
            logger.warning(
                "more than %d clients with a quota are active: those beyond share one bucket",
                self.table.row_count - 1,
            )


def is_enforced(key: str) -> bool:
    return key in KINDS or key == CONNECTION_CREATION_RATE
