"""A quorum of KRaft nodes in one process, whose time, network, disks and accidents come from one seed.

    network    delays; links that are cut, one way or both; a connection that breaks loses what is on its way
    disks      a flush takes time; a crash loses what was not flushed, or some of it
    nodes      crash, come back, go in peace, make snapshots, and drop the log below them
    clients    append at whoever leads
    operators  add and remove voters, where these stand in the log (`dynamic`)

What must hold at every moment is checked after every event (`Checks`); what must come to pass, at the end,
when all is mended (`Quorum.settle`). Kafka: RaftEventSimulationTest.

A message goes over the wire's form, so that what is in no version of it is not there."""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from kafkad.clock import ManualClock
from kafkad.metadata.records import encode_record
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import read_batches
from kafkad.raft.bootstrap import build_voters_checkpoint
from kafkad.raft.control_records import Voter
from kafkad.raft.elections import Role
from kafkad.raft.node import NEVER, RaftNode
from kafkad.raft.snapshots import data_batch

CLUSTER = "sim-cluster"
LEVEL = 30
VERSIONS = {
    messages.VoteRequest: 2,
    messages.BeginQuorumEpochRequest: 1,
    messages.EndQuorumEpochRequest: 1,
    messages.FetchRequest: 18,
    messages.FetchSnapshotRequest: 1,
    messages.ApiVersionsRequest: 4,
    messages.AddRaftVoterRequest: 1,
    messages.RemoveRaftVoterRequest: 0,
    messages.UpdateRaftVoterRequest: 0,
}
DAY_MS = 86_400_000


class Disk:
    """What is left of a node when its process is gone."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.synced = 0  # how many of them
        self.start = 0  # where the log starts
        self.empty_at = 0
        self.quorum_state: bytes | None = None
        self.snapshots: dict[tuple[int, int], bytes] = {}

    def crash(self, chance: random.Random) -> None:
        kept = chance.randint(self.synced, len(self.batches))
        del self.batches[kept:]
        self.synced = len(self.batches)


class SimLog:
    """A metadata log on a Disk. A flush ends when the world says so."""

    def __init__(self, disk: Disk, directory: str, flush_later: Callable[[Callable[[], None]], None]) -> None:
        self.disk = disk
        self.directory = directory
        self.leader_epoch = 0
        self.epochs: list[tuple[int, int]] = []
        self.marked: list[tuple[int, int, int, int]] = []  # of each batch: base, end, epoch, CRC
        self._flush_later = flush_later
        self._waiting: list[tuple[int, Any]] = []
        for raw in disk.batches:
            self._mark(raw)

    def _mark(self, raw: bytes) -> None:
        (batch,) = read_batches(raw)
        crc = int.from_bytes(raw[17:21], "big")
        self.marked.append((batch.base_offset, batch.last_offset + 1, batch.leader_epoch, crc))
        if not self.epochs or self.epochs[-1][0] < batch.leader_epoch:
            self.epochs.append((batch.leader_epoch, batch.base_offset))

    @property
    def log_start_offset(self) -> int:
        return self.disk.start

    @property
    def end_offset(self) -> int:
        return self.marked[-1][1] if self.marked else self.disk.empty_at

    @property
    def recovery_point(self) -> int:
        return self.marked[self.disk.synced - 1][1] if self.disk.synced else self.disk.empty_at

    @property
    def size(self) -> int:
        return sum(map(len, self.disk.batches))

    def append(self, batch: Any, now_ms: int, *, origin: str = "", epoch: int | None = None) -> int:
        raw = bytes(batch)
        (read,) = read_batches(raw)
        assert read.base_offset == self.end_offset
        assert read.is_intact()
        assert not self.epochs or read.leader_epoch >= self.epochs[-1][0]
        self.disk.batches.append(raw)
        self._mark(raw)
        return read.base_offset

    def flush(self) -> None:
        self.disk.synced = len(self.disk.batches)

    def await_flushed(self, offset: int, callback: Any) -> None:
        count = len(self.disk.batches)

        def done() -> None:
            self.disk.synced = max(self.disk.synced, min(count, len(self.disk.batches)))
            callback(None)

        self._flush_later(done)

    def batches(self, start: int, end: int) -> Any:
        for (base, after, _, _), raw in zip(list(self.marked), list(self.disk.batches), strict=True):
            if after > start and base < end:
                yield raw

    def set_leader_epoch(self, epoch: int) -> None:
        assert epoch >= self.leader_epoch
        self.leader_epoch = epoch

    def _keep(self, first: int, last: int) -> None:
        self.disk.batches = self.disk.batches[first:last]
        self.disk.synced = min(max(self.disk.synced - first, 0), len(self.disk.batches))
        self.marked, self.epochs, raws = [], [], self.disk.batches
        for raw in raws:
            self._mark(raw)

    def delete_records(self, before_offset: int) -> int:
        self.disk.start = max(self.disk.start, before_offset)
        return self.disk.start

    def apply_retention(self, now_ms: int) -> int:
        end = self.end_offset
        first = sum(each[1] <= self.disk.start for each in self.marked)
        if first == len(self.marked):
            self.disk.empty_at = end
        self._keep(first, len(self.marked))
        return first

    def truncate_to(self, offset: int) -> bool:
        if offset >= self.end_offset:
            return False
        kept = sum(each[1] <= offset for each in self.marked)
        if not kept and self.marked:
            self.disk.empty_at = self.marked[0][0]
        self._keep(0, kept)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._keep(0, 0)
        self.disk.start = self.disk.empty_at = offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """As log/leader_epochs."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        after = next((start for each, start in self.epochs if each > epoch), self.end_offset)
        return max((each for each, _ in self.epochs if each <= epoch), default=epoch), after

    def advance_high_watermark(self, offset: int) -> None:
        assert offset <= self.end_offset

    def close(self) -> None:
        pass


class SimFiles:
    """What lies beside the log: each file is there whole or not at all."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._part = b""

    def read_bootstrap(self) -> bytes | None:
        return None

    def read_quorum_state(self) -> bytes | None:
        return self.disk.quorum_state

    def write_quorum_state(self, content: bytes) -> None:
        self.disk.quorum_state = content

    def snapshots(self) -> list[tuple[int, int]]:
        return sorted(self.disk.snapshots)

    def read_snapshot(self, snapshot: tuple[int, int]) -> bytes:
        return self.disk.snapshots[snapshot]

    def read_piece(self, snapshot: tuple[int, int], position: int, size: int) -> bytes:
        return self.disk.snapshots[snapshot][position : position + size]

    read_beginning = read_snapshot

    def write_snapshot(self, snapshot: tuple[int, int], pieces: Any) -> int:
        self.disk.snapshots[snapshot] = b"".join(bytes(piece) for piece in pieces)
        return len(self.disk.snapshots[snapshot])

    def write_part(self, snapshot: tuple[int, int], position: int, piece: Any) -> None:
        self._part = self._part[:position] + bytes(piece)

    def finish_part(self, snapshot: tuple[int, int]) -> None:
        self.disk.snapshots[snapshot] = self._part

    def delete_snapshot(self, snapshot: tuple[int, int]) -> None:
        del self.disk.snapshots[snapshot]

    def size(self, snapshot: tuple[int, int]) -> int:
        return len(self.disk.snapshots[snapshot])

    def set_aside(self, snapshot: tuple[int, int]) -> str:
        raise AssertionError(f"snapshot {snapshot} is damaged")

    def delete_leftovers(self) -> None:
        self._part = b""


class Checks:
    """What holds at every moment; `committed` is what any node ever called committed."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}  # by epoch
        self.committed: list[
            tuple[int, int, int, int]
        ] = []  # batches from offset 0 on: base, end, epoch, CRC
        self.end = 0
        self.epochs: dict[int, int] = {}  # by node, also over its lives
        self.watermarks: dict[int, int] = {}  # by node, in its life

    def look(self, world: "Quorum", node_id: int) -> None:
        node = world.nodes[node_id]
        log: SimLog = node._log
        assert node.epoch >= self.epochs.get(node_id, 0), "an epoch went back"
        self.epochs[node_id] = node.epoch
        before = self.watermarks.get(node_id, 0)
        assert node.high_watermark >= before, "a high watermark went back"
        assert node.high_watermark <= log.end_offset, "what is committed was cut off"
        self.watermarks[node_id] = node.high_watermark
        if node.role is Role.LEADER and self.leaders.setdefault(node.epoch, node_id) != node_id:
            raise AssertionError(f"epoch {node.epoch} has two leaders: {self.leaders[node.epoch]}, {node_id}")
        if node.high_watermark > before:
            if node.role is Role.LEADER:
                self._has_majority(world, node.high_watermark, list(node.voters))
            self._agrees(log, before, node.high_watermark)
        assert node.image.offset < max(self.end, 1), "what is not committed was applied"

    def _has_majority(self, world: "Quorum", end: int, voters: list[int]) -> None:
        holders = sum(world.durable_end(voter) >= end for voter in voters)
        assert holders > len(voters) // 2, f"offset {end} is committed on {holders} disks"

    def _agrees(self, log: SimLog, start: int, end: int) -> None:
        for mark in log.marked:
            base, after, _, _ = mark
            if after <= start or base >= end:
                continue
            assert after <= end, "a batch is committed in part"
            if base == self.end:
                self.committed.append(mark)
                self.end = after
            else:
                assert base < self.end, f"offset {base} is committed, and {self.end} is not"
                assert mark in self.committed, f"two committed records at offset {base}"

    def new_leader(self, log: SimLog) -> None:
        """It has all that was ever committed (Raft: leader completeness)."""
        assert log.end_offset >= self.end, "a leader lacks what was committed"
        own = set(log.marked)
        for mark in self.committed:
            assert mark[1] <= log.log_start_offset or mark in own, f"a leader has another {mark}"


class Quorum:
    """`nodes` by id, those that run. `voters` of `static` ids; `observers` follow without a vote."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 0, *, dynamic: bool = False) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(now_ms=1_700_000_000_000, monotonic_ms=1_000)
        self.voters = tuple(range(1, voters + 1))
        self.all = tuple(range(1, voters + observers + 1))
        self.dynamic = dynamic
        self.joining: set[int] = set()  # nodes that become voters by themselves
        self.directories = {each: bytes([each]) * 16 for each in self.all}
        self.moved: dict[int, int] = {}  # ports, by node; else 9093
        self.disks = {each: Disk() for each in self.all}
        if dynamic:
            first = [Voter(each, bytes([each]) * 16, self.endpoints(each)) for each in self.voters]
            for each in self.voters:
                self.disks[each].snapshots[0, 0] = build_voters_checkpoint(first, 0)
        self.nodes: dict[int, RaftNode] = {}
        self.lives = dict.fromkeys(self.all, 0)
        self.cut: set[tuple[int, int]] = set()  # from, to
        self.flush_ms = (1, 8)
        self.net_ms = (1, 15)
        self.checks = Checks()
        self.appended = 0
        self.told: list[str] = []  # the trace
        self.refusing: set[tuple[int, int]] = set()  # links on which something between refuses connections
        self.unanswered: dict[int, set[tuple[int, int, int]]] = {each: set() for each in self.all}
        self.without_power: set[int] = set()  # of those that are down
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._polls: dict[int, int] = {}
        self._led: set[tuple[int, int]] = set()
        for each in self.all:
            self.start(each)

    def endpoints(self, node_id: int) -> dict[str, tuple[str, int]]:
        return {"CONTROLLER": (f"node-{node_id}", self.moved.get(node_id, 9093))}

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.monotonic_ms()

    def after(self, ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ms, next(self._count), event))

    def run(self, ms: int) -> None:
        until = self.now + ms
        while self._events and self._events[0][0] <= until:
            at, _, event = heapq.heappop(self._events)
            self.clock.advance(at - self.now)
            event()
        self.clock.advance(until - self.now)

    def say(self, what: str) -> None:
        self.told.append(f"{self.now:>8} {what}")

    # -- nodes ---------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        if node_id in self.nodes:
            return
        disk, life = self.disks[node_id], self.lives[node_id]
        log = SimLog(disk, f"node-{node_id}", lambda done: self.after(
            self.chance.randint(*self.flush_ms), lambda: self._if_alive(node_id, life, done)
        ))  # fmt: skip
        node = RaftNode(
            random=self.chance,
            send=lambda to, host, port, request, token: self._send(
                node_id, life, int(host.removeprefix("node-")), request, token
            ),
            wake=lambda: self._poll_at(node_id, 0),
            endpoints=self.endpoints(node_id),
            bootstrap=[(f"node-{each}", 9093) for each in self.all] if self.dynamic else (),
            node_id=node_id,
            directory_id=self.directories[node_id],
            auto_join=node_id in self.joining,
            cluster_id=CLUSTER,
            log=log,
            files=SimFiles(disk),
            clock=self.clock,
            static_voters={} if self.dynamic else {each: (f"node-{each}", 9093) for each in self.voters},
            fetch_bytes_max=self.chance.choice((200, 1_000, 1 << 20)),
            snapshot_bytes_max=self.chance.choice((100, 1 << 20)),
        )
        self.checks.watermarks.pop(node_id, None)
        node.on_role = lambda: self._role(node_id)
        self.nodes[node_id] = node
        node.open()
        self.say(f"node {node_id} starts as {node.role.value}, epoch {node.epoch}, end {log.end_offset}")
        self._polls.pop(node_id, None)
        self._poll_at(node_id, 0)

    def _role(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.say(f"node {node_id} is {node.role.value} in epoch {node.epoch}, end {node.end_offset}")
        if node.role is Role.LEADER and (node_id, node.epoch) not in self._led:
            self._led.add((node_id, node.epoch))
            self.checks.new_leader(node._log)

    def crash(self, node_id: int, *, power: bool = True) -> None:
        """`power`: its machine stays, and refuses connections."""
        if self.nodes.pop(node_id, None) is not None:
            (self.without_power.discard if power else self.without_power.add)(node_id)
            for source, life, token in sorted(self.unanswered[node_id] if power else ()):
                if self._reaches(node_id, source):  # its kernel closes the connection
                    self.after(self._delay(), lambda of=(source, life, token): self._refused(*of, False))
            self.unanswered[node_id].clear()
            self.lives[node_id] += 1
            self.disks[node_id].crash(self.chance)
            self.say(f"node {node_id} crashes")

    def _if_alive(self, node_id: int, life: int, event: Callable[[], None]) -> None:
        if node_id in self.nodes and self.lives[node_id] == life:
            event()
            self._looked(node_id)

    def _looked(self, node_id: int) -> None:
        node = self.nodes[node_id]
        while node.apply():
            assert node.high_watermark <= node.end_offset, "what is committed was cut off"
        self.checks.look(self, node_id)

    def _poll_at(self, node_id: int, ms: int) -> None:
        at, life = self.now + ms, self.lives[node_id]
        if self._polls.get(node_id, NEVER) <= at:
            return
        self._polls[node_id] = at
        self.after(ms, lambda: self._poll(node_id, life, at))

    def _poll(self, node_id: int, life: int, at: int) -> None:
        if self.lives[node_id] != life or node_id not in self.nodes or self._polls.get(node_id) != at:
            return
        del self._polls[node_id]
        ms = self.nodes[node_id].poll()
        self._looked(node_id)
        if ms < DAY_MS:
            self._poll_at(node_id, max(ms, 1))

    def durable_end(self, node_id: int) -> int:
        disk = self.disks[node_id]
        node = self.nodes.get(node_id)
        if node is not None:
            return int(node._log.recovery_point)
        for batch in read_batches(disk.batches[-1] if disk.batches else b""):
            return int(batch.last_offset + 1)
        return disk.empty_at

    # -- network -------------------------------------------------------------------------------------------

    def _reaches(self, source: int, target: int) -> bool:
        return (source, target) not in self.cut

    def _delay(self) -> int:
        return self.chance.randint(*self.net_ms)

    def _send(self, source: int, life: int, target: int, request: Any, token: int) -> None:
        version = VERSIONS[type(request)]
        copy, _ = codec.decode(type(request), version, codec.encode(request, version))
        if (source, target) in self.refusing:
            self.after(self._delay(), lambda: self._refused(source, life, token))
            return
        if not self._reaches(source, target):
            return  # no word of it: the time-out tells
        if target not in self.nodes:
            self.after(
                self._delay(), lambda: self._refused(source, life, token, target not in self.without_power)
            )
            return
        there = self.lives[target]

        asked = (source, life, token)

        def reply(response: Any) -> None:
            self.unanswered[target].discard(asked)
            cls = type(response)
            back, _ = codec.decode(cls, version, codec.encode(response, version))
            if self._reaches(target, source):
                self.after(self._delay(), lambda: self._answered(source, life, token, back))

        def arrive() -> None:
            if self.lives[target] != there or target not in self.nodes:
                self._answered(source, life, token, None)
            elif type(copy) is messages.ApiVersionsRequest:
                cls = messages.ApiVersionsResponse
                feature = cls.SupportedFeatures(name="kraft.version", min_version=0, max_version=1)
                reply(cls(supported_features=[feature]))
            elif self._reaches(source, target):
                self.unanswered[target].add(asked)
                self.nodes[target].handle(copy, reply)
                self._looked(target)
                self._poll_at(target, 0)

        self.after(self._delay(), arrive)

    def _answered(self, source: int, life: int, token: int, response: Any) -> None:
        self._if_alive(source, life, lambda: self.nodes[source].response(token, response))

    def _refused(self, source: int, life: int, token: int, refused: bool = True) -> None:
        self._if_alive(source, life, lambda: self.nodes[source].response(token, None, refused=refused))

    def isolate(self, node_id: int) -> None:
        self.cut |= {(node_id, other) for other in self.all} | {(other, node_id) for other in self.all}

    def heal(self) -> None:
        self.cut.clear()
        self.refusing.clear()

    # -- what clients and operators do ---------------------------------------------------------------------

    @property
    def leaders(self) -> list[int]:
        return [each for each, node in self.nodes.items() if node.role is Role.LEADER]

    def append(self, node_id: int, count: int = 1) -> int:
        """A topic or more; -1 where it does not lead."""
        node = self.nodes[node_id]
        records: list[Any] = []
        if node.end_offset <= 1 or not node.image.features:
            records.append(messages.FeatureLevelRecord(name="metadata.version", feature_level=LEVEL))
        for _ in range(count):
            self.appended += 1
            name = f"t{self.appended}"
            records.append(messages.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\1")))
        values = [encode_record(record, LEVEL) for record in records]
        try:
            offset = node.append(
                lambda base: data_batch(
                    values, base_offset=base, epoch=node.epoch, now_ms=self.clock.now_ms()
                )
            )
        except KafkaError as refused:
            assert refused.code == errors.NOT_LEADER_OR_FOLLOWER
            return -1
        self._poll_at(node_id, 0)
        return offset

    def ask(self, node_id: int, request: Any) -> list[Any]:
        """At once, by hand: where its answer will be."""
        answers: list[Any] = []
        self.nodes[node_id].handle(request, answers.append)
        self._looked(node_id)
        self._poll_at(node_id, 0)
        return answers

    def add(self, leader: int, node_id: int, *, timeout_ms: int = 10_000, acked: bool = True) -> list[Any]:
        cls = messages.AddRaftVoterRequest
        listeners = [
            cls.Listeners(name=name, host=host, port=port)
            for name, (host, port) in self.endpoints(node_id).items()
        ]
        self.say(f"node {leader} is to add {node_id}")
        return self.ask(leader, cls(
            cluster_id=CLUSTER, timeout_ms=timeout_ms, voter_id=node_id,
            voter_directory_id=bytes([node_id]) * 16, listeners=listeners, ack_when_committed=acked,
        ))  # fmt: skip

    def remove(self, leader: int, node_id: int) -> list[Any]:
        cls = messages.RemoveRaftVoterRequest
        self.say(f"node {leader} is to remove {node_id}")
        return self.ask(leader, cls(
            cluster_id=CLUSTER, voter_id=node_id, voter_directory_id=bytes([node_id]) * 16
        ))  # fmt: skip

    def snapshot(self, node_id: int) -> None:
        """Of what is applied; older ones, and the log below it, go."""
        node = self.nodes[node_id]
        image = node.image
        if image.offset < 0 or (node.last_snapshot is not None and image.offset + 1 <= node.last_snapshot[0]):
            return
        made = node.begin_snapshot(image)
        node.write_snapshot(image)
        node.last_snapshot = made
        files, log = node._files, node._log
        for older in files.snapshots()[:-1]:
            files.delete_snapshot(older)
        log.delete_records(made[0])
        log.apply_retention(0)
        self.say(f"node {node_id} makes snapshot {made}")

    def settle(self, ms: int = 20_000) -> None:
        """All is mended; what is appended then is committed everywhere."""
        self.heal()
        for each in self.all:
            self.start(each)
        self.run(ms)
        (leader,) = self.leaders
        before = self.checks.end
        offset = self.append(leader)
        assert offset >= before
        self.run(5_000)
        assert self.checks.end > offset
        for each, node in self.nodes.items():
            assert node.high_watermark == self.checks.end, f"node {each} lags"
            assert node.image.topics == self.nodes[leader].image.topics
            assert node.voters == self.nodes[leader].voters
