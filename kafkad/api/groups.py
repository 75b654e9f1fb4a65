"""Membership of classic groups, and their administration.

JoinGroup (key 11), v0-9.   v1 rebalance timeout. v4 member id required (KIP-394). v5 static members
  (KIP-345). v6 flexible. v7 protocol type returned. v8 reason. v9 skip assignment.
Heartbeat (key 12), v0-4.   v3 static members. v4 flexible.
LeaveGroup (key 13), v0-5.   v3 several members. v4 flexible. v5 reason.
SyncGroup (key 14), v0-5.   v3 static members. v4 flexible. v5 protocol type and name are mandatory (KIP-559).
DescribeGroups (key 15), v0-6.   v3 authorized operations. v5 flexible. v6 an unknown group is an error.
ListGroups (key 16), v0-5.   v3 flexible. v4 by state. v5 by type.
DeleteGroups (key 42), v0-2.   v2 flexible.

A JoinGroup may be held for minutes: its answer is a future, and only its own connection waits. When a
connection closes, its member stays until the session ends, as in Kafka. After a halt of the broker (SIGSTOP,
a suspended machine) there are requests of clients that have closed their connection meanwhile, and joined
under other ids: they begin no session. Not yet: consumer (KIP-848), share and streams groups."""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.coordinator.group import join_error
from kafkad.protocol import errors, messages, wide

# AclOperation codes of a group: read, delete, describe, describe configs, alter configs
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
AT_ONCE = 64  # elements per step
SEVERAL_LEAVE_FROM = 3  # LeaveGroup


def response_of(start: Callable[[Callable[[Any], None]], object]) -> Any:
    """Return the reply of `start(reply)`: itself if it came at once, otherwise a future of it."""
    at_once: list[Any] = []
    future: asyncio.Future[Any] | None = None

    def reply(response: Any) -> None:
        if future is None:
            at_once.append(response)
        elif not future.done():  # it is cancelled when the broker stops
            future.set_result(response)

    start(reply)
    if at_once:
        return at_once[0]
    future = asyncio.get_running_loop().create_future()
    return future


def response_of_steps(
    start: Callable[[Callable[[Any], None]], Generator[None, None, Any]],
) -> Generator[None, None, Any]:
    """`response_of`, where `start(reply)` works in steps. The reply may come in any of them, or later."""
    arrived: list[Any] = []
    late: Callable[[Any], None] | None = None

    def reply(response: Any) -> None:
        if late is None:
            arrived.append(response)
        else:
            late(response)

    def wait(when_it_has: Callable[[Any], None]) -> None:
        nonlocal late
        late = when_it_has

    yield from start(reply)
    return arrived[0] if arrived else response_of(wait)


def join_group(services: Services, context: RequestContext, request: Any) -> Any:
    def start(reply: Callable[[Any], None]) -> None:
        def joined(response: Any) -> None:
            if context.version < 7:
                response.protocol_name = response.protocol_name or ""  # not nullable before
            reply(response)

        if context.has_left:  # a new member would hold the others up, until its session ends
            joined(join_error(errors.COORDINATOR_NOT_AVAILABLE, request.member_id))
            return
        host = f"/{context.client_host}"  # as Java writes an address; tools show it
        services.groups.join(request, context.version, context.client_id, host, joined)

    return response_of(start)


def sync_group(services: Services, context: RequestContext, request: Any) -> Any:
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return messages.SyncGroupResponse(error_code=errors.INCONSISTENT_GROUP_PROTOCOL)
    return response_of(lambda reply: services.groups.sync(request, reply))


def heartbeat(services: Services, context: RequestContext, request: Any) -> Any:
    code = services.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        lives=not context.has_left,
    )
    return messages.HeartbeatResponse(error_code=code)


def leave_group(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    identities: list[tuple[str, str | None]] = []
    if context.version < SEVERAL_LEAVE_FROM:
        identities.append((request.member_id, None))
    else:
        for number, member in enumerate(request.members, 1):
            identities.append((member.member_id, member.group_instance_id))
            if number % AT_ONCE == 0:
                yield

    def start(reply: Callable[[Any], None]) -> Generator[None, None, None]:
        def left(outcome: tuple[int, list[int]]) -> None:
            reply(_left(context.version, identities, *outcome))

        return services.groups.leave_steps(request.group_id, identities, left)

    return (yield from response_of_steps(start))


def _left(
    version: int, identities: list[tuple[str, str | None]], top_code: int, codes: list[int]
) -> Generator[None, None, Any]:
    response = messages.LeaveGroupResponse(error_code=top_code)
    if top_code:
        return response
    if version < SEVERAL_LEAVE_FROM:
        response.error_code = codes[0]
        return response
    for (member_id, instance_id), code in zip(identities, codes, strict=True):
        response.members.append(
            messages.LeaveGroupResponse.Members(
                member_id=member_id, group_instance_id=instance_id, error_code=code
            )
        )
        if len(response.members) % AT_ONCE == 0:
            yield
    yield from wide.empty(identities, codes)
    return response


def describe_groups(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    response = messages.DescribeGroupsResponse()
    known: dict[str, Any] = {}  # a group that is named repeatedly is described once
    for group_id in request.groups:
        described = known.get(group_id)
        if described is None:
            described = known[group_id] = services.groups.describe(group_id, context.version)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
        response.groups.append(described)
        yield
    yield from wide.empty(known)
    return response


def list_groups(services: Services, context: RequestContext, request: Any) -> Any:
    return services.groups.list(request.states_filter, request.types_filter)


def delete_groups(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    response = messages.DeleteGroupsResponse()
    named = yield from wide.count(request.groups_names)
    for group_id in named:  # each once
        response.results.append(messages.DeleteGroupsResponse.Results(group_id=group_id))
        if len(response.results) % AT_ONCE == 0:
            yield
    yield from wide.empty(named)
    missing = len(response.results)
    reply: Callable[[Any], None] | None = None

    def deleted(result: Any, code: int) -> None:
        nonlocal missing
        result.error_code = code
        missing -= 1
        if not missing and reply is not None:
            reply(response)

    for result in response.results:
        services.groups.delete_group(result.group_id, partial(deleted, result))
        yield
    if not missing:
        return response

    def start(when_all_are: Callable[[Any], None]) -> None:
        nonlocal reply
        reply = when_all_are

    return response_of(start)
