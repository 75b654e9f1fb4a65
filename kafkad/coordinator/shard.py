"""A shard: the groups and offsets of one partition of `__consumer_offsets`, and its only writer.

    request -> group or offsets decide -> records -> storage.append ... durable -> applied, then answered

Answers keep the order of appends. `writes` has what is appended but not durable yet. Deletions check it, too,
because a commit that is being written would otherwise survive the deletion of its group.

Reads see what is durable, and wait for nothing: a group whose first record is being written is not there yet
(`_unseen`), and one whose tombstone is being written still is (`_leaving`). Requests that change a group see
it as it will be, `groups`.

Beware: `storage.append` may call back before it returns. After an append, no code here changes state that the
callback could have needed."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafkad.coordinator import records
from kafkad.coordinator.deadline import Deadline, Handle
from kafkad.coordinator.group import ClassicGroup, State, join_error
from kafkad.coordinator.loading import Replay
from kafkad.coordinator.member import Member, Reply
from kafkad.coordinator.offsets import Key, Offsets, OnTheirWay, is_expired
from kafkad.coordinator.records import (
    NEVER,
    NO_TOPIC_ID,
    CommittedOffset,
    Entry,
    GroupRecord,
    OffsetRecord,
)
from kafkad.log.admission import Admission
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch
from kafkad.protocol.strings import java_length

if TYPE_CHECKING:
    from kafkad.coordinator.ports import Coordinator

logger = logging.getLogger(__name__)

Done = Callable[[int], object]

INVALID_OFFSET = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
TIME_MAX = (1 << 63) - 1
GROUP_ID_NOT_FOUND_FROM = (
    9  # OffsetCommit: what older clients expect for an unknown group is ILLEGAL_GENERATION
)
TOMBSTONES_MAX = 500  # per batch: about 50 KB, and 2 ms to build
BATCH_OVERHEAD, RECORD_OVERHEAD = 61, 24  # most bytes beside keys and values
METADATA_RECORDS_MAX = 16  # a group may have as much metadata in memory as fits into this many records
LOADED_AT_ONCE = 500  # offsets that are created between two checks of the clock: 0.5 ms
VISITED_AT_ONCE = 100  # groups that are visited between two checks of the clock

# The error codes that a client of the coordinator gets for a failed append.
APPEND_ERRORS: dict[int, int] = {
    errors.UNKNOWN_TOPIC_OR_PARTITION: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS: errors.COORDINATOR_NOT_AVAILABLE,
    errors.REQUEST_TIMED_OUT: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER: errors.NOT_COORDINATOR,
    errors.KAFKA_STORAGE_ERROR: errors.NOT_COORDINATOR,
    errors.MESSAGE_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
    errors.RECORD_LIST_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
    errors.INVALID_FETCH_SIZE: errors.UNKNOWN_SERVER_ERROR,
}


NO_TRANSACTION = (Admission.PLAIN, 0)  # and no guard


class Write:
    """A batch that is being written: its changes of the offsets, and its callback."""

    __slots__ = ("base_offset", "changes", "code", "ended", "is_late", "producer_id", "settled", "waiting")

    def __init__(
        self,
        changes: Sequence[tuple[Key, CommittedOffset | None]],
        done: Done | None,
        ended: tuple[int, bool] | None = None,
        producer_id: int | None = None,
        settled: Done | None = None,
    ) -> None:
        self.changes = changes  # changes by its records, in order
        self.settled = settled  # is told the outcome, also where the time of those who wait is up
        self.producer_id = producer_id  # for a commit in a transaction
        self.ended = ended  # for a marker: the transaction's producer, and whether it was committed
        self.base_offset = -1
        self.waiting: list[Done] = [] if done is None else [done]
        self.code: int | None = None  # None: not finished
        self.is_late = False  # it is in the log, but its time is up


class Shard:
    """The groups and offsets of one partition of `__consumer_offsets`. It is the `Host` of its groups."""

    def __init__(self, coordinator: "Coordinator", index: int) -> None:
        self.index = index
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets()
        self._unseen: set[ClassicGroup] = set()  # no record of them is durable
        self._leaving: dict[str, ClassicGroup] = {}  # their tombstones are not durable
        self.writes: deque[Write] = deque()
        self._on_their_way = OnTheirWay()  # the commits of `writes`
        self.loading = True
        self.tail_open = False  # only what is committed is loaded, for reads; then it is loaded anew
        self.readable = False  # and that is done
        self.closed = False
        self.replay = Replay()  # records of the log, while the shard is loading
        self._coordinator = coordinator
        self._deleted_meanwhile: list[tuple[str, bytes]] = []  # topics that were deleted while it was loading
        self._expiry = Deadline(self, self._expire_and_come_again)

    # -- Host

    @property
    def config(self) -> Any:
        return self._coordinator.config

    def now_ms(self) -> int:
        return self._coordinator.clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._coordinator.clock.monotonic_ms()

    def call_later(self, delay_ms: int, function: Callable[[], object]) -> Handle:
        return self._coordinator.scheduler.call_later(delay_ms, function)

    def new_uuid(self) -> str:
        return self._coordinator.new_uuid()

    def batch_bytes_max(self) -> int:
        return self._coordinator.storage.batch_size_max(self.index)

    def metadata_bytes_max(self) -> int:
        return METADATA_RECORDS_MAX * self._coordinator.storage.batch_size_max(self.index)

    def topic_id(self, topic: str) -> bytes:
        """Return the id with which an offset of this topic is stored."""
        return self._coordinator.storage.topic_id(topic) or NO_TOPIC_ID

    def store(self, group: ClassicGroup, assignments: dict[str, bytes], done: Done) -> None:
        entry = (records.group_key(group.group_id), records.group_value(group, assignments))
        _, settled = self.to_commit(group.group_id) if group in self._unseen else (group, None)
        self.append([entry], done=done, settled=settled)

    # -- writing

    def append(
        self,
        entries: Iterable[Entry],
        changes: Sequence[tuple[Key, CommittedOffset | None]] = (),
        done: Done | None = None,
        *,
        settled: Done | None = None,
        producer: tuple[int, int] | None = None,
        admitted: tuple[Admission, int] = NO_TRANSACTION,
    ) -> None:
        """One batch. When it is durable `changes` are applied and `done(NONE)` called; else `done(error
        code)`. `settled`: the same, but where the time of an append is up it hears what came of it after
        all, and nothing if the shard is closed. producer: id and epoch, if the changes wait for the end of
        its transaction; it was admitted with that admission and guard."""
        if self.closed:
            if done is not None:
                done(errors.NOT_COORDINATOR)
            return
        timestamp_ms = self.now_ms()
        listed = [Record(key=key, value=value, timestamp=timestamp_ms) for key, value in entries]
        if producer is None:
            batch, producer_id = build_batch(listed), None
        else:
            producer_id, epoch = producer
            batch = build_batch(listed, producer_id=producer_id, producer_epoch=epoch, transactional=True)
        write = Write(changes, done, producer_id=producer_id, settled=settled)
        self.writes.append(write)
        self._on_their_way.add(changes)
        try:
            self._coordinator.storage.append(
                self.index, batch, lambda code, offset: self._appended(write, code, offset), admitted
            )
        except Exception:
            if write in self.writes:  # otherwise all later answers would wait for its outcome
                self.writes.remove(write)
                self._on_their_way.remove(changes)
                if settled is not None:
                    settled(errors.UNKNOWN_SERVER_ERROR)
            raise

    def complete_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool, version: int, done: Done
    ) -> None:
        """Writes the marker behind all that is on its way. When it is durable the transaction's offsets
        count, or are forgotten, and `done(NONE)` is called; else `done(error code)`, and nothing has
        changed."""
        if self.closed:
            done(errors.NOT_COORDINATOR)
            return
        write = Write((), done, (producer_id, commit))
        self.writes.append(write)
        self._coordinator.storage.append_marker(
            self.index,
            (producer_id, epoch, coordinator_epoch),
            commit=commit,
            version=version,
            callback=lambda code, offset: self._appended(write, code, offset),
        )

    def _appended(self, write: Write, code: int, base_offset: int) -> None:
        """Store the result of an append. A refusal may come before the results of older appends, but answers
        keep the order of appends."""
        assert write.code is None, "a write has one outcome"
        if code == errors.REQUEST_TIMED_OUT and base_offset >= 0:
            write.is_late = True  # it may count yet, and is applied then: only who waits is answered now
            waiting, write.waiting = write.waiting, []
            for done in waiting:
                done(APPEND_ERRORS[code])
            self._finish_refused()
            return
        write.code = code
        write.base_offset = base_offset
        while self.writes and self.writes[0].code is not None:
            write = self.writes.popleft()
            self._on_their_way.remove(write.changes)
            self._finish(write)
        if self.writes and self.writes[0].is_late:
            self._finish_refused()

    def _finish_refused(self) -> None:
        """Finish what was refused behind appends whose time is up: their outcome may be long in coming (the
        followers are gone), and nobody waits for it."""
        refused = []
        for write in self.writes:
            if write.code:
                refused.append(write)
            elif not write.is_late:
                break
        for write in refused:
            self.writes.remove(write)
            self._on_their_way.remove(write.changes)
        for write in refused:
            self._finish(write)

    def _finish(self, write: Write) -> None:
        assert write.code is not None
        outcome = APPEND_ERRORS.get(write.code, write.code)
        if outcome == errors.NONE:
            self._apply(write)
        if write.settled is not None:
            write.settled(outcome)
        for done in write.waiting:
            done(outcome)

    def _apply(self, write: Write) -> None:
        ordered = self.offsets.any_open  # the end of a transaction then needs the order of commits in the log
        for number, (key, committed) in enumerate(write.changes):
            if committed is None:
                self.offsets.remove(key)
            elif write.producer_id is not None:
                committed = committed._replace(record_offset=write.base_offset + number)
                self.offsets.put_in_transaction(write.producer_id, key, committed)
            elif ordered:
                self.offsets.put(key, committed._replace(record_offset=write.base_offset + number))
            else:
                self.offsets.put(key, committed)
        if write.ended is not None:
            producer_id, commit = write.ended
            self.offsets.end_transaction(producer_id, commit=commit)

    def after_writes(self, done: Done) -> None:
        """Call `done(error code)` when all pending appends are finished; at once, if there are none."""
        if self.writes and self.writes[-1].is_late:
            done(APPEND_ERRORS[errors.REQUEST_TIMED_OUT])
        elif self.writes:
            self.writes[-1].waiting.append(done)
        else:
            done(errors.NONE)

    def commits_on_their_way(self) -> Iterator[tuple[Key, CommittedOffset]]:
        """Return offsets that are being committed. They cannot be fetched yet, but are deleted with their
        group or topic."""
        for write in self.writes:
            for key, committed in write.changes:
                if committed is not None:
                    yield key, committed

    def keys_on_their_way(self, group_id: str) -> Collection[Key]:
        return self._on_their_way.of_group(group_id)

    def _append_tombstones(self, keys: Iterable[Key], done: Done | None = None) -> None:
        """Append tombstones in as many batches as necessary. Call `done` with the result of the last one."""
        room_max = self._coordinator.storage.batch_size_max(self.index) - BATCH_OVERHEAD
        entries: list[Entry] = []
        changes: list[tuple[Key, None]] = []
        room = room_max
        for key in keys:
            entry = records.offset_key(*key), None
            room -= len(entry[0]) + RECORD_OVERHEAD
            if entries and (room < 0 or len(entries) == TOMBSTONES_MAX):
                self.append(entries, changes)
                entries, changes = [], []
                room = room_max - len(entry[0]) - RECORD_OVERHEAD
            entries.append(entry)
            changes.append((key, None))
        if entries:
            self.append(entries, changes, done)

    def _delete_group(self, group: ClassicGroup, done: Done | None = None) -> None:
        """Delete a group's offsets, then the group. It returns if the write fails."""
        entry = records.group_key(group.group_id), None
        keys = sorted({*self.offsets.keys_of_group(group.group_id), *self.keys_on_their_way(group.group_id)})

        def settled(code: int) -> None:
            if self._leaving.get(group.group_id) is group:
                del self._leaving[group.group_id]
            if code:
                self.groups.setdefault(group.group_id, group)
            if self.groups.get(group.group_id) is not group:
                group.end_timers()

        del self.groups[group.group_id]
        self._leaving.setdefault(group.group_id, group)
        group.cancel_timers()
        try:
            self._append_tombstones(keys)
        except Exception:
            settled(errors.UNKNOWN_SERVER_ERROR)
            raise
        self.append([entry], done=done, settled=settled)

    # -- reading the log

    def load_steps(self) -> Iterator[None]:
        """Create groups and offsets from the records in `replay`, in small steps, and then serve them, or
        only reads if `tail_open`. Raise Malformed."""
        assert self.loading
        unfinished = self.replay.unfinished()
        while len(self.replay.latest):
            for key, value, offset in self.offsets.take_loaded(self.replay.latest, LOADED_AT_ONCE):
                self._load_record(key, value, offset)
                yield
            yield
        for producer_id, key, value, offset in unfinished:
            self._load_record(key, value, offset, producer_id)
        self.replay = Replay()
        for group_id in self.offsets.group_ids():
            if group_id not in self.groups:  # a simple consumer: offsets without members
                self.groups[group_id] = ClassicGroup(group_id, self, state_timestamp_ms=self.now_ms())
                if len(self.groups) % VISITED_AT_ONCE == 0:
                    yield
        if self.tail_open:
            self.readable = True
            return
        self.loading = False
        self._expiry.set(self.config.offsets_retention_check_interval_ms)
        if self.groups:
            counts = (len(self.groups), len(self.offsets))
            logger.info("__consumer_offsets-%d: %d groups and %d offsets loaded", self.index, *counts)
        # A topic may have been deleted and recreated while the groups had no coordinator.
        self._coordinator.run(self, self._deletion_steps(self.offsets.topics(), self._is_of_another_topic))
        self.delete_offsets_of_topics(self._deleted_meanwhile)
        # Sessions begin now: while the shard was loading, heartbeats did not extend them.
        for group in list(self.groups.values()):
            if self.groups.get(group.group_id) is group:
                group.loaded()
            yield

    def _load_record(self, key: bytes, value: bytes, offset: int, transaction_of: int | None = None) -> None:
        found = records.read(key, value)
        if isinstance(found, GroupRecord):
            self._load_group(found)
        elif isinstance(found, OffsetRecord) and found.value is not None:
            committed = found.value._replace(record_offset=offset)
            offset_key = (found.group_id, found.topic, found.partition)
            if transaction_of is None:
                self.offsets.put(offset_key, committed)
            else:
                self.offsets.put_in_transaction(transaction_of, offset_key, committed)

    def _load_group(self, found: GroupRecord) -> None:
        value = found.value
        group = ClassicGroup(
            found.group_id,
            self,
            state=State.STABLE if value.members else State.EMPTY,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol,
            leader=value.leader,
            state_timestamp_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        )
        if value.members and value.protocol is None:
            raise Malformed(f"group {found.group_id} has members but no protocol")
        for stored in value.members:
            if stored.member_id in group.members or stored.group_instance_id in group.static_members:
                raise Malformed(f"group {found.group_id} has member {stored.member_id} twice")
            timeout_ms = (
                stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
            )
            group.add(
                Member(
                    stored.member_id,
                    instance_id=stored.group_instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    rebalance_timeout_ms=timeout_ms,
                    session_timeout_ms=stored.session_timeout,
                    protocol_type=value.protocol_type,
                    protocols=[(value.protocol, bytes(stored.subscription))],
                    assignment=bytes(stored.assignment),
                )
            )
        group.read_subscriptions()
        self.groups[found.group_id] = group

    def close(self, code: int) -> Iterator[None]:
        """Close the shard, because the partition has another leader. In the returned steps all waiting
        requests are answered, and what it holds is given back."""
        self.closed = True
        self._expiry.end()
        for write in self.writes:
            waiting, write.waiting = write.waiting, []
            for done in waiting:
                done(code)
        return self._close_steps(code)

    def _close_steps(self, code: int) -> Iterator[None]:
        self._unseen.clear()
        self._leaving.clear()
        while self.groups:
            _, group = self.groups.popitem()
            group.close(code)
            del group
            yield
        yield from self.offsets.clear_steps()
        self.replay = Replay()

    # -- groups

    def seen(self, group_id: str) -> ClassicGroup | None:
        """The group as reads see it."""
        group = self._leaving.get(group_id) or self.groups.get(group_id)
        return None if group in self._unseen else group

    def all_seen(self) -> list[ClassicGroup]:
        if not self._unseen and not self._leaving:
            return list(self.groups.values())
        found = (self.seen(group_id) for group_id in dict.fromkeys((*self.groups, *self._leaving)))
        return [group for group in found if group is not None]

    def to_commit(self, group_id: str) -> tuple[ClassicGroup, Done | None]:
        """The group of a commit that is about to be appended, made if it is not there, and what is to hear of
        that append. A group that no commit has made durable goes again."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self, state_timestamp_ms=self.now_ms())
            self._unseen.add(group)
        elif group not in self._unseen:
            return group, None
        made = group

        def settled(code: int) -> None:
            if not code:
                self._unseen.discard(made)
            elif (
                made in self._unseen
                and self.groups.get(group_id) is made
                and not (made.members or made.pending_join or self.keys_on_their_way(group_id))
            ):
                del self.groups[group_id]
                made.end_timers()
                self._unseen.discard(made)

        return group, settled

    def join(self, request: Any, version: int, client_id: str, client_host: str, reply: Reply) -> None:
        group = self.groups.get(request.group_id)
        if group is not None:
            group.join(request, version, client_id, client_host, reply)
            return
        if request.member_id:
            reply(join_error(errors.UNKNOWN_MEMBER_ID, request.member_id))
            return
        group = ClassicGroup(request.group_id, self, state_timestamp_ms=self.now_ms())
        self.groups[group.group_id] = group
        first_state_ms = group.state_timestamp_ms or 0
        group.join(request, version, client_id, client_host, reply)

        def created(code: int) -> None:
            if code:
                logger.warning("group %s could not be created (%s)", group.group_id, errors.KafkaError(code))
                group.close(code)
                if self.groups.get(group.group_id) is group:
                    del self.groups[group.group_id]

        self._unseen.add(group)
        self.append(
            [(records.group_key(group.group_id), records.new_group_value(first_state_ms))],
            done=created,
            settled=lambda _: self._unseen.discard(group),
        )

    def sync(self, request: Any, reply: Reply) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            reply(messages.SyncGroupResponse(error_code=errors.UNKNOWN_MEMBER_ID))
        else:
            group.sync(request, reply)

    def leave_steps(
        self, group_id: str, identities: Sequence[tuple[str, str | None]], reply: Reply
    ) -> Generator[None, None, None]:
        """reply(top error code, [error code of each]). In steps."""
        group = self.groups.get(group_id)
        codes = [errors.UNKNOWN_MEMBER_ID] * len(identities)
        if group is not None and group.state is not State.DEAD:
            codes = yield from group.leave_steps(identities)
        if self.closed:
            reply((errors.NOT_COORDINATOR, []))
            return
        if group is not None and group.state is State.DEAD:
            reply((errors.COORDINATOR_NOT_AVAILABLE, []))
            return
        self.after_writes(lambda code: reply((code, [] if code else codes)))

    def delete_group(self, group_id: str, done: Done) -> None:
        group = self.groups.get(group_id)
        code = errors.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is None or code:
            done(code)
        else:
            logger.info("group %s is deleted", group_id)
            self._delete_group(group, done)

    # -- offsets

    def commit_steps(
        self, request: Any, version: int, reply: Reply, *, lives: bool
    ) -> Generator[None, None, None]:
        """Commit in steps. The group may change between two steps, so the member is checked again at the
        end."""
        group_id = request.group_id
        code = self._check_commit(request, version)
        if code:
            reply((yield from commit_error(request, code)))
            return
        now_ms = self.now_ms()
        retention_ms = request.retention_time_ms
        expire_ms = NEVER if retention_ms == -1 else min(now_ms + retention_ms, TIME_MAX)
        metadata_size_max = self.config.offset_metadata_max_bytes
        entries: list[Entry] = []
        changes: list[tuple[Key, CommittedOffset | None]] = []
        room = self._coordinator.storage.batch_size_max(self.index)
        response = messages.OffsetCommitResponse()
        for topic in request.topics:
            answer = messages.OffsetCommitResponse.Topics(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            for number, partition in enumerate(topic.partitions):
                if number % VISITED_AT_ONCE == 0:
                    yield
                index, metadata = partition.partition_index, partition.committed_metadata or ""
                too_long = java_length(metadata) > metadata_size_max
                code = errors.OFFSET_METADATA_TOO_LARGE if too_long else errors.NONE
                answer.partitions.append(
                    messages.OffsetCommitResponse.Topics.Partitions(partition_index=index, error_code=code)
                )
                if code:
                    continue
                committed = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    now_ms if partition.commit_timestamp == NO_TIMESTAMP else partition.commit_timestamp,
                    expire_ms,
                    topic.topic_id,
                )
                key, value = records.offset_key(group_id, topic.name, index), records.offset_value(committed)
                entries.append((key, value))
                changes.append(((group_id, topic.name, index), committed))
                room -= len(key) + len(value)
                if room < 0:
                    logger.error("group %s: a commit does not fit into max.message.bytes", group_id)
                    reply((yield from commit_error(request, errors.UNKNOWN_SERVER_ERROR)))
                    return

        code = errors.NOT_COORDINATOR if self.closed else self._check_commit(request, version)
        if code:
            reply((yield from commit_error(request, code)))
            return
        settled: Done | None = None
        if entries:
            _, settled = self.to_commit(group_id)
        if lives and group_id in self.groups:
            self.groups[group_id].touch(request.member_id)

        def committed_or_not(code: int) -> None:
            if code:
                for topic in response.topics:
                    for partition in topic.partitions:
                        partition.error_code = code
            reply(response)

        if entries:
            self.append(entries, changes, committed_or_not, settled=settled)
        else:
            self.after_writes(committed_or_not)

    def _check_commit(self, request: Any, version: int) -> int:
        """Return the error code for a commit of this member, or NONE."""
        generation = request.generation_id_or_member_epoch
        group = self.groups.get(request.group_id)
        if group is not None:
            return group.check_commit(request.member_id, request.group_instance_id, generation)
        if generation < 0:  # a simple consumer
            return errors.NONE
        return errors.GROUP_ID_NOT_FOUND if version >= GROUP_ID_NOT_FOUND_FROM else errors.ILLEGAL_GENERATION

    def fetch(self, asked: Any, require_stable: bool) -> Generator[None, None, Any]:
        """Return the committed offsets of one group for the requested topics, or all with null topics. In
        steps."""
        known = self.offsets.of_group(asked.group_id)
        answer = messages.OffsetFetchResponse.Groups(group_id=asked.group_id)
        if asked.topics is None:
            wanted: Iterable[tuple[str, bytes, list[int]]] = [
                (name, NO_TOPIC_ID, list(partitions))
                for name, partitions in known.items()
                if any(not self._is_of_another_topic(name, each.topic_id) for each in partitions.values())
            ]
        else:
            wanted = ((topic.name, topic.topic_id, topic.partition_indexes) for topic in asked.topics)
        for name, topic_id, indexes in wanted:
            topic = messages.OffsetFetchResponse.Groups.Topics(name=name, topic_id=topic_id)
            answer.topics.append(topic)
            partitions = known.get(name, {})
            current = self._coordinator.storage.topic_id(name) if topic_id == NO_TOPIC_ID else topic_id
            yield
            for number, index in enumerate(indexes):
                if number % VISITED_AT_ONCE == VISITED_AT_ONCE - 1:
                    yield
                found = messages.OffsetFetchResponse.Groups.Topics.Partitions(
                    partition_index=index,
                    committed_offset=INVALID_OFFSET,
                    committed_leader_epoch=NO_EPOCH,
                    metadata="",
                )
                topic.partitions.append(found)
                committed = partitions.get(index)
                if require_stable and self.offsets.is_unstable((asked.group_id, name, index)):
                    found.error_code = errors.UNSTABLE_OFFSET_COMMIT
                elif committed is None or current is None or not _same_topic(committed.topic_id, current):
                    continue
                else:
                    found.committed_offset = committed.offset
                    found.committed_leader_epoch = committed.leader_epoch
                    found.metadata = committed.metadata
        return answer

    def delete_offsets_steps(self, request: Any, reply: Reply) -> Generator[None, None, None]:
        """Delete in steps. The group may change between two steps, so it is checked again at the end."""
        group_id = request.group_id
        group = self.groups.get(group_id)
        code = errors.GROUP_ID_NOT_FOUND if group is None else group.check_delete_offsets()
        if group is None or code:
            reply(messages.OffsetDeleteResponse(error_code=code))
            return
        response = messages.OffsetDeleteResponse()
        keys: dict[Key, None] = {}  # a request may name one again and again
        for topic in request.topics:
            subscribed = group.is_subscribed_to(topic.name)
            answer = messages.OffsetDeleteResponse.Topics(name=topic.name)
            response.topics.append(answer)
            for number, partition in enumerate(topic.partitions):
                if number % VISITED_AT_ONCE == 0:
                    yield
                key = (group_id, topic.name, partition.partition_index)
                code = errors.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else errors.NONE
                answer.partitions.append(
                    messages.OffsetDeleteResponse.Topics.Partitions(partition_index=key[2], error_code=code)
                )
                if not subscribed and (self.offsets.has(key) or key in self.keys_on_their_way(group_id)):
                    keys[key] = None

        while len(keys) > TOMBSTONES_MAX and not self.closed:
            self._append_tombstones([keys.popitem()[0] for _ in range(TOMBSTONES_MAX)])
            yield
        code = errors.NOT_COORDINATOR if self.closed else group.check_delete_offsets()
        if code:
            reply(messages.OffsetDeleteResponse(error_code=code))
            return

        def deleted(code: int) -> None:
            reply(messages.OffsetDeleteResponse(error_code=code) if code else response)

        if keys:
            self._append_tombstones(keys, deleted)
        else:
            self.after_writes(deleted)

    # -- deleted topics

    def delete_offsets_of_topics(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Delete the offsets of deleted topics, given as (name, topic id), in slices."""
        if self.loading:
            self._deleted_meanwhile.extend(topics)
        elif topics:
            ids: dict[str, set[bytes]] = {}
            for name, topic_id in topics:
                ids.setdefault(name, {NO_TOPIC_ID}).add(topic_id)
            self._coordinator.run(self, self._deletion_steps(list(ids), lambda name, old: old in ids[name]))

    def _is_of_another_topic(self, name: str, topic_id: bytes) -> bool:
        """Return whether the topic of an offset, committed with this name and id, does not exist any more."""
        current = self._coordinator.storage.topic_id(name)
        return current is None or not _same_topic(topic_id, current)

    def _deletion_steps(self, names: list[str], is_gone: Callable[[str, bytes], bool]) -> Iterator[None]:
        """Append tombstones for the offsets of these topics for which `is_gone(topic, topic id of the
        offset)`."""
        wanted = set(names)
        keys = [
            key
            for commits in (self.commits_on_their_way(), self.offsets.open_commits())
            for key, committed in commits
            if key[1] in wanted and is_gone(key[1], committed.topic_id)
        ]
        visited = count = 0
        for name in names:
            for group_id in self.offsets.groups_of_topic(name):
                its = self.offsets.of_group(group_id).get(name, {})
                keys.extend(
                    (group_id, name, index) for index, old in its.items() if is_gone(name, old.topic_id)
                )
                visited += 1
                if len(keys) >= TOMBSTONES_MAX or visited % VISITED_AT_ONCE == 0:
                    count += len(keys)
                    self._append_tombstones(keys)  # before the next turn, in which newer commits may come
                    keys = []
                    yield
        count += len(keys)
        self._append_tombstones(keys)
        if count:
            logger.info("__consumer_offsets-%d: %d offsets of deleted topics are deleted", self.index, count)

    # -- expiry

    def _expire_and_come_again(self) -> None:
        self.expire()
        self._expiry.set(self.config.offsets_retention_check_interval_ms)

    def expire(self) -> None:
        """Delete offsets older than offsets.retention.minutes, and Empty groups without offsets, in
        slices."""
        self._coordinator.run(self, self._expiry_steps())

    def _expiry_steps(self) -> Iterator[None]:
        now_ms = self.now_ms()
        retention_ms = self.config.offsets_retention_minutes * 60_000
        offsets_count = groups_count = 0
        expired: list[Key] = []
        for number, group in enumerate(list(self.groups.values())):
            if self.groups.get(group.group_id) is group:
                keys, is_all = self._expired_of(group, now_ms, retention_ms)
                offsets_count += len(keys)
                if is_all and group.is_empty and not group.pending_join:
                    groups_count += 1
                    self._delete_group(group)  # and its offsets
                else:
                    expired.extend(keys)
            if len(expired) >= TOMBSTONES_MAX or number % VISITED_AT_ONCE == 0:
                self._append_tombstones(expired)  # before the next turn, in which newer commits may come
                expired = []
                yield
        self._append_tombstones(expired)
        if offsets_count or groups_count:
            counts = offsets_count, groups_count
            logger.info("__consumer_offsets-%d: %d offsets and %d groups expired", self.index, *counts)

    def _expired_of(self, group: ClassicGroup, now_ms: int, retention_ms: int) -> tuple[list[Key], bool]:
        """Which offsets of a group have expired, and whether that leaves none (KIP-211).

        Those of a group with members count from their commit, and only for topics that it is not subscribed
        to; those of an Empty group from when it became so; those of simple consumers from their commit."""
        base_ms: int | None = None
        if group.protocol_type is not None:
            if group.is_empty:
                base_ms = group.state_timestamp_ms
            elif not (
                group.uses_consumer_protocol
                and group.subscribed_topics is not None
                and group.state is State.STABLE
            ):
                return [], False
        keys: list[Key] = []
        is_all = not self.offsets.has_transactions(group.group_id)
        busy = self.keys_on_their_way(group.group_id)
        is_all = is_all and not busy
        for topic, partitions in self.offsets.of_group(group.group_id).items():
            if group.is_subscribed_to(topic):
                is_all = False
                continue
            for partition, committed in partitions.items():
                key = (group.group_id, topic, partition)
                old = is_expired(committed, base_ms, now_ms, retention_ms)
                if old and key not in busy and not self.offsets.is_unstable(key):
                    keys.append(key)
                else:
                    is_all = False
        return keys, is_all


def _same_topic(committed: bytes, asked: bytes) -> bool:
    """Return whether two topic ids match. An unknown id matches every topic."""
    return committed == asked or NO_TOPIC_ID in (committed, asked)


def commit_error(request: Any, code: int) -> Generator[None, None, Any]:
    """Return the response with the same code for every partition, in steps."""
    response = messages.OffsetCommitResponse()
    for topic in request.topics:
        answer = messages.OffsetCommitResponse.Topics(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        for number, partition in enumerate(topic.partitions):
            if number % VISITED_AT_ONCE == 0:
                yield
            answer.partitions.append(
                messages.OffsetCommitResponse.Topics.Partitions(
                    partition_index=partition.partition_index, error_code=code
                )
            )
    return response
