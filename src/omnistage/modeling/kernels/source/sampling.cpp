// From adjusted logits to one token a row, by the rules of modeling/sampling.py, whose torch form this is tested against.
//
// A row depends on its own logits and settings alone. Among few candidates (top-k, or the nucleus while it fits into the best
// `few`) the draw walks from the best down, equal values by ascending id; among all it walks by ascending id. Nothing sorts a
// vocabulary unless a nucleus is wider than `few`.
#include <algorithm>
#include <functional>
#include <vector>

#include "sampling.h"
#include "simd.h"

namespace {

struct Candidate {
    float value;
    int32_t token;
};

bool is_better(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

constexpr int kStretch = 4 * kLanes;  // logits of which only the greatest is remembered

// One row of logits, with the greatest of every stretch: what is sought later is sought in the few stretches that have it.
struct RowState {
    const float* logits;
    int64_t vocab;
    std::vector<float>& tops;
    float best = -INFINITY;  // NaN if some logit is

    RowState(const float* logits, int64_t vocab, std::vector<float>& tops) : logits(logits), vocab(vocab), tops(tops) {
        tops.clear();
        Ints odd{};
        int64_t i = 0;
        for (; i + kStretch <= vocab; i += kStretch) {
            Floats top = load(logits + i);
            odd |= (top != top);
            for (int v = 1; v < kStretch / kLanes; v++) {
                Floats x = load(logits + i + v * kLanes);
                top = x > top ? x : top;
                odd |= (x != x);
            }
            tops.push_back(most(top));
        }
        if (i < vocab) tops.push_back(*std::max_element(logits + i, logits + vocab));
        bool is_odd = std::any_of(logits + i, logits + vocab, [](float x) { return x != x; });
        for (int lane = 0; lane < kLanes; lane++) is_odd |= odd[lane] != 0;
        best = is_odd ? NAN : *std::max_element(tops.begin(), tops.end());
    }

    // Calls `take(token)` for every logit that is at least `least`, by ascending id.
    template <class Take>
    void each(float least, Take take) const {
        for (size_t stretch = 0; stretch < tops.size(); stretch++) {
            if (tops[stretch] < least) continue;
            int64_t begin = int64_t(stretch) * kStretch, end = std::min<int64_t>(begin + kStretch, vocab);
            for (int64_t i = begin; i < end; i++)
                if (logits[i] >= least) take(i);
        }
    }

    int64_t first_best() const {
        int64_t stretch = std::find(tops.begin(), tops.end(), best) - tops.begin();
        return std::find(logits + stretch * kStretch, logits + vocab, best) - logits;
    }
};

float scaled(float logit, float best, float temperature) { return (logit - best) / temperature; }

// What a logit has at the least if its scaled value reaches `floor`, with room for rounding.
float least_logit(float floor, float best, float temperature) {
    float distance = -floor * temperature;
    return best - distance - 4e-7f * (std::abs(best) + distance);
}

// All tokens whose scaled value is at least the count-th best, best first. As many stretches as are wanted have a logit that is at
// least the count-th of their greatest, so nothing below that is looked at.
void best_of(const RowState& row, float temperature, int64_t count, std::vector<Candidate>& found) {
    float floor = -INFINITY, least = -INFINITY;
    if (int64_t(row.tops.size()) > count) {
        static thread_local std::vector<float> tops;
        tops = row.tops;
        std::nth_element(tops.begin(), tops.begin() + count - 1, tops.end(), std::greater<float>());
        floor = scaled(tops[count - 1], row.best, temperature);
        least = least_logit(floor, row.best, temperature);
    }
    found.clear();
    row.each(least, [&](int64_t i) {
        float value = scaled(row.logits[i], row.best, temperature);
        if (value >= floor) found.push_back({value, int32_t(i)});
    });
    if (int64_t(found.size()) > count) {
        std::nth_element(found.begin(), found.begin() + count - 1, found.end(), is_better);
        floor = found[count - 1].value;
        auto is_below = [&](const Candidate& c) { return c.value < floor; };
        found.erase(std::remove_if(found.begin(), found.end(), is_below), found.end());
    }
    std::sort(found.begin(), found.end(), is_better);
}

// The weight of a whole row, in blocks, so that no sum grows long in float32.
double total_weight(const float* logits, int64_t vocab, float best, float temperature) {
    double total = 0;
    int64_t i = 0;
    for (; i + 16 * kLanes <= vocab; i += 16 * kLanes) {
        Floats sums{};
        for (int j = 0; j < 16; j++) sums += exponential((load(logits + i + j * kLanes) - best) / temperature);
        total += double(sum(sums));
    }
    for (; i < vocab; i++) total += std::exp(double(scaled(logits[i], best, temperature)));
    return total;
}

// -1: the nucleus reaches beyond the candidates.
int64_t draw_among_few(const RowState& logits, const DrawSettings& row, int64_t few, std::vector<Candidate>& found) {
    float temperature = float(row.temperature);
    bool is_cut = row.top_k > 0;
    best_of(logits, temperature, is_cut ? row.top_k : few, found);
    std::vector<double> weights(found.size());
    double among = 0;
    for (size_t i = 0; i < found.size(); i++) among += weights[i] = std::exp(double(found[i].value));
    double total = is_cut || row.top_p >= 1.0 ? among : total_weight(logits.logits, logits.vocab, logits.best, temperature);
    bool nucleus_ends = row.top_p < 1.0 && among >= row.top_p * total;
    double last = weights.back();
    if (!is_cut && !nucleus_ends && !(last < row.min_p * weights[0]) && last != 0) return -1;
    double kept = 0, before = 0;
    size_t count = 0;
    for (; count < found.size(); count++) {  // the survivors of top-p and min-p are the first ones
        bool inside = row.top_p >= 1.0 || before < row.top_p * total;
        if (count && !(inside && weights[count] > 0 && weights[count] >= row.min_p * weights[0])) break;
        before += weights[count];
        kept += weights[count];
    }
    double reach = row.chance * kept, walked = 0;
    for (size_t i = 0; i < count; i++) {
        walked += weights[i];
        if (walked > reach) return found[i].token;
    }
    return found[count - 1].token;
}

// No filter at all: whole blocks are passed over by their sums, by ascending id.
int64_t draw_unfiltered(const float* logits, int64_t vocab, float best, const DrawSettings& row,
                        std::vector<double>& blocks) {
    float temperature = float(row.temperature);
    constexpr int64_t kBlock = 16 * kLanes;
    blocks.clear();
    double total = 0;
    for (int64_t start = 0; start < vocab; start += kBlock) {
        blocks.push_back(total_weight(logits + start, std::min(kBlock, vocab - start), best, temperature));
        total += blocks.back();
    }
    double reach = row.chance * total, walked = 0;
    size_t block = 0;
    while (block + 1 < blocks.size() && walked + blocks[block] <= reach) walked += blocks[block++];
    int64_t last = 0;
    for (int64_t i = block * kBlock; i < vocab; i++) {
        double weight = std::exp(double(scaled(logits[i], best, temperature)));
        if (weight == 0) continue;
        walked += weight;
        last = i;
        if (walked > reach) break;
    }
    return last;
}

// How many of the greatest weights make `wanted` together, one at the least; they come to the front, the least of them last.
// Halves are set apart and summed until one weight is left to decide, which takes far less than to sort them all.
size_t nucleus(std::vector<double>& weights, double wanted) {
    size_t inside = 0, end = weights.size();
    double walked = 0;
    while (end - inside > 1) {
        size_t middle = inside + (end - inside) / 2;
        std::nth_element(weights.begin() + inside, weights.begin() + middle, weights.begin() + end, std::greater<double>());
        double half = 0;
        for (size_t i = inside; i < middle; i++) half += weights[i];
        if (walked + half >= wanted) {
            end = middle;
        } else {
            walked += half;
            inside = middle;
        }
    }
    return end;
}

int64_t draw_among_all(const float* logits, int64_t vocab, float best, const DrawSettings& row,
                       std::vector<double>& weights) {
    float temperature = float(row.temperature);
    weights.resize(vocab);
    for (int64_t i = 0; i < vocab; i++) {
        float value = scaled(logits[i], best, temperature);
        weights[i] = value < -745.0f ? 0.0 : std::exp(double(value));
    }
    double edge = row.min_p;  // the best has weight 1
    int64_t spare = vocab;    // how many of those that equal the edge belong
    if (row.top_p < 1.0) {
        std::vector<double> ordered(weights);
        double total = 0;
        for (double weight : ordered) total += weight;
        size_t count = nucleus(ordered, row.top_p * total);
        double least = ordered[count - 1];
        if (least >= edge) {
            edge = least;
            spare = std::count(ordered.begin(), ordered.begin() + count, least);
        }
    }
    double kept = 0;
    for (double& weight : weights) {
        bool inside = weight > edge || (weight == edge && spare-- > 0);
        if (!inside) weight = 0;
        kept += weight;
    }
    double reach = row.chance * kept, walked = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (weights[i] == 0) continue;
        walked += weights[i];
        last = i;
        if (walked > reach) break;
    }
    return last;
}

}  // namespace

void draw_tokens(const float* logits, const DrawSettings* settings, int64_t* tokens, int64_t rows, int64_t vocab,
                 int64_t few, int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(int(threads)) if (threads > 1 && rows > 1)
    for (int64_t index = 0; index < rows; index++) {
        static thread_local std::vector<float> tops;
        RowState row(logits + index * vocab, vocab, tops);
        if (!std::isfinite(row.best)) {
            tokens[index] = -1;
            continue;
        }
        if (!settings || settings[index].temperature == 0) {
            tokens[index] = row.first_best();
            continue;
        }
        const DrawSettings& asked = settings[index];
        static thread_local std::vector<Candidate> found;
        static thread_local std::vector<double> weights;
        bool has_filter = asked.top_p < 1.0 || asked.min_p > 0.0;
        bool is_narrow = asked.top_k > 0 ? asked.top_k < vocab : has_filter && vocab > few;
        int64_t token = -1;
        if (is_narrow) token = draw_among_few(row, asked, few, found);
        if (token < 0 && !has_filter) token = draw_unfiltered(row.logits, vocab, row.best, asked, weights);
        tokens[index] = token >= 0 ? token : draw_among_all(row.logits, vocab, row.best, asked, weights);
    }
}

void repeat_penalty(float* logits, const float* penalties, const int64_t* counts, const int64_t* tokens, int64_t rows,
                    int64_t vocab) {
    for (int64_t row = 0; row < rows; row++, logits += vocab) {
        for (const int64_t* end = tokens + counts[row]; tokens < end; tokens++) {
            if (*tokens < 0 || *tokens >= vocab) continue;
            float& logit = logits[*tokens];
            logit = logit > 0 ? logit / penalties[row] : logit * penalties[row];
        }
    }
}

void draw_uniforms(const uint64_t* seeds, const uint64_t* positions, const uint32_t* streams, double* chances,
                   int64_t count) {
    for (int64_t row = 0; row < count; row++) {
        uint32_t words[4] = {uint32_t(positions[row]), uint32_t(positions[row] >> 32), streams[2 * row], streams[2 * row + 1]};
        uint32_t low = uint32_t(seeds[row]), high = uint32_t(seeds[row] >> 32);
        for (int round = 0; round < 10; round++) {
            uint64_t first = uint64_t(0xD2511F53) * words[0], second = uint64_t(0xCD9E8D57) * words[2];
            uint32_t next[4] = {uint32_t(second >> 32) ^ words[1] ^ low, uint32_t(second),
                                uint32_t(first >> 32) ^ words[3] ^ high, uint32_t(first)};
            std::copy(next, next + 4, words);
            low += 0x9E3779B9, high += 0xBB67AE85;
        }
        chances[row] = (double(words[0] >> 5) * 67108864.0 + double(words[1] >> 6)) / 9007199254740992.0;
    }
}
