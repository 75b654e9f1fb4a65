"""TLS of a client, by the options of Kafka's client and of librdkafka.

    authorities     ssl.truststore.location with .type and .password; ssl.truststore.certificates, as PEM;
                    ssl.ca.location, PEM. Without any, the system's authorities
    own             ssl.keystore.location with .type and .password; ssl.keystore.certificate.chain and
                    ssl.keystore.key, as PEM; ssl.certificate.location and ssl.key.location, PEM.
                    ssl.key.password opens the key

If a store's type is not given, its bytes decide: PEM, PKCS12 or JKS. The host's name is checked unless
`ssl.endpoint.identification.algorithm` is empty (KIP-294; the default is https). As in Java, every
certificate in the truststore is trusted, even if it is not self-signed.

Python's ssl reads keys from files only. A key that is not in a PEM file is passed through an unnamed file in
memory, so it never reaches a disk. (DefaultSslEngineFactory, KIP-651.)"""

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

TYPES: Final = ("PEM", "PKCS12", "JKS")
TRUST: Final = "ssl.truststore"
KEYS: Final = "ssl.keystore"
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SNIFFED_BYTES: Final = 1 << 16  # a PEM file may begin with comments


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a client's TLS context. Raise ValueError."""
    try:
        context = _trusting(options)
    except (OSError, ValueError) as trouble:
        raise ValueError(f"the certificates of the authorities cannot be read: {trouble}")
    # Java and librdkafka do not check an authority's certificate more strictly, either.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", ssl.VerifyFlags(0))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not str(options.get("ssl.endpoint.identification.algorithm", "https")):
        context.check_hostname = False
    try:
        _load_own(context, options)
    except (OSError, ValueError) as trouble:
        raise ValueError(f"the client's certificate and key cannot be read: {trouble}")
    return context


def python_server(
    key: bytes,
    chain: Sequence[bytes],
    authorities: Iterable[bytes],
    client_auth: str,
    versions: Iterable[str],
) -> ssl.SSLContext:
    """Return the context of a listener that Python's ssl serves. Keys and certificates are DER. Raises
    ValueError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    numbers = [VERSIONS[name] for name in versions]
    context.minimum_version, context.maximum_version = min(numbers), max(numbers)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _load_text(context, _pem_of(key) + "".join(map(ssl.DER_cert_to_PEM_cert, chain)), "")
    found = b"".join(dict.fromkeys(authorities))
    if found:
        context.load_verify_locations(cadata=found)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    required = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL}
    context.verify_mode = required.get(client_auth, ssl.CERT_NONE)
    return context


def _trusting(options: Mapping[str, Any]) -> ssl.SSLContext:
    path = options.get("ssl.ca.location")
    text = options.get(f"{TRUST}.certificates")
    if path is not None or text is not None:
        from kafkad.security.stores import certificates_of

        found = [] if text is None else certificates_of(text)
        return ssl.create_default_context(cafile=path, cadata=b"".join(dict.fromkeys(found)) or None)
    kind, path = _store(TRUST, options)
    if path is None or kind == "PEM":
        return ssl.create_default_context(cafile=path)
    from kafkad.security.stores import trusted_of

    found = trusted_of(_bytes(path), _text(options, f"{TRUST}.password"))
    if not found:
        raise ValueError(f"{TRUST}.location: there is no certificate in {path}")
    return ssl.create_default_context(cadata=b"".join(dict.fromkeys(found)))


def _load_own(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    key_password = _text(options, "ssl.key.password")
    unlocks = key_password or ""  # None would ask on the terminal
    if "ssl.certificate.location" in options:
        context.load_cert_chain(options["ssl.certificate.location"], options.get("ssl.key.location"), unlocks)
        return
    kind, path = _store(KEYS, options)
    if path is not None and kind == "PEM":
        context.load_cert_chain(path, options.get("ssl.key.location"), unlocks)
    elif path is not None:
        from kafkad.security.stores import key_store_of

        password = _text(options, f"{KEYS}.password")
        if password is None:
            raise ValueError(f"{KEYS}.password is missing; it is needed to open {path}")
        store = key_store_of(_bytes(path), password, key_password)
        chain = "".join(map(ssl.DER_cert_to_PEM_cert, store.chain))
        _load_text(context, _pem_of(store.key) + chain, "")
    elif f"{KEYS}.certificate.chain" in options:
        own = options.get(f"{KEYS}.key", ""), options[f"{KEYS}.certificate.chain"]
        _load_text(context, "\n".join(map(_in_lines, own)), unlocks)
    elif f"{KEYS}.key" in options:
        raise ValueError(f"{KEYS}.certificate.chain is missing beside {KEYS}.key")


def _store(name: str, options: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return type and path of a store. Raise ValueError, OSError."""
    path = _text(options, f"{name}.location")
    given = _text(options, f"{name}.type")
    if given is not None and given.upper() not in TYPES:
        raise ValueError(f"{name}.type {given} is not supported; use {', '.join(TYPES)}")
    if path is None:
        return "PEM", None
    if given is not None:
        return given.upper(), path
    return "PEM" if b"-----BEGIN " in _bytes(path)[:SNIFFED_BYTES] else "JKS", path


def _in_lines(text: str) -> str:
    """A value that is continued by a backslash in a properties file is one line."""
    from kafkad.security.stores import pem_in_lines

    return pem_in_lines(text)


def _text(options: Mapping[str, Any], name: str) -> str | None:
    return None if options.get(name) is None else str(options[name])


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _pem_of(key: bytes) -> str:
    """Convert a DER key to PEM. The second field of its sequence shows which of three forms the key has."""
    import base64

    at = 2 if key[1] < 0x80 else 2 + (key[1] & 0x7F)  # after the sequence's size
    at += 2 + key[at + 1]  # after the version
    kind = {0x02: "RSA PRIVATE KEY", 0x04: "EC PRIVATE KEY"}.get(key[at], "PRIVATE KEY")
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(key).decode()}-----END {kind}-----\n"


def _load_text(context: ssl.SSLContext, pem: str, password: str) -> None:
    file = os.memfd_create("kafkad", os.MFD_CLOEXEC)
    try:
        os.write(file, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}", None, password)
    finally:
        os.close(file)
