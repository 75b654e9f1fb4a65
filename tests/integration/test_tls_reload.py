"""New certificates for a listener that serves, by IncrementalAlterConfigs."""

import os
import shutil
import signal
import ssl
import subprocess
import threading

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.certificates import PASSWORD, make_stores, openssl
from tests.clients import wait_until
from tests.jvm import free_port, run_tool
from tests.wire import Wire

PREFIX = "listener.name.ssl."
SET, DELETE = 0, 1
CONNECTIONS = 16  # with two workers each has some


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """More servers: `next` and `twin`, for one name more; `fewer`, with one name less; `renamed`, another
    subject."""
    here = make_stores(tmp_path_factory.mktemp("stores"))
    for name, subject, names in (
        ("next", "/CN=server", "IP:127.0.0.1,DNS:localhost,DNS:more.example.com"),
        ("twin", "/CN=server", "IP:127.0.0.1,DNS:localhost,DNS:more.example.com"),
        ("fewer", "/CN=server", "IP:127.0.0.1"),
        ("renamed", "/CN=another", "IP:127.0.0.1,DNS:localhost"),
    ):
        (here / "extensions").write_text(f"subjectAltName={names}")
        openssl(
            here, "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
            "-out", f"{name}.csr",
        )  # fmt: skip
        openssl(
            here, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.crt",
        )  # fmt: skip
        (here / f"{name}.pem").write_text(
            (here / f"{name}.key").read_text() + (here / f"{name}.crt").read_text()
        )
    openssl(here, "pkcs12", "-export", "-in", "next.pem", "-out", "next.p12", "-passout", f"pass:{PASSWORD}")
    return here


class Served:
    def __init__(self, here, stores, workers, **more):
        self.ports = {"SSL": free_port(), "PLAINTEXT": free_port()}
        self.own = here / "own.pem"
        shutil.copy(stores / "server.pem", self.own)
        given = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": str(here / "data"),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(stores / "ca.pem"),
            **more,
        }
        properties = here / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self.broker = Broker(properties=properties, workers=workers)
        self.stores = stores

    def alter(self, **changes: str | None) -> tuple[int, str | None]:
        """Keys with _ for the dot, of the listener; None takes away what was set."""
        struct = messages.IncrementalAlterConfigsRequest.Resources
        configs = [
            struct.Configs(
                name=f"{PREFIX}ssl.{name.replace('_', '.')}",
                value=value,
                config_operation=DELETE if value is None else SET,
            )
            for name, value in changes.items()
        ]
        resource = struct(resource_type=4, resource_name="1", configs=configs)
        with Wire(f"127.0.0.1:{self.ports['PLAINTEXT']}") as wire:
            (answer,) = wire.ask(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        return answer.error_code, answer.error_message

    def connect(self, own: str | None = None) -> "TlsWire":
        context = ssl.create_default_context(cafile=self.stores / "ca.pem")
        if own:
            context.load_cert_chain(self.stores / f"{own}.pem")
        return TlsWire(self.ports["SSL"], context)

    def shown(self) -> set[int]:
        """The serial numbers of the certificates that new connections find, over all workers."""
        found = set()
        for _ in range(CONNECTIONS):
            with self.connect() as wire:
                assert wire.works()
                found.add(wire.serial)
        return found


class TlsWire(Wire):
    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.serial = int(self.socket.getpeercert()["serialNumber"], 16)

    def works(self) -> bool:
        return self.ask(messages.ApiVersionsRequest(), 0).error_code == 0


def serial_of(stores, name: str) -> int:
    asked = ["openssl", "x509", "-in", f"{name}.crt", "-noout", "-serial"]
    return int(subprocess.run(asked, cwd=stores, capture_output=True, text=True).stdout.split("=")[1], 16)


@pytest.fixture(params=[1, 2])
def served(request, tmp_path, stores):
    served = Served(tmp_path, stores, request.param)
    with served.broker:
        yield served


def test_a_new_certificate_in_another_file_and_back(served, stores):
    """Connections that are there stay, on every worker, and all that come see the new one."""
    held = [served.connect() for _ in range(CONNECTIONS)]
    assert {wire.serial for wire in held} == {serial_of(stores, "server")}
    changed = {
        "keystore_type": "PKCS12",
        "keystore_location": str(stores / "next.p12"),
        "keystore_password": PASSWORD,
    }
    assert served.alter(**changed) == (0, None)
    assert served.shown() == {serial_of(stores, "next")}
    assert all(wire.works() for wire in held)
    more = str(stores / "server.pem")
    code, told = served.alter(keystore_type="PEM", keystore_location=more, keystore_password=None)
    assert code == errors.INVALID_REQUEST and "lacks 1 alternative names" in told
    assert all(wire.works() for wire in held)
    for wire in held:
        wire.socket.close()


def test_a_new_certificate_in_the_same_file(served, stores):
    assert served.shown() == {serial_of(stores, "server")}
    shutil.copy(stores / "next.pem", served.own)
    assert served.shown() == {serial_of(stores, "server")}, "nobody has asked for it"
    assert served.alter(keystore_location=str(served.own)) == (0, None)
    assert served.shown() == {serial_of(stores, "next")}
    served.own.write_text("nothing")
    code, told = served.alter(keystore_location=str(served.own))
    assert code == errors.INVALID_REQUEST and "it has 0 PEM private keys" in told
    assert served.shown() == {serial_of(stores, "next")}


@pytest.mark.soak
def test_many_rotations_under_load(served, stores, rounds):
    """No request of a connection that is there fails, and a handshake finds the certificate of its moment."""
    done, served_requests = threading.Event(), []

    def busy() -> None:
        with served.connect() as wire:
            count = 0
            while not done.is_set():
                assert wire.works()
                count += 1
            served_requests.append(count)

    threads = [threading.Thread(target=busy) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        for number in range(rounds(20, 200)):
            name = ("next", "twin")[number % 2]
            partial = served.own.with_suffix(".partial")
            shutil.copy(stores / f"{name}.pem", partial)
            partial.replace(served.own)
            assert served.alter(keystore_location=str(served.own)) == (0, None)
            for _ in range(4):
                with served.connect() as wire:
                    assert wire.serial == serial_of(stores, name) and wire.works()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert len(served_requests) == len(threads) and min(served_requests) > 0


def test_stores_that_are_gone_at_a_start_give_way_to_the_files_own(tmp_path, stores):
    served = Served(tmp_path, stores, 2)
    with served.broker:
        moved = tmp_path / "moved.pem"
        shutil.copy(stores / "next.pem", moved)
        assert served.alter(keystore_location=str(moved)) == (0, None)
        served.broker.stop()
        moved.unlink()
        served.broker.start()
        assert served.shown() == {serial_of(stores, "server")}
        assert "goes back to its static configuration" in served.broker.log
        shutil.copy(stores / "next.pem", moved)
        assert served.alter(keystore_location=str(moved)) == (0, None)
        assert served.shown() == {serial_of(stores, "next")}


def test_what_is_wrong_changes_nothing(served, stores, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for change, told in (
        ({"keystore_location": "/no/such"}, "it cannot be read"),
        ({"keystore_location": str(tmp_path / "pipe")}, "it is not a file"),
        ({"keystore_location": str(tmp_path)}, "it is not a file"),
        ({"keystore_location": str(stores / "ca.pem")}, "PEM private keys"),
        ({"keystore_type": "PKCS12"}, "ssl.keystore.password"),
        ({"keystore_location": str(stores / "renamed.pem")}, "ssl.allow.dn.changes=true allows it"),
        ({"keystore_location": str(stores / "fewer.pem")}, "ssl.allow.san.changes=true allows it"),
        ({"keystore_type": "PKCS12", "keystore_location": str(stores / "next.p12"),
          "keystore_password": "hush"}, "cannot be opened with the password"),
        ({"truststore_location": str(stores / "server.key")}, "no PEM certificate"),
    ):  # fmt: skip
        code, said = served.alter(**change)
        assert code == errors.INVALID_REQUEST and told in said, said
        assert "\n" not in said and "hush" not in said
    code, said = served.alter(client_auth="required")
    assert code == errors.INVALID_CONFIG and "restart the broker" in said
    assert served.shown() == {serial_of(stores, "server")}
    assert "hush" not in served.broker.log


def test_it_holds_over_deaths_and_restarts(served, stores):
    assert served.alter(keystore_location=str(stores / "next.pem")) == (0, None)
    if served.broker.workers > 1:
        victim = served.broker.worker_pids[1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: served.broker.worker_pids.get(1, victim) != victim)
    assert served.shown() == {serial_of(stores, "next")}
    served.broker.stop()
    served.broker.start()
    assert served.shown() == {serial_of(stores, "next")}


@pytest.mark.java
def test_kafkas_own_tool_rotates(tmp_path, stores):
    """With a password, which nobody is told."""
    served = Served(tmp_path, stores, 2)
    with served.broker:
        own = ("--bootstrap-server", f"127.0.0.1:{served.ports['PLAINTEXT']}", "--entity-type", "brokers")
        changes = {"type": "PKCS12", "location": stores / "next.p12", "password": PASSWORD}
        text = ",".join(f"{PREFIX}ssl.keystore.{name}={value}" for name, value in changes.items())
        run_tool("4.3.1", "kafka-configs", *own, "--entity-name", "1", "--alter", "--add-config", text)
        assert served.shown() == {serial_of(stores, "next")}
        told = run_tool("4.3.1", "kafka-configs", *own, "--entity-name", "1", "--describe").stdout
        assert f"{PREFIX}ssl.keystore.location={stores / 'next.p12'}" in told and PASSWORD not in told
        assert PASSWORD not in served.broker.log


def test_a_client_is_out_as_soon_as_its_authority_is(tmp_path, stores):
    served = Served(tmp_path, stores, 2, **{f"{PREFIX}ssl.client.auth": "required"})
    with served.broker, served.connect("client") as wire:
        assert wire.works()
        assert served.alter(truststore_location=str(stores / "other.pem")) == (0, None)
        assert wire.works(), "who is in stays in, as with Kafka"
        for _ in range(CONNECTIONS):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                served.connect("client").works()
        with served.connect("stranger") as stranger:
            assert stranger.works()


def test_other_names_can_be_allowed(tmp_path, stores):
    more = {"ssl.allow.dn.changes": "true", f"{PREFIX}ssl.allow.san.changes": "true"}
    served = Served(tmp_path, stores, 1, **more)
    with served.broker:
        for name in ("renamed", "fewer", "server"):
            assert served.alter(keystore_location=str(stores / f"{name}.pem")) == (0, None)
            assert served.shown() == {serial_of(stores, name)}
