// Decoders that run one behind another over one cache, each from the token that was drawn from the one before: in one call, for
// where the decoders are small, what is between two of them costs more than they do.
#pragma once

#include <numeric>
#include <vector>

#include "layers.h"
#include "sampling.h"

// `links` of one size; `settings` [num_links, sequences] or null, `few` as in draw_tokens; `tokens` [num_links, sequences].
struct Chain {
    const Decoder* links;
    int64_t num_links;
    const DrawSettings* settings;
    int64_t few;
    int64_t* tokens;
};

namespace {

// The first link begins with `begun`, one row of each sequence asked for; later ones compute one token of each.
template <class T>
void chain(const Chain& of, PagedStep step, Begun begun) {
    static thread_local std::vector<float> logits;
    static thread_local std::vector<Sequence> sequences;
    static thread_local std::vector<int64_t> fed, asked;
    static thread_local std::vector<T*> nothing;
    int64_t count = step.num_sequences, vocab = of.links[0].head.outer;
    logits.resize(count * vocab);
    sequences.assign(step.sequences, step.sequences + count);
    fed.resize(count);
    asked.resize(count);
    std::iota(asked.begin(), asked.end(), 0);
    nothing.assign(of.links[0].num_layers + 1, nullptr);
    for (int64_t link = 0; link < of.num_links; link++) {
        decoder<T>(of.links[link], step, begun, logits.data(), nothing.data());
        int64_t* drawn = of.tokens + link * count;
        const DrawSettings* settings = of.settings ? of.settings + link * count : nullptr;
        draw_tokens(logits.data(), settings, drawn, count, vocab, of.few, step.threads);
        for (int64_t i = 0; i < count; i++) {
            fed[i] = std::max<int64_t>(0, drawn[i]);
            sequences[i] = {sequences[i].slot, sequences[i].start + sequences[i].count, 1};
        }
        step.rows = count;
        step.sequences = sequences.data();
        begun = {fed.data(), nullptr, nullptr, asked.data(), count};
    }
}

}  // namespace
