"""Avro schemas: what columns they give, and the plan by which values of one fill the columns of another.

Types become what Spark's from_avro makes of them: enum and uuid STRING, fixed BINARY, the union of a type
and null that type, of int and long BIGINT, of float and double DOUBLE, any other union STRUCT<member0,
member1, ...> without its null; date DATE, timestamp-millis and -micros TIMESTAMP, local-timestamp-...
TIMESTAMP_NTZ, decimal DECIMAL, other logical types what they are made of.

A plan is what kafkad/_native/values/avro_columns.pyx runs: a tree of dicts in the order of the *writer's*
bytes,

    {"op": "record", "children": [...], "missing": [(plan, bytes), ...]}    missing: the reader's defaults
    {"op": "long", "name": "at", "place": 3, "scale": 1000}    place: of the reader's field; none: read, drop
    {"op": "union", "children": [...]}                         one for each branch
    {"op": "member", "size": 1, "children": [...]}             child 1 of a struct that stands for a union
    {"op": "enum", "symbols": [...]}    {"op": "fixed", "size": 16}    {"op": "array", "children": [...]}

A schema whose text is {"schema": ..., "references": [...]} refers to types of other schemas, which stand in
the list, each behind those that it needs itself: what a registry's references become (schema_registry.py).

Plans are made by the rules of schema resolution
(https://avro.apache.org/docs/1.12.0/specification/#schema-resolution), except that the names of records
and enums count only where a union must choose between several."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kafkad.values.schema import SchemaError, without_twins

PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
PROMOTIONS = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
    "boolean": {"boolean"},
    "null": {"null"},
}
ARROW = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
TIMES = {  # (of, logical type): (Arrow type, microseconds in one)
    ("long", "timestamp-millis"): (pa.timestamp("us", tz="UTC"), 1000),
    ("long", "timestamp-micros"): (pa.timestamp("us", tz="UTC"), 1),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), 1000),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), 1),
    ("int", "date"): (pa.date32(), 1),
}
DEPTH_MAX = 100
NODES_MAX = 100_000  # of a plan: a named type counts as often as it is used, so 30 lines could make 2^30
NO_DEFAULT = object()


@dataclass
class AvroField:
    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    aliases: list[str] = field(default_factory=list)


@dataclass
class AvroType:
    kind: str  # a primitive's name, record, enum, fixed, array, map, union
    name: str = ""
    fields: list[AvroField] = field(default_factory=list)
    parts: list[AvroType] = field(default_factory=list)  # branches, or the element, or the value
    symbols: list[str] = field(default_factory=list)
    enum_default: str | None = None
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0
    nodes: int = 1  # it and all below it, as a plan has them

    @property
    def branches(self) -> list[AvroType]:
        return [part for part in self.parts if part.kind != "null"]


# Reading


def parse_avro(text: str) -> AvroType:
    """SchemaError: what is wrong with the JSON or with the schema."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"the Avro schema is not JSON: {error}") from None
    except RecursionError:
        raise SchemaError(f"the Avro schema is nested more than {DEPTH_MAX} deep") from None
    reader = AvroReader()
    if isinstance(document, dict) and isinstance(document.get("references"), list) and "schema" in document:
        for one in document["references"]:
            reader.type(one, "", 0)
        document = document["schema"]
    return reader.type(document, "", 0)


def with_references(text: str, references: list[str]) -> str:
    """One text of a schema and those that it refers to, for parse_avro."""
    if not references:
        return text
    try:
        return json.dumps({"schema": json.loads(text), "references": [json.loads(one) for one in references]})
    except (ValueError, RecursionError):
        raise SchemaError("the Avro schema, or one that it refers to, is not JSON") from None


class AvroReader:
    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}
        self.open: set[str] = set()

    def type(self, document: Any, namespace: str, depth: int) -> AvroType:
        found = self.type_of(document, namespace, depth)
        found.nodes = 1 + sum(part.nodes for part in found.parts) + sum(f.type.nodes for f in found.fields)
        if found.nodes > NODES_MAX:
            raise SchemaError(f"the Avro schema has more than {NODES_MAX} fields, with those of its fields")
        return found

    def type_of(self, document: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise SchemaError(f"the Avro schema is nested more than {DEPTH_MAX} deep")
        if isinstance(document, str):
            return self.reference(document, namespace)
        if isinstance(document, list):
            parts = [self.type(part, namespace, depth + 1) for part in document]
            if not parts or any(part.kind == "union" for part in parts):
                raise SchemaError("a union of the Avro schema is empty or stands in another")
            return AvroType("union", parts=parts)
        if not isinstance(document, dict) or "type" not in document:
            raise SchemaError(f"the Avro schema has no type in {json.dumps(document)[:80]}")
        kind = document["type"]
        try:
            if kind in ("record", "error", "enum", "fixed"):
                return self.definition("record" if kind == "error" else kind, document, namespace, depth)
            if kind == "array":
                return AvroType("array", parts=[self.type(document["items"], namespace, depth + 1)])
            if kind == "map":
                return AvroType("map", parts=[self.type(document["values"], namespace, depth + 1)])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"the Avro schema has a {kind} without a proper {error}") from None
        found = self.type(kind, namespace, depth + 1)
        if found.kind in PRIMITIVES:
            found = AvroType(found.kind)
            self.logical(found, document)
        return found

    def reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self.named and name in self.named:
            full = name
        if full in self.open:
            raise SchemaError(f"the Avro record {full} contains itself, which columns cannot")
        if full not in self.named:
            raise SchemaError(f"the Avro schema names the type {name}, which is not defined before it")
        return self.named[full]

    def definition(self, kind: str, document: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name = document["name"]
        if "." in name:
            namespace = name.rpartition(".")[0]
        elif document.get("namespace"):
            namespace = document["namespace"]
            name = f"{namespace}.{name}"
        elif namespace:
            name = f"{namespace}.{name}"
        if name in self.named:
            raise SchemaError(f"the Avro schema defines {name} twice")
        found = self.named[name] = AvroType(kind, name)
        if kind == "enum":
            found.symbols = [str(symbol) for symbol in document["symbols"]]
            found.enum_default = document.get("default")
            if found.enum_default is not None and found.enum_default not in found.symbols:
                raise SchemaError(f"the Avro enum {name} has a default that is none of its symbols")
        elif kind == "fixed":
            found.size = int(document["size"])
            if found.size < 0:
                raise SchemaError(f"the Avro schema has a fixed {name} of a negative size")
            self.logical(found, document)
        else:
            self.open.add(name)
            found.fields = [
                AvroField(
                    one["name"],
                    self.type(one["type"], namespace, depth + 1),
                    one.get("default", NO_DEFAULT),
                    list(one.get("aliases", [])),
                )
                for one in document["fields"]
            ]
            self.open.discard(name)
        return found

    def logical(self, found: AvroType, document: dict[str, Any]) -> None:
        """What does not fit together is ignored, as the specification says."""
        name = document.get("logicalType", "")
        if name == "decimal" and found.kind in ("bytes", "fixed"):
            precision, scale = document.get("precision"), document.get("scale", 0)
            if not isinstance(precision, int) or not isinstance(scale, int):
                return
            if 1 <= precision <= 38 and 0 <= scale <= precision:
                found.logical, found.precision, found.scale = name, precision, scale
        elif (found.kind, name) in TIMES:
            found.logical = name


# Columns


def is_one_of(branches: list[AvroType], *kinds: str) -> bool:
    return {branch.kind for branch in branches} == set(kinds) and not any(b.logical for b in branches)


def union_as(kind: AvroType) -> AvroType | None:
    """The single type that a union's column has, None if it is a struct of members."""
    branches = kind.branches
    if len(branches) == 1:
        return branches[0]
    if is_one_of(branches, "int", "long"):
        return AvroType("long")
    if is_one_of(branches, "float", "double"):
        return AvroType("double")
    return None


def arrow_type(kind: AvroType, path: str = "") -> pa.DataType:
    """The column's type. SchemaError: a type that has no column (null alone)."""
    if kind.kind == "union":
        one = union_as(kind)
        if one is not None:
            return arrow_type(one, path)
        if not kind.branches:
            raise SchemaError(f"{path}: nulls alone make no column")
        members = enumerate(kind.branches)
        return pa.struct([pa.field(f"member{i}", arrow_type(part, path)) for i, part in members])
    if kind.kind == "record":
        fields = [(f.name, arrow_type(f.type, f"{path}.{f.name}".lstrip("."))) for f in kind.fields]
        return pa.struct(without_twins(fields))
    if kind.kind == "array":
        return pa.list_(pa.field("element", arrow_type(kind.parts[0], path)))
    if kind.kind == "map":
        return pa.map_(pa.string(), arrow_type(kind.parts[0], path))
    if kind.logical == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.logical:
        return TIMES[kind.kind, kind.logical][0]
    if kind.kind == "null":
        raise SchemaError(f"{path}: nulls alone make no column")
    return ARROW[kind.kind]


def record_schema(kind: AvroType) -> pa.Schema:
    if kind.kind != "record":
        raise SchemaError(f"the Avro schema of values is a record, not a {kind.kind}")
    return pa.schema(list(arrow_type(kind)))


# Plans


class Mismatch(Exception):
    """The reader's type has no place for the writer's."""


def plan(writer: AvroType, reader: AvroType, columns: list[str]) -> dict[str, Any]:
    """How records of `writer` fill `columns`, which are fields of `reader`. SchemaError: they do not fit."""
    wanted = AvroType("record", reader.name, [f for name in columns for f in reader.fields if f.name == name])
    if writer.kind != "record":
        raise SchemaError(f"the schema that wrote the values is a {writer.kind}, not a record")
    try:
        return record_plan(writer, wanted, "")
    except Mismatch as error:
        raise SchemaError(str(error)) from None


def resolved(writer: AvroType, reader: AvroType, path: str) -> dict[str, Any]:
    if writer.kind == "union":
        children = []
        for branch in writer.parts:
            try:
                children.append(resolved(branch, reader, path))
            except Mismatch:
                children.append({"op": "mismatch"})
        if all(child["op"] == "mismatch" for child in children):
            raise Mismatch(f"{path}: no branch of the writer's union fits the reader's type")
        return {"op": "union", "children": children}
    if reader.kind == "union":
        return into_union(writer, reader, path)
    if writer.kind == "record" and reader.kind == "record":
        return record_plan(writer, reader, path)
    if writer.kind == reader.kind == "array":
        return {"op": "array", "children": [resolved(writer.parts[0], reader.parts[0], path)]}
    if writer.kind == reader.kind == "map":
        key = {"op": "bytes"}
        return {"op": "map", "children": [key, resolved(writer.parts[0], reader.parts[0], path)]}
    if writer.kind == reader.kind == "enum":
        known = set(reader.symbols)
        symbols = [s if s in known else reader.enum_default for s in writer.symbols]
        return {"op": "enum", "symbols": symbols}
    if writer.kind == reader.kind == "fixed":
        if writer.size != reader.size:
            raise Mismatch(f"{path}: a fixed of {writer.size} bytes was written, not of {reader.size}")
        require_scale(writer, reader, path)
        return {"op": "fixed_decimal" if reader.logical == "decimal" else "fixed", "size": writer.size}
    if reader.kind not in PROMOTIONS.get(writer.kind, ()):
        raise Mismatch(f"{path}: {writer.kind} was written, which does not become {reader.kind}")
    if reader.logical == "decimal":
        if writer.kind != "bytes":
            raise Mismatch(f"{path}: {writer.kind} was written, which does not become a decimal")
        require_scale(writer, reader, path)
        return {"op": "decimal"}
    if reader.logical:
        return {"op": writer.kind, "scale": scale_of(writer, reader)}
    return {"op": "bytes" if writer.kind == "string" else writer.kind}


def require_scale(writer: AvroType, reader: AvroType, path: str) -> None:
    if writer.logical == reader.logical == "decimal" and writer.scale != reader.scale:
        raise Mismatch(f"{path}: decimals of scale {writer.scale} were written, not of {reader.scale}")


def scale_of(writer: AvroType, reader: AvroType) -> int:
    """Microseconds in one of the writer's, where both are times; else as the reader says."""
    return TIMES.get((writer.kind, writer.logical), TIMES[reader.kind, reader.logical])[1]


def into_union(writer: AvroType, reader: AvroType, path: str) -> dict[str, Any]:
    if writer.kind == "null":
        if all(part.kind != "null" for part in reader.parts):
            raise Mismatch(f"{path}: null was written, which the reader's union does not have")
        return {"op": "null"}
    one = union_as(reader)
    if one is not None:
        return resolved(writer, one, path)
    same = [part for part in reader.branches if part.kind == writer.kind and part.name == writer.name]
    for part in [*same, *reader.branches]:
        try:
            below = resolved(writer, part, path)
        except Mismatch:
            continue
        return {
            "op": "member",
            "size": next(i for i, p in enumerate(reader.branches) if p is part),
            "children": [below],
        }
    raise Mismatch(f"{path}: {writer.kind} was written, which the reader's union does not have")


def record_plan(writer: AvroType, reader: AvroType, path: str) -> dict[str, Any]:
    children, filled = [], set()
    written = {one.name for one in writer.fields}
    for one in writer.fields:
        where = f"{path}.{one.name}".lstrip(".")
        found = [i for i, f in enumerate(reader.fields) if one.name == f.name] or [
            i for i, f in enumerate(reader.fields) if one.name in f.aliases and f.name not in written
        ]
        if found and found[0] not in filled:
            below = resolved(one.type, reader.fields[found[0]].type, where)
            children.append({**below, "name": one.name, "place": found[0]})
            filled.add(found[0])
        else:
            children.append({**dropped(one.type), "name": one.name})
    missing = []
    for i, one in enumerate(reader.fields):
        if i in filled:
            continue
        where = f"{path}.{one.name}".lstrip(".")
        if one.default is NO_DEFAULT:
            raise Mismatch(
                f"{where}: the schema that wrote the values has no such field, and there is no default"
            )
        kind = AvroType("union", parts=default_first(one)) if one.type.kind == "union" else one.type
        below = resolved(kind, one.type, where)
        missing.append(({**below, "name": one.name, "place": i}, encoded_default(kind, one.default, where)))
    return {"op": "record", "children": children, "missing": missing}


def default_first(one: AvroField) -> list[AvroType]:
    """The union's branches, with the one that its default belongs to first: null where it is null."""
    is_null = one.default is None
    return sorted(one.type.parts, key=lambda part: (part.kind == "null") != is_null)


def dropped(kind: AvroType) -> dict[str, Any]:
    """Reads a value of the type and keeps nothing."""
    if kind.kind == "record":
        return {"op": "record", "children": [{**dropped(f.type), "name": f.name} for f in kind.fields]}
    if kind.kind == "map":
        return {"op": "map", "children": [{"op": "bytes"}, dropped(kind.parts[0])]}
    if kind.kind in ("union", "array"):
        return {"op": kind.kind, "children": [dropped(part) for part in kind.parts]}
    if kind.kind == "enum":
        return {"op": "enum", "symbols": kind.symbols}
    if kind.kind == "fixed":
        return {"op": "fixed", "size": kind.size}
    return {"op": "bytes" if kind.kind == "string" else kind.kind}


def encoded_default(kind: AvroType, value: Any, path: str) -> bytes:
    """A default from a schema's JSON as Avro's bytes."""
    try:
        return encoded(kind, value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error):
        raise SchemaError(f"{path}: the default {json.dumps(value)[:80]} is not a {kind.kind}") from None


def encoded(kind: AvroType, value: Any) -> bytes:
    if kind.kind == "null":
        if value is not None:
            raise ValueError
        return b""
    if kind.kind == "union":
        return varint(0) + encoded(kind.parts[0], value)
    if kind.kind == "boolean":
        return bytes([{True: 1, False: 0}[value]])
    if kind.kind in ("int", "long"):
        bits = 31 if kind.kind == "int" else 63
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits) <= value < 1 << bits:
            raise ValueError
        return varint(value)
    if kind.kind in ("float", "double"):
        return struct.pack("<f" if kind.kind == "float" else "<d", value)
    if kind.kind == "string":
        return varint(len(value.encode())) + value.encode()
    if kind.kind == "bytes":
        return varint(len(value)) + value.encode("latin-1")
    if kind.kind == "fixed":
        if len(value) != kind.size:
            raise ValueError
        return value.encode("latin-1")
    if kind.kind == "enum":
        return varint(kind.symbols.index(value))
    if kind.kind == "array":
        items = b"".join(encoded(kind.parts[0], item) for item in value)
        return (varint(len(value)) + items if value else b"") + varint(0)
    if kind.kind == "map":
        pairs = b"".join(encoded(AvroType("string"), k) + encoded(kind.parts[0], v) for k, v in value.items())
        return (varint(len(value)) + pairs if value else b"") + varint(0)
    given = [value[f.name] if f.name in value or f.default is NO_DEFAULT else f.default for f in kind.fields]
    return b"".join(encoded(f.type, v) for f, v in zip(kind.fields, given, strict=True))


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    found = bytearray()
    while raw > 0x7F:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    return bytes(found)
