"""Measure how many ListOffsets a broker answers: Spark's connector sends two, for the start and the end of
the log, after every poll, that is, two per 500 records by default.

    python -m bench.list_offsets                    kafkad with one and two workers, and JVM Kafka
    python -m bench.list_offsets --rounds 5 --seconds 3 --kafka none

One client process has one connection per partition and asks for -2 and -1 in turns. The logs have some
records, and every answer is compared with the right one, byte by byte. With one request in flight it behaves
like Spark's consumers, and mostly waits. With 64, sent in one piece, it needs little CPU, so the rate is the
broker's. CPU microseconds per request include all processes of the broker. Rounds are interleaved; figures
are medians.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from bench.brokers import Jvm, Kafkad, Process
from bench.figures import medians, spread_percent
from kafkad.protocol import codec, messages

TOPIC, PARTITIONS, RECORDS = "list-offsets", 8, 1000
EARLIEST, LATEST = -2, -1
VERSION = 9  # what kafka-clients 3.9 asks with


def request(partition: int, timestamp: int, correlation: int) -> bytes:
    struct = messages.ListOffsetsRequest.Topics
    asked = struct.Partitions(partition_index=partition, timestamp=timestamp)
    body = messages.ListOffsetsRequest(replica_id=-1, topics=[struct(name=TOPIC, partitions=[asked])])
    frame = codec.encode_request(body, VERSION, correlation, "consumer-spark-kafka-source-1")
    return len(frame).to_bytes(4, "big") + frame


class Asker:
    """A connection that keeps `in_flight` requests on their way."""

    def __init__(self, port: int, partition: int, in_flight: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = [request(partition, at, n) for n, at in enumerate((EARLIEST, LATEST))]
        right = [self.first(each, offset) for each, offset in zip(pair, (0, RECORDS), strict=True)]
        self.in_flight, self.turn = in_flight, 0
        if in_flight > 1:
            pair, right = ([b"".join(each) * (in_flight // 2)] * 2 for each in (pair, right))
        self.bursts, self.right = pair, right
        self.heard = b""
        self.answered = 0

    def first(self, asked: bytes, offset: int) -> bytes:
        """The frame that answers the request, which must tell this offset."""
        self.socket.sendall(asked)
        head = self.socket.recv(4, socket.MSG_WAITALL)
        answer = self.socket.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        told = codec.decode_response(messages.ListOffsetsResponse, VERSION, answer)[1].topics[0].partitions[0]
        assert (told.error_code, told.offset) == (0, offset), told
        return head + answer

    def ask(self) -> None:
        self.socket.sendall(self.bursts[self.turn])

    def hear(self) -> None:
        heard = self.socket.recv(1 << 16)
        assert heard, "the broker closed the connection"
        self.heard += heard
        right = self.right[self.turn]
        if len(self.heard) >= len(right):
            assert self.heard == right, "another answer than the first time"
            self.heard = b""
            self.answered += self.in_flight
            self.turn ^= 1
            self.ask()


def fill(port: int) -> None:
    """RECORDS records in each partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
    for n in range(PARTITIONS * RECORDS):
        producer.produce(TOPIC, b"some value", partition=n % PARTITIONS)
    assert producer.flush(60) == 0


def measure(broker: Process, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
    askers = [Asker(broker.port, n % PARTITIONS, in_flight) for n in range(connections)]
    poll = select.epoll()
    by_number = {asker.socket.fileno(): asker for asker in askers}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    own = time.process_time()
    for asker in askers:
        asker.ask()
    while (now := time.perf_counter()) < began + seconds:
        for number, _ in poll.poll(1):
            by_number[number].hear()
    cpu, own = broker.cpu_seconds() - cpu, time.process_time() - own
    answered = sum(asker.answered for asker in askers)
    for asker in askers:
        asker.socket.close()
    return {
        "requests/s": answered / (now - began),
        "CPU us/request": cpu / answered * 1e6,
        "client %": own / (now - began) * 100,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.list_offsets",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--workers", default="1,2")
    add("--kafka", default="4.3.1", help="a version of JVM Kafka, or none")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="of each run")
    add("--connections", type=int, default=8)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="kafkad-list-offsets-") as scratch:
        brokers: list[Process] = [
            Kafkad(Path(scratch) / f"kafkad-{n}", int(n), name=f"kafkad, {n} worker{'s' * (n != '1')}")
            for n in options.workers.split(",")
        ]
        if options.kafka != "none":
            brokers.append(Jvm(Path(scratch) / "jvm", options.kafka))
        try:
            for broker in brokers:
                broker.start()
                broker.create_topic(TOPIC, PARTITIONS)
                fill(broker.port)
                measure(broker, options.connections, 64, options.seconds * 2)  # a JVM wants to be warm
            rounds: dict[tuple[int, str], list[dict[str, float]]] = {}
            for _ in range(options.rounds):
                for in_flight in (1, 64):
                    for broker in brokers:
                        got = measure(broker, options.connections, in_flight, options.seconds)
                        rounds.setdefault((in_flight, broker.name), []).append(got)
        finally:
            for broker in brokers:
                broker.kill()
    drawn = Table(title=f"ListOffsets(-1, -2), {options.connections} connections: medians")
    for name in ("in flight", "broker", "requests/s", "CPU µs a request", "of the client's core", "spread"):
        drawn.add_column(name, justify="left" if name == "broker" else "right")
    for (in_flight, name), figures in rounds.items():
        found = medians(figures)
        drawn.add_row(
            str(in_flight), name, f"{found['requests/s']['median']:,.0f}",
            f"{found['CPU us/request']['median']:.1f}", f"{found['client %']['median']:.0f} %",
            f"±{spread_percent(found['requests/s']):.0f} %",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
