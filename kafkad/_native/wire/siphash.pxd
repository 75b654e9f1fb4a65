"""SipHash-1-3 with 64 or 128 bits: a hash for keys that clients choose, who must not be able to make them collide."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return x << bits | x >> (64 - bits)


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef inline void sip_begin(uint64_t* v, uint64_t low, uint64_t high) noexcept nogil:
    v[0] = low ^ 0x736F6D6570736575ULL
    v[1] = high ^ 0x646F72616E646F6DULL
    v[2] = low ^ 0x6C7967656E657261ULL
    v[3] = high ^ 0x7465646279746573ULL


cdef inline void sip_take(uint64_t* v, const uint8_t* data, size_t size) noexcept nogil:
    cdef uint64_t word
    cdef uint64_t last = <uint64_t>size << 56
    cdef size_t whole = size & ~<size_t>7
    cdef size_t i
    for i in range(0, whole, 8):
        memcpy(&word, data + i, 8)
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
    for i in range(whole, size):
        last |= <uint64_t>data[i] << (8 * (i - whole))
    v[3] ^= last
    sip_round(v)
    v[0] ^= last


cdef inline uint64_t sip_rest(uint64_t* v) noexcept nogil:
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline uint64_t siphash(uint64_t low, uint64_t high, const uint8_t* data, size_t size) noexcept nogil:
    cdef uint64_t v[4]
    sip_begin(v, low, high)
    sip_take(v, data, size)
    v[2] ^= 0xFF
    return sip_rest(v)


cdef inline void siphash_128(uint64_t low, uint64_t high, const uint8_t* data, size_t size, uint64_t* first,
                             uint64_t* second) noexcept nogil:
    cdef uint64_t v[4]
    sip_begin(v, low, high)
    v[1] ^= 0xEE
    sip_take(v, data, size)
    v[2] ^= 0xEE
    first[0] = sip_rest(v)
    v[1] ^= 0xDD
    second[0] = sip_rest(v)
