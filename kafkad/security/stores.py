"""Stores of keys and certificates: PEM, PKCS12, JKS. The results are DER.

A PEM key is PKCS#8, encrypted or not. In a PKCS12 store one password opens the store and the key. A JKS store
may have another password for each key. JKS is Sun's format: entries, each a key with its certificates or one
certificate, then a SHA-1 of the password and all entries. A key is encrypted by XOR with a stream of SHA-1
hashes of the password (sun.security.provider.JavaKeyStore, KeyProtector). Without a password, certificates
are read but the store is not verified, as in Java.

Beware: if a JKS store has several keys, the one that Java's key manager finds first is used; of a PKCS12
store, the first key in the file.
(DefaultSslEngineFactory, KIP-651.)"""

import base64
import binascii
import hashlib
import hmac
import itertools
import re
from typing import Final, NamedTuple

from kafkad._native.serving.tls_keys import TlsError, read_pkcs12, read_private_key
from kafkad.security.certificates import first_element, issuer_of, subject_of

TYPES: Final = ("PEM", "PKCS12", "JKS")
# A block of PEM. As in Kafka, it may be on one line (a value of the properties that is continued by `\`), and
# lines with a colon may come before the base64 (PemParser). The search goes back only over whole headers: the
# text may be a client's (IncrementalAlterConfigs), and none may take exponential time.
_BLOCK: Final = re.compile(
    r"(?<!-)-+BEGIN ([A-Z0-9 ]++)-+\s++"
    r"((?:(?>[^\r\n:]*+:[^\r\n]*+[\r\n]++\s*+))*)"
    r"([A-Za-z0-9+/=\s]*+)-+END [^-]++-+",
    re.ASCII,
)
CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
KEY: Final = "PRIVATE KEY"
LINE: Final = 64  # characters of base64
PKCS8: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
PEM_BEGIN: Final = b"-----BEGIN "
JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
JKS_KEY, JKS_CERTIFICATE = 1, 2  # kinds of entries
SUM_SIZE: Final = 20  # SHA-1
SUN_KEY_PROTECTOR: Final = bytes.fromhex("06 0a 2b 06 01 04 01 2a 02 11 01 01")  # 1.3.6.1.4.1.42.2.17.1.1


class KeyStore(NamedTuple):
    key: bytes
    chain: list[bytes]  # the key's own certificate first

    def __repr__(self) -> str:
        return f"KeyStore({len(self.chain)} certificates)"  # without the key


class WrongStore(ValueError):
    pass


def certificates_of(text: str) -> list[bytes]:
    """Raises WrongStore."""
    found = [_der(body) for label, _, body in _blocks(text) if label in CERTIFICATES]
    if not found:
        raise WrongStore("there is no PEM certificate in it")
    return found


def chain_of(text: str) -> list[bytes]:
    """Return the certificates of a key: its own, then each one's issuer. Raises WrongStore, also if they are
    in another order, as Kafka refuses that (PKCS12KeyStore.validateChain)."""
    chain = certificates_of(text)
    try:
        for own, next_one in itertools.pairwise(chain):
            if _folded(issuer_of(own)) != _folded(subject_of(next_one)):
                raise WrongStore(
                    f"its certificates are not in order: the issuer of {subject_of(own)} is {issuer_of(own)},"
                    f" and {subject_of(next_one)} follows"
                )
    except WrongStore:
        raise
    except ValueError as trouble:
        raise WrongStore(str(trouble)) from None
    if len(set(chain)) < len(chain):
        raise WrongStore("it has a certificate twice")
    return chain


def key_of(text: str, password: str | None) -> bytes:
    """Raises WrongStore."""
    found = [block for block in _blocks(text) if block[0].split(" ")[-2:] == KEY.split(" ")]
    if len(found) != 1:
        raise WrongStore(f"it has {len(found)} PEM private keys; exactly one is wanted")
    label, _, body = found[0]
    if label not in PKCS8:
        raise WrongStore(f"its private key is a {label}, and PKCS#8 is wanted: openssl pkcs8 -topk8 -nocrypt")
    if label == "ENCRYPTED PRIVATE KEY" and not password:
        raise WrongStore("its private key is encrypted, and ssl.key.password is not given")
    try:
        return read_private_key(_in_lines(label, body).encode(), (password or "").encode())
    except TlsError:
        raise WrongStore(
            "its private key cannot be read"
            + (
                "; is ssl.key.password right? (openssl pkcs8 -topk8 writes keys that can be read)"
                if password
                else ""
            )
        ) from None


def pem_in_lines(text: str) -> str:
    """Return PEM text with each block in lines of its own, as OpenSSL needs it. A key that is encrypted by
    its headers (`Proc-Type`) stays as it is."""

    def in_lines(block: re.Match[str]) -> str:
        return block[0] if block[2] else f"\n{_in_lines(_label(block[1]), block[3])}"

    return _BLOCK.sub(in_lines, text)


def _blocks(text: str) -> list[tuple[str, str, str]]:
    """Return (label, headers, base64) of each block."""
    return [(_label(label), headers, body) for label, headers, body in _BLOCK.findall(text)]


def _label(text: str) -> str:
    return " ".join(text.split())


def _in_lines(label: str, body: str) -> str:
    body = "".join(body.split())
    lines = (body[at : at + LINE] for at in range(0, len(body), LINE))
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


def _der(body: str) -> bytes:
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error:
        raise WrongStore("a certificate is not valid base64") from None
    return first_element(data)  # a TRUSTED CERTIFICATE says afterwards what it is trusted for


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def is_jks(data: bytes) -> bool:
    return data.startswith(JKS_MAGIC)


def key_store_of(data: bytes, password: str, key_password: str | None = None) -> KeyStore:
    """Return the key of a PKCS12 or JKS store; its bytes tell which. Raises WrongStore."""
    _check_binary(data)
    if is_jks(data):
        entries = _jks_entries(data, password)
        aliases = _in_order([alias for alias, entry in entries.items() if entry.key is not None])
        if not aliases or not (chosen := entries[aliases[0]]).certificates:
            raise WrongStore("it has no private key with a certificate")
        assert chosen.key is not None
        return KeyStore(_unprotected(chosen.key, key_password or password), chosen.certificates)
    key, certificates = _pkcs12(data, password)
    if key is None or not certificates:
        raise WrongStore("it has no private key with a certificate")
    return KeyStore(key, _chain(certificates))


def _in_order(aliases: list[str]) -> list[str]:
    """Sort as Java's HashMap does, from which SunX509KeyManagerImpl takes the first key."""
    buckets = 16
    while len(aliases) > buckets * 3 // 4:
        buckets *= 2

    def bucket(alias: str) -> int:
        number = 0
        for at in range(0, len(text := alias.encode("utf-16-be")), 2):
            number = (number * 31 + int.from_bytes(text[at : at + 2], "big")) & 0xFFFFFFFF
        return (number ^ number >> 16) % buckets

    return sorted(aliases, key=bucket)


def _chain(certificates: list[bytes]) -> list[bytes]:
    """Return the first certificate, then each one's issuer, if it is there: a PKCS12 store may have the
    certificates of other keys, too, and authorities that it trusts."""
    try:
        by_subject = {_folded(subject_of(it)): it for it in reversed(certificates[1:])}
        chain = certificates[:1]
        while issuer := by_subject.pop(_folded(issuer_of(chain[-1])), None):
            chain.append(issuer)
    except ValueError as trouble:
        raise WrongStore(str(trouble)) from None
    return chain


def trusted_of(data: bytes, password: str | None) -> list[bytes]:
    """Return the certificates that a PKCS12 or JKS store trusts; for a key, its own one. Raises
    WrongStore."""
    _check_binary(data)
    if is_jks(data):
        return [it.certificates[0] for it in _jks_entries(data, password).values() if it.certificates]
    return _pkcs12(data, password or "")[1]


def _check_binary(data: bytes) -> None:
    if data.startswith(JCEKS_MAGIC):
        raise WrongStore("it is a JCEKS store, which is not supported; keytool -importkeystore makes PKCS12")
    if data.lstrip()[: len(PEM_BEGIN)] == PEM_BEGIN:
        raise WrongStore("it is PEM; set the store's type to PEM")


def _pkcs12(data: bytes, password: str) -> tuple[bytes | None, list[bytes]]:
    try:
        return read_pkcs12(data, password.encode())
    except TlsError as trouble:
        raise WrongStore(f"it cannot be opened with the password ({trouble})") from None


# -- JKS ---------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    key: bytes | None  # protected
    certificates: list[bytes]


class _Cursor:
    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data, self._at, self._end = data, at, end

    def take(self, size: int) -> bytes:
        if size > self._end - self._at:
            raise WrongStore("it is damaged: it is cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def rest(self) -> bytes:
        return self._data[self._at : self._end]


def _jks_entries(data: bytes, password: str | None) -> dict[str, _Entry]:
    end = len(data) - SUM_SIZE
    if password is not None:
        expected = hashlib.sha1(_wide(password) + b"Mighty Aphrodite" + data[: max(end, 0)]).digest()
        if not hmac.compare_digest(expected, data[max(end, 0) :]):
            raise WrongStore("it cannot be opened with the password, or it is damaged")
    cursor = _Cursor(data, len(JKS_MAGIC), end)
    version = cursor.number(4)
    if version not in (1, 2):
        raise WrongStore(f"it is damaged: JKS has no version {version}")

    def certificate() -> bytes:
        if version == 2:
            cursor.take(cursor.number(2))  # "X.509"
        return cursor.take(cursor.number(4))

    found: dict[str, _Entry] = {}
    for _ in range(cursor.number(4)):
        kind, alias = cursor.number(4), cursor.take(cursor.number(2)).decode("utf-8", "replace")
        cursor.take(8)  # creation time
        if kind == JKS_KEY:
            key = cursor.take(cursor.number(4))
            found[alias] = _Entry(key, [certificate() for _ in range(cursor.number(4))])
        elif kind == JKS_CERTIFICATE:
            found[alias] = _Entry(None, [certificate()])
        else:
            raise WrongStore(f"it is damaged: JKS has no entries of kind {kind}")
    if cursor.rest():
        raise WrongStore("it is damaged: something follows its entries")
    return found


def _unprotected(protected: bytes, password: str) -> bytes:
    """Return a private key as PKCS#8. `protected` is an EncryptedPrivateKeyInfo of PKCS#8 with Sun's
    algorithm: a salt, the encrypted key, and a hash of password and key."""
    algorithm, held = _encrypted_key(protected)
    if not algorithm.startswith(SUN_KEY_PROTECTOR) or len(held) < 2 * SUM_SIZE:
        raise WrongStore("its private key is protected in a way that JKS does not know")
    secret = _wide(password)
    stream, block = bytearray(), held[:SUM_SIZE]
    hidden = held[SUM_SIZE:-SUM_SIZE]
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), held[-SUM_SIZE:]):
        raise WrongStore("its private key cannot be opened; is ssl.key.password right?")
    return key


def _encrypted_key(data: bytes) -> tuple[bytes, bytes]:
    """Return algorithm and content of the DER: SEQUENCE { SEQUENCE { algorithm }, OCTET STRING }."""

    def element(tag: int, within: bytes) -> tuple[bytes, bytes]:
        cursor = _Cursor(within, 0, len(within))
        if cursor.number(1) != tag:
            raise WrongStore("it is damaged: its private key is not PKCS#8")
        size = cursor.number(1)
        if size & 0x80:
            size = cursor.number(size & 0x7F)
        return cursor.take(size), cursor.rest()

    body, _ = element(0x30, data)
    algorithm, rest = element(0x30, body)
    return algorithm, element(0x04, rest)[0]


def _wide(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")
