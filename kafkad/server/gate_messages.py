"""A question between workers whether a producer may write to partitions, and its answer, as bytes.

    question   <BqhHH  adds, producer id, its epoch, length of the transactional id, number of topics
               the transactional id, in UTF-8
               per topic:  <HH length of its name, number of partitions | the name | each partition, u32
    answer     an error code for each partition, i16, in the order of the question

It is asked between the processes of one broker only, for every transaction whose coordinator is in another
worker: a request of the protocol would take ten times as long to encode and to decode.

Use: server/transaction_gate."""

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from kafkad.coordinator.transaction import TopicPartition

HEAD = struct.Struct("<BqhHH")
TOPIC = struct.Struct("<HH")


class Question(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    adds: bool  # else: is each of them in the transaction?


def pack_question(question: Question) -> bytes:
    name = question.transactional_id.encode()
    topics, pieces = pack_partitions(question.partitions)
    head = HEAD.pack(question.adds, question.producer_id, question.epoch, len(name), topics)
    return b"".join((head, name, *pieces))


def unpack_question(data: bytes) -> Question:
    adds, producer_id, epoch, size, topics = HEAD.unpack_from(data)
    at = HEAD.size + size
    transactional_id = data[HEAD.size : at].decode()
    partitions, _ = unpack_partitions(data, at, topics)
    return Question(transactional_id, producer_id, epoch, partitions, bool(adds))


def pack_partitions(partitions: Sequence[TopicPartition]) -> tuple[int, list[bytes]]:
    """Return (number of topics, their bytes)."""
    pieces: list[bytes] = []
    for topic, each in groupby(partitions, key=lambda partition: partition[0]):
        name, indexes = topic.encode(), [index for _, index in each]
        pieces += TOPIC.pack(len(name), len(indexes)), name, struct.pack(f"<{len(indexes)}I", *indexes)
    return len(pieces) // 3, pieces


def unpack_partitions(data: bytes, at: int, topics: int) -> tuple[list[TopicPartition], int]:
    """Return (partitions of so many topics from byte `at` on, where they end)."""
    partitions: list[TopicPartition] = []
    for _ in range(topics):
        size, count = TOPIC.unpack_from(data, at)
        at += TOPIC.size
        topic = data[at : at + size].decode()
        at += size
        partitions += [(topic, index) for index in struct.unpack_from(f"<{count}I", data, at)]
        at += 4 * count
    return partitions, at


def pack_answer(codes: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(codes)}h", *codes)


def unpack_answer(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 2}h", data)
