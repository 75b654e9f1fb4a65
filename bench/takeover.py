"""How long it takes until all partitions of a node that was killed are led again, when there are many:
`python -m bench.failover --partitions 10000`.

Three nodes, each broker and controller; each partition has a replica on each, and records. A node that does
not lead the quorum is killed (kill -9), then the one that does. Times are from the kill on:

    accepted, one or all   a Produce with acks=all, to the next replica, of one partition that the dead node
                           led, and of each of them: they are asked again until they answer without an error
    told                   Metadata of both other nodes names no partition without a living leader

kafkad's controllers see the death itself early (docs/cluster.md); JVM Kafka waits for the session of 9 s."""

import contextlib
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.protocol import codec, messages
from kafkad.protocol.records import Record, build_batch
from tests.handover_cluster import HandoverCluster

TOPIC = "many"
TOPICS_MAX = 5_000  # partitions of one topic: what Kafka's controller makes at once
AT_ONCE = 500  # partitions of one Produce
WAIT_S = 300.0
PAUSE_S = 0.02
ACKS_ALL = -1


class Line:
    """A connection to a broker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)

    def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return self.read(type(request), version)

    def send(self, request: Any, version: int) -> None:
        frame = codec.encode_request(request, version, 1, "takeover")
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def read(self, request: Any, version: int) -> Any:
        size = int.from_bytes(self._read(4), "big")
        return codec.decode_response(codec.response_class(request.API_KEY), version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("closed")
            parts += part
        return bytes(parts)


Partition = tuple[str, int]


def create(cluster: HandoverCluster, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    while count > 0:
        some = min(count, TOPICS_MAX)
        name = f"{TOPIC}-{count}"
        made = admin.create_topics(
            [NewTopic(name, some, 3)], request_timeout=WAIT_S, operation_timeout=WAIT_S
        )
        made[name].result(WAIT_S)
        count -= some


def replicas(port: int) -> dict[Partition, tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of each partition, as this node tells it."""
    line = Line(port)
    with contextlib.closing(line.socket):
        answer = line.ask(messages.MetadataRequest(topics=None), 12)
    return {
        (topic.name, part.partition_index): (part.leader_id, list(part.replica_nodes), list(part.isr_nodes))
        for topic in answer.topics
        for part in topic.partitions
    }


def whole(cluster: HandoverCluster) -> dict[Partition, tuple[int, list[int], list[int]]]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = [replicas(node.port) for node in cluster.nodes.values()]
        if (
            all(len(isr) == 3 for each in found for _, _, isr in each.values())
            and found[0] == found[1] == found[2]
        ):
            return found[0]
        time.sleep(1.0)
    raise RuntimeError("the replicas are not all in sync")


def produce_of(partitions: Sequence[Partition]) -> Any:
    cls = messages.ProduceRequest
    batch = bytes(build_batch([Record(key=None, value=b"x" * 100, timestamp=int(time.time() * 1000))]))
    by_topic: dict[str, list[Any]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(cls.TopicData.PartitionData(index=index, records=batch))
    return cls(
        acks=ACKS_ALL,
        timeout_ms=30_000,
        topic_data=[cls.TopicData(name=name, partition_data=rows) for name, rows in by_topic.items()],
    )


def accepted(ports: dict[int, int], wanted: dict[Partition, int], begun: float) -> tuple[float, float]:
    """When the first of them, and when all, have taken a record, in s from `begun` on; `wanted` says which
    node is to lead each."""
    first, left = 0.0, dict(wanted)
    lines = {number: Line(port) for number, port in ports.items()}
    while left:
        asked: dict[int, list[Any]] = {}
        for number in lines:
            own = [each for each, leader in left.items() if leader == number]
            asked[number] = [produce_of(own[at : at + AT_ONCE]) for at in range(0, len(own), AT_ONCE)]
        for number, requests in asked.items():
            for request in requests:
                lines[number].send(request, 9)
        for number, requests in asked.items():
            for request in requests:
                for topic in lines[number].read(type(request), 9).responses:
                    for part in topic.partition_responses:
                        if not part.error_code:
                            first = first or time.monotonic() - begun
                            del left[topic.name, part.index]
        if time.monotonic() - begun > WAIT_S:
            raise RuntimeError(f"{len(left)} partitions are not led")
        if left:
            time.sleep(PAUSE_S)
    ended = time.monotonic() - begun
    for line in lines.values():
        line.socket.close()
    return first, ended


def take_over(cluster: HandoverCluster, dead: int) -> tuple[int, float, float, float]:
    """How many partitions it led, and the three times in s."""
    ports = {number: node.port for number, node in cluster.nodes.items()}
    accepted(ports, {key: leader for key, (leader, _, _) in whole(cluster).items()}, time.monotonic())
    before = whole(cluster)
    wanted = {
        key: next(each for each in known if each != dead)
        for key, (leader, known, _) in before.items()
        if leader == dead
    }
    del ports[dead]
    process = cluster.nodes[dead].process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    begun = time.monotonic()
    process.wait(WAIT_S)
    first, last = accepted(ports, wanted, begun)
    while any(leader in (dead, -1) for port in ports.values() for leader, _, _ in replicas(port).values()):
        if time.monotonic() - begun > WAIT_S:
            raise RuntimeError("not all partitions have leaders")
        time.sleep(PAUSE_S)
    return len(wanted), first, last, time.monotonic() - begun


def preferred(cluster: HandoverCluster) -> None:
    """Each first replica leads again."""
    line = Line(next(iter(cluster.nodes.values())).port)
    with contextlib.closing(line.socket):
        line.ask(messages.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000), 2)
    deadline = time.monotonic() + WAIT_S
    while any(leader != known[0] for leader, known, _ in whole(cluster).values()):
        if time.monotonic() > deadline:
            raise RuntimeError("the preferred replicas do not lead")
        time.sleep(1.0)
