"""A connection that speaks Kafka's frames by hand, for what no client would send."""

import socket
from typing import Any

from kafkad.protocol import codec, messages, records


class Wire:
    """One TCP connection to a broker. `ask` sends a request and reads its answer."""

    def __init__(self, bootstrap: str, timeout: float = 10.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def send(self, request: Any, version: int) -> int:
        self.correlation += 1
        self.send_frame(codec.encode_request(request, version, self.correlation, "wire"))
        return self.correlation

    def read_frame(self) -> bytes:
        """The next answer. ConnectionError when the broker closes instead."""
        return self.rest_of_frame(b"")

    def rest_of_frame(self, head: bytes) -> bytes:
        """The answer that begins with `head`, at most four bytes which have been read."""
        size = head + self._read(4 - len(head))
        return self._read(int.from_bytes(size, "big"))

    def ask(self, request: Any, version: int) -> Any:
        sent = self.send(request, version)
        response_class = codec.response_class(type(request).API_KEY)
        correlation, response = codec.decode_response(response_class, version, self.read_frame())
        assert correlation == sent
        return response

    def is_closed_by_broker(self) -> bool:
        """Waits for the end of the connection; False when there are bytes instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError(f"closed after {len(parts)} of {size} bytes")
            parts += part
        return bytes(parts)


def create_topic(wire: Wire, name: str, partitions: int = 1, **configs: str) -> bytes:
    """A topic of one replica; its id."""
    topic = messages.CreateTopicsRequest.Topics(name=name, num_partitions=partitions, replication_factor=1)
    for key, value in configs.items():
        topic.configs.append(
            messages.CreateTopicsRequest.Topics.Configs(name=key.replace("_", "."), value=value)
        )
    response = wire.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert response.topics[0].error_code == 0, response
    return response.topics[0].topic_id


def produce_request(topic: str, data: bytes, partition: int = 0, acks: int = 1) -> Any:
    struct = messages.ProduceRequest.TopicData
    return messages.ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            struct(name=topic, partition_data=[struct.PartitionData(index=partition, records=bytes(data))])
        ],
    )


def produce(wire: Wire, topic: str, data: bytes, partition: int = 0, version: int = 9) -> Any:
    """One batch; the answer for its partition."""
    response = wire.ask(produce_request(topic, data, partition), version)
    return response.responses[0].partition_responses[0]


def batch(*values: bytes, **how: Any) -> bytearray:
    """A batch v2 of these values."""
    import time

    now = int(time.time() * 1000)
    return records.build_batch(
        [records.Record(key=None, value=value, headers=[], timestamp=now) for value in values], **how
    )


def high_watermark(wire: Wire, topic: str, partition: int = 0) -> int:
    asked = messages.ListOffsetsRequest.Topics.Partitions(partition_index=partition, timestamp=-1)
    request = messages.ListOffsetsRequest(
        replica_id=-1, topics=[messages.ListOffsetsRequest.Topics(name=topic, partitions=[asked])]
    )
    found = wire.ask(request, 6).topics[0].partitions[0]
    assert found.error_code == 0, found
    return found.offset
