"""Metadata (key 3), v0-13.   v0 no topics means all. v1 null means all. v4 auto-create by request.
    v5 offline replicas. v7 leader epochs. v8 authorized operations. v9 flexible. v10 topic ids.
    v11 no cluster operations. v12 topics by id. v13 an error code for the whole request.
DescribeTopicPartitions (key 75), v0.  Topics by name, a page of partitions at a time, ELR (KIP-966).

The answer has the brokers' addresses on the listener of the request; brokers without that listener are left
out. A missing topic is created if the request and auto.create.topics.enable allow it, and returned at once.
(Kafka first answers UNKNOWN_TOPIC_OR_PARTITION, because its controller works elsewhere.) If there is an
authorizer, `permitted` answers all clients except super users (server/guard).
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.api.metadata_answers import Kind, Tell
from kafkad.controller.topics import invalid_name
from kafkad.coordinator.runtime import at_once
from kafkad.metadata.image import INTERNAL_TOPICS, BrokerRegistration, MetadataImage, PartitionState, Topic
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError
from kafkad.security.acls import CLUSTER_NAME, Operation
from kafkad.security.acls import Kind as Resource
from kafkad.security.authorizer import Subject

API = "Metadata"  # in the audit log
LOOKED_AT = 64  # topics that are looked up in one go
NO_NODE = -1
NO_ID = bytes(16)

# Without an authorizer everybody may do everything: a bit for each AclOperation that a resource knows.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

Troubles = dict[str, KafkaError | None]
Steps = Generator[None, None, Any]


def metadata(services: Services, context: RequestContext, request: Any) -> Any:
    """Return the answer: encoded (bytes, SharedAnswer) or as MetadataResponse; a generator of one of them if
    there are many topics; or an awaitable, if a topic must be created first."""
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        return _everything(services, context, request)
    if len(asked) > LOOKED_AT:
        return _many(services, context, request)
    named = _Named()
    named.add(asked)
    return at_once(_some(services, context, request, named))


def permitted(services: Services, context: RequestContext, request: Any, subject: Subject) -> Any:
    """Return the answer for a client without all rights: topics that it may not describe are left out, or
    refused if the request names them, whether they exist or not."""
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        return _permitted_of_all(services, context, request, subject)
    return _permitted_of_named(services, context, request, subject)


def _permitted_of_all(services: Services, context: RequestContext, request: Any, subject: Subject) -> Steps:
    named = _Named()
    for number, name in enumerate(services.metadata.image.topics, 1):
        if subject.may(Operation.DESCRIBE, Resource.TOPIC, name, API, logged=False):
            named.names[name] = None
        if number % LOOKED_AT == 0:
            yield
    return (yield from _answer(services, context, request, named, {}, subject))


def _permitted_of_named(services: Services, context: RequestContext, request: Any, subject: Subject) -> Steps:
    image, named = services.metadata.image, _Named()
    for start in range(0, len(request.topics), LOOKED_AT):
        named.add(request.topics[start : start + LOOKED_AT])
        yield
    if context.version < 12 and (named.nameless or named.ids):
        return (yield from _refused(services, context, request))
    makes = request.allow_auto_topic_creation and services.config.auto_create_topics_enable
    hidden: list[Any] = []
    creatable = []
    for topic_id in list(named.ids):
        topic = image.topics_by_id.get(topic_id)
        if topic is not None and not subject.may(Operation.DESCRIBE, Resource.TOPIC, topic.name, API):
            del named.ids[topic_id]
            hidden.append(_denied(None, topic_id))
        yield
    for name in () if named.ids or hidden else list(named.names):
        may = subject.may(Operation.DESCRIBE, Resource.TOPIC, name, API)
        if may and makes and name not in image.topics and invalid_name(name) is None:
            may = subject.may_cluster(Operation.CREATE, API, logged=False) or subject.may(
                Operation.CREATE, Resource.TOPIC, name, API
            )
            if may:
                creatable.append(name)
        if not may:
            del named.names[name]
            hidden.append(_denied(name, NO_ID))
        yield
    troubles: Troubles = {}
    if creatable:
        created = services.controller.auto_create(creatable, context)
        if inspect.isawaitable(created):
            return _permitted_later(services, context, request, named, creatable, created, subject, hidden)
        troubles = created
    return (yield from _permitted_answer(services, context, request, named, troubles, subject, hidden))


async def _permitted_later(
    services: Services,
    context: RequestContext,
    request: Any,
    named: "_Named",
    names: list[str],
    created: Awaitable[Troubles],
    subject: Subject,
    hidden: list[Any],
) -> Steps:
    troubles = await _created(names, created)
    return _permitted_answer(services, context, request, named, troubles, subject, hidden)


def _permitted_answer(
    services: Services,
    context: RequestContext,
    request: Any,
    named: "_Named",
    troubles: Troubles,
    subject: Subject,
    hidden: list[Any],
) -> Steps:
    if hidden and all(topic.name is None for topic in hidden) and not named.ids:
        named.names.clear()  # all topics requested by id are hidden
    response = yield from _answer(services, context, request, named, troubles, subject)
    response.topics.extend(hidden)
    return response


def _denied(name: str | None, topic_id: bytes) -> Any:
    return messages.MetadataResponse.Topics(
        error_code=errors.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic_id
    )


def cluster_operations(subject: Subject | None, api: str) -> int:
    """Return the bits of the allowed operations on the cluster; 0 if the client may not describe it."""
    if subject is None:
        return CLUSTER_OPERATIONS
    return (
        subject.operations(Resource.CLUSTER, CLUSTER_NAME)
        if subject.may_cluster(Operation.DESCRIBE, api)
        else 0
    )


async def _created(names: list[str], created: Awaitable[Troubles]) -> Troubles:
    try:
        return await created
    except KafkaError:  # the controller is gone for a moment: existing topics are returned all the same
        return dict.fromkeys(names, KafkaError(errors.LEADER_NOT_AVAILABLE))


class _Named:
    """The topics that a request names, each once."""

    __slots__ = ("creatable", "ids", "nameless", "names")

    def __init__(self) -> None:
        self.ids: dict[bytes, None] = {}
        self.names: dict[str, None] = {}
        self.creatable: dict[str, None] = {}  # names of topics that have no id
        self.nameless = False

    def add(self, topics: Iterable[Any]) -> None:
        for topic in topics:
            name = topic.name
            if topic.topic_id != NO_ID:
                self.ids[topic.topic_id] = None
            elif name:
                self.creatable[name] = None
            if name is None:
                self.nameless = True
            else:
                self.names[name] = None

    def found(self, image: MetadataImage) -> Generator[None, None, list[Topic] | None]:
        """Return the topics, by id if any has one, in steps; None: some do not exist."""
        get: Callable[[Any], Topic | None] = image.topics_by_id.get if self.ids else image.topics.get
        found: list[Topic] = []
        for key in self.ids or self.names:
            topic = get(key)
            if topic is None:
                return None
            found.append(topic)
            if len(found) % LOOKED_AT == 0:
                yield
        return found

    def empty(self) -> Generator[None, None, None]:
        """Forget them, in steps."""
        yield from wide.empty(self.ids, self.names, self.creatable)


def _many(services: Services, context: RequestContext, request: Any) -> Steps:
    named = _Named()
    for start in range(0, len(request.topics), LOOKED_AT):
        named.add(request.topics[start : start + LOOKED_AT])
        yield
    answer = yield from _some(services, context, request, named)
    if not inspect.isawaitable(answer):
        yield from named.empty()
    return answer


def _some(services: Services, context: RequestContext, request: Any, named: _Named) -> Steps:
    image = services.metadata.image
    if context.version < 12 and (named.nameless or named.ids):
        # v10 and v11 have ids in the schema, but servers accept names only.
        return (yield from _refused(services, context, request))
    found = yield from named.found(image)
    if found is not None:
        kind, tell = _kind(context, request), _tell(services, image, context, request)
        return (yield from services.metadata_answers.some(image, kind, tell, found, context.correlation_id))
    creatable = []
    if request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        for name in named.creatable:
            if name not in image.topics and invalid_name(name) is None:
                creatable.append(name)
            yield
    if not creatable:
        return (yield from _answer(services, context, request, named, {}))
    created = services.controller.auto_create(creatable, context)
    if inspect.isawaitable(created):
        return _answer_later(services, context, request, named, creatable, created)
    return (yield from _answer(services, context, request, named, created))


def _everything(services: Services, context: RequestContext, request: Any) -> Any:
    image, kind = services.metadata.image, _kind(context, request)
    kept = services.metadata_answers.kept(image, kind, context.correlation_id)
    if kept is not None:
        return kept
    tell = _tell(services, image, context, request)
    return services.metadata_answers.everything(image, kind, tell, context.correlation_id)


def _kind(context: RequestContext, request: Any) -> Kind:
    version = context.version
    return Kind(
        version,
        context.listener,
        request.include_topic_authorized_operations and version >= 8,
        request.include_cluster_authorized_operations and 8 <= version <= 10,
    )


def _tell(services: Services, image: MetadataImage, context: RequestContext, request: Any) -> Tell:
    told = _Told(image, context, services.config.node_id)

    def topic(topic: Topic) -> Any:
        answer = told.topic(topic)
        if request.include_topic_authorized_operations and context.version >= 8:
            answer.topic_authorized_operations = TOPIC_OPERATIONS
        return answer

    return Tell(lambda: _response(told, context, request), topic)


async def _answer_later(
    services: Services,
    context: RequestContext,
    request: Any,
    named: _Named,
    names: list[str],
    created: Awaitable[Troubles],
) -> Steps:
    troubles = await _created(names, created)
    return _answer(services, context, request, named, troubles)


def _refused(services: Services, context: RequestContext, request: Any) -> Steps:
    response = _response(_Told(services.metadata.image, context, services.config.node_id), context, request)
    response.error_code = errors.INVALID_REQUEST
    for topic in request.topics:
        response.topics.append(
            messages.MetadataResponse.Topics(
                error_code=errors.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
        )
        yield
    return response


def _answer(
    services: Services,
    context: RequestContext,
    request: Any,
    named: _Named,
    troubles: Troubles,
    subject: Subject | None = None,
) -> Steps:
    """`subject`: None has all rights."""
    told = _Told(services.metadata.image, context, services.config.node_id)
    response = _response(told, context, request, subject)
    with_operations = request.include_topic_authorized_operations and context.version >= 8
    topics: Iterable[Any] = map(told.identified, named.ids)
    if not named.ids:
        topics = (told.named(name, troubles) for name in named.names)
    for topic in topics:
        if with_operations and topic.error_code != errors.UNKNOWN_TOPIC_ID:  # a resource is known by its name
            topic.topic_authorized_operations = (
                TOPIC_OPERATIONS if subject is None else subject.operations(Resource.TOPIC, topic.name)
            )
        response.topics.append(topic)
        yield
    return response


def _response(told: "_Told", context: RequestContext, request: Any, subject: Subject | None = None) -> Any:
    named = [broker for broker in told.image.brokers.values() if told.listens(broker)]
    # When all nodes stop, the last ones know that all are fenced. Clients with librdkafka forget brokers that
    # are not in the answer, and never ask again if none is left (confluentinc/librdkafka#5301).
    up = [broker for broker in named if not broker.fenced]
    response = messages.MetadataResponse(
        brokers=[
            messages.MetadataResponse.Brokers(
                node_id=broker.broker_id,
                host=broker.listeners[context.listener].host,
                port=broker.listeners[context.listener].port,
                rack=broker.rack,
            )
            for broker in up or named
        ],
        cluster_id=told.image.cluster_id,
        controller_id=told.passes_on(up),
    )
    if request.include_cluster_authorized_operations and 8 <= context.version <= 10:
        response.cluster_authorized_operations = cluster_operations(subject, API)
    return response


class _Told:
    """An image in the form for the clients of one listener."""

    def __init__(self, image: MetadataImage, context: RequestContext, us: int = NO_NODE) -> None:
        """`us`: the broker that answers."""
        self.image = image
        self.us = us
        self.listener = context.listener
        self.version = context.version
        # Most of 10,000 partitions have the same replicas; their lists are shared, and must not be changed.
        self._replicas: dict[tuple[int, ...], list[int]] = {}
        self._offline: dict[tuple[Any, ...], list[int]] = {}

    def listens(self, broker: BrokerRegistration) -> bool:
        return self.listener in broker.listeners

    def passes_on(self, up: list[BrokerRegistration]) -> int:
        """Return the broker for changes, which it forwards to the controller: this one, because it is known
        to be alive, unlike one that was killed and is not fenced yet."""
        known = [broker.broker_id for broker in up]
        return self.us if self.us in known else known[0] if known else NO_NODE

    def identified(self, topic_id: bytes) -> Any:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is not None:
            return self.topic(topic)
        return messages.MetadataResponse.Topics(
            error_code=errors.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
        )

    def named(self, name: str, troubles: Troubles) -> Any:
        topic = self.image.topics.get(name)
        if topic is not None:
            return self.topic(topic)
        code = _absent_code(name, troubles)
        return messages.MetadataResponse.Topics(
            error_code=code, name=name, is_internal=name in INTERNAL_TOPICS
        )

    def topic(self, topic: Topic) -> Any:
        return messages.MetadataResponse.Topics(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[self.partition(index, state) for index, state in topic.partitions.items()],
        )

    def partition(self, index: int, state: PartitionState) -> Any:
        replicas, isr = self.replicas(state.replicas), self.replicas(state.isr)
        leader = self.leader(state)
        code = errors.NONE
        if leader == NO_NODE:
            # v6 distinguishes a wrong configuration from a leader that is down
            elsewhere = self.version >= 6 and state.leader in self.image.brokers
            code = errors.LISTENER_NOT_FOUND if elsewhere else errors.LEADER_NOT_AVAILABLE
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            code = errors.REPLICA_NOT_AVAILABLE  # v0 only
        return messages.MetadataResponse.Topics.Partitions(
            error_code=code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=self.offline(state),
        )

    def leader(self, state: PartitionState) -> int:
        broker = self.image.brokers.get(state.leader)
        return state.leader if broker is not None and self.listens(broker) else NO_NODE

    def replicas(self, replicas: tuple[int, ...]) -> list[int]:
        """Return the replicas; v0 leaves out those that are down."""
        known = self._replicas.get(replicas)
        if known is None:
            known = [replica for replica in replicas if self.version > 0 or self.up(replica)]
            self._replicas[replicas] = known
        return known

    def up(self, replica: int) -> bool:
        broker = self.image.brokers.get(replica)
        return broker is not None and not broker.fenced and self.listens(broker)

    def offline(self, state: PartitionState) -> list[int]:
        where = (state.replicas, state.directories)
        known = self._offline.get(where)
        if known is None:
            known = [
                replica
                for replica, directory in zip(*where, strict=True)
                if not self.up(replica) or not self.image.brokers[replica].has_online(directory)
            ]
            self._offline[where] = known
        return known


def _absent_code(name: str, troubles: Troubles) -> int:
    if invalid_name(name) is not None:
        return errors.INVALID_TOPIC_EXCEPTION
    trouble = troubles.get(name)
    return errors.UNKNOWN_TOPIC_OR_PARTITION if trouble is None else trouble.code


def describe_topic_partitions(services: Services, context: RequestContext, request: Any) -> Steps:
    """Return DescribeTopicPartitionsResponse. Raises KafkaError(INVALID_REQUEST) for an invalid cursor."""
    image = services.metadata.image
    told = _Told(image, context)
    cursor = request.cursor
    named: set[str] = set()
    for topic in request.topics:
        named.add(topic.name)
        if len(named) % LOOKED_AT == 0:
            yield
    names = named or image.topics.keys()
    if cursor is not None:
        if request.topics and cursor.topic_name not in names:
            raise KafkaError(
                errors.INVALID_REQUEST,
                "DescribeTopicPartitionsRequest topic list should contain the cursor topic: "
                + cursor.topic_name,
            )
        if cursor.partition_index < 0:
            raise KafkaError(
                errors.INVALID_REQUEST, "DescribeTopicPartitionsRequest cursor partition must be valid"
            )
    cls = messages.DescribeTopicPartitionsResponse
    response = cls()
    limit = services.config.max_request_partition_size_limit
    remaining = max(min(limit, request.response_partition_limit), 1)
    rest = (name for name in names if cursor is None or name >= cursor.topic_name)
    for name in (yield from wide.in_order(rest)):
        yield
        if remaining == 0:
            response.next_cursor = cls.NextCursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(
                    cls.Topics(
                        error_code=_absent_code(name, {}),
                        name=name,
                        is_internal=name in INTERNAL_TOPICS,
                        topic_authorized_operations=TOPIC_OPERATIONS,
                    )
                )
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        end = min(len(topic.partitions), first + remaining)
        response.topics.append(
            cls.Topics(
                name=name,
                topic_id=topic.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=[
                    _described(told, index, topic.partitions[index])
                    for index in range(first, end)
                    if index in topic.partitions
                ],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if end < len(topic.partitions):
            response.next_cursor = cls.NextCursor(topic_name=name, partition_index=end)
            break
        remaining -= max(end - first, 0)
    return response


def _described(told: _Told, index: int, state: PartitionState) -> Any:
    return messages.DescribeTopicPartitionsResponse.Topics.Partitions(
        partition_index=index,
        leader_id=told.leader(state),
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.elr),
        last_known_elr=list(state.last_known_elr),
        offline_replicas=told.offline(state),
    )
