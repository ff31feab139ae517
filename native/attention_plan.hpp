// How attention of one pass is cut into pieces, for the layers that have the same heads.
//
//   unit   a piece x a KV head [x a span]        piece: consecutive tokens of a chunk
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "spec.hpp"

namespace stoker {

constexpr int32_t kPiecesPerThread = 4;  // of a stage: enough to even out threads that are held up

// Consecutive tokens of a chunk, for attention.
struct AttentionPiece {
    int32_t chunk, row, position, num_tokens;
    int32_t end;      // behind the last position that some token of it sees, if there is no window
    int32_t sees_to;  // the same for all of them, see Batch
    bool wants_logits;

    int32_t num_spans() const { return divided_up(end, kSpanTokens); }
};

// A piece, a KV head and, if spans are computed apart, a span with the place of its result.
struct AttentionUnit {
    int32_t piece, head, span;
    size_t partials;
};

class AttentionPlan {
public:
    // `num_rows`: that are a good size for a piece. `whole_rows`: heads are not normalised each by itself. `sees_ahead`: all of
    // a chunk.
    AttentionPlan(const Heads& heads, bool whole_rows, bool sees_ahead, int32_t num_rows, int32_t num_positions, int32_t max_batch_tokens,
                  int32_t num_threads);

    const Heads& heads() const { return heads_; }
    // Floats for the results of spans that are computed apart.
    size_t num_span_partials() const { return num_span_partials_; }
    int32_t piece_rows() const { return piece_tokens_ * heads_.group(); }

    void make(const Batch& batch);

    std::vector<AttentionPiece> pieces;
    std::vector<AttentionUnit> units;
    bool spans_apart = false;            // few pieces with long pasts: so that all threads have work
    bool rotates_with_attention = false; // every token is alone: its head is rotated by who attends

private:
    void make_units();

    const Heads heads_;
    const bool whole_rows_, sees_ahead_;
    const int32_t num_threads_;
    const int32_t piece_tokens_;
    size_t num_span_partials_ = 0;
};

}  // namespace stoker
