"""TLS of a connection that this broker opens: handshakes with a peer that a test plays, fetches over it."""

import random
import socket
import ssl

import pytest

from kafkad._native.serving.outgoing_tls import OutgoingTls
from kafkad._native.serving.tls import TlsContext
from kafkad._native.serving.tls_keys import TlsError
from kafkad.config.broker import BrokerConfig
from kafkad.security.tls import client_context
from tests.certificates import make_stores
from tests.unit.log_world import LogWorld, topic_config
from tests.unit.test_replica_fetch import TOPIC, World

STEPS = 2_000


def behind(leader, log):
    """The batches that a follower lacks."""
    return b"".join(leader.log.batches(log.end_offset, leader.log.end_offset))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


def context_of(stores, authority="ca", **more) -> TlsContext:
    given = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores / f"{authority}.pem"),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return client_context(BrokerConfig(given), "N", lambda path: open(path, "rb").read())


class Far:
    """The peer: a server of TLS on one end of a socket pair, a step whenever something is wanted of it."""

    def __init__(self, raw, stores, name, poll, client_auth=ssl.CERT_NONE, newest=ssl.TLSVersion.TLSv1_3):
        self.raw, self.poll = raw, poll
        self.cut = None  # how many bytes of ciphertext are sent at once
        raw.setblocking(False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(stores / f"{name}.pem")
        context.load_verify_locations(stores / "ca.pem")
        context.verify_mode, context.maximum_version = client_auth, newest
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def settimeout(self, seconds):
        """It never waits."""

    def pull(self):
        try:
            data = self.raw.recv(1 << 16)
        except BlockingIOError:
            return
        if data:
            self.incoming.write(data)

    def push(self):
        data = self.outgoing.read()
        while data:
            size = self.cut() if self.cut else len(data)
            try:
                sent = self.raw.send(data[:size])
            except BlockingIOError:
                sent = 0
            data = data[sent:]
            self.poll(1)

    def shake(self):
        """Whether the handshake is over."""
        self.pull()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.push()
        return True

    def recv(self, size, flags=0):
        data = b""
        for _ in range(STEPS):
            self.poll(1)
            self.pull()
            try:
                data += self.tls.read(size - len(data))
            except ssl.SSLWantReadError:
                continue
            if len(data) == size:
                return data
        raise AssertionError("nothing comes")

    def sendall(self, data):
        self.tls.write(data)
        self.push()


class TlsWorld(World):
    """A World whose connection is encrypted."""

    def begin(self, stores, name="server", host="localhost", context=None, checks_host=True, **far):
        near, raw = socket.socketpair()
        near.setblocking(False)
        self.near = near
        self.far = Far(raw, stores, name, lambda count: self.poll(count), **far)
        context = context_of(stores) if context is None else context
        return OutgoingTls(
            self.reactor, context, near.fileno(), host, checks_host=checks_host, names_host=True
        )

    def shake(self, tls):
        theirs = ours = False
        for _ in range(STEPS):
            ours = ours or tls.shake()
            theirs = theirs or self.far.shake()
            if ours and theirs:
                return tls
        raise AssertionError("the handshake does not end")

    def connect(self, stores, **options):
        tls = self.shake(self.begin(stores, **options))
        self.fetch.attach(self.near.detach(), 77, tls)
        return self


@pytest.fixture
def world(tmp_path):
    world = TlsWorld(tmp_path)
    yield world
    world.close()


@pytest.fixture
def leader(tmp_path):
    return LogWorld(tmp_path / "leader", topic_config())


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_ciphertext_in_any_pieces_is_the_same_records(world, leader, stores, newest):
    chance = random.Random(5)
    log = world.log()
    world.connect(stores, newest=newest)
    world.far.cut = lambda: chance.choice((1, 7, 100, 5_000, 70_000))
    for _ in range(12):
        world.asked()
        leader.append(count=chance.randrange(1, 40), size=chance.randrange(1, 3_000))
        records = behind(leader, log)
        world.answer(
            [((TOPIC, 0), {"records": records, "high_watermark": leader.log.end_offset})],
            pieces=lambda: chance.choice((1, 300, 20_000, 60_000)),
        )
        assert log.end_offset == leader.log.end_offset
    assert world.told == []


def test_nothing_waits_unseen_of_what_came_at_once(world, leader, stores):
    """Much more than the buffer, all of it in the socket or in OpenSSL before the reactor looks."""
    log = world.log()
    world.connect(stores)
    for _ in range(6):
        world.asked()
        leader.append(count=40, size=20_000)
        records = behind(leader, log)
        frame = world.frame([((TOPIC, 0), {"records": records, "high_watermark": leader.log.end_offset})])
        assert len(frame) > 700_000
        world.far.sendall(frame)
        for _ in range(STEPS):
            world.poll(1)
            if log.end_offset == leader.log.end_offset:
                break
        assert log.end_offset == leader.log.end_offset
    assert world.told == []


@pytest.mark.parametrize("end", ["closes", "sends what is no TLS"])
def test_a_connection_that_ends_is_told_of(world, stores, end):
    world.log()
    world.connect(stores)
    world.asked()
    if end == "closes":
        world.far.raw.close()
        told = "the leader has closed the connection"
    else:
        world.far.raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        told = "TLS: "
    world.poll(10)
    [(name, reason)] = world.told
    assert name == "lost" and told in reason
    assert not world.fetch.connected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"authority": "other"},
            "certificate verify failed: self-signed certificate in certificate chain|unable to get local",
        ),
        ({"host": "elsewhere"}, "certificate verify failed: hostname mismatch"),
        ({"host": "127.0.0.2"}, "certificate verify failed: IP address mismatch"),
        ({"name": "expired"}, "certificate verify failed: certificate has expired"),
        ({"name": "stranger"}, "certificate verify failed"),
    ],
)
def test_whose_certificate_is_refused(world, stores, options, told):
    given = dict(options)
    tls = world.begin(stores, context=context_of(stores, given.pop("authority", "ca")), **given)
    with pytest.raises(TlsError, match=told):
        world.shake(tls)
    tls.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_whose_certificate_is_taken(world, stores, host):
    world.shake(world.begin(stores, host=host)).close()


def test_a_name_is_not_checked_where_the_configuration_says_so(world, stores):
    world.shake(world.begin(stores, host="elsewhere", checks_host=False)).close()


def test_a_certificate_of_our_own_is_shown_to_who_asks(world, stores):
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(stores / "client.pem")}
    world.shake(world.begin(stores, context=context_of(stores, **own), client_auth=ssl.CERT_REQUIRED))
    assert dict(part[0] for part in world.far.tls.getpeercert()["subject"])["commonName"] == "client"


def test_a_peer_without_tls_is_named(world, stores):
    tls = world.begin(stores)
    assert not tls.shake()
    world.far.raw.send(b"\0\0\0\x10 not a handshake")
    with pytest.raises(TlsError, match="the other node does not speak TLS there"):
        tls.shake()


def test_tls_that_is_closed_or_handed_over_is_not_used(world, stores):
    tls = world.shake(world.begin(stores))
    with pytest.raises(ValueError, match="a read of 0 bytes"):
        tls.read(0)
    tls.close()
    tls.close()
    for use in (tls.shake, tls.push, lambda: tls.waits, lambda: tls.write(b"x"), lambda: tls.read(1)):
        with pytest.raises(ValueError, match="this TLS is closed"):
            use()


def test_no_plaintext_is_sent_where_the_handshake_is_not_over(world, stores):
    world.log()
    for tls in (world.begin(stores), world.begin(stores)):
        with pytest.raises(ValueError, match="the handshake of this connection has not ended"):
            world.fetch.attach(world.near.fileno(), 77, tls)
        assert not world.fetch.connected
        tls.close()
    with pytest.raises(ValueError, match="the handshake of this connection has not ended"):
        world.fetch.attach(world.near.fileno(), 77, tls)
