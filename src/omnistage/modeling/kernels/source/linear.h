// A linear layer for few rows, over weights as they are: y = x w^T + bias, `x` [count, inner], `w` [outer, inner].
//
// A tile is some rows of x times some rows of w, as many products as a vector has lanes, so that one transposition adds them all
// up. Every product is summed in the same order whatever the tile: the same row gives the same bits in any batch.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"

namespace {

constexpr int64_t kPanel = 64;  // rows of w that stay in a near cache while all rows of x pass by

template <class T, int kRows>
void linear_tile(const float* x, const T* w, const T* bias, T* y, int64_t inner, int64_t outer) {
    constexpr int kOuts = kLanes / kRows;
    Floats partial[kLanes];
    for (int i = 0; i < kLanes; i++) partial[i] = Floats{};
    for (int64_t k = 0; k < inner; k += kLanes) {
        Floats weights[kOuts];
        for (int n = 0; n < kOuts; n++) weights[n] = load(w + n * inner + k);
        for (int m = 0; m < kRows; m++) {
            Floats input = load(x + m * inner + k);
            for (int n = 0; n < kOuts; n++) partial[m * kOuts + n] += input * weights[n];
        }
    }
    float found[kLanes];
    store(found, sums(partial));
    for (int m = 0; m < kRows; m++)
        for (int n = 0; n < kOuts; n++)
            narrow(y + m * outer + n, bias ? found[m * kOuts + n] + widen(bias[n]) : found[m * kOuts + n]);
}

// kRows rows of x times `outs` rows of w, a multiple of kLanes.
template <class T, int kRows>
void linear_strip(const float* x, const T* w, const T* bias, T* y, int64_t inner, int64_t outer, int64_t outs) {
    constexpr int kOuts = kLanes / kRows;
    for (int64_t n = 0; n < outs; n += kOuts)
        linear_tile<T, kRows>(x, w + n * inner, bias ? bias + n : nullptr, y + n, inner, outer);
}

template <class T>
void linear_panel(const float* x, const T* w, const T* bias, T* y, int64_t count, int64_t inner, int64_t outer,
                  int64_t outs) {
    int64_t m = 0;
    for (; count - m >= 4; m += 4)
        linear_strip<T, 4>(x + m * inner, w, bias, y + m * outer, inner, outer, outs);
    for (; count - m >= 2; m += 2)
        linear_strip<T, 2>(x + m * inner, w, bias, y + m * outer, inner, outer, outs);
    if (m < count) linear_strip<T, 1>(x + m * inner, w, bias, y + m * outer, inner, outer, outs);
}

const float* widened(const float* x, int64_t, std::vector<float>&) { return x; }

const float* widened(const bfloat16* x, int64_t size, std::vector<float>& scratch) {
    scratch.resize(size);
    for (int64_t i = 0; i < size; i++) scratch[i] = widen(x[i]);
    return scratch.data();
}

template <class T>
void linear(const T* x, const T* w, const T* bias, T* y, int64_t count, int64_t inner, int64_t outer, int64_t threads) {
    static thread_local std::vector<float> scratch;
    const float* inputs = widened(x, count * inner, scratch);
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
    for (int64_t n = 0; n < outer; n += kPanel)
        linear_panel(inputs, w + n * inner, bias ? bias + n : nullptr, y + n, count, inner, outer,
                     std::min(kPanel, outer - n));
}

}  // namespace
