"""Schemas of values: read Spark's DDL or a StructType's JSON as Arrow types, without a SparkSession.

    id BIGINT, name STRING NOT NULL, tags ARRAY<STRING>, at TIMESTAMP COMMENT 'when', price DECIMAL(10, 2)
    struct<id: bigint, place: struct<lat: double, lon: double>>

The types are those that both Spark and the decoders have: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT,
DOUBLE, DECIMAL, STRING, CHAR and VARCHAR (read as strings), BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY,
MAP, STRUCT. As in from_json, every field is nullable, whatever the schema says, because a value can be null,
and so can a bad row's fields."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pyarrow as pa

SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(),
    "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
DECIMALS = {"decimal", "dec", "numeric"}
TEXTS = {"char", "character", "varchar"}

FORMATS = {  # of the Arrow C data interface, by Arrow type
    pa.bool_(): "b", pa.int8(): "c", pa.int16(): "s", pa.int32(): "i", pa.int64(): "l", pa.float32(): "f",
    pa.float64(): "g", pa.string(): "u", pa.binary(): "z", pa.date32(): "tdD",
}  # fmt: skip

TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>`(?:[^`]|``)+`) | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
             | (?P<word>[^\W\d]\w*|\d+\w*) | (?P<sign>[<>(),:]) )""",
    re.VERBOSE,
)
DEPTH_MAX = 100  # of types in each other


class SchemaError(ValueError):
    """A schema that cannot be read; the message says where and why."""


class Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_schema(text: str) -> pa.Schema:
    """A DDL text or a StructType's JSON. SchemaError: what is wrong, and where."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"the schema starts with {{ but is not JSON: {error}") from None
        except RecursionError:
            raise SchemaError(f"the schema is nested more than {DEPTH_MAX} deep") from None
        return pa.schema(list(struct_of_json(document)))
    return DdlParser(text).schema()


def struct_of_json(document: Any) -> pa.StructType:
    """Of `StructType.json()`."""
    found = type_of_json(document)
    if not pa.types.is_struct(found):
        raise SchemaError("the schema's JSON is not that of a struct")
    return found


def type_of_json(document: Any, depth: int = 0) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise SchemaError(f"the schema is nested more than {DEPTH_MAX} deep")
    if isinstance(document, str):
        return DdlParser(document).only_type()
    kind = document.get("type") if isinstance(document, dict) else None
    try:
        if kind == "struct":
            fields = [(f["name"], type_of_json(f["type"], depth + 1)) for f in document["fields"]]
            return pa.struct(without_twins(fields))
        if kind == "array":
            return pa.list_(pa.field("element", type_of_json(document["elementType"], depth + 1)))
        if kind == "map":
            key, value = document["keyType"], document["valueType"]
            return pa.map_(type_of_json(key, depth + 1), type_of_json(value, depth + 1))
        if kind == "udt":
            return type_of_json(document["sqlType"], depth + 1)
    except KeyError as error:
        raise SchemaError(f"the schema's JSON has a {kind} without {error}") from None
    except (TypeError, AttributeError):
        raise SchemaError(
            f"the schema's JSON has a {kind} that is not as StructType.json writes it"
        ) from None
    raise SchemaError(f"the schema's JSON has an unknown type {json.dumps(document)[:100]}")


def without_twins(fields: list[tuple[str, pa.DataType]]) -> list[pa.Field]:
    seen: set[str] = set()
    for name, _ in fields:
        if name in seen:
            raise SchemaError(f"the schema has the field {name} twice")
        seen.add(name)
    return [pa.field(name, kind) for name, kind in fields]


class DdlParser:
    """Recursive descent over the tokens of one DDL text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = list(self.split())
        self.next = 0

    def split(self):
        position = 0
        while position < len(self.text.rstrip()):
            found = TOKEN.match(self.text, position)
            if not found:
                rest = self.text[position:].lstrip()
                raise SchemaError(f"the schema cannot be read at {rest[:20]!r} (character {position})")
            kind = found.lastgroup or ""
            yield Token(kind, found[kind], found.start(kind))
            position = found.end()
        yield Token("end", "the end", len(self.text))

    def peek(self) -> Token:
        return self.tokens[self.next]

    def take(self) -> Token:
        token = self.tokens[self.next]
        self.next += token.kind != "end"
        return token

    def took(self, text: str) -> bool:
        found = self.peek().kind in ("word", "sign") and self.peek().text.lower() == text
        self.next += found
        return found

    def expect(self, text: str) -> None:
        if not self.took(text):
            self.fail(f"{text!r} is missing before {self.peek().text!r}")

    def fail(self, why: str) -> None:
        raise SchemaError(f"the schema cannot be read: {why} (character {self.peek().position})")

    def schema(self) -> pa.Schema:
        if self.peek().text.lower() == "struct" and self.tokens[1].text == "<":
            return pa.schema(list(self.only_type()))
        if self.peek().kind == "end":
            self.fail("it is empty")
        fields = self.fields()
        if self.peek().kind != "end":
            self.fail(f"{self.peek().text!r} was not expected")
        return pa.schema(fields)

    def only_type(self) -> pa.DataType:
        found = self.type()
        if self.peek().kind != "end":
            self.fail(f"{self.peek().text!r} was not expected")
        return found

    def fields(self, depth: int = 0) -> list[pa.Field]:
        found = [self.field(depth)]
        while self.took(","):
            found.append(self.field(depth))
        return without_twins(found)

    def field(self, depth: int) -> tuple[str, pa.DataType]:
        token = self.take()
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
        else:
            self.next -= token.kind != "end"
            self.fail(f"a field's name is missing before {token.text!r}")
        self.took(":")
        kind = self.type(depth)
        if self.took("not"):
            self.expect("null")
        if self.took("comment") and self.take().kind != "text":
            self.fail("a comment is a text in quotes")
        return name, kind

    def type(self, depth: int = 0) -> pa.DataType:
        if depth > DEPTH_MAX:
            self.fail(f"it is nested more than {DEPTH_MAX} deep")
        token = self.take()
        name = token.text.lower() if token.kind == "word" else ""
        if name in DECIMALS:
            return self.decimal()
        if name in TEXTS:
            self.numbers(1)
            return pa.string()
        if name in SIMPLE:
            return SIMPLE[name]
        if name == "array":
            self.expect("<")
            element = self.type(depth + 1)
            self.expect(">")
            return pa.list_(pa.field("element", element))
        if name == "map":
            self.expect("<")
            key = self.type(depth + 1)
            self.expect(",")
            value = self.type(depth + 1)
            self.expect(">")
            return pa.map_(key, value)
        if name == "struct":
            self.expect("<")
            fields = [] if self.peek().text == ">" else self.fields(depth + 1)
            self.expect(">")
            return pa.struct(fields)
        self.next -= token.kind != "end"
        self.fail(f"{token.text!r} is not a type that values are decoded to")
        raise AssertionError

    def numbers(self, count_max: int) -> list[int]:
        if not self.took("("):
            return []
        found: list[int] = []
        while len(found) < count_max:
            token = self.take()
            if not token.text.isdecimal():
                self.next -= token.kind != "end"
                self.fail(f"a number is missing before {token.text!r}")
            found.append(int(token.text))
            if not self.took(","):
                break
        self.expect(")")
        return found

    def decimal(self) -> pa.DataType:
        found = self.numbers(2)
        precision, scale = found[0] if found else 10, found[1] if len(found) == 2 else 0
        if not (1 <= precision <= 38 and scale <= precision):
            self.fail(f"DECIMAL({precision}, {scale}) has a precision of 1 to 38 and a scale up to it")
        return pa.decimal128(precision, scale)


def native_field(field: pa.Field) -> tuple[Any, ...]:
    """The field as kafkad._native.values.arrow_build wants it: (name, format, nullable[, children])."""
    kind = field.type
    if pa.types.is_struct(kind):
        return (field.name, "+s", field.nullable, [native_field(child) for child in kind])
    if pa.types.is_map(kind):
        pair = [native_field(kind.key_field), native_field(kind.item_field)]
        return (field.name, "+m", field.nullable, [("entries", "+s", False, pair)])
    if pa.types.is_list(kind):
        return (field.name, "+l", field.nullable, [native_field(kind.value_field)])
    if pa.types.is_decimal128(kind):
        return (field.name, f"d:{kind.precision},{kind.scale}", field.nullable)
    if pa.types.is_timestamp(kind):
        return (field.name, f"tsu:{kind.tz or ''}", field.nullable)
    return (field.name, FORMATS[kind], field.nullable)
