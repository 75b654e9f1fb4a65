"""Which worker answers what: requests that are not (only) this worker's are passed on, and answers put
together.

A client may ask any worker for anything. What an API's row in api/table.py calls its route says whose state
it needs: the controller's (worker 0), a group's, a partition's, or everybody's. A request that is another
worker's as a whole goes there as the frame that it came in, and its answer comes back as the frame that the
client gets. One that concerns several is split into requests of the same API and version; the answers are
put together in the order of the request.

    payload of FORWARD   lengths of five strings, 5 × u16 | client's host, listener, principal, its software's
                         name and version | the request's frame (header and body); answered with a response's
                         frame, or nothing where the request failed and its response has no place to say so

What stands in the partitions' shared rows any worker tells (ListOffsets of starts and ends).

What cannot be had because a worker died is told by a code that makes clients try again (LOST). The
controller and those who are asked with everybody are waited for a while, since a dead worker is back soon; a
request that changes something is never sent twice.

Beware: a worker answers what it is sent and passes nothing on, so that two who disagree about an owner do not
play ball with a request.
"""

import asyncio
import inspect
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kafkad.api import list_offsets
from kafkad.api.context import RequestContext, Services
from kafkad.api.table import Api, Route
from kafkad.metadata.image import BROKER_LOGGER
from kafkad.protocol import codec, errors, messages
from kafkad.server.peers import PeerLost, PeerTrouble
from kafkad.server.refusal import refusal

logger = logging.getLogger(__name__)

FORWARD = 1  # its kind between peers
CONTROLLER = 0  # the worker that it lives in
LENGTHS = struct.Struct("<5H")

PATIENCE_S = 5.0  # for the controller, or one of all, to come back
TIMEOUT_S = 30.0  # of an answer, as long as clients wait by default
HELD = frozenset({11, 14})  # JoinGroup and SyncGroup take as long as their group takes

LIST_OFFSETS, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_RECORDS = 2, 9, 15, 16, 21
INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_LOG_DIRS, DELETE_GROUPS = 22, 23, 35, 42
INCREMENTAL_ALTER_CONFIGS, DESCRIBE_PRODUCERS = 44, 61
SEVERAL_GROUPS_FROM = 8  # OffsetFetch

# What a client is told when the worker that should have answered is gone.
LOST = {
    Route.CONTROLLER: errors.REQUEST_TIMED_OUT,
    Route.GROUP: errors.NOT_COORDINATOR,
    Route.PARTITIONS: errors.NOT_LEADER_OR_FOLLOWER,
    Route.EVERY: errors.REQUEST_TIMED_OUT,
}
LOST_BY_KEY = {
    LIST_GROUPS: errors.COORDINATOR_NOT_AVAILABLE,
    INIT_PRODUCER_ID: errors.COORDINATOR_LOAD_IN_PROGRESS,  # Kafka's code while no block of ids can be had
}


class Names(NamedTuple):
    """What an API that asks topics for partitions calls them; `number` is None where they are bare."""

    topic: str
    partitions: str
    number: str | None
    each_once: bool = False  # whether an answer has each topic and partition once, and no topic without any


BY_PARTITION = {
    LIST_OFFSETS: Names("name", "partitions", "partition_index", True),
    DELETE_RECORDS: Names("name", "partitions", "partition_index", True),
    OFFSET_FOR_LEADER_EPOCH: Names("topic", "partitions", "partition"),
    DESCRIBE_PRODUCERS: Names("name", "partition_indexes", None),
}

# Arrays of a request whose elements are answered one by one, and what the response calls them.
LISTED = {
    OFFSET_FETCH: ("groups", "groups"),
    DESCRIBE_GROUPS: ("groups", "groups"),
    DELETE_GROUPS: ("groups_names", "results"),
    INCREMENTAL_ALTER_CONFIGS: ("resources", "responses"),
}

Execute = Callable[[Api, RequestContext, Any], Any]


class RemoteClient:
    """What a handler sees as the connection of a client that is connected to another worker."""

    __slots__ = ("client_software_name", "client_software_version", "listener", "peer_host", "principal")

    def __init__(self, host: str, listener: str, principal: str, name: str, version: str) -> None:
        self.peer_host = host
        self.listener = listener
        self.principal = principal
        self.client_software_name = name or None
        self.client_software_version = version or None


class Router:
    """One a worker. `execute(api, context, request)` answers a response, or an awaitable of one, and raises
    nothing."""

    def __init__(self, services: Services, table: dict[int, Api], execute: Execute) -> None:
        assert services.peers is not None and services.owner_of is not None
        assert services.group_owner is not None
        self._services = services
        self._table = table
        self._execute = execute
        self._peers = services.peers
        self._me = services.me
        self._owner_of = services.owner_of
        self._group_owner = services.group_owner
        self._routes: dict[Route, Callable[..., Awaitable[Any] | None]] = {
            Route.CONTROLLER: self._to_controller,
            Route.GROUP: self._to_group,
            Route.PARTITIONS: self._to_partitions,
            Route.EVERY: self._to_everybody,
        }
        self._peers.handle(FORWARD, self._forwarded)

    def route(
        self, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any | bytes | None] | None:
        """None: all of it is this worker's. Else an awaitable of the response, as a message or as its frame;
        what is sent is on its way when this returns."""
        return self._routes[api.route](api, context, request, frame)

    # -- whose it is ---------------------------------------------------------------------------------------

    def _to_controller(
        self, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any] | None:
        if api.key == INCREMENTAL_ALTER_CONFIGS:
            everybody = tuple(range(self._peers.count))
            workers = [
                everybody if resource.resource_type == BROKER_LOGGER else (CONTROLLER,)
                for resource in request.resources  # log levels are a process's own
            ]
            return self._split_list(api, context, request, frame, request.resources, workers)
        return None if self._me == CONTROLLER else self._whole(CONTROLLER, api, context, request, frame)

    def _to_group(
        self, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any] | None:
        if api.key not in LISTED or (api.key == OFFSET_FETCH and context.version < SEVERAL_GROUPS_FROM):
            owner = self._owner_of_group(request.group_id)
            return None if owner == self._me else self._whole(owner, api, context, request, frame)
        elements = getattr(request, LISTED[api.key][0])
        if api.key == DELETE_GROUPS:
            elements = list(dict.fromkeys(elements))  # each is answered once
        workers = [
            (self._owner_of_group(element.group_id if api.key == OFFSET_FETCH else element),)
            for element in elements
        ]
        return self._split_list(api, context, request, frame, elements, workers)

    def _owner_of_group(self, group_id: str | None) -> int:
        owner = None if group_id is None else self._group_owner(group_id)
        return self._me if owner is None else owner

    def _to_partitions(
        self, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any] | None:
        if api.key == LIST_OFFSETS and list_offsets.in_rows(self._services, request):
            return None
        names = BY_PARTITION[api.key]
        owners: list[list[int]] = []
        for topic in request.topics:
            asked = getattr(topic, names.partitions)
            indexes = asked if names.number is None else [getattr(each, names.number) for each in asked]
            name = getattr(topic, names.topic)
            owners.append([self._owner_of(name, index) for index in indexes])
        workers = list(dict.fromkeys(owner for each in owners for owner in each))
        if not workers or workers == [self._me]:
            return None
        if len(workers) == 1:
            return self._whole(workers[0], api, context, request, frame)

        shares: dict[int, list[Any]] = {worker: [] for worker in workers}
        for topic, its_owners in zip(request.topics, owners, strict=True):
            asked = getattr(topic, names.partitions)
            for worker in dict.fromkeys(its_owners):
                its = [each for each, owner in zip(asked, its_owners, strict=True) if owner == worker]
                shares[worker].append(like(topic, **{names.partitions: its}))
        parts = {worker: like(request, topics=share) for worker, share in shares.items()}
        merge = self._merged_once if names.each_once else self._merged_partitions
        return merge(request, names, owners, self._ask_all(api, context, parts))

    def _to_everybody(
        self, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any] | None:
        parts = dict.fromkeys(range(self._peers.count), request)
        answers = self._ask_all(api, context, parts, frame)
        return self._merged_of_all(MERGE_ALL[api.key], answers)

    def _split_list(
        self,
        api: Api,
        context: RequestContext,
        request: Any,
        frame: bytes,
        elements: Sequence[Any],
        workers: Sequence[tuple[int, ...]],
    ) -> Awaitable[Any] | None:
        """Each element goes to its `workers`."""
        shares: dict[int, list[Any]] = {}
        for element, its_workers in zip(elements, workers, strict=True):
            for worker in its_workers:
                shares.setdefault(worker, []).append(element)
        if not shares or list(shares) == [self._me]:
            return None
        if len(shares) == 1:
            return self._whole(next(iter(shares)), api, context, request, frame)
        asked, answered = LISTED[api.key]
        parts = {worker: like(request, **{asked: share}) for worker, share in shares.items()}
        return self._merged_list(answered, workers, self._ask_all(api, context, parts))

    # -- asking --------------------------------------------------------------------------------------------

    def _whole(
        self, worker: int, api: Api, context: RequestContext, request: Any, frame: bytes
    ) -> Awaitable[Any | bytes | None]:
        """The answer's frame; a message where the worker is gone, None where there is none to be had."""
        return self._relayed(api, context, request, self._ask(worker, api, pack(context, frame)))

    async def _relayed(
        self, api: Api, context: RequestContext, request: Any, waiting: Awaitable[bytes]
    ) -> Any | bytes | None:
        try:
            return await waiting or None
        except (PeerLost, PeerTrouble, TimeoutError) as trouble:
            return self._refusal(api, context, request, trouble)

    def _ask_all(
        self, api: Api, context: RequestContext, parts: dict[int, Any], frame: bytes | None = None
    ) -> dict[int, Any]:
        """By worker what will be its response: a message, or an awaitable of one. Ours is answered last, when
        the others have begun. `frame`: of all of them, where they are the same."""
        answers: dict[int, Any] = {}
        for worker, request in parts.items():
            if worker != self._me:
                sent = frame
                if sent is None:
                    sent = codec.encode_request(
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
            return self._refusal(api, context, request, trouble)
        if not frame:
            return refusal(api.key, context.version, request, errors.UNKNOWN_SERVER_ERROR)
        _, response = codec.decode_response(codec.response_class(api.key), context.version, frame)
        return response

    def _ask(self, worker: int, api: Api, payload: bytes) -> Awaitable[bytes]:
        """The answer of another worker; the call is sent before this returns, if it can be."""
        timeout_s = None if api.key in HELD else TIMEOUT_S
        if api.route not in (Route.CONTROLLER, Route.EVERY):
            return self._peers.call(worker, FORWARD, payload, timeout_s)  # type: ignore[no-any-return]
        call = self._peers.call(worker, FORWARD, payload, timeout_s) if worker in self._peers.up else None
        return self._ask_patiently(worker, api, payload, timeout_s, call)

    async def _ask_patiently(
        self, worker: int, api: Api, payload: bytes, timeout_s: float | None, call: Awaitable[bytes] | None
    ) -> bytes:
        """Waits for a worker that is not there; one that dies over it is asked again only where that changes
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

    def _refusal(self, api: Api, context: RequestContext, request: Any, trouble: Exception) -> Any | None:
        if isinstance(trouble, PeerTrouble):
            code = errors.UNKNOWN_SERVER_ERROR
        else:
            code = LOST_BY_KEY.get(api.key, LOST[api.route])
        logger.debug("%s v%d is refused: %s", api.name, context.version, trouble)
        return refusal(api.key, context.version, request, code)

    # -- being asked ---------------------------------------------------------------------------------------

    def _forwarded(self, sender: int, payload: bytes) -> Any:
        client, frame = unpack(payload)
        header, request = codec.decode_request(frame)
        api = self._table[header.request_api_key]
        context = RequestContext(
            api_key=api.key,
            version=header.request_api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=client.peer_host,
            listener=client.listener,
            connection=client,
            principal=client.principal,
        )
        answer = self._execute(api, context, request)
        return _encoded_later(context, answer) if inspect.isawaitable(answer) else _encoded(context, answer)

    # -- putting together ----------------------------------------------------------------------------------

    async def _merged_partitions(
        self, request: Any, names: Names, owners: list[list[int]], answers: dict[int, Any]
    ) -> Any:
        responses = await _all(answers)
        response = type(next(iter(responses.values())))()
        topics = {worker: iter(each.topics) for worker, each in responses.items()}
        for topic, its_owners in zip(request.topics, owners, strict=True):
            its = {worker: next(topics[worker]) for worker in dict.fromkeys(its_owners)}
            partitions = {worker: iter(each.partitions) for worker, each in its.items()}
            merged = type(response).Topics(**{names.topic: getattr(topic, names.topic)})
            merged.partitions = [next(partitions[owner]) for owner in its_owners]
            response.topics.append(merged)
        return response

    async def _merged_once(
        self, request: Any, names: Names, owners: list[list[int]], answers: dict[int, Any]
    ) -> Any:
        """As `_merged_partitions`, where workers answer a topic or partition that is named twice once."""
        assert names.number is not None
        owner_of: dict[str, dict[int, int]] = {}
        for topic, its_owners in zip(request.topics, owners, strict=True):
            for asked, owner in zip(getattr(topic, names.partitions), its_owners, strict=True):
                its = owner_of.setdefault(getattr(topic, names.topic), {})
                its[getattr(asked, names.number)] = owner
        responses = await _all(answers)
        response = type(next(iter(responses.values())))()
        answered = {
            (worker, topic.name, each.partition_index): each
            for worker, answer in responses.items()
            for topic in answer.topics
            for each in topic.partitions
        }
        for name, its in owner_of.items():
            merged = type(response).Topics(name=name)
            merged.partitions = [answered[owner, name, index] for index, owner in its.items()]
            response.topics.append(merged)
        return response

    async def _merged_list(
        self, answered: str, workers: Sequence[tuple[int, ...]], answers: dict[int, Any]
    ) -> Any:
        """Of an element that several answered the first error counts."""
        responses = await _all(answers)
        response = type(next(iter(responses.values())))()
        each: dict[int, Iterator[Any]] = {
            worker: iter(getattr(one, answered)) for worker, one in responses.items()
        }
        merged = getattr(response, answered)
        for its_workers in workers:
            outcomes = [next(each[worker]) for worker in its_workers]
            merged.append(next((one for one in outcomes if one.error_code), outcomes[0]))
        return response

    async def _merged_of_all(self, merge: Callable[[list[Any]], Any], answers: dict[int, Any]) -> Any:
        responses = await _all(answers)
        return merge([responses[worker] for worker in sorted(responses)])


def like(message: Any, **changes: Any) -> Any:
    """A message of the same fields, but for `changes`."""
    fields = {field.name: getattr(message, field.name) for field in message.SPEC.fields}
    return type(message)(**{**fields, **changes})


def pack(context: RequestContext, frame: bytes) -> bytes:
    client = context.connection
    texts = [
        (text or "").encode("utf-8", "surrogateescape")
        for text in (
            context.client_host,
            context.listener,
            context.principal,
            client.client_software_name,
            client.client_software_version,
        )
    ]
    return b"".join((LENGTHS.pack(*map(len, texts)), *texts, frame))


def unpack(payload: bytes) -> tuple[RemoteClient, bytes]:
    position = LENGTHS.size
    texts = []
    for length in LENGTHS.unpack_from(payload):
        texts.append(payload[position : position + length].decode("utf-8", "surrogateescape"))
        position += length
    return RemoteClient(*texts), payload[position:]


async def _all(answers: dict[int, Any]) -> dict[int, Any]:
    """The responses, all of which have begun already."""
    waiting = [worker for worker, answer in answers.items() if inspect.isawaitable(answer)]
    found = await asyncio.gather(*(answers[worker] for worker in waiting))
    return answers | dict(zip(waiting, found, strict=True))


async def _encoded_later(context: RequestContext, answer: Awaitable[Any]) -> bytes:
    return _encoded(context, await answer)


def _encoded(context: RequestContext, response: Any | None) -> bytes:
    if response is None:
        return b""
    return codec.encode_response(response, context.version, context.correlation_id)


def _merge_groups(responses: Iterable[Any]) -> Any:
    """A client that is told an error asks again, and gets no half of the groups meanwhile."""
    merged = messages.ListGroupsResponse()
    for response in responses:
        if response.error_code and not merged.error_code:
            merged.error_code = response.error_code
        merged.groups.extend(response.groups)
    if merged.error_code:
        merged.groups = []
    return merged


def _merge_log_dirs(responses: Iterable[Any]) -> Any:
    """Each worker tells of every directory, with its own logs in it."""
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
    return merged


MERGE_ALL = {LIST_GROUPS: _merge_groups, DESCRIBE_LOG_DIRS: _merge_log_dirs}
