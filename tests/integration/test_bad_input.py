"""Whatever bytes arrive: a Kafka error code, or the connection closes. Never a crash, a hang or much memory.

One broker serves the whole file: if any of these hurt it, the tests after it fail.
"""

import gzip
import os
import random
import socket
import struct
import time
import zlib

import psutil
import pytest
import zstandard

from kafkad.protocol import codec, errors, messages
from kafkad.testing import Broker
from tests.wire import Wire, batch, create_topic, high_watermark, produce, produce_request

API_VERSIONS = messages.ApiVersionsRequest


@pytest.fixture(scope="module")
def broker():
    config = {
        "socket.request.max.bytes": 4 << 20,
        "message.max.bytes": 1 << 20,
        "max.connections.per.ip": 3000,
        "socket.listen.backlog.size": 5000,  # else the kernel drops some, and they come again a second later
    }
    with Broker(config=config) as broker:
        pids = broker.worker_pids
        yield broker
        assert broker.running and broker.worker_pids == pids, "the broker died of bad input"


@pytest.fixture
def wire(broker):
    with Wire(broker.bootstrap) as wire:
        yield wire


@pytest.fixture(scope="module")
def topic(broker):
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "target")
    return "target"


def assert_alive(broker):
    with Wire(broker.bootstrap) as other:
        assert other.ask(messages.MetadataRequest(topics=[]), 9).brokers


def rss_mb(broker) -> float:
    """Of all that serve; what they share is counted once."""
    if broker.workers == 1:
        return psutil.Process(broker.pid).memory_info().rss / 1e6
    return sum(psutil.Process(pid).memory_full_info().pss for pid in broker.worker_pids.values()) / 1e6


def descriptors(broker) -> int:
    return max(psutil.Process(pid).num_fds() for pid in broker.worker_pids.values())


# -- frames


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", (4 << 20) + 1),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS ClientHello
    ],
    ids=["minus one", "most negative", "one over", "largest", "http", "tls"],
)
def test_a_frame_size_out_of_range_closes(broker, wire, raw):
    wire.socket.sendall(raw)
    assert wire.is_closed_by_broker()
    assert_alive(broker)


@pytest.mark.parametrize("size", [0, 1, 3, 7])
def test_a_frame_too_small_for_a_header_closes(broker, wire, size):
    wire.send_frame(bytes(size))
    assert wire.is_closed_by_broker()
    assert_alive(broker)


@pytest.mark.parametrize("key", [-1, 4, 5, 6, 7, 71, 93, 32767])
def test_an_api_that_is_not_served_closes(broker, wire, key):
    wire.send_frame(struct.pack(">hhih", key, 0, 1, -1))
    assert wire.is_closed_by_broker()
    assert_alive(broker)


@pytest.mark.parametrize(
    ("key", "version"), [(0, 2), (0, 14), (1, 3), (1, 19), (3, 14), (3, -1), (18, -1), (22, 6)]
)
def test_a_version_that_is_not_served_closes(broker, wire, key, version):
    wire.send_frame(struct.pack(">hhih", key, version, 1, -1))
    assert wire.is_closed_by_broker()
    assert_alive(broker)


def test_api_versions_of_an_unknown_version_is_answered_in_v0(wire):
    """KIP-511: error 35 and ApiVersions' own range, in the v0 format, so that the client can try again."""
    header = struct.pack(">hhih", 18, 99, 77, 4) + b"test" + b"\x00"
    wire.send_frame(header + b"whatever its body is")
    correlation, response = codec.decode_response(messages.ApiVersionsResponse, 0, wire.read_frame())
    assert correlation == 77
    assert response.error_code == errors.UNSUPPORTED_VERSION
    assert [(a.api_key, a.min_version, a.max_version) for a in response.api_keys] == [(18, 0, 4)]
    assert wire.ask(API_VERSIONS(client_software_name="x", client_software_version="1"), 3).error_code == 0


def test_a_bad_client_software_name_is_invalid_request(wire):
    response = wire.ask(API_VERSIONS(client_software_name="not ok!", client_software_version="1"), 3)
    assert response.error_code == errors.INVALID_REQUEST


def test_millions_of_array_elements_in_a_small_frame_close(broker):
    before = rss_mb(broker)
    for claimed in (2**31 - 1, 2**20, -2):
        with Wire(broker.bootstrap) as wire:  # Metadata v1: int32 count
            wire.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, claimed))
            assert wire.is_closed_by_broker()
    with Wire(broker.bootstrap) as wire:  # Metadata v9: compact count
        wire.send_frame(struct.pack(">hhih", 3, 9, 1, -1) + b"\x00" + b"\xff\xff\xff\xff\x0f")
        assert wire.is_closed_by_broker()
    for key, version, head in (
        (0, 7, struct.pack(">hhi", -1, 1, 1000)),
        (1, 4, struct.pack(">iiiib", -1, 1, 1, 1, 0)),
    ):
        with Wire(broker.bootstrap) as wire:
            wire.send_frame(struct.pack(">hhih", key, version, 1, -1) + head + struct.pack(">i", 2**30))
            assert wire.is_closed_by_broker()
    assert rss_mb(broker) - before < 64
    assert_alive(broker)


def test_every_truncation_of_a_request_closes_or_is_answered(broker, topic):
    """No prefix of a valid body crashes the parser, and none leaves the connection hanging."""
    requests = [
        (messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=topic)]), 9),
        (produce_request(topic, batch(b"a", b"b")), 9),
        (produce_request(topic, batch(b"a", b"b")), 3),
        (messages.OffsetFetchRequest(group_id="g", topics=None), 7),
    ]
    for request, version in requests:
        frame = codec.encode_request(request, version, 5, "cut")
        for size in range(8, len(frame)):
            with Wire(broker.bootstrap) as wire:
                wire.send_frame(frame[:size])
                wire.socket.settimeout(5)
                try:
                    wire.read_frame()
                except ConnectionError:
                    pass
    assert_alive(broker)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_random_frames_never_hurt(broker, rounds):
    chance = random.Random(int(os.environ.get("KAFKAD_SEED", "7")))
    valid = [
        codec.encode_request(messages.MetadataRequest(topics=None), 12, 1, "fuzz"),
        codec.encode_request(
            messages.JoinGroupRequest(group_id="g", session_timeout_ms=10_000), 9, 1, "fuzz"
        ),
        codec.encode_request(messages.CreateTopicsRequest(timeout_ms=1), 7, 1, "fuzz"),
        codec.encode_request(produce_request("target", batch(b"x" * 50)), 9, 1, "fuzz"),
        codec.encode_request(messages.FetchRequest(max_wait_ms=1), 12, 1, "fuzz"),
    ]
    until = time.monotonic() + rounds(20, 600)
    sent = 0
    while time.monotonic() < until:
        frame = bytearray(chance.choice(valid))
        for _ in range(chance.randrange(1, 6)):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
        if chance.random() < 0.2:
            frame = bytearray(chance.randbytes(chance.randrange(0, 200)))
            frame[0:4] = struct.pack(">hh", chance.randrange(-1, 93), chance.randrange(0, 19))
        with Wire(broker.bootstrap) as wire:
            wire.send_frame(bytes(frame))
            wire.socket.settimeout(0.02)
            try:
                wire.socket.recv(65536)
            except (TimeoutError, ConnectionError):
                pass
        sent += 1
    assert sent > 100
    assert_alive(broker)


# -- record batches


def recrc(data: bytearray) -> bytes:
    import crc32c

    data[17:21] = struct.pack(">I", crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def test_a_wrong_crc_is_corrupt_message(wire, topic):
    data = batch(b"hello")
    data[-2] ^= 1
    assert produce(wire, topic, bytes(data)).error_code == errors.CORRUPT_MESSAGE


@pytest.mark.parametrize("count", [0, 2, 4, -1, 2**31 - 1])
def test_a_wrong_record_count_is_invalid_record(wire, topic, count):
    data = batch(b"a", b"b", b"c")
    data[57:61] = struct.pack(">i", count)
    assert produce(wire, topic, recrc(data)).error_code == errors.INVALID_RECORD


def test_two_batches_for_one_partition_are_invalid_record(wire, topic):
    assert produce(wire, topic, bytes(batch(b"a")) + bytes(batch(b"b"))).error_code == errors.INVALID_RECORD


def test_a_wrong_last_offset_delta_is_invalid_record(wire, topic):
    data = batch(b"a", b"b")
    data[23:27] = struct.pack(">i", 7)
    assert produce(wire, topic, recrc(data)).error_code == errors.INVALID_RECORD


def test_a_control_batch_from_a_client_is_invalid_record(wire, topic):
    data = batch(b"a")
    data[21:23] = struct.pack(">h", 0x20)
    assert produce(wire, topic, recrc(data)).error_code == errors.INVALID_RECORD


def test_a_negative_sequence_of_an_idempotent_producer_is_invalid_record(wire, topic):
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    data[53:57] = struct.pack(">i", -5)
    assert produce(wire, topic, recrc(data)).error_code == errors.INVALID_RECORD


def test_a_record_length_that_lies_is_refused(wire, topic):
    for lie in (0, 1, 0x7E, 0xFF):
        data = batch(b"a" * 20, b"b" * 20)
        data[61] = lie
        assert produce(wire, topic, recrc(data)).error_code in (errors.INVALID_RECORD, errors.CORRUPT_MESSAGE)


def test_a_batch_over_max_message_bytes_is_too_large(wire, topic):
    assert produce(wire, topic, bytes(batch(os.urandom(1_100_000)))).error_code == errors.MESSAGE_TOO_LARGE


def compressed(codec_id: int, payload: bytes, records: int) -> bytes:
    data = batch(b"x")[:61] + payload
    data[8:12] = struct.pack(">i", len(data) - 12)
    data[21:23] = struct.pack(">h", codec_id)
    data[23:27] = struct.pack(">i", records - 1)
    data[57:61] = struct.pack(">i", records)
    return recrc(data)


@pytest.mark.parametrize("codec_id", [1, 2, 3, 4])
def test_garbage_instead_of_compressed_records_is_corrupt(wire, topic, codec_id):
    answer = produce(wire, topic, compressed(codec_id, os.urandom(300), 3))
    assert answer.error_code == errors.CORRUPT_MESSAGE


def test_an_unknown_codec_is_refused(wire, topic):
    assert produce(wire, topic, compressed(5, b"abc", 1)).error_code in (
        errors.CORRUPT_MESSAGE,
        errors.INVALID_RECORD,
        errors.UNSUPPORTED_COMPRESSION_TYPE,
    )


def test_a_decompression_bomb_costs_no_memory(broker, topic):
    """A megabyte that unpacks to about a gigabyte."""
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(zeros.compress(bytes(1 << 20)) for _ in range(900)) + zeros.flush()
    with Wire(broker.bootstrap, timeout=60) as wire:
        before = rss_mb(broker)
        assert produce(wire, topic, compressed(1, bomb, 1)).error_code != 0
        packed = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 29))
        assert produce(wire, topic, compressed(4, packed, 1)).error_code != 0
        assert rss_mb(broker) - before < 64
    assert_alive(broker)


def test_a_truncated_gzip_stream_is_corrupt(wire, topic):
    good = gzip.compress(bytes(batch(b"a" * 500, b"b" * 500)[61:]))
    assert produce(wire, topic, compressed(1, good[:-12], 2)).error_code == errors.CORRUPT_MESSAGE
    assert produce(wire, topic, compressed(1, good, 2)).error_code == 0


def test_what_was_refused_left_nothing_in_the_log(wire, topic):
    before = high_watermark(wire, topic)
    data = batch(b"refused")
    data[-2] ^= 1
    assert produce(wire, topic, bytes(data)).error_code == errors.CORRUPT_MESSAGE
    assert high_watermark(wire, topic) == before
    assert produce(wire, topic, bytes(batch(b"taken"))).base_offset == before


def test_unknown_topics_partitions_and_acks(wire, topic):
    assert produce(wire, "nosuch", bytes(batch(b"a"))).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        produce(wire, topic, bytes(batch(b"a")), partition=9).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    )
    response = wire.ask(produce_request(topic, batch(b"a"), acks=5), 9)
    assert response.responses[0].partition_responses[0].error_code == errors.INVALID_REQUIRED_ACKS


# -- connections


def test_a_slow_sender_holds_up_nobody(broker, topic):
    frame = codec.encode_request(produce_request(topic, batch(b"slow")), 9, 1, "slow")
    whole = len(frame).to_bytes(4, "big") + frame
    with Wire(broker.bootstrap) as slow:
        for byte in whole[:-1]:
            slow.socket.sendall(bytes([byte]))
        assert_alive(broker)
        slow.socket.sendall(whole[-1:])
        _, response = codec.decode_response(messages.ProduceResponse, 9, slow.read_frame())
        assert response.responses[0].partition_responses[0].error_code == 0


def test_a_reader_that_does_not_read_costs_bounded_memory(broker):
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "unread")
        for _ in range(20):
            assert produce(wire, "unread", bytes(batch(os.urandom(900_000)))).error_code == 0
    fetch = messages.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[
            messages.FetchRequest.Topics(
                topic="unread",
                partitions=[
                    messages.FetchRequest.Topics.Partitions(
                        partition=0, fetch_offset=0, partition_max_bytes=50 << 20
                    )
                ],
            )
        ],
    )
    before = rss_mb(broker)
    wires = [Wire(broker.bootstrap) for _ in range(20)]
    for wire in wires:
        for _ in range(20):
            try:
                wire.socket.settimeout(0.2)
                wire.send(fetch, 11)
            except TimeoutError:
                break
    time.sleep(0.5)
    assert rss_mb(broker) - before < 64
    assert_alive(broker)
    for wire in wires:
        wire.socket.close()


def test_pipelined_requests_are_answered_in_order(wire, topic):
    sent = []
    for number in range(50):
        sent.append(wire.send(produce_request(topic, batch(b"%d" % number)), 9))
        sent.append(wire.send(messages.MetadataRequest(topics=[]), 9))
    got = [int.from_bytes(wire.read_frame()[:4], "big") for _ in sent]
    assert got == sent


def test_half_open_and_reset_connections_are_forgotten(broker):
    for _ in range(200):
        s = socket.create_connection(tuple(broker.bootstrap.split(":")), timeout=5)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.sendall(b"\x00\x00")
        s.close()
    assert_alive(broker)
    deadline = time.monotonic() + 5
    while descriptors(broker) > 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descriptors(broker) <= 200


def test_thousands_of_connections_are_served_and_the_limit_holds(broker):
    before = rss_mb(broker)
    wires = []
    try:
        wires += [Wire(broker.bootstrap) for _ in range(2500)]
        for wire in wires[::100]:
            assert wire.ask(messages.MetadataRequest(topics=[]), 9).brokers
        assert rss_mb(broker) - before < 2500 * 0.008 + 10  # 8 KB each
        extra = [Wire(broker.bootstrap) for _ in range(600)]
        wires += extra
        time.sleep(0.3)
        assert extra[-1].is_closed_by_broker(), "max.connections.per.ip is 3000"
    finally:
        for wire in wires:
            wire.socket.close()
    time.sleep(0.3)
    assert_alive(broker)
