"""Regions of log files over TLS: encrypted from windows, mapped parts of a file, which may be cut."""

import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reactor_world import NOW_MS, Client, World, batch, fetch

from kafkad._native.serving.log_windows import set_idle_ms
from kafkad.config.broker import BrokerConfig
from kafkad.protocol import records
from kafkad.security.tls import tls_contexts
from tests.certificates import make_stores
from tests.readiness import readable
from tests.unit.test_cold_reads import fill, path_of, records_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


class TlsClient:
    """A client's TLS over another Client's socket."""

    def __init__(self, world, newest=ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, newest
        self.world, self.raw = world, socket.create_connection(world.secret.getsockname())
        self.client = Client(world, self.raw)
        world.clients.append(self.client)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        self.client.socket = self
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.push()
                world.poll()
                self.take()
        self.push()
        world.poll()

    def push(self):
        self.raw.sendall(self.outgoing.read())

    def take(self):
        try:
            data = self.raw.recv(MIB)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        self.incoming.write(data)

    def send(self, data):
        self.tls.write(data)
        self.push()
        return len(data)

    def recv(self, size):
        self.take()
        try:
            return self.tls.read(size)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    def fileno(self):
        return self.raw.fileno()

    def close(self):
        self.raw.close()


def secured(directory, stores, **more):
    """A World with a listener for TLS, too."""
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "SSL://127.0.0.1:9093",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores / "server.pem"),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    world = World(str(directory))
    contexts = tls_contexts(BrokerConfig(given), lambda path: Path(path).read_bytes())
    world.secret = socket.create_server(("127.0.0.1", 0))
    world.reactor.add_listener(world.secret.fileno(), "SSL")
    world.reactor.secure("SSL", contexts["SSL"])
    return world


@pytest.fixture
def world(tmp_path, stores):
    world = secured(tmp_path, stores)
    yield world
    world.close()
    world.secret.close()


def mapped():
    """How many parts of logs are mapped."""
    return sum(line.rstrip().endswith((".log", ".log (deleted)")) for line in open("/proc/self/maps"))


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
@pytest.mark.parametrize("most", [20_000, 64 << 10, 300_000, 5 * MIB])
def test_every_byte_arrives_across_windows_and_while_the_file_grows(world, most, newest):
    fill(world, "t", 0)
    chosen = random.Random(most)
    client = TlsClient(world, newest).client
    sizes = [chosen.choice([100, 17_000, 70_000, 600_000]) for _ in range(40)]
    at = 0
    for size in sizes:
        assert client.produce("t", batch(1, size)).error_code == 0
        data = Path(path_of(world, "t")).read_bytes()
        offset = 0
        while at < len(data):
            offset = len(_offsets(data[:at]))
            answer = records_of(client.fetch([("t", 0, offset, most)]))
            whole = answer[: _whole(answer)]
            assert data[at : at + len(answer)] == answer
            at += len(whole)


def _offsets(data):
    """The positions of the batches in `data`, each of which has one record."""
    at, found = 0, []
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    return found


def _whole(data):
    at = 0
    while at + 12 <= len(data) and at + 12 + int.from_bytes(data[at + 8 : at + 12], "big") <= len(data):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return at


@pytest.fixture
def idle_long():
    """Windows stay for a while, also on a slow machine."""
    set_idle_ms(1_500)
    yield
    set_idle_ms(100)


def test_windows_that_are_not_used_are_closed(world, idle_long):
    fill(world, "t", 5)
    client = TlsClient(world).client
    assert mapped() == 0
    for offset in range(5):
        records_of(client.fetch([("t", 0, offset)]))
    assert mapped() == 3
    os.remove(path_of(world, "t"))
    world.poll_until(lambda: mapped() == 0)


def test_there_are_only_so_many_windows(world, idle_long):
    for number in range(20):
        fill(world, f"t{number}", 1)
    client = TlsClient(world).client
    for number in range(20):
        assert len(records_of(client.fetch([(f"t{number}", 0, 0)]))) > MIB - 2000
        assert mapped() == min(number + 1, 16)


@pytest.mark.parametrize("left", [0, 4096, 5000, MIB + 5000, -100])
def test_a_file_that_is_cut_meanwhile_closes_the_connection(world, left):
    """Nothing of what a cut file has not is sent, not even zeros."""
    fill(world, "t", 0)
    fill(world, "other", 1)
    client = TlsClient(world).client
    reader = client.socket
    for _ in range(2):
        record = records.Record(key=None, value=os.urandom(MIB - 1000), timestamp=NOW_MS)
        assert client.produce("t", bytes(records.build_batch([record]))).error_code == 0
    data = Path(path_of(world, "t")).read_bytes()
    left %= len(data)
    client.send_request(fetch([("t", 0, 0, 3 * MIB)], max_bytes=3 * MIB), 12)
    world.poll(1)  # a turn, or what the socket takes
    os.truncate(path_of(world, "t"), left)
    answer = b""
    deadline = time.monotonic() + 10
    with pytest.raises(ConnectionResetError):
        while time.monotonic() < deadline:
            try:
                piece = reader.recv(MIB)
            except BlockingIOError:
                world.poll(1)
                readable([reader.raw, world.reactor.fileno()], 0.05)
                continue
            if not piece:
                raise ConnectionResetError
            answer += piece
    assert "shorter than the answer" in "".join(world.lines)
    received = answer[answer.find(data[:60]) :]
    assert received
    assert len(received) < len(data)
    assert data.startswith(received)
    other = TlsClient(world).client  # nothing of the one connection is left for another
    assert len(records_of(other.fetch([("other", 0, 0)]))) > MIB - 2000


BUS = """
import ctypes, faulthandler, mmap, os, signal, sys
faulthandler.enable()
sys.path.insert(0, "tests/unit")
import pathlib, tempfile
from tests.certificates import make_stores
import test_tls_regions as t
here = pathlib.Path(tempfile.mkdtemp())
stores = make_stores(here)
world = t.secured(here, stores)
t.fill(world, "t", 1)
t.records_of(t.TlsClient(world).client.fetch([("t", 0, 0)]))
if {again}:  # each handler is before and after the other
    faulthandler.disable()
    faulthandler.enable()
    t.fill(world, "u", 1)
    t.records_of(t.TlsClient(world).client.fetch([("u", 0, 0)]))
assert t.mapped()
file = open(here / "cut", "wb+")
file.truncate(8192)
found = mmap.mmap(file.fileno(), 8192)
file.truncate(0)
print("so far", flush=True)
{then}
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("then", ["found[0]", "os.kill(os.getpid(), signal.SIGBUS)"])
def test_any_other_bus_error_ends_the_process_as_before(then, again):
    text = BUS.format(then=then, again=again)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout == "so far\n", done.stderr
    assert done.returncode == -signal.SIGBUS
    assert "Bus error" in done.stderr
