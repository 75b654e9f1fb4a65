"""Requests about records for tests/differential_requests.py: Produce, Fetch, offsets, producers."""

import struct
import time
from collections.abc import Callable
from typing import Any

import crc32c

from kafkad.protocol import messages, records
from tests.differential import Request, Side, Symbol, edges
from tests.differential_choices import (
    COMPACTED,
    INT32,
    INT64,
    MARKED,
    PRODUCERS,
    STAMPED,
    TOPICS,
    Choices,
)


class RecordRequests(Choices):
    """Adds requests that write and read records."""

    # -- records

    def records(self, topic: str, partition: int) -> tuple[bytes | None, Callable[[Side, Any], None] | None]:
        rng = self.rng
        now = int(time.time() * 1000)
        count = rng.choice((1, 1, 2, 3, 10))
        keyed = topic == COMPACTED and rng.random() < 0.8
        rows = [
            records.Record(
                key=b"k%d" % rng.randrange(5) if keyed or rng.random() < 0.3 else None,
                value=rng.choice((b"v" * rng.choice((0, 1, 20, 300)), None)),
                headers=[("h", rng.choice((None, b"", b"x")))] if rng.random() < 0.2 else [],
                timestamp=now + rng.choice((0, 0, 1, -1000, -86_400_000)),
            )
            for _ in range(count)
        ]
        data = records.build_batch(rows, compression=rng.choice((0, 0, 0, 1, 2, 3, 4)))
        roll = rng.random()
        if roll < 0.12:
            self.wrong = True
            data = self.wrong_batch(data)
        elif roll < 0.15:
            data = data + records.build_batch(rows)
        elif roll < 0.17:
            return rng.choice((b"", bytes(data[:30]), bytes(data[:-1]))), None
        return bytes(data), None

    def wrong_batch(self, data: bytearray) -> bytearray:
        """One field of its header is wrong; the CRC is mostly right again."""
        rng = self.rng
        at, form, values = rng.choice((
            (0, ">q", (7, -1, INT64 - 1)),  # base offset: ignored
            (8, ">i", (0, 1, -1, len(data), INT32 - 1)),  # length
            (12, ">i", (5, -1)),  # leader epoch: ignored
            (16, ">b", (0, 1, 3, -1)),  # magic
            (21, ">h", (0x10, 0x20, 0x30, 0x40, 5, 7, 0x80)),  # attributes
            (23, ">i", (0, 5, -1, INT32 - 1)),  # last offset delta
            (27, ">q", (200_000_000, INT64 - 1)),  # base timestamp: all records lie behind 1970
            (35, ">q", (-1, 0, INT64 - 1)),  # max timestamp
            (43, ">q", (0, 5, INT64 - 1)),  # producer id
            (51, ">h", (0, -2, 5)),  # producer epoch
            (53, ">i", (0, 5, -2)),  # base sequence
            (57, ">i", (0, -1, 2, 100, INT32 - 1)),  # count
            (61, ">b", (0, 2, -1, 127)),  # the first record's size
        ))  # fmt: skip
        # Kafka reads all batches of a request before it appends one, so such a batch fails its neighbours,
        # too
        self.alone = self.alone or at in (8, 16, 21)
        if at < len(data):
            struct.pack_into(form, data, at, rng.choice(values))
        if rng.random() < 0.85:
            struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
        return data

    def produce(self) -> Request:
        rng = self.rng
        version = self.version(0)
        names = self.some(self.writable, 2)
        self.alone = self.wrong = False
        topics = []
        for name in names:
            parts = []
            for index in self.some(lambda name=name: self.partition(name), 2):
                data, _ = self.records(name, index)
                parts.append(messages.ProduceRequest.TopicData.PartitionData(index=index, records=data))
            topics.append(
                messages.ProduceRequest.TopicData(
                    name=name, topic_id=self.topic_id(name), partition_data=parts
                )
            )
        if self.alone:
            topics = [topic for topic in topics if topic.partition_data][-1:]
            topics[0].partition_data = topics[0].partition_data[-1:]
        acks = edges(rng, 1, -1, 1, rare=(0, 0, 2, -2))
        message = messages.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics)
        if rng.random() < 0.25 and version >= 3:
            return self.idempotent(version)
        return Request(
            message,
            version,
            capture=self.produced(version, names),
            answered=acks != 0,
            wrong_batch=self.wrong,
        )

    def idempotent(self, version: int) -> Request:
        """A batch of a producer: mostly the next one, now and then a retry, a gap or another epoch."""
        rng = self.rng
        number = rng.randrange(PRODUCERS)
        name = rng.choice(TOPICS)
        index = rng.randrange(self.partitions.get(name, 1))
        place = (number, name, index)
        due = self.sequences.get(place, 0)
        count = rng.choice((1, 2, 5))
        sequence = max(edges(rng, due, due, due, rare=(due + 1, due - 1, due - count, 0)), 0)
        epoch = edges(rng, 0, 0, 0, rare=(1, 5))
        if sequence == due and epoch == 0:
            self.sequences[place] = due + count
        now = int(time.time() * 1000)
        rows = [records.Record(key=None, value=b"i" * 10, headers=[], timestamp=now) for _ in range(count)]
        data = records.build_batch(rows, producer_id=1, producer_epoch=epoch, base_sequence=sequence)
        part = messages.ProduceRequest.TopicData.PartitionData(
            index=index, records=Symbol("batch", (number, bytes(data)))
        )
        topic = messages.ProduceRequest.TopicData(
            name=name, topic_id=Symbol("topic", name, bytes(16)), partition_data=[part]
        )
        return Request(
            messages.ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]),
            version,
            capture=self.produced(version, [name]),
        )

    def produced(self, version: int, names: list[str]) -> Callable[[Side, Any], None]:
        def capture(side: Side, response: Any) -> None:
            for topic in response.responses:
                name = topic.name if version < 13 else side.symbols.get(topic.topic_id, "")[7:-1]
                for part in topic.partition_responses:
                    if part.error_code == 0:
                        place = (name, part.index)
                        self.next_offset[place] = max(self.next_offset.get(place, 0), part.base_offset + 1)

        return capture

    # -- reads

    def fetch(self) -> Request:
        rng = self.rng
        version = self.session_version if self.session_open and rng.random() < 0.6 else self.version(1)
        cls = messages.FetchRequest
        topics = []
        for name in self.some(self.topic, 3):
            parts = [
                cls.Topics.Partitions(
                    partition=index,
                    current_leader_epoch=self.epoch(),
                    last_fetched_epoch=edges(rng, -1, -1, 0, rare=(1, 9, -2)) if version >= 12 else -1,
                    fetch_offset=self.offset(name, index),
                    partition_max_bytes=edges(rng, 1 << 20, 1000, rare=(0, 1, INT32 - 1)),
                )
                for index in self.some(lambda name=name: self.partition(name))
            ]
            topics.append(cls.Topics(topic=name, topic_id=self.topic_id(name, zero=False), partitions=parts))
        message = cls(
            max_wait_ms=edges(rng, 0, 20, rare=(-1,)),
            min_bytes=edges(rng, 0, 1, rare=(-1, 1 << 20)),
            max_bytes=edges(rng, 1 << 20, 1 << 25, 500, rare=(0, 1, INT32 - 1)),
            isolation_level=rng.choice((0, 1)),
            topics=topics,
            session_epoch=-1,
        )
        capture = None
        if version >= 7:
            capture = self.session(message, version)
        return Request(message, version, capture=capture)

    def session(self, message: Any, version: int) -> Callable[[Side, Any], None] | None:
        """Makes it part of a fetch session, or leaves it without one."""
        rng = self.rng
        kind = rng.choice(("none", "none", "new", "next", "next", "next", "next", "wrong"))
        if kind == "new":
            message.session_id, message.session_epoch = 0, 0
            self.sessions += 1
            number = self.sessions
            self.session_version, self.session_epoch, self.session_open = version, 1, True

            def capture(side: Side, response: Any) -> None:
                side.learn("session", number, response.session_id)

            return capture
        if kind == "next" and self.sessions and self.session_version == version and self.session_open:
            message.session_id = Symbol("session", self.sessions, 0)
            message.session_epoch = self.session_epoch
            self.session_epoch += 1
            if rng.random() < 0.3:
                name = self.existing()
                message.forgotten_topics_data = [
                    messages.FetchRequest.ForgottenTopicsData(
                        topic=name, topic_id=Symbol("topic", name, bytes(16)), partitions=[0]
                    )
                ]
        elif kind == "wrong":
            message.session_id = rng.choice((77, Symbol("session", self.sessions, 0)))
            message.session_epoch = rng.choice((5, 1000, -1))
            if message.session_epoch == -1 and message.session_id != 77:
                self.session_open = False
        return None

    def list_offsets(self) -> Request:
        rng = self.rng
        cls = messages.ListOffsetsRequest
        now = int(time.time() * 1000)
        topics = [
            cls.Topics(
                name=name,
                partitions=[
                    cls.Topics.Partitions(
                        partition_index=index,
                        current_leader_epoch=self.epoch(),
                        timestamp=edges(
                            rng,
                            -1,
                            -2,
                            -1 if name in MARKED else -3,  # the brokers' clocks stamp the newest
                            0,
                            now - 90_000_000 if name in (STAMPED, *MARKED) else now - 500,
                            now - 90_000_000,
                            rare=(-4, -5, -6, now + 10**9),
                        ),
                    )
                    for index in self.some(lambda name=name: self.partition(name))
                ],
            )
            for name in self.some(self.topic)
        ]
        return Request(
            cls(
                replica_id=edges(rng, -1, rare=(-2, -3)),
                isolation_level=rng.choice((0, 1)),
                topics=topics,
                timeout_ms=1000,
            ),
            self.version(2),
        )

    def offset_for_leader_epoch(self) -> Request:
        cls = messages.OffsetForLeaderEpochRequest
        topics = [
            cls.Topics(
                topic=name,
                partitions=[
                    cls.Topics.Partitions(
                        partition=index,
                        current_leader_epoch=self.epoch(),
                        leader_epoch=edges(self.rng, 0, -1, rare=(1, 9, -2)),
                    )
                    for index in self.some(lambda name=name: self.partition(name))
                ],
            )
            for name in self.some(self.topic)
        ]
        return Request(cls(replica_id=edges(self.rng, -1, -2, rare=(5,)), topics=topics), self.version(23))

    def delete_records(self) -> Request:
        cls = messages.DeleteRecordsRequest
        topics = [
            cls.Topics(
                name=name,
                partitions=[
                    cls.Topics.Partitions(
                        partition_index=index,
                        offset=edges(self.rng, 0, 1, 3, rare=(-1, -2, 10**9, INT64 - 1)),
                    )
                    for index in self.some(lambda name=name: self.partition(name), 2)
                ],
            )
            for name in self.some(self.topic, 2)
        ]
        return Request(cls(topics=topics, timeout_ms=5000), self.version(21))

    # -- producers

    def init_producer_id(self, number: int | None = None) -> Request:
        if number is None and self.rng.random() < 0.5:
            version = self.version(22)
            message = messages.InitProducerIdRequest(
                transactional_id=edges(self.rng, None, rare=("",)),
                transaction_timeout_ms=edges(self.rng, 60000, rare=(-1, 0)),
                producer_id=edges(self.rng, -1, rare=(5, -2)) if version >= 3 else -1,
                producer_epoch=edges(self.rng, -1, rare=(0, 5)) if version >= 3 else -1,
            )
            self.spare = getattr(self, "spare", 0) + 1
            spare = self.spare
            return Request(
                message,
                version,
                capture=lambda side, response: side.learn("spare producer", spare, response.producer_id),
            )
        if number is None:
            number = self.rng.randrange(PRODUCERS)
        for key in [each for each in self.sequences if each[0] == number]:
            del self.sequences[key]
        chosen = number
        return Request(
            messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000),
            self.version(22),
            capture=lambda side, response: side.learn("producer", chosen, response.producer_id),
        )

    def write_txn_markers(self) -> Request:
        """Of producers that write no transactions, most of them the script's own: what
        `kafka-transactions.sh abort` may send. Ids and epochs below 0: docs/differences.md."""
        rng = self.rng
        cls = messages.WriteTxnMarkersRequest.Markers
        markers = []
        numbers = self.some(lambda: rng.randrange(PRODUCERS))
        for number in numbers[: rng.choice((1, 1, 1, 2))]:
            topics = [
                cls.Topics(name=name, partition_indexes=self.some(lambda name=name: self.partition(name), 2))
                for name in self.some(lambda: edges(rng, *MARKED, rare=("missing", "", "é")), 2)
            ]
            for topic in topics:
                for index in topic.partition_indexes:  # their next sequence is any
                    self.sequences.pop((number, topic.name, index), None)
            markers.append(
                cls(
                    producer_id=edges(rng, Symbol("producer", number, 1), rare=(1 << 40, INT64 - 1)),
                    producer_epoch=edges(rng, 0, 0, 1, rare=(5, 32767)),
                    transaction_result=rng.random() < 0.5,
                    coordinator_epoch=edges(rng, 0, 0, 1, rare=(5, -1, INT32 - 1)),
                    transaction_version=rng.choice((0, 1, 2)),
                    topics=topics,
                )
            )
        return Request(messages.WriteTxnMarkersRequest(markers=markers), self.version(27))

    def describe_producers(self) -> Request:
        cls = messages.DescribeProducersRequest.Topics
        topics = [
            cls(name=name, partition_indexes=self.some(lambda name=name: self.partition(name)))
            for name in self.some(self.topic)
        ]
        return Request(messages.DescribeProducersRequest(topics=topics), 0)
