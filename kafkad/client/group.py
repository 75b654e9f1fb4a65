"""A member of a consumer group of the classic protocol that reads one topic.

    poll -> not joined: JoinGroup, SyncGroup (range assignor, Kafka's default), committed offsets
         -> joined: check the result of `Heart`, then poll like any Consumer

A thread with its own connection sends heartbeats. So a member keeps its partitions while its records are
processed, for `max_poll_seconds` after its last poll (KIP-62). The thread only stores the coordinator's
answer; `poll` does the rest. The yielded records are committed by `commit`, before a rebalance, and by
`close`. `close` also leaves the group, so that other members take over at once.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

from kafkad.client.cluster import RETRY_PAUSE_S, Cluster, passes
from kafkad.client.connection import Connection, Unreachable
from kafkad.client.consumer import Consumer, Received
from kafkad.client.offsets import EARLIEST, LATEST, commit_offsets, committed_offsets, list_offsets
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError

RANGE = "range"
VERSION_0 = b"\0\0"  # precedes subscriptions and assignments; every later version can be read as 0
REBALANCE_MS = 60_000
JOIN_SECONDS = REBALANCE_MS / 1000 + 15  # a JoinGroup is answered when all members have joined
# Errors after which we join again, with our member id or without it.
REJOIN = {errors.REBALANCE_IN_PROGRESS, errors.ILLEGAL_GENERATION}
LOST = {errors.UNKNOWN_MEMBER_ID, errors.FENCED_INSTANCE_ID}


class GroupConsumer(Consumer):
    """A member of a consumer group. Close it, because otherwise the group waits until the session expires."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        *,
        from_beginning: bool = False,
        session_timeout_ms: int = 10_000,
        max_poll_seconds: float = 300.0,
        **how: Any,
    ) -> None:
        super().__init__(cluster, topic, reset=EARLIEST if from_beginning else LATEST, **how)
        self.group = group
        self.session_timeout_ms = session_timeout_ms
        self.max_poll_seconds = max_poll_seconds
        self.member_id = ""
        self.generation = -1  # not joined
        self._heart: Heart | None = None

    def poll(self) -> Iterator[Received]:
        """Join the group if necessary, then poll. Yield nothing while other members have all partitions."""
        if self._heart is not None:
            self._heart.polled_at = time.monotonic()
            if self._heart.told in REJOIN:
                self.commit()
            self._heed(self._heart.told)
        if self.generation < 0:
            self._join()
        yield from super().poll()

    def commit(self) -> None:
        """Commit the positions, that is, everything that `poll` has yielded. Do nothing if another member has
        the partitions by now.
        """
        if self.generation < 0 or not self.positions:
            return
        offsets = {(self.topic, p): offset for p, offset in self.positions.items()}

        def attempt() -> None:
            commit_offsets(
                self.cluster, self.group, offsets, member_id=self.member_id, generation=self.generation
            )

        try:
            self.cluster.retry(attempt)
        except KafkaError as trouble:
            if trouble.code not in REJOIN | LOST:
                raise
            self._heed(trouble.code)

    def close(self) -> None:
        """Commit and leave the group. Never raise: if leaving fails, the session expires."""
        try:
            self.commit()
        except (KafkaError, Unreachable):
            pass
        self._stop_heart()
        if not self.member_id:
            return
        try:
            connection = self.cluster.coordinator(self.group)
            version = connection.version_for(messages.LeaveGroupRequest)
            request = messages.LeaveGroupRequest(group_id=self.group)
            if version >= 3:
                request.members = [messages.LeaveGroupRequest.Members(member_id=self.member_id)]
            else:
                request.member_id = self.member_id
            connection.ask(request, version)
        except (KafkaError, Unreachable):
            pass
        self.member_id, self.generation = "", -1

    def _heed(self, code: int) -> None:
        if code in LOST:
            self.member_id, self.generation = "", -1
        elif code in REJOIN:
            self.generation = -1
        elif code:
            raise KafkaError(code, f"group {self.group!r}")

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Join until this is a member of a generation and has positions."""
        self._stop_heart()
        self.positions = {}
        deadline = time.monotonic() + self.cluster.retry_seconds
        while self.generation < 0:
            try:
                if self._try_to_join():
                    break
                deadline = time.monotonic() + self.cluster.retry_seconds
            except (KafkaError, Unreachable) as trouble:
                if not passes(trouble) or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
                self.cluster.forget()

    def _try_to_join(self) -> bool:
        """Try to join once. Return False if the group has changed meanwhile and the caller must try again.
        Raise KafkaError if the coordinator refuses.
        """
        joined = self._ask_to_join()
        if joined.error_code == errors.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = self._ask_to_join()
        if joined.error_code in REJOIN | LOST:
            self._heed(joined.error_code)
            return False
        if joined.error_code:
            raise KafkaError(joined.error_code, f"group {self.group!r}")
        self.member_id = joined.member_id
        self._start_heart(joined.generation_id)  # the leader's work and SyncGroup may take long
        assignments = []
        if joined.leader == joined.member_id:
            assignments = self._assign_all(joined.members)
        connection = self.cluster.coordinator(self.group)
        version = connection.version_for(messages.SyncGroupRequest)
        request = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            assignments=assignments,
        )
        if version >= 5:
            request.protocol_type, request.protocol_name = "consumer", RANGE
        synced = connection.ask(request, version, timeout=JOIN_SECONDS)
        if synced.error_code in REJOIN | LOST:
            self._stop_heart()
            self._heed(synced.error_code)
            return False
        if synced.error_code:
            raise KafkaError(synced.error_code, f"group {self.group!r}")
        positions = self._start_positions(assigned(synced.assignment).get(self.topic, []))
        self.generation = joined.generation_id
        self.assign(positions)
        return True

    def _ask_to_join(self) -> Any:
        connection = self.cluster.coordinator(self.group)
        subscription = messages.ConsumerProtocolSubscription(topics=[self.topic])
        protocol = messages.JoinGroupRequest.Protocols(
            name=RANGE, metadata=VERSION_0 + codec.encode(subscription, 0)
        )
        version = connection.version_for(messages.JoinGroupRequest)
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=REBALANCE_MS if version >= 1 else -1,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return connection.ask(request, version, timeout=JOIN_SECONDS)

    def _assign_all(self, members: list[Any]) -> list[Any]:
        """Compute the assignment of each member, which is the leader's task."""
        wants = {
            m.member_id: codec.decode(messages.ConsumerProtocolSubscription, 0, m.metadata, 2)[0].topics
            for m in members
        }
        counts: dict[str, list[int]] = {}
        for topic in {topic for topics in wants.values() for topic in topics}:
            try:
                counts[topic] = self.cluster.partitions(topic)
            except KafkaError:
                counts[topic] = []  # another member's topic, which does not exist
        struct = messages.ConsumerProtocolAssignment
        assignments = []
        for member, topics in range_assignment(wants, counts).items():
            rows = [struct.AssignedPartitions(topic=t, partitions=p) for t, p in sorted(topics.items())]
            data = VERSION_0 + codec.encode(struct(assigned_partitions=rows), 0)
            assignments.append(messages.SyncGroupRequest.Assignments(member_id=member, assignment=data))
        return assignments

    def _start_positions(self, partitions: list[int]) -> dict[int, int]:
        if not partitions:
            return {}
        committed = committed_offsets(self.cluster, self.group, [(self.topic, p) for p in partitions])
        positions = {p: committed.get((self.topic, p), -1) for p in partitions}
        assert self.reset is not None
        missing = {p: self.reset for p, offset in positions.items() if offset < 0}
        return positions | (list_offsets(self.cluster, self.topic, missing) if missing else {})

    # -- heartbeats ----------------------------------------------------------------------------------------

    def _start_heart(self, generation: int) -> None:
        self._stop_heart()
        self._heart = Heart(self, generation)
        self._heart.start()

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.stopped.set()
            self._heart = None


class Heart(threading.Thread):
    """Send heartbeats to the coordinator, three per session timeout, until stopped or until the answer is an
    error, which is stored in `told`.
    """

    def __init__(self, member: GroupConsumer, generation: int) -> None:
        super().__init__(name="kafkad-heart", daemon=True)
        self.told = errors.NONE
        self.polled_at = time.monotonic()
        self.stopped = threading.Event()
        self._cluster = member.cluster
        self._address = member.cluster.address_of(member.cluster.coordinator_of(member.group))
        self._pause = member.session_timeout_ms / 3000
        self._patience = member.max_poll_seconds
        self._beat = messages.HeartbeatRequest(
            group_id=member.group, generation_id=generation, member_id=member.member_id
        )

    def run(self) -> None:
        connection: Connection | None = None
        while not self.stopped.wait(self._pause):
            if time.monotonic() - self.polled_at > self._patience:
                break  # a member that no longer polls must lose its partitions
            try:
                if connection is None or connection.closed:
                    connection = self._cluster.connect(*self._address)
                code = connection.ask(self._beat).error_code
            except (KafkaError, Unreachable):
                continue  # the broker may be restarting; otherwise `poll` finds the new coordinator
            if code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE):
                code = errors.REBALANCE_IN_PROGRESS  # joining finds the coordinator again
            if code not in (errors.NONE, errors.COORDINATOR_LOAD_IN_PROGRESS):
                self.told = code
                break
        if connection is not None:
            connection.close()


def range_assignment(
    wants: dict[str, list[str]], partitions: dict[str, list[int]]
) -> dict[str, dict[str, list[int]]]:
    """Assign partitions like Kafka's range assignor. For each topic, its subscribers get consecutive
    partitions, in the order of their ids. If the division has a remainder, the first ones get one more.
    """
    given: dict[str, dict[str, list[int]]] = {member: {} for member in wants}
    for topic, numbers in partitions.items():
        members = sorted(member for member, topics in wants.items() if topic in topics)
        each, extra = divmod(len(numbers), len(members) or 1)
        at = 0
        for place, member in enumerate(members):
            count = each + (place < extra)
            if count:
                given[member][topic] = numbers[at : at + count]
            at += count
    return given


def assigned(data: bytes) -> dict[str, list[int]]:
    """Decode a member's assignment: topic -> partitions. Empty bytes are an empty assignment."""
    if not data:
        return {}
    assignment, _ = codec.decode(messages.ConsumerProtocolAssignment, 0, data, 2)
    return {topic.topic: list(topic.partitions) for topic in assignment.assigned_partitions}
