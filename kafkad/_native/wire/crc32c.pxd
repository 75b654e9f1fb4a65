"""CRC-32C, without the GIL; crc32c.h has the implementations."""

from libc.stdint cimport uint8_t, uint32_t

# Return the CRC-32C of `size` bytes. `seed` is the CRC of the preceding bytes, 0 at the start.
cdef uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed=*) noexcept nogil
