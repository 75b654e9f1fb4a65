/* zlib's CRC-32, the checksum of messages of magic 0 and 1. It uses carry-less multiplication if the CPU supports it, and
 * otherwise 16 tables with 16 bytes per step (slicing by 16). The multiplication follows Intel's paper "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction" (2009): fold 64 bytes into the next 64, then into 16, and reduce these
 * (Barrett). With VPCLMULQDQ, 256 bytes are folded per step, as crc32c.h explains. */
#ifndef KAFKAD_CRC32_H
#define KAFKAD_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t kafkad_crc32_tables[16][256];
static int kafkad_crc32_folds; /* bytes per step: 64 or 256; 0: the CPU cannot */

#if defined(__x86_64__)
static uint64_t kafkad_crc32_far[4][2]; /* past 2048, 1536, 1024 and 512 bits */
static uint64_t kafkad_crc32_lanes[8];  /* past 384, 256, 128 and 0 bits */

/* x^n modulo the polynomial, bits reversed. */
static uint32_t kafkad_crc32_power(int n) {
    uint32_t power = 0x80000000u;
    while (n-- > 0)
        power = (power >> 1) ^ (0xEDB88320u & (0u - (power & 1)));
    return power;
}

static void kafkad_crc32_choose(void) {
    for (int i = 0; i < 4; i++) {
        int past = 2048 - 512 * i;
        kafkad_crc32_far[i][0] = kafkad_crc32_power(past + 64 - 33);
        kafkad_crc32_far[i][1] = kafkad_crc32_power(past - 33);
    }
    for (int lane = 0; lane < 3; lane++) {
        int past = 384 - 128 * lane;
        kafkad_crc32_lanes[2 * lane] = kafkad_crc32_power(past + 64 - 33);
        kafkad_crc32_lanes[2 * lane + 1] = kafkad_crc32_power(past - 33);
    }
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        kafkad_crc32_folds = 64;
    if (kafkad_crc32_folds && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq"))
        kafkad_crc32_folds = 256;
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

#define KAFKAD_CRC32_SSE41 __attribute__((target("pclmul,sse4.1")))
#define KAFKAD_CRC32_AVX512 __attribute__((target("pclmul,sse4.1,avx512f,avx512vl,avx512dq,vpclmulqdq")))

/* All of these take and return the inverted CRC. The constants are powers of x modulo the polynomial, bits reversed:
 * x^(512+32) and x^(512-32), x^(128+32) and x^(128-32), x^64, then the polynomial and its inverse. */
KAFKAD_CRC32_SSE41 static inline __m128i kafkad_crc32_onto(__m128i x, __m128i k, __m128i ahead) {
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00);
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x11), low), ahead);
}

/* Shuffles that move the bytes of a register by up to 16 places up (loaded below 16) or down (loaded above). */
static const uint8_t kafkad_crc32_moves[48] __attribute__((aligned(16))) = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 0,   1,   2,   3,   4,   5,   6,   7,
    8,   9,   10,  11,  12,  13,  14,  15,  128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
};

/* `x` is what all bytes before `p` are folded to: at least 16. */
KAFKAD_CRC32_SSE41 static inline uint32_t kafkad_crc32_reduced(__m128i x, const uint8_t *p, size_t n) {
    const __m128i near = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i last = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
    __m128i other;
    for (; n >= 16; p += 16, n -= 16)
        x = kafkad_crc32_onto(x, near, _mm_loadu_si128((const __m128i *)p));
    if (n) { /* fold the first n bytes of x onto the 16 bytes that follow: the others of x, then the last n */
        __m128i up = _mm_loadu_si128((const __m128i *)(kafkad_crc32_moves + n));
        __m128i down = _mm_loadu_si128((const __m128i *)(kafkad_crc32_moves + n + 16));
        __m128i last_bytes = _mm_loadu_si128((const __m128i *)(p + n - 16));
        other = _mm_blendv_epi8(last_bytes, _mm_shuffle_epi8(x, down), up);
        x = kafkad_crc32_onto(_mm_shuffle_epi8(x, up), near, other);
    }
    other = _mm_clmulepi64_si128(x, near, 0x10);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), other);
    other = _mm_srli_si128(x, 4);
    x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low_words), last, 0x00), other);
    other = _mm_clmulepi64_si128(_mm_and_si128(x, low_words), barrett, 0x10);
    other = _mm_clmulepi64_si128(_mm_and_si128(other, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, other), 1);
}

/* `n` is at least 64. */
KAFKAD_CRC32_SSE41 static uint32_t kafkad_crc32_fold(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i far = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i near = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)(p + 16 * i));
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = kafkad_crc32_onto(x[i], far, _mm_loadu_si128((const __m128i *)(p + 16 * i)));
    for (int i = 1; i < 4; i++)
        x[0] = kafkad_crc32_onto(x[0], near, x[i]);
    return kafkad_crc32_reduced(x[0], p, n);
}

KAFKAD_CRC32_AVX512 static inline __m512i kafkad_crc32_wide(__m512i x, __m512i k, __m512i ahead) {
    __m512i low = _mm512_clmulepi64_epi128(x, k, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(x, k, 0x11);
    return _mm512_ternarylogic_epi64(low, high, ahead, 0x96); /* XOR of three */
}

/* `n` is at least 256. */
KAFKAD_CRC32_AVX512 static uint32_t kafkad_crc32_fold_wide(uint32_t crc, const uint8_t *p, size_t n) {
    __m512i x[4], k[4];
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_loadu_si512(p + 64 * i);
        k[i] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kafkad_crc32_far[i]));
    }
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = kafkad_crc32_wide(x[i], k[0], _mm512_loadu_si512(p + 64 * i));
    for (int i = 0; i < 3; i++)
        x[3] = kafkad_crc32_wide(x[i], k[i + 1], x[3]);
    for (; n >= 64; p += 64, n -= 64)
        x[3] = kafkad_crc32_wide(x[3], k[3], _mm512_loadu_si512(p));
    __m512i lanes = kafkad_crc32_wide(x[3], _mm512_loadu_si512(kafkad_crc32_lanes), _mm512_setzero_si512());
    __m128i folded = _mm512_extracti64x2_epi64(x[3], 3);
    folded = _mm_xor_si128(folded, _mm512_extracti64x2_epi64(lanes, 0));
    folded = _mm_xor_si128(folded, _mm512_extracti64x2_epi64(lanes, 1));
    folded = _mm_xor_si128(folded, _mm512_extracti64x2_epi64(lanes, 2));
    return kafkad_crc32_reduced(folded, p, n);
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
    for (; n >= 4; p += 4, n -= 4) { /* the end of most messages: a byte at a time, each waits for the one before */
        memcpy(words, p, 4);
        words[0] ^= crc;
        crc = table[3][words[0] & 0xFF] ^ table[2][words[0] >> 8 & 0xFF] ^ table[1][words[0] >> 16 & 0xFF] ^
              table[0][words[0] >> 24];
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

/* `crc` is the CRC of the preceding bytes, 0 at the start. For little-endian machines only, like all native modules. */
static uint32_t kafkad_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (n >= 256 && kafkad_crc32_folds == 256)
        return ~kafkad_crc32_fold_wide(crc, p, n);
    if (n >= 64 && kafkad_crc32_folds)
        return ~kafkad_crc32_fold(crc, p, n);
#endif
    return ~kafkad_crc32_sliced(crc, p, n);
}

#endif
