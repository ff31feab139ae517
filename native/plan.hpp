// What one forward pass will do, in which order and in which pieces, decided before it begins.
//
//   embed | input | Q K V | rotate, write KV | attend | join spans | keep rows | input | output -> y |
//           input | gate, up, activation | down -> y | ... next layer ... | hidden | input | head
//
// An input stage adds y to x, normalises and quantises rows for the products behind it. For a few rows it is left out: every
// thread that takes a piece of the products prepares all rows for itself, which costs less than another stage. The inputs of
// `down` are quantised by who computes them. Where rows have adapters, a stage `project` stands before the products that these
// change (adapters.hpp).
//
// Where what attention gives has a norm, or what `down` takes, stages `norm mixed` and `norm inner` stand before these products.
//
// A layer without attention (recurrent.hpp) has the stages `convolve | scan | gate mixed` in place of those from `rotate` to
// `join spans`, and only the first of them where nothing is scanned. Decays and gates that are made by two matrices are multiplied
// out before they are needed: `[input |] widen decay`, `[input |] widen gate`. Mamba 1 has
// `convolve | [input |] low | norm low | [input |] widen decay | scan channels`.
//
// A layer in which positions do not meet begins with `input | Q | pass on -> y`, or with its feed-forward.
//
// Where keys are latent, `latent keys | [input |] narrow | widen` stand in place of `rotate`, and `latent out` behind attention.
//
// Behind the last layer that keeps something of each position, rows that want logits are the only ones. Where layers follow, which
// see the keys of others, `spread rows` puts their queries where attention expects them, and `keep rows` comes behind attention again.
//
// With experts (experts.hpp) the feed-forward is, all from the same input, whose products come before `y` is written again:
//
//   input | route | choose | sort rows | experts: gate, up | experts: down | gate, up | down -> y | combine -> y
//
// or from three inputs, each made from x anew, where norms differ.
//
// A draft head multiplies what `embed` has put beside each other, `input | join -> x`, or its first layer does. What it is fused
// from comes before that, `features | input | fuse`.
//
// With streams (pass_alt_up.cpp) `input | split | level` follow, `predict` begins a layer, `input | laurel` come behind Q K V,
// `add laurel` behind the output and `correct` behind the feed-forward; in the end stand `gather | join | merge`. Where gates are
// cut, they and what stands beside them are floats until `cut` has seen a whole row.
//
// Where tokens have something for each layer (LayerInputs), it is computed behind `embed`, as `layer products | layer inputs`, and
// each layer ends with `input | inject gate | input | inject -> y`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapters.hpp"
#include "attention_plan.hpp"
#include "spec.hpp"

namespace stoker {

enum class StageKind : int8_t {
    embed, input, project, query_key_value, rotate, attend, join_spans, keep_rows, output, gate_up, down, hidden, head,
    route, choose, sort_rows, expert_gate_up, expert_down, combine,
    convolve, scan, gate_mixed, low, norm_low, widen_decay, scan_channels, widen_gate,
    layer_products, layer_inputs, inject_gate, inject, features, fuse, join, give,
    latent_keys, narrow, widen, latent_out,
    spread_rows, pass_on, norm_mixed, norm_inner,
    split, level, predict, laurel, add_laurel, cut, correct, gather, join_streams, merge,
};

struct Stage {
    static constexpr int32_t kFewRows = kTile;  // a row tile: see Kernels::quantize

    StageKind kind;
    int8_t x;           // where the residual stream is; a few rows with a y to be added go on in the other place
    int32_t num_added;  // how many y it has in it
    int32_t layer;
    int32_t rows;       // of a `project`: its units
    int32_t grain;      // rows, tiles, units or channels of a piece
    int32_t num_pieces;
    int32_t source;     // the stage whose input this one has, too; -1 = its own
    bool of_logits;     // the rows are those that want logits
    bool adds_y;        // when its rows are prepared: it is the first that has the sum

    // Whether these are the first products of the layer, which find in y what the layer before has left there.
    bool begins(const Layer& of) const {
        const StageKind first = of.experts.count > 0 ? StageKind::route : StageKind::gate_up;
        return kind == (of.mixer == Mixer::none ? first : StageKind::query_key_value);
    }
    // Whether rows are prepared by each thread for itself.
    bool is_few() const { return rows <= kFewRows; }
    // The first of the matrices that its products are with (see DecoderSpec), and how many there are.
    int32_t place() const;
    int32_t num_parts() const { return kind == StageKind::query_key_value ? 3 : kind == StageKind::gate_up ? 2 : 1; }
    // The same with those that no adapter changes.
    int32_t num_products() const { return kind == StageKind::query_key_value ? Layer::kInputs : num_parts(); }
};

class Plan {
public:
    Plan(const DecoderSpec& spec, int32_t attention_rows, int32_t max_batch_tokens, int32_t num_threads);

    // Floats that a piece of gate and up may have of each: both stay in the second-level cache until they are quantised.
    static constexpr int32_t gate_floats(int32_t max_batch_tokens) {
        return std::max(1 << 17, max_batch_tokens * 2 * kTile);
    }

    // Of the layer's kind of heads, if it has some.
    const AttentionPlan& attention(int32_t layer) const { return attentions_[kinds_[layer]]; }
    // The largest that attention of any layer needs.
    size_t num_span_partials() const;
    size_t num_piece_partials() const;

    void make(const Batch& batch, const Adapters& adapters);

    std::vector<Stage> stages;
    std::vector<int32_t> row_position, row_chunk, logit_row, chunk_row;
    // Behind the keys of the last layer that has some of its own, only rows that want logits go on.
    bool keeps_rows = false;

    const Projection& product(const Stage& products, int32_t part) const;
    // Whether attention of a layer is that of rows that want logits alone.
    bool keeps_rows_from(int32_t layer) const { return keeps_rows && layer >= last_with_keys_; }

private:
    void add_attention(const Layer& layer, int32_t attention_rows);
    void make_rows(const Batch& batch);
    void make_stages(const Batch& batch, const Adapters& adapters);
    void add(StageKind kind, int32_t num_pieces, int32_t grain = 1);
    void add_rows(StageKind kind);
    void change_rows(StageKind kind);
    void add_mixer(const Layer& layer, const Batch& batch, const Adapters& adapters);
    void add_attention_stages();
    void add_latent_queries(const Layer& layer);
    void add_recurrent_stages(const Batch& batch);
    void add_feed_forward(const Adapters& adapters);
    void add_route(const Experts& experts);
    void add_injection(const Layer& layer);
    void add_layer(const Batch& batch, const Adapters& adapters);
    // Whether there is something to be added before the feed-forward of the layer that is planned.
    bool has_y(const Layer& layer) const { return layer.mixer != Mixer::none || next_.layer > 0; }
    void count_added_y();
    void add_input();
    void add_products(StageKind kind, const Adapters& adapters, bool adds_y = false);
    void add_tiles(StageKind kind, const Projection& matrix, bool adds_y = false);
    void add_project(const Adapters& adapters);
    int32_t tiles_at_once(int32_t tiles) const;

    const DecoderSpec& spec_;
    const int32_t max_batch_tokens_;
    const int32_t num_threads_;
    const int32_t last_with_keys_;  // or with a state
    std::vector<AttentionPlan> attentions_;  // one for each kind of heads
    std::vector<int32_t> kinds_;             // of layers; -1 = no attention
    Stage next_ = {};  // while stages are made
};

}  // namespace stoker
