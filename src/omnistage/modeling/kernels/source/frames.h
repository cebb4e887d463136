// What a decoder of codec frames does before it makes waves: layers that see a window of frames, and steps of time multiplied.
//
// Rows are [batch, frames, hidden], float32. The past comes in as it was left and goes out anew: nothing is changed in place.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "experts.h"

// Attention over a window and a gated MLP, each with a norm before it and scaled per channel, [hidden], behind it. `held`: keys
// before its own that a frame may see.
struct WindowLayer {
    Matrix qkv, output;
    GatedBlock mlp;
    const float *norm, *scale, *mlp_norm, *mlp_scale;
    int64_t heads, kv_heads, head_dim, held;
    double eps;
};

// `rotations` [batch, frames, head_dim] as a PagedStep has them; `first` [batch, frames]: the first key that a frame sees, counted
// from the first that is held.
struct Window {
    const float* rotations;
    const int64_t* first;
};

// Keys and values, [batch, kv_heads, held, head_dim], the newest last.
template <class T>
struct Seen {
    T *keys, *values;
};

// `steps` makes some of each, [ratio * dim, dim]; then a ConvNeXt block: a convolution per channel, `taps` [kernel, dim], a norm with
// mean and variance, two linear layers with a GELU between them, scaled per channel by `gamma`. The other vectors are [dim].
struct Multiplier {
    Matrix steps, up, down;
    const float *taps, *bias, *norm, *norm_bias, *gamma;
    int64_t kernel;
    double eps;
};

namespace {

// `count` rows += `added` * `by`, per channel.
static inline void add_scaled(float* rows, const float* added, const float* by, int64_t count, int64_t hidden) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t d = 0; d < hidden; d++) rows[row * hidden + d] += added[row * hidden + d] * by[d];
}

// All frames of one sequence and one key head. `qkv` [frames, joined] of that sequence -> `found` [frames, heads * head_dim].
inline void attend_window(const WindowLayer& layer, const Window& window, const Seen<const float>& before,
                          const Seen<float>& after, const float* qkv, int64_t kv_head, int64_t frames, float* found) {
    const int dim = int(layer.head_dim);
    const float scale = 1.0f / std::sqrt(float(dim));
    int64_t group = layer.heads / layer.kv_heads, joined = layer.qkv.outer, held = layer.held, size = held * dim;
    static thread_local std::vector<float> memory;
    int64_t room = (held + frames + kLanes) * dim;  // keys are read in whole vectors of them
    memory.resize(2 * room + dim);
    float *keys = memory.data(), *values = keys + room, *query = values + room;
    std::copy_n(before.keys, size, keys);
    std::copy_n(before.values, size, values);
    for (int64_t i = 0; i < frames; i++) {
        const float* key = qkv + i * joined + (layer.heads + kv_head) * dim;
        prepare<float>(key, nullptr, 0, window.rotations + i * dim, dim, keys + size + i * dim);
        std::copy_n(key + layer.kv_heads * dim, dim, values + size + i * dim);
    }
    std::copy_n(keys + frames * dim, size, after.keys);
    std::copy_n(values + frames * dim, size, after.values);
    for (int64_t i = 0; i < frames; i++)
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            prepare<float>(qkv + i * joined + head * dim, nullptr, 0, window.rotations + i * dim, dim, query);
            for (int d = 0; d < dim; d++) query[d] *= scale;
            float* to = found + (i * layer.heads + head) * dim;
            std::fill_n(to, dim, 0.0f);
            Running state;
            for (int64_t from = window.first[i], end = held + i + 1; from < end; from += kMostScores) {
                int count = int(std::min<int64_t>(kMostScores, end - from));
                attend_block<float, 1>(query, keys + from * dim, values + from * dim, dim, 0, count, &state, to);
            }
            for (int d = 0; d < dim; d++) to[d] /= state.weight;
        }
}

// `rows` grow in place.
inline void window_layer(const WindowLayer& layer, const Window& window, float* rows, const Seen<const float>& before,
                         const Seen<float>& after, int64_t batch, int64_t frames, int64_t threads) {
    int64_t count = batch * frames, hidden = layer.qkv.inner, width = layer.output.inner, dim = layer.head_dim;
    static thread_local std::vector<float> memory;
    memory.resize(count * (2 * hidden + layer.qkv.outer + width));
    float *normed = memory.data(), *made = normed + count * hidden, *qkv = made + count * hidden;
    float* found = qkv + count * layer.qkv.outer;
    add_rms_norm<float>(rows, nullptr, layer.norm, layer.eps, normed, count, hidden);
    linear(layer.qkv, normed, qkv, count, threads);
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
    for (int64_t task = 0; task < batch * layer.kv_heads; task++) {
        int64_t b = task / layer.kv_heads, at = task * layer.held * dim;
        attend_window(layer, {window.rotations + b * frames * dim, window.first + b * frames},
                      {before.keys + at, before.values + at}, {after.keys + at, after.values + at},
                      qkv + b * frames * layer.qkv.outer, task % layer.kv_heads, frames, found + b * frames * width);
    }
    linear(layer.output, found, made, count, threads);
    add_scaled(rows, made, layer.scale, count, hidden);
    add_rms_norm<float>(rows, nullptr, layer.mlp_norm, layer.eps, normed, count, hidden);
    gated_block(layer.mlp, normed, made, count, threads);
    add_scaled(rows, made, layer.mlp_scale, count, hidden);
}

// x (1 + erf(x / sqrt 2)) / 2, by formula 7.1.26 of Abramowitz and Stegun, which is off by 1.5e-7 at most.
static inline Floats gelu(Floats x) {
    Floats y = x * 0.707106781f, size = y < 0 ? -y : y;
    Floats t = 1.0f / (1.0f + 0.3275911f * size);
    Floats p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Floats beyond = p * t * exponential(-y * y) * 0.5f;  // half of 1 - erf(size)
    return x * (y < 0 ? beyond : 1.0f - beyond);
}

static inline void gelu(float* x, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(x + i, gelu(load(x + i)));
    float lanes[kLanes] = {};
    std::copy_n(x + i, size - i, lanes);
    store(lanes, gelu(load(lanes)));
    std::copy_n(lanes, size - i, x + i);
}

static inline void layer_norm(float* x, const float* weight, const float* bias, double eps, int64_t dim) {
    int64_t whole = dim / kLanes * kLanes;
    auto mean_of = [&](auto&& call) {
        Floats sums{};
        for (int64_t d = 0; d < whole; d += kLanes) sums += call(load(x + d));
        float total = sum(sums);
        for (int64_t d = whole; d < dim; d++) total += call(splat(x[d]))[0];
        return total / dim;
    };
    float mean = mean_of([](Floats value) { return value; });
    float variance = mean_of([mean](Floats value) { return (value - mean) * (value - mean); });
    float factor = 1.0f / std::sqrt(variance + float(eps));
    for (int64_t d = 0; d < dim; d++) x[d] = (x[d] - mean) * factor * weight[d] + bias[d];
}

// One sequence: what the convolution and the norm make of `rows` [steps, dim], with `past` [kernel - 1, dim] before them.
inline void convolve_rows(const Multiplier& by, const float* rows, const float* past, float* normed, int64_t steps) {
    int64_t dim = by.down.outer, held = by.kernel - 1;
    for (int64_t step = 0; step < steps; step++) {
        float* to = normed + step * dim;
        std::copy_n(by.bias, dim, to);
        for (int64_t k = 0; k < by.kernel; k++) {
            const float* tap = by.taps + k * dim;
            const float* row = step + k < held ? past + (step + k) * dim : rows + (step + k - held) * dim;
            for (int64_t d = 0; d < dim; d++) to[d] += row[d] * tap[d];
        }
        layer_norm(to, by.norm, by.norm_bias, by.eps, dim);
    }
}

// `x` [batch, frames, in] -> `y` [batch, frames * ratio, dim]; `past` and `kept` [batch, kernel - 1, dim].
inline void multiply(const Multiplier& by, const float* x, const float* past, float* kept, float* y, int64_t batch,
                     int64_t frames, int64_t threads) {
    int64_t dim = by.down.outer, inner = by.down.inner, held = by.kernel - 1;
    int64_t steps = frames * (by.steps.outer / dim), count = batch * steps;
    static thread_local std::vector<float> memory;
    memory.resize(count * (dim + inner));
    float *normed = memory.data(), *up = normed + count * dim;
    linear(by.steps, x, y, batch * frames, threads);
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
    for (int64_t b = 0; b < batch; b++) {
        const float *rows = y + b * steps * dim, *before = past + b * held * dim;
        convolve_rows(by, rows, before, normed + b * steps * dim, steps);
        for (int64_t i = 0; i < held; i++) {
            const float* row = steps + i < held ? before + (steps + i) * dim : rows + (steps + i - held) * dim;
            std::copy_n(row, dim, kept + (b * held + i) * dim);
        }
    }
    linear(by.up, normed, up, count, threads);
    gelu(up, count * inner);
    linear(by.down, up, normed, count, threads);
    add_scaled(y, normed, by.gamma, count, dim);
}

}  // namespace
