"""Our readers of the same records, against one plain reader: they find the same, or all refuse.

The readers are the walk of an append over records in memory (`record.h`), the same walk over pieces that are
cut anywhere (a state machine), `protocol.records`, and the Arrow columns. The reference is
`slow_batch.read_records`, whose varints are those of Kafka's ByteUtils. Every varint may be longer than it
must be, up to one byte more than a varint can have."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kafkad._native.wire.batch import AppendRules, BatchHeader, RecordWalk
from kafkad.protocol.errors import INVALID_RECORD, Malformed
from kafkad.protocol.records import Batch
from kafkad.spark.record_columns import RecordColumns
from tests.reference import slow_batch
from tests.unit.test_batch import NOW, with_records
from tests.unit.test_record_columns import TOPIC, arrow, rows_of

EXAMPLES = 400, 20_000


def varint(value: int, more: int) -> bytes:
    """Zigzag, with `more` bytes beyond those that it needs."""
    raw = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    for _ in range(more):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


numbers = st.one_of(
    st.integers(-2, 3), st.sampled_from((63, 64, 127, 128, 8191, 8192, (1 << 31) - 1, -(1 << 31)))
)
longer = st.one_of(st.just(0), st.just(0), st.integers(0, 10))


@st.composite
def a_record(draw, index: int) -> bytes:
    def number(value: int) -> bytes:
        return varint(draw(numbers) if draw(st.integers(0, 30)) == 0 else value, draw(longer))

    def sized() -> bytes:
        data = draw(st.none() | st.binary(max_size=40))
        return number(-1) if data is None else number(len(data)) + data

    headers = draw(st.sampled_from((0, 0, 0, 1, 3)))
    body = b"\0" + number(draw(st.integers(-(1 << 40), 1 << 40))) + number(index)
    body += sized() + sized() + number(headers) + b"".join(sized() + sized() for _ in range(headers))
    cut = draw(st.integers(0, 20))
    if cut < 3:  # the last bytes are missing, and the length knows it
        body = body[: len(body) - cut]
    return number(len(body)) + body


@st.composite
def records(draw) -> tuple[bytes, int]:
    count = draw(st.integers(1, 4))
    return b"".join(draw(a_record(index)) for index in range(count)), count


def by_reference(data: bytes, count: int) -> list[tuple] | None:
    try:
        found = slow_batch.read_records(data, count, NOW)
    except slow_batch.Lies:
        return None
    return [(r.timestamp, r.offset_delta, r.key, r.value, r.headers) for r in found]


def by_objects(batch: bytearray) -> list[tuple] | None:
    try:
        found = Batch(batch).records()
    except Malformed:
        return None
    return [(r.timestamp, r.offset, r.key, r.value, r.headers) for r in found]


def by_walk(batch: bytearray, pieces: list[bytes]) -> tuple | None:
    walk = RecordWalk(BatchHeader(batch))
    for piece in pieces:
        walk.feed(piece)
    code = walk.end()
    assert code in (0, INVALID_RECORD)
    return None if code else (walk.records, walk.consecutive, walk.largest)


def by_columns(batch: bytearray) -> list[tuple] | None:
    columns = RecordColumns(TOPIC, 7, 0, 1 << 40, headers=True)
    try:
        columns.feed(bytes(batch))
        columns.finish()
        return [row for found in arrow(columns) for row in rows_of(found)]
    except Malformed:
        return None


@pytest.mark.soak
def test_all_readers_of_records_agree(rounds):
    """HUNTS N3 was a record that two of them read and the others did not."""

    @settings(
        max_examples=rounds(*EXAMPLES), deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @example((b"\x0c\0\0\0\1\x81\x00", 1), [])
    @example((b"\x12\0\0\0\1\x81\x80\x80\x80\x00", 1), [3])
    @example((b"\x0c\0\0\2\1\1\0", 1), [])
    @given(records(), st.lists(st.integers(0, 400), max_size=6))
    def agree(made: tuple[bytes, int], cuts: list[int]) -> None:
        data, count = made
        batch = with_records(data, count)
        expected = by_reference(data, count)
        ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
        walks = [
            by_walk(batch, [data]),
            by_walk(batch, [bytes([byte]) for byte in data]),
            by_walk(batch, [data[a:b] for a, b in pairwise(ends)]),
        ]
        assert walks[0] == walks[1] == walks[2]
        assert (walks[0] is None) == (expected is None)
        objects = by_objects(batch)
        assert (objects is None) == (expected is None)
        if expected is None:
            assert by_columns(batch) is None
            assert AppendRules(after_max_ms=1 << 62).validate(batch, NOW)[0] == INVALID_RECORD
            return
        names = [
            (time, delta, key, value, [(name.decode("utf-8", "replace"), text) for name, text in headers])
            for time, delta, key, value, headers in expected
        ]
        assert objects == names
        assert walks[0] is not None and walks[0][0] == count
        assert walks[0][1] == ([delta for _, delta, *_ in expected] == list(range(count)))
        columns = by_columns(batch)
        # an append rebuilds a batch whose offsets do not count up; the columns refuse a stored one
        assert (columns is not None) == walks[0][1]
        if columns is not None:
            assert [row[:3] for row in columns] == [
                (key, value, delta) for _, delta, key, value, _ in expected
            ]

    agree()
