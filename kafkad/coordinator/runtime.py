"""The group coordinator: the groups of this broker, and the operations for the API handlers.

Java's hash of a group's name selects its partition of `__consumer_offsets`. Each partition that this broker
leads has a `Shard`, loaded by replaying the partition. Requests for other groups get NOT_COORDINATOR, and
requests for a shard that is still loading get COORDINATOR_LOAD_IN_PROGRESS. A shard whose log is
not committed to its end (`tail_open`) may serve reads of what is committed.

Source of error codes: Kafka 4.3's GroupCoordinatorService and CoordinatorOperationExceptionHelper."""

import codecs
import logging
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import mul
from typing import Any

from kafkad.config.broker import BrokerConfig
from kafkad.coordinator import transactional_commits
from kafkad.coordinator.admission import Gate
from kafkad.coordinator.group import State, join_error
from kafkad.coordinator.member import Reply
from kafkad.coordinator.ports import Clock, Scheduler, Storage
from kafkad.coordinator.shard import Done, Shard, commit_error
from kafkad.coordinator.slices import Slices, until_closed
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.strings import shown

logger = logging.getLogger(__name__)

CLASSIC = "classic"
AT_ONCE = 50  # groups that are listed between two checks of the clock
DESCRIBE_NOT_FOUND_FROM = 6  # DescribeGroups: in older versions, an unknown group is Dead without an error


HASHED_AT_ONCE = 64  # characters: a group's name may have 32,767, and a loop over each takes 6 ms
POWERS = [31**i & 0xFFFFFFFF for i in reversed(range(HASHED_AT_ONCE))]
REMEMBERED = 256  # characters; 8,192 names of the longest kind would be 512 MB


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    return _remembered(text) if len(text) <= REMEMBERED else _java_hash(text)


def _java_hash(text: str) -> int:
    data, _ = codecs.utf_16_be_encode(text, "surrogatepass")  # text.encode would import a module
    value = 0
    for start in range(0, len(data), 2 * HASHED_AT_ONCE):
        part = data[start : start + 2 * HASHED_AT_ONCE]
        units = struct.unpack(f">{len(part) // 2}H", part)
        value = (value * 31 ** len(units) + sum(map(mul, units, POWERS[-len(units) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_remembered = lru_cache(maxsize=8192)(_java_hash)


def partition_of(name: str, count: int) -> int:
    """Return Kafka's Utils.abs(hashCode) % count. The smallest integer has no absolute value and counts as
    0."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % count


def at_once(steps: Generator[None, None, Any]) -> Any:
    """Run all steps. Return the result of the last one."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class GroupCoordinator:
    """The operations for the API handlers. Methods that may wait take `reply` and call it exactly once.

    config: the broker's configuration, replaced when a dynamic key changes. new_uuid: the random part of
    member ids."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        scheduler: Scheduler,
        storage: Storage,
        new_uuid: Callable[[], str],
    ) -> None:
        self.config = config
        self.clock = clock
        self.scheduler = scheduler
        self.storage = storage
        self.new_uuid = new_uuid
        self.shards: dict[int, Shard] = {}
        self._slices = Slices(clock, scheduler)
        self._unloads = Slices(clock, scheduler)  # nobody who waits shall wait for a load
        self._closed = False

    def partition_for(self, group_id: str) -> int:
        return partition_of(
            group_id, self.storage.partition_count() or self.config.offsets_topic_num_partitions
        )

    # -- partitions of this broker

    def begin_load(self, partition: int) -> Shard:
        """Begin to load a partition. Requests for its groups get COORDINATOR_LOAD_IN_PROGRESS. Feed
        `Shard.replay` in any thread, then call `end_load`. `unload` cancels the load at any time."""
        self.unload(partition)
        shard = self.shards[partition] = Shard(self, partition)
        return shard

    def end_load(self, shard: Shard, done: Callable[[], object] | None = None) -> None:
        """Finish the load after the whole partition was fed: create its groups in slices, then serve them. A
        partition that does not parse is not served. Call `done()` in each case, also if it is unloaded
        meanwhile."""
        self._slices.run(until_closed(shard, shard.load_steps(), partial(self.refuse_load, shard), done))

    def refuse_load(self, shard: Shard, why: Exception) -> None:
        logger.error(
            "__consumer_offsets-%d cannot be loaded, its groups are not served: %s",
            shard.index,
            why,
            exc_info=None if isinstance(why, Malformed) else why,
        )
        if self.shards.get(shard.index) is shard:
            self.unload(shard.index)

    def load(self, partition: int, batches: Iterable[Any]) -> None:
        """Load a whole partition at once, given as buffers of complete batches. If it does not parse, raise
        Malformed and do not serve it."""
        shard = self.begin_load(partition)
        try:
            for buffer in batches:
                shard.replay.feed(buffer)
            for _ in shard.load_steps():
                pass
        except Malformed as lie:
            self.refuse_load(shard, lie)
            raise

    def run(self, shard: Shard, steps: Iterator[None], done: Callable[[], object] | None = None) -> None:
        """Run a shard's work in slices, until it is done or the shard is unloaded."""
        self._slices.run(until_closed(shard, steps, partial(self._failed, shard), done))

    def _failed(self, shard: Shard, trouble: Exception) -> None:
        """Log that a piece of work was not finished. The partition is served all the same: expiry, for one,
        tries again later."""
        logger.error("__consumer_offsets-%d: work in the background failed", shard.index, exc_info=trouble)

    def unload(self, partition: int) -> None:
        """Its groups are not coordinated here any more. Who waits is told so, and memory is given back, in
        slices."""
        shard = self.shards.pop(partition, None)
        if shard is not None:
            self._unloads.run(shard.close(errors.NOT_COORDINATOR))

    def close(self) -> None:
        self._closed = True
        self._slices.close()
        for partition in list(self.shards):
            self.unload(partition)
        self._unloads.finish()

    def lead(self, partition: int, epoch: int) -> None:
        """The partition is led here in this leader epoch; what is loaded stays. Appends of another epoch are
        refused."""
        self.storage.lead(partition, epoch)

    def complete_transaction(
        self,
        partition: int,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        version: int,
        done: Done,
    ) -> None:
        """End a transaction that committed offsets in this partition. Call `done(error code)` when its marker
        is durable."""
        shard = self.shards.get(partition)
        if shard is None or self._closed:
            done(errors.NOT_COORDINATOR)
        elif shard.loading:
            done(errors.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            shard.complete_transaction(
                producer_id, epoch, coordinator_epoch, commit=commit, version=version, done=done
            )

    def _shard(self, group_id: str | None, *, named: bool = False, reads: bool = False) -> Shard:
        """`named`: the empty group id, which old simple consumers used, is refused. `reads`: the request only
        reads."""
        if self._closed:
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE)
        if group_id is None or (named and not group_id):
            raise KafkaError(errors.INVALID_GROUP_ID)
        shard = self.shards.get(self.partition_for(group_id))
        if shard is None:
            raise KafkaError(errors.NOT_COORDINATOR)
        if shard.loading and not (reads and shard.readable):
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    # -- membership

    def join(self, request: Any, version: int, client_id: str | None, client_host: str, reply: Reply) -> None:
        """reply(JoinGroupResponse), possibly much later. `client_host`: as DescribeGroups shall show it."""
        if version == 0:
            request.rebalance_timeout_ms = request.session_timeout_ms
        try:
            if self._closed or not request.group_id:
                self._shard(request.group_id, named=True)
            low, high = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
            if not low <= request.session_timeout_ms <= high:
                raise KafkaError(errors.INVALID_SESSION_TIMEOUT)
            shard = self._shard(request.group_id)
        except KafkaError as refused:
            reply(join_error(refused.code, request.member_id))
            return
        shard.join(request, version, client_id or "", client_host, reply)

    def sync(self, request: Any, reply: Reply) -> None:
        """reply(SyncGroupResponse), possibly much later."""
        try:
            shard = self._shard(request.group_id, named=True)
        except KafkaError as refused:
            reply(messages.SyncGroupResponse(error_code=refused.code))
            return
        shard.sync(request, reply)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, lives: bool = True
    ) -> int:
        """Return an error code. `lives`: the client has not left since. While groups are loading, every
        heartbeat succeeds, because its member is unknown yet."""
        try:
            group = self._shard(group_id, named=True).groups.get(group_id)
        except KafkaError as refused:
            return errors.NONE if refused.code == errors.COORDINATOR_LOAD_IN_PROGRESS else refused.code
        if group is None:
            return errors.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, lives=lives)

    def leave(self, group_id: str, identities: Sequence[tuple[str, str | None]], reply: Reply) -> None:
        """Run all of `leave_steps` now."""
        at_once(self.leave_steps(group_id, identities, reply))

    def leave_steps(
        self, group_id: str, identities: Sequence[tuple[str, str | None]], reply: Reply
    ) -> Generator[None, None, None]:
        """identities: (member id, instance id) pairs. reply((top error code, [error code of each])). In
        steps."""
        try:
            shard = self._shard(group_id, named=True)
        except KafkaError as refused:
            reply((refused.code, []))
            return
        yield from shard.leave_steps(group_id, identities, reply)

    # -- administration

    def describe(self, group_id: str | None, version: int) -> Any:
        """Return a DescribeGroupsResponse.Groups."""
        try:
            group = self._shard(group_id, reads=True).seen(group_id or "")
        except KafkaError as refused:
            return messages.DescribeGroupsResponse.Groups(group_id=group_id or "", error_code=refused.code)
        if group is not None:
            return group.describe()
        answer = messages.DescribeGroupsResponse.Groups(group_id=group_id, group_state=str(State.DEAD))
        if version >= DESCRIBE_NOT_FOUND_FROM:
            answer.error_code = errors.GROUP_ID_NOT_FOUND
            answer.error_message = f"Group {shown(group_id or '')} not found."
        return answer

    def list(self, states: Sequence[str], types: Sequence[str]) -> Generator[None, None, Any]:
        """A ListGroupsResponse of the groups whose state and type are asked for; no filter: of all. In
        steps."""
        response = messages.ListGroupsResponse()
        if self._closed:
            response.error_code = errors.COORDINATOR_NOT_AVAILABLE
            return response
        if any(shard.loading and not shard.readable for shard in self.shards.values()):
            response.error_code = errors.COORDINATOR_LOAD_IN_PROGRESS
            return response
        wanted_states = yield from wide.set_of(state.strip().lower() for state in states)
        wanted_types = yield from wide.set_of(kind.lower() for kind in types)  # not stripped, as in Kafka
        is_wanted = not types or CLASSIC in wanted_types
        yield from wide.empty(wanted_types)
        if not is_wanted:
            yield from wide.empty(wanted_states)
            return response
        for shard in list(self.shards.values()):
            for number, group in enumerate(shard.all_seen()):
                if number % AT_ONCE == 0:
                    yield
                if wanted_states and group.state.lower() not in wanted_states:
                    continue
                response.groups.append(
                    messages.ListGroupsResponse.Groups(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=str(group.state),
                        group_type=CLASSIC,
                    )
                )
        yield from wide.empty(wanted_states)
        return response

    def delete_group(self, group_id: str | None, done: Done) -> None:
        """done(error code)."""
        try:
            shard = self._shard(group_id)
        except KafkaError as refused:
            done(refused.code)
            return
        shard.delete_group(group_id or "", done)

    # -- offsets

    def commit(self, request: Any, version: int, reply: Reply) -> None:
        """Run all of `commit_steps` now."""
        at_once(self.commit_steps(request, version, reply))

    def commit_steps(
        self, request: Any, version: int, reply: Reply, *, lives: bool = True
    ) -> Generator[None, None, None]:
        """reply(OffsetCommitResponse). Topics carry their name and, if there is one, their id, in every
        version."""
        try:
            shard = self._shard(request.group_id)
        except KafkaError as refused:
            reply((yield from commit_error(request, refused.code)))
            return
        yield from shard.commit_steps(request, version, reply, lives=lives)

    def commit_in_transaction(
        self, request: Any, version: int, gate: Gate, reply: Reply, *, verifies: bool = True
    ) -> Generator[None, None, None]:
        """reply(TxnOffsetCommitResponse, or the error code of every partition). In steps; see
        transactional_commits."""
        try:
            shard = self._shard(request.group_id, named=True)
        except KafkaError as refused:
            reply(refused.code)
            return
        yield from transactional_commits.commit_steps(
            self, shard, request, version, gate, reply, verifies=verifies
        )

    def fetch(self, asked: Any, require_stable: bool, reply: Reply) -> Generator[None, None, None]:
        """asked: an OffsetFetchRequest.Groups with topic names. reply(OffsetFetchResponse.Groups). In steps.

        Stable offsets wait for the commits that are on their way."""
        try:
            shard = self._shard(asked.group_id, reads=not require_stable)
        except KafkaError as refused:
            reply(messages.OffsetFetchResponse.Groups(group_id=asked.group_id or "", error_code=refused.code))
            return
        if not require_stable or not shard.writes:
            answer = yield from shard.fetch(asked, require_stable)
            if shard.closed:  # meanwhile
                answer = messages.OffsetFetchResponse.Groups(
                    group_id=asked.group_id, error_code=errors.NOT_COORDINATOR
                )
            reply(answer)
            return

        def arrived(code: int) -> None:
            if code == errors.COORDINATOR_NOT_AVAILABLE:
                code = errors.NOT_COORDINATOR  # consumers before 3.9 do not expect the other code here
            if code:
                reply(messages.OffsetFetchResponse.Groups(group_id=asked.group_id, error_code=code))
            else:
                reply(at_once(shard.fetch(asked, True)))

        shard.after_writes(arrived)

    def delete_offsets(self, request: Any, reply: Reply) -> None:
        """Run all of `delete_offsets_steps` now."""
        at_once(self.delete_offsets_steps(request, reply))

    def delete_offsets_steps(self, request: Any, reply: Reply) -> Generator[None, None, None]:
        """reply(OffsetDeleteResponse). In steps."""
        try:
            shard = self._shard(request.group_id, named=True)
        except KafkaError as refused:
            reply(messages.OffsetDeleteResponse(error_code=refused.code))
            return
        yield from shard.delete_offsets_steps(request, reply)

    def on_topics_deleted(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Delete the offsets of deleted topics, given as (name, topic id), so that no consumer starts in a
        new topic of that name at an old offset."""
        for shard in self.shards.values():
            shard.delete_offsets_of_topics(topics)
