"""The client library against a real broker: nothing lost, doubled or reordered, whatever happens."""

import random
import threading
import time

import confluent_kafka
import pytest

from kafkad.client.cluster import Cluster, parse_address
from kafkad.client.connection import Connection, Unreachable
from kafkad.client.consumer import Aborted, Consumer
from kafkad.client.group import GroupConsumer, assigned, range_assignment
from kafkad.client.offsets import EARLIEST, LATEST, committed_offsets, list_offsets
from kafkad.client.producer import Producer, murmur2
from kafkad.protocol import messages
from kafkad.protocol.errors import MESSAGE_TOO_LARGE, OFFSET_OUT_OF_RANGE, KafkaError
from tests.clients import create_topic, wait_until

pytestmark = pytest.mark.workers(2, 4)


@pytest.fixture
def cluster(broker):
    with Cluster(broker.bootstrap) as cluster:
        yield cluster


def filled(cluster, topic, values, **how):
    producer = Producer(cluster, topic, **how)
    for value in values:
        producer.send(value)
    producer.flush()
    return producer


def drain(consumer, count, seconds=20):
    records = []
    deadline = time.monotonic() + seconds
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count}"
        records += consumer.poll()
    return records


def read_all(cluster, topic, **how):
    consumer = Consumer(cluster, topic, wait_ms=50, **how)
    partitions = cluster.partitions(topic)
    consumer.assign(list_offsets(cluster, topic, dict.fromkeys(partitions, EARLIEST)))
    ends = list_offsets(cluster, topic, dict.fromkeys(partitions, LATEST))
    records = []
    while any(consumer.positions[p] < end for p, end in ends.items()):
        records += consumer.poll()
    return records


# -- the partitioner -----------------------------------------------------------------------------------------

# Facts of Kafka's UtilsTest.testMurmur2
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", MURMUR2)
def test_murmur2_is_kafkas(key):
    assert murmur2(key) == MURMUR2[key] & 0xFFFFFFFF


def test_keys_go_where_librdkafka_and_java_put_them(broker, cluster, unique):
    topic = unique("keys")
    create_topic(broker, topic, partitions=7)
    seeded = random.Random(7)
    keys = [seeded.randbytes(seeded.randrange(0, 20)) for _ in range(100)]
    theirs = {}
    client = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "linger.ms": 5}
    )
    for key in keys:
        if key:  # librdkafka takes an empty key for none
            client.produce(topic, b"", key, on_delivery=lambda _e, m: theirs.update({m.key(): m.partition()}))
    client.flush(20)
    producer = Producer(cluster, topic)
    for key in keys:
        producer.send(b"ours", key)
    producer.flush()
    ours = {r.key: r.partition for r in read_all(cluster, topic) if r.value == b"ours"}
    assert len(theirs) > 90
    assert {key: ours[key] for key in theirs} == theirs


# -- the producer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_headers_and_nulls_come_back(cluster, unique, codec):
    topic = unique("codec")
    producer = Producer(cluster, topic, compression=codec)
    producer.send(b"v" * 1000, b"k", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_000)
    producer.send(None, None)
    producer.flush()
    first, second = sorted(read_all(cluster, topic), key=lambda r: r.key or b"zz")
    assert (first.key, first.value, first.timestamp) == (b"k", b"v" * 1000, 1_700_000_000_000)
    assert first.headers == [("a", b"1"), ("b", None)]
    assert (second.key, second.value, second.headers) == (None, None, [])


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(cluster, unique, acks):
    topic = unique("acks")
    filled(cluster, topic, [b"%d" % n for n in range(1000)], acks=acks)
    wait_until(lambda: len(read_all(cluster, topic)) == 1000, timeout=5)


def test_a_record_whose_partition_was_said_goes_nowhere_else(broker, cluster, unique):
    topic = create_topic(broker, unique("said"), 3)
    producer = Producer(cluster, topic, batch_bytes=1000)
    for _ in range(100):
        producer.send(b"x" * 100, partition=1)  # full batches, and no keys
    producer.flush()
    assert list_offsets(cluster, topic, dict.fromkeys(range(3), LATEST)) == {0: 0, 1: 100, 2: 0}


def test_a_retry_after_a_lost_answer_doubles_nothing(cluster, unique):
    """The request arrives, its answer does not: the same bytes are sent again."""
    topic = unique("lost")
    producer = Producer(cluster, topic)
    producer.send(b"first")
    producer.flush()
    receive, lost = Connection.receive, []

    def lose(connection):
        answer = receive(connection)
        if isinstance(answer, messages.ProduceResponse) and len(lost) < 2:
            lost.append(answer)
            connection.close()
            raise Unreachable("the answer is lost")
        return answer

    Connection.receive = lose
    try:
        for value in (b"second", b"third"):
            producer.send(value)
            producer.flush()
    finally:
        Connection.receive = receive
    assert len(lost) == 2
    assert sorted(r.value for r in read_all(cluster, topic)) == [b"first", b"second", b"third"]


def test_after_an_uncertain_failure_the_producer_id_is_new(cluster, unique):
    topic = unique("uncertain")
    producer = Producer(cluster, topic, delivery_seconds=0.0)
    producer.send(b"one")
    producer.flush()
    before = producer._producer_id
    send = Connection.send

    def fail(connection, request, *rest, **how):
        if isinstance(request, messages.ProduceRequest):
            raise Unreachable("the network is down")
        return send(connection, request, *rest, **how)

    Connection.send = fail
    try:
        producer.send(b"lost")
        with pytest.raises(Unreachable):
            producer.flush()
    finally:
        Connection.send = send
    producer.send(b"two")
    producer.flush()
    assert producer._producer_id != before
    assert sorted(r.value for r in read_all(cluster, topic)) == [b"one", b"two"]


def test_a_batch_too_large_for_the_topic_is_halved_and_a_record_is_refused(broker, cluster, unique):
    topic = unique("small")
    create_topic(broker, topic, partitions=1, config={"max.message.bytes": "2000"})
    values = [b"%03d" % n + b"x" * 500 for n in range(50)]
    producer = filled(cluster, topic, values)
    assert [r.value for r in read_all(cluster, topic)] == values
    producer.send(b"y" * 3000)
    with pytest.raises(KafkaError) as refused:
        producer.flush()
    assert refused.value.code == MESSAGE_TOO_LARGE
    producer.send(b"goes on")
    producer.flush()
    assert read_all(cluster, topic)[-1].value == b"goes on"


def test_nothing_is_lost_doubled_or_reordered_over_kill_9(make_broker):
    broker = make_broker()
    with Cluster(broker.bootstrap) as cluster:
        acknowledged = []
        producer = Producer(
            cluster,
            "t",
            batch_bytes=4000,
            request_bytes=8000,
            on_delivery=lambda *told: acknowledged.append(told),
        )

        def kill():
            for _ in range(2):
                before = len(acknowledged)
                wait_until(lambda before=before: len(acknowledged) > before + 20, timeout=20)
                broker.kill()
                time.sleep(0.1)
                broker.restart()

        killer = threading.Thread(target=kill)
        killer.start()
        sent = 0
        while killer.is_alive() or sent < 5000:
            producer.send(b"%08d" % sent, b"%d" % (sent % 5))
            sent += 1
            if sent % 500 == 0:
                time.sleep(0.005)
        producer.flush()
        killer.join()
        by_key = {}
        for record in read_all(cluster, "t"):
            by_key.setdefault(record.key, []).append(int(record.value))
    assert sum(map(len, by_key.values())) == sent == sum(count for _, _, count in acknowledged)
    for key, numbers in by_key.items():
        assert numbers == list(range(int(key), sent, 5))


# -- the consumer --------------------------------------------------------------------------------------------


def test_a_position_that_was_deleted_is_set_to_the_start_and_told(broker, cluster, unique):
    topic = unique("deleted")
    create_topic(broker, topic, partitions=1)
    filled(cluster, topic, [b"%d" % n for n in range(10)])
    struct = messages.DeleteRecordsRequest.Topics
    asked = struct(name=topic, partitions=[struct.Partitions(partition_index=0, offset=6)])
    cluster.leader(topic, 0).ask(messages.DeleteRecordsRequest(topics=[asked], timeout_ms=5000))
    told = []
    consumer = Consumer(cluster, topic, wait_ms=50, reset=LATEST, on_reset=lambda *what: told.append(what))
    consumer.assign({0: 2})
    assert [r.offset for r in drain(consumer, 4)] == [6, 7, 8, 9]
    assert told == [(0, 2, 6)]
    consumer.assign({0: 99})
    assert list(consumer.poll()) == []
    assert consumer.positions == {0: 10}
    strict = Consumer(cluster, topic, wait_ms=50, reset=None)
    strict.assign({0: 99})
    with pytest.raises(KafkaError, match="holds offsets 6 to 10, not 99") as refused:
        list(strict.poll())
    assert refused.value.code == OFFSET_OUT_OF_RANGE


def test_reading_from_the_middle_of_a_compressed_batch(broker, cluster, unique):
    topic = unique("middle")
    create_topic(broker, topic, partitions=1)
    filled(cluster, topic, [b"%d" % n for n in range(100)], compression=4)
    consumer = Consumer(cluster, topic, wait_ms=50)
    consumer.assign({0: 42})
    assert [r.offset for r in drain(consumer, 58)] == list(range(42, 100))


def test_a_consumer_lives_through_a_restart(make_broker):
    broker = make_broker()
    with Cluster(broker.bootstrap) as cluster:
        filled(cluster, "t", [b"before"])
        consumer = Consumer(cluster, "t", wait_ms=50)
        consumer.assign({0: 0})
        assert [r.value for r in drain(consumer, 1)] == [b"before"]
        broker.kill()
        broker.restart()
        filled(cluster, "t", [b"after"])
        assert [r.value for r in drain(consumer, 1)] == [b"after"]


def test_records_of_aborted_transactions_are_left_out():
    struct = messages.FetchResponse.Responses.Partitions.AbortedTransactions
    aborted = Aborted([struct(producer_id=7, first_offset=10), struct(producer_id=8, first_offset=30)])

    class Batch:
        is_control = False
        is_transactional = True

        def __init__(self, producer_id, last_offset):
            self.producer_id, self.last_offset = producer_id, last_offset

    assert not aborted.holds(Batch(7, 9))
    assert aborted.holds(Batch(7, 12))
    assert not aborted.holds(Batch(9, 13))
    assert not aborted.holds(Batch(8, 29))
    assert aborted.holds(Batch(8, 31))


# -- groups --------------------------------------------------------------------------------------------------


def test_range_assignment_is_kafkas():
    wants = {"b": ["t", "u"], "a": ["t"], "c": ["t"]}
    assert range_assignment(wants, {"t": [0, 1, 2, 3, 4, 5, 6], "u": [0, 1]}) == {
        "a": {"t": [0, 1, 2]},
        "b": {"t": [3, 4], "u": [0, 1]},
        "c": {"t": [5, 6]},
    }
    assert assigned(b"") == {}


def member(broker, topic, group, **how):
    cluster = Cluster(broker.bootstrap)
    return GroupConsumer(
        cluster, topic, group, from_beginning=True, wait_ms=20, session_timeout_ms=1500, **how
    )


def run(consumer, got, stop):
    while not stop.is_set():
        got.extend(consumer.poll())
    consumer.close()
    consumer.cluster.close()


def test_two_members_share_a_topic_and_one_takes_over(broker, cluster, unique):
    topic, group = unique("shared"), unique("group")
    create_topic(broker, topic, partitions=4)
    got, stops, threads, members = ([], []), [threading.Event(), threading.Event()], [], []
    for number in range(2):
        members.append(member(broker, topic, group))
        threads.append(threading.Thread(target=run, args=(members[-1], got[number], stops[number])))
        threads[-1].start()
    wait_until(lambda: sorted(len(m.positions) for m in members) == [2, 2], timeout=15)
    producer = Producer(cluster, topic)
    for n in range(200):
        producer.send(b"%d" % n, partition=n % 4)
    producer.flush()
    wait_until(lambda: len(got[0]) + len(got[1]) == 200, timeout=10)
    assert {len(records) for records in got} == {100}
    stops[0].set()
    threads[0].join(10)
    wait_until(lambda: len(members[1].positions) == 4, timeout=10)
    for n in range(200, 240):
        producer.send(b"%d" % n, partition=n % 4)
    producer.flush()
    wait_until(lambda: len(got[1]) == 140, timeout=10)
    stops[1].set()
    threads[1].join(10)
    everything = sorted(int(r.value) for r in got[0] + got[1])
    assert everything == list(range(240))  # closing commits: nobody saw anything twice
    assert committed_offsets(cluster, group) == {(topic, p): 60 for p in range(4)}


def test_a_member_keeps_its_place_while_it_works_for_long(broker, cluster, unique):
    topic, group = unique("slow"), unique("group")
    filled(cluster, topic, [b"%d" % n for n in range(3)])
    consumer = member(broker, topic, group)
    records = drain(consumer, 3)
    generation = consumer.generation
    time.sleep(2.5)  # longer than the session
    consumer.commit()
    list(consumer.poll())
    assert (consumer.generation, len(records)) == (generation, 3)
    consumer.close()
    assert sum(committed_offsets(cluster, group).values()) == 3


def test_a_member_whose_session_was_lost_joins_again_from_what_was_committed(broker, cluster, unique):
    topic, group = unique("lost"), unique("group")
    filled(cluster, topic, [b"0", b"1"])
    consumer = member(broker, topic, group, max_poll_seconds=0.1)
    drain(consumer, 2)
    consumer.commit()
    filled(cluster, topic, [b"2"])
    drain(consumer, 1)  # and not committed
    time.sleep(2.5)
    consumer.commit()  # of no effect: the partitions may be another's
    assert [r.value for r in drain(consumer, 1)] == [b"2"]
    consumer.close()


def test_a_group_lives_through_a_restart_of_its_coordinator(make_broker):
    broker = make_broker()
    with Cluster(broker.bootstrap) as cluster:
        filled(cluster, "t", [b"0", b"1"])
        consumer = member(broker, "t", "g")
        drain(consumer, 2)
        consumer.commit()
        broker.kill()
        broker.restart()
        filled(cluster, "t", [b"2"])
        assert [r.value for r in drain(consumer, 1)] == [b"2"]
        consumer.close()
        assert committed_offsets(cluster, "g") == {("t", 0): 3}


# -- connections ---------------------------------------------------------------------------------------------


def test_an_interrupted_answer_closes_the_connection(cluster, unique):
    """Ctrl-C in the middle of an answer: the next request must not get the rest of it."""
    connection = cluster.any()
    connection.send(messages.MetadataRequest(topics=None))
    read = connection._read_frame

    def interrupted():
        raise KeyboardInterrupt

    connection._read_frame = interrupted
    with pytest.raises(KeyboardInterrupt):
        connection.receive()
    connection._read_frame = read
    assert connection.closed
    assert cluster.refresh([]).cluster_id


def test_what_is_no_broker_is_told():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
                peer, _ = server.accept()
                peer.recv(1000)
                peer.sendall(reply)
                peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="does not speak Kafka's protocol"):
            Connection("127.0.0.1", port, "test")
        with pytest.raises(Unreachable, match=r"closed the connection|is gone"):
            Connection("127.0.0.1", port, "test")
        thread.join()
    with pytest.raises(Unreachable, match="no broker answers on"):
        Connection("127.0.0.1", port, "test")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a:1", ("a", 1)),
        ("a", ("a", 9092)),
        (":1", ("127.0.0.1", 1)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 9092)),
        ("PLAINTEXT://h:7", ("h", 7)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["a:b", "a:0", "a:65536", "http://a:80", "a:²"])
def test_bad_addresses(text):
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)
