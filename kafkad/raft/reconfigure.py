"""Changes of the voters of a running quorum, as its leader makes them, one at a time (KIP-853).

    AddRaftVoter      ApiVersions to the new voter; wait until it has the log; VotersRecord; its commit
    RemoveRaftVoter   VotersRecord; its commit. A leader that is no longer a voter then resigns
    UpdateRaftVoter   a voter has a new address: VotersRecord, answered at once
    upgrade           of kraft.version from 0 to 1 (UpdateFeatures): the voters of controller.quorum.voters,
                      which have reported their directories by UpdateRaftVoter, are stored in the log

A change begins only when a record of the leader's own epoch is committed, and the previous VotersRecord, too:
then any majority of the old set and any majority of the new one have a node in common. The new set counts as
soon as it is appended, also for its own commit.

A change that cannot be made now is answered REQUEST_TIMED_OUT, as in Kafka: the client may retry. A change
that times out after it was appended may still be committed.

Kafka: AddVoterHandler, RemoveVoterHandler, UpdateVoterHandler. Pure."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kafkad.metadata.features import KRAFT_VERSION
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.control_records import Voter, control_batch, voters_record
from kafkad.raft.elections import UNKNOWN_DIRECTORY
from kafkad.raft.quorum_messages import LeaderAndEpoch, Reply
from kafkad.raft.voters import Key, Voters, key_of, replaced, without

logger = logging.getLogger(__name__)

Add = messages.AddRaftVoterRequest
Remove = messages.RemoveRaftVoterRequest
Update = messages.UpdateRaftVoterRequest
CHANGES: Final = (Add, Remove, Update)
RESPONSES: Final[dict[Any, Any]] = {
    Add: messages.AddRaftVoterResponse,
    Remove: messages.RemoveRaftVoterResponse,
    Update: messages.UpdateRaftVoterResponse,
}
CATCH_UP: Final = 10  # request timeouts for a new voter to catch up; not more, because others wait
LOCAL: Final = "localhost"
OUR_VERSIONS: Final = (0, 1)  # of kraft.version


class Pending(NamedTuple):
    """A change in progress. `offset` of its VotersRecord; -1: not appended yet. `versions`: the kraft.version
    range of the new voter; None: not known yet."""

    request: Any
    reply: Reply
    key: Key
    deadline_ms: int
    endpoints: dict[str, tuple[str, int]] = {}  # noqa: RUF012 - never changed
    versions: tuple[int, int] | None = None
    offset: int = -1


def refused(request: Any, code: int, why: str = "", leader: LeaderAndEpoch | None = None) -> Any:
    """Return a response with this error. `leader` is for UpdateRaftVoter."""
    cls = RESPONSES[type(request)]
    if cls is not RESPONSES[Update]:
        return cls(error_code=code, error_message=why or None)
    response = cls(error_code=code)
    if leader is not None:
        response.current_leader = cls.CurrentLeader(
            leader_id=leader.leader_id, leader_epoch=leader.epoch, host=leader.host, port=leader.port
        )
    return response


class VoterChanges:
    """Belongs to the RaftNode `node`, in every role."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._pending: Pending | None = None
        self._reported: dict[int, Voter] = {}  # by other voters to us, as leader of kraft.version 0
        self._reported_in = -1  # the epoch whose leader has answered our own report

    # -- requests ------------------------------------------------------------------------------------------

    def handle(self, request: Any, reply: Reply, now_ms: int) -> None:
        try:
            self._begin(request, reply, now_ms)
        except KafkaError as trouble:
            reply(self._refused(request, trouble.code, trouble.message or ""))

    def _refused(self, request: Any, code: int, why: str = "") -> Any:
        return refused(request, code, why, self._node.leader_and_epoch)

    def _begin(self, request: Any, reply: Reply, now_ms: int) -> None:
        node = self._node
        epoch = request.current_leader_epoch if type(request) is Update else node.epoch
        if code := node._leaders_only(epoch):
            raise KafkaError(code)
        key = (request.voter_id, bytes(request.voter_directory_id))
        if key[0] < 0 or key[1] == UNKNOWN_DIRECTORY:
            raise KafkaError(errors.INVALID_REQUEST, "The request does not name a voter and its directory")
        endpoints: dict[str, tuple[str, int]] = {}
        if type(request) is not Remove:
            endpoints = {each.name: (each.host, each.port) for each in request.listeners}
            if not all(endpoints.get(node.listener, ("", 0))):
                raise KafkaError(
                    errors.INVALID_REQUEST, f"The request does not say where {node.listener} of it listens"
                )
        if type(request) is Update and node.kraft_version < 1:
            self._note(request, key, endpoints, now_ms)
            reply(self._refused(request, errors.NONE))
            return
        voters = self._changeable(now_ms)
        if type(request) is Add:
            self._begin_add(Pending(request, reply, key, 0, endpoints), voters, now_ms)
        elif type(request) is Remove:
            self._remove(Pending(request, reply, key, now_ms + node._timings.request_ms), voters)
        else:
            self._update(request, reply, key, endpoints, voters, now_ms)

    def _changeable(self, now_ms: int) -> Voters:
        """Return the voters, if a change may begin. Raises KafkaError."""
        node = self._node
        self.poll(now_ms)
        if self._pending is not None:
            raise KafkaError(errors.REQUEST_TIMED_OUT, "Another change of the voters is under way")
        committed = node.high_watermark_in_epoch
        if committed < 0:
            raise KafkaError(
                errors.REQUEST_TIMED_OUT, "The leader has not yet committed a record of its epoch"
            )
        newest = node.history.newest
        if newest.kraft_version < 1:
            raise KafkaError(
                errors.UNSUPPORTED_VERSION,
                f"The voters cannot be changed, because {KRAFT_VERSION} is {newest.kraft_version}",
            )
        if newest.offset >= committed:
            raise KafkaError(
                errors.REQUEST_TIMED_OUT, f"The voters of offset {newest.offset} are not committed yet"
            )
        voters: Voters = newest.voters
        return voters

    def _begin_add(self, change: Pending, voters: Voters, now_ms: int) -> None:
        node, (voter_id, _) = self._node, change.key
        if any(voter.voter_id == voter_id for voter in voters):
            raise KafkaError(errors.DUPLICATE_VOTER, f"{voter_id} is already the id of a voter")
        wait_ms = min(max(change.request.timeout_ms, node._timings.request_ms), self._longest_ms)
        ask = messages.ApiVersionsRequest(client_software_name="kafkad", client_software_version="raft")
        if not node._ask(voter_id, ask, now_ms, at=change.endpoints[node.listener]):
            raise KafkaError(errors.REQUEST_TIMED_OUT, f"{voter_id} cannot be asked yet")
        self._pending = change._replace(deadline_ms=now_ms + wait_ms)
        node._wake()

    @property
    def _longest_ms(self) -> int:
        return CATCH_UP * int(self._node._timings.request_ms)

    def _remove(self, change: Pending, voters: Voters) -> None:
        left = without(voters, change.key)
        if left is None:
            raise KafkaError(
                errors.VOTER_NOT_FOUND, f"{change.key[0]} with this directory is not one of the voters"
            )
        if not left:
            raise KafkaError(errors.INVALID_REQUEST, "The last voter cannot be removed")
        self._append(change, left)

    def _update(
        self,
        request: Any,
        reply: Reply,
        key: Key,
        endpoints: dict[str, tuple[str, int]],
        voters: Voters,
        now_ms: int,
    ) -> None:
        node, versions = self._node, self._versions_of(request)
        changed = replaced(voters, Voter(*key, endpoints, versions))
        if changed is None:
            raise KafkaError(errors.VOTER_NOT_FOUND)
        node.append_control([voters_record(changed)])
        node.leadership.heard(key[0], now_ms)
        reply(self._refused(request, errors.NONE))

    def _versions_of(self, request: Any) -> tuple[int, int]:
        told = request.k_raft_version_feature
        versions = (told.min_supported_version, told.max_supported_version)
        if not 0 <= versions[0] <= self._node.kraft_version <= versions[1]:
            raise KafkaError(errors.INVALID_REQUEST)
        return versions

    def _note(self, request: Any, key: Key, endpoints: dict[str, tuple[str, int]], now_ms: int) -> None:
        """Remember the directory and the endpoints of a voter of controller.quorum.voters, for `upgrade`."""
        versions = self._versions_of(request)
        if key[0] not in self._node.voters:
            raise KafkaError(errors.VOTER_NOT_FOUND)
        self._reported[key[0]] = Voter(*key, endpoints, versions)
        if self._node.is_voter and key[0] != self._node.node_id:
            self._node.leadership.heard(key[0], now_ms)

    # -- kraft.version -------------------------------------------------------------------------------------

    def upgrade(self, level: int, *, validate_only: bool) -> None:
        """Raise kraft.version to `level`, which is 1, with the voters of controller.quorum.voters. Raises
        KafkaError; then nothing has changed."""
        node = self._node
        if node.kraft_version == level:
            return
        if code := node._leaders_only(node.epoch):
            raise KafkaError(code)
        ours = Voter(node.node_id, node.directory_id, dict(node._endpoints), OUR_VERSIONS)
        voters = {**self._reported, node.node_id: ours}
        missing = sorted(node.voters.keys() - voters.keys())
        if missing:
            raise KafkaError(
                errors.INVALID_UPDATE_VERSION,
                f"Controllers {missing} have not reported their directories to the leader yet. They run, and"
                " support this, if they are at least Kafka 4.1 or this release",
            )
        for voter in voters.values():
            low, high = voter.kraft_versions
            if not low <= level <= high:
                raise KafkaError(
                    errors.INVALID_UPDATE_VERSION,
                    f"Controller {voter.voter_id} only supports {KRAFT_VERSION} {low}-{high}",
                )
        if validate_only:
            return
        ordered = [voters[voter] for voter in sorted(node.voters)]
        records = [messages.KRaftVersionRecord(k_raft_version=level), voters_record(ordered)]
        try:
            offset = node.append_control(records)
        except OSError as trouble:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
        logger.info(
            "%s is %d from offset %d on, with voters %s", KRAFT_VERSION, level, offset, sorted(voters)
        )

    def reported(self, epoch: int) -> None:
        """The leader of this epoch has answered our report."""
        self._reported_in = epoch

    # -- progress of a change ------------------------------------------------------------------------------

    def versions_answered(self, node_id: int, response: Any | None, now_ms: int) -> None:
        """Handle a new voter's answer to ApiVersions; None: there is none."""
        change = self._pending
        if change is None or change.offset >= 0 or change.versions is not None or change.key[0] != node_id:
            return
        if response is None or response.error_code:
            why = "does not answer" if response is None else f"answers {KafkaError(response.error_code)}"
            self._end(errors.REQUEST_TIMED_OUT, f"The new voter {node_id} {why}")
            return
        told = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
        low, high = told.get(KRAFT_VERSION, (0, 0))
        if not low <= self._node.kraft_version <= high:
            self._end(
                errors.INVALID_REQUEST,
                f"The new voter {node_id} has {KRAFT_VERSION} {low} to {high}, and the quorum"
                f" {self._node.kraft_version}",
            )
            return
        self._pending = change._replace(versions=(low, high))
        self.look(now_ms)

    def look(self, now_ms: int) -> None:
        """A node has fetched, or something was committed: do the next step if it is due."""
        node, change = self._node, self._pending
        if change is None:
            return
        if change.offset >= 0:
            if node.leadership.high_watermark > change.offset:
                self._end(errors.NONE)
        elif change.versions is not None and node.leadership.is_caught_up(
            change.key, now_ms - node._timings.fetch_ms
        ):
            try:
                new = Voter(*change.key, change.endpoints, change.versions)
                self._append(change, (*node.history.newest.voters, new))
            except KafkaError as trouble:
                self._end(trouble.code, trouble.message or "")

    def poll(self, now_ms: int) -> int | None:
        """End a change that takes too long. Return when to call again."""
        change = self._pending
        if change is not None and change.deadline_ms <= now_ms:
            what = "The new voter has not caught up" if change.offset < 0 else "The change is not committed"
            self._end(errors.REQUEST_TIMED_OUT, f"{what} in time")
        return self._pending.deadline_ms if self._pending is not None else None

    def lost(self) -> None:
        """This node does not lead, or no longer."""
        self._reported.clear()
        self._end(errors.NOT_LEADER_OR_FOLLOWER)

    # -- requests of a follower ----------------------------------------------------------------------------

    def update_of_ours(self, endpoints: dict[str, tuple[str, int]]) -> Voters | None:
        """Return the voters with our endpoints, if the log has others for us, and we are a voter. A name that
        others can use is not replaced by localhost, which stands for a listener without a host."""
        node, voters = self._node, self._node.history.newest.voters
        key = (node.node_id, node.directory_id)
        known = {at[0] for each in voters if key_of(each) == key for at in each.endpoints.values()}
        if LOCAL in {at[0] for at in endpoints.values()} - known:
            return None
        changed = replaced(voters, Voter(node.node_id, node.directory_id, endpoints, OUR_VERSIONS))
        return changed if endpoints and changed != voters else None

    def wanted(self, endpoints: dict[str, tuple[str, int]], *, auto_join: bool) -> Any | None:
        """Return the request for the leader: from a voter with another address than the log has, or (KIP-853,
        controller.quorum.auto.join.enable) from one that wants to become a voter. A voter with our id and
        another directory is our former self: it is removed first."""
        node = self._node
        cluster_id, key = node.cluster_id, (node.node_id, node.directory_id)
        _, version, voters = node.history.newest
        if version < 1 and node.is_voter and endpoints and self._reported_in != node.epoch:
            return update_request(cluster_id, node.epoch, key, endpoints)
        if version < 1 or not voters:
            return None
        if node.is_voter:
            changed = self.update_of_ours(endpoints)
            return update_request(cluster_id, node.epoch, key, endpoints) if changed is not None else None
        if not auto_join:
            return None
        for voter in voters:
            if voter.voter_id == key[0]:
                return Remove(cluster_id=cluster_id, voter_id=key[0], voter_directory_id=voter.directory_id)
        return Add(
            cluster_id=cluster_id,
            timeout_ms=node._timings.request_ms,
            voter_id=key[0],
            voter_directory_id=key[1],
            listeners=[Add.Listeners(name=name, host=at[0], port=at[1]) for name, at in endpoints.items()],
            ack_when_committed=False,  # the commit needs our next Fetch
        )

    # -- appending -----------------------------------------------------------------------------------------

    def _append(self, change: Pending, voters: Iterable[Voter]) -> None:
        """Append a voter set. Raises KafkaError; then nothing has changed."""
        ordered = sorted(voters, key=key_of)
        # Appending may commit at once: `look` must find it then.
        offset = self._node.end_offset
        self._pending = change._replace(offset=offset)
        try:
            self._node.append_control([voters_record(ordered)])
        except (KafkaError, OSError) as trouble:
            self._pending = None if change.versions is None else change
            if isinstance(trouble, KafkaError):
                raise
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
        logger.info("the voters at offset %d: %s", offset, [voter.voter_id for voter in ordered])
        if type(change.request) is Add and not change.request.ack_when_committed:
            change.reply(self._refused(change.request, errors.NONE))

    def _end(self, code: int, why: str = "") -> None:
        change, self._pending = self._pending, None
        if change is None:
            return
        if why:
            logger.info("a change of the voters ends: %s", why)
        acked = type(change.request) is Add and change.offset >= 0 and not change.request.ack_when_committed
        if not acked:
            change.reply(self._refused(change.request, code, why))


def update_request(cluster_id: str, epoch: int, key: Key, endpoints: dict[str, tuple[str, int]]) -> Any:
    """Return the request of a voter with another address than the log has, or whose directory the leader does
    not know."""
    return Update(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=key[0],
        voter_directory_id=key[1],
        listeners=[
            Update.Listeners(name=name, host=host, port=port) for name, (host, port) in endpoints.items()
        ],
        k_raft_version_feature=Update.KRaftVersionFeature(
            min_supported_version=OUR_VERSIONS[0], max_supported_version=OUR_VERSIONS[1]
        ),
    )


def batch_of(records: list[Any], epoch: int, now_ms: int) -> Callable[[int], bytearray]:
    """Return the batch function for RaftNode.append."""
    return lambda base_offset: control_batch(records, base_offset=base_offset, epoch=epoch, now_ms=now_ms)
