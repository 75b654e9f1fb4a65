"""The keys by which signed tokens are checked, kept fresh without the loop waiting for anyone.

    start       the keys are fetched once; without them the start ends. A worker that was restarted begins
                without, refuses tokens, and tries again
    then        every sasl.oauthbearer.jwks.endpoint.refresh.ms; a file is looked at every two seconds
    a failure   is tried again, after retry.backoff.ms, twice that, ..., for retry.backoff.max.ms in all; the
                old keys stay
    a token     with a key id that is not there has the keys fetched soon, and is refused: once a minute for
                an id, and once a second in all

A fetch has a thread of its own, which the stop does not wait for. (RefreshingHttpsJwks, CachedFile.)"""

import logging
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kafkad.clock import Clock
from kafkad.config.definition import ConfigError
from kafkad.net.https import ANSWER_BYTES_MAX, Failed, ask
from kafkad.security.client_tls import tls_context
from kafkad.security.jwt import KeySet, shown
from kafkad.security.listeners import JWKS_URL, KeySource
from kafkad.server.scheduler import LoopScheduler

logger = logging.getLogger("kafkad")

FILE_LOOK_MS: Final = 2_000
MISSING_MAX: Final = 16  # key ids that were asked for in vain and are remembered
MISSING_MS: Final = 60_000
MISSING_CHARS_MAX: Final = 1_000
SOON_MS: Final = 1_000  # between two fetches that tokens cause


class OAuthKeys:
    """Of one provider. `current` is the newest key set; None: there is none yet. All methods run on the
    loop's thread."""

    def __init__(self, source: KeySource, scheduler: LoopScheduler, clock: Clock) -> None:
        self.current: KeySet | None = None
        self._source = source
        self._scheduler = scheduler
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._is_file = urlsplit(source.url).scheme.lower() == "file"
        self._stamp: tuple[int, int] | None = None  # of the file that was read
        self._missing: OrderedDict[str, int] = OrderedDict()  # when each may be asked for again
        self._soon_ms = 0
        self._fetching = False
        self._failing_since_ms = 0  # 0: the last fetch went well
        self._failures = 0
        self._timer: Any = None
        self._closed = False

    def begin(self, *, required: bool) -> None:
        """Fetch the keys now if they are `required`, else soon. Raises ConfigError."""
        if urlsplit(self._source.url).scheme.lower() == "https":
            try:
                self._context = tls_context(self._source.tls)
            except ValueError as trouble:
                raise ConfigError(f"Invalid value [hidden] for configuration {self._source.jaas}: {trouble}")
        if not required:
            self._fetch()
            return
        try:
            found = self._read()
        except (Failed, ValueError, OSError) as trouble:
            raise ConfigError(
                f"Invalid value {self._source.url} for configuration {JWKS_URL}: the keys cannot be had:"
                f" {trouble}"
            ) from None
        assert found is not None
        self._take(found)
        self._arm(self._period_ms())

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def missing(self, kid: str) -> None:
        """A token names a key that is not in `current`."""
        now_ms = self._clock.monotonic_ms()
        if len(kid) > MISSING_CHARS_MAX or now_ms < self._missing.get(kid, 0) or now_ms < self._soon_ms:
            return
        self._missing[kid] = now_ms + MISSING_MS
        self._missing.move_to_end(kid)
        while len(self._missing) > MISSING_MAX:
            self._missing.popitem(last=False)
        self._soon_ms = now_ms + SOON_MS
        self._fetch()

    def _period_ms(self) -> int:
        period_ms = max(self._source.refresh_ms, 1)
        return min(FILE_LOOK_MS, period_ms) if self._is_file else period_ms

    def _arm(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._scheduler.call_later(delay_ms, self._fetch)

    def _fetch(self) -> None:
        """Fetch the keys in a thread."""
        if self._fetching or self._closed:
            return
        self._fetching = True
        result: list[Any] = []

        def run() -> None:
            try:
                result.append(self._read())
            except Exception as trouble:
                result.append(trouble)
            self._scheduler.call_soon_threadsafe(lambda: self._fetched(result[0]))

        try:
            threading.Thread(target=run, name="kafkad-oauth-keys", daemon=True).start()
        except RuntimeError as refused:
            self._fetched(refused)

    def _fetched(self, found: Any) -> None:
        self._fetching = False
        if self._closed:
            return
        if isinstance(found, Exception):
            self._failed(found)
            return
        self._failing_since_ms = self._failures = 0
        if found is not None:
            self._take(found)
        self._arm(self._period_ms())

    def _failed(self, trouble: Exception) -> None:
        now_ms = self._clock.monotonic_ms()
        source = self._source
        if not self._failing_since_ms:
            self._failing_since_ms = now_ms
            logger.warning("the keys of %s cannot be had, the old ones stay: %s", source.url, trouble)
        delay_ms = source.backoff_ms << min(self._failures, 30)
        self._failures += 1
        if self.current is None:
            self._arm(max(min(delay_ms, source.backoff_max_ms), 1))
        elif now_ms + delay_ms - self._failing_since_ms <= source.backoff_max_ms:
            self._arm(max(delay_ms, 1))
        else:
            self._failing_since_ms = self._failures = 0
            self._arm(self._period_ms())

    def _take(self, found: KeySet) -> None:
        before = None if self.current is None else [key.kid for key in self.current.keys]
        self.current = found
        for key in found.keys:
            self._missing.pop(key.kid or "", None)
        after = [key.kid for key in found.keys]
        if before != after:
            names = ", ".join(map(shown, after)) or "none"
            logger.info("keys for tokens from %s: %s", self._source.url, names[:1_000])
            for sentence in found.left_out[:10]:
                logger.warning("of %s: %s", self._source.url, sentence)

    def _read(self) -> KeySet | None:
        """In a thread; None: the file is as it was. Raises Failed, ValueError, OSError."""
        if self._is_file:
            return self._read_file()
        answer = ask(self._source.url, self._context)
        if answer.status != 200:
            raise Failed(f"{self._source.url} answers {answer.status}")
        return KeySet.of(answer.body)

    def _read_file(self) -> KeySet | None:
        path = Path(self._source.path)
        found = path.stat()
        stamp = found.st_mtime_ns, found.st_size
        if stamp == self._stamp:
            return None
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
        if found.st_size > ANSWER_BYTES_MAX:
            raise ValueError(f"{path} is larger than {ANSWER_BYTES_MAX} bytes")
        with path.open("rb") as file:
            keys = KeySet.of(file.read(ANSWER_BYTES_MAX))
        self._stamp = stamp
        return keys


class OAuthKeySets:
    """The providers of a worker's listeners, each once."""

    def __init__(self, scheduler: LoopScheduler, clock: Clock) -> None:
        self._make: Callable[[KeySource], OAuthKeys] = lambda source: OAuthKeys(source, scheduler, clock)
        self._sets: dict[KeySource, OAuthKeys] = {}

    def of(self, source: KeySource) -> OAuthKeys:
        if source not in self._sets:
            self._sets[source] = self._make(source)
        return self._sets[source]

    def begin(self, *, required: bool) -> None:
        """Raises ConfigError."""
        for keys in self._sets.values():
            keys.begin(required=required)

    def close(self) -> None:
        for keys in self._sets.values():
            keys.close()
