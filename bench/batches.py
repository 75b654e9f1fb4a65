"""Compressed batches, created before the run by kafka-python, so that neither broker's own encoder is used.

The records are lines of JSON that compress about like logs and events. Random bytes would show a codec at its
worst, repeated ones at its best.
"""

import json
import random
import time
from pathlib import Path

from bench.native import BUILT

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
WORDS = ("login", "logout", "click", "view", "order", "pay", "ship", "refund", "search", "error", "retry")


def line(chance: random.Random, size: int) -> bytes:
    """A JSON object a little over `size` bytes, cut to it."""
    row: dict[str, object] = {
        "id": chance.randrange(1 << 40),
        "at": 1_790_000_000_000 + chance.randrange(10**6),
    }
    text = ""
    while len(text) < size:
        row[f"field_{len(row)}"] = chance.choice(
            (chance.choice(WORDS), chance.randrange(10**9), chance.random())
        )
        text = json.dumps(row)
    return text[:size].encode()


def compressed(codec: str, records: int, value_size: int) -> Path:
    """A file with one batch of `records` records, kept from run to run; its timestamps are of today."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    path = BUILT / f"batch-{codec}-{records}-{value_size}"
    day_ms = 86_400_000
    if path.exists() and time.time() - path.stat().st_mtime < day_ms / 1000:
        return path
    chance = random.Random(1)
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], False, -1, -1, -1, 1 << 26)
    now_ms = int(time.time() * 1000)
    for offset in range(records):
        builder.append(offset, now_ms, None, line(chance, value_size), [])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(builder.build()))
    return path
