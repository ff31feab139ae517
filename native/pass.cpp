#include "pass.hpp"

#include <algorithm>
#include <cstring>

#include "sampling.hpp"

namespace stoker {

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
                rotate_row(stage.layer, stage.of_logits ? plan_.logit_row[row] : row);
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
        case StageKind::combine: return combine(me, stage, share(stage, piece, stage.rows));
        case StageKind::convolve: return convolve(stage, piece);
        case StageKind::scan: return scan(me, stage, piece);
        case StageKind::norm_low: return norm_low(stage, share(stage, piece, stage.rows));
        case StageKind::scan_channels: return scan_channels(stage, piece);
        case StageKind::gate_mixed: return gate_mixed(stage, share(stage, piece, stage.rows));
        case StageKind::latent_keys: return latent_keys(stage.layer, share(stage, piece, stage.rows));
        case StageKind::widen: return widen(me, stage, piece);
        case StageKind::latent_out: return latent_out(me, stage, piece);
        case StageKind::layer_inputs: return layer_inputs(me, share(stage, piece, stage.rows));
        case StageKind::keep_rows: return keep_rows(stage);
        case StageKind::features: return keep_features(share(stage, piece, stage.rows));
        case StageKind::spread_rows: return spread_rows(stage);
        case StageKind::level: return level(share(stage, piece, stage.rows));
        case StageKind::predict: return predict(me, stage, share(stage, piece, stage.rows));
        case StageKind::add_laurel: return add_laurel(me, stage, share(stage, piece, stage.rows));
        case StageKind::cut: return cut(stage, share(stage, piece, stage.rows));
        case StageKind::pass_on: return pass_on(share(stage, piece, stage.rows));
        case StageKind::norm_mixed: return norm_mixed(stage, share(stage, piece, stage.rows));
        case StageKind::norm_inner: return norm_inner(stage, share(stage, piece, stage.rows));
        case StageKind::correct: return correct(me, stage, share(stage, piece, stage.rows));
        case StageKind::gather: {
            const auto [begin, end] = share(stage, piece, stage.rows);
            for (int32_t row = begin; row < end; ++row) {
                gather(me, row, spec_.layers.back());
            }
            return;
        }
        case StageKind::join_streams: return join_streams(me, stage, piece);
        case StageKind::merge: return merge(stage, share(stage, piece, stage.rows));
        case StageKind::hidden: {
            const auto [begin, end] = share(stage, piece, stage.rows);
            for (int32_t row = begin; row < end; ++row) {
                float* all = stage.of_logits ? batch_.logit_hidden : batch_.hidden;
                final_row(me, stage, left_row(stage, row), all + size_t(row) * spec_.hidden_size);
            }
            return;
        }
        case StageKind::query_key_value:
            if (spec_.layers[stage.layer].attends()) {
                fetch_keys(thread, stage.layer);
            }
            [[fallthrough]];
        default: return products(me, stage, piece, input(me, index, piece == 0));
    }
}

Pass::Range Pass::share(const Stage& stage, int32_t piece, int32_t all) {
    return {piece * stage.grain, std::min((piece + 1) * stage.grain, all)};
}

void Pass::embed(const Stage& stage, Range rows) {
    if (spec_.join.is_there()) {
        return join_rows(stage, rows);
    }
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* to = d_.x_[stage.x].get() + size_t(row) * spec_.hidden_size;
        const int32_t token = batch_.tokens[row];
        if (token < 0) {
            std::memcpy(to, input_part(token, 0), spec_.hidden_size * sizeof(float));
            k_.rows->scale(to, spec_.input_scale, spec_.hidden_size);
        } else {
            k_.unpack_row(spec_.embedding.w, token, to);
        }
    }
    d_.adapters_.add_to_embeddings(*k_.adapters, batch_, rows.begin, rows.end, d_.x_[stage.x].get());
    for (int32_t row = rows.begin; spec_.embedding_scale != 1 && row < rows.end; ++row) {
        if (batch_.tokens[row] >= 0) {
            k_.rows->scale(d_.x_[stage.x].get() + size_t(row) * spec_.hidden_size, spec_.embedding_scale, spec_.hidden_size);
        }
    }
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        const int32_t n = spec_.hidden_size;
        float* to = d_.x_[stage.x].get() + size_t(row) * n;
        if (spec_.token_type != nullptr) {
            k_.rows->add(to, spec_.token_type, n);
        }
        if (spec_.positions != nullptr) {
            k_.rows->add(to, spec_.positions + size_t(plan_.row_position[row]) * n, n);
        }
        if (spec_.embedding_norm != nullptr) {
            norm(to, spec_.embedding_norm, to);
        }
    }
}

void Pass::keep_rows(const Stage& stage) {
    const size_t n = spec_.hidden_size;
    const auto keep = [&](float* rows, size_t floats) {
        for (int32_t i = 0; i < batch_.num_rows; ++i) {  // always towards the beginning
            std::memmove(rows + i * floats, rows + plan_.logit_row[i] * floats, floats * sizeof(float));
        }
    };
    keep(d_.attended_.get(), spec_.layers[stage.layer].mixed_size());
    if (stage.of_logits) {  // the others are where they should be
        return;
    }
    keep(d_.x_[stage.x].get(), n);
    if (spec_.streams.are_there()) {
        keep(d_.streams_.get(), Streams::kCount * n);
        keep(d_.laurel_.get(), n);
    }
}

void Pass::spread_rows(const Stage& stage) {
    const size_t floats = spec_.layers[stage.layer].input_size();
    float* rows = d_.qkv_.get();
    for (int32_t i = stage.rows - 1; i >= 0; --i) {  // always towards the end
        std::memmove(rows + plan_.logit_row[i] * floats, rows + i * floats, floats * sizeof(float));
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
    if (stage.is_few() && is_first_piece && stage.adds_y) {
        std::memcpy(d_.x_[1 - stage.x].get(), me.x.get(), size_t(stage.rows) * spec_.hidden_size * sizeof(float));
    }
    if (stage.is_few() && is_first_piece) {
        extract(stage, {0, stage.rows}, me.x.get());
    }
    return a;
}

Activations Pass::place_input(Worker& me, const Stage& products) const {
    int32_t cols = spec_.hidden_size;
    const float* from = normed_rows(me, products);
    uint8_t* codes = products.is_few() ? me.codes.get() : d_.codes_.get();
    if (products.kind == StageKind::output) {
        cols = spec_.layers[products.layer].mixed_size();
        from = d_.attended_.get();
    } else if (products.kind == StageKind::join || (products.kind == StageKind::query_key_value && spec_.is_wide(products.layer))) {
        cols = spec_.joined_size();
        from = d_.joined_.get();
    } else if (products.kind == StageKind::fuse) {
        cols = spec_.join.fuse.w.cols;
        from = d_.features_.get();
    } else if (products.kind == StageKind::inject) {
        cols = spec_.layer_inputs.size;
        from = d_.injected_.get();
    } else if (products.kind == StageKind::down) {
        cols = spec_.layers[products.layer].feed_forward_size;
        from = d_.gate_.get();
        codes = d_.down_codes_.get();
    }
    int32_t ldx = cols;
    const Layer& layer = spec_.layers[products.layer];
    if (products.kind == StageKind::narrow) {  // where `query` has left it
        ldx = layer.input_size();
        cols = layer.query.w.rows;
        from = d_.qkv_.get();
    } else if (products.kind == StageKind::laurel) {
        ldx = layer.input_size();
        cols = layer.laurel.narrow.w.rows;
        from = d_.qkv_.get() + layer.input_at(Layer::kLaurel);
    }
    std::tie(from, ldx, cols) = recurrent_input(products, {from, ldx, cols});
    Activations a = Activations::place(codes, products.rows, cols);
    a.x = from;
    a.ldx = ldx;
    return a;
}

void Pass::prepare(Worker& me, const Stage& products, Range rows, const Activations& out) {
    const Layer& layer = spec_.layers[products.layer];
    const Experts& experts = layer.experts;
    switch (products.kind) {
        case StageKind::query_key_value:
            if (!spec_.is_wide(products.layer)) {
                normalise(me, products, layer.attention_norm, rows);
            }
            break;
        case StageKind::route:
            normalise(me, products, experts.has_own_input() ? experts.router_norm : layer.feed_forward_norm, rows);
            break;
        case StageKind::expert_gate_up: normalise(me, products, experts.norm, rows); break;
        case StageKind::gate_up: normalise(me, products, layer.feed_forward_norm, rows); break;
        case StageKind::inject_gate:
        case StageKind::split:
        case StageKind::layer_products: normalise(me, products, nullptr, rows); break;
        case StageKind::give:
        case StageKind::head:
            for (int32_t i = rows.begin; i < rows.end; ++i) {
                float* normed = normed_rows(me, products) + size_t(i) * spec_.hidden_size;
                final_row(me, products, left_row(products, i), normed);
            }
            break;
        default: break;
    }
    k_.quantize(out.x, out.ldx, rows.begin, rows.end, 0, out.blocks(), out);
}

float* Pass::normed_rows(Worker& me, const Stage& products) const {
    return products.is_few() ? me.normed.get() : d_.normed_.get();
}

Pass::Added Pass::added(const Stage& products) const {
    const Layer& layer = spec_.layers[products.layer];
    if (products.begins(layer)) {
        const Layer& before = spec_.layers[products.layer - 1];
        return {before.last_norm(), before.output_scale, before.output_norm};
    }
    return {products.kind == StageKind::inject_gate ? layer.post_feed_forward_norm : layer.post_attention_norm, 1,
            nullptr};
}

void Pass::normalise(Worker& me, const Stage& products, const float* norm, Range rows) {
    const int32_t n = spec_.hidden_size;
    float* shared = d_.x_[products.x].get();
    float* x = products.is_few() ? me.x.get() : shared;
    float* normed = normed_rows(me, products);
    const Layer& layer = spec_.layers[products.layer];
    const bool is_ahead = products.kind == StageKind::route && layer.experts.is_ahead;
    const bool is_parallel = products.kind == StageKind::query_key_value ? layer.is_beside : layer.is_parallel || is_ahead;
    const uint64_t version = d_.num_passes_ << 16 | uint64_t(products.num_added);
    if (products.is_few()) {
        if (me.added != version) {
            std::memcpy(x, shared, size_t(products.rows) * n * sizeof(float));
        }
        me.added = version + (products.adds_y ? 1 : 0);
    }
    const Added what = products.adds_y ? added(products) : Added{};
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        const size_t at = size_t(row) * n;
        if (is_parallel) {
            this->norm(x + at, norm, normed + at);
        }
        if (products.adds_y) {
            add_y(x + at, row, what, normed + at);
            add_deep_input(products, row, x + at);
        }
        if (!is_parallel) {
            this->norm(x + at, norm, normed + at);
        }
        if (spec_.replaces_stream) {
            std::memcpy(x + at, normed + at, n * sizeof(float));
        }
    }
    if (!products.is_few()) {
        extract(products, rows, x);
    }
}

void Pass::norm(const float* x, const float* weight, float* y) const {
    const int32_t n = spec_.hidden_size;
    if (weight == nullptr) {
        std::memcpy(y, x, n * sizeof(float));
        return;
    }
    const float* bias = is_biased(spec_.norm) ? weight + n : nullptr;
    if (spec_.norm == NormKind::layer || spec_.norm == NormKind::layer_biased) {
        return k_.rows->layer_norm(x, weight, bias, n, spec_.norm_eps, y);
    }
    k_.rows->rms_norm(x, weight, n, spec_.norm_eps, y);
    if (bias != nullptr) {
        k_.rows->add(y, bias, n);
    }
}

void Pass::add_y(float* x, int32_t row, const Added& what, float* scratch) const {
    const float* y = d_.y_.get() + size_t(row) * spec_.hidden_size;
    if (what.norm != nullptr) {
        norm(y, what.norm, scratch);
        y = scratch;
    }
    k_.rows->add(x, y, spec_.hidden_size);
    if (what.scale != 1) {
        k_.rows->scale(x, what.scale, spec_.hidden_size);
    }
    if (what.behind != nullptr) {
        norm(x, what.behind, x);
    }
}

const float* Pass::input_part(int32_t token, int32_t part) const {
    return batch_.inputs + size_t(-1 - token) * spec_.input_size() + size_t(part) * spec_.embedding.w.cols;
}

void Pass::add_deep_input(const Stage& products, int32_t row, float* x) const {
    const bool is_deep = products.kind == StageKind::query_key_value && products.layer <= spec_.deep_layers;
    if (is_deep && batch_.tokens[row] < 0) {
        k_.rows->add(x, input_part(batch_.tokens[row], products.layer), spec_.hidden_size);
    }
}

// x + y behind the last layer, normalised; x stays as it is, so any thread may do it, twice too.
void Pass::final_row(Worker& me, const Stage& stage, int32_t row, float* out) const {
    const int32_t n = spec_.hidden_size;
    float* sum = me.row.get();
    std::memcpy(sum, d_.x_[stage.x].get() + size_t(row) * n, n * sizeof(float));
    if (!spec_.streams.are_there()) {
        add_y(sum, row, {spec_.layers.back().last_norm(), spec_.layers.back().output_scale, spec_.layers.back().output_norm}, out);
    }
    norm(sum, stage.kind == StageKind::hidden && spec_.join.gives_sum ? nullptr : spec_.output_norm, out);
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
        case StageKind::narrow: return narrow(me, stage, piece, a);
        case StageKind::layer_products: return multiply_for_layers(me, stage, piece, a);
        case StageKind::inject_gate: return inject_gate(me, stage, piece, a);
        case StageKind::fuse: {
            const Projection& p = spec_.join.fuse;
            return multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.fused_.get(), p.w.rows);
        }
        case StageKind::give: {
            const Projection& p = spec_.join.give;
            return multiply(me, p, a, share(stage, piece, p.w.tiles()), batch_.hidden, p.w.rows);
        }
        case StageKind::low:
        case StageKind::widen_decay:
        case StageKind::widen_gate: return multiply_recurrent(me, stage, piece, a);
        case StageKind::split: return split(me, stage, piece, a);
        case StageKind::laurel: return laurel(me, stage, piece, a);
        case StageKind::join: {
            const Projection& p = spec_.join.projection;
            return multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.x_[stage.x].get(), spec_.hidden_size);
        }
        case StageKind::inject: {
            const Projection& p = spec_.layers[stage.layer].injection.output;
            return multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.y_.get(), spec_.hidden_size);
        }
        default: return multiply(me, stage, 0, a, tiles(), d_.y_.get(), spec_.hidden_size);
    }
}

void Pass::query_key_value(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Layer& layer = spec_.layers[stage.layer];
    for (int32_t part = 0; part < Layer::kInputs; ++part) {
        const Matrix& w = layer.input(part).w;
        const int32_t count = divided_up(w.tiles(), stage.grain);
        if (piece < count) {
            float* y = d_.qkv_.get() + layer.input_at(part);
            return multiply(me, stage, part, a, share(stage, piece, w.tiles()), y, layer.input_size());
        }
        piece -= count;
    }
}

void Pass::gate_and_up(Worker& me, const Stage& stage, Range tiles, const Activations& a) {
    const int32_t from = tiles.begin * kTile, width = (tiles.end - tiles.begin) * kTile;
    const Layer& layer = spec_.layers[stage.layer];
    const int32_t ff = layer.feed_forward_size;
    const bool is_float = layer.down.w.is_float();
    if (layer.is_cut()) {
        multiply(me, stage, 0, a, tiles, d_.gate_.get(), ff);
        return multiply(me, stage, 1, a, tiles, d_.up_.get(), ff);
    }
    const bool is_normed = layer.inner_norm != nullptr;
    const bool is_kept = is_float || is_normed || d_.adapters_.changes(stage.place() + 2);  // down's adapters take floats
    // Both begin where output 0 would be.
    float* gate = is_kept ? d_.gate_.get() : me.gate.get() - from;
    float* up = me.up.get() - from;
    const int32_t ldg = is_kept ? ff : width;
    multiply(me, stage, 0, a, tiles, gate, ldg);
    if (has_up(spec_.activation)) {
        multiply(me, stage, 1, a, tiles, up, width);
    }
    const Activations codes = Activations::place(d_.down_codes_.get(), stage.rows, ff);
    for (int32_t row = 0; row < stage.rows; ++row) {
        float* active = gate + size_t(row) * ldg + from;
        const float* other = spec_.activation == Activation::xielu ? layer.xielu.data() : up + size_t(row) * width + from;
        k_.rows->activate(spec_.activation, active, other, width, active);
        if (!is_float && !is_normed) {
            k_.quantize(gate, ldg, row, row + 1, from / kBlock, (from + width) / kBlock, codes);
        }
    }
}

void Pass::pass_on(Range rows) {
    const size_t n = spec_.hidden_size;
    std::memcpy(d_.y_.get() + rows.begin * n, d_.qkv_.get() + rows.begin * n, (rows.end - rows.begin) * n * sizeof(float));
}

void Pass::norm_mixed(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* x = d_.attended_.get() + size_t(row) * layer.mixed_size();
        k_.rows->rms_norm(x, layer.mixed_norm, layer.mixed_size(), spec_.norm_eps, x);
    }
}

void Pass::norm_inner(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const int32_t ff = layer.feed_forward_size;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* x = d_.gate_.get() + size_t(row) * ff;
        k_.rows->rms_norm(x, layer.inner_norm, ff, spec_.norm_eps, x);
    }
    if (!layer.down.w.is_float()) {
        const Activations codes = Activations::place(d_.down_codes_.get(), stage.rows, ff);
        k_.quantize(d_.gate_.get(), ff, rows.begin, rows.end, 0, ff / kBlock, codes);
    }
}

void Pass::head(Worker& me, const Stage& stage, Range tiles, const Activations& a) {
    const int32_t width = spec_.num_logits();
    multiply(me, stage, 0, a, tiles, batch_.logits, width);
    const int32_t from = tiles.begin * kTile, to = std::min(tiles.end * kTile, width);
    for (int32_t row = 0; row < a.rows; ++row) {
        float* logits = batch_.logits + size_t(row) * width + from;
        if (spec_.logit_softcap > 0) {
            k_.rows->softcap(logits, spec_.logit_softcap, to - from);
        }
        if (batch_.maxima != nullptr) {
            float* maxima = batch_.maxima + size_t(row) * num_maxima(width) + from / kMaximaBlock;
            k_.sampling->block_maxima(logits, to - from, maxima);
        }
    }
}

void Pass::multiply(Worker& me, const Stage& stage, int32_t part, const Activations& a, Range tiles, float* y, int32_t ldy) {
    multiply(me, plan_.product(stage, part), a, tiles, y, ldy);
    if (part < stage.num_parts()) {
        d_.adapters_.add_to(*k_.adapters, stage.place(), part, stage.of_logits, tiles.begin, tiles.end, y, ldy);
    }
}

void Pass::multiply(Worker& me, const Projection& p, const Activations& a, Range tiles, float* y, int32_t ldy) {
    k_.matmul(p.w, a, tiles.begin, tiles.end, y, ldy, me.matmul.get());
    const int32_t from = tiles.begin * kTile, count = std::min(tiles.end * kTile, p.w.rows) - from;
    const int32_t whole = count / 16 * 16;  // behind the last output of a row another one may begin
    for (int32_t row = 0; p.scale != 1 && row < a.rows; ++row) {
        float* to = y + ptrdiff_t(row) * ldy + from;
        k_.rows->scale(to, p.scale, whole);
        for (int32_t i = whole; i < count; ++i) {
            to[i] *= p.scale;
        }
    }
    for (int32_t row = 0; p.bias != nullptr && row < a.rows; ++row) {
        float* to = y + ptrdiff_t(row) * ldy + from;
        k_.rows->add(to, p.bias + from, whole);
        for (int32_t i = whole; i < count; ++i) {
            to[i] += p.bias[from + i];
        }
    }
}

}  // namespace stoker
