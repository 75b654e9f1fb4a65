"""The certificates of a worker's listeners, and their replacement while it serves (KIP-226).

A listener's stores are read at the start. They are read again when the dynamic configuration of this broker
changes, if one of the listener's keys has another value, or a file of its stores was written meanwhile. So an
AlterConfigs that sets the same location again loads a new certificate in the same file. Existing connections
keep their certificate; new ones get the new one.

A change is checked before it is written to the metadata log (`check`). If it cannot be used when it is
applied, because the file has changed again, that is logged, and the previous certificate stays.

A start with an expired certificate is refused for the listener between brokers, as in Kafka, and logged for
the other ones.

A controller's listener (`ControllerContext`) has no configuration that changes: it looks at its files at each
new connection."""

import logging
import os
import ssl
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any

from kafkad._native.serving.tls import TlsContext
from kafkad.config.broker import BrokerConfig, base_key
from kafkad.config.definition import ConfigError
from kafkad.config.dynamic import SECURITY_KEYS
from kafkad.security.certificates import subject_of
from kafkad.security.tls import (
    TlsListener,
    check_successor,
    controller_listener,
    own_values,
    store_paths,
    tls_endpoints,
    tls_listener,
    validity_trouble,
)
from kafkad.security.tls_trust import Stores

logger = logging.getLogger("kafkad")

Seen = tuple[tuple[Any, ...], tuple[Any, ...]]  # values of the keys, status of the files


class TlsListeners:
    """`secure(name, context)` gives a listener of this worker a context; `read` returns a file's bytes or
    raises OSError."""

    def __init__(
        self,
        config: BrokerConfig,
        secure: Callable[[str, TlsContext], None],
        read: Callable[[str], bytes],
        *,
        refuses_expired: bool = True,
        complains: bool = True,
    ) -> None:
        """Load all stores. Raises ConfigError. `refuses_expired`: a worker that takes the place of a dead one
        does not, because the others serve with the same certificate. `complains`: log an expired one, if it
        is not refused."""
        self._secure = secure
        self._read = read
        self._seen: dict[str, Seen] = {}
        self._used: dict[str, TlsListener] = {}
        for endpoint in tls_endpoints(config):
            name, seen = endpoint.listener, self._look(config, endpoint.listener)
            try:
                first = tls_listener(config, endpoint, read)
                check_validity(config, name, first.stores, refuses_expired, complains)
            except ConfigError as wrong:
                if not config.dynamic_broker:
                    raise
                logger.error("listener %s goes back to its static configuration: %s", name, wrong)
                first = tls_listener(BrokerConfig(config.static), endpoint, read)
                check_validity(config, name, first.stores, refuses_expired, complains)
            self._use(name, seen, first)

    def check(self, config: BrokerConfig, names: Collection[str]) -> None:
        """Raise ConfigError if a listener cannot serve with `config`, which differs in the keys `names`."""
        named = {name for name in names if base_key(name) in SECURITY_KEYS}
        for endpoint in tls_endpoints(config):
            prefix = f"listener.name.{endpoint.listener.lower()}."
            values = own_values(config, endpoint.listener)
            if values == self._seen[endpoint.listener][0] and not any(it.startswith(prefix) for it in named):
                continue
            after = tls_listener(config, endpoint, self._read)
            check_successor(config, endpoint.listener, self._used[endpoint.listener], after)

    def adopt(self, config: BrokerConfig) -> None:
        """Load the changed stores of `config`. A wrong store never raises."""
        for endpoint in tls_endpoints(config):
            name = endpoint.listener
            seen = self._look(config, name)
            if seen == self._seen[name]:
                continue
            try:
                after = tls_listener(config, endpoint, self._read)
                check_successor(config, name, self._used[name], after)
            except ConfigError as wrong:
                logger.error("listener %s keeps the certificate that it has: %s", name, wrong)
                self._seen[name] = seen  # not tried again until something changes
            else:
                self._use(name, seen, after)
                logger.info("listener %s has a new certificate: %s", name, subject_of(after.certificate))

    def _use(self, name: str, seen: Seen, listener: TlsListener) -> None:
        self._seen[name], self._used[name] = seen, listener
        self._secure(name, listener.context)

    def _look(self, config: BrokerConfig, name: str) -> Seen:
        """Call before the files are read: a file that is written meanwhile is read again."""
        return own_values(config, name), tuple(map(stamp_of, store_paths(config, name)))


def check_validity(
    config: Any, listener: str, stores: Stores, refuses_expired: bool, complains: bool = True
) -> None:
    """Log a certificate that is not valid now. Raise ConfigError instead for the listener between brokers, if
    `refuses_expired`. (SslFactory.configure, with keystoreVerifiableUsingTruststore.)"""
    trouble = validity_trouble(stores, datetime.now(UTC))
    if trouble is None:
        return
    if refuses_expired and listener == config.inter_broker_listener_name:
        raise ConfigError(f"listener {listener} cannot be served, other brokers would refuse it: {trouble}")
    if complains:
        logger.error("clients will refuse listener %s: %s", listener, trouble)


class ControllerContext(ssl.SSLContext):
    """What Python's ssl makes connections of a controller's listener by: each by the stores as they are."""

    _config: Any
    _endpoint: Any
    _read: Callable[[str], bytes]
    _seen: tuple[Any, ...]
    _used: TlsListener

    @classmethod
    def of(cls, config: Any, endpoint: Any, read: Callable[[str], bytes]) -> "ControllerContext":
        """Raises ConfigError."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._config, context._endpoint, context._read = config, endpoint, read
        context._seen = context._look()
        context._used = controller_listener(config, endpoint, read)
        check_validity(config, endpoint.listener, context._used.stores, refuses_expired=False)
        return context

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        self._renew()
        found: ssl.SSLObject = self._used.context.wrap_bio(*arguments, **more)
        return found

    def _look(self) -> tuple[Any, ...]:
        return tuple(map(stamp_of, store_paths(self._config, self._endpoint.listener)))

    def _renew(self) -> None:
        seen, name = self._look(), self._endpoint.listener
        if seen == self._seen:
            return
        self._seen = seen  # what is wrong is not tried again until something changes
        try:
            after = controller_listener(self._config, self._endpoint, self._read)
            check_successor(self._config, name, self._used, after)
        except ConfigError as wrong:
            logger.error("listener %s keeps the certificate that it has: %s", name, wrong)
        else:
            self._used = after
            logger.info("listener %s has a new certificate: %s", name, subject_of(after.certificate))


def stamp_of(path: str) -> tuple[int, ...] | None:
    """By what a changed file is known; None: it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
