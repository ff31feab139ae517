#include "plan.hpp"

#include <algorithm>

#include "attention.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

// Of those behind it no row is needed for others. Rows that stand in place of embeddings must still be all there where more is added.
int32_t last_with_keys(const DecoderSpec& spec) {
    int32_t found = spec.deep_layers;
    for (int32_t layer = 0; layer < int32_t(spec.layers.size()); ++layer) {
        const Layer& each = spec.layers[layer];
        const bool keeps_some = each.recurs() || (each.attends() && each.kv_layer == layer);
        found = keeps_some ? std::max(found, layer) : found;
    }
    return found;
}

}  // namespace

int32_t Stage::place() const {
    const int32_t first = DecoderSpec::kFirstLayer + layer * DecoderSpec::kLayerPlaces;
    switch (kind) {
        case StageKind::query_key_value: return first;
        case StageKind::output: return first + 3;
        case StageKind::gate_up: return first + 4;
        case StageKind::down: return first + 6;
        default: return DecoderSpec::kHead;
    }
}

Plan::Plan(const DecoderSpec& spec, int32_t attention_rows, int32_t max_batch_tokens, int32_t num_threads)
    : spec_(spec), max_batch_tokens_(max_batch_tokens), num_threads_(num_threads),
      last_with_keys_(last_with_keys(spec)) {
    stages.reserve(spec.layers.size() * 40 + 16);
    row_position.resize(max_batch_tokens);
    row_chunk.resize(max_batch_tokens);
    logit_row.resize(max_batch_tokens);
    chunk_row.resize(max_batch_tokens);
    for (const Layer& layer : spec.layers) {
        add_attention(layer, attention_rows);
    }
}

void Plan::add_attention(const Layer& layer, int32_t attention_rows) {
    if (!layer.attends()) {
        kinds_.push_back(-1);
        return;
    }
    const bool whole_rows = layer.head_norms == HeadNorms::whole_row || layer.is_latent();
    const auto known = std::ranges::find(attentions_, layer.heads, &AttentionPlan::heads);
    kinds_.push_back(int32_t(known - attentions_.begin()));
    if (known == attentions_.end()) {
        attentions_.emplace_back(layer.heads, whole_rows, spec_.sees_ahead, attention_rows, spec_.num_positions(), max_batch_tokens_,
                                 num_threads_);
    }
}

size_t Plan::num_span_partials() const {
    size_t found = 0;
    for (const AttentionPlan& attention : attentions_) {
        found = std::max(found, attention.num_span_partials());
    }
    return found;
}

size_t Plan::num_piece_partials() const {
    size_t found = 0;
    for (const AttentionPlan& attention : attentions_) {
        found = std::max(found, size_t(attention.piece_rows()) * partial_floats(attention.heads().size));
    }
    return found;
}

void Plan::make(const Batch& batch, const Adapters& adapters) {
    keeps_rows = batch.hidden == nullptr && batch.extracted == nullptr && batch.num_rows < batch.num_tokens &&
                 batch.num_tokens > Stage::kFewRows;
    make_rows(batch);
    for (AttentionPlan& attention : attentions_) {
        attention.make(batch);
    }
    make_stages(batch, adapters);
}

void Plan::make_rows(const Batch& batch) {
    int32_t row = 0, logit = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        chunk_row[c] = row;
        for (int32_t i = 0; i < chunk.length; ++i, ++row) {
            row_chunk[row] = c;
            row_position[row] = chunk.start + i;
            if (i >= chunk.length - chunk.num_logits) {
                logit_row[logit++] = row;
            }
        }
    }
}

void Plan::make_stages(const Batch& batch, const Adapters& adapters) {
    stages.clear();
    next_ = {};
    next_.source = -1;
    next_.rows = batch.num_tokens;
    if (batch.features != nullptr) {
        add_rows(StageKind::features);
        add_tiles(StageKind::fuse, spec_.join.fuse);
    }
    add_rows(StageKind::embed);
    if (spec_.join.projection.w.rows > 0) {
        add_tiles(StageKind::join, spec_.join.projection);
    }
    if (spec_.layer_inputs.size > 0) {
        add_tiles(StageKind::layer_products, spec_.layer_inputs.projection);
        add_rows(StageKind::layer_inputs);
    }
    if (spec_.streams.are_there()) {
        add_tiles(StageKind::split, spec_.streams.split);
        add_rows(StageKind::level);
    }
    for (next_.layer = 0; next_.layer < int32_t(spec_.layers.size()); ++next_.layer) {
        add_layer(batch, adapters);
        if (next_.rows == 0) {
            return;
        }
    }
    next_.layer = 0;
    if (spec_.streams.are_there()) {
        add_rows(StageKind::gather);
        add(StageKind::join_streams, Streams::kOthers * num_threads_);
        change_rows(StageKind::merge);
    }
    if (batch.hidden != nullptr && spec_.join.give.w.rows > 0) {
        add_tiles(StageKind::give, spec_.join.give);
    } else if (batch.hidden != nullptr) {
        add_rows(StageKind::hidden);
    }
    next_.rows = batch.num_rows;
    next_.of_logits = true;
    if (batch.logit_hidden != nullptr && next_.rows > 0) {
        add_rows(StageKind::hidden);
    }
    if (next_.rows > 0) {
        add_products(StageKind::head, adapters);
    }
}

void Plan::add_layer(const Batch& batch, const Adapters& adapters) {
    const Layer& layer = spec_.layers[next_.layer];
    const bool has_streams = spec_.streams.are_there();
    if (has_streams) {
        change_rows(StageKind::predict);
    }
    if (layer.mixer != Mixer::none) {
        add_mixer(layer, batch, adapters);
    }
    if (next_.rows == 0) {
        return;
    }
    if (has_streams) {
        change_rows(StageKind::add_laurel);
    }
    add_feed_forward(adapters);
    if (has_streams) {
        change_rows(StageKind::correct);
    }
    if (layer.injects()) {
        add_injection(layer);
    }
}

void Plan::add_mixer(const Layer& layer, const Batch& batch, const Adapters& adapters) {
    const bool has_streams = spec_.streams.are_there();
    add_products(StageKind::query_key_value, adapters, next_.layer > 0 && !has_streams);
    if (has_streams) {
        add_tiles(StageKind::laurel, layer.laurel.wide);
    }
    if (layer.mixer == Mixer::linear) {
        return add_rows(StageKind::pass_on);
    }
    if (next_.of_logits) {
        add(StageKind::spread_rows, 1);
    }
    if (layer.attends()) {
        add_attention_stages();
    } else {
        add_recurrent_stages(batch);
    }
    if (keeps_rows_from(next_.layer)) {
        add(StageKind::keep_rows, 1);
        next_.rows = batch.num_rows;
        next_.of_logits = true;
    }
    if (next_.rows == 0) {
        return;
    }
    if (layer.mixed_norm != nullptr) {
        add_rows(StageKind::norm_mixed);
    }
    add_products(StageKind::output, adapters);
}

void Plan::add_attention_stages() {
    const AttentionPlan& plan = attention(next_.layer);
    const auto num_units = int32_t(plan.units.size());
    const Layer& layer = spec_.layers[next_.layer];
    if (layer.is_latent()) {
        add_latent_queries(layer);
    } else if (!plan.rotates_with_attention) {
        add_rows(StageKind::rotate);
    }
    add(StageKind::attend, num_units);
    add(StageKind::join_spans, plan.spans_apart ? num_units : 0);
    if (layer.is_latent()) {
        add(StageKind::latent_out, layer.heads.num);
    }
}

void Plan::add_latent_queries(const Layer& layer) {
    add_rows(StageKind::latent_keys);
    if (layer.latent.narrow.w.rows > 0) {
        add_tiles(StageKind::narrow, layer.latent.narrow);
    }
    add(StageKind::widen, layer.heads.num);
}

// All rows of a chunk are one piece's: each needs those before it.
void Plan::add_recurrent_stages(const Batch& batch) {
    const Layer& layer = spec_.layers[next_.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t wanted = kPiecesPerThread * num_threads_;
    const int32_t blocks = layer.num_channels() / 16;
    const int32_t grain = divided_up(blocks, divided_up(wanted, batch.num_chunks));
    add(StageKind::convolve, batch.num_chunks * divided_up(blocks, grain), grain * 16);
    if (layer.mixer == Mixer::mamba) {
        add_tiles(StageKind::low, layer.low);
        if (r.low_norm != nullptr) {
            add_rows(StageKind::norm_low);
        }
    }
    if (layer.wide_decay.w.rows > 0) {
        add_tiles(StageKind::widen_decay, layer.wide_decay);
    }
    if (layer.mixer == Mixer::mamba) {
        add(StageKind::scan_channels, batch.num_chunks * divided_up(blocks, grain), grain * 16);
    } else if (layer.scans()) {
        const int32_t heads = batch.num_chunks * r.num_heads, heads_at_once = divided_up(heads, wanted);
        add(StageKind::scan, divided_up(heads, heads_at_once), heads_at_once);
        if (layer.wide_gate.w.rows > 0) {
            add_tiles(StageKind::widen_gate, layer.wide_gate);
        }
        add_rows(StageKind::gate_mixed);
    }
}

void Plan::add_feed_forward(const Adapters& adapters) {
    const Layer& layer = spec_.layers[next_.layer];
    if (layer.experts.count > 0) {
        add_route(layer.experts);
        if (layer.experts.has_own_input()) {
            next_.source = -1;
            add_input();
        }
        add(StageKind::expert_gate_up, 0);  // how many pieces, the rows decide: see Pass::num_pieces
        add(StageKind::expert_down, 0);
    }
    if (layer.feed_forward_size > 0) {
        add_products(StageKind::gate_up, adapters, layer.experts.count == 0 && !spec_.streams.are_there() && has_y(layer));
        next_.source = -1;
        if (layer.inner_norm != nullptr) {
            add_rows(StageKind::norm_inner);
        }
        if (layer.is_cut()) {
            add_rows(StageKind::cut);
        }
        add_products(StageKind::down, adapters);
    }
    next_.source = -1;
    if (layer.experts.count > 0) {
        add_rows(StageKind::combine);
    }
}

// Rows of what a token has for the layer are activated and multiplied where they are.
void Plan::add_injection(const Layer& layer) {
    add_tiles(StageKind::inject_gate, layer.injection.gate, !spec_.streams.are_there());
    add_tiles(StageKind::inject, layer.injection.output);
}

void Plan::add_input() {
    if (!next_.is_few()) {
        add(StageKind::input, divided_up(next_.rows, kTile), kTile);
    }
}

// Products with one matrix, which no adapter changes.
void Plan::add_tiles(StageKind kind, const Projection& matrix, bool adds_y) {
    add_input();
    next_.adds_y = adds_y;
    const int32_t tiles = matrix.w.tiles(), grain = tiles_at_once(tiles);
    add(kind, divided_up(tiles, grain), grain);
    count_added_y();
}

void Plan::add_route(const Experts& experts) {
    add_input();
    next_.adds_y = has_y(spec_.layers[next_.layer]);
    const int32_t tiles = experts.router.w.tiles(), grain = tiles_at_once(tiles);
    add(StageKind::route, divided_up(tiles, grain) + (experts.has_shared_gate() ? 1 : 0), grain);
    count_added_y();
    next_.source = int32_t(stages.size()) - 1;
    if (next_.is_few()) {
        add(StageKind::choose, 1, next_.rows);  // and sorts
    } else {
        add_rows(StageKind::choose);
        add(StageKind::sort_rows, stages.back().num_pieces == 1 ? 0 : 1);
    }
}

void Plan::add(StageKind kind, int32_t num_pieces, int32_t grain) {
    next_.kind = kind;
    next_.num_pieces = num_pieces;
    next_.grain = grain;
    stages.push_back(next_);
}

void Plan::add_rows(StageKind kind) {
    const int32_t grain = std::clamp(next_.rows / (kPiecesPerThread * num_threads_), 1, 16);
    add(kind, divided_up(next_.rows, grain), grain);
}

// Rows of x become others where they are.
void Plan::change_rows(StageKind kind) {
    add_rows(kind);
    ++next_.num_added;
}

void Plan::add_products(StageKind kind, const Adapters& adapters, bool adds_y) {
    if (kind != StageKind::down && next_.source < 0) {
        add_input();
    }
    next_.kind = kind;
    next_.adds_y = adds_y;
    add_project(adapters);
    const int32_t num_parts = kind == StageKind::gate_up ? 1 : next_.num_products();  // up with gate
    const auto num_pieces = [&](int32_t grain) {
        int32_t n = 0;
        for (int32_t part = 0; part < num_parts; ++part) {
            n += divided_up(product(next_, part).w.tiles(), grain);
        }
        return n;
    };
    int32_t grain = tiles_at_once(num_pieces(1));
    if (kind == StageKind::head) {
        grain = divided_up(grain, kMaximaBlock / kTile) * (kMaximaBlock / kTile);  // whole blocks of logits
    }
    if (kind == StageKind::gate_up) {
        grain = std::min(grain, gate_floats(max_batch_tokens_) / (next_.rows * kTile) / 2 * 2);
    }
    add(kind, num_pieces(grain), grain);
    count_added_y();
}

const Projection& Plan::product(const Stage& products, int32_t part) const {
    return products.kind == StageKind::query_key_value ? spec_.layers[products.layer].input(part)
                                                       : spec_.at(products.place() + part);
}

void Plan::count_added_y() {
    if (next_.adds_y) {
        next_.x = next_.is_few() ? int8_t(1 - next_.x) : next_.x;
        ++next_.num_added;
    }
    next_.adds_y = false;
}

// Before the products that come next.
void Plan::add_project(const Adapters& adapters) {
    const Stage products = next_;
    if (const int32_t units = adapters.num_units(products.place(), products.num_parts(), products.of_logits); units > 0) {
        const int32_t grain = divided_up(units, kPiecesPerThread * num_threads_);
        add(StageKind::project, divided_up(units, grain), grain);
        stages.back().rows = units;
        next_ = products;
    }
}

// An even number: kernels like to take tiles in pairs.
int32_t Plan::tiles_at_once(int32_t tiles) const {
    return std::max(2, divided_up(tiles, kPiecesPerThread * num_threads_) + 1) / 2 * 2;
}

}  // namespace stoker
