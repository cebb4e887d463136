// The two halves of a decoder layer, each in one call, and the whole decoder in one: what a step of few rows costs beside its
// arithmetic is calls.
//
// They are the same operations in the same order as one by one, so their bits are the same too. `rows` [count, hidden] grow in place.
#pragma once

#include <vector>

#include "attention.h"
#include "experts.h"
#include "linear.h"
#include "rows.h"

// The norm before the joined projections, and the norm before the MLP; weights [hidden].
struct AttentionBlock {
    PagedLayer layer;
    Matrix qkv, output;
    const void *input_norm, *mlp_norm;
    double eps;
};

// `experts` where they stand in for the one `mlp`, else null.
struct Layer {
    AttentionBlock attention;
    GatedBlock mlp;
    const Experts* experts;
};

// `embedding` [vocab, hidden], or null: the weights of the head; `final_norm` [hidden].
struct Decoder {
    const void* embedding;
    const Layer* layers;
    int64_t num_layers;
    const void* final_norm;
    double eps;
    Matrix head;
};

// What a step begins with: `tokens` [rows], or `embeds` [rows, hidden] instead; what is added to the output of each layer, [rows,
// hidden] or null (null: to none); and which of its rows are asked for logits.
struct Begun {
    const int64_t* tokens;
    const void* embeds;
    const void* const* layered;
    const int64_t* asked;
    int64_t num_asked;
};

namespace {

// What attention has found, [rows, heads * head_dim], and room behind it, in memory of the calling thread until its next call.
template <class T>
struct Found {
    T *found, *room;
};

// `rows` += `added` (or null), and what attention makes of their norm, before the projection; `normed` is room.
template <class T>
Found<T> attend_rows(const AttentionBlock& block, const PagedStep& step, T* rows, const T* added, T* normed) {
    static thread_local std::vector<T> scratch;
    int64_t count = step.rows, hidden = block.qkv.inner, dim = block.layer.head_dim;
    int64_t width = block.qkv.outer, heads = block.layer.heads, kv_heads = block.layer.kv_heads;
    scratch.resize(count * (std::max(width, hidden) + block.output.inner));
    T *found = scratch.data(), *joined = found + count * block.output.inner;
    add_rms_norm(rows, added, static_cast<const T*>(block.input_norm), block.eps, normed, count, hidden);
    linear(block.qkv, normed, joined, count, step.threads);
    Heads q{joined, width, dim}, k{joined + heads * dim, width, dim}, v{joined + (heads + kv_heads) * dim, width, dim};
    attend<T>(block.layer, step, q, k, v, found);
    return {found, joined};  // the projections have been read
}

// `rows` += the projection of what attention has found; `normed` is what the MLP reads.
template <class T>
void project(const AttentionBlock& block, const T* found, T* attended, T* rows, T* normed, int64_t count,
             int64_t threads) {
    linear(block.output, found, attended, count, threads);
    add_rms_norm(rows, attended, static_cast<const T*>(block.mlp_norm), block.eps, normed, count, block.qkv.inner);
}

// Both: `rows` += `added` (or null), then += what attention makes of their norm; `normed` is what the MLP reads.
template <class T>
void attention_block(const AttentionBlock& block, const PagedStep& step, T* rows, const T* added, T* normed) {
    Found<T> made = attend_rows<T>(block, step, rows, added, normed);
    project(block, made.found, made.room, rows, normed, step.rows, step.threads);
}

template <class T>
void mlp_block(const Layer& layer, const T* normed, T* made, int64_t count, int64_t threads) {
    if (layer.experts) experts_block(*layer.experts, normed, made, count, threads);
    else gated_block(layer.mlp, normed, made, count, threads);
}

template <class T>
void copy_rows(T* to, const T* from, const int64_t* which, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++) std::memcpy(to + i * width, from + which[i] * width, width * sizeof(T));
}

// `logits` [num_asked, vocab]. `captured` [num_layers + 1]: where the input of each layer and the output of the last norm go,
// [rows, hidden], or null. Of the last layer only keys and values are needed for all rows: the rest is computed for those that are
// asked for, where no more is wanted.
template <class T>
void decoder(const Decoder& model, const PagedStep& step, const Begun& begun, float* logits, T* const* captured) {
    static thread_local std::vector<T> scratch;
    int64_t hidden = model.head.inner, vocab = model.head.outer, size = step.rows * hidden;
    scratch.resize(3 * size + begun.num_asked * (hidden + vocab));
    T *rows = scratch.data(), *normed = rows + size, *made = normed + size, *added = nullptr;
    T *asked = made + size, *narrow_logits = asked + begun.num_asked * hidden;
    auto copy_row = [&](T* to, const void* from, int64_t row) {
        std::memcpy(to, static_cast<const T*>(from) + row * hidden, hidden * sizeof(T));
    };
    for (int64_t row = 0; row < step.rows; row++) {
        if (begun.embeds) copy_row(rows + row * hidden, begun.embeds, row);
        else if (model.embedding) copy_row(rows + row * hidden, model.embedding, begun.tokens[row]);
        else weights_of(model.head, begun.tokens[row], rows + row * hidden);
    }
    auto add = [&](const T* more) {
        for (int64_t i = 0; i < size; i++) narrow(rows + i, widen(rows[i]) + widen(more[i]));
    };
    auto settle = [&](int64_t index) {
        if (!begun.layered || !begun.layered[index]) return;
        add(added);
        add(static_cast<const T*>(begun.layered[index]));
        added = nullptr;
    };
    int64_t last = model.num_layers - 1;
    bool few = begun.num_asked < step.rows && !captured[model.num_layers] && !(begun.layered && begun.layered[last]);
    for (int64_t index = 0; index < model.num_layers; index++) {
        const Layer& layer = model.layers[index];
        if (T* to = captured[index])
            for (int64_t i = 0; i < size; i++) narrow(to + i, added ? widen(rows[i]) + widen(added[i]) : widen(rows[i]));
        if (index) settle(index - 1);
        if (index == last && few) break;
        attention_block<T>(layer.attention, step, rows, added, normed);
        mlp_block(layer, normed, made, step.rows, step.threads);
        added = made;
    }
    const T* final_norm = static_cast<const T*>(model.final_norm);
    if (few) {
        const Layer& layer = model.layers[last];
        Found<T> all = attend_rows<T>(layer.attention, step, rows, added, normed);
        copy_rows(asked, rows, begun.asked, begun.num_asked, hidden);
        copy_rows(all.room, all.found, begun.asked, begun.num_asked, layer.attention.output.inner);
        project(layer.attention, all.room, made, asked, normed, begun.num_asked, step.threads);
        mlp_block(layer, normed, made, begun.num_asked, step.threads);
        add_rms_norm(asked, made, final_norm, model.eps, normed, begun.num_asked, hidden);
        std::memcpy(asked, normed, begun.num_asked * hidden * sizeof(T));
    } else {
        settle(last);
        add_rms_norm(rows, added, final_norm, model.eps, normed, step.rows, hidden);
        if (captured[model.num_layers]) std::memcpy(captured[model.num_layers], normed, size * sizeof(T));
        copy_rows(asked, normed, begun.asked, begun.num_asked, hidden);
    }
    linear(model.head, asked, narrow_logits, begun.num_asked, step.threads);
    for (int64_t i = 0; i < begun.num_asked * vocab; i++) logits[i] = widen(narrow_logits[i]);
}

}  // namespace
