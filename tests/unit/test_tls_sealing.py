"""Records of TLS 1.3 that kafkad encrypts itself: OpenSSL, as the client, reads all of them."""

import ssl

import pytest
from reactor_world import batch

from kafkad._native.serving.tls_sealing import sealed, set_records_of_a_key
from tests.certificates import make_stores
from tests.readiness import readable
from tests.unit.test_cold_reads import fill, records_of
from tests.unit.test_tls_regions import MIB, TlsClient, secured

SUITES = {
    "TLS_AES_128_GCM_SHA256": True,
    "TLS_AES_256_GCM_SHA384": True,
    "TLS_CHACHA20_POLY1305_SHA256": False,
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": False,
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(params=SUITES)
def world(request, tmp_path, stores):
    world = secured(tmp_path, stores, ssl_cipher_suites=request.param)
    world.seals = SUITES[request.param]
    yield world
    world.close()
    world.secret.close()


@pytest.fixture
def client(world):
    return TlsClient(world).client


def test_answers_and_regions_are_sealed_with_aes_gcm(world, client):
    fill(world, "t", 0)
    before = sealed()
    for size in (1, 10_000, 16_384, 100_000, 2 * MIB - 1000):
        data = batch(1, size)
        offset = client.produce("t", data).base_offset
        found = records_of(client.fetch([("t", 0, offset, 3 * MIB)]))
        assert found[61:] == data[61:]
    count = sealed() - before
    assert (count > 2 * MIB // 16_384) if world.seals else (count == 0)


def test_a_key_that_is_worn_is_changed(world, client):
    fill(world, "t", 0)
    data = batch(1, 2 * MIB - 1000)
    client.produce("t", data)
    made = []
    try:
        for _ in range(3):
            before = sealed()
            assert records_of(client.fetch([("t", 0, 0, 3 * MIB)]))[61:] == data[61:]
            made.append(sealed() - before)
            set_records_of_a_key(5 if len(made) == 2 else 1 << 24)
    finally:
        set_records_of_a_key(1 << 24)
    _, before, after = made
    assert (before >= 128 and after == before + (before + 4) // 5) if world.seals else (before == after == 0)


def heard(world, reader):
    """What ends the connection, for the client."""
    for _ in range(200):
        world.poll(1)
        try:
            reader.take()
            if reader.tls.read(MIB) == b"":
                return "closed"
        except ssl.SSLWantReadError:
            readable([reader.raw, world.reactor.fileno()], 0.05)
        except ssl.SSLZeroReturnError:
            return "closed"
        except ssl.SSLError as error:
            return error.reason
    raise AssertionError("nothing ends it")


def test_an_alert_reaches_the_client(world, client):
    assert client.produce("none", batch()).error_code == 3
    client.socket.raw.sendall(bytes.fromhex("1703030030") + bytes(48))
    assert "BAD_RECORD_MAC" in heard(world, client.socket)


def test_a_goodbye_reaches_the_client(world, client):
    client.send(b"\xff" * 100)
    assert heard(world, client.socket) == "closed"
