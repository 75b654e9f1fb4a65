"""Fetch and FetchSnapshot, as a node of the quorum answers them: the leader with records, others with who
leads.

    handle             a Fetch: answered at once, or parked until there are records, a higher high watermark,
                       or its time is over
    answer             those that wait and are ripe
    refuse             all that wait: we lead no more
    handle_snapshot    a piece of a snapshot

What a Fetch says of the log of a voter may commit records (Leadership). Use: raft/node. Pure."""

from collections.abc import Callable
from typing import Any, Final

from kafkad.protocol import errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.raft import quorum_messages as wire
from kafkad.raft.quorum_messages import Parked, Reply

PARKED_MAX: Final = 10_000  # Fetches that wait for records
PIECE_MAX: Final = 8 << 20  # bytes of an answer


class ServedFetches:
    """Of this RaftNode."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._parked: list[Parked] = []

    @property
    def deadlines(self) -> list[int]:
        return [each.deadline_ms for each in self._parked]

    def expire(self, now_ms: int) -> None:
        """It is no sign of life that we let them wait."""
        if self._parked and any(each.deadline_ms <= now_ms for each in self._parked):
            for each in self._take(lambda parked: parked.deadline_ms <= now_ms):
                each.reply(each.response)

    def refuse(self, code: int) -> None:
        for each in self._take():
            each.reply(self._error(each.request, code))

    def _error(self, request: Any, code: int) -> Any:
        return wire.answer(request, code, self._node.leader_and_epoch, high_watermark=-1, records=b"")

    def handle(self, request: Any, partition: Any, reply: Reply) -> None:
        if (
            min(request.max_wait_ms, partition.fetch_offset, partition.last_fetched_epoch) < 0
            or partition.last_fetched_epoch > partition.current_leader_epoch
        ):
            reply(self._error(request, errors.INVALID_REQUEST))
            return
        now_ms = self._node._now()
        response, is_news = self._answer_to(request, partition, now_ms)
        if not is_news and self._node.end_offset > partition.fetch_offset:
            # That this node has caught up made it a voter: the record of that came after the read.
            response, is_news = self._answer_to(request, partition, now_ms)
        if is_news or not request.max_wait_ms or len(self._parked) >= PARKED_MAX:
            reply(response)
        else:
            self._parked.append(Parked(request, partition, response, reply, now_ms + request.max_wait_ms))

    def _take(self, ripe: Callable[[Parked], bool] = lambda parked: True) -> list[Parked]:
        taken: list[Parked] = []
        left: list[Parked] = []
        for each in self._parked:
            (taken if ripe(each) else left).append(each)
        self._parked = left
        return taken

    def answer(self, ripe: Callable[[Parked], bool]) -> None:
        """Answers may move the high watermark, and with it others: `_commit` comes back here."""
        now_ms = self._node._now()
        for each in self._take(ripe):
            each.reply(self._answer_to(each.request, each.partition, now_ms)[0])

    def _answer_to(self, request: Any, partition: Any, now_ms: int) -> tuple[Any, bool]:
        """The answer, and whether it holds anything that is not to wait."""
        node = self._node
        code = node._leaders_only(partition.current_leader_epoch)
        if code:
            return self._error(request, code), True
        leadership, log = node._leadership, node._log
        assert leadership is not None
        offset, of_epoch = partition.fetch_offset, partition.last_fetched_epoch
        part = messages.FetchResponse.Responses.Partitions
        fields: dict[str, Any] = {}
        snapshot = self._snapshot_for(offset, of_epoch)
        diverging = self._diverging(offset, of_epoch) if snapshot is None else None
        records = b""
        if snapshot is not None:
            fields["snapshot_id"] = part.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1])
        elif diverging is not None:
            fields["diverging_epoch"] = part.DivergingEpoch(epoch=diverging[0], end_offset=diverging[1])
        else:
            records = self._read(offset, min(max(request.max_bytes, 1), PIECE_MAX))
            node_id, directory_id = request.replica_state.replica_id, partition.replica_directory_id
            if node_id == node.node_id:
                raise Malformed(f"another node fetches as node {node_id}, which is ours")
            if node_id in leadership.voters and node._is_voter(node_id, directory_id):
                leadership.fetched(node_id, offset, log.end_offset, now_ms)
                node._commit()
            elif node_id >= 0:
                leadership.observed((node_id, directory_id), offset, log.end_offset, now_ms)
                node._changes.look(now_ms)
        told = node.high_watermark if leadership.high_watermark >= 0 else -1
        response = wire.answer(
            request, errors.NONE, node.leader_and_epoch, high_watermark=told,
            log_start_offset=log.log_start_offset, records=records, **fields,
        )  # fmt: skip
        return response, bool(fields) or bool(records) or partition.high_watermark < told

    def _snapshot_for(self, offset: int, of_epoch: int) -> tuple[int, int] | None:
        """The snapshot that one who has the log up to `offset` has to begin with (Kafka:
        tryCompleteFetchRequest, RaftLog.validateOffsetAndEpoch)."""
        start, snapshots = self._node._log.log_start_offset, self._node._files.snapshots()
        if not snapshots:
            return None
        oldest, newest = snapshots[0], snapshots[-1]
        if offset == 0:
            return newest if newest != (0, 0) else None
        if offset < start or (offset == start and of_epoch != oldest[1]) or of_epoch < oldest[1]:
            return newest
        return None

    def _diverging(self, offset: int, of_epoch: int) -> tuple[int, int] | None:
        """Where our log leaves the one that has a record of `of_epoch` before `offset`."""
        if offset == 0 and self._node._log.log_start_offset == 0:
            return None
        epoch, end_offset = self._node._end_of_epoch(of_epoch)
        return (epoch, end_offset) if epoch != of_epoch or end_offset < offset else None

    def _read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from `offset` on; one at least, if there is one."""
        pieces: list[bytes] = []
        size = 0
        for raw in self._node._log.batches(offset, self._node._log.end_offset):
            if pieces and size + len(raw) > max_bytes:
                break
            pieces.append(bytes(raw))
            size += len(raw)
        return b"".join(pieces)

    def handle_snapshot(self, request: Any, partition: Any) -> Any:
        node = self._node
        snapshot = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        part = messages.FetchSnapshotResponse.Topics.Partitions
        fields: dict[str, Any] = {
            "snapshot_id": part.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
            "position": partition.position,
        }
        code = node._leaders_only(partition.current_leader_epoch)
        if not code and (snapshot == (0, 0) or snapshot not in node._files.snapshots()):
            code = errors.SNAPSHOT_NOT_FOUND
        if code:
            return wire.answer(request, code, node.leader_and_epoch, unaligned_records=b"", **fields)
        size = node._files.size(snapshot)
        if not 0 <= partition.position < size:
            code = errors.POSITION_OUT_OF_RANGE
            return wire.answer(request, code, node.leader_and_epoch, unaligned_records=b"", **fields)
        node_id = request.replica_id
        assert node._leadership is not None
        if node_id != node.node_id and node._is_voter(node_id, partition.replica_directory_id):
            node._leadership.heard(node_id, node._now())
        wanted = min(max(request.max_bytes, 1), PIECE_MAX)
        piece = node._files.read_piece(snapshot, partition.position, wanted)
        return wire.answer(
            request, errors.NONE, node.leader_and_epoch, size=size, unaligned_records=piece, **fields
        )
