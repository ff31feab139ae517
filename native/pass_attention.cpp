// The stages of attention.
#include <algorithm>

#include "pass.hpp"
#include "spread.hpp"

namespace stoker {

namespace {

constexpr size_t kFetchedBytes = 32 << 10;  // before attention begins: the rest follows while these are read

}  // namespace

// Of each pair cosine and sine at the position of its axis.
void Pass::gather_rotation(const Rope& rope, const int32_t* positions, float* out) {
    const int32_t pairs = rope.dim / 2;
    for (int32_t i = 0; i < pairs; ++i) {
        const float* at = rope.table + size_t(positions[rope.axes[i]]) * rope.dim + i;
        out[i] = at[0];
        out[pairs + i] = at[pairs];
    }
}

void Pass::rotate_row(int32_t index, int32_t row) {
    const Layer& layer = spec_.layers[index];
    if (layer.head_norms == HeadNorms::whole_row) {
        float* queries = d_.qkv_.get() + size_t(row) * layer.input_size();
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
    KvCache& cache = d_.kv(index);
    const int32_t* page = table(index, chunk) + position / kPageTokens;
    const KvLayout& kv = cache.layout(index);
    const bool has_keys = layer.key.w.rows > 0;
    // A key is written to as many lines as it has elements: they come meanwhile.
    if (has_keys && plan_.attention(index).rotates_with_attention) {
        k_.attention->fetch(kv, {cache.head(index, head), page, 1});
    }
    alignas(64) float gathered[kMaxRotated];
    const float* table = rope.table + size_t(position) * rope.dim;
    if (batch_.rotary != nullptr && !rope.axes.empty()) {
        gather_rotation(rope, batch_.rotary + size_t(row) * kAxes, gathered);
        table = gathered;
    }
    float* qkv = d_.qkv_.get() + size_t(row) * layer.input_size();
    const auto clamp = [&](float* x, int32_t count) {
        for (int32_t i = 0; i < count && spec_.input_limit > 0; ++i) {
            x[i] = std::clamp(x[i], -spec_.input_limit, spec_.input_limit);
        }
    };
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
    clamp(queries, group * n);
    for (int32_t i = 0; i < group; ++i) {
        turn(queries + i * n, layer.query_norm);
    }
    const float by_position = layer.scales_queries && spec_.query_scales != nullptr ? spec_.query_scales[position] : 1;
    k_.rows->scale(queries, spec_.attention_scale * by_position, group * n);
    for (int32_t i = 0; i < group && is_spread(kv.type); ++i) {
        spread(queries + i * n, n);
    }
    if (!has_keys) {
        return;
    }
    float* key = qkv + layer.heads.query_size() + head * n;
    float* value = key + layer.heads.kv_size();
    clamp(key, n);
    clamp(value, n);
    turn(key, layer.key_norm);
    if (layer.norms_values) {
        k_.rows->rms_norm(value, nullptr, n, spec_.norm_eps, value);
    }
    if (is_spread(kv.type)) {
        spread(key, n);
        spread(value, n);
    }
    uint8_t* memory = cache.head(index, head) + *page * kv.page_bytes;
    k_.attention->write(kv, memory, position % kPageTokens, key, value);
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
        if (unit.span >= rows.first_span() && unit.span <= rows.last_span()) {
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
    const KvLayout& kv = d_.seen_kv(layer).layout(d_.seen_layer(layer));
    const size_t key_bytes = kv.key_bytes();
    pages.count = std::min(pages.count, std::max(1, int32_t(kFetchedBytes / key_bytes)));
    if (pages.memory != me.fetched.memory || pages.pages != me.fetched.pages) {
        k_.attention->fetch(kv, pages);
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

void Pass::finish(Worker& me, int32_t index, const AttentionPiece& piece, int32_t head, float* partials) {
    const int32_t n = heads(index).size, group = heads(index).group();
    const Layer& layer = spec_.layers[index];
    float* all_out = layer.is_latent() ? d_.latent_mixed_.get() : d_.attended_.get();
    const float* sinks = layer.sinks;
    for (int32_t row = 0; row < piece.num_tokens * group; ++row) {
        float* out = all_out + size_t(piece.row + row / group) * heads(index).query_size();
        float* partial = partials + row * partial_floats(n);
        if (sinks != nullptr) {  // as a last span: of nothing, but with a weight
            me.sink.get()[n] = sinks[head * group + row % group];
            me.sink.get()[n + 1] = weight_of_best(d_.kv(index).layout(index).type);
            std::fill_n(me.sink.get(), n, 0.0f);
            k_.attention->merge(partial, me.sink.get(), n);
        }
        const int32_t at = (head * group + row % group) * n;
        k_.attention->finish(partial, n, out + at);
        if (is_spread(d_.kv(index).layout(index).type)) {
            spread(out + at, n);
        }
        if (layer.mixed_gate.w.rows > 0) {
            const float* in = d_.qkv_.get() + size_t(piece.row + row / group) * layer.input_size();
            k_.rows->gate(out + at, in + layer.input_at(Layer::kGate) + at, n);
        }
    }
}

AttentionRows Pass::attention_rows(int32_t layer, const AttentionPiece& piece, int32_t head) const {
    const Heads& heads = this->heads(layer);
    const bool is_latent = spec_.layers[layer].is_latent();
    const int32_t kv_layer = d_.seen_layer(layer);
    const int32_t before = spec_.layers[layer].borrows() ? 1 : 0;  // the row's own position is not there
    const int32_t window = spec_.layers[layer].window;
    const int32_t ldq = is_latent ? heads.query_size() : spec_.layers[layer].input_size();
    const float* queries = is_latent ? d_.latent_queries_.get() : d_.qkv_.get();
    return {
        .kv = d_.seen_kv(layer).layout(kv_layer),
        .memory = d_.seen_kv(layer).head(kv_layer, head),
        .pages = table(layer, batch_.chunks[piece.chunk]),
        .queries = queries + size_t(piece.row) * ldq + size_t(head) * heads.group() * heads.size,
        .ldq = ldq,
        .group = heads.group(),
        .position = piece.position - before,
        .num_tokens = piece.num_tokens,
        .sees_to = piece.sees_to,
        .first = spec_.join.first_position,
        .window = window > 0 ? window - before : 0,
        .is_chunked = spec_.layers[layer].is_chunked,
        .length = spec_.sees_ahead ? batch_.chunks[piece.chunk].length : 0,
        .slopes = spec_.distance_slopes == nullptr ? nullptr : spec_.distance_slopes + size_t(head) * heads.group(),
        .softcap = spec_.attention_softcap,
        .ahead = {},
        .num_fetched = 0,
    };
}

}  // namespace stoker
