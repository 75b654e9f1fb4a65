"""Parse the configuration of listeners: NAME://host:port, and the security protocol of each name.

Names are upper case. A host is a name, an IPv4 or a bracketed IPv6 address. No host means every interface.
Port 0 asks for a free port. Rules: SocketServerConfigs.listenerListToEndPoints and
AbstractKafkaConfig.validate."""

import re
from typing import Final, NamedTuple

from kafkad.config.definition import ConfigError, trimmed

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ENDPOINT = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)")


class Endpoint(NamedTuple):
    listener: str
    protocol: str  # one of PROTOCOLS
    host: str  # "" is every interface
    port: int  # 0 is a free one

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


def listener_name(text: str) -> str:
    """Return the name of `NAME://host:port`, or the text itself."""
    return trimmed(text.partition("://")[0]).upper()


def parse_endpoints(key: str, texts: list[str], protocols: dict[str, str]) -> list[Endpoint]:
    """Parse `listeners` or `advertised.listeners`. Raise ConfigError."""
    endpoints = [_endpoint(key, text, protocols) for text in texts]
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise _wrong(key, ",".join(texts), "Each listener must have a different name")
    return endpoints


def _endpoint(key: str, text: str, protocols: dict[str, str]) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if not match or not match.group(1) or int(match.group(3)) > 65535:
        raise _wrong(key, text, "Expected NAME://host:port with a port of at most 65535")
    name = match.group(1).upper()
    if name not in protocols:
        raise _wrong(key, text, f"No security protocol defined for listener {name}: it must be in the "
                     "listener.security.protocol.map")  # fmt: skip
    return Endpoint(name, protocols[name], match.group(2), int(match.group(3)))


def check_distinct_ports(key: str, endpoints: list[Endpoint]) -> None:
    """Check that two listeners share a port only if one has an IPv4 and the other an IPv6 address."""
    by_port: dict[int, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, sharing in by_port.items():
        families = sorted(_family(endpoint.host) for endpoint in sharing)
        if len(sharing) > 1 and families != [4, 6]:
            text = ",".join(map(str, sharing))
            raise _wrong(key, text, f"Port {port} may be shared only by one IPv4 and one IPv6 address")


def _family(host: str) -> int:
    """Return 4 or 6, or 0 if the host is not an address."""
    if ":" in host:
        return 6
    return 4 if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", host) else 0


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,...`. Raise ConfigError."""
    protocols = {}
    for entry in filter(None, map(trimmed, text.split(","))):
        name, colon, protocol = map(trimmed, entry.rpartition(":"))
        if not colon or not name or protocol.upper() not in PROTOCOLS:
            allowed = ", ".join(PROTOCOLS)
            raise _wrong(key, text, f"Entries must be NAME:PROTOCOL, where PROTOCOL is one of: {allowed}")
        protocols[name.upper()] = protocol.upper()
    return protocols


def parse_host_limits(key: str, text: str) -> dict[str, int]:
    """Parse `host:count,...` (max.connections.per.ip.overrides). Raise ConfigError."""
    limits = {}
    for entry in filter(None, map(trimmed, text.split(","))):
        host, colon, count = map(trimmed, entry.rpartition(":"))
        is_count = re.fullmatch("[0-9]{1,10}", count)
        if not colon or not re.fullmatch(r"[0-9a-zA-Z\-%._:]+", host) or not is_count:
            raise _wrong(key, text, "Entries must be host:count")
        limits[host] = int(count)
    return limits


def _wrong(key: str, text: str, reason: str) -> ConfigError:
    return ConfigError(f"Invalid value {text} for configuration {key}: {reason}")
