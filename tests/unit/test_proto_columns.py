"""Protobuf to columns: what google.protobuf writes, the wire's liberties, and bytes from strangers."""

import math
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad.values.decoder import Decoded, portable_schema, value_decoder
from kafkad.values.proto_schema import message_descriptor, varint
from kafkad.values.schema import SchemaError

PROTO3 = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Colour { NONE = 0; RED = 1; BLUE = 7; }
message Line { string sku = 1; int32 count = 2; repeated sint64 marks = 3; Line.Inner inner = 4;
  message Inner { bytes raw = 1; } }
message Order {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10;
  float single = 11; double number = 12; bool flag = 13; string text = 14; bytes raw = 15;
  Colour colour = 16; optional int32 maybe = 17;
  repeated int32 packed = 18; repeated string texts = 19; repeated Line lines = 20; Line line = 21;
  map<string, int64> counts = 22; map<int32, Line> by_id = 23;
  oneof choice { string name = 24; int64 id = 25; Line other = 26; }
  google.protobuf.Timestamp at = 3000;
}
"""
PROTO2 = """
syntax = "proto2";
enum Kind { A = 1; B = 2; }
message Old {
  required int32 id = 1; optional string s = 2 [default = "none"]; optional sint32 n = 3 [default = -5];
  optional double d = 4 [default = 0.5]; optional Kind kind = 5; optional Kind other = 6 [default = B];
  repeated int32 many = 7; optional fixed64 f = 8 [default = 9]; optional bytes b = 9; }
"""


def compiled(directory, name: str, text: str) -> str:
    """The path of a descriptor set."""
    (directory / f"{name}.proto").write_text(text)
    out = directory / f"{name}.desc"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={out}", f"{name}.proto"], check=True)
    return str(out)


@pytest.fixture(scope="module")
def order(tmp_path_factory) -> str:
    return compiled(tmp_path_factory.mktemp("proto3"), "order", PROTO3)


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> str:
    return compiled(tmp_path_factory.mktemp("proto2"), "old", PROTO2)


def message_class(path: str, name: str):
    with open(path, "rb") as file:
        return message_factory.GetMessageClass(message_descriptor(file.read(), name))


def decode(path: str, name: str, *values: bytes | None, **options: str) -> Decoded:
    decoder = value_decoder("protobuf", path, {"messageName": name, **options})
    decoded = decoder.decode(pa.array(values, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
        assert len(column) == len(values)
    decoded.names = decoder.schema.names  # type: ignore[attr-defined]
    return decoded


def rows(decoded: Decoded) -> list[dict]:
    names = decoded.names  # type: ignore[attr-defined]
    lists = zip(*(column.to_pylist() for column in decoded.columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in lists]


def bad(path: str, name: str, value: bytes, **options: str) -> str:
    decoded = decode(path, name, None, value, **options)
    assert decoded.bad_rows == [1]
    assert [set(row.values()) for row in rows(decoded)] == [{None}] * 2
    return decoded.reasons[0]


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
LINE = st.fixed_dictionaries(
    {},
    optional={
        "sku": TEXT,
        "count": INT32,
        "marks": st.lists(INT64, max_size=4),
        "inner": st.fixed_dictionaries({}, optional={"raw": st.binary(max_size=5)}),
    },
)
SCALARS = {
    "i32": INT32, "i64": INT64, "u32": UINT32, "u64": UINT64, "s32": INT32, "s64": INT64, "f32": UINT32,
    "f64": UINT64, "sf32": INT32, "sf64": INT64, "single": st.floats(width=32, allow_nan=False),
    "number": st.floats(allow_nan=False), "flag": st.booleans(), "text": TEXT, "raw": st.binary(max_size=9),
    "maybe": INT32,
}  # fmt: skip
ORDERS = st.tuples(
    st.fixed_dictionaries(
        {},
        optional={
            **SCALARS,
            "colour": st.sampled_from([0, 1, 7]),
            "packed": st.lists(INT32, max_size=5),
            "texts": st.lists(TEXT, max_size=3),
            "lines": st.lists(LINE, max_size=3),
            "line": LINE,
            "counts": st.dictionaries(TEXT, INT64, max_size=3),
        },
    ),
    st.sampled_from(["name", "id", "other", None]),
    st.dictionaries(INT32, LINE, max_size=2),
)


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def expected_line(line) -> dict:
    return {
        "sku": line.sku or None,
        "count": line.count or None,
        "marks": list(line.marks),
        "inner": {"raw": line.inner.raw or None} if line.HasField("inner") else None,
    }


def expected(message, upcast: bool = False) -> dict:
    found = {name: getattr(message, name) or None for name in SCALARS}
    for name in ("single", "number"):  # -0.0 is written
        value = getattr(message, name)
        found[name] = value if value or math.copysign(1, value) < 0 else None
    if upcast:
        found["u64"], found["f64"] = (Decimal(v) if v else None for v in (message.u64, message.f64))
    else:
        found |= {n: signed(getattr(message, n), 32) or None for n in ("u32", "f32")}
        found |= {n: signed(getattr(message, n), 64) or None for n in ("u64", "f64")}
    found["maybe"] = message.maybe if message.HasField("maybe") else None
    found["colour"] = {0: None, 1: "RED", 7: "BLUE"}[message.colour]
    found["packed"], found["texts"] = list(message.packed), list(message.texts)
    found["lines"] = [expected_line(line) for line in message.lines]
    for name in ("line", "other"):
        found[name] = expected_line(getattr(message, name)) if message.HasField(name) else None
    found["counts"] = sorted(message.counts.items())
    found["by_id"] = sorted((k, expected_line(v)) for k, v in message.by_id.items())
    choice = message.WhichOneof("choice")
    found |= {n: getattr(message, n) if choice == n else None for n in ("name", "id")}
    found["at"] = None
    return found


def built(kind, row: tuple) -> object:
    fields, choice, by_id = row
    message = kind(**fields)
    for key, line in by_id.items():
        message.by_id[key].MergeFrom(type(message.line)(**line))
    if choice == "other":
        message.other.sku = "x"
    elif choice:
        setattr(message, choice, {"name": "n", "id": -3}[choice])
    return message


def sorted_maps(row: dict) -> dict:
    return {**row, "counts": sorted(row["counts"]), "by_id": sorted(row["by_id"])}


@settings(max_examples=25, deadline=None)
@given(st.lists(ORDERS, max_size=3), st.booleans())
def test_messages_are_what_protobuf_wrote(order, given_rows, upcast):
    kind = message_class(order, "Order")
    messages = [built(kind, row) for row in given_rows]
    decoded = decode(
        order, "Order", *(m.SerializeToString() for m in messages), **{"upcast.unsigned.ints": str(upcast)}
    )
    assert decoded.reasons == []
    assert [sorted_maps(row) for row in rows(decoded)] == [expected(m, upcast) for m in messages]


@settings(max_examples=25, deadline=None)
@given(ORDERS, ORDERS, st.data())
def test_joined_messages_are_merged_and_cuts_are_good_or_bad_as_for_protobuf(order, first, second, data):
    kind = message_class(order, "Order")
    joined = built(kind, first).SerializeToString() + built(kind, second).SerializeToString()
    for value in (joined, joined[: data.draw(st.integers(0, len(joined)))]):
        check_as_protobuf(order, kind, value)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*range(8, 220), 0, 255, 1]), max_size=30).map(bytes) | st.binary(max_size=30)
)
def test_any_bytes_are_what_protobuf_takes_them_for(order, value):
    check_as_protobuf(order, message_class(order, "Order"), value)


def check_as_protobuf(path: str, kind, value: bytes) -> None:
    decoded = decode(path, "shop.Order", value)
    message = kind()
    try:
        message.ParseFromString(value)
    except Exception:
        assert decoded.bad_rows == [0], value
        return
    assert decoded.reasons == [], value
    if message.colour in (0, 1, 7) and not message.HasField("at"):
        found = rows(decoded)[0]
        assert dict(found["counts"]) == dict(message.counts)  # a key that comes again is kept twice


def test_the_wires_liberties(order, old):
    tag = varint(18 << 3)
    mixed = tag + b"\1" + varint(18 << 3 | 2) + b"\2\2\3" + tag + b"\4"
    assert rows(decode(order, "Order", mixed))[0]["packed"] == [1, 2, 3, 4]
    unknown = (
        varint(999 << 3 | 3) + varint(5 << 3) + b"\1" + varint(999 << 3 | 4) + varint(888 << 3 | 5) + b"1234"
    )
    assert rows(decode(order, "Order", unknown + b"\x08\x05" + unknown + b"\x08\x06"))[0]["i32"] == 6
    assert rows(decode(order, "Order", b"\x0a\x01x"))[0]["i32"] is None  # another wire type: unknown
    assert rows(decode(order, "Order", b"\x08" + b"\xff" * 9 + b"\x01"))[0]["i32"] == -1
    assert (
        rows(decode(order, "Order", varint(16 << 3) + b"\x09"))[0]["colour"] == "UNKNOWN_ENUM_VALUE_Colour_9"
    )
    assert rows(decode(old, "Old", b"\x08\x01\x28\x09"))[0]["kind"] is None  # a closed enum


def test_a_oneof_has_its_last_field_also_if_that_is_not_wanted(order):
    name, id, other = varint(24 << 3 | 2) + b"\1x", varint(25 << 3) + b"\5", varint(26 << 3 | 2) + b"\0"
    for value, columns, wanted in [
        (name + id, "name,id", [None, 5]),
        (id + name, "name,id", ["x", None]),
        (name + id, "name", [None]),
        (name + other, "name", [None]),
        (other + name, "other,name", [None, "x"]),
        (other + id, "other", [None]),
        (name + other + id + name, "id,name", [None, "x"]),
    ]:
        assert list(rows(decode(order, "Order", value, columns=columns))[0].values()) == wanted


def test_proto2_defaults_and_required_fields(old):
    assert rows(decode(old, "", b"\x08\x01"))[0] == {
        "id": 1, "s": "none", "n": -5, "d": 0.5, "kind": None, "other": "B", "many": [], "f": 9, "b": None,
    }  # fmt: skip
    assert bad(old, "Old", b"") == "id: a required field is missing at byte 0"
    assert decode(old, "Old", b"\x12\x01x", columns="s").reasons == [
        "id: a required field is missing at byte 3"
    ]
    assert decode(old, "Old", b"\x12\x01x\x08\x01", columns="s").columns[0].to_pylist() == ["x"]


def test_defaults_of_proto3_are_nulls_unless_asked_for(order):
    found = rows(decode(order, "Order", b"", columns="i32,text,maybe,colour,flag,packed"))[0]
    assert found == {"i32": None, "text": None, "maybe": None, "colour": None, "flag": None, "packed": []}
    found = rows(
        decode(order, "Order", b"", columns="i32,text,maybe,colour,flag", **{"emit.default.values": "true"})
    )[0]
    assert found == {"i32": 0, "text": "", "maybe": None, "colour": "NONE", "flag": False}
    assert rows(decode(order, "Order", b"\x80\x01\x07", columns="colour", **{"enums.as.ints": "true"}))[
        0
    ] == {"colour": 7}


def test_an_unknown_number_of_a_closed_enum_changes_nothing(old):
    assert rows(decode(old, "Old", b"\x08\x01\x28\x01\x28\x63"))[0]["kind"] == "A"


def test_nanoseconds_are_cut_towards_zero(order):
    at = varint(3000 << 3 | 2)
    one = b"\x08" + varint(1) + b"\x10" + b"\xa4" + b"\xf4" + b"\xff" * 7 + b"\x01"  # -1500
    assert decode(order, "Order", at + varint(len(one)) + one, columns="at").columns[0].cast(
        pa.int64()
    ).to_pylist() == [999_999]


def test_timestamps(order):
    at = varint(3000 << 3 | 2)
    one = b"\x08" + varint(1_700_000_000) + b"\x10" + varint(123_456_789)
    decoded = decode(order, "Order", at + varint(len(one)) + one, at + b"\0", columns="at")
    assert decoded.columns[0].to_pylist() == [
        datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123456),
        datetime(1970, 1, 1, tzinfo=UTC),
    ]
    long = b"\x08" + varint(2**62)
    assert bad(order, "Order", at + varint(len(long)) + long).startswith("at: out of the column's range")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x08", "i32: the value ends too early at byte 1"),
        (b"\x08" + b"\x80" * 11, "i32: a varint that is too long at byte 1"),
        (b"\x00", "a tag that cannot be at byte 0"),
        (b"\x0f", "i32: a tag that cannot be at byte 1"),
        (b"\x0c", "i32: a tag that cannot be at byte 1"),
        (b"\x72\x05abc", "text: the value ends too early at byte 1"),
        (b"\x72\x01\xff", "text: not UTF-8 at byte 2"),
        (b"\x61123", "number: the value ends too early at byte 1"),
        (varint(21 << 3 | 2) + b"\x02\x0a\x05", "line.sku: the value ends too early at byte 4"),
        (varint(20 << 3 | 2) + b"\x7f", "lines: the value ends too early at byte 0"),
        (varint(50 << 3 | 3) * 200, "nested too deeply at byte 202"),
        (varint(2**40), "a tag that cannot be at byte 0"),
    ],
)
def test_what_is_bad(order, value, reason):
    assert bad(order, "Order", value) == reason


def test_a_registrys_header_is_passed_over(order):
    on = {"confluentHeader": "true", "columns": "i32"}
    for header in (b"\0\0\0\0\7\0", b"\0\0\0\0\7\4\2\0"):
        assert rows(decode(order, "Order", header + b"\x08\x05", **on))[0] == {"i32": 5}
    assert bad(order, "Order", b"\1\0\0\0\7\0\x08\x05", **on).startswith("not the header")
    assert bad(order, "Order", b"\0\0\0\0\7", **on).startswith("not the header")
    assert bad(order, "Order", b"\0\0\0\0\7\x7e\x08\x05", **on).startswith("a length that goes past")


def test_a_descriptor_travels_as_text(order):
    text = portable_schema("protobuf", order)
    assert text.startswith("base64:")
    assert value_decoder("protobuf", text, {"messageName": "Line"}).schema.names == [
        "sku",
        "count",
        "marks",
        "inner",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [("Nothing", "no message Nothing: shop.Line, shop.Order"), ("", "not exactly one message")],
)
def test_messages_that_are_not_there(order, name, message):
    with pytest.raises(SchemaError, match=message):
        value_decoder("protobuf", order, {"messageName": name})


def test_descriptors_that_are_none(tmp_path):
    (tmp_path / "x.desc").write_bytes(b"\xff\xff")
    with pytest.raises(SchemaError, match="no descriptor set"):
        value_decoder("protobuf", str(tmp_path / "x.desc"))
    path = compiled(tmp_path, "tree", 'syntax = "proto3"; message T { repeated T below = 1; }')
    with pytest.raises(SchemaError, match="T contains itself"):
        value_decoder("protobuf", path)


def test_a_short_descriptor_of_very_many_fields_is_refused(tmp_path):
    messages = "".join(f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; }}" for i in range(30))
    path = compiled(tmp_path, "doubling", f'syntax = "proto3"; {messages} message M30 {{ int32 x = 1; }}')
    with pytest.raises(SchemaError, match="more than 100000 fields"):
        value_decoder("protobuf", path, {"messageName": "M0"})
