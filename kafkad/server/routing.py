"""Which worker answers a request: forwards requests that other workers must answer, and merges their answers.

A client may send any request to any worker. The route in an API's row in api/table.py names the state it
needs: the controller's (worker 0), a group's, a partition's, or that of all workers. A request for another
worker as a whole is forwarded as the frame in which it came, and its answer comes back as the frame for the
client. A request that concerns several workers is split into requests of the same API and version, and the
answers are merged in the order of the request.

    payload of FORWARD   lengths of seven strings, 7 × u32 | its client's host, listener, principal,
                         software and version, "token" if a delegation token authenticated it, "hung up"
                         if it has closed its connection | the request's frame (header and body); answered
                         with a response's frame, or nothing if the request failed and its response has no
                         field for an error

Any worker answers from the partitions' shared rows (ListOffsets of starts and ends).

If a worker died and its answer is not available, clients get a retriable code (LOST). Requests to the
controller, and requests to all workers, wait for a while, because a dead worker is back soon. A request that
changes something is never sent twice.

Checking a wide request, splitting it and merging its answers takes long, so this is done in steps
(server/turns).

Beware: a worker answers forwarded requests itself and never forwards them again, so that two workers that
disagree about the owner do not forward a request back and forth.
"""

import asyncio
import inspect
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kafkad._native.serving.connection import Connection
from kafkad.api import list_offsets
from kafkad.api.context import RequestContext, Services, present
from kafkad.api.table import Api, Route
from kafkad.metadata.image import BROKER_LOGGER
from kafkad.protocol import codec, errors, messages
from kafkad.server.error_response import error_response
from kafkad.server.marker_routing import merge_markers, split_markers
from kafkad.server.turns import Steps, Turns
from kafkad.server.worker_links import Later, PeerLost, PeerTrouble

logger = logging.getLogger(__name__)

FORWARD = 1  # kind of message between peers
CONTROLLER = 0  # the worker that has it
LENGTHS = struct.Struct("<7I")  # the name of a client's software has any length

PATIENCE_S = 5.0  # how long to wait for the controller's worker, or for one of all, to come back
TIMEOUT_S = 30.0  # for an answer: as long as clients wait by default
HELD = frozenset(
    {11, 14, 21}
)  # JoinGroup and SyncGroup take as long as their group, DeleteRecords as its timeout

LIST_OFFSETS, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_RECORDS = 2, 9, 15, 16, 21
INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_LOG_DIRS, DELETE_GROUPS = 22, 23, 35, 42
ALTER_REPLICA_LOG_DIRS = 34
ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, INCREMENTAL_ALTER_CONFIGS = 24, 27, 44
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
SEVERAL_GROUPS_FROM = 8  # OffsetFetch
SEVERAL_TRANSACTIONS_FROM = 4  # AddPartitionsToTxn
LOOKED_AT = 64  # elements per step
LONG_NAME = 512  # characters: finding the owner of such a group is a step of its own
CLIENTS_REMEMBERED, REMEMBERED_MAX = 500, 500  # how clients are packed, in so many bytes each
ANSWER_MAX = 128 << 20  # bytes of an answer from another worker, which both workers hold

# The code for a client if the worker that should have answered is gone.
LOST = {
    Route.CONTROLLER: errors.REQUEST_TIMED_OUT,
    Route.GROUP: errors.NOT_COORDINATOR,
    Route.TRANSACTION: errors.NOT_COORDINATOR,
    Route.PARTITIONS: errors.NOT_LEADER_OR_FOLLOWER,
    Route.EVERY: errors.REQUEST_TIMED_OUT,
}
LOST_BY_KEY = {
    LIST_GROUPS: errors.COORDINATOR_NOT_AVAILABLE,
    LIST_TRANSACTIONS: errors.COORDINATOR_LOAD_IN_PROGRESS,  # the code after which clients ask again
    INIT_PRODUCER_ID: errors.COORDINATOR_LOAD_IN_PROGRESS,  # Kafka's code while no block of ids is available
}


class FieldNames(NamedTuple):
    """The field names of an API with partitions by topic; `number` is None if partitions are plain
    numbers."""

    topic: str
    partitions: str
    number: str | None
    each_once: bool = False  # an answer has each topic and partition once, and no topic without partitions


BY_PARTITION = {
    LIST_OFFSETS: FieldNames("name", "partitions", "partition_index", True),
    DELETE_RECORDS: FieldNames("name", "partitions", "partition_index", True),
    OFFSET_FOR_LEADER_EPOCH: FieldNames("topic", "partitions", "partition"),
    DESCRIBE_PRODUCERS: FieldNames("name", "partition_indexes", None),
}

# Arrays of a request whose elements are answered one by one, and their names in the response.
LISTED = {
    OFFSET_FETCH: ("groups", "groups"),
    DESCRIBE_GROUPS: ("groups", "groups"),
    ADD_PARTITIONS_TO_TXN: ("transactions", "results_by_transaction"),
    DESCRIBE_TRANSACTIONS: ("transactional_ids", "transaction_states"),
    DELETE_GROUPS: ("groups_names", "results"),
    INCREMENTAL_ALTER_CONFIGS: ("resources", "responses"),
}

BY_TRANSACTION = frozenset({ADD_PARTITIONS_TO_TXN, DESCRIBE_TRANSACTIONS})  # the others: by group

Execute = Callable[[Api, RequestContext, Any], Any]


class RemoteClient:
    """The connection, for a handler, of a client that is connected to another worker."""

    __slots__ = (
        "by_token",
        "client_software_name",
        "client_software_version",
        "hung_up",
        "listener",
        "peer_host",
        "principal",
    )

    def __init__(
        self,
        host: str,
        listener: str,
        principal: str,
        name: str,
        version: str,
        token: str = "",
        hung_up: str = "",
    ) -> None:
        self.peer_host = host
        self.listener = listener
        self.principal = principal
        self.client_software_name = name or None
        self.client_software_version = version or None
        self.by_token = bool(token)
        self.hung_up = bool(hung_up)


class Router:
    """One per worker. `execute(api, context, request)` returns a response, or an awaitable of one, and raises
    nothing."""

    def __init__(self, services: Services, table: dict[int, Api], execute: Execute, turns: Turns) -> None:
        assert services.peers is not None and services.owner_of is not None
        assert services.group_owner is not None and services.transaction_owner is not None
        self._services = services
        self._table = table
        self._execute = execute
        self._turns = turns
        self._peers = services.peers
        self._me = services.me
        self._owner_of = services.owner_of
        self._group_owner = services.group_owner
        self._transaction_owner = services.transaction_owner
        self._routes: dict[Route, Callable[..., Steps]] = {
            Route.CONTROLLER: self._to_controller,
            Route.GROUP: self._to_group,
            Route.TRANSACTION: self._to_transaction,
            Route.PARTITIONS: self._to_partitions,
            Route.EVERY: self._to_everybody,
        }
        self._peers.handle(FORWARD, self._forwarded, bulk=True)

    def route(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        """Route in steps. None: this worker answers all of it. Otherwise an awaitable of the response, a
        message or its frame; requests to other workers have been sent when this returns."""
        return (yield from self._routes[api.route](api, context, request, frame))

    def is_here(self, api: Api, context: RequestContext, request: Any) -> bool:
        """Return whether this worker coordinates the one group or transactional id that a request names: then
        `route` would find out the same, with more work. May raise anything."""
        return self._coordinator_of(api, context, request) == self._me

    # -- owners --------------------------------------------------------------------------------------------

    def _to_controller(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        if api.key == INCREMENTAL_ALTER_CONFIGS:
            everybody = tuple(range(self._peers.count))
            workers = []
            for resource in request.resources:
                # each process has its own log levels
                workers.append(everybody if resource.resource_type == BROKER_LOGGER else (CONTROLLER,))
                if len(workers) % LOOKED_AT == 0:
                    yield
            return (yield from self._split_list(api, context, request, frame, request.resources, workers))
        return None if self._me == CONTROLLER else self._whole(CONTROLLER, api, context, request, frame)

    def _to_group(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        owner = self._coordinator_of(api, context, request)
        if owner is not None:
            return None if owner == self._me else self._whole(owner, api, context, request, frame)
        elements = getattr(request, LISTED[api.key][0])
        places = None
        if api.key == DELETE_GROUPS:
            elements = list(dict.fromkeys(elements))  # each is answered once
        else:
            elements, places = yield from _each_once(api, elements)
        workers = []
        for element in elements:
            group_id = element.group_id if api.key == OFFSET_FETCH else element
            workers.append((self._owner_of_group(group_id),))
            if len(workers) % LOOKED_AT == 0 or len(group_id or "") > LONG_NAME:
                yield
        return (yield from self._split_list(api, context, request, frame, elements, workers, places))

    def _coordinator_of(self, api: Api, context: RequestContext, request: Any) -> int | None:
        """Return the worker that coordinates the one group or transactional id that a request names. None: it
        has a list of them, or is no request to a coordinator."""
        if api.route is Route.GROUP:
            if api.key in LISTED and (api.key != OFFSET_FETCH or context.version >= SEVERAL_GROUPS_FROM):
                return None
            return self._owner_of_group(request.group_id)
        if api.route is not Route.TRANSACTION or api.key == DESCRIBE_TRANSACTIONS:
            return None
        if api.key == ADD_PARTITIONS_TO_TXN:
            if context.version >= SEVERAL_TRANSACTIONS_FROM:
                return None
            return self._transaction_owner(request.v3_and_below_transactional_id)
        if api.key == INIT_PRODUCER_ID and request.transactional_id is None:
            return self._me  # every worker has a block of ids
        return self._transaction_owner(request.transactional_id)

    def _owner_of_group(self, group_id: str | None) -> int:
        owner = None if group_id is None else self._group_owner(group_id)
        return self._me if owner is None else owner

    def _to_transaction(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        owner = self._coordinator_of(api, context, request)
        if owner is not None:
            return None if owner == self._me else self._whole(owner, api, context, request, frame)
        elements: Sequence[Any] = ()
        places = None
        if api.key == DESCRIBE_TRANSACTIONS:
            elements, places = yield from _each_once(api, request.transactional_ids)
            ids: Sequence[str] = elements
        else:
            elements = request.transactions
            ids = [element.transactional_id for element in elements]
        workers = []
        for each in ids:
            workers.append((self._transaction_owner(each),))
            if len(workers) % LOOKED_AT == 0 or len(each) > LONG_NAME:
                yield
        return (yield from self._split_list(api, context, request, frame, elements, workers, places))

    def _to_partitions(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        in_rows = False
        if api.key == LIST_OFFSETS and context.version > 0:  # v0 asks for segments: only the owner knows
            in_rows = yield from list_offsets.in_rows(self._services, request)
        if in_rows:
            return None
        if api.key == WRITE_TXN_MARKERS:
            parts = yield from split_markers(request, self._owner_of)
            if not parts or list(parts) == [self._me]:
                return None
            return self._merged_of_all(merge_markers, (yield from self._ask_all(api, context, parts)))
        names = BY_PARTITION[api.key]
        owners: list[list[int]] = []
        shares: dict[int, list[Any]] = {}
        for topic in request.topics:
            its_owners, its_shares = yield from self._split_topic(topic, names)
            owners.append(its_owners)
            for worker, asked in its_shares.items():
                shares.setdefault(worker, []).append((topic, asked))
            yield
        if not shares or list(shares) == [self._me]:
            return None
        if len(shares) == 1:
            return self._whole(next(iter(shares)), api, context, request, frame)

        parts = {}
        for worker, share in shares.items():
            part = parts[worker] = like(request, topics=[])
            for topic, asked in share:
                part.topics.append(like(topic, **{names.partitions: asked}))
                yield
        merge = self._merged_once if names.each_once else self._merged_partitions
        return merge(request, names, owners, (yield from self._ask_all(api, context, parts)))

    def _split_topic(
        self, topic: Any, names: FieldNames
    ) -> Generator[None, None, tuple[list[int], dict[int, list[Any]]]]:
        """Return the owner of each partition in the request, and by owner its part of the request."""
        name = getattr(topic, names.topic)
        owners: list[int] = []
        shares: dict[int, list[Any]] = {}
        for asked in getattr(topic, names.partitions):
            owner = self._owner_of(name, asked if names.number is None else getattr(asked, names.number))
            owners.append(owner)
            share = shares.get(owner)
            if share is None:
                shares[owner] = [asked]
            else:
                share.append(asked)
            if len(owners) % LOOKED_AT == 0:
                yield
        return owners, shares

    def _to_everybody(self, api: Api, context: RequestContext, request: Any, frame: bytes) -> Steps:
        parts = dict.fromkeys(range(self._peers.count), request)
        answers = yield from self._ask_all(api, context, parts, frame)
        return self._merged_of_all(MERGE_ALL[api.key], answers)

    def _split_list(
        self,
        api: Api,
        context: RequestContext,
        request: Any,
        frame: bytes,
        elements: Sequence[Any],
        workers: Sequence[tuple[int, ...]],
        places: list[int] | None = None,
    ) -> Steps:
        """Send each element to its `workers`. `places`: the number of the element for each place of the
        answer, if they differ."""
        shares: dict[int, list[Any]] = {}
        for count, (element, its_workers) in enumerate(zip(elements, workers, strict=True)):
            for worker in its_workers:
                shares.setdefault(worker, []).append(element)
            if count % LOOKED_AT == LOOKED_AT - 1:
                yield
        if not shares or list(shares) == [self._me]:
            return None
        if len(shares) == 1:
            return self._whole(next(iter(shares)), api, context, request, frame)
        asked, _ = LISTED[api.key]
        keys = {worker: [_key_of(api.key, element) for element in share] for worker, share in shares.items()}
        parts = {worker: like(request, **{asked: share}) for worker, share in shares.items()}
        answers = yield from self._ask_all(api, context, parts)
        return self._merged_list(api.key, workers, answers, keys, places)

    # -- sending requests ----------------------------------------------------------------------------------

    def _whole(
        self, worker: int, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Later | Awaitable[Any | bytes | None]:
        """Return the answer's frame; a message if the worker is gone; None if no answer is available. With a
        Later, `relayed` does the same once it has arrived."""
        waiting = self._ask(worker, api, pack(context, frame))
        if isinstance(waiting, Later) and isinstance(context.connection, Connection):
            context.connection.answered_by(worker)
        return waiting if isinstance(waiting, Later) else self.relayed(api, context, request, waiting)

    async def relayed(
        self, api: Api, context: RequestContext, request: Any, waiting: Awaitable[bytes]
    ) -> Any | bytes | None:
        try:
            return await waiting or None
        except (PeerLost, PeerTrouble, TimeoutError) as trouble:
            return await self._in_turns(self._error_response(api, context, request, trouble))

    def _ask_all(
        self, api: Api, context: RequestContext, parts: dict[int, Any], frame: bytes | None = None
    ) -> Generator[None, None, dict[int, Any]]:
        """Return by worker its response: a message, or an awaitable of one. This worker's part is answered
        last, when the others have begun. `frame`: the request for all of them, if it is the same."""
        answers: dict[int, Any] = {}
        for worker, request in parts.items():
            if worker != self._me:
                sent = frame
                if sent is None:
                    sent = yield from codec.encode_request_in_steps(
                        request, context.version, context.correlation_id, context.client_id
                    )
                waiting = self._ask(worker, api, pack(context, sent))
                answers[worker] = self._part(api, context, request, waiting)
        if self._me in parts:
            answers[self._me] = self._execute(api, context, parts[self._me])
        return answers

    async def _part(self, api: Api, context: RequestContext, request: Any, waiting: Awaitable[bytes]) -> Any:
        try:
            frame = await waiting
        except (PeerLost, PeerTrouble, TimeoutError) as trouble:
            return await self._in_turns(self._error_response(api, context, request, trouble))
        if not frame:
            lost = error_response(api.key, context.version, request, errors.UNKNOWN_SERVER_ERROR)
            return await self._in_turns(lost)
        cls = codec.response_class(api.key)
        if len(frame) < codec.WIDE_FRAME:
            return codec.decode_response(cls, context.version, frame)[1]
        return (await self._in_turns(codec.decode_response_in_steps(cls, context.version, frame)))[1]

    async def _in_turns(self, steps: Steps) -> Any:
        result = self._turns.run(steps)
        return await result if inspect.isawaitable(result) else result

    def _ask(self, worker: int, api: Api, payload: bytes) -> Later | Awaitable[bytes]:
        """Return another worker's answer; the call is sent before this returns, if possible."""
        timeout_s = None if api.key in HELD else TIMEOUT_S
        if api.route not in (Route.CONTROLLER, Route.EVERY) and api.key != INIT_PRODUCER_ID:
            return self._peers.ask(worker, FORWARD, payload, timeout_s)
        call = self._peers.call(worker, FORWARD, payload, timeout_s) if worker in self._peers.up else None
        return self._ask_patiently(worker, api, payload, timeout_s, call)

    async def _ask_patiently(
        self, worker: int, api: Api, payload: bytes, timeout_s: float | None, call: Awaitable[bytes] | None
    ) -> bytes:
        """Wait for a worker that is not up. If one dies during the call, repeat the call only if that changes
        nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            if call is not None:
                try:
                    return await call
                except PeerLost:
                    if api.route is not Route.EVERY or loop.time() >= deadline:
                        raise
            try:
                await self._peers.wait_up(worker, max(deadline - loop.time(), 0))
            except TimeoutError:
                raise PeerLost(f"worker {worker} is not there") from None
            call = self._peers.call(worker, FORWARD, payload, timeout_s)

    def _error_response(self, api: Api, context: RequestContext, request: Any, trouble: Exception) -> Steps:
        if isinstance(trouble, PeerTrouble):
            code = errors.UNKNOWN_SERVER_ERROR
        else:
            code = LOST_BY_KEY.get(api.key, LOST[api.route])
        logger.debug("%s v%d is refused: %s", api.name, context.version, trouble)
        return error_response(api.key, context.version, request, code)

    # -- handling forwarded requests -----------------------------------------------------------------------

    def _forwarded(self, sender: int, payload: bytes) -> Any:
        if len(payload) >= codec.WIDE_FRAME:
            return self._turns.run(self._forwarded_in_steps(payload))
        client, frame = unpack(payload)
        context, answer = self._executed(client, *codec.decode_request(frame))
        if inspect.isawaitable(answer):
            return self._encoded_later(context, answer, [])
        return self._encoded(context, [answer])

    def _forwarded_in_steps(self, payload: bytes) -> Steps:
        """Return the frame of the answer, or an awaitable of it."""
        client, frame = unpack(payload)
        header, request = yield from codec.decode_request_in_steps(frame)
        context, answer = self._executed(client, header, request)
        held = [request]
        del request
        if inspect.isawaitable(answer):
            return self._encoded_later(context, answer, held)
        frame = self._encoded(context, [answer])
        del answer
        yield from codec.free_in_steps(held)
        return frame

    def _executed(self, client: RemoteClient, header: Any, request: Any) -> tuple[RequestContext, Any]:
        context = RequestContext(
            api_key=header.request_api_key,
            version=header.request_api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=client.peer_host,
            listener=client.listener,
            connection=client,
            principal=client.principal,
            by_token=client.by_token,
        )
        return context, self._execute(self._table[context.api_key], context, request)

    async def _encoded_later(
        self, context: RequestContext, waiting: Awaitable[Any], held: list[Any]
    ) -> bytes:
        frame = self._encoded(context, [await waiting])
        encoded: bytes = await frame if inspect.isawaitable(frame) else frame
        await self._in_turns(codec.free_in_steps(held))
        return encoded

    def _encoded(self, context: RequestContext, answer: list[Any]) -> Any:
        """Return the answer's frame, or an awaitable of it; empty for None."""
        if answer[0] is None:
            return b""
        frame = codec.encode_narrow_response(answer[0], context.version, context.correlation_id)
        return self._turns.run(_encode_wide(context, answer)) if frame is None else frame

    # -- merging -------------------------------------------------------------------------------------------

    async def _merged_partitions(
        self, request: Any, names: FieldNames, owners: list[list[int]], answers: dict[int, Any]
    ) -> Any:
        responses = await _all(answers)
        return await self._in_turns(_merge_partitions(request, names, owners, responses))

    async def _merged_once(
        self, request: Any, names: FieldNames, owners: list[list[int]], answers: dict[int, Any]
    ) -> Any:
        responses = await _all(answers)
        return await self._in_turns(_merge_once(request, names, owners, responses))

    async def _merged_list(
        self,
        api_key: int,
        workers: Sequence[tuple[int, ...]],
        answers: dict[int, Any],
        keys: dict[int, list[Any]],
        places: list[int] | None,
    ) -> Any:
        responses = await _all(answers)
        merged = await self._in_turns(_merge_list(api_key, workers, responses, keys))
        if places is not None and not getattr(merged, "error_code", errors.NONE):
            answered = LISTED[api_key][1]
            each = getattr(merged, answered)
            setattr(merged, answered, [each[place] for place in places])
        return merged

    async def _merged_of_all(self, merge: Callable[[list[Any]], Steps], answers: dict[int, Any]) -> Any:
        responses = await _all(answers)
        return await self._in_turns(merge([responses[worker] for worker in sorted(responses)]))


def like(message: Any, **changes: Any) -> Any:
    """Return a copy of a message with `changes`."""
    fields = {field.name: getattr(message, field.name) for field in message.SPEC.fields}
    return type(message)(**{**fields, **changes})


def pack(context: RequestContext, frame: bytes) -> bytes:
    client = present(context.connection)
    name, version = client.client_software_name or "", client.client_software_version or ""
    texts = (
        context.client_host or "", context.listener or "", context.principal or "", name, version,
        "token" if context.by_token else "", "hung up" if context.has_left else "",
    )  # fmt: skip
    pack_texts = _packed if sum(map(len, texts)) <= REMEMBERED_MAX else _packed.__wrapped__
    return pack_texts(texts) + frame


@lru_cache(CLIENTS_REMEMBERED)
def _packed(texts: tuple[str, ...]) -> bytes:
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return b"".join((LENGTHS.pack(*map(len, encoded)), *encoded))


def unpack(payload: bytes) -> tuple[RemoteClient, bytes]:
    end = LENGTHS.size + sum(LENGTHS.unpack_from(payload))
    unpack_texts = _unpacked if end <= REMEMBERED_MAX else _unpacked.__wrapped__
    return RemoteClient(*unpack_texts(payload[:end])), payload[end:]


@lru_cache(CLIENTS_REMEMBERED)
def _unpacked(client: bytes) -> tuple[str, ...]:
    position = LENGTHS.size
    texts = []
    for length in LENGTHS.unpack_from(client):
        texts.append(client[position : position + length].decode("utf-8", "surrogateescape"))
        position += length
    return tuple(texts)


async def _all(answers: dict[int, Any]) -> dict[int, Any]:
    """Return the responses, all of which have begun already."""
    waiting = [worker for worker, answer in answers.items() if inspect.isawaitable(answer)]
    found = await asyncio.gather(*(answers[worker] for worker in waiting))
    return answers | dict(zip(waiting, found, strict=True))


def _each_once(api: Api, elements: Sequence[Any]) -> Generator[None, None, tuple[list[Any], list[int]]]:
    """Return (elements without repetitions, for each original element the number of its equal). A group that
    is named 100,000 times would otherwise be sent between workers 100,000 times."""
    first: dict[Any, int] = {}
    once: list[Any] = []
    places: list[int] = []
    for element in elements:
        key = element
        if api.key == OFFSET_FETCH:
            key = element.group_id if element.topics is None else len(places)
        place = first.setdefault(key, len(once))
        if place == len(once):
            once.append(element)
        places.append(place)
        if len(places) % LOOKED_AT == 0:
            yield
    return once, places


def _encode_wide(context: RequestContext, answer: list[Any]) -> Generator[None, None, bytes]:
    """Return the frame of `answer`, which is emptied; empty if it is larger than ANSWER_MAX."""
    # One piece of memory returns to the system at once; many small pieces would not.
    frame = bytearray()

    def write(piece: bytes) -> bool:
        frame.extend(piece)
        return len(frame) <= ANSWER_MAX

    yield from codec.encode_response_in_steps(answer[0], context.version, context.correlation_id, write)
    yield from codec.free_in_steps(answer)
    if len(frame) <= ANSWER_MAX:
        return bytes(frame)
    logger.error(
        "an answer of API %d v%d for another worker is above %d MiB",
        context.api_key,
        context.version,
        ANSWER_MAX >> 20,
    )
    return b""


def _merge_partitions(
    request: Any, names: FieldNames, owners: list[list[int]], responses: dict[int, Any]
) -> Steps:
    """Merge in the order of the request. A worker answers the topics that the guard refuses after the
    others."""
    response = type(next(iter(responses.values())))()
    number = names.number or "partition_index"
    answered: dict[tuple[int, str, int], deque[Any]] = {}
    count = 0
    for worker, answer in responses.items():
        for topic in answer.topics:
            name = getattr(topic, names.topic)
            for each in topic.partitions:
                answered.setdefault((worker, name, getattr(each, number)), deque()).append(each)
                count += 1
                if count % LOOKED_AT == 0:
                    yield
            yield
    for topic, its_owners in zip(request.topics, owners, strict=True):
        name = getattr(topic, names.topic)
        merged = type(response).Topics(**{names.topic: name})
        response.topics.append(merged)
        for asked, owner in zip(getattr(topic, names.partitions), its_owners, strict=True):
            index = asked if names.number is None else getattr(asked, names.number)
            merged.partitions.append(answered[owner, name, index].popleft())
            if len(merged.partitions) % LOOKED_AT == 0:
                yield
        yield
    return response


def _merge_once(request: Any, names: FieldNames, owners: list[list[int]], responses: dict[int, Any]) -> Steps:
    """Like `_merge_partitions`, if workers answer a repeated topic or partition once."""
    assert names.number is not None
    owner_of: dict[str, dict[int, int]] = {}
    count = 0
    for topic, its_owners in zip(request.topics, owners, strict=True):
        its = owner_of.setdefault(getattr(topic, names.topic), {}) if its_owners else {}
        for asked, owner in zip(getattr(topic, names.partitions), its_owners, strict=True):
            its[getattr(asked, names.number)] = owner
            count += 1
            if count % LOOKED_AT == 0:
                yield
        yield
    answered = {}
    for worker, answer in responses.items():
        for topic in answer.topics:
            for each in topic.partitions:
                answered[worker, topic.name, each.partition_index] = each
                count += 1
                if count % LOOKED_AT == 0:
                    yield
            yield
    response = type(next(iter(responses.values())))()
    for name, its in owner_of.items():
        merged = type(response).Topics(name=name)
        response.topics.append(merged)
        for index, owner in its.items():
            merged.partitions.append(answered[owner, name, index])
            if len(merged.partitions) % LOOKED_AT == 0:
                yield
        yield
    return response


def _key_of(api_key: int, element: Any) -> Any:
    """Return what an element of a request, and its answer, are known by."""
    if api_key == INCREMENTAL_ALTER_CONFIGS:
        return element.resource_type, element.resource_name
    if isinstance(element, str):
        return element
    return element.transactional_id if api_key in BY_TRANSACTION else element.group_id


def _merge_list(
    api_key: int, workers: Sequence[tuple[int, ...]], responses: dict[int, Any], keys: dict[int, list[Any]]
) -> Steps:
    """Merge in the order of the request. `keys`: of what each worker was asked for; it answers what the guard
    refuses after the rest. If several workers answered for the same element, the first error wins. An error
    without such answers is that of the whole request."""
    response = type(next(iter(responses.values())))()
    answered = LISTED[api_key][1]
    each: dict[int, Iterator[Any]] = {}
    for worker, one in responses.items():
        if getattr(one, "error_code", errors.NONE) and not getattr(one, answered):
            return one
        each[worker] = iter((yield from _in_order(api_key, keys[worker], getattr(one, answered))))
    merged = getattr(response, answered)
    for its_workers in workers:
        outcomes = [next(each[worker]) for worker in its_workers]
        failed = (one for one in outcomes if len(outcomes) > 1 and one.error_code)
        merged.append(next(failed, outcomes[0]))
        if len(merged) % LOOKED_AT == 0:
            yield
    return response


def _in_order(api_key: int, keys: list[Any], answers: list[Any]) -> Generator[None, None, list[Any]]:
    """Return the answers in the order of `keys`."""
    told: dict[Any, deque[Any]] = {}
    for number, answer in enumerate(answers, 1):
        told.setdefault(_key_of(api_key, answer), deque()).append(answer)
        if number % LOOKED_AT == 0:
            yield
    found = []
    for key in keys:
        found.append(told[key].popleft())
        if len(found) % LOOKED_AT == 0:
            yield
    return found


def _merge_groups(responses: Iterable[Any]) -> Steps:
    """Merge groups. A client that gets an error asks again, and meanwhile gets no incomplete list."""
    merged = messages.ListGroupsResponse()
    for response in responses:
        if response.error_code and not merged.error_code:
            merged.error_code = response.error_code
        merged.groups.extend(response.groups)
        yield
    if merged.error_code:
        merged.groups = []
    return merged


def _merge_transactions(responses: Iterable[Any]) -> Steps:
    """Like `_merge_groups`."""
    merged = messages.ListTransactionsResponse()
    for response in responses:
        if response.error_code and not merged.error_code:
            merged.error_code = response.error_code
        merged.unknown_state_filters = response.unknown_state_filters or merged.unknown_state_filters
        merged.transaction_states.extend(response.transaction_states)
        yield
    if merged.error_code:
        merged.transaction_states = []
    return merged


def _merge_log_dirs(responses: Iterable[Any]) -> Steps:
    """Merge: each worker describes every directory, with its own logs in it."""
    merged = messages.DescribeLogDirsResponse()
    directories: dict[str, Any] = {}
    topics: dict[tuple[str, str], Any] = {}
    for response in responses:
        merged.error_code = merged.error_code or response.error_code
        for told in response.results:
            directory = directories.setdefault(told.log_dir, told)
            if directory is told:
                merged.results.append(told)
                topics.update(((told.log_dir, topic.name), topic) for topic in told.topics)
                continue
            if told.error_code and not directory.error_code:
                directory.error_code, directory.topics = told.error_code, []
            if directory.error_code:
                continue
            for topic in told.topics:
                known = topics.setdefault((told.log_dir, topic.name), topic)
                if known is topic:
                    directory.topics.append(topic)
                else:
                    known.partitions.extend(topic.partitions)
                yield
    return merged


def _knows_more(code: int, before: int) -> bool:
    """Return whether a worker that answers `code` knows more of a replica than one that answered `before`."""
    if before == errors.REPLICA_NOT_AVAILABLE:
        return code != errors.UNKNOWN_TOPIC_OR_PARTITION
    return before == errors.UNKNOWN_TOPIC_OR_PARTITION


def _merge_altered(responses: Iterable[Any]) -> Steps:
    """Merge: each worker answers for the replicas that it owns, and has no other one. Workers learn of a new
    partition one after the other."""
    merged: Any = None
    known: dict[tuple[str, int], Any] = {}
    for response in responses:
        first = merged is None
        merged = merged or response
        for topic in response.results:
            for partition in topic.partitions:
                key = topic.topic_name, partition.partition_index
                if first:
                    known[key] = partition
                elif key in known and _knows_more(partition.error_code, known[key].error_code):
                    known[key].error_code = partition.error_code
                yield
    return merged


MERGE_ALL = {
    ALTER_REPLICA_LOG_DIRS: _merge_altered,
    LIST_GROUPS: _merge_groups,
    LIST_TRANSACTIONS: _merge_transactions,
    DESCRIBE_LOG_DIRS: _merge_log_dirs,
}
