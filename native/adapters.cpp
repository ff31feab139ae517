// Which rows have which adapters, and their changes in pieces that threads share.
#include "adapters.hpp"

#include <algorithm>
#include <tuple>

namespace stoker {

namespace {

constexpr int32_t kUnitRanks = 32;  // of a row: A of so many ranks stays in the second-level cache for the rows behind it
constexpr int32_t kMaxParts = 3;    // matrices of one stage
constexpr int32_t kRowsAtOnce = 16;

}  // namespace

void Adapters::check(const Batch& batch) const {
    for (int32_t i = 0; i < batch.num_uses; ++i) {
        const AdapterUse& use = batch.uses[i];
        const bool is_sorted = i == 0 || batch.uses[i - 1].chunk <= use.chunk;
        require(use.chunk >= 0 && use.chunk < batch.num_chunks && is_sorted,
                "an adapter is used by a chunk that there is not, or not in their order");
        require(loaded_.contains(use.adapter), "no such adapter");
    }
}

void Adapters::begin(const Batch& batch) {
    rows_[0].clear();
    rows_[1].clear();
    if (batch.num_uses == 0) {
        return;
    }
    is_changed_.assign(spec_.num_places(), 0);
    stride_ = 0;
    const AdapterUse* use = batch.uses;
    int32_t row = 0, logit = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        for (int32_t turn = 0; use < batch.uses + batch.num_uses && use->chunk == c; ++use, ++turn) {
            const Adapter& adapter = loaded_.at(use->adapter);
            const float scale = batch.use_scales[use - batch.uses];
            for (int32_t i = 0; i < chunk.length; ++i) {
                rows_[0].push_back({row + i, turn, use->adapter, &adapter, scale});
            }
            for (int32_t i = 0; i < chunk.num_logits; ++i) {
                rows_[1].push_back({logit + i, turn, use->adapter, &adapter, scale});
            }
            for (size_t place = 0; place < adapter.size(); ++place) {
                is_changed_[place] |= adapter[place].rank > 0;
                stride_ = std::max(stride_, divided_up(adapter[place].rank, 16) * 16);
            }
        }
        row += chunk.length;
        logit += chunk.num_logits;
    }
    for (auto& rows : rows_) {
        std::ranges::sort(rows, {}, [](const Row& r) { return std::tuple(r.turn, r.id, r.row); });
    }
    t_.at_least(kMaxParts * rows_[0].size() * stride_);
}

int32_t Adapters::num_units(int32_t place, int32_t count, bool of_logits) const {
    for (int32_t part = 0; part < count; ++part) {
        if (changes(place + part)) {
            return count * divided_up(stride_, kUnitRanks) * int32_t(rows(of_logits).size());
        }
    }
    return 0;
}

int32_t Adapters::run(const std::vector<Row>& all, int32_t first, int32_t most) const {
    const int32_t end = std::min({int32_t(all.size()), first + most, first + kRowsAtOnce});
    int32_t i = first;
    while (i < end && all[i].adapter == all[first].adapter) {
        ++i;
    }
    return i - first;
}

// Units: [part][ranks][row]
void Adapters::project(const AdapterKernels& k, int32_t place, bool of_logits, int32_t unit0, int32_t unit1, const float* x,
                       int32_t ldx) {
    const std::vector<Row>& all = rows(of_logits);
    const auto num_rows = int32_t(all.size()), num_ranks = divided_up(stride_, kUnitRanks);
    while (unit0 < unit1) {
        const int32_t part = unit0 / num_rows / num_ranks, first = unit0 % num_rows;
        const int32_t rank0 = unit0 / num_rows % num_ranks * kUnitRanks;
        const float* from[kRowsAtOnce];
        float* to[kRowsAtOnce];
        const int32_t count = run(all, first, unit1 - unit0);
        for (int32_t i = 0; i < count; ++i) {
            from[i] = x + size_t(all[first + i].row) * ldx;
            to[i] = t(part, first + i);
        }
        const LowRank& change = (*all[first].adapter)[place + part];
        if (rank0 < change.rank) {
            const int32_t rank1 = std::min(rank0 + kUnitRanks, change.rank);
            k.project(change, spec_.at(place + part).w.cols, rank0, rank1, from, to, count);
        }
        unit0 += count;
    }
}

void Adapters::add_to(const AdapterKernels& k, int32_t place, int32_t part, bool of_logits, int32_t tile0, int32_t tile1,
                      float* y, int32_t ldy) const {
    if (!changes(place + part)) {
        return;
    }
    const std::vector<Row>& all = rows(of_logits);
    for (int32_t first = 0, count; first < int32_t(all.size()); first += count) {
        count = run(all, first, kRowsAtOnce);
        const LowRank& change = (*all[first].adapter)[place + part];
        const float* from[kRowsAtOnce];
        float* to[kRowsAtOnce];
        float scale[kRowsAtOnce];
        for (int32_t i = 0; i < count; ++i) {
            from[i] = t(part, first + i);
            to[i] = y + ptrdiff_t(all[first + i].row) * ldy;
            scale[i] = all[first + i].scale * change.scale;
        }
        if (change.rank > 0) {
            k.expand(change, spec_.at(place + part).w.rows, tile0, tile1, from, scale, to, count);
        }
    }
}

void Adapters::add_to_embeddings(const AdapterKernels& k, const Batch& batch, int32_t row0, int32_t row1, float* x) const {
    if (!changes(DecoderSpec::kEmbedding)) {
        return;
    }
    for (const Row& row : rows_[0]) {
        const LowRank& change = (*row.adapter)[DecoderSpec::kEmbedding];
        if (change.rank > 0 && row0 <= row.row && row.row < row1 && batch.tokens[row.row] >= 0) {
            const float* looked_up = static_cast<const float*>(change.a) + size_t(batch.tokens[row.row]) * change.rank;
            float* to = x + size_t(row.row) * spec_.hidden_size;
            const float scale = row.scale * change.scale;
            k.expand(change, spec_.hidden_size, 0, spec_.hidden_size / kTile, &looked_up, &scale, &to, 1);
        }
    }
}

}  // namespace stoker
