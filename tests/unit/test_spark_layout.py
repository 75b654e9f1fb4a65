"""Columns of the Spark source's result, and what becomes of bad values, without Spark or a broker."""

import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kafkad.spark import reading
from kafkad.spark.layout import KAFKA, layout_of
from kafkad.spark.options import read_options
from kafkad.values.decoder import Decoded

KAFKAS = ["key", "topic", "partition", "offset", "timestamp", "timestampType"]
VALUE = pa.schema([("n", pa.int64()), ("word", pa.string())])


def given(**options):
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    return read_options(base | options, streaming=False)


def typed(**options):
    return given(valueFormat="json", valueSchema="n BIGINT, word STRING", **options)


def names(options, value=VALUE):
    return layout_of(options, value if options.typed else None).schema.names


def test_raw_columns_are_kafkas():
    assert names(given()) == ["key", "value", *KAFKAS[1:]]
    assert names(given(includeHeaders="true")) == ["key", "value", *KAFKAS[1:], "headers"]


def test_value_makes_room_for_typed_columns():
    assert names(typed()) == ["n", "word", *KAFKAS]
    assert names(typed(metadataPrefix="_")) == ["n", "word", *("_" + name for name in KAFKAS)]
    assert names(typed(badRecords="column")) == ["n", "word", *KAFKAS, "_error", "_raw"]


def test_columns_choose_of_both_kinds():
    assert names(typed(columns="offset, word")) == ["word", "offset"]
    assert names(given(columns="VALUE")) == ["value"]
    for wrong, told in (("wrd", "(did you mean word?)"), ("value", "which the result does not have")):
        with pytest.raises(ValueError, match="option columns names " + wrong) as refused:
            names(typed(columns=wrong))
        assert told in str(refused.value)


@pytest.mark.parametrize("name", ["timestamp", "Offset", "KEY"])
def test_a_name_that_both_have_is_refused_with_the_way_out(name):
    value = pa.schema([(name, pa.string())])
    with pytest.raises(ValueError, match="say option metadataPrefix"):
        layout_of(typed(), value)
    assert layout_of(typed(metadataPrefix="_"), value).schema.names[0] == name
    assert names(typed(columns=name), pa.schema([("n", pa.int64())])) == [
        {"KEY": "key", "Offset": "offset"}.get(name, name)
    ]


def test_a_column_that_is_not_wanted_does_not_clash():
    value = pa.schema([("n", pa.int64()), ("timestamp", pa.string())])
    assert layout_of(typed(columns="n,offset"), value).schema.names == ["n", "offset"]


# -- values -------------------------------------------------------------------------------------------------


class Lengths:
    """A decoder whose columns are a value's length and text; what begins with ! is bad."""

    schema = VALUE

    def decode(self, values):
        texts = [None if value is None else value.decode() for value in values.to_pylist()]
        bad = [row for row, text in enumerate(texts) if text is not None and text.startswith("!")]
        good = [None if row in bad else text for row, text in enumerate(texts)]
        columns = [
            pa.array([None if text is None else len(text) for text in good], pa.int64()),
            pa.array(good),
        ]
        return Decoded(len(texts), columns, bad, [f"row {row}" for row in bad])


def batch_of(*values):
    count = len(values)
    columns = {
        "key": [b"k"] * count,
        "value": list(values),
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": list(range(10, 10 + count)),
        "timestamp": [datetime(2024, 1, 1, tzinfo=UTC)] * count,
        "timestampType": [0] * count,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(column, KAFKA[name]) for name, column in columns.items()],
        schema=pa.schema(list(KAFKA.items())),
    )


@pytest.fixture
def composed(monkeypatch):
    monkeypatch.setattr(reading, "decoder_of", lambda options, columns=None: Lengths())

    def compose(options, *values):
        layout = layout_of(options, VALUE)
        batches = list(reading.compose(options, layout, iter([batch_of(*values)])))
        assert all(batch.schema == layout.schema for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    return compose


def test_a_tombstone_is_a_row_of_nulls_and_not_bad(composed):
    rows = composed(typed(columns="n,word,offset"), b"one", None, b"three")
    assert rows == [
        {"n": 3, "word": "one", "offset": 10},
        {"n": None, "word": None, "offset": 11},
        {"n": 5, "word": "three", "offset": 12},
    ]


def test_a_bad_value_fails_with_its_place(composed):
    with pytest.raises(ValueError) as bad:
        composed(typed(), b"one", b"!", b"!!")
    assert str(bad.value).startswith(
        "the value of t-3 at offset 11 is not json of valueSchema: row 1 (and 1 more in its batch); option "
    )


def test_a_bad_value_is_null_or_told_beside(composed):
    assert composed(typed(badRecords="null", columns="n,offset"), b"!") == [{"n": None, "offset": 10}]
    rows = composed(typed(badRecords="column", columns="n,_error,_raw"), b"a", b"!x", None)
    assert rows == [
        {"n": 1, "_error": None, "_raw": None},
        {"n": None, "_error": "row 1", "_raw": b"!x"},
        {"n": None, "_error": None, "_raw": None},
    ]


def test_dead_letters_are_sent_before_the_rows_go_on(composed, monkeypatch):
    sent = []
    monkeypatch.setattr(
        reading.BadRecords, "_send", lambda self, batch, rows, reasons: sent.append((rows, reasons))
    )
    rows = composed(typed(badRecords="dlq:dead", columns="n"), b"!", b"ab", b"!")
    assert rows == [{"n": 2}] and sent == [([0, 2], ["row 0", "row 2"])]
    assert composed(typed(badRecords="dlq:dead", columns="n"), b"!") == []


def test_values_that_nobody_wants_are_not_decoded(composed):
    assert composed(typed(columns="offset"), b"!", b"a") == [{"offset": 10}, {"offset": 11}]


# -- what PySpark's search imports --------------------------------------------------------------------------


def test_what_pyspark_imports_is_light():
    told = subprocess.run(
        [sys.executable, "-c", "import sys, pyspark_kafkad; print(*sys.modules)"],
        capture_output=True,
        text=True,
    )
    loaded = set(told.stdout.split())
    assert "pyspark_kafkad" in loaded
    assert not loaded & {"pyarrow", "kafkad", "kafkad.spark", "kafkad.client"}


def test_a_worker_without_pyarrow_says_which_python_it_is(monkeypatch):
    import pyspark_kafkad

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError) as told:
        pyspark_kafkad.DefaultSource({}).schema()
    assert str(told.value).startswith(f"Spark runs its Python code with {sys.executable} (Python ")
    assert "cannot import pyarrow: set PYSPARK_PYTHON" in str(told.value)
