"""JKS stores as keytool makes them, byte by byte; tests/integration/test_tls.py has the other kinds."""

import hashlib
import os
import random
import subprocess

import pytest

from kafkad.security.stores import WrongStore, certificates_of, key_store_of, trusted_of
from tests.certificates import keytool, openssl

pytestmark = pytest.mark.java

SECRET, KEY_SECRET = "store-secret", "key-secret"


def made(here, name, algorithm, alias, *more):
    keytool(
        here, "-genkeypair", "-alias", alias, "-keyalg", algorithm, "-dname", f"CN={alias}, O=Gadgets",
        "-keystore", name, "-storetype", "JKS", "-storepass", SECRET, "-keypass", KEY_SECRET, *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """rsa.jks and ec.jks; many.jks with the keys b and a and the certificate of ca, which is in trust.jks,
    too."""
    here = tmp_path_factory.mktemp("jks")
    made(here, "rsa.jks", "RSA", "rsa")
    made(here, "ec.jks", "EC", "ec")
    made(here, "many.jks", "EC", "b")
    made(here, "many.jks", "RSA", "a")
    openssl(
        here, "req", "-newkey", "rsa:2048", "-nodes", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key",
        "-out", "ca.pem",
    )  # fmt: skip
    for store in ("many.jks", "trust.jks"):
        keytool(
            here, "-importcert", "-file", "ca.pem", "-alias", "ca", "-keystore", store, "-storetype", "JKS",
            "-storepass", SECRET, "-noprompt",
        )  # fmt: skip
    return here


def public_of(here, *arguments: str) -> bytes:
    return subprocess.run(["openssl", *arguments], cwd=here, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", ["rsa", "ec"])
def test_the_key_fits_the_certificate(here, name):
    store = key_store_of((here / f"{name}.jks").read_bytes(), SECRET, KEY_SECRET)
    (here / "key.der").write_bytes(store.key)
    (here / "crt.der").write_bytes(store.chain[0])
    of_key = public_of(here, "pkey", "-inform", "DER", "-in", "key.der", "-pubout")
    of_certificate = public_of(here, "x509", "-inform", "DER", "-in", "crt.der", "-noout", "-pubkey")
    assert of_key == of_certificate != b""
    assert str(store.key) not in repr(store)


def test_of_several_keys_one_counts_and_each_certificate_is_trusted(here):
    data = (here / "many.jks").read_bytes()
    store = key_store_of(data, SECRET, KEY_SECRET)
    (here / "crt.der").write_bytes(store.chain[0])
    assert b"CN = a" in public_of(here, "x509", "-inform", "DER", "-in", "crt.der", "-noout", "-subject")
    (authority,) = certificates_of((here / "ca.pem").read_text())
    assert len(trusted_of(data, SECRET)) == 3 and authority in trusted_of(data, SECRET)
    assert trusted_of((here / "trust.jks").read_bytes(), SECRET) == [authority]


def test_a_truststore_needs_no_password(here):
    """As in Java; what it cannot be is checked."""
    assert len(trusted_of((here / "trust.jks").read_bytes(), None)) == 1


def test_a_key_with_the_password_of_its_store(tmp_path):
    keytool(
        tmp_path, "-genkeypair", "-alias", "x", "-keyalg", "EC", "-dname", "CN=x", "-keystore", "x.jks",
        "-storetype", "JKS", "-storepass", "gehört-mir", "-keypass", "gehört-mir",
    )  # fmt: skip
    assert key_store_of((tmp_path / "x.jks").read_bytes(), "gehört-mir").key[0] == 0x30


@pytest.mark.parametrize(
    ("name", "secret", "key_secret", "told"),
    [
        ("rsa", "other", KEY_SECRET, "cannot be opened with the password, or it is damaged"),
        ("rsa", SECRET, "other", "is ssl.key.password right"),
        ("rsa", SECRET, None, "is ssl.key.password right"),
        ("trust", SECRET, None, "no private key with a certificate"),
    ],
)
def test_what_does_not_open_is_told(here, name, secret, key_secret, told):
    with pytest.raises(WrongStore, match=told):
        key_store_of((here / f"{name}.jks").read_bytes(), secret, key_secret)


def test_other_kinds_are_named(here):
    for data, told in (((here / "ca.pem").read_bytes(), "it is PEM"), (b"\xce\xce\xce\xce\0", "JCEKS")):
        with pytest.raises(WrongStore, match=told):
            trusted_of(data, SECRET)


def test_no_byte_can_change_unseen(here):
    data = (here / "rsa.jks").read_bytes()
    for at in range(4, len(data)):
        with pytest.raises(WrongStore):
            key_store_of(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], SECRET, KEY_SECRET)
        with pytest.raises(WrongStore):
            key_store_of(data[:at], SECRET, KEY_SECRET)


def test_without_a_password_a_damaged_store_is_refused_or_read(here):
    """Nothing else comes of it, whatever the sizes in it say."""
    data, chance = (here / "many.jks").read_bytes(), random.Random(7)
    for _ in range(3000):
        changed = bytearray(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        for _ in range(chance.randrange(1, 5)):
            if changed:
                changed[chance.randrange(len(changed))] = chance.choice((0, 0x7F, 0x80, 0xFF))
        changed[:4] = data[:4]
        try:
            assert all(isinstance(it, bytes) for it in trusted_of(bytes(changed), None))
        except WrongStore:
            pass


def test_a_protected_key_that_is_not_one(here):
    """The store's sum is right, and what it holds is not: `keytool` would not make it, somebody else may."""
    for held in (b"", b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x30\x00", os.urandom(300)):
        body = bytes.fromhex("feedfeed 00000002 00000001 00000001 0001 61 0000000000000000")
        body += len(held).to_bytes(4, "big") + held + (1).to_bytes(4, "big")
        body += b"\0\5X.509" + (1).to_bytes(4, "big") + b"x"
        total = hashlib.sha1(SECRET.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
        with pytest.raises(WrongStore, match=r"damaged|private key"):
            key_store_of(body + total, SECRET)
