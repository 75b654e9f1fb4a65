"""Messages to bytes and back, with the headers that Kafka puts before requests and responses.

A frame here is what follows the four bytes of its size. Which header a message has follows from its key and
version: requests 2 when flexible, else 1 (ControlledShutdown v0 alone: 0); responses 1 when flexible, else 0,
and ApiVersions always 0, since its reader cannot know yet what the broker speaks (KIP-511). Bytes left over
after a request's body are ignored, as Kafka ignores them."""

import gc
from struct import Struct

from kafkad._native.codec import Message, decode, encode
from kafkad._native.malformed import Malformed
from kafkad.protocol import messages
from kafkad.protocol.messages import request_class, response_class

__all__ = [
    "decode",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
    "request_class",
    "request_header_version",
    "response_class",
    "response_header_version",
]

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7
# Elements of arrays, their fields, and two more for each object, in one request: 600,000 for an OffsetCommit
# of 100,000 partitions, which is decoded in some 50 ms.
REQUEST_VALUES_MAX = 640_000
COLLECT_BELOW = 16 * 1024  # bytes of a frame
KEY_AND_VERSION = Struct(">hh")
CORRELATION_ID = Struct(">i")


def request_header_version(api_key: int, version: int) -> int:
    """Also for versions that do not exist yet. Raises KeyError for a key that does not."""
    if version >= request_class(api_key).FLEXIBLE_VERSION:
        return 2
    return 0 if version == 0 and api_key == CONTROLLED_SHUTDOWN else 1


def response_header_version(api_key: int, version: int) -> int:
    return int(version >= response_class(api_key).FLEXIBLE_VERSION and api_key != API_VERSIONS)


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    key = message.API_KEY
    assert key is not None
    header_version = request_header_version(key, version)
    header = messages.RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id if header_version else "",
    )
    return encode(message, version, encode(header, header_version))


def encode_response(message: Message, version: int, correlation_id: int) -> bytes:
    header = CORRELATION_ID.pack(correlation_id)
    if version >= message.FLEXIBLE_VERSION and message.API_KEY != API_VERSIONS:
        header += b"\0"  # no tagged fields
    return encode(message, version, header)


def decode_request_header(frame: bytes, header_version: int | None = None) -> tuple[Message, int]:
    """(RequestHeader, where the body starts). Raises Malformed, also for a key that Kafka does not have; the
    version may be one that does not exist. `header_version` if it is not the one that key and version say."""
    if len(frame) < KEY_AND_VERSION.size:
        raise Malformed(f"a request of {len(frame)} bytes")
    key, version = KEY_AND_VERSION.unpack_from(frame)
    if key not in messages.NAMES or version < 0:
        raise Malformed(f"there is no API {key} version {version}")
    if header_version is None:
        header_version = request_header_version(key, version)
    return decode(messages.RequestHeader, header_version, frame)


def decode_request(frame: bytes) -> tuple[Message, Message]:
    """(RequestHeader, message). Raises Malformed, also for a version that Kafka does not have, and for more
    values than REQUEST_VALUES_MAX."""
    header, start = decode_request_header(frame)
    key, version = header.request_api_key, header.request_api_version
    cls = request_class(key)
    if not cls.MIN_VERSION <= version <= cls.LATEST_VERSION:
        raise Malformed(f"{cls.NAME} has no version {version}")
    if len(frame) < COLLECT_BELOW or not gc.isenabled():
        message, _ = decode(cls, version, frame, start, REQUEST_VALUES_MAX)
        return header, message
    gc.disable()  # none of the new objects is garbage; looking through them takes twice as long as decoding
    try:
        message, _ = decode(cls, version, frame, start, REQUEST_VALUES_MAX)
    finally:
        gc.enable()
    return header, message


def decode_response(cls: type[Message], version: int, frame: bytes) -> tuple[int, Message]:
    """(correlation id, message). Raises Malformed."""
    assert cls.API_KEY is not None
    header, start = decode(messages.ResponseHeader, response_header_version(cls.API_KEY, version), frame)
    message, _ = decode(cls, version, frame, start)
    return header.correlation_id, message
