"""The classic group: its members agree on a protocol, one of them leads and assigns, and all sync.

             join                    all joined, or timeout               leader's sync is durable
    Empty ---------> PreparingRebalance -----------> CompletingRebalance -----------------------> Stable
      ^                |     ^      ^                        |                                      |
      |  nobody came   |     |      +-- join, leave, expiry -+                                      |
      +----------------+     +---------------- join with news, leave, expiry -----------------------+

    Dead: the coordinator has dropped the group (unloaded, or its first record could not be written).

- Rule 1: All code that changes a group is in this file. The clock, timers, member ids and the log come
  through `Host`.
- Rule 2: A held reply (of a parked JoinGroup or SyncGroup) is answered exactly once. It belongs to its
  member. Code that removes the member, or parks a newer request of it, answers the older one.
- Rule 3: An assignment is sent only after its record is durable. If the group changes meanwhile, the change
  wins.

Behaviour and error codes are those of Kafka 4.3's GroupMetadataManager and ClassicGroup. There are two
differences, both where Kafka never answers a request and so blocks its connection: a request that a newer
request of the same member replaces gets REBALANCE_IN_PROGRESS, and a member that is removed while it waits
for an assignment gets UNKNOWN_MEMBER_ID. KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member
ids), KIP-559 (protocol check)."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Any, Protocol

from kafkad.coordinator.deadline import Deadline, Handle
from kafkad.coordinator.member import Member, Reply, first_in_java
from kafkad.protocol import codec, errors, messages, strings
from kafkad.protocol.errors import Malformed

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL = "consumer"
NO_MEMBER = ""
NO_LEADER = ""

# A new member cannot heartbeat yet, and its client may be gone while its join is parked.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
POSTPONED_MS_MIN = 1_000  # between two looks whether anybody has joined; a rebalance timeout may be 1 ms
LEAVE_AT_ONCE = 50  # each answers what the member waits for: 1 ms
NAMED_MAX = 5  # members in a line of the log
PROTOCOLS_MAX = 1_000  # of a member: each is compared with those of the others

REQUIRES_MEMBER_ID_FROM = 4  # JoinGroup: KIP-394
SKIPS_ASSIGNMENT_FROM = 9  # JoinGroup: the answer tells a returning static leader that it is the leader


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


COMES_FROM: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}

HEARTBEAT_ANSWERS: dict[State, int] = {
    State.EMPTY: errors.UNKNOWN_MEMBER_ID,
    State.PREPARING_REBALANCE: errors.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: errors.NONE,  # consumers send heartbeats before their sync is answered
    State.STABLE: errors.NONE,
    State.DEAD: errors.COORDINATOR_NOT_AVAILABLE,
}


class Host(Protocol):
    """The environment of a group."""

    @property
    def config(self) -> Any: ...

    @property
    def closed(self) -> bool:
        """Return whether another broker coordinates the group by now. Its timers then do nothing."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def call_later(self, delay_ms: int, function: Callable[[], object]) -> Handle: ...

    def new_uuid(self) -> str: ...

    def metadata_bytes_max(self) -> int:
        """Return the limit of the metadata of all members of a group, in all their protocols."""

    def store(
        self, group: "ClassicGroup", assignments: dict[str, bytes], done: Callable[[int], object]
    ) -> None:
        """Append the current state of the group with these assignments. Call `done(error code)` once it is
        durable."""


class ClassicGroup:
    """The state of one group. Methods with names of requests handle these; timers call `expire_*`."""

    def __init__(
        self,
        group_id: str,
        host: Host,
        *,
        state: State = State.EMPTY,
        generation: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader: str | None = None,
        state_timestamp_ms: int | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = State.DEAD
        self.state_timestamp_ms = state_timestamp_ms
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader = leader
        self.members: dict[str, Member] = OrderedDict()  # its first one is found at once, whoever left
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_join: set[str] = set()  # members that got their id (KIP-394) and must join again
        self.pending_sync: set[str] = set()
        self.subscribed_topics: set[str] | None = None  # None: unknown
        self._host = host
        self._joining_count = 0  # members whose JoinGroup is parked
        self._metadata_bytes = 0  # metadata of all members
        self._support: dict[str, int] = {}  # protocol -> number of members that support it
        self._new_member_added = False  # during the initial delay, which is extended then
        self._sessions: dict[str, Deadline] = {}
        self._join_timer = Deadline(host, self.expire_join)
        self._sync_timer = Deadline(host, self.expire_pending_sync)
        self._delay_ms = 0  # initial rebalance: the running part of the delay, and the rest that may be added
        self._delay_left_ms = 0

    # -- queries

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def joining_count(self) -> int:
        return self._joining_count

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the group is subscribed to a topic. If its topics are unknown, return True."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def all_joined(self) -> bool:
        return len(self.members) == self._joining_count and not self.pending_join

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> int:
        """Return NONE, or the error code for a request of this member."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return errors.UNKNOWN_MEMBER_ID
            if current != member_id:
                return errors.FENCED_INSTANCE_ID
        return errors.NONE if member_id in self.members else errors.UNKNOWN_MEMBER_ID

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> int:
        """Return NONE, or the error code for a commit of this member. Generation -1 without a member is a
        simple consumer: it may commit only while the group is Empty, or in a transaction (older clients name
        no member)."""
        if self.state is State.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return errors.NONE
        if generation >= 0 or member_id or instance_id is not None:
            code = self.check_member(member_id, instance_id)
            if code:
                return code
            if generation != self.generation:
                return errors.ILLEGAL_GENERATION
        elif self.state is not State.EMPTY and not transactional:
            return errors.UNKNOWN_MEMBER_ID
        if self.state is State.COMPLETING_REBALANCE and not transactional:
            return errors.REBALANCE_IN_PROGRESS
        return errors.NONE

    def touch(self, member_id: str) -> None:
        """Keep the session alive after a commit, as after a heartbeat."""
        if self.state in (State.STABLE, State.PREPARING_REBALANCE):
            self._extend_session(self.members[member_id])

    def check_delete(self) -> int:
        if self.state is State.DEAD:
            return errors.GROUP_ID_NOT_FOUND
        return errors.NONE if self.is_empty else errors.NON_EMPTY_GROUP

    def check_delete_offsets(self) -> int:
        """Return NONE, or the error code for deleting offsets. In a consumer group that is in use, only
        offsets of topics without a subscription can be deleted."""
        if self.state is State.DEAD:
            return errors.GROUP_ID_NOT_FOUND
        return errors.NONE if self.is_empty or self.uses_consumer_protocol else errors.NON_EMPTY_GROUP

    def describe(self) -> Any:
        stable = self.state is State.STABLE
        return messages.DescribeGroupsResponse.Groups(
            group_id=self.group_id,
            group_state=str(self.state),
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if stable else "",
            members=[
                messages.DescribeGroupsResponse.Groups.Members(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(self.protocol_name) if stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    # -- JoinGroup

    def join(self, request: Any, version: int, client_id: str, client_host: str, reply: Reply) -> None:
        member_id = request.member_id
        if len(request.protocols) > PROTOCOLS_MAX:
            reply(join_error(errors.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not self._has_room_for_metadata(request):
            reply(join_error(errors.GROUP_MAX_SIZE_REACHED, member_id))
        elif not self._accepts(member_id):
            self.remove(member_id)
            reply(join_error(errors.GROUP_MAX_SIZE_REACHED, NO_MEMBER))
            self._maybe_complete_join()  # the others may have waited only for this member
        elif self.state is State.DEAD:
            reply(join_error(errors.COORDINATOR_NOT_AVAILABLE, member_id))
        elif not self._supports(request.protocol_type, {protocol.name for protocol in request.protocols}):
            reply(join_error(errors.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif member_id == NO_MEMBER:
            self._join_new(request, version, client_id, client_host, reply)
        elif member_id in self.pending_join:
            if request.group_instance_id is not None:  # only dynamic members must join again with their id
                reply(join_error(errors.UNKNOWN_SERVER_ERROR, member_id))
                return
            self._add_joining(member_id, request, client_id, client_host, reply)
        else:
            code = self.check_member(member_id, request.group_instance_id)
            if code:
                reply(join_error(code, member_id))
            else:
                self._join_again(self.members[member_id], request, reply)

    def _join_new(self, request: Any, version: int, client_id: str, client_host: str, reply: Reply) -> None:
        instance_id = request.group_instance_id
        member_id = f"{client_id if instance_id is None else instance_id}-{self._host.new_uuid()}"
        if not strings.fits(member_id):
            reply(join_error(errors.INVALID_REQUEST, NO_MEMBER))
        elif instance_id is not None:
            old_member_id = self.static_members.get(instance_id)
            if old_member_id is None:
                self._add_joining(member_id, request, client_id, client_host, reply)
            else:
                self._replace_joining(old_member_id, member_id, request, version, reply)
        elif version >= REQUIRES_MEMBER_ID_FROM:
            self.pending_join.add(member_id)
            self._session(member_id).set(request.session_timeout_ms)
            reply(join_error(errors.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_joining(member_id, request, client_id, client_host, reply)

    def _join_again(self, member: Member, request: Any, reply: Reply) -> None:
        """Handle a join of a member of the group: begin a rebalance if it has changes or is the leader,
        otherwise repeat the answer that it missed."""
        same = member.protocols == _protocols(request)
        leads = self.is_leader(member.member_id)
        if self.state is State.EMPTY:
            reply(join_error(errors.UNKNOWN_MEMBER_ID, member.member_id))
        elif self.state is State.COMPLETING_REBALANCE and same:
            reply(self._joined(member, with_members=leads))  # the answer to its first join was lost
        elif self.state is State.STABLE and same and not leads:
            reply(self._joined(member, with_members=False))
        else:
            # In Stable, a leader that joins wants a new assignment, for reasons of its own.
            self._update(member, request, reply)
            self._prepare_or_complete(f"member {member.member_id} joins again: {_reason(request)}")

    def _add_joining(
        self, member_id: str, request: Any, client_id: str, client_host: str, reply: Reply
    ) -> None:
        member = Member(
            member_id,
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=_protocols(request),
        )
        member.is_new = True
        if self.state is State.PREPARING_REBALANCE and self.previous_state is State.EMPTY:
            self._new_member_added = True
        self.add(member, reply)
        self._session(member_id).set(NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(f"new member {member_id}: {_reason(request)}")

    def _replace_joining(self, old_id: str, new_id: str, request: Any, version: int, reply: Reply) -> None:
        """Handle a static member that returns with a new id (KIP-345): in Stable without a rebalance, if
        possible."""
        leader_before = self.leader
        member = self._replace_static(old_id, new_id)
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._extend_session(member)
        self._update(member, request, reply)

        if self.state is State.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id already; the new one would get nothing.
            self._prepare_rebalance(f"static member {member.instance_id} came back as {new_id}")
        elif self.state is not State.STABLE:
            self._maybe_complete_join()
        elif self._select_protocol() != self.protocol_name:
            self._prepare_or_complete(f"static member {member.instance_id} changes the protocol")
        else:
            assignments = {other.member_id: other.assignment for other in self.members.values()}

            def stored(code: int) -> None:
                if self.members.get(new_id) is not member or member.join_reply is not reply:
                    return  # it was replaced again, has left, or was answered by a rebalance
                if code:
                    logger.warning("group %s: static member %s could not be stored", self.group_id, new_id)
                    self._undo_replacement(member, old_id, old)
                    failed = self._joined(member, with_members=False)
                    failed.error_code, failed.member_id, failed.leader = (
                        code,
                        NO_MEMBER,
                        leader_before or NO_LEADER,
                    )
                    reply(failed)
                elif self.state is State.STABLE:
                    response = self._joined(member, with_members=False)
                    if version >= SKIPS_ASSIGNMENT_FROM and self.is_leader(new_id):
                        response = self._joined(member, with_members=True)
                        response.skip_assignment = True
                    elif version < SKIPS_ASSIGNMENT_FROM:
                        response.leader = leader_before or NO_LEADER  # so that it does not assign again
                    self._answer_join(member, response)

            self._host.store(self, assignments, stored)

    def _undo_replacement(self, member: Member, old_id: str, old: tuple[Any, int, int]) -> None:
        self._park_join(member, None)
        self._count_support(member, -1)
        member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = old
        self._count_support(member, +1)
        self._extend_session(self._replace_static(member.member_id, old_id))

    def _accepts(self, member_id: str) -> bool:
        """Return whether the group has room (group.max.size). While it prepares a rebalance, only members
        that have joined count, so the last ones are refused."""
        size_max = self._host.config.group_max_size
        if self.state in (State.EMPTY, State.DEAD):
            return True
        if self.state is State.PREPARING_REBALANCE:
            member = self.members.get(member_id)
            return (member is not None and member.join_reply is not None) or self._joining_count < size_max
        return member_id in self.members or len(self.members) < size_max

    def _has_room_for_metadata(self, request: Any) -> bool:
        """Return whether the metadata fits. (Kafka accepts any amount, and refuses the group's record later,
        if it is too large.)"""
        member_id = request.member_id or self.static_members.get(request.group_instance_id, NO_MEMBER)
        member = self.members.get(member_id)
        size = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
        others = self._metadata_bytes - (0 if member is None else member.metadata_bytes())
        return others + size <= self._host.metadata_bytes_max()

    # -- SyncGroup

    def sync(self, request: Any, reply: Reply) -> None:
        code = self._check_sync(request)
        if code:
            reply(messages.SyncGroupResponse(error_code=code))
            return
        member = self.members[request.member_id]
        self._synced(member.member_id)
        if self.state is State.STABLE:
            reply(self._assigned(member))
            return
        assert self.state is State.COMPLETING_REBALANCE
        self._answer_sync(member, messages.SyncGroupResponse(error_code=errors.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if self.is_leader(member.member_id):
            # there may be very many that are of no member
            members = self.members
            named = (item for item in request.assignments if item.member_id in members)
            self._assign({item.member_id: bytes(item.assignment) for item in named})

    def _check_sync(self, request: Any) -> int:
        if self.state is State.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if self.state is State.EMPTY:
            return errors.UNKNOWN_MEMBER_ID
        code = self.check_member(request.member_id, request.group_instance_id)
        if code:
            return code
        if request.generation_id != self.generation:
            return errors.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != self.protocol_name:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING_REBALANCE:
            return errors.REBALANCE_IN_PROGRESS
        return errors.NONE

    def _assign(self, given: dict[str, bytes]) -> None:
        """Store the leader's assignment. Members that are missing in it get an empty one."""
        assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
        generation = self.generation

        def stored(code: int) -> None:
            if self.state is not State.COMPLETING_REBALANCE or self.generation != generation:
                return  # a rebalance began meanwhile and answered all members
            if code:
                self._reset_assignments(code)
                self._prepare_or_complete(f"the assignment could not be stored (error {code})")
                return
            for member in self.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            self._move_to(State.STABLE)
            for member in list(self.members.values()):
                if self._answer_sync(member, self._assigned(member)):
                    self._extend_session(member)

        self._host.store(self, assignments, stored)

    def _reset_assignments(self, code: int) -> None:
        for member in self.members.values():
            member.assignment = b""
        for member in list(self.members.values()):
            if self._answer_sync(member, messages.SyncGroupResponse(error_code=code)):
                self._extend_session(member)

    def _synced(self, member_id: str) -> None:
        self.pending_sync.discard(member_id)
        if not self.pending_sync:
            self._sync_timer.cancel()

    # -- Heartbeat, LeaveGroup

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, *, lives: bool = True
    ) -> int:
        if self.state is State.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        code = self.check_member(member_id, instance_id)
        if code:
            return code
        if generation != self.generation:
            return errors.ILLEGAL_GENERATION
        if self.state is not State.EMPTY and lives:
            self._extend_session(self.members[member_id])
        return HEARTBEAT_ANSWERS[self.state]

    def leave_steps(self, identities: Sequence[tuple[str, str | None]]) -> Generator[None, None, list[int]]:
        """Remove (member id, instance id) pairs from the group, some in each step, after which the rest of
        the group goes on. Return an error code for each; fewer, if the group is dropped meanwhile.

        An administrator removes a static member by its instance id only."""
        codes: list[int] = []
        left: list[str] = []
        while len(codes) < len(identities) and not self._host.closed:
            if codes:
                yield
            before = len(left)
            for member_id, instance_id in identities[len(codes) : len(codes) + LEAVE_AT_ONCE]:
                codes.append(self._leave_one(member_id, instance_id, left))
            if len(left) == before:
                continue
            if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
                self._prepare_or_complete("members left")
            elif self.state is State.PREPARING_REBALANCE:
                self._maybe_complete_join()
        if left:
            logger.info("group %s: left: %s", self.group_id, _some(left))
        return codes

    def _leave_one(self, member_id: str, instance_id: str | None, left: list[str]) -> int:
        if member_id == NO_MEMBER:
            known = None if instance_id is None else self.static_members.get(instance_id)
            if known is None:
                return errors.UNKNOWN_MEMBER_ID
            member_id = known
        elif member_id not in self.pending_join:
            code = self.check_member(member_id, instance_id)
            if code:
                return code
        left.append(member_id)
        self.remove(member_id)
        return errors.NONE

    # -- the rebalance

    def _prepare_or_complete(self, reason: str) -> None:
        if self.state in COMES_FROM[State.PREPARING_REBALANCE]:
            self._prepare_rebalance(reason)
        else:
            self._maybe_complete_join()

    def _prepare_rebalance(self, reason: str) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            self._reset_assignments(errors.REBALANCE_IN_PROGRESS)
        self.pending_sync.clear()
        self._sync_timer.cancel()
        initial = self.is_empty
        self._move_to(State.PREPARING_REBALANCE)
        logger.info("group %s: rebalance after generation %d: %s", self.group_id, self.generation, reason)
        if initial:  # more members of a new group will probably join soon (KIP-134)
            self._delay_ms = self._host.config.group_initial_rebalance_delay_ms
            self._delay_left_ms = max(self.rebalance_timeout_ms() - self._delay_ms, 0)
            self._join_timer.set(self._delay_ms)
        elif self.all_joined():
            self.complete_join()
        else:
            self._join_timer.set(self.rebalance_timeout_ms())

    def _maybe_complete_join(self) -> None:
        """Complete the join phase if all have joined. The initial rebalance waits for its delay even then."""
        preparing = self.state is State.PREPARING_REBALANCE and self.previous_state is not State.EMPTY
        if preparing and self.all_joined():
            self.complete_join()

    def _extend_initial_delay(self) -> bool:
        if self.previous_state is not State.EMPTY or not self._new_member_added or not self._delay_left_ms:
            return False
        self._new_member_added = False
        slice_ms = min(self._host.config.group_initial_rebalance_delay_ms, self._delay_left_ms)
        self._delay_left_ms = max(self._delay_left_ms - self._delay_ms, 0)
        self._delay_ms = slice_ms
        self._join_timer.set(slice_ms)
        return True

    def complete_join(self) -> None:
        """Complete the join phase when all have joined or the time is up. Remove members that did not join
        (static members stay until their sessions end)."""
        self._join_timer.cancel()
        if self.state is not State.PREPARING_REBALANCE:
            return
        late = [m.member_id for m in self.members.values() if m.join_reply is None and m.instance_id is None]
        for member_id in late:
            self.remove(member_id)
        if late:
            logger.info("group %s: members that did not join again are out: %s", self.group_id, _some(late))

        if self.members and not self._elect_joined_leader():
            logger.warning("group %s: nobody joined in time, waiting for sessions to end", self.group_id)
            self._join_timer.set(max(self.rebalance_timeout_ms(), POSTPONED_MS_MIN))
            return

        self.generation += 1
        self.pending_sync.clear()
        self._new_member_added = False
        if not self.members:
            self.protocol_name = None
            self.subscribed_topics = self._subscribed_topics()
            self._move_to(State.EMPTY)
            logger.info("group %s: generation %d is empty", self.group_id, self.generation)
            self._host.store(self, {}, self._stored_empty)
            return

        self.protocol_name = self._select_protocol()
        self.subscribed_topics = self._subscribed_topics()
        self._move_to(State.COMPLETING_REBALANCE)
        logger.info(
            "group %s: generation %d has %d members", self.group_id, self.generation, len(self.members)
        )
        self._sync_timer.set(self.rebalance_timeout_ms())
        for member in self.members.values():
            self._extend_session(member)
            member.is_new = False
            self.pending_sync.add(member.member_id)
        for member in list(self.members.values()):
            self._answer_join(member, self._joined(member, with_members=self.is_leader(member.member_id)))

    def _stored_empty(self, code: int) -> None:
        # Without the record, a restart brings back the previous generation, and its members time out.
        if code:
            logger.warning(
                "group %s: that it is empty could not be stored (%s)", self.group_id, errors.KafkaError(code)
            )

    def _elect_joined_leader(self) -> bool:
        """If the leader did not join, choose a member that did. Return False if none did."""
        leader = self.members.get(self.leader or NO_MEMBER)
        if leader is not None and leader.join_reply is not None:
            return True
        for member in self.members.values():
            if member.join_reply is not None:
                self.leader = member.member_id
                return True
        return False

    # -- timers

    def expire_join(self) -> None:
        if not self._host.closed and not self._extend_initial_delay():
            self.complete_join()

    def expire_session(self, member_id: str) -> None:
        if self._host.closed:
            return
        if member_id in self.pending_join:
            logger.info("group %s: %s never came back with its id", self.group_id, member_id)
            self.remove(member_id)
        else:
            member = self.members.get(member_id)
            if member is None or member.needs_no_heartbeat():
                return
            logger.info("group %s: the session of member %s ended", self.group_id, member_id)
            self.remove(member_id)
            if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
                self._prepare_or_complete(f"the session of member {member_id} ended")
                return
        if self.state is State.PREPARING_REBALANCE and self.all_joined():
            self.complete_join()

    def expire_pending_sync(self) -> None:
        if self._host.closed:
            return
        if self.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not self.pending_sync:
            return
        late = sorted(self.pending_sync)
        for member_id in late:
            self.remove(member_id)
        self._prepare_rebalance(f"no SyncGroup came from {_some(late)}")

    # -- membership

    def add(self, member: Member, reply: Reply | None = None) -> None:
        assert self._supports(member.protocol_type, member.protocol_names()) or not self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_support(member, +1)
        self._park_join(member, reply)
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending one, and answer its parked requests."""
        session = self._sessions.pop(member_id, None)
        if session is not None:
            session.cancel()
        self.pending_join.discard(member_id)
        self._synced(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count_support(member, -1)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._answer_join(member, join_error(errors.UNKNOWN_MEMBER_ID, NO_MEMBER))
        self._answer_sync(member, messages.SyncGroupResponse(error_code=errors.UNKNOWN_MEMBER_ID))

    def _update(self, member: Member, request: Any, reply: Reply) -> None:
        self._count_support(member, -1)
        member.protocols = _protocols(request)
        self._count_support(member, +1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self._answer_join(member, join_error(errors.REBALANCE_IN_PROGRESS, member.member_id))
        self._park_join(member, reply)

    def _replace_static(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id. Requests with the old id are fenced."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None
        self._answer_join(member, join_error(errors.FENCED_INSTANCE_ID, old_id))
        self._answer_sync(member, messages.SyncGroupResponse(error_code=errors.FENCED_INSTANCE_ID))
        session = self._sessions.pop(old_id, None)
        if session is not None:
            session.cancel()
        self._synced(old_id)
        member.member_id = new_id
        member.is_new = False
        self.members[new_id] = member
        self.static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def close(self, code: int) -> None:
        """Drop the group: answer every parked request with `code`, and cancel all timers."""
        self._move_to(State.DEAD)
        self.end_timers()
        for member in list(self.members.values()):
            self._answer_join(member, join_error(code, member.member_id))
            self._answer_sync(member, messages.SyncGroupResponse(error_code=code))

    def end_timers(self) -> None:
        """Cancel all timers for good. A group that is dropped needs it: see Deadline.end."""
        self.cancel_timers()
        self._join_timer.end()
        self._sync_timer.end()

    def cancel_timers(self) -> None:
        self._join_timer.cancel()
        self._sync_timer.cancel()
        for session in self._sessions.values():
            session.cancel()
        self._sessions.clear()
        self.pending_join.clear()

    def read_subscriptions(self) -> None:
        self.subscribed_topics = self._subscribed_topics()

    def loaded(self) -> None:
        """Start the sessions of a group that was loaded from the log. Its members have one session timeout to
        return. Some may have returned already."""
        for member in self.members.values():
            if member.member_id not in self._sessions:
                self._extend_session(member)
        if self.state is State.STABLE and len(self.members) > self._host.config.group_max_size:
            self._prepare_rebalance("the group is larger than group.max.size")

    # -- protocols

    def _supports(self, protocol_type: str, names: set[str]) -> bool:
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        size = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._support.get(name, 0) == size for name in names
        )

    def _select_protocol(self) -> str:
        """Let each member vote for its first choice among the protocols that all support. `first_in_java`
        breaks a tie."""
        size = len(self.members)
        candidates = {name for name, count in self._support.items() if count == size}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        most = max(votes.values())
        return first_in_java([name for name, count in votes.items() if count == most], len(votes))

    def _count_support(self, member: Member, step: int) -> None:
        self._metadata_bytes += step * member.metadata_bytes()
        for name in member.protocol_names():
            self._support[name] = self._support.get(name, 0) + step
            if not self._support[name]:
                del self._support[name]

    def _subscribed_topics(self) -> set[str] | None:
        """Return the topics that consumers subscribe to, from their metadata, or None if it cannot be read.
        Other protocols are opaque."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return set()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # A version, then the fields of version 0; every later version begins with these.
                subscription, _ = codec.decode(
                    messages.ConsumerProtocolSubscription, 0, member.metadata(self.protocol_name), 2
                )
                topics.update(subscription.topics)
        except Malformed as trouble:
            logger.warning("group %s: a member's subscription cannot be read: %s", self.group_id, trouble)
            return None
        return topics

    # -- small parts

    def _move_to(self, state: State) -> None:
        assert self.state in COMES_FROM[state], f"{self.group_id}: from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = self._host.now_ms()

    def _session(self, member_id: str) -> Deadline:
        session = self._sessions.get(member_id)
        if session is None:
            session = self._sessions[member_id] = Deadline(self._host, lambda: self.expire_session(member_id))
        return session

    def _extend_session(self, member: Member) -> None:
        self._session(member.member_id).set(member.session_timeout_ms)

    def _park_join(self, member: Member, reply: Reply | None) -> None:
        self._joining_count += (reply is not None) - (member.join_reply is not None)
        member.join_reply = reply

    def _answer_join(self, member: Member, response: Any) -> None:
        reply = member.join_reply
        if reply is not None:
            self._park_join(member, None)
            reply(response)

    def _answer_sync(self, member: Member, response: Any) -> bool:
        reply, member.sync_reply = member.sync_reply, None
        if reply is None:
            return False
        reply(response)
        return True

    def _joined(self, member: Member, *, with_members: bool) -> Any:
        response = messages.JoinGroupResponse(
            error_code=errors.NONE,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or NO_LEADER,
            skip_assignment=False,
            member_id=member.member_id,
        )
        if with_members:
            response.members = [
                messages.JoinGroupResponse.Members(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol_name),
                )
                for other in self.members.values()
            ]
        return response

    def _assigned(self, member: Member) -> Any:
        return messages.SyncGroupResponse(
            error_code=errors.NONE,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )


def _protocols(request: Any) -> list[tuple[str, bytes]]:
    return [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]


def _reason(request: Any) -> str:
    return request.reason or "no reason given"


def _some(member_ids: Sequence[str]) -> str:
    """Return the first ids, and how many more there are."""
    more = len(member_ids) - NAMED_MAX
    return ", ".join(member_ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def join_error(code: int, member_id: str) -> Any:
    return messages.JoinGroupResponse(
        error_code=code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None,
        leader=NO_LEADER,
        member_id=member_id,
    )
