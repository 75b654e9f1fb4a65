/* The few bytes of Kafka that the load generator and the bare loop speak: Produce v7, Fetch v11, batches v2. */
#ifndef KAFKA_WIRE_H
#define KAFKA_WIRE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline void put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }

static inline int put_varint(uint8_t *p, int64_t value)
{
    uint64_t v = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}

static inline int64_t get_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t v = 0;
    for (int shift = 0; *at < end && shift < 70; shift += 7) {
        uint8_t byte = *(*at)++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return (int64_t)((v >> 1) ^ (~(v & 1) + 1));
    }
    return -1;
}

/* CRC-32C on three interleaved streams would be quicker; one stream is what a plain C loop would do. */
__attribute__((target("sse4.2"))) static inline uint32_t crc32c(const uint8_t *p, size_t n)
{
    uint64_t crc = 0xffffffffu;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __builtin_ia32_crc32di(crc, word);
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
    return (uint32_t)crc ^ 0xffffffffu;
}

/* One batch of `count` records with values of `value_size` random-looking bytes and, if `keyed`, 8-byte keys. */
static inline size_t make_batch(uint8_t *out, int count, int value_size, int keyed, int64_t now_ms)
{
    uint8_t *p = out + 61;
    uint64_t x = 88172645463325252ull;
    for (int i = 0; i < count; i++) {
        uint8_t body[32];
        int n = 0;
        body[n++] = 0;
        n += put_varint(body + n, 0);
        n += put_varint(body + n, i);
        if (keyed) {
            n += put_varint(body + n, 8);
            put64(body + n, (uint64_t)i * 2654435761u);
            n += 8;
        } else {
            n += put_varint(body + n, -1);
        }
        n += put_varint(body + n, value_size);
        p += put_varint(p, n + value_size + 1);
        memcpy(p, body, n);
        p += n;
        for (int j = 0; j < value_size; j++) {
            if ((j & 7) == 0) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            p[j] = (uint8_t)(x >> ((j & 7) * 8));
        }
        p += value_size;
        *p++ = 0;
    }
    size_t size = (size_t)(p - out);
    put64(out, 0);
    put32(out + 8, (uint32_t)(size - 12));
    put32(out + 12, (uint32_t)-1);
    out[16] = 2;
    put16(out + 21, 0);
    put32(out + 23, (uint32_t)(count - 1));
    put64(out + 27, (uint64_t)now_ms);
    put64(out + 35, (uint64_t)now_ms);
    put64(out + 43, (uint64_t)-1);
    put16(out + 51, (uint16_t)-1);
    put32(out + 53, (uint32_t)-1);
    put32(out + 57, (uint32_t)count);
    put32(out + 17, crc32c(out + 21, size - 21));
    return size;
}

#endif
