"""A batch that claims to hold gigabytes costs a chunk of memory, little time, and is refused."""

import gzip
import resource
import subprocess
import sys
import time

import lz4.frame
import pytest
import zstandard

from kafkad._native.wire.batch import AppendRules
from kafkad.protocol import compression
from kafkad.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD
from kafkad.protocol.errors import INVALID_RECORD, MESSAGE_TOO_LARGE, Malformed
from kafkad.protocol.validation import InvalidBatch, validate_slow
from tests.unit.test_batch import NOW, altered, batch, varint, with_records

# The head of one record with 1,500,000,000 bytes of value, of which the bombs hold the first 200 MiB.
SIZE = 1_500_000_000
HEAD = varint(SIZE + 12) + b"\0\0\0\1" + varint(SIZE)


def bomb(codec: int, size: int) -> bytes:
    zeros = HEAD + bytes(size)
    if codec == GZIP:
        return gzip.compress(zeros, 9)
    if codec == LZ4:
        return lz4.frame.compress(zeros, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    if codec == ZSTD:
        return zstandard.ZstdCompressor(level=1).compress(zeros)
    return compression.compress(codec, zeros)


def as_batch(codec: int, payload: bytes) -> bytearray:
    return altered(
        batch(1)[:61] + payload,
        length=len(payload) + 49,
        attributes=codec,
        last_offset_delta=0,
        records_count=1,
    )


def refuse(codec: int, size: int) -> None:
    """Runs in a process of its own: prints the code, the growth of the peak in KiB and the milliseconds."""
    data = as_batch(codec, bomb(codec, size))
    rules = AppendRules(max_message_bytes=len(data) if codec == SNAPPY else 1048588)
    with pytest.raises(InvalidBatch):  # once, so that the libraries are loaded
        validate_slow(with_records(b"\0", 1, codec), rules, NOW)
    reset_peak()
    before, start = peak(), time.perf_counter()
    with pytest.raises(InvalidBatch) as refused:
        validate_slow(data, rules, NOW)
    print(refused.value.code, peak() - before, (time.perf_counter() - start) * 1000)


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_costs_a_chunk(codec):
    size = 200 << 20
    run = subprocess.run(
        [sys.executable, "-c", f"from tests.unit.test_batch_bombs import refuse; refuse({codec}, {size})"],
        capture_output=True,
        text=True,
        check=True,
    )
    code, grown_kib, took_ms = (float(word) for word in run.stdout.split())
    assert code == MESSAGE_TOO_LARGE if codec != SNAPPY else code in (MESSAGE_TOO_LARGE, INVALID_RECORD)
    assert grown_kib < 12 << 10  # chunks, zstd's window and lz4's block of 4 MiB
    assert took_ms < 5000


def test_a_bomb_of_empty_records_is_bounded_too():
    data = with_records(b"\x0c\0\0\0\1\1\0" * (10 << 20), 10 << 20, ZSTD)
    with pytest.raises(InvalidBatch) as refused:
        validate_slow(data, AppendRules(), NOW)
    assert refused.value.code == MESSAGE_TOO_LARGE


def windows() -> None:
    """Runs in a process of its own, which may grow by 200 MiB: prints the windows it reads."""
    body = b"w" * 100

    def frame(window_log: int) -> bytes:  # that does not say the size of what it holds
        block = (len(body) << 3 | 1).to_bytes(3, "little") + body
        return b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]) + block

    assert compression.decompress(ZSTD, frame(20), 100) == body  # the libraries are loaded
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20), resource.RLIM_INFINITY))
    for window_log in range(10, 42):
        try:
            assert compression.decompress(ZSTD, frame(window_log), 100) == body
            print(window_log)
        except Malformed:
            pass


def test_a_zstd_window_above_128_mib_is_refused_and_not_allocated():
    """Kafka's limit is the same, libzstd's default: tests/integration/test_differential.py compares them."""
    run = subprocess.run(
        [sys.executable, "-c", "from tests.unit.test_batch_bombs import windows; windows()"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [int(word) for word in run.stdout.split()] == list(range(10, 28))
