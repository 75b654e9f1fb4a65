"""The kinds of growth: topics, partitions, groups, members, segments, connections and producer ids.

Each kind is a generator of steps. A step's action is timed; the generator's work between two steps is not. A
kind creates its objects at each size and deletes them at the end, so sizes do not add up. It checks an answer
after the time is taken."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import pack
from typing import Any, NamedTuple

from bench.brokers import Process
from kafkad.protocol import codec, messages
from kafkad.protocol.records import Record, build_batch
from tests.wire import Wire


class Step(NamedTuple):
    """One timed action. `alone`: the broker stops or starts, so it serves nobody meanwhile."""

    row: str
    act: Callable[[], object]
    alone: bool = False


SET = 0  # an operation of IncrementalAlterConfigs
TOPIC, BROKER = 2, 4  # resource types of configurations
ENDS, STARTS, LARGEST_TIMESTAMP = -1, -2, -3  # timestamps of ListOffsets
PATIENCE_S = 300.0
WAVE = 50  # requests of a pipeline that are sent before the first answer is read
LATER = (3, 5, 6, 14, 15, 16)  # UNKNOWN_TOPIC_OR_PARTITION, no leader yet, no coordinator yet
MEMBER_ID_REQUIRED = 79
HOUR_MS = 3_600_000


@dataclass
class Target:
    """The broker under test, and a connection to it that lives as long as the broker's process."""

    broker: Process

    def wire(self) -> Wire:
        return Wire(f"127.0.0.1:{self.broker.port}", PATIENCE_S)

    def ask(self, request: Any, version: int) -> Any:
        with self.wire() as wire:
            return wire.ask(request, version)

    def create(self, topics: dict[str, int], **configs: str) -> None:
        """Topics, until all of their partitions answer."""
        struct = messages.CreateTopicsRequest.Topics
        settings = [struct.Configs(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        made = [
            struct(name=name, num_partitions=count, replication_factor=1, configs=settings)
            for name, count in topics.items()
        ]
        answer = self.ask(messages.CreateTopicsRequest(topics=made, timeout_ms=120_000), 7)
        assert {topic.error_code for topic in answer.topics} == {0}, answer.topics[0]
        self.wait_led(topics)

    def wait_led(self, topics: dict[str, int]) -> None:
        request = list_offsets({name: range(count) for name, count in topics.items()}, ENDS)
        wait(lambda: codes_of_partitions(self.ask(request, 6)) == {0})

    def delete(self, names: Iterable[str]) -> None:
        answer = self.ask(messages.DeleteTopicsRequest(topic_names=list(names), timeout_ms=120_000), 5)
        assert {topic.error_code for topic in answer.responses} == {0}, answer.responses[0]

    def set(self, kind: int, name: str, **configs: str) -> None:
        struct = messages.IncrementalAlterConfigsRequest.Resources
        changes = [
            struct.Configs(name=key.replace("_", "."), config_operation=SET, value=value)
            for key, value in configs.items()
        ]
        resource = struct(resource_type=kind, resource_name=name, configs=changes)
        answer = self.ask(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer.responses[0]

    def each(self, requests: list[Any], version: int, code_of: Callable[[Any], int]) -> list[Any]:
        """The answers to requests, asked again while they come too early. Each wave has a connection of its
        own: which worker has it decides what a request costs."""
        answers: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, answers[left[0]]
            again = []
            for start in range(0, len(left), WAVE):
                wave = left[start : start + WAVE]
                with self.wire() as wire:
                    for i in wave:
                        wire.send(requests[i], version)
                    for i in wave:
                        answers[i] = decoded(requests[i], version, wire.read_frame())
                        code = code_of(answers[i])
                        assert code == 0 or code in LATER, answers[i]
                        if code:
                            again.append(i)
            left = again
        return answers

    def timed(self, row: str, request: Any, version: int, is_right: Callable[[Any], bool]) -> Iterator[Step]:
        """One request, whose answer is decoded and checked when the clock has stopped."""
        with self.wire() as wire:
            wire.ask(messages.ApiVersionsRequest(), 0)
            frames: list[bytes] = []

            def act() -> None:
                wire.send_frame(frame)
                frames.append(wire.read_frame())

            frame = codec.encode_request(request, version, 1, "growth")
            yield Step(row, act)
            answer = decoded(request, version, frames[0])
            assert is_right(answer), (row, str(answer)[:500])

    def restarted(self, row: str, is_served: Callable[[], object]) -> Iterator[Step]:
        """A clean stop, and a start until all is served that was before; then one after a kill."""

        def start() -> None:
            self.broker.start()
            is_served()

        yield Step("clean stop", self.broker.stop, alone=True)
        yield Step(f"start, {row}", start, alone=True)
        self.broker.kill()
        yield Step(f"start after kill -9, {row}", start, alone=True)


def decoded(request: Any, version: int, frame: bytes) -> Any:
    return codec.decode_response(codec.response_class(type(request).API_KEY), version, frame)[1]


def wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def codes_of_partitions(answer: Any) -> set[int]:
    return {partition.error_code for topic in answer.topics for partition in topic.partitions}


def list_offsets(partitions: dict[str, Iterable[int]], timestamp: int) -> Any:
    struct = messages.ListOffsetsRequest.Topics
    topics = [
        struct(
            name=name,
            partitions=[struct.Partitions(partition_index=p, timestamp=timestamp) for p in indexes],
        )
        for name, indexes in partitions.items()
    ]
    return messages.ListOffsetsRequest(replica_id=-1, topics=topics)


def produce_request(topic: str, batches: dict[int, bytes]) -> Any:
    struct = messages.ProduceRequest.TopicData
    data = [struct.PartitionData(index=index, records=batch) for index, batch in batches.items()]
    return messages.ProduceRequest(
        acks=1, timeout_ms=120_000, topic_data=[struct(name=topic, partition_data=data)]
    )


def code_of_produce(answer: Any) -> int:
    return answer.responses[0].partition_responses[0].error_code


def batch(timestamp: int | None = None, **producer: Any) -> bytes:
    now = int(time.time() * 1000) if timestamp is None else timestamp
    return bytes(build_batch([Record(key=b"key", value=b"a value", timestamp=now)], **producer))


def has_offset(expected: int) -> Callable[[Any], bool]:
    return lambda answer: answer.topics[0].partitions[0].offset == expected


def delete_records(partitions: dict[str, Iterable[int]]) -> Any:
    struct = messages.DeleteRecordsRequest.Topics
    topics = [
        struct(name=name, partitions=[struct.Partitions(partition_index=p, offset=-1) for p in indexes])
        for name, indexes in partitions.items()
    ]
    return messages.DeleteRecordsRequest(topics=topics, timeout_ms=120_000)


# -- the kinds ----------------------------------------------------------------------------------------------


def topics(target: Target, count: int) -> Iterator[Step]:
    """As many topics of one partition."""
    names = [f"of-{count}-{i:06}" for i in range(count)]
    described = messages.DescribeConfigsRequest.Resources
    altered = messages.IncrementalAlterConfigsRequest.Resources
    all_of_them = messages.MetadataRequest(topics=None)

    def has_all(answer: Any) -> bool:
        return {topic.name for topic in answer.topics} >= set(names)

    yield Step("create, until all have a leader", lambda: target.create(dict.fromkeys(names, 1)))
    yield from target.timed("Metadata of all, the first", all_of_them, 12, has_all)
    yield from target.timed("Metadata of all, the next", all_of_them, 12, has_all)
    some = messages.MetadataRequest(
        topics=[messages.MetadataRequest.Topics(name=name) for name in names[:10]]
    )
    yield from target.timed("Metadata of ten", some, 12, lambda it: len(it.topics) == min(10, count))
    resources = [
        described(resource_type=TOPIC, resource_name=name, configuration_keys=None) for name in names
    ]
    yield from target.timed(
        "DescribeConfigs of all",
        messages.DescribeConfigsRequest(resources=resources),
        4,
        lambda it: {result.error_code for result in it.results} == {0},
    )
    change = altered.Configs(name="retention.ms", config_operation=SET, value=str(10**9 + count))
    changes = [altered(resource_type=TOPIC, resource_name=name, configs=[change]) for name in names]
    default = altered.Configs(name="log.retention.ms", config_operation=SET, value=str(10**9 + count))
    for row, resources in (
        ("IncrementalAlterConfigs of all", changes),
        ("a broker's default", [altered(resource_type=BROKER, resource_name="", configs=[default])]),
    ):
        request = messages.IncrementalAlterConfigsRequest(resources=resources)
        yield from target.timed(row, request, 1, lambda it: {r.error_code for r in it.responses} == {0})
    for row, timestamp in (("ListOffsets, ends", ENDS), ("ListOffsets by time", 5)):
        request = list_offsets({name: [0] for name in names}, timestamp)
        yield from target.timed(row, request, 6, lambda it: codes_of_partitions(it) == {0})
    yield from target.timed(
        "DeleteRecords of all",
        delete_records({name: [0] for name in names}),
        2,
        lambda it: codes_of_partitions(it) == {0},
    )
    yield from target.timed(
        "DescribeLogDirs",
        messages.DescribeLogDirsRequest(topics=None),
        4,
        lambda it: len(it.results[0].topics) >= count,
    )
    yield from target.restarted("until all have a leader", lambda: target.wait_led(dict.fromkeys(names, 1)))
    yield Step("delete", lambda: target.delete(names))


def partitions(target: Target, count: int) -> Iterator[Step]:
    """A topic of as many partitions."""
    name = f"of-{count}"
    yield Step("create, until all have a leader", lambda: target.create({name: count}))
    data = batch()
    yield from target.timed(
        "Produce to all",
        produce_request(name, dict.fromkeys(range(count), data)),
        9,
        lambda it: {each.error_code for each in it.responses[0].partition_responses} == {0},
    )
    struct = messages.FetchRequest.Topics
    wanted = [
        struct.Partitions(partition=p, fetch_offset=0, partition_max_bytes=1 << 20) for p in range(count)
    ]
    whole = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 50 << 20}
    asked = [struct(topic=name, partitions=wanted)]

    def has_records(answer: Any) -> bool:
        return sum(len(each.records or b"") for each in answer.responses[0].partitions) == len(data) * count

    yield from target.timed("Fetch of all", messages.FetchRequest(**whole, topics=asked), 12, has_records)
    for partition in wanted:
        partition.fetch_offset = 1
    with target.wire() as wire:
        first = messages.FetchRequest(**whole, session_id=0, session_epoch=0, topics=asked)
        session = wire.ask(first, 12).session_id
        again = [
            messages.FetchRequest(**whole, session_id=session, session_epoch=i + 1, topics=[])
            for i in range(20)
        ]

        def poll() -> None:
            for request in again:
                assert wire.ask(request, 12).error_code == 0

        yield Step("20 Fetches of a session, nothing new", poll)
    yield from target.timed(
        "ListOffsets, ends",
        list_offsets({name: range(count)}, ENDS),
        6,
        lambda it: {each.offset for each in it.topics[0].partitions} == {1},
    )
    yield from target.timed(
        "DeleteRecords of all",
        delete_records({name: range(count)}),
        2,
        lambda it: codes_of_partitions(it) == {0},
    )
    more = messages.CreatePartitionsRequest.Topics(name=name, count=count + 1, assignments=None)
    yield from target.timed(
        "one partition more",
        messages.CreatePartitionsRequest(topics=[more], timeout_ms=120_000),
        3,
        lambda it: it.results[0].error_code == 0,
    )
    yield Step("delete", lambda: target.delete([name]))


def groups(target: Target, count: int) -> Iterator[Step]:
    """As many groups without members, each with an offset of each of two topics."""
    names = [f"of-{count}-{i:06}" for i in range(count)]
    kept, deleted = f"read-{count}-kept", f"read-{count}-deleted"
    target.create({kept: 1, deleted: 1})
    committed = messages.OffsetCommitRequest.Topics
    offsets = [committed.Partitions(partition_index=0, committed_offset=5)]
    find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=names)
    target.each([find], 4, lambda it: it.coordinators[0].error_code)
    commits = [
        messages.OffsetCommitRequest(
            group_id=name, topics=[committed(name=topic, partitions=offsets) for topic in (kept, deleted)]
        )
        for name in names
    ]
    yield Step(
        "OffsetCommit, one a group",
        lambda: target.each(commits, 8, lambda it: it.topics[0].partitions[0].error_code),
    )
    yield from target.timed(
        "FindCoordinator of all", find, 4, lambda it: {each.error_code for each in it.coordinators} == {0}
    )
    struct = messages.OffsetFetchRequest.Groups
    fetch = messages.OffsetFetchRequest(groups=[struct(group_id=name, topics=None) for name in names])

    def code_of_fetch(answer: Any) -> int:
        return max(each.error_code for each in answer.groups)

    def topics_of(answer: Any) -> set[int]:
        return {len(each.topics) for each in answer.groups}

    yield from target.timed("OffsetFetch of all", fetch, 8, lambda it: topics_of(it) == {2})
    yield from target.timed(
        "ListGroups",
        messages.ListGroupsRequest(),
        4,
        lambda it: {each.group_id for each in it.groups} >= set(names),
    )
    yield from target.timed(
        "DescribeGroups of all",
        messages.DescribeGroupsRequest(groups=names),
        5,
        lambda it: {each.error_code for each in it.groups} == {0},
    )
    yield from target.restarted("until all are loaded", lambda: target.each([fetch], 8, code_of_fetch))
    yield Step("delete a topic that all have read", lambda: target.delete([deleted]))
    wait(lambda: topics_of(target.ask(fetch, 8)) == {1})
    yield from target.timed(
        "DeleteGroups of all",
        messages.DeleteGroupsRequest(groups_names=names),
        2,
        lambda it: {each.error_code for each in it.results} == {0},
    )
    target.delete([kept])


def subscription(state: int) -> bytes:
    """A consumer's, of the topic "t" (ConsumerProtocolSubscription, version 0). Kafka looks into it, and does
    not answer a JoinGroup whose metadata it cannot read."""
    data = state.to_bytes(4, "big") * 20
    return pack(">hih1si", 0, 1, 1, b"t", len(data)) + data


class Members:
    """The members of one group, each with a connection; they do what all members do at once."""

    def __init__(self, target: Target, group: str, count: int) -> None:
        self.group = group
        self.wires = [target.wire() for _ in range(count)]
        find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        target.each([find], 4, lambda it: it.coordinators[0].error_code)
        self.ids = [self.member_id(wire) for wire in self.wires]
        assert len(set(self.ids)) == count, self.ids
        self.generation = -1
        self.leader = 0

    def member_id(self, wire: Wire) -> str:
        """One, and no more: a rebalance waits for each that was given out, until its session times out."""
        deadline = time.monotonic() + PATIENCE_S
        while (answer := self.send_and_read(self.join(""), 5, wire)).error_code in LATER:
            assert time.monotonic() < deadline, answer
            time.sleep(0.01)
        assert answer.error_code == MEMBER_ID_REQUIRED, answer
        member: str = answer.member_id
        return member

    def join(self, member: str, state: int = 0) -> Any:
        struct = messages.JoinGroupRequest.Protocols
        return messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[struct(name="range", metadata=subscription(state))],
        )

    def send_and_read(self, request: Any, version: int, wire: Wire) -> Any:
        wire.send(request, version)
        return decoded(request, version, wire.read_frame())

    def all(self, requests: list[Any], version: int) -> list[Any]:
        for wire, request in zip(self.wires, requests, strict=True):
            wire.send(request, version)
        return [
            decoded(request, version, wire.read_frame())
            for wire, request in zip(self.wires, requests, strict=True)
        ]

    def assemble(self) -> None:
        """The first member makes a group of its own, the others join it: two generations."""
        first = self.send_and_read(self.join(self.ids[0]), 5, self.wires[0])
        assert first.error_code == 0, first
        self.rejoin(1)

    def rejoin(self, state: int) -> None:
        """All join anew, with other metadata, which ends the generation."""
        answers = self.all([self.join(member, state) for member in self.ids], 5)
        assert {answer.error_code for answer in answers} == {0}, answers[0]
        newest = max(answer.generation_id for answer in answers)
        behind = [i for i, answer in enumerate(answers) if answer.generation_id < newest]
        assert not behind, behind
        (self.leader,) = (i for i, answer in enumerate(answers) if answer.members)
        assert len(answers[self.leader].members) == len(self.ids)
        self.generation = newest

    def sync(self) -> None:
        struct = messages.SyncGroupRequest.Assignments
        told = [struct(member_id=member, assignment=member.encode() * 3) for member in self.ids]
        answers = self.all(
            [
                messages.SyncGroupRequest(
                    group_id=self.group,
                    generation_id=self.generation,
                    member_id=member,
                    assignments=told if i == self.leader else [],
                )
                for i, member in enumerate(self.ids)
            ],
            3,
        )
        assert [answer.assignment for answer in answers] == [member.encode() * 3 for member in self.ids]

    def beat(self) -> None:
        answers = self.all(
            [
                messages.HeartbeatRequest(
                    group_id=self.group, generation_id=self.generation, member_id=member
                )
                for member in self.ids
            ],
            3,
        )
        assert {answer.error_code for answer in answers} == {0}

    def close(self) -> None:
        for wire in self.wires:
            wire.socket.close()


def members(target: Target, count: int) -> Iterator[Step]:
    """A group of as many members, each on a connection of its own."""
    found = Members(target, f"of-{count}", count)
    try:
        yield Step("JoinGroup of all, the first time", found.assemble)
        yield Step("SyncGroup of all", found.sync)
        yield Step("JoinGroup of all, a rebalance", lambda: found.rejoin(2))
        found.sync()
        yield Step("Heartbeat of all", found.beat)
        yield from target.timed(
            "DescribeGroups",
            messages.DescribeGroupsRequest(groups=[found.group]),
            5,
            lambda it: len(it.groups[0].members) == count,
        )
        struct = messages.LeaveGroupRequest.Members
        yield from target.timed(
            "LeaveGroup of all",
            messages.LeaveGroupRequest(
                group_id=found.group, members=[struct(member_id=member) for member in found.ids]
            ),
            3,
            lambda it: {each.error_code for each in it.members} == {0},
        )
    finally:
        found.close()


def segments(target: Target, count: int) -> Iterator[Step]:
    """A partition of as many segments: segment.ms is 1, and each batch is a second younger than the last."""
    name = f"of-{count}"
    target.create({name: 1}, segment_ms="1", retention_ms="-1", index_interval_bytes="0")
    first = int(time.time() * 1000) - 48 * HOUR_MS
    produced = [produce_request(name, {0: batch(first + 1000 * i)}) for i in range(count)]
    yield Step("Produce, a segment each", lambda: target.each(produced, 9, code_of_produce))

    def starts_at() -> int:
        return target.ask(list_offsets({name: [0]}, STARTS), 6).topics[0].partitions[0].offset

    for row, timestamp, expected in (
        ("ListOffsets by time", first + 1000 * (count // 2), count // 2),
        ("ListOffsets, the largest timestamp", LARGEST_TIMESTAMP, count - 1),
    ):
        yield from target.timed(
            row,
            list_offsets({name: [0]}, timestamp),
            7,
            has_offset(expected),
        )
    struct = messages.FetchRequest.Topics

    def read() -> None:
        with target.wire() as wire:
            offset = 0
            while offset < count:
                partition = struct.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                asked = [struct(topic=name, partitions=[partition])]
                request = messages.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=asked)
                data = wire.ask(request, 11).responses[0].partitions[0].records
                while data:  # batches: base offset, length
                    data = data[12 + int.from_bytes(data[8:12], "big") :]
                    offset += 1

    yield Step("Fetch from the first to the last", read)
    yield from target.timed(
        "DescribeLogDirs", messages.DescribeLogDirsRequest(topics=None), 4, lambda it: bool(it.results)
    )
    yield from target.restarted("until it has a leader", lambda: target.wait_led({name: 1}))

    def expire() -> None:
        target.set(TOPIC, name, retention_ms=str(HOUR_MS))
        wait(lambda: starts_at() >= count - 1)

    yield Step("retention deletes all (looks every 0.5 s)", expire)
    target.delete([name])


def connections(target: Target, count: int) -> Iterator[Step]:
    """As many connections."""
    host, sockets = ("127.0.0.1", target.broker.port), []
    frame = codec.encode_request(messages.ApiVersionsRequest(), 0, 1, "growth")
    frame = len(frame).to_bytes(4, "big") + frame

    def answered(some: list[socket.socket]) -> None:
        for each in some:
            each.sendall(frame)
        for each in some:
            size = int.from_bytes(each.recv(4, socket.MSG_WAITALL), "big")
            assert len(each.recv(size, socket.MSG_WAITALL)) == size

    def connect() -> None:
        for _ in range(count):
            sockets.append(socket.create_connection(host, PATIENCE_S))
            if len(sockets) % 20 == 0:  # else more are under way than a listener holds (50)
                answered(sockets[-1:])
        answered(sockets[-1:])

    def close() -> None:
        for each in sockets:
            each.close()
        with target.wire() as wire:
            for _ in range(20):
                wire.ask(messages.ApiVersionsRequest(), 0)

    yield Step("connect", connect)
    yield Step("a request on each", lambda: answered(sockets))
    yield Step("close", close)


def producer_ids(target: Target, count: int) -> Iterator[Step]:
    """A partition that as many idempotent producers have written to."""
    name = f"of-{count}"
    target.create({name: 1}, segment_ms=str(HOUR_MS))
    asked = [messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)] * count
    found: list[int] = []

    def init() -> None:
        found.extend(it.producer_id for it in target.each(asked, 4, lambda it: it.error_code))

    yield Step("InitProducerId of each", init)
    assert len(set(found)) == count
    produced = [
        produce_request(name, {0: batch(producer_id=each, producer_epoch=0, base_sequence=0)})
        for each in found
    ]
    yield Step("Produce, a batch of each", lambda: target.each(produced, 9, code_of_produce))
    struct = messages.DescribeProducersRequest.Topics
    describe = messages.DescribeProducersRequest(topics=[struct(name=name, partition_indexes=[0])])

    def active() -> int:
        return len(target.ask(describe, 0).topics[0].partitions[0].active_producers)

    yield from target.timed(
        "DescribeProducers",
        describe,
        0,
        lambda it: len(it.topics[0].partitions[0].active_producers) == count,
    )
    later = batch(int(time.time() * 1000) + HOUR_MS // 2)  # a new segment, and a snapshot
    target.set(TOPIC, name, segment_ms="1")
    yield from target.timed(
        "a roll, with a snapshot of all",
        produce_request(name, {0: later}),
        9,
        lambda it: code_of_produce(it) == 0,
    )
    target.set(TOPIC, name, segment_ms=str(HOUR_MS * 24))
    yield from target.restarted("until all are known", lambda: target.wait_led({name: 1}))
    assert active() == count

    def expire() -> None:
        target.set(BROKER, "", producer_id_expiration_ms="1")
        wait(lambda: active() == 0)

    yield Step("all expire (looks every 0.5 s)", expire)
    target.set(BROKER, "", producer_id_expiration_ms="86400000")
    target.delete([name])


@dataclass(frozen=True)
class Kind:
    steps: Callable[[Target, int], Iterator[Step]]
    first: int  # N of `make bench`'s table; 4 N and 16 N follow
    config: tuple[tuple[str, str], ...] = ()


OFTEN = (("log.initial.task.delay.ms", "100"), ("log.retention.check.interval.ms", "500"))
KINDS = {
    "topics": Kind(topics, 125),
    "partitions": Kind(partitions, 250),
    "groups": Kind(groups, 500),
    "members": Kind(members, 25, (("group.initial.rebalance.delay.ms", "0"),)),
    "segments": Kind(segments, 50, OFTEN),
    "connections": Kind(connections, 500),
    "producer ids": Kind(producer_ids, 1_000, (("producer.id.expiration.check.interval.ms", "500"),)),
}
