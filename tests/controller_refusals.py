"""What a controller answers on its own listener to a user without rights: each API with one element."""

from collections.abc import Callable
from typing import Any

from kafkad.protocol import messages
from kafkad.server.controller_apis import BY_KEY

M = messages
AUTHENTICATING = (17, 18, 36)
# a controller that is not active may say so before it looks at tokens
TOKENS = (38, 39, 40)


def _one(request: str, field: str, /, **element: Any) -> Any:
    cls = getattr(M, request)
    struct = getattr(cls, "".join(part.capitalize() for part in field.split("_")))
    waiting = {"timeout_ms": 10_000} if any(it.name == "timeout_ms" for it in cls.SPEC.fields) else {}
    return cls(**{field: [struct(**element)]}, **waiting)


ELEMENTS: dict[str, Callable[[], Any]] = {
    "CreateTopics": lambda: _one("CreateTopicsRequest", "topics", name="new", num_partitions=1),
    "DeleteTopics": lambda: _one("DeleteTopicsRequest", "topics", name="old"),
    "DescribeAcls": lambda: M.DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    ),
    "CreateAcls": lambda: _one(
        "CreateAclsRequest", "creations", resource_type=2, resource_name="t", principal="User:reader",
        host="*", operation=2, permission_type=3,
    ),
    "DeleteAcls": lambda: _one(
        "DeleteAclsRequest", "filters", resource_type_filter=1, pattern_type_filter=1, operation=1,
        permission_type=1,
    ),
    "DescribeConfigs": lambda: _one(
        "DescribeConfigsRequest", "resources", resource_type=4, resource_name="1"
    ),
    "AlterConfigs": lambda: _one("AlterConfigsRequest", "resources", resource_type=2, resource_name="t"),
    "IncrementalAlterConfigs": lambda: _one(
        "IncrementalAlterConfigsRequest", "resources", resource_type=4, resource_name="1"
    ),
    "CreatePartitions": lambda: _one("CreatePartitionsRequest", "topics", name="t", count=9),
}  # fmt: skip


def refusals(connect: Callable[[], Any]) -> dict[str, list[Any]]:
    """Return the error codes of the answer to each API, by its name; [] is no element. Each API has its own
    connection, since sessions are short."""
    with connect() as wire:
        told = wire.ask(M.ApiVersionsRequest(), 0).api_keys
    versions = {row.api_key: row.max_version for row in told}
    found = {}
    for key, row in BY_KEY.items():
        if key not in (*AUTHENTICATING, *TOKENS):
            request = ELEMENTS.get(row.name, getattr(M, f"{row.name}Request"))()
            with connect() as wire:
                found[row.name] = _codes(wire.ask(request, min(row.high, versions[key])))
    return found


def _codes(message: Any) -> list[Any]:
    found: list[Any] = []
    for field in message.SPEC.fields:
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            found.append(value)
        elif isinstance(value, list) and field.struct is not None:
            found += [_codes(each) for each in value]
    return found
