"""Look up the addresses of host names. A look-up asks a name server and may take many seconds, so it must
never run on the event loop."""

import ipaddress
import socket


def is_address(host: str) -> bool:
    """Return whether `host` is an IPv4 or IPv6 address, possibly with a zone, and so needs no look-up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.split("%")[0])
        except OSError:
            continue
        return True
    return False


def encoded(host: str) -> str | bytes:
    """Return what to look up. Python encodes a str by IDNA, whose tables are not worth loading (280 KB) for a
    name in ASCII."""
    labels_fit = all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))
    return host.encode() if host.isascii() and labels_fit else host


def addresses_of(host: str) -> list[str]:
    """Look up all addresses of a host. Raise OSError."""
    try:
        found = socket.getaddrinfo(encoded(host), None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(f"not a host name: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_loopback(host: str) -> bool:
    """Look up whether only processes of this machine can reach a listener on `host`. "" means every
    interface."""
    try:
        return bool(host) and all(
            ipaddress.ip_address(address.split("%")[0]).is_loopback for address in addresses_of(host)
        )
    except OSError:
        return False
