// Row by row: the sum with a residual and its RMS norm, and the gate of a gated MLP.
//
// Each row is computed alone, so its bits do not depend on the batch. Rows and weights are contiguous.
#pragma once

#include "simd.h"

namespace {

// `rows` += `residual`, in place; `out` = rows / sqrt(mean(rows^2) + eps) * weight.
template <class T>
void add_rms_norm(T* rows, const T* residual, const T* weight, double eps, T* out, int64_t count, int64_t hidden) {
    int64_t whole = hidden / kLanes * kLanes;
    for (int64_t row = 0; row < count; row++) {
        T* x = rows + row * hidden;
        if (residual) {
            const T* r = residual + row * hidden;
            for (int64_t d = 0; d < whole; d += kLanes) store(x + d, load(x + d) + load(r + d));
            for (int64_t d = whole; d < hidden; d++) narrow(x + d, widen(x[d]) + widen(r[d]));
        }
        Floats squares{};
        for (int64_t d = 0; d < whole; d += kLanes) squares += load(x + d) * load(x + d);
        float total = sum(squares);
        for (int64_t d = whole; d < hidden; d++) total += widen(x[d]) * widen(x[d]);
        float factor = 1.0f / std::sqrt(total / hidden + float(eps));
        T* to = out + row * hidden;
        for (int64_t d = 0; d < whole; d += kLanes) store(to + d, load(x + d) * factor * load(weight + d));
        for (int64_t d = whole; d < hidden; d++) narrow(to + d, widen(x[d]) * factor * widen(weight[d]));
    }
}

// `gate_up` [count, 2 * inner] -> silu(gate) * up [count, inner].
template <class T>
void silu_mul(const T* gate_up, T* out, int64_t count, int64_t inner, int64_t threads) {
    int64_t whole = inner / kLanes * kLanes;
#pragma omp parallel for num_threads(int(threads)) if (threads > 1 && count > 1)
    for (int64_t row = 0; row < count; row++) {
        const T *gate = gate_up + row * 2 * inner, *up = gate + inner;
        T* to = out + row * inner;
        for (int64_t d = 0; d < whole; d += kLanes) {
            Floats x = load(gate + d);
            store(to + d, x / (1.0f + exponential(-x)) * load(up + d));
        }
        for (int64_t d = whole; d < inner; d++) {
            float x = widen(gate[d]);
            narrow(to + d, x / (1.0f + std::exp(-x)) * widen(up[d]));
        }
    }
}

}  // namespace
