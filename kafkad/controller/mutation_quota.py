"""controller_mutation_rate: how many partitions per second a client may create and delete (KIP-599).

Each user or client id has a bucket of tokens (kafkad/quota.py). It is refilled at the rate of the quota, up
to the tokens of `controller.quota.window.num` windows. A change may take more tokens than there are; then
later changes are refused until the debt is paid. From CreateTopics v6, DeleteTopics v5 and CreatePartitions
v3 on, a topic is refused while there is a debt (THROTTLING_QUOTA_EXCEEDED); clients of older versions only
get a pause. (ControllerMutationQuotaManager, TokenBucket.)

All changes pass the controller, so it has the buckets. At most BUCKETS_MAX are kept: a full one equals none,
and beyond that the clients share one."""

from collections.abc import Callable
from typing import Any, Final

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.quota import Kind

BUCKETS_MAX: Final = 16_384
SHARED: Final = 0
PAUSE_MS_MAX: Final = (1 << 31) - 1  # that a response can have
EXCEEDED: Final = "The throttling quota has been exceeded."
STRICT_FROM: Final = {19: 6, 20: 5, 37: 3}  # API key: version

Resolve = Callable[[int, str, str], tuple[int, float] | None]


class Bucket:
    """Tokens; below zero is a debt."""

    __slots__ = ("burst", "now_ms", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now_ms: int) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.now_ms = now_ms

    def refill(self, rate: float, burst: float, now_ms: int) -> None:
        self.rate, self.burst = rate, burst
        self.tokens = min(burst, self.tokens + rate * (now_ms - self.now_ms) / 1000)
        self.now_ms = now_ms

    def debt_ms(self) -> int:
        """Return how long it takes to pay the debt."""
        return round(min(-self.tokens / self.rate * 1000, PAUSE_MS_MAX)) if self.tokens < 0 else 0


class MutationQuotas:
    """`resolve` and `clock`: from Worker. `full_s`: a bucket holds the tokens of this many seconds."""

    def __init__(self, resolve: Resolve, clock: Any, full_s: float) -> None:
        self._resolve = resolve
        self._clock = clock
        self._full_s = full_s
        self._buckets: dict[int, Bucket] = {}

    def of(self, context: Any) -> "MutationQuota | None":
        """Return the quota of a request (RequestContext), or None."""
        if context is None or context.principal == "":  # what the broker asks for itself
            return None
        found = self._resolve(Kind.MUTATION, context.principal, context.client_id or "")
        if found is None:
            return None
        strict = context.version >= STRICT_FROM[context.api_key]
        return MutationQuota(self, *found, strict=strict)

    def bucket(self, key: int, rate: float) -> Bucket:
        """Return the bucket, refilled up to now."""
        now_ms = self._clock.monotonic_ms()
        burst = rate * self._full_s
        if key not in self._buckets and len(self._buckets) >= BUCKETS_MAX:
            self._drop_full(now_ms)
            if len(self._buckets) >= BUCKETS_MAX:
                key = SHARED
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(rate, burst, now_ms)
        bucket.refill(rate, burst, now_ms)
        return bucket

    def now_ms(self) -> int:
        return int(self._clock.monotonic_ms())

    def _drop_full(self, now_ms: int) -> None:
        for bucket in self._buckets.values():
            bucket.refill(bucket.rate, bucket.burst, now_ms)
        self._buckets = {key: each for key, each in self._buckets.items() if each.tokens < each.burst}


class MutationQuota:
    """The quota of one request."""

    def __init__(self, quotas: MutationQuotas, key: int, rate: float, *, strict: bool) -> None:
        self._quotas = quotas
        self._key = key
        self._rate = rate
        self._strict = strict
        self._pause_ms = 0
        self._paused_ms = 0  # when that was

    def take(self, partitions: int) -> None:
        """Take tokens before `partitions` are created or deleted. Raises
        KafkaError(THROTTLING_QUOTA_EXCEEDED)."""
        bucket = self._quotas.bucket(self._key, self._rate)
        if self._strict and bucket.tokens < 0:
            self._pause(bucket)
            raise KafkaError(errors.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        bucket.tokens = min(bucket.burst, bucket.tokens - partitions)
        if not self._strict and bucket.tokens < 0:
            self._pause(bucket)

    def _pause(self, bucket: Bucket) -> None:
        self._pause_ms = bucket.debt_ms()
        self._paused_ms = self._quotas.now_ms()

    def throttle_ms(self) -> int:
        """Return for how long the client must pause from now on."""
        return min(max(0, self._pause_ms - (self._quotas.now_ms() - self._paused_ms)), PAUSE_MS_MAX)
