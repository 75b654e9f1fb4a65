"""Compares kafkad with JVM Kafka, request by request and field by field.

A seed makes a script of requests (tests/differential_requests.py). Each goes to both brokers, and both
answers are made comparable: ids that a broker makes up (topics, members, producers, fetch sessions, the
cluster) become symbols, times become "time", lists without an order are sorted, texts of errors are left
out. The rest must be equal, or covered by a rule in MEANT, which docs/differences.md describes.

Both brokers must always be in the same state, so nothing may depend on how fast a broker is. After a change
of metadata the run waits until both have applied it, and no request waits for another one."""

import random
import re
import struct
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c

from kafkad._native.wire.codec import Message
from kafkad.protocol import codec, compression, messages, records
from tests.wire import Wire

# The lowest versions of Kafka 4.3, by API key, where kafkad also serves those of Kafka 3.9.
GROUPS = ["g0", "g1", "g2"]
KAFKA_4_FROM = {
    0: 3, 1: 4, 2: 1, 8: 2, 9: 1, 19: 2, 20: 1, 23: 2, 27: 1, 29: 1, 30: 1, 31: 1, 32: 1, 34: 1,
    35: 1, 38: 1, 39: 1, 40: 1, 41: 1,
}  # fmt: skip
CLOSED = "the connection is closed"
SILENT = "no answer"
ANSWER_SECONDS = 20.0
BEGAN_MS = time.time() * 1000  # what brokers stamp themselves is not from before that


@dataclass(frozen=True)
class Symbol:
    """Something that each broker names for itself: ("topic", "t1"), ("member", "g0", 2), ("producer", 0)."""

    kind: str
    key: Any
    default: Any = None


class Side:
    """One of the two brokers: a connection, and what its names for our symbols are."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.port = int(bootstrap.rpartition(":")[2])
        self.known: dict[tuple[str, Any], Any] = {}
        self.symbols: dict[Any, str] = {}
        self.wire = self.connect()

    @classmethod
    def beside(cls, other: "Side") -> "Side":
        """Another connection to the same broker, which knows the same names."""
        side = cls(other.name, other.bootstrap)
        side.known, side.symbols = other.known, other.symbols
        return side

    def connect(self) -> Wire:
        return Wire(self.bootstrap, timeout=ANSWER_SECONDS)

    def reconnect(self) -> None:
        self.wire.socket.close()
        self.wire = self.connect()

    def learn(self, kind: str, key: Any, value: Any) -> None:
        """This broker calls `key` `value`; answers show it as a symbol from now on."""
        self.known[kind, key] = value
        if value not in ("", b"", -1, 0, bytes(16), None):
            self.symbols[value] = f"<{kind} {key}>"

    def resolve(self, value: Any, version: int) -> Any:
        """A copy of a request with this broker's names in place of symbols, and the fields of this
        version."""
        if isinstance(value, Symbol):
            if value.kind == "batch":
                return self.batch(*value.key)
            if value.kind == "transactional batch":
                return self.transactional_batch(*value.key)
            return self.known.get((value.kind, value.key), value.default)
        if isinstance(value, list):
            return [self.resolve(each, version) for each in value]
        if isinstance(value, Message):
            copy = type(value)()
            for each in value.SPEC.fields:
                if each.versions[0] <= version <= each.versions[1]:
                    setattr(copy, each.name, self.resolve(getattr(value, each.name), version))
            return copy
        return value

    def batch(self, producer: int, data: bytes) -> bytes:
        """A batch of a producer, under the id that this broker gave it."""
        patched = bytearray(data)
        struct.pack_into(">q", patched, 43, self.known.get(("producer", producer), 1))
        struct.pack_into(">I", patched, 17, crc32c.crc32c(bytes(patched[21:])))
        return bytes(patched)

    def transactional_batch(self, name: str, epoch: Any, data: bytes) -> bytes:
        """A batch of a transactional id's producer, in an epoch that may be a symbol."""
        patched = bytearray(data)
        producer_id = self.known.get(("txn producer", name), 1 << 40)
        struct.pack_into(">qh", patched, 43, producer_id, self.resolve(epoch, 0))
        struct.pack_into(">I", patched, 17, crc32c.crc32c(bytes(patched[21:])))
        return bytes(patched)

    def send(self, request: "Request") -> int:
        """Its correlation id."""
        wire = self.wire
        wire.correlation += 1
        frame = codec.encode_request(
            self.resolve(request.message, request.version), request.version, wire.correlation, request.client
        )
        if request.damage is not None:
            frame = request.damage(frame)
        try:
            wire.send_frame(frame)
        except OSError:
            pass  # closed: the read that follows tells
        return wire.correlation

    def receive(self, request: "Request", sent: int, seconds: float = ANSWER_SECONDS) -> Any:
        """The answer as a Message, CLOSED or SILENT."""
        try:
            self.wire.socket.settimeout(seconds)
            frame = self.wire.read_frame()
        except TimeoutError:
            self.reconnect()
            return SILENT
        except (ConnectionError, OSError):
            self.reconnect()
            return CLOSED
        cls = codec.response_class(request.key)
        version = request.version
        if request.key == 18 and frame[4:6] == (35).to_bytes(2, "big"):
            version = 0  # UNSUPPORTED_VERSION is answered in the oldest format
        correlation, response = codec.decode_response(cls, version, frame)
        assert correlation == sent, (self.name, str(request))
        return response

    def ask(self, message: Any, version: int) -> Any:
        """A request of the harness itself."""
        return self.wire.ask(message, version)

    def topics(self) -> dict[str, tuple[bytes, tuple[int, ...]]]:
        """Each topic's id and the partitions that have a leader."""
        response = self.ask(messages.MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
        return {
            topic.name: (
                topic.topic_id,
                tuple(sorted(each.partition_index for each in topic.partitions if each.leader_id >= 0)),
            )
            for topic in response.topics
            if topic.error_code == 0
        }


@dataclass
class Request:
    message: Any  # with Symbols in it
    version: int
    client: str | None = "differential"
    capture: Callable[[Side, Any], None] | None = None  # learn from the answer
    changes: str = ""  # "topics" or "configs": what it changes, and both brokers must have applied
    damage: Callable[[bytes], bytes] | None = None
    answered: bool = True  # False: an acks=0 Produce
    wrong_batch: bool = False  # a Produce with a batch that says something wrong

    @property
    def key(self) -> int:
        assert self.message.API_KEY is not None
        return self.message.API_KEY

    @property
    def api(self) -> str:
        return self.message.NAME.removesuffix("Request")

    def __str__(self) -> str:
        damaged = ", damaged" if self.damage else ""
        return f"{self.api} v{self.version}{damaged} {short(self.message, self.version)}"


@dataclass
class Difference:
    number: int
    request: Request
    path: str
    kafkad: Any
    kafka: Any

    def __str__(self) -> str:
        return (
            f"request {self.number}: {str(self.request)[:1500]}\n    {self.path or 'outcome'}:"
            f" kafkad {str(self.kafkad)[:400]!s}, Kafka {str(self.kafka)[:400]!s}"
        )


@dataclass
class Comparison:
    """What a run found."""

    requests: int = 0
    by_api: dict[tuple[str, int], int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    meant: dict[str, int] = field(default_factory=dict)


def short(value: Any, version: int) -> Any:
    """A request as text: the fields of this version."""
    if isinstance(value, Message):
        parts = [
            f"{each.name}={short(getattr(value, each.name), version)}"
            for each in value.SPEC.fields
            if each.versions[0] <= version <= each.versions[1]
        ]
        return "(" + " ".join(parts) + ")"
    if isinstance(value, list):
        text = ", ".join(str(short(each, version)) for each in value[:20])
        return f"[{text}{', …' if len(value) > 20 else ''}]"
    if isinstance(value, bytes | bytearray) and len(value) > 24:
        return f"<{len(value)} bytes {bytes(value[:61]).hex()}>"
    if isinstance(value, str) and len(value) > 60:
        return repr(value[:40]) + f"…({len(value)})"
    return repr(value)


# -- answers made comparable --------------------------------------------------------------------------------

TEXTS = {"error_message", "batch_index_error_message", "documentation"}
TIMES = {"log_append_time_ms", "last_timestamp", "transaction_start_time_ms"}
SIZES = {"total_bytes", "usable_bytes", "partition_size"}
OF_A_QUORUM = {
    "leader_epoch", "high_watermark", "log_end_offset", "replica_directory_id", "last_fetch_timestamp",
    "last_caught_up_timestamp",
}  # fmt: skip
LEFT_OUT = {"throttle_time_ms", "finalized_features_epoch", "finalized_features", "supported_features"}
NAMED = {"topic_id", "member_id", "leader", "producer_id", "session_id", "cluster_id", "client_host"}
GENERATED = re.compile("-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
ORDERED = {("DescribeTopicPartitionsResponse", "topics")}  # all other lists may come in any order


def comparable(side: Side, message: Any, version: int) -> Any:
    """The answer as dicts, lists and plain values that both brokers must agree on."""
    if not isinstance(message, Message):
        return message
    return _struct(side, message, version, message.NAME)


def _struct(side: Side, message: Message, version: int, root: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in message.SPEC.fields:
        if each.name in LEFT_OUT or each.name in TEXTS or not each.versions[0] <= version <= each.versions[1]:
            continue
        values[each.name] = _value(side, each.name, getattr(message, each.name), version, root)
    if root == "ProduceResponse" and values.get("error_code") and "log_start_offset" in values:
        values["log_start_offset"] = "not read beside an error"
    return values


def _value(side: Side, name: str, value: Any, version: int, root: str) -> Any:
    if isinstance(value, Message):
        return _struct(side, value, version, root)
    if root == "DescribeQuorumResponse" and name in OF_A_QUORUM:
        return value if value == -1 else "of each"
    if root == "DescribeQuorumResponse" and name == "listeners":  # a kafkad that is alone opens none
        return "of each"
    if isinstance(value, list):
        rows = [_value(side, name, each, version, root) for each in value]
        return rows if (root, name) in ORDERED else sorted(merged(rows), key=row_key)
    if name == "records":
        return None if value is None else [_batch(side, each) for each in whole_batches(value)]
    if name in TIMES:
        return value if value == -1 else "time"
    if name == "timestamp":  # the broker's own in a topic with LogAppendTime
        return "now" if BEGAN_MS - 120_000 < value < time.time() * 1000 + 120_000 else value
    if name in SIZES:
        return value if value < 0 else "size"
    if name == "port":
        return "port" if value == side.port else value
    if name == "log_dir":
        return "directory"
    if name == "member_id" and GENERATED.search(value):
        return side.symbols.get(value, "<a member>")
    if name in NAMED or isinstance(value, str):
        return side.symbols.get(value, value) if not isinstance(value, bool) else value
    return value


KEYS = (
    "name",
    "topic",
    "topic_id",
    "group_id",
    "partition_index",
    "partition",
    "index",
    "resource_name",
    "key",
)


def row_key(row: Any) -> tuple[str, str]:
    """What a row is about, then all of it: rows about the same thing are compared with one another."""
    about = repr([row.get(key) for key in KEYS]) if isinstance(row, dict) else ""
    return about, repr(row)


def merged(rows: list[Any]) -> list[Any]:
    """Kafka may answer one topic of a Fetch in two rows; they become one."""
    topics: dict[str, Any] = {}
    for row in rows:
        if not (isinstance(row, dict) and "partitions" in row and {"topic", "topic_id"} & row.keys()):
            return rows
        known = topics.setdefault(repr((row.get("topic"), row.get("topic_id"))), row)
        if known is not row:
            known["partitions"] = sorted(known["partitions"] + row["partitions"], key=row_key)
    return list(topics.values())


def whole_batches(data: Any) -> list[records.Batch]:
    """Kafka sends a part of the last batch when the limit cuts it; a client drops that."""
    found = []
    at = 0
    while len(data) - at >= records.HEADER_SIZE:
        if at + 12 + int.from_bytes(data[at + 8 : at + 12], "big") > len(data):
            break
        batch = records.Batch(data, at)
        found.append(batch)
        at += batch.size
    return found


def _batch(side: Side, batch: records.Batch) -> dict[str, Any]:
    stamped = bool(batch.attributes & records.TIMESTAMP_LOG_APPEND)
    marker = batch.attributes & records.CONTROL != 0
    return {
        "base_offset": batch.base_offset,
        "leader_epoch": batch.leader_epoch,
        "attributes": batch.attributes,
        "last_offset": batch.last_offset,
        "base_timestamp": "time" if marker else batch.base_timestamp,
        "max_timestamp": "time" if stamped or marker else batch.max_timestamp,
        "producer": (
            side.symbols.get(batch.producer_id, batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
        ),
        "records": unpacked(batch).hex(),
    }


def unpacked(batch: records.Batch) -> bytes:
    """The records without their codec: a broker that packs anew may pack in its own way."""
    data = bytes(batch.bytes[records.HEADER_SIZE :])
    return bytes(compression.decompress(batch.compression, data, 1 << 24)) if batch.compression else data


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """(path, ours, theirs) of every leaf that differs; list rows are paired by position after sorting."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for name in dict.fromkeys([*ours, *theirs]):
            found += differences(ours.get(name), theirs.get(name), f"{path}.{name}" if path else name)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for a, b in zip(ours, theirs, strict=True) for each in differences(a, b, f"{path}[]")]
    return [] if ours == theirs else [(path, ours, theirs)]


# -- a run --------------------------------------------------------------------------------------------------

Meant = Callable[[Request, str, Any, Any], bool]


class Run:
    """Sends the requests of a script to both brokers and compares."""

    def __init__(self, kafkad: str, kafka: str, meant: dict[str, Meant]) -> None:
        self.kafkad = Side("kafkad", kafkad)
        self.kafka = Side("Kafka", kafka)
        self.sides = (self.kafkad, self.kafka)
        self.meant = meant
        self.result = Comparison()
        for side in self.sides:
            described = side.ask(messages.DescribeClusterRequest(), 0)
            side.learn("cluster", "id", described.cluster_id)

    def __enter__(self) -> "Run":
        """Both have a coordinator and producer ids above 0 before the first request."""
        for side in self.sides:
            groups = messages.FindCoordinatorRequest(key="warm", key_type=0)
            self._until(lambda side=side, ask=groups: side.ask(ask, 1).error_code == 0)
            offsets = messages.OffsetFetchRequest(group_id="warm", topics=None)
            for number in range(16):  # every partition of __consumer_offsets is loaded
                offsets.group_id = f"warm{number}"
                self._until(lambda side=side, ask=offsets: side.ask(ask, 5).error_code == 0)
            producer = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
            self._until(lambda side=side, ask=producer: side.ask(ask, 1).producer_id > 0)
        return self

    @staticmethod
    def _until(ready: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, "a broker did not get ready"
            time.sleep(0.05)

    def __exit__(self, *exception: object) -> None:
        for side in self.sides:
            side.wire.socket.close()

    def step(self, *requests: Request) -> None:
        """Sends them all, then reads their answers. Only the last of several may have no answer, be damaged
        or change something."""
        sent = [[side.send(request) for side in self.sides] for request in requests]
        for request, (ours, theirs) in zip(requests, sent, strict=True):
            self.result.requests += 1
            count = self.result.by_api
            count[request.api, request.version] = count.get((request.api, request.version), 0) + 1
            if not request.answered:
                self._unanswered()
            elif not self._compare(request, ours, theirs):
                break  # the connections are new

    def _compare(self, request: Request, *sent: int) -> bool:
        """Whether both brokers answered."""
        first = self.kafkad.receive(request, sent[0])
        patience = ANSWER_SECONDS if first != SILENT else 2.0  # it has had as long already
        if request.key == 27:
            patience = min(patience, 5.0)  # Kafka forgets to answer some; our fetch sessions wait 10 s
        answers = [first, self.kafka.receive(request, sent[1], patience)]
        if request.capture is not None and all(isinstance(each, Message) for each in answers):
            for side, answer in zip(self.sides, answers, strict=True):
                request.capture(side, answer)
        if request.changes:
            self.settle()
        self.note(request, self.sides, answers)
        if any(isinstance(each, str) for each in answers):  # whoever kept the connection gets a new one, too
            for side in self.sides:
                side.reconnect()
            return False
        return True

    def note(self, request: Request, sides: Sequence[Side], answers: list[Any]) -> None:
        """Adds what differs in the answers of two connections to the result."""
        ours, theirs = (
            comparable(side, answer, request.version) for side, answer in zip(sides, answers, strict=True)
        )
        if request.key == 18 and isinstance(ours, dict) and isinstance(theirs, dict):
            served = {row["api_key"] for row in ours["api_keys"]}  # what we serve, we serve as Kafka does
            theirs["api_keys"] = [row for row in theirs["api_keys"] if row["api_key"] in served]
            for row in ours["api_keys"]:  # older ones of Kafka 3.9: test_old_versions_jvm.py
                if row["api_key"] != 0:  # of Produce Kafka tells all (api/table.py)
                    row["min_version"] = max(row["min_version"], KAFKA_4_FROM.get(row["api_key"], 0))
        for path, a, b in differences(ours, theirs):
            self._note(request, path, a, b)

    def _note(self, request: Request, path: str, ours: Any, theirs: Any) -> None:
        for reason, applies in self.meant.items():
            if applies(request, path, ours, theirs):
                self.result.meant[reason] = self.result.meant.get(reason, 0) + 1
                return
        self.result.differences.append(Difference(self.result.requests, request, path, ours, theirs))

    def _unanswered(self) -> None:
        """acks=0: the next answer on the connection is another request's, or it is closed."""
        probe = Request(messages.ApiVersionsRequest(), 0)
        sent = [side.send(probe) for side in self.sides]
        kinds = [
            CLOSED if isinstance(side.receive(probe, number), str) else "open"
            for side, number in zip(self.sides, sent, strict=True)
        ]
        if kinds[0] != kinds[1]:
            self._note(Request(messages.ProduceRequest(acks=0), 9), "", *kinds)
            for side in self.sides:
                side.reconnect()

    def _led(self, topics: dict[str, tuple[bytes, tuple[int, ...]]]) -> bool:
        """A broker may say that it leads a partition before it does."""
        cls = messages.ListOffsetsRequest
        asked = [
            cls.Topics(
                name=name,
                partitions=[cls.Topics.Partitions(partition_index=index, timestamp=-1) for index in parts],
            )
            for name, (_, parts) in topics.items()
        ]
        request = cls(replica_id=-1, topics=asked)
        answers = [side.ask(request, 5) for side in self.sides]
        return not any(
            part.error_code for answer in answers for topic in answer.topics for part in topic.partitions
        )

    def _forgot(self, side: Side, topics: Collection[str]) -> bool:
        """Whether no group has an offset of a deleted topic: Kafka removes them later."""
        asked = [messages.OffsetFetchRequest.Groups(group_id=each, topics=None) for each in GROUPS]
        answer = side.ask(messages.OffsetFetchRequest(groups=asked), 8)
        return all(topic.name in topics for group in answer.groups for topic in group.topics)

    def settle(self, seconds: float = 10.0) -> None:
        """Waits until both brokers have applied what was changed; learns the topics' ids."""
        deadline = time.monotonic() + seconds
        time.sleep(0.03)
        while True:
            ours, theirs = (side.topics() for side in self.sides)
            same = {name: parts for name, (_, parts) in ours.items()} == {
                name: parts for name, (_, parts) in theirs.items()
            }
            forgotten = same and all(self._forgot(side, ours) for side in self.sides)
            if (forgotten and self._led(ours)) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        for side, found in zip(self.sides, (ours, theirs), strict=True):
            for name, (topic_id, _) in found.items():
                side.learn("topic", name, topic_id)
            for kind, name in list(side.known):
                if kind == "topic" and name not in found:
                    side.known["old topic", name] = side.known.pop((kind, name))


def edges(rng: random.Random, *likely: Any, rare: tuple[Any, ...]) -> Any:
    """Mostly one of `likely`, now and then one of `rare`."""
    return rng.choice(rare) if rng.random() < 0.12 else rng.choice(likely)
