"""Clients of before Kafka 0.11, which know no batches v2: kafka-python and librdkafka, for an old broker."""

import time

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkad.protocol import codec, messages
from kafkad.protocol import compression as codecs
from kafkad.protocol.legacy_records import read_entries
from kafkad.protocol.records import read_batches
from kafkad.testing import Broker
from tests.wire import Wire, batch, create_topic, produce

VERSIONS = [(0, 8, 0), (0, 8, 2), (0, 9), (0, 10, 0), (0, 10, 2)]
CODECS = [None, "gzip", "snappy", "lz4"]


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def broker(request):
    with Broker(workers=request.param) as broker:
        yield broker


def name_of(version: tuple[int, ...], codec: str | None) -> str:
    return f"t{'.'.join(map(str, version))}-{codec}"


def values(count: int) -> list[bytes]:
    return [b"%d" % number * (1 + number % 50) for number in range(count)]


def stored(broker: Broker, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None]]:
    cls = messages.FetchRequest
    found: list[tuple[bytes | None, bytes | None]] = []
    with Wire(broker.bootstrap) as wire:
        while True:
            part = cls.Topics.Partitions(
                partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20
            )
            asked = cls(max_wait_ms=0, max_bytes=1 << 20, topics=[cls.Topics(topic=topic, partitions=[part])])
            batches = list(read_batches(wire.ask(asked, 4).responses[0].partitions[0].records))
            if not batches:
                return found
            found += [(r.key, r.value) for batch in batches for r in batch.records()]


@pytest.mark.parametrize(
    ("version", "codec"),
    [(each, codec) for each in VERSIONS for codec in CODECS if (each, codec) != ((0, 8, 0), "lz4")],
)
def test_a_producer(broker, version, codec):
    topic = name_of(version, codec)
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, topic, partitions=4)
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, api_version=version, compression_type=codec, linger_ms=5
    )
    sent: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(4)}
    futures = []
    for number, value in enumerate(values(400)):
        sent[number % 4].append((b"k%d" % number, value))
        futures.append(producer.send(topic, key=b"k%d" % number, value=value, partition=number % 4))
    for number, future in enumerate(futures):
        assert future.get(20).offset == number // 4
    producer.close()
    for index in range(4):
        assert stored(broker, topic, index) == sent[index]


def filled(broker: Broker, topic: str) -> list[bytes]:
    """A topic of one partition with batches v2 of all codecs that old clients know; its values."""
    sent = []
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, topic)
        for number in range(40):
            rows = [b"%d-%d" % (number, each) * (1 + each) for each in range(1 + number % 7)]
            sent += rows
            packed = batch(
                *rows, compression=(codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4)[number % 4]
            )
            assert produce(wire, topic, packed).error_code == 0
    return sent


@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer(broker, version):
    """It reads what clients of today wrote."""
    topic = "read" + ".".join(map(str, version))
    sent = filled(broker, topic)
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        api_version=version,
        auto_offset_reset="earliest",
        group_id=None,
        check_crcs=True,
    )
    consumer.assign([place])
    consumer.seek(place, 0)
    got = []
    deadline = time.monotonic() + 20
    while len(got) < len(sent) and time.monotonic() < deadline:
        for rows in consumer.poll(200).values():
            got += [(row.offset, row.value) for row in rows]
    consumer.close()
    assert got == list(enumerate(sent))


# kafka-python forgets its assignment if a poll ends between SyncGroup and its answer
POLL_MS = 5000


@pytest.mark.parametrize("version", [(0, 9), (0, 10, 0), (0, 10, 2)])
def test_a_group(broker, version):
    topic = "group" + ".".join(map(str, version))
    sent = filled(broker, topic)
    seen: list[bytes] = []
    for _ in range(2):  # the second one goes on where the first has stopped
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            api_version=version,
            auto_offset_reset="earliest",
            group_id=topic,
            max_poll_records=20,
            enable_auto_commit=False,
        )
        deadline = time.monotonic() + 20
        got = 0
        while got < 40 and len(seen) < len(sent) and time.monotonic() < deadline:
            for rows in consumer.poll(POLL_MS).values():
                seen += [row.value for row in rows]
                got += len(rows)
        consumer.commit()
        consumer.close()
    assert len(seen) >= 80 and seen == sent[: len(seen)]


@pytest.mark.parametrize("fallback", ["0.8.2", "0.9.0", "0.10.0.0"])
def test_librdkafka_that_does_not_ask_for_versions(broker, fallback):
    topic = f"rd{fallback}"
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, topic)
    old = {
        "bootstrap.servers": broker.bootstrap,
        "api.version.request": False,
        "broker.version.fallback": fallback,
    }
    sent = values(300)
    failed: list[object] = []

    def delivered(error, _):
        if error is not None:
            failed.append(error)

    for name in ("none", "gzip", "snappy"):
        producer = confluent_kafka.Producer({**old, "compression.type": name, "linger.ms": 5})
        for value in sent:
            producer.produce(topic, value, on_delivery=delivered)
        assert producer.flush(20) == 0 and not failed
    consumer = confluent_kafka.Consumer({**old, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    got = []
    deadline = time.monotonic() + 20
    while len(got) < 900 and time.monotonic() < deadline:
        for record in consumer.consume(500, 0.2):
            assert record.error() is None, record.error()
            got.append(record.value())
    consumer.close()
    assert got == sent * 3


def fetch(topic: str, offset: int, wait_ms: int, limit: int = 1 << 20):
    cls = messages.FetchRequest
    part = cls.Topics.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=limit)
    return cls(max_wait_ms=wait_ms, min_bytes=1, topics=[cls.Topics(topic=topic, partitions=[part])])


def marker(wire: Wire, topic: str) -> None:
    """A control batch, as a transaction's end writes it."""
    cls = messages.WriteTxnMarkersRequest
    ended = cls.Markers(producer_id=9, topics=[cls.Markers.Topics(name=topic, partition_indexes=[0])])
    assert wire.ask(cls(markers=[ended]), 1).markers[0].topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("version", [0, 3])
def test_a_fetch_waits_behind_control_batches_and_not_on_them(broker, version):
    """They become no message. An empty answer at once would make the client ask again and again."""
    topic = f"markers{version}"
    with Wire(broker.bootstrap) as wire, Wire(broker.bootstrap) as other:
        create_topic(other, topic)
        for _ in range(30):
            marker(other, topic)
        began = time.monotonic()
        assert wire.ask(fetch(topic, 0, 400), version).responses[0].partitions[0].records == b""
        assert time.monotonic() - began >= 0.35
        sent = wire.send(fetch(topic, 0, 20_000, limit=100), version)
        time.sleep(0.1)
        assert produce(other, topic, batch(b"new")).error_code == 0
        frame = wire.read_frame()
        correlation, answer = codec.decode_response(messages.FetchResponse, version, frame)
        assert correlation == sent
        (entry,) = read_entries(answer.responses[0].partitions[0].records)
        assert (entry.offset, entry.value) == (30, b"new")


def test_a_connection_that_closes_while_its_answer_is_converted(broker):
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "closing")
        rows = [b"x" * 1_000] * 900
        for _ in range(4):
            assert produce(wire, "closing", batch(*rows, compression=codecs.GZIP)).error_code == 0
        for _ in range(30):
            with Wire(broker.bootstrap) as gone:
                gone.send(fetch("closing", 0, 0), 1)
        answer = wire.ask(fetch("closing", 900, 0), 1)
        (entry, *_) = read_entries(answer.responses[0].partitions[0].records)
        assert entry.offset == 1_799 and len(entry.records()) == 900
