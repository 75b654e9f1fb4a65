"""Options of the decoders: each takes effect or is refused in a sentence, also through format("kafkad")."""

import json
import math
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkad._native.values.text_patterns import Pattern
from kafkad.spark.options import read_options
from kafkad.values.decoder import value_decoder
from kafkad.values.options import DECODER_OPTIONS, FIXED, OPTIONS

TIMESTAMP = "timestampFormat"


def decoded(format: str, schema: str, *values: str | bytes, **options: str):
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return value_decoder(format, schema, options).decode(pa.array(encoded, pa.binary()))


def moment(text: str, pattern: str, zone: str = "UTC") -> datetime | None:
    """None: it is bad."""
    value = json.dumps({"a": text})
    found = decoded("json", "a TIMESTAMP", value, timestampFormat=pattern, timeZone=zone)
    assert found.reasons in ([], ["a: not a timestamp at byte 6"])
    return found.columns[0][0].as_py()


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yyyy-MM-dd HH:mm:ss", "2024-07-01 10:11:12", utc(2024, 7, 1, 10, 11, 12)),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2024-07-01t10:11:12", utc(2024, 7, 1, 10, 11, 12)),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2024-07-01T10:11:12.5", utc(2024, 7, 1, 10, 11, 12, 500000)),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2024-07-01T10:11:12+02:00", utc(2024, 7, 1, 8, 11, 12)),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2024-07-01T10:11:12.25Z", utc(2024, 7, 1, 10, 11, 12, 250000)),
        ("yyyyMMddHHmmss", "20240701101112", utc(2024, 7, 1, 10, 11, 12)),
        ("yyyyMMddHHmmss.SSSSSSSSS", "20240701101112.123456789", utc(2024, 7, 1, 10, 11, 12, 123456)),
        ("dd/MMM/yyyy:HH:mm:ss Z", "17/May/2015:10:05:03 +0130", utc(2015, 5, 17, 8, 35, 3)),
        ("MMMM d, yyyy h:mm a", "july 4, 2024 12:05 am", utc(2024, 7, 4, 0, 5)),
        ("MMMM d, yyyy h:mm a", "July 4, 2024 1:05 PM", utc(2024, 7, 4, 13, 5)),
        ("d.M.yy K:m a", "1.2.03 0:4 PM", utc(2003, 2, 1, 12, 4)),
        ("dd.MM.yyyy kk", "01.02.2003 24", utc(2003, 2, 1)),
        ("yyyy/MM/dd HH:mm:ss VV", "2024/07/01 10:00:00 Europe/Berlin", utc(2024, 7, 1, 8)),
        ("yyyy/MM/dd HH:mm:ss z", "2024/07/01 10:00:00 PDT", utc(2024, 7, 1, 17)),
        ("[yyyy-MM-dd][dd.MM.yyyy]", "01.02.2003", utc(2003, 2, 1)),
        ("[yyyy-MM-dd][dd.MM.yyyy]", "2003-02-01", utc(2003, 2, 1)),
        ("yyyy-MM-dd[ HH[:mm[:ss", "2003-02-01 04:05", utc(2003, 2, 1, 4, 5)),
        ("HH:mm", "04:05", utc(1970, 1, 1, 4, 5)),
        ("yyyy 'o''clock' ''HH", "2024 O'CLOCK '05", utc(2024, 1, 1, 5)),
        ("yyyy年MM月dd日", "2024年07月01日", utc(2024, 7, 1)),
        ("yyyy-MM-dd X", "2024-07-01 +01", utc(2024, 6, 30, 23)),
        ("yyyy-MM-dd x", "2024-07-01 +00", utc(2024, 7, 1)),
        ("yyyy-MM-dd XXXXX", "2024-07-01 -00:00:30", utc(2024, 7, 1, 0, 0, 30)),
    ],
)
def test_a_text_of_the_pattern_is_its_moment(pattern, text, expected):
    assert moment(text, pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd", "2024-7-1"),
        ("yyyy-MM-dd", "2024-02-30"),
        ("yyyy-MM-dd", "2024-13-01"),
        ("yyyy-MM-dd", "12024-01-01"),
        ("yyyy-MM-dd", "+2024-01-01"),
        ("yyyy-MM-dd", "-0000-01-01"),
        ("yyyy-MM-dd", " 2024-01-01"),
        ("yyyy-MM-dd", "2024-01-01 "),
        ("yyyy-MM-dd", "2024-01"),
        ("yyyy-MM-dd", "x"),
        ("d", "99999999999999999999"),
        ("d", "-1"),
        ("HH", "24"),
        ("hh a", "13 AM"),
        ("kk", "00"),
        ("ss", "60"),
        ("XXX yyyy", "+0100 2024"),
        ("XXX yyyy", "+18:01 2024"),
        ("x yyyy", "Z 2024"),
        ("VV yyyy", "PST 2024"),
        ("VV yyyy", "../../etc/passwd 2024"),
        ("VV yyyy", "Nowhere/Town 2024"),
        ("z yyyy", "XYZ 2024"),
        ("yyyy[ yyyy]", "2024 2025"),
        ("yyyyMMddHHmmssSSS", "20240701101112123"),  # as in java.time
        ("yyyy-MM-dd HH", "2024-01-01 -1"),
        ("y-M-d", "999999999-1-1"),
        ("y-M-d", "1000000000-1-1"),
    ],
)
def test_a_text_that_is_not_of_the_pattern_is_bad(pattern, text):
    assert moment(text, pattern) is None


def test_a_pattern_without_a_zone_means_the_sessions():
    assert moment("2024-07-01 10", "yyyy-MM-dd HH", "Europe/Berlin") == utc(2024, 7, 1, 8)
    assert moment("2024-03-31 02", "yyyy-MM-dd HH", "Europe/Berlin") == utc(2024, 3, 31, 1)  # in the gap
    before = decoded("json", "a DATE", '{"a":"-0004-01-01"}', dateFormat="yyyy-MM-dd")
    assert before.columns[0].cast(pa.int32()).to_pylist() == [-720989]  # a year that Python does not have


def test_each_kind_of_column_has_its_pattern_and_csv_has_them_too():
    schema = "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE"
    options = {
        TIMESTAMP: "dd.MM.yyyy HH:mm", "timestampNTZFormat": "yyyyMMdd HHmm", "dateFormat": "M/d/yyyy",
    }  # fmt: skip
    row = [utc(2024, 7, 1, 10, 5), datetime(2024, 7, 2, 3, 4), date(2024, 7, 3)]
    text = {"t": "01.07.2024 10:05", "n": "20240702 0304", "d": "7/3/2024"}
    for format, value in (("json", json.dumps(text)), ("csv", ",".join(text.values()))):
        found = decoded(format, schema, value, **options)
        assert [column[0].as_py() for column in found.columns] == row
        bare = decoded(format, schema, value)
        assert bare.bad_rows == [0]
    nested = decoded("json", "a ARRAY<STRUCT<d: DATE>>", '{"a":[{"d":"7/3/2024"},{}]}', dateFormat="M/d/yyyy")
    assert nested.columns[0].to_pylist() == [[{"d": date(2024, 7, 3)}, {"d": None}]]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("YYYY-MM-dd", "the letter Y is not understood"),
        ("uuuu-MM-dd", "the letter u is not understood"),
        ("yyyy-DDD", "the letter D is not understood"),
        ("EEE, d MMM yyyy", "the letter E is not understood"),
        ("yyyy-MM-dd'T", "a quote is not closed"),
        ("yyyy]", "] stands without its ["),
        ("yyyy{", "{ is kept for later"),
        ("", "no letter of a date or a time"),
        ("'yyyy'", "no letter of a date or a time"),
        ("yyyyyyy", "y stands at most six times"),
        ("MMMMM", "M stands at most four times"),
        ("ddd", "d stands at most twice"),
        ("SSSSSSSSSS", "S stands at most nine times"),
        ("hh:mm", "h and K go together with a"),
        ("HH a", "h and K go together with a"),
        ("HH kk", "H and k are two kinds of hours"),
        ("XXXXXX", "XXXXXX is not understood"),
        ("ZZZZ", "ZZZZ is not understood"),
        ("VV XXX", "several kinds of zones"),
        ("zzzz", "zzzz is not understood"),
        ("[" * 9 + "yyyy", "more than 8 optional parts"),
        ("-" * 300 + "y", "more than 200 parts"),
    ],
)
def test_patterns_that_are_not_understood_are_refused_by_the_letter(pattern, why):
    with pytest.raises(ValueError) as caught:
        value_decoder("json", "a TIMESTAMP", {TIMESTAMP: pattern})
    assert str(caught.value).startswith(f"option timestampFormat {pattern!r}: ")
    assert why in str(caught.value)


def test_a_zone_in_a_timestamp_without_one_is_refused():
    with pytest.raises(ValueError, match="timestampNTZFormat 'yyyy XXX': it has a zone"):
        value_decoder("csv", "a TIMESTAMP_NTZ", {"timestampNTZFormat": "yyyy XXX"})


PARTS = st.sampled_from(
    ["yyyy", "yy", "y", "MM", "M", "MMM", "MMMM", "dd", "d", "HH", "H", "mm", "ss", "SSS", "SSSSSS", "XXX",
     "X", "Z", "-", ":", " ", "'T'", "''", "[", "]", "年", "VV", "z", "a", "hh", "S"]
)  # fmt: skip
TEXTS = st.text(st.sampled_from("0123456789-+:. TZzJulMayAPm/年[]'EuropBrlin_"), max_size=40) | st.binary(
    max_size=40
)


def check_any_pattern(parts, texts) -> None:
    try:
        pattern = Pattern("".join(parts))
    except ValueError:
        return
    options = {TIMESTAMP: pattern.text, "dateFormat": pattern.text, "sep": "\x01", "quote": ""}
    decoder = value_decoder("csv", "t TIMESTAMP", options)
    dates = value_decoder("csv", "t DATE", options)
    values = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    for one in (decoder, dates):
        found = one.decode(values)
        assert len(found.columns[0]) == len(texts)
        found.columns[0].validate(full=True)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=14), st.lists(TEXTS, max_size=6))
def test_any_text_by_any_pattern_is_good_or_bad(parts, texts):
    check_any_pattern(parts, texts)


@settings(max_examples=200, deadline=None)
@example(datetime(968, 1, 1, microsecond=9680), ("d MMM yyyy hh:mm:ss.SSSSSS a", "%d %b %Y %I:%M:%S.%f %p"))
@given(
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
    st.sampled_from(
        [
            ("yyyy-MM-dd HH:mm:ss.SSSSSS", "%Y-%m-%d %H:%M:%S.%f"),
            ("yyyyMMdd'T'HHmmss.SSSSSS", "%Y%m%dT%H%M%S.%f"),
            ("d MMM yyyy hh:mm:ss.SSSSSS a", "%d %b %Y %I:%M:%S.%f %p"),
            ("MMMM/dd/yyyy HH:mm:ss.SSSSSSSSS", "%B/%d/%Y %H:%M:%S.%f"),
        ]
    ),
)
def test_what_strftime_writes_is_read(at, pair):
    pattern, theirs = pair
    text = at.strftime(theirs.replace("%Y", f"{at.year:04d}"))  # the C library writes 968 as it is
    assert moment(text, pattern) == at.replace(tzinfo=UTC)


# Options that are none


@pytest.mark.parametrize("format", OPTIONS)
@pytest.mark.parametrize("name", FIXED)
def test_options_of_sparks_functions_say_what_is_so_or_are_refused(format, name):
    if name in OPTIONS[format]:
        return
    from kafkad.values.options import checked

    values, why = FIXED[name]
    for value in values:
        assert checked(format, {name.upper(): value.upper() if value.isalpha() else value}) == {}
    with pytest.raises(ValueError) as caught:
        checked(format, {name.lower(): "something"})
    assert name in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("format", OPTIONS)
def test_an_option_of_another_format_is_refused(format):
    from kafkad.values.options import checked

    for name in DECODER_OPTIONS:
        if name in FIXED:
            continue
        if name in OPTIONS[format]:
            assert checked(format, {name.upper(): "x"}) == {name.lower(): "x"}
        else:
            with pytest.raises(
                ValueError, match=rf"^option {name} is one of valueFormat .*, not of {format}$"
            ):
                checked(format, {name.lower(): "x"})
    with pytest.raises(ValueError, match="option surprise is not known to valueFormat"):
        checked(format, {"surprise": "x"})


def test_a_reader_takes_them_all_to_the_decoder_and_none_is_passed_over():
    source = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    typed = {**source, "valueFormat": "json", "valueSchema": "a INT"}
    for name in DECODER_OPTIONS:
        read = read_options({**typed, name.lower(): "x"}, streaming=False)
        assert read.decoder == ((name, "x"),)
        with pytest.raises(ValueError, match=f"option {name} is for typed values: say valueFormat"):
            read_options({**source, name.lower(): "x"}, streaming=False)
    with pytest.raises(ValueError, match=r"option timestampformt is not known .did you mean timestampFormat"):
        read_options({**typed, "timestampFormt": "x"}, streaming=False)


def test_the_source_refuses_before_anything_is_read():
    from kafkad.spark.source import parsed, result_layout

    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "valueFormat": "json",
        "valueSchema": "a INT",
    }
    for option, value, why in [
        ("mode", "PERMISSIVE", "option mode other than 'failfast' is not supported for valueFormat json"),
        ("sep", ";", "option sep is one of valueFormat csv, not of json"),
        ("dateformat", "EEE", "the letter E is not understood"),
        ("timezone", "Nowhere", "no time zone is called 'Nowhere'"),
    ]:
        with pytest.raises(ValueError, match=why):
            result_layout(parsed({**given, option: value}, None))


def test_flags_are_true_or_false():
    from kafkad.values.options import flag

    assert flag({"enums.as.ints": " TRUE "}, "enums.as.ints")
    with pytest.raises(ValueError, match=r"option enums.as.ints is true or false, not 'yes'"):
        flag({"enums.as.ints": "yes"}, "enums.as.ints")


def test_csv_words_and_separators():
    found = decoded(
        "csv", "a DOUBLE", "nix", "viel", "-viel", "NaN", "-Infinity", "Inf",
        nanValue="nix", positiveInf="viel", negativeInf="-viel",
    )  # fmt: skip
    numbers = found.columns[0].to_pylist()
    assert math.isnan(numbers[0])
    assert math.isnan(numbers[3])
    assert [numbers[i] for i in (1, 2, 4)] == [math.inf, -math.inf, -math.inf]
    assert found.bad_rows == [5]  # which is no number of Java's
    for sep, value in (("\\t", "1\t2"), ("\t", "1\t2"), ("\\\\", "1\\2"), ("||", "1||2")):
        assert decoded("csv", "a INT, b INT", value, sep=sep).columns[1].to_pylist() == [2]
    for sep in ("", "\\", "\\x"):
        with pytest.raises(ValueError, match="option sep is"):
            value_decoder("csv", "a INT", {"sep": sep})
