"""REVIEW D7: how much a request may ask Python to make of it.

A wide frame is decoded in steps, but all of its objects are in memory at the end. So its bytes are bounded,
and its values are."""

import struct

import pytest
from reactor_world import World

from kafkad.protocol import codec
from kafkad.protocol import messages as m
from kafkad.protocol.errors import Malformed

OFFSETS = m.OffsetCommitRequest.Topics
FETCHED = m.OffsetFetchRequest.Groups
CREATED = m.CreateTopicsRequest.Topics

LEGITIMATE = {
    "Metadata of 50,000 topics": (
        m.MetadataRequest(topics=[m.MetadataRequest.Topics(name=f"topic-{i}") for i in range(50_000)]),
        12,
    ),
    "OffsetFetch of 100,000 partitions": (
        m.OffsetFetchRequest(
            groups=[
                FETCHED(
                    group_id="g",
                    topics=[
                        FETCHED.Topics(name=f"topic-{i}", partition_indexes=list(range(100)))
                        for i in range(1000)
                    ],
                )
            ]
        ),
        8,
    ),
    "OffsetCommit of 100,000 partitions": (
        m.OffsetCommitRequest(
            group_id="g",
            topics=[
                OFFSETS(
                    name=f"topic-{i}", partitions=[OFFSETS.Partitions(partition_index=j) for j in range(100)]
                )
                for i in range(1000)
            ],
        ),
        8,
    ),
    "CreateTopics of 50,000 topics": (
        m.CreateTopicsRequest(topics=[CREATED(name=f"topic-{i}", num_partitions=1) for i in range(50_000)]),
        7,
    ),
}


@pytest.mark.parametrize("request_, version", LEGITIMATE.values(), ids=LEGITIMATE)
def test_large_requests_of_real_clients_decode(request_, version):
    _, decoded = codec.decode_request(codec.encode_request(request_, version, 1, "c"))
    assert decoded == request_


def header(key, version, flexible):
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")


TOO_MANY = {
    "empty topic names of Metadata v1": header(3, 1, False) + struct.pack(">i", 2_000_000) + bytes(4_000_000),
    "empty group ids of DescribeGroups v0": header(15, 0, False)
    + struct.pack(">i", 2_000_000)
    + bytes(4_000_000),
    "numbers of DescribeProducers v0": header(61, 0, True) + b"\2\2x" + b"\x81\x89\x7a" + bytes(8_000_000),
    "unknown tags of ApiVersions v3": header(18, 3, True) + b"\1\1" + b"\x80\x89\x7a" + b"\x63\0" * 2_000_000,
}


@pytest.mark.parametrize("frame", TOO_MANY.values(), ids=TOO_MANY)
def test_millions_of_values_do_not_parse(frame):
    with pytest.raises(Malformed, match="more values than one message may have"):
        codec.decode_request(frame)


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def test_only_a_produce_may_be_above_16_mib(world):
    client = world.connect()
    for size in (1 << 20, 16 << 20):
        client.send_frame(header(3, 1, False) + bytes(size - 10))
        assert client.receive_frame() == b"\0\0\0\1!"
    client.send_frame(header(3, 1, False) + bytes((16 << 20) - 9))
    client.wait_closed()
    assert "above 16 MiB" in world.lines[-1]
    assert len(world.calls) == 2
