// What sampling.cpp offers.
#pragma once

#include <cstdint>

// Settings of one row. `temperature` 0: the best token. `top_k` 0, `top_p` 1, `min_p` 0: no such filter. `chance` in [0, 1).
struct DrawSettings {
    double temperature, top_p, min_p, chance;
    int64_t top_k;
};

// `logits` [rows, vocab] -> `tokens` [rows]; -1 where a row is not finite. `settings` null: the best of each row. `few`: how many
// candidates stand for a nucleus.
extern "C" void draw_tokens(const float* logits, const DrawSettings* settings, int64_t* tokens, int64_t rows,
                            int64_t vocab, int64_t few, int64_t threads);

// In place: of each row of `logits` [rows, vocab] those of `tokens`, `counts` of them, one row's behind another's. What is positive
// is divided by the row's penalty, what is not is multiplied. Only tokens of the vocabulary are touched.
extern "C" void repeat_penalty(float* logits, const float* penalties, const int64_t* counts, const int64_t* tokens, int64_t rows,
                               int64_t vocab);

// One number in [0, 1) of each row, by `seeds` and `positions` [count] and `streams` [count, 2] (Philox4x32-10, modeling/philox.py).
extern "C" void draw_uniforms(const uint64_t* seeds, const uint64_t* positions, const uint32_t* streams, double* chances,
                              int64_t count);
