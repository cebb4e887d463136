// Products of matrices in registers: some rows of x times some columns of w, over all of `inner`.
//
// Whatever the tile, a sum is one chain of k = 0, 1, 2 and so on: the same row gives the same bits beside any others. Weights are
// read from memory about once, so while a tile computes, it asks for what is needed next.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;  // of 32 registers
#else
constexpr int kSums = 12;  // of 16
#endif
constexpr int kMostRows = kSums / 4;  // beside four vectors of weights
constexpr int64_t kChunk = 8;  // steps of k between two looks ahead
constexpr int64_t kLineNbytes = 64;

// The memory that a tile asks for: so many lines a chunk.
struct Ahead {
    const void* from;
    int64_t lines;
};

static inline void ask(const Ahead& ahead, int64_t k, int64_t offset) {
    const char* at = static_cast<const char*>(ahead.from) + offset + k / kChunk * ahead.lines * kLineNbytes;
    for (int64_t line = 0; line < ahead.lines; line++) __builtin_prefetch(at + line * kLineNbytes, 0, 2);
}

// sums[m][s][v] += x[m, k] * w[k, vector v of stream s], for all k. Streams lie `stream` elements apart: memory that is read in
// several places at once comes faster.
template <int kRows, int kStreams, int kVectors, class T>
inline void add_products(Floats (&sums)[kRows][kStreams][kVectors], const float* x, int64_t x_stride, const T* w,
                         int64_t w_stride, int64_t stream, int64_t inner, const Ahead& ahead) {
    for (int64_t begin = 0; begin < inner; begin += kChunk) {
        for (int s = 0; s < kStreams; s++) ask(ahead, begin, s * stream * int64_t(sizeof(T)));
        int64_t end = begin + kChunk < inner ? begin + kChunk : inner;
        for (int64_t k = begin; k < end; k++) {
#pragma GCC unroll 4
            for (int s = 0; s < kStreams; s++) {
                Floats weights[kVectors];
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; v++) weights[v] = load(w + s * stream + k * w_stride + v * kLanes);
#pragma GCC unroll 16
                for (int m = 0; m < kRows; m++) {
                    Floats input = splat(x[m * x_stride + k]);
#pragma GCC unroll 4
                    for (int v = 0; v < kVectors; v++) sums[m][s][v] += input * weights[v];
                }
            }
        }
    }
}

// Calls `call` with `count`, 1 to kMost, as a constant of the compiler.
template <int kMost, class Call>
inline void with_constant(int64_t count, const Call& call) {
    if constexpr (kMost > 1) {
        if (count < kMost) return with_constant<kMost - 1>(count, call);
    }
    call(std::integral_constant<int, kMost>{});
}

// Rows [0, count) in as few tiles as will do, none much smaller than another: call(first row, rows, index of the tile).
template <class Call>
inline void in_tiles(int64_t count, const Call& call) {
    int64_t tiles = (count + kMostRows - 1) / kMostRows;
    for (int64_t tile = 0, row = 0; tile < tiles; tile++) {
        int64_t rows = (count - row + tiles - tile - 1) / (tiles - tile);
        call(row, rows, tile);
        row += rows;
    }
}

}  // namespace
