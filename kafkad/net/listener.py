"""Listening sockets: a second broker on the same port gets an error.

With SO_REUSEPORT, every worker can have its own listener. But then another broker of the same user could bind
the same port without an error. So a port is first probed with an exclusive bind; a single listener keeps that
socket. With several listeners, the process that keeps them open owns them: closing one resets the connections
in its backlog.

An empty host means every interface, IPv4 and IPv6 with one socket if IPv6 is available. A name with several
addresses is bound to its first IPv4 address, as in Java.

Between processes of one machine there is no congestion, and congestion control costs: BBR sends pieces of 32
or 64 KB on a timer, which takes half of the CPU of a large answer. If BBR is the machine's default, the
listeners use Reno, which does nothing until packets are lost. Connections inherit it, and the reactor gives
remote peers the default back. (A connection that began with BBR stays paced, so it must be set before.)"""

import contextlib
import errno
import os
import socket

from kafkad.config.listeners import Endpoint
from kafkad.net.hosts import encoded


class ListenError(Exception):
    """A listener cannot be bound. `str(error)` is the error message."""


def bind(endpoint: Endpoint, *, backlog: int = 50, count: int = 1) -> list[socket.socket]:
    """Return `count` listening sockets on one port (port 0: the same free port for all). Raise
    ListenError."""
    assert count >= 1
    try:
        family, host = _resolve(endpoint.host)
        first = _listen(family, host, endpoint.port, backlog, shared=False)
        if count == 1:
            return [first]
        port = first.getsockname()[1]
        first.close()
        return _listen_all(family, host, port, backlog, count)
    except OSError as trouble:
        raise ListenError(_sentence(endpoint, trouble)) from trouble


def _listen_all(
    family: socket.AddressFamily, host: str, port: int, backlog: int, count: int
) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        while len(listeners) < count:
            listeners.append(_listen(family, host, port, backlog, shared=True))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    host = host.strip("[]")
    if not host:
        return (socket.AF_INET6, "::") if _has_ipv6() else (socket.AF_INET, "0.0.0.0")
    found = socket.getaddrinfo(encoded(host), None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # stable: IPv4 first
    return found[0][0], str(found[0][4][0])


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _listen(
    family: socket.AddressFamily, host: str, port: int, backlog: int, *, shared: bool
) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections of the previous run may linger
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        _never_paced(listener)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _never_paced(listener: socket.socket) -> None:
    name = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    if name.startswith(b"bbr"):
        with contextlib.suppress(OSError):  # if the kernel refuses, it is only slower
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _sentence(endpoint: Endpoint, trouble: OSError) -> str:
    where = f"listener {endpoint}"
    if isinstance(trouble, socket.gaierror):
        return f"{where}: the host name {endpoint.host} does not resolve"
    if trouble.errno == errno.EADDRINUSE:
        return f"{where}: port {endpoint.port} is in use by another process"
    if trouble.errno == errno.EADDRNOTAVAIL:
        return f"{where}: {endpoint.host} is not an address of this machine"
    if trouble.errno == errno.EACCES:
        return f"{where}: port {endpoint.port} needs privileges that this process does not have"
    return f"{where}: {os.strerror(trouble.errno) if trouble.errno else trouble}"
