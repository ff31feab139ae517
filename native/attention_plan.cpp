#include "attention_plan.hpp"

#include <algorithm>

namespace stoker {

namespace {

constexpr size_t kMaxSpanPartials = size_t(4) << 20;  // floats: 16 MB

}  // namespace

AttentionPlan::AttentionPlan(const Heads& heads, bool whole_rows, bool sees_ahead, int32_t num_rows, int32_t num_positions,
                             int32_t max_batch_tokens, int32_t num_threads)
    : heads_(heads), whole_rows_(whole_rows), sees_ahead_(sees_ahead), num_threads_(num_threads),
      piece_tokens_(std::max(1, num_rows / heads.group())) {
    const size_t partial = partial_floats(heads.size), rows = max_batch_tokens;
    const size_t spans = num_positions / kSpanTokens + 1;
    num_span_partials_ =
        std::min(kMaxSpanPartials, size_t(kPiecesPerThread) * num_threads * piece_rows() * spans * partial);
    pieces.reserve(rows);
    units.reserve(std::max(rows * heads.num_kv, num_span_partials_ / partial));
}

void AttentionPlan::make(const Batch& batch) {
    pieces.clear();
    int32_t row = 0;
    size_t num_spans = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        for (int32_t i = 0, n = 0; i < chunk.length; i += n) {
            n = std::min(piece_tokens_, chunk.length - i);
            int32_t sees_to = 0;
            if (batch.sees_to != nullptr) {
                const int32_t* its = batch.sees_to + row + i;
                sees_to = *its;
                n = int32_t(std::find_if(its, its + n, [&](int32_t end) { return end != sees_to; }) - its);
            }
            const int32_t end = std::max(chunk.start + (sees_ahead_ ? chunk.length : i + n), sees_to);
            pieces.push_back({c, row + i, chunk.start + i, n, end, sees_to, i + n > chunk.length - chunk.num_logits});
            num_spans += pieces.back().num_spans();
        }
        row += chunk.length;
    }
    const size_t floats = num_spans * heads_.num_kv * piece_rows() * partial_floats(heads_.size);
    spans_apart = int32_t(pieces.size()) * heads_.num_kv < kPiecesPerThread * num_threads_ &&
                  num_spans > pieces.size() && floats <= num_span_partials_;
    rotates_with_attention = batch.num_chunks == batch.num_tokens && !spans_apart && !whole_rows_;
    make_units();
}

// The pieces of a chunk that see most come first in each thread's range (see Pool), so that none begins a long one last. The
// spans of a piece and head stay together.
void AttentionPlan::make_units() {
    units.clear();
    const size_t unit_floats = size_t(piece_rows()) * partial_floats(heads_.size);
    const auto add_units_of = [&](int32_t p) {
        const int32_t last = pieces[p].num_spans() - 1;
        for (int32_t head = 0; head < heads_.num_kv; ++head) {
            for (int32_t span = spans_apart ? 0 : last; span <= last; ++span) {
                units.push_back({p, head, span, spans_apart ? units.size() * unit_floats : 0});
            }
        }
    };
    for (int32_t thread = 0; thread < num_threads_; ++thread) {
        for (int32_t p = int32_t(pieces.size()) - 1 - thread; p >= 0; p -= num_threads_) {
            add_units_of(p);
        }
    }
}

}  // namespace stoker
