"""CSV to columns: what csv.writer wrote, Spark's words for numbers, and lines that are bad."""

import csv
import io
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad.values.decoder import Decoded, value_decoder
from kafkad.values.schema import SchemaError


def decode(schema: str, *values: bytes | str | None, **options: str) -> Decoded:
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    decoded = value_decoder("csv", schema, options).decode(pa.array(encoded, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
        assert len(column) == len(values)
    return decoded


def row(schema: str, value: bytes | str, **options: str) -> list:
    decoded = decode(schema, value, **options)
    assert decoded.reasons == []
    return [column[0].as_py() for column in decoded.columns]


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
DIALECTS = [{}, {"escape": '"'}, {"sep": "\t", "quote": "'"}, {"delimiter": "|", "escape": "^"}]


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=6), st.sampled_from(DIALECTS), st.booleans())
def test_lines_of_pythons_writer(texts, dialect, all_quoted):
    out = io.StringIO()
    quote, escape = dialect.get("quote", '"'), dialect.get("escape", "\\")
    writer = csv.writer(
        out,
        delimiter=dialect.get("sep") or dialect.get("delimiter", ","),
        quotechar=quote,
        doublequote=escape == quote,
        escapechar=None if escape == quote else escape,
        quoting=csv.QUOTE_ALL,
        lineterminator="\n",
    )
    writer.writerow(texts)
    schema = ", ".join(f"c{i} STRING" for i in range(len(texts)))
    line = out.getvalue()
    if not all_quoted:
        line = line.removesuffix("\n")
    assert row(schema, line, **dialect) == [text or None for text in texts]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_good_or_bad(data):
    decode(
        "a INT, b STRING, c DOUBLE, d TIMESTAMP",
        data,
        b'1,"' + data + b'",2,2024-01-01',
        b"1,x," + data + b",",
    )


ALL = (
    "i INT, l BIGINT, s SMALLINT, y TINYINT, d DOUBLE, f FLOAT, b BOOLEAN, n DECIMAL(8,2), t TIMESTAMP,"
    " z DATE, x BINARY"
)


def test_every_type():
    line = '+1,-9223372036854775808,007,-128,1.5e3,.25,TRUE,"1,234.565",2024-07-01 10:00:00,2024-7-1T1,raw\n'
    assert row(ALL, line, timeZone="Europe/Berlin") == [
        1, -(2**63), 7, -128, 1500.0, 0.25, True, Decimal("1234.57"),
        datetime(2024, 7, 1, 8, tzinfo=UTC), date(2024, 7, 1), b"raw",
    ]  # fmt: skip
    assert row(ALL, "," * 10) == [None] * 11


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("-0", -0.0), ("007.50", 7.5), ("5.", 5.0), (" 1 ", 1.0), ("+1e-2", 0.01), ("Inf", math.inf),
     ("-Inf", -math.inf), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e999", math.inf),
     ("123456789012345678901234567890", 123456789012345678901234567890.0)],
)  # fmt: skip
def test_floating_numbers(text, value):
    found = row("a DOUBLE", text)[0]
    assert found == value
    assert math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("a INT, b INT", "", "the value is empty at byte 0"),
        ("a INT, b INT", "\n", "the value is empty at byte 0"),
        ("a INT, b INT", "1", "fewer fields than the schema has at byte 1"),
        ("a INT, b INT", "1,2,3", "more fields than the schema has at byte 4"),
        ("a INT, b INT", "1,2,", "more fields than the schema has at byte 4"),
        ("a INT, b INT", "1,2\n3,4", "b: more bytes after the value's end at byte 2"),
        ("a INT, b INT", "1,x", "b: not a number at byte 2"),
        ("a INT, b INT", "1, 2", "b: not a number at byte 2"),
        ("a INT, b INT", "1,2.0", "b: not a number at byte 2"),
        ("a INT, b INT", "1,-", "b: not a number at byte 2"),
        ("a INT, b INT", "1,2147483648", "b: out of the column's range at byte 2"),
        ("a BIGINT, b INT", "9223372036854775808,1", "a: out of the column's range at byte 0"),
        ("a BIGINT, b INT", "1" * 500 + ",1", "a: out of the column's range at byte 0"),
        ("a DOUBLE", "x", "a: not a number at byte 0"),
        ("a DOUBLE", "0x1p3", "a: not a number at byte 0"),
        ("a DOUBLE", "inf", "a: not a number at byte 0"),
        ("a DOUBLE", "1.2.3", "a: not a number at byte 0"),
        ("a DOUBLE", "1" * 1001, "a: not a number at byte 0"),
        ("a BOOLEAN", "1", "a: not a boolean at byte 0"),
        ("a DECIMAL(4,2)", "100", "a: out of the column's range at byte 0"),
        ("a DECIMAL(4,2)", ".", "a: not a number at byte 0"),
        ("a DATE", "365", "a: not a date at byte 0"),
        ("a TIMESTAMP", "yesterday", "a: not a timestamp at byte 0"),
        ("a STRING", b"\xff", "a: not UTF-8 at byte 0"),
        ("a STRING, b INT", '"x,1', "a: a quote that is not closed, or not alone at byte 0"),
        ("a STRING, b INT", '"x"y,1', "a: a quote that is not closed, or not alone at byte 0"),
        ("a STRING, b INT", '"x\\",1', "a: a quote that is not closed, or not alone at byte 0"),
    ],
)
def test_what_is_bad(schema, value, reason):
    good = ",".join(["1"] * (schema.count(",") + 1)) if "INT" in schema else None
    decoded = decode(schema, good, value, None)
    if "STRING" in schema or good is None or "DECIMAL" in schema:
        assert decoded.reasons[-1] == reason
    else:
        assert (decoded.bad_rows, decoded.reasons) == ([1], [reason])
    assert decoded.columns[0].to_pylist()[1:] == [None, None]


def test_quotes_nulls_and_escapes():
    text = "a STRING, b STRING"
    assert row(text, 'x"y, "z"') == ['x"y', ' "z"']
    assert row(text, '"a,b","c\nd"\n') == ["a,b", "c\nd"]
    assert row(text, '"",') == [None, None]
    assert row(text, '"NA",na', nullValue="NA") == [None, "na"]
    assert row(text, ",NA", nullValue="NA") == [None, None]
    assert row(text, '"",x', nullValue="NA") == ["", "x"]  # HUNTS U1
    assert row("a INT, b INT", "3,", nullValue="NA") == [3, None]
    assert row("a INT, b STRING", "3,x\r\n") == [3, "x"]  # HUNTS U6
    assert row("a STRING, b INT", '"x",3\r\n') == ["x", 3]
    assert row(text, 'x,"y"\r\n') == ["x", "y"]
    assert row(text, "x,y\r") == ["x", "y\r"]
    assert row(text, '"a\\"b","c\\\\"') == ['a"b', "c\\"]
    assert row(text, '"a\\nb",c\\') == ["a\\nb", "c\\"]
    assert row(text, "a||b|c", sep="||") == ["a", "b|c"]
    assert row(text, '"a,b', quote="") == ['"a', "b"]
    assert row(text, "日本,\x00") == ["日本", "\x00"]


def test_columns_prunes_and_what_cannot_be_is_refused():
    assert row("a INT, b STRING, c DATE", "x,y,2024-01-01", columns="c,b") == [date(2024, 1, 1), "y"]
    assert decode("a INT, b STRING", b"1,\xff", columns="a").reasons == ["b: not UTF-8 at byte 2"]
    with pytest.raises(SchemaError, match="a: a field of CSV is flat"):
        value_decoder("csv", "a ARRAY<INT>")
    with pytest.raises(ValueError, match="a quote and an escape one of ASCII"):
        value_decoder("csv", "a INT", {"quote": "''"})
