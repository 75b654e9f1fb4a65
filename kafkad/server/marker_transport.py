"""Delivers markers from the transaction coordinator to the logs of partitions.

    other brokers' partitions      to their leaders, in a cluster (server/remote_markers)
    this worker's partitions       written in the next turn of the loop (api/markers), many of them in several
    another worker's partitions    one WriteTxnMarkers for all markers in a turn of the loop

A worker that is gone or does not answer counts as NOT_LEADER_OR_FOLLOWER: the coordinator tries again.
Writing a marker twice is harmless. Use: the transport of coordinator/markers."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from kafkad.api.context import OURSELVES, RequestContext, Services, present
from kafkad.api.markers import write_marker
from kafkad.coordinator.markers import Marker, Written
from kafkad.coordinator.transaction import TopicPartition
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.routing import FORWARD, TIMEOUT_S, RemoteClient, pack
from kafkad.server.worker_links import PeerLost, PeerTrouble

logger = logging.getLogger(__name__)

WRITE_TXN_MARKERS, VERSION = 27, 2
US = "kafkad-transactions"  # the client id of these requests
TURN_S = 0.005  # of the loop, for the markers of one transaction

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


Share = tuple[Any, list[TopicPartition], Pending]  # a marker of the request, its partitions


class MarkerTransport:
    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop) -> None:
        self._services = services
        self._loop = loop
        self._shares: dict[int, list[Share]] = {}  # by worker, for this turn

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
            self._shares.setdefault(worker, []).append((entry_of(marker, share), share, pending))
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
            sent = self._loop.create_task(self._send_all(worker, its))
            sent.add_done_callback(_raise)

    async def _send_all(self, worker: int, shares: list[Share]) -> None:
        """Send requests, with each producer once, because an answer identifies them by producer. The rest
        waits for the answer: the worker writes in turns, and a producer's markers must not overtake each
        other."""
        while shares:
            once = {share[0].producer_id: share for share in reversed(shares)}
            shares = [share for share in shares if once[share[0].producer_id] is not share]
            await self._send(worker, list(once.values()))

    async def _send(self, worker: int, shares: list[Share]) -> None:
        request = Request(markers=[entry for entry, _, _ in shares])
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
            logger.warning("worker %d has not answered for %d markers: %s", worker, len(shares), trouble)
        for entry, partitions, pending in shares:
            for each in partitions:
                code = codes.get((entry.producer_id, each), errors.NOT_LEADER_OR_FOLLOWER)
                pending.put(each, code)


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
