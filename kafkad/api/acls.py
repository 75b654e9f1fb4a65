"""DescribeAcls (key 29), CreateAcls (30) and DeleteAcls (31), v0-v3.   v1 prefixes (KIP-290). v2 flexible.
v3 users as resources.

Without an authorizer each answers SECURITY_DISABLED. A request with the number 0 (UNKNOWN) for a kind,
pattern, operation or permission closes its connection: no Kafka client sends it."""

from collections.abc import Generator, Iterable
from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.controller.acls import A_STEP, filter_of
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import Meaningless
from kafkad.security.acls import Acl

NO_AUTHORIZER = "No Authorizer is configured."

Steps = Generator[None, None, Any]


def describe_acls(services: Services, context: RequestContext, request: Any) -> Steps:
    """Return the ACLs that match a filter, by resource."""
    yield from _check([request], "resource_type_filter", "pattern_type_filter")
    answer = messages.DescribeAclsResponse
    if services.authorizer is None:
        message = "No Authorizer is configured on the broker"
        return answer(error_code=errors.SECURITY_DISABLED, error_message=message)
    wanted = filter_of(request)
    found: dict[tuple[int, str, int], dict[Acl, None]] = {}
    for number, record in enumerate(services.metadata.image.acls.values(), 1):
        if number % A_STEP == 0:
            yield
        acl = Acl.of(record)
        if wanted.finds(acl):
            found.setdefault(acl[:3], {})[acl] = None
    resources = []
    for (kind, name, pattern), acls in found.items():
        yield
        row = answer.Resources(resource_type=kind, resource_name=name, pattern_type=pattern)
        row.acls = yield from _described(acls)
        resources.append(row)
    return answer(error_code=errors.NONE, error_message="", resources=resources)


def _described(acls: Iterable[Acl]) -> Steps:
    rows = []
    for number, acl in enumerate(acls, 1):
        if number % A_STEP == 0:
            yield
        rows.append(
            messages.DescribeAclsResponse.Resources.Acls(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return rows


def create_acls(services: Services, context: RequestContext, request: Any) -> Steps:
    yield from _check(request.creations, "resource_type", "resource_pattern_type")
    if services.authorizer is None:
        rows = yield from _disabled(request.creations, messages.CreateAclsResponse.Results)
        return messages.CreateAclsResponse(results=rows)
    return services.controller.create_acls(request, context)


def delete_acls(services: Services, context: RequestContext, request: Any) -> Steps:
    yield from _check(request.filters, "resource_type_filter", "pattern_type_filter")
    if services.authorizer is None:
        rows = yield from _disabled(request.filters, messages.DeleteAclsResponse.FilterResults)
        return messages.DeleteAclsResponse(filter_results=rows)
    return services.controller.delete_acls(request, context)


def _check(elements: Iterable[Any], *names: str) -> Steps:
    """Check the enumerated fields. Raises Meaningless."""
    names = (*names, "operation", "permission_type")
    for element in elements:
        if not all(getattr(element, name) for name in names):
            raise Meaningless("an ACL, or a filter of ACLs, contains UNKNOWN elements")
        yield


def _disabled(elements: Iterable[Any], row: Any) -> Steps:
    rows = []
    for _ in elements:
        rows.append(row(error_code=errors.SECURITY_DISABLED, error_message=NO_AUTHORIZER))
        yield
    return rows
