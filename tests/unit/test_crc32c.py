"""The native CRC-32C, each of its ways on this CPU, against the crc32c package."""

import random

import crc32c as oracle
import pytest

from kafkad._native.wire import crc32c

NOISE = random.Random(32).randbytes(1 << 17)


def test_the_check_value_of_the_standard():
    assert crc32c.checksum(b"123456789") == 0xE3069283


def test_the_tables_are_always_there():
    assert crc32c.IMPLEMENTATIONS[-1] == "software"


@pytest.mark.parametrize("name", crc32c.IMPLEMENTATIONS)
def test_every_size_up_to_a_kilobyte_at_every_alignment(name):
    for size in range(1025):
        data = memoryview(NOISE)[size % 9 : size % 9 + size]
        assert crc32c.checksum_by(name, data) == oracle.crc32c(data), size


@pytest.mark.parametrize("name", crc32c.IMPLEMENTATIONS)
def test_large_and_seeded(name):
    chance = random.Random(1)
    for _ in range(200):
        start = chance.randrange(len(NOISE))
        data = NOISE[start : start + chance.randrange(len(NOISE))]
        seed = chance.getrandbits(32)
        assert crc32c.checksum_by(name, data, seed) == oracle.crc32c(data, seed)


def test_a_checksum_goes_on_from_a_seed():
    for cut in (0, 1, 100, 5000, len(NOISE)):
        assert crc32c.checksum(NOISE[cut:], crc32c.checksum(NOISE[:cut])) == crc32c.checksum(NOISE)


def test_nothing_has_checksum_zero():
    assert crc32c.checksum(b"") == 0
    assert crc32c.checksum(b"", 17) == 17
