"""What the clients of bench/transactions.py take by themselves: their loads at a broker that answers at once.

    python -m bench.instant [SECONDS]

This broker keeps nothing and decides nothing: it answers Produce and the requests of transactions with
success, as Python decodes and encodes them. Figures of a real broker that come near these say more about
the client than about the broker.
"""

import json
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from bench.brokers import ENVIRONMENT, ROOT
from kafkad.protocol import codec, messages

HOST, NODE, PARTITIONS, SECONDS = "127.0.0.1", 1, 4, 3.0
LOADS = ("librdkafka", "old_frames", "frames")  # of bench.transaction_load
API_VERSIONS = 18
# API key -> its lowest and highest version
SERVED = {0: (3, 12), 3: (0, 9), 10: (0, 4), API_VERSIONS: (0, 3), 22: (0, 4), 24: (0, 3), 26: (0, 5)}


class Instant:
    """The broker. `port`: where it listens."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        self._answers: dict[int, Callable[[int, Any], Any]] = {
            0: produced,
            3: self._metadata,
            10: self._coordinator,
            API_VERSIONS: versions,
            22: lambda version, request: messages.InitProducerIdResponse(producer_id=1),
            24: added,
            26: lambda version, request: messages.EndTxnResponse(producer_id=1),
        }

    def run(self) -> NoReturn:
        poll, clients = select.epoll(), dict[int, tuple[socket.socket, bytearray]]()
        poll.register(self._listening.fileno(), select.EPOLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self._listening.fileno():
                    made, _ = self._listening.accept()
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    clients[made.fileno()] = made, bytearray()
                    poll.register(made.fileno(), select.EPOLLIN)
                elif not self._serve(*clients[number]):
                    poll.unregister(number)
                    clients.pop(number)[0].close()

    def _serve(self, client: socket.socket, held: bytearray) -> bool:
        """Answer the whole frames of one read. False: the client has left."""
        try:
            held += (piece := client.recv(1 << 16))
            while len(held) >= 4 and len(held) >= (end := 4 + int.from_bytes(held[:4], "big")):
                client.sendall(self._answer(bytes(held[4:end])))
                del held[:end]
        except OSError:
            return False
        return bool(piece)

    def _answer(self, frame: bytes) -> bytes:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key == API_VERSIONS and version > SERVED[key][1]:
            response, version = messages.ApiVersionsResponse(error_code=35), 0
        else:
            response = self._answers[key](version, codec.decode_request(frame)[1])
        encoded = bytes(codec.encode_response(response, version, correlation_id))
        return len(encoded).to_bytes(4, "big") + encoded

    def _metadata(self, version: int, request: Any) -> Any:
        cls = messages.MetadataResponse
        each = cls.Topics.Partitions
        rows = [
            each(partition_index=index, leader_id=NODE, replica_nodes=[NODE], isr_nodes=[NODE])
            for index in range(PARTITIONS)
        ]
        return cls(
            brokers=[cls.Brokers(node_id=NODE, host=HOST, port=self.port)],
            controller_id=NODE,
            topics=[cls.Topics(name=topic.name, partitions=rows) for topic in request.topics or ()],
        )

    def _coordinator(self, version: int, request: Any) -> Any:
        cls = messages.FindCoordinatorResponse
        at = {"node_id": NODE, "host": HOST, "port": self.port}
        if version < 4:
            return cls(**at)
        return cls(coordinators=[cls.Coordinators(key=key, **at) for key in request.coordinator_keys])


def versions(version: int, request: Any) -> Any:
    cls = messages.ApiVersionsResponse
    keys = [
        cls.ApiKeys(api_key=key, min_version=low, max_version=high) for key, (low, high) in SERVED.items()
    ]
    return cls(api_keys=keys)


def produced(version: int, request: Any) -> Any:
    cls = messages.ProduceResponse.Responses
    each = cls.PartitionResponses
    topics = [
        cls(name=topic.name, partition_responses=[each(index=it.index) for it in topic.partition_data])
        for topic in request.topic_data
    ]
    return messages.ProduceResponse(responses=topics)


def added(version: int, request: Any) -> Any:
    cls = messages.AddPartitionsToTxnResponse
    topic_of = cls.ResultsByTopicV3AndBelow
    results = [
        topic_of(
            name=topic.name,
            results_by_partition=[topic_of.ResultsByPartition(partition_index=it) for it in topic.partitions],
        )
        for topic in request.v3_and_below_topics
    ]
    return cls(results_by_topic_v3_and_below=results)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:  # in a process of its own, as a broker is
        instant = Instant()
        print(instant.port, flush=True)
        instant.run()
    seconds = sys.argv[1] if len(sys.argv) > 1 else str(SECONDS)
    command = [sys.executable, "-m", "bench.instant", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT) as broker:
        try:
            assert broker.stdout is not None
            at = f"{HOST}:{broker.stdout.readline().strip()}"
            for kind in LOADS:
                more = [] if kind == "librdkafka" else ["1"]  # producers
                load = [sys.executable, "-m", "bench.transaction_load", kind, at, "t", str(PARTITIONS)]
                done = subprocess.run(
                    [*load, *more, seconds],
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=ENVIRONMENT,
                    check=True,
                )  # fmt: skip
                found = json.loads(done.stdout)
                rate = found["transactions"] / found["seconds"]
                print(f"{kind:12} {rate:8,.0f} transactions/s, commit p50 {found['p50_ms']:.3f} ms")
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
