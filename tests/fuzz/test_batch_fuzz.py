"""Batches with anything in them: the native verdict is the slow twin's, and nothing crashes or takes memory.

Three ways to make them: flipped bits under a right CRC, random fields and sizes in hand-made records, and
pure noise. Each test of each takes two seconds, and a minute in `make soak`; a failure names its seed."""

import random
import struct
import time

import pytest

from kafkad._native.wire.batch import AppendRules, BatchHeader, RecordWalk
from kafkad._native.wire.crc32c import checksum
from kafkad.protocol import compression
from kafkad.protocol.errors import CORRUPT_MESSAGE, INVALID_RECORD, Malformed
from kafkad.protocol.records import Record, build_batch, find_max_timestamp, find_timestamp, read_batches
from kafkad.protocol.validation import InvalidBatch, validate_slow
from tests.reference import slow_batch

SECONDS = 2, 60
NOW = 1_790_000_000_000
NEED_PYTHON = -1000
EDGES = (0, 1, 2, 6, 63, 64, 127, 128, 255, 1 << 14, (1 << 31) - 1, -1, -2, -(1 << 31))


def varint(value: int, chance: random.Random) -> bytes:
    raw = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    if chance.random() < 0.02:  # longer than it must be
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def lying_record(chance: random.Random, index: int) -> bytes:
    def maybe(value: int) -> bytes:
        return varint(chance.choice(EDGES) if chance.random() < 0.03 else value, chance)

    def sized() -> bytes:
        data = chance.randbytes(chance.choice((0, 1, 10, 100)))
        return maybe(-1) if chance.random() < 0.2 else maybe(len(data)) + data

    headers = chance.choice((0, 0, 0, 1, 3))
    body = b"\0" + maybe(chance.randrange(100)) + maybe(index) + sized() + sized() + maybe(headers)
    body += b"".join(sized() + sized() for _ in range(headers))
    return maybe(len(body)) + body


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, checksum(memoryview(data)[21:]))
    return data


def by_flipping(chance: random.Random) -> bytearray:
    records = [
        Record(b"key", chance.randbytes(20), [("h", b"x")], NOW + i) for i in range(chance.randrange(1, 6))
    ]
    data = build_batch(records, compression=chance.randrange(5))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]
    return sealed(data) if len(data) > 21 and chance.random() < 0.9 else data


def by_lying(chance: random.Random) -> bytearray:
    count = chance.randrange(1, 8)
    codec = chance.choice((0, 0, 1, 2, 3, 4))
    records = b"".join(lying_record(chance, i) for i in range(count))
    data = build_batch([Record()])[:61] + compression.compress(codec, records)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">hi", data, 21, codec, count - 1)
    struct.pack_into(">q", data, 27, NOW)
    struct.pack_into(">i", data, 57, count)
    return sealed(data)


def by_noise(chance: random.Random) -> bytearray:
    data = bytearray(chance.randbytes(chance.choice((0, 5, 17, 61, 100, 300))))
    if len(data) > 61 and chance.random() < 0.9:
        struct.pack_into(">qii", data, 0, 0, len(data) - 12, 0)
        data[16] = 2
        struct.pack_into(">hi", data, 21, chance.randrange(5), 0)
        struct.pack_into(">i", data, 57, 1)
        sealed(data)
    return data


def native_verdict(data: bytearray, rules: AppendRules) -> int:
    verdict, _ = rules.validate(data, NOW)
    if verdict != NEED_PYTHON:
        return verdict
    try:
        fixed, _ = validate_slow(data, rules, NOW)
    except InvalidBatch as error:
        return error.code
    assert rules.check_header(fixed)[0] == 0
    return 0


@pytest.mark.soak
@pytest.mark.parametrize("make", [by_flipping, by_lying, by_noise])
def test_the_native_verdict_is_the_slow_one(make, rounds):
    end = time.monotonic() + rounds(*SECONDS)
    seed = 0
    verdicts = set()
    while time.monotonic() < end or seed < 300:
        seed += 1
        chance = random.Random(seed)
        asked = {"compacted": chance.random() < 0.2, "before_max_ms": chance.choice((1 << 62, 10))}
        data = make(chance)
        expected = slow_batch.validate(bytes(data), NOW, rules=asked)
        verdict = native_verdict(bytearray(data), AppendRules(**asked))
        if expected == CORRUPT_MESSAGE and verdict == INVALID_RECORD:
            continue  # the records were seen to lie before the decompressor came to its own trouble
        assert verdict == expected, f"{make.__name__} seed {seed}"
        verdicts.add(expected)
    assert verdicts - {0}, "nothing was refused"
    assert make is by_noise or 0 in verdicts, "nothing passed"


@pytest.mark.soak
@pytest.mark.parametrize("make", [by_flipping, by_lying, by_noise])
def test_readers_answer_or_say_malformed(make, rounds):
    end = time.monotonic() + rounds(*SECONDS)
    seed = 0
    while time.monotonic() < end or seed < 300:
        seed += 1
        data = make(random.Random(seed))
        try:
            for batch in read_batches(data):
                assert len(batch.records()) == max(batch.records_count, 0)
                found = find_timestamp(batch.bytes, 0)
                assert found is None or found[0] >= 0
                largest = find_max_timestamp(batch.bytes)
                assert largest is None or largest[0] != -1
        except Malformed as error:
            assert str(error)


@pytest.mark.soak
@pytest.mark.parametrize("make", [by_lying])
def test_pieces_change_nothing(make, rounds):
    end = time.monotonic() + rounds(*SECONDS)
    seed = 0
    while time.monotonic() < end or seed < 300:
        seed += 1
        chance = random.Random(seed)
        data = make(chance)
        if data[22] & 7:
            continue
        body = bytes(data[61:])
        results = []
        for pieces in (
            [body],
            [body[i : i + 1] for i in range(len(body))],
            [body[:9], body[9:40], body[40:]],
        ):
            walk = RecordWalk(BatchHeader(data))
            for piece in pieces:
                walk.feed(piece)
            verdict = walk.end()
            results.append((verdict, verdict or (walk.records, walk.consecutive, walk.largest)))
        assert results[0] == results[1] == results[2], f"seed {seed}"
