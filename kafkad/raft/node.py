"""A node of a KRaft quorum: a voter, which votes and may lead, or an observer, which only follows.

    poll       does what is due (asks for votes, announces the leader, fetches); returns when to call it again
    handle     answers requests of others: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot
    response   takes the answer to a request that `send` sent
    append     appends a batch, as leader; it is committed when a majority has flushed it
    apply      replays committed records into the next `image`, step by step (observer)

The roles and the rules of votes are in elections, a leader's knowledge of the others in leadership, and its
answers to Fetches in served_fetches. There is no I/O here: the log, the files, the clock, random numbers and
`send` are arguments, so a quorum can run in one process from one seed (tests/sim). Kafka: KafkaRaftClient.

Rule: quorum-state is fsynced before anything that depends on it is sent: a vote, or a new epoch.
Rule: a voter flushes fetched records before its next Fetch, because the leader counts its fetch offset.
Rule: our own end counts for the majority when it is flushed, not when it is written.
Rule: a leader commits nothing before a record of its own epoch."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.records import read_batches
from kafkad.raft import quorum_messages as wire
from kafkad.raft.control_records import Voter, leader_change, voters_record
from kafkad.raft.election_state import NOBODY, ElectionState
from kafkad.raft.elections import (
    UNKNOWN_DIRECTORY,
    Role,
    Tally,
    Timings,
    VoteKey,
    dead_leader_ms,
    may_grant,
)
from kafkad.raft.leadership import Leadership
from kafkad.raft.metadata_replica import UnusableMetadata
from kafkad.raft.observer import Leader, Observer, explained
from kafkad.raft.quorum_messages import InFlightRequest, LeaderAndEpoch, Reply
from kafkad.raft.reconfigure import CHANGES, Update, VoterChanges, batch_of, refused
from kafkad.raft.served_fetches import ServedFetches
from kafkad.raft.voters import Entry, VoterHistory, Voters, key_of
from kafkad.seldom import Seldom

logger = logging.getLogger(__name__)

NEVER: Final = 1 << 62
REFUSALS: Final = 2

Send = Callable[[int, str, int, Any, int], Any]  # node id, host, port, request, token


class VoterAddress(NamedTuple):
    """The address of a voter. Its directory id is unknown with controller.quorum.voters (kraft.version 0)."""

    directory_id: bytes
    host: str
    port: int


class RaftNode(Observer):
    """`on_role` is called when role, epoch or leader change; `wake` requests a `poll` soon."""

    def __init__(
        self,
        *,
        random: Any,
        send: Send,
        timings: Timings | None = None,
        endpoints: Mapping[str, tuple[str, int]] | None = None,
        bootstrap: Sequence[tuple[str, int]] = (),
        auto_join: bool = False,
        wake: Callable[[], Any] = lambda: None,
        **replica: Any,
    ) -> None:
        """`endpoints`: our controller listeners, as advertised. `bootstrap`: addresses to ask for the leader,
        besides the voters. `auto_join`: become a voter. `replica`: arguments of Observer."""
        super().__init__(**replica)
        self._seldom = Seldom()  # limits log lines
        self.role = Role.UNATTACHED
        self.on_role: Callable[[], Any] = lambda: None
        self._random = random
        self._send = send
        self._timings = timings or Timings()
        self._endpoints = dict(endpoints or {})
        self._bootstrap = {-2 - at: each for at, each in enumerate(bootstrap)}
        self.history = VoterHistory()
        self._voters_of: Entry | None = None  # what `_voters_by_id` was made from
        self._voters_by_id: dict[int, VoterAddress] = {}
        self._changes = VoterChanges(self)
        self._auto_join = auto_join
        self._change_ms = 0  # when to ask the leader for the next change of the voters
        self._wake = wake
        self._leader_id = NOBODY  # known even if its address is not
        self._voted: VoteKey | None = None
        self._tally: Tally | None = None
        self._leadership: Leadership | None = None
        self._successors: list[int] = []  # for EndQuorumEpoch, after we resigned
        self._unwritable = ""  # why the last append failed, if it was the disk; we resign
        self._acknowledged: set[int] = set()  # voters that answered EndQuorumEpoch
        self._has_fetched = False  # from the leader of this epoch, and it has not died since
        self._refusals = 0  # connections that the leader refused, in a row
        self._deadline_ms = NEVER  # of the election, or of the followed leader
        self._in_flight: dict[int, InFlightRequest] = {}
        self._token = 0
        self._backoff_ms: dict[int, int] = {}  # end of the pause, by node
        self._next_voter = 0  # the next one to ask for the leader
        self._fetches = ServedFetches(self)
        self._flushing = False

    # -- voters --------------------------------------------------------------------------------------------

    @property
    def voters(self) -> dict[int, VoterAddress]:
        """The voters by id: from the log, or from controller.quorum.voters. Do not change it."""
        if self._voters_of is not (newest := self.history.newest):
            self._voters_of, self._voters_by_id = newest, self._by_id(newest.voters)
        return self._voters_by_id

    def _by_id(self, voters: Voters) -> dict[int, VoterAddress]:
        if voters:
            return {voter.voter_id: VoterAddress(voter.directory_id, *self._at(voter)) for voter in voters}
        return {each: VoterAddress(UNKNOWN_DIRECTORY, *at) for each, at in self._static_voters.items()}

    def _at(self, voter: Voter) -> tuple[str, int]:
        return voter.endpoints.get(self.listener) or next(iter(voter.endpoints.values()), ("", 0))

    @property
    def is_voter(self) -> bool:
        return self._is_voter(self.node_id, self.directory_id)

    def _is_voter(self, node_id: int, directory_id: bytes) -> bool:
        address = self.voters.get(node_id)
        return address is not None and address.directory_id in (UNKNOWN_DIRECTORY, directory_id)

    @property
    def _may_stand(self) -> bool:
        """Whether this node may become a candidate. A removed voter may, until its removal is committed: it
        may be the only node with the newest records, so that no other can be elected (Ongaro's thesis,
        4.2.2)."""
        key = (self.node_id, self.directory_id)
        return self.is_voter or self.history.may_vote(key, self.high_watermark)

    @property
    def _others(self) -> list[int]:
        return sorted(voter for voter in self.voters if voter != self.node_id)

    # -- start ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log like an Observer, and take the role from quorum-state. Raises UnusableMetadata."""
        super().open()
        self.history.begin(self.image.offset, self._kraft_version, self._voters)
        self._note_voters(self.image.offset + 1)
        election = self._election()
        if self._forgot_votes and self._may_stand and self._others:
            raise UnusableMetadata(
                f"{self._log.directory}/quorum-state is damaged. Without its last vote, this controller could"
                " vote twice in an epoch, and two controllers could lead. Restore the file; or, if the other"
                " controllers have a leader, delete it"
            )
        if election.leader_epoch == self.epoch:
            self._leader_id = election.leader_id
            if election.voted_id != NOBODY:
                self._voted = (election.voted_id, election.voted_directory_id)
        at = self.voters.get(self._leader_id)
        if self._leader_id == self.node_id:
            self._resign(self._others)
        elif self._voted is not None and self._voted[0] == self.node_id and self._may_stand:
            self._stand(Role.CANDIDATE)
        elif at is not None:
            self.leader = Leader(self._leader_id, at.host, at.port)
            self.role, self._deadline_ms = Role.FOLLOWER, self._now() + self._timings.fetch_ms
        else:
            self._deadline_ms = self._election_deadline()
        if self.is_voter and not self._others and self.role is not Role.CANDIDATE:
            self._stand(Role.PROSPECTIVE)  # the only voter
        self._win_if_won()

    def _now(self) -> int:
        return int(self._clock.monotonic_ms())

    def _election_deadline(self) -> int:
        wait_ms = self._timings.election_ms
        return self._now() + wait_ms + int(self._random.randrange(wait_ms))

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leadership(self) -> Leadership | None:
        """The state of the other nodes, while we lead; otherwise None."""
        return self._leadership

    @property
    def high_watermark_in_epoch(self) -> int:
        """The high watermark, if a record of the epoch that we lead is committed; otherwise -1."""
        return self._leadership.high_watermark if self._leadership is not None else -1

    @property
    def all_know_of_the_end(self) -> bool:
        """Whether every other voter has answered our EndQuorumEpoch."""
        return self._acknowledged >= set(self._others)

    @property
    def listener(self) -> str:
        """The name of the quorum's listener."""
        return next(iter(self._endpoints), "CONTROLLER")

    @property
    def kraft_version(self) -> int:
        return self.history.newest.kraft_version

    @property
    def voter_set(self) -> tuple[Any, ...]:
        """The voters in the log (kraft.version 1), with all endpoints; empty with
        controller.quorum.voters."""
        return self.history.newest.voters

    @property
    def is_broken(self) -> bool:
        return bool(self._broken)

    # -- roles ---------------------------------------------------------------------------------------------

    def _persist(
        self, epoch: int, leader_id: int = NOBODY, voted: VoteKey | None = None, *, vote: bool = True
    ) -> None:
        """Write and fsync quorum-state, then change the state in memory."""
        election = ElectionState(
            leader_epoch=epoch,
            leader_id=leader_id,
            voted_id=voted[0] if voted is not None else NOBODY,
            voted_directory_id=voted[1] if voted is not None else UNKNOWN_DIRECTORY,
            voters=tuple(self.voters),
        )
        self._files.write_quorum_state(election.encode(self.kraft_version))
        if epoch != self.epoch or leader_id != self._leader_id:
            self._has_fetched, self._refusals = False, 0
        self.epoch, self._leader_id, self._voted = epoch, leader_id, voted

    def _change(self, role: Role, deadline_ms: int) -> None:
        """Change the role. Requests in flight and waiting Fetches belong to the previous role and end."""
        was_leader = self.role is Role.LEADER
        self.role, self._deadline_ms = role, deadline_ms
        self._in_flight.clear()
        self._backoff_ms.clear()
        self._fetching = None
        self._unwritable = ""
        if role is not Role.LEADER:
            self._leadership = None
            self._changes.lost()
        if role not in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._tally = None
        if was_leader and role is not Role.LEADER:
            self._fetches.refuse(errors.NOT_LEADER_OR_FOLLOWER)
        if self._seldom.due((role, self.epoch, self._leader_id), self._now()):  # elections may repeat
            logger.info("node %d of the metadata quorum is %s in epoch %d, the leader is %s",
                        self.node_id, role.value, self.epoch,
                        self._leader_id if self._leader_id >= 0 else "not known")  # fmt: skip
        if role in (Role.FOLLOWER, Role.LEADER):
            self._seldom.over()
        self.on_role()
        self._wake()

    def _detach(self, epoch: int) -> None:
        """Become unattached in `epoch`, which is ours or a higher one. A running election time-out
        continues."""
        keeps = self.role in (Role.CANDIDATE, Role.UNATTACHED, Role.RESIGNED) or (
            self.role is Role.PROSPECTIVE and self._tally is not None and not self._tally.is_lost
        )
        deadline_ms = self._deadline_ms if keeps else self._election_deadline()
        same = epoch == self.epoch
        self._persist(epoch, self._leader_id if same else NOBODY, self._voted if same else None)
        self.leader = None
        self._change(Role.UNATTACHED, deadline_ms)

    def _follow(self, epoch: int, leader: Leader) -> None:
        self._persist(epoch, leader.node_id, self._voted if epoch == self.epoch else None)
        self.leader = leader
        self._change_ms = self._now() + self._timings.fetch_ms
        self._change(Role.FOLLOWER, self._now() + self._timings.fetch_ms)

    def _stand(self, role: Role) -> None:
        """Become prospective in our epoch, or candidate in the next one, with our own vote."""
        if role is Role.CANDIDATE and self.role is not Role.UNATTACHED:
            self._persist(self.epoch + 1, NOBODY, (self.node_id, self.directory_id))
            self.leader = None
        self._tally = Tally.of(self.voters, self.node_id)
        self._change(role, self._election_deadline())

    def _win_if_won(self) -> None:
        """With a majority, a prospective becomes a candidate, and a candidate becomes the leader."""
        if self.role is Role.PROSPECTIVE and self._tally is not None and self._tally.is_won:
            self._stand(Role.CANDIDATE)
        if self.role is Role.CANDIDATE and self._tally is not None and self._tally.is_won:
            self._lead(self._tally)

    def _lead(self, tally: Tally) -> None:
        """Become the leader. LeaderChange is the epoch's first record: nothing is committed before it."""
        granting, epoch = tally.granted, self.epoch
        self._persist(epoch, self.node_id, self._voted)
        host, port = next(iter(self._endpoints.values()), ("", 0))
        self.leader = Leader(self.node_id, host, port)
        now_ms = self._now()
        self._leadership = Leadership(self.node_id, self.voters, self._log.end_offset, now_ms, self._timings)
        self._change(Role.LEADER, NEVER)
        self._log.set_leader_epoch(epoch)
        records = [leader_change(self.node_id, sorted(self.voters), granting)]
        offset, version, voters = self.history.newest
        changed = self._changes.update_of_ours(self._endpoints)
        if version >= 1 and (offset < 0 or changed):
            records.append(messages.KRaftVersionRecord(k_raft_version=version))
            records.append(voters_record(changed or voters))
        try:
            self.append_control(records)
        except (KafkaError, OSError) as trouble:
            logger.error("node %d cannot lead, its log cannot be written: %s", self.node_id, trouble)
            self.resign()

    def resign(self) -> None:
        """Resign as leader. EndQuorumEpoch names the voters with most of the log first."""
        if self._leadership is not None:
            self._resign(self._leadership.successors())

    def _resign(self, successors: list[int]) -> None:
        self._successors, self._acknowledged = successors, set()
        self.leader = None
        self._change(Role.RESIGNED, self._election_deadline())

    def _enter(self, epoch: int, leader_id: int, at: tuple[str, int] | None) -> None:
        """A message has a higher epoch, or the leader of ours."""
        if leader_id == self.node_id:
            raise Malformed(f"it names this node as leader of epoch {epoch}, which is {self.role.value}")
        if leader_id >= 0 and at is not None:
            self._follow(epoch, Leader(leader_id, *at))
        elif epoch > self.epoch:
            self._detach(epoch)

    def _hear(self, epoch: int, leader_id: int, endpoints: Any) -> None:
        """Take epoch and leader from a message. Raises Malformed if an epoch has two leaders."""
        if epoch == self.epoch and leader_id >= 0 and self._leader_id not in (NOBODY, leader_id):
            raise Malformed(f"epoch {epoch} is led by {self._leader_id}, and by {leader_id} too")
        if epoch < self.epoch or (epoch == self.epoch and (leader_id < 0 or self._leader_id >= 0)):
            return
        at = next(((each.host, each.port) for each in endpoints if each.node_id == leader_id), None)
        address = self.voters.get(leader_id)
        self._enter(epoch, leader_id, at or ((address.host, address.port) if address is not None else None))

    # -- what is due ---------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Do what is due. Return the milliseconds until the next call."""
        if self._broken:
            return NEVER
        now_ms = self._now()
        for token, sent in list(self._in_flight.items()):
            if sent.deadline_ms <= now_ms:
                self._request_failed(token, sent, now_ms)
        self._fetches.expire(now_ms)
        due_ms = self._poll_role(now_ms)
        times = [sent.deadline_ms for sent in self._in_flight.values()]
        times += self._fetches.deadlines
        times += [until for until in self._backoff_ms.values() if until > now_ms]
        return max(min([due_ms, *times]) - self._now(), 0)

    def _poll_role(self, now_ms: int) -> int:
        """Do what is due for the role, and return its next deadline."""
        if self.role is Role.LEADER:
            return self._poll_leader(now_ms)
        if self.role is Role.RESIGNED:
            if now_ms >= self._deadline_ms:
                self._detach(self.epoch + 1)  # a new epoch: we are not the leader of this one any more
                return now_ms
            self._tell_end(now_ms)
            return self._deadline_ms
        if self.role is Role.CANDIDATE and now_ms >= self._deadline_ms:
            self._stand(Role.PROSPECTIVE)
            self._win_if_won()
            return now_ms
        if self.role is Role.PROSPECTIVE and now_ms >= self._deadline_ms:
            self._lose()
            return now_ms
        if self.role in (Role.CANDIDATE, Role.PROSPECTIVE):
            self._ask_for_votes(now_ms)
            return self._deadline_ms
        if (stands := self._may_stand) and now_ms >= self._deadline_ms:
            self._stand(Role.PROSPECTIVE)
            self._win_if_won()
            return now_ms
        self._ask_for_records(now_ms)
        return self._deadline_ms if stands else NEVER

    def _poll_leader(self, now_ms: int) -> int:
        leadership = self._leadership
        assert leadership is not None
        if leadership.is_overdue(now_ms):
            logger.warning("node %d resigns: a majority of the metadata quorum does not fetch", self.node_id)
            self.resign()
            return now_ms
        if not self.is_voter and leadership.high_watermark > self.history.newest.offset:
            logger.info("node %d resigns: it is not a voter any more", self.node_id)
            self.resign()
            return now_ms
        if self._unwritable:
            logger.error(
                "node %d resigns: its metadata log cannot be written: %s", self.node_id, self._unwritable
            )
            self.resign()
            return now_ms
        change_ms = self._changes.poll(now_ms)
        for voter in leadership.silent(now_ms):
            key = (voter, self.voters[voter].directory_id)
            request = wire.begin_epoch(self.cluster_id, key, self.node_id, self.epoch, self._endpoints)
            self._ask(voter, request, now_ms, again_ms=self._timings.fetch_ms // 2)
        times = [
            each.fetched_ms + self._timings.fetch_ms // 2
            for voter, each in leadership.voters.items()
            if voter != self.node_id and each.fetched_ms >= 0
        ]
        later = [each for each in times if each > now_ms]
        later += [change_ms] if change_ms is not None else []
        if leadership.voters.keys() != {self.node_id}:
            later.append(leadership.quorum_deadline_ms)
        return min(later, default=NEVER)

    def _lose(self) -> None:
        """The election is lost: follow the leader again, if one is known."""
        if self.leader is not None and self._leader_id >= 0:
            self._follow(self.epoch, self.leader)
        else:
            self._detach(self.epoch)

    def _ask_for_votes(self, now_ms: int) -> None:
        tally = self._tally
        assert tally is not None
        if tally.is_lost:
            return
        last = (self.last_fetched_epoch, self.end_offset)
        for voter in sorted(tally.silent):
            address = self.voters.get(voter)
            if address is not None:
                request = wire.vote(
                    self.cluster_id, (voter, address.directory_id), (self.node_id, self.directory_id),
                    self.epoch, last, pre_vote=self.role is Role.PROSPECTIVE,
                )  # fmt: skip
                self._ask(voter, request, now_ms)

    def _tell_end(self, now_ms: int) -> None:
        voters = self.voters
        named = [(each, voters[each].directory_id) for each in self._successors if each in voters]
        for voter in self._others:
            if voter not in self._acknowledged:
                request = wire.end_epoch(self.cluster_id, self.node_id, self.epoch, named, self._endpoints)
                self._ask(voter, request, now_ms)

    def _ask_for_records(self, now_ms: int) -> None:
        """Fetch from the leader; or from any voter, if the leader is unknown or does not answer."""
        if self._applying is not None or not self._is_flushed():
            return
        leader = self.leader
        if leader is not None and self._backoff_ms.get(leader.node_id, 0) <= now_ms:
            if not any(sent.node_id == leader.node_id for sent in self._in_flight.values()):
                self._ask(leader.node_id, self._next_request(now_ms), now_ms, at=(leader.host, leader.port))
            return
        others = [each for each in self._others if leader is None or each != leader.node_id]
        others += [each for each, at in self._bootstrap.items() if at not in self._endpoints.values()]
        if any(sent.node_id in others for sent in self._in_flight.values()):
            return
        for turn in range(len(others)):
            voter = others[(self._next_voter + turn) % len(others)]
            if self._backoff_ms.get(voter, 0) <= now_ms:
                self._next_voter += turn + 1
                fetching, self._fetching = self._fetching, None
                self._ask(voter, self.request(), now_ms)
                self._fetching = fetching
                return

    def _next_request(self, now_ms: int) -> Any:
        """Return the next request to the leader: a Fetch, or a change of the voters that this node needs."""
        wanted = None
        if self.role is Role.FOLLOWER and now_ms >= self._change_ms:
            wanted = self._changes.wanted(self._endpoints, auto_join=self._auto_join)
            self._change_ms = now_ms + self._timings.fetch_ms
        return self.request() if wanted is None else wanted

    def _is_flushed(self) -> bool:
        """Return whether the log is flushed; if not, start a flush. Observers flush, too: their records count
        from the moment when they become voters."""
        if self._log.recovery_point >= self._log.end_offset:
            return True
        self._flush()
        return False

    # -- our requests --------------------------------------------------------------------------------------

    def _ask(
        self, node_id: int, request: Any, now_ms: int, *, at: tuple[str, int] | None = None, again_ms: int = 0
    ) -> bool:
        """Send a request, unless one to that node is in flight; return whether it was sent. `again_ms`: send
        no other one for this time, even if it is answered."""
        if any(sent.node_id == node_id for sent in self._in_flight.values()):
            return False
        if self._backoff_ms.get(node_id, 0) > now_ms:
            return False
        at = at or self._bootstrap.get(node_id)
        address = self.voters.get(node_id)
        host, port = at or ((address.host, address.port) if address is not None else ("", 0))
        self._token += 1
        self._in_flight[self._token] = InFlightRequest(
            node_id, type(request), self.epoch, now_ms + self._timings.request_ms, self._log.end_offset
        )
        if again_ms:
            self._backoff_ms[node_id] = now_ms + again_ms
        self._send(node_id, host, port, request, self._token)
        return True

    def _request_failed(self, token: int, sent: InFlightRequest, now_ms: int) -> None:
        del self._in_flight[token]
        until = now_ms + self._timings.retry_ms
        self._backoff_ms[sent.node_id] = max(self._backoff_ms.get(sent.node_id, 0), until)
        if sent.kind is messages.ApiVersionsRequest:
            self._changes.versions_answered(sent.node_id, None, now_ms)
        if sent.kind in CHANGES:
            self._change_ms = now_ms + self._timings.fetch_ms

    def response(self, token: int, response: Any | None, *, refused: bool = False) -> None:
        """Take the response to the request with this token; None: it was not sent, or the connection broke.
        `refused`: nothing listens there. Raises UnusableMetadata, KafkaError (KAFKA_STORAGE_ERROR)."""
        sent = self._in_flight.get(token)
        if sent is None or self._broken:
            return  # sent in a previous role
        now_ms = self._now()
        if response is None:
            self._request_failed(token, sent, now_ms)
            if self.role is Role.FOLLOWER and sent.node_id == self._leader_id:
                self._leader_failed(refused, now_ms)
            self._wake()
            return
        del self._in_flight[token]
        try:
            good = self._take_response(sent, response, now_ms)
        except Malformed as trouble:
            logger.error("node %d of the metadata quorum sent a wrong answer: %s", sent.node_id, trouble)
            good = False
        if not good:
            until = now_ms + self._timings.retry_ms
            self._backoff_ms[sent.node_id] = max(self._backoff_ms.get(sent.node_id, 0), until)
        self._wake()

    def _leader_failed(self, refused: bool, now_ms: int) -> None:
        """A leader that we fetched from, and that refuses two connections in a row, is treated as dead, so an
        election does not wait for the time-out. If it lives, the others refuse their pre-votes."""
        self._refusals = self._refusals + 1 if refused else 0
        if self._refusals < REFUSALS or not self._has_fetched or not self._may_stand:
            return
        self._has_fetched = False
        wait_ms = dead_leader_ms(self.node_id, self.voters, self._leader_id, self._random)
        self._deadline_ms = min(self._deadline_ms, now_ms + wait_ms)
        logger.info("the leader %d of the metadata quorum refuses connections", self._leader_id)

    def _take_response(self, sent: InFlightRequest, response: Any, now_ms: int) -> bool:
        if sent.kind in (wire.Fetch, wire.FetchSnapshot):
            return self._take_records(sent, response, now_ms)
        if sent.kind is messages.ApiVersionsRequest:
            self._changes.versions_answered(sent.node_id, response, now_ms)
            return True
        if sent.kind in CHANGES:
            return self._asked_for_change(sent, response, now_ms)
        if response.error_code:
            if response.error_code == errors.UNSUPPORTED_VERSION and self.role is Role.PROSPECTIVE:
                self._stand(Role.CANDIDATE)  # the other node does not know pre-votes
                return True
            self.trouble = explained(response.error_code, self.cluster_id)
            if self._seldom.due((sent.node_id, self.trouble), now_ms):
                logger.warning("node %d answers: %s", sent.node_id, self.trouble)
            return False
        partition = wire.told(response)
        if partition is None:
            raise Malformed("the answer is not about the partition of the metadata log")
        code = partition.error_code
        self._hear(partition.leader_epoch, partition.leader_id, response.node_endpoints)
        if partition.leader_epoch != sent.epoch or self.epoch != sent.epoch:
            return True  # about another epoch
        if code:
            return code not in (errors.BROKER_NOT_AVAILABLE, errors.INVALID_REQUEST)
        if sent.kind is wire.Vote and self._tally is not None:
            self._tally.count(sent.node_id, partition.vote_granted)
            self._win_if_won()
            if self.role is Role.PROSPECTIVE and self._tally is not None and self._tally.is_lost:
                self._lose()
        elif sent.kind is wire.End and self.role is Role.RESIGNED:
            self._acknowledged.add(sent.node_id)
        return True

    def _asked_for_change(self, sent: InFlightRequest, response: Any, now_ms: int) -> bool:
        self._change_ms = now_ms + self._timings.fetch_ms
        if sent.kind is Update and response.error_code != errors.REQUEST_TIMED_OUT:
            self._changes.reported(sent.epoch)
        if response.error_code:
            logger.info("the leader answers %s: %s", sent.kind.NAME, KafkaError(response.error_code))
        elif self.role is Role.FOLLOWER:
            self._deadline_ms = now_ms + self._timings.fetch_ms
        return not response.error_code

    def _take_records(self, sent: InFlightRequest, response: Any, now_ms: int) -> bool:
        """Take the answer to a Fetch or FetchSnapshot, if we follow. When the leader was not known, another
        voter was asked for the same, and may have answered in between. Then this one is out of date: it
        could begin the log again from a snapshot that is older than what was fetched and counted."""
        if self.role not in (Role.FOLLOWER, Role.UNATTACHED):
            return True
        if sent.end_offset != self._log.end_offset or self._applying is not None:
            return True
        good = self.answered(response)
        partition = wire.told(response) if good else None
        if partition is not None and partition.error_code == errors.NONE and self.role is Role.FOLLOWER:
            self._has_fetched, self._refusals = True, 0
            self._deadline_ms = now_ms + self._timings.fetch_ms
        return good

    # -- other nodes' requests -----------------------------------------------------------------------------

    def handle(self, request: Any, reply: Reply) -> None:
        """Answer by `reply(response)`: at once, but a Fetch may wait. Raises UnusableMetadata."""
        if self._broken:
            reply(self._error_response(request, errors.KAFKA_STORAGE_ERROR))
            return
        if request.cluster_id is not None and request.cluster_id != self.cluster_id:
            reply(self._error_response(request, errors.INCONSISTENT_CLUSTER_ID))
            return
        if type(request) in CHANGES:
            self._changes.handle(request, reply, self._now())
            return
        partition = wire.asked(request)
        if partition is None:
            reply(wire.error_response(request, errors.INVALID_REQUEST))
            return
        kind = type(request)
        try:
            if kind is wire.Fetch:
                self._fetches.handle(request, partition, reply)
            elif kind is wire.FetchSnapshot:
                reply(self._fetches.handle_snapshot(request, partition))
            elif kind is wire.Vote:
                reply(self._handle_vote(request, partition))
            elif kind is wire.Begin:
                reply(self._handle_begin(request, partition))
            else:
                assert kind is wire.End, kind
                reply(self._handle_end(request, partition))
        except Malformed as trouble:
            logger.error("a request of the metadata quorum is wrong: %s", trouble)
            reply(wire.error_response(request, errors.INVALID_REQUEST))

    def _error_response(self, request: Any, code: int) -> Any:
        if type(request) in CHANGES:
            return refused(request, code, leader=self.leader_and_epoch)
        return wire.error_response(request, code)

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        leader = self.leader if self.leader is not None and self.role is not Role.UNATTACHED else None
        if leader is not None and leader.node_id == self._leader_id:
            return LeaderAndEpoch(self.epoch, self._leader_id, leader.host, leader.port)
        return LeaderAndEpoch(self.epoch, self._leader_id)

    def _voters_only(self, node_id: int, epoch: int) -> int:
        if epoch < self.epoch:
            return errors.FENCED_LEADER_EPOCH
        return errors.INVALID_REQUEST if node_id < 0 else errors.NONE

    def _is_for_us(self, voter_id: int, directory_id: bytes) -> bool:
        return voter_id in (-1, self.node_id) and directory_id in (UNKNOWN_DIRECTORY, self.directory_id)

    def _handle_vote(self, request: Any, partition: Any) -> Any:
        epoch, candidate = partition.replica_epoch, (partition.replica_id, partition.replica_directory_id)
        last = (partition.last_offset_epoch, partition.last_offset)
        illegal = last[0] > epoch if partition.pre_vote else last[0] >= epoch
        code = self._voters_only(candidate[0], epoch)
        if min(last) < 0 or illegal:
            code = errors.INVALID_REQUEST
        if code:
            return wire.answer(request, code, self.leader_and_epoch, vote_granted=False)
        if epoch > self.epoch:
            self._detach(epoch)
        if not self._is_for_us(request.voter_id, partition.voter_directory_id):
            return wire.answer(request, errors.INVALID_VOTER_KEY, self.leader_and_epoch, vote_granted=False)
        granted = may_grant(
            self.role,
            candidate,
            pre_vote=partition.pre_vote,
            up_to_date=last >= (self.last_fetched_epoch, self.end_offset),
            voted=self._voted,
            leader_known=self._leader_id >= 0,
            has_fetched=self._has_fetched,
        )
        if granted and not partition.pre_vote and self._voted is None:
            self._persist(self.epoch, self._leader_id, candidate)
            self._deadline_ms = self._election_deadline()
            self._wake()
        if self._seldom.due((candidate[0], partition.pre_vote, granted, epoch), self._now()):
            logger.info(
                "node %d %s %s a %svote in epoch %d", self.node_id, "gives" if granted else "refuses",
                candidate[0], "pre-" if partition.pre_vote else "", epoch,
            )  # fmt: skip
        return wire.answer(request, errors.NONE, self.leader_and_epoch, vote_granted=granted)

    def _handle_begin(self, request: Any, partition: Any) -> Any:
        code = self._voters_only(partition.leader_id, partition.leader_epoch)
        if code:
            return wire.answer(request, code, self.leader_and_epoch)
        self._hear_of_leader(request, partition)
        if not self._is_for_us(request.voter_id, partition.voter_directory_id):
            code = errors.INVALID_VOTER_KEY
        return wire.answer(request, code, self.leader_and_epoch)

    def _handle_end(self, request: Any, partition: Any) -> Any:
        code = self._voters_only(partition.leader_id, partition.leader_epoch)
        if code:
            return wire.answer(request, code, self.leader_and_epoch)
        self._hear_of_leader(request, partition)
        if self.role is Role.FOLLOWER and self._leader_id == partition.leader_id:
            named = [
                (each.candidate_id, each.candidate_directory_id) for each in partition.preferred_candidates
            ]
            named = named or [(each, UNKNOWN_DIRECTORY) for each in partition.preferred_successors]
            ours = [(self.node_id, self.directory_id), (self.node_id, UNKNOWN_DIRECTORY)]
            position = next((at for at, each in enumerate(named) if each in ours), len(named))
            self._deadline_ms = self._now() + self._timings.backoff_ms(position, len(named))
            self._wake()
        return wire.answer(request, errors.NONE, self.leader_and_epoch)

    def _hear_of_leader(self, request: Any, partition: Any) -> None:
        """Take leader and epoch from its request. Older versions have no address."""
        at = [(each.host, each.port) for each in request.leader_endpoints][:1]
        node = messages.FetchResponse.NodeEndpoints
        told = [node(node_id=partition.leader_id, host=host, port=port) for host, port in at]
        self._hear(partition.leader_epoch, partition.leader_id, told)

    # -- leading -------------------------------------------------------------------------------------------

    def append(self, build: Callable[[int], bytearray]) -> int:
        """Append the batch that `build(base offset)` returns, and return its last offset. Raises KafkaError
        (NOT_LEADER_OR_FOLLOWER, or the log cannot be written); then the log is unchanged."""
        if self.role is not Role.LEADER or self._broken:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER)
        start = self._log.end_offset
        batch = build(start)
        try:
            self._log.append(batch, self._clock.now_ms(), origin="raft", epoch=self.epoch)
        except (KafkaError, OSError) as trouble:
            self._append_failed(trouble)
            raise
        self._new_bytes += len(batch)
        self._note_voters(start, batch)
        self._flush()
        self._fetches.answer(lambda parked: True)
        return self._log.end_offset - 1

    def _append_failed(self, trouble: KafkaError | OSError) -> None:
        """As leader on a full disk: no other node could lead, and the cluster could change nothing, until
        there is room. So resign, in the next turn, if there is another voter."""
        is_disk = isinstance(trouble, OSError) or trouble.code == errors.KAFKA_STORAGE_ERROR
        if is_disk and self._others:
            self._unwritable = str(trouble)
            self._wake()

    def append_control(self, records: list[Any]) -> int:
        return self.append(batch_of(records, self.epoch, self._clock.now_ms()))

    def upgrade_kraft_version(self, level: int, *, validate_only: bool) -> None:
        """UpdateFeatures, as leader: see VoterChanges.upgrade."""
        self._changes.upgrade(level, validate_only=validate_only)

    # -- voters in the log ---------------------------------------------------------------------------------

    def _note_voters(self, start: int, batch: Any = None) -> None:
        """Note the voters in the log from `start` on, or in this batch."""
        before = self.history.newest.voters
        raws = self._log.batches(start, self._log.end_offset) if batch is None else (batch,)
        for each in (each for raw in raws for each in read_batches(raw) if each.base_offset >= start):
            self.history.note(each)
        if self._leadership is not None and before != (after := self.history.newest.voters):
            self._leadership.change_voters(dict(map(key_of, before)), dict(map(key_of, after)), self._now())

    def _append(self, records: Any) -> None:
        start = self._log.end_offset
        super()._append(records)
        if self._log.end_offset > start:
            self._note_voters(start)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        super()._truncate(epoch, end_offset)
        self.history.truncate(self._log.end_offset)

    def _take_snapshot(self, snapshot: tuple[int, int]) -> Iterator[None]:
        yield from super()._take_snapshot(snapshot)
        if self.last_snapshot == snapshot:
            self.history.begin(snapshot[0] - 1, self._kraft_version, self._voters)

    def _flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._log.await_flushed(self._log.end_offset, self._flushed)

    def _flushed(self, trouble: BaseException | None) -> None:
        self._flushing = False
        if trouble is not None:
            # The kernel may have dropped the pages: this log must not be trusted or served any more.
            self._broken = str(trouble) or type(trouble).__name__
            logger.error("the metadata log in %s could not be flushed: %s", self._log.directory, self._broken)
            self._change(Role.UNATTACHED, NEVER)
            return
        if self._leadership is not None:
            self._leadership.flushed(self._log.recovery_point)
            self._commit()
            if self._log.recovery_point < self._log.end_offset:
                self._flush()
        self._wake()

    def _commit(self) -> None:
        assert self._leadership is not None
        offset = self._leadership.high_watermark
        self.told = max(self.told, offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._log.advance_high_watermark(offset)
            self.history.forget(offset)
            self._changes.look(self._now())
            self._wake()
            self._fetches.answer(lambda parked: parked.partition.high_watermark < offset)

    def _leaders_only(self, epoch: int) -> int:
        if epoch < self.epoch:
            return errors.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return errors.UNKNOWN_LEADER_EPOCH
        return errors.NONE if self.role is Role.LEADER else errors.NOT_LEADER_OR_FOLLOWER
