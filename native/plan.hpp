// What one forward pass will do, in which order and in which pieces, decided before it begins.
//
//   embed | input | Q K V | rotate, write KV | attend | join spans | keep rows | input | output -> y |
//           input | gate, up, activation | down -> y | ... next layer ... | hidden | input | head
//
// An input stage adds y to x, normalises and quantises rows for the products behind it. For a few rows it is left out: every
// thread that takes a piece of the products prepares all rows for itself, which costs less than another stage. The inputs of
// `down` are quantised by who computes them. Where rows have adapters, a stage `project` stands before the products that these
// change (adapters.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapters.hpp"
#include "spec.hpp"

namespace stoker {

enum class StageKind : int8_t {
    embed, input, project, query_key_value, rotate, attend, join_spans, keep_rows, output, gate_up, down, hidden, head,
};

struct Stage {
    static constexpr int32_t kFewRows = kTile;  // a row tile: see Kernels::quantize

    StageKind kind;
    int8_t x;           // where the residual stream is; a few rows with a y to be added go on in the other place
    int32_t num_added;  // how many y it has in it
    int32_t layer;
    int32_t rows;       // of a `project`: its units
    int32_t grain;      // rows, tiles or units of a piece
    int32_t num_pieces;
    bool of_logits;     // the rows are those that want logits

    // Whether rows are prepared by each thread for itself, and whether a y is added to them then.
    bool is_few() const { return rows <= kFewRows; }
    bool adds_y() const {
        return kind == StageKind::gate_up || (kind == StageKind::query_key_value && layer > 0);
    }
    // The first of the matrices that its products are with (see DecoderSpec), and how many there are.
    int32_t place() const;
    int32_t num_parts() const { return kind == StageKind::query_key_value ? 3 : kind == StageKind::gate_up ? 2 : 1; }
};

// Consecutive tokens of a chunk, for attention.
struct AttentionPiece {
    int32_t chunk, row, position, num_tokens;
    bool wants_logits;
};

// A piece, a KV head and, if spans are computed apart, a span with the place of its result.
struct AttentionUnit {
    int32_t piece, head, span;
    size_t partials;
};

class Plan {
public:
    Plan(const DecoderSpec& spec, int32_t attention_rows, int32_t max_batch_tokens, int32_t num_threads);

    // Floats that a piece of gate and up may have of each: both stay in the second-level cache until they are quantised.
    static constexpr int32_t gate_floats(int32_t max_batch_tokens) {
        return std::max(1 << 17, max_batch_tokens * 2 * kTile);
    }

    // Floats for the results of spans that are computed apart.
    size_t num_span_partials() const { return num_span_partials_; }
    int32_t piece_rows() const { return piece_tokens_ * spec_.group(); }

    void make(const Batch& batch, const Adapters& adapters);

    std::vector<Stage> stages;
    std::vector<int32_t> row_position, row_chunk, logit_row;
    std::vector<AttentionPiece> pieces;
    std::vector<AttentionUnit> units;
    bool spans_apart = false;            // few pieces with long pasts: so that all threads have work
    bool rotates_with_attention = false; // every token is alone: its head is rotated by who attends
    bool keeps_rows = false;             // in the last layer only rows that want logits go on behind their KV

    bool is_last(int32_t layer) const { return layer + 1 == int32_t(spec_.layers.size()); }
    bool is_wanted(int32_t layer, const AttentionPiece& piece) const {
        return piece.wants_logits || !keeps_rows || !is_last(layer);
    }

private:
    void make_rows(const Batch& batch);
    void make_attention(const Batch& batch);
    void make_units();
    void make_stages(const Batch& batch, const Adapters& adapters);
    void add(StageKind kind, int32_t num_pieces, int32_t grain = 1);
    void add_rows(StageKind kind);
    void add_products(StageKind kind, const Adapters& adapters);
    void add_project(const Adapters& adapters);
    int32_t tiles_at_once(int32_t tiles) const;

    const DecoderSpec& spec_;
    const int32_t max_batch_tokens_;
    const int32_t num_threads_;
    const int32_t piece_tokens_;
    size_t num_span_partials_ = 0;
    Stage next_ = {};  // while stages are made
};

}  // namespace stoker
