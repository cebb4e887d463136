// Attention over paged keys and values, for decode, chunked prefill and mixed steps alike.
//
// A step is T rows of all its sequences, flattened. First every row's key and value are written into the cache; then each row
// attends to the keys of its sequence up to its own position (or the last `window` of them), block by block, with a running maximum.
// Rows of one sequence share a tile, so that a block is read from memory once for all of them. A row's arithmetic does not
// depend on its tile or its neighbours: the same row gives the same bits in any batch and any chunk.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "simd.h"

// One layer: constant for the life of a cache. `keys` and `values` are [blocks, kv_heads, block_size, head_dim].
struct PagedLayer {
    int64_t heads, kv_heads, head_dim, block_size;
    void *keys, *values;
    const void *query_norm, *key_norm;  // [head_dim] or null
    double eps, scale;
    int64_t window;  // 0: all keys
};

// One sequence of a step computes `count` rows at its positions from `start` on; `slot` is its row of the block table.
struct Sequence {
    int64_t slot, start, count;
};

// One step: shared by all layers. `rotations`: of each position the cosines, then the sines, [positions, head_dim]; of each row
// where they are `by_row`, [rows, head_dim]; or null.
struct PagedStep {
    int64_t rows, num_sequences;
    const Sequence* sequences;
    const int32_t* block_table;
    int64_t columns;
    const float* rotations;
    int64_t by_row, threads;

    const int32_t* blocks_of(const Sequence& sequence) const { return block_table + sequence.slot * columns; }
    const float* rotation(int64_t row, int64_t position, int64_t dim) const {
        return rotations ? rotations + (by_row ? row : position) * dim : nullptr;
    }
};

// Where a row's heads lie: element [t, h, d] at data[t * row_stride + h * head_stride + d].
struct Heads {
    const void* data;
    int64_t row_stride, head_stride;
};

namespace {

constexpr int kTileRows = 8;

template <class T>
const T* head_of(const Heads& heads, int64_t row, int64_t head) {
    return static_cast<const T*>(heads.data) + row * heads.row_stride + head * heads.head_stride;
}

// One head as float32, normalised and rotated where the layer and the step say so.
template <class T>
void prepare(const T* from, const void* norm, double eps, const float* rotation, int dim, float* to) {
    for (int d = 0; d < dim; d++) to[d] = widen(from[d]);
    if (norm) {
        const T* weight = static_cast<const T*>(norm);
        int whole = dim / kLanes * kLanes;
        Floats several{};
        for (int d = 0; d < whole; d += kLanes) several += load(to + d) * load(to + d);
        float squares = sum(several);
        for (int d = whole; d < dim; d++) squares += to[d] * to[d];
        float factor = 1.0f / std::sqrt(squares / dim + float(eps));
        for (int d = 0; d < dim; d++) to[d] = to[d] * factor * widen(weight[d]);
    }
    if (rotation) {
        int half = dim / 2;
        const float *cosine = rotation, *sine = rotation + half;
        for (int d = 0; d < half; d++) {
            float first = to[d], second = to[d + half];
            to[d] = first * cosine[d] - second * sine[d];
            to[d + half] = second * cosine[d] + first * sine[d];
        }
    }
}

template <class T>
void write_rows(const PagedLayer& layer, const PagedStep& step, const Heads& k, const Heads& v) {
    int dim = int(layer.head_dim);
    std::vector<float> key(dim);
    int64_t row = 0;
    for (const Sequence* one = step.sequences; one < step.sequences + step.num_sequences; one++)
        for (int64_t position = one->start; position < one->start + one->count; position++, row++) {
            int64_t block = step.blocks_of(*one)[position / layer.block_size], offset = position % layer.block_size;
            for (int64_t head = 0; head < layer.kv_heads; head++) {
                int64_t at = ((block * layer.kv_heads + head) * layer.block_size + offset) * dim;
                const float* rotation = step.rotation(row, position, dim);
                prepare(head_of<T>(k, row, head), layer.key_norm, layer.eps, rotation, dim, key.data());
                T* to = static_cast<T*>(layer.keys) + at;
                for (int d = 0; d < dim; d++) narrow(to + d, key[d]);
                std::memcpy(static_cast<T*>(layer.values) + at, head_of<T>(v, row, head), dim * sizeof(T));
            }
        }
}

// What a query has found so far: the greatest score, the sum of weights, the weighted sum of values [dim].
struct Running {
    float greatest = -INFINITY, weight = 0;
};

constexpr int kMostScores = 256;

// Scores of the keys [0, count) of a block by kQueries queries that lie one behind the other, rounded up to whole vectors. A key is
// loaded, and widened, once for all of them.
template <class T, int kQueries>
inline void score(const float* query, const T* keys, int dim, int count, float (*scores)[kMostScores]) {
    constexpr int kKeys = kLanes / kQueries;
    for (int j = 0; j < count; j += kKeys) {
        Floats partial[kLanes];
        for (int i = 0; i < kLanes; i++) partial[i] = Floats{};
        for (int d = 0; d < dim; d += kLanes) {
            Floats asked[kQueries];
            for (int q = 0; q < kQueries; q++) asked[q] = load(query + q * dim + d);
            for (int i = 0; i < kKeys; i++) {
                Floats key = load(keys + (j + i) * dim + d);
                for (int q = 0; q < kQueries; q++) partial[q * kKeys + i] += asked[q] * key;
            }
        }
        float found[kLanes];
        store(found, sums(partial));
        for (int q = 0; q < kQueries; q++) std::memcpy(scores[q] + j, found + q * kKeys, kKeys * sizeof(float));
    }
}

// Scores [0, padded) become weights; those outside of [from, to) weigh nothing. What was found so far keeps that much of its weight.
inline float weigh(float* scores, int from, int to, int padded, Running& state) {
    for (int j = 0; j < from; j++) scores[j] = -INFINITY;
    for (int j = to; j < padded; j++) scores[j] = -INFINITY;
    Floats top = load(scores);
    for (int j = kLanes; j < padded; j += kLanes) {
        Floats x = load(scores + j);
        top = x > top ? x : top;
    }
    float greatest = std::max(state.greatest, most(top));
    float keep = state.greatest == greatest ? 1.0f : std::exp(state.greatest - greatest);
    Floats total{};
    for (int j = 0; j < padded; j += kLanes) {
        Floats weights = exponential(load(scores + j) - greatest);
        store(scores + j, weights);
        total += weights;
    }
    state.weight = state.weight * keep + sum(total);
    state.greatest = greatest;
    return keep;
}

// Of every query `found` becomes `found` * keep + the values of the keys [from, to) by their weights, kVectors vectors of it. Even and
// odd keys are added up apart, for one sum would wait for itself.
template <class T, int kQueries, int kVectors>
inline void gather_values(const T* values, const float (*weights)[kMostScores], int dim, int from, int to, const float* keep,
                          float* found) {
    Floats even[kQueries][kVectors], odd[kQueries][kVectors];
    for (int q = 0; q < kQueries; q++)
        for (int v = 0; v < kVectors; v++) {
            even[q][v] = load(found + q * dim + v * kLanes) * keep[q];
            odd[q][v] = Floats{};
        }
    int j = from;
    for (; j + 2 <= to; j += 2)
        for (int v = 0; v < kVectors; v++) {
            Floats first = load(values + j * dim + v * kLanes), second = load(values + (j + 1) * dim + v * kLanes);
            for (int q = 0; q < kQueries; q++) {
                even[q][v] += first * weights[q][j];
                odd[q][v] += second * weights[q][j + 1];
            }
        }
    for (; j < to; j++)
        for (int v = 0; v < kVectors; v++)
            for (int q = 0; q < kQueries; q++) even[q][v] += load(values + j * dim + v * kLanes) * weights[q][j];
    for (int q = 0; q < kQueries; q++)
        for (int v = 0; v < kVectors; v++) store(found + q * dim + v * kLanes, even[q][v] + odd[q][v]);
}

// kQueries queries against the keys [from, to) of one block.
template <class T, int kQueries>
inline void attend_block(const float* query, const T* keys, const T* values, int dim, int from, int to, Running* states,
                         float* found) {
    alignas(64) float scores[kQueries][kMostScores];
    float keep[kQueries];
    score<T, kQueries>(query, keys, dim, to, scores);
    for (int q = 0; q < kQueries; q++) keep[q] = weigh(scores[q], from, to, (to + kLanes - 1) / kLanes * kLanes, states[q]);
    constexpr int kVectors = kQueries > 2 ? 2 : 4;  // as many sums as there are registers
    int d = 0;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes)
        gather_values<T, kQueries, kVectors>(values + d, scores, dim, from, to, keep, found + d);
    for (; d < dim; d += kLanes) gather_values<T, kQueries, 1>(values + d, scores, dim, from, to, keep, found + d);
}

// Blocks lie anywhere, so no processor guesses the next one: it is asked for while this one is computed.
template <class T>
void prefetch_block(const PagedLayer& layer, int64_t block, int64_t kv_head) {
    int64_t size = layer.block_size * layer.head_dim, at = (block * layer.kv_heads + kv_head) * size;
    const T *keys = static_cast<const T*>(layer.keys) + at, *values = static_cast<const T*>(layer.values) + at;
    for (int64_t i = 0; i < size; i += 64 / int64_t(sizeof(T))) {
        __builtin_prefetch(keys + i);
        __builtin_prefetch(values + i);
    }
}

// `count` rows of one sequence, `row` of the step at `position` the first of them.
struct Tile {
    const Sequence* sequence;
    int64_t row, position, count;
};

// The rows of one tile, the query heads of one key head. kDim: the head_dim, or 0 for any.
template <class T, int kDim>
void attend_tile(const PagedLayer& layer, const PagedStep& step, const Heads& q, const Tile& tile, int64_t kv_head,
                 T* out) {
    const int dim = kDim ? kDim : int(layer.head_dim), size = int(layer.block_size);
    int64_t group = layer.heads / layer.kv_heads, queries = tile.count * group;
    static thread_local std::vector<float> scratch;
    scratch.assign(2 * queries * dim, 0.0f);
    float *query = scratch.data(), *found = query + queries * dim;
    static thread_local std::vector<Running> states;
    states.assign(queries, Running{});
    for (int64_t i = 0; i < tile.count; i++)
        for (int64_t g = 0; g < group; g++) {
            float* to = query + (i * group + g) * dim;
            const float* rotation = step.rotation(tile.row + i, tile.position + i, dim);
            prepare(head_of<T>(q, tile.row + i, kv_head * group + g), layer.query_norm, layer.eps, rotation, dim, to);
            for (int d = 0; d < dim; d++) to[d] *= float(layer.scale);
        }
    // What a row sees is [first_seen, length) of the keys.
    auto first_seen = [&](int64_t length) { return layer.window ? std::max<int64_t>(0, length - layer.window) : 0; };
    const int32_t* table = step.blocks_of(*tile.sequence);
    for (int64_t block = first_seen(tile.position + 1) / size; block * size < tile.position + tile.count; block++) {
        int64_t at = (table[block] * layer.kv_heads + kv_head) * int64_t(size) * dim;
        const T *keys = static_cast<const T*>(layer.keys) + at, *values = static_cast<const T*>(layer.values) + at;
        if ((block + 1) * size < tile.position + tile.count) prefetch_block<T>(layer, table[block + 1], kv_head);
        auto seen = [&](int64_t i) {
            int64_t length = tile.position + i + 1;
            return std::pair(int(std::max<int64_t>(0, first_seen(length) - block * size)),
                             int(std::min<int64_t>(size, length - block * size)));
        };
        for (int64_t i = 0, next; i < tile.count; i = next) {
            auto [from, to] = seen(i);
            for (next = i + 1; next < tile.count && seen(next) == std::pair(from, to);) next++;
            if (from >= to) continue;
            int64_t index = i * group, end = next * group;  // rows that see the same keys share in loading them
            auto run = [&](auto queries) {
                for (; index + queries() <= end; index += queries())
                    attend_block<T, queries()>(query + index * dim, keys, values, dim, from, to, &states[index],
                                               found + index * dim);
            };
            run(std::integral_constant<int, 4>{});
            run(std::integral_constant<int, 2>{});
            run(std::integral_constant<int, 1>{});
        }
    }
    for (int64_t index = 0; index < queries; index++) {
        int64_t row = tile.row + index / group, head = kv_head * group + index % group;
        T* to = out + (row * layer.heads + head) * dim;
        float weight = states[index].weight;  // a store to what is found may not change it
        for (int d = 0; d < dim; d += kLanes) store(to + d, load(found + index * dim + d) / weight);
    }
}

template <class T>
void attend(const PagedLayer& layer, const PagedStep& step, const Heads& q, const Heads& k, const Heads& v, T* out) {
    write_rows<T>(layer, step, k, v);
    static thread_local std::vector<Tile> tiles;
    tiles.clear();
    int64_t row = 0;
    for (const Sequence* one = step.sequences; one < step.sequences + step.num_sequences; one++)
        for (int64_t done = 0, count; done < one->count; done += count, row += count) {
            count = std::min<int64_t>(kTileRows, one->count - done);
            tiles.push_back({one, row, one->start + done, count});
        }
    const Tile* first = tiles.data();  // a thread of the loop has another `tiles`
    int64_t tasks = int64_t(tiles.size()) * layer.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(int(step.threads)) if (step.threads > 1 && tasks > 1)
    for (int64_t task = 0; task < tasks; task++) {
        const Tile& tile = first[task / layer.kv_heads];
        int64_t kv_head = task % layer.kv_heads;
        switch (layer.head_dim) {  // widths that the compiler knows are several times faster
            case 64: attend_tile<T, 64>(layer, step, q, tile, kv_head, out); break;
            case 128: attend_tile<T, 128>(layer, step, q, tile, kv_head, out); break;
            default: attend_tile<T, 0>(layer, step, q, tile, kv_head, out);
        }
    }
}

}  // namespace
