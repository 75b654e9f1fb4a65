"""`kafkad certs` and SCRAM users by `kafkad configs`: what is made is what clients and Java can use."""

import ssl
import stat
import subprocess
import sys

import pytest

from kafkad.testing import Broker
from tests.certificates import keytool
from tests.jvm import free_port, run_tool

PRIVATE = ("ca.key", "broker.pem", "broker.p12", "client-anna.pem", "client-anna.p12")


def kafkad(directory, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", *words], cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def here(tmp_path):
    kafkad(tmp_path, "certs", "--host", "kafka.example.com", "--client", "anna")
    return tmp_path / "certs"


def names_of(path):
    text = path.read_text()
    path.with_suffix(".crt").write_text(text[text.index("-----BEGIN CERTIFICATE") :])
    return {value for _, value in ssl._ssl._test_decode_cert(str(path.with_suffix(".crt")))["subjectAltName"]}


def test_keys_are_private_and_what_is_there_stays(here):
    for path in here.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.name in PRIVATE else 0o644), path
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    kafkad(here.parent, "certs", "--client", "anna", "--client", "bert")
    after = {path.name: path.read_bytes() for path in here.iterdir()}
    assert before.items() <= after.items()
    assert {"client-bert.pem", "client-bert.p12", "client-bert.properties"} == after.keys() - before.keys()


def test_a_renewed_certificate_is_another_with_the_same_names_and_authority(here):
    before, authority = (here / "broker.pem").read_bytes(), (here / "ca.pem").read_bytes()
    told = kafkad(here.parent, "certs", "--host", "other.example.com", code=1)
    assert "broker.pem is not valid for other.example.com; --renew" in told
    kafkad(here.parent, "certs", "--renew", "--host", "other.example.com")
    assert (here / "broker.pem").read_bytes() != before and (here / "ca.pem").read_bytes() == authority
    names = names_of(here / "broker.pem")
    assert {"kafka.example.com", "other.example.com", "localhost", "127.0.0.1"} < names


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--client", "a/b"), 2, "cannot be a client's name"),
        (("--password", "short"), 2, "6 characters"),
        (("--host", "müller.example"), 2, "--host"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, words, code, told):
    assert told in kafkad(tmp_path, "certs", *words, code=code)


def test_an_authority_that_is_not_whole_is_refused(here):
    (here / "ca.key").unlink()
    assert "an authority needs both" in kafkad(here.parent, "certs", code=1)
    (here / "ca.key").write_text("x")
    assert "cannot be read" in kafkad(here.parent, "certs", code=1)


@pytest.mark.java
def test_java_logs_in_with_its_stores(here, tmp_path):
    """A client with a certificate, then one that `kafkad configs` made."""
    assert "trustedCertEntry" in keytool(here, "-list", "-keystore", "ca.p12", "-storepass", "changeit")
    ports = {name: free_port() for name in ("SSL", "SASL_SSL", "PLAINTEXT")}
    properties = tmp_path / "server.properties"
    properties.write_text(
        (here / "broker.properties").read_text().replace("#ssl.client", "ssl.client")
        + f"listeners={','.join(f'{name}://localhost:{port}' for name, port in ports.items())}\n"
        f"inter.broker.listener.name=PLAINTEXT\nsasl.enabled.mechanisms=SCRAM-SHA-256\nlog.dirs={tmp_path}/data\n"
    )
    plain = ("--bootstrap-server", f"localhost:{ports['PLAINTEXT']}")
    user = ("--entity-type", "users", "--entity-name", "anna")
    anna = tmp_path / "anna.properties"
    with Broker(properties=properties):
        anna.write_text(
            f"security.protocol=SSL\nssl.truststore.location={here}/ca.p12\nssl.truststore.password=changeit\n"
            f"ssl.keystore.location={here}/client-anna.p12\nssl.keystore.password=changeit\n"
        )
        own = ["--bootstrap-server", f"localhost:{ports['SSL']}", "--command-config", str(anna)]
        run_tool("4.3.1", "kafka-topics", *own, "--create", "--topic", "java")
        assert "java" in kafkad(tmp_path, "topics", "--list", *own).split()

        secret = "SCRAM-SHA-256=[iterations=8192,password=anna-secret]"
        told = kafkad(tmp_path, "configs", "--alter", *user, "--add-config", secret, "--json", *plain)
        assert "anna-secret" not in told
        assert "8192" in kafkad(tmp_path, "configs", "--describe", *user, *plain)
        anna.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nssl.truststore.location={here}/ca.p12\n"
            "ssl.truststore.password=changeit\nsasl.jaas.config=org.apache.kafka.common.security.scram"
            '.ScramLoginModule required username="anna" password="anna-secret";\n'
        )
        own = ["--bootstrap-server", f"localhost:{ports['SASL_SSL']}", "--command-config", str(anna)]
        assert "java" in run_tool("4.3.1", "kafka-topics", *own, "--list").stdout.split()
        kafkad(tmp_path, "configs", "--alter", *user, "--delete-config", "SCRAM-SHA-256", *plain)
        assert "there is no SCRAM user" in kafkad(tmp_path, "configs", "--describe", *user, *plain, code=1)
        for wrong in ("SCRAM-SHA-256=[iterations=1,password=x]", "SCRAM-SHA-256=x", "producer_byte_rate=x"):
            assert "\n" not in kafkad(
                tmp_path, "configs", "--alter", *user, "--add-config", wrong, *plain,
                code=1 if "iterations" in wrong else 2,
            ).strip()  # fmt: skip
