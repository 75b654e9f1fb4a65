"""Clients of before Kafka 0.11: Produce v2 and Fetch v2 of 1 KB messages in format 1, beside Kafka 3.9.1.

    python -m bench.old_formats
    python -m bench.old_formats --rounds 5 --seconds 3 --workers 1,2 --kafka none

Both brokers store format 2, so both convert all that comes and goes. Produce sends sets of 64 messages, made
before the run, over four connections with five requests in flight each. Fetch reads batches v2 of 64 records
from the beginning, one partition a connection, 1 MB a request, and looks at each message's offset.
Interleaved rounds, medians; memory is the largest of all rounds (PSS of all the broker's processes), beside
what the broker had before the first.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.brokers import Jvm, Kafkad, Process
from bench.figures import medians, spread_percent
from kafkad.protocol import codec, compression, messages
from kafkad.protocol.records import Record, build_batch
from tests.reference.message_sets import message_set, wrapper

PARTITIONS, IN_FLIGHT, SET, VALUE = 4, 5, 64, 1000
FETCHED_MB = 64  # of values, in each partition
CODECS = ("none", "gzip", "lz4")
VERSION = 2  # of Produce and of Fetch: format 1
MB = 1e6
NOW = int(time.time() * 1000)


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


def fill(broker: Process, topic: str, name: str) -> None:
    """Batches v2 of `FETCHED_MB`, in each partition."""
    rows = [Record(key=None, value=value, timestamp=NOW) for value in values()]
    data = bytes(build_batch(rows, compression=compression.NAMES.index(name)))
    for partition in range(PARTITIONS):
        frame = framed(produce_request(topic, partition, data), 7)
        with connect(broker.port) as to:
            for _ in range(FETCHED_MB * 1_000_000 // (SET * VALUE)):
                to.sendall(frame)
                heard(to)


def produce(broker: Process, topic: str, name: str, until: float) -> int:
    """Bytes of values that are acknowledged until then."""
    rows = [(None, value, NOW) for value in values()]
    data = message_set(1, rows)
    if name != "none":
        data = wrapper(1, compression.NAMES.index(name), data, offset=SET - 1, timestamp=NOW)
    done = [0] * PARTITIONS

    def drive(partition: int) -> None:
        frame = framed(produce_request(topic, partition, data), VERSION)
        with connect(broker.port) as to:
            for _ in range(IN_FLIGHT):
                to.sendall(frame)
            left = IN_FLIGHT
            while left:
                answer = codec.decode_response(messages.ProduceResponse, VERSION, heard(to))[1]
                assert answer.responses[0].partition_responses[0].error_code == 0, answer
                left -= 1
                if time.perf_counter() < until:
                    done[partition] += SET * VALUE
                    to.sendall(frame)
                    left += 1

    together(drive)
    return sum(done)


def fetch(broker: Process, topic: str, name: str, until: float) -> int:
    """Bytes of values that are read until then, from the beginning again and again."""
    done = [0] * PARTITIONS

    def drive(partition: int) -> None:
        cls = messages.FetchRequest.Topics
        part = cls.Partitions(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = messages.FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[cls(topic=topic, partitions=[part])]
        )
        with connect(broker.port) as to:
            while time.perf_counter() < until:
                to.sendall(framed(request, VERSION))
                answer = codec.decode_response(messages.FetchResponse, VERSION, heard(to))[1]
                told = answer.responses[0].partitions[0]
                assert told.error_code == 0, (broker.name, topic, part.fetch_offset, told.error_code)
                data, at, offset = told.records, 0, part.fetch_offset - 1
                while len(data) - at >= 12:
                    found, size = struct.unpack_from(">qi", data, at)
                    if size > len(data) - at - 12:
                        break
                    offset = found
                    at += 12 + size
                done[partition] += (offset + 1 - part.fetch_offset) * VALUE
                part.fetch_offset = offset + 1 if offset + 1 < told.high_watermark else 0

    together(drive)
    return sum(done)


def together(drive: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(partition: int) -> None:
        try:
            drive(partition)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(partition,)) for partition in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


LOADS = {"produce": produce, "fetch": fetch}


def measure(broker: Process, load: str, name: str, seconds: float) -> dict[str, float]:
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    done = LOADS[load](broker, f"{load}-{name}", name, began + seconds)
    took = time.perf_counter() - began
    cpu = broker.cpu_seconds() - cpu
    return {
        "MB/s": done / MB / took,
        "CPU s/GB": cpu / (done / 1e9),
        "memory": broker.pss_bytes() / MB,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.old_formats",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--workers", default="2")
    add("--kafka", default="3.9.1", help="a version of JVM Kafka that has these versions, or none")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=2.0, help="of each run")
    add("--codecs", default=",".join(CODECS))
    options = parser.parse_args()
    codecs = options.codecs.split(",")
    with TemporaryDirectory(prefix="kafkad-old-formats-") as scratch:
        brokers: list[Process] = [
            Kafkad(Path(scratch) / f"kafkad-{n}", int(n), name=f"kafkad, {n} worker{'s' * (n != '1')}")
            for n in options.workers.split(",")
        ]
        if options.kafka != "none":
            brokers.append(Jvm(Path(scratch) / "jvm", options.kafka))
        rounds: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
        before: dict[str, float] = {}
        try:
            for broker in brokers:
                broker.start()
                before[broker.name] = broker.pss_bytes() / MB
                for name in codecs:
                    limits = {"retention.bytes": "200000000", "segment.bytes": "50000000"}
                    broker.create_topic(f"produce-{name}", PARTITIONS, limits)
                    broker.create_topic(f"fetch-{name}", PARTITIONS)
                    fill(broker, f"fetch-{name}", name)
                    for load in LOADS:
                        measure(broker, load, name, options.seconds)  # a JVM wants to be warm
            for _ in range(options.rounds):
                for name in codecs:
                    for load in LOADS:
                        for broker in brokers:
                            rounds[load, name, broker.name].append(
                                measure(broker, load, name, options.seconds)
                            )
        finally:
            for broker in brokers:
                broker.kill()
    drawn = Table(title="messages of format 1, 1 KB: medians")
    for column in ("load", "codec", "broker", "MB/s", "spread", "CPU s/GB", "memory MB", "before"):
        drawn.add_column(column, justify="left" if column in ("load", "codec", "broker") else "right")
    for (load, name, who), figures in rounds.items():
        found = medians(figures)
        drawn.add_row(
            load, name, who, f"{found['MB/s']['median']:,.0f}", f"±{spread_percent(found['MB/s']):.0f} %",
            f"{found['CPU s/GB']['median']:.2f}", f"{max(each['memory'] for each in figures):.0f}",
            f"{before[who]:.0f}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
