#include "experts.hpp"

#include <algorithm>
#include <cmath>

namespace stoker {

namespace {

constexpr int32_t kMaxExperts = 1024;
constexpr float kLeastSum = 6.103515625e-5f;  // of weights that others are divided by: the smallest normal half float
constexpr float kExcluded = -INFINITY;

// The best `count` of `values`, best first.
void take_best(const float* values, int32_t num_values, int32_t count, int32_t* best) {
    bool is_taken[kMaxExperts] = {};
    for (int32_t rank = 0; rank < count; ++rank) {
        int32_t found = -1;
        for (int32_t i = 0; i < num_values; ++i) {
            if (!is_taken[i] && (found < 0 || values[i] > values[found])) {
                found = i;
            }
        }
        is_taken[found] = true;
        best[rank] = found;
    }
}

// Leaves the experts of the best groups alone: a group is as good as its best two.
void exclude_groups(const Experts& experts, float* values) {
    const int32_t size = experts.count / experts.num_groups;
    float scores[kMaxExperts];
    int32_t best[kMaxExperts];
    for (int32_t group = 0; group < experts.num_groups; ++group) {
        float* first = values + group * size;
        take_best(first, size, std::min(2, size), best);
        scores[group] = size > 1 ? first[best[0]] + first[best[1]] : first[best[0]];
    }
    take_best(scores, experts.num_groups, experts.used_groups, best);
    for (int32_t group = 0; group < experts.num_groups; ++group) {
        if (std::find(best, best + experts.used_groups, group) == best + experts.used_groups) {
            std::fill_n(values + group * size, size, kExcluded);
        }
    }
}

void finish_weights(const Experts& experts, const RowKernels& kernels, float* weights) {
    if (experts.routing == Routing::softmax_of_chosen) {
        kernels.softmax(weights, experts.used);
    } else if (experts.routing == Routing::sigmoid_of_chosen) {
        kernels.sigmoid(weights, experts.used);
    }
    if (experts.is_normalised) {
        float sum = 0;
        for (int32_t rank = 0; rank < experts.used; ++rank) {
            sum += weights[rank];
        }
        sum = std::max(sum, kLeastSum);
        for (int32_t rank = 0; rank < experts.used; ++rank) {
            weights[rank] /= sum;
        }
    }
    for (int32_t rank = 0; rank < experts.used; ++rank) {
        weights[rank] *= experts.scale;
    }
}

int32_t most(const DecoderSpec& spec, int32_t Experts::* size) {
    return spec.largest([&](const Layer& layer) { return layer.experts.*size; });
}

size_t group_bytes(int32_t rows, int32_t size) { return (Activations::bytes(rows, size) + 63) / 64 * 64; }

}  // namespace

static_assert(kMaxExperts == Experts::kMaxCount);

ExpertRows::ExpertRows(const DecoderSpec& spec, int32_t max_rows, int32_t max_gate_floats, int32_t num_pieces)
    : max_used_(most(spec, &Experts::used)), max_gate_floats_(max_gate_floats), num_pieces_(num_pieces) {
    const size_t num_entries = size_t(max_rows) * max_used_, count = most(spec, &Experts::count);
    chosen_.resize(num_entries);
    entries_.resize(num_entries);
    weights_.resize(num_entries);
    rows_.resize(num_entries);
    entry_weights_.resize(num_entries);
    next_.resize(count);
    groups_.reserve(count);
    gate_units_.reserve(count * divided_up(most(spec, &Experts::size), 2 * kTile));
    down_units_.reserve(count * divided_up(spec.hidden_size, 2 * kTile));
}

size_t ExpertRows::code_bytes(const Experts& experts, int32_t max_rows) {
    const size_t entries = size_t(max_rows) * experts.used;
    return group_bytes(int32_t(entries), experts.size) + experts.count * group_bytes(1, experts.size);
}

void ExpertRows::choose(const Experts& experts, const RowKernels& kernels, int32_t row, float* scores) {
    if (experts.routing == Routing::softmax) {
        kernels.softmax(scores, experts.count);
    } else if (experts.routing == Routing::sigmoid) {
        kernels.sigmoid(scores, experts.count);
    }
    float values[kMaxExperts];
    for (int32_t i = 0; i < experts.count; ++i) {
        values[i] = experts.selection_bias == nullptr ? scores[i] : scores[i] + experts.selection_bias[i];
    }
    if (experts.num_groups > 1) {
        exclude_groups(experts, values);
    }
    int32_t* chosen = chosen_.data() + size_t(row) * max_used_;
    float* weights = weights_.data() + size_t(row) * max_used_;
    take_best(values, experts.count, experts.used, chosen);
    for (int32_t rank = 0; rank < experts.used; ++rank) {
        weights[rank] = scores[chosen[rank]];
    }
    finish_weights(experts, kernels, weights);
    for (int32_t rank = 0; experts.output_scales != nullptr && rank < experts.used; ++rank) {
        weights[rank] *= experts.output_scales[chosen[rank]];
    }
}

void ExpertRows::sort(const Layer& layer, int32_t num_rows, int32_t hidden_size) {
    const Experts& experts = layer.experts;
    std::fill(next_.begin(), next_.end(), 0);
    const auto each = [&](const auto& visit) {
        for (int32_t row = 0; row < num_rows; ++row) {
            for (int32_t rank = 0; rank < experts.used; ++rank) {
                visit(row, row * max_used_ + rank);
            }
        }
    };
    each([&](int32_t, int32_t choice) { ++next_[chosen_[choice]]; });
    groups_.clear();
    int32_t first = 0;
    size_t codes = 0;
    for (int32_t expert = 0; expert < experts.count; ++expert) {
        const int32_t count = next_[expert];
        next_[expert] = first;
        if (count > 0) {
            groups_.push_back({expert, first, count, codes});
            codes += group_bytes(count, experts.size);
        }
        first += count;
    }
    each([&](int32_t row, int32_t choice) {
        const int32_t entry = next_[chosen_[choice]]++;
        entries_[choice] = entry;
        rows_[entry] = row;
        entry_weights_[entry] = weights_[choice];
    });
    gate_units_.clear();
    down_units_.clear();
    for (int32_t group = 0; group < int32_t(groups_.size()); ++group) {
        const int32_t most = std::max(2, max_gate_floats_ / (groups_[group].count * kTile) / 2 * 2);
        add_units(gate_units_, group, experts.size / kTile, most);
        add_units(down_units_, group, hidden_size / kTile, hidden_size / kTile);
    }
}

// An even number of tiles at a time, at most `most`: kernels like to take them in pairs.
void ExpertRows::add_units(std::vector<Unit>& units, int32_t group, int32_t tiles, int32_t most) const {
    const int32_t parts = divided_up(num_pieces_, int32_t(groups_.size()));
    const int32_t grain = std::min(most, std::max(2, divided_up(tiles, parts) + 1) / 2 * 2);
    for (int32_t tile = 0; tile < tiles; tile += grain) {
        units.push_back({group, tile, std::min(tile + grain, tiles)});
    }
}

}  // namespace stoker
