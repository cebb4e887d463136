// What the library offers by name, once for float32 and once for bfloat16. Python's side is modeling/kernels/native.py.
#include "chain.h"
#include "frames.h"

#define FOR_EACH_TYPE(OFFER) OFFER(f32, float) OFFER(bf16, bfloat16)

#define OFFER(suffix, T)                                                                                               \
    void attend_##suffix(const PagedLayer* layer, const PagedStep* step, const Heads* q, const Heads* k,               \
                         const Heads* v, T* out) {                                                                     \
        attend<T>(*layer, *step, *q, *k, *v, out);                                                                     \
    }                                                                                                                  \
    void add_rms_norm_##suffix(T* rows, const T* residual, const T* weight, double eps, T* out, int64_t count,         \
                               int64_t hidden) {                                                                       \
        add_rms_norm(rows, residual, weight, eps, out, count, hidden);                                                 \
    }                                                                                                                  \
    void silu_mul_##suffix(const T* gate_up, T* out, int64_t count, int64_t inner, int64_t threads) {                  \
        silu_mul(gate_up, out, count, inner, threads);                                                                 \
    }                                                                                                                  \
    void linear_##suffix(const Matrix* by, const T* x, T* y, int64_t count, int64_t threads) {                         \
        linear(*by, x, y, count, threads);                                                                             \
    }                                                                                                                  \
    void attention_block_##suffix(const AttentionBlock* block, const PagedStep* step, T* rows, const T* added,         \
                                  T* normed) {                                                                         \
        attention_block<T>(*block, *step, rows, added, normed);                                                        \
    }                                                                                                                  \
    void gated_block_##suffix(const GatedBlock* block, const T* normed, T* out, int64_t count, int64_t threads) {      \
        gated_block<T>(*block, normed, out, count, threads);                                                           \
    }                                                                                                                  \
    void experts_block_##suffix(const Experts* block, const T* normed, T* out, int64_t count, int64_t threads) {       \
        experts_block(*block, normed, out, count, threads);                                                            \
    }                                                                                                                  \
    void decoder_##suffix(const Decoder* model, const PagedStep* step, const Begun* begun, float* logits,              \
                          T* const* captured) {                                                                        \
        decoder<T>(*model, *step, *begun, logits, captured);                                                           \
    }                                                                                                                  \
    void chain_##suffix(const Chain* of, const PagedStep* step, const Begun* begun) { chain<T>(*of, *step, *begun); }

extern "C" {
int64_t vector_lanes() { return kLanes; }
FOR_EACH_TYPE(OFFER)

// float32 only; Python's side is modeling/kernels/frames.py.
void window_layer_f32(const WindowLayer* layer, const Window* window, float* rows, const float* keys, const float* values,
                      float* new_keys, float* new_values, int64_t batch, int64_t frames, int64_t threads) {
    window_layer(*layer, *window, rows, {keys, values}, {new_keys, new_values}, batch, frames, threads);
}
void multiply_f32(const Multiplier* by, const float* x, const float* past, float* kept, float* y, int64_t batch,
                  int64_t frames, int64_t threads) {
    multiply(*by, x, past, kept, y, batch, frames, threads);
}
}
