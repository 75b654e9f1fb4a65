"""What librdkafka writes, taken raw from its own mock cluster, passes as it is and reads back."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kafkad._native.wire.batch import AppendRules
from kafkad.protocol import codec, compression, messages
from kafkad.protocol.records import Batch, read_batches
from kafkad.protocol.validation import validate_slow

COUNT = 1000


def fetch(host: str, port: int, topic: str, offset: int) -> bytes:
    """The mock gives one batch at a time; on a busy machine librdkafka makes several."""
    partition = messages.FetchRequest.Topics.Partitions(partition_max_bytes=1 << 24, fetch_offset=offset)
    asked = messages.FetchRequest.Topics(topic=topic, partitions=[partition])
    frame = codec.encode_request(
        messages.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 24, topics=[asked]), 11, 1, "test"
    )
    with (
        socket.create_connection((host, port), timeout=10) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", stream.read(4))
        _, response = codec.decode_response(messages.FetchResponse, 11, stream.read(size))
    return response.responses[0].partitions[0].records


def all_batches(host: str, port: int, topic: str) -> Iterator[Batch]:
    offset = 0
    while offset < COUNT and (data := fetch(host, port, topic, offset)):
        for batch in read_batches(data):
            yield batch
            offset = batch.last_offset + 1


@pytest.mark.parametrize("name", compression.NAMES)
def test_librdkafkas_batches_pass(name):
    producer = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "compression.type": name, "linger.ms": 100}
    )
    for i in range(COUNT):
        producer.produce(
            "topic",
            key=b"%d" % i,
            value=b"value" * 10 + b"%d" % i,
            headers=[("h", b"x"), ("n", None)],
            partition=0,
        )
    assert producer.flush(10) == 0
    broker = next(iter(producer.list_topics().brokers.values()))

    found = []
    now_ms = int(time.time() * 1000)
    for batch in all_batches(broker.host, broker.port, "topic"):
        assert batch.is_intact()
        assert batch.compression == compression.NAMES.index(name)
        found += batch.records()
        produced = bytearray(batch.bytes)
        produced[:8] = bytes(8)
        if batch.compression:
            same, header = validate_slow(produced, AppendRules(), now_ms)
            assert same is produced
        else:
            verdict, header = AppendRules().validate(produced, now_ms)
            assert verdict == 0
        assert produced[8:] == batch.bytes[8:]
        assert header.walked_max_timestamp == batch.max_timestamp
    assert [record.value for record in found] == [b"value" * 10 + b"%d" % i for i in range(COUNT)]
    assert {tuple(record.headers) for record in found} == {(("h", b"x"), ("n", None))}
