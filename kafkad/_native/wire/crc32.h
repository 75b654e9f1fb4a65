/* zlib's CRC-32, the checksum of messages of magic 0 and 1. It uses carry-less multiplication if the CPU supports it, and
 * otherwise 16 tables with 16 bytes per step (slicing by 16). The multiplication follows Intel's paper "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction" (2009): fold 64 bytes into the next 64, then into 16, and reduce these
 * (Barrett). */
#ifndef KAFKAD_CRC32_H
#define KAFKAD_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t kafkad_crc32_tables[16][256];

#if defined(__x86_64__)
static int kafkad_crc32_folds;
static void kafkad_crc32_choose(void) {
    kafkad_crc32_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
static void kafkad_crc32_choose(void) {}
#endif

static void kafkad_crc32_init(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t value = n;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
        kafkad_crc32_tables[0][n] = value;
    }
    for (int table = 1; table < 16; table++)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t before = kafkad_crc32_tables[table - 1][n];
            kafkad_crc32_tables[table][n] = (before >> 8) ^ kafkad_crc32_tables[0][before & 0xFF];
        }
    kafkad_crc32_choose();
}

#if defined(__x86_64__)
#include <immintrin.h>

/* `n` is a multiple of 16 and at least 64. The argument `crc` and the result are inverted. The constants are powers of x modulo
 * the polynomial, bits reversed: x^(512+32) and x^(512-32), x^(128+32) and x^(128-32), x^64, then the polynomial and its
 * inverse. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t kafkad_crc32_fold(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i far = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i near = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i last = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
    __m128i x[4], other;
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)(p + 16 * i));
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++) {
            other = _mm_clmulepi64_si128(x[i], far, 0x00);
            x[i] = _mm_xor_si128(_mm_clmulepi64_si128(x[i], far, 0x11), other);
            x[i] = _mm_xor_si128(x[i], _mm_loadu_si128((const __m128i *)(p + 16 * i)));
        }
    for (int i = 1; i < 4; i++) {
        other = _mm_clmulepi64_si128(x[0], near, 0x00);
        x[0] = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x[0], near, 0x11), other), x[i]);
    }
    for (; n >= 16; p += 16, n -= 16) {
        other = _mm_clmulepi64_si128(x[0], near, 0x00);
        x[0] = _mm_xor_si128(_mm_clmulepi64_si128(x[0], near, 0x11), other);
        x[0] = _mm_xor_si128(x[0], _mm_loadu_si128((const __m128i *)p));
    }
    other = _mm_clmulepi64_si128(x[0], near, 0x10);
    x[0] = _mm_xor_si128(_mm_srli_si128(x[0], 8), other);
    other = _mm_srli_si128(x[0], 4);
    x[0] = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x[0], low_words), last, 0x00), other);
    other = _mm_clmulepi64_si128(_mm_and_si128(x[0], low_words), barrett, 0x10);
    other = _mm_clmulepi64_si128(_mm_and_si128(other, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x[0], other), 1);
}
#endif

static uint32_t kafkad_crc32_sliced(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t words[4];
    uint32_t(*table)[256] = kafkad_crc32_tables;
    while (n >= 16) {
        memcpy(words, p, 16);
        words[0] ^= crc;
        crc = 0;
        for (int word = 0; word < 4; word++)
            crc ^= table[15 - 4 * word][words[word] & 0xFF] ^ table[14 - 4 * word][words[word] >> 8 & 0xFF] ^
                   table[13 - 4 * word][words[word] >> 16 & 0xFF] ^ table[12 - 4 * word][words[word] >> 24];
        p += 16;
        n -= 16;
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

/* `crc` is the CRC of the preceding bytes, 0 at the start. For little-endian machines only, like all native modules. */
static uint32_t kafkad_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (n >= 64 && kafkad_crc32_folds) {
        size_t whole = n & ~(size_t)15;
        crc = kafkad_crc32_fold(crc, p, whole);
        p += whole;
        n -= whole;
    }
#endif
    return ~kafkad_crc32_sliced(crc, p, n);
}

#endif
