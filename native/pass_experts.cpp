// The stages of a mixture of experts.
#include <algorithm>
#include <cstring>

#include "pass.hpp"

namespace stoker {

namespace {

// Row `from` of all becomes row `to` of some: its codes are copied as they are, so nothing is rounded twice.
void copy_codes(const Activations& all, int32_t from, const Activations& some, int32_t to) {
    for (int32_t block = 0; block < all.blocks(); ++block) {
        const size_t source = all.at(from, block), target = some.at(to, block);
        std::memcpy(some.q + target * kBlock, all.q + source * kBlock, kBlock);
        some.scale[target] = all.scale[source];
        some.sum[0][target] = all.sum[0][source];
        some.sum[1][target] = all.sum[1][source];
    }
}

}  // namespace

void Pass::route(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Experts& experts = spec_.layers[stage.layer].experts;
    const int32_t count = divided_up(experts.router.w.tiles(), stage.grain);
    float* scores = d_.scores_.get();
    if (piece < count) {
        return multiply(me, experts.router, a, share(stage, piece, experts.router.w.tiles()), scores, d_.ld_scores_);
    }
    multiply(me, experts.shared_gate, a, {0, 1}, scores + d_.ld_scores_ - kTile, d_.ld_scores_);
}

void Pass::choose(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        d_.expert_rows_.choose(layer.experts, *k_.rows, row, d_.scores_.get() + size_t(row) * d_.ld_scores_);
    }
    if (stage.num_pieces == 1) {
        sort_rows(stage);
    }
}

void Pass::sort_rows(const Stage& stage) {
    d_.expert_rows_.sort(spec_.layers[stage.layer], stage.rows, spec_.hidden_size);
}

Activations Pass::gather(Worker& me, int32_t index, const ExpertRows::Unit& unit, const Activations& all, bool is_float) {
    const ExpertRows::Group& group = d_.expert_rows_.group(unit);
    if (group.count == all.rows) {
        return all;
    }
    Activations some = Activations::place(me.gathered.get(), group.count, all.cols);
    some.x = me.gathered_x.get();
    some.ldx = all.cols;
    const uint64_t key = (d_.num_passes_ << 16 | uint64_t(index)) << 16 | uint64_t(unit.group);
    if (me.is_gathered == key) {
        return some;
    }
    me.is_gathered = key;
    for (int32_t i = 0; i < group.count; ++i) {
        const int32_t row = d_.expert_rows_.row(group.first + i);
        if (is_float) {
            std::memcpy(me.gathered_x.get() + size_t(i) * all.cols, all.x + size_t(row) * all.ldx, all.cols * sizeof(float));
        } else {
            copy_codes(all, row, some, i);
        }
    }
    return some;
}

void Pass::expert_gate_up(Worker& me, int32_t index, int32_t piece) {
    const Stage& stage = plan_.stages[index];
    const Experts& experts = spec_.layers[stage.layer].experts;
    const ExpertRows::Unit& unit = d_.expert_rows_.gate_units()[piece];
    const ExpertRows::Group& group = d_.expert_rows_.group(unit);
    const Activations a = gather(me, index, unit, input(me, index, false), experts.gate.w.is_float());
    const int32_t size = experts.size, from = unit.tile0 * kTile, width = (unit.tile1 - unit.tile0) * kTile;
    const bool is_float = experts.down.w.is_float();
    // Output 0 of the expert would be at both.
    float* gate = is_float ? d_.expert_gate_.get() + size_t(group.first) * size : me.gate.get() - from;
    float* up = me.up.get() - from;
    const int32_t ldg = is_float ? size : width;
    multiply_expert(me, experts.gate, group.expert, size, a, unit, gate, ldg);
    if (has_up(spec_.activation)) {
        multiply_expert(me, experts.up, group.expert, size, a, unit, up, width);
    }
    const Activations codes = Activations::place(d_.expert_codes_.get() + group.codes, group.count, size);
    for (int32_t row = 0; row < group.count; ++row) {
        float* active = gate + ptrdiff_t(row) * ldg + from;
        float* other = up + ptrdiff_t(row) * width + from;
        if (experts.weighs_input) {  // the products of the input times a weight are the products times the weight
            const float weight = d_.expert_rows_.weight(group.first + row);
            k_.rows->scale(active, weight, width);
            k_.rows->scale(other, weight, width);
        }
        k_.rows->activate(spec_.activation, active, other, width, active);
        if (!is_float) {
            k_.quantize(gate, ldg, row, row + 1, from / kBlock, (from + width) / kBlock, codes);
        }
    }
}

void Pass::expert_down(Worker& me, const Stage& stage, int32_t piece) {
    const Experts& experts = spec_.layers[stage.layer].experts;
    const ExpertRows::Unit& unit = d_.expert_rows_.down_units()[piece];
    const ExpertRows::Group& group = d_.expert_rows_.group(unit);
    const int32_t n = spec_.hidden_size;
    Activations a = Activations::place(d_.expert_codes_.get() + group.codes, group.count, experts.size);
    a.x = d_.expert_gate_.get() + size_t(group.first) * experts.size;
    a.ldx = experts.size;
    multiply_expert(me, experts.down, group.expert, n, a, unit, d_.expert_y_.get() + size_t(group.first) * n, n);
}

// `rows`: of one expert. Output 0 of the expert, of row 0, is at y.
void Pass::multiply_expert(Worker& me, const Projection& all, int32_t expert, int32_t rows, const Activations& a,
                           const ExpertRows::Unit& unit, float* y, int32_t ldy) {
    const int32_t first = expert * (rows / kTile);
    multiply(me, all, a, {first + unit.tile0, first + unit.tile1}, y - ptrdiff_t(expert) * rows, ldy);
}

void Pass::combine(Worker& me, const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const Experts& experts = layer.experts;
    const size_t n = spec_.hidden_size;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* y = d_.y_.get() + row * n;
        if (layer.feed_forward_size == 0) {
            std::fill_n(y, n, 0.0f);
        } else if (experts.has_shared_gate()) {
            float share = d_.scores_.get()[size_t(row + 1) * d_.ld_scores_ - kTile];
            k_.rows->sigmoid(&share, 1);
            k_.rows->scale(y, share, int32_t(n));
        }
        if (experts.block_norm != nullptr) {
            norm(y, experts.block_norm, y);
        }
        float* sum = experts.post_norm == nullptr ? y : me.row.get();
        if (sum != y) {
            std::fill_n(sum, n, 0.0f);
        }
        for (int32_t rank = 0; rank < experts.used; ++rank) {
            const float* result = d_.expert_y_.get() + d_.expert_rows_.entry(row, rank) * n;
            k_.rows->add_scaled(sum, result, experts.weighs_input ? 1 : d_.expert_rows_.weight(row, rank), int32_t(n));
        }
        if (sum != y) {
            norm(sum, experts.post_norm, sum);
            k_.rows->add(y, sum, int32_t(n));
        }
    }
}

}  // namespace stoker
