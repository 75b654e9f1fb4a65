"""Read and write Kafka's primitive types: big-endian integers, varints, and a checked cursor.

`Cursor` is two pointers and a flag. Every read checks how many bytes remain. The first read that does not fit sets
`failed`; after that, all reads return zero, so a caller may read a whole struct and check once.
Varints: unsigned LEB128, at most 5 bytes for 32 bits and 10 for 64 (ByteUtils); `varint`/`varlong` are zigzag.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "kafkad_check.h" nogil:
    void KAFKAD_CHECK(bint condition)


cdef extern from * nogil:
    """
    #define kafkad_bswap16(x) __builtin_bswap16(x)
    #define kafkad_bswap32(x) __builtin_bswap32(x)
    #define kafkad_bswap64(x) __builtin_bswap64(x)
    """
    uint16_t kafkad_bswap16(uint16_t)
    uint32_t kafkad_bswap32(uint32_t)
    uint64_t kafkad_bswap64(uint64_t)


# -- unchecked, at a known position ------------------------------------------------------------------------

cdef inline int16_t get_i16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return <int16_t>kafkad_bswap16(v)


cdef inline int32_t get_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return <int32_t>kafkad_bswap32(v)


cdef inline uint32_t get_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return kafkad_bswap32(v)


cdef inline int64_t get_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return <int64_t>kafkad_bswap64(v)


cdef inline void put_i16(uint8_t* p, int16_t value) noexcept nogil:
    cdef uint16_t v = kafkad_bswap16(<uint16_t>value)
    memcpy(p, &v, 2)


cdef inline void put_i32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t v = kafkad_bswap32(<uint32_t>value)
    memcpy(p, &v, 4)


cdef inline void put_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t v = kafkad_bswap64(<uint64_t>value)
    memcpy(p, &v, 8)


# -- checked cursor ----------------------------------------------------------------------------------------

cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    bint failed


cdef inline void cursor_init(Cursor* c, const uint8_t* data, size_t size) noexcept nogil:
    c.at = data
    c.end = data + size
    c.failed = False


cdef inline size_t remaining(const Cursor* c) noexcept nogil:
    return <size_t>(c.end - c.at)


cdef inline bint fits(Cursor* c, size_t size) noexcept nogil:
    if c.failed or <size_t>(c.end - c.at) < size:
        c.failed = True
        return False
    return True


cdef inline int8_t read_i8(Cursor* c) noexcept nogil:
    if not fits(c, 1):
        return 0
    c.at += 1
    return <int8_t>(c.at - 1)[0]


cdef inline int16_t read_i16(Cursor* c) noexcept nogil:
    if not fits(c, 2):
        return 0
    c.at += 2
    return get_i16(c.at - 2)


cdef inline int32_t read_i32(Cursor* c) noexcept nogil:
    if not fits(c, 4):
        return 0
    c.at += 4
    return get_i32(c.at - 4)


cdef inline int64_t read_i64(Cursor* c) noexcept nogil:
    if not fits(c, 8):
        return 0
    c.at += 8
    return get_i64(c.at - 8)


cdef inline const uint8_t* read_raw(Cursor* c, size_t size) noexcept nogil:
    if not fits(c, size):
        return NULL
    c.at += size
    return c.at - size


cdef inline uint32_t read_uvarint(Cursor* c) noexcept nogil:
    cdef uint32_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 35:
        if c.failed or c.at == c.end:
            c.failed = True
            return 0
        byte = c.at[0]
        c.at += 1
        value |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    c.failed = True
    return 0


cdef inline uint64_t read_uvarlong(Cursor* c) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 70:
        if c.failed or c.at == c.end:
            c.failed = True
            return 0
        byte = c.at[0]
        c.at += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    c.failed = True
    return 0


cdef inline int32_t read_varint(Cursor* c) noexcept nogil:
    cdef uint32_t v = read_uvarint(c)
    return <int32_t>((v >> 1) ^ (~(v & 1) + 1))


cdef inline int64_t read_varlong(Cursor* c) noexcept nogil:
    cdef uint64_t v = read_uvarlong(c)
    return <int64_t>((v >> 1) ^ (~(v & 1) + 1))


# -- parts of every flexible message -------------------------------------------------------------------------

cdef inline void skip_tags(Cursor* c) noexcept nogil:
    """Skip tagged fields, which are unknown here."""
    cdef uint32_t count = read_uvarint(c)
    while count and not c.failed:
        read_uvarint(c)
        read_raw(c, read_uvarint(c))
        count -= 1


cdef inline int64_t read_count(Cursor* c, bint flexible, size_t smallest) noexcept nogil:
    """Read the count of an array that cannot be null. Fail if the remaining bytes cannot hold so many elements."""
    cdef int64_t count = <int64_t>read_uvarint(c) - 1 if flexible else read_i32(c)
    if count < 0 or <uint64_t>count * smallest > remaining(c):
        c.failed = True
        return 0
    return count


# -- writing varints: the caller has room for 5 or 10 bytes; returns the number of bytes written ------------

cdef inline int put_uvarint(uint8_t* p, uint32_t value) noexcept nogil:
    cdef int n = 0
    while value >= 0x80:
        p[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    p[n] = <uint8_t>value
    return n + 1


cdef inline int put_uvarlong(uint8_t* p, uint64_t value) noexcept nogil:
    cdef int n = 0
    while value >= 0x80:
        p[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    p[n] = <uint8_t>value
    return n + 1


cdef inline int put_varint(uint8_t* p, int32_t value) noexcept nogil:
    return put_uvarint(p, (<uint32_t>value << 1) ^ <uint32_t>(value >> 31))


cdef inline int put_varlong(uint8_t* p, int64_t value) noexcept nogil:
    return put_uvarlong(p, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))
