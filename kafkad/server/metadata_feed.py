"""Metadata in every worker: worker 0 writes it, the others follow.

    worker 0                          every other worker
    commit → its own partitions
    CHANGE (offset, records) ──────→  image, delta → its own partitions
    ANNOUNCE (topic, index, row, directory) between all: a partition that I have opened
    APPLIED offset            between all: I have announced everything that I opened up to this offset
    COMPLETE offset ←───────────────  I have APPLIED from all others

So when a change is answered, every worker knows the topic, its owners have opened it, and every worker finds
its partitions at their owners. Workers that are gone or slow are waited for no longer than SETTLE_S; their
clients get a retriable error.

A worker gets its first image before it opens logs: through FirstImage when the broker starts, from worker 0's
answer when the worker is restarted. It then sends FOLLOW with its offset, on every new connection to worker
0, and gets what it lacks: the changes since then, or the whole image. So a repeated change is recognised by
its offset, and a missing one by the gap.

Beware: an announcement may come before its change; replication.Partitions keeps it until then."""

import asyncio
import inspect
import json
import logging
import os
import select
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

from kafkad.api.context import Images, OwnRequests, RequestContext
from kafkad.config.broker import BrokerConfig
from kafkad.controller.controller import Controller
from kafkad.log.log import Log
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.records import decode_record, encode_record
from kafkad.metadata.replay import Delta, Replay, ReplayError
from kafkad.metadata.replay import applied as replayed
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.replication.partitions import NO_ROW, Partitions
from kafkad.server import creation
from kafkad.server.controller_queue import AnsweringController, Serial, awaited
from kafkad.server.turns import Steps, Turns
from kafkad.server.worker_links import PeerLost, Peers, PeerTrouble

logger = logging.getLogger("kafkad")

# Kinds of messages between workers; server.routing has its own.
IMAGE, FOLLOW, CHANGE, ANNOUNCE, WITHDRAW, APPLIED, COMPLETE, CREATE, PLACED, OFFLINE, IDS = range(100, 111)

LEADER = 0  # the worker that writes metadata
SETTLE_S = 5.0  # how long a change waits for the other workers
CREATE_TIMEOUT_S = 15.0
KEPT_BYTES = 4 << 20  # of changes, kept for workers that reconnect
ANNOUNCED_AT_ONCE = 2000  # partitions in one message

RECORDS_A_STEP = 50  # records decoded or applied before others may run

FROM_NOTHING = -2  # previous offset of a whole image; an empty image has offset -1
# previous offset, offset, epoch, timestamp, kraft version, count of records, bytes of packed topics
CHANGE_HEADER = struct.Struct("<qqiqhII")
SIZE = struct.Struct("<I")
OFFSET = struct.Struct("<q")


class FirstImage:
    """The image with which all workers of a starting broker begin: worker 0 writes it once, the others read
    it. It is created before the fork. Reading and writing do not need any other worker to be alive."""

    def __init__(self) -> None:
        self._file = os.memfd_create("kafkad-metadata", os.MFD_CLOEXEC)
        self._there = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # set for ever; never read

    def publish(self, change: bytes) -> None:
        """Publish it: called by worker 0, or by its successor if it died before."""
        if self._is_there(0):
            return
        os.ftruncate(self._file, 0)
        written = 0
        while written < len(change):
            written += os.pwrite(self._file, change[written:], written)
        os.eventfd_write(self._there, 1)

    def wait(self) -> bytes:
        while not self._is_there(1000):
            pass
        size = os.fstat(self._file).st_size
        return os.pread(self._file, size, 0)

    def _is_there(self, wait_ms: int) -> bool:
        poll = select.poll()
        poll.register(self._there, select.POLLIN)
        return bool(poll.poll(wait_ms))


class Change(NamedTuple):
    previous: int  # the offset before it
    offset: int
    epoch: int
    timestamp_ms: int
    kraft_version: int
    records: list[Any]
    topics: bytes | memoryview  # packed; only with a whole image


def encode_change(previous: int, image: MetadataImage, values: Sequence[bytes], topics: bytes = b"") -> bytes:
    """Encode a change: `values`, encoded records, lead from the image at `previous` to this one."""
    header = CHANGE_HEADER.pack(
        previous,
        image.offset,
        image.epoch,
        image.timestamp_ms,
        image.kraft_version,
        len(values),
        len(topics),
    )
    return b"".join([header, *(SIZE.pack(len(each)) + each for each in values), topics])


def encode_image(image: MetadataImage) -> bytes:
    level = image.metadata_version
    values = [encode_record(record, level) for record in image.records(topics=False)]
    return encode_change(FROM_NOTHING, image, values, image.pack_topics())


def decode_change(content: bytes | memoryview) -> Change:
    steps = decode_steps(content)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            change: Change = end.value
            return change


def decode_steps(content: bytes | memoryview) -> Generator[None, None, Change]:
    """Do `decode_change`, a few records per step."""
    header = CHANGE_HEADER.unpack_from(content)
    previous, offset, epoch, timestamp_ms, kraft_version, count, topics_size = header
    view, position, records = memoryview(content), CHANGE_HEADER.size, []
    for number in range(count):
        (size,) = SIZE.unpack_from(view, position)
        position += SIZE.size
        records.append(decode_record(view[position : position + size]))
        position += size
        if number % RECORDS_A_STEP == 0:
            yield
    assert position + topics_size == len(view)
    return Change(previous, offset, epoch, timestamp_ms, kraft_version, records, view[position:])


def image_of(change: Change, empty: MetadataImage) -> MetadataImage:
    """Return the whole image that `encode_image` sent; `empty` has cluster id and controller."""
    assert change.previous == FROM_NOTHING
    image, _ = apply_change(change, empty)
    image.unpack_topics(change.topics)
    return image


def apply_change(change: Change, image: MetadataImage) -> tuple[MetadataImage, Delta]:
    place = {"offset": change.offset, "epoch": change.epoch, "timestamp_ms": change.timestamp_ms}
    new, delta = replayed(image, change.records, **place)
    new.kraft_version = change.kraft_version
    return new, delta


def apply_steps(
    change: Change, image: MetadataImage, left_out: Callable[[ReplayError], None] | None = None
) -> Generator[None, None, tuple[MetadataImage, Delta]]:
    """Do `apply_change`, a few records per step."""
    replay = Replay(image, left_out)
    for number, record in enumerate(change.records):
        replay.apply(record)
        if number % RECORDS_A_STEP == 0:
            yield
    new, delta = replay.finish(change.offset, change.epoch, change.timestamp_ms)
    new.kraft_version = change.kraft_version
    return new, delta


def difference(old: MetadataImage, new: MetadataImage) -> Delta:
    """Return the difference between two images if the records in between are not known."""
    delta = Delta()
    for topic in old.topics.values():
        if topic.topic_id not in new.topics_by_id:
            delta.topics_deleted.append(topic)
    for name, topic in new.topics.items():
        if topic.topic_id not in old.topics_by_id:
            delta.topics_created.add(name)
        before = old.topics.get(name)
        if before != topic:
            delta.topics_changed.add(name)
            known = {} if before is None or before.topic_id != topic.topic_id else before.partitions
            delta.partitions_changed[topic.topic_id] = {
                index for index, state in topic.partitions.items() if known.get(index) != state
            }
    delta.configs_changed = _differing(old.configs, new.configs)
    delta.brokers_changed = _differing(old.brokers, new.brokers)
    delta.features_changed = old.features != new.features
    delta.acls_changed = _differing(old.acls, new.acls)
    delta.quotas_changed = _differing(old.client_quotas, new.client_quotas)
    delta.security_changed = any(
        getattr(old, part) != getattr(new, part)
        for part in ("acls", "client_quotas", "delegation_tokens", "scram_credentials")
    )
    return delta


def _differing(old: dict[Any, Any], new: dict[Any, Any]) -> set[Any]:
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


class Feed:
    """One worker's part in the feed. `metadata.image` is its image. `on_change(delta, image)` applies a
    change to this worker and sets `metadata.image`; it is called only for changes from worker 0."""

    def __init__(
        self,
        peers: Peers,
        metadata: Images,
        partitions: Partitions,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[Delta, MetadataImage], None],
        applied: Callable[[], int] | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`applied`: the offset up to which `on_change` has done its work; None: the work is done when it
        returns. Call `tell_applied` when that offset has moved. `turns` runs long work."""
        self.peers = peers
        self.metadata = metadata
        self.partitions = partitions
        self._loop = loop
        self._on_change = on_change
        self._changes = Serial(turns or Turns(loop), loop)  # changes from worker 0, in order
        self._applied_here = applied if applied is not None else lambda: self.offset
        self._applied: dict[int, int] = {}  # as reported by each worker that is up
        self._completed: dict[int, int] = {}  # worker 0: as reported by each worker that is up
        self._told_complete = -1
        self._kept: deque[tuple[int, bytes]] = deque()  # worker 0: (previous offset, change)
        self._kept_bytes = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for an offset to be complete
        self._opened: list[tuple[Any, ...]] = []  # not announced yet
        self._following = False
        self._followed = asyncio.Event()  # we have what worker 0 had when we asked
        self._closed = False
        self.left_out: Callable[[ReplayError], None] | None = None  # as metadata.replay.Loader's
        self.on_fatal: Callable[[BaseException], None] = _raise
        handlers = {
            FOLLOW: self._follow_from,
            IMAGE: lambda _, __: encode_image(self.metadata.image),
            CHANGE: lambda _, payload: self._take(payload),
            ANNOUNCE: self._hear_announced,
            WITHDRAW: self._hear_withdrawn,
            APPLIED: self._hear_applied,
            COMPLETE: self._hear_complete,
        }
        for kind, handler in handlers.items():
            peers.handle(kind, handler)
        partitions.on_opened = self._log_opened
        partitions.on_dropped = self._log_dropped
        partitions.on_failed = self._log_failed
        peers.on_up(self._up)
        peers.on_down(self._down)

    @property
    def offset(self) -> int:
        return int(self.metadata.image.offset)

    @property
    def leads(self) -> bool:
        return self.peers.me == LEADER

    def close(self) -> None:
        self._closed = True
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    # -- worker 0 ------------------------------------------------------------------------------------------

    def committed(self, values: Sequence[bytes], previous: int, image: MetadataImage) -> None:
        """Called by worker 0, once the change is on disk and applied here. `values`: its encoded records."""
        assert self.leads
        change = encode_change(previous, image, values)
        self._kept.append((previous, change))
        self._kept_bytes += len(change)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        for k in self.peers.up:
            self.peers.tell(k, CHANGE, change)
        self.tell_applied()

    def replaced(self) -> None:
        """Called by worker 0: its image was replaced, and the records in between are not known."""
        assert self.leads
        self._kept.clear()
        self._kept_bytes = 0
        change = encode_image(self.metadata.image)
        for k in self.peers.up:
            self.peers.tell(k, CHANGE, change)
        self.tell_applied()

    def _follow_from(self, sender: int, payload: bytes) -> bytes:
        """Return what a worker at an offset lacks."""
        (offset,) = OFFSET.unpack(payload)
        if offset == self.offset:
            changes = []
        elif any(previous == offset for previous, _ in self._kept):
            changes = [change for previous, change in self._kept if previous >= offset]
        else:
            changes = [encode_image(self.metadata.image)]
        return b"".join(SIZE.pack(len(change)) + change for change in changes)

    def _hear_complete(self, sender: int, payload: bytes) -> None:
        (self._completed[sender],) = OFFSET.unpack(payload)
        self._settle()

    # -- the other workers ---------------------------------------------------------------------------------

    def _ask_to_follow(self) -> None:
        if self._following or self._closed:
            return
        self._following = True
        asked = self.peers.call(LEADER, FOLLOW, OFFSET.pack(self.offset))
        asked.add_done_callback(self._follow)

    def _follow(self, answer: "asyncio.Future[bytes]") -> None:
        self._following = False
        if answer.cancelled() or self._closed:
            return
        if isinstance(answer.exception(), PeerLost):
            return  # its successor is asked when it is up
        content, position = memoryview(answer.result()), 0
        while position < len(content):
            (size,) = SIZE.unpack_from(content, position)
            position += SIZE.size
            self._take(content[position : position + size])
            position += size
        self._run(self._has_followed())

    def _has_followed(self) -> Steps:
        self._followed.set()
        self.tell_applied()
        return
        yield

    def _take(self, content: bytes | memoryview) -> None:
        """Take a change from worker 0, after all earlier changes."""
        assert not self.leads
        self._run(self._take_steps(content))

    def _run(self, steps: Steps) -> None:
        result = self._changes.run(steps)
        if inspect.isawaitable(result):
            asyncio.ensure_future(result).add_done_callback(self._taken)

    def _taken(self, task: "asyncio.Future[Any]") -> None:
        if not task.cancelled() and (trouble := task.exception()) is not None:
            self.on_fatal(trouble)

    def _take_steps(self, content: bytes | memoryview) -> Steps:
        change = yield from decode_steps(content)
        old: MetadataImage = self.metadata.image
        if change.previous == FROM_NOTHING:
            image = image_of(change, MetadataImage(old.cluster_id, old.controller_id))
            delta = difference(old, image)
        elif change.offset <= old.offset:
            return
        elif change.previous != old.offset:
            self._ask_to_follow()
            return
        else:
            image, delta = yield from apply_steps(change, old, self.left_out)
        self._on_change(delta, image)
        assert self.metadata.image is image
        self.tell_applied()

    # -- between all workers -------------------------------------------------------------------------------

    def _up(self, k: int) -> None:
        self._applied[k] = -1
        self._announce(k, [_announcement(log) for log in self.partitions])
        self._announce(k, [_not_opened(*each) for each in self.partitions.failed()])
        self.peers.tell(k, APPLIED, OFFSET.pack(self._applied_here()))
        if self.leads:
            self._completed[k] = -1
        elif k == LEADER:
            self._told_complete = -1
            self._ask_to_follow()

    def _down(self, k: int) -> None:
        self._applied.pop(k, None)
        self._completed.pop(k, None)
        self._settle()

    def _log_opened(self, log: Log) -> None:
        self._announce_soon(_announcement(log))

    def _log_failed(self, topic: str, index: int, topic_id: bytes) -> None:
        self._announce_soon(_not_opened(topic, index, topic_id))

    def _announce_soon(self, announcement: tuple[Any, ...]) -> None:
        if not self._opened:
            self._loop.call_soon(self._announce_opened)  # not only changes open partitions
        self._opened.append(announcement)

    def _log_dropped(self, topic: str, index: int, topic_id: bytes) -> None:
        gone = json.dumps([topic, index, topic_id.hex()]).encode()
        for k in self.peers.up:
            self.peers.tell(k, WITHDRAW, gone)

    def _announce_opened(self) -> None:
        opened, self._opened = self._opened, []
        for k in self.peers.up:
            self._announce(k, opened)

    def tell_applied(self) -> None:
        """Announce what this worker has opened, and up to which offset that is everything."""
        self._announce_opened()
        for k in self.peers.up:
            self.peers.tell(k, APPLIED, OFFSET.pack(self._applied_here()))
        self._settle()

    def _announce(self, k: int, opened: list[tuple[Any, ...]]) -> None:
        for first in range(0, len(opened), ANNOUNCED_AT_ONCE):
            content = json.dumps(opened[first : first + ANNOUNCED_AT_ONCE]).encode()
            self.peers.tell(k, ANNOUNCE, content)

    def _hear_announced(self, sender: int, payload: bytes) -> None:
        for topic, index, topic_id, row, directory in json.loads(payload):
            self.partitions.announced(topic, bytes.fromhex(topic_id), index, row, directory, sender)

    def _hear_withdrawn(self, sender: int, payload: bytes) -> None:
        topic, index, topic_id = json.loads(payload)
        self.partitions.withdrawn(topic, bytes.fromhex(topic_id), index, sender)

    def _hear_applied(self, sender: int, payload: bytes) -> None:
        (self._applied[sender],) = OFFSET.unpack(payload)
        self._settle()

    # -- completeness --------------------------------------------------------------------------------------

    def is_complete(self, offset: int) -> bool:
        """Return whether `complete` would not wait."""
        complete = self._complete_here()
        return offset <= (min([complete, *self._completed.values()]) if self.leads else complete)

    def _complete_here(self) -> int:
        return min([self._applied_here(), *self._applied.values()])

    def _settle(self) -> None:
        """An offset has moved: resume the waiters that it completes."""
        complete = self._complete_here()
        if not self.leads:
            if complete != self._told_complete and self.peers.tell(LEADER, COMPLETE, OFFSET.pack(complete)):
                self._told_complete = complete
        else:
            complete = min([complete, *self._completed.values()])
        still = []
        for offset, future in self._waiting:
            if offset > complete:
                still.append((offset, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still

    async def complete(self, offset: int, timeout_s: float | None) -> bool:
        """Wait until this worker (worker 0: every worker) is complete at `offset`. False: not in time."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((offset, future))
        self._settle()
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self._waiting = [each for each in self._waiting if each[1] is not future]
            return False
        return True

    async def settled(self, offset: int) -> None:
        """Wait until all workers are complete at `offset`, or SETTLE_S is over."""
        while not await self.complete(offset, SETTLE_S):
            if self._applied_here() < offset:
                continue  # a long change: this worker is still applying it
            logger.warning(
                "metadata offset %d is not known to all workers after %g s: applied %s, complete %s",
                offset,
                SETTLE_S,
                self._applied,
                self._completed,
            )
            break

    async def join(self, *, timeout_s: float | None) -> None:
        """Wait until all other workers are up, this one has what worker 0 has, and knows what the others have
        opened; or until `timeout_s` is over, for workers that are not up."""
        ups = [self.peers.wait_up(k) for k in range(self.peers.count) if k != self.peers.me]
        try:
            await asyncio.wait_for(asyncio.gather(*ups), timeout_s)
        except TimeoutError:
            there = sorted(self.peers.up)
            logger.warning("began without all other workers after %g s: %s are there", timeout_s, there)
        if not self.leads:
            await self._followed.wait()
        await self.complete(self.offset, SETTLE_S)


def _raise(trouble: BaseException) -> None:
    raise trouble


def _announcement(log: Log) -> tuple[Any, ...]:
    return log.topic, log.partition, log.topic_id.hex(), log.native.slot.number, log.directory


def _not_opened(topic: str, index: int, topic_id: bytes) -> tuple[Any, ...]:
    return topic, index, topic_id.hex(), NO_ROW, ""


class LeadingController(AnsweringController[Controller]):
    """The controller of worker 0 with other workers: a change is answered when all workers know it."""

    def __init__(
        self, controller: Controller, turns: Turns, loop: asyncio.AbstractEventLoop, feed: Feed
    ) -> None:
        super().__init__(controller, turns, loop)
        self._feed = feed
        ForOthers(self, feed.peers, turns)

    def _is_applied(self, offset: int) -> bool:
        return self._feed.is_complete(offset)

    async def _applied(self, offset: int) -> None:
        await self._feed.settled(offset)


class ForOthers:
    """Worker 0's side of RemoteController."""

    def __init__(self, controller: OwnRequests, peers: Peers, turns: Turns) -> None:
        self._controller = controller
        self._turns = turns
        peers.handle(CREATE, self._create)
        peers.handle(PLACED, self._placed)
        peers.handle(IDS, self._producer_ids)

    async def _create(self, _: int, payload: bytes) -> bytes:
        names, context = await awaited(self._turns.run(creation.decode_names(payload)))
        troubles = await awaited(self._controller.auto_create(names, context))
        answer: bytes = await awaited(self._turns.run(creation.encode_troubles(troubles)))
        return answer

    async def _producer_ids(self, _: int, payload: bytes) -> bytes:
        try:
            block = self._controller.allocate_producer_ids()
            first, count = block if isinstance(block, tuple) else await block
        except KafkaError as trouble:
            return json.dumps((trouble.code, 0, 0)).encode()
        return json.dumps((errors.NONE, first, count)).encode()

    def _placed(self, _: int, payload: bytes) -> None:
        self._controller.assign_directories(
            {
                (bytes.fromhex(topic_id), index): bytes.fromhex(directory)
                for topic_id, index, directory in json.loads(payload)
            }
        )


class RemoteController:
    """The controller, for the own requests of a worker other than 0. Requests of clients are forwarded
    unchanged."""

    def __init__(self, peers: Peers, turns: Turns) -> None:
        self._peers = peers
        self._turns = turns
        self._placed: dict[tuple[bytes, int], bytes] = {}
        peers.on_up(self._up)

    def _up(self, k: int) -> None:
        if k == LEADER and self._placed:  # the previous one may have died before it assigned them
            self.assign_directories(self._placed)

    def update_config(self, config: BrokerConfig) -> None:
        """Do nothing: worker 0 does it."""

    async def auto_create(
        self, names: Iterable[str], context: RequestContext | None = None
    ) -> dict[str, KafkaError | None]:
        """Do Controller.auto_create. If the outcome is unknown, the error is retriable."""
        wanted = list(names)
        asked = await awaited(self._turns.run(creation.encode_names(wanted, context)))
        try:
            answer = await self._peers.call(LEADER, CREATE, asked, timeout_s=CREATE_TIMEOUT_S)
        except (PeerLost, PeerTrouble, TimeoutError) as trouble:
            logger.warning("topics %s were not created: %s", creation.some_of(wanted), trouble)
            return dict.fromkeys(wanted, KafkaError(errors.LEADER_NOT_AVAILABLE))
        troubles: creation.Troubles = await awaited(self._turns.run(creation.decode_troubles(answer)))
        return troubles

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """Do Controller.allocate_producer_ids. A block whose outcome is unknown is never used."""
        try:
            answer = await self._peers.call(LEADER, IDS, b"", timeout_s=CREATE_TIMEOUT_S)
        except (PeerLost, PeerTrouble, TimeoutError) as trouble:
            logger.warning("no producer ids could be had: %s", trouble)
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS) from None
        code, first, count = json.loads(answer)
        if code:
            raise KafkaError(code)
        return first, count

    def assign_directories(self, placed: dict[tuple[bytes, int], bytes]) -> None:
        self._placed = placed
        rows = [(topic_id.hex(), index, directory.hex()) for (topic_id, index), directory in placed.items()]
        self._peers.tell(LEADER, PLACED, json.dumps(rows).encode())
