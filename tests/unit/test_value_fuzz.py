"""Values from strangers: every prefix of a good one, and good ones that were bent, through every decoder.

Whatever comes, the decoder ends, its columns are whole (pyarrow validates them to the last offset), and the
good values beside a bad one are what they are alone. `make soak` does it for long, `make sanitize` with the
sanitizers watching."""

import base64
import io
import json
import random

import fastavro
import pyarrow as pa
import pytest

from kafkad.values.decoder import decoded_parts, value_decoder

FIELDS = (
    "b BOOLEAN, y TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(12,3), t TEXT, x BINARY,"
    " z DATE, m TIMESTAMP, o TIMESTAMP_NTZ"
).replace("TEXT", "STRING")
NESTED = (
    f"{FIELDS}, r STRUCT<i: INT, r: STRUCT<t: STRING, a: ARRAY<DATE>>>, a ARRAY<STRUCT<i: INT, t: STRING>>,"
    " p MAP<STRING, ARRAY<INT>>, e STRUCT<>"
)
ROW = {
    "b": True, "y": -128, "s": 32767, "i": -7, "l": 2**63 - 1, "f": 1.5, "d": -2.25e-7, "n": 123456789.125,
    "t": 'é "quoted" \\ \U0001f600 and a rather longer text than sixteen bytes', "x": "AAEC",
    "z": "2024-02-29",
    "m": "2024-07-01T10:11:12.123+02:00", "o": "2024-07-01 10:11:12",
}  # fmt: skip
JSON = json.dumps(
    {
        **ROW,
        "r": {"i": 1, "r": {"t": "x", "a": ["2024-01-01", None]}, "unknown": [{"x": [1.5e3, "y"]}]},
        "a": [{"i": 1}, None, {"t": "y", "i": None}, {}],
        "p": {"k": [1, None], "": [], "n": None},
        "e": {},
    }
).encode()
CSV = (
    b'true,-128,32767,-7,9223372036854775807,1.5,-2.25e-7,"123,456,789.125","a \\"b\\",\nc",\x00\xff,'
    b"2024-02-29,"
    b"2024-07-01T10:11:12.123 Europe/Berlin,2024-07-01 10:11:12"
)
PATTERNS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "dateFormat": "yyyy[-MM[-dd]]"}
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "q", "type": "int"}, {"name": "t", "type": "string"}],
}
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": name, "type": kind}
        for name, kind in {
            "b": "boolean", "i": "int", "l": "long", "f": "float", "d": "double", "t": "string", "x": "bytes",
            "h": {"type": "fixed", "name": "H", "size": 3},
            "k": {"type": "enum", "name": "K", "symbols": ["A", "BB"]},
            "n": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
            "m": {"type": "long", "logicalType": "timestamp-millis"},
            "u": ["null", "string", "long"],
            "a": {"type": "array", "items": ["null", LINE]},
            "p": {"type": "map", "values": {"type": "array", "items": "Line"}},
            "c": {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}},
        }.items()
    ],
}  # fmt: skip
AVRO_ROW = {
    "b": True, "i": -7, "l": 2**62, "f": 1.5, "d": 2.5, "t": "é", "x": b"\0\xff", "h": b"abc", "k": "BB",
    "n": b"\0\xff", "m": 1_700_000_000_000, "u": "x", "a": [None, {"q": 1, "t": "y"}],
    "p": {"k": [{"q": 2, "t": ""}], "": []}, "c": [{}, {}],
}  # fmt: skip


def avro_value() -> bytes:
    raw = json.loads(json.dumps(AVRO))
    for field in raw["fields"]:  # the raw bytes are given, not what they stand for
        if isinstance(field["type"], dict):
            field["type"].pop("logicalType", None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(raw), AVRO_ROW)
    return out.getvalue()


def proto() -> tuple[str, bytes]:
    """(a message's descriptor as text, a value): each wire type, a oneof, a map, messages, a timestamp."""
    from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2

    from kafkad.values.proto_schema import message_descriptor

    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(
        name="f.proto", package="f", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="K").value.add(name="ZERO", number=0)
    message = file.message_type.add(name="M")
    line = message.nested_type.add(name="Line")
    line.field.add(name="q", number=1, label=1, type=5)
    line.field.add(name="marks", number=2, label=3, type=18)
    entry = message.nested_type.add(name="PEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".f.M.Line")
    for number, kind in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18), 1):
        message.field.add(name=f"s{number}", number=number, label=1, type=kind)
    message.field.add(name="line", number=20, label=1, type=11, type_name=".f.M.Line")
    message.field.add(name="lines", number=21, label=3, type=11, type_name=".f.M.Line")
    message.field.add(name="p", number=22, label=3, type=11, type_name=".f.M.PEntry")
    message.field.add(name="at", number=300, label=1, type=11, type_name=".google.protobuf.Timestamp")
    message.field.add(name="k", number=24, label=1, type=14, type_name=".f.K")
    message.oneof_decl.add(name="one")
    message.field.add(name="o1", number=25, label=1, type=9, oneof_index=0)
    message.field.add(name="o2", number=26, label=1, type=11, type_name=".f.M.Line", oneof_index=0)
    data = files.SerializeToString()
    kind = message_factory.GetMessageClass(message_descriptor(data, "M"))
    value = kind(
        **{
            f"s{i}": v
            for i, v in enumerate((1.5, 2.5, -3, 4, -5, 6, 7, True, "é", b"\xff", 8, -9, -10, -11, -12), 1)
        },
        line={"q": 1, "marks": [1, -2, 3]},
        lines=[{"q": 2}, {}],
        p={"k": {"q": 3}, "": {}},
        o2={"q": 4},
        k=9,
    )
    value.at.seconds, value.at.nanos = 1_700_000_000, 5000
    return "base64:" + base64.b64encode(data).decode(), value.SerializeToString()


def makers() -> dict:
    """By name: (decoder, a good value)."""
    descriptor, message = proto()
    return {
        "json": (value_decoder("json", NESTED), JSON),
        "json-patterns": (
            value_decoder("json", "m TIMESTAMP, z DATE, a ARRAY<TIMESTAMP>", PATTERNS),
            b'{"m":"2024-07-01T10:11:12.123+02:00","z":"2024-07","a":["2024-07-01T10:11:12-09:30",null]}',
        ),
        "json-pruned": (value_decoder("json", NESTED, {"columns": "p,n"}), JSON),
        "csv": (value_decoder("csv", FIELDS), CSV),
        "csv-doubled": (
            value_decoder("csv", "t STRING, i INT", {"escape": '"', "sep": "||"}), b'"a""b||"||1',
        ),
        "avro": (value_decoder("avro", json.dumps(AVRO)), avro_value()),
        "avro-pruned": (value_decoder("avro", json.dumps(AVRO), {"columns": "u,l"}), avro_value()),
        "protobuf": (value_decoder("protobuf", descriptor, {"messageName": "M"}), message),
        "protobuf-pruned": (
            value_decoder("protobuf", descriptor, {"messageName": "M", "columns": "o1,p"}), message,
        ),
        "protobuf-header": (
            value_decoder("protobuf", descriptor, {"messageName": "M", "confluentHeader": "true"}),
            b"\0\0\0\0\1\2\0" + message,
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def decoders() -> dict:
    return makers()


NAMES = [
    "json", "json-patterns", "json-pruned", "csv", "csv-doubled", "avro", "avro-pruned", "protobuf",
    "protobuf-pruned", "protobuf-header",
]  # fmt: skip
SPICE = [
    b"", b"\0", b"\xff", b"\x80", b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"-", b".",
    b"e", b",", b'"', b"\\", b"\\u", b"\\ud800", b"'", b"{", b"}", b"[", b"]", b":", b"null", b"NaN",
    b"-Infinity", b"1" * 25, b"\n", b"9999-12-31", b"\xed\xa0\x80", b"\xc3", b"\xf0\x9f\x98", b" " * 20,
    b"\x0b", b"\x0c", b"-." * 20, b"e-9999999999",
]  # fmt: skip


def bent(value: bytes, chance: random.Random) -> bytes:
    """With one to four small wounds."""
    found = bytearray(value)
    for _ in range(chance.randint(1, 4)):
        at, end = sorted(chance.randint(0, len(found)) for _ in range(2))
        how = chance.randrange(6)
        if how == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            found[at:at] = chance.choice(SPICE)
        elif how == 2:
            del found[at : min(end, at + 8)]
        elif how == 3:
            found[at:at] = found[at : min(end, at + 40)]
        elif how == 4:
            found[at : at + 1] = chance.choice(SPICE)
        else:
            found[at:at] = chance.randbytes(chance.randint(1, 12))
    return bytes(found)


def check(decoder, good: bytes, strangers: list[bytes]) -> int:
    """Decodes them with a good value before each and at the end; how many were bad."""
    alone = [column.to_pylist() for column in decoder.decode(pa.array([good], pa.binary())).columns]
    values = [value for stranger in strangers for value in (good, stranger)] + [good]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    bad = set(decoded.bad_rows)
    assert len(bad) == len(decoded.bad_rows) == len(decoded.reasons)
    assert all(row % 2 for row in bad)
    for column, wanted in zip(decoded.columns, alone, strict=True):
        column.validate(full=True)
        assert len(column) == len(values)
        assert column.take(pa.array(range(0, len(values), 2))).to_pylist() == wanted * (len(strangers) + 1)
        assert column.take(pa.array(sorted(bad), pa.int64())).null_count == len(bad)
    return len(bad)


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_of_a_value(decoders, name):
    decoder, good = decoders[name]
    assert decoder.decode(pa.array([good])).reasons == []
    bad = check(decoder, good, [good[:i] for i in range(len(good))])
    assert bad > 0
    if name.startswith(("json", "avro")):
        assert bad == len(good)


@pytest.mark.parametrize("name", NAMES)
def test_bent_values(decoders, name):
    decoder, good = decoders[name]
    chance = random.Random(name)
    bad = sum(check(decoder, good, [bent(good, chance) for _ in range(100)]) for _ in range(10))
    assert 0 < bad <= 1000


@pytest.mark.parametrize("name", NAMES)
def test_noise(decoders, name):
    decoder, good = decoders[name]
    chance = random.Random(name)
    check(decoder, good, [chance.randbytes(chance.randint(0, 50)) for _ in range(500)])


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_many_bent_values(decoders, name, rounds):
    decoder, good = decoders[name]
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(rounds(10, 2000)):
        strangers = [bent(good, chance) for _ in range(100)]
        try:
            check(decoder, good, strangers)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_ends_before_its_columns_are_too_large(decoders, monkeypatch, name):
    decoder, good = decoders[name]
    monkeypatch.setattr("kafkad._native.values.value_columns.COLUMNS_BYTES_MAX", 30_000)
    limited = makers()[name][0]
    values = pa.array([None if n % 7 == 3 else good[:-1] if n % 11 == 5 else good for n in range(2000)])
    whole = decoder.decode(values)
    assert whole.rows == len(values)
    batch = pa.record_batch([pa.array(range(len(values))), values], ["n", "value"])
    for _ in range(2):  # the second time with the sizes of the last batch as a guess
        parts = [*decoded_parts(limited, batch)]
        assert len(parts) > 1
        assert [n for part, _ in parts for n in part.column("n").to_pylist()] == [*range(len(values))]
        assert all(sum(column.nbytes for column in decoded.columns) < 30_000 for _, decoded in parts)
        for at, column in enumerate(whole.columns):
            pieces = [decoded.columns[at] for _, decoded in parts]
            assert pa.concat_arrays(pieces).equals(column)
        bad = [part.column("n")[row].as_py() for part, decoded in parts for row in decoded.bad_rows]
        assert bad == whole.bad_rows
        assert [reason for _, decoded in parts for reason in decoded.reasons] == whole.reasons


def test_a_value_that_alone_would_be_too_large_is_bad(monkeypatch):
    """Two bytes of JSON can be a null in each of many columns."""
    monkeypatch.setattr("kafkad._native.values.value_columns.COLUMNS_BYTES_MAX", 8 << 20)
    wide = ", ".join(f"c{n}: BIGINT" for n in range(500))
    decoder = value_decoder("json", f"id INT, a ARRAY<STRUCT<{wide}>>")
    values = [b'{"id": %d, "a": [%s]}' % (n, b"{}," * (20_000 if n == 3 else 200) + b"{}") for n in range(9)]
    batch = pa.record_batch([pa.array(values)], ["value"])
    ids, reasons = [], []
    for _, decoded in decoded_parts(decoder, batch):
        ids += decoded.columns[0].to_pylist()
        reasons += decoded.reasons
        assert sum(column.get_total_buffer_size() for column in decoded.columns) <= 8 << 20
    assert ids == [0, 1, 2, None, 4, 5, 6, 7, 8]
    assert reasons == ["its columns would take more memory than those of a whole batch may"]


def test_the_size_of_the_last_batch_is_no_reason_to_refuse_the_next(monkeypatch):
    monkeypatch.setattr("kafkad._native.values.value_columns.COLUMNS_BYTES_MAX", 100_000)
    decoder = value_decoder("json", "t STRING, u STRING")
    large = b'{"t": "%s"}' % (b"x" * 95_000)
    made = {large: "x" * 95_000, b'{"t": "y"}': "y"}  # of the others nothing
    for first in (None, b"{}", b"no JSON", large, large[:-1]):
        for values in ([large], [first, b'{"t": "y"}']):
            batch = pa.record_batch([pa.array(values, pa.binary())], ["value"])
            parts = decoded_parts(decoder, batch)
            found = [row for _, decoded in parts for row in decoded.columns[0].to_pylist()]
            assert found == [made.get(value) for value in values]
