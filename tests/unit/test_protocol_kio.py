"""Messages against kio, an independent implementation, field by field and byte for byte, both directions.

kio 0.6.5 has no keys 4-7, none of the versions that Kafka 4.0 dropped, and few records;
tests/integration/test_protocol_jvm.py has them all."""

import datetime
import io
import random
import uuid
from dataclasses import fields
from enum import Enum
from typing import Any

import pytest
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kafkad._native.wire.codec import Message
from kafkad.protocol import codec, messages
from kafkad.protocol.schema import camel_case
from tests.reference.random_messages import random_message

SUFFIX = {
    EntityType.request: "Request",
    EntityType.response: "Response",
    EntityType.header: "",
    EntityType.data: "",
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return value.bytes if isinstance(value, uuid.UUID) else value


def assert_same(ours: Any, theirs: Any, version: int, where: str) -> None:
    if isinstance(ours, Message):
        names = set()
        for field in ours.SPEC.fields:
            if field.versions[0] <= version <= field.versions[1]:
                spellings = (field.name, field.name.removesuffix("_ms"), f"{field.name}_")
                name = next(spelling for spelling in spellings if hasattr(theirs, spelling))
                assert_same(getattr(ours, field.name), getattr(theirs, name), version, f"{where}.{name}")
                names.add(name)
        assert names == {field.name for field in fields(theirs)}, where
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, version, f"{where}[{index}]")
    elif isinstance(ours, bytes) and theirs is None:
        assert ours == bytes(16), where  # kio's null uuid
    elif ours == -1 and theirs is None:
        pass  # kio's null timestamp
    else:
        assert ours == plain(theirs), where


@pytest.mark.parametrize("kio_name", sorted(schema_name_map))
def test_kio_reads_and_writes_the_same_bytes(kio_name: str) -> None:
    compared = 0
    for version, entities in schema_name_map[kio_name].items():
        for kind in entities:
            name = camel_case(kio_name) + SUFFIX[kind]
            cls = messages.message_class(name)
            assert cls.MIN_VERSION <= version <= cls.LATEST_VERSION, name
            theirs = load_entity_schema(kio_name, version, kind)
            read, write = entity_reader(theirs), entity_writer(theirs)
            for sample in range(2):
                rng = random.Random(f"{name} {version} {sample}")
                ours = random_message(cls, version, rng, tame=True, unknown_tags=False)
                data = codec.encode(ours, version)
                entity, size = read(data, 0)
                assert size == len(data)
                assert_same(ours, entity, version, name)
                written = io.BytesIO()
                write(written, entity)
                assert written.getvalue() == data, f"{name} v{version}"
                assert codec.decode(cls, version, data) == (ours, len(data))
                compared += 1
    assert compared
