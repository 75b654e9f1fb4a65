"""PEM in unusual forms, and how long it takes; tests/integration/test_stores_jvm.py compares with Kafka."""

import time

import pytest

from kafkad.security.client_tls import tls_context
from kafkad.security.stores import WrongStore, certificates_of, key_of, pem_in_lines
from tests.certificates import openssl

LONGEST = 32_767  # characters of a value in a request
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}\nMTIz\n{END}\n",
        f"-----BEGIN  CERTIFICATE  ----- MTIz {END}",
        f"{BEGIN} MTIz {END} by: me\n",
        f"{BEGIN}\nOne: two\n\n\n  Three: -----\n\nMTIz\n{END}",
        f"Issuer: me\n{BEGIN}\nMTIz\n{END}",
        f"-----BEGIN X-----\nMTIz\n-----END X-----\n{BEGIN}\nMTIz\n{END}",
    ],
)
def test_a_certificate_is_found(text):
    assert certificates_of(text) == certificates_of(pem_in_lines(text)) == [b"123"]


def test_authorities_may_have_comments_in_any_language(tmp_path):
    """It was a TypeError. Python's ssl takes ASCII only."""
    openssl(
        tmp_path, "req", "-newkey", "rsa:2048", "-nodes", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key",
        "-out", "ca.pem",
    )  # fmt: skip
    text = "# Főtanúsítvány\n" + (tmp_path / "ca.pem").read_text()
    assert len(tls_context({"ssl.truststore.certificates": text}).get_ca_certs()) == 1
    for text in ("é", "", f"{BEGIN}\nMTIz\n{END}"):
        with pytest.raises(ValueError, match=r"^the certificates of the authorities cannot be read: "):
            tls_context({"ssl.truststore.certificates": text})


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN" + " " * LONGEST + "!",
        "-----BEGIN A" + " " * LONGEST + "!",
        f"{BEGIN}" + " " * LONGEST + "!",
        f"{BEGIN}\n" + "a:b\n\n" * (LONGEST // 5),
        f"{BEGIN}\n" + "a:b\n  " * (LONGEST // 6),
        f"{BEGIN}\n" + ":\n" * (LONGEST // 2),
        "-" * LONGEST,
        f"{BEGIN}\n" + "-" * LONGEST,
        f"{BEGIN}\n-----END" + " " * LONGEST,
        "-BEGIN A- :\n" * (LONGEST // 24),  # the square of their number, as in Kafka
        "-BEGIN A- A\n" * (LONGEST // 12),
        "-BEGIN A-\n-END " * (LONGEST // 15),
    ],
)
def test_no_text_takes_long(text):
    begin = time.process_time()
    with pytest.raises(WrongStore):
        certificates_of(text)
    with pytest.raises(WrongStore):
        key_of(text, None)
    assert time.process_time() - begin < 2
