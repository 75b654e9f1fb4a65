"""zlib's CRC-32, without the GIL; crc32.h has the implementation."""

from libc.stdint cimport uint8_t, uint32_t

# Return the CRC-32 of `size` bytes. `seed` is the CRC of the preceding bytes, 0 at the start.
cdef uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed=*) noexcept nogil
