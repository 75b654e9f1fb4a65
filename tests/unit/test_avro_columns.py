"""Avro to columns: what fastavro wrote and reads, resolution between versions, and bytes from strangers."""

import base64
import datetime
import http.server
import io
import json
import math
import threading
import typing
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad.values.avro_schema import SchemaError, parse_avro, record_schema, varint
from kafkad.values.decoder import Decoded, portable_schema, value_decoder
from kafkad.values.schema_registry import RegistryError


def record(*fields: tuple) -> dict:
    """(name, type[, default]) of each."""
    keys = ("name", "type", "default")
    return {"type": "record", "name": "R", "fields": [dict(zip(keys, f, strict=False)) for f in fields]}


def written(schema: dict, row: dict) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def decode(schema: dict, *values: bytes | None, **options: str) -> Decoded:
    decoded = value_decoder("avro", json.dumps(schema), options).decode(pa.array(values, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
        assert len(column) == len(values)
    return decoded


def rows(decoded: Decoded) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in decoded.columns), strict=True))


def bad(schema: dict, value: bytes) -> str:
    decoded = decode(schema, None, value)
    assert decoded.bad_rows == [1]
    assert rows(decoded) == [(None,) * len(decoded.columns)] * 2
    return decoded.reasons[0]


INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
UTC_TIMES = st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(9000, 1, 1)).map(
    lambda at: at.replace(tzinfo=datetime.UTC)
)
SYMBOLS = ["A", "B", "LONGER"]
KINDS = {
    "b": ("boolean", st.booleans()),
    "i": ("int", INT),
    "l": ("long", LONG),
    "f": ("float", st.floats(width=32, allow_nan=False)),
    "d": ("double", st.floats(allow_nan=False)),
    "y": ("bytes", st.binary(max_size=20)),
    "s": ("string", TEXT),
    "e": ({"type": "enum", "name": "E", "symbols": SYMBOLS}, st.sampled_from(SYMBOLS)),
    "x": ({"type": "fixed", "name": "X", "size": 5}, st.binary(min_size=5, max_size=5)),
    "day": ({"type": "int", "logicalType": "date"}, st.dates()),
    "ms": (
        {"type": "long", "logicalType": "timestamp-millis"},
        UTC_TIMES.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
    "us": ({"type": "long", "logicalType": "timestamp-micros"}, UTC_TIMES),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        UTC_TIMES.map(lambda t: t.replace(tzinfo=None)),
    ),
    "dec": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4},
        st.decimals(Decimal(-(10**30)), Decimal(10**30), places=4),
    ),
    "fdec": (
        {"type": "fixed", "name": "D", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2},
        st.decimals(Decimal(-(10**9)), Decimal(10**9), places=2),
    ),
}  # fmt: skip
FLAT = record(*((name, kind) for name, (kind, _) in KINDS.items()))
NULLABLE = record(
    *(
        (name, ["null", kind] if i % 2 else [kind, "null"])
        for i, (name, (kind, _)) in enumerate(KINDS.items())
    )
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.fixed_dictionaries({name: values for name, (_, values) in KINDS.items()}), max_size=5))
def test_flat_records(given_rows):
    decoded = decode(FLAT, *(written(FLAT, row) for row in given_rows))
    assert decoded.reasons == []
    assert rows(decoded) == [tuple(row[n] for n in KINDS) for row in given_rows]


@settings(max_examples=30, deadline=None)
@given(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), st.data())
def test_nullable_fields_pruned_columns_and_every_cut(row, data):
    value = written(NULLABLE, row)
    names = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True))
    assert rows(decode(NULLABLE, value, columns=",".join(names))) == [tuple(row[n] for n in names)]
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    decoded = decode(NULLABLE, cut, value)
    assert decoded.bad_rows == [0]
    assert rows(decoded)[1] == tuple(row[n] for n in KINDS)
    assert "more bytes after the value's end" in bad(NULLABLE, value + b"\0")


DEEP = record(
    ("a", {"type": "array", "items": ["null", {"type": "map", "values": ["long", "null"]}]}),
    ("r", ["null", {**record(("x", {"type": "array", "items": "string"})), "name": "S"}]),
    ("again", {"type": "map", "values": "S"}),
    ("u", ["null", "int", "string", {"type": "array", "items": "int"}]),
    ("w", ["int", "long"]),
    ("v", ["float", "null", "double"]),
)  # fmt: skip
INNER = st.fixed_dictionaries({"x": st.lists(TEXT, max_size=3)})


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "a": st.lists(st.none() | st.dictionaries(TEXT, st.none() | LONG, max_size=3), max_size=3),
            "r": st.none() | INNER,
            "again": st.dictionaries(TEXT, INNER, max_size=2),
            "u": st.none() | INT | TEXT | st.lists(INT, max_size=3),
            "w": LONG,
            "v": st.none() | st.floats(allow_nan=False),
        }
    ),
    st.data(),
)
def test_nested_types_and_unions(row, data):
    value = written(DEEP, row)
    u = row["u"]
    member = {"member0": None, "member1": None, "member2": None}
    member["member0" if isinstance(u, int) else "member1" if isinstance(u, str) else "member2"] = u
    found = rows(decode(DEEP, value))[0]
    assert found[0] == [None if m is None else list(m.items()) for m in row["a"]]
    assert found[1:4] == (row["r"], list(row["again"].items()), None if u is None else member)
    assert found[4] == row["w"]
    assert found[5] == row["v"] or math.isclose(found[5], row["v"], rel_tol=1e-6)
    assert rows(decode(DEEP, value, columns="w,r")) == [(row["w"], row["r"])]
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    assert decode(DEEP, cut).bad_rows == [0]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_good_or_bad(data):
    for schema in (FLAT, NULLABLE, DEEP):
        whole = written(DEEP, {"a": [], "r": None, "again": {}, "u": 1, "w": 1, "v": 0.5})
        found = decode(schema, data, whole)
        assert set(found.bad_rows) <= {0, 1} and len(found.reasons) == len(found.bad_rows)
        for column in found.columns:
            column.validate(full=True)
            assert len(column) == 2
            assert all(column[row].as_py() is None for row in found.bad_rows)


def test_columns_of_a_schema_are_sparks():
    assert record_schema(parse_avro(json.dumps(DEEP))) == pa.schema(
        [
            ("a", pa.list_(pa.field("element", pa.map_(pa.string(), pa.int64())))),
            ("r", pa.struct([("x", pa.list_(pa.field("element", pa.string())))])),
            ("again", pa.map_(pa.string(), pa.struct([("x", pa.list_(pa.field("element", pa.string())))]))),
            (
                "u",
                pa.struct(
                    [
                        ("member0", pa.int32()),
                        ("member1", pa.string()),
                        ("member2", pa.list_(pa.field("element", pa.int32()))),
                    ]
                ),
            ),
            ("w", pa.int64()),
            ("v", pa.float64()),
        ]
    )


PAST_END = "a: a length that goes past the value's end at byte "
NO_BRANCH = "a: no such branch of the union or symbol of the enum at byte 0"
NOTHING = {"type": "record", "name": "N", "fields": []}


def decimal(precision: int) -> dict:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("int", b"\xff\xff\xff\xff\xff\x01", "a: a varint that is too long at byte 0"),
        ("long", b"\xff" * 9 + b"\x02", "a: a varint that is too long at byte 0"),
        ("long", b"\x80" * 20, "a: a varint that is too long at byte 0"),
        ("long", b"", "a: the value ends too early at byte 0"),
        ("string", varint(-1), PAST_END + "1"),
        ("string", varint(2**62) + b"x", "a: the value ends too early at byte 10"),
        ("string", b"\x02\xff", "a: not UTF-8 at byte 1"),
        ("double", b"1234567", "a: the value ends too early at byte 7"),
        ("boolean", b"\x02", "a: not a boolean at byte 0"),
        (["null", "int"], b"\x04\x02", NO_BRANCH),
        (["null", "int"], b"\x01", NO_BRANCH),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", NO_BRANCH),
        ({"type": "array", "items": "int"}, varint(2**40), PAST_END + "6"),
        ({"type": "array", "items": NOTHING}, varint(2**40), PAST_END + "6"),
        ({"type": "array", "items": NOTHING}, varint(60000) * 2, PAST_END + "6"),
        ({"type": "array", "items": "int"}, varint(-(2**63)) + b"\0", PAST_END + "11"),
        ({"type": "array", "items": "int"}, varint(-1) + varint(99) + b"\0", PAST_END + "3"),
        (decimal(2), b"\x02\x64", "a: out of the column's range at byte 1"),
        (decimal(38), varint(17) + b"\x01" + bytes(16), "a: out of the column's range at byte 1"),
        (KINDS["ms"][0], varint(2**62), "a: out of the column's range at byte 0"),
    ],
)  # fmt: skip
def test_what_is_bad(field, value, reason):
    assert bad(record(("a", field)), value) == reason


def test_blocks_with_their_size_and_long_decimals_are_read():
    numbers = record(("a", {"type": "array", "items": "int"}))
    assert rows(decode(numbers, varint(-2) + varint(2) + varint(5) + varint(6) + varint(0))) == [([5, 6],)]
    amount = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}))
    assert rows(decode(amount, varint(20) + b"\xff" * 20, varint(1) + b"\0")) == [
        (Decimal("-0.1"),),
        (Decimal(0),),
    ]
    assert bad(amount, varint(0)) == "a: out of the column's range at byte 1"  # no number at all, as for Java


def test_elements_without_bytes_are_counted_over_a_whole_value():
    """Else 4 bytes stand for 65,536 loops, and a megabyte for minutes."""
    nothing = {"type": "record", "name": "Nothing", "fields": []}
    writer = record(("a", {"type": "array", "items": {"type": "array", "items": nothing}}))
    full, inner = varint(65_536) + varint(0), varint(1) + varint(0)
    assert decode(writer, varint(1) + full + varint(0)).reasons == []
    assert bad(writer, varint(2) + full + inner + varint(0)).startswith("a[]: a length that goes past")


def resolve(writer, reader, *values: bytes) -> list:
    """Values of the one field `a`, written as the one type and read as the other."""
    from kafkad._native.values.avro_columns import AvroColumns
    from kafkad.values.avro_schema import plan
    from kafkad.values.schema import native_field

    kinds = [
        parse_avro(json.dumps(one if "fields" in one else record(("a", one)))) for one in (writer, reader)
    ]
    columns = record_schema(kinds[1])
    native = AvroColumns([native_field(f) for f in columns], plan(*kinds, columns.names))
    finished, bad_rows, _ = native.decode(pa.array(values, pa.binary()))
    assert bad_rows == []
    return pa.record_batch(finished).to_pylist()


def decimal(kind: str, scale: int) -> dict:
    size = {"type": "fixed", "name": "F", "size": 4} if kind == "fixed" else {"type": kind}
    return {**size, "logicalType": "decimal", "precision": 9, "scale": scale}


def test_decimals_of_another_scale_are_not_misread():
    assert resolve(decimal("fixed", 2), decimal("fixed", 2), b"\0\0\1\0") == [{"a": Decimal("2.56")}]
    for kind in ("fixed", "bytes"):
        with pytest.raises(SchemaError, match="a: decimals of scale 2 were written, not of 4"):
            resolve(decimal(kind, 2), decimal(kind, 4))
    with pytest.raises(SchemaError, match="a: string was written, which does not become a decimal"):
        resolve({"type": "string"}, decimal("bytes", 2))


def test_an_alias_stands_back_behind_the_name_itself():
    reader = record(("new", "int"))
    reader["fields"][0]["aliases"] = ["old"]
    assert resolve(record(("old", "int")), reader, varint(1)) == [{"new": 1}]
    assert resolve(record(("old", "int"), ("new", "int")), reader, varint(1) + varint(2)) == [{"new": 2}]


def doubling(depth: int) -> dict:
    """Each record has the one below it twice: a short text, and 2^depth fields."""
    found: dict = record(("x", "int"))
    for i in range(depth):
        found = record(("a", {**found, "name": f"R{i}"}), ("b", f"R{i}"))
    return {**found, "name": "top"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('"int"', "is a record, not a int"),
        ('{"type": "record", "name": "R"}', "a record without a proper 'fields'"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}', "R contains itself"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Q"}]}', "names the type Q"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}', "a: nulls alone"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": []}]}', "union"),
        ("[" * 150 + "]" * 150, "nested more than 100 deep"),
        ("[" * 100_000, "nested more than 100 deep"),
        (json.dumps(record(("a", {**decimal("bytes", 2), "scale": "2"}), ("b", "Q"))), "names the type Q"),
        (json.dumps(record(("a", {"type": "enum", "name": ["E"], "symbols": []}))), "without a proper"),
        (
            json.dumps(record(("a", {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}))),
            "default that is none of its symbols",
        ),
        (json.dumps(doubling(30)), "more than 100000 fields"),
    ],
)
def test_schemas_that_cannot_be(text, message):
    with pytest.raises(SchemaError, match=message):
        value_decoder("avro", text)


@pytest.mark.parametrize("default", [2**31, 1.5, "5", True])
def test_a_default_that_is_none_is_refused_and_not_rounded(default):
    with pytest.raises(SchemaError, match=r"a: the default .* is not a int"):
        resolve(record(), record(("a", "int", default)))


# Versions of a schema, and the registry


class FakeRegistry(http.server.BaseHTTPRequestHandler):
    schemas: typing.ClassVar[dict[int, dict]] = {}
    paths: typing.ClassVar[list[str]] = []
    status: typing.ClassVar[int] = 200

    def do_GET(self):
        self.paths.append(self.path)
        last = self.path.rpartition("/")[2]
        found = self.schemas.get(max(self.schemas) if last == "latest" else int(last))
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"me:secret").decode():
            self.send_response(401)
        elif self.status != 200:
            self.send_response(self.status)
        elif found is None or "/nosuch-value/" in self.path:
            self.send_response(404)
        else:
            self.send_response(200)
        self.end_headers()
        if found is None or "/nosuch-value/" in self.path:
            self.wfile.write(b'{"error_code": 40403, "message": "not found"}')
            return
        self.wfile.write(
            json.dumps(found if found and "schema" in found else {"schema": json.dumps(found)}).encode()
        )

    def log_message(self, *arguments):
        pass


@pytest.fixture
def registry():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeRegistry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    FakeRegistry.schemas, FakeRegistry.paths, FakeRegistry.status = {}, [], 200
    yield {
        "schema.registry.url": f"http://127.0.0.1:{server.server_port}/",
        "schema.registry.basic.auth.user.info": "me:secret",
        "topic": "t",
    }
    server.shutdown()
    server.server_close()


def header(id: int) -> bytes:
    return b"\0" + id.to_bytes(4, "big")


READER = record(
    ("n", "double"),
    ("s", ["null", "string"], None),
    ("added", {"type": "array", "items": "int"}, [1, -2]),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "OTHER"], "default": "OTHER"}, "A"),
    ("z", ["string", "null"], "x"),
)
VERSIONS = {
    1: (record(("n", "int")), {"n": 7}, (7.0, None, [1, -2], "A", "x")),
    2: (
        record(("gone", {"type": "map", "values": {**DEEP, "name": "Deep"}}), ("s", "string"), ("n", "long")),
        {"gone": {}, "s": "é", "n": 2**40},
        (float(2**40), "é", [1, -2], "A", "x"),
    ),
    3: (
        record(
            ("e", {"type": "enum", "name": "E", "symbols": ["B", "A"]}),
            ("n", ["float", "null"]),
            ("s", ["string", "null"]),
            ("z", "bytes"),
        ),
        {"e": "B", "n": 0.5, "s": None, "z": b"y"},
        (0.5, None, [1, -2], "OTHER", "y"),
    ),
}


def test_values_of_every_version_fill_the_readers_columns(registry):
    FakeRegistry.schemas = {id: schema for id, (schema, _, _) in VERSIONS.items()}
    decoder = value_decoder("confluent-avro", json.dumps(READER), registry)
    order = [1, 2, 3, 2, 1, 1]
    values = pa.array([header(id) + written(*VERSIONS[id][:2]) for id in order])
    for _ in range(2):
        decoded = decoder.decode(values)
        assert decoded.reasons == []
        assert rows(decoded) == [VERSIONS[id][2] for id in order]
    assert sorted(FakeRegistry.paths) == [f"/schemas/ids/{id}" for id in (1, 2, 3)]
    pruned = value_decoder("confluent-avro", json.dumps(READER), {**registry, "columns": "z,n"})
    assert rows(pruned.decode(values))[2] == ("y", 0.5)


def test_what_the_registry_does_not_know_is_bad_and_the_rest_is_not(registry):
    FakeRegistry.schemas = {
        1: record(("n", "int")),
        2: record(("n", "string")),
        3: {"schema": "x", "schemaType": "PROTOBUF"},
        4: {"schema": "{"},
        5: record(("q", "int")),
        6: record(("n", ["null", "int"])),
    }
    decoder = value_decoder("confluent-avro", json.dumps(record(("n", "long"))), registry)
    good = header(1) + varint(5)
    values = [
        header(9) + b"x",
        b"\x01\0\0\0\1",
        b"\0\0",
        b"",
        *(header(i) + b"\0" for i in (2, 3, 4, 5, 6)),
        good,
    ]
    decoded = decoder.decode(pa.array([*values, good, None]))
    assert decoded.columns[0].to_pylist() == [None] * 9 + [5, 5, None]
    expected = [
        "schema id 9 is not in the registry http://127.0.0.1",
        "not the header of the schema registry (a zero byte and a schema id) at byte 0",
        "not the header of the schema registry",
        "not the header of the schema registry",
        "schema id 2: n: string was written, which does not become long: written with a schema id",
        "schema id 3 is one of PROTOBUF",
        "schema id 4: the Avro schema is not JSON",
        "schema id 5: n: the schema that wrote the values has no such field, and there is no default",
        "n: no such branch of the union",
    ]
    for reason, start in zip(decoded.reasons, expected, strict=True):
        assert reason.startswith(start)


def test_a_registry_that_fails_stops_the_job_and_shows_no_password(registry, monkeypatch):
    monkeypatch.setattr("kafkad.values.schema_registry.PAUSE_S", 0.01)
    values = pa.array([header(1) + varint(5)])
    FakeRegistry.schemas, FakeRegistry.status = {1: record(("n", "int"))}, 503
    decoder = value_decoder("confluent-avro", json.dumps(record(("n", "int"))), registry)
    with pytest.raises(RegistryError, match="cannot be asked: HTTP 503"):
        decoder.decode(values)
    FakeRegistry.status = 200  # and the same decoder goes on
    assert decoder.decode(values).columns[0].to_pylist() == [5]
    url = registry["schema.registry.url"].replace("//", "//you:wrong@")
    other = value_decoder("confluent-avro", json.dumps(record(("n", "int"))), {"schema.registry.url": url})
    FakeRegistry.paths.clear()
    with pytest.raises(RegistryError, match=r"http://127.0.0.1:\d+ refuses: HTTP 401") as caught:
        other.decode(values)
    assert FakeRegistry.paths == ["/schemas/ids/1"]
    assert "wrong" not in str(caught.value)


def test_the_newest_schema_of_the_topic_is_taken_once(registry):
    FakeRegistry.schemas = {1: record(("n", "int")), 2: record(("n", "long"))}
    text = portable_schema("confluent-avro", "", registry)
    assert FakeRegistry.paths == ["/subjects/t-value/versions/latest"]
    assert value_decoder("confluent-avro", text, registry).schema == pa.schema([("n", pa.int64())])
    with pytest.raises(SchemaError, match="no subject nosuch-value"):
        portable_schema("confluent-avro", "", {**registry, "topic": "nosuch"})
    with pytest.raises(SchemaError, match="needs the option schema"):
        value_decoder("confluent-avro", text, {})


def test_a_schema_may_be_a_file(tmp_path):
    path = tmp_path / "r.avsc"
    path.write_text(json.dumps(READER))
    assert json.loads(portable_schema("avro", str(path))) == READER
    with pytest.raises(FileNotFoundError):
        portable_schema("avro", str(tmp_path / "none.avsc"))
