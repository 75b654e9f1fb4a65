"""Codecs in steps, and records renumbered in pieces: what they give is what went in, wherever it is cut.

Data is made of many members, frames and blocks, also empty ones, which are what the steps are for."""

import gzip
import random
import struct
import time

import pytest
import zstandard

from kafkad._native.wire.records import Renumbering
from kafkad.protocol import compression
from kafkad.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch
from tests.reference import slow_batch

SECONDS = 1, 60
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"aside"


def pieces(chance: random.Random) -> list[bytes]:
    sizes = [chance.choice((0, 0, 1, 50, 5_000, 70_000, 300_000)) for _ in range(chance.randrange(1, 6))]
    return [chance.choice((chance.randbytes(100), b"x", b"")) * (size // 100 + 1) for size in sizes] + (
        [b""] * chance.choice((0, 0, 200))
    )


def packed(codec: int, parts: list[bytes], chance: random.Random) -> bytes:
    if codec == GZIP:
        return b"".join(gzip.compress(part, chance.randrange(10)) for part in parts)
    if codec == ZSTD:
        frames = [
            zstandard.ZstdCompressor(write_checksum=chance.random() < 0.5, level=1).compress(part)
            for part in parts
        ]
        return b"".join(frame + (SKIPPABLE if chance.random() < 0.2 else b"") for frame in frames)
    if codec == SNAPPY:
        return b"".join(compression.compress(SNAPPY, part) for part in parts) or compression.XERIAL_HEADER
    return compression.compress(LZ4, b"".join(parts))


def unpacked(codec: int, data: bytes, chunk_size: int) -> bytes | None:
    needs = compression.Needs()
    whole = b""
    try:
        for chunk in compression.steps(codec, data, chunk_size, needs):
            assert codec == SNAPPY or len(chunk) <= chunk_size
            whole += bytes(chunk)
    except Malformed:
        return None
    return whole


@pytest.mark.soak
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_steps_give_what_went_in(codec, rounds):
    """HUNTS N1: of 50,000 gzip members each left a copy of what followed it."""
    end = time.monotonic() + rounds(*SECONDS)
    seed = 0
    while time.monotonic() < end or seed < 20:
        seed += 1
        chance = random.Random(seed)
        parts = pieces(chance)
        data = packed(codec, parts, chance)
        chunk_size = chance.choice((1 << 10, 1 << 16, 1 << 18))
        whole = b"".join(parts)
        assert unpacked(codec, data, chunk_size) == whole, f"seed {seed}"
        cut = unpacked(codec, data[: chance.randrange(len(data))], chunk_size)
        assert cut is None or whole.startswith(cut), f"seed {seed}"
        spoiled = bytearray(data)
        spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        unpacked(codec, bytes(spoiled), chunk_size)  # anything but a crash


@pytest.mark.soak
def test_renumbered_in_pieces_records_keep_all_but_their_offsets(rounds):
    end = time.monotonic() + rounds(*SECONDS)
    seed = 0
    while time.monotonic() < end or seed < 50:
        seed += 1
        chance = random.Random(seed)
        count = chance.randrange(1, 200)
        offset, records = -1, []
        for _ in range(count):
            offset += chance.choice((1, 2, 100, 10_000_000))
            key = chance.choice((None, b"", b"key"))
            value = chance.randbytes(chance.choice((0, 1, 60, 5_000)))
            stamp = chance.randrange(1 << chance.choice((1, 20, 41)))
            records.append(Record(key, value, [("h", None)] * chance.randrange(2), stamp, offset))
        batch = build_batch(records)
        base = slow_batch.read_header(bytes(batch))["base_timestamp"]
        body = bytes(batch[61:])
        made, renumbering, at = b"", Renumbering(), 0
        while at < len(body):
            size = chance.choice((1, 2, 3, 10, 1_000, 100_000))
            made += renumbering.feed(body[at : at + size])
            at += size
        renumbering.end(count)
        before = slow_batch.read_records(body, count, base)
        after = slow_batch.read_records(made, count, base)
        assert [record.offset_delta for record in after] == list(range(count)), f"seed {seed}"
        for record, same in zip(before, after, strict=True):
            record.offset_delta = same.offset_delta
        assert before == after, f"seed {seed}"
        for wrong in (body[:-1], body + b"\x0c"):
            with pytest.raises(Malformed):
                broken = Renumbering()
                broken.feed(wrong)
                broken.end(count)
