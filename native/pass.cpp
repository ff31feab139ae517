#include "pass.hpp"

#include <algorithm>
#include <cstring>

#include "sampling.hpp"

namespace stoker {

namespace {

constexpr size_t kFetchedBytes = 32 << 10;  // before attention begins: the rest follows while these are read

}  // namespace

Pass::Pass(Decoder& decoder, const Batch& batch)
    : d_(decoder), spec_(decoder.spec_), k_(decoder.kernels_), plan_(decoder.plan_), batch_(batch) {}

int32_t Pass::num_pieces(int32_t index) const {
    const Stage& stage = plan_.stages[index];
    switch (stage.kind) {
        case StageKind::expert_gate_up: return int32_t(d_.expert_rows_.gate_units().size());
        case StageKind::expert_down: return int32_t(d_.expert_rows_.down_units().size());
        default: return stage.num_pieces;
    }
}

void Pass::compute(int32_t index, int32_t piece, int32_t thread) {
    const Stage& stage = plan_.stages[index];
    Worker& me = d_.workers_[thread];
    switch (stage.kind) {
        case StageKind::embed: return embed(stage, share(stage, piece, stage.rows));
        case StageKind::input: {
            const Stage& behind = plan_.stages[products_behind(index)];
            return prepare(me, behind, share(stage, piece, stage.rows), place_input(me, behind));
        }
        case StageKind::project: return project(me, index, share(stage, piece, stage.rows));
        case StageKind::rotate: {
            const auto [begin, end] = share(stage, piece, stage.rows);
            for (int32_t row = begin; row < end; ++row) {
                rotate_row(stage.layer, row);
            }
            return;
        }
        case StageKind::attend: {
            const Range own = units_of(stage.layer, thread);
            return attend(me, stage.layer, piece, piece < own.begin ? Range{} : Range{piece + 1, own.end});
        }
        case StageKind::join_spans: return join_spans(me, stage.layer, piece);
        case StageKind::route: return route(me, stage, piece, input(me, index, piece == 0));
        case StageKind::choose: return choose(stage, share(stage, piece, stage.rows));
        case StageKind::sort_rows: return sort_rows(stage);
        case StageKind::expert_gate_up: return expert_gate_up(me, index, piece);
        case StageKind::expert_down: return expert_down(me, stage, piece);
        case StageKind::combine: return combine(stage, share(stage, piece, stage.rows));
        case StageKind::keep_rows: return keep_rows(stage);
        case StageKind::hidden: {
            const auto [begin, end] = share(stage, piece, stage.rows);
            for (int32_t row = begin; row < end; ++row) {
                final_row(me, stage, row, batch_.hidden + size_t(row) * spec_.hidden_size);
            }
            return;
        }
        case StageKind::query_key_value: fetch_keys(thread, stage.layer); [[fallthrough]];
        default: return products(me, stage, piece, input(me, index, piece == 0));
    }
}

Pass::Range Pass::share(const Stage& stage, int32_t piece, int32_t all) {
    return {piece * stage.grain, std::min((piece + 1) * stage.grain, all)};
}

void Pass::embed(const Stage& stage, Range rows) {
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* to = d_.x_[stage.x].get() + size_t(row) * spec_.hidden_size;
        k_.unpack_row(spec_.embedding.w, batch_.tokens[row], to);
    }
    d_.adapters_.add_to_embeddings(*k_.adapters, batch_, rows.begin, rows.end, d_.x_[stage.x].get());
    for (int32_t row = rows.begin; spec_.embedding_scale != 1 && row < rows.end; ++row) {
        k_.rows->scale(d_.x_[stage.x].get() + size_t(row) * spec_.hidden_size, spec_.embedding_scale, spec_.hidden_size);
    }
}

void Pass::keep_rows(const Stage& stage) {
    const size_t n = spec_.hidden_size, m = heads(stage.layer).query_size();
    float* x = d_.x_[stage.x].get();
    float* attended = d_.attended_.get();
    for (int32_t i = 0; i < batch_.num_rows; ++i) {  // always towards the beginning
        const size_t row = plan_.logit_row[i];
        std::memmove(x + i * n, x + row * n, n * sizeof(float));
        std::memmove(attended + i * m, attended + row * m, m * sizeof(float));
    }
}

// Inputs of products
// ---------------------------------------------------------------------------------------------------------------------

Activations Pass::input(Worker& me, int32_t index, bool is_first_piece) {
    if (plan_.stages[index].source >= 0) {
        return input(me, plan_.stages[index].source, false);
    }
    const Stage& stage = plan_.stages[index];
    const Activations a = place_input(me, stage);
    const uint64_t key = d_.num_passes_ << 16 | uint64_t(index);
    if (stage.is_few() && stage.kind != StageKind::down && me.prepared != key) {
        prepare(me, stage, {0, stage.rows}, a);
        me.prepared = key;
    }
    // All threads have the same sums; one of them hands them on.
    if (stage.is_few() && is_first_piece && stage.adds_y()) {
        std::memcpy(d_.x_[1 - stage.x].get(), me.x.get(), size_t(stage.rows) * spec_.hidden_size * sizeof(float));
    }
    return a;
}

Activations Pass::place_input(Worker& me, const Stage& products) const {
    int32_t cols = spec_.hidden_size;
    const float* from = normed_rows(me, products);
    uint8_t* codes = products.is_few() ? me.codes.get() : d_.codes_.get();
    if (products.kind == StageKind::output) {
        cols = heads(products.layer).query_size();
        from = d_.attended_.get();
    } else if (products.kind == StageKind::down) {
        cols = spec_.layers[products.layer].feed_forward_size;
        from = d_.gate_.get();
        codes = d_.down_codes_.get();
    }
    Activations a = Activations::place(codes, products.rows, cols);
    a.x = from;
    a.ldx = cols;
    return a;
}

void Pass::prepare(Worker& me, const Stage& products, Range rows, const Activations& out) {
    const Layer& layer = spec_.layers[products.layer];
    if (products.kind == StageKind::query_key_value) {
        const float* post_norm = products.adds_y() ? spec_.layers[products.layer - 1].post_feed_forward_norm : nullptr;
        normalise(me, products, post_norm, layer.attention_norm, rows);
    } else if (products.kind == StageKind::gate_up || products.kind == StageKind::route) {
        normalise(me, products, layer.post_attention_norm, layer.feed_forward_norm, rows);
    } else if (products.kind == StageKind::head) {
        float* normed = normed_rows(me, products);
        for (int32_t i = rows.begin; i < rows.end; ++i) {
            final_row(me, products, plan_.keeps_rows ? i : plan_.logit_row[i], normed + size_t(i) * spec_.hidden_size);
        }
    }
    k_.quantize(out.x, out.ldx, rows.begin, rows.end, 0, out.blocks(), out);
}

float* Pass::normed_rows(Worker& me, const Stage& products) const {
    return products.is_few() ? me.normed.get() : d_.normed_.get();
}

void Pass::normalise(Worker& me, const Stage& products, const float* post_norm, const float* norm, Range rows) {
    const int32_t n = spec_.hidden_size;
    float* shared = d_.x_[products.x].get();
    float* x = products.is_few() ? me.x.get() : shared;
    float* normed = normed_rows(me, products);
    const bool is_parallel = products.kind != StageKind::query_key_value && spec_.layers[products.layer].is_parallel;
    const uint64_t version = d_.num_passes_ << 16 | uint64_t(products.num_added);
    if (products.is_few()) {
        if (me.added != version) {
            std::memcpy(x, shared, size_t(products.rows) * n * sizeof(float));
        }
        me.added = version + (products.adds_y() ? 1 : 0);
    }
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        const size_t at = size_t(row) * n;
        if (is_parallel) {
            this->norm(x + at, norm, normed + at);
        }
        if (products.adds_y()) {
            add_y(x + at, row, post_norm, normed + at);
        }
        if (!is_parallel) {
            this->norm(x + at, norm, normed + at);
        }
    }
}

void Pass::norm(const float* x, const float* weight, float* y) const {
    const int32_t n = spec_.hidden_size;
    if (weight == nullptr) {
        std::memcpy(y, x, n * sizeof(float));
    } else if (spec_.norm == NormKind::rms) {
        k_.rows->rms_norm(x, weight, n, spec_.norm_eps, y);
    } else {
        k_.rows->layer_norm(x, weight, n, spec_.norm_eps, y);
    }
}

void Pass::add_y(float* x, int32_t row, const float* post_norm, float* scratch) const {
    const float* y = d_.y_.get() + size_t(row) * spec_.hidden_size;
    if (post_norm != nullptr) {
        norm(y, post_norm, scratch);
        y = scratch;
    }
    k_.rows->add(x, y, spec_.hidden_size);
}

// x + y behind the last layer, normalised; x stays as it is, so any thread may do it, twice too.
void Pass::final_row(Worker& me, const Stage& stage, int32_t row, float* out) const {
    const int32_t n = spec_.hidden_size;
    float* sum = me.row.get();
    std::memcpy(sum, d_.x_[stage.x].get() + size_t(row) * n, n * sizeof(float));
    add_y(sum, row, spec_.layers.back().post_feed_forward_norm, out);
    norm(sum, spec_.output_norm, out);
}

// Products
// ---------------------------------------------------------------------------------------------------------------------

int32_t Pass::products_behind(int32_t index) const {
    return plan_.stages[index + 1].kind == StageKind::project ? index + 2 : index + 1;
}

void Pass::project(Worker& me, int32_t index, Range units) {
    const int32_t behind = products_behind(index);
    const Stage& products = plan_.stages[behind];
    const Activations a = input(me, behind, false);
    d_.adapters_.project(*k_.adapters, products.place(), products.of_logits, units.begin, units.end, a.x, a.ldx);
}

void Pass::products(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const auto tiles = [&] { return share(stage, piece, spec_.at(stage.place()).w.tiles()); };
    switch (stage.kind) {
        case StageKind::query_key_value: return query_key_value(me, stage, piece, a);
        case StageKind::gate_up: return gate_and_up(me, stage, tiles(), a);
        case StageKind::head: return head(me, stage, tiles(), a);
        default: return multiply(me, stage, 0, a, tiles(), d_.y_.get(), spec_.hidden_size);
    }
}

void Pass::query_key_value(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    float* y = d_.qkv_.get();
    for (int32_t part = 0; part < 3; ++part) {
        const Matrix& w = spec_.at(stage.place() + part).w;
        const int32_t count = divided_up(w.tiles(), stage.grain);
        if (piece < count) {
            return multiply(me, stage, part, a, share(stage, piece, w.tiles()), y, heads(stage.layer).all_size());
        }
        piece -= count;
        y += w.rows;
    }
}

void Pass::gate_and_up(Worker& me, const Stage& stage, Range tiles, const Activations& a) {
    const int32_t from = tiles.begin * kTile, width = (tiles.end - tiles.begin) * kTile;
    const int32_t ff = spec_.layers[stage.layer].feed_forward_size;
    const bool is_float = spec_.layers[stage.layer].down.w.is_float();
    const bool is_kept = is_float || d_.adapters_.changes(stage.place() + 2);  // down's adapters take floats
    // Both begin where output 0 would be.
    float* gate = is_kept ? d_.gate_.get() : me.gate.get() - from;
    float* up = me.up.get() - from;
    const int32_t ldg = is_kept ? ff : width;
    multiply(me, stage, 0, a, tiles, gate, ldg);
    multiply(me, stage, 1, a, tiles, up, width);
    const Activations codes = Activations::place(d_.down_codes_.get(), stage.rows, ff);
    for (int32_t row = 0; row < stage.rows; ++row) {
        float* active = gate + size_t(row) * ldg + from;
        k_.rows->activate(spec_.activation, active, up + size_t(row) * width + from, width, active);
        if (!is_float) {
            k_.quantize(gate, ldg, row, row + 1, from / kBlock, (from + width) / kBlock, codes);
        }
    }
}

void Pass::head(Worker& me, const Stage& stage, Range tiles, const Activations& a) {
    multiply(me, stage, 0, a, tiles, batch_.logits, spec_.vocab_size);
    const int32_t from = tiles.begin * kTile, to = std::min(tiles.end * kTile, spec_.vocab_size);
    for (int32_t row = 0; row < a.rows; ++row) {
        float* logits = batch_.logits + size_t(row) * spec_.vocab_size + from;
        if (spec_.logit_softcap > 0) {
            k_.rows->softcap(logits, spec_.logit_softcap, to - from);
        }
        if (batch_.maxima != nullptr) {
            float* maxima = batch_.maxima + size_t(row) * num_maxima(spec_.vocab_size) + from / kMaximaBlock;
            k_.sampling->block_maxima(logits, to - from, maxima);
        }
    }
}

void Pass::multiply(Worker& me, const Stage& stage, int32_t part, const Activations& a, Range tiles, float* y, int32_t ldy) {
    multiply(me, spec_.at(stage.place() + part), a, tiles, y, ldy);
    d_.adapters_.add_to(*k_.adapters, stage.place(), part, stage.of_logits, tiles.begin, tiles.end, y, ldy);
}

void Pass::multiply(Worker& me, const Projection& p, const Activations& a, Range tiles, float* y, int32_t ldy) {
    k_.matmul(p.w, a, tiles.begin, tiles.end, y, ldy, me.matmul.get());
    const int32_t from = tiles.begin * kTile, count = std::min(tiles.end * kTile, p.w.rows) - from;
    for (int32_t row = 0; p.bias != nullptr && row < a.rows; ++row) {
        k_.rows->add(y + ptrdiff_t(row) * ldy + from, p.bias + from, count);
    }
}

// Attention
// ---------------------------------------------------------------------------------------------------------------------

void Pass::rotate_row(int32_t index, int32_t row) {
    const Layer& layer = spec_.layers[index];
    if (layer.head_norms == HeadNorms::whole_row) {
        float* queries = d_.qkv_.get() + size_t(row) * layer.heads.all_size();
        float* keys = queries + layer.heads.query_size();
        k_.rows->rms_norm(queries, layer.query_norm, layer.heads.query_size(), spec_.norm_eps, queries);
        k_.rows->rms_norm(keys, layer.key_norm, layer.heads.kv_size(), spec_.norm_eps, keys);
    }
    for (int32_t head = 0; head < layer.heads.num_kv; ++head) {
        rotate_and_write(index, row, head);
    }
}

void Pass::rotate_and_write(int32_t index, int32_t row, int32_t head) {
    const Layer& layer = spec_.layers[index];
    const Rope& rope = spec_.ropes[layer.rope];
    const int32_t n = layer.heads.size, group = layer.heads.group(), position = plan_.row_position[row];
    const Chunk& chunk = batch_.chunks[plan_.row_chunk[row]];
    const int32_t* page = batch_.tables + size_t(chunk.slot) * batch_.max_pages + position / kPageTokens;
    const KvLayout& kv = d_.kv_.layout(index);
    if (plan_.attention(index).rotates_with_attention) {  // a key is written to as many lines as it has elements: they come meanwhile
        k_.attention->fetch(kv, {d_.kv_.head(index, head), page, 1});
    }
    const float* table = rope.table + size_t(position) * rope.dim;
    float* qkv = d_.qkv_.get() + size_t(row) * layer.heads.all_size();
    const auto norm = [&](float* x, const float* weight, HeadNorms when) {
        if (weight != nullptr && layer.head_norms == when) {
            k_.rows->rms_norm(x, weight, n, spec_.norm_eps, x);
        }
    };
    const auto turn = [&](float* x, const float* weight) {
        norm(x, weight, HeadNorms::before_rope);
        k_.rows->rotate(x, table, rope.dim, rope.adjacent);
        norm(x, weight, HeadNorms::after_rope);
    };
    float* queries = qkv + size_t(head) * group * n;
    for (int32_t i = 0; i < group; ++i) {
        turn(queries + i * n, layer.query_norm);
    }
    const float by_position = spec_.query_scales == nullptr ? 1 : spec_.query_scales[position];
    k_.rows->scale(queries, spec_.attention_scale * by_position, group * n);
    float* key = qkv + layer.heads.query_size() + head * n;
    turn(key, layer.key_norm);
    uint8_t* memory = d_.kv_.head(index, head) + *page * d_.kv_.page_bytes();
    k_.attention->write(kv, memory, position % kPageTokens, key, key + layer.heads.kv_size());
}

Pass::Range Pass::units_of(int32_t layer, int32_t thread) const {
    const auto count = int32_t(plan_.attention(layer).units.size()), num_threads = int32_t(d_.workers_.size());
    return {Pool::first_piece(count, thread, num_threads), Pool::first_piece(count, thread + 1, num_threads)};
}

void Pass::attend(Worker& me, int32_t layer, int32_t index, Range left) {
    const AttentionPlan& plan = plan_.attention(layer);
    const AttentionUnit& unit = plan.units[index];
    const AttentionPiece& piece = plan.pieces[unit.piece];
    if (plan.rotates_with_attention) {
        rotate_and_write(layer, piece.row, unit.head);
    }
    if (!is_wanted(layer, piece)) {
        return;
    }
    AttentionRows rows = attention_rows(layer, piece, unit.head);
    const AttentionAhead next = pages_of(layer, left);
    if (plan.spans_apart) {
        if (unit.span >= rows.first_span()) {
            attend_span(me, rows, unit.span, next, d_.span_partials_.get() + unit.partials);
        }
        return;
    }
    const int32_t last = rows.last_span();
    float* all = me.partials.get();
    const int32_t head_size = heads(layer).size;
    float* one = all + plan.piece_rows() * partial_floats(head_size);
    for (int32_t span = rows.first_span(); span <= last; ++span) {
        const bool is_first = span == rows.first_span();
        attend_span(me, rows, span, span == last ? next : rows.pages_of(span + 1), is_first ? all : one);
        if (!is_first) {
            merge(all, one, rows.rows(), head_size);
        }
    }
    finish(me, layer, piece, unit.head, all);
}

void Pass::attend_span(Worker& me, AttentionRows& rows, int32_t span, const AttentionAhead& ahead, float* partials) {
    const AttentionAhead pages = rows.pages_of(span);
    rows.num_fetched = pages.memory == me.fetched.memory && pages.pages == me.fetched.pages ? me.fetched.count : 0;
    rows.ahead = me.fetched = ahead;
    me.fetched.count = k_.attention->attend(rows, span, partials, me.attention.get());
}

void Pass::fetch_keys(int32_t thread, int32_t layer) {
    Worker& me = d_.workers_[thread];
    AttentionAhead pages = pages_of(layer, units_of(layer, thread));
    const size_t key_bytes = d_.kv_.layout(layer).plane_bytes();
    pages.count = std::min(pages.count, std::max(1, int32_t(kFetchedBytes / key_bytes)));
    if (pages.memory != me.fetched.memory || pages.pages != me.fetched.pages) {
        k_.attention->fetch(d_.kv_.layout(layer), pages);
        me.fetched = pages;
    }
}

AttentionAhead Pass::pages_of(int32_t layer, Range units) const {
    if (units.begin >= units.end) {
        return {};
    }
    const AttentionPlan& plan = plan_.attention(layer);
    const AttentionUnit& u = plan.units[units.begin];
    const AttentionRows rows = attention_rows(layer, plan.pieces[u.piece], u.head);
    return rows.pages_of(plan.spans_apart ? std::max(u.span, rows.first_span()) : rows.first_span());
}

// The spans of a piece and head are consecutive units; they are merged in order, as if one thread had computed them.
void Pass::join_spans(Worker& me, int32_t layer, int32_t index) {
    const AttentionPlan& plan = plan_.attention(layer);
    const AttentionUnit& unit = plan.units[index];
    const AttentionPiece& piece = plan.pieces[unit.piece];
    if (unit.span != 0 || !is_wanted(layer, piece)) {
        return;
    }
    const auto partials = [&](int32_t span) { return d_.span_partials_.get() + plan.units[index + span].partials; };
    const AttentionRows rows = attention_rows(layer, piece, unit.head);
    float* all = partials(rows.first_span());
    for (int32_t span = rows.first_span() + 1; span <= rows.last_span(); ++span) {
        merge(all, partials(span), rows.rows(), heads(layer).size);
    }
    finish(me, layer, piece, unit.head, all);
}

void Pass::merge(float* all, const float* later, int32_t rows, int32_t head_size) const {
    const int32_t stride = partial_floats(head_size);
    for (int32_t row = 0; row < rows; ++row) {
        k_.attention->merge(all + row * stride, later + row * stride, head_size);
    }
}

void Pass::finish(Worker& me, int32_t layer, const AttentionPiece& piece, int32_t head, float* partials) {
    const int32_t n = heads(layer).size, group = heads(layer).group();
    const float* sinks = spec_.layers[layer].sinks;
    for (int32_t row = 0; row < piece.num_tokens * group; ++row) {
        float* out = d_.attended_.get() + size_t(piece.row + row / group) * heads(layer).query_size();
        float* partial = partials + row * partial_floats(n);
        if (sinks != nullptr) {  // as a last span: of nothing, but with a weight
            me.sink.get()[n] = sinks[head * group + row % group];
            me.sink.get()[n + 1] = weight_of_best(d_.kv_.layout(layer).type);
            std::fill_n(me.sink.get(), n, 0.0f);
            k_.attention->merge(partial, me.sink.get(), n);
        }
        k_.attention->finish(partial, n, out + (head * group + row % group) * n);
    }
}

AttentionRows Pass::attention_rows(int32_t layer, const AttentionPiece& piece, int32_t head) const {
    const Heads& heads = this->heads(layer);
    return {
        .kv = d_.kv_.layout(layer),
        .memory = d_.kv_.head(layer, head),
        .pages = batch_.tables + size_t(batch_.chunks[piece.chunk].slot) * batch_.max_pages,
        .queries = d_.qkv_.get() + size_t(piece.row) * heads.all_size() + size_t(head) * heads.group() * heads.size,
        .ldq = heads.all_size(),
        .group = heads.group(),
        .position = piece.position,
        .num_tokens = piece.num_tokens,
        .window = spec_.layers[layer].window,
        .softcap = spec_.attention_softcap,
        .ahead = {},
        .num_fetched = 0,
    };
}

}  // namespace stoker
