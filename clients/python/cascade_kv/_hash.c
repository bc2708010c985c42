#include "_hash.h"

#include <string.h>

/* SHA-256 */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_portable(uint32_t state[8], const uint8_t *p, size_t blocks) {
    for (; blocks; blocks--, p += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = s[4], a = s[0];
            uint32_t t = s[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + K[i] + w[i];
            uint32_t u = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += t;
            s[0] = t + u;
        }
        for (int i = 0; i < 8; i++)
            state[i] += s[i];
    }
}

void (*sha256_blocks)(uint32_t[8], const uint8_t *, size_t) = sha256_portable;

/* xxHash64 */

#define X1 0x9e3779b185ebca87u
#define X2 0xc2b2ae3d27d4eb4fu
#define X3 0x165667b19e3779f9u
#define X4 0x85ebca77c2b2ae63u
#define X5 0x27d4eb2f165667c5u

static inline uint64_t rol64(uint64_t x, int n) { return x << n | x >> (64 - n); }
static inline uint64_t take(const uint8_t *p, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}
static inline uint64_t x_round(uint64_t acc, uint64_t in) { return rol64(acc + in * X2, 31) * X1; }

uint64_t xxhash64(const uint8_t *p, size_t n) {
    uint64_t h = X5;
    size_t left = n;
    if (n >= 32) {
        uint64_t v[4] = {X1 + X2, X2, 0, 0 - X1};
        for (; left >= 32; left -= 32)
            for (int i = 0; i < 4; i++, p += 8)
                v[i] = x_round(v[i], take(p, 8));
        h = rol64(v[0], 1) + rol64(v[1], 7) + rol64(v[2], 12) + rol64(v[3], 18);
        for (int i = 0; i < 4; i++)
            h = (h ^ x_round(0, v[i])) * X1 + X4;
    }
    h += n;
    for (; left >= 8; left -= 8, p += 8)
        h = rol64(h ^ x_round(0, take(p, 8)), 27) * X1 + X4;
    if (left >= 4) {
        h = rol64(h ^ take(p, 4) * X1, 23) * X2 + X3;
        left -= 4, p += 4;
    }
    for (; left; left--, p++)
        h = rol64(h ^ *p * X5, 11) * X1;
    h = (h ^ h >> 33) * X2;
    h = (h ^ h >> 29) * X3;
    return h ^ h >> 32;
}

/* CRC32C */

#define POLY 0x82f63b78u

static uint32_t table[8][256];

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? POLY : 0);
        table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
}

/* Without the inversions before and after. */
static uint32_t crc_portable(uint32_t c, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= c;
        c = table[7][lo & 255] ^ table[6][lo >> 8 & 255] ^ table[5][lo >> 16 & 255] ^ table[4][lo >> 24] ^ table[3][hi & 255] ^
            table[2][hi >> 8 & 255] ^ table[1][hi >> 16 & 255] ^ table[0][hi >> 24];
    }
    for (; n; n--)
        c = c >> 8 ^ table[0][(c ^ *p++) & 255];
    return c;
}

/* Copied and checksummed in pieces, so that the second pass finds them in the first cache. What was copied is what is checksummed: the
 * source may change meanwhile. */
#define PIECE ((size_t)8 << 10)

#define COPY_CRC(name, attributes, crc)                                                                       \
    attributes static uint32_t name(uint32_t c, uint8_t *restrict dst, const uint8_t *restrict src, size_t n) { \
        c = ~c;                                                                                               \
        while (n) {                                                                                           \
            size_t k = n < PIECE ? n : PIECE;                                                                 \
            memcpy(dst, src, k);                                                                              \
            c = crc(c, dst, k);                                                                               \
            dst += k, src += k, n -= k;                                                                       \
        }                                                                                                     \
        return ~c;                                                                                            \
    }

#define READ_CRC(name, attributes, crc) \
    attributes static uint32_t name(uint32_t c, const uint8_t *p, size_t n) { return ~crc(~c, p, n); }

COPY_CRC(copy_portable, , crc_portable)
READ_CRC(read_portable, , crc_portable)

uint32_t (*copy_crc)(uint32_t, uint8_t *restrict, const uint8_t *restrict, size_t) = copy_portable;
uint32_t (*move_crc)(uint32_t, uint8_t *restrict, const uint8_t *restrict, size_t) = copy_portable;
uint32_t (*read_crc)(uint32_t, const uint8_t *, size_t) = read_portable;

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <immintrin.h>

/* x^n modulo the polynomial, bit-reflected. */
static uint64_t power_of_x(int n) {
    uint32_t r = 1u << 31;
    while (n--)
        r = r >> 1 ^ (r & 1 ? POLY : 0);
    return r;
}

/* Multipliers that move 128 bits of a message a distance to its end, in bits: of the half that comes first in memory, and of the other. In
 * the reflected form a carry-less product comes out one bit too low, hence the shift; each half is aligned to the remainder's 32 bits. */
static uint64_t far_128[2], far_512[2], far_1024[2], far_4096[2];

static void distance(uint64_t k[2], int bits) {
    k[0] = power_of_x(bits + 32) << 1;
    k[1] = power_of_x(bits - 32) << 1;
}

#define SSE __attribute__((target("sse4.2,pclmul")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2")))

SSE static uint32_t crc_words(uint32_t c, const uint8_t *p, size_t n) {
    uint64_t r = c, w;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        r = _mm_crc32_u64(r, w);
    }
    for (; n; n--)
        r = _mm_crc32_u8((uint32_t)r, *p++);
    return (uint32_t)r;
}

SSE static inline __m128i fold_128(__m128i a, __m128i k, __m128i onto) {
    return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(a, k, 0x00), _mm_clmulepi64_si128(a, k, 0x11)));
}

/* The remainder of 16 bytes. */
SSE static inline uint32_t divide(__m128i a) {
    uint64_t r = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(a));
    return (uint32_t)_mm_crc32_u64(r, (uint64_t)_mm_extract_epi64(a, 1));
}

SSE static uint32_t crc_sse(uint32_t c, const uint8_t *p, size_t n) {
    if (n >= 256) {
        const __m128i far = _mm_loadu_si128((const __m128i *)far_1024), near = _mm_loadu_si128((const __m128i *)far_128);
        __m128i a[8];
        for (int i = 0; i < 8; i++)
            a[i] = _mm_loadu_si128((const __m128i *)p + i);
        a[0] = _mm_xor_si128(a[0], _mm_cvtsi32_si128((int)c));
        for (p += 128, n -= 128; n >= 128; p += 128, n -= 128)
            for (int i = 0; i < 8; i++)
                a[i] = fold_128(a[i], far, _mm_loadu_si128((const __m128i *)p + i));
        for (int i = 0; i < 7; i++)
            a[i + 1] = fold_128(a[i], near, a[i + 1]);
        c = divide(a[7]);
    }
    return crc_words(c, p, n);
}

COPY_CRC(copy_sse, SSE, crc_sse)
READ_CRC(read_sse, SSE, crc_sse)

AVX512 static inline __m512i fold_512(__m512i a, __m512i k, __m512i onto) {
    return _mm512_ternarylogic_epi64(onto, _mm512_clmulepi64_epi128(a, k, 0x00), _mm512_clmulepi64_epi128(a, k, 0x11), 0x96);
}

/* The remainder of 512 bytes. */
AVX512 static inline __attribute__((always_inline)) uint32_t divide_512(__m512i a[8]) {
    const __m512i near = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)far_512));
    const __m128i last = _mm_loadu_si128((const __m128i *)far_128);
    for (int i = 0; i < 7; i++)
        a[i + 1] = fold_512(a[i], near, a[i + 1]);
    __m128i x = _mm512_extracti32x4_epi32(a[7], 0);
    x = fold_128(x, last, _mm512_extracti32x4_epi32(a[7], 1));
    x = fold_128(x, last, _mm512_extracti32x4_epi32(a[7], 2));
    x = fold_128(x, last, _mm512_extracti32x4_epi32(a[7], 3));
    return divide(x);
}

AVX512 static inline __m512i first_bytes(uint64_t c) { return _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)c)); }

/* Copies and checksums in one pass. Stores that cross cache lines cost most, so they are aligned; loads come eight at a time before their
 * stores, which the processor may take for stores to where it loads from, 4 KiB apart. */
AVX512 static inline __attribute__((always_inline)) uint32_t pass_avx512(
    uint32_t c, uint8_t *dst, const uint8_t *src, size_t n, void (*put)(uint8_t *, __m512i)) {
    c = ~c;
    if (n >= 2048) {
        size_t ahead = -(uintptr_t)dst & 63;
        memcpy(dst, src, ahead);
        c = crc_words(c, dst, ahead);
        dst += ahead, src += ahead, n -= ahead;
        const __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)far_4096));
        __m512i a[8], w[8];
        for (int i = 0; i < 8; i++)
            a[i] = _mm512_loadu_si512(src + 64 * i);
        for (int i = 0; i < 8; i++)
            put(dst + 64 * i, a[i]);
        a[0] = _mm512_xor_si512(a[0], first_bytes(c));
        for (src += 512, dst += 512, n -= 512; n >= 512; src += 512, dst += 512, n -= 512) {
            for (int i = 0; i < 8; i++)
                w[i] = _mm512_loadu_si512(src + 64 * i);
            for (int i = 0; i < 8; i++)
                put(dst + 64 * i, w[i]);
            for (int i = 0; i < 8; i++)
                a[i] = fold_512(a[i], far, w[i]);
        }
        c = divide_512(a);
    }
    memcpy(dst, src, n);
    return ~crc_words(c, dst, n);
}

AVX512 static inline __attribute__((always_inline)) void put_near(uint8_t *p, __m512i v) { _mm512_store_si512(p, v); }
AVX512 static inline __attribute__((always_inline)) void put_far(uint8_t *p, __m512i v) { _mm512_stream_si512((__m512i *)p, v); }

AVX512 static uint32_t copy_avx512(uint32_t c, uint8_t *restrict dst, const uint8_t *restrict src, size_t n) {
    return pass_avx512(c, dst, src, n, put_near);
}

AVX512 static uint32_t move_avx512(uint32_t c, uint8_t *restrict dst, const uint8_t *restrict src, size_t n) {
    c = pass_avx512(c, dst, src, n, put_far);
    _mm_sfence();
    return c;
}

/* Without stores it is the multipliers that a checksum waits for, and the CRC instruction has means of its own. So of each stretch the first
 * part is folded and three streams behind it go through the instruction, in the proportion that keeps both busy. */
enum { STEPS = 8, WORDS = 4, STREAM = 8 * WORDS * STEPS, STRETCH = 512 * STEPS + 3 * STREAM, AHEAD = 8 << 10 };

static uint64_t far_stretch[2], far_stream; /* past the streams of a stretch; a remainder past one */

/* The remainder c of what is followed by as much as a stream. */
SSE static inline uint64_t past_stream(uint64_t c) {
    __m128i x = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)c), _mm_cvtsi64_si128((long long)far_stream), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
}

SSE static inline uint64_t crc_word(uint64_t c, const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return _mm_crc32_u64(c, w);
}

AVX512 static uint32_t read_avx512(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t c = (uint32_t)~crc; /* of what precedes the next 512 bytes to fold, without what is in a */
    if (n >= 2048) {
        const __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)far_4096));
        const __m512i past = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)far_stretch));
        __m512i a[8], distance = far;
        for (int i = 0; i < 8; i++)
            a[i] = _mm512_setzero_si512();
        while (n >= STRETCH + 512) { /* something is left to fold: a is at the end of what was folded last, c at that of the streams */
            const uint8_t *q = p + 512 * STEPS;
            uint64_t c0 = 0, c1 = 0, c2 = 0;
#pragma GCC unroll 2
            for (int s = 0; s < STEPS; s++, p += 512, q += 8 * WORDS) {
                for (int i = 0; i < STRETCH / STEPS; i += 64)
                    _mm_prefetch((const char *)p + 3 * 8 * WORDS * s + AHEAD + i, _MM_HINT_T0);
                for (int i = 0; i < 8; i++) {
                    a[i] = fold_512(a[i], distance, _mm512_loadu_si512(p + 64 * i));
                    if (i < WORDS) {
                        c0 = crc_word(c0, q + 8 * i);
                        c1 = crc_word(c1, q + STREAM + 8 * i);
                        c2 = crc_word(c2, q + 2 * STREAM + 8 * i);
                    }
                }
                a[0] = _mm512_xor_si512(a[0], first_bytes(c));
                c = 0, distance = far;
            }
            c = past_stream(past_stream(c0) ^ c1) ^ c2;
            p += 3 * STREAM, n -= STRETCH, distance = past;
        }
        for (; n >= 512; p += 512, n -= 512) {
            for (int i = 0; i < 8; i++)
                a[i] = fold_512(a[i], distance, _mm512_loadu_si512(p + 64 * i));
            a[0] = _mm512_xor_si512(a[0], first_bytes(c));
            c = 0, distance = far;
        }
        c = divide_512(a);
    }
    return ~crc_words((uint32_t)c, p, n);
}

__attribute__((target("sha,sse4.1,ssse3"))) static void sha256_ni(uint32_t state[8], const uint8_t *p, size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);          /* c d a b */
    __m128i cdgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b); /* e f g h */
    __m128i abef = _mm_alignr_epi8(t, cdgh, 8);
    cdgh = _mm_blend_epi16(cdgh, t, 0xf0);
    for (; blocks; blocks--, p += 64) {
        __m128i abef_was = abef, cdgh_was = cdgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), big_endian);
        for (int i = 0; i < 16; i++) { /* four rounds each */
            __m128i now = w[i & 3], k = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
            if (i < 12) { /* the message of four rounds' time */
                __m128i next = _mm_sha256msg1_epu32(now, w[(i + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, abef_was);
        cdgh = _mm_add_epi32(cdgh, cdgh_was);
    }
    t = _mm_shuffle_epi32(abef, 0x1b);
    cdgh = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(t, cdgh, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(cdgh, t, 8));
}

static void choose(void) {
    unsigned a, b = 0, c = 0, d;
    distance(far_128, 128);
    distance(far_512, 512);
    distance(far_1024, 1024);
    distance(far_4096, 4096);
    distance(far_stretch, 4096 + 8 * 3 * STREAM);
    far_stream = power_of_x(8 * STREAM - 32) << 1;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        copy_crc = move_crc = copy_sse, read_crc = read_sse;
    int leaf7 = __get_cpuid_count(7, 0, &a, &b, &c, &d);
    if (leaf7 && c >> 10 & 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && copy_crc == copy_sse)
        copy_crc = copy_avx512, move_crc = move_avx512, read_crc = read_avx512;
    if (leaf7 && b >> 29 & 1 && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3"))
        sha256_blocks = sha256_ni;
}

#elif defined(__aarch64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__))
#include <sys/auxv.h>

#define HWCAP_CRC32_BIT (1ul << 7)

static uint32_t crc_arm(uint32_t c, const uint8_t *p, size_t n) {
    uint64_t w;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(c) : "r"(w));
    }
    for (; n; n--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(c) : "r"((uint32_t)*p++));
    return c;
}

COPY_CRC(copy_arm, , crc_arm)
READ_CRC(read_arm, , crc_arm)

static void choose(void) {
    if (getauxval(AT_HWCAP) & HWCAP_CRC32_BIT)
        copy_crc = move_crc = copy_arm, read_crc = read_arm;
}

#else
static void choose(void) {}
#endif

void hash_init(void) {
    make_table();
    choose();
}
