"""Stores of keys and certificates, as bytes: PEM, PKCS12. What comes out is DER.

A PEM key is PKCS#8, encrypted or not. In a PKCS12 store one password opens the store and the key.
(DefaultSslEngineFactory, KIP-651.)"""

import base64
import binascii
import re
from typing import Final, NamedTuple

from kafkad._native.serving.tls import TlsError, read_pkcs12, read_private_key

TYPES: Final = ("PEM", "PKCS12")
CERTIFICATE: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----", re.ASCII
)
KEY: Final = re.compile(
    r"-----BEGIN ((?:\w+ )*PRIVATE KEY)-----.+?-----END (?:\w+ )*PRIVATE KEY-----", re.DOTALL | re.ASCII
)
PKCS8: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")


class KeyStore(NamedTuple):
    key: bytes
    chain: list[bytes]  # the key's own certificate first

    def __repr__(self) -> str:
        return f"KeyStore({len(self.chain)} certificates)"  # the key is nobody's business


class WrongStore(ValueError):
    pass


def certificates_of(text: str) -> list[bytes]:
    """Raises WrongStore."""
    try:
        found = [base64.b64decode("".join(it.split()), validate=True) for it in CERTIFICATE.findall(text)]
    except binascii.Error:
        raise WrongStore("a certificate is not valid base64") from None
    if not found:
        raise WrongStore("there is no PEM certificate in it")
    return found


def key_of(text: str, password: str | None) -> bytes:
    """Raises WrongStore."""
    found = list(KEY.finditer(text))
    if len(found) != 1:
        raise WrongStore(f"it has {len(found)} PEM private keys; exactly one is wanted")
    if found[0][1] not in PKCS8:
        raise WrongStore(
            f"its private key is a {found[0][1]}, and PKCS#8 is wanted: openssl pkcs8 -topk8 -nocrypt"
        )
    if found[0][1] == "ENCRYPTED PRIVATE KEY" and not password:
        raise WrongStore("its private key is encrypted, and ssl.key.password is not given")
    try:
        return read_private_key(found[0][0].encode() + b"\n", (password or "").encode())
    except TlsError:
        raise WrongStore(
            "its private key cannot be read" + ("; is ssl.key.password right?" if password else "")
        ) from None


def pkcs12_of(data: bytes, password: str) -> tuple[bytes | None, list[bytes]]:
    """A key, if there is one, and certificates. Raises WrongStore."""
    if data.startswith(b"\xfe\xed\xfe\xed"):
        raise WrongStore(
            "it is a JKS store, which kafkad does not read yet: keytool -importkeystore makes PKCS12"
        )
    try:
        return read_pkcs12(data, password.encode())
    except TlsError as trouble:
        raise WrongStore(f"it cannot be opened with the password ({trouble})") from None
