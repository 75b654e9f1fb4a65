"""Transactional producers as a load, in a process of their own: what they did, as JSON.

    python -m bench.transaction_load frames HOST:PORT TOPIC PARTITIONS PRODUCERS SECONDS
    python -m bench.transaction_load librdkafka HOST:PORT TOPIC PARTITIONS SECONDS
    python -m bench.transaction_load batches HOST:PORT TOPIC RECORDS RECORDS_A_TRANSACTION

`frames` costs little beside the broker: each producer sends one Produce (v12, which adds its partitions, TV2)
with a record of 100 B for each of its partitions, then EndTxn (v5), and begins anew. `librdkafka` commits one
record at a time, and adds partitions by itself (TV1). `batches` fills batches of 64 KB; 0 records a
transaction: idempotent only.

A commit's time is from the client's call, or the EndTxn, to its end."""

import heapq
import json
import select
import socket
import struct
import sys
import time
from typing import Any

from kafkad._native.wire.crc32c import checksum
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import Record, build_batch

PRODUCE, INIT, END, FIND = 12, 4, 5, 4  # versions
RETRY_S = 0.020  # of the Java client, when the transaction before is not over yet
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


class FrameProducer:
    """One connection with at most one request on its way."""

    def __init__(self, at: tuple[str, int], name: str, topic: str, partitions: list[int]) -> None:
        self.name, self.topic = name, topic
        self.socket = socket.create_connection(at)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.producer_id, self.epoch = self._init()
        self.heard = b""
        self.ending = False
        self.began = 0.0
        self.commits: list[float] = []
        self.retries = 0
        now_ms = int(time.time() * 1000)
        batch = bytes(
            build_batch(
                [Record(None, bytes(100), timestamp=now_ms)],
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
            PRODUCE,
        )
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
        size = int.from_bytes(self.socket.recv(4, socket.MSG_WAITALL), "big")
        answer = self.socket.recv(size, socket.MSG_WAITALL)
        return codec.decode_response(codec.response_class(request.API_KEY), version, answer)[1]

    def produce(self) -> None:
        view = memoryview(self.frame)
        for place in self.places:
            struct.pack_into(">qhi", self.frame, place + PRODUCER_AT, self.producer_id, self.epoch, 0)
            crc = checksum(view[place + CRC_FROM : place + self.size])
            struct.pack_into(">I", self.frame, place + CRC_AT, crc)
        self.socket.sendall(self.frame)

    def end(self) -> None:
        self.ending = True
        self.began = time.perf_counter()
        request = messages.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=True,
        )
        self.socket.sendall(framed(request, END))

    def hear(self) -> bool:
        """Go on with what the broker says. False: to be tried again in a while."""
        self.heard += self.socket.recv(1 << 16)
        if len(self.heard) < 4 or len(self.heard) < 4 + int.from_bytes(self.heard[:4], "big"):
            return True
        frame, self.heard = self.heard[4:], b""
        if self.ending:
            answer = codec.decode_response(messages.EndTxnResponse, END, frame)[1]
            code = answer.error_code
        else:
            answer = codec.decode_response(messages.ProduceResponse, PRODUCE, frame)[1]
            code = max(part.error_code for part in answer.responses[0].partition_responses)
        if code in AGAIN:
            self.retries += 1
            return False
        if code:
            raise RuntimeError(f"{'EndTxn' if self.ending else 'Produce'} of {self.name} failed: {code}")
        if self.ending:
            self.commits.append(time.perf_counter() - self.began)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.ending = False
            self.produce()
        else:
            self.end()
        return True

    def again(self) -> None:
        if self.ending:
            self.end()
        else:
            self.produce()


def frames(
    at: tuple[str, int], topic: str, partitions: int, producers: int, seconds: float
) -> dict[str, Any]:
    wide = min(10, partitions) if producers > 1 else 1
    each = [
        FrameProducer(at, f"{topic}-{number}", topic, [(number + i) % partitions for i in range(wide)])
        for number in range(producers)
    ]
    poll = select.epoll()
    by_number = {producer.socket.fileno(): producer for producer in each}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    later: list[tuple[float, int]] = []
    for producer in each:
        producer.produce()
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds or not all(producer.commits for producer in each):
        while later and later[0][0] <= now:
            by_number[heapq.heappop(later)[1]].again()
        for number, _ in poll.poll(max(0.0, later[0][0] - now) if later else 0.1):
            if not by_number[number].hear():
                heapq.heappush(later, (time.perf_counter() + RETRY_S, number))
    took = time.perf_counter() - began
    commits = [commit for producer in each for commit in producer.commits]
    return told(commits, took, retries=sum(producer.retries for producer in each))


def told(commits: list[float], seconds: float, **more: Any) -> dict[str, Any]:
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
    return told(commits, time.perf_counter() - began)


def batches(bootstrap: str, topic: str, records: int, size: int) -> dict[str, Any]:
    """Batches of 64 KB; `size` records a transaction."""
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


def main() -> None:
    kind, bootstrap, topic, *rest = sys.argv[1:]
    if kind == "frames":
        host, _, port = bootstrap.rpartition(":")
        found = frames((host, int(port)), topic, int(rest[0]), int(rest[1]), float(rest[2]))
    elif kind == "librdkafka":
        found = librdkafka(bootstrap, topic, int(rest[0]), float(rest[1]))
    else:
        found = batches(bootstrap, topic, int(rest[0]), int(rest[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
