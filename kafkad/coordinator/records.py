"""The records of `__consumer_offsets`: committed offsets and classic groups, in Kafka's formats.

    key    int16 type, then the key's fields       type 0 and 1: OffsetCommit, 2: GroupMetadata, 3 and up:
    value  int16 version, then the value's fields  newer group types (KIP-848, share, streams), skipped
    a null value is a tombstone

Records are written in the versions of Kafka 4.3: OffsetCommitValue 4 (1 if the client gave a retention time),
GroupMetadataValue 3. Every version is read. Source: GroupCoordinatorRecordHelpers,
GroupCoordinatorRecordSerde."""

from typing import Any, NamedTuple

from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
VALUE_VERSION_MAX = 4
KEY_VERSION = 0

NO_TOPIC_ID = bytes(16)
NEVER = -1

_OFFSET_KEY_PREFIX = OFFSET_COMMIT.to_bytes(2, "big")
_GROUP_KEY_PREFIX = GROUP_METADATA.to_bytes(2, "big")


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int = NEVER  # -1: by the broker's offsets.retention.minutes
    topic_id: bytes = NO_TOPIC_ID
    record_offset: int = (
        -1
    )  # where its record stands; only known (and needed) while transactions are replayed


class OffsetRecord(NamedTuple):
    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None  # None: tombstone


class GroupRecord(NamedTuple):
    group_id: str
    value: Any  # messages.GroupMetadataValue; None: tombstone


Entry = tuple[bytes, bytes | None]  # key and value of one record


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    key = messages.OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return _OFFSET_KEY_PREFIX + codec.encode(key, KEY_VERSION)


def offset_value(committed: CommittedOffset) -> bytes:
    version = (
        OFFSET_VALUE_VERSION if committed.expire_timestamp_ms == NEVER else OFFSET_VALUE_VERSION_WITH_EXPIRY
    )
    value = messages.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    return version.to_bytes(2, "big") + codec.encode(value, version)


def group_key(group_id: str) -> bytes:
    return _GROUP_KEY_PREFIX + codec.encode(messages.GroupMetadataKey(group=group_id), KEY_VERSION)


def group_value(group: Any, assignments: dict[str, bytes]) -> bytes:
    """A `ClassicGroup` as it is now, with these assignments by member id."""
    value = messages.GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=[
            messages.GroupMetadataValue.Members(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ],
    )
    return _versioned(GROUP_VALUE_VERSION, value)


def new_group_value(state_timestamp_ms: int) -> bytes:
    """A group that somebody asked to join: so far without protocol, members or generation."""
    value = messages.GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=state_timestamp_ms
    )
    return _versioned(GROUP_VALUE_VERSION, value)


def read(key: bytes | None, value: bytes | None) -> OffsetRecord | GroupRecord | None:
    """One record; None for the types of newer groups. Raises Malformed."""
    if key is None or len(key) < 2:
        raise Malformed("a record of __consumer_offsets has no key")
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        name, _ = codec.decode(messages.OffsetCommitKey, KEY_VERSION, key, 2)
        return OffsetRecord(name.group, name.topic, name.partition, _committed(value))
    if kind == GROUP_METADATA:
        name, _ = codec.decode(messages.GroupMetadataKey, KEY_VERSION, key, 2)
        return GroupRecord(name.group, _decode_value(messages.GroupMetadataValue, value))
    return None


def _committed(value: bytes | None) -> CommittedOffset | None:
    found = _decode_value(messages.OffsetCommitValue, value)
    if found is None:
        return None
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        found.topic_id,
    )


def _versioned(version: int, value: Any) -> bytes:
    return version.to_bytes(2, "big") + codec.encode(value, version)


def _decode_value(cls: Any, value: bytes | None) -> Any:
    if value is None:
        return None
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not 0 <= version <= VALUE_VERSION_MAX:
        raise Malformed(f"a {cls.NAME} record has version {version}")
    return codec.decode(cls, version, value, 2)[0]
