"""Filters that Spark pushes into a batch read: what they cut, and what stays with Spark."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import datasource

from kafkad.spark.planning import Range
from kafkad.spark.source import Filters

NAMES = (
    "EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual In IsNotNull IsNull LessThan LessThanOrEqual Not "
    "StringStartsWith"
)
if not hasattr(datasource, "EqualTo"):
    pytest.skip("PySpark 4.0 pushes no filters", allow_module_level=True)
(
    EqualNullSafe, EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, IsNull, LessThan, LessThanOrEqual,
    Not, StringStartsWith,
) = (getattr(datasource, name) for name in NAMES.split())  # fmt: skip

WHOLE = [Range("a", 0, 0, 100), Range("a", 1, 50, 60), Range("b", 0, 0, 10)]


class Times:
    """ListOffsets by time: offset n has n seconds."""

    def list(self, asked):
        return {where: -(-ms // 1000) if ms <= 99_000 else -1 for where, ms in asked.items()}


def cut(*filters, prefix=""):
    found = Filters()
    left = [each for each in filters if not found.take(each, prefix)]
    return [tuple(each) for each in found.cut(WHOLE, Times())], left


def test_comparisons_cut_ranges_and_are_done_with():
    assert cut(EqualTo(("partition",), 1)) == ([("a", 1, 50, 60)], [])
    assert cut(In(("topic",), ("b", "c"))) == ([("b", 0, 0, 10)], [])
    assert cut(GreaterThan(("offset",), 55)) == ([("a", 0, 56, 100), ("a", 1, 56, 60)], [])
    assert cut(GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 7)) == (
        [("a", 0, 5, 7), ("b", 0, 5, 7)], [],
    )  # fmt: skip
    assert cut(LessThanOrEqual(("partition",), 0), LessThanOrEqual(("offset",), 0)) == (
        [("a", 0, 0, 1), ("b", 0, 0, 1)], [],
    )  # fmt: skip
    assert cut(In(("offset",), (58, 3, 3)), IsNotNull(("offset",))) == (
        [("a", 0, 3, 4), ("a", 0, 58, 59), ("a", 1, 58, 59), ("b", 0, 3, 4)], [],
    )  # fmt: skip
    assert cut(EqualTo(("partition",), 0), EqualNullSafe(("partition",), 1)) == ([], [])


def test_what_cannot_be_cut_by_stays_with_spark():
    filters = [
        Not(EqualTo(("partition",), 1)),
        EqualTo(("value",), b"x"),
        IsNull(("offset",)),
        StringStartsWith(("topic",), "a"),
        GreaterThan(("topic",), "a"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("partition",), True),
    ]
    ranges, left = cut(*filters)
    assert ranges == [tuple(each) for each in WHOLE] and left == filters


def test_a_time_moves_the_start_and_is_checked_again():
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=7, microseconds=500)
    for kind in (GreaterThan, GreaterThanOrEqual, EqualTo):
        asked = kind(("timestamp",), since)
        assert cut(asked) == ([("a", 0, 7, 100), ("a", 1, 50, 60), ("b", 0, 7, 10)], [asked])
    late = GreaterThan(("timestamp",), since + timedelta(seconds=1000))
    assert cut(late) == ([], [late])
    for seconds in (0.001, 0.002, 2e9):  # a time of -1 would mean the end to brokers, and nothing to files
        old = GreaterThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC) - timedelta(seconds=seconds))
        assert cut(old) == ([tuple(each) for each in WHOLE], [old])
    before = LessThan(("timestamp",), since)
    assert cut(before) == ([tuple(each) for each in WHOLE], [before])  # a later record may be older


def test_the_prefix_tells_kafkas_columns_from_the_values():
    assert cut(EqualTo(("_partition",), 1), prefix="_") == ([("a", 1, 50, 60)], [])
    value = EqualTo(("partition",), 1)
    assert cut(value, prefix="_") == ([tuple(each) for each in WHOLE], [value])
