"""Clients older than Kafka 0.11: Produce v2 and Fetch v2 of 1 KB messages in format 1, compared with Kafka
3.9.1.

    python -m bench --groups "old formats"

Both brokers store format 2, so both convert everything. Produce sends sets of 64 messages, created before the
run, over four connections with five requests in flight each, into a topic of its own. Fetch reads v2 batches
of 64 records from the beginning, one partition per connection, 1 MB per request, and checks each message's
offset. Each connection has a process of its own; "client CPU s/GB" is what these took. "MB more" is the
growth of the broker's memory (PSS of all its processes) in a run.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import socket
import struct
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.bounds import old_format
from bench.brokers import Jvm, Kafkad, Process
from bench.drive import prime
from bench.running import Bench, Cell, Options
from kafkad.protocol import codec, compression, messages
from kafkad.protocol.records import Record, build_batch
from tests.reference.message_sets import message_set, wrapper

GROUP = "old formats"
KAFKA_VERSION = "3.9.1"  # the last that has these versions
PARTITIONS, IN_FLIGHT, SET, VALUE = 4, 5, 64, 1000
CODECS = ("none", "gzip", "lz4")
VERSION = 2  # of Produce and of Fetch: format 1
MB = 1e6
NOW = int(time.time() * 1000)


class Driven(NamedTuple):
    """What clients did: bytes of values, when the last one ended (time.perf_counter), their CPU seconds."""

    done: int
    ended: float
    cpu: float


def values() -> list[bytes]:
    """Text that a codec makes about half as large."""
    rng = random.Random(5)
    words = [rng.randbytes(6).hex()[: rng.randrange(3, 12)] for _ in range(400)]
    return [" ".join(rng.choices(words, k=200)).encode()[:VALUE] for _ in range(SET)]


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def heard(from_socket: socket.socket) -> bytes:
    size = from_socket.recv(4, socket.MSG_WAITALL)
    return from_socket.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)


def framed(request: Any, version: int) -> bytes:
    frame = codec.encode_request(request, version, 1, "bench")
    return len(frame).to_bytes(4, "big") + frame


def produce_request(topic: str, partition: int, data: bytes) -> messages.ProduceRequest:
    cls = messages.ProduceRequest.TopicData
    part = cls.PartitionData(index=partition, records=data)
    return messages.ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[cls(name=topic, partition_data=[part])]
    )


def fill(broker: Process, topic: str, name: str, megabytes: int) -> None:
    """Batches v2 of so many MB of values, in each partition."""
    rows = [Record(key=None, value=value, timestamp=NOW) for value in values()]
    data = bytes(build_batch(rows, compression=compression.NAMES.index(name)))
    for partition in range(PARTITIONS):
        frame = framed(produce_request(topic, partition, data), 7)
        with connect(broker.port) as to:
            for _ in range(max(1, megabytes * 1_000_000 // (SET * VALUE))):
                to.sendall(frame)
                heard(to)


def produce(broker: Process, topic: str, name: str, until: float, mb_max: float) -> Driven:
    """Bytes of values that are acknowledged until then, or until there are `mb_max` MB of them."""
    rows = [(None, value, NOW) for value in values()]
    data = message_set(1, rows)
    if name != "none":
        data = wrapper(1, compression.NAMES.index(name), data, offset=SET - 1, timestamp=NOW)

    def drive(partition: int) -> int:
        done = 0
        frame = framed(produce_request(topic, partition, data), VERSION)
        with connect(broker.port) as to:
            for _ in range(IN_FLIGHT):
                to.sendall(frame)
            left = IN_FLIGHT
            while left:
                answer = heard(to)
                at = 4 + 4  # correlation id, count of topics
                at += 2 + struct.unpack_from(">h", answer, at)[0] + 4 + 4  # name, count of partitions, index
                error = struct.unpack_from(">h", answer, at)[0]
                assert error == 0, (broker.name, topic, partition, error)
                left -= 1
                if time.perf_counter() < until and done < mb_max * MB / PARTITIONS:
                    done += SET * VALUE
                    to.sendall(frame)
                    left += 1
        return done

    return together(drive)


def fetch(broker: Process, topic: str, name: str, until: float, mb_max: float) -> Driven:
    """Bytes of values that are read until then, from the beginning again and again."""

    def drive(partition: int) -> int:
        done = 0
        cls = messages.FetchRequest.Topics
        part = cls.Partitions(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = messages.FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[cls(topic=topic, partitions=[part])]
        )
        room = bytearray(2 << 20)
        with connect(broker.port) as to:
            while time.perf_counter() < until:
                to.sendall(framed(request, VERSION))
                size = int.from_bytes(to.recv(4, socket.MSG_WAITALL), "big")
                answer = memoryview(room)[:size]
                assert to.recv_into(answer, size, socket.MSG_WAITALL) == size
                at = 4 + 4 + 4  # correlation id, throttle time, count of topics
                at += 2 + struct.unpack_from(">h", answer, at)[0] + 4 + 4  # name, count of partitions, index
                error, high_watermark, size = struct.unpack_from(">hqi", answer, at)
                assert error == 0, (broker.name, topic, part.fetch_offset, error)
                following = offset_behind(answer[at + 14 : at + 14 + size], part.fetch_offset)
                done += (following - part.fetch_offset) * VALUE
                part.fetch_offset = following if following < high_watermark else 0
        return done

    return together(drive)


def offset_behind(data: memoryview, offset: int) -> int:
    """Behind the last whole message. Messages of one size that follow each other, as they are here without a
    codec, are looked at in one go: their sizes and the low bytes of their offsets. One by one they took the
    bench longer than a broker. Kafka fills its answers up with the beginning of a message that is never
    completed, so the last of them may be unlike the others.
    """
    at = 0
    while len(data) - at >= 12:
        found, size = struct.unpack_from(">qi", data, at)
        if size > len(data) - at - 12:
            break
        stride = 12 + size
        whole = at + (len(data) - at) // stride * stride
        sizes = enumerate(data[at + 8 : at + 12], 8)
        count = min(alike(data[at + n : whole : stride], byte) for n, byte in sizes)
        last = found
        if count > 1:
            step = struct.unpack_from(">q", data, at + stride)[0] - found  # of wrappers: messages in each
            last = found + (count - 1) * step
            lows = bytes((found + n * step) & 0xFF for n in range(256)) * (count // 256 + 1)
            followed = bytes(data[at + 7 : at + count * stride : stride])
            assert followed == lows[:count], "offsets do not follow each other"
            assert struct.unpack_from(">q", data, at + (count - 1) * stride)[0] == last
        at, offset = at + count * stride, last + 1
    return offset


def alike(column: memoryview, byte: int) -> int:
    """How many bytes at its beginning are this one."""
    return len(column) - len(bytes(column).lstrip(bytes([byte])))


def together(drive: Callable[[int], int]) -> Driven:
    """Drive each partition in a process of its own: threads would wait for one another's checks. What they
    return is added up."""
    forks = multiprocessing.get_context("fork")
    pipes = [forks.Pipe(duplex=False) for _ in range(PARTITIONS)]

    def driven(partition: int) -> None:
        try:
            bytes_done = drive(partition)
            pipes[partition][1].send((bytes_done, time.perf_counter(), time.process_time()))
        except BaseException:
            pipes[partition][1].send(traceback.format_exc())

    processes = [forks.Process(target=driven, args=(partition,)) for partition in range(PARTITIONS)]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()  # then a process that is killed is an EOFError
    answers = [end.recv() for end, _ in pipes]
    for process in processes:
        process.join()
    for answer in answers:
        if isinstance(answer, str):
            raise RuntimeError(answer)
    done, ended, cpu = zip(*answers, strict=True)
    return Driven(sum(done), max(ended), sum(cpu))


LOADS = {"produce": produce, "fetch": fetch}


def measure(bench: Bench, broker: Process, load: str, name: str) -> dict[str, float]:
    if load == "fetch":
        return figures(bench.options, broker, load, f"fetch-{name}", name)
    topic = bench.topic()
    broker.create_topic(topic, PARTITIONS)
    prime(broker, topic, PARTITIONS)
    try:
        with bench.touched():
            return figures(bench.options, broker, load, topic, name)
    finally:
        broker.delete_topic(topic)


def figures(options: Options, broker: Process, load: str, topic: str, name: str) -> dict[str, float]:
    memory = broker.pss_bytes()
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    driven = LOADS[load](broker, topic, name, began + options.seconds, options.mb_max)
    took = driven.ended - began
    cpu = broker.cpu_seconds() - cpu
    return {
        "MB/s": driven.done / MB / took,
        "CPU s/GB": cpu / (driven.done / 1e9),
        "client CPU s/GB": driven.cpu / (driven.done / 1e9),
        "MB more": (broker.pss_bytes() - memory) / MB,
    }


def run_group(bench: Bench) -> None:
    rows = [
        (old_format(load, name), load, name)
        for name in CODECS
        for load in LOADS
        if bench.wanted(old_format(load, name))
    ]
    if not rows:
        return
    bench.stop_main_fleet()
    directory = bench.plain / "old-formats"
    directory.mkdir(parents=True, exist_ok=True)
    brokers: list[Process] = [Kafkad(directory / "kafkad", bench.options.workers[0])]
    if bench.options.kafka:
        brokers.append(Jvm(directory / "jvm", KAFKA_VERSION))
    try:
        for broker in brokers:
            bench.say(f"{broker.name}: batches for {GROUP}")
            broker.start()
            for name in dict.fromkeys(name for _, _, name in rows):
                broker.create_topic(f"fetch-{name}", PARTITIONS)
                fill(broker, f"fetch-{name}", name, bench.options.old_fetch_mb)
        cells = [
            Cell(title, broker, partial(measure, bench, broker, load, name))
            for title, load, name in rows
            for broker in brokers
        ]
        for _ in range(bench.options.warm):
            for cell in cells:
                bench.say(f"warming {cell.broker.name}: {cell.scenario}")
                cell.run()
        bench.rounds(GROUP, cells)
    finally:
        for broker in brokers:
            broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
