"""Odd values through Spark's from_json and from_csv and through our decoders: the same, or listed here.

Spark tells a bad value by its text in the column of corrupt records: there FAILFAST would have failed."""

import pyarrow as pa
import pytest

from kafkad.values.decoder import value_decoder
from tests.sparks import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(180)]
ZONE = "Europe/Berlin"

# By schema: values of the field a.
FIELD = {
    "a INT": [
        "1",
        "-0",
        "-1",
        "null",
        '"1"',
        '""',
        "1.0",
        "1e2",
        "true",
        "[1]",
        "{}",
        "2147483647",
        "2147483648",
        "01",
        "-",
        "+1",
        "0x10",
        '1,"a":2',
        '1,"a":null',
        "1,",
        '1,"b":01',
        '1,"b":"\\x"',
        "NaN",
    ],
    "a TINYINT": ["-128", "-129", "127", "256"],
    "a SMALLINT": ["32767", "32768"],
    "a BIGINT": ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" * 40],
    "a FLOAT": ["0.1", "16777217", "3.4028236e38", "1e-50", '"NaN"', "NaN", '"1.5"'],
    "a DOUBLE": [
        "0.1",
        "-0",
        "-0.0",
        "4.9e-324",
        "1e400",
        "-1e400",
        "9007199254740993",
        "1.",
        ".5",
        "1" * 999,
        "1" * 1001,
        "NaN",
        "-NaN",
        "Infinity",
        "-Infinity",
        "+Infinity",
        "-INF",
        "+INF",
        "INF",
        '"NaN"',
        '"nan"',
        '"Infinity"',
        '"INF"',
        '"+INF"',
        '"-INF"',
        '"-Infinity"',
        '"1.5"',
        '""',
        "true",
    ],
    "a BOOLEAN": ["true", "false", "True", '"true"', "1", '""', "tru"],
    "a STRING": [
        '""',
        '"x"',
        "'it\\'s'",
        '"it\\\'s"',
        '"\\u00e9\\ud83d\\ude00"',
        '"\\/\\b\\f\\n\\r\\t\\"\\\\"',
        '"\\u0000"',
        '"日本 👍"',
        '"\x7f"',
        '"\x80"',
        '"x\ny"',
        '"x\0y"',
        '"\\x"',
        '"\\u12g4"',
        '"\\v"',
        "7",
        "true",
        "null",
        "12",
        "[1,2]",
        '{"b":[true,null,"x"]}',
        '"x',
    ],
    "a DECIMAL(9,2)": [
        "1",
        "1.005",
        "-1.005",
        "1234567.89",
        "9999999.994",
        "9999999.995",
        "1e6",
        "1e7",
        "1e-9",
        "NaN",
        '"1.5"',
        '"1,234.5"',
        '".5"',
        '"-.5"',
        '"1."',
        '" 1"',
        '"+7"',
        '"1.."',
        '"1.2."',
        '"1e5."',
        '"-.e1"',
        '"1.e2"',
        '"-,1"',
        "1e-9999999999",
        "0e9999999999",
        '"1e-9999999999"',
        '"007"',
        '"x"',
        '"."',
        '""',
        "true",
        "0e5",
    ],
    "a BINARY": ['"aGk="', '"aGk"', '"aG k="', '"aGk\\n="', '"a-_k"', '""', "5"],
    "a DATE": [
        '"2024"',
        '"2024-2"',
        '"2024-2-3"',
        '" 2024-02-03T99:99"',
        '"2024-02-03 x"',
        '"2024-02-30"',
        '"1900-02-29"',
        '"365"',
        '" 365"',  # HUNTS U6
        '"365 "',
        '"\\t-5"',
        '" 2024-02-03 "',
        '"-5"',
        '"12345678"',
        '"99999-01-01"',
        '"18000"',
        '"2024-"',
        '"x"',
        '""',
        "5",
        '"1e3"',
    ],
    "a TIMESTAMP": [
        '"2024-03-31T02:30:00"',
        '"2024-10-27T02:30:00"',
        '"2024"',
        '"2024-7"',
        '"2024-07-01"',
        '"2024-07-01T10"',
        '"2024-07-01T10:11"',
        '"2024-07-01T10:11Z"',
        '" 2024-07-01 2:3:4.5678901 "',
        '"2024-01-01T00:00:00.1234567Z"',
        '"2024-07-01 10:11:12 America/New_York"',
        '"2024-07-01T10:11:12.America/New_York"',
        '"2024-07-01T10:11:12EST"',
        '"2024-07-01T10:11:12 ROC"',
        '"2024-07-01T10:11:12 localtime"',
        '"2024-07-01T10:11:12 right/UTC"',
        '"2024-07-01T10:11:12 Factory"',
        '"-290308-12-21T19:59:05.224192Z"',
        '"-290308-12-21T19:59:05.224191Z"',
        '"+294247-01-10T04:00:54.775807Z"',
        '"+294247-01-10T04:00:54.775808Z"',
        '"2024-07-01T10:11:12PST"',
        '"2024-07-01T10:11:12+1"',
        '"2024-07-01T10:11:12+1:2"',
        '"2024-07-01T10:11:12+0530"',
        '"2024-07-01T10:11:12.123+01:02:03"',
        '"2024-07-01T10:11:12GMT+2"',
        '"2024-07-01T10:11:12UTC"',
        '"2024-07-01T10:11:12+18:00"',
        '"2024-07-01T10:11:12+18:01"',
        '"2024-07-01T10:11:12X"',
        '"2024-01-01T24:00:00"',
        '"2024-01-01T00:60:00"',
        '"2024-01-01T00:00:60"',
        '"2024-01-01T"',
        '"2024-02-30T00:00:00"',
        '"2024/01/01"',
        '"0001-01-01T00:00:00Z"',
        '"-0001-01-01T00:00:00Z"',
        '"0000-01-01T00:00:00"',
        '"1700-01-01T00:00:00"',
        '"99999-01-01"',
        '"300000-01-01T00:00:00"',
        '"+2024-07-01T10:11:12Z"',
        '"2024-01-01T00:00:00GMT-08:00"',
        "1",
        "-1",
        "1.5",
        '""',
        '"x"',
        "true",
    ],
    "a TIMESTAMP_NTZ": ['"2024-03-31T02:30:00"', '"2024-01-01"', '"2024-01-01T00:00:00Z"', "1", '""'],
    "a STRUCT<b: INT, c: STRING>": [
        '{"b":1}',
        '{"b":"x"}',
        "{}",
        "[]",
        '""',
        "null",
        '{"c":"x","b":2,"d":[]}',
    ],
    "a ARRAY<INT>": ["[]", "[1,null]", '[1,"x"]', "1", '""', "{}", "[1,]"],
    "a ARRAY<STRUCT<b: INT>>": ['[{"b":1},null,{}]', '{"b":1}'],
    "a MAP<STRING, INT>": ['{"x":1,"y":null}', '{"x":"1"}', "[]", "{}"],
}
WHOLE = [
    "{}",
    ' \t\r\n{ "a" : 1 } \n',
    "{'a':1}",
    '{"\\u0061":1}',
    '{"A":1}',
    "{a:1}",
    '{"a" 1}',
    '{"a":1 "b":2}',
    '{,"a":1}',
    '{"a":1',
    "[1]",
    '[{"a":1}]',
    "null",
    "1",
    "hello",
    '{"a":1,"b":{"c":[1,{"d":null}]}}',
    '{"b":[1,]}',
    '{"b":tru}',
    '{"a":\x0b1}',
    '\ufeff{"a":1}',
    '{"b":' + "[" * 998 + "]" * 998 + "}",
    '{"b":' + "[" * 1000 + "]" * 1000 + "}",
]
DEVIATIONS = {  # (schema, value): what we make of it and Spark does not; "bad" of what Spark takes
    ("a INT", ""): "bad",
    ("a INT", "  \n"): "bad",
    ("a INT", '{"a":1}}'): "bad",
    ("a INT", '{"a":1} {"a":2}'): "bad",
    ("a INT", '{"b":"\\ud800","a":1}'): "bad",
    ("a INT", b'{"b":"\xff","a":1}'): "bad",
    ("a TINYINT", '{"a":128}'): "bad",
    ("a TINYINT", '{"a":255}'): "bad",
    ("a STRING", b'{"a":"\xff"}'): "bad",
    ("a STRING", b'{"a":"\xed\xa0\x80"}'): "bad",
    ("a STRING", '{"a":"\\ud800"}'): "bad",
    ("a STRING", '{"a":"\\udc00x"}'): "bad",
    ("a STRING", '{"a":1.50}'): "1.50",
    ("a STRING", '{"a":{"b": 1e2}}'): '{"b": 1e2}',
    ("a TIMESTAMP", '{"a":9223372036854775807}'): "bad",
    ("a TIMESTAMP", '{"a":"10:11:12"}'): "bad",
    ("a TIMESTAMP", '{"a":"T10:11:12"}'): "bad",
    ("a TIMESTAMP", '{"a":"2024-01-01T00:00GMT"}'): "bad",
}
CSV = {
    "a INT, b STRING": [
        "1,x",
        "1",
        "1,x,y",
        "1,x,",
        ",",
        '1,""',
        "+1,x",
        "007,x",
        " 1,x",
        "1.0,x",
        "x,x",
        '"1","x,y"',
        '1,"a\\"b"',
        '1,"a\\\\"',
        '1,"a\\nb"',
        '1,x"y',
        '1, "z"',
        "1,日本",
        "2147483648,x",
        '1,"a\\\\\\"b"',
        "1,x\\",
        "-,x",
        "1,\t",
        "1,x\n2,y",
        '1,"x\ny"',
    ],
    "a DOUBLE": [
        "1",
        ".5",
        "5.",
        "1e3",
        "NaN",
        "Inf",
        "-Inf",
        "Infinity",
        "-Infinity",
        "nan",
        "x",
        " 1 ",
        "1e400",
        "007.5",
    ],
    "a BOOLEAN": ["true", "FALSE", "True", "1", "t"],
    "a DECIMAL(9,2)": ["1.005", '"1,234.5"', ".5", "1e8", "x", "+1"],
    "a DATE": ["2024-01-02", "2024", "2024-1", "365", "2024-02-30", "2024-01-02T1", "x"],
    "a TIMESTAMP": [
        "2024-07-01 10:00:00",
        "2024-07-01T10:00:00Z",
        "2024",
        "x",
        "1",
        "2024-07-01T10:00:00 America/New_York",
    ],
}
NULLS = ["3,", "3,NA", ",3", '3,""', '3,"NA"', "NA,NA", " NA,3", "3, "]
CSV_NULLS = {
    ("a INT, b INT", "nullValue", "NA"): NULLS,
    ("a STRING, b STRING", "nullValue", "NA"): NULLS,
    ("a STRING, b STRING", "nullValue", ""): NULLS,
}
CSV_DEVIATIONS = {
    ("a INT, b STRING", "1,x\r\n"): "x",
    ("a INT, b STRING", "1,x\r\r\n"): "x\r",
    ("a INT, b STRING", "1,x\n"): "x",
    ("a INT, b STRING", "1,x\ny"): "bad",
    ("a INT, b STRING", '"","'): "bad",
    ("a INT, b STRING", '1,"x'): "bad",
    ("a INT, b STRING", '1,"a""b"'): "bad",
    ("a DOUBLE", "1.5f"): "bad",
    ("a DOUBLE", "0x1p3"): "bad",
}


AT = "2024-07-01"
STAMPS = {  # by timestampFormat
    "yyyy-MM-dd HH:mm:ss": [
        f"{AT} 10:11:12", f"{AT} 24:00:00", f"{AT} 10:60:00", f"{AT} 1:2:3", f"{AT} 10:11:12 ",
        f" {AT} 10:11:12",
        "2024-02-30 00:00:00", "2024-03-31 02:30:00", "2024-10-27 02:30:00", "1500-02-28 00:00:00",
        "0000-01-01 00:00:00", "-2024-01-01 00:00:00", "+2024-01-01 00:00:00", "12024-01-01 00:00:00",
        "+12024-01-01 00:00:00", "0001-01-01 00:00:00", "-0001-12-31 23:59:59", "-0000-01-01 00:00:00", "",
        "x",
    ],
    "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]": [
        f"{AT}T10:11:12", f"{AT}t10:11:12.1", f"{AT}T10:11:12.123Z", f"{AT}T10:11:12.1234", f"{AT}T10:11:12z",
        f"{AT}T10:11:12+02:00", f"{AT}T10:11:12+0200", f"{AT}T10:11:12-00:00", f"{AT}T10:11:12+18:00",
        f"{AT}T10:11:12+18:01", f"{AT}T10:11:12.", f"{AT}T10:11:12.Z",
    ],
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSSSSSX": [
        f"{AT}T10:11:12.123456789+01", f"{AT}T10:11:12.999999999+0130", f"{AT}T10:11:12.5Z",
        f"{AT}T10:11:12.5+1",
        f"{AT}T10:11:12.5+01:00", f"{AT}T10:11:12.5+00",
    ],
    "yyyyMMddHHmmss": ["20240701101112", "2024070110111", "120240701101112", "+120240701101112"],
    "yyyyMMddHHmmssSSS": ["20240701101112123", "20240701101112"],
    "yyyyMMddHHmmss.SSS": ["20240701101112.123", "20240701101112.1234"],
    "yyyyMd": ["202471", "2024711"],
    "dd/MMM/yyyy:HH:mm:ss Z": [
        "17/May/2015:10:05:03 +0000", "17/MAY/2015:10:05:03 -0700", "17/Mai/2015:10:05:03 +0000",
        "17/May/2015:10:05:03 Z", "17/May/2015:10:05:03 +00:00", "7/May/2015:10:05:03 +0000",
    ],
    "MMMM d, yyyy h:mm a": [
        "July 4, 2024 12:05 AM", "july 4, 2024 12:05 pm", "July 4, 2024 0:05 AM", "July 4, 2024 13:05 PM",
        "Jul 4, 2024 1:05 PM", "July 04, 2024 01:05 PM",
    ],
    "d.M.yy K:m a": ["1.2.03 0:4 PM", "1.2.99 11:4 AM", "1.2.03 12:4 PM", "1.2.2003 1:4 PM"],
    "dd.MM.yyyy kk": ["01.02.2003 24", "01.02.2003 00", "01.02.2003 12"],
    "yyyy/MM/dd HH:mm VV": [
        "2024/07/01 10:00 Europe/Berlin", "2024/07/01 10:00 UTC", "2024/07/01 10:00 GMT",
        "2024/03/31 02:30 Europe/Berlin", "2024/07/01 10:00 Nowhere/Town", "2024/07/01 10:00 PST",
    ],
    "yyyy/MM/dd HH:mm z": [
        f"2024/07/01 10:00 {zone}"
        for zone in ("PST", "PDT", "EST", "EDT", "CST", "CDT", "MST", "MDT", "CET", "CEST", "JST", "UTC",
                     "GMT",
                     "XYZ", "Europe/Berlin")
    ] + [f"2024/01/01 10:00 {zone}" for zone in ("PST", "PDT", "EST", "EDT", "CET", "CEST", "JST", "MST")],
    "[yyyy-MM-dd][dd.MM.yyyy][ HH:mm]": [
        AT, "01.07.2024", f"{AT} 10:00", "01.07.2024 10:00", "07/01/2024", " 10:00", f"{AT}01.07.2024",
        f"{AT}02.07.2024",
    ],
    "yyyy-MM-dd[ HH[:mm": [AT, f"{AT} 10", f"{AT} 10:30", f"{AT} 1", f"{AT} 10:3"],
    "HH:mm": ["04:05", "4:5"],
    "MM-dd": ["02-28", "02-29"],
    "yyyy 'o''clock' ''HH": ["2024 o'clock '05", "2024 O'CLOCK '05"],
    "yyyy年MM月dd日": ["2024年07月01日", "2024年7月1日"],
    "y-M-d": ["2024-7-1", "+2024-7-1", "-2024-7-1", "99999-1-1", "300000-1-1", "1000000000-1-1", "2024--7-1"],
    "yyyy-MM-dd x": [f"{AT} +00", f"{AT} +01", f"{AT} +0130", f"{AT} Z", f"{AT} +0000"],
    "yyyy-MM-dd xx": [f"{AT} +0000", f"{AT} +01", f"{AT} +0130", f"{AT} +01:30"],
    "yyyy-MM-dd XXXX": [f"{AT} +0130", f"{AT} +013015", f"{AT} Z"],
    "yyyy-MM-dd XXXXX": [f"{AT} +01:30", f"{AT} -00:00:30", f"{AT} Z", f"{AT} +01:30:"],
    "yyyy-MM-dd XXX": [f"{AT} +01:30", f"{AT} +01", f"{AT} +24:00", f"{AT} +17:59", f"{AT} -18:00"],
}  # fmt: skip
DATES = {  # by dateFormat
    "dd.MM.yyyy": ["01.07.2024", "31.04.2024", "29.02.1900", "29.02.1500", "01.07.0000", "1.7.2024", "", "x"],
    "M/d/yy": ["7/1/24", "12/31/99", "7/1/2024"],
    "yyyyMMdd": ["20240701", "2024071", "120240701"],
    "yyyy-MM": ["2024-07", "2024-7", "2024-13"],
    "yyyy-MM-dd HH:mm": [f"{AT} 10:11", f"{AT} 25:11", AT],
    "d MMM yyyy": ["1 Jul 2024", "1 JUL -0004", "31 Feb 2024"],
}
NTZ = {  # by timestampNTZFormat
    "dd.MM.yyyy HH:mm": ["31.03.2024 02:30", "31.03.2024 2:30"],
}
STRICTER = {  # of names of zones: what Spark takes besides
    ("yyyy/MM/dd HH:mm VV", "2024/07/01 10:00 utc"),
    ("yyyy/MM/dd HH:mm VV", "2024/07/01 10:00 europe/berlin"),
}


@pytest.fixture(scope="module")
def spark():
    with spark_session({"spark.sql.session.timeZone": ZONE}, cores=1) as running:
        yield running


def encoded(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def plain(column: pa.Array | pa.ChunkedArray, row: int) -> str:
    """The value in words; NaN is NaN, and dates may lie beyond Python's."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
        return f"{column.type} {column[row].value}"
    return repr(column[row].as_py())


def both(spark, format: str, cases: dict):
    """(case, value, what Spark makes of it, what we make of it) of each: "bad", or the fields in words.

    A case is a schema, or a schema with an option and its value. One job for all: every value goes through
    every case, and what was not asked is passed over."""
    from pyspark.sql.functions import col, from_csv, from_json

    function = from_json if format == "json" else from_csv
    everything = [(bytearray(encoded(v)),) for values in cases.values() for v in values]
    text, bad = col("v").cast("string"), {"columnNameOfCorruptRecord": "_bad", "mode": "PERMISSIVE"}
    split = [(case, {}) if isinstance(case, str) else (case[0], {case[1]: case[2]}) for case in cases]
    parsed = [
        function(text, f"{schema}, _bad STRING", {**bad, **options}).alias(f"r{i}")
        for i, (schema, options) in enumerate(split)
    ]
    table = spark.createDataFrame(everything, "v BINARY").coalesce(1).select(*parsed).toArrow()
    first = 0
    pairs = zip(cases.items(), split, table.columns, strict=True)
    for (case, values), (schema, options), column in pairs:
        theirs = column.combine_chunks().slice(first, len(values)).flatten()
        first += len(values)
        decoder = value_decoder(format, schema, {"timeZone": ZONE, **options})
        ours = decoder.decode(pa.array([encoded(v) for v in values], pa.binary()))
        assert decoder.schema.types == [found.type for found in theirs[:-1]]
        for row, value in enumerate(values):
            spark_says: str | list[str] = "bad"
            if theirs[-1][row].as_py() is None:
                spark_says = [plain(found, row) for found in theirs[:-1]]
            we_say: str | list[str] = "bad"
            if row not in ours.bad_rows:
                we_say = [plain(found, row) for found in ours.columns]
            yield case, value, spark_says, we_say


def check(spark, format: str, cases: dict[str, list[str]], deviations: dict[tuple, str]) -> None:
    every: dict[str, list] = {schema: list(values) for schema, values in cases.items()}
    for schema, value in deviations:
        every[schema].append(value)
    different = []
    for schema, value, theirs, ours in both(spark, format, every):
        wanted = deviations.get((schema, value))
        if wanted is None:
            if theirs != ours:
                different.append((schema, value, theirs, ours))
        else:
            assert ours == wanted if wanted == "bad" else ours[-1] == repr(wanted), (schema, value)
            assert theirs not in ("bad", ours), (schema, value)
    assert different == []


def test_json_is_what_from_json_makes_of_it_but_for_what_is_listed(spark):
    cases = {schema: [f'{{"a":{value}}}' for value in values] for schema, values in FIELD.items()}
    cases["a INT"] += WHOLE
    check(spark, "json", cases, DEVIATIONS)


def test_csv_is_what_from_csv_makes_of_it_but_for_what_is_listed(spark):
    check(spark, "csv", CSV, CSV_DEVIATIONS)


def test_nulls_of_csv_are_those_of_from_csv(spark):
    """HUNTS U1: with nullValue set, an empty field was no longer null."""
    assert [each for each in both(spark, "csv", CSV_NULLS) if each[2] != each[3]] == []


def test_names_of_json_are_as_long_as_in_from_json(spark):
    """HUNTS U6: a name of 60,000 characters was taken."""
    names = [each * count for each in ("k", "é", "😀") for count in (25_000, 25_001, 50_000, 50_001)]
    values = [f'{{"a":1,"{name}":2}}' for name in names] + [f'{{"a":1,"b":{{"{name}":2}}}}' for name in names]
    maps = [f'{{"a":{{"{name}":2}}}}' for name in names]
    compared = list(both(spark, "json", {"a INT": values, "a MAP<STRING,INT>": maps}))
    assert [(value[:9], len(value)) for _, value, theirs, ours in compared if theirs != ours] == []
    assert sum(theirs == "bad" for _, _, theirs, _ in compared) == 3 * (1 + 1 + 3)


def pattern_cases(text) -> dict[tuple[str, str, str], list[str]]:
    kinds = (("a TIMESTAMP", "timestampFormat", STAMPS), ("a DATE", "dateFormat", DATES))
    kinds += (("a TIMESTAMP_NTZ", "timestampNTZFormat", NTZ),)
    return {
        (schema, option, pattern): [text(value) for value in values]
        for schema, option, patterns in kinds
        for pattern, values in patterns.items()
    }


def test_times_and_dates_by_a_pattern_are_what_from_json_makes_of_them(spark):
    different = []
    for case, value, theirs, ours in both(spark, "json", pattern_cases(lambda v: f'{{"a":"{v}"}}')):
        if theirs != ours:
            different.append((case, value, theirs, ours))
    assert different == []
    listed = {}
    for pattern, value in STRICTER:
        listed.setdefault(("a TIMESTAMP", "timestampFormat", pattern), []).append(f'{{"a":"{value}"}}')
    for case, value, theirs, ours in both(spark, "json", listed):
        assert ours == "bad" != theirs, (case, value, theirs)


def test_times_and_dates_by_a_pattern_are_what_from_csv_makes_of_them(spark):
    cases = pattern_cases(lambda v: f'"{v}"')
    for case, value, theirs, ours in both(spark, "csv", cases):
        assert value == '""' or theirs == ours, (case, value, theirs, ours)
