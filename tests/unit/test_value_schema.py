"""Schemas without a SparkSession: DDL and a StructType's JSON come to the same Arrow types."""

import json

import pyarrow as pa
import pytest
from pyspark.sql import types

from kafkad.values.schema import SchemaError, native_field, parse_schema

TEXTS = {
    "a INT": pa.schema([("a", pa.int32())]),
    "`a b` : bigint NOT NULL COMMENT 'it''s'": None,
    "a STRING COMMENT 'x, y', `b``c` DATE": pa.schema([("a", pa.string()), ("b`c", pa.date32())]),
    "a decimal, b dec(5), c NUMERIC( 20 , 3 )": pa.schema(
        [("a", pa.decimal128(10, 0)), ("b", pa.decimal128(5, 0)), ("c", pa.decimal128(20, 3))]
    ),
    "a varchar(10), b char(3) not null": pa.schema([("a", pa.string()), ("b", pa.string())]),
    "t TIMESTAMP, n TIMESTAMP_NTZ": pa.schema(
        [("t", pa.timestamp("us", tz="UTC")), ("n", pa.timestamp("us"))]
    ),
    "struct<a: tinyint, b: array<struct<`c d`: map<string, double>>>>": pa.schema(
        [
            ("a", pa.int8()),
            (
                "b",
                pa.list_(
                    pa.field("element", pa.struct([pa.field("c d", pa.map_(pa.string(), pa.float64()))]))
                ),
            ),
        ]
    ),
}


@pytest.mark.parametrize("text", [text for text, schema in TEXTS.items() if schema])
def test_ddl(text):
    assert parse_schema(text) == TEXTS[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a", "is not a type"),
        ("a INT b INT", "'b' was not expected"),
        ("a INT,", "field's name is missing"),
        ("a INTERVAL", "'INTERVAL' is not a type"),
        ("a ARRAY<INT", "'>' is missing"),
        ("a DECIMAL(39, 2)", "precision"),
        ("a DECIMAL(x)", "number is missing before 'x'"),
        ("a INT, a STRING", "the field a twice"),
        ("a INT NOT", "'null' is missing"),
        ("a INT; b INT", "cannot be read at '; b INT'"),
        ("a " + "ARRAY<" * 200 + "INT" + ">" * 200, "nested more than 100 deep"),
        ("{", "is not JSON"),
        ('{"type": "array", "elementType": "integer"}', "not that of a struct"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "a struct without 'type'"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "variant"}]}', "'variant' is not a type"),
    ],
)
def test_what_is_wrong_is_said(text, message):
    with pytest.raises(SchemaError, match=message):
        parse_schema(text)


def test_a_struct_types_json_is_the_same_as_its_ddl():
    struct = types.StructType(
        [
            types.StructField("i", types.IntegerType(), False),
            types.StructField("by", types.ByteType()),
            types.StructField("sh", types.ShortType()),
            types.StructField("l", types.ArrayType(types.MapType(types.StringType(), types.LongType()))),
            types.StructField("s", types.StructType([types.StructField("d", types.DecimalType(7, 2))])),
            types.StructField("v", types.VarcharType(3)),
            types.StructField("n", types.TimestampNTZType()),
        ]
    )
    ddl = (
        "i INT NOT NULL, by TINYINT, sh SMALLINT, l ARRAY<MAP<STRING, BIGINT>>, s STRUCT<d: DECIMAL(7,2)>,"
        " v VARCHAR(3), n TIMESTAMP_NTZ"
    )
    assert parse_schema(json.dumps(struct.jsonValue())) == parse_schema(ddl) == parse_schema(struct.json())
    assert parse_schema(struct.simpleString()) == parse_schema(ddl)


def test_native_fields_carry_names_formats_and_children():
    schema = parse_schema("a MAP<STRING, ARRAY<DECIMAL(4,1)>>, t TIMESTAMP")
    assert native_field(schema.field("a")) == (
        "a", "+m", True,
        [("entries", "+s", False, [
            ("key", "u", False),
            ("value", "+l", True, [("element", "d:4,1", True)]),
        ])],
    )  # fmt: skip
    assert native_field(schema.field("t")) == ("t", "tsu:UTC", True)
