"""Certificates and stores for the tests, made with openssl and Java's keytool."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.jvm import FAST_JVM, java

PASSWORD = "store-secret"


def openssl(here: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=here, check=True, capture_output=True)


def make_stores(here: Path) -> Path:
    """ca.pem; server, client and expired, each as .key, .crt, .pem (key and chain) and .p12; stranger.pem of
    another CA. `here` itself. All directories of a process have the same ones: they take a second to make."""
    for made in Path(_stores(os.getpid()).name).iterdir():
        shutil.copy(made, here)
    return here


@functools.cache
def _stores(pid: int) -> tempfile.TemporaryDirectory[str]:
    directory = tempfile.TemporaryDirectory()
    here = Path(directory.name)
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not there")
    req = ["req", "-newkey", "rsa:2048", "-nodes"]
    for authority in ("ca", "other"):
        openssl(
            here, *req, "-x509", "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
            "-out", f"{authority}.pem",
        )  # fmt: skip
    for name, subject, authority, days in (
        ("server", "/CN=server", "ca", "2"),
        ("client", "/C=DE/O=Gadgets, Ltd/OU=ops/CN=client", "ca", "2"),
        ("stranger", "/CN=stranger", "other", "2"),
        ("expired", "/CN=expired", "ca", "-1"),
    ):
        (here / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        openssl(here, *req, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            here, "x509", "-req", "-days", days, "-in", f"{name}.csr", "-CA", f"{authority}.pem",
            "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.crt",
        )  # fmt: skip
        (here / f"{name}.pem").write_text(
            (here / f"{name}.key").read_text() + (here / f"{name}.crt").read_text()
        )
        openssl(
            here, "pkcs12", "-export", "-in", f"{name}.pem", "-out", f"{name}.p12", "-name", name,
            "-passout", f"pass:{PASSWORD}",
        )  # fmt: skip
    return directory


def keytool(here: Path, *arguments: str, code: int = 0) -> str:
    """Beside the Java that the tests use; what it printed."""
    tool = Path(java()).with_name("keytool")
    fast = (f"-J{option}" for option in FAST_JVM)
    done = subprocess.run([tool, *fast, *arguments], cwd=here, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def make_jks(here: Path, *names: str) -> None:
    """Of make_stores' directory: name.jks with that key, and ca.jks and ca.p12, which trust ca.pem."""
    for name in names:
        keytool(
            here, "-importkeystore", "-srckeystore", f"{name}.p12", "-srcstoretype", "PKCS12",
            "-srcstorepass", PASSWORD, "-destkeystore", f"{name}.jks", "-deststoretype", "JKS",
            "-deststorepass", PASSWORD, "-noprompt",
        )  # fmt: skip
    for kind, suffix in (("JKS", "jks"), ("PKCS12", "p12")):
        keytool(
            here, "-importcert", "-file", "ca.pem", "-alias", "ca", "-keystore", f"ca.{suffix}",
            "-storetype", kind, "-storepass", PASSWORD, "-noprompt",
        )  # fmt: skip
