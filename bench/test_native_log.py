"""pytest-benchmark of the native log and codec: an append, the region of a read, a message in and out.

    .venv/bin/python -m pytest bench/test_native_log.py --benchmark-columns=min,median,stddev

The log lies in pytest's temporary directory; --basetemp=/dev/shm/kafkad-bench puts it into memory. Each
figure holds a Python call of 0.2 µs, which the reactor does not make.
"""

import pytest

from kafkad.config.topic import TopicConfig
from kafkad.log.log import Log
from kafkad.protocol import codec, messages
from kafkad.protocol.records import Record, build_batch

NOW = 1_790_000_000_000
SEGMENT = 256 << 20
SHAPES = {"64 KB of 1 KB records": (64, 1000), "16 KB of 100 B records": (150, 100), "200 B": (1, 130)}


class NoScheduler:
    """Nothing here waits: no flush policy, no deletion."""

    def call_later(self, delay_ms, fn):
        raise AssertionError("nothing should be scheduled")

    def run_in_thread(self, fn, callback, lane="work"):
        raise AssertionError("nothing should be scheduled")


@pytest.fixture
def log(tmp_path):
    made = Log.open(
        str(tmp_path / "t-0"), "t", 0, TopicConfig(), now_ms=NOW, clean=False, scheduler=NoScheduler()
    )
    made.set_leader_epoch(0)
    yield made
    made.close(clean=False)


def batch(shape: str) -> bytearray:
    count, size = SHAPES[shape]
    return build_batch([Record(None, bytes(size), timestamp=NOW) for _ in range(count)])


@pytest.mark.parametrize("shape", SHAPES)
def test_append(benchmark, log, shape):
    """Validation, CRC, producer check, index and the write. What comes back from disk is not read."""
    data = bytes(batch(shape))

    def append():
        log.append_client(bytearray(data), NOW)
        if log.size > SEGMENT:
            log.truncate_to(0)

    benchmark(append)
    assert log.end_offset >= 0


@pytest.mark.parametrize("where", ["at the end", "anywhere"])
def test_read_region(benchmark, log, where):
    data = bytes(batch("16 KB of 100 B records"))
    for _ in range(2000):
        log.append_client(bytearray(data), NOW)
    end = log.end_offset
    offsets = iter(range(10**9))
    step = 150 if where == "at the end" else 150 * 977

    def read():
        offset = end - 150 if where == "at the end" else next(offsets) * step % end
        return log.read(offset, 1, below="high_watermark")

    assert benchmark(read)


@pytest.mark.parametrize("partitions", [1, 100])
def test_metadata_response(benchmark, partitions):
    struct = messages.MetadataResponse.Topics
    response = messages.MetadataResponse(
        brokers=[messages.MetadataResponse.Brokers(node_id=1, host="127.0.0.1", port=9092)],
        topics=[
            struct(
                name="flights",
                partitions=[
                    struct.Partitions(partition_index=p, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                    for p in range(partitions)
                ],
            )
        ],
    )

    def there_and_back():
        return codec.decode(messages.MetadataResponse, 12, codec.encode(response, 12))[0]

    assert benchmark(there_and_back) == response
