// Sound on its way out of a decoder: convolutions over time and what bends samples between them. float32, channels before time.
#pragma once

#include <algorithm>
#include <vector>

#include "tile.h"

namespace {

// One causal convolution over inputs that have their past in front: y[c, t] = bias[c] + sum of w[c, i, k] x[i, t + k dilation].
// With `spread` above 1 so many outputs each are steps of one channel: y[c, t] lies at [c / spread, t spread + c % spread], which
// makes a transposed convolution of it. Outputs are computed eight at a time, and the last of them as many as there are, filled up to 1, 2, 4 or 8:
// `weights` is [in, kernel, 8] for each eight, and [in, kernel, that many] at the end; so is `bias`.
struct Convolution {
    const float* weights;
    const float* bias;
    int64_t in, out, kernel, dilation, spread;
};

// A snake (see below) and a convolution of what it makes, to which the input of the link before is added where `adds` is not 0.
struct Link {
    const float *alpha, *by_beta;
    Convolution by;
    int64_t adds;
};

// The last inputs of a convolution, bent already: `past` [batch, in, steps], and where the last `kept` go to, [batch, in, kept].
struct Past {
    const float* at;
    int64_t steps;
    float* to;
    int64_t kept;
};

// [batch, channels, time]; steps of time lie side by side.
template <class T>
struct Waves {
    T* at;
    int64_t batch_stride, channel_stride;
};

template <class T>
static inline Waves<T> at(const Waves<T>& waves, int64_t sequence) {
    return {waves.at ? waves.at + sequence * waves.batch_stride : nullptr, waves.batch_stride, waves.channel_stride};
}

constexpr int kTogether = 8;

// Where output `c` at step `t` goes.
static inline float* place(const Convolution& by, const Waves<float>& y, int64_t c, int64_t t) {
    if (by.spread == 1) return y.at + c * y.channel_stride + t;
    return y.at + c / by.spread * y.channel_stride + t * by.spread + c % by.spread;
}

// Some outputs at some steps of time. A sum is one chain of inputs and taps, whatever the tile: the same bits beside any others.
template <int kChannels, int kVectors, class Read>
inline void convolve_tile(const Convolution& by, int64_t first, const Waves<const float>& x, const Waves<const float>& added,
                          const Waves<float>& y, int64_t t, int64_t steps, Read read) {
    const float *weights = by.weights + first * by.in * by.kernel, *from = x.at + t;
    Floats sums[kChannels][kVectors];
    for (int c = 0; c < kChannels; c++)
        for (int v = 0; v < kVectors; v++) sums[c][v] = splat(by.bias[first + c]);
    for (int64_t i = 0; i < by.in; i++, from += x.channel_stride)
        for (int64_t k = 0; k < by.kernel; k++, weights += kChannels) {
            Floats seen[kVectors];
            for (int v = 0; v < kVectors; v++) seen[v] = read(from + k * by.dilation + v * kLanes);
            for (int c = 0; c < kChannels; c++)
                for (int v = 0; v < kVectors; v++) sums[c][v] += weights[c] * seen[v];
        }
    for (int64_t c = 0; c < kChannels && first + c < by.out; c++) {
        float* to = place(by, y, first + c, t);
        const float* plus = added.at ? added.at + (first + c) * added.channel_stride + t : nullptr;
        for (int v = 0; v < kVectors; v++) {
            Floats made = sums[c][v];
            if (plus) made += read(plus + v * kLanes);
            if (by.spread == 1 && steps == kVectors * kLanes) {
                store(to + v * kLanes, made);
                continue;
            }
            float lanes[kLanes];
            store(lanes, made);
            int64_t here = std::min<int64_t>(kLanes, steps - v * kLanes);
            for (int64_t step = 0; step < here; step++) to[(v * kLanes + step) * by.spread] = lanes[step];
        }
    }
}

template <int kChannels>
inline void convolve_channels(const Convolution& by, int64_t first, const Waves<const float>& x,
                              const Waves<const float>& added, const Waves<float>& y, int64_t time) {
    constexpr int kVectors = std::min(kSums / kChannels, 8);
    auto whole = [](const float* from) { return load(from); };
    int64_t t = 0;
    for (; t + kVectors * kLanes <= time; t += kVectors * kLanes)
        convolve_tile<kChannels, kVectors>(by, first, x, added, y, t, kVectors * kLanes, whole);
    for (; t + kLanes <= time; t += kLanes) convolve_tile<kChannels, 1>(by, first, x, added, y, t, kLanes, whole);
    int64_t rest = time - t;
    auto part = [rest](const float* from) {
        float lanes[kLanes] = {};
        std::memcpy(lanes, from, size_t(rest) * sizeof(float));
        return load(lanes);
    };
    if (rest) convolve_tile<kChannels, 1>(by, first, x, added, y, t, rest, part);
}

// `added` is what the outputs are added to; its address may be null.
inline void convolve(const Convolution& by, const Waves<const float>& x, const Waves<const float>& added, const Waves<float>& y,
                     int64_t batch, int64_t time, int64_t threads) {
    int64_t groups = (by.out + kTogether - 1) / kTogether;
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
    for (int64_t index = 0; index < batch * groups; index++) {
        int64_t b = index / groups, first = index % groups * kTogether, left = by.out - first;
        auto run = left > 4 ? convolve_channels<8> : left > 2 ? convolve_channels<4> : left > 1 ? convolve_channels<2> : convolve_channels<1>;
        run(by, first, at(x, b), at(added, b), at(y, b), time);
    }
}

// sin(y)^2 repeats every pi: y is brought to [-pi/2, pi/2], where its sine is a polynomial, to about two units in the last place.
static inline Floats sine_squared(Floats y) {
    constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: what is added to it becomes a whole number
    Floats turns = (y * 0.318309886f + kRounds) - kRounds;
    Floats r = y - turns * 3.140625f - turns * 9.67025756836e-4f - turns * 6.27711e-7f;  // pi in three parts
    Floats square = r * r;
    Floats p = splat(2.6083159809786593541503e-06f);
    p = p * square - 0.0001981069071916863322258f;
    p = p * square + 0.00833307858556509017944336f;
    p = p * square - 0.166666597127914428710938f;
    Floats sine = p * square * r + r;
    return sine * sine;
}

// y = x + sin(alpha x)^2 by_beta, with alpha and by_beta per channel.
inline void snake(const Waves<const float>& x, const Waves<float>& y, const float* alpha, const float* by_beta, int64_t batch,
                  int64_t channels, int64_t time, int64_t threads) {
#pragma omp parallel for num_threads(int(threads)) if (threads > 1)
    for (int64_t index = 0; index < batch * channels; index++) {
        int64_t b = index / channels, c = index % channels, t = 0;
        const float* from = x.at + b * x.batch_stride + c * x.channel_stride;
        float* to = y.at + b * y.batch_stride + c * y.channel_stride;
        auto bent = [&](Floats value) { return value + sine_squared(value * alpha[c]) * by_beta[c]; };
        for (; t + kLanes <= time; t += kLanes) store(to + t, bent(load(from + t)));
        float lanes[kLanes] = {};
        size_t rest = size_t(time - t) * sizeof(float);
        std::memcpy(lanes, from + t, rest);
        store(lanes, bent(load(lanes)));
        std::memcpy(to + t, lanes, rest);
    }
}

// Memory that grows and is used again.
static inline float* room(std::vector<float>& memory, int64_t size) {
    if (int64_t(memory.size()) < size) memory.resize(size);
    return memory.data();
}

static inline Waves<float> packed(float* at, int64_t channels, int64_t time) { return {at, channels * time, time}; }

static inline Waves<const float> read_only(const Waves<float>& waves) {
    return {waves.at, waves.batch_stride, waves.channel_stride};
}

// `held` [batch, in, past + time] of a link: its past, and what snake makes of `x`; the end of it is kept.
inline Waves<float> bend(const Link& link, const Past& past, const Waves<const float>& x, int64_t batch, int64_t time,
                         int64_t threads, std::vector<float>& memory) {
    int64_t in = link.by.in, steps = past.steps + time;
    Waves<float> held = packed(room(memory, batch * in * steps), in, steps);
    snake(x, {held.at + past.steps, held.batch_stride, steps}, link.alpha, link.by_beta, batch, in, time, threads);
    for (int64_t row = 0; row < batch * in; row++) {
        float* to = held.at + row * steps;
        std::copy_n(past.at + row * past.steps, past.steps, to);
        std::copy_n(to + steps - past.kept, past.kept, past.to + row * past.kept);
    }
    return held;
}

// The links one behind another: `x` [batch, in of the first, time] -> `y` [batch, out of the last, whatever it makes].
inline void chain(const Link* links, const Past* pasts, int64_t count, const Waves<const float>& x, float* y, int64_t batch,
                  int64_t time, int64_t threads) {
    static thread_local std::vector<float> memory, made[3];  // an output, its input, and the input of the link before
    Waves<const float> input = x, before{};
    for (int64_t index = 0; index < count; index++) {
        const Convolution& by = links[index].by;
        Waves<float> held = bend(links[index], pasts[index], input, batch, time, threads, memory);
        int64_t sums = std::max<int64_t>(0, pasts[index].steps + time - (by.kernel - 1) * by.dilation);
        int64_t channels = by.out / by.spread, steps = sums * by.spread;
        float* to = index == count - 1 ? y : room(made[index % 3], batch * channels * steps);
        Waves<float> out = packed(to, channels, steps);
        convolve(by, read_only(held), links[index].adds ? before : Waves<const float>{}, out, batch, sums, threads);
        before = input, input = read_only(out), time = steps;
    }
}

}  // namespace
