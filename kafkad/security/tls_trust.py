"""Whether nodes with these stores accept each other's certificates: a handshake in memory.

Stores that change while a node serves are tried out before they are used, because other nodes with the same
stores would refuse this one. (SslFactory.SslEngineValidator.)"""

import contextlib
import ssl
from typing import Final, NamedTuple

from kafkad.security.client_tls import VERSIONS, python_server

FLIGHTS: Final = 8  # more than a handshake has


class Stores(NamedTuple):
    """Key, own certificates and authorities, all DER."""

    key: bytes
    chain: tuple[bytes, ...]
    authorities: tuple[bytes, ...]


def refusal(shown: Stores, trusting: Stores) -> str | None:
    """Return why a node with the stores `trusting` refuses the certificate of `shown`; None: it does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=b"".join(dict.fromkeys(trusting.authorities)))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there)
    server = python_server(shown.key, shown.chain, (), "none", VERSIONS).wrap_bio(
        there, back, server_side=True
    )
    for _ in range(FLIGHTS):
        try:
            client.do_handshake()
            return None
        except ssl.SSLCertVerificationError as refused:
            return refused.verify_message
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as trouble:
            return str(trouble.reason or trouble)
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
    return "the handshake does not end"


def successor_refusal(before: Stores, after: Stores, *, both: bool) -> str | None:
    """Return why other nodes would refuse a node that changes its stores, or None. `both`: they may still
    have the stores `before`, too. Stores that did not fit together before need not do so now: the authorities
    are perhaps those of clients only."""
    if not before.authorities or not after.authorities or refusal(before, before) is not None:
        return None
    if (reason := refusal(after, after)) is not None:
        return f"its own truststore refuses it: {reason}"
    if both and (reason := refusal(after, before)) is not None:
        return f"the truststore there refuses it: {reason}"
    if both and (reason := refusal(before, after)) is not None:
        return f"the new truststore refuses the certificate there: {reason}"
    return None
