"""JSON to columns: what json.loads and Python's numbers say, and every way in which a value can be bad."""

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkad._native.values.text_values import time_zone
from kafkad.values.decoder import Decoded, value_decoder


def decode(schema: str, *values: bytes | str | None, **options: str) -> Decoded:
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    decoded = value_decoder("json", schema, options).decode(pa.array(encoded, pa.binary()))
    for column in decoded.columns:
        column.validate(full=True)
        assert len(column) == len(values)
        for row in decoded.bad_rows:
            assert column[row].as_py() is None
    return decoded


def good(schema: str, *values: bytes | str | None, **options: str) -> list:
    """The values of the one column."""
    decoded = decode(schema, *values, **options)
    assert decoded.reasons == []
    return decoded.columns[0].to_pylist()


def bad(schema: str, value: bytes | str, **options: str) -> str:
    """Why it is bad; what stands before and after it is good."""
    decoded = decode(schema, "{}", value, "{}", **options)
    assert decoded.bad_rows == [1], value
    return decoded.reasons[0]


# Whole values

SCALARS = {
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "l": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "s": st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
}
ROWS = st.fixed_dictionaries({}, optional={name: st.none() | kind for name, kind in SCALARS.items()})
NESTED = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.none() | kind for name, kind in SCALARS.items()},
        "n": st.none()
        | st.fixed_dictionaries({}, optional={"x": SCALARS["i"], "y": st.lists(ROWS, max_size=3)}),
        "m": st.none() | st.dictionaries(SCALARS["s"], st.none() | SCALARS["l"], max_size=3),
        "unknown": st.recursive(
            st.none() | SCALARS["d"] | SCALARS["s"],
            lambda x: st.lists(x) | st.dictionaries(SCALARS["s"], x),
            max_leaves=6,
        ),
    },
)  # fmt: skip
FLAT = "b BOOLEAN, i INT, l BIGINT, d DOUBLE, s STRING"
DEEP = f"{FLAT}, n STRUCT<x: INT, y: ARRAY<STRUCT<{FLAT}>>>, m MAP<STRING, BIGINT>"


def expected(row: dict) -> dict:
    flat = {name: row.get(name) for name in SCALARS}
    nested, pairs = row.get("n"), row.get("m")
    if nested is not None:
        rows = nested.get("y")
        inner = [{name: r.get(name) for name in SCALARS} for r in rows] if rows is not None else None
        nested = {"x": nested.get("x"), "y": inner}
    return {**flat, "n": nested, "m": list(pairs.items()) if pairs is not None else None}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(NESTED, st.booleans(), st.sampled_from([None, 1, "\t"])), max_size=8), st.randoms())
def test_objects_are_what_json_makes_of_them(rows, random):
    texts = []
    for row, ascii_only, indent in rows:
        names = list(row)
        random.shuffle(names)
        texts.append(json.dumps({n: row[n] for n in names}, ensure_ascii=ascii_only, indent=indent))
    decoded = decode(DEEP, *texts)
    assert decoded.reasons == []
    names = [*SCALARS, "n", "m"]
    for i, (row, _, _) in enumerate(rows):
        assert {n: decoded.columns[k][i].as_py() for k, n in enumerate(names)} == expected(row)


@settings(max_examples=80, deadline=None)
@given(NESTED, st.data())
def test_every_cut_is_bad_and_leaves_the_neighbours_alone(row, data):
    text = json.dumps(row).encode()
    at = data.draw(st.integers(1, len(text) - 1))
    bad(DEEP, text[:at])
    bad(DEEP, text + text[:at])
    decoded = decode(DEEP, text[:at], text)
    assert decoded.bad_rows == [0]
    assert decoded.columns[5][1].as_py() == expected(row)["n"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
@example(b'{"i":1' + b"\0" * 20)
@example(b'{"s":"\\')
@example(b'{"s":"\\u12')
@example(b'{"l":-}')
@example(b'{"d":Infinit')
@example(b"}")
def test_any_bytes_are_good_or_bad(data):
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        decode(FLAT, data, b'{"b":' + data, b"{'s':'" + data, b'{"s":' + data + b"}")
    else:
        decode(FLAT, data)


def test_an_object_of_the_table_is_a_table():
    rows = [f'{{"i":{i},"s":"row {i}","more":[{{"x":null}}]}}' for i in range(3000)]
    decoded = decode("s STRING, i INT", *rows)
    assert decoded.columns[1].to_pylist() == list(range(3000))
    assert decoded.columns[0][2999].as_py() == "row 2999"


@pytest.mark.parametrize("text", ["-." * 500, "." * 1000, "-.," * 333, "+.-." * 250, "," * 1000, "1." * 500])
def test_a_decimal_of_many_points_is_bad_and_nothing_worse(text):
    """Each point behind a sign once brought a zero with it, past the end of a buffer on the stack."""
    assert bad("a DECIMAL(9,2)", f'{{"a":"{text}"}}') == "a: not a number at byte 5"


@pytest.mark.parametrize(
    "text", ["1..", "1.2.", "1e5.", "1.2.3", "--1", "-+1", "1e", "1e+", "e5", "1-", "1 "]
)
def test_what_bigdecimal_refuses_is_no_decimal(text):
    assert bad("a DECIMAL(9,2)", f'{{"a":"{text}"}}') == "a: not a number at byte 5"


@pytest.mark.parametrize("text", ["1e-9999999999", "0e9999999999", '"1e-9999999999"', "1e9999999999"])
def test_an_exponent_beyond_bigdecimals_is_bad(text):
    assert bad("a DECIMAL(9,2)", f'{{"a":{text}}}').startswith("a: out of the column's range")


def test_the_first_and_the_last_instant_are_timestamps():
    first, last = "-290308-12-21T19:59:05.224192Z", "+294247-01-10T04:00:54.775807Z"
    decoded = decode("a TIMESTAMP", f'{{"a":"{first}"}}', f'{{"a":"{last}"}}')
    assert decoded.columns[0].cast(pa.int64()).to_pylist() == [-(2**63), 2**63 - 1]
    for beyond in ("-290308-12-21T19:59:05.224191Z", "+294247-01-10T04:00:54.775808Z"):
        assert bad("a TIMESTAMP", f'{{"a":"{beyond}"}}') == "a: not a timestamp at byte 5"


@pytest.mark.parametrize(
    "zone", ["right/UTC", "posix/UTC", "localtime", "Factory", "../UTC", "/etc/passwd", "x" * 99]
)
def test_what_only_this_machine_calls_a_zone_is_none(zone):
    assert bad("a TIMESTAMP", f'{{"a":"2024-01-01T00:00:00 {zone}"}}') == "a: not a timestamp at byte 5"


# What Spark takes besides plain JSON


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("a INT", "{'a':1}", 1),
        ("a STRING", "{'a':'it\\'s'}", "it's"),
        ("a INT", '{"\\u0061":1}', 1),
        ("a INT", '{"a":1,"a":2}', 2),
        ("a INT", '{"a":1,"a":null}', None),
        ("a STRUCT<b: ARRAY<INT>>", '{"a":{"b":[1]},"a":{"b":[2],"b":[3,4]}}', {"b": [3, 4]}),
        ("a INT", '{"A":1}', None),
        ("a STRING", '{"a":1.50}', "1.50"),
        ("a STRING", '{"a":{"b": [1, true]}}', '{"b": [1, true]}'),
        ("a STRING", '{"a":true}', "true"),
        ("a STRING", '{"a":""}', ""),
        ("a STRING", '{"a":"\\u0000"}', "\0"),
        ("a STRING", '{"a":"\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\"\\\\"}', '😀/\b\f\n\r\t"\\'),
        ("a STRING", '{"a":"\x7f 日本 👍"}', "\x7f 日本 👍"),
        ("a DOUBLE", '{"a":"Infinity"}', math.inf),
        ("a DOUBLE", '{"a":-Infinity}', -math.inf),
        ("a DOUBLE", '{"a":-INF}', -math.inf),
        ("a DOUBLE", '{"a":"+INF"}', math.inf),
        ("a DOUBLE", '{"a":1e400}', math.inf),
        ("a DOUBLE", '{"a":7}', 7.0),
        ("a FLOAT", '{"a":3.4028236e38}', math.inf),
        ("a TIMESTAMP", '{"a":-1}', datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("a BINARY", '{"a":"aGVsbG8="}', b"hello"),
        ("a BINARY", '{"a":""}', b""),
        ("a MAP<STRING, INT>", '{"a":{"x":1,"x":2}}', [("x", 1), ("x", 2)]),
        ("a ARRAY<INT>", '{"a":[]}', []),
        ("a ARRAY<INT>", '{"a":[null, 1]}', [None, 1]),
        ("`a\"b` INT", '{"a\\"b":1}', 1),
        ("`` INT".replace("``", "`é`"), '{"é":1}', 1),
    ],
)  # fmt: skip
def test_what_is_good(schema, text, value):
    assert good(schema, text, f" \n{text}\r\t ") == [value, value]


def test_bare_nan():
    for column in ("a DOUBLE", "a FLOAT"):
        assert all(math.isnan(v) for v in good(column, '{"a":NaN}', '{"a":"NaN"}', "{'a':'NaN'}"))


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("a INT", b"", "the value is empty"),
        ("a INT", b"  \n", "the value is empty"),
        ("a INT", b'{"a":1', "the value ends too early at byte 6"),
        ("a INT", b'{"a":1}}', "more bytes after the value's end at byte 7"),
        ("a INT", b'{"a":1} {"a":2}', "more bytes after the value's end at byte 8"),
        ("a INT", b'{"a":1,}', "not well-formed at byte 7"),
        ("a INT", b'{,"a":1}', "not well-formed at byte 1"),
        ("a INT", b'{"a":1 "b":2}', "not well-formed at byte 7"),
        ("a INT", b"{a:1}", "not well-formed at byte 1"),
        ("a INT", b'{"a" 1}', "not well-formed at byte 5"),
        ("a INT", b'{"b":[1,]}', "not well-formed at byte 8"),
        ("a INT", b'\xef\xbb\xbf{"a":1}', "not well-formed at byte 0"),
        ("a INT", b'{"a":\x0b1}', "a: not well-formed at byte 5"),
        ("a INT", b'{"b":tru}', "not well-formed at byte 5"),
        ("a INT", b'{"a":+1}', "a: not well-formed at byte 5"),
        ("a INT", b'{"a":0x10}', "not well-formed at byte 6"),
        ("a INT", b'{"a":01}', "a: not a number at byte 5"),
        ("a INT", b'{"a":-}', "a: not a number at byte 5"),
        ("a INT", b'{"a":"1"}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":""}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":1.0}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":1e2}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":true}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":[1]}', "a: a value of another type at byte 5"),
        ("a INT", b'{"a":2147483648}', "a: out of the column's range at byte 5"),
        ("a TINYINT", b'{"a":128}', "a: out of the column's range at byte 5"),
        ("a SMALLINT", b'{"a":-32769}', "a: out of the column's range at byte 5"),
        ("a BIGINT", b'{"a":9223372036854775808}', "a: out of the column's range at byte 5"),
        ("a BIGINT", b'{"a":-9223372036854775809}', "a: out of the column's range at byte 5"),
        ("a BIGINT", b'{"a":100000000000000000000000}', "a: out of the column's range at byte 5"),
        ("a TIMESTAMP", b'{"a":9223372036854775807}', "a: out of the column's range at byte 5"),
        ("a TIMESTAMP", b'{"a":1.5}', "a: a value of another type at byte 5"),
        ("a TIMESTAMP_NTZ", b'{"a":1}', "a: a value of another type at byte 5"),
        ("a TIMESTAMP_NTZ", b'{"a":"2020-01-01T00:00:00Z"}', "a: not a timestamp at byte 5"),
        ("a DATE", b'{"a":18000}', "a: a value of another type at byte 5"),
        ("a DOUBLE", b'{"a":"1.5"}', "a: a value of another type at byte 5"),
        ("a DOUBLE", b'{"a":1.}', "a: not a number at byte 5"),
        ("a DOUBLE", b'{"a":.5}', "a: not well-formed at byte 5"),
        ("a DOUBLE", b'{"a":nan}', "a: not well-formed at byte 5"),
        ("a DOUBLE", b'{"a":1' + b"0" * 1000 + b"}", "a: not a number at byte 5"),
        ("a DECIMAL(5,2)", b'{"a":1000}', "a: out of the column's range at byte 5"),
        ("a DECIMAL(5,2)", b'{"a":NaN}', "a: a value of another type at byte 5"),
        ("a DECIMAL(5,2)", b'{"a":"x"}', "a: not a number at byte 5"),
        ("a BOOLEAN", b'{"a":1}', "a: a value of another type at byte 5"),
        ("a BOOLEAN", b'{"a":"true"}', "a: a value of another type at byte 5"),
        ("a BINARY", b'{"a":"aGk"}', "a: not base64 at byte 5"),
        ("a STRUCT<b: INT>", b'{"a":[{"b":1}]}', "a: a value of another type at byte 5"),
        ("a STRUCT<b: INT>", b'{"a":{"b":"x"}}', "a.b: a value of another type at byte 10"),
        ("a ARRAY<INT>", b'{"a":[1,"x"]}', "a[]: a value of another type at byte 8"),
        ("a ARRAY<INT>", b'{"a":1}', "a: a value of another type at byte 5"),
        ("a MAP<STRING,INT>", b'{"a":{"x":"y"}}', "a: a value of another type at byte 10"),
        ("a STRING", b'{"a":"\xff"}', "a: not UTF-8 at byte 6"),
        ("a STRING", b'{"a":"\xed\xa0\x80"}', "a: not UTF-8 at byte 6"),
        ("a STRING", b'{"a":"\xc0\x80"}', "a: not UTF-8 at byte 6"),
        ("a STRING", b'{"a":"\xf4\x90\x80\x80"}', "a: not UTF-8 at byte 6"),
        ("a STRING", b'{"a":"\xe2\x82"}', "a: not UTF-8 at byte 6"),
        ("a STRING", b'{"a":"x\ny"}', "a: a control character in a string at byte 7"),
        ("a STRING", b'{"a":"x\0y"}', "a: a control character in a string at byte 7"),
        ("a STRING", b'{"a":"\\x"}', "a: an unknown or cut escape in a string at byte 6"),
        ("a STRING", b'{"a":"\\u12g4"}', "a: an unknown or cut escape in a string at byte 6"),
        ("a STRING", b'{"a":"\\ud800"}', "a: half of a surrogate pair at byte 6"),
        ("a STRING", b'{"a":"\\ud800\\u0041"}', "a: half of a surrogate pair at byte 6"),
        ("a STRING", b'{"a":"\\udc00"}', "a: half of a surrogate pair at byte 6"),
        ("a STRING", b'{"a":"x}', "a: the value ends too early at byte 8"),
        ("a STRING", b'{"a":[1,2}', "a: not well-formed at byte 9"),
        ("a STRING", b'{"b":"\xff"}', "not UTF-8 at byte 6"),
        ("a INT", b'{"b":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deeply at byte 1004"),
        ("a INT", b'{"b":' + b"[" * 100_000, "nested too deeply at byte 1004"),
        ("a INT", b"[]", "a value of another type at byte 0"),
        ("a INT", b"null", "a value of another type at byte 0"),
        ("a INT", b"hello", "not well-formed at byte 0"),
    ],
)  # fmt: skip
def test_what_is_bad(schema, value, reason):
    assert bad(schema, value) == reason


def test_a_bad_row_is_taken_back_whole_and_reasons_are_short():
    long_name = "n" * 5000
    decoded = decode(
        f"a ARRAY<STRUCT<s: STRING, m: MAP<STRING, ARRAY<INT>>>>, `{long_name}` INT",
        f'{{"a":[{{"s":"x","m":{{"k":[1,2]}}}}],"{long_name}":"{"v" * 5000}"}}',
        '{"a":[{"s":"y"}]}',
    )
    assert decoded.columns[0].to_pylist() == [None, [{"s": "y", "m": None}]]
    assert len(decoded.reasons[0]) < 300
    assert "vvv" not in decoded.reasons[0]


def test_a_thousand_levels_are_well():
    assert good("a INT", '{"b":' + "[" * 999 + "]" * 999 + ',"a":1}') == [1]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_values_are_any_binary_array_also_a_slice(kind):
    values = pa.array([f'{{"a":{i}}}' if i % 3 else None for i in range(100)], kind)
    decoder = value_decoder("json", "a INT")
    wanted = [i if i % 3 else None for i in range(100)]
    assert decoder.decode(values.slice(13, 50)).columns[0].to_pylist() == wanted[13:63]
    assert decoder.decode(values.slice(13, 0)).columns[0].to_pylist() == []
    assert decoder.decode(values).columns[0].to_pylist() == wanted
    with pytest.raises(TypeError, match="binary or string"):
        decoder.decode(pa.array([1]))


def test_columns_prunes_and_still_checks():
    schema = "a INT, b STRING, c DOUBLE"
    decoder = value_decoder("json", schema, {"Columns": "c, a"})
    assert decoder.schema.names == ["c", "a"]
    values = pa.array([b'{"a":1,"b":"x","c":2}', b'{"a":1,"b":5,"c":2}', b'{"a":1,"b":"\xff","c":2}'])
    decoded = decoder.decode(values)
    assert decoded.columns[0].to_pylist() == [2.0, 2.0, None]
    assert decoded.reasons == ["b: not UTF-8 at byte 12"]
    with pytest.raises(ValueError, match="names d, which the schema does not have: a, b, c"):
        value_decoder("json", schema, {"columns": "a,d"})
    with pytest.raises(ValueError, match="twice"):
        value_decoder("json", schema, {"columns": "a,a"})
    with pytest.raises(ValueError, match="valueFormat is json"):
        value_decoder("jsonl", schema)


# Numbers


def number(text: str) -> float:
    """Python's, except that the integer -0 is 0, as in Spark."""
    return 0.0 if text == "-0" else float(text)


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_pythons_bit_for_bit(value):
    texts = {repr(value), f"{value:.17g}", f"{value:.30e}", f"{value:.3e}", f"{value:.0f}"[:900]}
    assert [bits(v) for v in good("a DOUBLE", *[f'{{"a":{t}}}' for t in texts])] == [
        bits(number(t)) for t in texts
    ]


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
@example("9007199254740993")
@example("9007199254740992.9999999999999999999999")
@example("2.2250738585072011e-308")
@example("4.9406564584124654e-324")
@example("1.7976931348623158e308")
@example("0.000000000000000000000000000000000000000000000000001e60")
@example("-0")
@example("-0.0e-999999999999")
def test_numbers_of_any_form(text):
    assert [bits(v) for v in good("a DOUBLE", f'{{"a":{text}}}')] == [bits(number(text))]
    import numpy

    with numpy.errstate(over="ignore"):
        single = good("a FLOAT", f'{{"a":{text}}}')[0]
    # correctly rounded from the decimal: no other float is nearer
    exact = Decimal(text)
    if math.isfinite(single) and abs(exact) > Decimal("1e-37"):
        for other in (
            numpy.nextafter(numpy.float32(single), numpy.float32(sign)) for sign in (-math.inf, math.inf)
        ):
            assert abs(Decimal(single) - exact) <= abs(Decimal(float(other)) - exact) or math.isinf(other)


@settings(max_examples=200, deadline=None)
@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.integers(1, 38),
    st.data(),
)
def test_decimals_are_rounded_half_up_and_must_fit(text, precision, data):
    scale = data.draw(st.integers(0, precision))
    exact = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=400))
    fits = abs(exact.scaleb(scale, Context(prec=400))) < 10**precision
    column = f"a DECIMAL({precision},{scale})"
    for value in (f'{{"a":{text}}}', f'{{"a":"{text}"}}', f'{{"a":"+{text}"}}' if text[0] != "-" else "{}"):
        if value == "{}":
            continue
        if fits:
            assert good(column, value) == [exact]
        else:
            assert bad(column, value) == "a: out of the column's range at byte 5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".5", "0.50"),
        ("-.5", "-0.50"),
        ("1.", "1.00"),
        ("1.e1", "10.00"),
        ("1,234.5", "1234.50"),
        ("007", "7.00"),
        ("-00.126", "-0.13"),
        ("1e2", "100.00"),
        ("+0", "0.00"),
    ],
)
def test_decimals_in_strings(text, value):
    assert good("a DECIMAL(9,2)", f'{{"a":"{text}"}}') == [Decimal(value)]


# Dates and timestamps

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = [
    "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Casablanca", "PST",
    "Pacific/Apia",
]  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.datetimes(),
    st.sampled_from(["", "Z", "+01:00", "-08:30", "+0530", "+18", " UTC", "[Z]"[1:2], "GMT+2", "-3:05"]),
)
def test_timestamps_are_datetimes(at, zone):
    offset = {
        "": 0,
        "Z": 0,
        "+01:00": 60,
        "-08:30": -510,
        "+0530": 330,
        "+18": 1080,
        " UTC": 0,
        "GMT+2": 120,
        "-3:05": -185,
    }
    micros = (at.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) - offset[zone] * 60_000_000
    for separator in "T ":
        text = at.isoformat(sep=separator) + zone
        decoded = decode("a TIMESTAMP", f'{{"a":"{text}"}}')
        assert decoded.reasons == []
        assert decoded.columns[0].cast(pa.int64()).to_pylist() == [micros], text
    if not zone:
        assert good("a TIMESTAMP_NTZ", f'{{"a":"{at.isoformat()}"}}') == [at]
        assert good("a DATE", f'{{"a":"{at.isoformat()}"}}', f'{{"a":"{at.date()}"}}') == [at.date()] * 2


@pytest.mark.parametrize("name", ZONES)
@settings(max_examples=40, deadline=None)
@given(at=st.datetimes(datetime(1860, 1, 1), datetime(9990, 1, 1)), near=st.integers(0, 10**6))
def test_local_times_are_those_of_the_zone(name, at, near):
    zone = ZoneInfo({"PST": "America/Los_Angeles"}.get(name, name))
    local = at.replace(microsecond=0)
    # fold=0 is the earlier of two and, in a gap, the offset before it: what java.time does
    offset = local.replace(tzinfo=zone, fold=0).utcoffset()
    assert time_zone(name).to_utc(int((local.replace(tzinfo=UTC) - EPOCH).total_seconds())) == int(
        (local.replace(tzinfo=UTC) - offset - EPOCH).total_seconds()
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-03-31T02:30:00", "2024-03-31T01:30:00"),  # in the gap: an hour later
        ("2024-10-27T02:30:00", "2024-10-27T00:30:00"),  # twice: the earlier
        ("2024", "2023-12-31T23:00:00"),
        ("2024-7", "2024-06-30T22:00:00"),
        ("2024-07-01", "2024-06-30T22:00:00"),
        (" 2024-07-01 2:3:4.5678901 ", "2024-07-01T00:03:04.567890"),
        ("2024-07-01T10", "2024-07-01T08:00:00"),
        ("2024-07-01T10:11", "2024-07-01T08:11:00"),
        ("2024-07-01 10:11:12 America/New_York", "2024-07-01T14:11:12"),
        ("2024-07-01T10:11:12.America/New_York", "2024-07-01T14:11:12"),
        ("2024-07-01T10:11:12EST", "2024-07-01T15:11:12"),
        ("2024-07-01T10:11:12.123+01:02:03", "2024-07-01T09:09:09.123000"),
        ("+2024-07-01T10:11:12Z", "2024-07-01T10:11:12"),
    ],
)
def test_timestamps_in_a_session_zone(text, value):
    wanted = datetime.fromisoformat(value + "+00:00")
    assert good("a TIMESTAMP", f'{{"a":"{text}"}}', timeZone="Europe/Berlin") == [wanted]


@pytest.mark.parametrize(
    "text",
    ["", "x", "24", "2024-13-01", "2024-02-30", "2023-02-29", "2024-01-01T24:00:00", "2024-01-01T00:60:00",
     "2024-01-01T00:00:60", "2024-01-01T", "2024-01-01T00:00:00+19:00", "2024-01-01T00:00:00+18:01",
     "2024-01-01T00:00:00X", "2024-01-01T00:00:00Nowhere/City", "2024-01-01T00:00:00../etc/passwd",
     "2024-01-01T00:00Z", "2024/01/01", "2024-01-01T00:00:000", "20a4-01-01T00:00:00", "10:11:12",
     "T10:11:12", "300000-01-01T00:00:00", "2024-01-01T00:00:00.Z.", "2024-01-01T-1:00:00"],
)  # fmt: skip
def test_timestamps_that_are_none(text):
    assert bad("a TIMESTAMP", f'{{"a":"{text}"}}') == "a: not a timestamp at byte 5"


@pytest.mark.parametrize(
    ("text", "value"),
    [("2024", date(2024, 1, 1)), ("2024-2", date(2024, 2, 1)), ("2024-2-3", date(2024, 2, 3)),
     (" 2024-02-03T99:99", date(2024, 2, 3)), ("2024-02-03 x", date(2024, 2, 3)), ("365", date(1971, 1, 1)),
     ("-1", date(1969, 12, 31)), ("2000-02-29", date(2000, 2, 29))],
)  # fmt: skip
def test_dates(text, value):
    assert good("a DATE", f'{{"a":"{text}"}}') == [value]


@pytest.mark.parametrize(
    "text", ["", "x", "2024-", "2024-00-01", "2024-01-32", "1900-02-29", "2024-01-01x", "2024-1 T", "1e3"]
)
def test_dates_that_are_none(text):
    assert bad("a DATE", f'{{"a":"{text}"}}') == "a: not a date at byte 5"
