"""Connections of this node to other nodes of its cluster, with TLS and SASL as configured for a listener.

    between brokers   inter.broker.listener.name, sasl.mechanism.inter.broker.protocol
    to controllers    the first of controller.listener.names, sasl.mechanism.controller.protocol

As in Kafka, this node's own configuration of the listener applies, not the other node's registration: the
protocol; the truststore, for the other node's certificate; the keystore, for our own certificate;
ssl.endpoint.identification.algorithm; and the login (server/node_logins). Stores are read again when their
files have changed.

    connect    opens a Channel, for the control plane
    secure     does the handshake and the login on the socket of a replica fetcher

Logins by GSSAPI and OAUTHBEARER may wait for a KDC or a provider of tokens: their steps run in threads, which
no stop waits for.

If a node refuses us, or we refuse it, the next tries come after 50 ms, 100 ms, ... 1 s; in between, callers
get the error at once. The log has one line at the first refusal, one when the reason changes, and one when it
is over.

(ChannelBuilders, SaslClientAuthenticator.)"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from kafkad._native.serving.outgoing_tls import OutgoingTls
from kafkad._native.serving.tls import TlsContext
from kafkad._native.serving.tls_keys import TlsError
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.replication.fetchers import Secured
from kafkad.security.client_sasl import SCRAM_HASHES, AuthenticationFailed, login
from kafkad.security.client_tls import VERSIONS, tls_context
from kafkad.security.tls import client_context, client_options, client_stores, own_values, store_paths
from kafkad.security.tls_trust import Stores, successor_refusal
from kafkad.server.node_logins import node_login
from kafkad.server.tls_listeners import stamp_of

logger = logging.getLogger("kafkad")

BETWEEN_BROKERS: Final = "sasl.mechanism.inter.broker.protocol"
TO_CONTROLLERS: Final = "sasl.mechanism.controller.protocol"
IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
RETRY_MS: Final = 50
RETRY_MS_MAX: Final = 1_000
FRAME_MAX: Final = 1 << 20  # of an answer during the login
AUTHENTICATE_VERSION: Final = 2


class Contexts(NamedTuple):
    """The TLS contexts for Python's ssl and for the native code. `seen`: the configuration and files they
    come from, and `stores` what was in them."""

    seen: Any
    stores: Stores | None
    python: ssl.SSLContext
    native: TlsContext
    checks_host: bool


class Refused:
    """A node that has refused us, or that we have refused."""

    __slots__ = ("failures", "reason", "told", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.reason = ""
        self.told = False  # a line is in the log
        self.until = 0.0


class NodeLinks:
    """`config()` returns the current BrokerConfig; `read` returns a file's bytes or raises OSError."""

    def __init__(
        self,
        config: Callable[[], Any],
        listener: str,
        key: str,
        mechanism: str,
        read: Callable[[str], bytes],
    ) -> None:
        """`key`: the configuration key of the mechanism. Raises ConfigError."""
        self._config = config
        self._listener = listener
        self._read = read
        self.protocol: str = config().listener_protocols.get(listener, listener)
        self._login = (
            node_login(config(), listener, key, mechanism) if self.protocol.startswith("SASL_") else None
        )
        self._contexts: Contexts | None = None
        self._refused: dict[tuple[str, int], Refused] = {}
        if self.protocol.endswith("SSL"):
            self._contexts_of_now()

    @property
    def is_plain(self) -> bool:
        return self.protocol == "PLAINTEXT"

    # -- the control plane -----------------------------------------------------------------------------------

    async def connect(self, host: str, port: int, client_id: str, *, timeout_s: float) -> Channel:
        """Open a Channel. Raises Unreachable."""
        if self.is_plain:
            return await Channel.connect(host, port, client_id, timeout_s=timeout_s)
        at = (host, port)
        self._wait_for(at)
        try:
            contexts = self._contexts_of_now()
            channel = await Channel.connect(
                host,
                port,
                client_id,
                timeout_s=timeout_s,
                context=None if contexts is None else contexts.python,
                authenticate=None if self._login is None else self._authenticate(host, port),
            )
        except ConfigError as wrong:
            raise Unreachable(self._refuse(at, str(wrong))) from wrong
        except Unreachable as trouble:
            cause = trouble.__cause__  # None: it closed the connection, perhaps as a refusal
            if cause is None or isinstance(cause, ssl.SSLError | KafkaError):
                self._refuse(at, str(trouble))
            raise
        self._accepted(at)
        return channel

    def _authenticate(self, host: str, port: int) -> Callable[..., Any]:
        async def authenticate(send: Callable[[Any, int], Any]) -> float | None:
            return await self._log_in(host, port, send)

        return authenticate

    async def _log_in(self, host: str, port: int, ask: Callable[[Any, int], Any]) -> float | None:
        """Return the seconds until the next login, or None. Raises KafkaError."""
        own = self._login
        assert own is not None
        steps = login(own.mechanism, own.conversation(host), f"{host}:{port}", own.who)
        answer = None
        while True:
            try:
                if own.waits:
                    request = await _in_a_thread(_step, steps, answer)
                else:
                    request = _step(steps, answer)
            except AuthenticationFailed as refused:
                raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, str(refused)) from refused
            if isinstance(request, _Done):
                return request.renew_s
            is_handshake = type(request) is messages.SaslHandshakeRequest
            answer = await ask(request, 1 if is_handshake else AUTHENTICATE_VERSION)

    # -- replica fetchers ------------------------------------------------------------------------------------

    async def secure(self, plain: socket.socket, host: str, port: int, reactor: Any) -> Secured:
        """Do handshake and login on a connected, non-blocking socket. Raises Unreachable, OSError."""
        at = (host, port)
        self._wait_for(at)
        loop = asyncio.get_running_loop()
        stream: _Plain | _Tls = _Plain(loop, plain)
        try:
            contexts = self._contexts_of_now()
            if contexts is not None:
                tls = OutgoingTls(
                    reactor, contexts.native, plain.fileno(), host,
                    checks_host=contexts.checks_host, names_host=not _is_address(host),
                )  # fmt: skip
                stream = _Tls(loop, plain.fileno(), tls)
                await stream.shake()
            renew_s = None if self._login is None else await self._log_in(host, port, stream.ask)
        except (TlsError, KafkaError, ConfigError, Malformed) as trouble:
            stream.close()
            raise Unreachable(self._refuse(at, str(trouble), told=False)) from trouble
        except BaseException:
            stream.close()
            raise
        self._accepted(at)
        return Secured(stream.tls, renew_s)

    # -- what both need --------------------------------------------------------------------------------------

    def _contexts_of_now(self) -> Contexts | None:
        """Return the contexts for the current stores; None if the protocol has no TLS. Raises ConfigError if
        there are no usable ones."""
        if not self.protocol.endswith("SSL"):
            return None
        config = self._config()
        seen = (
            own_values(config, self._listener),
            config.for_listener(self._listener, IDENTIFICATION),
            tuple(map(stamp_of, store_paths(config, self._listener))),
        )
        if self._contexts is None or self._contexts.seen != seen:
            try:
                self._contexts = Contexts(seen, *self._made(config))
            except ConfigError as wrong:
                if self._contexts is not None:
                    logger.error("connections to other nodes keep the certificates that they have: %s", wrong)
                    self._contexts = self._contexts._replace(seen=seen)
                    return self._contexts
                if not config.dynamic_broker:
                    raise
                logger.error("connections to other nodes are made by the static configuration: %s", wrong)
                self._contexts = Contexts(seen, *self._made(BrokerConfig(config.static)))  # as TlsListeners
        return self._contexts

    def _made(self, config: Any) -> tuple[Stores | None, ssl.SSLContext, TlsContext, bool]:
        native = client_context(config, self._listener, self._read)
        stores = client_stores(config, self._listener, self._read)
        before = self._contexts
        if stores is not None and before is not None and before.stores is not None:
            reason = successor_refusal(before.stores, stores, both=False)
            if reason is not None:
                raise ConfigError(f"other nodes would refuse the new one of {self._listener}: {reason}")
        try:
            python = tls_context(client_options(config, self._listener))
        except ValueError as wrong:
            raise ConfigError(f"the stores of listener {self._listener} cannot be used: {wrong}") from wrong
        enabled = config.for_listener(self._listener, "ssl.enabled.protocols") or VERSIONS
        versions = [VERSIONS[name] for name in enabled]
        python.minimum_version, python.maximum_version = min(versions), max(versions)
        return stores, python, native, bool(config.for_listener(self._listener, IDENTIFICATION))

    def _wait_for(self, at: tuple[str, int]) -> None:
        refused = self._refused.get(at)
        if refused is not None and asyncio.get_running_loop().time() < refused.until:
            raise Unreachable(refused.reason)

    def _refuse(self, at: tuple[str, int], reason: str, *, told: bool = True) -> str:
        refused = self._refused.setdefault(at, Refused())
        delay_ms = min(RETRY_MS << min(refused.failures, 10), RETRY_MS_MAX)
        refused.failures += 1
        refused.until = asyncio.get_running_loop().time() + delay_ms / 1000
        if told and (not refused.told or refused.reason != reason):
            refused.told = True
            logger.warning("no %s connection to %s:%d, will try again: %s", self.protocol, *at, reason)
        refused.reason = reason
        return reason

    def _accepted(self, at: tuple[str, int]) -> None:
        refused = self._refused.pop(at, None)
        if refused is not None and refused.told:
            logger.info("%s:%d is connected to by %s again", *at, self.protocol)


class _Done(NamedTuple):
    """A login is over."""

    renew_s: float | None


def _step(steps: Any, answer: Any) -> Any:
    """Return the next request of a login, or _Done. Raises AuthenticationFailed."""
    try:
        return steps.send(answer)
    except StopIteration as done:
        return _Done(done.value)


async def _in_a_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return `work(*arguments)`, from a thread that no stop waits for. Raises KafkaError if there is none."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def give(set_it: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_it(value)

    def run() -> None:
        try:
            call, value = result.set_result, work(*arguments)
        except BaseException as trouble:
            call, value = result.set_exception, trouble
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(give, call, value)

    try:
        threading.Thread(target=run, name="kafkad-login", daemon=True).start()
    except RuntimeError as none:  # the system has no thread left
        raise KafkaError(errors.UNKNOWN_SERVER_ERROR, f"no thread for a login: {none}") from none
    return await result


class _Plain:
    """Sends requests and reads answers on a bare socket, one after the other."""

    tls: OutgoingTls | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, plain: socket.socket) -> None:
        self._loop = loop
        self._socket = plain
        self._correlation = 0

    async def ask(self, request: Any, version: int) -> Any:
        """Return the answer to a request. Raises Malformed, OSError."""
        self._correlation += 1
        frame = codec.encode_request(request, version, self._correlation, "kafkad")
        await self._write(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(await self._read(4), "big", signed=True)
        if not 4 <= size <= FRAME_MAX:
            raise Malformed(f"an answer has {size} bytes; 4 to {FRAME_MAX} are allowed")
        cls = codec.response_class(type(request).API_KEY)
        got, response = codec.decode_response(cls, version, await self._read(size))
        if got != self._correlation:
            raise Malformed("an answer has a wrong correlation id")
        return response

    async def _write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await self._loop.sock_recv(self._socket, size - len(data))
            if not more:
                raise ConnectionError("the other node has closed the connection")
            data += more
        return data

    def close(self) -> None:
        """Do nothing: the socket is the caller's."""


class _Tls(_Plain):
    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, tls: OutgoingTls) -> None:
        self._loop = loop
        self._fd = fd
        self.tls: OutgoingTls = tls
        self._correlation = 0

    async def shake(self) -> None:
        while not self.tls.shake():
            await self._pushed()
            await self._ready(self._loop.add_reader, self._loop.remove_reader)
        await self._pushed()

    async def _write(self, data: bytes) -> None:
        self.tls.write(data)
        await self._pushed()

    async def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.tls.read(size - len(data))
            if not more:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            data += more
        return data

    async def _pushed(self) -> None:
        while self.tls.waits:
            await self._ready(self._loop.add_writer, self._loop.remove_writer)
            self.tls.push()

    async def _ready(self, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(self._fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(self._fd)

    def close(self) -> None:
        self.tls.close()


def broker_links(now: Callable[[], Any], read: Callable[[str], bytes]) -> NodeLinks:
    """Return the links to other brokers. Raises ConfigError."""
    config = now()
    listener, mechanism = config.inter_broker_listener_name, config.sasl_mechanism_inter_broker_protocol
    return NodeLinks(now, listener, BETWEEN_BROKERS, mechanism, read)


def controller_links(now: Callable[[], Any], read: Callable[[str], bytes]) -> NodeLinks:
    """Return the links to controllers. Raises ConfigError."""
    config = now()
    listener, mechanism = (
        config.controller_listener_names[0].upper(),
        config.sasl_mechanism_controller_protocol,
    )
    if mechanism in SCRAM_HASHES and "controller" in config.process_roles:
        protocol = config.listener_protocols.get(listener, listener)
        if protocol.startswith("SASL_"):
            raise ConfigError(
                f"Invalid value {mechanism} for configuration {TO_CONTROLLERS}: controllers have the users of"
                " SCRAM only when their quorum stands, so they log in to each other by PLAIN"
            )
    return NodeLinks(now, listener, TO_CONTROLLERS, mechanism, read)


def check_links(config: Any, read: Callable[[str], bytes]) -> None:
    """Raise ConfigError if a node of a cluster could not connect to the others."""
    controller_links(lambda: config, read)
    if "broker" in config.process_roles:
        broker_links(lambda: config, read)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
