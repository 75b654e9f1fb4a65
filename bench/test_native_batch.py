"""pytest-benchmark of what a produced batch costs: its CRC-32C, its validation, the walk over its records.

    .venv/bin/python -m pytest bench/test_native_batch.py --benchmark-columns=min,median,stddev

Each figure holds a Python call of 0.2 µs, which the reactor does not make: `walk[nothing]` is only that."""

import random

import pytest

from kafkad._native.wire import crc32c
from kafkad._native.wire.batch import AppendRules, BatchHeader, RecordWalk
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.protocol.validation import validate_slow
from kafkad.spark.record_columns import RecordColumns

NOW = 1_790_000_000_000
CHANCE = random.Random(1)


def batch(count: int, size: int, codec: int = 0) -> bytearray:
    half = CHANCE.randbytes(size // 2)  # compressible by about a half
    records = [
        Record(None, CHANCE.randbytes(size - size // 2) + half, timestamp=NOW + i) for i in range(count)
    ]
    return build_batch(records, compression=codec)


SHAPES = {
    "64 KB of 1 KB records": (64, 1000),
    "16 KB of 100 B records": (150, 100),
    "200 B": (1, 130),
    "1 MB of 1 KB records": (1000, 1000),
}


@pytest.mark.parametrize("size", [200, 16 << 10, 64 << 10, 1 << 20])
@pytest.mark.parametrize("name", crc32c.IMPLEMENTATIONS)
def test_crc32c(benchmark, name, size):
    data = CHANCE.randbytes(size)
    assert benchmark(crc32c.checksum_by, name, data) == crc32c.checksum(data)


@pytest.mark.parametrize("shape", SHAPES)
def test_validate(benchmark, shape):
    data = batch(*SHAPES[shape])
    verdict, _ = benchmark(AppendRules(max_message_bytes=1 << 24).validate, data, NOW)
    assert verdict == 0


@pytest.mark.parametrize("shape", [*SHAPES, "nothing"])
def test_walk(benchmark, shape):
    data = batch(*SHAPES.get(shape, (1, 1)))
    header, rules = BatchHeader(data), AppendRules()
    body = memoryview(data)[61:] if shape in SHAPES else b""
    assert benchmark(lambda: RecordWalk(header, rules, NOW).feed(body)) == 0


@pytest.mark.parametrize("codec", range(1, 5), ids=["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("shape", ["64 KB of 1 KB records", "200 B"])
def test_validate_compressed(benchmark, shape, codec):
    data = batch(*SHAPES[shape], codec)
    same, _ = benchmark(validate_slow, data, AppendRules(), NOW)
    assert same is data


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("shape", ["64 KB of 1 KB records", "16 KB of 100 B records", "200 B"])
def test_columns(benchmark, shape, codec):
    """3,000 batches (1,000 of the large ones) into Arrow columns, with their CRC."""
    count = SHAPES[shape][0]
    batches = 1000 if count * SHAPES[shape][1] > 50_000 else 3000
    one = batch(*SHAPES[shape], codec)
    data = bytearray()
    for i in range(batches):
        one[:8] = (i * count).to_bytes(8, "big")  # not under the CRC
        data += one
    benchmark.extra_info["records"] = batches * count

    def read():
        columns, rows = RecordColumns("flights", 0, 0, batches * count), 0
        columns.feed(data)
        while (finished := columns.take()) is not None:
            rows += len(finished)
        return rows

    assert benchmark(read) == batches * count


def test_build(benchmark):
    records = [Record(b"key", bytes(100), timestamp=NOW) for _ in range(1000)]
    assert benchmark(build_batch, records)


def test_read(benchmark):
    data = batch(1000, 100)
    assert len(benchmark(lambda: next(read_batches(data)).records())) == 1000
