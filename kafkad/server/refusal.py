"""An error response of any API, built from its request.

Kafka writes one such function per request class. The schemas carry the same knowledge: a response repeats
what the request named (topics, partitions, groups), so the response is the request's outline with the code
put into every `error_code`.
"""

from typing import Any

from kafkad.protocol import codec

# arrays that the response calls something else than the request
RENAMED = {
    ("ListOffsetsResponse", "topics"): "topics",
    ("CreatePartitionsResponse", "results"): "topics",
    ("DescribeConfigsResponse", "results"): "resources",
    ("AlterConfigsResponse", "responses"): "resources",
    ("IncrementalAlterConfigsResponse", "responses"): "resources",
    ("DescribeGroupsResponse", "groups"): "groups",
    ("DeleteGroupsResponse", "results"): "groups_names",
    ("DeleteTopicsResponse", "responses"): "topic_names",
    ("FindCoordinatorResponse", "coordinators"): "coordinator_keys",
}
# the field that a bare string of the request becomes
NAME_OF_STRING = {"groups": "group_id", "results": "group_id", "responses": "name", "coordinators": "key"}


def refusal(api_key: int, request: Any, code: int, message: str | None = None) -> Any | None:
    """The response that tells `code` for all of `request`; None where the response has no place for one."""
    response = codec.response_class(api_key)()
    return response if _mirror(response, request, code, message) else None


def _mirror(target: Any, source: Any, code: int, message: str | None) -> bool:
    told = False
    for name in target.__slots__:
        if name == "error_code":
            target.error_code = code
            told = True
        elif name == "error_message":
            target.error_message = message
        elif isinstance(getattr(target, name, None), list):
            elements = getattr(source, RENAMED.get((type(target).__name__, name), name), None)
            struct = getattr(type(target), name.title().replace("_", ""), None)
            if not elements or struct is None:
                continue
            made = []
            for element in elements:
                child = struct()
                if isinstance(element, str):
                    field = NAME_OF_STRING.get(name, "name")
                    if hasattr(child, field):
                        setattr(child, field, element)
                elif isinstance(element, int) and hasattr(child, "partition_index"):
                    child.partition_index = element
                told = _mirror(child, element, code, message) or told
                made.append(child)
            setattr(target, name, made)
        elif hasattr(source, name) and name != "throttle_time_ms":
            value = getattr(source, name)
            if isinstance(value, type(getattr(target, name))) or getattr(target, name) is None:
                setattr(target, name, value)
    return told
