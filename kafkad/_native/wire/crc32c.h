/* CRC-32C (Castagnoli), the checksum of a record batch, at memory speed.
 *
 * There are four implementations. The fastest that this CPU supports is chosen once, at import:
 *
 *   avx512     VPCLMULQDQ folds 256 bytes a step (Ice Lake and later, Zen 4 and later)
 *   sse42      three independent chains of the CRC32 instruction, joined by PCLMULQDQ: 8 bytes a cycle
 *   armv8      one chain of the CRC32CX instruction
 *   software   slicing by 8: eight tables of 256
 *
 * How folding works: A register holds 128 bits X of the message. Moving X past the next D bits means X * x^D. Modulo
 * the polynomial P, this is congruent to lo * (x^(D+64) mod P) + hi * (x^D mod P): two carry-less products of 64 by 32
 * bits, which are XORed onto the message D bits ahead. CRC-32C is bit-reflected, so a product is one bit too low, and
 * the 32-bit constants are in the low half of a 64-bit lane. Together this makes the exponents 33 smaller. The
 * constants are computed by `crc32c_power`.
 *
 * All functions here take and return the *raw* state; `crc32c_value` adds the inversions.
 */
#ifndef KAFKAD_CRC32C_H
#define KAFKAD_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reflected */

typedef uint32_t (*crc32c_function)(uint32_t crc, const uint8_t *p, size_t n);

static uint32_t crc32c_table[8][256];

/* a * b mod P, both reflected: bit 31 is x^0. */
static uint32_t crc32c_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ (b & 1 ? CRC32C_POLYNOMIAL : 0);
    }
    return product;
}

/* x^n mod P, reflected. */
static uint32_t crc32c_power(uint64_t n) {
    uint32_t power = 0x80000000u; /* x^0 */
    for (uint32_t square = 0x40000000u; n; n >>= 1) { /* x^1, x^2, x^4, ... */
        if (n & 1)
            power = crc32c_multiply(power, square);
        square = crc32c_multiply(square, square);
    }
    return power;
}

/* -- software ----------------------------------------------------------------------------------------------- */

static void crc32c_fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int k = 0; k < 8; k++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (uint32_t i = 0; i < 256; i++)
            crc32c_table[t][i] = (crc32c_table[t - 1][i] >> 8) ^ crc32c_table[0][crc32c_table[t - 1][i] & 0xFF];
}

static uint32_t crc32c_software(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = crc ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = crc32c_table[7][a & 0xFF] ^ crc32c_table[6][(a >> 8) & 0xFF] ^ crc32c_table[5][(a >> 16) & 0xFF] ^
              crc32c_table[4][a >> 24] ^ crc32c_table[3][p[4]] ^ crc32c_table[2][p[5]] ^ crc32c_table[1][p[6]] ^
              crc32c_table[0][p[7]];
    }
    for (; n; n--, p++)
        crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *p) & 0xFF];
    return crc;
}

/* -- x86-64 ------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CRC32C_X86 1
#include <immintrin.h>

/* GCC's sse4.2 includes the CRC32 instruction; Clang has a feature of its own for it. */
#ifdef __clang__
#define CRC32C_FEATURES "sse4.2,crc32,pclmul"
#else
#define CRC32C_FEATURES "sse4.2,pclmul"
#endif
#define CRC32C_SSE42 __attribute__((target(CRC32C_FEATURES)))
#define CRC32C_AVX512 __attribute__((target(CRC32C_FEATURES ",avx512f,avx512vl,avx512dq,vpclmulqdq")))

/* Long inputs use three lanes of 2048 bytes, the rest three lanes of 64. Joining lanes takes about 10 cycles. */
#define CRC32C_LONG_LANE 2048
#define CRC32C_SHORT_LANE 64

static uint32_t crc32c_shift_long[2], crc32c_shift_short[2]; /* past one lane, past two */

static inline uint64_t crc32c_load(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

CRC32C_SSE42 static inline uint64_t crc32c_product(uint32_t a, uint32_t b) {
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0));
}

CRC32C_SSE42 static inline uint32_t crc32c_three_lanes(uint32_t crc, const uint8_t *p, size_t lane,
                                                       const uint32_t *shift) {
    uint64_t a = crc, b = 0, c = 0;
    const uint8_t *last = p + lane - 8;
    for (; p < last; p += 8) {
        a = _mm_crc32_u64(a, crc32c_load(p));
        b = _mm_crc32_u64(b, crc32c_load(p + lane));
        c = _mm_crc32_u64(c, crc32c_load(p + 2 * lane));
    }
    a = _mm_crc32_u64(a, crc32c_load(p));
    b = _mm_crc32_u64(b, crc32c_load(p + lane));
    /* The CRC32 instruction over the last word of the third lane also reduces the two products. */
    uint64_t joined = crc32c_product((uint32_t)a, shift[1]) ^ crc32c_product((uint32_t)b, shift[0]);
    return (uint32_t)_mm_crc32_u64(c, crc32c_load(p + 2 * lane) ^ joined);
}

CRC32C_SSE42 static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * CRC32C_LONG_LANE; n -= 3 * CRC32C_LONG_LANE, p += 3 * CRC32C_LONG_LANE)
        crc = crc32c_three_lanes(crc, p, CRC32C_LONG_LANE, crc32c_shift_long);
    for (; n >= 3 * CRC32C_SHORT_LANE; n -= 3 * CRC32C_SHORT_LANE, p += 3 * CRC32C_SHORT_LANE)
        crc = crc32c_three_lanes(crc, p, CRC32C_SHORT_LANE, crc32c_shift_short);
    for (; n >= 8; n -= 8, p += 8)
        crc = (uint32_t)_mm_crc32_u64(crc, crc32c_load(p));
    for (; n; n--, p++)
        crc = _mm_crc32_u8(crc, *p);
    return crc;
}

/* Pairs (lo, hi) that move 128 bits past D bits: [0] 2048, [1] 1536, [2] 1024, [3] 512; and for the four lanes of one
 * register 384, 256, 128 and 0. */
static uint64_t crc32c_fold[4][2];
static uint64_t crc32c_fold_lanes[8] __attribute__((aligned(64)));

CRC32C_AVX512 static inline __m512i crc32c_fold_onto(__m512i x, __m512i k, __m512i ahead) {
    __m512i lo = _mm512_clmulepi64_epi128(x, k, 0x00);
    __m512i hi = _mm512_clmulepi64_epi128(x, k, 0x11);
    return _mm512_ternarylogic_epi64(lo, hi, ahead, 0x96); /* XOR of three */
}

CRC32C_AVX512 static inline __m512i crc32c_fold_constant(int which) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)crc32c_fold[which]));
}

CRC32C_AVX512 static uint32_t crc32c_avx512(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 256)
        return crc32c_sse42(crc, p, n);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128);
    __m512i d = _mm512_loadu_si512(p + 192);
    __m512i k = crc32c_fold_constant(0);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = crc32c_fold_onto(a, k, _mm512_loadu_si512(p));
        b = crc32c_fold_onto(b, k, _mm512_loadu_si512(p + 64));
        c = crc32c_fold_onto(c, k, _mm512_loadu_si512(p + 128));
        d = crc32c_fold_onto(d, k, _mm512_loadu_si512(p + 192));
    }
    d = crc32c_fold_onto(a, crc32c_fold_constant(1), d);
    d = crc32c_fold_onto(b, crc32c_fold_constant(2), d);
    k = crc32c_fold_constant(3);
    d = crc32c_fold_onto(c, k, d);
    for (; n >= 64; p += 64, n -= 64)
        d = crc32c_fold_onto(d, k, _mm512_loadu_si512(p));
    /* Fold the first three lanes onto the last; then the CRC32 instruction reduces 128 bits to 32. */
    __m512i lanes = crc32c_fold_onto(d, _mm512_load_si512(crc32c_fold_lanes), _mm512_setzero_si512());
    __m128i x = _mm_xor_si128(_mm512_extracti64x2_epi64(lanes, 0), _mm512_extracti64x2_epi64(lanes, 1));
    x = _mm_xor_si128(x, _mm512_extracti64x2_epi64(lanes, 2));
    x = _mm_xor_si128(x, _mm512_extracti64x2_epi64(d, 3));
    uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(x, 0));
    state = _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(x, 1));
    return crc32c_sse42((uint32_t)state, p, n);
}
#endif

/* -- ARM ---------------------------------------------------------------------------------------------------- */

#if defined(__aarch64__) && defined(__linux__)
#define CRC32C_ARM 1
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

static uint32_t crc32c_armv8(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t word;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&word, p, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; n; n--, p++)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p));
    return crc;
}
#endif

/* -- choice ------------------------------------------------------------------------------------------------- */

/* Compute tables and constants. Fill `names` and `functions` (at most 4) with what this CPU supports, fastest first, and
 * return their number. */
static int crc32c_implementations(const char **names, crc32c_function *functions) {
    int count = 0;
    crc32c_fill_table();
#ifdef CRC32C_X86
    crc32c_shift_long[0] = crc32c_power(8 * CRC32C_LONG_LANE - 33);
    crc32c_shift_long[1] = crc32c_power(2 * 8 * CRC32C_LONG_LANE - 33);
    crc32c_shift_short[0] = crc32c_power(8 * CRC32C_SHORT_LANE - 33);
    crc32c_shift_short[1] = crc32c_power(2 * 8 * CRC32C_SHORT_LANE - 33);
    for (int i = 0; i < 4; i++) {
        uint64_t distance = 2048 - 512 * i;
        crc32c_fold[i][0] = crc32c_power(distance + 64 - 33);
        crc32c_fold[i][1] = crc32c_power(distance - 33);
    }
    for (int lane = 0; lane < 3; lane++) {
        uint64_t distance = 384 - 128 * lane;
        crc32c_fold_lanes[2 * lane] = crc32c_power(distance + 64 - 33);
        crc32c_fold_lanes[2 * lane + 1] = crc32c_power(distance - 33);
    }
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq")) {
            names[count] = "avx512";
            functions[count++] = crc32c_avx512;
        }
        names[count] = "sse42";
        functions[count++] = crc32c_sse42;
    }
#endif
#ifdef CRC32C_ARM
    if (getauxval(AT_HWCAP) & HWCAP_CRC32) {
        names[count] = "armv8";
        functions[count++] = crc32c_armv8;
    }
#endif
    names[count] = "software";
    functions[count++] = crc32c_software;
    return count;
}

#endif
