"""Values of records to typed Arrow columns: what `valueFormat`, `valueSchema` and `columns` mean.

    decoder = value_decoder("json", "id BIGINT, name STRING", {"columns": "id"})
    decoder.schema                        # id: int64
    decoded = decoder.decode(values)      # a pyarrow array of binary
    decoded.columns, decoded.bad_rows, decoded.reasons

Each column is as long as `values`. A null value is a row of nulls; so is a bad one, which is also named in
`bad_rows` with a reason: the field, what is wrong, the byte. Nothing of a bad value is kept, and no value is
quoted in a reason.

What is bad is what Spark's own function calls malformed in FAILFAST mode, and more; where a value is good for
both, both make the same of it (tests/integration/test_values_spark.py holds odd values against Spark).

JSON differs from from_json in these, all of them stricter, so that nothing is lost unseen:
  - an empty value is bad; from_json gives null
  - bytes after the end of the object are bad; from_json does not look at them
  - bytes that are not UTF-8 are bad; from_json puts U+FFFD for them
  - half of a surrogate pair (\\ud800) is bad; from_json puts ? for it
  - 128 to 255 are out of a TINYINT's range; from_json makes negative numbers of them
  - a timestamp with a time and no date is bad; from_json takes today
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kafkad._native.json_columns import JsonColumns
from kafkad.spark.value_schema import SchemaError, native_field, parse_schema


@dataclass
class Decoded:
    """`columns` in the order of the decoder's schema; `reasons[i]` says why row `bad_rows[i]` is bad."""

    columns: list[pa.Array]
    bad_rows: list[int]
    reasons: list[str]


class ValueDecoder:
    """Decodes batch after batch; one thread at a time. `schema`: of the columns, after pruning."""

    schema: pa.Schema

    def decode(self, values: pa.Array) -> Decoded:
        """MemoryError: a decoded column would pass 2 GiB, so `values` should be cut into smaller arrays."""
        raise NotImplementedError


class NativeDecoder(ValueDecoder):
    """A decoder in C behind the common face."""

    def __init__(self, schema: pa.Schema, native: Any):
        self.schema = schema
        self.native = native

    def decode(self, values: pa.Array) -> Decoded:
        finished, bad_rows, reasons = self.native.decode(values)
        return Decoded(pa.record_batch(finished).columns, bad_rows, reasons)


def value_decoder(format: str, schema: str, options: Mapping[str, str] | None = None) -> ValueDecoder:
    """The decoder of one of FORMATS.

    schema: Spark's DDL or a StructType's JSON. Options, whose names do not mind case:
      columns    names to decode, by commas; the rest is only checked to be well-formed. Default: all
      timeZone   the session's, for timestamps that name none. Default: UTC
    ValueError (SchemaError among them): what is wrong, in a sentence."""
    make = FORMATS.get(format.lower())
    if make is None:
        raise ValueError(f"valueFormat is {' | '.join(FORMATS)}, not {format!r}")
    return make(schema, {name.lower(): value for name, value in (options or {}).items()})


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
    native = JsonColumns([native_field(f) for f in wanted], skipped, options.get("timezone", "UTC"))
    return NativeDecoder(wanted, native)


def require_text_keys(kind: pa.DataType, path: str) -> None:
    if pa.types.is_map(kind) and kind.key_type != pa.string():
        raise SchemaError(f"{path}: the keys of a map in JSON are strings")
    for i in range(kind.num_fields):
        require_text_keys(kind.field(i).type, path)


FORMATS: dict[str, Callable[[str, Mapping[str, str]], ValueDecoder]] = {
    "json": json_decoder,
}
