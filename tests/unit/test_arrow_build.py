"""Arrow arrays that grow in C: what pyarrow takes over is what was appended; no byte of it stays behind."""

import ctypes
import gc
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad._native.values.arrow_build import Columns

RECORDS = [
    ("key", "z", True),
    ("value", "z", True),
    ("topic", "u", False),
    ("partition", "i", False),
    ("offset", "l", False),
    ("timestamp", "tsu:UTC", False),
    ("timestampType", "i", False),
    ("headers", "+l", True, [("element", "+s", True, [("key", "u", False), ("value", "z", True)])]),
]

TYPES = {
    "b": (pa.bool_(), st.booleans()),
    "c": (pa.int8(), st.integers(-128, 127)),
    "s": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "g": (pa.float64(), st.floats(allow_nan=False)),
    "d:38,7": (pa.decimal128(38, 7), st.integers(-(10**38) + 1, 10**38 - 1)),
    "tdD": (pa.date32(), st.integers(-719162, 2932896)),
    "tsu:": (pa.timestamp("us"), st.integers(-(2**53), 2**53)),
    "tsu:Europe/Berlin": (pa.timestamp("us", tz="Europe/Berlin"), st.integers(-(2**53), 2**53)),
    "z": (pa.binary(), st.binary(max_size=40)),
    "u": (pa.string(), st.text(max_size=20)),
}


def taken(columns: Columns) -> pa.RecordBatch:
    batch = pa.record_batch(columns.take())
    batch.validate(full=True)
    return batch


def as_arrow(values: list, kind: pa.DataType) -> pa.Array:
    """What pyarrow itself builds of the integers that stand for dates, timestamps and decimals."""
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_decimal128(kind):
        raw = [None if v is None else (v & (2**128 - 1)).to_bytes(16, "little") for v in values]
        return pa.array(raw, pa.binary(16)).view(kind)
    return pa.array(values, kind)


def rows_of(kind: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.none() | kind, max_size=100)


@pytest.mark.parametrize("format", TYPES)
def test_every_type_is_what_pyarrow_builds(format):
    kind, values = TYPES[format]

    @settings(max_examples=15, deadline=None)
    @given(rows_of(values), rows_of(values), st.integers(0, 100))
    def check(first, second, kept):
        columns = Columns([("x", format, True)])
        for rows in (first, second):  # the second batch has fresh buffers
            for value in rows:
                columns.append([value])
            kept = min(kept, len(rows))
            columns.truncate(kept)
            for value in rows[kept:]:
                columns.append([value])
            batch = taken(columns)
            assert batch.schema == pa.schema([("x", kind)])
            assert batch.column(0).equals(as_arrow(rows, kind))
            assert batch.column(0).null_count == rows.count(None)

    check()


HEADERS = st.lists(
    st.none()
    | st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)}),
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.none() | HEADERS, st.booleans()), max_size=40))
def test_lists_of_structs_and_rows_taken_back(rows):
    element = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    columns = Columns([("headers", *RECORDS[7][1:]), ("n", "i", False)])
    kept = []
    for i, (headers, keep) in enumerate(rows):
        columns.append([headers, i])
        if keep:
            kept.append((headers, i))
        else:
            columns.truncate(len(columns) - 1)
    batch = taken(columns)
    assert batch.column(0).equals(pa.array([h for h, _ in kept], pa.list_(pa.field("element", element))))
    assert batch.column(1).to_pylist() == [i for _, i in kept]


def test_a_row_that_fails_in_its_middle_leaves_nothing():
    columns = Columns(RECORDS)
    good = [b"k", None, "t", 1, 2, 3, 0, [{"key": "a", "value": b"b"}]]
    columns.append(good)
    for bad in (
        [*good[:7], [{"key": "a", "value": b"b"}, {"key": "b"}]],
        [*good[:7], [{"key": "a", "value": b"b"}, 7]],
        [*good[:3], 2**31, *good[4:]],
        ["text", *good[1:]],
    ):
        with pytest.raises((KeyError, TypeError, OverflowError)):
            columns.append(bad)
    columns.append(good)
    batch = taken(columns)
    assert batch.num_rows == 2
    assert batch.to_pylist()[0] == batch.to_pylist()[1]


def test_the_types_are_those_of_sparks_kafka_source():
    schema = taken(Columns(RECORDS)).schema
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    assert schema.names == [name for name, *_ in RECORDS]
    assert schema.types == [
        pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", tz="UTC"),
        pa.int32(), pa.list_(pa.field("element", header)),
    ]  # fmt: skip
    assert [field.nullable for field in schema] == [True, True, False, False, False, False, False, True]
    assert schema == pa.schema(Columns(RECORDS))


def test_a_batch_outlives_the_columns_and_can_be_taken_up_once():
    columns = Columns([("a", "u", True)])
    for i in range(1000):
        columns.append([f"value {i}"])
    assert len(columns) == 1000
    assert columns.byte_count == sum(len(f"value {i}") + 4 for i in range(1000))
    finished = columns.take()
    assert (len(columns), len(finished)) == (0, 1000)
    batch = pa.record_batch(finished)
    with pytest.raises(ValueError, match="taken up already"):
        pa.record_batch(finished)
    del columns, finished
    gc.collect()
    batch.validate(full=True)
    assert batch.column(0)[999].as_py() == "value 999"


@pytest.mark.parametrize(
    "fields",
    [
        [("a", "U", True)],
        [("a", "d:39,0", True)],
        [("a", "d:5,6", True)],
        [("a", "+l", True)],
        [("a", "i", True, [("b", "i", True)])],
        [("a\0b", "i", True)],
        [("a", "+l", True, [("b", "?", True)])],
    ],
)
def test_formats_that_are_not_built_here_are_refused(fields):
    with pytest.raises(ValueError, match=r"\w"):
        Columns(fields)


def heap_in_use() -> int:
    """Bytes that malloc has handed out and not got back (glibc's mallinfo2: uordblks + hblkhd)."""
    libc = ctypes.CDLL(None)
    fields = ctypes.c_size_t * 10
    mallinfo2 = libc.mallinfo2
    mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [("x", fields)]})
    arena, _, _, _, mapped, _, _, in_use, _, _ = struct.unpack("10N", bytes(mallinfo2()))
    assert arena
    return in_use + mapped


@pytest.mark.parametrize("consumed", [True, False], ids=["taken up", "dropped"])
def test_no_buffer_stays_behind(consumed):
    value = bytes(10_000)

    def cycle() -> None:
        columns = Columns(RECORDS)
        for _ in range(3):
            for i in range(100):
                columns.append([None, value, "t", i, i, i, 0, [{"key": "a", "value": value[:100]}] * 3])
            finished = columns.take()
            if consumed:
                pa.record_batch(finished).slice(3, 4)
                pa.schema(columns)
        columns.append([None, value, "t", 0, 0, 0, 0, None])  # and an unfinished batch

    cycle()
    gc.collect()
    before = heap_in_use()
    for _ in range(30):
        cycle()
    gc.collect()
    assert heap_in_use() - before < 1_000_000  # one batch of 1 MB that stayed each time would be 90 MB
