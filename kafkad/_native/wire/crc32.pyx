"""zlib's CRC-32, for messages of magic 0 and 1.

zlib itself is not used, because its header is missing on a fresh machine and its Python module needs a Python object per
message."""

from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32.h" nogil:
    void kafkad_crc32_init()
    uint32_t kafkad_crc32(uint32_t crc, const uint8_t* data, size_t size)
    uint32_t kafkad_crc32_sliced(uint32_t crc, const uint8_t* data, size_t size)
    int kafkad_crc32_folds

kafkad_crc32_init()


cdef uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed=0) noexcept nogil:
    return kafkad_crc32(seed, data, size)


def checksum(const uint8_t[::1] data not None, uint32_t seed=0):
    """Return the CRC-32 of a contiguous buffer. `seed` is the checksum of the preceding bytes."""
    cdef size_t size = data.shape[0]
    cdef uint32_t value
    if size == 0:
        return seed
    with nogil:
        value = kafkad_crc32(seed, &data[0], size)
    return value


def checksum_sliced(const uint8_t[::1] data not None, uint32_t seed=0):
    """Return the same checksum, computed with tables as on CPUs without carry-less multiplication."""
    cdef size_t size = data.shape[0]
    return <uint32_t>~kafkad_crc32_sliced(~seed, &data[0] if size else NULL, size)


def set_folding(int bytes_per_step):
    """For tests: fold this many bytes per step: 256, 64, or 0 for tables. Return how many before, which is the most
    that this CPU supports."""
    global kafkad_crc32_folds
    before = kafkad_crc32_folds
    kafkad_crc32_folds = bytes_per_step
    return before
