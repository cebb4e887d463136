// A gated MLP, and a mixture of such MLPs: each row goes through those that its router likes best.
//
// Rows are grouped by expert, so that weights are read once for all that need them. What a row is made of is added up in the order of
// the experts' numbers, and a linear layer gives a row the same bits beside any others: so does the mixture.
#pragma once

#include <cmath>
#include <vector>

#include "linear.h"
#include "rows.h"

struct GatedBlock {
    Matrix gate_up, down;
};

// `router` [experts, hidden]; `per_row` of `num_experts` are taken, their chances made to sum to one if `normalised`. `shared`: an
// expert of all rows, weighted by the sigmoid of `shared_gate` [1, hidden]; or null.
struct Experts {
    Matrix router;
    const GatedBlock* experts;
    int64_t num_experts, per_row, normalised;
    const GatedBlock* shared;
    Matrix shared_gate;
};

namespace {

// `normed` [count, hidden] -> `out` [count, hidden], as many rows at once as stay in a near cache.
template <class T>
void gated_block(const GatedBlock& block, const T* normed, T* out, int64_t count, int64_t threads) {
    static thread_local std::vector<T> scratch;
    int64_t hidden = block.gate_up.inner, inner = block.down.inner;
    scratch.resize(3 * std::min(count, kBlockRows) * inner);
    for (int64_t row = 0; row < count; row += kBlockRows) {
        int64_t here = std::min(count - row, kBlockRows);
        T *gate_up = scratch.data(), *gated = gate_up + 2 * here * inner;
        linear(block.gate_up, normed + row * hidden, gate_up, here, threads);
        silu_mul(gate_up, gated, here, inner, threads);
        linear(block.down, gated, out + row * hidden, here, threads);
    }
}

// A row that an expert computes, and how much of the result it takes.
template <class T>
struct Share {
    int64_t row;
    T weight;
};

// `out` += `made` * `weight`, rounded in between as far as T asks for it.
template <class T>
void add_share(T* out, const T* made, T weight, int64_t hidden) {
    for (int64_t d = 0; d < hidden; d++) {
        T part;
        narrow(&part, widen(made[d]) * widen(weight));
        narrow(out + d, widen(out[d]) + widen(part));
    }
}

// The experts of one row, best first, the lower number of two that are equal; `chances` [num_experts] become probabilities.
inline void choose(const Experts& block, float* chances, int64_t* chosen, float* weights) {
    float greatest = -INFINITY, total = 0, taken = 0;
    for (int64_t e = 0; e < block.num_experts; e++) greatest = std::max(greatest, chances[e]);
    for (int64_t e = 0; e < block.num_experts; e++) total += chances[e] = std::exp(chances[e] - greatest);
    for (int64_t e = 0; e < block.num_experts; e++) chances[e] /= total;
    for (int64_t i = 0; i < block.per_row; i++) {
        int64_t best = 0;
        for (int64_t e = 1; e < block.num_experts; e++)
            if (chances[e] > chances[best]) best = e;
        chosen[i] = best, weights[i] = chances[best];
        taken += weights[i];
        chances[best] = -1;
    }
    if (block.normalised)
        for (int64_t i = 0; i < block.per_row; i++) weights[i] /= taken;
}

// The rows of every expert: those of expert e are [ends[e - 1], ends[e]) of `shares`, in their order.
template <class T>
void route(const Experts& block, const T* logits, int64_t count, std::vector<Share<T>>& shares, std::vector<int64_t>& ends) {
    std::vector<float> chances(block.num_experts), weights(count * block.per_row);
    std::vector<int64_t> chosen(count * block.per_row);
    ends.assign(block.num_experts + 1, 0);
    for (int64_t row = 0; row < count; row++) {
        for (int64_t e = 0; e < block.num_experts; e++) chances[e] = widen(logits[row * block.num_experts + e]);
        choose(block, chances.data(), &chosen[row * block.per_row], &weights[row * block.per_row]);
        for (int64_t i = 0; i < block.per_row; i++) ends[chosen[row * block.per_row + i] + 1]++;
    }
    for (int64_t e = 0; e < block.num_experts; e++) ends[e + 1] += ends[e];
    shares.resize(count * block.per_row);
    for (int64_t i = 0; i < count * block.per_row; i++) {
        Share<T>& share = shares[ends[chosen[i]]++];  // from where its expert's rows begin, which moves to where they end
        share.row = i / block.per_row;
        narrow(&share.weight, weights[i]);
    }
}

template <class T>
void add_shared(const Experts& block, const T* normed, T* made, T* out, int64_t count, int64_t threads) {
    int64_t hidden = block.router.inner;
    std::vector<T> gates(count);
    gated_block(*block.shared, normed, made, count, threads);
    linear(block.shared_gate, normed, gates.data(), count, threads);
    for (int64_t row = 0; row < count; row++) {
        T weight;
        narrow(&weight, 1.0f / (1.0f + std::exp(-widen(gates[row]))));
        add_share(out + row * hidden, made + row * hidden, weight, hidden);
    }
}

// `normed` [count, hidden] -> `out` [count, hidden].
template <class T>
void experts_block(const Experts& block, const T* normed, T* out, int64_t count, int64_t threads) {
    static thread_local std::vector<T> scratch;
    static thread_local std::vector<Share<T>> shares;
    static thread_local std::vector<int64_t> ends;
    int64_t hidden = block.router.inner, size = count * hidden;
    scratch.resize(2 * size + count * block.num_experts);
    T *gathered = scratch.data(), *made = gathered + size, *logits = made + size;
    linear(block.router, normed, logits, count, threads);
    route(block, logits, count, shares, ends);
    std::memset(static_cast<void*>(out), 0, size * sizeof(T));
    for (int64_t e = 0, first = 0; e < block.num_experts; first = ends[e++]) {
        int64_t some = ends[e] - first;
        if (some == 0) continue;
        for (int64_t i = 0; i < some; i++)
            std::memcpy(gathered + i * hidden, normed + shares[first + i].row * hidden, hidden * sizeof(T));
        gated_block(block.experts[e], gathered, made, some, threads);
        for (int64_t i = 0; i < some; i++) {
            const Share<T>& share = shares[first + i];
            add_share(out + share.row * hidden, made + i * hidden, share.weight, hidden);
        }
    }
    if (block.shared) add_shared(block, normed, made, out, count, threads);
}

}  // namespace
