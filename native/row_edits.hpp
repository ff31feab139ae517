// What one request changes in a row of logits before anything is chosen from it: what src/stoker/sampling/edits.py and
// penalties.py do, to the bit, with the history that it needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "sampling.hpp"

namespace stoker {

// A row while it is edited. Its maxima, if there are any, stay those of its blocks; few of them have to be taken again.
class EditedRow {
public:
    // What a logit was before, and the maximum of its block.
    struct Edit {
        int32_t token_id;
        float logit, top;
    };

    // `edits`: memory.
    EditedRow(const SamplingKernels& kernels, float* row, int32_t n, float* maxima, std::vector<Edit>& edits)
        : kernels_(kernels), row_(row), n_(n), maxima_(maxima), edits_(edits) {
        edits_.clear();
    }

    EditedRow(const EditedRow&) = delete;
    EditedRow& operator=(const EditedRow&) = delete;
    // Everything is as it was.
    ~EditedRow();

    float operator[](int32_t token_id) const { return row_[token_id]; }
    void set(int32_t token_id, float logit);

private:
    const SamplingKernels& kernels_;
    float* row_;
    int32_t n_;
    float* maxima_;
    std::vector<Edit>& edits_;
};

// How often each token occurs in the last `window` tokens; 0 = in all.
class TokenCounts {
public:
    TokenCounts(size_t window, const std::vector<int32_t>& history);

    struct Entry {
        int32_t token_id;
        float count;  // at least 1
    };
    using Entries = std::vector<Entry>;

    // Of distinct tokens, in no particular order.
    const Entries& entries() const { return entries_; }
    void push(int32_t token_id);

private:
    // There are few, so that a search is faster than a table that the forward pass has driven out of the cache.
    Entries::iterator find(int32_t token_id) { return std::ranges::find(entries_, token_id, &Entry::token_id); }
    void forget(int32_t token_id);

    size_t window_;
    std::deque<int32_t> recent_;
    Entries entries_;
};

// Repetition, presence and frequency penalties. A window of 0 tokens is the whole history.
struct Penalties {
    float repetition, presence, frequency;
    TokenCounts seen;
};

// The edits of one row, in the order in which they apply: biases (bans are biases of -inf), ends that are banned until
// there are enough tokens, penalties.
class RowEdits {
public:
    RowEdits(std::vector<std::pair<int32_t, float>> biases, std::vector<int32_t> ends, int64_t min_tokens,
             std::optional<Penalties> penalties)
        : biases_(std::move(biases)), ends_(std::move(ends)), num_left_(min_tokens), penalties_(std::move(penalties)) {}

    // Whether each logit that would be changed is a number below +inf: else nothing can be chosen, and an edit could hide it.
    bool can_edit(const float* row) const;
    void apply(EditedRow& row) const;
    void push(int32_t token_id);

private:
    bool bans_ends() const { return num_left_ > 0; }

    std::vector<std::pair<int32_t, float>> biases_;
    std::vector<int32_t> ends_;
    int64_t num_left_;
    std::optional<Penalties> penalties_;
};

}  // namespace stoker
