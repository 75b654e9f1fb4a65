"""Markers on their way from one worker to another, and the answer, as bytes.

    markers    each: <qhiBhH  producer id, its epoch, the coordinator's epoch, commits, transaction version,
                              number of topics
                     per topic, as in server/gate_messages
    answer     an error code for each partition, i16, in order (gate_messages.pack_answer)

It is sent between the processes of one broker only, for every transaction with partitions of another worker:
WriteTxnMarkers would take several times as long to encode, to route and to decode.

Use: server/marker_transport."""

import struct
from collections.abc import Iterable, Iterator, Sequence

from kafkad.coordinator.markers import Marker
from kafkad.coordinator.transaction import TopicPartition
from kafkad.server.gate_messages import pack_partitions, unpack_partitions

HEAD = struct.Struct("<qhiBhH")


def pack_markers(markers: Iterable[tuple[Marker, Sequence[TopicPartition]]]) -> bytes:
    pieces: list[bytes] = []
    for marker, partitions in markers:
        topics, its = pack_partitions(partitions)
        pieces.append(HEAD.pack(*marker, topics))
        pieces += its
    return b"".join(pieces)


def unpack_markers(data: bytes) -> Iterator[tuple[Marker, list[TopicPartition]]]:
    at = 0
    while at < len(data):
        producer_id, epoch, coordinator_epoch, commit, version, topics = HEAD.unpack_from(data, at)
        partitions, at = unpack_partitions(data, at + HEAD.size, topics)
        yield Marker(producer_id, epoch, coordinator_epoch, bool(commit), version), partitions
