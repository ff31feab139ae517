#include "row_edits.hpp"

#include <algorithm>
#include <limits>

namespace stoker {

namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kLargest = 1e38f;  // LARGEST of sampling/edits.py

// Penalties.apply of sampling/penalties.py.
float penalised(float logit, float count, const Penalties& penalties) {
    if (logit == -kInfinite) {
        return logit;
    }
    const float scaled = logit <= 0 ? logit * penalties.repetition : logit / penalties.repetition;
    return std::clamp(scaled - (count * penalties.frequency + penalties.presence), -kLargest, kLargest);
}

}  // namespace

void EditedRow::set(int32_t token_id, float logit) {
    const float before = row_[token_id];
    before_.push_back({before, token_id});
    row_[token_id] = logit;
    if (maxima_ == nullptr) {
        return;
    }
    float& top = maxima_[token_id / kMaximaBlock];
    tops_.push_back(top);
    if (!(logit < kInfinite)) {
        top = kInfinite;
    } else if (logit >= top) {
        top = logit;
    } else if (before == top) {
        const int32_t from = token_id / kMaximaBlock * kMaximaBlock;
        kernels_.block_maxima(row_ + from, std::min(kMaximaBlock, n_ - from), &top);
    }
}

void EditedRow::undo() {
    for (size_t i = before_.size(); i-- > 0;) {
        row_[before_[i].token_id] = before_[i].logit;
        if (maxima_ != nullptr) {
            maxima_[before_[i].token_id / kMaximaBlock] = tops_[i];
        }
    }
}

TokenCounts::TokenCounts(size_t window, const std::vector<int32_t>& history) : window_(window) {
    const size_t num_recent = window == 0 ? history.size() : std::min(window, history.size());
    std::vector<int32_t> sorted(history.end() - ptrdiff_t(num_recent), history.end());
    if (window != 0) {
        recent_.assign(sorted.begin(), sorted.end());
    }
    std::sort(sorted.begin(), sorted.end());
    for (auto run = sorted.begin(); run != sorted.end();) {
        const auto end = std::upper_bound(run, sorted.end(), *run);
        token_ids_.push_back(*run);
        counts_.push_back(float(end - run));
        run = end;
    }
}

void TokenCounts::push(int32_t token_id) {
    const size_t index = find(token_id);
    if (index == token_ids_.size()) {
        token_ids_.push_back(token_id);
        counts_.push_back(0);
    }
    counts_[index] += 1;
    if (window_ != 0) {
        recent_.push_back(token_id);
        if (recent_.size() > window_) {
            forget(recent_.front());
            recent_.pop_front();
        }
    }
}

size_t TokenCounts::find(int32_t token_id) const {
    return size_t(std::find(token_ids_.begin(), token_ids_.end(), token_id) - token_ids_.begin());
}

void TokenCounts::forget(int32_t token_id) {
    const size_t index = find(token_id);
    counts_[index] -= 1;
    if (counts_[index] == 0) {
        token_ids_[index] = token_ids_.back();
        counts_[index] = counts_.back();
        token_ids_.pop_back();
        counts_.pop_back();
    }
}

bool RowEdits::can_edit(const float* row) const {
    const auto is_usable = [row](int32_t token_id) { return row[token_id] < kInfinite; };
    return std::all_of(biases_.begin(), biases_.end(), [&](const auto& bias) { return is_usable(bias.first); }) &&
           (!bans_ends() || std::all_of(ends_.begin(), ends_.end(), is_usable)) &&
           std::all_of(penalties_.begin(), penalties_.end(), [&](const Penalties& penalties) {
               const std::vector<int32_t>& seen = penalties.seen.token_ids();
               return std::all_of(seen.begin(), seen.end(), is_usable);
           });
}

void RowEdits::apply(EditedRow& row) const {
    for (const auto& [token_id, bias] : biases_) {
        row.set(token_id, row[token_id] + bias);
    }
    for (size_t i = 0; bans_ends() && i < ends_.size(); ++i) {
        row.set(ends_[i], -kInfinite);
    }
    for (const Penalties& penalties : penalties_) {
        const std::vector<int32_t>& seen = penalties.seen.token_ids();
        for (size_t i = 0; i < seen.size(); ++i) {
            row.set(seen[i], penalised(row[seen[i]], penalties.seen.counts()[i], penalties));
        }
    }
}

void RowEdits::push(int32_t token_id) {
    num_left_ -= num_left_ > 0;
    for (Penalties& penalties : penalties_) {
        penalties.seen.push(token_id);
    }
}

}  // namespace stoker
