"""Kill one of several workers (kill -9), and measure how long it takes until its partitions are acknowledged
and read again.

The partitions have 1 GB each in one active segment, on a tmpfs, without a load. Connections that were open
before the kill stay with the surviving workers. Over one of them, Produce and Fetch are sent to the killed
worker's partitions in turn, until they answer; the first and the last of them are reported. `again` kills the
successor as soon as it has answered, so it includes the supervisor's back-off.
"""

import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from bench.bounds import KILLED
from bench.brokers import Kafkad, Process, ask
from bench.drive import fill
from bench.recovery import SEGMENT_GB, fitting
from bench.running import Bench, Cell
from kafkad.protocol import codec, messages
from kafkad.protocol.records import Record, build_batch
from kafkad.replication.ownership import owner_of

TOPIC = "killed"
CONNECTIONS = 16  # so that some are a living worker's
PATIENCE_S = 60.0


def run(bench: Bench) -> None:
    if not bench.wanted(KILLED):
        return
    bench.stop_main_fleet()
    partitions = max(1, round(bench.options.restart_gb / SEGMENT_GB))
    directory = bench.where / "killed"
    directory.mkdir(parents=True, exist_ok=True)
    lineup = [b for b in bench.lineup(directory) if isinstance(b, Kafkad) and b.workers > 1]
    brokers = fitting(bench, lineup, bench.options.restart_gb)

    def cell(broker: Process) -> Cell:
        def measured() -> dict[str, float]:
            broker.start({TOPIC: partitions})
            try:
                owners = owners_of(broker, partitions)
                victim = owners[0]
                once = answers_again(broker, victim, owners)
                again = answers_again(broker, victim, owners)
            finally:
                broker.stop()
            return {**once, **{f"again, {name}": value for name, value in again.items()}}

        return Cell(KILLED, broker, measured)

    try:
        for broker in brokers:
            bench.say(f"writing {bench.options.restart_gb} GB to {broker.name}")
            broker.start()
            fill(broker, TOPIC, partitions, bench.options.restart_gb * 900)
            broker.stop()
        bench.rounds("worker killed", [cell(broker) for broker in brokers])
    finally:
        for broker in brokers:
            broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


def owners_of(broker: Process, partitions: int) -> list[int]:
    """The worker of each partition, by the broker's own rule."""
    assert isinstance(broker, Kafkad)
    request = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name=TOPIC)])
    topic_id = ask(broker.port, request, 12).topics[0].topic_id
    return [owner_of(topic_id, index, broker.workers) for index in range(partitions)]


def answers_again(broker: Process, victim: int, owners: list[int]) -> dict[str, float]:
    """Milliseconds from the kill on."""
    connections = [Connection(broker.port) for _ in range(CONNECTIONS)]
    try:
        for index in range(len(owners)):  # a log that nobody writes to would be back at once
            if not connections[0].produce(index):
                raise RuntimeError(f"partition {index} of {broker.name} took no record")
        [process] = [p for p in broker.tree() if p.name() == f"kafkad/{victim}"]
        begun = time.perf_counter()
        kill(process.pid)
        acked: dict[int, float] = {}
        fetched: dict[int, float] = {}
        wanted = [index for index, owner in enumerate(owners) if owner == victim]
        while len(acked) + len(fetched) < 2 * len(wanted):
            if time.perf_counter() - begun > PATIENCE_S:
                raise RuntimeError(f"partitions {wanted} of {broker.name} do not answer")
            if not connections:  # none of them was a living worker's
                connections.append(Connection(broker.port))
            for done, request in ((acked, Connection.produce), (fetched, Connection.fetch)):
                for index in wanted:
                    if index not in done and asked(connections, request, index):
                        done[index] = (time.perf_counter() - begun) * 1000
            time.sleep(0.001)
        return {
            "first ack ms": min(acked.values()),
            "last ack ms": max(acked.values()),
            "first fetch ms": min(fetched.values()),
            "last fetch ms": max(fetched.values()),
        }
    finally:
        for connection in connections:
            connection.socket.close()


def kill(pid: int) -> None:
    """Returns at the moment when it is gone."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    gone = select.poll()
    gone.register(process, select.POLLIN)
    gone.poll()
    os.close(process)


def asked(connections: list["Connection"], request: Callable[["Connection", int], bool], index: int) -> bool:
    """Over the first connection, which goes if it turns out to be closed: as a client does."""
    if not connections:
        return False
    try:
        return request(connections[0], index)
    except OSError:
        connections.pop(0).socket.close()
        return False


class Connection:
    """Speaks to one partition at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.batch = bytes(build_batch([Record(value=b"still here", timestamp=int(time.time() * 1000))]))
        self.ask(messages.ApiVersionsRequest(), 0)  # accepted, by a worker that lives

    def ask(self, request: Any, version: int) -> Any:
        frame = codec.encode_request(request, version, 1, "bench")
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(self._read(4), "big")
        response = codec.response_class(type(request).API_KEY)
        return codec.decode_response(response, version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        data = self.socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("closed")
        return data

    def produce(self, index: int) -> bool:
        topic = messages.ProduceRequest.TopicData(name=TOPIC)
        topic.partition_data.append(topic.PartitionData(index=index, records=self.batch))
        told = self.ask(messages.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
        return told.responses[0].partition_responses[0].error_code == 0

    def fetch(self, index: int) -> bool:
        topic = messages.FetchRequest.Topics(topic=TOPIC)
        asked = topic.Partitions(partition=index, fetch_offset=0, partition_max_bytes=1 << 16)
        topic.partitions.append(asked)
        told = self.ask(messages.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]), 12)
        found = told.responses[0].partitions[0] if told.responses else None
        return found is not None and found.error_code == 0 and bool(found.records)
