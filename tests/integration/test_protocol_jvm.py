"""Every message and every version against Kafka's own classes: 4.3's, and 3.9's for what 4.0 dropped.

Kafka's class reads our bytes; what it understood is compared field by field, and what it writes must be our
bytes and decode to our message again."""

import random
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from kafkad._native.wire.codec import Field, Message
from kafkad.protocol import codec, messages
from tests.jvm import NEWEST, ZOOKEEPER_LINE
from tests.reference.kafka_messages import JvmMessages, Refused
from tests.reference.random_messages import random_message

pytestmark = pytest.mark.java
SAMPLES = 2


def versions(name: str) -> list[tuple[str, int]]:
    cls = messages.message_class(name)
    return [(name, version) for version in range(cls.MIN_VERSION, cls.LATEST_VERSION + 1)]


EVERYTHING = [pair for name in messages.all_names() for pair in versions(name)]


@pytest.fixture(scope="module")
def newest() -> Iterator[JvmMessages]:
    with JvmMessages(NEWEST) as jvm:
        yield jvm


@pytest.fixture(scope="module")
def oldest() -> Iterator[JvmMessages]:
    with JvmMessages(ZOOKEEPER_LINE) as jvm:
        yield jvm


def default(field: Field) -> Any:
    if field.type == "{}" and field.default is not None:
        assert field.struct is not None
        return field.struct.cls()
    return field.default


def as_json(message: Message, version: int) -> dict[str, Any]:
    """What Kafka's JsonConverter says of the message, but records, which it leaves out."""
    said = {}
    for field in message.SPEC.fields:
        value = getattr(message, field.name)
        if not field.versions[0] <= version <= field.versions[1]:
            continue
        if field.tagged[0] <= version <= field.tagged[1] and value == default(field):
            continue
        first, *others = field.name.split("_")
        said[first + "".join(part.title() for part in others)] = value_as_json(value, field.type, version)
    return said


def value_as_json(value: Any, kind: str, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Message):
        return as_json(value, version)
    if isinstance(value, list):
        return [value_as_json(item, kind[2:], version) for item in value]
    if kind == "uuid":
        return urlsafe_b64encode(value).rstrip(b"=").decode()
    if kind == "bytes":
        return b64encode(value).decode()
    return "" if kind == "records" else value


def compare(jvm: JvmMessages, name: str, version: int) -> None:
    cls = messages.message_class(name)
    for sample in range(SAMPLES):
        message = random_message(cls, version, random.Random(f"{name} {version} {sample}"))
        data = codec.encode(message, version)
        understood, written, left_over = jvm.reread(name, version, data)
        assert understood == as_json(message, version), (name, version)
        assert (written, left_over) == (data, 0), (name, version)
        assert codec.decode(cls, version, written) == (message, len(data)), (name, version)


def test_every_message_is_kafkas_byte_for_byte(newest: JvmMessages, oldest: JvmMessages) -> None:
    covered = 0
    for name, version in EVERYTHING:
        jvm = newest if version in newest.versions(name) else oldest
        assert version in jvm.versions(name), f"no oracle for {name} v{version}"
        compare(jvm, name, version)
        covered += 1
    assert covered > 500


def test_every_default_is_kafkas(newest: JvmMessages, oldest: JvmMessages) -> None:
    """An empty message of the highest version has the fields that Kafka's new object has."""
    for name in messages.all_names():
        cls = messages.message_class(name)
        version = cls.LATEST_VERSION
        jvm = newest if version in newest.versions(name) else oldest
        understood, written = jvm.default(name, version)
        assert codec.encode(cls(), version) == written, name
        assert as_json(cls(), version) == understood, name


def test_kafka_has_no_message_or_version_that_is_missing(newest: JvmMessages, oldest: JvmMessages) -> None:
    ours = set(EVERYTHING)
    for jvm in (newest, oldest):
        for name in messages.all_names():
            if messages.message_class(name).RECORD_TYPE is None and not name.startswith("Share"):
                assert {(name, version) for version in jvm.versions(name)} <= ours


@pytest.mark.parametrize(
    ("name", "version", "data"),
    [
        ("MetadataRequest", 9, b"\xff\x0f" + bytes(20)),  # more elements than bytes
        ("HeartbeatRequest", 0, b"\xff\xff" + bytes(20)),  # null where it may not be
        ("FetchRequest", 12, codec.encode(messages.FetchRequest(), 12)[:-1] + b"\x01\x01\x00"),  # a later tag
    ],
)
def test_what_kafka_refuses_is_malformed(newest: JvmMessages, name: str, version: int, data: bytes) -> None:
    with pytest.raises(Refused):
        newest.reread(name, version, data)
    with pytest.raises(codec.Malformed):
        codec.decode(messages.message_class(name), version, data)
