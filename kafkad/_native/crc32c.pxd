"""CRC-32C of bytes, without the GIL; see crc32c.h for how."""

from libc.stdint cimport uint8_t, uint32_t

# The CRC-32C of `size` bytes, going on from `seed` (the CRC of what stood before; 0 at the start).
cdef uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed=*) noexcept nogil

# The CRC-32C of A followed by B from crc32c(A), crc32c(B) and the size of B: no byte is read.
cdef uint32_t crc32c_joined(uint32_t first, uint32_t second, size_t second_size) noexcept nogil
