"""Scripts for tests/differential.py: requests to every API at every version that kafkad serves, from a seed.

`Script(seed)` yields requests without end. Most are valid for the state that the script has made so far
(topics, groups, producers, fetch sessions). Some are wrong in one of the ways in which clients are wrong:
names that do not exist, offsets and epochs out of range, fields at the edge of their type, batches with a
damaged header, frames that are cut.

Nothing here may depend on time, and no request may make another one wait: a group has one member at a time,
a Fetch waits 20 ms at most, and topics keep their records.

Requests about records are in differential_records.py, administrative ones in differential_admin.py."""

from collections.abc import Callable, Iterator
from typing import Any

from kafkad._native.wire.codec import Message
from kafkad.protocol import messages
from tests.differential import Request, Side, Symbol, edges
from tests.differential_admin import AdminRequests
from tests.differential_choices import (
    COMPACTED,
    GROUPS,
    INT16,
    INT32,
    INT64,
    PRODUCERS,
    SMALL,
    STAMPED,
    TOPICS,
    UNPACKED,
)
from tests.differential_records import RecordRequests

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
    "elect_leaders": 1, "describe_quorum": 1, "update_features": 2,
}  # fmt: skip


class Script(RecordRequests, AdminRequests):
    """Requests without end, from a seed."""

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
            # a JoinGroup behind another one would not know its member, and wait for it; behind a
            # WriteTxnMarkers that Kafka forgets to answer, Kafka would not see the next request
            last = request.changes or request.damage or not request.answered or request.key in (11, 27)
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
