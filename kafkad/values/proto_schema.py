"""Protobuf schemas: the columns of a message's descriptor, and the plan that fills them.

The descriptor is a FileDescriptorSet, as written by `protoc --include_imports --descriptor_set_out=FILE`.
Types are mapped as in Spark's from_protobuf: enum to STRING, uint32 to INT and uint64 to BIGINT by their bits
(with the option upcast.unsigned.ints to BIGINT and DECIMAL(20, 0)), google.protobuf.Timestamp to TIMESTAMP,
map to MAP, repeated to ARRAY, other messages to STRUCT. A field that is not in the message has its proto2
default, or else null (with emit.default.values, the zero of its type if the field has no presence).

kafkad/_native/values/proto_columns.pyx runs the plan, which has for the message and for each field:

    {"op": "int32", "number": 3, "name": "n", "place": 0, "repeated": False, "required": False, "oneof": 0,
     "default": b"...", "symbols": {0: "A"}, "open": True, "type": "E", "children": [...]}"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kafkad.values.options import flag
from kafkad.values.schema import SchemaError, without_twins

TIMESTAMP = "google.protobuf.Timestamp"
DEPTH_MAX = 50
NODES_MAX = 100_000  # fields with those of their messages, which count as often as they are used
ARROW = {
    "int32": pa.int32(), "sint32": pa.int32(), "fixed32": pa.int32(), "enum_int": pa.int32(),
    "int64": pa.int64(), "sint64": pa.int64(), "fixed64": pa.int64(), "uint32": pa.int64(),
    "ufixed32": pa.int64(), "uint64": pa.decimal128(20, 0), "ufixed64": pa.decimal128(20, 0),
    "float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string(),
    "enum": pa.string(), "bytes": pa.binary(), "timestamp": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
OPS = {  # by descriptor.proto's FieldDescriptorProto.Type; unsigned ones as Java has them, by their bits
    1: "double", 2: "float", 3: "int64", 4: "int64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool",
    9: "string", 11: "message", 12: "bytes", 13: "int32", 14: "enum", 15: "fixed32", 16: "fixed64",
    17: "sint32", 18: "sint64",
}  # fmt: skip
UPCAST = {4: "uint64", 6: "ufixed64", 7: "ufixed32", 13: "uint32"}


def message_descriptor(data: bytes, name: str) -> Any:
    """The descriptor of the message `name` (with or without its package; empty: the only one there is).

    SchemaError: it is no descriptor set, or there is no such message, or the package protobuf is missing."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError:
        raise SchemaError("valueFormat protobuf needs the package protobuf: pip install protobuf") from None
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError:
        files.Clear()
    if not files.file:
        raise SchemaError("the protobuf schema is no descriptor set; protoc --descriptor_set_out writes one")
    pool = descriptor_pool.DescriptorPool()
    names = []
    try:
        for one in in_order(files.file):
            pool.Add(one)
            if not one.package.startswith("google.protobuf"):
                prefix = f"{one.package}." if one.package else ""
                names += [prefix + message.name for message in one.message_type]
        found = [full for full in names if full == name or full.rpartition(".")[2] == name or not name]
        if len(found) == 1:
            return pool.FindMessageTypeByName(found[0])
        if name and not found:
            return pool.FindMessageTypeByName(name)  # one inside of another
    except KeyError:
        pass
    except TypeError as error:
        raise SchemaError(f"the protobuf schema's files do not go together: {str(error)[:200]}") from None
    wanted = f"no message {name}" if name else "not exactly one message, so messageName must name it"
    raise SchemaError(f"the protobuf schema has {wanted}: {', '.join(sorted(names))[:300]}")


def in_order(files: Any) -> list[Any]:
    """Each file after those that it imports, as the pool wants them."""
    by_name = {one.name: one for one in files}
    found: dict[str, Any] = {}

    def visit(one: Any, depth: int) -> None:
        if one.name in found or depth > len(by_name):
            return
        for needed in one.dependency:
            if needed in by_name:
                visit(by_name[needed], depth + 1)
        found[one.name] = one

    for one in files:
        visit(one, 0)
    return list(found.values())


class ProtoPlanner:
    """`options`: with lower-case names."""

    def __init__(self, options: Mapping[str, str]):
        self.nodes = 0
        self.upcast = flag(options, "upcast.unsigned.ints")
        self.enums_as_ints = flag(options, "enums.as.ints")
        self.emit_defaults = flag(options, "emit.default.values")

    def schema(self, message: Any) -> pa.Schema:
        self.nodes = 0
        return pa.schema(list(self.struct(message, ())))

    def op(self, field: Any) -> str:
        if field.type == 10:
            raise SchemaError(f"{field.full_name}: groups are not decoded")
        if self.upcast and field.type in UPCAST:
            return UPCAST[field.type]
        op = OPS[field.type]
        if op == "enum" and self.enums_as_ints:
            return "enum_int"
        if op == "message" and field.message_type.full_name == TIMESTAMP:
            return "timestamp"
        return op

    def struct(self, message: Any, above: tuple[str, ...]) -> pa.StructType:
        if message.full_name in above or len(above) > DEPTH_MAX:
            raise SchemaError(
                f"the protobuf message {message.full_name} contains itself, which columns cannot"
            )
        if not message.fields and above:
            raise SchemaError(
                f"the protobuf message {message.full_name} has no fields, so it makes no column"
            )
        self.nodes += len(message.fields)
        if self.nodes > NODES_MAX:
            raise SchemaError(
                f"the protobuf schema has more than {NODES_MAX} fields, with those of its messages"
            )
        below = (*above, message.full_name)
        return pa.struct(without_twins([(f.name, self.type(f, below)) for f in message.fields]))

    def type(self, field: Any, above: tuple[str, ...]) -> pa.DataType:
        op = self.op(field)
        found = self.struct(field.message_type, above) if op == "message" else ARROW[op]
        if not field.is_repeated:
            return found
        if op == "message" and field.message_type.GetOptions().map_entry:
            return pa.map_(found.field("key").type, found.field("value").type)
        return pa.list_(pa.field("element", found))

    def plan(self, message: Any, columns: list[str]) -> dict[str, Any]:
        fields = [self.field(f, columns.index(f.name) if f.name in columns else -1) for f in message.fields]
        return {"op": "message", "children": fields}

    def field(self, field: Any, place: int, is_entry: bool = False) -> dict[str, Any]:
        op = self.op(field)
        found = {
            "op": op,
            "number": field.number,
            "name": field.name,
            "place": place,
            "repeated": field.is_repeated,
            "required": field.is_required,
            "oneof": field.containing_oneof.index + 1 if field.containing_oneof is not None else 0,
        }
        if op == "enum":
            kind = field.enum_type
            # of several names of a number the first is the one
            found["symbols"] = {value.number: value.name for value in reversed(kind.values)}
            found["open"], found["type"] = not kind.is_closed, kind.name
        if op == "message":
            is_map = field.is_repeated and field.message_type.GetOptions().map_entry
            found["children"] = [
                self.field(below, i, is_map) for i, below in enumerate(field.message_type.fields)
            ]
            if is_entry:
                found["default"] = b""  # a map's value that is left out is the empty message
        elif not field.is_repeated and op != "timestamp":
            has_zero = is_entry or (self.emit_defaults and not field.has_presence)
            if field.has_default_value or has_zero:
                found["default"] = self.encoded_default(field, op)
        return found

    def encoded_default(self, field: Any, op: str) -> bytes:
        """The default as it would stand on the wire."""
        value = field.default_value
        if op in ("string", "bytes"):
            data = value.encode() if isinstance(value, str) else value
            return varint(len(data)) + data
        if op in ("float", "double"):
            return struct.pack("<f" if op == "float" else "<d", value)
        if op in ("fixed32", "ufixed32"):
            return struct.pack("<I", value & 0xFFFFFFFF)
        if op in ("fixed64", "ufixed64"):
            return struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)
        if op in ("sint32", "sint64"):
            value = value << 1 if value >= 0 else -value * 2 - 1
        return varint(int(value) & 0xFFFFFFFFFFFFFFFF)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
