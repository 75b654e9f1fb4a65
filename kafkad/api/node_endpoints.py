"""Where clients reach a leader, as answers to Fetch and Produce have it (KIP-951), encoded once."""

from kafkad.metadata.image import Endpoint
from kafkad.protocol import codec, messages

VERSION = 16  # the first one; later ones have the same tags
TAGS_AT = 11  # throttle time, error code, session id, no topics


def node_endpoints(node_id: int, endpoint: Endpoint, rack: str | None) -> bytes:
    """Return the tagged fields of a Fetch answer that names one node."""
    node = messages.FetchResponse.NodeEndpoints(
        node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack
    )
    return codec.encode(messages.FetchResponse(node_endpoints=[node]), VERSION)[TAGS_AT:]


def node_entry(node_id: int, endpoint: Endpoint, rack: str | None) -> bytes:
    """Return one node of these fields: after their number (1), the tag (0), its size, and the count of
    nodes."""
    tags = node_endpoints(node_id, endpoint, rack)
    return tags[5:] if tags[2] & 0x80 else tags[4:]
