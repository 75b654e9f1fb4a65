"""Decode records of Kafka's internal topics for `kafkad dump-log`, with the output of Kafka's decoders, as
JSON.

A decoder takes a record and returns (key, payload); each may be None. For a record that does not decode, it
returns the error instead of raising it, so that the next record can be printed.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, control_kind

Decoder = Callable[[Record], tuple[Any, Any]]

# kind of a control record -> (Kafka's name, the message in its value)
CONTROL = {
    0: ("ABORT", "EndTxnMarker"),
    1: ("COMMIT", "EndTxnMarker"),
    2: ("LeaderChange", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}
WITH_VERSION_BEFORE = "EndTxnMarker"  # the others carry their version as their first field


def as_data(message: Any, version: int | None = None) -> dict[str, Any]:
    """Return a message as JSON data, with Kafka's names of the fields; ids and bytes in base64. With
    `version`, leave out fields that the version lacks, and tagged fields at their default, as Kafka does."""
    return {
        camel_case(field.name): plain(getattr(message, field.name), version, field.type.endswith("uuid"))
        for field in type(message).SPEC.fields
        if version is None or is_told(field, getattr(message, field.name), version)
    }


def is_told(field: Any, value: Any, version: int) -> bool:
    lowest, highest = field.versions
    tagged_from, tagged_to = field.tagged
    return lowest <= version <= highest and not (
        tagged_from <= version <= tagged_to and value == field.default
    )


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def plain(value: Any, version: int | None = None, is_id: bool = False) -> Any:
    if isinstance(value, list):
        return [plain(element, version, is_id) for element in value]
    if isinstance(value, bytes | bytearray | memoryview):
        if is_id:
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        return base64.b64encode(value).decode()
    return (
        as_data(value, version)
        if hasattr(type(value), "__slots__") and hasattr(type(value), "SPEC")
        else value
    )


def decode_control(record: Record) -> tuple[str, dict[str, Any]]:
    """Return (Kafka's name, value) of a control record."""
    kind = control_kind(record)
    if kind not in CONTROL:
        return f"UNKNOWN({kind})", {}
    word, name = CONTROL[kind]
    value = record.value or b""
    version = int.from_bytes(value[:2], "big")
    cls = messages.message_class(name)
    start = 2 if name == WITH_VERSION_BEFORE else 0
    version = min(version, cls.MAX_VERSION)
    message, _ = codec.decode(cls, version, value, start)
    return word, as_data(message, version)


def metadata_decoder(record: Record) -> tuple[Any, Any]:
    from kafkad.metadata.records import UnknownRecord, decode_record, version_of

    try:
        message = decode_record(record.value or b"")
    except Malformed as lie:
        return None, {"error": str(lie)}
    if isinstance(message, UnknownRecord):
        return None, {"type": message.kind, "data": plain(message.value)}
    version = version_of(record.value or b"")
    return None, {"type": upper_snake(message.NAME), "version": version, "data": as_data(message, version)}


def upper_snake(name: str) -> str:
    """Return Kafka's name of a record type: TopicRecord -> TOPIC_RECORD."""
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(name)).upper()


def coordinator_decoder(family: str) -> Decoder:
    """Return a decoder for __consumer_offsets, __transaction_state or __share_group_state. There, keys begin
    with the record's type, and values with their version.
    """
    classes = {(c.RECORD_TYPE, c.NAME[-3:]): c for c in messages.record_classes(family)}
    if family == "group":
        classes[0, "Key"], classes[0, "lue"] = classes[1, "Key"], classes[1, "lue"]

    def decode(record: Record) -> tuple[Any, Any]:
        key_bytes = record.key or b""
        kind = int.from_bytes(key_bytes[:2], "big")
        if (kind, "Key") not in classes:
            return {"type": str(kind), "error": "unknown record type"}, None
        try:
            key, _ = codec.decode(classes[kind, "Key"], 0, key_bytes, 2)
            told = {"type": str(kind), "data": as_data(key, 0)}
            if record.value is None:
                return told, "<DELETE>"
            version = int.from_bytes(record.value[:2], "big")
            cls = classes[kind, "lue"]
            if version > cls.MAX_VERSION:
                return told, {"version": str(version), "error": "unknown version"}
            value, _ = codec.decode(cls, version, record.value, 2)
        except Malformed as lie:
            return {"type": str(kind), "error": str(lie)}, None
        data = as_data(value, version)
        if data.get("protocolType") == "consumer":
            for member in data["members"]:
                for field, name in (("subscription", "Subscription"), ("assignment", "Assignment")):
                    member[field] = consumer_protocol(member[field], f"ConsumerProtocol{name}")
        return told, {"version": str(version), "data": data}

    return decode


def consumer_protocol(text: str, name: str) -> Any:
    """Decode a member's subscription or assignment, which is opaque to brokers. Return the text if it
    fails."""
    try:
        data = base64.b64decode(text)
        cls = messages.message_class(name)
        version = min(int.from_bytes(data[:2], "big", signed=True), cls.MAX_VERSION)
        message, _ = codec.decode(cls, max(version, 0), data, 2)
        return as_data(message, max(version, 0))
    except (Malformed, ValueError):
        return text


def plain_decoder(record: Record) -> tuple[Any, Any]:
    return text_or_none(record.key), text_or_none(record.value)


def text_or_none(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
