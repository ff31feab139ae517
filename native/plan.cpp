#include "plan.hpp"

#include <algorithm>

#include "attention.hpp"
#include "sampling.hpp"

namespace stoker {

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
    : spec_(spec), max_batch_tokens_(max_batch_tokens), num_threads_(num_threads) {
    stages.reserve(spec.layers.size() * 22 + 6);
    row_position.resize(max_batch_tokens);
    row_chunk.resize(max_batch_tokens);
    logit_row.resize(max_batch_tokens);
    for (const Layer& layer : spec.layers) {
        add_attention(layer, attention_rows);
    }
}

void Plan::add_attention(const Layer& layer, int32_t attention_rows) {
    const bool whole_rows = layer.head_norms == HeadNorms::whole_row;
    const auto known = std::ranges::find(attentions_, layer.heads, &AttentionPlan::heads);
    kinds_.push_back(int32_t(known - attentions_.begin()));
    if (known == attentions_.end()) {
        attentions_.emplace_back(layer.heads, whole_rows, attention_rows, spec_.num_positions(), max_batch_tokens_,
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
    keeps_rows = batch.hidden == nullptr && batch.num_rows < batch.num_tokens && batch.num_tokens > Stage::kFewRows;
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
    add_rows(StageKind::embed);
    for (next_.layer = 0; next_.layer < int32_t(spec_.layers.size()); ++next_.layer) {
        add_products(StageKind::query_key_value, adapters);
        add_attention_stages();
        if (keeps_rows && is_last(next_.layer)) {
            add(StageKind::keep_rows, 1);
            next_.rows = batch.num_rows;
            next_.of_logits = true;
        }
        if (next_.rows == 0) {
            return;
        }
        add_products(StageKind::output, adapters);
        add_feed_forward(adapters);
    }
    next_.layer = 0;
    if (batch.hidden != nullptr) {
        add_rows(StageKind::hidden);
    }
    next_.rows = batch.num_rows;
    next_.of_logits = true;
    if (next_.rows > 0) {
        add_products(StageKind::head, adapters);
    }
}

void Plan::add_attention_stages() {
    const AttentionPlan& plan = attention(next_.layer);
    const auto num_units = int32_t(plan.units.size());
    if (!plan.rotates_with_attention) {
        add_rows(StageKind::rotate);
    }
    add(StageKind::attend, num_units);
    add(StageKind::join_spans, plan.spans_apart ? num_units : 0);
}

void Plan::add_feed_forward(const Adapters& adapters) {
    const Layer& layer = spec_.layers[next_.layer];
    if (layer.experts.count > 0) {
        add_route(layer.experts);
        add(StageKind::expert_gate_up, 0);  // how many pieces, the rows decide: see Pass::num_pieces
        add(StageKind::expert_down, 0);
    }
    if (layer.feed_forward_size > 0) {
        add_products(StageKind::gate_up, adapters);
        next_.source = -1;
        add_products(StageKind::down, adapters);
    }
    next_.source = -1;
    if (layer.experts.count > 0) {
        add_rows(StageKind::combine);
    }
}

void Plan::add_route(const Experts& experts) {
    if (!next_.is_few()) {
        add(StageKind::input, divided_up(next_.rows, kTile), kTile);
    }
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

void Plan::add_products(StageKind kind, const Adapters& adapters) {
    if (!next_.is_few() && kind != StageKind::down && next_.source < 0) {
        add(StageKind::input, divided_up(next_.rows, kTile), kTile);
    }
    next_.kind = kind;
    add_project(adapters);
    const int32_t place = next_.place(), num_parts = kind == StageKind::gate_up ? 1 : next_.num_parts();  // up with gate
    const auto num_pieces = [&](int32_t grain) {
        int32_t n = 0;
        for (int32_t part = 0; part < num_parts; ++part) {
            n += divided_up(spec_.at(place + part).w.tiles(), grain);
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

void Plan::count_added_y() {
    if (next_.adds_y()) {
        next_.x = next_.is_few() ? int8_t(1 - next_.x) : next_.x;
        ++next_.num_added;
    }
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
