"""Consumer: reads partitions from given offsets, alone or as a member of a classic group.

`Consumer.assign` reads what it is told; `GroupConsumer` joins a group (range assignor, as Kafka's default),
heartbeats whenever it polls, commits what it handed out, and leaves on close.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafkad.client.cluster import Cluster
from kafkad.client.connection import Unreachable
from kafkad.protocol import codec, errors, messages, records
from kafkad.protocol.errors import KafkaError

LATEST = -1
EARLIEST = -2
RANGE = "range"


class Received(NamedTuple):
    """One record as a consumer gets it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def list_offsets(cluster: Cluster, topic: str, at: dict[int, int], isolation: int = 0) -> dict[int, int]:
    """The offset of each partition for a timestamp (ms) or LATEST or EARLIEST; -1 where there is none."""

    def look() -> dict[int, int]:
        found: dict[int, int] = {}
        struct = messages.ListOffsetsRequest.Topics
        for partition, timestamp in at.items():
            asked = struct.Partitions(partition_index=partition, timestamp=timestamp)
            request = messages.ListOffsetsRequest(
                replica_id=-1, isolation_level=isolation, topics=[struct(name=topic, partitions=[asked])]
            )
            answer = cluster.leader(topic, partition).ask(request).topics[0].partitions[0]
            if answer.error_code:
                raise KafkaError(answer.error_code, f"{topic}-{partition}")
            found[partition] = answer.offset
        return found

    return cluster.retry(look)


class Consumer:
    """Reads some partitions of one topic. `poll` gives records in offset order per partition."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        max_bytes: int = 8 << 20,
        isolation: int = 0,
        wait_ms: int = 500,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.wait_ms = wait_ms
        self.positions: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}

    def assign(self, positions: dict[int, int]) -> None:
        """Partition -> the offset to read next."""
        self.positions = dict(positions)

    def poll(self) -> Iterator[Received]:
        """What the next fetches bring; nothing when there is nothing new within `wait_ms`."""
        by_leader: dict[int, tuple[Any, list[int]]] = {}
        for partition in self.positions:
            connection = self.cluster.retry(lambda p=partition: self.cluster.leader(self.topic, p))  # type: ignore[misc]
            by_leader.setdefault(id(connection), (connection, []))[1].append(partition)
        for connection, partitions in by_leader.values():
            try:
                yield from self._fetch(connection, partitions)
            except Unreachable:
                self.cluster.forget()
                time.sleep(0.1)
            except KafkaError as trouble:
                if not trouble.retriable:
                    raise
                self.cluster.forget()
                time.sleep(0.1)

    def _fetch(self, connection: Any, partitions: list[int]) -> Iterator[Received]:
        struct = messages.FetchRequest.Topics
        request = messages.FetchRequest(
            replica_id=-1,
            max_wait_ms=self.wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                struct(
                    topic=self.topic,
                    partitions=[
                        struct.Partitions(
                            partition=p,
                            fetch_offset=self.positions[p],
                            partition_max_bytes=self.max_bytes,
                            current_leader_epoch=-1,
                        )
                        for p in partitions
                    ],
                )
            ],
        )
        response = connection.ask(request, min(connection.version_for(messages.FetchRequest), 12))
        if response.error_code:
            raise KafkaError(response.error_code)
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.error_code:
                    raise KafkaError(answer.error_code, f"{self.topic}-{answer.partition_index}")
                self.high_watermarks[answer.partition_index] = answer.high_watermark
                yield from self._records(answer.partition_index, answer.records or b"")

    def _records(self, partition: int, data: bytes) -> Iterator[Received]:
        for batch in records.read_batches(data):
            if batch.last_offset < self.positions.get(partition, 0):
                continue
            if not batch.is_control:
                for record in batch.records():
                    if record.offset >= self.positions[partition]:
                        self.positions[partition] = record.offset + 1
                        yield Received(
                            partition,
                            record.offset,
                            record.timestamp,
                            record.key,
                            record.value,
                            record.headers,
                        )
            self.positions[partition] = max(self.positions[partition], batch.last_offset + 1)


class GroupConsumer(Consumer):
    """A member of a consumer group (classic protocol, one topic)."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        *,
        from_beginning: bool = False,
        session_timeout_ms: int = 10_000,
        **how: Any,
    ) -> None:
        super().__init__(cluster, topic, **how)
        self.group = group
        self.reset = EARLIEST if from_beginning else LATEST
        self.session_timeout_ms = session_timeout_ms
        self.member_id = ""
        self.generation = -1
        self._heartbeat_at = 0.0

    def poll(self) -> Iterator[Received]:
        if self.generation < 0:
            self.cluster.retry(self._join)
        elif time.monotonic() >= self._heartbeat_at:
            self._heartbeat()
            if self.generation < 0:
                return
        yield from super().poll()

    def commit(self) -> None:
        """Commits the positions: everything that `poll` handed out."""
        if self.generation < 0 or not self.positions:
            return
        struct = messages.OffsetCommitRequest.Topics
        partitions = [
            struct.Partitions(partition_index=p, committed_offset=offset)
            for p, offset in self.positions.items()
        ]
        request = messages.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[struct(name=self.topic, partitions=partitions)],
        )
        connection = self.cluster.coordinator(self.group)
        version = min(connection.version_for(messages.OffsetCommitRequest), 9)
        for partition in connection.ask(request, version).topics[0].partitions:
            if partition.error_code in (errors.REBALANCE_IN_PROGRESS, errors.ILLEGAL_GENERATION):
                self.generation = -1
            elif partition.error_code:
                raise KafkaError(partition.error_code, f"{self.topic}-{partition.partition_index}")

    def close(self) -> None:
        """Commits and leaves, so that the others take over at once."""
        if self.generation < 0:
            return
        try:
            self.commit()
            member = messages.LeaveGroupRequest.Members(member_id=self.member_id)
            request = messages.LeaveGroupRequest(group_id=self.group, members=[member])
            connection = self.cluster.coordinator(self.group)
            connection.ask(request, max(3, connection.version_for(messages.LeaveGroupRequest)))
        except (KafkaError, Unreachable):
            pass  # the session will run out

    def _join(self) -> None:
        connection = self.cluster.coordinator(self.group)
        connection.settimeout(300)
        subscription = messages.ConsumerProtocolSubscription(topics=[self.topic])
        protocol = messages.JoinGroupRequest.Protocols(
            name=RANGE, metadata=b"\x00\x00" + codec.encode(subscription, 0)
        )
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = connection.ask(request)
        if joined.error_code == errors.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = joined.member_id
            joined = connection.ask(request)
        if joined.error_code == errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            raise KafkaError(errors.REBALANCE_IN_PROGRESS)
        if joined.error_code:
            raise KafkaError(joined.error_code, f"group {self.group!r}")
        self.member_id = joined.member_id
        assignments = []
        if joined.leader == joined.member_id:
            assignments = self._assign_all([member.member_id for member in joined.members])
        synced = connection.ask(
            messages.SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name=RANGE,
                assignments=assignments,
            )
        )
        if synced.error_code:
            raise KafkaError(errors.REBALANCE_IN_PROGRESS)
        self.generation = joined.generation_id
        self._heartbeat_at = time.monotonic() + self.session_timeout_ms / 3000
        assignment, _ = codec.decode(messages.ConsumerProtocolAssignment, 0, synced.assignment, 2)
        mine = [p for topic in assignment.assigned_partitions for p in topic.partitions]
        self.assign(self._start_positions(mine))

    def _assign_all(self, members: list[str]) -> list[Any]:
        """The range assignor: consecutive partitions to members in order of their ids."""
        partitions = self.cluster.partitions(self.topic)
        members = sorted(members)
        each, extra = divmod(len(partitions), len(members))
        assignments, at = [], 0
        for number, member in enumerate(members):
            count = each + (number < extra)
            struct = messages.ConsumerProtocolAssignment
            mine = struct.AssignedPartitions(topic=self.topic, partitions=partitions[at : at + count])
            at += count
            data = b"\x00\x00" + codec.encode(
                struct(assigned_partitions=[mine] if mine.partitions else []), 0
            )
            assignments.append(messages.SyncGroupRequest.Assignments(member_id=member, assignment=data))
        return assignments

    def _start_positions(self, partitions: list[int]) -> dict[int, int]:
        if not partitions:
            return {}
        committed = committed_offsets(self.cluster, self.group, {self.topic: partitions})
        positions = {p: committed.get((self.topic, p), -1) for p in partitions}
        missing = {p: self.reset for p, offset in positions.items() if offset < 0}
        return positions | (list_offsets(self.cluster, self.topic, missing) if missing else {})

    def _heartbeat(self) -> None:
        request = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        code = self.cluster.coordinator(self.group).ask(request).error_code
        self._heartbeat_at = time.monotonic() + self.session_timeout_ms / 3000
        if code == errors.REBALANCE_IN_PROGRESS:
            self.commit()
            self.generation = -1
        elif code in (errors.UNKNOWN_MEMBER_ID, errors.ILLEGAL_GENERATION):
            self.member_id, self.generation = "", -1
        elif code:
            raise KafkaError(code, f"group {self.group!r}")


def committed_offsets(
    cluster: Cluster, group: str, topics: dict[str, list[int]] | None = None
) -> dict[tuple[str, int], int]:
    """A group's committed offsets, of these partitions or of all."""

    def look() -> dict[tuple[str, int], int]:
        connection = cluster.coordinator(group)
        version = min(connection.version_for(messages.OffsetFetchRequest), 9)
        if version >= 8:
            struct = messages.OffsetFetchRequest.Groups
            asked = (
                None
                if topics is None
                else [struct.Topics(name=name, partition_indexes=p) for name, p in topics.items()]
            )
            response = connection.ask(
                messages.OffsetFetchRequest(groups=[struct(group_id=group, topics=asked)]), version
            )
            found = response.groups[0]
        else:
            old = messages.OffsetFetchRequest.Topics
            asked_old = (
                None
                if topics is None
                else [old(name=name, partition_indexes=p) for name, p in topics.items()]
            )
            found = connection.ask(messages.OffsetFetchRequest(group_id=group, topics=asked_old), version)
        if found.error_code:
            raise KafkaError(found.error_code, f"group {group!r}")
        return {
            (topic.name, p.partition_index): p.committed_offset
            for topic in found.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    return cluster.retry(look)
