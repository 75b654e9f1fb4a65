"""Metadata records: the format of one record of the cluster's metadata in a log batch or a snapshot.

    value = uvarint frame version (1) | uvarint record type | uvarint record version | body

(Kafka: MetadataRecordSerde.)

A record of an unknown type is not an error: it becomes an `UnknownRecord`, kept byte for byte, so that our
snapshots still contain it. An unknown version is an error, because its meaning would be a guess.

The finalized metadata.version decides which version of a record is written (Kafka: MetadataVersion), so that
every broker the cluster may still have can read it.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from kafkad.metadata.features import (
    CORDONED_LOG_DIRS,
    DIRECTORY_ASSIGNMENT,
    ELIGIBLE_LEADER_REPLICAS,
    ZK_MIGRATION,
)
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed

FRAME_VERSION: Final = 1

CLASSES: Final[dict[int, Any]] = {
    cls.RECORD_TYPE: cls for cls in messages.record_classes("metadata") if cls.RECORD_TYPE is not None
}


@dataclass(slots=True, frozen=True)
class UnknownRecord:
    """A record of an unknown type, with the bytes of the batch (including the frame)."""

    kind: int
    value: bytes


class PartitionLike(NamedTuple):
    """A PartitionRecord that differs from another one only in these two fields."""

    topic_id: bytes
    partition_id: int
    other: Any


class Decoder:
    """`decode_record` for the records of a whole log or snapshot. Most of its partitions differ only in index
    and topic, which are at the front: the rest is decoded once."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, Any] = {}  # by version and the bytes after the topic id

    def decode(self, value: bytes) -> Any:
        """Decode a record. Raises Malformed."""
        if not value.startswith(_PARTITION):
            return decode_record(value)
        kind = value[2:3] + value[_PARTITION_REST:]
        other = self._partitions.get(kind)
        if other is None:
            other = self._partitions[kind] = decode_record(value)
            return other
        index, topic_id = _PARTITION_HEAD.unpack_from(value, 3)
        return PartitionLike(topic_id, index, other)


_PARTITION: Final = bytes([FRAME_VERSION, messages.PartitionRecord.RECORD_TYPE])
_PARTITION_HEAD: Final = Struct(">i16s")  # index, topic id
_PARTITION_REST: Final = 3 + _PARTITION_HEAD.size


def encode_record(record: Any, metadata_version: int) -> bytes:
    """Return the value of a metadata record, in the version for `metadata_version`."""
    if type(record) is UnknownRecord:
        return record.value
    if type(record) is PartitionLike:
        like = encode_record(record.other, metadata_version)
        head = _PARTITION_HEAD.pack(record.partition_id, record.topic_id)
        return like[:3] + head + like[_PARTITION_REST:]
    version = record_version(record, metadata_version)
    return b"\x01" + _uvarint(record.RECORD_TYPE) + _uvarint(version) + codec.encode(record, version)


def decode_record(value: bytes | memoryview) -> Any:
    """Return a metadata record: a message of kafkad.protocol.messages, or an UnknownRecord. Raises
    Malformed."""
    kind, version, position = _read_frame(value)
    cls = CLASSES.get(kind)
    if cls is None:
        return UnknownRecord(kind, bytes(value))
    if version > cls.MAX_VERSION:
        raise Malformed(f"{cls.NAME} of version {version}; at most {cls.MAX_VERSION} is known")
    message, end = codec.decode(cls, version, value, position)
    if end != len(value):
        raise Malformed(f"{len(value) - end} bytes left over after a {cls.NAME}")
    return message


def version_of(value: bytes | memoryview) -> int:
    """Return the version of an encoded record. Raises Malformed."""
    return _read_frame(value)[1]


def record_version(record: Any, metadata_version: int) -> int:
    """Return the version of `record` under a finalized metadata.version (Kafka: MetadataVersion)."""
    chooser = _VERSIONS.get(type(record))
    return chooser(record, metadata_version) if chooser is not None else 0


def _register_broker(_: Any, level: int) -> int:
    if level >= CORDONED_LOG_DIRS:
        return 4
    if level >= DIRECTORY_ASSIGNMENT:
        return 3
    return 2 if level >= ZK_MIGRATION else 1


def _partition(_: Any, level: int) -> int:
    if level >= ELIGIBLE_LEADER_REPLICAS:
        return 2
    return 1 if level >= DIRECTORY_ASSIGNMENT else 0


def _registration_change(record: Any, _: int) -> int:
    """Return the lowest version that can express it, whatever the level, as Kafka's controller does."""
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


_VERSIONS: Final[dict[Any, Any]] = {
    messages.RegisterBrokerRecord: _register_broker,
    messages.PartitionRecord: _partition,
    messages.PartitionChangeRecord: _partition,
    messages.BrokerRegistrationChangeRecord: _registration_change,
}


def _uvarint(number: int) -> bytes:
    assert number >= 0
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_frame(value: bytes | memoryview) -> tuple[int, int, int]:
    """Return (record type, its version, position of its fields)."""
    frame, position = _read_uvarint(value, 0)
    if frame != FRAME_VERSION:
        raise Malformed(f"metadata record with frame version {frame}; only {FRAME_VERSION} is known")
    kind, position = _read_uvarint(value, position)
    version, position = _read_uvarint(value, position)
    return kind, version, position


def _read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return (number, next position); at most three bytes, because Kafka's fields here are int16."""
    number = 0
    for shift in (0, 7, 14):
        if position >= len(buffer):
            raise Malformed("metadata record ends inside its frame")
        byte = buffer[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > 0x7FFF:
                raise Malformed(f"metadata record with {number} where an int16 belongs")
            return number, position
    raise Malformed("metadata record with an overlong varint")
