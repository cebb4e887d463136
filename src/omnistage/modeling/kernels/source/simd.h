// Vectors of float32 as wide as this machine's registers, with loads and stores for float32 and bfloat16.
//
// Written with the vector extensions of GCC and clang, so the same lines are AVX-512, AVX2, SSE2 or NEON. The width follows the
// instruction set: vectors wider than a register are several times slower than narrow ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define VECTOR_NBYTES 64
#elif defined(__AVX__)
#define VECTOR_NBYTES 32
#else
#define VECTOR_NBYTES 16
#endif

constexpr int kLanes = VECTOR_NBYTES / 4;

typedef float Floats __attribute__((vector_size(VECTOR_NBYTES)));
typedef int32_t Ints __attribute__((vector_size(VECTOR_NBYTES)));
typedef uint32_t Words __attribute__((vector_size(VECTOR_NBYTES)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_NBYTES / 2)));

struct bfloat16 {
    uint16_t bits;
};

static inline Floats splat(float value) { return value - Floats{}; }  // x - 0 costs nothing; x + 0 is an addition, for -0

static inline Floats load(const float* from) {
    Floats found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

static inline Floats load(const bfloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

static inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// Rounds to the nearest bfloat16, to the even one of two; a NaN stays one.
static inline void store(bfloat16* to, Floats value) {
    Words bits = (Words)value;
    Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    Words quiet = (bits >> 16) | 0x40u;
    Halves halves = __builtin_convertvector((Words)(value != value) ? quiet : rounded, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

static inline float widen(float value) { return value; }

static inline float widen(bfloat16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

static inline void narrow(float* to, float value) { *to = value; }

static inline void narrow(bfloat16* to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    to->bits = value != value ? uint16_t((bits >> 16) | 0x40u) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// The sums of kLanes vectors, that of v[i] in lane i. Level by level, neighbours are interleaved and added.
static inline Floats sums(const Floats* v) {
#if VECTOR_NBYTES == 64
    Floats one[8], two[4], four[2];
    for (int i = 0; i < 8; i++)
        one[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
                 SHUFFLE(v[2 * i], v[2 * i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for (int i = 0; i < 4; i++)
        two[i] = SHUFFLE(one[2 * i], one[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 SHUFFLE(one[2 * i], one[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    for (int i = 0; i < 2; i++)
        four[i] = SHUFFLE(two[2 * i], two[2 * i + 1], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                  SHUFFLE(two[2 * i], two[2 * i + 1], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    return SHUFFLE(four[0], four[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           SHUFFLE(four[0], four[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#elif VECTOR_NBYTES == 32
    Floats one[4], two[2];
    for (int i = 0; i < 4; i++)
        one[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 SHUFFLE(v[2 * i], v[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        two[i] = SHUFFLE(one[2 * i], one[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                 SHUFFLE(one[2 * i], one[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(two[0], two[1], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(two[0], two[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    Floats first = SHUFFLE(v[0], v[1], 0, 4, 2, 6) + SHUFFLE(v[0], v[1], 1, 5, 3, 7);
    Floats second = SHUFFLE(v[2], v[3], 0, 4, 2, 6) + SHUFFLE(v[2], v[3], 1, 5, 3, 7);
    return SHUFFLE(first, second, 0, 1, 4, 5) + SHUFFLE(first, second, 2, 3, 6, 7);
#endif
}

// Half of the lanes onto the other half, until there is one: through registers, as what is stored and loaded in another width has to
// wait for the store.
template <class Join>
static inline float folded(Floats v, Join join) {
#if VECTOR_NBYTES == 64
    v = join(v, SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = join(v, SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = join(v, SHUFFLE(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = join(v, SHUFFLE(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif VECTOR_NBYTES == 32
    v = join(v, SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
    v = join(v, SHUFFLE(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
    v = join(v, SHUFFLE(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
    v = join(v, SHUFFLE(v, v, 2, 3, 0, 1));
    v = join(v, SHUFFLE(v, v, 1, 0, 3, 2));
#endif
    return v[0];
}

static inline float sum(Floats v) {
    return folded(v, [](Floats a, Floats b) { return a + b; });
}

static inline float most(Floats v) {
    return folded(v, [](Floats a, Floats b) { return a > b ? a : b; });
}

// e^x to about two units in the last place: x = n ln 2 + r, a polynomial of r, n put into the exponent. Below -87 it is 0.
static inline Floats exponential(Floats x) {
    Floats clamped = x < -87.0f ? splat(-87.0f) : (x > 88.0f ? splat(88.0f) : x);
    Floats scaled = clamped * 1.44269504f;
    Ints whole = __builtin_convertvector(scaled + (scaled < 0 ? splat(-0.5f) : splat(0.5f)), Ints);
    Floats n = __builtin_convertvector(whole, Floats);
    Floats r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Floats power = (Floats)((whole + 127) << 23);
    return x < -87.0f ? Floats{} : p * power;
}
