"""CRC-32 of bytes, as zlib computes it, without the GIL; see crc32.h for how."""

from libc.stdint cimport uint8_t, uint32_t

# The CRC-32 of `size` bytes, going on from `seed` (the CRC of what stood before; 0 at the start).
cdef uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed=*) noexcept nogil
