"""pytest-benchmark of the value decoders: flights in batches of 4,000 rows, typed into their 19 columns.

    .venv/bin/python -m pytest bench/test_native_values.py --benchmark-columns=min,median,stddev

Each figure is for 40,000 flights, by process time of one thread; `rows_per_s` in the extra information (in
--benchmark-json) is by the minimum. pyarrow.json, with the same schema and on one thread, is the
yardstick."""

import csv
import io
import json
import time

import pyarrow as pa
import pytest
from pyarrow import json as arrow_json

from kafkad.demo import flights
from kafkad.values.decoder import value_decoder

ROWS, BATCH = 40_000, 4_000
TYPES = {pa.int32(): "int", pa.string(): "string"}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {
                "name": f.name,
                "type": ["null", TYPES.get(f.type, {"type": "long", "logicalType": "timestamp-micros"})],
            }
            for f in flights.ARROW_SCHEMA
        ],
    }
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.load(ROWS)


def json_values(table: pa.Table) -> list[bytes]:
    return [value for _, value in flights.records(table)]


def csv_values(table: pa.Table) -> list[bytes]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in table.to_pylist():
        writer.writerow("" if v is None else v for v in row.values())
    return [line.encode() for line in out.getvalue().splitlines()]


def avro_values(table: pa.Table) -> list[bytes]:
    import fastavro

    schema, values = fastavro.parse_schema(json.loads(AVRO)), []
    for row in table.to_pylist():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        values.append(out.getvalue())
    return values


def proto_class():
    """A message with a field for each column: (descriptor set as text, class)."""
    from google.protobuf import descriptor_pb2, message_factory

    from kafkad.values.proto_schema import message_descriptor

    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="flight.proto", syntax="proto3")
    message = file.message_type.add(name="Flight")
    kinds = {pa.int32(): 5, pa.string(): 9}
    for number, field in enumerate(flights.ARROW_SCHEMA, start=1):
        message.field.add(name=field.name, number=number, label=1, type=kinds.get(field.type, 3))
    data = files.SerializeToString()
    return data, message_factory.GetMessageClass(message_descriptor(data, "Flight"))


def proto_values(table: pa.Table) -> list[bytes]:
    _, kind = proto_class()
    micros = table.set_column(18, "time_hour", table["time_hour"].cast(pa.int64()))
    return [
        kind(**{k: v for k, v in row.items() if v is not None}).SerializeToString()
        for row in micros.to_pylist()
    ]


def proto_text() -> str:
    import base64

    return "base64:" + base64.b64encode(proto_class()[0]).decode()


FORMATS = {
    "json": (json_values, lambda: flights.SPARK_SCHEMA),
    "avro": (avro_values, lambda: AVRO),
    "protobuf": (proto_values, proto_text),
    "csv": (csv_values, lambda: flights.SPARK_SCHEMA),
}


def batches(values: list[bytes]) -> list[pa.Array]:
    return [pa.array(values[i : i + BATCH], pa.binary()) for i in range(0, len(values), BATCH)]


def measured(benchmark, work) -> None:
    benchmark._timer = time.process_time
    benchmark.pedantic(work, rounds=7, warmup_rounds=1)
    benchmark.extra_info["rows_per_s"] = round(ROWS / benchmark.stats.stats.min)


@pytest.mark.parametrize("format", FORMATS)
def test_decode(benchmark, table, format):
    make, schema = FORMATS[format]
    values = batches(make(table))
    decoder = value_decoder(format, schema())
    decoded = [decoder.decode(one) for one in values]
    assert not any(one.bad_rows for one in decoded)
    found = pa.table(
        [pa.chunked_array(column) for column in zip(*(d.columns for d in decoded), strict=True)],
        decoder.schema,
    )
    if format != "protobuf":  # whose zeroes are absent
        assert found.equals(table)
    measured(benchmark, lambda: [decoder.decode(one) for one in values])


def test_decode_two_columns_of_json(benchmark, table):
    values = batches(json_values(table))
    decoder = value_decoder("json", flights.SPARK_SCHEMA, {"columns": "carrier,time_hour"})
    measured(benchmark, lambda: [decoder.decode(one) for one in values])


def test_pyarrow_json(benchmark, table):
    values = json_values(table)
    texts = [b"\n".join(values[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    read = arrow_json.ReadOptions(use_threads=False, block_size=4 << 20)
    parse = arrow_json.ParseOptions(explicit_schema=flights.ARROW_SCHEMA)
    measured(benchmark, lambda: [arrow_json.read_json(io.BytesIO(t), read, parse) for t in texts])
