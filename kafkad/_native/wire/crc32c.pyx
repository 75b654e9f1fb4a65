"""CRC-32C (Castagnoli), by the fastest implementation that this CPU supports, chosen once at import.

Python calls `checksum(data, seed=0)`; native code cimports `crc32c`. `IMPLEMENTATIONS` lists what this CPU supports,
fastest first, and `checksum_by(name, ...)` calls one of them, so that tests reach all of them."""

from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*crc32c_function)(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    int crc32c_implementations(const char** names, crc32c_function* functions)

cdef const char* names[4]
cdef crc32c_function functions[4]
cdef int count = crc32c_implementations(names, functions)
cdef crc32c_function fastest = functions[0]

IMPLEMENTATIONS = tuple(names[i].decode() for i in range(count))


cdef uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed=0) noexcept nogil:
    return ~fastest(~seed, data, size)


def checksum(const uint8_t[::1] data not None, uint32_t seed=0):
    """Return the CRC-32C of a contiguous buffer. `seed` is the checksum of the preceding bytes."""
    cdef size_t size = data.shape[0]
    if size == 0:
        return seed
    cdef uint32_t value
    with nogil:
        value = crc32c(&data[0], size, seed)
    return value


def checksum_by(str name, const uint8_t[::1] data not None, uint32_t seed=0):
    """Return the same checksum, computed by one of IMPLEMENTATIONS."""
    cdef crc32c_function function = functions[<int>IMPLEMENTATIONS.index(name)]
    cdef size_t size = data.shape[0]
    return <uint32_t>~function(~seed, &data[0] if size else NULL, size)
