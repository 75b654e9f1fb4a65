"""CRC-32C of bytes, without the GIL; see crc32c.h for how."""

from libc.stdint cimport uint8_t, uint32_t

# The CRC-32C of `size` bytes, going on from `seed` (the CRC of what stood before; 0 at the start).
cdef uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed=*) noexcept nogil
