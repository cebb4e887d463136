// From adjusted logits to one token a row, by the rules of modeling/sampling.py, whose torch form this is tested against.
//
// A row depends on its own logits and settings alone. Among few candidates (top-k, or the nucleus while it fits into the best
// `few`) the draw walks from the best down, equal values by ascending id; among all it walks by ascending id. Nothing sorts a
// vocabulary unless a nucleus is wider than `few`.
#include <algorithm>
#include <vector>

#include "simd.h"

// Settings of one row. `temperature` 0: the best token. `top_k` 0, `top_p` 1, `min_p` 0: no such filter. `chance` in [0, 1).
struct DrawSettings {
    double temperature, top_p, min_p, chance;
    int64_t top_k;
};

namespace {

struct Candidate {
    float value;
    int32_t token;
};

bool is_better(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// The greatest logit, or NaN if there is one.
float greatest(const float* logits, int64_t vocab) {
    Floats best = splat(-INFINITY);
    Ints odd{};
    int64_t i = 0;
    for (; i + kLanes <= vocab; i += kLanes) {
        Floats x = load(logits + i);
        best = x > best ? x : best;
        odd |= (x != x);
    }
    float found = most(best);
    for (int lane = 0; lane < kLanes; lane++)
        if (odd[lane]) return NAN;
    for (; i < vocab; i++) {
        if (logits[i] != logits[i]) return NAN;
        found = std::max(found, logits[i]);
    }
    return found;
}

int64_t first_of(const float* logits, int64_t vocab, float value) {
    return std::find(logits, logits + vocab, value) - logits;
}

float scaled(float logit, float best, float temperature) { return (logit - best) / temperature; }

// All tokens whose scaled value is at least the count-th best, best first.
void best_of(const float* logits, int64_t vocab, float best, float temperature, int64_t count,
             std::vector<Candidate>& found) {
    found.clear();
    float floor = -INFINITY;
    size_t limit = size_t(std::max<int64_t>(4 * count, 512));
    auto cut = [&] {
        if (int64_t(found.size()) <= count) return;
        std::nth_element(found.begin(), found.begin() + count - 1, found.end(),
                         [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
        floor = found[count - 1].value;
        found.erase(std::remove_if(found.begin(), found.end(), [&](const Candidate& c) { return c.value < floor; }),
                    found.end());
        limit = std::max(limit, 2 * found.size());
    };
    for (int64_t start = 0; start < vocab; start += kLanes) {
        int64_t end = std::min<int64_t>(start + kLanes, vocab);
        if (end - start == kLanes) {
            Ints above = (load(logits + start) - best) / temperature >= floor;
            int any = 0;
            for (int lane = 0; lane < kLanes; lane++) any |= above[lane];
            if (!any) continue;
        }
        for (int64_t i = start; i < end; i++) {
            float value = scaled(logits[i], best, temperature);
            if (value >= floor) found.push_back({value, int32_t(i)});
        }
        if (found.size() >= limit) cut();
    }
    cut();
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
int64_t draw_among_few(const float* logits, int64_t vocab, float best, const DrawSettings& row, int64_t few,
                       std::vector<Candidate>& found) {
    float temperature = float(row.temperature);
    bool is_cut = row.top_k > 0;
    best_of(logits, vocab, best, temperature, is_cut ? row.top_k : few, found);
    std::vector<double> weights(found.size());
    double among = 0;
    for (size_t i = 0; i < found.size(); i++) among += weights[i] = std::exp(double(found[i].value));
    double total = is_cut || row.top_p >= 1.0 ? among : total_weight(logits, vocab, best, temperature);
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
        std::vector<double> sorted(weights);
        std::sort(sorted.begin(), sorted.end(), std::greater<double>());
        double total = 0, walked = 0;
        for (double weight : sorted) total += weight;
        size_t count = 0;
        while (count < sorted.size() && walked < row.top_p * total) walked += sorted[count++];
        count = std::max<size_t>(count, 1);
        double least = sorted[count - 1];
        if (least >= edge) {
            edge = least;
            spare = std::count(sorted.begin(), sorted.begin() + count, least);
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

extern "C" {

// `logits` [rows, vocab] -> `tokens` [rows]; -1 where a row is not finite. `few`: how many candidates stand for a nucleus.
void draw_tokens(const float* logits, const DrawSettings* settings, int64_t* tokens, int64_t rows, int64_t vocab,
                 int64_t few, int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(int(threads)) if (threads > 1 && rows > 1)
    for (int64_t index = 0; index < rows; index++) {
        const float* row = logits + index * vocab;
        const DrawSettings& asked = settings[index];
        float best = greatest(row, vocab);
        if (!std::isfinite(best)) {
            tokens[index] = -1;
            continue;
        }
        if (asked.temperature == 0) {
            tokens[index] = first_of(row, vocab, best);
            continue;
        }
        static thread_local std::vector<Candidate> found;
        static thread_local std::vector<double> weights;
        bool has_filter = asked.top_p < 1.0 || asked.min_p > 0.0;
        bool is_narrow = asked.top_k > 0 ? asked.top_k < vocab : has_filter && vocab > few;
        int64_t token = -1;
        if (is_narrow) token = draw_among_few(row, vocab, best, asked, few, found);
        if (token < 0 && !has_filter) token = draw_unfiltered(row, vocab, best, asked, weights);
        tokens[index] = token >= 0 ? token : draw_among_all(row, vocab, best, asked, weights);
    }
}
}
