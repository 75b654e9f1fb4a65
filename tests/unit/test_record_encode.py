"""Arrow columns as record batches: what is encoded is what was given, where Kafka's client puts it."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad._native.wire.record_encode import NoSuchPartition, RecordEncoder, murmur2
from kafkad.client.producer import EncodedBatch
from kafkad.protocol.records import Batch

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Kafka's own vectors (UtilsTest.testMurmur2)
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2_slowly(data):
    size, m = len(data), 0x5BD1E995
    h = (0x9747B28C ^ size) & 0xFFFFFFFF
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ k >> 24) * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    if size > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def test_murmur2_is_kafkas():
    for key, signed in MURMUR2.items():
        assert murmur2(key) == signed & 0xFFFFFFFF == murmur2_slowly(key)


@given(st.binary(max_size=64))
def test_murmur2_of_any_length(key):
    assert murmur2(key) == murmur2_slowly(key)


def test_murmur2_is_librdkafkas():
    """The partition that librdkafka's own partitioner gives, in the library that confluent-kafka loads."""
    library = rdkafka()
    if library is None:
        pytest.skip("confluent-kafka's library exports no partitioner")
    for n in range(500):
        key = b"k" * (n % 17) + b"%d" % n
        there = library.rd_kafka_msg_partitioner_murmur2(None, key, len(key), 12, None, None)
        assert there == (murmur2(key) & 0x7FFFFFFF) % 12


def rdkafka():
    import ctypes
    import glob
    import os

    import confluent_kafka

    beside = os.path.dirname(confluent_kafka.__file__)
    for path in [
        *glob.glob(os.path.join(beside + ".libs", "librdkafka*")),
        *glob.glob(os.path.join(os.path.dirname(beside), "confluent_kafka.libs", "librdkafka*")),
    ]:
        library = ctypes.CDLL(path)
        if hasattr(library, "rd_kafka_msg_partitioner_murmur2"):
            library.rd_kafka_msg_partitioner_murmur2.restype = ctypes.c_int32
            library.rd_kafka_msg_partitioner_murmur2.argtypes = [
                ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p,
                ctypes.c_void_p,
            ]  # fmt: skip
            return library
    return None


def decoded(finished, compression=0):
    """partition -> the records of its batches one after the other, read by the code that reads anybody's."""
    batches = {}
    for encoded in finished:
        data = EncodedBatch(encoded).encode(compression, 7, 1, 0)
        batch = Batch(data)
        assert batch.is_intact() and batch.size == len(data)
        assert batch.records_count == encoded.count
        records = batch.records()
        assert [record.offset for record in records] == list(range(encoded.count))
        assert max(record.timestamp for record in records) == batch.max_timestamp
        batches.setdefault(encoded.partition, []).extend(records)
    return batches


ROW = st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=40),
    st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(-(1 << 40), 1 << 50),
)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROW, max_size=40),
    batch_bytes=st.integers(1, 400),
    compression=st.integers(0, 4),
    cut=st.integers(0, 5),
    large=st.booleans(),
    enough=st.integers(1, 2000),
)
def test_what_is_encoded_is_what_was_given(rows, batch_bytes, compression, cut, large, enough):
    key, value, headers, partition, times = map(list, zip(*rows, strict=True)) if rows else ([],) * 5
    binary = pa.large_binary() if large else pa.binary()
    columns = [
        pa.array(value, binary),
        pa.array(key, binary),
        pa.array([h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS),
        pa.array(partition, pa.int32()),
        pa.array(times, pa.timestamp("us", tz="UTC")),
    ]
    columns = [column.slice(min(cut, len(rows))) for column in columns]  # they begin inside of their buffers
    rows = rows[cut:]
    encoder = RecordEncoder(3, batch_bytes)
    at, finished = 0, []
    while at < len(rows):
        at = encoder.append(NOW, *columns, start=at, enough_bytes=enough)
        assert at == len(rows) or encoder.finished_bytes >= enough
        finished += encoder.take()
    encoder.close()
    finished += encoder.take()
    assert all(len(encoded.data) <= batch_bytes or encoded.count == 1 for encoded in finished)
    found = decoded(finished, compression)
    assert encoder.rows == len(rows)
    every = [record for records in found.values() for record in records]
    assert sorted(map(repr, map(content, every))) == sorted(map(repr, map(expected, rows)))
    for partition in range(3):
        there = iter(found.get(partition, []))
        for row in rows:  # those that belong here stand here, in their order
            if place_of(row) == partition:
                assert any(content(record) == expected(row) for record in there)


def content(record):
    return record.key, record.value, record.headers, record.timestamp


def expected(row):
    key, value, headers, _, time = row
    return key, value, headers or [], NOW if time is None else time // 1000


def place_of(row):
    key, _, _, partition, _ = row
    if partition is None and key is not None:
        return (murmur2_slowly(key) & 0x7FFFFFFF) % 3
    return partition


def test_records_without_key_go_round_batch_by_batch():
    encoder = RecordEncoder(3, 1000, sticky=1)
    encoder.append(NOW, pa.array([b"x" * 90] * 100))
    encoder.close()
    finished = encoder.take()
    assert [encoded.partition for encoded in finished[:6]] == [1, 2, 0, 1, 2, 0]
    assert max(encoded.count for encoded in finished) > 5


def test_strings_and_large_values_and_empty_arrays():
    encoder = RecordEncoder(1)
    encoder.append(NOW, pa.array(["ä", "", None]), pa.array(["k", "", None], pa.large_string()))
    encoder.append(NOW, pa.array([], pa.binary()))
    encoder.append(NOW, pa.array([None, None], pa.binary()))
    encoder.append(NOW, pa.array([b"\0" * (10 << 20)]))
    encoder.close()
    records = decoded(encoder.take())[0]
    assert [(r.key, r.value) for r in records[:5]] == [
        (b"k", "ä".encode()), (b"", b""), (None, None), (None, None), (None, None),
    ]  # fmt: skip
    assert len(records[5].value) == 10 << 20


def test_a_partition_that_is_not_there_is_named_with_its_row():
    for wrong in (-1, 3, 1 << 30):
        encoder = RecordEncoder(3)
        with pytest.raises(NoSuchPartition) as caught:
            encoder.append(NOW, pa.array([b"a", b"b"]), partition=pa.array([2, wrong], pa.int32()))
        assert (caught.value.row, caught.value.partition) == (1, wrong)


def test_headers_that_no_record_can_have_are_refused():
    value = pa.array([b"v"])
    for lists, said in (([[{"key": None, "value": b"x"}]], "key of a header"), ([[None]], "header is null")):
        with pytest.raises(ValueError, match=said):
            RecordEncoder(1).append(NOW, value, headers=pa.array(lists, HEADERS))


class Lying:
    """An array whose buffers are what we say: pyarrow makes none that lies."""

    def __init__(self, offsets, data, length=2):
        self.given = [None, pa.array(offsets, pa.int32()).buffers()[1], data]
        self.length, self.offset, self.type = length, 0, pa.binary()

    def buffers(self):
        return self.given

    def __len__(self):
        return self.length


@pytest.mark.parametrize("offsets", [[0, 5, 3], [0, 2, 6], [-1, 2, 3], [0, 1, -2]])
def test_offsets_that_lie_are_refused(offsets):
    with pytest.raises(ValueError, match="outside of its data"):
        RecordEncoder(1).append(NOW, Lying(offsets, b"hello"))


def test_buffers_that_are_too_short_are_refused():
    with pytest.raises(ValueError, match="too short"):
        RecordEncoder(1).append(NOW, Lying([0, 2, 5], b"hello", length=1 << 20))
    with pytest.raises(ValueError, match="different lengths"):
        RecordEncoder(1).append(NOW, pa.array([b"a", b"b"]), pa.array([b"a"]))


def test_halves_of_an_encoded_batch_are_its_records():
    encoder = RecordEncoder(1)
    times = pa.array([5000, 1000, 9000], pa.timestamp("us"))
    encoder.append(NOW, pa.array([b"a", b"b", b"c"]), timestamp=times)
    encoder.close()
    batch = EncodedBatch(encoder.take()[0])
    batch.encode(1, 7, 0, 4)  # it was sent once, compressed
    halves = [Batch(half.encode(0, 7, 0, 4)) for half in batch.halves()]
    assert [[(r.value, r.timestamp, r.offset) for r in half.records()] for half in halves] == [
        [(b"a", 5, 0)],
        [(b"b", 1, 0), (b"c", 9, 1)],
    ]
