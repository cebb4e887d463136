// What the library offers for sound, by name. Python's side is modeling/kernels/waves.py.
#include "waves.h"

extern "C" {

void convolve_f32(const Convolution* by, const float* x, int64_t x_batch, int64_t x_channel, const float* added,
                  int64_t added_batch, int64_t added_channel, float* y, int64_t y_batch, int64_t y_channel, int64_t batch,
                  int64_t time, int64_t threads) {
    convolve(*by, {x, x_batch, x_channel}, {added, added_batch, added_channel}, {y, y_batch, y_channel}, batch, time, threads);
}

void snake_f32(const float* x, int64_t x_batch, int64_t x_channel, float* y, int64_t y_batch, int64_t y_channel,
               const float* alpha, const float* by_beta, int64_t batch, int64_t channels, int64_t time, int64_t threads) {
    snake({x, x_batch, x_channel}, {y, y_batch, y_channel}, alpha, by_beta, batch, channels, time, threads);
}

void chain_waves_f32(const Link* links, const Past* pasts, int64_t count, const float* x, int64_t x_batch, int64_t x_channel,
                     float* y, int64_t batch, int64_t time, int64_t threads) {
    chain(links, pasts, count, {x, x_batch, x_channel}, y, batch, time, threads);
}

}  // extern "C"
