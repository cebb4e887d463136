// A linear layer for any number of rows: y = x w^T + bias, `x` [count, inner].
//
// Weights lie in panels of 32 outputs, [outer / 32 rounded up, inner, 32]: what a step of k needs lies side by side, so that one
// tile of rows and outputs does for a single row and for a long prompt (tile.h). What a panel holds beyond `outer` is not written.
#pragma once

#include <algorithm>
#include <vector>

#include "tile.h"

// A linear layer: `panels` as above, `bias` [outer] or null.
struct Matrix {
    const void *panels, *bias;
    int64_t inner, outer;
};

namespace {

constexpr int64_t kPanel = 32;
constexpr int64_t kBlockRows = 16 * kMostRows, kBlockInner = 512;  // of x and of weights, that stay in a near cache
constexpr int64_t kSoonNbytes = 1024;
constexpr int kMostStreams = 4;

// Panels that a tile of `rows` has registers for.
constexpr int streams_for(int64_t rows) { return rows * 2 * kMostStreams <= kSums ? kMostStreams : 2; }

// What all tiles of a strip share: `streams` panels from output `n` on, `stream` elements apart, and the part of `inner` that is
// summed now. Sums of rows that are not finished wait in `waiting` [kBlockRows, streams * kPanel].
struct Strip {
    int64_t n;
    int streams;
    int64_t stream, begin, end;
    float* waiting;
};

// The first `count` lanes only.
template <class T>
[[gnu::noinline]] void finish_some(T* y, const T* bias, Floats sum, int64_t count) {
    float lanes[kLanes];
    store(lanes, sum);
    for (int64_t i = 0; i < count; i++) narrow(y + i, bias ? lanes[i] + widen(bias[i]) : lanes[i]);
}

template <class T>
inline void finish(T* y, const T* bias, Floats sum, int64_t left) {
    if (left < kLanes) return finish_some(y, bias, sum, left);
    store(y, bias ? sum + load(bias) : sum);
}

template <int kRows, int kStreams, class T>
void linear_tile(const Matrix& by, const Strip& strip, const float* x, T* y, float* waiting, const Ahead& ahead) {
    const T* panels = static_cast<const T*>(by.panels) + strip.n * by.inner + strip.begin * kPanel;
    const T* bias = static_cast<const T*>(by.bias);
    for (int64_t half = 0; half < kPanel; half += 2 * kLanes) {
        Floats sums[kRows][kStreams][2];
        auto each = [&](auto&& call) {
            for (int m = 0; m < kRows; m++)
                for (int s = 0; s < kStreams; s++)
                    for (int v = 0; v < 2; v++) call(sums[m][s][v], m, s * kPanel + half + v * kLanes);
        };
        if (strip.begin == 0)
            each([&](Floats& sum, int, int64_t) { sum = Floats{}; });
        else
            each([&](Floats& sum, int m, int64_t at) { sum = load(waiting + m * kStreams * kPanel + at); });
        add_products(sums, x + strip.begin, by.inner, panels + half, kPanel, strip.stream, strip.end - strip.begin, ahead);
        if (strip.end < by.inner)
            each([&](Floats& sum, int m, int64_t at) { store(waiting + m * kStreams * kPanel + at, sum); });
        else
            each([&](Floats& sum, int m, int64_t at) {
                int64_t n = strip.n + at;
                finish(y + m * by.outer + n, bias ? bias + n : nullptr, sum, by.outer - n);
            });
    }
}

// `count` rows, at most kBlockRows, through one part of a strip.
template <class T>
void linear_part(const Matrix& by, const Strip& strip, const float* x, T* y, int64_t count) {
    int64_t tiles = (count + kMostRows - 1) / kMostRows, step = kPanel * int64_t(sizeof(T));
    int64_t chunks = (strip.end - strip.begin + kChunk - 1) / kChunk;
    int64_t lines = (kChunk * step / kLineNbytes + tiles - 1) / tiles;
    // A single tile asks for what it reads soon itself; several share in asking for the part that comes next.
    int64_t panel = by.inner * step, next = (strip.end < by.inner ? strip.end : strip.streams * by.inner) * step;
    const char* from = static_cast<const char*>(by.panels) + strip.n / kPanel * panel;
    from += tiles == 1 ? strip.begin * step + kSoonNbytes : next;
    in_tiles(count, [&](int64_t first, int64_t some, int64_t tile) {
        Ahead ahead{from + tile * chunks * lines * kLineNbytes, lines};
        with_constant<kMostRows>(some, [&](auto rows) {
            auto run = [&](auto streams) {
                linear_tile<rows(), streams()>(by, strip, x + first * by.inner, y + first * by.outer,
                                               strip.waiting + first * streams() * kPanel, ahead);
            };
            if constexpr (streams_for(rows()) == kMostStreams) {
                if (strip.streams == kMostStreams) return run(std::integral_constant<int, kMostStreams>{});
            }
            run(std::integral_constant<int, 2>{});
        });
    });
}

const float* widened(const float* x, int64_t, std::vector<float>&) { return x; }

const float* widened(const bfloat16* x, int64_t size, std::vector<float>& scratch) {
    scratch.resize(size);
    for (int64_t i = 0; i < size; i++) scratch[i] = widen(x[i]);
    return scratch.data();
}

// The weights of one output, [inner].
template <class T>
void weights_of(const Matrix& by, int64_t output, T* to) {
    const T* from = static_cast<const T*>(by.panels) + output / kPanel * kPanel * by.inner + output % kPanel;
    for (int64_t k = 0; k < by.inner; k++) to[k] = from[k * kPanel];
}

template <class T>
void linear(const Matrix& by, const T* x, T* y, int64_t count, int64_t threads) {
    static thread_local std::vector<float> scratch;
    const float* inputs = widened(x, count * by.inner, scratch);
    int64_t panels = (by.outer + kPanel - 1) / kPanel;
    for (int64_t row = 0; row < count; row += kBlockRows) {
        int64_t here = std::min(kBlockRows, count - row), tiles = (here + kMostRows - 1) / kMostRows;
        int most = streams_for((here + tiles - 1) / tiles);
        if (panels < most * threads) most = 2;
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
        for (int64_t first = 0; first < panels; first += most) {
            alignas(64) float waiting[kBlockRows * 2 * kPanel];
            for (int64_t panel = first, streams; panel < std::min(panels, first + most); panel += streams) {
                streams = panel + most <= panels ? most : 2;
                // The last panel may be one: then it is read as two, and what would lie behind it is not written.
                int64_t stream = panel + 1 < panels ? kPanel * by.inner : 0;
                for (int64_t k = 0, step = tiles == 1 ? by.inner : kBlockInner; k < by.inner; k += step) {
                    Strip strip{panel * kPanel, int(streams), stream, k, std::min(by.inner, k + step), waiting};
                    linear_part(by, strip, inputs + row * by.inner, y + row * by.outer, here);
                }
            }
        }
    }
}

}  // namespace
