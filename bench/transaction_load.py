"""Transactional clients as a load, in a process of their own. It prints what they did as JSON.

    python -m bench.transaction_load frames HOST:PORT TOPIC PARTITIONS PRODUCERS SECONDS
    python -m bench.transaction_load old_frames HOST:PORT TOPIC PARTITIONS PRODUCERS SECONDS
    python -m bench.transaction_load librdkafka HOST:PORT TOPIC PARTITIONS SECONDS
    python -m bench.transaction_load batches HOST:PORT TOPIC RECORDS RECORDS_A_TRANSACTION
    python -m bench.transaction_load copy HOST:PORT TOPIC TARGET SECONDS RECORDS_A_TRANSACTION
    python -m bench.transaction_load aborts HOST:PORT TOPIC PARTITIONS PRODUCERS COUNT
    python -m bench.transaction_load read HOST:PORT TOPIC PARTITIONS ISOLATION SECONDS
    python -m bench.transaction_load ids HOST:PORT PREFIX COUNT

    frames       costs little CPU beside the broker's. Each producer sends a Produce (v12, which also adds its
                 partitions: TV2) with a record of 100 B for each of its partitions, then EndTxn (v5), and
                 repeats
    old_frames   the same as clients before Kafka 4.0: AddPartitionsToTxn (v3), Produce (v9), EndTxn (v4); TV1
    librdkafka   commits one record at a time, and adds partitions by itself (TV1)
    batches      batches of 64 KB (librdkafka). RECORDS_A_TRANSACTION 0: idempotent, without transactions
    copy         reads a topic from its beginning, and commits copies and offsets together (librdkafka)
    aborts       like `frames`, with 10 records in one partition each, and aborted
    read         fetches 1 MB at a time from all partitions in turn, again and again, always into the same
                 memory: so the client costs the same at both isolation levels. It parses only the headers
                 of batches and the number of aborted transactions
    ids          initializes COUNT transactional ids

The time of a commit is from the client's call, or from the EndTxn, to its end."""

import heapq
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kafkad._native.wire.crc32c import checksum
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import Record, build_batch

PRODUCE, FETCH, INIT, END, FIND = 12, 11, 4, 5, 4  # versions
OLD_ADD, OLD_PRODUCE, OLD_END = 3, 9, 4  # of clients of transaction.version 1
RECORDS_ABORTED = 10
IDS_CONNECTIONS = 50
BATCH_HEADER, LAST_DELTA_AT = 61, 23
RETRY_S = 0.020  # as the Java client waits while the previous transaction is not over
SETUP_S = 30.0
AGAIN = {
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
    errors.CONCURRENT_TRANSACTIONS,
    errors.NOT_ENOUGH_REPLICAS,
}
CRC_AT, CRC_FROM, PRODUCER_AT, SEQUENCE_AT = 17, 21, 43, 53


def framed(request: Any, version: int) -> bytearray:
    frame = codec.encode_request(request, version, 1, "bench")
    return bytearray(len(frame).to_bytes(4, "big") + frame)


def receive(sock: socket.socket) -> bytes:
    """Return one frame, without its size."""
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    frame = sock.recv(size, socket.MSG_WAITALL)
    if not size or len(frame) < size:
        raise ConnectionError("the broker has closed the connection")
    return frame


def receive_into(sock: socket.socket, room: bytearray) -> memoryview:
    """Return one frame, without its size, in `room`. A frame of 1 MB in new memory costs page faults, and
    their number depends on the sizes of the frames before it."""
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    frame = memoryview(room)[:size]
    if not size or sock.recv_into(frame, size, socket.MSG_WAITALL) < size:
        raise ConnectionError("the broker has closed the connection, or its answer is too large")
    return frame


def decoded(request: Any, version: int, frame: bytes) -> Any:
    """Return the response to `request` that a frame has."""
    return codec.decode_response(codec.response_class(request.API_KEY), version, frame)[1]


class FrameProducer:
    """One connection with at most one request in flight. `old`: transaction.version 1."""

    def __init__(
        self,
        at: tuple[str, int],
        name: str,
        topic: str,
        partitions: list[int],
        *,
        records: int = 1,
        commits: bool = True,
        old: bool = False,
    ) -> None:
        self.name, self.topic, self.commit, self.old = name, topic, commits, old
        self.produce_version, self.end_version = (OLD_PRODUCE, OLD_END) if old else (PRODUCE, END)
        self.socket = socket.create_connection(at)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.producer_id, self.epoch = self._init()
        self.received = b""
        self.sequence = 0
        self.step = self.begin  # the request in flight
        self.began = 0.0
        self.commits: list[float] = []
        self.retries = 0
        now_ms = int(time.time() * 1000)
        batch = bytes(
            build_batch(
                [Record(None, bytes(100), timestamp=now_ms)] * records,
                producer_id=0x7A7A7A7A7A7A,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )
        data = messages.ProduceRequest.TopicData(name=topic)
        data.partition_data = [data.PartitionData(index=index, records=batch) for index in partitions]
        self.frame = framed(
            messages.ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=[data]),
            self.produce_version,
        )
        cls = messages.AddPartitionsToTxnRequest
        adding = cls(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[cls.V3AndBelowTopics(name=topic, partitions=partitions)],
        )
        self.adding = framed(adding, OLD_ADD)
        self.records = records
        self.size = len(batch)
        self.places = []
        at_byte = self.frame.find(batch)
        while at_byte >= 0:
            self.places.append(at_byte)
            at_byte = self.frame.find(batch, at_byte + 1)
        assert len(self.places) == len(partitions)

    def _init(self) -> tuple[int, int]:
        deadline = time.monotonic() + SETUP_S
        while time.monotonic() < deadline:
            found = self._ask(messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]), FIND)
            if found.coordinators[0].error_code == 0:
                wanted = messages.InitProducerIdRequest(
                    transactional_id=self.name, transaction_timeout_ms=60_000
                )
                answer = self._ask(wanted, INIT)
                if answer.error_code == 0:
                    return answer.producer_id, answer.producer_epoch
                if answer.error_code not in AGAIN:
                    raise RuntimeError(f"InitProducerId of {self.name} failed: {answer}")
            time.sleep(0.05)
        raise RuntimeError(f"no coordinator for {self.name} within {SETUP_S} s")

    def _ask(self, request: Any, version: int) -> Any:
        self.socket.sendall(framed(request, version))
        return decoded(request, version, receive(self.socket))

    def begin(self) -> None:
        if self.old:
            self.add()
        else:
            self.produce()

    def add(self) -> None:
        self.step = self.add
        self.socket.sendall(self.adding)

    def produce(self) -> None:
        self.step = self.produce
        view = memoryview(self.frame)
        for place in self.places:
            producer = self.producer_id, self.epoch, self.sequence
            struct.pack_into(">qhi", self.frame, place + PRODUCER_AT, *producer)
            crc = checksum(view[place + CRC_FROM : place + self.size])
            struct.pack_into(">I", self.frame, place + CRC_AT, crc)
        self.socket.sendall(self.frame)

    def end(self) -> None:
        self.step = self.end
        self.began = time.perf_counter()
        request = messages.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=self.commit,
        )
        self.socket.sendall(framed(request, self.end_version))

    def on_readable(self) -> bool:
        """Read; if the answer is complete, send the next request. False: repeat `step` after RETRY_S."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError(f"the broker has closed the connection of {self.name}")
        self.received += piece
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(self.received[:4], "big"):
            return True
        frame, self.received = self.received[4:], b""
        step = self.step
        if step == self.end:
            answer = codec.decode_response(messages.EndTxnResponse, self.end_version, frame)[1]
            code = answer.error_code
        elif step == self.add:
            answer = codec.decode_response(messages.AddPartitionsToTxnResponse, OLD_ADD, frame)[1]
            parts = answer.results_by_topic_v3_and_below[0].results_by_partition
            code = max(part.partition_error_code for part in parts)
        else:
            answer = codec.decode_response(messages.ProduceResponse, self.produce_version, frame)[1]
            code = max(part.error_code for part in answer.responses[0].partition_responses)
        if code in AGAIN:
            self.retries += 1
            return False
        if code:
            raise RuntimeError(f"{step.__name__} of {self.name} failed: {code}")
        if step == self.end:
            self.commits.append(time.perf_counter() - self.began)
            if self.old:
                self.sequence += self.records
            else:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.begin()
        elif step == self.add:
            self.produce()
        else:
            self.end()
        return True


def frames(
    at: tuple[str, int], topic: str, partitions: int, producers: int, seconds: float, *, old: bool = False
) -> dict[str, Any]:
    wide = min(10, partitions) if producers > 1 else 1
    each = [
        FrameProducer(
            at, f"{topic}-{number}", topic, [(number + i) % partitions for i in range(wide)], old=old
        )
        for number in range(producers)
    ]
    began = time.perf_counter()
    took = driven(each, lambda: time.perf_counter() >= began + seconds)
    commits = [commit for producer in each for commit in producer.commits]
    return summary(commits, took, retries=sum(producer.retries for producer in each))


def aborts(at: tuple[str, int], topic: str, partitions: int, producers: int, count: int) -> dict[str, Any]:
    each = [
        FrameProducer(
            at, f"{topic}-{number}", topic, [number % partitions], records=RECORDS_ABORTED, commits=False
        )
        for number in range(producers)
    ]
    took = driven(each, lambda: sum(len(producer.commits) for producer in each) >= count)
    return {"aborts": sum(len(producer.commits) for producer in each), "seconds": took}


def driven(each: list[FrameProducer], is_over: Callable[[], bool]) -> float:
    """Run all producers until `is_over`, and each for one transaction at least. Return the seconds."""
    poll = select.epoll()
    by_number = {producer.socket.fileno(): producer for producer in each}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    later: list[tuple[float, int]] = []
    for producer in each:
        producer.begin()
    began = time.perf_counter()
    while not is_over() or not all(producer.commits for producer in each):
        now = time.perf_counter()
        while later and later[0][0] <= now:
            by_number[heapq.heappop(later)[1]].step()
        for number, _ in poll.poll(max(0.0, later[0][0] - now) if later else 0.1):
            if not by_number[number].on_readable():
                heapq.heappush(later, (time.perf_counter() + RETRY_S, number))
    return time.perf_counter() - began


def ids(at: tuple[str, int], prefix: str, count: int) -> dict[str, Any]:
    """Use IDS_CONNECTIONS connections, each with one request in flight."""
    sockets = [socket.create_connection(at) for _ in range(min(IDS_CONNECTIONS, count))]
    _ = FrameProducer(at, f"{prefix}-first", prefix, [])  # waits for the coordinator
    names = [f"{prefix}-{number}" for number in range(count)]
    asked: dict[int, str] = {}
    by_number = {each.fileno(): each for each in sockets}
    poll = select.poll()

    def ask(number: int) -> None:
        asked[number] = name = names.pop()
        request = messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        by_number[number].sendall(framed(request, INIT))

    for number in by_number:
        poll.register(number, select.POLLIN)
        ask(number)
    began = time.perf_counter()
    while asked:
        for number, _ in poll.poll():
            answer = receive(by_number[number])
            code = decoded(messages.InitProducerIdRequest, INIT, answer).error_code
            name = asked.pop(number)
            if code in AGAIN:
                names.append(name)
            elif code:
                raise RuntimeError(f"InitProducerId of {name} failed: {code}")
            if names:
                ask(number)
    return {"ids": count, "seconds": time.perf_counter() - began}


def read(at: tuple[str, int], topic: str, partitions: int, isolation: int, seconds: float) -> dict[str, Any]:
    sock = socket.create_connection(at)
    places = [0] * partitions
    cls = messages.FetchRequest.Topics
    done = aborted = 0
    room = bytearray(4 << 20)
    began = time.perf_counter()
    until, index, passes = began + seconds, 0, 0
    while time.perf_counter() < until or not passes:
        part = cls.Partitions(partition=index, fetch_offset=places[index], partition_max_bytes=1 << 20)
        request = messages.FetchRequest(
            max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation,
            topics=[cls(topic=topic, partitions=[part])],
        )  # fmt: skip
        sock.sendall(framed(request, FETCH))
        answer = receive_into(sock, room)
        size = len(answer)
        error, stable, known, at_byte = parse_fetch(answer)
        if error:
            raise RuntimeError(f"Fetch of {topic}-{index} failed: {error}")
        begun = at_byte
        while size - at_byte >= BATCH_HEADER:
            offset, length = struct.unpack_from(">qi", answer, at_byte)
            if length > size - at_byte - 12:
                break
            places[index] = offset + struct.unpack_from(">i", answer, at_byte + LAST_DELTA_AT)[0] + 1
            at_byte += 12 + length
        done += at_byte - begun
        aborted += known
        if at_byte == begun or places[index] >= stable:
            places[index] = 0
            index = (index + 1) % partitions
            passes += index == 0
    return {"bytes": done, "aborted": aborted, "seconds": time.perf_counter() - began}


def parse_fetch(answer: memoryview) -> tuple[int, int, int, int]:
    """Return from an answer (v11) about one partition: error code, last stable offset, number of aborted
    transactions, position of the records. No object is made for each transaction: that would take longer than
    the broker does."""
    at = 4 + 4 + 2 + 4 + 4  # correlation id, throttle time, error, session, count of topics
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4 + 4  # name, count of partitions, index
    error, _, stable, _, known = struct.unpack_from(">hqqqi", answer, at)
    known = max(known, 0)
    return error, stable, known, at + 30 + 16 * known + 4 + 4  # preferred replica, size of the records


def summary(commits: list[float], seconds: float, **more: Any) -> dict[str, Any]:
    commits.sort()
    return {
        "transactions": len(commits),
        "seconds": seconds,
        "p50_ms": commits[len(commits) // 2] * 1000,
        "p99_ms": commits[len(commits) * 99 // 100] * 1000,
        **more,
    }


def _librdkafka(bootstrap: str, name: str, **config: Any) -> Any:
    from confluent_kafka import Producer

    if name:
        config["transactional.id"] = name
    made = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **config})
    if name:
        made.init_transactions(SETUP_S)
    return made


def librdkafka(bootstrap: str, topic: str, partitions: int, seconds: float) -> dict[str, Any]:
    producer = _librdkafka(bootstrap, topic, **{"linger.ms": 0})
    commits: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        producer.begin_transaction()
        producer.produce(topic, bytes(100), partition=len(commits) % partitions)
        called = time.perf_counter()
        producer.commit_transaction(SETUP_S)
        commits.append(time.perf_counter() - called)
    return summary(commits, time.perf_counter() - began)


def batches(bootstrap: str, topic: str, records: int, size: int) -> dict[str, Any]:
    """Produce batches of 64 KB, with `size` records in a transaction."""
    config = {"linger.ms": 5, "batch.size": 65536, "queue.buffering.max.kbytes": 65536}
    producer = _librdkafka(bootstrap, topic if size else "", **config)
    value = bytes(1000)
    began = time.perf_counter()
    if size:
        producer.begin_transaction()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        if size and (number + 1) % size == 0:
            producer.commit_transaction(SETUP_S)
            producer.begin_transaction()
    if size:
        producer.commit_transaction(SETUP_S)
    else:
        assert producer.flush(SETUP_S) == 0
    return {"bytes": records * len(value), "seconds": time.perf_counter() - began}


def copy(bootstrap: str, source: str, target: str, seconds: float, records: int) -> dict[str, Any]:
    """Run one copier. Its first transaction, which sets everything up, does not count."""
    from confluent_kafka import Consumer, TopicPartition

    producer = _librdkafka(bootstrap, target, **{"linger.ms": 0})
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": target, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_committed",
        }
    )  # fmt: skip
    partitions = list(reader.list_topics(source, SETUP_S).topics[source].partitions)
    reader.assign([TopicPartition(source, index, 0) for index in partitions])
    copied, began = -1, time.perf_counter()
    commits: list[float] = []
    while copied <= 0 or time.perf_counter() < began + seconds:
        rows = reader.consume(records, SETUP_S)
        rows = [row for row in rows if not row.error()]
        if len(rows) < records:  # all is read: from the beginning
            for index in partitions:
                reader.seek(TopicPartition(source, index, 0))
        producer.begin_transaction()
        for row in rows:
            producer.produce(target, row.value(), row.key())
        called = time.perf_counter()
        places = reader.position([TopicPartition(source, index) for index in partitions])
        places = [place for place in places if place.offset >= 0]
        producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), SETUP_S)
        producer.commit_transaction(SETUP_S)
        if copied < 0:
            copied, began = 0, time.perf_counter()
        else:
            copied += len(rows)
            commits.append(time.perf_counter() - called)
    took = time.perf_counter() - began
    reader.close()
    return summary(commits, took, records=copied)


def main() -> None:
    kind, bootstrap, topic, *rest = sys.argv[1:]
    function, types = KINDS[kind]
    host, _, port = bootstrap.rpartition(":")
    server = bootstrap if function in BY_LIBRDKAFKA else (host, int(port))
    arguments = [make(text) for make, text in zip(types, rest, strict=True)]
    print(json.dumps(function(server, topic, *arguments)))


# name -> function, and the types of its arguments after the topic
KINDS: dict[str, tuple[Callable[..., dict[str, Any]], tuple[Callable[[str], Any], ...]]] = {
    "frames": (frames, (int, int, float)),
    "old_frames": (partial(frames, old=True), (int, int, float)),
    "aborts": (aborts, (int, int, int)),
    "ids": (ids, (int,)),
    "read": (read, (int, int, float)),
    "copy": (copy, (str, float, int)),
    "librdkafka": (librdkafka, (int, float)),
    "batches": (batches, (int, int)),
}
BY_LIBRDKAFKA = (copy, librdkafka, batches)  # these take HOST:PORT


if __name__ == "__main__":
    main()
