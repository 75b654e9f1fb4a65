"""Delivers markers from the transaction coordinator to the logs of partitions.

    other brokers' partitions      to their leaders, in a cluster (server/remote_markers)
    this worker's partitions       written in the next turn of the loop (api/markers), many of them in several
    another worker's partitions    one message for all markers in a turn of the loop (server/marker_messages)
    the same, and many of them     one WriteTxnMarkers, which that worker writes in several turns

A worker that is gone or does not answer counts as NOT_LEADER_OR_FOLLOWER: the coordinator tries again.
Writing a marker twice is harmless. Use: the transport of coordinator/markers."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kafkad.api.context import OURSELVES, RequestContext, Services, present
from kafkad.api.markers import write_marker
from kafkad.coordinator.markers import Marker, Written
from kafkad.coordinator.transaction import TopicPartition
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.gate_messages import pack_answer, unpack_answer
from kafkad.server.marker_messages import pack_markers, unpack_markers
from kafkad.server.routing import FORWARD, TIMEOUT_S, RemoteClient, pack
from kafkad.server.worker_links import Later, Outcome, PeerLost, PeerTrouble

logger = logging.getLogger(__name__)

WRITE_TXN_MARKERS, VERSION = 27, 2
US = "kafkad-transactions"  # the client id of these requests
TURN_S = 0.005  # of the loop, for the markers of one transaction
MARKERS = 3  # kind of message between peers
FEW = 64  # partitions: so many markers go in a message
# How long a message is worked on. Afterwards its sender may have sent the markers again, and begun another
# transaction, which they must not end.
ASKED_S = TIMEOUT_S / 2

Request = messages.WriteTxnMarkersRequest


class Pending:
    """One call of `write_markers`, with the answers so far."""

    __slots__ = ("codes", "done", "missing")

    def __init__(self, missing: int, done: Written) -> None:
        self.codes: dict[TopicPartition, int] = {}
        self.missing = missing
        self.done = done

    def put(self, partition: TopicPartition, code: int) -> None:
        if partition in self.codes:
            return
        self.codes[partition] = code
        self.missing -= 1
        if not self.missing:
            self.done(self.codes)


Share = tuple[Marker, list[TopicPartition], Pending]


class MarkerTransport:
    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop) -> None:
        self._services = services
        self._loop = loop
        self._shares: dict[int, list[Share]] = {}  # by worker, for this turn
        self._requests: dict[int, int] = {}  # by worker: how many tasks send it WriteTxnMarkers
        # What other workers asked for, in order: until when, an entry, a partition, whom to tell its code.
        self._left: deque[tuple[float, Any, TopicPartition, Callable[[int], object]]] = deque()
        self._spent_s = 0.0  # on that, of TURN_S until `_rests_until`, of the loop's time
        self._rests_until = 0.0
        self._rests = False
        if services.peers is not None:
            services.peers.handle(MARKERS, self._asked)

    def exists(self, partition: TopicPartition) -> bool:
        topic, index = partition
        found = self._services.metadata.image.topics.get(topic)
        return found is not None and index in found.partitions

    def write_markers(self, marker: Marker, partitions: list[TopicPartition], done: Written) -> None:
        pending = Pending(len(partitions), done)
        if self._services.remote_markers is not None:
            partitions = self._services.remote_markers.take(marker, partitions, pending)
        owner_of, me = self._services.owner_of, self._services.me
        by_worker: dict[int, list[TopicPartition]] = {}
        for topic, index in partitions:
            worker = me if owner_of is None else owner_of(topic, index)
            by_worker.setdefault(worker, []).append((topic, index))
        ours = by_worker.pop(me, [])
        for worker, share in by_worker.items():
            if not self._shares:
                self._loop.call_soon(self._flush)
            self._shares.setdefault(worker, []).append((marker, share, pending))
        if ours:  # after the client's answer, which does not wait for markers
            self._loop.call_soon(self._write_ours, entry_of(marker, ()), deque(ours), pending)

    def _write_ours(self, entry: Any, left: deque[TopicPartition], pending: Pending) -> None:
        """Write for TURN_S, then let others have a turn."""
        end = self._loop.time() + TURN_S
        while left:
            each = left.popleft()
            write_marker(self._services, *each, entry, partial(pending.put, each))
            if left and self._loop.time() >= end:
                self._loop.call_soon(self._write_ours, entry, left, pending)
                return

    def _flush(self) -> None:
        shares, self._shares = self._shares, {}
        for worker, its in shares.items():
            # A message may not overtake requests, which that worker serves in turns.
            if not self._requests.get(worker) and sum(len(share) for _, share, _ in its) <= FEW:
                self._send_few(worker, its)
            else:
                sent = self._loop.create_task(self._send_all(worker, its))
                sent.add_done_callback(_raise)

    def _send_few(self, worker: int, shares: list[Share]) -> None:
        def told(outcome: Outcome) -> None:
            answered: Sequence[int] = ()
            if isinstance(outcome, Exception):
                lost(worker, shares, outcome)
            else:
                answered = unpack_answer(outcome)
            codes = iter(answered)
            for _, partitions, pending in shares:
                for each in partitions:
                    pending.put(each, next(codes, errors.NOT_LEADER_OR_FOLLOWER))

        message = pack_markers((marker, partitions) for marker, partitions, _ in shares)
        present(self._services.peers).ask(worker, MARKERS, message, TIMEOUT_S).then(told)

    def _asked(self, _: int, payload: bytes) -> Later:
        """Write the markers of another worker's transactions."""
        answer = Later()
        codes: list[int] = []
        missing = 1
        timer: asyncio.TimerHandle | None = None
        ends_s = self._loop.time() + min(ASKED_S, self._services.config.request_timeout_ms / 1000)

        def one_less() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                if timer is not None:
                    timer.cancel()
                answer.arrive(pack_answer(codes))

        def put(place: int, code: int) -> None:
            codes[place] = code
            one_less()

        for marker, partitions in unpack_markers(payload):
            entry = entry_of(marker, ())
            for each in partitions:
                if self._services.partitions.has_replica(*each):
                    missing += 1
                    self._left.append((ends_s, entry, each, partial(put, len(codes))))
                    codes.append(errors.REQUEST_TIMED_OUT)
                else:
                    codes.append(errors.UNKNOWN_TOPIC_OR_PARTITION)  # as in Kafka: it is tried again
        one_less()
        if not self._rests:
            self._write_left()
        if missing:  # the others of the message are not to wait for one that does not become durable
            timer = self._loop.call_at(ends_s, lambda: answer.arrive(pack_answer(codes)))
        return answer

    def _write_left(self) -> None:
        """Write what other workers asked for, half of the time if it is much: a turn of the loop may bring
        many messages."""
        self._rests = False
        begun = self._loop.time()
        if begun >= self._rests_until:
            self._spent_s, self._rests_until = 0.0, begun + 2 * TURN_S
        now, end = begun, begun + TURN_S - self._spent_s
        while self._left and now < end:
            ends_s, entry, each, put = self._left.popleft()
            if now < ends_s:
                self._write_one(each, entry, put)
            else:
                put(errors.REQUEST_TIMED_OUT)
            now = self._loop.time()
        self._spent_s += now - begun
        if self._left:
            self._rests = True
            self._loop.call_at(self._rests_until, self._write_left)

    def _write_one(self, each: TopicPartition, entry: Any, put: Callable[[int], object]) -> None:
        try:
            write_marker(self._services, *each, entry, put)
        except AssertionError:
            raise
        except Exception:
            logger.exception("a marker of %s-%d for another worker failed", *each)
            put(errors.UNKNOWN_SERVER_ERROR)

    async def _send_all(self, worker: int, shares: list[Share]) -> None:
        """Send requests, with each producer once, because an answer identifies them by producer. The rest
        waits for the answer: the worker writes in turns, and a producer's markers must not overtake each
        other."""
        self._requests[worker] = self._requests.get(worker, 0) + 1
        try:
            while shares:
                once = {share[0].producer_id: share for share in reversed(shares)}
                shares = [share for share in shares if once[share[0].producer_id] is not share]
                await self._send(worker, list(once.values()))
        finally:
            self._requests[worker] -= 1

    async def _send(self, worker: int, shares: list[Share]) -> None:
        request = Request(markers=[entry_of(marker, partitions) for marker, partitions, _ in shares])
        client = RemoteClient("", "", OURSELVES, "", "")
        context = RequestContext(WRITE_TXN_MARKERS, VERSION, 0, US, "", "", client, OURSELVES)
        frame = codec.encode_request(request, VERSION, 0, US)
        codes: dict[tuple[int, TopicPartition], int] = {}
        try:
            answer = await present(self._services.peers).call(
                worker, FORWARD, pack(context, frame), TIMEOUT_S
            )
            if answer:
                _, response = codec.decode_response(messages.WriteTxnMarkersResponse, VERSION, answer)
                codes = codes_of(response)
        except (PeerLost, PeerTrouble, TimeoutError, KafkaError) as trouble:
            lost(worker, shares, trouble)
        for marker, partitions, pending in shares:
            for each in partitions:
                code = codes.get((marker.producer_id, each), errors.NOT_LEADER_OR_FOLLOWER)
                pending.put(each, code)


def lost(worker: int, shares: list[Share], trouble: Exception) -> None:
    logger.warning("worker %d has not answered for %d markers: %s", worker, len(shares), trouble)


def _raise(sent: "asyncio.Task[None]") -> None:
    if not sent.cancelled():
        sent.result()


def codes_of(response: Any) -> dict[tuple[int, TopicPartition], int]:
    """Return the codes of a WriteTxnMarkers response, by producer id and partition."""
    return {
        (marker.producer_id, (topic.name, each.partition_index)): each.error_code
        for marker in response.markers
        for topic in marker.topics
        for each in topic.partitions
    }


def entry_of(marker: Marker, partitions: Iterable[TopicPartition]) -> Any:
    """Return a marker in the form of the request."""
    topics: dict[str, Any] = {}
    for name, index in partitions:
        if name not in topics:
            topics[name] = Request.Markers.Topics(name=name, partition_indexes=[])
        topics[name].partition_indexes.append(index)
    return Request.Markers(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=list(topics.values()),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
