#include "row_edits.hpp"

#include <algorithm>
#include <limits>
#include <ranges>

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
    row_[token_id] = logit;
    if (maxima_ == nullptr) {
        edits_.push_back({token_id, before, 0});
        return;
    }
    float& top = maxima_[token_id / kMaximaBlock];
    edits_.push_back({token_id, before, top});
    if (!(logit < kInfinite)) {
        top = kInfinite;
    } else if (logit >= top) {
        top = logit;
    } else if (before == top) {
        const int32_t from = token_id / kMaximaBlock * kMaximaBlock;
        kernels_.block_maxima(row_ + from, std::min(kMaximaBlock, n_ - from), &top);
    }
}

EditedRow::~EditedRow() {
    for (const auto& [token_id, logit, top] : std::views::reverse(edits_)) {
        row_[token_id] = logit;
        if (maxima_ != nullptr) {
            maxima_[token_id / kMaximaBlock] = top;
        }
    }
}

TokenCounts::TokenCounts(size_t window, const std::vector<int32_t>& history) : window_(window) {
    const size_t num_recent = window == 0 ? history.size() : std::min(window, history.size());
    std::vector<int32_t> sorted(history.end() - ptrdiff_t(num_recent), history.end());
    if (window != 0) {
        recent_.assign(sorted.begin(), sorted.end());
    }
    std::ranges::sort(sorted);
    for (auto run = sorted.begin(); run != sorted.end();) {
        const auto end = std::upper_bound(run, sorted.end(), *run);
        entries_.push_back({*run, float(end - run)});
        run = end;
    }
}

void TokenCounts::push(int32_t token_id) {
    if (const auto entry = find(token_id); entry != entries_.end()) {
        entry->count += 1;
    } else {
        entries_.push_back({token_id, 1});
    }
    if (window_ != 0) {
        recent_.push_back(token_id);
        if (recent_.size() > window_) {
            forget(recent_.front());
            recent_.pop_front();
        }
    }
}

void TokenCounts::forget(int32_t token_id) {
    const auto entry = find(token_id);
    entry->count -= 1;
    if (entry->count == 0) {
        *entry = entries_.back();
        entries_.pop_back();
    }
}

bool RowEdits::can_edit(const float* row) const {
    const auto is_usable = [row](int32_t token_id) { return row[token_id] < kInfinite; };
    return std::ranges::all_of(std::views::keys(biases_), is_usable) &&
           (!bans_ends() || std::ranges::all_of(ends_, is_usable)) &&
           (!penalties_ || std::ranges::all_of(penalties_->seen.entries(), is_usable, &TokenCounts::Entry::token_id));
}

void RowEdits::apply(EditedRow& row) const {
    for (const auto& [token_id, bias] : biases_) {
        row.set(token_id, row[token_id] + bias);
    }
    for (size_t i = 0; bans_ends() && i < ends_.size(); ++i) {
        row.set(ends_[i], -kInfinite);
    }
    if (penalties_) {
        for (const auto& [token_id, count] : penalties_->seen.entries()) {
            row.set(token_id, penalised(row[token_id], count, *penalties_));
        }
    }
}

void RowEdits::push(int32_t token_id) {
    num_left_ -= num_left_ > 0;
    if (penalties_) {
        penalties_->seen.push(token_id);
    }
}

}  // namespace stoker
