"""Fetch one partition without copying the records out of the receive buffer.

For large reads: `Connection.receive_into` reads the frame into a reused buffer. `read_answer` reads the
fields of its one partition and returns the records as a slice of the buffer; the general codec would copy
them. Versions are v4 (Kafka 0.11) to v16. From v13 on, topics have ids (KIP-516), so a deleted and recreated
topic is recognised.

Beware: the slice is valid until the next receive into the buffer."""

import struct
from typing import Any, Final, NamedTuple

from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import Malformed

VERSION_MIN: Final = 4  # record batches of magic 2, aborted transactions
VERSION_BY_NAME_MAX: Final = 12
VERSION_MAX: Final = 16
FLEXIBLE: Final = 12

_PARTITION: Final = struct.Struct(">ihqqq")  # index, error, high watermark, last stable, log start (v5+)
_ABORTED: Final = struct.Struct(">qq")  # producer id, first offset
_NODE: Final = struct.Struct(">i")


class FetchAnswer(NamedTuple):
    """A broker's answer for one partition. Offsets that the version lacks are -1."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]  # producer id, first offset
    records: memoryview  # batches; the last one may be cut


def fetch_version(connection: Connection, topic_id: bytes | None) -> int:
    """Return the request version. Raise KafkaError (UNSUPPORTED_VERSION) for a broker older than 0.11."""
    highest = VERSION_MAX if topic_id and any(topic_id) else VERSION_BY_NAME_MAX
    version = connection.version_for(messages.FetchRequest, highest)
    if version < VERSION_MIN:
        version = connection.version_for(messages.FetchRequest, -1)  # raises
    return version


def send_fetch(
    connection: Connection,
    topic: str,
    topic_id: bytes | None,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    max_wait_ms: int,
    isolation: int,
) -> int:
    """Request the batches from `offset` on, without a fetch session. Return the version, for
    `read_answer`."""
    version = fetch_version(connection, topic_id)
    topics = messages.FetchRequest.Topics
    asked = topics.Partitions(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=-1
    )
    named = topics(partitions=[asked])
    if version > VERSION_BY_NAME_MAX:
        named.topic_id = topic_id
    else:
        named.topic = topic
    request = messages.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[named],
    )
    connection.send(request, version)
    return version


def read_answer(frame: memoryview, version: int) -> FetchAnswer:
    """Decode the answer for one partition from a frame that starts at the correlation id. Raise Malformed."""
    try:
        return _read_answer(frame, version)
    except (struct.error, IndexError):
        raise Malformed("a Fetch answer is cut off") from None


def _read_answer(frame: memoryview, version: int) -> FetchAnswer:
    flexible = version >= FLEXIBLE
    at = 4
    if flexible:
        at = _skip_tags(frame, at)
    at += 4  # throttle time
    error = 0
    if version >= 7:
        (error,) = struct.unpack_from(">h", frame, at)
        at += 6  # and the session's id
    topics, at = _count(frame, at, flexible)
    if topics == 0:
        if not error:
            raise Malformed("a Fetch answer without its partition")
        return FetchAnswer(error, -1, -1, -1, [], frame[:0])
    if version > VERSION_BY_NAME_MAX:
        at += 16
    elif flexible:
        size, at = _count(frame, at, True)
        at += size
    else:
        at += 2 + struct.unpack_from(">h", frame, at)[0]
    partitions, at = _count(frame, at, flexible)
    if topics != 1 or partitions != 1:
        raise Malformed(f"a Fetch answer with {topics} topics and {partitions} partitions, not one")
    if version >= 5:
        _, code, high_watermark, stable, log_start = _PARTITION.unpack_from(frame, at)
        at += _PARTITION.size
    else:
        _, code, high_watermark, stable = struct.unpack_from(">ihqq", frame, at)
        at, log_start = at + 22, -1
    count, at = _count(frame, at, flexible)
    if count * _ABORTED.size > len(frame) - at:
        raise Malformed(f"{count} aborted transactions in a Fetch answer of {len(frame)} bytes")
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(frame, at)
        aborted.append((producer_id, first_offset))
        at += _ABORTED.size
        if flexible:
            at = _skip_tags(frame, at)
    if version >= 11:
        at += _NODE.size  # preferred read replica; always -1, because the request names no rack
    size, at = _count(frame, at, flexible)
    if size > len(frame) - at:
        raise Malformed(f"{size} bytes of records in a Fetch answer of {len(frame)}")
    return FetchAnswer(code or error, high_watermark, stable, log_start, aborted, frame[at : at + size])


def _count(frame: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Read a length. Return it (0 for null) and the position after it."""
    if not flexible:
        (count,) = struct.unpack_from(">i", frame, at)
        return max(count, 0), at + 4
    count, at = _uvarint(frame, at)
    return max(count - 1, 0), at


def _uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("a varint of more than 5 bytes in a Fetch answer")


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = _uvarint(frame, at)
    for _ in range(count):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
        if at > len(frame):
            raise Malformed("a tagged field of a Fetch answer is cut off")
    return at


def topic_id_of(response: Any, topic: str) -> bytes | None:
    """Return a topic's id from a Metadata answer, or None for brokers without topic ids (before 2.8)."""
    for row in response.topics:
        if row.name == topic and any(row.topic_id):
            return bytes(row.topic_id)
    return None
