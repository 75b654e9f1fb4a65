"""Values of records to typed Arrow columns: what `valueFormat`, `valueSchema` and `columns` mean.

    decoder = value_decoder("json", "id BIGINT, name STRING", {"columns": "id"})
    decoder.schema                        # id: int64
    decoded = decoder.decode(values)      # a pyarrow array of binary
    decoded.columns, decoded.bad_rows, decoded.reasons

Each column is as long as `values`, or shorter where their decoded columns would take too much memory: then
the rest of the values is to be decoded after them (`decoded_parts` does). A null value is a row of nulls; so
is a bad one, which is also named in `bad_rows` with a reason: the field, what is wrong, the byte. Nothing of
a bad value is kept, and no value is quoted in a reason.

What is bad is what Spark's own function calls malformed in FAILFAST mode, and more; where a value is good
for both, both make the same of it (tests/integration/test_values_spark.py holds odd values against
Spark).

JSON differs from from_json in these, all of them stricter, so that nothing is lost unseen:
  - an empty value is bad; from_json gives null
  - bytes after the end of the object are bad; from_json does not look at them
  - bytes that are not UTF-8 are bad; from_json puts U+FFFD for them
  - half of a surrogate pair (\\ud800) is bad; from_json puts ? for it
  - 128 to 255 are out of a TINYINT's range; from_json makes negative numbers of them
  - a timestamp with a time and no date is bad; from_json takes today
  - a number of seconds that overflows a timestamp is bad; from_json wraps it around
  - "2024-01-01T00:00GMT" is bad; from_json drops the GMT and takes the session's zone
and in one that is not:
  - what is no string in a STRING column stays as it is written ("1.50", with its blanks), as when Spark reads
    JSON files; from_json writes it anew ("1.5", without blanks)

Avro differs from from_avro in these, again stricter: bytes after the record, strings that are not UTF-8,
booleans other than 0 and 1, and integers of more bits than their type are bad; and in one that is not: a key
that comes twice in a map stays twice, of which from_avro keeps the last.

Protobuf differs from from_protobuf in that a string of proto2 that is not UTF-8 is bad.

CSV differs from from_csv: one newline at the end of a value ends its line; from_csv takes it into the
last field. And in these, which are stricter: a newline in a field without quotes, a quote that is not
closed, or closed in the middle of a field, hexadecimal numbers and such with a suffix (1.5f) are bad."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kafkad._native.values.avro_columns import AvroColumns
from kafkad._native.values.csv_columns import CsvColumns
from kafkad._native.values.json_columns import JsonColumns
from kafkad._native.values.proto_columns import ProtoColumns
from kafkad._native.values.text_patterns import Pattern
from kafkad.values.avro_schema import parse_avro, plan, record_schema, with_references
from kafkad.values.options import checked, delimiter, flag
from kafkad.values.proto_schema import ProtoPlanner, message_descriptor
from kafkad.values.schema import SchemaError, native_field, parse_schema
from kafkad.values.schema_registry import Registered, SchemaRegistry, UnknownSchema, registry

FILE_ENDINGS = (".avsc", ".json", ".ddl", ".sql", ".txt")
BASE64 = "base64:"  # a schema that is not text, as text
SCHEMA_BYTES_MAX = 16 << 20


@dataclass
class Decoded:
    """`columns` in the order of the decoder's schema; `reasons[i]` says why row `bad_rows[i]` is bad."""

    rows: int
    columns: list[pa.Array]
    bad_rows: list[int]
    reasons: list[str]


class ValueDecoder:
    """Decodes batch after batch; one thread at a time. `schema`: of the columns, after pruning. `native`:
    one of the decoders in C.
    """

    def __init__(self, schema: pa.Schema, native: Any):
        self.schema = schema
        self.native = native

    def decode(self, values: pa.Array) -> Decoded:
        """The first of the values, mostly all: as many as fit into COLUMNS_BYTES_MAX, and one at least."""
        finished, bad_rows, reasons = self.native.decode(values)
        return Decoded(len(finished), pa.record_batch(finished).columns, bad_rows, reasons)


def decoded_parts(decoder: Any, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Decoded]]:
    """The batch (with a column `value`), mostly in one part, each with its values decoded."""
    while True:
        decoded = decoder.decode(batch.column("value"))
        if decoded.rows == batch.num_rows:
            yield batch, decoded
            return
        yield batch.slice(0, decoded.rows), decoded
        batch = batch.slice(decoded.rows)


def without(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """The batch without these rows."""
    kept = bytearray(b"\1") * batch.num_rows
    for row in rows:
        kept[row] = 0
    bytes_ = pa.Array.from_buffers(pa.uint8(), batch.num_rows, [None, pa.py_buffer(kept)])
    return batch.filter(bytes_.cast(pa.bool_()))


def value_decoder(format: str, schema: str, options: Mapping[str, str] | None = None) -> ValueDecoder:
    """The decoder of one of FORMATS.

    schema: what `portable_schema` gives or takes: for json and csv Spark's DDL or a StructType's JSON; for
    avro and confluent-avro an Avro schema; for protobuf the file of a descriptor set. Options, whose names do
    not mind case:
      columns    names to decode, by commas; the rest is only checked to be well-formed. Default: all
      timeZone   the session's, for timestamps that name none. Default: UTC
      timestampFormat, timestampNTZFormat, dateFormat    json and csv: patterns (_native/values/text_patterns)
      sep (or delimiter), quote, escape, nullValue    csv; defaults: , " \\ and nothing
      nanValue, positiveInf, negativeInf    csv; defaults: NaN, Inf, -Inf
      schema.registry.url, schema.registry.basic.auth.user.info (user:password),
      schema.registry.bearer.auth.token, schema.registry.ssl.ca.location,
      schema.registry.ssl.certificate.location, schema.registry.ssl.key.location,
      schema.registry.subject (default: topic + "-value")     confluent-avro
      messageName, upcast.unsigned.ints, enums.as.ints, emit.default.values as Spark's; confluentHeader (true:
      the values begin with a registry's header, which is passed over)                     protobuf
    ValueError (SchemaError among them), RegistryError: what is wrong, in a sentence."""
    text = portable_schema(format, schema, options)
    return FORMATS[format.lower()](text, checked(format.lower(), options or {}))


def portable_schema(format: str, schema: str, options: Mapping[str, str] | None = None) -> str:
    """The schema itself, where `schema` names a file, or is empty and the registry has it.

    For the driver to call once: the same text then goes to every task, wherever the file is and whatever the
    registry's newest version has become. OSError: the file cannot be read."""
    if format.lower() not in FORMATS:
        raise ValueError(f"valueFormat is {' | '.join(FORMATS)}, not {format!r}")
    lowered = checked(format.lower(), options or {})
    if not schema.strip():
        if format.lower() != "confluent-avro":
            raise SchemaError(f"valueFormat {format} needs a valueSchema")
        subject = lowered.get("schema.registry.subject") or f"{lowered.get('topic', '')}-value"
        if subject == "-value":
            raise SchemaError("confluent-avro needs a valueSchema or the option schema.registry.subject")
        try:
            return avro_text(registry_of(lowered).latest(subject))
        except UnknownSchema as error:
            raise SchemaError(str(error)) from None
    name = schema.strip().removeprefix("file://")
    is_descriptor = format.lower() == "protobuf" and not name.startswith(BASE64)
    if is_descriptor or ("\n" not in name and (name.endswith(FILE_ENDINGS) or name.startswith("/"))):
        path = Path(name)
        if path.stat().st_size > SCHEMA_BYTES_MAX:
            raise SchemaError(f"the schema file {name} is larger than {SCHEMA_BYTES_MAX >> 20} MiB")
        return BASE64 + base64.b64encode(path.read_bytes()).decode() if is_descriptor else path.read_text()
    return schema


def avro_text(found: Registered) -> str:
    """With what it refers to. SchemaError: it is of another kind, or no JSON."""
    if found.type != "AVRO":
        raise SchemaError(f"the registry's schema is one of {found.type}, not of Avro")
    return with_references(found.text, list(found.references))


def patterns_of(options: Mapping[str, str]) -> tuple[Pattern | None, Pattern | None, Pattern | None]:
    """For timestamps, timestamps without a zone, and dates; None: Spark's default."""
    names = ("timestampFormat", "timestampNTZFormat", "dateFormat")
    with_zone, without, dates = (
        Pattern(options[name.lower()], name) if name.lower() in options else None for name in names
    )
    if without is not None and without.has_zone:
        raise ValueError(
            f"option timestampNTZFormat {without.text!r}: it has a zone, which such timestamps do not"
        )
    return with_zone, without, dates


def chosen(schema: pa.Schema, options: Mapping[str, str]) -> pa.Schema:
    """The fields that the option `columns` names, in its order."""
    wanted = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
    for name in wanted:
        if name not in schema.names:
            raise SchemaError(
                f"columns names {name}, which the schema does not have: {', '.join(schema.names)}"
            )
    if len(set(wanted)) < len(wanted):
        raise SchemaError("columns names a field twice")
    return pa.schema([schema.field(name) for name in wanted]) if wanted else schema


def json_decoder(schema: str, options: Mapping[str, str]) -> ValueDecoder:
    whole = parse_schema(schema)
    for field in whole:
        require_text_keys(field.type, field.name)
    wanted = chosen(whole, options)
    skipped = [name for name in whole.names if name not in wanted.names]
    fields = [native_field(f) for f in wanted]
    native = JsonColumns(fields, skipped, options.get("timezone", "UTC"), patterns_of(options))
    return ValueDecoder(wanted, native)


def require_text_keys(kind: pa.DataType, path: str) -> None:
    if pa.types.is_map(kind) and kind.key_type != pa.string():
        raise SchemaError(f"{path}: the keys of a map in JSON are strings")
    for i in range(kind.num_fields):
        require_text_keys(kind.field(i).type, path)


def avro_decoder(schema: str, options: Mapping[str, str]) -> ValueDecoder:
    reader = parse_avro(schema)
    wanted = chosen(record_schema(reader), options)
    native = AvroColumns([native_field(f) for f in wanted], plan(reader, reader, wanted.names))
    return ValueDecoder(wanted, native)


def confluent_decoder(schema: str, options: Mapping[str, str]) -> ValueDecoder:
    reader = parse_avro(schema)
    wanted = chosen(record_schema(reader), options)
    known = registry_of(options)

    def plan_of(id: int) -> dict[str, Any] | str:
        try:
            found = known.schema(id)
            if found.type != "AVRO":
                return f"schema id {id} is one of {found.type}, not of Avro"
            return plan(parse_avro(avro_text(found)), reader, wanted.names)
        except UnknownSchema as error:
            return str(error)
        except SchemaError as error:
            return f"schema id {id}: {error}"

    return ValueDecoder(wanted, AvroColumns([native_field(f) for f in wanted], plan_of=plan_of))


def registry_of(options: Mapping[str, str]) -> SchemaRegistry:
    url = options.get("schema.registry.url", "")
    if not url:
        raise SchemaError("confluent-avro needs the option schema.registry.url")
    names = (
        "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location",
        "ssl.key.location",
    )  # fmt: skip
    return registry(url, *(options.get(f"schema.registry.{name}", "") for name in names))


def csv_decoder(schema: str, options: Mapping[str, str]) -> ValueDecoder:
    whole = parse_schema(schema)
    for field in whole:
        if field.type.num_fields:
            raise SchemaError(f"{field.name}: a field of CSV is flat")
    wanted = chosen(whole, options)
    native = CsvColumns(
        [native_field(f) for f in wanted],
        [wanted.get_field_index(name) for name in whole.names],
        whole.names,
        delimiter(options.get("sep", options.get("delimiter", ","))),
        options.get("quote", '"'),
        options.get("escape", "\\"),
        options.get("nullvalue", ""),
        options.get("timezone", "UTC"),
        (
            options.get("nanvalue", "NaN"),
            options.get("positiveinf", "Inf"),
            options.get("negativeinf", "-Inf"),
        ),
        patterns_of(options),
    )
    return ValueDecoder(wanted, native)


def protobuf_decoder(schema: str, options: Mapping[str, str]) -> ValueDecoder:
    try:
        data = base64.b64decode(schema.removeprefix(BASE64), validate=True)
    except (binascii.Error, ValueError):
        raise SchemaError("the schema of protobuf is a descriptor file, or base64: and its bytes") from None
    message = message_descriptor(data, options.get("messagename", ""))
    planner = ProtoPlanner(options)
    wanted = chosen(planner.schema(message), options)
    has_header = flag(options, "confluentHeader")
    native = ProtoColumns([native_field(f) for f in wanted], planner.plan(message, wanted.names), has_header)
    return ValueDecoder(wanted, native)


FORMATS: dict[str, Callable[[str, Mapping[str, str]], ValueDecoder]] = {
    "json": json_decoder,
    "avro": avro_decoder,
    "confluent-avro": confluent_decoder,
    "protobuf": protobuf_decoder,
    "csv": csv_decoder,
}
