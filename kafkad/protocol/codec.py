"""Encode and decode messages, with the headers of requests and responses.

A frame here is the bytes after its four bytes of size. Key and version determine the header: requests have
version 2 if they are flexible, else 1 (only ControlledShutdown v0 has 0). Responses have version 1 if they
are flexible, else 0. ApiVersions responses always have 0, because the client does not know the broker's
versions yet (KIP-511). Bytes after a request's body are ignored, as in Kafka.

A wide message with many thousand values is decoded, encoded and freed in steps (`..._in_steps`): these are
generators that yield between the steps."""

from collections.abc import Callable, Generator
from struct import Struct
from typing import NamedTuple

from kafkad._native.wire.codec import Message, TooWide, decode, encode
from kafkad._native.wire.codec_steps import Decoding, Encoding, Remains
from kafkad._native.wire.malformed import Malformed
from kafkad.protocol import messages
from kafkad.protocol.messages import request_class, response_class

__all__ = [
    "decode",
    "decode_request",
    "decode_request_header",
    "decode_request_in_steps",
    "decode_response",
    "decode_response_in_steps",
    "encode",
    "encode_narrow_response",
    "encode_request",
    "encode_request_in_steps",
    "encode_response",
    "encode_response_in_steps",
    "free_in_steps",
    "request_class",
    "request_header_version",
    "response_class",
    "response_header_version",
]

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7
# Most values of one request: elements of arrays, their fields, and two more per object. An OffsetCommit of
# 100,000 partitions has 600,000, and takes about 50 ms to decode.
REQUEST_VALUES_MAX = 640_000
HEADER_VALUES_MAX = 1_024  # most values of a request's header, which may have unknown tags
WIDE_FRAME = 16 * 1024  # bytes; requests of this size or more are decoded in steps
NARROW_VALUES = 8 * 1024  # responses with at most so many values are encoded in one go
STEP_VALUES = 1_000  # values per step, about 0.1 ms
FREED_AT_ONCE = 100  # narrow messages per step
KEY_AND_VERSION = Struct(">hh")
CORRELATION_ID = Struct(">i")


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of a request's header, also for versions that do not exist yet. Raise KeyError for
    an unknown key."""
    if version >= request_class(api_key).FLEXIBLE_VERSION:
        return 2
    return 0 if version == 0 and api_key == CONTROLLED_SHUTDOWN else 1


def response_header_version(api_key: int, version: int) -> int:
    return int(version >= response_class(api_key).FLEXIBLE_VERSION and api_key != API_VERSIONS)


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    return encode(message, version, _request_header(message, version, correlation_id, client_id))


def encode_request_in_steps(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> Generator[None, None, bytes]:
    header = _request_header(message, version, correlation_id, client_id)
    try:
        return encode(message, version, header, NARROW_VALUES)
    except TooWide:
        pieces: list[bytes] = []
        yield from _encode_in_steps(message, version, header, pieces.append)
        return b"".join(pieces)


def _request_header(message: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    key = message.API_KEY
    assert key is not None
    header_version = request_header_version(key, version)
    header = messages.RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id if header_version else "",
    )
    return encode(header, header_version)


def encode_response(message: Message, version: int, correlation_id: int) -> bytes:
    return encode(message, version, _response_header(message, version, correlation_id))


def encode_narrow_response(message: Message, version: int, correlation_id: int) -> bytes | None:
    """Encode a response. Return None if it is wide, and must be encoded in steps."""
    try:
        return encode(message, version, _response_header(message, version, correlation_id), NARROW_VALUES)
    except TooWide:
        return None


def encode_response_in_steps(
    message: Message, version: int, correlation_id: int, write: Callable[[bytes], bool | None]
) -> Generator[None, None, None]:
    """Pass the bytes of `encode_response` to `write` in pieces, until it returns False."""
    return _encode_in_steps(message, version, _response_header(message, version, correlation_id), write)


def _encode_in_steps(
    message: Message, version: int, header: bytes, write: Callable[[bytes], bool | None]
) -> Generator[None, None, None]:
    encoding = Encoding(message, version, header)
    while write(encoding.step(STEP_VALUES)) is not False and not encoding.ended:
        yield


def _response_header(message: Message, version: int, correlation_id: int) -> bytes:
    header = CORRELATION_ID.pack(correlation_id)
    if version >= message.FLEXIBLE_VERSION and message.API_KEY != API_VERSIONS:
        header += b"\0"  # no tagged fields
    return header


def free_in_steps(held: list[Message]) -> Generator[None, None, None]:
    """Empty `held`. Messages without other references are freed piece by piece."""
    while held:
        remains = Remains(held.pop())
        while not remains.step(STEP_VALUES):
            yield
        if len(held) % FREED_AT_ONCE == 0:
            yield


def decode_request_header(frame: bytes, header_version: int | None = None) -> tuple[Message, int]:
    """Return (RequestHeader, start of the body). Raise Malformed, also for an unknown key; the version may be
    unknown. `header_version` overrides the version that key and version determine."""
    key, version = _key_and_version(frame)
    if header_version is None:
        header_version = request_header_version(key, version)
    return decode(messages.RequestHeader, header_version, frame, 0, HEADER_VALUES_MAX)


def decode_request(frame: bytes) -> tuple[Message, Message]:
    """Return (RequestHeader, message). Raise Malformed, also for an unknown version, and for more than
    REQUEST_VALUES_MAX values."""
    kind = _KINDS.get(frame[:4]) or _kind_of(frame)
    header, start = decode(messages.RequestHeader, kind.header_version, frame, 0, HEADER_VALUES_MAX)
    message, _ = decode(kind.cls, kind.version, frame, start, REQUEST_VALUES_MAX)
    return header, message


def decode_request_in_steps(frame: bytes) -> Generator[None, None, tuple[Message, Message]]:
    """Do the same as `decode_request`, in steps."""
    kind = _KINDS.get(frame[:4]) or _kind_of(frame)
    header, start = decode(messages.RequestHeader, kind.header_version, frame, 0, HEADER_VALUES_MAX)
    decoding = Decoding(kind.cls, kind.version, frame, start, REQUEST_VALUES_MAX)
    return header, (yield from _decoded(decoding))


def _decoded(decoding: Decoding) -> Generator[None, None, Message]:
    try:
        while not decoding.step(STEP_VALUES):
            yield
    except Malformed:
        remains = decoding.remains()
        while not remains.step(STEP_VALUES):
            yield
        raise
    return decoding.message


class _Kind(NamedTuple):
    """Properties of a request that its first four bytes determine."""

    cls: type[Message]
    version: int
    header_version: int


_KINDS: dict[bytes, _Kind] = {}  # a cache


def _kind_of(frame: bytes) -> _Kind:
    key, version = _key_and_version(frame)
    cls = request_class(key)
    if not cls.MIN_VERSION <= version <= cls.LATEST_VERSION:
        raise Malformed(f"{cls.NAME} has no version {version}")
    kind = _KINDS[frame[:4]] = _Kind(cls, version, request_header_version(key, version))
    return kind


def _key_and_version(frame: bytes) -> tuple[int, int]:
    if len(frame) < KEY_AND_VERSION.size:
        raise Malformed(f"a request of {len(frame)} bytes")
    key, version = KEY_AND_VERSION.unpack_from(frame)
    if key not in messages.NAMES or version < 0:
        raise Malformed(f"there is no API {key} version {version}")
    return key, version


def decode_response(cls: type[Message], version: int, frame: bytes) -> tuple[int, Message]:
    """Return (correlation id, message). Raise Malformed."""
    assert cls.API_KEY is not None
    header, start = decode(messages.ResponseHeader, response_header_version(cls.API_KEY, version), frame)
    message, _ = decode(cls, version, frame, start)
    return header.correlation_id, message


def decode_response_in_steps(
    cls: type[Message], version: int, frame: bytes
) -> Generator[None, None, tuple[int, Message]]:
    """Do the same as `decode_response`, in steps."""
    assert cls.API_KEY is not None
    header, start = decode(messages.ResponseHeader, response_header_version(cls.API_KEY, version), frame)
    return header.correlation_id, (yield from _decoded(Decoding(cls, version, frame, start)))
