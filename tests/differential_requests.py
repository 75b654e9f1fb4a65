"""Scripts for tests/differential.py: requests to every API at every version that kafkad serves, from a seed.

`Script(seed)` yields requests without end. Most are valid for the state that the script has made so far
(topics, groups, producers, fetch sessions). Some are wrong in one of the ways in which clients are wrong:
names that do not exist, offsets and epochs out of range, fields at the edge of their type, batches with a
damaged header, frames that are cut.

Nothing here may depend on time, and no request may make another one wait: a group has one member at a time,
a Fetch waits 20 ms at most, and topics keep their records.

Over 900 lines: a generator of requests for each API."""

import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import crc32c

from kafkad._native.wire.codec import Message
from kafkad.api.table import ROWS
from kafkad.protocol import messages, records
from tests.differential import KAFKA_4_FROM, Request, Side, Symbol, edges

INT16, INT32, INT64 = 1 << 15, 1 << 31, 1 << 63
TOPICS = [f"t{number}" for number in range(5)]
STAMPED = "stamped"  # LogAppendTime
MARKED = ("t0", "t1")  # the brokers write markers, with the time of their own clocks
UNPACKED = "unpacked"  # compression.type=uncompressed
COMPACTED = "compacted"
SMALL = "small"  # max.message.bytes=2000
GROUPS = ["g0", "g1", "g2"]
PRODUCERS = 3
TOPIC, BROKER = 2, 4
SERVED = {row.key: (max(row.low, KAFKA_4_FROM.get(row.key, 0)), row.high) for row in ROWS}
WEIGHTS = {
    "produce": 22, "fetch": 14, "list_offsets": 8, "metadata": 4, "offset_commit": 6, "offset_fetch": 6,
    "find_coordinator": 2, "join_group": 6, "sync_group": 4, "heartbeat": 4, "leave_group": 2,
    "describe_groups": 3,
    "list_groups": 2,
    "api_versions": 2, "sasl_handshake": 1, "sasl_authenticate": 1, "scram_described": 1,
    "scram_altered": 1, "acls_described": 1, "acls_created": 1, "acls_deleted": 1,
    "create_topics": 3, "delete_topics": 2,
    "delete_records": 4,
    "init_producer_id": 3, "offset_for_leader_epoch": 4, "describe_configs": 3, "alter_configs": 1,
    "incremental_alter_configs": 5, "describe_log_dirs": 2, "create_partitions": 2, "delete_groups": 1,
    "offset_delete": 2,
    "describe_cluster": 2, "describe_producers": 3, "list_config_resources": 1,
    "describe_topic_partitions": 3, "write_txn_markers": 2,
}  # fmt: skip


class Script:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.partitions = {STAMPED: 1, UNPACKED: 1, COMPACTED: 1, SMALL: 1}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.sequences: dict[tuple[int, str, int], int] = {}
        self.members: dict[str, int] = {}  # a group's joins so far
        self.sessions = 0
        self.session_version = self.session_epoch = 0
        self.session_open = False

    def __iter__(self) -> Iterator[Request]:
        yield from self.prologue()
        names = list(WEIGHTS)
        weights = [WEIGHTS[name] for name in names]
        while True:
            made = getattr(self, self.rng.choices(names, weights)[0])()
            roll = self.rng.random()
            if roll < 0.05 and not made.changes and made.answered:
                self.mutate(made)
            elif roll < 0.08 and not made.changes and made.answered:
                made.damage = self.damage()
            elif roll < 0.11 and not made.changes and made.answered:
                made.damage = self.tagged(made)
            yield made
            if made.key in (33, 44) and made.message.resources:
                yield self.described(made.message.resources)

    def bursts(self) -> Iterator[list[Request]]:
        """The requests, some of them several at once on the connection."""
        made: list[Request] = []
        wanted = 1
        for request in self:
            made.append(request)
            # a JoinGroup behind another one would not know its member, and wait for it
            last = request.changes or request.damage or not request.answered or request.key == 11
            if last or len(made) >= wanted:
                yield made
                made = []
                wanted = self.rng.choice((1, 1, 1, 2, 5))

    def prologue(self) -> Iterator[Request]:
        """What all scripts begin with."""
        topics = [self.creatable(name, 1 + number % 3) for number, name in enumerate(TOPICS)]
        topics.append(self.creatable(STAMPED, 1, {"message.timestamp.type": "LogAppendTime"}))
        topics.append(self.creatable(UNPACKED, 1, {"compression.type": "uncompressed"}))
        topics.append(self.creatable(COMPACTED, 1, {"cleanup.policy": "compact"}))
        topics.append(self.creatable(SMALL, 1, {"max.message.bytes": "2000"}))
        for number, name in enumerate(TOPICS):
            self.partitions[name] = 1 + number % 3
        yield Request(messages.CreateTopicsRequest(topics=topics, timeout_ms=10000), 7, changes="topics")
        for number in range(PRODUCERS):
            yield self.init_producer_id(number)

    # -- choices

    def version(self, key: int) -> int:
        low, high = SERVED[key]
        return self.rng.randint(low, high)

    def topic(self) -> str:
        return edges(self.rng, *self.partitions, rare=("missing", "", "a b", "..", "x" * 250, "é"))

    def writable(self) -> str:
        return "__consumer_offsets" if self.rng.random() < 0.02 else self.topic()

    def existing(self) -> str:
        return self.rng.choice(list(self.partitions))

    def topic_id(self, name: str, zero: bool = True) -> Any:
        """`zero`: the id may be all zeros. Kafka gives a Fetch with such an id no answer, or fails all of
        it."""
        if self.rng.random() < 0.04:
            return self.rng.choice((bytes(16) if zero else b"\1" * 16, b"\xff" * 16))
        return Symbol("topic", name, b"\x11" * 16)

    def partition(self, topic: str) -> int:
        count = self.partitions.get(topic, 1)
        return edges(self.rng, *range(count), rare=(-1, count, 1000, INT32 - 1, -INT32))

    def offset(self, topic: str, partition: int) -> int:
        end = self.next_offset.get((topic, partition), 0)
        return edges(
            self.rng, 0, end, end // 2, max(end - 1, 0), rare=(-1, -2, end + 1, INT64 - 1, -INT64, 1 << 40)
        )

    def epoch(self) -> int:
        return edges(self.rng, -1, -1, 0, rare=(1, 1000, INT32 - 1))

    def group(self) -> str:
        return edges(self.rng, *GROUPS, rare=("", "nogroup", "g" * 300, "é"))

    def some(self, choose: Callable[[], Any], most: int = 3) -> list[Any]:
        return list(dict.fromkeys(choose() for _ in range(self.rng.choice((0, 1, 1, 1, 2, most)))))

    def text(self) -> str:
        return self.rng.choice(("", "a", "meta data", "é", "x" * 100))

    # -- wrong requests

    def mutate(self, made: Request) -> None:
        """One field somewhere in it gets a value at the edge of its type."""
        fields = [
            (owner, each)
            for owner, each in reachable(made.message, made.version)
            if each.name not in KEPT
            and not (made.key == 27 and each.name in ("producer_id", "producer_epoch"))
            and (each.type in EDGES or can_be_null(each, made.version))
        ]
        if fields:
            owner, each = self.rng.choice(fields)
            null = can_be_null(each, made.version)
            setattr(owner, each.name, None if null else self.rng.choice(EDGES[each.type]))

    def tagged(self, made: Request) -> Callable[[bytes], bytes] | None:
        """Unknown tagged fields at the end of the request, which brokers pass over; some are malformed."""
        low, high = type(made.message).SPEC.flexible
        tags = self.rng.choice((
            b"\x01\xe9\x07\x03abc",  # tag 1001
            b"\x02\xe9\x07\x00\xea\x07\x01x",
            b"\x01\xe9\x07\x09abc",  # longer than the frame
            b"\x02\xea\x07\x00\xe9\x07\x00",  # not in order
            b"\x02\xe9\x07\x00\xe9\x07\x00",  # twice
        ))  # fmt: skip
        if not low <= made.version <= high:
            return None
        return lambda frame: frame[:-1] + tags if frame[-1] == 0 else frame

    def damage(self) -> Callable[[bytes], bytes]:
        rng = self.rng
        kind = rng.choice(("cut", "longer", "cut", "client"))
        amount = rng.randint(1, 12)
        if kind == "cut":
            return lambda frame: frame[: max(len(frame) - amount, 0)]
        if kind == "longer":
            return lambda frame: frame + bytes(amount)
        return lambda frame: frame[:8] + (amount + 500).to_bytes(2, "big") + frame[10:]

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

    # -- the cluster

    def metadata(self) -> Request:
        rng = self.rng
        version = self.version(3)
        cls = messages.MetadataRequest
        if rng.random() < 0.3:
            topics: Any = None if version >= 1 else []
        else:
            topics = []
            for name in self.some(self.topic):
                by_id = version >= 12 and rng.random() < 0.5
                topics.append(
                    cls.Topics(
                        name=None if by_id else name, topic_id=self.topic_id(name) if by_id else bytes(16)
                    )
                )
        return Request(
            cls(
                topics=topics,
                allow_auto_topic_creation=rng.random() < 0.5,
                include_cluster_authorized_operations=8 <= version <= 10 and rng.random() < 0.5,
                include_topic_authorized_operations=version >= 8 and rng.random() < 0.5,
            ),
            version,
        )

    def describe_topic_partitions(self) -> Request:
        cls = messages.DescribeTopicPartitionsRequest
        cursor = None
        if self.rng.random() < 0.4:
            name = self.topic()
            cursor = cls.Cursor(topic_name=name, partition_index=edges(self.rng, 0, 1, rare=(-1, 50)))
        return Request(
            cls(
                topics=[cls.Topics(name=name) for name in self.some(self.topic)],
                response_partition_limit=edges(self.rng, 2000, 1, 2, rare=(0, -1, INT32 - 1)),
                cursor=cursor,
            ),
            0,
        )

    def describe_cluster(self) -> Request:
        message = messages.DescribeClusterRequest(
            include_cluster_authorized_operations=self.rng.random() < 0.5,
            endpoint_type=edges(self.rng, 1, rare=(2, 0, 9)),
            include_fenced_brokers=self.rng.random() < 0.5,
        )
        return Request(message, self.version(60))

    def api_versions(self) -> Request:
        message = messages.ApiVersionsRequest(
            client_software_name=edges(self.rng, "c", "a-b.c", rare=("", "é", "-", "a b")),
            client_software_version=edges(self.rng, "1", "1.0-x", rare=("", " ")),
        )
        return Request(message, self.version(18))

    def sasl_handshake(self) -> Request:
        return Request(
            messages.SaslHandshakeRequest(mechanism=self.rng.choice(("PLAIN", "", "X"))), self.version(17)
        )

    def sasl_authenticate(self) -> Request:
        token = self.rng.choice((b"", b"\0a\0b"))
        return Request(messages.SaslAuthenticateRequest(auth_bytes=token), self.version(36))

    def scram_described(self) -> Request:
        user = messages.DescribeUserScramCredentialsRequest.Users(
            name=self.rng.choice(("u", "v", "", "nobody"))
        )
        return Request(
            messages.DescribeUserScramCredentialsRequest(users=[user] * edges(self.rng, 1, rare=(2, 3))), 0
        )

    def scram_altered(self) -> Request:
        """Of one user: a HashMap gives the order of several."""
        rng, cls = self.rng, messages.AlterUserScramCredentialsRequest
        name = edges(rng, "u", "v", rare=("", "é", "x" * 300))
        mechanism = edges(rng, 1, 2, rare=(0, 3, -1))
        gone = [cls.Deletions(name=name, mechanism=mechanism) for _ in range(edges(rng, 0, 1, rare=(2,)))]
        new = [
            cls.Upsertions(
                name=name,
                mechanism=mechanism,
                iterations=edges(rng, 4096, 16384, rare=(0, 4095, 16385, -1)),
                salt=edges(rng, b"salt", rare=(b"",)),
                salted_password=edges(rng, b"p" * 32, rare=(b"p", b"p" * 64)),
            )
            for _ in range(edges(rng, 1, 0, rare=(2,)))
        ]
        return Request(cls(deletions=gone, upsertions=new), 0, changes="configs")

    def acls_described(self) -> Request:
        return Request(messages.DescribeAclsRequest(**self.acl_filter()), self.version(29))

    def acls_created(self) -> Request:
        """There is no authorizer: only the number 0 (UNKNOWN) is told from the others."""
        rng, cls = self.rng, messages.CreateAclsRequest
        new = [
            cls.Creations(
                resource_type=edges(rng, 2, 3, rare=(0, 1, 9)),
                resource_name=rng.choice(("t", "", "*")),
                resource_pattern_type=edges(rng, 3, 4, rare=(0, 1, 2, 9)),
                principal=rng.choice(("User:u", "u")),
                host="*",
                operation=edges(rng, 3, 2, rare=(0, 1, 99)),
                permission_type=edges(rng, 2, 3, rare=(0, 1, 9)),
            )
            for _ in range(edges(rng, 1, 2, rare=(0,)))
        ]
        return Request(cls(creations=new), self.version(30))

    def acls_deleted(self) -> Request:
        filters = [
            messages.DeleteAclsRequest.Filters(**self.acl_filter())
            for _ in range(edges(self.rng, 1, 2, rare=(0,)))
        ]
        return Request(messages.DeleteAclsRequest(filters=filters), self.version(31))

    def acl_filter(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "resource_type_filter": edges(rng, 1, 2, rare=(0, 9)),
            "resource_name_filter": rng.choice(("t", None, "")),
            "pattern_type_filter": edges(rng, 1, 3, rare=(0, 2, 4, 9)),
            "principal_filter": rng.choice(("User:u", None)),
            "host_filter": rng.choice(("*", None)),
            "operation": edges(rng, 1, 3, rare=(0, 99)),
            "permission_type": edges(rng, 1, 3, rare=(0, 9)),
        }

    def find_coordinator(self) -> Request:
        message = messages.FindCoordinatorRequest(
            key=self.group(),
            key_type=edges(self.rng, 0, rare=(2, 9, -1)),
            coordinator_keys=self.some(self.group),
        )
        return Request(message, self.version(10))

    # -- topics and configurations

    def creatable(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> Any:
        cls = messages.CreateTopicsRequest.Topics
        rows = [cls.Configs(name=key, value=value) for key, value in (configs or {}).items()]
        return cls(name=name, num_partitions=partitions, replication_factor=1, configs=rows)

    def create_topics(self) -> Request:
        rng = self.rng
        cls = messages.CreateTopicsRequest.Topics
        validate = rng.random() < 0.3
        topics = []
        for name in self.some(
            lambda: edges(rng, *TOPICS, *TOPICS, rare=("", "..", "a b", "x" * 250, "é", "new.dots"))
        ):
            partitions = edges(rng, 1, 2, 3, -1, rare=(0, -2))
            factor = edges(rng, 1, -1, rare=(0, 2, -2, INT16 - 1))
            made = self.creatable(
                name,
                partitions,
                edges(
                    rng, {}, {}, {"retention.ms": "86400000"},
                    rare=({"no.such": "1"}, {"retention.ms": "x"}, {"cleanup.policy": "shrink"}),
                ),
            )  # fmt: skip
            made.replication_factor = factor
            if rng.random() < 0.1:
                made.num_partitions = made.replication_factor = -1
                made.assignments = [
                    cls.Assignments(partition_index=index, broker_ids=ids)
                    for index, ids in rng.choice((
                        [(0, [1])], [(0, [1]), (1, [1])], [(0, [1, 1])], [(0, [])], [(0, [9])], [(1, [1])],
                    [(0, [1]), (0, [1])], ))
                ]  # fmt: skip
            topics.append(made)
            if not validate and name in TOPICS and name not in self.partitions:
                self.partitions[name] = max(len(made.assignments), made.num_partitions, 1)
        message = messages.CreateTopicsRequest(topics=topics, timeout_ms=10000, validate_only=validate)
        return Request(message, self.version(19), changes="topics", capture=self.learn_created)

    def learn_created(self, side: Side, response: Any) -> None:
        for topic in response.topics:
            if topic.error_code == 0 and topic.topic_id != bytes(16):
                side.learn("topic", topic.name, topic.topic_id)

    def delete_topics(self) -> Request:
        rng = self.rng
        version = self.version(20)
        names = self.some(lambda: edges(rng, *TOPICS, rare=("missing", "", "a b")), 2)
        cls = messages.DeleteTopicsRequest
        topics = []
        for name in names:
            by_id = rng.random() < 0.5
            topics.append(
                cls.Topics(name=None if by_id else name, topic_id=self.topic_id(name) if by_id else bytes(16))
            )
            self.forget(name)
        return Request(cls(topics=topics, topic_names=names, timeout_ms=10000), version, changes="topics")

    def forget(self, name: str) -> None:
        self.partitions.pop(name, None)
        for place in [each for each in self.next_offset if each[0] == name]:
            del self.next_offset[place]
        for key in [each for each in self.sequences if each[1] == name]:
            del self.sequences[key]

    def create_partitions(self) -> Request:
        rng = self.rng
        cls = messages.CreatePartitionsRequest
        topics = []
        for name in self.some(self.topic, 2):
            count = self.partitions.get(name, 1)
            wanted = edges(rng, min(count + 1, 5), rare=(count, 0, -1, count - 1))
            assignments = None
            if rng.random() < 0.2:
                assignments = [
                    cls.Topics.Assignments(broker_ids=ids)
                    for ids in rng.choice(([[1]], [[9]], [[]], [[1], [1]]))
                ]
            topics.append(cls.Topics(name=name, count=wanted, assignments=assignments))
        return Request(
            cls(topics=topics, timeout_ms=10000, validate_only=rng.random() < 0.5),
            self.version(37),
            changes="topics",
        )

    CONFIGS = (
        ("retention.ms", "86400000"), ("retention.ms", "x"), ("retention.ms", None), ("segment.bytes",
        "1048576"),
        ("segment.bytes", "1"), ("no.such", "1"), ("max.message.bytes", "1000000"), ("min.insync.replicas",
        "1"),
        ("min.insync.replicas", "0"), ("message.timestamp.type", "NoTime"), ("compression.type", "gzip"),
        ("compression.type", "none"), ("cleanup.policy", "delete"), ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"), ("cleanup.policy", ""), ("cleanup.policy", None),
        ("min.insync.replicas", "2"), ("retention.ms", "-1"), ("retention.ms", "-2"), ("retention.ms", ""),
        ("max.message.bytes", " 2000 "), ("max.message.bytes", "1e3"), ("flush.ms", "0x10"),
        ("unclean.leader.election.enable", "TRUE"), ("unclean.leader.election.enable", "yes"),
        ("min.cleanable.dirty.ratio", "0.5"), ("min.cleanable.dirty.ratio", "1.5"),
        ("leader.replication.throttled.replicas", "0:1"),
    )  # fmt: skip

    def resource(self) -> tuple[int, str]:
        return edges(
            self.rng,
            (TOPIC, self.topic()),
            rare=((TOPIC, ""), (99, "x"), (0, ""), (BROKER, "77"), (BROKER, "x")),
        )

    def alter_configs(self) -> Request:
        cls = messages.AlterConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[cls.Resources.Configs(name=key, value=value) for key, value in self.configs()],
            )
            for kind, name in self.some(self.resource, 2)
        ]
        return Request(
            cls(resources=resources, validate_only=self.rng.random() < 0.7),
            self.version(33),
            changes="configs",
        )

    def incremental_alter_configs(self) -> Request:
        cls = messages.IncrementalAlterConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[
                    cls.Resources.Configs(
                        name=key,
                        value=value,
                        config_operation=edges(self.rng, 0, 0, 1, 2, 3, rare=(9, -1)),
                    )
                    for key, value in self.configs()
                ],
            )
            for kind, name in self.some(self.resource, 2)
        ]
        if any(row.config_operation not in range(4) for each in resources for row in each.configs):
            resources = resources[:1]  # Kafka fails all resources of such a request
        return Request(
            cls(resources=resources, validate_only=self.rng.random() < 0.5),
            self.version(44),
            changes="configs",
        )

    def described(self, resources: list[Any]) -> Request:
        """What a change of configurations has left."""
        cls = messages.DescribeConfigsRequest
        asked = [
            cls.Resources(resource_type=each.resource_type, resource_name=each.resource_name)
            for each in resources
            if each.resource_type == TOPIC
        ]
        for each in asked:
            each.configuration_keys = None
        return Request(cls(resources=asked, include_synonyms=True), self.version(32))

    def configs(self) -> list[tuple[str, str | None]]:
        lists = [row for row in self.CONFIGS if row[0] == "cleanup.policy"]
        rows = lists if self.rng.random() < 0.3 else self.CONFIGS
        return self.rng.sample(rows, self.rng.choice((0, 1, 1, 2)))

    def describe_configs(self) -> Request:
        cls = messages.DescribeConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configuration_keys=edges(
                    self.rng, None, ["retention.ms"], rare=([], ["no.such", "segment.bytes"])
                ),
            )
            for kind, name in self.some(self.resource, 2)
        ]
        return Request(
            cls(resources=resources, include_synonyms=self.rng.random() < 0.5, include_documentation=False),
            self.version(32),
        )

    def list_config_resources(self) -> Request:
        kinds = edges(self.rng, [TOPIC], [BROKER], [TOPIC, BROKER], rare=([], [99], [0]))
        return Request(messages.ListConfigResourcesRequest(resource_types=kinds), self.version(74))

    def describe_log_dirs(self) -> Request:
        cls = messages.DescribeLogDirsRequest.Topics
        topics = [
            cls(topic=name, partitions=self.some(lambda name=name: self.partition(name)))
            for name in self.some(self.existing)
        ]
        return Request(messages.DescribeLogDirsRequest(topics=topics), self.version(35))

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

    # -- groups

    def member(self, group: str) -> Any:
        count = self.members.get(group, 0)
        return edges(self.rng, Symbol("member", (group, count), ""), rare=("", "nobody"))

    def generation(self, group: str) -> Any:
        return edges(self.rng, Symbol("generation", group, -1), rare=(-1, 0, 99, -2))

    def offset_commit(self) -> Request:
        rng = self.rng
        cls = messages.OffsetCommitRequest
        group = self.group()
        simple = rng.random() < 0.5
        topics = [
            cls.Topics(
                name=name,
                topic_id=self.topic_id(name),
                partitions=[
                    cls.Topics.Partitions(
                        partition_index=index,
                        committed_offset=edges(rng, 0, 5, 100, rare=(-1, INT64 - 1)),
                        committed_leader_epoch=edges(rng, -1, 0, rare=(7,)),
                        committed_metadata=edges(rng, "", "m", None, rare=("x" * 4096, "x" * 4097, "é")),
                    )
                    for index in self.some(lambda name=name: self.partition(name))
                ],
            )
            for name in self.some(self.topic)
        ]
        message = cls(
            group_id=group,
            generation_id_or_member_epoch=-1 if simple else self.generation(group),
            member_id="" if simple else self.member(group),
            topics=topics,
        )
        return Request(message, self.version(8))

    def offset_fetch(self) -> Request:
        version = self.version(9)
        cls = messages.OffsetFetchRequest
        group = self.group()

        def topics(of: Any, with_ids: bool) -> list[Any] | None:
            if self.rng.random() < 0.25 and version >= 2:
                return None
            return [
                of(
                    name=name,
                    partition_indexes=self.some(lambda name=name: self.partition(name)),
                    **({"topic_id": self.topic_id(name)} if with_ids else {}),
                )
                for name in self.some(self.topic)
            ]

        message = cls(group_id=group, require_stable=version >= 7 and self.rng.random() < 0.5)
        if version <= 7:
            message.topics = topics(cls.Topics, False)
        else:
            message.groups = [
                cls.Groups(
                    group_id=name,
                    member_id=edges(self.rng, None, rare=("", "nobody")),
                    member_epoch=edges(self.rng, -1, rare=(0, 5)),
                    topics=topics(cls.Groups.Topics, True),
                )
                for name in self.some(self.group)
            ]
        return Request(message, version)

    def offset_delete(self) -> Request:
        cls = messages.OffsetDeleteRequest.Topics
        topics = [
            cls(
                name=name,
                partitions=[
                    cls.Partitions(partition_index=index)
                    for index in self.some(lambda name=name: self.partition(name))
                ],
            )
            for name in self.some(self.topic)
        ]
        return Request(messages.OffsetDeleteRequest(group_id=self.group(), topics=topics), 0)

    def join_group(self) -> Request:
        """Joins as the only member: the one before leaves by its own request, or is the one that joins
        again."""
        rng = self.rng
        version = self.version(11)
        group = edges(rng, *GROUPS, rare=("", "g" * 300))
        count = self.members.get(group, 0)
        fresh = count == 0
        if fresh:
            self.members[group] = count = 1
        cls = messages.JoinGroupRequest
        protocols = [
            cls.Protocols(name=name, metadata=b"m")
            for name in edges(rng, ["range"], ["range", "sticky"], rare=([], [""]))
        ]
        message = cls(
            group_id=group,
            session_timeout_ms=edges(rng, 300000, rare=(1, -1, INT32 - 1)),
            rebalance_timeout_ms=300000,
            member_id=edges(rng, Symbol("member", (group, count), ""), rare=("nobody",)),
            protocol_type=edges(rng, "consumer", rare=("", "connect")),
            protocols=protocols,
        )

        def capture(side: Side, response: Any) -> None:
            if response.error_code == 25 and isinstance(message.member_id, Symbol):
                side.known.pop(("member", (group, count)), None)  # deleted with its group
            if response.error_code in (0, 79):  # MEMBER_ID_REQUIRED
                side.learn("member", (group, count), response.member_id)
            if response.error_code == 0:
                side.learn("generation", group, response.generation_id)
                side.symbols.pop(response.generation_id, None)

        return Request(message, version, capture=capture)

    def sync_group(self) -> Request:
        version = self.version(14)
        cls = messages.SyncGroupRequest
        group = self.group()
        message = cls(
            group_id=group,
            generation_id=self.generation(group),
            member_id=self.member(group),
            protocol_type=edges(self.rng, "consumer", None, rare=("x",)),
            protocol_name=edges(self.rng, "range", None, rare=("x",)),
            assignments=[
                cls.Assignments(
                    member_id=Symbol("member", (group, self.members.get(group, 0)), ""),
                    assignment=b"assigned",
                )
            ]
            if self.rng.random() < 0.8
            else [],
        )
        return Request(message, version)

    def heartbeat(self) -> Request:
        group = self.group()
        message = messages.HeartbeatRequest(
            group_id=group, generation_id=self.generation(group), member_id=self.member(group)
        )
        return Request(message, self.version(12))

    def leave_group(self) -> Request:
        version = self.version(13)
        cls = messages.LeaveGroupRequest
        group = self.group()
        count = self.members.get(group, 0)
        member = self.member(group)
        message = cls(
            group_id=group,
            member_id=member,
            members=[
                cls.Members(member_id=member, group_instance_id=edges(self.rng, None, rare=("static",)))
            ],
        )

        def capture(side: Side, response: Any) -> None:
            if response.error_code == 0 and not any(each.error_code for each in response.members):
                side.known.pop(("member", (group, count)), None)
                side.known.pop(("generation", group), None)
                self.members[group] = count + 1

        left = isinstance(member, Symbol) and count
        return Request(message, version, capture=capture if left else None)

    def describe_groups(self) -> Request:
        message = messages.DescribeGroupsRequest(
            groups=self.some(self.group), include_authorized_operations=self.rng.random() < 0.5
        )
        return Request(message, self.version(15))

    def list_groups(self) -> Request:
        message = messages.ListGroupsRequest(
            states_filter=edges(self.rng, [], ["Empty"], ["Stable", "empty"], rare=(["x"], [""])),
            types_filter=edges(self.rng, [], ["classic"], rare=(["consumer"], ["x"], ["Classic"])),
        )
        return Request(message, self.version(16))

    def delete_groups(self) -> Request:
        return Request(messages.DeleteGroupsRequest(groups_names=self.some(self.group)), self.version(42))


EDGES = {
    "int8": (-128, 127, 0),
    "int16": (-INT16, INT16 - 1, 0, -1),
    "int32": (-INT32, INT32 - 1, 0, -1),
    "int64": (-INT64, INT64 - 1, 0, -1),
}
# these would make a broker wait, or make thousands of things; or their differences are known
# (docs/differences.md)
KEPT = {
    "max_wait_ms", "min_bytes", "timeout_ms", "session_timeout_ms", "rebalance_timeout_ms",
    "num_partitions", "count",
    "isolation_level", "current_leader_epoch", "acks", "session_id", "session_epoch", "retention_time_ms",
    "max_bytes", "partition_max_bytes", "replica_id", "index",
    "records",
}  # fmt: skip


def can_be_null(field: Any, version: int) -> bool:
    return field.nullable is not None and field.nullable[0] <= version <= field.nullable[1]


def reachable(message: Message, version: int) -> Iterator[tuple[Message, Any]]:
    """Every scalar field of a request that its version has, with its owner."""
    for each in message.SPEC.fields:
        if not each.versions[0] <= version <= each.versions[1]:
            continue
        value = getattr(message, each.name)
        if isinstance(value, Message):
            yield from reachable(value, version)
        elif isinstance(value, list):
            for row in value:
                if isinstance(row, Message):
                    yield from reachable(row, version)
        elif not isinstance(value, Symbol):
            yield message, each
