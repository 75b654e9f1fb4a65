"""The guard: removes from a request what its client is not authorized for, if there is an authorizer.

    admit      checks everything that api/access lists; the rest is removed or refused
    Gate       one request on its way: its principal, and what must be done to the answer

It wraps the handler, in the worker that serves the request. Requests of the broker to itself have no
principal and pass. Checks that do not fit the table are functions here, which the table names as `custom`.

Rule: a client that may not describe a topic must not learn whether it exists."""

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

from kafkad.api import metadata, tokens
from kafkad.api.access import ACCESS, AT_CONTROLLERS, CODES, MESSAGES, Each, Whole
from kafkad.api.context import RequestContext, Services
from kafkad.controller.tokens import create_response, owner_of
from kafkad.metadata.image import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kafkad.protocol import errors, messages
from kafkad.security.acls import Kind, Operation
from kafkad.security.authorizer import Subject
from kafkad.security.delegation import Principal, concerns
from kafkad.server.error_response import error_response
from kafkad.server.turns import Steps

AT_ONCE: Final = 64  # elements per step
NO_ID: Final = bytes(16)
METADATA_TOPIC: Final = "__cluster_metadata"
CONFIG_KINDS: Final = {
    TOPIC: Kind.TOPIC,
    BROKER: Kind.CLUSTER,
    BROKER_LOGGER: Kind.CLUSTER,
    CLIENT_METRICS: Kind.CLUSTER,
    GROUP: Kind.GROUP,
}
After = Callable[[Any], Steps]


class Gate:
    """`after`: steps that take the response and complete it. `refused`: the response if all is refused.
    `whole`: the arrays of the request from which elements were removed, as they came."""

    __slots__ = ("after", "context", "name", "refused", "request", "serve", "services", "subject", "whole")

    def __init__(
        self, subject: Subject, services: Services, context: RequestContext, request: Any, name: str
    ) -> None:
        self.subject = subject
        self.services = services
        self.context = context
        self.request = request
        self.name = name  # of the API
        self.after: list[After] = []
        self.whole: dict[str, list[Any]] = {}
        self.refused: Any = None
        self.serve: Callable[[], Any] | None = None  # called instead of the handler

    def may(self, operation: Operation, kind: Kind, name: str, *, logged: bool = True) -> bool:
        return self.subject.may(operation, kind, name, self.name, logged=logged)

    def may_cluster(self, operation: Operation, *, logged: bool = True) -> bool:
        return self.subject.may_cluster(operation, self.name, logged=logged)

    def refuse(self, code: int) -> Steps:
        """Refuse the whole request."""
        self.refused = yield from error_response(
            self.context.api_key, self.context.version, self.request, code, MESSAGES[code]
        )

    def split(
        self,
        array: str,
        name_of: Callable[[Any], str | None],
        allows: Callable[[str], bool],
    ) -> Generator[None, None, list[Any]]:
        """Keep the allowed elements in the request; return the others. The handler checks elements whose name
        is None."""
        allowed: list[Any] = []
        denied: list[Any] = []
        known: dict[str, bool] = {}
        for number, element in enumerate(getattr(self.request, array), 1):
            name = name_of(element)
            if name is None:
                allowed.append(element)
            else:
                if name not in known:
                    known[name] = allows(name)
                (allowed if known[name] else denied).append(element)
            if number % AT_ONCE == 0:
                yield
        if denied:
            self.keep(array, allowed)
        return denied

    def keep(self, array: str, allowed: list[Any]) -> None:
        """Leave only these elements in the request."""
        self.whole[array] = getattr(self.request, array)
        setattr(self.request, array, allowed)

    def restore(self) -> None:
        """The handler has failed: its error is the answer for every element that the client has sent."""
        for array, elements in self.whole.items():
            setattr(self.request, array, elements)

    def deny(
        self, array: str, denied: list[Any], code: int, answers: str, message: str | None = None
    ) -> None:
        """Answer these elements of the request with an error, after those that are served."""
        if not denied:
            return

        def after(response: Any) -> Steps:
            if getattr(response, "error_code", errors.NONE):
                return  # nothing was served
            outline = type(self.request)(**{array: denied})
            refused = yield from error_response(
                self.context.api_key, self.context.version, outline, code, message
            )
            getattr(response, answers).extend(getattr(refused, answers))

        self.after.append(after)

    def topic_name(self, element: Any, field: str = "name") -> str | None:
        """Return the topic of an element, given by name or by id; None: no topic has this id."""
        name, topic_id = getattr(element, field), getattr(element, "topic_id", NO_ID)
        if name or topic_id == NO_ID:
            return str(name or "")
        topic = self.services.metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


def admit(
    subject: Subject, services: Services, context: RequestContext, request: Any, name: str
) -> Generator[None, None, Gate]:
    """Check a request, in steps. Elements may be removed from it."""
    gate = Gate(subject, services, context, request, name)
    access = (AT_CONTROLLERS if services.is_controller else ACCESS).get(context.api_key)
    if access is None:
        if not subject.is_super:
            yield from gate.refuse(errors.CLUSTER_AUTHORIZATION_FAILED)
        return gate
    for whole in access.whole:
        if not _has(gate, whole):
            yield from gate.refuse(CODES[whole.kind])
            _bare(gate)
            return gate
    if access.each is not None:
        yield from _each(gate, access.each)
    if access.custom:
        yield from CUSTOM[access.custom](gate)
    return gate


def finish(gate: Gate, answer: Any) -> Any:
    """Complete the handler's answer: return it as it is, steps that return it, or an awaitable of it. If the
    handler fails, the request is restored."""
    if not gate.after:
        return answer
    if inspect.isawaitable(answer):
        return _finish_later(gate, answer)
    return _finish(gate, answer)


async def _finish_later(gate: Gate, answer: Awaitable[Any]) -> Any:
    try:
        answered = await answer
    except Exception:
        gate.restore()
        raise
    return _finish(gate, answered)


def _finish(gate: Gate, answer: Any) -> Steps:
    try:
        while isinstance(answer, Generator):
            answer = yield from answer
    except Exception:
        gate.restore()
        raise
    if inspect.isawaitable(answer):
        return _finish_later(gate, answer)
    for after in gate.after:
        yield from after(answer)
    return answer


def _has(gate: Gate, whole: Whole) -> bool:
    name = getattr(gate.request, whole.field) if whole.field else ""
    if whole.kind is not Kind.CLUSTER:
        return gate.may(whole.operation, whole.kind, name or "")
    if whole.or_else is not None and gate.may_cluster(whole.or_else, logged=False):
        return True
    return gate.may_cluster(whole.operation)


def _bare(gate: Gate) -> None:
    """Keep only the error, as in Kafka's answer."""
    if type(gate.refused) is messages.OffsetDeleteResponse:
        gate.refused.topics = []
    elif type(gate.refused) is messages.LeaveGroupResponse:
        gate.refused.members = []


def _each(gate: Gate, each: Each) -> Steps:
    def name_of(element: Any) -> str | None:
        return gate.topic_name(element, each.name) if each.name else str(element)

    denied = yield from gate.split(
        each.array, name_of, lambda name: gate.may(each.operation, each.kind, name)
    )
    code = CODES[each.kind]
    gate.deny(each.array, denied, code, each.response or each.array)


# -- topics ------------------------------------------------------------------------------------------------


def _metadata(gate: Gate) -> Steps:
    if not gate.subject.is_super:
        gate.serve = lambda: metadata.permitted(gate.services, gate.context, gate.request, gate.subject)
    return
    yield


def _describe_topic_partitions(gate: Gate) -> Steps:
    request = gate.request
    Topic = messages.DescribeTopicPartitionsResponse.Topics
    asked = {topic.name: None for topic in request.topics}
    Asked = messages.DescribeTopicPartitionsRequest.Topics
    allowed: list[str] = []
    denied: list[str] = []
    for number, name in enumerate(asked or gate.services.metadata.image.topics, 1):
        may = gate.may(Operation.DESCRIBE, Kind.TOPIC, name, logged=bool(asked))
        (allowed if may else denied).append(name)
        if number % AT_ONCE == 0:
            yield
    refused = []
    if asked:
        first = request.cursor.topic_name if request.cursor is not None else ""
        for name in sorted(denied):
            if name >= first:
                refused.append(Topic(error_code=errors.TOPIC_AUTHORIZATION_FAILED, name=name))
            yield
    if denied and not allowed:  # without topics the request would mean all of them
        gate.refused = messages.DescribeTopicPartitionsResponse(topics=refused)
        return
    if denied:
        request.topics = [Asked(name=name) for name in allowed]

    def after(response: Any) -> Steps:
        for topic in response.topics:
            if not topic.error_code:
                topic.topic_authorized_operations = gate.subject.operations(Kind.TOPIC, topic.name)
            yield
        response.topics.extend(refused)

    gate.after.append(after)


def _create_topics(gate: Gate) -> Steps:
    """Check CREATE: on the cluster it allows every topic. The handler refuses repeated names."""
    request = gate.request
    if not gate.may_cluster(Operation.CREATE, logged=False):
        seen: dict[str, int] = {}
        for number, topic in enumerate(request.topics, 1):
            seen[topic.name] = seen.get(topic.name, 0) + 1
            if number % AT_ONCE == 0:
                yield
        denied = yield from gate.split(
            "topics",
            lambda topic: topic.name,
            lambda name: (
                seen[name] > 1 or name == METADATA_TOPIC or gate.may(Operation.CREATE, Kind.TOPIC, name)
            ),
        )
        code = errors.TOPIC_AUTHORIZATION_FAILED
        gate.deny("topics", denied, code, "topics", "Authorization failed.")

    def after(response: Any) -> Steps:
        for topic in response.topics:
            yield
            if topic.error_code or gate.may(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, topic.name, logged=False):
                continue
            topic.configs, topic.num_partitions, topic.replication_factor = None, -1, -1
            topic.topic_config_error_code = errors.TOPIC_AUTHORIZATION_FAILED

    gate.after.append(after)


def _delete_topics(gate: Gate) -> Steps:
    """Check DELETE: on the cluster it allows every topic. If a topic is requested by id, its name is not
    shown to a client that may not describe it."""
    if gate.may_cluster(Operation.DELETE, logged=False):
        return
    array = "topics" if gate.context.version >= 6 else "topic_names"

    def name_of(element: Any) -> str | None:
        return str(element) if isinstance(element, str) else gate.topic_name(element)

    denied = yield from gate.split(array, name_of, lambda name: gate.may(Operation.DELETE, Kind.TOPIC, name))
    code = errors.TOPIC_AUTHORIZATION_FAILED
    Result = messages.DeleteTopicsResponse.Responses
    refused = []
    for element in denied:
        name, topic_id = name_of(element), getattr(element, "topic_id", NO_ID)
        if topic_id != NO_ID and not gate.may(Operation.DESCRIBE, Kind.TOPIC, name or ""):
            name = None
        refused.append(Result(name=name, topic_id=topic_id, error_code=code, error_message=MESSAGES[code]))
        yield
    if refused:
        gate.after.append(_extends("responses", refused))


def _extends(array: str, more: list[Any]) -> After:
    def after(response: Any) -> Steps:
        getattr(response, array).extend(more)
        return
        yield

    return after


def _offset_for_leader_epoch(gate: Gate) -> Steps:
    if not gate.may_cluster(Operation.CLUSTER_ACTION, logged=False):
        yield from _each(gate, Each(Operation.DESCRIBE, Kind.TOPIC, "topics", "topic"))


# -- groups ------------------------------------------------------------------------------------------------


def _offset_fetch(gate: Gate) -> Steps:
    request, version = gate.request, gate.context.version
    code = errors.GROUP_AUTHORIZATION_FAILED
    if version < 8:
        if not gate.may(Operation.DESCRIBE, Kind.GROUP, request.group_id):
            yield from gate.refuse(code)
            if version >= 2:
                gate.refused.topics = []
            return
        hidden = yield from _hidden_topics(gate, request)

        def after(response: Any) -> Steps:
            yield from _hide(gate, response, request, hidden, messages.OffsetFetchResponse.Topics)

        gate.after.append(after)
        return
    Group = messages.OffsetFetchResponse.Groups
    denied = yield from gate.split(
        "groups",
        lambda group: group.group_id,
        lambda name: gate.may(Operation.DESCRIBE, Kind.GROUP, name),
    )
    asked = request.groups
    hidden_of: list[list[Any]] = [[] for _ in asked]
    for group, hidden in zip(asked, hidden_of, strict=True):
        hidden.extend((yield from _hidden_topics(gate, group)))

    def after_all(response: Any) -> Steps:
        for group, answer, hidden in zip(asked, response.groups, hidden_of, strict=True):
            yield from _hide(gate, answer, group, hidden, Group.Topics)
        response.groups.extend(Group(group_id=group.group_id, error_code=code) for group in denied)

    gate.after.append(after_all)


def _hidden_topics(gate: Gate, group: Any) -> Generator[None, None, list[Any]]:
    """Remove topics that may not be described from a group's request; a request for all topics stays."""
    allowed: list[Any] = []
    hidden: list[Any] = []
    for number, topic in enumerate(group.topics or (), 1):
        name = gate.topic_name(topic)
        may = name is None or gate.may(Operation.DESCRIBE, Kind.TOPIC, name)
        (allowed if may else hidden).append(topic)
        if number % AT_ONCE == 0:
            yield
    if hidden:
        group.topics = allowed
    return hidden


def _hide(gate: Gate, answer: Any, group: Any, hidden: list[Any], cls: Any) -> Steps:
    if answer.error_code:
        return
    if group.topics is None:
        seen = []
        for topic in answer.topics:
            name = gate.topic_name(topic)
            if name is not None and gate.may(Operation.DESCRIBE, Kind.TOPIC, name, logged=False):
                seen.append(topic)
            yield
        answer.topics = seen
    for topic in hidden:
        failed = cls(name=topic.name)
        if hasattr(topic, "topic_id"):
            failed.topic_id = topic.topic_id
        for number, index in enumerate(topic.partition_indexes, 1):
            failed.partitions.append(
                cls.Partitions(
                    partition_index=index,
                    committed_offset=-1,
                    committed_leader_epoch=-1,
                    metadata="",
                    error_code=errors.TOPIC_AUTHORIZATION_FAILED,
                )
            )
            if number % AT_ONCE == 0:
                yield
        answer.topics.append(failed)
        yield


def _find_coordinator(gate: Gate) -> Steps:
    request = gate.request
    kind = {0: Kind.GROUP, 1: Kind.TRANSACTIONAL_ID}.get(request.key_type)
    if kind is None:  # other types have no keys yet
        return
    code = CODES[kind]
    if gate.context.version < 4:
        if not gate.may(Operation.DESCRIBE, kind, request.key):
            gate.refused = messages.FindCoordinatorResponse(
                error_code=code, error_message=MESSAGES[code], node_id=-1, host="", port=-1
            )
        return
    denied = yield from gate.split(
        "coordinator_keys", lambda key: key, lambda key: gate.may(Operation.DESCRIBE, kind, key)
    )
    Answer = messages.FindCoordinatorResponse.Coordinators
    refused = [
        Answer(key=key, error_code=code, error_message=MESSAGES[code], node_id=-1, host="", port=-1)
        for key in denied
    ]
    if refused:
        gate.after.append(_extends("coordinators", refused))


def _sync_group(gate: Gate) -> Steps:
    """Check a SyncGroup. From v5 on, one without a protocol is refused before the group is checked."""
    request = gate.request
    named = request.protocol_type is not None and request.protocol_name is not None
    if (gate.context.version < 5 or named) and not gate.may(Operation.READ, Kind.GROUP, request.group_id):
        yield from gate.refuse(errors.GROUP_AUTHORIZATION_FAILED)


def _delete_groups(gate: Gate) -> Steps:
    """Check DELETE. A group that is named twice is answered once."""
    gate.request.groups_names = list(dict.fromkeys(gate.request.groups_names))
    yield from _each(gate, Each(Operation.DELETE, Kind.GROUP, "groups_names", "", "results"))


def _describe_groups(gate: Gate) -> Steps:
    yield from _each(gate, Each(Operation.DESCRIBE, Kind.GROUP, "groups", ""))
    if gate.request.include_authorized_operations:

        def after(response: Any) -> Steps:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = gate.subject.operations(Kind.GROUP, group.group_id)
                yield

        gate.after.append(after)


def _list_groups(gate: Gate) -> Steps:
    yield from _listed(gate, "groups", Kind.GROUP, lambda group: group.group_id)


def _listed(gate: Gate, array: str, kind: Kind, name_of: Callable[[Any], str]) -> Steps:
    """Keep only what may be described; DESCRIBE on the cluster shows all groups."""
    if kind is Kind.GROUP and gate.may_cluster(Operation.DESCRIBE, logged=False):
        return

    def after(response: Any) -> Steps:
        shown = []
        for number, each in enumerate(getattr(response, array), 1):
            if gate.may(Operation.DESCRIBE, kind, name_of(each), logged=False):
                shown.append(each)
            if number % AT_ONCE == 0:
                yield
        setattr(response, array, shown)

    gate.after.append(after)
    return
    yield


# -- transactions ------------------------------------------------------------------------------------------


def _init_producer_id(gate: Gate) -> Steps:
    name, code = gate.request.transactional_id, errors.NONE
    if name is not None:
        if not gate.may(Operation.WRITE, Kind.TRANSACTIONAL_ID, name):
            code = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not gate.may_cluster(Operation.IDEMPOTENT_WRITE, logged=False) and not gate.subject.may_any(
        Operation.WRITE, Kind.TOPIC, gate.name
    ):
        gate.subject.write(False, Operation.IDEMPOTENT_WRITE, Kind.CLUSTER, "kafka-cluster", gate.name)
        code = errors.CLUSTER_AUTHORIZATION_FAILED
    if code:
        gate.refused = messages.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return
    yield


def _add_partitions_to_txn(gate: Gate) -> Steps:
    """Check partitions. From v4 on brokers send this. Below, one refused partition prevents the others."""
    request = gate.request
    Response = messages.AddPartitionsToTxnResponse
    if gate.context.version >= 4:
        if not gate.may_cluster(Operation.CLUSTER_ACTION):
            gate.refused = Response(error_code=errors.CLUSTER_AUTHORIZATION_FAILED)
        return
    if not gate.may(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        yield from gate.refuse(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return
    topics = request.v3_and_below_topics
    denied = set()
    for number, topic in enumerate(topics, 1):
        if not gate.may(Operation.WRITE, Kind.TOPIC, topic.name):
            denied.add(topic.name)
        if number % AT_ONCE == 0:
            yield
    if not denied:
        return
    Topic = Response.ResultsByTopicV3AndBelow
    known = gate.services.metadata.image.topics
    response = Response()
    for topic in topics:
        answer = Topic(name=topic.name)
        response.results_by_topic_v3_and_below.append(answer)
        there = known[topic.name].partitions if topic.name in known else ()
        for number, index in enumerate(topic.partitions, 1):
            code = errors.OPERATION_NOT_ATTEMPTED
            if topic.name in denied:
                code = errors.TOPIC_AUTHORIZATION_FAILED
            elif index not in there:
                code = errors.UNKNOWN_TOPIC_OR_PARTITION
            answer.results_by_partition.append(
                Topic.ResultsByPartition(partition_index=index, partition_error_code=code)
            )
            if number % AT_ONCE == 0:
                yield
        yield
    gate.refused = response


def _describe_transactions(gate: Gate) -> Steps:
    each = Each(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, "transactional_ids", "", "transaction_states")

    def after(response: Any) -> Steps:
        for state in response.transaction_states:
            shown = []
            for topic in state.topics:
                if gate.may(Operation.DESCRIBE, Kind.TOPIC, topic.topic):
                    shown.append(topic)
                yield
            state.topics = shown

    gate.after.append(after)
    yield from _each(gate, each)


def _list_transactions(gate: Gate) -> Steps:
    def name_of(state: Any) -> str:
        return str(state.transactional_id)

    yield from _listed(gate, "transaction_states", Kind.TRANSACTIONAL_ID, name_of)


# -- delegation tokens -------------------------------------------------------------------------------------


def _create_delegation_token(gate: Gate) -> Steps:
    """Check a token for another owner than the requester (KIP-373)."""
    requester = Principal.of(gate.context.principal)
    owner = owner_of(requester, gate.request)
    if (
        owner != requester
        and tokens.is_allowed(gate.services, gate.context)
        and not gate.may(Operation.CREATE_TOKENS, Kind.USER, str(owner))
    ):
        code = errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        gate.refused = create_response(gate.context.version, owner, requester, code, tokens.NO_TIME)
    return
    yield


def _describe_delegation_token(gate: Gate) -> Steps:
    """Owners, requesters and renewers see their tokens; others need a right to the token, or to its owner."""
    records = gate.services.metadata.image.delegation_tokens

    def after(response: Any) -> Steps:
        shown = []
        for number, token in enumerate(response.tokens, 1):
            record = records.get(token.token_id)
            if record is not None and (
                concerns(record, gate.context.principal)
                or gate.may(Operation.DESCRIBE, Kind.DELEGATION_TOKEN, token.token_id)
                or gate.may(Operation.DESCRIBE_TOKENS, Kind.USER, record.owner)
            ):
                shown.append(token)
            if number % AT_ONCE == 0:
                yield
        response.tokens = shown

    gate.after.append(after)
    return
    yield


# -- the cluster, configurations ---------------------------------------------------------------------------


def _describe_cluster(gate: Gate) -> Steps:
    if gate.request.include_cluster_authorized_operations:

        def after(response: Any) -> Steps:
            response.cluster_authorized_operations = metadata.cluster_operations(gate.subject, gate.name)
            return
            yield

        gate.after.append(after)
    return
    yield


def _describe_configs(gate: Gate) -> Steps:
    yield from _configs(gate, Operation.DESCRIBE_CONFIGS)


def _alter_configs(gate: Gate) -> Steps:
    yield from _configs(gate, Operation.ALTER_CONFIGS)


def _configs(gate: Gate, operation: Operation) -> Steps:
    """Check by kind of resource; the handler refuses unknown kinds."""
    answers = "results" if operation is Operation.DESCRIBE_CONFIGS else "responses"
    allowed: list[Any] = []
    denied: dict[int, list[Any]] = {}
    for number, resource in enumerate(gate.request.resources, 1):
        kind = CONFIG_KINDS.get(resource.resource_type)
        if kind is Kind.CLUSTER:
            may = gate.may_cluster(operation)
        else:
            may = kind is None or gate.may(operation, kind, resource.resource_name)
        if may:
            allowed.append(resource)
        else:
            assert kind is not None
            denied.setdefault(CODES[kind], []).append(resource)
        if number % AT_ONCE == 0:
            yield
    if denied:
        gate.keep("resources", allowed)
    for code, resources in denied.items():
        gate.deny("resources", resources, code, answers, MESSAGES[code])


CUSTOM: Final[dict[str, Callable[[Gate], Steps]]] = {
    "metadata": _metadata,
    "describe_topic_partitions": _describe_topic_partitions,
    "create_topics": _create_topics,
    "delete_topics": _delete_topics,
    "offset_for_leader_epoch": _offset_for_leader_epoch,
    "offset_fetch": _offset_fetch,
    "find_coordinator": _find_coordinator,
    "sync_group": _sync_group,
    "delete_groups": _delete_groups,
    "describe_groups": _describe_groups,
    "list_groups": _list_groups,
    "init_producer_id": _init_producer_id,
    "add_partitions_to_txn": _add_partitions_to_txn,
    "describe_transactions": _describe_transactions,
    "list_transactions": _list_transactions,
    "create_delegation_token": _create_delegation_token,
    "describe_delegation_token": _describe_delegation_token,
    "describe_cluster": _describe_cluster,
    "describe_configs": _describe_configs,
    "alter_configs": _alter_configs,
}
